"""Ways in which a target refuses commits for a while, because of somebody else."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg

from tests.server import Server

__all__ = ["duckdb_held", "in_the_way", "sqlite_held", "stopped", "table_locked", "versions_taken"]

_HOLD = """
import duckdb, sys, time
while True:
    try:
        held = duckdb.connect(sys.argv[1])
        break
    except duckdb.IOException:
        time.sleep(0.02)
print('held', flush=True)
sys.stdin.read()
"""


@contextmanager
def duckdb_held(path: Path | str) -> Iterator[None]:
    """Another process has a DuckDB file open, as soon as nobody else has."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        yield
    finally:
        holder.communicate()


@contextmanager
def sqlite_held(path: Path | str, readable: bool = False) -> Iterator[None]:
    """Another connection writes to an SQLite file."""
    with closing(sqlite3.connect(path, 60, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE" if readable else "BEGIN EXCLUSIVE")
        yield


@contextmanager
def table_locked(connection: str, table: str = "ducklake_snapshot", readable: bool = False) -> Iterator[None]:
    """A transaction has a table of the catalog for itself, or is the only one that may write to it."""
    with psycopg.connect(connection) as other:
        other.execute(f"LOCK TABLE {table} IN {'' if readable else 'ACCESS '}EXCLUSIVE MODE".encode())
        yield
        other.rollback()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """A server is down."""
    server.crash()
    try:
        yield
    finally:
        server.start()


@contextmanager
def in_the_way(directory: Path) -> Iterator[None]:
    """A file lies where a directory should: root may write into any directory."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.write_text("in the way")
    yield
    directory.unlink()
    aside.rename(directory)


@contextmanager
def versions_taken(tables: Sequence[Path]) -> Iterator[None]:
    """The next version of some tables' metadata is there already, and no file; those who mirror may be at it."""
    made: list[Path] = []
    for each in tables:
        numbers = [int(path.name[1:].partition(".")[0]) for path in each.glob("v*.metadata.json")]
        made.append(each / f"v{max(numbers, default=0) + 1}.metadata.json")
        with suppress(FileNotFoundError, FileExistsError):  # it was dropped, or went on: it refuses nothing this time
            made[-1].mkdir()
    try:
        yield
    finally:
        for place in made:
            with suppress(FileNotFoundError, NotADirectoryError):
                place.rmdir()
