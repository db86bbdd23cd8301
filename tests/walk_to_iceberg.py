"""A lake that DuckDB changes, mirrored into Iceberg tables, as a course of a walk."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import sqlalchemy as sa

import bridge
from bridge.mirroring.pair import Pair
from bridge.mirroring.rounds import catch_up
from bridge.ports import Silent
from tests.iceberg_judge import Published, judge_iceberg
from tests.lake_steps import KINDS, Statements
from tests.refusals import sqlite_held, table_locked, versions_taken
from tests.walk_plan import Step
from tests.walk_reader import digest
from tests.walk_writer import UNREADABLE
from tests.walks import process

__all__ = ["ToIceberg"]

_ENGINES = ("pyiceberg", "duckdb")
_SAMPLE = 3
_EXPIRED = (
    "CALL ducklake_expire_snapshots('lake', older_than => now())",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
)
Commit = tuple[str, int]
"""A table's uuid and a snapshot of the lake."""


class ToIceberg:
    """`attach` is the lake; `uri` the database of an SQL catalog, "" for a warehouse directory."""

    KINDS = KINDS

    def __init__(self, folder: Path, seed: int, attach: str, uri: str = "") -> None:
        self._folder, self._dice, self._details = folder, random.Random(seed), random.Random(seed)
        self._drop = self._dice.random() < 0.5
        self._warehouse, self._uri = folder / "wh", uri
        self._statements = Statements(self._details)
        self._writer = process(
            *("-m", "tests.walk_writer", attach, f"DATA_PATH '{folder}/files/'"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._settings = (("type", "sql"), ("uri", uri), ("warehouse", str(self._warehouse))) if uri else ()
        self.source = f"ducklake:{attach}"
        self.target = "iceberg-catalog:c" if uri else f"iceberg:{self._warehouse}"
        self.options = bridge.Options(target_options=self._settings)
        self._truth: dict[Commit, pa.Table] = {}
        self._digests: dict[Commit, str] = {}
        self._judged: dict[str, set[Commit]] = {}
        self._lost: set[tuple[str, str]] = set()
        """(name, uuid) of tables that stayed when the lake's went elsewhere, and whose files it then removed."""
        self.done: list[str] = []
        assert self._run(self._statements.begin())

    def close(self) -> None:
        """End the source's process."""
        with self._writer:
            self._writer.kill()

    def _ask(self, *asked: Any) -> Any:
        assert self._writer.stdin is not None and self._writer.stdout is not None
        self._writer.stdin.write(json.dumps(asked) + "\n")
        self._writer.stdin.flush()
        return json.loads(self._writer.stdout.readline())

    def do(self, step: Step) -> None:
        """An operation of DuckDB's; where it makes no sense now, or DuckDB refuses it, rows are inserted."""
        self._details.seed(step.number)
        if any(self._run(self._statements.do(kind)) for kind in (step.kind, "insert")):
            return
        # where rows go into the catalog again, DuckDB may put them into a table that has not the columns added since
        self._run(["CALL lake.set_option('data_inlining_row_limit', 0)"])
        assert self._run(self._statements.do("insert")), self.done[-5:]

    def _run(self, statements: Iterable[str]) -> bool:
        """Whether DuckDB took any of it."""
        taken = False
        for group in _groups(statements):
            said = self._ask("run", group)
            self.done.append(f"{'; '.join(group)}  -- {said[:400]}")
            assert not any(each in said.lower() for each in ("lock", "conflict")), (group, said)
            if not said:
                taken = True
                self._note()
        return taken

    def _note(self) -> None:
        """What the tables are now: DuckDB may answer otherwise once it has maintained them (a flush gives a data file
        that a rewrite has ended a second delete file, and its rows come twice)."""
        folder = tempfile.mkdtemp(dir=self._folder)
        for number, (uuid, snapshot) in enumerate(self._ask("now", folder)):
            place = Path(folder, f"{number}.arrow")
            if (uuid, snapshot) not in self._truth and place.exists():
                self._truth[uuid, snapshot] = _loaded(str(place))

    def refusing(self) -> AbstractContextManager[None]:
        """Somebody else writes to the catalog and does not end, or the next version of each table is no file."""
        if self._uri.startswith("postgresql"):
            place = sa.make_url(self._uri)
            return table_locked(
                f"dbname={place.database} host={place.query['host']} user={place.username}", "iceberg_tables", True
            )
        if self._uri:
            return sqlite_held(self._uri.removeprefix("sqlite:///"), readable=True)
        return versions_taken([each.parent for each in self._warehouse.rglob("version-hint.text")])

    def arguments(self) -> list[str]:
        """The judge verifies."""
        settings = [part for key, value in self._settings for part in ("--target-option", f"{key}={value}")]
        return [*settings, "--verify", "none", "--on-drop", "drop" if self._drop else "keep"]

    def reader(self) -> list[str] | None:
        """PyIceberg, by the catalog or by the hints."""
        return [
            "-m",
            "tests.walk_reader",
            "iceberg",
            json.dumps(dict(self._settings) or {"warehouse": str(self._warehouse)}),
        ]

    def _tables(self) -> dict[str, tuple[Path, dict[str, Any]]]:
        """Metadata by what the reader calls a table."""
        if self._uri:
            engine = sa.create_engine(self._uri)
            query = sa.text("SELECT table_namespace || '.' || table_name, metadata_location FROM iceberg_tables")
            with engine.connect() as catalog:
                found = {name: Path(place.removeprefix("file://")) for name, place in catalog.execute(query)}
            engine.dispose()
        else:
            hints = self._warehouse.rglob("version-hint.text")
            found = {str(each.parent.parent): each.parent / f"v{each.read_text()}.metadata.json" for each in hints}
        return {name: (path, json.loads(path.read_text())) for name, path in found.items()}

    def _learn(self, commits: Sequence[Commit]) -> list[str]:
        """Ask the lake what it was, where that was not noted then; what it has forgotten it was asked before."""
        asked = sorted({each for each in commits if each not in self._truth})
        folder = tempfile.mkdtemp(dir=self._folder)
        said = self._ask("rows", folder, asked) if asked else []
        for number, (each, error) in enumerate(zip(asked, said, strict=True)):
            if not error:
                self._truth[each] = _loaded(f"{folder}/{number}.arrow")
        for each in {*commits} & self._truth.keys() - self._digests.keys():
            self._digests[each] = digest(self._truth[each])
        told = zip(asked, said, strict=True)
        return [f"{each}: {error}" for each, error in told if error and UNREADABLE not in error]

    def check(self, alone: bool) -> list[str]:
        """Tables are those of the lake, each of its commits is one snapshot, and new ones hold what it held."""
        subjects, said = [], []
        tables = self._tables()
        live = dict(self._ask("live"))
        here = {
            str(meta["table-uuid"]): name
            for name, (_, meta) in tables.items()
            if _bookmark(meta)["source"]["name"] == live.get(meta["table-uuid"])
        }
        if here.keys() != live.keys() or (self._drop and len(tables) != len(live)):
            said.append(f"the lake has {live}, published are {[*tables]}")
        for name, (path, meta) in tables.items():
            kept = _kept(meta)
            commits = [commit for _, commit in kept]
            if commits != sorted(set(commits)):
                said.append(f"{name}: snapshots stand for {commits}")
            judged = self._judged.setdefault(name, set())
            uuid = str(meta["table-uuid"])
            new = [each for each in kept if (uuid, each[1]) not in judged]
            old = [each for each in kept if (uuid, each[1]) in judged]
            judged |= {(uuid, commit) for commit in commits}
            chosen = new + self._dice.sample(old, min(_SAMPLE, len(old)))
            newest = int(_bookmark(meta)["commit"])
            if (name, uuid) in self._lost:
                continue
            said += self._learn([(uuid, commit) for _, commit in chosen] + [(uuid, newest)])
            subjects.append(self._published(name, path, uuid, chosen, newest, bool(new)))
        said = said or self._judge(subjects)
        if alone and not said and self._dice.random() < 0.2:  # everything is published
            said += [each for each in (self._ask("run", [statement]) for statement in _EXPIRED) if each]
            stays = {name: str(meta["table-uuid"]) for name, (_, meta) in tables.items()}
            self._lost |= {each for each in stays.items() if each[0] not in here.values()}
        return said

    def _judge(self, subjects: Sequence[Published]) -> list[str]:
        """Without PyIceberg's own faults: it passes over rows that have a column by default when it filters by that
        (finding default-readers), and takes NULL for less than what a file's narrower integers cannot reach. The rows
        themselves are compared all the same."""
        said = judge_iceberg(subjects, _ENGINES, self._folder / "judge")
        schemas = [each for subject in subjects for each in json.loads(subject.metadata.read_text())["schemas"]]
        fields = [each for schema in schemas for each in schema["fields"]]
        widened = {each["id"] for each in fields if each["type"] == "long"} & {
            each["id"] for each in fields if each["type"] == "int"
        }
        given = {each["name"] for each in fields if "initial-default" in each or each["id"] in widened}
        return [
            each
            for each in said
            if " by pyiceberg: " not in each or not any(f"Reference(name='{name}')" in each for name in given)
        ]

    def _published(
        self, name: str, path: Path, uuid: str, kept: Sequence[tuple[int, int]], newest: int, answers: bool
    ) -> Published:
        versions = [(snapshot, self._truth[uuid, commit]) for snapshot, commit in kept if (uuid, commit) in self._truth]
        now = [(None, self._truth[uuid, newest])] if (uuid, newest) in self._truth else []
        return Published(name, path, (*versions, *now), answers=answers)

    def check_read(self, told: Sequence[dict[str, Any]]) -> list[str]:
        """Every answer is the state that its commit stands for, and none is older than the one before."""
        said: list[str] = []
        last: dict[str, int] = {}
        every = [each for answer in told for each in answer["tables"]]
        asked = [(each["uuid"], int(each["commit"])) for each in every if each.get("commit")]
        self._learn(asked)
        dropped = any("DROP TABLE" in each or "RENAME TO" in each for each in self.done)
        for each in every:
            if "error" in each:
                if each["gone"] and (dropped or each["name"] in {name for name, _ in self._lost}):
                    continue
                said.append(f"{each['name']}: a reader was told {each['error']}")
            elif each["commit"]:
                name, commit = f"{each['name']} {each['uuid']}", int(each["commit"])
                if commit < last.get(name, 0):
                    said.append(f"{name}: a reader saw {commit} after {last[name]}")
                last[name] = commit
                if self._digests.get((each["uuid"], commit), each["rows"]) != each["rows"]:
                    said.append(f"{name}: at commit {commit} a reader saw what was never there")
        return said

    def finish(self) -> list[str]:
        """All snapshots, once what the last check may have expired has left; and of those that a new publication has
        none is missing."""
        on_drop: Any = "drop" if self._drop else "keep"
        last = catch_up(Pair(self.source, self.target, replace(self.options, verify="none"), on_drop=on_drop), Silent())
        assert last.exit_code == 0, last
        subjects, said = [], []
        tables = self._tables()
        for name, (path, meta) in tables.items():
            uuid, newest = str(meta["table-uuid"]), int(_bookmark(meta)["commit"])
            if (name, uuid) not in self._lost:
                subjects.append(self._published(name, path, uuid, _kept(meta), newest, True))
        fresh = self._folder / "fresh"
        report = bridge.migrate(self.source, f"iceberg:{fresh}", bridge.Options(verify="none"))
        if report.exit_code:
            said.append(f"a new publication ended with {report.exit_code}")
        held: dict[str, set[int]] = {}  # one that was renamed may be there twice
        for _, meta in tables.values():
            held.setdefault(meta["table-uuid"], set()).update(commit for _, commit in _kept(meta))
        for hint in fresh.rglob("version-hint.text"):
            meta = json.loads((hint.parent / f"v{hint.read_text()}.metadata.json").read_text())
            here = held.get(meta["table-uuid"], set())
            missing = [commit for commit, changed in _stated(meta) if commit not in here and changed not in here]
            if missing:
                said.append(f"{hint.parent.parent.name}: no snapshot stands for {missing}")
        return said + self._judge(subjects)

    @property
    def judged(self) -> int:
        """Of which the rows were compared."""
        return sum(map(len, self._judged.values()))


def _loaded(path: str) -> pa.Table:
    with pa.OSFile(path, "rb") as source:
        return pa.ipc.open_file(source).read_all()


def _kept(meta: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(snapshot, source commit), in order."""
    return [(each["snapshot-id"], int(each["summary"]["ducklake-bridge.source-commit"])) for each in meta["snapshots"]]


def _stated(meta: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(source commit, the last change that was still known when it was published for the first time)."""
    name = "ducklake-bridge.last-change"
    return [
        (commit, int(each["summary"].get(name, commit)))
        for each, (_, commit) in zip(meta["snapshots"], _kept(meta), strict=True)
    ]


def _bookmark(meta: Mapping[str, Any]) -> Any:
    return json.loads(meta["properties"]["ducklake-bridge.bookmark"])


def _groups(statements: Iterable[str]) -> Iterator[list[str]]:
    """A transaction is one step."""
    group: list[str] = []
    for each in statements:
        group.append(each)
        if group[0] != "BEGIN" or each == "COMMIT":
            yield group
            group = []
