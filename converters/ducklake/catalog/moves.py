"""Tables that a mirrored source renamed or dropped: the lake's own rows follow, as DuckDB 1.5.5 writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import time_ns

import sqlalchemy as sa

from bridge.errors import Conflict
from bridge.model.table import TableName
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.inlined_place import inlined_place
from converters.ducklake.catalog.job import Ids, Rows, Snapshot
from converters.ducklake.catalog.objects import add_schema, schema_of
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.identifiers import identifier

__all__ = ["drop_table", "move_table"]

AUTHOR = "ducklake-bridge"
_ENDED = ("table", "column", "column_tag", "data_file", "delete_file", "partition_info", "sort_info")


def move_table(session: Session, name: TableName, to: TableName, folder: str, source: Mapping[str, str]) -> None:
    """Give a table that we wrote another name, under which it keeps its files, history and bookmark; `folder` is its
    own directory, `source` what the bookmark is to say of where it comes from."""
    held = _ours(session, name)
    taken = [each for each in reads.live_tables(session) if _same(each, to)]
    if taken and taken[0].id != held.id:
        raise Conflict(f"{to} exists in {session.place.path}, and {name} was renamed to it at the source")
    head, rows = reads.head(session), Rows()
    ids, snapshot = Ids(head.next_catalog_id, head.next_file_id), _next(head)
    schemas = reads.schemas(session)
    schema = add_schema(session, rows, schema_of(to), ids, schemas, snapshot)
    each = table("table")
    [(uuid, path, relative)] = session.rows(
        sa.select(each.c.table_uuid, each.c.path, each.c.path_is_relative).where(
            each.c.table_id == held.id, each.c.end_snapshot.is_(None)
        )
    )
    if schema.casefold() != held.schema.casefold():
        # its directory would be looked for below the other schema's
        path, relative = folder, False
    _end(session, "table", held.id, snapshot.id)
    rows.add("table", held.id, str(uuid), snapshot.id, None, schemas[schema], to.name, path, bool(relative))
    snapshot.changes.append(f"created_table:{identifier(schema)}.{identifier(to.name)}")
    snapshot.schema_version = head.schema_version + 1
    rows.add("schema_versions", snapshot.id, snapshot.schema_version, held.id)
    inlined_place(session, rows, held.id, reads.columns(session, held.id), snapshot.schema_version)
    metadata = table("metadata")
    session.run(
        sa.update(metadata)
        .where(metadata.c.scope == "table", metadata.c.scope_id == held.id, metadata.c.key == "bridge.source")
        .values(value=json.dumps(dict(source), sort_keys=True))
    )
    _note(rows, snapshot, ids, f"rename of {name} to {to}")
    rows.insert(session)


def drop_table(session: Session, name: TableName) -> None:
    """End a table that we wrote; its snapshots stay until they expire, and no file is touched."""
    held = _ours(session, name)
    head, rows = reads.head(session), Rows()
    snapshot = _next(head)
    for each in _ENDED:
        _end(session, each, held.id, snapshot.id)
    tag = table("tag")
    session.run(
        sa.update(tag).where(tag.c.object_id == held.id, tag.c.end_snapshot.is_(None)).values(end_snapshot=snapshot.id)
    )
    metadata = table("metadata")
    # whose files they are must stay known as long as one is registered
    session.run(
        sa.delete(metadata).where(
            metadata.c.scope == "table",
            metadata.c.scope_id == held.id,
            metadata.c.key.startswith("bridge."),
            metadata.c.key != "bridge.ownership",
        )
    )
    snapshot.changes.append(f"dropped_table:{held.id}")
    snapshot.schema_version = head.schema_version + 1
    _note(rows, snapshot, Ids(head.next_catalog_id, head.next_file_id), f"drop of {name}")
    rows.insert(session)


def _ours(session: Session, name: TableName) -> reads.LakeTable:
    found = [each for each in reads.live_tables(session) if _same(each, name)]
    mark = reads.bookmark(session, found[0].id) if found and found[0].id >= 0 else None
    if mark is None:
        raise Conflict(f"{name} is gone from {session.place.path} since it was looked at", hint="run it again")
    if mark.changed_by:
        raise Conflict(
            f"{name} was changed in the lake ({mark.changed_by}), and renamed or dropped at the source",
            hint=f"release {name}, or drop it in the lake",
        )
    return found[0]


def _same(each: reads.LakeTable, name: TableName) -> bool:
    return (each.schema.casefold(), each.name.casefold()) == (schema_of(name).casefold(), name.name.casefold())


def _next(head: reads.Head) -> Snapshot:
    now = time_ns() // 1000
    return Snapshot(head.snapshot + 1, max(head.time + 1, now), now)


def _end(session: Session, name: str, table_id: int, snapshot: int) -> None:
    each = table(name)
    session.run(
        sa.update(each).where(each.c.table_id == table_id, each.c.end_snapshot.is_(None)).values(end_snapshot=snapshot)
    )


def _note(rows: Rows, snapshot: Snapshot, ids: Ids, message: str) -> None:
    # a change must raise next_file_id, or attached sessions keep what no longer holds
    rows.add("snapshot", snapshot.id, time_text(snapshot.time), snapshot.schema_version, ids.catalog, ids.file + 1)
    rows.add("snapshot_changes", snapshot.id, ",".join(snapshot.changes), AUTHOR, message, None)
