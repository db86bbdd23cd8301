"""DuckDB without its progress bar, which it prints to standard output where answers are expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import duckdb

__all__ = ["connect"]

_Setting: TypeAlias = "str | bool | int | float | list[str]"


def connect(config: Mapping[str, _Setting] | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that prints nothing."""
    connection = duckdb.connect(config=dict(config or {}))
    connection.execute("SET enable_progress_bar = false")
    return connection
