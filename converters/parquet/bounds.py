"""Bounds and contents of a column as its file states them, in the table's type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.errors import Unreachable
from bridge.model.types import ColumnType, Decimal, Leaf, Time, Timestamp, Unit
from converters import storage
from converters.parquet.footer import Column

__all__ = ["arrow_bounds", "distinct_values", "exact_bounds"]

_UNIT = re.compile(r"timeUnit=(\w+)")
_NANOS = {"milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}
_MANY = 2
_NANOS_IN = {Unit.MICRO: 1_000, Unit.NANO: 1}


def exact_bounds(column: Column, type_: ColumnType) -> tuple[int, int] | None:
    """Bounds that rows attain, as whole numbers of the type's unit (a decimal's digits, days or micros from 1970); None
    where the file states none or the type has none that are exact."""
    if column.bounds is None:
        return None
    low, high = column.bounds
    match type_:
        case Leaf.BOOLEAN | Leaf.INT32 | Leaf.INT64 | Leaf.DATE | Decimal():
            return None if "isSigned=false" in column.logical else (low, high)
        case Time(unit) | Timestamp(unit, _):
            found = _UNIT.search(column.logical)
            factor = _NANOS.get(found.group(1), 0) if found else 0
            if unit not in _NANOS_IN or factor < _NANOS_IN[unit]:
                return None
            return low * factor // _NANOS_IN[unit], high * factor // _NANOS_IN[unit]
        case _:
            return None


def arrow_bounds(values: Sequence[int | None], type_: ColumnType) -> pa.Array:
    """Bounds of `exact_bounds` as Arrow, in the types that manifest bounds have too."""
    match type_:
        case Leaf.BOOLEAN:
            return pa.array([None if each is None else bool(each) for each in values], pa.bool_())
        case Leaf.INT32:
            return pa.array(values, pa.int32())
        case Leaf.INT64:
            return pa.array(values, pa.int64())
        case Leaf.DATE:
            return pa.array(values, pa.int32()).view(pa.date32())
        case Time():
            return pa.array([None if each is None else each * 1000 for each in values], pa.int64()).view(
                pa.time64("ns")
            )
        case Timestamp(unit, utc):
            return pa.array(values, pa.int64()).view(pa.timestamp(unit.value, "UTC" if utc else None))
        case Decimal(precision, scale):
            numbers = [None if each is None else Number(each).scaleb(-scale) for each in values]
            return pa.array(numbers, pa.decimal128(precision, scale))
        case _:
            return pa.nulls(len(values), pa.string())


def distinct_values(path: str, column: Column) -> list[Any]:
    """The distinct values (NULL among them) of a column that lies in no list or map, or enough of them to see that it
    is not a single one; reads that column only."""
    found: list[pa.Array] = []
    with storage.open_input(path, "data file") as source:
        try:
            for batch in pq.ParquetFile(source).iter_batches(columns=[column.stored]):
                values = batch.column(0)
                for name in column.path[1:]:
                    values = pc.struct_field(values, name)
                if pa.types.is_dictionary(values.type):
                    values = values.dictionary_decode()
                found = [pc.unique(pa.concat_arrays([*found, values]))]
                if len(found[0]) > _MANY:
                    break
        except (pa.ArrowException, OSError) as error:
            raise Unreachable(f"data file {path} cannot be read: {str(error).splitlines()[0]}") from error
    values = found[0] if found else pa.nulls(0)
    # as numbers, since Python's calendar does not hold every date
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("ns" if values.type.unit == "ns" else "us")).cast(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return list(values.to_pylist())
