"""PostgreSQL lakes under other writers, lost connections, stopped servers and killed runs; and secrets in no output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import bridge
from bridge.app import _plan, open_ends
from bridge.errors import Overtaken
from bridge.execution.executor import execute
from bridge.ports import RowEngine, Silent
from converters.ducklake.catalog import postgres
from converters.ducklake.catalog import session as sessions
from converters.ducklake.catalog.session import Session, parse_place
from tests.judge import Subject, Version, judge
from tests.server import Server, cutting
from tests.support import ROOT, Case, case, lake_rows, migrate_case, run, run_here, subject, use
from tests.test_ownership import copied
from tests.test_postgres import Spot, migrated, options, running, spot
from tests.test_runs import KILLED, metadata_files

__all__ = ["running", "spot"]  # fixtures
pytestmark = pytest.mark.postgres

INSERTS = """
import sys, time
from pathlib import Path
from converters.ducklake.extensions import connect
attach, stop = sys.argv[1:]
lake = connect("ducklake", "postgres_scanner")
lake.execute(f"ATTACH 'ducklake:{attach}' AS lake (DATA_INLINING_ROW_LIMIT 0)")
done = 0
print("going", flush=True)
while not Path(stop).exists():
    lake.execute(f"INSERT INTO lake.mine VALUES ({done})")
    done += 1
print(done, flush=True)
"""
UNIQUE = (
    "SELECT count(*) - count(DISTINCT data_file_id) FROM ducklake_data_file",
    "SELECT count(*) - count(DISTINCT snapshot_id) FROM ducklake_snapshot",
    "SELECT count(*) - count(DISTINCT snapshot_time) FROM ducklake_snapshot",
    "SELECT count(*) - count(DISTINCT table_id) FROM ducklake_table",
    "SELECT count(*) - count(DISTINCT (data_file_id, column_id)) FROM ducklake_file_column_stats",
)


def mine(spot: Spot) -> None:
    """A lake with a table of its own."""
    assert use(spot.attach, ["CREATE TABLE lake.mine (id BIGINT)"], f"DATA_PATH '{spot.data_path}/'") == [""]


def tables(spot: Spot) -> list[tuple[object, ...]]:
    """Every table of the database with its size in rows."""
    named = lake_rows(spot.attach, "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND "
                      "relnamespace = 'public'::regnamespace ORDER BY 1")  # fmt: skip
    return [(name, *lake_rows(spot.attach, f'SELECT count(*) FROM "{name}"')[0]) for (name,) in named]


@pytest.mark.slow
def test_two_migrations_and_a_writing_session_at_once(spot: Spot, tmp_path: Path) -> None:
    mine(spot)
    stop = tmp_path / "stop"
    writer = subprocess.Popen(
        [sys.executable, "-c", INSERTS, spot.attach, str(stop)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert writer.stdout is not None and writer.stdout.readline() == "going\n"
    jobs = {"a": case("many_snapshots"), "b": case("evo_struct")}
    with ThreadPoolExecutor(2) as pool:
        named = [(found, spot.attach, "--as", f"main.{name}") for name, found in jobs.items()]
        ran = list(pool.map(lambda each: migrate_case(*each, how=run), named))
    stop.touch()
    out, err = writer.communicate(timeout=120)
    assert writer.returncode == 0, err
    assert [each.code for each in ran] == [0, 0], ran[0].out + ran[1].out
    for query in UNIQUE:
        assert lake_rows(spot.attach, query) == [(0,)]
    inserted = pa.table({"id": pa.array(range(int(out)), pa.int64())})
    subjects = [Subject(("main", "mine"), (Version(None, None, inserted),))]
    for name, found in jobs.items():
        made = [replace(each, time=None) for each in named_subject(found, spot, name).versions]
        subjects.append(Subject(("main", name), tuple(made)))
    assert judge(spot.attach, subjects, scratch=tmp_path / "judge", change=False, filters=2, timeout=500) == []


def named_subject(found: Case, spot: Spot, name: str) -> Subject:
    """What one of several tables must answer: the snapshots that say they are its own."""
    held: dict[str, int] = {}
    for id_, info in lake_rows(spot.attach, "SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes"):
        for each in json.loads(info or "{}").get("tables", []):
            if each["table"] == name:
                held[each["commit"]] = id_
    kept = [each for each in found.facts["snapshots"] if str(each["snapshot_id"]) in held]
    assert len(kept) == len(found.facts["snapshots"])
    made = [Version(held[str(each["snapshot_id"])], None, found.rows(each["rows"]), True) for each in kept]
    made = made[:: -max(1, len(made) // 4)][::-1]  # what is asked of the lake is whether both are whole, not each state
    return Subject(("main", name), tuple(made))


@pytest.mark.slow
def test_two_migrations_that_both_create_the_lake(spot: Spot, tmp_path: Path) -> None:
    jobs = {"a": case("many_snapshots"), "b": case("evo_struct")}

    def go(job: tuple[str, Case]) -> int:
        ran = migrate_case(job[1], spot.attach, "--as", f"main.{job[0]}", "--data-path", spot.data_path, how=run)
        assert ran.code in (0, 5) and "Traceback" not in ran.err
        return ran.code

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(go, jobs.items()))
    assert 0 in codes
    assert [go(job) for job in jobs.items()] == [0, 0]
    for query in UNIQUE:
        assert lake_rows(spot.attach, query) == [(0,)]
    subjects = [named_subject(found, spot, name) for name, found in jobs.items()]
    assert judge(spot.attach, subjects, scratch=tmp_path / "judge", change=False, filters=2, timeout=500) == []


def no_engine() -> RowEngine:
    raise AssertionError("nothing is to be rewritten")


def test_a_lake_that_appears_while_another_is_made_is_a_conflict(spot: Spot) -> None:
    found = case("v1_basic")
    ends = open_ends(f"iceberg:{found.metadata}", spot.locator, options(found, spot))
    made, _ = _plan(ends, options(found, spot), Silent())
    migrated("evo_struct", spot, verify="none")
    with pytest.raises(bridge.Conflict, match="created meanwhile"):
        execute(made, ends.target, no_engine, Silent())
    assert [each.name.name for each in bridge.inspect(spot.locator).lake_tables] == ["t"]


def test_a_table_dropped_between_plan_and_commit(spot: Spot) -> None:
    found = case("v2_cow")
    older = metadata_files(found)[-2]
    bridge.migrate(f"iceberg:{older}", spot.locator, options(found, spot, verify="none"))
    ends = open_ends(f"iceberg:{found.metadata}", spot.locator, options(found, spot))
    made, _ = _plan(ends, options(found, spot), Silent())
    assert use(spot.attach, ["DROP TABLE lake.t"]) == [""]
    before = tables(spot)
    with pytest.raises(bridge.Conflict, match="is gone from"):
        execute(made, ends.target, no_engine, Silent())
    assert tables(spot) == before


def test_a_locked_catalog_is_given_up_in_bounded_time(spot: Spot, monkeypatch: pytest.MonkeyPatch) -> None:
    mine(spot)
    monkeypatch.setattr(postgres, "_LOCK_SECONDS", 1)
    monkeypatch.setattr(sessions, "_TRIES", 2)
    with psycopg.connect(spot.attach.removeprefix("postgres:")) as other:
        other.execute("INSERT INTO ducklake_snapshot VALUES (1000, now(), 1, 1, 1)")
        start = time.monotonic()
        with pytest.raises(bridge.Conflict, match="locked by another transaction"):
            migrated("v1_basic", spot)
        assert time.monotonic() - start < 20
        other.rollback()
    assert migrated("v1_basic", spot).exit_code == 0


def test_what_another_writer_commits_while_we_wait_is_seen(spot: Spot) -> None:
    """The lock comes before the first look at the catalog, so that no snapshot id is taken twice."""
    mine(spot)
    with psycopg.connect(spot.attach.removeprefix("postgres:")) as other, ThreadPoolExecutor(1) as pool:
        other.execute("INSERT INTO ducklake_snapshot SELECT snapshot_id + 1, snapshot_time + INTERVAL '1 us', "
                      "schema_version, next_catalog_id, next_file_id + 5 FROM ducklake_snapshot "
                      "ORDER BY snapshot_id DESC LIMIT 1")  # fmt: skip
        waiting = pool.submit(migrated, "v1_basic", spot, verify="none")
        for _ in range(100):
            if other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (1,):
                break
            time.sleep(0.1)
        assert not waiting.done()
        other.commit()
        assert waiting.result(30).exit_code == 0
    assert lake_rows(spot.attach, "SELECT min(data_file_id) FROM ducklake_data_file")[0][0] >= 5


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True])
def test_a_server_that_stops_in_the_middle(
    existing: bool, running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spot = Spot(running, running.database(), f"{tmp_path}/files")
    if existing:
        mine(spot)
    before = tables(spot)
    append = Session.append
    for fails_at in (0, 1, 5):
        count = 0

        def crashing(self: Session, name: str, rows: pa.Table, fails_at: int = fails_at) -> None:
            nonlocal count
            if count == fails_at:
                running.crash()
            count += 1
            append(self, name, rows)

        monkeypatch.setattr(Session, "append", crashing)
        try:
            with pytest.raises(bridge.Unreachable):
                migrated("evo_struct", spot)
            with pytest.raises(bridge.Unreachable, match="socket"):
                bridge.inspect(spot.locator)
        finally:
            monkeypatch.setattr(Session, "append", append)
            running.start()
        assert tables(spot) == before
    assert migrated("evo_struct", spot).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("existing", [False, True])
def test_kill_9_at_any_insert_then_run_again(existing: bool, spot: Spot, tmp_path: Path) -> None:
    found = case("evo_rename")
    if existing:
        mine(spot)
    before = tables(spot)
    command = ["migrate", f"iceberg:{found.metadata}", spot.locator, "--as", "main.t", "--data-path", spot.data_path]
    for point in (0, 4) if existing else (1, 9):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(point), *command, *found.maps],
            capture_output=True,
            check=False,
            cwd=ROOT,
        )
        assert killed.returncode == -signal.SIGKILL
        assert tables(spot) == before
    assert run_here(*command, *found.maps).code == 0
    expected = subject(found, spot.attach)
    expected = replace(expected, versions=tuple(replace(each, time=None) for each in expected.versions))
    assert judge(spot.attach, [expected], scratch=tmp_path / "judge", change=False, filters=4) == []


@pytest.mark.slow
@pytest.mark.exhaustive  # the test above kills at the inserts themselves
def test_kill_9_at_any_time_then_run_again(spot: Spot) -> None:
    found = case("many_snapshots")
    command = ["migrate", f"iceberg:{found.metadata}", spot.locator, "--as", "main.t", "--data-path", spot.data_path]
    for wait in (0.6, 0.9, 1.0, 1.1, 1.2, 1.4):
        process = subprocess.Popen(
            [sys.executable, "-m", "bridge", *command, "--verify", "none", *found.maps],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        time.sleep(wait)
        process.kill()
        process.wait()
        time.sleep(0.2)  # the server notices
        held = lake_rows(spot.attach, "SELECT to_regclass('ducklake_metadata') IS NOT NULL")
        if held == [(True,)]:
            break
    assert run_here(*command, *found.maps).code == 0
    count = "SELECT count(*) FROM ducklake_snapshot"
    assert lake_rows(spot.attach, count) == [(len(found.facts["snapshots"]) + 1,)]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("existing", [False, True])
def test_a_connection_lost_while_committing(existing: bool, after: bool, spot: Spot, tmp_path: Path) -> None:
    found = case("v1_basic")
    if existing:
        mine(spot)
    with cutting(spot.server.socket, tmp_path / "s", after) as socket_:
        through = f"ducklake:postgres:dbname={spot.database} host={socket_} user=postgres"
        with pytest.raises(bridge.Unreachable, match="whether it happened is unknown") as lost:
            bridge.migrate(f"iceberg:{found.metadata}", through, options(found, spot))
        assert "run it again" in lost.value.hint
        again = bridge.migrate(f"iceberg:{found.metadata}", through, options(found, spot))
    assert [each.action.value for each in again.plan.tables] == ["nothing" if after else "create"]
    assert lake_rows(spot.attach, "SELECT count(*) FROM ducklake_table WHERE table_name = 't'") == [(1,)]


def test_a_server_that_does_not_answer(running: Server, spot: Spot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    os.kill(running.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(bridge.Unreachable, match="timeout"):
            migrated("v1_basic", spot)
        assert time.monotonic() - start < 15
    finally:
        os.kill(running.pid, signal.SIGCONT)


def test_without_its_packages_the_extra_is_named(spot: Spot) -> None:
    found = case("v1_basic")
    missing = "import sys\nsys.modules[sys.argv.pop(1)] = None\nfrom bridge.cli.main import main\nmain()"
    command = ["plan", f"iceberg:{found.metadata}", spot.locator, "--data-path", spot.data_path, *found.maps]
    ran = subprocess.run(
        [sys.executable, "-c", missing, "psycopg", *command], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ran.returncode == 2 and "ducklake-bridge[postgres]" in ran.stderr
    unknown = "from converters.ducklake import extensions\nextensions._BACKENDS = {'postgres': ('no_such_thing',)}\n"
    ran = subprocess.run(
        [sys.executable, "-c", unknown + "from bridge.cli.main import main\nmain()", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ran.returncode == 2 and "ducklake-bridge[postgres]" in ran.stderr


STATES: dict[type[bridge.BridgeError], str] = {
    bridge.Conflict: "40001 40P01 23505 55P03",
    Overtaken: "42P07 42710",
    bridge.Blocked: "42P01 42703",
    bridge.Unreachable: "57P01 08006 53100 57014 42501 25006 3D000 28P01",
    bridge.BridgeError: "22P05",
}
AGAIN = {"40001", "40P01", "23505", "55P03"}


@pytest.mark.parametrize(
    ("kind", "state"), [(kind, each) for kind, states in STATES.items() for each in states.split()]
)
def test_errors_are_told_apart_by_sqlstate(kind: type[bridge.BridgeError], state: str) -> None:
    place = parse_place("postgres:dbname=x password=sekret")
    made = postgres.translated(psycopg.errors.lookup(state)("told sekret\nmore"), place)
    assert type(made) is kind and made.retryable == (state in AGAIN)
    assert "told ***" in made.message and "more" not in made.message


def test_a_nul_byte_in_the_definition_is_a_finding(spot: Spot, tmp_path: Path) -> None:
    found = copied("v1_basic", tmp_path / "source")
    stored = json.loads(found.metadata.read_text())
    stored["properties"]["owner"] = "some\0body"
    found.metadata.write_text(json.dumps(stored))
    report = bridge.migrate(f"iceberg:{found.metadata}", spot.locator, options(found, spot))
    assert report.exit_code == 3 and "NUL byte" in report.plan.tables[0].blockers[0].detail
    assert tables(spot) == []


# -- secrets

SECRET = "s3 kr'et\\@/:%41&x"


@pytest.fixture
def locked(spot: Spot) -> Spot:
    """A database whose owner needs a password."""
    home = Path(spot.server.home / "data" / "pg_hba.conf")
    rule = "local all keeper scram-sha-256\n"
    if rule not in home.read_text():
        home.write_text(rule + home.read_text())
        spot.server.run("SELECT pg_reload_conf()")
        escaped = SECRET.replace("'", "''")
        spot.server.run(f"CREATE ROLE keeper LOGIN PASSWORD '{escaped}'")
    spot.server.run(f"ALTER DATABASE {spot.database} OWNER TO keeper")
    return spot


def said(ran: object) -> str:
    return f"{ran.out}{ran.err}"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_password_is_in_nothing_that_is_printed(locked: Spot, tmp_path: Path) -> None:
    """Whichever way the connection is spelled, which alternates."""
    from urllib.parse import quote

    found = case("evo_struct")
    escaped = SECRET.replace("\\", "\\\\").replace("'", "\\'")
    pairs = f"dbname={locked.database} host={locked.server.socket} user=keeper password='{escaped}'"
    uri = f"postgresql://keeper:{quote(SECRET, safe='')}@/{locked.database}?host={locked.server.socket}"
    attach, other, report = f"postgres:{pairs}", f"postgres:{uri}", tmp_path / "report.html"
    parts = ("s3 kr", "kr'et", "kr\\'et", "et\\", quote(SECRET, safe="")[:8], "%41&x", "%2541")
    shared = ("--data-path", locked.data_path)
    commands = [
        migrate_case(found, attach, *shared, "--report", str(report), "--verify", "rows", how=run),
        migrate_case(found, other, *shared, how=run),
        run_here("inspect", f"ducklake:{attach}"),
        run_here("inspect", f"ducklake:{other}", "--json"),
        run_here("verify", f"iceberg:{found.metadata}", f"ducklake:{attach}", "--as", "main.t", *found.maps),
        run_here("adopt", f"ducklake:{other}", "--table", "t"),
        run_here("release", f"ducklake:{attach}", "--table", "t"),
        run_here("release", f"ducklake:{other}", "--table", "t"),
        run_here("inspect", f"ducklake:{attach}", "--metadata-schema", "nothing"),
        run_here("inspect", attach),
        run_here("inspect", other),
        run_here("plan", f"iceberg:{found.metadata}", "ducklake:postgres:dbname=x", "host=y", f"password={SECRET}"),
        run_here("verify", f"ducklake:{attach}", f"ducklake:{other}"),
        run_here("inspect", f"ducklake:{attach.replace('host=', 'hosst=')}"),
        run_here("inspect", f"ducklake:{other.replace('host=', 'hosst=')}"),
        *(
            run("inspect", f"ducklake:{each.replace('host=', 'host=/nothing')}", env={"DUCKLAKE_BRIDGE_DEBUG": "1"})
            for each in (attach, other)
        ),
        run_here("inspect", f"ducklake:{attach} keepalives='"),
        run_here("inspect", f"ducklake:{other} keepalives='"),
    ]
    assert [each.code for each in commands[:7]] == [0] * 7, "".join(map(said, commands[:7]))
    assert all(each.code in (2, 5, 6) for each in commands[7:]), [each.code for each in commands]
    for text in (*map(said, commands), report.read_text()):
        assert not [part for part in parts if part in text], text
    everything = json.dumps(lake_rows(locked.attach, "SELECT * FROM ducklake_metadata"))
    assert not [part for part in parts if part in everything]
    wrong = run_here(
        "inspect", f"ducklake:postgres:dbname=x host={locked.server.socket} user=keeper password=dont_tell"
    )
    assert wrong.code == 6 and "dont_tell" not in said(wrong) and "password authentication failed" in said(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["PGPASSWORD", "PGPASSFILE", "PGSERVICE"])
def test_passwords_come_by_the_usual_ways(way: str, locked: Spot, tmp_path: Path) -> None:
    found, file = case("v1_basic"), tmp_path / "file"
    connection = f"dbname={locked.database} host={locked.server.socket} user=keeper"
    env = {"PGPASSWORD": SECRET}
    if way == "PGPASSFILE":
        escaped = SECRET.replace("\\", "\\\\").replace(":", "\\:")
        file.write_text(f"*:*:{locked.database}:keeper:{escaped}\n")
        file.chmod(0o600)
        env = {"PGPASSFILE": str(file)}
    if way == "PGSERVICE":
        file.write_text(
            f"[lake]\nhost={locked.server.socket}\nuser=keeper\ndbname={locked.database}\npassword={SECRET}\n"
        )
        connection, env = "service=lake", {"PGSERVICEFILE": str(file)}
    command = ["migrate", f"iceberg:{found.metadata}", f"ducklake:postgres:{connection}", "--as", "main.t"]
    assert run_here("inspect", f"ducklake:postgres:{connection}").code == 6
    ran = run(*command, "--data-path", locked.data_path, *found.maps, env=env)
    assert ran.code == 0, said(ran)
    assert "checks hold" in ran.out and "WRONG" not in ran.out
