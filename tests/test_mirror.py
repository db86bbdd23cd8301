"""Mirroring an Iceberg catalog into a DuckLake: what a round does with everything that can happen to either side."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import bridge
from bridge.errors import BridgeError, Conflict, Overtaken, UsageError
from bridge.mirroring import loop
from bridge.mirroring.aside import Aside, needs_somebody
from bridge.mirroring.pair import Pair, Round, State, TableOutcome
from bridge.mirroring.rounds import catch_up
from bridge.mirroring.status import Standing, status
from bridge.model.table import TableName
from bridge.ports import Silent
from converters.ducklake.catalog import session as sessions
from converters.ducklake.catalog.session import parse_place, session
from converters.ducklake.writer import DuckLakeTarget
from tests.foretold import foretold
from tests.lake_versions import wrong_versions
from tests.mirror_steps import Life
from tests.refusals import duckdb_held
from tests.support import ROOT, lake_rows, opened, tree_hash, use
from tests.test_runs import KILLED

_THERE = "SELECT to_regclass('ducklake_metadata') IS NOT NULL"
FILES = pytest.mark.parametrize(
    "backend",
    [pytest.param("", id="duckdb"), pytest.param("sqlite:", marks=pytest.mark.exhaustive, id="sqlite")],
)
"""Kinds of lakes in a file; lakes on SQLite and PostgreSQL are those of the walks in every run."""


@dataclass
class Mirrored:
    """A source of some tables, the lake that follows it, and the rows that each of the lake's snapshots must hold."""

    root: Path
    backend: str = ""
    options: bridge.Options = field(default_factory=lambda: bridge.Options(verify="none"))
    lives: dict[str, Life] = field(default_factory=dict)
    expected: list[tuple[tuple[str, str], int | None, pa.Table]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lake: Path | str = self.root / ("lake.sqlite" if self.backend else "lake.db")
        self.attach = f"{self.backend}{self.lake}"
        if self.backend.startswith("postgres:"):
            self.lake = self.attach = self.backend
            self.options = replace(self.options, data_path=f"{self.root}/files")

    def add(self, name: str = "db.t", seed: int = 1) -> Life:
        """One more table at the source."""
        life = self.lives[name] = Life(self.root, random.Random(seed), name)
        self.options = replace(self.options, source_options=life.options)
        return life

    def pair(self, **more: Any) -> Pair:
        on_drop = more.pop("on_drop", "keep")
        options = replace(self.options, **more)
        return Pair("iceberg-catalog:c", f"ducklake:{self.attach}", options, interval=0.1, on_drop=on_drop)

    def round(self, *, told: bool = False, **more: Any) -> Round:
        """Catch up, and remember what each new snapshot has to answer; `told`: status says it all before."""
        before, pair = len(self.noted()), self.pair(**more)
        made = foretold(pair) if told else catch_up(pair, Silent())
        self.remember(before)
        return made

    def noted(self) -> list[tuple[int, str, str]]:
        """(lake snapshot, source commit, table) as the lake's snapshots say it."""
        there = self.lake.exists() if isinstance(self.lake, Path) else lake_rows(self.lake, _THERE)[0][0]
        if not there:
            return []
        query = "SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes ORDER BY 1"
        return [
            (id_, each["commit"], each["table"])
            for id_, info in lake_rows(self.lake, query)
            for each in json.loads(info or "{}").get("tables", [])
        ]

    def remember(self, before: int = 0) -> None:
        known = {commit: rows for life in self.lives.values() for commit, rows in life.shown.items()}
        now = {life.name: life.now for life in self.lives.values()}
        for snapshot, commit, table in self.noted()[before:]:
            schema, _, name = table.rpartition(".")
            self.expected.append(((schema, name), snapshot, known[commit] if commit else now[table]))

    def commits(self, table: str = "db.t") -> list[str]:
        """The source commits that snapshots of the lake stand for, in order."""
        return [commit for _, commit, name in self.noted() if name == table and commit]

    def wrong(self) -> list[str]:
        """What DuckDB answers otherwise, now and at every snapshot."""
        now = [(_names(life.name), None, life.now) for life in self.lives.values()]
        return wrong_versions(self.attach, [*self.expected, *now], self.root / "asked")

    def bookmark(self) -> str:
        """The source commit that the lake says it is at; "" while somebody holds it."""
        try:
            rows = lake_rows(self.lake, "SELECT value FROM ducklake_metadata WHERE key = 'bridge.source_commit'")
        except duckdb.Error:
            return ""
        return str(rows[-1][0])

    def ids(self) -> dict[str, int]:
        """Table id by the name that it has now."""
        query = "SELECT schema_name || '.' || table_name, t.table_id FROM ducklake_table t JOIN ducklake_schema s "
        query += "ON s.schema_id = t.schema_id WHERE t.end_snapshot IS NULL"
        return dict(lake_rows(self.lake, query))


def _names(name: str) -> tuple[str, str]:
    schema, _, table = name.rpartition(".")
    return schema, table


def states(made: Round) -> dict[str, str]:
    assert made.error is None, made.error
    return {str(each.source): each.state.value for each in made.tables}


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    return Mirrored(tmp_path)


def does(life: Life, *steps: str) -> None:
    for each in steps:
        life.do(each)


@pytest.mark.slow
@FILES
def test_each_commit_becomes_one_snapshot_once(backend: str, tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, backend)
    life = mirrored.add()
    assert states(mirrored.round()) == {"db.t": "applied"}
    does(life, "append", "delete", "append", "overwrite")
    assert states(mirrored.round()) == {"db.t": "applied"}
    assert states(mirrored.round()) == {"db.t": "current"}
    does(
        life, "add_column", "append", "widen", "delete", "rename_column", "replace_all", "spec", "append", "drop_column"
    )
    made = mirrored.round()
    assert made.tables[0].commits and made.tables[0].behind == 0 and made.exit_code == 0
    assert mirrored.commits() == life.line
    assert mirrored.wrong() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "twice"),
    [
        (("rollback",), True),
        (("rollback", "append"), False),
        (("rollback", "delete", "add_column", "append"), False),
        (("branch",), False),
        (("truncate", "rollback"), True),
        (("drop_column", "rollback"), True),
        (("spec", "append", "rollback", "spec", "append"), False),
    ],
)
def test_a_source_that_goes_another_way_is_followed_by_commits(
    steps: Sequence[str], twice: bool, mirrored: Mirrored
) -> None:
    life = mirrored.add(seed=3)
    does(life, "append", "delete", "append", "overwrite", "append")
    mirrored.round()
    before = mirrored.commits()
    old = lake_rows(mirrored.lake, "SELECT * FROM ducklake_snapshot ORDER BY 1")
    does(life, *steps)
    made = mirrored.round()
    assert states(made) == {"db.t": "applied"}
    assert lake_rows(mirrored.lake, "SELECT * FROM ducklake_snapshot ORDER BY 1")[: len(old)] == old
    # what is new at the source, each once; where nothing is, the state that it is in again
    new = [each for each in life.line if each not in before] or life.line[-1:]
    assert mirrored.commits() == [*before, *new]
    assert (new == life.line[-1:] and new[0] in before) == twice
    if "branch" not in steps:
        assert "everything was compared" in made.tables[0].message
    does(life, "append", "delete")
    assert states(mirrored.round()) == {"db.t": "applied"} and states(mirrored.round()) == {"db.t": "current"}
    assert mirrored.wrong() == []


def test_a_bookmark_that_expired_costs_a_comparison_and_no_copy(mirrored: Mirrored) -> None:
    life = mirrored.add()
    does(life, "append", "append", "append")
    mirrored.round()
    held = life.line[-1]
    does(life, "append", "append")
    life.table.maintenance.expire_snapshots().by_ids([int(each) for each in life.line[:4]]).commit()
    life.table = life.catalog.load_table(life.name)
    assert held not in life.line
    files = lake_rows(mirrored.lake, "SELECT count(*) FROM ducklake_data_file")[0][0]
    made = mirrored.round()
    assert held in made.tables[0].message and "everything was compared" in made.tables[0].message
    # of the commit that is gone the file is there, in one snapshot with that of the next
    assert lake_rows(mirrored.lake, "SELECT count(*) FROM ducklake_data_file")[0][0] == files + 2
    assert mirrored.wrong() == []


@pytest.mark.slow
@FILES
@pytest.mark.parametrize("name", ["Else where.t", pytest.param("db.other", marks=pytest.mark.exhaustive)])
def test_a_renamed_table_stays_the_same_one(name: str, backend: str, tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, backend, bridge.Options(verify="rows"))
    life = mirrored.add()
    does(life, "append", "append")
    mirrored.round()
    [id_] = mirrored.ids().values()
    source = tree_hash(tmp_path / "wh")
    life.call(name)
    made = mirrored.round()
    assert [each.state for each in made.tables] == [State.APPLIED, State.CURRENT] and made.error is None
    assert mirrored.ids() == {name: id_}
    assert tree_hash(tmp_path / "wh") == source
    does(life, "append", "add_column", "delete")
    made = mirrored.round()
    assert states(made) == {name: "applied"}, made.tables
    life._to(life.line[1])
    life.table = life.catalog.load_table(life.name)
    before = mirrored.commits(name)
    # what the lake holds is known by the table, not by what it was called: nothing comes twice
    assert states(mirrored.round()) == {name: "applied"}
    assert mirrored.commits(name) == [*before, life.line[-1]]
    assert mirrored.wrong() == []
    assert used_afterwards(mirrored, name) == []


def used_afterwards(mirrored: Mirrored, name: str) -> list[str]:
    """Faults of ordinary use of a table in DuckDB, in the lake itself, in which nothing may fail or be lost."""
    at = "lake." + ".".join(f'"{each}"' for each in _names(name))
    keys = "SELECT (count(*), count(DISTINCT id), sum(id)) FROM"
    steps = [
        f"INSERT INTO {at} (id) VALUES (-1)",
        f"ALTER TABLE {at} ADD COLUMN later INTEGER DEFAULT 7",
        f"INSERT INTO {at} (id, later) VALUES (-2, 1)",
        f"INSERT INTO {at} (id) SELECT -i FROM range(3, 4000) r(i)",
        f"UPDATE {at} SET later = 8 WHERE id = -1",
        f"CREATE TABLE lake.before AS SELECT * FROM {at}",
        "CALL ducklake_flush_inlined_data('lake')",
        f"DELETE FROM {at} WHERE id = -4",
        f"ALTER TABLE {at} RENAME COLUMN later TO latest",
        f"INSERT INTO {at} (id) VALUES (-4)",
        f"SELECT CASE WHEN ({keys} {at}) = ({keys} lake.before) THEN 1 ELSE error('rows were lost') END",
        f"SELECT CASE WHEN (SELECT latest FROM {at} WHERE id = -1) = 8 THEN 1 ELSE error('a value was lost') END",
    ]
    if mirrored.backend:
        steps[7:7] = ["CALL ducklake_merge_adjacent_files('lake')", "CALL ducklake_rewrite_data_files('lake')"]
        steps += [
            "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
            "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
            "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
            f"SELECT count(*) FROM {at}",
        ]
    source = tree_hash(mirrored.root / "wh")
    said = [
        f"{statement}: {error}" for statement, error in zip(steps, use(mirrored.attach, steps), strict=True) if error
    ]
    return said if tree_hash(mirrored.root / "wh") == source else [*said, "files of the source were changed"]


@pytest.mark.slow
def test_names_that_go_from_one_table_to_another(mirrored: Mirrored) -> None:
    """Two tables swap theirs, and a third takes that of one that was dropped."""
    a, b, c = mirrored.add("db.a", 1), mirrored.add("db.b", 2), mirrored.add("db.c", 3)
    dropped = mirrored.add("db.d", 4)
    for each in (a, b, c, dropped):
        does(each, "append", "append")
    mirrored.round()
    ids = mirrored.ids()
    a.call("db.x")
    b.call("db.a")
    a.call("db.b")
    dropped.catalog.drop_table("db.d")
    del mirrored.lives["db.d"]
    c.call("db.d")
    does(a, "append")
    made = mirrored.round(told=True)
    assert made.error is None and made.exit_code == 0, made
    assert mirrored.ids() == {"db.a": ids["db.b"], "db.b": ids["db.a"], "db.d": ids["db.c"]}
    assert {each.state for each in made.tables} == {State.APPLIED, State.CURRENT, State.DROPPED}
    assert mirrored.wrong() == []


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process itself opens the lake in the middle of a round, which others cannot."""
    monkeypatch.setattr(DuckLakeTarget, "kept_open", lambda _: nullcontext())


@pytest.mark.slow
@pytest.mark.usefixtures("looked_into")
@pytest.mark.parametrize("step", ["registered", "commit"])
def test_a_round_that_another_mirror_made_first_is_not_made_again(
    step: str, mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the plan is made, or between plan and commit, the other one brings the same commits, or more of them."""
    life = mirrored.add()
    does(life, "append")
    mirrored.round()
    real, more = getattr(DuckLakeTarget, step), list[str]()

    def second(self: DuckLakeTarget, *given: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(DuckLakeTarget, step, real)
            does(life, *more)
            assert states(mirrored.round()) == {"db.t": "applied"}
        return real(self, *given)

    for _ in range(2):
        does(life, "append", "delete")
        monkeypatch.setattr(DuckLakeTarget, step, second)
        assert isinstance(mirrored.round().error, Overtaken)
        monkeypatch.setattr(DuckLakeTarget, step, real)
        more.append("append")
    assert states(mirrored.round()) == {"db.t": "current"}
    assert mirrored.commits() == life.line and mirrored.wrong() == []


@pytest.mark.slow
@pytest.mark.usefixtures("looked_into")
@pytest.mark.parametrize("step", ["drop", "move"])
def test_another_mirror_that_follows_the_names_first_is_looked_at_again(
    step: str, mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dropped or renamed is the table that was looked at, not what has its name by then; a lake that somebody
    holds meanwhile is waited for."""
    a, b = mirrored.add("db.a", 1), mirrored.add("db.b", 2)
    for each in (a, b):
        does(each, "append")
    mirrored.round()
    before = mirrored.ids()
    if step == "drop":
        does(a, "again", "append")
    else:
        a.call("db.x")
        b.call("db.a")
        a.call("db.b")
    real = getattr(DuckLakeTarget, step)

    def held(self: DuckLakeTarget, *given: Any) -> None:
        with duckdb_held(mirrored.lake):
            real(self, *given)

    def second(self: DuckLakeTarget, *given: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(DuckLakeTarget, step, real)
            assert mirrored.round().error is None
        real(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "_TRIES", 2)
        patched.setattr(DuckLakeTarget, step, held)
        made = mirrored.round()
        assert made.error is not None and made.error.passes_by_itself, made
    monkeypatch.setattr(DuckLakeTarget, step, second)
    assert isinstance(mirrored.round().error, Overtaken)
    monkeypatch.setattr(DuckLakeTarget, step, real)
    swapped = {"db.a": before["db.b"], "db.b": before["db.a"]}
    assert mirrored.ids() == (swapped if step == "move" else {"db.b": before["db.b"], "db.a": mirrored.ids()["db.a"]})
    assert set(states(mirrored.round()).values()) == {"current"}
    assert mirrored.wrong() == []


@pytest.mark.slow
def test_the_name_that_a_renamed_table_had_may_become_anothers(mirrored: Mirrored) -> None:
    a, b = mirrored.add("db.a", 1), mirrored.add("db.b", 2)
    for each in (a, b):
        does(each, "append")
    mirrored.round()
    before = mirrored.ids()
    a.call("db.x")
    new = mirrored.add("db.new", 3)
    new.call("db.a")
    mirrored.lives = {"db.x": a, "db.b": b, "db.a": new}
    does(new, "append")
    assert states(mirrored.round(told=True)) == {"db.x": "current", "db.b": "current", "db.a": "applied"}
    ids = mirrored.ids()
    assert ids == {"db.x": before["db.a"], "db.b": before["db.b"], "db.a": ids["db.a"]}
    assert mirrored.wrong() == []
    # what was renamed in the lake is another matter
    assert use(mirrored.attach, ["ALTER TABLE lake.db.b RENAME TO mine"]) == [""]
    does(b, "append")
    assert states(mirrored.round()) == {"db.x": "current", "db.b": "conflict", "db.a": "current"}


@pytest.mark.slow
def test_a_renamed_table_that_cannot_be_opened_for_now_is_not_dropped(mirrored: Mirrored) -> None:
    life = mirrored.add("db.a", 1)
    mirrored.add("db.c", 3)
    does(life, "append", "append")
    mirrored.round()
    before = mirrored.ids()["db.a"]
    life.call("db.x")
    mirrored.lives["db.x"] = mirrored.lives.pop("db.a")
    document = Path(life.table.metadata_location.removeprefix("file://"))
    document.rename(document.with_suffix(".aside"))
    made = mirrored.round(on_drop="drop")
    assert states(made)["db.a"] == "unreachable" and "it may be db.x" in made.tables[0].message
    assert states(made)["db.x"] == "unreachable"
    assert mirrored.ids()["db.a"] == before
    document.with_suffix(".aside").rename(document)
    assert mirrored.round(on_drop="drop").exit_code == 0
    assert mirrored.ids()["db.x"] == before and mirrored.wrong() == []


@pytest.mark.slow
@pytest.mark.parametrize("on_drop", ["keep", "drop"])
def test_a_dropped_table(on_drop: str, mirrored: Mirrored) -> None:
    life, other = mirrored.add("db.t", 1), mirrored.add("other.t", 2)
    mirrored.add("rest.t", 3)  # a catalog without any table is taken for the wrong one
    does(life, "append")
    does(other, "append")
    chosen = {"tables": ("db.*", "other.t"), "on_drop": on_drop}
    mirrored.round(**chosen)
    other.catalog.drop_table("other.t")
    del mirrored.lives["other.t"]
    does(life, "append")
    assert states(mirrored.round(**chosen)) == {"other.t": "dropped", "db.t": "applied"}
    assert ("other.t" in mirrored.ids()) == (on_drop == "keep")
    life.catalog.drop_table("db.t")
    made = mirrored.round(tables=("db.t",), on_drop=on_drop)
    assert states(made) == {"db.t": "dropped"} and made.exit_code == 0
    mirrored.lives.clear()
    assert mirrored.wrong() == []  # what they held can be asked for at its snapshots


@pytest.mark.slow
@FILES
def test_a_table_that_was_made_anew_begins_again(backend: str, tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, backend)
    life = mirrored.add()
    does(life, "append", "append")
    mirrored.round()
    before = mirrored.ids()
    does(life, "again", "append")
    made = mirrored.round(told=True)
    assert [each.state for each in made.tables] == [State.DROPPED, State.APPLIED], made
    assert mirrored.ids() != before
    assert mirrored.commits()[-1:] == life.line
    does(life, "append")
    assert states(mirrored.round()) == {"db.t": "applied"}
    assert mirrored.wrong() == []
    assert used_afterwards(mirrored, "db.t") == []


@pytest.mark.slow
def test_new_tables_and_schemas_that_match_are_taken_up(mirrored: Mirrored) -> None:
    does(mirrored.add("db.t"), "append")
    mirrored.round(tables=("**.t*",))
    does(mirrored.add("new.t1", 2), "append")
    mirrored.add("new.other", 3)
    assert states(mirrored.round(tables=("**.t*",))) == {"db.t": "current", "new.t1": "applied"}
    del mirrored.lives["new.other"]
    assert mirrored.wrong() == []


@pytest.mark.slow
def test_what_somebody_else_wrote_stops_that_table_alone(mirrored: Mirrored) -> None:
    a, b, c = mirrored.add("db.a", 1), mirrored.add("db.b", 2), mirrored.add("db.c", 3)
    for each in (a, b, c):
        does(each, "append")
    mirrored.round()
    assert use(str(mirrored.lake), [f"DELETE FROM lake.db.{name}" for name in "ab"]) == ["", ""]
    content = lake_rows(mirrored.lake, "SELECT max(snapshot_id) FROM ducklake_snapshot")
    made = mirrored.round()
    assert states(made) == {"db.a": "conflict", "db.b": "conflict", "db.c": "current"} and made.exit_code == 5
    assert "snapshot" in made.tables[0].message
    assert lake_rows(mirrored.lake, "SELECT max(snapshot_id) FROM ducklake_snapshot") == content
    a.call("db.moved")
    does(b, "append", "again")
    does(c, "append")
    made = mirrored.round(told=True)
    assert states(made) == {"db.moved": "conflict", "db.b": "conflict", "db.c": "applied"} and made.exit_code == 5
    assert "db.a was changed in the lake" in next(
        each.message for each in made.tables if str(each.source) == "db.moved"
    )
    assert mirrored.ids().keys() == {"db.a", "db.b", "db.c"}


@pytest.mark.slow
def test_what_somebody_else_wrote_is_found_when_its_snapshot_has_expired(tmp_path: Path) -> None:
    """A later commit and an ordinary expiry take away what says who wrote to a table; its own rows still tell."""
    mirrored = Mirrored(tmp_path, "sqlite:")
    foreign = {
        "insert": ["INSERT INTO lake.db.insert (id) VALUES (-1)"],
        "delete": ["DELETE FROM lake.db.delete WHERE id = (SELECT min(id) FROM lake.db.delete)"],
        "truncate": ["DELETE FROM lake.db.truncate"],
        "alter": ["ALTER TABLE lake.db.alter DROP COLUMN x"],
        "rename": ["ALTER TABLE lake.db.rename RENAME TO renamed"],
        "merge": ["CALL ducklake_merge_adjacent_files('lake', 'merge', schema => 'db')"],
        "sort": ["ALTER TABLE lake.db.sort SET SORTED BY (id)"],
        "none": [],
        "moved": [],
    }
    lives = {name: mirrored.add(f"db.{name}", number) for number, name in enumerate(foreign)}
    for life in lives.values():
        does(life, "append", "append")
    does(lives["none"], "delete", "truncate", "append", "delete")
    mirrored.round()
    lives["moved"].call("db.elsewhere")
    does(lives["none"], "append", "overwrite", "rename_column")
    mirrored.round()
    lives["moved"].call("db.moved")
    mirrored.round()
    last = [
        "CREATE TABLE lake.db.later AS SELECT 1 AS id",
        "CALL ducklake_expire_snapshots('lake', older_than => now())",
    ]
    statements = ["USE lake", *(each for listed in foreign.values() for each in listed), *last]
    assert [each for each in use(mirrored.attach, statements) if each] == []
    assert len(lake_rows(mirrored.lake, "SELECT snapshot_id FROM ducklake_snapshot")) == 1
    found = {str(each.source).removeprefix("db."): each for each in mirrored.round().tables}
    calm = {"none", "moved", "sort", "merge"}
    assert {name: each.state.value for name, each in found.items()} == {
        name: "current" if name in calm else "conflict" for name in foreign
    }
    assert "renamed_table to db.renamed" in found["rename"].message
    for life in lives.values():
        does(life, "append")
    assert states(mirrored.round()) == {
        f"db.{name}": "applied" if name in calm - {"merge"} else "conflict" for name in foreign
    }


def test_two_mirrors_that_lead_back_do_not_feed_each_other(tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, "sqlite:")
    does(mirrored.add(), "append", "append")
    mirrored.round()
    lake, out = f"ducklake:{mirrored.attach}", f"iceberg:{tmp_path}/out"
    assert states(catch_up(Pair(lake, out, bridge.Options(verify="none")), Silent())) == {"db.t": "applied"}
    before = lake_rows(mirrored.lake, "SELECT snapshot_id FROM ducklake_snapshot")
    back = catch_up(Pair(out, lake, bridge.Options(verify="none")), Silent())
    assert states(back) == {"db.t": "blocked"} and "was itself brought from db.t" in back.tables[0].message
    assert lake_rows(mirrored.lake, "SELECT snapshot_id FROM ducklake_snapshot") == before
    [stands] = status(out, lake, now=time.time())
    assert (stands.standing, stands.exit_code) == (Standing.FOREIGN, 3)
    assert states(mirrored.round()) == {"db.t": "current"}


@pytest.mark.slow
def test_a_name_that_a_renamed_table_left_is_free(mirrored: Mirrored) -> None:
    first = mirrored.add()
    does(first, "append")
    mirrored.round()
    first.call("db.moved")
    mirrored.round()
    [old] = mirrored.ids().values()
    mirrored.lives["db.moved"] = first
    second = mirrored.add("db.t", 2)
    does(second, "append")
    assert states(mirrored.round()) == {"db.moved": "current", "db.t": "applied"}
    assert mirrored.ids()["db.moved"] == old != mirrored.ids()["db.t"]
    assert mirrored.wrong() == []


def test_a_name_that_somebody_else_has_stops_the_rename(mirrored: Mirrored) -> None:
    life = mirrored.add("db.a")
    does(life, "append")
    mirrored.round()
    assert use(str(mirrored.lake), ["CREATE TABLE lake.db.mine AS SELECT 1 AS id"]) == [""]
    life.call("db.mine")
    made = mirrored.round()
    assert states(made) == {"db.mine": "conflict"} and "db.mine exists in" in made.tables[0].message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("away", "anew"),
    [("DROP TABLE {}", "TABLE {} AS SELECT 1 AS id"), ("ALTER TABLE {} RENAME TO x", "VIEW {} AS SELECT 1 AS id")],
)
def test_a_table_that_somebody_else_put_another_in_the_place_of(away: str, anew: str, tmp_path: Path) -> None:
    mirrored = Mirrored(tmp_path, "sqlite:")
    life, other = mirrored.add(), mirrored.add("db.u", 2)
    does(life, "append")
    mirrored.round()
    assert not any(use(mirrored.attach, [away.format("lake.db.t"), f"CREATE {anew.format('lake.db.t')}"]))
    for step in (other, life):
        does(step, "append")
        made = mirrored.round()
        assert made.exit_code == 5 and states(made)["db.t"] == "conflict"
        assert states(made)["db.u"] == ("applied" if step is other else "current")
        assert "ed_table" in made.tables[0].message and "another one has its name" in made.tables[0].message
    with opened(Path(str(mirrored.lake))) as lake:
        assert lake.execute("SELECT * FROM db.t").fetchall() == [(1,)]


@pytest.mark.slow
def test_two_pairs_of_one_source_leave_each_other_alone(mirrored: Mirrored) -> None:
    life = mirrored.add()
    does(life, "append")
    for schema in ("one", "two"):
        assert mirrored.round(rename=f"{schema}.{{table}}", on_drop="drop").exit_code == 0
    life.call("db.moved")
    assert states(mirrored.round(rename="one.{table}", on_drop="drop")) == {"db.moved": "current"}
    assert mirrored.ids().keys() == {"one.moved", "two.t"}
    mirrored.round(rename="two.{table}", on_drop="drop")
    assert mirrored.ids().keys() == {"one.moved", "two.moved"}


@pytest.mark.slow
def test_an_owner_is_not_given_a_file_that_comes_back(mirrored: Mirrored) -> None:
    """Its maintenance deletes the file when it expires the snapshots in which it was there before."""
    mirrored.options = replace(mirrored.options, ownership="adopt")
    life = mirrored.add()
    does(life, "append", "append", "truncate")
    mirrored.round()
    life._to(life.line[1])
    life.table = life.catalog.load_table(life.name)
    made = mirrored.round()
    assert states(made) == {"db.t": "blocked"} and "come back" in made.tables[0].message and made.exit_code == 3
    does(life, "truncate", "append")
    assert states(mirrored.round()) == {"db.t": "applied"}
    assert mirrored.wrong() == []


def test_a_source_that_keeps_less_than_the_lag_is_told_of(mirrored: Mirrored) -> None:
    life = mirrored.add()
    does(life, "append")
    mirrored.round()
    with life.table.transaction() as changed:
        changed.set_properties({"history.expire.max-snapshot-age-ms": "1"})
    life.table = life.catalog.load_table(life.name)
    does(life, "append")
    time.sleep(0.01)
    made = mirrored.round()
    assert states(made) == {"db.t": "applied"} and "max-snapshot-age-ms" in made.tables[0].message
    assert mirrored.round().tables[0].message == ""


def test_rows_of_a_batch_without_any_are_none(tmp_path: Path) -> None:
    """Statistics of files come in chunks that are put together as they are."""
    mirrored = Mirrored(tmp_path, "sqlite:")
    does(mirrored.add(), "append")
    mirrored.round()
    one = pa.table({"snapshot_id": [99], "changes_made": ["x"]})
    with session(parse_place(mirrored.attach, None), write=True) as opened:
        opened.append("ducklake_snapshot_changes", pa.concat_tables([one.slice(1), one, one.slice(1)]))
    assert lake_rows(mirrored.lake, "SELECT 1") == [(1,)]


# --- round after round


def follow(pair: Pair, rounds: Sequence[Round], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """(exit code, rounds) of the loop over rounds that end so; after the last it is stopped."""
    stop, left = threading.Event(), list(rounds)
    seen = 0

    def next_round(_pair: Pair, _progress: object, _aside: object) -> Round:
        nonlocal seen
        seen += 1
        if len(left) == 1:
            stop.set()
        return left.pop(0)

    monkeypatch.setattr(loop, "catch_up", next_round)
    monkeypatch.setattr(loop, "_next", lambda turn, made: turn)
    code = loop.mirror((pair,), once=False, jobs=1, stop=stop, told=lambda _: None, progress=Silent())
    return code, seen


@pytest.mark.parametrize(
    ("error", "seen", "code"),
    [
        (Overtaken("changed since the plan was made"), 4, 0),
        (Conflict("locked", retryable=True), 4, 0),
        (Conflict("read by other column names"), 2, 5),
        (UsageError("no such table"), 1, 2),
    ],
)
def test_what_passes_is_tried_again_and_what_lasts_ends_a_pair(
    error: BridgeError, seen: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("iceberg:/a", "ducklake:/b", interval=0.0)
    assert follow(pair, [Round(pair, 0.0, 0.0, error=error)] * 4, monkeypatch) == (code, seen)


def test_a_source_whose_tables_are_gone_for_now_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair("iceberg:/a", "ducklake:/b", interval=0.0)
    good, gone = Round(pair, 0.0, 0.0), Round(pair, 0.0, 0.0, error=UsageError("no table is selected"))
    assert follow(pair, [good, gone, gone, good], monkeypatch) == (0, 4)


def test_from_python(mirrored: Mirrored) -> None:
    life = mirrored.add()
    does(life, "append")
    pair, told, stop = mirrored.pair(), list[bridge.Round](), threading.Event()
    last = bridge.mirror(pair.source, pair.target, pair.options, once=True, told=told.append)
    assert last is not None and told == [last] and last.exit_code == 0

    def hear(made: bridge.Round) -> None:
        told.append(made)
        if len(told) == 2:
            does(life, "append")
        if len(told) == 4:
            stop.set()

    last = bridge.mirror(pair.source, pair.target, pair.options, interval=0.01, stop=stop, told=hear)
    assert last is told[-1] and [each.tables[0].commits for each in told] == [1, 0, 1, 0]
    with pytest.raises(bridge.UsageError):
        bridge.mirror(pair.source, pair.target, replace(pair.options, tables=("none.t",)))


def outcome(name: str, state: State) -> TableOutcome:
    table = TableName(("db",), name)
    return TableOutcome(table, table, state)


def test_a_table_that_fails_is_tried_less_and_less_often_and_the_others_as_ever() -> None:
    pair, aside, tried = Pair("iceberg:/a", "ducklake:/b"), Aside(10.0), list[int]()
    for turn in range(20):
        resting = aside.resting(turn * 10.0)
        tables = [outcome("good", State.APPLIED)]
        if not resting:
            tried.append(turn)
            tables.append(outcome("bad", State.BLOCKED))
        made = Round(pair, 0.0, 0.0, tuple(tables), aside=resting)
        assert made.exit_code == 3 and not needs_somebody(made)
        aside.note(made, turn * 10.0)
        aside.note(Round(pair, 0.0, 0.0, error=Conflict("locked", retryable=True), aside=resting), turn * 10.0)
    assert tried == [0, 1, 3, 7, 15]
    aside.note(Round(pair, 0.0, 0.0, (outcome("good", State.CURRENT), outcome("bad", State.APPLIED))), 999.0)
    assert aside.resting(0.0) == ()


@pytest.mark.parametrize(("state", "code"), [(State.CONFLICT, 5), (State.UNVERIFIED, 4), (State.BLOCKED, 3)])
def test_a_pair_ends_when_one_of_its_tables_needs_somebody(
    state: State, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair("iceberg:/a", "ducklake:/b", interval=0.0)
    made = Round(pair, 0.0, 0.0, (outcome("a", state), outcome("b", State.CURRENT)))
    assert made.exit_code == code
    assert follow(pair, [made] * 3, monkeypatch) == ((0, 3) if state is State.BLOCKED else (code, 1))


# --- as a process


def command(mirrored: Mirrored, *more: str) -> list[str]:
    """The command line that mirrors, for ever unless told."""
    settings = [
        part for key, value in mirrored.options.source_options for part in ("--source-option", f"{key}={value}")
    ]
    ends = ["iceberg-catalog:c", f"ducklake:{mirrored.attach}"]
    return ["mirror", *ends, *settings, "--verify", "none", "--log-format", "json", *more]


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "bridge", *arguments], stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.slow
@FILES
def test_two_mirrors_of_one_pair_and_sigterm(backend: str, tmp_path: Path) -> None:
    """Each commit is written once, whoever is first; both end when they are asked to."""
    mirrored = Mirrored(tmp_path, backend)
    life = mirrored.add()
    does(life, "append")
    mirrored.round()
    both = [started(*command(mirrored, "--interval", "1s")) for _ in range(2)]
    try:
        for _ in range(6):
            does(life, "append", "delete")
        give_up = time.monotonic() + 120
        while mirrored.bookmark() != life.line[-1] and time.monotonic() < give_up:
            time.sleep(0.2)
        assert [each.poll() for each in both] == [None, None]
    finally:
        for each in both:
            each.send_signal(signal.SIGTERM)
        said = [each.communicate(timeout=60)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert "Traceback" not in "".join(said)
    assert mirrored.commits() == life.line
    mirrored.expected.clear()
    mirrored.remember()
    assert mirrored.wrong() == []


def killed(mirrored: Mirrored, point: int) -> bool:
    """A round that is killed at an insert into the catalog; False when it was done before."""
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(point), *command(mirrored, "--once")],
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    return ran.returncode == -signal.SIGKILL


@pytest.mark.slow
@FILES
def test_kill_9_in_a_round_costs_nothing(backend: str, tmp_path: Path) -> None:
    """Also between what follows the names and what follows the rows."""
    mirrored = Mirrored(tmp_path, backend)
    life = mirrored.add()
    does(life, "append", "append")
    mirrored.round()
    before = lake_rows(mirrored.lake, "SELECT * FROM ducklake_snapshot_changes ORDER BY 1")
    does(life, "append", "delete")
    for point in (0, 3, 6):
        assert killed(mirrored, point)
        assert lake_rows(mirrored.lake, "SELECT * FROM ducklake_snapshot_changes ORDER BY 1") == before
    life.call("db.other")
    for point in (2, 7):
        assert killed(mirrored, point)
    assert states(mirrored.round()).keys() == {"db.other"}
    assert [commit for _, commit, _ in mirrored.noted() if commit] == life.line
    assert mirrored.wrong() == []
