"""Runs that rewrite, stopped at every step by the real signals: the next one ends where an undisturbed one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support import ROOT, lake_rows, opened, run

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("interrupted")]

PARTS, BIG = 70, 1_500_000
"""More files than one batch takes, and a file that takes a while."""


def made(home: Path) -> Path:
    """A table of two batches of files in two snapshots; its metadata file."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField

    catalog = SqlCatalog("c", uri=f"sqlite:///{home}/c.db", warehouse=f"file://{home}")
    catalog.create_namespace("n")
    schema = Schema(NestedField(1, "part", LongType()), NestedField(2, "value", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
    table = catalog.create_table("n.t", schema, partition_spec=spec)
    table.append(pa.table({"part": [n % PARTS for n in range(7_000)], "value": range(7_000)}))
    table.append(pa.table({"part": pa.array([PARTS] * BIG), "value": pa.array(range(BIG))}))
    catalog.close()
    return Path(table.metadata_location.removeprefix("file://"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("source"))


@dataclass
class Run:
    """The command in a session of its own, its progress line by line."""

    process: subprocess.Popen[str]
    lake: Path

    @property
    def data(self) -> Path:
        return Path(f"{self.lake}.files")

    def lines(self) -> Iterator[str]:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            yield line

    def stop(self, number: int) -> tuple[int, str]:
        """Signal the process, and its children where a terminal does; the exit code and the last words."""
        assert self.process.stderr is not None
        if number == signal.SIGTERM:
            self.process.send_signal(number)
        else:
            os.killpg(self.process.pid, number)
        said = self.process.stderr.read()
        self.process.wait(60)
        self.process.stderr.close()
        deadline = time.monotonic() + 15
        while (left := session_of(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == []
        return self.process.returncode, said


def session_of(leader: int) -> list[str]:
    """What still runs of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, fields = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, _, _, session = fields.split()[:4]
        if int(session) == leader and state != "Z":
            found.append(head)
    return found


def arguments(source: Path, lake: Path) -> list[str]:
    given = ["migrate", f"iceberg:{source}", f"ducklake:{lake}", "--as", "main.t", "--rewrite", "always"]
    return [*given, "--spark-master", "local[1]", "--verify", "none"]


def start(source: Path, lake: Path) -> Run:
    process = subprocess.Popen(
        [sys.executable, "-m", "bridge", *arguments(source, lake)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Run(process, lake)


def at_line(running: Run, word: str) -> None:
    """Wait for a line of progress that holds a word."""
    seen = []
    for line in running.lines():
        seen.append(line)
        if word in line:
            return
    raise AssertionError(f"ended without {word}: {seen}")


def at_write(running: Run) -> None:
    """Wait until a file is being written."""
    at_line(running, "rewriting: 0 of")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(running.data.rglob(".r-*.bridge-tmp")):
            return
        time.sleep(0.001)
    raise AssertionError("nothing was written")


def at_next_batch(running: Run) -> None:
    """Wait until a batch is done and another is not."""
    for line in running.lines():
        _, found, numbers = line.partition("rewriting: ")
        if found and not numbers.startswith("0 of"):
            done, _, every = numbers.split(" bytes")[0].partition(" of ")
            assert done != every
            return
    raise AssertionError("ended before")


def test_stopped_at_every_step_it_ends_where_an_undisturbed_run_ends(source: Path, tmp_path: Path) -> None:
    """One lake, one run after the other: each goes on where the one before it was stopped."""
    lake, in_place = tmp_path / "lake.ducklake", tmp_path / "place.ducklake"
    [older] = source.parent.glob("00001-*.metadata.json")

    killed = start(older, lake)
    at_write(killed)
    assert killed.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    left = orphans(lake)
    assert left and staged(lake)

    killed = start(source, lake)  # the source moved on: what was left is of no use
    at_line(killed, "rewriting: 0 of")
    assert killed.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert not any(each.exists() for each in left) and len({each for each in staged(lake) if each.is_dir()}) == 2

    stopped = start(source, lake)
    at_next_batch(stopped)
    code, said = stopped.stop(signal.SIGINT)
    assert code == 130 and said.count("interrupted") == 1 and "goes on where it stopped" in said
    assert "Traceback" not in said and "Exception" not in said, said
    written = {each: each.stat().st_mtime_ns for each in stopped.data.rglob("r-*.parquet")}
    assert len([each for each in staged(lake) if each.suffix == ".arrow"]) == 1 and len(written) >= 64

    stopped = start(source, lake)
    seen = list(until(stopped, "committing"))
    code, said = stopped.stop(signal.SIGTERM)
    assert code == 130 and said.count("interrupted") == 1
    assert any("64 done before" in line for line in seen) and not lake.exists()
    finished = {each: each.stat().st_mtime_ns for each in stopped.data.rglob("r-*.parquet")}
    assert written.items() <= finished.items() and len(finished) == PARTS + 1

    killed = start(source, lake)
    seen = list(until(killed, "cleaning up"))
    assert killed.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert any(f"{PARTS + 1} done before" in line for line in seen) and lake.exists()

    last = run(*arguments(source, lake))
    assert last.code == 0 and "nothing to do" in last.out
    assert {each: each.stat().st_mtime_ns for each in killed.data.rglob("r-*.parquet")} == finished
    assert orphans(lake) == [] and staged(lake) == []
    whole = run("migrate", f"iceberg:{source}", f"ducklake:{in_place}", "--as", "main.t", "--verify", "none")
    assert whole.code == 0, whole.err
    assert [row[0] for row in answers(lake)] == [7_000, 7_000 + BIG]
    assert answers(lake) == answers(in_place)


def until(running: Run, word: str) -> Iterator[str]:
    """The lines of progress up to one that holds a word."""
    for line in running.lines():
        yield line
        if word in line:
            return
    raise AssertionError(f"ended without {word}")


def answers(lake: Path) -> list[tuple[object, ...]]:
    """Rows of every snapshot of the table, as digests."""
    snapshots = lake_rows(lake, "SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_id > 0 ORDER BY 1")
    query = "SELECT count(*), sum(hash(t)), bit_xor(hash(t)), sum(value) FROM (SELECT * FROM t AT (VERSION => {})) t"
    with opened(lake) as connection:
        return [connection.execute(query.format(each)).fetchall()[0] for (each,) in snapshots]


def staged(lake: Path) -> list[Path]:
    return [each for each in Path(f"{lake}.files").rglob("*") if "bridge-staging" in each.parts]


def orphans(lake: Path) -> list[Path]:
    """Files below the data path that the catalog does not know, staging aside."""
    files = [each for each in Path(f"{lake}.files").rglob("*") if each.is_file() and "bridge-staging" not in each.parts]
    known: set[str] = set()
    if lake.exists():
        known = {row[0].rsplit("/", 1)[-1] for row in lake_rows(lake, "SELECT path FROM ducklake_data_file")}
    return [each for each in files if each.name not in known]


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of its own with little room."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    ("what", "size"), [("data", "300k"), pytest.param("catalog", "512k", marks=pytest.mark.exhaustive)]
)
def test_a_full_disk_is_one_error_and_the_next_run_goes_on(what: str, size: str, source: Path, tmp_path: Path) -> None:
    """300k: not even the note of the failure finds room. 512k: the catalog fails at its very end."""
    with small_disk(tmp_path / "disk", size) as disk:
        lake = (disk if what == "catalog" else tmp_path) / "lake.ducklake"
        data = (disk if what == "data" else tmp_path) / "own"
        asked = [*arguments(source, lake), "--data-path", str(data)]
        full = run(*asked)
        said = full.err.splitlines()
        assert full.code == 6 and not lake.exists(), full.err
        assert said[-2].startswith("error: ") and said[-2].endswith("the disk is full") and "hint: " in said[-1]
        assert "Traceback" not in full.err and "Exception" not in full.err
        assert [each.name for each in disk.glob("lake*")] == []
        written = {each: each.stat().st_mtime_ns for each in data.rglob("r-*.parquet")}
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        again = run(*asked)
        assert again.code == 0, again.err
        if what == "catalog":
            assert {each: each.stat().st_mtime_ns for each in data.rglob("r-*.parquet")} == written != {}
        assert [row[0] for row in answers(lake)] == [7_000, 7_000 + BIG]
