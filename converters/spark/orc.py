"""ORC data files by pyarrow; instants that it cannot hold (it counts nanoseconds: 1677 to 2262) are decoded here.

For such a file pyarrow is shown a footer in which those columns are plain 64-bit numbers: it then reads their stream of
seconds, and all nesting and NULLs, as ever. The stream of nanoseconds is decoded from the stripe by its own bytes (ORC
specification v1, "Timestamp Columns" and "Integer Run Length Encoding, version 2").
"""

from __future__ import annotations

import zlib
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
from converters.spark.runs import decode_unsigned

__all__ = ["OrcFile"]

_BATCH_ROWS = 65_536
_LONG, _INSTANTS = 4, (9, 18)
_FROM, _TO = -9_223_372_036_854, 9_223_372_036_854
"""Milliseconds from 1970 between which nanoseconds fit 64 bits."""
_EPOCH = 1_420_070_400
"""2015-01-01 in seconds: where ORC counts from."""
_ERRORS = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, zlib.error)


@dataclass(frozen=True, slots=True)
class OrcFile:
    """An ORC file; Source. `wide` are the ORC column ids of instants to decode here."""

    path: str
    schema: pa.Schema
    rows: int
    size: int
    wide: frozenset[int]

    @staticmethod
    def open(path: str) -> OrcFile:
        with storage.open_input(path, "data file") as source:
            size = source.size()
            try:
                file = orc.ORCFile(source)
                schema, wide = file.schema, frozenset[int]()
                if any(_has_instants(field.type) for field in schema):
                    tail = _Tail.read(source, size)
                    wide = tail.wide()
                    if wide:
                        schema = pa.schema(_widened(schema, wide))
                return OrcFile(path, schema, file.nrows, size, wide)
            except _ERRORS as error:
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
            fragment = ds.OrcFileFormat().make_fragment(path, filesystem)
            yield from fragment.to_batches(
                columns=list(columns),
                batch_size=_BATCH_ROWS,
                batch_readahead=0,
                fragment_readahead=0,
                use_threads=False,
            )
        except BridgeError:
            raise
        except _ERRORS as error:
            raise _wrong(self.path, error) from error

    def _decoded(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with storage.open_input(self.path, "data file") as source:
            tail = _Tail.read(source, self.size)
            shown = orc.ORCFile(pa.PythonFile(_Shown(source, *tail.shown(self.wide)), mode="r"))
            for number in range(shown.nstripes):
                whole = shown.read_stripe(number, columns=list(columns))
                nanos = tail.nanos(source, number, self.wide)
                made, names = [], []
                for field, (id_, _) in zip(self.schema, _numbered(self.schema, 0), strict=True):
                    if field.name in columns:
                        made.append(_instants(whole.column(field.name), field.type, id_, nanos))
                        names.append(field)
                yield from pa.Table.from_arrays(made, schema=pa.schema(names)).to_batches(_BATCH_ROWS)


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


def _instants(values: pa.Array, type_: pa.DataType, own: int, nanos: Mapping[int, np.ndarray]) -> pa.Array:
    """An array as read under the shown footer, with seconds and nanoseconds put together."""
    below = _below(type_)
    if not below:
        return _joined(values, type_, nanos[own]) if own in nanos else values
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


def _joined(values: pa.Array, type_: pa.DataType, nanos: np.ndarray) -> pa.Array:
    absent = values.is_null().to_numpy(zero_copy_only=False)
    seconds = pc.fill_null(values, 0).to_numpy() + _EPOCH
    if len(nanos) != int((~absent).sum()):
        raise ValueError("a column of instants has more or fewer nanoseconds than seconds")
    parts = np.zeros(len(values), dtype=np.int64)
    parts[~absent] = nanos
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


_Fields = list[tuple[int, int, Any]]
"""A protobuf message: (number, wire type, integer or bytes) of each field in order."""


def _parse(message: bytes) -> _Fields:
    found: _Fields = []
    place = 0

    def varint() -> int:
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    while place < len(message):
        key = varint()
        wire = key & 7
        if wire == 0:
            found.append((key >> 3, 0, varint()))
            continue
        length = {1: 8, 5: 4}.get(wire)
        if length is None:
            length = varint()
        found.append((key >> 3, wire, message[place : place + length]))
        place += length
    return found


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _build(fields: _Fields) -> bytes:
    out = bytearray()
    for number, wire, value in fields:
        out += _varint(number << 3 | wire)
        out += _varint(value) if wire == 0 else (_varint(len(value)) if wire == 2 else b"") + value
    return bytes(out)


def _one(fields: _Fields, number: int, default: Any) -> Any:
    return next((value for each, _, value in fields if each == number), default)


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


@dataclass(frozen=True, slots=True)
class _Tail:
    """Postscript and footer as messages; `compression` is 0 none, 1 zlib, 2 snappy, 4 lz4, 5 zstd; `start` is where
    the footer begins."""

    postscript: _Fields
    footer: _Fields
    compression: int
    start: int

    @staticmethod
    def read(source: Any, size: int) -> _Tail:
        source.seek(size - 1)
        length = source.read(1)[0]
        source.seek(size - 1 - length)
        postscript = _parse(bytes(source.read(length)))
        compression, footer = _one(postscript, 2, 0), _one(postscript, 1, 0)
        start = size - 1 - length - footer
        source.seek(start)
        return _Tail(postscript, _parse(_unpacked(bytes(source.read(footer)), compression)), compression, start)

    def _types(self) -> list[_Fields]:
        return [_parse(value) for number, _, value in self.footer if number == 4]

    def wide(self) -> frozenset[int]:
        """The columns of instants whose statistics reach beyond nanoseconds."""
        statistics = [_parse(value) for number, _, value in self.footer if number == 7]
        found = set()
        for id_, type_ in enumerate(self._types()):
            if _one(type_, 1, 0) in _INSTANTS and id_ < len(statistics):
                bounds = _parse(_one(statistics[id_], 9, b""))
                if any(not _FROM < _signed(value) < _TO for number, _, value in bounds if number <= 4):
                    found.add(id_)
        return frozenset(found)

    def shown(self, wide: frozenset[int]) -> tuple[int, bytes]:
        """Where the file is to be cut, and the end that it gets: the columns are numbers there."""
        footer: _Fields = []
        id_ = 0
        for number, wire, value in self.footer:
            if number == 4:
                if id_ in wide:
                    value = _build([(n, w, _LONG if n == 1 else v) for n, w, v in _parse(value)])
                id_ += 1
            if number != 7:  # statistics of other types than the columns now have
                footer.append((number, wire, value))
        content = _build(footer)
        if self.compression:
            content = (len(content) << 1 | 1).to_bytes(3, "little") + content
        postscript = _build([(n, w, len(content) if n == 1 else v) for n, w, v in self.postscript])
        return self.start, content + postscript + bytes([len(postscript)])

    def nanos(self, source: Any, stripe: int, wide: frozenset[int]) -> dict[int, np.ndarray]:
        """Nanoseconds of the values, NULLs left out, of each column in a stripe."""
        place = _parse([value for number, _, value in self.footer if number == 3][stripe])
        begin, index, data, length = (_one(place, number, 0) for number in (1, 2, 3, 4))
        source.seek(begin + index + data)
        footer = _parse(_unpacked(bytes(source.read(length)), self.compression))
        zone = _one(footer, 3, b"UTC").decode()
        if zone not in ("UTC", "GMT", "Etc/UTC"):
            raise ValueError(f"it holds instants beyond the years 1677 to 2262 written in the time zone {zone}")
        encodings = [_one(_parse(value), 1, 0) for number, _, value in footer if number == 2]
        found = {}
        offset = begin
        for stream in (_parse(value) for number, _, value in footer if number == 1):
            kind, column, size = (_one(stream, number, 0) for number in (1, 2, 3))
            if kind == 5 and column in wide:
                if encodings[column] != 2:
                    raise ValueError("it holds instants beyond the years 1677 to 2262 in the encoding of Hive 0.11")
                source.seek(offset)
                found[column] = _nanoseconds(decode_unsigned(_unpacked(bytes(source.read(size)), self.compression)))
            offset += size
        return {id_: found.get(id_, np.zeros(0, dtype=np.int64)) for id_ in wide}


def _nanoseconds(stored: np.ndarray) -> np.ndarray:
    """The last three bits say how many zeros were cut off, less one."""
    zeros = stored & 7
    return (stored >> 3) * np.where(zeros > 0, 10 ** (zeros + 1), 1)


def _unpacked(content: bytes, compression: int) -> bytes:
    """Content of compressed chunks, each with its length and whether it is kept as it was."""
    if not compression:
        return content
    out, place = [], 0
    while place < len(content):
        header = int.from_bytes(content[place : place + 3], "little")
        chunk = content[place + 3 : place + 3 + (header >> 1)]
        place += 3 + (header >> 1)
        if header & 1:
            out.append(chunk)
        elif compression == 1:
            out.append(zlib.decompress(chunk, -15))
        elif compression == 5:
            out.append(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read())
        elif compression == 2:
            out.append(bytes(pa.Codec("snappy").decompress(chunk, _snappy_length(chunk), asbytes=True)))
        else:
            raise ValueError(f"it holds instants beyond the years 1677 to 2262 under compression {compression}")
    return b"".join(out)


def _snappy_length(packed: bytes) -> int:
    value, shift = 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
    return value
