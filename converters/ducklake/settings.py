"""What a source table says about itself beside its columns: as settings of the lake where DuckLake has them, else as
table tags, from which the way back can be made."""

from __future__ import annotations

import json
from collections.abc import Mapping

from bridge.model.layout import PartitionSpec, Simple, SortOrder, Transform
from bridge.model.table import Table

__all__ = ["ORDER_TAG", "lake_settings", "table_tags"]

ORDER_TAG = "iceberg.sort-order"
"""The tag that holds the source's sort order."""

_CODECS = frozenset({"uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4", "lz4_raw"})


def lake_settings(table: Table) -> dict[str, str]:
    """Table settings (as DuckDB 1.5.5's set_option stores them) that mean the same as a property of the source."""
    properties, found = table.properties, {}
    codec = properties.get("write.parquet.compression-codec", "").lower()
    if codec in _CODECS:
        found["parquet_compression"] = codec
        level = properties.get("write.parquet.compression-level", "")
        if codec == "zstd" and level.isdigit() and 1 <= int(level) <= 22:
            found["parquet_compression_level"] = level
    size = properties.get("write.target-file-size-bytes", "")
    if size.isdigit() and int(size) > 0:
        found["target_file_size"] = size
    return found


def table_tags(table: Table, snapshots: Mapping[str, int]) -> dict[str, str]:
    """Tags by key; `snapshots` maps source commits to lake snapshots, for references on the main line."""
    tags = {}
    if table.properties.get("comment"):
        tags["comment"] = table.properties["comment"]
    for key, value in sorted(table.properties.items()):
        if key != "comment":
            tags[f"iceberg.property.{key}"] = value
    if table.spec.fields:
        tags["iceberg.partition-spec"] = json.dumps(_spec(table.spec))
    if table.sort_order.fields:
        tags[ORDER_TAG] = json.dumps(_order(table.sort_order))
    if table.schema.identifier_ids:
        tags["iceberg.identifier-field-ids"] = json.dumps([int(id_) for id_ in table.schema.identifier_ids])
    for ref in table.refs:
        if ref.commit in snapshots:
            tags[f"iceberg.ref.{ref.name}"] = str(snapshots[ref.commit])
    return tags


def _name(transform: Transform) -> str:
    return transform.value if isinstance(transform, Simple) else str(transform)


def _spec(spec: PartitionSpec) -> dict[str, object]:
    return {
        "spec-id": spec.id,
        "fields": [
            {
                "source-id": int(each.source),
                "field-id": each.id,
                "name": each.name,
                "transform": _name(each.transform),
            }
            for each in spec.fields
        ],
    }


def _order(order: SortOrder) -> dict[str, object]:
    return {
        "order-id": order.id,
        "fields": [
            {
                "source-id": int(each.source),
                "transform": _name(each.transform),
                "direction": "desc" if each.descending else "asc",
                "null-order": "nulls-first" if each.nulls_first else "nulls-last",
            }
            for each in order.fields
        ],
    }
