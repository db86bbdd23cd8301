"""The defaults of a table's columns: literals as their values, all else as expressions without the catalog's name."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import duckdb

from bridge.errors import Blocked
from bridge.model.findings import Code, Finding
from bridge.model.types import Expression, Field, ListOf, MapOf, Struct
from converters.duckdb_file.names import OwnName, Unparsable, is_constant, parsed
from converters.parquet.sql import duckdb_type, identifier

__all__ = ["with_defaults"]


def with_defaults(
    connection: duckdb.DuckDBPyConnection,
    subject: str,
    fields: Sequence[Field],
    texts: Sequence[str | None],
    own: OwnName,
    accepted: Container[str] = (),
) -> tuple[tuple[Field, ...], list[Finding]]:
    """The fields with their defaults, and what is said of those that cannot be kept. What asks for the catalog is kept
    where its code is among the accepted ones."""
    made, said = [], []
    for field, text in zip(fields, texts, strict=True):
        problem, asks, without = "", "", field
        if text is not None:
            try:
                field, problem, asks = _with_default(connection, field, text, own)
            except Unparsable as error:
                problem = str(error)
        ddl = f"ALTER TABLE {subject} ALTER {identifier(field.name)} SET DEFAULT {text};"
        if asks:
            is_kept = Code.CATALOG_ANSWERS.text in accepted
            field = field if is_kept else without
            detail = f"column {field.name}: the default {text} {'' if is_kept else 'is not kept: it '}asks for {asks}"
            hint = "" if is_kept else f"keep it with --accept {Code.CATALOG_ANSWERS.text}"
            said.append(Finding(Code.CATALOG_ANSWERS, subject, detail, hint, text=ddl))
        if problem:
            detail = f"column {field.name}: the default {text} is not kept: {problem}"
            said.append(Finding(Code.DEFAULT_LOST, subject, detail, text=ddl))
        made.append(field)
    return tuple(made), said


def _with_default(
    connection: duckdb.DuckDBPyConnection, field: Field, text: str, own: OwnName
) -> tuple[Field, str, str]:
    """The field with its default, why it has none, and what the default asks of the catalog."""
    constant = is_constant(connection, text)
    if constant:
        value, given = _value(connection, field, text)
        if value is None:
            return field, "", ""  # DEFAULT NULL is none
    if isinstance(field.type, Struct | ListOf | MapOf):
        return field, "DuckLake keeps no defaults on nested columns", ""
    if not constant:
        read = parsed(connection, text, own.catalog, own.schemas, expression=True)
        if read.never:
            return field, f"a lake cannot compute {', '.join(read.never)}()", ""
        return replace(field, write_default=Expression(read.text)), "", ", ".join(read.asks)
    if given is None:
        return field, f"{value!r} is no value of the type that the column has in the lake", ""
    # a catalog takes the bare text NULL for no default at all
    write = Expression("CAST('NULL' AS VARCHAR)") if value == "NULL" else value
    return replace(field, initial_default=given, write_default=write), "", ""


def _value(connection: duckdb.DuckDBPyConnection, field: Field, text: str) -> tuple[str | None, str | None]:
    """A literal's value as text, and the text that it has as a value of the column's type (None: it is none)."""
    found = connection.execute(f"SELECT CAST({text} AS VARCHAR)").fetchone()
    value = None if found is None or found[0] is None else str(found[0])
    if value is None or isinstance(field.type, Struct | ListOf | MapOf):
        return value, None
    try:
        type_ = duckdb_type(field.type)
    except Blocked:  # the column itself cannot be carried
        return value, None
    query = f"SELECT CAST(TRY_CAST(CAST(? AS VARCHAR) AS {type_}) AS VARCHAR)"
    given = connection.execute(query, [value]).fetchone()
    return value, None if given is None or given[0] is None else str(given[0])
