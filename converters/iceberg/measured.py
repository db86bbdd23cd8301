"""Statistics that files themselves give, gathered by column and kept on disk."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from bridge.model.files import StatsBatch
from bridge.model.types import ColumnType, FieldId
from converters.parquet.bounds import arrow_bounds, exact_bounds
from converters.parquet.footer import Column
from converters.storage.scratch import scratch

__all__ = ["Measured", "StatsSpool"]

_COUNTS = ("size", "values", "nulls")


class Measured:
    """Statistics of some files, by column, as they are gathered."""

    def __init__(self) -> None:
        self._rows: dict[FieldId, list[tuple[int, int | None, int, int | None, int | None, int | None]]] = defaultdict(
            list
        )

    def add(self, file: int, id_: FieldId, column: Column, type_: ColumnType) -> None:
        """What the footer says of a column."""
        low, high = exact_bounds(column, type_) or (None, None)
        self._rows[id_].append((file, column.size, column.values, column.nulls, low, high))

    def constant(self, file: int, id_: FieldId, rows: int, value: tuple[bool, int | None]) -> None:
        """A column of one value in all rows: whether it is NULL, and the whole number if its type has exact ones."""
        is_null, number = value
        self._rows[id_].append((file, None, rows, rows if is_null else 0, number, number))

    def tables(self, types: Mapping[FieldId, ColumnType]) -> Iterator[tuple[FieldId, pa.Table]]:
        for id_, rows in self._rows.items():
            columns = list(zip(*rows, strict=True))
            yield (
                id_,
                pa.table(
                    {
                        "file": pa.array(columns[0], pa.int64()),
                        **{name: pa.array(columns[place], pa.int64()) for place, name in enumerate(_COUNTS, 1)},
                        "nans": pa.nulls(len(rows), pa.int64()),
                        "lower": arrow_bounds(columns[4], types[id_]),
                        "upper": arrow_bounds(columns[5], types[id_]),
                    }
                ),
            )


class StatsSpool:
    """Batches of statistics on disk, so that memory is bounded by one."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(dir=scratch()))
        self._parts: list[tuple[FieldId, bool]] = []
        self._clean = weakref.finalize(self, shutil.rmtree, self._directory, True)

    def add(self, id_: FieldId, table: pa.Table, exact: bool) -> None:
        with (
            pa.OSFile(str(self._directory / f"{len(self._parts)}.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        self._parts.append((id_, exact))

    def __iter__(self) -> Iterator[StatsBatch]:
        for number, (id_, exact) in enumerate(self._parts):
            with pa.OSFile(str(self._directory / f"{number}.arrow"), "rb") as source:
                yield StatsBatch(id_, pa.ipc.open_file(source).read_all(), exact)
