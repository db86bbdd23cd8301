"""Which rows of its source a rewritten file was made without, noted in the file itself.

A later run has to count positions in the rewritten file, and by then the source's history may not tell any more which
deletes were in effect when the file was written.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import Unreachable
from converters import storage

__all__ = ["LEFT_OUT", "packed", "read_left_out"]

LEFT_OUT = "bridge.left-out"
"""The key in the metadata of the first of the files that a source file was rewritten to."""


def packed(positions: np.ndarray) -> str:
    """Ascending positions as text: their steps, compressed."""
    return base64.b64encode(zlib.compress(np.diff(positions, prepend=0).astype("<i8").tobytes())).decode()


def read_left_out(path: str) -> np.ndarray:
    """The positions that a file was made without; none when it says nothing of it."""
    with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
        try:
            noted = (pq.read_metadata(source).metadata or {}).get(LEFT_OUT.encode(), b"")
            steps = zlib.decompress(base64.b64decode(noted, validate=True)) if noted else b""
        except (pa.ArrowException, zlib.error, binascii.Error) as error:
            raise Unreachable(f"data file {path} cannot be read: {error}") from error
    return np.cumsum(np.frombuffer(steps, dtype="<i8")).astype(np.int64)
