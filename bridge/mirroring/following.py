"""Following one source from Python."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from bridge.mirroring import loop
from bridge.mirroring.pair import Pair, Round
from bridge.model.options import Options
from bridge.ports import ProgressSink, Silent

__all__ = ["mirror"]


def mirror(
    source: str,
    target: str,
    options: Options | None = None,
    *,
    interval: float = 30.0,
    once: bool = False,
    on_drop: Literal["keep", "drop"] = "keep",
    stop: threading.Event | None = None,
    told: Callable[[Round], None] | None = None,
    progress: ProgressSink | None = None,
) -> Round | None:
    """Bring the target to where the source is, commit by commit: once, or every `interval` seconds until `stop` is set
    or it cannot succeed any more (somebody else wrote to the target). Gives the last round; `told` hears of each.

    What is wrong with a table is in its outcome, and what kept from looking at any is raised, when that is the end.
    """
    rounds: list[Round] = []

    def heard(made: Round) -> None:
        rounds[:] = [made]
        if told is not None:
            told(made)

    pair = Pair(source, target, options or Options(), interval, on_drop)
    stop = stop or threading.Event()
    loop.mirror((pair,), once=once, jobs=pair.options.jobs, stop=stop, told=heard, progress=progress or Silent())
    if rounds and rounds[0].error is not None and not stop.is_set():
        raise rounds[0].error
    return rounds[0] if rounds else None
