"""Iceberg as a target: a warehouse directory or a catalog, and how plans become tables there."""

from __future__ import annotations

import re
import shlex
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from bridge.errors import BridgeError, Conflict, Overtaken, Undecided, UsageError, about
from bridge.model.files import FileProblem, Files, Standing
from bridge.model.findings import Code, Finding
from bridge.model.objects import ObjectKind, Objects
from bridge.model.options import Options
from bridge.model.paths import is_within, normalise
from bridge.model.rewrite import OWN_DIRECTORY, Settings
from bridge.model.rewrite import Target as TargetFiles
from bridge.model.table import Table, TableName
from bridge.model.types import Field
from bridge.ports import (
    Check,
    CommitResult,
    Fit,
    Fitted,
    Move,
    ObjectWrite,
    ProgressSink,
    Rows,
    Stale,
    TableWrite,
    TargetTable,
    Written,
)
from converters import storage
from converters.iceberg.publish import verifying
from converters.iceberg.publish.bookmark import (
    bookmark_of,
    foreign,
    has_rewritten,
    kept_commits,
    source_commits,
    states_of,
)
from converters.iceberg.publish.held import every_path, held_files, lost_snapshots
from converters.iceberg.publish.layout import outgrown_specs
from converters.iceberg.publish.properties import table_properties
from converters.iceberg.publish.review import review_files, review_table, version_for
from converters.iceberg.publish.table import Published, held_specs, prepare
from converters.iceberg.publish.type_changes import outgrown_types
from converters.iceberg.publish.way_back import restored
from converters.iceberg.type_matrix import given_fields
from converters.iceberg.warehouse import Held, Home, Warehouse
from converters.parquet.left_out import read_left_out
from converters.storage.leftovers import all_held, discard, sweep, table_key, work_name

__all__ = ["IcebergTarget", "open_catalog_target", "open_target"]

_REWRITTEN = re.compile(r"/(r-[0-9a-f]{32})(?:-[a-z][0-9a-f]+)*-(\d+)\.parquet$")


@dataclass(frozen=True, slots=True)
class _Ready:
    """A table whose files are written and whose metadata is not."""

    write: TableWrite
    held: Held | None
    published: Published
    mark: str


class IcebergTarget:
    """Tables in a home that knows them by name."""

    renames = False

    def __init__(self, home: Home, options: Options, locator: str) -> None:
        self._home = home
        self._options = options
        self._locator = locator
        self._dropped: dict[TableName, int] = {}
        self._committed: list[tuple[TableWrite, Written]] = []
        self._seen: dict[TableName, tuple[TableName, Held] | None] = {}

    def _there(self, name: TableName) -> tuple[TableName, Held] | None:
        """A table as it was when it was looked up; whoever changes it since makes the commit fail."""
        if name not in self._seen:
            with about(name):
                self._seen[name] = self._home.find(name)
        return self._seen[name]

    def lookup(self, names: Sequence[TableName]) -> Mapping[TableName, TargetTable]:
        """The tables among `names` that exist, whatever their case."""
        self._seen = {}
        found = self._looked_up(names)
        return found | self._moved([each for each in names if each not in found])

    def _moved(self, names: Sequence[TableName]) -> dict[TableName, TargetTable]:
        """Tables that somebody else gave another name, by that under which we published them: they lie where they did.
        The others are listed only where something lies."""
        places = {}
        for name in names:
            with suppress(UsageError):  # where new tables lie is told when one is made
                place = self._home.location(name)
                if storage.list_directory(f"{place}/metadata"):
                    places[normalise(place)] = name
        found = {}
        for other in self._home.every() if places else ():
            with suppress(BridgeError, ValueError):  # somebody else's table that cannot be read is none of ours
                for each in self._looked_up([other]).values():
                    there = self._there(other)
                    place = "" if there is None else normalise(str(there[1].metadata["location"]))
                    if place in places and each.bookmark is not None:
                        said = f"renamed_table to {each.name}"
                        mark = replace(each.bookmark, changed_by=said, maintained=False)
                        found[places[place]] = replace(each, name=places[place], bookmark=mark)
        return found

    def _looked_up(self, names: Sequence[TableName]) -> dict[TableName, TargetTable]:
        found = {}
        for name in names:
            there = self._there(name)
            if there is not None:
                metadata = there[1].metadata
                commits = frozenset(kept_commits(metadata))
                listed = partial(_listed, metadata)
                stale = partial(_stale, metadata, self._home.replaces)
                newer = (self._options.format_version or 0) > int(metadata.get("format-version", 1))
                whole = newer or has_rewritten(metadata) is None
                updated = int(metadata.get("last-updated-ms", 0)) * 1000
                mark = bookmark_of(metadata)
                found[name] = TargetTable(
                    there[0], mark, commits, listed, stale, whole, updated=updated, states=states_of(metadata)
                )
        return found

    def published(self, namespace: tuple[str, ...]) -> Sequence[TargetTable]:
        """Those of the namespace that have a bookmark."""
        found: list[TargetTable] = []
        for name in self._home.names(namespace):
            with suppress(BridgeError, ValueError):  # somebody else's table that cannot be read is none of ours
                found += self._looked_up([name]).values()
        return [each for each in found if each.bookmark is not None]

    def taken(self, source: str) -> Sequence[TargetTable]:
        """The tables whose bookmark names a source."""
        found: list[TargetTable] = []
        for name in self._home.every():
            with suppress(BridgeError, ValueError):  # somebody else's table that cannot be read is none of ours
                found += self._looked_up([name]).values()
        return [each for each in found if each.bookmark is not None and each.bookmark.source.get("from") == source]

    def move(self, moves: Sequence[Move]) -> None:
        """A table lies where it is called: it gets no other name."""
        raise NotImplementedError

    def drop(self, name: TableName, source: Mapping[str, str]) -> None:
        """Forget a table that we published; no data file goes. Conflict when somebody else wrote to it."""
        there = self._home.find(name)
        mark = None if there is None else bookmark_of(there[1].metadata)
        if there is None or mark is None or not mark.is_of(source):
            raise Overtaken(f"{name} is gone from {self._home.shown} since it was looked at", hint="run it again")
        if changed := foreign(there[1].metadata):
            raise Conflict(
                f"{name} was changed by somebody else ({changed}), and dropped at the source",
                hint=f"release {name}, or drop it there",
            )
        self._home.forget(*there)

    def newest(self) -> int | None:
        """Each table has times of its own."""
        return None

    def holds(self, name: TableName) -> frozenset[str]:
        """The source commits that a snapshot of the table stands for."""
        there = self._home.find(name)
        return frozenset() if there is None else frozenset(kept_commits(there[1].metadata))

    def rename(self, source: TableName) -> TableName:
        """A schema `a.b` is the namespace a.b again; a table without one lies in `main`, as it does in a lake."""
        levels = tuple(level for each in source.namespace for level in each.split("."))
        return TableName(levels or ("main",), source.name)

    def review(self, table: Table, name: TableName, options: Options) -> Sequence[Finding]:
        """What Iceberg has to say about the definition and the name."""
        return [*review_table(table, name, options), *self._in_the_way(table, name)]

    def _in_the_way(self, table: Table, name: TableName) -> Iterator[Finding]:
        """What keeps a new table from its place: a file, a table around it, and tables in it."""
        if self._there(name) is not None:
            return
        subject, place, levels = str(table.name), self._home.location(name), (*name.namespace, name.name)
        parts = place.split("/")
        above = ("/".join(parts[: len(parts) - depth]) for depth in range(len(levels)))
        if file := next((each for each in above if storage.is_file(each)), None):
            yield Finding(Code.TARGET_EXISTS, subject, f"{file} is a file", "choose another name with --as")
            return
        around = (TableName(levels[:depth], levels[depth]) for depth in range(1, len(levels) - 1))
        for each in around:
            if self._there(each) is not None:
                said = f"it would lie inside the table {each}"
                yield Finding(Code.NAME_UNSUPPORTED, subject, said, "choose another name with --as")
        if inside := self._home.names(levels):
            said = f"{inside[0]} would lie inside it"
            yield Finding(Code.NAME_UNSUPPORTED, subject, said, "choose another name with --as")

    def written_fields(self, table: Table) -> tuple[Field, ...]:
        """Under Iceberg's types."""
        return given_fields(table.all_fields)

    def review_files(self, table: Table, files: Files, name: TableName, options: Options) -> Sequence[FileProblem]:
        """Files that one name mapping for all would misread, and defaults that only version 3 has."""
        there = self._there(name)
        held = None if there is None or self._home.replaces else there[1].metadata
        return review_files(table, files, options, None if there is None else there[1].metadata, held)

    def overlaps(self, location: str, files: Files) -> Finding | None:
        """Orphan cleanup of a lake removes what it does not know below its data path, and Iceberg's below a table."""
        place = self._home.location(TableName((), "")).rstrip("/")
        parents = pc.replace_substring_regex(files.table.column("path"), "/[^/]*$", "")
        directories = pc.unique(parents).to_pylist()
        inside = [each for each in (location, *sorted(directories)) if each and is_within(each, place)]
        if not inside and not (location and is_within(place, location)):
            return None
        return Finding(
            Code.DATA_PATH_OVERLAP,
            location,
            f"{place} and the source's files lie in one another",
            "choose another warehouse",
        )

    def files_of(self, name: TableName, table: Table, plan: str) -> TargetFiles:
        """Parquet under Iceberg's types, in a directory of the plan below the table's data."""
        return TargetFiles(
            f"{self._location(name)}/data/{OWN_DIRECTORY}{plan}",
            given_fields(table.all_fields),
            Settings(compression="zstd"),
        )

    def _location(self, name: TableName) -> str:
        there = self._there(name)
        return self._home.location(name) if there is None else str(there[1].metadata["location"])

    def rewritten(
        self, name: TableName, commit: str, of: Collection[str] | None = None
    ) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Files of earlier plans, by what they are called after."""
        there = self._there(name)
        numbered: dict[str, dict[int, tuple[str, int]]] = {}
        if there is None or (of is not None and has_rewritten(there[1].metadata) is False):
            return {}
        for path, count in held_files(there[1].metadata, commit, of):
            if match := _REWRITTEN.search(path):
                numbered.setdefault(match.group(1), {})[int(match.group(2))] = (path, count)
        return {key: [each[number] for number in sorted(each)] for key, each in numbered.items()}

    @property
    def staging(self) -> str:
        """Beside the namespaces."""
        return f"{self._home.location(TableName((), '')).rstrip('/')}/.bridge-staging"

    @property
    def _catalog(self) -> str:
        return self._home.location(TableName((), ""))

    def standing(self, name: TableName, paths: Sequence[str] | None = None) -> Standing:
        """Conflict: what a lake lost is told by comparing files and deletes when they are published; the difference to
        a table of another format that was rolled back is not made."""
        raise Conflict(
            f"{name}: the source does not know any more what was published last",
            hint=f"remove {name} from the target and publish it again, or under another name with --as",
        )

    def left_out(self, path: str) -> np.ndarray:
        """As the file itself notes it."""
        return read_left_out(path)

    def places(self, asked: Sequence[tuple[Sequence[str], np.ndarray]]) -> Sequence[np.ndarray | None]:
        """What is written for an Iceberg table keeps its order."""
        return [None] * len(asked)

    def registered(self, name: TableName, paths: Sequence[str], commit: str) -> frozenset[str]:
        """Those of the paths that are live files of a table."""
        there = self._there(name)
        return frozenset(paths) & {
            path for path, _ in ([] if there is None else held_files(there[1].metadata, commit, paths))
        }

    def work(self, name: TableName, plan: str) -> str:
        """What the unfinished work of a plan is called in the staging."""
        return work_name(self._catalog, name, plan)

    def hold(self, plans: Sequence[tuple[TableName, Table, str]]) -> AbstractContextManager[Callable[[], None]]:
        """Note the work of some plans, and keep other runs off it."""
        works = [(name, plan, self.files_of(name, table, plan).directory) for name, table, plan in plans]
        return all_held(self.staging, self._catalog, works)

    def finish(self, plans: Sequence[tuple[TableName, Table, str]]) -> None:
        """Forget the work of plans that are committed; what was written is all used."""
        for name, _, plan in plans:
            discard(f"{self.staging}/{self.work(name, plan)}", "", lambda _: frozenset())

    def clean(self, plans: Mapping[TableName, str]) -> None:
        """Remove what killed runs left of these tables' work; metadata that nothing names goes when they are
        released."""

        def found() -> Mapping[TableName, Held]:
            """As they are when it is asked: a run may have committed since, and been killed after that."""
            there = {}
            for name in plans:
                with about(name):
                    there[name] = self._home.find(name)
            return {name: each[1] for name, each in there.items() if each is not None}

        def committed() -> Mapping[str, str]:
            marks = {name: bookmark_of(each.metadata) for name, each in found().items()}
            return {table_key(name): mark.plan for name, mark in marks.items() if mark is not None}

        def registered(text: str) -> frozenset[str]:
            paths = (path for each in found().values() for path in every_path(each.metadata))
            return frozenset(path for path in paths if text in path)

        for name, each in {name: self._there(name) for name in plans}.items():
            if each is not None and bookmark_of(each[1].metadata) is not None:
                self._home.settle(name, each[1])
        sweep(self.staging, self._catalog, plans, committed, registered, others=False)

    def fit(self, tables: Sequence[tuple[TableName, Table]], objects: Sequence[ObjectWrite], found: Objects) -> Fitted:
        """Iceberg has no place for views and macros of DuckDB."""
        said = "Iceberg has no counterpart"
        left = [
            (
                Fit.LEAVE,
                (
                    Finding(
                        Code.MACRO_NOT_CARRIED if each.object.kind is ObjectKind.MACRO else Code.VIEW_NOT_CARRIED,
                        str(each.name),
                        said,
                    ),
                ),
            )
            for each in objects
        ]
        return Fitted(tuple(left), {})

    def verify_objects(self, objects: Sequence[ObjectWrite]) -> Sequence[Check]:
        """There are none."""
        return ()

    def commit(
        self, writes: Sequence[TableWrite], progress: ProgressSink, objects: Sequence[ObjectWrite] = ()
    ) -> CommitResult:
        """Everything is written before the first table is changed; then table after table, since Iceberg knows no
        transaction over several."""
        ready: list[_Ready] = []
        done: list[Written] = []
        sent: _Ready | None = None
        try:
            for write in writes:
                with about(write.name):
                    ready.append(self._ready(replace(write, table=restored(write.table)), progress))
            for each in ready:
                sent = each
                with about(each.write.name):
                    self._home.commit(each.write.name, each.held, each.published.metadata, each.mark)
                before, now = (() if each.held is None else each.held.metadata.get("snapshots") or ()), each.published
                left = {said["snapshot-id"] for said in now.metadata["snapshots"]}
                self._dropped[each.write.name] = sum(said["snapshot-id"] not in left for said in before)
                made = each.published.made
                done.append(
                    Written(
                        each.write.name,
                        len(made),
                        each.published.files,
                        str(made[0].id) if made else "",
                        str(made[-1].id) if made else "",
                    )
                )
                self._committed.append((each.write, done[-1]))
        except BaseException as error:
            # what was sent and not answered may be made yet, whatever is there now
            unanswered = sent if isinstance(error, Undecided | KeyboardInterrupt | SystemExit) else None
            for each in ready[len(done) :]:
                if each is not unanswered and not self._may_be_named(each):
                    each.published.discard()
            raise
        return CommitResult(tuple(done))

    def committed(self) -> Sequence[tuple[TableWrite, Written]]:
        """What was committed since this was opened, table after table."""
        return tuple(self._committed)

    def _may_be_named(self, ready: _Ready) -> bool:
        """Whether a commit that failed may have been made all the same; one that cannot be looked at may."""
        try:
            there = self._home.find(ready.write.name)
        except BridgeError:
            return True
        written = frozenset(ready.published.written)
        snapshots = () if there is None else there[1].metadata.get("snapshots") or ()
        return any(each["manifest-list"] in written for each in snapshots)

    def _ready(self, write: TableWrite, progress: ProgressSink) -> _Ready:
        there = self._home.find(write.name)
        held = None if there is None else there[1]
        if write.held is None and held is not None:
            raise Overtaken(f"{write.name} was created in {self._home.shown} meanwhile", hint="run it again")
        if write.held is not None:
            self._check(write, held)
        metadata = None if held is None else held.metadata
        location = self._home.location(write.name) if metadata is None else str(metadata["location"])
        version = version_for(write.table, write.files, write.first, self._options, metadata)
        # another run of the same plan must not name the same files: whichever comes second removes its own
        mark = f"bridge-{write.plan}-{uuid.uuid4().hex[:12]}"
        published = prepare(
            write,
            location,
            version,
            metadata,
            "" if held is None else held.path,
            mark,
            table_properties(write, metadata, self._options),
            progress,
        )
        return _Ready(write, held, published, mark)

    def _check(self, write: TableWrite, held: Held | None) -> None:
        """The plan was made of what is still there."""
        bookmark = None if held is None else bookmark_of(held.metadata)
        if bookmark is None or bookmark.commit != write.held:
            raise Overtaken(f"{write.name} in {self._home.shown} changed meanwhile", hint="run it again")
        if bookmark.changed_by:
            raise Conflict(
                f"{write.name} in {self._home.shown} was changed by somebody else: {bookmark.changed_by}",
                hint="publish it under another name with --as, or go on there alone",
            )

    def verify(self, result: CommitResult, writes: Sequence[TableWrite], read_files: bool) -> Sequence[Check]:
        """Columns and row counts as PyIceberg answers them, at the first, the last and some snapshots between."""
        return verifying.verify(self._home, writes, read_files)

    def note_verified(self, writes: Sequence[TableWrite]) -> None:
        """Beside each table's metadata."""
        verifying.note_verified(self._home, writes)

    def verify_again(self, writes: Sequence[TableWrite]) -> Sequence[Check]:
        """PyIceberg is asked about states of which nothing is noted."""
        return verifying.verify_again(self._home, writes)

    def compare(self, name: TableName, commit: str, rows: Rows) -> Check:
        """EXCEPT ALL both ways between PyIceberg's rows and the source's."""
        return verifying.compare(self._home, name, commit, rows, self._options.path_map)

    def closing_words(self, result: CommitResult, writes: Sequence[TableWrite]) -> Sequence[str]:
        """Where the tables are, what is guarded, how to catch up and undo."""
        said = []
        for write in writes[:3]:
            there = self._home.find(write.name)
            said.append(f"table:      {write.name} is at {'?' if there is None else there[1].path}")
        for name, count in self._dropped.items():
            if count:
                said.append(f"dropped:    {count} snapshots of {name}, whose files the source does not keep any more")
        if any(write.ownership == "shared" for write in writes):
            said.append(
                "guarded:    gc.enabled=false: expire_snapshots, orphan removal and DROP PURGE are refused; append, "
                "delete and rewrite work. Do not expire snapshots at the source more often than this is run."
            )
        else:
            said.append("adopted:    the files are these tables' now; their maintenance may delete them.")
        if not self._home.is_exclusive:
            said.append(
                f"careful:    the store of {self._home.shown} takes no conditional writes (If-None-Match) with these "
                "credentials: two runs at the same instant are not kept apart there"
            )
        said.append("catch up:   run the same command again")
        names = " ".join(f"--table {shlex.quote(str(write.name))}" for write in writes[:3])
        said.append(f"take over:  ducklake-bridge adopt {shlex.quote(self._locator)} {names}")
        said.append(f"undo:       ducklake-bridge release {shlex.quote(self._locator)} {names}; no data file goes")
        return said


def _listed(metadata: Mapping[str, Any], commit: str) -> frozenset[str]:
    """The data files of a state by path, and those that we wrote by what they are called after."""
    paths = [path for path, _ in held_files(metadata, commit)]
    return frozenset(paths) | {match.group(1) for path in paths if (match := _REWRITTEN.search(path))}


def _stale(metadata: Mapping[str, Any], replaces: bool, table: Table, files: Files) -> Stale:
    """Snapshots with files that the source merged, or with a type that a column cannot have any more."""
    kept = kept_commits(metadata)
    if replaces and (outgrown := outgrown_types(table, metadata)):
        return Stale(frozenset(kept), f"{'; '.join(outgrown)}, which Iceberg has no promotion for", replaces, True)
    if replaces and (keys := outgrown_specs(table, held_specs(metadata))):
        said = f"a file lies in a partition by {', '.join(keys)}, which is dropped, and DuckDB 1.5.5 cannot read that"
        return Stale(frozenset(kept), said, replaces, True)
    lost = lost_snapshots(metadata, frozenset(files.table.column("path").to_pylist()))
    said = "they list files that the source has merged or removed since"
    said += "" if replaces else "; the catalog lets no snapshot be replaced"
    return Stale(frozenset(commit for each, commit in source_commits(metadata).items() if each in lost), said, replaces)


def open_target(rest: str, options: Options) -> IcebergTarget:
    """The target behind `iceberg:DIR`."""
    return IcebergTarget(Warehouse(rest), options, f"iceberg:{rest}")


def open_catalog_target(rest: str, options: Options) -> IcebergTarget:
    """The target behind `iceberg-catalog:NAME`."""
    from converters.iceberg.catalogs.settings import read_settings
    from converters.iceberg.catalogs.writing import open_home

    return IcebergTarget(open_home(read_settings(rest, options.target_options)), options, f"iceberg-catalog:{rest}")
