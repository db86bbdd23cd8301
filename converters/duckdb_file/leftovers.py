"""What a DuckDB file holds and a lake has no place for: each a finding with its DDL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import duckdb

from bridge.model.findings import Code, Finding
from bridge.model.table import TableName
from bridge.ports import Notice
from converters.duckdb_file.place import table_name
from converters.parquet.sql import identifier, literal

__all__ = ["Leftovers", "collated_columns", "read_leftovers"]

_CONSTRAINTS = {
    "PRIMARY KEY": Code.PRIMARY_KEY,
    "FOREIGN KEY": Code.FOREIGN_KEY,
    "UNIQUE": Code.UNIQUE,
    "CHECK": Code.CHECK,
}


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Findings that belong to a table, by its name, and those that stand by themselves."""

    tables: Mapping[TableName, tuple[Finding, ...]]
    beside: tuple[Notice, ...]


def read_leftovers(connection: duckdb.DuckDBPyConnection, catalog: str) -> Leftovers:
    """Constraints, collations, indexes, sequences and types of an attached file."""
    tables: dict[TableName, list[Finding]] = {}
    beside: list[Notice] = []
    for name, finding in (*_constraints(connection, catalog), *_indexes(connection, catalog)):
        tables.setdefault(name, []).append(finding)
    for name, columns in collated_columns(connection, catalog).items():
        tables.setdefault(name, []).append(
            Finding(
                Code.COLLATION,
                str(name),
                f"column {', '.join(columns)}: comparisons, joins, DISTINCT and order were under a collation",
                "write COLLATE where it matters",
                text=_ddl(connection, catalog, name),
            )
        )
    beside += _sequences(connection, catalog)
    beside += _types(connection, catalog)
    return Leftovers({name: tuple(found) for name, found in tables.items()}, tuple(beside))


def _rows(connection: duckdb.DuckDBPyConnection, query: str, catalog: str) -> list[tuple[object, ...]]:
    return connection.execute(query, [catalog]).fetchall()


def _constraints(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[tuple[TableName, Finding]]:
    query = (
        "SELECT schema_name, table_name, constraint_type, constraint_text, constraint_name FROM duckdb_constraints() "
        "WHERE database_name = ? ORDER BY ALL"
    )
    for schema, table, kind, text, label in _rows(connection, query, catalog):
        code = _CONSTRAINTS.get(str(kind))
        if code is None:
            continue  # NOT NULL is carried
        name = table_name(str(schema), str(table))
        ddl = f"ALTER TABLE {identifier(str(schema))}.{identifier(str(table))} ADD {text};"
        yield name, Finding(code, str(name), f"{label}: {text}", text=ddl)


def _indexes(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[tuple[TableName, Finding]]:
    query = "SELECT schema_name, table_name, index_name, sql FROM duckdb_indexes() WHERE database_name = ? ORDER BY ALL"
    for schema, table, index, sql in _rows(connection, query, catalog):
        if sql:
            name = table_name(str(schema), str(table))
            yield name, Finding(Code.INDEX, str(name), f"index {index}", text=str(sql))


def _sequences(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[Notice]:
    query = (
        "SELECT schema_name, sequence_name, sql, start_value FROM duckdb_sequences() "
        "WHERE database_name = ? AND NOT temporary ORDER BY ALL"
    )
    for schema, sequence, sql, start in _rows(connection, query, catalog):
        name = table_name(str(schema), str(sequence))
        yield Notice(name, Finding(Code.SEQUENCE, str(name), f"sequence, next value {start}", text=str(sql)))


def _types(connection: duckdb.DuckDBPyConnection, catalog: str) -> Iterator[Notice]:
    query = (
        "SELECT schema_name, type_name, logical_type FROM duckdb_types() "
        "WHERE database_name = ? AND NOT internal ORDER BY ALL"
    )
    for schema, type_, logical in _rows(connection, query, catalog):
        name = table_name(str(schema), str(type_))
        place = ".".join(map(identifier, (catalog, str(schema), str(type_))))
        try:
            found = connection.execute(f"SELECT typeof(CAST(NULL AS {place}))").fetchone()
        except duckdb.Error:
            found = None
        stands = str(found[0]) if found else str(logical)
        ddl = f"CREATE TYPE {identifier(str(schema))}.{identifier(str(type_))} AS {stands};"
        yield Notice(name, Finding(Code.USER_TYPE, str(name), f"type {str(logical).lower()}", text=ddl))


def _ddl(connection: duckdb.DuckDBPyConnection, catalog: str, name: TableName) -> str:
    schema = name.namespace[0] if name.namespace else "main"
    found = connection.execute(
        "SELECT sql FROM duckdb_tables() WHERE database_name = ? AND schema_name = ? AND table_name = ?",
        [catalog, schema, name.name],
    ).fetchone()
    return str(found[0]) if found else ""


def collated_columns(connection: duckdb.DuckDBPyConnection, catalog: str) -> dict[TableName, tuple[str, ...]]:
    """The columns with a collation, which only a bound plan tells for certain."""
    query = (
        "SELECT schema_name, table_name FROM duckdb_tables() "
        "WHERE database_name = ? AND NOT internal AND NOT temporary AND sql ILIKE '%COLLATE%' ORDER BY ALL"
    )
    found = {}
    for schema, table in _rows(connection, query, catalog):
        columns = _collated(connection, catalog, str(schema), str(table))
        if columns:
            found[table_name(str(schema), str(table))] = columns
    return found


def _collated(connection: duckdb.DuckDBPyConnection, catalog: str, schema: str, table: str) -> tuple[str, ...]:
    """Columns in whose bound type a collation occurs, at any level."""
    place = ".".join(map(identifier, (catalog, schema, table)))
    plan = _plan(connection, f"SELECT * FROM {place}")
    for node in plan:
        names, types = node.get("names"), node.get("returned_types")
        if isinstance(names, list) and isinstance(types, list):
            return tuple(str(name) for name, type_ in zip(names, types, strict=False) if _has_collation(type_))
    return ()


def _plan(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[dict[str, object]]:
    found = connection.execute(f"SELECT json_serialize_plan({literal(query)})").fetchone()
    waiting: list[object] = [json.loads(found[0])] if found else []
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _has_collation(type_: object) -> bool:
    if isinstance(type_, dict):
        return bool(type_.get("collation")) or any(map(_has_collation, type_.values()))
    return isinstance(type_, list) and any(map(_has_collation, type_))
