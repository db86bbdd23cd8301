"""Where a lake keeps the files that it writes: the table's directory below its schema's below the data path."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa

from bridge.model.table import TableName
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.storage import absolute

__all__ = ["directory", "table_folder"]


def directory(name: str) -> str:
    """As DuckDB 1.5.5 names directories: the name when it is plain, else something unique."""
    plain = name.replace("_", "").replace("-", "")
    return f"{name}/" if plain.isalnum() and plain.isascii() else f"{uuid.uuid5(uuid.NAMESPACE_OID, name)}/"


def table_folder(session: Session | None, data_path: str, name: TableName) -> str:
    """The directory of a table that is there or is to be made, with a slash at the end; None: there is no lake yet."""
    schema_name = ".".join(name.namespace) or "main"
    schema, each = table("schema").c, table("table").c
    in_schema = sa.func.lower(schema.schema_name) == schema_name.lower()
    schemas = sa.select(schema.path, schema.path_is_relative).where(in_schema, schema.end_snapshot.is_(None))
    tables = (
        sa.select(each.path, each.path_is_relative)
        .join(table("schema"), schema.schema_id == each.schema_id)
        .where(in_schema, sa.func.lower(each.table_name) == name.name.lower(), each.end_snapshot.is_(None))
    )
    place = absolute(data_path).rstrip("/") + "/"
    for query, own in ((schemas, schema_name), (tables, name.name)):
        path, relative = _stored(session, query) or (directory(own), True)
        place = place + (path or "") if relative else path
        place = place.rstrip("/") + "/"
    return place


def _stored(session: Session | None, query: sa.Select[Any]) -> tuple[str, bool] | None:
    found = [] if session is None else session.rows(query.limit(1))
    return (found[0][0], bool(found[0][1])) if found else None
