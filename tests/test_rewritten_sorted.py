"""Files that are written for a sorted table are sorted, and later deletes of the source still find their rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bridge
from tests.judge import judge
from tests.support import Case, lake_rows, opened, subject, use
from tests.test_ownership import copied
from tests.test_runs import metadata_files, options

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tasks_here")]

ORDER = [{"transform": "identity", "source-id": id_, "direction": "desc", "null-order": "nulls-last"} for id_ in (2, 1)]


def ordered(kind: str, place: Path) -> Case:
    """A fixture by itself, of which every state says an order that its files do not have."""
    found = copied(kind, place)
    for path in metadata_files(found):
        stored = json.loads(path.read_text())
        stored["sort-orders"] = [{"order-id": 1, "fields": ORDER}]
        path.write_text(json.dumps({**stored, "default-sort-order-id": 1}))
    return found


def own_files(lake: Path) -> list[Any]:
    """The Parquet files that were written for main.t, in the order of the catalog."""
    paths = lake_rows(lake, "SELECT path FROM ducklake_data_file WHERE path_is_relative ORDER BY data_file_id")
    return [pq.read_table(f"{lake}.files/main/t/{path}") for (path,) in paths]


def is_sorted(file: Any) -> bool:
    """Whether (second column, first) descends, NULL last."""
    id_, other = (file.column(place).to_pylist() for place in (0, 1))
    keys = [(text is not None, text or "", number) for text, number in zip(other, id_, strict=True)]
    return keys == sorted(keys, reverse=True)


REWRITE: dict[str, Any] = {"fmt_mixed": "when-needed"}
RUNS = (("v2_eqdel_pos", True), ("fmt_mixed", True), ("v2_mor_twice", True))
MORE = (
    *((kind, not follow) for kind, follow in RUNS),
    *(("v3_lineage", follow) for follow in (False, True)),
    *((kind, True) for kind in ("v3_dv_twice", "v3_dv_multi", "mor_delete_whole_file", "v2_mor_dropfile")),
    *((kind, False) for kind in ("v3_dv_twice", "v2_mor_rewrite_pos")),
)


@pytest.mark.parametrize(
    ("kind", "follow"),
    [
        *RUNS,
        ("v3_dv_multi", False),
        *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in (("hist_rollback_mor", True), *MORE)),
    ],
)
def test_state_by_state_the_deletes_find_their_rows(kind: str, follow: bool, tmp_path: Path) -> None:
    found, lake = ordered(kind, tmp_path / "source"), tmp_path / "lake.ducklake"
    asked = options(found, rewrite=REWRITE.get(kind, "always"), ownership="adopt")
    asked = replace(asked, verify="metadata")
    for metadata in metadata_files(found):
        source, target = f"iceberg:{metadata}", f"ducklake:{lake}"
        if follow:
            made = bridge.mirror(source, target, asked, once=True)
            assert made is not None and made.exit_code == 0, made.error
        else:
            assert bridge.migrate(source, target, asked).exit_code == 0
    files = own_files(lake)
    assert files and all(map(is_sorted, files))
    assert any("_bridge_position" in file.column_names for file in files)
    compact = not follow and kind != "v3_dv_multi"
    judged = judge(
        str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=compact, compact=compact, filters=4
    )
    assert judged == []


@pytest.mark.parametrize("kind", ["v3_lineage", pytest.param("v3_dv_twice", marks=pytest.mark.exhaustive)])
def test_rows_keep_their_ids_wherever_they_are_put(kind: str, tmp_path: Path) -> None:
    found = ordered(kind, tmp_path / "source")
    said = []
    for rewrite in ("when-needed", "always"):
        lake = tmp_path / f"{rewrite}.ducklake"
        bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", options(found, rewrite=rewrite))
        ids = "SELECT rowid, * FROM t ORDER BY ALL"
        with opened(lake) as connection:
            said.append(connection.execute(ids).fetchall())
    assert said[0] == said[1] != [] and all(map(is_sorted, own_files(lake)))
    changed = [
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        f"DELETE FROM lake.t WHERE rowid = {said[1][0][0]}",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
        f"UPDATE lake.t SET v = 'new' WHERE rowid = {said[1][1][0]}",
    ]
    assert use(str(lake), changed) == [""] * len(changed)
    with opened(lake) as connection:
        assert connection.execute(ids).fetchall() == [(*said[1][1][:2], "new"), *said[1][2:]]


Row = tuple[int, str | None, float | None]
VALUES: tuple[float | None, ...] = (0.0, -0.0, 1.5, None, float("nan"), -7.25)
FIELDS = {"id": 1, "k": 2, "d": 3}


class Source:
    """An Iceberg table sorted by d DESC NULLS FIRST, k, of files that are not, with the rows of each snapshot."""

    def __init__(self, home: Path) -> None:
        from pyiceberg.schema import Schema
        from pyiceberg.table.sorting import NullOrder
        from pyiceberg.transforms import IdentityTransform
        from pyiceberg.types import DoubleType, LongType, NestedField, StringType

        from tests.foreign_files import Foreign

        columns = NestedField(1, "id", LongType()), NestedField(2, "k", StringType()), NestedField(3, "d", DoubleType())
        names = [{"field-id": each.field_id, "names": [each.name]} for each in columns]
        self.home, self.table = home, Foreign(home, Schema(*columns), names=names)
        self.states: list[Counter[str]] = []
        self.rows: list[Row] = []
        self.written = 0
        with self.table.table.update_sort_order() as order:
            order.desc("d", IdentityTransform(), NullOrder.NULLS_FIRST).asc(
                "k", IdentityTransform(), NullOrder.NULLS_LAST
            )
        with self.table.table.transaction() as changing:
            changing.set_properties({"write.target-file-size-bytes": "5000"})

    def add(self, suffix: str, count: int = 4_000) -> None:
        """A snapshot of one file."""
        from tests.file_tables import save

        ids = range(self.written, self.written + count)
        rows: list[Row] = [(i, None if i % 11 == 0 else f"k{i * 7919 % 97}", VALUES[i * 31 % 6]) for i in ids]
        given = pa.table({"id": [r[0] for r in rows], "k": [r[1] for r in rows], "d": [r[2] for r in rows]})
        path = save(self.home / f"{self.written}.{suffix}", given, FIELDS, {"k": "string", "d": "double"})
        self.table.add((path, count, []))
        self.written += count
        self.rows += rows
        self.states.append(counted(self.rows))

    def delete(self, *ids: int) -> None:
        """A snapshot of an equality delete."""
        from tests.file_tables import delete_equal, save

        path = save(self.home / f"gone-{len(self.states)}.parquet", pa.table({"id": pa.array(ids, pa.int64())}), FIELDS)
        delete_equal(self.table, path, len(ids), [1])
        self.rows = [row for row in self.rows if row[0] not in ids]
        self.states.append(counted(self.rows))


def counted(rows: list[Any]) -> Counter[str]:
    """As text, which tells 0.0 from -0.0."""
    return Counter(map(repr, rows))


def has_order(file: pa.Table, keys: str) -> bool:
    with duckdb.connect() as connection:
        again = connection.sql(f"SELECT id FROM file ORDER BY {keys}").to_arrow_table()
    return bool(again.column("id") == file.column("id"))


def test_large_files_their_later_deletes_and_an_order_set_in_the_lake(tmp_path: Path) -> None:
    source, lake = Source(tmp_path / "source"), tmp_path / "lake.ducklake"

    def migrate() -> Any:
        report = bridge.migrate(f"iceberg:{source.table.metadata}", f"ducklake:{lake}", bridge.Options(rename="main.t"))
        assert report.exit_code == 0 and not report.faults
        return report.plan.tables[0]

    source.add("orc")
    source.delete(*range(0, 4_000, 41))
    source.add("avro")
    migrate()
    source.delete(*range(1, 8_000, 37))
    migrate()
    before = own_files(lake)
    assert len(before) > 4
    assert all(has_order(file, "d DESC NULLS FIRST, k NULLS LAST, _bridge_position") for file in before)
    altered = [
        "ALTER TABLE lake.t SET SORTED BY (lower(k))",
        "ALTER TABLE lake.t SET SORTED BY (K DESC NULLS FIRST, id)",
    ]
    assert use(str(lake), altered[:1]) == [""]
    source.add("orc", 500)
    assert [each.detail for each in migrate().findings if each.code.text == "sort-key"]
    assert use(str(lake), altered[1:]) == [""]
    with source.table.table.update_schema() as renaming:
        renaming.rename_column("k", "new k")
    source.add("avro", 500)
    source.delete(*range(2, 9_000, 29))
    assert not [each for each in migrate().findings if each.code.text.startswith("sort-")]
    files = own_files(lake)
    assert [file.column("id") for file in files[: len(before)]] == [file.column("id") for file in before]
    unsorted, *last = files[len(before) :]
    assert unsorted.column("id").to_pylist() == list(range(8_000, 8_500))
    assert last and has_order(pa.concat_tables(last), '"new k" DESC NULLS FIRST, id NULLS LAST')

    snapshots = [id_ for (id_,) in lake_rows(lake, "SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")[1:]]
    with opened(lake) as connection:
        held = [counted(connection.execute(f"FROM t AT (VERSION => {id_})").fetchall()) for id_ in snapshots]
    assert [each for number, each in enumerate(held) if not number or each != held[number - 1]] == source.states
    changed = [
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        "DELETE FROM lake.t WHERE id % 5 = 0",
        "UPDATE lake.t SET d = 3 WHERE id % 7 = 0",
        'INSERT INTO lake.t SELECT id + 100000, "new k", d FROM lake.t WHERE id < 100',
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
        "CALL ducklake_merge_adjacent_files('lake')",
    ]
    assert use(str(lake), changed) == [""] * len(changed)
    # DuckDB's own dictionaries take 0.0 and -0.0 for one another
    kept = [(i, k, 3.0 if i % 7 == 0 else d if d is None else d + 0.0) for i, k, d in source.rows if i % 5]
    kept += [(i + 100_000, k, d) for i, k, d in kept if i < 100]
    with opened(lake) as connection:
        found = connection.execute('SELECT rowid, id, "new k", d + 0.0 FROM t').fetchall()
    assert counted([row[1:] for row in found]) == counted(kept) and len({row[0] for row in found}) == len(kept)


def test_a_column_in_the_place_of_row_ids_keeps_files_unsorted(tmp_path: Path) -> None:
    found = ordered("v3_lineage", tmp_path / "source")
    for path in metadata_files(found):
        path.write_text(path.read_text().replace('"name": "v"', '"name": "_DuckLake_internal_row_id"'))
    lake = tmp_path / "lake.ducklake"
    report = bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", options(found, rewrite="always"))
    [said] = [each.detail for each in report.plan.tables[0].findings if each.code.text == "sort-key"]
    assert "_DuckLake_internal_row_id" in said
    assert not all(map(is_sorted, own_files(lake)))
