"""Column types, wide enough for every format, and the fields that carry their ids."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType, TypeAlias

__all__ = [
    "ColumnType",
    "Decimal",
    "Default",
    "Expression",
    "Field",
    "FieldId",
    "Fixed",
    "Geo",
    "Leaf",
    "ListOf",
    "MapOf",
    "NestedDefault",
    "Struct",
    "Time",
    "Timestamp",
    "Unit",
    "UnknownType",
    "children",
]

FieldId = NewType("FieldId", int)


class Leaf(Enum):
    """Types without parameters."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    INT128 = "int128"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    UINT128 = "uint128"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DATE = "date"
    TIMETZ = "timetz"
    INTERVAL = "interval"
    STRING = "string"
    BINARY = "binary"
    UUID = "uuid"
    JSON = "json"
    VARIANT = "variant"
    NOTHING = "nothing"
    """A type with no value but NULL (Iceberg's `unknown`)."""


class Unit(Enum):
    """The resolution of a time or timestamp."""

    SECOND = "s"
    MILLI = "ms"
    MICRO = "us"
    NANO = "ns"


@dataclass(frozen=True, slots=True)
class Decimal:
    """An exact decimal; `scale` digits behind the point of at most `precision` digits."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Binary values that all have `length` bytes."""

    length: int


@dataclass(frozen=True, slots=True)
class Time:
    """A time of day without a zone."""

    unit: Unit = Unit.MICRO


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time: an instant when `utc`, else a local date and time."""

    unit: Unit = Unit.MICRO
    utc: bool = False


@dataclass(frozen=True, slots=True)
class Geo:
    """Geometry (planar) or geography (on the ellipsoid), with the coordinate system's name as stored."""

    kind: str
    crs: str = ""


@dataclass(frozen=True, slots=True)
class UnknownType:
    """A type that the source names and we do not know; it always ends as a finding."""

    text: str


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list; its element is a field of its own, with id and nullability."""

    element: Field


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map; key and value are fields of their own."""

    key: Field
    value: Field


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of named fields."""

    fields: tuple[Field, ...]


ColumnType: TypeAlias = Leaf | Decimal | Fixed | Time | Timestamp | Geo | UnknownType | ListOf | MapOf | Struct


@dataclass(frozen=True, slots=True)
class NestedDefault:
    """A default on a struct, list or map, as the source's JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class Expression:
    """A default that is computed for each row, as DuckDB's SQL without the name of a catalog."""

    text: str


Default: TypeAlias = str | bytes | NestedDefault | Expression
"""A default value as ISO text (`12.30`, `2024-01-31 10:34:56+00`, `true`), bytes for binary types."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a level inside one; found by `id`, the name is for people. None: no default."""

    id: FieldId
    name: str
    type: ColumnType
    required: bool = False
    doc: str = ""
    initial_default: Default | None = None
    write_default: Default | None = None


def children(type_: ColumnType) -> tuple[Field, ...]:
    """The fields one level below a type: none for a leaf."""
    if isinstance(type_, Struct):
        return type_.fields
    if isinstance(type_, ListOf):
        return (type_.element,)
    if isinstance(type_, MapOf):
        return (type_.key, type_.value)
    return ()
