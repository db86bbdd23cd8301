"""How much a round of a mirror costs that finds a small change in a large table.

    python scripts/bench_mirror.py publish|follow [FILES ...] [--backend duckdb|sqlite] [--snapshots N] [--pending N]
        [--verify metadata|none] [--profile]

`publish`: a lake with FILES data files of ten columns, spread over some snapshots, is published as Iceberg once. Then
one append and one deletion of a single row are committed in the lake, each followed by a round whose work is measured
in a process that has done a round before; at last so many commits wait for one round. Every data file is a hard link
to one of a hundred rows.

`follow`: an Iceberg table of as many files, of which only those are there that are changed, is mirrored into a lake;
then an append, position deletes, deletion vectors and equality deletes of a few rows, each in a commit and a round of
its own, in tables of versions 2 and 3.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bench_metadata
import duckdb
from iceberg_commits import Growing

import bridge
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.ports import Silent
from converters.ducklake.extensions import connect, needed

ROWS = 100
LIMIT, TIMES = 1.5, 2.0
"""Seconds of work that a small change may take, and how much more of them in the largest table than in the smallest."""
LINKS = 50_000
"""How often a file is linked; file systems allow little more."""
COLUMNS = "i AS id, TIMESTAMP '2024-01-01' + to_seconds(i) AS ts, 'user-' || i AS name, i / 3.0 AS d, " + ", ".join(
    f"i * {number} AS c{number}" for number in range(6)
)


class Lake:
    """A lake on a file catalog, changed by DuckDB in processes of its own."""

    def __init__(self, home: Path, backend: str) -> None:
        self.backend = backend
        self.catalog = home / f"lake.{backend}"
        self.files = home / "files"
        self.warehouse = home / "warehouse"
        self.attach = ("sqlite:" if backend == "sqlite" else "") + str(self.catalog)

    def do(self, *statements: str) -> None:
        """Statements in a process of its own."""
        told = "\n".join((self.attach, self.backend, str(self.files), *statements))
        subprocess.run([sys.executable, os.path.abspath(__file__), "statements"], input=told, text=True, check=True)

    def fill(self, count: int, snapshots: int) -> None:
        """The table with one file, and then its rows in the catalog over and over."""
        self.do(f"CREATE TABLE lake.t AS SELECT {COLUMNS} FROM range({ROWS}) r(i)")
        [first] = self.files.rglob("*.parquet")
        for number in range(2, count + 1):
            if number % LINKS == 0:
                first = Path(shutil.copyfile(first, first.with_name(f"more-{number}.parquet")))
            os.link(first, first.with_name(f"ducklake-00000000-0000-0000-0000-{number:012}.parquet"))
        with connect(*needed(self.backend)) as made:
            made.execute(f"ATTACH '{self.catalog}' AS c" + (" (TYPE sqlite)" if self.backend == "sqlite" else ""))
            made.execute("USE c")
            more = _more(made, count, snapshots)
            for statement in more:
                made.execute(statement)


def _more(made: duckdb.DuckDBPyConnection, count: int, snapshots: int) -> list[str]:
    """What makes of a table with one file, of snapshot 1, one with `count`."""
    [(table, file, order)] = made.execute(
        "SELECT table_id, data_file_id, coalesce(file_order, 0) FROM ducklake_data_file"
    ).fetchall()
    begin = f"1 + (n * {snapshots}) // {count}"
    new = f"range(1, {count}) AS r(n)"
    text = "CAST(CAST((SELECT max(CAST(snapshot_time AS TIMESTAMPTZ)) FROM ducklake_snapshot) AS TIMESTAMPTZ)"
    text += " + to_milliseconds(n) AS VARCHAR)"
    head = "SELECT schema_version, next_catalog_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
    [(schema_version, next_catalog)] = made.execute(head).fetchall()
    shown = [each[1] for each in made.execute("SELECT * FROM pragma_table_info('ducklake_data_file')").fetchall()]
    changed = {
        "data_file_id": f"{file} + n",
        "begin_snapshot": begin,
        "file_order": f"{order} + n",
        "path": "'ducklake-00000000-0000-0000-0000-' || lpad(CAST(n + 1 AS VARCHAR), 12, '0') || '.parquet'",
        "row_id_start": f"n * {ROWS}",
    }
    columns = ", ".join(changed.get(each, f"f.{each}") for each in shown)
    stats = "f.data_file_id + n, f.table_id, f.column_id, f.column_size_bytes, f.value_count, f.null_count"
    return [
        f"INSERT INTO ducklake_snapshot SELECT n, {text}, {schema_version}, {next_catalog}, "
        f"{file + 1} + (n * {count}) // {snapshots} FROM range(2, {snapshots + 1}) AS r(n)",
        f"UPDATE ducklake_snapshot SET next_file_id = {file + 1 + count} WHERE snapshot_id = {snapshots}",
        f"INSERT INTO ducklake_snapshot_changes SELECT n, 'inserted_into_table:{table}', NULL, NULL, NULL "
        f"FROM range(2, {snapshots + 1}) AS r(n)",
        f"INSERT INTO ducklake_data_file SELECT {columns} FROM (SELECT * FROM ducklake_data_file) AS f, {new}",
        f"INSERT INTO ducklake_file_column_stats SELECT {stats}, f.min_value, f.max_value, f.contains_nan, "
        f"f.extra_stats FROM (SELECT * FROM ducklake_file_column_stats) AS f, {new}",
        f"UPDATE ducklake_table_stats SET record_count = {count * ROWS}, next_row_id = {count * ROWS}",
    ]


def _statements() -> None:
    """The other process: attach, and do what the input says."""
    attach, backend, files, *statements = sys.stdin.read().splitlines()
    with connect(*needed(backend)) as lake:
        lake.execute(f"ATTACH 'ducklake:{attach}' AS lake (DATA_PATH '{files}/', DATA_INLINING_ROW_LIMIT 0)")
        for each in statements:
            lake.execute(each)


def publish(count: int, backend: str, snapshots: int, pending: int, profile: bool, verify: str) -> dict[str, Took]:
    """One size; the seconds of each small change."""
    took: dict[str, Took] = {}
    with tempfile.TemporaryDirectory(prefix="bench-mirror-") as home:
        lake = Lake(Path(home), backend)
        lake.fill(count, min(snapshots, count))

        options = bridge.Options(verify=verify)  # type: ignore[arg-type]  # the parser knows the choices
        pair = Pair(f"ducklake:{lake.attach}", f"iceberg:{lake.warehouse}", options)

        def work(what: str, commits: int = 1) -> None:
            took[what] = measured(pair, f"{count:>7} files  {backend:<7} {what}", commits, profile)

        work("publish all")
        took.clear()
        lake.do(f"INSERT INTO lake.t SELECT {COLUMNS} FROM range(10) r(i)")
        work("an append, cold")
        lake.do(f"INSERT INTO lake.t SELECT {COLUMNS} FROM range(10) r(i)")
        work("an append")
        lake.do("DELETE FROM lake.t WHERE rowid = 7")
        work("a row deleted")
        lake.do("DELETE FROM lake.t WHERE rowid = 8")
        work("one more of that file")
        lake.do(f"DELETE FROM lake.t WHERE rowid BETWEEN {ROWS} AND {2 * ROWS - 1}")
        work("a file removed")
        work("nothing")
        if pending:
            lake.do(*(f"INSERT INTO lake.t SELECT {COLUMNS} FROM range(10) r(i)" for _ in range(pending)))
            work(f"{pending} commits", pending)
            del took[f"{pending} commits"]
    return took


Took = tuple[float, float]
"""Seconds by the clock, and of the processors, those of the other process that verifies included."""


def measured(pair: Pair, what: str, commits: int, profile: bool) -> Took:
    """One round, which has to bring everything."""
    profiled = cProfile.Profile()
    if profile:
        profiled.enable()
    wall, cpu = time.perf_counter(), sum(os.times()[:4])
    made = catch_up(pair, Silent())
    wall, cpu = time.perf_counter() - wall, sum(os.times()[:4]) - cpu
    profiled.disable()
    assert made.exit_code == 0, (made.error, [each.message for each in made.tables])
    [each] = made.tables
    rate = f", {commits / wall:.0f} commits/s" if commits > 1 else ""
    print(f"{what:<44} {wall:7.2f} s {cpu:7.2f} s cpu  {each.state.value}, {each.commits} commits{rate}", flush=True)
    if profile:
        pstats.Stats(profiled).sort_stats("cumulative").print_stats(45)
    return wall, cpu


def follow(count: int, backend: str, snapshots: int, pending: int, profile: bool, verify: str) -> dict[str, Took]:
    """One size of the other direction; the seconds of each small commit."""
    took: dict[str, Took] = {}
    for version in (2, 3):
        with tempfile.TemporaryDirectory(prefix="bench-mirror-") as home:
            shape = bench_metadata.Shape(count, max(1, count // snapshots))
            old = [count // 3, count // 2, count - 2]
            bench_metadata.generate(Path(home), shape, old)
            table = Growing(Path(home) / shape.name)
            target = f"ducklake:{'sqlite:' if backend == 'sqlite' else ''}{home}/lake.{backend}"

            def work(what: str, commits: int = 1, target: str = target, place: Path = table.home, **given: Any) -> Took:
                options = bridge.Options(**{"verify": verify, **given})
                label = f"{count:>7} files  {backend:<7} {what}"
                return measured(Pair(f"iceberg:{place}", target, options), label, commits, profile)

            added, deletes = count, 0
            if version == 3:
                table.upgrade()
            table.append(added)
            table.save()
            added += 1
            # most files are not there, so that none may be looked at
            work("everything", check_files="none", verify="none", accept=frozenset({"unchecked-doubt"}))
            for turn in ("cold", ""):
                for what in ("append", "position delete", "scoped position delete", "equality delete"):
                    if version == 3:
                        what = "deletion vector"
                    number = old[bool(turn)]
                    match what:
                        case "append":
                            table.append(added)
                            added += 1
                        case "deletion vector":
                            table.vector(number, range(3, 9))
                        case "equality delete":
                            table.equality(number, range(40, 43))
                        case _:
                            table.positions(
                                number, range(5, 9) if "scoped" in what else range(20, 22), "scoped" in what
                            )
                    deletes += what != "append"
                    table.save()
                    took[what] = work(f"{what}{', cold' if turn else ''}")
                    if version == 3:
                        break
            work("nothing")
            if pending and version == 2:
                for _ in range(pending):
                    table.append(added)
                    added += 1
                table.save()
                work(f"{pending} commits", pending)
            table.check(added, deletes)
    return took


def main(arguments: Sequence[str] | None = None) -> None:
    """Each size in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["publish", "follow", "statements"])
    parser.add_argument("files", nargs="*", type=int, default=[1_000, 100_000])
    parser.add_argument("--backend", choices=["duckdb", "sqlite"], default="duckdb")
    parser.add_argument("--snapshots", type=int, default=1_000)
    parser.add_argument("--pending", type=int, default=0)
    parser.add_argument("--verify", choices=["metadata", "none"], default="metadata")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--here", metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.what == "statements":
        _statements()
        return
    if given.here:
        one = publish if given.what == "publish" else follow
        took = one(given.files[0], given.backend, given.snapshots, given.pending, given.profile, given.verify)
        Path(given.here).write_text(json.dumps(took))
        return
    subprocess.run(["uptime"], check=False)
    found = []
    for count in given.files:
        more = ["--backend", given.backend, "--snapshots", str(given.snapshots), "--pending", str(given.pending)]
        more += ["--verify", given.verify, *(["--profile"] if given.profile else [])]
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            command = [sys.executable, __file__, given.what, str(count), *more, "--here", result.name]
            subprocess.run(command, check=True)
            found.append(json.loads(Path(result.name).read_text()))
    _judge(found[0], found[-1])


def _judge(small: Mapping[str, Took], large: Mapping[str, Took]) -> None:
    """Whether the work follows the change: what it took at the first and the last size. On a busy machine go by the
    seconds of the processors."""
    for what, (seconds, cpu) in large.items():
        before, cpu_before = small[what]
        times = seconds / before
        said = [f"<= {LIMIT:g} s: {'met' if seconds <= LIMIT else 'MISSED'}"]
        said += [f"<= {TIMES:g} x: {'met' if times <= TIMES else 'MISSED'}"]
        by_cpu = f"(cpu {cpu_before:.2f} s -> {cpu:.2f} s, x {cpu / cpu_before:.2f})"
        print(f"{what:<24} {before:6.2f} s -> {seconds:6.2f} s, x {times:.2f} {by_cpu}  {'; '.join(said)}")


if __name__ == "__main__":
    main()
