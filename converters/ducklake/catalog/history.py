"""What a catalog says of its history: snapshots, schemas, tables, and everything about one table but its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from bridge.errors import Blocked
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.overlay import Overlay, require_readable
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import inlined_deletes
from converters.ducklake.catalog.times import micros

__all__ = [
    "ColumnVersion",
    "Definition",
    "Keys",
    "LakeState",
    "Macro",
    "Snapshot",
    "Spanned",
    "TableVersion",
    "View",
    "definition",
    "inlined_tables",
    "is_live",
    "lake_state",
    "snapshot_ids",
]


@dataclass(frozen=True, slots=True)
class Spanned:
    """Something that a catalog holds from snapshot `begin` on and until `end` (None: still)."""

    begin: int
    end: int | None

    def live(self, snapshot: int) -> bool:
        """Whether a snapshot sees it."""
        return self.begin <= snapshot and (self.end is None or self.end > snapshot)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that the lake keeps; `time` is microseconds from 1970, `told` whether it says what it changed, and
    `next_file_id` what the next file was to be called."""

    id: int
    time: int
    schema_version: int
    next_file_id: int | None = None
    told: bool = False
    author: str = ""
    message: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Stored(Spanned):
    """A directory as it is stored."""

    path: str | None
    relative: bool


@dataclass(frozen=True, slots=True)
class SchemaVersion(Stored):
    """A schema of the lake."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class TableVersion(Stored):
    """A table under one of the names that it had."""

    id: int
    uuid: str
    schema: int
    name: str


@dataclass(frozen=True, slots=True)
class View(Spanned):
    """A view."""

    schema: int
    name: str
    dialect: str
    sql: str


@dataclass(frozen=True, slots=True)
class Macro(Spanned):
    """A macro with its implementations' texts."""

    schema: int
    name: str
    sql: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnVersion(Spanned):
    """A row of ducklake_column; `default` is None where there is none, `is_expression` when it is no literal."""

    id: int
    order: int
    name: str
    type: str
    initial_default: str | None
    default: str | None
    is_expression: bool
    nulls_allowed: bool
    parent: int | None


@dataclass(frozen=True, slots=True)
class Tag(Spanned):
    """A tag of a table (column 0) or of one of its columns."""

    column: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Keys(Spanned):
    """A partition spec, whose keys are (column id as text, transform), or a sort order, whose keys are (expression,
    dialect, direction, null order)."""

    id: int
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class LakeState:
    """A lake as of snapshot `head`, the last of `snapshots`. `changes` has (snapshot, word) pairs by table id."""

    version: str
    settings: Mapping[str, str]
    snapshots: tuple[Snapshot, ...]
    schemas: tuple[SchemaVersion, ...]
    tables: tuple[TableVersion, ...]
    views: tuple[View, ...]
    macros: tuple[Macro, ...]
    changes: Mapping[int, Sequence[tuple[int, str]]]

    @property
    def head(self) -> int:
        return self.snapshots[-1].id


@dataclass(frozen=True, slots=True)
class Definition:
    """Everything that a catalog says of one table in its history, but its files."""

    versions: tuple[TableVersion, ...]
    columns: tuple[ColumnVersion, ...]
    tags: tuple[Tag, ...] = ()
    specs: tuple[Keys, ...] = ()
    sorts: tuple[Keys, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    next_row_id: int | None = None
    touched: frozenset[int] = frozenset()
    """Every snapshot at which something of the table begins or ends, whether or not the lake still keeps it."""
    has_partial: bool = False
    """Whether files hold rows or deletes of several snapshots."""
    deletes: tuple[tuple[int, int], ...] = ()
    """First and last snapshot of what may have deleted rows."""

    def may_delete(self, snapshot: int) -> bool:
        """Whether a row may have been deleted in a snapshot."""
        return any(first <= snapshot <= last for first, last in self.deletes)


def lake_state(session: Session, at: int | None = None) -> LakeState:
    """The lake as of its newest snapshot, or of the snapshot `at`."""
    version, catalog = require_readable(session), Overlay(session)
    snapshots, changes = _snapshots(catalog, at)
    if not snapshots:
        raise Blocked(f"catalog {session.place.path} has no snapshot", code="foreign-catalog")
    head = snapshots[-1].id
    tables = catalog.rows(
        "table",
        *("begin_snapshot", "end_snapshot", "path", "path_is_relative", "table_id", "table_uuid", "schema_id"),
        "table_name",
    )
    schemas = catalog.rows(
        "schema", "begin_snapshot", "end_snapshot", "path", "path_is_relative", "schema_id", "schema_name"
    )
    views = catalog.rows("view", "begin_snapshot", "end_snapshot", "schema_id", "view_name", "dialect", "sql")
    return LakeState(
        version=version,
        settings=catalog.settings(),
        snapshots=tuple(snapshots),
        schemas=tuple(
            SchemaVersion(row[0], row[1], row[2], bool(row[3]), row[4], row[5]) for row in schemas if row[0] <= head
        ),
        tables=tuple(
            TableVersion(row[0], row[1], row[2], bool(row[3]), row[4], row[5], row[6], row[7])
            for row in tables
            if row[0] <= head
        ),
        views=tuple(View(*row) for row in views if row[0] <= head),
        macros=tuple(each for each in _macros(catalog) if each.begin <= head),
        changes=changes,
    )


def is_live(session: Session, table_id: int) -> bool:
    """Whether a table is there now."""
    spans = Overlay(session).rows("table", "end_snapshot", where=lambda each: each.table_id == table_id)
    return any(end is None for (end,) in spans)


def snapshot_ids(session: Session) -> frozenset[int]:
    """The snapshots that the lake keeps now."""
    return frozenset(row[0] for row in Overlay(session).rows("snapshot", "snapshot_id"))


def _snapshots(catalog: Overlay, at: int | None) -> tuple[list[Snapshot], dict[int, list[tuple[int, str]]]]:
    """The snapshots until one, and what they changed by table id."""
    until = None if at is None else lambda each: each.snapshot_id <= at
    said: dict[int, tuple[str, str, str, bool]] = {}
    changes: dict[int, list[tuple[int, str]]] = {}
    columns = ("snapshot_id", "changes_made", "author", "commit_message", "commit_extra_info")
    for id_, made, *texts in catalog.rows("snapshot_changes", *columns, where=until):
        author, message, extra = (text or "" for text in texts)
        said[id_] = author, message, extra, bool(made)
        for word, what in reads.changes(made or ""):
            if what.isdigit():
                changes.setdefault(int(what), []).append((id_, word))
    rows = catalog.rows("snapshot", "snapshot_id", "snapshot_time", "schema_version", "next_file_id", where=until)
    snapshots = []
    try:
        for id_, time, version, next_file in rows:
            author, message, extra, told = said.get(id_, ("", "", "", False))
            snapshots.append(Snapshot(id_, micros(time), version, next_file, told, author, message, extra))
    except ValueError as error:
        raise Blocked(f"a snapshot has no valid time: {error}", code="metadata-unreadable") from error
    return sorted(snapshots, key=lambda each: each.id), changes


def _macros(catalog: Overlay) -> list[Macro]:
    texts: dict[int, list[str]] = {}
    for id_, sql in catalog.rows("macro_impl", "macro_id", "sql"):
        texts.setdefault(id_, []).append(sql)
    rows = catalog.rows("macro", "begin_snapshot", "end_snapshot", "schema_id", "macro_name", "macro_id")
    return [Macro(row[0], row[1], row[2], row[3], tuple(texts.get(row[4], ()))) for row in rows]


def definition(session: Session, state: LakeState, table_id: int) -> Definition:
    """One table as of the state's head."""
    catalog, head = Overlay(session), state.head
    mine = lambda each: each.table_id == table_id  # noqa: E731  # a condition, given to several queries
    columns = [each for each in _columns(catalog, mine) if each.begin <= head]
    if not any(each.live(head) for each in columns):
        raise Blocked(f"table {table_id} of {session.place.path} has no columns", code="no-columns")
    tags = [
        *_tags(catalog, "tag", "object_id", None, lambda each: each.object_id == table_id),
        *_tags(catalog, "column_tag", "table_id", "column_id", mine),
    ]
    totals = catalog.rows("table_stats", "next_row_id", where=mine)
    settings = {
        key: value
        for key, value, scope, scope_id in catalog.rows("metadata", "key", "value", "scope", "scope_id")
        if scope == "table" and scope_id == table_id
    }
    versions = tuple(each for each in state.tables if each.id == table_id)
    specs = [
        Keys(begin, end, id_, tuple((str(column), transform) for _, column, transform in keys))
        for id_, begin, end, keys in _keyed(
            catalog, "partition", "partition_key_index", ("column_id", "transform"), mine
        )
    ]
    sorts = [
        Keys(begin, end, id_, tuple(tuple(key[1:]) for key in keys))
        for id_, begin, end, keys in _keyed(
            catalog,
            "sort",
            "sort_key_index",
            ("expression", "dialect", "sort_direction", "null_order"),
            mine,
        )
    ]
    every: list[Spanned] = [*versions, *columns, *tags, *specs, *sorts]
    files = _files(catalog, mine)
    return Definition(
        versions=versions,
        columns=tuple(columns),
        tags=tuple(each for each in tags if each.begin <= head),
        specs=tuple(each for each in specs if each.begin <= head),
        sorts=tuple(each for each in sorts if each.begin <= head),
        settings=settings,
        next_row_id=totals[0][0] if totals else None,
        touched=_events((each.begin, each.end) for each in every)
        | files.events()
        | _row_events(session, catalog, table_id),
        has_partial=files.partial,
        deletes=(*files.deleted(), *_row_deletes(session, catalog, table_id)),
    )


def _columns(catalog: Overlay, mine: Any) -> list[ColumnVersion]:
    rows = catalog.rows(
        "column",
        *("begin_snapshot", "end_snapshot", "column_id", "column_order", "column_name", "column_type"),
        *("initial_default", "default_value", "default_value_type", "nulls_allowed", "parent_column"),
        where=mine,
    )
    return [
        ColumnVersion(
            begin=begin,
            end=end,
            id=id_,
            order=order,
            name=name,
            type=type_,
            initial_default=initial,
            default=None if default == "NULL" and kind != "expression" else default,
            is_expression=kind == "expression",
            nulls_allowed=nulls is None or bool(nulls),
            parent=parent,
        )
        for begin, end, id_, order, name, type_, initial, default, kind, nulls, parent in rows
    ]


def _tags(catalog: Overlay, name: str, owner: str, column: str | None, mine: Any) -> list[Tag]:
    rows = catalog.rows(name, "begin_snapshot", "end_snapshot", "key", "value", column or owner, where=mine)
    return [Tag(row[0], row[1], row[4] if column else 0, row[2], row[3] or "") for row in rows]


def _keyed(
    catalog: Overlay, kind: str, order: str, columns: Sequence[str], mine: Any
) -> list[tuple[int, int, int | None, list[tuple[Any, ...]]]]:
    """(id, begin, end, keys in their order) of the partition specs or sort orders of a table."""
    infos = catalog.rows(f"{kind}_info", f"{kind}_id", "begin_snapshot", "end_snapshot", where=mine)
    below = "partition_column" if kind == "partition" else "sort_expression"
    keys: dict[int, list[tuple[Any, ...]]] = {}
    for row in catalog.rows(below, f"{kind}_id", order, *columns, where=mine):
        keys.setdefault(row[0], []).append(tuple(row[1:]))
    # two keys of one column may carry the same number (add_data_files of DuckDB 1.5.5)
    return [(id_, begin, end, sorted(keys.get(id_, ()), key=lambda key: key[0])) for id_, begin, end in infos]


def _events(spans: Iterable[Iterable[int | None]]) -> frozenset[int]:
    return frozenset(each for span in spans for each in span if each is not None)


@dataclass(frozen=True, slots=True)
class _Files:
    """When the files of a table begin and end, each combination once: (begin, end, the last snapshot of the rows in
    it); `partial` tells whether any holds rows of several snapshots."""

    data: Sequence[tuple[int | None, int | None, int | None]]
    deletes: Sequence[tuple[int | None, int | None, int | None]]
    partial: bool

    def events(self) -> frozenset[int]:
        return _events((*self.data, *self.deletes))

    def deleted(self) -> Iterator[tuple[int, int]]:
        """The spans in which rows were deleted."""
        yield from ((begin, last or begin) for begin, _, last in self.deletes if begin is not None)
        yield from ((end, end) for end in {end for _, end, _ in self.data} if end is not None)


def _files(catalog: Overlay, mine: Any) -> _Files:
    found = []
    for name, *more in (("data_file", "partial_file_info"), ("delete_file",)):
        query = catalog.select(name, "begin_snapshot", "end_snapshot", "partial_max", *more, where=mine)
        rows: list[Any] = []
        if query is not None:
            each = query.subquery().c
            told = each.partial_file_info.is_not(None) if more else sa.false()
            # one pass over what may be a million rows
            rows = catalog.session.rows(
                sa.select(each.begin_snapshot, each.end_snapshot, each.partial_max, told).distinct()
            )
        found.append(rows)
    data, deletes = ([(row[0], row[1], row[2]) for row in rows] for rows in found)
    partial = any(row[2] is not None or row[3] for rows in found for row in rows)
    return _Files(data, deletes, partial)


def inlined_tables(catalog: Overlay, table_id: int) -> list[tuple[str, int]]:
    """(name, schema version) of the tables that hold inlined rows of a table."""
    rows = catalog.rows(
        "inlined_data_tables", "table_name", "schema_version", where=lambda each: each.table_id == table_id
    )
    return sorted(((name, version) for name, version in rows), key=lambda each: (each[1], each[0]))


def _row_events(session: Session, catalog: Overlay, table_id: int) -> frozenset[int]:
    """When rows in the catalog began and ended."""
    found: set[int] = set()
    for name, _ in inlined_tables(catalog, table_id):
        held = catalog.probed(name)
        found |= _events(session.rows(sa.select(held.c.begin_snapshot, held.c.end_snapshot).distinct()))
    deletes = inlined_deletes(table_id)
    if session.has_table(deletes.name):
        found |= _events(session.rows(sa.select(deletes.c.begin_snapshot).distinct()))
    return frozenset(found)


def _row_deletes(session: Session, catalog: Overlay, table_id: int) -> Iterator[tuple[int, int]]:
    """The spans in which rows were deleted that lie in the catalog, or whose deletion it notes."""
    for name, _ in inlined_tables(catalog, table_id):
        held = catalog.probed(name)
        for (end,) in session.rows(sa.select(held.c.end_snapshot).distinct()):
            if end is not None:
                yield end, end
    noted = inlined_deletes(table_id)
    if session.has_table(noted.name):
        for (begin,) in session.rows(sa.select(noted.c.begin_snapshot).distinct()):
            if begin is not None:
                yield begin, begin
