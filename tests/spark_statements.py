"""Spark SQL over a warehouse directory, in a process of its own: what each statement said.

python spark_statements.py WAREHOUSE < STATEMENTS.json      prints a JSON list: rows, or {"error": ...}
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import sys
from typing import Any


def main() -> None:
    from pyspark.sql import SparkSession

    warehouse, statements = sys.argv[1], json.loads(sys.stdin.read())
    spec = importlib.util.find_spec("snowpark_connect_deps_iceberg")
    assert spec is not None and spec.origin is not None
    [jar] = glob.glob(os.path.join(os.path.dirname(spec.origin), "jars", "iceberg-spark-runtime-3.5_2.12-*.jar"))
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jar)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.ice.type", "hadoop")
        .config("spark.sql.catalog.ice.warehouse", warehouse)
        .config("spark.sql.catalog.ice.cache-enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    said: list[Any] = []
    for each in statements:
        try:
            said.append([list(row) for row in spark.sql(each).collect()])
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
            said.append({"error": str(error)[:500]})
    print(json.dumps(said, default=str))


if __name__ == "__main__":
    main()
