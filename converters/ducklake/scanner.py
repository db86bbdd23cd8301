"""Questions to DuckDB about a lake, answered in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import pyarrow as pa

from bridge.errors import BridgeError
from bridge.ports import Rows
from converters.ducklake.catalog.places import Place
from converters.ducklake.extensions import needed
from converters.ducklake.identifiers import identifier, literal
from converters.storage.scratch import scratch

__all__ = ["Answer", "Asking", "ask", "compare_rows", "try_statements"]

Answer = list[list[str | None]] | BridgeError
"""Rows with every value as text, or DuckDB's error."""


class Asking:
    """DuckDB in a process of its own, which gets ready while its questions are still to come. It answers once.

    Secrets go by standard input and the environment, never by the command line; answers come back without them.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._process = subprocess.Popen(
            [sys.executable, "-m", "converters.ducklake.asking", *needed(place.backend)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # what interrupts us from the keyboard does not keep a commit in hand from being verified
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **place.environment},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whether it was asked or not."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def answer(self, asked: Mapping[str, object], attach: str = "") -> list[dict[str, object]]:
        """What is said to each query; BridgeError when the lake cannot be opened at all."""
        place, attach = self._place, attach or self._place.statement("READ_ONLY", whole=True)
        out, err = self._process.communicate(json.dumps({"attach": attach, **asked}))
        if self._process.returncode or not out:
            last = (err.strip().splitlines() or [f"exit code {self._process.returncode}"])[-1]
            raise BridgeError(f"DuckDB could not be asked about {place.attach}: {place.hide(last)}")
        said: dict[str, Any] = json.loads(out)
        if "error" in said:
            raise BridgeError(f"DuckDB cannot open {place.attach}: {place.hide(str(said['error']))}")
        answers: list[dict[str, object]] = said["answers"]
        return answers


def ask(place: Place, queries: Sequence[str], objects: bool = False, ready: Asking | None = None) -> list[Answer]:
    """The answers in the order of the queries; BridgeError when the lake cannot be opened at all. `objects`: its files
    lie in an object store. `ready`: a process that waits for them."""
    with ready or Asking(place) as asking:
        said = asking.answer({"objects": objects, "queries": list(queries)})
    return [
        cast(list[list[str | None]], each["rows"]) if "rows" in each else BridgeError(place.hide(str(each["error"])))
        for each in said
    ]


def try_statements(place: Place, alias: str, statements: Sequence[str]) -> list[Answer]:
    """What DuckDB says to each statement on a lake in a file, attached for writing; names find nothing of Python's."""
    attach = (
        f"SET python_enable_replacements = false; ATTACH {literal(f'ducklake:{place.path}')} AS {identifier(alias)}"
    )
    with Asking(place) as asking:
        said = asking.answer({"objects": False, "queries": list(statements)}, attach)
    return [
        cast(list[list[str | None]], each["rows"]) if "rows" in each else BridgeError(str(each["error"]))
        for each in said
    ]


def _compared(field: pa.Field) -> str:
    """A column, and beside it what tells values apart that are equal: the sign of zero."""
    name = identifier(field.name)
    floating = pa.types.is_float32(field.type) or pa.types.is_float64(field.type)
    return f"{name}, {name} = 0 AND signbit({name})" if floating else name


def compare_rows(place: Place, relation: str, rows: Rows, objects: bool = False) -> str:
    """How a relation of the lake differs from the rows, as multisets; empty when it does not."""
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        path = f"{directory}/rows.arrow"
        count = 0
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
                count += batch.num_rows
        columns = ", ".join(_compared(field) for field in rows.schema)
        mine, theirs = f"SELECT {columns} FROM {relation}", f"SELECT {columns} FROM expected"
        asked = {
            "objects": objects,
            "expected": path,
            "queries": [
                f"SELECT count(*) FROM {relation}",
                f"SELECT count(*) FROM ({theirs} EXCEPT ALL {mine})",
                f"SELECT count(*) FROM ({mine} EXCEPT ALL {theirs})",
            ],
        }
        with Asking(place) as asking:
            said = asking.answer(asked)
    for each in said:
        if "error" in each:
            return place.hide(str(each["error"]))
    found, missing, extra = (int(cast(list[list[str]], each["rows"])[0][0]) for each in said)
    if found == count and not missing and not extra:
        return ""
    return f"{found} rows where the source has {count}; {missing} missing, {extra} that it has not"
