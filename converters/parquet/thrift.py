"""Reading of Thrift's compact protocol, as far as the footer of a Parquet file needs it."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Damaged", "Struct", "read_struct"]

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)
_DEPTH = 60

Value: TypeAlias = "bool | int | bytes | list[Value] | dict[int, Value]"


class Damaged(ValueError):
    """The bytes are not what they claim."""


class Struct:
    """A decoded struct: its fields by number, each as the type that the reader expects."""

    def __init__(self, fields: Value) -> None:
        if not isinstance(fields, dict):
            raise Damaged("a struct is missing")
        self._fields = fields

    def integer(self, field: int) -> int | None:
        value = self._fields.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise Damaged(f"field {field} is no number")
        return value

    def text(self, field: int) -> str:
        value = self._fields.get(field)
        if not isinstance(value, bytes):
            raise Damaged(f"field {field} is no text")
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Damaged(f"field {field} is no UTF-8 text") from None

    def has(self, field: int, member: int) -> bool:
        """Whether a union in that field is this member."""
        value = self._fields.get(field)
        return isinstance(value, dict) and member in value

    def structs(self, field: int) -> list[Value]:
        value = self._fields.get(field)
        if not isinstance(value, list):
            raise Damaged(f"field {field} is no list")
        return value


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._content) - self._at:
            raise Damaged("it ends too early")
        self._at += count
        return self._content[self._at - count : self._at]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return found
            shift += 7
            if shift > 70:
                raise Damaged("a number is too long")

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)

    def value(self, kind: int, depth: int) -> Value:
        if kind == _BYTE:
            return self._take(1)[0]
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth)
        raise Damaged(f"a value of the unknown kind {kind}")

    def _list(self, depth: int) -> list[Value]:
        head = self._take(1)[0]
        count = head >> 4 if head >> 4 != 15 else self._varint()
        kind = head & 15
        if count > len(self._content):
            raise Damaged("a list is longer than the footer")
        if kind in (_TRUE, _FALSE):
            return [self._take(1)[0] == 1 for _ in range(count)]
        return [self.value(kind, depth) for _ in range(count)]

    def struct(self, depth: int, last: int | None = None) -> dict[int, Value]:
        if depth > _DEPTH:
            raise Damaged("it is nested too deep")
        found: dict[int, Value] = {}
        field = 0
        while field != last and (head := self._take(1)[0]) != _STOP:
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            found[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self.value(kind, depth + 1)
        return found


def read_struct(content: bytes, last: int | None = None) -> Value:
    """The struct that a footer begins with, up to its field `last`."""
    return _Reader(content).struct(0, last)
