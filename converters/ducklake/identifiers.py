"""Names in DuckDB's SQL."""

from __future__ import annotations

from converters.parquet.quoting import identifier, literal

__all__ = ["identifier", "literal", "qualified"]


def qualified(*names: str) -> str:
    """A dotted chain of quoted identifiers."""
    return ".".join(identifier(name) for name in names)
