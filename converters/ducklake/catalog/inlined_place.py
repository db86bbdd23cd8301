"""The empty table of the catalog database into which DuckDB puts small inserts of a table.

Without it DuckDB 1.5.5 makes one at its first small insert, under a schema version that has no row in
ducklake_schema_versions, and later reads its columns by the names they had at the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from converters.ducklake.catalog import reads
from converters.ducklake.catalog.job import Rows
from converters.ducklake.catalog.session import Session
from converters.ducklake.columns import ColumnRow, sql_type
from converters.ducklake.identifiers import identifier
from converters.ducklake.types import postgres_type, sqlite_type

__all__ = ["inlined_place", "nothing_inlined"]

_INLINED_COLUMNS = frozenset({"row_id", "begin_snapshot", "end_snapshot"})
_SERVER_COLUMNS = 1600
_SERVER_NAME = 63
_SERVER_NAMES = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""PostgreSQL's limits: columns of a table, bytes of a name, and names that every table has already."""


def inlined_place(session: Session, rows: Rows, table_id: int, columns: Mapping[int, ColumnRow], version: int) -> None:
    """One for the columns of a schema version; none where DuckDB would not use it, or must not."""
    top = sorted((row.order, id_) for id_, row in columns.items() if row.parent is None)
    names = {columns[id_].name.casefold() for _, id_ in top}
    if names & _INLINED_COLUMNS or any(row.type == "variant" for row in columns.values()):
        return
    if session.place.is_server and not _fits_server([columns[id_] for _, id_ in top]):
        # DuckDB 1.5.5 would try all the same at the first small insert, and fail
        nothing_inlined(session, rows, table_id)
        return
    name = f"ducklake_inlined_data_{table_id}_{version}"
    listed = "".join(
        f", {identifier(columns[id_].name)} {_inlined_type(session.place.backend, columns, id_)}" for _, id_ in top
    )
    session.define(
        f"CREATE TABLE {identifier(name)} (row_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT{listed})"
    )
    rows.add("inlined_data_tables", table_id, name, version)


def nothing_inlined(session: Session, rows: Rows, table_id: int) -> None:
    """Small changes of a table go to files, unless somebody has said otherwise."""
    said = ("data_inlining_row_limit", "0", "table", table_id)
    noted = said in rows.by_table.get("ducklake_metadata", ())
    if not noted and not reads.table_setting(session, table_id, "data_inlining_row_limit"):
        rows.add("metadata", *said)


def _inlined_type(backend: str, columns: Mapping[int, ColumnRow], id_: int) -> str:
    match backend:
        case "sqlite":
            return sqlite_type(columns[id_].type)
        case "postgres":
            return postgres_type(columns[id_].type)
        case _:
            return sql_type(columns, id_)


def _fits_server(columns: Sequence[ColumnRow]) -> bool:
    """Whether PostgreSQL can hold the columns as a table of its own."""
    return len(columns) + len(_INLINED_COLUMNS) <= _SERVER_COLUMNS and not any(
        row.type == "time_ns" or row.name in _SERVER_NAMES or len(row.name.encode()) > _SERVER_NAME for row in columns
    )
