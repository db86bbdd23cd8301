"""A lake that exists: what it holds, and giving tables back or taking them over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.model.options import Options
from bridge.model.table import TableName
from bridge.ports import AdoptedTable, LakeTableInfo, ReleasedTable
from converters.ducklake.catalog import forget, guard, reads
from converters.ducklake.catalog.counting import live_rows
from converters.ducklake.catalog.session import Place, parse_place, session, with_retry

__all__ = ["DuckLake", "open_lake"]


class DuckLake:
    """A catalog; each call is a session of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def describe(self) -> Mapping[str, object]:
        """Version, data path, newest snapshot and whether the guard is in."""
        with session(self._place) as opened:
            version = reads.version(opened)
            settings, newest = reads.settings(opened), reads.head(opened)
            return {
                "catalog": self._place.attach,
                **({"metadata_schema": self._place.schema} if self._place.is_server else {}),
                "version": version,
                "created_by": settings.get("created_by", ""),
                "data_path": settings.get("data_path", ""),
                "newest_snapshot": newest.snapshot,
                "guarded": guard.is_guarded(opened),
            }

    def tables(self) -> Sequence[LakeTableInfo]:
        """Every live table with its live data files, and its rows wherever they lie."""
        with session(self._place) as opened:
            reads.version(opened)
            head = reads.head(opened).snapshot
            found = []
            for each in reads.live_tables(opened):
                if each.id < 0:
                    continue
                files, rows = reads.file_count(opened, each.id), live_rows(opened, each.id, head)
                name = TableName((each.schema,), each.name)
                found.append(LakeTableInfo(name, files, rows, reads.bookmark(opened, each.id)))
            return sorted(found, key=lambda each: each.name)

    def release(self, names: Sequence[str], discard: bool) -> Sequence[ReleasedTable]:
        """Forget tables; Blocked when they were changed in the lake and that may not be discarded."""
        return with_retry(lambda: self._release(names, discard))

    def _release(self, names: Sequence[str], discard: bool) -> Sequence[ReleasedTable]:
        with session(self._place, write=True) as opened:
            reads.version(opened)
            return forget.release(opened, names, discard)

    def adopt(self, names: Sequence[str]) -> Sequence[AdoptedTable]:
        """The files become the lake's own; the guard goes when no shared table is left."""
        return [
            AdoptedTable(each, "its files are the lake's own now") for each in with_retry(lambda: self._adopt(names))
        ]

    def _adopt(self, names: Sequence[str]) -> Sequence[TableName]:
        with session(self._place, write=True) as opened:
            reads.version(opened)
            return forget.adopt(opened, names)


def open_lake(rest: str, options: Options) -> DuckLake:
    """The lake behind `ducklake:REST`."""
    return DuckLake(parse_place(rest, options.metadata_schema))
