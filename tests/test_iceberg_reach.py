"""Equality deletes are followed by what the lake knows of the files it holds: no manifest from before is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

import bridge
from bridge.errors import Overtaken
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.model.files import Measures
from bridge.model.table import TableName
from bridge.ports import Silent
from converters.ducklake.catalog.session import parse_place
from converters.ducklake.catalog.standing import HeldTable
from converters.ducklake.extensions import connect, needed
from converters.ducklake.writer import open_target
from converters.iceberg.reader import open_source
from tests.file_tables import append, delete_equal, save
from tests.foreign_files import Foreign
from tests.iceberg_parts import opened
from tests.support import lake_rows
from tests.test_postgres import running, spot

__all__ = ["running", "spot"]  # fixtures

TYPES = (
    ("id", LongType()),
    ("n", IntegerType()),
    ("s", StringType()),
    ("d", DecimalType(9, 2)),
    ("day", DateType()),
    ("ts", TimestampType()),
    ("tz", TimestamptzType()),
    ("t", TimeType()),
)
NAMES = [name for name, _ in TYPES]
IDS = {name: number for number, name in enumerate(NAMES, 1)}
SCHEMA = Schema(*(NestedField(IDS[name], name, type_, required=False) for name, type_ in TYPES))
Row = dict[str, Any]
FIRST = (9, 98, -11, 997, -2, 9_998, 99_997, 999_998)
"""The first of four numbers of a file: as texts those of more digits come before the others."""


def row(k: int) -> Row:
    at, clock = datetime(1970, 1, 1, 12) + timedelta(hours=k, microseconds=k), timedelta(microseconds=(k + 11) * 80_000)
    values = (k, k, f"{k + 20:07}é" * 9, Decimal(f"{k}.25"), date(1970, 1, 1) + timedelta(days=k), at)
    return dict(zip(NAMES, (*values, at.replace(tzinfo=UTC), (datetime.min + clock).time()), strict=True))


class Followed:
    """A table of a file for each of some numbers, one of NULLs, and one of which no manifest says anything."""

    def __init__(self, home: Path, attach: str, **more: Any) -> None:
        self.made = Foreign(home / "source", SCHEMA)
        self.arrow = self.made.table.schema().as_arrow()
        self.home, self.attach = home, attach
        self.rows, self.began = dict[str, list[Row]](), dict[int, str]()
        self.options = bridge.Options(rename="main.t", verify="none", **more)
        for first in FIRST:
            self.add(str(first), [row(first + each) for each in range(4)])
        self.add("nulls", [row(70_000), dict.fromkeys(NAMES)])
        path = save(home / "silent.parquet", self.note("silent", [row(500), row(501)]), IDS)
        append(self.made, [(path, 2)])
        self.round()

    def table(self, rows: Sequence[Row]) -> pa.Table:
        return pa.Table.from_pylist(list(rows), schema=self.arrow)

    def add(self, name: str, rows: list[Row]) -> None:
        self.made.table.append(self.note(name, rows))

    def note(self, name: str, rows: list[Row]) -> pa.Table:
        self.rows[name], self.began[rows[0]["id"]] = rows, name
        return self.table(rows)

    def _called(self, path: str) -> str:
        return self.began[pq.read_table(path, columns=["id"]).column(0)[0].as_py()]

    def delete(self, *keys: Row) -> None:
        """By an equality delete file of keys of the same columns, whose bounds the manifest gives."""
        names = list(keys[0])
        gone = self.table([dict.fromkeys(NAMES) | each for each in keys]).select(names)
        path = save(self.home / f"gone-{len(list(self.home.glob('gone-*')))}.parquet", gone, IDS)
        stated = {}
        for name in names:
            values = sorted(each[name] for each in keys if each[name] is not None)
            type_ = dict(TYPES)[name]
            bounds = [to_bytes(type_, each) for each in (values[0], values[-1])] if values else [None, None]
            stated[IDS[name]] = (bounds[0], bounds[1], len(keys) - len(values))
        delete_equal(self.made, path, len(keys), [IDS[name] for name in names], stated)
        for name, rows in self.rows.items():
            self.rows[name] = [each for each in rows if {key: each[key] for key in names} not in keys]

    def round(self) -> None:
        told = catch_up(Pair(f"iceberg:{self.made.metadata}", f"ducklake:{self.attach}", self.options), Silent())
        assert told.exit_code == 0, (told.error, [each.message for each in told.tables])

    def read(self) -> tuple[int, set[str]]:
        """How many manifests a reading of what is to come opens, and the files in which it looks for keys."""
        [name] = (source := open_source(str(self.made.metadata), self.options)).tables()
        table = source.open(name)
        target = open_target(self.attach, self.options)
        [there] = target.lookup([TableName((), "t")]).values()
        since = next(at for at, each in enumerate(table.table.commits) if each.id == there.bookmark.commit)
        with opened() as seen:
            files = table.files(Silent(), since, there.held)
        equality = files.equality(since)
        assert files.since == since and equality is not None
        manifests = {path for what, path in seen if what == "manifest"}
        return len(manifests), {self._called(each.file.path) for each in equality.subjects}

    def is_right(self) -> bool:
        """Whether DuckDB finds the rows that are left."""
        left = self.table([each for rows in self.rows.values() for each in rows])
        backend = self.attach.partition(":")[0] if ":" in self.attach else "duckdb"
        with connect(*needed(backend)) as lake:
            lake.execute(f"ATTACH 'ducklake:{self.attach}' AS lake (READ_ONLY)")
            lake.execute("SET TimeZone = 'UTC'")
            found = lake.execute("FROM lake.main.t").to_arrow_table()
        order = [("id", "ascending")]
        return found.cast(left.schema).sort_by(order).equals(left.sort_by(order))


BACKENDS = ("", "sqlite:", pytest.param("postgres:", marks=pytest.mark.exhaustive))


@pytest.fixture
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Followed:
    match backend := getattr(request, "param", ""):
        case "postgres:":
            spot = request.getfixturevalue("spot")
            return Followed(tmp_path, spot.attach, data_path=spot.data_path)
        case _:
            return Followed(tmp_path, f"{backend}{tmp_path}/lake.db")


@pytest.mark.slow
@pytest.mark.parametrize("followed", BACKENDS, indirect=True)
def test_a_key_concerns_the_files_whose_bounds_hold_it(followed: Followed) -> None:
    """Each kind of key in a file of its own; beside those files what no statistics tell of."""
    reached = {"silent"}
    for number, (name, first) in enumerate(zip(NAMES, FIRST, strict=True), 1):
        followed.delete({name: row(first + 1)[name]})
        reached.add(str(first))
        assert followed.read() == (number, reached)
    followed.round()
    assert followed.is_right() and {len(followed.rows[str(first)]) for first in FIRST} == {3}


@pytest.mark.slow
def test_null_keys_and_keys_of_several_columns(followed: Followed) -> None:
    """NULL is a key of its own, which bounds do not tell of; of several columns one that has nothing in common is
    enough."""
    followed.delete({"s": None}, {"s": row(9)["s"] + "!"})
    assert followed.read()[1] == {"9", "nulls", "silent"}
    followed.delete({"n": 10, "s": row(10)["s"]}, {"n": 12, "s": row(11)["s"]})
    followed.delete({"n": -2, "s": row(98)["s"]})
    assert followed.read()[1] == {"nulls", "silent", "9"}
    followed.delete({"n": 998, "d": None}, {"n": 997, "d": row(997)["d"]})
    assert followed.read()[1] == {"nulls", "silent", "9", "997"}
    followed.round()
    assert followed.is_right()
    assert [len(followed.rows[name]) for name in ("nulls", "9", "997", "-2", "98")] == [1, 3, 3, 4, 4]


def test_where_files_were_written_for_the_lake_the_manifests_tell(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may hold a key stands for some file of the source, and does not tell for which."""
    measures = HeldTable.measures

    def own(self: HeldTable, types: Any) -> Measures:
        told = measures(self, types)
        return Measures(pa.table({"path": pa.nulls(told.files.num_rows, pa.string())}), told.stats)

    monkeypatch.setattr(HeldTable, "measures", own)
    followed.delete({"id": 9})
    assert followed.read() == (1 + len(followed.rows), {"9", "silent"})


def test_a_delete_concerns_what_was_added_before_it(followed: Followed) -> None:
    """A delete concerns what was added between the target's commit and itself, and nothing that came after it."""
    followed.add("before", [row(11), row(200)])
    followed.delete({"id": 11}, {"id": 12})
    followed.add("after", [row(12)])
    assert followed.read()[1] == {"9", "before", "silent"}
    followed.round()
    assert followed.is_right()
    assert [len(followed.rows[name]) for name in ("before", "9")] == [1, 2]


def test_bounds_of_a_later_round_widen_those_that_the_lake_knows(tmp_path: Path) -> None:
    """Each kind of column, where no file leaves a doubt: what the lake says of a whole column is read back, and is of
    the same kind as what a manifest says."""
    made = Foreign(tmp_path / "source", SCHEMA)
    attach, options = str(tmp_path / "lake.db"), bridge.Options(rename="main.t", verify="none")
    for k in (5, -7, 90):
        made.table.append(pa.Table.from_pylist([row(k)], schema=made.table.schema().as_arrow()))
        told = catch_up(Pair(f"iceberg:{made.metadata}", f"ducklake:{attach}", options), Silent())
        assert told.exit_code == 0, (told.error, [each.message for each in told.tables])
    said = lake_rows(tmp_path / "lake.db", "SELECT column_id, min_value, max_value FROM ducklake_table_column_stats")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        ends = connection.from_arrow(pa.Table.from_pylist([row(-7), row(90)], schema=made.table.schema().as_arrow()))
        low, high = ends.project("COLUMNS(*)::VARCHAR").order("id").fetchall()
    assert sorted(said) == [each for each in zip(IDS.values(), low, high, strict=True) if each[0] != IDS["s"]]


def test_a_table_that_is_dropped_meanwhile_is_looked_for_again(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.db")
    with connect(*needed("duckdb")) as lake:
        lake.execute(f"ATTACH 'ducklake:{attach}' AS lake")
    held = HeldTable(parse_place(attach), f"{tmp_path}/files/", TableName((), "t"))
    with pytest.raises(Overtaken, match="since it was looked at"):
        held.standing()


def test_bounds_that_the_lake_has_lost_stay_unknown(tmp_path: Path) -> None:
    """DuckDB 1.5.5 leaves a row without bounds where it cannot compare them, and would take the next file's for all."""
    made, attach = Foreign(tmp_path / "source", SCHEMA), str(tmp_path / "lake.db")
    options = bridge.Options(rename="main.t", verify="none")
    for k in (-7, 300):
        if Path(attach).exists():
            with duckdb.connect(attach) as catalog:
                catalog.execute("UPDATE ducklake_table_column_stats SET min_value = NULL, max_value = NULL")
        made.table.append(pa.Table.from_pylist([row(k)], schema=made.table.schema().as_arrow()))
        assert catch_up(Pair(f"iceberg:{made.metadata}", f"ducklake:{attach}", options), Silent()).exit_code == 0
    with connect(*needed("duckdb")) as lake:
        lake.execute(f"ATTACH 'ducklake:{attach}' AS lake")
        assert lake.execute("SELECT id FROM lake.t ORDER BY id").fetchall() == [(-7,), (300,)]
        assert lake.execute("SELECT count(*) FROM lake.t WHERE id < 0").fetchall() == [(1,)]


def test_a_delete_of_a_spec_whose_fields_are_all_void_reaches_every_file(tmp_path: Path) -> None:
    """As Iceberg Java has it (PartitionSpec.isPartitioned): a table of version 1 keeps a dropped key as void."""
    made = Foreign(tmp_path / "source", SCHEMA, PartitionSpec(PartitionField(IDS["s"], 1000, VoidTransform(), "v")))
    with made.table.update_spec() as change:
        change.add_field("n", "identity")
    arrow = made.table.schema().as_arrow()
    for k in (1, 2, 3):
        save(path := tmp_path / f"{k}.parquet", pa.Table.from_pylist([row(k)], schema=arrow), IDS)
        made.add((path, 1, (None, k)))
    pair = Pair(
        f"iceberg:{made.metadata}",
        f"ducklake:{tmp_path}/lake.db",
        bridge.Options(rename="main.t", verify="none"),
    )
    assert catch_up(pair, Silent()).exit_code == 0
    gone = save(tmp_path / "gone.parquet", pa.table({"id": [2]}), IDS)
    delete_equal(made, gone, 1, [1], {1: (to_bytes(LongType(), 2), to_bytes(LongType(), 2), 0)})
    for lake in ("lake", "whole"):
        now = replace(pair, source=f"iceberg:{made.metadata}", target=f"ducklake:{tmp_path}/{lake}.db")
        assert catch_up(now, Silent()).exit_code == 0
        with connect(*needed("duckdb")) as opened_lake:
            opened_lake.execute(f"ATTACH 'ducklake:{tmp_path}/{lake}.db' AS lake (READ_ONLY)")
            assert opened_lake.execute("SELECT id FROM lake.main.t ORDER BY id").fetchall() == [(1,), (3,)]
