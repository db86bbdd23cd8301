"""What cannot be registered as it is: Spark rewrites those files, and finds the rows that equality deletes name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bridge
from tests.judge import judge
from tests.support import ROOT, SHARED, case, lake_rows, migrate_case, run, subject, tree_hash
from tests.test_runs import metadata_files, options

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark-rewriting"),
    # pyspark leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS = ("fmt_avro", "fmt_orc", "fmt_mixed", "fmt_mixed_past", "v2_eqdel", "v2_eqdel_pos")


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from converters.spark.session import Engine, SessionOptions

    with Engine(SessionOptions.parse("local[2]")) as engine:
        yield engine.session


def rewriting(kind: str, spark: object, **more: object) -> bridge.Options:
    return replace(options(case(kind)), **{"rewrite": "when-needed", "spark_session": spark, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_every_snapshot_answers_and_the_lake_goes_on(kind: str, spark: object, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    before = tree_hash(found.home)
    report = bridge.migrate(
        f"iceberg:{found.metadata}", f"ducklake:{lake}", rewriting(kind, spark, ownership="adopt", verify="metadata")
    )
    assert report.exit_code == 0 and not report.faults
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", compact=True, filters=6) == []
    assert tree_hash(found.home) == before
    assert not [path for path in (tmp_path / "lake.ducklake.files").rglob("*") if "staging" in path.name]


@pytest.mark.parametrize("kind", ["fmt_mixed", "v2_eqdel_pos"])
def test_later_runs_find_what_earlier_ones_rewrote(kind: str, spark: object, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    for metadata in metadata_files(found):
        bridge.migrate(f"iceberg:{metadata}", f"ducklake:{lake}", rewriting(kind, spark, verify="metadata"))
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=6) == []


def test_only_the_files_that_need_it_are_rewritten(spark: object, tmp_path: Path) -> None:
    found, lake = case("fmt_mixed"), tmp_path / "lake.ducklake"
    plan = bridge.plan(f"iceberg:{found.metadata}", f"ducklake:{lake}", rewriting("fmt_mixed", spark))
    [rewrite] = plan.tables[0].rewrites
    assert rewrite.reasons == ("file-format",) and plan.tables[0].files > 0
    bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", rewriting("fmt_mixed", spark))
    own = dict(lake_rows(lake, "SELECT path_is_relative, count(*) FROM ducklake_data_file GROUP BY 1"))
    assert own == {True: rewrite.files + rewrite.history_files, False: plan.tables[0].files}


def test_without_being_asked_nothing_is_rewritten(tmp_path: Path) -> None:
    refused = migrate_case(case("fmt_orc"), str(tmp_path / "lake.ducklake"))
    assert refused.code == 3 and "--rewrite when-needed" in refused.out
    assert list(tmp_path.iterdir()) == []


def test_killed_between_rewriting_and_the_commit_nothing_is_done_twice(tmp_path: Path) -> None:
    found, lake = case("fmt_mixed"), tmp_path / "lake.ducklake"
    command = [
        *(sys.executable, "-m", "bridge", "migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}"),
        *("--as", "main.t", "--rewrite", "when-needed", "--spark-master", "local[1]", *found.maps),
    ]
    killed = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    staging = tmp_path / "lake.ducklake.files" / "bridge-staging"
    deadline = time.monotonic() + 240
    while not list(staging.rglob("*.arrow")) and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    again = run(*command[3:])
    assert again.code == 0, again.out + again.err
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet") if path in written}
    assert kept == written
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []


CORPUS = (
    *("eq_deletes_basic", "eq_deletes_multi_ids", "eq_deletes_partitioned", "eq_deletes_schema_evolution"),
    *("eq_deletes_flink", "eq_and_pos_deletes", "orc_nested", "orc_partitioned", "mixed_parquet_orc"),
    *("avro_data_trino", "v3_defaults_avro", "part_binary"),
)


@pytest.mark.skipif(not (SHARED / "corpus").exists(), reason="the corpus of real tables is not beside this checkout")
@pytest.mark.parametrize("name", CORPUS)
def test_real_tables_are_read_as_their_engine_reads_them(name: str, spark: object, tmp_path: Path) -> None:
    from tests.test_corpus import ENTRIES, wrong

    entry, lake = ENTRIES[name], tmp_path / "lake.ducklake"
    corpus = (SHARED / "corpus").resolve()
    maps = tuple((each["from"], str(corpus / each["to"])) for each in entry.facts["map_prefix"])
    asked = bridge.Options(rename="main.t", rewrite="when-needed", path_map=bridge.PathMap(maps), spark_session=spark)
    report = bridge.migrate(f"iceberg:{corpus / entry.facts['metadata_file']}", f"ducklake:{lake}", asked)
    assert report.exit_code == 0, [str(each) for each in report.plan.tables[0].blockers] + [
        str(each) for each in report.faults
    ]
    faults = wrong(entry, lake)
    if name == "eq_deletes_flink":  # its older manifest lists are expired
        faults = [each for each in faults if "is not in the lake" not in each]
    assert faults == []
    assert entry.untouched()
