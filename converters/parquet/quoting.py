"""The one place that quotes identifiers and literals for DuckDB."""

from __future__ import annotations

__all__ = ["identifier", "literal"]


def identifier(name: str) -> str:
    """A name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a quoted literal."""
    return "'" + text.replace("'", "''") + "'"
