"""Tables of a pair that failed: each is tried again after longer and longer pauses of its own; none holds up others."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.mirroring.pair import TROUBLE, Round, State, TableOutcome
from bridge.model.table import TableName

__all__ = ["LONGEST", "Aside"]

LONGEST = 600.0
"""The longest pause in seconds."""
LASTING = frozenset({State.CONFLICT, State.UNVERIFIED})
"""What does not go away by itself."""


@dataclass(frozen=True, slots=True)
class _Table:
    outcome: TableOutcome
    due: float
    """When it is tried again; never, when what was written to it does not hold."""
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
                due = float("inf") if each.state is State.UNVERIFIED else now + pause
                self._tables[each.source] = _Table(each, due, failed)

    def is_all(self, made: Round) -> bool:
        """Whether no table of a round is left that could go on."""
        every = [each.state for each in (*made.tables, *made.aside) if each.state is not State.DROPPED]
        return bool(every) and LASTING.issuperset(every)

    @property
    def exit_code(self) -> int:
        """What to end with for tables that need somebody."""
        states = {each.outcome.state for each in self._tables.values()}
        return next((code for state, code in TROUBLE.items() if state in states & LASTING), 0)
