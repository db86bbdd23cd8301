"""DuckDB with the extensions a lake needs: from their wheels when installed, else from DuckDB's own store."""

from __future__ import annotations

import duckdb

from bridge.errors import Unreachable
from converters.parquet import quiet
from converters.parquet.extensions import load, packaged

__all__ = ["connect", "examine", "load", "needed", "packaged"]

_USES = {
    "ducklake": "reading lakes",
    "sqlite_scanner": "SQLite catalogs",
    "postgres_scanner": "PostgreSQL catalogs",
    "httpfs": "object stores",
}
_EXTRAS = {"postgres_scanner": "postgres", "httpfs": "s3"}
_BACKENDS = {"sqlite": ("sqlite_scanner",), "postgres": ("postgres_scanner",)}


def needed(backend: str) -> list[str]:
    """The extensions that a lake on a backend takes."""
    return ["ducklake", *_BACKENDS.get(backend, ())]


def connect(*names: str) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB in UTC with the extensions loaded."""
    connection = quiet.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in names:
        load(connection, name)
    return connection


def _installed(name: str) -> bool:
    """Whether an extension is there, without fetching it."""
    if packaged(name) is not None:
        return True
    query = "SELECT installed FROM duckdb_extensions() WHERE extension_name = ?"
    return (True,) in quiet.connect().execute(query, [name]).fetchall()


def examine() -> dict[str, tuple[bool, str, str]]:
    """Whether each extension that a lake may need loads, what was found, and the line that brings it."""
    found = {}
    for name, use in _USES.items():
        if name in _EXTRAS and not _installed(name):
            found[name] = (False, f"not installed; needed for {use}", f"pip install 'ducklake-bridge[{_EXTRAS[name]}]'")
            continue
        try:
            connect(name).close()
        except Unreachable as error:
            found[name] = (False, f"{error.message}; needed for {use}", error.hint)
        else:
            found[name] = (True, f"loads from {'its wheel' if packaged(name) else 'the store'}, for {use}", "")
    return found
