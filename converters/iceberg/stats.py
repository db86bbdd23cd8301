"""Statistics of manifest entries, column by column, with bounds in the column's type.

Bounds are stored as single values (Iceberg specification, "Appendix D"): little-endian numbers, big-endian decimals of
any length, UTF-8 text. A column that was promoted keeps the shorter form in older files, so the length decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import polars as pl
import pyarrow as pa

from bridge.model.schema import Schema, walk
from bridge.model.types import ColumnType, Decimal, FieldId, Leaf, Time, Timestamp, Unit
from converters.iceberg.manifests import STATS_MAPS

__all__ = ["decode", "has_exact_bounds", "leaf_types"]

_COUNTS = {
    "size": "column_sizes",
    "values": "value_counts",
    "nulls": "null_value_counts",
    "nans": "nan_value_counts",
}
_BOUNDS = {"lower": "lower_bounds", "upper": "upper_bounds"}
_MICROS_A_DAY = 86_400_000_000


def leaf_types(schemas: Iterable[Schema]) -> dict[FieldId, ColumnType]:
    """The latest type of every leaf in any of the schemas, oldest schema first."""
    return {
        placed.field.id: placed.field.type for schema in schemas for placed in walk(schema.fields) if placed.is_leaf
    }


def has_exact_bounds(type_: ColumnType) -> bool:
    """Whether a manifest's bounds for the type are attained by rows: text may be cut, NaN and -0.0 blur floats,
    and engines order uuid and binary differently."""
    match type_:
        case Leaf.BOOLEAN | Leaf.INT32 | Leaf.INT64 | Leaf.DATE | Time() | Timestamp() | Decimal():
            return True
        case _:
            return False


def decode(frame: pl.DataFrame, types: Mapping[FieldId, ColumnType]) -> Iterator[tuple[FieldId, pa.Table]]:
    """For each column listed by any entry: (entry, size, values, nulls, nans, lower, upper).

    `frame` has the column `entry` and the maps of STATS_MAPS; what an entry does not state is NULL, and an entry that
    states nothing about the column has no row.
    """
    ids = frame["entry"].to_numpy()
    parts = {name: _by_field(frame[name]) for name in STATS_MAPS}
    for field, type_ in types.items():
        own = {name: part[field] for name, part in parts.items() if field in part}
        if not own:
            continue
        place = np.full(len(frame), -1, dtype=np.int64)
        for rows, _ in own.values():
            place[slice(None) if rows is None else rows] = 0
        listed = np.flatnonzero(place == 0)
        place[listed] = np.arange(len(listed))
        columns: dict[str, pa.Array] = {"entry": pa.array(ids[listed], pa.int64())}
        for name, stored in _COUNTS.items():
            columns[name] = _spread(own.get(stored), place, len(listed), pl.Int64).to_arrow()
        for name, stored in _BOUNDS.items():
            columns[name] = _bounds(_spread(own.get(stored), place, len(listed), pl.Binary), type_)
        yield field, pa.table(columns)


_Part = tuple["np.ndarray | None", pl.Series]
"""Row numbers, ascending, and the value of each; None: every row in turn."""


def _by_field(maps: pl.Series) -> dict[int, _Part]:
    """The entries of a map column by their key; of a key that a map holds twice the last one counts."""
    lengths = maps.list.len().fill_null(0)
    rows = np.repeat(np.arange(len(maps)), lengths.to_numpy())
    if not len(rows):
        return {}
    pairs = maps.filter(lengths > 0).explode().struct.unnest()
    keys, width = pairs["key"], lengths[0]
    if lengths.min() == width == lengths.max() and not keys.null_count():
        grid = keys.to_numpy().reshape(len(maps), width)
        first = grid[0].tolist()
        if len(set(first)) == width and (grid == grid[0]).all():
            values = pairs["value"]
            return {key: (None, values.gather_every(width, place)) for place, key in enumerate(first)}
    pairs = pairs.with_columns(pl.Series("row", rows)).drop_nulls("key")
    found: dict[int, _Part] = {}
    for (key,), part in pairs.partition_by("key", as_dict=True, include_key=False).items():
        at = part["row"].to_numpy()
        last = np.append(at[1:] != at[:-1], True)
        found[int(key)] = (at, part["value"]) if last.all() else (at[last], part["value"].filter(pl.Series(last)))
    return found


def _spread(part: _Part | None, place: np.ndarray, length: int, type_: type[pl.DataType]) -> pl.Series:
    """The values of a part at the places of their rows, NULL elsewhere."""
    if part is None:
        return pl.Series([None], dtype=type_).new_from_index(0, length)
    rows, values = part
    if len(values) == length:
        return values  # every listed row has one, in order
    at = np.full(length, -1, dtype=np.int64)
    at[place[rows]] = np.arange(len(values))
    index = pl.Series(at)
    return values.gather(index.set(index < 0, None))


def _bounds(raw: pl.Series, type_: ColumnType) -> pa.Array:
    if isinstance(type_, Decimal):
        return _decimals(raw, type_)
    if type_ is Leaf.STRING:
        return _texts(raw)
    return pl.DataFrame({"raw": raw}).select(_typed(pl.col("raw"), type_).alias("bound"))["bound"].to_arrow()


def _typed(raw: pl.Expr, type_: ColumnType) -> pl.Expr:
    def number(dtype: type[pl.DataType], length: int) -> pl.Expr:
        fitting = pl.when(raw.bin.size() == length).then(raw).otherwise(None)
        return fitting.bin.reinterpret(dtype=dtype, endianness="little")

    match type_:
        case Leaf.BOOLEAN:
            return number(pl.UInt8, 1) != 0
        case Leaf.INT32:
            return number(pl.Int32, 4)
        case Leaf.INT64:
            return pl.coalesce(number(pl.Int64, 8), number(pl.Int32, 4).cast(pl.Int64))
        case Leaf.FLOAT32 | Leaf.FLOAT64:
            # a 32-bit bound is widened before it becomes text: 0.1f is more than 0.1, and the column may be promoted
            return _no_nan(pl.coalesce(number(pl.Float64, 8), number(pl.Float32, 4).cast(pl.Float64)))
        case Leaf.DATE:
            return number(pl.Int32, 4).cast(pl.Date)
        case Time():
            return (number(pl.Int64, 8) * 1000).cast(pl.Time)
        case Timestamp(unit, utc):
            days = number(pl.Int32, 4).cast(pl.Int64) * (_MICROS_A_DAY * (1000 if unit is Unit.NANO else 1))
            zone = "UTC" if utc else None
            return pl.coalesce(number(pl.Int64, 8), days).cast(pl.Datetime("ns" if unit is Unit.NANO else "us", zone))
        case _:
            return pl.when(raw.is_null()).then(pl.lit(None, dtype=pl.String)).otherwise(None)


def _texts(raw: pl.Series) -> pa.Array:
    """UTF-8 text; a bound that a writer cut within a character is no bound."""
    try:
        return raw.cast(pl.String).to_arrow()
    except pl.exceptions.ComputeError:
        return pa.array([_text(value) for value in raw.to_list()], pa.large_string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _no_nan(values: pl.Expr) -> pl.Expr:
    return pl.when(values.is_nan()).then(None).otherwise(values)


def _decimals(raw: pl.Series, type_: Decimal) -> pa.Array:
    """Big-endian two's complement of 1 to 16 bytes, widened to the 128 bits that Arrow holds."""
    stored = pl.col("raw")
    digits = pl.when(stored.bin.size().is_between(1, 16)).then(stored).otherwise(None).bin.encode("hex")
    padded = (
        pl.when(digits.str.slice(0, 1).is_in(list("89abcdef")))
        .then(digits.str.pad_start(32, "f"))
        .otherwise(digits.str.pad_start(32, "0"))
    )
    halves = pl.DataFrame({"raw": raw}).select(
        high=padded.str.slice(0, 16).str.decode("hex").bin.reinterpret(dtype=pl.Int64, endianness="big"),
        low=padded.str.slice(16, 16).str.decode("hex").bin.reinterpret(dtype=pl.Int64, endianness="big"),
    )
    words = np.empty((len(raw), 2), dtype="<i8")
    words[:, 0] = halves["low"].fill_null(0).to_numpy()
    words[:, 1] = halves["high"].fill_null(0).to_numpy()
    valid = pa.array(halves["low"].is_not_null().to_numpy(), pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(
        pa.decimal128(type_.precision, type_.scale), len(raw), [valid, pa.py_buffer(words.tobytes())]
    )
