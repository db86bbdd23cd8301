"""Data files that only older snapshots of a lake use, counted by the snapshots that do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import sqlalchemy as sa

from bridge.model.expiry import Ended
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.ducklake.catalog.times import micros

__all__ = ["Span", "ended_files", "ever_registered", "ranges", "scheduled"]

_ASKED = 500
Span = tuple[int, int, int, int]
"""The first snapshot that uses some files, the first that does not, how many they are, and their bytes."""


def ended_files(session: Session, table_id: int, outside: bool) -> list[Span]:
    """Those of a table that no newer state uses too; with `outside` only files that are not below the data path."""
    each = table("data_file").c
    ended = sa.select(each.path).where(each.table_id == table_id, each.end_snapshot.is_not(None))
    by_path = (
        sa.select(
            each.path,
            each.path_is_relative,
            sa.func.min(each.begin_snapshot).label("begin"),
            sa.func.max(each.end_snapshot).label("end"),
            sa.func.max(each.file_size_bytes).label("size"),
        )
        .where(each.table_id == table_id, each.path.in_(ended))  # few, where a large table lives on
        .group_by(each.path, each.path_is_relative)
        .having(sa.func.count() == sa.func.count(each.end_snapshot))
        .subquery()
    )
    c = by_path.c
    spans = (c.begin, c.end, c.path_is_relative)
    rows = session.rows(sa.select(*spans, sa.func.count(), sa.func.sum(c.size)).group_by(*spans).order_by(c.end))
    return [
        (int(begin), int(end), int(files), int(size or 0))
        for begin, end, relative, files, size in rows
        if not (outside and relative)
    ]


def ever_registered(session: Session, table_id: int, folder: str, paths: Sequence[str]) -> frozenset[str]:
    """Those of some paths that are data files of a table, live or ended; `folder` is its own directory."""
    each = table("data_file").c
    query = sa.select(each.path, each.path_is_relative).where(each.table_id == table_id)
    stored = [*paths, *(path.removeprefix(folder) for path in paths if path.startswith(folder))]
    parts = [stored[start : start + _ASKED] for start in range(0, len(stored), _ASKED)]
    rows = [row for part in parts for row in session.rows(query.where(each.path.in_(part)))]
    return frozenset(folder + path if relative else path for path, relative in rows)


def scheduled(session: Session, folder: str, after: int) -> list[int]:
    """When data files below a folder (relative to the data path) were scheduled for deletion, later than a time; in
    microseconds from 1970. A delete file, which DuckDB 1.5.5 schedules when another takes its place, is told by its
    name alone then."""
    each = table("files_scheduled_for_deletion").c
    time = sa.cast(each.schedule_start, sa.String) if session.place.backend == "sqlite" else each.schedule_start
    query = sa.select(time).where(each.path_is_relative, each.path.startswith(folder, autoescape=True))
    deletes = (each.path.endswith(ending) for ending in ("-delete.parquet", "-delete.puffin"))
    times = [micros(row[0]) for row in session.rows(query.where(sa.not_(sa.or_(*deletes))))]
    return [each for each in times if each > after]


def ranges(spans: list[Span], commits: list[int], names: list[str], snapshots: list[int]) -> tuple[Ended, ...]:
    """The files with their places among the snapshots of the source's commits (called `names`), and of the target's
    snapshots: both are numbers of a lake's snapshots, ascending."""
    found = []
    for begin, end, files, size in spans:
        after = bisect_left(commits, end)
        found.append(
            Ended(
                (bisect_left(commits, begin), after),
                (bisect_left(snapshots, begin), bisect_left(snapshots, end)),
                files,
                size,
                names[after] if after < len(names) else "",
            )
        )
    return tuple(each for each in found if each.snapshots[0] < each.snapshots[1])
