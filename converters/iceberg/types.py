"""Iceberg types and default values in the neutral vocabulary (Iceberg specification, "Schemas and Data Types")."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from bridge.model.schema import Schema
from bridge.model.types import (
    ColumnType,
    Decimal,
    Default,
    Field,
    FieldId,
    Fixed,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    NestedDefault,
    Struct,
    Time,
    Timestamp,
    Unit,
    UnknownType,
)

__all__ = ["default_of", "schema_of", "type_of", "word"]

BY_NAME: dict[str, ColumnType] = {
    "boolean": Leaf.BOOLEAN,
    "int": Leaf.INT32,
    "long": Leaf.INT64,
    "float": Leaf.FLOAT32,
    "double": Leaf.FLOAT64,
    "date": Leaf.DATE,
    "time": Time(Unit.MICRO),
    "timestamp": Timestamp(Unit.MICRO, utc=False),
    "timestamptz": Timestamp(Unit.MICRO, utc=True),
    "timestamp_ns": Timestamp(Unit.NANO, utc=False),
    "timestamptz_ns": Timestamp(Unit.NANO, utc=True),
    "string": Leaf.STRING,
    "uuid": Leaf.UUID,
    "binary": Leaf.BINARY,
    "unknown": Leaf.NOTHING,
    "variant": Leaf.VARIANT,
}
NAMES: dict[ColumnType, str] = {type_: name for name, type_ in BY_NAME.items()}

_RESERVED = 2_147_483_447
_DECIMAL = re.compile(r"^decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)$")
_FIXED = re.compile(r"^fixed\[\s*(\d+)\s*\]$")
_GEO = re.compile(r"^(geometry|geography)(?:\((.*)\))?$")


def type_of(stored: Any) -> ColumnType:
    """The type of a schema's JSON: a name, or an object for struct, list and map."""
    if isinstance(stored, str):
        return _primitive(stored)
    match stored.get("type"):
        case "struct":
            return Struct(tuple(_field(each) for each in stored["fields"]))
        case "list":
            return ListOf(
                _level(stored["element-id"], "element", stored["element"], bool(stored.get("element-required")))
            )
        case "map":
            return MapOf(
                _level(stored["key-id"], "key", stored["key"], True),
                _level(stored["value-id"], "value", stored["value"], bool(stored.get("value-required"))),
            )
        case other:
            return UnknownType(str(other))


def _primitive(name: str) -> ColumnType:
    if name in BY_NAME:
        return BY_NAME[name]
    if (found := _DECIMAL.match(name)) and 0 < int(found.group(1)) <= 38 >= int(found.group(2)):
        return Decimal(int(found.group(1)), int(found.group(2)))
    if found := _FIXED.match(name):
        return Fixed(int(found.group(1)))
    if found := _GEO.match(name):
        return Geo(found.group(1), found.group(2) or "")
    return UnknownType(name)


def _id(stored: Any) -> FieldId:
    """Ids above are reserved for metadata columns (specification, "Reserved Field IDs")."""
    number = int(stored)
    if not 0 <= number < _RESERVED:
        raise ValueError(f"the field id {stored} is out of range")
    return FieldId(number)


def _level(id_: int, name: str, stored: Any, required: bool) -> Field:
    return Field(_id(id_), name, type_of(stored), required)


def _field(stored: Mapping[str, Any]) -> Field:
    type_ = type_of(stored["type"])
    if not isinstance(stored["name"], str):
        raise ValueError(f"the column name {stored['name']!r} is not a text")
    return Field(
        id=_id(stored["id"]),
        name=stored["name"],
        type=type_,
        required=bool(stored.get("required", False)),
        doc=str(stored.get("doc") or ""),
        initial_default=default_of(type_, stored.get("initial-default")),
        write_default=default_of(type_, stored.get("write-default")),
    )


def default_of(type_: ColumnType, value: Any) -> Default | None:
    """A default's JSON single value as ISO text, bytes for binary (specification, "JSON single-value
    serialization"); on a struct, list or map it stays JSON."""
    if value is None:
        return None
    match type_:
        case Struct() | ListOf() | MapOf():
            return NestedDefault(json.dumps(value))
        case Leaf.BINARY | Fixed():
            return bytes.fromhex(value)
        case Leaf.BOOLEAN:
            return "true" if value else "false"
        case Timestamp():
            return str(value).replace("T", " ")
        case Leaf.FLOAT32 | Leaf.FLOAT64:
            return repr(float(value))
        case _:
            return str(value)


def schema_of(stored: Mapping[str, Any], id_: int | None = None) -> Schema:
    """A schema object of the metadata file; `id_` stands in where a v1 file gives none."""
    number = stored.get("schema-id", id_ if id_ is not None else 0)
    return Schema(
        int(number),
        tuple(_field(each) for each in stored["fields"]),
        tuple(FieldId(int(each)) for each in stored.get("identifier-field-ids") or ()),
    )


def word(type_: ColumnType, lake: bool = False) -> str:
    """A type for people: Iceberg's name, or the lake's."""
    if type_ in NAMES and not lake:
        return NAMES[type_]
    match type_:
        case Leaf():
            return type_.value
        case Decimal(precision, scale):
            return f"decimal({precision}, {scale})"
        case Timestamp(Unit.MICRO, utc):
            return "timestamptz" if utc else "timestamp"
        case Timestamp(unit, utc):
            return f"timestamp{'tz' if utc else ''}_{unit.value}"
        case Time():
            return "time"
        case Geo(kind, _):
            return kind
        case _:
            return str(type_)
