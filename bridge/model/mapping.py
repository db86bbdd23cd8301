"""Which column of a file is which field, for files that do not say so themselves: one value for many files."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from bridge.model.types import FieldId

__all__ = ["MappedColumn", "NameMapping"]


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A field and the name that it has in the file; a list's child is called `list`, a map's are `key` and `value`.

    `from_path`: the value is not taken from the file but from the segment `name=value` of its path, literally that
    name.
    """

    name: str
    field: FieldId
    children: tuple[MappedColumn, ...] = ()
    from_path: bool = False


@dataclass(frozen=True, slots=True)
class NameMapping:
    """The columns that a file holds, in an order that does not matter; a field that is not here reads as its initial
    default."""

    columns: tuple[MappedColumn, ...]

    def restricted(self, fields: Container[FieldId]) -> NameMapping:
        """The part of it that speaks of some fields, in a fixed order."""
        return NameMapping(_restricted(self.columns, fields))


def _restricted(columns: tuple[MappedColumn, ...], fields: Container[FieldId]) -> tuple[MappedColumn, ...]:
    kept = [
        MappedColumn(each.name, each.field, _restricted(each.children, fields), each.from_path)
        for each in columns
        if each.field in fields
    ]
    return tuple(sorted(kept, key=lambda each: each.field))
