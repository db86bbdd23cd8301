"""Batches as Parquet files of the lake, each with the exact statistics of what it holds.

DuckDB's COPY writes them, and not pyarrow: it is the writer that a lake's own inserts use, so uuid, json, time and
nanoseconds get the very annotations that DuckLake expects; FIELD_IDS reaches list elements, map keys and values; and
RETURN_STATS gives the statistics from the values, in a lake's own text, with NaN told apart (pyarrow hides NaN behind
its bounds and does not say what it cut).
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.errors import BridgeError, Unreachable
from bridge.model.paths import scheme
from bridge.model.schema import walk
from bridge.model.types import Field, ListOf, MapOf, Struct
from converters import storage
from converters.parquet.sql import duckdb_type, field_ids, identifier, literal
from converters.spark.plan import Settings

__all__ = ["TEMPORARY", "ColumnStat", "Piece", "connect", "failed", "write_piece"]

TEMPORARY = ".bridge-tmp"
"""How the names of unfinished files end."""


@dataclass(frozen=True, slots=True)
class ColumnStat:
    """Statistics of one leaf column; see plan.WRITTEN."""

    field: int
    size: int | None
    values: int | None
    nulls: int | None
    nans: int | None
    lower: str | None
    upper: str | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A finished file."""

    path: str
    record_count: int
    size: int
    footer_size: int
    stats: tuple[ColumnStat, ...]


@contextmanager
def connect(settings: Settings) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in UTC within a task's limits, with a directory of its own to spill to."""
    with tempfile.TemporaryDirectory(prefix="bridge-spill-") as spill:
        connection = duckdb.connect(
            config={
                "threads": str(settings.threads),
                "memory_limit": f"{settings.memory}B",
                "temp_directory": spill,
                "autoinstall_known_extensions": "false",
            }
        )
        try:
            connection.execute("SET TimeZone = 'UTC'; SET arrow_lossless_conversion = true")
            yield connection
        finally:
            connection.close()


def failed(what: str, error: duckdb.Error) -> BridgeError:
    """A DuckDB error as ours."""
    text = str(error)
    if "No space left" in text:
        return Unreachable(
            f"{what}: the disk is full", hint="free some space and run it again: finished files are kept"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return BridgeError(
            f"{what}: a task's memory is not enough: {text.splitlines()[0]}", hint="raise Settings.memory"
        )
    return Unreachable(f"{what}: {text.splitlines()[0]}")


def write_piece(
    connection: duckdb.DuckDBPyConnection,
    rows: pa.RecordBatchReader,
    fields: tuple[Field, ...],
    path: str,
    settings: Settings,
    group_rows: int,
) -> Piece:
    """One file with all the rows; it is at `path` whole or not at all."""
    columns = ", ".join(f"CAST({identifier(f.name)} AS {duckdb_type(f.type)}) AS {identifier(f.name)}" for f in fields)
    options = [
        "FORMAT parquet",
        f"COMPRESSION {literal(settings.compression)}",
        f"ROW_GROUP_SIZE {group_rows}",
        f"FIELD_IDS {field_ids(fields)}",
        "RETURN_STATS",
    ]
    if settings.level is not None:
        options.append(f"COMPRESSION_LEVEL {int(settings.level)}")
    with _aside(path) as local:
        connection.register("rows_in", rows)
        try:
            query = f"COPY (SELECT {columns} FROM rows_in) TO {literal(local)} ({', '.join(options)})"
            [(_, count, size, footer, stats, _)] = connection.execute(query).fetchall()
        except duckdb.Error as error:
            raise failed(f"{path} cannot be written", error) from error
        finally:
            connection.unregister("rows_in")
        told = _stats(fields, {_key(name): stat for name, stat in stats.items()}, local)
        storage.put(local, path)
    return Piece(path, int(count), int(size), int(footer), told)


@contextmanager
def _aside(path: str) -> Iterator[str]:
    """A local name that only this attempt uses: beside a local target, in the temporary directory for an object."""
    directory, name = os.path.split(path)
    if scheme(path):
        directory = tempfile.gettempdir()
    local = os.path.join(directory, f".{name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        yield local
    finally:
        if os.path.exists(local):
            os.remove(local)


def _key(stored: str) -> tuple[str, ...]:
    """The path of a column in COPY's statistics: quoted names joined by dots."""
    parts: list[str] = []
    rest = stored
    while rest:
        end = 1
        while rest[end] != '"' or rest[end + 1 : end + 2] == '"':
            end += 2 if rest[end] == '"' else 1
        parts.append(rest[1:end].replace('""', '"'))
        rest = rest[end + 2 :]
    return tuple(parts)


def _paths(fields: tuple[Field, ...]) -> dict[tuple[str, ...], Field]:
    """Leaf fields by the path that the writer gives them: element, key and value for the levels of lists and maps."""
    found: dict[tuple[str, ...], Field] = {}

    def below(field: Field, path: tuple[str, ...]) -> None:
        match field.type:
            case Struct(inner):
                for each in inner:
                    below(each, (*path, each.name))
            case ListOf(element):
                below(element, (*path, "element"))
            case MapOf(key, value):
                below(key, (*path, "key"))
                below(value, (*path, "value"))
            case _:
                found[path] = field

    for field in fields:
        below(field, (field.name,))
    return found


def _stats(
    fields: tuple[Field, ...], told: Mapping[tuple[str, ...], Mapping[str, str]], local: str
) -> tuple[ColumnStat, ...]:
    found = []
    floats = _paths(fields)
    for path, field in floats.items():
        stat = told.get(path)
        if stat is None:
            continue
        nans = None
        if "has_nan" in stat:
            nans = _nans(local, int(field.id)) if stat["has_nan"] == "true" else 0
        found.append(
            ColumnStat(
                int(field.id),
                _int(stat, "column_size_bytes"),
                _int(stat, "num_values"),
                _int(stat, "null_count"),
                nans,
                stat.get("min"),
                stat.get("max"),
            )
        )
    known = {int(each.field.id) for each in walk(fields)}
    assert all(each.field in known for each in found)
    return tuple(found)


def _int(stat: Mapping[str, str], name: str) -> int | None:
    return int(stat[name]) if name in stat else None


def _nans(local: str, id_: int) -> int:
    """The NaN of one column, which is read back: COPY only says that there are some."""
    from converters.parquet.footer import read_footer

    column = next(each for each in read_footer(local).columns if each.id == id_)
    count = 0
    for batch in pq.ParquetFile(local).iter_batches(columns=[column.stored], use_threads=False):
        for values in _leaves(batch.column(0), column.path[1:]):
            count += pc.sum(pc.is_nan(values)).as_py() or 0
    return count


def _leaves(values: Any, path: tuple[str, ...]) -> Iterator[pa.Array]:
    type_ = values.type
    if pa.types.is_struct(type_):
        yield from _leaves(values.flatten()[type_.get_field_index(path[0])], path[1:])
    elif pa.types.is_map(type_):
        # entries under NULL have no length in what DuckDB writes
        side = values.keys if len(type_) == 0 or path[0] == type_.key_field.name else values.items
        yield from _leaves(side, path[1:])
    elif pa.types.is_list(type_):
        yield from _leaves(values.flatten(), path[1:])
    else:
        yield values
