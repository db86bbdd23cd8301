"""Deletes of data files as Iceberg wants them: position delete files in version 2, vectors in Puffin files in 3.

One delete file, or one vector, holds all deletes of one data file at a time.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from converters import storage
from converters.deletes.puffin import puffin
from converters.iceberg.publish.entries import Record

__all__ = ["PATH_ID", "POSITION_ID", "DeleteWriter", "Deleted"]

PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
"""Reserved field ids of position delete files (specification, "Reserved Field IDs")."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ]
)
_TOGETHER = 1_000


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deleted positions of a data file, and the partition that it lies in."""

    path: str
    positions: np.ndarray
    partition: Record


class DeleteWriter:
    """Writes below one directory, under names that begin with `mark`."""

    def __init__(self, directory: str, mark: str, version: int) -> None:
        self._directory = directory
        self._mark = mark
        self._version = version
        self._number = 0
        self.written: list[str] = []

    def write(self, deleted: Sequence[Deleted]) -> list[Record]:
        """The files of some deletes as entries hold them, in their order."""
        if self._version < 3:
            return [self._position_file(each) for each in deleted]
        made: list[Record] = []
        for start in range(0, len(deleted), _TOGETHER):
            made += self._vectors(deleted[start : start + _TOGETHER])
        return made

    def _put(self, ending: str, content: bytes) -> str:
        self._number += 1
        path = f"{self._directory}/{self._mark}-d{self._number}.{ending}"
        storage.write(path, content, f".{self._mark}.tmp", durable=False)
        self.written.append(path)
        return path

    def _position_file(self, deleted: Deleted) -> Record:
        count = len(deleted.positions)
        table = pa.table([pa.array([deleted.path] * count), pa.array(deleted.positions)], schema=_SCHEMA)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        path = self._put("parquet", buffer.getvalue())
        lowest, highest = (int(each).to_bytes(8, "little", signed=True) for each in deleted.positions[[0, -1]])
        return _record(deleted, path, "PARQUET", buffer.tell()) | {
            "value_counts": _pairs(count, count),
            "null_value_counts": _pairs(0, 0),
            "lower_bounds": _pairs(deleted.path.encode(), lowest),
            "upper_bounds": _pairs(deleted.path.encode(), highest),
        }

    def _vectors(self, deleted: Sequence[Deleted]) -> list[Record]:
        content, places = puffin([(each.path, each.positions) for each in deleted], "ducklake-bridge")
        path = self._put("puffin", content)
        return [
            _record(each, path, "PUFFIN", len(content))
            | {"content_offset": place.offset, "content_size_in_bytes": place.length}
            for each, place in zip(deleted, places, strict=True)
        ]


def _pairs(path: object, position: object) -> tuple[Record, Record]:
    return {"key": PATH_ID, "value": path}, {"key": POSITION_ID, "value": position}


def _record(deleted: Deleted, path: str, format_: str, size: int) -> Record:
    return {
        "content": 1,
        "file_path": path,
        "file_format": format_,
        "partition": deleted.partition,
        "record_count": len(deleted.positions),
        "file_size_in_bytes": size,
        "column_sizes": (),
        "value_counts": (),
        "null_value_counts": (),
        "nan_value_counts": (),
        "lower_bounds": (),
        "upper_bounds": (),
        "referenced_data_file": deleted.path,
    }
