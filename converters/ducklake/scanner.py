"""Questions to DuckDB about a lake, answered in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa

from bridge.errors import BridgeError
from bridge.ports import Rows
from converters.ducklake.identifiers import identifier

__all__ = ["Answer", "ask", "compare_rows"]

Answer = list[list[str | None]] | BridgeError
"""Rows with every value as text, or DuckDB's error."""

_EXTENSIONS = {"sqlite": ["sqlite_scanner"]}


def _run(asked: Mapping[str, object], attach: str) -> dict[str, list[dict[str, object]]]:
    ran = subprocess.run(
        [sys.executable, "-m", "converters.ducklake.asking"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode or not ran.stdout:
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise BridgeError(f"DuckDB could not be asked about {attach}: {last}")
    said: dict[str, list[dict[str, object]]] = json.loads(ran.stdout)
    if "error" in said:
        raise BridgeError(f"DuckDB cannot open {attach}: {said['error']}")
    return said


def ask(attach: str, backend: str, queries: Sequence[str], objects: bool = False) -> list[Answer]:
    """The answers in the order of the queries; BridgeError when the lake cannot be opened at all. `objects`: its files
    lie in an object store."""
    extensions = _EXTENSIONS.get(backend, [])
    asked = {"attach": attach, "extensions": extensions, "objects": objects, "queries": list(queries)}
    said = _run(asked, attach)
    return [
        cast(list[list[str | None]], each["rows"]) if "rows" in each else BridgeError(str(each["error"]))
        for each in said["answers"]
    ]


def compare_rows(attach: str, backend: str, relation: str, rows: Rows, objects: bool = False) -> str:
    """How a relation of the lake differs from the rows, as multisets; empty when it does not."""
    with tempfile.TemporaryDirectory(prefix="ducklake-bridge-") as directory:
        path = f"{directory}/rows.arrow"
        count = 0
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
                count += batch.num_rows
        columns = ", ".join(identifier(name) for name in rows.schema.names)
        mine, theirs = f"SELECT {columns} FROM {relation}", f"SELECT {columns} FROM expected"
        asked = {
            "attach": attach,
            "extensions": _EXTENSIONS.get(backend, []),
            "objects": objects,
            "expected": path,
            "queries": [
                f"SELECT count(*) FROM {relation}",
                f"SELECT count(*) FROM ({theirs} EXCEPT ALL {mine})",
                f"SELECT count(*) FROM ({mine} EXCEPT ALL {theirs})",
            ],
        }
        said = _run(asked, attach)["answers"]
    for each in said:
        if "error" in each:
            return str(each["error"])
    found, missing, extra = (int(cast(list[list[str]], each["rows"])[0][0]) for each in said)
    if found == count and not missing and not extra:
        return ""
    return f"{found} rows where the source has {count}; {missing} missing, {extra} that it has not"
