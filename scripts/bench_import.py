"""Measure the import of a DuckDB file against DuckDB's own COPY FROM DATABASE into a DuckLake.

    python scripts/bench_import.py [FILE] [--sf 10] [--memory-limit 2GB] [--runs 1] [--keep DIRECTORY]

FILE is a DuckDB file; without one, or where it does not exist, TPC-H is made at --sf by DuckDB's extension `tpch`
(pip install duckdb-extension-tpch==1.5.5); 10 makes a file of more than 2 GB. Both importers run as processes of their
own, one after the other, with the same memory limit, into new lakes on the same disk; neither verifies. Times are of
the wall and of the processor, memory is the peak of the process as the kernel counts it. Then every table of the two
lakes is compared by count and row hash. Last, a small file with a key, a check, an index, a sequence and an enum is
imported by both: the command aborts as a whole, the import does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb

from converters.parquet.extensions import load
from converters.parquet.sql import identifier, literal

_COMMAND = """
import sys
import duckdb
from converters.parquet.extensions import load
file, lake, limit = sys.argv[1:]
connection = duckdb.connect(config={"memory_limit": limit})
connection.execute("SET enable_progress_bar = false")
load(connection, "ducklake")
connection.execute(f"ATTACH '{file}' AS source (READ_ONLY)")
connection.execute(f"ATTACH 'ducklake:{lake}' AS lake (DATA_PATH '{lake}.files/')")
connection.execute("COPY FROM DATABASE source TO lake")
"""
_ODD = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE SEQUENCE ids;
CREATE TABLE people (id INTEGER PRIMARY KEY DEFAULT nextval('ids'), m mood, n INTEGER CHECK (n > 0));
INSERT INTO people (m, n) VALUES ('happy', 1), ('sad', 2);
CREATE TABLE plain AS SELECT range AS i FROM range(10);
CREATE INDEX by_n ON people (n);
"""


@dataclass(frozen=True)
class Measured:
    """One run of a process."""

    wall: float
    processor: float
    peak: int
    code: int


def measured(command: list[str]) -> Measured:
    """Run a command to its end."""
    began = time.monotonic()
    process = os.posix_spawn(sys.executable, [sys.executable, *command], os.environ)
    _, status, usage = os.wait4(process, 0)
    took = time.monotonic() - began
    return Measured(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss >> 10, os.waitstatus_to_exitcode(status))


def by_command(file: Path, lake: Path, limit: str) -> Measured:
    """COPY FROM DATABASE."""
    return measured(["-c", _COMMAND, str(file), str(lake), limit])


def by_import(file: Path, lake: Path, limit: str) -> Measured:
    """This tool, without its verification."""
    asked = ["--rewrite", "when-needed", "--verify", "none", "--memory-limit", limit, "--json"]
    asked += ["--report", f"{lake}.json"]
    silent = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            return measured(["-m", "bridge", "migrate", f"duckdb:{file}", f"ducklake:{lake}", *asked])
        finally:
            os.dup2(silent, 1)
            os.close(silent)


def differences(first: Path, second: Path) -> list[str]:
    """The tables whose rows differ between two lakes."""
    found = []
    with duckdb.connect() as connection:
        load(connection, "ducklake")
        for name, lake in (("a", first), ("b", second)):
            connection.execute(f"ATTACH {literal(f'ducklake:{lake}')} AS {name} (READ_ONLY)")
        names = connection.execute(
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'a' ORDER BY ALL"
        ).fetchall()
        for schema, table in names:
            told = [
                connection.execute(
                    f"SELECT count(*), sum(hash(t)::HUGEINT) FROM {side}.{identifier(schema)}.{identifier(table)} t"
                ).fetchall()
                for side in ("a", "b")
            ]
            if told[0] != told[1]:
                found.append(f"{schema}.{table}: {told[0]} and {told[1]}")
    return found


def made(file: Path, sf: float) -> None:
    """TPC-H at a scale factor, in steps that bound the memory."""
    steps = max(1, int(sf))
    with duckdb.connect(str(file)) as connection:
        load(connection, "tpch")
        for step in range(steps):
            connection.execute(f"CALL dbgen(sf = {sf}, children = {steps}, step = {step})")
        connection.execute("CHECKPOINT")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--sf", type=float, default=10)
    parser.add_argument("--memory-limit", default="2GB")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.keep) as name:
        folder = Path(name)
        file = asked.file or folder / "tpch.duckdb"
        if not file.exists():
            made(file, asked.sf)
        print(f"{file}: {file.stat().st_size / 1e9:.2f} GB, memory limit {asked.memory_limit}")
        print(f"{'':20} {'seconds':>9} {'processor':>9} {'peak MB':>9}")
        for run in range(asked.runs):
            lakes = {each: folder / f"{each}-{run}.ducklake" for each in ("command", "import")}
            command = by_command(file, lakes["command"], asked.memory_limit)
            own = by_import(file, lakes["import"], asked.memory_limit)
            for what, one in (("COPY FROM DATABASE", command), ("import", own)):
                print(f"{what:20} {one.wall:9.1f} {one.processor:9.1f} {one.peak:9} exit {one.code}")
            print(
                f"{'import / command':20} {own.wall / command.wall:9.2f} {own.processor / command.processor:9.2f} "
                f"{own.peak / command.peak:9.2f}"
            )
            print("rows:", "; ".join(differences(lakes["command"], lakes["import"])) or "the same in every table")
            for lake in lakes.values():
                shutil.rmtree(f"{lake}.files", ignore_errors=True)
        odd = folder / "odd.duckdb"
        with duckdb.connect(str(odd)) as connection:
            connection.execute(_ODD)
        print("a file with a key, a check, an index, a sequence and an enum:")
        print(f"COPY FROM DATABASE   exit {by_command(odd, folder / 'odd-command.ducklake', '1GB').code}")
        print(f"import               exit {by_import(odd, folder / 'odd-import.ducklake', '1GB').code}")


if __name__ == "__main__":
    main()
