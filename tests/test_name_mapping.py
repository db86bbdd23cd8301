"""Files of other writers in Iceberg tables: what a name mapping, a path or a partition value makes of their columns.

Every case says what the lake must answer, or why the table is blocked. PyIceberg writes the metadata; Iceberg Java in
Spark confirms the rows that a case expects, and of a blocked one that it is DuckLake which would not read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from tests.foreign_files import PROPERTY, Foreign, in_order, plain, spark_rows
from tests.judge import Subject, Version, judge
from tests.parquet_shapes import MAP_KEY_VALUE, Element, write
from tests.support import lake_rows, opened, run, run_here

Change = Callable[[Element], object]
I32, TEXT = pa.int32(), pa.string()


@dataclass(frozen=True)
class Given:
    """A table of one data file: the rows that `oracle` reads, and the code that blocks it if DuckLake would not."""

    columns: tuple[NestedField, ...]
    file: pa.Table
    rows: list[Any]
    blocked: str = ""
    change: Change | None = None
    path: str = "f.parquet"
    key: str = ""
    value: Any = None
    names: Any = "schema"
    oracle: str = "spark"
    quick: bool = False
    int96: bool = False

    def make(self, home: Path) -> Foreign:
        spec = UNPARTITIONED_PARTITION_SPEC
        schema = Schema(*self.columns)
        if self.key:
            source = schema.find_field(self.key).field_id
            spec = PartitionSpec(PartitionField(source, 1000, IdentityTransform(), self.key))
        made = Foreign(home, schema, spec, None if self.names == "schema" else self.names)
        if self.names == "schema":
            text = create_mapping_from_schema(made.table.schema()).model_dump_json()
            with made.table.transaction() as transaction:
                transaction.set_properties({PROPERTY: text})
        options = {"use_deprecated_int96_timestamps": self.int96}
        written = write(home / "src" / self.path, self.file, self.change, **options)
        return made.add((written, self.file.num_rows, (self.value,) if self.key else ()))


def field(id_: int, name: str, type_: IcebergType) -> NestedField:
    return NestedField(id_, name, type_, False)


# lists and maps of every layout

INTS = ListType(10, IntegerType(), False)
PAIRS = ListType(10, StructType(field(11, "a", IntegerType()), field(12, "b", StringType())), False)
SINGLES = ListType(10, StructType(field(11, "a", IntegerType())), False)
COUNTS = MapType(10, StringType(), 11, IntegerType(), False)
PAIR = pa.struct([("a", I32), ("b", TEXT)])


def of_lists(element: pa.DataType, rows: Sequence[Any], required: bool = False) -> pa.Table:
    return pa.table({"c": pa.array(rows, pa.list_(pa.field("element", element, not required)))})


INT_ROWS: list[Any] = [[1, None], [], None]
PAIR_ROWS: list[Any] = [[{"a": 1, "b": "x"}, None], [], None]
FULL_INTS: list[Any] = [[1, 2], [], None]
FULL_PAIRS: list[Any] = [[{"a": 1, "b": "x"}], [], None]
MAP_ROWS: list[Any] = [{"k": 1, "z": None}, {}, None]
MAPS = pa.table({"c": pa.array([[("k", 1), ("z", None)], [], None], pa.map_(TEXT, I32))})


def groups(group: str, element: str) -> Change:
    return lambda root: root[0][0].named(group)[0].named(element)


def two_level(name: str) -> Change:
    return lambda root: root[0].two_level(name)


def map_groups(group: str, key: str, value: str, outer: int | None = None, inner: int | None = None) -> Change:
    def change(root: Element) -> None:
        root[0][0].named(group)[0].named(key)
        root[0][0][1].named(value)
        if outer is not None:
            root[0].annotated(outer)
        if inner is not None:
            root[0][0].annotated(inner)

    return change


def column(type_: IcebergType) -> tuple[NestedField, ...]:
    return (field(1, "c", type_),)


def one(rows: Sequence[Any]) -> list[Any]:
    return [[row] for row in rows]


LAYOUTS: dict[str, Given] = {}
for _group, _element, _blocked in (
    ("list", "element", ""),
    ("list", "item", ""),
    ("List", "Element", ""),
    ("element", "x", ""),
    ("bag", "array", "nested-layout"),
    ("bag", "array_element", "nested-layout"),
):
    _names = groups(_group, _element)
    _quick = _group == "bag" and _element == "array"
    LAYOUTS[f"{_group}/{_element}"] = Given(
        column(INTS), of_lists(I32, INT_ROWS), one(INT_ROWS), _blocked, _names, quick=_quick
    )
    LAYOUTS[f"{_group}/{_element} of structs"] = Given(
        column(PAIRS), of_lists(PAIR, PAIR_ROWS), one(PAIR_ROWS), _blocked, _names
    )
for _name, _blocked in (("array", ""), ("element", ""), ("x", "nested-layout"), ("c_tuple", "nested-layout")):
    # Iceberg Java 1.10.2 cannot read lists of two levels at all; PyIceberg does
    LAYOUTS[f"two levels, {_name}"] = Given(
        column(INTS),
        of_lists(I32, FULL_INTS, True),
        one(FULL_INTS),
        _blocked,
        two_level(_name),
        oracle="pyiceberg",
    )
    LAYOUTS[f"two levels, {_name} of structs"] = Given(
        column(PAIRS),
        of_lists(PAIR, FULL_PAIRS, True),
        one(FULL_PAIRS),
        _blocked,
        two_level(_name),
        oracle="pyiceberg",
    )
for _name in ("array", "c_tuple"):
    # an element to Iceberg, a level to DuckDB
    LAYOUTS[f"two levels, {_name} of one field"] = Given(
        column(SINGLES),
        of_lists(pa.struct([("a", I32)]), [[{"a": 1}], [], None], True),
        [],
        "nested-layout",
        two_level(_name),
        oracle="",
    )
LAYOUTS |= {
    "map key_value": Given(column(COUNTS), MAPS, one(MAP_ROWS), change=map_groups("key_value", "key", "value")),
    "map map": Given(column(COUNTS), MAPS, one(MAP_ROWS), change=map_groups("map", "key", "value")),
    "map entries": Given(column(COUNTS), MAPS, one(MAP_ROWS), change=map_groups("entries", "key", "value")),
    "map KEY": Given(column(COUNTS), MAPS, one(MAP_ROWS), change=map_groups("map", "KEY", "VALUE")),
    "map of keys": Given(
        column(COUNTS), MAPS, one(MAP_ROWS), "nested-layout", change=map_groups("entries", "keys", "values")
    ),
    "map key_value annotated": Given(
        column(COUNTS), MAPS, one(MAP_ROWS), change=map_groups("map", "key", "value", None, MAP_KEY_VALUE)
    ),
    "map annotated as key_value": Given(
        column(COUNTS), MAPS, [], "nested-layout", map_groups("map", "key", "value", MAP_KEY_VALUE), oracle=""
    ),
    "list without annotation": Given(
        column(INTS),
        of_lists(I32, INT_ROWS),
        [],
        "nested-layout",
        lambda root: root[0].annotated(None),
        oracle="",
    ),
    "list in a map in a list": Given(
        column(
            ListType(10, MapType(11, StringType(), 12, ListType(13, IntegerType(), False), False), False),
        ),
        pa.table({"c": pa.array([[[("k", [1, None])], None], None], pa.list_(pa.map_(TEXT, pa.list_(I32))))}),
        one([[{"k": [1, None]}, None], None]),
    ),
}

# names and ids

NOON = 1_704_110_400_000_000
FLAT = (field(1, "a", IntegerType()), field(2, "b", StringType()))
FLAT_FILE = pa.table({"a": pa.array([1, 2], I32), "b": ["x", None]})
FLAT_ROWS: list[Any] = [[1, "x"], [2, None]]


def numbered(*ids: int | None) -> Change:
    return lambda root: [root[place].numbered(id_) for place, id_ in enumerate(ids)]


NAMES = {
    "in other order": Given(FLAT, FLAT_FILE.select(["b", "a"]), FLAT_ROWS, quick=True),
    "by another name": Given(
        FLAT,
        FLAT_FILE.rename_columns(["A old", "b.c"]),
        FLAT_ROWS,
        names=[{"field-id": 2, "names": ["q", "b.c"]}, {"field-id": 1, "names": ["a", "A old"]}],
    ),
    "names are matched with case": Given(FLAT, FLAT_FILE.rename_columns(["A", "b"]), [[None, "x"], [None, None]]),
    "a name for nothing": Given(FLAT, FLAT_FILE, [[1, None], [2, None]], names=[{"field-id": 1, "names": ["a"]}]),
    "two names of the file for one field": Given(
        FLAT, FLAT_FILE, [], "no-field-ids", names=[{"field-id": 1, "names": ["a", "b"]}], oracle=""
    ),
    "a field twice in the mapping": Given(
        FLAT, FLAT_FILE, [], "no-field-ids", names=[{"field-id": 1, "names": ["a"]}, {"field-id": 1}], oracle="error"
    ),
    "a mapping that is none": Given(FLAT, FLAT_FILE, [], "no-field-ids", names="{", oracle="error"),
    "equal without case": Given(
        FLAT,
        pa.table({"A": pa.array([7, 8], I32), "a": pa.array([1, 2], I32), "b": ["x", None]}),
        FLAT_ROWS,
        "case-collision",
    ),
    "no mapping, by position": Given(FLAT, FLAT_FILE.rename_columns(["u", "v"]), FLAT_ROWS, names=None, quick=True),
    "no mapping, nested": Given(column(INTS), of_lists(I32, INT_ROWS), [], "no-field-ids", names=None, oracle=""),
    "ids on some columns": Given(FLAT, FLAT_FILE, [[1, None], [2, None]], change=numbered(1, None)),
    "ids of another table": Given(
        (field(1, "a", IntegerType()), field(2, "b", IntegerType())),
        pa.table({"a": pa.array([1, 2], I32), "b": pa.array([3, 4], I32)}),
        [[3, 1], [4, 2]],
        change=numbered(2, 1),
    ),
    "ids on some fields of a struct": Given(
        (field(1, "s", StructType(field(2, "x", IntegerType()), field(3, "y", IntegerType()))),),
        pa.table({"s": pa.array([{"x": 1, "y": 2}, None], pa.struct([("x", I32), ("y", I32)]))}),
        one([{"x": None, "y": 2}, None]),
        change=lambda root: (root[0].numbered(1), root[0][1].numbered(3)),
    ),
    "a plain column for a list": Given(
        column(INTS), pa.table({"c": pa.array([1], I32)}), [], "physical-type", oracle="error"
    ),
    "an instant as INT96": Given(
        column(TimestamptzType()),
        pa.table({"c": pa.array([NOON], pa.timestamp("us", "UTC"))}),
        [["2024-01-01 12:00:00"]],
        "physical-type",
        int96=True,
        quick=True,
    ),
    "a NaN that the footer hides": Given(
        column(DoubleType()),
        pa.table({"c": [1.0, float("nan")]}),
        [["1.0"], ["nan"]],
        "nan-outside-bounds",
    ),
    "an instant without a zone": Given(
        column(TimestamptzType()),
        pa.table({"c": pa.array([0], pa.timestamp("us"))}),
        [],
        "physical-type",
        oracle="",
    ),
}

# partition columns


def absent(
    type_: IcebergType,
    path: str,
    value: Any,
    rows: Any,
    blocked: str = "",
    ids: bool = False,
    oracle: str = "spark",
    quick: bool = False,
) -> Given:
    """A file of the column id alone in a table partitioned by p."""
    return Given(
        (field(1, "id", IntegerType()), field(2, "p", type_)),
        pa.table({"id": pa.array([1], I32)}),
        [[1, rows]],
        blocked,
        numbered(1) if ids else None,
        f"{path}/f.parquet",
        "p",
        value,
        oracle=oracle,
        quick=quick,
    )


def present(values: Sequence[str | None], path: str, value: Any, blocked: str = "", quick: bool = False) -> Given:
    """A file that holds p itself."""
    return Given(
        (field(1, "id", IntegerType()), field(2, "p", StringType())),
        pa.table({"id": pa.array(range(len(values)), I32), "p": pa.array(values, TEXT)}),
        [[number, value] for number in range(len(values))],
        blocked,
        path=f"{path}/f.parquet",
        key="p",
        value=value,
        quick=quick,
    )


ABSENT = "partition-column-absent"
PARTITIONS = {
    "text": absent(StringType(), "p=a b%2Fc%3Dd%25", "a b/c=d%", "a b/c=d%", quick=True),
    "text, plus stays": absent(StringType(), "p=a+b", "a+b", "a+b"),
    "text, with ids": absent(StringType(), "p=a", "a", "a", ids=True, quick=True),
    "another value": absent(StringType(), "p=b", "a", "a", ABSENT, quick=True),
    "no value": absent(StringType(), "data", "a", "a", ABSENT),
    "no value, with ids": absent(StringType(), "data", "a", "a", ABSENT, ids=True),
    "null": absent(StringType(), "data", None, None),
    "null, with ids": absent(StringType(), "data", None, None, ids=True),
    "null, while the path has a value": absent(StringType(), "p=a", None, None),
    "empty text": absent(StringType(), "p=", "", ""),
    "the text NULL": absent(StringType(), "p=NULL", "NULL", "NULL", ABSENT),
    "key in another case": absent(StringType(), "P=a", "a", "a"),
    "key of another name": absent(StringType(), "old=a", "a", "a"),
    "outer key first": absent(StringType(), "p=x/p=a", "a", "a", ABSENT),
    "outer key right": absent(StringType(), "p=a/p=x", "a", "a"),
    "equal sign in the value": absent(StringType(), "p=a=b", "a=b", "a=b", ABSENT),
    "number with zeros": absent(IntegerType(), "p=05", 5, 5),
    "long": absent(LongType(), "p=5000000000", 5_000_000_000, 5_000_000_000),
    "boolean": absent(BooleanType(), "p=true", True, True),
    "date": absent(DateType(), "p=2024-01-01", 19723, "2024-01-01"),
    "decimal": absent(DecimalType(9, 2), "p=1.50", Decimal("1.50"), "1.50"),
    "decimal, rounded": absent(DecimalType(9, 2), "p=1.504", Decimal("1.50"), "1.50"),
    "double": absent(DoubleType(), "p=0.1", 0.1, "0.1"),
    "double, minus zero": absent(DoubleType(), "p=-0.0", -0.0, "-0.0"),
    "double, other zero": absent(DoubleType(), "p=0.0", -0.0, "-0.0", ABSENT),
    "local time": absent(TimestampType(), "p=2024-01-01T12%3A00%3A00", NOON, "2024-01-01 12:00:00"),
    "instant with offset": absent(
        TimestamptzType(), "p=2024-01-01T12%3A00%3A00%2B00%3A00", NOON, "2024-01-01 12:00:00", oracle=""
    ),
    "instant without offset": absent(
        TimestamptzType(), "p=2024-01-01T12%3A00%3A00", NOON, "2024-01-01 12:00:00", ABSENT
    ),
    "binary": absent(BinaryType(), "p=AQID", b"\1\2\3", str(b"\1\2\3"), ABSENT, oracle=""),
    "in the file": present(["a", "a"], "data", "a"),
    "in the file, nulls": present([None, None], "data", None),
    "in the file, another": present(["b", "b"], "data", "a", "partition-value", quick=True),
    "in the file, several": present(["a", "b"], "data", "a", "partition-value"),
    "in the file, one null": present(["a", None], "data", "a", "partition-value"),
    "in the file, another than the path": present(["b", "b"], "p=a", "a"),
    "in the file, no partition value": present(["b"], "data", None, "partition-value"),
    "numbers in the file": Given(
        (field(1, "id", IntegerType()), field(2, "p", LongType())),
        pa.table({"id": pa.array([1, 2], I32), "p": pa.array([5, 5], I32)}),
        [[1, 5], [2, 5]],
        key="p",
        value=5,
    ),
    "other numbers in the file": Given(
        (field(1, "id", IntegerType()), field(2, "p", LongType())),
        pa.table({"id": pa.array([1, 2], I32), "p": pa.array([5, 6], I32)}),
        [[1, 5], [2, 5]],
        "partition-value",
        key="p",
        value=5,
    ),
    "nested beside it, with ids": Given(
        (field(1, "l", INTS), field(2, "p", StringType()), field(3, "s", StructType(field(4, "x", IntegerType())))),
        pa.table({"l": pa.array([[1, None]], pa.list_(I32)), "s": pa.array([{"x": 1}], pa.struct([("x", I32)]))}),
        [[[1, None], "a", {"x": 1}]],
        # PyIceberg gives out ids of its own: 1 l, 2 p, 3 s, 4 the element, 5 x
        change=lambda root: (
            root[0].numbered(1)[0][0].numbered(4),
            root[1].numbered(3)[0].numbered(5),
        ),
        path="p=a/f.parquet",
        key="p",
        value="a",
    ),
}

CASES: Mapping[str, Given] = {
    **{f"layout: {name}": given for name, given in LAYOUTS.items()},
    **{f"names: {name}": given for name, given in NAMES.items()},
    **{f"partition: {name}": given for name, given in PARTITIONS.items()},
}
Make = Callable[[str], Foreign]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Each case's table, made once."""
    root = tmp_path_factory.mktemp("foreign")

    @cache
    def made(name: str) -> Foreign:
        return CASES[name].make(root / str(list(CASES).index(name)))

    return made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if given.quick else pytest.mark.slow) for name, given in CASES.items()]
)
def test_lake_answers_as_iceberg_or_says_why_not(name: str, make: Make, tmp_path: Path) -> None:
    given, lake = CASES[name], tmp_path / "lake.ducklake"
    source = f"iceberg:{make(name).metadata}"
    ran = run_here(
        "migrate", source, f"ducklake:{lake}", "--as", "main.t", "--json", "--verify", "none", "--rewrite", "never"
    )
    codes = ran.codes()["blocked"]
    if given.blocked:
        assert (ran.code, given.blocked in codes) == (3, True), (codes, ran.err)
        return
    assert ran.code == 0, (codes, ran.err)
    with opened(lake) as connection:
        for zone in ("UTC", "Asia/Kathmandu"):
            connection.execute(f"SET TimeZone = '{zone}'")
            found = in_order(connection.execute(local("FROM t", given)).fetchall())
            assert found == in_order(given.rows)
        _ask_filters(connection)


def _ask_filters(connection: Any) -> None:
    """Every value is found by a filter, as often as it is there."""
    for name, type_, *_ in connection.execute("DESCRIBE t").fetchall():
        if type_.startswith(("STRUCT", "MAP")) or type_.endswith("[]"):
            continue
        values = [value for (value,) in connection.execute(f'SELECT "{name}" FROM t').fetchall()]
        for value in values:
            where = f'"{name}" IS NULL' if value is None else f'"{name}" = CAST(? AS {type_})'
            parameters = [] if value is None else [value]
            [count] = connection.execute(f"SELECT count(*) FROM t WHERE {where}", parameters).fetchall()[0]
            assert count == values.count(value), (name, value)


def local(query: str, given: Given) -> str:
    """Instants as UTC text, so that the session's zone shows only where it changes the value."""
    zoned = [each.name for each in given.columns if isinstance(each.field_type, TimestamptzType)]
    replaced = ", ".join(f"{name} AT TIME ZONE 'UTC' AS {name}" for name in zoned)
    return f"SELECT * REPLACE ({replaced}) {query}" if zoned else query


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_what_the_cases_expect(make: Make) -> None:
    asked = {name: make(name).hadoop() for name, given in CASES.items() if given.oracle in ("spark", "error")}
    found = spark_rows(asked)
    wrong = {}
    for name in asked:
        given, got = CASES[name], found[name]
        expected = in_order(given.rows) if given.oracle == "spark" else "error"
        if (got.get("rows") if given.oracle == "spark" else next(iter(got))) != expected:
            wrong[name] = (got, expected)
    assert wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, given in CASES.items() if given.oracle == "pyiceberg"])
def test_other_readers_read_lists_of_two_levels_so(name: str, make: Make) -> None:
    given, made = CASES[name], make(name)
    found = pq.read_table(made.home / "src" / given.path).column("c").to_pylist()
    assert in_order([[plain(row)] for row in found]) == in_order(given.rows)
    if "structs" not in name:  # PyIceberg 0.12 makes an empty list of a NULL one there
        rows = made.table.scan().to_arrow().column("c").to_pylist()
        assert in_order([[plain(row)] for row in rows]) == in_order(given.rows)


# runs after the first, and what the lake does with such files


def _people(home: Path) -> Foreign:
    """Two files of one layout, then one of another."""
    schema = Schema(field(1, "id", IntegerType()), field(2, "name", StringType()), field(3, "p", StringType()))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "p"))
    made = Foreign(home, schema, spec)
    with made.table.transaction() as transaction:
        transaction.set_properties({PROPERTY: create_mapping_from_schema(made.table.schema()).model_dump_json()})
    return made


def _file(made: Foreign, number: int, p: str, names: Sequence[str] = ("id", "name")) -> None:
    table = pa.table([pa.array([number, number + 1], I32), pa.array([f"n{number}", None], TEXT)], names=list(names))
    made.add((write(made.home / "src" / f"p={p}" / f"{number}.parquet", table), 2, (p,)))


def _migrate(made: Foreign, target: str) -> Any:
    return run("migrate", f"iceberg:{made.metadata}", f"ducklake:{target}", "--as", "main.t", "--json")


@pytest.mark.slow
def test_later_runs_share_mappings_and_reach_open_sessions(tmp_path: Path) -> None:
    made, lake = _people(tmp_path / "t"), tmp_path / "lake.sqlite"
    _file(made, 1, "a")
    assert _migrate(made, f"sqlite:{lake}").code == 0
    with opened(lake) as connection:
        assert connection.execute("SELECT count(*), max(id), max(p) FROM t").fetchall() == [(2, 2, "a")]
        _file(made, 3, "b")
        _file(made, 5, "c", ("id", "unknown"))
        ran = _migrate(made, f"sqlite:{lake}")
        assert ran.code == 0, ran.out
        rows = connection.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert rows == [
        (1, "n1", "a"), (2, None, "a"), (3, "n3", "b"), (4, None, "b"), (5, None, "c"), (6, None, "c"),
    ]  # fmt: skip
    bounds = "SELECT min_value, max_value, null_count FROM ducklake_file_column_stats WHERE column_id = 1 ORDER BY 1"
    assert lake_rows(lake, bounds) == [("1", "2", 0), ("3", "4", 0), ("5", "6", 0)]
    used = lake_rows(lake, "SELECT mapping_id, count(*) FROM ducklake_data_file GROUP BY 1 ORDER BY 1")
    assert [count for _, count in used] == [2, 1]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_column_mapping") == [(2,)]
    assert run_here("release", f"ducklake:sqlite:{lake}", "--table", "t").code == 0
    for name in ("column_mapping", "name_mapping"):
        assert lake_rows(lake, f"SELECT count(*) FROM ducklake_{name}") == [(0,)]


@pytest.mark.slow
def test_files_in_the_lake_that_are_to_be_read_otherwise_stop_a_later_run(tmp_path: Path) -> None:
    made, lake = _people(tmp_path / "t"), tmp_path / "lake.ducklake"
    _file(made, 1, "a")
    assert _migrate(made, str(lake)).code == 0
    names = json.loads(made.table.properties[PROPERTY])
    names[1]["names"] = ["other"]
    with made.table.transaction() as transaction:
        transaction.set_properties({PROPERTY: json.dumps(names)})
    _file(made, 3, "b")
    before = lake.read_bytes()
    ran = _migrate(made, str(lake))
    assert ran.code == 5 and "by other column names" in ran.json["error"]
    assert lake.read_bytes() == before


def test_unchecked_files_of_a_table_with_a_name_mapping_are_no_risk_to_accept(tmp_path: Path) -> None:
    made = _people(tmp_path / "t")
    _file(made, 1, "a")
    ran = run_here(
        "migrate", f"iceberg:{made.metadata}", f"ducklake:{tmp_path}/lake.ducklake", "--json",
        "--check-files", "none", "--accept", "unchecked-doubt",
    )  # fmt: skip
    assert ran.code == 3 and "no-field-ids" in ran.codes()["blocked"]


@pytest.mark.slow
def test_lake_goes_on_with_values_from_paths_and_names(tmp_path: Path) -> None:
    made, lake = _people(tmp_path / "t"), tmp_path / "lake.ducklake"
    for number, p in ((1, "a"), (3, "b"), (5, "__HIVE_DEFAULT_PARTITION__"), (7, "a")):
        _file(made, number, p) if p in "ab" else made.add(
            (
                write(
                    made.home / "src" / f"p={p}" / "5.parquet",
                    pa.table({"id": pa.array([5, 6], I32), "name": ["n5", None]}),
                ),
                2,
                (None,),
            )
        )
    source = f"iceberg:{made.metadata}"
    ran = run_here("migrate", source, f"ducklake:{lake}", "--as", "main.t", "--json", "--ownership", "adopt")
    assert ran.code == 0, ran.out
    rows = made.table.scan().to_arrow()
    subject = Subject("main.t", (Version(None, None, rows),))
    assert judge(str(lake), [subject], scratch=tmp_path / "judge", compact=True, filters=6) == []
