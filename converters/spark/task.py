"""One file rewritten: read in batches, without what is deleted, laid out, written. Plain Python; no Spark in here.

Rows pass through in file order, or sorted as the target says, so that every attempt writes the same rows into the same
file. Files are cut at `target_bytes` by the bytes that a row took so far. A big source file stays one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa

from bridge.errors import BridgeError, Unreachable
from converters import storage
from converters.parquet.dictionaries import holds_merged, may_merge
from converters.parquet.left_out import LEFT_OUT, packed
from converters.parquet.places import position_field
from converters.spark.ahead import Ahead
from converters.spark.cut import ROWS_IN, Cut
from converters.spark.plan import WRITTEN, RewriteTask
from converters.spark.positions import read_positions
from converters.spark.project import Projection, projection
from converters.spark.row_numbers import RowNumbers
from converters.spark.sorting import Sorted, in_order, key_fields, with_positions
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
    with connect(task.target.settings) as connection:
        moved = _moves(connection, task, source, deleted)
        numbers = RowNumbers.of(task, source.schema, len(deleted) > 0 or moved)
        fields = (*task.target.fields, *numbers.fields)
        position = position_field([each.name for each in fields])
        target = replace(task.target, fields=(*fields, position) if moved else fields)
        reading = projection(task.source, source.schema, target.fields)
        storage.make_directory(target.directory)
        batches = _live(task, source, reading, deleted)
        if moved:
            batches = ((with_positions(batch, position, first), first, live) for batch, first, live in batches)
        living: Iterator[pa.RecordBatch] = (
            _live_rows(numbers.fill(batch, first), live) for batch, first, live in batches
        )
        if target.settings.dictionaries:
            living = _unmerged(living, reading.schema)
        with Ahead(living) as rows:
            cut = Cut(connection, rows, reading.schema)
            sizes = _Sizes(source, task, len(deleted), 8 * (len(target.fields) - len(task.target.fields)))
            pieces = Sorted(connection, cut, target, position, sizes.known) if moved else cut
            made: list[dict[str, object]] = []
            while (first := pieces.peek()) is not None:
                name = f"{task.output}-{len(made)}.parquet"
                start = None if moved or len(deleted) else sizes.written
                notes = {LEFT_OUT: packed(deleted)} if len(deleted) and not made else {}
                group = sizes.group_rows(first)
                try:
                    piece = write_piece(connection, pieces.take(sizes.budget(first)), target, name, group, notes)
                except BridgeError:
                    rows.reraise()
                    raise
                finally:
                    connection.unregister(ROWS_IN)
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


def _moves(connection: duckdb.DuckDBPyConnection, task: RewriteTask, source: Source, deleted: np.ndarray) -> bool:
    """Whether the rows are to be sorted: there is an order, they do not stand in it, and each can keep its id."""
    if not task.target.sort or not RowNumbers.can_hold(task):
        return False
    keys = projection(task.source, source.schema, key_fields(task.target))
    batches = (_live_rows(batch, live) for batch, _, live in _live(task, source, keys, deleted))
    return not in_order(connection, batches, task.target)


def _unmerged(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, as long as a dictionary changes no value of them, which only their float columns can tell."""
    floating = [place for place, field in enumerate(schema) if may_merge(field.type)]
    for batch in batches:
        if any(holds_merged(batch.column(place)) for place in floating):
            raise _Merges("written anew without dictionaries")
        yield batch


_STAT = ("field", "size", "values", "nulls", "nans", "lower", "upper")
_Live = tuple[pa.RecordBatch, int, "np.ndarray | None"]


def _live(task: RewriteTask, source: Source, reading: Projection, deleted: np.ndarray) -> Iterator[_Live]:
    """Batches of the table's columns with the position of their first row, and which of their rows live (None: all)."""
    first = 0
    for batch in source.batches(reading.needed):
        low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
        live = None
        if high > low:
            live = np.ones(batch.num_rows, dtype=bool)
            live[deleted[low:high] - first] = False
        yield reading.apply(batch), first, live
        first += batch.num_rows
    if len(deleted) and deleted[-1] >= first:
        raise Unreachable(f"data file {task.source.path} has {first} rows, but row {deleted[-1]} of it is deleted")
    task.source.check(first)


def _live_rows(batch: pa.RecordBatch, live: np.ndarray | None) -> pa.RecordBatch:
    return batch if live is None else batch.filter(pa.array(live))


@dataclass(slots=True)
class _Sizes:
    """How many rows make a file and a row group, by what rows of this source took so far; `beside`: bytes of a row that
    the source does not have."""

    source: Source
    task: RewriteTask
    deleted: int
    beside: int
    written: int = 0
    bytes: int = 0

    @property
    def known(self) -> int | None:
        """How many rows are to be written, where that is told before they are read."""
        rows = self.task.source.record_count or self.source.rows
        return None if rows is None else rows - self.deleted

    def budget(self, next_: pa.RecordBatch) -> int:
        if self.written:
            wide = self.bytes / self.written
        elif rows := (self.task.source.record_count or self.source.rows):
            wide = self.source.size / rows + self.beside
        else:
            wide = next_.nbytes / next_.num_rows
        budget = max(1, int(self.task.target.settings.target_bytes / max(wide, 1e-3)))
        left = None if self.known is None else self.known - self.written
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


def _check(task: RewriteTask, rows: Ahead, made: list[dict[str, object]]) -> None:
    """Nothing was lost between reading and writing."""
    rows.reraise()
    written = sum(int(str(each["record_count"])) for each in made)
    if written != rows.count:
        raise BridgeError(f"{task.source.path}: {rows.count} rows live, {written} were written")
