"""Files that have to be rewritten, and deletes to be resolved: what the engine makes takes the place of the sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.model.files import DATA_FILES, DELETED_ROWS, Files, Rearranged, StatsBatch
from bridge.model.rewrite import output_name
from bridge.model.types import FieldId
from bridge.planning.plan import TablePlan
from bridge.ports import ProgressSink, RowEngine, Target

__all__ = ["prepared"]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The files that stand for a source file, in the order of its rows; `row` is their row in what was written,
    negative for those of an earlier run."""

    path: tuple[str, ...]
    record_count: tuple[int, ...]
    size: tuple[int, ...]
    footer_size: tuple[int | None, ...]
    row: tuple[int, ...]
    partition: tuple[tuple[str | None, ...], ...] = ()


def prepared(each: TablePlan, target: Target, engine: RowEngine | None, progress: ProgressSink) -> TablePlan:
    """The plan with files that can all be registered; an engine is needed for what is to be rewritten or resolved."""
    assert each.table is not None and each.data is not None
    files = each.data
    paths = files.table.column("path").take(pa.array(each.rewrite_rows, pa.int64())).to_pylist()
    rows = list(dict(zip(paths, each.rewrite_rows, strict=True)).values())
    sources = files.sources(rows) if rows else ()
    if each.resolve and engine is not None and (equality := files.equality(each.first)) is not None:
        found = engine.resolve(each.id, equality, progress, f"{each.source}: resolving equality deletes")
        files = files.resolved(found)
    pieces = {} if each.base is None else _earlier(files, target.rewritten(each.target))
    stats: Sequence[tuple[FieldId, pa.Table]] = ()
    if sources and engine is not None:
        place = target.files_of(each.target, each.table, each.id)
        written = engine.rewrite(each.id, sources, place, progress, f"{each.source}: rewriting")
        stats = written.stats
        pieces |= _written([source.path for source in sources], written.table)
    return replace(each, data=_replaced(files, pieces, stats) if pieces else files)


def _earlier(files: Files, held: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, _Pieces]:
    """What earlier runs wrote, by the path of its source."""
    if not held:
        return {}
    found = {}
    for path in files.table.column("path").unique().to_pylist():
        if (own := held.get(output_name(path))) is not None:
            nothing = (0,) * len(own)
            found[path] = _Pieces(
                tuple(place for place, _ in own), tuple(count for _, count in own), nothing, nothing, (-1,) * len(own)
            )
    return found


def _written(paths: Sequence[str], table: pa.Table) -> dict[str, _Pieces]:
    by_source: dict[int, list[int]] = {place: [] for place in range(len(paths))}
    order = table.append_column("row", pa.array(range(table.num_rows))).sort_by("first_row")
    for task, row in zip(order.column("task").to_pylist(), order.column("row").to_pylist(), strict=True):
        by_source[int(task)].append(row)
    partitions = table.column("partition").to_pylist()
    facts = {name: table.column(name).to_pylist() for name in ("path", "record_count", "size", "footer_size")}
    return {
        paths[place]: _Pieces(
            path=tuple(facts["path"][row] for row in rows),
            record_count=tuple(facts["record_count"][row] for row in rows),
            size=tuple(facts["size"][row] for row in rows),
            footer_size=tuple(facts["footer_size"][row] for row in rows),
            row=tuple(rows),
            partition=tuple(tuple(partitions[row]) for row in rows),
        )
        for place, rows in by_source.items()
    }


def _replaced(files: Files, pieces: Mapping[str, _Pieces], stats: Sequence[tuple[FieldId, pa.Table]]) -> Files:
    """The files with their pieces in the place of each source; positions move along."""
    path = files.table.column("path").combine_chunks().dictionary_encode()
    codes = path.indices.to_numpy()
    times, cut = np.ones(len(path.dictionary), dtype=np.int64), np.zeros(len(path.dictionary), dtype=bool)
    for source, code in zip(pieces, pc.index_in(pa.array(list(pieces)), path.dictionary).to_pylist(), strict=True):
        if code is not None:
            times[code], cut[code] = len(pieces[source].path), True
    repeated = times[codes]
    was = np.repeat(np.arange(len(codes)), repeated)
    part = np.arange(len(was)) - np.repeat(np.cumsum(repeated) - repeated, repeated)
    changed = np.flatnonzero(cut[codes[was]])
    made = files.table.take(pa.array(was))
    first_row = np.zeros(len(was), dtype=np.int64)
    written = np.full(len(was), -1, dtype=np.int64)
    values: dict[str, list[str | int | None]] = {name: [] for name in _CHANGED}
    partitions: dict[int, tuple[str | None, ...]] = {}
    row_ids = made.column("first_row_id").take(pa.array(changed)).to_pylist()
    for row, row_id in zip(changed.tolist(), row_ids, strict=True):
        own, number = pieces[path.dictionary[int(codes[was[row]])].as_py()], int(part[row])
        first_row[row] = sum(own.record_count[:number])
        written[row] = own.row[number]
        if own.partition and own.partition[number]:
            partitions[row] = own.partition[number]
        values["path"].append(own.path[number])
        values["format"].append("parquet")
        values["record_count"].append(own.record_count[number])
        values["size"].append(own.size[number])
        values["footer_size"].append(own.footer_size[number] or None)
        values["first_row_id"].append(None if row_id is None else row_id + int(first_row[row]))
        values["mapping"].append(None)
    replaced = np.zeros(len(was), dtype=bool)
    replaced[changed] = True
    for name in _CHANGED:
        stated = DATA_FILES.field(name)
        column = made.column(name).combine_chunks()
        column = pc.replace_with_mask(column, pa.array(replaced), pa.array(values[name], stated.type))
        made = made.set_column(made.schema.get_field_index(name), stated, column)
    deletes = _moved(files.deletes, was, first_row)
    batches = []
    for field, rows in stats:
        moved = _rows(rows, written)
        if moved.num_rows:
            batches.append(StatsBatch(field, moved, exact=True))
    return Rearranged(files, made, deletes, np.where(replaced, -1, was), batches, partitions=partitions)


_CHANGED = ("path", "format", "record_count", "size", "footer_size", "first_row_id", "mapping")


def _moved(deletes: pa.Table, was: np.ndarray, first_row: np.ndarray) -> pa.Table:
    """Deleted positions under the new rows: the piece that a position falls into, and its place there."""
    if not deletes.num_rows:
        return deletes
    file, position, begin = (deletes.column(name).to_numpy() for name in DELETED_ROWS.names)
    starts = np.searchsorted(was, file)
    ends = np.searchsorted(was, file, side="right")
    now = starts.copy()
    for step in range(1, int((ends - starts).max(initial=1))):
        beyond = (starts + step < ends) & (position >= first_row[np.minimum(starts + step, len(was) - 1)])
        now = np.where(beyond, starts + step, now)
    known = ends > starts
    now, position, begin = now[known], position[known], begin[known]
    order = np.lexsort((position - first_row[now], now))
    return pa.table([now[order], (position - first_row[now])[order], begin[order]], schema=DELETED_ROWS)


def _rows(stats: pa.Table, written: np.ndarray) -> pa.Table:
    """Statistics of written files for each row that stands for one."""
    place = np.full(int(written.max(initial=-1)) + 1, -1, dtype=np.int64)
    stated = stats.column("file").to_numpy()
    known = stated < len(place)
    place[stated[known]] = np.flatnonzero(known)
    rows = np.flatnonzero(written >= 0)
    found = place[written[rows]]
    rows, found = rows[found >= 0], found[found >= 0]
    return stats.take(pa.array(found)).set_column(
        stats.schema.get_field_index("file"), "file", pa.array(rows, pa.int64())
    )
