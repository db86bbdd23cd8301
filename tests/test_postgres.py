"""Lakes whose catalog is a schema of a PostgreSQL database: a real server, a fresh database for each test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import bridge
from converters.ducklake.catalog.postgres import storable
from converters.ducklake.catalog.session import create_all, parse_place, session
from converters.ducklake.types import postgres_type
from tests.judge import judge
from tests.server import Server, server
from tests.support import case, commits_of, lake_rows, subject, tree_hash, use
from tests.test_kinds import sampled
from tests.test_ownership import MAINTENANCE, copied
from tests.test_runs import metadata_files

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="session")
def running() -> Iterator[Server]:
    with server() as made:
        yield made


@dataclass
class Spot:
    """A fresh database with room for a lake."""

    server: Server
    database: str
    data_path: str

    @property
    def attach(self) -> str:
        return f"postgres:{self.server.connection(self.database)}"

    @property
    def locator(self) -> str:
        return f"ducklake:{self.attach}"

    def clone(self) -> Spot:
        return Spot(self.server, self.server.database(self.database), self.data_path)


@pytest.fixture
def spot(running: Server, tmp_path: Path) -> Spot:
    return Spot(running, running.database(), f"{tmp_path}/files")


def options(found: object, spot: Spot, **more: object) -> bridge.Options:
    pairs = tuple((old, str(found.home / new)) for old, new in found.facts["map_prefix"])  # type: ignore[attr-defined]
    given = {"rename": "main.t", "data_path": spot.data_path, **more}
    return bridge.Options(path_map=bridge.PathMap(pairs), **given)  # type: ignore[arg-type]


def migrated(kind: str, spot: Spot, **more: object) -> bridge.Report:
    found = case(kind)
    return bridge.migrate(f"iceberg:{found.metadata}", spot.locator, options(found, spot, **more))


KINDS = (
    "evo_readd", "evo_struct", "evo_int_long", "prims", "part_hours_tz", "v3_default", "v3_lineage", "pyi_types",
    "names_special", "vals_quote", "stats_nan", "v2_cow", "v2_mor_compact", "v2_mor_partgran_twice", "v3_dv_twice",
    "addfiles_hive",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(KINDS, set(), {"v2_mor_compact"}))
def test_every_snapshot_answers_and_the_lake_goes_on(kind: str, spot: Spot, tmp_path: Path) -> None:
    before = tree_hash(case(kind).home)
    report = migrated(kind, spot, ownership="adopt")
    assert report.exit_code == 0 and not report.faults
    found = subject(case(kind), spot.attach)
    changed, compacted = spot.clone(), spot.clone()
    scratch = tmp_path / "judge"
    assert judge(changed.attach, [found], scratch=scratch, filters=4, timeout=500) == []
    assert judge(compacted.attach, [found], scratch=scratch, change=False, compact=True, filters=1, timeout=500) == []
    assert tree_hash(case(kind).home) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "v2_mor_twice",
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("evo_struct", "evo_float_double", "v2_mor_compact")
        ),
    ],
)
def test_following_a_table_state_by_state(kind: str, spot: Spot, tmp_path: Path) -> None:
    found = case(kind)
    for path in metadata_files(found):
        bridge.migrate(f"iceberg:{path}", spot.locator, options(found, spot, verify="none"))
    last = migrated(kind, spot, verify="none")
    assert [each.action.value for each in last.plan.tables] == ["nothing"]
    assert judge(spot.attach, [subject(found, spot.attach)], scratch=tmp_path / "judge", filters=8) == []
    assert {str(each["snapshot_id"]) for each in found.facts["snapshots"]} <= set(commits_of(spot.attach))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("v2_cow", marks=pytest.mark.exhaustive), "long_delete_cow_part"])
def test_shared_source_survives_maintenance(kind: str, spot: Spot, tmp_path: Path) -> None:
    found = copied(kind, tmp_path / "source")
    bridge.migrate(f"iceberg:{found.metadata}", spot.locator, options(found, spot))
    before = tree_hash(found.home)
    guarded, free = spot.clone(), spot.clone()
    assert [each for each in use(guarded.attach, MAINTENANCE) if each] == []
    assert tree_hash(found.home) == before
    assert lake_rows(guarded.attach, "SELECT * FROM ducklake_files_scheduled_for_deletion") == []
    bridge.adopt(free.locator, ["t"])
    assert [each for each in use(free.attach, MAINTENANCE) if each] == []
    assert tree_hash(found.home) != before


# -- what DuckDB itself creates

TYPES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,10)", "DATE", "TIME", "TIMETZ", "TIMESTAMP",
    "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ", "INTERVAL", "VARCHAR", "BLOB", "UUID", "JSON",
    "STRUCT(a INT, b VARCHAR)", "INT[]", "MAP(VARCHAR, INT)",
)  # fmt: skip
STORED = (
    "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
    "WHERE attrelid = '{}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
EVERY = (
    "SELECT relname::text, attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
    "JOIN pg_class ON attrelid = pg_class.oid AND relkind = 'r' AND relnamespace = 'public'::regnamespace "
    "WHERE attnum > 0 AND relname NOT LIKE 'ducklake_inlined_data_1%' ORDER BY relname, attnum"
)
KEYS = (
    "SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE contype IN ('p', 'u', 'c') AND connamespace = 'public'::regnamespace ORDER BY 1, 2"
)


def test_our_tables_and_inlined_types_are_duckdbs(spot: Spot) -> None:
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TYPES))
    made = use(spot.attach, [f"CREATE TABLE lake.t ({columns})"], f"DATA_PATH '{spot.data_path}/'")
    assert made == [""]
    names = [row[0] for row in lake_rows(spot.attach, "SELECT column_type FROM ducklake_column "
             "WHERE parent_column IS NULL ORDER BY column_id")]  # fmt: skip
    theirs = lake_rows(spot.attach, STORED.format("ducklake_inlined_data_1_1"))
    ours = "".join(f", c{number} {postgres_type(name)}" for number, name in enumerate(names))
    spot.server.run(
        f"CREATE TABLE ours (row_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT{ours})", spot.database
    )
    assert lake_rows(spot.attach, STORED.format("ours")) == theirs
    spot.server.run("DROP TABLE ours", spot.database)
    other = Spot(spot.server, spot.server.database(), spot.data_path)
    with session(parse_place(other.attach), create=True) as opened:
        create_all(opened)
    assert lake_rows(other.attach, EVERY) == lake_rows(spot.attach, EVERY)
    assert lake_rows(other.attach, KEYS) == lake_rows(spot.attach, KEYS)


AWKWARD = (
    "", "plain", "two\nlines", "a\r\nb", 'quo"te', "it's", "back\\slash", "\\.", "\n\\.\n", "\\N", "NULL", ",", "tab\t",
    " padded ", "é日本🎉", "{}", "%s %(x)s :y ? $1", '"', '""', "\u0001", "\x7f",
)  # fmt: skip


def test_any_text_and_any_table_can_be_appended(spot: Spot) -> None:
    texts = pa.array([*AWKWARD, None], pa.string())
    count = len(texts)
    rows = pa.table(
        {
            "number": pa.array([*range(count - 1), None], pa.int64()),
            'a % "name"': texts,
            "bytes": pa.array([None, *(bytes([each]) * 3 for each in range(count - 1))], pa.binary()),
            "truth": pa.array([each % 2 == 0 for each in range(count)]),
            "real": pa.array([None, float("inf"), 0.1, *[1e300] * (count - 3)], pa.float64()),
            "nothing": pa.nulls(count, pa.string()),
        }
    )
    with session(parse_place(spot.attach), create=True) as opened:
        create_all(opened)
        opened.define(
            'CREATE TABLE "any % table" (nothing TEXT, number BIGINT, "a % ""name""" TEXT, bytes BYTEA, truth BOOLEAN, '
            "real FLOAT8)"
        )
        opened.append("any % table", rows)
    held = lake_rows(spot.attach, 'SELECT number, "a % ""name""", bytes, truth, real, nothing FROM "any % table" ')
    assert [tuple(row) for row in held] == [tuple(row.values()) for row in rows.to_pylist()]


def test_a_nul_byte_is_no_bound_and_nothing_else_at_all() -> None:
    rows = pa.table({"column_id": [1, 2], "min_value": ["a\0b", "c"], "max_value": ["d", "e"]})
    assert storable("ducklake_file_column_stats", rows)["min_value"].to_pylist() == [None, "c"]
    assert storable("ducklake_table_column_stats", rows)["column_id"].to_pylist() == [2]
    with pytest.raises(bridge.Blocked, match="NUL byte"):
        storable("ducklake_column", rows)


def test_looking_at_a_lake_cannot_write(spot: Spot) -> None:
    migrated("v1_basic", spot)
    with pytest.raises(bridge.Unreachable, match="read"), session(parse_place(spot.attach)) as opened:
        opened.define("DELETE FROM ducklake_snapshot")
    assert lake_rows(spot.attach, "SELECT count(*) FROM ducklake_snapshot")[0][0] > 0


def test_other_versions_and_other_databases_are_refused(spot: Spot) -> None:
    migrated("v1_basic", spot)
    for version, hint in (("0.3", "AUTOMATIC_MIGRATION"), ("1.1", "release of ducklake-bridge")):
        spot.server.run(f"UPDATE ducklake_metadata SET value = '{version}' WHERE key = 'version'", spot.database)
        with pytest.raises(bridge.Blocked, match=hint) as refused:
            migrated("v1_basic", spot)
        assert refused.value.code == "catalog-version"
    spot.server.run("UPDATE ducklake_metadata SET value = '1.0' WHERE key = 'version'", spot.database)
    spot.server.run("ALTER TABLE ducklake_tag RENAME COLUMN key TO k", spot.database)
    with pytest.raises(bridge.Blocked, match="damaged or incomplete"):
        migrated("v1_basic", spot)
    for sql in ("DROP TABLE ducklake_tag", "DROP TABLE ducklake_snapshot"):
        spot.server.run(sql, spot.database)
        with pytest.raises(bridge.Blocked, match="damaged or incomplete"):
            bridge.inspect(spot.locator)
    with pytest.raises(bridge.Unreachable, match="no lake in the schema public"):
        bridge.release(spot.locator, ["t"])


def test_a_new_lake_needs_a_data_path_a_server_and_a_database(spot: Spot) -> None:
    found = case("v1_basic")
    with pytest.raises(bridge.UsageError, match="--data-path"):
        migrated("v1_basic", spot, data_path=None)
    for connection in (spot.server.connection("nothing"), "host=/nothing dbname=x", "host=127.0.0.1 port=1 dbname=x"):
        with pytest.raises(bridge.Unreachable) as refused:
            bridge.migrate(f"iceberg:{found.metadata}", f"ducklake:postgres:{connection}", options(found, spot))
        assert "database must exist" in refused.value.hint
    migrated("v1_basic", spot, data_path="s3://bucket/lake")
    assert lake_rows(spot.attach, "SELECT value FROM ducklake_metadata WHERE key = 'data_path'") == [
        ("s3://bucket/lake/",)
    ]


def test_a_schema_of_any_name_holds_a_lake_of_its_own(spot: Spot, tmp_path: Path) -> None:
    found, name = case("evo_struct"), "Odd \"% schema'"
    assert migrated("v1_basic", spot).exit_code == 0
    report = migrated("evo_struct", spot, metadata_schema=name)
    assert report.exit_code == 0 and not report.faults
    again = migrated("evo_struct", spot, metadata_schema=name)
    assert again.plan.tables[0].action.value == "nothing"
    [line] = [each for each in report.words if each.startswith("open it:")]
    options_ = line.partition(" AS lake (")[2].removesuffix(");")
    rows = found.rows(found.facts["current"]).num_rows
    asked = [f"SELECT CASE WHEN count(*) = {rows} THEN 1 ELSE error('rows') END FROM lake.t", *MAINTENANCE[2:4]]
    assert use(spot.attach, asked, options_) == [""] * len(asked)
    lake = bridge.inspect(spot.locator, bridge.Options(metadata_schema=name)).lake
    assert lake is not None and lake["guarded"]
    bridge.release(spot.locator, ["t"], True, bridge.Options(metadata_schema=name))
    assert bridge.inspect(spot.locator).lake_tables[0].name.name == "t"


def test_columns_that_postgres_cannot_hold_are_never_inlined(spot: Spot, tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/wh")
    catalog.create_namespace("a")
    long = "x" * 64
    for number, names in enumerate((["ctid", "b"], [f"{long}1", f"{long}2"], ["100%", "%s", 'q"'])):
        rows = pa.table({name: pa.array([1], pa.int64()) for name in names})
        catalog.create_table(f"a.t{number}", rows.schema).append(rows)
    report = bridge.migrate(
        f"iceberg:{tmp_path}/wh", spot.locator, bridge.Options(data_path=spot.data_path, verify="rows")
    )
    assert report.exit_code == 0 and not report.faults
    for number in range(3):
        said = use(
            spot.attach,
            [
                f"INSERT INTO lake.a.t{number} SELECT * FROM lake.a.t{number}",
                f"SELECT CASE WHEN count(*) = 2 THEN 1 ELSE error('rows') END FROM lake.a.t{number}",
            ],
        )
        assert said == ["", ""]
