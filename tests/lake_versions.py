"""A quick question to DuckDB, in a process of its own: whether a lake holds exactly these rows at many snapshots.

python -m tests.lake_versions ATTACH FOLDER: one line a wrong answer. judge.py asks far more, and takes far longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.ipc

__all__ = ["wrong_versions"]

ROOT = Path(__file__).resolve().parents[1]


def wrong_versions(
    attach: str, versions: Sequence[tuple[tuple[str, str], int | None, pa.Table | Sequence[pa.Table]]], scratch: Path
) -> list[str]:
    """Every state, of a table by the name that it had then, that is another one (of several: than each of them):
    columns, types and rows are compared, and what a filter on each column finds."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    asked = []
    for number, (name, snapshot, rows) in enumerate(versions):
        listed = [rows] if isinstance(rows, pa.Table) else list(rows)
        for choice, each in enumerate(listed):
            with pa.ipc.new_stream(str(folder / f"{number}-{choice}.arrows"), each.schema) as stream:
                stream.write_table(each)
        asked.append([*name, snapshot, len(listed)])
    (folder / "asked.json").write_text(json.dumps(asked))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.lake_versions", attach, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    said = ran.stdout.splitlines()
    return said[:-1] if said[-1:] == ["end"] else [*said, f"ended early: {ran.stderr[-2000:]}"]


def _main(attach: str, folder: Path) -> None:
    from converters.ducklake.extensions import connect, needed

    backend = attach.partition(":")[0]
    lake = connect(*needed(backend if backend in ("sqlite", "postgres") else "duckdb"))
    lake.execute("SET TimeZone = 'UTC'")
    lake.execute("SET threads = 1")
    lake.execute(f"ATTACH 'ducklake:{attach}' AS lake (READ_ONLY)")
    for number, (schema, table, snapshot, choices) in enumerate(json.loads((folder / "asked.json").read_text())):
        at = f'lake."{schema}"."{table}"' + ("" if snapshot is None else f" AT (VERSION => {snapshot})")
        said = ["there is no such state"]
        try:
            lake.execute(f"CREATE OR REPLACE TEMP TABLE answered AS FROM {at}")
            for choice in range(choices):
                with pa.OSFile(str(folder / f"{number}-{choice}.arrows")) as source:
                    lake.register("expected", pa.ipc.open_stream(source).read_all())
                said = _faults(lake, at)
                if not said:
                    break
        except duckdb.Error as error:
            said = [str(error)[:300].replace("\n", " ")]
        for fault in said:
            print(f"{table} @{snapshot}: {fault}")
    print("end")


def _faults(lake: duckdb.DuckDBPyConnection, at: str) -> list[str]:
    shapes = [
        [(row[0], row[1]) for row in lake.execute(f"DESCRIBE {each}").fetchall()] for each in ("answered", "expected")
    ]
    if shapes[0] != shapes[1]:
        return [f"columns {shapes[0]}, expected {shapes[1]}"]
    found = []
    for low, high in (("answered", "expected"), ("expected", "answered")):
        rows = lake.execute(f"FROM (FROM {low} EXCEPT ALL FROM {high}) LIMIT 3").fetchall()
        found += [f"{row} is only in what was {low}" for row in rows]
    if found:
        return found
    names = ['"' + name.replace('"', '""') + '"' for name, _ in shapes[0]]
    # asked of the lake itself: statistics may answer these, or leave files out
    asked = [f"min({name}), max({name}), count({name})" for name in names]
    questions = [f"SELECT {', '.join(asked)}, count(*) FROM {{0}}"]
    edges = [f"SELECT count(*) FROM {{0}} WHERE {name} IS NULL" for name in names]
    edges += [f"SELECT count(*) FROM {{0}} WHERE {name} >= (SELECT max({name}) FROM expected)" for name in names]
    questions.append(" UNION ALL ".join(edges))
    for each in questions:
        said = [lake.execute(each.format(relation)).fetchall() for relation in (at, "expected")]
        if said[0] != said[1]:
            found.append(f"{each.format('it')}: {said[0]}, expected {said[1]}")
    return found


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
