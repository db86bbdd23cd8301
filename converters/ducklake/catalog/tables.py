"""The tables of a DuckLake 1.0 catalog, column for column as DuckDB 1.5.5 creates them.

The extension inserts by position, so order matters. Booleans, times and uuids are texts and integers on SQLite, as the
extension makes them there.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, String, Table, TableClause, column
from sqlalchemy import table as sql_table
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

__all__ = ["METADATA", "TABLES", "inlined_data", "inlined_deletes", "table"]


class _Native(UserDefinedType[str]):
    """A type by its name, its values handled as text."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        return self.name


class _ByBackend(TypeDecorator[str]):
    impl = String
    cache_ok = True

    def __init__(self, native: str, sqlite: str) -> None:
        super().__init__()
        self.native = native
        self.sqlite = sqlite

    def load_dialect_impl(self, dialect: object) -> TypeEngine[str]:
        name = self.sqlite if getattr(dialect, "name", "") == "sqlite" else self.native
        return dialect.type_descriptor(_Native(name))  # type: ignore[attr-defined, no-any-return]  # a Dialect


_TYPES: dict[str, TypeEngine[Any]] = {
    "big": BigInteger(),
    "text": _ByBackend("VARCHAR", "VARCHAR"),
    "bool": _ByBackend("BOOLEAN", "BIGINT"),
    "uuid": _ByBackend("UUID", "VARCHAR"),
    "time": _ByBackend("TIMESTAMP WITH TIME ZONE", "VARCHAR"),
}

METADATA = MetaData()

_DEFINITIONS = """
ducklake_metadata: key text!, value text!, scope text, scope_id big
ducklake_snapshot: snapshot_id big*, snapshot_time time, schema_version big, next_catalog_id big, next_file_id big
ducklake_snapshot_changes: snapshot_id big*, changes_made text, author text, commit_message text, commit_extra_info text
ducklake_schema: schema_id big*, schema_uuid uuid, begin_snapshot big, end_snapshot big, schema_name text, path text, path_is_relative bool
ducklake_table: table_id big, table_uuid uuid, begin_snapshot big, end_snapshot big, schema_id big, table_name text, path text, path_is_relative bool
ducklake_view: view_id big, view_uuid uuid, begin_snapshot big, end_snapshot big, schema_id big, view_name text, dialect text, sql text, column_aliases text
ducklake_tag: object_id big, begin_snapshot big, end_snapshot big, key text, value text
ducklake_column_tag: table_id big, column_id big, begin_snapshot big, end_snapshot big, key text, value text
ducklake_data_file: data_file_id big*, table_id big, begin_snapshot big, end_snapshot big, file_order big, path text, path_is_relative bool, file_format text, record_count big, file_size_bytes big, footer_size big, row_id_start big, partition_id big, encryption_key text, mapping_id big, partial_max big
ducklake_file_column_stats: data_file_id big, table_id big, column_id big, column_size_bytes big, value_count big, null_count big, min_value text, max_value text, contains_nan bool, extra_stats text
ducklake_file_variant_stats: data_file_id big, table_id big, column_id big, variant_path text, shredded_type text, column_size_bytes big, value_count big, null_count big, min_value text, max_value text, contains_nan bool, extra_stats text
ducklake_delete_file: delete_file_id big*, table_id big, begin_snapshot big, end_snapshot big, data_file_id big, path text, path_is_relative bool, format text, delete_count big, file_size_bytes big, footer_size big, encryption_key text, partial_max big
ducklake_column: column_id big, begin_snapshot big, end_snapshot big, table_id big, column_order big, column_name text, column_type text, initial_default text, default_value text, nulls_allowed bool, parent_column big, default_value_type text, default_value_dialect text
ducklake_table_stats: table_id big, record_count big, next_row_id big, file_size_bytes big
ducklake_table_column_stats: table_id big, column_id big, contains_null bool, contains_nan bool, min_value text, max_value text, extra_stats text
ducklake_partition_info: partition_id big, table_id big, begin_snapshot big, end_snapshot big
ducklake_partition_column: partition_id big, table_id big, partition_key_index big, column_id big, transform text
ducklake_file_partition_value: data_file_id big, table_id big, partition_key_index big, partition_value text
ducklake_files_scheduled_for_deletion: data_file_id big, path text, path_is_relative bool, schedule_start time
ducklake_inlined_data_tables: table_id big, table_name text, schema_version big
ducklake_column_mapping: mapping_id big, table_id big, type text
ducklake_name_mapping: mapping_id big, column_id big, source_name text, target_field_id big, parent_column big, is_partition bool
ducklake_schema_versions: begin_snapshot big, schema_version big, table_id big
ducklake_macro: schema_id big, macro_id big, macro_name text, begin_snapshot big, end_snapshot big
ducklake_macro_impl: macro_id big, impl_id big, dialect text, sql text, type text
ducklake_macro_parameters: macro_id big, impl_id big, column_id big, parameter_name text, parameter_type text, default_value text, default_value_type text
ducklake_sort_info: sort_id big, table_id big, begin_snapshot big, end_snapshot big
ducklake_sort_expression: sort_id big, table_id big, sort_key_index big, expression text, dialect text, sort_direction text, null_order text
"""
"""name: column type, ...; `*` marks the primary key, `!` NOT NULL."""


def _define(line: str) -> Table:
    name, _, columns = line.partition(":")
    made = []
    for each in columns.split(","):
        column, type_ = each.split()
        key, required = type_.endswith("*"), type_.endswith("!")
        made.append(
            Column(
                column,
                _TYPES[type_.rstrip("*!")],
                primary_key=key,
                nullable=not (required or key),
                autoincrement=False,
            )
        )
    return Table(name, METADATA, *made)


TABLES: dict[str, Table] = {made.name: made for made in (_define(line) for line in _DEFINITIONS.strip().splitlines())}


def table(name: str) -> Table:
    """A catalog table by its short name: `snapshot` is ducklake_snapshot."""
    return TABLES[f"ducklake_{name}"]


def inlined_deletes(table_id: int) -> TableClause:
    """The rows that DuckDB keeps of small deletes: a table that is listed nowhere and need not be there."""
    columns = (column(name, BigInteger()) for name in ("file_id", "row_id", "begin_snapshot"))
    return sql_table(f"ducklake_inlined_delete_{table_id}", *columns)


def inlined_data(name: str) -> TableClause:
    """A table of rows that DuckDB keeps in the catalog, without its columns of the table's own."""
    return sql_table(name, *(column(each, BigInteger()) for each in ("row_id", "begin_snapshot", "end_snapshot")))
