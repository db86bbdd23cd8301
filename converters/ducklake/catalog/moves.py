"""Tables that a mirrored source renamed or dropped: the lake's own rows follow, as DuckDB 1.5.5 writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from time import time_ns

import sqlalchemy as sa

from bridge.errors import Conflict
from bridge.model.table import TableName
from bridge.ports import Move
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.definition import end_live
from converters.ducklake.catalog.inlined_place import inlined_place
from converters.ducklake.catalog.job import Ids, Rows, Snapshot
from converters.ducklake.catalog.objects import add_schema, schema_of
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.identifiers import identifier

__all__ = ["drop_table", "move_tables"]

_ENDED = ("table", "column", "column_tag", "data_file", "delete_file", "partition_info", "sort_info")


def move_tables(session: Session, moves: Sequence[Move], folders: Sequence[str]) -> None:
    """Give tables that we wrote other names, under which they keep their files, history and bookmarks; each folder is
    the table's own directory."""
    held = [_ours(session, each.name, each.source) for each in moves]
    ours = {each.id for each in held}
    others = [each for each in reads.live_tables(session) if each.id not in ours]
    for each in moves:
        if any(other.is_called(each.to) for other in others):
            raise Conflict(f"{each.to} exists in {session.place.path}, and {each.name} was renamed to it at the source")
    head, rows = reads.head(session), Rows()
    ids, snapshot = Ids(head.next_catalog_id, head.next_file_id), _next(head)
    snapshot.schema_version = head.schema_version + 1
    schemas, said = reads.schemas(session), []
    for each, old, folder in zip(moves, held, folders, strict=True):
        _remember(session, old.id, "source", json.dumps(dict(each.source), sort_keys=True))
        if old.is_called(each.to):
            continue
        said.append(f"rename of {each.name} to {each.to}")
        mark = reads.bookmark(session, old.id)
        if mark is not None and not mark.changed_by:  # with what tells of the time before, a rename would be no one's
            _remember(session, old.id, "snapshot", str(snapshot.id))
        schema = add_schema(session, rows, schema_of(each.to), ids, schemas, snapshot)
        uuid, path, relative = _stored(session, old.id)
        if schema.casefold() != old.schema.casefold():
            # its directory would be looked for below the other schema's
            path, relative = folder, False
        end_live(session, "table", old.id, snapshot.id)
        rows.add("table", old.id, uuid, snapshot.id, None, schemas[schema], each.to.name, path, relative)
        snapshot.changes.append(f"created_table:{identifier(schema)}.{identifier(each.to.name)}")
        rows.add("schema_versions", snapshot.id, snapshot.schema_version, old.id)
        inlined_place(session, rows, old.id, reads.columns(session, old.id), snapshot.schema_version)
    if said:
        _note(rows, snapshot, ids, "; ".join(said))
        rows.insert(session)


def _stored(session: Session, table_id: int) -> tuple[str, str, bool]:
    each = table("table").c
    query = sa.select(each.table_uuid, each.path, each.path_is_relative)
    [(uuid, path, relative)] = session.rows(query.where(each.table_id == table_id, each.end_snapshot.is_(None)))
    return str(uuid), path, bool(relative)


def _remember(session: Session, table_id: int, key: str, value: str) -> None:
    each = table("metadata")
    session.run(
        sa.update(each)
        .where(each.c.scope == "table", each.c.scope_id == table_id, each.c.key == f"bridge.{key}")
        .values(value=value)
    )


def drop_table(session: Session, name: TableName, source: Mapping[str, str]) -> None:
    """End a table that we wrote; its snapshots stay until they expire, and no file is touched."""
    held = _ours(session, name, source)
    head, rows = reads.head(session), Rows()
    snapshot = _next(head)
    for each in _ENDED:
        end_live(session, each, held.id, snapshot.id)
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


def _ours(session: Session, name: TableName, source: Mapping[str, str]) -> reads.LakeTable:
    held = reads.table_called(session, name)
    mark = None if held is None else reads.bookmark(session, held.id)
    if held is None or mark is None or not mark.is_of(source):  # another mirror was first, the name is another's now
        raise reads.gone(session, name)
    if mark.changed_by and not mark.maintained:
        raise Conflict(
            f"{name} was changed in the lake ({mark.changed_by}), and renamed or dropped at the source",
            hint=f"release {name}, or drop it in the lake",
        )
    return held


def _next(head: reads.Head) -> Snapshot:
    now = time_ns() // 1000
    return Snapshot(head.snapshot + 1, max(head.time + 1, now), now)


def _note(rows: Rows, snapshot: Snapshot, ids: Ids, message: str) -> None:
    # a change must raise next_file_id, or attached sessions keep what no longer holds
    rows.add("snapshot", snapshot.id, time_text(snapshot.time), snapshot.schema_version, ids.catalog, ids.file + 1)
    rows.add("snapshot_changes", snapshot.id, ",".join(snapshot.changes), reads.AUTHOR, message, None)
