"""Files that have to be rewritten, and deletes to be resolved: what the engine makes takes the place of the sources.

Deletes that are in effect at the first commit that is carried of a file are folded in: their rows are not written.
Later ones stay positions, since older snapshots see these rows; where rows were sorted the written files themselves
tell which of theirs a position of the source is. A source file that is live several times is written as
often: a lake deletes a file of its own when the first registration of it expires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import Conflict
from bridge.model.files import DATA_FILES, DELETED_ROWS, Files, Rearranged, StatsBatch
from bridge.model.rewrite import FileRewrite, may_be_sorted, output_name, sort_mark, work_mark
from bridge.model.types import FieldId
from bridge.planning.plan import TablePlan
from bridge.ports import ProgressSink, RowEngine, Target

__all__ = ["prepared"]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The files that stand for a row of Files.table, in the order of its rows; `row` is their row in what was written,
    negative for those of an earlier run. `left_out` are the positions, ascending, that none of them holds. Where rows
    were moved `places` are those, among the rows of all files, of the row's deletes, negative for rows left out."""

    path: tuple[str, ...] = ()
    record_count: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    footer_size: tuple[int | None, ...] = ()
    row: tuple[int, ...] = ()
    left_out: np.ndarray | None = None
    places: np.ndarray | None = None
    partition: tuple[tuple[str | None, ...], ...] = ()


def prepared(each: TablePlan, target: Target, engine: RowEngine | None, progress: ProgressSink) -> TablePlan:
    """The plan with files that can all be registered; an engine is needed for what is to be rewritten or resolved."""
    assert each.table is not None and each.data is not None
    files = each.data
    paths = files.table.column("path").take(pa.array(each.rewrite_rows, pa.int64()))
    work = target.work(each.target, each.id)
    if each.resolve and engine is not None and (equality := files.equality(each.first)) is not None:
        found = engine.resolve(work, equality, progress, f"{each.source}: resolving equality deletes")
        files = files.resolved(found)
    pieces = {} if each.base is None else _earlier(each, files, each.base, target)
    stats: Sequence[tuple[FieldId, pa.Table]] = ()
    rows = _rows_of(files, paths, each) if len(paths) else []
    if rows and engine is not None:
        gone = _in_effect(files, rows, each.first)
        place = target.files_of(each.target, each.table, each.id)
        outputs = _outputs(files, rows, work_mark(work) + sort_mark(place))
        tasks = [
            FileRewrite(source, output, gone[row])
            for row, source, output in zip(rows, files.sources(rows), outputs, strict=True)
        ]
        written = engine.rewrite(work, tasks, place, progress, f"{each.source}: rewriting")
        stats = written.stats
        pieces |= _moved_rows(_written(rows, gone, written.table), files, target)
    return replace(each, data=_replaced(files, pieces, stats) if pieces else files)


def _rows_of(files: Files, paths: pa.ChunkedArray, each: TablePlan) -> list[int]:
    """The rows of the files to rewrite; one that was cut since the plan was made has several."""
    table = files.table
    begun = pc.greater(table.column("begin"), -1 if each.base is None else each.base)
    if each.missing:
        begun = pc.or_(begun, pc.is_in(table.column("path"), pa.array(sorted(each.missing), pa.string())))
    kept = pc.or_kleene(pc.is_null(table.column("end")), pc.greater(table.column("end"), each.first))
    wanted = pc.and_(pc.and_(begun, kept), pc.is_in(table.column("path"), paths.combine_chunks()))
    return [int(row) for row in np.flatnonzero(wanted.to_numpy())]


def _outputs(files: Files, rows: Sequence[int], marks: str) -> list[str]:
    """A name for each row's files; the first of a path has no number."""
    seen: dict[str, int] = {}
    found = []
    for path in files.table.column("path").take(pa.array(rows)).to_pylist():
        seen[path] = seen.get(path, 0) + 1
        found.append(output_name(path) + marks + (f"-v{seen[path]}" if seen[path] > 1 else ""))
    return found


class _Deletes:
    """Deleted positions by row number."""

    def __init__(self, files: Files) -> None:
        self.file, self.position, self.begin = (files.deletes.column(name).to_numpy() for name in DELETED_ROWS.names)

    def of(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions, ascending, and the commits at which they are deleted."""
        low, high = np.searchsorted(self.file, (row, row + 1))
        return self.position[low:high], self.begin[low:high]


def _in_effect(files: Files, rows: Sequence[int], first: int) -> dict[int, np.ndarray]:
    """For each row the positions that no carried commit sees."""
    deletes, begins = _Deletes(files), files.table.column("begin").to_numpy()
    found = {}
    for row in rows:
        position, begin = deletes.of(row)
        found[row] = position[begin <= max(int(begins[row]), first)]
    return found


def _earlier(each: TablePlan, files: Files, base: int, target: Target) -> dict[int, _Pieces]:
    """What earlier runs wrote for files that the target holds."""
    begin, end = (files.table.column(name) for name in ("begin", "end"))
    held = pc.and_(pc.less_equal(begin, base), pc.or_kleene(pc.is_null(end), pc.greater(end, base)))
    rows = np.flatnonzero(held.to_numpy())
    if not len(rows):
        return {}
    facts = files.table.select(["path", "record_count"]).take(pa.array(rows))
    paths, counts = facts.column("path").to_pylist(), facts.column("record_count").to_pylist()
    names = None if files.since is None else frozenset(map(output_name, paths))
    known, deletes = target.rewritten(each.target, each.onto, names), _Deletes(files)
    found: dict[int, _Pieces] = {}
    missing: dict[int, int] = {}
    dead: dict[int, str] = {}
    for row, path, count in zip(rows.tolist(), paths, counts, strict=True):
        own = known.get(output_name(path)) if known else None
        if own is not None:
            missing[row] = count - sum(held_count for _, held_count in own)
            found[row] = _Pieces(
                path=tuple(place for place, _ in own),
                record_count=tuple(held_count for _, held_count in own),
                size=(0,) * len(own),
                footer_size=(0,) * len(own),
                row=(-1,) * len(own),
            )
        elif not count or int((deletes.of(row)[1] <= base).sum()) == count:
            dead[row] = path
    found = _moved_rows(found, files, target)
    for row, pieces in found.items():
        if pieces.places is None:
            left_out = _left_out(*deletes.of(row), missing[row])
            if left_out is None:
                left_out = target.left_out(pieces.path[0])
                if len(left_out) != missing[row]:
                    raise Conflict(
                        f"{pieces.path[0]} does not tell which {missing[row]} rows of its source it was made without",
                        hint=f"release {each.target} in the target, and carry it anew",
                    )
            found[row] = replace(pieces, left_out=left_out)
    if dead:
        # a file without a row that lives is rewritten to nothing: what becomes of it changes nothing in the target
        there = target.registered(each.target, tuple(dead.values()), each.onto)
        found |= {row: _Pieces() for row, path in dead.items() if path not in there}
    return found


def _moved_rows(pieces: Mapping[int, _Pieces], files: Files, target: Target) -> dict[int, _Pieces]:
    """The pieces with the places of deletes that name rows which were moved."""
    deletes = _Deletes(files)
    asked = {
        row: position
        for row, own in pieces.items()
        if own.path and may_be_sorted(own.path[0]) and len(position := deletes.of(row)[0])
    }
    places = target.places([(pieces[row].path, position) for row, position in asked.items()])
    return {**pieces, **{row: replace(pieces[row], places=each) for row, each in zip(asked, places, strict=True)}}


def _left_out(position: np.ndarray, begin: np.ndarray, missing: int) -> np.ndarray | None:
    """The positions that were left out, told by their number: the deletes of the first commits make it up. None when
    they do not, because the source has forgotten those commits."""
    if not missing:
        return np.zeros(0, dtype=np.int64)
    commits, counts = np.unique(begin, return_counts=True)
    reached = np.flatnonzero(np.cumsum(counts) == missing)
    return None if not len(reached) else position[begin <= commits[reached[0]]]


def _written(rows: Sequence[int], gone: Mapping[int, np.ndarray], table: pa.Table) -> dict[int, _Pieces]:
    by_source: dict[int, list[int]] = {place: [] for place in range(len(rows))}
    for number, task in enumerate(table.column("task").to_pylist()):
        by_source[int(task)].append(number)
    partitions = table.column("partition").to_pylist()
    facts = {name: table.column(name).to_pylist() for name in ("path", "record_count", "size", "footer_size")}

    return {
        rows[place]: _Pieces(
            path=tuple(facts["path"][number] for number in numbers),
            record_count=tuple(facts["record_count"][number] for number in numbers),
            size=tuple(facts["size"][number] for number in numbers),
            footer_size=tuple(facts["footer_size"][number] for number in numbers),
            row=tuple(numbers),
            left_out=gone[rows[place]],
            partition=tuple(tuple(partitions[number]) for number in numbers),
        )
        for place, numbers in by_source.items()
    }


def _replaced(files: Files, pieces: Mapping[int, _Pieces], stats: Sequence[tuple[FieldId, pa.Table]]) -> Files:
    """The files with their pieces in the place of each row; positions move along."""
    times = np.ones(files.table.num_rows, dtype=np.int64)
    cut = np.zeros(files.table.num_rows, dtype=bool)
    for row, own in pieces.items():
        times[row], cut[row] = len(own.path), True
    was = np.repeat(np.arange(len(times)), times)
    part = np.arange(len(was)) - np.repeat(np.cumsum(times) - times, times)
    changed = np.flatnonzero(cut[was])
    made = files.table.take(pa.array(was))
    first_row = np.zeros(len(was), dtype=np.int64)
    written = np.full(len(was), -1, dtype=np.int64)
    values: dict[str, list[str | int | None]] = {name: [] for name in _CHANGED}
    partitions: dict[int, tuple[str | None, ...]] = {}
    row_ids = made.column("first_row_id").take(pa.array(changed)).to_pylist()
    for row, row_id in zip(changed.tolist(), row_ids, strict=True):
        own, number = pieces[int(was[row])], int(part[row])
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
    deletes = _moved(_without(files.deletes, pieces), was, first_row)
    batches = []
    for field, rows in stats:
        moved = _rows(rows, written)
        if moved.num_rows:
            batches.append(StatsBatch(field, moved, exact=True))
    return Rearranged(files, made, deletes, np.where(replaced, -1, was), batches, partitions=partitions)


_CHANGED = ("path", "format", "record_count", "size", "footer_size", "first_row_id", "mapping")


def _without(deletes: pa.Table, pieces: Mapping[int, _Pieces]) -> pa.Table:
    """Deletes as positions among the rows that are left; those of rows left out are gone."""
    file, position, begin = (deletes.column(name).to_numpy().copy() for name in DELETED_ROWS.names)
    kept = np.ones(len(file), dtype=bool)
    for row, own in pieces.items():
        low, high = np.searchsorted(file, (row, row + 1))
        here = position[low:high]
        if own.places is not None:
            kept[low:high] = own.places >= 0
            position[low:high] = own.places
            continue
        if own.left_out is None or not len(own.left_out):
            continue
        place = np.searchsorted(own.left_out, here)
        kept[low:high] = own.left_out[np.minimum(place, len(own.left_out) - 1)] != here
        position[low:high] = here - place
    return pa.table([file[kept], position[kept], begin[kept]], schema=DELETED_ROWS)


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
