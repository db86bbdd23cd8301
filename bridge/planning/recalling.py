"""Commits that a source has forgotten and a target still knows by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bridge.model.files import Files, live_rows
from bridge.model.table import Table
from bridge.ports import CountsRows, SourceTable, TargetTable

__all__ = ["recalled", "recounted"]


def recalled(opened: SourceTable, there: TargetTable | None) -> Table:
    """The table, whose commits are called as the target calls states that are the same.

    A lake that has expired the snapshot in which a table changed last may have expired later changes with it, of which
    its catalog tells nothing more: rows that were deleted together with their files. Whatever adds rows or changes a
    column is told of by what it made. So a state is the one of before where nothing that is told of lies between and
    the number of rows is the same. The newest can only be the one that the target is at: an older one would be a way
    back, of which a lake that has merely expired snapshots knows nothing.
    """
    return _named(opened.table, there, opened.count) if isinstance(opened, CountsRows) else opened.table


def recounted(opened: SourceTable, files: Files, there: TargetTable | None) -> Table:
    """The same by the rows of all files, which tell also what lies in merged ones."""
    if not isinstance(opened, CountsRows) or there is None or not there.states:
        return opened.table
    commits = opened.table.commits
    rows = live_rows(files, len(commits))[: len(commits)].tolist()
    known = {each.id: int(count) for each, count in zip(commits, rows, strict=True)}
    return _named(opened.table, there, known.get)


def _named(table: Table, there: TargetTable | None, count: Callable[[str], int | None]) -> Table:
    """Where the rows are not known, an older commit is the one state that had its last change."""
    if there is None or not there.states:
        return table
    at = "" if there.bookmark is None else there.bookmark.commit
    states: dict[str, dict[int, str]] = {}
    for (changed, number), name in there.states.items():
        states.setdefault(changed, {})[number] = name
    commits = list(table.commits)
    for place, each in enumerate(commits):
        known = states.get(each.changed, {})
        rows, newest = count(each.id) if known else None, place == len(commits) - 1
        alone = "" if newest or len(known) != 1 else next(iter(known.values()))
        called = alone if rows is None else known.get(rows, "")
        if called and (not newest or called == at):
            commits[place] = replace(each, id=called)
    return replace(table, commits=tuple(commits))
