"""Source files that older snapshots of a target use and that the source may delete: told before it happens.

Decided from the source's snapshots and from what a catalog counts; no manifest is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import numpy as np

from bridge.model.expiry import Ended, Endings, Retention
from bridge.model.table import Table
from bridge.ports import KnowsEnded, Source, Target, TargetTable

__all__ = ["Danger", "Expiring", "expiring"]

_SOON = 86_400.0
_EVER, _GONE = float("inf"), float("-inf")


class Danger(Enum):
    """How near it is that files go."""

    LATER = "later"
    SOON = "soon"
    """Within a day."""
    NOW = "now"
    """Whenever the source is maintained next."""
    GONE = "gone"
    """The source has expired what used them."""


@dataclass(frozen=True, slots=True)
class Expiring:
    """The target's snapshots, `first` to `last`, whose data files the source can delete: `files` and `bytes` of them,
    of which `gone` belong to nothing that the source still lists and `due` can go now; the others from `by` on (seconds
    from 1970; None when there are none)."""

    danger: Danger
    snapshots: int
    first: str
    last: str
    files: int
    bytes: int
    gone: int
    due: int
    by: float | None
    why: str
    hint: str

    @property
    def text(self) -> str:
        """In one line."""
        parts = [f"{self.gone} have no snapshot left there"] if self.gone else []
        parts += [f"{self.due} can go now"] if self.due else []
        if self.by is not None:
            rest = self.files - self.gone - self.due
            parts.append(f"{rest} from {datetime.fromtimestamp(self.by, UTC).isoformat(' ', 'seconds')} on")
        which = f"{self.snapshots} older snapshots ({self.first} to {self.last})" if self.first else "older snapshots"
        size = f" ({self.bytes:,} bytes)" if self.bytes else ""  # of scheduled files no catalog tells any
        said = f"{which} use {self.files} data files{size} that the source may delete"
        return f"{said}: {', '.join(parts)} ({self.why})"


def expiring(source: Source, target: Target, table: Table, there: TargetTable | None, now: float) -> Expiring | None:
    """What the source of a mirrored table can delete although the target uses it; `now` is in seconds from 1970. None
    when there is nothing, or the files are the target's own."""
    mark = None if there is None else there.bookmark
    if there is None or mark is None or mark.ownership == "adopt" or table.imported:
        return None
    if mark.source.get("uuid", "") != table.uuid:  # it is another table's
        return None
    endings: Endings | None = None
    if isinstance(target, KnowsEnded):
        endings = target.ended(there.name, there)
    elif isinstance(source, KnowsEnded):
        endings = source.ended(table.name, there)
    retention = None if endings is None else endings.retention or table.retention
    if endings is None or retention is None:
        return None
    return _summed(endings, retention, [each.id for each in table.commits], now)


def _summed(endings: Endings, retention: Retention, line: list[str], now: float) -> Expiring | None:
    until = np.array([_until(retention, each) for each in endings.commits], dtype=np.float64)
    place = {id_: number for number, id_ in enumerate(line)}
    times = [(each, _lasting(each, until, retention, line, place)) for each in endings.groups]
    times = [(each, time) for each, time in times if time != _EVER]
    if not times:
        return None
    gone = sum(each.files for each, time in times if time == _GONE)
    due = sum(each.files for each, time in times if _GONE < time <= now)
    later = [time for _, time in times if time > now]
    soon = bool(later) and min(later) - now <= _SOON
    danger = Danger.GONE if gone else Danger.NOW if due else Danger.SOON if soon else Danger.LATER
    used = sorted({place for each, _ in times for place in range(*each.snapshots)})
    return Expiring(
        danger,
        len(used),
        endings.snapshots[used[0]] if used else "",
        endings.snapshots[used[-1]] if used else "",
        sum(each.files for each, _ in times),
        sum(each.bytes for each, _ in times),
        gone,
        due,
        min(later, default=None),
        retention.by,
        endings.hint,
    )


def _until(retention: Retention, commit: str) -> float:
    """In seconds from 1970."""
    time = retention.until.get(commit, _GONE)
    return _EVER if time is None else time / 1_000_000


def _lasting(each: Ended, until: np.ndarray, retention: Retention, line: list[str], place: dict[str, int]) -> float:
    """When the last commit goes that keeps some files: that before the one they left with is one, whether the target
    still has a snapshot of it or not."""
    if each.until is not None:
        return each.until / 1_000_000
    low, high = each.commits
    last = float(until[low:high].max()) if high > low else _GONE
    before = place.get(each.next, 0) - 1
    return max(last, _until(retention, line[before])) if before >= 0 else last
