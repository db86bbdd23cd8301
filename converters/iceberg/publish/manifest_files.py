"""Manifests and manifest lists, written once and never changed (specification, "Manifests", "Manifest Lists")."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro
import numpy as np

from bridge.model.layout import PartitionSpec
from bridge.model.schema import Schema
from bridge.model.types import ColumnType, FieldId, Leaf
from converters import storage
from converters.iceberg.avro import read_records
from converters.iceberg.publish.avro_schemas import manifest_list_schema, partition_type
from converters.iceberg.publish.definition import schema_json, spec_json
from converters.iceberg.publish.entries import ADDED, DELETED, EXISTING, Encoding, Entry, Record
from converters.iceberg.publish.partitions import summary_bytes

__all__ = ["GONE", "OTHER", "Manifest", "ManifestFiles", "manifest_of"]

GONE, OTHER = -1, -2
"""In the place of a file's number: an entry that says only that a file was removed, one of a file without a number."""
_SMALL, _KEPT = 1_000, 20_000
"""Manifests of fewer entries are joined with others before long: theirs are kept, as many as that in all."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest as a list names it. `members` are the numbers of its entries in the order of the file; none when it
    was not read."""

    path: str
    length: int
    spec: int
    content: int
    sequence: int
    lowest: int
    snapshot: int
    counts: tuple[int, int, int]
    """Files that exist, were added, were deleted."""
    rows: tuple[int, int, int]
    summaries: tuple[Record, ...]
    first_row_id: int | None
    members: np.ndarray
    passing: bool = False
    """Whether all its files are known to leave."""

    @property
    def live(self) -> int:
        return self.counts[EXISTING] + self.counts[ADDED]

    @property
    def kept(self) -> np.ndarray:
        """The members without those that are gone."""
        if not len(self.members):
            return np.full(self.live, OTHER, dtype=np.int64)
        kept: np.ndarray = self.members[self.members != GONE]
        return kept


class ManifestFiles:
    """Writes below one directory, under names that begin with `mark`."""

    def __init__(
        self,
        directory: str,
        mark: str,
        version: int,
        specs: Mapping[int, PartitionSpec],
        types: Mapping[FieldId, ColumnType],
    ) -> None:
        self._directory = directory
        self._mark = mark
        self.version = version
        self._specs = specs
        self._types = types
        self._encodings = {id_: Encoding(version, each, types) for id_, each in specs.items()}
        self._said: dict[int, str] = {}
        self._kept: dict[str, list[Entry]] = {}
        self._count = 0
        self._numbers = 0
        self.written: list[str] = []

    def encoding(self, spec: int) -> Encoding:
        """That of the entries of a spec."""
        return self._encodings[spec]

    def write(
        self,
        spec: int,
        content: int,
        snapshot: int,
        sequence: int,
        schema: Schema,
        entries: Iterable[Entry],
        members: np.ndarray,
        passing: bool,
        first_row_id: int | None = None,
    ) -> Manifest:
        """One manifest of a snapshot."""
        listed = list(entries)
        counts, rows = [0, 0, 0], [0, 0, 0]
        for each in listed:
            counts[each.status] += 1
            rows[each.status] += each.rows
        live = [each for each in listed if each.status != DELETED]
        if schema.id not in self._said:
            self._said[schema.id] = json.dumps(schema_json(schema, self.version))
        said = {
            "schema": self._said[schema.id],
            "schema-id": str(schema.id),
            "partition-spec": json.dumps(spec_json(self._specs[spec])["fields"]),
            "partition-spec-id": str(spec),
            "format-version": str(self.version),
            "content": "deletes" if content else "data",
        }
        self._numbers += 1
        path = f"{self._directory}/{self._mark}-m{self._numbers}.avro"
        length = self._put(path, self._encodings[spec].manifest(listed, said))
        if len(live) > 0 and len(listed) < _SMALL:
            self._keep(path, listed)
        return Manifest(
            path=path,
            length=length,
            spec=spec,
            content=content,
            sequence=sequence,
            lowest=min((each.sequence for each in live), default=sequence),
            snapshot=snapshot,
            counts=(counts[0], counts[1], counts[2]),
            rows=(rows[0], rows[1], rows[2]),
            summaries=tuple(self._summaries(spec, {each.partition for each in live})),
            first_row_id=first_row_id,
            members=members,
            passing=passing,
        )

    def _keep(self, path: str, entries: list[Entry]) -> None:
        self._kept[path] = entries
        self._count += len(entries)
        while self._count > _KEPT:
            self._count -= len(self._kept.pop(next(iter(self._kept))))

    def taken(self, manifest: Manifest) -> Sequence[Entry]:
        """The entries of a manifest in whose place another is written."""
        kept = self._kept.pop(manifest.path, None)
        if kept is not None:
            self._count -= len(kept)
            return kept
        encoding = self._encodings[manifest.spec]
        return [encoding.stored(each) for each in read_records(storage.read(manifest.path, "manifest"))]

    def write_list(self, snapshot: int, parent: int | None, sequence: int, manifests: Sequence[Manifest]) -> str:
        """The list of a snapshot."""
        said = {
            "snapshot-id": str(snapshot),
            "parent-snapshot-id": str(parent) if parent is not None else "null",
            "sequence-number": str(sequence),
            "format-version": str(self.version),
        }
        buffer = io.BytesIO()
        rows = [_listed(each) for each in manifests]
        fastavro.writer(buffer, manifest_list_schema(self.version), rows, codec="deflate", metadata=said)
        path = f"{self._directory}/snap-{snapshot}-{self._mark}.avro"
        self._put(path, buffer.getvalue())
        return path

    def _put(self, path: str, content: bytes) -> int:
        storage.write(path, content, f".{self._mark}.tmp", durable=False)
        self.written.append(path)
        return len(content)

    def _summaries(self, spec: int, partitions: set[tuple[Any, ...]]) -> Iterable[Record]:
        for place, field in enumerate(self._specs[spec].fields):
            type_ = partition_type(field.transform, self._types.get(field.source, Leaf.INT32))
            values = {each[place] for each in partitions}
            known = [each for each in values if each is not None]
            yield {
                "contains_null": None in values,
                "contains_nan": False,
                "lower_bound": summary_bytes(min(known, key=_order), type_) if known else None,
                "upper_bound": summary_bytes(max(known, key=_order), type_) if known else None,
            }


def _order(value: Any) -> Any:
    """Text in the order of its bytes, as readers compare it."""
    return value.encode() if isinstance(value, str) else value


def _listed(manifest: Manifest) -> Record:
    existing, added, deleted = EXISTING, ADDED, DELETED
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec,
        "content": manifest.content,
        "sequence_number": manifest.sequence,
        "min_sequence_number": manifest.lowest,
        "added_snapshot_id": manifest.snapshot,
        "added_files_count": manifest.counts[added],
        "existing_files_count": manifest.counts[existing],
        "deleted_files_count": manifest.counts[deleted],
        "added_rows_count": manifest.rows[added],
        "existing_rows_count": manifest.rows[existing],
        "deleted_rows_count": manifest.rows[deleted],
        "partitions": list(manifest.summaries),
        "key_metadata": None,
        "first_row_id": manifest.first_row_id,
    }


def manifest_of(stored: Record, members: np.ndarray) -> Manifest:
    """A manifest as a list of the target names it."""
    return Manifest(
        path=stored["manifest_path"],
        length=stored["manifest_length"],
        spec=stored["partition_spec_id"],
        content=stored["content"],
        sequence=stored["sequence_number"],
        lowest=stored["min_sequence_number"],
        snapshot=stored["added_snapshot_id"],
        counts=(stored["existing_files_count"], stored["added_files_count"], stored["deleted_files_count"]),
        rows=(stored["existing_rows_count"], stored["added_rows_count"], stored["deleted_rows_count"]),
        summaries=tuple(stored["partitions"] or ()),
        first_row_id=stored.get("first_row_id"),
        members=members,
    )
