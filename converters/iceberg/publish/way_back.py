"""What a lake keeps of the Iceberg table that it was migrated from: with it a table goes back as it came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from bridge.model.layout import PartitionSpec, Simple
from bridge.model.schema import Schema, walk
from bridge.model.table import Commit, Ref, RefKind, Table
from bridge.model.types import FieldId
from converters.iceberg.partition import spec_of

__all__ = ["RESTORED", "original_id", "restored"]

RESTORED = -1
"""The id, in Table.specs, of a partition spec that came back: the target numbers it."""

_PROPERTY, _REF, _IDENTIFIERS = "iceberg.property.", "iceberg.ref.", "iceberg.identifier-field-ids"
_SPEC = "iceberg.partition-spec"
_LAYOUT = (_SPEC, "iceberg.sort-order")

_DECLARED = frozenset({Simple.IDENTITY, Simple.YEAR, Simple.MONTH, Simple.DAY, Simple.HOUR})


def restored(table: Table) -> Table:
    """The table with its properties, references, identifier fields and spec out of the tags that hold them."""
    properties = {
        key: value
        for key, value in table.properties.items()
        if not key.startswith((_PROPERTY, _REF)) and key not in (_IDENTIFIERS, *_LAYOUT)
    }
    properties |= {
        key.removeprefix(_PROPERTY): value for key, value in table.properties.items() if key.startswith(_PROPERTY)
    }
    known = {each.id for each in table.commits}
    named = {ref.name for ref in table.refs}
    refs = [
        Ref(key.removeprefix(_REF), RefKind.TAG, value, value in known)
        for key, value in sorted(table.properties.items())
        if key.startswith(_REF) and key.removeprefix(_REF) not in named
    ]
    schema = _identified(table.schema, table.properties)
    spec = _partitioned(table)
    return replace(
        table,
        properties=properties,
        refs=(*table.refs, *refs),
        schema=schema,
        schemas={**table.schemas, schema.id: schema},
        spec=spec,
        specs={**table.specs, spec.id: spec},
    )


def _partitioned(table: Table) -> PartitionSpec:
    """The spec that the table had, unless the lake's was changed since: it declares what a lake has a transform for."""
    try:
        kept = spec_of(json.loads(table.properties.get(_SPEC, "")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return table.spec
    declared = {(each.source, each.transform) for each in kept.fields if each.transform in _DECLARED}
    live = {each.field.id for each in walk(table.schema.fields)}
    now = {(each.source, each.transform) for each in table.spec.fields}
    if now != declared or not {each.source for each in kept.fields} <= live:
        return table.spec
    return PartitionSpec(RESTORED, kept.fields)


def _identified(schema: Schema, properties: Mapping[str, str]) -> Schema:
    """Identifier fields, where the columns still are there and required."""
    if _IDENTIFIERS not in properties or schema.identifier_ids:
        return schema
    try:
        ids = tuple(FieldId(int(each)) for each in json.loads(properties[_IDENTIFIERS]))
    except (ValueError, TypeError):
        return schema
    required = {each.id for each in schema.fields if each.required}
    return replace(schema, identifier_ids=ids) if set(ids) <= required else schema


def original_id(commit: Commit, table: Table) -> int | None:
    """The id of the snapshot that a commit of a lake was made from, where our own note tells one."""
    note = commit.summary.get("extra-info")
    if not note:
        return None
    try:
        told = [each for each in json.loads(note)["tables"] if each["source"].get("uuid") == table.uuid]
        number = int(told[0]["commit"]) if len(told) == 1 and table.uuid else 0
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return number if 0 < number < 1 << 63 else None
