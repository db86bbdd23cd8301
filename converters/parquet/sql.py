"""What a lake's Parquet is written with: types as Arrow and in DuckDB's SQL, field ids for COPY, quoting."""

from __future__ import annotations

import pyarrow as pa

from bridge.errors import Blocked
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
)
from converters.parquet.quoting import identifier, literal

__all__ = ["arrow_type", "duckdb_type", "field_ids", "identifier", "literal", "pattern", "written"]

# as DuckDB 1.5.5 writes a lake's types (tests/converters/test_spark_task.py reads every one back)
_LEAVES: dict[ColumnType, tuple[pa.DataType, str]] = {
    Leaf.BOOLEAN: (pa.bool_(), "BOOLEAN"),
    Leaf.INT8: (pa.int8(), "TINYINT"),
    Leaf.INT16: (pa.int16(), "SMALLINT"),
    Leaf.INT32: (pa.int32(), "INTEGER"),
    Leaf.INT64: (pa.int64(), "BIGINT"),
    Leaf.UINT8: (pa.uint8(), "UTINYINT"),
    Leaf.UINT16: (pa.uint16(), "USMALLINT"),
    Leaf.UINT32: (pa.uint32(), "UINTEGER"),
    Leaf.UINT64: (pa.uint64(), "UBIGINT"),
    Leaf.FLOAT32: (pa.float32(), "FLOAT"),
    Leaf.FLOAT64: (pa.float64(), "DOUBLE"),
    Leaf.DATE: (pa.date32(), "DATE"),
    Leaf.STRING: (pa.string(), "VARCHAR"),
    Leaf.JSON: (pa.string(), "JSON"),
    Leaf.BINARY: (pa.binary(), "BLOB"),
    Leaf.UUID: (pa.uuid(), "UUID"),
    Leaf.NOTHING: (pa.int32(), "INTEGER"),
    Time(Unit.MICRO): (pa.time64("us"), "TIME"),
    Timestamp(Unit.SECOND): (pa.timestamp("s"), "TIMESTAMP_S"),
    Timestamp(Unit.MILLI): (pa.timestamp("ms"), "TIMESTAMP_MS"),
    Timestamp(Unit.MICRO): (pa.timestamp("us"), "TIMESTAMP"),
    Timestamp(Unit.NANO): (pa.timestamp("ns"), "TIMESTAMP_NS"),
    Timestamp(Unit.MICRO, utc=True): (pa.timestamp("us", "UTC"), "TIMESTAMPTZ"),
}

_WRITTEN_ONLY: dict[ColumnType, str] = {
    Leaf.VARIANT: "VARIANT",
    Leaf.INTERVAL: "INTERVAL",
    Leaf.TIMETZ: "TIME WITH TIME ZONE",
}
"""What DuckDB writes from its own values, and not from Arrow."""


def pattern(path: str) -> str:
    """A path as the pattern that only it fits."""
    return path.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def _leaf(type_: ColumnType) -> tuple[pa.DataType, str]:
    match type_:
        case Decimal(precision, scale) if precision <= 38:
            return pa.decimal128(precision, scale), f"DECIMAL({precision},{scale})"
        case Fixed():
            return pa.binary(), "BLOB"
        case _ if type_ in _LEAVES:
            return _LEAVES[type_]
        case _:
            raise Blocked(f"no file can be rewritten with type {type_}", code="type-unsupported")


def arrow_type(type_: ColumnType) -> pa.DataType:
    """The Arrow type in which a column reaches the writer; Blocked for types that it cannot write exactly. A variant
    is its metadata and its value, one after the other."""
    return pa.binary() if type_ is Leaf.VARIANT else _arrow_type(type_)


def _arrow_type(type_: ColumnType) -> pa.DataType:
    match type_:
        case Struct(fields):
            return pa.struct([pa.field(each.name, _arrow_type(each.type)) for each in fields])
        case ListOf(element):
            return pa.list_(pa.field("element", _arrow_type(element.type)))
        case MapOf(key, value):
            return pa.map_(_arrow_type(key.type), _arrow_type(value.type))
        case _:
            return _leaf(type_)[0]


def duckdb_type(type_: ColumnType) -> str:
    """The type in DuckDB's words."""
    match type_:
        case Struct(fields):
            return f"STRUCT({', '.join(f'{identifier(each.name)} {duckdb_type(each.type)}' for each in fields)})"
        case ListOf(element):
            return duckdb_type(element.type) + "[]"
        case MapOf(key, value):
            return f"MAP({duckdb_type(key.type)}, {duckdb_type(value.type)})"
        case _ if type_ in _WRITTEN_ONLY:
            return _WRITTEN_ONLY[type_]
        case Geo():
            return f"GEOMETRY({literal(type_.crs)})" if type_.crs else "GEOMETRY"
        case _:
            return _leaf(type_)[1]


def written(field: Field) -> str:
    """What the writer selects for a column that came as its Arrow type."""
    name = identifier(field.name)
    if field.type is Leaf.VARIANT:
        return f"variant_bytes_to_variant({name}) AS {name}"
    return f"CAST({name} AS {duckdb_type(field.type)}) AS {name}"


def field_ids(fields: tuple[Field, ...]) -> str:
    """COPY's FIELD_IDS with the id of every level."""
    return "{" + ", ".join(f"{identifier(each.name)}: {_ids(each)}" for each in fields) + "}"


def _ids(field: Field) -> str:
    match field.type:
        case Struct(fields):
            below = [(each.name, each) for each in fields]
        case ListOf(element):
            below = [("element", element)]
        case MapOf(key, value):
            below = [("key", key), ("value", value)]
        case _:
            return str(int(field.id))
    inner = "".join(f", {identifier(name)}: {_ids(each)}" for name, each in below)
    return f"{{__duckdb_field_id: {int(field.id)}{inner}}}"
