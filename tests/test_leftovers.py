"""What is removed of unfinished work, and above all what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.errors import Conflict
from bridge.model.rewrite import work_mark
from bridge.model.table import TableName
from converters import storage
from converters.storage.claims import claimed
from converters.storage.leftovers import held, sweep, work_name
from tests.support import ROOT

TABLE, PLAN, OTHER = TableName(("main",), "t"), "0" * 16, "1" * 16
FOREIGN = {"ducklake-x.parquet", f"r-{'a' * 32}-p{'f' * 24}-0.parquet", f"r-{'a' * 32}-0.parquet"}
"""Files of the lake, of other work, and of none."""


class Lake:
    """Unfinished work on a disk, as a run leaves it, in a table's directory that others use too."""

    def __init__(self, home: Path) -> None:
        self.catalog = f"duckdb:{home}/lake.ducklake"
        self.staging, self.directory = home / "staging", home / "main" / "t"
        with held(str(self.staging), self.catalog, TABLE, PLAN, str(self.directory)):
            work = work_name(self.catalog, TABLE, PLAN)
            self.file = f"r-{'a' * 32}{work_mark(work)}-0.parquet"
            self.directory.joinpath("k=a", "year=44").mkdir(parents=True)
            for name in (f"r-{'b' * 32}{work_mark(work)}-v2-1.parquet", f".{self.file}.{'c' * 32}.bridge-tmp"):
                self.directory.joinpath(name).touch()
            for name in (self.file, *FOREIGN):
                self.directory.joinpath("k=a", "year=44", name).touch()
            self.root = self.staging / work
            (self.root / "batch-1.arrow").touch()

    def sweep(
        self, plans: Mapping[TableName, str], registered: tuple[str, ...] = (), committed: Mapping[str, str] = {}
    ) -> set[str]:
        """The names left of files."""
        known = frozenset(f"k=a/year=44/{name}" for name in registered)
        sweep(
            str(self.staging),
            self.catalog,
            plans,
            lambda: committed,
            lambda text: frozenset(path for path in known if text in path),
        )
        return {path.name for path in self.directory.rglob("*") if path.is_file()}

    def owner(self, **told: object) -> Path:
        path = self.root / "owner-0.json"
        path.write_text(json.dumps(told))
        return path


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_work_of_another_plan_goes_but_nothing_foreign_or_registered(lake: Lake) -> None:
    assert lake.sweep({TABLE: OTHER}, (lake.file,)) == {lake.file, *FOREIGN}
    assert not lake.staging.exists()


def test_committed_work_goes_whatever_the_run_is_about(lake: Lake) -> None:
    assert lake.sweep({}, (lake.file,), {"main.t": PLAN}) == {lake.file, *FOREIGN}
    assert not lake.staging.exists()


@pytest.mark.parametrize("plans", [{TABLE: PLAN}, {TableName((), "other"): OTHER}, {}])
def test_work_that_may_be_taken_up_stays(plans: Mapping[TableName, str], lake: Lake) -> None:
    assert len(lake.sweep(plans)) == 6 and (lake.root / "batch-1.arrow").exists()


def test_work_for_other_tables_goes_after_a_week(lake: Lake) -> None:
    note = lake.root / "work.json"
    os.utime(note, (note.stat().st_mtime - 8 * 86_400,) * 2)
    assert lake.sweep({}) == FOREIGN


def test_work_of_another_catalog_stays(lake: Lake) -> None:
    lake.catalog = f"{lake.catalog}-2"
    assert len(lake.sweep({TABLE: OTHER})) == 6


@contextmanager
def other_process(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Somebody else who claims a directory."""
    script = (
        "import sys\nfrom converters.storage.claims import claimed\n"
        f"with claimed({str(directory)!r}):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()
        process.wait()


@pytest.mark.slow
def test_work_of_a_living_process_stays_until_it_is_dead(lake: Lake) -> None:
    with other_process(lake.root) as process:
        assert len(lake.sweep({TABLE: OTHER})) == 6
        with pytest.raises(Conflict, match=str(process.pid)), claimed(str(lake.root)):
            raise AssertionError("two at once")
        process.kill()
        process.wait()
        assert list(lake.root.glob("owner-*"))
        assert lake.sweep({TABLE: OTHER}) == FOREIGN


def test_on_another_machine_the_age_of_the_sign_tells(lake: Lake) -> None:
    owner = lake.owner(machine="another", host="another", pid=1, started="1")
    assert len(lake.sweep({TABLE: OTHER})) == 6
    os.utime(owner, (owner.stat().st_mtime - 600,) * 2)
    assert lake.sweep({TABLE: OTHER}) == FOREIGN


def test_a_directory_that_another_run_removes_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that end remove the directory of their work as long as nothing is in it, one after the other."""
    real, made = storage.make_directory, list[str]()

    def make_directory(uri: str) -> None:
        real(uri)
        made.append(uri)
        if len(made) <= 5:
            storage.remove_directory(uri)

    monkeypatch.setattr(storage, "make_directory", make_directory)
    with claimed(str(tmp_path / "work")) as claim:
        claim.require()
    assert len(made) == 6


def test_a_run_whose_work_was_taken_away_does_not_commit(tmp_path: Path) -> None:
    with claimed(str(tmp_path)) as claim:
        claim.require()
        (tmp_path / claim.name).unlink()
        with pytest.raises(Conflict, match="another run"):
            claim.require()
