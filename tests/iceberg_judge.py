"""The oracle for published Iceberg tables: what PyIceberg, DuckDB and Spark answer wrongly about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
from pyiceberg.manifest import clear_manifest_cache

from tests.iceberg_judge_process import DuckDB, PyIceberg, judged

PROCESS = Path(__file__).with_name("iceberg_judge_process.py")


@dataclass(frozen=True)
class Published:
    """A table by its metadata file, and the rows expected at each snapshot (None: now), oldest first."""

    name: str
    metadata: Path
    versions: tuple[tuple[int | None, pa.Table], ...]
    answers: bool = True


def judge_iceberg(
    subjects: Sequence[Published], engines: Sequence[str], scratch: Path, timeout: float = 900
) -> list[str]:
    """Every wrong answer, a line each; empty means right."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="judge-", dir=scratch)).resolve()
    asked = []
    for number, subject in enumerate(subjects):
        versions = []
        for index, (snapshot, rows) in enumerate(subject.versions):
            path = folder / f"rows-{number}-{index}.arrow"
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows)
            versions.append({"snapshot": snapshot, "rows": str(path)})
        asked.append(
            {
                "name": subject.name,
                "metadata": str(subject.metadata),
                "versions": versions,
                "answers": subject.answers,
            }
        )
    faults = []
    for engine in engines:
        faults += _in_spark(asked, folder, timeout) if engine == "spark" else _here(asked, engine)
    return faults


def _here(asked: Sequence[dict[str, Any]], name: str) -> list[str]:
    """What an engine says in this process, which has most of it loaded already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clear_manifest_cache()
        engine = {"pyiceberg": PyIceberg, "duckdb": DuckDB}[name]()
        return [fault for subject in asked for fault in judged(engine, name, subject)]


def _in_spark(asked: Sequence[dict[str, Any]], folder: Path, timeout: float) -> list[str]:
    request, answer = folder / "request.json", folder / "answer.jsonl"
    request.write_text(
        json.dumps({"subjects": asked, "engines": ["spark"], "scratch": str(folder), "answer": str(answer)})
    )
    try:
        done = subprocess.run(
            [sys.executable, str(PROCESS), str(request)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "TZ": "UTC"},
        )
        end = f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}"
    except subprocess.TimeoutExpired:
        end = f"no answer within {timeout} s"
    lines = [json.loads(line) for line in answer.read_text().splitlines()] if answer.exists() else []
    faults = [line["fault"] for line in lines if "fault" in line]
    if not any("end" in line for line in lines):
        faults.append(f"the judge's process stopped early, {end}")
    return faults
