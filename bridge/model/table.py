"""A table as every format can describe it: definition and history, without its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bridge.model.expiry import Retention
from bridge.model.findings import Finding
from bridge.model.layout import PartitionSpec, SortOrder
from bridge.model.schema import Schema, all_fields
from bridge.model.types import Field, FieldId

__all__ = ["Commit", "Ref", "RefKind", "Table", "TableName"]


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's name below its namespace levels; compared as written."""

    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class Commit:
    """One state in the history of the table's main line.

    `time` is microseconds from 1970 UTC at which it became current, strictly ascending along the history;
    `own_time` is what the source itself says; `schema` is an id in Table.schemas; `rows` is the live row count that
    the source claims, None when it claims nothing. `changed` is an older state that this one may be, which the source
    does not keep: the last change that it still tells of; "" where the state is nobody else's.
    """

    id: str
    time: int
    own_time: int
    schema: int
    operation: str = ""
    summary: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    changed: str = ""


class RefKind(Enum):
    """What a named reference is."""

    BRANCH = "branch"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class Ref:
    """A named snapshot beside the main line; `on_main` when the snapshot is one of the table's commits."""

    name: str
    kind: RefKind
    commit: str
    on_main: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Definition and history. `commits` is oldest first and may be empty; `updated` is microseconds from 1970."""

    name: TableName
    uuid: str
    location: str
    metadata: str
    format: str
    format_version: int
    schemas: Mapping[int, Schema]
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    spec: PartitionSpec
    sort_order: SortOrder
    commits: tuple[Commit, ...]
    updated: int
    last_column_id: FieldId
    properties: Mapping[str, str] = field(default_factory=dict)
    refs: tuple[Ref, ...] = ()
    next_row_id: int | None = None
    findings: tuple[Finding, ...] = ()
    imported: bool = False
    """The source keeps rows in a form of its own and no history: every data file is written on the way, belongs to the
    target and carries partition values; the one commit is the state the source is in."""
    retention: Retention | None = None
    """How long the source keeps its commits, where the table itself says it."""
    root: str = ""
    """The directory below which the source removes what it does not know; "": its location."""
    origin: Mapping[str, str] = field(default_factory=dict)
    """What its bookmark says of where this tool brought it from; empty for a table of somebody else's."""

    @property
    def all_fields(self) -> tuple[Field, ...]:
        """Every field that the table ever had, as the newest schema that has it says."""
        return all_fields([self.schema, *(self.schemas[id_] for id_ in sorted(self.schemas, reverse=True))])
