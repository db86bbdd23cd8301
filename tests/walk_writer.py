"""A process of DuckDB on a lake: python -m tests.walk_writer ATTACH OPTIONS, a JSON line in, a JSON line out.

["run", [statements]] runs them one after the other, as often as somebody else is in the way; the answer is the error.
What DuckDB 1.5.5 forgets of a column's bounds when it maintains the lake is forgotten whole (FORGOTTEN).
["rows", FOLDER, [[uuid, snapshot], ...]] writes what a table was into FOLDER/<number>.arrow; the answer is the errors.
["now", FOLDER] does so for what there is now; the answer is [[uuid, snapshot], ...]. What DuckDB cannot read by a fault
of its own (UNREADABLE) has no file.
["live"] answers [[uuid, schema.name], ...].
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.ipc

_PATIENCE = 100
_BUSY = ("lock", "conflict", "could not serialize")
"""Words of DuckDB for what another process does at the same time."""
UNREADABLE = "Failed to read inlined data from DuckLake: Referenced column"
"""What DuckDB 1.5.5 says of rows in the catalog whose table's columns it takes from another snapshot than theirs."""
FORGOTTEN = "DELETE FROM {}ducklake_table_column_stats WHERE min_value IS NULL AND max_value IS NULL"
"""DuckDB 1.5.5 leaves a column that was widened without bounds when it flushes or rewrites, takes those of the next
insert for all, and then sorts, filters and compacts by them: it changes values. Without the row it does not."""


class Writer:
    """The lake is held for a request only where it is a DuckDB file."""

    def __init__(self, attach: str, options: str) -> None:
        from converters.ducklake.extensions import connect, needed

        backend = attach.partition(":")[0]
        self._shared = backend in ("sqlite", "postgres")
        self._catalog = "__ducklake_metadata_lake." + ('"public".' if backend == "postgres" else "")
        self._connect = lambda: connect(*needed(backend if self._shared else "duckdb"))
        self._attach = f"ATTACH 'ducklake:{attach}' AS lake ({options})"
        self._begin(self._shared)

    def _begin(self, attached: bool) -> None:
        self._lake = self._connect()
        self._lake.execute("SET TimeZone = 'UTC'; SET threads = 1")
        if attached:
            self._lake.execute(self._attach)

    @contextmanager
    def held(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The lake, attached."""
        if not self._shared:
            self._often(lambda: self._lake.execute(self._attach))
        try:
            yield self._lake
        finally:
            if not self._shared:
                self._lake.execute("DETACH lake")

    def _often(self, work: Any) -> str:
        for _ in range(_PATIENCE):
            try:
                work()
                return ""
            except duckdb.Error as error:
                said = str(error)
                if "database has been invalidated" in said:  # it fell over something of its own
                    self._begin(True)
                    continue
                if not any(each in said.lower() for each in _BUSY):
                    return said
                time.sleep(0.1)
        return said

    def run(self, statements: Sequence[str]) -> str:
        def once() -> None:
            try:
                for each in statements:
                    self._lake.execute(each)
                    if each.startswith("CALL ducklake_"):
                        self._lake.execute(FORGOTTEN.format(self._catalog))
            except duckdb.Error:
                if len(statements) > 1:
                    with suppress(duckdb.Error):
                        self._lake.execute("ROLLBACK")
                raise

        with self.held():
            return self._often(once)

    def _names(self) -> list[tuple[str, str, str, int, int | None]]:
        return self._found(
            f"SELECT table_uuid::VARCHAR, schema_name, table_name, t.begin_snapshot, t.end_snapshot "
            f"FROM {self._catalog}ducklake_table AS t JOIN {self._catalog}ducklake_schema AS s USING (schema_id)"
        )

    def _found(self, query: str) -> list[Any]:
        found: list[Any] = []
        said = self._often(lambda: found.extend(self._lake.execute(query).fetchall()))
        assert not said, said
        return found

    def live(self) -> list[tuple[str, str]]:
        with self.held():
            return [(uuid, f"{schema}.{name}") for uuid, schema, name, _, end in self._names() if end is None]

    def now(self, folder: str) -> list[tuple[str, int]]:
        with self.held():
            [(snapshot,)] = self._found("FROM ducklake_current_snapshot('lake')")
            asked = [(uuid, snapshot) for uuid, _, _, _, end in self._names() if end is None]
        said = self.rows(folder, asked)
        assert not any(each and UNREADABLE not in each for each in said), said
        return asked

    def _write(self, table: str, place: str) -> None:
        found = self._lake.execute(f"FROM {table}").to_arrow_table()
        with pa.OSFile(place, "wb") as sink, pa.ipc.new_file(sink, found.schema) as file:
            file.write_table(found)

    def rows(self, folder: str, asked: Sequence[tuple[str, int]]) -> list[str]:
        said = []
        with self.held():
            names = self._names()
            for number, (uuid, at) in enumerate(asked):
                [(schema, name)] = {
                    (schema, name)
                    for each, schema, name, begin, end in names
                    if each == uuid and begin <= at and (end is None or at < end)
                } or [("", "")]
                place = f"{folder}/{number}.arrow"
                said.append(self._often(partial(self._write, f'lake."{schema}"."{name}" AT (VERSION => {at})', place)))
        return said


def main(attach: str, options: str) -> None:
    writer = Writer(attach, options)
    for line in sys.stdin:
        what, *given = json.loads(line)
        print(json.dumps(getattr(writer, what)(*given)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
