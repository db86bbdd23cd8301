"""One file rewritten: read in batches, without what is deleted, laid out, written. Plain Python; no Spark in here.

Rows pass through in file order, so that every attempt writes the same rows into the same file. They are not sorted by
the table's order: deletes that the source adds later name positions in its file, and a lake sorts when it merges. Files
are cut at `target_bytes` by the bytes that a row took so far. A big source file stays one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
import pyarrow as pa

from bridge.errors import BridgeError, Unreachable
from converters import storage
from converters.parquet.dictionaries import holds_merged, may_merge
from converters.parquet.left_out import LEFT_OUT, packed
from converters.spark.guarded import Guarded
from converters.spark.plan import WRITTEN, RewriteTask
from converters.spark.positions import read_positions
from converters.spark.project import projection
from converters.spark.row_numbers import RowNumbers
from converters.spark.sources import Source, open_source
from converters.spark.writing import connect, write_piece

__all__ = ["rewrite"]


def rewrite(task: RewriteTask, progress: Callable[[str], None] | None = None) -> pa.Table:
    """Do a task; WRITTEN rows of its files, none when no row is left."""
    try:
        return _rewritten(task)
    except _Merges:
        settings = replace(task.target.settings, dictionaries=False)
        return _rewritten(replace(task, target=replace(task.target, settings=settings)))


class _Merges(BridgeError):
    """A row holds a value that a dictionary would change."""


def _rewritten(task: RewriteTask) -> pa.Table:
    source = open_source(task.source.path, task.source.format)
    deleted = read_positions(task.deleted, task.deleted_file)
    numbers = RowNumbers.of(task, source.schema, len(deleted) > 0)
    target = replace(task.target, fields=(*task.target.fields, *numbers.fields))
    reading = projection(task.source, source.schema, target.fields)
    storage.make_directory(target.directory)
    with connect(target.settings) as connection:
        made_rows = (
            _live_rows(numbers.fill(reading.apply(batch), first), live)
            for batch, first, live in _live(task, source, reading.needed, deleted)
        )
        rows = Guarded(_unmerged(made_rows, reading.schema) if target.settings.dictionaries else made_rows)
        pieces = _Cut(iter(rows))
        sizes = _Sizes(source, task, len(deleted))
        made: list[dict[str, object]] = []
        while (first := pieces.peek()) is not None:
            budget = sizes.budget(first)
            feed = pa.RecordBatchReader.from_batches(reading.schema, pieces.take(budget))
            name = f"{task.output}-{len(made)}.parquet"
            start = None if len(deleted) else sizes.written
            try:
                notes = {LEFT_OUT: packed(deleted)} if len(deleted) and not made else {}
                piece = write_piece(connection, feed, target, name, sizes.group_rows(first), notes)
            except BridgeError:
                rows.reraise()
                raise
            rows.reraise()
            sizes.learn(piece.record_count, piece.size)
            made.append(
                {
                    "task": task.id,
                    "path": piece.path,
                    "record_count": piece.record_count,
                    "size": piece.size,
                    "footer_size": piece.footer_size,
                    "first_row": start,
                    "partition": list(piece.partition),
                    "stats": [dict(zip(_STAT, astuple(each), strict=True)) for each in piece.stats],
                }
            )
    _check(task, rows, made)
    return pa.Table.from_pylist(made, schema=WRITTEN)


def _unmerged(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, as long as a dictionary changes no value of them, which only their float columns can tell."""
    floating = [place for place, field in enumerate(schema) if may_merge(field.type)]
    for batch in batches:
        if any(holds_merged(batch.column(place)) for place in floating):
            raise _Merges("written anew without dictionaries")
        yield batch


_STAT = ("field", "size", "values", "nulls", "nans", "lower", "upper")
_Live = tuple[pa.RecordBatch, int, "np.ndarray | None"]


def _live(task: RewriteTask, source: Source, needed: tuple[str, ...], deleted: np.ndarray) -> Iterator[_Live]:
    """Batches of the file with the position of their first row, and which of their rows live (None: all)."""
    first = 0
    for batch in source.batches(needed):
        low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
        live = None
        if high > low:
            live = np.ones(batch.num_rows, dtype=bool)
            live[deleted[low:high] - first] = False
        yield batch, first, live
        first += batch.num_rows
    if len(deleted) and deleted[-1] >= first:
        raise Unreachable(f"data file {task.source.path} has {first} rows, but row {deleted[-1]} of it is deleted")
    task.source.check(first)


def _live_rows(batch: pa.RecordBatch, live: np.ndarray | None) -> pa.RecordBatch:
    return batch if live is None else batch.filter(pa.array(live))


class _Cut:
    """A stream of batches in pieces of a number of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: pa.RecordBatch | None = None

    def peek(self) -> pa.RecordBatch | None:
        """The rows that come next; None at the end."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return None
        return self._held

    def take(self, budget: int) -> Iterator[pa.RecordBatch]:
        """Rows of one piece."""
        while budget > 0 and (held := self.peek()) is not None:
            count = min(budget, held.num_rows)
            self._held = held.slice(count)
            budget -= count
            yield held.slice(0, count)


@dataclass(slots=True)
class _Sizes:
    """How many rows make a file and a row group, by what rows of this source took so far."""

    source: Source
    task: RewriteTask
    deleted: int
    written: int = 0
    bytes: int = 0

    def budget(self, next_: pa.RecordBatch) -> int:
        if self.written:
            wide = self.bytes / self.written
        elif rows := (self.task.source.record_count or self.source.rows):
            wide = self.source.size / rows
        else:
            wide = next_.nbytes / next_.num_rows
        budget = max(1, int(self.task.target.settings.target_bytes / max(wide, 1e-3)))
        known = self.task.source.record_count or self.source.rows
        left = None if known is None else known - self.deleted - self.written
        # no last file that is a small rest
        return left if left is not None and budget < left <= budget * 1.25 else budget

    def group_rows(self, next_: pa.RecordBatch) -> int:
        wide = next_.nbytes / next_.num_rows
        # the writer holds a row group, and parts of it once more
        settings = self.task.target.settings
        fitting = int(min(settings.row_group_bytes, settings.memory // 6) / max(wide, 1e-3))
        return max(2_048, min(settings.row_group_rows, fitting))

    def learn(self, rows: int, size: int) -> None:
        self.written += rows
        self.bytes += size


def _check(task: RewriteTask, rows: Guarded, made: list[dict[str, object]]) -> None:
    """Nothing was lost between reading and writing."""
    rows.reraise()
    written = sum(int(str(each["record_count"])) for each in made)
    if written != rows.count:
        raise BridgeError(f"{task.source.path}: {rows.count} rows live, {written} were written")
