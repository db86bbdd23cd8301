"""Snapshot times: microseconds from 1970 in UTC, as the text that every backend reads."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

__all__ = ["micros", "time_text"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"\.(\d{1,6})\d*")
_SHORT_ZONE = re.compile(r"[+-]\d\d$")


def time_text(value: int) -> str:
    """As DuckDB 1.5.5 writes it into SQLite: `2024-01-31 10:34:56.789123+00`."""
    return (_EPOCH + timedelta(microseconds=value)).strftime("%Y-%m-%d %H:%M:%S.%f+00")


def micros(stored: object) -> int:
    """A stored snapshot time, whether the backend hands out a time or a text."""
    if isinstance(stored, str):
        text = stored.replace("Z", "+00:00")
        text = text + ":00" if _SHORT_ZONE.search(text) else text
        # Python 3.10 reads fractions of exactly six digits
        stored = datetime.fromisoformat(_FRACTION.sub(lambda found: "." + found.group(1).ljust(6, "0"), text))
    if not isinstance(stored, datetime):
        raise ValueError(f"{stored!r} is no snapshot time")
    if stored.tzinfo is None:
        stored = stored.replace(tzinfo=UTC)
    return (stored - _EPOCH) // timedelta(microseconds=1)
