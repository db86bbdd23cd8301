"""Whether a file's columns read as the table's types without a cast that changes values (as DuckDB 1.5.5 casts)."""

from __future__ import annotations

import re

from bridge.model.schema import Schema
from bridge.model.types import (
    ColumnType,
    Decimal,
    Field,
    FieldId,
    Fixed,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    Unit,
)
from converters.parquet.footer import Column, Footer

__all__ = ["misread"]

_INT = re.compile(r"Int\(bitWidth=(\d+), isSigned=(true|false)\)")
_DECIMAL = re.compile(r"Decimal\(precision=(\d+), scale=(\d+)\)")
_TIMESTAMP = re.compile(r"Timestamp\(isAdjustedToUTC=(true|false), timeUnit=(\w+)")
_TIME = re.compile(r"Time\(isAdjustedToUTC=(true|false), timeUnit=(\w+)")
_UNITS = {"milliseconds": Unit.MILLI, "microseconds": Unit.MICRO, "nanoseconds": Unit.NANO}
_RANK = {Unit.SECOND: 0, Unit.MILLI: 1, Unit.MICRO: 2, Unit.NANO: 3}
_BITS = {Leaf.INT32: 32, Leaf.INT64: 64}


def misread(footer: Footer, schema: Schema) -> list[str]:
    """One line for each column that the file holds in a form that would read differently; empty when none.

    Columns are matched by field id at every level; what the file lacks is not an error, nor what only the file has.
    """
    said: list[str] = []
    by_top: dict[int, list[Column]] = {}
    for column in footer.columns:
        if column.ids[0] is not None:
            by_top.setdefault(column.ids[0], []).append(column)
    for field in schema.fields:
        columns = by_top.get(field.id, [])
        if field.type is Leaf.VARIANT and columns and columns[0].path[0] in footer.variants:
            continue
        said += _check(field, columns, 0, (field.name,))
    return said


def _check(field: Field, columns: list[Column], depth: int, path: tuple[str, ...]) -> list[str]:
    if not columns:
        return []
    name = ".".join(path)
    match field.type:
        case Leaf.VARIANT:
            return [f"{name}: the file's group is not annotated as a variant"]
        case Struct(fields):
            return [
                line
                for child in fields
                for line in _check(child, _below(columns, child.id, depth + 1), depth + 1, (*path, child.name))
            ]
        case ListOf(element):
            return _nested(field, (element,), columns, depth, path)
        case MapOf(key, value):
            return _nested(field, (key, value), columns, depth, path)
        case type_:
            column = columns[0]
            if len(columns) > 1 or len(column.ids) != depth + 1:
                return [f"{name}: the file holds a nested column"]
            return [] if _reads(type_, column) else [f"{name}: {_told(column)} for {_name(type_)}"]


def _nested(
    field: Field, levels: tuple[Field, ...], columns: list[Column], depth: int, path: tuple[str, ...]
) -> list[str]:
    name = ".".join(path)
    if any(len(column.ids) == depth + 1 for column in columns):
        return [f"{name}: the file holds a plain column"]
    if not all(column.standard for column in columns):
        return [f"{name}: the file's list or map layout is not the standard one"]
    if any(column.ids[depth + 1] is None for column in columns):
        return [f"{name}: no field id on the level below"]
    said: list[str] = []
    for level in levels:
        below = _below(columns, level.id, depth + 1)
        if not below:
            said.append(f"{name}: field id {level.id} is not in the file")
        said += _check(level, below, depth + 1, (*path, level.name))
    return said


def _below(columns: list[Column], id_: FieldId, depth: int) -> list[Column]:
    return [column for column in columns if len(column.ids) > depth and column.ids[depth] == id_]


def _told(column: Column) -> str:
    return column.physical if column.logical == "None" else f"{column.physical} {column.logical.split(', is_from')[0]}"


def _name(type_: ColumnType) -> str:
    return type_.value if isinstance(type_, Leaf) else str(type_)


def _reads(type_: ColumnType, column: Column) -> bool:
    physical, logical = column.physical, column.logical
    plain = logical == "None"
    match type_:
        case Leaf.BOOLEAN:
            return physical == "BOOLEAN"
        case Leaf.INT32 | Leaf.INT64:
            found = _INT.match(logical)
            bits = {"INT32": 32, "INT64": 64}.get(physical, 128)
            if found:
                bits = int(found.group(1)) + (found.group(2) == "false")
            return (plain or bool(found)) and bits <= _BITS[type_]
        case Leaf.FLOAT32:
            return physical == "FLOAT"
        case Leaf.FLOAT64:
            return physical in ("FLOAT", "DOUBLE")
        case Leaf.DATE:
            return physical == "INT32" and logical == "Date"
        case Decimal(precision, scale):
            found = _DECIMAL.match(logical)
            return bool(found) and int(found.group(1)) <= precision and int(found.group(2)) == scale  # type: ignore[union-attr]  # bool(found)
        case Leaf.STRING:
            return physical == "BYTE_ARRAY" and logical in ("String", "Enum", "JSON")
        case Leaf.BINARY:
            return physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and plain
        case Fixed(length):
            return physical == "FIXED_LEN_BYTE_ARRAY" and plain and column.length == length
        case Leaf.UUID:
            return physical == "FIXED_LEN_BYTE_ARRAY" and column.length == 16 and logical in ("UUID", "None")
        case Time(unit):
            found = _TIME.match(logical)
            return bool(found) and _fits(found.group(2), unit)  # type: ignore[union-attr]  # bool(found)
        case Timestamp(unit, utc):
            if physical == "INT96":
                # a local time to DuckDB: as an instant it would follow the session's time zone
                return unit is not Unit.NANO and not utc
            found = _TIMESTAMP.match(logical)
            return bool(found) and (found.group(1) == "true") == utc and _fits(found.group(2), unit)  # type: ignore[union-attr]  # bool(found)
        case _:
            return False


def _fits(stored: str, unit: Unit) -> bool:
    return stored in _UNITS and _RANK[_UNITS[stored]] <= _RANK[unit]
