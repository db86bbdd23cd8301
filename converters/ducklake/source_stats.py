"""File statistics of a lake's catalog, column by column, with bounds in the column's type.

The catalog holds text; DuckDB itself makes values of it. Which bounds are attained by a row: those of whole numbers,
decimals and times always; those of texts in files that the lake wrote and below the length at which its writer cuts
them; never those of floats, where NaN and -0.0 blur them.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from bridge.model.files import StatsBatch
from bridge.model.types import ColumnType, Decimal, FieldId, Leaf, Time, Timestamp, Unit
from converters.ducklake.types import duckdb_type, type_name
from converters.storage.scratch import scratch

__all__ = ["StatSpool", "typed"]

_CUT = 256
"""Bytes at which DuckDB 1.5.5 cuts the bounds of texts."""

_INTEGERS = frozenset(
    {
        *(Leaf.INT8, Leaf.INT16, Leaf.INT32, Leaf.INT64),
        *(Leaf.UINT8, Leaf.UINT16, Leaf.UINT32, Leaf.UINT64),
    }
)
_FLOATS = (Leaf.FLOAT32, Leaf.FLOAT64)


class StatSpool:
    """The rows of ducklake_file_column_stats on disk, one file a part and column, so that memory is bounded."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(dir=scratch()))
        self._parts: dict[int, list[Path]] = {}
        self._clean = weakref.finalize(self, shutil.rmtree, self._directory, True)

    def add(self, frame: pl.DataFrame) -> None:
        """Take in rows of several columns."""
        for (column,), part in frame.partition_by("column_id", as_dict=True, include_key=False).items():
            places = self._parts.setdefault(int(column), [])
            places.append(self._directory / f"{column}-{len(places)}.arrow")
            part.write_ipc(places[-1])

    def column(self, id_: int) -> pl.DataFrame | None:
        """The rows of one column; of two for one file the first counts."""
        places = self._parts.get(id_)
        if not places:
            return None
        return pl.concat([pl.read_ipc(place) for place in places]).unique(
            "data_file_id", keep="first", maintain_order=True
        )


def typed(
    field: FieldId, type_: ColumnType, repeated: bool, rows: pl.DataFrame, connection: duckdb.DuckDBPyConnection
) -> Iterator[StatsBatch]:
    """`rows` has one row a file that holds the column: file, record_count, own (whether the lake wrote it) and what
    the catalog says, which is NULL where it says nothing. `repeated`: the column lies in a list or map."""
    filled, nulls, count = pl.col("value_count"), pl.col("null_count"), pl.col("record_count")
    if repeated:
        rows = rows.with_columns(values=filled + nulls, nulls=nulls)
    else:
        # writers disagree on whether value_count has the NULLs; some state zeros for types they do not measure
        fits = (filled + nulls == count) | (filled == count)
        rows = rows.with_columns(values=pl.when(filled.is_not_null()).then(count), nulls=pl.when(fits).then(nulls))
    if type_ in (Leaf.INTERVAL, Leaf.TIMETZ):
        # DuckDB 1.5.5 measures none of them, and until 1.4 it says that there is no NULL
        rows = rows.with_columns(nulls=pl.lit(None, dtype=pl.Int64))
    rows = rows.with_columns(
        pl.when(pl.col("contains_nan").not_()).then(0).otherwise(None).cast(pl.Int64).alias("nans"),
    )
    known = pl.col("min_value").is_not_null() & pl.col("max_value").is_not_null()
    if type_ is Leaf.STRING:
        short = pl.max_horizontal(pl.col("min_value").str.len_bytes(), pl.col("max_value").str.len_bytes()) < _CUT
        exact = (pl.col("own") & known & short).fill_null(False)
        parts = [(rows.filter(exact), True), (rows.filter(~exact), False)]
    else:
        parts = [(rows, _is_exact(type_))]
    for part, attained in parts:
        if len(part):
            yield StatsBatch(field, _table(part, type_, connection), attained)


def _is_exact(type_: ColumnType) -> bool:
    return type_ in _INTEGERS or type_ in (Leaf.BOOLEAN, Leaf.DATE) or isinstance(type_, Decimal | Time | Timestamp)


def _has_bounds(type_: ColumnType) -> bool:
    return _is_exact(type_) or type_ in _FLOATS or type_ is Leaf.STRING


_SHAPE = ("file", "column_size_bytes", "values", "nulls", "nans")


def _table(rows: pl.DataFrame, type_: ColumnType, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    counts = rows.select(*_SHAPE).rename({"column_size_bytes": "size"}).to_arrow()
    for name, place in (("lower", "min_value"), ("upper", "max_value")):
        texts = rows[place] if _has_bounds(type_) else pl.Series([None], dtype=pl.String).new_from_index(0, len(rows))
        bounds = _bounds(texts.to_arrow().cast(pa.string()), type_, name == "lower", connection)
        counts = counts.append_column(name, bounds)
    return counts


def _bounds(texts: pa.Array, type_: ColumnType, lower: bool, connection: duckdb.DuckDBPyConnection) -> pa.Array:
    name = type_name(type_, {})
    if type_ is Leaf.STRING or not _has_bounds(type_) or name is None:
        return texts
    sql = duckdb_type(name)
    connection.register("texts", pa.table({"t": texts}))
    value = f"TRY_CAST(t AS {sql})"
    if type_ in _FLOATS:
        # a writer that treats both zeros as one says 0.0 for either
        zero = "'-0.0'" if lower else "'0.0'"
        value = f"CASE WHEN {value} = 0 THEN {zero}::{sql} WHEN isnan({value}) THEN NULL ELSE {value} END"
    if isinstance(type_, Timestamp) and type_.unit is Unit.SECOND:
        value = f"CAST({value} AS TIMESTAMP)"
    found = connection.execute(f"SELECT {value} AS v FROM texts").to_arrow_table()
    return found.column("v").combine_chunks() if found.num_rows else texts
