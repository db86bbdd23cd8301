"""What a random walk is to do: drawn by hypothesis, all of it before anything happens.

A walk that fails is told as hypothesis tells it: the plan, and a line `@reproduce_failure(...)`. To go the same way
again put that line above `@given` in `walked`, and run the test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

__all__ = ["Plan", "Step", "Turn", "plans", "walked"]


@dataclass(frozen=True, slots=True)
class Step:
    """An operation at the source."""

    kind: str
    number: int
    """Seeds what the kind leaves open."""
    then: str = ""
    """What happens to those who mirror meanwhile: `kill 0`, `kill 1`, or `refuse` while the operation is done."""
    seconds: float = 0.0
    """The pause afterwards."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Operations that nobody mirrors until they are done (`alone`), or two mirrors all the time."""

    alone: bool
    steps: tuple[Step, ...]
    then: str = ""
    """Before the look that catches up with what was done alone: `kill` ends one after so many seconds, `pair` has two
    at once, `refuse` has one while the target refuses commits for so many seconds."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A walk; `number` seeds the choices that are no step's."""

    number: int
    turns: tuple[Turn, ...]


_NUMBERS = st.integers(0, 2**32 - 1)
_BESIDE = st.sampled_from(("",) * 14 + ("kill 0", "kill 1") * 2 + ("refuse",))
_PAUSES = st.sampled_from((0.0, 0.0, 0.05, 0.3))
_TENTHS = st.integers(3, 25)
_REFUSED = st.integers(5, 60)


def plans(kinds: Sequence[str], steps: int) -> st.SearchStrategy[Plan]:
    """Plans of so many operations; kinds that are there more than once come more often."""
    return _plans(st.sampled_from(kinds), steps).filter(_is_varied)


@st.composite
def _plans(draw: st.DrawFn, kinds: st.SearchStrategy[str], steps: int) -> Plan:
    turns: list[Turn] = []
    left = steps
    while left:
        alone = not turns or draw(st.sampled_from((True, True, True, False, False)))
        count = min(left, draw(st.integers(2, 8) if alone else st.integers(6, 16)))
        left -= count
        if alone:
            made = tuple(Step(draw(kinds), draw(_NUMBERS)) for _ in range(count))
            then = draw(st.sampled_from(("kill", "kill", "pair", "", "refuse")))
            turns.append(Turn(True, made, then, draw(_REFUSED if then == "refuse" else _TENTHS) / 10))
        else:
            turns.append(Turn(False, tuple(_beside(draw, kinds) for _ in range(count))))
    return Plan(draw(_NUMBERS), tuple(turns))


def _beside(draw: st.DrawFn, kinds: st.SearchStrategy[str]) -> Step:
    then = draw(_BESIDE)
    return Step(draw(kinds), draw(_NUMBERS), then, draw(_REFUSED) / 10 if then == "refuse" else draw(_PAUSES))


def _is_varied(plan: Plan) -> bool:
    """Not the simplest of all plans, which hypothesis tries before any other."""
    steps = [step for turn in plan.turns for step in turn.steps]
    return (
        {turn.alone for turn in plan.turns} == {True, False}
        and len({step.kind for step in steps}) > 4
        and len({step.number for step in steps}) > len(steps) // 2
    )


def walked(plan: st.SearchStrategy[Plan], walk: Callable[[Plan], None], *, same: bool) -> None:
    """Go one way: always the same, or always another one."""
    failed: list[BaseException] = []

    @settings(
        max_examples=1,
        deadline=None,
        phases=(Phase.generate,),
        database=None,
        derandomize=same,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(plan)
    def once(plan: Plan) -> None:
        if failed:  # hypothesis asks again, for its report: no walk is that cheap
            raise failed[0]
        try:
            walk(plan)
        except BaseException as error:
            failed.append(error)
            raise

    once()
