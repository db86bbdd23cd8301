"""Deleted positions in a catalog: rows of `ducklake_inlined_delete_<table>`, or delete files where rows do not serve.

Rows are what DuckDB writes for small deletes. They do not serve beyond some millions, which every scan reads, and not
for a data file that ends: DuckDB 1.5.5 forgets them in table_changes then. Such positions go into one delete file a
data file, with the snapshot of each position, as ducklake_flush_inlined_data would make it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from time import time_ns
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from converters import storage
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.job import Ids, Job, Rows
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import inlined_deletes, table
from converters.ducklake.catalog.times import time_text
from converters.ducklake.delete_files import decode, encode
from converters.ducklake.identifiers import identifier

__all__ = ["Deleted", "inlined", "write_deletes"]

_FILES = 500


@dataclass(frozen=True, slots=True)
class Deleted:
    """Positions by data_file_id, each with the lake snapshot that deletes it."""

    file: np.ndarray
    position: np.ndarray
    snapshot: np.ndarray

    def __len__(self) -> int:
        return len(self.file)

    def where(self, mask: np.ndarray) -> Deleted:
        return Deleted(self.file[mask], self.position[mask], self.snapshot[mask])

    def plus(self, other: Deleted) -> Deleted:
        joined = (np.concatenate(pair) for pair in zip(self._parts(), other._parts(), strict=True))
        return Deleted(*joined)

    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.file, self.position, self.snapshot


def write_deletes(
    session: Session, rows: Rows, job: Job, ids: Ids, new: Deleted, ended: np.ndarray, limit: int
) -> None:
    """Note positions that become deleted; `ended` are data_file_ids that end in some snapshot, `limit` is how many
    positions of a table may stay rows."""
    held = _count(session, job.table_id)
    if held + len(new) > limit:
        moved, kept = inlined(session, job.table_id, None).plus(new), new.where(np.zeros(len(new), dtype=bool))
        stale = None
    else:
        gone = np.isin(new.file, ended)
        stale = inlined(session, job.table_id, ended) if held else new.where(np.zeros(len(new), dtype=bool))
        moved, kept = stale.plus(new.where(gone)), new.where(~gone)
    if held and len(moved):
        _forget_rows(session, job.table_id, None if stale is None else np.unique(stale.file))
    if len(kept):
        _inline(session, job.table_id, kept)
    if len(moved):
        _write_files(session, rows, job, ids, moved)


def _count(session: Session, table_id: int) -> int:
    """How many rows the catalog holds."""
    if not session.has_table(inlined_deletes(table_id).name):
        return 0
    return int(session.rows(sa.select(sa.func.count()).select_from(inlined_deletes(table_id)))[0][0])


def inlined(session: Session, table_id: int, files: np.ndarray | None) -> Deleted:
    """The rows that the catalog holds, of some files or all (None)."""
    each, found = inlined_deletes(table_id), list[Any]()
    if session.has_table(inlined_deletes(table_id).name):
        for chosen in _chosen(each, files):
            found += session.rows(sa.select(each).where(chosen))
    return Deleted(*np.array([tuple(row) for row in found], dtype=np.int64).reshape(-1, 3).T)


def _forget_rows(session: Session, table_id: int, files: np.ndarray | None) -> None:
    each = inlined_deletes(table_id)
    for chosen in _chosen(each, files):
        session.run(sa.delete(each).where(chosen))


def _chosen(each: sa.TableClause, files: np.ndarray | None) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions that together name the rows of some files, or of all."""
    if files is None:
        yield sa.true()
        return
    for start in range(0, len(files), _FILES):
        yield each.c.file_id.in_(files[start : start + _FILES].tolist())


def _inline(session: Session, table_id: int, new: Deleted) -> None:
    name = inlined_deletes(table_id).name
    session.define(
        f"CREATE TABLE IF NOT EXISTS {identifier(name)} (file_id BIGINT, row_id BIGINT, begin_snapshot BIGINT)"
    )
    session.append(name, pa.table({"file_id": new.file, "row_id": new.position, "begin_snapshot": new.snapshot}))


def _write_files(session: Session, rows: Rows, job: Job, ids: Ids, moved: Deleted) -> None:
    """One delete file a data file, together with what an older delete file of the lake says."""
    folder = job.folder
    wanted = set(np.unique(moved.file).tolist())
    for old in reads.delete_files(session, job.table_id):
        if old.data_file in wanted:
            place = folder + old.path if old.relative else old.path
            positions, snapshots = decode(storage.read(place, "delete file"), old.begin)
            moved = moved.plus(Deleted(np.full(len(positions), old.data_file), positions, snapshots))
            _supersede(session, rows, old, place)
    moved = moved.where(np.lexsort((moved.position, moved.file)))
    files, starts = np.unique(moved.file, return_index=True)
    paths = reads.file_paths(session, job.table_id)
    parts = np.split(np.arange(len(moved)), starts[1:])
    first = ids.file
    ids.file += len(files)
    storage.make_directory(folder.rstrip("/"))

    def write(job_: tuple[int, int, np.ndarray]) -> tuple[object, ...]:
        id_, file, part = job_
        snapshots = moved.snapshot[part]
        content, footer = encode(_place(paths[file], folder), moved.position[part], snapshots)
        name = f"ducklake-{uuid.uuid4()}-delete.parquet"
        session.files.append(folder + name)
        # what a killed run leaves is an orphan to DuckLake by its ending
        storage.write(folder + name, content, f"part-{name}")
        begin, end = int(snapshots.min()), int(snapshots.max())
        return id_, job.table_id, begin, None, file, name, True, "parquet", len(part), len(content), footer, None, end

    for row in storage.parallel(write, list(zip(range(first, ids.file), files.tolist(), parts, strict=True))):
        rows.add("delete_file", *row)


def _place(stored: tuple[str, bool], folder: str) -> str:
    path, relative = stored
    return folder + path if relative else path


def _supersede(session: Session, rows: Rows, old: reads.DeleteFile, place: str) -> None:
    """A delete file of the lake's own that a new one replaces is scheduled for deletion in the same commit."""
    each = table("delete_file")
    session.run(sa.delete(each).where(each.c.delete_file_id == old.id))
    data_path = storage.absolute(reads.settings(session)["data_path"]).rstrip("/") + "/"
    relative = place.startswith(data_path)
    path = place.removeprefix(data_path) if relative else place
    rows.add("files_scheduled_for_deletion", old.id, path, relative, time_text(time_ns() // 1000))
