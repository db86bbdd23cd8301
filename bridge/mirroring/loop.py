"""Round after round: pauses, back-off after trouble, several pairs at once, and an end when it is asked for."""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import monotonic

from bridge.errors import BridgeError, Conflict, UsageError
from bridge.mirroring.aside import LONGEST, Aside, needs_somebody
from bridge.mirroring.pair import Pair, Round
from bridge.mirroring.rounds import catch_up
from bridge.ports import ProgressSink

__all__ = ["mirror"]

_SECOND_CONFLICT = 2
_GRAVEST = (1, 5, 4, 6, 3, 2)
"""Exit codes, gravest first."""


class _Abandoned(Exception):
    """Work that was not being committed yet is given up; the next run takes it up."""


class _UntilAsked:
    """A progress sink through which work in hand learns that it is to end. A commit is never left halfway."""

    def __init__(self, inner: ProgressSink, stop: threading.Event) -> None:
        self._inner, self._stop, self._committing = inner, stop, False

    def step(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Tell it; Abandoned once an end is asked for and nothing is being committed."""
        self._committing = self._committing or what == "committing"
        if self._stop.is_set() and not self._committing:
            raise _Abandoned
        self._inner.step(what, done, total)


@dataclass(order=True, slots=True)
class _Turn:
    """When a pair's next round is due, and how its last ones ended."""

    due: float
    number: int
    pair: Pair = field(compare=False)
    aside: Aside = field(compare=False)
    troubled: int = field(default=0, compare=False)
    conflicts: int = field(default=0, compare=False)
    good: int = field(default=0, compare=False)


def mirror(
    pairs: Sequence[Pair],
    *,
    once: bool,
    jobs: int,
    stop: threading.Event,
    told: Callable[[Round], None],
    progress: ProgressSink,
) -> int:
    """Follow each pair until `stop` is set, or for one round; `told` hears of every round, one at a time.

    A table that fails is tried again after pauses of its own. A pair of which somebody else wrote to the target, or
    whose target is wrong, is not followed any further; when none is left that ends it. Gives the exit code: the gravest
    of the one round, or of what ended a pair.
    """
    pairs = [replace(each, options=replace(each.options, jobs=jobs)) for each in pairs]
    # a catalog file is opened by one at a time in a process, by whatever name it goes
    locks = {_place(each): threading.Lock() for each in pairs}
    telling = threading.Lock()
    codes: list[int] = []

    def one(turn: _Turn) -> Round | None:
        with locks[_place(turn.pair)]:
            try:
                made = catch_up(turn.pair, _UntilAsked(progress, stop), turn.aside.resting(monotonic()))
            except _Abandoned:
                return None
        with telling:
            told(made)
        return made

    waiting = [_Turn(0.0, number, pair, Aside(pair.interval)) for number, pair in enumerate(pairs)]
    running: dict[Future[Round | None], _Turn] = {}
    with ThreadPoolExecutor(max(1, min(jobs, len(pairs)))) as pool:
        while (waiting or running) and not stop.is_set():
            while waiting and waiting[0].due <= monotonic():
                turn = heapq.heappop(waiting)
                running[pool.submit(one, turn)] = turn
            for each in [each for each in running if each.done()]:
                turn = running.pop(each)
                made = each.result()
                if made is None:
                    continue
                turn.aside.note(made, monotonic())
                if once or _ends(turn, made):
                    codes.append(made.exit_code)
                    continue
                heapq.heappush(waiting, _next(turn, made))
            stop.wait(0.02 if running else max(0.0, min(0.5, waiting[0].due - monotonic())) if waiting else 0.0)
        for each in running:
            made = each.result()
            if made is not None and (once or needs_somebody(made)):
                codes.append(made.exit_code)
    return next((code for code in _GRAVEST if code in codes), 0)


def _place(pair: Pair) -> str:
    return os.path.realpath(pair.target.rpartition(":")[2])


def _ends(turn: _Turn, made: Round) -> bool:
    """Whether a pair is given up: what somebody else wrote does not go away, and neither does a wrong request."""
    if isinstance(made.error, UsageError):
        return turn.good == 0  # what was right once is gone for now
    turn.good += made.error is None
    if needs_somebody(made):
        return True
    lasting = isinstance(made.error, Conflict) and not made.error.passes_by_itself
    turn.conflicts = turn.conflicts + 1 if lasting else 0
    return turn.conflicts >= _SECOND_CONFLICT


def _next(turn: _Turn, made: Round) -> _Turn:
    trouble: BridgeError | None = made.error
    turn.troubled = turn.troubled + 1 if trouble else 0
    pause = turn.pair.interval
    if trouble is not None:
        # a lock is free again soon, a source that is gone may take longer
        first = 1.0 if trouble.passes_by_itself else max(1.0, pause)
        pause = min(LONGEST, first * 2.0 ** min(turn.troubled - 1, 10))
    turn.due = monotonic() + pause
    return turn
