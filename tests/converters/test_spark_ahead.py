"""Batches read ahead of DuckDB: few of them wait, errors arrive as they were, and nothing reads on for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from bridge.errors import Missing
from converters.spark.ahead import Ahead, stream

BATCH = pa.record_batch({"v": pa.array(np.arange(1 << 19))})  # 4 MB


def reading() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "reading ahead"]


def test_few_batches_wait_and_reading_ends_with_the_taking() -> None:
    asked = []

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            asked.append(1)
            yield BATCH

    with Ahead(endless()) as rows:
        next(rows)
        last = 0
        while len(asked) > last:
            last = len(asked)
            time.sleep(0.3)
        assert 3 < len(asked) <= 2 + (32 << 20) // BATCH.nbytes + 1
        with duckdb.connect() as connection:
            connection.register("v", stream(BATCH.schema, rows))
            assert connection.execute("SELECT v FROM v LIMIT 1").fetchall() == [(0,)]
        assert reading()
    assert not reading() and rows.count < 50 * BATCH.num_rows


@pytest.mark.parametrize("threads", [1, 4])
def test_every_row_arrives_in_order_or_the_error_as_it_was(threads: int) -> None:
    def broken(good: int, error: Exception) -> Iterator[pa.RecordBatch]:
        yield from [BATCH] * good
        raise error

    with duckdb.connect(config={"threads": str(threads)}) as connection:
        with Ahead([BATCH] * 20) as rows:
            connection.register("v", stream(BATCH.schema, rows))
            found = connection.execute("SELECT v FROM v").fetchnumpy()["v"]
        assert (found.reshape(20, -1) == np.arange(1 << 19)).all() and rows.count == len(found)
        for good, error in ((0, Missing("data file x")), (20, Missing("data file x")), (1, MemoryError("data file x"))):
            with pytest.raises(type(error), match="data file x"), Ahead(broken(good, error)) as rows:
                connection.register("v", stream(BATCH.schema, rows))
                try:
                    connection.execute("CREATE OR REPLACE TABLE t AS FROM v")
                except duckdb.Error:
                    rows.reraise()
    assert not reading()
