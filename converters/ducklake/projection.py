"""Columns found by their field ids at every level, as DuckDB's SQL: rows of an older shape under a newer schema.

What is not there is the field's initial default, inside structs too; everything is cast to the field's type. JSON is
given as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.errors import Blocked
from bridge.model.types import ColumnType, Default, Field, Geo, Leaf, ListOf, MapOf, NestedDefault, Struct
from converters.ducklake.columns import default_text
from converters.ducklake.identifiers import identifier, literal
from converters.ducklake.types import duckdb_type, type_name

__all__ = ["Level", "projected", "type_sql"]


@dataclass(frozen=True, slots=True)
class Level:
    """A column or a level inside one, as rows hold it; those of lists and maps stand in their order."""

    id: int | None
    name: str
    below: tuple[Level, ...] = ()


def projected(fields: Sequence[Field], levels: Sequence[Level]) -> list[tuple[Field, str]]:
    """For each field the expression that gives its value from columns of these names."""
    held = {each.id: each for each in levels}
    made = []
    for field in fields:
        level = held.get(int(field.id))
        sql = _absent(field) if level is None else _present(field, level, identifier(level.name), 0)
        made.append((field, f"CAST({sql} AS {type_sql(field.type)})"))
    return made


def _absent(field: Field) -> str:
    default: Default | None = field.initial_default
    text = None if isinstance(default, NestedDefault) else default_text(default)
    return "NULL" if text is None else f"CAST({literal(text)} AS {type_sql(field.type)})"


def _present(field: Field, level: Level, sql: str, depth: int) -> str:
    match field.type:
        case Struct(fields):
            held = {each.id: each for each in level.below}
            parts = []
            for each in fields:
                below = held.get(int(each.id))
                value = (
                    _absent(each)
                    if below is None
                    else _present(each, below, f"struct_extract({sql}, {literal(below.name)})", depth)
                )
                parts.append(f"{identifier(each.name)} := CAST({value} AS {type_sql(each.type)})")
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"
        case ListOf(element):
            one = f"e{depth}"
            inner = _present(element, level.below[0], one, depth + 1)
            return f"list_transform({sql}, lambda {one}: CAST({inner} AS {type_sql(element.type)}))"
        case MapOf(key, value):
            one = f"e{depth}"
            first = _present(key, level.below[0], f"{one}.key", depth + 1)
            second = _present(value, level.below[1], f"{one}.value", depth + 1)
            entry = (
                f"struct_pack(key := CAST({first} AS {type_sql(key.type)}), "
                f"value := CAST({second} AS {type_sql(value.type)}))"
            )
            return f"map_from_entries(list_transform(map_entries({sql}), lambda {one}: {entry}))"
        case Leaf.JSON:
            # as the lake shows values of an older type; a text that is no JSON, which it refuses to show, stays
            return f"coalesce(CAST(TRY_CAST({sql} AS JSON) AS VARCHAR), CAST({sql} AS VARCHAR))"
        case _:
            return sql


def type_sql(type_: ColumnType) -> str:
    """A type in DuckDB's SQL, as it is given."""
    match type_:
        case Struct(fields):
            return f"STRUCT({', '.join(f'{identifier(each.name)} {type_sql(each.type)}' for each in fields)})"
        case ListOf(element):
            return f"{type_sql(element.type)}[]"
        case MapOf(key, value):
            return f"MAP({type_sql(key.type)}, {type_sql(value.type)})"
        case Geo():
            return "GEOMETRY"
        case Leaf.JSON:
            return "VARCHAR"
        case _:
            name = type_name(type_, {})
            if name is None:
                raise Blocked(f"type {type_} has no counterpart in DuckDB", code="type-unsupported")
            return duckdb_type(name)
