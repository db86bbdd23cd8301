"""A lake is followed by what changed: reading a part and reading everything lead to the same published table."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import StaticTable

from bridge.errors import Conflict
from bridge.model.options import Options
from bridge.ports import Silent
from converters.ducklake import source_files
from converters.ducklake.catalog import file_rows
from converters.ducklake.reader import open_source
from converters.iceberg.avro import read_records
from converters.iceberg.publish import measures
from converters.iceberg.publish.asking import answers
from converters.iceberg.publish.entries import EXISTING, Encoding, Entry
from tests.iceberg_judge import judge_iceberg
from tests.lake_parts import PARTS, partial_readings
from tests.lake_steps import life
from tests.support import lake_rows, use
from tests.test_publish import Lake, current, snapshots

__all__: list[str] = []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_what_changed_after_any_commit_is_read_as_with_everything(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed == 1:  # more files than are named in a query
        monkeypatch.setattr(file_rows, "_NAMED", 2)
    attach = f"sqlite:{tmp_path / 'lake.sqlite'}" if seed % 2 else str(tmp_path / "lake.ducklake")
    # what makes a partial reading impossible is left to the tests below
    rare = ("CALL ducklake", "ALTER", "COMMENT", "DROP")
    every = list(life(100 + seed, 80))
    use(attach, every[:40] + [each for each in every[40:] if not each.startswith(rare)] + list(PARTS))
    assert partial_readings(attach) > 15


PLAIN = ("CREATE TABLE t(id INTEGER, v VARCHAR)", "INSERT INTO t SELECT i, 'v' || i FROM range(60) r(i)")
MORE = "INSERT INTO {t} SELECT i, 'w' FROM range(100, 130) r(i)"
INLINED = "CALL lake.set_option('data_inlining_row_limit', 10, table_name => '{t}')"
AFTER: dict[str, tuple[str, ...]] = {
    "insert": (MORE,),
    "delete": ("DELETE FROM {t} WHERE id = 3", "DELETE FROM {t} WHERE id = 4"),
    "all": ("DELETE FROM {t}",),
    "inlined": (
        INLINED,
        "INSERT INTO {t} VALUES (200, 'x'), (201, 'y')",
        "DELETE FROM {t} WHERE id IN (200, 5)",
        "UPDATE {t} SET v = 'z' WHERE id IN (201, 6)",
    ),
}
WHOLE: dict[str, tuple[str, ...]] = {
    "merge": (MORE, "CALL ducklake_merge_adjacent_files('lake', '{t}')"),
    "rewrite": (
        "DELETE FROM {t} WHERE id < 30",
        "CALL ducklake_rewrite_data_files('lake', '{t}', delete_threshold => 0)",
    ),
    "flush": (
        INLINED,
        "INSERT INTO {t} VALUES (200, 'x')",
        "CALL ducklake_flush_inlined_data('lake', table_name => '{t}')",
    ),
    "column": ("ALTER TABLE {t} ADD COLUMN n INTEGER DEFAULT 5",),
    "type": ("ALTER TABLE {t} ALTER id TYPE BIGINT",),
    "layout": ("ALTER TABLE {t} SET PARTITIONED BY (id)",),
    "renamed": ("ALTER TABLE {t} RENAME TO other", "ALTER TABLE other RENAME TO {t}"),
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def read_after(lake: Lake, since: int = 1, name: str = "t", **more: Any) -> int | None:
    """Up to which commit nothing was read, if so."""
    source = open_source(str(lake.file), Options(**more))
    [table] = [each for each in source.tables() if each.name == name]
    return source.open(table).files(Silent(), since).since


@pytest.mark.slow
def test_maintenance_and_other_definitions_are_read_whole(lake: Lake) -> None:
    every = {f"of_{name}": steps for name, steps in {**AFTER, **WHOLE}.items()}
    part = {f"of_{name}" for name in AFTER}
    lake.do(*(each.replace(" t", f" {name}", 1).replace("INTO t", f"INTO {name}") for name in every for each in PLAIN))
    lake.do(*(each.replace("{t}", name) for name, steps in every.items() for each in steps))
    found = {name: read_after(lake, name=name) for name in every}
    assert found == {name: 1 if name in part else None for name in every}
    assert partial_readings(str(lake.file)) >= len(AFTER)
    [(newest,)] = lake_rows(lake.file, "SELECT max(snapshot_id) FROM ducklake_snapshot")
    lake.do(f"CALL ducklake_expire_snapshots('lake', versions => [{newest - 1}])")
    assert {read_after(lake, name=name) for name in every} == {None}, "an expired snapshot may have done anything"


@pytest.mark.slow
def test_a_catalog_that_does_not_tell_what_was_done_is_read_whole(lake: Lake, tmp_path: Path) -> None:
    lake.do(*PLAIN, "INSERT INTO t SELECT i, 'w' FROM range(100, 130) r(i)")
    assert read_after(lake) == 1
    assert read_after(lake, at="2") is None
    for broken in (
        "UPDATE ducklake_snapshot_changes SET changes_made = NULL WHERE snapshot_id = 3",
        "DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = 3",
        "UPDATE ducklake_snapshot_changes SET changes_made = 'something_new:1' WHERE snapshot_id = 3",
        # a file of the past that was registered later
        "UPDATE ducklake_data_file SET begin_snapshot = 2 WHERE begin_snapshot = 3",
        "UPDATE ducklake_snapshot SET next_file_id = NULL WHERE snapshot_id = 2",
    ):
        kept = tmp_path / "kept"
        shutil.copyfile(lake.file, kept)
        with duckdb.connect(str(lake.file)) as catalog:
            catalog.execute(broken)
        assert read_after(lake) is None, broken
        shutil.copyfile(kept, lake.file)
    path = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"id": pa.array(range(9), pa.int32()), "v": ["x"] * 9}), path)
    lake.do(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    assert read_after(lake) is None, "a new name mapping has to fit all files"
    lake.do("INSERT INTO t SELECT i, 'w' FROM range(130, 160) r(i)", "DELETE FROM t WHERE v = 'x' AND id = 3")
    assert read_after(lake, 3) == 3


def steps(seed: int) -> Iterator[tuple[str, ...]]:
    """A walk without rows in the catalog, so that no file has to be rewritten."""
    dice, made = random.Random(seed), 0
    yield ("CREATE TABLE t(id INTEGER, day DATE, v VARCHAR)",)
    columns = "i::INTEGER, DATE '2024-01-01' + (i // 40)::INTEGER, 'v' || i"
    for _ in range(14):
        low = dice.randint(0, max(made, 1))
        match dice.choices(
            ["insert", "delete", "update", "all", "merge", "rewrite", "layout", "comment", "both", "expire"],
            [8, 8, 4, 3, 1, 1, 2, 1, 3, 1],
        )[0]:
            case "insert":
                count = dice.choice([1, 12, 60])
                yield (f"INSERT INTO t SELECT {columns} FROM range({made}, {made + count}) r(i)",)
                made += count
            case "delete":
                yield (f"DELETE FROM t WHERE id = {low}", f"DELETE FROM t WHERE id = {low + 1}")
            case "update":
                yield (f"UPDATE t SET v = 'new' WHERE id BETWEEN {low} AND {low + 5}",)
            case "all":
                yield (f"DELETE FROM t WHERE id BETWEEN {low} AND {low + 50}",)
            case "merge":
                yield ("CALL ducklake_merge_adjacent_files('lake')",)
            case "rewrite":
                yield ("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.2)",)
            case "layout":
                yield (f"ALTER TABLE t {dice.choice(['SET PARTITIONED BY (day)', 'RESET PARTITIONED BY'])}",)
            case "comment":
                yield (f"COMMENT ON TABLE t IS 'at {low}'",)
            case "both":
                insert = f"INSERT INTO t SELECT {columns} FROM range({made}, {made + 20}) r(i)"
                yield ("BEGIN", insert, f"DELETE FROM t WHERE id BETWEEN {low} AND {low + 3}", "COMMIT")
                made += 20
            case _:
                yield ("CALL ducklake_expire_snapshots('lake', versions => [3])",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "version", "engines"),
    [
        (2, 3, ["pyiceberg", "duckdb"]),
        pytest.param(1, 2, ["pyiceberg", "duckdb"], marks=pytest.mark.exhaustive),
        *(pytest.param(seed, None, ["pyiceberg", "duckdb"], marks=pytest.mark.exhaustive) for seed in range(3, 9)),
    ],
)
def test_a_walk_that_is_followed_step_by_step(
    seed: int, version: Any, engines: list[str], lake: Lake, tmp_path: Path
) -> None:
    dice, followed = random.Random(seed), []
    for each in steps(seed):
        lake.do(*each)
        if dice.random() < 0.7:
            report = lake.publish(format_version=version)
            assert report.exit_code == 0 and not report.faults, (each, report.faults)
            followed.append(report.plan.tables[0].data)
    assert lake.publish(format_version=version).exit_code == 0
    assert sum(each is not None and each.since is not None for each in followed) > 3
    assert judge_iceberg([lake.expected()], engines, tmp_path / "judge") == []


def manifests(table: Path, content: int) -> list[Path]:
    """The manifests of data or delete files that the newest snapshot lists."""
    _, metadata = current(table)
    now = next(each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"])
    listed = read_records(Path(now["manifest-list"]).read_bytes())
    return [Path(each["manifest_path"]) for each in listed if each["content"] == content]


def listed(table: Path) -> dict[str, dict[str, Any]]:
    """What the newest snapshot says of each data file."""
    entries = (each for path in manifests(table, 0) for each in read_records(path.read_bytes()))
    return {each["data_file"]["file_path"]: each["data_file"] for each in entries}


@pytest.mark.slow
def test_manifests_that_a_change_does_not_concern_are_not_read(lake: Lake, tmp_path: Path) -> None:
    lake.do("CREATE TABLE t(id INTEGER)", *(f"INSERT INTO t FROM range({each}, {each + 20})" for each in (0, 100, 200)))
    lake.do("DELETE FROM t WHERE id = 1", "DELETE FROM t WHERE id = 101")
    assert lake.publish(verify="none").exit_code == 0
    table = lake.warehouse / "main/t"
    data, deletes = manifests(table, 0), manifests(table, 1)
    assert (len(data), len(deletes)) == (3, 2)
    kept = {path: path.read_bytes() for path in (*data, *deletes)}
    for path in kept:
        path.write_bytes(b"not to be read")
    lake.do("INSERT INTO t FROM range(300, 320)")
    assert lake.publish(verify="none").exit_code == 0
    for path in deletes:  # which of them is of the file is not known
        path.write_bytes(kept[path])
    lake.do("DELETE FROM t WHERE id = 2")
    assert lake.publish(verify="none").exit_code == 0
    assert set(data) < set(manifests(table, 0))
    assert len(set(deletes) & set(manifests(table, 1))) == 1
    for path in data:
        path.write_bytes(kept[path])
    lake.do("DELETE FROM t WHERE id BETWEEN 100 AND 120")
    assert lake.publish().exit_code == 0
    assert len(set(data) & set(manifests(table, 0))) == 2
    assert judge_iceberg([lake.expected()], ["pyiceberg", "duckdb"], tmp_path / "judge") == []


@pytest.mark.slow
def test_manifests_that_were_not_read_are_joined_without_what_was_removed(lake: Lake, tmp_path: Path) -> None:
    lake.do("CREATE TABLE t(id INTEGER)", *(f"INSERT INTO t FROM range({each}0, {each}3)" for each in range(15)))
    lake.do("BEGIN", "INSERT INTO t FROM range(1000, 1003)", "INSERT INTO t FROM range(2000, 2003)", "COMMIT")
    assert lake.publish(verify="none").exit_code == 0
    table = lake.warehouse / "main/t"
    assert len(manifests(table, 0)) == 16
    lake.do("DELETE FROM t WHERE id BETWEEN 1000 AND 1003")
    assert lake.publish(verify="none").exit_code == 0
    assert len(manifests(table, 0)) == 16
    lake.do("INSERT INTO t VALUES (1)")
    report = lake.publish()
    assert report.exit_code == 0 and not report.faults
    assert len(manifests(table, 0)) == 2
    assert judge_iceberg([lake.expected()], ["pyiceberg", "duckdb"], tmp_path / "judge") == []


@pytest.mark.slow
def test_a_first_run_encodes_and_verifies_each_entry_once(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.do("CREATE TABLE t(id INTEGER, v VARCHAR)")
    text = "repeat('ä', (i % 8)::INT * 70)"  # some are too long for exact bounds
    lake.do(*(f"INSERT INTO t SELECT i, {text} FROM range({each}0, {each}3) r(i)" for each in range(40)))
    lake.do("DELETE FROM t WHERE id = 1", "DELETE FROM t WHERE id = 2", "DELETE FROM t WHERE id = 101")
    encoded, read = list[str](), list[str]()
    entry, fetch = Encoding._entry, ManifestFile.fetch_manifest_entry

    def one(self: Encoding, *said: Any) -> Entry:
        encoded.append(said[-1]["file_path"])
        return entry(self, *said)

    def fetched(self: ManifestFile, *said: Any, **more: Any) -> list[ManifestEntry]:
        read.append(self.manifest_path)
        return fetch(self, *said, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Encoding, "_entry", one)
        patched.setattr(source_files, "_BATCH", 4)
        patched.setattr(measures, "_SERVED", 3)
        assert lake.publish().exit_code == 0
    assert len(encoded) == len(set(encoded)) == 43, "manifests are joined as they were encoded"
    table = lake.warehouse / "main/t"
    place, metadata = current(table)
    assert (len(manifests(table, 0)), len(manifests(table, 1))) == (10, 2)
    whole = Lake(tmp_path)
    whole.warehouse = tmp_path / "whole"
    assert whole.publish().exit_code == 0
    assert listed(table) == listed(whole.warehouse / "main/t"), "batches change nothing"
    joined = [each for each in map(read_records, map(Path.read_bytes, manifests(table, 0))) if len(each) > 1]
    assert [{each["status"] for each in entries} for entries in joined] == [{EXISTING}, {EXISTING}]
    each_snapshot = [snapshot for _, snapshot in sorted(snapshots(metadata).items(), key=lambda each: int(each[0]))]

    def rows(of: list[int]) -> list[int]:
        asked = [{"metadata": str(place), "snapshot": each, "listed": False} for each in of]
        return [each["rows"] for each in answers(asked, {})]

    with monkeypatch.context() as patched:
        patched.setattr(ManifestFile, "fetch_manifest_entry", fetched)
        rows(each_snapshot[:-3])
    assert len(read) == len(set(read)) == 42, "manifests are read once for all snapshots"
    opened = StaticTable.from_metadata(str(place))
    assert rows(each_snapshot) == [opened.scan(snapshot_id=each).count() for each in each_snapshot]
    assert judge_iceberg([lake.expected()], ["pyiceberg", "duckdb"], tmp_path / "judge") == []


@pytest.mark.slow
def test_the_name_mapping_of_files_that_were_left_out_stays(lake: Lake, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.parquet") for name in ("id", "ID")]
    for path, name in zip(paths, ("id", "ID"), strict=True):
        pq.write_table(pa.table({name: pa.array(range(9), pa.int32())}), path)
    lake.do("CREATE TABLE t(id INTEGER)", *(f"CALL ducklake_add_data_files('lake', 't', '{each}')" for each in paths))
    assert lake.publish(verify="none").exit_code == 0
    lake.do(f"DELETE FROM t WHERE id = 3 AND filename = '{paths[0]}'")
    report = lake.publish()
    assert report.exit_code == 0 and not report.faults
    assert report.plan.tables[0].data is not None and report.plan.tables[0].data.since is not None
    names = current(lake.warehouse / "main/t")[1]["properties"]["schema.name-mapping.default"]
    assert "id" in names and "ID" in names
    assert judge_iceberg([lake.expected()], ["pyiceberg"], tmp_path / "judge") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inlined", "more"),
    [
        pytest.param(0, True, id="other"),
        pytest.param(0, False, id="older"),
        pytest.param(10, True, id="inlined", marks=pytest.mark.exhaustive),  # as the next test
    ],
)
def test_a_lake_that_was_restored_from_a_backup_is_followed_by_a_difference(
    inlined: int, more: bool, lake: Lake, tmp_path: Path
) -> None:
    """After it other commits have the numbers of those that were published."""
    lake.inlined = inlined
    backup = tmp_path / "backup"
    lake.do("CREATE TABLE t(id INTEGER, v VARCHAR)", "INSERT INTO t SELECT i, 'old' FROM range(40) r(i)")
    lake.do("DELETE FROM t WHERE id = 1")
    assert lake.publish(verify="none").exit_code == 0
    shutil.copyfile(lake.file, backup)
    lake.do("INSERT INTO t VALUES (100, 'lost')", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (101, 'lost')")
    assert lake.publish(verify="none").exit_code == 0
    table = lake.warehouse / "main/t"
    before = current(table)[1]
    shutil.copyfile(backup, lake.file)
    if more:
        lake.do("INSERT INTO t VALUES (100, 'kept')", "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (7, 'kept')")
    with pytest.raises(Conflict, match="no longer in the source's main history"):
        lake.publish(verify="none")
    assert current(table)[1] == before
    report = lake.publish(follow=True, verify="none")
    assert report.exit_code == 0 and not report.faults
    assert "history-diverged" in {each.code.text for each in report.plan.tables[0].findings}
    metadata = current(table)[1]
    lost = set(snapshots(before).values()) - {1, 2, 3}
    new = [each for each in metadata["snapshots"] if each["snapshot-id"] not in {1, 2, 3}]
    assert len(new) == (3 if more else 1) and len(metadata["snapshots"]) == 3 + len(new)
    assert new[0]["parent-snapshot-id"] == before["current-snapshot-id"]
    assert not lost & {each["snapshot-id"] for each in new}
    times = [each["timestamp-ms"] for each in metadata["snapshot-log"]]
    assert times == sorted(times) and times[-1] >= before["snapshot-log"][-1]["timestamp-ms"]
    assert judge_iceberg([lake.expected()], ["pyiceberg", "duckdb"], tmp_path / "judge") == []
    assert lake.publish(verify="none").plan.tables[0].action.value == "nothing"
    lake.do("INSERT INTO t VALUES (200, 'onward')", "DELETE FROM t WHERE id = 100")
    report = lake.publish()
    assert report.exit_code == 0 and report.plan.tables[0].data is not None
    assert report.plan.tables[0].data.since is not None
    assert judge_iceberg([lake.expected()], ["pyiceberg"], tmp_path / "judge") == []
    rows = StaticTable.from_metadata(str(current(table)[0]))
    assert [len(rows.scan(snapshot_id=each).to_arrow()) for each in (1, 2, 3)] == [0, 40, 39], "as AT (VERSION => 3)"
    onward = main_line(current(table)[1])
    assert not lost & onward.keys()
    shutil.copyfile(backup, lake.file)
    lake.do("INSERT INTO t VALUES (300, 'again')", "INSERT INTO t VALUES (301, 'again')")
    assert lake.publish(follow=True).exit_code == 0
    again = main_line(current(table)[1])
    assert not (lost | onward.keys() - {1, 2, 3}) & again.keys()
    assert judge_iceberg([lake.expected()], ["pyiceberg"], tmp_path / "judge") == []
    if not more:  # so far that numbers are free again
        lake.do(*(f"INSERT INTO t VALUES ({number}, 'later')" for number in range(400, 405)))
        assert lake.publish().exit_code == 0
        late = snapshots(current(table)[1])
        newest = max(map(int, late))
        assert late[str(newest)] == newest and len(main_line(current(table)[1])) == len(again) + 5


def main_line(metadata: dict[str, Any]) -> dict[int, str]:
    """The snapshots from the newest back to the first, each once, with their operations."""
    every = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    assert len(every) == len(metadata["snapshots"])
    found: dict[int, str] = {}
    at = metadata["current-snapshot-id"]
    while at in every:
        assert at not in found, f"snapshot {at} descends from itself"
        found[at] = every[at]["summary"]["operation"]
        at = every[at].get("parent-snapshot-id")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("inlined", [pytest.param(0, marks=pytest.mark.exhaustive), 10])
def test_the_number_of_what_was_published_may_be_another_table_s_after_a_backup(
    inlined: int, lake: Lake, tmp_path: Path
) -> None:
    lake.inlined = inlined
    backup = tmp_path / "backup"
    lake.do("CREATE TABLE t(id INTEGER, v VARCHAR)", "INSERT INTO t SELECT i, 'old' FROM range(40) r(i)")
    shutil.copyfile(lake.file, backup)
    lake.do("INSERT INTO t VALUES (100, 'lost')", "INSERT INTO t VALUES (101, 'lost')")
    assert lake.publish(tables=("main.t",)).exit_code == 0
    shutil.copyfile(backup, lake.file)
    lake.do("INSERT INTO t VALUES (100, 'kept')", "CREATE TABLE u(id INTEGER)", "INSERT INTO t VALUES (102, 'kept')")
    report = lake.publish(tables=("main.t",))
    assert report.exit_code == 0 and not report.faults
    assert list(snapshots(current(lake.warehouse / "main/t")[1])) == ["1", "2", "3", "5"]
    assert judge_iceberg([lake.expected()], ["pyiceberg", "duckdb"], tmp_path / "judge") == []
