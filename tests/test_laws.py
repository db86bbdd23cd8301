"""Maps between vocabularies and the small laws that everything rests on."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from itertools import pairwise
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import UsageError
from bridge.locators import parse_locator
from bridge.model.options import Options
from bridge.model.paths import PathMap, apply_map, is_within, normalise, parse_prefix
from bridge.model.table import TableName
from bridge.model.types import Decimal, Fixed, Geo, Leaf, Time, Timestamp, Unit, UnknownType
from bridge.planning.selection import matches, select, targets
from converters.deletes.windows import islands
from converters.ducklake import types as lake_types
from converters.ducklake.catalog.reads import changes
from converters.ducklake.catalog.times import micros, time_text
from converters.ducklake.columns import spans
from converters.iceberg import types as iceberg_types
from converters.iceberg.manifests import STATS_MAPS, resolve
from converters.iceberg.stats import decode

# -- types


def test_iceberg_types_round_trip() -> None:
    assert {iceberg_types.type_of(name) for name in iceberg_types.BY_NAME} == set(iceberg_types.NAMES)
    assert [iceberg_types.NAMES[iceberg_types.type_of(name)] for name in iceberg_types.BY_NAME] == [
        *iceberg_types.BY_NAME
    ]
    assert iceberg_types.type_of("decimal(9, 2)") == Decimal(9, 2)
    assert iceberg_types.type_of("fixed[16]") == Fixed(16)
    assert iceberg_types.type_of("geography(OGC:CRS84, karney)") == Geo("geography", "OGC:CRS84, karney")


@pytest.mark.parametrize("name", ["decimal", "int4", "timestamp_ms", "fixed[]", "", "struct"])
def test_unknown_iceberg_types_keep_their_name(name: str) -> None:
    assert iceberg_types.type_of(name) == UnknownType(name)


def test_lake_types_round_trip() -> None:
    for type_, name in lake_types.BY_TYPE.items():
        assert lake_types.NAMES[name] == type_
        assert lake_types.type_name(type_, {}) == name


@pytest.mark.parametrize(
    ("type_", "name"),
    [(Fixed(4), "blob"), (Leaf.NOTHING, "int32"), (Decimal(38, 10), "decimal(38,10)"), (Time(Unit.MICRO), "time")],
)
def test_types_that_become_another(type_: object, name: str) -> None:
    assert lake_types.type_name(type_, {}) == name  # type: ignore[arg-type]  # one of ColumnType


@pytest.mark.parametrize(
    "type_",
    [
        Geo("geometry"),
        UnknownType("x"),
        Decimal(39, 0),
        Timestamp(Unit.NANO, utc=True),
        Timestamp(Unit.MILLI, utc=True),
    ],
)
def test_types_that_the_lake_refuses(type_: object) -> None:
    assert lake_types.type_name(type_, {}) is None  # type: ignore[arg-type]  # one of ColumnType


# -- paths


@pytest.mark.parametrize(
    ("stored", "normal"),
    [
        ("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("file://localhost/a", "/a"), ("FILE:///a", "/a"),
        ("s3a://b/k", "s3://b/k"), ("s3n://b/k", "s3://b/k"), ("/a/%20b", "/a/%20b"), ("hdfs://h/a", "hdfs://h/a"),
        ("a/b", "a/b"), ("file://relative/x", "file://relative/x"),
    ],
)  # fmt: skip
def test_paths_have_one_form(stored: str, normal: str) -> None:
    assert normalise(stored) == normal
    assert pl.DataFrame({"p": [stored]}).select(resolve("p", PathMap())).item() == normal


@given(
    st.lists(
        st.tuples(st.sampled_from(["/w", "/w/a", "s3a://b", "file:/w/a/b", "rel/x"]), st.sampled_from(["/n", "/m/k"])),
        max_size=4,
    ),
    st.sampled_from(["/w", "/w/a", "/w/ab/c", "/w/a/b/c", "s3://b/k", "s3n://bb/k", "rel/x/y", "rel/xx", "/z"]),
)
def test_columns_of_paths_are_mapped_as_single_ones(pairs: list[tuple[str, str]], path: str) -> None:
    path_map = PathMap(tuple(dict(pairs).items()))
    mapped = pl.DataFrame({"p": [path]}).select(resolve("p", path_map)).item()
    if path not in {old for old, _ in path_map.prefixes}:
        assert mapped == apply_map(path, path_map)


def test_prefixes_match_whole_segments_and_the_longest_wins() -> None:
    path_map = PathMap((("/w", "/n"), ("/w/db", "/other/")))
    assert apply_map("/w/db/t", path_map) == "/other/t"
    assert apply_map("/w/dbx/t", path_map) == "/n/dbx/t"
    assert apply_map("/ww/t", path_map) == "/ww/t"


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("/a=/b", ("/a", "/b")),
        ("/a/k=1=/b", ("/a/k=1", "/b")),
        ("s3://x=s3://y/z", ("s3://x", "s3://y/z")),
        ("a=./b", ("a", "./b")),
    ],
)
def test_map_prefix_is_split_where_a_path_begins(text: str, pair: tuple[str, str]) -> None:
    assert parse_prefix(text) == pair


@pytest.mark.parametrize("text", ["", "=", "/a", "/a=", "=/b"])
def test_malformed_map_prefix_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_prefix(text)


def test_containment_looks_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_within(f"{tmp_path}/link/x", f"{tmp_path}/real")
    assert not is_within(f"{tmp_path}/realx", f"{tmp_path}/real")
    assert is_within("s3a://b/k/x", "s3://b/k")


# -- names


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.*", ["a.t"]),
        ("**", ["a.t", "a.b.t", "T"]),
        ("**.t", ["a.t", "a.b.t"]),
        ("t", []),
        ("?", ["T"]),
        ("a.b.*", ["a.b.t"]),
    ],
)
def test_patterns_stay_within_a_level(pattern: str, found: list[str]) -> None:
    names = [TableName(("a",), "t"), TableName(("a", "b"), "t"), TableName((), "T")]
    assert [str(name) for name in names if matches(name, pattern)] == found


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(UsageError, match="matches no table"):
        select([TableName((), "t")], Options(tables=("x",)))


def test_names_follow_as() -> None:
    names = [TableName(("a", "b"), "t"), TableName((), "u")]
    made = targets(names, Options(rename="s_{namespace}.x_{table}"), lambda name: name)
    assert [str(each) for each in made.values()] == ["s_a.b.x_t", "s_.x_u"]
    with pytest.raises(UsageError, match="names one table"):
        targets(names, Options(rename="s.t"), lambda name: name)


@pytest.mark.parametrize("text", ["", "lake", "nothing:x", "iceberg:", "/a/b"])
def test_what_is_no_locator_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_locator(text)


# -- history


@given(
    st.lists(st.dictionaries(st.integers(1, 4), st.integers(0, 2), max_size=4), min_size=1, max_size=6),
    st.dictionaries(st.integers(1, 4), st.integers(0, 2), max_size=4),
)
def test_spans_replay_every_version(versions: list[dict[int, int]], before: dict[int, int]) -> None:
    made, ended = spans(list(enumerate(versions)), before)
    for event, rows in enumerate(versions):
        live = {span.key: span.value for span in made if span.begin <= event and (span.end is None or event < span.end)}
        gone = {key for key, at in ended if at <= event}
        assert {**{key: value for key, value in before.items() if key not in gone}, **live} == rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(1, 3)), min_size=1, max_size=12))
def test_islands_cover_the_same_points(intervals: list[tuple[int, int, int]]) -> None:
    frame = pl.DataFrame(
        {
            "k": [k for k, _, _ in intervals],
            "begin": [b for _, b, _ in intervals],
            "end": [b + n for _, b, n in intervals],
        }
    )
    joined = islands(frame, "k").rows()
    points = {(k, p) for k, b, n in intervals for p in range(b, b + n)}
    assert {(k, p) for k, b, e in joined for p in range(b, e)} == points
    ordered = sorted(joined)
    assert all(a[0] != b[0] or a[2] < b[1] for a, b in pairwise(ordered))


@given(st.integers(-(2**45), 2**47))
def test_times_survive_as_text(value: int) -> None:
    assert micros(time_text(value)) == value


def test_times_of_every_backend_are_read() -> None:
    expected = 1_706_697_296_500_000
    for stored in (
        "2024-01-31 10:34:56.5+00",
        "2024-01-31T10:34:56.500Z",
        "2024-01-31 12:34:56.500000+02:00",
        "2024-01-31 10:34:56.5",
    ):
        assert micros(stored) == expected
    assert micros(datetime(2024, 1, 31, 10, 34, 56, 500000, UTC)) == expected


def test_changes_are_parsed_with_quoted_names() -> None:
    text = 'created_table:"a,b:1"."x""y",inserted_into_table:12,inlined_delete:3'
    assert list(changes(text)) == [
        ("created_table", '"a,b:1"."x""y"'), ("inserted_into_table", "12"), ("inlined_delete", "3"),
    ]  # fmt: skip


# -- statistics


def entry(field: int, lower: bytes, upper: bytes) -> pl.DataFrame:
    """One manifest entry that states everything about one column."""
    counts = {name: [[{"key": field, "value": 10}]] for name in STATS_MAPS if not name.endswith("bounds")}
    bounds = {"lower_bounds": [[{"key": field, "value": lower}]], "upper_bounds": [[{"key": field, "value": upper}]]}
    return pl.DataFrame({"entry": [7], **counts, **bounds}, schema={"entry": pl.Int64, **STATS_MAPS})


def long(value: int) -> bytes:
    return struct.pack("<q", value)


@pytest.mark.parametrize(
    ("type_", "stored", "value"),
    [
        (Leaf.BOOLEAN, b"\x01", True),
        (Leaf.INT32, struct.pack("<i", -5), -5),
        (Leaf.INT64, long(2**40), 2**40),
        (Leaf.INT64, struct.pack("<i", -7), -7),
        (Leaf.FLOAT64, struct.pack("<d", 2.5), 2.5),
        (Leaf.FLOAT64, struct.pack("<f", 0.5), 0.5),
        (Leaf.FLOAT32, struct.pack("<f", float("nan")), None),
        (Leaf.DATE, struct.pack("<i", -1), date(1969, 12, 31)),
        (Timestamp(Unit.MICRO), long(-1), datetime(1969, 12, 31, 23, 59, 59, 999999)),
        (Timestamp(Unit.MICRO), struct.pack("<i", 1), datetime(1970, 1, 2)),
        (Leaf.STRING, "dück".encode(), "dück"),
        (Leaf.STRING, b"\xff", None),
        (Leaf.UUID, b"\x00" * 16, None),
        (Decimal(9, 2), b"\xff", Number("-0.01")),
        (Decimal(9, 2), b"\x00\xff", Number("2.55")),
        (Decimal(38, 0), (10**37).to_bytes(16, "big", signed=True), Number(10**37)),
        (Decimal(38, 0), (-(10**37)).to_bytes(16, "big", signed=True), Number(-(10**37))),
        (Decimal(9, 2), b"", None),
        (Leaf.INT32, b"\x01\x02", None),
    ],
)
def test_bounds_are_decoded_by_their_length(type_: object, stored: bytes, value: object) -> None:
    [(field, table)] = decode(entry(3, stored, stored), {3: type_})  # type: ignore[arg-type,dict-item]  # FieldId, ColumnType
    assert field == 3 and table.column("entry").to_pylist() == [7] and table.column("nans").to_pylist() == [10]
    assert table.column("lower").to_pylist() == [value] == table.column("upper").to_pylist()


@given(st.lists(st.one_of(st.none(), st.integers(-(10**38) + 1, 10**38 - 1)), min_size=1, max_size=20))
def test_decimals_of_any_length_are_decoded(values: list[int | None]) -> None:
    raw = [
        None if value is None else value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True) for value in values
    ]
    frame = pl.DataFrame(
        {
            "entry": list(range(len(values))),
            **{name: [[{"key": 1, "value": 1}]] * len(values) for name in STATS_MAPS if not name.endswith("bounds")},
            **{name: [[{"key": 1, "value": each}] for each in raw] for name in ("lower_bounds", "upper_bounds")},
        },
        schema={"entry": pl.Int64, **STATS_MAPS},
    )
    [(_, table)] = decode(frame, {1: Decimal(38, 0)})  # type: ignore[dict-item]  # FieldId
    assert table.column("lower").cast(pa.decimal256(39, 0)).to_pylist() == [
        None if v is None else Number(v) for v in values
    ]
