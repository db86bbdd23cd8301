"""Batches on their way into DuckDB: counted, paced, and with our errors kept, which would come back from it as text.

DuckDB takes Arrow streams through pyarrow's scanner, whose own thread runs ahead of the writer by up to a gigabyte. So
a batch is only handed out when little enough of those before it is still held.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from bridge.errors import BridgeError

__all__ = ["Guarded"]

_AHEAD = 64 << 20
_PATIENCE, _NAP = 2.0, 0.001


class Guarded:
    """Iterates over batches once; `count` is the rows so far. Without `ahead` nobody asks for more than is used up."""

    def __init__(self, batches: Iterable[pa.RecordBatch], ahead: bool = True) -> None:
        self._batches = batches
        self._ahead = ahead
        self._error: BridgeError | None = None
        self._pool = pa.default_memory_pool()
        self._limit = self._pool.bytes_allocated() + _AHEAD
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.count += batch.num_rows
                self._limit = max(self._limit, 4 * batch.nbytes)
                if self._ahead:
                    self._wait()
                yield batch
        except BridgeError as error:
            self._error = error
            raise

    def _wait(self) -> None:
        """Until what was handed out before is used up; if that takes long, others hold the memory: let more through."""
        until = time.monotonic() + _PATIENCE
        while self._pool.bytes_allocated() > self._limit:
            if time.monotonic() > until:
                self._limit *= 2
                return
            time.sleep(_NAP)

    def reraise(self) -> None:
        """Raise what was kept, if there is something."""
        if self._error is not None:
            raise self._error
