"""A source that went another way than its target: what it is now, as changes to what the target holds.

After a rollback, a switch of the main branch, or when the source has forgotten the commit that the target is at, the
target's state is no longer one of the source's line. History is never rewritten: the state that the target stands at is
put before the commits that it has not seen, and each file and each deleted row is compared with what stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from bridge.model.files import DATA_FILES, DELETED_ROWS, FileProblem, Files, Rearranged, Standing
from bridge.model.rewrite import Equality, output_name
from bridge.model.table import Commit, Table

__all__ = ["rebase"]


def rebase(
    table: Table,
    files: Files,
    held: str,
    known: frozenset[str],
    standing: Standing,
    rewritten: Mapping[str, Sequence[tuple[str, int]]],
) -> tuple[Table, Files]:
    """The table and its files after a first commit `held`, in which everything is as the target stands.

    `files` are those of all commits of the table; `known` the commits that the target has snapshots of: those after
    the last of them are to come, or the newest once more when it is one of them. `rewritten` tells which files of the
    target stand for which of the source. Where equality deletes apply all is compared again once they are resolved.
    """
    commits = table.commits
    start = 1 + max((place for place, each in enumerate(commits) if each.id in known), default=-1)
    coming = list(commits[start:])
    if not coming:
        start = len(commits) - 1
        again = max(commits[start].time, table.updated)
        coming = [replace(commits[start], time=again, own_time=again)]
    before = Commit(held, coming[0].time - 1, coming[0].time - 1, coming[0].schema)
    moved = replace(table, commits=(before, *coming))
    return moved, _Rebased(files, start, standing, rewritten)


class _Rebased(Rearranged):
    """Files whose commits are counted from one before `start`."""

    def __init__(
        self, before: Files, start: int, standing: Standing, rewritten: Mapping[str, Sequence[tuple[str, int]]]
    ) -> None:
        super().__init__(before, *_compared(before, start, standing, rewritten))
        self.problems = tuple(_shifted(each, start) for each in self.problems if each.last is None or each.last > start)
        self._start, self._standing, self._rewritten = start, standing, rewritten

    def equality(self, first: int) -> Equality | None:
        """Those of the same commits before."""
        return self._before.equality(self._start + max(first - 1, 0))

    def resolved(self, found: pa.Table) -> Files:
        """Compared again, with the rows that they delete."""
        return _Rebased(self._before.resolved(found), self._start, self._standing, self._rewritten)


def _shifted(problem: FileProblem, start: int) -> FileProblem:
    return problem if problem.last is None else replace(problem, last=problem.last - start + 1)


def _compared(
    files: Files, start: int, standing: Standing, rewritten: Mapping[str, Sequence[tuple[str, int]]]
) -> tuple[pa.Table, pa.Table, np.ndarray]:
    """DATA_FILES rows, DELETED_ROWS and the row number before of each: -1 for what only the target has."""
    table = files.table
    begin = table.column("begin").to_numpy()
    far = len(begin) and int(begin.max()) + start + 2
    end = table.column("end").fill_null(far).to_numpy()
    paths, counts = table.column("path").to_pylist(), table.column("record_count").to_numpy()
    held = _held(files, np.flatnonzero((begin <= start) & (end > start)), start, standing, rewritten, paths, counts)
    kept = np.flatnonzero(end > start)
    now = np.where(begin > start, begin - start + 1, 1)
    now[list(held)] = 0
    claimed = {place for several in held.values() for place in several}
    gone = [place for place in range(standing.files.num_rows) if place not in claimed]
    ended = table.column("end")
    ours = table.take(pa.array(kept))
    ends = pa.array((ended.fill_null(0).to_numpy() - start + 1)[kept], mask=ended.is_null().to_numpy()[kept])
    ours = _with(_with(ours, "begin", pa.array(now[kept])), "end", ends)
    order = np.argsort(np.concatenate([np.zeros(len(gone), dtype=np.int64), now[kept]]), kind="stable")
    every = pa.concat_tables([_only_there(standing, gone), ours]).take(pa.array(order))
    was = np.concatenate([np.full(len(gone), -1, dtype=np.int64), kept])[order]
    return every, _deletes(files, start, standing, held, gone, was), was


def _held(
    files: Files,
    rows: np.ndarray,
    start: int,
    standing: Standing,
    rewritten: Mapping[str, Sequence[tuple[str, int]]],
    paths: Sequence[str],
    counts: np.ndarray,
) -> dict[int, tuple[int, ...]]:
    """The files, by row number, that stand in the target, with the places of what stands there for them: the same rows,
    of which none that is deleted there came back."""
    stated = standing.files.column("path").to_pylist()
    place = {path: number for number, path in enumerate(stated)}
    sizes = standing.files.column("record_count").to_numpy()
    theirs, ours = _positions(standing.deletes), _positions(files.deletes, start)
    nothing = np.zeros(0, dtype=np.int64)
    found: dict[int, tuple[int, ...]] = {}
    for row in rows.tolist():
        at = place.get(paths[row])
        if at is not None:
            came_back = np.setdiff1d(theirs.get(at, nothing), ours.get(row, nothing))
            if sizes[at] == counts[row] and not len(came_back):
                found[row] = (at,)
            continue
        own = rewritten.get(output_name(paths[row])) if rewritten else None
        if own is None:
            continue
        parts = tuple(place[path] for path, _ in own if path in place)
        whole = sum(int(sizes[each]) for each in parts) == counts[row]
        if whole and row not in ours and not any(each in theirs for each in parts):
            found[row] = parts
    return found


def _positions(deletes: pa.Table, start: int | None = None) -> dict[int, np.ndarray]:
    """Deleted positions by file, those of commit `start` and before."""
    file, position = deletes.column("file").to_numpy(), deletes.column("position").to_numpy()
    if start is not None:
        early = deletes.column("begin").to_numpy() <= start
        file, position = file[early], position[early]
    order = np.lexsort((position, file))
    file, position = file[order], position[order]
    each, first = np.unique(file, return_index=True)
    return dict(zip(each.tolist(), np.split(position, first[1:]), strict=True)) if len(each) else {}


def _only_there(standing: Standing, gone: Sequence[int]) -> pa.Table:
    rows = standing.files.take(pa.array(gone, pa.int64()))
    count = rows.num_rows
    values = {
        "path": rows.column("path"),
        "format": pa.array(["parquet"] * count, pa.string()),
        "begin": pa.array([0] * count, pa.int64()),
        "end": pa.array([1] * count, pa.int64()),
        "record_count": rows.column("record_count"),
        "size": pa.array([0] * count, pa.int64()),
        "spec": pa.array([0] * count, pa.int32()),
    }
    nothing = {each.name: pa.nulls(count, each.type) for each in DATA_FILES if each.name not in values}
    made = {**values, **nothing}
    return pa.table({name: made[name] for name in DATA_FILES.names}, schema=DATA_FILES)


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    stated = DATA_FILES.field(name)
    return rows.set_column(rows.schema.get_field_index(name), stated, column.cast(stated.type))


def _deletes(
    files: Files,
    start: int,
    standing: Standing,
    held: Mapping[int, tuple[int, ...]],
    gone: Sequence[int],
    was: np.ndarray,
) -> pa.Table:
    """The deleted rows of what comes, and those that are deleted in files which only the target has."""
    file, position, begin = (files.deletes.column(name).to_numpy() for name in DELETED_ROWS.names)
    now = np.full(files.table.num_rows, -1, dtype=np.int64)
    now[was[was >= 0]] = np.flatnonzero(was >= 0)
    moved = np.where(begin > start, begin - start + 1, 1)
    theirs = _positions(standing.deletes)
    for row, parts in held.items():
        low, high = np.searchsorted(file, (row, row + 1))
        if high > low and parts[0] in theirs:
            there = np.isin(position[low:high], theirs[parts[0]])
            moved[low:high] = np.where(there, 0, moved[low:high])
    known = now[file] >= 0
    places = np.full(standing.files.num_rows, -1, dtype=np.int64)
    places[gone] = np.flatnonzero(was < 0)
    there, lost = (standing.deletes.column(name).to_numpy() for name in ("file", "position"))
    ended = places[there] >= 0
    file = np.concatenate([now[file][known], places[there][ended]])
    position = np.concatenate([position[known], lost[ended]])
    moved = np.concatenate([moved[known], np.zeros(int(ended.sum()), dtype=np.int64)])
    order = np.lexsort((position, file))
    return pa.table([file[order], position[order], moved[order]], schema=DELETED_ROWS)
