"""Parquet files of layouts that no writer at hand makes: the schema in the footer of a pyarrow file is changed.

Data pages stay as they are, so a change must keep the definition and repetition levels of every leaf.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MAP, MAP_KEY_VALUE, LIST = 1, 2, 3
_REPEATED = 2


class Element:
    """A schema element: its Thrift fields by number, and the elements below it."""

    def __init__(self, fields: dict[int, Any], children: list[Element]) -> None:
        self.fields = fields
        self.children = children

    def __getitem__(self, place: int) -> Element:
        return self.children[place]

    @property
    def name(self) -> str:
        return str(self.fields[4][1].decode())

    def named(self, name: str) -> Element:
        self.fields[4] = (8, name.encode())
        return self

    def annotated(self, converted: int | None) -> Element:
        """With this converted type alone, without a logical type."""
        self.fields.pop(6, None)
        self.fields.pop(10, None)
        if converted is not None:
            self.fields[6] = (5, converted)
        return self

    def numbered(self, id_: int | None) -> Element:
        self.fields.pop(9, None)
        if id_ is not None:
            self.fields[9] = (5, id_)
        return self

    def two_level(self, name: str) -> None:
        """A list of required elements loses its middle level."""
        element = self[0][0].named(name)
        element.fields[3] = (5, _REPEATED)
        self.children = [element]


def write(path: Path, table: pa.Table, change: Callable[[Element], object] | None = None, **options: Any) -> Path:
    """A file of the table; `change` gets the root of its schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, store_schema=False, **options)
    if change is None:
        return path
    content = path.read_bytes()
    length = struct.unpack("<I", content[-8:-4])[0]
    footer, _ = _struct(content[-8 - length : -8], 0)
    root = _tree(iter(footer[2][1][1]))
    change(root)
    footer[2] = (9, (12, _flat(root)))
    leaves = list(_leaves(root, ()))
    for group in footer[4][1][1]:
        for chunk, leaf in zip(group[1][1][1], leaves, strict=True):
            chunk[3][1][3] = (9, (8, [name.encode() for name in leaf]))
    made = _written(footer)
    path.write_bytes(content[: -8 - length] + made + struct.pack("<I", len(made)) + b"PAR1")
    return path


def _tree(elements: Iterator[dict[int, Any]]) -> Element:
    fields = next(elements)
    return Element(fields, [_tree(elements) for _ in range(fields.get(5, (5, 0))[1])])


def _flat(element: Element) -> list[dict[int, Any]]:
    element.fields.pop(5, None)
    if element.children:
        element.fields[5] = (5, len(element.children))
    return [element.fields, *(each for child in element.children for each in _flat(child))]


def _leaves(element: Element, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for child in element.children:
        if child.children:
            yield from _leaves(child, (*path, child.name))
        else:
            yield (*path, child.name)


# Thrift's compact protocol: (kind, value) pairs by field number


def _varint(content: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = content[at]
        at += 1
        found |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return found, at


def _value(content: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == 3:
        return content[at], at + 1
    if kind in (4, 5, 6):
        number, at = _varint(content, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == 7:
        return content[at : at + 8], at + 8
    if kind == 8:
        length, at = _varint(content, at)
        return content[at : at + length], at + length
    if kind == 9:
        head = content[at]
        count, at = (head >> 4, at + 1) if head >> 4 != 15 else _varint(content, at + 1)
        items = []
        for _ in range(count):
            item, at = (content[at] == 1, at + 1) if head & 15 in (1, 2) else _value(content, at, head & 15)
            items.append(item)
        return (head & 15, items), at
    assert kind == 12, kind
    return _struct(content, at)


def _struct(content: bytes, at: int) -> tuple[dict[int, Any], int]:
    field, found = 0, {}
    while head := content[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            number, at = _varint(content, at)
            field = (number >> 1) ^ -(number & 1)
        kind = head & 15
        value, at = (kind == 1, at) if kind in (1, 2) else _value(content, at, kind)
        found[field] = (kind, value)
    return found, at + 1


def _unsigned(number: int) -> bytes:
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def _signed(number: int) -> bytes:
    return _unsigned((number << 1) ^ (number >> 63))


def _encoded(kind: int, value: Any) -> bytes:
    if kind == 3:
        return bytes([value])
    if kind in (4, 5, 6):
        return _signed(value)
    if kind == 7:
        return bytes(value)
    if kind == 8:
        return _unsigned(len(value)) + value
    if kind == 9:
        inner, items = value
        head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xF0 | inner]) + _unsigned(len(items))
        return head + b"".join(
            bytes([1 if item else 2]) if inner in (1, 2) else _encoded(inner, item) for item in items
        )
    return _written(value)


def _written(fields: dict[int, Any]) -> bytes:
    made, last = b"", 0
    for field, (kind, value) in sorted(fields.items()):
        if kind in (1, 2):
            kind = 1 if value else 2
        step = field - last
        made += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _signed(field)
        made += b"" if kind in (1, 2) else _encoded(kind, value)
        last = field
    return made + b"\0"
