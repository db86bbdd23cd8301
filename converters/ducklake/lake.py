"""A lake that exists: what it holds, and giving tables back or taking them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.model.table import TableName
from bridge.ports import LakeTableInfo, ReleasedTable
from converters.ducklake.catalog import forget, guard, reads
from converters.ducklake.catalog.session import Place, parse_place, session

__all__ = ["DuckLake", "open_lake"]


class DuckLake:
    """A catalog file; each call is a session of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def describe(self) -> Mapping[str, object]:
        """Version, data path, newest snapshot and whether the guard is in."""
        with session(self._place) as opened:
            version = reads.version(opened)
            settings, newest = reads.settings(opened), reads.head(opened)
            return {
                "catalog": self._place.attach,
                "version": version,
                "created_by": settings.get("created_by", ""),
                "data_path": settings.get("data_path", ""),
                "newest_snapshot": newest.snapshot,
                "guarded": guard.is_guarded(opened),
            }

    def tables(self) -> Sequence[LakeTableInfo]:
        """Every live table with its live files and rows in them."""
        with session(self._place) as opened:
            reads.version(opened)
            found = []
            for each in reads.live_tables(opened):
                if each.id < 0:
                    continue
                files, rows = reads.live_counts(opened, each.id)
                name = TableName((each.schema,), each.name)
                found.append(LakeTableInfo(name, files, rows, reads.bookmark(opened, each.id)))
            return sorted(found, key=lambda each: each.name)

    def release(self, names: Sequence[str], discard: bool) -> Sequence[ReleasedTable]:
        """Forget tables; Blocked when they were changed in the lake and that may not be discarded."""
        with session(self._place, write=True) as opened:
            reads.version(opened)
            return forget.release(opened, names, discard)

    def adopt(self, names: Sequence[str]) -> Sequence[TableName]:
        """The files become the lake's own; the guard goes when no shared table is left."""
        with session(self._place, write=True) as opened:
            reads.version(opened)
            return forget.adopt(opened, names)


def open_lake(rest: str) -> DuckLake:
    """The lake behind `ducklake:REST`."""
    return DuckLake(parse_place(rest))
