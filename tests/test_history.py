"""How much history is carried, and what a user can ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.judge import Subject, Version, judge
from tests.support import Case, case, commits_of, lake_rows, migrate_case, subject
from tests.test_bad_input import manifest_files
from tests.test_ownership import copied


def test_only_the_current_snapshot_when_asked(tmp_path: Path) -> None:
    found, lake = case("evo_struct"), tmp_path / "lake.ducklake"
    ran = migrate_case(found, str(lake), "--history", "current")
    assert ran.code == 0 and ran.codes()["loss"] == ["history-current"]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_snapshot") == [(2,)]
    current = Subject(("main", "t"), (Version(None, None, found.rows(found.facts["current"])),))
    assert judge(str(lake), [current], scratch=tmp_path / "judge", change=False, filters=4) == []


def files_of_history_alone(found: Case, lake: Path) -> list[Path]:
    """Data files that no longer are live, by a migration of the undamaged table."""
    assert migrate_case(found, str(lake)).code == 0
    return [
        Path(row[0]) for row in lake_rows(lake, "SELECT path FROM ducklake_data_file WHERE end_snapshot IS NOT NULL")
    ]


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


def test_a_loss_blocks_when_strict_unless_it_is_accepted(tmp_path: Path) -> None:
    found, lake = case("part_bucket"), tmp_path / "lake.ducklake"
    strict = migrate_case(found, str(lake), "--strict")
    assert strict.code == 3 and not lake.exists()
    assert migrate_case(found, str(lake), "--strict", "--accept", "partition-bucket").code == 0


@pytest.mark.parametrize("kind", ["stats_none", "stats_nan"])
def test_unchecked_files_that_may_hide_nan_are_a_risk_to_be_taken_by_name(kind: str, tmp_path: Path) -> None:
    found, lake = case(kind), tmp_path / "lake.ducklake"
    unchecked = migrate_case(found, str(lake), "--check-files", "none")
    assert unchecked.code == 3 and unchecked.codes()["blocked"] == ["unchecked-doubt"]
    assert migrate_case(found, str(lake), "--check-files", "none", "--accept", "unchecked-doubt").code == 0


def test_every_option_is_an_environment_variable(tmp_path: Path) -> None:
    from tests.support import run

    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    ran = run(
        "migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}", *found.maps,
        env={"DUCKLAKE_BRIDGE_MIGRATE_HISTORY": "current", "DUCKLAKE_BRIDGE_JSON": "1"},
    )  # fmt: skip
    assert ran.code == 0 and json.loads(ran.out)["tables"][0]["snapshots"] == 1
