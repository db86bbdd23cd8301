"""What a lake keeps of the Iceberg table that it was migrated from: with it a table goes back as it came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from bridge.model.schema import Schema
from bridge.model.table import Commit, Ref, RefKind, Table
from bridge.model.types import FieldId

__all__ = ["original_id", "restored"]

_PROPERTY, _REF, _IDENTIFIERS = "iceberg.property.", "iceberg.ref.", "iceberg.identifier-field-ids"
_LAYOUT = ("iceberg.partition-spec", "iceberg.sort-order")


def restored(table: Table) -> Table:
    """The table with its properties, references and identifier fields out of the tags that hold them."""
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
    return replace(
        table,
        properties=properties,
        refs=(*table.refs, *refs),
        schema=schema,
        schemas={**table.schemas, schema.id: schema},
    )


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
