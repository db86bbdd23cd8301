"""What a format implements to be a source or a target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from bridge.model.expiry import Endings
from bridge.model.files import FileProblem, Files, Measures, Standing
from bridge.model.findings import Finding
from bridge.model.objects import Objects, SourceObject
from bridge.model.options import Options
from bridge.model.rewrite import Equality, FileRewrite, WrittenFiles
from bridge.model.rewrite import Target as TargetFiles
from bridge.model.table import Table, TableName
from bridge.model.types import ColumnType, Field, FieldId

__all__ = [
    "AdoptedTable",
    "Bookmark",
    "Check",
    "CommitResult",
    "CommitsApart",
    "Fit",
    "Fitted",
    "Held",
    "Holder",
    "KeptOpen",
    "KnowsEnded",
    "Lake",
    "LakeTableInfo",
    "Mirrors",
    "Notice",
    "ObjectWrite",
    "ProgressSink",
    "Publishes",
    "ReleasedTable",
    "Remembers",
    "RowEngine",
    "Rows",
    "Silent",
    "Source",
    "SourceTable",
    "Stale",
    "TableWrite",
    "Target",
    "TargetTable",
    "Written",
]


class ProgressSink(Protocol):
    """Where long work tells how far it is; `total` None is unknown."""

    def step(self, what: str, done: int = 0, total: int | None = None) -> None: ...


class Silent:
    """A progress sink that says nothing."""

    def step(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Ignore it."""


class Rows(Protocol):
    """The rows of one state of a table: an Arrow schema and record batches."""

    @property
    def schema(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class Held(Protocol):
    """A table as a target holds it."""

    def standing(self, paths: Sequence[str]) -> Standing:
        """The state of those of some data files that it holds under their own paths."""
        ...

    def measures(self, types: Mapping[FieldId, ColumnType]) -> Measures:
        """What it knows of some columns, with bounds in the types given."""
        ...


class SourceTable(Protocol):
    """One table, opened: its definition and history, and on request its files and rows."""

    @property
    def table(self) -> Table: ...

    def files(self, progress: ProgressSink, since: int | None = None, held: Held | None = None) -> Files:
        """Read the file metadata of every commit of the table; for a target that holds commit `since` at least that of
        the files that begin or end later or in which rows are deleted later (see Files.since). `held` answers for that
        commit, so that a source need not be read for what the target knows."""
        ...

    def rows(self, commit: str) -> Rows:
        """The rows at a commit ("": now, under the current schema), read by the format's own engine."""
        ...


@runtime_checkable
class CountsRows(Protocol):
    """An opened table whose source may forget what happened between two of its commits."""

    def count(self, commit: str) -> int | None:
        """How many rows there are at a commit, where that costs little to know."""
        ...


@dataclass(frozen=True, slots=True)
class Notice:
    """What lies at a source beside its tables (a view, say), by its name; a name of "" is the namespace itself."""

    name: TableName
    finding: Finding


@runtime_checkable
class Remembers(Protocol):
    """A source that can tell what became of a table that was once taken from it."""

    def gave(self, source: Mapping[str, str]) -> bool:
        """Whether a bookmark's source is a table of this source, of now or then."""
        ...

    def schemas(self) -> Sequence[str]:
        """The names of its schemas, of now and then."""
        ...

    def now(self, source: Mapping[str, str]) -> TableName | None:
        """The name under which it is there now, None when it is not."""
        ...


class Source(Protocol):
    """A place that tables are read from."""

    @property
    def concurrent(self) -> bool:
        """Whether the files of several opened tables may be read at once."""
        ...

    @property
    def configured(self) -> str:
        """What its locator leaves to a configuration, without credentials; "" when that tells all."""
        ...

    def tables(self) -> Sequence[TableName]:
        """The names of its tables, sorted."""
        ...

    def noticed(self) -> Sequence[Notice]:
        """What lies beside the tables and is not carried, or could not be looked at."""
        ...

    def objects(self) -> Objects:
        """Its schemas, views and macros; a format without any has none."""
        ...

    def open(self, name: TableName) -> SourceTable:
        """Blocked or Unreachable when the table cannot be read."""
        ...

    def holds(self, name: TableName) -> bool:
        """Whether a table is there now; a BridgeError where that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class Bookmark:
    """What a target remembers of a table that we wrote: where it came from and up to which state.

    `commit` is the source's commit id ("" for a table without one), `definition` a digest of what can change without
    a commit; `changed_by` names the first foreign change since, "" when there is none.
    """

    source: Mapping[str, str]
    commit: str
    definition: str
    plan: str
    ownership: str
    changed_by: str = ""
    maintained: bool = False
    """Whether `changed_by` rearranged files only, so that no row is other than the source's."""
    time: int | None = None
    """The own time of `commit`, where its id alone does not tell it from every other; None: not known."""
    state: tuple[str, int] | None = None
    """The last change until `commit`, and the number of rows then (see TargetTable.states)."""

    def is_of(self, source: Mapping[str, str]) -> bool:
        """Whether it is of the same table of a source, whatever that is called."""
        return {**self.source, "name": ""} == {**source, "name": ""}


@dataclass(frozen=True, slots=True)
class Stale:
    """Source commits whose snapshots at the target cannot stay as they are, why, and whether the target can put others
    in their place under the same numbers; `whole`: nothing of the table can stay."""

    commits: frozenset[str]
    why: str
    replaceable: bool
    whole: bool = False


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table as the target holds it; bookmark None: not ours."""

    name: TableName
    bookmark: Bookmark | None
    commits: frozenset[str] = frozenset()
    """The source commits that it lists a snapshot for, where it can drop them alone."""
    listed: Callable[[str], frozenset[str]] | None = None
    """The data files of its state at a source commit ("": its newest), by path and, those that we wrote, by output_name
    of their source; for targets that take up a difference in files between the source's state and theirs. None for
    those that refuse one."""
    stale: Callable[[Table, Files], Stale] | None = None
    """What of it the source has overtaken."""
    whole: bool = False
    """Whether the next run has to look at every file, whatever it holds."""
    held: Held | None = None
    """What it can tell of data files instead of the source."""
    updated: int | None = None
    """When it was written last, in microseconds from 1970, where it says so."""
    states: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """The source commits whose rows it holds, by their last change (Commit.changed, or the commit itself) and by the
    number of rows; of a source that may forget commits."""


@runtime_checkable
class KnowsEnded(Protocol):
    """A lake, as source or target: its catalog counts the data files that only older states use."""

    def ended(self, name: TableName, there: TargetTable) -> Endings | None:
        """Those of a table that are another's to delete, of the older snapshots that a target holds."""
        ...


@runtime_checkable
class KeptOpen(Protocol):
    """A source or target that is asked many small things, each of which would open it."""

    def kept_open(self) -> AbstractContextManager[None]:
        """It stays open while this lasts, or for as long as others can be kept from it."""
        ...


@runtime_checkable
class Publishes(Protocol):
    """A target whose tables change with the source, and can be listed by namespace."""

    def published(self, namespace: tuple[str, ...]) -> Sequence[TargetTable]:
        """Those that we wrote."""
        ...

    def note_verified(self, writes: Sequence[TableWrite]) -> None:
        """Remember that the tables as they are now were verified."""
        ...

    def verify_again(self, writes: Sequence[TableWrite]) -> Sequence[Check]:
        """Whether tables with nothing to do are right: those that were verified as they are are not asked again."""
        ...


@dataclass(frozen=True, slots=True)
class Move:
    """A table of the target that is to be called otherwise; `source` is what its bookmark is to say from then on."""

    name: TableName
    to: TableName
    source: Mapping[str, str]


@runtime_checkable
class Mirrors(Protocol):
    """A target whose tables follow those of a source by name."""

    @property
    def renames(self) -> bool:
        """Whether a table can be given another name; else it is dropped and made anew."""
        ...

    def taken(self, source: str) -> Sequence[TargetTable]:
        """The tables whose bookmark names a source, by its locator."""
        ...

    def move(self, moves: Sequence[Move]) -> None:
        """Give tables that we wrote other names, all at once, so that two may change theirs. Conflict when one is not
        as it was looked at, or somebody else has a name."""
        ...

    def drop(self, name: TableName, source: Mapping[str, str]) -> None:
        """Drop a table that we wrote from a source; no file is touched. Conflict when it is not that one any more."""
        ...


@dataclass(frozen=True, slots=True)
class TableWrite:
    """Everything a target needs to write one table.

    `first` is the first commit index to carry: everything live there is loaded as it stands. `base` is the commit
    index that the target already holds (first == base then), None for a new table and for one that is made anew.
    """

    name: TableName
    source: Mapping[str, str]
    table: Table
    files: Files
    first: int
    base: int | None
    definition: str
    plan: str
    ownership: str
    held: str | None = None
    """The source commit that the target's state is of: that of `base`, or a later one; None for a new table."""
    onto: str = ""
    """The commit of `base` when what the target holds after it is made anew."""


@dataclass(frozen=True, slots=True)
class ObjectWrite:
    """A schema, view or macro under the name that it is to have."""

    name: TableName
    object: SourceObject


class Fit(Enum):
    """What becomes of an object: it is made, it is there already, or it is left out."""

    MAKE = "make"
    THERE = "there"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the target's own engine found when it tried the objects over the tables: of each object in the order given
    what becomes of it and what is to be said, and the defaults of columns that it cannot compute."""

    objects: tuple[tuple[Fit, tuple[Finding, ...]], ...]
    defaults: Mapping[TableName, Mapping[FieldId, Finding]]


@dataclass(frozen=True, slots=True)
class Written:
    """One written table: target name, snapshots added, data files registered, and the target's newest commit."""

    name: TableName
    snapshots: int
    files: int
    first_commit: str
    last_commit: str


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What one commit wrote."""

    tables: tuple[Written, ...]
    findings: tuple[Finding, ...] = ()
    objects: tuple[ObjectWrite, ...] = ()


@runtime_checkable
class CommitsApart(Protocol):
    """A target that commits table after table: what kept from one leaves those before it made."""

    def committed(self) -> Sequence[tuple[TableWrite, Written]]:
        """What it has made since it was opened."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """One verified statement; `fault` is empty when it holds."""

    what: str
    fault: str = ""


class RowEngine(Protocol):
    """What reads and writes rows: rewrites files, and finds the rows that equality deletes name."""

    def rewrite(
        self, plan: str, files: Sequence[FileRewrite], target: TargetFiles, progress: ProgressSink, what: str
    ) -> WrittenFiles:
        """Rewrite files, each row by row in its order or sorted as the target says; files of which no row is left are
        not written."""
        ...

    def resolve(self, plan: str, equality: Equality, progress: ProgressSink, what: str) -> Any:
        """The positions that equality deletes name: RESOLVED rows."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class Target(Protocol):
    """A place that tables are written to."""

    def files_of(self, name: TableName, table: Table, plan: str) -> TargetFiles:
        """Where and how files of a table are written under a plan."""
        ...

    def rewritten(
        self, name: TableName, commit: str, of: Collection[str] | None = None
    ) -> Mapping[str, Sequence[tuple[str, int]]]:
        """(path, record count) of the files that earlier runs wrote for a table, in order, by output_name of their
        source: those that are live now, or at a source commit; with `of` at least those of these names."""
        ...

    def left_out(self, path: str) -> Any:
        """The positions, ascending, of the source's rows that were left out of a rewritten file and those after it."""
        ...

    def places(self, asked: Sequence[tuple[Sequence[str], Any]]) -> Sequence[Any]:
        """For all the files that a source file was rewritten to, and ascending positions in the source: the places of
        these among the rows of the files, one file after the other, -1 for rows that none of them holds. None where no
        row was moved."""
        ...

    def registered(self, name: TableName, paths: Sequence[str], commit: str) -> frozenset[str]:
        """Those of the paths that are live files of a table, now or at a source commit."""
        ...

    def standing(self, name: TableName, paths: Sequence[str] | None = None) -> Standing:
        """The data files and deleted rows of the newest state of a table that we wrote, or those of some paths."""
        ...

    @property
    def staging(self) -> str:
        """A directory of its own for work that is not finished."""
        ...

    def lookup(self, names: Sequence[TableName]) -> Mapping[TableName, TargetTable]:
        """The tables among `names` that exist, whatever their case."""
        ...

    def newest(self) -> int | None:
        """The time of its newest commit in microseconds from 1970, None when it does not exist yet."""
        ...

    def holds(self, name: TableName) -> frozenset[str]:
        """The source commits of a table that it can still answer for."""
        ...

    def rename(self, source: TableName) -> TableName:
        """The name a source table gets by default."""
        ...

    def review(self, table: Table, name: TableName, options: Options) -> Sequence[Finding]:
        """What the target has to say about the definition of a table, and about the name it is to have."""
        ...

    def written_fields(self, table: Table) -> tuple[Field, ...]:
        """All fields that the table ever had, under the types in which files of the target's own would hold them."""
        ...

    def review_files(self, table: Table, files: Files, name: TableName, options: Options) -> Sequence[FileProblem]:
        """What the target has to say about the files: those that it cannot take as they are, and what follows from
        them."""
        ...

    def overlaps(self, location: str, files: Files) -> Finding | None:
        """The finding when the target's own data and the source's location or files lie in one another."""
        ...

    def work(self, name: TableName, plan: str) -> str:
        """What the unfinished work of a plan for a table is called in the staging."""
        ...

    def hold(self, plans: Sequence[tuple[TableName, Table, str]]) -> AbstractContextManager[Callable[[], None]]:
        """Note the work of some plans while it is done, and keep other runs off it: Conflict when one that lives is at
        it. What it gives raises Conflict when the work was taken away meanwhile."""
        ...

    def finish(self, plans: Sequence[tuple[TableName, Table, str]]) -> None:
        """Forget the work of plans that are committed, and remove what the commit did not use."""
        ...

    def clean(self, plans: Mapping[TableName, str]) -> None:
        """Remove what killed runs of ours left behind; of tables given here only the work of another plan than theirs,
        "" for one that needs none. What a living run is at stays."""
        ...

    def fit(self, tables: Sequence[tuple[TableName, Table]], objects: Sequence[ObjectWrite], found: Objects) -> Fitted:
        """Try schemas, views, macros and defaults over the tables as they will be, in a place of its own."""
        ...

    def commit(
        self, writes: Sequence[TableWrite], progress: ProgressSink, objects: Sequence[ObjectWrite] = ()
    ) -> CommitResult:
        """All tables and objects in one transaction, or nothing."""
        ...

    def verify_objects(self, objects: Sequence[ObjectWrite]) -> Sequence[Check]:
        """Whether the target's own engine, in a process of its own, finds each object and can bind it."""
        ...

    def verify(self, result: CommitResult, writes: Sequence[TableWrite], read_files: bool) -> Sequence[Check]:
        """Ask the target's own engine, in a process of its own, whether it answers what was promised."""
        ...

    def compare(self, name: TableName, commit: str, rows: Rows) -> Check:
        """Whether the target's own engine finds exactly these rows at a source commit ("": now)."""
        ...

    def closing_words(self, result: CommitResult, writes: Sequence[TableWrite]) -> Sequence[str]:
        """What a person needs next: how to open it, what is guarded, how to catch up and undo."""
        ...


@dataclass(frozen=True, slots=True)
class LakeTableInfo:
    """A table of a lake as `inspect` shows it; `rows` is None where its catalog does not tell."""

    name: TableName
    files: int
    rows: int | None
    bookmark: Bookmark | None


@dataclass(frozen=True, slots=True)
class ReleasedTable:
    """What was forgotten: registered files, and files that were written for the table; they stay at `place`."""

    name: TableName
    files: int
    own_files: int
    place: str = "on disk"


@dataclass(frozen=True, slots=True)
class AdoptedTable:
    """A table that the files are now of, and what that means."""

    name: TableName
    meaning: str


class Holder(Protocol):
    """A place of tables that we wrote and that share their files with the source."""

    def release(self, names: Sequence[str], discard: bool) -> Sequence[ReleasedTable]:
        """Forget tables without touching a data file."""
        ...

    def adopt(self, names: Sequence[str]) -> Sequence[AdoptedTable]:
        """Make the files the tables' own."""
        ...


class Lake(Holder, Protocol):
    """A lake that exists."""

    def describe(self) -> Mapping[str, object]:
        """Version, data path, snapshots and guard."""
        ...

    def tables(self) -> Sequence[LakeTableInfo]:
        """Its live tables."""
        ...
