"""Name mappings as catalog rows: each once for a table, and which mapping the files that it holds already have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from bridge.errors import Conflict
from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.schema import walk
from bridge.model.types import FieldId
from converters.ducklake.catalog.job import Ids, Job, Rows
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table

__all__ = ["mapping_ids"]


def mapping_ids(session: Session, rows: Rows, job: Job, ids: Ids, kept: np.ndarray) -> pa.Array:
    """The mapping_id of each kept file. Conflict when a file that the lake holds is to be read otherwise now: its
    statistics and its history would no longer be right."""
    files, mappings = job.write.files.table, job.write.files.mappings
    classes = files.column("mapping").to_numpy(zero_copy_only=False)
    held = {} if job.is_new else _held(session, job.table_id)
    if not job.is_new and job.write.files.since is None:
        _compare(session, job, files, ~kept, mappings, held)
    known = {_canonical(mapping, job): id_ for id_, mapping in reversed(held.items())}
    numbers: dict[int, int] = {}
    for place in sorted({int(each) for each in classes[kept] if each == each}):
        found = known.get(_canonical(mappings[place], job))
        numbers[place] = _add(rows, job.table_id, ids, mappings[place]) if found is None else found
    return pa.array([numbers[int(each)] if each == each else None for each in classes[kept]], pa.int64())


def _canonical(mapping: NameMapping, job: Job) -> NameMapping:
    """As far as any column of the table is concerned."""
    return mapping.restricted(_fields(job))


def _fields(job: Job) -> frozenset[FieldId]:
    schemas = (*job.table.schemas.values(), job.table.schema)
    return frozenset(each.field.id for schema in schemas for each in walk(schema.fields))


def _add(rows: Rows, table_id: int, ids: Ids, mapping: NameMapping) -> int:
    """As ducklake_add_data_files of DuckDB 1.5.5 writes it. The id is drawn from the counter of files: sessions that
    are attached read the mappings again for an id that is not below what they knew."""
    id_ = ids.file
    ids.file += 1
    rows.add("column_mapping", id_, table_id, "map_by_name")
    number = 0

    def add(columns: Sequence[MappedColumn], parent: int | None) -> None:
        nonlocal number
        for each in columns:
            own, number = number, number + 1
            rows.add("name_mapping", id_, own, each.name, int(each.field), parent, each.from_path)
            add(each.children, own)

    add(mapping.columns, None)
    return id_


def _held(session: Session, table_id: int) -> dict[int, NameMapping]:
    """The mappings of a table by id."""
    mapping, name = table("column_mapping").c, table("name_mapping").c
    listed = session.rows(
        sa.select(
            name.mapping_id,
            name.column_id,
            name.source_name,
            name.target_field_id,
            name.parent_column,
            name.is_partition,
        )
        .join(table("column_mapping"), mapping.mapping_id == name.mapping_id)
        .where(mapping.table_id == table_id)
        .order_by(name.mapping_id, name.column_id)
    )
    below: dict[tuple[int, int | None], list[tuple[int, str, int, bool]]] = {}
    for id_, own, source, target, parent, from_path in listed:
        below.setdefault((id_, parent), []).append((own, source, target, bool(from_path)))

    def columns(id_: int, parent: int | None) -> tuple[MappedColumn, ...]:
        return tuple(
            MappedColumn(source, FieldId(target), columns(id_, own), from_path)
            for own, source, target, from_path in below.get((id_, parent), ())
        )

    return {id_: NameMapping(columns(id_, None)) for id_ in sorted({id_ for id_, _ in below})}


def _compare(
    session: Session,
    job: Job,
    files: pa.Table,
    older: np.ndarray,
    mappings: Sequence[NameMapping],
    held: Mapping[int, NameMapping],
) -> None:
    each = table("data_file").c
    live = session.rows(
        sa.select(each.path, each.mapping_id, each.path_is_relative).where(
            each.table_id == job.table_id, each.end_snapshot.is_(None)
        )
    )
    ids = {path: id_ for path, id_, relative in live if not relative}
    older_files = files.filter(pa.array(older))
    for path, place in zip(
        older_files.column("path").to_pylist(), older_files.column("mapping").to_pylist(), strict=True
    ):
        if path not in ids:
            continue
        # a column that is new has no values in the lake yet; files that hold it begin anew
        known = frozenset(map(FieldId, job.before))
        now = None if place is None else mappings[place].restricted(known)
        before = None if ids[path] is None or ids[path] not in held else held[ids[path]].restricted(known)
        if now != before:
            raise Conflict(
                f"{job.write.name}: the source reads {path} by other column names than when the lake took it over",
                hint="its name mapping was changed: release the table and migrate it again",
            )
