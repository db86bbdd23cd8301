"""Rows of the source, by its own engine, against what the target's own engine answers."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.errors import BridgeError
from bridge.model.sample import sample
from bridge.model.table import TableName
from bridge.ports import Check, ProgressSink, SourceTable, Target

__all__ = ["check_rows"]


def check_rows(
    source: SourceTable, target: Target, name: TableName, first: int, progress: ProgressSink
) -> Iterator[Check]:
    """The current rows, then those at the oldest, the newest and a few commits between of what the target holds."""
    held = target.holds(name)
    commits = [commit for commit in source.table.commits[first:] if commit.id in held]
    for commit in ["", *dict.fromkeys(each.id for each in sample(commits))]:
        progress.step(f"{name}: comparing rows {'at ' + commit if commit else 'now'}")
        try:
            yield target.compare(name, commit, source.rows(commit))
        except BridgeError as error:
            yield Check(f"{name}: rows {'at ' + commit if commit else 'now'}", error.message)
