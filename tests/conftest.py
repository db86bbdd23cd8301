"""What several test files are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """A Spark session of ours on two cores, for tests of one xdist group."""
    from converters.spark.session import Engine, SessionOptions

    with Engine(SessionOptions.parse("local[2]")) as engine:
        yield engine.session
