"""Work of ours that is not committed: where it is noted, who may take it up, and how what nobody needs is removed.

    STAGING/<work>/work.json     whose work it is: the catalog, the table, the plan, the directory of its files
    STAGING/<work>/owner-*.json  the run that is at it (converters/storage/claims.py)
    STAGING/<work>/...           what the engine keeps there

The note is written before anything else and removed last. Only directories that a note names are looked at, in them
only files that are called as ours are, and of these none that the catalog refers to is removed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bridge.errors import Conflict, Missing, Unreachable
from bridge.model.rewrite import ASIDE, work_mark
from bridge.model.table import TableName
from converters import storage
from converters.storage.claims import OWNER, Claim, claimed

__all__ = ["Work", "all_held", "discard", "held", "sweep", "table_key", "work_name"]

_NOTE = "work.json"
_WORK = re.compile(r"^[0-9a-f]{16}-[0-9a-f]{8}$")
_STAGED = re.compile(r"^\.?(batch|positions|owner|work)\b[^/]*$")
_OTHERS_AGE = 7 * 86_400

Registered = Callable[[str], frozenset[str]]
"""The paths that a catalog refers to and that hold a text."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is noted of a plan's work. `catalog` only tells catalogs apart: a connection string must not be shown."""

    catalog: str
    table: str
    plan: str
    directory: str


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def work_name(catalog: str, table: TableName, plan: str) -> str:
    """The name of the directory of a plan's work in the staging; `catalog` tells whose table it is."""
    return f"{plan}-{_digest(f'{_catalog(catalog)} {table_key(table)}')[:8]}"


def table_key(table: TableName) -> str:
    """A table's name as it is compared."""
    return f"{'.'.join(table.namespace) or 'main'}.{table.name}".casefold()


def _catalog(catalog: str) -> str:
    return _digest(catalog)[:32]


@contextmanager
def held(staging: str, catalog: str, table: TableName, plan: str, directory: str) -> Iterator[Claim]:
    """Note the work and keep others off it; Conflict when another run that lives is at it."""
    root = f"{staging}/{work_name(catalog, table, plan)}"
    with claimed(root) as claim:
        told = {"catalog": _catalog(catalog), "table": table_key(table), "plan": plan, "directory": directory}
        storage.write(f"{root}/{_NOTE}", json.dumps(told).encode(), f".{_NOTE}.{claim.name}.bridge-tmp")
        yield claim
    storage.remove_directory(root)
    storage.remove_directory(staging)


@contextmanager
def all_held(staging: str, catalog: str, works: Sequence[tuple[TableName, str, str]]) -> Iterator[Callable[[], None]]:
    """The same for several (table, plan, directory); gives what raises Conflict once one of them was taken away."""
    with ExitStack() as stack:
        claims = [stack.enter_context(held(staging, catalog, *work)) for work in works]

        def require() -> None:
            for claim in claims:
                claim.require()

        yield require


def discard(root: str, directory: str, registered: Registered) -> None:
    """Remove work that is claimed: its files that the catalog does not refer to, then what is staged, then the note.
    The directory may be the table's, in which others are at work too: a file's name tells whose it is."""
    staged = [each for each, is_directory in storage.list_directory(root) if not is_directory and _STAGED.match(each)]
    if directory:
        work = root.rsplit("/", 1)[1]
        name = rf"\.?r-[0-9a-f]{{32}}{work_mark(work)}(-v\d+)?-\d+\.parquet"
        ours = re.compile(rf"^{name}(\.[0-9a-f]{{32}}\.bridge-tmp)?$")
        kept = {path.rsplit("/", 1)[-1] for path in registered(work_mark(work))}
        _remove_files(directory, ours, kept, f"{ASIDE}{work}.")
    for each in sorted(staged, key=lambda each: each == _NOTE):
        if not each.startswith(OWNER):
            storage.remove(f"{root}/{each}")


def _remove_files(directory: str, ours: re.Pattern[str], kept: Set[str], aside: str) -> None:
    """Files that are called as ours and are not kept, also of partitions, and what is unfinished of this work."""
    seen: list[str] = []
    level = [directory]
    while level:
        seen += level
        below = []
        for place, listed in zip(level, storage.parallel(storage.list_directory, level), strict=True):
            for each, is_directory in listed:
                path = f"{place}/{each}"
                if is_directory and each.startswith(aside):
                    storage.remove_tree(path)
                elif is_directory and "=" in each:
                    below.append(path)
                elif not is_directory and ours.match(each) and each not in kept:
                    storage.remove(path)
        level = below
    for place in reversed(seen):
        storage.remove_directory(place)


def sweep(
    staging: str,
    catalog: str,
    plans: Mapping[TableName, str],
    committed: Callable[[], Mapping[str, str]],
    registered: Registered,
    others: bool = True,
) -> None:
    """Remove what no run that lives works at and nobody will take up: work for the tables of `plans` under another
    plan, work whose plan is committed, and with `others` work for other tables that nobody took up for a week.

    `committed` gives the plan of each table of the catalog by its key.
    """
    wanted = {table_key(name): plan for name, plan in plans.items()}
    try:
        listed = storage.list_directory(staging)
    except Unreachable:
        return  # who only registers files need not reach the lake's own
    entries = [name for name, is_directory in listed if is_directory and _WORK.match(name)]
    if not entries:
        return
    done = committed()
    for name in entries:
        root = f"{staging}/{name}"
        work = _read(root)
        if work is not None and work.catalog != _catalog(catalog):
            continue
        try:
            if work is not None and (
                (not others and work.table not in wanted) or not _is_done(root, work, wanted, done)
            ):
                continue
            with claimed(root):
                # what another run did with it while it was not claimed yet
                if _read(root) == work and (work is not None or _is_bare(root)):
                    discard(root, "" if work is None else work.directory, registered)
        except (Conflict, Missing):  # somebody is at it, or has just removed it
            continue
        storage.remove_directory(root)
    storage.remove_directory(staging)


def _is_done(root: str, work: Work, wanted: Mapping[str, str], done: Mapping[str, str]) -> bool:
    if done.get(work.table) == work.plan:
        return True
    if work.table in wanted:
        return wanted[work.table] != work.plan
    written = storage.modified(f"{root}/{_NOTE}")
    return written is not None and _now(root) - written > _OTHERS_AGE * 1_000_000_000


def _now(root: str) -> int:
    """The time by the clock of the storage."""
    name = ".work-clock.bridge-tmp"
    storage.write(f"{root}/{name}", b"", f"{name}.aside")
    now = storage.modified(f"{root}/{name}")
    storage.remove(f"{root}/{name}")
    return now or 0


def _read(root: str) -> Work | None:
    """The note; None when there is none, or none that can be read."""
    try:
        told = json.loads(storage.read(f"{root}/{_NOTE}", "note"))
        return Work(*(str(told[name]) for name in ("catalog", "table", "plan", "directory")))
    except (Missing, ValueError, KeyError, TypeError):
        return None


def _is_bare(root: str) -> bool:
    """Whether there is nothing but owners: a run that was killed before it wrote its note."""
    return all(name.startswith((OWNER, f".{OWNER}")) for name, _ in storage.list_directory(root))
