"""A catalog in a DuckDB file that is kept open between sessions, as others find it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from bridge.errors import Conflict
from converters.ducklake.catalog import handles
from converters.ducklake.catalog import session as sessions
from converters.ducklake.catalog.handles import kept_open
from converters.ducklake.catalog.session import Place, create_all, session

OPEN = "import duckdb, sys; duckdb.connect(sys.argv[1], read_only=sys.argv[2] == 'read').close()"
COUNT = sa.text("SELECT count(*) FROM ducklake_metadata")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A catalog."""
    made = Place("duckdb", str(tmp_path / "lake.db"))
    with session(made, create=True) as opened:
        create_all(opened)
    return made


def others(place: Place) -> list[str]:
    """What another process may do with the file now."""
    command = [sys.executable, "-c", OPEN, place.path]
    return [each for each in ("read", "write") if not subprocess.run([*command, each], capture_output=True).returncode]


def count(place: Place) -> int:
    """What is in one of its tables."""
    with session(place) as opened:
        return int(opened.connection.execute(COUNT).scalar_one())


def noted(place: Place) -> None:
    """One more row of it."""
    with session(place, write=True) as opened:
        opened.define("INSERT INTO ducklake_metadata (key, value) VALUES ('k', 'v')")


def test_it_is_open_between_what_is_read_and_for_nobody_when_it_is_written(place: Place) -> None:
    assert others(place) == ["read", "write"]
    with kept_open(place):
        assert [count(place), count(place)] == [0, 0]
        assert others(place) == ["read"]
        noted(place)
        assert others(place) == ["read", "write"]
        assert count(place) == 1
        with kept_open(place):
            pass
        assert others(place) == ["read"]
    assert others(place) == ["read", "write"]


def test_two_at_once_keep_what_each_of_them_locks(place: Place) -> None:
    with session(place):
        assert count(place) == 0
        assert others(place) == ["read"]
    assert others(place) == ["read", "write"]


def test_it_is_let_go_after_an_error_and_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "_LONGEST", 0.5)
    with kept_open(place):
        assert count(place) == 0
        time.sleep(1)
        assert count(place) == 0
        assert others(place) == ["read", "write"]
    with pytest.raises(KeyboardInterrupt), kept_open(place):
        assert count(place) == 0
        raise KeyboardInterrupt
    assert others(place) == ["read", "write"]


def test_another_writer_is_waited_for_as_ever(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_TRIES", 2)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import duckdb, sys; x = duckdb.connect(sys.argv[1]); print(); sys.stdin.read()",
            place.path,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with kept_open(place), pytest.raises(Conflict):
            count(place)
        holder.kill()
    with kept_open(place):
        assert count(place) == 0
