"""Publishing to catalogs: SQL in both formats, REST by registration and commits, conflicts in both."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge.errors import Blocked, Conflict, Unreachable
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.model.table import TableName
from bridge.ports import Silent
from tests.iceberg_judge import Published, judge_iceberg
from tests.support import opened
from tests.test_catalogs import Rest, nothing_configured, serving
from tests.test_publish import CHANGES, Lake, snapshots

assert nothing_configured  # no test here may see what the machine has configured


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.do(*CHANGES[:4])
    return made


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[Rest]:
    with serving(tmp_path) as server:
        server.set(writable=3)
        yield server


def sql_options(lake: Lake) -> tuple[tuple[str, str], ...]:
    home = lake.file.parent
    return (("type", "sql"), ("uri", f"sqlite:///{home}/catalog.db"), ("warehouse", str(home / "warehouse")))


def rest_options(lake: Lake, rest: Rest) -> tuple[tuple[str, str], ...]:
    return (("uri", rest.uri), ("warehouse", str(lake.file.parent / "warehouse")))


def publish(lake: Lake, options: tuple[tuple[str, str], ...], **more: Any) -> bridge.Report:
    asked = bridge.Options(target_options=options, **more)
    return bridge.migrate(f"ducklake:{lake.file}", "iceberg-catalog:prod", asked)


def judged(lake: Lake, metadata: Path, tmp_path: Path, engines: tuple[str, ...] = ("pyiceberg",)) -> list[str]:
    held = snapshots(json.loads(metadata.read_text()))
    with opened(lake.file) as there:
        rows = [
            (snapshot, there.execute(f"SELECT * FROM t AT (VERSION => {commit})").to_arrow_table())
            for commit, snapshot in held.items()
        ]
        rows.append((None, there.execute("SELECT * FROM t").to_arrow_table()))
    return judge_iceberg([Published("t", metadata, tuple(rows))], engines, tmp_path / "judge")


def place(lake: Lake) -> Path:
    with sqlite3.connect(lake.file.parent / "catalog.db") as catalog:
        [(location,)] = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    return Path(location)


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_a_sql_catalog_takes_both_formats_and_what_is_new(version: int, lake: Lake, tmp_path: Path) -> None:
    options = sql_options(lake)
    assert publish(lake, options, format_version=version).exit_code == 0
    first = place(lake)
    lake.do(*CHANGES[4:6])
    assert publish(lake, options, format_version=version).exit_code == 0
    assert place(lake) != first
    assert json.loads(place(lake).read_text())["format-version"] == version
    assert judged(lake, place(lake), tmp_path) == []
    assert publish(lake, options).plan.tables[0].action.value == "nothing"


@pytest.mark.slow
def test_pyiceberg_opens_the_published_table_by_name_and_its_append_is_a_conflict(lake: Lake) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    options = sql_options(lake)
    publish(lake, options)
    catalog = SqlCatalog("prod", **dict(options))
    table = catalog.load_table("main.t")
    table.append(table.scan(limit=1).to_arrow())
    catalog.engine.dispose()
    snapshot = table.current_snapshot()
    lake.do(CHANGES[4], CHANGES[5])
    assert snapshot is not None
    with pytest.raises(Conflict, match=str(snapshot.snapshot_id)):
        publish(lake, options)


@pytest.mark.slow
def test_a_rest_catalog_registers_and_then_is_told_each_snapshot(lake: Lake, rest: Rest, tmp_path: Path) -> None:
    options = rest_options(lake, rest)
    assert publish(lake, options).exit_code == 0
    lake.do(*CHANGES[4:9])
    assert publish(lake, options).exit_code == 0
    state = json.loads(rest.state.read_text())
    [table] = state["tables"]
    metadata = json.loads(Path(table["metadata"]).read_text())
    log = [each["snapshot-id"] for each in metadata["snapshot-log"]]
    assert log == [each["snapshot-id"] for each in metadata["snapshots"]]
    assert judged(lake, Path(table["metadata"]), tmp_path) == []
    again = publish(lake, options)
    assert again.plan.tables[0].action.value == "nothing"
    assert json.loads(rest.state.read_text()) == state


@pytest.mark.slow
def test_snapshots_over_merged_files_leave_a_rest_catalog_that_replaces_none(
    lake: Lake, rest: Rest, tmp_path: Path
) -> None:
    options = rest_options(lake, rest)
    lake.do(*(f"INSERT INTO t(id) FROM range({each}, {each + 10})" for each in (300, 310, 320)))
    assert publish(lake, options).exit_code == 0
    before = snapshots(json.loads(Path(json.loads(rest.state.read_text())["tables"][0]["metadata"]).read_text()))
    lake.do("DELETE FROM t WHERE id = 305", "CALL ducklake_merge_adjacent_files('lake')")
    lake.do("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)", "INSERT INTO t(id) VALUES (400)")
    report = publish(lake, options)
    assert report.exit_code == 0 and not report.faults
    [plan] = report.plan.tables
    said = {each.code.text: each.detail for each in plan.findings}
    assert "history-rebuilt" not in said and "lets no snapshot be replaced" in said["history-trimmed"]
    metadata = Path(json.loads(rest.state.read_text())["tables"][0]["metadata"])
    kept = snapshots(json.loads(metadata.read_text()))
    gone, new = before.keys() - kept.keys(), kept.keys() - before.keys()
    assert gone and new and all(before[each] == kept[each] for each in before.keys() & kept.keys())
    assert judged(lake, metadata, tmp_path, ("pyiceberg", "duckdb")) == []
    assert publish(lake, options).plan.tables[0].action.value == "nothing"


@pytest.mark.slow
def test_a_rest_catalog_that_takes_no_format_3_blocks_with_its_own_code(lake: Lake, rest: Rest) -> None:
    rest.set(writable=None)
    with pytest.raises(Unreachable, match="refused the namespace main: read-only"):
        publish(lake, rest_options(lake, rest), format_version=3)
    rest.set(writable=2)
    with pytest.raises(Blocked) as raised:
        publish(lake, rest_options(lake, rest), format_version=3)
    assert raised.value.code == "catalog-format-3"
    assert not json.loads(rest.state.read_text())["tables"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "after", "seconds"),
    [(504, 0, 2.0), (504, 1, 0), (500, 1, None), (200, 1, None), (500, 4, None)],
    ids=["made later", "made", "not made", "answered by a page", "one after the last snapshot"],
)
def test_a_commit_without_an_answer_is_gone_on_from(
    status: int, after: int, seconds: float | None, lake: Lake, rest: Rest, tmp_path: Path
) -> None:
    """Nothing that a commit names goes while it may be made, and each snapshot comes, once."""
    options = rest_options(lake, rest)
    assert publish(lake, options, format_version=3).exit_code == 0
    rest.set(commits=[status, after, seconds])
    lake.do(*(f"INSERT INTO t(id) VALUES ({each})" for each in range(500, 503)), "COMMENT ON TABLE t IS 'new'")
    with pytest.raises(Unreachable) if after < 4 else suppress(Unreachable):  # four snapshots are four requests
        publish(lake, options)
    time.sleep(2 * (seconds or 0))
    report = publish(lake, options)
    assert report.exit_code == 0 and not report.faults
    assert [each.code.text for each in report.plan.tables[0].findings if each.code.text == "history-diverged"] == []
    metadata = Path(json.loads(rest.state.read_text())["tables"][0]["metadata"])
    with opened(lake.file) as there:
        [(newest,)] = there.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchall()
    held = json.loads(metadata.read_text())
    assert list(snapshots(held))[-4:] == [str(newest - each) for each in (3, 2, 1, 0)]
    assert held["properties"]["comment"] == "new"
    assert judged(lake, metadata, tmp_path) == []
    assert publish(lake, options).plan.tables[0].action.value == "nothing"


@pytest.mark.slow
@pytest.mark.parametrize("status", [503, 403])
def test_a_server_at_fault_is_not_one_that_knows_no_format_3(status: int, lake: Lake, rest: Rest) -> None:
    options = rest_options(lake, rest)
    publish(lake, options)
    rest.set(commits=[status, 0, None])
    lake.do("INSERT INTO t(id) VALUES (500)")
    with pytest.raises(Unreachable):
        publish(lake, options, format_version=3)


@pytest.mark.slow
def test_a_table_that_the_catalog_cannot_load_keeps_no_other_of_its_round(lake: Lake, rest: Rest) -> None:
    lake.do("CREATE TABLE u AS SELECT 1 AS i")
    options = bridge.Options(target_options=rest_options(lake, rest))
    pair = Pair(f"ducklake:{lake.file}", "iceberg-catalog:prod", options)
    assert catch_up(pair, Silent()).exit_code == 0
    lake.do("INSERT INTO t(id) VALUES (500)", "INSERT INTO u VALUES (2)")
    rest.set(faults=[["/tables/t$", 500, 0]])
    made = catch_up(pair, Silent())
    assert made.error is None and made.exit_code == 6
    assert {str(each.source): each.state.value for each in made.tables} == {
        "main.t": "unreachable",
        "main.u": "applied",
    }
    rest.set(faults=[["/tables/", 500, 0]])
    assert isinstance(catch_up(pair, Silent()).error, Unreachable)


@pytest.mark.slow
def test_a_commit_meanwhile_is_a_conflict(lake: Lake, rest: Rest) -> None:
    """Main moved between our reading and our request."""
    from converters.iceberg.catalogs.rest_writing import RestHome
    from converters.iceberg.catalogs.settings import read_settings

    options = rest_options(lake, rest)
    publish(lake, options)
    home = RestHome(read_settings("prod", options))
    found = home.find(TableName(("main",), "t"))
    assert found is not None
    name, held = found
    lake.do(CHANGES[4], CHANGES[5])
    publish(lake, options)
    wanted = {**held.metadata, "properties": {**held.metadata["properties"], "a": "b"}}
    with pytest.raises(Conflict, match="no longer at snapshot"):
        home.commit(name, held, wanted, "mark")
