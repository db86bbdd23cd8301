"""What cannot be registered as it is: Spark rewrites those files, and finds the rows that equality deletes name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import bridge
from tests import test_name_mapping as name_mapping
from tests.judge import Subject, Version, judge
from tests.support import (
    ROOT,
    SHARED,
    case,
    commits_of,
    lake_rows,
    migrate_case,
    opened,
    run,
    subject,
    tree_hash,
    use,
    versions,
)
from tests.test_ownership import copied
from tests.test_rewritten_sorted import is_sorted, ordered, own_files
from tests.test_runs import metadata_files, options

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark-rewriting"),
    # pyspark leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS = (
    "fmt_mixed",
    # equality deletes: the later runs below, and tests/test_rewrite_always.py
    *(
        pytest.param(kind, marks=pytest.mark.exhaustive)
        for kind in ("fmt_avro", "fmt_mixed_past", "fmt_orc", "v2_eqdel", "v2_eqdel_pos")
    ),
)


def rewriting(kind: str, spark: object, **more: object) -> bridge.Options:
    return replace(options(case(kind)), **{"spark_session": spark, **more})  # type: ignore[arg-type]


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


def test_a_rollback_is_followed_where_equality_deletes_apply(spark: object, tmp_path: Path) -> None:
    found, lake = copied("v2_eqdel", tmp_path / "source"), tmp_path / "lake.ducklake"
    followed = replace(options(found, follow=True), spark_session=spark)
    assert bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", followed).exit_code == 0
    snapshots, stored = found.facts["snapshots"], json.loads(found.metadata.read_text())
    back = snapshots[2]
    stored["current-snapshot-id"] = stored["refs"]["main"]["snapshot-id"] = back["snapshot_id"]
    stored["last-updated-ms"] += 1000
    stored["snapshot-log"].append({"snapshot-id": back["snapshot_id"], "timestamp-ms": stored["last-updated-ms"]})
    changed = found.metadata.with_name("v9.metadata.json")
    changed.write_text(json.dumps(stored))
    report = bridge.migrate(f"iceberg:{changed}", f"ducklake:{lake}", followed)
    assert report.exit_code == 0 and report.plan.tables[0].snapshots == 1
    held = commits_of(lake)
    order = [*(each for each in snapshots if each is not back), back]
    made = [Version(held[str(each["snapshot_id"])], None, found.rows(each["rows"])) for each in order]
    assert judge(str(lake), [Subject(("main", "t"), tuple(made))], scratch=tmp_path / "judge", filters=4) == []


@pytest.mark.parametrize("kind", [pytest.param("fmt_mixed", marks=pytest.mark.exhaustive), "v2_eqdel_pos"])
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


def test_when_it_is_forbidden_nothing_is_rewritten(tmp_path: Path) -> None:
    refused = migrate_case(case("fmt_orc"), str(tmp_path / "lake.ducklake"), "--rewrite", "never")
    assert refused.code == 3 and "--rewrite when-needed" in refused.out
    assert list(tmp_path.iterdir()) == []


def test_killed_between_rewriting_and_the_commit_nothing_is_done_twice(tmp_path: Path) -> None:
    found, lake = ordered("fmt_mixed", tmp_path / "source"), tmp_path / "lake.ducklake"
    command = [
        *(sys.executable, "-m", "bridge", "migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}"),
        *("--as", "main.t", "--spark-master", "local[1]", *found.maps),
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
    assert all(map(is_sorted, own_files(lake)))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet") if path in written}
    assert kept == written
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []


def test_nanosecond_instants_become_local_ones_in_rewritten_files(spark: object, tmp_path: Path) -> None:
    found, lake = case("v3_tsns"), tmp_path / "lake.ducklake"
    asked = rewriting("v3_tsns", spark, type_map=(("timestamptz_ns", "timestamp_ns"),), verify="metadata")
    report = bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", asked)
    assert report.exit_code == 0 and not report.faults
    states = [
        replace(each, rows=each.rows.set_column(place, "tz", each.rows.column("tz").cast(pa.timestamp("ns"))))
        for each in versions(found, lake)
        for place in [each.rows.schema.get_field_index("tz")]
    ]
    assert judge(str(lake), [Subject(("main", "t"), tuple(states))], scratch=tmp_path / "judge", filters=6) == []


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
    asked = bridge.Options(rename="main.t", path_map=bridge.PathMap(maps), spark_session=spark)
    report = bridge.migrate(f"iceberg:{corpus / entry.facts['metadata_file']}", f"ducklake:{lake}", asked)
    assert report.exit_code == 0, [str(each) for each in report.plan.tables[0].blockers] + [
        str(each) for each in report.faults
    ]
    faults = wrong(entry, lake)
    if name == "eq_deletes_flink":  # its older manifest lists are expired
        faults = [each for each in faults if "is not in the lake" not in each]
    assert faults == []
    assert entry.untouched()


FOREIGN = [name for name, given in name_mapping.CASES.items() if given.blocked and given.rows]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if place % 3 == 0 else pytest.mark.exhaustive) for place, name in enumerate(FOREIGN)],
)
def test_layouts_that_the_lake_cannot_map_read_as_iceberg_reads_them(name: str, spark: object, tmp_path: Path) -> None:
    given, lake = name_mapping.CASES[name], tmp_path / "lake.ducklake"
    made = given.make(tmp_path / "table")
    asked = bridge.Options(rename="main.t", verify="none", spark_session=spark)
    report = bridge.migrate(f"iceberg:{made.metadata}", f"ducklake:{lake}", asked)
    assert report.exit_code == 0, [str(each) for each in report.plan.tables[0].blockers]
    assert [each.reasons for each in report.plan.tables[0].rewrites] == [(given.blocked,)]
    with opened(lake) as connection:
        for zone in ("UTC", "Asia/Kathmandu"):
            connection.execute(f"SET TimeZone = '{zone}'")
            found = connection.execute(name_mapping.local("FROM t", given)).fetchall()
            assert name_mapping.in_order(found) == name_mapping.in_order(given.rows)


VARIANTS = {
    "NULL": None,
    "bool true": True,
    "int8 -34": -34,
    "int64 1e10": 10_000_000_000,
    "double 14.3": 14.3,
    "str hello": "hello",
    "escaped string value": 'a\t"\\\0b',
    "array empty": [],
    "array of array": [["string", "iceberg"], ["apple", "banana"]],
    "obj age/name": {"age": 30, "name": "Alice"},
    "obj nested data/items": {"data": {"items": [10, 20, 30]}},
    "obj empty": {},
    "obj null + string": {"a": None, "d": "iceberg"},
    "decimal4 123456.789": 123456.789,
    "date 1957-11-07": "1957-11-07",
    "uuid": "f24f9b64-81fa-49d1-b74e-8c09a6e31c56",
}
"""What the rows of v3_variant_trino say of themselves. DuckDB's iceberg_scan 1.5.5, after whose reading the corpus has
its hash, takes the two columns of the group for the variant's value."""


@pytest.mark.skipif(not (SHARED / "corpus").exists(), reason="the corpus of real tables is not beside this checkout")
@pytest.mark.parametrize("annotated", [False, True])
def test_variants_keep_their_values(annotated: bool, spark: object, tmp_path: Path) -> None:
    from tests.test_corpus import ENTRIES

    entry, lake = ENTRIES["v3_variant_trino"], tmp_path / "lake.ducklake"
    made = tmp_path / "table"
    shutil.copytree(entry.folder, made)
    if annotated:
        for path in (made / "data").glob("*.parquet"):
            annotate(path)
    asked = bridge.Options(
        rename="main.t",
        path_map=bridge.PathMap(tuple((each["from"], str(made)) for each in entry.facts["map_prefix"])),
        spark_session=spark,
    )
    report = bridge.migrate(f"iceberg:{made}/metadata/v2.metadata.json", f"ducklake:{lake}", asked)
    assert report.exit_code == 0 and not report.faults
    assert bool(report.plan.tables[0].rewrites) != annotated
    with opened(lake) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT id) FROM t").fetchall() == [(55, 55)]
        found = dict(connection.execute("SELECT descr, CAST(v AS JSON) FROM t").fetchall())
        assert {descr: json.loads(found[descr]) for descr in VARIANTS} == VARIANTS
        assert connection.execute("SELECT count(*) FROM t WHERE v IS NULL").fetchall() == [(2,)]
    assert use(str(lake), ["INSERT INTO lake.t FROM lake.t LIMIT 5", "DELETE FROM lake.t WHERE id < 3"]) == ["", ""]
    with opened(lake) as connection:
        assert connection.execute("SELECT count(*) FROM t WHERE descr = 'obj empty'").fetchall() == [(1,)]


def annotate(path: Path) -> None:
    """The same rows as DuckDB writes variants: annotated, and shredded where it sees fit."""
    old = path.with_suffix(".old")
    path.rename(old)
    rows = f"SELECT * REPLACE (variant_bytes_to_variant(v.metadata || v.value) AS v) FROM read_parquet('{old}')"
    duckdb.sql(f"COPY ({rows}) TO '{path}' (FORMAT parquet, FIELD_IDS {{id: 1, descr: 2, v: 3}})")
    old.unlink()
