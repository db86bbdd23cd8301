"""What `status` found, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bridge.cli.render import size_text
from bridge.mirroring.expiry import Expiring
from bridge.mirroring.status import Standing, TableStatus

__all__ = ["exit_code", "status_data", "status_text"]

_GRAVEST = (5, 6, 3)


def exit_code(found: Sequence[TableStatus]) -> int:
    """The gravest of the tables, as that of a round: conflict, unreachable, blocked, else 0."""
    codes = {each.exit_code for each in found}
    return next((code for code in _GRAVEST if code in codes), 0)


def status_data(source: str, target: str, found: Sequence[TableStatus]) -> dict[str, Any]:
    """A status for JSON; a key is never left out, null is unknown."""
    return {
        "source": source,
        "target": target,
        "current": all(each.standing in (Standing.CURRENT, Standing.DROPPED) for each in found),
        "tables": [_data(each) for each in found],
        "exit_code": exit_code(found),
    }


def _data(each: TableStatus) -> dict[str, Any]:
    return {
        "table": str(each.source),
        "target": str(each.target),
        "state": each.standing.value,
        "source_commit": each.newest,
        "source_time": _time(each.newest_time),
        "target_commit": each.held,
        "target_time": _time(each.held_time),
        "lag_commits": each.behind,
        "lag_seconds": each.behind_seconds,
        "pending_files": each.pending_files,
        "pending_bytes": each.pending_bytes,
        "expiring": _expiring(each.expiring),
        "message": each.message,
        "hint": each.hint,
    }


def _expiring(each: Expiring | None) -> dict[str, Any] | None:
    if each is None:
        return None
    facts = {name: getattr(each, name) for name in ("snapshots", "first", "last", "files", "bytes", "gone", "due")}
    by = None if each.by is None else _time(int(each.by * 1_000_000))
    return {"danger": each.danger.value, **facts, "by": by, "why": each.why, "hint": each.hint}


def _time(micros: int | None) -> str | None:
    if micros is None:
        return None
    seconds, rest = divmod(micros, 1_000_000)
    made = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)
    return made.isoformat(timespec="microseconds").replace("+00:00", "Z")


def status_text(found: Sequence[TableStatus]) -> list[str]:
    """A status for people."""
    lines = [] if found else ["nothing to follow for now: the source has no table that is asked for"]
    for each in found:
        name = str(each.source) if str(each.source) == str(each.target) else f"{each.source} -> {each.target}"
        lines.append(f"{name}: {each.standing.value}{_lag(each)}" + (f": {each.message}" if each.message else ""))
        if each.hint:
            lines.append(f"  hint: {each.hint}")
        if each.expiring is not None:
            lines.append(f"  expiring: {each.expiring.text}")
            lines.append(f"    hint: {each.expiring.hint}")
        if each.newest is not None and each.standing is not Standing.CURRENT:
            lines.append(f"  source at {_commit(each.newest, each.newest_time)}")
        if each.held is not None:
            lines.append(f"  target at {_commit(each.held, each.held_time)}")
    kinds = [each.standing for each in found]
    if len(found) > 1:
        lines.append("in all: " + ", ".join(f"{kinds.count(each)} {each.value}" for each in Standing if each in kinds))
    return lines


def _commit(id_: str, time: int | None) -> str:
    return "no commit" if not id_ else f"{id_}" + (f", {_time(time)}" if time is not None else "")


def _lag(each: TableStatus) -> str:
    if not each.behind and not each.pending_files:
        return ""
    facts = ["1 commit to come" if each.behind == 1 else f"{each.behind} commits to come"]
    if each.behind_seconds is not None:
        facts.append(f"the oldest {_age(each.behind_seconds)} old")
    if each.pending_files is not None:
        size = f" ({size_text(each.pending_bytes)})" if each.pending_bytes is not None else ""
        facts.append(f"{each.pending_files} data files{size}")
    return ", " + ", ".join(facts)


def _age(seconds: float) -> str:
    """An age for people, in its two largest units."""
    left, parts = int(seconds), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
