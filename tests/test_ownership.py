"""Source files survive everything that a lake's own users and its maintenance do to it; giving back and taking over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.judge import Subject, Version, judge
from tests.support import Case, case, lake_rows, migrate_case, run_here, tree_hash, use

BOTH = pytest.mark.parametrize("backend", ["", pytest.param("sqlite:", marks=pytest.mark.exhaustive)])
"""DuckDB files, and SQLite files in an exhaustive run."""

MAINTENANCE = (
    "DELETE FROM lake.t WHERE id < 3",
    "UPDATE lake.t SET v = 'changed' WHERE id = 4",
    "INSERT INTO lake.t SELECT * FROM lake.t",
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
    "DELETE FROM lake.t",
    "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
    "CHECKPOINT lake",
    "DROP TABLE lake.t",
    "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
)


def copied(kind: str, place: Path) -> Case:
    """A fixture in a place of its own, so that files could be lost."""
    found = case(kind)
    shutil.copytree(found.home, place / kind)

    class Copied(Case):
        @property
        def home(self) -> Path:
            return place / kind

    return Copied(kind, found.facts)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["", "sqlite:"])
@pytest.mark.parametrize("kind", ["v2_cow", pytest.param("long_delete_cow_part", marks=pytest.mark.slow)])
def test_shared_source_survives_maintenance(kind: str, backend: str, tmp_path: Path) -> None:
    found = copied(kind, tmp_path / "source")
    lake = tmp_path / "lake.db"
    assert migrate_case(found, f"{backend}{lake}").code == 0
    before = tree_hash(found.home)
    said = use(f"{backend}{lake}", MAINTENANCE)
    assert tree_hash(found.home) == before
    if backend:
        assert [each for each in said if each] == []
    else:
        assert any("CHECK" in each for each in said)


@pytest.mark.slow
@BOTH
def test_the_guard_is_what_saves_the_source(backend: str, tmp_path: Path) -> None:
    """The same script without the guard deletes files: it can fail."""
    found = copied("v2_cow", tmp_path / "source")
    lake = tmp_path / "lake.db"
    assert migrate_case(found, f"{backend}{lake}", "--ownership", "adopt").code == 0
    before = tree_hash(found.home)
    assert [each for each in use(f"{backend}{lake}", MAINTENANCE) if each] == []
    assert tree_hash(found.home) != before


@pytest.mark.slow
@BOTH
def test_adopted_files_are_really_merged(backend: str, tmp_path: Path) -> None:
    found = copied("many_snapshots", tmp_path / "source")
    lake = tmp_path / f"lake.{'sqlite' if backend else 'ducklake'}"
    assert migrate_case(found, f"{backend}{lake}").code == 0
    assert run_here("adopt", f"ducklake:{backend}{lake}", "--table", "t").code == 0
    live = "SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL"
    before = lake_rows(lake, live)[0][0]
    said = use(
        f"{backend}{lake}",
        [
            "CALL ducklake_merge_adjacent_files('lake')",
            "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
            "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        ],
    )
    assert said == ["", "", ""]
    assert lake_rows(lake, live)[0][0] < before
    current = Subject(("main", "t"), (Version(None, None, found.rows(found.facts["current"])),))
    assert judge(f"{backend}{lake}", [current], scratch=tmp_path / "judge", change=False) == []


@pytest.mark.slow
@BOTH
def test_release_forgets_the_table_and_touches_no_file(backend: str, tmp_path: Path) -> None:
    found = copied("evo_struct", tmp_path / "source")
    lake = tmp_path / f"lake.{'sqlite' if backend else 'ducklake'}"
    before = tree_hash(found.home)
    assert migrate_case(found, f"{backend}{lake}").code == 0
    assert use(f"{backend}{lake}", ["CREATE TABLE lake.other AS SELECT 1 AS one"]) == [""]
    released = run_here("release", f"ducklake:{backend}{lake}", "--table", "t", "--json")
    assert released.code == 0 and released.json["released"][0]["files"] > 0
    assert tree_hash(found.home) == before
    assert use(f"{backend}{lake}", ["SELECT * FROM lake.other", "INSERT INTO lake.other VALUES (2)"]) == ["", ""]
    assert "does not exist" in use(f"{backend}{lake}", ["SELECT * FROM lake.t"])[0]
    named = lake_rows(
        lake, "SELECT count(*) FROM ducklake_data_file WHERE table_id NOT IN (SELECT table_id FROM ducklake_table)"
    )
    assert named == [(0,)]
    again = migrate_case(found, f"{backend}{lake}")
    assert again.code == 0 and again.json["tables"][0]["action"] == "create"
    assert "history-times-moved" in again.codes()["loss"]


@pytest.mark.slow
def test_release_keeps_what_was_written_in_the_lake_unless_told(tmp_path: Path) -> None:
    found, lake = case("v2_cow"), tmp_path / "lake.ducklake"
    assert migrate_case(found, str(lake)).code == 0
    assert use(str(lake), ["INSERT INTO lake.t SELECT * FROM lake.t LIMIT 1"]) == [""]
    refused = run_here("release", f"ducklake:{lake}", "--table", "t")
    assert refused.code == 3 and "--discard-changes" in refused.err
    assert use(str(lake), ["SELECT * FROM lake.t"]) == [""]
    assert run_here("release", f"ducklake:{lake}", "--table", "t", "--discard-changes").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["release", "adopt"])
def test_only_migrated_tables_are_released_or_adopted(command: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert migrate_case(case("v2_cow"), str(lake)).code == 0
    assert use(str(lake), ["CREATE TABLE lake.mine AS SELECT 1 AS one"]) == [""]
    for name in ("mine", "main.nothing", "other.t"):
        refused = run_here(command, f"ducklake:{lake}", "--table", name)
        assert refused.code == 2 and "main.t" in refused.err


@pytest.mark.slow
def test_a_lake_inside_its_source_is_refused(tmp_path: Path) -> None:
    found = copied("v2_cow", tmp_path)
    (tmp_path / "link").symlink_to(found.home)
    for data_path in (found.home / "table" / "lakefiles", tmp_path / "link" / "table", tmp_path):
        lake = tmp_path / "lakes.ducklake"
        refused = migrate_case(found, str(lake), "--data-path", str(data_path))
        assert refused.code == 3 and refused.codes()["blocked"] == ["data-path-overlap"]
        assert not lake.exists()
