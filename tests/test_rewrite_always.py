"""With `--rewrite always` a lake holds files of its own alone: every snapshot answers, and nothing is shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bridge
from tests.judge import judge
from tests.support import case, lake_rows, opened, subject, tree_hash, use
from tests.test_ownership import MAINTENANCE
from tests.test_rewriting import rewriting as _rewriting
from tests.test_runs import metadata_files, options

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark-rewriting"),
    # pyspark leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

KINDS = ("v2_eqdel_pos",)
MORE = (
    *(
        "v3_lineage",
        "fmt_mixed",
        "mor_delete_whole_file",
        "evo_readd",
        "v2_mor",
        "v2_mor_rewrite_pos",
        "hist_rollback_mor",
        "v3_dv_multi",
        "addfiles_hive",
        "part_identity",
    ),
    "names_rowid",
)


def more(*kinds: str) -> list[Any]:
    """Kinds that an exhaustive run repeats a test for."""
    return [pytest.param(kind, marks=pytest.mark.exhaustive) for kind in kinds]


def always(kind: str, spark: object, **more: object) -> bridge.Options:
    return _rewriting(kind, spark, **{"rewrite": "always", **more})


@pytest.mark.parametrize("kind", [*KINDS, *more(*MORE)])
def test_every_snapshot_answers_from_the_lakes_own_files(kind: str, spark: object, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    before = tree_hash(found.home)
    report = bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", always(kind, spark, verify="metadata"))
    assert report.exit_code == 0 and not report.faults
    assert lake_rows(lake, "SELECT DISTINCT path_is_relative FROM ducklake_data_file") in ([(True,)], [])
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", compact=True, filters=6) == []
    assert tree_hash(found.home) == before


@pytest.mark.parametrize("kind", ["v2_eqdel_pos", *more("v2_mor_twice", "v3_dv_twice")])
def test_the_current_state_alone_has_no_deletes(kind: str, spark: object, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    asked = always(kind, spark, history="current", verify="metadata")
    plan = bridge.plan(f"iceberg:{found.metadata}", f"ducklake:{lake}", asked).tables[0]
    assert plan.files == plan.bytes == 0 and "rewrite-asked" in plan.rewrites[0].reasons
    assert bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", asked).faults == ()
    assert deletes_of(lake) == 0
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", filters=4) == []


def deletes_of(lake: Path) -> int:
    """Deleted positions that a lake holds of its one table, and delete files."""
    names = [row[0] for row in lake_rows(lake, "SELECT table_name FROM duckdb_tables()")]
    rows = [f"SELECT count(*) FROM {name}" for name in names if name.startswith("ducklake_inlined_delete_")]
    counted = [lake_rows(lake, each)[0][0] for each in (*rows, "SELECT count(*) FROM ducklake_delete_file")]
    return sum(counted)


@pytest.mark.parametrize(
    "kind", ["v3_dv_then_insert", *more("v2_mor_dropfile", "v2_mor_twice", "mor_delete_whole_file")]
)
@pytest.mark.parametrize("history", ["full", pytest.param("current", marks=pytest.mark.exhaustive)])
def test_later_runs_count_positions_in_what_was_rewritten(
    kind: str, history: str, spark: object, tmp_path: Path
) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    # the current state alone from where deletes are in effect already, so that they are folded in
    for metadata in metadata_files(found)[-2 if history == "current" else 0 :]:
        asked = always(kind, spark, verify="metadata", history=history)
        report = bridge.migrate(f"iceberg:{metadata}", f"ducklake:{lake}", asked)
        assert not report.faults
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=6) == []


@pytest.mark.parametrize("kind", ["v3_dv_twice", "v3_dv_multi", "v3_lineage"])
def test_rows_keep_their_ids(kind: str, spark: object, tmp_path: Path) -> None:
    """A file from which rows were left out holds them itself."""
    found = case(kind)
    in_place, own = tmp_path / "place.ducklake", tmp_path / "own.ducklake"
    bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{in_place}", options(found))
    bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{own}", always(kind, spark, history="current"))
    told = []
    for lake in (in_place, own):
        with opened(lake) as connection:
            told.append(sorted(connection.execute("SELECT rowid, * FROM t").fetchall(), key=repr))
    assert told[0] == told[1] != []


def test_nothing_is_shared_so_nothing_is_guarded(spark: object, tmp_path: Path) -> None:
    found, lake = case("v2_mor_twice"), tmp_path / "lake.ducklake"
    before = tree_hash(found.home)
    report = bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", always("v2_mor_twice", spark))
    assert any(each.startswith("own files:") for each in report.words)
    assert not [each for each in report.words if each.startswith(("guarded:", "adopted:", "take over:"))]
    assert [each for each in use(str(lake), MAINTENANCE) if each] == []
    assert tree_hash(found.home) == before
    assert not list((tmp_path / "lake.ducklake.files").rglob("*.parquet"))
