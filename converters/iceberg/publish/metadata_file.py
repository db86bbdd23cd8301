"""The metadata file of a published table (specification, "Table Metadata Fields")."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.model.layout import PartitionSpec
from bridge.model.schema import Schema, walk
from bridge.model.table import Commit, Table
from bridge.ports import TableWrite
from converters.iceberg.publish.bookmark import (
    CHANGED,
    COMMIT,
    PROPERTY,
    TIME,
    kept_commits,
    property_text,
    refs_of,
    source_commits,
)
from converters.iceberg.publish.definition import schema_json, sort_order_json, spec_json
from converters.iceberg.publish.history import Made
from converters.iceberg.publish.layout import published_order
from converters.iceberg.publish.way_back import original_id
from converters.iceberg.type_matrix import stored_fields

__all__ = ["built", "published_schema", "snapshot_ids"]

_OURS = ("added-", "deleted-", "removed-", "total-", "changed-")
_ENGINE = frozenset({"operation", "manifests-created", "manifests-kept", "manifests-replaced", "entries-processed"})
_PREVIOUS = 100


def snapshot_ids(table: Table, held: Mapping[str, Any] | None, base: int | None, onto: bool, taken: int) -> list[int]:
    """The id of each commit's snapshot. Those that `held` has keep theirs, as far as commit `base`, and all where they
    are made anew (`onto`, or no base). Others get the id that they had in the Iceberg table that a lake's came from,
    else the commit's own number, so that AS OF means the same on both sides; but none up to `taken` (taken_numbers),
    since readers of what a restored lake has lost, and what was made of it, may know it still."""
    anew = onto or base is None
    until = len(table.commits) if onto or base is None else base + 1
    listed = kept_commits(held or {})
    if anew:  # its number rather than what the one is called by which the lake came back
        listed |= {commit: each for each, commit in source_commits(held or {}).items() if str(each) == commit}
    there = set() if anew else {int(each["snapshot-id"]) for each in (held or {}).get("snapshots") or ()}
    made: list[int] = []
    for place, commit in enumerate(table.commits):
        if commit.id in listed and place < until:
            made.append(listed[commit.id])
            continue
        number = original_id(commit, table) or 0
        if number and number not in made and number not in there:
            made.append(number)
            continue
        number = int(commit.id) if commit.id.isdecimal() and len(commit.id) < 20 else 0
        again = number in there or 0 < number <= taken
        if again or not 0 < number < 1 << 63:
            told = f"{table.uuid}\n{table.location}\n{commit.id}"
            told += f"\n{commit.own_time}\n{(held or {}).get('last-sequence-number', 0)}" if again else ""
            digest = hashlib.sha256(told.encode()).digest()
            number = int.from_bytes(digest[:8], "big") >> 1 or 1
        made.append(number)
    return made


def published_schema(schema: Schema) -> Schema:
    """A schema under Iceberg's types."""
    return replace(schema, fields=stored_fields(schema.fields))


def _snapshot(made: Made, schema: int, time: int, version: int) -> dict[str, Any]:
    summary = {
        key: value
        for key, value in made.commit.summary.items()
        if not key.startswith(_OURS) and key not in _ENGINE and value is not None
    }
    counts = made.counts
    numbers = {
        "added-data-files": counts.files[0],
        "deleted-data-files": counts.removed[0],
        "added-records": counts.records[0],
        "deleted-records": counts.removed_records[0],
        "added-delete-files": counts.files[1],
        "removed-delete-files": counts.removed[1],
        "added-position-delete-files": counts.files[1] - counts.vectors[0],
        "removed-position-delete-files": counts.removed[1] - counts.vectors[1],
        "added-dvs": counts.vectors[0],
        "removed-dvs": counts.vectors[1],
        "added-position-deletes": counts.records[1],
        "removed-position-deletes": counts.removed_records[1],
        "added-files-size": counts.size,
        "removed-files-size": counts.removed_size,
    }
    found: dict[str, Any] = {
        "sequence-number": made.sequence,
        "snapshot-id": made.id,
        "timestamp-ms": time,
        "summary": {
            "operation": _operation(made),
            **summary,
            COMMIT: made.commit.id,
            TIME: str(made.commit.time),
            **({CHANGED: made.commit.changed} if made.commit.changed else {}),
            **{key: str(value) for key, value in numbers.items() if value},
            **{key: str(value) for key, value in made.totals.items()},
            "total-equality-deletes": "0",
        },
        "manifest-list": made.manifest_list,
        "schema-id": schema,
    }
    if made.parent is not None:
        found["parent-snapshot-id"] = made.parent
    if version >= 3:
        found |= {"first-row-id": made.first_row_id, "added-rows": made.rows}
    return found


def _operation(made: Made) -> str:
    """What the source calls it where the files agree, else what they tell (specification, "Snapshots")."""
    counts, said = made.counts, made.commit.operation
    only_adds = not (counts.removed[0] or counts.files[1] or counts.removed[1])
    agrees = {
        "append": only_adds,
        "delete": not counts.files[0],
        "overwrite": True,
        "replace": counts.records[0] - counts.removed_records[0] == counts.records[1] - counts.removed_records[1],
    }
    return said if agrees.get(said) else counts.operation


def _millis(commit: Commit) -> int:
    """The first millisecond at which the commit is current: asked for any millisecond, both sides answer alike."""
    return -(-commit.time // 1000)


def built(
    write: TableWrite,
    made: Sequence[Made],
    lost: frozenset[int],
    specs: Mapping[int, PartitionSpec],
    spec: int,
    version: int,
    location: str,
    held: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    held_path: str,
    next_row_id: int,
    properties: Mapping[str, str],
    rewritten: bool,
    taken: int,
    now: int,
) -> dict[str, Any]:
    """The whole document; `held` is the one before, of which the snapshots `lost` cannot be read for long, and `after`
    is it without what was made anew. It is written `now`, in milliseconds from 1970."""
    table = write.table
    order = published_order(table.sort_order)
    schemas = {each.id: each for each in table.schemas.values()} | {table.schema.id: table.schema}
    documents, ids_of = _schemas(schemas, version, held)
    kept = _kept(write, after, lost, bool(made))
    times_of = {each["snapshot-id"]: int(each["timestamp-ms"]) for each in (held or {}).get("snapshots") or ()}
    # what follows a state that the source has gone back behind is not older than that
    onward = write.base is not None and not write.onto
    log_before = (held or {}).get("snapshot-log") or () if onward else ()
    floor = max((int(each["timestamp-ms"]) for each in log_before), default=0)
    times_of |= {each.id: max(_millis(each.commit), floor) for each in made if each.id not in times_of}
    snapshots = [*kept, *(_snapshot(each, ids_of[each.commit.schema], times_of[each.id], version) for each in made)]
    ids = {each["snapshot-id"] for each in kept}
    log = [each for each in (held or {}).get("snapshot-log") or () if each["snapshot-id"] in ids]
    log += [{"timestamp-ms": times_of[each.id], "snapshot-id": each.id} for each in made]
    ids |= {each.id for each in made}
    if write.base is None:
        named = {each.get("schema-id") for each in snapshots} | set(ids_of.values())
        documents = [each for each in documents if each["schema-id"] in named]
    current = made[-1].id if made else (held or {}).get("current-snapshot-id")
    # clocks differ, and what was said before holds
    times = [
        now,
        table.updated // 1000,
        (held or {}).get("last-updated-ms", 0),
        *(each["timestamp-ms"] for each in log),
    ]
    by_commit = kept_commits({"snapshots": snapshots})
    found: dict[str, Any] = {
        "format-version": version,
        "table-uuid": (held or {}).get("table-uuid") or _uuid(table),
        "location": location,
        "last-sequence-number": max(
            (held or {}).get("last-sequence-number", 0), *(each["sequence-number"] for each in snapshots), 0
        ),
        "last-updated-ms": max(times),
        "last-column-id": max(
            int(table.last_column_id),
            *(int(each.field.id) for schema in schemas.values() for each in walk(schema.fields)),
            0,
        ),
        "current-schema-id": ids_of[table.schema.id],
        "schemas": documents,
        "default-spec-id": spec,
        "partition-specs": [spec_json(specs[id_]) for id_ in sorted(specs)],
        "last-partition-id": max(
            (held or {}).get("last-partition-id", 999),
            *(field.id for spec in specs.values() for field in spec.fields),
            999,
        ),
        "default-sort-order-id": order.id if order.fields else 0,
        "sort-orders": [
            {"order-id": 0, "fields": []},
            *([sort_order_json(order)] if order.fields and order.id else []),
        ],
        "properties": dict(properties),
        "current-snapshot-id": current,
        "refs": {},
        "snapshots": snapshots,
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": log,
        "metadata-log": _metadata_log(held, held_path),
    }
    if current is None:
        del found["current-snapshot-id"]
    else:
        found["refs"] = {**_others(held, ids), **_refs(table, current, by_commit, ids)}
    if version >= 3:
        found["next-row-id"] = max(next_row_id, table.next_row_id or 0, (held or {}).get("next-row-id", 0))
    found["properties"][PROPERTY] = property_text(write, current, found, rewritten, taken)
    return found


def _schemas(
    schemas: Mapping[int, Schema], version: int, held: Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """All schemas, those of the target first, and the id that each of the source's has there: its own in a new table.

    A source may number its schemas anew when it forgets old ones; snapshots that are there go on naming theirs.
    """
    made = [dict(each) for each in (held or {}).get("schemas") or ()]
    known = {_text(each): int(each["schema-id"]) for each in made}
    ids: dict[int, int] = {}
    for id_ in sorted(schemas):
        document = schema_json(published_schema(schemas[id_]), version)
        if _text(document) not in known:
            number = id_ if held is None else max(known.values(), default=-1) + 1
            known[_text(document)] = number
            made.append({**document, "schema-id": number})
        ids[id_] = known[_text(document)]
    return made, ids


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in schema.items() if key != "schema-id"}, sort_keys=True)


def _kept(write: TableWrite, held: Mapping[str, Any] | None, lost: frozenset[int], newer: bool) -> list[dict[str, Any]]:
    """The snapshots before: those that stand for commits that the source has dropped go, since its files may. One after
    the commit that the target is taken to be at is of a history that the source has gone back behind, unless it is the
    very one that the source has come back to."""
    if held is None:
        return []
    until = len(write.table.commits) if write.base is None else write.base + 1
    there = {each.id for each in write.table.commits[:until]}
    times = {each.id: str(each.time) for each in write.table.commits[until:]}
    again = {
        each["snapshot-id"]
        for each in held.get("snapshots") or ()
        if (said := each.get("summary") or {}).get(TIME, "") == times.get(said.get(COMMIT, ""))
    }
    gone = {each for each, commit in source_commits(held).items() if commit not in there and each not in again} | lost
    if not newer:
        gone.discard(held.get("current-snapshot-id", -1))
    return [each for each in held.get("snapshots") or () if each["snapshot-id"] not in gone]


def _others(held: Mapping[str, Any] | None, ids: set[int]) -> dict[str, Any]:
    """References that somebody else made at the target."""
    ours = refs_of(held or {})
    refs = (held or {}).get("refs") or {}
    return {
        name: ref for name, ref in refs.items() if name != "main" and name not in ours and ref["snapshot-id"] in ids
    }


def _refs(table: Table, current: int, by_commit: Mapping[str, int], ids: set[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"main": {"snapshot-id": current, "type": "branch"}}
    for ref in table.refs:
        if ref.on_main and by_commit.get(ref.commit) in ids:
            found[ref.name] = {"snapshot-id": by_commit[ref.commit], "type": ref.kind.value}
    return found


def _metadata_log(held: Mapping[str, Any] | None, path: str) -> list[dict[str, Any]]:
    if held is None:
        return []
    return [
        *(held.get("metadata-log") or ()),
        {"timestamp-ms": held["last-updated-ms"], "metadata-file": path},
    ][-_PREVIOUS:]


def _uuid(table: Table) -> str:
    try:
        return str(uuid.UUID(table.uuid))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{table.location}\n{table.uuid}"))
