"""NaN that a file's own statistics hide from DuckDB: it prunes row groups by bounds, and NaN lies outside of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.errors import Unreachable
from converters import storage
from converters.parquet.footer import Column, Footer

__all__ = ["hidden_nan"]

_SAFE_WRITERS = ("parquet-mr", "DuckDB")
"""Writers seen to leave the bounds out when a row group holds NaN."""


def hidden_nan(footer: Footer, ids: frozenset[int]) -> list[str]:
    """The float columns among `ids` that hold a NaN in spite of stated bounds; reads those columns only."""
    if any(name in footer.created_by for name in _SAFE_WRITERS):
        return []
    suspects = [
        column
        for column in footer.columns
        if column.id in ids and column.physical in ("FLOAT", "DOUBLE") and column.has_bounds and not column.repeated
    ]
    return [".".join(column.path) for column in suspects if _holds_nan(footer.path, column)]


def _holds_nan(path: str, column: Column) -> bool:
    with storage.open_input(path, "data file") as source:
        try:
            file = pq.ParquetFile(source)
            for batch in file.iter_batches(columns=[column.stored]):
                values = batch.column(0)
                for name in column.path[1:]:
                    values = pc.struct_field(values, name)
                if pc.any(pc.is_nan(values)).as_py():
                    return True
        except (pa.ArrowException, OSError) as error:
            storage.raise_unanswered(path, "data file", error)
            raise Unreachable(f"data file {path} cannot be read: {str(error).splitlines()[0]}") from error
    return False
