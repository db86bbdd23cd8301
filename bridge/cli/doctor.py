"""What this installation can do: versions, extensions, optional parts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

from bridge.registry import engine, extensions

__all__ = ["examine"]

Fact = dict[str, str]
_PACKAGES = {"yaml": "PyYAML"}
"""What packages are called whose module has another name."""
_OPTIONAL = {
    "pyspark": ("spark", "rewriting with Spark"),
    "deltalake": ("delta", "Delta tables"),
    "thrift": ("hive", "Hive metastores"),
    "psycopg": ("postgres", "PostgreSQL catalogs"),
    "yaml": ("mirror", "mirror --config"),
    "prometheus_client": ("mirror", "mirror --metrics-file"),
}


def examine() -> dict[str, Fact]:
    """Each part with what was found and, when it is missing, the line that brings it."""
    facts = {"python": _fact(True, sys.version.split()[0])}
    for name in ("duckdb", "pyarrow", "polars", "pyiceberg", "sqlalchemy"):
        facts[name] = _fact(True, importlib.metadata.version(name))
    for name, (ok, found, hint) in extensions().items():
        facts[f"extension {name}"] = _fact(ok, found, hint)
    for module, (extra, use) in _OPTIONAL.items():
        there = importlib.util.find_spec(module) is not None
        found = (
            importlib.metadata.version(_PACKAGES.get(module, module)) if there else f"not installed; needed for {use}"
        )
        facts[module] = _fact(there, found, "" if there else f"pip install 'ducklake-bridge[{extra}]'")
    facts["java"] = _fact(*engine())
    facts["mysql catalogs"] = _fact(False, "DuckDB 1.5.5 cannot write to a lake on MySQL", "use PostgreSQL or SQLite")
    return facts


def _fact(ok: bool, found: str, hint: str = "") -> Fact:
    return {"ok": "yes" if ok else "no", "found": found, "hint": hint}
