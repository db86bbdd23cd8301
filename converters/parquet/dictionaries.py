"""Values that DuckDB's Parquet writer takes for one another when it makes a dictionary of a column.

It puts what is equal into one entry: 0.0 and -0.0, NaN of either sign, '30 days' and '1 month'. Measured with 1.5.5. So
rows that hold such a value are written without dictionaries, which DuckDB can only be told of a whole file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bridge.model.types import ColumnType, Field, Leaf, ListOf, MapOf, Struct
from converters.parquet.sql import identifier, literal

__all__ = ["has_merged", "holds_merged", "may_merge"]

_IN_VARIANT = r"-0\.0|nan|\d:\d|day|month|year"
"""In the text of a variant: what could be one of them."""


def has_merged(connection: duckdb.DuckDBPyConnection, columns: str, relation: str, fields: tuple[Field, ...]) -> bool:
    """Whether a row holds a value that a dictionary would merge with an equal one."""
    conditions = [each for field in fields for each in _merged(identifier(field.name), field.type, 0)]
    if not conditions:
        return False
    query = f"SELECT 1 FROM (SELECT {columns} FROM {relation}) WHERE {' OR '.join(conditions)} LIMIT 1"
    return connection.execute(query).fetchone() is not None


def _merged(sql: str, type_: ColumnType, depth: int) -> Iterator[str]:
    one = f"v{depth}"
    match type_:
        case Leaf.FLOAT32 | Leaf.FLOAT64:
            yield f"(signbit({sql}) AND ({sql} = 0 OR isnan({sql})))"
        case Leaf.INTERVAL:
            yield f"({sql} IS NOT NULL)"
        case Leaf.VARIANT:
            yield f"regexp_matches(CAST({sql} AS VARCHAR), {literal(_IN_VARIANT)})"
        case Struct(fields):
            for each in fields:
                yield from _merged(f"struct_extract({sql}, {literal(each.name)})", each.type, depth)
        case ListOf(element):
            for condition in _merged(one, element.type, depth + 1):
                yield f"(len(list_filter({sql}, lambda {one}: {condition})) > 0)"
        case MapOf(key, value):
            for side, values in ((key, f"map_keys({sql})"), (value, f"map_values({sql})")):
                for condition in _merged(one, side.type, depth + 1):
                    yield f"(len(list_filter({values}, lambda {one}: {condition})) > 0)"
        case _:
            return


def may_merge(type_: pa.DataType) -> bool:
    """Whether values of a type could be merged: floats, at any level."""
    return pa.types.is_floating(type_) or any(may_merge(type_.field(place).type) for place in range(type_.num_fields))


def holds_merged(values: Any) -> bool:
    """Whether an array holds a value that a dictionary would merge with an equal one."""
    type_ = values.type
    if not may_merge(type_):
        return False
    if pa.types.is_struct(type_):
        return any(map(holds_merged, values.flatten()))
    if pa.types.is_map(type_):
        return holds_merged(values.keys) or holds_merged(values.items)
    if pa.types.is_nested(type_):
        return holds_merged(values.flatten())
    plain = values.drop_null().to_numpy(zero_copy_only=False)
    return bool((np.signbit(plain) & ((plain == 0) | np.isnan(plain))).any())
