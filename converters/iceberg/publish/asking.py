"""Row counts of published tables as PyIceberg answers them; run as a process: a JSON request in, JSON answers out.

What a scan finds is asked of a table that was read whole. After a small change the manifests that it wrote are read,
and the others are taken as the manifest list counts them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["answers"]


def answers(asked: Sequence[Mapping[str, Any]], properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each of (metadata, snapshot or None): rows and column names, or the error."""
    from pyiceberg.table import StaticTable

    said: list[dict[str, Any]] = []
    opened: dict[str, Table] = {}
    for each in asked:
        try:
            place = str(each["metadata"])
            if place not in opened:
                opened[place] = StaticTable.from_metadata(place, dict(properties))
            table = opened[place]
            columns = [field.name for field in table.schema().fields]
            snapshot = each["snapshot"]
            rows = 0
            if table.metadata.current_snapshot_id is not None:
                if each["listed"]:
                    rows = _listed(table, snapshot)
                else:
                    scan = table.scan() if snapshot is None else table.scan(snapshot_id=int(snapshot))
                    rows = scan.count()
            said.append({"rows": rows, "columns": columns})
        except _failures() as error:
            said.append({"error": f"{type(error).__name__}: {error}"[:500]})
    return said


def _listed(table: Table, snapshot: int | None) -> int:
    """Rows of the data files without those that delete files name, each of which is of one data file."""
    from pyiceberg.manifest import ManifestContent

    found = table.current_snapshot() if snapshot is None else table.snapshot_by_id(int(snapshot))
    if found is None:
        raise ValueError(f"there is no snapshot {snapshot}")
    rows = 0
    for each in found.manifests(table.io):
        count = (each.added_rows_count or 0) + (each.existing_rows_count or 0)
        if each.added_snapshot_id == found.snapshot_id:
            read = sum(entry.data_file.record_count for entry in each.fetch_manifest_entry(table.io))
            if read != count:
                raise ValueError(f"{each.manifest_path} holds {read} rows, its list says {count}")
        rows += count if each.content == ManifestContent.DATA else -count
    return rows


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
