"""What a published table remembers of its source: one table property, and the source commit of each snapshot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bridge.model.table import Table
from bridge.ports import Bookmark, TableWrite

__all__ = [
    "CHANGED",
    "COMMIT",
    "PROPERTY",
    "TIME",
    "bookmark_of",
    "foreign",
    "has_rewritten",
    "kept_commits",
    "property_text",
    "refs_of",
    "source_commits",
    "states_of",
    "taken_numbers",
]

PROPERTY = "ducklake-bridge.bookmark"
COMMIT = "ducklake-bridge.source-commit"
TIME = "ducklake-bridge.source-time"
CHANGED = "ducklake-bridge.last-change"
_LAYOUT = ("current-schema-id", "default-spec-id", "default-sort-order-id", "last-column-id")


def property_text(
    write: TableWrite, snapshot: int | None, metadata: Mapping[str, Any], rewritten: bool, taken: int
) -> str:
    """The bookmark after a run that ended at a snapshot; `rewritten` and `taken` as has_rewritten and taken_numbers say
    it later."""
    commits = write.table.commits
    return json.dumps(
        {
            "source": dict(write.source),
            "commit": commits[-1].id if commits else "",
            "time": commits[-1].own_time if commits else None,
            "rewritten": rewritten,
            "definition": write.definition,
            "plan": write.plan,
            "ownership": write.ownership,
            "snapshot": snapshot,
            "layout": [metadata[key] for key in _LAYOUT],
            "refs": [each.name for each in write.table.refs if each.on_main],
            **({"taken": taken} if taken else {}),
        },
        sort_keys=True,
    )


def refs_of(metadata: Mapping[str, Any]) -> frozenset[str]:
    """The references that we made."""
    try:
        return frozenset(json.loads((metadata.get("properties") or {})[PROPERTY])["refs"])
    except (ValueError, KeyError, TypeError):
        return frozenset()


def has_rewritten(metadata: Mapping[str, Any]) -> bool | None:
    """Whether files that we wrote may be among the table's; None when nothing tells."""
    try:
        said = json.loads((metadata.get("properties") or {})[PROPERTY])["rewritten"]
    except (ValueError, KeyError, TypeError):
        return None
    return said if isinstance(said, bool) else None


def bookmark_of(metadata: Mapping[str, Any]) -> Bookmark | None:
    """What a table's metadata says; None when we did not write it."""
    text = (metadata.get("properties") or {}).get(PROPERTY)
    if text is None:
        return None
    try:
        said = json.loads(text)
        changed, maintained = _changed(metadata, said)
        return Bookmark(
            {str(key): str(value) for key, value in said["source"].items()},
            str(said["commit"]),
            str(said["definition"]),
            str(said["plan"]),
            str(said["ownership"]),
            changed,
            maintained,
            None if said.get("time") is None else int(said["time"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _changed(metadata: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[str, bool]:
    """The first change by somebody else, and whether all of them only rearranged files."""
    snapshots = {each["snapshot-id"]: each for each in _snapshots(metadata)}
    current = metadata.get("current-snapshot-id")
    current = None if current in (None, -1) else current
    ours = said["snapshot"]
    if current != ours:
        chain, at = [], current
        while at is not None and at != ours and at in snapshots and snapshots[at] not in chain:
            chain.append(snapshots[at])
            at = snapshots[at].get("parent-snapshot-id")
        operations = [(each.get("summary") or {}).get("operation", "") for each in chain]
        if not chain or at != ours:
            return f"snapshot {current}, which does not descend from {ours}", False
        told = f"snapshot {chain[-1]['snapshot-id']}, {operations[-1]}"
        return told, all(each == "replace" for each in operations)
    # a server counts columns by the schemas that it was told of, which may be fewer than the source ever had
    *ids, columns = (metadata.get(key) for key in _LAYOUT)
    if ids != said["layout"][:-1] or not isinstance(columns, int) or columns > said["layout"][-1]:
        return "its schema, partitioning or sort order", False
    return "", False


def foreign(metadata: Mapping[str, Any]) -> str:
    """The first thing in the metadata that is not ours, "" for none: a change since we wrote it, a snapshot beside the
    main line, a reference."""
    bookmark = bookmark_of(metadata)
    if bookmark is not None and bookmark.changed_by:
        return bookmark.changed_by
    ours = source_commits(metadata)
    others = (each["snapshot-id"] for each in _snapshots(metadata) if each["snapshot-id"] not in ours)
    if (snapshot := next(others, None)) is not None:
        return f"snapshot {snapshot}"
    refs = (each for each in metadata.get("refs") or () if each != "main" and each not in refs_of(metadata))
    return next((f"reference {each}" for each in refs), "")


def source_commits(metadata: Mapping[str, Any]) -> dict[int, str]:
    """Source commit by snapshot, of those of ours that the metadata still lists. Two may stand for one commit: a lake
    that was restored from a backup came back to it."""
    every = ((int(each["snapshot-id"]), (each.get("summary") or {}).get(COMMIT)) for each in _snapshots(metadata))
    return {id_: str(commit) for id_, commit in every if commit is not None}


def kept_commits(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Snapshot by source commit, the later one of two."""
    return {commit: id_ for id_, commit in source_commits(metadata).items()}


def _snapshots(metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return metadata.get("snapshots") or ()


def taken_numbers(metadata: Mapping[str, Any], table: Table) -> int:
    """Up to which number a lake's snapshots may have been published that it has lost since it was restored from a
    backup, and gives others the numbers of; 0 for none."""
    try:
        noted = int(json.loads((metadata.get("properties") or {})[PROPERTY])["taken"])
    except (ValueError, KeyError, TypeError):
        noted = 0
    if table.format != "ducklake":
        return noted
    now = {int(each.id): str(each.time) for each in table.commits if each.id.isdecimal()}
    published = {}
    for each in _snapshots(metadata):
        said = each.get("summary") or {}
        if str(said.get(COMMIT)).isdecimal():
            published[int(said[COMMIT])] = said.get(TIME)
    newest = max(now, default=0)
    lost = any(each > newest or now.get(each, time) != time for each, time in published.items())
    return max(noted, *published) if lost else noted


def states_of(metadata: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Source commits by their last change and the number of rows then, of the snapshots that the metadata lists."""
    found = {}
    for each in _snapshots(metadata):
        said = each.get("summary") or {}
        rows, deleted = str(said.get("total-records")), str(said.get("total-position-deletes", "0"))
        if COMMIT in said and rows.isdecimal() and deleted.isdecimal():
            found[str(said.get(CHANGED, said[COMMIT])), int(rows) - int(deleted)] = str(said[COMMIT])
    return found
