"""PostgreSQL as the server of a catalog: connections, locks, bulk rows, and what its errors mean."""

from __future__ import annotations

import io
import os
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from bridge.errors import Blocked, BridgeError, Conflict, Overtaken, Unreachable, UsageError
from converters.ducklake.catalog.places import CONNECT_SECONDS, Place
from converters.ducklake.identifiers import identifier

if TYPE_CHECKING:
    import psycopg

__all__ = ["NoLake", "copied", "copy", "engine", "has_table", "statement", "storable", "translated"]

_LOCK_SECONDS = 10
_BATCH = 50_000
_ADVISORY = 0x6475636B
_KEEPALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""A server that vanished is noticed within half a minute."""

_CONNECTING = (
    "the server must run and the database must exist (createdb NAME); the password comes from PGPASSWORD, ~/.pgpass "
    "or the connection string"
)


class NoLake(Unreachable):
    """The server answers, and the schema holds no lake."""


def engine(place: Place, *, write: bool, create: bool) -> sa.Engine:
    """Connections whose transactions see one state (REPEATABLE READ) and may only read unless told."""
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            "lakes on PostgreSQL need the package psycopg", hint="pip install 'ducklake-bridge[postgres]'"
        ) from error
    arguments = _arguments(place)

    def connect() -> psycopg.Connection[Any]:
        connection = psycopg.connect(**arguments)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = not (write or create)
        connection.prepare_threshold = None  # connection pools between us and the server cannot have it
        return connection

    made = sa.create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool, use_native_hstore=False)

    @sa.event.listens_for(made, "begin")
    def _begin(connection: sa.Connection) -> None:
        _open(connection, place, write=write, create=create)

    return made


def _arguments(place: Place) -> dict[str, Any]:
    """libpq's parameters, with timeouts where the user has none."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        found: dict[str, Any] = dict(conninfo_to_dict(place.connection))
    except ProgrammingError:  # its text quotes the string
        found = {}
        readable = False
    else:
        readable = not found.keys() & {"password", "sslpassword", "oauth_client_secret"}
    if not readable:
        raise UsageError(
            "libpq cannot read the connection string behind ducklake:postgres:",
            hint="write key=value pairs as libpq knows them, such as dbname, host, port, user",
        )
    timeouts = {} if "PGCONNECT_TIMEOUT" in os.environ else {"connect_timeout": CONNECT_SECONDS}
    own = {"client_encoding": "utf8"}
    return {"application_name": "ducklake-bridge", **_KEEPALIVE, **timeouts, **found, **dict(place.secrets), **own}


def _open(connection: sa.Connection, place: Place, *, write: bool, create: bool) -> None:
    """The first statements of every transaction.

    A writer locks the snapshots against other writers before its first look at the catalog: what it then sees is the
    newest state and stays so. Readers are not held up, and DuckDB's writers wait, fail on the snapshot's key and retry.
    """
    statement(connection, f"SET LOCAL search_path TO {identifier(place.schema)}")
    statement(connection, f"SET LOCAL lock_timeout TO '{_LOCK_SECONDS}s'")
    missing = NoLake(
        f"{place.path} has no lake in the schema {place.schema}",
        hint="check it, and --metadata-schema; migrate creates a lake that is its target",
    )
    if create:
        key = zlib.crc32(place.schema.encode()) - 2**31
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.literal(_ADVISORY), sa.literal(key))))
        if has_table(connection, "ducklake_metadata"):
            raise Overtaken(f"the lake in {place.path} was created meanwhile", hint="run it again")
        if not connection.execute(sa.select(sa.func.current_schema())).scalar():
            statement(connection, f"CREATE SCHEMA {identifier(place.schema)}")
    elif write:
        try:
            statement(connection, "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        except sa.exc.ProgrammingError as error:
            if getattr(error.orig, "sqlstate", "") == "42P01":
                raise missing from error
            raise
    elif not has_table(connection, "ducklake_metadata"):
        raise missing


def statement(connection: sa.Connection, sql: str) -> None:
    """Execute SQL as it stands: a % in a name is not a parameter."""
    connection.exec_driver_sql(sql, execution_options={"no_parameters": True})


def has_table(connection: sa.Connection, name: str) -> bool:
    """Whether the lake's schema holds a table, as of now and not of the transaction's beginning."""
    found = sa.func.to_regclass(sa.cast(identifier(name), sa.Text))
    return bool(connection.execute(sa.select(found.is_not(None))).scalar())


def copy(driver: psycopg.Connection[Any], place: Place, name: str, rows: pa.Table) -> None:
    """Append rows by COPY. In CSV an empty field is NULL and an empty text is quoted, whatever the text holds."""
    import polars as pl
    import psycopg

    listed = ", ".join(map(identifier, rows.column_names))
    frame = pl.DataFrame(pl.from_arrow(_plain(storable(name, rows))))
    try:
        with driver.cursor().copy(f"COPY {identifier(name)} ({listed}) FROM STDIN (FORMAT csv)".encode()) as sink:
            for part in frame.iter_slices(_BATCH):
                made = io.BytesIO()
                part.write_csv(made, include_header=False, quote_style="non_numeric", line_terminator="\n")
                sink.write(made.getbuffer())
    except psycopg.Error as error:
        raise translated(error, place) from error


def copied(driver: psycopg.Connection[Any], place: Place, sql: str, content: BinaryIO) -> None:
    """Write the rows of a query as CSV."""
    import psycopg

    try:
        with driver.cursor().copy(f"COPY ({sql}) TO STDOUT (FORMAT csv)".encode()) as source:
            for block in source:
                content.write(block)
    except psycopg.Error as error:
        raise translated(error, place) from error


def _plain(rows: pa.Table) -> pa.Table:
    """Bytes as PostgreSQL reads them from text."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            texts = [None if value is None else f"\\x{value.hex()}" for value in rows.column(index).to_pylist()]
            rows = rows.set_column(index, field.name, pa.array(texts, pa.string()))
    return rows


def storable(name: str, rows: pa.Table) -> pa.Table:
    """Rows without the byte that no text of PostgreSQL holds: bounds with it become unknown, which is safe.

    Blocked when anything else has it.
    """
    for index, field in enumerate(rows.schema):
        if not pa.types.is_string(field.type) and not pa.types.is_large_string(field.type):
            continue
        column = rows.column(index)
        holds = pc.fill_null(pc.match_substring(column, "\0"), False)
        if not pc.any(holds).as_py():
            continue
        if name == "ducklake_table_column_stats":  # a row without bounds would say that every value is NULL
            return storable(name, rows.filter(pc.invert(holds)))
        if name != "ducklake_file_column_stats":
            found = column.filter(holds)[0].as_py()
            raise Blocked(
                f"{name}.{field.name}: {found!r} holds a NUL byte, which PostgreSQL cannot store",
                code="name-unsupported",
                hint="use a DuckDB or SQLite catalog, or change the text at the source",
            )
        rows = rows.set_column(index, field, pc.if_else(holds, pa.scalar(None, field.type), column))
    return rows


_AGAIN = frozenset({"40001", "40P01", "23505"})
_MEANWHILE = frozenset({"42P06", "42P07", "42710", "42723"})
_INCOMPLETE = frozenset({"42P01", "42703", "42804", "42809", "42883", "3F000"})


def translated(error: BaseException, place: Place, committing: bool = False) -> BridgeError:
    """The kind of a failure by its SQLSTATE; none means that the connection failed."""
    state = str(getattr(error, "sqlstate", None) or "")
    text = place.hide((str(error).splitlines() or [type(error).__name__])[0])
    text = text.removeprefix("connection failed: ").removeprefix("connection is bad: ")
    what = f"catalog {place.path}"
    if state[:2] in ("", "08", "57") and state != "57014":
        if not isinstance(error, _operational()):
            return BridgeError(f"{what}: {text}")
        if committing:
            return Unreachable(
                f"{what}: the connection was lost during the commit, whether it happened is unknown: {text}",
                hint="run it again: it finds what was committed, and does the rest",
            )
        return Unreachable(f"{what}: {text}", hint=_CONNECTING)
    if state in _AGAIN:
        return Conflict(f"{what}: another writer was first: {text}", hint="run it again", retryable=True)
    if state == "55P03":
        return Conflict(
            f"{what} is locked by another transaction: {text}",
            hint="let the other one end (pg_stat_activity shows it), then run it again",
            retryable=True,
        )
    if state in _MEANWHILE:
        return Overtaken(f"{what}: made by another writer meanwhile: {text}", hint="run it again")
    if state == "42P01" and "ducklake_inlined_" in text:  # the server has the name in its text alone
        return Overtaken(f"{what}: its rows went to files meanwhile, or it is damaged: {text}", hint="run it again")
    if state in _INCOMPLETE:
        return Blocked(f"{what} is damaged or incomplete: {text}", code="foreign-catalog")
    if state == "42501":
        return Unreachable(
            f"{what}: {text}",
            hint=f"the role must own the lake's tables and be allowed to create some in {place.schema}",
        )
    if state == "25006":
        return Unreachable(f"{what}: the server only reads: {text}", hint="name the primary server")
    if state.startswith(("28", "3D")):
        return Unreachable(f"{what}: {text}", hint=_CONNECTING)
    if state.startswith(("53", "54", "58", "57")):
        return Unreachable(f"{what} cannot be read or written: {text}", hint="see the server's log, then run it again")
    return BridgeError(f"{what}: {text} (SQLSTATE {state})")


def _operational() -> tuple[type[Exception], ...]:
    import psycopg

    return (psycopg.OperationalError, psycopg.InterfaceError)
