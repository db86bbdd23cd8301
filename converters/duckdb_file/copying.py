"""One table as Parquet files: COPY, split at the target size, sorted and partitioned where that is asked for.

COPY cannot split partitions by size, nor keep their order; so a partitioned table is written partition by partition in
one pass, and what has to be split, joined or sorted of it is written a second time, one partition after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb

from bridge.model.rewrite import Target
from bridge.model.types import Field
from converters.duckdb_file.casts import stored_type
from converters.duckdb_file.pieces import Copied, Rows, copy_options, run_copy, split
from converters.duckdb_file.place import TablePlace
from converters.duckdb_file.reader import selected
from converters.parquet.copied import ColumnStat, column_stats
from converters.parquet.dictionaries import has_merged
from converters.parquet.extensions import load
from converters.parquet.partitioned import below, key_text, value_of
from converters.parquet.sql import identifier, literal, pattern

__all__ = ["Copied", "copy_table"]

_KEY = "bridge:key"
_ENOUGH = 1.5
"""A partition's file may be that many times the target size before it is split."""


def copy_table(
    connection: duckdb.DuckDBPyConnection, place: TablePlace, target: Target, local: str
) -> Sequence[Copied]:
    """Write a table's rows to files in the directory `local`, sorted and partitioned as the target says."""
    chosen = selected(connection, place, target.fields)
    columns = ", ".join(f"{sql} AS {identifier(each.name)}" for each, sql in chosen)
    if has_merged(connection, columns, place.sql, target.fields):
        target = replace(target, settings=replace(target.settings, dictionaries=False))
    if not target.partition:
        has_ids = not any(each.name.casefold() == "rowid" for each in target.fields)
        rows = Rows(columns, place.sql, has_ids, os.stat(place.file).st_size)
        return list(split(connection, rows, target, f"{local}/all"))
    if any(key.transform == "bucket" for key in target.partition):
        load(connection, "ducklake")  # it brings the hash, murmur3_32
    values = {each.name: sql for each, sql in chosen}
    keys = ", ".join(
        f"{key_text(values[key.column], key)} AS {identifier(_KEY + str(number))}"
        for number, key in enumerate(target.partition)
    )
    query = f"SELECT {columns}, {keys} FROM {place.sql}"
    return list(_partitions(connection, query, target, local))


@dataclass(slots=True)
class _Partition:
    """The files of one partition, as the first pass left them."""

    files: list[Copied]
    stats: list[Mapping[str, Mapping[str, str]]]


def _partitions(connection: duckdb.DuckDBPyConnection, query: str, target: Target, local: str) -> Iterator[Copied]:
    names = [_KEY + str(number) for number in range(len(target.partition))]
    options = [
        *copy_options(target),
        f"PARTITION_BY ({', '.join(map(identifier, names))})",
        "WRITE_PARTITION_COLUMNS false",
    ]
    found: dict[tuple[str, ...], _Partition] = {}
    for path, count, size, footer, stats, values in run_copy(connection, query, f"{local}/parts", options):
        key = tuple(values[name] for name in names)
        partition = tuple(map(value_of, key))
        one = found.setdefault(key, _Partition([], []))
        one.files.append(Copied(path, count, size, footer, (), below(target, partition), partition))
        one.stats.append(stats)
    for number, one in enumerate(found[key] for key in sorted(found)):
        size = sum(each.size for each in one.files)
        if not target.sort and len(one.files) == 1 and size <= _ENOUGH * target.settings.target_bytes:
            [first], [stats] = one.files, one.stats
            yield _with(first, first, column_stats(connection, target.fields, stats, first.path))
            continue
        again = _again([each.path for each in one.files], target, size)
        for each in split(connection, again, target, f"{local}/again/{number}"):
            yield _with(each, one.files[0], each.stats)
        for each in one.files:
            os.remove(each.path)


def _with(made: Copied, first: Copied, stats: tuple[ColumnStat, ...]) -> Copied:
    return Copied(made.path, made.record_count, made.size, made.footer_size, stats, first.directory, first.partition)


def _again(paths: Sequence[str], target: Target, size: int) -> Rows:
    """The rows of files that were written before, in the types that they had."""
    columns = ", ".join(_typed(each) for each in target.fields)
    listed = ", ".join(literal(pattern(path)) for path in paths)
    return Rows(columns, f"read_parquet([{listed}], hive_partitioning = false)", False, size)


def _typed(field: Field) -> str:
    return f"CAST({identifier(field.name)} AS {stored_type(field.type)}) AS {identifier(field.name)}"
