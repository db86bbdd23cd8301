"""The views, macros and schemas of a DuckDB file, with what they answer there, and without the file's own name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from bridge.model.findings import Code, Finding
from bridge.model.objects import Columns, Macro, ObjectKind, Objects, Overload, SourceObject, Trial, View
from bridge.model.table import TableName
from converters.duckdb_file.leftovers import collated_columns
from converters.duckdb_file.locate import File, opened
from converters.duckdb_file.macros import MacroName, Unread, read_macros
from converters.duckdb_file.names import OwnName, Parsed, Unparsable, parsed
from converters.duckdb_file.place import table_name
from converters.parquet.sql import identifier

__all__ = ["own_name", "read_objects", "view_parts"]


@dataclass(frozen=True, slots=True)
class _Database:
    connection: duckdb.DuckDBPyConnection
    catalog: str
    schemas: frozenset[str]
    """In lower case."""

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        return self.connection.execute(query, [*values]).fetchall()

    def parse(self, text: str, expression: bool = False) -> Parsed:
        return parsed(self.connection, text, self.catalog.casefold(), self.schemas, expression)

    def describe(self, query: str) -> Columns | str:
        """The columns of a query, or what DuckDB says against it. Nothing is executed."""
        try:
            return tuple((str(row[0]), str(row[1])) for row in self.rows(f"DESCRIBE {query}"))
        except duckdb.Error as error:
            return str(error).splitlines()[0]

    def explain(self, query: str) -> list[tuple[object, ...]] | str:
        try:
            return self.rows(f"EXPLAIN {query}")
        except duckdb.Error as error:
            return str(error).splitlines()[0]


def own_name(connection: duckdb.DuckDBPyConnection, file: File) -> OwnName:
    """Of a file that is attached without an alias."""
    catalog = _catalog(connection, file)
    query = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ?"
    schemas = connection.execute(query, [catalog]).fetchall()
    return OwnName(catalog.casefold(), frozenset(str(row[0]).casefold() for row in schemas))


def _catalog(connection: duckdb.DuckDBPyConnection, file: File) -> str:
    found = connection.execute("SELECT database_name, path FROM duckdb_databases() WHERE path IS NOT NULL").fetchall()
    return next(str(name) for name, path in found if os.path.realpath(str(path)) == file.path)


def read_objects(file: File, expected: str | None = None) -> Objects:
    """Everything that the file holds beside its tables, read under the name that DuckDB gives the file by itself."""
    with opened(file, expected, alias=None) as connection:
        connection.execute("SET python_enable_replacements = false")
        catalog = _catalog(connection, file)
        connection.execute(f"USE {identifier(catalog)}")
        query = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = ? AND NOT internal"
        names = [str(row[0]) for row in connection.execute(query, [catalog]).fetchall()]
        database = _Database(connection, catalog, frozenset(each.casefold() for each in (*names, "main")))
        objects = [SourceObject(ObjectKind.SCHEMA, TableName((), each)) for each in names if each != "main"]
        objects += _views(database)
        objects += _macros(database)
        return Objects(tuple(objects), _tables(database), collated_columns(connection, catalog))


def _tables(database: _Database) -> Mapping[TableName, Columns]:
    found: dict[TableName, list[tuple[str, str]]] = {}
    query = (
        "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = ? AND "
        "NOT internal AND table_oid IN (SELECT table_oid FROM duckdb_tables() WHERE database_name = ?) "
        "ORDER BY ALL"
    )
    for schema, table, column, type_ in database.rows(query, database.catalog, database.catalog):
        found.setdefault(table_name(str(schema), str(table)), []).append((str(column), str(type_)))
    return {name: tuple(columns) for name, columns in found.items()}


def _views(database: _Database) -> Iterator[SourceObject]:
    query = (
        "SELECT schema_name, view_name, sql, comment FROM duckdb_views() "
        "WHERE database_name = ? AND NOT internal AND NOT temporary ORDER BY ALL"
    )
    commented: dict[tuple[object, object], list[tuple[object, object]]] = {}
    for schema, view, column, said in database.rows(
        "SELECT schema_name, table_name, column_name, comment FROM duckdb_columns() "
        "WHERE database_name = ? AND comment IS NOT NULL ORDER BY column_index",
        database.catalog,
    ):
        commented.setdefault((schema, view), []).append((column, said))
    for schema, view, text, comment in database.rows(query, database.catalog):
        name = table_name(str(schema), str(view))
        findings = [
            Finding(Code.COMMENT_LOST, str(name), f"the comment on column {column} of the view: {said}")
            for column, said in commented.get((schema, view), ())
        ]
        yield _view(database, name, str(schema), str(text), str(comment or ""), findings)


def _view(
    database: _Database, name: TableName, schema: str, text: str, comment: str, findings: list[Finding]
) -> SourceObject:
    aliases, query = view_parts(text)
    place = ".".join(map(identifier, (database.catalog, schema, name.name)))
    columns = database.describe(f"SELECT * FROM {place}")
    needs: frozenset[str] = frozenset()
    problem, definition = "", None
    try:
        read = database.parse(query)
        needs = read.needs
        if isinstance(columns, str):
            other = f"; it names the catalog {', '.join(read.foreign)}" if read.foreign else ""
            problem = f"it does not bind at the source either: {columns}{other}"
            if "read-only mode" in columns:  # what else a view could want to write is unknown to us
                problem = f"it writes when it is read, as nextval does in what it reads: {columns}"
        elif read.never:
            problem = f"a lake cannot compute {', '.join(read.never)}()"
        else:
            sql = _same(database, schema, query, read)
            problem = "" if sql else "its text means another thing without the catalog's name"
            definition = View(sql, aliases, columns) if sql else None
            findings += _reads(name, read, text)
    except Unparsable as error:
        if not isinstance(columns, str) and database.catalog.casefold() not in query.casefold():
            definition = View(query, aliases, columns)
        else:
            problem = f"its text cannot be taken apart: {error}"
    if problem:
        findings.append(Finding(Code.VIEW_NOT_CARRIED, str(name), problem, text=text))
    return SourceObject(ObjectKind.VIEW, name, text, definition, comment, needs, tuple(findings))


def _same(database: _Database, schema: str, query: str, read: Parsed) -> str:
    """The text that DuckDB plans as it does the original, without the catalog's name as far as that goes."""
    if read.text == query:
        return query
    database.connection.execute(f"USE {identifier(database.catalog)}.{identifier(schema)}")
    try:
        was = database.explain(query)
        for text in (read.text, read.careful):
            if not isinstance(was, str) and database.explain(text) == was:
                return text
        return ""
    finally:
        database.connection.execute(f"USE {identifier(database.catalog)}")


def _reads(name: TableName, read: Parsed, text: str) -> Iterator[Finding]:
    if read.files:
        relative = [each for each in read.files if not each.startswith("/") and "://" not in each]
        said = ", ".join(read.files[:5])
        hint = "relative paths are looked for where DuckDB is started" if relative else ""
        yield Finding(Code.READS_FILES, str(name), f"reads {said}", hint)
    if read.asks:
        said = ", ".join(read.asks[:5])
        yield Finding(Code.CATALOG_ANSWERS, str(name), f"asks for {said}", text=text)


def view_parts(text: str) -> tuple[tuple[str, ...], str]:
    """(column aliases, query) of `CREATE VIEW s.v (a, b) AS SELECT ...;` as DuckDB writes it."""
    place = len("CREATE VIEW ")
    _, place = _name(text, place)
    while text[place] == ".":
        _, place = _name(text, place + 1)
    aliases: list[str] = []
    if text.startswith(" (", place):
        place += 1
        while text[place] != ")":
            place += 1 if text[place] == "(" else 2  # "(" or ", "
            alias, place = _name(text, place)
            aliases.append(alias)
        place += 1
    if not text.startswith(" AS ", place):
        raise ValueError(f"not the definition of a view: {text}")
    return tuple(aliases), text[place + len(" AS ") :].rstrip().removesuffix(";")


def _name(text: str, place: int) -> tuple[str, int]:
    """The identifier at a place and where it ends."""
    if text[place] != '"':
        end = place
        while text[end] not in " .,()":
            end += 1
        return text[place:end], end
    end = place + 1
    while text[end] != '"' or text[end + 1 : end + 2] == '"':
        end += 2 if text[end] == '"' else 1
    return text[place + 1 : end].replace('""', '"'), end + 1


def _macros(database: _Database) -> Iterator[SourceObject]:
    query = (
        "SELECT schema_name, function_name, function_type, comment, parameters, parameter_types, macro_definition "
        "FROM duckdb_functions() WHERE database_name = ? AND NOT internal AND function_type IN ('macro', 'table_macro')"
    )
    signatures: dict[MacroName, list[_Signature]] = {}
    comments: dict[MacroName, str] = {}
    for schema, macro, kind, comment, names, types, body in database.rows(query, database.catalog):
        key = (str(schema), str(macro), str(kind))
        listed = zip(_listed(names), _listed(types), strict=True)
        signatures.setdefault(key, []).append((tuple((str(each), type_) for each, type_ in listed), str(body)))
        comments[key] = str(comment or "")
    found = read_macros(database.connection, database.catalog, sorted(signatures))
    for key in sorted(signatures):
        yield _macro(database, key, signatures[key], comments[key], found[key])


_Signature = tuple[tuple[tuple[str, object], ...], str]
"""((parameter name, type or None), ...) and body."""


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _macro(
    database: _Database,
    key: MacroName,
    signatures: Sequence[_Signature],
    comment: str,
    read: tuple[Overload, ...] | Unread,
) -> SourceObject:
    schema, macro, kind = key
    name = table_name(schema, macro)
    is_table = kind == "table_macro"
    text = _macro_text(key, signatures, () if isinstance(read, Unread) else read)
    if isinstance(read, Unread) and read.text:
        text = read.text
    findings, needs, overloads = [], set[str](), []
    if comment:
        findings.append(Finding(Code.COMMENT_LOST, str(name), f"the comment on the macro: {comment}"))
    problem = read.why if isinstance(read, Unread) else ""
    for overload in () if isinstance(read, Unread) else read:
        try:
            body = database.parse(overload.sql, expression=not is_table)
        except Unparsable as error:
            problem = problem or f"its text cannot be taken apart: {error}"
            continue
        needs |= body.needs
        if body.foreign:
            problem = problem or f"it names the catalog {', '.join(body.foreign)}"
        if body.never:
            problem = problem or f"a lake cannot compute {', '.join(body.never)}()"
        findings += _reads(name, body, text)
        overloads.append(Overload(body.text, overload.parameters))
    if problem:
        findings.append(Finding(Code.MACRO_NOT_CARRIED, str(name), problem, text=text))
    place = ".".join(map(identifier, (database.catalog, schema, macro)))
    definition = (
        None if problem else Macro(tuple(overloads), tuple(_trials(database, place, is_table, overloads, signatures)))
    )
    which = ObjectKind.TABLE_MACRO if is_table else ObjectKind.MACRO
    return SourceObject(which, name, text, definition, comment, frozenset(needs), tuple(findings))


def _trials(
    database: _Database, place: str, is_table: bool, overloads: Sequence[Overload], signatures: Sequence[_Signature]
) -> Iterator[Trial]:
    for index, overload in enumerate(overloads):
        parameters = signatures[index][0] if index < len(signatures) else ()
        is_same = [name for name, _ in parameters] == [each.name for each in overload.parameters]
        known = [type_ for _, type_ in parameters] if is_same else [None] * len(overload.parameters)
        given = ", ".join(
            "NULL" if type_ is None else f"CAST(NULL AS {type_})"
            for each, type_ in zip(overload.parameters, known, strict=True)
            if each.default is None
        )
        call = f"{place}({given})"
        found = database.describe(f"SELECT * FROM {call}" if is_table else f"SELECT {call} AS answer")
        yield Trial(given, None, found) if isinstance(found, str) else Trial(given, found)


def _macro_text(key: MacroName, signatures: Sequence[_Signature], read: Sequence[Overload]) -> str:
    """CREATE MACRO with every overload; the defaults as far as they are known."""
    schema, macro, kind = key
    defaults = [{each.name: each.default for each in overload.parameters} for overload in read]
    parts = []
    for index, (parameters, body) in enumerate(signatures):
        known = defaults[index] if index < len(defaults) else {}
        listed = ", ".join(
            identifier(name)
            + (f" {type_}" if type_ is not None else "")
            + (f" := {known[name]}" if known.get(name) is not None else "")
            for name, type_ in parameters
        )
        parts.append(f"({listed}) AS " + (f"TABLE {body}" if kind == "table_macro" else body))
    return f"CREATE MACRO {identifier(schema)}.{identifier(macro)}{', '.join(parts)}"
