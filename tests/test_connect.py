"""Rewriting through a Spark Connect server, and what is said when there is none or the client lacks its packages."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.judge import judge
from tests.support import ROOT, case, migrate_case, run, subject, tree_hash
from tests.test_rewriting import test_every_snapshot_answers_and_the_lake_goes_on as whole

pyspark = pytest.importorskip("pyspark")
HOME = Path(pyspark.__file__).parent
SERVER = list((HOME / "jars").glob("spark-connect_*.jar"))
CLIENT = find_spec("grpc") is not None and find_spec("grpc_status") is not None
needs_server = pytest.mark.skipif(
    not (SERVER and CLIENT), reason="pyspark has the Connect server from 4.0 on; scripts/spark_versions.py runs this"
)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark-connect"),
    pytest.mark.filterwarnings("ignore"),  # of pyspark and grpc
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of one core on a free port, which has no path to the project."""
    home = tmp_path_factory.mktemp("connect")
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_REMOTE")}
    env |= {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(home),
    }
    conf = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]", *conf]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=home, env=env, start_new_session=True)
    try:
        for _ in range(600):
            if found := re.search(r"Spark Connect server started at: \S*?:(\d+)", log.read_text()):
                break
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        else:
            raise AssertionError(log.read_text()[-3000:])
        yield f"sc://127.0.0.1:{found.group(1)}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@needs_server
def test_a_local_session_after_a_connected_one(server: str) -> None:
    asked = "from converters.spark.session import Engine, SessionOptions as O\n"
    asked += f"with Engine(O.parse(remote={server!r})) as engine:\n    print(engine.session.range(2).count())\n"
    asked += "with Engine(O.parse('local[1]')) as engine:\n    print(engine.session.range(3).count())\n"
    ran = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.split() == ["2", "3"], ran.stderr[-2000:]


@needs_server
def test_the_command_line_migrates_through_a_server(server: str, tmp_path: Path) -> None:
    found, lake = case("fmt_mixed"), tmp_path / "lake.ducklake"
    before = tree_hash(found.home)
    ran = migrate_case(found, str(lake), "--rewrite", "when-needed", "--spark-remote", server, how=run)
    assert ran.code == 0, ran.out + ran.err
    assert judge(str(lake), [subject(found, lake)], scratch=tmp_path / "judge", change=False, filters=4) == []
    assert tree_hash(found.home) == before


@needs_server
@pytest.mark.parametrize("kind", ["fmt_orc", "v2_eqdel_pos"])
def test_the_users_own_session_does_it(kind: str, server: str, tmp_path: Path) -> None:
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(server).create()
    try:
        whole(kind, session, tmp_path)
        assert session.range(3).count() == 3, "it is still the user's"
    finally:
        session.stop()


@needs_server
def test_a_file_that_cannot_be_read_stops_the_run_by_name(server: str, tmp_path: Path) -> None:
    from bridge.errors import Unreachable
    from bridge.model.types import Field, FieldId, Leaf
    from converters.spark.plan import DataFile, RewriteTask, Target
    from converters.spark.rewriter import Rewriter
    from converters.spark.session import Engine, SessionOptions

    bad = tmp_path / "bad.orc"
    bad.write_bytes(b"ORC nothing")
    target = Target(str(tmp_path / "out"), (Field(FieldId(1), "i", Leaf.INT64),))
    tasks = [RewriteTask(str(n), DataFile(str(bad), "orc", size=200 << 20), target, f"t{n}") for n in range(4)]
    with (
        Engine(SessionOptions.parse(remote=server)) as engine,
        pytest.raises(Unreachable, match=r"bad\.orc cannot be read"),
    ):
        Rewriter(engine, str(tmp_path / "staging")).run("plan", tasks)


@pytest.mark.parametrize("lacking", ["grpc", "server"])
def test_what_is_missing_is_said_in_a_line(lacking: str, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    if lacking == "grpc":
        (hidden / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')")
    found, lake = case("fmt_orc"), tmp_path / "lake.ducklake"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = "sc://127.0.0.1:1" if lacking == "server" else f"sc://127.0.0.1:{listening.getsockname()[1]}"
        options = ("--rewrite", "when-needed", "--spark-remote", place)
        ran = run(
            *("migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}", "--as", "main.t", *found.maps, *options),
            env={"PYTHONPATH": f"{hidden}:{ROOT}"},
        )
    said = ran.out + ran.err
    assert ran.code == 6 and "Traceback" not in said, said
    wanted = place if lacking == "server" else "ducklake-bridge[connect]"
    assert [line for line in said.splitlines() if wanted in line], said
    assert not lake.exists()
