"""The order in which a task writes: partition keys, sort keys, then the position in the source.

Key values are DuckLake's: calendar parts in UTC, and Iceberg's hash for buckets, which DuckLake shares for the types
that are admitted here (converters/ducklake/partition.py; tested against DuckLake's own inserts).
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow as pa

from bridge.errors import Blocked
from bridge.model.types import Field, Leaf, Timestamp, Unit
from converters.parquet.sql import duckdb_type, identifier, literal
from converters.spark.plan import PartitionKey, Settings, SortKey, Target

__all__ = ["KEY", "POSITION", "ordered"]

POSITION = "bridge:position"
KEY = "bridge:key"
_BATCH = 16_384
_CALENDAR = frozenset({"year", "month", "day", "hour"})


def ordered(
    connection: duckdb.DuckDBPyConnection,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    target: Target,
    settings: Settings,
) -> Iterator[pa.RecordBatch]:
    """The rows in the target's order, with their keys as text: `v` and the value, `n` for NULL."""
    fields = {field.name: field for field in target.fields}
    hashed = [_hashed(fields, key) for key in target.partition]
    feed = pa.schema([*schema, pa.field(POSITION, pa.int64())])
    for place, each in enumerate(hashed):
        if each:
            feed = feed.append(pa.field(f"bridge:hash{place}", pa.int64()))

    def keyed() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place, (key, each) in enumerate(zip(target.partition, hashed, strict=True)):
                if each:
                    batch = batch.append_column(f"bridge:hash{place}", buckets(batch.column(key.column), key.count))
            yield batch

    casts = [f"CAST({identifier(f.name)} AS {duckdb_type(f.type)}) AS {identifier(f.name)}" for f in target.fields]
    keys = [
        f"{_key(fields, key, place)} AS {identifier(KEY + str(place))}" for place, key in enumerate(target.partition)
    ]
    order = [identifier(KEY + str(place)) for place in range(len(keys))]
    order += [_sort(key, fields) for key in target.sort] + [identifier(POSITION)]
    reader = pa.RecordBatchReader.from_batches(feed, keyed())
    sorting = connection.cursor()
    sorting.execute("SET TimeZone = 'UTC'")
    sorting.register("unordered", reader)
    query = f"SELECT {', '.join([*casts, identifier(POSITION), *keys])} FROM unordered ORDER BY {', '.join(order)}"
    return iter(sorting.execute(query).to_arrow_reader(_BATCH))


def _sort(key: SortKey, fields: dict[str, Field]) -> str:
    expression = identifier(key.path[0]) + "".join(f"[{literal(name)}]" for name in key.path[1:])
    if not key.path[1:] and fields[key.path[0]].type in (Leaf.FLOAT32, Leaf.FLOAT64):
        expression += " + 0"  # a column of its own comes back as the key has it, without the sign of zero
    return f"{expression} {'DESC' if key.descending else 'ASC'} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def _key(fields: dict[str, Field], key: PartitionKey, place: int) -> str:
    column = identifier(key.column)
    if key.transform == "bucket":
        expression = identifier(f"bridge:hash{place}")
    elif key.transform in _CALENDAR:
        expression = f"{key.transform}({column})"
    elif key.transform == "identity":
        expression = column
    else:
        raise Blocked(f"partition transform {key.transform} is not written", code="partition-layout")
    return f"coalesce('v' || CAST({expression} AS VARCHAR), 'n')"


def _hashed(fields: dict[str, Field], key: PartitionKey) -> bool:
    if key.column not in fields:
        raise Blocked(f"partition column {key.column} is not among those written", code="partition-layout")
    if key.transform != "bucket":
        return False
    type_ = fields[key.column].type
    known = type_ in (*_WHOLE, Leaf.DATE, Leaf.STRING, Leaf.BINARY) or (
        isinstance(type_, Timestamp) and type_.unit is Unit.MICRO
    )
    if not known or key.count < 1:
        raise Blocked(f"column {key.column} is not put into buckets: {type_}, {key.count}", code="partition-bucket")
    return True


_WHOLE = (Leaf.INT8, Leaf.INT16, Leaf.INT32, Leaf.INT64)


def buckets(values: pa.Array, count: int) -> pa.Array:
    """Iceberg's bucket of each value: 32-bit Murmur3 (x86 variant, seed 0) without its sign, modulo the count."""
    absent = values.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        raw = values.cast(pa.binary()).to_pylist()
        hashes = np.array([0 if each is None else _murmur(each) for each in raw], dtype=np.uint32)
    else:
        wide = values.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date(values.type) else values
        wide = wide.view(pa.int64()) if pa.types.is_timestamp(wide.type) else wide.cast(pa.int64())
        hashes = _murmur_longs(wide.fill_null(0).to_numpy())
    found = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    return pa.array(found, pa.int64(), mask=absent)


_C1, _C2 = 0xCC9E2D51, 0x1B873593
_MASK = 0xFFFFFFFF


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


def _finish(hash_: int, length: int) -> int:
    hash_ ^= length
    hash_ = (hash_ ^ hash_ >> 16) * 0x85EBCA6B & _MASK
    hash_ = (hash_ ^ hash_ >> 13) * 0xC2B2AE35 & _MASK
    return hash_ ^ hash_ >> 16


def _murmur(data: bytes) -> int:
    hash_, whole = 0, len(data) // 4 * 4
    for place in range(0, whole, 4):
        word = int.from_bytes(data[place : place + 4], "little") * _C1 & _MASK
        hash_ = (_rotate(hash_ ^ _rotate(word, 15) * _C2 & _MASK, 13) * 5 + 0xE6546B64) & _MASK
    if len(data) > whole:
        word = int.from_bytes(data[whole:], "little") * _C1 & _MASK
        hash_ ^= _rotate(word, 15) * _C2 & _MASK
    return _finish(hash_, len(data))


def _murmur_longs(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.int64).view(np.uint64)
    hash_ = np.zeros(len(bits), dtype=np.uint64)
    mask = np.uint64(_MASK)

    def rotate(words: np.ndarray, by: int) -> np.ndarray:
        return (words << np.uint64(by) | words >> np.uint64(32 - by)) & mask

    for word in (bits & mask, bits >> np.uint64(32)):
        mixed = rotate(word * np.uint64(_C1) & mask, 15) * np.uint64(_C2) & mask
        hash_ = (rotate(hash_ ^ mixed, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & mask
    hash_ ^= np.uint64(8)
    hash_ = (hash_ ^ hash_ >> np.uint64(16)) * np.uint64(0x85EBCA6B) & mask
    hash_ = (hash_ ^ hash_ >> np.uint64(13)) * np.uint64(0xC2B2AE35) & mask
    return (hash_ ^ hash_ >> np.uint64(16)).astype(np.uint32)
