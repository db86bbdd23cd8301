"""Life after publishing in Spark with Iceberg Java: shared tables can be worked on and not destroyed, adopted ones are
maintained like any other, and row ids are the lake's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, opened, tree_hash
from tests.test_publish import CHANGES, Lake

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def spark(lake: Lake, *statements: str) -> list[Any]:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("spark_statements.py")), str(lake.warehouse)],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: list[Any] = json.loads(ran.stdout)
    return found


def error(answer: Any) -> str:
    return str(answer["error"]) if isinstance(answer, dict) else ""


WORK = (
    "INSERT INTO ice.main.t SELECT id + 1000, v, d, ts, day, dec FROM ice.main.t WHERE id < 10",
    "DELETE FROM ice.main.t WHERE id = 30",
    "UPDATE ice.main.t SET v = 'spark' WHERE id = 31",
    "CALL ice.system.rewrite_data_files(table => 'main.t', options => map('rewrite-all', 'true'))",
    "SELECT count(*), min(id), max(id), sum(CASE WHEN v = 'spark' THEN 1 ELSE 0 END) FROM ice.main.t",
)
LATER = "TIMESTAMP '2100-01-01 00:00:00'"
CLEAN = (
    f"CALL ice.system.expire_snapshots(table => 'main.t', older_than => {LATER}, retain_last => 1)",
    "CALL ice.system.remove_orphan_files(table => 'main.t')",
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.do(*CHANGES[:4])
    return made


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_shared_tables_are_worked_on_and_not_cleaned_up(version: int, lake: Lake) -> None:
    lake.publish(verify="none", format_version=version)
    before = tree_hash(lake.files)
    held = ("SELECT id, _row_id FROM ice.main.t ORDER BY id",) if version == 3 else ()
    answers = spark(lake, *held, *WORK, *CLEAN)
    *worked, expired, orphans = answers[len(held) :]
    if held:  # row ids are the lake's
        with opened(lake.file) as there:
            rows = there.execute("SELECT id, rowid FROM t ORDER BY id").fetchall()
        assert answers[0] == [list(row) for row in rows]
    assert [error(each) for each in worked] == [""] * len(WORK)
    assert worked[-1] == [[92, 1, 1009, 1]]  # 85 rows, 8 copies of some, and one is gone
    assert "gc.enabled" in error(expired) or "GC is disabled" in error(expired)
    assert "gc.enabled" in error(orphans) or "GC is disabled" in error(orphans)
    assert tree_hash(lake.files) == before


def test_adopted_tables_are_maintained(lake: Lake) -> None:
    lake.publish(verify="none", ownership="adopt")
    answers = spark(lake, *WORK, *CLEAN, WORK[-1])
    assert [error(each) for each in answers] == [""] * len(answers)
    assert answers[-1] == answers[len(WORK) - 1]
    left = [each.name for each in lake.files.rglob("*.parquet")]
    assert all(each.endswith("-delete.parquet") for each in left)  # data files are Iceberg's to delete, these are not
