"""Encrypted files of a lake: only DuckDB reads what DuckDB encrypts."""

from __future__ import annotations

import base64
import binascii

import duckdb
import pyarrow as pa

from bridge.errors import Unreachable
from bridge.model.paths import scheme
from converters.ducklake.extensions import connect
from converters.ducklake.identifiers import identifier, literal
from converters.ducklake.remote import connect_objects

__all__ = ["encryption", "read_encrypted"]


def encryption(key: str) -> str:
    """The setting of read_parquet for a key of the catalog."""
    try:
        raw = base64.b64decode(key, validate=True)
    except binascii.Error as error:
        raise Unreachable("an encryption key of the catalog is damaged") from error
    spelled = "".join(f"\\x{byte:02X}" for byte in raw)
    return f"encryption_config = {{footer_key_value: {literal(spelled)}::BLOB}}"


def read_encrypted(path: str, key: str, column: str = "") -> pa.Table:
    """A file, or one column of it."""
    connection = connect()
    try:
        if scheme(path):
            connect_objects(connection)
        chosen = identifier(column) if column else "*"
        query = f"SELECT {chosen} FROM read_parquet({literal(path)}, {encryption(key)})"
        return connection.execute(query).to_arrow_table()
    except duckdb.Error as error:
        raise Unreachable(f"encrypted file {path} cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        connection.close()
