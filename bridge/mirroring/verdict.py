"""How a table of a target stands to that of its source, and how much is to come; no file is read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bridge.errors import Blocked, Conflict
from bridge.model.findings import Finding
from bridge.model.options import Options
from bridge.model.table import Table
from bridge.planning.onward import base_of
from bridge.planning.plan import TablePlan
from bridge.planning.planner import definition_of
from bridge.ports import TargetTable

__all__ = ["Standing", "Verdict", "foreign", "lag_of", "left_by", "verdict_of"]


class Standing(Enum):
    """How a table of the target stands to that of the source."""

    CURRENT = "current"
    BEHIND = "behind"
    ABSENT = "absent"
    """Not migrated yet."""
    CHANGED = "changed"
    """Somebody else wrote to the target's table."""
    DIVERGED = "diverged"
    """The source no longer has the commit that the target holds."""
    FOREIGN = "foreign"
    """The target's table of that name is not from this source."""
    BLOCKED = "blocked"
    """Something has to be done about it before it can go on."""
    UNREADABLE = "unreadable"
    DROPPED = "dropped"
    """The source has no table of that name any more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`base` is the commit index that the target holds, the number of commits when nothing is to come, None when that
    cannot be told."""

    standing: Standing
    base: int | None
    message: str = ""
    hint: str = ""
    exit_code: int = 0


def verdict_of(table: Table, held: TargetTable | None) -> Verdict:
    """What the planner would start from."""
    if held is None:
        return Verdict(Standing.ABSENT, -1, "not migrated yet")
    changed = held.bookmark.changed_by if held.bookmark is not None else ""
    try:
        base = base_of(table, held, definition_of(table), Options())
    except Conflict as error:
        ids = [each.id for each in table.commits]
        place = ids.index(held.bookmark.commit) if held.bookmark and held.bookmark.commit in ids else None
        if changed.startswith("dropped_table"):
            place = None
        elif place == len(ids) - 1:
            place = len(ids)
        if not changed and not table.imported:
            return Verdict(
                Standing.DIVERGED, place, error.message, "mirror follows it by a difference; migrate does not"
            )
        return Verdict(Standing.CHANGED, place, error.message, error.hint, error.exit_code)
    if isinstance(base, Finding):
        return foreign(base)
    if base == len(table.commits):
        if changed:
            said = f"changed in the target by {changed}; nothing is to come"
            rearranged = held.bookmark is not None and held.bookmark.maintained
            return Verdict(Standing.CHANGED, base, said, exit_code=0 if rearranged else Conflict.exit_code)
        return Verdict(Standing.CURRENT, base)
    kept = "" if base < len(table.commits) - 1 else "no commit is to come, but what the table says of itself changed"
    return Verdict(Standing.BEHIND, base, kept)


def foreign(said: Finding) -> Verdict:
    return Verdict(Standing.FOREIGN, None, said.detail, said.hint, Blocked.exit_code)


def lag_of(table: Table, base: int | None, now: float) -> tuple[int | None, float | None]:
    """What is to come after the `base` of a verdict: commits, and the age of the oldest in seconds; None is unknown.
    `now` is in seconds from 1970."""
    if base is None:
        return None, None
    if base == len(table.commits):
        return 0, 0.0
    coming = table.commits[base + 1 :]
    oldest = coming[0].time if coming else table.updated
    return len(coming), max(0.0, now - oldest / 1_000_000)


def left_by(plan: TablePlan, there: TargetTable | None, now: float) -> tuple[int | None, float | None]:
    """What is to come of a table that a round leaves as it was."""
    return (None, None) if plan.table is None else lag_of(plan.table, verdict_of(plan.table, there).base, now)
