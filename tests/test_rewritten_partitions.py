"""Files that are written for a partitioned table are the lake's own in every way: values, directories, maintenance."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bridge
from tests.support import lake_rows, opened, use

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tasks_here")]

PARTS: tuple[tuple[str | None, date | None], ...] = (
    ("a/b=c%d é[1]*'\"", date(2024, 2, 29)),
    ("", date(1969, 12, 31)),
    (None, None),
    ("__HIVE_DEFAULT_PARTITION__", date(1582, 10, 4)),
    ("NULL", None),
)
Row = tuple[int, str | None, date | None]


@dataclass
class Source:
    """An Iceberg table whose spec evolved, with the rows of each of its snapshots."""

    home: Path
    states: list[Counter[Row]] = field(default_factory=list)
    written: int = 0

    def __post_init__(self) -> None:
        from pyiceberg.schema import Schema
        from pyiceberg.types import DateType, LongType, NestedField, StringType

        from tests.foreign_files import Foreign

        columns = NestedField(1, "id", LongType()), NestedField(2, "k", StringType()), NestedField(3, "d", DateType())
        names = [{"field-id": each.field_id, "names": [each.name]} for each in columns]
        self.table = Foreign(self.home, Schema(*columns), names=names)

    def rows(self, *parts: tuple[str | None, date | None]) -> list[Row]:
        made = [(self.written + number, *part) for number, part in enumerate(each for each in parts for _ in range(9))]
        self.written += len(made)
        return made

    def add(self, *files: list[Row], suffix: str = "orc", spec: bool = True) -> None:
        """A snapshot of files: ORC is what no lake takes as it is."""
        from tests.file_tables import save

        given = []
        for number, rows in enumerate(files):
            path = save(self.home / f"{len(self.states)}-{number}.{suffix}", arrow(rows), {"id": 1, "k": 2, "d": 3})
            _, k, d = rows[0]
            given.append((path, len(rows), [k, None if d is None else (d - date(1970, 1, 1)).days] if spec else []))
        self.table.add(*given)
        self._state(row for rows in files for row in rows)

    def delete(self, *ids: int) -> None:
        """A snapshot of an equality delete."""
        from tests.file_tables import delete_equal, save

        path = save(self.home / "gone.parquet", pa.table({"id": pa.array(ids, pa.int64())}), {"id": 1})
        delete_equal(self.table, path, len(ids), [1])
        self.states.append(Counter({row: n for row, n in self.states[-1].items() if row[0] not in ids}))

    def _state(self, rows: Any) -> None:
        self.states.append((self.states[-1] if self.states else Counter()) + Counter(rows))


def arrow(rows: list[Row]) -> pa.Table:
    ids, k, d = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "k": pa.array(k, pa.string()), "d": pa.array(d, pa.date32())})


@pytest.mark.parametrize(
    ("rewrite", "backend"),
    [("always", ""), ("when-needed", "sqlite:"), pytest.param("always", "sqlite:", marks=pytest.mark.exhaustive)],
)
def test_they_live_on_as_the_lakes_own(rewrite: Any, backend: str, tmp_path: Path) -> None:
    from pyiceberg.transforms import DayTransform, IdentityTransform

    source, lake = Source(tmp_path / "source"), tmp_path / f"lake.{'sqlite' if backend else 'ducklake'}"

    def migrate() -> None:
        asked = bridge.Options(rename="main.t", rewrite=rewrite, ownership="adopt", data_path=f"{lake}.files")
        report = bridge.migrate(f"iceberg:{source.table.metadata}", f"ducklake:{backend}{lake}", asked)
        assert report.exit_code == 0 and not report.faults

    source.add(source.rows(*PARTS), spec=False)  # of no partition, and older than the lake's spec
    source.add(source.rows(PARTS[0]), spec=False)
    with source.table.table.update_spec() as evolving:
        evolving.add_field("k", IdentityTransform(), "k")
        evolving.add_field("d", DayTransform(), "d_day")
    source.add(*(source.rows(part) for part in PARTS), suffix="parquet")
    source.add(*(source.rows(part) for part in PARTS))
    migrate()
    source.add(*(source.rows(part) for part in PARTS))
    source.delete(3, 50, 60, 100, 190)
    migrate()

    in_place = 0 if rewrite == "always" else len(PARTS)
    files = lake_rows(
        lake,
        "SELECT f.path, f.partition_id IS NOT NULL, v.partition_key_index, v.partition_value, f.path_is_relative"
        " FROM ducklake_data_file f LEFT JOIN ducklake_file_partition_value v USING (data_file_id) ORDER BY 1, 3",
    )
    outside = {path for path, declared, _, _, relative in files if not relative and not declared}
    apart = {path for path, declared, *_, relative in files if relative and not declared}
    assert len(outside) == in_place and len(apart) == 2
    values: dict[str, list[str | None]] = {}
    for path, declared, _, value, _ in files:
        if declared:
            values.setdefault(path, []).append(value)
    made = [(path.rpartition("/")[0], held) for path, held in values.items()]
    parts = [(quote_of(k, d), [k, *dates(d)]) for k, d in PARTS]
    assert sorted(made, key=str) == sorted(parts * (3 - bool(in_place)), key=str)

    snapshots = [id_ for (id_,) in lake_rows(lake, "SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")[1:]]
    assert len(snapshots) == len(source.states)
    with opened(lake) as connection:
        for snapshot, state in zip(snapshots, source.states, strict=True):
            found = connection.execute(f"SELECT id, k, d FROM t AT (VERSION => {snapshot})").fetchall()
            assert Counter(found) == state
            for k, d in PARTS:
                query = f"SELECT count(*) FROM t AT (VERSION => {snapshot}) WHERE k IS NOT DISTINCT FROM ?"
                [(count,)] = connection.execute(f"{query} AND d IS NOT DISTINCT FROM ?", [k, d]).fetchall()
                assert count == sum(n for row, n in state.items() if row[1:] == (k, d))
        plan = connection.execute("EXPLAIN ANALYZE SELECT * FROM t WHERE d = DATE '1582-10-04'").fetchall()
        [read] = re.findall(r"Total Files Read: (\d+)", plan[0][1])
        # of each snapshot one, and those in place, of which the manifest says nothing
        assert int(read) == (4 + in_place - 1 if in_place else 4)

    grown = [
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        "INSERT INTO lake.t SELECT id + 1000, k, d FROM lake.t WHERE id >= 99 AND id < 144",
        "CALL ducklake_merge_adjacent_files('lake')",
    ]
    assert use(f"{backend}{lake}", grown) == [""] * len(grown)
    held = lake_rows(
        lake,
        "SELECT v.partition_value FROM ducklake_data_file f JOIN ducklake_file_partition_value v USING (data_file_id)"
        " WHERE f.end_snapshot IS NULL AND v.partition_key_index = 0",
    )
    # those of the first have deleted rows, which keeps them apart
    assert Counter(k for (k,) in held if k != PARTS[0][0]) == {k: 1 for k, _ in PARTS[1:]}
    changed = Counter(source.states[-1])
    changed.update({(row[0] + 1000, *row[1:]): n for row, n in changed.items() if 99 <= row[0] < 144})
    maintained = [
        "DELETE FROM lake.t WHERE id % 9 = 0",
        "UPDATE lake.t SET d = DATE '1582-10-04' WHERE id % 9 = 1 AND k = 'NULL'",
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
        "ALTER TABLE lake.t ADD COLUMN more INTEGER DEFAULT 7",
        "INSERT INTO lake.t SELECT id + 5000, k, d, 8 FROM lake.t WHERE id >= 99 AND id < 144",
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
        "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
    ]
    assert use(f"{backend}{lake}", maintained) == [""] * len(maintained)
    last: Counter[tuple[Any, ...]] = Counter()
    for (id_, k, d), n in changed.items():
        if id_ % 9:
            last[id_, k, date(1582, 10, 4) if id_ % 9 == 1 and k == "NULL" else d, 7] += n
    last.update({(row[0] + 5000, *row[1:3], 8): n for row, n in last.items() if 99 <= row[0] < 144})
    with opened(lake) as connection:
        assert Counter(connection.execute("FROM t").fetchall()) == last


@pytest.mark.parametrize("hive", [True, False])
def test_a_later_run_goes_on_in_the_lakes_own_way(hive: bool, tmp_path: Path) -> None:
    """The column is renamed, and the lake says itself how it wants its files."""
    from pyiceberg.transforms import IdentityTransform

    source, lake = Source(tmp_path / "source"), tmp_path / "lake.ducklake"
    with source.table.table.update_spec() as evolving:
        evolving.add_field("k", IdentityTransform(), "k")
    asked = bridge.Options(rename="main.t", verify="metadata")
    said = [f"CALL lake.set_option('hive_file_pattern', {hive})"]
    said.append("CALL lake.set_option('parquet_compression', 'zstd', schema => 'main')")
    assert use(str(lake), said) == ["", ""]
    parts = PARTS[0], PARTS[1]
    source.add(*(source.rows(part) for part in parts))
    bridge.migrate(f"iceberg:{source.table.metadata}", f"ducklake:{lake}", asked)
    assert use(str(lake), ["CALL lake.set_option('parquet_compression', 'gzip', table_name => 't')"]) == [""]
    source.add(*(source.rows(part) for part in parts))
    with source.table.table.update_schema() as renaming:
        renaming.rename_column("k", "new name")
    source.add(*(source.rows(part) for part in parts))
    report = bridge.migrate(f"iceberg:{source.table.metadata}", f"ducklake:{lake}", asked)
    assert report.exit_code == 0 and not report.faults
    files = lake_rows(
        lake, "SELECT path, begin_snapshot, partition_id IS NOT NULL FROM ducklake_data_file ORDER BY 2, 1"
    )
    directories = [path.rpartition("/")[0] for path, *_ in files]
    names = [f"{key}={quote(k or '', safe='')}" if hive else "" for key in ("k", "new%20name") for k, _ in parts]
    assert Counter(directories) == Counter([*names, *names[2:]])
    # under the older name the lake has its own already, in other directories: what is written now stays without
    first = files[0][1]
    assert [declared for _, begin, declared in files if begin != first + 1] == [True] * 4
    assert [declared for _, begin, declared in files if begin == first + 1] == [False] * 2
    codecs = {
        begin: pq.read_metadata(f"{lake}.files/main/t/{path}").row_group(0).column(0).compression
        for path, begin, _ in files
    }
    assert list(codecs.values()) == ["ZSTD", "GZIP", "GZIP"]
    grown = [
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        "INSERT INTO lake.t FROM lake.t",
        "CALL ducklake_merge_adjacent_files('lake')",
    ]
    assert use(str(lake), grown) == [""] * 3
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL") < [(10,)]
    with opened(lake) as connection:
        found = Counter(connection.execute("FROM t").fetchall())
    assert found == Counter({row: 2 * n for row, n in source.states[-1].items()})


def dates(d: date | None) -> list[str | None]:
    return [None] * 3 if d is None else [str(d.year), str(d.month), str(d.day)]


def quote_of(k: str | None, d: date | None) -> str:
    """The directory as DuckDB names it."""
    keys = zip(("k", "year", "month", "day"), (k, *dates(d)), strict=True)
    return "/".join(
        f"{key}={'__HIVE_DEFAULT_PARTITION__' if value is None else quote(value, safe='')}" for key, value in keys
    )
