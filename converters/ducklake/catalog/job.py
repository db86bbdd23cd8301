"""One table's part in a commit: its events, the lake snapshots they fall into, and the rows that gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from bridge.model.table import Table
from bridge.ports import TableWrite
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import TABLES
from converters.ducklake.columns import ColumnRow

__all__ = ["Ids", "Job", "Rows", "Snapshot", "job_of", "spec_begin"]


@dataclass(slots=True)
class Rows:
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
class Snapshot:
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
class Job:
    """One table's write with its events: source commit indexes, and -1 for what changed after the last of them."""

    write: TableWrite
    start: int
    events: list[tuple[int, int]]
    table_id: int = 0
    partition_id: int | None = None
    """The partition spec that the lake has at the end of this run."""
    partition_start: int = 0
    """The first commit index from which files can carry its values."""
    folder: str = ""
    """Where the lake keeps the table's own files, with a slash at the end."""
    before: Mapping[int, ColumnRow] = field(default_factory=dict)
    """The columns that the catalog held before this run."""
    snapshots: dict[int, Snapshot] = field(default_factory=dict)

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

    @property
    def first(self) -> Snapshot:
        """The snapshot of the first event."""
        return self.snapshots[self.events[0][1]]


@dataclass(slots=True)
class Ids:
    catalog: int
    file: int

    def next(self) -> int:
        self.catalog += 1
        return self.catalog - 1


def job_of(write: TableWrite) -> Job:
    """The events of a write. A table without commits, or whose definition changed after its last commit, has one more
    at the time of its metadata."""
    commits, start = write.table.commits, write.first if write.base is None else write.base + 1
    events = [(commits[index].time, index) for index in range(start, len(commits))]
    last = commits[-1] if commits else None
    changed = last is None or last.schema != write.table.schema.id or not events
    late_spec = spec_begin(write, [index for _, index in events]) == -1
    if changed or late_spec:
        time = write.table.updated if last is None else max(write.table.updated, last.time + 1)
        events.append((time, -1))
    return Job(write, start, events)


def spec_begin(write: TableWrite, events: Sequence[int]) -> int:
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
