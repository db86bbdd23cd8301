"""Delete files as DuckDB 1.5.5 writes them: the deleted positions of one data file, each with its snapshot."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["decode", "encode"]

_COLUMNS = (
    ("file_path", pa.string(), b"2147483646"),
    ("pos", pa.int64(), b"2147483645"),
    ("_ducklake_internal_snapshot_id", pa.int64(), b"2147483539"),
)
_ROWS = 1 << 20
_SCHEMA = pa.schema([pa.field(name, type_, True, {b"PARQUET:field_id": id_}) for name, type_, id_ in _COLUMNS])


def encode(path: str, positions: np.ndarray, snapshots: np.ndarray) -> tuple[bytes, int]:
    """(content, footer length in bytes) for positions in strictly ascending order: DuckDB refuses any other."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, _SCHEMA, store_schema=False) as writer:
        for start in range(0, len(positions), _ROWS):
            part = slice(start, start + _ROWS)
            named = pa.DictionaryArray.from_arrays(np.zeros(len(positions[part]), dtype=np.int32), [path])
            writer.write_table(pa.table([named.cast(pa.string()), positions[part], snapshots[part]], schema=_SCHEMA))
    content = sink.getvalue()
    return content, int.from_bytes(content[-8:-4], "little")


def decode(content: bytes, begin: int) -> tuple[np.ndarray, np.ndarray]:
    """(positions, snapshots) of a lake's own delete file; without a snapshot column all begin where the file does."""
    rows = pq.read_table(io.BytesIO(content))
    positions = rows.column(1).to_numpy()
    stated = rows.column(2).to_numpy() if rows.num_columns > 2 else np.full(len(positions), begin)
    return positions, stated
