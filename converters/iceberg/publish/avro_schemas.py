"""Avro schemas of manifests and manifest lists (specification, "Manifests", "Manifest Lists").

The statistics maps are not optional here, so that the encoder need not look through them to find the branch of a union;
a reader takes the file's own schema and finds an empty map where nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import fastavro

from bridge.model.layout import Bucket, PartitionSpec, Simple
from bridge.model.types import ColumnType, Decimal, FieldId, Fixed, Leaf, Time, Timestamp

__all__ = ["HEAD", "file_schema", "manifest_list_schema", "manifest_schema", "names_of", "partition_type"]

Avro = Any  # a schema as JSON

_MAPS = (
    ("column_sizes", 108, 117, 118, "long"),
    ("value_counts", 109, 119, 120, "long"),
    ("null_value_counts", 110, 121, 122, "long"),
    ("nan_value_counts", 137, 138, 139, "long"),
    ("lower_bounds", 125, 126, 127, "bytes"),
    ("upper_bounds", 128, 129, 130, "bytes"),
)


def _field(name: str, id_: int, type_: Avro) -> dict[str, Avro]:
    return {"name": name, "type": type_, "field-id": id_}


def _optional(name: str, id_: int, type_: Avro) -> dict[str, Avro]:
    return {"name": name, "type": ["null", type_], "default": None, "field-id": id_}


def _map(name: str, id_: int, key: int, value: int, type_: str) -> dict[str, Avro]:
    pair = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_field("key", key, "int"), _field("value", value, type_)],
    }
    return _field(name, id_, {"type": "array", "logicalType": "map", "items": pair})


def partition_type(transform: object, source: ColumnType) -> ColumnType:
    """What a transform makes of a type (specification, "Partition Transforms")."""
    match transform:
        case Simple.DAY:
            return Leaf.DATE
        case Simple.YEAR | Simple.MONTH | Simple.HOUR | Bucket():
            return Leaf.INT32
        case _:
            return source


def _avro_type(type_: ColumnType, name: str) -> Avro:
    match type_:
        case Decimal(precision, scale):
            size = next(each for each in range(1, 17) if 10**precision <= 1 << (8 * each - 1))
            return {
                "type": "fixed",
                "name": f"{name}_decimal_{precision}_{scale}",
                "size": size,
                "logicalType": "decimal",
                "precision": precision,
                "scale": scale,
            }
        case Fixed(length):
            return {"type": "fixed", "name": f"{name}_fixed_{length}", "size": length}
        case Leaf.UUID:
            return {"type": "fixed", "name": f"{name}_uuid_fixed", "size": 16, "logicalType": "uuid"}
        case Leaf.DATE:
            return {"type": "int", "logicalType": "date"}
        case Time():
            return {"type": "long", "logicalType": "time-micros"}
        case Timestamp(_, utc):
            return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": utc}
        case Leaf.INT64:
            return "long"
        case Leaf.FLOAT32:
            return "float"
        case Leaf.FLOAT64:
            return "double"
        case Leaf.BOOLEAN:
            return "boolean"
        case Leaf.STRING:
            return "string"
        case Leaf.BINARY:
            return "bytes"
        case _:
            return "int"


def avro_name(name: str) -> str:
    """A name as Avro takes it; readers go by the field id."""
    text = re.sub(r"[^A-Za-z0-9_]", lambda found: f"_x{ord(found.group()):X}", name)
    return text if text and not text[0].isdigit() else f"_{text}"


_HEAD = [
    _field("status", 0, "int"),
    _optional("snapshot_id", 1, "long"),
    _optional("sequence_number", 3, "long"),
    _optional("file_sequence_number", 4, "long"),
]
HEAD: Avro = fastavro.parse_schema({"type": "record", "name": "head", "fields": _HEAD})
"""What an entry says beside of its file, which follows."""


def file_schema(version: int, spec: PartitionSpec, types: Mapping[FieldId, ColumnType]) -> Avro:
    """What an entry says of a file that lies in a partition of a spec."""
    partition = [
        _optional(avro_name(each.name), each.id, _avro_type(partition_type(each.transform, type_), f"p{each.id}"))
        for each in spec.fields
        for type_ in [types.get(each.source, Leaf.INT32)]
    ]
    fields = [
        _field("content", 134, "int"),
        _field("file_path", 100, "string"),
        _field("file_format", 101, "string"),
        _field("partition", 102, {"type": "record", "name": "r102", "fields": partition}),
        _field("record_count", 103, "long"),
        _field("file_size_in_bytes", 104, "long"),
        *(_map(*each) for each in _MAPS),
        _optional("key_metadata", 131, "bytes"),
        _optional("split_offsets", 132, {"type": "array", "items": "long", "element-id": 133}),
        _optional("equality_ids", 135, {"type": "array", "items": "int", "element-id": 136}),
        _optional("sort_order_id", 140, "int"),
    ]
    if version >= 3:
        fields.append(_optional("first_row_id", 142, "long"))
    fields.append(_optional("referenced_data_file", 143, "string"))
    if version >= 3:
        fields += [_optional("content_offset", 144, "long"), _optional("content_size_in_bytes", 145, "long")]
    return {"type": "record", "name": "r2", "fields": fields}


def manifest_schema(version: int, spec: PartitionSpec, types: Mapping[FieldId, ColumnType]) -> Avro:
    """Entries of a manifest whose files lie in the partitions of one spec."""
    fields = [*_HEAD, _field("data_file", 2, file_schema(version, spec, types))]
    return fastavro.parse_schema({"type": "record", "name": "manifest_entry", "fields": fields})


@lru_cache
def manifest_list_schema(version: int) -> Avro:
    """The manifests of a snapshot."""
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            _field("contains_null", 509, "boolean"),
            _optional("contains_nan", 518, "boolean"),
            _optional("lower_bound", 510, "bytes"),
            _optional("upper_bound", 511, "bytes"),
        ],
    }
    fields = [
        _field("manifest_path", 500, "string"),
        _field("manifest_length", 501, "long"),
        _field("partition_spec_id", 502, "int"),
        _field("content", 517, "int"),
        _field("sequence_number", 515, "long"),
        _field("min_sequence_number", 516, "long"),
        _field("added_snapshot_id", 503, "long"),
        _field("added_files_count", 504, "int"),
        _field("existing_files_count", 505, "int"),
        _field("deleted_files_count", 506, "int"),
        _field("added_rows_count", 512, "long"),
        _field("existing_rows_count", 513, "long"),
        _field("deleted_rows_count", 514, "long"),
        _optional("partitions", 507, {"type": "array", "items": summary, "element-id": 508}),
        _optional("key_metadata", 519, "bytes"),
    ]
    if version >= 3:
        fields.append(_optional("first_row_id", 520, "long"))
    return fastavro.parse_schema({"type": "record", "name": "manifest_file", "fields": fields})


def names_of(spec: PartitionSpec) -> Sequence[str]:
    """The names of a spec's partition values in an entry."""
    return [avro_name(each.name) for each in spec.fields]
