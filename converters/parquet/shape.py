"""A file's schema as its footer spells it: names, field ids and the groups that lists and maps are made of.

pyarrow shows leaves only, and under names of its own. What DuckDB 1.5.5 does with a list or map depends on the groups
(tests/converters/test_shapes.py), and so does what Iceberg Java makes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from bridge.errors import BridgeError, Unreachable
from converters import storage
from converters.parquet.thrift import Damaged, Struct, read_struct

__all__ = ["Kind", "Node", "read_shape", "read_shapes", "read_variants"]

_REPEATED = 2
_MAP, _LIST = 1, 3
_VARIANT = 16
"""The member of the union LogicalType."""


class Kind(Enum):
    """What a node is to both engines; ODD is what they do not agree on."""

    LEAF = "plain column"
    STRUCT = "struct"
    LIST = "list"
    MAP = "map"
    ODD = "group of an unknown layout"


@dataclass(frozen=True, slots=True)
class Node:
    """A column or a level inside one. The child of a list is its element, those of a map are key and value, under the
    names that the file gives them; `group` is the name of a list's repeated group."""

    name: str
    id: int | None
    kind: Kind
    children: tuple[Node, ...] = ()
    group: str = ""

    @property
    def is_faithful(self) -> bool:
        """Whether DuckDB 1.5.5 finds the children by name, also where it has to rebuild the value (a wider type, a
        struct whose fields changed): then it looks for `list`, and takes `element` and `array` for it."""
        match self.kind:
            case Kind.LIST:
                return self.group.casefold() == "list" or self.group in ("element", "array")
            case Kind.MAP:
                return [each.name.casefold() for each in self.children] == ["key", "value"]
            case kind:
                return kind is not Kind.ODD

    def leaves(self) -> Iterator[tuple[Node, ...]]:
        """The way to each leaf, in the file's order."""
        if not self.children:
            yield (self,)
        for child in self.children:
            for way in child.leaves():
                yield (self, *way)


@dataclass(frozen=True, slots=True)
class _Element:
    name: str
    id: int | None
    repeated: bool
    converted: int | None
    children: tuple[_Element, ...]
    is_group: bool
    is_variant: bool


def read_shape(path: str) -> tuple[Node, ...]:
    """The top-level columns; Unreachable when the file is gone or damaged."""
    return tuple(_node(each) for each in _columns(path))


def read_variants(path: str) -> frozenset[str]:
    """The names of the top-level groups that are annotated as VARIANT (parquet-format, VariantEncoding.md)."""
    return frozenset(each.name for each in _columns(path) if each.is_variant)


def _columns(path: str) -> tuple[_Element, ...]:
    with storage.open_input(path, "data file") as source:
        size = source.size()
        source.seek(max(size - 8, 0))
        tail = source.read(8)
        length = int.from_bytes(tail[:4], "little")
        source.seek(max(size - 8 - length, 0))
        footer = source.read(length)
    try:
        # FileMetaData: 2 is the schema, what follows are the row groups
        elements = iter([Struct(each) for each in Struct(read_struct(footer, 2)).structs(2)])
        root = _tree(elements)
        if next(elements, None) is not None:
            raise Damaged("its schema has more than one root")
    except Damaged as error:
        raise Unreachable(f"data file {path} has a damaged footer: {error}") from error
    return root.children


def read_shapes(paths: Sequence[str]) -> list[tuple[Node, ...] | BridgeError]:
    """The shapes of many files in their order; a file that cannot be read gives its error instead."""

    def one(path: str) -> tuple[Node, ...] | BridgeError:
        try:
            return read_shape(path)
        except BridgeError as error:
            return error

    return storage.parallel(one, paths)


def _tree(elements: Iterator[Struct]) -> _Element:
    """parquet.thrift, SchemaElement: 3 repetition, 4 name, 5 num_children, 6 converted_type, 9 field_id, 10
    logicalType."""
    own = next(elements, None)
    if own is None:
        raise Damaged("its schema ends too early")
    count = own.integer(5) or 0
    children = tuple(_tree(elements) for _ in range(count))
    return _Element(
        name=own.text(4),
        id=own.integer(9),
        repeated=own.integer(3) == _REPEATED,
        converted=own.integer(6),
        children=children,
        is_group=count > 0,
        is_variant=own.has(10, _VARIANT),
    )


def _node(element: _Element, repeated_is_fine: bool = False) -> Node:
    name, id_, below = element.name, element.id, element.children
    odd = Node(name, id_, Kind.ODD, tuple(_node(each) for each in below))
    if element.repeated and not repeated_is_fine:
        return odd
    if not element.is_group:
        return Node(name, id_, Kind.LEAF)
    if element.converted == _LIST:
        return _list(element) or odd
    if element.converted == _MAP:
        return _map(element) or odd
    if element.converted is not None:
        return odd
    return Node(name, id_, Kind.STRUCT, tuple(_node(each) for each in below))


def _list(element: _Element) -> Node | None:
    """Three levels, or two when the repeated field is a plain column or a group of several columns (parquet-format,
    LogicalTypes.md, "Lists", "Backward-compatibility rules"). A repeated group of one column that is called `array` or
    as the list with `_tuple` is an element to Iceberg Java and a level to DuckDB."""
    if len(element.children) != 1 or not element.children[0].repeated:
        return None
    group = element.children[0]
    if not group.is_group or len(group.children) > 1:
        if group.converted in (_LIST, _MAP):
            return None
        inner = _node(group, repeated_is_fine=True)
    elif group.name in ("array", f"{element.name}_tuple"):
        return None
    else:
        inner = _node(group.children[0])
    return Node(element.name, element.id, Kind.LIST, (inner,), group.name)


def _map(element: _Element) -> Node | None:
    if len(element.children) != 1 or not element.children[0].repeated or len(element.children[0].children) != 2:
        return None
    key, value = element.children[0].children
    return Node(element.name, element.id, Kind.MAP, (_node(key), _node(value)), element.children[0].name)
