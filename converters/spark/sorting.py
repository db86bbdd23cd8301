"""Rows in the order that a lake sorts by: a file is sorted as a whole, by DuckDB, which spills what it cannot hold.

A file whose rows stand in that order already, which its keys alone tell, is written as it is read. What is sorted notes
where each row came from (converters/parquet/places.py); among equal keys rows keep their order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import duckdb
import numpy as np
import pyarrow as pa

from bridge.model.rewrite import Target
from bridge.model.types import Field
from converters.parquet.order import AFTER, BEFORE, misplaced, order_by
from converters.parquet.sql import identifier
from converters.spark.cut import ROWS_IN, Cut
from converters.spark.writing import failed

__all__ = ["Sorted", "in_order", "key_fields", "with_positions"]

_TABLE = '"bridge:sorted"'


def key_fields(target: Target) -> tuple[Field, ...]:
    """The columns that the keys are of."""
    names = {key.path[0] for key in target.sort}
    return tuple(each for each in target.fields if each.name in names)


def in_order(connection: duckdb.DuckDBPyConnection, keys: Iterable[pa.RecordBatch], target: Target) -> bool:
    """Whether rows, of which these are the columns of the keys, stand in the order of the target."""
    query = f"SELECT 1 FROM pairs WHERE {misplaced(target)} LIMIT 1"
    last: list[pa.RecordBatch] = []
    for batch in keys:
        if not batch.num_rows:
            continue
        rows = pa.Table.from_batches([*last, batch]).combine_chunks()
        last = [batch.slice(batch.num_rows - 1)]
        before, after = rows.slice(0, rows.num_rows - 1), rows.slice(1)
        names = [*(BEFORE + name for name in rows.column_names), *(AFTER + name for name in rows.column_names)]
        connection.register("pairs", pa.table([*before.columns, *after.columns], names=names))
        found = connection.execute(query).fetchone()
        connection.unregister("pairs")
        if found is not None:
            return False
    return True


def with_positions(batch: pa.RecordBatch, field: Field, first: int) -> pa.RecordBatch:
    """A batch whose column of positions counts from `first`."""
    place = batch.schema.get_field_index(field.name)
    counted = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
    return batch.set_column(place, batch.schema.field(place), counted)


class Sorted:
    """Rows in their order in pieces of a number of rows, as Cut gives them in that of the file: at once where one piece
    takes all that there are, as far as is `known`, else from a table that holds them sorted."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, rows: Cut, target: Target, position: Field, known: int | None
    ) -> None:
        self._connection = connection
        self._rows = rows
        self._columns = [identifier(each.name) for each in target.fields]
        self._order = order_by(target, identifier(position.name))
        self._known = known
        self._sample = rows.peek()
        self._taken = 0
        self._count: int | None = None

    def peek(self) -> pa.RecordBatch | None:
        """Some of the rows; None when all are taken."""
        return None if self._count is not None and self._taken >= self._count else self._sample

    def take(self, budget: int) -> str:
        """The rows of a piece, as a relation."""
        if self._count is None and self._known is not None and self._known <= budget:
            self._count = 0
            return f"(SELECT * FROM {self._rows.take(sys.maxsize)}{self._order})"
        if self._count is None:
            self._count = self._sort()
        low = self._taken
        self._taken += budget
        # the names of a table's own columns may be any, rowid among them
        listed = ", ".join(f"c{number} AS {name}" for number, name in enumerate(self._columns))
        return f"(SELECT {listed} FROM {_TABLE} WHERE rowid >= {low} AND rowid < {self._taken})"

    def _sort(self) -> int:
        listed = ", ".join(f"{name} AS c{number}" for number, name in enumerate(self._columns))
        query = f"CREATE TABLE {_TABLE} AS SELECT {listed} FROM {self._rows.take(sys.maxsize)}{self._order}"
        try:
            self._connection.execute(query)
            [(count,)] = self._connection.execute(f"SELECT count(*) FROM {_TABLE}").fetchall()
        except duckdb.Error as error:
            raise failed("rows cannot be sorted", error) from error
        finally:
            self._connection.unregister(ROWS_IN)
        return int(count)
