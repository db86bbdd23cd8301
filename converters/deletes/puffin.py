"""Puffin files of deletion vectors (Puffin specification, "File structure", blob type `deletion-vector-v1`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from converters.deletes import vectors

__all__ = ["Placed", "puffin"]

_MAGIC = b"PFA1"
_POSITION_ID = 2_147_483_645  # `_pos`, the field that a vector is about


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a vector lies in the file."""

    offset: int
    length: int


def puffin(deleted: Sequence[tuple[str, np.ndarray]], created_by: str) -> tuple[bytes, list[Placed]]:
    """The file of some data files' vectors, and the place of each."""
    content, blobs, places = bytearray(_MAGIC), [], []
    for path, positions in deleted:
        blob = vectors.encode(positions)
        places.append(Placed(len(content), len(blob)))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_POSITION_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        content += blob
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": created_by}}).encode()
    content += _MAGIC + footer + len(footer).to_bytes(4, "little") + bytes(4) + _MAGIC
    return bytes(content), places
