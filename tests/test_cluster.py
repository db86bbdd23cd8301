"""The command line on a standalone Spark cluster whose workers do not have the project: whole runs, processes killed in
the middle, and executors that lack something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support import ROOT, opened, run

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark-cluster")]

ROWS, FILES = 150_000, 8
CONF = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.executor.memory=512m")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metadata of a table of ORC and Avro files; ids divisible by 1000, and those below 100, are deleted by key."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    from tests.file_tables import append, delete_equal, made_rows, save
    from tests.foreign_files import Foreign

    home = tmp_path_factory.mktemp("source")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
    names = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["text"]}]
    made = Foreign(home / "table", schema, names=names)
    ids = {"id": 1, "text": 2}
    files = []
    for number in range(FILES):
        first, count = number * ROWS, ROWS if number else 2_000
        rows = made_rows(f"SELECT i AS id, md5(i::VARCHAR) AS text FROM range({first}, {first + count}) t(i)")
        kind = "orc" if number else "avro"
        files.append((save(home / f"data-{number}.{kind}", rows, ids, {"text": "string"}), count))
    append(made, files)
    for number, (query, kind) in enumerate(((f"range(0, {FILES * ROWS}, 1000)", "parquet"), ("range(0, 100)", "avro"))):
        rows = made_rows(f"SELECT i AS id FROM {query} t(i)")
        delete_equal(made, save(home / f"gone-{number}.{kind}", rows, ids), rows.num_rows, [1])
    return made.metadata


def check(lake: Path) -> None:
    """The lake has exactly the rows that are not deleted, now and before the deletes."""
    every = f"SELECT i FROM range(0, {FILES * ROWS}) t(i) WHERE i < 2000 OR i >= {ROWS}"
    with opened(lake) as connection:
        for at, where in (("", "WHERE i % 1000 <> 0 AND i >= 100"), (" AT (VERSION => 1)", "")):
            query = f"SELECT count(*), sum(id), bool_and(text = md5(id::VARCHAR)) FROM lake.main.t{at}"
            wanted = f"SELECT count(*), sum(i), true FROM ({every}) {where}"
            assert connection.execute(query).fetchall() == connection.execute(wanted).fetchall()


@dataclass
class Asked:
    """A run of the command line against the cluster, from a directory of its own."""

    home: Path
    metadata: Path
    url: str
    python: Path

    @property
    def lake(self) -> Path:
        return self.home / "lake.ducklake"

    @property
    def arguments(self) -> list[str]:
        conf = [word for each in CONF for word in ("--spark-conf", each)]
        places = [f"iceberg:{self.metadata}", f"ducklake:{self.lake}"]
        return ["migrate", *places, "--as", "main.t", "--rewrite", "when-needed", "--spark-master", self.url, *conf]

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(self.python)}

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bridge", *self.arguments],
            cwd=self.home,
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def done(self) -> int:
        """Batches of files that are rewritten."""
        return len(list((self.home / "lake.ducklake.files").rglob("r-*.parquet")))


def until(process: subprocess.Popen[str], asked: Asked, files: int) -> None:
    """Wait for so many written files."""
    deadline = time.monotonic() + 200
    while asked.done() < files and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from tests.spark_cluster import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executors' Python: it has all packages, and not the project."""
    from tests.spark_cluster import BARE, python_apart

    made = python_apart(tmp_path_factory.mktemp("python") / "python")
    env = {key: value for key, value in os.environ.items() if key not in BARE}
    said = subprocess.run(
        [made, "-c", "import duckdb, pyarrow, fastavro, converters"],
        capture_output=True, text=True, check=False, env=env, cwd=made.parent,
    )  # fmt: skip
    assert "No module named 'converters'" in said.stderr
    return made


def test_a_killed_driver_goes_on_where_it_was(standing, python: Path, table: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    asked = Asked(tmp_path, table, standing.url, python)
    killed = asked.start()
    staging = tmp_path / "lake.ducklake.files" / "bridge-staging"
    deadline = time.monotonic() + 200
    while killed.poll() is None and time.monotonic() < deadline and asked.done() < 4:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    tables = [pa.ipc.open_file(path).read_all() for path in staging.rglob("*.arrow")]
    finished = [path for rows in tables if "path" in rows.column_names for path in rows.column("path").to_pylist()]
    stamps = {path: os.stat(path).st_mtime_ns for path in finished}
    assert stamps and not asked.lake.exists()
    ran = run(*asked.arguments, env=asked.env, cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    assert {path: os.stat(path).st_mtime_ns for path in stamps} == stamps, "what was finished is done once"
    check(asked.lake)
    assert not list(staging.parent.rglob(".*"))


def test_lost_processes_cost_their_tasks_alone(standing, python: Path, table: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    asked = Asked(tmp_path, table, standing.url, python)
    going = asked.start()
    until(going, asked, 1)
    worker = next(name for name in standing.workers if standing.pythons(name))
    os.kill(standing.pythons(worker)[-1], signal.SIGKILL)  # the Python of a task
    until(going, asked, 2)
    for pid in standing.executors(worker):  # an executor
        os.kill(pid, signal.SIGKILL)
    until(going, asked, 3)
    standing.workers[worker].kill()  # a machine
    for pid in (*standing.executors(worker), *standing.pythons(worker)):
        os.kill(pid, signal.SIGKILL)
    out, _ = going.communicate(timeout=300)
    assert going.returncode == 0, out
    check(asked.lake)
    assert not list((tmp_path / "lake.ducklake.files").rglob(".*"))


HIDDEN = """exec unshare -m sh -c 'mount -t tmpfs none "{place}" && PYTHONPATH="$PYTHONPATH:{packages}" \\
  exec {python} -S "$@"' python "$@"
"""


@pytest.mark.parametrize(
    "lacking",
    [
        "data",
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("package", "version", "interpreter")),
    ],
)
def test_what_executors_lack_is_said_in_a_line(lacking: str, standing, table: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from tests.spark_cluster import python_apart

    place = tmp_path / "python"
    home = tmp_path / "here"
    home.mkdir()
    match lacking:
        case "package":
            made, said = (
                python_apart(place, without=("duckdb", "_duckdb", "fastavro")),
                "has no package duckdb, fastavro",
            )
        case "version":
            other = next((each for each in others()), None)
            if other is None:
                pytest.skip("no other Python is installed")
            made, said = other, f"this is Python {sys.version_info[0]}.{sys.version_info[1]}"
        case "data":
            if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
                pytest.skip("another view of the files needs root and unshare")
            hide = HIDDEN.format(place=home, packages=f"{place}-packages", python=sys.executable)
            made, said = python_apart(place, before=hide), "the same place for this machine and all executors"
        case _:
            made, said = tmp_path / "no-python", "the executors have no Python called"
    asked = Asked(home, table, standing.url, made)
    ran = run(*asked.arguments, env=asked.env, cwd=home)
    assert ran.code == 6, ran.out + ran.err
    [line] = [each for each in (ran.out + ran.err).splitlines() if said in each]
    assert "Traceback" not in ran.out + ran.err and len(line) < 500, ran.out + ran.err
    if lacking == "package":
        assert str(made) in line or sys.executable in line
    assert not asked.lake.exists()


def others() -> Iterator[Path]:
    """Pythons of other minor versions."""
    for minor in (10, 12, 13, 9):
        if minor != sys.version_info[1]:
            yield from sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
