"""A stream of batches in pieces of a number of rows, each as a relation that DuckDB reads once."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa

from converters.spark.ahead import stream

__all__ = ["ROWS_IN", "Cut"]

ROWS_IN = "rows_in"
"""What a piece is registered as."""


class Cut:
    """Rows in the order in which they come."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, batches: Iterator[pa.RecordBatch], schema: pa.Schema
    ) -> None:
        self._connection = connection
        self._batches = batches
        self._schema = schema
        self._held: pa.RecordBatch | None = None

    def peek(self) -> pa.RecordBatch | None:
        """The rows that come next; None at the end."""
        while self._held is None or not self._held.num_rows:
            self._held = next(self._batches, None)
            if self._held is None:
                return None
        return self._held

    def take(self, budget: int) -> str:
        """The rows of a piece, as a relation."""
        self._connection.register(ROWS_IN, stream(self._schema, self._piece(budget)))
        return ROWS_IN

    def _piece(self, budget: int) -> Iterator[pa.RecordBatch]:
        while budget > 0 and (held := self.peek()) is not None:
            count = min(budget, held.num_rows)
            self._held = held.slice(count)
            budget -= count
            yield held.slice(0, count)
