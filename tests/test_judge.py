"""The judge finds nothing wrong with good lakes, and names what is wrong with lakes broken on purpose."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.judge import Subject, Version, judge

# Runs statements on a lake, and writes down its snapshots: in a process of its own, as the judge does.
LAKE_SCRIPT = """
import importlib.util, json, sys
from pathlib import Path
import duckdb
attach, statements, answer = json.loads(sys.stdin.read())
con = duckdb.connect()
def load(name):
    spec = importlib.util.find_spec("duckdb_extension_" + name)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in Path(folder).glob(f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"):
            con.execute(f"LOAD '{file}'")
            return
    con.execute(f"INSTALL {name}")
    con.execute(f"LOAD {name}")
load("ducklake")
if attach.startswith("'ducklake:sqlite:"):
    load("sqlite_scanner")
con.execute("SET TimeZone='UTC'")
con.execute(f"ATTACH {attach}")
for statement in statements:
    con.execute(statement)
query = "SELECT snapshot_id, CAST(snapshot_time AS VARCHAR) FROM lake.snapshots() ORDER BY 1"
rows = con.execute(query).fetchall()
Path(answer).write_text(json.dumps(rows))
"""


@dataclass(frozen=True)
class Lake:
    """A lake on disk and what it must answer."""

    folder: Path
    snapshots: dict[int, datetime]
    subjects: tuple[Subject, ...]

    @property
    def catalog(self) -> Path:
        """The catalog file."""
        return self.folder / "lake.ducklake"


def run_lake(catalog: str, options: str, statements: Sequence[str], answer: Path) -> dict[int, datetime]:
    """The snapshots of a lake after some statements."""
    attach = f"'ducklake:{catalog}' AS lake ({options})"
    subprocess.run(
        [sys.executable, "-c", LAKE_SCRIPT],
        input=json.dumps([attach, list(statements), str(answer)]),
        text=True,
        check=True,
    )
    return {number: datetime.fromisoformat(time) for number, time in json.loads(answer.read_text())}


def rows(first: int, last: int, without: Sequence[int] = ()) -> pa.Table:
    """Rows of table t: n is NULL at 15, x is NaN at 25."""
    ids = [i for i in range(first, last + 1) if i not in without]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "n": pa.array([None if i == 15 else i * 10 for i in ids], pa.int32()),
            "x": pa.array([float("nan") if i == 25 else i / 2 for i in ids], pa.float64()),
            "name": pa.array([f"name {i:02}" for i in ids], pa.string()),
        }
    )


INSERT = (
    "INSERT INTO lake.t SELECT i, CASE WHEN i <> 15 THEN i * 10 END,"
    " CASE WHEN i = 25 THEN 'nan'::DOUBLE ELSE i / 2 END, format('name {{:02d}}', i) FROM range({}, {}) r(i)"
)


def in_place(folder: Path, number: int) -> Path:
    """A Parquet file of table p in a directory of its own."""
    file = folder / f"dir={number}" / "part.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"k": pa.array([number * 2, number * 2 + 1], pa.int64())}), file)
    return file


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Table t with an overwritten low half (4) and a deleted row (6); table p over two files in place."""
    folder = tmp_path_factory.mktemp("good")
    files = [in_place(folder / "source", number) for number in (1, 2)]
    snapshots = run_lake(
        str(folder / "lake.ducklake"),
        f"DATA_PATH '{folder}/files/', DATA_INLINING_ROW_LIMIT 0",
        [
            "CREATE TABLE lake.t (id BIGINT, n INTEGER, x DOUBLE, name VARCHAR)",
            INSERT.format(1, 11),
            INSERT.format(11, 21),
            "DELETE FROM lake.t WHERE id <= 10",
            INSERT.format(21, 31),
            "DELETE FROM lake.t WHERE id = 18",
            "CREATE TABLE lake.p (k BIGINT)",
            *(f"CALL ducklake_add_data_files('lake', 'p', '{file}')" for file in files),
        ],
        folder / "snapshots.json",
    )
    states = {2: rows(1, 10), 3: rows(1, 20), 4: rows(11, 20), 5: rows(11, 30), 6: rows(11, 30, [18])}
    t = Subject("main.t", tuple(Version(s, snapshots[s], table) for s, table in states.items()))
    p = Subject("main.p", (Version(None, None, pa.table({"k": pa.array([2, 3, 4, 5], pa.int64())})),))
    return Lake(folder, snapshots, (t, p))


@pytest.mark.slow
def test_good_lake_has_no_fault(good: Lake, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in good.folder.rglob("*") if path.is_file()}
    assert judge(str(good.catalog), good.subjects, scratch=tmp_path, compact=True, filters=2) == []
    assert before == {path: path.stat().st_mtime_ns for path in good.folder.rglob("*") if path.is_file()}


WEIRD = {
    'sel"ect': "INTEGER",
    "a.b c": 'STRUCT("x\'y" VARCHAR, z STRUCT(w DOUBLE))',
    "größe": "MAP(VARCHAR, INTEGER[])",
    "order": "DECIMAL(10, 2)",
    "at": "TIMESTAMPTZ",
    "ns": "TIMESTAMP_NS",
    "u": "UUID",
    "raw": "BLOB",
}


@pytest.mark.slow
def test_lake_of_odd_names_and_types_in_sqlite_has_no_fault(tmp_path: Path) -> None:
    columns = ", ".join('"' + n.replace('"', '""') + '" ' + t for n, t in WEIRD.items())
    value = (
        "({0}, {{'x''y': 'it''s', 'z': {{'w': 'nan'}}}}, MAP {{'b': [1, NULL], 'a': NULL}}, -1.5,"
        " '1960-01-01 00:00:00+00', '2001-01-01 00:00:00.123456789',"
        " '00000000-0000-0000-0000-00000000000{0}', '\\xFFa'::BLOB)"
    )
    nulls = "(" + ", ".join(["NULL"] * len(WEIRD)) + ")"
    lake = f"sqlite:{tmp_path / 'lake.sqlite'}"
    values = [value.format(1), nulls, value.format(2)]
    statements = [
        """CREATE TABLE lake."or.der" """ + f"({columns})",
        f"""INSERT INTO lake."or.der" VALUES {", ".join(values)}""",
    ]
    options = f"DATA_PATH '{tmp_path}/files/', DATA_INLINING_ROW_LIMIT 0"
    snapshots = run_lake(lake, options, statements, tmp_path / "snapshots.json")
    expected = duckdb.connect()
    expected.execute("SET TimeZone='UTC'")
    expected.execute(f"CREATE TABLE t ({columns})")
    expected.execute(f"INSERT INTO t VALUES {', '.join(values)}")
    version = Version(2, snapshots[2], expected.execute("FROM t").to_arrow_table())
    subject = Subject(("main", "or.der"), (version,))
    assert judge(lake, [subject], scratch=tmp_path / "scratch", filters=4) == []


T = "table_id = (SELECT table_id FROM ducklake_table WHERE table_name = 't')"
P = "table_id = (SELECT table_id FROM ducklake_table WHERE table_name = 'p')"


def file_of_t(number: int) -> str:
    """The data file written by the insert of that number, counted from 0."""
    chosen = f"(SELECT data_file_id FROM ducklake_data_file WHERE {T} ORDER BY 1 LIMIT 1 OFFSET {number})"
    return f"data_file_id = {chosen}"


PARTITION_VALUES = (
    f"INSERT INTO ducklake_partition_info SELECT 1000, table_id, 7, NULL FROM ducklake_table WHERE {P}",
    f"INSERT INTO ducklake_partition_column SELECT 1000, table_id, 0, 1, 'identity' FROM ducklake_table WHERE {P}",
    f"INSERT INTO ducklake_file_partition_value SELECT data_file_id, table_id, 0, '1'"
    f" FROM ducklake_data_file WHERE {P}",
    f"UPDATE ducklake_data_file SET partition_id = 1000 WHERE {P}",
)
TCS = "ducklake_table_column_stats"
FCS = "ducklake_file_column_stats"

# what is broken: (statements on the catalog, what a fault must say, arguments of the judge)
BREAKS: dict[str, tuple[Sequence[str], str, dict[str, bool]]] = {
    "table bounds over live files only": (
        [f"UPDATE {TCS} SET min_value = '11' WHERE {T} AND column_id = 1"],
        r"main\.t @2: WHERE id = 1 -> 0 rows, expected 1",
        {"change": False},
    ),
    "partition values on files in several directories": (
        PARTITION_VALUES,
        r"main\.p.*merge_adjacent_files.*partition path",
        {"change": False, "compact": True},
    ),
    "record_count without the deleted rows": (
        [f"UPDATE ducklake_table_stats SET record_count = 19 WHERE {T}"],
        r"main\.t @current: min\(id\) -> 1, expected 11",
        {"change": False},
    ),
    "bounds NULL and NULL": (
        [f"UPDATE {TCS} SET min_value = NULL, max_value = NULL WHERE {T} AND column_id = 1"],
        r"main\.t @2 after all changes: WHERE id = 1 -> 0 rows, expected 1",
        {},
    ),
    "no table_stats row": (
        [f"DELETE FROM ducklake_table_stats WHERE {T}"],
        r"main\.t @current after INSERT.*: WHERE id = \S+ -> 0 rows, expected 1",
        {},
    ),
    "no schema_versions row": (
        [f"DELETE FROM ducklake_schema_versions WHERE {T}"],
        r"main\.t: internal error.*merge_adjacent_files",
        {"change": False, "compact": True},
    ),
    "no data file row": (
        [f"DELETE FROM ducklake_data_file WHERE {T} AND {file_of_t(2)}"],
        r"main\.t @current: row 1x missing \(10 differ\)",
        {"change": False},
    ),
    "contains_null false": (
        [f"UPDATE {TCS} SET contains_null = false WHERE {T} AND column_id = 2"],
        r"main\.t @current: WHERE n IS NULL -> 0 rows, expected 1",
        {"change": False},
    ),
    "contains_nan false": (
        [
            f"UPDATE {TCS} SET contains_nan = false WHERE {T} AND column_id = 3",
            f"UPDATE {FCS} SET contains_nan = false WHERE {T} AND column_id = 3",
        ],
        r"main\.t @current: WHERE x = nan -> 0 rows, expected 1",
        {"change": False},
    ),
    "file bounds too narrow": (
        [f"UPDATE {FCS} SET max_value = '25' WHERE {T} AND column_id = 1 AND {file_of_t(2)}"],
        r"main\.t @current: WHERE id = 30 -> 0 rows, expected 1",
        {"change": False},
    ),
    "value_count zero": (
        [f"UPDATE {FCS} SET value_count = 0 WHERE {T} AND column_id = 4 AND {file_of_t(1)}"],
        r"main\.t @current: WHERE name = 'name 11' -> 0 rows, expected 1",
        {"change": False},
    ),
    "file statistics twice": (
        [f"INSERT INTO {FCS} SELECT * FROM {FCS} WHERE {T}"],
        r"main\.t @current: ORDER BY id ASC NULLS LAST LIMIT 3 -> .*, expected \[11, 12, 13\]",
        {"change": False},
    ),
    "delete_count wrong": (
        [f"UPDATE ducklake_delete_file SET delete_count = 3 WHERE {T}"],
        r"main\.t @current: count\(\*\) -> 17, expected 19",
        {"change": False},
    ),
    "two delete files for one data file": (
        [
            "INSERT INTO ducklake_delete_file SELECT * REPLACE (delete_file_id + 1000 AS delete_file_id)"
            f" FROM ducklake_delete_file WHERE {T}"
        ],
        r"main\.t @6: row 1x too many",
        {"change": False},
    ),
    "snapshot times equal": (
        [
            "UPDATE ducklake_snapshot SET snapshot_time ="
            " (SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = 3) WHERE snapshot_id = 4"
        ],
        r"main\.t @\d{4}-\S+ \S+: row 1x (missing|too many)",
        {"change": False},
    ),
    "names of columns swapped": (
        [
            f"UPDATE ducklake_column SET column_name = CASE column_id WHEN 1 THEN 'n' ELSE 'id' END"
            f" WHERE {T} AND column_id IN (1, 2)"
        ],
        r"main\.t @current: columns are \['n', 'id', 'x', 'name'\], expected \['id', 'n', 'x', 'name'\]",
        {"change": False},
    ),
    "row_id_start NULL": (
        [f"UPDATE ducklake_data_file SET row_id_start = NULL WHERE {T} AND {file_of_t(1)}"],
        r"main\.t .*(rowid|row_id)",
        {},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        # every run shows a third of those that take long
        pytest.param(
            case,
            marks=[]
            if BREAKS[case][2] == {"change": False}
            else [pytest.mark.slow, *[pytest.mark.exhaustive] * (place % 3 != 0)],
        )
        for place, case in enumerate(BREAKS)
    ],
)
def test_broken_lake_is_found_out(case: str, good: Lake, tmp_path: Path) -> None:
    statements, expected, arguments = BREAKS[case]
    broken = tmp_path / "lake.ducklake"
    shutil.copyfile(good.catalog, broken)
    with duckdb.connect(str(broken)) as catalog:
        for statement in statements:
            catalog.execute(statement)
    t, p = good.subjects
    chosen = t.versions[::2] if "times" in case else (t.versions[0], t.versions[-1])  # enough, and fast
    subject = p if expected.startswith(r"main\.p") else Subject(t.table, chosen)
    faults = judge(
        str(broken),
        [subject],
        scratch=tmp_path / "scratch",
        filters=2,
        change=arguments.get("change", True),
        compact=arguments.get("compact", False),
    )
    assert any(re.search(expected, fault) for fault in faults), "\n".join(faults) or "no fault"
