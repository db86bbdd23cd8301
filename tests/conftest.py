"""What several test files are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """A Spark session of ours on two cores, for tests of one xdist group."""
    from converters.spark.session import Engine, SessionOptions

    with Engine(SessionOptions.parse("local[2]")) as engine:
        yield engine.session


@pytest.fixture
def tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark is given runs in this process, task after task, for tests of what comes out."""
    from converters.spark.session import Engine

    def each(_: Engine, count: int, work: Any, __: str, ___: str) -> list[tuple[object, ...]]:
        rows = work(iter([pa.RecordBatch.from_pydict({"id": [number]}) for number in range(count)]))
        return [tuple(row.values()) for batch in rows for row in batch.to_pylist()]

    monkeypatch.setattr(Engine, "each", each)
    monkeypatch.setattr(Engine, "session", None)
