"""Each table with its files, whole or from the commit on that the target holds, and the decision about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pyarrow.compute as pc

from bridge.errors import Blocked, BridgeError, Conflict, Expired, Overtaken
from bridge.model.files import Files
from bridge.model.findings import Code, Finding
from bridge.model.options import Options
from bridge.model.table import Table, TableName
from bridge.planning.onward import is_restored
from bridge.planning.plan import TablePlan
from bridge.planning.planner import blocked_table, decide, definition_of
from bridge.planning.rebase import rebase
from bridge.planning.recalling import recalled, recounted
from bridge.ports import Bookmark, ProgressSink, Source, SourceTable, Target, TargetTable

__all__ = ["Read", "decided", "read_files", "read_one", "read_whole", "readings"]

Read = tuple[Table, Files, bool]
"""A table with its files, and whether the source knows the state that the target holds no more."""


def readings(
    source: Source,
    chosen: Sequence[TableName],
    names: Mapping[TableName, TableName],
    held: Mapping[TableName, TargetTable],
    options: Options,
    progress: ProgressSink,
) -> Iterator[tuple[TableName, Callable[[], Read]]]:
    """What gives each table with its files, or raises what keeps from it; some are read ahead where that may be."""
    if not source.concurrent or len(chosen) == 1 or options.jobs == 1:
        for name in chosen:
            yield name, partial(read_one, source, name, held.get(names[name]), options, progress)
        return
    ahead: deque[tuple[TableName, Callable[[], Read]]] = deque()
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for name in chosen:
                try:
                    opened = source.open(name)  # a catalog's client may not be shared between threads
                except BridgeError as error:
                    ahead.append((name, partial(_raised, error)))
                else:
                    there = held.get(names[name])
                    ahead.append((name, pool.submit(read_files, opened, there, options, progress).result))
                if len(ahead) > 2 * options.jobs:
                    yield ahead.popleft()
            while ahead:
                yield ahead.popleft()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _raised(error: BridgeError) -> Read:
    raise error


def read_one(
    source: Source, name: TableName, there: TargetTable | None, options: Options, progress: ProgressSink
) -> Read:
    """Open a table and read its files, as much as a target needs that holds `there`."""
    progress.step(f"{name}: reading metadata")
    return read_files(source.open(name), there, options, progress)


def read_whole(opened: SourceTable, table: Table, progress: ProgressSink) -> Read:
    """A table, called as its target calls it, with all its files, to compare them with what the target holds."""
    return table, opened.files(progress), False


def read_files(opened: SourceTable, there: TargetTable | None, options: Options, progress: ProgressSink) -> Read:
    """All files, or what came after the commit that the target holds."""
    table, mark = recalled(opened, there), None if there is None else there.bookmark
    try:
        held = None if there is None else there.held
        files = opened.files(progress, _since(table, there, options), held)
        table = recounted(opened, files, there) if files.since is None else table
        return table, files, mark is not None and _lost(table, mark)
    except Expired:
        if not options.follow:
            raise
        return table, opened.files(progress), True


def _lost(table: Table, mark: Bookmark) -> bool:
    """Whether the source's line has not the commit that the target holds."""
    return bool(mark.commit) and (is_restored(table, mark) or all(each.id != mark.commit for each in table.commits))


def decided(
    read: Callable[[], Read],
    lake: Target,
    name: TableName,
    target: TableName,
    held: Mapping[TableName, TargetTable],
    options: Options,
    progress: ProgressSink,
    clash: Finding | None = None,
    newest: int | None = None,
    several: bool = False,
) -> TablePlan:
    """The plan of one table. What is wrong with one of several never stops the others."""
    there = held.get(target)
    table: Table | None = None
    try:
        try:
            table, files, lost = read()
        except Blocked as error:
            code = next((each for each in Code if each.text == error.code), Code.METADATA_UNREADABLE)
            return blocked_table(name, target, Finding(code, str(name), error.message, error.hint))
        overlap = lake.overlaps(table.root or table.location, files)  # before the target's own files are among them
        mark = None if there is None else there.bookmark
        if lost and there is not None and mark is not None and _follows(table, there, mark, options):
            progress.step(f"{name}: it went another way, comparing everything")
            listed = any(each.id == mark.commit for each in table.commits)
            why = "is not known with its files any more" if listed else "was rolled back, left or expired"
            told = f"snapshot {mark.commit}, which the target holds, {why} at the source; everything was compared"
            table = replace(table, findings=(*table.findings, Finding(Code.HISTORY_DIVERGED, str(name), told)))
            known = lake.holds(target)
            table, files = rebase(table, files, mark.commit, known, lake.standing(target), lake.rewritten(target, ""))
        said = list(lake.review(table, target, options))
        said += [each for each in (overlap, clash) if each is not None]
        if there is not None and there.listed is None and files.since is not None:
            said += _twice(files, files.since, lake, target, name, mark)
        more = lake.review_files(table, files, target, options)
        return decide(table, files, target, there, said, options, newest, more, lake.written_fields(table))
    except Conflict as error:
        if not several or error.passes_by_itself:
            raise
        blocked = blocked_table(name, target, Finding(Code.TARGET_CONFLICT, str(name), error.message, error.hint))
        return replace(blocked, table=table)


def _twice(
    files: Files, since: int, lake: Target, target: TableName, name: TableName, mark: Bookmark | None
) -> list[Finding]:
    """Files that came and that the target holds already, without an end: of those that were there before only their own
    list would have told that one is listed twice. Overtaken when the target is not at its bookmark any more: another
    run has brought them."""
    table = files.table
    begin, end = table.column("begin"), table.column("end")
    came = table.filter(pc.greater(begin, since)).column("path").unique().to_pylist()
    left = table.filter(pc.and_(pc.less_equal(begin, since), pc.is_valid(end))).column("path").to_pylist()
    twice = sorted(lake.registered(target, came, "") - set(left)) if came else []
    if not twice:
        return []
    now = lake.lookup((target,)).get(target)
    if now is None or now.bookmark != mark:
        raise Overtaken(f"{target} was changed by another run since it was looked at", hint="run it again")
    said = f"{len(twice)} data files are listed more than once in one snapshot, such as {twice[0]}"
    return [Finding(Code.FILE_LISTED_TWICE, str(name), said, "add them once", tuple(twice))]


def _follows(table: Table, there: TargetTable, mark: Bookmark, options: Options) -> bool:
    """Whether a table whose line has not the commit that the target holds is to be followed by a difference. What is
    published of a lake goes on from its own list of files."""
    if there.listed is not None and table.format == "ducklake":
        return False
    ours = mark.source.get("uuid") == table.uuid and not mark.changed_by and not table.imported
    return ours and options.follow and options.at is None and bool(table.commits)


def _since(table: Table, there: TargetTable | None, options: Options) -> int | None:
    """The commit index that the target holds, where only what came later is to be read."""
    mark = None if there is None else there.bookmark
    if mark is None or not mark.commit or mark.source.get("uuid") != table.uuid or mark.changed_by:
        return None
    if (there is not None and there.whole) or is_restored(table, mark):
        return None
    if mark.definition != definition_of(table):  # files that are held may be read otherwise now
        return None
    return next((place for place, commit in enumerate(table.commits) if commit.id == mark.commit), None)
