"""Data files as catalog rows, with their statistics, row ids and the snapshots in which they begin and end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from bridge.errors import Conflict
from bridge.model.schema import Schema, walk
from bridge.model.table import Table
from bridge.ports import ProgressSink, Written
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.deletes import Deleted
from converters.ducklake.catalog.job import Ids, Job, Rows
from converters.ducklake.catalog.mappings import mapping_ids
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.columns import ColumnRow, column_rows
from converters.ducklake.stats import Hull, Renderer, TableStat
from converters.ducklake.types import duckdb_type, is_renamed

__all__ = ["register"]

_ROWS_AT_ONCE = 200_000


def register(
    session: Session,
    rows: Rows,
    job: Job,
    ids: Ids,
    chosen: Mapping[str, str],
    renderer: Renderer,
    progress: ProgressSink,
) -> tuple[Written, Deleted, np.ndarray]:
    """Data files with their statistics; files that were live before and are gone now get their end.

    Gives also the positions that become deleted, and the ids of the files that end.
    """
    write, files = job.write, job.write.files.table
    begin = files.column("begin").to_numpy()
    last = len(job.table.commits)
    end = files.column("end").fill_null(last + 1).to_numpy()
    counts = files.column("record_count").to_numpy()
    base = -1 if write.base is None else write.base
    kept = (end > write.first) if job.is_new else (begin > base)
    at = np.maximum(begin, job.start)
    # the place after the last commit: what changed since, where a history may begin that has no older snapshot
    events = [*range(last), -1]
    lookup = np.array([job.snapshots[event].id if event in job.snapshots else -1 for event in events])
    gone = np.zeros(len(begin), dtype=bool) if job.is_new else ~kept & (end > base) & (end <= last)
    deleted = _deleted(job, kept, end, base)
    _describe(job, at[kept], end[kept], end[gone], deleted[2])
    totals, held = (None, {}) if job.is_new else reads.table_stats(session, job.table_id)
    mappings = mapping_ids(session, rows, job, ids, kept)
    file_ids = np.full(len(begin), -1, dtype=np.int64)
    file_ids[kept] = np.arange(ids.file, ids.file + int(kept.sum()))
    ids.file += int(kept.sum())
    touched = np.union1d(np.flatnonzero(gone), deleted[0][~kept[deleted[0]]])
    earlier = _held(session, job, files, touched) if len(touched) else {}
    row_ids, next_row = _row_ids(files, kept, earlier, job.table, totals[1] if totals else 0)
    chosen_rows = files.filter(pa.array(kept))
    count = chosen_rows.num_rows
    own = pc.starts_with(chosen_rows.column("path"), job.folder)
    stored = pc.if_else(
        own, pc.utf8_slice_codeunits(chosen_rows.column("path"), len(job.folder)), chosen_rows.column("path")
    )
    ends = lookup[np.minimum(end[kept], last)]
    partitions = write.files.partitions if job.partition_id is not None else {}
    partitions = {row: values for row, values in partitions.items() if kept[row] and at[row] >= job.partition_start}
    session.append(
        "ducklake_data_file",
        pa.table(
            {
                "data_file_id": file_ids[kept],
                "table_id": np.full(count, job.table_id),
                "begin_snapshot": lookup[at[kept]],
                "end_snapshot": pa.array(ends, pa.int64(), mask=end[kept] > last),
                "file_order": np.arange(count) + 1,
                "path": stored,
                "path_is_relative": own,
                "file_format": chosen_rows.column("format"),
                "record_count": chosen_rows.column("record_count"),
                "file_size_bytes": chosen_rows.column("size"),
                "footer_size": chosen_rows.column("footer_size"),
                "row_id_start": row_ids[kept],
                "partition_id": pa.array(
                    [job.partition_id if row in partitions else None for row in np.flatnonzero(kept).tolist()],
                    pa.int64(),
                ),
                "mapping_id": mappings,
            }
        ),
    )
    for row in sorted(partitions):
        for index, value in enumerate(partitions[row]):
            rows.add("file_partition_value", int(file_ids[row]), job.table_id, index, value)
    file_ids[list(earlier)] = [each.id for each in earlier.values()]
    _end_files(session, file_ids[gone], lookup[end[gone]])
    noted = Deleted(file_ids[deleted[0]], deleted[1], lookup[deleted[2]])
    ended = file_ids[gone | (kept & (end <= last))]
    file_ids[~kept] = -1
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
    written = Written(
        write.name,
        len({snapshot.id for snapshot in job.snapshots.values()}),
        count,
        commits[job.start].id if job.start < last else "",
        commits[-1].id if commits else "",
    )
    return written, noted, ended


def _deleted(job: Job, kept: np.ndarray, end: np.ndarray, base: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row number of the file, position, first commit) of every deleted row that this run has to note."""
    every = job.write.files.deletes
    files, positions, begin = (every.column(name).to_numpy() for name in ("file", "position", "begin"))
    wanted = kept[files] if job.is_new else (begin > base) & (end[files] > base)
    return files[wanted], positions[wanted], np.maximum(begin[wanted], job.start)


def _row_ids(
    files: pa.Table, kept: np.ndarray, earlier: Mapping[int, reads.LiveFile], source: Table, taken: int
) -> tuple[np.ndarray, int]:
    """row_id_start of each file: the source's own where it has row lineage, else the next free range; a file that is
    registered again keeps the range it had."""
    first, counts = files.column("first_row_id"), files.column("record_count").to_numpy()
    given = first.is_valid().to_numpy() & kept
    starts = first.fill_null(0).to_numpy().copy()
    ends = (starts + counts)[given]
    free = max(taken, source.next_row_id or 0, int(ends.max()) if len(ends) else 0)
    waiting = np.flatnonzero(kept & ~given)
    paths = files.column("path").combine_chunks().dictionary_encode()
    path = paths.indices.to_numpy()
    start_of = np.full(len(paths.dictionary), -1, dtype=np.int64)
    for number, file in earlier.items():
        start_of[path[number]] = file.row_id_start
    new = np.sort(waiting[np.unique(path[waiting], return_index=True)[1]])
    new = new[start_of[path[new]] < 0]
    start_of[path[new]] = free + np.cumsum(counts[new]) - counts[new]
    starts[waiting] = start_of[path[waiting]]
    return starts, free + int(counts[new].sum())


def _describe(job: Job, begin: np.ndarray, end: np.ndarray, other_ends: np.ndarray, deleted: np.ndarray) -> None:
    """changes_made, message and extra information of each snapshot."""
    added, removed, cut = set(begin.tolist()), {*end.tolist(), *other_ends.tolist()}, set(np.unique(deleted).tolist())
    last = len(job.table.commits)
    for time, event in job.events:
        snapshot = job.snapshots[event]
        commit = job.table.commits[event] if event >= 0 else None
        place = event if event >= 0 else last
        if place in added:
            snapshot.changes.append(f"inserted_into_table:{job.table_id}")
        if place in removed:
            snapshot.changes.append(f"deleted_from_table:{job.table_id}")
        if place in cut:
            snapshot.changes.append(f"inlined_delete:{job.table_id}")
        what = (commit.operation or "commit") if commit else "definition"
        snapshot.messages.append(f"{what} of {job.table.name}")
        snapshot.sources.append(
            {
                "table": str(job.write.name),
                "id": job.table_id,
                "source": dict(job.write.source),
                "commit": commit.id if commit else "",
                "time": time_text(commit.own_time if commit else time),
                "plan": job.write.plan,
            }
        )


def _held(session: Session, job: Job, files: pa.Table, numbers: np.ndarray) -> dict[int, reads.LiveFile]:
    """Files, by row number, that an earlier run registered."""
    paths = files.column("path").take(pa.array(numbers)).to_pylist()
    held = reads.live_files(session, job.table_id, job.folder, paths)
    missing = [path for path in paths if path not in held]
    if missing:
        raise Conflict(
            f"{job.write.name}: {len(missing)} files that the source changed are not in the lake, such as {missing[0]}",
            hint="use the same --map-prefix as in the first run, or release the table and migrate it again",
        )
    return {int(number): held[path] for number, path in zip(numbers, paths, strict=True)}


def _end_files(session: Session, file_ids: np.ndarray, snapshots: np.ndarray) -> None:
    each = table("data_file")
    statement = (
        sa.update(each).where(each.c.data_file_id == sa.bindparam("file")).values(end_snapshot=sa.bindparam("last"))
    )
    rows = [{"file": int(id_), "last": int(at)} for id_, at in zip(file_ids, snapshots, strict=True)]
    if rows:
        session.run(statement, rows)


def _statistics(
    session: Session,
    rows: Rows,
    job: Job,
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
    top: set[int] = set()
    seen: dict[int, dict[int, ColumnRow]] = {}
    for _, number in job.schema_versions():
        if number in seen:
            rows_now = seen[number]
            continue
        rows_now = seen[number] = column_rows(schemas[number], chosen)
        mapped |= _mapped(schemas[number])
        for id_, row in rows_now.items():
            names.setdefault(id_, set()).add(row.type)
            if row.parent is None:
                top.add(id_)
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
        made = renderer.file_stats(
            batch, file_ids, counts if id_ in top else None, job.table_id, duckdb_type(max(names[id_]))
        )
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
    """Start from what the catalog already says; a column that the lake never had is absent from all its files. A row
    without bounds does not say that every value is NULL: DuckDB 1.5.5 leaves one, too, where it cannot compare those of
    a file that it rewrote."""
    if not totals or not totals[0]:
        return
    if id_ in held:
        stat = held[id_]
        hull.contains_null = stat.contains_null
        if stat.min_value is None or stat.max_value is None:
            hull.known = False
            return
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
