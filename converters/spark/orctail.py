"""The end of an ORC file: its postscript, footer and stripes as messages (ORC specification v1, "File Tail")."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from converters.spark.runs import decode_unsigned

__all__ = ["ERRORS", "Tail"]

ERRORS = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, zlib.error)
"""What reading a damaged file may raise."""

_BATCH_ROWS, _BATCH_BYTES, _VALUE_BYTES = 32_768, 16 << 20, 12
_LONG, _INSTANTS = 4, (9, 18)
_FROM, _TO = -9_223_372_036_854, 9_223_372_036_854
"""Milliseconds from 1970 between which nanoseconds fit 64 bits; what is beyond in these very two is refused by pyarrow,
for a column read as nanoseconds keeps them all."""

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
class Tail:
    """Postscript and footer as messages; `compression` is 0 none, 1 zlib, 2 snappy, 4 lz4, 5 zstd; `start` is where
    the footer begins."""

    postscript: _Fields
    footer: _Fields
    compression: int
    start: int

    @staticmethod
    def read(source: Any, size: int) -> Tail:
        source.seek(size - 1)
        length = source.read(1)[0]
        source.seek(size - 1 - length)
        postscript = _parse(bytes(source.read(length)))
        compression, footer = _one(postscript, 2, 0), _one(postscript, 1, 0)
        start = size - 1 - length - footer
        source.seek(start)
        return Tail(postscript, _parse(_unpacked(bytes(source.read(footer)), compression)), compression, start)

    def _types(self) -> list[_Fields]:
        return [_parse(value) for number, _, value in self.footer if number == 4]

    def wide(self) -> frozenset[int]:
        """The columns of instants whose statistics reach beyond nanoseconds."""
        statistics = [_parse(value) for number, _, value in self.footer if number == 7]
        found = set()
        for id_, type_ in enumerate(self._types()):
            if _one(type_, 1, 0) in _INSTANTS and id_ < len(statistics):
                bounds = _parse(_one(statistics[id_], 9, b""))
                if any(not _FROM <= _signed(value) <= _TO for number, _, value in bounds if number <= 4):
                    found.add(id_)
        return frozenset(found)

    def stripes(self) -> list[tuple[int, int]]:
        """Number and rows of each stripe."""
        return [(place, _one(_parse(each), 5, 0)) for place, each in enumerate(self._stripes())]

    def _stripes(self) -> list[bytes]:
        return [value for number, _, value in self.footer if number == 3]

    def batch(self, rows: int) -> int:
        """How many rows a batch may have, by what the statistics say of the values and the length of texts."""
        held = 0
        for stated in (_parse(value) for number, _, value in self.footer if number == 7):
            texts = _signed(_one(_parse(_one(stated, 4, b"")), 3, 0)) + _signed(
                _one(_parse(_one(stated, 8, b"")), 1, 0)
            )
            held += _one(stated, 1, 0) * _VALUE_BYTES + max(0, texts)
        return max(64, min(_BATCH_ROWS, _BATCH_BYTES * max(1, rows) // max(1, held)))

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
        place = _parse(self._stripes()[stripe])
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
