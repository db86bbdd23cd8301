"""Partition values of files, only where both exact bounds of the column prove them; anything else lies in no partition.

A value is taken where every row of the file has it: the column is NULL throughout, or without NULL and its exact bounds
fall into one partition under a transform that keeps order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.files import StatsBatch
from bridge.model.layout import PartitionField, PartitionSpec, Simple
from bridge.model.types import ColumnType, FieldId, Leaf, Timestamp, Unit
from converters.iceberg.publish.bounds import arrow_type, typed

__all__ = ["Proofs", "summary_bytes"]

_TEMPORAL = {Simple.YEAR, Simple.MONTH, Simple.DAY, Simple.HOUR}
_SAFE = (Leaf.FLOAT32, Leaf.FLOAT64)
_EARLIEST, _LATEST = -719_162, 2_932_896  # days of the years 1 to 9999, which is what calendars of Python hold


class Proofs:
    """Collects proofs while the statistics pass by."""

    def __init__(
        self, specs: Mapping[int, PartitionSpec], spec_of: np.ndarray, types: Mapping[FieldId, ColumnType]
    ) -> None:
        self._specs = {id_: each for id_, each in specs.items() if each.fields}
        self._spec_of = spec_of
        self._types = types
        count = len(spec_of)
        self._fields: dict[FieldId, list[tuple[int, PartitionField]]] = {}
        self._values: dict[tuple[int, int], np.ndarray] = {}
        self._proved: dict[tuple[int, int], np.ndarray] = {}
        for id_, spec in self._specs.items():
            for field in spec.fields:
                self._fields.setdefault(field.source, []).append((id_, field))
                self._values[id_, field.id] = np.full(count, None, dtype=object)
                self._proved[id_, field.id] = np.full(count, field.transform is Simple.VOID, dtype=bool)

    def add(self, batch: StatsBatch) -> None:
        """Look at a column that is the source of a partition value."""
        for spec, field in self._fields.get(batch.field, ()):
            type_ = self._types.get(batch.field)
            if type_ is None or field.transform is Simple.VOID:
                continue
            files = batch.table.column("file").to_numpy()
            mine = np.flatnonzero(self._spec_of[files] == spec)
            if not len(mine):
                continue
            values, proved = _proofs(batch.table.take(pa.array(mine)), field, type_, batch.exact)
            rows = files[mine][proved]
            self._values[spec, field.id][rows] = values[proved]
            self._proved[spec, field.id][rows] = True

    def settled(self, unpartitioned: int) -> np.ndarray:
        """The spec of each file: its own where all values are proved, else the one without fields."""
        made = self._spec_of.copy()
        for id_, spec in self._specs.items():
            proved = np.ones(len(made), dtype=bool)
            for field in spec.fields:
                proved &= self._proved[id_, field.id]
            made[(self._spec_of == id_) & ~proved] = unpartitioned
        return made

    def values(self, spec: int, files: np.ndarray) -> Sequence[tuple[Any, ...]]:
        """The partition of some files of a spec, in the order of its fields."""
        if spec not in self._specs:
            return [()] * len(files)
        columns = [self._values[spec, field.id][files].tolist() for field in self._specs[spec].fields]
        return list(zip(*columns, strict=True))


def _proofs(table: pa.Table, field: PartitionField, type_: ColumnType, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    count = table.num_rows
    values = np.full(count, None, dtype=object)
    nulls, all_ = _numbers(table, "nulls"), _numbers(table, "values")
    proved = (nulls == all_) & (all_ > 0)
    wanted = arrow_type(type_)
    if not exact or wanted is None or type_ in _SAFE:
        return values, proved
    low, high = (typed(table.column(name).combine_chunks(), type_) for name in ("lower", "upper"))
    first, last = _partition_of(low, field, type_), _partition_of(high, field, type_)
    if first is None or last is None:
        return values, proved
    if field.transform in _TEMPORAL and isinstance(type_, Timestamp):
        # DuckDB 1.5.5 rounds a filter's instant towards 1970 when it compares it to a partition
        since_1970 = pc.greater_equal(low.cast(pa.int64()), 0)
        first = pc.if_else(since_1970, first, pa.scalar(None, first.type))
    low, high = first, last
    same = pc.fill_null(pc.equal(low, high), False).to_numpy(zero_copy_only=False) & (nulls == 0)
    values[same] = np.array([*low.filter(pa.array(same)).to_pylist(), None], dtype=object)[:-1]
    return values, proved | same


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table.column(name).cast(pa.int64()).fill_null(-1).to_numpy())


def _partition_of(bounds: pa.Array, field: PartitionField, type_: ColumnType) -> pa.Array | None:
    """The partition that a bound falls into; None for a transform whose order says nothing of it."""
    if field.transform is Simple.IDENTITY:
        if type_ is Leaf.DATE:
            return _held(bounds, bounds.cast(pa.int32()))
        if isinstance(type_, Timestamp):
            if type_.unit is Unit.NANO:
                return None
            ticks = bounds.cast(pa.int64())  # the Avro encoder takes an instant without a zone for a local one
            return _held(ticks.cast(pa.timestamp("us", "UTC")), _floor(ticks, 86_400_000_000))
        return bounds
    if field.transform not in _TEMPORAL:
        return None
    if type_ is Leaf.DATE:
        days, hours = bounds.cast(pa.int32()).cast(pa.int64()), None
    elif isinstance(type_, Timestamp):
        ticks = bounds.cast(pa.int64())
        second = 1_000_000_000 if type_.unit is Unit.NANO else 1_000_000
        days, hours = _floor(ticks, 86_400 * second), _floor(ticks, 3_600 * second)
    else:
        return None
    match field.transform:
        case Simple.HOUR:
            return hours
        case Simple.DAY:
            return _held(days.cast(pa.int32()).cast(pa.date32()), days)
        case _:
            dates = days.to_numpy(zero_copy_only=False)
            missing = days.is_null().to_numpy(zero_copy_only=False)
            calendar = np.where(missing, 0, np.nan_to_num(dates)).astype("int64").astype("datetime64[D]")
            unit = "datetime64[Y]" if field.transform is Simple.YEAR else "datetime64[M]"
            return pa.array(calendar.astype(unit).astype("int64"), pa.int64(), mask=missing)


def _floor(values: pa.Array, unit: int) -> pa.Array:
    whole = pc.divide(values, unit)
    return pc.if_else(pc.less(pc.subtract(values, pc.multiply(whole, unit)), 0), pc.subtract(whole, 1), whole)


def _held(values: pa.Array, days: pa.Array) -> pa.Array:
    """Values whose day a calendar of Python holds, as the Avro encoder wants them."""
    days = days.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(days, _EARLIEST), pc.less_equal(days, _LATEST))
    return pc.if_else(inside, values, pa.scalar(None, values.type))


def summary_bytes(value: Any, type_: ColumnType) -> bytes | None:
    """A partition value as a bound of a manifest's summary."""
    from converters.iceberg.publish.bounds import encoded

    wanted = arrow_type(type_)
    if wanted is None or value is None:
        return None
    array = pa.array([value], wanted)
    return encoded(array, array, type_, pa.array([0]))[0][0]
