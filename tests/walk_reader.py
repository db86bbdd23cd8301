"""A process that reads a mirror's target for ever: python -m tests.walk_reader lake|iceberg TARGET FILE STOP.

Each line of FILE is one look at all tables: what tells the state, and a digest of the rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.iceberg_judge_process import rows as multiset

__all__ = ["digest"]


def digest(rows: pa.Table) -> str:
    """The same for the same columns and rows, in whatever order these come."""
    counted = sorted(map(repr, multiset(rows).items()))
    return hashlib.sha256(repr((rows.column_names, counted)).encode()).hexdigest()[:16]


def lake_reader(attach: str) -> Callable[[], dict[str, Any]]:
    """One transaction: the snapshot, and every table as it is there."""
    import duckdb

    from converters.ducklake.extensions import connect, needed

    backend = attach.partition(":")[0]
    lake = connect(*needed(backend if backend in ("sqlite", "postgres") else "duckdb"))
    lake.execute("SET threads = 1")
    lake.execute(f"ATTACH 'ducklake:{attach}' AS lake (READ_ONLY)")

    def look() -> dict[str, Any]:
        lake.execute("BEGIN")
        try:
            [(snapshot,)] = lake.execute("FROM ducklake_current_snapshot('lake')").fetchall()
            named = lake.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'lake'"
            ).fetchall()
            found = {f"{s}.{t}": digest(lake.execute(f'FROM lake."{s}"."{t}"').to_arrow_table()) for s, t in named}
            return {"snapshot": snapshot, "tables": found}
        except duckdb.Error as error:
            return {"error": str(error)[:500]}
        finally:
            lake.execute("ROLLBACK")

    return look


def iceberg_reader(settings: str) -> Callable[[], dict[str, Any]]:
    """Table after table: the source's commit that its newest snapshot stands for."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import StaticTable, Table

    options = json.loads(settings)

    def tables() -> list[tuple[str, Callable[[], Table]]]:
        if "uri" in options:
            catalog = SqlCatalog("c", **options)
            names = [each for space in catalog.list_namespaces() for each in catalog.list_tables(space)]
            return [(".".join(each), lambda each=each: catalog.load_table(each)) for each in names]  # type: ignore[misc]  # bound now
        # os.walk passes over what is removed meanwhile, rglob ends with it
        every = ((Path(folder), names) for folder, _, names in os.walk(options["warehouse"]))
        hints = sorted(folder / "version-hint.text" for folder, names in every if "version-hint.text" in names)

        def newest(folder: Path, number: int) -> str:
            """On from the hint, as Iceberg's own readers go: of two that commit at once one may tell it late."""
            while (folder / f"v{number + 1}.metadata.json").is_file():
                number += 1
            return str(folder / f"v{number}.metadata.json")

        return [
            (
                str(each.parent.parent),
                lambda each=each: StaticTable.from_metadata(newest(each.parent, int(each.read_text()))),  # type: ignore[misc]  # bound now
            )
            for each in hints
        ]

    def look() -> dict[str, Any]:
        found = []
        for name, opened in tables():
            try:
                table = opened()
                snapshot = table.current_snapshot()
                rows = table.schema().as_arrow().empty_table() if snapshot is None else table.scan().to_arrow()
            except Exception as error:  # noqa: BLE001  # whatever it is is told
                gone = isinstance(error, NoSuchTableError | FileNotFoundError)
                found.append({"name": name, "gone": gone, "error": f"{type(error).__name__}: {error}"[:500]})
                continue
            said = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
            commit = said.get("ducklake-bridge.source-commit", "")
            found.append({"name": name, "uuid": str(table.metadata.table_uuid), "commit": commit, "rows": digest(rows)})
        return {"tables": found}

    return look


def main(kind: str, target: str, file: str, stop: str) -> None:
    look = {"lake": lake_reader, "iceberg": iceberg_reader}[kind](target)
    with open(file, "w") as told:
        while True:
            began = time.monotonic()
            told.write(json.dumps(look()) + "\n")
            told.flush()
            if Path(stop).exists():
                return
            time.sleep(max(0.4, 2 * (time.monotonic() - began)))  # others are to get on, too


if __name__ == "__main__":
    main(*sys.argv[1:])
