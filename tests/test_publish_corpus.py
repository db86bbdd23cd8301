"""The lakes of the corpus, of every version of the format, published from a directory that nobody may write: each table
has the rows that the corpus knows of it and that DuckDB reads at every snapshot."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

import bridge
from bridge.errors import Blocked
from converters.ducklake.extensions import packaged
from converters.ducklake.identifiers import literal, qualified
from tests.iceberg_judge import Published, judge_iceberg
from tests.support import SHARED, opened, tree_hash, use
from tests.test_lake_source import FORGOTTEN, entry, needs_shared, read_only
from tests.test_publish import current, snapshots

pytestmark = [needs_shared, pytest.mark.slow]

# what the corpus and Arrow say in another type than Iceberg has; as text they are compared all the same
MAPPED = {"odd_t_i128", "odd_t_interval", "odd_t_timetz", "odd_t_variant", "odd_t_geometry", "typed"}
# PyIceberg 0.12 reads NULL lists and maps of structs as empty ones once the struct has changed
PYICEBERG = {"nested"}
# 2^127 - 1 went into a file as a DOUBLE, and DuckDB reads it no more
UNREAD = {"zoo_0_2": {"odd_t_i128"}, "zoo_0_3_sqlite": {"odd_t_i128"}}


def known_tables(name: str) -> dict[tuple[str, ...], Any]:
    entries = json.loads((SHARED / "corpus/MANIFEST.json").read_text())["entries"]
    [found] = [each for each in entries if each["name"] == name]
    return {
        (each["schema"], each["name"]): each for each in found["expected"]["tables"] if each["kind"] == "BASE TABLE"
    }


def compacted_before(name: str) -> dict[str, Any]:
    """The snapshots that DuckDB answers wrongly after it has migrated the catalog, by those of the same life in 1.0."""
    right = known_tables("zoo_1_0")["main", "compacted"]["history"]
    return {str(each): right[str(each + 4)] for each in FORGOTTEN.get(name, ())}


class Reader:
    """DuckDB's reader of Iceberg."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        for extension in ("avro", "iceberg"):
            self.connection.execute(f"LOAD '{packaged(extension)}'")
        self._hash = runpy.run_path(str(SHARED / "corpus/hash_rows.py"))["hash_duckdb"]

    def content(self, at: str) -> dict[str, Any]:
        rows, digest = self._hash(self.connection, f"SELECT * FROM {at}")
        return {"rows": rows, "sha256": digest}


def text(connection: duckdb.DuckDBPyConnection, at: str) -> list[Any]:
    return sorted(connection.execute(f"SELECT COLUMNS(*)::VARCHAR FROM {at}").fetchall(), key=str)


@pytest.mark.parametrize(
    "name",
    [
        *("zoo_1_0", "deletes_extra_columns", "old_v03_dev1"),
        # test_lake_source.py reads these by default, as DuckDB does at every snapshot
        *(
            pytest.param(each, marks=pytest.mark.exhaustive)
            for each in ("zoo_0_2", "zoo_0_3_sqlite", "zoo_0_4", "old_v02")
        ),
    ],
)
def test_a_lake_of_the_corpus_answers_as_it_is_known(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, folder = entry(name, tmp_path / "ours")
    theirs, other = entry(name, tmp_path / "theirs")
    assert use(theirs, ["SELECT 1"], "AUTOMATIC_MIGRATION true") == [""]
    monkeypatch.chdir(folder)  # files that were added lie where the process runs
    before = tree_hash(folder)
    with read_only(folder):
        report = bridge.migrate(f"ducklake:{ours}", f"iceberg:{tmp_path / 'warehouse'}", bridge.Options(verify="none"))
    assert [(str(each.target), str(each.blockers[0])) for each in report.plan.blocked] == []
    assert report.exit_code == 0 and not report.faults
    assert tree_hash(folder) == before
    monkeypatch.chdir(other)
    known = known_tables(name)
    assert {(*each.target.namespace, each.target.name) for each in report.plan.tables} == set(known)
    faults, made, reader = [], [], Reader()
    with opened(Path(theirs.removeprefix("sqlite:"))) as there:
        there.execute("SET TimeZone = 'UTC'")
        for levels, facts in known.items():
            table = levels[-1]
            if table in UNREAD.get(name, ()):
                [plan] = [each for each in report.plan.tables if each.target.name == table]
                assert "type-narrowed" in {each.code.text for each in plan.findings}
                continue
            path, metadata = current(tmp_path / "warehouse" / Path(*levels))
            scan = f"iceberg_scan({literal(str(path))}"
            rows = []
            for commit, snapshot in snapshots(metadata).items():
                at, now = f"{qualified(*levels)} AT (VERSION => {commit})", f"{scan}, snapshot_from_id => {snapshot})"
                right = facts.get("history", {}) | (compacted_before(name) if table == "compacted" else {})
                if table not in MAPPED and commit in right and reader.content(now) != right[commit]:
                    faults.append(f"{levels} at {commit}: not the rows that the corpus knows")
                if table == "compacted" and int(commit) in FORGOTTEN.get(name, ()):
                    continue
                if table != "odd_t_i128" and text(reader.connection, now) != text(there, at):
                    faults.append(f"{levels} at {commit}: {text(reader.connection, now)[:2]}")
                if table not in MAPPED:
                    rows.append((snapshot, there.execute(f"SELECT * FROM {at}").to_arrow_table()))
            if table not in MAPPED:
                if reader.content(f"{scan})") != {key: facts[key] for key in ("rows", "sha256")}:
                    faults.append(f"{levels} now: not the rows that the corpus knows")
                made.append(Published(table, path, (*rows, (None, rows[-1][1]))))
    assert faults == []
    said = judge_iceberg(made, ["pyiceberg"], tmp_path / "judge")
    # what DuckDB reads at each snapshot was compared above
    said += judge_iceberg([replace(each, versions=each.versions[-1:]) for each in made], ["duckdb"], tmp_path / "judge")
    assert [each for each in said if not each.startswith(tuple(f"{table} by pyiceberg" for table in PYICEBERG))] == []


def test_the_oldest_lake_of_the_corpus_is_refused_with_advice(tmp_path: Path) -> None:
    ours, folder = entry("old_v01", tmp_path)
    before = tree_hash(folder)
    with pytest.raises(Blocked, match=r"version 0\.1") as refused:
        bridge.migrate(f"ducklake:{ours}", f"iceberg:{tmp_path / 'warehouse'}", bridge.Options())
    assert "AUTOMATIC_MIGRATION" in refused.value.hint
    assert tree_hash(folder) == before and not (tmp_path / "warehouse").exists()
