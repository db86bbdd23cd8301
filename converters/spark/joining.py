"""Equality deletes too many for one task's memory: keys of data and delete files joined by Spark, through a shuffle.

Keys travel as one text each, equal exactly when the keys are. Matches are written beside the manifests by the tasks
that find them, so that they do not pass through Spark's results.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from bridge.model.types import Field
from converters import storage
from converters.spark.batches import Batch, Staging
from converters.spark.keys import CODEC, KeyTask, deleted_rows, read_keys
from converters.spark.plan import DataFile, Settings
from converters.spark.session import Engine, Work
from converters.spark.writing import connect

__all__ = ["join"]

_SIDE = "file int, position long, key string"
_PARTS = pa.schema([pa.field("part", pa.string(), False)])


def join(engine: Engine, staging: Staging, task: KeyTask) -> list[pa.Table]:
    """DELETED rows of a task whose delete files share one set of ids."""
    batch = Batch((CODEC.text(task), "join"))
    if batch.name not in staging.prepare([batch]):
        [(ids, fields)] = task.keys
        files, deletes = tuple(each.file for each in task.subjects), tuple(each.file for each in task.deletes)
        session = engine.session
        data = session.range(0, len(files), 1, len(files)).mapInArrow(_reader(files, ids, fields), _SIDE)
        gone = session.range(0, len(deletes), 1, len(deletes)).mapInArrow(_reader(deletes, ids, fields), _SIDE)
        gone = gone.withColumnRenamed("file", "deletes").select("deletes", "key").distinct()
        matched = data.join(gone, "key").select("file", "position", "deletes")
        keeper = matched.mapInArrow(_keeper(staging.root, batch.name, task), "part string, rows long")
        parts = [str(part) for part, _ in engine.collected(keeper, f"bridge-{batch.name}")]
        staging.finish(batch.name, pa.table({"part": sorted(parts)}, schema=_PARTS))
    return [_part(staging.root, part) for part in staging.rows(batch.name).column("part").to_pylist()]


def _reader(files: tuple[DataFile, ...], ids: tuple[int, ...], fields: tuple[Field, ...]) -> Work:
    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from _encoded(number, files[number], ids, fields)

    return read


def _encoded(number: int, file: DataFile, ids: tuple[int, ...], fields: tuple[Field, ...]) -> Iterator[pa.RecordBatch]:
    """Number of the file, position and key text of each of its rows."""
    first = 0
    with connect(Settings()) as connection:
        for batch in read_keys(file, ids, fields):
            connection.register("read", batch)
            query = f"SELECT {' || '.join(_text(field) for field in batch.schema)} AS key FROM read"
            keys = connection.execute(query).to_arrow_table().column("key").combine_chunks()
            connection.unregister("read")
            place = np.arange(first, first + batch.num_rows, dtype=np.int64)
            which = np.full(batch.num_rows, number, dtype=np.int32)
            first += batch.num_rows
            yield pa.RecordBatch.from_arrays(
                [pa.array(which), pa.array(place), keys.cast(pa.string())], names=["file", "position", "key"]
            )
    file.check(first)


def _text(field: pa.Field) -> str:
    binary = pa.types.is_binary(field.type) or pa.types.is_fixed_size_binary(field.type)
    value = f"hex({field.name})" if binary else f"CAST({field.name} AS VARCHAR)"
    return f"CASE WHEN {field.name} IS NULL THEN 'n' ELSE 'v' || length({value}) || ':' || {value} END"


def _keeper(root: str, name: str, task: KeyTask) -> Work:
    subjects = pa.array([each.file.path for each in task.subjects], pa.string())

    def keep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [each for each in batches if each.num_rows]
        if not found:
            return
        every = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
        rows = deleted_rows(
            subjects.take(every.column("file")), every.column("position"), every.column("deletes"), task.deletes
        )
        part = f"{name}-{uuid.uuid4().hex}.part"  # of a task that ran twice only the named one counts
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        storage.write(f"{root}/{part}", sink.getvalue().to_pybytes(), f".{part}")
        yield pa.RecordBatch.from_pydict({"part": [part], "rows": [rows.num_rows]})

    return keep


def _part(root: str, part: str) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(storage.read(f"{root}/{part}", "part of a join"))).read_all()
