"""Row ids that a file must hold itself, because a place in it no longer tells them.

A lake numbers the rows of a file from its first; a file from which rows were left out, or whose source holds ids of its
own, gets them as a column, as DuckDB 1.5.5 writes it for rows that were updated (it is found by its field id).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.types import Field, FieldId, Leaf
from converters.spark.plan import RewriteTask
from converters.spark.project import field_id

__all__ = ["RowNumbers"]

_FIELD = Field(FieldId(2147483540), "_ducklake_internal_row_id", Leaf.INT64)
"""Reserved by Iceberg v3 as _row_id, and taken over by DuckLake under this name."""


@dataclass(frozen=True, slots=True)
class RowNumbers:
    """The column to add, or nothing."""

    fields: tuple[Field, ...]
    first: int

    @staticmethod
    def of(task: RewriteTask, stored: pa.Schema, some_left_out: bool) -> RowNumbers:
        first = task.source.first_row_id
        own = any(field_id(each) == int(_FIELD.id) for each in stored)
        taken = any(each.name.casefold() == _FIELD.name for each in task.target.fields)
        if first is None or taken or not (own or some_left_out):
            return RowNumbers((), 0)
        return RowNumbers((_FIELD,), first)

    def fill(self, batch: pa.RecordBatch, position: int) -> pa.RecordBatch:
        """A batch with the id of each row; where the source holds none it is the first row's plus the position."""
        if not self.fields:
            return batch
        counted = np.arange(self.first + position, self.first + position + batch.num_rows, dtype=np.int64)
        place = batch.schema.get_field_index(_FIELD.name)
        return batch.set_column(place, batch.schema.field(place), pc.coalesce(batch.column(place), pa.array(counted)))
