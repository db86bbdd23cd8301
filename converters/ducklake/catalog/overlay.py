"""Catalogs of every readable version as if they were 1.0: tables and columns that a version lacks read as NULL.

What a catalog holds is looked up, since the texts of development versions do not tell it (`0.3-dev1` has been written
over the tables of 0.2 and over those of 0.3).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow.csv as pacsv
import sqlalchemy as sa

from bridge.errors import Blocked
from converters.ducklake.catalog import postgres
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import TABLES

__all__ = ["READABLE", "Condition", "Overlay", "frames", "require_readable"]

READABLE = ("0.2", "0.3-dev1", "0.3", "0.4-dev1", "0.4", "1.0-dev1", "1.0")
_BEFORE = {"ducklake_file_column_stats": "ducklake_file_column_statistics"}
"""What a table was called until 0.2."""
_BATCH = 100_000
_STATED: dict[str, frozenset[str]] = {
    name: frozenset(columns.split())
    for name, columns in {
        "snapshot": "snapshot_id snapshot_time schema_version",
        "snapshot_changes": "snapshot_id",
        "schema": "schema_id schema_name begin_snapshot",
        "table": "table_id table_uuid schema_id table_name begin_snapshot",
        "view": "schema_id view_name begin_snapshot",
        "macro": "schema_id macro_name begin_snapshot",
        "column": "column_id column_order column_name column_type begin_snapshot",
        "tag": "begin_snapshot key",
        "column_tag": "begin_snapshot key column_id",
        "partition_info": "partition_id begin_snapshot",
        "partition_column": "partition_id column_id transform",
        "sort_info": "sort_id begin_snapshot",
        "sort_expression": "sort_id expression sort_direction null_order",
        "data_file": "data_file_id path",
        "delete_file": "data_file_id path",
        "file_column_stats": "data_file_id column_id",
        "inlined_data_tables": "table_name schema_version",
        "name_mapping": "mapping_id column_id source_name target_field_id",
    }.items()
}
"""Columns that are never NULL, by table; without them nothing can be said."""

Condition = Callable[[Any], sa.ColumnElement[bool]]


def require_readable(session: Session) -> str:
    """The catalog's format version; Blocked when this is no DuckLake, or one that we cannot read."""
    path = session.place.path
    if not session.has_table("ducklake_metadata"):
        raise Blocked(f"{path} is not a DuckLake catalog: it has no table ducklake_metadata", code="foreign-catalog")
    found = Overlay(session).settings().get("version", "")
    if found in READABLE:
        return found
    if found.startswith("0.1"):
        raise Blocked(
            f"catalog {path} has format version {found}; {READABLE[0]} and later can be read",
            code="format-version",
            hint=f"upgrade a copy of it in DuckDB: {session.place.statement('AUTOMATIC_MIGRATION true')}",
        )
    raise Blocked(
        f"catalog {path} has format version {found or 'none'!r}; {READABLE[0]} to {READABLE[-1]} can be read",
        code="format-version",
        hint="use a release of ducklake-bridge that knows it",
    )


class Overlay:
    """Queries on one catalog in one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._held: dict[str, sa.TableClause | None] = {} if session.probes is None else session.probes

    def _table(self, name: str) -> sa.TableClause | None:
        """The catalog's own table behind a name of 1.0, with the columns that it has; None when it has none."""
        if name not in self._held:
            known = [each for each in (name, _BEFORE.get(name, name)) if self.session.has_table(each)]
            self._held[name] = self.probed(known[0]) if known else None
        return self._held[name]

    def probed(self, name: str) -> sa.TableClause:
        """Any table of the catalog's database, with the columns that it has."""
        query = sa.select(sa.text("*")).select_from(sa.table(name)).limit(0)
        found = self.session.connection.execute(query)
        return sa.table(name, *(sa.column(each) for each in found.keys()))  # noqa: SIM118  # not a dictionary

    def has(self, name: str) -> bool:
        """Whether the catalog has a table, by its short name in 1.0."""
        return self._table(f"ducklake_{name}") is not None

    def select(self, name: str, *columns: str, where: Condition | None = None) -> sa.Select[Any] | None:
        """A query on a table by its short name in 1.0; None when the catalog has no such table. A condition has to
        name columns that every version has."""
        held = self._table(f"ducklake_{name}")
        if held is None:
            return None
        made = []
        for each in columns:
            column: Any = held.c[each] if each in held.c else sa.null()
            stated = TABLES[f"ducklake_{name}"].c.get(each)
            text = stated is not None and str(stated.type) in ("UUID", "TIMESTAMP WITH TIME ZONE")
            made.append((sa.cast(column, sa.String) if text and each in held.c else column).label(each))
        query = sa.select(*made)
        try:
            return query if where is None else query.where(where(held.c))
        except AttributeError as error:
            raise Blocked(
                f"catalog {self.session.place.path} is damaged: {held.name} has no column {error}",
                code="metadata-unreadable",
                hint="restore the catalog",
            ) from error

    def rows(self, name: str, *columns: str, where: Condition | None = None) -> list[Any]:
        """The rows of a small table; columns that a version lacks are None."""
        query = self.select(name, *columns, where=where)
        found = [] if query is None else self.session.rows(query)
        for place, column in enumerate(columns):
            if column in _STATED.get(name, ()) and any(row[place] is None for row in found):
                raise self._damaged(name, column)
        return found

    def _damaged(self, name: str, column: str) -> Blocked:
        return Blocked(
            f"catalog {self.session.place.path} is damaged: ducklake_{name}.{column} is NULL",
            code="metadata-unreadable",
            hint="restore the catalog",
        )

    def settings(self) -> dict[str, str]:
        """The catalog-wide settings; in 0.1 there were no others."""
        return {key: value for key, value, scope in self.rows("metadata", "key", "value", "scope") if scope is None}

    def frame(self, name: str, columns: Mapping[str, Any], where: Condition | None = None) -> pl.DataFrame:
        """Rows of a large table, column by column; `columns` gives the Polars type of each."""
        parts = list(self.frames(name, columns, where))
        return pl.concat(parts) if parts else pl.DataFrame(schema=dict(columns))

    def frames(self, name: str, columns: Mapping[str, Any], where: Condition | None = None) -> Iterator[pl.DataFrame]:
        """The same in parts that bound the memory."""
        query = self.select(name, *columns, where=where)
        if query is not None:
            for frame in frames(self.session, query, columns):
                if damaged := [each for each in _STATED.get(name, ()) if each in columns and frame[each].null_count()]:
                    raise self._damaged(name, damaged[0])
                yield frame


def frames(session: Session, query: sa.Select[Any], columns: Mapping[str, Any]) -> Iterator[pl.DataFrame]:
    """The rows of a query, column by column, in parts that bound the memory."""
    sql = str(query.compile(dialect=session.connection.dialect, compile_kwargs={"literal_binds": True}))
    if session.place.backend == "sqlite":
        stored = {name: pl.Int64 if type_ is pl.Boolean else type_ for name, type_ in columns.items()}
        cursor = session.driver().execute(sql)
        while part := cursor.fetchmany(_BATCH):
            yield pl.DataFrame(part, schema=stored, orient="row").cast(pl.Schema(columns))
        return
    if session.place.is_server:
        yield from _copied(session, sql, columns)
        return
    reader = session.driver().execute(sql).to_arrow_reader(_BATCH)
    for batch in reader:
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        yield frame.cast(pl.Schema(columns))


def _copied(session: Session, sql: str, columns: Mapping[str, Any]) -> Iterator[pl.DataFrame]:
    """By COPY as CSV, where an empty field is NULL and an empty text is quoted."""
    schema = pl.DataFrame(schema=dict(columns)).to_arrow().schema
    convert = pacsv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        true_values=["t"],
        false_values=["f"],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    with tempfile.TemporaryFile() as content:
        postgres.copied(session.driver(), session.place, sql, content)
        if not content.tell():
            return
        content.seek(0)
        reader = pacsv.open_csv(
            content,
            read_options=pacsv.ReadOptions(column_names=list(columns), block_size=1 << 24),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=convert,
        )
        for batch in reader:
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            yield frame.cast(pl.Schema(columns))
