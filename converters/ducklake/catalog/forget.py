"""Undoing and taking over: a migrated table is forgotten, or its files become the lake's own."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns

import sqlalchemy as sa

from bridge.errors import Blocked, UsageError
from bridge.model.findings import Code
from bridge.model.table import TableName
from bridge.ports import ReleasedTable
from converters.ducklake.catalog import guard, reads
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import TABLES, inlined_deletes, table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.identifiers import identifier

__all__ = ["adopt", "release", "resolve"]

_BY_TABLE = (
    "ducklake_table",
    "ducklake_column",
    "ducklake_column_tag",
    "ducklake_data_file",
    "ducklake_delete_file",
    "ducklake_file_column_stats",
    "ducklake_file_variant_stats",
    "ducklake_file_partition_value",
    "ducklake_table_stats",
    "ducklake_table_column_stats",
    "ducklake_partition_info",
    "ducklake_partition_column",
    "ducklake_sort_info",
    "ducklake_sort_expression",
    "ducklake_schema_versions",
    "ducklake_inlined_data_tables",
)


def resolve(session: Session, names: Sequence[str]) -> list[reads.LakeTable]:
    """The migrated tables that are meant, each once, also those dropped in the lake since; UsageError for a name that
    is none."""
    live = [each for each in reads.live_tables(session) if each.id >= 0]
    ours = [each for each in live if reads.bookmark(session, each.id)]
    ours += [each for each in reads.ended_tables(session) if reads.bookmark(session, each.id)]
    found: dict[int, reads.LakeTable] = {}
    for name in names:
        match = next((each for each in ours if name.casefold() in _names(each)), None)
        if match is None:
            listed = ", ".join(dict.fromkeys(f"{each.schema}.{each.name}" for each in ours))
            raise UsageError(
                f"{name} is no table that was migrated into {session.place.path}",
                hint=f"migrated tables: {listed or 'none'}",
            )
        found.setdefault(match.id, match)
    return list(found.values())


def _names(each: reads.LakeTable) -> set[str]:
    full = f"{each.schema}.{each.name}".casefold()
    return {full, each.name.casefold()} if each.schema == "main" else {full}


def release(session: Session, names: Sequence[str], discard: bool) -> list[ReleasedTable]:
    """Forget tables with everything the catalog knows of them; no file is touched.

    Blocked when a table holds changes of the lake's own, unless these may be discarded.
    """
    done = []
    for each in resolve(session, names):
        bookmark = reads.bookmark(session, each.id)
        dropped = bookmark is not None and bookmark.changed_by.startswith("dropped_table")
        if bookmark is not None and bookmark.changed_by and not (dropped or bookmark.maintained or discard):
            raise Blocked(
                f"{each.schema}.{each.name} was changed in the lake ({bookmark.changed_by}); "
                "what was written there would be lost",
                code="changed-in-lake",
                hint="copy what you need, then add --discard-changes",
            )
        done.append(_forget(session, each))
    if not reads.shared_tables(session):
        guard.lift(session)
    return done


def _forget(session: Session, lake_table: reads.LakeTable) -> ReleasedTable:
    file, scheduled, metadata, tag = (
        table("data_file"),
        table("files_scheduled_for_deletion"),
        table("metadata"),
        table("tag"),
    )
    rows = session.rows(
        sa.select(file.c.data_file_id, file.c.path_is_relative, file.c.path).where(file.c.table_id == lake_table.id)
    )
    own = sum(bool(relative) for _, relative, _ in rows)
    deletes = len(reads.delete_files(session, lake_table.id))
    waiting = {path for (path,) in session.rows(sa.select(scheduled.c.path))}
    for path in [path for _, relative, path in rows if not relative and path in waiting]:
        session.run(sa.delete(scheduled).where(scheduled.c.path == path))
    inlined = table("inlined_data_tables")
    for (name,) in session.rows(sa.select(inlined.c.table_name).where(inlined.c.table_id == lake_table.id)):
        session.define(f"DROP TABLE IF EXISTS {identifier(name)}")
    session.define(f"DROP TABLE IF EXISTS {identifier(inlined_deletes(lake_table.id).name)}")
    mapping, names = table("column_mapping"), table("name_mapping")
    for (id_,) in session.rows(sa.select(mapping.c.mapping_id).where(mapping.c.table_id == lake_table.id)):
        session.run(sa.delete(names).where(names.c.mapping_id == id_))
    session.run(sa.delete(mapping).where(mapping.c.table_id == lake_table.id))
    for catalog_table in _BY_TABLE:
        each = TABLES[catalog_table]
        session.run(sa.delete(each).where(each.c.table_id == lake_table.id))
    session.run(sa.delete(tag).where(tag.c.object_id == lake_table.id))
    session.run(sa.delete(metadata).where(metadata.c.scope == "table", metadata.c.scope_id == lake_table.id))
    _note(session, lake_table)
    name = lake_table.called
    return ReleasedTable(name, len(rows) - own, own + deletes)


def _note(session: Session, lake_table: reads.LakeTable) -> None:
    """A snapshot that says so, and makes attached sessions read the catalog again."""
    newest, snapshot, changes = reads.head(session), table("snapshot"), table("snapshot_changes")
    time = time_text(max(newest.time + 1, time_ns() // 1000))
    session.run(
        sa.insert(snapshot),
        {
            "snapshot_id": newest.snapshot + 1,
            "snapshot_time": time,
            "schema_version": newest.schema_version + 1,
            "next_catalog_id": newest.next_catalog_id,
            "next_file_id": newest.next_file_id + 1,
        },
    )
    session.run(
        sa.insert(changes),
        {
            "snapshot_id": newest.snapshot + 1,
            "changes_made": f"dropped_table:{lake_table.id}",
            "author": reads.AUTHOR,
            "commit_message": f"release of {lake_table.schema}.{lake_table.name}",
        },
    )


def adopt(session: Session, names: Sequence[str]) -> list[TableName]:
    """Hand the files of tables to the lake: nothing guards them any more."""
    metadata, done = table("metadata"), []
    for each in resolve(session, names):
        _refuse_twice(session, each)
        session.run(
            sa.update(metadata)
            .where(
                metadata.c.scope == "table",
                metadata.c.scope_id == each.id,
                metadata.c.key == "bridge.ownership",
            )
            .values(value="adopt")
        )
        done.append(each.called)
    if not reads.shared_tables(session):
        guard.lift(session)
    return done


def _refuse_twice(session: Session, each: reads.LakeTable) -> None:
    """A file that is registered twice would be deleted when the first of the two expires."""
    file = table("data_file").c
    rows = session.rows(
        sa.select(file.path)
        .where(file.table_id == each.id)
        .group_by(file.path, file.path_is_relative)
        .having(sa.func.count() > 1)
        .limit(1)
    )
    if rows:
        raise Blocked(
            f"{each.schema}.{each.name}: data file {rows[0][0]} left the table and came back; the lake would delete it "
            "when the first time expires",
            code=Code.FILE_RETURNS.text,
            hint="expire the snapshots that came from the source first, or release the table and migrate it again",
        )
