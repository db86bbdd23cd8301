"""File statistics as the catalog's text, and the table statistics that follow from them.

A table statistic is used by the optimizer to drop filters and to answer MIN, MAX and COUNT, at every snapshot. So it is
the hull over all files ever registered, and it is written only when every file has exact bounds and a known null count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.files import StatsBatch
from converters.parquet import quiet

__all__ = ["FILE_STATS", "Hull", "Renderer", "TableStat"]

FILE_STATS = pa.schema(
    [
        ("data_file_id", pa.int64()),
        ("table_id", pa.int64()),
        ("column_id", pa.int64()),
        ("column_size_bytes", pa.int64()),
        ("value_count", pa.int64()),
        ("null_count", pa.int64()),
        ("min_value", pa.string()),
        ("max_value", pa.string()),
        ("contains_nan", pa.bool_()),
        ("extra_stats", pa.string()),
    ]
)


class Renderer:
    """Turns typed bounds into the text that DuckDB itself would write for them."""

    def __init__(self) -> None:
        self._connection = quiet.connect()
        self._connection.execute("SET TimeZone = 'UTC'")

    def text(self, values: pa.Array, type_: str = "") -> pa.Array:
        """Values as text, after a cast to the DuckDB type `type_` when one is given."""
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), pa.string())
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            clean = values.cast(pa.string())
            return pc.if_else(pc.match_substring(clean, "\0"), pa.scalar(None, pa.string()), clean)
        if pa.types.is_integer(values.type):
            return values.cast(pa.string())
        bounds = pa.table({"v": values})
        cast = f"CAST(v AS {type_})" if type_ else "v"
        text = f"CAST({cast} AS VARCHAR)"
        if pa.types.is_timestamp(values.type) and values.type.tz:
            # DuckDB 1.5.5 writes the last hour of its instants and cannot read it: a lake that says so fails
            text = f"CASE WHEN TRY_CAST({text} AS TIMESTAMPTZ) IS NOT NULL THEN {text} END"
        self._connection.register("bounds", bounds)
        found = self._connection.execute(f"SELECT {text} AS v FROM bounds").to_arrow_table()
        self._connection.unregister("bounds")
        column = found.column("v")
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)

    def values(self, texts: list[str | None], duckdb_type: str, like: pa.DataType | None) -> pa.Array:
        """Texts of the catalog as values of a DuckDB type, in the Arrow type `like` when one is given."""
        self._connection.register("texts", pa.table({"t": pa.array(texts, pa.string())}))
        found = self._connection.execute(f"SELECT CAST(t AS {duckdb_type}) AS v FROM texts").to_arrow_table()
        self._connection.unregister("texts")
        values = pa.concat_arrays(found.column("v").chunks)
        return values if like is None else values.cast(like)

    def file_stats(
        self, batch: StatsBatch, ids: np.ndarray, counts: np.ndarray | None, table_id: int, duckdb_type: str
    ) -> pa.Table:
        """ducklake_file_column_stats rows; `ids` maps file numbers to data_file_id, negative ones are left out.

        value_count is the number of values that are not NULL (as DuckDB 1.5.5 writes it); a file where it is 0 is
        pruned. So it is taken from the record counts (`counts` by file number; None for nested columns) rather than
        from the number of values that a writer states, and left out when it cannot be right.
        """
        stated = batch.table
        if counts is None:
            values = pc.subtract(stated.column("values"), stated.column("nulls"))
        else:
            rows = pa.chunked_array([pa.array(counts[stated.column("file").to_numpy()], pa.int64())])
            values = pc.subtract(rows, stated.column("nulls"))
        values = pc.if_else(pc.greater_equal(values, 0), values, pa.scalar(None, pa.int64()))
        stated = stated.append_column("filled", values)
        file_ids = pa.array(ids[stated.column("file").to_numpy()], pa.int64())
        told = pc.or_(
            pc.is_valid(stated.column("size")),
            pc.or_(pc.is_valid(stated.column("values")), pc.is_valid(stated.column("nulls"))),
        )
        keep = pc.and_(pc.greater_equal(file_ids, 0), told.combine_chunks())
        stated = stated.filter(keep)
        count = stated.num_rows
        nans = stated.column("nans")
        lower, upper = _safe_float_bounds(stated.column("lower"), stated.column("upper"), nans, duckdb_type)
        time = "TIME" if duckdb_type == "TIME" else ""
        return pa.table(
            [
                file_ids.filter(keep),
                pa.array(np.full(count, table_id), pa.int64()),
                pa.array(np.full(count, int(batch.field)), pa.int64()),
                stated.column("size"),
                stated.column("filled"),
                stated.column("nulls"),
                self.text(lower, time),
                self.text(upper, time),
                pc.greater(nans, 0),
                pa.nulls(count, pa.string()),
            ],
            schema=FILE_STATS,
        )


_FLOAT_MAX = float(np.finfo(np.float32).max)


def _safe_float_bounds(
    lower: pa.ChunkedArray, upper: pa.ChunkedArray, nans: pa.ChunkedArray, duckdb_type: str
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Bounds of float columns as DuckDB 1.5.5 prunes rightly by: a file whose bounds are one value is dropped for
    `<> value` though it may hold NaN, and the largest 32-bit float does not survive as a constant's text."""
    if not pa.types.is_floating(lower.type):
        return lower, upper
    may_hold_nan = pc.fill_null(pc.not_equal(nans, 0), True)
    blurred = pc.and_(may_hold_nan, pc.fill_null(pc.equal(lower, upper), False))
    nothing = pa.scalar(None, lower.type)
    lower, upper = pc.if_else(blurred, nothing, lower), pc.if_else(blurred, nothing, upper)
    if duckdb_type == "FLOAT":
        low, high = pa.scalar(float("-inf"), lower.type), pa.scalar(float("inf"), lower.type)
        lower = pc.if_else(pc.less_equal(lower, pa.scalar(-_FLOAT_MAX, lower.type)), low, lower)
        upper = pc.if_else(pc.greater_equal(upper, pa.scalar(_FLOAT_MAX, lower.type)), high, upper)
    return lower, upper


@dataclass(frozen=True, slots=True)
class TableStat:
    """A row of ducklake_table_column_stats, ids aside."""

    contains_null: bool
    min_value: str | None
    max_value: str | None


@dataclass(slots=True)
class Hull:
    """Gathers one column over all files of a table; `counts` are the record counts by file number, kept files only
    (others 0). `known` turns False as soon as one file leaves a doubt."""

    counts: np.ndarray
    known: bool = True
    contains_null: bool = False
    seen: int = 0
    low: pa.Array | None = None
    high: pa.Array | None = None
    _files: int = field(init=False)

    def __post_init__(self) -> None:
        self._files = int((self.counts > 0).sum())

    def add(self, batch: StatsBatch) -> None:
        """Take in the files of a batch that hold rows."""
        if not self.known:
            return
        rows = self.counts[batch.table.column("file").to_numpy()]
        table = batch.table.filter(pa.array(rows > 0))
        rows = rows[rows > 0]
        self.seen += len(rows)
        if not len(rows):
            return
        nulls = table.column("nulls")
        if nulls.null_count:
            self.known = False
            return
        null_counts = nulls.to_numpy()
        self.contains_null = self.contains_null or bool((null_counts > 0).any())
        valued = table.filter(pa.array(null_counts < rows))
        if not valued.num_rows:
            return
        lower, upper = valued.column("lower"), valued.column("upper")
        if not batch.exact or lower.null_count or upper.null_count:
            self.known = False
            return
        self.include(lower.combine_chunks(), upper.combine_chunks())

    def include(self, lower: pa.Array, upper: pa.Array) -> None:
        """Widen the hull by values of the column's type."""
        self.low = _extreme("min", lower, self.low)
        self.high = _extreme("max", upper, self.high)

    def finish(self, default: str | None, renderer: Renderer, duckdb_type: str, older: bool) -> TableStat | None:
        """The table statistic, or None when one file leaves a doubt or there is no row at all (`older`: the catalog
        held some before). Files that were never mentioned do not hold the column: they count as its initial default,
        or as NULL."""
        if not self.known or not (self._files or older):
            return None
        if self.seen < self._files:
            if default is None:
                self.contains_null = True
            else:
                value = renderer.values([default], duckdb_type, None if self.low is None else self.low.type)
                self.include(value, value)
        time = "TIME" if duckdb_type == "TIME" else ""
        low = None if self.low is None else renderer.text(self.low, time)[0].as_py()
        high = None if self.high is None else renderer.text(self.high, time)[0].as_py()
        if self.low is not None and (low is None or high is None):
            return None  # NULL and NULL would say that there is no value
        return TableStat(self.contains_null, low, high)


def _extreme(which: str, values: pa.Array, before: pa.Array | None) -> pa.Array:
    # times of manifests are in nanoseconds, those of a catalog in microseconds
    every = pa.chunked_array([values] if before is None else [values, before.cast(values.type)])
    return pa.array([pc.min_max(every)[which]], every.type)
