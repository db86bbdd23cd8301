"""Manifest lists and manifests as frames: each is read once, whatever number of snapshots share it.

A file is live at a commit when a manifest of that commit lists it as existing or added. So presence is computed per
manifest, as intervals of commit indexes, and joined to the entries; no snapshot's file set is ever built on its own
(Iceberg specification, "Manifests", "Manifest Lists", "First Row ID Inheritance").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bridge.errors import Blocked, BridgeError, Unanswered
from bridge.model.findings import Code
from bridge.model.paths import PathMap, apply_map
from converters import storage
from converters.deletes.windows import islands
from converters.iceberg.avro import file_metadata, read_frame, records_mentioning
from converters.iceberg.metadata import IcebergTable, Snapshot

__all__ = [
    "DELETED",
    "PATH_ID",
    "STATS_MAPS",
    "Listing",
    "entries",
    "list_manifests",
    "partitions",
    "resolve",
]

DELETED = 2
_COUNTS = pl.List(pl.Struct({"key": pl.Int32, "value": pl.Int64}))
_BYTES = pl.List(pl.Struct({"key": pl.Int32, "value": pl.Binary}))

STATS_MAPS = {
    "column_sizes": _COUNTS,
    "value_counts": _COUNTS,
    "null_value_counts": _COUNTS,
    "nan_value_counts": _COUNTS,
    "lower_bounds": _BYTES,
    "upper_bounds": _BYTES,
}
_ENTRY = {
    "status": pl.Int32,
    "sequence_number": pl.Int64,
    "content": pl.Int32,
    "file_path": pl.String,
    "file_format": pl.String,
    "record_count": pl.Int64,
    "file_size_in_bytes": pl.Int64,
    "key_metadata": pl.Binary,
    "equality_ids": pl.List(pl.Int64),
    "first_row_id": pl.Int64,
    "referenced_data_file": pl.String,
    "content_offset": pl.Int64,
    "content_size_in_bytes": pl.Int64,
    **STATS_MAPS,
}
_LIST = {
    "manifest_path": pl.String,
    "partition_spec_id": pl.Int32,
    "content": pl.Int32,
    "sequence_number": pl.Int64,
    "min_sequence_number": pl.Int64,
    "added_files_count": pl.Int32,
    "added_data_files_count": pl.Int32,
    "existing_files_count": pl.Int32,
    "existing_data_files_count": pl.Int32,
    "added_rows_count": pl.Int64,
    "existing_rows_count": pl.Int64,
    "key_metadata": pl.Binary,
    "first_row_id": pl.Int64,
}
PATH_ID = 2147483546
"""Field id of the path in position delete files (specification, "Reserved Field IDs")."""
_LISTS = 64
_TOGETHER = 1_000
_SPAN = (pl.col("manifest_path"), pl.col("commit").alias("begin"), (pl.col("commit") + 1).alias("end"))


@dataclass(frozen=True, slots=True)
class Listing:
    """Which manifests each commit lists.

    `manifests`: one row a manifest (manifest, path, spec, content, sequence, oldest: the least sequence number in it,
    first_row_id, encrypted, rows: of its live entries by the list's own counts, NULL where it gives none).
    `presence`: (manifest, begin, end) half-open intervals of commit indexes.
    `rows`: (commit, rows), live rows by the manifest lists' own counts, NULL where they give none.
    `first`: commits before this index are not listed; `reason` says why they could not be, "" when they were not to.
    """

    manifests: pl.DataFrame
    presence: pl.DataFrame
    rows: pl.DataFrame
    first: int
    reason: str


def resolve(column: str, path_map: PathMap) -> pl.Expr:
    """Stored paths in normal form, with mapped prefixes replaced (as model.paths.apply_map, over a column)."""
    path = (
        pl.col(column)
        .str.replace(r"^(?i:file):(?:///+|//localhost/+|/)([^/])", "/$1")
        .str.replace(r"^(?i:s3[an]?)://", "s3://")
    )
    mapped = path
    for old, new in sorted(path_map.prefixes, key=lambda pair: len(pair[0])):
        inside = path.str.starts_with(old + "/")
        mapped = pl.when(inside).then(pl.lit(new) + path.str.slice(len(old))).otherwise(mapped)
    return mapped.alias(column)


def list_manifests(source: IcebergTable, since: int = 0) -> Listing:
    """The manifests of commit `since` and all later ones. A list that is gone or damaged ends the history there; in the
    newest commit it is an error."""
    first, reason, end = since, "", len(source.snapshots)
    known, spans, rows = [_empty()], [_empty().select(*_SPAN)], [_empty().select("commit", rows="added_rows_count")]
    while end > since and first == since:
        begin = max(since, end - _LISTS)
        window = storage.parallel(lambda each: _listed(each, source.path_map), source.snapshots[begin:end])
        frames: list[pl.DataFrame] = []
        for index in range(end - 1, begin - 1, -1):
            one = window[index - begin]
            if isinstance(one, BridgeError):
                if index == len(source.snapshots) - 1:
                    raise one
                first, reason = index + 1, one.message
                break
            frames.append(one.with_columns(pl.lit(index, dtype=pl.Int64).alias("commit")))
        end = begin
        if frames:
            every = pl.concat(frames)
            rows.append(_live_rows(every))
            spans = [islands(pl.concat([*spans, _spans(every)]), "manifest_path")]
            known = [_first_of(pl.concat([*known, every]))]
    resolved = resolve("manifest_path", source.path_map)
    every = _first_of(known[0].with_columns(resolved)).with_columns(
        pl.col("manifest_path").rank("dense").cast(pl.Int64).sub(1).alias("manifest")
    )
    manifests = every.select(
        "manifest",
        pl.col("manifest_path").alias("path"),
        pl.col("partition_spec_id").alias("spec"),
        pl.col("content").fill_null(0),
        pl.col("sequence_number").fill_null(0).alias("sequence"),
        pl.col("min_sequence_number").fill_null(0).alias("oldest"),
        "first_row_id",
        pl.col("key_metadata").is_not_null().alias("encrypted"),
        (pl.col("added_rows_count") + pl.col("existing_rows_count")).alias("rows"),
    )
    numbered = spans[0].with_columns(resolved).join(every.select("manifest_path", "manifest"), on="manifest_path")
    return Listing(manifests, islands(numbered, "manifest"), pl.concat(rows), first, reason)


def _first_of(every: pl.DataFrame) -> pl.DataFrame:
    return every.sort("commit").unique("manifest_path", keep="first", maintain_order=True)


def _spans(every: pl.DataFrame) -> pl.DataFrame:
    """(manifest_path, begin, end) of some commits; most manifests are listed by a run of commits without a gap."""
    runs = every.group_by("manifest_path").agg(
        pl.col("commit").min().alias("begin"), (pl.col("commit").max() + 1).alias("end"), pl.col("commit").n_unique()
    )
    whole = pl.col("end") - pl.col("begin") == pl.col("commit")
    gaps = every.join(runs.filter(~whole), on="manifest_path", how="semi").select(*_SPAN)
    return pl.concat([runs.filter(whole).select("manifest_path", "begin", "end"), gaps])


def _live_rows(every: pl.DataFrame) -> pl.DataFrame:
    data = every.filter(pl.col("content").fill_null(0) == 0)
    return data.group_by("commit").agg(
        pl.when((pl.col("added_rows_count").is_null() | pl.col("existing_rows_count").is_null()).any())
        .then(None)
        .otherwise((pl.col("added_rows_count") + pl.col("existing_rows_count")).sum())
        .alias("rows")
    )


def _empty() -> pl.DataFrame:
    return pl.DataFrame(schema={**_LIST, "commit": pl.Int64})


def _listed(snapshot: Snapshot, path_map: PathMap) -> pl.DataFrame | BridgeError:
    try:
        if snapshot.manifest_list is None:
            return _inline(snapshot, path_map)
        content = storage.read(snapshot.manifest_list, "manifest list")
        try:
            frame = read_frame(content, _LIST)
        except ValueError as error:
            raise _unreadable("manifest list", snapshot.manifest_list, error) from error
        if frame["manifest_path"].null_count():
            raise _unreadable("manifest list", snapshot.manifest_list, ValueError("it has no manifest_path"))
        return frame
    except Unanswered:
        raise
    except BridgeError as error:
        return error


def _inline(snapshot: Snapshot, path_map: PathMap) -> pl.DataFrame:
    """Version 1 may list the manifests in the metadata file; what a list would say is in each manifest's header."""
    specs = []
    for path in snapshot.manifests:
        try:
            header = file_metadata(storage.read(apply_map(path, path_map), "manifest"))
        except ValueError as error:
            raise _unreadable("manifest", path, error) from error
        specs.append(int(header.get("partition-spec-id", 0)))
    rows = {"manifest_path": list(snapshot.manifests), "partition_spec_id": specs}
    return pl.DataFrame({name: rows.get(name, [None] * len(specs)) for name in _LIST}, schema=_LIST)


def _unreadable(what: str, path: str, error: Exception) -> Blocked:
    return Blocked(
        f"{what} {path} is {error}" if str(error).startswith(("not", "damaged")) else f"{what} {path}: {error}",
        code=Code.MANIFEST_UNREADABLE.text,
        hint="restore the file, or give an older metadata file of the table",
    )


def entries(manifests: pl.DataFrame, path_map: PathMap) -> Iterator[pl.DataFrame | tuple[int, BridgeError]]:
    """The live entries of some manifests of a listing, in their order, with inherited sequence numbers and row ids;
    small manifests come together in one frame.

    Columns: manifest, position (in the manifest), content, path, format, record_count, size, spec, sequence,
    first_row_id, encrypted, equality_ids, referenced_data_file (also where only equal bounds of the path say so),
    content_offset, content_size and the maps of STATS_MAPS. A manifest that cannot be read gives (manifest, error)
    instead.
    """
    rows = manifests.rows(named=True)
    ahead = 64
    for start in range(0, len(rows), ahead):
        window = rows[start : start + ahead]

        def fetch(row: dict[str, object]) -> bytes | BridgeError:
            try:
                if row["encrypted"]:
                    raise Blocked(f"manifest {row['path']} is encrypted", code=Code.TABLE_ENCRYPTED.text)
                return storage.read(str(row["path"]), "manifest")
            except Unanswered:
                raise
            except BridgeError as error:
                return error

        group: list[tuple[dict[str, Any], pl.DataFrame]] = []
        waiting = 0
        for row, content in zip(window, storage.parallel(fetch, window), strict=True):
            try:
                if isinstance(content, BridgeError):
                    raise content
                group.append((row, _stored(content)))
                waiting += len(group[-1][1])
            except BridgeError as error:
                yield int(row["manifest"]), error
            except ValueError as error:
                yield int(row["manifest"]), _unreadable("manifest", str(row["path"]), error)
            if waiting >= _TOGETHER:
                yield _entries(group, path_map)
                group, waiting = [], 0
        if group:
            yield _entries(group, path_map)


def _stored(content: bytes) -> pl.DataFrame:
    frame = read_frame(content, _ENTRY, unnest="data_file")
    for name in ("file_path", "file_format", "record_count", "file_size_in_bytes"):
        if frame[name].null_count():
            raise ValueError(f"it holds entries without {name}")
    if frame["file_path"].str.contains("\0", literal=True).any() or (frame["record_count"] < 0).any():
        raise ValueError("it holds entries with an impossible path or record count")
    status = frame["status"]
    if len(frame) and (status.null_count() or status.min() < 0 or status.max() > DELETED):  # type: ignore[operator]  # integers
        raise ValueError("it holds entries with an unknown status")
    return frame


def _entries(group: Sequence[tuple[dict[str, Any], pl.DataFrame]], path_map: PathMap) -> pl.DataFrame:
    counts = [len(frame) for _, frame in group]

    def of_manifest(name: str, type_: type[pl.DataType]) -> pl.Series:
        return pl.Series(name, [row[name] for row, _ in group], dtype=type_).gather(owner)

    owner = np.repeat(np.arange(len(group)), counts)
    position = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    frame = pl.concat([frame for _, frame in group])
    starts = [None if row["content"] else row["first_row_id"] for row, _ in group]
    if any(start is not None for start in starts):
        waiting = pl.col("first_row_id").is_null()
        counted = pl.when(waiting).then(pl.col("record_count")).otherwise(0)
        inherited = pl.Series(starts, dtype=pl.Int64).gather(owner) + counted.cum_sum().over(pl.Series(owner)) - counted
        frame = frame.with_columns(
            pl.when(waiting).then(inherited).otherwise(pl.col("first_row_id")).alias("first_row_id")
        )
    return (
        frame.with_columns(
            of_manifest("manifest", pl.Int64),
            pl.Series("position", position, dtype=pl.Int64),
            of_manifest("spec", pl.Int32),
            of_manifest("sequence", pl.Int64),
        )
        .filter(pl.col("status") != DELETED)
        .select(
            "manifest",
            "position",
            pl.col("content").fill_null(0),
            resolve("file_path", path_map).alias("path"),
            pl.col("file_format").str.to_lowercase().alias("format"),
            "record_count",
            pl.col("file_size_in_bytes").alias("size"),
            "spec",
            pl.col("sequence_number").fill_null(pl.col("sequence")).alias("sequence"),
            "first_row_id",
            pl.col("key_metadata").is_not_null().alias("encrypted"),
            "equality_ids",
            _only_file() if any(row["content"] for row, _ in group) else "referenced_data_file",
            "content_offset",
            pl.col("content_size_in_bytes").alias("content_size"),
            *STATS_MAPS,
        )
        .with_columns(resolve("referenced_data_file", path_map))
    )


def _only_file() -> pl.Expr:
    """The data file of a position delete file whose bounds say that it names one alone (as Iceberg Java takes it)."""

    def bound(name: str) -> pl.Expr:
        own = pl.element().filter(pl.element().struct.field("key") == PATH_ID)
        return pl.col(name).list.eval(own).list.first().struct.field("value")

    lower = bound("lower_bounds")
    told = pl.when((pl.col("content") == 1) & (lower == bound("upper_bounds"))).then(
        lower.cast(pl.String, strict=False)
    )
    return pl.coalesce("referenced_data_file", told).alias("referenced_data_file")


def partitions(path: str, path_map: PathMap, wanted: Sequence[str]) -> dict[str, dict[str, object]]:
    """The partition values of some files of a manifest, by resolved path and the manifest's own field names."""
    chosen = set(wanted)
    found: dict[str, dict[str, object]] = {}
    try:
        content = storage.read(path, "manifest")
        for names in ({each.rsplit("/", 1)[-1] for each in chosen}, {""}):  # all, where a map made other names
            for record in records_mentioning(content, names):
                file = apply_map(record["data_file"]["file_path"], path_map)
                if file in chosen:
                    found[file] = record["data_file"].get("partition") or {}
            if found.keys() == chosen:
                break
    except ValueError as error:
        raise _unreadable("manifest", path, error) from error
    return found
