"""A metadata file (versions 1 to 3) as a neutral table; paths in it are resolved once, here.

The main line is the ancestry of `main`, not the list of snapshots: branches, staged and rolled-back snapshots are
findings (specification, "Table Metadata and Snapshots").
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import Blocked
from bridge.model.findings import Code, Finding
from bridge.model.layout import PartitionSpec, SortOrder
from bridge.model.paths import PathMap, apply_map
from bridge.model.schema import Schema, walk
from bridge.model.table import Commit, Ref, RefKind, Table, TableName
from bridge.model.types import FieldId
from converters import storage
from converters.iceberg.partition import sort_order_of, spec_of
from converters.iceberg.publish.bookmark import bookmark_of
from converters.iceberg.retention import retention_of
from converters.iceberg.types import schema_of

__all__ = ["IcebergTable", "Snapshot", "decode", "load", "parse"]

_VERSIONS = (1, 2, 3)
_MICRO = 1000
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_800_000_000  # years 1 to 9999


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where the files of a commit are listed: a manifest list (resolved), or in version 1 the manifests themselves, by
    their paths as stored."""

    id: str
    manifest_list: str | None
    manifests: tuple[str, ...]
    sequence: int
    key_id: str | None


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The neutral table, one Snapshot per commit of it, and the map that resolves stored paths."""

    table: Table
    snapshots: tuple[Snapshot, ...]
    path_map: PathMap


def load(name: TableName, path: str, path_map: PathMap, findings: tuple[Finding, ...] = ()) -> IcebergTable:
    """Read and parse one metadata file, gzipped or not; Blocked names what is wrong with it."""
    return decode(name, path, storage.read(path, "metadata file"), path_map, findings)


def decode(
    name: TableName, path: str, content: bytes, path_map: PathMap, findings: tuple[Finding, ...] = ()
) -> IcebergTable:
    """Parse the content of a metadata file, gzipped or not; Blocked names what is wrong with it."""
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        stored = json.loads(content)
        _check_values(stored)
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as error:
        raise _damaged(path, f"not a complete JSON document: {error}") from error
    if not isinstance(stored, dict):
        raise _damaged(path, "not a JSON object")
    try:
        return parse(name, path, stored, path_map, findings)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise _damaged(path, f"not valid Iceberg metadata: {what}") from error


def _check_values(value: Any) -> None:
    """Numbers that fit 64 bits and text that is text; anything else fails far from where it came in."""
    match value:
        case dict():
            for key, each in value.items():
                key.encode()
                _check_values(each)
        case list():
            for each in value:
                _check_values(each)
        case str():
            value.encode()
        case int() if not -(2**63) <= value < 2**63:
            raise ValueError(f"the number {value} is out of range")
        case _:
            pass


def _text(stored: Mapping[str, Any], key: str) -> str:
    value = stored[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}, not a text")
    return value


def _time(value: Any) -> int:
    """Milliseconds as microseconds; a time that no calendar holds is refused."""
    time = int(value) * _MICRO
    if not _EARLIEST <= time < _LATEST:
        raise ValueError(f"the time {value} is out of range")
    return time


def _unique(ids: list[int], what: str) -> None:
    if len(set(ids)) < len(ids):
        raise ValueError(f"a {what} is listed twice")


def _damaged(path: str, what: str) -> Blocked:
    return Blocked(
        f"metadata file {path} is {what}",
        code=Code.METADATA_UNREADABLE.text,
        hint="give an older metadata file of the table, or restore this one",
    )


def parse(
    name: TableName,
    path: str,
    stored: Mapping[str, Any],
    path_map: PathMap,
    findings: tuple[Finding, ...] = (),
) -> IcebergTable:
    """The table that a decoded metadata file describes."""
    version = stored["format-version"]
    if isinstance(version, bool) or version not in _VERSIONS:
        raise Blocked(
            f"metadata file {path} has format version {version!r}; known are 1, 2 and 3",
            code=Code.FORMAT_VERSION.text,
            hint="use a release of ducklake-bridge that knows it",
        )
    schemas = _schemas(stored)
    schema = schemas[int(stored.get("current-schema-id", next(iter(schemas))))]
    specs = _specs(stored)
    spec = specs.get(int(stored.get("default-spec-id", 0))) or next(iter(specs.values()))
    orders = {int(each["order-id"]): sort_order_of(each) for each in stored.get("sort-orders") or ()}
    order = orders.get(int(stored.get("default-sort-order-id", 0)), SortOrder(0))
    line, said = _main_line(str(name), stored, schemas, schema)
    snapshots = {str(each["snapshot-id"]): each for each in stored.get("snapshots") or ()}
    subject = str(name)
    if stored.get("statistics") or stored.get("partition-statistics"):
        said += (Finding(Code.STATISTICS_FILES, subject, "statistics files (Puffin sketches) stay with the source"),)
    hidden = any(snapshots[commit.id].get("key-id") is not None for commit in line)
    if "encryption.key-id" in (stored.get("properties") or {}) or stored.get("encryption-keys") or hidden:
        said += (
            Finding(
                Code.TABLE_ENCRYPTED,
                subject,
                "the table is encrypted by Iceberg",
                "copy it to an unencrypted table",
            ),
        )
    known = set(line_ids := [commit.id for commit in line])
    refs = tuple(
        Ref(
            ref_name,
            RefKind(str(ref["type"]).lower()),
            str(ref["snapshot-id"]),
            str(ref["snapshot-id"]) in known,
        )
        for ref_name, ref in sorted((stored.get("refs") or {}).items())
        if ref_name != "main"
    )
    table = Table(
        name=name,
        uuid="" if stored.get("table-uuid") is None else _text(stored, "table-uuid"),
        location=apply_map(_text(stored, "location"), path_map).rstrip("/"),
        metadata=path,
        format="iceberg",
        format_version=int(version),
        schemas=schemas,
        schema=schema,
        specs=specs,
        spec=spec,
        sort_order=order,
        commits=line,
        updated=_time(stored.get("last-updated-ms", 0)),
        last_column_id=FieldId(
            max(
                int(stored.get("last-column-id", 0)),
                *(int(id_) for each in schemas.values() for id_ in _ids(each)),
                0,
            )
        ),
        properties={str(key): str(value) for key, value in (stored.get("properties") or {}).items()},
        refs=refs,
        next_row_id=int(stored["next-row-id"]) if stored.get("next-row-id") is not None else None,
        findings=findings + said,
        retention=retention_of(stored),
        origin=mark.source if (mark := bookmark_of(stored)) is not None else {},
    )
    return IcebergTable(table, tuple(_snapshot(snapshots[id_], int(version), path_map) for id_ in line_ids), path_map)


def _ids(schema: Schema) -> list[FieldId]:
    return [placed.field.id for placed in walk(schema.fields)]


def _schemas(stored: Mapping[str, Any]) -> dict[int, Schema]:
    listed = [schema_of(each, position) for position, each in enumerate(stored.get("schemas") or ())]
    if not listed:
        listed = [schema_of(stored["schema"], int(stored.get("current-schema-id", 0)))]
    _unique([each.id for each in listed], "schema id")
    return {each.id: each for each in listed}


def _specs(stored: Mapping[str, Any]) -> dict[int, PartitionSpec]:
    listed = [spec_of(each) for each in stored.get("partition-specs") or ()]
    if not listed:
        listed = [spec_of(stored.get("partition-spec") or [], int(stored.get("default-spec-id", 0)))]
    return {each.id: each for each in listed}


def _snapshot(stored: Mapping[str, Any], version: int, path_map: PathMap) -> Snapshot:
    listed = stored.get("manifest-list")
    if not listed and (version > 1 or "manifests" not in stored):
        raise ValueError(f"snapshot {stored['snapshot-id']} has no manifest list")
    return Snapshot(
        id=str(stored["snapshot-id"]),
        manifest_list=apply_map(str(listed), path_map) if listed else None,
        manifests=tuple(str(each) for each in stored.get("manifests") or ()),
        sequence=int(stored.get("sequence-number") or 0),
        key_id=str(stored["key-id"]) if stored.get("key-id") is not None else None,
    )


def _main_line(
    subject: str, stored: Mapping[str, Any], schemas: Mapping[int, Schema], current: Schema
) -> tuple[tuple[Commit, ...], tuple[Finding, ...]]:
    snapshots = {str(each["snapshot-id"]): each for each in stored.get("snapshots") or ()}
    _unique([int(each["snapshot-id"]) for each in stored.get("snapshots") or ()], "snapshot id")
    main = _main(stored)
    line: list[Mapping[str, Any]] = []
    at = None if main is None else str(main)
    if at is not None and at not in snapshots:
        raise ValueError(f"the current snapshot {at} is not among its snapshots")
    seen: set[str] = set()
    while at is not None and at in snapshots and at not in seen:
        seen.add(at)
        line.append(snapshots[at])
        parent = snapshots[at].get("parent-snapshot-id")
        at = None if parent is None else str(parent)
    line.reverse()
    log = [(str(each["snapshot-id"]), _time(each["timestamp-ms"])) for each in stored.get("snapshot-log") or ()]
    became: dict[str, int] = {}
    for id_, time in log:
        became.setdefault(id_, time)
    own = [became.get(str(each["snapshot-id"])) or _time(each["timestamp-ms"]) for each in line]
    times = list(own)
    for index in range(len(times) - 2, -1, -1):
        times[index] = min(times[index], times[index + 1] - 1)
    commits = []
    for each, time, own_time in zip(line, times, own, strict=True):
        schema_id = each.get("schema-id")
        if schema_id is not None and int(schema_id) not in schemas:
            raise ValueError(f"snapshot {each['snapshot-id']} has schema {schema_id}, which is not listed")
        summary = {str(key): str(value) for key, value in (each.get("summary") or {}).items()}
        rows = summary.get("total-records", "")
        commits.append(
            Commit(
                id=str(each["snapshot-id"]),
                time=time,
                own_time=own_time,
                schema=current.id if schema_id is None else int(schema_id),
                operation=summary.get("operation", ""),
                summary=summary,
                rows=int(rows) if rows.isdigit() else None,
            )
        )
    return tuple(commits), _beside(subject, stored, snapshots, [commit.id for commit in commits], log)


def _main(stored: Mapping[str, Any]) -> int | None:
    """The snapshot that `main` points to; None only when nothing was ever committed to it."""
    current = stored.get("current-snapshot-id")
    current = None if current in (None, -1) else int(current)
    refs = stored.get("refs") or {}
    main = int(refs["main"]["snapshot-id"]) if "main" in refs else current
    if current is not None and main != current:
        raise ValueError(f"main is at snapshot {main}, the current snapshot is {current}")
    if main is None and stored.get("snapshot-log"):
        raise ValueError("it has a snapshot log and no current snapshot")
    return main


def _beside(
    subject: str,
    stored: Mapping[str, Any],
    snapshots: Mapping[str, Any],
    line: list[str],
    log: list[tuple[str, int]],
) -> tuple[Finding, ...]:
    """What happened off the main line: rollbacks, branches, staged snapshots."""
    on_main = set(line)
    rolled_back = {id_ for id_, _ in log if id_ not in on_main and id_ in snapshots}
    branched: set[str] = set()
    findings: list[Finding] = []
    for name, ref in sorted((stored.get("refs") or {}).items()):
        at = str(ref["snapshot-id"])
        if name == "main":
            continue
        if at in on_main:
            findings.append(Finding(Code.NAMED_REF, subject, f"{ref['type']} {name!r} is kept as a table tag"))
            continue
        findings.append(Finding(Code.REF_DROPPED, subject, f"{ref['type']} {name!r} at snapshot {at} is off main"))
        while at in snapshots and at not in on_main and at not in branched:
            branched.add(at)
            at = str(snapshots[at].get("parent-snapshot-id"))
    if rolled_back:
        findings.append(
            Finding(
                Code.HISTORY_ROLLED_BACK,
                subject,
                f"{len(rolled_back)} snapshots were current and then rolled back: {_few(rolled_back)}",
            )
        )
    staged = set(snapshots) - on_main - rolled_back - branched
    if staged:
        findings.append(
            Finding(
                Code.STAGED_DROPPED,
                subject,
                f"{len(staged)} snapshots are not in main's ancestry: {_few(staged)}",
            )
        )
    return tuple(findings)


def _few(ids: set[str]) -> str:
    listed = sorted(ids)
    return ", ".join(listed[:3]) + (" ..." if len(listed) > 3 else "")
