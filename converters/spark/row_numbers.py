"""Row ids that a file must hold itself, because a place in it no longer tells them.

A lake numbers the rows of a file from its first; a file in which rows were left out or moved, or whose source holds ids
of its own, gets them as a column, as DuckDB 1.5.5 writes it for rows that were updated (it is found by its field id).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.types import Field
from converters.parquet.places import ROW_ID, called_row_id
from converters.spark.plan import RewriteTask
from converters.spark.project import field_id

__all__ = ["RowNumbers"]


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The column to add, or nothing."""

    fields: tuple[Field, ...]
    first: int

    @staticmethod
    def of(task: RewriteTask, stored: pa.Schema, moved: bool) -> RowNumbers:
        """`moved`: some row is not at its place in the source."""
        first = task.source.first_row_id
        own = any(field_id(each) == int(ROW_ID.id) for each in stored)
        if first is None or _is_taken(task) or not (own or moved):
            return RowNumbers((), 0)
        return RowNumbers((ROW_ID,), first)

    @staticmethod
    def can_hold(task: RewriteTask) -> bool:
        """Whether rows keep their ids wherever they are put."""
        return task.source.first_row_id is None or not _is_taken(task)

    def fill(self, batch: pa.RecordBatch, position: int) -> pa.RecordBatch:
        """A batch with the id of each row; where the source holds none it is the first row's plus the position."""
        if not self.fields:
            return batch
        counted = np.arange(self.first + position, self.first + position + batch.num_rows, dtype=np.int64)
        place = batch.schema.get_field_index(ROW_ID.name)
        return batch.set_column(place, batch.schema.field(place), pc.coalesce(batch.column(place), pa.array(counted)))


def _is_taken(task: RewriteTask) -> bool:
    return called_row_id(task.target.fields) is not None
