"""A session on a catalog: one library, one process, one transaction.

A DuckDB file has one owner, and a second handle in the same process drops its lock; two SQLite libraries in one process
lose commits. So sessions are short `with` blocks, and DuckDB's own view of a lake is asked in a subprocess. What many
sessions in a row would open again and again may be kept open between those that only read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from bridge.errors import Blocked, BridgeError, Conflict, Overtaken, Unreachable
from converters import storage
from converters.ducklake.catalog import postgres
from converters.ducklake.catalog.errors import translated
from converters.ducklake.catalog.places import Place, parse_place
from converters.ducklake.catalog.tables import METADATA
from converters.ducklake.identifiers import identifier

__all__ = ["Place", "Session", "create_all", "exists", "is_still", "kept_open", "parse_place", "session", "with_retry"]

_TRIES = 6
_FIRST_WAIT = 0.2
_BATCH = 10_000
_LONGEST = 5.0
"""Seconds that a DuckDB file is kept open at most: who wants to write to it waits for as long."""
_SQLITE_MAGIC = b"SQLite format 3\0"

Result = TypeVar("Result")


class Session:
    """One open transaction on a catalog."""

    def __init__(self, place: Place, connection: sa.Connection, write: bool = True) -> None:
        self.place = place
        self.connection = connection
        self.probes: dict[str, Any] | None = None if write else {}
        """What was found of the catalog's tables, where this transaction does not make any."""
        self._names: frozenset[str] | None = None
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

    def define(self, sql: str) -> None:
        """Execute a statement that defines something, as it stands."""
        postgres.statement(self.connection, sql)

    def append(self, name: str, rows: pa.Table) -> None:
        """Insert Arrow rows whose columns are the catalog table's, in any order; what is left out is NULL."""
        if not rows.num_rows:
            return
        if self.place.backend == "duckdb":
            # not by a registered view: DuckDB keeps what was registered until the end of the transaction
            driver: duckdb.DuckDBPyConnection = self.driver()
            nothing = pa.nulls(rows.num_rows, pa.string())
            every = driver.table(name).columns
            whole = pa.table({each: rows.column(each) if each in rows.column_names else nothing for each in every})
            driver.from_arrow(whole).insert_into(name)
            return
        columns = [each for each in rows.column_names if rows.column(each).null_count < rows.num_rows]
        if self.place.is_server:
            postgres.copy(self.driver(), self.place, name, rows.select(columns))
            return
        listed = ", ".join(map(identifier, columns))
        marks = ", ".join("?" for _ in columns)
        plain = pa.table({each: _without_bool(rows.column(each)) for each in columns})
        for batch in plain.to_batches(_BATCH):
            if not batch.num_rows:
                continue
            values = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            if values:  # chunks that were put together may be empty
                self.connection.exec_driver_sql(f"INSERT INTO {identifier(name)} ({listed}) VALUES ({marks})", values)

    def driver(self) -> Any:
        """The connection of the database's own library."""
        driver: Any = self.connection.connection.driver_connection
        return driver.c if self.place.backend == "duckdb" and not hasattr(driver, "register") else driver

    def has_table(self, name: str) -> bool:
        """Whether the catalog database holds a table."""
        if self.place.is_server:
            return postgres.has_table(self.connection, name)
        if self.probes is not None:
            if self._names is None:
                found = self.connection.execute(sa.text("SELECT name FROM sqlite_master"))
                self._names = frozenset(row[0] for row in found)
            return name in self._names
        query = sa.text("SELECT count(*) FROM sqlite_master WHERE name = :name")
        return bool(self.connection.execute(query, {"name": name}).scalar())


def _without_bool(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """SQLite holds booleans as integers, and binds those several times faster."""
    return column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column


def is_still(path: str) -> bool:
    """Whether an SQLite file with a write-ahead log lies where nobody can write: SQLite reads it only when it is told
    that it will not change, and only without anything left in the log."""
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


def _engine(place: Place, write: bool) -> sa.Engine:
    if place.backend == "duckdb":
        url = sa.URL.create("duckdb", database=place.path)
        engine = sa.create_engine(url, poolclass=NullPool, connect_args={} if write else {"read_only": True})

        @sa.event.listens_for(engine, "connect")
        def _quiet(connection: Any, _: object) -> None:
            # its progress bar goes to standard output
            connection.execute("SET enable_progress_bar = false")

        return engine
    url = sa.URL.create("sqlite", database=place.path)
    if not write and is_still(place.path):
        # SQLAlchemy takes other options of SQLite in the query, and leaves the path alone then
        url = sa.URL.create(
            "sqlite",
            database=f"file:{quote(place.path)}",
            query={"mode": "ro", "immutable": "1", "uri": "true"},
        )
    engine = sa.create_engine(url, poolclass=NullPool, connect_args={"timeout": 5.0})

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


class _Kept:
    """A DuckDB file that is open for reading between sessions: connecting to it again takes no time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._handle: sa.PoolProxiedConnection | None = None
        self._over = False

    def keep(self, engine: sa.Engine) -> None:
        """Keep open what a session has opened."""
        with self._guard:
            if self._handle is None and not self._over:
                self._handle = engine.raw_connection()

    def let_go(self, over: bool = False) -> None:
        """Close it; until a session keeps it again, or for good."""
        with self._guard:
            self._over = self._over or over
            if self._handle is not None:
                self._handle.close()
            self._handle = None


_kept: dict[str, _Kept] = {}
"""By the path of the file."""


@contextmanager
def kept_open(place: Place) -> Iterator[None]:
    """While this lasts, though for five seconds at most, sessions that read a DuckDB file do not open it each for
    itself: that takes longer than most of what they ask. One that writes has it for itself as ever."""
    if place.backend != "duckdb" or place.path in _kept:
        yield
        return
    kept = _kept[place.path] = _Kept()
    timer = threading.Timer(_LONGEST, kept.let_go, (True,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        del _kept[place.path]
        kept.let_go(True)


@contextmanager
def session(place: Place, *, create: bool = False, write: bool = False) -> Iterator[Session]:
    """A session whose transaction is committed at the end and rolled back on an error; it may only read unless told.

    Conflict when another process holds the catalog, Unreachable when it is not there, Blocked when it is no catalog.
    """
    if place.is_server:
        engine = postgres.engine(place, write=write, create=create)
    else:
        if not create:
            _require_kind(place)
        elif exists(place):
            raise Overtaken(f"{place.path} exists already")
        engine = _engine(place, write or create)
    opened: Session | None = None
    committing = done = False
    kept = _kept.get(place.path) if place.backend == "duckdb" else None
    if kept is not None and (write or create):
        kept.let_go()
    try:
        connection = with_retry(lambda: _connect(engine, place))
        try:
            with connection.begin():
                opened = Session(place, connection, write or create)
                if kept is not None and not (write or create):
                    kept.keep(engine)
                yield opened
                committing = done = True
            if create and place.backend == "duckdb":
                # what a full disk keeps out of the file must fail here, not when the file is opened next
                connection.exec_driver_sql("CHECKPOINT")
                connection.commit()
        except (sa.exc.DBAPIError, duckdb.Error) as error:
            if isinstance(getattr(error, "orig", error), duckdb.FatalException):
                connection.invalidate()  # nothing can be rolled back in it, and trying would hide the cause
            raise
        finally:
            connection.close()
    except (sa.exc.DBAPIError, duckdb.Error) as error:
        found = translated(error, place, committing)
        # of a lost connection nobody knows whether it committed
        done = done and not isinstance(found, Conflict)
        raise found from error
    finally:
        engine.dispose()
        if opened is not None and not done:
            opened.remove_files()


def exists(place: Place) -> bool:
    """Whether there is something at a place: any file, or a lake in the schema of a database."""
    if not place.is_server:
        return os.path.lexists(place.path)
    try:
        with session(place):
            return True
    except postgres.NoLake:
        return False


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
        raise translated(error, place) from error


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
    # on a server a table that is there already must be an error, not be taken for ours
    METADATA.create_all(open_session.connection, checkfirst=not open_session.place.is_server)
