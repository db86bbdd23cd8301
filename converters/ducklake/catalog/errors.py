"""What a database's exceptions mean for a catalog: never told by their text."""

from __future__ import annotations

import fcntl
import os

import duckdb
import sqlalchemy as sa

from bridge.errors import Blocked, BridgeError, Conflict, Overtaken, Unreachable
from converters.ducklake.catalog import postgres
from converters.ducklake.catalog.places import Place

__all__ = ["first_line", "translated"]

_ROOM = 1 << 20


def _is_locked(path: str) -> bool:
    """Whether another process holds DuckDB's lock on a file; this process must not have it open."""
    try:
        with open(path, "rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _is_full(path: str) -> bool:
    """Whether the disk of a file has no room for a few of DuckDB's blocks."""
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _ROOM


def first_line(error: BaseException) -> str:
    return (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]


def translated(error: Exception, place: Place, committing: bool = False) -> BridgeError:
    """The kind of a failure, by the exception's class and the database's own code."""
    cause = getattr(error, "orig", None) or error
    if place.is_server:
        return postgres.translated(cause, place, committing)
    text = first_line(error)
    if isinstance(error, sa.exc.IntegrityError) or isinstance(cause, duckdb.ConstraintException):
        return Conflict(
            f"catalog {place.path}: another writer committed first: {text}", hint="run it again", retryable=True
        )
    if isinstance(cause, duckdb.FatalException) or (place.backend == "duckdb" and _is_full(place.path)):
        return Unreachable(
            f"catalog {place.path} cannot be written{': the disk is full' if _is_full(place.path) else f': {text}'}",
            hint="make room, then run it again",
        )
    if isinstance(cause, duckdb.TransactionException):
        return Conflict(f"catalog {place.path}: {text}", hint="run it again", retryable=True)
    if isinstance(cause, duckdb.IOException) and not _is_locked(place.path):
        return Unreachable(
            f"catalog {place.path} cannot be read or written: {text}",
            hint="check the disk and its free space; a damaged file has to be restored",
        )
    if isinstance(cause, duckdb.CatalogException | duckdb.BinderException):
        return Blocked(f"catalog {place.path} is damaged or incomplete: {text}", code="foreign-catalog")
    if isinstance(cause, duckdb.IOException):
        return Conflict(
            f"catalog {place.path} is held by another process, or cannot be opened: {text}",
            hint="close the other DuckDB session, then run it again",
            retryable=True,
        )
    if place.backend == "sqlite":
        code = getattr(cause, "sqlite_errorname", "")
        if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return Blocked(f"{place.path} is damaged, or no SQLite file: {text}", code="foreign-catalog")
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return Overtaken(f"catalog {place.path} is held by another process", hint="close it, then run it again")
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL")):
            return Unreachable(
                f"catalog {place.path} cannot be written: {text}", hint="check the disk and its free space"
            )
        if code == "SQLITE_ERROR" and isinstance(error, sa.exc.OperationalError):
            return Blocked(f"catalog {place.path} is damaged or incomplete: {text}", code="foreign-catalog")
    return BridgeError(f"catalog {place.path}: {text}")
