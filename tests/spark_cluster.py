"""A standalone Spark cluster from the pyspark package: a master and workers on free ports, ended by their ids."""

from __future__ import annotations

import os
import re
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Cluster", "cluster", "python_apart", "running"]

BARE = ("PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@dataclass
class Cluster:
    """`workers` are the processes of the workers by name; their executors work below `home`/name."""

    home: Path
    url: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def executors(self, worker: str) -> list[int]:
        """The JVMs of the executors of a worker."""
        return running(self.home / worker, "CoarseGrainedExecutorBackend")

    def pythons(self, worker: str) -> list[int]:
        """The Python processes that work for the executors of a worker."""
        return running(self.home / worker, "pyspark.daemon")


def running(below: Path, word: str) -> list[int]:
    """Processes whose working directory is below a folder and whose command holds a word."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                command = (each / "cmdline").read_bytes().decode(errors="replace")
                place = os.readlink(each / "cwd")
            except OSError:
                continue
            if word in command and f"{place}/".startswith(f"{below}/"):
                found.append(int(each.name))
    return sorted(found)


@contextmanager
def cluster(home: Path, workers: Sequence[str] = ("worker-a", "worker-b")) -> Iterator[Cluster]:
    """A master and workers of one core, which have no path to the project."""
    import pyspark

    spark = Path(pyspark.__file__).parent
    env = {key: value for key, value in os.environ.items() if key not in BARE}
    env |= {"SPARK_HOME": str(spark), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    made = Cluster(home)

    def launch(name: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        place, log = home / name, home / f"{name}.log"
        place.mkdir(parents=True)
        with log.open("wb") as output:
            command = [str(spark / "bin" / "spark-class"), *arguments]
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=place, env=env)
        made.processes.append(process)
        return process, log

    def wait(log: Path, pattern: str) -> str:
        for _ in range(1800):
            if found := re.search(pattern, log.read_text()):
                return found.group(0)
            time.sleep(0.1)
        raise AssertionError(log.read_text()[-2000:])

    try:
        package = "org.apache.spark.deploy"
        options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        _, log = launch("master", f"{package}.master.Master", *options)
        made.url = wait(log, r"spark://127\.0\.0\.1:\d+")
        logs = []
        for name in workers:
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(home / name / "work"))
            made.workers[name], log = launch(name, f"{package}.worker.Worker", *options, *limits, made.url)
            logs.append(log)
        for log in logs:
            wait(log, "Successfully registered with master")
        yield made
    finally:
        left = [pid for name in workers for pid in (*made.executors(name), *made.pythons(name))]
        for each in reversed(made.processes):
            each.terminate()
        for each in made.processes:
            each.wait(30)
        for pid in left:  # of a worker that was killed itself
            if pid in [*(p for name in workers for p in (*made.executors(name), *made.pythons(name)))]:
                os.kill(pid, signal.SIGKILL)


def python_apart(script: Path, without: Sequence[str] = (), before: str = "") -> Path:
    """This Python with its packages, less those named, and without the project that may be installed among them for
    editing. `before` is shell that its process runs first."""
    packages = script.parent / f"{script.name}-packages"
    packages.mkdir(parents=True)
    for place in filter(os.path.isdir, site.getsitepackages()):  # Debian's Python names some that are not there
        for each in Path(place).iterdir():
            if each.name.split(".")[0].split("-")[0] not in (*without, "bridge", "converters"):
                (packages / each.name).symlink_to(each)
    line = f'PYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"'
    script.write_text(f"#!/bin/sh\n{before}\n{line}\n")
    script.chmod(0o755)
    return script
