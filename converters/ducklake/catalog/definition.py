"""A table's definition as catalog rows: columns, comments, layout, tags and settings, and how they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from bridge.model.schema import walk
from bridge.model.table import Table
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.job import Ids, Job, Rows, Snapshot, spec_begin
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.ducklake.columns import ColumnRow, column_rows, spans
from converters.ducklake.partition import PartitionKey, partition_keys
from converters.ducklake.settings import ORDER_TAG, lake_settings, table_tags
from converters.ducklake.sorting import Declared, SortKey, next_order

__all__ = ["declared", "define", "end_live"]


def define(session: Session, rows: Rows, job: Job, ids: Ids, chosen: Mapping[str, str]) -> None:
    """Columns, comments, layout, tags and settings."""
    source, id_ = job.table, job.table_id
    schemas = {**source.schemas, source.schema.id: source.schema}
    numbered = job.schema_versions()
    versions = [(event, schemas[number]) for event, number in numbered]
    place = {event: rank for rank, (_, event) in enumerate(job.events)}
    by_rank = [job.snapshots[event] for _, event in job.events]
    columns = {number: column_rows(schemas[number], chosen) for number in {number for _, number in numbered}}
    made, ended = spans([(place[event], columns[number]) for event, number in numbered], job.before)
    for span in made:
        row: ColumnRow = span.value
        rows.add(
            "column",
            span.key,
            by_rank[span.begin].id,
            _end(by_rank, span.end),
            id_,
            row.order,
            row.name,
            row.type,
            row.initial_default,
            row.default if row.default is not None else "NULL",
            row.nulls_allowed,
            row.parent,
            row.default_type,
            "duckdb",
        )
        _altered(job, by_rank, span.begin, span.end, columns=True)
    for key, rank in ended:
        _end_rows(session, "column", "column_id", id_, key, by_rank[rank].id)
        _altered(job, by_rank, rank, None, columns=True)
    if job.is_new:
        # reserve the source's highest column id, or the next ALTER would reuse one that old files hold
        first = by_rank[0].id
        if source.last_column_id > max((span.key for span in made), default=0):
            rows.add(
                "column",
                int(source.last_column_id),
                first,
                first,
                id_,
                int(source.last_column_id),
                "reserved",
                "int32",
                None,
                "NULL",
                True,
                None,
                "literal",
                "duckdb",
            )
    _comments(session, rows, job, by_rank, [(place[event], schema) for event, schema in versions])
    _layout(session, rows, job, ids, by_rank, place)
    _tags(session, rows, job, by_rank)


def _end(by_rank: Sequence[Snapshot], rank: int | None) -> int | None:
    return None if rank is None else by_rank[rank].id


def _altered(job: Job, by_rank: Sequence[Snapshot], begin: int, end: int | None, columns: bool = False) -> None:
    for rank in (begin, end):
        if rank is None or (rank == 0 and job.is_new):
            continue
        snapshot = by_rank[rank]
        snapshot.alters = True
        change = f"altered_table:{job.table_id}"
        if change not in snapshot.changes:
            snapshot.changes.append(change)
        if columns:
            job.snapshots.setdefault(-2 - rank, snapshot)  # marks a new schema version of this table


def _end_rows(session: Session, name: str, key: str, table_id: int, value: int, snapshot: int) -> None:
    each = table(name)
    session.run(
        sa.update(each)
        .where(each.c.table_id == table_id, each.c[key] == value, each.c.end_snapshot.is_(None))
        .values(end_snapshot=snapshot)
    )


def _comments(
    session: Session,
    rows: Rows,
    job: Job,
    by_rank: Sequence[Snapshot],
    versions: Sequence[tuple[int, Any]],
) -> None:
    docs = [
        (rank, {int(each.field.id): each.field.doc for each in walk(schema.fields) if each.field.doc})
        for rank, schema in versions
    ]
    tag = table("column_tag").c
    before = {}
    if not job.is_new:
        before = {
            id_: value
            for id_, key, value in reads.tags(session, "column_tag", tag.table_id == job.table_id)
            if key == "comment"
        }
    made, ended = spans(docs, before)
    for span in made:
        rows.add(
            "column_tag",
            job.table_id,
            span.key,
            by_rank[span.begin].id,
            _end(by_rank, span.end),
            "comment",
            span.value,
        )
        _altered(job, by_rank, span.begin, span.end)
    for key, rank in ended:
        _end_rows(session, "column_tag", "column_id", job.table_id, key, by_rank[rank].id)
        _altered(job, by_rank, rank, None)


def _layout(
    session: Session,
    rows: Rows,
    job: Job,
    ids: Ids,
    by_rank: Sequence[Snapshot],
    place: Mapping[int, int],
) -> None:
    """Partitioning from when it became current, sorting from the newest snapshot on."""
    partition = partition_keys(job.table)
    now, now_partition = (None, ()) if job.is_new else _current_partition(session, job.table_id)
    held = None if job.is_new else declared(session, job.table_id, job.before)
    order, _ = next_order(job.table, held)
    job.partition_id, job.partition_start = now, _named_since(job.table, partition)
    if partition != now_partition:
        event = spec_begin(job.write, [event for _, event in job.events if event >= 0])
        job.partition_id, job.partition_start = None, event if event >= 0 else len(job.table.commits)
        rank = place[event]
        snapshot = by_rank[rank]
        if now_partition:
            end_live(session, "partition_info", job.table_id, snapshot.id)
        if partition:
            id_ = job.partition_id = ids.next()
            rows.add("partition_info", id_, job.table_id, snapshot.id, None)
            for index, key in enumerate(partition):
                rows.add("partition_column", id_, job.table_id, index, key.column, key.transform)
        _altered(job, by_rank, rank, None, columns=True)
    if order != (held.keys if held else ()):
        rank = len(by_rank) - 1
        if held and held.keys:
            end_live(session, "sort_info", job.table_id, by_rank[rank].id)
        if order:
            id_ = ids.next()
            rows.add("sort_info", id_, job.table_id, by_rank[rank].id, None)
            for index, by in enumerate(order):
                rows.add(
                    "sort_expression",
                    id_,
                    job.table_id,
                    index,
                    by.expression,
                    "duckdb",
                    by.direction,
                    by.nulls,
                )
        _altered(job, by_rank, rank, None)


def _named_since(source: Table, partition: Sequence[PartitionKey]) -> int:
    """The first commit index from which the key columns have their names of now. The directories of what is written
    bear these, and those of what is there others, which DuckDB 1.5.5 cannot merge under one schema version."""
    schemas = {**source.schemas, source.schema.id: source.schema}
    now = {int(field.id): field.name for field in source.schema.fields}
    for index in reversed(range(len(source.commits))):
        then = {int(field.id): field.name for field in schemas[source.commits[index].schema].fields}
        if any(then.get(key.column) != now[key.column] for key in partition):
            return index + 1
    return 0


def _current_partition(session: Session, table_id: int) -> tuple[int | None, tuple[PartitionKey, ...]]:
    """The id and the keys of the partition spec."""
    info, key = table("partition_info").c, table("partition_column").c
    keys = session.rows(
        sa.select(key.partition_id, key.column_id, key.transform)
        .join(table("partition_info"), info.partition_id == key.partition_id)
        .where(info.table_id == table_id, info.end_snapshot.is_(None))
        .order_by(key.partition_key_index)
    )
    return keys[0][0] if keys else None, tuple(PartitionKey(*row[1:]) for row in keys)


def declared(session: Session, table_id: int, columns: Mapping[int, ColumnRow]) -> Declared:
    """The sort order of a table with these columns, and what we noted of the source's."""
    sort, by, tag = table("sort_info").c, table("sort_expression").c, table("tag").c
    keys = session.rows(
        sa.select(by.expression, by.sort_direction, by.null_order)
        .join(table("sort_info"), sort.sort_id == by.sort_id)
        .where(sort.table_id == table_id, sort.end_snapshot.is_(None))
        .order_by(by.sort_key_index)
    )
    noted = [value for _, _, value in reads.tags(session, "tag", tag.object_id == table_id, tag.key == ORDER_TAG)]
    return Declared(tuple(SortKey(*row) for row in keys), columns, *(noted or [""]))


def end_live(session: Session, name: str, table_id: int, snapshot: int) -> None:
    """End what is live of a table in a catalog table."""
    each = table(name)
    session.run(
        sa.update(each).where(each.c.table_id == table_id, each.c.end_snapshot.is_(None)).values(end_snapshot=snapshot)
    )


def _tags(session: Session, rows: Rows, job: Job, by_rank: Sequence[Snapshot]) -> None:
    snapshots = {job.table.commits[event].id: by.id for event, by in job.snapshots.items() if event >= 0}
    wanted = table_tags(job.table, snapshots)
    first, last = by_rank[0].id, len(by_rank) - 1
    if job.is_new:
        for key, value in wanted.items():
            rows.add("tag", job.table_id, first, None, key, value)
        for key, value in lake_settings(job.table).items():
            rows.add("metadata", key, value, "table", job.table_id)
        return
    tag = table("tag")
    held = {key: value for _, key, value in reads.tags(session, "tag", tag.c.object_id == job.table_id)}
    # a reference that points before this run keeps its tag; everything else of ours follows the source
    wanted = {
        **{key: value for key, value in held.items() if key not in wanted and _keeps(key, job.table)},
        **wanted,
    }
    changed = False
    for key, value in held.items():
        if (key == "comment" or key.startswith("iceberg.")) and wanted.get(key) != value:
            session.run(
                sa.update(tag)
                .where(tag.c.object_id == job.table_id, tag.c.key == key, tag.c.end_snapshot.is_(None))
                .values(end_snapshot=by_rank[last].id)
            )
            changed = True
    for key, value in wanted.items():
        if held.get(key) != value:
            rows.add("tag", job.table_id, by_rank[last].id, None, key, value)
            changed = True
    if changed:
        _altered(job, by_rank, last, None)


def _keeps(key: str, source: Table) -> bool:
    return key.startswith("iceberg.ref.") and any(key == f"iceberg.ref.{ref.name}" for ref in source.refs)
