"""Build the committed Iceberg fixture tables (fixtures/iceberg/<kind>) by Spark, Iceberg Java and pyiceberg.

usage: python scripts/make_fixtures.py [KIND ...]     build some or all kinds
       python scripts/make_fixtures.py --list         list the kinds
       python scripts/make_fixtures.py --check        check what is on disk (needs no Spark)

Tables are written under the neutral root /warehouse, so that every stored path reads
/warehouse/db/<kind>/..., and are then copied into the repository. Needs: pyspark 3.5, an Iceberg 1.10
Spark runtime jar ($ICEBERG_SPARK_JAR, or the one inside snowpark-connect-deps-iceberg 1.0.2), Java 17,
pyiceberg, pyarrow and fastavro.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import datetime
import decimal
import gzip
import importlib.util
import io
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

REPO = Path(__file__).resolve().parent.parent
OUT = REPO / "fixtures" / "iceberg"
ROOT = Path("/warehouse")
PREFIX_FORMS = ("file:///warehouse", "file:/warehouse", "/warehouse")
MANIFEST_DELETES = 1
STATUS_DELETED = 2


# --------------------------------------------------------------------------- engines


def iceberg_jar() -> str:
    """Return a complete Iceberg Spark runtime jar (some published copies lack the shaded Jackson)."""
    candidates = [os.environ.get("ICEBERG_SPARK_JAR", "")]
    found = importlib.util.find_spec("snowpark_connect_deps_iceberg")
    if found and found.origin:
        jars = Path(found.origin).parent / "jars"
        candidates += [str(jar) for jar in jars.glob("iceberg-spark-runtime-3.5_2.12-*.jar")]
    needed = "org/apache/iceberg/shaded/com/fasterxml/jackson/core/JsonFactoryBuilder.class"
    for jar in candidates:
        if jar and needed in zipfile.ZipFile(jar).namelist():
            return jar
    raise SystemExit("no complete iceberg-spark-runtime jar found: set ICEBERG_SPARK_JAR")


class Engine:
    """One Spark session with the Iceberg catalog `ice`, and a pyiceberg catalog, both under /warehouse."""

    def __init__(self) -> None:
        """Start lazily: only kinds that need an engine pay for it."""
        self._spark: Any = None
        self._pyi: Any = None

    @property
    def spark(self) -> Any:
        """The Spark session."""
        if self._spark is None:
            os.environ["TZ"] = "UTC"
            time.tzset()
            from pyspark.sql import SparkSession

            scratch = tempfile.mkdtemp(prefix="fixtures-spark-")
            atexit.register(shutil.rmtree, scratch, ignore_errors=True)
            builder = SparkSession.builder.master("local[2]").appName("fixtures")
            conf = {
                "spark.jars": iceberg_jar(),
                "spark.ui.enabled": "false",
                "spark.driver.memory": "2g",
                "spark.driver.host": "localhost",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": "1",
                "spark.sql.leafNodeDefaultParallelism": "1",
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
                "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
                "spark.sql.warehouse.dir": scratch,
                "spark.local.dir": scratch,
                "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
                "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.ice.type": "hadoop",
                "spark.sql.catalog.ice.warehouse": str(ROOT),
                "spark.sql.catalog.ice.cache-enabled": "false",
                "spark.sql.catalog.iceuri": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.iceuri.type": "hadoop",
                "spark.sql.catalog.iceuri.warehouse": f"file://{ROOT}",
                "spark.sql.catalog.iceuri.cache-enabled": "false",
            }
            for key, value in conf.items():
                builder = builder.config(key, value)
            self._spark = builder.getOrCreate()
            self._spark.sparkContext.setLogLevel("OFF")
        return self._spark

    @property
    def jvm(self) -> Any:
        """The py4j view of the Java side."""
        return self.spark._jvm

    @property
    def pyi(self) -> Any:
        """A pyiceberg catalog (its own list of tables lives in memory only)."""
        if self._pyi is None:
            from pyiceberg.catalog.sql import SqlCatalog

            self._pyi = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=f"file://{ROOT}")
            self._pyi.create_namespace_if_not_exists("db")
        return self._pyi

    def run(self, kind: str, *statements: str) -> None:
        """Run SQL; {t} is the table, {k} its name, {s<n>} the id of its n-th snapshot."""
        for statement in statements:
            text = statement.replace("{t}", f"ice.db.{kind}").replace("{k}", kind)

            def snapshot_id(match: re.Match[str]) -> str:
                return str(newest_metadata(ROOT / "db" / kind)[1]["snapshots"][int(match[1]) - 1]["snapshot-id"])

            self.spark.sql(re.sub(r"\{s(\d+)\}", snapshot_id, text))

    def java_table(self, kind: str) -> Any:
        """Load a table as an Iceberg Java object."""
        util = self.jvm.org.apache.iceberg.spark.Spark3Util
        return util.loadIcebergTable(self.spark._jsparkSession, f"ice.db.{kind}")

    def java_create(self, kind: str, fields: list[Any], version: int) -> Any:
        """Create an unpartitioned table through the Java API (for types that Spark does not know)."""
        ice = self.jvm.org.apache.iceberg
        catalog = ice.hadoop.HadoopCatalog(self.spark._jsc.hadoopConfiguration(), str(ROOT))
        columns = self.jvm.java.util.ArrayList()
        for field in fields:
            columns.add(field)
        props = self.jvm.java.util.HashMap()
        props.put("format-version", str(version))
        name = ice.catalog.TableIdentifier.parse(f"db.{kind}")
        return catalog.createTable(name, ice.Schema(columns), ice.PartitionSpec.unpartitioned(), props)

    def java_append(self, table: Any, rows: list[dict[str, Any]]) -> None:
        """Append one data file of generic records."""
        data = self.jvm.org.apache.iceberg.data
        factory = data.GenericAppenderFactory(table.schema(), table.spec())
        fmt = self.jvm.org.apache.iceberg.FileFormat.PARQUET
        files = self.jvm.org.apache.iceberg.io.OutputFileFactory.builderFor(table, 1, int(time.time() * 1000))
        writer = factory.newDataWriter(files.format(fmt).build().newOutputFile(), fmt, None)
        for row in rows:
            record = data.GenericRecord.create(table.schema())
            for name, value in row.items():
                record.setField(name, value)
            writer.write(record)
        writer.close()
        table.newAppend().appendFile(writer.toDataFile()).commit()

    def java_equality_delete(self, table: Any, columns: list[str], rows: list[list[Any]]) -> None:
        """Commit one equality delete file."""
        data = self.jvm.org.apache.iceberg.data
        ids = self.spark.sparkContext._gateway.new_array(self.jvm.int, len(columns))
        for i, name in enumerate(columns):
            ids[i] = table.schema().findField(name).fieldId()
        names = self.jvm.java.util.ArrayList()
        for name in columns:
            names.add(name)
        schema = table.schema().select(names)
        factory = data.GenericAppenderFactory(table.schema(), table.spec(), ids, schema, None)
        fmt = self.jvm.org.apache.iceberg.FileFormat.PARQUET
        files = self.jvm.org.apache.iceberg.io.OutputFileFactory.builderFor(table, 1, int(time.time() * 1000))
        writer = factory.newEqDeleteWriter(files.format(fmt).build().newOutputFile(), fmt, None)
        for row in rows:
            record = data.GenericRecord.create(schema)
            for name, value in zip(columns, row, strict=True):
                record.setField(name, value)
            writer.write(record)
        writer.close()
        table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


# --------------------------------------------------------------------------- kinds


@dataclass(frozen=True)
class Kind:
    """One fixture table: how it is built and who tells the truth about its rows."""

    name: str
    what: str
    build: Callable[[Engine, str], None]
    oracle: str = "spark"
    engine: str = "spark"


KINDS: dict[str, Kind] = {}


def sql(name: str, what: str, *statements: str) -> None:
    """Register a kind built by SQL alone."""
    KINDS[name] = Kind(name, what, lambda engine, kind: engine.run(kind, *statements))


def built(
    name: str, what: str, *, oracle: str = "spark", engine: str = "spark"
) -> Callable[[Callable[[Engine, str], None]], Callable[[Engine, str], None]]:
    """Register a kind built by a function."""

    def register(function: Callable[[Engine, str], None]) -> Callable[[Engine, str], None]:
        KINDS[name] = Kind(name, what, function, oracle, engine)
        return function

    return register


def create(columns: str = "id INT, v STRING", *, v: int = 2, part: str = "", mor: bool = False, **props: str) -> str:
    """CREATE TABLE text; property names are given with __ for a dot and _ for a dash."""
    options = {"format-version": str(v)}
    if mor:
        options |= {f"write.{op}.mode": "merge-on-read" for op in ("delete", "update", "merge")}
    options |= {key.replace("__", ".").replace("_", "-"): value for key, value in props.items()}
    listed = ", ".join(f"'{key}'='{value}'" for key, value in options.items())
    by = f" PARTITIONED BY ({part})" if part else ""
    return f"CREATE TABLE {{t}} ({columns}) USING iceberg{by} TBLPROPERTIES ({listed})"


def fill(lo: int, hi: int, *exprs: str) -> str:
    """INSERT of the rows lo..hi-1, by default as (id INT, v STRING)."""
    chosen = ", ".join(exprs or ("CAST(id AS INT)", "concat('s', id)"))
    return f"INSERT INTO {{t}} SELECT {chosen} FROM range({lo}, {hi}, 1, 1)"


def values(*rows: str) -> str:
    """INSERT of literal rows."""
    return "INSERT INTO {t} VALUES " + ", ".join(rows)


ID = "CAST(id AS INT)"
PARITY = "IF(id % 2 = 0, 'even', 'odd')"
EXPIRE = "CALL ice.system.expire_snapshots(table => 'db.{k}', older_than => TIMESTAMP '2099-01-01', retain_last => 1)"


# ---- versions, copy-on-write, no delete files

sql("v1_basic", "v1, two appends", create(v=1), fill(0, 5), fill(5, 10))
sql(
    "v1_part_void",
    "v1, partition field dropped (becomes void), then a bucket field added",
    create("id INT, p STRING", v=1, part="p"),
    fill(0, 4, ID, PARITY),
    "ALTER TABLE {t} DROP PARTITION FIELD p",
    fill(4, 8, ID, PARITY),
    "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)",
    fill(8, 12, ID, PARITY),
)
MERGE = (
    "MERGE INTO {t} t USING (SELECT CAST(id AS INT) AS id, concat('m', id) AS v FROM range(8, 13, 1, 1)) s "
    "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
)
sql(
    "v2_cow",
    "v2 copy-on-write: insert, insert, update, delete, merge",
    create(),
    fill(0, 5),
    fill(5, 10),
    "UPDATE {t} SET v = 'upd' WHERE id = 3",
    "DELETE FROM {t} WHERE id IN (1, 7)",
    MERGE,
)
sql("v3_nodelete", "v3, appends only", create(v=3), fill(0, 5), fill(5, 10))
sql(
    "v3_lineage",
    "v3 row lineage: append, append, update, compaction, append",
    create(v=3),
    fill(0, 5),
    fill(5, 10),
    "UPDATE {t} SET v = 'upd' WHERE id IN (2, 6)",
    "CALL ice.system.rewrite_data_files(table => 'db.{k}', options => map('rewrite-all', 'true'))",
    fill(10, 14),
)


def add_defaults(engine: Engine, kind: str, text: str) -> None:
    """v3 columns with an initial default, and a write default that changes later."""
    engine.run(kind, create("id INT", v=3), fill(0, 6, ID))
    types, exprs = (
        engine.jvm.org.apache.iceberg.types.Types,
        engine.jvm.org.apache.iceberg.expressions.Expressions,
    )
    update = engine.java_table(kind).updateSchema()
    update = update.addColumn("qty", types.IntegerType.get(), "count of things", exprs.lit(7))
    update = update.addColumn("big", types.LongType.get(), None, exprs.lit(5_000_000_000))
    update = update.addColumn("tag", types.StringType.get(), None, exprs.lit(text))
    update = update.addColumn("ratio", types.DoubleType.get(), None, exprs.lit(0.25))
    update = update.addColumn("flag", types.BooleanType.get(), None, exprs.lit(True))
    update.addColumn("day", types.DateType.get(), None, exprs.lit("2024-02-29").to(types.DateType.get())).commit()
    engine.java_table(kind).updateSchema().updateColumnDefault("qty", exprs.lit(9)).commit()
    engine.run(
        kind,
        values(
            "(100, NULL, NULL, NULL, NULL, NULL, NULL)",
            "(101, 1, 2, 'x', 1.5, false, DATE '2001-01-01')",
        ),
    )


@built("v3_default", "v3 initial and write defaults, a text default with a quote")
def _(engine: Engine, kind: str) -> None:
    add_defaults(engine, kind, "it's 'old'")


@built("v3_default2", "v3 initial and write defaults, no quote")
def _(engine: Engine, kind: str) -> None:
    add_defaults(engine, kind, "old")


@built("v3_tsns", "v3 timestamp_ns and timestamptz_ns", oracle="pyiceberg", engine="iceberg-java")
def _(engine: Engine, kind: str) -> None:
    types, when = engine.jvm.org.apache.iceberg.types.Types, engine.jvm.java.time
    field = types.NestedField.optional
    table = engine.java_create(
        kind,
        [
            field(1, "id", types.IntegerType.get()),
            field(2, "ts", types.TimestampNanoType.withoutZone()),
            field(3, "tz", types.TimestampNanoType.withZone()),
        ],
        3,
    )
    texts = [
        "2024-02-29T12:34:56.123456789",
        "1969-12-31T23:59:59.999999999",
        "1970-01-01T00:00:00.000000001",
    ]
    rows = [
        {"id": i, "ts": when.LocalDateTime.parse(text), "tz": when.OffsetDateTime.parse(text + "Z")}
        for i, text in enumerate(texts)
    ]
    engine.java_append(table, [*rows, {"id": 3, "ts": None, "tz": None}])


@built("v3_tsns_ntz", "v3 timestamp_ns", oracle="pyiceberg", engine="iceberg-java")
def _(engine: Engine, kind: str) -> None:
    types, when = engine.jvm.org.apache.iceberg.types.Types, engine.jvm.java.time
    field = types.NestedField.optional
    columns = [field(1, "id", types.IntegerType.get()), field(2, "ts", types.TimestampNanoType.withoutZone())]
    table = engine.java_create(kind, columns, 3)
    texts = [
        "2024-02-29T12:34:56.123456789",
        "1900-01-01T00:00:00.000000001",
        "2100-12-31T23:59:59.999999999",
    ]
    rows = [{"id": i, "ts": when.LocalDateTime.parse(text)} for i, text in enumerate(texts)]
    engine.java_append(table, rows)
    engine.java_append(table, [{"id": 3, "ts": None}])


@built("v3_unknown", "v3 unknown type", oracle="literal", engine="iceberg-java")
def _(engine: Engine, kind: str) -> None:
    types = engine.jvm.org.apache.iceberg.types.Types
    field = types.NestedField.optional
    columns = [field(1, "id", types.IntegerType.get()), field(2, "nothing", types.UnknownType.get())]
    table = engine.java_create(kind, [*columns, field(3, "v", types.StringType.get())], 3)
    engine.java_append(table, [{"id": i, "nothing": None, "v": f"s{i}"} for i in range(5)])


# ---- partitions

TRICKY = [
    "CAST(NULL AS STRING)", "'NULL'", "'null'", "''", "'a b'", "' lead'", "'trail '", "'a/b'", "'50%'",
    "'%2F'", "'k=v'", "'grün'", "'日本'", "'a+b'", "'__HIVE_DEFAULT_PARTITION__'", "'q\"q'", "'#?&'",
]  # fmt: skip
sql(
    "part_identity",
    "identity(string): null, 'NULL', '', spaces, '/', '%', unicode",
    create("id INT, p STRING", part="p"),
    values(*(f"({i}, {text})" for i, text in enumerate(TRICKY))),
)
sql(
    "part_identity_plain",
    "identity(string) with null",
    create("id INT, p STRING", part="p"),
    fill(0, 9, ID, "CASE id % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END"),
)
sql(
    "part_identity_types",
    "identity on int, long, decimal, date, timestamp, timestamptz, boolean, binary",
    create(
        "id INT, i INT, l BIGINT, d DECIMAL(9,2), dt DATE, ts TIMESTAMP_NTZ, tz TIMESTAMP, b BOOLEAN, bin BINARY",
        part="i, l, d, dt, ts, tz, b, bin",
    ),
    values(
        "(0, 1, 5000000000, 1.25, DATE '2024-02-29', TIMESTAMP_NTZ '2024-02-29 12:00:00.5', "
        "TIMESTAMP '2024-02-29 12:00:00.000001', true, X'00FF')",
        "(1, -1, -5000000000, -0.01, DATE '1969-12-31', TIMESTAMP_NTZ '1969-12-31 23:59:59.999999', "
        "TIMESTAMP '1969-12-31 23:59:59', false, X'')",
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    ),
)
sql("part_bucket", "bucket(int)", create(part="bucket(4, id)"), fill(0, 10))
sql("part_bucket_str", "bucket(string)", create(part="bucket(4, v)"), fill(0, 10), values("(10, NULL)"))
sql(
    "part_trunc",
    "truncate(int), also below zero",
    create(part="truncate(10, id)"),
    fill(-12, 5),
    values("(NULL, 'n')"),
)
sql(
    "part_trunc_str",
    "truncate(string)",
    create(part="truncate(2, v)"),
    values("(0, 'abc')", "(1, 'abd')", "(2, 'a')", "(3, '')", "(4, 'äöü')", "(5, '日本語')", "(6, NULL)"),
)
sql(
    "part_multi",
    "day + identity, with a delete",
    create("id INT, p STRING, ts TIMESTAMP", part="days(ts), p"),
    fill(0, 8, ID, PARITY, "TIMESTAMP '2024-01-01 06:00:00' + make_interval(0, 0, 0, id % 2)"),
    "DELETE FROM {t} WHERE id IN (0, 5)",
)
TIMES = [
    "1582-10-04 11:12:13", "1900-01-01 00:00:00", "1968-02-29 12:34:56.789", "1969-12-31 00:00:00",
    "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "1970-01-01 00:59:59.999999", "1970-01-01 01:00:00",
    "2024-02-29 23:59:59.999999",
]  # fmt: skip
for _unit in ("years", "months", "days", "hours"):
    for _col, _type in (("ts", "TIMESTAMP_NTZ"), ("tz", "TIMESTAMP"), ("dt", "DATE")):
        if (_unit, _col) != ("hours", "dt"):
            sql(
                f"part_{_unit}_{_col}",
                f"{_unit}({_col}) around 1970, null",
                create(f"id INT, {_col} {_type}", part=f"{_unit}({_col})"),
                values(*(f"({i}, CAST('{text}' AS {_type}))" for i, text in enumerate(TIMES)), "(99, NULL)"),
            )
SPEC_ROW = (ID, PARITY, "TIMESTAMP '2023-12-31 20:00:00' + make_interval(0, 0, 0, 0, id * 3)")
sql(
    "spec_evo",
    "partition spec evolution, 5 specs",
    create("id INT, p STRING, ts TIMESTAMP"),
    fill(0, 4, *SPEC_ROW),
    "ALTER TABLE {t} ADD PARTITION FIELD p",
    fill(4, 8, *SPEC_ROW),
    "ALTER TABLE {t} ADD PARTITION FIELD days(ts)",
    fill(8, 12, *SPEC_ROW),
    "ALTER TABLE {t} REPLACE PARTITION FIELD ts_day WITH months(ts)",
    fill(12, 16, *SPEC_ROW),
    "ALTER TABLE {t} DROP PARTITION FIELD p",
    fill(16, 20, *SPEC_ROW),
)
sql(
    "spec_evo_back",
    "the spec returns to spec id 0",
    create("id INT, p STRING"),
    fill(0, 4, ID, PARITY),
    "ALTER TABLE {t} ADD PARTITION FIELD p",
    "ALTER TABLE {t} DROP PARTITION FIELD p",
    fill(4, 8, ID, PARITY),
)
sql(
    "spec_evo_back2",
    "spec 0 -> 1 -> 0, then the spec-1 files deleted",
    create("id INT, p STRING"),
    fill(0, 4, ID, PARITY),
    "ALTER TABLE {t} ADD PARTITION FIELD p",
    fill(4, 8, ID, PARITY),
    "ALTER TABLE {t} DROP PARTITION FIELD p",
    fill(8, 12, ID, PARITY),
    "DELETE FROM {t} WHERE id IN (4, 5, 6, 7)",
)

# ---- schema evolution

sql(
    "evo_add",
    "columns added, one of them first",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} ADD COLUMN x INT",
    "ALTER TABLE {t} ADD COLUMN y STRING FIRST",
    fill(5, 10, "concat('y', id)", ID, "concat('s', id)", "CAST(id * 10 AS INT)"),
)
sql(
    "evo_drop",
    "column dropped",
    create("id INT, gone STRING, v STRING"),
    fill(0, 5, ID, "concat('g', id)", "concat('s', id)"),
    "ALTER TABLE {t} DROP COLUMN gone",
    fill(5, 10),
)
sql(
    "evo_rename",
    "rename, then insert",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} RENAME COLUMN v TO w",
    fill(5, 10),
)
sql(
    "evo_rename_last",
    "rename with no later snapshot",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} RENAME COLUMN v TO w",
)
sql(
    "evo_swap",
    "two columns swap their names",
    create("id INT, a STRING, b STRING"),
    fill(0, 5, ID, "concat('a', id)", "concat('b', id)"),
    "ALTER TABLE {t} RENAME COLUMN a TO tmp",
    "ALTER TABLE {t} RENAME COLUMN b TO a",
    "ALTER TABLE {t} RENAME COLUMN tmp TO b",
    fill(5, 10, ID, "concat('b', id)", "concat('a', id)"),
)
sql(
    "evo_reorder",
    "columns reordered",
    create("id INT, a STRING, b INT"),
    fill(0, 5, ID, "concat('a', id)", "CAST(id * 2 AS INT)"),
    "ALTER TABLE {t} ALTER COLUMN b FIRST",
    "ALTER TABLE {t} ALTER COLUMN id AFTER a",
    fill(5, 10, "CAST(id * 2 AS INT)", "concat('a', id)", ID),
)
sql(
    "evo_int_long",
    "int -> long",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
    fill(5_000_000_000, 5_000_000_005, "id", "concat('s', id)"),
)
sql(
    "evo_float_double",
    "float -> double",
    create("id INT, f FLOAT"),
    fill(0, 5, ID, "CAST(id * 0.1 AS FLOAT)"),
    "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
    fill(5, 10, ID, "CAST(id * 0.1 AS DOUBLE)"),
)
sql(
    "evo_decimal",
    "decimal(5,2) -> decimal(20,2)",
    create("id INT, d DECIMAL(5,2)"),
    fill(0, 5, ID, "CAST(id * 100.25 AS DECIMAL(5,2))"),
    "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(20,2)",
    fill(5, 10, ID, "CAST(id * 100000000000000.25 AS DECIMAL(20,2))"),
)
sql(
    "evo_readd",
    "column dropped and added again under the same name",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} DROP COLUMN v",
    "ALTER TABLE {t} ADD COLUMN v STRING",
    fill(5, 10),
)
sql(
    "evo_readd_type",
    "column dropped and added again as another type",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} DROP COLUMN v",
    fill(5, 7, ID),
    "ALTER TABLE {t} ADD COLUMN v INT",
    fill(7, 10, ID, "CAST(id * 7 AS INT)"),
)
sql(
    "evo_req_opt",
    "required -> optional",
    create("id INT NOT NULL, v STRING"),
    fill(0, 5),
    "ALTER TABLE {t} ALTER COLUMN id DROP NOT NULL",
    fill(5, 9),
    values("(NULL, 'none')"),
)
sql(
    "evo_struct",
    "struct field added, renamed, dropped",
    create("id INT, s STRUCT<a: INT, b: STRING>"),
    values("(1, named_struct('a', 1, 'b', 'x'))", "(2, NULL)", "(3, named_struct('a', NULL, 'b', NULL))"),
    "ALTER TABLE {t} ADD COLUMN s.c DOUBLE",
    values("(4, named_struct('a', 4, 'b', 'y', 'c', 4.5))"),
    "ALTER TABLE {t} RENAME COLUMN s.b TO bb",
    values("(5, named_struct('a', 5, 'bb', 'z', 'c', 5.5))"),
    "ALTER TABLE {t} DROP COLUMN s.a",
    values("(6, named_struct('bb', 'w', 'c', 6.5))", "(7, NULL)"),
)
sql(
    "evo_list_struct",
    "list<struct> field added, renamed, dropped",
    create("id INT, l ARRAY<STRUCT<a: INT, b: STRING>>"),
    values(
        "(1, array(named_struct('a', 1, 'b', 'x'), named_struct('a', 2, 'b', NULL)))",
        "(2, NULL)",
        "(3, array())",
    ),
    "ALTER TABLE {t} ADD COLUMN l.element.c DOUBLE",
    values("(4, array(named_struct('a', 4, 'b', 'y', 'c', 4.5), NULL))"),
    "ALTER TABLE {t} RENAME COLUMN l.element.b TO bb",
    values("(5, array(named_struct('a', 5, 'bb', 'z', 'c', 5.5)))"),
    "ALTER TABLE {t} DROP COLUMN l.element.a",
    values("(6, array(named_struct('bb', 'w', 'c', 6.5)))", "(7, NULL)"),
)
sql(
    "evo_map_struct",
    "map<string, struct> field added, renamed",
    create("id INT, m MAP<STRING, STRUCT<a: INT, b: STRING>>"),
    values("(1, map('k', named_struct('a', 1, 'b', 'x')))", "(2, NULL)"),
    "ALTER TABLE {t} ADD COLUMN m.value.c DOUBLE",
    values("(3, map('k', named_struct('a', 3, 'b', 'y', 'c', 3.5), 'n', NULL))"),
    "ALTER TABLE {t} RENAME COLUMN m.value.b TO bb",
    values("(4, map('k', named_struct('a', 4, 'bb', 'z', 'c', 4.5)))", "(5, map())"),
)
sql(
    "evo_list_int_long",
    "list element int -> long",
    create("id INT, l ARRAY<INT>"),
    values("(0, array(1, NULL, 3))", "(1, NULL)", "(1, array())"),
    "ALTER TABLE {t} ALTER COLUMN l.element TYPE BIGINT",
    values("(2, array(5000000000, NULL))"),
)
sql(
    "evo_nested_reorder",
    "struct fields reordered",
    create("id INT, s STRUCT<a: INT, b: STRING, c: DOUBLE>"),
    values("(1, named_struct('a', 1, 'b', 'x', 'c', 1.5))", "(2, NULL)"),
    "ALTER TABLE {t} ALTER COLUMN s.c FIRST",
    "ALTER TABLE {t} ALTER COLUMN s.a AFTER b",
    values("(3, named_struct('c', 3.5, 'b', 'y', 'a', 3))"),
)
sql(
    "evo_map_value_promote",
    "map value int -> long, float -> double",
    create("id INT, m MAP<STRING, INT>, f MAP<INT, FLOAT>"),
    values("(1, map('a', 1, 'b', NULL), map(1, CAST(0.5 AS FLOAT)))", "(2, NULL, NULL)"),
    "ALTER TABLE {t} ALTER COLUMN m.value TYPE BIGINT",
    "ALTER TABLE {t} ALTER COLUMN f.value TYPE DOUBLE",
    values("(3, map('c', 5000000000), map(3, CAST(0.1 AS DOUBLE)))"),
)
sql(
    "partitioned_identity_promoted",
    "int -> long on the source column of an identity partition",
    create("id INT, k INT", part="k"),
    fill(0, 6, ID, "CAST(id % 2 AS INT)"),
    "ALTER TABLE {t} ALTER COLUMN k TYPE BIGINT",
    fill(6, 10, "CAST(id AS INT)", "CAST(id % 2 + IF(id > 7, 5000000000, 0) AS BIGINT)"),
)
sql(
    "partitioned_rename_source",
    "source column of an identity partition renamed, then dropped from the spec",
    create("id INT, p STRING", part="p"),
    fill(0, 4, ID, PARITY),
    "ALTER TABLE {t} RENAME COLUMN p TO q",
    fill(4, 8, ID, PARITY),
    "ALTER TABLE {t} DROP PARTITION FIELD q",
    fill(8, 10, ID, PARITY),
)
sql(
    "nested",
    "nested list, map, struct",
    create("id INT, l ARRAY<ARRAY<INT>>, m MAP<STRING, ARRAY<STRING>>, s STRUCT<a: STRUCT<b: INT, c: ARRAY<DATE>>>"),
    values(
        "(1, array(array(1, 2), NULL, array()), map('a', array('x', NULL)), "
        "named_struct('a', named_struct('b', 1, 'c', array(DATE '2024-01-01'))))",
        "(2, NULL, NULL, NULL)",
        "(3, array(), map(), named_struct('a', NULL))",
        "(4, array(array(NULL)), map('k', NULL), named_struct('a', named_struct('b', NULL, 'c', NULL)))",
    ),
)
sql(
    "struct_deep",
    "six levels of structs, lists and maps",
    create("id INT, s STRUCT<a: STRUCT<b: STRUCT<c: ARRAY<STRUCT<d: MAP<STRING, STRUCT<e: BIGINT, f: STRING>>>>>>>"),
    values(
        "(1, named_struct('a', named_struct('b', named_struct('c', array(named_struct('d', "
        "map('k', named_struct('e', 1L, 'f', 'x'))))))))",
        "(2, named_struct('a', named_struct('b', NULL)))",
        "(3, NULL)",
        "(4, named_struct('a', named_struct('b', named_struct('c', array(NULL, named_struct('d', NULL))))))",
    ),
    "ALTER TABLE {t} ADD COLUMN s.a.b.c.element.d.value.g DOUBLE",
    values(
        "(5, named_struct('a', named_struct('b', named_struct('c', array(named_struct('d', "
        "map('k', named_struct('e', 5L, 'f', 'y', 'g', 5.5))))))))"
    ),
)

# ---- refs and history

sql("ref_tag", "tag", create(), fill(0, 5), "ALTER TABLE {t} CREATE TAG `v1.0`", fill(5, 10))
sql(
    "ref_branch",
    "branch with its own commit",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} CREATE BRANCH dev",
    "INSERT INTO {t}.branch_dev VALUES (777, 'dev')",
    fill(5, 10),
)
ROLLBACK = "CALL ice.system.rollback_to_snapshot('db.{k}', {s1})"
sql("hist_rollback", "rollback, then insert", create(), fill(0, 5), fill(5, 10), ROLLBACK, fill(10, 12))
sql("hist_rollback_last", "rollback is the last action", create(), fill(0, 5), fill(5, 10), ROLLBACK)
sql(
    "hist_rollback_schema",
    "schema change, insert, rollback",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} ADD COLUMN x INT",
    fill(5, 10, ID, "concat('s', id)", "1"),
    ROLLBACK,
)
sql(
    "hist_wap_cherrypick",
    "WAP snapshot staged, another append, then cherry-picked",
    create(write__wap__enabled="true"),
    fill(0, 8),
    "SET spark.wap.id=staged1",
    values("(50, 'staged')"),
    "RESET spark.wap.id",
    fill(8, 10),
    "CALL ice.system.cherrypick_snapshot('db.{k}', {s2})",
)
sql(
    "hist_wap_staged",
    "WAP snapshot staged, never published",
    create(write__wap__enabled="true"),
    fill(0, 5),
    "SET spark.wap.id=staged1",
    values("(50, 'staged')"),
    "RESET spark.wap.id",
    fill(5, 10),
)
sql("hist_expired", "expired snapshots", create(), fill(0, 5), fill(5, 10), fill(10, 17), EXPIRE)
sql(
    "hist_rewrite_manifests",
    "rewrite_manifests",
    create(),
    *(fill(i * 3, i * 3 + 3) for i in range(4)),
    "CALL ice.system.rewrite_manifests('db.{k}')",
)
sql(
    "hist_rewrite_manifests_expired",
    "rewrite_manifests, then expire",
    create(),
    fill(0, 5),
    fill(5, 10),
    "CALL ice.system.rewrite_manifests('db.{k}')",
    EXPIRE,
)
sql(
    "hist_expired_middle",
    "one snapshot in the middle expired: the parent chain has a hole",
    create(),
    fill(0, 4),
    fill(4, 8),
    fill(8, 12),
    "CALL ice.system.expire_snapshots(table => 'db.{k}', older_than => TIMESTAMP '1970-01-02', "
    "snapshot_ids => array({s2}))",
)
sql(
    "hist_replace_table",
    "CREATE OR REPLACE TABLE AS SELECT with another schema, then an insert",
    create(),
    fill(0, 5),
    "CREATE OR REPLACE TABLE {t} USING iceberg PARTITIONED BY (p) AS SELECT CAST(id AS BIGINT) AS v, "
    "IF(id % 2 = 0, 'even', 'odd') AS p FROM range(0, 4, 1, 1)",
    values("(9, 'odd')"),
)
sql(
    "hist_fast_forward",
    "main fast-forwarded to a branch with two commits",
    create(),
    fill(0, 5),
    "ALTER TABLE {t} CREATE BRANCH dev",
    "INSERT INTO {t}.branch_dev VALUES (100, 'dev')",
    "INSERT INTO {t}.branch_dev VALUES (101, 'dev')",
    "CALL ice.system.fast_forward('db.{k}', 'main', 'dev')",
)
sql(
    "hist_set_current",
    "set_current_snapshot back and then forward to a snapshot that was rolled back",
    create(),
    fill(0, 5),
    fill(5, 10),
    ROLLBACK,
    fill(10, 12),
    "CALL ice.system.set_current_snapshot('db.{k}', {s2})",
)
sql(
    "many_snapshots",
    "30 small appends",
    create(write__metadata__delete_after_commit__enabled="true", write__metadata__previous_versions_max="1"),
    *(fill(i, i + 1) for i in range(30)),
)

# ---- overwrite, delete, empty

sql(
    "overwrite",
    "dynamic and static INSERT OVERWRITE",
    create("id INT, p STRING", part="p"),
    fill(0, 6, ID, PARITY),
    "SET spark.sql.sources.partitionOverwriteMode=dynamic",
    "INSERT OVERWRITE {t} VALUES (10, 'even'), (11, 'new')",
    "SET spark.sql.sources.partitionOverwriteMode=static",
    "INSERT OVERWRITE {t} PARTITION (p = 'odd') VALUES (20), (21)",
)
sql("delete_all", "delete all, insert", create(), fill(0, 5), "DELETE FROM {t}", fill(5, 8))
sql("truncate_last", "truncate is the last action", create(), fill(0, 5), "TRUNCATE TABLE {t}")
sql("empty_nosnap", "no snapshots", create())
sql("empty_insert", "a snapshot, no rows", create(), "INSERT INTO {t} SELECT 1, 'a' WHERE false")
sql(
    "long_delete_cow_part",
    "partitioned copy-on-write delete and update",
    create("id INT, p STRING, v STRING", part="p"),
    fill(0, 12, ID, "concat('p', id % 3)", "concat('s', id)"),
    "DELETE FROM {t} WHERE id IN (1, 5)",
    "UPDATE {t} SET v = 'upd', p = 'p9' WHERE id IN (2, 4)",
)

# ---- layout, names, values, stats

sql(
    "sort_order",
    "sort order",
    create(),
    "ALTER TABLE {t} WRITE ORDERED BY v DESC NULLS LAST, id",
    fill(0, 10, ID, "concat('s', id % 3)"),
)
sql(
    "comments",
    "table and column comments, a table property",
    "CREATE TABLE {t} (id INT COMMENT 'the id', v STRING COMMENT 'it\\'s a \"value\"', n INT) USING iceberg "
    "COMMENT 'table\\'s comment' TBLPROPERTIES ('format-version'='2', 'owner.team'='data \\'x\\'')",
    fill(0, 5, ID, "concat('s', id)", "NULL"),
    "ALTER TABLE {t} ALTER COLUMN n COMMENT 'added later'",
)
sql(
    "names_special",
    "column names with space, dot, double quote, unicode, keyword, upper case",
    create('`a b` INT, `a.b` STRING, `q"q` INT, `ünï` STRING, `select` INT, `Mixed` STRING, `1st` INT'),
    fill(0, 5, ID, "concat('d', id)", ID, "concat('u', id)", ID, "concat('M', id)", ID),
)
sql("names_quote", "column name with a single quote", create("id INT, `it's` STRING"), fill(0, 5))
sql(
    "names_rowid",
    "columns named like the virtual or internal ones of DuckDB and DuckLake",
    create("rowid INT, snapshot_id BIGINT, filename STRING, file_row_number INT, begin_snapshot BIGINT, row_id INT"),
    fill(0, 5, ID, "id + 100", "concat('f', id)", "CAST(9 - id AS INT)", "id", "CAST(id * 2 AS INT)"),
    "DELETE FROM {t} WHERE rowid = 1",
)
sql(
    "vals_quote",
    "string bounds with a single quote",
    create(),
    values(
        "(1, 'O\\'Brien')",
        "(2, 'a')",
        "(3, '\\'')",
        "(4, 'z\\'z')",
        "(5, 'x; DROP TABLE y; --')",
        "(6, '\\\\')",
    ),
)
sql(
    "empty_strings",
    "empty strings and binaries, NULL, blanks, NUL and control characters",
    create("id INT, v STRING, b BINARY"),
    values("(1, '', X'')", "(2, NULL, NULL)", "(3, ' ', X'00')", "(4, '\\n\\t', X'0A')"),
    fill(5, 6, ID, "concat('a', char(0), 'b')", "X'FFFF'"),
    values("(7, '', X'')"),
)
PRIMS = (
    "id INT, b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, d9 DECIMAL(9,2), d18 DECIMAL(18,4), "
    "d38 DECIMAL(38,10), dt DATE, tz TIMESTAMP, ts TIMESTAMP_NTZ, s STRING, bin BINARY"
)
sql(
    "prims",
    "all primitives, NaN, Infinity, extreme values",
    create(PRIMS),
    values(
        "(0, true, 2147483647, 9223372036854775807, float('3.4028235e38'), double('1.7976931348623157e308'), "
        "9999999.99, 99999999999999.9999, 9999999999999999999999999999.9999999999, DATE '9999-12-31', "
        "TIMESTAMP '9999-12-31 23:59:59.999999', TIMESTAMP_NTZ '9999-12-31 23:59:59.999999', 'zz', X'FFFF')",
        "(1, false, -2147483648, CAST('-9223372036854775808' AS BIGINT), float('-3.4028235e38'), "
        "double('-1.7976931348623157e308'), -9999999.99, -99999999999999.9999, "
        "-9999999999999999999999999999.9999999999, DATE '0001-01-01', TIMESTAMP '0001-01-01 00:00:00', "
        "TIMESTAMP_NTZ '0001-01-01 00:00:00', '', X'')",
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "(3, true, 0, 0, float('NaN'), double('NaN'), 0, 0, 0, DATE '1970-01-01', "
        "TIMESTAMP '1970-01-01 00:00:00', "
        "TIMESTAMP_NTZ '1970-01-01 00:00:00', 'ünï 日本 😀', X'00')",
        "(4, false, 1, -1, float('Infinity'), double('-Infinity'), 0.01, -0.0001, 0.0000000001, "
        "DATE '1969-12-31', "
        "TIMESTAMP '1969-12-31 23:59:59.999999', TIMESTAMP_NTZ '1969-12-31 23:59:59.999999', "
        "'a\\'b', X'DEADBEEF')",
        "(5, false, -1, 1, float('-0.0'), double('0.0'), -0.01, 0.0001, -0.0000000001, DATE '2024-02-29', "
        "TIMESTAMP '2024-02-29 12:00:00.000001', TIMESTAMP_NTZ '2024-02-29 12:00:00.000001', 'x', X'7F80')",
    ),
)
STAT_ROWS = (ID, "IF(id = 3, double('NaN'), id * 1.5D)", "concat('a rather long text value number ', id)")
for _name, _mode in (("stats_none", "none"), ("stats_counts", "counts")):
    sql(
        _name,
        f"metrics mode {_mode}",
        create("id INT, f DOUBLE, v STRING", write__metadata__metrics__default=_mode),
        fill(0, 6, *STAT_ROWS),
    )
sql(
    "stats_trunc",
    "truncated string and binary bounds",
    create("id INT, v STRING, b BINARY", write__metadata__metrics__default="truncate(4)"),
    fill(0, 6, ID, "concat('prefix日本語', id)", "CAST(concat('zzzzzzzz', id) AS BINARY)"),
    values("(6, repeat('\\uffff', 6), X'FFFFFFFFFFFF')", "(7, repeat('😀', 6), X'00')"),
)
sql(
    "stats_nan",
    "NaN in double and float",
    create("id INT, d DOUBLE, f FLOAT"),
    values("(0, double('NaN'), float('NaN'))", "(1, 1.5D, float('1.5'))", "(2, NULL, NULL)"),
    values("(3, double('NaN'), float('NaN'))"),
)
sql(
    "stats_allnull",
    "a column that is all NULL in one file",
    create(),
    fill(0, 5, ID, "CAST(NULL AS STRING)"),
    fill(5, 10),
)
sql("meta_gzip", "gzip metadata JSON", create(write__metadata__compression_codec="gzip"), fill(0, 5))
sql(
    "big_decimal",
    "38-digit decimals",
    create("id INT, a DECIMAL(38,0), b DECIMAL(38,38), c DECIMAL(38,19)"),
    values(
        "(0, 99999999999999999999999999999999999999BD, 0.99999999999999999999999999999999999999BD, 1.5)",
        "(1, -99999999999999999999999999999999999999BD, -0.99999999999999999999999999999999999999BD, -1.5)",
        "(2, 0, 0, 9999999999999999999.9999999999999999999BD)",
        "(3, NULL, NULL, NULL)",
    ),
)
sql(
    "negative_dates",
    "dates and timestamps before 1970, in year 1 and in year 9999",
    create("id INT, dt DATE, tz TIMESTAMP, ts TIMESTAMP_NTZ"),
    values(
        *(
            f"({i}, DATE '{text[:10]}', TIMESTAMP '{text}', TIMESTAMP_NTZ '{text}')"
            for i, text in enumerate(["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", *TIMES])
        )
    ),
    values("(99, NULL, NULL, NULL)"),
)
sql(
    "wide",
    "60 columns, 2 snapshots",
    create(", ".join(f"c{i:02d} {('INT', 'STRING', 'DOUBLE', 'DATE')[i % 4]}" for i in range(60))),
    *(
        fill(
            lo,
            lo + 5,
            *(
                (
                    f"CAST(id + {i} AS INT)",
                    f"IF(id % {i + 2} = 0, NULL, concat('c{i}_', id))",
                    f"CAST(id * {i} AS DOUBLE)",
                    f"date_add(DATE '2020-01-01', CAST(id AS INT) + {i})",
                )[i % 4]
                for i in range(60)
            ),
        )
        for lo in (0, 5)
    ),
)


@built("uri_paths", "location and file paths are file:/// URIs")
def _(engine: Engine, kind: str) -> None:
    table = f"iceuri.db.{kind}"
    for statement in (create(part="truncate(2, v)"), fill(0, 3), fill(3, 6), "DELETE FROM {t} WHERE id = 4"):
        engine.spark.sql(statement.replace("{t}", table))


sql(
    "part_nested_source",
    "identity partition on a struct field",
    create("id INT, s STRUCT<a: INT, b: STRING>", part="s.b"),
    fill(0, 6, ID, "named_struct('a', CAST(id AS INT), 'b', IF(id % 2 = 0, 'even', 'odd'))"),
    values("(6, NULL)", "(7, named_struct('a', 7, 'b', NULL))"),
)
sql(
    "parquet_codecs",
    "data files with zstd, gzip, snappy and no compression",
    create(),
    fill(0, 3),
    *(
        text
        for i, codec in enumerate(("gzip", "snappy", "uncompressed"))
        for text in (
            f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.parquet.compression-codec'='{codec}')",
            fill(3 + i, 4 + i),
        )
    ),
)
sql(
    "table_stats",
    "a statistics file (Puffin, no data) in the metadata",
    create(),
    fill(0, 6),
    "CALL ice.system.compute_table_stats('db.{k}')",
    fill(6, 8),
)
sql(
    "path_object_store",
    "object storage layout: hashed data paths",
    create("id INT, p STRING", part="p", write__object_storage__enabled="true"),
    fill(0, 6, ID, PARITY),
)
sql(
    "path_data_elsewhere",
    "write.data.path outside of the table location",
    create(write__data__path="/warehouse/src/path_data_elsewhere/data"),
    fill(0, 5),
    fill(5, 8),
)

# ---- position deletes and deletion vectors

sql(
    "v2_mor",
    "v2 MOR, one file-granularity position delete file",
    create(mor=True),
    fill(0, 10),
    fill(10, 15),
    "DELETE FROM {t} WHERE id IN (2, 5)",
)
sql(
    "v2_mor_2files",
    "v2 MOR, one DELETE over two data files (two delete files)",
    create(mor=True),
    fill(0, 8),
    fill(8, 16),
    "DELETE FROM {t} WHERE id IN (1, 9, 15)",
)
sql(
    "v2_mor_minmax",
    "v2 MOR, the deletes remove the min and the max row",
    create(mor=True),
    fill(0, 10),
    fill(10, 20),
    "DELETE FROM {t} WHERE id IN (0, 19)",
)
sql(
    "v2_mor_twice",
    "v2 MOR, two DELETEs on one data file",
    create(mor=True),
    fill(0, 10),
    "DELETE FROM {t} WHERE id = 2",
    "DELETE FROM {t} WHERE id IN (4, 7)",
)
PARTGRAN = create(mor=True, write__delete__granularity="partition")
sql(
    "v2_mor_partgran",
    "one position delete file spanning 2 data files (granularity=partition)",
    PARTGRAN,
    fill(0, 8),
    fill(8, 16),
    "DELETE FROM {t} WHERE id IN (1, 9, 15)",
)
sql(
    "v2_mor_partgran_twice",
    "partition granularity, two delete files for one data file",
    PARTGRAN,
    fill(0, 8),
    fill(8, 16),
    "DELETE FROM {t} WHERE id IN (1, 9)",
    "DELETE FROM {t} WHERE id IN (2, 10)",
)
sql(
    "v2_mor_update_merge",
    "MOR update and merge",
    create(mor=True),
    fill(0, 5),
    fill(5, 10),
    "UPDATE {t} SET v = 'upd' WHERE id IN (3, 6)",
    MERGE,
)
sql(
    "v2_mor_rewrite_pos",
    "rewrite_position_delete_files",
    PARTGRAN,
    fill(0, 8),
    fill(8, 16),
    "DELETE FROM {t} WHERE id IN (1, 9)",
    "DELETE FROM {t} WHERE id IN (2, 10)",
    "CALL ice.system.rewrite_position_delete_files(table => 'db.{k}', options => map('rewrite-all', 'true'))",
)
sql(
    "v2_mor_compact",
    "MOR, then rewrite_data_files",
    create(mor=True),
    fill(0, 8),
    fill(8, 16),
    "DELETE FROM {t} WHERE id IN (1, 9)",
    "DELETE FROM {t} WHERE id = 3",
    "CALL ice.system.rewrite_data_files(table => 'db.{k}', options => map('rewrite-all', 'true'))",
)
sql(
    "v2_mor_dropfile",
    "data file with deletes, later dropped by a metadata delete",
    create("id INT, p STRING", part="p", mor=True),
    fill(0, 10, ID, PARITY),
    "DELETE FROM {t} WHERE id IN (1, 4)",
    "DELETE FROM {t} WHERE p = 'odd'",
)
sql("v3_dv", "v3 deletion vector", create(v=3, mor=True), fill(0, 10), "DELETE FROM {t} WHERE id IN (2, 5)")
sql(
    "v3_dv_multi",
    "v3, one Puffin file with 3 deletion vectors",
    create("id INT, p STRING", v=3, mor=True, part="p"),
    fill(0, 15, ID, "concat('p', id % 3)"),
    "DELETE FROM {t} WHERE id IN (0, 1, 2, 6, 14)",
)
sql(
    "v3_dv_twice",
    "v3, deletion vector replaced by a second DELETE",
    create(v=3, mor=True),
    fill(0, 10),
    "DELETE FROM {t} WHERE id = 2",
    "DELETE FROM {t} WHERE id IN (4, 7)",
)
sql(
    "v3_dv_then_insert",
    "v3 deletion vector, insert, update",
    create(v=3, mor=True),
    fill(0, 10),
    "DELETE FROM {t} WHERE id IN (2, 5)",
    fill(10, 15),
    "UPDATE {t} SET v = 'upd' WHERE id IN (3, 12)",
)
sql(
    "v3_upgraded",
    "v2 position deletes, upgraded to v3, then a deletion vector",
    create(mor=True),
    fill(0, 10),
    fill(10, 15),
    "DELETE FROM {t} WHERE id IN (2, 12)",
    "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')",
    "DELETE FROM {t} WHERE id IN (4, 7)",
)
sql(
    "v3_upgraded_plain",
    "v2 appends, upgraded to v3, then an append (row ids assigned late)",
    create(),
    fill(0, 5),
    fill(5, 8),
    "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')",
    fill(8, 12),
)
sql(
    "hist_rollback_mor",
    "rollback of a MOR delete, then another delete",
    create(mor=True),
    fill(0, 10),
    "DELETE FROM {t} WHERE id IN (2, 5)",
    ROLLBACK,
    "DELETE FROM {t} WHERE id IN (3, 9)",
)
sql(
    "hist_expired_mor",
    "expired snapshots, MOR",
    create(mor=True),
    fill(0, 10),
    fill(10, 15),
    "DELETE FROM {t} WHERE id IN (2, 12)",
    EXPIRE,
)
sql(
    "mor_spec_evo",
    "spec changed between the append and the MOR delete of its rows",
    create("id INT, p STRING", mor=True),
    fill(0, 10, ID, PARITY),
    "ALTER TABLE {t} ADD PARTITION FIELD p",
    fill(10, 14, ID, PARITY),
    "DELETE FROM {t} WHERE id IN (3, 11)",
)
sql(
    "mor_delete_whole_file",
    "position deletes cover every row of a data file",
    create(mor=True),
    fill(0, 4),
    fill(4, 8),
    "DELETE FROM {t} WHERE v IN ('s0', 's1', 's2') AND id + 0 < 3",
    "DELETE FROM {t} WHERE id + 0 = 3",
    fill(8, 9),
)


sql(
    "v1_upgraded",
    "v1 appends, upgraded to v2, then a MOR delete",
    create(v=1, mor=True),
    fill(0, 8),
    "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='2')",
    fill(8, 12),
    "DELETE FROM {t} WHERE id IN (3, 9)",
)
for _fmt in ("avro", "orc"):
    sql(
        f"v2_mor_{_fmt}_deletes",
        f"Parquet data with position delete files in {_fmt}",
        create(mor=True, write__delete__format__default=_fmt),
        fill(0, 8),
        "DELETE FROM {t} WHERE id IN (3, 5)",
    )
sql(
    "row_groups",
    "several row groups in a data file, position deletes across them",
    create(
        mor=True,
        write__parquet__row_group_size_bytes="1",
        write__parquet__row_group_check_min_record_count="5",
        write__parquet__row_group_check_max_record_count="5",
    ),
    fill(0, 23),
    "DELETE FROM {t} WHERE id IN (0, 6, 22)",
)


@built("v2_eqdel", "v2 equality deletes: by id, by (id, v), by a NULL value, then a re-insert")
def _(engine: Engine, kind: str) -> None:
    engine.run(kind, create(), fill(0, 5), fill(5, 9), values("(9, NULL)", "(9, 's9')"))
    engine.java_equality_delete(engine.java_table(kind), ["id"], [[2], [6]])
    engine.java_equality_delete(engine.java_table(kind), ["id", "v"], [[3, "s3"], [4, "other"]])
    engine.java_equality_delete(engine.java_table(kind), ["v"], [[None]])
    engine.run(kind, values("(2, 'again')", "(10, NULL)"))


@built("v2_eqdel_pos", "equality delete and position delete in one table")
def _(engine: Engine, kind: str) -> None:
    engine.run(kind, create(mor=True), fill(0, 8), fill(8, 12), "DELETE FROM {t} WHERE id IN (1, 9)")
    engine.java_equality_delete(engine.java_table(kind), ["id"], [[2], [10]])
    engine.run(kind, fill(12, 14))


# ---- files without field ids, other formats


def source(kind: str, rows: str, *, partition: str = "") -> str:
    """CREATE of a plain Parquet source directory under /warehouse/src."""
    by = f" PARTITIONED BY ({partition})" if partition else ""
    return f"INSERT OVERWRITE DIRECTORY '/warehouse/src/{kind}' USING parquet{by} {rows}"


ADD_FILES = "CALL ice.system.add_files(table => 'db.{k}', source_table => '`parquet`.`/warehouse/src/{k}`')"
sql(
    "addfiles",
    "add_files, no field ids (names unchanged)",
    create(),
    source("addfiles", "SELECT CAST(id AS INT) AS id, concat('s', id) AS v FROM range(0, 10, 1, 1)"),
    ADD_FILES,
)
sql(
    "addfiles_evo",
    "add_files, then rename, re-add of the old name, insert",
    create(),
    source("addfiles_evo", "SELECT CAST(id AS INT) AS id, concat('s', id) AS v FROM range(0, 10, 1, 1)"),
    ADD_FILES,
    "ALTER TABLE {t} RENAME COLUMN v TO w",
    "ALTER TABLE {t} ADD COLUMN v STRING",
    fill(10, 16, ID, "concat('w', id)", "concat('v', id)"),
    fill(16, 20, ID, "NULL", "concat('v', id)"),
)


@built("addfiles_hive", "add_files of a Hive-partitioned folder (the column is not in the files)")
def _(engine: Engine, kind: str) -> None:
    frame = engine.spark.range(0, 10, 1, 1).selectExpr(
        "CAST(id AS INT) AS id", "concat('s', id) AS v", "CAST(id % 3 AS STRING) AS p"
    )
    frame.write.partitionBy("p").parquet(f"{ROOT}/src/{kind}")
    engine.run(kind, create("id INT, v STRING, p STRING", part="p"), ADD_FILES)


sql(
    "addfiles_nested",
    "add_files with list, struct and map",
    create("id INT, s STRUCT<a: INT, b: STRING>, m MAP<STRING, INT>, l ARRAY<STRUCT<x: INT>>"),
    source(
        "addfiles_nested",
        "SELECT CAST(id AS INT) AS id, "
        "IF(id = 1, NULL, named_struct('a', CAST(id AS INT), 'b', concat('b', id))) AS s, "
        "IF(id = 2, NULL, map(concat('k', id), CAST(id AS INT))) AS m, "
        "IF(id = 3, NULL, array(named_struct('x', CAST(id AS INT)))) AS l FROM range(0, 6, 1, 1)",
    ),
    ADD_FILES,
)
sql(
    "addfiles_promote",
    "add_files, then int -> long and a new column, insert",
    create(),
    source("addfiles_promote", "SELECT CAST(id AS INT) AS id, concat('s', id) AS v FROM range(0, 6, 1, 1)"),
    ADD_FILES,
    "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
    "ALTER TABLE {t} ADD COLUMN x INT",
    fill(5_000_000_000, 5_000_000_003, "id", "concat('s', id)", "7"),
)
sql("fmt_orc", "ORC data", create(write__format__default="orc"), fill(0, 5))
sql("fmt_avro", "Avro data", create(write__format__default="avro"), fill(0, 5))
TO_AVRO = "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default'='avro')"
TO_PARQUET = "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default'='parquet')"
sql("fmt_mixed", "Parquet and Avro data", create(), fill(0, 5), TO_AVRO, fill(5, 10))
sql(
    "fmt_mixed_past",
    "Avro only in an old snapshot",
    create(write__format__default="avro"),
    fill(0, 5),
    TO_PARQUET,
    "DELETE FROM {t}",
    fill(5, 10),
)

# ---- pyiceberg


def pyi_table(engine: Engine, kind: str, schema: Any, spec: Any = None) -> Any:
    """Create a table through pyiceberg (again, if an earlier build in this process made it)."""
    with contextlib.suppress(Exception):
        engine.pyi.drop_table(f"db.{kind}")
    more = {"partition_spec": spec} if spec else {}
    return engine.pyi.create_table(f"db.{kind}", schema=schema, location=f"file://{ROOT}/db/{kind}", **more)


@built(
    "pyi_types",
    "pyiceberg: uuid, fixed, binary, time, timestamptz, decimal",
    oracle="pyiceberg",
    engine="pyiceberg",
)
def _(engine: Engine, kind: str) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import (
        BinaryType,
        DecimalType,
        FixedType,
        IntegerType,
        NestedField,
        TimestamptzType,
        TimeType,
        UUIDType,
    )

    kinds = [
        IntegerType(),
        UUIDType(),
        FixedType(4),
        BinaryType(),
        TimeType(),
        TimestamptzType(),
        DecimalType(12, 3),
    ]
    names = ["id", "u", "fx", "bin", "tm", "tz", "dec"]
    schema = Schema(*(NestedField(i + 1, name, kinds[i], required=False) for i, name in enumerate(names)))
    table = pyi_table(engine, kind, schema)
    arrow = [pa.int32(), pa.binary(16), pa.binary(4), pa.binary(), pa.time64("us"), pa.timestamp("us", "UTC")]
    columns: list[list[Any]] = [
        [0, 1, 2, 3],
        [uuid.UUID(int=0).bytes, uuid.UUID(int=2**128 - 1).bytes, uuid.UUID(int=0x8000 << 112).bytes, None],
        [b"abcd", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", None],
        [b"", b"\x00\xff", b"'quote'", None],
        [datetime.time(0, 0), datetime.time(23, 59, 59, 999999), datetime.time(12, 34, 56, 1), None],
        [datetime.datetime(y, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC) for y in (1969, 2024, 1900)] + [None],
        [decimal.Decimal("1.500"), decimal.Decimal("-999999999.999"), decimal.Decimal("0.001"), None],
    ]
    arrays = [pa.array(data, kind_) for data, kind_ in zip(columns, [*arrow, pa.decimal128(12, 3)], strict=True)]
    arrays[1] = pa.ExtensionArray.from_storage(pa.uuid(), arrays[1])
    table.append(pa.table(arrays, names=names))


@built("pyi_case", "columns 'a' and 'A'", oracle="pyiceberg", engine="pyiceberg")
def _(engine: Engine, kind: str) -> None:
    schema = pa.schema([("a", pa.int32()), ("A", pa.int32()), ("v", pa.string())])
    table = pyi_table(engine, kind, schema)
    columns = [pa.array([1, 2, 3], pa.int32()), pa.array([10, 20, None], pa.int32()), ["x", "y", None]]
    table.append(pa.table(columns, schema=schema))


@built(
    "pyi_part_time",
    "pyiceberg: identity partitions on time and fixed",
    oracle="pyiceberg",
    engine="pyiceberg",
)
def _(engine: Engine, kind: str) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import FixedType, IntegerType, NestedField, TimeType

    schema = Schema(
        NestedField(1, "id", IntegerType(), required=False),
        NestedField(2, "tm", TimeType(), required=False),
        NestedField(3, "fx", FixedType(2), required=False),
    )
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "tm"), PartitionField(3, 1001, IdentityTransform(), "fx")
    )
    table = pyi_table(engine, kind, schema, spec)
    times = [datetime.time(0, 0), datetime.time(23, 59, 59, 999999), None, datetime.time(0, 0)]
    arrays = [
        pa.array(range(4), pa.int32()),
        pa.array(times, pa.time64("us")),
        pa.array([b"ab", b"\x00\xff", None, b"ab"], pa.binary(2)),
    ]
    table.append(pa.table(arrays, names=["id", "tm", "fx"]))


@built("pyi_overwrite", "pyiceberg: append, overwrite, delete (copy-on-write)", engine="pyiceberg")
def _(engine: Engine, kind: str) -> None:
    schema = pa.schema([("id", pa.int32()), ("v", pa.string())])

    def rows(lo: int, hi: int) -> pa.Table:
        data = [pa.array(range(lo, hi), pa.int32()), pa.array([f"s{i}" for i in range(lo, hi)])]
        return pa.table(data, schema=schema)

    table = pyi_table(engine, kind, schema)
    table.append(rows(0, 6))
    table.append(rows(6, 10))
    table.overwrite(rows(20, 23), overwrite_filter="id < 3")
    table.delete("id = 7")


@built("pyi_nested", "pyiceberg: list, map and struct columns, NULL at each level", engine="pyiceberg")
def _(engine: Engine, kind: str) -> None:
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("s", pa.struct([("a", pa.int64()), ("l", pa.list_(pa.string()))])),
            ("m", pa.map_(pa.string(), pa.float64())),
            ("l", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.date32())]))),
        ]
    )
    day = datetime.date(1969, 12, 31)
    rows = [
        {"id": 1, "s": {"a": 1, "l": ["x", None]}, "m": [("k", 1.5)], "l": [{"x": 1, "y": day}, None]},
        {"id": 2, "s": None, "m": None, "l": None},
        {"id": 3, "s": {"a": None, "l": None}, "m": [], "l": []},
        {"id": 4, "s": {"a": 4, "l": []}, "m": [("n", None)], "l": [{"x": None, "y": None}]},
    ]
    pyi_table(engine, kind, schema).append(pa.Table.from_pylist(rows, schema=schema))


# ---- crafted metadata


def edit_metadata(kind: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Write one more metadata version of a hadoop-catalog table, changed by hand."""
    table = ROOT / "db" / kind
    for crc in table.rglob(".*.crc"):
        crc.unlink()
    name, metadata = newest_metadata(table)
    change(metadata)
    version = int(re.match(r"v(\d+)", name)[1]) + 1  # type: ignore[index]
    (table / "metadata" / f"v{version}.metadata.json").write_text(json.dumps(metadata, indent=1))
    (table / "metadata" / "version-hint.text").write_text(str(version))


def set_time(metadata: dict[str, Any], index: int, timestamp_ms: int) -> None:
    """Give one snapshot another time, also in the snapshot log."""
    snapshot = metadata["snapshots"][index]
    snapshot["timestamp-ms"] = timestamp_ms
    for entry in metadata["snapshot-log"]:
        if entry["snapshot-id"] == snapshot["snapshot-id"]:
            entry["timestamp-ms"] = timestamp_ms


@built("craft_same_ms", "two snapshots with the same millisecond (crafted metadata)", engine="spark+crafted")
def _(engine: Engine, kind: str) -> None:
    engine.run(kind, create(), fill(0, 10), fill(10, 20))
    edit_metadata(kind, lambda md: set_time(md, 1, md["snapshots"][0]["timestamp-ms"]))


def skewed(engine: Engine, kind: str, mor: bool) -> None:
    """Append 5, append 2, delete; the last snapshot 20 s before the first."""
    where = "id + 0 IN (1, 3)" if mor else "id < 5"
    engine.run(kind, create(mor=mor), fill(0, 5), fill(5, 7), f"DELETE FROM {{t}} WHERE {where}")
    edit_metadata(kind, lambda md: set_time(md, 2, md["snapshots"][0]["timestamp-ms"] - 20_000))


@built("craft_skew_delete", "clock skew: delete 20 s before the append (crafted)", engine="spark+crafted")
def _(engine: Engine, kind: str) -> None:
    skewed(engine, kind, False)


@built("craft_skew_mor", "clock skew: MOR delete 20 s before the append (crafted)", engine="spark+crafted")
def _(engine: Engine, kind: str) -> None:
    skewed(engine, kind, True)


@built("craft_v1_noschemaid", "v1 snapshots without schema-id (crafted)", engine="spark+crafted")
def _(engine: Engine, kind: str) -> None:
    engine.run(kind, create(v=1), fill(0, 5), "ALTER TABLE {t} ADD COLUMN x INT", fill(5, 10, ID, "'s'", ID))

    def change(metadata: dict[str, Any]) -> None:
        for snapshot in metadata["snapshots"]:
            snapshot.pop("schema-id")

    edit_metadata(kind, change)


@built("craft_v1_manifests", "v1 inline 'manifests' list (crafted)", engine="spark+crafted")
def _(engine: Engine, kind: str) -> None:
    engine.run(kind, create(v=1), fill(0, 5), fill(5, 10))

    def change(metadata: dict[str, Any]) -> None:
        for snapshot in metadata["snapshots"]:
            listed = local(snapshot.pop("manifest-list"))
            snapshot["manifests"] = [entry["manifest_path"] for entry in read_avro(listed)]
            listed.unlink()

    edit_metadata(kind, change)


def recompress(kind: str, codec: str) -> None:
    """Rewrite all manifests and manifest lists with another Avro codec, same content."""
    table = ROOT / "db" / kind / "metadata"
    for crc in table.rglob(".*.crc"):
        crc.unlink()
    for path in table.glob("*.avro"):
        if not path.name.startswith("snap-"):
            path.write_bytes(recoded(path.read_bytes(), codec))
    for path in table.glob("snap-*.avro"):
        with path.open("rb") as stream:
            reader = fastavro.reader(stream)
            schema, records = reader.writer_schema, cast("list[dict[str, Any]]", list(reader))
            meta = {key: text for key, text in reader.metadata.items() if not key.startswith("avro.")}
        for record in records:
            record["manifest_length"] = local(record["manifest_path"]).stat().st_size
        buffer = io.BytesIO()
        fastavro.writer(buffer, schema, records, codec="null", metadata=meta)
        path.write_bytes(recoded(buffer.getvalue(), codec))


for _name, _codec in (
    ("zstd_manifest", "zstandard"),
    ("snappy_manifest", "snappy"),
    ("null_manifest", "null"),
):

    def _build(engine: Engine, kind: str, codec: str = _codec) -> None:
        engine.run(kind, create("id INT, p STRING", part="p"), fill(0, 5, ID, PARITY), fill(5, 10, ID, PARITY))
        recompress(kind, codec)

    built(_name, f"manifests and manifest lists with Avro codec {_codec} (crafted)", engine="spark+crafted")(_build)


# --------------------------------------------------------------------------- reading what was built


def newest_metadata(table: Path) -> tuple[str, dict[str, Any]]:
    """File name and content of the newest metadata file of a table directory."""
    folder = table / "metadata"
    hint = folder / "version-hint.text"
    if hint.exists():
        version = hint.read_text().strip()
        names = [f"v{version}.metadata.json", f"v{version}.gz.metadata.json"]
        path = next(folder / name for name in names if (folder / name).exists())
    else:
        path = max(folder.glob("*.metadata.json"))
    raw = path.read_bytes()
    return path.name, json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)


def local(path: str) -> Path:
    """The path on disk at build time of a stored path."""
    for form in PREFIX_FORMS:
        if path.startswith(form + "/"):
            return ROOT / path[len(form) + 1 :]
    raise ValueError(f"path outside of {ROOT}: {path}")


def long_at(raw: bytes, at: int) -> tuple[int, int]:
    """An Avro long and the offset after it."""
    shift = value = 0
    while True:
        value |= (raw[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not raw[at - 1] & 0x80:
            return (value >> 1) ^ -(value & 1), at


def long_bytes(value: int) -> bytes:
    """An Avro long."""
    value, out = (value << 1) ^ (value >> 63), bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def unpacked(block: bytes, codec: str) -> bytes:
    """Decompress one Avro block."""
    if codec == "deflate":
        return zlib.decompress(block, -15)
    if codec == "zstandard":
        return bytes(pa.CompressedInputStream(pa.BufferReader(block), "zstd").read())
    if codec == "snappy":
        size = shift = at = 0
        while True:
            size |= (block[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if not block[at - 1] & 0x80:
                return bytes(pa.decompress(block[:-4], size, "snappy", asbytes=True))
    return block


def packed(block: bytes, codec: str) -> bytes:
    """Compress one Avro block."""
    if codec == "deflate":
        return zlib.compress(block, wbits=-15)
    if codec == "zstandard":
        return bytes(pa.compress(block, "zstd", asbytes=True))
    if codec == "snappy":
        return bytes(pa.compress(block, "snappy", asbytes=True)) + zlib.crc32(block).to_bytes(4, "big")
    return block


def avro_header(raw: bytes) -> tuple[dict[bytes, bytes], int]:
    """Header entries of an Avro file and the offset of its sync marker."""
    header: dict[bytes, bytes] = {}
    count, at = long_at(raw, 4)
    while count:
        if count < 0:
            count, (_, at) = -count, long_at(raw, at)
        for _ in range(count):
            size, at = long_at(raw, at)
            key, at = raw[at : at + size], at + size
            size, at = long_at(raw, at)
            header[key], at = raw[at : at + size], at + size
        count, at = long_at(raw, at)
    return header, at


def recoded(raw: bytes, codec: str) -> bytes:
    """An Avro file with its blocks under another codec (fastavro needs extra packages for some)."""
    header, at = avro_header(raw)
    old, sync, at = header.get(b"avro.codec", b"null").decode(), raw[at : at + 16], at + 16
    header[b"avro.codec"] = codec.encode()
    entries = b"".join(long_bytes(len(part)) + part for item in header.items() for part in item)
    out = b"Obj\x01" + long_bytes(len(header)) + entries + b"\x00" + sync
    while at < len(raw):
        count, at = long_at(raw, at)
        size, at = long_at(raw, at)
        block = packed(unpacked(raw[at : at + size], old), codec)
        at += size + 16
        out += long_bytes(count) + long_bytes(len(block)) + block + sync
    return out


def read_avro(path: Path) -> list[dict[str, Any]]:
    """All records of an Avro file."""
    raw = path.read_bytes()
    if avro_header(raw)[0].get(b"avro.codec") in (b"zstandard", b"snappy"):
        raw = recoded(raw, "null")
    return cast("list[dict[str, Any]]", list(fastavro.reader(io.BytesIO(raw))))


def ancestry(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """The kept snapshots of main, oldest first."""
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", [])}
    main = metadata.get("refs", {}).get("main", {}).get("snapshot-id", metadata.get("current-snapshot-id"))
    chain = []
    while main in by_id:
        chain.append(by_id[main])
        main = by_id[main].get("parent-snapshot-id")
    return chain[::-1]


def schema_of(metadata: dict[str, Any], schema_id: int | None) -> dict[str, Any]:
    """A schema by id; the current one for None or an unknown id."""
    schemas = metadata.get("schemas") or [metadata["schema"]]
    wanted = metadata.get("current-schema-id") if schema_id is None else schema_id
    for schema in schemas:
        if schema.get("schema-id") == wanted:
            return dict(schema)
    return schema_of(metadata, None) if schema_id is not None else dict(schemas[-1])


def manifests_of(snapshot: dict[str, Any], place: Callable[[str], Path]) -> list[tuple[str, int]]:
    """(path, content) of the manifests of a snapshot."""
    if "manifests" in snapshot:
        return [(path, 0) for path in snapshot["manifests"]]
    entries = read_avro(place(snapshot["manifest-list"]))
    return [(entry["manifest_path"], entry.get("content") or 0) for entry in entries]


def live_files(chain: list[dict[str, Any]], place: Callable[[str], Path]) -> Iterator[dict[str, Any]]:
    """Live data and delete files of all snapshots given, each path and content once."""
    seen: set[str] = set()
    done: set[tuple[str, int | None]] = set()
    for snapshot in chain:
        for path, _ in manifests_of(snapshot, place):
            if path in seen:
                continue
            seen.add(path)
            for entry in read_avro(place(path)):
                data_file = entry["data_file"]
                key = (data_file["file_path"], data_file.get("content_offset"))
                if entry["status"] != STATUS_DELETED and key not in done:
                    done.add(key)
                    yield data_file


def type_text(kind: Any) -> str:
    """An Iceberg type as text, nested ones with field ids, as Iceberg Java prints them."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "list":
        return f"list<{type_text(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
    fields = (
        f"{field['id']}: {field['name']}: {('optional', 'required')[field['required']]} {type_text(field['type'])}"
        for field in kind["fields"]
    )
    return f"struct<{', '.join(fields)}>"


PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.binary(16),
    "unknown": pa.null(),
}


def arrow_type(kind: Any) -> pa.DataType:
    """The natural Arrow type of an Iceberg type."""
    if isinstance(kind, dict):
        if kind["type"] == "list":
            return pa.list_(arrow_type(kind["element"]))
        if kind["type"] == "map":
            return pa.map_(arrow_type(kind["key"]), arrow_type(kind["value"]))
        return pa.struct([(field["name"], arrow_type(field["type"])) for field in kind["fields"]])
    numbers = [int(number) for number in re.findall(r"\d+", kind)]
    if kind.startswith("decimal"):
        return pa.decimal128(*numbers)
    return pa.binary(numbers[0]) if kind.startswith("fixed") else PRIMITIVES[kind]


def shaped(table: pa.Table, schema: dict[str, Any]) -> pa.Table:
    """Rows with the names and natural types of an Iceberg schema (columns match by position)."""
    columns, fields = [], []
    for field, column in zip(schema["fields"], table.columns, strict=True):
        target = arrow_type(field["type"])
        if isinstance(column.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if field["type"] == "uuid" and pa.types.is_string(column.type):
            texts = column.to_pylist()
            column = pa.chunked_array([pa.array([text and uuid.UUID(text).bytes for text in texts], target)])
        columns.append(column.cast(target))
        fields.append(pa.field(field["name"], target))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).combine_chunks()


LITERALS: dict[str, list[dict[str, Any]]] = {
    "v3_unknown": [{"id": i, "nothing": None, "v": f"s{i}"} for i in range(5)],
}


# reading an old snapshot with its narrower type of an identity partition column: ClassCastException
JAVA_FAILS_AS_OF = {"partitioned_identity_promoted"}


class Oracle:
    """Reads the true rows of a built table."""

    def __init__(self, engine: Engine, kind: Kind, metadata_path: Path, metadata: dict[str, Any]) -> None:
        """Remember what to read."""
        self.engine, self.kind, self.path, self.metadata = engine, kind, metadata_path, metadata

    def name(self, snapshot: dict[str, Any] | None) -> str:
        """Who reads this snapshot (Iceberg Java fails on a few old ones)."""
        schema_id = snapshot.get("schema-id") if snapshot else None
        old_schema = schema_id is not None and schema_id != self.metadata["current-schema-id"]
        return "pyiceberg" if old_schema and self.kind.name in JAVA_FAILS_AS_OF else self.kind.oracle

    def rows(self, snapshot: dict[str, Any] | None) -> tuple[pa.Table, list[int | None] | None]:
        """Rows of a snapshot (None: the current state) and, for v3 read by Spark, their row ids."""
        schema = schema_of(self.metadata, snapshot.get("schema-id") if snapshot else None)
        if self.kind.oracle == "literal":
            target = pa.schema([(field["name"], arrow_type(field["type"])) for field in schema["fields"]])
            return pa.Table.from_pylist(LITERALS[self.kind.name], schema=target), None
        if self.name(snapshot) == "pyiceberg":
            from pyiceberg.table import StaticTable

            table = StaticTable.from_metadata(f"file://{self.path}")
            scan = table.scan(snapshot_id=snapshot["snapshot-id"]) if snapshot else table.scan()
            read = scan.to_arrow()
            assert read.column_names == [field["name"] for field in schema["fields"]], read.column_names
            return shaped(read, schema), None
        reader = self.engine.spark.read.format("iceberg")
        if snapshot:
            reader = reader.option("snapshot-id", snapshot["snapshot-id"])
        frame = reader.load(str(self.path) if self.kind.engine == "pyiceberg" else f"ice.db.{self.kind.name}")
        names = [field["name"] for field in schema["fields"]]
        assert frame.columns == names, (frame.columns, names)
        lineage = self.metadata["format-version"] >= 3
        frame = frame.select("*", "_row_id") if lineage else frame
        read = self.collected(frame)
        if not lineage:
            return shaped(read, schema), None
        ids = read.column(len(names)).to_pylist()
        return shaped(read.select(range(len(names))), schema), ids

    @staticmethod
    def collected(frame: Any) -> pa.Table:
        """A Spark frame as Arrow, columns renamed by position (any column name is fine then)."""
        plain = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
        batches = plain._collect_as_arrow()
        if batches:
            return pa.Table.from_batches(batches)
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(plain.schema).empty_table()


def has_field_ids(path: Path) -> bool:
    """Whether every column of a Parquet file carries a field id."""
    return all(b"PARQUET:field_id" in (field.metadata or {}) for field in pq.read_schema(path))


def stored_paths(metadata: dict[str, Any], chain: list[dict[str, Any]], place: Callable[[str], Path]) -> set[str]:
    """Every path a reader of main's history meets."""
    found = {metadata["location"]}
    for snapshot in chain:
        if "manifest-list" in snapshot:
            found.add(snapshot["manifest-list"])
        found.update(path for path, _ in manifests_of(snapshot, place))
    return found | {data_file["file_path"] for data_file in live_files(chain, place)}


def delete_kind(files: list[dict[str, Any]]) -> str:
    """none, position, vector, equality or mixed."""
    found = set()
    for file in files:
        content = file.get("content") or 0
        if content == 1:
            found.add("vector" if file["file_format"].upper() == "PUFFIN" else "position")
        elif content == 2:
            found.add("equality")
    return "none" if not found else found.pop() if len(found) == 1 else "mixed"


def export(engine: Engine, kind: Kind) -> None:
    """Copy a built table into the repository and write its case.json and expected rows."""
    table = ROOT / "db" / kind.name
    name, metadata = newest_metadata(table)
    chain = ancestry(metadata)
    files = list(live_files(chain, local))
    data = [file for file in files if not file.get("content")]
    formats = sorted({file["file_format"].lower() for file in data})
    parquet = [local(file["file_path"]) for file in data if file["file_format"].upper() == "PARQUET"]
    folder = OUT / kind.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "expected").mkdir(parents=True)

    oracle = Oracle(engine, kind, table / "metadata" / name, metadata)
    became: dict[int, int] = {}
    for entry in metadata.get("snapshot-log", []):
        became.setdefault(entry["snapshot-id"], entry["timestamp-ms"])
    snapshots = []
    for index, snapshot in enumerate(chain):
        rows, row_ids = oracle.rows(snapshot)
        target = f"expected/{index}.arrow"
        feather.write_feather(rows, folder / target, compression="uncompressed")
        entry = {
            "snapshot_id": snapshot["snapshot-id"],
            "became_current_ms": became.get(snapshot["snapshot-id"], snapshot["timestamp-ms"]),
            "timestamp_ms": snapshot["timestamp-ms"],
            "rows": target,
        }
        if oracle.name(snapshot) != kind.oracle:
            entry["oracle"] = oracle.name(snapshot)
        snapshots.append(entry | ({"row_ids": row_ids} if row_ids is not None else {}))
    rows, row_ids = oracle.rows(None)
    feather.write_feather(rows, folder / "expected" / "current.arrow", compression="uncompressed")

    keep = shutil.ignore_patterns("*.crc", "_SUCCESS", "._SUCCESS*")
    shutil.copytree(table, folder / "table", ignore=keep)
    if (ROOT / "src" / kind.name).exists():
        shutil.copytree(ROOT / "src" / kind.name, folder / "src", ignore=keep)
    prefixes = []
    paths = stored_paths(metadata, chain, local)
    for part, home in (("db", "table"), ("src", "src")):
        for form in PREFIX_FORMS:
            prefix = f"{form}/{part}/{kind.name}"
            if any(path == prefix or path.startswith(prefix + "/") for path in paths):
                prefixes.append([prefix, home])
    case = {
        "kind": kind.name,
        "what": kind.what,
        "engine": kind.engine,
        "format_version": metadata["format-version"],
        "metadata": f"table/metadata/{name}",
        "map_prefix": prefixes,
        "deletes": delete_kind(files),
        "formats": formats,
        "field_ids": all(has_field_ids(path) for path in parquet),
        "columns": [
            [field["name"], type_text(field["type"]), field["required"], field.get("doc")]
            for field in schema_of(metadata, None)["fields"]
        ],
        "snapshots": snapshots,
        "current": "expected/current.arrow",
        "oracle": kind.oracle,
    }
    if row_ids is not None:
        case["row_ids"] = row_ids
    text = json.dumps(case, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\s*\n\s*", " ", match[0]), text)
    assert json.loads(text) == case
    (folder / "case.json").write_text(text + "\n")


# --------------------------------------------------------------------------- check

CASE_KEYS = {
    "kind", "what", "engine", "format_version", "metadata", "map_prefix", "deletes", "formats", "field_ids",
    "columns", "snapshots", "current", "oracle",
}  # fmt: skip


def machine_strings() -> list[bytes]:
    """Strings of the build host that no committed file may hold."""
    found = {tempfile.gettempdir(), "/tmp/", str(REPO), str(Path.home()), sys.prefix, socket.gethostname()}
    return [text.encode() for text in found if len(text) > 4 and text != "localhost"]


def plain_bytes(path: Path) -> bytes:
    """Content of a file, unpacked where it is compressed as a whole or by Avro block."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        return gzip.decompress(raw)
    if path.suffix == ".avro":
        return raw + repr(read_avro(path)).encode()
    return raw


def check_case(folder: Path) -> list[str]:
    """What is wrong with one fixture folder."""
    wrong = []
    case = json.loads((folder / "case.json").read_text())
    if missing := CASE_KEYS - case.keys():
        wrong.append(f"missing keys {sorted(missing)}")
    if case["kind"] != folder.name:
        wrong.append(f"kind {case['kind']} in folder {folder.name}")

    def place(path: str) -> Path:
        for prefix, home in case["map_prefix"]:
            if path == prefix or path.startswith(prefix + "/"):
                return folder / f"{home}{path[len(prefix) :]}"
        raise ValueError(f"no map_prefix for {path}")

    name, metadata = newest_metadata(folder / "table")
    if case["metadata"] != f"table/metadata/{name}":
        wrong.append(f"metadata {case['metadata']} is not the newest, {name}")
    chain = ancestry(metadata)
    if [entry["snapshot_id"] for entry in case["snapshots"]] != [snapshot["snapshot-id"] for snapshot in chain]:
        wrong.append("snapshots are not main's ancestry")
    for path in sorted(stored_paths(metadata, chain, place)):
        if not place(path).exists():
            wrong.append(f"no file for {path}")
    files = list(live_files(chain, place))
    for file in files:
        if place(file["file_path"]).stat().st_size != file["file_size_in_bytes"]:
            wrong.append(f"size of {file['file_path']}")
    if case["deletes"] != delete_kind(files):
        wrong.append(f"deletes {case['deletes']}")
    for entry in [*case["snapshots"], {"rows": case["current"], "row_ids": case.get("row_ids")}]:
        rows = feather.read_table(folder / entry["rows"])
        if entry.get("row_ids") is not None and len(entry["row_ids"]) != rows.num_rows:
            wrong.append(f"row_ids of {entry['rows']}")
    current = feather.read_table(folder / case["current"])
    if current.column_names != [column[0] for column in case["columns"]]:
        wrong.append("current.arrow has other columns")
    for found in sorted(folder.rglob("*")):
        if found.is_file():
            content = plain_bytes(found)
            wrong += [f"{text.decode()!r} in {found}" for text in machine_strings() if text in content]
            if found.suffix == ".crc":
                wrong.append(f"checksum file {found}")
    return wrong


def check() -> int:
    """Check all fixture folders; the number of problems."""
    problems = 0
    folders = sorted(path for path in OUT.iterdir() if path.is_dir()) if OUT.exists() else []
    for folder in folders:
        try:
            wrong = check_case(folder)
        except (OSError, ValueError, KeyError, StopIteration) as error:
            wrong = [f"{type(error).__name__}: {error}"]
        for text in wrong:
            print(f"{folder.name}: {text}")
        problems += len(wrong)
    for name in sorted(KINDS.keys() - {folder.name for folder in folders}):
        print(f"{name}: not built")
        problems += 1
    size = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    print(f"{len(folders)} kinds, {size / 1e6:.2f} MB, {problems} problems")
    return problems


def main(argv: list[str]) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    parser.add_argument("--check", action="store_true", help="check the fixtures on disk")
    options = parser.parse_args(argv)
    if options.list:
        for kind in KINDS.values():
            print(f"{kind.name:32} {kind.what}")
        return 0
    if options.check:
        return 1 if check() else 0
    if unknown := [name for name in options.kinds if name not in KINDS]:
        parser.error(f"unknown kinds: {', '.join(unknown)}")
    engine = Engine()
    failed = []
    for name in options.kinds or list(KINDS):
        started = time.monotonic()
        for place in ("db", "src"):
            shutil.rmtree(ROOT / place / name, ignore_errors=True)
        try:
            KINDS[name].build(engine, name)
            export(engine, KINDS[name])
        except Exception as error:  # noqa: BLE001  # one kind that fails must not stop the others
            failed.append(name)
            text = " ".join(str(error).split())
            causes = re.findall(r"Caused by: .{,200}", text)
            print(f"{name}: FAILED {type(error).__name__}: {text[:300]} {causes[-1:]}", flush=True)
        else:
            print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
    if failed:
        print(f"{len(failed)} failed: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
