"""The macros of a DuckDB file, with the types of parameters and the typed values of their defaults.

No function of DuckDB tells the defaults. So the file's definitions are copied into a database in memory, which is
emptied of all but macros and copied into an empty lake; what DuckLake noted of them there is read.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from bridge.errors import BridgeError
from bridge.model.objects import Overload, Parameter
from converters.parquet.extensions import load
from converters.parquet.sql import identifier, literal

__all__ = ["MacroName", "Unread", "read_macros"]

MacroName = tuple[str, str, str]
"""Schema, name, and `macro` or `table_macro`."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a macro cannot be carried, and its statement as far as DuckDB gives it."""

    why: str
    text: str = ""


_COPY, _PART, _LAKE = "bridge copy", "bridge part", "bridge lake"
_NESTED = frozenset({"list", "struct", "map"})
_DROPPED = (
    ("VIEW", "views", "view_name"),
    ("TABLE", "tables", "table_name"),
    ("SEQUENCE", "sequences", "sequence_name"),
)


def read_macros(
    connection: duckdb.DuckDBPyConnection, catalog: str, names: Sequence[MacroName]
) -> dict[MacroName, tuple[Overload, ...] | Unread]:
    """The overloads of each macro, or why they cannot be carried."""
    if not names:
        return {}
    try:
        load(connection, "ducklake")
        connection.execute(f"ATTACH ':memory:' AS {identifier(_COPY)}")
        connection.execute(f"COPY FROM DATABASE {identifier(catalog)} TO {identifier(_COPY)} (SCHEMA)")
        _empty(connection, _COPY)
        texts = _texts(connection)
    except (duckdb.Error, BridgeError) as error:
        return dict.fromkeys(names, Unread(f"its definition could not be read: {str(error).splitlines()[0]}"))
    found = _read(connection, tuple(names))
    return {
        name: _checked(found.get(name, Unread("its definition was not found")), _statement(texts, name[1]))
        for name in names
    }


def _statement(texts: str, name: str) -> str:
    """The statements of the macros of a name, whatever their schema."""
    own = f"(?:{re.escape(name)}|{re.escape(identifier(name))})"
    starts = [each.start() for each in re.finditer(r"^CREATE ", texts, re.MULTILINE)]
    parts = [texts[start:end] for start, end in zip(starts, [*starts[1:], len(texts)], strict=True)]
    return "".join(each for each in parts if re.match(rf"CREATE MACRO (?:.*\.)?{own} \(", each))


def _empty(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Drop all but schemas and macros, whatever depends on what."""
    left = None
    while True:
        errors: list[duckdb.Error] = []
        for kind, function, column in (*_DROPPED, ("TYPE", "types", "type_name")):
            query = f"SELECT schema_name, {column} FROM duckdb_{function}() WHERE database_name = ?"
            query += "" if kind == "SEQUENCE" else " AND NOT internal"
            for schema, name in connection.execute(query, [catalog]).fetchall():
                try:
                    connection.execute(f"DROP {kind} {_qualified(catalog, schema, name)}")
                except duckdb.Error as error:
                    errors.append(error)
        if not errors:
            return
        if left == len(errors):
            raise errors[0]
        left = len(errors)


def _texts(connection: duckdb.DuckDBPyConnection) -> str:
    """The text of all macros, in which alone a default NULL is told from the text 'NULL'."""
    with tempfile.TemporaryDirectory(prefix="bridge-macros-") as directory:
        connection.execute(f"EXPORT DATABASE {identifier(_COPY)} TO {literal(f'{directory}/out')}")
        return Path(f"{directory}/out/schema.sql").read_text()


def _read(
    connection: duckdb.DuckDBPyConnection, names: tuple[MacroName, ...]
) -> dict[MacroName, tuple[Overload, ...] | Unread]:
    """All at once, or in halves when DuckLake refuses one of them."""
    try:
        return dict(_copied(connection, frozenset(names)))
    except duckdb.Error as error:
        if len(names) == 1:
            said = " ".join(line for line in str(error).splitlines() if "Failed to commit:" not in line)
            return {names[0]: Unread(f"DuckLake cannot hold it: {said}")}
    middle = len(names) // 2
    return {**_read(connection, names[:middle]), **_read(connection, names[middle:])}


def _copied(
    connection: duckdb.DuckDBPyConnection, names: frozenset[MacroName]
) -> dict[MacroName, tuple[Overload, ...]]:
    part, lake = identifier(_PART), identifier(_LAKE)
    with tempfile.TemporaryDirectory(prefix="bridge-macros-") as directory:
        try:
            connection.execute(f"ATTACH ':memory:' AS {part}")
            connection.execute(f"COPY FROM DATABASE {identifier(_COPY)} TO {part} (SCHEMA)")
            for schema, name, kind in _names(connection, _PART):
                if (schema, name, kind) not in names:
                    word = "MACRO TABLE" if kind == "table_macro" else "MACRO"
                    connection.execute(f"DROP {word} {_qualified(_PART, schema, name)}")
            connection.execute(f"ATTACH {literal(f'ducklake:{directory}/m.ducklake')} AS {lake}")
            connection.execute(f"COPY FROM DATABASE {part} TO {lake} (SCHEMA)")
            return _noted(connection, identifier(f"__ducklake_metadata_{_LAKE}"))
        finally:
            connection.execute(f"DETACH DATABASE IF EXISTS {lake}")
            connection.execute(f"DETACH DATABASE IF EXISTS {part}")


def _names(connection: duckdb.DuckDBPyConnection, catalog: str) -> list[MacroName]:
    query = (
        "SELECT DISTINCT schema_name, function_name, function_type FROM duckdb_functions() "
        "WHERE database_name = ? AND NOT internal AND function_type IN ('macro', 'table_macro')"
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(query, [catalog]).fetchall()]


def _noted(connection: duckdb.DuckDBPyConnection, metadata: str) -> dict[MacroName, tuple[Overload, ...]]:
    parameters: dict[tuple[int, int], list[Parameter]] = {}
    for macro, impl, name, type_, default, default_type in connection.execute(
        f"SELECT macro_id, impl_id, parameter_name, parameter_type, default_value, default_value_type "
        f"FROM {metadata}.ducklake_macro_parameters ORDER BY macro_id, impl_id, column_id"
    ).fetchall():
        has_default = default_type != "unknown"
        parameters.setdefault((macro, impl), []).append(
            Parameter(
                name,
                "" if type_ == "unknown" else type_,
                default if has_default else None,
                default_type if has_default else "",
            )
        )
    found: dict[MacroName, tuple[Overload, ...]] = {}
    for schema, macro, name, impl, sql, kind in connection.execute(
        f"SELECT schema_name, macro_id, macro_name, impl_id, sql, type FROM {metadata}.ducklake_macro "
        f"JOIN {metadata}.ducklake_macro_impl USING (macro_id) JOIN {metadata}.ducklake_schema USING (schema_id) "
        "ORDER BY macro_id, impl_id"
    ).fetchall():
        key = (schema, name, "table_macro" if kind == "table" else "macro")
        found[key] = (*found.get(key, ()), Overload(sql, tuple(parameters.get((macro, impl), ()))))
    return found


def _checked(found: tuple[Overload, ...] | Unread, text: str) -> tuple[Overload, ...] | Unread:
    """What DuckLake 1.0 writes but cannot load again: it would make the whole lake unreadable."""
    text = text.strip().rstrip(";") + ";" if text else ""
    if isinstance(found, Unread):
        return Unread(found.why, text)
    why = next((why for each in found for parameter in each.parameters if (why := _unloadable(parameter, text))), "")
    return Unread(why, text) if why else found


def _unloadable(each: Parameter, text: str) -> str:
    if each.type in _NESTED:
        return f"parameter {each.name} has a {each.type} type, with which DuckDB could not open the lake any more"
    if each.default_type in _NESTED:
        return f"the default of {each.name} is a {each.default_type}, with which DuckDB could not open the lake"
    if each.default == "NULL" and re.search(rf"{re.escape(each.name)} := (CAST\()?NULL\b", text):
        return f"the default of {each.name} is NULL, which a lake cannot tell from the text 'NULL'"
    return ""


def _qualified(*names: str) -> str:
    return ".".join(map(identifier, names))
