"""Files of a lake that published snapshots use and the lake may delete, and when."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import duckdb

from bridge.model.expiry import Ended, Endings, Retention
from converters.ducklake.catalog.ended import Span, ranges
from converters.ducklake.catalog.history import LakeState

__all__ = ["endings"]

_EXPIRE, _CLEAN = "expire_older_than", "delete_older_than"
_HINT = "the next round takes those snapshots off the published table: let it come between expiry and cleanup"


def endings(
    state: LakeState,
    spans: Sequence[Span],
    waiting: Sequence[int],
    published: Collection[str],
    settings: Mapping[str, str],
) -> Endings | None:
    """`spans` are the files of older states, `waiting` when files were scheduled for deletion since the last
    publication, `published` the snapshots that the target lists."""
    age, rest = _micros(settings.get(_EXPIRE, "")), _micros(settings.get(_CLEAN, "")) or 0
    ours = sorted(int(each) for each in published if each.isdecimal())
    kept = [each.id for each in state.snapshots]
    until: dict[str, int | None] = {str(each.id): None if age is None else each.time + age for each in state.snapshots}
    if kept:
        until[str(kept[-1])] = None  # the newest is never expired
    groups = list(ranges(list(spans), kept, list(map(str, kept)), ours))
    groups += [Ended((0, 0), (0, 0), 1, 0, until=time + rest) for time in sorted(waiting)]
    if not groups:
        return None
    said = f"{_EXPIRE}={settings[_EXPIRE]}" if age is not None else "scheduled for deletion"
    if age is not None and waiting:
        said += f", {len(waiting)} are scheduled for deletion"
    return Endings(tuple(map(str, kept)), tuple(map(str, ours)), tuple(groups), _HINT, Retention(until, said))


def _micros(text: str) -> int | None:
    """An interval in microseconds, None for none."""
    if not text:
        return None
    try:
        with duckdb.connect() as asked:
            [(found,)] = asked.execute("SELECT epoch_us(CAST(? AS INTERVAL))", [text]).fetchall()
    except duckdb.Error:
        return None
    return int(found)
