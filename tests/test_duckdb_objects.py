"""Views, macros, schemas, defaults and comments of a DuckDB file: the same answers in a lake, or a finding."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bridge.model.findings import Code
from bridge.model.objects import Macro, ObjectKind, Objects, Overload, Parameter, SourceObject, Trial, View, in_order
from bridge.model.options import Options
from bridge.model.table import TableName
from bridge.ports import Fit, ObjectWrite
from converters.duckdb_file.locate import file_at
from converters.duckdb_file.names import Unparsable, parsed
from converters.duckdb_file.objects import read_objects, view_parts
from converters.ducklake.fitting import fit_objects
from tests.support import ROOT, SHARED, Ran, lake_rows, run_here, tree_hash, use

ASK = """
import json, sys
from converters.ducklake.extensions import connect, needed
attach, backend, used, queries = json.loads(sys.stdin.read())
db = connect(*needed(backend))
db.execute("SET python_enable_replacements = false")
for each in attach:
    db.execute(each)
if used:
    db.execute(f"USE {used}")
said = []
for query in queries:
    try:
        said.append(repr(db.execute(query).fetchall()))
    except Exception as error:
        said.append("error: " + str(error).splitlines()[0])
print(json.dumps(said))
"""


def ask(attach: str, queries: Sequence[str], used: str = "", backend: str = "duckdb", before: str = "") -> list[str]:
    """Answers to queries over an attached database, in a process of its own, as texts."""
    statements = [each for each in (before, attach) if each]
    ran = subprocess.run(
        [sys.executable, "-c", ASK],
        input=json.dumps([statements, backend, used, list(queries)]),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found: list[str] = json.loads(ran.stdout)
    return found


def made(path: Path, sql: str) -> Path:
    """A database file, opened as DuckDB names it by itself, in the newest format."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' (STORAGE_VERSION 'latest')")
        connection.execute(f'USE "{path.stem}"')
        for statement in sql.strip().split(";\n"):
            connection.execute(statement)
    return path


def migrated(source: Path, lake: Path | str, *options: str) -> Ran:
    ran = run_here("migrate", f"duckdb:{source}", f"ducklake:{lake}", "--rewrite", "when-needed", "--json", *options)
    assert ran.code in (0, 3), ran.err
    return ran


def planned(source: Path, lake: Path, *options: str) -> Any:
    return run_here("plan", f"duckdb:{source}", f"ducklake:{lake}", "--rewrite", "when-needed", "--json", *options).json


def objects(ran: Any) -> dict[str, tuple[str, list[str]]]:
    """Action and codes by kind and name."""
    return {
        f"{each['kind']} {each['target']}": (each["action"], [finding["code"] for finding in each["findings"]])
        for each in ran["objects"]
    }


APP = """
CREATE SCHEMA other;
CREATE SCHEMA "s p.ace";
CREATE SCHEMA app_empty;
CREATE TABLE base (i INTEGER, s VARCHAR, st STRUCT(main STRUCT(base INTEGER)));
INSERT INTO base VALUES (1, 'x', {'main': {'base': 5}}), (2, 'y', NULL);
CREATE TABLE other.base (i INTEGER);
INSERT INTO other.base VALUES (100);
CREATE TABLE "s p.ace"."t "" q" ("c ""1" INTEGER);
INSERT INTO "s p.ace"."t "" q" VALUES (7);
CREATE MACRO dbl(x) AS x * 2;
CREATE MACRO quad(x) AS app.main.dbl(app.dbl(x));
CREATE MACRO other.thrice(x) AS x * 3;
CREATE MACRO "sel ect"("p q" := 'it''s; "app.main.base"') AS "p q" || '!';
CREATE MACRO area(a) AS a * a, (a, b) AS a * b, (a, b, c, d := 3::TINYINT) AS [typeof(d), typeof(a)];
CREATE MACRO typed(a INTEGER, b VARCHAR := 'q') AS typeof(a) || b;
CREATE MACRO by_type(a INTEGER) AS 'int', (a VARCHAR) AS 'text';
CREATE MACRO kinds(a := 10::BIGINT, b := 1.5::FLOAT, c := 'x'::BLOB, d := DATE '2020-01-01', e := 'NULL', f := '',
    g := -1, h := 1.50, i := true, j := INTERVAL 1 DAY, k := 'inf'::DOUBLE, l := '{}'::JSON) AS
    [typeof(a), typeof(b), typeof(c), typeof(d), typeof(e), typeof(f), typeof(g), typeof(h), typeof(i), typeof(j),
     typeof(k), typeof(l), a::VARCHAR, b::VARCHAR, c::VARCHAR, d::VARCHAR, e, f, g::VARCHAR, h::VARCHAR, i::VARCHAR,
     j::VARCHAR, k::VARCHAR, l::VARCHAR];
CREATE MACRO top_n(n := 1) AS TABLE SELECT i, s FROM app.main.base ORDER BY i LIMIT n;
CREATE MACRO pick(a) AS TABLE (SELECT a), (a, b) AS TABLE (SELECT a, b FROM app.other.base);
CREATE MACRO biggest() AS (SELECT max(i) FROM app.base);
CREATE VIEW z AS SELECT i, quad(i) AS q FROM base;
CREATE VIEW a AS SELECT * FROM z WHERE q > 4;
CREATE VIEW other.m AS SELECT i FROM main.a UNION ALL SELECT i FROM other.base;
CREATE VIEW other.own_schema AS SELECT * FROM base;
CREATE TABLE only_main AS SELECT 'here' AS w;
CREATE VIEW other.by_path AS SELECT * FROM only_main;
CREATE VIEW other.macros AS SELECT quad(i) AS q, other.thrice(i) AS t FROM base;
CREATE VIEW named(first_col, "second "" col", "third, (col)") AS SELECT i, s, i + 1 FROM base;
CREATE VIEW renames_some("only first") AS SELECT i, s FROM base;
CREATE VIEW full_name AS SELECT i FROM app.main.base;
CREATE VIEW half_name AS SELECT app.base.i, app.main.base.s, main.base.st FROM app.base;
CREATE VIEW deep AS SELECT app.main.base.st.main.base AS d FROM app.main.base;
CREATE VIEW alias_like_it AS SELECT app.i, 'app.main.base' AS lit FROM base AS app /* app.main.base */;
CREATE VIEW struct_like_it AS SELECT app.main.base AS f FROM (SELECT {'main': {'base': 1}} AS app);
CREATE VIEW cte_like_it AS WITH app AS (SELECT 1 AS a) SELECT app.a, b.i FROM app, app.main.base AS b;
CREATE VIEW quoted AS SELECT "c ""1" AS "x y" FROM "app"."s p.ace"."t "" q";
CREATE VIEW "v ; "" '" AS SELECT 1 AS "a b";
CREATE VIEW uses_table_macro AS SELECT * FROM app.top_n(n := 2);
CREATE VIEW functions AS SELECT app.main.dbl(i) AS x, main.dbl(i) AS y, dbl(i) AS w FROM base;
CREATE VIEW sub AS SELECT i FROM base WHERE i IN (SELECT min(i) FROM APP.MAIN.BASE);
CREATE VIEW pivoted AS SELECT * FROM (PIVOT (SELECT i, s FROM app.main.base) ON s IN ('x', 'y') USING sum(i));
CREATE VIEW recursive AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r;
CREATE VIEW windowed AS SELECT sum(i) OVER (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS w FROM app.base;
CREATE VIEW lambdas AS SELECT [x * 2 FOR x IN [1, 2] IF x > 1] AS l, list_transform([1], lambda x: dbl(x)) AS m;
CREATE VIEW stars AS SELECT * EXCLUDE (st) REPLACE (i + 1 AS i), COLUMNS('i|s') FROM app.base;
CREATE VIEW by_name AS (SELECT 1 AS a) UNION BY NAME (SELECT 2 AS b);
CREATE VIEW vals AS VALUES (1, 'a'), (2, 'b');
CREATE VIEW nothing_special AS FROM base SELECT i ORDER BY ALL DESC LIMIT 1;
CREATE VIEW joined AS SELECT b1.i, b2.i AS j FROM base b1 ASOF JOIN app.other.base b2 ON b1.i <= b2.i;
COMMENT ON VIEW a IS 'needs "z"; it''s here';
COMMENT ON TABLE base IS 'the table';
COMMENT ON COLUMN base.s IS 'a column'
"""

VIEWS = (
    "z", "a", "other.m", "other.own_schema", "other.macros", "named", "renames_some", "full_name", "half_name", "deep",
    "alias_like_it", "struct_like_it", "cte_like_it", "quoted", '"v ; "" \'"', "uses_table_macro", "functions", "sub",
    "other.by_path", "pivoted", "recursive", "windowed", "lambdas", "stars", "by_name", "vals", "nothing_special",
    "joined",
)  # fmt: skip
CALLS = (
    "SELECT dbl(3)", "SELECT quad(3)", "SELECT other.thrice(3)", 'SELECT "sel ect"()',
    """SELECT "sel ect"("p q" := 'x')""", "SELECT area(3), area(3, 4)", "SELECT area(3, 4, 5), area(3, 4, 5, d := 6)",
    "SELECT typed(1), typed(1, b := 'z')", "SELECT by_type(1), by_type('a')", "SELECT kinds()",
    "FROM top_n()", "FROM top_n(n := 2)", "FROM pick(1)", "FROM pick(1, 2)", "SELECT biggest()",
    "SELECT typed('1')", "SELECT area()", "FROM top_n(1, 2)",
)  # fmt: skip


def answers(attach: str, catalog: str, used: bool = True, backend: str = "duckdb") -> list[str]:
    """What every view answers, and every call when the catalog is the current one."""
    places = [f'"{catalog}".{each if "." in each else f"main.{each}"}' for each in VIEWS]
    views = [f"SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {each})" for each in places]
    views += [f"SELECT * FROM {each} ORDER BY ALL" for each in places]
    return ask(attach, [*views, *(CALLS if used else ())], f'"{catalog}"' if used else "", backend)


def check_lake(source: Path, lake: str, backend: str) -> None:
    """The lake answers as the source, current or not, under this name and another, and after changes of its own."""
    expected = answers(f"ATTACH '{source}' (READ_ONLY)", "app")
    assert not [each for each in expected[:-3] if each.startswith("error")]
    outside = answers(f"ATTACH '{source}' (READ_ONLY)", "app", used=False)
    failing = [view for view, said in zip(VIEWS, outside, strict=False) if said.startswith("error")]
    assert failing == [each for each in VIEWS if each in ("other.by_path", "other.macros")]
    attach = f"ATTACH 'ducklake:{lake}' AS \"{{}}\""
    for name in ("app", "a lake", "x"):
        found = answers(attach.format(name), name, backend=backend)
        assert found[:-3] == expected[:-3]
        assert all(each.startswith("error") for each in found[-3:])
        apart = answers(attach.format(name), name, used=False, backend=backend)
        assert [each for view, each in zip((*VIEWS, *VIEWS), apart, strict=True) if view != "other.by_path"] == [
            each for view, each in zip((*VIEWS, *VIEWS), expected, strict=False) if view != "other.by_path"
        ]
        assert apart[VIEWS.index("other.by_path")].startswith("error")
    assert use(
        lake, ["INSERT INTO lake.base VALUES (3, 'n', NULL)", "ALTER TABLE lake.base ADD COLUMN more INTEGER"]
    ) == ["", ""]
    [three] = ask(attach.format("y"), ["SELECT i FROM y.full_name ORDER BY 1"], "", backend)
    assert three == "[(1,), (2,), (3,)]"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["duckdb", pytest.param("sqlite", marks=pytest.mark.exhaustive)])
def test_views_and_macros_answer_as_at_the_source(backend: str, tmp_path: Path) -> None:
    source = made(tmp_path / "app.duckdb", APP)
    before = tree_hash(source.parent)
    lake = f"{'sqlite:' if backend == 'sqlite' else ''}{tmp_path}/lake/l.{backend}"
    (tmp_path / "lake").mkdir()
    ran = migrated(source, lake)
    assert ran.code == 0
    said = {name: codes for name, (_, codes) in objects(ran.json).items() if codes}
    assert said == {"view other.by_path": ["search-path"]}
    assert all(action == "create" for action, _ in objects(ran.json).values())
    assert all(check["ok"] for check in ran.json["checks"])
    (tmp_path / "lake").rename(tmp_path.parent / f"{tmp_path.name}-lake")
    assert tree_hash(source.parent) == before
    (tmp_path.parent / f"{tmp_path.name}-lake").rename(tmp_path / "lake")
    check_lake(source, lake, backend)


@pytest.mark.postgres
def test_views_and_macros_in_a_lake_on_postgres(tmp_path: Path) -> None:
    from tests.server import server

    source = made(tmp_path / "app.duckdb", APP)
    with server() as running:
        lake = f"postgres:{running.connection(running.database())}"
        ran = migrated(source, lake, "--data-path", f"{tmp_path}/files")
        assert ran.code == 0 and all(check["ok"] for check in ran.json["checks"])
        check_lake(source, lake, "postgres")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["duckdb", "sqlite"])
def test_case_41(backend: str, tmp_path: Path) -> None:
    script = SHARED / "cases" / "41_duckdb_views_and_macros_order.py"
    if not script.exists():
        pytest.skip("the shared cases are not here")
    said = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=True).stdout
    lake = f"{'sqlite:' if backend == 'sqlite' else ''}{tmp_path}/l.{backend}"
    ran = migrated(tmp_path / "views.duckdb", lake)
    assert ran.code == 0 and all(action == "create" for action, _ in objects(ran.json).values())
    asked = json.loads(said)["expected"].values()
    found = ask(f"ATTACH 'ducklake:{lake}' AS whatever", [each["sql"] for each in asked], "whatever", backend)
    assert found == [repr([tuple(row) for row in each["rows"]]) for each in asked]
    comment = "SELECT comment FROM duckdb_views() WHERE view_name = 'a_view' AND database_name = 'l'"
    assert ask(f"ATTACH 'ducklake:{lake}' AS l", [comment], "l", backend) == ["[('needs z_view',)]"]


OWN = """
CREATE SCHEMA other;
CREATE TABLE base (i INTEGER DEFAULT 7, s VARCHAR DEFAULT 'it''s', d DECIMAL(9,2) DEFAULT 1.5, e VARCHAR DEFAULT '',
    r DOUBLE DEFAULT random(), n INTEGER DEFAULT NULL, b BOOLEAN DEFAULT true, t DATE DEFAULT '2020-01-01',
    u UUID DEFAULT uuid(), neg INTEGER DEFAULT -1, plain INTEGER NOT NULL, f BOOLEAN DEFAULT 'f',
    bl BLOB DEFAULT 'abc', x VARCHAR DEFAULT lower('A'), z TIMESTAMPTZ DEFAULT now(), h DOUBLE DEFAULT 1e3);
CREATE MACRO dbl(x) AS x * 2;
CREATE MACRO "m m"("p q", b := 5, c := 'NULL', d := 1.50) AS "p q" + b;
CREATE MACRO area(a) AS a * a, (a, b) AS a * b;
CREATE MACRO typed(a INTEGER, b VARCHAR := 'q', c DECIMAL(9,2) := 1.5) AS a;
CREATE MACRO other.rows(n := 1) AS TABLE SELECT i FROM base LIMIT n;
CREATE VIEW plain AS SELECT i, dbl(i) AS q FROM base;
CREATE VIEW other.named(a, "b ""c") AS SELECT i, s FROM main.base;
COMMENT ON VIEW plain IS 'it''s a view';
COMMENT ON TABLE base IS 'a table';
COMMENT ON COLUMN base.i IS 'a column'
"""
SAME = {
    "view": "SELECT view_name, dialect, sql, column_aliases FROM ducklake_view ORDER BY ALL",
    "macro": "SELECT schema_name, macro_name, impl_id, dialect, sql, type FROM ducklake_macro JOIN ducklake_macro_impl "
    "USING (macro_id) JOIN ducklake_schema USING (schema_id) ORDER BY ALL",
    "parameters": "SELECT macro_name, impl_id, column_id, parameter_name, parameter_type, default_value, "
    "default_value_type FROM ducklake_macro_parameters JOIN ducklake_macro USING (macro_id) ORDER BY ALL",
    "column": "SELECT column_id, column_order, column_name, column_type, initial_default, default_value, "
    "nulls_allowed, parent_column, default_value_type, default_value_dialect FROM ducklake_column ORDER BY ALL",
    "tag": "SELECT key, value FROM ducklake_tag ORDER BY ALL",
    "column_tag": "SELECT column_id, key, value FROM ducklake_column_tag ORDER BY ALL",
    "schema": "SELECT schema_name, path, path_is_relative FROM ducklake_schema ORDER BY ALL",
}


@pytest.mark.slow
def test_the_catalog_rows_are_those_that_duckdb_writes_itself(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs.ducklake", tmp_path / "mine.ducklake"
    assert not any(use(str(theirs), ["USE lake", *OWN.strip().split(";\n")]))
    ran = migrated(made(tmp_path / "src.duckdb", OWN), mine)
    assert ran.code == 0 and not any(codes for _, codes in objects(ran.json).values())
    for name, query in SAME.items():
        assert lake_rows(mine, query) == lake_rows(theirs, query), name
    words = [
        sorted(
            word
            for (text,) in lake_rows(lake, "SELECT changes_made FROM ducklake_snapshot_changes")
            for word in text.split(",")
        )
        for lake in (mine, theirs)
    ]
    ours, own = ([word for word in each if word.startswith("created_")] for each in words)
    assert ours == own
    [(snapshots, version)] = lake_rows(mine, "SELECT count(*), max(schema_version) FROM ducklake_snapshot")
    assert (snapshots, version) == (2, 1)  # everything becomes visible at once


@pytest.mark.slow
def test_defaults_fill_new_rows_as_at_the_source(tmp_path: Path) -> None:
    source = made(
        tmp_path / "app.duckdb",
        """CREATE SEQUENCE ids START 10;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE MACRO dbl(x) AS x * 2;
CREATE TABLE t (k INTEGER, i INTEGER DEFAULT 7, s VARCHAR DEFAULT 'NULL', m INTEGER DEFAULT app.main.dbl(4),
    sum_ INTEGER DEFAULT 1 + 1, day DATE DEFAULT DATE '2020-02-03', q INTEGER DEFAULT nextval('ids'),
    l INTEGER[] DEFAULT [1, 2], st STRUCT(a INTEGER) DEFAULT {'a': 1}, bl BLOB DEFAULT '\\xAA'::BLOB,
    md mood DEFAULT 'ok', cast_ mood DEFAULT 'ok'::mood, nothing INTEGER[] DEFAULT NULL, nn VARCHAR NOT NULL DEFAULT '',
    gen INTEGER AS (k + 1));
INSERT INTO t (k) VALUES (1)""",
    )
    lake = tmp_path / "l.ducklake"
    ran = migrated(source, lake)
    assert ran.code == 0
    [table] = ran.json["tables"]
    lost = {each["detail"].split(":")[0]: each["code"] for each in table["findings"] if "default" in each["code"]}
    assert lost == {
        "column q": "nextval-default", "column l": "default-lost", "column st": "default-lost",
        "column cast_": "default-lost",
    }  # fmt: skip
    texts = [each["text"] for each in table["findings"] if each["code"] == "nextval-default"]
    assert texts == ["""ALTER TABLE "main"."t" ALTER "q" SET DEFAULT nextval('ids');"""]
    assert use(str(lake), ["INSERT INTO lake.t (k) VALUES (2)", "ALTER TABLE lake.t RENAME COLUMN i TO j",
                           "INSERT INTO lake.t (k) VALUES (3)"]) == ["", "", ""]  # fmt: skip
    columns = "k, #2, s, m, sum_, day, hex(bl), md, nothing, nn"
    columns = "k, s, m, sum_, day, hex(bl), md, nothing, nn"
    rows = ask(f"ATTACH 'ducklake:{lake}' AS l", [f"SELECT {columns} FROM l.t ORDER BY k", "SELECT j FROM l.t"])
    one = "'NULL', 8, 2, datetime.date(2020, 2, 3), 'AA', 'ok', None, ''"
    assert rows == [f"[(1, {one}), (2, {one}), (3, {one})]", "[(7,), (7,), (7,)]"]


@pytest.mark.slow
def test_defaults_that_ask_for_the_catalog_are_left_out_unless_accepted(tmp_path: Path) -> None:
    source = made(
        tmp_path / "app.duckdb",
        """CREATE SEQUENCE ids;
CREATE TABLE t (k INTEGER, d VARCHAR DEFAULT current_database(), s VARCHAR DEFAULT current_schema(),
    c VARCHAR DEFAULT 'x' || current_catalog(), tx BIGINT DEFAULT txid_current(), cv BIGINT DEFAULT currval('ids'))""",
    )
    for options, kept in (((), ""), (("--accept", "catalog-answers"), "dsc")):
        lake = tmp_path / f"l{len(options)}.ducklake"
        ran = migrated(source, lake, *options)
        said = [(each["code"], each["detail"].split(":")[0]) for each in ran.json["tables"][0]["findings"]]
        asking = [("catalog-answers", f"column {each}") for each in "dsc"]
        lost = [("default-lost", "column tx"), ("default-lost", "column cv")]
        assert sorted(each for each in said if each[0] != "own-format") == sorted([*asking, *lost])
        query = "SELECT column_name FROM ducklake_column WHERE default_value_type = 'expression' ORDER BY column_order"
        assert "".join(name for (name,) in lake_rows(lake, query)) == kept


def test_the_catalog_of_a_lake_is_no_database_of_tables(tmp_path: Path) -> None:
    lake = tmp_path / "l.ducklake"
    assert use(str(lake), ["CREATE TABLE lake.t AS SELECT 1 AS i"]) == [""]
    ran = run_here("plan", f"duckdb:{lake}", f"ducklake:{tmp_path}/other.ducklake", "--rewrite", "when-needed")
    assert ran.code == 2 and f"write ducklake:{lake}" in ran.out + ran.err


HARD = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE SEQUENCE ids;
CREATE TABLE t (i INTEGER, m mood, h HUGEINT, c VARCHAR COLLATE NOCASE);
INSERT INTO t VALUES (1, 'happy', 1, 'a');
CREATE MACRO nested_type(a INTEGER[]) AS a;
CREATE MACRO nested_default(a := [1, 2]) AS a;
CREATE MACRO null_default(a := NULL) AS a;
CREATE MACRO null_typed(a := NULL::VARCHAR) AS a;
CREATE MACRO null_text(a := 'NULL') AS a;
CREATE MACRO enum_default(a := 'sad'::mood) AS a;
CREATE MACRO casts(a) AS CAST(a AS mood);
CREATE MACRO draws() AS nextval('ids');
CREATE MACRO fine(a) AS a + 1;
CREATE MACRO list_first(a) AS a[1].x;
CREATE VIEW draws_too AS SELECT nextval('ids') AS n;
CREATE VIEW casts_too AS SELECT 'sad'::mood AS m;
CREATE VIEW over_draws AS SELECT * FROM draws_too;
CREATE VIEW ordered AS SELECT i FROM t WHERE m > 'ok';
CREATE VIEW over_ordered AS SELECT * FROM ordered;
CREATE VIEW same AS SELECT 1 AS one;
CREATE VIEW ids AS SELECT rowid AS r, i FROM t;
CREATE VIEW where_am_i AS SELECT current_database() AS d;
CREATE VIEW how_many AS SELECT count(*) AS n FROM duckdb_tables();
CREATE VIEW reads AS SELECT * FROM read_csv('{csv}');
CREATE VIEW collated AS SELECT c = 'A' AS same FROM t;
CREATE MACRO where_() AS current_schema() || 'x';
CREATE VIEW over_where AS SELECT where_() AS w;
CREATE VIEW over_over AS SELECT w FROM over_where;
CREATE VIEW tx AS SELECT txid_current() AS n;
CREATE MACRO tx_too(a) AS a + txid_current();
CREATE VIEW tx_three AS SELECT tx_too(1) AS n;
COMMENT ON MACRO fine IS 'a fine one';
COMMENT ON COLUMN same.one IS 'one'
"""


@pytest.mark.slow
def test_what_cannot_be_carried_is_left_out_with_its_text(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,b\n1,2\n")
    source = made(tmp_path / "app.duckdb", HARD.replace("{csv}", str(tmp_path / "f.csv")))
    lake = tmp_path / "l.ducklake"
    before = planned(source, lake)
    ran = migrated(source, lake)
    assert ran.code == 0 and objects(ran.json) == objects(before)
    found = objects(ran.json)
    lost = {name: codes for name, (action, codes) in found.items() if action == "leave"}
    differing = {
        "view ordered": ["object-types"], "view over_ordered": ["object-types"],
        "view ids": ["catalog-answers", "object-types"],
        "view where_am_i": ["catalog-answers"], "view how_many": ["catalog-answers"],
        "view collated": ["object-types"], "macro where_": ["catalog-answers"],
    }  # fmt: skip
    assert lost == {
        **differing,
        "view over_where": ["view-not-carried"], "view over_over": ["view-not-carried"],
        "view tx": ["view-not-carried"], "macro tx_too": ["macro-not-carried"], "view tx_three": ["view-not-carried"],
        **{f"macro {name}": ["macro-not-carried"] for name in
           ("nested_type", "nested_default", "null_default", "null_typed", "enum_default", "casts", "draws")},
        **{f"view {name}": ["view-not-carried"] for name in ("draws_too", "casts_too", "over_draws")},
    }  # fmt: skip
    kept = {name: codes for name, (action, codes) in found.items() if action == "create"}
    assert kept == {
        "macro null_text": [], "macro fine": ["comment-lost"], "macro list_first": ["macro-untried"],
        "view same": ["comment-lost"], "view reads": ["reads-files"],
    }  # fmt: skip
    accepted = objects(planned(source, tmp_path / "other.ducklake", "--accept", "object-types"))
    assert accepted["view ordered"] == accepted["view collated"] == ("create", ["object-types"])
    assert accepted["view ids"][0] == accepted["view where_am_i"][0] == "leave"
    both = objects(
        planned(source, tmp_path / "other.ducklake", "--accept", "object-types", "--accept", "catalog-answers")
    )
    assert {name: codes for name, (action, codes) in both.items() if name in differing} == differing
    assert all(both[name][0] == "create" for name in (*differing, "view over_where", "view over_over"))
    assert both["view tx"][0] == both["macro tx_too"][0] == "leave"
    texts = {each["source"]: each["definition"] for each in ran.json["objects"]}
    assert texts["null_default"] == "CREATE MACRO null_default (a := NULL) AS (a);"
    for each in ran.json["objects"]:
        assert all(finding["text"] for finding in each["findings"] if each["action"] == "leave")
        assert all(finding["text"].startswith("CREATE ") for finding in each["findings"] if each["action"] == "leave")
    beside = {(each["code"], each["subject"]): each["text"] for each in ran.json["catalog"]}
    assert beside["sequence", "ids"].startswith("CREATE SEQUENCE ids")
    assert beside["user-type", "mood"] == """CREATE TYPE "main"."mood" AS ENUM('sad', 'ok', 'happy');"""
    assert ask(f"ATTACH 'ducklake:{lake}' AS l", ["SELECT fine(1), null_text()", "FROM reads"], "l") == [
        "[(2, 'NULL')]",
        "[(1, 2)]",
    ]


@pytest.mark.slow
def test_running_again_does_nothing_and_replaces_nothing(tmp_path: Path) -> None:
    tables = "CREATE TABLE t AS SELECT 1 AS i;\nCREATE SCHEMA s;\n"
    source = made(tmp_path / "app.duckdb", tables + "CREATE VIEW v AS SELECT i FROM t;\nCREATE MACRO m(a := 1) AS a")
    lake = tmp_path / "l.ducklake"
    assert migrated(source, lake).code == 0
    snapshots = lake_rows(lake, "SELECT count(*) FROM ducklake_snapshot")
    again = migrated(source, lake)
    assert again.code == 0 and {action for action, _ in objects(again.json).values()} == {"nothing"}
    assert lake_rows(lake, "SELECT count(*) FROM ducklake_snapshot") == snapshots
    changed = ["CREATE OR REPLACE VIEW lake.v AS SELECT 2 AS i", "CREATE OR REPLACE MACRO lake.m(a := 2) AS a"]
    assert use(str(lake), changed) == ["", ""]
    third = migrated(source, lake)
    assert third.code == 0
    assert objects(third.json)["view v"] == ("leave", ["object-exists"])
    assert objects(third.json)["macro m"] == ("leave", ["object-exists"])
    assert ask(f"ATTACH 'ducklake:{lake}' AS l", ["FROM l.v"]) == ["[(2,)]"]


@pytest.mark.slow
def test_a_view_never_takes_the_place_of_a_table_of_the_lake(tmp_path: Path) -> None:
    lake = tmp_path / "l.ducklake"
    assert use(str(lake), ["CREATE TABLE lake.v AS SELECT 5 AS i", "CREATE TABLE lake.base AS SELECT 6 AS j"]) == [
        "",
        "",
    ]
    source = made(
        tmp_path / "app.duckdb",
        "CREATE TABLE base AS SELECT 1 AS i;\nCREATE TABLE mine AS SELECT 1 AS i;\nCREATE VIEW v AS SELECT 1 AS i;\n"
        "CREATE VIEW w AS SELECT i FROM base;\nCREATE VIEW x AS SELECT i FROM mine",
    )
    ran = migrated(source, lake)
    assert ran.code == 3  # the table, as ever
    assert objects(ran.json)["view v"] == ("leave", ["object-exists"])
    assert objects(ran.json)["view w"] == ("leave", ["view-not-carried"])
    assert objects(ran.json)["view x"] == ("create", [])
    assert ask(f"ATTACH 'ducklake:{lake}' AS l", ["FROM l.v", "FROM l.base", "FROM l.x"]) == [
        "[(5,)]",
        "[(6,)]",
        "[(1,)]",
    ]


@pytest.mark.slow
def test_patterns_choose_objects_as_they_choose_tables(tmp_path: Path) -> None:
    sql = (
        "CREATE SCHEMA s;\nCREATE SCHEMA e;\nCREATE TABLE t AS SELECT 1 AS i;\nCREATE TABLE s.u AS SELECT 2 AS i;\n"
        "CREATE VIEW v AS FROM t;\nCREATE VIEW s.w AS FROM s.u;\nCREATE VIEW s.over AS FROM main.t;\n"
        "CREATE MACRO m() AS 1"
    )
    source = made(tmp_path / "app.duckdb", sql)
    found = objects(planned(source, tmp_path / "l.ducklake", "--table", "s.*"))
    assert found == {
        "schema s": ("create", []),
        "view s.over": ("leave", ["view-not-carried"]),
        "view s.w": ("create", []),
    }
    assert objects(planned(source, tmp_path / "l.ducklake", "--table", "m")) == {"macro m": ("create", [])}
    renamed = planned(source, tmp_path / "l.ducklake", "--as", "x.{table}", "--exclude", "s.*")
    assert objects(renamed) == {"macro m": ("leave", ["macro-not-carried"]), "view v": ("leave", ["view-not-carried"])}
    strict = planned(source, tmp_path / "l.ducklake", "--table", "s.*", "--strict")
    assert objects(strict)["view s.over"] == ("blocked", ["view-not-carried"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["duckdb", "sqlite"])
def test_a_file_without_tables(backend: str, tmp_path: Path) -> None:
    source = made(tmp_path / "app.duckdb", "CREATE SCHEMA s;\nCREATE VIEW v AS SELECT 1 AS i;\nCREATE MACRO s.m() AS 2")
    lake = f"{'sqlite:' if backend == 'sqlite' else ''}{tmp_path}/l.{backend}"
    assert migrated(source, lake).code == 0
    attach = f"ATTACH 'ducklake:{lake}' AS l"
    assert ask(attach, ["FROM l.v", "SELECT l.s.m()"], "", backend) == ["[(1,)]", "[(2,)]"]
    assert use(lake, ["CREATE TABLE lake.s.t (i INTEGER)", "INSERT INTO lake.s.t VALUES (1)"]) == ["", ""]


@pytest.mark.slow
def test_case_40_reports_what_a_lake_has_no_place_for(tmp_path: Path) -> None:
    script = SHARED / "cases" / "40_duckdb_file_everything.py"
    if not script.exists():
        pytest.skip("the shared cases are not here")
    said = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=True).stdout
    expected = json.loads(said)["expected"]
    plan = planned(tmp_path / "all.duckdb", tmp_path / "l.ducklake")
    every = [finding for table in plan["tables"] for finding in table["findings"]] + plan["catalog"]
    codes = {each["code"] for each in every}
    assert codes >= {
        "primary-key", "unique", "check", "foreign-key", "generated-column", "sequence", "nextval-default", "index",
        "user-type",
    }  # fmt: skip
    texts = {each["code"]: each["text"] for each in every if each["text"]}
    assert f"START {expected['next_sequence_value']}" in texts["sequence"]
    assert texts["index"] == "CREATE INDEX child_ix ON child(qty);"
    assert "REFERENCES parent(id)" in texts["foreign-key"] and "CHECK((n > 0))" in texts["check"]
    assert "GENERATED ALWAYS AS" in texts["generated-column"]


@pytest.mark.slow
def test_a_macro_with_which_no_lake_could_be_opened_is_found_among_others() -> None:
    def macro(name: str, **more: str) -> ObjectWrite:
        own = TableName((), name)
        definition = Macro((Overload("a", (Parameter("a", **more),)),), (Trial("NULL", (("answer", "INTEGER"),)),))
        return ObjectWrite(own, SourceObject(ObjectKind.MACRO, own, f"the text of {name}", definition))

    objects = [
        macro("a"),
        macro("deadly", type="list"),
        macro("b"),
        macro("c", type="int32"),
        macro("worse", type="map"),
    ]
    fitted = fit_objects([], objects, [Fit.MAKE] * 5, Objects(), {})
    assert [fit for fit, _ in fitted.objects] == [Fit.MAKE, Fit.LEAVE, Fit.MAKE, Fit.MAKE, Fit.LEAVE]
    [said] = fitted.objects[1][1]
    assert said.code is Code.MACRO_NOT_CARRIED and "INTERNAL Error" in said.detail
    assert said.text == "the text of deadly"


def corpus() -> list[str]:
    folder = SHARED / "corpus" / "duckdb"
    known = json.loads((SHARED / "corpus" / "MANIFEST.json").read_text()) if folder.exists() else {}
    return [each["name"] for each in _entries(known) if (each.get("expected") or {}).get("views")]


def _entries(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("format") == "duckdb":
            return [value]
        value = list(value.values())
    return [found for each in value for found in _entries(each)] if isinstance(value, list) else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    # the same zoo is there once more, in a newer format
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "zoo_v64_1_0_0")) for name in corpus()],
)
def test_views_of_the_corpus_answer_as_at_the_source(name: str, tmp_path: Path) -> None:
    packed = SHARED / "corpus" / "duckdb" / name / f"{name}.duckdb.gz"
    source, lake = tmp_path / f"{name}.duckdb", tmp_path / "l.ducklake"
    source.write_bytes(gzip.decompress(packed.read_bytes()))
    ran = migrated(source, lake)
    found = objects(ran.json)
    with duckdb.connect(str(source), read_only=True) as opened:
        views = opened.execute(
            "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal AND NOT temporary ORDER BY ALL"
        ).fetchall()
    queries = [f'SELECT COLUMNS(*)::VARCHAR FROM "{schema}"."{view}" ORDER BY ALL' for schema, view in views]
    there = ask(f"ATTACH '{source}' AS s (READ_ONLY)", queries, "s")
    here = ask(f"ATTACH 'ducklake:{lake}' AS other_name", queries, "other_name")
    for (schema, view), before, after in zip(views, there, here, strict=True):
        action, codes = found[f"view {view if schema == 'main' else f'{schema}.{view}'}"]
        if before.startswith("error"):
            assert (action, codes) == ("leave", ["view-not-carried"])
        elif action == "create" and not set(codes) & {"object-types", "catalog-answers"}:
            assert after == before, view
        else:
            assert codes, view
    assert all(check["ok"] for check in ran.json["checks"])


# the texts alone


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("SELECT app.base.i, app.main.base.e FROM base", "SELECT main.base.i, main.base.e FROM base"),
        ("SELECT 'app.main.base' AS lit FROM app.main.base", "SELECT 'app.main.base' AS lit FROM main.base"),
        ("SELECT app.i FROM base AS app", "SELECT app.i FROM base AS app"),
        ("SELECT app.main.f(i), app.f(i) FROM app.base", "SELECT main.f(i), main.f(i) FROM main.base"),
        ("SELECT i FROM APP.Other.base", "SELECT i FROM Other.base"),
        ("SELECT i FROM elsewhere.main.base", "SELECT i FROM elsewhere.main.base"),
        ("SELECT app.main.base FROM t", "SELECT app.main.base FROM t"),
        ("SELECT CAST(a AS app.main.mood) FROM t", 'SELECT CAST(a AS main."mood") FROM t'),
    ],
)  # fmt: skip
def test_the_catalogs_name_is_taken_out_of_names_alone(text: str, becomes: str) -> None:
    with duckdb.connect() as connection:
        assert parsed(connection, text, "app", frozenset({"main", "other"})).text == becomes


@pytest.mark.parametrize("name", ["main", "memory", "temp", "a b", "x.y", "select"])
def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.duckdb"
    with duckdb.connect(str(path)) as connection:
        [(own,)] = connection.execute("SELECT current_database()").fetchall()
        connection.execute(f'CREATE TABLE t AS SELECT 1 AS i; CREATE VIEW v AS SELECT i FROM "{own}".main.t')
    [view] = read_objects(file_at(str(path), Options())).objects
    assert isinstance(view.definition, View) and view.definition.sql == "SELECT i FROM main.t"


def test_a_schema_called_like_the_catalog_stays() -> None:
    with duckdb.connect() as connection:
        text = "SELECT i FROM app.base"
        assert parsed(connection, text, "app", frozenset({"main", "app"})).text == text


def test_what_duckdb_cannot_take_apart_is_said() -> None:
    with duckdb.connect() as connection, pytest.raises(Unparsable):
        parsed(connection, "SELECT 1; SELECT 2", "app", frozenset())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("CREATE VIEW v AS SELECT 1;", ((), "SELECT 1")),
        ("CREATE VIEW s.v (a, b) AS SELECT 1, 2;", (("a", "b"), "SELECT 1, 2")),
        ('CREATE VIEW "a AS b"."v "" (x)" ("c, d", "e ""f") AS SELECT 1 AS x;', (("c, d", 'e "f'), "SELECT 1 AS x")),
    ],
)
def test_a_views_definition_is_taken_apart(text: str, parts: object) -> None:
    assert view_parts(text) == parts


def test_what_is_needed_comes_first_even_in_a_circle() -> None:
    def one(name: str, *needs: str) -> SourceObject:
        return SourceObject(ObjectKind.VIEW, TableName((), name), needs=frozenset(needs))

    found = in_order([one("a", "b"), one("b", "c"), one("c"), one("x", "y"), one("y", "x")])
    assert [str(each.name) for each in found] == ["c", "b", "a", "y", "x"]


def test_what_lies_beside_tables_never_blocks() -> None:
    beside = (Code.VIEW_NOT_CARRIED, Code.MACRO_NOT_CARRIED, Code.OBJECT_EXISTS, Code.SEQUENCE, Code.INDEX)
    assert {each.severity.value for each in beside} == {"loss"}
