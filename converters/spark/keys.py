"""The keys of equality deletes: which delete file applies to which data file, and the key values of a file.

Keys compare as Java compares them: NULL equals NULL, any NaN equals any NaN, and -0.0 is not 0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import Blocked
from bridge.model.rewrite import RESOLVED as DELETED
from bridge.model.rewrite import EqualityDeletes, Subject
from bridge.model.schema import Placed, walk
from bridge.model.types import Field, Leaf, Struct
from converters.spark.encoding import Codec
from converters.spark.plan import CLASSES, DataFile
from converters.spark.project import projection
from converters.spark.sources import open_source

__all__ = [
    "CODEC",
    "DELETED",
    "EqualityDeletes",
    "KeyTask",
    "Subject",
    "deleted_rows",
    "key_fields",
    "read_keys",
]


@dataclass(frozen=True, slots=True)
class KeyTask:
    """Data files that the same delete files apply to, and the key columns of each set of ids."""

    subjects: tuple[Subject, ...]
    deletes: tuple[EqualityDeletes, ...]
    keys: tuple[tuple[tuple[int, ...], tuple[Field, ...]], ...]


CODEC = Codec((*CLASSES, Subject, EqualityDeletes, KeyTask))


def key_fields(ids: tuple[int, ...], by_id: dict[int, Placed], fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The key columns alone: of structs only what leads to a key."""
    for id_ in ids:
        placed = by_id.get(id_)
        if placed is None:
            raise Blocked(f"equality deletes name field id {id_}, which the table never had", code="equality-deletes")
        if not placed.is_leaf or placed.repeated:
            raise Blocked(f"equality deletes by {'.'.join(placed.path)}, which is no value", code="equality-deletes")
    return _pruned(fields, frozenset(ids))


def _pruned(fields: tuple[Field, ...], ids: frozenset[int]) -> tuple[Field, ...]:
    kept = []
    for field in fields:
        if int(field.id) in ids:
            kept.append(field)
        elif isinstance(field.type, Struct) and (below := _pruned(field.type.fields, ids)):
            kept.append(replace(field, type=Struct(below)))
    return tuple(kept)


def deleted_rows(
    subjects: pa.Array, positions: pa.Array, files: pa.Array, deletes: Sequence[EqualityDeletes]
) -> pa.Table:
    """DELETED rows of data file paths, positions and numbers of delete files."""
    which = files.cast(pa.int64())
    return pa.table(
        [
            subjects,
            positions.cast(pa.int64()),
            pa.array([each.file.path for each in deletes], pa.string()).take(which),
            pa.array([each.sequence for each in deletes], pa.int64()).take(which),
        ],
        schema=DELETED,
    )


def read_keys(file: DataFile, ids: tuple[int, ...], fields: tuple[Field, ...]) -> Iterator[pa.RecordBatch]:
    """The key values of a file as columns k0, k1... in the order of the ids, such that equal means equal in Java."""
    source = open_source(file.path, file.format)
    reading = projection(file, source.schema, fields)
    paths = {int(each.field.id): each for each in walk(fields)}
    for batch in source.batches(reading.needed):
        made = reading.apply(batch)
        columns = [_comparable(_at(made, paths[id_].path), paths[id_].field) for id_ in ids]
        yield pa.RecordBatch.from_arrays(columns, names=[f"k{place}" for place in range(len(ids))])


def _at(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    values = batch.column(path[0])
    for name in path[1:]:
        values = pc.struct_field(values, name)  # NULL below NULL
    return values


def _comparable(values: pa.Array, field: Field) -> pa.Array:
    """Values of which equal ones, and only those, have equal bytes."""
    if field.type is Leaf.FLOAT32 or field.type is Leaf.FLOAT64:
        wide = values.cast(pa.float64())
        nan = pa.scalar(float("nan"), pa.float64())
        return pc.if_else(pc.is_nan(wide), nan, wide).view(pa.int64())
    return values.storage if isinstance(values, pa.ExtensionArray) else values
