"""One table from a plan to a metadata document: everything that it names is written, nobody knows of it yet."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import BridgeError
from bridge.model.files import Files
from bridge.model.layout import PartitionSpec
from bridge.model.rewrite import OWN_DIRECTORY
from bridge.model.schema import Schema, walk
from bridge.model.table import Table
from bridge.model.types import ColumnType, FieldId
from bridge.ports import ProgressSink, TableWrite
from converters import storage
from converters.iceberg.avro import records_mentioning
from converters.iceberg.publish.bookmark import has_rewritten, kept_commits, taken_numbers
from converters.iceberg.publish.delete_writer import Deleted, DeleteWriter
from converters.iceberg.publish.entries import Record
from converters.iceberg.publish.held import Concerned, as_of, held_state, lost_snapshots
from converters.iceberg.publish.history import Entries, Made, State, publish
from converters.iceberg.publish.layout import outgrown_specs, published_specs
from converters.iceberg.publish.lifetimes import Spans, spans_of
from converters.iceberg.publish.manifest_files import ManifestFiles
from converters.iceberg.publish.measures import Measures
from converters.iceberg.publish.metadata_file import built, published_schema, snapshot_ids
from converters.iceberg.publish.partitions import Proofs
from converters.iceberg.publish.type_changes import agreeing
from converters.iceberg.publish.way_back import RESTORED

__all__ = ["Published", "held_specs", "prepare"]

_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Published:
    """What is to become the table's metadata, and the files that were written for it."""

    metadata: Mapping[str, Any]
    made: tuple[Made, ...]
    written: tuple[str, ...]
    files: int

    def discard(self) -> None:
        """Remove what nobody will ever name."""
        for path in self.written:
            with suppress(BridgeError):
                storage.remove(path)


def _unpartitioned(specs: Mapping[int, PartitionSpec]) -> int:
    for id_, spec in sorted(specs.items()):
        if not spec.fields:
            return id_
    return 0 if 0 not in specs else max(specs) + 1_000


def _versions(table: Table) -> tuple[list[Schema], np.ndarray]:
    """The table's schemas under Iceberg's types, oldest first, and the place of each commit's among them."""
    ids = sorted(table.schemas)
    place = {id_: number for number, id_ in enumerate(ids)}
    schemas = [published_schema(table.schemas[id_]) for id_ in ids] or [published_schema(table.schema)]
    return schemas, np.array([place.get(each.schema, len(ids) - 1) for each in table.commits] or [0], dtype=np.int64)


def _types(schemas: Sequence[Schema]) -> dict[FieldId, list[ColumnType]]:
    """The type of each leaf under each schema; where one lacks it, under the nearest later that has it."""
    known: list[dict[FieldId, ColumnType]] = [
        {each.field.id: each.field.type for each in walk(schema.fields) if each.is_leaf} for schema in schemas
    ]
    found: dict[FieldId, list[ColumnType]] = {}
    for field in {each for one in known for each in one}:
        types: list[ColumnType] = []
        for place in range(len(known)):
            later = next((one[field] for one in known[place:] if field in one), None)
            earlier = next((one[field] for one in reversed(known[:place]) if field in one), None)
            types.append(later if later is not None else earlier)  # type: ignore[arg-type]  # some schema has it
        found[field] = types
    return found


class _Maker:
    """Makes the entries of files, manifest by manifest."""

    def __init__(
        self,
        files: Files,
        spans: Spans,
        measures: Measures,
        proofs: Proofs,
        specs: np.ndarray,
        manifests: ManifestFiles,
        deletes: DeleteWriter,
        held: np.ndarray,
        partitions: HeldPartitions,
    ) -> None:
        self._held = held
        self._partitions_held = partitions
        self._table = files.table
        self._spans = spans
        self._measures = measures
        self._proofs = proofs
        self._specs = specs
        self._manifests = manifests
        self._deletes = deletes

    def records(self, numbers: np.ndarray) -> Iterable[Record]:
        """The entries of data files, or of delete files that are written on the way."""
        count = len(self._spans.row)
        for start in range(0, len(numbers), _BATCH):
            part = numbers[start : start + _BATCH]
            yield from self._data(part) if part[0] < count else self._deleted(part - count)

    def _partitions(self, rows: np.ndarray) -> list[Record]:
        spec = int(self._specs[rows[0]])
        names = self._manifests.encoding(spec).names
        return [dict(zip(names, each, strict=True)) for each in self._proofs.values(spec, rows)]

    def _data(self, numbers: np.ndarray) -> Iterable[Record]:
        rows = self._spans.row[numbers]
        taken = self._table.take(pa.array(rows))
        columns = [taken.column(name).to_pylist() for name in ("path", "record_count", "size", "first_row_id")]
        maps = self._measures.pairs(rows)
        for path, records, size, first_row_id, partition, *stats in zip(
            *columns, self._partitions(rows), *maps.values(), strict=True
        ):
            yield {
                "content": 0,
                "file_path": path,
                "file_format": "PARQUET",
                "partition": partition,
                "record_count": records,
                "file_size_in_bytes": size,
                "first_row_id": first_row_id,
                **dict(zip(maps, stats, strict=True)),
            }

    def _deleted(self, numbers: np.ndarray) -> Iterable[Record]:
        sets = self._spans.deletes
        rows = self._spans.row[sets.span[numbers]]
        paths = self._table.column("path").take(pa.array(rows)).to_pylist()
        partitions = self._partitions(rows)
        if self._manifests.encoding(int(self._specs[rows[0]])).names and self._held[rows].any():
            known = self._partitions_held.of(sets.span[numbers], frozenset(paths))
            partitions = [known.get(path, own) for path, own in zip(paths, partitions, strict=True)]
        return self._deletes.write(
            [
                Deleted(path, sets.positions(number), partition)
                for path, number, partition in zip(paths, numbers.tolist(), partitions, strict=True)
            ]
        )


def prepare(
    write: TableWrite,
    location: str,
    version: int,
    held: Mapping[str, Any] | None,
    held_path: str,
    mark: str,
    properties: Mapping[str, str],
    progress: ProgressSink,
) -> Published:
    """Write manifests and delete files below a location. `held` is the metadata that the target has, found at
    `held_path`; `mark` is part of every name, and nobody else's."""
    files = write.files
    ours = bool(pc.any(pc.starts_with(files.table.column("path"), f"{location}/data/{OWN_DIRECTORY}")).as_py())
    if files.since is not None and held is not None:
        ours = ours or has_rewritten(held) is not False
    write = replace(write, table=agreeing(write.table, ours))
    table = write.table
    base = write.base
    start = write.first if base is None else base + 1
    schemas, version_of_commit = _versions(table)
    before = held_specs(held)
    if base is None:
        before = {id_: each for id_, each in before.items() if not outgrown_specs(table, {id_: each})}
    specs, place = published_specs(table, before)
    whole = _unpartitioned(specs)
    specs.setdefault(whole, PartitionSpec(whole))
    types = _types(schemas)
    latest = {field: each[-1] for field, each in types.items()}
    begin = files.table.column("begin").to_numpy()
    stated = files.table.column("spec").to_numpy().astype(np.int64)
    spec_of = np.full(len(stated), whole, dtype=np.int64)
    for source, number in place.items():
        spec_of[stated == source] = number
    if RESTORED in place:
        spec_of[stated == 0] = place[RESTORED]
    measures = Measures(types, version_of_commit[np.clip(begin, 0, len(version_of_commit) - 1)])
    proofs = Proofs(specs, spec_of, latest)
    progress.step(f"{write.name}: statistics of {files.table.num_rows} files")
    for batch in files.stats():
        measures.add(batch)
        proofs.add(batch)
    spans = spans_of(files, write.first)
    metadata_directory = f"{location}/metadata"
    storage.make_directory(metadata_directory)
    storage.make_directory(f"{location}/data")
    manifests = ManifestFiles(metadata_directory, mark, version, specs, latest)
    deletes = DeleteWriter(f"{location}/data", mark, version)
    # a commit that the source has expired: what was deleted then cannot be told any more
    known = "" if base is None or base < 0 else table.commits[base].id
    expired = base is not None and not write.onto and write.held not in (None, known)
    after = held
    if held is not None and (base is None or write.onto):
        after = as_of(held, kept_commits(held)[write.onto] if write.onto else None)
    numbers = {} if after is None else _numbers(spans, files, -1 if base is None else base, expired)
    partitioned = [id_ for id_, each in specs.items() if each.fields]
    concerned = None if files.since is None or base is None else _concerned(files, base, bool(partitioned))
    state = held_state(after, numbers, len(spans.row) + len(spans.deletes), concerned)
    listed = _listed(state, spans, len(stated))
    spec_of = np.where(listed >= 0, listed, proofs.settled(whole))
    partitions = HeldPartitions(state, partitioned)
    maker = _Maker(files, spans, measures, proofs, spec_of, manifests, deletes, listed >= 0, partitions)
    entries = _entries(spans, spec_of, -1 if base is None else base, maker)
    if base is not None:
        entries = _with_missing(entries, state, start, concerned is not None)
    unknown = max((int(each.members.max(initial=-1)) for each in state.manifests), default=-1) + 1
    entries = _with_unknown(entries, unknown, start)
    taken = taken_numbers(held or {}, table)
    ids = snapshot_ids(table, held, base, bool(write.onto), taken)
    of_commit = [schemas[version_of_commit[place]] for place in range(len(table.commits))]
    progress.step(f"{write.name}: writing manifests of {len(table.commits) - start} snapshots")
    made: list[Made] = []
    try:
        made = publish(table.commits, start, ids, of_commit, _sequences(held, ids), entries, state, manifests)
        storage.settle((*manifests.written, *deletes.written))
    except BaseException:
        Published({}, (), (*manifests.written, *deletes.written), 0).discard()
        raise
    lost = frozenset[int]()
    if held is not None and files.since is None:
        lost = lost_snapshots(held, frozenset(files.table.column("path").to_pylist()))
    metadata = built(
        write,
        made,
        lost,
        specs,
        place[table.spec.id],
        version,
        location,
        held,
        after,
        held_path,
        state.next_row_id,
        properties,
        ours,
        taken,
        time.time_ns() // 1_000_000,
    )
    added = int(entries.new[: entries.data].sum())
    return Published(metadata, tuple(made), (*manifests.written, *deletes.written), added)


def _sequences(held: Mapping[str, Any] | None, ids: Sequence[int]) -> dict[int, int]:
    """The sequence numbers that snapshots have; the first that is new comes after all that were ever given."""
    snapshots = (held or {}).get("snapshots") or ()
    found = {int(each["snapshot-id"]): int(each["sequence-number"]) for each in snapshots}
    new = 1 + max((place for place, id_ in enumerate(ids) if id_ in found), default=-1)
    if new < len(ids) and held is not None:
        found[ids[new]] = int(held.get("last-sequence-number", 0)) + 1
    return found


def held_specs(held: Mapping[str, Any] | None) -> dict[int, PartitionSpec]:
    """The partition specs of a metadata document by their ids."""
    from converters.iceberg.partition import spec_of

    return {each.id: each for each in map(spec_of, (held or {}).get("partition-specs") or ())}


def _listed(state: State, spans: Spans, count: int) -> np.ndarray:
    """The spec under which the target lists the file of each row, -1 for those that it does not list."""
    found = np.full(count, -1, dtype=np.int64)
    for manifest in state.manifests:
        if not manifest.content:
            members = manifest.members
            found[spans.row[members[(members >= 0) & (members < len(spans.row))]]] = manifest.spec
    return found


class HeldPartitions:
    """The partitions of files that the target lists, as it lists them: their deletes have to lie in the same."""

    def __init__(self, state: State, specs: Collection[int]) -> None:
        self._manifests = [each for each in state.manifests if not each.content and each.spec in specs]

    def of(self, numbers: np.ndarray, paths: Collection[str]) -> dict[str, Record]:
        """Those of some files, by number and by path."""
        holding = [each for each in self._manifests if np.isin(numbers, each.members).any()]
        contents = (storage.read(each.path, "manifest") for each in holding)
        files = (each["data_file"] for content in contents for each in records_mentioning(content, paths))
        return {each["file_path"]: each["partition"] for each in files if each["file_path"] in paths}


def _entries(spans: Spans, spec_of: np.ndarray, base: int, maker: _Maker) -> Entries:
    """All files under one numbering."""
    sets = spans.deletes
    begin, end = np.concatenate([spans.begin, sets.begin]), np.concatenate([spans.end, sets.end])
    row = np.concatenate([spans.row, spans.row[sets.span]])
    return Entries(len(spans.row), begin, end, spec_of[row], begin > base, maker.records)


def _numbers(spans: Spans, files: Files, base: int, expired: bool) -> dict[tuple[int, str], tuple[int, int]]:
    """The numbers and record counts of files that the target may hold: data files that are live at commit `base` or at
    the next, and deletes that are in effect at `base`, unless its state is of a commit that is gone."""
    count, sets = len(spans.row), spans.deletes
    begin, end = np.concatenate([spans.begin, sets.begin]), np.concatenate([spans.end, sets.end])
    row = np.concatenate([spans.row, spans.row[sets.span]])
    data = np.arange(len(begin)) < count
    there = np.flatnonzero(np.where(data, begin <= base + 1, (begin <= base) & (not expired)) & (end > base))
    paths = files.table.column("path").take(pa.array(row[there])).to_pylist()
    return {
        (int(number >= count), path): (number, len(sets.positions(number - count)) if number >= count else -1)
        for number, path in zip(there.tolist(), paths, strict=True)
    }


def _concerned(files: Files, base: int, partitioned: bool) -> Concerned:
    """The files that the target holds at a commit and that change later, where all others were left out. What is
    deleted in a file has to lie in the same partition as the target lists for that."""
    held = files.table.filter(pc.less_equal(files.table.column("begin"), base)).select(["path", "end"])
    ending = held.filter(pc.fill_null(pc.greater(held.column("end"), base), False))
    touched = frozenset(held.column("path").to_pylist())
    return Concerned(touched if partitioned else frozenset(ending.column("path").to_pylist()), touched)


def _with_missing(entries: Entries, state: State, start: int, deletes_alone: bool) -> Entries:
    """What the target lists is not new; what it lacks of the state that it is at begins with the next commit. Where not
    all data files were looked for, those that began before are there."""
    seen = np.zeros(len(entries.begin), dtype=bool)
    for manifest in state.manifests:
        members = manifest.members
        seen[members[(members >= 0) & (members < len(seen))]] = True
    new = ~seen & (entries.end > start)
    if deletes_alone:
        new[: entries.data] = entries.new[: entries.data]
    return replace(entries, new=new, begin=np.where(new, np.maximum(entries.begin, start), entries.begin))


def _with_unknown(entries: Entries, count: int, start: int) -> Entries:
    """What the target lists and the source does not know any more leaves with the next commit."""
    more = count - len(entries.begin)
    if more <= 0:
        return entries
    return Entries(
        entries.data,
        np.append(entries.begin, np.full(more, -1)),
        np.append(entries.end, np.full(more, start)),
        np.append(entries.spec, np.zeros(more, dtype=np.int64)),
        np.append(entries.new, np.zeros(more, dtype=bool)),
        entries.records,
    )
