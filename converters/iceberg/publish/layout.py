"""Partition specs and sort orders as Iceberg can hold them.

A partition field has one id for ever: what it is of and how says which; a name that a column has is only for the
identity of that column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bridge.model.layout import PartitionField, PartitionSpec, Simple, SortOrder, UnknownTransform
from bridge.model.schema import walk
from bridge.model.table import Table
from bridge.model.types import FieldId, Leaf, ListOf, MapOf, Struct

__all__ = ["outgrown_specs", "published_order", "published_specs"]

_FIRST = 1000


def published_specs(table: Table, held: Mapping[int, PartitionSpec]) -> tuple[dict[int, PartitionSpec], dict[int, int]]:
    """Every spec of the table and of the target, and the id that each spec of the table has there: its own if it is an
    Iceberg table's, else counted on, as catalogs do. Left out: fields that Iceberg has no transform for, and those of
    a dropped column: DuckDB 1.5.5 ends the process that reads a manifest of them."""
    every = {**table.specs, table.spec.id: table.spec}
    known = {(field.source, field.transform): field.id for spec in held.values() for field in spec.fields}
    taken = set(known.values())
    columns: dict[str, set[FieldId]] = {}
    for schema in [*table.schemas.values(), table.schema]:
        for each in schema.fields:
            columns.setdefault(each.name, set()).add(each.id)
    nested = {
        place.field.id
        for schema in [*table.schemas.values(), table.schema]
        for place in walk(schema.fields)
        if place.repeated or isinstance(place.field.type, Struct | ListOf | MapOf) or place.field.type is Leaf.VARIANT
    }
    gone = {each.source for spec in every.values() for each in spec.fields} - _column_ids(table)
    found, place = dict(held), dict[int, int]()
    for id_ in sorted(every):
        if table.format == "iceberg" and id_ in found:
            place[id_] = id_
            continue
        fields: list[PartitionField] = []
        names: set[str] = set()
        for field in every[id_].fields:
            if isinstance(field.transform, UnknownTransform) or field.source in nested | gone:
                continue
            key = field.source, field.transform
            if key not in known:
                known[key] = field.id if field.id not in taken else max(taken | {_FIRST - 1}) + 1
                taken.add(known[key])
            name = field.name
            own = columns.get(name, set())
            if (own and (field.transform is not Simple.IDENTITY or own != {field.source})) or name in names:
                name = f"{name}_{known[key]}"
            names.add(name)
            fields.append(replace(field, id=known[key], name=name))
        keys = [(each.source, each.transform) for each in fields]
        same = [each.id for each in found.values() if [(one.source, one.transform) for one in each.fields] == keys]
        number = id_ if table.format == "iceberg" else same[0] if same else max(found, default=-1) + 1
        place[id_] = number
        found.setdefault(number, PartitionSpec(number, tuple(fields)))
    return found, place


def _column_ids(table: Table) -> set[FieldId]:
    return {each.field.id for each in walk(table.schema.fields)}


def outgrown_specs(table: Table, held: Mapping[int, PartitionSpec]) -> list[str]:
    """Partition keys of published files whose column is not in the table any more."""
    columns = _column_ids(table)
    return sorted({each.name for spec in held.values() for each in spec.fields if each.source not in columns})


def published_order(order: SortOrder) -> SortOrder:
    """The keys up to the first that is an expression."""
    kept = []
    for each in order.fields:
        if isinstance(each.transform, UnknownTransform):
            break
        kept.append(each)
    return SortOrder(order.id, tuple(kept)) if kept else SortOrder(0)
