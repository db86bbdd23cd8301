"""Bounds as an entry stores them (specification, "Appendix D: Single-value serialization").

What a reader could be led astray by is left out or widened: a bound of zero stands for both zeros; a column that holds
NaN, or may, gets none, since Spark counts NaN as the greatest value and Iceberg does not.
"""

from __future__ import annotations

from decimal import Decimal as Number

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.types import ColumnType, Decimal, Leaf, Time, Timestamp, Unit
from converters.parquet import quiet

__all__ = ["arrow_type", "encoded", "typed"]

_LONGEST = 64
_CUT_TO = 32

Bytes = list[bytes | None]


def arrow_type(type_: ColumnType) -> pa.DataType | None:
    """The Arrow type that a bound is turned into before it is stored; None for types that get none, since readers order
    uuid and binary in ways of their own."""
    match type_:
        case Leaf.BOOLEAN:
            return pa.bool_()
        case Leaf.INT32:
            return pa.int32()
        case Leaf.INT64:
            return pa.int64()
        case Leaf.FLOAT32:
            return pa.float32()
        case Leaf.FLOAT64:
            return pa.float64()
        case Leaf.DATE:
            return pa.date32()
        case Time():
            return pa.time64("us")
        case Timestamp(unit, utc):
            return pa.timestamp("ns" if unit is Unit.NANO else "us", "UTC" if utc else None)
        case Leaf.STRING:
            return pa.large_string()
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case _:
            return None


def typed(values: pa.Array, type_: ColumnType) -> pa.Array:
    """Bounds in the type in which they are stored; NULL for those that do not fit it."""
    wanted = arrow_type(type_)
    if wanted is None:
        return pa.nulls(len(values), pa.large_string())
    if values.type == wanted:
        return values
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return _parsed(values, wanted)
    try:
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([_one(each, wanted) for each in values], wanted)


def _one(value: pa.Scalar, wanted: pa.DataType) -> object:
    try:
        return value.cast(wanted).as_py() if value.is_valid else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _parsed(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """DuckDB's own text of a value, as a lake and rewritten files state it."""

    from_text = pa.table({"text": values})
    with quiet.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("from_text", from_text)
        found = connection.execute(f"SELECT TRY_CAST(text AS {_word(wanted)}) AS bound FROM from_text").to_arrow_table()
    return found.column("bound").combine_chunks().cast(wanted)


def _word(wanted: pa.DataType) -> str:
    if pa.types.is_decimal(wanted):
        return f"DECIMAL({wanted.precision}, {wanted.scale})"
    if pa.types.is_timestamp(wanted):
        return "TIMESTAMPTZ" if wanted.tz else "TIMESTAMP_NS" if wanted.unit == "ns" else "TIMESTAMP"
    return {
        pa.bool_(): "BOOLEAN",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float32(): "FLOAT",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
        pa.time64("us"): "TIME",
        pa.large_string(): "VARCHAR",
    }[wanted]


def encoded(lower: pa.Array, upper: pa.Array, type_: ColumnType, nans: pa.Array) -> tuple[Bytes, Bytes]:
    """Both bounds as bytes, None where there is none."""
    if arrow_type(type_) is None:
        return [None] * len(lower), [None] * len(upper)
    low, high = typed(lower, type_), typed(upper, type_)
    if type_ in (Leaf.FLOAT32, Leaf.FLOAT64):
        low, high = _zeros(low, -0.0), _zeros(high, 0.0)
        without = pc.fill_null(pc.equal(nans, 0), False)
        low, high = (pc.if_else(without, each, pa.scalar(None, each.type)) for each in (low, high))
        low = pc.if_else(pc.fill_null(pc.is_nan(low), False), pa.scalar(None, low.type), low)
        high = pc.if_else(pc.fill_null(pc.is_nan(high), False), pa.scalar(None, high.type), high)
    if type_ is Leaf.STRING:
        return [_lower_text(each) for each in low.to_pylist()], [_upper_text(each) for each in high.to_pylist()]
    return _bytes(low, type_), _bytes(high, type_)


def _zeros(values: pa.Array, zero: float) -> pa.Array:
    return pc.if_else(pc.equal(values, 0.0), pa.scalar(zero, values.type), values)


def _bytes(values: pa.Array, type_: ColumnType) -> Bytes:
    if isinstance(type_, Decimal):
        return [_unscaled(each, type_.scale) for each in values.to_pylist()]
    match type_:
        case Leaf.BOOLEAN:
            numbers = values.cast(pa.uint8())
        case Leaf.DATE:
            numbers = values.cast(pa.int32())
        case Time() | Timestamp():
            numbers = values.cast(pa.int64())
        case _:
            numbers = values
    missing = numbers.is_null().to_numpy(zero_copy_only=False)
    # a NULL becomes NaN, which is not what is stored: it is taken out below
    raw = np.ascontiguousarray(pc.fill_null(numbers, pa.scalar(0, numbers.type)).to_numpy(zero_copy_only=False))
    width = raw.dtype.itemsize
    content = raw.astype(raw.dtype.newbyteorder("<")).tobytes()
    made: Bytes = [content[place : place + width] for place in range(0, len(content), width)]
    for place in np.flatnonzero(missing):
        made[place] = None
    return made


def _unscaled(value: Number | None, scale: int) -> bytes | None:
    if value is None:
        return None
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    number = -number if sign else number
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _lower_text(value: str | None) -> bytes | None:
    return None if value is None else (value if len(value) <= _LONGEST else value[:_CUT_TO]).encode()


def _upper_text(value: str | None) -> bytes | None:
    """A longer one is cut and its last character that can be raised is raised; there may be none."""
    if value is None or len(value) <= _LONGEST:
        return None if value is None else value.encode()
    cut = value[:_CUT_TO]
    for place in range(len(cut) - 1, -1, -1):
        point = ord(cut[place]) + 1
        if point == 0xD800:
            point = 0xE000
        if point <= 0x10FFFF:
            return (cut[:place] + chr(point)).encode()
    return None
