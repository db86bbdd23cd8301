"""Deleted positions of a file: given in the task, or in a small file of their own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import Unreachable
from converters import storage

__all__ = ["read_positions"]


def read_positions(given: tuple[int, ...], path: str) -> np.ndarray:
    """All positions, each once, ascending."""
    stored = np.array(given, dtype=np.int64)
    if path:
        with storage.open_input(path, "file of deleted positions") as source:
            try:
                if source.read(4) == b"PAR1":
                    column = pq.read_table(source, columns=["position"]).column("position")
                else:
                    source.seek(0)
                    column = pa.ipc.open_file(source).read_all().column("position")
            except (pa.ArrowException, OSError, KeyError) as error:
                raise Unreachable(f"file of deleted positions {path} cannot be read: {error}") from error
        told = column.cast(pa.int64()).to_numpy()
        # one copy where there need not be three: a third of a large file's rows may be deleted
        stored = np.concatenate([stored, told]) if len(stored) else told
    found = stored if (stored[1:] > stored[:-1]).all() else np.unique(stored)
    if len(found) and found[0] < 0:
        raise Unreachable(f"deleted position {found[0]} is negative")
    return found
