"""Every kind of Iceberg table that is Parquet without deletes becomes a lake that the judge finds no fault with."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bridge
from tests.judge import Subject, judge
from tests.support import case, kinds, subject, tree_hash, versions

BLOCKED = {
    **dict.fromkeys(("fmt_avro", "fmt_mixed", "fmt_orc"), "file-format"),
    **dict.fromkeys(("v2_eqdel", "v2_eqdel_pos"), "equality-deletes"),
    "pyi_case": "case-collision",
    "v3_tsns": "type-unsupported",
}
# its older snapshots need Spark (tests/test_rewriting.py)
REWRITTEN = {"fmt_mixed_past"}
CARRIED = [kind for kind in kinds() if kind not in {*BLOCKED, *REWRITTEN}]
QUICK = {
    "addfiles_nested",
    "evo_int_long", "evo_readd", "evo_struct", "hist_rollback", "part_hours_tz", "pyi_types", "stats_nan", "v3_default",
}  # fmt: skip
# what every run compacts, which asks all questions before it does; every 24th of the others is only asked them; an
# exhaustive run does all of it for all
SAMPLE = {"part_hours_tz", "v2_mor_compact", "v3_lineage"}


def sampled(names: Sequence[str], quick: Set[str] = frozenset(), sample: Set[str] = SAMPLE) -> list[Any]:
    """Parameters: the quick ones, slow ones, and those that only an exhaustive run takes."""

    def marks(name: str) -> list[Any]:
        if name in quick:
            return []
        return [pytest.mark.slow] if name in sample else [pytest.mark.slow, pytest.mark.exhaustive]

    return [pytest.param(name, marks=marks(name)) for name in names]


HEAVY = {"wide", "many_snapshots"}
SLOW = [
    pytest.param(
        kind,
        marks=[]
        if kind in QUICK
        else [pytest.mark.slow, *[pytest.mark.exhaustive] * (kind in HEAVY or kind in SAMPLE or place % 24)],
    )
    for place, kind in enumerate(CARRIED)
]
# files with the source's last-updated numbers: DuckLake 1.5.5 takes these for snapshots of its own when it merges
# files, and finds NULL there; only snapshots from before the merge miss rows (finding lineage-numbers)
NUMBERED = {"v3_dv_then_insert"}


def migrated(kind: str, lake: Path, ownership: str = "shared", sqlite: bool = False, **more: Any) -> bridge.Report:
    """The fixture in a new lake, through the Python interface."""
    found = case(kind)
    options = bridge.Options(
        rename="main.t",
        ownership=ownership,  # type: ignore[arg-type]  # one of the two
        path_map=bridge.PathMap(tuple((old, str(found.home / new)) for old, new in found.facts["map_prefix"])),
        **more,
    )
    return bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{'sqlite:' if sqlite else ''}{lake}", options)


@pytest.mark.parametrize("kind", SLOW)
def test_every_snapshot_answers_as_iceberg_does(kind: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    before = tree_hash(case(kind).home)
    report = migrated(kind, lake)
    assert report.exit_code == 0 and not report.faults
    assert judge(str(lake), [subject(case(kind), lake)], scratch=tmp_path / "judge", change=False, filters=12) == []
    assert tree_hash(case(kind).home) == before


@pytest.mark.parametrize("kind", sampled(CARRIED))
def test_the_lake_goes_on_after_changes_and_compaction(kind: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    migrated(kind, lake, ownership="adopt")
    found = judge(
        str(lake), [subject(case(kind), lake)], scratch=tmp_path / "judge", compact=True, filters=8, timeout=500
    )
    if kind in NUMBERED:
        assert found and all(re.search(r"@\d+ after ", each) for each in found)
        return
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "evo_struct",
        *(
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in ("part_hours_tz", "prims", "v3_default", "pyi_types")
        ),
    ],
)
def test_sqlite_catalogs_answer_alike(kind: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.sqlite"
    migrated(kind, lake, sqlite=True)
    assert judge(f"sqlite:{lake}", [subject(case(kind), lake)], scratch=tmp_path / "judge", filters=4) == []


@pytest.mark.parametrize("kind", sorted(BLOCKED))
def test_what_cannot_be_registered_is_blocked_by_name_when_nothing_may_be_rewritten(kind: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    report = migrated(kind, lake, rewrite="never")
    assert report.exit_code == 3
    blockers = report.plan.tables[0].blockers
    assert BLOCKED[kind] in {each.code.text for each in blockers}
    if BLOCKED[kind] not in ("case-collision", "type-unsupported"):
        assert all(each.files for each in blockers)
    assert list(tmp_path.iterdir()) == []


def nanoseconds(choice: str, lake: Path, **more: Any) -> bridge.Report:
    found = case("v3_tsns")
    options = bridge.Options(
        rename="main.t",
        type_map=(("timestamptz_ns", choice),),
        path_map=bridge.PathMap(tuple((old, str(found.home / new)) for old, new in found.facts["map_prefix"])),
        **more,
    )
    return bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:{lake}", options)


@pytest.mark.slow
def test_nanosecond_instants_may_be_cut_to_microseconds_when_asked(tmp_path: Path) -> None:
    lake, found = tmp_path / "lake.ducklake", case("v3_tsns")
    report = nanoseconds("timestamptz", lake)
    assert report.exit_code == 0 and not report.faults
    assert "type-narrowed" in {each.code.text for each in report.plan.tables[0].findings}
    rows = found.rows(found.facts["current"])
    cut = [None if value is None else int(value / 1000) for value in rows["tz"].cast(pa.int64()).to_pylist()]
    rows = rows.set_column(
        rows.schema.get_field_index("tz"), "tz", pa.array(cut, pa.int64()).cast(pa.timestamp("us", "UTC"))
    )
    states = (*versions(found, lake)[:-1], replace(versions(found, lake)[-1], rows=rows))
    assert judge(str(lake), [Subject(("main", "t"), states[-1:])], scratch=tmp_path / "judge", filters=6) == []


def test_nanosecond_instants_never_depend_on_the_session(tmp_path: Path) -> None:
    report = nanoseconds("timestamp_ns", tmp_path / "lake.ducklake", rewrite="never")
    assert report.exit_code == 3
    assert {each.code.text for each in report.plan.tables[0].blockers} == {"physical-type"}
