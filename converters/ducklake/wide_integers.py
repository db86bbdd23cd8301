"""Integers of 128 bits: DuckDB writes them to Parquet as doubles, but rows in the catalog have every digit."""

from __future__ import annotations

from dataclasses import replace

from bridge.model.schema import Schema
from bridge.model.table import Table
from bridge.model.types import Decimal, Field, FieldId, Leaf
from converters.ducklake.catalog.file_rows import has_files, read_rows
from converters.ducklake.catalog.history import Definition
from converters.ducklake.catalog.inlined import columns_of_version, held_rows
from converters.ducklake.catalog.session import Session
from converters.ducklake.definition import leaf_type
from converters.ducklake.identifiers import identifier

__all__ = ["exact", "kept_exactly"]

_EXACT = Decimal(38, 0)
_WIDE = (Leaf.INT128, Leaf.UINT128)


def kept_exactly(session: Session, found: Definition, table_id: int, head: int) -> frozenset[FieldId]:
    """The columns of 128 bits of which every row lies in the catalog and fits a decimal; nested ones are none."""
    wide = {each.id for each in found.columns if each.parent is None and leaf_type(each.type) in _WIDE}
    if not wide:
        return frozenset()
    if has_files(session, table_id):
        return frozenset()
    rows = read_rows(session, table_id, head)
    if not rows.inlined:
        return frozenset()
    for group in rows.inlined:
        columns = columns_of_version(session, found, table_id, group.schema_version, group.begin)
        names = {each.id: each.name for each in columns if each.id in wide}
        with held_rows(session, group.table, group.begin, columns) as held:
            for id_, name in names.items():
                value = identifier(name)
                lost = f"{value} IS NOT NULL AND TRY_CAST({value} AS DECIMAL(38, 0)) IS NULL"
                [(count,)] = held.connection.execute(f"SELECT count(*) FROM {held.sql} WHERE {lost}").fetchall()
                if count:
                    wide.discard(id_)
    return frozenset(map(FieldId, wide))


def exact(table: Table, columns: frozenset[FieldId]) -> Table:
    """The table with decimals for these columns."""

    def field(each: Field) -> Field:
        return replace(each, type=_EXACT) if each.id in columns and each.type in _WIDE else each

    def schema(each: Schema) -> Schema:
        return replace(each, fields=tuple(map(field, each.fields)))

    schemas = {id_: schema(each) for id_, each in table.schemas.items()}
    return replace(table, schemas=schemas, schema=schema(table.schema))
