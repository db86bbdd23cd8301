"""A lake that is mirrored to Iceberg tables for ever: names, drops, foreign commits, targets that are away."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copy2
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import bridge
from bridge.cli.told import lines
from bridge.errors import Overtaken, UsageError
from bridge.locators import parse_locator
from bridge.mirroring import loop
from bridge.mirroring.pair import Pair, Round
from bridge.mirroring.rounds import catch_up
from bridge.mirroring.status import Standing, status
from bridge.ports import Silent
from converters.ducklake.reader import LakeSourceTable
from converters.iceberg.publish import verifying
from converters.iceberg.writer import IcebergTarget
from tests.foretold import foretold
from tests.iceberg_judge import Published, judge_iceberg
from tests.support import lake_rows, opened, run_here, use
from tests.test_publish import appended

__all__: list[str] = []


class Followed:
    """A lake, in an SQLite file unless it is told where, and a warehouse or SQL catalog that follows it."""

    def __init__(self, folder: Path, catalog: bool, attach: str = "") -> None:
        self.lake = folder / "lake.sqlite"
        self.attach = attach or f"sqlite:{self.lake}"
        self.warehouse = folder / "wh"
        self.database = folder / "cat.db"
        self.source, self.target = f"ducklake:{self.attach}", f"iceberg:{self.warehouse}"
        self.settings: tuple[tuple[str, str], ...] = ()
        if catalog:
            self.target = "iceberg-catalog:c"
            uri = f"sqlite:///{self.database}"
            self.settings = ("type", "sql"), ("uri", uri), ("warehouse", str(self.warehouse))
        self.do()

    def do(self, *statements: str) -> None:
        options = f"DATA_PATH '{self.lake}.files/', DATA_INLINING_ROW_LIMIT 0"
        assert [each for each in use(self.attach, ["USE lake", *statements], options) if each] == []

    def round(self, on_drop: Any = "keep", *, told: bool = False, **more: Any) -> Round:
        """Catch up; `told`: status says it all before."""
        pair = replace(self.pair(**more), on_drop=on_drop)
        return foretold(pair) if told else catch_up(pair, Silent())

    def pair(self, **more: Any) -> Pair:
        return Pair(
            self.source, self.target, bridge.Options(**{"verify": "none", "target_options": self.settings, **more})
        )

    def ends(self) -> tuple[str, str, bridge.Options]:
        pair = self.pair()
        return pair.source, pair.target, pair.options

    def tables(self) -> dict[str, Path]:
        """Where the metadata of each table of the target is."""
        if self.settings:
            with sqlite3.connect(self.database) as catalog:
                query = "SELECT table_namespace || '.' || table_name, metadata_location FROM iceberg_tables"
                return {name: Path(place.removeprefix("file://")) for name, place in catalog.execute(query)}
        hints = self.warehouse.rglob("version-hint.text")
        return {
            ".".join(each.parent.parent.relative_to(self.warehouse).parts): each.parent
            / f"v{each.read_text()}.metadata.json"
            for each in hints
        }

    def append(self, name: str) -> int:
        """Somebody else appends to a table of the catalog."""
        table = SqlCatalog("c", **dict(self.settings)).load_table(name)
        table.append(table.scan(limit=1).to_arrow())
        snapshot = table.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def wrong(self, names: Mapping[str, str], folder: Path) -> list[str]:
        """What PyIceberg and DuckDB read otherwise than the lake has it, at every snapshot; by quoted name."""
        subjects, there = [], self.tables()
        for name, quoted in names.items():
            with opened(self.lake) as lake:
                versions: list[tuple[int | None, Any]] = []
                for each in json.loads(there[name].read_text())["snapshots"]:
                    query = f"FROM {quoted} AT (VERSION => {each['summary']['ducklake-bridge.source-commit']})"
                    versions.append((each["snapshot-id"], lake.execute(query).to_arrow_table()))
                versions.append((None, lake.execute(f"FROM {quoted}").to_arrow_table()))
                subjects.append(Published(name, there[name], tuple(versions), answers=False))
        return judge_iceberg(subjects, ["pyiceberg", "duckdb"], folder)


@pytest.fixture(params=["directory", pytest.param("catalog", marks=pytest.mark.exhaustive)])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Followed:
    return Followed(tmp_path, request.param == "catalog")


def states(made: Round) -> dict[str, str]:
    assert made.error is None, made.error
    return {str(each.source): each.state.value for each in made.tables}


@pytest.mark.slow
@pytest.mark.parametrize("mended", [False, True])
def test_what_duckdb_makes_of_a_widened_column_is_published(mended: bool, tmp_path: Path) -> None:
    """DuckDB 1.5.5 changes values where it compacts by bounds that it has forgotten; the README says what helps."""
    followed = Followed(tmp_path, False)
    insert = "INSERT INTO t SELECT i, i FROM range({}, {}) r(i)"
    followed.do(
        *("CREATE TABLE t (id INTEGER, c SMALLINT)", insert.format(134, 157)),
        *("ALTER TABLE t ALTER c SET DATA TYPE INTEGER", insert.format(157, 184), "DELETE FROM t WHERE id = 140"),
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
    )
    if mended:
        with sqlite3.connect(followed.lake) as catalog:
            catalog.execute("DELETE FROM ducklake_table_column_stats WHERE min_value IS NULL AND max_value IS NULL")
    followed.do(insert.format(184, 190))
    assert followed.round().exit_code == 0
    followed.do("ALTER TABLE t SET SORTED BY (id DESC)", "CALL ducklake_merge_adjacent_files('lake')")
    assert followed.round().exit_code == 0
    with opened(followed.lake) as lake:
        changed = lake.execute("SELECT count(*) FROM t WHERE c + 0 <> id").fetchall()
    assert changed == [(0 if mended else 49,)]
    assert followed.wrong({"main.t": "t"}, tmp_path / "judge") == []


ODD = {
    'a.b.it\'s "x" $1': '"a.b"."it\'s ""x"" $1"',
    "main.x.y": 'main."x.y"',
    "main.ä %20#?": 'main."ä %20#?"',
    "s.t": "s.t",
}


@pytest.mark.slow
def test_names_with_dots_and_quotes_stay_what_they_are(followed: Followed, tmp_path: Path) -> None:
    made = [f"CREATE TABLE {each} AS SELECT i::INTEGER AS id FROM range(5) r(i)" for each in ODD.values()]
    followed.do('CREATE SCHEMA "a.b"', "CREATE SCHEMA s", *made)
    assert states(followed.round("drop")) == dict.fromkeys(ODD, "applied")
    assert states(followed.round("drop")) == dict.fromkeys(ODD, "current")
    followed.do(*(f"INSERT INTO {each} VALUES (9)" for each in ODD.values()))
    assert states(followed.round("drop")) == dict.fromkeys(ODD, "applied")
    assert followed.wrong(ODD, tmp_path / "judge") == []
    followed.do('DROP TABLE main."x.y"')
    assert states(followed.round("keep"))["main.x.y"] == "dropped" and followed.tables().keys() == ODD.keys()
    assert states(followed.round("drop")).pop("main.x.y") == "dropped"
    assert followed.tables().keys() == ODD.keys() - {"main.x.y"}


@pytest.mark.slow
def test_a_lake_of_the_same_relative_name_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one mirror wrote was not dropped at the source of another that is run in another directory."""
    target = f"iceberg:{tmp_path / 'wh'}"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert not any(use(str(tmp_path / name / "lake.ducklake"), [f"CREATE TABLE lake.{name}(id INTEGER)"]))
        pair = Pair("ducklake:lake.ducklake", target, bridge.Options(verify="none"), on_drop="drop")
        assert states(catch_up(pair, Silent())) == {f"main.{name}": "applied"}
    assert {each.name for each in (tmp_path / "wh/main").iterdir()} == {"one", "two"}


@pytest.mark.parametrize(
    ("text", "lasting"),
    [
        ("ducklake:l.db", "ducklake:{here}/l.db"),
        ("ducklake:duckdb:l.db", "ducklake:{here}/l.db"),
        ("ducklake:sqlite:a/../l.db", "ducklake:sqlite:{here}/l.db"),
        ("ducklake:postgres:dbname=l", "ducklake:postgres:dbname=l"),
        ("iceberg:wh/", "iceberg:{here}/wh"),
        ("iceberg:s3://b/wh", "iceberg:s3://b/wh"),
        ("iceberg-catalog:prod", "iceberg-catalog:prod"),
    ],
)
def test_a_source_is_remembered_by_where_it_lies(
    text: str, lasting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_locator(text).lasting == lasting.format(here=tmp_path.resolve())


@pytest.mark.slow
def test_patterns_of_what_is_gone_or_still_to_come_hold_nothing_up(tmp_path: Path) -> None:
    followed = Followed(tmp_path, False)
    followed.do("CREATE TABLE a(i INTEGER)", "CREATE TABLE b(i INTEGER)")
    for pattern, code in (("s.*", 0), ("main.x", 2)):
        assert run_here("status", *followed.ends()[:2], "--table", pattern).code == code
    waiting = followed.round("drop", tables=("s.*",))
    assert waiting.exit_code == 0 and waiting.tables == () and waiting.idle == ("s.*",)
    assert "s.* matches no table" in "".join(lines(waiting, "text", str))
    assert lines(replace(waiting, began=9), "text", str, waiting) == []
    mistyped = followed.round("drop", tables=("main.x",))
    assert isinstance(mistyped.error, UsageError)
    chosen = {"tables": ("main.a", "main.b", "s.*")}
    assert states(followed.round("drop", **chosen)) == {"main.a": "applied", "main.b": "applied"}
    followed.do("DROP TABLE b", "INSERT INTO a VALUES (1)")
    assert states(followed.round("drop", **chosen)) == {"main.a": "applied", "main.b": "dropped"}
    followed.do("CREATE SCHEMA s", "CREATE TABLE s.c(i INTEGER)", "ALTER TABLE a RENAME TO z")
    again = followed.round("keep", **chosen)  # nothing tells of b any more
    assert states(again) == {"main.a": "dropped", "s.c": "applied"} and again.idle == ("main.a", "main.b")
    stands = status(*followed.ends()[:2], followed.pair(**chosen).options, now=time.time())
    assert {str(each.source): each.standing.value for each in stands} == {"s.c": "current", "main.a": "dropped"}
    assert [each.message for each in stands] == ["", "it was dropped at the source"]  # z is not asked for
    repeated = followed.round("keep", **chosen)
    assert len(lines(again, "text", str)) == 4 and lines(repeated, "text", str, again) == []
    followed.do("DROP TABLE z", "DROP TABLE s.c")
    said = run_here("status", *followed.ends()[:2])
    assert said.code == 0 and said.out.endswith("in all: 2 dropped\n")


@pytest.mark.slow
def test_what_status_foretells_comes(tmp_path: Path) -> None:
    """Rows in the catalog, rows that went from there to a file, names that were swapped, a table that was made anew."""
    followed = Followed(tmp_path, False)
    use(followed.attach, ["USE lake", "CREATE TABLE a AS SELECT 1 AS i", "CREATE TABLE b AS SELECT 2 AS i"])
    [a, _] = status(*followed.ends(), now=time.time())
    assert (a.pending_files, a.pending_bytes) == (1, None)
    assert followed.round(told=True).exit_code == 0
    followed.do("CALL ducklake_flush_inlined_data('lake')")
    assert {each.pending_files for each in status(*followed.ends(), now=time.time())} == {1}
    made = followed.round(told=True)
    assert all(each.files == 1 and each.bytes for each in made.tables)
    followed.do("ALTER TABLE a RENAME TO z", "ALTER TABLE b RENAME TO a", "ALTER TABLE z RENAME TO b")
    assert followed.round(told=True).exit_code == 0
    followed.do("DROP TABLE a", "CREATE TABLE a AS SELECT 3 AS j")
    [a, _] = status(*followed.ends(), now=time.time())
    assert (a.standing, a.exit_code) == (Standing.ABSENT, 0) and "makes this one anew" in a.message
    assert followed.round(told=True).exit_code == 0


@pytest.mark.slow
def test_a_lake_that_was_restored_from_a_backup_is_said(followed: Followed, tmp_path: Path) -> None:
    followed.do("CREATE TABLE t AS SELECT 1 AS i", "CREATE TABLE u AS SELECT 1 AS i")
    followed.round()
    copy2(followed.lake, tmp_path / "backup")
    followed.do("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    followed.round()
    copy2(tmp_path / "backup", followed.lake)
    said = {str(each.source): (each.state.value, each.message) for each in followed.round().tables}
    assert said["main.u"] == ("current", "")
    assert said["main.t"][0] == "applied" and "the lake was restored" in said["main.t"][1]
    followed.do("INSERT INTO t VALUES (4)", "DELETE FROM t WHERE i = 1")
    assert [each.message for each in followed.round().tables] == ["", ""]
    assert followed.wrong({"main.t": "t", "main.u": "u"}, tmp_path / "judge") == []


@pytest.mark.slow
def test_what_somebody_else_wrote_is_named_and_never_dropped(followed: Followed) -> None:
    followed.do("CREATE TABLE t AS SELECT 1 AS i")
    followed.round()
    other = appended(followed.tables()["main.t"].parent.parent) if not followed.settings else followed.append("main.t")
    followed.do("ALTER TABLE t RENAME TO u", "CREATE TABLE t AS SELECT 2 AS i")
    for step in ("SELECT 1", "DROP TABLE t"):
        followed.do(step)
        made = followed.round("drop")
        assert made.exit_code == 5 and states(made) == {"main.t": "conflict", "main.u": made.tables[-1].state.value}
        assert str(other) in made.tables[0].message and str(other) in followed.tables()["main.t"].read_text()


@pytest.mark.slow
def test_a_table_that_somebody_renamed_in_the_catalog_is_not_published_anew(tmp_path: Path) -> None:
    """It lies where another one of the name would, and is still ours; one that was dropped there comes again."""
    followed = Followed(tmp_path, True)
    followed.do(*(f"CREATE TABLE {each} AS SELECT 1 AS i" for each in "tud"))
    followed.round()
    catalog = SqlCatalog("c", **dict(followed.settings))
    catalog.create_namespace("other")
    catalog.rename_table("main.t", "other.moved")
    catalog.drop_table("main.d")
    for step in ("SELECT 1", "INSERT INTO t VALUES (2)", "DROP TABLE t"):
        followed.do(step, "INSERT INTO u VALUES (2)")
        there = time.time()
        found = {str(each.source): each for each in status(*followed.ends(), now=there)}
        made = followed.round("drop")
        assert states(made) == {
            **({} if "DROP" in step else {"main.t": "conflict"}),
            "main.u": "applied",
            "main.d": "applied" if step == "SELECT 1" else "current",
        }
        if "DROP" not in step:
            assert made.exit_code == 5 and "renamed_table to other.moved" in made.tables[1].message
            assert (found["main.t"].standing, found["main.t"].exit_code) == (Standing.CHANGED, 5)
        assert followed.tables().keys() == {"other.moved", "main.u", "main.d"}
    assert followed.wrong({"main.u": "u", "main.d": "d"}, tmp_path / "judge") == []


@pytest.mark.slow
def test_a_catalog_that_refuses_commits_leaves_no_file_a_try(tmp_path: Path) -> None:
    followed = Followed(tmp_path, True)
    followed.do("CREATE TABLE t AS SELECT 1 AS i")
    followed.round()
    followed.do("INSERT INTO t VALUES (2)")
    before = {each for each in followed.warehouse.rglob("*") if each.is_file()}
    with closing(sqlite3.connect(followed.database)) as catalog:
        refusing = "BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(FAIL, 'read only'); END"
        catalog.execute(f"CREATE TRIGGER refusing {refusing}")
        assert followed.round().exit_code == 6
        assert {each for each in followed.warehouse.rglob("*") if each.is_file()} == before
        catalog.execute("DROP TRIGGER refusing")
    assert states(followed.round()) == {"main.t": "applied"}
    assert followed.wrong({"main.t": "t"}, tmp_path / "judge") == []


@pytest.mark.slow
def test_a_table_whose_commits_are_refused_keeps_no_other_of_its_round(tmp_path: Path) -> None:
    """Those that were committed before it are not taken for somebody else's, and are told as what they are."""
    followed = Followed(tmp_path, True)
    followed.do(*(f"CREATE TABLE {each} AS SELECT 1 AS i" for each in "tuv"))
    followed.round()
    with closing(sqlite3.connect(followed.database)) as catalog:
        when = "BEFORE UPDATE ON iceberg_tables WHEN NEW.table_name = 'u' BEGIN SELECT RAISE(FAIL, 'no more of u'); END"
        catalog.execute(f"CREATE TRIGGER refusing {when}")
    followed.do(*(f"INSERT INTO {each} VALUES (2)" for each in "tuv"))
    made = followed.round(verify="rows")
    assert states(made) == {"main.t": "applied", "main.u": "unreachable", "main.v": "applied"}
    assert [each.commits for each in made.tables] == [1, 0, 1] and "no more of u" in made.tables[1].message
    with closing(sqlite3.connect(followed.database)) as catalog:
        catalog.execute("DROP TRIGGER refusing")
    assert states(followed.round()) == {"main.t": "current", "main.u": "applied", "main.v": "current"}
    assert followed.wrong({"main.t": "t", "main.u": "u", "main.v": "v"}, tmp_path / "judge") == []


@pytest.mark.slow
@pytest.mark.parametrize("vectors", [False, True])
def test_a_delete_file_that_another_took_the_place_of_is_not_missed(vectors: bool, tmp_path: Path) -> None:
    """The lake schedules it for deletion at once; published snapshots have their own."""
    followed = Followed(tmp_path, False)
    kept = ["CALL ducklake_set_option('lake', 'write_deletion_vectors', true)"] if vectors else []
    followed.do(*kept, "CREATE TABLE t AS SELECT * FROM range(9) r(i)", "DELETE FROM t WHERE i = 1")
    followed.round()
    followed.do("DELETE FROM t WHERE i = 2")
    [(path,)] = lake_rows(followed.lake, "SELECT path FROM ducklake_files_scheduled_for_deletion")
    assert path.endswith(".puffin") == vectors
    [found] = status(*followed.ends(), now=time.time())
    assert found.standing is Standing.BEHIND and found.expiring is None


@pytest.mark.slow
def test_two_mirrors_of_one_pair_do_not_end_one_another(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is always first; what it did is taken up by the next round."""
    followed.do("CREATE TABLE t AS SELECT 1 AS i")
    rounds: list[Round] = []
    stop, real = threading.Event(), IcebergTarget._ready

    def second(self: IcebergTarget, write: Any, progress: Any) -> Any:
        ready = real(self, write, progress)
        if len(rounds) < 3:
            with monkeypatch.context() as patched:
                patched.setattr(IcebergTarget, "_ready", real)
                assert states(followed.round()) == {"main.t": "applied"}
        return ready

    def told(made: Round) -> None:
        rounds.append(made)
        if len(rounds) == 4:
            stop.set()
        else:
            followed.do("INSERT INTO t VALUES (2)")

    monkeypatch.setattr(IcebergTarget, "_ready", second)
    pair = replace(followed.pair(), interval=0.0)
    assert loop.mirror((pair,), once=False, jobs=1, stop=stop, told=told, progress=Silent()) == 0
    assert [type(each.error).__name__ for each in rounds] == ["Overtaken"] * 3 + ["NoneType"]
    assert states(followed.round()) == {"main.t": "current"}


@pytest.mark.slow
def test_a_table_that_another_mirror_made_anew_is_not_dropped(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.do("CREATE TABLE t AS SELECT 1 AS i", "CREATE TABLE u AS SELECT 1 AS i")
    followed.round()
    followed.do("DROP TABLE t", "CREATE TABLE t AS SELECT 2 AS i")
    real = IcebergTarget.drop

    def second(self: IcebergTarget, *given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTarget, "drop", real)
            assert followed.round().error is None
        real(self, *given)

    monkeypatch.setattr(IcebergTarget, "drop", second)
    assert isinstance(followed.round().error, Overtaken)
    assert followed.tables().keys() == {"main.t", "main.u"}
    assert states(followed.round()) == {"main.t": "current", "main.u": "current"}
    followed.do("INSERT INTO t VALUES (3)")
    said = {str(each.source): (each.state.value, each.message) for each in followed.round().tables}
    assert said == {"main.t": ("applied", ""), "main.u": ("current", "")}  # what it was made anew from is said once


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["directory", "metadata"])
def test_a_table_that_cannot_be_written_holds_up_no_other(broken: str, tmp_path: Path) -> None:
    """It is tried again by itself, and has each commit once when what was wrong is put right."""
    followed = Followed(tmp_path, False)
    followed.do("CREATE TABLE a AS SELECT 1 AS i", "CREATE TABLE t AS SELECT 1 AS i", "CREATE TABLE u AS SELECT 1 AS i")
    code, state = {"metadata": (3, "blocked")}.get(broken, (6, "unreachable"))
    if broken != "directory":
        followed.round()
        followed.do(*(f"INSERT INTO {each} VALUES (2)" for each in "atu"))
    place = tmp_path / "wh/main/t/metadata"
    kept = tmp_path / "kept"
    if broken == "directory":
        place.parent.mkdir(parents=True)
        place.write_text("in the way")
    else:
        place = followed.tables()["main.t"]
        place.rename(kept)
        place.write_text("{")
    rounds: list[Round] = []
    stop = threading.Event()

    def told(made: Round) -> None:
        rounds.append(made)
        seen = len(rounds)
        if (seen > 2 and made.exit_code == 0) or seen > 30:
            stop.set()
            return
        followed.do(f"INSERT INTO u VALUES ({seen})")
        if seen == 2:
            place.unlink()
            if kept.exists():
                kept.rename(place)

    pair = replace(followed.pair(), interval=0.05)
    assert loop.mirror((pair,), once=False, jobs=1, stop=stop, told=told, progress=Silent()) == 0
    assert [each.error for each in rounds] == [None] * len(rounds)
    tried = [{each.source.name: each.state.value for each in made.tables} for made in rounds]
    assert rounds[0].exit_code == code and tried[0] == {"a": "applied", "t": state, "u": "applied"}
    assert all(each["u"] == "applied" for each in tried) and any("t" not in each for each in tried)
    assert all(made.exit_code == code for made in rounds[:2]) and tried[-1]["t"] == "applied"
    assert followed.wrong({"main.t": "t", "main.u": "u", "main.a": "a"}, tmp_path / "judge") == []
    commits = [each["summary"]["ducklake-bridge.source-commit"]
               for each in json.loads(followed.tables()["main.t"].read_text())["snapshots"]]  # fmt: skip
    assert len(commits) == len(set(commits)) == {"directory": 1, "metadata": 2}[broken]


@pytest.mark.slow
def test_a_source_that_is_held_for_now_is_no_conflict_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(tmp_path, False)
    followed.do("CREATE TABLE t AS SELECT 1 AS i", "CREATE TABLE u AS SELECT 1 AS i")
    real, asked = LakeSourceTable.files, list[int]()

    def files(self: LakeSourceTable, *given: Any) -> Any:
        asked.append(1)
        if len(asked) == 2:
            with closing(sqlite3.connect(followed.lake, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                return real(self, *given)
        return real(self, *given)

    monkeypatch.setattr(LakeSourceTable, "files", files)
    assert isinstance(followed.round().error, Overtaken)
    assert set(states(followed.round()).values()) == {"applied"}


@pytest.mark.slow
def test_what_was_found_wrong_stays_wrong_in_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(tmp_path, False)
    followed.do("CREATE TABLE t AS SELECT 1 AS i", "CREATE TABLE u AS SELECT 1 AS i")
    wrong = [{"rows": 7, "columns": ["i"]}, {"rows": 1, "columns": ["i"]}]
    monkeypatch.setattr(
        verifying, "_ask", lambda asked: [wrong[0] if "/t/" in each["metadata"] else wrong[1] for each in asked]
    )
    for _ in range(2):
        made = followed.round(verify="metadata")
        assert made.exit_code == 4
        assert {each.source.name: "7 rows" in each.message for each in made.tables} == {"t": True, "u": False}


@pytest.mark.slow
def test_what_another_mirror_added_meanwhile_is_not_taken_for_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = Followed(tmp_path, False)
    followed.do("CREATE TABLE t AS SELECT 1 AS i")
    real = IcebergTarget.commit

    def commit(self: IcebergTarget, *given: Any) -> Any:
        made = real(self, *given)
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTarget, "commit", real)
            followed.do("INSERT INTO t VALUES (2)")
            assert states(followed.round()) == {"main.t": "applied"}
        return made

    monkeypatch.setattr(IcebergTarget, "commit", commit)
    assert states(followed.round(verify="metadata")) == {"main.t": "applied"}
    assert states(followed.round(verify="metadata")) == {"main.t": "current"}
