"""Copies the rows of a DuckDB file's tables with DuckDB's own COPY; they never pass through Python.

A table is written aside, then a record of its finished files is written, then they are moved to their places. A run
that was killed before the record begins the table anew, one that was killed after it only goes on moving.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import duckdb
import pyarrow as pa

from bridge.errors import BridgeError, Conflict, Unreachable
from bridge.model.options import Options
from bridge.model.rewrite import WRITTEN, Equality, FileRewrite, Target, WrittenFiles
from bridge.ports import ProgressSink
from converters.duckdb_file.aside import Aside
from converters.duckdb_file.copying import copy_table
from converters.duckdb_file.locate import File, file_at, opened
from converters.duckdb_file.pieces import Copied
from converters.duckdb_file.place import TablePlace
from converters.parquet.copied import typed_stats

__all__ = ["CopyEngine", "open_engine"]


class CopyEngine:
    """Rewriting for tables of a DuckDB file."""

    def __init__(self, options: Options, staging: str) -> None:
        self._options = options
        self._staging = staging

    def rewrite(
        self, plan: str, files: Sequence[FileRewrite], target: Target, progress: ProgressSink, what: str
    ) -> WrittenFiles:
        """Copy tables, each the one data file that stands for it."""
        parts = []
        for number, each in enumerate(files):
            written = self._one(plan, each, target, progress, what)
            parts.append(written.set_column(0, WRITTEN.field("task"), pa.array([str(number)] * len(written))))
        every = pa.concat_tables([WRITTEN.empty_table(), *parts])
        return WrittenFiles(every.drop_columns(["stats"]), tuple(typed_stats(every, target.fields)))

    def _one(self, plan: str, file: FileRewrite, target: Target, progress: ProgressSink, what: str) -> pa.Table:
        source = file.source
        place = TablePlace.parse(source.path)
        aside = Aside(self._staging, plan, file.output, target.directory)
        done = aside.finished()
        if done is not None:
            progress.step(f"{what}: done before", source.record_count or 0, source.record_count)
            return done
        aside.begin()
        held = file_at(place.file, self._options)
        with opened(held, place.state) as connection, _told(connection, progress, what, source.record_count):
            try:
                copied = copy_table(connection, place, target, aside.local)
            except duckdb.Error as error:
                raise _failed(what, held, error) from error
        rows = _rows(copied, aside)
        source.check(sum(each.record_count for each in copied))
        return aside.finish(pa.Table.from_pylist(rows, schema=WRITTEN))

    def resolve(self, plan: str, equality: Equality, progress: ProgressSink, what: str) -> pa.Table:
        """A DuckDB file has no delete files."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing runs on."""


def _rows(copied: Sequence[Copied], aside: Aside) -> list[dict[str, object]]:
    """WRITTEN rows, with the places that the files are to have."""
    made: list[dict[str, object]] = []
    for number, each in enumerate(copied):
        made.append(
            {
                "task": "0",
                "path": aside.place(each.path, each.directory, number),
                "record_count": each.record_count,
                "size": each.size,
                "footer_size": each.footer_size,
                "first_row": None,  # row groups may have changed places
                "partition": list(each.partition),
                "stats": [asdict(stat) for stat in each.stats],
            }
        )
    return made


@contextmanager
def _told(
    connection: duckdb.DuckDBPyConnection, progress: ProgressSink, what: str, total: int | None
) -> Iterator[None]:
    """Tell how many rows are done while DuckDB works."""
    connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            done = max(connection.query_progress(), 0.0)
            progress.step(what, int(done / 100 * (total or 0)), total)

    thread = threading.Thread(target=watch, daemon=True)
    progress.step(what, 0, total)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _failed(what: str, file: File, error: duckdb.Error) -> BridgeError:
    said = str(error).splitlines()[0]
    if isinstance(error, duckdb.OutOfMemoryException) and "max_temp_directory" not in said:
        return BridgeError(f"{what}: the memory is not enough: {said}", hint="raise --memory-limit")
    if "No space left" in said or "max_temp_directory" in said:
        return Unreachable(f"{what}: the disk is full: {said}", hint="make room and run it again: finished tables stay")
    if isinstance(error, duckdb.ConversionException):
        return Unreachable(
            f"{what}: a value of {file.path} cannot be written: {said}",
            hint="correct it at the source, choose another --type-map, or leave the table out with --exclude",
        )
    if isinstance(error, duckdb.InterruptException):
        return Conflict(f"{what}: interrupted")
    return Unreachable(f"{what}: {said}")


def open_engine(_: str, options: Options, staging: str) -> CopyEngine:
    """The engine that copies the rows of a DuckDB file."""
    return CopyEngine(options, staging)
