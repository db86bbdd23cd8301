"""Readings of a lake in part, compared with reading everything."""

from __future__ import annotations

from typing import Any

from bridge.model.files import Files, live_rows
from bridge.model.options import Options
from bridge.ports import Silent
from converters.ducklake.reader import open_source

__all__ = ["PARTS", "partial_readings"]

PARTS = (
    "CALL lake.set_option('data_inlining_row_limit', 10)",
    "CREATE TABLE lake.parts (id INTEGER)",
    "INSERT INTO lake.parts FROM range(60)",
    "INSERT INTO lake.parts VALUES (100), (101)",
    "DELETE FROM lake.parts WHERE id IN (3, 100)",
    "DELETE FROM lake.parts WHERE id BETWEEN 10 AND 40",
    "INSERT INTO lake.parts FROM range(200, 260)",
    "DELETE FROM lake.parts WHERE id BETWEEN 41 AND 99",
)
"""Rows in files and in the catalog, deleted by notes and by files."""


def changes(files: Files, since: int) -> set[tuple[Any, ...]]:
    """What comes, goes and is deleted after a commit."""
    rows = files.table.to_pylist()
    found: set[tuple[Any, ...]] = set()
    for row in rows:
        if row["begin"] > since:
            found.add(("begins", row["path"], row["begin"], row["record_count"], row["first_row_id"], row["size"]))
        if row["end"] is not None and row["end"] > since:
            found.add(("ends", row["path"], row["end"]))
    for row in files.deletes.to_pylist():
        if row["begin"] > since:
            found.add(("deleted", rows[row["file"]]["path"], row["position"], row["begin"]))
    return found


def bounds(files: Files, since: int) -> set[tuple[Any, ...]]:
    """The statistics of the files that come after a commit."""
    rows = files.table.to_pylist()
    return {
        (
            batch.field,
            batch.exact or each["lower"] is None,
            rows[each["file"]]["path"],
            *(str(value) for key, value in each.items() if key != "file"),
        )
        for batch in files.stats()
        for each in batch.table.to_pylist()
        if rows[each["file"]]["begin"] > since
    }


def partial_readings(attach: str) -> int:
    """Compare what is read of each table after each of its commits with all that there is; how many were partial."""
    source, partial = open_source(attach, Options()), 0
    for name in source.tables():
        opened = source.open(name)
        whole, count = opened.files(Silent()), len(opened.table.commits)
        every = live_rows(whole, count)
        for since in range(count):
            part = opened.files(Silent(), since)
            if part.since is None:
                continue
            partial += 1
            assert part.since == since
            assert changes(part, since) == changes(whole, since), (str(name), since)
            assert live_rows(part, count)[since:-1].tolist() == every[since:-1].tolist(), (str(name), since)
            assert bounds(part, since) == bounds(whole, since)
            # every row that is deleted in a file that is told of is told of
            told = part.table.column("path").to_pylist()
            there = {path: sum(each["path"] == path for each in whole.table.to_pylist()) for path in told}
            assert all(told.count(path) == there[path] for path in there)
    return partial
