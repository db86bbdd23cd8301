"""An exclusive session on a catalog: one library, one process, one transaction.

A DuckDB file has one owner, and a second handle in the same process drops its lock; two SQLite libraries in one process
lose commits. So sessions are short `with` blocks, and DuckDB's own view of a lake is asked in a subprocess.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from bridge.errors import Blocked, BridgeError, Conflict, Unreachable, UsageError
from converters import storage
from converters.ducklake.catalog.tables import METADATA, TABLES
from converters.ducklake.identifiers import identifier

__all__ = ["Place", "Session", "create_all", "parse_place", "session", "with_retry"]

_TRIES = 6
_FIRST_WAIT = 0.2
_BATCH = 10_000
_SQLITE_MAGIC = b"SQLite format 3\0"
_LATER = {"postgres": "PostgreSQL", "mysql": "MySQL"}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a catalog is: backend `duckdb` or `sqlite`, and the file's absolute path."""

    backend: str
    path: str

    @property
    def attach(self) -> str:
        """What stands behind `ducklake:` in DuckDB's ATTACH."""
        return f"sqlite:{self.path}" if self.backend == "sqlite" else self.path

    @property
    def exists(self) -> bool:
        return os.path.lexists(self.path)


def parse_place(rest: str) -> Place:
    """The place behind `ducklake:REST`; UsageError for backends that are not built yet."""
    head, colon, tail = rest.partition(":")
    if colon and head in _LATER:
        raise UsageError(f"{_LATER[head]} catalogs are not built yet", hint="use a DuckDB file or sqlite:FILE")
    backend, path = ("sqlite", tail) if colon and head == "sqlite" else ("duckdb", rest)
    if backend == "duckdb" and colon and head == "duckdb":
        path = tail
    if not path or "://" in path:
        raise UsageError(
            f"ducklake:{rest} is not a local catalog file", hint="write ducklake:FILE or ducklake:sqlite:FILE"
        )
    return Place(backend, os.path.abspath(os.path.expanduser(path)))


class Session:
    """One open transaction on a catalog."""

    def __init__(self, place: Place, connection: sa.Connection) -> None:
        self.place = place
        self.connection = connection
        self.files: list[str] = []
        """Files that this transaction wrote; without its commit they belong to nobody."""

    def remove_files(self) -> None:
        """Remove what was written for a commit that did not happen; what cannot be removed is an orphan to DuckLake."""
        for path in self.files:
            with suppress(BridgeError):
                storage.remove(path)

    def rows(self, query: sa.Select[Any]) -> list[Any]:
        """The rows of a query."""
        return list(self.connection.execute(query))

    def run(self, statement: sa.Executable, parameters: Sequence[dict[str, Any]] | dict[str, Any] | None = None) -> int:
        """Execute a statement; the number of rows it touched, -1 when unknown."""
        return int(self.connection.execute(statement, parameters).rowcount)

    def append(self, name: str, rows: pa.Table) -> None:
        """Insert Arrow rows whose columns are the catalog table's, in any order."""
        if not rows.num_rows:
            return
        if self.place.backend == "duckdb":
            # not by a registered view: DuckDB keeps what was registered until the end of the transaction
            driver: duckdb.DuckDBPyConnection = self._driver()
            nothing = pa.nulls(rows.num_rows, pa.string())
            every = driver.table(name).columns
            whole = pa.table({each: rows.column(each) if each in rows.column_names else nothing for each in every})
            driver.from_arrow(whole).insert_into(name)
            return
        known = TABLES[name].columns.keys() if name in TABLES else rows.column_names
        held = [each for each in known if each in rows.column_names]
        columns = [each for each in held if rows.column(each).null_count < rows.num_rows]
        listed = ", ".join(map(identifier, columns))
        marks = ", ".join("?" for _ in columns)
        plain = pa.table({each: _without_bool(rows.column(each)) for each in columns})
        for batch in plain.to_batches(_BATCH):
            values = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            self.connection.exec_driver_sql(f"INSERT INTO {identifier(name)} ({listed}) VALUES ({marks})", values)

    def _driver(self) -> Any:
        driver: Any = self.connection.connection.driver_connection
        return driver if hasattr(driver, "register") else driver.c

    def has_table(self, name: str) -> bool:
        """Whether the catalog database holds a table."""
        query = sa.text("SELECT count(*) FROM sqlite_master WHERE name = :name")
        return bool(self.connection.execute(query, {"name": name}).scalar())


def _without_bool(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """SQLite holds booleans as integers, and binds those several times faster."""
    return column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column


def _engine(place: Place, write: bool) -> sa.Engine:
    if place.backend == "duckdb":
        url = sa.URL.create("duckdb", database=place.path)
        return sa.create_engine(url, poolclass=NullPool, connect_args={} if write else {"read_only": True})
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=place.path), poolclass=NullPool, connect_args={"timeout": 5.0}
    )

    @sa.event.listens_for(engine, "connect")
    def _manual(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _require_kind(place: Place) -> None:
    """A file that is not what the locator says must not be opened, let alone written."""
    try:
        with open(place.path, "rb") as file:
            head = file.read(20)
    except IsADirectoryError:
        raise Blocked(f"{place.path} is a directory, not a catalog file", code="foreign-catalog") from None
    except FileNotFoundError:
        raise Unreachable(
            f"catalog {place.path} is not there", hint="check the path, or create it with migrate"
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


@contextmanager
def session(place: Place, *, create: bool = False, write: bool = False) -> Iterator[Session]:
    """A session whose transaction is committed at the end and rolled back on an error; it may only read unless told.

    Conflict when another process holds the catalog, Unreachable when it is not there, Blocked when it is no catalog.
    """
    if not create:
        _require_kind(place)
    elif place.exists:
        raise Conflict(f"{place.path} exists already")
    engine = _engine(place, write or create)
    opened: Session | None = None
    done = False
    try:
        connection = with_retry(lambda: _connect(engine, place))
        try:
            with connection.begin():
                opened = Session(place, connection)
                yield opened
                done = True
            if create and place.backend == "duckdb":
                # what a full disk keeps out of the file must fail here, not when the file is opened next
                connection.exec_driver_sql("CHECKPOINT")
                connection.commit()
        finally:
            connection.close()
    except (sa.exc.DBAPIError, duckdb.Error) as error:
        translated = _translated(error, place)
        # of a lost connection nobody knows whether it committed
        done = done and not isinstance(translated, Conflict)
        raise translated from error
    finally:
        engine.dispose()
        if opened is not None and not done:
            opened.remove_files()


def _connect(engine: sa.Engine, place: Place) -> sa.Connection:
    try:
        connection = engine.connect()
        if place.backend == "duckdb":
            connection.exec_driver_sql("SET TimeZone = 'UTC'")
            # more threads only cost: a batch of rows is one or two row groups, and pieces of them are merged again
            connection.exec_driver_sql("SET threads = 1")
            connection.commit()
        return connection
    except (sa.exc.DBAPIError, duckdb.Error) as error:
        raise _translated(error, place) from error


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


def _first_line(error: BaseException) -> str:
    return (str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__])[0]


def _translated(error: Exception, place: Place) -> BridgeError:
    """The kind of a failure, by the exception's class."""
    cause = getattr(error, "orig", error)
    text = _first_line(error)
    if isinstance(error, sa.exc.IntegrityError) or isinstance(cause, duckdb.ConstraintException):
        return Conflict(
            f"catalog {place.path}: another writer committed first: {text}", hint="run it again", retryable=True
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
            return Conflict(f"catalog {place.path} is held by another process", hint="close it, then run it again")
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FULL")):
            return Unreachable(f"catalog {place.path} cannot be written: {text}")
        if code == "SQLITE_ERROR" and isinstance(error, sa.exc.OperationalError):
            return Blocked(f"catalog {place.path} is damaged or incomplete: {text}", code="foreign-catalog")
    return BridgeError(f"catalog {place.path}: {text}")


def with_retry(work: Callable[[], Result]) -> Result:
    """Do it again after a Conflict, a bounded number of times with growing waits."""
    wait = _FIRST_WAIT
    for left in range(_TRIES - 1, -1, -1):
        try:
            return work()
        except Conflict as error:
            if not left or not error.retryable:
                raise
            time.sleep(wait)
            wait *= 1.6
    raise AssertionError("unreachable")


def create_all(open_session: Session) -> None:
    """The empty tables of a catalog."""
    METADATA.create_all(open_session.connection)
