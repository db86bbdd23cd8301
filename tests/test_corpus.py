"""Real tables of other engines: each migrates with every row and snapshot as its own engine reads them, or is blocked
for the reason that is written here, and its files stay as they were."""

from __future__ import annotations

import hashlib
import json
import runpy
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.judge import Subject, Version, judge
from tests.support import SHARED, Ran, commits_of, lake_rows, opened, run_here

CORPUS = (SHARED / "corpus").resolve()
MANIFEST = CORPUS / "MANIFEST.json"
if not MANIFEST.exists():
    pytest.skip("the corpus of real tables is not beside this checkout", allow_module_level=True)

# what blocks a table when nothing may be rewritten (tests/test_rewriting.py has them with rewriting); every entry that
# is not named here migrates in place
BLOCKED: Mapping[str, frozenset[str]] = {
    name: frozenset(codes.split())
    for name, codes in {
        "part_binary": "partition-column-absent",  # Base64 in the path
        "case_colliding_columns": "case-collision",
        "empty_v3_ts_ns": "type-unsupported",
        "eq_deletes_basic": "equality-deletes",
        "eq_deletes_multi_ids": "equality-deletes",
        "eq_deletes_partitioned": "equality-deletes",
        "eq_deletes_schema_evolution": "equality-deletes",
        "eq_deletes_flink": "equality-deletes",
        "eq_and_pos_deletes": "equality-deletes",
        "v3_defaults_avro": "file-format",
        "orc_nested": "file-format",
        "orc_partitioned": "file-format",
        "mixed_parquet_orc": "file-format",
        "avro_data_trino": "file-format",
        "v3_variant_trino": "physical-type",  # its group carries no VARIANT annotation
    }.items()
}

# what a migrated table loses, all of it; the others lose nothing
LOST: Mapping[str, Counter[str]] = {
    "v2_bucket_renamed": Counter(["partition-bucket"]),
    "bucket16_uppercase": Counter(["partition-bucket"]),
    "truncate_evolution": Counter(["partition-layout", "statistics-files"]),
    "puffin_ndv_stats": Counter(["statistics-files"]),
}

# the manifest gives the newest snapshot the names of the current schema; at a snapshot the lake answers, as Spark's
# VERSION AS OF does, with the names of that time
RENAMED_SINCE: Mapping[str, Mapping[str, str]] = {"v2_bucket_renamed": {"date": "event_date"}}

IN_SQLITE = (
    *("all_types_add_columns", "null_stats", "v3_row_lineage"),  # the others in exhaustive runs
    *("v1_hour_identity", "multiple_storage_locations", "uniform_marksheet", "v1_migrated_alltypes"),
)

# one more of a kind that another entry stands for
ALIKE = {
    *("pos_deletes_basic", "pos_deletes_600", "part_bool", "part_time", "day_transform_small", "spec_evolution_date"),
    *("v1_identity_lineitem", "v1_gz_metadata_lineitem", "v2_two_snapshots_lineitem", "v1_hour_tz_preepoch"),
}
# those of the quick set whose filters meet what no other's do: types, names, vectors
FILTERED = ("all_types_add_columns", "name_mapping_dropped_readded", "v3_deletion_vectors")


@dataclass(frozen=True)
class Entry:
    """An entry of the manifest."""

    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def folder(self) -> Path:
        return CORPUS / str(self.facts["folder"])

    @property
    def content(self) -> tuple[int, str]:
        """Number of rows and their hash in the current state."""
        return self.facts["expected"]["rows"], self.facts["expected"]["sha256"]

    @property
    def snapshots(self) -> Sequence[Mapping[str, Any]]:
        """Facts of each snapshot of the main line, oldest first."""
        return tuple(self.facts.get("snapshots", ()))

    @property
    def commits(self) -> list[str]:
        return [str(each["snapshot_id"]) for each in self.snapshots]

    def migrate(self, target: str, *options: str) -> Ran:
        """Migrate into `ducklake:TARGET` as main.t."""
        maps = [f"{each['from']}={CORPUS / each['to']}" for each in self.facts["map_prefix"]]
        return run_here(
            "migrate",
            f"iceberg:{CORPUS / self.facts['metadata_file']}",
            f"ducklake:{target}",
            "--as",
            "main.t",
            "--json",
            *(part for each in maps for part in ("--map-prefix", each)),
            *options,
        )

    def untouched(self) -> bool:
        """Whether every file of the entry is the one that the manifest describes."""
        files = sorted(
            (str(path.relative_to(self.folder)), hashlib.sha256(path.read_bytes()).hexdigest())
            for path in self.folder.rglob("*")
            if path.is_file()
        )
        lines = "".join(f"{name}\0{digest}\n" for name, digest in files)
        return hashlib.sha256(lines.encode()).hexdigest() == str(self.facts["tree_sha256"])


ENTRIES = {
    each["name"]: Entry(each) for each in json.loads(MANIFEST.read_text())["entries"] if each["format"] == "iceberg"
}
MIGRATED = [name for name in ENTRIES if name not in BLOCKED]


def chosen(names: Sequence[str], more: Set[str] = frozenset()) -> list[Any]:
    """Parameters: slow, but for the quick set and the first of every reason for a block; `more` in exhaustive runs."""
    first = {codes: name for name, codes in reversed(tuple(BLOCKED.items()))}

    def marks(name: str) -> list[Any]:
        if name in more:
            return [pytest.mark.slow, pytest.mark.exhaustive]
        return [] if ENTRIES[name].facts["core"] or name in first.values() else [pytest.mark.slow]

    return [pytest.param(ENTRIES[name], id=name, marks=marks(name)) for name in names]


HASH = runpy.run_path(str(CORPUS / "hash_rows.py"))["hash_duckdb"]


def content(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, str]:
    """Number of rows and their hash, whatever their order."""
    rows, digest = HASH(connection, query)
    return rows, digest


def wrong(entry: Entry, lake: Path) -> list[str]:
    """Where the lake answers otherwise than the table's own engine: now, and at every snapshot."""
    commits = commits_of(lake)
    found = [f"{each} is no snapshot of the source" for each in {*commits} - {"", *entry.commits}]
    asked = {"now": ("SELECT * FROM t", entry.content)}
    renamed = ", ".join(f'"{old}" AS "{new}"' for old, new in RENAMED_SINCE.get(entry.name, {}).items())
    columns = f"* RENAME ({renamed})" if renamed else "*"
    for each in entry.snapshots:
        at = commits.get(str(each["snapshot_id"]))
        if at is None:
            found.append(f"snapshot {each['snapshot_id']} is not in the lake")
        else:
            asked[f"snapshot {each['snapshot_id']}"] = (
                f"SELECT {columns} FROM t AT (VERSION => {at})",
                (each["rows"], each["sha256"]),
            )
    with opened(lake) as connection:
        for what, (query, expected) in asked.items():
            got = content(connection, query)
            if got != expected:
                found.append(f"{what}: {got[0]} rows, hash {got[1]}, expected {expected[0]} rows, hash {expected[1]}")
    return found


def test_every_blocked_name_is_in_the_corpus() -> None:
    assert sorted({*BLOCKED, *LOST, *IN_SQLITE} - set(ENTRIES)) == []


@pytest.mark.parametrize("entry", chosen(MIGRATED, ALIKE))
def test_table_migrates_as_its_engine_reads_it(entry: Entry, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    ran = entry.migrate(str(lake))
    assert ran.code == 0, ran.out + ran.err
    codes = ran.codes()
    assert (codes["blocked"], Counter(codes["loss"])) == ([], LOST.get(entry.name, Counter()))
    assert wrong(entry, lake) == []
    assert entry.untouched()
    copied = [path for path in tmp_path.rglob("*.parquet") if not path.name.endswith("-delete.parquet")]
    assert copied == [], "no byte of data is copied"


@pytest.mark.parametrize("entry", chosen(list(BLOCKED)))
def test_table_is_blocked_for_its_reason(entry: Entry, tmp_path: Path) -> None:
    ran = entry.migrate(str(tmp_path / "lake.ducklake"), "--rewrite", "never")
    assert ran.code == 3, ran.out + ran.err
    codes = ran.codes()
    assert frozenset(codes["blocked"]) == BLOCKED[entry.name]
    resized = any("file_size_in_bytes" in each for each in entry.facts.get("hazards", ()))
    assert ("size-corrected" in codes["note"]) == resized
    assert list(tmp_path.iterdir()) == []
    assert entry.untouched()


@pytest.mark.slow
@pytest.mark.parametrize("entry", chosen(IN_SQLITE, {*IN_SQLITE[3:]}))
def test_table_migrates_into_a_sqlite_catalog(entry: Entry, tmp_path: Path) -> None:
    lake = tmp_path / "lake.sqlite"
    ran = entry.migrate(f"sqlite:{lake}")
    assert ran.code == 0, ran.out + ran.err
    assert wrong(entry, lake) == []
    assert entry.untouched()


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(ENTRIES[each], id=each, marks=[pytest.mark.exhaustive] * (each not in FILTERED))
        for each in MIGRATED
    ],
)
def test_filters_and_times_answer_as_the_whole_table_does(entry: Entry, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert entry.migrate(str(lake)).code == 0
    assert wrong(entry, lake) == []  # so that what is read without a filter is the truth
    times = dict(lake_rows(lake, "SELECT snapshot_id, snapshot_time FROM ducklake_snapshot"))
    commits = commits_of(lake)
    versions = []
    with opened(lake) as connection:
        for each in sorted(commits[each] for each in entry.commits):
            rows = connection.execute(f"FROM t AT (VERSION => {each})").to_arrow_table()
            versions.append(Version(each, times[each], rows, True))
        versions.append(Version(None, None, connection.execute("FROM t").to_arrow_table(), True))
    assert judge(str(lake), [Subject("main.t", tuple(versions))], scratch=tmp_path / "s", change=False, filters=8) == []


@pytest.mark.slow
@pytest.mark.parametrize("to", ["timestamptz", "timestamp_ns"])
def test_nanosecond_instants_migrate_with_a_type_map(to: str, tmp_path: Path) -> None:
    entry, lake = ENTRIES["empty_v3_ts_ns"], tmp_path / "lake.ducklake"
    ran = entry.migrate(str(lake), "--type-map", f"timestamptz_ns={to}")
    assert ran.code == 0, ran.out + ran.err
    expected = {"timestamptz": "TIMESTAMP WITH TIME ZONE", "timestamp_ns": "TIMESTAMP_NS"}[to]
    with opened(lake) as connection:
        assert dict(row[:2] for row in connection.execute("DESCRIBE t").fetchall())["val"] == expected
        assert content(connection, "SELECT * FROM t") == entry.content
    assert entry.untouched()
