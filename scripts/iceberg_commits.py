"""Commits written onto an Iceberg table of bench_metadata.py by hand, many at once: real metadata, made quickly."""

from __future__ import annotations

import json
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bench_metadata
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench_metadata import ROWS

from converters.deletes.puffin import puffin

__all__ = ["Growing"]

Record = dict[str, Any]
_PATH, _POSITION = 2147483546, 2147483545


class Growing:
    """A table in a directory; each commit adds one manifest, and `save` writes the metadata file of all of them."""

    def __init__(self, home: Path) -> None:
        import fastavro

        self.home = home
        self.version = int((home / "metadata" / "version-hint.text").read_text())
        self.metadata: Record = json.loads((home / "metadata" / f"v{self.version}.metadata.json").read_text())
        self._avro = fastavro
        with open(self.metadata["snapshots"][-1]["manifest-list"], "rb") as file:
            self._manifests = list(fastavro.reader(file))
        self._withdrawn: dict[str, Record] = {}

    @property
    def place(self) -> Path:
        """The newest metadata file."""
        return self.home / "metadata" / f"v{self.version}.metadata.json"

    def upgrade(self) -> None:
        """To version 3, in which rows are numbered: those that are there by the first commit after it."""
        self.metadata |= {"format-version": 3, "next-row-id": 0}

    @property
    def sequence(self) -> int:
        """The sequence number of the newest commit."""
        return int(self.metadata["snapshots"][-1]["sequence-number"])

    @property
    def manifests(self) -> list[tuple[str, int]]:
        """The manifests of the newest commit, newest first: path and content (0: data, 1: deletes)."""
        return [(each["manifest_path"], each["content"]) for each in self._manifests]

    def append(self, number: int, sequence: int | None = None) -> None:
        """A new data file of the rows that bench_metadata makes of a number, maybe under an older sequence number."""
        made = bench_metadata.entry(str(self.home), number, 0)
        bench_metadata.written(made, number)
        made["sequence_number"] = sequence
        self._commit("append", 0, made, {"added-data-files": "1", "added-records": str(ROWS)})

    def positions(self, number: int, rows: Sequence[int], scoped: bool) -> None:
        """A position delete file for a data file, which says so of itself or only in its rows."""
        made, target = self._deleting(number, 1)
        types = (("file_path", pa.string(), _PATH), ("pos", pa.int64(), _POSITION))
        schema = pa.schema([pa.field(name, type_, False, {"PARQUET:field_id": str(id_)}) for name, type_, id_ in types])
        pq.write_table(
            pa.table({"file_path": [target] * len(rows), "pos": list(rows)}, schema=schema), made["file_path"]
        )
        if scoped:
            made |= {key: [{"key": _PATH, "value": target.encode()}] for key in ("lower_bounds", "upper_bounds")}
        self._delete(made, len(rows), {"added-position-deletes": str(len(rows))})

    def vector(self, number: int, rows: Sequence[int], instead: str = "") -> str:
        """A deletion vector of a data file, instead of the one that a manifest holds; its own manifest."""
        made, target = self._deleting(number, 1)
        path = made["file_path"].replace(".parquet", ".puffin")
        content, [place] = puffin([(target, np.array(sorted(rows), dtype=np.int64))], "bench")
        Path(path).write_bytes(content)
        made |= {"file_path": path, "file_format": "PUFFIN", "referenced_data_file": target}
        made |= {"content_offset": place.offset, "content_size_in_bytes": place.length}
        self._delete(made, len(rows), {"added-position-deletes": str(len(rows))}, instead)
        return str(self._manifests[0]["manifest_path"])

    def withdraw(self, manifest: str) -> None:
        """What a manifest lists leaves the table."""
        [self._withdrawn[manifest]] = [each for each in self._manifests if each["manifest_path"] == manifest]
        self._commit("delete", 0, None, {}, manifest)

    def restore(self, manifest: str) -> None:
        """What was withdrawn comes back as it was, under its old sequence number."""
        self._manifests.insert(0, self._withdrawn.pop(manifest))
        self._commit("overwrite", 0, None, {})

    def equality(self, number: int, rows: Sequence[int]) -> None:
        """An equality delete by the column id, in the partition of a data file."""
        made, _ = self._deleting(number, 2)
        keys = [number * ROWS + each for each in rows]
        schema = pa.schema([pa.field("id", pa.int64(), False, {"PARQUET:field_id": "1"})])
        pq.write_table(pa.table({"id": keys}, schema=schema), made["file_path"])
        low, high = ([{"key": 1, "value": struct.pack("<q", each)}] for each in (min(keys), max(keys)))
        made |= {"equality_ids": [1], "lower_bounds": low, "upper_bounds": high}
        self._delete(made, len(rows), {"added-equality-deletes": str(len(rows))})

    def _deleting(self, number: int, content: int) -> tuple[Record, str]:
        """The entry of a delete file for a data file, in its partition, and the data file's path."""
        data = bench_metadata.entry(str(self.home), number, 0)["data_file"]
        kept = {name: data[name] for name in ("partition", "file_format")}
        name = f"{uuid.uuid4()}-deletes.parquet"
        folder = Path(data["file_path"]).parent
        folder.mkdir(parents=True, exist_ok=True)
        return {**kept, "content": content, "file_path": f"{folder}/{name}"}, data["file_path"]

    def _delete(self, made: Record, count: int, summary: Mapping[str, str], instead: str = "") -> None:
        made |= {"record_count": count, "file_size_in_bytes": Path(made["file_path"]).stat().st_size}
        self._commit("delete", 1, {"status": 1, "data_file": made}, {"added-delete-files": "1", **summary}, instead)

    def _commit(
        self, operation: str, content: int, entry: Record | None, summary: Mapping[str, str], without: str = ""
    ) -> None:
        from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS
        from pyiceberg.utils.schema_conversion import AvroSchemaConversion

        version = self.metadata["format-version"]
        before = self.metadata["snapshots"][-1]
        id_, sequence = int(uuid.uuid4().int >> 65), before["sequence-number"] + 1
        self._manifests = [each for each in self._manifests if each["manifest_path"] != without]
        if entry is not None:
            self._manifests.insert(0, self._manifest(version, content, entry, id_, sequence))
        rows = self._number() if version > 2 else {}
        listed = f"{self.home}/metadata/snap-{id_}-1-{uuid.uuid4()}.avro"
        schema = AvroSchemaConversion().iceberg_to_avro(MANIFEST_LIST_FILE_SCHEMAS[version], "manifest_file")
        with open(listed, "wb") as sink:
            facts = {"snapshot-id": str(id_), "format-version": str(version)}
            self._avro.writer(sink, self._avro.parse_schema(schema), self._manifests, codec="deflate", metadata=facts)
        now = max(before["timestamp-ms"] + 1, time.time_ns() // 1_000_000)
        made = {"snapshot-id": id_, "parent-snapshot-id": before["snapshot-id"], "sequence-number": sequence}
        made |= {"timestamp-ms": now, "manifest-list": listed, "schema-id": 0, **rows}
        self.metadata["snapshots"].append({**made, "summary": {"operation": operation, **summary}})
        self.metadata["snapshot-log"].append({"snapshot-id": id_, "timestamp-ms": now})
        self.metadata |= {"last-sequence-number": sequence, "last-updated-ms": now, "current-snapshot-id": id_}
        self.metadata["refs"]["main"]["snapshot-id"] = id_

    def _manifest(self, version: int, content: int, entry: Record, id_: int, sequence: int) -> Record:
        """Write the manifest of an entry; what the list says of it."""
        given = entry.get("sequence_number")
        entry |= {"snapshot_id": id_, "sequence_number": given, "file_sequence_number": given}
        path = f"{self.home}/metadata/{uuid.uuid4()}-m0.avro"
        header = {"format-version": str(version), "content": "deletes" if content else "data"}
        length = bench_metadata.put_manifest(path, self.metadata, version, [entry], header)
        file = entry["data_file"]
        stated = bench_metadata.stated(path, length, sequence, id_, [0], content)
        bound = dict.fromkeys(("lower_bound", "upper_bound"), struct.pack("<i", file["partition"]["at_day"]))
        stated["partitions"] = [{"contains_null": False, "contains_nan": False, **bound}]
        return stated | {"added_rows_count": file["record_count"], "min_sequence_number": given or sequence}

    def _number(self) -> Record:
        """Row ids for the data manifests that have none yet."""
        first = after = self.metadata["next-row-id"]
        for each in reversed(self._manifests):
            if each["content"] == 0 and each.get("first_row_id") is None:
                each["first_row_id"] = after
                after += each["added_rows_count"] + each["existing_rows_count"]
        self.metadata["next-row-id"] = after
        return {"first-row-id": first, "added-rows": after - first}

    def save(self) -> None:
        """The next metadata file, with every commit since the last."""
        self.version += 1
        self.place.write_text(json.dumps(self.metadata))
        (self.home / "metadata" / "version-hint.text").write_text(str(self.version))

    def check(self, files: int, deletes: int) -> None:
        """PyIceberg has to find as many files and delete files in the newest snapshot, and as many snapshots."""
        from pyiceberg.manifest import DataFileContent
        from pyiceberg.table import StaticTable

        table = StaticTable.from_metadata(str(self.place))
        snapshot = table.current_snapshot()
        assert snapshot is not None and len(table.metadata.snapshots) == len(self.metadata["snapshots"])
        found = [0, 0]
        for manifest in snapshot.manifests(table.io):
            for each in manifest.fetch_manifest_entry(table.io):
                found[each.data_file.content != DataFileContent.DATA] += 1
        assert found == [files, deletes], found
