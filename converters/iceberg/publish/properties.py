"""The properties of a published table: the source's, those that guard its files, and the name mapping."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.options import Options
from bridge.model.types import FieldId
from bridge.ports import TableWrite
from converters.iceberg.name_mapping import PROPERTY as MAPPING
from converters.iceberg.publish.review import needs_rows

__all__ = ["GUARD", "joined_mapping", "table_properties"]

GUARD = "gc.enabled"
_VECTORIZED = "read.parquet.vectorization.enabled"


def table_properties(write: TableWrite, held: Mapping[str, Any] | None, options: Options) -> dict[str, str]:
    """What the table is to have; what others set at the target stays."""
    found = dict((held or {}).get("properties") or {})
    used = write.files.table.column("mapping").drop_null().unique().to_pylist()
    if write.files.since is not None:  # files that were left out may have any
        used = list(range(len(write.files.mappings)))
    found |= {key: value for key, value in write.table.properties.items() if key != MAPPING or not used}
    found.pop(GUARD, None)
    if write.ownership == "shared":
        found[GUARD] = "false"
    if needs_rows(write.table, write.files, options):
        found[_VECTORIZED] = "false"
    if used:
        found[MAPPING] = joined_mapping(write.files.mappings[each] for each in sorted(used))
    return dict(sorted(found.items()))


def joined_mapping(mappings: Iterable[NameMapping]) -> str:
    """One mapping for all files, as the property holds it (specification, "Name Mapping Serialization")."""
    return json.dumps(_level([column for each in mappings for column in each.columns]))


def _level(columns: Iterable[MappedColumn]) -> list[dict[str, Any]]:
    names: dict[FieldId, list[str]] = {}
    below: dict[FieldId, list[MappedColumn]] = {}
    for each in columns:
        known = names.setdefault(each.field, [])
        name = {"list": "element"}.get(each.name, each.name)
        if name not in known:
            known.append(name)
        below.setdefault(each.field, []).extend(each.children)
    made = []
    for field, called in names.items():
        entry: dict[str, Any] = {"field-id": int(field), "names": called}
        if below[field]:
            entry["fields"] = _level(below[field])
        made.append(entry)
    return made
