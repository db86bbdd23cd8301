"""The half of the Iceberg judge that runs the engines: every wrong answer about published tables, a JSON line each.

    python iceberg_judge_process.py REQUEST.json

Each engine reads the rows at every snapshot, and at the newest state answers filters and aggregates, which it may prune
or fold by metadata, as it answers them about the same rows in a file.
"""

from __future__ import annotations

import glob
import importlib.util
import json
import math
import os
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

VALUES = 5


def normal(value: Any) -> Any:
    """A value in a form in which equal ones of all engines are equal."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return "nan" if math.isnan(value) else value + 0.0
        case Decimal():
            return ("decimal", str(value.normalize() + 0))
        case datetime():
            return ("instant", (value.astimezone(UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat())
        case date() | time():
            return value.isoformat()
        case uuid.UUID():
            return value.hex
        case bytes() | bytearray():
            return ("bytes", bytes(value).hex())
        case dict():
            return tuple(normal(each) for each in value.values())
        case list() | tuple():
            return tuple(normal(each) for each in value)
        case str() if len(value) == 36 and value.count("-") == 4:
            return value.replace("-", "")
        case _:
            return str(value)


def rows(table: pa.Table) -> Counter[Any]:
    """The rows as a multiset."""
    columns = []
    for name in table.column_names:
        column = table.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([each.storage for each in column.chunks], column.type.storage_type)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.int64()).cast(pa.string())
        uuids = pa.types.is_fixed_size_binary(column.type) and column.type.byte_width == 16
        values = column.to_pylist(maps_as_pydicts=None)
        columns.append([value.hex() if uuids and value is not None else normal(value) for value in values])
    return Counter(zip(*columns, strict=True)) if columns else Counter()


def loaded(path: str) -> pa.Table:
    with pa.OSFile(path, "rb") as source:
        return pa.ipc.open_file(source).read_all()


def quoted(name: str, mark: str) -> str:
    return mark + name.replace(mark, mark * 2) + mark


def conditions(table: pa.Table, mark: str, number: int) -> Iterator[str]:
    """Filters over the scalar columns, in SQL that Spark and DuckDB share."""
    for name in table.column_names:
        column, at = table.column(name), quoted(name, mark)
        yield f"{at} IS NULL"
        yield f"{at} IS NOT NULL"
        t = pa.types
        kind = column.type
        if not (
            t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind) or t.is_date(kind) or t.is_timestamp(kind)
            or t.is_string(kind) or t.is_large_string(kind)
        ):  # fmt: skip
            continue
        known = sorted({each for each in column.to_pylist() if each is not None and each == each}, key=str)
        step = max(1, len(known) // number)
        for value in {str(each): each for each in (*known[::step][:number], *known[-1:])}.values():
            text = constant(value, kind)
            if text is not None:
                signs = ("=", "<", "<=", ">", ">=", "<>") if number > 1 else ("=", "<", ">=")
                yield from (f"{at} {sign} {text}" for sign in signs)


def constant(value: Any, kind: pa.DataType) -> str | None:
    match value:
        case datetime():
            word = "TIMESTAMPTZ" if kind.tz else "TIMESTAMP"
            text = value.astimezone(UTC).replace(tzinfo=None) if kind.tz else value
            if not 1 < value.year < 9999:
                return None
            return f"{word} '{text.isoformat(sep=' ')}{'+00' if kind.tz else ''}'"
        case date():
            return f"DATE '{value.isoformat()}'" if 1 < value.year < 9999 else None
        case float():
            return f"CAST('{value!r}' AS {'FLOAT' if kind == pa.float32() else 'DOUBLE'})"
        case Decimal():
            return f"CAST('{value}' AS DECIMAL({kind.precision},{kind.scale}))"
        case str():
            return None if set(value) & set("\\'\0") else f"'{value}'"
        case int():
            return str(value)
        case _:
            return None


def aggregates(table: pa.Table, mark: str) -> list[str]:
    made = ["count(*)"]
    for name in table.column_names:
        at, kind = quoted(name, mark), table.column(name).type
        made.append(f"count({at})")
        if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(kind) or pa.types.is_decimal(kind):
            made += [f"min({at})", f"max({at})"]
    return made


class PyIceberg:
    """PyIceberg as a library."""

    def rows(self, subject: dict[str, Any], snapshot: int | None) -> pa.Table:
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(subject["metadata"])
        if table.metadata.current_snapshot_id is None:
            return table.schema().as_arrow().empty_table()
        return (table.scan() if snapshot is None else table.scan(snapshot_id=snapshot)).to_arrow()

    def answers(self, subject: dict[str, Any], wanted: pa.Table) -> Iterator[str]:
        from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull, LessThan
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(subject["metadata"])
        if table.metadata.current_snapshot_id is None:
            return
        for name in wanted.column_names:
            kind = wanted.column(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)) or "." in name:
                continue
            values = wanted.column(name).to_pylist()
            known = sorted({each for each in values if each is not None})
            asked = [(IsNull(name), sum(each is None for each in values))]
            for one in {*known[:1], *known[len(known) // 2 :][:1], *known[-1:]}:
                given = one.isoformat() if isinstance(one, date) else one
                asked += [
                    (EqualTo(name, given), sum(each == one for each in values)),
                    (LessThan(name, given), sum(each is not None and each < one for each in values)),
                    (GreaterThanOrEqual(name, given), sum(each is not None and each >= one for each in values)),
                ]
            for condition, count in asked:
                try:
                    found: int | str = table.scan(row_filter=condition).to_arrow().num_rows
                except Exception as error:  # noqa: BLE001  # what else it asks is to be answered too
                    found = f"{type(error).__name__}, {str(error)[:300]}:"
                if found != count:
                    yield f"{condition}: {found} rows, expected {count}"


class DuckDB:
    """DuckDB's iceberg extension."""

    def __init__(self) -> None:
        if (root := str(Path(__file__).resolve().parents[1])) != sys.path[0]:  # tests/converters is not what is meant
            sys.path.insert(0, root)
        import duckdb

        from converters.ducklake.extensions import packaged

        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")
        for name in ("avro", "iceberg"):
            self._duckdb.execute(f"LOAD '{packaged(name)}'")

    def rows(self, subject: dict[str, Any], snapshot: int | None) -> pa.Table:
        at = "" if snapshot is None else f", snapshot_from_id={snapshot}::UBIGINT"
        return self._duckdb.execute(f"SELECT * FROM iceberg_scan({_text(subject['metadata'])}{at})").to_arrow_table()

    def answers(self, subject: dict[str, Any], wanted: pa.Table) -> Iterator[str]:
        self._duckdb.register("given", wanted)  # filters over Arrow would go to pyarrow, to which NaN is less than all
        self._duckdb.execute("CREATE OR REPLACE TABLE wanted AS SELECT * FROM given")
        yield from compared(
            lambda sql: [tuple(map(normal, row)) for row in self._duckdb.execute(sql).fetchall()],
            f"iceberg_scan({_text(subject['metadata'])})",
            "wanted",
            wanted,
            '"',
        )


class Spark:
    """Spark with Iceberg Java."""

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(map(normal, row)) for row in self.spark.sql(in_spark(sql)).collect()]

    def __init__(self, scratch: str) -> None:
        from pyspark.sql import SparkSession

        spec = importlib.util.find_spec("snowpark_connect_deps_iceberg")
        assert spec is not None and spec.origin is not None
        [jar] = glob.glob(os.path.join(os.path.dirname(spec.origin), "jars", "iceberg-spark-runtime-3.5_2.12-*.jar"))
        self._scratch = scratch
        self.spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", jar)
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            .config("spark.local.dir", scratch)
            .config("spark.sql.warehouse.dir", scratch)
            .getOrCreate()
        )
        self.spark.sparkContext.setLogLevel("OFF")
        self._number = 0

    def rows(self, subject: dict[str, Any], snapshot: int | None) -> pa.Table:
        reader = self.spark.read.format("iceberg")
        if snapshot is not None:
            reader = reader.option("snapshot-id", snapshot)
        frame = reader.load(subject["metadata"])
        batches = frame._collect_as_arrow()
        if batches:
            return pa.Table.from_batches(batches)
        return pa.table({name: pa.nulls(0) for name in frame.columns})

    def answers(self, subject: dict[str, Any], wanted: pa.Table) -> Iterator[str]:
        self._number += 1
        self.spark.read.format("iceberg").load(subject["metadata"]).createOrReplaceTempView("published")
        plain = f"{self._scratch}/plain{self._number}"
        self.spark.sql("SELECT * FROM published").write.parquet(plain)
        self.spark.read.parquet(plain).createOrReplaceTempView("wanted")
        yield from compared(
            self.ask,
            "published",
            "wanted",
            wanted,
            "`",
        )  # fmt: skip


def in_spark(sql: str) -> str:
    """DuckDB's words for instants in Spark's."""
    return sql.replace("TIMESTAMPTZ", "TIMESTAMP_LTZ").replace(" TIMESTAMP '", " TIMESTAMP_NTZ '")


def compared(ask: Any, published: str, plain: str, wanted: pa.Table, mark: str) -> Iterator[str]:
    """Filters and aggregates of the published table against the same rows elsewhere."""
    asked = list(conditions(wanted, mark, VALUES if mark == '"' else 1))  # Spark takes its time for each
    for start in range(0, len(asked), 20):
        part = asked[start : start + 20]
        both = [
            ask(" UNION ALL ".join(f"SELECT {n} n, count(*) c FROM {at} WHERE {one}" for n, one in enumerate(part)))
            for at in (published, plain)
        ]  # fmt: skip
        here, there = (dict(each) for each in both)
        yield from (f"{part[n]}: {here[n]} rows, expected {there[n]}" for n in here if here[n] != there[n])
    folded = aggregates(wanted, mark)
    [found], [expected] = (ask(f"SELECT {', '.join(folded)} FROM {at}") for at in (published, plain))
    yield from (
        f"{each}: {one}, expected {other}"
        for each, one, other in zip(folded, found, expected, strict=True)
        if one != other
    )


def judged(engine: Any, name: str, subject: dict[str, Any]) -> Iterator[str]:
    label = f"{subject['name']} by {name}"
    for version in subject["versions"]:
        wanted = loaded(version["rows"])
        at = "now" if version["snapshot"] is None else f"at {version['snapshot']}"
        try:
            found = engine.rows(subject, version["snapshot"])
        except Exception as error:  # noqa: BLE001  # every engine has its own
            yield f"{label} {at}: {type(error).__name__}: {str(error)[:300]}"
            continue
        if found.column_names != wanted.column_names:
            yield f"{label} {at}: columns {found.column_names}, expected {wanted.column_names}"
            continue
        mine, theirs = rows(found), rows(wanted)
        if mine != theirs:
            extra, missing = list((mine - theirs).items())[:2], list((theirs - mine).items())[:2]
            yield f"{label} {at}: {found.num_rows} rows, expected {wanted.num_rows}; extra {extra}, missing {missing}"
    try:
        if subject.get("answers", True):
            yield from (
                f"{label}: {fault}" for fault in engine.answers(subject, loaded(subject["versions"][-1]["rows"]))
            )
    except Exception as error:  # noqa: BLE001  # every engine has its own
        yield f"{label}: {type(error).__name__}: {str(error)[:300]}"


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    made: dict[str, Any] = {}
    with open(request["answer"], "w") as answer:
        for name in request["engines"]:
            made[name] = {"pyiceberg": PyIceberg, "duckdb": DuckDB}.get(name, lambda: Spark(request["scratch"]))()
            for subject in request["subjects"]:
                for fault in judged(made[name], name, subject):
                    answer.write(json.dumps({"fault": fault}) + "\n")
                    answer.flush()
        answer.write(json.dumps({"end": True}) + "\n")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


if __name__ == "__main__":
    main()
