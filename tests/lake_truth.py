"""What DuckDB reads of a lake at every snapshot, and what our reader says of the same: rows, row ids, tables.

The truth comes from a process of its own: a DuckDB or SQLite file must not be open twice in one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from bridge.model.mapping import MappedColumn
from bridge.model.options import Options
from bridge.model.schema import Schema
from bridge.model.types import ListOf, MapOf, children
from bridge.ports import Silent
from converters.ducklake.catalog.inlined import columns_of_version, held_rows
from converters.ducklake.encrypted import encryption
from converters.ducklake.identifiers import identifier, literal
from converters.ducklake.projection import Level, projected
from converters.ducklake.reader import LakeSourceTable, open_source
from converters.ducklake.source_files import INLINED
from tests.support import ROOT

Row = tuple[Any, ...]

_ASK = """
import json, sys
from converters.ducklake.extensions import connect, needed
attach, options = json.loads(sys.stdin.read())
backend = attach.partition(":")[0]
lake = connect(*needed(backend if backend in ("sqlite", "postgres") else "duckdb"))
lake.execute(f"ATTACH 'ducklake:{attach}' AS lake" + (f" ({options})" if options else ""))
quoted = lambda name: '"' + name.replace('"', '""') + '"'
snapshots = [row[0] for row in lake.execute("FROM ducklake_snapshots('lake') SELECT snapshot_id ORDER BY 1").fetchall()]
uuids = dict(lake.execute("FROM ducklake_table_info('lake') SELECT table_id, table_uuid::VARCHAR").fetchall())
# a table is asked for under the name that it had
catalog = lambda table: f"__ducklake_metadata_lake.{'public.' if backend == 'postgres' else ''}ducklake_{table}"
versions = lake.execute(
    f"SELECT table_id, schema_name, table_name, t.begin_snapshot, t.end_snapshot FROM {catalog('table')} AS t "
    f"JOIN {catalog('schema')} AS s ON t.schema_id = s.schema_id ORDER BY t.begin_snapshot"
).fetchall()
live = [(each[0], each[1], each[2]) for each in versions if each[4] is None]
found = []
for table, *last in live:
    states = {}
    for snapshot in snapshots:
        names = [each[1:3] for each in versions
                 if each[0] == table and each[3] <= snapshot and (each[4] is None or snapshot < each[4])]
        if not names:
            continue
        [(schema, name)] = names
        query = f"FROM lake.{quoted(schema)}.{quoted(name)} AT (VERSION => {snapshot})"
        try:
            names = [each[0] for each in lake.execute(f"DESCRIBE {query}").fetchall()]
            cast = ", ".join(f"CAST({quoted(each)} AS VARCHAR)" for each in names)
            states[snapshot] = [names, lake.execute(f"SELECT rowid, {cast} {query}").fetchall()]
        except Exception as error:
            states[snapshot] = str(error)[:300]
    found.append([*last, states])
print(json.dumps([snapshots, list(uuids.values()), found]))
"""


@dataclass(frozen=True)
class Truth:
    """By table: by snapshot the column names and rows (row id, values as text); a text is DuckDB's error."""

    snapshots: tuple[int, ...]
    uuids: frozenset[str]
    tables: Mapping[tuple[str, str], Mapping[int, Any]]


def truth(attach: str, options: str = "READ_ONLY", cwd: Path = ROOT) -> Truth:
    """Ask DuckDB about the tables that are live now, at every snapshot."""
    ran = subprocess.run(
        [sys.executable, "-c", _ASK],
        input=json.dumps([attach, options]),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    snapshots, uuids, tables = json.loads(ran.stdout.splitlines()[-1])  # DuckDB prints its progress
    found = {(schema, name): {int(key): value for key, value in states.items()} for schema, name, states in tables}
    return Truth(tuple(snapshots), frozenset(uuids), found)


class Reading:
    """A lake as our reader gives it."""

    def __init__(self, attach: str, options: Options | None = None) -> None:
        self.source = open_source(attach, options or Options())
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        self.tables = {(name.namespace[0], name.name): self.source.open(name) for name in self.source.tables()}

    def differences(self, asked: Truth, row_ids: bool = True) -> list[str]:
        """Every state in which a table is not what DuckDB reads; empty when all are right."""
        said = []
        if sorted(self.tables) != sorted(asked.tables):
            said.append(f"tables {sorted(self.tables)}, DuckDB has {sorted(asked.tables)}")
        if {each.table.uuid for each in self.tables.values()} != set(asked.uuids):
            said.append("uuids differ")
        for name, states in asked.tables.items():
            if name in self.tables:
                said += [f"{name}: {each}" for each in self._table(self.tables[name], states, row_ids)]
        return said

    def _table(self, opened: LakeSourceTable, states: Mapping[int, Any], row_ids: bool) -> list[str]:
        files = opened.files(Silent())
        table = opened.table
        seen = [int(each.summary["ducklake.snapshot-id"]) for each in table.commits]
        deleted: dict[int, dict[int, int]] = {}
        for row in files.deletes.to_pylist():
            deleted.setdefault(row["file"], {})[row["position"]] = row["begin"]
        rows = files.table.to_pylist()
        cache: dict[tuple[str, int], list[Row]] = {}
        said = []
        for problem in files.problems:
            if problem.finding.code.text not in ("inlined-rows", "file-encrypted"):
                said.append(f"problem {problem.finding}")
        said += _faults(rows, deleted, len(table.commits))
        for snapshot, state in states.items():
            place = sum(each <= snapshot for each in seen) - 1
            if place < 0:
                said.append(f"no commit at snapshot {snapshot}, which DuckDB reads")
                continue
            if isinstance(state, str):
                said.append(f"snapshot {snapshot}: DuckDB reads nothing: {state}")
                continue
            if row_ids and len({each[0] for each in state[1]}) < len(state[1]):
                # flush of DuckDB 1.5.5 may leave a data file that was rewritten with two delete files, and then each
                # of its rows is read twice at the older snapshots
                continue
            commit = table.commits[place]
            counted, there = opened.count(commit.id) if commit.id == str(snapshot) else None, len(state[1])
            # a delete file may hold later deletes without saying so (flush of DuckDB 1.5.5)
            least = there if commit is table.commits[-1] else 0
            if counted is not None and not least <= counted <= there:
                said.append(f"snapshot {snapshot}: the catalog counts {counted} rows, there are {there}")
            schema = table.schemas[commit.schema]
            names = [each.name for each in schema.fields]
            if names != state[0]:
                said.append(f"snapshot {snapshot}: columns {names}, DuckDB has {state[0]}")
                continue
            found: list[Row] = []
            for number, row in enumerate(rows):
                if row["begin"] <= place and (row["end"] is None or place < row["end"]):
                    key = (row["path"], schema.id)
                    if key not in cache:
                        cache[key] = _rows(self, opened, files, number, row, schema)
                    gone = deleted.get(number, {})
                    found += [each for at, each in enumerate(cache[key]) if not gone.get(at, place + 1) <= place]
            cut = 0 if row_ids else 1
            mine = Counter(each[cut:] for each in found)
            theirs = Counter(tuple(each)[cut:] for each in state[1])
            if mine != theirs:
                missing, extra = list((theirs - mine).items())[:3], list((mine - theirs).items())[:3]
                said.append(f"snapshot {snapshot}: missing {missing}, extra {extra} of {len(state[1])}")
        return said


def _faults(rows: Sequence[Mapping[str, Any]], deleted: Mapping[int, Mapping[int, int]], commits: int) -> list[str]:
    """Breaches of what Files promises."""
    said = []
    if [each["begin"] for each in rows] != sorted(each["begin"] for each in rows):
        said.append("files are not ordered by begin")
    for number, row in enumerate(rows):
        if not 0 <= row["begin"] < (commits if row["end"] is None else row["end"]) <= commits:
            said.append(f"a file has the interval {row['begin']} to {row['end']} of {commits} commits")
        for position, begin in deleted.get(number, {}).items():
            if not row["begin"] <= begin < (commits if row["end"] is None else row["end"]):
                said.append(f"position {position} is deleted at {begin}, outside of its file")
            if not 0 <= position < row["record_count"]:
                said.append(f"position {position} is beyond its file")
    return said


def _rows(
    reading: Reading, opened: LakeSourceTable, files: Any, number: int, row: Mapping[str, Any], schema: Schema
) -> list[Row]:
    """(row id, values as text) of a file in its order, under a schema."""
    if row["format"] == INLINED:
        name, _, rest = row["path"].rpartition("#")[2].partition("@")
        begin, version = int(rest.split(".")[0]), int(name.rpartition("_")[2])

        def work(session: Any) -> list[Row]:
            found = opened._found
            columns = columns_of_version(session, found, found.versions[0].id, version, begin)
            with held_rows(session, name, begin, columns) as held:
                return _select(held.connection, held.sql, "row_id", held.levels, schema)

        return reading.source.within(work)
    connection = reading.connection
    key = opened_key(files, number)
    options = f", {encryption(key)}" if key else ""
    mapping = None if row["mapping"] is None else files.mappings[row["mapping"]]
    constants = files.sources([number])[0].constants
    if key:
        first = opened.table.schemas[opened.table.commits[row["begin"]].schema]
        levels = tuple(_of_field(each) for each in first.fields)
        names = [
            each[0]
            for each in connection.execute(f"DESCRIBE FROM read_parquet({literal(row['path'])}{options})").fetchall()
        ]
    else:
        arrow = pq.read_schema(row["path"])
        names = arrow.names
        levels = tuple(_of_arrow(each) for each in arrow)
        if mapping is not None:
            levels = tuple(_of_mapping(each) for each in mapping.columns if not each.from_path)
    extra = "".join(
        f", {'NULL' if value is None else literal(str(value))} AS {identifier(f'constant {id_}')}"
        for id_, value in constants.items()
    )
    levels += tuple(Level(id_, f"constant {id_}") for id_ in constants)
    source = (
        f"(SELECT *{extra} FROM read_parquet({literal(row['path'])}, file_row_number = true, "
        f"hive_partitioning = false{options}) ORDER BY file_row_number)"
    )
    start = "NULL" if row["first_row_id"] is None else str(row["first_row_id"])
    row_id = f"{start} + file_row_number"
    if "_ducklake_internal_row_id" in names:
        row_id = '"_ducklake_internal_row_id"'
    return _select(connection, source, row_id, levels, schema)


def _select(
    connection: duckdb.DuckDBPyConnection, source: str, row_id: str, levels: Sequence[Level], schema: Schema
) -> list[Row]:
    listed = ", ".join(f"CAST({sql} AS VARCHAR)" for _, sql in projected(schema.fields, levels))
    return connection.execute(f"SELECT {row_id}, {listed} FROM {source}").fetchall()


def opened_key(files: Any, number: int) -> str | None:
    """The key of a file, as the catalog says it."""
    [found] = files._files.filter(files._files["file"] == number)["encryption_key"].to_list()
    return found


def _of_arrow(field: Any) -> Level:
    id_ = (field.metadata or {}).get(b"PARQUET:field_id")
    return Level(None if id_ is None else int(id_), field.name, tuple(map(_of_arrow, _inner(field.type))))


def _inner(type_: Any) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_struct(type_):
        return list(type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [type_.value_field]
    return [type_.key_field, type_.item_field] if pa.types.is_map(type_) else []


def _of_mapping(column: MappedColumn) -> Level:
    return Level(int(column.field), column.name, tuple(map(_of_mapping, column.children)))


def _of_field(field: Any) -> Level:
    below = children(field.type)
    assert not isinstance(field.type, ListOf | MapOf) or below
    return Level(int(field.id), field.name, tuple(map(_of_field, below)))
