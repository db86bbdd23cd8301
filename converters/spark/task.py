"""One file rewritten: read in batches, without what is deleted, laid out, written. Plain Python; no Spark in here.

Rows pass through in file order. With a sort order or partition keys DuckDB orders them first, spilling to disk beyond
the task's memory, by keys and then by position, so that every attempt writes the same rows into the same file. Files
are cut at `target_bytes` by the bytes that a row took so far. A big source file stays one task; a global sort or a
repartitioning over many files would be a shuffle in front of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import BridgeError, Unreachable
from converters import storage
from converters.parquet.dictionaries import holds_merged, may_merge
from converters.parquet.left_out import LEFT_OUT, packed
from converters.spark.guarded import Guarded, owned
from converters.spark.layout import KEY, POSITION, ordered
from converters.spark.plan import WRITTEN, RewriteTask, Settings
from converters.spark.positions import read_positions
from converters.spark.project import projection
from converters.spark.row_numbers import RowNumbers
from converters.spark.sources import Source, open_source
from converters.spark.writing import connect, failed, write_piece

__all__ = ["rewrite"]


def rewrite(task: RewriteTask, progress: Callable[[str], None] | None = None) -> pa.Table:
    """Do a task; WRITTEN rows of its files, none when no row is left."""
    source = open_source(task.source.path, task.source.format)
    deleted = read_positions(task.deleted, task.deleted_file)
    numbers = RowNumbers.of(task, source.schema, len(deleted) > 0)
    target, settings = replace(task.target, fields=(*task.target.fields, *numbers.fields)), task.target.settings
    reading = projection(task.source, source.schema, target.fields)
    if _merges(source, reading.needed):
        settings = replace(settings, dictionaries=False)
    storage.make_directory(target.directory)
    moved = bool(target.sort or target.partition)
    with connect(settings) as connection:
        rows = Guarded(
            _with_position(numbers.fill(reading.apply(batch), first), first, live)
            for batch, first, live in _live(task, source, reading.needed, deleted)
        )
        batches = iter(rows)
        if moved:
            batches = _sorted(ordered(connection, batches, reading.schema, target, settings), rows)
        pieces = _Cut(batches, len(target.partition))
        sizes = _Sizes(source, task, settings, len(deleted))
        made: list[dict[str, object]] = []
        while (first := pieces.peek()) is not None:
            budget = sizes.budget(first)
            feed = pa.RecordBatchReader.from_batches(reading.schema, pieces.take(budget, reading.schema))
            path = f"{target.directory}/{task.output}-{len(made)}.parquet"
            start = None if moved or len(deleted) else first.column(POSITION)[0].as_py()
            keys = [_key_text(first.column(f"{KEY}{place}")[0].as_py()) for place in range(len(target.partition))]
            try:
                notes = {LEFT_OUT: packed(deleted)} if len(deleted) and not made else {}
                piece = write_piece(connection, feed, target.fields, path, settings, sizes.group_rows(first), notes)
            except BridgeError:
                rows.reraise()
                raise
            rows.reraise()
            sizes.learn(piece.record_count, piece.size)
            made.append(
                {
                    "task": task.id,
                    "path": path,
                    "record_count": piece.record_count,
                    "size": piece.size,
                    "footer_size": piece.footer_size,
                    "first_row": start,
                    "partition": keys,
                    "stats": [dict(zip(_STAT, astuple(each), strict=True)) for each in piece.stats],
                }
            )
    _check(task, rows, made)
    return pa.Table.from_pylist(made, schema=WRITTEN)


def _merges(source: Source, needed: tuple[str, ...]) -> bool:
    """Whether a dictionary would change values of the file, which its float columns tell."""
    floating = [name for name in needed if may_merge(source.schema.field(name).type)]
    return bool(floating) and any(
        holds_merged(batch.column(name)) for batch in source.batches(floating) for name in floating
    )


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


def _with_position(batch: pa.RecordBatch, first: int, live: np.ndarray | None) -> pa.RecordBatch:
    place = np.arange(first, first + batch.num_rows, dtype=np.int64)
    batch = batch.append_column(POSITION, pa.array(place))
    return batch if live is None else batch.filter(pa.array(live))


def _key_text(stored: str) -> str | None:
    return stored[1:] if stored.startswith("v") else None


def _sorted(batches: Iterator[pa.RecordBatch], feed: Guarded) -> Iterator[pa.RecordBatch]:
    try:
        yield from Guarded(owned(batch) for batch in batches)
    except (duckdb.Error, pa.ArrowException) as error:
        feed.reraise()
        raise failed("the rows cannot be sorted", error) from error


class _Cut:
    """A stream of batches in pieces of one partition and a number of rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch], keys: int) -> None:
        self._batches = batches
        self._keys = [f"{KEY}{place}" for place in range(keys)]
        self._held: pa.RecordBatch | None = None

    def peek(self) -> pa.RecordBatch | None:
        """The rows that come next; None at the end."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return None
        return self._held

    def take(self, budget: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Rows of one piece, without the columns that only order them."""
        keys: list[object] | None = None
        while budget > 0 and (held := self.peek()) is not None:
            here = [held.column(name)[0].as_py() for name in self._keys]
            if keys is not None and here != keys:
                return
            keys = here
            count = min(budget, held.num_rows, self._same(held))
            self._held = held.slice(count)
            budget -= count
            yield held.slice(0, count).select(schema.names)

    def _same(self, held: pa.RecordBatch) -> int:
        """How many rows from the first on have its key."""
        count: int = held.num_rows
        for name in self._keys:
            column = held.column(name)
            other = pc.index(pc.not_equal(column, column[0]), True).as_py()
            count = other if 0 <= other < count else count
        return count


@dataclass(slots=True)
class _Sizes:
    """How many rows make a file and a row group, by what rows of this source took so far."""

    source: Source
    task: RewriteTask
    settings: Settings
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
        budget = max(1, int(self.settings.target_bytes / max(wide, 1e-3)))
        known = self.task.source.record_count or self.source.rows
        left = None if known is None or self.task.target.partition else known - self.deleted - self.written
        # no last file that is a small rest
        return left if left is not None and budget < left <= budget * 1.25 else budget

    def group_rows(self, next_: pa.RecordBatch) -> int:
        wide = next_.nbytes / next_.num_rows
        # the writer holds a row group, and parts of it once more
        fitting = int(min(self.settings.row_group_bytes, self.settings.memory // 6) / max(wide, 1e-3))
        return max(2_048, min(self.settings.row_group_rows, fitting))

    def learn(self, rows: int, size: int) -> None:
        self.written += rows
        self.bytes += size


def _check(task: RewriteTask, rows: Guarded, made: list[dict[str, object]]) -> None:
    """Nothing was lost between reading and writing."""
    rows.reraise()
    written = sum(int(str(each["record_count"])) for each in made)
    if written != rows.count:
        raise BridgeError(f"{task.source.path}: {rows.count} rows live, {written} were written")
