"""Deleted rows: noted in the catalog or in delete files, over the whole history, whatever the source did with them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

import bridge
from converters.deletes.vectors import decode
from converters.deletes.windows import settle
from tests.judge import Subject, Version, judge
from tests.support import Case, case, lake_rows, opened, subject, use
from tests.test_bad_input import refused
from tests.test_ownership import copied
from tests.test_runs import metadata_files, options

MERGED = ["v2_mor_compact", "v2_mor_dropfile", "v2_mor_partgran_twice", "v2_mor_update_merge", "v3_dv_twice"]
JOINED = ("v2_mor_compact", "v3_dv_twice")  # the others in exhaustive runs


def migrate(found: Case, lake: Path, metadata: Path | None = None, **more: Any) -> bridge.Report:
    return bridge.migrate(f"iceberg:{metadata or found.metadata}", f"ducklake:{lake}", options(found, **more))


# -- where they are kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *(MERGED[1], "v3_dv_multi"),
        *(
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in (MERGED[0], *MERGED[2:], "v2_mor", "v3_upgraded")
        ),
    ],
)
def test_delete_files_answer_as_rows_do(kind: str, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    migrate(found, lake, inline_deletes=0, ownership="adopt")
    assert lake_rows(lake, "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE '%inlined_delete%'") == [(0,)]
    assert lake_rows(lake, "SELECT count(*) > 0 FROM ducklake_delete_file") == [(True,)]
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", compact=True, filters=4) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        *(pytest.param(kind, 1, marks=[pytest.mark.exhaustive] * (kind not in JOINED)) for kind in MERGED),
        *(pytest.param(kind, limit, marks=pytest.mark.exhaustive) for kind in MERGED for limit in (0, 2_000_000)),
    ],
)
def test_deletes_of_later_runs_join_the_earlier_ones(kind: str, limit: int, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    for metadata in metadata_files(found):
        migrate(found, lake, metadata, inline_deletes=limit)
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []
    live = "SELECT data_file_id FROM ducklake_delete_file WHERE end_snapshot IS NULL"
    assert lake_rows(lake, f"SELECT count(*) = count(DISTINCT data_file_id) FROM ({live})") == [(True,)]
    scheduled = lake_rows(lake, "SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion")
    assert all(relative and path.endswith("-delete.parquet") for path, relative in scheduled)


def test_a_failed_run_leaves_no_delete_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from converters.ducklake.catalog import commit

    def fail(*_: object) -> None:
        raise bridge.Conflict("somebody was faster")

    found, lake = case("v2_mor_compact"), tmp_path / "lake.ducklake"
    monkeypatch.setattr(commit, "_bookmark", fail)
    with pytest.raises(bridge.Conflict):
        migrate(found, lake, inline_deletes=0)
    assert not lake.exists() and list(tmp_path.rglob("*.parquet*")) == []
    monkeypatch.undo()
    migrate(found, lake, inline_deletes=0)
    assert list(tmp_path.rglob("*-delete.parquet"))


def test_the_changes_of_a_file_that_ends_leave_out_what_was_deleted_before(tmp_path: Path) -> None:
    """DuckDB 1.5.5 forgets rows of the inlined-delete table when it lists the changes of a file that ended."""
    found, lake = case("v2_mor_dropfile"), tmp_path / "lake.ducklake"
    migrate(found, lake)
    ended = "SELECT data_file_id FROM ducklake_data_file WHERE end_snapshot IS NOT NULL"
    assert lake_rows(lake, f"SELECT count(*) FROM ducklake_delete_file WHERE data_file_id IN ({ended})") == [(1,)]
    assert lake_rows(lake, f"SELECT count(*) FROM ducklake_inlined_delete_1 WHERE file_id IN ({ended})") == [(0,)]
    wanted = (
        "SELECT list(id ORDER BY id) = [3, 5, 7, 9] FROM lake.table_changes('t', 3, 3) WHERE change_type = 'delete'"
    )
    assert use(str(lake), [f"SELECT CASE WHEN ({wanted}) THEN 1 ELSE error('other changes') END"]) == [""]


_CHANGED = "SELECT change_type, snapshot_id, rowid, id, v FROM ducklake_table_changes('lake', 'main', 't', {0}, {0})"
_KINDS = "SELECT DISTINCT change_type FROM ducklake_table_changes('lake', 'main', '{}', {}, {}) ORDER BY 1"


@pytest.mark.slow
def test_a_compaction_is_the_same_rows_with_the_same_ids_twice(tmp_path: Path) -> None:
    """A file that stays where it is holds the source's last-updated numbers, by which DuckDB 1.5.5 says when its rows
    came and went: it pairs them with what they were only where that file holds the same numbers."""
    found, lake = case("v3_lineage"), tmp_path / "lake.ducklake"
    migrate(found, lake)
    [(compacted,)] = lake_rows(
        lake, "SELECT snapshot_id FROM ducklake_snapshot_changes WHERE commit_message LIKE 'replace of %'"
    )
    with opened(lake) as connection:
        rows = connection.execute(_CHANGED.format(compacted)).fetchall()
        updated = connection.execute(_CHANGED.format(compacted - 1)).fetchall()
        before, after = (
            connection.execute(f"SELECT rowid, id, v FROM t AT (VERSION => {at}) ORDER BY 1").fetchall()
            for at in (compacted - 1, compacted)
        )
    assert before == after and len(before) == 10 and compacted == 4
    assert sorted(row[2:] for row in rows if row[0] in ("delete", "update_preimage")) == before
    assert sorted(row[2:] for row in rows if row[0] in ("insert", "update_postimage")) == before
    assert {row[0] for row in rows if row[2] in (2, 6)} == {"insert", "delete"}  # the old file has no number for them
    assert {row[0] for row in rows if row[2] not in (2, 6)} == {"update_preimage", "update_postimage"}
    assert {row[:2] for row in updated} == {("delete", 3), ("insert", 1), ("insert", 2), ("insert", None)}


@pytest.mark.slow
def test_duckdb_hides_only_what_it_takes_out_of_the_catalog(tmp_path: Path) -> None:
    """Why a compaction of the source is not hidden. DuckDB 1.5.5 itself shows rows that its rewrite keeps as updates to
    what they were. Of a merge it shows nothing, because the new file stands for the past in the place of files that are
    forgotten: it tells of each row since which snapshot of the lake it is there. The source's numbers do not."""
    lake, count = tmp_path / "own.ducklake", "SELECT count(*) FROM t AT (VERSION => {})"
    steps = [
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        *("CREATE TABLE lake.a (id INT)", "INSERT INTO lake.a VALUES (1)", "INSERT INTO lake.a VALUES (2)"),
        "CALL ducklake_merge_adjacent_files('lake', 'a')",
        *("CREATE TABLE lake.b AS SELECT i AS id FROM range(4) r(i)", "DELETE FROM lake.b WHERE id = 1"),
        "CALL ducklake_rewrite_data_files('lake', 'b', delete_threshold => 0.0)",
    ]
    assert use(str(lake), steps) == [""] * len(steps)
    at = dict(
        lake_rows(
            lake,
            "SELECT string_split(changes_made, ':')[1], max(snapshot_id) FROM ducklake_snapshot_changes GROUP BY 1",
        )
    )
    with opened(lake) as connection:
        merged, rewritten = at["merge_adjacent"], at["rewrite_delete"]
        assert connection.execute(_KINDS.format("a", merged, merged)).fetchall() == []
        shown = connection.execute(_KINDS.format("b", rewritten, rewritten)).fetchall()
        assert shown == [("update_postimage",), ("update_preimage",)]
    migrate(case("v3_lineage"), lake)
    noted = "SELECT data_file_id, begin_snapshot, end_snapshot, path_is_relative FROM ducklake_data_file"
    files = [each for each in lake_rows(lake, f"{noted} ORDER BY 2") if not each[3]]
    first = files[0][1]
    [(whole, compacted)] = [(id_, begin) for id_, begin, end, _ in files if end is None and begin == first + 3]
    with opened(lake) as connection:
        assert connection.execute(count.format(first)).fetchall() == [(5,)]
    with duckdb.connect(str(lake)) as catalog:  # as a merge would leave it
        catalog.execute("DELETE FROM ducklake_data_file WHERE end_snapshot <= ? AND NOT path_is_relative", [compacted])
        merged_so = "UPDATE ducklake_data_file SET begin_snapshot = ?, partial_max = ? WHERE data_file_id = ?"
        catalog.execute(merged_so, [first, compacted, whole])
    with opened(lake) as connection:
        assert connection.execute(_KINDS.format("t", compacted, compacted)).fetchall() == []
        assert connection.execute(count.format(first)).fetchall() == [(10,)]


def test_rows_without_a_stored_row_id_are_updated_and_deleted_one_by_one(tmp_path: Path) -> None:
    """As Spark's MERGE writes those that it inserts. DuckDB 1.5.5 would inline them all under the row id 0."""
    found, lake = copied("v3_lineage", tmp_path / "source"), tmp_path / "lake.ducklake"
    migrate(found, lake, metadata_files(found)[-2])
    [(path,)] = lake_rows(lake, "SELECT path FROM ducklake_data_file WHERE end_snapshot IS NULL")
    lake.unlink()
    rows = pq.read_table(path)
    place, stored = rows.column_names.index("_row_id"), rows.column("_row_id").to_pylist()
    kept = pa.array([None if each in (3, 4, 5) else each for each in stored], pa.int64())
    pq.write_table(rows.set_column(place, rows.schema.field(place), kept), path)
    migrate(found, lake, metadata_files(found)[-2])
    migrate(found, lake)
    steps = [
        "UPDATE lake.t SET v = 'one' WHERE id IN (0, 3, 4, 5)",
        "DELETE FROM lake.t WHERE id = 3",
        "UPDATE lake.t SET v = 'two' WHERE id = 4",
        "DELETE FROM lake.t WHERE id = 0",
        "INSERT INTO lake.t VALUES (20, 'new')",
        "UPDATE lake.t SET v = 'three' WHERE id = 20",
    ]
    assert use(str(lake), steps, "DATA_INLINING_ROW_LIMIT 100") == [""] * len(steps)
    with opened(lake) as connection:
        left = dict(connection.execute("SELECT id, v FROM t ORDER BY 1").fetchall())
    assert list(left) == [1, 2, *range(4, 14), 20]
    assert (left[4], left[5], left[20]) == ("two", "one", "three")


# -- what sources do


def rewritten(found: Case, snapshot: dict[str, Any], keep: Callable[[dict[str, Any]], bool]) -> None:
    """Leave manifests out of a snapshot's manifest list."""
    [path] = found.home.rglob(snapshot["manifest-list"].rsplit("/", 1)[1])
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, metadata, records = reader.writer_schema, dict(reader.metadata), list(reader)
    metadata = {key: value for key, value in metadata.items() if not key.startswith("avro.")}
    with path.open("wb") as file:
        fastavro.writer(file, schema, [each for each in records if keep(each)], metadata=metadata)


def undone(tmp_path: Path) -> tuple[Case, list[pa.Table]]:
    """A table whose second snapshot deletes rows, and whose third takes that back; and the rows of each."""
    found = copied("v2_mor_twice", tmp_path / "source")
    stored = json.loads(found.metadata.read_text())
    third = stored["snapshots"][-1]
    rewritten(found, third, lambda manifest: manifest["content"] == 0)
    third["summary"] = {"operation": "overwrite", "total-records": third["summary"]["total-records"]}
    found.metadata.write_text(json.dumps(stored))
    held = [found.rows(each["rows"]) for each in found.facts["snapshots"][-3:]]
    return found, [*held[:2], held[0]]


@pytest.mark.slow
def test_rows_that_come_back_are_there_again(tmp_path: Path) -> None:
    found, states = undone(tmp_path)
    lake = tmp_path / "lake.ducklake"
    report = migrate(found, lake)
    assert "deletes-undone" in {each.code.text for each in report.plan.tables[0].findings}
    snapshots = [id_ for (id_,) in lake_rows(lake, "SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")][-3:]
    asked = tuple(Version(id_, None, rows) for id_, rows in zip(snapshots, states, strict=True))
    assert judge(str(lake), [Subject("main.t", asked)], scratch=tmp_path / "judge", filters=4) == []


@pytest.mark.slow
def test_rows_come_back_in_a_later_run_too(tmp_path: Path) -> None:
    found, states = undone(tmp_path)
    lake = tmp_path / "lake.ducklake"
    for metadata in metadata_files(found):
        migrate(found, lake, metadata)
    snapshots = [id_ for (id_,) in lake_rows(lake, "SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")][-3:]
    asked = tuple(Version(id_, None, rows) for id_, rows in zip(snapshots, states, strict=True))
    assert judge(str(lake), [Subject("main.t", asked)], scratch=tmp_path / "judge", change=False, filters=4) == []


@pytest.mark.slow
def test_a_file_that_came_back_is_adopted_only_as_it_is_now(tmp_path: Path) -> None:
    found, states = undone(tmp_path)
    lake, shared = tmp_path / "lake.ducklake", tmp_path / "shared.ducklake"
    report = migrate(found, lake, ownership="adopt")
    said = {each.code.text: each.detail for each in report.plan.tables[0].findings}
    assert "left the table and came back" in said["history-trimmed"]
    asked = Subject("main.t", (Version(None, None, states[-1]),))
    assert judge(str(lake), [asked], scratch=tmp_path / "judge", change=False, filters=4) == []
    migrate(found, shared)
    with pytest.raises(bridge.Blocked, match="came back"):
        bridge.adopt(f"ducklake:{shared}", ["t"])


def entries(found: Case, change: Callable[[dict[str, Any]], object]) -> None:
    """Change every entry of every delete manifest."""
    for path in found.home.rglob("*-m*.avro"):
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            schema, metadata, records = reader.writer_schema, dict(reader.metadata), list(reader)
        if metadata.get("content") == "deletes":
            for record in records:
                change(record["data_file"])
            metadata = {key: value for key, value in metadata.items() if not key.startswith("avro.")}
            with path.open("wb") as file:
                fastavro.writer(file, schema, records, metadata=metadata)


def delete_files(found: Case) -> list[Path]:
    return [path for path in found.home.rglob("*-deletes.*") if path.suffix in (".parquet", ".puffin")]


def corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if path.suffix == ".parquet" else 20] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


DAMAGES: dict[str, tuple[str, Callable[[Case], object]]] = {
    "gone": ("file-missing", lambda found: [path.unlink() for path in delete_files(found)]),
    "empty": ("file-unreadable", lambda found: [path.write_bytes(b"") for path in delete_files(found)]),
    "cut": (
        "file-unreadable",
        lambda found: [path.write_bytes(path.read_bytes()[:20]) for path in delete_files(found)],
    ),
    "another count": ("file-unreadable", lambda found: entries(found, lambda file: file.update(record_count=77))),
    "encrypted": ("table-encrypted", lambda found: entries(found, lambda file: file.update(key_metadata=b"key"))),
    "elsewhere": (
        "path-scheme",
        lambda found: entries(found, lambda file: file.update(file_path="hdfs://there" + file["file_path"])),
    ),
    "unknown format": ("file-unreadable", lambda found: entries(found, lambda file: file.update(file_format="LANCE"))),
}


@pytest.mark.parametrize("kind", ["v2_mor_partgran", "v3_dv_multi"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_deletes_that_cannot_be_read_block_the_table(kind: str, damage: str, tmp_path: Path) -> None:
    found = copied(kind, tmp_path / "source")
    code, change = DAMAGES[damage]
    change(found)
    assert refused(found, tmp_path / "lake.ducklake") == code


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.update(content_offset=None),
        lambda file: file.update(content_offset=file["content_offset"] + 1),
        lambda file: file.update(content_offset=1 << 40),
        lambda file: file.update(content_offset=-4),
        lambda file: file.update(content_size_in_bytes=file["content_size_in_bytes"] - 1),
        lambda file: file.update(content_size_in_bytes=3),
        lambda file: file.update(referenced_data_file=None),
    ],
)
def test_vectors_that_are_not_where_they_are_said_to_be_block(change: Any, tmp_path: Path) -> None:
    found = copied("v3_dv_multi", tmp_path / "source")
    entries(found, change)
    assert refused(found, tmp_path / "lake.ducklake") == "file-unreadable"


def test_a_damaged_vector_is_never_taken_for_fewer_deletes(tmp_path: Path) -> None:
    found = copied("v3_dv_multi", tmp_path / "source")
    for path in delete_files(found):
        corrupt(path)
    assert refused(found, tmp_path / "lake.ducklake") == "file-unreadable"


def test_deletes_that_only_history_needs_cost_that_history(tmp_path: Path) -> None:
    found, lake = copied("v2_mor_compact", tmp_path / "source"), tmp_path / "lake.ducklake"
    for path in delete_files(found):
        path.unlink()
    report = migrate(found, lake)
    said = {each.code.text: each.detail for each in report.plan.tables[0].findings}
    assert report.exit_code == 0 and "delete files" in said["history-trimmed"]
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []


@pytest.mark.slow
def test_dangling_deletes_name_nothing(tmp_path: Path) -> None:
    """Positions beyond the file and files that the table has not are no rows."""
    found = copied("v2_mor_partgran", tmp_path / "source")
    [path] = delete_files(found)
    rows = pq.read_table(path)
    stored = rows.column("file_path").to_pylist()
    more = [*stored, stored[0], stored[0].replace(".parquet", "-none.parquet")]
    positions = [*rows.column("pos").to_pylist(), 1 << 40, 3]
    pq.write_table(pa.table([more, positions], schema=rows.schema), path)
    entries(found, lambda file: file.update(record_count=len(more), file_size_in_bytes=path.stat().st_size))
    lake = tmp_path / "lake.ducklake"
    assert migrate(found, lake).exit_code == 0
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []


# -- laws


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 7), st.integers(1, 4)), max_size=14),
)
def test_settled_positions_are_deleted_exactly_when_something_deletes_them(
    lives: list[tuple[int, int]], wanted: list[tuple[int, int, int, int]]
) -> None:
    last = 8
    lives = sorted((begin, min(begin + length, last)) for begin, length in lives)
    hits = []
    for file, position, begin, length in wanted:
        if file < len(lives):
            low, high = max(begin, lives[file][0]), min(begin + length, lives[file][1])
            if low < high:
                hits.append((file, position, low, None if high == last else high))
    frame = pl.DataFrame(
        [(number, begin, None if end == last else end) for number, (begin, end) in enumerate(lives)],
        schema={"file": pl.Int64, "begin": pl.Int64, "end": pl.Int64},
        orient="row",
    ).with_columns(name=pl.col("file"))
    schema = {"file": pl.Int64, "position": pl.Int64, "begin": pl.Int64, "end": pl.Int64}
    files, deleted = settle(frame, pl.DataFrame(hits, schema=schema, orient="row"))
    assert files["file"].to_list() == list(range(len(files)))
    assert files["begin"].is_sorted() and deleted.equals(deleted.unique(["file", "position"]).sort("file", "position"))
    for at in range(last):
        live = files.filter((pl.col("begin") <= at) & (pl.col("end").is_null() | (pl.col("end") > at)))
        assert sorted(live["name"]) == [name for name, (begin, end) in enumerate(lives) if begin <= at < end]
        gone = deleted.filter(pl.col("begin") <= at).join(live, on="file", suffix="_file")
        said = {(file, position) for file, position, low, high in hits if low <= at < (high or last)}
        assert set(gone.select("name", "position").rows()) == said


def blob(positions: list[int]) -> bytes:
    content = bytes.fromhex("d1d33964") + BitMap64(positions).serialize()
    return len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")


@given(st.sets(st.integers(0, 1 << 40), max_size=50))
def test_vectors_give_back_their_positions(positions: set[int]) -> None:
    assert decode(blob(sorted(positions)), len(positions)).tolist() == sorted(positions)


@given(st.sets(st.integers(0, 70_000), min_size=1, max_size=20), st.data())
def test_changed_vectors_are_refused(positions: set[int], data: st.DataObject) -> None:
    whole = bytearray(blob(sorted(positions)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="vector"):
        decode(bytes(whole), len(positions))


def test_a_vector_that_claims_more_positions_than_told_is_not_unfolded() -> None:
    vast = BitMap64()
    vast.add_range(0, 1 << 35)
    vast.run_optimize()
    content = bytes.fromhex("d1d33964") + vast.serialize()
    whole = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    with pytest.raises(ValueError, match="5 expected"):
        decode(whole, 5)


def test_positions_come_as_integers() -> None:
    assert decode(blob([0, 7]), 2).dtype == np.int64
