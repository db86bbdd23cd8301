"""How long a table keeps its snapshots, as Iceberg's own expiry decides it.

`RemoveSnapshots` of Iceberg Java 1.10: a branch keeps its newest snapshots by number and those that are young enough
without a gap, a tag its own, both as long as the reference is young enough; what no branch or tag reaches stays as long
as it is young enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.model.expiry import Retention

__all__ = ["retention_of"]

_AGE, _KEEP, _REF_AGE = (
    "history.expire.max-snapshot-age-ms",
    "history.expire.min-snapshots-to-keep",
    "history.expire.max-ref-age-ms",
)
_DEFAULT_AGE = 5 * 86_400_000
_NEVER = 2**63 - 1
_LAST = 253_402_300_800_000
"""The year 10000, in milliseconds: what lasts as long is kept for good."""


def retention_of(stored: Mapping[str, Any]) -> Retention:
    """Of every snapshot of a metadata file."""
    snapshots = {str(each["snapshot-id"]): each for each in stored.get("snapshots") or ()}
    properties = stored.get("properties") or {}
    if str(properties.get("gc.enabled", "true")).lower() == "false":
        return Retention(dict.fromkeys(snapshots), "gc.enabled=false")
    age, keep = _number(properties, _AGE, _DEFAULT_AGE), _number(properties, _KEEP, 1)
    refs = dict(stored.get("refs") or {})
    if "main" not in refs and stored.get("current-snapshot-id") not in (None, -1):
        refs["main"] = {"snapshot-id": stored["current-snapshot-id"], "type": "branch"}
    until: dict[str, int] = {}
    reached: set[str] = set()
    for name, ref in refs.items():
        at = str(ref["snapshot-id"])
        if at not in snapshots:
            continue
        own = _number(ref, "max-ref-age-ms", _number(properties, _REF_AGE, _NEVER))
        limit = _NEVER if name == "main" else _after(snapshots[at], own)
        if str(ref["type"]).lower() != "branch":
            until[at] = max(until.get(at, 0), limit)
            continue
        young, least = _number(ref, "max-snapshot-age-ms", age), _number(ref, "min-snapshots-to-keep", keep)
        number, seen = 0, set[str]()
        while at in snapshots and at not in seen:
            seen.add(at)
            if number >= least:
                limit = min(limit, _after(snapshots[at], young))
            until[at] = max(until.get(at, 0), limit)
            parent = snapshots[at].get("parent-snapshot-id")
            at, number = "" if parent is None else str(parent), number + 1
        reached |= seen
    for id_, each in snapshots.items():
        if id_ not in reached and id_ not in until:
            until[id_] = _after(each, age)
    by = f"{_AGE}={properties[_AGE]}" if _AGE in properties else f"{_AGE} is not set: 5 days"
    return Retention({id_: None if time >= _LAST else time * 1000 for id_, time in until.items()}, by)


def _after(snapshot: Mapping[str, Any], age: int) -> int:
    return _NEVER if age >= _NEVER else int(snapshot["timestamp-ms"]) + age


def _number(stored: Mapping[str, Any], key: str, default: int) -> int:
    """A whole number; what is none is not in force."""
    text = str(stored.get(key, ""))
    return int(text) if text.isdecimal() else default
