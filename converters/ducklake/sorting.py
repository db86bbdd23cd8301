"""Sort orders as a DuckLake table declares them, and as files that are written for it follow them.

The order is the source's, unless somebody has set another in the lake: that one stays, under the names that its columns
have now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bridge.model.findings import Code, Finding
from bridge.model.layout import Simple
from bridge.model.rewrite import SortKey as Written
from bridge.model.schema import Placed, walk
from bridge.model.table import Table
from bridge.model.types import Leaf
from converters.ducklake.columns import ColumnRow
from converters.ducklake.identifiers import identifier, literal
from converters.parquet.places import called_row_id

__all__ = ["Declared", "SortKey", "next_order", "order_findings", "sort_keys", "written_order"]

_PART = re.compile(r"""\"((?:[^"]|"")+)"|([^\W\d]\w*)|\['((?:[^']|'')*)'\]""")


@dataclass(frozen=True, slots=True)
class SortKey:
    """A row of ducklake_sort_expression."""

    expression: str
    direction: str
    nulls: str


@dataclass(frozen=True, slots=True)
class Declared:
    """What a lake says of a table: its sort keys, its columns by id, and the source's order (settings.py) as an earlier
    run of ours noted it, "" for none."""

    keys: tuple[SortKey, ...]
    columns: Mapping[int, ColumnRow]
    noted: str


def sort_keys(table: Table) -> tuple[SortKey, ...]:
    """The keys of the source's order as expressions; cut at the first that has no counterpart."""
    paths = {int(each.field.id): each.path for each in walk(table.schema.fields) if not each.repeated}
    keys: list[SortKey] = []
    for field in table.sort_order.fields:
        path = paths.get(int(field.source))
        if field.transform is not Simple.IDENTITY or path is None:
            break
        keys.append(_key(path, field.descending, field.nulls_first))
    return tuple(keys)


def _key(path: tuple[str, ...], descending: bool, nulls_first: bool) -> SortKey:
    return SortKey(
        identifier(path[0]) + "".join(f"[{literal(name)}]" for name in path[1:]),
        "DESC" if descending else "ASC",
        "NULLS_FIRST" if nulls_first else "NULLS_LAST",
    )


def next_order(table: Table, held: Declared | None) -> tuple[tuple[SortKey, ...], str]:
    """The keys that the lake has of a table once a run has written it, and what has to be said of them; `held` is what
    it has before, None for a table that is new."""
    ours = sort_keys(table)
    if held is None or held.keys == _as_noted(held):
        return ours, ""
    before = _paths(held.columns)
    now = {int(each.field.id): each.path for each in walk(table.schema.fields)}
    moved = {id_ for id_, path in before.items() if now.get(id_) != path}
    if not moved:
        return held.keys, ""
    by_path = {_folded(path): id_ for id_, path in before.items()}
    ids = [by_path.get(_folded(_path_of(key.expression))) for key in held.keys]
    if any(id_ not in now for id_ in ids):
        return ours, "the sort order that was set in the lake names columns that changed: it is the source's again"
    renamed = {id_: _key(now[id_], False, False).expression for id_ in ids if id_ is not None and id_ in moved}
    return tuple(
        replace(key, expression=renamed.get(id_, key.expression))  # type: ignore[arg-type]  # each is in `now`
        for key, id_ in zip(held.keys, ids, strict=True)
    ), ""


def _as_noted(held: Declared) -> tuple[SortKey, ...]:
    """The keys that our last run wrote; none where the tag is not as we wrote it."""
    try:
        stored: list[Mapping[str, Any]] = json.loads(held.noted or '{"fields": []}')["fields"]
    except (ValueError, TypeError, KeyError):
        return ()
    paths = _paths(held.columns)
    keys = []
    for each in stored:
        path = paths.get(each["source-id"])
        if each["transform"] != Simple.IDENTITY.value or path is None:
            break
        keys.append(_key(path, each["direction"] == "desc", each["null-order"] == "nulls-first"))
    return tuple(keys)


def _paths(columns: Mapping[int, ColumnRow]) -> dict[int, tuple[str, ...]]:
    """The path of each column that no list or map holds."""
    found: dict[int, tuple[str, ...]] = {}
    for id_ in columns:
        path: tuple[str, ...] = ()
        at: int | None = id_
        while at is not None and at in columns and (at == id_ or columns[at].type == "struct"):
            path, at = (columns[at].name, *path), columns[at].parent
        if at is None:
            found[id_] = path
    return found


def _path_of(expression: str) -> tuple[str, ...]:
    """The path of the column that an expression names, as DuckDB 1.5.5 stores it or as we do: a name, quoted or not,
    and the names of fields in brackets. Empty for any other expression."""
    path: list[str] = []
    place = 0
    while place < len(expression):
        found = _PART.match(expression, place)
        if found is None or (found.group(3) is None) != (place == 0):
            return ()
        quoted, plain, field = found.groups(default="")
        path.append(quoted.replace('""', '"') or plain or field.replace("''", "'"))
        place = found.end()
    return tuple(path)


def _folded(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.casefold() for name in path)


def written_order(table: Table, keys: tuple[SortKey, ...]) -> tuple[Written, ...]:
    """The keys that files written for a table are sorted by: those of the lake up to the first that is no column of
    plain values."""
    columns = {_folded(each.path): each for each in walk(table.schema.fields) if _is_plain(each)}
    found: list[Written] = []
    for key in keys:
        place = columns.get(_folded(_path_of(key.expression)))
        if place is None:
            break
        found.append(Written(place.path, key.direction.upper() == "DESC", key.nulls.upper() == "NULLS_FIRST"))
    return tuple(found)


def _is_plain(place: Placed) -> bool:
    return place.is_leaf and not place.repeated and place.field.type is not Leaf.VARIANT


def order_findings(table: Table, held: Declared | None) -> Iterator[Finding]:
    """What the lake cannot declare of the source's order, and what is written cannot follow of the lake's."""
    wanted, kept = len(table.sort_order.fields), len(sort_keys(table))
    if kept < wanted:
        yield Finding(Code.SORT_ORDER, str(table.name), f"{wanted - kept} of {wanted} sort keys have no counterpart")
    keys, said = next_order(table, held)
    if said:
        yield Finding(Code.SORT_ORDER, str(table.name), said)
    followed = len(written_order(table, keys))
    named = called_row_id(table.schema.fields)
    if followed and named is not None and table.next_row_id is not None:
        said = (
            f"files that are written are not sorted: column {named.name} stands where their rows would hold their ids"
        )
        yield Finding(Code.SORT_KEY, str(table.name), said)
    elif followed < len(keys):
        said = f"files that are written are sorted by {followed} of the lake's {len(keys)} sort keys: "
        said += f"{keys[followed].expression} is no column of plain values"
        yield Finding(Code.SORT_KEY, str(table.name), said)
