"""What a source may delete although older snapshots of a target use it: told before it happens, and exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge.cli.told import kept, lines
from bridge.mirroring.expiry import Danger, Expiring
from bridge.mirroring.pair import State
from bridge.mirroring.rounds import catch_up
from bridge.mirroring.status import status
from bridge.ports import Silent
from converters.iceberg.retention import retention_of
from tests.mirror_steps import Life
from tests.support import ROOT, lake_rows, use
from tests.test_mirror import Mirrored, does
from tests.test_mirror_lake import Followed
from tests.test_postgres import running

__all__ = ["running"]  # a fixture

AGE = "history.expire.max-snapshot-age-ms"
DAY = 86_400


SERVERS = pytest.mark.parametrize("server", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path, "sqlite:")


@pytest.fixture
def attach(server: str, request: pytest.FixtureRequest) -> str:
    """A new lake on a server; "" for an SQLite file."""
    if server == "sqlite":
        return ""
    running = request.getfixturevalue("running")
    return f"postgres:{running.connection(running.database())}"


def test_in_a_duckdb_file_the_hint_is_another(tmp_path: Path) -> None:
    """There the guard lets no snapshot be expired that uses a file of the source."""
    mirrored = Mirrored(tmp_path)
    does(mirrored.add(seed=8), "append", "replace_all", "append")
    assert mirrored.round().exit_code == 0
    found = asked(mirrored, time.time() + 6 * DAY)
    assert found is not None and found.due == found.files == 1
    assert "--rewrite always" in found.hint and "ducklake_expire" not in found.hint


def keeping(life: Life, **properties: str) -> None:
    with life.table.transaction() as changed:
        changed.set_properties({f"history.expire.{key.replace('_', '-')}": text for key, text in properties.items()})
    life.table = life.catalog.load_table(life.name)


def reached(life: Life) -> set[str]:
    """The data files that a snapshot of the source still uses."""
    return {
        entry.data_file.file_path.removeprefix("file://")
        for snapshot in life.table.snapshots()
        for manifest in snapshot.manifests(life.table.io)
        for entry in manifest.fetch_manifest_entry(life.table.io)
    }


def asked(mirrored: Mirrored, now: float) -> Expiring | None:
    pair = mirrored.pair()
    [found] = status(pair.source, pair.target, pair.options, now=now)
    return found.expiring


def in_lake(mirrored: Mirrored) -> set[str]:
    return {path for (path,) in lake_rows(mirrored.lake, "SELECT path FROM ducklake_data_file")}


@SERVERS
def test_what_the_source_then_expires_was_told_of(attach: str, tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, attach or "sqlite:")
    life = mirrored.add(seed=8)
    does(life, "append", "overwrite", "append", "replace_all", "append", "truncate", "append", "append")
    life.table.manage_snapshots().create_tag(int(life.line[2]), "kept").commit()
    life.table = life.catalog.load_table(life.name)
    made = mirrored.round()
    assert made.tables[0].expiring is None, "five days are far away"
    found = asked(mirrored, time.time())
    assert found is not None and found.danger is Danger.LATER and AGE in found.why and found.due == 0
    assert found.by is not None and abs(found.by - time.time() - 5 * DAY) < 600
    before = reached(life)
    assert asked(mirrored, time.time() + 4.5 * DAY).danger is Danger.SOON  # type: ignore[union-attr]  # there is some
    keeping(life, max_snapshot_age_ms="1")
    [outcome] = mirrored.round().tables
    told = outcome.expiring
    assert told is not None and told.danger is Danger.NOW and told.by is None and told.due == told.files
    # now it happens
    life.table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    life.table = life.catalog.load_table(life.name)
    lost = before - reached(life)
    assert lost and told.files == len(lost) == len(lost & in_lake(mirrored))
    assert told.bytes == sum(os.path.getsize(path) for path in lost)
    found = asked(mirrored, time.time())
    assert found is not None and found.danger is Danger.GONE and found.gone == len(lost) and found.due == 0
    # what helps: the lake forgets those snapshots, and no file of the source goes with them
    assert "ducklake_expire_snapshots" in found.hint
    expire = f"CALL ducklake_expire_snapshots('lake', versions => {list(range(int(found.last) + 1))})"
    assert use(mirrored.attach, [expire, "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"]) == ["", ""]
    assert not lost & in_lake(mirrored) and all(map(os.path.exists, lost))
    assert asked(mirrored, time.time()) is None


def test_a_warning_is_said_once_until_it_changes(mirrored: Mirrored) -> None:
    life = mirrored.add(seed=8)
    does(life, "append", "replace_all", "append")
    mirrored.round()
    keeping(life, max_snapshot_age_ms="1")
    rounds = [mirrored.round(), mirrored.round()]
    said = [lines(rounds[0], "json", str), lines(rounds[1], "json", str, rounds[0])]
    [warning] = [json.loads(each) for each in said[0] if json.loads(each)["level"] == "warning"]
    assert warning["expiring"] == "now" and "use 1 data files" in warning["message"] and warning["hint"]
    assert said[1] == []
    # the table fails, is left aside for a while, and is looked at again
    [stated] = rounds[1].tables
    failed = replace(stated, state=State.UNREACHABLE, expiring=None)
    last, warnings = kept(rounds[1], None), list[str]()
    for each in (replace(rounds[1], tables=(failed,)), replace(rounds[1], tables=(), aside=(failed,)), rounds[1]):
        warnings += [line for line in lines(each, "json", str, last) if json.loads(line)["level"] == "warning"]
        last = kept(each, last)
    assert warnings == []
    life.table.maintenance.expire_snapshots().by_ids([int(life.line[0])]).commit()
    life.table = life.catalog.load_table(life.name)
    again = mirrored.round()
    [warning] = [json.loads(each) for each in lines(again, "json", str, rounds[1])]
    assert warning["expiring"] == "gone"


def test_files_of_the_lakes_own_are_in_no_danger(mirrored: Mirrored) -> None:
    life = mirrored.add(seed=8)
    does(life, "append", "replace_all", "append")
    keeping(life, max_snapshot_age_ms="1")
    assert mirrored.round(ownership="adopt").tables[0].expiring is None


def test_nothing_is_told_where_only_live_files_are_left(mirrored: Mirrored) -> None:
    life = mirrored.add(seed=8)
    does(life, "append", "append")
    keeping(life, max_snapshot_age_ms="1")
    assert mirrored.round().tables[0].expiring is None and asked(mirrored, time.time()) is None


def snapshot(id_: int, parent: int | None, days: int) -> dict[str, Any]:
    return {"snapshot-id": id_, "parent-snapshot-id": parent, "timestamp-ms": days * DAY * 1000}


@pytest.mark.parametrize(
    ("properties", "refs", "kept"),
    [
        ({}, {}, {1: 15, 2: 16, 3: 17, 4: None, 9: 17}),
        ({"min-snapshots-to-keep": "2"}, {}, {1: 15, 2: 16, 3: None, 4: None, 9: 17}),
        ({"max-snapshot-age-ms": str(DAY * 1000)}, {}, {1: 11, 2: 12, 3: 13, 4: None, 9: 13}),
        ({}, {"t": {"snapshot-id": 2, "type": "tag"}}, {1: 15, 2: None, 3: 17, 4: None, 9: 17}),
        ({}, {"t": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 30 * DAY * 1000}}, {1: 40, 2: 16, 3: 17}),
        ({}, {"b": {"snapshot-id": 9, "type": "branch"}}, {1: 15, 2: 16, 9: None}),
        ({"max-ref-age-ms": str(DAY * 1000)}, {"b": {"snapshot-id": 9, "type": "branch"}}, {2: 16, 4: None, 9: 13}),
        ({}, {"main": {"snapshot-id": 4, "type": "branch", "max-snapshot-age-ms": DAY * 1000}}, {1: 11, 3: 13, 9: 17}),
    ],
)
def test_a_snapshot_lasts_as_iceberg_keeps_it(
    properties: dict[str, str], refs: dict[str, Any], kept: dict[int, int | None]
) -> None:
    """Four snapshots of main, and one beside the second."""
    stored = {
        "snapshots": [snapshot(1, None, 10), snapshot(2, 1, 11), snapshot(3, 2, 12), snapshot(4, 3, 13),
                      snapshot(9, 2, 12)],
        "current-snapshot-id": 4,
        "properties": {f"history.expire.{key}": text for key, text in properties.items()},
        "refs": {"main": {"snapshot-id": 4, "type": "branch"}, **refs},
    }  # fmt: skip
    until = retention_of(stored).until
    assert {id_: until[str(id_)] for id_ in kept} == {
        id_: None if days is None else days * DAY * 1_000_000 for id_, days in kept.items()
    }
    stored["properties"] = {"gc.enabled": "false"}
    assert set(retention_of(stored).until.values()) == {None}


def in_spark(warehouse: Path, statements: Sequence[str]) -> list[Any]:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark_statements.py"), str(warehouse)],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=True,
    )
    said: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    assert [each["error"] for each in said if isinstance(each, dict)] == []
    return said


@pytest.mark.spark
def test_spark_deletes_the_files_that_were_told_of(tmp_path: Path) -> None:
    warehouse, lake, t = tmp_path / "wh", tmp_path / "lake.sqlite", "ice.db.t"
    warehouse.mkdir()
    in_spark(
        warehouse,
        [
            f"CREATE TABLE {t} (id INT, v STRING) USING iceberg TBLPROPERTIES ('{AGE}'='1', "
            "'history.expire.min-snapshots-to-keep'='2', 'format-version'='2', 'write.update.mode'='merge-on-read')",
            *(f"INSERT INTO {t} SELECT id, 'a' FROM range({low}, {low + 10})" for low in (0, 100, 200)),
            f"DELETE FROM {t} WHERE id < 10",
            f"ALTER TABLE {t} CREATE TAG kept",
            f"UPDATE {t} SET v = 'b' WHERE id = 105",
            f"DELETE FROM {t} WHERE id >= 200",
            "CALL ice.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))",
            f"INSERT INTO {t} VALUES (1, 'z')",
            f"DELETE FROM {t} WHERE id = 1",
        ],
    )
    locators = f"iceberg:{warehouse}/db/t", f"ducklake:sqlite:{lake}"
    bridge.migrate(*locators, bridge.Options(verify="none"))
    [found] = status(*locators, bridge.Options(), now=time.time())
    told = found.expiring
    assert told is not None and told.due == told.files
    registered = {path for (path,) in lake_rows(lake, "SELECT path FROM ducklake_data_file")}
    assert all(map(os.path.exists, registered))
    in_spark(warehouse, ["CALL ice.system.expire_snapshots(table => 'db.t')"])
    gone = [path for path in registered if not os.path.exists(path)]
    assert len(gone) == told.files > 0 and len(registered) > len(gone)
    [found] = status(*locators, bridge.Options(), now=time.time())
    assert found.expiring is not None and found.expiring.gone == len(gone)


@pytest.mark.slow
@SERVERS
def test_a_lake_that_expires_what_is_published(attach: str, tmp_path: Path) -> None:
    lake = Followed(tmp_path, catalog=False, attach=attach)
    lake.do("CREATE TABLE t AS SELECT i AS id FROM range(100) r(i)", "INSERT INTO t FROM range(100, 200)")
    lake.do("DELETE FROM t WHERE id < 100", "INSERT INTO t FROM range(500, 600)")
    assert lake.round().tables[0].expiring is None, "no lake expires anything unasked"
    lake.do("CALL lake.set_option('expire_older_than', '1 hour')")
    [found] = status(lake.source, lake.target, bridge.Options(), now=time.time() + 1800)
    told = found.expiring
    assert told is not None and told.danger is Danger.SOON and told.due == 0 and told.by is not None
    assert abs(told.by - time.time() - 3600) < 600 and "expire_older_than" in told.why
    [found] = status(lake.source, lake.target, bridge.Options(), now=time.time() + 4000)
    assert found.expiring is not None and found.expiring.due == told.files == 1
    before = set(Path(f"{lake.lake}.files").rglob("*.parquet"))
    lake.do("CALL ducklake_expire_snapshots('lake', older_than => now())")
    [found] = status(lake.source, lake.target, bridge.Options(), now=time.time())
    waiting = found.expiring
    assert waiting is not None and waiting.danger is Danger.NOW and waiting.files == 1 and "scheduled" in waiting.why
    lake.do("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert len(before - set(Path(f"{lake.lake}.files").rglob("*.parquet"))) == told.files
    assert lake.round().exit_code == 0
    [found] = status(lake.source, lake.target, bridge.Options(), now=time.time())
    assert found.expiring is None


EXPIRE = "CALL ducklake_expire_snapshots('lake', older_than => now())"


@pytest.mark.slow
@SERVERS
def test_rows_that_went_with_what_a_lake_has_expired_go_from_the_target(attach: str, tmp_path: Path) -> None:
    """A data file whose rows were all deleted: the catalog holds nothing of it once its snapshots are gone."""
    lake = Followed(tmp_path, catalog=False, attach=attach)
    lake.do("CREATE TABLE t AS SELECT i AS id FROM range(5) r(i)", "INSERT INTO t FROM range(100, 105)")
    lake.do("CREATE TABLE u AS SELECT 1 AS i", EXPIRE)
    assert lake.round().exit_code == 0
    lake.do("DELETE FROM t WHERE id < 100", "INSERT INTO u VALUES (2)", EXPIRE)
    assert lake.round().exit_code == 0
    assert ids_of(lake, "t") == [[*range(100, 105)]]
    before = lake.tables()["main.t"]
    [found, _] = status(lake.source, lake.target, bridge.Options(), now=time.time())
    assert found.expiring is None, "what is scheduled for deletion is published no more"
    lake.do("INSERT INTO u VALUES (3)", EXPIRE)
    assert {str(each.source): each.state.value for each in lake.round().tables} == {
        "main.t": "current",
        "main.u": "applied",
    }
    assert lake.tables()["main.t"] == before


@pytest.mark.slow
def test_a_lake_that_merely_expired_snapshots_was_not_restored(tmp_path: Path) -> None:
    """Although its last state looks like one of long ago."""
    lake = Followed(tmp_path, catalog=False)
    lake.do("CREATE TABLE t AS SELECT i AS id FROM range(5) r(i)", "INSERT INTO t FROM range(100, 105)")
    lake.do("DELETE FROM t WHERE id >= 100", "CREATE TABLE u AS SELECT 1 AS i")
    assert lake.round().exit_code == 0
    lake.do(EXPIRE)
    [t] = [each for each in lake.round().tables if each.source.name == "t"]
    assert "was expired at the source" in t.message and (t.files, t.bytes) == (0, 0)
    lake.do("INSERT INTO u VALUES (2)", EXPIRE)
    [t] = [each for each in lake.round().tables if each.source.name == "t"]
    assert t.state is State.CURRENT and not t.message and ids_of(lake, "t") == [[*range(5)]]


@pytest.mark.slow
def test_what_a_merged_file_tells_of_what_was_expired_is_called_by_a_kept_snapshot(tmp_path: Path) -> None:
    lake = Followed(tmp_path, catalog=False)
    lake.do("CALL lake.set_option('data_inlining_row_limit', 10)", "CREATE TABLE u AS SELECT 1 AS i")
    lake.do("CREATE TABLE t (id BIGINT)", "INSERT INTO t FROM range(5)", "COMMENT ON TABLE t IS 'more is to come'")
    assert lake.round().exit_code == 0
    lake.do("INSERT INTO t FROM range(5, 9)", "CALL ducklake_flush_inlined_data('lake')")
    lake.do("INSERT INTO u VALUES (2)", EXPIRE)
    assert lake.round().exit_code == 0
    assert lake.wrong({"main.t": "main.t", "main.u": "main.u"}, tmp_path / "judge") == []
    assert ids_of(lake, "t") == [[*range(9)]]


@pytest.mark.slow
def test_a_state_whose_snapshot_was_expired_stays_published_when_its_file_is_merged(tmp_path: Path) -> None:
    """How many rows a kept snapshot shows of a merged file the catalog does not tell."""
    lake = Followed(tmp_path, catalog=False)
    lake.do("CREATE TABLE t AS SELECT i AS id FROM range(2) r(i)", "CREATE TABLE u AS SELECT 1 AS i")
    for each in (EXPIRE, "INSERT INTO t FROM range(2, 4)", "INSERT INTO t FROM range(4, 6)"):
        assert lake.round().exit_code == 0
        lake.do(each)
    lake.do("CALL ducklake_merge_adjacent_files('lake')")
    wanted = [[*range(2)], [*range(4)], [*range(6)], [*range(6)]]
    for more in ([], [[*range(8)]]):
        assert lake.round().exit_code == 0
        assert ids_of(lake, "t") == wanted + more
        lake.do("INSERT INTO t FROM range(6, 8)")


@pytest.mark.slow
def test_a_lake_that_follows_a_lake_learns_what_went_with_expired_snapshots(tmp_path: Path) -> None:
    lake, other = Followed(tmp_path, catalog=False), f"sqlite:{tmp_path}/other.sqlite"
    lake.do("CREATE TABLE t AS SELECT i AS id FROM range(5) r(i)", "INSERT INTO t FROM range(100, 105)")
    lake.do("CREATE TABLE u AS SELECT 1 AS i")
    pair = replace(lake.pair(), target=f"ducklake:{other}")
    assert catch_up(pair, Silent()).exit_code == 0
    lake.do("DELETE FROM t WHERE id < 100", "INSERT INTO u VALUES (2)", EXPIRE)
    stays = bridge.plan(lake.source, pair.target, bridge.Options()).tables
    assert [each.blockers[0].code.text for each in stays] == ["target-conflict"] * 2
    for count in (1, 2):
        assert catch_up(pair, Silent()).exit_code == 0
        checks = bridge.verify(lake.source, pair.target, bridge.Options())
        assert [each for each in checks if each.fault] == [], count
        lake.do("INSERT INTO u VALUES (3)", EXPIRE)


def ids_of(lake: Followed, name: str) -> list[list[int]]:
    """The rows at every snapshot that is published, as PyIceberg reads them."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(lake.tables()[f"main.{name}"]))
    found = (table.scan(snapshot_id=each.snapshot_id).to_arrow() for each in table.snapshots())
    return [sorted(each.column("id").to_pylist()) for each in found]
