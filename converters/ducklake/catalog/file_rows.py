"""What a catalog says of the files of a table, column by column, and of the rows that it holds itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import sqlalchemy as sa

from bridge.errors import Blocked
from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.types import FieldId
from converters.ducklake.catalog.history import inlined_tables
from converters.ducklake.catalog.overlay import Condition, Overlay, frames
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import inlined_deletes

__all__ = ["MEASURES", "FileRows", "InlinedGroup", "Later", "has_files", "mappings", "read_rows", "stat_frames"]

_DATA = {
    "data_file_id": pl.Int64,
    "begin_snapshot": pl.Int64,
    "end_snapshot": pl.Int64,
    "file_order": pl.Int64,
    "path": pl.String,
    "path_is_relative": pl.Boolean,
    "file_format": pl.String,
    "record_count": pl.Int64,
    "file_size_bytes": pl.Int64,
    "footer_size": pl.Int64,
    "row_id_start": pl.Int64,
    "partition_id": pl.Int64,
    "encryption_key": pl.String,
    "mapping_id": pl.Int64,
    "partial_max": pl.Int64,
    "partial_file_info": pl.String,
}
_DELETE = {
    "delete_file_id": pl.Int64,
    "data_file_id": pl.Int64,
    "begin_snapshot": pl.Int64,
    "end_snapshot": pl.Int64,
    "path": pl.String,
    "path_is_relative": pl.Boolean,
    "format": pl.String,
    "delete_count": pl.Int64,
    "file_size_bytes": pl.Int64,
    "encryption_key": pl.String,
}
MEASURES = {
    "column_size_bytes": pl.Int64,
    "value_count": pl.Int64,
    "null_count": pl.Int64,
    "min_value": pl.String,
    "max_value": pl.String,
    "contains_nan": pl.Boolean,
}
"""What a catalog says of a column in a file."""
_STATS = {"data_file_id": pl.Int64, "column_id": pl.Int64, **MEASURES}
_HELD = {"row_id": pl.Int64, "begin_snapshot": pl.Int64, "end_snapshot": pl.Int64}
_NAMED = 5_000
"""How many ids of files are named in a query; more are looked for again."""
_NOTED = {"file_id": pl.Int64, "row_id": pl.Int64, "begin_snapshot": pl.Int64}


@dataclass(frozen=True, slots=True)
class InlinedGroup:
    """Rows that the catalog holds and that began in one snapshot, in the order of their row ids; `ends` are the
    snapshots that ended them (NULL: live). `first_row_id` is None when the ids are not consecutive."""

    table: str
    schema_version: int
    begin: int
    ends: pl.Series
    first_row_id: int | None
    digest: str

    @property
    def name(self) -> str:
        """What stands for a path: the same for the same rows alone."""
        return f"{self.table}@{self.begin}.{len(self.ends)}.{self.digest}"


@dataclass(frozen=True, slots=True)
class Later:
    """What came after a snapshot; `file` is the first id that was given to a file after it."""

    snapshot: int
    file: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """All of it, or what concerns files that changed later, as the catalog's columns."""

    data: pl.DataFrame
    deletes: pl.DataFrame
    noted: pl.DataFrame
    """Rows of the table that notes deleted positions: file_id, row_id (a position), begin_snapshot."""
    inlined: tuple[InlinedGroup, ...]
    mappings: Mapping[int, NameMapping]
    rest: int = 0
    """The live rows of what was left out."""


def _mine(table_id: int) -> Condition:
    return lambda each: each.table_id == table_id


def _concerned(session: Session, catalog: Overlay, table_id: int, later: Later | None) -> Condition:
    """The rows of data files that begin or end after a snapshot or were registered after it, in which rows are deleted
    later, or that lie where one lies that begins later."""
    if later is None:
        return _mine(table_id)
    deleting = catalog.select(
        "delete_file",
        "data_file_id",
        where=lambda each: (
            (each.table_id == table_id) & _changed(each, later)
            | (each.table_id == table_id) & (each.delete_file_id >= later.file)
        ),
    )
    again = catalog.select(
        "data_file", "path", where=lambda each: (each.table_id == table_id) & (each.begin_snapshot > later.snapshot)
    )
    noted = inlined_deletes(table_id)
    has_noted = session.has_table(noted.name)

    def concerned(each: Any) -> sa.ColumnElement[bool]:
        found = [_changed(each, later), each.data_file_id >= later.file, each.path.in_(again)]
        if deleting is not None:
            found.append(each.data_file_id.in_(deleting))
        if has_noted:
            late = sa.select(noted.c.file_id).where(noted.c.begin_snapshot > later.snapshot)
            found.append(each.data_file_id.in_(late))
        return sa.and_(each.table_id == table_id, sa.or_(*found))

    return concerned


def _of_files(
    session: Session, catalog: Overlay, table_id: int, later: Later | None, files: pl.Series
) -> Condition | None:
    """Whether an id is that of a data file that something later concerns, `files` being all of these: so few are named,
    as catalogs have no index that finds them. None: every file is meant."""
    if later is None:
        return None
    if len(files) <= _NAMED:
        return lambda id_: id_.in_(files.to_list())
    chosen = catalog.select("data_file", "data_file_id", where=_concerned(session, catalog, table_id, later))
    return lambda id_: id_.in_(chosen)


def _below(table_id: int, of_files: Condition | None) -> Condition:
    """The rows of a table's files, by the data file that they belong to."""
    if of_files is None:
        return _mine(table_id)
    return lambda each: (each.table_id == table_id) & of_files(each.data_file_id)


def _changed(each: Any, later: Later) -> sa.ColumnElement[bool]:
    return sa.or_(each.begin_snapshot > later.snapshot, each.end_snapshot > later.snapshot)


def read_rows(session: Session, table_id: int, head: int, later: Later | None = None) -> FileRows:
    """What one table has that begins at the head or before: everything, or all that concerns what changed later."""
    catalog = Overlay(session)
    data = catalog.frame("data_file", _DATA, _concerned(session, catalog, table_id, later))
    of_files = _of_files(session, catalog, table_id, later, data["data_file_id"])
    begun = pl.col("begin_snapshot") <= head

    noted = pl.DataFrame(schema=_NOTED)
    held = inlined_deletes(table_id)
    has_noted = session.has_table(held.name)
    if has_noted:
        query = sa.select(held.c.file_id, held.c.row_id, held.c.begin_snapshot)
        parts = frames(session, query if of_files is None else query.where(of_files(held.c.file_id)), _NOTED)
        noted = pl.concat([noted, *parts])
        if sum(noted.null_count().row(0)):
            raise Blocked(f"{held.name} of {session.place.path} has rows with NULL", code="metadata-unreadable")
        noted = noted.filter(begun)
    deletes = catalog.frame("delete_file", _DELETE, _below(table_id, of_files))
    groups = tuple(_inlined(session, catalog, table_id, head, later))
    rest = 0
    if later is not None:
        rest = _rest(session, catalog, table_id, later, data, deletes, noted if has_noted else None, groups)
    return FileRows(
        data=data.filter(begun),
        deletes=deletes.filter(begun),
        noted=noted,
        inlined=groups,
        mappings=mappings(catalog, table_id),
        rest=rest,
    )


def _rest(
    session: Session,
    catalog: Overlay,
    table_id: int,
    later: Later,
    data: pl.DataFrame,
    deletes: pl.DataFrame,
    noted: pl.DataFrame | None,
    groups: Sequence[InlinedGroup],
) -> int:
    """The live rows in what was not read: all that a snapshot saw and that did not end since, without what was read."""

    def total(query: sa.Select[Any] | None, column: str = "") -> int:
        if query is None:
            return 0
        made = query.subquery()
        [(found,)] = session.rows(
            sa.select(sa.func.sum(made.c[column]) if column else sa.func.count()).select_from(made)
        )
        return int(found or 0)

    def lasting(each: Any) -> sa.ColumnElement[bool]:
        return sa.and_(each.table_id == table_id, each.begin_snapshot <= later.snapshot, each.end_snapshot.is_(None))

    there = (pl.col("begin_snapshot") <= later.snapshot) & pl.col("end_snapshot").is_null()
    read = data.filter(there)
    of_read = pl.col("data_file_id").is_in(read["data_file_id"].implode())
    lasting_files = catalog.select("data_file", "data_file_id", where=lasting)
    assert lasting_files is not None
    rows = total(catalog.select("data_file", "record_count", where=lasting), "record_count")
    rows -= int(read["record_count"].sum())
    deleted = catalog.select(
        "delete_file",
        "delete_count",
        where=lambda each: sa.and_(
            each.table_id == table_id, each.end_snapshot.is_(None), each.data_file_id.in_(lasting_files)
        ),
    )
    rows -= total(deleted, "delete_count")
    rows += int(deletes.filter(of_read & pl.col("end_snapshot").is_null())["delete_count"].sum())
    if noted is not None:
        held = inlined_deletes(table_id)
        rows -= total(
            sa.select(held.c.file_id).where(held.c.file_id.in_(lasting_files), held.c.begin_snapshot <= later.snapshot)
        )
        before = noted.filter(pl.col("begin_snapshot") <= later.snapshot)
        rows += int(before["file_id"].is_in(read["data_file_id"].implode()).sum())
    for name, _ in inlined_tables(catalog, table_id):
        each = catalog.probed(name).c
        rows += total(sa.select(each.row_id).where(each.begin_snapshot <= later.snapshot, each.end_snapshot.is_(None)))
    return rows - sum(each.ends.null_count() for each in groups if each.begin <= later.snapshot)


def has_files(session: Session, table_id: int) -> bool:
    """Whether a table ever had a data file."""
    query = Overlay(session).select("data_file", "data_file_id", where=_mine(table_id))
    return query is not None and bool(session.rows(query.limit(1)))


def _inlined(
    session: Session, catalog: Overlay, table_id: int, head: int, later: Later | None
) -> Iterator[InlinedGroup]:
    for name, version in inlined_tables(catalog, table_id):
        held = catalog.probed(name)
        query = sa.select(*(held.c[each] for each in _HELD))
        if later is not None:
            query = query.where(
                held.c.begin_snapshot.in_(sa.select(held.c.begin_snapshot).where(_changed(held.c, later)))
            )
        rows = pl.concat([pl.DataFrame(schema=_HELD), *frames(session, query, _HELD)])
        if rows["row_id"].null_count():
            raise Blocked(f"{name} of {session.place.path} holds rows without an id", code="metadata-unreadable")
        rows = rows.filter(pl.col("begin_snapshot") <= head).sort("begin_snapshot", "row_id")
        for (begin,), part in rows.group_by("begin_snapshot", maintain_order=True):
            ids = part["row_id"]
            first = int(ids[0])
            consecutive = ids.equals(pl.Series("row_id", range(first, first + len(ids)), pl.Int64))
            digest = hashlib.sha256(ids.to_numpy().tobytes()).hexdigest()[:8]
            assert isinstance(begin, int)
            yield InlinedGroup(name, version, begin, part["end_snapshot"], first if consecutive else None, digest)


def mappings(catalog: Overlay, table_id: int) -> dict[int, NameMapping]:
    """The name mappings of a table by their id in the catalog."""
    mine = catalog.rows("column_mapping", "mapping_id", where=_mine(table_id))
    ids = [row[0] for row in mine]
    rows = catalog.rows(
        "name_mapping",
        *("mapping_id", "column_id", "source_name", "target_field_id", "parent_column", "is_partition"),
        where=lambda each: each.mapping_id.in_(ids),
    )
    below: dict[tuple[int, int | None], list[Any]] = {}
    for row in sorted(rows, key=lambda row: (row[0], row[1])):
        below.setdefault((row[0], row[4]), []).append(row)

    def made(mapping: int, parent: int | None) -> tuple[MappedColumn, ...]:
        return tuple(
            MappedColumn(name, FieldId(target), made(mapping, number), bool(partition))
            for _, number, name, target, _, partition in below.get((mapping, parent), ())
        )

    return {id_: NameMapping(made(id_, None)) for id_ in ids}


def stat_frames(
    session: Session, table_id: int, later: Later | None = None, files: pl.Series | None = None
) -> Iterator[pl.DataFrame]:
    """The file statistics of a table in parts: all, or those of the data files (by their ids) that something later
    concerns."""
    catalog = Overlay(session)
    of_files = None if files is None else _of_files(session, catalog, table_id, later, files)
    return catalog.frames("file_column_stats", _STATS, _below(table_id, of_files))
