"""Iceberg tables over files that other programs wrote: PyIceberg makes the metadata, Spark is asked what it reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

PROPERTY = "schema.name-mapping.default"


class Foreign:
    """One table below a folder."""

    def __init__(
        self,
        home: Path,
        schema: Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        names: Sequence[Any] | str | None = None,
    ) -> None:
        home.mkdir(parents=True)
        self.home = home
        catalog = SqlCatalog("c", uri=f"sqlite:///{home}/catalog.db", warehouse=f"file://{home}/wh")
        catalog.create_namespace("db")
        text = names if names is None or isinstance(names, str) else json.dumps(names)
        properties = {} if text is None else {PROPERTY: text}
        self.table: Table = catalog.create_table("db.t", schema=schema, partition_spec=spec, properties=properties)

    def add(self, *files: tuple[Path, int, Sequence[Any]]) -> Foreign:
        """One snapshot of (file, rows, partition values); the manifest says nothing of their columns."""
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for path, rows, partition in files:
                made = DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=str(path),
                    file_format=FileFormat[path.suffix[1:].upper()],
                    partition=Record(*partition),
                    record_count=rows,
                    file_size_in_bytes=path.stat().st_size,
                    column_sizes={},
                    value_counts={},
                    null_value_counts={},
                    nan_value_counts={},
                    lower_bounds={},
                    upper_bounds={},
                )
                made.spec_id = self.table.metadata.default_spec_id
                append.append_data_file(made)
        return self

    @property
    def metadata(self) -> Path:
        return Path(self.table.metadata_location.removeprefix("file://"))

    def hadoop(self) -> Path:
        """The table's directory, so that Spark finds its newest metadata by path."""
        folder = self.metadata.parent
        shutil.copyfile(self.metadata, folder / "v1.metadata.json")
        (folder / "version-hint.text").write_text("1")
        return folder.parent


def spark_rows(folders: Mapping[str, Path], filters: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Per table its rows as JSON values in a fixed order, or the first line of Spark's error; one process for all."""
    asked = {name: [str(folder), list((filters or {}).get(name, ()))] for name, folder in folders.items()}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, _jar()], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def plain(value: Any) -> Any:
    """A value of DuckDB as the script below prints those of Spark."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def in_order(rows: Sequence[Any]) -> list[Any]:
    return sorted((plain(row) for row in rows), key=repr)


def _jar() -> str:
    spec = find_spec("snowpark_connect_deps_iceberg")
    candidates = [os.environ.get("ICEBERG_SPARK_JAR", "")]
    if spec and spec.origin:
        candidates += map(str, Path(spec.origin).parent.glob("jars/iceberg-spark-runtime-3.5_2.12-*.jar"))
    needed = "org/apache/iceberg/shaded/com/fasterxml/jackson/core/JsonFactoryBuilder.class"
    return next(each for each in candidates if each and needed in zipfile.ZipFile(each).namelist())


_SCRIPT = """
import json, sys
from pyspark.sql import Row, SparkSession

spark = (
    SparkSession.builder.master("local[1]").config("spark.jars", sys.argv[1]).config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
    .config("spark.driver.memory", "1g").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")

def plain(value):
    if isinstance(value, Row):
        return {name: plain(each) for name, each in sorted(value.asDict().items())}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)

found = {}
for name, (folder, filters) in json.load(sys.stdin).items():
    try:
        frame = spark.read.format("iceberg").load(folder)
        rows = sorted(([plain(each) for each in row] for row in frame.collect()), key=repr)
        found[name] = {"rows": rows, "counts": {each: frame.where(each).count() for each in filters}}
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        cause = [line for line in lines if line.startswith("Caused by")]
        found[name] = {"error": (cause or lines)[-1 if cause else 0]}
print(json.dumps(found))
"""
