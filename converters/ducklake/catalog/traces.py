"""What changes to a table leave in the catalog when the snapshots that told of them have expired."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import inlined_data, inlined_deletes, table

__all__ = ["count_files", "sorts_alone", "trace"]

_OF_TABLE = (
    ("data_file", "table_id", "inserted_into_table", "deleted_from_table"),
    ("delete_file", "table_id", "deleted_from_table", "deleted_from_table"),
    ("partition_info", "table_id", "altered_table", "altered_table"),
    ("column_tag", "table_id", "altered_table", "altered_table"),
    ("tag", "object_id", "altered_table", "altered_table"),
)
"""Catalog tables, the column that is the table's id, and what rows say that begin and end."""


def trace(session: Session, table_id: int, snapshot: int, files: str) -> str:
    """The first change after a snapshot that the table's own rows show, in the words of changes_made; `files` is what
    count_files gave at the snapshot, "" where nobody asked. A rename by itself is none."""
    found = sorted(_events(session, table_id, snapshot))
    if found:
        at, word = found[0]
        return f"{word} in snapshot {at}"
    now = count_files(session, table_id)
    if files in ("", now):
        return ""
    # merging takes files away and no row
    word = "merge_adjacent" if files.split()[1] == now.split()[1] else "deleted_from_table"
    return f"{word} in a snapshot that has expired"


def count_files(session: Session, table_id: int) -> str:
    """The number of live data files and of the rows in them, as a note."""
    each = table("data_file").c
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(each.record_count), 0))
    [(files, rows)] = session.rows(query.where(each.table_id == table_id, each.end_snapshot.is_(None)))
    return f"{files} {int(rows)}"


def sorts_alone(session: Session, table_id: int, snapshot: int) -> bool:
    """Whether a snapshot changed of a table's definition its sort order alone, which says nothing of its rows."""

    def touches(name: str, key: str = "table_id") -> bool:
        each = table(name).c
        at = sa.or_(each.begin_snapshot == snapshot, each.end_snapshot == snapshot)
        return bool(session.rows(sa.select(each[key]).where(each[key] == table_id, at).limit(1)))

    others = any(map(touches, ("table", "column", "column_tag", "partition_info"))) or touches("tag", "object_id")
    return touches("sort_info") and not others


def _events(session: Session, table_id: int, snapshot: int) -> Iterator[tuple[int, str]]:
    """(snapshot, word) of changes, of each kind the first."""

    def first(column: sa.ColumnElement[int], word: str, *mine: sa.ColumnElement[bool]) -> Iterator[tuple[int, str]]:
        [(at,)] = session.rows(sa.select(sa.func.min(column)).where(column > snapshot, *mine))
        if at is not None:
            yield at, word

    for name, key, began, ended in _OF_TABLE:
        each = table(name).c
        yield from first(each.begin_snapshot, began, each[key] == table_id)
        yield from first(each.end_snapshot, ended, each[key] == table_id)
    listed = table("inlined_data_tables").c
    for (name,) in session.rows(sa.select(listed.table_name).where(listed.table_id == table_id)):
        rows = inlined_data(name).c
        if session.has_table(name):
            yield from first(rows.begin_snapshot, "inlined_insert")
            yield from first(rows.end_snapshot, "inlined_delete")
    deletes = inlined_deletes(table_id)
    if session.has_table(deletes.name):
        yield from first(deletes.c.begin_snapshot, "inlined_delete")
    version, own = table("schema_versions").c, table("table").c
    renames = sa.select(own.begin_snapshot).where(own.table_id == table_id)
    altered = sa.select(version.begin_snapshot).where(version.table_id == table_id, version.begin_snapshot > snapshot)
    for (at,) in session.rows(altered.where(version.begin_snapshot.not_in(renames))):
        if not sorts_alone(session, table_id, at):
            yield at, "altered_table"
