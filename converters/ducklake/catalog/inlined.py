"""Rows that lie in the catalog, as a relation of DuckDB in the types of their columns.

A DuckDB file holds them as they are. SQLite and PostgreSQL hold what they have no type for as text, and PostgreSQL
texts as bytes, since its own cannot hold every character (as DuckDB 1.5.5 writes them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from bridge.errors import Blocked
from converters.ducklake.catalog.history import ColumnVersion, Definition
from converters.ducklake.catalog.overlay import Overlay
from converters.ducklake.catalog.session import Session
from converters.ducklake.columns import ColumnRow, sql_type
from converters.ducklake.identifiers import identifier
from converters.ducklake.projection import Level

__all__ = ["Held", "columns_of_version", "held_rows"]


@dataclass(frozen=True, slots=True)
class Held:
    """A relation: its text in a connection, and its columns; row_id comes before them."""

    connection: duckdb.DuckDBPyConnection
    sql: str
    levels: tuple[Level, ...]


def columns_of_version(
    session: Session, found: Definition, table_id: int, schema_version: int, first: int
) -> list[ColumnVersion]:
    """The columns, of every level, of a table under a schema version of the lake; `first` is the first snapshot that is
    known to have written under it."""
    catalog = Overlay(session)
    stated = catalog.rows("schema_versions", "begin_snapshot", "schema_version", "table_id")
    begins = [begin for begin, version, owner in stated if version == schema_version and owner in (None, table_id)]
    begin = min(begins) if begins else first
    begin = max(begin, min(each.begin for each in found.versions))
    return [each for each in found.columns if each.live(begin)]


@contextmanager
def held_rows(session: Session, name: str, begin: int, columns: Sequence[ColumnVersion]) -> Iterator[Held]:
    """The rows of one inlined table that began in a snapshot, in the order of their row ids."""
    rows = {
        each.id: ColumnRow(each.order, each.name, each.type, None, None, each.nulls_allowed, each.parent)
        for each in columns
    }
    top = sorted((each for each in columns if each.parent is None), key=lambda each: (each.order, each.id))
    levels = tuple(_level(each, columns) for each in top)
    held = Overlay(session).probed(name)
    if missing := [each.name for each in top if each.name not in held.c]:
        raise Blocked(f"{name} of {session.place.attach} has no column {missing[0]}", code="metadata-unreadable")
    if session.place.backend == "duckdb":
        listed = ", ".join(identifier(each.name) for each in top)
        sql = f"SELECT row_id, {listed} FROM {identifier(name)} WHERE begin_snapshot = {int(begin)} ORDER BY row_id"
        yield Held(session.driver(), f"({sql})", levels)
        return
    texts = [held.c[each.name] if _is_bytes(session, each) else sa.cast(held.c[each.name], sa.Text) for each in top]
    if not session.place.is_server:
        texts = [held.c[each.name] for each in top]
    query = sa.select(held.c.row_id, *texts).where(held.c.begin_snapshot == int(begin)).order_by(held.c.row_id)
    found = session.rows(query)
    made = {"row_id": pa.array([row[0] for row in found], pa.int64())}
    casts = []
    for place, each in enumerate(top, 1):
        values = [_plain(row[place], each.type) for row in found]
        made[f"c{place}"] = pa.array(values, pa.binary() if each.type == "blob" else pa.string())
        cast = f"c{place}" if each.type == "blob" else f"CAST(c{place} AS {sql_type(rows, each.id)})"
        casts.append(f"{cast} AS {identifier(each.name)}")
    with closing(duckdb.connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("inlined", pa.table(made))
        yield Held(connection, f"(SELECT row_id, {', '.join(casts)} FROM inlined ORDER BY row_id)", levels)


def _is_bytes(session: Session, column: ColumnVersion) -> bool:
    return session.place.is_server and column.type in ("varchar", "json", "blob")


def _plain(value: object, type_: str) -> str | bytes | None:
    """A stored value as the text, or bytes, that DuckDB makes a value of."""
    if value is None:
        return None
    if type_ == "blob":
        return bytes(value) if isinstance(value, bytes | memoryview | bytearray) else str(value).encode()
    if isinstance(value, bytes | memoryview | bytearray):
        return bytes(value).decode()
    return str(value)


def _level(column: ColumnVersion, columns: Sequence[ColumnVersion]) -> Level:
    below = sorted((each for each in columns if each.parent == column.id), key=lambda each: (each.order, each.id))
    return Level(column.id, column.name, tuple(_level(each, columns) for each in below))
