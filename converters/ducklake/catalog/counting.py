"""How many rows a table of a lake has, by its catalog alone."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from converters.ducklake.catalog.history import inlined_tables
from converters.ducklake.catalog.overlay import Overlay
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import inlined_deletes

__all__ = ["live_rows"]


def live_rows(session: Session, table_id: int, snapshot: int) -> int | None:
    """The rows of a table at a snapshot. None where only files tell: a merged one holds rows of later snapshots too.
    Fewer than there are, at a snapshot that is not the newest, where a delete file holds later deletes without saying
    so, as a flush of DuckDB 1.5.5 may write it."""
    catalog = Overlay(session)

    def live(rows: Any) -> sa.ColumnElement[bool]:
        begun = sa.func.coalesce(rows.begin_snapshot, 0) <= snapshot
        return sa.and_(begun, sa.or_(rows.end_snapshot.is_(None), rows.end_snapshot > snapshot))

    def of(name: str, *columns: str) -> sa.Subquery:
        every = ("data_file_id", "begin_snapshot", "end_snapshot", "partial_max", *columns)
        query = catalog.select(name, *every, where=lambda each: each.table_id == table_id)
        assert query is not None  # a catalog without files is none
        found = query.subquery()
        return sa.select(found).where(live(found.c)).subquery()

    def summed(rows: sa.Subquery, column: str) -> int | None:
        last = sa.cast(rows.c.partial_max, sa.BigInteger)  # a version that lacks the column has a NULL without a type
        later = sa.case((last > snapshot, 1), else_=0)
        if "partial_file_info" in rows.c:
            later = sa.case((rows.c.partial_file_info.is_not(None), 1), else_=later)
        unknown = sa.case((rows.c[column].is_(None), 1), else_=later)
        query = sa.select(sa.func.sum(rows.c[column]), sa.func.sum(unknown)).select_from(rows)
        if column == "delete_count":
            query = query.where(rows.c.data_file_id.in_(sa.select(files.c.data_file_id)))
        [(total, hidden)] = session.rows(query)
        return None if hidden else int(total or 0)

    files = of("data_file", "record_count", "partial_file_info")
    inserted = summed(files, "record_count")
    deleted = summed(of("delete_file", "delete_count"), "delete_count")
    if inserted is None or deleted is None:
        return None
    for name, _ in inlined_tables(catalog, table_id):
        held = catalog.probed(name)
        [(count,)] = session.rows(sa.select(sa.func.count()).select_from(held).where(live(held.c)))
        inserted += count
    noted = inlined_deletes(table_id)
    if session.has_table(noted.name):
        ours = noted.c.file_id.in_(sa.select(files.c.data_file_id))
        query = sa.select(sa.func.count()).select_from(noted).where(noted.c.begin_snapshot <= snapshot, ours)
        [(count,)] = session.rows(query)
        deleted += count
    return inserted - deleted
