"""How a table's files are arranged: partition specs and sort orders. Values are counted from 1970 in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from bridge.model.types import FieldId

__all__ = [
    "Bucket",
    "PartitionField",
    "PartitionSpec",
    "Simple",
    "SortField",
    "SortOrder",
    "Transform",
    "Truncate",
    "UnknownTransform",
]


class Simple(Enum):
    """Transforms without a parameter."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Hash of the value modulo `count`."""

    count: int

    def __str__(self) -> str:
        return f"bucket[{self.count}]"


@dataclass(frozen=True, slots=True)
class Truncate:
    """The value cut to `width`."""

    width: int

    def __str__(self) -> str:
        return f"truncate[{self.width}]"


@dataclass(frozen=True, slots=True)
class UnknownTransform:
    """A transform that the source names and we do not know."""

    text: str

    def __str__(self) -> str:
        return self.text


Transform: TypeAlias = Simple | Bucket | Truncate | UnknownTransform


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One key of a partition spec."""

    source: FieldId
    id: int
    name: str
    transform: Transform


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The partition keys in force for the files that name this spec."""

    id: int
    fields: tuple[PartitionField, ...] = ()

    @property
    def is_partitioned(self) -> bool:
        """Whether any of its fields tells files apart: a dropped one is void in tables of version 1."""
        return any(each.transform is not Simple.VOID for each in self.fields)


@dataclass(frozen=True, slots=True)
class SortField:
    """One key of a sort order."""

    source: FieldId
    transform: Transform
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The order in which a writer should lay rows; id 0 has no keys."""

    id: int
    fields: tuple[SortField, ...] = ()
