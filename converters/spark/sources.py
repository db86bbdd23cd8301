"""Files as a schema with field ids and a stream of batches: Parquet and ORC by pyarrow, Avro by fastavro.

pyarrow rather than DuckDB reads Parquet: it gives ids and nulls of every level, reads INT96 as microseconds of any
year, two-level lists and Hive's `bag` layout, and feeding DuckDB's writer from it is as fast as DuckDB's own COPY
(scripts/bench_rewrite.py). What is held at a time is a batch and the pages or stripe it comes from, not the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import Blocked, Unreachable
from converters import storage
from converters.spark.avro import AvroFile
from converters.spark.counted import counted
from converters.spark.orc import OrcFile

__all__ = ["Source", "open_source"]

_BATCH_ROWS = 65_536
_BATCH_BYTES = 16 << 20
_BUFFER = 1 << 20


class Source(Protocol):
    """An open file; `rows` is None where only reading tells."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def size(self) -> int: ...

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All rows in file order, with those top-level columns at least; without any column, their number."""
        ...


def open_source(path: str, format_: str) -> Source:
    """Open a data file of a format; Unreachable when it is not there or damaged."""
    match format_.lower():
        case "parquet":
            return _Parquet.open(path)
        case "orc":
            return OrcFile.open(path)
        case "avro":
            return AvroFile.open(path)
        case _:
            raise Blocked(f"{path}: data files of format {format_} are not read", code="file-format")


def _wrong(path: str, error: BaseException) -> Unreachable:
    return Unreachable(f"data file {path} cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}")


@dataclass(frozen=True, slots=True)
class _Parquet:
    path: str
    schema: pa.Schema
    rows: int
    size: int
    file: pq.ParquetFile

    @staticmethod
    def open(path: str) -> _Parquet:
        source = storage.open_input(path, "data file")
        size = source.size()
        try:
            # INT96 is read in microseconds: nanoseconds only reach from 1677 to 2262 and wrap around silently
            file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False, buffer_size=_BUFFER)
            return _Parquet(path, file.schema_arrow, file.metadata.num_rows, size, file)
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise _wrong(path, error) from error

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if not columns:
            yield from counted(self.rows)
            return
        groups = self.file.metadata
        held = sum(groups.row_group(place).total_byte_size for place in range(groups.num_row_groups))
        wide = max(1, held // max(1, self.rows))
        rows = max(256, min(_BATCH_ROWS, _BATCH_BYTES // wide))
        try:
            yield from self.file.iter_batches(batch_size=rows, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _wrong(self.path, error) from error
