"""The table's name mapping, and which fields it makes of a file's columns (as Iceberg Java 1.10.2 applies it).

A file that carries any field id is taken at its ids. Else the property `schema.name-mapping.default` gives ids by
name (specification, "Column Projection", "Name Mapping Serialization"), the current one at every snapshot; without that
property top-level columns count from 1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.model.findings import Code
from bridge.model.mapping import MappedColumn
from bridge.model.rewrite import Name
from bridge.model.schema import Schema, walk
from bridge.model.types import ColumnType, FieldId, ListOf, MapOf, Struct
from converters.parquet.shape import Kind, Node

__all__ = ["PROPERTY", "Fault", "Layout", "Names", "layout_of", "name_tree", "parse_names"]

PROPERTY = "schema.name-mapping.default"

Names = Mapping[str, int | None]
"""Field id by dotted path; a path may be listed without an id."""

Fault = tuple[Code, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file's columns are: the fields that the table knows (to be named in a mapping), the ids on the way to
    each leaf in the file's order, and what forbids reading the file so."""

    columns: tuple[MappedColumn, ...]
    leaves: tuple[tuple[int | None, ...], ...]
    faults: tuple[Fault, ...]


def name_tree(text: str) -> tuple[Name, ...]:
    """The property's JSON as it nests; parse_names says whether it is valid."""

    def level(stored: Any) -> tuple[Name, ...]:
        return tuple(
            Name(int(each["field-id"]), tuple(map(str, each["names"])), level(each.get("fields") or ()))
            for each in stored
            if each.get("field-id") is not None
        )

    return level(json.loads(text))


def parse_names(text: str) -> Names:
    """The property's JSON as an index; ValueError where Iceberg Java would not take it either."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    ids: set[int | None] = set()
    index: dict[str, int | None] = {}
    for path, id_ in _entries(stored, "", ids):
        if path in index:
            raise ValueError(f"the name {path} is listed twice")
        index[path] = id_
    return index


def _entries(stored: Any, above: str, ids: set[int | None]) -> Iterator[tuple[str, int | None]]:
    if not isinstance(stored, list):
        raise ValueError("its fields are no list")
    for each in stored:
        if not isinstance(each, dict):
            raise ValueError("one of its fields is no object")
        id_, names = each.get("field-id"), each.get("names", [])
        if id_ is not None and (isinstance(id_, bool) or not isinstance(id_, int)):
            raise ValueError(f"the field id {id_!r} is no number")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"the names of field {id_} are no texts")
        if id_ in ids:
            raise ValueError(f"the field id {id_} is listed twice")
        ids.add(id_)
        nested = each.get("fields", [])
        if not names:
            list(_entries(nested, above, ids))
        for place, name in enumerate(dict.fromkeys(names)):
            yield above + name, id_
            # under each of its names; the ids below are new only once
            yield from _entries(nested, f"{above}{name}.", ids if not place else set())


@dataclass(frozen=True, slots=True)
class _Placed:
    """A field of the table: what it lies in, its kind, and its path for people."""

    parent: int | None
    kind: Kind
    path: str


def _known(schema: Schema) -> dict[int, _Placed]:
    return {
        int(each.field.id): _Placed(each.parent, _kind(each.field.type), ".".join(each.path))
        for each in walk(schema.fields)
    }


def _kind(type_: ColumnType) -> Kind:
    match type_:
        case Struct():
            return Kind.STRUCT
        case ListOf():
            return Kind.LIST
        case MapOf():
            return Kind.MAP
        case _:
            return Kind.LEAF


def layout_of(shape: Sequence[Node], schema: Schema, names: Names | None) -> Layout:
    """What Iceberg takes a file of this shape for; `schema` holds every field that the table has or had, `names` its
    name mapping."""
    has_ids = any(node.id is not None for top in shape for way in top.leaves() for node in way)
    resolver = _Resolver(_known(schema), names, has_ids)
    columns = [resolver.column(node, node.name, None, place) for place, node in enumerate(shape, 1)]
    resolver.check_twice()
    _check_case(shape, resolver)
    kept = tuple(each for each in columns if each is not None)
    if not kept:
        resolver.fault(Code.NO_FIELD_IDS, "none of whose columns is one of the table's")
    leaves = tuple(tuple(resolver.ids.get(id(node)) for node in way) for top in shape for way in top.leaves())
    return Layout(kept, leaves, tuple(dict.fromkeys(resolver.faults)))


class _Resolver:
    def __init__(self, known: Mapping[int, _Placed], names: Names | None, has_ids: bool) -> None:
        self._known = known
        self._names = names
        self._has_ids = has_ids
        self.ids: dict[int, int] = {}
        """Field id by node."""
        self.faults: list[Fault] = []
        self._seen: Counter[int] = Counter()

    def fault(self, code: Code, text: str) -> None:
        self.faults.append((code, text))

    def _id(self, node: Node, path: str, place: int | None) -> int | None:
        if self._has_ids:
            return node.id
        if self._names is None:
            return place
        found = self._names.get(path)
        if path in self._names and found is None:
            self.fault(Code.NO_FIELD_IDS, f"the name mapping gives {path} no field id")
        return found

    def column(self, node: Node, path: str, parent: int | None, place: int | None) -> MappedColumn | None:
        """The node as a column of the table; None when it is none."""
        id_ = self._id(node, path, place)
        if id_ is not None:
            self.ids[id(node)] = id_
            self._seen[id_] += 1
        field = self._known.get(id_) if id_ is not None else None
        if node.kind is Kind.ODD:
            # DuckDB may not even open a file that holds such a group
            self.fault(Code.NESTED_LAYOUT, f"{path}: {Kind.ODD.value}")
            return None
        below = [
            self.column(child, f"{path}.{name}", id_, None)
            for child, name in zip(node.children, _child_names(node), strict=True)
        ]
        if field is None or id_ is None:
            if any(each is not None for each in below):
                self.fault(Code.NO_FIELD_IDS, f"{path} has no field id and what lies in it has one")
            return None
        self._check(node, path, parent, field, below)
        children = tuple(each for each in below if each is not None)
        return MappedColumn(node.name, FieldId(id_), _named(node, children))

    def _check(
        self, node: Node, path: str, parent: int | None, field: _Placed, below: Sequence[MappedColumn | None]
    ) -> None:
        if field.kind is not node.kind:
            self.fault(Code.PHYSICAL_TYPE, f"{field.path}: the file holds a {node.kind.value}")
        elif field.parent != parent:
            self.fault(Code.PHYSICAL_TYPE, f"{field.path}: the file holds it at another level, {path}")
        elif not node.is_faithful:
            what = f"group {node.group!r}" if node.kind is Kind.LIST else "key and value of other names"
            self.fault(Code.NESTED_LAYOUT, f"{field.path}: a {node.kind.value} with a {what}")
        elif node.kind in (Kind.LIST, Kind.MAP) and None in below:
            self.fault(Code.NO_FIELD_IDS, f"{field.path}: no field id on the level below")
        elif node.kind is Kind.STRUCT and not any(each is not None for each in below):
            self.fault(Code.NO_FIELD_IDS, f"{field.path}: none of its fields is in the file")

    def check_twice(self) -> None:
        for id_, count in self._seen.items():
            if count > 1 and id_ in self._known:
                self.fault(Code.NO_FIELD_IDS, f"{count} columns are field {id_} ({self._known[id_].path})")


def _child_names(node: Node) -> tuple[str, ...]:
    """As the name mapping calls the levels of lists and maps, whatever the file does."""
    match node.kind:
        case Kind.LIST:
            return ("element",)
        case Kind.MAP:
            return ("key", "value")
        case _:
            return tuple(each.name for each in node.children)


def _named(node: Node, children: tuple[MappedColumn, ...]) -> tuple[MappedColumn, ...]:
    """As DuckLake calls them."""
    levels: tuple[str, ...] = {Kind.LIST: ("list",), Kind.MAP: ("key", "value")}.get(node.kind, ())
    if len(levels) != len(children):
        return children
    return tuple(MappedColumn(name, each.field, each.children) for name, each in zip(levels, children, strict=True))


def _check_case(shape: Sequence[Node], resolver: _Resolver) -> None:
    """DuckDB matches names without case and renames the second of two that are equal so."""
    spelled = Counter(node.name.casefold() for node in shape)
    twice = sorted(node.name for node in shape if spelled[node.name.casefold()] > 1)
    if twice:
        resolver.fault(Code.CASE_COLLISION, f"whose columns {', '.join(twice)} are equal without case")
    for node in shape:
        _check_case(node.children, resolver)
