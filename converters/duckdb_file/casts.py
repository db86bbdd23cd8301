"""The SQL that makes of a source's column what is written: one CAST where DuckDB has it, else level by level."""

from __future__ import annotations

from dataclasses import replace

from duckdb.sqltypes import DuckDBPyType

from bridge.model.types import ColumnType, Decimal, Leaf, ListOf, MapOf, Struct, Time, Timestamp, Unit
from converters.duckdb_file.types import children_of
from converters.parquet.sql import duckdb_type, identifier, literal

__all__ = ["cast", "stored_type"]


def stored_type(type_: ColumnType) -> str:
    """The type that is written, in DuckDB's words. Seconds are microseconds in Parquet, and DuckDB 1.5.5 fails to write
    an infinite TIMESTAMP_S, not an infinite TIMESTAMP."""
    return duckdb_type(_stored(type_))


def _stored(type_: ColumnType) -> ColumnType:
    match type_:
        case Timestamp(Unit.SECOND):
            return Timestamp()
        case Struct(fields):
            return Struct(tuple(replace(each, type=_stored(each.type)) for each in fields))
        case ListOf(element):
            return ListOf(replace(element, type=_stored(element.type)))
        case MapOf(key, value):
            return MapOf(replace(key, type=_stored(key.type)), replace(value, type=_stored(value.type)))
        case _:
            return type_


def cast(sql: str, source: DuckDBPyType, target: ColumnType) -> str:
    """An expression of the source's type as one of the target's."""
    return _cast(sql, source, target, 0)


def _cast(sql: str, source: DuckDBPyType, target: ColumnType, depth: int) -> str:
    if not _is_special(source, target):
        return f"CAST({sql} AS {stored_type(target)})"
    one = f"v{depth}"
    match source.id, target:
        case "bignum", Decimal():
            return f"CAST(CAST({sql} AS VARCHAR) AS {stored_type(target)})"  # DuckDB has no cast of its own
        case "time_ns", Time():
            return f"CAST(CAST({sql} AS VARCHAR) AS TIME)"  # the cast of its own rounds
        case "geometry", Leaf.BINARY:
            return f"ST_AsWKB({sql})"  # there is no cast
        case "time_ns" | "timestamp_ns", Leaf.INT64:
            return f"epoch_ns({sql})"
        case "union", Struct((tag, *fields)):
            members = dict(children_of(source))
            parts = [f"{identifier(tag.name)} := CAST(union_tag({sql}) AS VARCHAR)"]
            for each in fields:
                value = f"union_extract({sql}, {literal(each.name)})"
                parts.append(f"{identifier(each.name)} := {_cast(value, members[each.name], each.type, depth)}")
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"
        case "struct", Struct(inner):
            below = dict(children_of(source))
            parts = [
                f"{identifier(each.name)} := "
                + _cast(f"struct_extract({sql}, {literal(each.name)})", below[each.name], each.type, depth)
                for each in inner
            ]
            return f"CASE WHEN {sql} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"
        case "list" | "array", ListOf(element):
            child = dict(children_of(source))["child"]
            values = sql if source.id == "list" else f"CAST({sql} AS {child}[])"
            return f"list_transform({values}, lambda {one}: {_cast(one, child, element.type, depth + 1)})"
        case "map", MapOf(key, value):
            below = dict(children_of(source))
            keys = f"list_transform(map_keys({sql}), lambda {one}: {_cast(one, below['key'], key.type, depth + 1)})"
            values = (
                f"list_transform(map_values({sql}), lambda {one}: {_cast(one, below['value'], value.type, depth + 1)})"
            )
            return f"CASE WHEN {sql} IS NOT NULL THEN map({keys}, {values}) END"
        case _:
            raise AssertionError(f"{source} as {target}")


def _is_special(source: DuckDBPyType, target: ColumnType) -> bool:
    """Whether DuckDB's own cast would fail, round, or does not exist, at any level."""
    match source.id, target:
        case "bignum", Decimal():
            return True
        case ("time_ns", Time() | Leaf.INT64) | ("timestamp_ns", Leaf.INT64) | ("geometry", Leaf.BINARY):
            return True
        case "union", Struct():
            return True
        case "struct", Struct(fields):
            below = dict(children_of(source))
            return any(_is_special(below[each.name], each.type) for each in fields)
        case "list" | "array", ListOf(element):
            return _is_special(dict(children_of(source))["child"], element.type)
        case "map", MapOf(key, value):
            below = dict(children_of(source))
            return _is_special(below["key"], key.type) or _is_special(below["value"], value.type)
        case _:
            return False
