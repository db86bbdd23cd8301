"""Exact statistics of a Parquet file that was just written."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa

from bridge.model.types import ColumnType, Decimal, Field, FieldId, Leaf, ListOf, MapOf, Struct, Time, Timestamp
from converters.ducklake.identifiers import identifier, literal

__all__ = ["measured"]

_ORDERED = frozenset(
    {
        *(Leaf.BOOLEAN, Leaf.DATE, Leaf.STRING, Leaf.JSON, Leaf.FLOAT32, Leaf.FLOAT64),
        *(Leaf.INT8, Leaf.INT16, Leaf.INT32, Leaf.INT64, Leaf.UINT8, Leaf.UINT16, Leaf.UINT32, Leaf.UINT64),
    }
)
_UNKNOWN = ("NULL", "NULL", "CAST(NULL AS VARCHAR)", "CAST(NULL AS VARCHAR)")


def measured(
    connection: duckdb.DuckDBPyConnection, local: str, fields: tuple[Field, ...]
) -> list[tuple[FieldId, pa.Table]]:
    """For each leaf column one row (file, size, values, nulls, nans, lower, upper); NULL is unknown, as what lies in
    lists and maps is."""
    leaves = list(_leaves(fields, ""))
    asked = ["count(*)"]
    for field, sql, repeated in leaves:
        asked += _UNKNOWN if repeated else _aggregates(sql, field.type)
    listed = ", ".join(f"{sql} AS c{number}" for number, sql in enumerate(asked))
    found = connection.execute(f"SELECT {listed} FROM read_parquet({literal(local)})").to_arrow_table()
    count = found.column(0).cast(pa.int64())
    made = []
    for place, (field, _, repeated) in enumerate(leaves):
        nulls, nans, lower, upper = (found.column(1 + 4 * place + part) for part in range(4))
        columns = {
            "file": pa.array([0], pa.int64()),
            "size": pa.nulls(1, pa.int64()),
            "values": pa.nulls(1, pa.int64()) if repeated else count,
            "nulls": nulls.cast(pa.int64()),
            "nans": nans.cast(pa.int64()),
            "lower": lower,
            "upper": upper,
        }
        made.append((field.id, pa.table(columns)))
    return made


def _leaves(fields: tuple[Field, ...], above: str, repeated: bool = False) -> Iterator[tuple[Field, str, bool]]:
    for each in fields:
        sql = f"struct_extract({above}, {literal(each.name)})" if above else identifier(each.name)
        match each.type:
            case Struct(inner):
                yield from _leaves(inner, sql, repeated)
            case ListOf(element):
                yield from _leaves((element,), sql, True)
            case MapOf(key, value):
                yield from _leaves((key, value), sql, True)
            case _:
                yield each, sql, repeated


def _aggregates(sql: str, type_: ColumnType) -> list[str]:
    """The number of NULLs and of NaN, least and greatest value."""
    nulls = f"count(*) - count({sql})"
    if type_ in (Leaf.FLOAT32, Leaf.FLOAT64):
        plain = f"FILTER (NOT isnan({sql}))"
        return [nulls, f"count(*) FILTER (isnan({sql}))", f"min({sql}) {plain}", f"max({sql}) {plain}"]
    if type_ in _ORDERED or isinstance(type_, Decimal | Time | Timestamp):
        return [nulls, "NULL", f"min({sql})", f"max({sql})"]
    return [nulls, *_UNKNOWN[1:]]
