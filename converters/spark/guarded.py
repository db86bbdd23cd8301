"""Batches on their way into DuckDB: counted, and with our errors kept, which would come back from it as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from bridge.errors import BridgeError

__all__ = ["Guarded"]


class Guarded:
    """Iterates over batches once; `count` is the rows so far."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: BridgeError | None = None
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.count += batch.num_rows
                yield batch
        except BridgeError as error:
            self._error = error
            raise

    def reraise(self) -> None:
        """Raise what was kept, if there is something."""
        if self._error is not None:
            raise self._error
