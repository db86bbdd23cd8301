"""What will be done to each table, decided before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.files import Files
from bridge.model.findings import Finding, Severity
from bridge.model.objects import SourceObject
from bridge.model.table import Table, TableName
from bridge.planning.selection import literal
from bridge.ports import ObjectWrite

__all__ = ["Action", "ObjectPlan", "Plan", "Rewrite", "TablePlan"]


class Action(Enum):
    """What a run does to a table."""

    CREATE = "create"
    APPEND = "append"
    NOTHING = "nothing"
    BLOCKED = "blocked"
    LEAVE = "leave"
    """Only of what lies beside the tables: it is left out, and the run goes on."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that are rewritten, with all their reasons: how many, and how many bytes, the newest state needs, and how
    many more only older snapshots do."""

    reasons: tuple[str, ...]
    files: int
    bytes: int
    history_files: int
    history_bytes: int


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The decision about one table. `first` is the first commit index carried, `base` the one the target holds
    already; `files` and `bytes` are registered in place; `table` and `data` are None when they could not be read."""

    source: TableName
    target: TableName
    action: Action
    findings: tuple[Finding, ...]
    table: Table | None = None
    data: Files | None = None
    first: int = 0
    base: int | None = None
    snapshots: int = 0
    files: int = 0
    bytes: int = 0
    definition: str = ""
    id: str = ""
    identity: Mapping[str, str] | None = None
    ownership: str = "shared"
    deletes: int = 0
    """Deleted rows that are noted, those of equality deletes aside."""
    rewrites: tuple[Rewrite, ...] = ()
    rewrite_rows: tuple[int, ...] = ()
    """Row numbers in `data` of the files to rewrite."""
    held: str | None = None
    """The source commit that the target holds; the source may have expired it."""
    onto: str = ""
    """The commit of `base` when what the target holds after it is made anew."""
    missing: frozenset[str] = frozenset()
    """Paths of files that are live at `base` and that the target does not list."""
    resolve: bool = False
    """Whether equality deletes are to be resolved to positions."""

    @property
    def brings(self) -> tuple[int, int]:
        """How many of the source's data files come, registered or rewritten, and their bytes, as far as they are files
        already (see `is_sized`)."""
        files = self.files + sum(each.files + each.history_files for each in self.rewrites)
        return files, self.bytes + sum(each.bytes + each.history_bytes for each in self.rewrites)

    @property
    def is_sized(self) -> bool:
        """Whether all that comes lies in files, and not in a catalog or in a database's own format."""
        if self.data is None:
            return False
        sizes = self.data.table.column("size").take(pa.array(self.rewrite_rows, pa.int64()))
        return not pc.any(pc.equal(sizes, 0)).as_py()

    @property
    def blockers(self) -> tuple[Finding, ...]:
        """The findings that forbid writing it."""
        return tuple(each for each in self.findings if each.severity is Severity.BLOCKED)


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """The decision about a schema, view or macro."""

    object: SourceObject
    target: TableName
    action: Action
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """All tables of a run; the id leaves out everything that was read from the target."""

    source: str
    target: str
    tables: tuple[TablePlan, ...]
    id: str
    findings: tuple[Finding, ...] = ()
    """What is said of the source beside its tables."""
    objects: tuple[ObjectPlan, ...] = ()
    """Schemas, views and macros, each after what it needs."""

    @property
    def blocked(self) -> tuple[TablePlan, ...]:
        return tuple(each for each in self.tables if each.action is Action.BLOCKED)

    @property
    def is_complete(self) -> bool:
        """Nothing that was asked for is held back."""
        held = any(each.action is Action.BLOCKED for each in self.objects)
        return not self.blocked and not held and all(each.severity is not Severity.BLOCKED for each in self.findings)

    @property
    def retry(self) -> tuple[str, ...]:
        """Patterns of --table that mean just the blocked tables."""
        return tuple(literal(each.source) for each in self.blocked)

    @property
    def writes(self) -> tuple[TablePlan, ...]:
        return tuple(each for each in self.tables if each.action in (Action.CREATE, Action.APPEND))

    @property
    def object_writes(self) -> tuple[ObjectWrite, ...]:
        return tuple(ObjectWrite(each.target, each.object) for each in self.objects if each.action is Action.CREATE)
