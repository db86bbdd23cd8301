"""Every deliberate error, each with the exit code that the command line ends with.

BridgeError (1)
├── UsageError (2)        the request itself makes no sense
├── Blocked (3)           the plan says no; nothing was written
├── VerificationFailed (4)  the commit stands and does not hold what was promised
├── Conflict (5)          somebody else changed, or holds, what we need
│   ├── Overtaken         it passes by itself: run again, or wait
│   └── Expired           the source forgot what the target's state was made from
└── Unreachable (6)       the source or target is not there or cannot be read
    ├── Missing           a file that is referred to does not exist
    ├── Unanswered        it may well be there: access was denied, or nobody answered
    └── Undecided         a commit was sent, and whether it was made, or is made yet, nobody said
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "Blocked",
    "BridgeError",
    "Conflict",
    "Expired",
    "Missing",
    "Overtaken",
    "Unanswered",
    "Undecided",
    "Unreachable",
    "UsageError",
    "VerificationFailed",
    "about",
]


class BridgeError(Exception):
    """What went wrong with which thing, and in `hint` what a person can do about it.

    `retryable`: the same call can succeed later with nothing changed by hand.
    """

    exit_code = 1
    retryable = False
    table = ""
    """The table of the target that it is about, where it keeps from no other."""

    def __init__(self, message: str, *, hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if retryable is not None:
            self.retryable = retryable

    @property
    def passes_by_itself(self) -> bool:
        """Whether a later try, or a new plan, can succeed with nothing changed by hand."""
        return self.retryable

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(BridgeError):
    """The request contradicts itself, or names something that does not exist."""

    exit_code = 2


class Blocked(BridgeError):
    """The plan forbids the write; `code` is the finding's code."""

    exit_code = 3

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class VerificationFailed(BridgeError):
    """The commit is there, but the target does not answer as the source does."""

    exit_code = 4


class Conflict(BridgeError):
    """Somebody else holds the lock, or changed what the plan was made for."""

    exit_code = 5


class Overtaken(Conflict):
    """Somebody else was first, or holds a lock for now."""

    passes_by_itself = True


class Expired(Conflict):
    """The source does not know any more what the target's state was made from."""


class Unreachable(BridgeError):
    """A file, directory or server that is needed is not there or does not answer."""

    exit_code = 6


class Missing(Unreachable):
    """A file that is referred to does not exist."""


class Unanswered(Unreachable):
    """It may well be there: access was denied, or nobody answered; never a reason to do without it."""


class Undecided(Unreachable):
    """A commit was sent and not answered: it may have been made, or be made yet, so what it names has to stay."""


@contextmanager
def about(table: object) -> Iterator[None]:
    """What goes wrong in here concerns one table of the target."""
    try:
        yield
    except BridgeError as error:
        error.table = error.table or str(table)
        raise
