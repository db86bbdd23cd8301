"""Catalog files as this process has them open.

A file's locks end when its process closes any handle of it: nothing here opens a catalog file while a session has it.
What many sessions in a row would open again and again may be kept open between those that only read.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from bridge.errors import Blocked, BridgeError, Unreachable
from converters.ducklake.catalog.places import Place

__all__ = ["copied", "files", "is_still", "kept", "kept_open"]

_SQLITE_MAGIC = b"SQLite format 3\0"
_LONGEST = 2.5
"""Seconds that a DuckDB file is kept open at most: less than with_retry waits for one that is held."""


def _require_kind(place: Place) -> None:
    """A file that is not what the locator says must not be opened, let alone written."""
    try:
        with open(place.path, "rb") as file:
            head = file.read(20)
    except IsADirectoryError:
        raise Blocked(f"{place.path} is a directory, not a catalog file", code="foreign-catalog") from None
    except FileNotFoundError:
        raise Unreachable(
            f"catalog {place.path} is not there", hint="check the path; migrate creates a lake that is its target"
        ) from None
    except OSError as error:
        raise Unreachable(f"catalog {place.path} cannot be read: {error.strerror}") from error
    is_duckdb, is_sqlite = head[8:12] == b"DUCK", head.startswith(_SQLITE_MAGIC)
    if place.backend == "duckdb" and not is_duckdb:
        hint = f"write ducklake:sqlite:{place.path}" if is_sqlite else "name another file; nothing was written"
        raise Blocked(f"{place.path} is not a DuckDB file", code="foreign-catalog", hint=hint)
    if place.backend == "sqlite" and not is_sqlite:
        hint = f"write ducklake:{place.path}" if is_duckdb else "name another file; nothing was written"
        raise Blocked(f"{place.path} is not an SQLite file", code="foreign-catalog", hint=hint)


def _is_still(path: str) -> bool:
    with open(path, "rb") as file:
        head = file.read(20)
    log = f"{path}-wal"
    if head[18:20] != b"\x02\x02" or os.access(os.path.dirname(path), os.W_OK):
        return False
    if os.path.exists(log) and os.path.getsize(log):
        raise Unreachable(
            f"catalog {path} has a write-ahead log that cannot be read in a directory that cannot be written",
            hint="copy both files to a directory that can be written, and name that catalog",
        )
    return True


@dataclass(slots=True)
class _File:
    """A catalog file that this process has open so many times; `still` is what is_still said."""

    still: bool
    handles: int = 0


class _Files:
    """The catalog files that this process has open, by their paths."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._files: dict[str, _File] = {}

    def open(self, place: Place, write: bool = False, create: bool = False) -> bool:
        """Note a handle, once the file is what its locator says; whether it is_still."""
        with self._guard:
            file = self._files.get(place.path)
            if file is None:
                if not create:
                    _require_kind(place)
                still = place.backend == "sqlite" and not write and _is_still(place.path)
                file = self._files[place.path] = _File(still)
            file.handles += 1
            return file.still

    def close(self, place: Place) -> None:
        """Note that a handle is gone."""
        with self._guard:
            file = self._files[place.path]
            file.handles -= 1
            if not file.handles:
                del self._files[place.path]

    def is_still(self, path: str) -> bool:
        """As the file tells where nothing here has it open."""
        with self._guard:
            file = self._files.get(path)
            return _is_still(path) if file is None else file.still

    def copy(self, place: Place, path: str) -> None:
        """Copy a file, and what belongs to it, that nothing here may have open."""
        with self._guard:
            if place.path in self._files:
                raise BridgeError(f"catalog {place.path} is in use by this process")
            for suffix in ("", ".wal", "-wal"):
                if not suffix or os.path.exists(place.path + suffix):
                    shutil.copyfile(place.path + suffix, path + suffix)


files = _Files()


def is_still(path: str) -> bool:
    """Whether an SQLite file with a write-ahead log lies where nobody can write: SQLite reads it only when it is told
    that it will not change, and only without anything left in the log."""
    return files.is_still(path)


def copied(place: Place, path: str) -> Place:
    """A copy of a catalog file, which may be written."""
    if held := kept(place):
        held.let_go()
    files.copy(place, path)
    return Place(place.backend, path)


class _Kept:
    """A DuckDB file that is open for reading between sessions: connecting to it again takes no time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._guard = threading.Lock()
        self._handle: sa.PoolProxiedConnection | None = None
        self._over = False

    def keep(self, engine: sa.Engine) -> None:
        """Keep open what a session has opened."""
        with self._guard:
            if self._handle is None and not self._over:
                self._handle = engine.raw_connection()
                files.open(self._place)

    def let_go(self, over: bool = False) -> None:
        """Close it; until a session keeps it again, or for good."""
        with self._guard:
            self._over = self._over or over
            if self._handle is not None:
                self._handle.close()
                files.close(self._place)
            self._handle = None


_kept: dict[str, _Kept] = {}
"""By the path of the file."""


def kept(place: Place) -> _Kept | None:
    """What keeps a file open now."""
    return _kept.get(place.path)


@contextmanager
def kept_open(place: Place) -> Iterator[None]:
    """While this lasts, though for some seconds at most, sessions that read a DuckDB file do not open it each for
    itself: that takes longer than most of what they ask. One that writes has it for itself as ever."""
    if place.backend != "duckdb" or place.path in _kept:
        yield
        return
    held = _kept[place.path] = _Kept(place)
    timer = threading.Timer(_LONGEST, held.let_go, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        del _kept[place.path]
        held.let_go(True)
