"""Schemas, partition specs and sort orders as a metadata file holds them (specification, "Appendix C")."""

from __future__ import annotations

import json
from typing import Any

from bridge.model.layout import PartitionSpec, SortOrder, Transform
from bridge.model.schema import Schema
from bridge.model.types import (
    ColumnType,
    Decimal,
    Expression,
    Field,
    Fixed,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    NestedDefault,
    Struct,
    Timestamp,
)
from converters.iceberg.types import NAMES

__all__ = ["default_json", "schema_json", "sort_order_json", "spec_json", "type_json"]

Json = Any


def type_json(type_: ColumnType, version: int) -> Json:
    """A type: a name, or an object for struct, list and map."""
    match type_:
        case Struct(fields):
            return {"type": "struct", "fields": [_field(each, version) for each in fields]}
        case ListOf(element):
            return {
                "type": "list",
                "element-id": int(element.id),
                "element": type_json(element.type, version),
                "element-required": element.required,
            }
        case MapOf(key, value):
            return {
                "type": "map",
                "key-id": int(key.id),
                "key": type_json(key.type, version),
                "value-id": int(value.id),
                "value": type_json(value.type, version),
                "value-required": value.required,
            }
        case Decimal(precision, scale):
            return f"decimal({precision}, {scale})"
        case Fixed(length):
            return f"fixed[{length}]"
        case Geo(kind, crs):
            return f"{kind}({crs})" if crs else kind
        case _:
            return NAMES[type_]


def _field(field: Field, version: int) -> dict[str, Json]:
    made: dict[str, Json] = {
        "id": int(field.id),
        "name": field.name,
        "required": field.required,
        "type": type_json(field.type, version),
    }
    if field.doc:
        made["doc"] = field.doc
    if version >= 3:
        for key, default in (("initial-default", field.initial_default), ("write-default", field.write_default)):
            if default is not None and not isinstance(default, Expression):
                made[key] = default_json(field.type, default)
    return made


def default_json(type_: ColumnType, value: str | bytes | NestedDefault) -> Json:
    """A default as a JSON single value (specification, "JSON single-value serialization")."""
    if isinstance(value, NestedDefault):
        return json.loads(value.text)
    if isinstance(value, bytes):
        return value.hex()
    match type_:
        case Leaf.BOOLEAN:
            return value == "true"
        case Leaf.INT32 | Leaf.INT64:
            return int(value)
        case Leaf.FLOAT32 | Leaf.FLOAT64:
            return float(value)
        case Timestamp(_, utc):
            text = value.replace(" ", "T")
            if utc and text.endswith("+00"):
                text += ":00"
            return text
        case _:
            return value


def schema_json(schema: Schema, version: int) -> dict[str, Json]:
    """A schema with its id."""
    made: dict[str, Json] = {
        "type": "struct",
        "schema-id": schema.id,
        "fields": [_field(each, version) for each in schema.fields],
    }
    if schema.identifier_ids:
        made["identifier-field-ids"] = [int(each) for each in schema.identifier_ids]
    return made


def _transform(transform: Transform) -> str:
    return str(getattr(transform, "value", transform))


def spec_json(spec: PartitionSpec) -> dict[str, Json]:
    """A partition spec with its id."""
    return {
        "spec-id": spec.id,
        "fields": [
            {
                "name": each.name,
                "transform": _transform(each.transform),
                "source-id": int(each.source),
                "field-id": each.id,
            }
            for each in spec.fields
        ],
    }


def sort_order_json(order: SortOrder) -> dict[str, Json]:
    """A sort order with its id."""
    return {
        "order-id": order.id,
        "fields": [
            {
                "transform": _transform(each.transform),
                "source-id": int(each.source),
                "direction": "desc" if each.descending else "asc",
                "null-order": "nulls-first" if each.nulls_first else "nulls-last",
            }
            for each in order.fields
        ],
    }
