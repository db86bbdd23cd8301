"""Takes the catalog's own name out of SQL texts, on DuckDB's parse tree.

A text that names its catalog (`app.main.t` in app.duckdb) means another thing, or nothing, wherever the catalog is
called otherwise. Literals, aliases and columns that are merely spelt like it stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb

__all__ = ["OwnName", "Parsed", "Unparsable", "is_constant", "parsed"]

_READERS = frozenset(
    {
        *("read_csv", "read_csv_auto", "sniff_csv", "read_parquet", "parquet_scan", "read_json", "read_json_auto"),
        *("read_json_objects", "read_json_objects_auto", "read_ndjson", "read_ndjson_auto", "read_ndjson_objects"),
        *("read_text", "read_blob", "glob", "parquet_metadata", "parquet_schema", "read_xlsx", "st_read"),
        *("iceberg_scan", "delta_scan", "sqlite_scan", "duckdb_scan"),
    }
)
"""Functions that read files by their paths."""


_OF_CATALOG = frozenset({"current_database", "current_catalog", "current_schema", "current_schemas", "in_search_path"})
_NEVER = frozenset({"txid_current", "currval"})
"""Functions that a lake cannot compute; DuckDB 1.5.5 binds the first and then fails with an internal error."""
_HOLDINGS = ("duckdb_", "pragma_", "pg_", "sqlite_master", "sqlite_schema")


class Unparsable(Exception):
    """DuckDB cannot give the parse tree of a text."""


@dataclass(frozen=True, slots=True)
class OwnName:
    """What DuckDB calls the catalog of a file by itself, and the file's schemas, all in lower case."""

    catalog: str
    schemas: frozenset[str]


@dataclass(slots=True)
class Parsed:
    """A query or an expression, without its catalog's name; `text` is as it was when the name did not occur."""

    text: str
    careful: str
    """The same, with column references left alone."""
    needs: frozenset[str]
    files: tuple[str, ...]
    """Paths of files that it reads."""
    foreign: tuple[str, ...]
    """Other catalogs that it names."""
    asks: tuple[str, ...]
    """What it asks of the catalog itself: row ids, its name, what it holds."""
    never: tuple[str, ...]
    """Functions that a lake cannot compute."""


@dataclass(slots=True)
class _Names:
    catalog: str
    schemas: frozenset[str]
    tables: set[tuple[str, str]] = field(default_factory=set)
    aliases: set[str] = field(default_factory=set)
    changed: bool = False


def parsed(
    connection: duckdb.DuckDBPyConnection, text: str, catalog: str, schemas: frozenset[str], expression: bool = False
) -> Parsed:
    """Read a text; `catalog` is the name to take out, `schemas` are the catalog's own, all in lower case."""
    query = f"SELECT {text}" if expression else text
    tree = _tree(connection, query)
    names = _Names(catalog, schemas)
    nodes = list(_nodes(tree))
    needs, files, foreign = _mentioned(nodes, names)
    asks = tuple(dict.fromkeys(each for node in nodes for each in _asked(node)))
    never = tuple(sorted({_word(node, "function_name") for node in nodes} & _NEVER))
    for node in nodes:
        _strip(node, names)
    careful = _text(connection, tree, expression) if names.changed else text
    before, names.changed = names.changed, False
    if names.catalog not in names.aliases:
        for node in nodes:
            _strip_column(node, names)
    whole = _text(connection, tree, expression) if names.changed else careful if before else text
    return Parsed(whole, careful, needs, files, foreign, asks, never)


def is_constant(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    """Whether an expression is one literal, as DuckDB parses it."""
    [statement] = _tree(connection, f"SELECT {text}")["statements"]
    [expression] = statement["node"]["select_list"]
    return bool(expression["class"] == "CONSTANT")


def _tree(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    try:
        found = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchone()
    except duckdb.Error as error:
        raise Unparsable(str(error).splitlines()[0]) from error
    tree: Any = json.loads(found[0]) if found else {"error": True, "error_message": "no answer"}
    if tree.get("error"):
        raise Unparsable(str(tree.get("error_message", "no parse tree")).splitlines()[0])
    if len(tree["statements"]) != 1:
        raise Unparsable("more than one statement")
    return tree


def _text(connection: duckdb.DuckDBPyConnection, tree: Any, expression: bool) -> str:
    try:
        found = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    except duckdb.Error as error:
        raise Unparsable(str(error).splitlines()[0]) from error
    text = str(found[0]) if found else ""
    if expression and not text.startswith("SELECT "):
        raise Unparsable("the expression does not come back as one")
    return text.removeprefix("SELECT ") if expression else text


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object of a parse tree, outer ones first."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _word(node: dict[str, Any], key: str) -> str:
    value = node.get(key)
    return value.casefold() if isinstance(value, str) else ""


def _mentioned(nodes: list[dict[str, Any]], names: _Names) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """(bare names of tables and functions, paths of files, foreign catalogs); notes aliases and own tables."""
    needs, files, foreign = set(), [], []
    for node in nodes:
        kind = node.get("type")
        if alias := _word(node, "alias"):
            names.aliases.add(alias)
        for key in ("column_name_alias", "aliases"):
            names.aliases |= {each.casefold() for each in node.get(key) or () if isinstance(each, str)}
        if "key" in node and isinstance(node.get("value"), dict):
            names.aliases.add(str(node["key"]).casefold())  # a common table expression
        if kind == "BASE_TABLE":
            catalog, schema, table = (_word(node, key) for key in ("catalog_name", "schema_name", "table_name"))
            needs.add(table)
            if not catalog and schema == names.catalog and schema not in names.schemas:
                catalog, schema = schema, ""
            names.tables.add((schema or "main", table))
            if catalog and catalog != names.catalog:
                foreign.append(str(node["catalog_name"]))
            if not schema and ("/" in table or "." in table):
                files.append(str(node["table_name"]))
        elif kind == "FUNCTION":
            name, catalog = _word(node, "function_name"), _word(node, "catalog")
            needs.add(name)
            if catalog not in ("", names.catalog, "system"):
                foreign.append(str(node["catalog"]))
            if name in _READERS:
                files += [
                    str(each["value"]) for each in _nodes(node.get("children")) if isinstance(each.get("value"), str)
                ]
    return frozenset(needs), tuple(dict.fromkeys(files)), tuple(dict.fromkeys(foreign))


def _asked(node: dict[str, Any]) -> Iterator[str]:
    parts = node.get("column_names")
    if node.get("class") == "COLUMN_REF" and isinstance(parts, list) and parts:
        last = str(parts[-1]).casefold()
        if last in ("rowid", *_OF_CATALOG):
            yield last
    if node.get("type") == "BASE_TABLE" and _word(node, "schema_name") in ("information_schema", "pg_catalog"):
        yield _word(node, "schema_name")
    name = _word(node, "function_name") or (_word(node, "table_name") if node.get("type") == "BASE_TABLE" else "")
    if name in _OF_CATALOG or name.startswith(_HOLDINGS):
        yield name


def _strip(node: dict[str, Any], names: _Names) -> None:
    """Take the catalog out of the name of a table, function or type; the schema it leaves open is main."""
    for catalog, schema in (("catalog_name", "schema_name"), ("catalog", "schema")):
        if not isinstance(node.get(catalog), str) or not isinstance(node.get(schema), str):
            continue
        if _word(node, catalog) == names.catalog:
            node[catalog], node[schema] = "", node[schema] or "main"
            names.changed = True
        elif not node[catalog] and _word(node, schema) == names.catalog and names.catalog not in names.schemas:
            node[schema] = "main"
            names.changed = True


def _strip_column(node: dict[str, Any], names: _Names) -> None:
    """Take the catalog out of `catalog.schema.table.column` and `catalog.table.column`, when the text reads that
    table."""
    parts = node.get("column_names")
    if node.get("class") != "COLUMN_REF" or not isinstance(parts, list) or len(parts) < 3:
        return
    words = [str(each).casefold() for each in parts]
    if words[0] != names.catalog:
        return
    if len(parts) > 3 and (words[1], words[2]) in names.tables:
        node["column_names"] = parts[1:]
        names.changed = True
    elif ("main", words[1]) in names.tables:
        node["column_names"] = ["main", *parts[1:]]
        names.changed = True
