"""Runs after the first one: nothing to do, the cut-over, lakes with other tables, both sides changed, and crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import bridge
from converters.ducklake.catalog.session import Session
from converters.iceberg.locate import _VERSION
from tests.judge import Subject, Version, judge
from tests.support import ROOT, Case, case, commits_of, lake_rows, migrate_case, run, run_here, subject, tree_hash, use
from tests.test_kinds import CARRIED, sampled
from tests.test_ownership import BOTH

DIVERGING = {
    "hist_rollback", "hist_rollback_last", "hist_rollback_mor", "hist_rollback_schema", "hist_set_current",
    "hist_replace_table",
}  # fmt: skip
UNSTABLE = {
    "craft_v1_noschemaid": "an old snapshot takes the schema of its day when it is migrated on that day",
    "craft_v1_manifests": "its older metadata names manifest lists that were never there",
    "craft_same_ms": "the catalog's own clock moves the times",
    "craft_skew_delete": "the catalog's own clock moves the times",
    "craft_skew_mor": "the catalog's own clock moves the times",
    "addfiles_evo": "its name mapping changes what the files of the lake are read as, which ends catching up",
    "hist_fast_forward": "the branch's commits are older than the lake's note of the branch, so their times move",
    "hist_expired_middle": "the snapshot that the lake holds is expired",
}
QUICK_CUTS = {"evo_float_double"}
# tests/test_deletes.py follows those with deletes
FOLLOWED = {"addfiles_nested", "evo_readd", "hist_expired_mor"}


def metadata_files(found: Case) -> list[Path]:
    """Every state of a fixture that is still there, oldest first."""

    def number(path: Path) -> int:
        named = _VERSION.match(path.name)
        assert named is not None
        return int(named.group(1) or named.group(2))

    return sorted((path for path in found.metadata.parent.iterdir() if _VERSION.match(path.name)), key=number)


def options(found: Case, **more: object) -> bridge.Options:
    pairs = tuple((old, str(found.home / new)) for old, new in found.facts["map_prefix"])
    return bridge.Options(rename="main.t", verify="none", path_map=bridge.PathMap(pairs), **more)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    sampled([kind for kind in CARRIED if kind not in DIVERGING and kind not in UNSTABLE], QUICK_CUTS, FOLLOWED),
)
def test_following_a_table_state_by_state_ends_where_one_run_ends(kind: str, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    for path in metadata_files(found):
        try:
            bridge.migrate(f"iceberg:{path}", f"ducklake:{lake}", options(found))
        except (bridge.Unreachable, bridge.Blocked):
            assert "expired" in kind  # that state's files are gone
    last = bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", options(found))
    assert [each.action.value for each in last.plan.tables] == ["nothing"]
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=8) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(DIVERGING))
def test_a_source_that_went_another_way_is_a_conflict(kind: str, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    with pytest.raises(bridge.Conflict, match="no longer in the source's main history"):
        for path in metadata_files(found):
            bridge.migrate(f"iceberg:{path}", f"ducklake:{lake}", options(found))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", sampled([*sorted(DIVERGING), "hist_expired_middle"], set(), {"hist_rollback_mor", "hist_expired_middle"})
)
def test_a_source_that_went_another_way_is_followed_by_a_difference(kind: str, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    asked = replace(options(found, follow=True), verify="metadata")
    fine = {0, 3, 6} if "expired" in kind else {0}  # files of older states are gone
    for path in metadata_files(found):
        try:
            assert bridge.migrate(f"iceberg:{path}", f"ducklake:{lake}", asked).exit_code in fine
        except (bridge.Unreachable, bridge.Blocked):
            assert "expired" in kind
    expected = subject(found, lake)
    expected = replace(expected, versions=tuple(replace(each, time=None) for each in expected.versions))
    assert judge(str(lake), [expected], scratch=tmp_path / "judge", filters=6) == []


@pytest.mark.slow
def test_running_again_changes_nothing_and_says_so(tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    first = migrate_case(case("evo_struct"), str(lake))
    content = lake.read_bytes()
    second = migrate_case(case("evo_struct"), str(lake))
    assert second.code == 0 and second.json["tables"][0]["action"] == "nothing"
    assert second.json["plan"] == first.json["plan"]
    assert lake.read_bytes() == content


@pytest.mark.slow
def test_changes_on_both_sides_are_a_conflict(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    older = metadata_files(found)[-2]
    bridge.migrate(f"iceberg:{older}", f"ducklake:{lake}", options(found))
    assert use(str(lake), ["DELETE FROM lake.t WHERE id = (SELECT min(id) FROM lake.t)"]) == [""]
    content = lake.read_bytes()
    refused = migrate_case(found, str(lake))
    assert refused.code == 5 and "inlined_delete" in refused.json["error"]
    assert lake.read_bytes() == content
    same = run_here("migrate", f"iceberg:{older}", f"ducklake:{lake}", "--as", "main.t", *found.maps)
    assert same.code == 0 and "nothing to do" in same.out


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["", pytest.param("sqlite:", marks=pytest.mark.exhaustive)])
def test_a_lake_with_other_tables_gets_one_more(backend: str, tmp_path: Path) -> None:
    found, lake = case("evo_struct"), tmp_path / f"lake.{'sqlite' if backend else 'ducklake'}"
    made = use(
        f"{backend}{lake}",
        [
            "CREATE TABLE lake.mine AS SELECT i AS id FROM range(2000) r(i)",
            'CREATE SCHEMA lake."Sales"',
            "CREATE VIEW lake.seen AS SELECT * FROM lake.mine",
            "DELETE FROM lake.mine WHERE id < 10",
        ],
    )
    assert made == [""] * 4
    result = run_here(
        "migrate", f"iceberg:{found.metadata}", f"ducklake:{backend}{lake}", "--as", "sales.t", "--json", *found.maps
    )
    assert result.code == 0, result.out + result.err
    assert "history-times-moved" in result.codes()["loss"]
    expected = subject(found, lake)
    expected = Subject(("Sales", "t"), tuple(replace(each, time=None) for each in expected.versions))
    assert judge(f"{backend}{lake}", [expected], scratch=tmp_path / "judge", filters=4) == []
    mine = pa.table({"id": pa.array(range(10, 2000), pa.int64())})
    assert (
        judge(
            f"{backend}{lake}",
            [Subject(("main", "mine"), (Version(None, None, mine),))],
            scratch=tmp_path / "two",
            filters=4,
        )
        == []
    )
    for name in ("main.mine", "main.SEEN", "sales.T"):
        clash = run_here(
            "migrate",
            f"iceberg:{case('v1_basic').metadata}",
            f"ducklake:{backend}{lake}",
            "--as",
            name,
            "--json",
            *case("v1_basic").maps,
        )
        assert clash.code == 3 and clash.codes()["blocked"] == ["target-exists"]


@pytest.mark.slow
def test_a_warehouse_is_merged_into_one_history(tmp_path: Path) -> None:
    """Two tables whose commits alternate: the lake's snapshots are ordered by time, AS OF answers for both."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("a")
    catalog.create_namespace("ab")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    tables = [
        catalog.create_table(name, schema=rows.schema, location=f"file://{tmp_path}/wh/{place}")
        for name, place in (("a.x", "a/x"), ("ab.y", "a/b/y"))
    ]
    for _ in range(3):
        for table in tables:
            table.append(rows)
    lake = tmp_path / "lake.ducklake"
    result = run_here("migrate", f"iceberg:{tmp_path}/wh", f"ducklake:{lake}", "--json")
    assert result.code == 0, result.out + result.err
    times = [row[0] for row in lake_rows(lake, "SELECT snapshot_time FROM ducklake_snapshot ORDER BY snapshot_id")]
    assert len(times) == 7 and times == sorted(set(times))
    made = [
        row[0] for row in lake_rows(lake, "SELECT changes_made FROM ducklake_snapshot_changes ORDER BY snapshot_id")
    ]
    assert [each.count("inserted_into_table") for each in made] == [0, 1, 1, 1, 1, 1, 1]
    names = lake_rows(
        lake, "SELECT schema_name, table_name FROM ducklake_table JOIN ducklake_schema USING (schema_id) ORDER BY ALL"
    )
    assert names == [("a", "x"), ("a.b", "y")]


def test_a_file_that_is_added_again_is_noticed_though_the_rest_is_not_read(tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("a")
    rows, lake = pa.table({"id": pa.array([1, 2], pa.int64())}), tmp_path / "lake.ducklake"
    table = catalog.create_table("a.t", schema=rows.schema)
    table.append(rows)
    source, target = f"iceberg:{tmp_path}/wh/a/t", f"ducklake:{lake}"
    assert bridge.migrate(source, target, bridge.Options(verify="none")).exit_code == 0
    [manifest] = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]  # it has one
    [entry] = manifest.fetch_manifest_entry(table.io)
    with table.transaction() as again, again.update_snapshot().fast_append() as files:
        files.append_data_file(entry.data_file)
    [plan] = bridge.migrate(source, target, bridge.Options(verify="none")).plan.tables
    assert [each.code.text for each in plan.blockers] == ["file-listed-twice"]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_data_file") == [(1,)]


class Broken(Exception):
    """What the failing catalog raises."""


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, pytest.param(True, marks=pytest.mark.slow)])
@BOTH
def test_a_failure_at_any_insert_leaves_nothing(
    backend: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, lake = case("evo_struct"), tmp_path / "lake.db"
    if existing:
        assert use(f"{backend}{lake}", ["CREATE TABLE lake.mine AS SELECT 1 AS id"]) == [""]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    append, count = Session.append, 0
    for fails_at in range(100):
        count = 0

        def failing(self: Session, name: str, rows: pa.Table, fails_at: int = fails_at) -> None:
            nonlocal count
            if count == fails_at:
                raise Broken
            count += 1
            append(self, name, rows)

        monkeypatch.setattr(Session, "append", failing)
        try:
            bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{backend}{lake}", options(found))
        except Broken:
            after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
            assert set(after) == set(before)
            if backend or not existing:
                assert after == before
        else:
            break
    assert count > 10
    assert lake.exists()


KILLED = """
import sys, os, signal
from converters.ducklake.catalog.session import Session
append, left = Session.append, [int(sys.argv[1])]
def dying(self, name, rows):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    append(self, name, rows)
Session.append = dying
sys.argv = ["ducklake-bridge", *sys.argv[2:]]
from bridge.cli.main import main
main()
"""


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True])
def test_kill_9_at_any_insert_then_run_again(backend: str, existing: bool, tmp_path: Path) -> None:
    found, lake = case("evo_rename"), tmp_path / f"lake.{'sqlite' if backend else 'ducklake'}"
    if existing:
        assert use(f"{backend}{lake}", ["CREATE TABLE lake.mine AS SELECT 1 AS id"]) == [""]
    command = ["migrate", f"iceberg:{found.metadata}", f"ducklake:{backend}{lake}", "--as", "main.t", *found.maps]
    for point in (0, 4) if existing else (1, 9):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(point), *command], capture_output=True, check=False, cwd=ROOT
        )
        assert killed.returncode == -signal.SIGKILL
        assert lake.exists() == existing
        if existing:
            assert use(f"{backend}{lake}", ["SELECT * FROM lake.mine"]) == [""]
            assert "does not exist" in use(f"{backend}{lake}", ["SELECT * FROM lake.t"])[0]
    assert run_here(*command).code == 0
    assert [path.name for path in tmp_path.iterdir() if ".bridge-" in path.name] == []
    expected = subject(found, lake)
    if existing:
        expected = replace(expected, versions=tuple(replace(each, time=None) for each in expected.versions))
    assert judge(f"{backend}{lake}", [expected], scratch=tmp_path / "judge", change=False, filters=4) == []


@pytest.mark.slow
def test_two_runs_at_once_write_one_table(tmp_path: Path) -> None:
    found, lake = case("many_snapshots"), tmp_path / "lake.ducklake"
    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(lambda _: migrate_case(found, str(lake), how=run), range(2)))
    assert sorted(each.code for each in ran) in ([0, 0], [0, 5])
    assert migrate_case(found, str(lake)).json["tables"][0]["action"] == "nothing"
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_table") == [(1,)]
    assert len(commits_of(lake)) == len(found.facts["snapshots"])


HOLD = """
import sys, time
from converters.ducklake.extensions import connect
lake = connect("ducklake", "sqlite_scanner")
path = sys.argv[1].split(":")[-1]
lake.execute(f"ATTACH 'ducklake:{sys.argv[1]}' AS lake (DATA_PATH '{path}.files/')")
lake.execute("CREATE TABLE IF NOT EXISTS lake.mine (id INT)")
if "sqlite" in sys.argv[1]:
    import sqlite3
    lake.close()
    held = sqlite3.connect(sys.argv[1].partition(":")[2], isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(120)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["", "sqlite:"])
def test_a_catalog_that_another_process_holds(backend: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.db"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, f"{backend}{lake}"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        ran = migrate_case(case("v1_basic"), f"{backend}{lake}")
        assert ran.code == 5 and str(lake) in ran.json["error"] and "Traceback" not in ran.err
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert migrate_case(case("v1_basic"), f"{backend}{lake}").code == 0


@pytest.mark.slow
def test_interrupting_leaves_nothing(tmp_path: Path) -> None:
    found, lake = case("many_snapshots"), tmp_path / "lake.ducklake"
    before = tree_hash(found.home)
    for wait in (0.3, 0.8, 1.2):
        process = subprocess.Popen(
            [sys.executable, "-m", "bridge", "migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}", *found.maps],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode in (130, 0, -signal.SIGINT, 1)
        if process.returncode == 0:
            break
        assert not [path for path in tmp_path.iterdir() if ".bridge-" in path.name]
    assert tree_hash(found.home) == before


@pytest.mark.slow
def test_the_report_is_saved(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert migrate_case(case("v1_basic"), str(tmp_path / "lake.ducklake"), "--report", str(report)).code == 0
    assert json.loads(report.read_text())["exit_code"] == 0
