"""Tables of a pair that failed: each is tried again after longer and longer pauses of its own; none holds up others."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.mirroring.pair import TROUBLE, Round, State, TableOutcome
from bridge.model.table import TableName

__all__ = ["LONGEST", "Aside", "needs_somebody"]

LONGEST = 600.0
"""The longest pause in seconds."""
_LASTING = frozenset({State.CONFLICT, State.UNVERIFIED})
"""What does not go away by itself, and ends a pair."""


@dataclass(frozen=True, slots=True)
class _Table:
    outcome: TableOutcome
    due: float
    """When it is tried again."""
    failed: int


class Aside:
    """What a pair's rounds left in trouble."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._tables: dict[TableName, _Table] = {}

    def resting(self, now: float) -> tuple[TableOutcome, ...]:
        """The tables that a round at this time leaves out."""
        return tuple(each.outcome for each in self._tables.values() if each.due > now)

    def note(self, made: Round, now: float) -> None:
        """Learn what a round did with the tables that it looked at."""
        if made.error is not None:
            return
        left = {each.source for each in made.aside}
        before = {name: each.failed for name, each in self._tables.items()}
        self._tables = {name: each for name, each in self._tables.items() if name in left}
        for each in made.tables:
            if each.state in TROUBLE:
                failed = before.get(each.source, 0) + 1
                pause = min(LONGEST, max(1.0, self._interval) * 2.0 ** min(failed - 1, 10))
                self._tables[each.source] = _Table(each, now + pause, failed)


def needs_somebody(made: Round) -> bool:
    """Whether a target was written to by somebody else, or is wrong: a pair goes no further then."""
    return any(each.state in _LASTING for each in made.tables)
