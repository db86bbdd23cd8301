"""What is mirrored, and what came of one round of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal

from bridge.errors import Blocked, BridgeError
from bridge.mirroring.expiry import Expiring
from bridge.model.findings import Finding
from bridge.model.options import Options
from bridge.model.secrets import shown
from bridge.model.table import TableName

__all__ = ["TROUBLE", "Pair", "Round", "State", "TableOutcome"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A source and a target, by their locators; `interval` is the pause between two rounds in seconds."""

    source: str = field(repr=False)
    target: str = field(repr=False)
    options: Options = field(default_factory=Options)
    interval: float = 30.0
    on_drop: Literal["keep", "drop"] = "keep"
    """What becomes of a table of the target whose source was dropped."""
    name: str = ""
    """What people call it."""

    @property
    def label(self) -> str:
        """Its name, or else both locators as they may be shown."""
        return self.name or f"{shown(self.source)} -> {shown(self.target)}"


class State(Enum):
    """What a round did with a table."""

    CURRENT = "current"
    APPLIED = "applied"
    DROPPED = "dropped"
    BLOCKED = "blocked"
    CONFLICT = "conflict"
    UNREACHABLE = "unreachable"
    UNVERIFIED = "unverified"


TROUBLE = MappingProxyType({State.CONFLICT: 5, State.UNVERIFIED: 4, State.UNREACHABLE: 6, State.BLOCKED: 3})
"""What a table can be in trouble with, gravest first, and the exit code that tells it."""


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """One table after a round.

    `commit` is the source's commit that the target holds now, `commit_time` its time in microseconds from 1970;
    `behind` and `behind_seconds` are what is still to come: commits, and the age of the oldest of them in seconds;
    None is unknown.
    `commits`, `files` and `bytes` are what the round brought; `message` says what is wrong, `expiring` which files the
    source may delete that older snapshots of the target use.
    """

    source: TableName
    target: TableName
    state: State
    commit: str = ""
    commit_time: int | None = None
    behind: int | None = 0
    behind_seconds: float | None = 0.0
    commits: int = 0
    files: int = 0
    bytes: int = 0
    message: str = ""
    expiring: Expiring | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One look at a pair: when it began (seconds from 1970), how long it took, and each table; `idle` are the patterns
    of its tables that match none for now, `error` is what kept it from looking at any; `aside` are tables as an earlier
    round left them, which are not tried again yet, `unlisted` the namespaces whose tables the source could not tell."""

    pair: Pair
    began: float
    seconds: float
    tables: tuple[TableOutcome, ...] = ()
    error: BridgeError | None = None
    idle: tuple[str, ...] = ()
    aside: tuple[TableOutcome, ...] = ()
    unlisted: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int:
        """The gravest of its tables: 5 conflict, 4 not verified, 6 unreachable, 3 blocked, also for a namespace, else
        0."""
        if self.error is not None:
            return self.error.exit_code
        states = {each.state for each in (*self.tables, *self.aside)}
        return next(
            (code for state, code in TROUBLE.items() if state in states), Blocked.exit_code if self.unlisted else 0
        )
