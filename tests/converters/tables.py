"""The files of a committed Iceberg fixture, read straight from its manifests, as the rewriter takes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from bridge.model.schema import Schema
from converters.iceberg.types import schema_of
from converters.spark.plan import DataFile, Name
from tests.support import Case


@dataclass(frozen=True)
class Entry:
    """A live manifest entry."""

    path: str
    format: str
    content: int
    sequence: int
    spec: int
    partition: str
    values: Mapping[int, Any]
    record_count: int
    size: int
    equality_ids: tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """A fixture's metadata."""

    case: Case

    @property
    def metadata(self) -> dict[str, Any]:
        content = self.case.metadata.read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        return found

    def schema(self, id_: int | None = None) -> Schema:
        """The schema of an id; by default the current one."""
        stored = self.metadata
        if id_ is None:
            id_ = stored["current-schema-id"]
        return schema_of(next(each for each in stored["schemas"] if each["schema-id"] == id_))

    def names(self) -> tuple[Name, ...] | None:
        text = self.metadata.get("properties", {}).get("schema.name-mapping.default")
        return None if text is None else _names(json.loads(text))

    def place(self, path: str) -> str:
        for old, new in self.case.facts["map_prefix"]:
            for head in ("file:" + old, old):
                if path.startswith(head):
                    return str(self.case.home / new) + path[len(head) :]
        return path

    def entries(self, snapshot: Mapping[str, Any]) -> Iterator[Entry]:
        """Every live entry of a snapshot of the metadata."""
        for manifest in self._avro(snapshot["manifest-list"]):
            for each in self._avro(manifest["manifest_path"]):
                if each["status"] == 2:
                    continue
                file = each["data_file"]
                sequence = each.get("sequence_number")
                if sequence is None:
                    sequence = manifest.get("sequence_number") or 0
                spec = manifest["partition_spec_id"]
                yield Entry(
                    self.place(file["file_path"]),
                    file["file_format"].lower(),
                    file.get("content") or 0,
                    sequence,
                    spec,
                    json.dumps(file["partition"], default=str, sort_keys=True),
                    self._identity(spec, file["partition"]),
                    file["record_count"],
                    file["file_size_in_bytes"],
                    tuple(file.get("equality_ids") or ()),
                )

    def _identity(self, spec: int, partition: Mapping[str, Any]) -> dict[int, Any]:
        found = {}
        for each in self.metadata["partition-specs"]:
            if each["spec-id"] == spec:
                for place, field in enumerate(each["fields"]):
                    if field["transform"] == "identity":
                        found[field["source-id"]] = list(partition.values())[place]
        return found

    def _avro(self, path: str) -> Iterator[Any]:
        with open(self.place(path), "rb") as source:
            yield from fastavro.reader(source)

    def data_file(self, entry: Entry) -> DataFile:
        constants = {
            id_: value if value is None or isinstance(value, bytes) else _text(value)
            for id_, value in entry.values.items()
        }
        return DataFile(entry.path, entry.format, entry.record_count, entry.size, constants, self.names())


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _names(stored: list[dict[str, Any]]) -> tuple[Name, ...]:
    return tuple(
        Name(each["field-id"], tuple(each["names"]), _names(each.get("fields", [])))
        for each in stored
        if "field-id" in each
    )
