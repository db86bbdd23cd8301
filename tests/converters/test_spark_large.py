"""A file larger than its task's memory: what the task holds does not grow with the file."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "scripts" / "bench_rewrite.py"
LIMIT = 48 << 20
SMALL, LARGE = 1_500_000, 4_000_000
"""Both fill what a task may hold: the smaller one, too, has more than LIMIT."""
ROW = 80
"""Bytes of a row in memory, at least."""


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_rewrite", SCRIPT)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("parquet", "one row in three deleted"),
        pytest.param("orc", "partitioned", marks=pytest.mark.exhaustive),
        pytest.param("parquet", "sorted", marks=pytest.mark.exhaustive),
    ],
)
def test_memory_does_not_grow_with_the_file(kind: str, layout: str, bench: Any, tmp_path: Path) -> None:
    peaks = []
    for rows in (SMALL, LARGE):
        # one row group; ORC in stripes of which both files have several, as a stripe is the least that can be read
        path = bench.large_file(tmp_path, kind, rows, 32 << 20)
        ran = subprocess.run(
            [sys.executable, SCRIPT, "part", kind, path, tmp_path / "out", layout, str(LIMIT)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        base, peak, written = map(int, ran.stdout.split())
        assert written == (rows - (rows + 2) // 3 if "deleted" in layout else rows)
        peaks.append(peak - base)
    assert SMALL * ROW > 2 * LIMIT
    assert peaks[1] - peaks[0] < (LARGE - SMALL) * ROW // 2, [each >> 20 for each in peaks]
