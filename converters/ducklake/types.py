"""Column types by their names in DuckLake 1.0 catalogs (specification, "Data Types"; as DuckDB 1.5.5 loads them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bridge.model.types import (
    ColumnType,
    Decimal,
    Field,
    Fixed,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    Unit,
    UnknownType,
)

__all__ = ["TYPE_CHOICES", "duckdb_type", "is_renamed", "postgres_type", "sqlite_type", "stored_fields", "type_name"]

BY_TYPE: dict[ColumnType, str] = {
    Leaf.BOOLEAN: "boolean",
    Leaf.INT8: "int8",
    Leaf.INT16: "int16",
    Leaf.INT32: "int32",
    Leaf.INT64: "int64",
    Leaf.INT128: "int128",
    Leaf.UINT8: "uint8",
    Leaf.UINT16: "uint16",
    Leaf.UINT32: "uint32",
    Leaf.UINT64: "uint64",
    Leaf.UINT128: "uint128",
    Leaf.FLOAT32: "float32",
    Leaf.FLOAT64: "float64",
    Leaf.DATE: "date",
    Leaf.TIMETZ: "timetz",
    Leaf.INTERVAL: "interval",
    Leaf.STRING: "varchar",
    Leaf.BINARY: "blob",
    Leaf.UUID: "uuid",
    Leaf.JSON: "json",
    Leaf.VARIANT: "variant",
    Time(Unit.MICRO): "time",
    Time(Unit.NANO): "time_ns",
    Timestamp(Unit.MICRO): "timestamp",
    Timestamp(Unit.SECOND): "timestamp_s",
    Timestamp(Unit.MILLI): "timestamp_ms",
    Timestamp(Unit.NANO): "timestamp_ns",
    Timestamp(Unit.MICRO, utc=True): "timestamptz",
}
NAMES: dict[str, ColumnType] = {name: type_ for type_, name in BY_TYPE.items()}

DUCKDB_NAMES = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "int128": "HUGEINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "uint128": "UHUGEINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "timetz": "TIME WITH TIME ZONE",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_us": "TIMESTAMP",
}
"""Where DuckDB calls a type otherwise than the catalog; the rest is the same word in capitals."""

TYPE_CHOICES: Mapping[str, tuple[str, ...]] = {"timestamptz_ns": ("timestamp_ns", "timestamptz")}
"""Types without a counterpart that --type-map may map, and to what."""


def type_name(type_: ColumnType, chosen: Mapping[str, str]) -> str | None:
    """The catalog's word for a type, None when it has none; `chosen` is the user's --type-map."""
    match type_:
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})" if precision <= 38 else None
        case Fixed():
            return "blob"
        case Leaf.NOTHING:
            return "int32"
        case Timestamp(Unit.NANO, True):
            return chosen.get("timestamptz_ns")
        case Struct():
            return "struct"
        case ListOf():
            return "list"
        case MapOf():
            return "map"
        case Geo("planar", ""):
            return "geometry"
        case Geo() | UnknownType():
            return None
        case _:
            return BY_TYPE.get(type_)


def is_renamed(type_: ColumnType) -> str:
    """What a type is called at its source when the catalog keeps its values under another name, else empty."""
    match type_:
        case Fixed(length):
            return f"fixed[{length}]"
        case Leaf.NOTHING:
            return "unknown"
        case Timestamp(Unit.NANO, True):
            return "timestamptz_ns"
        case _:
            return ""


def stored_fields(fields: tuple[Field, ...], chosen: Mapping[str, str]) -> tuple[Field, ...]:
    """The fields as files of the lake's own hold them: under the types that the user chose."""
    return tuple(replace(each, type=_stored(each.type, chosen)) for each in fields)


def _stored(type_: ColumnType, chosen: Mapping[str, str]) -> ColumnType:
    match type_:
        case Struct(fields):
            return Struct(stored_fields(fields, chosen))
        case ListOf(element):
            return ListOf(*stored_fields((element,), chosen))
        case MapOf(key, value):
            return MapOf(*stored_fields((key, value), chosen))
        case Timestamp(Unit.NANO, True):
            return NAMES.get(chosen.get("timestamptz_ns", ""), type_)
        case _:
            return type_


_SQLITE_INTEGERS = frozenset({"boolean", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})


def sqlite_type(name: str) -> str:
    """The type of an inlined column in an SQLite catalog, as DuckDB 1.5.5 creates it."""
    return "BIGINT" if name in _SQLITE_INTEGERS else "BLOB" if name == "blob" else "VARCHAR"


_POSTGRES = {
    **dict.fromkeys(("int8", "int16"), "SMALLINT"),
    **dict.fromkeys(("int32", "uint8", "uint16"), "INTEGER"),
    **dict.fromkeys(("int64", "uint32"), "BIGINT"),
    **dict.fromkeys(("varchar", "json", "blob"), "BYTEA"),
    "boolean": "BOOLEAN",
    "float32": "REAL",
    "float64": "DOUBLE PRECISION",
    "time": "TIME",
    "timetz": "TIME WITH TIME ZONE",
    "interval": "INTERVAL",
    "uuid": "UUID",
}


def postgres_type(name: str) -> str:
    """The type of an inlined column in a PostgreSQL catalog, as DuckDB 1.5.5 creates it: text where it has no other."""
    return f"NUMERIC{name.removeprefix('decimal')}" if name.startswith("decimal") else _POSTGRES.get(name, "VARCHAR")


def duckdb_type(name: str) -> str:
    """DuckDB's own spelling of a leaf type's catalog name."""
    return DUCKDB_NAMES.get(name, name.upper())
