"""Tables made by small scripts of Spark and PyIceberg: whatever a script says of one, the migrated one answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.types import DecimalType, IntegerType, ListType, MapType, NestedField, StringType, StructType

from tests.foreign_files import PROPERTY, Foreign
from tests.judge import Subject, Version, judge
from tests.server import Server, server
from tests.support import ROOT, SHARED, Ran, commits_of, lake_rows, opened, run_here, tree_hash

CASES = SHARED / "cases"
if not CASES.is_dir():
    pytest.skip("the case scripts are not beside this checkout", allow_module_level=True)

SPARK = ("01", "02", "03", "04", "06", "07", "08", "09", "11", "14")


@dataclass(frozen=True)
class Made:
    """Where a script wrote, and what it says."""

    folder: Path
    said: Mapping[str, Any]

    @property
    def expected(self) -> Mapping[str, Any]:
        return dict(self.said["expected"])

    def lake(self, name: str = "lake") -> Path:
        """The catalog file of that name: what it needs lies beside it."""
        home = self.folder.with_name(f"{self.folder.name}-{name}")
        home.mkdir(exist_ok=True)
        return home / "lake.ducklake"


Make = Callable[[str], Made]


@dataclass(frozen=True)
class Lake:
    """A case that was migrated."""

    made: Made
    file: Path
    ran: Ran
    source_untouched: bool = True
    files: Path | None = None  # of a copy that tests may change: where it writes

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Rows that DuckDB reads from the lake."""
        with opened(self.file, self.files) as connection:
            return connection.execute(query).fetchall()

    def count(self, table: str, condition: str = "true") -> int:
        return int(self.ask(f"SELECT count(*) FROM {table} WHERE {condition}")[0][0])

    def counts(self, table: str, conditions: Iterable[str]) -> dict[str, int]:
        """Rows that each filter finds, in DuckDB's own words for instants; the session's zone must not matter."""
        found: dict[str, int] = {}
        with opened(self.file) as connection:
            for zone in ("UTC", "America/New_York"):
                connection.execute(f"SET TimeZone = '{zone}'")
                for each in conditions:
                    # an instant of Spark in UTC
                    where = each.replace("timestamp'", "TIMESTAMPTZ '").replace(":00'", ":00+00'")
                    [count] = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchall()[0]
                    assert found.setdefault(each, count) == count, (each, zone)
        return found

    def columns(self, table: str = "t") -> list[str]:
        return [row[0] for row in self.ask(f"DESCRIBE {table}")]

    def partitions(self, table: str = "t") -> list[tuple[str, str]]:
        """(column, transform) of the current declaration."""
        return lake_rows(
            self.file,
            "SELECT c.column_name, p.transform FROM ducklake_partition_column p"
            " JOIN ducklake_partition_info i USING (partition_id, table_id)"
            " JOIN ducklake_table t USING (table_id)"
            " JOIN ducklake_column c ON c.table_id = p.table_id AND c.column_id = p.column_id"
            f" WHERE t.table_name = '{table}' AND i.end_snapshot IS NULL AND c.end_snapshot IS NULL"
            " ORDER BY p.partition_key_index",
        )

    def tags(self, table: str = "t") -> dict[str, str]:
        """Table tags by key."""
        query = (
            "SELECT key, value FROM ducklake_tag JOIN ducklake_table ON object_id = table_id"
            f" WHERE table_name = '{table}' AND ducklake_tag.end_snapshot IS NULL"
        )
        return dict(lake_rows(self.file, query))

    def copy(self, scratch: Path) -> Lake:
        """The same on a copy of the catalog that tests may change."""
        shutil.copyfile(self.file, scratch / "copy.ducklake")
        return replace(self, file=scratch / "copy.ducklake", files=scratch / "files")

    def change(self, statements: str) -> None:
        assert self.files is not None, "only a copy may be changed"
        with opened(self.file, self.files) as connection:
            connection.execute(statements)

    def faults(self, rows: pa.Table, scratch: Path) -> list[str]:
        """What the judge says of the current state, under ordinary statements too."""
        subject = Subject("main.t", (Version(None, None, rows),))
        return judge(str(self.file), [subject], scratch=scratch, change=True)


def plainly(script: Path, folder: Path) -> str:
    """What a script prints."""
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextmanager
def in_spark() -> Iterator[Callable[[Path, Path], str]]:
    """The same in one process, whose JVM serves script after script; it starts with the first."""
    pytest.importorskip("pyspark", reason="the case needs the extra spark")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "case_process.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def said(script: Path, folder: Path) -> str:
        asked.write(json.dumps([str(script), str(folder)]) + "\n")
        asked.flush()
        answer = json.loads(answers.readline())
        assert "said" in answer, answer["error"][-3000:]
        return str(answer["said"])

    try:
        yield said
    finally:
        asked.close()
        process.wait(60)
        answers.close()


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Runs the script of a case, once."""
    with ExitStack() as stack:
        spark: list[Callable[[Path, Path], str]] = []

        @cache
        def made(number: str) -> Made:
            if number in SPARK and not spark:
                spark.append(stack.enter_context(in_spark()))
            [script] = CASES.glob(f"{number}_*.py")
            folder = tmp_path_factory.mktemp(f"case-{number}") / "made"
            said = (spark[0] if number in SPARK else plainly)(script, folder)
            return Made(folder, json.loads(said[said.index("{") :]))

        yield made


@pytest.fixture(scope="session")
def migrate(make: Make) -> Callable[[str], Lake]:
    """Migrates the table (or all tables) of a case, once: db.t is main.t, a warehouse keeps its names."""

    @cache
    def migrated(number: str) -> Lake:
        made = make(number)
        source = made.said.get("table") or str(made.folder / "wh")
        before = tree_hash(made.folder)
        ran = run_here("migrate", f"iceberg:{source}", f"ducklake:{made.lake()}", "--json")
        return Lake(made, made.lake(), ran, tree_hash(made.folder) == before)

    return migrated


Migrate = Callable[[str], Lake]


def path_of(uri: str) -> Path:
    """A file URI as a path."""
    return Path(urlsplit(uri).path)


@pytest.mark.parametrize(
    "number",
    [*(pytest.param(each, marks=pytest.mark.spark) for each in SPARK if each not in ("03", "07")), pytest.param("21")],
)
def test_case_migrates_and_its_source_stays(number: str, migrate: Migrate) -> None:
    lake = migrate(number)
    assert lake.ran.code == 0, [each for each in lake.ran.json["checks"] if not each["ok"]] or lake.ran.err
    assert lake.source_untouched


# 01: deletes of files under an older partition spec


@pytest.mark.spark
def test_deletes_reach_files_of_an_older_spec(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("01")
    expected = lake.made.expected
    rows = lake.ask("SELECT id, val FROM t ORDER BY id")
    assert [list(row) for row in rows] == expected["rows"]
    assert lake.count("t") == expected["count"]
    assert {each: lake.count("t", each) for each in expected["filters"]} == expected["filters"]
    assert (lake.ran.codes()["loss"], lake.ran.codes()["blocked"]) == ([], [])
    whole = lake.ask("SELECT id, ts, val FROM t")
    types = pa.schema([("id", pa.int32()), ("ts", pa.timestamp("us", "UTC")), ("val", pa.string())])
    held = [dict(zip(types.names, row, strict=True)) for row in whole]
    assert lake.faults(pa.Table.from_pylist(held, types), tmp_path) == []


# 04: deletion vectors


@pytest.mark.spark
def test_vectors_delete_what_spark_deleted(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("04")
    expected = lake.made.expected
    assert lake.ask("SELECT count(*), sum(id) FROM t") == [(expected["count"], expected["sum_id"])]
    assert {each: lake.count("t", each) for each in expected["filters"]} == expected["filters"]
    kept = [each for each in range(1000) if each not in (0, 1, 2, 3, 999) and not 100 <= each <= 149 and each % 10 != 7]
    rows = pa.table(
        {
            "id": pa.array(kept, pa.int32()),
            "p": pa.array(["odd" if each % 2 else "even" for each in kept]),
            "s": pa.array([f"row{each}" for each in kept]),
        }
    )
    assert lake.faults(rows, tmp_path) == []
    counts = [
        lake.count(f"t AT (VERSION => {at})") for _, at in sorted(commits_of(lake.file).items(), key=lambda p: p[1])
    ]
    assert counts == sorted(counts, reverse=True) and counts[0] == 1000 and counts[-1] == expected["count"]


# 02: columns renamed, dropped and added again


@pytest.mark.spark
def test_column_added_again_under_its_name_has_no_old_values(migrate: Migrate) -> None:
    lake = migrate("02")
    expected = lake.made.expected
    rows = lake.ask("SELECT id, new_name, v, s.a, s.b FROM t ORDER BY id")
    assert [list(row) for row in rows] == expected["rows_id_newname_v_sa_sb"]
    assert lake.count("t") == expected["count"]
    assert lake.counts("t", expected["filters"]) == expected["filters"]
    assert (lake.ran.codes()["loss"], lake.ran.codes()["blocked"]) == ([], [])


@pytest.mark.spark
def test_moved_column_keeps_its_place(migrate: Migrate) -> None:
    lake = migrate("02")
    assert lake.columns() == lake.made.expected["columns_in_order"]
    assert "column-order" in lake.ran.codes()["note"]


@pytest.mark.spark
def test_snapshot_before_the_changes_has_the_old_columns(migrate: Migrate) -> None:
    lake = migrate("02")
    first = min(commits_of(lake.file).values())
    at = f"t AT (VERSION => {first})"
    assert lake.columns(f"(FROM {at})") == ["id", "old_name", "v", "s"]
    assert lake.ask(f"FROM {at}") == [(1, "before", "secret", {"a": 10, "b": 20})]


@pytest.mark.spark
def test_judge_of_columns_added_again(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("02")
    rows = pa.table(
        {
            "v": pa.array([row[2] for row in lake.made.expected["rows_id_newname_v_sa_sb"]], pa.string()),
            "id": pa.array([row[0] for row in lake.made.expected["rows_id_newname_v_sa_sb"]], pa.int32()),
            "new_name": pa.array([row[1] for row in lake.made.expected["rows_id_newname_v_sa_sb"]], pa.string()),
            "s": pa.array(
                [{"a": row[3], "b": row[4]} for row in lake.made.expected["rows_id_newname_v_sa_sb"]],
                pa.struct([("a", pa.int32()), ("b", pa.int32())]),
            ),
        }
    )
    assert lake.faults(rows, tmp_path) == []


# 06: partition values that paths cannot hold


@pytest.mark.spark
def test_special_partition_values_are_read_from_the_files(migrate: Migrate) -> None:
    lake = migrate("06")
    expected = lake.made.expected
    assert [list(row) for row in lake.ask('SELECT id, "my key" FROM t ORDER BY id')] == expected["rows"]
    assert lake.count("t") == expected["count"]
    assert lake.count("t", '"my key" IS NULL') == expected["is_null"]
    assert lake.count("t", "\"my key\" = ''") == expected["equals_empty_string"]


@pytest.mark.spark
def test_every_special_partition_value_is_found(migrate: Migrate) -> None:
    lake = migrate("06")
    assert lake.made.expected["one_row_per_value"]
    with opened(lake.file) as connection:
        for id_, value in lake.made.expected["rows"]:
            found = connection.execute('SELECT id FROM t WHERE "my key" IS NOT DISTINCT FROM ?', [value]).fetchall()
            assert found == [(id_,)], value


@pytest.mark.spark
def test_identity_partition_is_declared_for_later_inserts(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("06")
    assert lake.partitions() == [("my key", "identity")]
    assert lake_rows(lake.file, "SELECT * FROM ducklake_file_partition_value") == []
    changed = lake.copy(tmp_path)
    changed.change("INSERT INTO t VALUES (100, 'a b'), (101, 'new/er'), (102, NULL)")
    assert len(list((tmp_path / "files").rglob("*.parquet"))) == 3
    assert changed.ask("SELECT id FROM t WHERE \"my key\" = 'a b' ORDER BY id") == [(1,), (100,)]
    assert changed.count("t", "\"my key\" = 'new/er'") == 1
    assert changed.count("t", '"my key" IS NULL') == 2


# 08: initial and write defaults


@pytest.mark.spark
def test_old_files_answer_the_initial_default(migrate: Migrate) -> None:
    lake = migrate("08")
    expected = lake.made.expected
    assert [list(row) for row in lake.ask("SELECT id, qty, tag FROM t ORDER BY id")] == expected["rows"]
    assert lake.count("t") == expected["count"]
    assert lake.counts("t", expected["filters"]) == expected["filters"]


@pytest.mark.spark
def test_insert_takes_the_write_default(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("08")
    changed = lake.copy(tmp_path)
    changed.change("INSERT INTO t (id) VALUES (5)")
    [qty] = changed.ask("SELECT qty FROM t WHERE id = 5")
    assert qty == (lake.made.expected["write_default_now"]["qty"],)
    assert changed.ask("SELECT tag FROM t WHERE id = 5") == [("it's 'old'",)]
    assert changed.count("t", "qty = 7") == lake.made.expected["filters"]["qty = 7"]


@pytest.mark.spark
def test_comment_is_a_column_comment(migrate: Migrate) -> None:
    lake = migrate("08")
    comments = lake.ask("SELECT column_name, comment FROM duckdb_columns() WHERE database_name = 'lake'")
    found = {name: comment for name, comment in comments if comment is not None}
    assert found == lake.made.expected["comment_on"]


@pytest.mark.spark
def test_judge_of_defaults(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("08")
    types = pa.schema([("id", pa.int32()), ("qty", pa.int32()), ("tag", pa.string())])
    rows = [dict(zip(types.names, row, strict=True)) for row in lake.made.expected["rows"]]
    assert lake.faults(pa.Table.from_pylist(rows, types), tmp_path) == []


# 09: rollback, branch, tag


@pytest.mark.spark
def test_main_line_is_the_history(migrate: Migrate) -> None:
    lake = migrate("09")
    expected, commits = lake.made.expected, commits_of(lake.file)
    assert [list(row) for row in lake.ask("SELECT id, v FROM t ORDER BY id")] == expected["rows"]
    assert lake.count("t") == expected["count"]
    counts = {commit: lake.count(f"t AT (VERSION => {at})") for commit, at in commits.items()}
    assert counts == expected["count_per_ancestor_snapshot"]


@pytest.mark.spark
def test_rolled_back_and_branched_rows_are_at_no_snapshot(migrate: Migrate) -> None:
    lake = migrate("09")
    ids = {
        id_ for at in commits_of(lake.file).values() for (id_,) in lake.ask(f"SELECT id FROM t AT (VERSION => {at})")
    }
    assert not ids & set(lake.made.expected["not_in_main"])
    assert Counter(lake.ran.codes()["loss"]) == Counter(["ref-dropped", "history-rolled-back"])


@pytest.mark.spark
def test_tag_on_the_main_line_names_its_lake_snapshot(migrate: Migrate) -> None:
    lake = migrate("09")
    refs = {key: value for key, value in lake.tags().items() if key.startswith("iceberg.ref.")}
    assert list(refs) == ["iceberg.ref.v1.0"]
    rows = lake.ask(f"SELECT id FROM t AT (VERSION => {refs['iceberg.ref.v1.0']}) ORDER BY id")
    assert [list(row) for row in rows] == lake.made.expected["tag_v1.0_rows"]
    assert "named-ref" in lake.ran.codes()["note"]


# 11: transforms

TRANSFORMS: Mapping[str, tuple[str, list[tuple[str, str]]]] = {
    "t_y": ("years(ts)", [("ts", "year")]),
    "t_m": ("months(ts)", [("ts", "year"), ("ts", "month")]),
    "t_d": ("days(ts)", [("ts", "year"), ("ts", "month"), ("ts", "day")]),
    "t_h": ("hours(ts)", [("ts", "year"), ("ts", "month"), ("ts", "day"), ("ts", "hour")]),
    "t_dd": ("days(dt)", [("dt", "year"), ("dt", "month"), ("dt", "day")]),
    "t_b": ("bucket(16, id)", []),
    "t_bs": ("bucket(8, s)", []),
    "t_tr": ("truncate(10, id)", []),
    "t_ts4": ("truncate(4, s)", []),
}


@pytest.mark.spark
def test_filters_on_every_transform(migrate: Migrate) -> None:
    lake = migrate("11")
    expected = lake.made.expected
    assert {f"db.{name}" for name in TRANSFORMS} == {each["source"] for each in lake.ran.json["tables"]}
    assert {transform for transform, _ in TRANSFORMS.values()} == set(expected["iceberg_partition_values"])
    for name in TRANSFORMS:
        assert lake.count(f"db.{name}") == expected["count_each"]
        filters = expected["filters_on_all_tables"]
        assert lake.counts(f"db.{name}", filters) == filters, name


@pytest.mark.spark
def test_temporal_transforms_are_declared_as_calendar_parts(migrate: Migrate) -> None:
    lake = migrate("11")
    assert {name: lake.partitions(name) for name in TRANSFORMS} == {
        name: keys for name, (_, keys) in TRANSFORMS.items()
    }
    assert lake_rows(lake.file, "SELECT * FROM ducklake_file_partition_value") == []
    specs = {name: json.loads(lake.tags(name)["iceberg.partition-spec"])["fields"] for name in TRANSFORMS}
    assert specs["t_tr"][0]["transform"] == "truncate[10]"
    assert specs["t_b"][0]["transform"] == "bucket[16]"
    losses = {
        each["source"]: [f["code"] for f in each["findings"] if f["severity"] == "loss"]
        for each in lake.ran.json["tables"]
    }
    undeclared = {"bucket": ["partition-bucket"], "truncate": ["partition-layout"]}
    assert losses == {
        f"db.{name}": undeclared.get(transform.partition("(")[0], []) for name, (transform, _) in TRANSFORMS.items()
    }


@pytest.mark.spark
def test_rows_inserted_into_the_declared_partitions_are_found(migrate: Migrate, tmp_path: Path) -> None:
    changed = migrate("11").copy(tmp_path)
    values = "(1000, '1969-12-31 23:00:00+00', '1969-12-31', 'late')"
    changed.change(";".join(f"INSERT INTO db.{name} VALUES {values}" for name in TRANSFORMS))
    conditions = ["ts = TIMESTAMPTZ '1969-12-31 23:00:00+00'", "dt = DATE '1969-12-31' AND s = 'late'", "id = 1000"]
    for name in TRANSFORMS:
        for condition in conditions:
            assert changed.ask(f"SELECT id FROM db.{name} WHERE {condition}") == [(1000,)], (name, condition)
        assert changed.count(f"db.{name}", "ts < TIMESTAMPTZ '1970-01-01 00:00:00+00'") == 4


# 14: promoted types


@pytest.mark.spark
def test_promoted_columns_keep_their_values(migrate: Migrate) -> None:
    lake = migrate("14")
    expected = lake.made.expected
    rows = [[p, i, f, str(d), n] for p, i, f, d, n in lake.ask("SELECT p, i, f, d, s.n FROM t ORDER BY p")]
    assert rows == expected["rows"]
    assert lake.count("t") == expected["count"]
    assert lake.counts("t", expected["filters"]) == expected["filters"]


@pytest.mark.spark
def test_promoted_partition_column_is_declared_and_bucket_is_not(migrate: Migrate) -> None:
    lake = migrate("14")
    assert lake.partitions() == [("p", "identity")]
    assert lake.ran.codes()["loss"] == ["partition-bucket"]


@pytest.mark.spark
def test_judge_of_promoted_columns(migrate: Migrate, tmp_path: Path) -> None:
    lake = migrate("14")
    types = pa.schema(
        [
            ("p", pa.int64()),
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("d", pa.decimal128(12, 2)),
            ("s", pa.struct([("n", pa.int64())])),
        ]
    )
    rows = [{"p": p, "i": i, "f": f, "d": Decimal(d), "s": {"n": n}} for p, i, f, d, n in lake.made.expected["rows"]]
    assert lake.faults(pa.Table.from_pylist(rows, types), tmp_path) == []


# 21: no snapshot, no rows, changes after the last snapshot

TYPES = {"long": "BIGINT", "timestamptz": "TIMESTAMP WITH TIME ZONE", "string": "VARCHAR"}
PARTS: Mapping[str, list[str]] = {"day": ["year", "month", "day"], "identity": ["identity"]}
EMPTY = ("never_written", "emptied", "changed_after")


@pytest.mark.parametrize("name", EMPTY)
def test_columns_are_the_current_ones(name: str, migrate: Migrate) -> None:
    lake = migrate("21")
    found = lake.ask(
        "SELECT column_name, data_type, is_nullable, comment FROM duckdb_columns()"
        f" WHERE database_name = 'lake' AND schema_name = 'db' AND table_name = '{name}' ORDER BY column_index"
    )
    expected = lake.made.expected[name]["columns"]
    assert found == [(column, TYPES[type_], nullable, doc) for column, type_, nullable, doc in expected]


@pytest.mark.parametrize("name", EMPTY)
def test_partitions_are_the_current_ones(name: str, migrate: Migrate) -> None:
    lake = migrate("21")
    columns = {"ts_day": "ts", "label_part": "label"}
    expected = [(columns[field], part) for field, how in lake.made.expected[name]["partition"] for part in PARTS[how]]
    assert lake.partitions(name) == expected


def test_rows_and_snapshots_of_empty_tables(migrate: Migrate) -> None:
    lake = migrate("21")
    expected = lake.made.expected
    assert {name: lake.count(f"db.{name}") for name in EMPTY} == {name: expected[name]["count"] for name in EMPTY}
    written = {each["table"]: each["snapshots"] for each in lake.ran.json["written"]}
    # what changed after the last snapshot, or without any, is one more in the lake
    more = {"never_written": 1, "emptied": 0, "changed_after": 1}
    assert written == {f"db.{name}": expected[name]["snapshots"] + more[name] for name in EMPTY}
    rows = lake.ask("SELECT id, ts, label, extra FROM db.changed_after")
    assert [dict(zip(("id", "ts", "label", "extra"), row, strict=True)) for row in rows] == (
        expected["rows_changed_after"]
    )


def test_snapshot_before_a_change_of_the_schema_alone_has_the_old_columns(migrate: Migrate) -> None:
    lake = migrate("21")
    [at] = lake_rows(
        lake.file,
        "SELECT min(f.begin_snapshot) FROM ducklake_data_file f JOIN ducklake_table USING (table_id)"
        " WHERE table_name = 'changed_after'",
    )[0]
    assert lake.columns(f"(FROM db.changed_after AT (VERSION => {at}))") == ["id", "ts", "s"]


def test_emptied_table_had_its_rows_before(migrate: Migrate) -> None:
    lake = migrate("21")
    [table] = [each for each in lake.ran.json["written"] if each["table"] == "db.emptied"]
    commits = commits_of(lake.file)
    counts = [
        lake.count(f"db.emptied AT (VERSION => {commits[table[key]]})") for key in ("first_commit", "last_commit")
    ]
    assert counts == [2, lake.made.expected["emptied"]["count"]]


@pytest.mark.parametrize("number", [pytest.param("11", marks=pytest.mark.spark), pytest.param("21")])
def test_warehouse_is_readable_at_every_snapshot(number: str, migrate: Migrate) -> None:
    """A table answers from its first snapshot on, whichever table of its schema came first."""
    lake = migrate(number)
    begins = lake_rows(lake.file, "SELECT table_name, begin_snapshot FROM ducklake_table")
    [last] = lake_rows(lake.file, "SELECT max(snapshot_id) FROM ducklake_snapshot")[0]
    wrong = []
    with opened(lake.file) as connection:
        for name, begin in begins:
            for at in range(begin, last + 1):
                try:
                    connection.execute(f"SELECT count(*) FROM db.{name} AT (VERSION => {at})").fetchall()
                except duckdb.Error as error:
                    wrong.append(f"{name} at {at}: {str(error).splitlines()[0]}")
    assert wrong == []


def test_comment_property_is_the_table_comment(migrate: Migrate) -> None:
    lake = migrate("21")
    comments = dict(lake.ask("SELECT table_name, comment FROM duckdb_tables() WHERE database_name = 'lake'"))
    assert comments == {"never_written": "no rows yet", "emptied": None, "changed_after": None}


def test_metadata_file_taken_without_a_hint_is_named(migrate: Migrate) -> None:
    lake = migrate("21")
    for each in lake.ran.json["tables"]:
        [said] = [finding["detail"] for finding in each["findings"] if finding["code"] == "metadata-guessed"]
        newest = path_of(lake.made.expected[each["source"].removeprefix("db.")]["metadata"])
        assert newest.name in said


@pytest.mark.slow
@pytest.mark.parametrize("name", EMPTY)
def test_metadata_file_given_as_uri_is_migrated(name: str, make: Make) -> None:
    made = make("21")
    ran = run_here("migrate", f"iceberg:{made.expected[name]['metadata']}", f"ducklake:{made.lake(name)}", "--json")
    assert ran.code == 0, ran.out + ran.err
    lake = Lake(made, made.lake(name), ran)
    assert lake.count(name) == made.expected[name]["count"]
    assert lake.columns(name) == [column for column, *_ in made.expected[name]["columns"]]


# 23: NaN


@pytest.mark.slow
def test_nan_outside_the_bounds_blocks_when_nothing_may_be_rewritten(make: Make) -> None:
    made = make("23")
    before = tree_hash(made.folder)
    ran = run_here(
        "migrate",
        f"iceberg:{path_of(made.said['metadata'])}",
        f"ducklake:{made.lake()}",
        "--json",
        "--rewrite",
        "never",
    )
    assert ran.code == 3, ran.out + ran.err
    assert ran.codes()["blocked"] == ["nan-outside-bounds"] * 2
    blocked = [each for each in ran.json["tables"][0]["findings"] if each["severity"] == "blocked"]
    # file a holds 1, 2 and NaN; the others have no bounds, or no NaN
    assert [each["file_count"] for each in blocked] == [1, 1]
    assert ["column x " in blocked[0]["detail"], "column y " in blocked[1]["detail"]] == [True, True]
    assert list(made.lake().parent.iterdir()) == []
    assert tree_hash(made.folder) == before


# 25: names equal without case


def blocked_for(ran: Ran) -> dict[str, set[str]]:
    """Codes of what blocks each table."""
    return {
        each["source"]: {finding["code"] for finding in each["findings"] if finding["severity"] == "blocked"}
        for each in ran.json["tables"]
    }


@pytest.mark.slow
def test_columns_equal_without_case_block_their_table(make: Make) -> None:
    made = make("25")
    lake = made.lake("columns")
    before = tree_hash(made.folder)
    ran = run_here("migrate", f"iceberg:{path_of(made.said['metadata'][0])}", f"ducklake:{lake}", "--json")
    assert ran.code == 3, ran.out + ran.err
    assert blocked_for(ran) == {"t": {"case-collision"}}
    said = " ".join(finding["detail"] for finding in ran.json["tables"][0]["findings"])
    assert "a and A" in said
    assert "s.k and s.K" in said
    assert list(lake.parent.iterdir()) == []
    assert tree_hash(made.folder) == before


def test_tables_equal_without_case_are_all_blocked(make: Make) -> None:
    made = make("25")
    lake = made.lake("tables")
    ran = run_here("migrate", f"iceberg:{made.folder / 'wh'}", f"ducklake:{lake}", "--json")
    assert ran.code == 3, ran.out + ran.err
    assert blocked_for(ran) == {"db.t": {"case-collision"}, "db.T": {"case-collision"}}
    assert list(lake.parent.iterdir()) == []


@pytest.mark.slow
def test_table_whose_name_collides_migrates_alone(make: Make) -> None:
    made = make("25")
    lake = made.lake("alone")
    ran = run_here("migrate", f"iceberg:{path_of(made.said['metadata'][1])}", f"ducklake:{lake}", "--json")
    assert ran.code == 0, ran.out + ran.err
    assert Lake(made, lake, ran).ask('FROM "T"') == [(5,)]


# 20: files without field ids; renames, drops and additions at every level since


@pytest.fixture(scope="session", params=["duckdb", "sqlite"])
def renamed(request: pytest.FixtureRequest, make: Make) -> Lake:
    """The case in a lake of either kind."""
    made = make("20")
    file = made.lake(request.param).with_suffix(".sqlite" if request.param == "sqlite" else ".ducklake")
    before = tree_hash(made.folder)
    target = f"ducklake:{'sqlite:' if request.param == 'sqlite' else ''}{file}"
    ran = run_here("migrate", f"iceberg:{path_of(made.said['metadata'])}", target, "--as", "main.t", "--json")
    return Lake(made, file, ran, tree_hash(made.folder) == before)


@pytest.mark.slow
def test_names_link_files_without_field_ids_at_every_level(renamed: Lake) -> None:
    assert renamed.ran.code == 0, renamed.ran.out
    assert renamed.source_untouched
    expected = renamed.made.expected
    assert renamed.count("t") == expected["count"]
    columns = list(expected["rows"][0])
    assert renamed.columns() == columns
    rows = [{**row, "props": None if row["props"] is None else dict(row["props"])} for row in expected["rows"]]
    assert [dict(zip(columns, row, strict=True)) for row in renamed.ask("FROM t ORDER BY id")] == rows
    assert {where: renamed.count("t", where) for where in expected["filters"]} == expected["filters"]


def test_file_begins_anew_with_the_column_that_takes_up_its_name(renamed: Lake) -> None:
    # DuckLake's merge and rewrite would lose the values of a column that is younger than the file
    codes = renamed.ran.codes()
    assert (codes["loss"], "file-twice" in codes["note"]) == ([], True)
    [first] = [at for commit, at in commits_of(renamed.file).items() if commit]
    # there the name is still the older column's, to which the mapping gives no values
    assert renamed.ask(f"SELECT count(*), count(gone) FROM t AT (VERSION => {first})") == [(3, 0)]


@pytest.mark.slow
def test_judge_of_names_and_renames(make: Make, tmp_path: Path) -> None:
    made, lake = make("20"), tmp_path / "lake.ducklake"
    source = f"iceberg:{path_of(made.said['metadata'])}"
    assert run_here("migrate", source, f"ducklake:{lake}", "--as", "main.t", "--ownership", "adopt").code == 0
    point = pa.list_(pa.struct([("v", pa.int32())]))
    box = pa.struct([("left", pa.float64()), ("y", pa.struct([("z", pa.string())])), ("w", pa.int32())])
    types = pa.schema(
        [
            ("id", pa.int32()), ("full_name", pa.string()), ("box", box), ("tags", pa.list_(pa.string())),
            ("props", pa.map_(pa.string(), pa.int32())), ("pts", point), ("gone", pa.string()),
        ]
    )  # fmt: skip
    listed = [{**row, "props": row["props"] and [*dict(row["props"]).items()]} for row in made.expected["rows"]]
    subject = Subject("main.t", (Version(None, None, pa.Table.from_pylist(listed, types)),))
    assert judge(str(lake), [subject], scratch=tmp_path / "judge", compact=True) == []


# 01, 04 and 20 in the other catalogs, at every snapshot as in a DuckDB file


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [pytest.param("sqlite", marks=pytest.mark.exhaustive), pytest.param("postgres", marks=pytest.mark.postgres)],
)
@pytest.mark.parametrize(
    "number", [*(pytest.param(each, marks=[pytest.mark.spark, pytest.mark.exhaustive]) for each in ("01", "04")), "20"]
)
def test_other_catalogs_answer_alike(
    number: str, backend: str, make: Make, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made = make(number)
    table = made.said.get("table") or path_of(made.said["metadata"])
    file = tmp_path / "lake.ducklake"
    attach = f"sqlite:{tmp_path / 'lake.sqlite'}"
    if backend == "postgres":
        running: Server = request.getfixturevalue("postgres")
        attach = f"postgres:{running.connection(running.database())}"
    for target in (str(file), attach):
        more = ("--as", "main.t", "--data-path", str(tmp_path / f"files-{len(target)}"))
        assert run_here("migrate", f"iceberg:{table}", f"ducklake:{target}", *more).code == 0
    held = commits_of(attach if backend == "postgres" else tmp_path / "lake.sqlite")
    asked = []
    with opened(file) as connection:
        for commit, at in sorted(commits_of(file).items(), key=lambda pair: pair[1]):
            rows = connection.execute(f"FROM t AT (VERSION => {at})").to_arrow_table()
            asked.append(Version(held[commit], None, rows, other_columns=True))
    assert judge(attach, [Subject("main.t", tuple(asked))], scratch=tmp_path / "judge", change=False, filters=3) == []


# 03, 07, 13 and 23 with rewriting


def rewritten(made: Made, source: str | Path) -> Lake:
    """The case's table, its files rewritten and its equality deletes resolved where they have to be."""
    lake = made.lake("rewritten")
    ran = run_here("migrate", f"iceberg:{source}", f"ducklake:{lake}", "--as", "main.t", "--json")
    assert ran.code == 0, ran.out + ran.err
    return Lake(made, lake, ran)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("tasks_here")
def test_equality_deletes_delete_by_value_and_sequence(make: Make) -> None:
    made = make("03")
    lake = rewritten(made, made.said["table"])
    assert [list(row) for row in lake.ask("SELECT id, name, n FROM t ORDER BY n")] == made.expected["rows"]
    assert lake.ask("SELECT count(*), sum(n) FROM t") == [(made.expected["count"], made.expected["sum_n"])]
    own = lake_rows(lake.file, "SELECT count(*) FROM ducklake_data_file WHERE path_is_relative")
    assert own == [(0,)], "the data files stay as they are"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("tasks_here")
def test_int96_instants_of_any_year_are_the_same_in_every_zone(make: Make) -> None:
    made = make("07")
    lake = rewritten(made, made.said["table"])
    filters = made.expected["filters"]
    with opened(lake.file) as connection:
        for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
            connection.execute(f"SET TimeZone = '{zone}'")
            found = connection.execute("SELECT id, epoch_us(ts) FROM t ORDER BY id").fetchall()
            assert [list(row) for row in found] == made.expected["id_to_utc_epoch_micros"]
            counts = {
                where: connection.execute(f"SELECT count(*) FROM t WHERE {where}").fetchall()[0][0] for where in filters
            }
            assert counts == filters


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("tasks_here")
def test_legacy_layouts_beside_new_ones_are_rewritten_and_equal(make: Make, tmp_path: Path) -> None:
    made = make("13")
    files = sorted(Path(made.said["parquet_dir"]).glob("*.parquet"))
    columns = (
        NestedField(1, "id", IntegerType()),
        NestedField(2, "d9", DecimalType(9, 2)),
        NestedField(3, "d18", DecimalType(18, 3)),
        NestedField(4, "d38", DecimalType(38, 4)),
        NestedField(5, "a", ListType(10, IntegerType(), False)),
        NestedField(
            6,
            "st",
            ListType(11, StructType(NestedField(12, "x", IntegerType()), NestedField(13, "y", StringType())), False),
        ),
        NestedField(7, "m", MapType(14, StringType(), 15, ListType(16, IntegerType(), False), False)),
        NestedField(8, "an", ListType(17, IntegerType(), False)),
        NestedField(9, "ae", ListType(18, IntegerType(), False)),
    )
    table = Foreign(tmp_path / "t", Schema(*columns))
    with table.table.transaction() as transaction:
        transaction.set_properties({PROPERTY: create_mapping_from_schema(table.table.schema()).model_dump_json()})
    table.add(*((path, 1, ()) for path in files))
    lake = rewritten(made, table.metadata)
    assert lake.ran.json["tables"][0]["rewrite"]["files"] == 1, "the file of the new layout stays"
    found = []
    for id_, d9, d18, d38, *nested in lake.ask("FROM t ORDER BY id"):
        a, st, m, an, ae = nested
        found.append([id_, str(d9), str(d18), str(d38), a, [list(each.values()) for each in st], m, an, ae])
    assert found == made.expected["rows"]


@pytest.mark.slow
@pytest.mark.usefixtures("tasks_here")
def test_nan_is_found_where_files_hid_it(make: Make) -> None:
    made = make("23")
    lake = rewritten(made, path_of(made.said["metadata"]))
    expected = made.expected
    assert lake.count("t") == expected["count"]
    filters = expected["filters_duckdb_semantics"]
    assert {where: lake.count("t", where) for where in filters} == filters
    assert lake.ask("SELECT max(x)::VARCHAR, min(x)::VARCHAR FROM t") == [(expected["max_x"], expected["min_x"])]
