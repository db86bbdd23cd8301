"""Row counts of published tables as PyIceberg answers them; run as a process: a JSON request in, JSON answers out."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["answers"]


def answers(asked: Sequence[Mapping[str, Any]], properties: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each of (metadata, snapshot or None): rows and column names, or the error."""
    from pyiceberg.table import StaticTable

    said: list[dict[str, Any]] = []
    for each in asked:
        try:
            table = StaticTable.from_metadata(str(each["metadata"]), dict(properties))
            columns = [field.name for field in table.schema().fields]
            snapshot = each["snapshot"]
            rows = 0
            if table.metadata.current_snapshot_id is not None:
                scan = table.scan() if snapshot is None else table.scan(snapshot_id=int(snapshot))
                rows = sum(task.file.record_count for task in scan.plan_files()) if each["plain"] else scan.count()
            said.append({"rows": rows, "columns": columns})
        except _failures() as error:
            said.append({"error": f"{type(error).__name__}: {error}"[:500]})
    return said


def _failures() -> tuple[type[Exception], ...]:
    """What PyIceberg raises: its own errors, those of Arrow, and plain ones. Anything else ends this process, which is
    told as that PyIceberg could not be asked."""
    from pyiceberg import exceptions

    own = [each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, Exception)]
    plain = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
    return (*own, pa.ArrowException, *plain)


if __name__ == "__main__":
    request = json.loads(sys.stdin.read())
    print(json.dumps(answers(request["asked"], request["properties"])))  # noqa: T201  # the answer
