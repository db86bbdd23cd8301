"""From which commit on a table that the target holds goes on, or whether it may at all."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.errors import Conflict, UsageError
from bridge.model.files import FileProblem
from bridge.model.findings import Code, Finding
from bridge.model.options import Options
from bridge.model.table import Table
from bridge.ports import Bookmark, Stale, TargetTable

__all__ = ["base_of", "is_restored", "rewound"]


def base_of(table: Table, held: TargetTable, definition: str, options: Options) -> int | Finding:
    """The commit index the target holds (-1: the table before its first commit); the number of commits when there is
    nothing to do; a finding when the name is somebody else's."""
    name, bookmark = held.name, held.bookmark
    if bookmark is None:
        return Finding(
            Code.TARGET_EXISTS,
            str(table.name),
            f"{name} exists in the target and was not made by this tool",
            "choose another name with --as",
        )
    if bookmark.source.get("uuid") != table.uuid or (
        not table.uuid and bookmark.source.get("location") != table.location
    ):
        again = table.format == bookmark.source.get("format") == "ducklake" and (
            bookmark.source.get("location") == table.location
        )
        which = "a table of that name that was dropped since" if again else str(bookmark.source.get("location"))
        hint = "choose another name with --as"
        if held.listed is not None:
            hint += f", or release {name} at the target first"
        return Finding(Code.TARGET_EXISTS, str(table.name), f"{name} was migrated from {which}", hint)
    if bookmark.changed_by.startswith("dropped_table"):
        raise Conflict(
            f"{name} was dropped in the lake ({bookmark.changed_by})", hint="release it first to migrate it again"
        )
    ids = [commit.id for commit in table.commits]
    newest = ids[-1] if ids else ""
    other = is_restored(table, bookmark)
    if held.listed is not None and bookmark.changed_by:
        raise Conflict(
            f"{name} was changed by somebody else ({bookmark.changed_by}) since it was published",
            hint="publish it under another name with --as, or go on there alone",
        )
    if bookmark.commit == newest and bookmark.definition == definition and not other:
        # snapshots that the source has expired are taken from the target's list, since their files may go
        return len(table.commits) - 1 if held.commits - set(ids) else len(table.commits)
    if table.imported:
        what = "the source changed" if bookmark.commit != newest else "other types or another layout are asked for"
        raise Conflict(
            f"{name}: {what} since it was imported, and a table that keeps no history cannot be caught up with",
            hint=f"release {name} and migrate it again, or migrate it under another name with --as",
        )
    if bookmark.changed_by:
        raise Conflict(
            f"{name} was changed in the lake ({bookmark.changed_by}) and at the source since the last run",
            hint="release the table and migrate it again"
            + (
                ""
                if bookmark.maintained
                else ", which gives up what was written in the lake, or go on in the lake alone"
            ),
        )
    if bookmark.commit == "":
        return -1
    if other and held.listed is not None and options.follow and options.at is None:
        return min(_until(table, bookmark), len(ids) - 2)
    if bookmark.commit not in ids and options.at is not None:
        raise UsageError(f"{name} holds a later state than --at {options.at}", hint="leave --at out to catch up")
    if (
        bookmark.commit not in ids
        and held.listed is not None
        and (base := _expired(table, bookmark.commit)) is not None
    ):
        # in a lake that was restored its number may be another table's, and those before it other commits'
        return base if bookmark.time is None else min(base, _until(table, bookmark))
    if bookmark.commit not in ids or other:
        raise Conflict(
            f"{table.name}: commit {bookmark.commit}, which the lake holds, is no longer in the source's main history",
            hint="it was rolled back or expired; mirror follows it, or release the table and migrate it again",
        )
    return ids.index(bookmark.commit)


def _expired(table: Table, commit: str) -> int | None:
    """The last kept commit before one that the source has expired, -1 for none; None where that cannot be told. A lake
    has no branches: what has a greater number came after it."""
    ids = [each.id for each in table.commits]
    if table.format != "ducklake" or not all(each.isdecimal() for each in (commit, *ids)):
        return None
    older = sum(int(each) < int(commit) for each in ids)
    return older - 1 if older < len(ids) else None


def is_restored(table: Table, bookmark: Bookmark) -> bool:
    """Whether a lake's catalog was restored from a backup, so that the commit which the target holds is not there any
    more, or another one has its number: a number that a kept snapshot has is told by its time, and none that was
    expired is greater than all others."""
    if table.format != "ducklake" or bookmark.time is None or not bookmark.commit.isdecimal() or not table.commits:
        return False
    same = next((each for each in table.commits if each.id == bookmark.commit), None)
    if same is None:
        newest = table.commits[-1].id
        return newest.isdecimal() and int(newest) < int(bookmark.commit)
    return same.summary.get("ducklake.snapshot-id") == same.id and same.own_time != bookmark.time


def _until(table: Table, bookmark: Bookmark) -> int:
    """The last commit that is not later than the one that the target holds, by its time."""
    return sum(bookmark.time is not None and each.own_time <= bookmark.time for each in table.commits) - 1


def _counted(snapshots: int) -> str:
    return "1 published snapshot is" if snapshots == 1 else f"{snapshots} published snapshots are"


def rewound(
    table: Table, held: TargetTable, stale: Stale, base: int, problems: Sequence[FileProblem]
) -> tuple[int | None, list[Finding]]:
    """The commit index after which the target is made anew, None for all of it, so that no snapshot stays that cannot:
    `base` when all can, or when others cannot take their place and they leave."""
    place = {commit.id: index for index, commit in enumerate(table.commits)}
    again = {place[each] for each in stale.commits if each in place}
    if not again and not stale.whole:
        return base, []
    kept = sorted(place[each] for each in held.commits if each in place)
    before = max((each for each in kept if each < min(again, default=0)), default=None)
    why = stale.why
    possible = stale.replaceable
    if before is not None:
        forbidding = [each for each in problems if each.last is not None and each.last > before + 1]
        why = f"{why}, and {forbidding[0].finding.detail}" if forbidding else why
        possible = possible and not forbidding
    if possible:
        count = sum(before is None or each > before for each in kept)
        said = (
            f"{_counted(count)} made anew: {why}"
            if count
            else f"the whole table is made anew, without what was expired: {why}"
        )
        return before, [Finding(Code.HISTORY_REBUILT, str(table.name), said)]
    said = f"{_counted(len(again))} taken out: {why}"
    return base, [Finding(Code.HISTORY_TRIMMED, str(table.name), said)]
