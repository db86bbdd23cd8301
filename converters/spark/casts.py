"""A leaf column of a file as the table's type, value by value what the source's own engine reads.

Only what loses nothing is done: widening, other units, other encodings of the same value. Anything else is refused
by name. Where a unit gets coarser (Iceberg reads INT96 and nanoseconds as microseconds) instants round down, as in
Java, also before 1970.
"""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.types import ColumnType, Decimal, Fixed, Leaf, Time, Timestamp
from converters.parquet.sql import arrow_type

__all__ = ["Mismatch", "cast", "check"]

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MICRO = _UNITS["us"]


class Mismatch(ValueError):
    """A file's column does not hold values of the table's type."""


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return _plain(type_.value_type)
    return _plain(type_.storage_type) if isinstance(type_, pa.BaseExtensionType) else type_


def check(stored: pa.DataType, type_: ColumnType) -> None:
    """Mismatch unless values of a stored type can be taken as the table's type."""
    plain = _plain(stored)
    if not bool(_fits(plain, type_)):
        raise Mismatch(f"the file holds {stored}, the table has {type_.value if isinstance(type_, Leaf) else type_}")


def _fits(stored: pa.DataType, type_: ColumnType) -> object:
    """True-ish when it fits; pyarrow's predicates carry no types."""
    t = pa.types
    if t.is_null(stored):
        return True
    text = t.is_string(stored) or t.is_large_string(stored) or t.is_string_view(stored)
    raw = t.is_binary(stored) or t.is_large_binary(stored) or t.is_binary_view(stored)
    fixed = t.is_fixed_size_binary(stored)
    match type_:
        case Leaf.BOOLEAN:
            return t.is_boolean(stored)
        case Leaf.INT8 | Leaf.INT16 | Leaf.INT32 | Leaf.INT64 | Leaf.UINT8 | Leaf.UINT16 | Leaf.UINT32 | Leaf.UINT64:
            return t.is_integer(stored)
        case Leaf.FLOAT32:
            return t.is_float16(stored) or t.is_float32(stored)
        case Leaf.FLOAT64:
            return t.is_floating(stored) or (t.is_integer(stored) and stored.bit_width <= 32)
        case Decimal(_, scale):
            return (t.is_decimal(stored) and stored.scale <= scale) or t.is_integer(stored)
        case Leaf.DATE:
            return t.is_date(stored)
        case Leaf.STRING | Leaf.JSON:
            return text or raw
        case Leaf.BINARY:
            return raw or fixed
        case Fixed(length):
            return raw or (fixed and stored.byte_width == length)
        case Leaf.UUID:
            return (fixed and stored.byte_width == 16) or raw or text
        case Time():
            return t.is_time(stored) or t.is_int64(stored)
        case Timestamp():
            return t.is_timestamp(stored) or t.is_date(stored)
        case Leaf.NOTHING:
            return True
        case Leaf.VARIANT:
            return t.is_struct(stored) and {each.name for each in stored} == {"metadata", "value"}
        case _:
            return False


def cast(values: pa.Array, type_: ColumnType) -> pa.Array:
    """Values, already checked, in the Arrow type of the table's column; Mismatch when one does not fit."""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    wanted = arrow_type(type_)
    if type_ is Leaf.NOTHING:
        return pa.nulls(len(values), wanted)
    if values.type == wanted:
        return values
    try:
        match type_:
            case Leaf.VARIANT:
                return _variants(values)
            case Leaf.UUID:
                return pa.ExtensionArray.from_storage(wanted, _uuids(values))
            case Timestamp(unit):
                return _instants(values, wanted, _UNITS[unit.value])
            case Time():
                return _times(values)
            case Fixed(length):
                return _fixed(values, length)
            case Leaf.STRING | Leaf.JSON if pa.types.is_fixed_size_binary(values.type):
                return values.cast(pa.binary()).cast(wanted)
            case _:
                return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise Mismatch((str(error).splitlines() or ["a value does not fit"])[0]) from error


def _uuids(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        texts = values.to_pylist()
        return pa.array([None if each is None else uuid.UUID(each).bytes for each in texts], pa.binary(16))
    return values.cast(pa.binary()).cast(pa.binary(16)) if values.type != pa.binary(16) else values


def _variants(values: pa.StructArray) -> pa.Array:
    metadata, value = (values.field(name).cast(pa.binary()) for name in ("metadata", "value"))
    joined = pc.binary_join_element_wise(metadata, value, pa.scalar(b"", pa.binary()))
    return pc.if_else(values.is_valid(), joined, pa.scalar(None, pa.binary()))


def _fixed(values: pa.Array, length: int) -> pa.Array:
    found = values.cast(pa.binary())
    if pc.any(pc.not_equal(pc.binary_length(found), length)).as_py():
        raise Mismatch(f"a value does not have {length} bytes")
    return found


def _numbers(values: pa.Array) -> pa.Array:
    return values.view(pa.int64()) if values.type.bit_width == 64 else values.view(pa.int32()).cast(pa.int64())


def _instants(values: pa.Array, wanted: pa.DataType, per_second: int) -> pa.Array:
    """Instants in another unit. The zone is a label: engines read the number by the table's type."""
    if pa.types.is_date(values.type):
        return values.cast(pa.date32()).cast(pa.timestamp(wanted.unit)).view(pa.int64()).view(wanted)
    stored = _UNITS[values.type.unit]
    return _scaled(_numbers(values), stored, per_second).view(wanted)


def _times(values: pa.Array) -> pa.Array:
    stored = _MICRO if pa.types.is_int64(values.type) else _UNITS[values.type.unit]
    return _scaled(_numbers(values), stored, _MICRO).view(pa.time64("us"))


def _scaled(numbers: pa.Array, stored: int, wanted: int) -> pa.Array:
    if wanted >= stored:
        return pc.multiply_checked(numbers, wanted // stored)
    whole = np.floor_divide(numbers.fill_null(0).to_numpy(), stored // wanted)
    return pa.array(whole, pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
