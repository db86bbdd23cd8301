"""How far a target is behind its source, table by table. Nothing is written, and of a table that is current only the
metadata is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from bridge.app import Ends, circle, open_ends
from bridge.errors import Blocked, Unreachable
from bridge.mirroring.expiry import Expiring, expiring
from bridge.mirroring.names import left_behind
from bridge.mirroring.verdict import Standing, foreign, lag_of, verdict_of
from bridge.model.options import Options
from bridge.model.table import Table, TableName
from bridge.planning.recalling import recalled
from bridge.planning.selection import select, targets, unmatched, waits
from bridge.ports import ProgressSink, Silent, SourceTable, TargetTable

__all__ = ["Standing", "TableStatus", "status"]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: the newest commit of the source and the one that the target holds ("" for none), with their times in
    microseconds from 1970; what is still to come: commits, the age of the oldest in seconds, and data files.

    None is unknown: of a table that cannot be read, and of a commit that the source does not list.
    """

    source: TableName
    target: TableName
    standing: Standing
    newest: str | None = None
    newest_time: int | None = None
    held: str | None = None
    held_time: int | None = None
    behind: int | None = None
    behind_seconds: float | None = None
    pending_files: int | None = None
    pending_bytes: int | None = None
    expiring: Expiring | None = None
    message: str = ""
    hint: str = ""
    exit_code: int = 0
    """What a run would end with for this table, as far as can be told from here."""


def status(
    source: str,
    target: str,
    options: Options | None = None,
    progress: ProgressSink | None = None,
    *,
    now: float,
) -> tuple[TableStatus, ...]:
    """Each selected table, in order, then those that the source has no more; none where all are still to come. `now` is
    in seconds from 1970. A table that cannot be read stops no other."""
    options, progress = replace(options or Options(), check_files="none"), progress or Silent()
    ends = open_ends(source, target, options)
    opened, lake = ends.source, ends.target
    gone = left_behind(ends, options)
    known = [*opened.tables(), *gone]
    none = waits(known, unmatched(known, options), options)
    chosen = [] if none else select(known, replace(options, follow=True))
    names = targets([each for each in chosen if each not in gone], options, lake.rename)
    held = lake.lookup(list(names.values()))
    found, called = [], dict[str, TableName]()
    for name, to in names.items():
        progress.step(f"{name}: reading metadata")
        try:
            one, table = _one(ends, name, to, held.get(to), options, now, progress)
            called[table.uuid] = name
            found.append(replace(one, expiring=expiring(opened, lake, table, held.get(to), now)))
        except (Unreachable, Blocked) as error:
            if len(chosen) == 1:
                raise
            code = error.exit_code
            found.append(
                TableStatus(name, to, Standing.UNREADABLE, message=error.message, hint=error.hint, exit_code=code)
            )
    return (*found, *(_dropped(name, each, called) for name, each in gone.items()))


def _dropped(name: TableName, each: TargetTable, called: Mapping[str, TableName]) -> TableStatus:
    """A table of the target that nothing comes to any more; `called` are the source's tables by uuid."""
    assert each.bookmark is not None
    now = called.get(each.bookmark.source.get("uuid", ""))
    said = "it was dropped at the source" if now is None else f"it is called {now} at the source now"
    return TableStatus(name, each.name, Standing.DROPPED, held=each.bookmark.commit, message=said)


def _one(
    ends: Ends,
    name: TableName,
    to: TableName,
    held: TargetTable | None,
    options: Options,
    now: float,
    progress: ProgressSink,
) -> tuple[TableStatus, Table]:
    source = ends.source.open(name)
    table = recalled(source, held)
    commits = table.commits
    said = circle(ends, table, to)
    verdict = verdict_of(table, held) if said is None else foreign(said)
    mark = held.bookmark if held is not None else None
    mine = next((each for each in commits if mark is not None and each.id == mark.commit), None)
    behind, seconds = lag_of(table, verdict.base, now)
    found = TableStatus(
        name,
        to,
        verdict.standing,
        behind=behind,
        behind_seconds=seconds,
        newest=commits[-1].id if commits else "",
        newest_time=commits[-1].time if commits else None,
        held=mark.commit if mark is not None else None,
        held_time=mine.time if mine is not None else None,
        message=verdict.message,
        hint=verdict.hint,
        exit_code=verdict.exit_code,
    )
    if verdict.base is None:
        return found, table
    if verdict.base == len(commits):
        return replace(found, pending_files=0, pending_bytes=0), table
    files, size = _pending(source, verdict.base, held, progress)
    return replace(found, pending_files=files, pending_bytes=size), table


def _pending(source: SourceTable, base: int, held: TargetTable | None, progress: ProgressSink) -> tuple[int, int]:
    """Data files that came after a commit index, and their bytes; a file that came twice counts once."""
    table = source.files(progress, base if base >= 0 else None, held.held if held is not None else None).table
    new = table.filter(pc.greater(table.column("begin"), base)).group_by("path").aggregate([("size", "max")])
    return new.num_rows, pc.sum(new.column("size_max")).as_py() or 0
