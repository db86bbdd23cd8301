"""Files travel as Arrow: one row a data file, one batch of statistics a column; never one object a file.

Intervals are in commit indexes of Table.commits: a file is live at commit i when begin <= i < end; end NULL means
still live at the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from bridge.model.findings import Finding
from bridge.model.mapping import NameMapping
from bridge.model.rewrite import DataFile, Equality
from bridge.model.types import FieldId

__all__ = [
    "DATA_FILES",
    "DELETED_ROWS",
    "FileProblem",
    "Files",
    "Measures",
    "Rearranged",
    "Standing",
    "StatsBatch",
    "live_rows",
]

DATA_FILES = pa.schema(
    [
        pa.field("path", pa.string(), False),
        pa.field("format", pa.string(), False),
        pa.field("begin", pa.int64(), False),
        pa.field("end", pa.int64()),
        pa.field("record_count", pa.int64(), False),
        pa.field("size", pa.int64(), False),
        pa.field("footer_size", pa.int64()),
        pa.field("spec", pa.int32(), False),
        pa.field("sequence", pa.int64()),
        pa.field("first_row_id", pa.int64()),
        pa.field("mapping", pa.int32()),
    ]
)
"""One row per data file and live interval; sizes in bytes; NULL is unknown. `mapping` is a place in Files.mappings,
NULL when the file's columns are found by field id."""

DELETED_ROWS = pa.schema(
    [pa.field("file", pa.int64(), False), pa.field("position", pa.int64(), False), pa.field("begin", pa.int64(), False)]
)
"""One row a deleted position: row number in Files.table, position in the file from 0, first commit index at which it
is deleted. It stays so until the file's end: a file in which a position comes back is split into two rows."""


@dataclass(frozen=True, slots=True)
class StatsBatch:
    """Statistics of one column in some files.

    `table` has the columns file (row number in Files.table), size, values, nulls, nans (int64) and lower, upper in
    the column's own Arrow type. A file with no row does not contain the column; a row of NULLs means that nothing is
    known about it. `values` counts nulls too. `exact` says whether each file's bounds are attained by a row.
    """

    field: FieldId
    table: pa.Table
    exact: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """The newest state of a table as a target holds it: `files` (path, record_count) and `deletes` (file: row number in
    `files`, position)."""

    files: pa.Table
    deletes: pa.Table


@dataclass(frozen=True, slots=True)
class Measures:
    """What a target knows of some columns in all data files of its newest state: `files` (path, NULL for those that
    were written for the target) and statistics by row number of `files`, none where it knows nothing."""

    files: pa.Table
    stats: Sequence[StatsBatch]


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Files that cannot be registered as they are, with the live intervals that decide how much history they cost.

    `last` is one past the newest commit index in which any of them is live; None when the newest state needs them.
    `rows` are their row numbers in Files.table, where rewriting them would take the problem away; else none.
    """

    finding: Finding
    last: int | None
    rows: tuple[int, ...] = ()


class Files(Protocol):
    """The files of a table over its kept commits."""

    @property
    def table(self) -> pa.Table:
        """DATA_FILES rows, ordered by begin and stable."""
        ...

    @property
    def deletes(self) -> pa.Table:
        """DELETED_ROWS, ordered by file and position, each position once."""
        ...

    @property
    def mappings(self) -> tuple[NameMapping, ...]:
        """What the columns of files without usable field ids are."""
        ...

    @property
    def partitions(self) -> Mapping[int, tuple[str | None, ...]]:
        """The values of the target's partition keys, as its text, by row number of files that were written for it."""
        ...

    @property
    def since(self) -> int | None:
        """None: every file is here. Else a commit index: files that live before and after it and lose no row later may
        be left out; what is here of those that began earlier has any begin up to it."""
        ...

    @property
    def rest(self) -> int | None:
        """The live rows, at any commit from `since` on, of the files that are left out; None when it is not told."""
        ...

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """What forbids registering some of the files."""
        ...

    @property
    def numbered(self) -> tuple[int, ...]:
        """Row numbers of files that hold a DuckLake's snapshot numbers under the field id that Iceberg reserves for
        the sequence number of a row's last update."""
        ...

    @property
    def predating(self) -> Mapping[FieldId, tuple[int, ...]]:
        """Row numbers of files that hold a column from before it had its type, where no kept commit tells of that."""
        ...

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What else is to be said about them."""
        ...

    def stats(self) -> Iterator[StatsBatch]:
        """Statistics column by column, in batches of files that bound the memory."""
        ...

    def sources(self, rows: Sequence[int]) -> Sequence[DataFile]:
        """How files, by row number, are to be read by an engine that rewrites them."""
        ...

    def equality(self, first: int) -> Equality | None:
        """The equality deletes that apply at commit `first` or later, None when there are none."""
        ...

    def resolved(self, found: pa.Table) -> Files:
        """The files with more deleted rows (RESOLVED)."""
        ...


def live_rows(files: Files, commits: int) -> np.ndarray:
    """Live rows at each commit from Files.since on, from the files and their deleted positions, and one number for what
    comes after; less those of files that are left out where Files.rest is None."""
    change = np.zeros(commits + 1, dtype=np.int64)
    counts = files.table.column("record_count").to_numpy()
    np.add.at(change, files.table.column("begin").to_numpy(), counts)
    ends = files.table.column("end").fill_null(commits).to_numpy()
    np.subtract.at(change, ends, counts)
    np.subtract.at(change, files.deletes.column("begin").to_numpy(), 1)
    np.add.at(change, ends[files.deletes.column("file").to_numpy()], 1)
    return np.cumsum(change) + (files.rest or 0)


class Rearranged:
    """Files with other rows: each stands for a row of the files before, or for a file that was written since.

    `was` is the row number before of each row of `table`, negative for written files, whose statistics are `written`;
    a row may come several times or not at all.
    """

    def __init__(
        self,
        before: Files,
        table: pa.Table,
        deletes: pa.Table,
        was: np.ndarray,
        written: Sequence[StatsBatch] = (),
        findings: Sequence[Finding] = (),
        partitions: Mapping[int, tuple[str | None, ...]] | None = None,
    ) -> None:
        self.table = table
        self.deletes = deletes
        self.since = before.since
        self.rest = before.rest
        self.mappings = before.mappings
        self.partitions = partitions or {}
        self.findings = (*before.findings, *findings)
        self._before = before
        self._was = was
        self._written = tuple(written)
        self._now = np.argsort(was, kind="stable")
        ordered = was[self._now]
        count = before.table.num_rows
        self._from = np.searchsorted(ordered, np.arange(count))
        self._times = np.searchsorted(ordered, np.arange(count), side="right") - self._from
        self.problems = tuple(replace(each, rows=self._renumbered(each.rows)) for each in before.problems)
        self.numbered = self._renumbered(before.numbered)

    @property
    def predating(self) -> Mapping[FieldId, tuple[int, ...]]:
        """As before, under the new row numbers."""
        return {field: self._renumbered(rows) for field, rows in self._before.predating.items()}

    def stats(self) -> Iterator[StatsBatch]:
        """The statistics before under the new row numbers, then those of what was written."""
        for batch in self._before.stats():
            rows = batch.table.column("file").to_numpy()
            times = self._times[rows]
            taken = np.repeat(np.arange(len(rows)), times)
            offset = np.arange(len(taken)) - np.repeat(np.cumsum(times) - times, times)
            now = self._now[np.repeat(self._from[rows], times) + offset]
            place = batch.table.schema.get_field_index("file")
            table = batch.table.take(pa.array(taken)).set_column(place, "file", pa.array(now, pa.int64()))
            if table.num_rows:
                yield StatsBatch(batch.field, table, batch.exact)
        yield from self._written

    def _renumbered(self, rows: Sequence[int]) -> tuple[int, ...]:
        spans = [self._now[self._from[row] : self._from[row] + self._times[row]] for row in rows]
        return tuple(int(each) for span in spans for each in span)

    def sources(self, rows: Sequence[int]) -> Sequence[DataFile]:
        """As before; written files are no sources."""
        return self._before.sources([int(self._was[row]) for row in rows])

    def equality(self, first: int) -> Equality | None:
        """As before."""
        return self._before.equality(first)

    def resolved(self, found: pa.Table) -> Files:
        """Rows are deleted before files are cut or rewritten."""
        raise NotImplementedError
