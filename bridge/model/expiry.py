"""Data files that only older states use, and until when their source keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Ended", "Endings", "Retention"]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a source keeps its commits, those off the main line too, by what it says now.

    `until` is in microseconds from 1970, None for what stays while nothing newer comes; what is not in it was expired.
    `by` names what says so.
    """

    until: Mapping[str, int | None]
    by: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Files that left a table: how many, their bytes, and whose states use them, as half-open ranges of places in
    Endings. `next` is the commit that they left with, "" where it is not known; `until`, where it is not None, the time
    in microseconds from 1970 from which they are deleted, whatever is kept."""

    commits: tuple[int, int]
    snapshots: tuple[int, int]
    files: int
    bytes: int
    next: str = ""
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Endings:
    """Files that only older snapshots of a target use, with the source's commits and the target's snapshots in order,
    and what can be done."""

    commits: tuple[str, ...]
    snapshots: tuple[str, ...]
    groups: tuple[Ended, ...]
    hint: str
    retention: Retention | None = None
    """What the source says where its table does not."""
