"""Writes rows of a lake to Parquet files that everybody reads: those in its catalog, and those of encrypted files.

Only DuckDB reads what DuckDB encrypted, and only the catalog's own library may open a catalog in this process. A file
is written aside under a name that follows from its source and moved to its place; doing it again gives the same file.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import Blocked, Overtaken, Unreachable
from bridge.model.options import Options
from bridge.model.paths import scheme
from bridge.model.rewrite import WRITTEN, DataFile, Equality, FileRewrite, Name, Target, WrittenFiles
from bridge.model.types import FieldId
from bridge.ports import ProgressSink
from converters import storage
from converters.ducklake.catalog.history import Definition, LakeState, definition, lake_state
from converters.ducklake.catalog.inlined import columns_of_version, held_rows, levels_of
from converters.ducklake.catalog.overlay import Overlay
from converters.ducklake.catalog.session import Place, Session, parse_place, session, with_retry
from converters.ducklake.encrypted import encryption
from converters.ducklake.extensions import connect
from converters.ducklake.identifiers import identifier, literal
from converters.ducklake.measure import measured
from converters.ducklake.projection import Level, projected
from converters.ducklake.remote import connect_objects
from converters.ducklake.source_files import ENCRYPTED, INLINED
from converters.parquet.dictionaries import has_merged
from converters.parquet.left_out import LEFT_OUT, packed
from converters.parquet.places import ROW_ID
from converters.parquet.sql import field_ids
from converters.storage.scratch import scratch

__all__ = ["LakeEngine", "open_engine"]

_GROUP = re.compile(r".*#(?P<table>ducklake_inlined_data_(?P<id>\d+)_(?P<version>\d+))@(?P<begin>\d+)\.\d+\.[0-9a-f]+")
_PLACE = '"place in the file"'


@dataclass(frozen=True, slots=True)
class _Relation:
    """Rows in their order: a relation, its columns, and what gives a row's id (empty: its place)."""

    connection: duckdb.DuckDBPyConnection
    sql: str
    levels: tuple[Level, ...]
    row_id: str = ""


@dataclass(frozen=True, slots=True)
class _Encrypted:
    """The key of a file, and the columns of the snapshot in which it begins: its footer is encrypted too."""

    key: str = field(repr=False)
    levels: tuple[Level, ...] = ()


_Made = tuple[dict[str, object], list[tuple[FieldId, pa.Table]]]
"""A WRITTEN row but for its task, and the statistics of its columns."""


class LakeEngine:
    """Rewriting for tables of a lake."""

    def __init__(self, place: Place, options: Options) -> None:
        self._place = place
        self._options = options
        self._encrypted: Mapping[str, _Encrypted] = {}
        self._read: tuple[LakeState, dict[int, Definition]] | None = None

    def rewrite(
        self, plan: str, files: Sequence[FileRewrite], target: Target, progress: ProgressSink, what: str
    ) -> WrittenFiles:
        """Each file of which a row is left becomes one, with its rows in their order."""
        rows: list[dict[str, object]] = []
        stats: dict[FieldId, list[pa.Table]] = {}
        storage.make_directory(target.directory.rstrip("/"))
        for number, (row, found) in enumerate(self._all(files, target, progress, what)):
            if not row["record_count"]:
                continue
            for id_, table in found:
                place = table.schema.get_field_index("file")
                stats.setdefault(id_, []).append(table.set_column(place, "file", pa.array([len(rows)], pa.int64())))
            rows.append({**row, "task": str(number)})
        every = pa.Table.from_pylist(rows, schema=WRITTEN)
        return WrittenFiles(every, tuple((id_, pa.concat_tables(parts)) for id_, parts in stats.items()))

    def _all(self, files: Sequence[FileRewrite], target: Target, progress: ProgressSink, what: str) -> list[_Made]:
        """What is in the catalog in one session, then what is in files, with the catalog left alone."""
        made: dict[int, _Made] = {}
        inlined = [number for number, each in enumerate(files) if each.source.format == INLINED]
        encrypted = any(each.source.format == ENCRYPTED for each in files)

        def held() -> None:
            with session(self._place) as opened:
                if encrypted:
                    self._encrypted = dict(self._secrets(opened))
                for number in inlined:
                    progress.step(what, len(made), len(files))
                    with self._inlined(opened, files[number].source) as relation:
                        made[number] = self._one(files[number], relation, target)

        if inlined or encrypted:
            with_retry(held)
        for number, each in enumerate(files):
            if number not in made:
                progress.step(what, len(made), len(files))
                with closing(connect()) as connection:
                    if scheme(each.source.path):
                        connect_objects(connection)
                    made[number] = self._one(each, self._parquet(connection, each.source), target)
        return [made[number] for number in range(len(files))]

    def _one(self, file: FileRewrite, relation: _Relation, target: Target) -> _Made:
        each, name = file.source, f"{file.output}-0.parquet"
        if len(file.left_out) and not relation.row_id and each.first_row_id is not None:
            relation = replace(relation, row_id=f"{int(each.first_row_id)} + {_PLACE}")
        directory = target.directory.rstrip("/")
        aside = tempfile.mkdtemp(dir=scratch()) if scheme(directory) else directory
        local = f"{aside}/.{name}.part"
        try:
            count = _write(relation, target, local, file.left_out)
            found = measured(relation.connection, local, target.fields)
        except duckdb.Error as error:
            said = str(error).splitlines()[0]
            raise Unreachable(
                f"{each.path}: its rows cannot be written: {said}", hint="correct the value at the source"
            ) from error
        each.check(count + len(file.left_out))
        size, footer = os.path.getsize(local), _footer_size(local)
        if count:
            storage.put(local, f"{directory}/{name}")
        else:
            os.remove(local)
        if aside != directory:
            os.rmdir(aside)
        row: dict[str, object] = {
            "path": f"{directory}/{name}",
            "record_count": count,
            "size": size,
            "footer_size": footer,
            "first_row": 0,
            "partition": [],
            "stats": [],
        }
        return row, found

    @contextmanager
    def _inlined(self, opened: Session, each: DataFile) -> Iterator[_Relation]:
        found = _GROUP.fullmatch(each.path)
        if found is None:
            raise Blocked(f"{each.path} names no rows of a lake", code="metadata-unreadable")
        table_id, begin = int(found["id"]), int(found["begin"])
        gone = Overtaken(f"{each.path}: its rows went to files since the lake was read", hint="run it again")
        if not opened.has_table(found["table"]):
            raise gone
        known = self._definition(opened, table_id)
        columns = columns_of_version(opened, known, table_id, int(found["version"]), begin)
        with held_rows(opened, found["table"], begin, columns) as held:
            count, consecutive = held.connection.execute(
                f"SELECT count(*), max(row_id) - min(row_id) + 1 = count(*) FROM {held.sql}"
            ).fetchall()[0]
            if each.record_count is not None and count != each.record_count:
                raise gone
            yield _Relation(held.connection, held.sql, held.levels, "" if consecutive else "row_id")

    def _parquet(self, connection: duckdb.DuckDBPyConnection, each: DataFile) -> _Relation:
        options = ", hive_partitioning = false"
        secret = self._secret(each.path) if each.format == ENCRYPTED else None
        if secret is not None:
            options += f", {encryption(secret.key)}"
        told = f"read_parquet({literal(each.path)}{options}, file_row_number = true)"
        names = [name for name, *_ in connection.execute(f"DESCRIBE FROM {told}").fetchall()]
        levels = (
            tuple(map(_named, each.names))
            if each.names is not None
            else _levels(each.path)
            if secret is None
            else secret.levels
        )
        constants = "".join(
            f", {'NULL' if value is None else literal(str(value))} AS {identifier(f'constant {id_}')}"
            for id_, value in each.constants.items()
        )
        levels = tuple(level for level in levels if level.id not in each.constants)
        levels += tuple(Level(id_, f"constant {id_}") for id_ in each.constants)
        row_id = identifier(ROW_ID.name) if ROW_ID.name in names else ""
        return _Relation(connection, f"(SELECT *{constants} FROM {told} ORDER BY file_row_number)", levels, row_id)

    def _secret(self, path: str) -> _Encrypted:
        """What the catalog says of an encrypted file, found by its name, which has a uuid."""
        found = self._encrypted.get(path.rsplit("/", 1)[-1])
        if found is None:
            raise Unreachable(f"encrypted file {path}: the catalog holds no key for it")
        return found

    def _secrets(self, opened: Session) -> Iterator[tuple[str, _Encrypted]]:
        rows = Overlay(opened).rows("data_file", "path", "encryption_key", "table_id", "begin_snapshot")
        for path, key, table_id, begin in rows:
            if key:
                columns = [each for each in self._definition(opened, table_id).columns if each.live(begin)]
                yield path.rsplit("/", 1)[-1], _Encrypted(key, levels_of(columns))

    def _definition(self, opened: Session, table_id: int) -> Definition:
        state, definitions = self._read or (lake_state(opened), {})
        self._read = state, definitions
        if table_id not in definitions:
            definitions[table_id] = definition(opened, state, table_id)
        return definitions[table_id]

    def resolve(self, plan: str, equality: Equality, progress: ProgressSink, what: str) -> pa.Table:
        """A lake has no equality deletes."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing runs on."""


def _write(relation: _Relation, target: Target, local: str, left_out: np.ndarray) -> int:
    columns = [f"{sql} AS {identifier(field.name)}" for field, sql in projected(target.fields, relation.levels)]
    ids, values = field_ids(target.fields), ", ".join(columns)
    if relation.row_id:
        columns.append(f"CAST({relation.row_id} AS BIGINT) AS {identifier(ROW_ID.name)}")
        ids = f"{ids[:-1]}, {identifier(ROW_ID.name)}: {ROW_ID.id}}}"
    settings = target.settings
    options = [
        "FORMAT parquet",
        f"COMPRESSION {literal(settings.compression)}",
        f"ROW_GROUP_SIZE {settings.row_group_rows}",
        f"FIELD_IDS {ids}",
    ]
    if settings.level is not None:
        options.append(f"COMPRESSION_LEVEL {int(settings.level)}")
    if has_merged(relation.connection, values, relation.sql, target.fields):
        options.append("DICTIONARY_SIZE_LIMIT 0")
    query = f"SELECT {', '.join(columns)} FROM {relation.sql}"
    if len(left_out):
        options.append(f"KV_METADATA {{{identifier(LEFT_OUT)}: {literal(packed(left_out))}}}")
        relation.connection.register("left_out", pa.table({"place": left_out}))
        placed = f"(SELECT *, row_number() OVER () - 1 AS {_PLACE} FROM {relation.sql})"
        query = f"SELECT {', '.join(columns)} FROM {placed} WHERE {_PLACE} NOT IN (SELECT place FROM left_out)"
    [(count, *_)] = relation.connection.execute(f"COPY ({query}) TO {literal(local)} ({', '.join(options)})").fetchall()
    return int(count)


def _footer_size(local: str) -> int:
    with open(local, "rb") as written:
        written.seek(-8, os.SEEK_END)
        return int.from_bytes(written.read(4), "little")


def _named(name: Name) -> Level:
    return Level(name.id, name.names[0], tuple(map(_named, name.below)))


def _levels(path: str) -> tuple[Level, ...]:
    """What a file holds, by its own ids."""
    with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
        return tuple(map(_level, pq.read_schema(source)))


def _level(field: pa.Field) -> Level:
    id_ = (field.metadata or {}).get(b"PARQUET:field_id")
    type_ = field.type
    below: list[pa.Field] = []
    if pa.types.is_struct(type_):
        below = list(type_)
    elif pa.types.is_map(type_):
        below = [type_.key_field, type_.item_field]
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        below = [type_.value_field]
    return Level(None if id_ is None else int(id_), field.name, tuple(map(_level, below)))


def open_engine(rest: str, options: Options, staging: str) -> LakeEngine:
    """The engine for the lake behind `ducklake:REST`; it keeps nothing in the staging."""
    return LakeEngine(parse_place(rest, options.metadata_schema), options)
