"""What each reader makes of a column x of published tables, where id is 1: for the type matrix.

python type_cells.py < [{"name", "metadata", "location"}, ...]     prints {reader: {name: value or {"error": ...}}}
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from iceberg_judge_process import DuckDB, PyIceberg, Spark, normal

QUERY = "SELECT x FROM {} WHERE id = 1"


def told(ask: Callable[[], Any]) -> Any:
    try:
        value = normal(ask())
        return value if isinstance(value, bool | int | str | None) else str(value)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


def by_pyiceberg(table: dict[str, str]) -> Any:
    rows = PyIceberg().rows({"metadata": table["metadata"]}, None)
    return next(row["x"] for row in rows.to_pylist() if row["id"] == 1)


def java_value(spark: Any, location: str) -> Any:
    jvm = spark._jvm
    tables = jvm.org.apache.iceberg.hadoop.HadoopTables(spark._jsc.hadoopConfiguration())
    rows = jvm.org.apache.iceberg.data.IcebergGenerics.read(tables.load(location)).build().iterator()
    while rows.hasNext():
        row = rows.next()
        if row.getField("id") == 1:
            value = row.getField("x")
            if value is not None and not isinstance(value, bool | int | float | str | bytes | Decimal):
                return str(value.toString())
            return value
    raise ValueError("no row")


def main() -> None:
    tables = json.loads(sys.stdin.read())
    duck = DuckDB()
    spark = Spark(tempfile.mkdtemp(prefix="cells-")).spark

    def by_duckdb(table: dict[str, str]) -> Any:
        return duck._duckdb.execute(QUERY.format(f"iceberg_scan('{table['metadata']}')")).fetchall()[0][0]

    def by_spark(table: dict[str, str]) -> Any:
        frame = spark.read.format("iceberg").load(table["metadata"])
        return next(row["x"] for row in frame.collect() if row["id"] == 1)

    readers: dict[str, Callable[[dict[str, str]], Any]] = {
        "spark": by_spark,
        "java": lambda table: java_value(spark, table["location"]),
        "pyiceberg": by_pyiceberg,
        "duckdb": by_duckdb,
    }
    found = {
        name: {table["name"]: told(lambda ask=ask, table=table: ask(table)) for table in tables}
        for name, ask in readers.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
