"""DuckDB's extensions: from their wheels when installed, else from DuckDB's own store."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import duckdb

from bridge.errors import Unreachable
from converters.parquet.quoting import literal

__all__ = ["load", "packaged"]


def packaged(name: str) -> Path | None:
    """The extension file that the wheel duckdb-extension-NAME installed, if it is there."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob(f"extensions/*/{name}.duckdb_extension"))), None)


def load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load an extension; Unreachable says which package brings it."""
    path = packaged(name)
    try:
        if path is not None:
            connection.execute(f"LOAD {literal(str(path))}")
            return
        connection.execute(f"INSTALL {name}")
        connection.execute(f"LOAD {name}")
    except duckdb.Error as error:
        raise Unreachable(
            f"the DuckDB extension {name} cannot be loaded: {str(error).splitlines()[0]}",
            hint=f"pip install duckdb-extension-{name.replace('_', '-')}=={duckdb.__version__}",
        ) from error
