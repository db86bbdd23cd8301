"""Writes tables into a catalog: one lake snapshot for each source commit, all rows in the caller's transaction.

Everything is computed from the newest snapshot inside that transaction. Rules come from the DuckLake 1.0 specification
and from what DuckDB 1.5.5 needs to load the result; the comments name the ones that are easy to break.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from bridge.errors import Conflict
from bridge.model.findings import Code, Finding
from bridge.model.schema import Schema, walk
from bridge.model.table import Table
from bridge.ports import ProgressSink, TableWrite, Written
from converters.ducklake.catalog import guard, reads
from converters.ducklake.catalog.reads import Head
from converters.ducklake.catalog.session import Session, create_all
from converters.ducklake.catalog.tables import TABLES, table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.columns import ColumnRow, column_rows, spans
from converters.ducklake.partition import PartitionKey, SortKey, partition_keys, sort_keys
from converters.ducklake.settings import lake_settings, table_tags
from converters.ducklake.stats import Hull, Renderer, TableStat
from converters.ducklake.types import duckdb_type, is_renamed

__all__ = ["NewLake", "write_tables"]

AUTHOR = "ducklake-bridge"
_ROWS_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class NewLake:
    """What a catalog that does not exist yet is to say of itself."""

    data_path: str
    created_by: str


@dataclass(slots=True)
class _Rows:
    """Rows to insert, by catalog table, as tuples in column order."""

    by_table: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def add(self, name: str, *values: Any) -> None:
        self.by_table.setdefault(f"ducklake_{name}", []).append(values)

    def insert(self, session: Session) -> None:
        for name, rows in self.by_table.items():
            columns = [column.name for column in TABLES[name].columns]
            types = [_arrow_type(column) for column in TABLES[name].columns]
            made = [pa.array(values, type_) for values, type_ in zip(zip(*rows, strict=True), types, strict=True)]
            session.append(name, pa.table(dict(zip(columns, made, strict=True))))


def _arrow_type(column: sa.Column[Any]) -> pa.DataType:
    if isinstance(column.type, sa.BigInteger):
        return pa.int64()
    return pa.bool_() if getattr(column.type, "native", "") == "BOOLEAN" else pa.string()


@dataclass(slots=True)
class _Snapshot:
    """A lake snapshot in the making."""

    id: int
    time: int
    own_time: int
    schema_version: int = 0
    changes: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    alters: bool = False


@dataclass(slots=True)
class _Job:
    """One table's write with its events: source commit indexes, and -1 for what changed after the last of them."""

    write: TableWrite
    start: int
    events: list[tuple[int, int]]
    table_id: int = 0
    before: Mapping[int, ColumnRow] = field(default_factory=dict)
    """The columns that the catalog held before this run."""
    snapshots: dict[int, _Snapshot] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return self.write.table

    @property
    def is_new(self) -> bool:
        return self.write.base is None

    def schema_versions(self) -> list[tuple[int, int]]:
        """(event, schema id) in order."""
        commits = self.table.commits
        return [(event, self.table.schema.id if event < 0 else commits[event].schema) for _, event in self.events]


def write_tables(
    session: Session,
    writes: Sequence[TableWrite],
    new: NewLake | None,
    chosen: Mapping[str, str],
    progress: ProgressSink,
) -> tuple[list[Written], list[Finding]]:
    """Insert everything that the writes need; Conflict when the lake is not as they were planned for."""
    findings: list[Finding] = []
    rows = _Rows()
    jobs = [_job(write) for write in writes]
    known = {} if new else {(each.schema.casefold(), each.name.casefold()): each for each in reads.live_tables(session)}
    if new:
        create_all(session)
        first = min(time for job in jobs for time, _ in job.events)
        head = Head(0, first - 1, 0, 1, 0)
        _root(rows, head, new)
    else:
        head = reads.head(session)
    snapshots = _snapshots(jobs, head, findings)
    ids = _Ids(head.next_catalog_id, head.next_file_id)
    schemas = {"main": 0} if new else reads.schemas(session)
    for job in jobs:
        _open_table(session, rows, job, ids, schemas, known)
    written = []
    renderer = Renderer()
    for job in jobs:
        _definition(session, rows, job, ids, chosen)
        written.append(_files(session, rows, job, ids, chosen, renderer, progress))
    version = head.schema_version
    for snapshot in snapshots:
        version += snapshot.alters
        snapshot.schema_version = version
    for job in jobs:
        _schema_versions(rows, job)
        _bookmark(session, rows, job, snapshots[-1].id)
    # a data change must raise next_file_id, or attached sessions keep statistics that no longer hold
    next_file_id = ids.file + 1
    for snapshot in snapshots:
        _snapshot_rows(rows, snapshot, ids.catalog, next_file_id)
    rows.insert(session)
    if any(write.ownership == "shared" for write in writes) and not guard.put(session):
        findings.append(
            Finding(
                Code.SOURCE_UNPROTECTED,
                session.place.path,
                "files outside the data path are scheduled for deletion already, so no guard could be put in",
                "run ducklake_cleanup_old_files on what is scheduled, then migrate again",
            )
        )
    return written, findings


@dataclass(slots=True)
class _Ids:
    catalog: int
    file: int

    def next(self) -> int:
        self.catalog += 1
        return self.catalog - 1


def _root(rows: _Rows, head: Head, new: NewLake) -> None:
    for key, value in (
        ("version", reads.VERSION),
        ("created_by", new.created_by),
        ("data_path", new.data_path),
        ("encrypted", "false"),
    ):
        rows.add("metadata", key, value, None, None)
    rows.add("snapshot", 0, time_text(head.time), 0, 1, 0)
    rows.add("snapshot_changes", 0, 'created_schema:"main"', AUTHOR, "create the lake", None)
    name = uuid.uuid5(uuid.NAMESPACE_URL, new.data_path)
    rows.add("schema", 0, str(name), 0, None, "main", "main/", True)


def _job(write: TableWrite) -> _Job:
    """The events of a write. A table without commits, or whose definition changed after its last commit, has one more
    at the time of its metadata."""
    commits, start = write.table.commits, write.first if write.base is None else write.base + 1
    events = [(commits[index].time, index) for index in range(start, len(commits))]
    last = commits[-1] if commits else None
    changed = last is None or last.schema != write.table.schema.id or not events
    late_spec = _spec_begin(write, [index for _, index in events]) == -1
    if changed or late_spec:
        time = write.table.updated if last is None else max(write.table.updated, last.time + 1)
        events.append((time, -1))
    return _Job(write, start, events)


def _spec_begin(write: TableWrite, events: Sequence[int]) -> int:
    """The first event from which all added files use the current spec; -1: after the last."""
    files = write.files.table
    if not files.num_rows or not events:
        return events[0] if events else -1
    other = files.column("spec").to_numpy() != write.table.spec.id
    used = files.column("begin").to_numpy()[other]
    if not len(used):
        return events[0]
    later = [event for event in events if event > int(used.max())]
    return later[0] if later else -1


def _snapshots(jobs: Sequence[_Job], head: Head, findings: list[Finding]) -> list[_Snapshot]:
    """One snapshot for each point in time at which any table has an event, strictly ascending after the head."""
    order: dict[int, list[tuple[_Job, int]]] = {}
    for job in jobs:
        for time, event in job.events:
            order.setdefault(time, []).append((job, event))
    made: list[_Snapshot] = []
    last, moved = head.time, 0
    for time in sorted(order):
        at = max(time, last + 1)
        moved += at != time
        snapshot = _Snapshot(head.snapshot + 1 + len(made), at, time)
        for job, event in order[time]:
            job.snapshots[event] = snapshot
        made.append(snapshot)
        last = at
    if moved:
        findings.append(
            Finding(
                Code.HISTORY_TIMES_MOVED,
                ", ".join(str(job.write.name) for job in jobs),
                f"{moved} snapshots are later than at the source, since the lake's newest is of "
                f"{time_text(head.time)}; their own times are in commit_extra_info",
            )
        )
    return made


def _open_table(
    session: Session,
    rows: _Rows,
    job: _Job,
    ids: _Ids,
    schemas: dict[str, int],
    known: Mapping[tuple[str, str], Any],
) -> None:
    """The table's id: a new row for a new table; for one that is there, that it is still as the plan saw it."""
    write = job.write
    schema_name, name = ".".join(write.name.namespace) or "main", write.name.name
    found = known.get((schema_name.casefold(), name.casefold()))
    if not job.is_new:
        if found is None:
            raise Conflict(
                f"{write.name} is gone from {session.place.path} since the plan was made", hint="run it again"
            )
        bookmark = reads.bookmark(session, found.id)
        expected = write.table.commits[write.base].id if write.base is not None and write.base >= 0 else ""
        if bookmark is None or bookmark.commit != expected or bookmark.changed_by:
            raise Conflict(f"{write.name} changed in {session.place.path} since the plan was made", hint="run it again")
        job.table_id = found.id
        job.before = reads.columns(session, found.id)
        return
    if found:
        raise Conflict(f"{write.name} was created in {session.place.path} meanwhile", hint="choose a name with --as")
    begin = job.snapshots[job.events[0][1]]
    begin.alters = True
    by_case = {each.casefold(): each for each in schemas}
    if schema_name.casefold() in by_case:
        schema_name = by_case[schema_name.casefold()]
    else:
        schemas[schema_name] = ids.next()
        made = uuid.uuid5(uuid.NAMESPACE_URL, f"{session.place.path}#{schema_name}")
        rows.add(
            "schema",
            schemas[schema_name],
            str(made),
            begin.id,
            None,
            schema_name,
            _directory(schema_name),
            True,
        )
        begin.changes.append(f"created_schema:{_quoted(schema_name)}")
    job.table_id = ids.next()
    begin.changes.append(f"created_table:{_quoted(schema_name)}.{_quoted(name)}")
    rows.add(
        "table",
        job.table_id,
        _uuid(job.table),
        begin.id,
        None,
        schemas[schema_name],
        name,
        _directory(name),
        True,
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _directory(name: str) -> str:
    """As DuckDB 1.5.5 names directories: the name when it is plain, else something unique."""
    plain = name.replace("_", "").replace("-", "")
    return f"{name}/" if plain.isalnum() and plain.isascii() else f"{uuid.uuid5(uuid.NAMESPACE_OID, name)}/"


def _uuid(source: Table) -> str:
    try:
        return str(uuid.UUID(source.uuid))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, source.location))


def _definition(session: Session, rows: _Rows, job: _Job, ids: _Ids, chosen: Mapping[str, str]) -> None:
    """Columns, comments, layout, tags and settings."""
    source, id_ = job.table, job.table_id
    schemas = {**source.schemas, source.schema.id: source.schema}
    versions = [(event, schemas[number]) for event, number in job.schema_versions()]
    place = {event: rank for rank, (_, event) in enumerate(job.events)}
    by_rank = [job.snapshots[event] for _, event in job.events]
    numbered = job.schema_versions()
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


def _end(by_rank: Sequence[_Snapshot], rank: int | None) -> int | None:
    return None if rank is None else by_rank[rank].id


def _altered(job: _Job, by_rank: Sequence[_Snapshot], begin: int, end: int | None, columns: bool = False) -> None:
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
    rows: _Rows,
    job: _Job,
    by_rank: Sequence[_Snapshot],
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
    rows: _Rows,
    job: _Job,
    ids: _Ids,
    by_rank: Sequence[_Snapshot],
    place: Mapping[int, int],
) -> None:
    """Partitioning from when it became current, sorting from the newest snapshot on."""
    partition, order = partition_keys(job.table), sort_keys(job.table)
    now_partition, now_order = ((), ()) if job.is_new else _current_layout(session, job.table_id)
    if partition != now_partition:
        rank = place[_spec_begin(job.write, [event for _, event in job.events if event >= 0])]
        snapshot = by_rank[rank]
        if now_partition:
            _end_layout(session, "partition_info", job.table_id, snapshot.id)
        if partition:
            id_ = ids.next()
            rows.add("partition_info", id_, job.table_id, snapshot.id, None)
            for index, key in enumerate(partition):
                rows.add("partition_column", id_, job.table_id, index, key.column, key.transform)
        _altered(job, by_rank, rank, None, columns=True)
    if order != now_order:
        rank = len(by_rank) - 1
        if now_order:
            _end_layout(session, "sort_info", job.table_id, by_rank[rank].id)
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


def _current_layout(session: Session, table_id: int) -> tuple[tuple[PartitionKey, ...], tuple[SortKey, ...]]:
    info, key = table("partition_info").c, table("partition_column").c
    keys = session.rows(
        sa.select(key.column_id, key.transform)
        .join(table("partition_info"), info.partition_id == key.partition_id)
        .where(info.table_id == table_id, info.end_snapshot.is_(None))
        .order_by(key.partition_key_index)
    )
    sort, by = table("sort_info").c, table("sort_expression").c
    orders = session.rows(
        sa.select(by.expression, by.sort_direction, by.null_order)
        .join(table("sort_info"), sort.sort_id == by.sort_id)
        .where(sort.table_id == table_id, sort.end_snapshot.is_(None))
        .order_by(by.sort_key_index)
    )
    return tuple(PartitionKey(*row) for row in keys), tuple(SortKey(*row) for row in orders)


def _end_layout(session: Session, name: str, table_id: int, snapshot: int) -> None:
    each = table(name)
    session.run(
        sa.update(each).where(each.c.table_id == table_id, each.c.end_snapshot.is_(None)).values(end_snapshot=snapshot)
    )


def _tags(session: Session, rows: _Rows, job: _Job, by_rank: Sequence[_Snapshot]) -> None:
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


def _schema_versions(rows: _Rows, job: _Job) -> None:
    """One row for each snapshot that created the table or changed its columns or partitioning: merge needs them."""
    marked = {snapshot.id: snapshot for event, snapshot in job.snapshots.items() if event <= -2}
    if job.is_new:
        first = job.snapshots[job.events[0][1]]
        marked[first.id] = first
    for id_ in sorted(marked):
        rows.add("schema_versions", id_, marked[id_].schema_version, job.table_id)


def _bookmark(session: Session, rows: _Rows, job: _Job, newest: int) -> None:
    write, commits = job.write, job.table.commits
    metadata = table("metadata")
    session.run(
        sa.delete(metadata).where(
            metadata.c.scope == "table",
            metadata.c.scope_id == job.table_id,
            metadata.c.key.startswith("bridge."),
        )
    )
    noted = {
        "source": json.dumps(dict(write.source), sort_keys=True),
        "source_commit": commits[-1].id if commits else "",
        "definition": write.definition,
        "plan": write.plan,
        "ownership": write.ownership,
        "snapshot": str(newest),
    }
    for key, value in noted.items():
        rows.add("metadata", f"bridge.{key}", value, "table", job.table_id)


def _snapshot_rows(rows: _Rows, snapshot: _Snapshot, next_catalog_id: int, next_file_id: int) -> None:
    rows.add(
        "snapshot",
        snapshot.id,
        time_text(snapshot.time),
        snapshot.schema_version,
        next_catalog_id,
        next_file_id,
    )
    rows.add(
        "snapshot_changes",
        snapshot.id,
        ",".join(snapshot.changes) or None,
        AUTHOR,
        "; ".join(snapshot.messages),
        json.dumps({"tables": snapshot.sources}, sort_keys=True),
    )


def _files(
    session: Session,
    rows: _Rows,
    job: _Job,
    ids: _Ids,
    chosen: Mapping[str, str],
    renderer: Renderer,
    progress: ProgressSink,
) -> Written:
    """Data files with their statistics; files that were live before and are gone now get their end."""
    write, files = job.write, job.write.files.table
    begin = files.column("begin").to_numpy()
    last = len(job.table.commits)
    end = files.column("end").fill_null(last).to_numpy()
    counts = files.column("record_count").to_numpy()
    base = -1 if write.base is None else write.base
    kept = (end > write.first) if job.is_new else (begin > base)
    at = np.maximum(begin, job.start)
    lookup = np.array([job.snapshots[event].id if event in job.snapshots else -1 for event in range(last)] + [-1])
    _describe(job, at[kept], end[kept], counts[kept], end[~kept & (end > base)] if not job.is_new else end[:0])
    totals, held = (None, {}) if job.is_new else reads.table_stats(session, job.table_id)
    file_ids = np.full(len(begin), -1, dtype=np.int64)
    file_ids[kept] = np.arange(ids.file, ids.file + int(kept.sum()))
    ids.file += int(kept.sum())
    row_ids, next_row = _row_ids(files.column("first_row_id"), counts, kept, job.table, totals[1] if totals else 0)
    chosen_rows = files.filter(pa.array(kept))
    count = chosen_rows.num_rows
    ends = lookup[np.where(end[kept] >= last, last, end[kept])]
    session.append(
        "ducklake_data_file",
        pa.table(
            {
                "data_file_id": file_ids[kept],
                "table_id": np.full(count, job.table_id),
                "begin_snapshot": lookup[at[kept]],
                "end_snapshot": pa.array(ends, pa.int64(), mask=end[kept] >= last),
                "file_order": np.arange(count) + 1,
                "path": chosen_rows.column("path"),
                "path_is_relative": np.zeros(count, dtype=bool),
                "file_format": chosen_rows.column("format"),
                "record_count": chosen_rows.column("record_count"),
                "file_size_bytes": chosen_rows.column("size"),
                "footer_size": chosen_rows.column("footer_size"),
                "row_id_start": row_ids[kept],
            }
        ),
    )
    if not job.is_new:
        _end_files(session, job, files, ~kept & (begin <= base) & (end > base) & (end < last), end, lookup)
    _statistics(session, rows, job, file_ids, np.where(kept, counts, 0), chosen, renderer, totals, held, progress)
    if count or totals:
        before = totals or (0, 0, 0)
        if totals:
            stats = table("table_stats")
            session.run(sa.delete(stats).where(stats.c.table_id == job.table_id))
        # gross: what was deleted since still counts, or DuckDB would answer MIN and MAX from stale bounds
        rows.add(
            "table_stats",
            job.table_id,
            before[0] + int(counts[kept].sum()),
            max(next_row, before[1]),
            before[2] + int(chosen_rows.column("size").to_numpy().sum()),
        )
    commits = job.table.commits
    return Written(
        write.name,
        len({snapshot.id for snapshot in job.snapshots.values()}),
        count,
        commits[job.start].id if job.start < last else "",
        commits[-1].id if commits else "",
    )


def _row_ids(
    first: pa.ChunkedArray, counts: np.ndarray, kept: np.ndarray, source: Table, taken: int
) -> tuple[np.ndarray, int]:
    """row_id_start of each file: the source's own where it has row lineage, else the next free range."""
    given = first.is_valid().to_numpy() & kept
    starts = first.fill_null(0).to_numpy().copy()
    ends = (starts + counts)[given]
    free = max(taken, source.next_row_id or 0, int(ends.max()) if len(ends) else 0)
    waiting = kept & ~given
    starts[waiting] = free + np.cumsum(counts[waiting]) - counts[waiting]
    return starts, free + int(counts[waiting].sum())


def _describe(job: _Job, begin: np.ndarray, end: np.ndarray, counts: np.ndarray, other_ends: np.ndarray) -> None:
    """changes_made, message and extra information of each snapshot."""
    added, removed = set(begin.tolist()), {*end.tolist(), *other_ends.tolist()}
    for time, event in job.events:
        snapshot = job.snapshots[event]
        commit = job.table.commits[event] if event >= 0 else None
        if event in added:
            snapshot.changes.append(f"inserted_into_table:{job.table_id}")
        if event in removed:
            snapshot.changes.append(f"deleted_from_table:{job.table_id}")
        what = (commit.operation or "commit") if commit else "definition"
        snapshot.messages.append(f"{what} of {job.table.name}")
        snapshot.sources.append(
            {
                "table": str(job.write.name),
                "source": dict(job.write.source),
                "commit": commit.id if commit else "",
                "time": time_text(commit.own_time if commit else time),
                "plan": job.write.plan,
            }
        )


def _end_files(
    session: Session, job: _Job, files: pa.Table, gone: np.ndarray, end: np.ndarray, lookup: np.ndarray
) -> None:
    if not gone.any():
        return
    held = reads.live_files(session, job.table_id)
    paths = files.column("path").filter(pa.array(gone)).to_pylist()
    missing = [path for path in paths if path not in held]
    if missing:
        raise Conflict(
            f"{job.write.name}: {len(missing)} files that the source dropped are not in the lake, such as {missing[0]}",
            hint="use the same --map-prefix as in the first run, or release the table and migrate it again",
        )
    each = table("data_file")
    statement = (
        sa.update(each).where(each.c.data_file_id == sa.bindparam("file")).values(end_snapshot=sa.bindparam("last"))
    )
    session.run(
        statement,
        [{"file": held[path], "last": int(lookup[at])} for path, at in zip(paths, end[gone], strict=True)],
    )


def _statistics(
    session: Session,
    rows: _Rows,
    job: _Job,
    file_ids: np.ndarray,
    counts: np.ndarray,
    chosen: Mapping[str, str],
    renderer: Renderer,
    totals: tuple[int, int, int] | None,
    held: Mapping[int, TableStat],
    progress: ProgressSink,
) -> None:
    """File statistics of every column that any kept schema has; table statistics of the current top-level columns
    whose type never changed (DuckDB 1.5.5 fails when a bound does not fit an older type)."""
    schemas = {**job.table.schemas, job.table.schema.id: job.table.schema}
    names: dict[int, set[str]] = {}
    rows_now: dict[int, ColumnRow] = {}
    mapped: set[int] = set()
    seen: dict[int, dict[int, ColumnRow]] = {}
    for _, number in job.schema_versions():
        if number in seen:
            rows_now = seen[number]
            continue
        rows_now = seen[number] = column_rows(schemas[number], chosen)
        mapped |= _mapped(schemas[number])
        for id_, row in rows_now.items():
            names.setdefault(id_, set()).add(row.type)
    for id_, row in job.before.items():
        names.setdefault(id_, set()).add(row.type)
    hulls = {
        id_: Hull(counts, known=id_ not in mapped)
        for id_, row in rows_now.items()
        if row.parent is None and len(names[id_]) == 1 and row.type not in ("struct", "list", "map", "variant")
    }
    ever = set() if job.is_new else _column_ids(session, job.table_id)
    for id_, hull in hulls.items():
        _recall(hull, id_, rows_now[id_], totals, held, ever, renderer)
    waiting: list[pa.Table] = []
    size = done = 0

    def flush() -> None:
        nonlocal size
        if waiting:
            session.append("ducklake_file_column_stats", pa.concat_tables(waiting))
            waiting.clear()
            size = 0

    for batch in job.write.files.stats():
        id_ = int(batch.field)
        if id_ not in names or id_ in mapped:
            continue
        if id_ in hulls:
            hulls[id_].add(batch)
        made = renderer.file_stats(batch, file_ids, job.table_id, duckdb_type(max(names[id_])))
        waiting.append(made)
        size += made.num_rows
        done += made.num_rows
        if size >= _ROWS_AT_ONCE:
            progress.step(f"{job.write.name}: writing statistics", done, None)
            flush()
    flush()
    if held:
        stats = table("table_column_stats")
        session.run(sa.delete(stats).where(stats.c.table_id == job.table_id))
    if not counts.any() and not totals:
        return
    for id_, hull in hulls.items():
        row = rows_now[id_]
        found = hull.finish(row.initial_default, renderer, duckdb_type(row.type), bool(totals and totals[0]))
        if found is not None:
            rows.add(
                "table_column_stats",
                job.table_id,
                id_,
                found.contains_null,
                None,
                found.min_value,
                found.max_value,
                None,
            )


def _recall(
    hull: Hull,
    id_: int,
    row: ColumnRow,
    totals: tuple[int, int, int] | None,
    held: Mapping[int, TableStat],
    ever: set[int],
    renderer: Renderer,
) -> None:
    """Start from what the catalog already says; a column that the lake never had is absent from all its files."""
    if not totals or not totals[0]:
        return
    if id_ in held:
        stat = held[id_]
        hull.contains_null = stat.contains_null
        if stat.min_value is not None and stat.max_value is not None:
            values = renderer.values([stat.min_value, stat.max_value], duckdb_type(row.type), None)
            hull.low, hull.high = values.slice(0, 1), values.slice(1, 1)
    elif id_ in ever:
        hull.known = False
    elif row.initial_default is None:
        hull.contains_null = True
    else:
        value = renderer.values([row.initial_default], duckdb_type(row.type), None)
        hull.include(value, value)


def _mapped(schema: Schema) -> set[int]:
    """Columns whose stored values are of another kind than the catalog's type, so that bounds would not compare."""
    return {int(each.field.id) for each in walk(schema.fields) if is_renamed(each.field.type) == "timestamptz_ns"}


def _column_ids(session: Session, table_id: int) -> set[int]:
    each = table("column").c
    return {row[0] for row in session.rows(sa.select(each.column_id).where(each.table_id == table_id).distinct())}
