"""Two Iceberg tables that PyIceberg changes, mirrored into a lake, as a course of a walk."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa

import bridge
from tests.lake_versions import wrong_versions
from tests.mirror_steps import KINDS, Life
from tests.refusals import duckdb_held, sqlite_held, table_locked
from tests.support import lake_rows
from tests.walk_plan import Step
from tests.walk_reader import digest

__all__ = ["ToLake"]

_RETURNS = frozenset({"rollback", "switch", "branch", "expire", "again"})
"""Steps after which the source's line is not just longer."""
_SAMPLE = 3
State = tuple[tuple[str, str], int | None, list[pa.Table]]


class ToLake:
    """`attach` is the lake; `uri` the database of the Iceberg catalog."""

    KINDS = KINDS

    def __init__(self, folder: Path, seed: int, attach: str, uri: str = "") -> None:
        self._folder, self._attach, self._dice = folder, attach, random.Random(seed)
        self._details = random.Random()
        self.lives = [Life(folder, self._details, name, uri=uri) for name in ("db.t", "db.u")]
        self.source, self.target = "iceberg-catalog:c", f"ducklake:{attach}"
        self._data = ("data_path", f"{folder}/files") if attach.startswith("postgres:") else None
        self.options = bridge.Options(source_options=self.lives[0].options)
        self._expected: list[State] = []
        self._of: dict[str, list[tuple[int, str, list[pa.Table]]]] = {life.first: [] for life in self.lives}
        self._steps: dict[str, int] = Counter()
        self._digests: dict[int, str] = {}

    def close(self) -> None:
        """End what the source's catalogs hold."""
        for life in self.lives:
            life.catalog.engine.dispose()

    def do(self, step: Step) -> None:
        """One of the tables changes; where the kind makes no sense now, rows are appended."""
        self._details.seed(step.number)
        life = self._details.choice(self.lives)
        before = life.table.metadata_location
        life.do(step.kind)
        if life.table.metadata_location == before:
            life.do("append")

    def refusing(self) -> AbstractContextManager[None]:
        """Somebody else has the lake's file, or writes to its catalog and does not end."""
        backend, _, rest = self._attach.partition(":")
        if backend == "postgres":
            return table_locked(rest, readable=True)
        return sqlite_held(rest, readable=True) if backend == "sqlite" else duckdb_held(self._attach)

    def arguments(self) -> list[str]:
        """The judge verifies."""
        settings = [part for key, value in self.lives[0].options for part in ("--source-option", f"{key}={value}")]
        place = ["--data-path", f"{self._folder}/files"] if self._data else []
        return [*settings, *place, "--verify", "none", "--on-drop", "drop"]

    def reader(self) -> list[str] | None:
        """A DuckDB file has one owner."""
        if not self._attach.startswith(("sqlite:", "postgres:")):
            return None
        return ["-m", "tests.walk_reader", "lake", self._attach]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        backend, _, rest = self._attach.partition(":")
        return lake_rows(self._attach if backend == "postgres" else Path(rest or backend), query)

    def _life(self, table: str) -> Life:
        return next(life for life in self.lives if table.startswith(life.first))

    def _noted(self) -> list[tuple[int, str, str]]:
        query = "SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes ORDER BY 1"
        return [
            (id_, each["commit"], each["table"])
            for id_, info in self._rows(query)
            for each in json.loads(info or "{}").get("tables", [])
        ]

    def check(self, alone: bool) -> list[str]:
        """Each commit once and in order, and the rows of every new snapshot; of old ones some."""
        new, said = self._noted()[len(self._expected) :], []
        old = self._dice.sample(self._expected, min(_SAMPLE, len(self._expected)))
        for life in self.lives:
            had = [commit for _, commit, _ in self._of[life.first] if commit]
            came = [commit for _, commit, table in new if commit and self._life(table) is life]
            said += self._order(life, had, came, alone)
        fresh = [self._remembered(*each) for each in new]
        self._expected += fresh
        now: list[State] = [(_split(life.name), None, [life.now]) for life in self.lives]
        names = "SELECT schema_name || '.' || table_name FROM ducklake_table t JOIN ducklake_schema s "
        names += "ON s.schema_id = t.schema_id WHERE t.end_snapshot IS NULL"
        there = sorted(name for (name,) in self._rows(names))
        if there != sorted(life.name for life in self.lives):
            said.append(f"the lake has {there}")
        return said + wrong_versions(self._attach, [*fresh, *old, *now], self._folder / "asked")

    def _order(self, life: Life, had: list[str], came: list[str], alone: bool) -> list[str]:
        steps = life.steps[self._steps[life.first] :]
        self._steps[life.first] = len(life.steps)
        line, where = life.line, f"{life.name} after {steps}"
        said = []
        if (had + came)[-1:] != line[-1:] and line:
            said.append(f"{where}: ends with {(had + came)[-1:]}, not with {line[-1:]}")
        if not alone and _RETURNS & set(steps):
            return said  # states in between may have been seen, or not
        places = [line.index(each) if each in line else -1 for each in came]
        if places and (-1 in places or places != list(range(places[0], places[0] + len(places)))):
            said.append(f"{where}: the commits {places} of {len(line)} came")
        if not _RETURNS & set(steps) and had and had[-1] in line and line[line.index(had[-1]) + 1 :] != came:
            said.append(f"{where}: {len(came)} commits came, {line[line.index(had[-1]) + 1 :]} were to come")
        return said

    def _remembered(self, snapshot: int, commit: str, table: str) -> State:
        """What a snapshot of the lake has to hold: without a commit what the table was under any of its definitions
        since the last one."""
        life = self._life(table)
        before = self._of[life.first]
        if commit:
            rows = [life.shown[commit]]
        else:
            last = next((each for _, each, _ in reversed(before) if each), "")
            rows = list({str(each.schema): each for head, each in life.past if head in (last, "")}.values())
            rows += [each for head, each in life.past if head == last and each not in rows][-20:]
        before.append((snapshot, commit, rows))
        return _split(table), snapshot, rows

    def check_read(self, told: Sequence[dict[str, Any]]) -> list[str]:
        """Every answer is the state that its snapshot stands for, and none is older than the one before."""
        said, last = [], -1
        for each in told:
            if "error" in each:
                said.append(f"a reader was told {each['error']}")
                continue
            if each["snapshot"] < last:
                said.append(f"a reader saw snapshot {each['snapshot']} after {last}")
            last = each["snapshot"]
            if not self._expected or last > (self._expected[-1][1] or 0):
                continue  # it was made since the last check: the next one knows it
            for table, rows in each["tables"].items():
                states = [found for id_, _, found in self._of[self._life(table).first] if id_ <= last][-1:]
                if not any(rows == self._digest(one) for found in states for one in found):
                    said.append(f"{table}: at snapshot {last} a reader saw a state that was never there")
        return said

    def _digest(self, rows: pa.Table) -> str:
        if id(rows) not in self._digests:
            self._digests[id(rows)] = digest(rows)
        return self._digests[id(rows)]

    def finish(self) -> list[str]:
        """All snapshots; and no commit came more often than the source stood at it."""
        said = []
        for life in self.lives:
            counts = Counter(commit for _, commit, _ in self._of[life.first] if commit)
            often = {each: count for each, count in counts.items() if count > 1 + life.returns[each]}
            said += [f"{life.name}: commit {each} came {count} times" for each, count in often.items()]
        return said + wrong_versions(self._attach, self._expected, self._folder / "asked")

    @property
    def judged(self) -> int:
        """Of which the rows were compared."""
        return len(self._expected)


def _split(name: str) -> tuple[str, str]:
    schema, _, table = name.rpartition(".")
    return schema, table
