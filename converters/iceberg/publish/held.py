"""What the target's newest snapshot lists, under the numbers of the files to publish."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bridge.model.paths import is_within
from converters import storage
from converters.iceberg.avro import mentions, read_frame, read_records
from converters.iceberg.publish.bookmark import kept_commits, source_commits
from converters.iceberg.publish.entries import DELETED
from converters.iceberg.publish.history import State
from converters.iceberg.publish.manifest_files import GONE, OTHER, manifest_of

__all__ = ["Concerned", "as_of", "every_path", "held_files", "held_state", "lost_snapshots"]

_ENTRY = {
    "status": pl.Int32,
    "content": pl.Int32,
    "file_path": pl.String,
    "record_count": pl.Int64,
    "referenced_data_file": pl.String,
}
_KEYS = ("status", "content", "file_path", "referenced_data_file", "record_count")
_TOTALS = ("total-data-files", "total-delete-files", "total-records", "total-position-deletes", "total-files-size")


def _current(metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    current = metadata.get("current-snapshot-id")
    return next((each for each in metadata.get("snapshots") or () if each["snapshot-id"] == current), None)


def as_of(metadata: Mapping[str, Any], snapshot: int | None) -> Mapping[str, Any]:
    """The metadata with one of our snapshots as the newest of ours, or with none of ours."""
    snapshots = metadata.get("snapshots") or ()
    found = next((each for each in snapshots if each["snapshot-id"] == snapshot), None)
    sequence = int(found["sequence-number"]) if found else 0
    ours = source_commits(metadata)
    kept = [each for each in snapshots if each["snapshot-id"] not in ours or each["sequence-number"] <= sequence]
    rows = int(found.get("first-row-id", 0)) + int(found.get("added-rows", 0)) if found else 0
    return {
        **metadata,
        "snapshots": kept,
        "current-snapshot-id": snapshot,
        "last-sequence-number": sequence,
        "next-row-id": rows,
    }


@dataclass(frozen=True, slots=True)
class Concerned:
    """Paths of data files that are looked for, and of those whose deletes are; nothing else of the target changes."""

    data: frozenset[str]
    deletes: frozenset[str]


_NOTHING = np.zeros(0, dtype=np.int64)


def held_state(
    metadata: Mapping[str, Any] | None,
    number_of: Mapping[tuple[int, str], tuple[int, int]],
    unknown: int,
    concerned: Concerned | None = None,
) -> State:
    """The state to go on from; manifests that name none of the files concerned are passed over. `number_of` gives the
    number and the record count of a live data file by (0, path) and of the deletes of a data file by (1, its path);
    what is listed beside them, or with other deletes, gets numbers from `unknown` on."""
    if metadata is None:
        return State()
    state = State(
        sequence=int(metadata.get("last-sequence-number", 0)), next_row_id=int(metadata.get("next-row-id", 0))
    )
    snapshot = _current(metadata)
    if snapshot is None:
        return state
    state.snapshot = int(snapshot["snapshot-id"])
    state.totals = {name: int(snapshot["summary"].get(name, 0)) for name in _TOTALS}
    for stored in read_records(storage.read(snapshot["manifest-list"], "manifest list")):
        wanted = None if concerned is None else concerned.deletes if stored["content"] else concerned.data
        content_ = _mentioning(stored, wanted)
        if content_ is None:
            state.manifests.append(manifest_of(stored, _NOTHING))
            continue
        frame = read_frame(content_, _ENTRY, "data_file")
        members = np.full(len(frame), GONE, dtype=np.int64)
        columns = (frame[name].to_list() for name in _KEYS)
        for place, (status, content, path, referenced, count) in enumerate(zip(*columns, strict=True)):
            if status == DELETED:
                continue
            of = referenced if content else path
            if wanted is not None and of not in wanted:
                members[place] = OTHER
                continue
            number, records = number_of.get((content, of), (-1, -1))
            if number < 0 or (content and records != count):
                number, unknown = unknown, unknown + 1
            members[place] = number
        state.manifests.append(manifest_of(stored, members))
    return state


def _mentioning(stored: Mapping[str, Any], texts: Collection[str] | None) -> bytes | None:
    """The content of a manifest; None when none of some texts is in it."""
    if texts is not None and not texts:
        return None
    content = storage.read(stored["manifest_path"], "manifest")
    return content if texts is None or mentions(content, texts) else None


def held_files(
    metadata: Mapping[str, Any], commit: str = "", texts: Collection[str] | None = None
) -> list[tuple[str, int]]:
    """(path, record count) of the data files that the newest snapshot lists, or that of a source commit; with `texts`
    at least of those in whose path one of them is."""
    if commit:
        metadata = {**metadata, "current-snapshot-id": kept_commits(metadata).get(commit)}
    snapshot, found = _current(metadata), []
    if snapshot is None:
        return []
    for stored in read_records(storage.read(snapshot["manifest-list"], "manifest list")):
        content = None if stored["content"] else _mentioning(stored, texts)
        if content is None:
            continue
        frame = read_frame(content, _ENTRY, "data_file")
        live = frame.filter(pl.col("status") != DELETED)
        found += list(zip(live["file_path"].to_list(), live["record_count"].to_list(), strict=True))
    return found


def lost_snapshots(metadata: Mapping[str, Any], known: frozenset[str]) -> frozenset[int]:
    """The snapshots that list data files which the source does not know any more, and which its cleanup removes; files
    below the table's own location are ours. Merging takes files that are live: older snapshots are looked at when the
    newest lists such a file."""
    place = str(metadata["location"])

    def lost(path: str) -> bool:
        return path not in known and not is_within(path, place)

    if not any(lost(path) for path, _ in held_files(metadata)):
        return frozenset()
    read: dict[str, bool] = {}
    found = set()
    for snapshot in metadata.get("snapshots") or ():
        for stored in read_records(storage.read(snapshot["manifest-list"], "manifest list")):
            path = str(stored["manifest_path"])
            if path not in read and not stored["content"]:
                frame = read_frame(storage.read(path, "manifest"), _ENTRY, "data_file")
                live = frame.filter(pl.col("status") != DELETED)
                read[path] = any(lost(each) for each in live["file_path"].to_list())
            if read.get(path):
                found.add(int(snapshot["snapshot-id"]))
                break
    return frozenset(found)


def every_path(metadata: Mapping[str, Any]) -> frozenset[str]:
    """The paths that any snapshot's manifests list."""
    lists = {str(each["manifest-list"]) for each in metadata.get("snapshots") or ()}
    manifests = {
        str(stored["manifest_path"]) for each in lists for stored in read_records(storage.read(each, "manifest list"))
    }
    frames = (read_frame(storage.read(each, "manifest"), _ENTRY, "data_file") for each in manifests)
    return frozenset(path for frame in frames for path in frame["file_path"].to_list())
