"""A long walk of a source that is mirrored meanwhile: mirrors that run two at a time and are killed, readers that never
stop, and a judge who is asked about every mirrored state once it is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from bridge.errors import BridgeError
from bridge.mirroring.status import Standing, status
from bridge.model.options import Options
from tests.support import ROOT
from tests.walk_plan import Plan, Step, Turn

__all__ = ["Course", "Readers", "process", "walk"]

_PATIENCE = 120.0
_START = 0.7
"""Seconds until a process of ours looks at a target."""


class Course(Protocol):
    """One direction: what steps its source takes, and how its target is judged."""

    source: str
    target: str
    options: Options

    def do(self, step: Step) -> None:
        """Something happens at the source."""
        ...

    def refusing(self) -> AbstractContextManager[None]:
        """The target refuses commits meanwhile, and answers readers."""
        ...

    def arguments(self) -> list[str]:
        """Options of the command line."""
        ...

    def reader(self) -> list[str] | None:
        """The command of a process that reads the target for ever; None where nobody else may open it."""
        ...

    def check(self, alone: bool) -> list[str]:
        """What is wrong since the last time, when everything was caught up with; `alone`: nobody mirrored meanwhile."""
        ...

    def check_read(self, told: Sequence[dict[str, Any]]) -> list[str]:
        """What is wrong with the answers that one reader got, in their order."""
        ...

    def finish(self) -> list[str]:
        """What is wrong with any mirrored state, and with their number."""
        ...

    @property
    def judged(self) -> int:
        """How many mirrored states were found right."""
        ...


def process(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """A Python process that finds us."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *arguments], text=True, cwd=ROOT, env=env, **more)


class Readers:
    """Processes that ask the target all the time; what they were told is in files of theirs."""

    def __init__(self, course: Course, folder: Path, count: int) -> None:
        self._course, command = course, course.reader()
        self._stop = folder / "stop-reading"
        self._files = [folder / f"read-{number}.jsonl" for number in range(count if command else 0)]
        self._running = [process(*(command or ()), str(each), str(self._stop)) for each in self._files]

    def wrong(self) -> list[str]:
        """What was answered otherwise than it was mirrored, up to now."""
        said = []
        for file in self._files:
            lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
            said += self._course.check_read([json.loads(line) for line in lines])
        return said

    def end(self) -> list[str]:
        """The same after the last question."""
        self._stop.touch()
        codes = [each.wait(60) for each in self._running]
        silent = [each.name for each in self._files if not each.stat().st_size]
        return [*self.wrong(), *(f"a reader ended with {each}" for each in codes if each), *silent]

    def close(self) -> None:
        for each in self._running:
            each.kill()
            each.wait()


@contextmanager
def _mirrors(course: Course, folder: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Mirrors that go on until they are told to stop, each with a file for what it says."""
    said = [folder / f"mirror-{number}.log" for number in range(count)]
    running: list[subprocess.Popen[str]] = []
    try:
        for each in said:
            running.append(_started(course, each, "--interval", "1s"))
        yield running
        for each in running:
            each.send_signal(signal.SIGTERM)
        codes = [each.wait(_PATIENCE) for each in running]
        text = "".join(each.read_text() for each in said)
        assert codes == [0] * count and "Traceback" not in text, (codes, text[-4000:])
    finally:
        for each in running:
            each.kill()
            each.wait()


def _started(course: Course, said: Path, *more: str) -> subprocess.Popen[str]:
    with said.open("a") as log:
        return process("-m", "bridge", "mirror", course.source, course.target, *course.arguments(), *more, stderr=log)


def _settled(course: Course) -> bool:
    """Whether the target has all that the source has, as `status` tells it."""
    with suppress(BridgeError):  # somebody is at it
        found = status(course.source, course.target, course.options, now=time.time())
        stays = {Standing.CURRENT} if "drop" in course.arguments() else {Standing.CURRENT, Standing.DROPPED}
        return all(each.standing in stays for each in found)
    return False


def _alone(course: Course, folder: Path, turn: Turn) -> None:
    """One look at what was done, after one that was killed or refused, or while another one looks."""
    for step in turn.steps:
        course.do(step)
    log = folder / "round.log"
    match turn.then:
        case "kill":
            one = _started(course, log, "--once")
            with suppress(subprocess.TimeoutExpired):
                one.wait(turn.seconds)
            one.kill()
            one.wait()
        case "refuse":
            with course.refusing():
                one = _started(course, log, "--once")
                with suppress(subprocess.TimeoutExpired):
                    one.wait(_START + turn.seconds)
            code = one.wait(_PATIENCE)
            assert code in (0, 5, 6), (code, log.read_text()[-4000:])
        case "pair":
            both = [_started(course, log, "--once") for _ in range(2)]
            codes = sorted(each.wait(_PATIENCE) for each in both)
            assert codes in ([0, 0], [0, 5]), (codes, log.read_text()[-4000:])
        case _:
            pass
    log.write_text("")
    code = _started(course, log, "--once").wait(_PATIENCE)
    assert code == 0, (code, log.read_text()[-4000:])


def _together(course: Course, folder: Path, turn: Turn) -> None:
    """Two mirrors run while the source goes on; now and then one of them is killed and started again, or refused."""
    with _mirrors(course, folder, 2) as both:
        for step in turn.steps:
            with course.refusing() if step.then == "refuse" else nullcontext():
                course.do(step)
                time.sleep(step.seconds)
            if step.then.startswith("kill"):
                number = int(step.then[-1])
                both[number].kill()
                both[number].wait()
                both[number] = _started(course, folder / f"mirror-{number}.log", "--interval", "1s")

        give_up = time.monotonic() + _PATIENCE
        while not _settled(course):
            if time.monotonic() > give_up or all(each.poll() is not None for each in both):
                text = "".join(each.read_text()[-2000:] for each in folder.glob("mirror-*.log"))
                raise AssertionError(f"the mirrors did not catch up: {text}")
            time.sleep(0.2)


def walk(course: Course, folder: Path, plan: Plan, readers: int = 2) -> list[str]:
    """Every fault of a life: by turns the source and its mirrors go one after the other, and at once. Readers begin
    when there is something to read."""
    folder.mkdir()
    reading = None
    try:
        for number, turn in enumerate(plan.turns):
            (_alone if turn.alone else _together)(course, folder, turn)
            reading = reading or Readers(course, folder, readers)
            if said := [*reading.wrong(), *course.check(turn.alone)]:
                return [f"{each} (after turn {number})" for each in said]
        assert reading is not None
        said = [*reading.end(), *course.finish()]
        print(f"{course.judged} mirrored states")
        return said
    finally:
        if reading:
            reading.close()
