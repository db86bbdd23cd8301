"""Batches on their way into DuckDB: read by a thread of their own while it writes, counted, and with errors kept, which
would come back from it as text.

DuckDB is given a bare Arrow stream, which it asks for a batch when it needs one. The scanner that pyarrow puts before a
reader or a table has threads too, but they run ahead by up to a gigabyte, and they cost processor time of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from threading import Condition, Thread
from types import TracebackType
from typing import Any

import pyarrow as pa

__all__ = ["Ahead", "stream"]

_BYTES = 32 << 20


def stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Any:
    """What DuckDB reads once, as a relation; each batch is taken when it is asked for."""
    return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__()


class Ahead:
    """Iterates over batches once; `count` is the rows that were given out. Not more than 32 MB and a batch wait.

    A context: leaving it ends the reading, however much of it is done.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.count = 0
        self._batches = batches
        self._turn = Condition()
        self._waiting: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._over = self._left = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._read, name="reading ahead", daemon=True)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._turn:
            self._left = True
            self._turn.notify_all()
        self._thread.join()

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._turn:
            self._turn.wait_for(lambda: self._waiting or self._over)
            if not self._waiting:
                raise self._error or StopIteration
            batch = self._waiting.popleft()
            self._bytes -= batch.nbytes
            self._turn.notify_all()
        self.count += batch.num_rows
        return batch

    def reraise(self) -> None:
        """Raise the error that reading ended with, if it did."""
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            for batch in self._batches:
                with self._turn:
                    self._turn.wait_for(lambda: self._left or self._bytes <= _BYTES)
                    if self._left:
                        return
                    self._waiting.append(batch)
                    self._bytes += batch.nbytes
                    self._turn.notify_all()
        except BaseException as error:  # noqa: BLE001  # it is raised where the batches are taken
            self._error = error
        finally:
            with self._turn:
                self._over = True
                self._turn.notify_all()
