"""Deletion vectors: the blob `deletion-vector-v1` of the Puffin specification, which Delta and DuckLake use too."""

from __future__ import annotations

import zlib

import numpy as np
from pyroaring import BitMap64

__all__ = ["decode", "encode"]

_MAGIC = bytes.fromhex("d1d33964")
_FRAME = 12


def decode(blob: bytes, expected: int) -> np.ndarray:
    """The positions of a vector, ascending, as int64. ValueError when it is damaged or does not hold `expected`."""
    if len(blob) < _FRAME or blob[4:8] != _MAGIC:
        raise ValueError("not a deletion vector")
    length = int.from_bytes(blob[:4], "big")
    content = blob[4 : 4 + length]
    if length + 8 != len(blob) or zlib.crc32(content) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("a damaged deletion vector: its checksum does not fit")
    try:
        bitmap = BitMap64.deserialize(content[4:])
    except (ValueError, IndexError) as error:
        raise ValueError("a damaged deletion vector") from error
    # a few bytes can stand for billions of positions, so the count is compared before they are made
    if len(bitmap) != expected:
        raise ValueError(f"a deletion vector of {len(bitmap)} positions, {expected} expected")
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)


def encode(positions: np.ndarray) -> bytes:
    """The vector of ascending positions."""
    bitmap = BitMap64(positions.astype(np.uint64))
    content = _MAGIC + bitmap.serialize()
    return len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
