"""Entries of manifests. What one says of a file is encoded once, and again only when it is read back from a manifest:
a manifest that is joined with others, or loses some of its files, gets other heads alone.

A record is encoded as the concatenation of its fields (Avro specification, "Complex Types"), each of which fastavro
encodes; a manifest is made of blocks of such records.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import fastavro
from fastavro.write import Writer

from bridge.model.layout import PartitionSpec
from bridge.model.types import ColumnType, FieldId
from converters.iceberg.publish.avro_schemas import HEAD, file_schema, manifest_schema, names_of

__all__ = ["ADDED", "DELETED", "EXISTING", "Encoding", "Entry", "Record"]

EXISTING, ADDED, DELETED = 0, 1, 2
Record = dict[str, Any]
"""What an entry says of a file, or a whole one, as Avro holds it."""
_BLOCK = 16_000
"""Bytes after which a block ends, as fastavro ends them."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file in a manifest; nothing is left to be inherited. `file` is all that is said of it, encoded."""

    status: int
    snapshot: int
    sequence: int
    file_sequence: int
    content: int
    rows: int
    size: int
    is_vector: bool
    partition: tuple[Any, ...]
    file: bytes


class _Block(NamedTuple):
    """What a writer takes of a block."""

    num_records: int
    bytes_: io.BytesIO


class Encoding:
    """Of the manifests whose files lie in the partitions of one spec."""

    def __init__(self, version: int, spec: PartitionSpec, types: Mapping[FieldId, ColumnType]) -> None:
        self.names: Sequence[str] = names_of(spec)
        self._schema = manifest_schema(version, spec, types)
        self._file = fastavro.parse_schema(file_schema(version, spec, types))

    def added(self, snapshot: int, sequence: int, file: Record) -> Entry:
        """A file that a snapshot adds."""
        return self._entry(ADDED, snapshot, sequence, sequence, file)

    def stored(self, record: Record) -> Entry:
        """An entry as a manifest holds it."""
        sequences = record["sequence_number"], record["file_sequence_number"]
        return self._entry(record["status"], record["snapshot_id"], *sequences, record["data_file"])

    def _entry(self, status: int, snapshot: int, sequence: int, file_sequence: int, file: Record) -> Entry:
        encoded = io.BytesIO()
        fastavro.schemaless_writer(encoded, self._file, file)
        partition = file["partition"]
        return Entry(
            status,
            snapshot,
            sequence,
            file_sequence,
            file["content"],
            file["record_count"],
            file.get("content_size_in_bytes") or file["file_size_in_bytes"],
            file["file_format"] == "PUFFIN",
            tuple(partition[name] for name in self.names),
            encoded.getvalue(),
        )

    def manifest(self, entries: Iterable[Entry], said: Mapping[str, str]) -> bytes:
        """The content of a manifest with what its header says."""
        made = io.BytesIO()
        writer = Writer(made, self._schema, codec="deflate", metadata=dict(said))
        heads: dict[tuple[int, int, int, int], bytes] = {}
        block, count = io.BytesIO(), 0
        for each in entries:
            key = each.status, each.snapshot, each.sequence, each.file_sequence
            if key not in heads:
                heads[key] = _head(*key)
            block.write(heads[key])
            block.write(each.file)
            count += 1
            if block.tell() >= _BLOCK:
                writer.write_block(_Block(count, block))
                block, count = io.BytesIO(), 0
        if count:
            writer.write_block(_Block(count, block))
        writer.flush()
        return made.getvalue()


def _head(status: int, snapshot: int, sequence: int, file_sequence: int) -> bytes:
    encoded = io.BytesIO()
    said = {"status": status, "snapshot_id": snapshot}
    said |= {"sequence_number": sequence, "file_sequence_number": file_sequence}
    fastavro.schemaless_writer(encoded, HEAD, said)
    return encoded.getvalue()
