"""Batches of work that survive: what is done is marked by a manifest, written last and by rename.

    STAGING/<plan id>/batch-<digest>.json    what is to be done
    STAGING/<plan id>/batch-<digest>.arrow   done: the rows that came out of it
    STAGING/<plan id>/batch-<digest>.failed  why not; forgotten when it is tried again

The digest is of the work itself, so a second run with the same plan finds what is done, whoever grouped it, and a
changed task is done anew. Everything else that a killed run leaves is a file under its final name, which is written
again with the same content, or a temporary one, which the next run removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from bridge import errors
from bridge.errors import BridgeError, Unreachable
from converters import storage
from converters.spark.writing import TEMPORARY

__all__ = ["SHARE", "Batch", "Staging", "Work", "error_of", "perform"]

Work = Callable[[str], pa.Table]
"""Does one piece of work, given as JSON, and returns rows about it; for the same text always rows of one schema."""

_KINDS: dict[str, type[BridgeError]] = {
    each.__name__: each
    for each in (
        *(errors.BridgeError, errors.UsageError, errors.Conflict),
        *(errors.VerificationFailed, errors.Unreachable, errors.Missing),
    )
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces of work that one Spark task does after another."""

    items: tuple[str, ...]

    @property
    def name(self) -> str:
        return "batch-" + hashlib.sha256("\n".join(self.items).encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class Staging:
    """The directory of one plan's batches; every executor must reach it."""

    root: str

    @staticmethod
    def of(directory: str, plan_id: str) -> Staging:
        if not plan_id or "/" in plan_id:
            raise errors.UsageError(f"the plan id {plan_id!r} cannot name a directory")
        return Staging(f"{storage.absolute(directory)}/{plan_id}")

    def prepare(self, batches: Sequence[Batch]) -> set[str]:
        """Write down what is to be done; the names of the batches that are done already."""
        storage.make_directory(self.root)
        there = {name for name, _ in storage.list_directory(self.root)}
        for name in there:
            if name.endswith((TEMPORARY, ".failed")):
                storage.remove(f"{self.root}/{name}")
        done = {batch.name for batch in batches if f"{batch.name}.arrow" in there}
        for batch in batches:
            if batch.name not in done:
                self._write(f"{batch.name}.json", json.dumps(batch.items).encode())
        return done

    def keep(self, name: str, content: bytes) -> str:
        """Something that batches read, by a name of its content; its path."""
        storage.make_directory(self.root)
        self._write(name, content)
        return f"{self.root}/{name}"

    def items(self, name: str) -> list[str]:
        """The work of a batch."""
        return [str(each) for each in json.loads(storage.read(f"{self.root}/{name}.json", "batch"))]

    def finish(self, name: str, rows: pa.Table) -> None:
        """Mark a batch as done."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        self._write(f"{name}.arrow", sink.getvalue().to_pybytes())

    def fail(self, name: str, error: BridgeError) -> None:
        """Say why a batch is not done."""
        self._write(f"{name}.failed", _told(error).encode())

    def ended(self) -> tuple[set[str], set[str]]:
        """The names of the batches that are done and of those that failed."""
        names = [name for name, _ in storage.list_directory(self.root)]
        done = {name.removesuffix(".arrow") for name in names if name.endswith(".arrow")}
        return done, {name.removesuffix(".failed") for name in names if name.endswith(".failed")}

    def error(self, name: str) -> BridgeError:
        """The error of a failed batch, of the class that was raised."""
        return error_of(storage.read(f"{self.root}/{name}.failed", "batch").decode())

    def rows(self, name: str) -> pa.Table:
        """What came out of a batch."""
        content = storage.read(f"{self.root}/{name}.arrow", "manifest of a batch")
        try:
            return pa.ipc.open_file(pa.BufferReader(content)).read_all()
        except pa.ArrowException as error:
            raise Unreachable(
                f"manifest {self.root}/{name}.arrow is damaged", hint="remove it and run again"
            ) from error

    def forget(self, name: str) -> None:
        """Have a batch done again."""
        storage.remove(f"{self.root}/{name}.arrow")

    def clean(self) -> None:
        """Remove all of it, when the commit that used the files stands."""
        for name, _ in storage.list_directory(self.root):
            storage.remove(f"{self.root}/{name}")
        storage.remove_directory(self.root)

    def _write(self, name: str, content: bytes) -> None:
        storage.write(f"{self.root}/{name}", content, f".{name}.{uuid.uuid4().hex}{TEMPORARY}")


_SAME = "every executor must find the files where this machine does"
SHARE = "the lake's data path and the source must be the same place for this machine and all executors"


def perform(root: str, name: str, work: Work) -> str:
    """Do a batch, on an executor. An error of ours becomes a note; any other is Spark's to retry. Gives the text of an
    error that could not even be noted (the disk is full, the directory is another one there), else nothing."""
    staging = Staging(root)
    try:
        items = staging.items(name)
    except BridgeError as error:
        return _told(_unusable(root, error))
    try:
        rows = [work(item) for item in items]
    except BridgeError as error:
        raised = error
        if isinstance(error, errors.Missing) and not error.hint:
            raised = errors.Missing(error.message, hint=f"so says the executor on {os.uname().nodename}: {_SAME}")
        try:
            staging.fail(name, raised)
        except BridgeError:
            return _told(raised)
        return ""
    try:
        staging.finish(name, pa.concat_tables(rows))
    except BridgeError as error:
        return _told(_unusable(root, error))
    return ""


def _unusable(root: str, error: BridgeError) -> BridgeError:
    return errors.Unreachable(
        f"the executor on {os.uname().nodename} cannot use {root}: {error.message}", hint=error.hint or SHARE
    )


def _told(error: BridgeError) -> str:
    kind, code = type(error).__name__, getattr(error, "code", "")
    return json.dumps({"kind": kind, "message": error.message, "hint": error.hint, "code": code})


def error_of(text: str) -> BridgeError:
    """An error from its text, of the class that was raised."""
    told = json.loads(text)
    if told["code"]:
        return errors.Blocked(told["message"], code=told["code"], hint=told["hint"])
    return _KINDS.get(told["kind"], BridgeError)(told["message"], hint=told["hint"])
