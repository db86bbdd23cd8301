"""A rewrite task alone, without Spark: what it writes is read back by pyarrow and DuckDB."""

from __future__ import annotations

import binascii
import datetime as dt
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import uuid
from decimal import Decimal as D
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from bridge.errors import Blocked, Unreachable
from bridge.model.schema import Schema, walk
from bridge.model.types import (
    Decimal,
    Field,
    FieldId,
    Fixed,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    Unit,
)
from converters.parquet.footer import read_footer
from converters.parquet.types import misread
from converters.spark.avro import _long, _zigzag
from converters.spark.plan import DataFile, Name, PartitionKey, RewriteTask, Settings, Target
from converters.spark.task import rewrite
from tests.converters.tables import Stored
from tests.support import ROOT, case, opened

pytestmark = pytest.mark.slow


def field(id_: int, name: str, type_: Any, **more: Any) -> Field:
    return Field(FieldId(id_), name, type_, **more)


def task(path: Path | str, out: Path, fields: tuple[Field, ...], **more: Any) -> RewriteTask:
    """A task with the given parts of its data file, target and settings."""
    file = {key: more.pop(key) for key in ("format", "record_count", "constants", "names") if key in more}
    target = {key: more.pop(key) for key in ("settings", "partition", "hive") if key in more}
    output = more.pop("output", "made")
    return RewriteTask("7", DataFile(str(path), **file), Target(str(out), fields, **target), output, **more)


def rows(written: pa.Table) -> list[tuple[Any, ...]]:
    """All rows of the written files, in the order of the files."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = []
        for path in written.column("path").to_pylist():
            found += connection.execute("SELECT * FROM read_parquet(?)", [path]).fetchall()
        return found


def save(path: Path, columns: dict[str, Any], ids: dict[str, int] | None = None, **options: Any) -> Path:
    """A Parquet file; with ids unless they are None."""
    table = pa.table(columns)
    if ids is not None:
        table = table.cast(
            pa.schema([each.with_metadata({"PARQUET:field_id": str(ids[each.name])}) for each in table.schema])
        )
    pq.write_table(table, path, **options)
    return path


FIXTURES = (
    *("fmt_orc", "fmt_avro", "fmt_mixed", "fmt_mixed_past", "prims", "nested", "evo_rename", "evo_swap", "evo_readd"),
    *("evo_int_long", "evo_float_double", "evo_decimal", "evo_struct", "evo_list_struct", "evo_map_struct"),
    *("evo_map_value_promote", "evo_nested_reorder", "addfiles", "addfiles_evo", "addfiles_hive", "addfiles_nested"),
    *("addfiles_promote", "v3_default", "v3_tsns_ntz", "v3_unknown", "negative_dates", "big_decimal"),
)


@pytest.mark.parametrize("kind", FIXTURES)
def test_files_of_every_snapshot_read_as_iceberg_java_reads_them(kind: str, tmp_path: Path) -> None:
    found = case(kind)
    stored = Stored(found)
    for fact in found.facts["snapshots"]:
        snapshot = next(each for each in stored.metadata["snapshots"] if each["snapshot-id"] == fact["snapshot_id"])
        schema = stored.schema(snapshot["schema-id"])
        target = Target(str(tmp_path / str(fact["snapshot_id"])), schema.fields)
        paths = []
        for number, entry in enumerate(stored.entries(snapshot)):
            assert entry.content == 0
            one = RewriteTask(str(number), stored.data_file(entry), target, f"f{number}")
            assert RewriteTask.from_json(one.to_json()) == one
            paths += rewrite(one).column("path").to_pylist()
        for path in paths:
            check_layout(path, schema)
        expected = found.rows(fact["rows"])
        assert expected.schema.names == [each.name for each in schema.fields]
        assert as_text(expected) == as_text_of(paths)


def check_layout(path: str, schema: Schema) -> None:
    """Every level carries its id, and DuckDB reads every column without a cast that changes values."""
    footer = read_footer(path)
    assert footer.all_ids == {int(each.field.id) for each in walk(schema.fields)}
    assert misread(footer, schema) in ([], [f"{f.name}: INT32" for f in schema.fields if f.type is Leaf.NOTHING]) or (
        any(f.type is Leaf.NOTHING for f in schema.fields) or any(isinstance(f.type, Fixed) for f in schema.fields)
    )
    assert all(column.standard for column in footer.columns)


def as_text(table: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("read", table)
        return connection.execute("SELECT COLUMNS(*)::VARCHAR FROM read ORDER BY ALL").fetchall()


def as_text_of(paths: list[str]) -> list[tuple[Any, ...]]:
    if not paths:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = "SELECT COLUMNS(*)::VARCHAR FROM read_parquet(?) ORDER BY ALL"
        return connection.execute(query, [paths]).fetchall()


TYPES: tuple[tuple[Any, pa.DataType, Any, str, str], ...] = (
    (Leaf.BOOLEAN, pa.bool_(), True, "BOOLEAN", "None"),
    (Leaf.INT8, pa.int8(), -128, "INT32", "Int(bitWidth=8, isSigned=true)"),
    (Leaf.INT16, pa.int16(), -7, "INT32", "Int(bitWidth=16, isSigned=true)"),
    (Leaf.INT32, pa.int32(), -7, "INT32", "Int(bitWidth=32, isSigned=true)"),
    (Leaf.INT64, pa.int64(), -(2**63), "INT64", "Int(bitWidth=64, isSigned=true)"),
    (Leaf.UINT8, pa.uint8(), 255, "INT32", "Int(bitWidth=8, isSigned=false)"),
    (Leaf.UINT64, pa.uint64(), 2**64 - 1, "INT64", "Int(bitWidth=64, isSigned=false)"),
    (Leaf.FLOAT32, pa.float32(), 0.1, "FLOAT", "None"),
    (Leaf.FLOAT64, pa.float64(), 0.1, "DOUBLE", "None"),
    (Leaf.DATE, pa.date32(), dt.date(1, 1, 1), "INT32", "Date"),
    (Leaf.STRING, pa.string(), "é\0x", "BYTE_ARRAY", "String"),
    (Leaf.JSON, pa.string(), '{"a": [1]}', "BYTE_ARRAY", "JSON"),
    (Leaf.BINARY, pa.binary(), b"\0\xff", "BYTE_ARRAY", "None"),
    (Fixed(3), pa.binary(3), b"abc", "BYTE_ARRAY", "None"),
    (Leaf.UUID, pa.binary(16), bytes(range(16)), "FIXED_LEN_BYTE_ARRAY", "UUID"),
    (Decimal(9, 2), pa.decimal128(9, 2), D("-1234567.89"), "INT32", "Decimal(precision=9, scale=2)"),
    (Decimal(18, 3), pa.decimal128(9, 2), D("-1.23"), "INT64", "Decimal(precision=18, scale=3)"),
    (
        Decimal(38, 10),
        pa.decimal128(38, 10),
        D("-9999999999999999999999999999.9999999999"),
        "FIXED_LEN_BYTE_ARRAY",
        "Decimal(precision=38, scale=10)",
    ),
    (Time(), pa.time64("us"), dt.time(23, 59, 59, 999999), "INT64", "Time(isAdjustedToUTC=false, timeUnit=micro"),
    (Timestamp(), pa.timestamp("us"), -1, "INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=micro"),
    (Timestamp(utc=True), pa.timestamp("us", "UTC"), -1, "INT64", "Timestamp(isAdjustedToUTC=true, timeUnit=micro"),
    (Timestamp(Unit.NANO), pa.timestamp("ns"), -1, "INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=nano"),
    (Timestamp(Unit.MILLI), pa.timestamp("ms"), -1, "INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=milli"),
    (Timestamp(Unit.SECOND), pa.timestamp("s"), -1, "INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=micro"),
)


def test_every_type_has_the_annotation_that_a_lake_gives_it_and_its_values(tmp_path: Path) -> None:
    columns = {f"c{place}": pa.array([value, None], stored) for place, (_, stored, value, _, _) in enumerate(TYPES)}
    ids = {name: place + 1 for place, name in enumerate(columns)}
    fields = tuple(field(place + 1, f"c{place}", type_) for place, (type_, *_) in enumerate(TYPES))
    source = save(tmp_path / "source.parquet", columns, ids)
    written = rewrite(task(source, tmp_path / "out", fields))
    for column, (type_, _, _, physical, logical) in zip(
        read_footer(written.column("path")[0].as_py()).columns, TYPES, strict=True
    ):
        assert (column.physical, column.logical.startswith(logical)) == (physical, True), (type_, column.logical)
    read = pq.read_table(written.column("path")[0].as_py())
    for place, (type_, *_) in enumerate(TYPES):
        got = read.column(place).combine_chunks()
        got = got.storage if isinstance(got, pa.ExtensionArray) else got
        wanted = columns[f"c{place}"].cast(pa.binary() if isinstance(type_, Fixed) else got.type)
        assert got.to_pylist() == wanted.to_pylist(), type_


def test_statistics_are_those_of_the_values(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    columns = {
        "f": pa.array([nan, 1.5, None, -2.25, nan], pa.float64()),
        "g": pa.array([nan, nan, None, nan, nan], pa.float32()),
        "h": pa.array([-inf, inf, 0.0, -0.0, None], pa.float64()),
        "s": pa.array(["b" * 1000, "a", None, "é", ""]),
        "d": pa.array([D("-1.20"), None, D("3.00"), D("0"), D("0")], pa.decimal128(38, 2)),
        "t": pa.array([-1, 5, None, 0, 0], pa.timestamp("us")),
        "n": pa.nulls(5, pa.int32()),
        "l": pa.array([[1.0, nan], None, [], [None], [nan]], pa.list_(pa.float64())),
        "q": pa.StructArray.from_arrays([pa.array([3, None, None, -3, 0], pa.int64())], names=['x".y']),
    }
    fields = (
        field(1, "f", Leaf.FLOAT64),
        field(2, "g", Leaf.FLOAT32),
        field(3, "h", Leaf.FLOAT64),
        field(4, "s", Leaf.STRING),
        field(5, "d", Decimal(38, 2)),
        field(6, "t", Timestamp()),
        field(7, "n", Leaf.INT32),
        field(8, "l", ListOf(field(10, "element", Leaf.FLOAT64))),
        field(9, "q", Struct((field(11, 'x".y', Leaf.INT64),))),
    )
    names = tuple(
        Name(
            int(each.id),
            (each.name,),
            (Name(10, ("element",)),) if each.name == "l" else (Name(11, ('x".y',)),) if each.name == "q" else (),
        )
        for each in fields
    )
    source = save(tmp_path / "source.parquet", columns)
    written = rewrite(task(source, tmp_path / "out", fields, names=names))
    stats = {each["field"]: each for each in written.column("stats")[0].as_py()}

    def told(id_: int) -> tuple[Any, ...]:
        return tuple(stats[id_][key] for key in ("values", "nulls", "nans", "lower", "upper"))

    assert told(1) == (5, 1, 2, "-2.25", "1.5")
    assert told(2) == (5, 1, 4, None, None)
    assert told(3)[:3] == (5, 1, 0)
    assert told(3)[3:] == ("-inf", "inf")
    assert told(4) == (5, 1, None, "", "é")
    assert told(5) == (5, 1, None, "-1.20", "3.00")
    assert told(6) == (5, 1, None, "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00.000005")
    assert told(7) == (5, 5, None, None, None)
    assert told(10)[2:] == (2, "1.0", "1.0")
    assert told(11) == (5, 2, None, "-3", "3")
    assert 8 not in stats and 9 not in stats
    path = written.column("path")[0].as_py()
    footer = read_footer(path)
    assert written.column("size")[0].as_py() == footer.size == Path(path).stat().st_size
    assert written.column("footer_size")[0].as_py() == footer.footer_size
    assert {column.id: column.size for column in footer.columns} == {id_: each["size"] for id_, each in stats.items()}


def test_long_texts_keep_their_bounds_or_lose_them_but_are_never_cut(tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"s": ["é" * 70_000, "z" * 300]}, {"s": 1})
    [stat] = rewrite(task(source, tmp_path / "out", (field(1, "s", Leaf.STRING),))).column("stats")[0].as_py()
    assert stat["lower"] in (None, "z" * 300)
    assert stat["upper"] in (None, "é" * 70_000)


def test_int96_of_any_year(tmp_path: Path) -> None:
    instants = [-62_135_596_800_000_000, -14_000_000_000_000_000, -1, 253_402_300_799_999_999]
    source = tmp_path / "source.parquet"
    table = pa.table(
        {
            "t": pa.array(instants, pa.timestamp("us")),
            "l": pa.array([[each] for each in instants], pa.list_(pa.timestamp("us"))),
        }
    )
    pq.write_table(table, source, use_deprecated_int96_timestamps=True)
    fields = (field(1, "t", Timestamp(utc=True)), field(2, "l", ListOf(field(3, "element", Timestamp()))))
    names = (Name(1, ("t",)), Name(2, ("l",), (Name(3, ("element",)),)))
    assert pq.read_metadata(source).schema.column(0).physical_type == "INT96"
    written = rewrite(task(source, tmp_path / "out", fields, names=names))
    read = pq.read_table(written.column("path")[0].as_py())
    assert read.column("t").cast(pa.int64()).to_pylist() == instants
    assert [each[0] for each in read.column("l").combine_chunks().cast(pa.list_(pa.int64())).to_pylist()] == instants


def test_coarser_instants_round_down_before_1970(tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"t": pa.array([-1, -1000, 1999, None], pa.timestamp("ns"))}, {"t": 1})
    written = rewrite(task(source, tmp_path / "out", (field(1, "t", Timestamp()),)))
    assert pq.read_table(written.column("path")[0].as_py()).column("t").cast(pa.int64()).to_pylist() == [
        -1,
        -1,
        1,
        None,
    ]


def test_hives_list_layout_reads_as_a_list(tmp_path: Path) -> None:
    values = pa.array([[1, None], None, []], pa.list_(pa.field("array_element", pa.int32())))
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"l": values}), source, use_compliant_nested_type=False)
    fields = (field(1, "l", ListOf(field(2, "element", Leaf.INT64))),)
    names = (Name(1, ("l",), (Name(2, ("element",)),)),)
    written = rewrite(task(source, tmp_path / "out", fields, names=names))
    assert rows(written) == [([1, None],), (None,), ([],)]
    check_layout(written.column("path")[0].as_py(), Schema(0, fields))


def test_promotions_defaults_constants_and_columns_without_a_source(tmp_path: Path) -> None:
    source = save(
        tmp_path / "source.parquet",
        {"i": pa.array([1, None], pa.int32()), "f": pa.array([0.1, None], pa.float32()), "gone": [1, 2]},
        {"i": 1, "f": 2, "gone": 9},
    )
    fields = (
        field(1, "wide", Leaf.INT64),
        field(2, "double", Leaf.FLOAT64),
        field(3, "day", Leaf.DATE, initial_default="1969-12-31"),
        field(4, "key", Leaf.UUID, initial_default="00010203-0405-0607-0809-0a0b0c0d0e0f"),
        field(5, "path", Leaf.STRING),
        field(6, "raw", Leaf.BINARY, initial_default=b"\0a"),
        field(7, "nothing", Leaf.NOTHING),
        field(8, "at", Timestamp(utc=True), initial_default="2024-01-31 10:34:56+00:00"),
        field(10, "s", Struct((field(11, "x", Leaf.INT32, initial_default="5"),))),
    )
    written = rewrite(task(source, tmp_path / "out", fields, constants={5: "a%20b"}))
    at = dt.datetime(2024, 1, 31, 10, 34, 56, tzinfo=dt.UTC)
    tail = (dt.date(1969, 12, 31), uuid.UUID(bytes=bytes(range(16))), "a%20b", b"\0a", None)
    [first, second] = rows(written)
    assert first[:2] == (1, struct.unpack("f", struct.pack("f", 0.1))[0])
    assert second[:2] == (None, None)
    for row in (first, second):
        assert row[2:7] == tail
        assert row[7] == at
        assert row[8] is None


@pytest.mark.parametrize(
    ("stored", "type_"),
    [
        (pa.array(["1"]), Leaf.INT32),
        (pa.array([1.5]), Leaf.INT64),
        (pa.array([D("1.234")], pa.decimal128(9, 3)), Decimal(9, 2)),
        (pa.array([2**40]), Leaf.INT32),
        (pa.array([b"abcd"], pa.binary(4)), Fixed(3)),
        (pa.array([0.1], pa.float64()), Leaf.FLOAT32),
        (pa.array([b"\xff"]), Leaf.STRING),
        (pa.array([[1]]), Leaf.INT64),
        (pa.array([1]), ListOf(field(2, "element", Leaf.INT64))),
    ],
)
def test_what_does_not_fit_is_refused_by_name(stored: pa.Array, type_: Any, tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"c": stored}, {"c": 1})
    with pytest.raises(Blocked, match="column c") as raised:
        rewrite(task(source, tmp_path / "out", (field(1, "c", type_),)))
    assert str(source) in raised.value.message
    assert not list((tmp_path / "out").glob("*")) + list((tmp_path / "out").glob(".*"))


def test_deleted_positions_leave(tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"i": list(range(200_000))}, {"i": 1})
    more = tmp_path / "more.arrow"
    with pa.ipc.new_file(str(more), pa.schema([("position", pa.int64())])) as writer:
        writer.write_table(pa.table({"position": [131_072, 3]}))
    one = task(source, tmp_path / "out", (field(1, "i", Leaf.INT64),), deleted=(0, 3, 199_999), deleted_file=str(more))
    written = rewrite(one)
    assert written.column("record_count").to_pylist() == [199_996]
    assert written.column("first_row").to_pylist() == [None]
    assert [row[0] for row in rows(written)] == [i for i in range(200_000) if i not in (0, 3, 131_072, 199_999)]
    every = task(source, tmp_path / "none", (field(1, "i", Leaf.INT64),), deleted=tuple(range(200_000)))
    assert rewrite(every).num_rows == 0
    with pytest.raises(Unreachable, match="row 200000 of it is deleted"):
        rewrite(task(source, tmp_path / "out", (field(1, "i", Leaf.INT64),), deleted=(200_000,)))


def test_a_file_that_holds_other_than_promised_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"i": [1, 2, 3]}, {"i": 1})
    for stated in (2, 4):
        with pytest.raises(Unreachable, match="holds 3 rows, its metadata says"):
            rewrite(task(source, tmp_path / "out", (field(1, "i", Leaf.INT64),), record_count=stated))
    with pytest.raises(Blocked) as raised:
        rewrite(task(save(tmp_path / "plain.parquet", {"i": [1]}), tmp_path / "out", (field(1, "i", Leaf.INT64),)))
    assert raised.value.code == "no-field-ids"
    (tmp_path / "cut.parquet").write_bytes(source.read_bytes()[:-20])
    with pytest.raises(Unreachable, match=r"cut\.parquet"):
        rewrite(task(tmp_path / "cut.parquet", tmp_path / "out", (field(1, "i", Leaf.INT64),)))


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "zstandard"])
def test_avro_blocks_that_cannot_be_unpacked_are_told_by_their_file(codec: str, tmp_path: Path) -> None:
    """Each codec raises errors of its own."""
    stored = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long", "field-id": 1}]}
    with io.BytesIO() as made:
        fastavro.writer(made, stored, ({"n": n * 7919 % 1_000} for n in range(50_000)), codec=codec)
        content = bytearray(made.getvalue())
    for place in range(len(content) // 2, len(content) - 100, 7):
        content[place] ^= 0xFF
    (tmp_path / "broken.avro").write_bytes(content)
    with pytest.raises(Unreachable, match=r"data file .*broken\.avro cannot be read"):
        rewrite(task(tmp_path / "broken.avro", tmp_path / "out", (field(1, "n", Leaf.INT64),), format="avro"))


def test_files_are_cut_at_the_target_size_and_say_where_they_begin(tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"i": list(range(300_000))}, {"i": 1}, compression="none")
    settings = Settings(target_bytes=400_000, row_group_rows=20_000)
    one = task(source, tmp_path / "out", (field(1, "i", Leaf.INT64),), settings=settings)
    written = rewrite(one)
    assert written.num_rows > 3
    first = 0
    for path, count, begin in zip(
        *(written.column(n).to_pylist() for n in ("path", "record_count", "first_row")), strict=True
    ):
        assert begin == first
        read = pq.read_table(path).column("i").to_pylist()
        assert read == list(range(first, first + count))
        groups = pq.read_metadata(path)
        assert max(groups.row_group(n).num_rows for n in range(groups.num_row_groups)) <= 22_528
        first += count
    assert first == 300_000
    before = {path: Path(path).read_bytes() for path in written.column("path").to_pylist()}
    assert rewrite(one).equals(written)
    assert {path: Path(path).read_bytes() for path in before} == before


@pytest.mark.parametrize("before", [0, 300_000], ids=["in the first batch", "after files were finished"])
def test_zeros_keep_their_signs(before: int, tmp_path: Path) -> None:
    values = [1.0, 0.0] * (before // 2) + [-0.0, 0.0, 1.0, None] * 2_000
    columns = {
        "i": list(range(len(values))),
        "d": pa.array(values, pa.float64()),
        "l": pa.array([[{"f": each}] for each in values], pa.list_(pa.struct([("f", pa.float32())]))),
    }
    names = (Name(1, ("i",)), Name(2, ("d",)), Name(3, ("l",), (Name(4, ("element",), (Name(5, ("f",)),)),)))
    inner = ListOf(field(4, "element", Struct((field(5, "f", Leaf.FLOAT32),))))
    fields = (field(1, "i", Leaf.INT64), field(2, "d", Leaf.FLOAT64), field(3, "l", inner))
    settings = Settings(target_bytes=1_000_000, row_group_rows=20_000)
    source = save(tmp_path / "s.parquet", columns)
    written = rewrite(task(source, tmp_path / "out", fields, names=names, settings=settings))
    assert {Path(each) for each in written.column("path").to_pylist()} == set((tmp_path / "out").iterdir())
    assert written.num_rows > (before > 0)
    found = {i: (str(d), str(below[0]["f"])) for i, d, below in rows(written)}
    assert found == {i: (str(each), str(each)) for i, each in enumerate(values)}


KEYED: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "i": (Leaf.INT32, pa.int32(), [5, None, -7]),
    "s": (Leaf.STRING, pa.string(), ["a b/=%é[1]*'\"", None, ""]),
    "N x": (Leaf.STRING, pa.string(), ["__HIVE_DEFAULT_PARTITION__", "NULL", "n"]),
    "f": (Leaf.FLOAT64, pa.float64(), [-0.0, float("nan"), 1e300]),
    "b": (Leaf.BOOLEAN, pa.bool_(), [True, None, False]),
    "n": (Decimal(9, 2), pa.decimal128(9, 2), [D("1.50"), None, D("-0.05")]),
    "u": (Leaf.UUID, pa.uuid(), [bytes(range(16)), None, bytes(16)]),
    "d": (Leaf.DATE, pa.date32(), [dt.date(2017, 11, 16), None, dt.date(1582, 10, 4)]),
    "t": (Timestamp(), pa.timestamp("us"), [1510871468000000, None, -1]),
    "ns": (Timestamp(Unit.NANO), pa.timestamp("ns"), [1510871468000000001, None, -1]),
    "z": (Timestamp(utc=True), pa.timestamp("us", "UTC"), [1510871468000000, None, -1]),
}
"""Columns by name, with the values of three rows."""


@pytest.mark.parametrize(
    "layout",
    [
        *("s,N x,i", "f,b", "n,u", "d,t,ns", "z", "year d,month d,day d", "year t,month t,day t,hour t"),
        *("year ns,hour ns", "year z,month z,day z,hour z", "year d,year t,s"),
    ],
)
def test_partitions_are_those_of_ducklakes_own_insert(layout: str, tmp_path: Path) -> None:
    ids = {name: place + 1 for place, name in enumerate(KEYED)}
    fields = tuple(field(ids[name], name, type_) for name, (type_, _, _) in KEYED.items())
    pairs = [re.fullmatch(r"(?:(year|month|day|hour) )?(.+)", key) for key in layout.split(",")]
    keys = tuple(PartitionKey(each[2], each[1] or "identity") for each in pairs if each)
    words = [f'{each[1]}("{each[2]}")' if each[1] else f'"{each[2]}"' for each in pairs if each]
    lake, got = tmp_path / "lake.ducklake", []
    with opened(lake, tmp_path / "lake") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for number in range(3):
            columns = {name: pa.array([values[number]] * 2, type_) for name, (_, type_, values) in KEYED.items()}
            source = save(tmp_path / f"{number}.parquet", columns, ids)
            [made] = rewrite(task(source, tmp_path / "out", fields, partition=keys, output=str(number))).to_pylist()
            got.append((os.path.relpath(os.path.dirname(made["path"]), tmp_path / "out"), made["partition"]))
            if not number:
                connection.execute(f"CREATE TABLE t AS SELECT * FROM '{source}' LIMIT 0")
                connection.execute(f"ALTER TABLE t SET PARTITIONED BY ({', '.join(words)})")
                connection.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
            connection.execute(f"INSERT INTO t SELECT * FROM '{source}'")
    with duckdb.connect(str(lake), read_only=True) as catalog:
        expected = catalog.execute(
            "SELECT any_value(path), list(v.partition_value ORDER BY v.partition_key_index)"
            " FROM ducklake_data_file JOIN ducklake_file_partition_value v USING (data_file_id)"
            " GROUP BY data_file_id ORDER BY data_file_id"
        ).fetchall()
    assert got == [(os.path.dirname(path), values) for path, values in expected]


def test_a_file_lies_in_a_partition_only_if_all_its_rows_do(tmp_path: Path) -> None:
    fields = (field(1, "k", Leaf.STRING), field(2, "v", Leaf.INT64))
    out, keys = tmp_path / "out[1]", (PartitionKey("k"), PartitionKey("v"))

    def placed(k: list[str | None], v: list[int], **more: Any) -> tuple[str, list[str | None]]:
        source = save(tmp_path / "s.parquet", {"k": pa.array(k, pa.string()), "v": v}, {"k": 1, "v": 2})
        [made] = rewrite(task(source, out, fields, **{"partition": keys, **more})).to_pylist()
        assert Path(made["path"]).is_file() and made["record_count"] == len(k) - len(more.get("deleted", ()))
        return os.path.relpath(os.path.dirname(made["path"]), out), made["partition"]

    assert placed(["a", "a"], [1, 1]) == ("k=a/v=1", ["a", "1"])
    assert placed(["a", "a"], [1, 2]) == placed(["a", None], [1, 1]) == (".", [])
    assert placed(["a", "b"], [1, 1], deleted=(1,)) == ("k=a/v=1", ["a", "1"])
    assert placed(["a"], [1], hive=False) == (".", ["a", "1"])
    # what PostgreSQL cannot hold, and what no file system can
    assert placed(["a\0"], [1]) == placed(["é" * 50], [1]) == (".", [])
    assert placed(["a"], [1], partition=()) == (".", [])


def test_avro_of_every_logical_type(tmp_path: Path) -> None:
    def long(logical: str) -> Any:
        return ["null", {"type": "long", "logicalType": logical}]

    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "ns", "type": long("timestamp-nanos"), "field-id": 1},
            {"name": "us", "type": long("timestamp-micros"), "field-id": 2},
            {"name": "ms", "type": long("timestamp-millis"), "field-id": 3},
            {"name": "tm", "type": long("time-micros"), "field-id": 4},
            {"name": "u", "type": {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}, "field-id": 5},
            {"name": "fx", "type": {"type": "fixed", "name": "fx", "size": 2}, "field-id": 6},
            {
                "name": "d",
                "type": {
                    "type": "fixed",
                    "name": "d",
                    "size": 9,
                    "logicalType": "decimal",
                    "precision": 20,
                    "scale": 2,
                },
                "field-id": 7,
            },
            {
                "name": "b",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
                "field-id": 8,
            },
            {
                "name": "m",
                "type": {
                    "type": "array",
                    "logicalType": "map",
                    "items": {
                        "type": "record",
                        "name": "k",
                        "fields": [
                            {"name": "key", "type": "int", "field-id": 10},
                            {"name": "value", "type": ["null", "fx"], "field-id": 11},
                        ],
                    },
                },
                "field-id": 9,
            },
            {
                "name": "t",
                "type": ["null", {"type": "map", "values": "int", "key-id": 13, "value-id": 14}],
                "field-id": 12,
            },
            {"name": "e", "type": {"type": "array", "items": ["null", "string"], "element-id": 16}, "field-id": 15},
        ],
    }
    plain = json.loads(json.dumps(schema).replace('"logicalType"', '"not"'))
    row = {"ns": -1, "us": -62_135_596_800_000_000, "ms": -1, "tm": 86_399_999_999, "u": bytes(range(16)), "fx": b"ab"}
    row |= {"d": (-12345).to_bytes(9, "big", signed=True), "b": (10**37).to_bytes(16, "big")}
    row |= {"m": [{"key": 1, "value": b"zz"}, {"key": 2, "value": None}], "t": {"a": 5}, "e": ["x", None]}
    none = {**row, "ns": None, "us": None, "ms": None, "tm": None, "m": [], "t": None, "e": []}
    source = tmp_path / "source.avro"
    for codec in ("null", "deflate", "zstandard", "snappy"):
        with source.open("wb") as output:
            write_avro(output, schema, plain, [row, none] * 5000, codec)
        fields = (
            field(1, "ns", Timestamp(Unit.NANO)),
            field(2, "us", Timestamp()),
            field(3, "ms", Timestamp(utc=True)),
            field(4, "tm", Time()),
            field(5, "u", Leaf.UUID),
            field(6, "fx", Fixed(2)),
            field(7, "d", Decimal(20, 2)),
            field(8, "b", Decimal(38, 0)),
            field(9, "m", MapOf(field(10, "key", Leaf.INT64), field(11, "value", Fixed(2)))),
            field(12, "t", MapOf(field(13, "key", Leaf.STRING), field(14, "value", Leaf.INT32))),
            field(15, "e", ListOf(field(16, "element", Leaf.STRING))),
        )
        written = rewrite(task(source, tmp_path / codec, fields, format="avro", record_count=10_000))
        path = written.column("path")[0].as_py()
        check_layout(path, Schema(0, fields))
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            got = connection.execute("SELECT COLUMNS(*)::VARCHAR FROM read_parquet(?) LIMIT 2", [path]).fetchall()
        assert got[0] == (
            "1969-12-31 23:59:59.999999999",
            "0001-01-01 00:00:00",
            "1969-12-31 23:59:59.999+00",
            "23:59:59.999999",
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "ab",
            "-123.45",
            str(10**37),
            "{1=zz, 2=NULL}",
            "{a=5}",
            "[x, NULL]",
        )
        assert got[1][:4] == (None,) * 4
        assert got[1][8:] == ("{}", None, "[]")


def write_avro(output: Any, schema: Any, plain: Any, records: list[Any], codec: str) -> None:
    """Raw values under a schema whose logical types fastavro is not to apply."""
    raw = io.BytesIO()
    fastavro.writer(raw, plain, records, codec="null" if codec == "snappy" else codec)
    content = raw.getvalue()
    output.write(relabelled(content, schema, codec))


def relabelled(content: bytes, schema: Any, codec: str) -> bytes:
    """An Avro file under another schema text; its blocks compressed with snappy if asked."""
    stream = io.BytesIO(content)
    assert stream.read(4) == b"Obj\x01"
    meta: dict[bytes, bytes] = {}
    while count := _long(stream):
        for _ in range(count):
            key = stream.read(_long(stream))
            meta[key] = stream.read(_long(stream))
    sync = stream.read(16)
    meta[b"avro.schema"] = json.dumps(schema).encode()
    if codec == "snappy":
        meta[b"avro.codec"] = b"snappy"
    out = io.BytesIO()
    out.write(b"Obj\x01" + _zigzag(len(meta)))
    for key, value in meta.items():
        out.write(_zigzag(len(key)) + key + _zigzag(len(value)) + value)
    out.write(_zigzag(0) + sync)
    if codec != "snappy":
        out.write(stream.read())
        return out.getvalue()
    while stream.tell() < len(content):
        rows_, size = _long(stream), _long(stream)
        block = stream.read(size)
        packed = pa.Codec("snappy").compress(block, asbytes=True) + binascii.crc32(block).to_bytes(4, "big")
        out.write(_zigzag(rows_) + _zigzag(len(packed)) + packed + stream.read(16))
    return out.getvalue()


def test_orc_without_ids_is_read_by_names(tmp_path: Path) -> None:
    source = tmp_path / "source.orc"
    orc.write_table(
        pa.table({"A": pa.array([1, None]), "l": pa.array([[1], None]), "d": pa.array([D("1.5"), None])}), source
    )
    fields = (
        field(1, "a", Leaf.INT64),
        field(2, "l", ListOf(field(3, "element", Leaf.INT64))),
        field(4, "d", Decimal(38, 1)),
    )
    names = (Name(1, ("a", "A")), Name(2, ("l",), (Name(3, ("element",)),)), Name(4, ("d",)))
    written = rewrite(task(source, tmp_path / "out", fields, format="orc", names=names))
    assert rows(written) == [(1, [1], D("1.5")), (None, None, None)]


LIMITED = """
import resource, signal, sys
from bridge.errors import BridgeError
from converters.spark.plan import RewriteTask
from converters.spark.task import rewrite
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    rewrite(RewriteTask.from_json(sys.stdin.read()))
except BridgeError as error:
    print(type(error).__name__, error)
"""


def test_a_write_that_fails_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    source = save(tmp_path / "source.parquet", {"i": list(range(100_000))}, {"i": 1})
    one = task(source, tmp_path / "out", (field(1, "i", Leaf.INT64),))
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED], input=one.to_json(), capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.stdout.startswith("Unreachable") and "cannot be written" in ran.stdout, ran
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "zstd"])
def test_orc_instants_beyond_nanoseconds(codec: str, tmp_path: Path) -> None:
    """pyarrow writes them but refuses to read them; the shapes make every kind of run."""
    rare = [0] * 400 + [999_999, 1, 0] + [7] * 200
    steps = [n * 1000 for n in range(600)]
    noise = [(n * 7_919_003) % 1_000_000 for n in range(3000)]
    heights = [(n % 50) if n % 97 else 987_654 for n in range(1000)]
    micros = [part + second * 1_000_000 for second, part in enumerate(rare + steps + noise + heights)]
    micros[:4] = [-62_135_596_800_000_000, 253_402_300_799_999_999, -12_219_292_800_000_001, 1]
    stored = pa.array([None if n % 13 == 5 else each for n, each in enumerate(micros)], pa.timestamp("us"))
    lists = pa.array([None, [], [micros[0], None], *([each] for each in micros[3:])], pa.list_(pa.timestamp("us")))
    both = pa.StructArray.from_arrays([stored, pa.array(range(len(micros)))], names=["t", "n"])
    source = tmp_path / "source.orc"
    table = pa.table({"t": stored, "l": lists, "s": both, "near": pa.array([0] * len(micros), pa.timestamp("us"))})
    orc.write_table(table, source, compression=codec)
    fields = (
        field(1, "t", Timestamp()),
        field(2, "l", ListOf(field(3, "element", Timestamp()))),
        field(4, "s", Struct((field(5, "t", Timestamp(utc=True)), field(6, "n", Leaf.INT64)))),
        field(7, "near", Timestamp()),
    )
    names = (
        Name(1, ("t",)),
        Name(2, ("l",), (Name(3, ("element",)),)),
        Name(4, ("s",), (Name(5, ("t",)), Name(6, ("n",)))),
        Name(7, ("near",)),
    )
    one = task(source, tmp_path / "out", fields, format="orc", names=names, record_count=len(micros))
    read = pq.read_table(rewrite(one).column("path")[0].as_py())
    assert read.column("t").to_pylist() == stored.to_pylist()
    assert read.column("l").to_pylist() == lists.to_pylist()
    assert (
        read.column("s").combine_chunks().field("t").cast(pa.int64()).to_pylist() == stored.cast(pa.int64()).to_pylist()
    )
    assert set(read.column("near").cast(pa.int64()).to_pylist()) == {0}


FILLED = """
import sys
import time
from bridge.errors import BridgeError
from converters.spark.plan import RewriteTask
from converters.spark.task import rewrite
try:
    rewrite(RewriteTask.from_json(sys.stdin.read()))
except BridgeError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        source = save(tmp_path / "source.parquet", {"i": list(range(100_000))}, {"i": 1})
        one = task(source, small / "out", (field(1, "i", Leaf.INT64),))
        ran = subprocess.run(
            [sys.executable, "-c", FILLED], input=one.to_json(), capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert ran.stdout.startswith("Unreachable") and "the disk is full" in ran.stdout, ran
        assert list((small / "out").iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


OBJECTS = """
import sys
import time
from converters import storage
from converters.spark.batches import Batch, Staging, perform
from converters.spark.plan import WRITTEN, RewriteTask
from converters.spark.task import rewrite
text = sys.stdin.read()
staging = Staging.of("s3://bucket/staging", "plan")
batch = Batch((text,))
assert staging.prepare([batch]) == set()
perform(staging.root, batch.name, lambda each: rewrite(RewriteTask.from_json(each)))
assert staging.ended() == ({batch.name}, set()), staging.ended()
[row] = staging.rows(batch.name).to_pylist()
assert storage.sizes([row["path"]]) == [row["size"]]
print(row["path"], row["record_count"])
storage.remove(row["path"])
storage.remove(row["path"])
assert staging.prepare([batch]) == {batch.name}
staging.clean()
assert storage.list_directory(staging.root) == []
"""


@pytest.mark.slow
def test_objects_are_read_and_written(tmp_path: Path) -> None:
    pytest.importorskip("localbucket")
    (tmp_path / "bucket").mkdir()
    save(tmp_path / "bucket" / "a b%20.parquet", {"i": list(range(1000))}, {"i": 1})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "localbucket", "--port", str(port), str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        fields = (field(1, "i", Leaf.INT64),)
        one = RewriteTask("0", DataFile("s3://bucket/a b%20.parquet"), Target("s3://bucket/out", fields), "made")
        env = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
        env |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
        ran = subprocess.run(
            [sys.executable, "-c", OBJECTS],
            input=one.to_json(),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=env,
        )
        assert ran.stdout.split() == ["s3://bucket/out/made-0.parquet", "1000"], ran
    finally:
        server.terminate()
        server.wait()
