"""The one place that quotes identifiers and literals for DuckDB."""

from __future__ import annotations

__all__ = ["identifier", "literal", "qualified"]


def identifier(name: str) -> str:
    """A name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def qualified(*names: str) -> str:
    """A dotted chain of quoted identifiers."""
    return ".".join(identifier(name) for name in names)


def literal(text: str) -> str:
    """A text as a quoted literal."""
    return "'" + text.replace("'", "''") + "'"
