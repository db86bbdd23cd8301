"""Batches run on Spark: only those that are not done, one Spark task each, watched by their manifests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import pyarrow as pa

from bridge.errors import Unreachable
from bridge.model.paths import scheme
from converters.spark.batches import SHARE, Batch, Staging, Work, error_of, perform
from converters.spark.session import Engine

__all__ = ["Job", "Progress", "Watch", "grouped", "run_batches"]


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work as JSON, and how many bytes it reads."""

    text: str
    size: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How many files and bytes of the sources are done; `reused` files were done by an earlier run."""

    files: int
    bytes: int
    all_files: int
    all_bytes: int
    reused: int


Watch = Callable[[Progress], None]
"""Called in the caller's thread whenever a batch is done."""

_BATCH_BYTES, _LEAST_BYTES, _SHARES = 128 << 20, 8 << 20, 64
_BATCH_FILES = 64
_WAIT, _WAIT_REMOTE = 0.1, 2.0
_PATIENCE = 5.0
"""How long, in seconds, an interrupted run waits for what is being written."""


def grouped(jobs: Sequence[Job]) -> list[tuple[Batch, int]]:
    """Batches in the given order, with their bytes; the same jobs always give the same batches."""
    found: list[tuple[Batch, int]] = []
    held: list[Job] = []
    # little work is still shared among executors, whose number is not asked: another run finds the same batches
    limit = min(_BATCH_BYTES, max(_LEAST_BYTES, sum(job.size for job in jobs) // _SHARES))
    for job in jobs:
        if held and (len(held) == _BATCH_FILES or sum(each.size for each in held) + job.size > limit):
            found.append((Batch(tuple(each.text for each in held)), sum(each.size for each in held)))
            held = []
        held.append(job)
    if held:
        found.append((Batch(tuple(each.text for each in held)), sum(each.size for each in held)))
    return found


def run_batches(
    engine: Engine,
    staging: Staging,
    batches: Sequence[tuple[Batch, int]],
    work: Work,
    intact: Callable[[pa.Table], bool],
    watch: Watch | None = None,
) -> list[pa.Table]:
    """The rows of every batch, in order. What `intact` denies of an earlier run is done again.

    When a batch fails the others are stopped and its error is raised; what is done stays done. So it does at Ctrl-C.
    """
    done = staging.prepare([batch for batch, _ in batches])
    for name in sorted(done):
        if not intact(staging.rows(name)):
            staging.forget(name)
    done = staging.prepare([batch for batch, _ in batches])
    todo = [batch.name for batch, _ in batches if batch.name not in done]
    counted = {batch.name: (len(batch.items), size) for batch, size in batches}
    meter = _Meter(counted, frozenset(done), watch)
    meter.tell(done)
    if todo:
        _run(engine, staging, todo, work, meter)
    rows = [staging.rows(batch.name) for batch, _ in batches]
    for (batch, _), made in zip(batches, rows, strict=True):
        if batch.name not in done and not intact(made):
            raise _apart("files that were written are not there", ())
    return rows


@dataclass(slots=True)
class _Meter:
    counted: dict[str, tuple[int, int]]
    reused: frozenset[str]
    watch: Watch | None
    told: int = -1

    def tell(self, done: set[str]) -> None:
        known = [self.counted[name] for name in done if name in self.counted]
        if self.watch is None or len(known) == self.told:
            return
        self.told = len(known)
        every = self.counted.values()
        self.watch(
            Progress(
                sum(files for files, _ in known),
                sum(size for _, size in known),
                sum(files for files, _ in every),
                sum(size for _, size in every),
                sum(self.counted[name][0] for name in self.reused),
            )
        )


class _Kept:
    """Keeps what is raised in a thread, whatever it is, for the one that waits for it."""

    error: BaseException | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        self.error = error
        return True


def _apart(what: str, hosts: Sequence[str]) -> Unreachable:
    where = ", ".join(hosts) or "this machine"
    return Unreachable(f"{what}: executors on {where} wrote to a directory of their own", hint=SHARE)


def _run(engine: Engine, staging: Staging, names: list[str], work: Work, meter: _Meter) -> None:
    root, tag = staging.root, f"bridge-{os.getpid()}-{id(names)}"
    host = os.uname().nodename

    def each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            mine = [names[number] for number in batch.column(0).to_pylist()]
            faults = [perform(root, name, work) for name in mine]
            hosts = [os.uname().nodename] * len(mine)
            yield pa.RecordBatch.from_pydict({"batch": mine, "host": hosts, "fault": faults})

    ran: list[list[tuple[object, ...]]] = []
    kept = _Kept()

    def job() -> None:
        with kept:
            ran.append(engine.each(len(names), each, "batch string, host string, fault string", tag))

    engine.session  # noqa: B018  # started in this thread: an error of the start is raised here
    thread = threading.Thread(target=job, name=tag, daemon=True)
    thread.start()
    pause = _WAIT_REMOTE if scheme(root) else _WAIT
    try:
        while thread.is_alive():
            thread.join(pause)
            done, failed = staging.ended()
            meter.tell(done)
            if failed:
                engine.cancel(tag)
                thread.join()
                raise staging.error(min(failed))
    except KeyboardInterrupt:
        engine.cancel(tag)
        thread.join(_PATIENCE)
        raise
    if kept.error is not None:
        raise kept.error
    if faults := [str(fault) for rows in ran for _, _, fault in rows if fault]:
        raise error_of(faults[0])
    done, failed = staging.ended()
    meter.tell(done)
    if failed:
        raise staging.error(min(failed))
    if missing := sorted(set(names) - done):
        hosts = sorted({str(place) for rows in ran for _, place, _ in rows} - {host})
        raise _apart(f"{len(missing)} finished batches are not in {root}", hosts)
