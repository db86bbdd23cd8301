"""Files of a partition as DuckLake 1.5.5 has them: the text of a key's value, and the directory that they lie in."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from bridge.model.rewrite import PartitionKey, Target
from converters.parquet.sql import duckdb_type, identifier, pattern

__all__ = ["below", "key_text", "one_partition", "value_of"]

_CALENDAR = frozenset({"year", "month", "day", "hour"})
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-~.")
_LONGEST = 255
"""Bytes in a directory's name, as file systems have it."""


def key_text(sql: str, key: PartitionKey) -> str:
    """A key's value of a row: `v` and DuckLake's text, `n` for NULL and for what has no calendar part."""
    if key.transform in _CALENDAR:
        sql = f"{key.transform}({sql})"
    elif key.transform == "bucket":
        sql = f"(murmur3_32({sql}) & 2147483647) % {key.count}"
    return f"coalesce('v' || CAST({sql} AS VARCHAR), 'n')"


def value_of(text: str) -> str | None:
    """The value that such a text tells."""
    return text[1:] if text.startswith("v") else None


def one_partition(connection: duckdb.DuckDBPyConnection, local: str, target: Target) -> tuple[str | None, ...]:
    """The key values that all rows of a file share, read from the rows; empty when they differ, and when no catalog
    or no directory can hold them."""
    if not target.partition:
        return ()
    types = {each.name: each.type for each in target.fields}
    texts = [
        key_text(f"CAST({identifier(key.column)} AS {duckdb_type(types[key.column])})", key) for key in target.partition
    ]
    asked = ", ".join(f"min({text}), max({text})" for text in texts)
    query = f"SELECT {asked} FROM read_parquet(?, hive_partitioning = false)"
    [found] = connection.execute(query, [pattern(local)]).fetchall()
    if any(low != high or "\0" in low for low, high in zip(found[::2], found[1::2], strict=True)):
        return ()
    values = tuple(map(value_of, found[::2]))
    parts = below(target, values).split("/")
    return values if all(len(part.encode()) <= _LONGEST for part in parts) else ()


def below(target: Target, values: Sequence[str | None]) -> str:
    """The directory, below the table's, that a lake's own insert would use: DuckDB 1.5.5 cannot compact a partition
    whose files lie in two."""
    if not values or not target.hive:
        return ""
    seen: set[str] = set()
    made = []
    for key, value in zip(target.partition, values, strict=True):
        name = key.column if key.transform == "identity" else key.transform
        if name in seen and key.transform != "identity":
            name = f"{key.transform}_{key.column}"
        seen.add(name)
        made.append(f"{_escaped(name)}={'__HIVE_DEFAULT_PARTITION__' if value is None else _escaped(value)}")
    return "/".join(made)


def _escaped(text: str) -> str:
    """As DuckDB escapes what a directory is called by: every byte but letters, digits and a few marks."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode())
