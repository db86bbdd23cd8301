"""Measure the rewriter: its rate against DuckDB's own COPY of the same rows, what equality deletes read, its memory.

    python scripts/bench_rewrite.py [rewrite] [deletes] [memory] [--large] [--rows N] [--threads N]

Rates compare a task of the rewriter, without Spark's start, with `COPY (SELECT * FROM file) TO ...` in DuckDB with as
many threads, in seconds of processor time of all threads; each is the best of three. What COPY reads is compressed as
the source of the task is. `deletes` counts the bytes that the process reads from files (/proc/self/io).
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from bridge.model.types import Decimal, Field, FieldId, Leaf, Timestamp
from converters.spark.equality import resolve
from converters.spark.keys import EqualityDeletes, KeyTask, Subject
from converters.spark.plan import DataFile, Name, PartitionKey, RewriteTask, Settings, SortKey, Target
from converters.spark.task import rewrite

FIELDS = (
    Field(FieldId(1), "id", Leaf.INT64),
    Field(FieldId(2), "k", Leaf.INT32),
    Field(FieldId(3), "d", Leaf.FLOAT64),
    Field(FieldId(4), "name", Leaf.STRING),
    Field(FieldId(5), "at", Timestamp()),
    Field(FieldId(6), "price", Decimal(18, 2)),
    Field(FieldId(7), "text", Leaf.STRING),
)
NAMES = tuple(Name(int(field.id), (field.name,)) for field in FIELDS)
_ROWS = """SELECT i AS id, (i % 1000)::INTEGER AS k, i * 1.37::DOUBLE AS d, 'name_' || (hash(i) % 100000) AS name,
 TIMESTAMP '2020-01-01' + to_seconds(i) AS at, (i / 7)::DECIMAL(18, 2) AS price, 'text ' || md5(i::VARCHAR) AS text
 FROM range({rows}) t(i)"""
_IDS = '{id: 1, k: 2, d: 3, name: 4, "at": 5, price: 6, text: 7}'


def made(folder: Path, rows: int) -> Path:
    """A Parquet file of typical columns."""
    path = folder / f"rows-{rows}.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({_ROWS.format(rows=rows)}) TO '{path}' (FORMAT parquet, FIELD_IDS {_IDS})")
    return path


def best(run: Callable[[], object], times: int = 3) -> float:
    """The shortest of some runs, in seconds of processor time, which other work on the machine does not change."""
    found = []
    for _ in range(times):
        gc.collect()
        begin = time.process_time()
        run()
        found.append(time.process_time() - begin)
    return min(found)


STORED = {"snappy": "snappy", "gzip": "zlib", "zstd": "zstd"}
"""How sources are compressed, in the words of Parquet and of ORC."""


def rates(folder: Path, rows: int, threads: int) -> bool:
    """Parquet and ORC against COPY from Parquet that is compressed as they are."""
    plain, fine = made(folder, rows), True
    for stored, by_orc in STORED.items():
        parquet, columns = folder / f"{stored}.parquet", folder / f"{by_orc}.orc"
        with duckdb.connect() as connection:
            query = f"COPY (FROM '{plain}') TO '{parquet}' (FORMAT parquet, COMPRESSION {stored}, FIELD_IDS {_IDS})"
            connection.execute(query)
        with pq.ParquetFile(plain) as file, orc.ORCWriter(str(columns), compression=by_orc) as writer:
            for batch in file.iter_batches(65_536):
                writer.write(pa.Table.from_batches([batch]))
        for codec in ("snappy", "zstd"):
            settings = Settings(compression=codec, threads=threads, memory=4 << 30)

            def copy(parquet: Path = parquet, codec: str = codec) -> None:
                with duckdb.connect(config={"threads": str(threads)}) as connection:
                    query = f"COPY (SELECT * FROM '{parquet}') TO '{folder / 'copy.parquet'}'"
                    connection.execute(f"{query} (FORMAT parquet, COMPRESSION {codec}, ROW_GROUP_SIZE 122880)")

            bare = best(copy)
            for source in (DataFile(str(parquet), "parquet"), DataFile(str(columns), "orc", names=NAMES)):
                task = RewriteTask("0", source, Target(str(folder / "out"), FIELDS, settings), source.format)
                took = best(lambda task=task: rewrite(task))  # type: ignore[misc]  # bound now
                fine = fine and bare / took >= 0.7
                held = stored if source.format == "parquet" else by_orc
                print(
                    f"{source.format:8} {held:6} -> {codec:6} {rows:,} rows, {threads} thread(s): COPY {bare:.2f} s,"
                    f" rewrite {took:.2f} s, {bare / took:.0%} of its rate",
                    flush=True,
                )
    return fine


def read_bytes() -> int:
    """Bytes that this process has read through system calls."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def deletes(folder: Path, rows: int) -> bool:
    """One row in a hundred deleted by key."""
    parquet = made(folder, rows)
    keys = folder / "deletes.parquet"
    with duckdb.connect() as connection:
        query = f"SELECT i * 100 AS id FROM range({rows // 100}) t(i)"
        connection.execute(f"COPY ({query}) TO '{keys}' (FORMAT parquet, FIELD_IDS {{id: 1}})")
    data = DataFile(str(parquet), "parquet", rows)
    gone = EqualityDeletes(DataFile(str(keys), "parquet", rows // 100), (1,), 2, 0, everywhere=True)
    task = KeyTask((Subject(data, 1, 0),), (gone,), (((1,), FIELDS[:1]),))
    before, begin = read_bytes(), time.perf_counter()
    found = resolve(task)
    took, read = time.perf_counter() - begin, read_bytes() - before
    footer = pq.read_metadata(parquet)
    columns = [0] * footer.num_columns
    for group in range(footer.num_row_groups):
        for place in range(footer.num_columns):
            columns[place] += footer.row_group(group).column(place).total_compressed_size
    overhead = os.path.getsize(parquet) - sum(columns) + os.path.getsize(keys)
    wanted = columns[0] + 2 * overhead
    print(
        f"equality deletes: {found.num_rows:,} of {rows:,} rows in {took:.2f} s; read {read:,} bytes, key column and"
        f" footers {columns[0] + overhead:,}, whole file {os.path.getsize(parquet):,}"
    )
    return found.num_rows == rows // 100 and read <= wanted + (4 << 20)


def memory(folder: Path, rows: int) -> bool:
    """A file larger than what its task may hold, in a process of its own."""
    path = made(folder, rows)
    limit = 256 << 20
    ran = subprocess.run(
        [sys.executable, __file__, "one", str(path), str(folder / "out"), str(limit)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
    )
    base, peak = map(int, ran.stdout.split())
    size = os.path.getsize(path)
    print(f"memory: file of {size:,} bytes, task limit {limit:,}, peak {peak:,} of which {base:,} before it began")
    return size > limit and peak - base < limit + (128 << 20)


def one(path: str, out: str, limit: int) -> None:
    """Rewrite a file and print the memory before and at the peak."""
    base = peak()
    settings = Settings(memory=limit, row_group_bytes=32 << 20)
    rewrite(RewriteTask("0", DataFile(path), Target(out, FIELDS, settings), "one"))
    print(base, peak())


def peak() -> int:
    """The most memory that this process has held, in bytes."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


LARGE_LIMIT = 192 << 20
LAYOUTS = ("as it is", "one row in three deleted", "partitioned", "sorted")
BESIDE = 320 << 20
"""What a task may hold beside its DuckDB: batches on their way (64 MB), pages, buffers of a stripe, the writer."""


def part(format_: str, path: str, out: str, layout: str, limit: int) -> tuple[int, int]:
    """Rewrite one file in a layout, here; the memory before, and at the peak."""
    base = peak()
    names = None if format_ == "parquet" else NAMES
    settings = Settings(memory=limit, row_group_bytes=16 << 20, target_bytes=128 << 20)
    partition = (PartitionKey("text"),) if layout == "partitioned" else ()
    sort = (SortKey(("text",)),) if layout == "sorted" else ()
    target = Target(out, FIELDS, settings, sort, partition)
    gone = f"{path}.deleted" if layout == LAYOUTS[1] else ""
    written = rewrite(RewriteTask("0", DataFile(path, format_, names=names), target, "one", deleted_file=gone))
    print(base, peak(), sum(written.column("record_count").to_pylist()))
    return base, peak()


def large_file(folder: Path, format_: str, rows: int, stripe: int = 64 << 20) -> Path:
    """A file of typical columns in a format, one row group or large stripes, and beside it positions to delete."""
    path = folder / f"large-{rows}.{format_}"
    parquet = folder / f"source-{rows}.parquet"
    if not parquet.exists():
        with duckdb.connect(config={"threads": "1", "memory_limit": "2GB"}) as connection:
            query = f"COPY ({_ROWS.format(rows=rows)}) TO '{parquet}' (FORMAT parquet, FIELD_IDS {_IDS})"
            connection.execute(query)
    with pq.ParquetFile(parquet) as file:
        batches = (pa.Table.from_batches([each]) for each in file.iter_batches(32_768))
        match format_:
            case "parquet":
                # as other writers do it: pages of a megabyte (DuckDB's own grow to a hundred in such a row group)
                pq.write_table(pa.concat_tables(batches), path, row_group_size=rows)
            case "orc":
                with orc.ORCWriter(str(path), compression="zlib", stripe_size=stripe) as writer:
                    for each in batches:
                        writer.write(each)
            case _:
                with path.open("wb") as out:
                    fastavro.writer(out, AVRO, (row for each in batches for row in each.to_pylist()), "deflate")
    third = np.arange(0, rows, 3, dtype=np.int64)
    pq.write_table(pa.table({"position": third}), f"{path}.deleted")
    return path


AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": name, "type": ["null", type_], "field-id": place + 1}
            for place, (name, type_) in enumerate(
                {
                    "id": "long",
                    "k": "int",
                    "d": "double",
                    "name": "string",
                    "at": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
                    "price": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2},
                    "text": "string",
                }.items()
            )
        ],
    }
)


def large(
    folder: Path, rows: int, limit: int = LARGE_LIMIT, formats: tuple[str, ...] = ("parquet", "orc", "avro")
) -> bool:
    """One file several times larger than its task's memory, in every layout; each in a process of its own."""
    fine = True
    for format_ in formats:
        count = rows if format_ != "avro" else rows // 4  # it is read row by row
        path = large_file(folder, format_, count, 256 << 20)
        held = pq.ParquetFile(folder / f"source-{count}.parquet").metadata
        plain = sum(held.row_group(place).total_byte_size for place in range(held.num_row_groups))
        bound = limit if format_ != "avro" else limit // 4
        for layout in LAYOUTS:
            begin = time.perf_counter()
            command = [sys.executable, __file__, "part", format_, str(path), str(folder / "out"), layout, str(bound)]
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            )
            if ran.returncode:
                print(f"{format_}, {layout}: {ran.stderr[-500:]}")
                fine = False
                continue
            base, most, written = map(int, ran.stdout.split())
            wanted = count - (count + 2) // 3 if layout == LAYOUTS[1] else count
            fine = fine and most - base <= bound + BESIDE and written == wanted
            print(
                f"{format_}, {layout}: {count:,} rows, file of {path.stat().st_size >> 20} MB, {plain >> 20} MB plain,"
                f" task limit {bound >> 20} MB: {(most - base) >> 20} MB over the {base >> 20} MB before,"
                f" {time.perf_counter() - begin:.0f} s",
                flush=True,
            )
    return fine


def main() -> int:
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return 0
    if sys.argv[1:2] == ["part"]:
        part(*sys.argv[2:6], int(sys.argv[6]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="rewrite, deletes, memory; by default all")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="files several times larger than a task's memory, alone")
    given = parser.parse_args()
    what = given.what or (["large"] if given.large else ["rewrite", "deletes", "memory"])
    fine = True
    with tempfile.TemporaryDirectory() as scratch:
        if "rewrite" in what:
            fine = rates(Path(scratch), given.rows, given.threads) and fine
        if "deletes" in what:
            fine = deletes(Path(scratch), 10_000_000) and fine
        if "memory" in what:
            fine = memory(Path(scratch), max(given.rows, 8_000_000)) and fine
        if "large" in what:
            fine = large(Path(scratch), max(given.rows, 8_000_000)) and fine
    print("all within their limits" if fine else "NOT within the limits")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
