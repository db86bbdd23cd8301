"""What files of a lake hold beside their table's columns: the ids of their rows, and where in its source each stood.

A file that was sorted holds the position of each row in the source: deletes that the source adds later name positions
there. Its field id is one that Iceberg reserves and gives to nothing; a lake reads the table's columns alone, and
leaves this one out of what it merges (as tried with DuckDB 1.5.5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import Unreachable
from bridge.model.types import Field, FieldId, Leaf
from converters import storage

__all__ = ["ROW_ID", "called_row_id", "places_of", "position_field"]

ROW_ID = Field(FieldId(2147483540), "_ducklake_internal_row_id", Leaf.INT64)
"""Ids that places do not tell; reserved by Iceberg v3 as _row_id, and taken over by DuckLake under this name."""

_ID = 2147483448
"""The first that no table may use, and the farthest from those that are given out, from the last on downwards."""
_NAME = "_bridge_position"
_KEY = b"PARQUET:field_id"
_BATCH = 65_536


def called_row_id(fields: Iterable[Field]) -> Field | None:
    """The column that has the name of the ids, in whatever case: beside it they have no room."""
    return next((each for each in fields if each.name.casefold() == ROW_ID.name), None)


def position_field(taken: Collection[str]) -> Field:
    """The column, under a name that none of the others has."""
    known, name = {each.casefold() for each in taken}, _NAME
    while name in known:
        name += "_"
    return Field(FieldId(_ID), name, Leaf.INT64)


def places_of(paths: Sequence[str], positions: np.ndarray) -> np.ndarray | None:
    """Of ascending positions in the source the places among the rows of the files it was rewritten to, one file after
    the other; -1 where none of them holds the row, and None when the files say nothing since no row was moved."""
    found, start = np.full(len(positions), -1, dtype=np.int64), 0
    for path in paths:
        with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
            try:
                file = pq.ParquetFile(source)
                column = next((each.name for each in file.schema_arrow if _is_position(each)), None)
                if column is None:
                    return None
                for batch in file.iter_batches(_BATCH, columns=[column], use_threads=False):
                    held = batch.column(0).to_numpy()
                    at = np.minimum(np.searchsorted(positions, held), len(positions) - 1)
                    hits = np.flatnonzero(positions[at] == held)
                    found[at[hits]] = start + hits
                    start += len(held)
            except pa.ArrowException as error:
                raise Unreachable(f"data file {path} cannot be read: {error}") from error
    return found


def _is_position(field: pa.Field) -> bool:
    return (field.metadata or {}).get(_KEY) == str(_ID).encode()
