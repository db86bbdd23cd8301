"""Rows that lie in the catalog, as a relation of DuckDB in the types of their columns.

A DuckDB file holds them as they are. SQLite and PostgreSQL hold what they have no type for as text, and PostgreSQL
texts as bytes, since its own cannot hold every character (as DuckDB 1.5.5 writes them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

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
from converters.parquet import quiet

__all__ = ["Held", "columns_of_version", "held_rows", "levels_of"]


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
    levels = levels_of(columns)
    held = Overlay(session).probed(name)
    # the extension leaves a plain name unquoted, and PostgreSQL writes it small
    stored = [each.name if each.name in held.c else each.name.lower() for each in top]
    if missing := [each.name for each, here in zip(top, stored, strict=True) if here not in held.c]:
        raise Blocked(f"{name} of {session.place.attach} has no column {missing[0]}", code="metadata-unreadable")
    if session.place.backend == "duckdb":
        listed = ", ".join(identifier(each.name) for each in top)
        sql = f"SELECT row_id, {listed} FROM {identifier(name)} WHERE begin_snapshot = {int(begin)} ORDER BY row_id"
        yield Held(session.driver(), f"({sql})", levels)
        return
    values_: list[sa.ColumnElement[Any]] = [held.c[here] for here in stored]
    if session.place.is_server:
        values_ = [_server_text(column, each.type) for column, each in zip(values_, top, strict=True)]
    query = sa.select(held.c.row_id, *values_).where(held.c.begin_snapshot == int(begin)).order_by(held.c.row_id)
    found = session.rows(query)
    made = {"row_id": pa.array([row[0] for row in found], pa.int64())}
    casts = []
    for place, each in enumerate(top, 1):
        values = [_plain(row[place], each.type) for row in found]
        made[f"c{place}"] = pa.array(values, pa.binary() if each.type == "blob" else pa.string())
        typed = f"c{place}" if each.type == "blob" else f"CAST(c{place} AS {sql_type(rows, each.id)})"
        casts.append(f"{typed} AS {identifier(each.name)}")
    with closing(quiet.connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("inlined", pa.table(made))
        yield Held(connection, f"(SELECT row_id, {', '.join(casts)} FROM inlined ORDER BY row_id)", levels)


def _server_text(column: sa.ColumnElement[Any], type_: str) -> sa.ColumnElement[Any]:
    """A column of PostgreSQL as bytes or as the text that DuckDB reads, which is not the server's own for intervals."""
    if type_ in ("varchar", "json", "blob"):
        return column
    if type_ != "interval":
        return sa.cast(column, sa.Text)
    part = {name: sa.cast(sa.extract(name, column), sa.BigInteger) for name in ("year", "month", "day", "hour")}
    part |= {name: sa.cast(sa.extract(name, column), sa.BigInteger) for name in ("minute", "microseconds")}
    micros = part["hour"] * 3_600_000_000 + part["minute"] * 60_000_000 + part["microseconds"]
    counts = (part["year"] * 12 + part["month"], "months"), (part["day"], "days"), (micros, "microseconds")
    made: Any = None
    for count, unit in counts:
        text = sa.cast(count, sa.Text) + f" {unit} "
        made = text if made is None else made + text
    return cast("sa.ColumnElement[Any]", made)


def _plain(value: object, type_: str) -> str | bytes | None:
    """A stored value as the text, or bytes, that DuckDB makes a value of."""
    if value is None:
        return None
    if type_ == "blob":
        return bytes(value) if isinstance(value, bytes | memoryview | bytearray) else str(value).encode()
    if isinstance(value, bytes | memoryview | bytearray):
        return bytes(value).decode()
    return str(value)


def levels_of(columns: Sequence[ColumnVersion]) -> tuple[Level, ...]:
    """Columns, of every level, as rows under them hold them."""
    top = sorted((each for each in columns if each.parent is None), key=lambda each: (each.order, each.id))
    return tuple(_level(each, columns) for each in top)


def _level(column: ColumnVersion, columns: Sequence[ColumnVersion]) -> Level:
    below = sorted((each for each in columns if each.parent == column.id), key=lambda each: (each.order, each.id))
    return Level(column.id, column.name, tuple(_level(each, columns) for each in below))
