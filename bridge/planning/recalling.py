"""Commits that a source has forgotten and a target still knows by name."""

from __future__ import annotations

from dataclasses import replace

from bridge.model.table import Table
from bridge.ports import CountsRows, SourceTable, TargetTable

__all__ = ["recalled"]


def recalled(opened: SourceTable, there: TargetTable | None) -> Table:
    """The table, whose commits are called as the target calls states that are the same.

    A lake that has expired the snapshot in which a table changed last may have expired later changes with it, of which
    its catalog tells nothing more: rows that were deleted together with their files. Whatever adds rows or changes a
    column is told of by what it made. So a state is the one of before where nothing that is told of lies between and
    the number of rows is the same. The newest can only be the one that the target is at: an older one would be a way
    back, of which a lake that has merely expired snapshots knows nothing.
    """
    if there is None or not there.states or not isinstance(opened, CountsRows):
        return opened.table
    known = {changed for changed, _ in there.states}
    at = "" if there.bookmark is None else there.bookmark.commit
    commits = list(opened.table.commits)
    for place, each in enumerate(commits):
        rows = opened.count(each.id) if each.changed in known else None
        name = None if rows is None else there.states.get((each.changed, rows))
        if name is not None and (place < len(commits) - 1 or name == at):
            commits[place] = replace(each, id=name)
    return replace(opened.table, commits=tuple(commits))
