"""Every kind of value at its edges in ORC, Avro and Parquet, by Iceberg Java and by others: rewritten they are what
Iceberg Java reads. Spark knows neither `time` nor nanoseconds, so Iceberg's own readers and writers are asked."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from converters.iceberg.types import schema_of
from converters.spark.plan import DataFile, Name, RewriteTask, Target
from converters.spark.task import rewrite

pytest.importorskip("pyspark")
pytest.importorskip("snowpark_connect_deps_iceberg")
pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = r"""
import decimal, glob, importlib.util, json, os, sys, uuid
from pyspark.java_gateway import launch_gateway
spec = importlib.util.find_spec("snowpark_connect_deps_iceberg")
[jar] = glob.glob(os.path.join(os.path.dirname(spec.origin), "jars", "iceberg-spark-runtime-3.5_2.12-*.jar"))
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    f"--driver-class-path {jar} --conf spark.driver.extraJavaOptions=-Duser.timezone=America/New_York pyspark-shell"
)
jvm = launch_gateway().jvm
gateway = jvm._gateway_client
ice, java = jvm.org.apache.iceberg, jvm.java
given = json.load(sys.stdin)
UTC = java.time.ZoneOffset.UTC

def instant(seconds, nanos):
    return java.time.LocalDateTime.ofEpochSecond(seconds, nanos, UTC)

def made(type_, value):
    if value is None:
        return None
    kind = str(type_.typeId())
    if kind in ("STRUCT",):
        record = ice.data.GenericRecord.create(type_)
        for field in type_.fields():
            record.setField(field.name(), made(field.type(), value.get(field.name())))
        return record
    if kind == "LIST":
        out = java.util.ArrayList()
        for each in value:
            out.add(made(type_.elementType(), each))
        return out
    if kind == "MAP":
        out = java.util.LinkedHashMap()
        for key, each in value:
            out.put(made(type_.keyType(), key), made(type_.valueType(), each))
        return out
    if kind == "DOUBLE":
        return float(value)
    if kind == "DECIMAL":
        return decimal.Context(prec=60).quantize(decimal.Decimal(value), decimal.Decimal(1).scaleb(-type_.scale()))
    if kind == "UUID":
        return java.util.UUID.fromString(value)
    if kind == "FIXED":
        return bytes.fromhex(value)
    if kind == "BINARY":
        return java.nio.ByteBuffer.wrap(bytes.fromhex(value))
    if kind == "DATE":
        return java.time.LocalDate.ofEpochDay(java.lang.Long(value))
    if kind == "TIME":
        return java.time.LocalTime.ofNanoOfDay(value * 1000)
    if kind.startswith("TIMESTAMP"):
        unit = 10**9 if kind.endswith("NANO") else 10**6
        local = instant(value // unit, value % unit * (10**9 // unit))
        return local.atOffset(UTC) if type_.shouldAdjustToUTC() else local
    return value

def told(value, type_):
    if value is None:
        return None
    kind = str(type_.typeId())
    if kind == "STRUCT":
        return {f.name(): told(value.getField(f.name()), f.type()) for f in type_.fields()}
    if kind == "LIST":
        return [told(each, type_.elementType()) for each in value]
    if kind == "MAP":
        key, item = type_.keyType(), type_.valueType()
        return sorted([told(each.getKey(), key), told(each.getValue(), item)] for each in value.entrySet())
    if kind in ("FLOAT", "DOUBLE"):
        return repr(value)
    if kind == "DECIMAL":
        return f"{value:f}"
    if kind == "UUID":
        return str(uuid.UUID(bytes=bytes(value))) if isinstance(value, bytes) else value.toString()
    if kind == "FIXED":
        return bytes(value).hex()
    if kind == "BINARY":
        out = bytes(value.array())[value.arrayOffset() + value.position():value.arrayOffset() + value.limit()]
        return out.hex()
    if kind == "DATE":
        return value.toEpochDay()
    if kind == "TIME":
        return value.toNanoOfDay() // 1000
    if kind.startswith("TIMESTAMP"):
        local = value.toLocalDateTime() if hasattr(value, "toLocalDateTime") and type_.shouldAdjustToUTC() else value
        if type_.shouldAdjustToUTC():
            seconds, nanos = value.toEpochSecond(), value.getNano()
        else:
            seconds, nanos = value.toEpochSecond(UTC), value.getNano()
        return seconds * 10**9 + nanos if kind.endswith("NANO") else seconds * 10**6 + nanos // 1000
    return value

out = {}
for table_name, wanted in given.items():
    schema = ice.SchemaParser.fromJson(json.dumps(wanted["schema"]))
    props = java.util.HashMap()
    for key, value in wanted["properties"].items():
        props.put(key, value)
    conf = jvm.org.apache.hadoop.conf.Configuration()
    nothing = ice.PartitionSpec.unpartitioned()
    table = ice.hadoop.HadoopTables(conf).create(schema, nothing, props, wanted["location"])
    kind = ice.FileFormat.fromString(wanted["format"])
    factory = ice.data.GenericAppenderFactory(table.schema(), table.spec())
    files = ice.io.OutputFileFactory.builderFor(table, 1, 1).format(kind).build()
    writer = factory.newDataWriter(files.newOutputFile(), kind, None)
    for row in wanted["rows"]:
        writer.write(made(table.schema().asStruct(), row))
    writer.close()
    append = table.newAppend().appendFile(writer.toDataFile())
    for path, rows in wanted["foreign"]:
        append.appendFile(
            ice.DataFiles.builder(nothing).withPath(path).withFormat(kind).withRecordCount(rows)
            .withFileSizeInBytes(os.path.getsize(path)).build()
        )
    append.commit()
    reader = ice.data.IcebergGenerics.read(table).build().iterator()
    rows = []
    while reader.hasNext():
        rows.append(told(reader.next(), table.schema().asStruct()))
    out[table_name] = sorted(rows, key=lambda row: row["id"])
print("FOUND" + json.dumps(out))
"""

Json = Any


def column(id_: int, name: str, type_: Json) -> Json:
    return {"id": id_, "name": name, "type": type_, "required": False}


COLUMNS = [
    column(1, "id", "int"),
    column(2, "b", "boolean"),
    column(3, "d", "double"),
    column(4, "big", "decimal(38, 10)"),
    column(5, "small", "decimal(9, 2)"),
    column(6, "u", "uuid"),
    column(7, "x", "fixed[5]"),
    column(8, "t", "time"),
    column(9, "dt", "date"),
    column(10, "ts", "timestamp"),
    column(11, "tz", "timestamptz"),
    column(12, "bin", "binary"),
    column(13, "s", "string"),
    column(14, "l", {"type": "list", "element-id": 19, "element": "double", "element-required": False}),
    column(
        15,
        "m",
        {
            "type": "map",
            "key-id": 20,
            "key": "string",
            "value-id": 21,
            "value-required": False,
            "value": {"type": "struct", "fields": [column(22, "a", "decimal(20, 3)"), column(23, "ts", "timestamp")]},
        },
    ),
    column(
        16,
        "st",
        {
            "type": "struct",
            "fields": [
                column(24, "u", "uuid"),
                column(25, "x", "fixed[3]"),
                column(26, "t", "time"),
                column(27, "n", {"type": "struct", "fields": [column(28, "dt", "date"), column(29, "bin", "binary")]}),
            ],
        },
    ),
    column(
        17,
        "ls",
        {
            "type": "list",
            "element-id": 30,
            "element-required": False,
            "element": {
                "type": "struct",
                "fields": [column(31, "u", "uuid"), column(32, "tz", "timestamptz"), column(33, "t", "time")],
            },
        },
    ),
    column(
        18, "mi", {"type": "map", "key-id": 34, "key": "int", "value-id": 35, "value": "time", "value-required": False}
    ),
]
NANO = column(40, "ns", "timestamp_ns")
DAY = 86_400_000_000
YEAR_1, YEAR_1500, REFORM, LAST = (
    -62_135_596_800_000_000,
    -14_831_683_199_999_999,
    -12_219_292_800_000_001,
    253_402_300_799_999_999,
)
U, V = "00112233-4455-6677-8899-aabbccddeeff", "ffffffff-ffff-ffff-ffff-ffffffffffff"
ROWS: list[dict[str, Json]] = [
    {
        "id": 1, "b": True, "d": "NaN", "big": "9" * 28 + "." + "9" * 10, "small": "-9999999.99", "u": U,
        "x": "0001027fff",
        "t": 0, "dt": -719_162, "ts": YEAR_1, "tz": YEAR_1500, "bin": "", "s": "", "l": ["NaN", None, "-0.0"],
        "m": [["k", {"a": "-99999999999999999.999", "ts": REFORM}], ["z", None], ["n", {"a": None, "ts": None}]],
        "st": {"u": V, "x": "ffffff", "t": DAY - 1, "n": {"dt": -141_428, "bin": "00ff"}},
        "ls": [{"u": U, "tz": -1, "t": 1}, None, {"u": None, "tz": LAST, "t": None}], "mi": [[-1, DAY - 1], [0, None]],
    },
    {"id": 2},
    {
        "id": 3, "d": "-0.0", "big": "-" + "9" * 28 + "." + "9" * 10, "small": "0", "u": V,
        "x": "0000000000",
        "t": DAY - 1, "dt": 2_932_896, "ts": LAST, "tz": REFORM, "bin": "00ff80",
        "s": "\u00e9\0\U0001f600", "l": [], "m": [],
        "st": {"u": None, "x": None, "t": None, "n": None}, "ls": [], "mi": [],
    },
    {
        "id": 4, "d": "4.9E-324", "big": "-0.0000000001", "small": "0.01", "u": V.replace("f", "0"),
        "x": "6162636465", "t": 43_200_000_001, "dt": -1, "ts": -1, "tz": -1_000_001, "bin": "00",
        "s": "x", "l": [None],
        "m": [["", {"a": "0.001", "ts": -1}]], "st": {"n": {"dt": None, "bin": None}}, "ls": [None], "mi": [[7, 0]],
    },
]  # fmt: skip
NANOS = [1, None, -1, -9_223_286_399_999_999_999, 9_223_372_036_854_775_806]
"""From 1677-09-22 on: of the day before DuckDB says that it is out of range."""


def foreign(kind: str, home: Path) -> tuple[Path, int]:
    """The same kinds as other writers store them: INT96, decimals as bytes, other list layouts, no ids."""
    path = home / f"foreign.{kind}"
    big = Decimal("-9999999999999999999999999999.9999999999")
    instants = [YEAR_1, -1, LAST]
    if kind == "avro":
        fields = [
            ("id", "int", 1), ("d", "double", 3),
            ("big", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}, 4),
            ("u", {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, 6),
            ("tz", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}, 11),
            ("l", {"type": "array", "items": ["null", "double"], "element-id": 19}, 14),
        ]  # fmt: skip
        schema = {
            "type": "record", "name": "r",
            "fields": [{"name": n, "type": ["null", t], "field-id": i, "default": None} for n, t, i in fields],
        }  # fmt: skip
        whole = int(big.scaleb(10)).to_bytes(16, "big", signed=True)
        rows = [
            {"id": 11, "d": float("nan"), "big": whole, "u": bytes(range(16)), "tz": YEAR_1, "l": [None, 1.5]},
            {"id": 12, "d": None, "big": b"\xff", "u": None, "tz": -1, "l": []},
            {"id": 13, "d": -0.0, "big": None, "u": b"\xff" * 16, "tz": LAST, "l": None},
        ]
        # fastavro would have other Python values for logical types: they are named when the rows are written
        named = io.BytesIO()
        shown = json.loads(json.dumps(schema).replace("logicalType", "logicalText"))
        fastavro.writer(named, fastavro.parse_schema(shown), rows)
        path.write_bytes(named.getvalue().replace(b"logicalText", b"logicalType"))
        return path, 3
    columns: dict[str, pa.Array] = {
        "id": pa.array([11, 12, 13], pa.int32()),
        "d": pa.array([float("nan"), None, -0.0]),
        "big": pa.array([big, Decimal("-0.0000000001"), None], pa.decimal128(38, 10)),
        "small": pa.array([Decimal("-1.25"), None, Decimal("0.00")], pa.decimal128(9, 2)),
        "dt": pa.array([-719_162, None, 2_932_896], pa.int32()).cast(pa.date32()),
        "tz": pa.array(instants, pa.timestamp("us", "UTC")),
        "bin": pa.array([b"", None, b"\0\xff"]),
        "l": pa.array([[None, 1.5], [], None], pa.list_(pa.field("array_element", pa.float64()))),
    }
    if kind == "parquet":
        columns["u"] = pa.array([bytes(range(16)), None, b"\xff" * 16], pa.binary(16))
        columns["x"] = pa.array([b"abcde", None, b"\0" * 5], pa.binary(5))
        columns["t"] = pa.array([0, None, DAY - 1], pa.time64("us"))
        known = {each["name"]: each["id"] for each in COLUMNS}
        element = pa.list_(pa.field("array_element", pa.float64(), metadata={"PARQUET:field_id": "19"}))
        columns["l"] = columns["l"].cast(element)
        schema = pa.schema(
            [pa.field(n, c.type, metadata={"PARQUET:field_id": str(known[n])}) for n, c in columns.items()]
        )
        table = pa.table(list(columns.values()), schema=schema)
        pq.write_table(table, path, use_deprecated_int96_timestamps=True, use_compliant_nested_type=False)
    else:
        columns["tz"] = pa.array([-9_000_000_000_000_000, -1, 9_000_000_000_000_000], pa.timestamp("us", "UTC"))
        orc.write_table(pa.table(columns), path, compression="snappy")
    return path, 3


MAPPING = [
    {"field-id": each["id"], "names": [each["name"]]}
    | ({"fields": [{"field-id": 19, "names": ["element", "array_element"]}]} if each["name"] == "l" else {})
    for each in COLUMNS
]
NAMES = tuple(
    Name(each["id"], (each["name"],), (Name(19, ("element",)),) if each["name"] == "l" else ()) for each in COLUMNS
)


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Path]]:
    """The tables' place, what Iceberg Java reads from each, and the files that others wrote."""
    home = tmp_path_factory.mktemp("tables")
    asked: dict[str, Json] = {}
    others = {}
    for kind in ("orc", "avro", "parquet"):
        others[kind], count = foreign(kind, home)
        properties = {"format-version": "2"}
        if kind == "orc":
            properties["schema.name-mapping.default"] = json.dumps(MAPPING)
        asked[kind] = {
            "schema": {"type": "struct", "schema-id": 0, "fields": COLUMNS},
            "rows": ROWS,
            "foreign": [[str(others[kind]), count]],
            "properties": properties,
        }
        nanos = [{"id": place, "ns": value} for place, value in enumerate(NANOS)]
        asked[f"{kind}-ns"] = {
            "schema": {"type": "struct", "schema-id": 0, "fields": [COLUMNS[0], NANO]},
            "rows": nanos,
            "foreign": [],
            "properties": {"format-version": "3"},
        }
    for name, each in asked.items():
        each["location"], each["format"] = str(home / name), name.split("-")[0]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return home, json.loads(ran.stdout.split("FOUND", 1)[1]), others


def plain(values: pa.Array) -> list[Any]:
    """Values as the script tells them."""
    type_ = values.type
    if isinstance(values, pa.ExtensionArray):
        return [None if each is None else str(each) for each in values.to_pylist()]
    valid = values.is_valid().to_pylist()
    if pa.types.is_struct(type_):
        parts = {type_.field(n).name: plain(values.field(n)) for n in range(type_.num_fields)}
        return [{name: part[n] for name, part in parts.items()} if ok else None for n, ok in enumerate(valid)]
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        offsets = values.offsets.to_pylist()
        if pa.types.is_map(type_):
            inner: list[Any] = [[k, v] for k, v in zip(plain(values.keys), plain(values.items), strict=True)]
        else:
            inner = plain(values.values)
        cut = [inner[a:b] if ok else None for a, b, ok in zip(offsets, offsets[1:], valid, strict=False)]
        return [sorted(each) if each is not None and pa.types.is_map(type_) else each for each in cut]
    if pa.types.is_floating(type_):
        return [None if each is None else repr(each) for each in values.to_pylist()]
    if pa.types.is_decimal(type_):
        return [None if each is None else f"{each:f}" for each in values.to_pylist()]
    if pa.types.is_binary(type_):
        return [None if each is None else each.hex() for each in values.to_pylist()]
    if pa.types.is_temporal(type_):
        whole = values.view(pa.int64() if type_.bit_width == 64 else pa.int32())
        return whole.to_pylist()
    return values.to_pylist()


@pytest.mark.parametrize("name", ["orc", "avro", "parquet", "orc-ns", "avro-ns", "parquet-ns"])
def test_values_are_those_that_iceberg_java_reads(name: str, read: Any, tmp_path: Path) -> None:
    home, expected, others = read
    kind = name.split("-")[0]
    metadata = json.loads((home / name / "metadata" / "v2.metadata.json").read_text())
    fields = schema_of(metadata["schemas"][-1]).fields
    [own] = (home / name / "data").glob(f"*.{kind}")
    sources = [DataFile(str(own), kind)]
    if name == kind:
        sources.append(DataFile(str(others[kind]), kind, names=NAMES if kind == "orc" else None))
    got: list[Any] = []
    for number, source in enumerate(sources):
        written = rewrite(RewriteTask(str(number), source, Target(str(tmp_path), fields), f"f{number}"))
        table = pq.read_table(written.column("path")[0].as_py()).combine_chunks()
        columns = {field.name: plain(table.column(field.name).chunk(0)) for field in fields}
        got += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert len(got) == (len(ROWS) + 3 if name == kind else len(NANOS))
    for mine, theirs in zip(got, expected[name], strict=True):
        for field in fields:
            assert mine[field.name] == theirs[field.name], (mine["id"], field.name)
