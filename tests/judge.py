"""The oracle of the tests: given a DuckLake catalog and the rows it must hold, every wrong answer of DuckDB.

Shares no code with the product. DuckDB runs in a process of its own (judge_process.py): a catalog file has
one owner and because some broken catalogs take the whole instance down.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

__all__ = ["Subject", "Version", "judge"]

PROCESS = Path(__file__).with_name("judge_process.py")


@dataclass(frozen=True)
class Version:
    """The rows expected at one snapshot (None: the current state only), asked for by time too if given.

    `other_columns`: a column may have been replaced since the version before, so that rows changed without a change.
    """

    snapshot: int | None
    time: datetime | None
    rows: pa.Table
    other_columns: bool = False

    def __post_init__(self) -> None:
        if self.time is not None and self.time.tzinfo is None:
            raise ValueError(f"version time {self.time} has no time zone")


@dataclass(frozen=True)
class Subject:
    """A table ('main.t', or (schema, table) for any names) and its versions, oldest first, last = current."""

    table: str | tuple[str, str]
    versions: tuple[Version, ...]

    def __post_init__(self) -> None:
        if not self.versions:
            raise ValueError(f"{self.table}: a subject needs at least one version")
        if any(v.snapshot is None and v.time is None for v in self.versions[:-1]):
            raise ValueError(f"{self.table}: only the last version can be without snapshot and time")

    @property
    def names(self) -> tuple[str, str]:
        """Schema and table."""
        if isinstance(self.table, tuple):
            return self.table
        schema, dot, table = self.table.partition(".")
        return (schema, table) if dot else ("main", schema)


def judge(
    attach: str,
    subjects: Sequence[Subject],
    *,
    scratch: Path,
    change: bool = True,
    compact: bool = False,
    filters: int = 12,
    timeout: float = 300,
    setup: Sequence[str] = (),
) -> list[str]:
    """Every wrong answer of the lake at `ducklake:<attach>`, a line each; empty means right.

    The lake is asked READ_ONLY. `change` (ordinary statements) and `compact` (flush, merge, rewrite) work on
    copies in `scratch` if the catalog is a DuckDB or SQLite file; a catalog on a server IS CHANGED ITSELF.
    No snapshot is expired and no file is deleted either way. `filters` is the number of distinct constants
    per column; `setup` is SQL to run first (secrets, for instance).
    """
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="judge-", dir=scratch)).resolve()
    asked = []
    for number, subject in enumerate(subjects):
        versions = []
        for index, version in enumerate(subject.versions):
            rows = folder / f"rows-{number}-{index}.arrows"
            with pa.ipc.new_stream(str(rows), version.rows.schema) as stream:
                stream.write_table(version.rows)
            time = None if version.time is None else version.time.isoformat(sep=" ", timespec="microseconds")
            versions.append(
                {
                    "snapshot": version.snapshot,
                    "time": time,
                    "rows": str(rows),
                    "other_columns": version.other_columns,
                }
            )
        schema, table = subject.names
        asked.append({"schema": schema, "table": table, "versions": versions})
    request, answer = folder / "request.json", folder / "answer.jsonl"
    request.write_text(
        json.dumps(
            {
                "attach": attach,
                "scratch": str(folder),
                "answer": str(answer),
                "subjects": asked,
                "change": change,
                "compact": compact,
                "filters": filters,
                "setup": list(setup),
            }
        )
    )
    try:
        done = subprocess.run(
            [sys.executable, str(PROCESS), str(request)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        end = f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
    except subprocess.TimeoutExpired:
        end = f"no answer within {timeout} s"
    lines = [json.loads(line) for line in answer.read_text().splitlines()] if answer.exists() else []
    faults = [line["fault"] for line in lines if "fault" in line]
    if not any("end" in line for line in lines):
        faults.append(f"the judge's process stopped early, {end}")
    return faults
