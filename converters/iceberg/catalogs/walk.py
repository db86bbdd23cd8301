"""Every namespace of a catalog that tells one level at a time, and calls with an end to their patience."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from bridge.errors import BridgeError, Missing, Unreachable
from converters.iceberg.catalogs import Namespace

__all__ = ["walk", "within"]

Result = TypeVar("Result")


def walk(
    below: Callable[[tuple[str, ...]], list[tuple[str, ...]]], look: Callable[[tuple[str, ...]], Namespace]
) -> Iterator[Namespace]:
    """Namespaces parents first. The top level must be listed; below it what fails is the namespace's own fault.

    A catalog that ignores the parent it is asked for and tells the top level again ends there.
    """
    pending, seen = sorted(below(()), reverse=True), set[tuple[str, ...]]()
    while pending:
        levels = pending.pop()
        if levels in seen:
            continue
        seen.add(levels)
        fault, deeper = "", list[tuple[str, ...]]()
        try:
            deeper = below(levels)
        except Missing:
            pass  # a catalog without nested namespaces knows no such parent
        except BridgeError as error:
            fault = f"namespaces below it: {error.message}"
        pending += sorted(deeper, reverse=True)
        try:
            found = look(levels)
        except BridgeError as error:
            found = Namespace(levels, fault=error.message)
        said = "; ".join(each for each in (found.fault, fault) if each)
        yield Namespace(found.levels, found.tables, found.views, found.others, found.properties, said)


def within(seconds: float, what: str, call: Callable[[], Result]) -> Result:
    """The result of a call; Unreachable when it takes longer. The call is left alone then, it cannot be ended."""
    answers: queue.Queue[tuple[Result | None, BaseException | None]] = queue.Queue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # noqa: BLE001  # handed on as it is, below
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise Unreachable(f"{what} did not answer within {seconds:.0f} seconds", retryable=True) from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # no error: it is the call's own
