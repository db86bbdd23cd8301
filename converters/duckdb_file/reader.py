"""A DuckDB file as a source: its tables, each with one state, and its rows as they are to be written."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from bridge.errors import Unreachable, UsageError
from bridge.model.files import DATA_FILES, DELETED_ROWS, FileProblem, Files, StatsBatch
from bridge.model.findings import Code, Finding
from bridge.model.objects import Objects
from bridge.model.options import Options
from bridge.model.rewrite import DataFile, Equality
from bridge.model.schema import Schema
from bridge.model.table import Commit, Table, TableName
from bridge.model.types import Field, FieldId
from bridge.ports import Held, Notice, ProgressSink, Rows
from converters.duckdb_file.casts import cast
from converters.duckdb_file.defaults import with_defaults
from converters.duckdb_file.layout import asked, check_names, partition_spec, sort_order
from converters.duckdb_file.leftovers import read_leftovers
from converters.duckdb_file.locate import ALIAS, File, file_at, opened, state_of
from converters.duckdb_file.names import OwnName
from converters.duckdb_file.objects import own_name, read_objects
from converters.duckdb_file.place import TablePlace, table_name
from converters.duckdb_file.types import Doubt, Mapper, doubts
from converters.parquet.sql import identifier

__all__ = ["DuckDBSource", "open_source", "selected"]

_BATCH = 16_384
_OF_A_LAKE = frozenset({"ducklake_metadata", "ducklake_snapshot", "ducklake_table", "ducklake_data_file"})


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    nullable: bool
    default: str | None
    generated: bool
    comment: str


class DuckDBSource:
    """A database file. It is opened for each question and closed after it, so that nobody is kept out meanwhile."""

    concurrent = False
    configured = ""

    def __init__(self, file: File, options: Options) -> None:
        self.file = file
        self._options = options
        self._state = state_of(file)
        self._time = _changed_at(file)
        with opened(file, self._state) as connection:
            self._tables = {table_name(*each): each for each in _tables(connection)}
            if {table for _, table in self._tables.values()} >= _OF_A_LAKE:
                raise UsageError(
                    f"{file.path} is the catalog of a DuckLake: its tables are the lake's records, not its data",
                    hint=f"write ducklake:{file.path}",
                )
            self._left = read_leftovers(connection, ALIAS)
        with opened(file, self._state, alias=None) as connection:
            self._own = own_name(connection, file)
        for option, texts in (("--partition-by", options.partition_by), ("--sort-by", options.sort_by)):
            check_names(option, texts, list(self._tables))

    def tables(self) -> Sequence[TableName]:
        """Every table of every schema."""
        return sorted(self._tables)

    def noticed(self) -> Sequence[Notice]:
        """Sequences and user-defined types."""
        return self._left.beside

    def objects(self) -> Objects:
        """Its schemas, views and macros."""
        return read_objects(self.file, self._state)

    def open(self, name: TableName) -> DuckDBTable:
        """A table's definition; columns whose type depends on their values are read."""
        schema, own = self._tables[name]
        place = TablePlace(self.file.path, schema, own, self._state)
        with opened(self.file, self._state) as connection:
            try:
                made = _table(connection, name, place, self.file, self._options, self._time, self._own)
                return made.with_findings(self._left.tables.get(name, ()))
            except duckdb.Error as error:
                raise Unreachable(f"{name} cannot be read: {str(error).splitlines()[0]}") from error

    def holds(self, name: TableName) -> bool:
        """Whether the file is still the one that was read."""
        return state_of(self.file) == self._state and name in self._tables


def _changed_at(file: File) -> int:
    """When the file or its WAL was last written, in microseconds from 1970."""
    return max(os.stat(path).st_mtime_ns for path in (file.path, file.wal) if os.path.exists(path)) // 1000


def _tables(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    query = "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ? AND NOT internal"
    return [(schema, name) for schema, name in connection.execute(query, [ALIAS]).fetchall()]


def _columns(connection: duckdb.DuckDBPyConnection, place: TablePlace) -> list[_Column]:
    where = "database_name = ? AND schema_name = ? AND table_name = ?"
    given = [ALIAS, place.schema, place.table]
    query = (
        "SELECT column_name, is_nullable, column_default, data_type, comment FROM duckdb_columns() "
        f"WHERE {where} ORDER BY column_index"
    )
    found = connection.execute(query, given).fetchall()
    statement = _statement(connection, place)
    return [
        _Column(name, nullable, default, default is not None and _is_generated(statement, name, type_), comment or "")
        for name, nullable, default, type_, comment in found
    ]


def _statement(connection: duckdb.DuckDBPyConnection, place: TablePlace, what: str = "sql") -> str:
    where = "database_name = ? AND schema_name = ? AND table_name = ?"
    query = f"SELECT {what} FROM duckdb_tables() WHERE {where}"
    [(found,)] = connection.execute(query, [ALIAS, place.schema, place.table]).fetchall()
    return str(found or "")


def _is_generated(statement: str, name: str, type_: str) -> bool:
    """The catalog gives a generated column's expression as its default; only the statement tells them apart."""
    spellings = (f"{before}{each} {type_} GENERATED ALWAYS AS(" for before in "( " for each in (name, identifier(name)))
    return any(each in statement for each in spellings)


def selected(
    connection: duckdb.DuckDBPyConnection, place: TablePlace, fields: Sequence[Field]
) -> list[tuple[Field, str]]:
    """The documented cast of each column, for SELECT."""
    types = connection.sql(f"FROM {place.sql} LIMIT 0").types
    return [(each, cast(identifier(each.name), type_, each.type)) for each, type_ in zip(fields, types, strict=True)]


def _table(
    connection: duckdb.DuckDBPyConnection,
    name: TableName,
    place: TablePlace,
    file: File,
    options: Options,
    time: int,
    own: OwnName,
) -> DuckDBTable:
    columns = _columns(connection, place)
    types = connection.sql(f"FROM {place.sql} LIMIT 0").types
    open_ = [
        doubt
        for column, type_ in zip(columns, types, strict=True)
        for doubt in doubts(column.name, type_, identifier(column.name))
    ]
    count, unfit = _read(connection, place, open_)
    mapper = Mapper(str(name), dict(options.type_map), unfit)
    fields = tuple(
        replace(mapper.column(column.name, type_, not column.nullable), doc=column.comment)
        for column, type_ in zip(columns, types, strict=True)
    )
    findings = [*mapper.findings]
    fields, said = with_defaults(
        connection,
        str(name),
        fields,
        [None if each.generated else each.default for each in columns],
        own,
        options.accept,
    )
    findings += said
    findings += [
        Finding(
            Code.GENERATED_COLUMN,
            str(name),
            f"column {each.name} keeps its values, not its expression: {each.default}",
            text=_statement(connection, place),
        )
        for each in columns
        if each.generated
    ]
    schema = Schema(0, fields)
    spec = partition_spec(asked("--partition-by", options.partition_by, name), fields)
    order = sort_order(asked("--sort-by", options.sort_by, name), fields)
    table = Table(
        name=name,
        uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{file.path}#{place.schema}.{place.table}")),
        location=file.path,
        metadata=file.path,
        format="duckdb",
        format_version=1,
        schemas={0: schema},
        schema=schema,
        specs={spec.id: spec},
        spec=spec,
        sort_order=order,
        commits=(Commit(place.state, time, time, 0, "import", rows=count),),
        updated=time,
        last_column_id=FieldId(mapper.last),
        properties={"comment": said_of} if (said_of := _statement(connection, place, "comment")) else {},
        findings=tuple(findings),
        imported=True,
    )
    return DuckDBTable(table, place, file, count, _size(connection, place, count))


def _read(
    connection: duckdb.DuckDBPyConnection, place: TablePlace, open_: Sequence[Doubt]
) -> tuple[int, Mapping[tuple[str, ...], int]]:
    """The rows, and how many of them do not fit at each doubtful level."""
    asked_ = ", ".join(["count(*)", *(f"count(*) FILTER (WHERE {each.unfit})" for each in open_)])
    [(count, *unfit)] = connection.execute(f"SELECT {asked_} FROM {place.sql}").fetchall()
    return count, {each.path: number for each, number in zip(open_, unfit, strict=True)}


def _size(connection: duckdb.DuckDBPyConnection, place: TablePlace, count: int) -> int:
    """About how many bytes the table takes in the file: its share of all values. (What DuckDB knows of its blocks costs
    a walk over them, and 1.5.5 gives it neither for names with a quote nor for far TIMESTAMP_NS.)"""
    query = (
        "SELECT sum(estimated_size * column_count), "
        "any_value(column_count) FILTER (WHERE schema_name = ? AND table_name = ?) "
        "FROM duckdb_tables() WHERE database_name = ?"
    )
    [(values, columns)] = connection.execute(query, [place.schema, place.table, ALIAS]).fetchall()
    return int(os.stat(place.file).st_size * min(1, count * columns / max(1, values or 0)))


class DuckDBTable:
    """One table in the state it was read in."""

    def __init__(self, table: Table, place: TablePlace, file: File, count: int, size: int) -> None:
        self._table = table
        self._place = place
        self._file = file
        self._count = count
        self._size = size

    @property
    def table(self) -> Table:
        return self._table

    def with_findings(self, findings: Sequence[Finding]) -> DuckDBTable:
        """The same with more to be said of it."""
        table = replace(self._table, findings=(*self._table.findings, *findings))
        return DuckDBTable(table, self._place, self._file, self._count, self._size)

    def files(self, progress: ProgressSink, since: int | None = None, held: Held | None = None) -> Files:
        """One data file that has to be rewritten, none for a table without rows."""
        return TableFiles(self._table, self._place, self._count, self._size)

    def rows(self, commit: str) -> Rows:
        """The documented cast of each column."""
        return _Rows(self._file, self._place, self._table.schema.fields)


class _Rows:
    """Rows that are read anew each time they are asked for."""

    def __init__(self, file: File, place: TablePlace, fields: tuple[Field, ...]) -> None:
        self._file, self._place, self._fields = file, place, fields

    @property
    def schema(self) -> pa.Schema:
        with opened(self._file, self._place.state) as connection:
            return self._reader(connection, "LIMIT 0").schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with opened(self._file, self._place.state) as connection:
            yield from self._reader(connection)

    def _reader(self, connection: duckdb.DuckDBPyConnection, rest: str = "") -> Any:
        chosen = selected(connection, self._place, self._fields)
        columns = ", ".join(f"{sql} AS {identifier(each.name)}" for each, sql in chosen)
        return connection.execute(f"SELECT {columns} FROM {self._place.sql} {rest}").to_arrow_reader(_BATCH)


class TableFiles:
    """The rows of a table as the one data file that stands for them."""

    mappings = ()
    since: int | None = None
    rest: int | None = 0
    findings = ()
    deletes = DELETED_ROWS.empty_table()
    partitions: Mapping[int, tuple[str | None, ...]] = {}
    numbered: tuple[int, ...] = ()
    predating: Mapping[FieldId, tuple[int, ...]] = {}

    def __init__(self, table: Table, place: TablePlace, count: int, size: int) -> None:
        row = {
            "path": place.path,
            "format": "duckdb",
            "begin": 0,
            "end": None,
            "record_count": count,
            "size": size,
            "footer_size": None,
            "spec": table.spec.id,
            "sequence": None,
            "first_row_id": None,
            "mapping": None,
        }
        self.table = pa.Table.from_pylist([row] if count else [], schema=DATA_FILES)
        said = Finding(Code.OWN_FORMAT, str(table.name), f"{count:,} rows lie in a DuckDB file")
        self.problems = (FileProblem(said, None, (0,)),) if count else ()

    def stats(self) -> Iterator[StatsBatch]:
        """Nothing is known before the rows are written."""
        yield from ()

    def sources(self, rows: Sequence[int]) -> Sequence[DataFile]:
        """The table itself."""
        facts = self.table.take(pa.array(rows, pa.int64())).to_pylist()
        return [DataFile(each["path"], "duckdb", each["record_count"], each["size"]) for each in facts]

    def equality(self, first: int) -> Equality | None:
        """There are no deletes."""
        return None

    def resolved(self, found: pa.Table) -> Files:
        """There are no deletes."""
        raise NotImplementedError


def open_source(rest: str, options: Options) -> DuckDBSource:
    """The source behind `duckdb:REST`."""
    return DuckDBSource(file_at(rest, options), options)
