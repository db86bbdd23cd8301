"""A target's sort keys in DuckDB's SQL: rows put into their order, and told whether they stand in it."""

from __future__ import annotations

from collections.abc import Container

from bridge.model.rewrite import SortKey, Target
from bridge.model.types import Leaf
from converters.parquet.sql import identifier, literal

__all__ = ["AFTER", "BEFORE", "misplaced", "order_by"]

BEFORE, AFTER = "before:", "after:"
"""How the names of columns begin that hold the keys of a row, and of the one that comes after it."""


def order_by(target: Target, *last: str) -> str:
    """The clause, with further keys at the end; empty for a target that is not sorted."""
    floating = {each.name for each in target.fields if each.type in (Leaf.FLOAT32, Leaf.FLOAT64)}
    keys = [
        _sorted_by(key, floating)
        + (" DESC" if key.descending else " ASC")
        + (" NULLS FIRST" if key.nulls_first else " NULLS LAST")
        for key in target.sort
    ]
    return f" ORDER BY {', '.join([*keys, *last])}" if keys else ""


def _sorted_by(key: SortKey, floating: Container[str]) -> str:
    """DuckDB gives a column that it sorts by as the key has it, which keeps no sign of zero; a sum is no column."""
    return _value(key, "") + (" + 0" if key.path[0] in floating else "")


def _value(key: SortKey, prefix: str) -> str:
    return identifier(prefix + key.path[0]) + "".join(f"[{literal(name)}]" for name in key.path[1:])


def misplaced(target: Target) -> str:
    """The condition on BEFORE and AFTER columns that two rows do not follow each other in the order of the keys."""
    said = "false"
    for key in reversed(target.sort):
        before, after = _value(key, BEFORE), _value(key, AFTER)
        null, value = (after, before) if key.nulls_first else (before, after)
        beyond = f"{before} {'<' if key.descending else '>'} {after}"
        wrong = f"coalesce({beyond}, {null} IS NULL AND {value} IS NOT NULL)"
        said = f"({wrong} OR ({before} IS NOT DISTINCT FROM {after} AND {said}))"
    return said
