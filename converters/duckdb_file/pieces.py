"""Rows as Parquet files of the target's size: ranges of the table's order, or sorted.

Each file is a COPY of its own, of a range of row ids; how many rows make a file is told by a sample, then by the files
before. Inside a file the row groups of several threads may change places: to keep them in order costs half as much
memory again (measured: scripts/bench_import.py). Sorted rows are kept in order; where they need several files they are
sorted once, into a temporary table, which DuckDB spills.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from bridge.model.rewrite import Target
from converters.parquet.copied import ColumnStat, column_stats
from converters.parquet.order import order_by
from converters.parquet.sql import field_ids, identifier, literal

__all__ = ["Copied", "Rows", "copy_options", "run_copy", "split"]

_SAMPLE = 122_880
_SLACK = 1.25
"""A last file may be that many times the target's size rather than leave a small rest."""
_SORTED = '"bridge:sorted"'


@dataclass(frozen=True, slots=True)
class Copied:
    """A finished file aside, the directory it belongs to below the table's, and its partition's key values."""

    path: str
    record_count: int
    size: int
    footer_size: int
    stats: tuple[ColumnStat, ...]
    directory: str = ""
    partition: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows are read from: the expressions of their columns, the relation, and whether it has row ids to read it
    by (a table that has no column of that name); `bytes` bounds what they take, None when nothing does."""

    columns: str
    relation: str
    has_ids: bool
    bytes: int | None = None


def split(connection: duckdb.DuckDBPyConnection, rows: Rows, target: Target, directory: str) -> Iterator[Copied]:
    """Write all rows to files in a directory of their own."""
    os.makedirs(directory, exist_ok=True)
    order = order_by(target)
    connection.execute(f"SET preserve_insertion_order = {'true' if order else 'false'}")
    size = target.settings.target_bytes
    [(count,)] = connection.execute(f"SELECT count(*) FROM {rows.relation}").fetchall()
    small = rows.bytes is not None and rows.bytes <= size // 4
    width = 0.0 if small or not count else _width(connection, rows, target, directory)
    if width * count <= size * _SLACK:
        yield from _file(connection, f"SELECT {rows.columns} FROM {rows.relation}{order}", target, f"{directory}/0")
        return
    if order or not rows.has_ids:
        connection.execute(f"CREATE TEMP TABLE {_SORTED} AS SELECT {rows.columns} FROM {rows.relation}{order}")
        names = ", ".join(identifier(each.name) for each in target.fields)
        rows = Rows(names, f"temp.main.{_SORTED}", not _has_rowid(target))
    try:
        if rows.has_ids:
            yield from _ranges(connection, rows, target, directory, count, width)
        else:
            yield from _single(connection, rows, target, directory)
    finally:
        connection.execute(f"DROP TABLE IF EXISTS temp.main.{_SORTED}")


def _has_rowid(target: Target) -> bool:
    return any(each.name.casefold() == "rowid" for each in target.fields)


def _width(connection: duckdb.DuckDBPyConnection, rows: Rows, target: Target, directory: str) -> float:
    """About how many bytes a row takes."""
    query = f"SELECT {rows.columns} FROM {rows.relation} LIMIT {_SAMPLE}"
    sample = list(_file(connection, query, target, f"{directory}/sample"))
    for each in sample:
        os.remove(each.path)
    return max(sum(each.size for each in sample) / max(1, sum(each.record_count for each in sample)), 1e-3)


def _ranges(
    connection: duckdb.DuckDBPyConnection, rows: Rows, target: Target, directory: str, count: int, width: float
) -> Iterator[Copied]:
    [(last,)] = connection.execute(f"SELECT max(rowid) + 1 FROM {rows.relation}").fetchall()
    dense = count / last
    start = written = taken = number = 0
    while start < last:
        fitting = target.settings.target_bytes / width / dense
        # whole row groups, so that they are written as they are read
        end = start + max(_SAMPLE, int(fitting) // _SAMPLE * _SAMPLE)
        if last - start <= fitting * _SLACK:
            end = last
        where = f"rowid >= {start} AND rowid < {end}"
        query = f"SELECT {rows.columns} FROM {rows.relation} WHERE {where}"
        for each in _file(connection, query, target, f"{directory}/{number}"):
            written, taken = written + each.record_count, taken + each.size
            width = max(taken / written, 1e-3)
            yield each
        start, number = end, number + 1


def _single(connection: duckdb.DuckDBPyConnection, rows: Rows, target: Target, directory: str) -> Iterator[Copied]:
    """A table with a column `rowid` has no row ids to ask for: one thread keeps the order."""
    [(threads,)] = connection.execute("SELECT current_setting('threads')").fetchall()
    connection.execute("SET threads = 1")
    try:
        options = [*copy_options(target), f"FILE_SIZE_BYTES {target.settings.target_bytes}"]
        found = run_copy(connection, f"SELECT {rows.columns} FROM {rows.relation}", f"{directory}/all", options)
        for row in sorted(found, key=lambda row: int(row[0].rsplit("_", 1)[1].removesuffix(".parquet"))):
            yield from _copied(connection, row, target)
    finally:
        connection.execute(f"SET threads = {threads}")


def _file(connection: duckdb.DuckDBPyConnection, query: str, target: Target, name: str) -> Iterator[Copied]:
    for row in run_copy(connection, query, f"{name}.parquet", copy_options(target)):
        yield from _copied(connection, row, target)


def _copied(connection: duckdb.DuckDBPyConnection, row: tuple[Any, ...], target: Target) -> Iterator[Copied]:
    path, count, size, footer, stats, _ = row
    if not count:
        os.remove(path)
        return
    yield Copied(path, count, size, footer, column_stats(connection, target.fields, stats, path))


def run_copy(
    connection: duckdb.DuckDBPyConnection, query: str, path: str, options: Sequence[str]
) -> list[tuple[Any, ...]]:
    """COPY's RETURN_STATS rows."""
    return connection.execute(f"COPY ({query}) TO {literal(path)} ({', '.join(options)})").fetchall()


def copy_options(target: Target) -> list[str]:
    """What every COPY is asked."""
    settings = target.settings
    made = [
        "FORMAT parquet",
        f"COMPRESSION {literal(settings.compression)}",
        f"ROW_GROUP_SIZE {settings.row_group_rows}",
        f"FIELD_IDS {field_ids(target.fields)}",
        "RETURN_STATS",
    ]
    if settings.level is not None:
        made.append(f"COMPRESSION_LEVEL {int(settings.level)}")
    if not settings.dictionaries:
        made.append("DICTIONARY_SIZE_LIMIT 0")
    return made
