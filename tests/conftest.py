"""What several test files are given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

# each JVM lives for a few statements: what the second compiler makes of them is never worth its time
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

ONE_PROCESS = {
    *("test_cases", "test_catalogs", "test_judge", "test_lake_source", "test_name_mapping", "test_postgres"),
    *("test_publish", "test_spark_formats", "test_spark_values", "test_type_matrix"),
}
"""Test files that make something expensive once, which every process that runs one of their tests would make again."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest-xdist reads the groups."""
    for item in items:
        if item.path.stem in ONE_PROCESS:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if item.get_closest_marker("exhaustive"):  # an -m of one's own takes the place of "not exhaustive"
            item.add_marker(pytest.mark.slow)


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
