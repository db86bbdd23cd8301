"""What a catalog says of the files of a table, column by column, and of the rows that it holds itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import sqlalchemy as sa

from bridge.errors import Blocked
from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.types import FieldId
from converters.ducklake.catalog.history import inlined_tables
from converters.ducklake.catalog.overlay import Overlay, frames
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import inlined_deletes

__all__ = ["MEASURES", "FileRows", "InlinedGroup", "mappings", "read_rows", "stat_frames"]

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
class FileRows:
    """All of it, as the catalog's columns."""

    data: pl.DataFrame
    deletes: pl.DataFrame
    noted: pl.DataFrame
    """Rows of the table that notes deleted positions: file_id, row_id (a position), begin_snapshot."""
    inlined: tuple[InlinedGroup, ...]
    mappings: Mapping[int, NameMapping]


def _mine(table_id: int) -> Callable[[Any], sa.ColumnElement[bool]]:
    return lambda each: each.table_id == table_id


def read_rows(session: Session, table_id: int, head: int) -> FileRows:
    """Everything of one table that begins at the head or before."""
    catalog, mine = Overlay(session), _mine(table_id)
    begun = pl.col("begin_snapshot") <= head
    noted = pl.DataFrame(schema=_NOTED)
    held = inlined_deletes(table_id)
    if session.has_table(held.name):
        parts = list(frames(session, sa.select(held.c.file_id, held.c.row_id, held.c.begin_snapshot), _NOTED))
        noted = pl.concat([noted, *parts])
        if sum(noted.null_count().row(0)):
            raise Blocked(f"{held.name} of {session.place.path} has rows with NULL", code="metadata-unreadable")
        noted = noted.filter(begun)
    return FileRows(
        data=catalog.frame("data_file", _DATA, mine).filter(begun),
        deletes=catalog.frame("delete_file", _DELETE, mine).filter(begun),
        noted=noted,
        inlined=tuple(_inlined(session, catalog, table_id, head)),
        mappings=mappings(catalog, table_id),
    )


def _inlined(session: Session, catalog: Overlay, table_id: int, head: int) -> Iterator[InlinedGroup]:
    for name, version in inlined_tables(catalog, table_id):
        held = catalog.probed(name)
        query = sa.select(*(held.c[each] for each in _HELD))
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


def stat_frames(session: Session, table_id: int) -> Iterator[pl.DataFrame]:
    """The file statistics of a table in parts."""
    return Overlay(session).frames("file_column_stats", _STATS, _mine(table_id))
