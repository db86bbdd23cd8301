"""A DuckLake as a source: the tables that are live at its newest snapshot, or at the one that --at names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from bridge.errors import Blocked, Overtaken, Unreachable, UsageError
from bridge.model.expiry import Endings
from bridge.model.files import Files
from bridge.model.findings import Code, Finding
from bridge.model.objects import Objects
from bridge.model.options import Options
from bridge.model.paths import apply_map, is_absolute, is_within
from bridge.model.table import Table, TableName
from bridge.model.types import FieldId
from bridge.ports import Held, Notice, ProgressSink, TargetTable
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.counting import live_rows
from converters.ducklake.catalog.ended import ended_files, scheduled
from converters.ducklake.catalog.folders import table_folder
from converters.ducklake.catalog.handles import kept_open
from converters.ducklake.catalog.history import (
    Definition,
    LakeState,
    Snapshot,
    TableVersion,
    definition,
    is_live,
    lake_state,
    snapshot_ids,
)
from converters.ducklake.catalog.session import Place, Session, parse_place, session, with_retry
from converters.ducklake.definition import History, history_of, table_of
from converters.ducklake.endings import endings
from converters.ducklake.source_files import read_files
from converters.ducklake.source_rows import LakeRows
from converters.ducklake.wide_integers import exact, kept_exactly
from converters.storage import absolute

__all__ = ["LakeSource", "LakeSourceTable", "open_source"]

Result = TypeVar("Result")


class LakeSourceTable:
    """An opened table; its files are read on request, as of the same snapshot."""

    def __init__(
        self, source: LakeSource, version: TableVersion, found: Definition, history: History, table: Table
    ) -> None:
        self._source = source
        self._version = version
        self._found = found
        self._history = history
        self.table = table

    def files(self, progress: ProgressSink, since: int | None = None, held: Held | None = None) -> Files:
        """What the catalog says of the files of every commit, or of those that changed after one, and what only delete
        files and merged files tell."""

        def read(opened: Session) -> Files:
            return read_files(
                opened,
                self._source.state,
                self._found,
                self._history,
                self.table,
                self._source.base,
                self._source.options,
                self._source.within,
                progress,
                since,
            )

        return self._source.within(read)

    def rows(self, commit: str) -> LakeRows:
        """The rows at a commit, or now, by DuckDB."""
        snapshot = self._shown(commit) if commit else self._source.state.head
        [version] = [each for each in self._found.versions if each.live(snapshot)]
        names = {each.id: each.name for each in self._source.state.schemas}
        source = self._source
        name = names[version.schema], version.name
        return LakeRows(source.place, source.state.version, source.data_path, source.base, name, snapshot)

    def count(self, commit: str) -> int | None:
        """How many rows there are at a commit, where the catalog alone tells."""
        return self._source.within(lambda opened: live_rows(opened, self._version.id, self._shown(commit)))

    def _shown(self, commit: str) -> int:
        """The kept snapshot that shows a commit, or the state that an expired one left."""
        return self._history.snapshots[self._history.index(int(commit))].id


class LakeSource:
    """The tables of a lake; everything is as of the snapshot that was the newest when it was opened."""

    concurrent = False
    configured = ""

    def __init__(self, place: Place, options: Options) -> None:
        self.place = place
        self.options = options
        try:
            self.state = with_retry(self._opened)
        except Blocked as error:
            if error.code != "foreign-catalog":
                raise
            raise Unreachable(error.message, hint="name a lake") from error
        self.base, self.data_path = _data_path(self.state, place, options)
        self._tables = {self._name(each): each for each in self.state.tables if each.live(self.state.head)}
        self._read: dict[TableName, LakeSourceTable] = {}

    def _opened(self) -> LakeState:
        with session(self.place) as opened:
            state = lake_state(opened)
            return state if self.options.at is None else lake_state(opened, _at(state, self.options.at))

    def kept_open(self) -> AbstractContextManager[None]:
        """A DuckDB file is not opened for each question while this lasts."""
        return kept_open(self.place)

    def within(self, work: Callable[[Session], Result]) -> Result:
        """Work in a session of its own, in which the lake still holds the state that was read."""

        def once() -> Result:
            with session(self.place) as opened:
                now = snapshot_ids(opened)
                if gone := [each.id for each in self.state.snapshots if each.id not in now]:
                    raise Overtaken(
                        f"{self.place.attach}: snapshot {gone[0]} was expired since the lake was opened",
                        hint="run it again",
                    )
                return work(opened)

        return with_retry(once)

    def _name(self, each: TableVersion) -> TableName:
        schemas = {schema.id: schema.name for schema in self.state.schemas}
        if each.schema not in schemas:
            said = f"table {each.name} of {self.place.path} is in schema {each.schema}, which is not there"
            raise Blocked(said, code="metadata-unreadable", hint="restore the catalog")
        return TableName((schemas[each.schema],), each.name)

    def ended(self, name: TableName, there: TargetTable) -> Endings | None:
        """The lake's own files that only published snapshots of older states use: until the lake expires the last of
        its snapshots that do, or for those that are scheduled for deletion, until they are cleaned up."""
        version = self._tables.get(name)
        if version is None:
            return None
        with session(self.place) as opened:
            settings = reads.settings(opened)
            spans = ended_files(opened, version.id, outside=False)
            folder = table_folder(opened, self.data_path, self._name(version))
            inside = folder.removeprefix(absolute(self.data_path).rstrip("/") + "/")
            waiting = scheduled(opened, inside, there.updated or 0)
        return endings(self.state, spans, waiting, there.commits, settings)

    def tables(self) -> Sequence[TableName]:
        """The live tables."""
        return sorted(self._tables)

    def objects(self) -> Objects:
        """None that another format could hold; views and macros are noticed."""
        return Objects()

    def noticed(self) -> Sequence[Notice]:
        """Views, macros and schemas without tables."""
        head = self.state.head
        schemas = {each.id: each.name for each in self.state.schemas if each.live(head)}
        found = []
        for view in self.state.views:
            if view.live(head):
                name = TableName((schemas.get(view.schema, ""),), view.name)
                said = f"a view in {view.dialect}: {view.sql}"
                found.append(Notice(name, Finding(Code.VIEW_NOT_CARRIED, str(name), said)))
        for macro in self.state.macros:
            if macro.live(head):
                name = TableName((schemas.get(macro.schema, ""),), macro.name)
                said = f"a macro: {'; '.join(macro.sql)}"
                found.append(Notice(name, Finding(Code.MACRO_NOT_CARRIED, str(name), said)))
        used = {each.namespace[0] for each in self._tables}
        for schema in sorted(set(schemas.values()) - used - {"main"}):
            finding = Finding(Code.EMPTY_NAMESPACE, schema, "a schema without tables")
            found.append(Notice(TableName((schema,), ""), finding))
        return found

    def holds(self, name: TableName) -> bool:
        """Whether the table that was opened is still live."""
        if name not in self._tables:
            return False
        id_ = self._tables[name].id
        with session(self.place) as opened:
            return is_live(opened, id_)

    def gave(self, source: Mapping[str, str]) -> bool:
        """By the table's id where the catalog still knows it, else by its folder below the data path."""
        if source.get("format") != "ducklake":
            return False
        known = any(each.uuid == source.get("uuid") for each in self.state.tables)
        return known or is_within(source.get("location", ""), self.data_path)

    def schemas(self) -> Sequence[str]:
        """Dropped ones too, as far as the catalog still knows them."""
        return sorted({each.name for each in self.state.schemas})

    def now(self, source: Mapping[str, str]) -> TableName | None:
        """Names change, ids do not."""
        return next((name for name, each in self._tables.items() if each.uuid == source.get("uuid")), None)

    def open(self, name: TableName) -> LakeSourceTable:
        """A table's definition and history, which are read once."""
        if name not in self._read:
            self._read[name] = self._open(name)
        return self._read[name]

    def _open(self, name: TableName) -> LakeSourceTable:
        version = self._tables[name]

        def read(opened: Session) -> tuple[Definition, frozenset[FieldId]]:
            stated = definition(opened, self.state, version.id)
            return stated, kept_exactly(opened, stated, version.id, self.state.head)

        found, wide = self.within(read)
        history = history_of(self.state, found, version.id)
        table = table_of(self.state, found, history, name, self.folder(version), self.place.attach)
        table = replace(exact(table, wide), root=self.data_path)
        notes = [
            Finding(
                Code.TYPE_MAPPED, str(name), f"{each.name}: 128 bits become decimal(38, 0), which holds all of them"
            )
            for each in table.schema.fields
            if each.id in wide
        ]
        table = replace(table, findings=(*table.findings, *notes, *self._earlier(name, version)))
        if self.base:
            said = f"the data path {self.state.settings.get('data_path')} is relative: taken from {self.base}"
            elsewhere = Finding(Code.LOCATION_ELSEWHERE, str(name), said)
            table = replace(table, findings=(*table.findings, elsewhere))
        return LakeSourceTable(self, version, found, history, table)

    def _earlier(self, name: TableName, version: TableVersion) -> Sequence[Finding]:
        """That another table had the name before, which kept snapshots still show."""
        kept = {each.id for each in self.state.snapshots}
        born = min(each.begin for each in self.state.tables if each.id == version.id)
        before = [
            each
            for each in self.state.tables
            if (each.schema, each.name) == (version.schema, version.name)
            and each.id != version.id
            and each.begin < born
            and any(id_ < born and each.live(id_) for id_ in kept)
        ]
        if not before:
            return ()
        ended = max(each.end or born for each in before)
        said = (
            f"until snapshot {ended} the name was another table's, dropped or renamed since: its history is not carried"
        )
        return (Finding(Code.HISTORY_TRIMMED, str(name), said),)

    def folder(self, version: TableVersion) -> str:
        """The directory of a table, with a slash at its end."""
        schema = next(each for each in self.state.schemas if each.id == version.schema)
        above = _below(self.data_path, schema.path, schema.relative, self.options)
        return _below(above, version.path, version.relative, self.options)


def _below(above: str, path: str | None, relative: bool, options: Options) -> str:
    if path is None:
        return above
    return above + path if relative else apply_map(path, options.path_map)


def _data_path(state: LakeState, place: Place, options: Options) -> tuple[str, str]:
    """(the directory that a relative data path was taken from, the data path with a slash at its end).

    DuckDB takes it from the working directory; one that is not there but beside the catalog file is taken from there.
    """
    stored = apply_map(state.settings.get("data_path", ""), options.path_map)
    base = ""
    if not is_absolute(stored):
        base = os.getcwd()
        beside = os.path.dirname(place.path)
        if not place.is_server and not os.path.isdir(os.path.join(base, stored)):
            base = beside if os.path.isdir(os.path.join(beside, stored)) else base
        stored = os.path.join(base, stored)
    return base, stored.rstrip("/") + "/"


def _at(state: LakeState, at: str) -> int:
    """The snapshot that --at names by id or by time."""
    if at.isdigit():
        if any(each.id == int(at) for each in state.snapshots):
            return int(at)
        raise UsageError(f"--at {at}: the lake has no such snapshot", hint=_kept(state.snapshots))
    try:
        stated = datetime.fromisoformat(at.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(
            f"--at {at} is neither a snapshot nor a time", hint="give a snapshot id or a time such as 2024-01-31T10:00"
        ) from None
    stated = stated if stated.tzinfo else stated.replace(tzinfo=UTC)
    time = (stated - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    older = [each.id for each in state.snapshots if each.time <= time]
    if not older:
        raise UsageError(f"--at {at}: the lake has no snapshot that old", hint=_kept(state.snapshots))
    return max(older)


def _kept(snapshots: Sequence[Snapshot]) -> str:
    return f"it keeps {snapshots[0].id} to {snapshots[-1].id}"


def open_source(rest: str, options: Options) -> LakeSource:
    """The source behind `ducklake:REST`."""
    return LakeSource(parse_place(rest, options.metadata_schema), options)
