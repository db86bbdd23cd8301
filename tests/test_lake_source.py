"""A DuckLake as a source: what our reader says of a lake is what DuckDB reads of it, at every snapshot."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bridge
from bridge.errors import Blocked, Conflict, UsageError
from bridge.model.findings import Code
from bridge.model.layout import Bucket, Simple, UnknownTransform
from bridge.model.options import Options
from bridge.model.paths import PathMap
from bridge.ports import Silent
from converters.ducklake.extensions import packaged
from converters.ducklake.reader import open_source
from tests.lake_parts import PARTS, partial_readings
from tests.lake_steps import every_type, life
from tests.lake_truth import Reading, truth
from tests.server import Server, server
from tests.support import SHARED, lake_rows, run_here, use

# rows and deletes in the catalog, delete files, an update, a flush, a merge, every kind of ALTER, two names
STEPS = (
    "CREATE TABLE lake.t (id INTEGER, s VARCHAR, st STRUCT(a INTEGER, b VARCHAR), n SMALLINT)",
    "INSERT INTO lake.t SELECT i, 'f' || i, {'a': i, 'b': 'x'}, i FROM range(50) r(i)",
    "INSERT INTO lake.t VALUES (1000, 'it''s', NULL, 1), (1001, NULL, {'a': NULL, 'b': ''}, NULL)",
    "DELETE FROM lake.t WHERE id IN (5, 1001)",
    "UPDATE lake.t SET s = 'changed' WHERE id IN (7, 9, 1000)",
    "COMMENT ON TABLE lake.t IS 'what it is'",
    "COMMENT ON COLUMN lake.t.s IS 'a text'",
    "ALTER TABLE lake.t ADD COLUMN d INTEGER DEFAULT 7",
    "ALTER TABLE lake.t ALTER n SET DATA TYPE BIGINT",
    "INSERT INTO lake.t VALUES (1002, 'q', {'a': 1, 'b': 'y'}, 4000000000, 8)",
    "CALL ducklake_flush_inlined_data('lake')",
    "INSERT INTO lake.t VALUES (1003, 'NULL', NULL, 3, 9)",
    "ALTER TABLE lake.t RENAME s TO word",
    "ALTER TABLE lake.t DROP COLUMN n",
    "ALTER TABLE lake.t ADD COLUMN n VARCHAR DEFAULT 'NULL'",
    "ALTER TABLE lake.t ADD COLUMN st.c DATE",
    "ALTER TABLE lake.t ALTER word SET DEFAULT 'w'",
    "CALL lake.set_option('data_inlining_row_limit', 0)",
    "DELETE FROM lake.t WHERE id BETWEEN 20 AND 24",
    "DELETE FROM lake.t WHERE id BETWEEN 30 AND 34",
    "ALTER TABLE lake.t SET PARTITIONED BY (year(d2), month(d2), bucket(4, id), word)",
    "ALTER TABLE lake.t SET SORTED BY (word DESC NULLS LAST, id + 1)",
    "INSERT INTO lake.t (id, word) VALUES (2000, 'a')",
    "INSERT INTO lake.t (id, word) VALUES (2001, 'b')",
    "ALTER TABLE lake.t RESET PARTITIONED BY",
    "INSERT INTO lake.t (id, word) VALUES (2002, 'c')",
    "INSERT INTO lake.t (id, word) VALUES (2003, 'd')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL lake.set_option('data_inlining_row_limit', 10)",
    "DELETE FROM lake.t WHERE id IN (11, 12, 2000)",
    "INSERT INTO lake.t (id, d) VALUES (3000, 1), (3001, 2)",
    "UPDATE lake.t SET d = 5 WHERE id IN (3000, 13)",
    "BEGIN",
    "CALL lake.set_commit_message('somebody', 'a message')",
    "DELETE FROM lake.t WHERE id IN (2001, 2003)",
    "COMMIT",
    "ALTER TABLE lake.t RENAME TO u",
)


def made(attach: str, steps: tuple[str, ...] = STEPS, options: str = "") -> None:
    """A lake; every step succeeds, but partitioning by a column that is not there."""
    said = use(attach, steps, options)
    assert [each for each in said if each and "d2" not in each] == []


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of all the steps; nothing may change it."""
    path = tmp_path_factory.mktemp("lake") / "lake.ducklake"
    made(str(path))
    return path


@pytest.mark.slow
def test_every_snapshot_is_what_duckdb_reads(lake: Path) -> None:
    assert Reading(str(lake)).differences(truth(str(lake))) == []


@pytest.mark.slow
def test_every_snapshot_of_an_sqlite_lake_is_what_duckdb_reads(tmp_path: Path) -> None:
    attach = f"sqlite:{tmp_path / 'lake.sqlite'}"
    made(attach)
    assert Reading(attach).differences(truth(attach)) == []


def test_definition_and_history(lake: Path) -> None:
    source = open_source(str(lake), Options())
    [name] = source.tables()
    table = source.open(name).table
    assert str(name) == "main.u"
    fields = {each.name: each for each in table.schema.fields}
    assert list(fields) == ["id", "word", "st", "d", "n"]
    assert (fields["word"].doc, fields["word"].write_default) == ("a text", "w")
    assert (fields["d"].initial_default, fields["n"].initial_default) == ("7", "NULL")
    assert table.properties["comment"] == "what it is"
    said = [each.operation for each in table.commits]
    assert said[:5] == ["create", "append", "append", "delete", "overwrite"]
    assert [each.id for each in table.commits if each.operation == "replace"] == ["25"], "a merge changes no row"
    last = table.commits[-2]
    assert (last.summary["author"], last.summary["message"], last.operation) == ("somebody", "a message", "delete")
    assert table.commits[-1].summary["ducklake.changes"] == "renamed_table"
    times = [each.time for each in table.commits]
    assert times == sorted(set(times))
    assert [int(each.id) for each in table.commits] == sorted(int(each.id) for each in table.commits)
    assert [(each.transform, each.descending) for each in table.sort_order.fields] == [
        (Simple.IDENTITY, True),
        (UnknownTransform("(id + 1)"), False),
    ]


def test_flush_and_rewrite_change_no_row(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    steps = (
        *(
            "CREATE TABLE lake.t (a INTEGER)",
            "INSERT INTO lake.t SELECT * FROM range(20)",
            "INSERT INTO lake.t VALUES (9)",
        ),
        *("DELETE FROM lake.t WHERE a IN (9, 3)", "CALL ducklake_flush_inlined_data('lake')"),
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
    )
    made(attach, steps)
    source = open_source(attach, Options())
    said = [each.operation for each in source.open(source.tables()[0]).table.commits]
    assert said == ["create", "append", "append", "delete", "replace", "replace"]


def test_partition_specs_are_neutral(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    parts = "year(ts), month(ts), day(ts), bucket(8, k), bucket(4, m), month(d), s"
    steps = (
        "CREATE TABLE lake.t (ts TIMESTAMP, k BIGINT, m DECIMAL(9,2), d DATE, s VARCHAR)",
        f"ALTER TABLE lake.t SET PARTITIONED BY ({parts})",
        "ALTER TABLE lake.t RESET PARTITIONED BY",
        "ALTER TABLE lake.t SET PARTITIONED BY (s)",
    )
    made(attach, steps)
    source = open_source(attach, Options())
    table = source.open(source.tables()[0]).table
    older, newer = (table.specs[id_] for id_ in sorted(table.specs) if id_)
    assert [each.transform for each in older.fields] == [
        Simple.DAY,
        Bucket(8),
        UnknownTransform("bucket(4)"),
        UnknownTransform("month of the calendar"),
        Simple.IDENTITY,
    ]
    assert table.spec == newer
    said = [each.summary.get("ducklake.partitioned-by") for each in table.commits]
    assert said[0] is None
    assert said[2:] == ["none", "identity: s"]
    assert [each.name for each in newer.fields] == ["s"]


def test_statistics_are_the_catalogs_with_their_exactness(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    long = "repeat('x', 300)"
    steps = (
        "CREATE TABLE lake.t (id INTEGER, s VARCHAR, f DOUBLE, ts TIMESTAMPTZ, l INTEGER[])",
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        "INSERT INTO lake.t SELECT i, 's' || i, -0.0, TIMESTAMPTZ '2024-01-01 00:00:00+00', [i, NULL] "
        "FROM range(9) r(i)",
        f"INSERT INTO lake.t VALUES (NULL, {long}, 'nan'::DOUBLE, NULL, NULL), (3, 'a', 1.5, NULL, [])",
        "ALTER TABLE lake.t ADD COLUMN later BOOLEAN",
        "INSERT INTO lake.t VALUES (1, 'b', 2, NULL, NULL, true)",
    )
    made(attach, steps)
    source = open_source(attach, Options())
    opened = source.open(source.tables()[0])
    ids = {each.id: each.name for each in opened.table.schema.fields}
    found: dict[str, dict[int, tuple[Any, ...]]] = {}
    for batch in opened.files(Silent()).stats():
        rows = found.setdefault(ids.get(batch.field, "element"), {})
        for row in batch.table.to_pylist():
            rows[row["file"]] = (row["values"], row["nulls"], row["nans"], row["lower"], row["upper"], batch.exact)
    assert found["id"] == {
        0: (9, 0, None, 0, 8, True),
        1: (2, 1, None, 3, 3, True),
        2: (1, 0, None, 1, 1, True),
    }
    assert found["s"][0] == (9, 0, None, "s0", "s8", True)
    assert found["s"][1][5] is False, "a text that was cut is no value of a row"
    assert str(found["f"][0][3]) == "-0.0", "0.0 may stand for both zeros"
    assert found["f"][0][2] == 0
    assert found["f"][1][2] is None, "how many are NaN is not known"
    assert list(found["later"]) == [2], "older files do not hold the column"
    assert found["element"][0][:2] == (18, 9)


def test_rows_in_the_catalog_are_a_problem(lake: Path) -> None:
    source = open_source(str(lake), Options())
    opened = source.open(source.tables()[0])
    files = opened.files(Silent())
    [problem] = files.problems
    assert problem.finding.code is Code.INLINED_ROWS
    assert problem.rows


def test_older_state_is_read_as_it_was(lake: Path) -> None:
    source = open_source(str(lake), Options(at="3"))
    assert [str(each) for each in source.tables()] == ["main.t"]
    table = source.open(source.tables()[0]).table
    assert [each.name for each in table.schema.fields] == ["id", "s", "st", "n"]
    assert table.commits[-1].id == "3"
    with pytest.raises(UsageError, match="no such snapshot"):
        open_source(str(lake), Options(at="9999"))


@pytest.mark.slow
def test_rows_come_from_duckdb(lake: Path) -> None:
    source = open_source(str(lake), Options())
    opened = source.open(source.tables()[0])
    first = opened.rows(opened.table.commits[1].id)
    assert first.schema.names == ["id", "s", "st", "n"]
    assert sum(batch.num_rows for batch in first) == 50
    now = opened.rows("")
    assert "word" in now.schema.names
    [held] = bridge.inspect(f"ducklake:{lake}").lake_tables
    assert held.rows == sum(batch.num_rows for batch in now) > 0, "rows in the catalog are rows, too"


def test_views_and_macros_are_noticed(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    steps = (
        "CREATE SCHEMA lake.empty",
        "CREATE VIEW lake.main.v AS SELECT 1 AS a",
        "CREATE MACRO lake.main.plus(x) AS x + 1",
        "CREATE TABLE lake.main.t (a INTEGER)",
    )
    made(attach, steps)
    said = {(str(each.name), each.finding.code) for each in open_source(attach, Options()).noticed()}
    assert said == {
        ("main.v", Code.VIEW_NOT_CARRIED),
        ("main.plus", Code.MACRO_NOT_CARRIED),
        ("empty.", Code.EMPTY_NAMESPACE),
    }


@pytest.mark.slow
def test_dropped_and_made_again_is_another_table(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    made(attach, ("CREATE TABLE lake.t (a INTEGER)", "INSERT INTO lake.t VALUES (1)"))
    before = open_source(attach, Options())
    old = before.open(before.tables()[0]).table
    made(attach, ("DROP TABLE lake.t", "CREATE TABLE lake.t (b DATE)"))
    assert not before.holds(before.tables()[0])
    after = open_source(attach, Options())
    new = after.open(after.tables()[0]).table
    assert new.uuid != old.uuid
    assert [each.operation for each in new.commits] == ["create"]


@pytest.mark.slow
def test_snapshots_that_were_expired_meanwhile_are_a_conflict(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    made(attach, ("CREATE TABLE lake.t (a INTEGER)", "INSERT INTO lake.t VALUES (1)", "INSERT INTO lake.t VALUES (2)"))
    source = open_source(attach, Options())
    opened = source.open(source.tables()[0])
    made(attach, ("INSERT INTO lake.t VALUES (3)",))
    assert opened.files(Silent()).table.num_rows == 2, "what is later than the opened state is not seen"
    made(attach, ("CALL ducklake_expire_snapshots('lake', versions => [2])",))
    with pytest.raises(Conflict, match="snapshot 2 was expired"):
        opened.files(Silent())


@pytest.mark.slow
def test_a_commit_is_called_by_the_snapshot_that_shows_it(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    inserts = tuple(f"INSERT INTO lake.t SELECT {number} FROM range(20)" for number in range(3))
    other = ("CREATE TABLE lake.other (a INTEGER)",)
    made(attach, ("CREATE TABLE lake.t (a INTEGER)", *inserts, *other))
    made(attach, ("CALL ducklake_expire_snapshots('lake', versions => [0, 1, 2, 3, 4])",))
    source = open_source(attach, Options())
    opened = source.open(next(each for each in source.tables() if each.name == "t"))
    [commit] = opened.table.commits
    assert (commit.id, commit.changed, commit.summary["ducklake.snapshot-id"]) == ("5", "4", "5")
    assert opened.count("5") == 60
    assert [sum(batch.num_rows for batch in opened.rows(each)) for each in ("4", "5")] == [60, 60]
    assert Reading(attach).differences(truth(attach)) == []


@pytest.mark.slow
def test_catalog_with_a_write_ahead_log(tmp_path: Path) -> None:
    attach = f"sqlite:{tmp_path / 'lake.sqlite'}"
    made(attach, ("CREATE TABLE lake.t (a INTEGER)", "INSERT INTO lake.t VALUES (1)"))
    with sqlite3.connect(tmp_path / "lake.sqlite") as catalog:
        catalog.execute("PRAGMA journal_mode = WAL")
    catalog.close()
    before = sorted(os.listdir(tmp_path))
    source = open_source(attach, Options())
    assert source.open(source.tables()[0]).files(Silent()).table.num_rows == 1
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lake.ducklake", "lake.sqlite"])
def test_every_type_in_the_catalog(kind: str, tmp_path: Path) -> None:
    attach = f"{'sqlite:' if kind.endswith('sqlite') else ''}{tmp_path / kind}"
    made(attach, tuple(every_type()))
    assert Reading(attach).differences(truth(attach)) == []


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """A directory that cannot be written, not even by root."""
    bind = subprocess.run(["mount", "--bind", directory, directory], capture_output=True, check=False)
    if bind.returncode == 0:
        subprocess.run(["mount", "-o", "remount,ro,bind", directory], check=True)
    else:
        directory.chmod(0o555)
    try:
        if os.access(directory, os.W_OK):
            pytest.skip("no directory can be made read-only here")
        yield
    finally:
        if bind.returncode == 0:
            subprocess.run(["umount", directory], check=True)
        directory.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lake.ducklake", "lake.sqlite", "wal.sqlite"])
def test_read_only_storage(kind: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    attach = f"{'sqlite:' if kind.endswith('sqlite') else ''}{home / kind}"
    made(attach, ("CREATE TABLE lake.t (a INTEGER)", "INSERT INTO lake.t SELECT * FROM range(20)"))
    if kind == "wal.sqlite":
        with sqlite3.connect(home / kind) as catalog:
            catalog.execute("PRAGMA journal_mode = WAL")
        catalog.close()
    with read_only(home):
        source = open_source(attach, Options())
        opened = source.open(source.tables()[0])
        assert opened.files(Silent()).table.num_rows == 1
        assert sum(batch.num_rows for batch in opened.rows("")) == 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 3, *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (2, 4, 5))])
def test_random_life(seed: int, tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake") if seed % 2 else f"sqlite:{tmp_path / 'lake.sqlite'}"
    steps = list(life(seed))
    if seed >= 2:
        steps.append("CALL ducklake_expire_snapshots('lake', versions => [3, 4, 9, 10, 11, 20, 21])")
        steps.append("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    use(attach, steps)
    assert Reading(attach).differences(truth(attach)) == []


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.mark.postgres
@pytest.mark.parametrize(
    "seed", ["steps", "types", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (4, 5))]
)
def test_postgres(running: Server, seed: int | str, tmp_path: Path) -> None:
    attach = f"postgres:{running.connection(running.database())}"
    options = f"DATA_PATH '{tmp_path}/files/'"
    if isinstance(seed, str):
        # PostgreSQL writes the first name small, and not the second
        named = ('CREATE TABLE lake.n ("Ab" INTEGER, "Ä b" INTEGER)', "INSERT INTO lake.n VALUES (1, 2)")
        made(attach, (*STEPS, *named) if seed == "steps" else tuple(every_type()), options)
    else:
        use(attach, list(life(seed)), options)
    assert Reading(attach).differences(truth(attach)) == []
    if seed == "steps":
        made(attach, PARTS, options)
        assert partial_readings(attach) >= len(PARTS) - 1


@pytest.mark.slow
def test_files_of_foreign_writers_without_ids_are_blocked(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    steps = ("CREATE TABLE lake.t (a INTEGER, b INTEGER)", "INSERT INTO lake.t SELECT i, 7 FROM range(20) r(i)")
    made(attach, steps)
    path = str(tmp_path / "foreign.parquet")
    pq.write_table(pa.table({"x": pa.array(range(20), pa.int32()), "y": pa.array([7] * 20, pa.int32())}), path)
    size, footer = os.path.getsize(path), int.from_bytes(Path(path).read_bytes()[-8:-4], "little")
    with duckdb.connect(attach) as catalog:
        catalog.execute(
            "UPDATE ducklake_data_file SET path = ?, path_is_relative = false, file_size_bytes = ?, footer_size = ?",
            [path, size, footer],
        )
    assert truth(attach).tables["main", "t"][2][1][1] == [1, "1", "7"], "DuckDB takes the columns by place"
    source = open_source(attach, Options())
    [problem] = source.open(source.tables()[0]).files(Silent()).problems
    assert (problem.finding.code, problem.rows) == (Code.NO_FIELD_IDS, ())


@pytest.mark.slow
def test_files_with_snapshot_numbers_and_missing_files_are_told(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    inserts = tuple(f"INSERT INTO lake.t SELECT {number} FROM range(20)" for number in range(3))
    made(attach, ("CREATE TABLE lake.t (a INTEGER)", *inserts, "CALL ducklake_merge_adjacent_files('lake')", *inserts))
    source = open_source(attach, Options())
    opened = source.open(source.tables()[0])
    files = opened.files(Silent())
    rows = files.table.to_pylist()
    merged = [number for number, row in enumerate(rows) if row["record_count"] == 60]
    assert list(files.numbered) == merged
    assert len(merged) == 3, "one piece for each snapshot that it serves otherwise"
    assert [(rows[each]["begin"], rows[each]["end"]) for each in merged] == [(1, 2), (2, 3), (3, None)]
    os.remove(rows[-1]["path"])
    [problem] = opened.files(Silent()).problems
    assert (problem.finding.code, problem.last, problem.finding.file_count) == (Code.FILE_MISSING, None, 1)


VECTORS = (
    "INSERT INTO lake.t SELECT i, 's' || i, {'a': i, 'l': [i, NULL]}, MAP {'k': i / 2} FROM range(50) r(i)",
    "INSERT INTO lake.t SELECT i, 's' || i, {'a': i, 'l': [i, NULL]}, MAP {'k': i / 2} FROM range(50, 99) r(i)",
    "DELETE FROM lake.t WHERE id % 7 = 0",
    "DELETE FROM lake.t WHERE id BETWEEN 60 AND 70",
    "UPDATE lake.t SET s = 'x' WHERE id IN (20, 22)",
    "ALTER TABLE lake.t RENAME s TO txt",
)
CREATE = "CREATE TABLE lake.t (id INTEGER, s VARCHAR, st STRUCT(a INTEGER, l INTEGER[]), m MAP(VARCHAR, DOUBLE))"
NO_INLINING = "CALL lake.set_option('data_inlining_row_limit', 0)"


@pytest.mark.slow
def test_deletion_vectors(tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    made(attach, ("CALL lake.set_option('write_deletion_vectors', true)", CREATE, NO_INLINING))
    made(attach, VECTORS)
    assert lake_rows(tmp_path / "lake.ducklake", "SELECT DISTINCT format FROM ducklake_delete_file") == [("puffin",)]
    assert Reading(attach).differences(truth(attach)) == []


@pytest.mark.slow
def test_encrypted_lake_is_rewritten(tmp_path: Path) -> None:
    attach, target = str(tmp_path / "lake.ducklake"), str(tmp_path / "plain.ducklake")
    unsafe = "SET force_mbedtls_unsafe = 'true'"
    options = f"ENCRYPTED true, DATA_PATH '{tmp_path}/files/'"
    made(attach, (unsafe, CREATE, NO_INLINING, *VECTORS, "CALL ducklake_merge_adjacent_files('lake')"), options)
    assert Reading(attach).differences(truth(attach)) == []
    ran = run_here("migrate", f"ducklake:{attach}", f"ducklake:{target}", "--json", "--verify", "rows")
    assert ran.code == 0, ran.err
    assert all(each.endswith(".parquet") for (each,) in lake_rows(Path(target), "SELECT path FROM ducklake_data_file"))
    refused = run_here("plan", f"ducklake:{attach}", f"ducklake:{tmp_path}/x.ducklake", "--rewrite", "never", "--json")
    assert refused.code == 3
    assert "file-encrypted" in refused.codes()["blocked"]


@pytest.mark.slow
def test_lake_to_lake_keeps_history_and_follows(tmp_path: Path) -> None:
    attach, target = str(tmp_path / "lake.ducklake"), tmp_path / "copy.ducklake"
    made(attach, STEPS[:10])
    copy = ("migrate", f"ducklake:{attach}", f"ducklake:{target}", "--json")
    first = run_here(*copy)
    assert first.code == 0, first.err
    count = lake_rows(target, "SELECT count(*) FROM ducklake_snapshot")[0][0]
    assert run_here(*copy).json["tables"][0]["action"] == "nothing"
    made(attach, STEPS[11:20])
    assert run_here(*copy, "--verify", "rows").code == 0  # at every snapshot
    assert lake_rows(target, "SELECT count(*) FROM ducklake_snapshot")[0][0] > count


needs_shared = pytest.mark.skipif(not (SHARED / "corpus").exists(), reason="the corpus is not here")


def entry(name: str, to: Path) -> tuple[str, Path]:
    """(what ATTACH takes, the folder to run in) of a writable copy of a corpus lake."""
    folder = to / name
    shutil.copytree(SHARED / "corpus" / "ducklake" / name, folder)
    catalog = folder / "catalog.sqlite"
    if (packed := folder / "catalog.ducklake.gz").exists():
        catalog = folder / "catalog.ducklake"
        catalog.write_bytes(gzip.decompress(packed.read_bytes()))
    return (f"sqlite:{catalog}" if catalog.suffix == ".sqlite" else str(catalog)), folder


# migrating a catalog of 0.2 or 0.3, DuckDB 1.5.5 forgets which rows of a merged file are of which snapshot
FORGOTTEN = {"zoo_0_2": (34, 35, 36), "zoo_0_3_sqlite": (34, 35, 36)}


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("zoo_0_3_sqlite", "zoo_0_4", "deletes_extra_columns", "old_v02", "old_v03_dev1"),
        pytest.param("zoo_0_2", marks=pytest.mark.exhaustive),  # forgets as the next one, and old_v02 is of its version
        pytest.param("zoo_1_0", marks=pytest.mark.exhaustive),  # test_publish_corpus.py publishes it by default
    ],
)
def test_corpus_lake(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, folder = entry(name, tmp_path / "ours")
    theirs, other = entry(name, tmp_path / "theirs")
    monkeypatch.chdir(folder)
    asked = truth(theirs, "AUTOMATIC_MIGRATION true", other)
    said = Reading(ours).differences(asked)
    # 2^127 - 1 went into a file as a DOUBLE, and DuckDB reads it no more
    said = [each for each in said if not (each.startswith("('main', 'odd_t_i128')") and "Conversion Error" in each)]
    known = tuple(f"('main', 'compacted'): snapshot {each}" for each in FORGOTTEN.get(name, ()))
    assert [each for each in said if not each.startswith(known or "none")] == []
    assert len(said) == len(known)


@needs_shared
def test_oldest_catalogs_are_refused_with_advice(tmp_path: Path) -> None:
    attach, _ = entry("old_v01", tmp_path)
    with pytest.raises(Blocked, match=r"version 0\.1") as refused:
        open_source(attach, Options())
    assert "AUTOMATIC_MIGRATION" in refused.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE ducklake_column",
        "DELETE FROM ducklake_schema",
        "UPDATE ducklake_column SET column_type = NULL",
        "UPDATE ducklake_data_file SET path = NULL",
        "ALTER TABLE ducklake_data_file DROP COLUMN table_id",
        "UPDATE ducklake_inlined_delete_1 SET begin_snapshot = NULL",
    ],
)
def test_damaged_catalog_is_refused_by_name(damage: str, lake: Path, tmp_path: Path) -> None:
    attach = str(tmp_path / "lake.ducklake")
    shutil.copyfile(lake, attach)
    with duckdb.connect(attach) as catalog:
        catalog.execute(damage)
    with pytest.raises(Blocked):
        source = open_source(attach, Options(check_files="none"))
        source.open(source.tables()[0]).files(Silent())


@needs_shared
@pytest.mark.slow
def test_rows_of_an_older_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach, folder = entry("zoo_0_2", tmp_path)
    monkeypatch.chdir(folder)
    content = Path(attach).read_bytes()
    source = open_source(attach, Options())
    opened = source.open(next(each for each in source.tables() if each.name == "simple"))
    assert sum(batch.num_rows for batch in opened.rows("")) == opened.table.next_row_id - 24
    assert Path(attach).read_bytes() == content, "the catalog is not upgraded in place"


def case(number: str, to: Path) -> dict[str, Any]:
    """Build a case in a process that finds DuckDB's extensions where LOAD looks for them."""
    [script] = (SHARED / "cases").glob(f"{number}_*.py")
    home = to / "home" / ".duckdb" / "extensions" / f"v{duckdb.__version__}"
    platform = duckdb.execute("PRAGMA platform").fetchall()[0][0]
    (home / platform).mkdir(parents=True)
    for name in ("ducklake", "sqlite_scanner"):
        if (file := packaged(name)) is not None:
            (home / platform / f"{name}.duckdb_extension").symlink_to(file)
    environment = {**os.environ, "HOME": str(to / "home")}
    ran = subprocess.run(
        [sys.executable, str(script), str(to / "case")], capture_output=True, text=True, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("number", ["60", "61", "65"])
def test_case(number: str, tmp_path: Path) -> None:
    facts = case(number, tmp_path)
    places = facts.get("catalogs", {"one": f"ducklake:{facts.get('catalog')}"})
    for place in places.values():
        attach = place.removeprefix("ducklake:")
        asked = truth(attach)
        assert Reading(attach).differences(asked) == []
        assert len(asked.tables["main", "t"][asked.snapshots[-1]][1]) == facts["expected"]["count"]


@needs_shared
@pytest.mark.slow
def test_case_63(tmp_path: Path) -> None:
    """A mirror's steps, each in a copy of the lake that was moved."""
    for step in case("63", tmp_path)["expected"]["steps"]:
        home = Path(step["dir"])
        attach = str(home / "lake.ducklake")
        moved = Options(path_map=PathMap(((str(home.parent / "live"), str(home)),)))
        options = f"READ_ONLY, DATA_PATH '{home}/files/', OVERRIDE_DATA_PATH true"
        found = Reading(attach, moved)
        assert found.differences(truth(attach, options)) == [], step["step"]
        assert {".".join(each) for each in found.tables} == set(step["tables_count_sum"])
