"""Batches as Parquet files of the lake, each with the exact statistics of what it holds.

DuckDB's COPY writes them, and not pyarrow: it is the writer that a lake's own inserts use, so uuid, json, time and
nanoseconds get the very annotations that DuckLake expects; FIELD_IDS reaches list elements, map keys and values; and
RETURN_STATS gives the statistics from the values, in a lake's own text, with NaN told apart (pyarrow hides NaN behind
its bounds and does not say what it cut).
"""

from __future__ import annotations

import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import duckdb

from bridge.errors import BridgeError, Unreachable
from bridge.model.paths import scheme
from converters import storage
from converters.parquet import quiet
from converters.parquet.copied import ColumnStat, column_stats
from converters.parquet.partitioned import below, one_partition
from converters.parquet.sql import field_ids, identifier, literal, written
from converters.spark.plan import Settings, Target

__all__ = ["TEMPORARY", "Piece", "connect", "failed", "output_of", "write_piece"]

TEMPORARY = ".bridge-tmp"
"""How the names of unfinished files end."""
_UNFINISHED = re.compile(rf"\.(.+)-\d+\.parquet\.[0-9a-f]{{32}}{re.escape(TEMPORARY)}")


def output_of(name: str) -> str | None:
    """The output to which an unfinished file belongs."""
    found = _UNFINISHED.fullmatch(name)
    return found.group(1) if found else None


@dataclass(frozen=True, slots=True)
class Piece:
    """A finished file."""

    path: str
    record_count: int
    size: int
    footer_size: int
    stats: tuple[ColumnStat, ...]
    partition: tuple[str | None, ...] = ()


@contextmanager
def connect(settings: Settings) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in UTC within a task's limits, with a directory of its own to spill to."""
    with tempfile.TemporaryDirectory(prefix="bridge-spill-") as spill:
        connection = quiet.connect(
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
    rows: str,
    target: Target,
    name: str,
    group_rows: int,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> Piece:
    """One file with all rows of a relation, and key-value metadata; it is at its place whole or not at all, and that is
    the directory of its partition when all rows are of one."""
    fields, settings = target.fields, target.settings
    columns = ", ".join(map(written, fields))
    options = [
        "FORMAT parquet",
        f"COMPRESSION {literal(settings.compression)}",
        f"ROW_GROUP_SIZE {group_rows}",
        f"FIELD_IDS {field_ids(fields)}",
        "RETURN_STATS",
    ]
    if notes:
        listed = ", ".join(f"{identifier(key)}: {literal(value)}" for key, value in notes.items())
        options.append(f"KV_METADATA {{{listed}}}")
    if settings.level is not None:
        options.append(f"COMPRESSION_LEVEL {int(settings.level)}")
    if not settings.dictionaries:
        options.append("DICTIONARY_SIZE_LIMIT 0")
    with _aside(target.directory, name) as local:
        try:
            query = f"COPY (SELECT {columns} FROM {rows}) TO {literal(local)} ({', '.join(options)})"
            [(_, count, size, footer, stats, _)] = connection.execute(query).fetchall()
        except duckdb.Error as error:
            raise failed(f"{target.directory}/{name} cannot be written", error) from error
        told = column_stats(connection, fields, stats, local)
        partition = one_partition(connection, local, target)
        directory = "/".join(filter(None, (target.directory, below(target, partition))))
        storage.make_directory(directory)
        storage.put(local, f"{directory}/{name}")
    return Piece(f"{directory}/{name}", int(count), int(size), int(footer), told, partition)


@contextmanager
def _aside(directory: str, name: str) -> Iterator[str]:
    """A local name that only this attempt uses: in a local target, in the temporary directory for an object."""
    if scheme(directory):
        directory = tempfile.gettempdir()
    local = os.path.join(directory, f".{name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        yield local
    finally:
        if os.path.exists(local):
            os.remove(local)
