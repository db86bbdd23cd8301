"""A session on a catalog: one library, one process, one transaction.

Two SQLite libraries in one process lose commits, and a file's locks are the process's (handles.py). So sessions are
short `with` blocks, and DuckDB's own view of a lake is asked in a subprocess.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from bridge.errors import BridgeError, Conflict, Overtaken
from converters import storage
from converters.ducklake.catalog import postgres
from converters.ducklake.catalog.errors import translated
from converters.ducklake.catalog.handles import files, kept
from converters.ducklake.catalog.places import Place, parse_place
from converters.ducklake.catalog.tables import METADATA
from converters.ducklake.identifiers import identifier

__all__ = ["Place", "Session", "create_all", "exists", "parse_place", "session", "with_retry"]

_TRIES = 6
_FIRST_WAIT = 0.2
_BATCH = 10_000

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


def _engine(place: Place, write: bool, still: bool) -> sa.Engine:
    if place.backend == "duckdb":
        url = sa.URL.create("duckdb", database=place.path)
        engine = sa.create_engine(url, poolclass=NullPool, connect_args={} if write else {"read_only": True})

        @sa.event.listens_for(engine, "connect")
        def _quiet(connection: Any, _: object) -> None:
            # its progress bar goes to standard output
            connection.execute("SET enable_progress_bar = false")

        return engine
    url = sa.URL.create("sqlite", database=place.path)
    if still:
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


@contextmanager
def session(place: Place, *, create: bool = False, write: bool = False) -> Iterator[Session]:
    """A session whose transaction is committed at the end and rolled back on an error; it may only read unless told.

    Conflict when another process holds the catalog, Unreachable when it is not there, Blocked when it is no catalog.
    """
    write = write or create
    held = kept(place)
    if held is not None and write:
        held.let_go()
    opened: Session | None = None
    committing = done = False
    try:
        with _opened(place, write, create) as engine:
            connection = with_retry(lambda: _connect(engine, place))
            try:
                with connection.begin():
                    opened = Session(place, connection, write)
                    if held is not None and not write:
                        held.keep(engine)
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
        if opened is not None and not done:
            opened.remove_files()


@contextmanager
def _opened(place: Place, write: bool, create: bool) -> Iterator[sa.Engine]:
    """What connects to a catalog; a file is noted as open for as long."""
    if create and not place.is_server and exists(place):
        raise Overtaken(f"{place.path} exists already")
    still = not place.is_server and files.open(place, write, create)
    try:
        engine = postgres.engine(place, write=write, create=create) if place.is_server else _engine(place, write, still)
        try:
            yield engine
        finally:
            engine.dispose()
    finally:
        if not place.is_server:
            files.close(place)


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
