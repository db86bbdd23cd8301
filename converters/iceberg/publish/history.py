"""Commit after commit as Iceberg snapshots: which manifests each lists, and what it changed.

What is known of the future decides how entries are laid out: files that will leave are kept apart from those that stay
and in the order in which they leave, so that taking some away rewrites few entries. Manifests that pile up are joined
in tiers, each entry a few times over the whole history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bridge.model.schema import Schema
from bridge.model.table import Commit
from converters.iceberg.publish.entries import DELETED, EXISTING, Entry, Record
from converters.iceberg.publish.lifetimes import NEVER
from converters.iceberg.publish.manifest_files import GONE, Manifest, ManifestFiles

__all__ = ["Counts", "Entries", "Made", "State", "publish"]

_MANIFEST, _PASSING = 2_000, 500
"""Entries of a manifest. Removing a file writes its manifest anew, at a third of a millisecond an entry."""
_TIER = 16


@dataclass(frozen=True, slots=True)
class Entries:
    """Every data file (first) and delete file (then) that is live at some commit, under one numbering."""

    data: int
    begin: np.ndarray
    end: np.ndarray
    spec: np.ndarray
    new: np.ndarray
    """Whether the target does not hold it yet."""
    records: Callable[[np.ndarray], Iterable[Record]]
    """The entries of some new files, all data files or all delete files of one spec."""


@dataclass(slots=True)
class State:
    """What the newest snapshot lists, and the numbers that go on."""

    manifests: list[Manifest] = field(default_factory=list)
    sequence: int = 0
    snapshot: int | None = None
    next_row_id: int = 0
    totals: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What one snapshot changed."""

    files: list[int] = field(default_factory=lambda: [0, 0])
    removed: list[int] = field(default_factory=lambda: [0, 0])
    records: list[int] = field(default_factory=lambda: [0, 0])
    removed_records: list[int] = field(default_factory=lambda: [0, 0])
    size: int = 0
    removed_size: int = 0
    vectors: list[int] = field(default_factory=lambda: [0, 0])
    partitions: set[str] = field(default_factory=set)

    def add(self, file: Entry) -> None:
        self.files[file.content] += 1
        self.records[file.content] += file.rows
        self.size += file.size
        self.vectors[0] += file.is_vector

    def remove(self, file: Entry) -> None:
        self.removed[file.content] += 1
        self.removed_records[file.content] += file.rows
        self.removed_size += file.size
        self.vectors[1] += file.is_vector

    @property
    def operation(self) -> str:
        """By Iceberg's words (specification, "Snapshots")."""
        if self.files[0] and not (self.removed[0] or self.files[1] or self.removed[1]):
            return "append"
        if not self.files[0] and (self.removed[0] or self.files[1]) and self.records[1] >= self.removed_records[1]:
            return "delete"
        return "overwrite" if self.files[0] or self.removed[1] else "append"


@dataclass(frozen=True, slots=True)
class Made:
    """A snapshot that was written."""

    commit: Commit
    id: int
    parent: int | None
    sequence: int
    manifest_list: str
    counts: Counts
    totals: Mapping[str, int]
    first_row_id: int
    rows: int


def publish(
    commits: Sequence[Commit],
    start: int,
    ids: Sequence[int],
    schemas: Sequence[Schema],
    sequences: Mapping[int, int],
    entries: Entries,
    state: State,
    files: ManifestFiles,
) -> list[Made]:
    """Write the manifests of every commit from `start` on; `ids` and `schemas` are those of all commits, `sequences`
    the numbers that some of the ids have already."""
    return _Publication(entries, state, files, sequences).run(commits, start, ids, schemas)


class _Publication:
    def __init__(self, entries: Entries, state: State, files: ManifestFiles, sequences: Mapping[int, int]) -> None:
        self._sequences = sequences
        self._entries = entries
        self._state = state
        self._files = files
        self._held: dict[int, Manifest] = dict(enumerate(state.manifests))
        self._next = len(state.manifests)
        self._manifest_of = np.full(len(entries.begin), -1, dtype=np.int64)
        for key, manifest in self._held.items():
            self._place(key, manifest)

    def _place(self, key: int, manifest: Manifest) -> None:
        self._manifest_of[manifest.members[manifest.members >= 0]] = key

    def _hold(self, manifest: Manifest) -> None:
        self._held[self._next] = manifest
        self._place(self._next, manifest)
        self._next += 1

    def run(self, commits: Sequence[Commit], start: int, ids: Sequence[int], schemas: Sequence[Schema]) -> list[Made]:
        begin, end = self._entries.begin, self._entries.end
        added = _by_commit(np.flatnonzero(self._entries.new), begin)
        removed = _by_commit(np.flatnonzero(end < NEVER), end)
        made = []
        nothing = np.array([], dtype=np.int64)
        for index in range(start, len(commits)):
            made.append(
                self._commit(
                    commits[index], ids[index], schemas[index], added.get(index, nothing), removed.get(index, nothing)
                )
            )
        self._state.manifests = list(self._held.values())
        return made

    def _commit(self, commit: Commit, id_: int, schema: Schema, added: np.ndarray, removed: np.ndarray) -> Made:
        state, counts = self._state, Counts()
        state.sequence = max(state.sequence + 1, self._sequences.get(id_, 0))
        first_row_id = state.next_row_id
        writer = _Writer(self._files, id_, state, schema, counts)
        for key, manifest in list(self._held.items()):
            if not manifest.live:
                del self._held[key]
        for key in np.unique(self._manifest_of[removed]).tolist():
            if key >= 0:
                manifest = self._held.pop(key)
                self._hold(writer.without(manifest, removed))
        for content, numbers in enumerate((added[added < self._entries.data], added[added >= self._entries.data])):
            for spec, group in self._groups(numbers):
                passing = bool((self._entries.end[group] < NEVER).all())
                self._hold(writer.added(spec, content, group, self._entries.records(group), passing))
        for keys in self._piles(id_):
            self._hold(writer.joined([self._held.pop(key) for key in keys]))
        for name, change in _changes(counts):
            state.totals[name] = state.totals.get(name, 0) + change
        place = self._files.write_list(id_, state.snapshot, state.sequence, list(self._held.values()))
        parent, state.snapshot = state.snapshot, id_
        rows = state.next_row_id - first_row_id
        return Made(commit, id_, parent, state.sequence, place, counts, dict(state.totals), first_row_id, rows)

    def _groups(self, numbers: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
        """Files of one spec for one manifest: those that stay, and those that leave in the order in which they do."""
        for spec in np.unique(self._entries.spec[numbers]).tolist():
            mine = numbers[self._entries.spec[numbers] == spec]
            ends = self._entries.end[mine]
            staying = mine[ends == NEVER]
            for place in range(0, len(staying), _MANIFEST):
                yield spec, staying[place : place + _MANIFEST]
            leaving = mine[ends < NEVER]
            leaving = leaving[np.argsort(self._entries.end[leaving], kind="stable")]
            cuts, first = [], 0
            ends = self._entries.end[leaving]
            for place in range(1, len(leaving)):
                size = place - first
                if size >= _MANIFEST or (size >= _PASSING and ends[place] != ends[place - 1]):
                    cuts.append(place)
                    first = place
            yield from ((spec, group) for group in np.split(leaving, cuts) if len(group))

    def _piles(self, snapshot: int) -> Iterable[list[int]]:
        """Manifests of like size that are too many; those that this snapshot wrote wait for a later one."""
        tiers: dict[tuple[int, int, bool, int], list[int]] = {}
        for key, each in self._held.items():
            largest = _PASSING if each.passing else _MANIFEST
            if each.snapshot != snapshot and 0 < each.live < largest // 2:
                tier = (each.live.bit_length() - 1) // 4
                tiers.setdefault((each.spec, each.content, each.passing, tier), []).append(key)
        return [self._together(keys[:_TIER]) for keys in tiers.values() if len(keys) >= _TIER]

    def _together(self, keys: list[int]) -> list[int]:
        """As many of some manifests, two at least, as make no larger one than is written at once."""
        sizes = np.cumsum([self._held[key].live for key in keys])
        return keys[: max(2, int(np.searchsorted(sizes, _MANIFEST, side="right")))]


class _Writer:
    """Writes manifests in the name of one snapshot."""

    def __init__(self, files: ManifestFiles, snapshot: int, state: State, schema: Schema, counts: Counts) -> None:
        self._files = files
        self._snapshot = snapshot
        self._state = state
        self._schema = schema
        self._counts = counts

    def _write(
        self, like: Manifest | None, spec: int, content: int, entries: Iterable[Entry], members: np.ndarray,
        passing: bool, first_row_id: int | None,
    ) -> Manifest:  # fmt: skip
        manifest = self._files.write(
            spec, content, self._snapshot, self._state.sequence, self._schema, entries, members, passing
        )
        if content or self._files.version < 3:
            return manifest
        return replace(manifest, first_row_id=first_row_id if like is None else like.first_row_id)

    def added(self, spec: int, content: int, numbers: np.ndarray, files: Iterable[Record], passing: bool) -> Manifest:
        """A manifest of new files."""
        first, encoding = self._state.next_row_id, self._files.encoding(spec)

        def entries() -> Iterable[Entry]:
            for file in files:
                if not content and self._files.version >= 3:
                    self._number(file)
                made = encoding.added(self._snapshot, self._state.sequence, file)
                self._counts.add(made)
                yield made

        return self._write(None, spec, content, entries(), numbers, passing, first)

    def _number(self, file: Record) -> None:
        """Row ids: the file's own, or the next ones."""
        if file["first_row_id"] is None:
            file["first_row_id"] = self._state.next_row_id
        self._state.next_row_id = max(self._state.next_row_id, file["first_row_id"] + file["record_count"])

    def without(self, manifest: Manifest, removed: np.ndarray) -> Manifest:
        """A manifest again, with some files removed."""
        leaving = np.isin(manifest.members, removed)

        def entries() -> Iterable[Entry]:
            for number, leaves, each in zip(manifest.members, leaving, self._files.taken(manifest), strict=True):
                if leaves:
                    self._counts.remove(each)
                    yield replace(each, status=DELETED, snapshot=self._snapshot)
                elif number != GONE:
                    yield replace(each, status=EXISTING)

        members = np.where(leaving, GONE, manifest.members)[manifest.members != GONE]
        return self._write(manifest, manifest.spec, manifest.content, entries(), members, manifest.passing, None)

    def joined(self, manifests: Sequence[Manifest]) -> Manifest:
        """One manifest in the place of several."""
        entries = (
            replace(each, status=EXISTING)
            for manifest in manifests
            for each in self._files.taken(manifest)
            if each.status != DELETED
        )
        members = np.concatenate([each.kept for each in manifests])
        first = min((each.first_row_id for each in manifests if each.first_row_id is not None), default=None)
        like = replace(manifests[0], first_row_id=first)
        return self._write(like, like.spec, like.content, entries, members, like.passing, None)


def _by_commit(numbers: np.ndarray, when: np.ndarray) -> dict[int, np.ndarray]:
    if not len(numbers):
        return {}
    order = numbers[np.argsort(when[numbers], kind="stable")]
    times = when[order]
    cuts = np.flatnonzero(times[1:] != times[:-1]) + 1
    return {int(when[group[0]]): group for group in np.split(order, cuts)}


def _changes(counts: Counts) -> Iterable[tuple[str, int]]:
    yield "total-data-files", counts.files[0] - counts.removed[0]
    yield "total-delete-files", counts.files[1] - counts.removed[1]
    yield "total-records", counts.records[0] - counts.removed_records[0]
    yield "total-position-deletes", counts.records[1] - counts.removed_records[1]
    yield "total-files-size", counts.size - counts.removed_size
