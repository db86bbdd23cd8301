"""ORC data files by pyarrow; instants that it cannot hold (it counts nanoseconds: 1677 to 2262) are decoded here.

For such a file pyarrow is shown a footer in which those columns are plain 64-bit numbers: it then reads their stream of
seconds, and all nesting and NULLs, as ever. The stream of nanoseconds is decoded from the stripe by its own bytes (ORC
specification v1, "Timestamp Columns" and "Integer Run Length Encoding, version 2").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.orc as orc

from bridge.errors import BridgeError, Unreachable
from converters import storage
from converters.spark.counted import counted
from converters.spark.orctail import ERRORS, Tail

__all__ = ["OrcFile"]

_EPOCH = 1_420_070_400
"""2015-01-01 in seconds: where ORC counts from."""


@dataclass(frozen=True, slots=True)
class OrcFile:
    """An ORC file; Source. `wide` are the ORC column ids of instants to decode here, `batch` the rows of a batch."""

    path: str
    schema: pa.Schema
    rows: int
    size: int
    wide: frozenset[int]
    batch: int

    @staticmethod
    def open(path: str) -> OrcFile:
        with storage.open_input(path, "data file") as source:
            size = source.size()
            try:
                file = orc.ORCFile(source)
                schema, tail = file.schema, Tail.read(source, size)
                wide = tail.wide() if any(_has_instants(field.type) for field in schema) else frozenset[int]()
                if wide:
                    schema = pa.schema(_widened(schema, wide))
                return OrcFile(path, schema, file.nrows, size, wide, tail.batch(file.nrows))
            except ERRORS as error:
                raise _wrong(path, error) from error

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            if not columns:
                yield from counted(self.rows)
                return
            if self.wide:
                yield from self._decoded(columns)
                return
            filesystem, path = storage.filesystem(self.path)
            yield from self._read(ds.OrcFileFormat().make_fragment(path, filesystem), columns)
        except BridgeError:
            raise
        except ERRORS as error:
            raise _wrong(self.path, error) from error

    def _read(self, fragment: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read: Iterator[pa.RecordBatch] = fragment.to_batches(
            columns=list(columns),
            batch_size=self.batch,
            batch_readahead=0,
            fragment_readahead=0,
            use_threads=False,
        )
        return read

    def _decoded(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with storage.open_input(self.path, "data file") as source:
            tail = Tail.read(source, self.size)
            shown = pa.PythonFile(_Shown(source, *tail.shown(self.wide)), mode="r")
            nanos = _Nanos({})
            stripes, left = iter(tail.stripes()), 0
            numbers = {f.name: own for f, (own, _) in zip(self.schema, _numbered(self.schema, 0), strict=True)}
            for batch in self._read(ds.OrcFileFormat().make_fragment(shown), columns):
                if not left:
                    number, left = next(each for each in stripes if each[1])
                    nanos = _Nanos(tail.nanos(source, number, self.wide))
                left -= batch.num_rows
                if left < 0:
                    raise ValueError("a stripe has more rows than its footer says")
                fields = [self.schema.field(name) for name in batch.schema.names]
                made = [
                    _instants(column, field.type, numbers[field.name], nanos)
                    for column, field in zip(batch.columns, fields, strict=True)
                ]
                nanos.done(last=not left)
                yield pa.RecordBatch.from_arrays(made, schema=pa.schema(fields))


class _Nanos:
    """Nanoseconds of a stripe's columns, taken as their batches come."""

    def __init__(self, found: Mapping[int, np.ndarray]) -> None:
        self._found, self._taken = found, dict.fromkeys(found, 0)
        self._read: set[int] = set()

    def __contains__(self, own: int) -> bool:
        return own in self._found

    def take(self, own: int, count: int) -> np.ndarray:
        first = self._taken[own]
        self._taken[own] += count
        self._read.add(own)
        if self._taken[own] > len(self._found[own]):
            raise ValueError(_UNEQUAL)
        return self._found[own][first : first + count]

    def done(self, last: bool) -> None:
        """After a batch; at the last one of a stripe every nanosecond of what was read is used."""
        if last and any(self._taken[own] != len(self._found[own]) for own in self._read):
            raise ValueError(_UNEQUAL)


_UNEQUAL = "a column of instants has more or fewer nanoseconds than seconds"


def _wrong(path: str, error: BaseException) -> Unreachable:
    return Unreachable(f"data file {path} cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}")


def _has_instants(type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_):
        return any(_has_instants(type_.field(place).type) for place in range(type_.num_fields))
    return bool(pa.types.is_timestamp(type_))


def _below(type_: pa.DataType) -> list[pa.Field]:
    """The fields that have ORC columns of their own: a map's entries have none."""
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    return [type_.field(place) for place in range(type_.num_fields)] if pa.types.is_nested(type_) else []


def _numbered(fields: Any, parent: int) -> list[tuple[int, int]]:
    """ORC numbers columns parents first: the number of each field, and the one after all below it."""
    found, next_ = [], parent + 1
    for field in fields:
        own = next_
        inner = _numbered(_below(field.type), own)
        next_ = inner[-1][1] if inner else own + 1
        found.append((own, next_))
    return found


def _widened(fields: Any, wide: frozenset[int], parent: int = 0) -> list[pa.Field]:
    """The fields with instants of `wide` in microseconds."""
    return [
        field.with_type(_wide_type(field.type, wide, own))
        for field, (own, _) in zip(fields, _numbered(fields, parent), strict=True)
    ]


def _wide_type(type_: pa.DataType, wide: frozenset[int], own: int) -> pa.DataType:
    inner = _widened(_below(type_), wide, own)
    if pa.types.is_map(type_):
        return pa.map_(inner[0].with_nullable(False), inner[1])
    if pa.types.is_struct(type_):
        return pa.struct(inner)
    if pa.types.is_list(type_):
        return pa.list_(inner[0])
    return pa.timestamp("us", type_.tz) if own in wide else type_


def _instants(values: pa.Array, type_: pa.DataType, own: int, nanos: _Nanos) -> pa.Array:
    """An array as read under the shown footer, with seconds and nanoseconds put together."""
    below = _below(type_)
    if not below:
        return _joined(values, type_, own, nanos) if own in nanos else values
    ids = [id_ for id_, _ in _numbered(below, own)]
    if pa.types.is_struct(type_):
        parts = [_instants(values.field(n), f.type, i, nanos) for n, (f, i) in enumerate(zip(below, ids, strict=True))]
        return pa.StructArray.from_arrays(parts, fields=below, mask=values.is_null())
    if pa.types.is_map(type_):
        keys = _instants(values.keys, below[0].type, ids[0], nanos)
        items = _instants(values.items, below[1].type, ids[1], nanos)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=type_, mask=values.is_null())
    inner = _instants(values.values, below[0].type, ids[0], nanos)
    return pa.ListArray.from_arrays(values.offsets, inner, type=type_, mask=values.is_null())


def _joined(values: pa.Array, type_: pa.DataType, own: int, nanos: _Nanos) -> pa.Array:
    absent = values.is_null().to_numpy(zero_copy_only=False)
    seconds = pc.fill_null(values, 0).to_numpy() + _EPOCH
    parts = np.zeros(len(values), dtype=np.int64)
    parts[~absent] = nanos.take(own, int((~absent).sum()))
    seconds = np.where((seconds < 0) & (parts > 999_999), seconds - 1, seconds)  # as every ORC reader does
    return pa.array(seconds * 1_000_000 + parts // 1000, pa.int64(), mask=absent).view(type_)


class _Shown:
    """A file whose end is replaced."""

    def __init__(self, source: Any, keep: int, end: bytes) -> None:
        self._source, self._keep, self._end = source, keep, end
        self._place = 0
        self.closed = False

    def size(self) -> int:
        return self._keep + len(self._end)

    def tell(self) -> int:
        return self._place

    def seek(self, place: int, whence: int = 0) -> int:
        self._place = place + (0, self._place, self.size())[whence]
        return self._place

    def read(self, count: int = -1) -> bytes:
        stop = self.size() if count < 0 else min(self.size(), self._place + count)
        found = b""
        if self._place < self._keep:
            self._source.seek(self._place)
            found = bytes(self._source.read(min(stop, self._keep) - self._place))
        if stop > self._keep:
            found += self._end[max(0, self._place - self._keep) : stop - self._keep]
        self._place = max(self._place, stop)
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
