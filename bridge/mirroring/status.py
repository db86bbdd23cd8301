"""How far a target is behind its source, table by table, and what the next round of a mirror does. Nothing is written,
and of a table that is current only the metadata is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from bridge.app import Ends, circle, looked_up, open_ends
from bridge.errors import Blocked, BridgeError, Conflict, Unreachable
from bridge.mirroring.expiry import Expiring, expiring
from bridge.mirroring.names import Foreseen, Lost, foreseen
from bridge.mirroring.verdict import Standing, foreign, lag_of, left_by, verdict_of
from bridge.model.findings import Code, Finding
from bridge.model.options import Options
from bridge.model.table import Table, TableName
from bridge.planning.plan import Action
from bridge.planning.reading import decided, read_files
from bridge.planning.recalling import recalled
from bridge.planning.selection import clashes_of, not_listed, select, targets, unmatched, waits
from bridge.ports import ProgressSink, Silent, SourceTable, TargetTable

__all__ = ["Standing", "TableStatus", "status"]

_COMING = frozenset({Standing.BEHIND, Standing.ABSENT, Standing.DIVERGED})


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
    options, progress = replace(options or Options(), follow=True), progress or Silent()
    ends = open_ends(source, target, options)
    opened, lake = ends.source, ends.target
    seen = foreseen(ends, options)
    gone = {name: each for name, each in seen.lost.items() if not each.anew}
    known = [*opened.tables(), *gone]
    none = waits(known, unmatched(known, options), options)
    chosen = [] if none else select(known, options)
    names = targets([each for each in chosen if each not in gone], options, lake.rename)
    came = {name: seen.taken[old].name for old, name in seen.moved.items()}
    held, hidden = looked_up(lake, {name: came.get(name, to) for name, to in names.items()})
    leaving = {str(each).casefold() for each in came.values()}
    stuck = _stuck(ends, seen)
    clashes, newest = clashes_of(names), lake.newest()
    found = []
    for name, to in names.items():
        if error := hidden.get(name):
            code = Blocked.exit_code if isinstance(error, Blocked) else Unreachable.exit_code
            found.append(_unreadable(name, to, error, code))
            continue
        progress.step(f"{name}: reading metadata")
        at = came.get(name, to)
        anew = None if name in came else seen.lost.get(name)
        free = name not in came and str(to).casefold() in leaving and not stuck
        there = None if anew is not None or free else held.get(at)
        asked = _Asked(name, to, at, there, clashes.get(name), newest)
        try:
            one, table = _one(ends, asked, options, now, progress)
        except (Unreachable, Blocked) as error:
            if len(chosen) == 1:
                raise
            found.append(_unreadable(name, to, error, error.exit_code))
            continue
        if anew is not None:
            one = _made_anew(one, anew)
        elif name in came:
            one = _renamed(one, at, stuck)
        found.append(replace(one, expiring=expiring(opened, lake, table, there, now)))
    unlisted = (_unlisted(each) for each in not_listed(opened, options))
    return (*found, *(_dropped(name, each) for name, each in gone.items()), *unlisted)


def _unreadable(name: TableName, to: TableName, error: BridgeError, code: int) -> TableStatus:
    return TableStatus(name, to, Standing.UNREADABLE, message=error.message, hint=error.hint, exit_code=code)


def _unlisted(each: Finding) -> TableStatus:
    """A namespace in the place of its tables, of which the source does not tell."""
    name = TableName((each.subject,), "*")
    return TableStatus(
        name, name, Standing.UNREADABLE, message=each.detail, hint=each.hint, exit_code=Blocked.exit_code
    )


def _dropped(name: TableName, each: Lost) -> TableStatus:
    """A table of the target that nothing comes to any more."""
    assert each.there.bookmark is not None
    return TableStatus(name, each.there.name, Standing.DROPPED, held=each.there.bookmark.commit, message=each.why)


def _foreign_change(there: TargetTable) -> str:
    """Who wrote to a table of the target, so that a round neither renames nor drops it."""
    mark = there.bookmark
    return "" if mark is None or mark.maintained else mark.changed_by


def _stuck(ends: Ends, seen: Foreseen) -> str:
    """What keeps the next round from all its renames, which happen at once; "" for nothing."""
    if not seen.moved:
        return ""
    leaving = {str(seen.taken[old].name).casefold() for old in seen.moved}
    leaving |= {str(each.there.name).casefold() for each in seen.lost.values() if _goes(each)}
    for old in seen.moved:
        if changed := _foreign_change(seen.taken[old]):
            return f"{seen.taken[old].name} was changed in the target ({changed}), and renamed at the source"
    for name in ends.target.lookup([seen.names[name] for name in seen.moved.values()]):
        if str(name).casefold() not in leaving:
            return f"{name} exists in the target, and a table was renamed to it at the source"
    return ""


def _goes(each: Lost) -> bool:
    return each.anew and not each.unsure and not _foreign_change(each.there)


def _made_anew(one: TableStatus, each: Lost) -> TableStatus:
    """A table in whose place another one was that the target still has."""
    if each.unsure:
        return replace(one, standing=Standing.UNREADABLE, message=each.unsure, exit_code=Unreachable.exit_code)
    why = f"{each.there.name} in the target is another one: {each.why}"
    if changed := _foreign_change(each.there):
        said = f"{why}, and was changed in the target ({changed})"
        hint = f"release {each.there.name}, or drop it there"
        return replace(one, standing=Standing.CHANGED, message=said, hint=hint, exit_code=Conflict.exit_code)
    if one.exit_code:
        return one
    return replace(one, message=f"{why}; mirror drops that and makes this one anew")


def _renamed(one: TableStatus, at: TableName, stuck: str) -> TableStatus:
    """A table that the target still has under the name `at`."""
    if stuck:
        return replace(one, standing=Standing.CHANGED, message=stuck, exit_code=Conflict.exit_code)
    if one.exit_code:
        return one
    standing = Standing.BEHIND if one.standing is Standing.CURRENT else one.standing
    told = f"; {one.message}" if one.message else ""
    return replace(
        one, standing=standing, message=f"it was renamed at the source; mirror renames {at} to {one.target}{told}"
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A table of the source, its name in the target, the name that it has there until the next round, what the target
    holds of it, whether its name collides with another's, and the time of the target's newest commit."""

    name: TableName
    to: TableName
    at: TableName
    there: TargetTable | None
    clash: Finding | None
    newest: int | None


def _one(ends: Ends, asked: _Asked, options: Options, now: float, progress: ProgressSink) -> tuple[TableStatus, Table]:
    source, held = ends.source.open(asked.name), asked.there
    table = recalled(source, held)
    commits = table.commits
    said = circle(ends, table, asked.to)
    verdict = verdict_of(table, held) if said is None else foreign(said)
    mark = held.bookmark if held is not None else None
    mine = next((each for each in commits if mark is not None and each.id == mark.commit), None)
    behind, seconds = lag_of(table, verdict.base, now)
    found = TableStatus(
        asked.name,
        asked.to,
        verdict.standing,
        newest=commits[-1].id if commits else "",
        newest_time=commits[-1].time if commits else None,
        held=mark.commit if mark is not None else None,
        held_time=mine.time if mine is not None else None,
        behind=behind,
        behind_seconds=seconds,
        message=verdict.message,
        hint=verdict.hint,
        exit_code=verdict.exit_code,
    )
    if verdict.base == len(commits):
        return replace(found, pending_files=0, pending_bytes=0), table
    if verdict.standing not in _COMING:
        return found, table
    return _foretold(ends, asked, source, found, options, now, progress), table


def _foretold(
    ends: Ends,
    asked: _Asked,
    source: SourceTable,
    found: TableStatus,
    options: Options,
    now: float,
    progress: ProgressSink,
) -> TableStatus:
    """What the next round decides of a table that has something to come."""
    held = {} if asked.there is None else {asked.at: asked.there}
    read = partial(read_files, source, asked.there, options, progress)
    plan = decided(read, ends.target, asked.name, asked.at, held, options, progress, asked.clash, asked.newest, True)
    files, size = plan.brings
    if plan.data is not None:
        found = replace(found, pending_files=files, pending_bytes=size if plan.is_sized else None)
    if plan.blockers:
        behind, seconds = left_by(plan, asked.there, now)
        found = replace(found, behind=behind, behind_seconds=seconds)
        first = plan.blockers[0]
        conflict = first.code is Code.TARGET_CONFLICT
        standing, code = (Standing.CHANGED, Conflict) if conflict else (Standing.BLOCKED, Blocked)
        return replace(found, standing=standing, message=first.detail, hint=first.hint, exit_code=code.exit_code)
    if plan.table is None or plan.action is Action.NOTHING:
        return found
    behind, seconds = lag_of(plan.table, len(plan.table.commits) - plan.snapshots - 1, now)
    return replace(found, behind=behind, behind_seconds=seconds)
