"""How much history is carried, and what a user can ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.judge import Subject, Version, judge
from tests.support import Case, case, commits_of, lake_rows, migrate_case, run, run_here, subject, use
from tests.test_bad_input import manifest_files
from tests.test_ownership import BOTH, copied
from tests.test_runs import metadata_files


@pytest.mark.slow
def test_only_the_current_snapshot_when_asked(tmp_path: Path) -> None:
    found, lake = case("evo_struct"), tmp_path / "lake.ducklake"
    ran = migrate_case(found, str(lake), "--history", "current")
    assert ran.code == 0 and ran.codes()["loss"] == ["history-current"]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_snapshot") == [(2,)]
    current = Subject(("main", "t"), (Version(None, None, found.rows(found.facts["current"])),))
    assert judge(str(lake), [current], scratch=tmp_path / "judge", change=False, filters=4) == []
    again = migrate_case(found, str(lake), "--history", "current")
    assert again.code == 0 and again.json["tables"][0]["action"] == "nothing"


@pytest.mark.slow
def test_catching_up_after_the_current_snapshot_alone(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    older = metadata_files(found)[-3]
    for metadata in (older, found.metadata):
        ran = run_here(
            "migrate",
            f"iceberg:{metadata}",
            f"ducklake:{lake}",
            "--as",
            "main.t",
            "--history",
            "current",
            "--json",
            *found.maps,
        )
        assert ran.code == 0, ran.out
    assert ran.json["tables"][0]["action"] == "append"
    verified = run_here("verify", f"iceberg:{found.metadata}", f"ducklake:{lake}", "--as", "main.t", *found.maps)
    assert verified.code == 0, verified.out
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []
    back = str(found.facts["snapshots"][0]["snapshot_id"])
    refused = migrate_case(found, str(lake), "--at", back)
    assert refused.code == 2 and "later state" in refused.json["error"]


@BOTH
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *("evo_swap", "evo_struct"),
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("nested", "evo_rename", "evo_readd", "evo_reorder")
        ),
    ],
)
def test_small_inserts_survive_a_change_of_columns_in_the_lake(kind: str, backend: str, tmp_path: Path) -> None:
    """DuckDB keeps few rows in the catalog; every statement here runs in a session of its own."""
    found, lake = case(kind), tmp_path / f"lake.{'sqlite' if backend else 'ducklake'}"
    assert migrate_case(found, f"{backend}{lake}").code == 0
    versions = subject(found, lake).versions
    rows = versions[-1].rows
    few = rows.slice(0, 2)
    keys = ", ".join(str(value) for value in few.column("id").to_pylist())
    if backend and any(pa.types.is_nested(each) for each in rows.schema.types):
        return  # DuckDB 1.5.5 inlines nested values as text on SQLite, and not all of them come back
    for statement in (
        f"INSERT INTO lake.t SELECT * FROM lake.t WHERE id IN ({keys})",
        "ALTER TABLE lake.t ADD COLUMN added INT",
        "ALTER TABLE lake.t DROP COLUMN added",
    ):
        assert use(f"{backend}{lake}", [statement]) == [""]
    now = Version(None, None, pa.concat_tables([rows, few]), True)
    asked = [Subject(("main", "t"), (*versions, now))]
    assert judge(f"{backend}{lake}", asked, scratch=tmp_path / "judge", change=False, filters=4) == []
    assert use(f"{backend}{lake}", ["CALL ducklake_flush_inlined_data('lake')"]) == [""]
    assert judge(f"{backend}{lake}", asked, scratch=tmp_path / "two", change=False, filters=4) == []


def test_times_that_move_are_said_before_anything_is_written(tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert use(str(lake), ["CREATE TABLE lake.mine (i INT)"]) == [""]
    strict = migrate_case(case("v2_cow"), str(lake), "--strict")
    assert strict.code == 3 and strict.codes()["loss"] == ["history-times-moved"]


@pytest.mark.slow
def test_a_table_keeps_its_ownership(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    older = metadata_files(found)[-3]
    assert run_here("migrate", f"iceberg:{older}", f"ducklake:{lake}", "--as", "main.t", *found.maps).code == 0
    assert run_here("adopt", f"ducklake:{lake}", "--table", "t").code == 0
    assert migrate_case(found, str(lake)).json["tables"][0]["action"] == "append"
    held = run_here("inspect", f"ducklake:{lake}", "--json").json
    assert held["guarded"] is False and held["tables"][0]["ownership"] == "adopt"


@pytest.mark.slow
def test_a_dropped_table_does_not_come_back_by_itself(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    assert migrate_case(found, str(lake)).code == 0
    assert use(str(lake), ["DROP TABLE lake.t"]) == [""]
    refused = migrate_case(found, str(lake))
    assert refused.code == 5 and "dropped" in refused.json["error"]


def files_of_history_alone(found: Case, lake: Path) -> list[Path]:
    """Data files that no longer are live, by a migration of the undamaged table."""
    assert migrate_case(found, str(lake)).code == 0
    return [
        Path(row[0]) for row in lake_rows(lake, "SELECT path FROM ducklake_data_file WHERE end_snapshot IS NOT NULL")
    ]


@pytest.mark.slow
def test_a_file_that_only_history_needs_costs_that_history(tmp_path: Path) -> None:
    found = copied("overwrite", tmp_path / "source")
    gone = files_of_history_alone(found, tmp_path / "whole.ducklake")[0]
    gone.unlink()
    lake = tmp_path / "lake.ducklake"
    ran = migrate_case(found, str(lake))
    assert ran.code == 0, ran.out
    [trimmed] = [each for each in ran.json["tables"][0]["findings"] if each["code"] == "history-trimmed"]
    assert str(gone) in trimmed["detail"]
    assert 0 < len(commits_of(lake)) < len(found.facts["snapshots"])
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []


@pytest.mark.slow
def test_an_old_manifest_list_that_is_gone_costs_what_is_older(tmp_path: Path) -> None:
    found = copied("v2_cow", tmp_path / "source")
    second = str(found.facts["snapshots"][1]["snapshot_id"])
    [listed] = [path for path in manifest_files(found, "list") if path.name.startswith(f"snap-{second}-")]
    listed.unlink()
    lake = tmp_path / "lake.ducklake"
    ran = migrate_case(found, str(lake))
    assert ran.code == 0 and "history-trimmed" in ran.codes()["loss"]
    assert len(commits_of(lake)) == len(found.facts["snapshots"]) - 2
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []


@pytest.mark.slow
def test_a_loss_blocks_when_strict_unless_it_is_accepted(tmp_path: Path) -> None:
    found, lake = case("part_bucket"), tmp_path / "lake.ducklake"
    strict = migrate_case(found, str(lake), "--strict")
    assert strict.code == 3 and not lake.exists()
    assert migrate_case(found, str(lake), "--strict", "--accept", "partition-bucket").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stats_none", "stats_nan"])
def test_unchecked_files_that_may_hide_nan_are_a_risk_to_be_taken_by_name(kind: str, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    unchecked = migrate_case(found, str(lake), "--check-files", "none")
    assert unchecked.code == 3 and unchecked.codes()["blocked"] == ["unchecked-doubt"]
    assert migrate_case(found, str(lake), "--check-files", "none", "--accept", "unchecked-doubt").code == 0


@pytest.mark.slow
def test_every_option_is_an_environment_variable(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    ran = run(
        "migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}", *found.maps,
        env={
            "DUCKLAKE_BRIDGE_MIGRATE_HISTORY": "current",
            "DUCKLAKE_BRIDGE_AS": "main.other",
            "DUCKLAKE_BRIDGE_JSON": "1",
        },
    )  # fmt: skip
    assert ran.code == 0 and json.loads(ran.out)["tables"][0]["snapshots"] == 1
    assert json.loads(ran.out)["tables"][0]["target"] == "other"
