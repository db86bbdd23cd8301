"""Who works in a directory: an owner's file that a living run keeps young, so that no other takes or removes its work.

On one machine the process tells whether a run lives. Elsewhere, and in object stores, only the age of its file does, by
the clock of the storage: each claim is a file of its own, and whoever finds another living one gives way.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bridge.errors import BridgeError, Missing, Overtaken
from converters import storage

__all__ = ["OWNER", "Claim", "claimed"]

OWNER = "owner-"
"""How the names of owners' files begin."""

_BEAT, _STALE = 30.0, 300.0
_TRIES, _ENTRIES = 3, 50


@dataclass(frozen=True, slots=True)
class Claim:
    """A directory that is this run's alone."""

    directory: str
    name: str

    def require(self) -> None:
        """Overtaken when it was taken away, by someone who held this run for dead."""
        if storage.modified(f"{self.directory}/{self.name}") is None:
            raise Overtaken(
                f"{self.directory} was taken by another run, since this one gave no sign of life for minutes",
                hint="run it again",
            )


@contextmanager
def claimed(directory: str) -> Iterator[Claim]:
    """Hold a directory, which is made; Overtaken when another run that lives holds it."""
    claim = Claim(directory, f"{OWNER}{uuid.uuid4().hex}.json")
    ended = threading.Event()
    try:
        _take(claim)
        threading.Thread(target=_beat, args=(claim, ended), daemon=True).start()
        yield claim
    finally:
        ended.set()
        with suppress(BridgeError):
            storage.remove(f"{directory}/{claim.name}")


def _take(claim: Claim) -> None:
    for left in reversed(range(_TRIES)):
        _enter(claim)
        other = _other(claim)
        if other is None:
            return
        storage.remove(f"{claim.directory}/{claim.name}")
        if left:
            time.sleep(random.uniform(0.2, 1.0))  # two that came at once both gave way
    raise Overtaken(
        f"another run is at the same work: {other}", hint=f"wait until it has ended; its sign is in {claim.directory}"
    )


def _enter(claim: Claim) -> None:
    """Our file in the directory, which runs that end remove as long as nothing is in it."""
    for left in reversed(range(_ENTRIES)):
        try:
            storage.make_directory(claim.directory)
            _write(claim)
            return
        except Missing:
            if not left:
                raise
            time.sleep(random.uniform(0.0, 0.02))


def _write(claim: Claim) -> None:
    told = {"machine": _machine(), "host": os.uname().nodename, "pid": os.getpid(), "started": _started(os.getpid())}
    storage.write(f"{claim.directory}/{claim.name}", json.dumps(told).encode(), f".{claim.name}.bridge-tmp")


def _beat(claim: Claim, ended: threading.Event) -> None:
    place = f"{claim.directory}/{claim.name}"
    while not ended.wait(_BEAT):
        with suppress(BridgeError):
            if storage.modified(place) is not None:
                _write(claim)
        if ended.is_set():
            with suppress(BridgeError):
                storage.remove(place)


def _other(claim: Claim) -> str | None:
    """Another run that lives and has a claim; what dead ones left is removed."""
    now = storage.modified(f"{claim.directory}/{claim.name}") or 0
    for name, _ in storage.list_directory(claim.directory):
        if not name.startswith(OWNER) or name == claim.name:
            continue
        place = f"{claim.directory}/{name}"
        seen = storage.modified(place)
        if seen is None:
            continue
        try:
            told = json.loads(storage.read(place, "owner's file"))
        except Missing:
            continue
        except ValueError:
            told = {}
        if _lives(told, (now - seen) / 1e9):
            return f"process {told.get('pid', '?')} on {told.get('host', 'an unknown machine')}"
        storage.remove(place)
    return None


def _lives(told: object, age: float) -> bool:
    if not isinstance(told, dict) or told.get("machine") != _machine():
        return age < _STALE
    started = _started(int(told.get("pid", 0)))
    return started is not None and started == told.get("started")


def _machine() -> str:
    """What tells apart machines, their starts, and the containers on them, whose process ids mean nothing outside."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process started, which tells it from a later one of the same id; None: there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        if os.path.isdir("/proc/self"):
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "unknown"
    return "unknown"
