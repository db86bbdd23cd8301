"""The catalog that we create is the one that DuckDB creates, and what we refuse to open stays as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from converters.ducklake.catalog.session import Place, create_all, session
from tests.support import ROOT, case, lake_rows, migrate_case, run_here, use

COLUMNS = (
    "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
    "WHERE table_name LIKE 'ducklake%' ORDER BY table_name, column_index"
)
QUERY = """
import json, sys
from converters.ducklake.extensions import connect
lake = connect("ducklake")
lake.execute(f"ATTACH 'ducklake:{sys.argv[1]}' AS lake (READ_ONLY)")
print(json.dumps(lake.execute(sys.argv[2]).fetchall()))
"""
HELP = """
import sys
sys.argv = ["ducklake-bridge", "--help"]
try:
    from bridge.cli.main import main
    main()
except SystemExit:
    pass
print(sorted({"duckdb", "pyarrow", "polars", "sqlalchemy", "pyiceberg"} & set(sys.modules)))
"""
KEYS = "SELECT table_name, constraint_text FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' ORDER BY ALL"
INLINED = "ducklake_inlined"


def described(path: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(path), read_only=True) as opened:
        return [*opened.execute(COLUMNS).fetchall(), *opened.execute(KEYS).fetchall()]


def test_our_tables_are_duckdbs_tables(tmp_path: Path) -> None:
    assert use(str(tmp_path / "theirs.db"), ["CREATE TABLE lake.t (i INT)", "DROP TABLE lake.t"]) == ["", ""]
    with session(Place("duckdb", str(tmp_path / "ours.db")), create=True) as opened:
        create_all(opened)
    theirs = [row for row in described(tmp_path / "theirs.db") if not str(row[0]).startswith(INLINED + "_data_1")]
    assert described(tmp_path / "ours.db") == theirs


def test_our_sqlite_tables_are_duckdbs_tables(tmp_path: Path) -> None:
    assert use(f"sqlite:{tmp_path}/theirs.sqlite", ["CREATE TABLE lake.t (i INT)"]) == [""]
    with session(Place("sqlite", str(tmp_path / "ours.sqlite")), create=True) as opened:
        create_all(opened)

    def listed(path: Path) -> list[tuple[object, ...]]:
        names = [row[0] for row in lake_rows(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        return [
            (name, *row[1:3], row[5])
            for name in names
            if not str(name).startswith("ducklake_inlined_data_1")
            for row in lake_rows(path, f"PRAGMA table_info('{name}')")
        ]

    assert listed(tmp_path / "ours.sqlite") == listed(tmp_path / "theirs.sqlite")


def edited(lake: Path, statement: str) -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import duckdb, sys; duckdb.connect(sys.argv[1]).execute(sys.argv[2])",
            str(lake),
            statement,
        ],
        check=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE ducklake_metadata SET value = '0.4' WHERE key = 'version'", "AUTOMATIC_MIGRATION"),
        ("UPDATE ducklake_metadata SET value = '1.1-dev1' WHERE key = 'version'", "1.1-dev1"),
        ("DELETE FROM ducklake_snapshot", "no snapshot"),
        ("DROP TABLE ducklake_metadata", "not a DuckLake"),
        ("UPDATE ducklake_metadata SET value = 'true' WHERE key = 'encrypted'", "encrypted"),
    ],
)
def test_catalogs_that_cannot_be_written_are_blocked(statement: str, said: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert use(str(lake), ["CREATE TABLE lake.mine (i INT)"]) == [""]
    edited(lake, statement)
    before = lake.read_bytes()
    ran = migrate_case(case("v1_basic"), str(lake))
    assert ran.code == 3 and said in ran.out
    assert lake.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"SQLite format 3\0" + b"\0" * 200, b"\0" * 8 + b"DUCK" + b"\0" * 200]
)
@pytest.mark.parametrize("backend", ["", "sqlite:"])
def test_files_that_are_no_catalog_stay_as_they_are(content: bytes, backend: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.db"
    lake.write_bytes(content)
    ran = migrate_case(case("v1_basic"), f"{backend}{lake}")
    assert ran.code in (3, 6) and str(lake) in ran.json["error"]
    assert lake.read_bytes() == content and [path.name for path in tmp_path.iterdir()] == ["lake.db"]


@pytest.mark.slow
def test_row_ids_are_the_sources_own(tmp_path: Path) -> None:
    found, lake = case("v3_lineage"), tmp_path / "lake.ducklake"
    assert migrate_case(found, str(lake)).code == 0
    expected = sorted(
        zip(found.rows(found.facts["current"]).column("id").to_pylist(), found.facts["row_ids"], strict=True)
    )
    query = "SELECT id, rowid FROM lake.t ORDER BY id, rowid"
    ran = subprocess.run(
        [sys.executable, "-c", QUERY, str(lake), query], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert [tuple(row) for row in json.loads(ran.stdout)] == expected


@pytest.mark.slow
def test_layout_tags_and_settings_are_declared(tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert migrate_case(case("part_hours_tz"), str(lake)).code == 0
    keys = lake_rows(lake, "SELECT transform FROM ducklake_partition_column ORDER BY partition_key_index")
    assert keys == [("year",), ("month",), ("day",), ("hour",)]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_file_partition_value") == [(0,)]
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_data_file WHERE partition_id IS NOT NULL") == [(0,)]
    other = tmp_path / "sorted.ducklake"
    assert migrate_case(case("sort_order"), str(other)).code == 0
    assert lake_rows(
        other, "SELECT expression, sort_direction, null_order FROM ducklake_sort_expression ORDER BY sort_key_index"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["part_bucket", "part_trunc", "v1_part_void"])
def test_buckets_and_truncations_are_never_declared(kind: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake.ducklake"
    assert migrate_case(case(kind), str(lake)).code == 0
    transforms = {row[0] for row in lake_rows(lake, "SELECT transform FROM ducklake_partition_column")}
    assert transforms <= {"identity", "year", "month", "day", "hour"}
    tags = dict(lake_rows(lake, "SELECT key, value FROM ducklake_tag"))
    assert "transform" in tags["iceberg.partition-spec"]


def test_help_needs_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_inspect_verify_and_doctor_speak_json(tmp_path: Path) -> None:
    found, lake = case("evo_rename"), tmp_path / "lake.ducklake"
    assert migrate_case(found, str(lake)).code == 0
    assert run_here("inspect", f"ducklake:{lake}", "--json").json["tables"][0]["name"] == "main.t"
    assert (
        len(run_here("inspect", f"iceberg:{found.metadata}", "--json", *found.maps).json["tables"][0]["snapshots"]) == 2
    )
    verified = run_here(
        "verify", f"iceberg:{found.metadata}", f"ducklake:{lake}", "--as", "main.t", "--json", *found.maps
    )
    assert verified.code == 0 and all(each["ok"] for each in verified.json["checks"])
    assert use(str(lake), ["UPDATE lake.t SET id = id + 1000 WHERE id = 0"]) == [""]
    wrong = run_here("verify", f"iceberg:{found.metadata}", f"ducklake:{lake}", "--as", "main.t", "--json", *found.maps)
    assert wrong.code == 4 and "1 missing" in json.dumps(wrong.json)
    assert run_here("doctor", "--json").json["extension ducklake"]["ok"] == "yes"


@pytest.mark.parametrize("backend", ["duckdb", "sqlite"])
def test_any_table_can_be_appended_to(backend: str, tmp_path: Path) -> None:
    rows = pa.table({"row_id": [7, 8], "file_id": [1, None], "deleted": [True, False], "empty": pa.nulls(2)})
    with session(Place(backend, str(tmp_path / f"lake.{backend}")), create=True) as opened:
        opened.define('CREATE TABLE "any % table" (file_id BIGINT, row_id BIGINT, empty VARCHAR, deleted BIGINT)')
        opened.append("any % table", rows)
    held = lake_rows(tmp_path / f"lake.{backend}", 'SELECT file_id, row_id, empty, deleted FROM "any % table"')
    assert held == [(1, 7, None, 1), (None, 8, None, 0)]
