"""Row counts of published tables as PyIceberg answers them; run as a process: a JSON request in, JSON answers out.

Of a table that was read whole every manifest that is listed is read, once for all snapshots, and so are the rows of the
data files that have deletes. After a small change the manifests that it wrote are read, and the others are taken as the
manifest list counts them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import DataScan, FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["answers"]

_PATH = 2147483546
"""The field id of the path in a delete file (specification, "Reserved Field IDs")."""


def answers(asked: Sequence[Mapping[str, Any]], properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each of (metadata, snapshot or None): rows and column names, or the error."""
    from pyiceberg.table import StaticTable

    said: list[dict[str, Any]] = []
    opened: dict[str, _Counted] = {}
    for each in asked:
        try:
            place = str(each["metadata"])
            if place not in opened:
                scanned = [one["snapshot"] for one in asked if one["metadata"] == place and not one["listed"]]
                opened[place] = _Counted(StaticTable.from_metadata(place, dict(properties)), scanned)
            found = opened[place]
            columns = [field.name for field in found.table.schema().fields]
            said.append({"rows": found.rows(each["snapshot"], bool(each["listed"])), "columns": columns})
        except _failures() as error:
            said.append({"error": f"{type(error).__name__}: {error}"[:500]})
    return said


class _Counted:
    """A table whose manifests are read once each and one at a time, so that memory is that of the largest."""

    def __init__(self, table: Table, scanned: Iterable[int | None]) -> None:
        self.table = table
        self._deleted: dict[str, frozenset[str] | None] = {}
        """The data files that each delete manifest names; None where one does not say which."""
        self._touched: dict[str, dict[str, int]] = {}
        """By data manifest: the rows of the files in it that some delete manifest names."""
        self._left: dict[tuple[int, str, tuple[str, ...]], int] = {}
        """What deletes leave of a file, under a schema."""
        wanted: set[str] = set()
        for snapshot in scanned:
            with suppress(*_failures()):  # it is raised again when the snapshot is asked for
                wanted |= self._named(self._manifests(snapshot)) or frozenset()
        self._wanted = frozenset(wanted)

    def rows(self, snapshot: int | None, listed: bool) -> int:
        """At a snapshot or now; `listed`: what other snapshots added is not looked at."""
        found = self._snapshot(snapshot)
        if found is None:
            return 0
        manifests = self._manifests(snapshot)
        if listed:
            for each in manifests:
                if each.added_snapshot_id == found.snapshot_id:
                    self._look(each)
            # each delete file is of one data file
            return sum(_stated(each) if _is_data(each) else -_stated(each) for each in manifests)
        scan = self.table.scan() if snapshot is None else self.table.scan(snapshot_id=int(snapshot))
        return self._scanned(scan, manifests)

    def _snapshot(self, snapshot: int | None) -> Snapshot | None:
        found = self.table.current_snapshot() if snapshot is None else self.table.snapshot_by_id(int(snapshot))
        if found is None and snapshot is not None:
            raise ValueError(f"there is no snapshot {snapshot}")
        return found

    def _manifests(self, snapshot: int | None) -> Sequence[ManifestFile]:
        found = self._snapshot(snapshot)
        return () if found is None else found.manifests(self.table.io)

    def _scanned(self, scan: DataScan, manifests: Sequence[ManifestFile]) -> int:
        """What `scan.count()` finds, which reads all manifests anew for every snapshot. Here the files that have
        deletes are planned and read as it does, and of all others the rows are added up as it does."""
        from pyiceberg.manifest import DataFileContent
        from pyiceberg.table import ManifestGroupPlanner

        named = self._named(manifests)
        if named is None or not named <= self._wanted:
            return scan.count()
        data = [each for each in manifests if _is_data(each)]
        touched = [(each, named & self._look(each).keys()) for each in data]
        rows = sum(map(_stated, data))
        rows -= sum(self._touched[each.manifest_path][path] for each, paths in touched for path in paths)
        if named:
            planner = ManifestGroupPlanner(scan.table_metadata, scan.io, scan.row_filter, scan.case_sensitive)
            holding = [each for each, paths in touched if paths] + [each for each in manifests if not _is_data(each)]

            def concerned(entry: ManifestEntry) -> bool:
                return entry.data_file.content != DataFileContent.DATA or entry.data_file.file_path in named

            rows += sum(self._remaining(scan, each) for each in planner.plan_files(holding, concerned))
        return rows

    def _named(self, manifests: Sequence[ManifestFile]) -> frozenset[str] | None:
        """The data files that deletes are of; None where that is not told."""
        found: frozenset[str] = frozenset()
        for each in manifests:
            if _is_data(each):
                continue
            if each.manifest_path not in self._deleted:
                paths = [_of(entry.data_file) for entry in each.fetch_manifest_entry(self.table.io)]
                known = frozenset(path for path in paths if path is not None)
                self._deleted[each.manifest_path] = None if None in paths else known
            paths_ = self._deleted[each.manifest_path]
            if paths_ is None:
                return None
            found |= paths_
        return found

    def _look(self, manifest: ManifestFile) -> Mapping[str, int]:
        """Read a manifest, once; ValueError when it does not hold what its list says."""
        if manifest.manifest_path not in self._touched:
            rows, touched = 0, dict[str, int]()
            for entry in manifest.fetch_manifest_entry(self.table.io):
                rows += entry.data_file.record_count
                if entry.data_file.file_path in self._wanted:
                    before = touched.get(entry.data_file.file_path, 0)
                    touched[entry.data_file.file_path] = before + entry.data_file.record_count
            if rows != _stated(manifest):
                raise ValueError(f"{manifest.manifest_path} holds {rows} rows, its list says {_stated(manifest)}")
            self._touched[manifest.manifest_path] = touched
        return self._touched[manifest.manifest_path]

    def _remaining(self, scan: DataScan, task: FileScanTask) -> int:
        """The rows of a file that its deletes leave, by reading them."""
        from pyiceberg.io.pyarrow import ArrowScan

        fields = scan.projection()
        key = fields.schema_id, task.file.file_path, tuple(sorted(each.file_path for each in task.delete_files))
        if key not in self._left:
            read = ArrowScan(scan.table_metadata, scan.io, fields, scan.row_filter, scan.case_sensitive)
            self._left[key] = len(read.to_table([task]))
        return self._left[key]


def _is_data(manifest: ManifestFile) -> bool:
    from pyiceberg.manifest import ManifestContent

    return bool(manifest.content == ManifestContent.DATA)


def _stated(manifest: ManifestFile) -> int:
    """The rows that a manifest list says of a manifest."""
    return (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)


def _of(delete: DataFile) -> str | None:
    """The one data file that a delete file is of, by the bounds of its paths."""
    lower, upper = ((bounds or {}).get(_PATH) for bounds in (delete.lower_bounds, delete.upper_bounds))
    return lower.decode() if lower and lower == upper else None


def _failures() -> tuple[type[Exception], ...]:
    """What PyIceberg raises: its own errors, those of Arrow, and plain ones. Anything else ends this process, which is
    told as that PyIceberg could not be asked."""
    from pyiceberg import exceptions

    own = [each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, Exception)]
    plain: tuple[type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError)
    plain += (RuntimeError, SystemError, TypeError, ValueError)  # SystemError is of its compiled decoder
    return (*own, pa.ArrowException, *plain)


if __name__ == "__main__":
    request = json.loads(sys.stdin.read())
    print(json.dumps(answers(request["asked"], request["properties"])))  # noqa: T201  # the answer
