"""The scratch directory of a process: gone with it, however it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support import ROOT

MAKE = "import sys; from converters.storage.scratch import scratch; print(scratch(), flush=True); sys.stdin.read()"


def _process(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    made = subprocess.Popen([sys.executable, "-c", MAKE], stdin=-1, stdout=-1, text=True, cwd=ROOT, env=env)
    assert made.stdout is not None
    return made, Path(made.stdout.readline().strip())


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed, left = _process(tmp_path)
    (left / "spilled").write_text("rows")
    killed.kill()
    killed.communicate()
    living, used = _process(tmp_path)
    assert left.exists()  # it might be one that is being made
    for each in (left, used):
        os.utime(each, times=(time.time() - 3600,) * 2)
    third, own = _process(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([used, own])
    for each in (living, third):
        each.communicate()
    assert [*tmp_path.iterdir()] == []
