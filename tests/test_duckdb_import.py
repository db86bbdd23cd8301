"""Tables of a DuckDB file in a lake: every row under the documented cast of its column, and the file left as it was."""

from __future__ import annotations

import gzip
import json
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.judge import Subject, Version, judge
from tests.support import ROOT, SHARED, Ran, lake_rows, run, run_here, tree_hash, use
from tests.test_postgres import Spot, running, spot

__all__ = ["running", "spot"]  # fixtures

KEY = "DUCKLAKE_BRIDGE_DUCKDB_KEY"


def made(path: Path, *statements: str, storage: str = "v1.5.0") -> Path:
    """A DuckDB file of statements."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS made (STORAGE_VERSION '{storage}')")
        connection.execute("USE made")
        for statement in statements:
            connection.execute(statement)
    return path


def migrate(source: Path, lake: Path | str, *options: str, env: Mapping[str, str] | None = None) -> Ran:
    """As a user does it."""
    named = f"ducklake:{lake}"
    arguments = ("migrate", f"duckdb:{source}", named, "--json", "--rewrite", "when-needed", *options)
    return run(*arguments, env=env) if env else run_here(*arguments)


def refused(source: Path, lake: Path, *options: str) -> tuple[int, str]:
    """The exit code of what ends before it writes, and all that it says."""
    ran = run_here("migrate", f"duckdb:{source}", f"ducklake:{lake}", "--rewrite", "when-needed", *options)
    assert not lake.exists() and "Traceback" not in ran.out + ran.err
    return ran.code, ran.out + ran.err


@contextmanager
def both(source: Path, lake: Path, key: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the source as `s` and the lake as `lake`."""
    from converters.ducklake.extensions import connect

    sqlite = lake.suffix == ".sqlite"
    with connect("ducklake", *(["sqlite_scanner"] if sqlite else [])) as connection:
        secret = f", ENCRYPTION_KEY '{key}'" if key else ""
        connection.execute(f"ATTACH '{source}' AS s (READ_ONLY{secret})")
        connection.execute(f"ATTACH 'ducklake:{'sqlite:' if sqlite else ''}{lake}' AS lake (READ_ONLY)")
        yield connection


def differ(connection: duckdb.DuckDBPyConnection, left: str, right: str) -> int:
    """How many rows are in one query's answer and not in the other's."""
    query = f"SELECT count(*) FROM (({left}) EXCEPT ALL ({right}) UNION ALL (({right}) EXCEPT ALL ({left})))"
    found: int = connection.execute(query).fetchall()[0][0]
    return found


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def case(number: str, folder: Path) -> dict[str, Any]:
    """A case of the shared ones, made in a folder: what it printed."""
    [script] = (SHARED / "cases").glob(f"{number}_*.py")
    said, before = StringIO(), sys.argv
    sys.argv = [str(script), str(folder)]
    try:
        with redirect_stdout(said):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before
    found: dict[str, Any] = json.loads(said.getvalue())
    return found


needs_cases = pytest.mark.skipif(
    not (SHARED / "cases").exists(), reason="the shared cases are not beside this checkout"
)

WKB = r"\x01\x01\x00\x00\x00" + r"\x00" * 6 + r"\xF0?" + r"\x00" * 7 + "@"
"""POINT (1 2), as DuckDB writes a blob."""

# type, values, what it becomes without being asked, the cast that brings the values back from `{}`
REVERSIBLE: Sequence[tuple[str, tuple[str, ...], str, str]] = (
    ("ENUM('b', 'a''s')", ("'b'", "'a''s'", "NULL",), "VARCHAR", "CAST({} AS ENUM('b', 'a''s'))"),
    ("INTEGER[2]", ("[1, NULL]", "[2, 3]", "NULL",), "INTEGER[]", "CAST({} AS INTEGER[2])"),
    ("INTEGER[2][1]", ("[[1, 2]]", "NULL",), "INTEGER[][]", "CAST({} AS INTEGER[2][1])"),
    ("BIT", ("'10101'::BIT", "'0001'::BIT",), "VARCHAR", "CAST({} AS BIT)"),
    ("HUGEINT", ("9007199254740993", "-99999999999999999999999999999999999999",),
     "DECIMAL(38,0)", "CAST({} AS HUGEINT)"),
    ("HUGEINT", ("170141183460469231731687303715884105727", "NULL",), "VARCHAR", "CAST({} AS HUGEINT)"),
    ("UHUGEINT", ("99999999999999999999999999999999999999",), "DECIMAL(38,0)", "CAST({} AS UHUGEINT)"),
    ("UHUGEINT", ("340282366920938463463374607431768211455",), "VARCHAR", "CAST({} AS UHUGEINT)"),
    ("BIGNUM", ("'-12345678901234567890123'::BIGNUM", "NULL",),
     "DECIMAL(38,0)", "CAST(CAST({} AS VARCHAR) AS BIGNUM)"),
    ("BIGNUM", ("('1' || repeat('0', 60))::BIGNUM", "'-5'::BIGNUM",), "VARCHAR", "CAST({} AS BIGNUM)"),
    ("TIME_NS", ("'12:00:00.123456'::TIME_NS", "NULL",), "TIME", "CAST(CAST({} AS VARCHAR) AS TIME_NS)"),
    ("TIME_NS", ("'23:59:59.999999999'::TIME_NS",), "VARCHAR", "CAST({} AS TIME_NS)"),
    ("TIMETZ", ("'12:00:00.5+00'::TIMETZ", "NULL",), "TIME WITH TIME ZONE", "{}"),
    ("TIMETZ", ("'12:00:00+05:30'::TIMETZ", "'06:30:00+00'::TIMETZ",), "VARCHAR", "CAST({} AS TIMETZ)"),
    ("TIMETZ", ("'24:00:00+00'::TIMETZ", "'00:00:00+00'::TIMETZ",), "VARCHAR", "CAST({} AS TIMETZ)"),
    ("TIMETZ[]", ("['24:00:00+00'::TIMETZ]", "NULL",), "VARCHAR[]", "CAST({} AS TIMETZ[])"),
    ("GEOMETRY[]", ("['POINT Z (1 2 0.1)'::GEOMETRY, NULL, 'POINT EMPTY'::GEOMETRY]", "NULL",), "BLOB[]",
     "list_transform({}, lambda g: ST_GeomFromWKB(g))"),
    ("STRUCT(g GEOMETRY('OGC:CRS84'), i INTEGER)", ("{'g': 'POINT (1 2)'::GEOMETRY, 'i': 1}", "NULL",),
     "STRUCT(g BLOB, i INTEGER)", "CASE WHEN {0} IS NOT NULL THEN {{'g': ST_GeomFromWKB({0}.g), 'i': {0}.i}} END"),
    ("INTERVAL", ("INTERVAL '14 months 3 days 1001 milliseconds'", "NULL",), "INTERVAL", "{}"),
    ("INTERVAL", ("INTERVAL '3 microseconds'", "INTERVAL '-1 month'",), "VARCHAR", "CAST({} AS INTERVAL)"),
    ("INTERVAL", ("to_milliseconds(5000000000)",), "VARCHAR", "CAST({} AS INTERVAL)"),
    ("TIMESTAMP_S", ("'infinity'::TIMESTAMP_S", "'2024-02-29 12:34:56'::TIMESTAMP_S", "NULL",), "TIMESTAMP_S", "{}"),
    ("TIMESTAMP_NS", ("'-infinity'::TIMESTAMP_NS", "'2024-01-01 00:00:00.000000001'::TIMESTAMP_NS",),
     "TIMESTAMP_NS", "{}"),
    ("TIMESTAMPTZ", ("make_timestamptz(9223372036854775806)", "NULL",), "TIMESTAMP WITH TIME ZONE", "{}"),
    ("VARIANT", ("42::VARIANT", "{'a': [1]}::VARIANT", "NULL",), "VARIANT", "{}"),
    ("JSON", ('\'{"a": [1, null]}\'', "NULL",), "JSON", "{}"),
    ("MAP(HUGEINT, TIME_NS)", ("MAP {1: '00:00:00.000000001'::TIME_NS}", "MAP {}", "NULL",),
     "MAP(DECIMAL(38,0), VARCHAR)", ""),
    ("UNION(num INTEGER, s VARCHAR)", ("union_value(num := 1)", "union_value(s := 'x')", "NULL",),
     "STRUCT(tag VARCHAR, num INTEGER, s VARCHAR)", ""),
    ("STRUCT(u UNION(t TIME_NS, h HUGEINT), tag BIT)[]",
     ("[{'u': union_value(h := 5::HUGEINT), 'tag': '1'::BIT}, NULL]", "NULL",),
     "STRUCT(u STRUCT(tag VARCHAR, t TIME, h DECIMAL(38,0)), tag VARCHAR)[]", ""),
    ("STRUCT(v VARIANT)", ("{'v': 1::VARIANT}", "NULL",), "STRUCT(v JSON)", ""),
    ("MAP(VARCHAR, GEOMETRY)", ("MAP {'a': 'POINT (1 2)'::GEOMETRY}", "NULL",), "MAP(VARCHAR, BLOB)", ""),
    ("UNION(g GEOMETRY, i INTEGER)", ("union_value(g := 'POINT (1 2)'::GEOMETRY)", "union_value(i := 2)",),
     "STRUCT(tag VARCHAR, g BLOB, i INTEGER)", ""),
)  # fmt: skip


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Ran]:
    """A table for each row of REVERSIBLE, and what became of them."""
    folder = tmp_path_factory.mktemp("typed")
    statements = []
    for number, (type_, values, _, _) in enumerate(REVERSIBLE):
        statements.append(f"CREATE TABLE t{number} (v {type_})")
        statements += [f"INSERT INTO t{number} SELECT CAST({value} AS {type_})" for value in values]
    source = made(folder / "typed.duckdb", *statements)
    return source, folder / "typed.ducklake", migrate(source, folder / "typed.ducklake", "--verify", "none")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(REVERSIBLE)))
def test_type_becomes_what_is_documented_and_can_be_turned_back(typed: tuple[Path, Path, Ran], number: int) -> None:
    source, lake, ran = typed
    assert ran.code == 0, ran.err
    type_, _, becomes, back = REVERSIBLE[number]
    with both(source, lake) as connection:
        [found] = connection.sql(f"FROM lake.t{number}").types
        assert str(found) == becomes
        rows = connection.execute(f"SELECT count(*), count(v) FROM lake.t{number}").fetchall()
        assert rows == connection.execute(f"SELECT count(*), count(v) FROM s.t{number}").fetchall()
        if back:
            text = f"SELECT CAST({back.format('v')} AS {type_})::VARCHAR FROM lake.t{number}"
            assert differ(connection, text, f"SELECT v::VARCHAR FROM s.t{number}") == 0


@pytest.mark.slow
def test_nested_values_are_those_of_the_source(typed: tuple[Path, Path, Ran]) -> None:
    source, lake, _ = typed
    places = {type_: number for number, (type_, _, _, back) in enumerate(REVERSIBLE) if not back}
    expected = {
        "MAP(HUGEINT, TIME_NS)": ["{1='00:00:00.000000001'}", "{}", None],
        "UNION(num INTEGER, s VARCHAR)": ["{'tag': num, 'num': 1, 's': NULL}", "{'tag': s, 'num': NULL, 's': x}", None],
        "STRUCT(u UNION(t TIME_NS, h HUGEINT), tag BIT)[]": [
            "[{'u': {'tag': h, 't': NULL, 'h': 5}, 'tag': 1}, NULL]",
            None,
        ],
        "STRUCT(v VARIANT)": ["{'v': 1}", None],
        "MAP(VARCHAR, GEOMETRY)": [f"{{a={WKB}}}", None],
        "UNION(g GEOMETRY, i INTEGER)": [f"{{'tag': g, 'g': {WKB}, 'i': NULL}}", "{'tag': i, 'g': NULL, 'i': 2}"],
    }
    with both(source, lake) as connection:
        for type_, texts in expected.items():
            found = connection.execute(f"SELECT v::VARCHAR FROM lake.t{places[type_]}").fetchall()
            assert [text for (text,) in found] == texts, type_


def test_what_does_not_fit_an_asked_type_is_blocked_before_anything_is_written(tmp_path: Path) -> None:
    source = made(
        tmp_path / "s.duckdb",
        "CREATE TABLE t (h HUGEINT, s STRUCT(t TIME_NS)[], z TIMETZ)",
        "INSERT INTO t VALUES (170141183460469231731687303715884105727, [{'t': '00:00:00.000000001'}], '24:00:00+00'), "
        "(1, NULL, NULL)",
    )
    asked = ("hugeint=decimal", "time_ns=time", "timetz=timetz")
    maps = [part for each in asked for part in ("--type-map", each)]
    code, said = refused(source, tmp_path / "l.ducklake", *maps)
    assert code == 3 and said.count("type-range") == 3
    assert "column s.element.t: 1 row does not fit" in said
    assert [each.name for each in tmp_path.iterdir()] == ["s.duckdb"]


@pytest.mark.slow
def test_the_user_chooses_types(tmp_path: Path) -> None:
    source = made(
        tmp_path / "s.duckdb",
        "CREATE TABLE t (h HUGEINT, n TIME_NS, u UNION(a INTEGER))",
        "INSERT INTO t VALUES (1, '00:00:00.000000001', 7)",
    )
    maps = [part for each in ("hugeint=varchar", "time_ns=bigint", "union=varchar") for part in ("--type-map", each)]
    ran = migrate(source, tmp_path / "l.ducklake", *maps, "--verify", "none")
    assert ran.code == 0, ran.err
    with both(source, tmp_path / "l.ducklake") as connection:
        assert connection.execute("FROM lake.t").fetchall() == [("1", 1, "7")]


NANS: Sequence[tuple[str, str, int]] = (
    ("DOUBLE", "N", 1),
    ("MAP(VARCHAR, DOUBLE)", "MAP {'a': N, 'b': 1, 'c': N}", 2),
    ("MAP(FLOAT, INTEGER)", "MAP {N: 1, 2.0: NULL}", 1),
    ("MAP(DOUBLE, FLOAT)[]", "[MAP {N: N}, NULL, MAP {}, MAP {1: N, N: N}]", 5),
    ("STRUCT(m MAP(VARCHAR, DOUBLE), d DOUBLE)", "{'m': MAP {'a': N}, 'd': 1}", 1),
    ("MAP(INTEGER, MAP(FLOAT, DOUBLE[]))", "MAP {1: MAP {N: [N, 1, N]}, 2: NULL}", 3),
    (
        "MAP(VARCHAR, STRUCT(x DOUBLE, y DOUBLE)[])",
        "MAP {'a': [{'x': N, 'y': 1}, NULL, {'x': N, 'y': N}]}",
        3,
    ),
)


def test_nan_is_counted_at_every_level(tmp_path: Path) -> None:
    from converters.duckdb_file.types import Mapper
    from converters.parquet.copied import column_stats
    from converters.parquet.sql import field_ids

    for number, (type_, text, expected) in enumerate(NANS):
        value = text.replace("N", "'nan'::DOUBLE").replace("'nan'::DOUBLEULL", "NULL")
        path = str(tmp_path / f"{number}.parquet")
        with duckdb.connect() as connection:
            # a column whose dotted name is that of a leaf of the other one
            connection.execute(f'CREATE TABLE t (v {type_}, "v.m" DOUBLE, "v.key_value.key" DOUBLE)')
            connection.execute(f"INSERT INTO t VALUES (CAST({value} AS {type_}), 1, 1), (NULL, 2, 2), ({value}, 3, 3)")
            mapper = Mapper("t", {}, {})
            found = connection.sql("FROM t")
            fields = tuple(mapper.column(*each) for each in zip(found.columns, found.types, strict=True))
            copy = f"COPY t TO '{path}' (FORMAT parquet, FIELD_IDS {field_ids(fields)}, RETURN_STATS)"
            [(*_, told, _)] = connection.execute(copy).fetchall()
            stats = column_stats(connection, fields, told, path)
        assert sum(each.nans or 0 for each in stats) == 2 * expected, type_


def test_rows_are_copied_only_when_that_is_allowed(tmp_path: Path) -> None:
    source = made(tmp_path / "s.duckdb", "CREATE TABLE t AS SELECT 1 AS i")
    code, said = refused(source, tmp_path / "l.ducklake", "--rewrite", "never")
    assert code == 3 and "own-format" in said
    assert "--rewrite when-needed" in said and "Spark" not in said


@pytest.mark.slow
def test_running_again_changes_nothing_and_a_changed_source_is_told(tmp_path: Path) -> None:
    source, lake = made(tmp_path / "s.duckdb", "CREATE TABLE t AS SELECT 1 AS i"), tmp_path / "l.ducklake"
    assert migrate(source, lake).code == 0
    before = tree_hash(tmp_path)
    again = migrate(source, lake)
    assert (again.code, [each["action"] for each in again.json["tables"]]) == (0, ["nothing"])
    assert tree_hash(tmp_path) == before
    other = migrate(source, lake, "--sort-by", "i")
    assert other.code == 5 and "other types or another layout" in other.out + other.err
    with duckdb.connect(str(source)) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
    changed = migrate(source, lake)
    assert changed.code == 5 and "the source changed since it was imported" in changed.out + changed.err
    assert migrate(source, lake, "--as", "main.t2").code == 0


@pytest.mark.slow
def test_an_unreplayed_log_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    script = (
        "import duckdb, os; c = duckdb.connect('w.duckdb'); c.execute('CREATE TABLE t AS SELECT range AS i FROM "
        "range(10)'); c.execute('CHECKPOINT'); c.execute(\"SET wal_autocheckpoint = '1TB'\"); "
        "c.execute('INSERT INTO t SELECT 100'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)
    assert (folder / "w.duckdb.wal").stat().st_size
    before = tree_hash(folder), [each.stat().st_mtime_ns for each in sorted(folder.iterdir())]
    assert migrate(folder / "w.duckdb", tmp_path / "l.ducklake", "--verify", "rows").code == 0
    assert (tree_hash(folder), [each.stat().st_mtime_ns for each in sorted(folder.iterdir())]) == before
    with both(folder / "w.duckdb", tmp_path / "l.ducklake") as connection:
        assert connection.execute("SELECT count(*), max(i) FROM lake.t").fetchall() == [(11, 100)]


def test_a_file_that_somebody_writes_is_a_conflict(tmp_path: Path) -> None:
    source = made(tmp_path / "s.duckdb", "CREATE TABLE t AS SELECT 1 AS i")
    script = f"import duckdb; c = duckdb.connect({str(source)!r}); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        code, said = refused(source, tmp_path / "l.ducklake")
        holder.communicate("\n")
    assert code == 5 and f"process {holder.pid}" in said


def test_what_is_no_database_is_told_by_kind(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole.duckdb", "CREATE TABLE t AS SELECT range AS i FROM range(100000)").read_bytes()
    bad = {
        "none.duckdb": (None, "does not exist"),
        "empty.duckdb": (b"", "is empty"),
        "text.duckdb": (b"hello" * 4000, "is not a DuckDB file"),
        "sqlite.duckdb": (b"SQLite format 3\0" + bytes(9000), "is an SQLite database"),
        "newer.duckdb": (whole[:12] + bytes([99]) + whole[13:], "has storage version 99"),
        "cut.duckdb": (whole[: len(whole) // 2], "cannot be opened"),
        "damaged.duckdb": (whole[:4096] + bytes(8192) + whole[12288:], "cannot be opened"),
    }
    for name, (content, expected) in bad.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        code, said = refused(tmp_path / name, tmp_path / "l.ducklake")
        assert (code, expected in said) == (6, True), (name, said)


@needs_cases
@pytest.mark.slow
def test_an_encrypted_file_is_opened_with_the_key_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SHARED / "corpus/duckdb/encrypted_gcm_1_4_1/encrypted_gcm_1_4_1.duckdb"
    lake = tmp_path / "l.ducklake"
    monkeypatch.delenv(KEY, raising=False)
    code, said = refused(source, lake)
    assert code == 3 and KEY in said
    monkeypatch.setenv(KEY, "not-the-key")
    code, said = refused(source, lake)
    assert code == 6 and "not-the-key" not in said
    right = migrate(source, lake, "--source-option", "key_env=OTHER", env={"OTHER": "abcde"})
    assert right.code == 0 and "abcde" not in right.out + right.err
    assert b"abcde" not in lake.read_bytes()
    with both(source, lake, "abcde") as connection:
        assert differ(connection, "FROM lake.test", "FROM s.test") == 0


LAYOUT = (
    "CREATE TABLE t AS SELECT i, CASE WHEN i % 7 = 0 THEN NULL WHEN i % 11 = 0 THEN '__HIVE_DEFAULT_PARTITION__' "
    "WHEN i % 13 = 0 THEN '' ELSE 'a b/' || (i % 3) END AS k, TIMESTAMPTZ '1969-11-30 23:00:00+00' + to_hours(i * 9) "
    "AS ts, DATE '2020-01-01' + (i % 900)::INTEGER AS d, (i * 7919) % 1000 AS v FROM range(20000) r(i)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "sort", "declared"),
    [
        ("t=k,year(ts)", None, "k, year(ts)"),
        ("month(d), bucket(4, i)", "t=v DESC, i", "year(d), month(d), bucket(4, i)"),
        ("bucket(3,k),bucket(2,d),bucket(2,ts)", None, "bucket(3, k), bucket(2, d), bucket(2, ts)"),
    ],
)
def test_partitions_are_those_of_the_lakes_own_inserts(
    tmp_path: Path, partition: str, sort: str | None, declared: str
) -> None:
    source, lake = made(tmp_path / "s.duckdb", LAYOUT), tmp_path / "l.ducklake"
    ran = migrate(source, lake, "--partition-by", partition, *(["--sort-by", sort] if sort else []))
    assert ran.code == 0, ran.err
    own = tmp_path / "own.ducklake"
    copy = [f"ATTACH '{source}' AS s (READ_ONLY)", "SET TimeZone = 'UTC'", "CREATE TABLE lake.t AS FROM s.t LIMIT 0"]
    copy += [f"ALTER TABLE lake.t SET PARTITIONED BY ({declared})", "INSERT INTO lake.t FROM s.t"]
    assert use(str(own), copy) == [""] * len(copy)
    query = """
        SELECT regexp_replace(f.path, '[^/]*$', ''), list(v.partition_value ORDER BY v.partition_key_index),
               any_value(f.record_count)
        FROM ducklake_data_file f JOIN ducklake_file_partition_value v USING (data_file_id)
        WHERE f.partition_id IS NOT NULL GROUP BY f.data_file_id, f.path ORDER BY ALL"""
    assert lake_rows(lake, query) == lake_rows(own, query)
    keys = "SELECT partition_key_index, column_id, transform FROM ducklake_partition_column ORDER BY ALL"
    assert lake_rows(lake, keys) == lake_rows(own, keys)
    with both(source, lake) as connection:
        assert differ(connection, "FROM lake.t", "FROM s.t") == 0
        for i in (5, 77, 19999):
            assert connection.execute(f"SELECT count(*) FROM lake.t WHERE i = {i}").fetchall() == [(1,)]
    # what the lake adds and merges afterwards
    after = ["ATTACH '%s' AS s (READ_ONLY)" % source, "INSERT INTO lake.t FROM s.t"]  # noqa: UP031  # one of two kinds
    after.append("CALL ducklake_merge_adjacent_files('lake')")
    assert use(str(lake), after) == [""] * 3
    with both(source, lake) as connection:
        assert differ(connection, "FROM lake.t", "(FROM s.t) UNION ALL (FROM s.t)") == 0


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["hour(ts)", "d,s,i", "bucket(3,k),bucket(2,i)"])
def test_partitions_compact_with_what_the_lake_adds_to_them(tmp_path: Path, partition: str) -> None:
    source = made(
        tmp_path / "s.duckdb",
        "CREATE TABLE t AS SELECT i % 4 AS i, 'k' || (i % 5) AS k, TIMESTAMP '2024-01-01' + to_minutes((i * 37) % 300) "
        "AS ts, DATE '2024-01-01' + (i % 2)::INTEGER AS d, CASE WHEN i % 3 > 0 THEN 'a b/' || (i % 3) END AS s, "
        "i AS id FROM range(2000) r(i)",
    )
    lake = tmp_path / "l.ducklake"
    assert migrate(source, lake, "--partition-by", partition, "--verify", "none").code == 0
    count = "SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL"
    [(files,)] = lake_rows(lake, count)
    after = [
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        f"ATTACH '{source}' AS s (READ_ONLY)",
        "INSERT INTO lake.t FROM s.t",
        "CALL ducklake_merge_adjacent_files('lake')",
        "DELETE FROM lake.t WHERE id % 7 = 0",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)",
    ]
    assert use(str(lake), after) == [""] * len(after)
    assert lake_rows(lake, count) == [(files,)]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_delete_file WHERE end_snapshot IS NULL") == [(0,)]
    with both(source, lake) as connection:
        rows = "(FROM s.t WHERE id % 7 > 0)"
        assert differ(connection, "FROM lake.t", f"{rows} UNION ALL {rows}") == 0


EQUAL = (
    "i, d::VARCHAR AS d, f::VARCHAR AS f, signbit(d), p, s, iv::VARCHAR AS iv, l::VARCHAR AS l, m::VARCHAR AS m, "
    "v::VARCHAR AS v"
)
"""Columns as what tells equal values apart."""


@pytest.mark.slow
def test_equal_values_stay_those_that_they_are(tmp_path: Path) -> None:
    values = "['-0.0', '0.0', '1', '-1', 'nan', '-nan', NULL]"
    spans = "['30 days', '1 month', '720:00:00']"
    source = made(
        tmp_path / "s.duckdb",
        f"CREATE TABLE t AS SELECT i, ({values})[1 + i % 7]::DOUBLE AS d, ({values})[1 + i % 3]::FLOAT AS f, "
        f"i % 2 AS p, md5(i::VARCHAR) AS s, ({spans})[1 + i % 3]::INTERVAL AS iv, "
        "[{'x': d}] AS l, MAP {'a': f} AS m, d::VARIANT AS v FROM range(140000) r(i)",
        *(f"CREATE TABLE only_{each} AS SELECT i, {each} FROM t" for each in ("d", "f", "iv", "l", "m", "v")),
    )
    ways: list[tuple[str, ...]] = [("--sort-by", f"t={key}") for key in ("d", "f DESC NULLS FIRST, d")]
    ways += [(), ("--sort-by", "t=d,f DESC", "--partition-by", "t=p,d")]
    for number, options in enumerate(ways):
        lake = tmp_path / f"{number}.ducklake"
        if number < 2:  # several files, of a table that was sorted before
            assert use(str(lake), ["CALL lake.set_option('target_file_size', '2MB')"]) == [""]
        ran = migrate(source, lake, *options, *(() if "--sort-by" not in options else ("--table", "t")))
        assert ran.code == 0, ran.err
        with both(source, lake) as connection:
            assert differ(connection, f"SELECT {EQUAL} FROM lake.t", f"SELECT {EQUAL} FROM s.t") == 0, options
            for each in ("d", "f", "iv", "l", "m", "v") if not options else ():
                rows = f"SELECT i, {each}::VARCHAR FROM {{}}.only_{each}"
                assert differ(connection, rows.format("lake"), rows.format("s")) == 0, each
            if number == 0:
                before = "SELECT d, lag(d) OVER (ORDER BY rowid) AS p FROM lake.t"
                assert connection.execute(f"SELECT count(*) FROM ({before}) WHERE p > d").fetchall() == [(0,)]


@pytest.mark.slow
def test_rows_that_differ_in_the_sign_of_zero_alone_are_told(tmp_path: Path) -> None:
    from converters.ducklake.catalog.places import Place
    from converters.ducklake.scanner import compare_rows

    lake = tmp_path / "l.ducklake"
    said = ["CREATE TABLE lake.t AS SELECT unnest(['1.5', '-0.0', NULL])::DOUBLE AS d"]
    assert use(str(lake), said) == [""]
    rows = pa.table({"d": pa.array([1.5, -0.0, None], pa.float64())})
    place = Place("duckdb", str(lake))
    assert compare_rows(place, "lake.t", _Same(rows)) == ""
    other = pa.table({"d": pa.array([1.5, 0.0, None], pa.float64())})
    assert "1 missing, 1 that it has not" in compare_rows(place, "lake.t", _Same(other))


class _Same:
    """The rows of a table."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._rows.to_batches())


@pytest.mark.slow
def test_files_are_split_at_the_lakes_size_and_sorted(tmp_path: Path) -> None:
    source = made(
        tmp_path / "s.duckdb",
        "CREATE TABLE t AS SELECT i % 2 AS k, i, md5(i::VARCHAR) AS s FROM range(600000) r(i)",
    )
    for name, options in (("plain", ()), ("sorted", ("--sort-by", "s")), ("parts", ("--partition-by", "k"))):
        lake = tmp_path / f"{name}.ducklake"
        assert use(str(lake), ["CALL lake.set_option('target_file_size', '4MB')"]) == [""]
        ran = migrate(source, lake, *options, "--verify", "none")
        assert ran.code == 0, ran.err
        files = lake_rows(
            lake,
            "SELECT f.path, s.min_value, s.max_value, f.file_size_bytes FROM ducklake_data_file f "
            "JOIN ducklake_file_column_stats s USING (data_file_id) WHERE s.column_id = 3 ORDER BY f.file_order",
        )
        assert len(files) >= 4 and all(size < 10_000_000 for *_, size in files)
        if name == "sorted":
            assert all(high < low for (_, _, high, _), (_, low, _, _) in pairwise(files))
        with both(source, lake) as connection:
            assert differ(connection, "FROM lake.t", "FROM s.t") == 0
            if name == "sorted":
                before = "SELECT s, lag(s) OVER (ORDER BY rowid) AS p FROM lake.t"
                assert connection.execute(f"SELECT count(*) FROM ({before}) WHERE p > s").fetchall() == [(0,)]
        if name == "plain":  # each file is a range of the table
            ids = lake_rows(
                lake,
                "SELECT CAST(min_value AS BIGINT), CAST(max_value AS BIGINT) FROM ducklake_data_file f "
                "JOIN ducklake_file_column_stats s USING (data_file_id) WHERE s.column_id = 2 ORDER BY f.file_order",
            )
            assert all(high + 1 == low for (_, high), (low, _) in pairwise(ids))


@pytest.mark.slow
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path) -> None:
    source = made(tmp_path / "s.duckdb", 'CREATE TABLE t (i INTEGER, d DOUBLE, "a=b, c" VARCHAR)')
    for option, text, expected in (
        ("--partition-by", "t=gone", "there is no column gone"),
        ("--partition-by", "u=i", "there is no table u"),
        ("--partition-by", "year(i)", "i has no year"),
        ("--partition-by", "bucket(4,d)", "cannot be put into buckets"),
        ("--partition-by", "bucket(x,i)", "no number of buckets"),
        ("--partition-by", "t=", "cannot be read"),
        ("--sort-by", "i SIDEWAYS", "is no key"),
        ("--sort-by", '"i', "does not end"),
    ):
        code, said = refused(source, tmp_path / "l.ducklake", option, text)
        assert (code, expected in said) == (2, True), (text, said)
    assert migrate(source, tmp_path / "l.ducklake", "--partition-by", 't="a=b, c"').code == 0


@pytest.mark.slow
def test_a_killed_import_goes_on_where_it_was(tmp_path: Path) -> None:
    source = made(
        tmp_path / "s.duckdb",
        "CREATE TABLE a AS SELECT i, md5(i::VARCHAR) AS s FROM range(100000) r(i)",
        "CREATE TABLE b AS SELECT i, md5(i::VARCHAR) AS s, md5((i + 1)::VARCHAR) AS t FROM range(2500000) r(i)",
    )
    lake, files = tmp_path / "l.ducklake", tmp_path / "l.ducklake.files"
    command = [sys.executable, "-m", "bridge", "migrate", f"duckdb:{source}", f"ducklake:{lake}"]
    command += ["--rewrite", "when-needed", "--verify", "none"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list(files.glob("main/b/*/.aside-*/**/*.parquet")) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    [first] = files.glob("main/a/*/r-*.parquet")
    kept = first.stat().st_ino, first.stat().st_mtime_ns
    assert not lake.exists() and not list(files.glob("main/b/*/r-*.parquet"))
    ran = migrate(source, lake, "--verify", "none")
    assert ran.code == 0, ran.err
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == kept
    with both(source, lake) as connection:
        assert differ(connection, "FROM lake.a", "FROM s.a") == 0
        assert differ(connection, "FROM lake.b", "FROM s.b") == 0
    listed = {path for (path,) in lake_rows(lake, "SELECT path FROM ducklake_data_file")}
    on_disk = [each for each in files.rglob("*") if each.is_file()]
    assert len(on_disk) == len(listed) and not list(files.rglob(".aside-*"))


def test_a_source_that_changes_between_plan_and_copy_is_not_copied(tmp_path: Path) -> None:
    from bridge.errors import Conflict
    from bridge.model.options import Options
    from converters.duckdb_file.locate import file_at, opened, state_of

    source = made(tmp_path / "s.duckdb", "CREATE TABLE t AS SELECT 1 AS i")
    file = file_at(str(source), Options())
    state = state_of(file)
    with duckdb.connect(str(source)) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(Conflict, match="was changed since it was read"), opened(file, state):
        pass


@pytest.mark.slow
def test_statistics_answer_as_the_rows_do(tmp_path: Path) -> None:
    source = made(
        tmp_path / "s.duckdb",
        """CREATE TABLE t AS SELECT i, (i % 5)::TINYINT AS a, CASE WHEN i % 3 = 0 THEN NULL ELSE i / 7.0 END AS f,
           CASE WHEN i % 50 = 0 THEN 'nan' ELSE i::FLOAT END::FLOAT AS n, (i * 1.01)::DECIMAL(18,4) AS d,
           'a' || repeat(chr(127), (i % 400)::INTEGER) AS long, i % 2 = 0 AS b, DATE '1969-06-01' + i::INTEGER AS day,
           TIMESTAMP '1969-12-31 23:59:59.5' + to_hours(i) AS ts, TIME '00:00:00' + to_seconds(i) AS tm,
           (i % 7)::HUGEINT AS h,
           CASE WHEN i % 6 = 0 THEN '12:00:00+00'::TIMETZ END AS tz, [i, NULL]::INTEGER[] AS l, {'x': i} AS s,
           ('00000000-0000-0000-0000-' || lpad(i::VARCHAR, 12, '0'))::UUID AS u, ('x' || i)::BLOB AS bl
           FROM range(500) r(i)""",
        "CREATE TABLE empty (i INTEGER NOT NULL)",
        "CREATE TABLE nothing AS SELECT NULL::INTEGER AS i, 1 AS j FROM range(10)",
        "CREATE TABLE iv AS SELECT CASE WHEN i % 4 = 0 THEN INTERVAL (i) DAY END AS iv FROM range(500) r(i)",
    )
    lake = tmp_path / "l.ducklake"
    assert migrate(source, lake, "--verify", "none").code == 0
    with duckdb.connect(str(source), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = {
            "t": connection.execute("SELECT * REPLACE (h::DECIMAL(38,0) AS h) FROM t").to_arrow_table(),
            "empty": connection.execute("FROM empty").to_arrow_table(),
            "nothing": connection.execute("FROM nothing").to_arrow_table(),
        }
    subjects = [Subject(("main", name), (Version(None, None, table),)) for name, table in rows.items()]
    assert judge(str(lake), subjects, scratch=tmp_path / "judge", compact=True, filters=4) == []
    # what COPY counts of intervals is nothing, and the texts that it cuts are no bounds
    with both(source, lake) as connection:
        for query in ("SELECT count(iv), count(*) FROM {}.iv WHERE iv IS NULL", "SELECT count(iv) FROM {}.iv"):
            answers = [connection.execute(query.format(side)).fetchall() for side in ("s", "lake")]
            assert answers[0] == answers[1]
    cut = "SELECT max(length(max_value)) FROM ducklake_file_column_stats WHERE max_value LIKE 'a%'"
    assert lake_rows(lake, cut) == [(None,)]


@needs_cases
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ducklake", pytest.param("sqlite", marks=pytest.mark.exhaustive)])
def test_case_40_everything_that_a_lake_lacks(tmp_path: Path, ending: str) -> None:
    facts = case("40", tmp_path)
    source, lake = Path(facts["database"]), tmp_path / f"l.{ending}"
    ran = migrate(source, f"sqlite:{lake}" if ending == "sqlite" else lake, "--verify", "rows")
    assert ran.code == 0, ran.err
    assert {"type-shape", "generated-column"} <= set(ran.codes()["loss"])
    for word in ("enum", "union", "array", "bit", "bignum"):
        assert f": {word} becomes" in ran.out
    expected = facts["expected"]
    with both(source, lake) as connection:
        texts = connection.execute(
            "SELECT id, m, ms, st::STRUCT(m ENUM('sad', 'it''s ok', 'happy'), a INTEGER[2])::VARCHAR, mp::VARCHAR, "
            "coalesce(u.num::VARCHAR, u.str), u.tag, arr, "
            "arr2::VARCHAR, b, bn, h, uh, tz, iv, uid::VARCHAR, js::VARCHAR, hex(bl), d38::VARCHAR, tns::VARCHAR, "
            "pt::VARCHAR FROM lake.types ORDER BY id"
        ).fetchall()
        assert [list(row) for row in texts] == expected["types_as_text"]
        child = connection.execute("SELECT pid, price::VARCHAR, qty, total::VARCHAR FROM lake.child ORDER BY pid")
        assert [list(row) for row in child.fetchall()] == expected["child_with_generated"]
        parent = connection.execute("SELECT id, name, n, note, made IS NOT NULL FROM lake.parent ORDER BY id")
        assert [list(row) for row in parent.fetchall()] == expected["parent"]
        required = connection.execute(
            "SELECT table_name || '.' || column_name FROM duckdb_columns() WHERE database_name = 'lake' "
            "AND schema_name = 'main' AND NOT is_nullable ORDER BY 1"
        ).fetchall()
        assert [name for (name,) in required] == expected["not_null"]


@needs_cases
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ducklake", pytest.param("sqlite", marks=pytest.mark.exhaustive)])
def test_case_42_names_that_need_quotes(tmp_path: Path, ending: str) -> None:
    facts = case("42", tmp_path)
    source, lake = Path(facts["database"]), tmp_path / "lake" / f"l.{ending}"
    lake.parent.mkdir()
    ran = migrate(source, f"sqlite:{lake}" if ending == "sqlite" else lake, "--verify", "none")
    assert ran.code == 0, ran.err
    _check_names(facts, source, lake)
    data = lake.parent / f"{lake.name}.files"
    assert {each.name for each in lake.parent.iterdir()} == {lake.name, data.name}
    assert len(list(data.rglob("*.parquet"))) == facts["expected"]["tables"]


def _check_names(facts: Mapping[str, Any], source: Path, lake: Path) -> None:
    with both(source, lake) as connection:
        for schema, tables in facts["expected"]["rows"].items():
            for table, row in tables.items():
                found = connection.execute(f"FROM lake.{quoted(schema)}.{quoted(table)}")
                assert [each[0] for each in found.description or ()] == facts["expected"]["columns"]
                assert [list(each) for each in found.fetchall()] == [row], (schema, table)


@needs_cases
@pytest.mark.slow
def test_case_44_a_file_larger_than_the_memory(tmp_path: Path) -> None:
    facts = case("44", tmp_path)
    expected = facts["expected"]
    limit = expected["import_with"]["memory_limit"]
    for number, options in enumerate(((), ("--sort-by", "s"), ("--partition-by", "year(d)"))):
        lake = tmp_path / f"l{number}.ducklake"
        ran = migrate(Path(facts["database"]), lake, "--memory-limit", limit, "--verify", "none", *options)
        assert ran.code == 0, ran.err
        with both(Path(facts["database"]), lake) as connection:
            found = connection.execute(
                "SELECT count(*), sum(id)::BIGINT, bit_xor(hash(id, s))::VARCHAR, count(*) FILTER (k = 7) FROM lake.big"
            ).fetchall()
        names = ("count", "sum_id", "xor_hash_id_s", "k_equals_7")
        assert found == [tuple(expected[name] for name in names)]


CORPUS = SHARED / "corpus"
ENTRIES: dict[str, Any] = {}
if (CORPUS / "MANIFEST.json").exists():
    ENTRIES = {
        each["name"]: each
        for each in json.loads((CORPUS / "MANIFEST.json").read_text())["entries"]
        if each["format"] == "duckdb"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # the same zoo is there once more, in a newer format, and attach_test has the format of this one
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "zoo_v64_1_0_0")) for name in sorted(ENTRIES)],
)
def test_real_files_of_other_versions(tmp_path: Path, name: str) -> None:
    entry = ENTRIES[name]
    folder, lake = tmp_path / "source", tmp_path / "l.ducklake"
    folder.mkdir()
    for each in (CORPUS / entry["folder"]).iterdir():
        content = each.read_bytes()
        zipped = each.suffix == ".gz"
        (folder / (each.stem if zipped else each.name)).write_bytes(gzip.decompress(content) if zipped else content)
    [source] = folder.glob("*.duckdb")
    before = tree_hash(folder), [each.stat().st_mtime_ns for each in sorted(folder.iterdir())]
    key = entry.get("encryption_key", "")
    ran = migrate(source, lake, env={KEY: key} if key else None)
    assert (tree_hash(folder), [each.stat().st_mtime_ns for each in sorted(folder.iterdir())]) == before
    if entry["expect"] == "refuse":
        assert ran.code == 6 and "version number 33" in ran.out + ran.err and not lake.exists()
        return
    tables = entry["expected"]["tables"]
    if not tables:
        assert ran.code in (0, 2)  # nothing but a view that is broken
        return
    assert ran.code == 0, ran.err + ran.out[:2000]
    assert len(ran.json["tables"]) == len(tables)
    with both(source, lake, key) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for each in tables:
            at = f"{quoted(each['schema'])}.{quoted(each['name'])}"
            cast = documented(connection, f"s.{at}", f"lake.{at}")
            assert connection.execute(f"SELECT count(*) FROM lake.{at}").fetchall() == [(each["rows"],)]
            assert differ(connection, f"FROM lake.{at}", f"SELECT {cast} FROM s.{at}") == 0, at


def documented(connection: duckdb.DuckDBPyConnection, source: str, lake: str) -> str:
    """The casts that the README documents, written here anew for top-level columns."""
    chosen = []
    read, kept = connection.sql(f"FROM {source} LIMIT 0"), connection.sql(f"FROM {lake} LIMIT 0")
    assert read.columns == kept.columns
    for name, before, after in zip(read.columns, read.types, kept.types, strict=True):
        sql = quoted(name)
        if before.id == "union":
            members = [member for member, _ in before.children[1:]]
            parts = "".join(f", {quoted(each)} := union_extract({sql}, '{each}')" for each in members)
            sql = f"CASE WHEN {sql} IS NOT NULL THEN struct_pack(tag := union_tag({sql})::VARCHAR{parts}) END"
        elif before.id == "timestamp_ns" and after.id == "bigint":
            sql = f"epoch_ns({sql})"
        chosen.append(f"CAST({sql} AS {after}) AS {quoted(name)}")
    return ", ".join(chosen)


@needs_cases
@pytest.mark.slow
@pytest.mark.postgres
def test_names_and_widths_in_a_postgres_lake(tmp_path: Path, spot: Spot) -> None:
    facts = case("42", tmp_path)
    source = Path(facts["database"])
    wide = ", ".join(f"{i} AS c{i}" for i in range(1700))
    long = "x" * 80
    with duckdb.connect(str(source)) as connection:
        connection.execute(f"CREATE TABLE wide AS SELECT {wide}")
        connection.execute(f"CREATE TABLE {long} AS SELECT 1 AS {long}, 2 AS {long}b, 3 AS ctid")
    ran = migrate(source, spot.attach, "--data-path", spot.data_path, "--verify", "none")
    assert ran.code == 0, ran.err
    from converters.ducklake.extensions import connect

    with connect("ducklake", "postgres_scanner") as connection:
        connection.execute(f"ATTACH '{source}' AS s (READ_ONLY)")
        connection.execute(f"ATTACH 'ducklake:{spot.attach}' AS lake (READ_ONLY)")
        for name in ("wide", long):
            [lake, there] = (connection.execute(f"FROM {each}.{name}").fetchall() for each in ("lake", "s"))
            assert lake == there
        for schema, tables in facts["expected"]["rows"].items():
            for table, row in tables.items():
                found = connection.execute(f"FROM lake.{quoted(schema)}.{quoted(table)}").fetchall()
                assert [list(each) for each in found] == [row]
    for name in ("wide", long):
        assert use(spot.attach, [f"INSERT INTO lake.{name} SELECT * FROM lake.{name}"]) == [""]
