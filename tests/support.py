"""What tests share: the committed fixture tables, and a run of the real command over them."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tests.judge import Subject, Version

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "fixtures" / "iceberg"
SHARED = Path(os.environ.get("DUCKLAKE_BRIDGE_SHARED", ROOT.parent / "shared"))


@dataclass(frozen=True)
class Case:
    """A committed Iceberg table with the rows of each of its snapshots."""

    kind: str
    facts: Mapping[str, Any]

    @property
    def home(self) -> Path:
        return FIXTURES / self.kind

    @property
    def metadata(self) -> Path:
        return self.home / str(self.facts["metadata"])

    @property
    def maps(self) -> list[str]:
        """--map-prefix options from the stored paths to where the fixture lies."""
        return [part for old, new in self.facts["map_prefix"] for part in ("--map-prefix", f"{old}={self.home / new}")]

    def rows(self, path: str) -> pa.Table:
        with pa.OSFile(str(self.home / path), "rb") as source:
            return pa.ipc.open_file(source).read_all()


def case(kind: str) -> Case:
    """One fixture by its name."""
    return Case(kind, json.loads((FIXTURES / kind / "case.json").read_text()))


def kinds() -> list[str]:
    """All fixtures."""
    return sorted(path.parent.name for path in FIXTURES.glob("*/case.json"))


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def codes(self) -> dict[str, list[str]]:
        """Finding codes of all tables by severity."""
        found: dict[str, list[str]] = {"note": [], "loss": [], "blocked": []}
        for table in self.json["tables"]:
            for finding in table["findings"]:
                found[finding["severity"]].append(finding["code"])
        return found


def run(*arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """The command line, as a user runs it, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "bridge", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def run_here(*arguments: str | Path) -> Ran:
    """The command line in this process, which takes a tenth of a small command's time: for all that needs no process of
    its own, which an environment, a thread, a JVM, a lock or a signal does."""
    from bridge.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    before, handlers = sys.argv, {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    sys.argv = ["ducklake-bridge", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert isinstance(code, int)
    return Ran(code, out.getvalue(), err.getvalue())


def migrate_case(found: Case, lake: str, *options: str, how: Callable[..., Ran] = run_here) -> Ran:
    """Migrate a fixture into `ducklake:LAKE` as main.t."""
    named = ("--as", "main.t", "--json")
    return how("migrate", f"iceberg:{found.metadata}", f"ducklake:{lake}", *named, *found.maps, *options)


def lake_rows(lake: Path | str, query: str) -> list[tuple[Any, ...]]:
    """Rows of a catalog's own tables: a file, or `postgres:CONNECTION`."""
    if isinstance(lake, str):
        import psycopg

        with psycopg.connect(lake.removeprefix("postgres:")) as catalog:
            return catalog.execute(query.encode()).fetchall()
    if lake.suffix == ".sqlite":
        import sqlite3

        connection = sqlite3.connect(lake)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
    with duckdb.connect(str(lake), read_only=True) as opened:
        return opened.execute(query).fetchall()


def commits_of(lake: Path | str) -> dict[str, int]:
    """Lake snapshot by source commit ("" is what changed after the last of them)."""
    found: dict[str, int] = {}
    for id_, info in lake_rows(lake, "SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes ORDER BY 1"):
        for each in json.loads(info or "{}").get("tables", []):
            found[each["commit"]] = id_
    return found


def versions(found: Case, lake: Path | str) -> tuple[Version, ...]:
    """What the lake must answer: the rows of every snapshot that it keeps, and the current ones."""
    held = commits_of(lake)
    kept = [each for each in found.facts["snapshots"] if str(each["snapshot_id"]) in held]
    made = []
    schemas = _schema_ids(found)
    for place, each in enumerate(kept):
        later = [other["became_current_ms"] for other in kept[place + 1 :]]
        became = each["became_current_ms"]
        # two snapshots of one millisecond, or a clock that went backwards: there is no instant to ask for
        time = _EPOCH + timedelta(milliseconds=became) if all(became < other for other in later) else None
        other = place > 0 and schemas.get(each["snapshot_id"]) != schemas.get(kept[place - 1]["snapshot_id"])
        made.append(Version(held[str(each["snapshot_id"])], time, found.rows(each["rows"]), other))
    if held.get("", -1) == max(held.values()):
        made.append(Version(held[""], None, found.rows(found.facts["current"]), True))
    return tuple(made)


def _schema_ids(found: Case) -> dict[int, int | None]:
    """Schema id by snapshot id, from the fixture's metadata."""
    content = found.metadata.read_bytes()
    stored = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    return {each["snapshot-id"]: each.get("schema-id") for each in stored.get("snapshots") or ()}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def subject(found: Case, lake: Path | str, name: str = "t") -> Subject:
    """The fixture as the judge takes it."""
    return Subject(("main", name), versions(found, lake))


def tree_hash(root: Path) -> str:
    """A digest of every file below a directory: names and contents."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@contextmanager
def opened(lake: Path, data_path: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB on a lake as its current catalog: read-only, or writing its files under `data_path`."""
    from converters.ducklake.extensions import connect

    sqlite = lake.suffix == ".sqlite"
    options = "READ_ONLY"
    if data_path is not None:
        options = f"DATA_PATH '{data_path}/', OVERRIDE_DATA_PATH true, DATA_INLINING_ROW_LIMIT 0"
    connection = connect("ducklake", *(["sqlite_scanner"] if sqlite else []))
    try:
        connection.execute(f"ATTACH 'ducklake:{'sqlite:' if sqlite else ''}{lake}' AS lake ({options})")
        connection.execute("USE lake")
        yield connection
        connection.execute("USE memory")
        connection.execute("DETACH lake")
    finally:
        connection.close()


USE = """
import json, os, sys
from converters.ducklake.extensions import connect, needed
attach, options, statements = json.loads(sys.stdin.read())
backend, _, path = attach.partition(":")
if backend not in ("sqlite", "postgres"):
    backend, path = "duckdb", attach
if not options and backend != "postgres" and not os.path.exists(path):
    options = f"DATA_PATH '{path}.files/'"
lake = connect(*needed(backend))
lake.execute(f"ATTACH 'ducklake:{attach}' AS lake" + (f" ({options})" if options else ""))
said = []
for statement in statements:
    try:
        lake.execute(statement)
        said.append("")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}".strip().replace(chr(10), " "))
print(json.dumps(said))
"""


def use(attach: str, statements: Sequence[str], options: str = "") -> list[str]:
    """Run statements in DuckDB on a lake, in a process of its own; the error of each, empty when it went well."""
    ran = subprocess.run(
        [sys.executable, "-c", USE],
        input=json.dumps([attach, options, list(statements)]),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found: list[str] = json.loads(ran.stdout)
    return found
