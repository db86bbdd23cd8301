"""Targets that refuse commits for a while: a mirror says so, waits longer and longer, goes on with its other pairs, and
has each commit once when it may write again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.cli.told import lines
from bridge.mirroring import loop
from bridge.mirroring.pair import Pair, Round
from bridge.ports import Silent
from converters.ducklake.catalog import postgres
from converters.ducklake.catalog import session as sessions
from tests.refusals import duckdb_held, in_the_way, sqlite_held, stopped, table_locked
from tests.support import run_here
from tests.test_mirror import Mirrored, does
from tests.test_mirror_lake import Followed
from tests.test_postgres import running

__all__ = ["running"]  # a fixture


def refused(pair: Pair, other: Pair, refusing: Iterator[None], code: int) -> None:
    """Follow both, first while one target refuses, then when it does no more."""
    rounds: dict[str, list[Round]] = {"one": [], "other": []}
    stop, done = threading.Event(), threading.Event()

    def told(made: Round) -> None:
        rounds[made.pair.name].append(made)
        if not done.is_set() and len(rounds["one"]) >= 2 and len(rounds["other"]) > 3:
            next(refusing, None)
            done.set()
        if done.is_set() and rounds["one"][-1].exit_code == 0:
            stop.set()
        if len(rounds["one"]) > 12:
            stop.set()

    next(refusing)
    arguments = [pair.source, pair.target, "--verify", "none", "--log-format", "json", "--once"]
    if pair.options.data_path is not None:
        arguments += ["--data-path", pair.options.data_path]
    for side, settings in (("source", pair.options.source_options), ("target", pair.options.target_options)):
        arguments += [part for key, value in settings for part in (f"--{side}-option", f"{key}={value}")]
    once = run_here("mirror", *arguments)
    assert once.code == code, once.err
    assert [json.loads(each)["level"] for each in once.err.splitlines()] == ["error"]
    pairs = (replace(pair, name="one", interval=0.1), replace(other, name="other", interval=0.1))
    assert loop.mirror(pairs, once=False, jobs=2, stop=stop, told=told, progress=Silent()) == 0
    failed = [each for each in rounds["one"] if each.exit_code]
    assert len(failed) >= 2 and rounds["one"][-1].exit_code == 0
    assert {each.exit_code for each in failed} == {code}
    assert all(len(lines(each, "json", str)) == 1 for each in failed)
    ends = [each.began + each.seconds for each in failed]
    pauses = [after.began - end for end, after in zip(ends, rounds["one"][1:], strict=False)]
    assert pauses[0] > 0.9 and pauses[1] > 1.9, pauses
    assert all(each.exit_code == 0 for each in rounds["other"])


LAKES = [
    pytest.param("duckdb", 5, marks=pytest.mark.slow),
    pytest.param("sqlite", 5, marks=pytest.mark.exhaustive),
    pytest.param("locked", 5, marks=[pytest.mark.slow, pytest.mark.postgres]),
    pytest.param("stopped", 6, marks=[pytest.mark.slow, pytest.mark.postgres]),
]


@pytest.mark.parametrize(("kind", "code"), LAKES)
def test_a_lake_that_refuses_for_a_while(
    kind: str, code: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 1)
    monkeypatch.setattr(sessions, "_TRIES", 2)
    (tmp_path / "other").mkdir()
    backend = "sqlite:" if kind == "sqlite" else ""
    if kind in ("locked", "stopped"):
        server = request.getfixturevalue("running")
        connection = server.connection(server.database())
        backend = f"postgres:{connection}"
    mirrored, beside = Mirrored(tmp_path, backend), Mirrored(tmp_path / "other")
    life = mirrored.add()
    does(beside.add(), "append")
    does(life, "append")
    assert mirrored.round().exit_code == 0
    does(life, "append", "delete", "append")
    before = len(mirrored.noted())

    def refusing() -> Iterator[None]:
        with {
            "duckdb": lambda: duckdb_held(mirrored.lake),
            "sqlite": lambda: sqlite_held(mirrored.lake),
            "locked": lambda: table_locked(connection),
            "stopped": lambda: stopped(server),
        }[kind]():
            yield

    refused(mirrored.pair(), beside.pair(), refusing(), code)
    mirrored.remember(before)
    assert mirrored.commits() == life.line
    assert mirrored.wrong() == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("directory", 6), ("catalog", 5)])
def test_iceberg_tables_that_refuse_for_a_while(kind: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    followed, beside = Followed(tmp_path, kind == "catalog"), Followed(tmp_path / "other", False)
    for each in (followed, beside):
        each.do("CREATE TABLE t AS SELECT 1 AS i")
    assert followed.round().exit_code == 0
    followed.do("INSERT INTO t VALUES (2)", "DELETE FROM t WHERE i = 1", "INSERT INTO t VALUES (3)")

    def refusing() -> Iterator[None]:
        place = tmp_path / "wh/main/t/metadata"
        with sqlite_held(followed.database) if kind == "catalog" else in_the_way(place):
            yield

    refused(followed.pair(), beside.pair(), refusing(), code)
    assert followed.wrong({"main.t": "t"}, tmp_path / "judge") == []
    said = json.loads(followed.tables()["main.t"].read_text())["snapshots"]
    commits = [each["summary"]["ducklake-bridge.source-commit"] for each in said]
    assert len(commits) == len(set(commits)) == 4
