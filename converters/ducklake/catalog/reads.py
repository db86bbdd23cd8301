"""Named queries on a catalog; each returns plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from bridge.errors import Blocked, Overtaken
from bridge.model.table import TableName
from bridge.ports import Bookmark
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import TABLES, table
from converters.ducklake.catalog.times import micros
from converters.ducklake.catalog.traces import sorts_alone, trace
from converters.ducklake.columns import ColumnRow
from converters.ducklake.stats import TableStat

__all__ = [
    "AUTHOR",
    "DATA_CHANGES",
    "MAINTENANCE",
    "DeleteFile",
    "Head",
    "LakeTable",
    "LiveFile",
    "Noted",
    "bookmark",
    "changes",
    "columns",
    "delete_files",
    "ended_tables",
    "file_count",
    "file_paths",
    "gone",
    "has_foreign_absolute",
    "head",
    "live_files",
    "live_tables",
    "lost_tables",
    "noted_of",
    "noted_snapshots",
    "outside_tables",
    "paths_with",
    "remote_paths",
    "schemas",
    "settings",
    "settings_of",
    "shared_tables",
    "table_called",
    "table_setting",
    "table_stats",
    "tags",
    "version",
]

VERSION = "1.0"
_CHANGE = re.compile(r'([a-z_]+):((?:"(?:[^"]|"")*"(?:\."(?:[^"]|"")*")?)|\d+)')
AUTHOR = "ducklake-bridge"
"""Who our snapshots say that they are by."""
DATA_CHANGES = frozenset(
    {
        "inserted_into_table",
        "deleted_from_table",
        "altered_table",
        "dropped_table",
        "inlined_insert",
        "inlined_delete",
        "inline_flush",
        "flushed_inlined",
        "merge_adjacent",
        "rewrite_delete",
        "compacted_table",
    }
)
"""Words of changes_made that name a table by id, as DuckDB 1.5.5 writes and reads them."""

MAINTENANCE = frozenset({"inline_flush", "flushed_inlined", "merge_adjacent", "rewrite_delete", "compacted_table"})
"""Those of them that change files and no rows."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest snapshot and its counters; `time` is microseconds from 1970."""

    snapshot: int
    time: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A live table of the lake."""

    id: int
    schema_id: int
    schema: str
    name: str

    @property
    def called(self) -> TableName:
        """Its name; a table of the schema main has no namespace."""
        return TableName(() if self.schema == "main" else (self.schema,), self.name)

    def is_called(self, name: TableName) -> bool:
        """Whether it has a name, whatever the case."""
        schema = ".".join(name.namespace) or "main"
        return (self.schema.casefold(), self.name.casefold()) == (schema.casefold(), name.name.casefold())


def version(session: Session) -> str:
    """The catalog's format version; Blocked when this is no DuckLake, or one that we do not write."""
    path = session.place.path
    if not session.has_table("ducklake_metadata"):
        raise Blocked(
            f"{path} is not a DuckLake catalog: it has no table ducklake_metadata",
            code="foreign-catalog",
            hint="name a new file; nothing was written",
        )
    found = settings(session).get("version", "")
    if found == VERSION:
        for each in TABLES.values():
            session.rows(sa.select(each).limit(0))  # Blocked when a table or column is missing
        return found
    if found.startswith("0."):
        raise Blocked(
            f"catalog {path} has format version {found}; {VERSION} is needed",
            code="catalog-version",
            hint=f"upgrade it in DuckDB: {session.place.statement('AUTOMATIC_MIGRATION true')}",
        )
    raise Blocked(
        f"catalog {path} has format version {found or 'none'!r}; this release writes {VERSION}",
        code="catalog-version",
        hint="use a release of ducklake-bridge that knows it",
    )


def settings(session: Session) -> dict[str, str]:
    """The catalog-wide settings."""
    each = table("metadata").c
    rows = session.rows(sa.select(each.key, each.value).where(each.scope.is_(None)))
    return {row[0]: row[1] for row in rows}


def settings_of(session: Session, schema: str, name: str, given: Mapping[str, str]) -> dict[str, str]:
    """The settings in force for a table: its own, its schema's, the catalog's, in this order. One that is not there
    yet will have those `given`."""
    each = table("metadata").c

    def inner(scope: str, ids: Iterable[int]) -> dict[str, str]:
        query = sa.select(each.key, each.value).where(each.scope == scope, each.scope_id.in_(ids))
        return {row[0]: row[1] for row in session.rows(query)}

    known = [id_ for other, id_ in schemas(session).items() if other.casefold() == schema.casefold()]
    same = [other for other in live_tables(session) if other.name.casefold() == name.casefold()]
    held = [other.id for other in same if other.schema_id in known]
    return {**settings(session), **inner("schema", known), **(inner("table", held) if held else given)}


def table_setting(session: Session, table_id: int, key: str) -> str | None:
    """A setting of one table."""
    each = table("metadata").c
    rows = session.rows(sa.select(each.value).where(each.scope == "table", each.scope_id == table_id, each.key == key))
    return rows[0][0] if rows else None


def head(session: Session) -> Head:
    """The newest snapshot; Blocked when the catalog has none."""
    each = table("snapshot").c
    time = sa.cast(each.snapshot_time, sa.String) if session.place.backend == "sqlite" else each.snapshot_time
    found = session.rows(
        sa.select(each.snapshot_id, time, each.schema_version, each.next_catalog_id, each.next_file_id)
        .order_by(each.snapshot_id.desc())
        .limit(1)
    )
    if not found:
        raise Blocked(f"catalog {session.place.path} has no snapshot", code="foreign-catalog")
    times = session.rows(sa.select(time))
    return Head(found[0][0], max(micros(row[0]) for row in times), found[0][2], found[0][3], found[0][4])


def schemas(session: Session) -> dict[str, int]:
    """The live schemas by name."""
    each = table("schema").c
    found = session.rows(sa.select(each.schema_name, each.schema_id).where(each.end_snapshot.is_(None)))
    return {row[0]: row[1] for row in found}


def live_tables(session: Session) -> list[LakeTable]:
    """Every live table; views share the names of a schema and count as tables here, with id -1."""
    schema, each, view = table("schema").c, table("table").c, table("view").c
    found = session.rows(
        sa.select(each.table_id, schema.schema_id, schema.schema_name, each.table_name)
        .join(table("schema"), schema.schema_id == each.schema_id)
        .where(each.end_snapshot.is_(None), schema.end_snapshot.is_(None))
    )
    found += session.rows(
        sa.select(sa.literal(-1), schema.schema_id, schema.schema_name, view.view_name)
        .join(table("schema"), schema.schema_id == view.schema_id)
        .where(view.end_snapshot.is_(None), schema.end_snapshot.is_(None))
    )
    return [LakeTable(*row) for row in found]


def table_called(session: Session, name: TableName) -> LakeTable | None:
    """The live table of a name, whatever its case; a view is none."""
    return next((each for each in live_tables(session) if each.id >= 0 and each.is_called(name)), None)


def gone(session: Session, name: TableName) -> Overtaken:
    """That a table which was looked at is not there any more."""
    return Overtaken(f"{name} is gone from {session.place.path} since it was looked at", hint="run it again")


def bookmark(session: Session, table_id: int) -> Bookmark | None:
    """What we noted in the catalog about a table that we wrote, with the first change by anybody else since."""
    each = table("metadata").c
    rows = session.rows(
        sa.select(each.key, each.value).where(
            each.scope == "table", each.scope_id == table_id, each.key.startswith("bridge.")
        )
    )
    noted = {key.removeprefix("bridge."): value for key, value in rows}
    if "source" not in noted:
        return None
    try:
        source, snapshot = dict(json.loads(noted["source"])), int(noted.get("snapshot", 0))
        last, count = json.loads(noted.get("state", "[null, null]"))
    except (ValueError, TypeError) as error:
        raise Blocked(
            f"catalog {session.place.path}: the bridge's own notes on table {table_id} are damaged",
            code="foreign-catalog",
            hint="restore the catalog",
        ) from error
    changed_by = _changed_since(session, table_id, snapshot, noted.get("files", ""))
    return Bookmark(
        source=source,
        commit=noted.get("source_commit", ""),
        definition=noted.get("definition", ""),
        plan=noted.get("plan", ""),
        ownership=noted.get("ownership", "shared"),
        changed_by=changed_by,
        maintained=changed_by.split(" ")[0] in MAINTENANCE,
        state=None if count is None else (str(last), int(count)),
    )


def _changed_since(session: Session, table_id: int, snapshot: int, files: str) -> str:
    """The first change; before it a drop, which leaves nothing to go on with, and after it what only moved files."""
    each = table("snapshot_changes").c
    rows = session.rows(
        sa.select(each.snapshot_id, each.changes_made).where(each.snapshot_id > snapshot).order_by(each.snapshot_id)
    )
    changed = maintained = ""
    for id_, made in rows:
        for word, what in changes(made or ""):
            if word in DATA_CHANGES and what == str(table_id):
                said = f"{word} in snapshot {id_}"
                if word == "dropped_table":
                    return said
                if word == "altered_table" and sorts_alone(session, table_id, id_):
                    continue
                if word in MAINTENANCE:
                    maintained = maintained or said
                else:
                    changed = changed or said
    if not changed and rows and len(rows) < rows[-1][0] - snapshot:  # some have expired, and what they say with them
        found = trace(session, table_id, snapshot, files)
        changed = "" if found.split(" ")[0] in MAINTENANCE or maintained else found
        maintained = maintained or found
    return changed or maintained


def changes(text: str) -> Iterator[tuple[str, str]]:
    """(word, id or quoted name) pairs of a changes_made text."""
    for found in _CHANGE.finditer(text):
        yield found.group(1), found.group(2)


def columns(session: Session, table_id: int) -> dict[int, ColumnRow]:
    """The live column rows of a table."""
    each = table("column").c
    rows = session.rows(
        sa.select(
            each.column_id,
            each.column_order,
            each.column_name,
            each.column_type,
            each.initial_default,
            each.default_value,
            each.default_value_type,
            each.nulls_allowed,
            each.parent_column,
        ).where(each.table_id == table_id, each.end_snapshot.is_(None))
    )
    return {
        row[0]: ColumnRow(
            order=row[1],
            name=row[2],
            type=row[3],
            initial_default=row[4],
            default=None if row[5] in (None, "NULL") and row[6] != "expression" else row[5],
            nulls_allowed=bool(row[7]),
            parent=row[8],
            is_expression=row[6] == "expression",
        )
        for row in rows
    }


def tags(session: Session, name: str, *keys: sa.ColumnElement[bool]) -> list[tuple[int, str, str]]:
    """(object or column id, key, value) of the live rows of `tag` or `column_tag`."""
    each = table(name).c
    id_ = each.object_id if name == "tag" else each.column_id
    return [
        (row[0], row[1], row[2])
        for row in session.rows(sa.select(id_, each.key, each.value).where(each.end_snapshot.is_(None), *keys))
    ]


_ASKED = 500
"""Paths in one query."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live data file of a table."""

    id: int
    row_id_start: int
    record_count: int


def live_files(
    session: Session, table_id: int, folder: str, paths: Sequence[str] | None = None, own: bool = False
) -> dict[str, LiveFile]:
    """The live files by absolute path: all, those of some paths, or the lake's own; `folder` is the table's
    directory."""
    each = table("data_file").c
    query = sa.select(each.path, each.data_file_id, each.row_id_start, each.record_count, each.path_is_relative).where(
        each.table_id == table_id, each.end_snapshot.is_(None)
    )
    if own:
        query = query.where(each.path_is_relative)
    if paths is None or len(paths) > _ASKED * 20:
        rows = session.rows(query)
    else:
        stored = [*paths, *(path.removeprefix(folder) for path in paths if path.startswith(folder))]
        rows = [
            row
            for start in range(0, len(stored), _ASKED)
            for row in session.rows(query.where(each.path.in_(stored[start : start + _ASKED])))
        ]
    return {
        folder + path if relative else path: LiveFile(id_, start, count) for path, id_, start, count, relative in rows
    }


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A live delete file of a table; `begin` is the first snapshot in which it applies."""

    id: int
    data_file: int
    path: str
    relative: bool
    begin: int


def delete_files(session: Session, table_id: int, files: Sequence[int] | None = None) -> list[DeleteFile]:
    """The live delete files of a table, or those of some data files, by id."""
    each = table("delete_file").c
    query = sa.select(
        each.delete_file_id, each.data_file_id, each.path, each.path_is_relative, each.begin_snapshot
    ).where(each.table_id == table_id, each.end_snapshot.is_(None))
    if files is None or len(files) > _ASKED * 20:
        rows = session.rows(query)
    else:
        parts = [files[start : start + _ASKED] for start in range(0, len(files), _ASKED)]
        rows = [row for part in parts for row in session.rows(query.where(each.data_file_id.in_(part)))]
    return [DeleteFile(id_, file, path, bool(relative), begin) for id_, file, path, relative, begin in rows]


def file_paths(session: Session, table_id: int) -> dict[int, tuple[str, bool]]:
    """(stored path, whether it is relative to the table's directory) of every data file of a table, ended ones too."""
    each = table("data_file").c
    rows = session.rows(sa.select(each.data_file_id, each.path, each.path_is_relative).where(each.table_id == table_id))
    return {id_: (path, bool(relative)) for id_, path, relative in rows}


def paths_with(session: Session, text: str) -> frozenset[str]:
    """Everything that the catalog refers to, in any table, by a path that holds a text."""
    found: set[str] = set()
    for name in ("data_file", "delete_file", "files_scheduled_for_deletion"):
        path = table(name).c.path
        found |= {row[0] for row in session.rows(sa.select(path).where(path.contains(text, autoescape=True)))}
    return frozenset(found)


def table_stats(session: Session, table_id: int) -> tuple[tuple[int, int, int] | None, Mapping[int, TableStat]]:
    """((record_count, next_row_id, file_size_bytes) or None, column statistics by column id)."""
    each, column = table("table_stats").c, table("table_column_stats").c
    totals = session.rows(
        sa.select(each.record_count, each.next_row_id, each.file_size_bytes).where(each.table_id == table_id)
    )
    rows = session.rows(
        sa.select(column.column_id, column.contains_null, column.min_value, column.max_value).where(
            column.table_id == table_id
        )
    )
    found = {row[0]: TableStat(row[1] is None or bool(row[1]), row[2], row[3]) for row in rows}
    return (tuple(totals[0]) if totals else None), found


def shared_tables(session: Session) -> list[int]:
    """Ids of the tables that share files with their source, dropped ones too as long as a file is registered."""
    each, outside = table("metadata").c, outside_tables(session)
    rows = session.rows(
        sa.select(each.scope_id).where(
            each.scope == "table", each.key == "bridge.ownership", each.value == "shared", each.scope_id.is_not(None)
        )
    )
    return [id_ for (id_,) in rows if id_ in outside]


def outside_tables(session: Session) -> frozenset[int]:
    """Ids of the tables that have a data file outside the data path."""
    file = table("data_file").c
    rows = session.rows(sa.select(file.table_id, file.path_is_relative).distinct())
    return frozenset(id_ for id_, relative in rows if not relative)


def ended_tables(session: Session) -> list[LakeTable]:
    """Tables that were dropped in the lake and that it still knows, newest first."""
    return [each for each, _ in _ended(session, dropped=True)]


def lost_tables(session: Session) -> list[tuple[LakeTable, Bookmark]]:
    """Tables that we wrote as they were called until somebody else dropped or renamed them, which their bookmarks say;
    newest first."""
    found = []
    live = {each.id: each for each in live_tables(session)}
    author = table("snapshot_changes").c
    for old, end in (*_ended(session, dropped=True), *_ended(session, dropped=False)):
        mark, now = bookmark(session, old.id), live.get(old.id)
        if mark is None:
            continue
        said = f"dropped_table in snapshot {end}"
        if now is not None:
            # a mirror of before did not note its renames
            by = session.rows(sa.select(author.author).where(author.snapshot_id == end))
            if by == [(AUTHOR,)] or end <= int(table_setting(session, old.id, "bridge.snapshot") or 0):
                continue
            said = f"renamed_table to {now.schema}.{now.name} in snapshot {end}"
        found.append((end, old, replace(mark, changed_by=said, maintained=False)))
    return [each[1:] for each in sorted(found, key=lambda each: -each[0])]


def _ended(session: Session, dropped: bool) -> list[tuple[LakeTable, int]]:
    """What tables were called, and until which snapshot: those that are gone, or those that have another name now."""
    schema, each = table("schema").c, table("table").c
    live = sa.select(each.table_id).where(each.end_snapshot.is_(None))
    found = session.rows(
        sa.select(each.table_id, schema.schema_id, schema.schema_name, each.table_name, each.end_snapshot)
        .join(table("schema"), schema.schema_id == each.schema_id)
        .where(each.end_snapshot.is_not(None), each.table_id.not_in(live) if dropped else each.table_id.in_(live))
        .order_by(each.end_snapshot.desc())
    )
    return [(LakeTable(*row[:-1]), row[-1]) for row in found]


def has_foreign_absolute(session: Session) -> bool:
    """Whether a file outside the data path is scheduled for deletion already."""
    each = table("files_scheduled_for_deletion").c
    return any(not relative for (relative,) in session.rows(sa.select(each.path_is_relative)))


def remote_paths(session: Session) -> list[str]:
    """One registered path with a scheme, if there is any."""
    path = table("data_file").c.path
    return [row[0] for row in session.rows(sa.select(path).where(path.like("%://%")).limit(1))]


@dataclass(frozen=True, slots=True)
class Noted:
    """A snapshot that we made for a source commit of a table, and what the table was called then."""

    commit: str
    snapshot: int
    schema: str
    name: str


def noted_snapshots(session: Session, table_id: int) -> list[Noted]:
    """What our snapshots say of themselves about a table, oldest first, whatever it was called."""
    names = _names(session, table_id)
    known = {_full(schema, name).casefold() for _, schema, name in names}
    each = table("snapshot_changes").c
    rows = session.rows(
        sa.select(each.snapshot_id, each.commit_extra_info).where(each.author == AUTHOR).order_by(each.snapshot_id)
    )
    found = []
    for id_, info in rows:
        try:
            for noted in json.loads(info or "{}")["tables"]:
                # older releases did not note the id
                if noted["id"] == table_id if "id" in noted else str(noted["table"]).casefold() in known:
                    begun = [each for each in names if each[0] <= id_] or names[:1]
                    found.append(Noted(str(noted["commit"]), int(id_), *begun[-1][1:]))
        except (ValueError, TypeError, KeyError):
            continue  # somebody rewrote what was for people to read
    return found


def noted_of(session: Session, name: TableName) -> list[Noted]:
    """What our snapshots say of a live table."""
    held = table_called(session, name)
    return [] if held is None else noted_snapshots(session, held.id)


def _names(session: Session, table_id: int) -> list[tuple[int, str, str]]:
    """(first snapshot, schema, name) of a table under each of its names, oldest first."""
    schema, each = table("schema").c, table("table").c
    found = session.rows(
        sa.select(each.begin_snapshot, schema.schema_name, each.table_name)
        .join(table("schema"), schema.schema_id == each.schema_id)
        .where(each.table_id == table_id)
        .order_by(each.begin_snapshot)
    )
    return [(int(begin), schema_name, name) for begin, schema_name, name in found]


def _full(schema: str, name: str) -> str:
    """As TableName writes it."""
    return name if schema == "main" else f"{schema}.{name}"


def file_count(session: Session, table_id: int) -> int:
    """How many live data files a table has."""
    each = table("data_file").c
    query = sa.select(sa.func.count()).where(each.table_id == table_id, each.end_snapshot.is_(None))
    return int(session.rows(query)[0][0])
