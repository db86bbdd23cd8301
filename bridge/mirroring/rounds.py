"""One round of a pair: what the source did since the last one, each commit as one of the target's."""

from __future__ import annotations

import time
from dataclasses import replace

from bridge.app import Ends, Report, carry_out, open_ends
from bridge.errors import BridgeError
from bridge.mirroring.expiry import Danger, Expiring, expiring
from bridge.mirroring.names import follow_names
from bridge.mirroring.pair import Pair, Round, State, TableOutcome
from bridge.mirroring.verdict import left_by
from bridge.model.findings import Code
from bridge.model.options import Options
from bridge.planning.plan import Action, TablePlan
from bridge.planning.selection import is_wanted, literal, not_listed, unmatched, waits
from bridge.ports import ProgressSink

__all__ = ["catch_up"]

_KEPT = "history.expire.max-snapshot-age-ms"

_TOLD = frozenset({Code.HISTORY_DIVERGED, Code.HISTORY_REBUILT, Code.HISTORY_TRIMMED})
"""What became of history that the target had, or of some that it could not have."""
_STATES = {
    Code.TARGET_CONFLICT: State.CONFLICT,
    Code.TABLE_UNREADABLE: State.UNREACHABLE,
    Code.TABLE_GONE: State.UNREACHABLE,
}


def catch_up(pair: Pair, progress: ProgressSink, aside: tuple[TableOutcome, ...] = ()) -> Round:
    """Bring the target to where the source is now; tables that are `aside` are left out. What is wrong with one table
    is told in its outcome and stops no other; what keeps from all of them is the round's error."""
    began, clock = time.time(), time.monotonic()
    exclude = (*pair.options.exclude, *(literal(each.source) for each in aside))
    options = replace(pair.options, follow=True, exclude=exclude)
    try:
        ends = open_ends(pair.source, pair.target, options)
        with ends.kept_open():
            tables, idle = _done(pair, ends, options, aside, progress)
            unlisted = tuple(not_listed(ends.source, options))
    except BridgeError as error:
        return Round(pair, began, time.monotonic() - clock, error=error, aside=aside)
    return Round(pair, began, time.monotonic() - clock, tables, idle=idle, aside=aside, unlisted=unlisted)


def _done(
    pair: Pair, ends: Ends, options: Options, aside: tuple[TableOutcome, ...], progress: ProgressSink
) -> tuple[tuple[TableOutcome, ...], tuple[str, ...]]:
    """What became of each table, and the patterns that match none."""
    followed = follow_names(pair, ends, options, progress)
    there = ends.source.tables()
    beside = ends.source.objects().objects if options.tables else ()
    idle = tuple(unmatched((*there, *(each.name for each in beside)), options))
    left = None if waits(there, idle, options) else followed.options
    if left is not None and aside and not any(is_wanted(name, left) for name in there):
        left = None
    report = None if left is None else carry_out(ends, left, progress)
    return (*followed.outcomes, *(_outcomes(report, ends, time.time()) if report is not None else ())), idle


def _outcomes(report: Report, ends: Ends, now: float) -> list[TableOutcome]:
    written = {each.name: each for each in report.result.tables}
    found = []
    by_table: dict[str, list[str]] = {}
    for said in report.faults:
        whose = next((str(each.target) for each in report.plan.tables if said.what.startswith(f"{each.target}: ")), "")
        by_table.setdefault(whose, []).append(f"{said.what}: {said.fault}")
    for each in report.plan.tables:
        own = by_table.get(str(each.target), [])
        made = written.get(each.target)
        outcome = _standing(each, report, now)
        if made is not None:
            faults = "; ".join(own + by_table.get("", []))
            outcome = replace(
                outcome,
                state=State.UNVERIFIED if faults else State.APPLIED,
                commits=made.snapshots,
                files=made.files,
                bytes=each.brings[1],
                message=faults or _said(each),
            )
        elif own and outcome.state is State.CURRENT:  # as an earlier run left it
            outcome = replace(outcome, state=State.UNVERIFIED, message="; ".join(own))
        if not outcome.message:
            outcome = replace(outcome, message=_hurry(each, report, now))
        found.append(replace(outcome, expiring=_expiring(each, report, ends, made is not None, now)))
    return found


def _expiring(each: TablePlan, report: Report, ends: Ends, written: bool, now: float) -> Expiring | None:
    """What older snapshots of the target are going to lose, as the target is after the round."""
    if each.table is None:
        return None
    there = (ends.target.lookup([each.target]) if written else report.held).get(each.target)
    try:
        found = expiring(ends.source, ends.target, each.table, there, now)
    except BridgeError:  # what was asked for is done, and the next round asks again
        return None
    return None if found is None or found.danger is Danger.LATER else found


def _said(each: TablePlan) -> str:
    # what a source says of its own history it says in every round; that it went another way is the round's word
    known = each.table.findings if each.table is not None and each.action is Action.APPEND else ()
    own = [said for said in each.findings if said.code is Code.HISTORY_DIVERGED or said not in known]
    return "; ".join(said.detail for said in own if said.code in _TOLD)


def _hurry(each: TablePlan, report: Report, now: float) -> str:
    """What to say where the source may expire what the target has not taken yet."""
    there = report.held.get(each.target)
    text = each.table.properties.get(_KEPT, "") if each.table is not None else ""
    if each.table is None or there is None or there.bookmark is None or not text.isdecimal():
        return ""
    ids = [commit.id for commit in each.table.commits]
    place = ids.index(there.bookmark.commit) + 1 if there.bookmark.commit in ids else 0
    lag = now - each.table.commits[place].time / 1_000_000 if place < len(ids) else 0.0
    kept = int(text) / 1000
    if lag <= kept:
        return ""
    return (
        f"the source keeps snapshots for {kept:.0f} s ({_KEPT}) and this one was {lag:.0f} s behind: mirror it sooner"
    )


def _standing(each: TablePlan, report: Report, now: float) -> TableOutcome:
    """How a table stands after the round, from what was held before it where nothing was written."""
    there = report.held.get(each.target)
    mark = None if there is None else there.bookmark
    commits = each.table.commits if each.table is not None else ()
    if each.action is not Action.BLOCKED:
        newest = commits[-1] if commits else None
        state, said = State.CURRENT, ""
        if mark is not None and mark.changed_by and not mark.maintained:
            state, said = State.CONFLICT, f"somebody else wrote to it: {mark.changed_by}"
        commit, time_ = (newest.id, newest.time) if newest else ("", None)
        return TableOutcome(each.source, each.target, state, commit, time_, message=said)
    blocker = each.blockers[0]
    held_commit = mark.commit if mark is not None else ""
    behind, seconds = left_by(each, there, now)
    return TableOutcome(
        each.source,
        each.target,
        _STATES.get(blocker.code, State.BLOCKED),
        held_commit,
        next((commit.time for commit in commits if commit.id == held_commit), None),
        behind=behind,
        behind_seconds=seconds,
        message=str(blocker).removeprefix(f"{each.source}: "),
    )
