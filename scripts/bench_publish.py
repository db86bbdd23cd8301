"""How long the metadata of a large table takes: data files of ten columns with statistics, over some snapshots.

    python scripts/bench_publish.py [FILES ...] [--snapshots N] [--format-version 2|3] [--deletes N]
    python scripts/bench_publish.py --whole [FILES ...] [--snapshots N] [--backend duckdb|sqlite] [--keep DIR]

No data file exists; everything that is written is metadata (and delete files). Prints seconds, files a second and the
highest memory, each run in a process of its own. `--whole` makes a lake whose data files exist (--keep: there, to be
used again) and times the command that a user types, with all that it starts: reading the catalog, looking at the files,
writing, verifying.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import bench_mirror
import numpy as np
import pyarrow as pa

from bridge.model.files import DATA_FILES, DELETED_ROWS, StatsBatch
from bridge.model.layout import PartitionField, PartitionSpec, Simple, SortOrder
from bridge.model.options import Options
from bridge.model.schema import Schema
from bridge.model.table import Commit, Table, TableName
from bridge.model.types import Field, FieldId, Leaf, Timestamp
from bridge.ports import Silent, TableWrite
from converters.iceberg.writer import open_target

ROWS = 1_000_000
CHUNK = 20_000
EPOCH = datetime(2024, 1, 1)
TYPES = [Leaf.INT64, Timestamp(), Leaf.STRING, Leaf.FLOAT64, *[Leaf.INT64] * 6]


class Made:
    """Files as a reader gives them."""

    mappings = ()
    since = None
    rest = 0
    predating: Mapping[FieldId, tuple[int, ...]] = {}
    problems = ()
    findings = ()

    def __init__(self, count: int, snapshots: int, deletes: int) -> None:
        place = np.arange(count)
        begin = place * snapshots // count
        paths = [f"/warehouse/lake/main/events/ducklake-0190-{each:012}.parquet" for each in range(count)]
        nothing = pa.nulls(count, pa.int64())
        self.table = pa.table(
            [
                pa.array(paths), pa.array(["parquet"] * count), pa.array(begin), nothing,
                pa.array(np.full(count, ROWS)), pa.array(place % 1000 + 50_000_000), nothing,
                pa.array(np.ones(count), pa.int32()), pa.array(begin), pa.array(place * ROWS), nothing.cast(pa.int32()),
            ],
            schema=DATA_FILES,
        )  # fmt: skip
        which = np.arange(deletes)
        self.partitions: dict[int, tuple[str, ...]] = {}
        self.deletes = pa.table(
            [pa.array(which), pa.array(which % 100), pa.array(np.full(deletes, snapshots - 1))], schema=DELETED_ROWS
        )

    def stats(self) -> Iterator[StatsBatch]:
        """Column by column in chunks."""
        count = self.table.num_rows
        for low in range(0, count, CHUNK):
            files = np.arange(low, min(low + CHUNK, count))
            same = {name: np.full(len(files), each) for name, each in (("values", ROWS), ("nulls", 0), ("nans", 0))}
            for number, type_ in enumerate(TYPES, 1):
                lower, upper = bounds(type_, files)
                table = pa.table({"file": files, "size": files * 7 + number, **same, "lower": lower, "upper": upper})
                yield StatsBatch(FieldId(number), table, exact=True)


def bounds(type_: object, files: np.ndarray) -> tuple[pa.Array, pa.Array]:
    match type_:
        case Timestamp():
            days = [EPOCH + timedelta(days=int(each) // 100) for each in files]
            return pa.array(days, pa.timestamp("us")), pa.array(
                [each + timedelta(hours=20) for each in days], pa.timestamp("us")
            )
        case Leaf.STRING:
            return pa.array([f"user-{each:09}" for each in files]), pa.array([f"user-{each:09}-z" for each in files])
        case Leaf.FLOAT64:
            return pa.array(files / 3), pa.array(files / 2)
        case _:
            return pa.array(files * 1000), pa.array(files * 1000 + 999)


def write_of(count: int, snapshots: int, deletes: int) -> TableWrite:
    schema = Schema(1, tuple(Field(FieldId(number), f"c{number}", type_) for number, type_ in enumerate(TYPES, 1)))
    commits = tuple(
        Commit(str(number + 1), 1_700_000_000_000_000 + number * 1_000_000, 0, 1) for number in range(snapshots)
    )
    spec = PartitionSpec(1, (PartitionField(FieldId(2), 1000, "c2_day", Simple.DAY),))
    table = Table(
        name=TableName(("main",), "events"), uuid="", location="/lake", metadata="", format="ducklake",
        format_version=1, schemas={1: schema}, schema=schema, specs={1: spec}, spec=spec, sort_order=SortOrder(0),
        commits=commits, updated=commits[-1].time, last_column_id=FieldId(len(TYPES)),
    )  # fmt: skip
    files = Made(count, snapshots, deletes)
    return TableWrite(TableName(("main",), "events"), {"uuid": ""}, table, files, 0, None, "", "bench", "shared")  # type: ignore[arg-type]  # what the target uses of Files


def once(count: int, snapshots: int, version: int, deletes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-publish-") as home:
        write = write_of(count, snapshots, deletes)
        target = open_target(home, Options(format_version=version))  # type: ignore[arg-type]  # 2 or 3
        wall, cpu = time.perf_counter(), time.process_time()
        target.commit([write], Silent())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        metadata = [each for root, _, names in os.walk(home) for each in (os.path.join(root, name) for name in names)]
        size = sum(map(os.path.getsize, metadata))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{count:>9} files {snapshots:>6} snapshots  v{version}  {wall:6.1f} s  {cpu:6.1f} s cpu  "
        f"{count / wall:>8.0f}/s  {memory:>5} MB  {len(metadata)} files of {size >> 20} MB"
    )


def whole(count: int, snapshots: int, version: int, backend: str, keep: str) -> None:
    """The command on a lake of its own, or on one that an earlier run left."""
    with tempfile.TemporaryDirectory(prefix="bench-publish-") as home:
        place = Path(keep) / f"{count}-{snapshots}" if keep else Path(home)
        lake = bench_mirror.Lake(place, backend)
        if not lake.catalog.exists():
            place.mkdir(parents=True, exist_ok=True)
            lake.fill(count, min(snapshots, count))
        told = [sys.executable, "-m", "bridge", "migrate", f"ducklake:{lake.attach}", f"iceberg:{home}/warehouse"]
        wall = time.perf_counter()
        ran = subprocess.Popen([*told, "--format-version", str(version)], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(ran.pid, 0)  # of the command and of all that it waited for
        wall = time.perf_counter() - wall
        if status:
            raise SystemExit(f"the command ended with {os.waitstatus_to_exitcode(status)}")
        metadata = list(Path(home, "warehouse").rglob("*.avro"))
    print(
        f"{count:>9} files {snapshots:>6} snapshots  v{version}  {wall:6.1f} s  "
        f"{used.ru_utime + used.ru_stime:6.1f} s cpu  {used.ru_maxrss >> 10:>5} MB  {len(metadata)} manifests and lists"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Each size in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=int, default=[10_000, 100_000])
    parser.add_argument("--snapshots", type=int, default=1)
    parser.add_argument("--format-version", type=int, default=2)
    parser.add_argument("--deletes", type=int, default=0)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--backend", choices=["duckdb", "sqlite"], default="duckdb")
    parser.add_argument("--keep", default="")
    parser.add_argument("--here", action="store_true")
    given = parser.parse_args(arguments)
    for count in given.files:
        if given.whole:
            whole(count, given.snapshots, given.format_version, given.backend, given.keep)
        elif given.here:
            once(count, given.snapshots, given.format_version, given.deletes)
        else:
            more = ["--snapshots", str(given.snapshots), "--format-version", str(given.format_version)]
            more += ["--deletes", str(given.deletes), "--here"]
            subprocess.run([sys.executable, __file__, str(count), *more], check=True)


if __name__ == "__main__":
    main()
