"""Partition specs as a DuckLake table can declare them.

DuckLake's month, day and hour are calendar parts, not counts from 1970 (as DuckDB 1.5.5 writes them), so an Iceberg
day becomes year, month and day. Files in place carry no partition values: for them the declaration is about later
inserts alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.model.findings import Code, Finding
from bridge.model.layout import Bucket, PartitionField, PartitionSpec, Simple, Transform, UnknownTransform
from bridge.model.rewrite import PartitionKey as Written
from bridge.model.schema import Placed, walk
from bridge.model.table import Table
from bridge.model.types import ColumnType, FieldId, Fixed, Leaf, Time, Timestamp, Unit
from converters.ducklake.catalog.history import Keys

__all__ = [
    "PartitionKey",
    "layout_findings",
    "neutral_spec",
    "partition_keys",
    "written_partition",
]

_PARTS = {
    Simple.YEAR: ("year",),
    Simple.MONTH: ("year", "month"),
    Simple.DAY: ("year", "month", "day"),
    Simple.HOUR: ("year", "month", "day", "hour"),
}


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A row of ducklake_partition_column."""

    column: int
    transform: str


def _placed(table: Table) -> dict[int, Placed]:
    return {int(each.field.id): each for each in walk(table.schema.fields)}


def partition_keys(table: Table) -> tuple[PartitionKey, ...]:
    """The keys of the current spec that can be declared, each once, in order."""
    keys: list[PartitionKey] = []
    columns = _placed(table)
    for field in table.spec.fields:
        if _why_not(field, columns, table.imported):
            continue
        keys += [PartitionKey(int(field.source), part) for part in _parts(field)]
    return tuple(dict.fromkeys(keys))


def _parts(field: PartitionField) -> tuple[str, ...]:
    if isinstance(field.transform, Bucket):
        return (f"bucket({field.transform.count})",)
    return ("identity",) if field.transform is Simple.IDENTITY else _PARTS[field.transform]  # type: ignore[index]  # _why_not


def written_partition(table: Table) -> tuple[Written, ...]:
    """How files that are written for a table are partitioned: the keys are those that the lake declares."""
    columns = _placed(table)
    return tuple(
        Written(columns[key.column].field.name, "bucket", int(key.transform[7:-1]))
        if key.transform.startswith("bucket(")
        else Written(columns[key.column].field.name, key.transform)
        for key in partition_keys(table)
    )


def _why_not(field: PartitionField, columns: dict[int, Placed], imported: bool) -> str:
    """Why a partition field cannot be declared; empty when it can, and for void, which partitions by nothing."""
    if field.transform is Simple.VOID:
        return "void"
    place = columns.get(int(field.source))
    if place is None:
        return "its column is gone"
    if isinstance(field.transform, Bucket) and not imported:
        return "files in place carry no bucket, and DuckDB prunes by it"
    if not isinstance(field.transform, Bucket) and field.transform not in (Simple.IDENTITY, *_PARTS):
        return "DuckLake has no such transform"
    if place.parent is not None:
        return "DuckLake partitions by top-level columns only"
    if (
        not place.is_leaf
        or place.field.type in (Leaf.BINARY, Leaf.VARIANT, Leaf.NOTHING)
        or isinstance(place.field.type, Fixed)
    ):
        return "DuckLake cannot partition by this type"
    return ""


def layout_findings(table: Table) -> Iterator[Finding]:
    """What the lake cannot declare of the table's layout."""
    columns = _placed(table)
    temporal = []
    for field in table.spec.fields:
        why = _why_not(field, columns, table.imported)
        name = field.transform.value if isinstance(field.transform, Simple) else str(field.transform)
        if why and why != "void":
            code = Code.PARTITION_BUCKET if isinstance(field.transform, Bucket) else Code.PARTITION_LAYOUT
            yield Finding(code, str(table.name), f"partition key {field.name} ({name}) is not declared: {why}")
        elif not why and field.transform in _PARTS:
            temporal.append(f"{field.name} ({name})")
    if temporal:
        yield Finding(
            Code.TEMPORAL_PARTITION,
            str(table.name),
            f"{', '.join(temporal)}: declared as calendar parts, as DuckDB writes them",
        )


_BUCKET = re.compile(r"bucket\((\d+)\)")
_SAME_HASH: frozenset[ColumnType] = frozenset(
    {
        *(Leaf.INT8, Leaf.INT16, Leaf.INT32, Leaf.INT64, Leaf.STRING, Leaf.BINARY, Leaf.DATE),
        *(Time(Unit.MICRO), Timestamp(Unit.MICRO), Timestamp(Unit.MICRO, utc=True)),
    }
)
"""Types whose bucket is the same number in DuckLake and in Iceberg."""


def neutral_spec(keys: Keys, types: Mapping[int, ColumnType], names: Mapping[int, str]) -> PartitionSpec:
    """A lake's partition spec, the calendar parts of one column joined: year, month, day is a day. A part that stands
    without the larger ones (a month of any year) has no neutral name."""
    parts: dict[int, list[str]] = {}
    for text, transform in keys.keys:
        parts.setdefault(int(text), []).append(transform.casefold())
    fields: list[PartitionField] = []
    for column, transforms in parts.items():
        name = names.get(column, f"column_{column}")
        for each in _joined_parts(transforms, types.get(column)):
            kind = each.value if isinstance(each, Simple) else re.sub(r"\W+", "_", str(each)).strip("_")
            own = name if each is Simple.IDENTITY else f"{name}_{kind}"
            fields.append(PartitionField(FieldId(column), 1000 + len(fields), own, each))
    return PartitionSpec(keys.id, tuple(fields))


def _joined_parts(transforms: list[str], type_: ColumnType | None) -> Iterator[Transform]:
    calendar = [each for each in transforms if each in ("year", "month", "day", "hour")]
    whole = next((simple for simple, parts in _PARTS.items() if sorted(parts) == sorted(set(calendar))), None)
    if whole is not None:
        yield whole
    for each in transforms:
        if each in calendar:
            if whole is None:
                yield UnknownTransform(f"{each} of the calendar")
        elif each == "identity":
            yield Simple.IDENTITY
        elif (found := _BUCKET.fullmatch(each)) is not None and type_ in _SAME_HASH:
            yield Bucket(int(found.group(1)))
        else:
            yield UnknownTransform(each)
