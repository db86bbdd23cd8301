"""Equality deletes as positions: which rows of which data files they delete. Data files are not changed.

Iceberg's rules (specification, "Scan Planning"): a delete file applies to a data file of a lower data sequence number,
if it belongs to an unpartitioned spec, or to the same spec and an equal partition. NULL equals NULL. Numbers compare as
Java compares them: any NaN equals any NaN, and -0.0 is not 0.0. Of every file only the key columns are read, in the
table's current types: older files hold narrower ones. A key that a data file lacks is its initial default, or NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import duckdb
import numpy as np
import pyarrow as pa

from bridge.model.schema import walk
from bridge.model.types import Field
from converters.parquet.sql import identifier
from converters.spark.ahead import Ahead, stream
from converters.spark.batches import Batch, Staging
from converters.spark.joining import join
from converters.spark.keys import (
    CODEC,
    DELETED,
    EqualityDeletes,
    KeyTask,
    Subject,
    deleted_rows,
    key_fields,
    read_keys,
)
from converters.spark.plan import DataFile, Settings
from converters.spark.running import Job, Watch, run_batches
from converters.spark.session import Engine
from converters.spark.writing import connect, failed

__all__ = ["resolve", "resolve_equality"]

_POSITION, _FILE = "bridge:position", "bridge:file"
_GROUP_BYTES, _GROUP_FILES = 128 << 20, 64
_LITTLE_BYTES, _LITTLE_FILES = 32 << 20, 32


def resolve_equality(
    engine: Engine,
    staging: str,
    plan_id: str,
    fields: tuple[Field, ...],
    subjects: Sequence[Subject],
    deletes: Sequence[EqualityDeletes],
    *,
    limit: int = 5_000_000,
    watch: Watch | None = None,
) -> pa.Table:
    """DELETED rows, ordered by data file, position and sequence; every pair of row and delete file.

    `fields` are the table's fields by id in their current types (those dropped since, which old deletes may name,
    included). Where more than `limit` rows of deletes apply to a data file its keys are joined by Spark, else inside
    the task that reads the file. Finished batches are kept under the plan id as the rewriter keeps them.
    """
    by_id = {int(placed.field.id): placed for placed in walk(fields)}
    keys = {ids: key_fields(ids, by_id, fields) for ids in {each.ids for each in deletes}}
    small: dict[tuple[int, ...], list[Subject]] = {}
    large: dict[tuple[int, ...], list[Subject]] = {}
    for subject in subjects:
        found = tuple(place for place, each in enumerate(deletes) if each.applies_to(subject))
        if found:
            rows = sum(deletes[place].file.record_count or 0 for place in found)
            unknown = any(deletes[place].file.record_count is None for place in found)
            (large if rows > limit or unknown else small).setdefault(found, []).append(subject)

    parts = [DELETED.empty_table()]
    staged = Staging.of(staging, plan_id)
    tasks = [task for found, group in sorted(small.items()) for task in _tasks(found, group, deletes, keys)]
    if not large and _is_little(tasks):
        parts += map(resolve, tasks)
    else:
        jobs = [_job(task) for task in tasks]
        batches = [(Batch((job.text,)), job.size) for job in jobs]
        parts += run_batches(engine, staged, batches, _work, lambda rows: True, watch)
    for found, group in sorted(large.items()):
        for ids in sorted({deletes[place].ids for place in found}):
            chosen = tuple(deletes[place] for place in found if deletes[place].ids == ids)
            parts += join(engine, staged, KeyTask(tuple(group), chosen, ((ids, keys[ids]),)))
    rows = pa.concat_tables(parts)
    return rows.sort_by([(name, "ascending") for name in ("data_file", "position", "sequence", "delete_file")])


def _tasks(
    found: tuple[int, ...],
    group: list[Subject],
    deletes: Sequence[EqualityDeletes],
    keys: dict[tuple[int, ...], tuple[Field, ...]],
) -> Iterator[KeyTask]:
    """Some data files each, which read the same delete files once."""
    chosen = tuple(deletes[place] for place in found)
    wanted = tuple((ids, keys[ids]) for ids in sorted({each.ids for each in chosen}))
    held: list[Subject] = []
    for subject in group:
        size = sum(each.file.size or 0 for each in held)
        if held and (len(held) == _GROUP_FILES or size + (subject.file.size or 0) > _GROUP_BYTES):
            yield KeyTask(tuple(held), chosen, wanted)
            held = []
        held.append(subject)
    yield KeyTask(tuple(held), chosen, wanted)


def _is_little(tasks: Sequence[KeyTask]) -> bool:
    """Whether reading it all here takes less than a Spark session takes to start."""
    files = [
        file for task in tasks for file in (*(each.file for each in task.subjects), *(e.file for e in task.deletes))
    ]
    known = all(each.size is not None for each in files)
    return known and len(files) <= _LITTLE_FILES and sum(each.size or 0 for each in files) <= _LITTLE_BYTES


def _job(task: KeyTask) -> Job:
    return Job(CODEC.text(task), sum(each.file.size or 0 for each in task.subjects))


def _work(text: str) -> pa.Table:
    return resolve(CODEC.value(text, KeyTask))


def resolve(task: KeyTask, settings: Settings | None = None) -> pa.Table:
    """DELETED rows of a task; the deletes are held in memory, the data files pass by in batches."""
    parts = [DELETED.empty_table()]
    for ids, fields in task.keys:
        chosen = [each for each in task.deletes if each.ids == ids]
        with connect(settings or Settings()) as connection:
            try:
                if _load(connection, chosen, ids, fields):
                    parts += [_matches(connection, subject, chosen, ids, fields) for subject in task.subjects]
            except duckdb.Error as error:
                raise failed("equality deletes cannot be resolved", error) from error
    return pa.concat_tables(parts)


def _load(
    connection: duckdb.DuckDBPyConnection,
    deletes: Sequence[EqualityDeletes],
    ids: tuple[int, ...],
    fields: tuple[Field, ...],
) -> bool:
    """Load the keys of delete files; False when they hold none."""
    loaded = False
    for place, each in enumerate(deletes):
        first = 0
        for batch in read_keys(each.file, ids, fields):
            connection.register("read", batch.append_column(_FILE, pa.array(np.full(batch.num_rows, place))))
            verb = "INSERT INTO deletes" if loaded else "CREATE TABLE deletes AS"
            connection.execute(f"{verb} SELECT DISTINCT * FROM read")
            connection.unregister("read")
            loaded = True
            first += batch.num_rows
        each.file.check(first)
    return loaded


def _matches(
    connection: duckdb.DuckDBPyConnection,
    subject: Subject,
    deletes: Sequence[EqualityDeletes],
    ids: tuple[int, ...],
    fields: tuple[Field, ...],
) -> pa.Table:
    same = " AND ".join(f"d.k{place} IS NOT DISTINCT FROM r.k{place}" for place in range(len(ids)))
    position, file = identifier(_POSITION), identifier(_FILE)
    query = f"SELECT DISTINCT r.{position} AS p, d.{file} AS f FROM read r JOIN deletes d ON {same} ORDER BY ALL"
    with Ahead(_placed(subject.file, ids, fields)) as rows:
        head = next(rows, None)
        if head is None:
            return DELETED.empty_table()
        connection.register("read", stream(head.schema, chain([head], rows)))
        try:
            found = connection.execute(query).to_arrow_table().combine_chunks()
        except duckdb.Error:
            rows.reraise()
            raise
        finally:
            connection.unregister("read")
        rows.reraise()
    if not found.num_rows:
        return DELETED.empty_table()
    paths = pa.repeat(pa.scalar(subject.file.path), found.num_rows)
    return deleted_rows(paths, found.column("p").combine_chunks(), found.column("f").combine_chunks(), deletes)


def _placed(file: DataFile, ids: tuple[int, ...], fields: tuple[Field, ...]) -> Iterator[pa.RecordBatch]:
    """Keys with the position of each row."""
    first = 0
    for batch in read_keys(file, ids, fields):
        place = np.arange(first, first + batch.num_rows, dtype=np.int64)
        yield batch.append_column(_POSITION, pa.array(place))
        first += batch.num_rows
    file.check(first)
