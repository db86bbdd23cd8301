"""How far a lake is behind its source: nothing is written, and of a current table no manifest is read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bridge
from bridge.cli.told import lines
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.mirroring.status import Standing, TableStatus, status
from bridge.ports import Silent
from tests.foretold import foretold
from tests.support import Case, case, lake_rows, run_here, use
from tests.test_ownership import copied
from tests.test_runs import metadata_files, options

NOW = 4_000_000_000.0


def asked(found: Case, metadata: Path, lake: Path, now: float = NOW) -> TableStatus:
    [only] = status(f"iceberg:{metadata}", f"ducklake:{lake}", options(found), now=now)
    return only


@pytest.fixture
def table(tmp_path: Path) -> Case:
    """A table of its own, of several states."""
    return copied("v2_cow", tmp_path / "source")


def test_a_lake_that_is_not_there_yet_has_everything_to_come(table: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    found = asked(table, table.metadata, lake)
    assert found.standing is Standing.ABSENT and found.held is None and found.exit_code == 0
    assert found.behind == len(table.facts["snapshots"]) and not lake.exists()
    report = bridge.migrate(f"iceberg:{table.metadata}", f"ducklake:{lake}", options(table))
    assert (found.pending_files, found.pending_bytes) == (report.plan.tables[0].files, report.plan.tables[0].bytes)


def test_a_file_that_is_missing_blocks_what_is_to_come(table: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    for path in table.metadata.parent.parent.rglob("*.parquet"):
        path.unlink()
    found = asked(table, table.metadata, lake)
    assert found.standing is Standing.BLOCKED and found.exit_code == 3 and "parquet" in found.message
    foretold(Pair(f"iceberg:{table.metadata}", f"ducklake:{lake}", options(table)))


def test_what_is_to_come_is_what_the_next_run_registers(table: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    older = metadata_files(table)[-2]
    bridge.migrate(f"iceberg:{older}", f"ducklake:{lake}", options(table))
    content = lake.read_bytes()
    found = asked(table, table.metadata, lake)
    assert lake.read_bytes() == content
    assert found.standing is Standing.BEHIND and found.exit_code == 0 and found.held != found.newest
    last = table.facts["snapshots"][-1]
    assert found.behind == 1 and found.newest == str(last["snapshot_id"])
    assert found.behind_seconds == pytest.approx(NOW - last["became_current_ms"] / 1000)
    assert asked(table, table.metadata, lake, now=0.0).behind_seconds == 0.0  # a clock that is wrong
    report = bridge.migrate(f"iceberg:{table.metadata}", f"ducklake:{lake}", options(table))
    assert (found.pending_files, found.pending_bytes) == (report.plan.tables[0].files, report.plan.tables[0].bytes)
    assert found.pending_bytes


def test_of_a_current_table_no_manifest_is_read(table: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    bridge.migrate(f"iceberg:{table.metadata}", f"ducklake:{lake}", options(table))
    for path in table.metadata.parent.glob("*.avro"):
        path.unlink()
    found = asked(table, table.metadata, lake)
    assert found.standing is Standing.CURRENT and found.held == found.newest and found.held_time == found.newest_time
    assert (found.behind, found.behind_seconds, found.pending_files, found.pending_bytes) == (0, 0.0, 0, 0)


def test_a_table_that_was_changed_in_the_lake(table: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    older = metadata_files(table)[-2]
    bridge.migrate(f"iceberg:{older}", f"ducklake:{lake}", options(table))
    assert use(str(lake), ["DELETE FROM lake.t WHERE id = (SELECT min(id) FROM lake.t)"]) == [""]
    same = asked(table, older, lake)
    assert same.standing is Standing.CHANGED and same.exit_code == 5 and "inlined_delete" in same.message
    both = asked(table, table.metadata, lake)
    assert both.standing is Standing.CHANGED and both.exit_code == 5 and both.behind == 1 and both.hint
    made = catch_up(Pair(f"iceberg:{table.metadata}", f"ducklake:{lake}", options(table)), Silent())
    [outcome] = made.tables
    told = asked(table, table.metadata, lake, made.began + made.seconds)
    assert made.exit_code == 5 and (outcome.behind, outcome.message) == (1, f"{both.message}; {both.hint}")
    assert outcome.behind_seconds == pytest.approx(told.behind_seconds, abs=made.seconds)
    assert " behind=1 " in lines(made, "text", str)[0]
    assert use(str(lake), ["DROP TABLE lake.t"]) == [""]
    dropped = asked(table, older, lake)
    assert dropped.exit_code == 5 and "was dropped in the lake" in dropped.message and dropped.behind is None


def test_a_source_that_was_rolled_back(tmp_path: Path) -> None:
    found, lake = case("hist_rollback"), tmp_path / "lake.ducklake"
    for path in metadata_files(found):
        try:
            bridge.migrate(f"iceberg:{path}", f"ducklake:{lake}", options(found))
        except bridge.Conflict as error:
            said = asked(found, path, lake)
            assert said.standing is Standing.DIVERGED and said.message == error.message and said.exit_code == 0
            made = foretold(Pair(f"iceberg:{path}", f"ducklake:{lake}", options(found)))
            assert said.held_time is None and [said.behind] == [each.commits for each in made.tables]
            break
    else:
        raise AssertionError("it was not rolled back")


def test_a_table_of_somebody_else(table: Case, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert use(str(lake), ["CREATE TABLE lake.t AS SELECT 1 AS id"]) == [""]
    found = asked(table, table.metadata, lake)
    assert found.standing is Standing.FOREIGN and found.exit_code == 3 and found.held is None


KEYS = {
    "table", "target", "state", "source_commit", "source_time", "target_commit", "target_time", "lag_commits",
    "lag_seconds", "pending_files", "pending_bytes", "expiring", "message", "hint",
}  # fmt: skip


@pytest.mark.slow
def test_the_command_over_a_warehouse(tmp_path: Path) -> None:
    """Current, behind, absent and unreadable side by side: one that is wrong stops no other."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("a")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    tables = {
        each: catalog.create_table(f"a.{each}", schema=rows.schema, location=f"file://{tmp_path}/wh/a/{each}")
        for each in ("behind", "current", "absent", "broken")
    }
    for each in tables.values():
        each.append(rows)
    source, target = f"iceberg:{tmp_path}/wh", f"ducklake:{tmp_path}/lake.ducklake"
    report = bridge.migrate(source, target, bridge.Options(exclude=("a.absent",), verify="none"))
    assert report.exit_code == 0
    tables["behind"].append(rows)
    tables["behind"].append(rows)

    def listed(*more: str) -> tuple[int, Mapping[str, Any], dict[str, Any]]:
        ran = run_here("status", source, target, "--json", *more)
        document = json.loads(ran.out)
        assert all(set(each) == KEYS for each in document["tables"])
        assert document["exit_code"] == ran.code
        return ran.code, document, {each["table"]: each for each in document["tables"]}

    code, document, found = listed()
    assert code == 0 and document["current"] is False
    states = {name: each["state"] for name, each in found.items()}
    assert states == {"a.absent": "absent", "a.behind": "behind", "a.broken": "current", "a.current": "current"}
    files = list((tmp_path / "wh" / "a" / "behind").rglob("*.parquet"))
    assert found["a.behind"]["lag_commits"] == 2 and found["a.behind"]["pending_files"] == 2
    held = lake_rows(tmp_path / "lake.ducklake", "SELECT sum(file_size_bytes) FROM ducklake_data_file "
                     "JOIN ducklake_table USING (table_id) WHERE table_name = 'behind'")  # fmt: skip
    assert found["a.behind"]["pending_bytes"] == sum(path.stat().st_size for path in files) - held[0][0]
    assert 0 < found["a.behind"]["lag_seconds"] < 600

    for path in (tmp_path / "wh" / "a" / "broken" / "metadata").glob("*.metadata.json"):
        path.write_text("{")
    code, _, found = listed()
    assert code == 3 and found["a.broken"]["state"] == "unreadable" and found["a.broken"]["message"]
    assert found["a.behind"]["state"] == "behind" and found["a.broken"]["lag_commits"] is None
    assert listed("--table", "a.current")[1]["current"] is True
    said = run_here("status", source, target, "--exclude", "a.broken")
    assert said.code == 0 and "a.behind: behind, 2 commits to come" in said.out and "a.current: current" in said.out
    assert said.out.endswith("in all: 1 current, 1 behind, 1 absent\n")

    shutil.rmtree(tmp_path / "wh")
    assert run_here("status", source, target).code == 6
    assert run_here("status", source, "nothing").code == 2
