"""Writes tables into a catalog: one lake snapshot for each source commit, all rows in the caller's transaction.

Everything is computed from the newest snapshot inside that transaction. Rules come from the DuckLake 1.0 specification
and from what DuckDB 1.5.5 needs to load the result; the comments name the ones that are easy to break.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from bridge.errors import Overtaken, about
from bridge.model.findings import Code, Finding
from bridge.model.table import Table
from bridge.ports import ObjectWrite, ProgressSink, TableWrite, Written
from converters.ducklake.catalog import guard, reads
from converters.ducklake.catalog.counting import live_rows
from converters.ducklake.catalog.definition import define
from converters.ducklake.catalog.deletes import write_deletes
from converters.ducklake.catalog.folders import directory, table_folder
from converters.ducklake.catalog.inlined_place import inlined_place, nothing_inlined
from converters.ducklake.catalog.job import Ids, Job, Rows, Snapshot, job_of
from converters.ducklake.catalog.objects import add_objects, add_schema
from converters.ducklake.catalog.reads import Head
from converters.ducklake.catalog.registration import register
from converters.ducklake.catalog.session import Session, create_all
from converters.ducklake.catalog.tables import table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.catalog.traces import count_files
from converters.ducklake.columns import column_rows
from converters.ducklake.identifiers import identifier
from converters.ducklake.stats import Renderer

__all__ = ["NewLake", "write_tables"]


@dataclass(frozen=True, slots=True)
class NewLake:
    """What a catalog that does not exist yet is to say of itself."""

    data_path: str
    created_by: str


def write_tables(
    session: Session,
    writes: Sequence[TableWrite],
    new: NewLake | None,
    chosen: Mapping[str, str],
    limit: int,
    progress: ProgressSink,
    objects: Sequence[ObjectWrite] = (),
    time: int = 0,
) -> tuple[list[Written], list[Finding]]:
    """Insert everything that the writes and the objects need, which become visible with the last snapshot (at `time`
    when there is no table); Conflict when the lake is not as they were planned for.

    `limit` is how many deleted positions of a table stay rows of the catalog.
    """
    findings: list[Finding] = []
    rows = Rows()
    jobs = [job_of(write) for write in writes]
    known = {} if new else {(each.schema.casefold(), each.name.casefold()): each for each in reads.live_tables(session)}
    if new:
        create_all(session)
        first = min((at for job in jobs for at, _ in job.events), default=time)
        head = Head(0, first - 1, 0, 1, 0)
        _root(rows, head, new)
    else:
        head = reads.head(session)
    snapshots = _snapshots(jobs, head) or [Snapshot(head.snapshot + 1, max(time, head.time + 1), time)]
    ids = Ids(head.next_catalog_id, head.next_file_id)
    schemas = {"main": 0} if new else reads.schemas(session)
    for job in sorted(jobs, key=lambda job: job.first.id):  # a schema begins with its first table
        with about(job.write.name):
            _open_table(session, rows, job, ids, schemas, known)
        job.folder = table_folder(
            session, new.data_path if new else reads.settings(session)["data_path"], job.write.name
        )
    add_objects(session, rows, objects, ids, schemas, snapshots[-1])
    registered = []
    renderer = Renderer()
    for job in jobs:
        with about(job.write.name):
            define(session, rows, job, ids, chosen)
            registered.append(register(session, rows, job, ids, chosen, renderer, progress))
    rows.insert(session)
    rows = Rows()
    for job, (_, deleted, ended) in zip(jobs, registered, strict=True):
        with about(job.write.name):
            write_deletes(session, rows, job, ids, deleted, ended, limit)
    version = head.schema_version
    for snapshot in snapshots:
        version += snapshot.alters
        snapshot.schema_version = version
    for job in jobs:
        _schema_versions(session, rows, job, chosen)
        if job.table.format == "iceberg" and job.table.next_row_id is not None:
            # files may store a row id for some of their rows alone: DuckDB 1.5.5 inlines the others, when they are
            # updated, all under the row id 0, and loses them all when one is changed again
            nothing_inlined(session, rows, job.table_id)
        _bookmark(session, rows, job, snapshots[-1].id)
    # a data change must raise next_file_id, or attached sessions keep statistics that no longer hold
    next_file_id = ids.file + 1
    for snapshot in snapshots:
        _snapshot_rows(rows, snapshot, ids.catalog, next_file_id)
    rows.insert(session)
    shared = {job.table_id for job in jobs if job.write.ownership == "shared"}
    if shared & reads.outside_tables(session) and not guard.put(session):
        findings.append(
            Finding(
                Code.SOURCE_UNPROTECTED,
                session.place.path,
                "files outside the data path are scheduled for deletion already, so no guard could be put in",
                "run ducklake_cleanup_old_files on what is scheduled, then migrate again",
            )
        )
    return [written for written, _, _ in registered], findings


def _root(rows: Rows, head: Head, new: NewLake) -> None:
    for key, value in (
        ("version", reads.VERSION),
        ("created_by", new.created_by),
        ("data_path", new.data_path),
        ("encrypted", "false"),
    ):
        rows.add("metadata", key, value, None, None)
    rows.add("snapshot", 0, time_text(head.time), 0, 1, 0)
    rows.add("snapshot_changes", 0, 'created_schema:"main"', reads.AUTHOR, "create the lake", None)
    name = uuid.uuid5(uuid.NAMESPACE_URL, new.data_path)
    rows.add("schema", 0, str(name), 0, None, "main", "main/", True)


def _snapshots(jobs: Sequence[Job], head: Head) -> list[Snapshot]:
    """One snapshot for each point in time at which any table has an event, strictly ascending after the head."""
    order: dict[int, list[tuple[Job, int]]] = {}
    for job in jobs:
        for time, event in job.events:
            order.setdefault(time, []).append((job, event))
    made: list[Snapshot] = []
    last = head.time
    for time in sorted(order):
        at = max(time, last + 1)
        snapshot = Snapshot(head.snapshot + 1 + len(made), at, time)
        for job, event in order[time]:
            job.snapshots[event] = snapshot
        made.append(snapshot)
        last = at
    return made


def _open_table(
    session: Session,
    rows: Rows,
    job: Job,
    ids: Ids,
    schemas: dict[str, int],
    known: Mapping[tuple[str, str], Any],
) -> None:
    """The table's id: a new row for a new table; for one that is there, that it is still as the plan saw it."""
    write = job.write
    schema_name, name = ".".join(write.name.namespace) or "main", write.name.name
    found = known.get((schema_name.casefold(), name.casefold()))
    if not job.is_new:
        if found is None:
            raise Overtaken(
                f"{write.name} is gone from {session.place.path} since the plan was made", hint="run it again"
            )
        bookmark = reads.bookmark(session, found.id)
        expected = write.table.commits[write.base].id if write.base is not None and write.base >= 0 else ""
        if bookmark is None or bookmark.commit != expected or bookmark.changed_by:
            raise Overtaken(
                f"{write.name} changed in {session.place.path} since the plan was made", hint="run it again"
            )
        job.table_id = found.id
        job.before = reads.columns(session, found.id)
        return
    if found:
        raise Overtaken(f"{write.name} was created in {session.place.path} meanwhile", hint="choose a name with --as")
    begin = job.first
    begin.alters = True
    schema_name = add_schema(session, rows, schema_name, ids, schemas, begin)
    job.table_id = ids.next()
    begin.changes.append(f"created_table:{identifier(schema_name)}.{identifier(name)}")
    rows.add(
        "table",
        job.table_id,
        _uuid(job.table),
        begin.id,
        None,
        schemas[schema_name],
        name,
        directory(name),
        True,
    )


def _uuid(source: Table) -> str:
    try:
        return str(uuid.UUID(source.uuid))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, source.location))


def _schema_versions(session: Session, rows: Rows, job: Job, chosen: Mapping[str, str]) -> None:
    """One row for each snapshot that created the table or changed its columns or partitioning: merge needs them.

    The newest one gets an empty table for inlined rows.
    """
    marked = {snapshot.id: snapshot for event, snapshot in job.snapshots.items() if event <= -2}
    if job.is_new:
        marked[job.first.id] = job.first
    for id_ in sorted(marked):
        rows.add("schema_versions", id_, marked[id_].schema_version, job.table_id)
    if marked:
        columns = column_rows(job.table.schema, chosen)
        inlined_place(session, rows, job.table_id, columns, marked[max(marked)].schema_version)


def _bookmark(session: Session, rows: Rows, job: Job, newest: int) -> None:
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
        "files": count_files(session, job.table_id),
    }
    if write.table.format == "ducklake" and commits:
        rows_now = live_rows(session, job.table_id, newest)
        noted["state"] = json.dumps([commits[-1].changed or commits[-1].id, rows_now])
    for key, value in noted.items():
        rows.add("metadata", f"bridge.{key}", value, "table", job.table_id)


def _snapshot_rows(rows: Rows, snapshot: Snapshot, next_catalog_id: int, next_file_id: int) -> None:
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
        reads.AUTHOR,
        "; ".join(snapshot.messages),
        json.dumps({"tables": snapshot.sources}, sort_keys=True),
    )
