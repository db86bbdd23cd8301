"""Avro data files: fastavro decodes them without logical types, whose values then become Arrow's by the number.

Python's datetime has neither nanoseconds nor the years before 1 and after 9999, so fastavro is shown the file with its
logical types taken out of the schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa

from bridge.errors import Unreachable
from converters import storage
from converters.storage.avro import DAMAGED

__all__ = ["AvroFile"]

_ROWS = 8_192
_MAGIC = b"Obj\x01"

Json: TypeAlias = "str | list[Json] | dict[str, Json]"
_Build = Callable[[list[Any]], pa.Array]

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms"),
    "timestamp-micros": pa.timestamp("us"),
    "timestamp-nanos": pa.timestamp("ns"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}


@dataclass(frozen=True, slots=True)
class AvroFile:
    """An Avro file with a record at its top; Source."""

    path: str
    schema: pa.Schema
    size: int
    _columns: tuple[tuple[str, _Build], ...]

    rows = None

    @staticmethod
    def open(path: str) -> AvroFile:
        with storage.open_input(path, "data file") as source:
            size = source.size()
            try:
                stored, _, _ = _header(source)
                if not isinstance(stored, dict) or stored.get("type") != "record":
                    raise ValueError("its rows are not records")
                names = _Names()
                columns = [_record_field(each, names) for each in stored["fields"]]
            except DAMAGED as error:
                raise _wrong(path, error) from error
        return AvroFile(
            path,
            pa.schema([field for field, _ in columns]),
            size,
            tuple((field.name, build) for field, build in columns),
        )

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = [(place, name, build) for place, (name, build) in enumerate(self._columns) if name in columns]
        schema = pa.schema([self.schema.field(place) for place, _, _ in wanted])
        with storage.open_input(self.path, "data file") as source:
            try:
                reader = fastavro.reader(_plain(source))
                while rows := _some(reader):
                    if not wanted:
                        yield pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
                        continue
                    made = [build([row[name] for row in rows]) for _, name, build in wanted]
                    yield pa.RecordBatch.from_arrays(made, schema=schema)
            except DAMAGED as error:
                raise _wrong(self.path, error) from error


def _wrong(path: str, error: BaseException) -> Unreachable:
    return Unreachable(f"data file {path} cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}")


def _some(reader: Iterator[Any]) -> list[Any]:
    rows = []
    for row in reader:
        rows.append(row)
        if len(rows) == _ROWS:
            break
    return rows


class _Names:
    """Named types met so far."""

    def __init__(self) -> None:
        self.known: dict[str, Json] = {}


def _long(stream: Any) -> int:
    value, shift = 0, 0
    while True:
        [byte] = stream.read(1)
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return int((value >> 1) ^ -(value & 1))
        shift += 7


def _header(stream: Any) -> tuple[Json, bytes, bool]:
    """The schema, the header again with the logical types taken out of it, and whether the blocks are compressed with
    snappy, which they are then to lose (Avro, "Object Container Files")."""
    if stream.read(4) != _MAGIC:
        raise ValueError("it is not an Avro container file")
    meta: dict[bytes, bytes] = {}
    while count := _long(stream):
        if count < 0:
            count, _ = -count, _long(stream)
        for _ in range(count):
            key = stream.read(_long(stream))
            meta[key] = stream.read(_long(stream))
    sync = stream.read(16)
    schema: Json = json.loads(meta[b"avro.schema"])
    meta[b"avro.schema"] = json.dumps(_stripped(schema)).encode()
    snappy = meta.get(b"avro.codec") == b"snappy"
    if snappy:
        meta[b"avro.codec"] = b"null"
    out = io.BytesIO()
    out.write(_MAGIC + _zigzag(len(meta)))
    for key, value in meta.items():
        out.write(_zigzag(len(key)) + key + _zigzag(len(value)) + value)
    out.write(_zigzag(0) + sync)
    return schema, out.getvalue(), snappy


def _zigzag(value: int) -> bytes:
    value, out = value << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _stripped(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_stripped(each) for each in schema]
    if isinstance(schema, dict):
        # a `default` is a value, not a type: it is not needed to read what was written
        kept = {key: value for key, value in schema.items() if key not in ("logicalType", "default")}
        return {
            key: _stripped(value) if key in ("type", "items", "values", "fields") else value
            for key, value in kept.items()
        }
    return schema


class _Joined(io.RawIOBase):
    """A file made of pieces that are read as they are wanted."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces, self._held = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
        found = self._held[: len(buffer)]
        self._held = self._held[len(found) :]
        buffer[: len(found)] = found
        return len(found)


def _plain(source: Any) -> Any:
    """The file as fastavro can read it, without logical types; it has no snappy of its own, but pyarrow has."""
    _, header, snappy = _header(source)

    def pieces() -> Iterator[bytes]:
        yield header
        if snappy:
            yield from _unpacked(source)
            return
        while found := source.read(1 << 20):
            yield bytes(found)

    return io.BufferedReader(_Joined(pieces()), 1 << 20)


def _unpacked(source: Any) -> Iterator[bytes]:
    """Blocks without their compression; each ends with four bytes of checksum."""
    size = source.size()
    while source.tell() < size:
        rows, length = _long(source), _long(source)
        packed = bytes(source.read(length)[:-4])
        block = pa.Codec("snappy").decompress(packed, _snappy_length(packed), asbytes=True)
        yield _zigzag(rows) + _zigzag(len(block)) + block + bytes(source.read(16))


def _snappy_length(packed: bytes) -> int:
    value, shift = 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value
        shift += 7
    raise ValueError("a block is cut off")


def _id(stored: Any) -> dict[bytes, bytes] | None:
    return None if stored is None else {b"PARQUET:field_id": str(stored).encode()}


def _record_field(stored: Any, names: _Names) -> tuple[pa.Field, _Build]:
    type_, build = _type(stored["type"], names)
    return pa.field(str(stored["name"]), type_, metadata=_id(stored.get("field-id"))), build


def _type(schema: Any, names: _Names) -> tuple[pa.DataType, _Build]:
    """The Arrow type of a schema, and how to build an array of it from decoded values."""
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        if len(branches) > 1:
            raise ValueError("unions of several types are not read")
        return _type(branches[0] if branches else "null", names)
    if isinstance(schema, str):
        if schema in names.known:
            return _type(names.known[schema], names)
        schema = {"type": schema}
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, (dict, list)):
        return _type(kind, names)
    if kind in ("record", "fixed", "enum") and "name" in schema:
        names.known[str(schema["name"])] = schema
    match kind:
        case "record":
            return _struct([_record_field(each, names) for each in schema["fields"]])
        case "array" if logical == "map":
            entry = schema["items"]
            key, value = (_record_field(each, names) for each in entry["fields"])
            first, second = key[0].name, value[0].name
            return _map(key, value, lambda row: [(each[first], each[second]) for each in row])
        case "array":
            type_, build = _type(schema["items"], names)
            return _list(pa.field("element", type_, metadata=_id(schema.get("element-id"))), build)
        case "map":
            type_, build = _type(schema["values"], names)
            text = pa.field("key", pa.string(), metadata=_id(schema.get("key-id")))
            value = (pa.field("value", type_, metadata=_id(schema.get("value-id"))), build)
            return _map((text, _leaf(pa.string())), value, lambda row: list(row.items()))
        case "enum":
            return pa.string(), _leaf(pa.string())
        case "fixed" if logical != "decimal":
            size = pa.binary(int(schema["size"]))
            return size, _leaf(size)
        case "fixed" | "bytes" if logical == "decimal":
            return _decimal(int(schema["precision"]), int(schema.get("scale", 0)))
        case "int" | "long" if logical in _LOGICAL:
            return _number(_PRIMITIVES[kind], _LOGICAL[logical])
        case _ if kind in _PRIMITIVES:
            return _PRIMITIVES[kind], _leaf(_PRIMITIVES[kind])
        case _:
            raise ValueError(f"type {kind} is not read")


def _leaf(type_: pa.DataType) -> _Build:
    return lambda values: pa.array(values, type_)


def _number(stored: pa.DataType, type_: pa.DataType) -> tuple[pa.DataType, _Build]:
    wide = pa.int64() if type_.bit_width == 64 else pa.int32()
    return type_, lambda values: pa.array(values, stored).cast(wide).view(type_)


def _decimal(precision: int, scale: int) -> tuple[pa.DataType, _Build]:
    type_ = pa.decimal128(precision, scale)

    def build(values: list[Any]) -> pa.Array:
        words = b"".join(
            int.from_bytes(each or b"", "big", signed=True).to_bytes(16, "little", signed=True) for each in values
        )
        valid = pa.array([each is not None for each in values], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(words)])

    return type_, build


def _struct(parts: list[tuple[pa.Field, _Build]]) -> tuple[pa.DataType, _Build]:
    fields = [field for field, _ in parts]

    def build(values: list[Any]) -> pa.Array:
        made = [make([None if row is None else row[field.name] for row in values]) for field, make in parts]
        absent = pa.array([row is None for row in values], pa.bool_())
        return pa.StructArray.from_arrays(made, fields=fields, mask=absent)

    return pa.struct(fields), build


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array]:
    ends = [0]
    for row in values:
        ends.append(ends[-1] + len(row or ()))
    return pa.array(ends, pa.int32()), pa.array([row is None for row in values], pa.bool_())


def _list(field: pa.Field, element: _Build) -> tuple[pa.DataType, _Build]:
    type_ = pa.list_(field)

    def build(values: list[Any]) -> pa.Array:
        offsets, absent = _offsets(values)
        inner = element([each for row in values for each in row or ()])
        return pa.ListArray.from_arrays(offsets, inner, type=type_, mask=absent)

    return type_, build


def _map(
    key: tuple[pa.Field, _Build],
    value: tuple[pa.Field, _Build],
    pairs: Callable[[Any], list[tuple[Any, Any]]],
) -> tuple[pa.DataType, _Build]:
    type_ = pa.map_(key[0].with_nullable(False), value[0])

    def build(values: list[Any]) -> pa.Array:
        offsets, absent = _offsets(values)
        flat = [pair for row in values if row for pair in pairs(row)]
        keys, items = key[1]([each for each, _ in flat]), value[1]([each for _, each in flat])
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=absent)

    return type_, build
