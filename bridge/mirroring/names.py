"""Tables that were renamed, dropped or made anew at the source since the last round: the target follows first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bridge.app import Ends
from bridge.errors import BridgeError, Conflict, Unreachable
from bridge.mirroring.pair import TROUBLE, Pair, State, TableOutcome
from bridge.mirroring.verdict import lag_of, verdict_of
from bridge.model.options import Options
from bridge.model.table import TableName
from bridge.planning.selection import is_wanted, literal, matches, targets
from bridge.ports import Mirrors, Move, ProgressSink, TargetTable

__all__ = ["Followed", "Foreseen", "Lost", "follow_names", "foreseen"]


@dataclass(frozen=True, slots=True)
class Followed:
    """What was done, and the options for the tables that are left to bring up to date: None for none."""

    outcomes: tuple[TableOutcome, ...]
    options: Options | None


@dataclass(frozen=True, slots=True)
class Lost:
    """A table of the target of whose name the source has none any more, or another one: why, whether another has it
    (`anew`), and what keeps from saying so for sure ("" for nothing)."""

    there: TargetTable
    why: str
    anew: bool
    unsure: str = ""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a round does about names before anything else, each by what a table was called at the source: the tables
    that this pair wrote (`taken`), those that are renamed to what they are called now, and those that are lost. `names`
    are all that the source has and that are asked for, with their names in the target."""

    there: tuple[TableName, ...]
    names: Mapping[TableName, TableName]
    taken: Mapping[TableName, TargetTable]
    moved: Mapping[TableName, TableName]
    lost: Mapping[TableName, Lost]


def foreseen(ends: Ends, options: Options) -> Foreseen:
    """Decide it; nothing is written. A table is known by its uuid, so that names may have gone from one to another."""
    if not isinstance(ends.target, Mirrors):
        return Foreseen((), {}, {}, {}, {})
    there = list(ends.source.tables())
    taken = _taken(ends.target, ends, options, there)
    if not taken:
        return Foreseen(tuple(there), {}, {}, {}, {})
    names = _selected(ends, there, options)
    known = {name: _uuid(ends, name) for name in names if name in taken}
    lost = {old: each for old, each in taken.items() if _is_lost(old, each, ends, there, known)}
    if lost:
        known |= {name: _uuid(ends, name) for name in names if name not in known}
    now = {uuid: name for name, uuid in known.items() if uuid}
    renamed = {old: now[_of(each)] for old, each in lost.items() if _of(each) in now}
    kept = {_of(each) for old, each in taken.items() if old not in lost}
    moved = {old: name for old, name in renamed.items() if _of(taken[old]) not in kept} if ends.target.renames else {}
    unseen = next((name for name, uuid in known.items() if uuid is None), None)
    left = {}
    for name, each in lost.items():
        if name in moved or not is_wanted(name, options):
            continue
        why = f"it is called {renamed[name]} at the source now" if name in renamed else "it was dropped at the source"
        unsure = ""
        if unseen is not None and name not in renamed:
            unsure = (
                f"nothing, or another table, has its name at the source; it may be {unseen}, which cannot be opened"
            )
        left[name] = Lost(each, why, name in known, unsure)
    return Foreseen(tuple(there), names, taken, moved, left)


def follow_names(pair: Pair, ends: Ends, options: Options, progress: ProgressSink) -> Followed:
    """Rename what was renamed, drop what was dropped where that is asked for, and make room for what was made anew.

    What cannot be followed is told, and left out of the rest of the round.
    """
    seen = foreseen(ends, options)
    if not isinstance(ends.target, Mirrors) or not seen.taken:
        return Followed((), options)
    done, failed = [], list[TableName]()
    for name, each in seen.lost.items():
        what = f"{each.why}, and another table has its name" if each.anew else each.why
        if each.anew:
            progress.step(f"{name}: it was dropped and made anew")
        elif pair.on_drop == "keep":
            done.append(_told(name, each.there, State.DROPPED, f"{what}, and stays here"))
            continue
        if each.unsure:
            told = _told(name, each.there, State.UNREACHABLE, each.unsure)
            done.append(_behind(ends, told, None) if each.anew else told)
            failed.append(name)
            continue
        try:
            assert each.there.bookmark is not None
            ends.target.drop(each.there.name, each.there.bookmark.source)
            done.append(_told(name, each.there, State.DROPPED, what))
        except (Conflict, Unreachable) as error:
            if error.passes_by_itself:  # the next round looks again
                raise
            state = State.CONFLICT if isinstance(error, Conflict) else State.UNREACHABLE
            told = _told(name, each.there, state, str(error))
            done.append(_behind(ends, told, None) if each.anew else told)
            failed.append(name)
    if seen.moved:
        made, more = _move(ends, ends.target, seen.taken, seen.moved, seen.names)
        done += made
        failed += more
    return Followed(tuple(done), _left(options, list(seen.there), list(seen.taken), failed))


def _move(
    ends: Ends,
    target: Mirrors,
    taken: Mapping[TableName, TargetTable],
    moved: Mapping[TableName, TableName],
    names: Mapping[TableName, TableName],
) -> tuple[list[TableOutcome], list[TableName]]:
    """All at once, since a name may be taken until its table has left it."""
    moves = []
    for old, name in moved.items():
        mark = taken[old].bookmark
        assert mark is not None
        moves.append(Move(taken[old].name, names[name], {**mark.source, "name": str(name)}))
    try:
        target.move(moves)
    except Conflict as error:
        if error.passes_by_itself:  # the next round looks again
            raise
        told = [
            replace(_told(name, taken[old], State.CONFLICT, str(error)), target=names[name])
            for old, name in moved.items()
        ]
        told = [_behind(ends, each, taken[old]) for each, old in zip(told, moved, strict=True)]
        return told, list(moved.values())
    told = [
        replace(_told(name, taken[old], State.APPLIED, f"renamed from {taken[old].name}"), target=names[name])
        for old, name in moved.items()
    ]
    return told, []


def _is_lost(
    name: TableName, each: TargetTable, ends: Ends, there: list[TableName], known: Mapping[TableName, str | None]
) -> bool:
    """Whether nothing, or another table, has its name at the source, by the source's own word: a namespace that could
    not be listed drops nothing."""
    if name in there:
        uuid = known.get(name)
        return bool(uuid and uuid != _of(each))
    try:
        return not ends.source.holds(name)
    except BridgeError:
        return False


def _taken(target: Mirrors, ends: Ends, options: Options, there: list[TableName]) -> dict[TableName, TargetTable]:
    """The tables that this pair wrote, by what they were called at the source; another pair may have written the same
    ones under other names."""
    found = {}
    for each in target.taken(ends.remembered):
        text = each.bookmark.source.get("name") if each.bookmark is not None else None
        if not text:
            continue
        *levels, last = text.split(".")
        # a name may hold dots itself
        for name in (*(each for each in there if str(each) == text), TableName(tuple(levels), last)):
            expected = targets([name], options, ends.target.rename)[name]
            if str(expected).casefold() == str(each.name).casefold() and name not in found:
                found[name] = each
                break
    return found


def _selected(ends: Ends, there: list[TableName], options: Options) -> dict[TableName, TableName]:
    chosen = [name for name in there if is_wanted(name, options)]
    return dict(targets(chosen, options, ends.target.rename)) if chosen else {}


def _left(options: Options, there: list[TableName], before: list[TableName], failed: list[TableName]) -> Options | None:
    """The options without what could not be followed, and without patterns of what is gone."""
    gone = [
        each
        for each in options.tables
        if not any(matches(name, each) for name in there) and any(matches(name, each) for name in before)
    ]
    patterns = tuple(each for each in options.tables if each not in gone)
    if gone and not patterns:
        return None
    made = replace(options, tables=patterns, exclude=(*options.exclude, *map(literal, failed)))
    followed = gone or failed or any(name not in there for name in before)
    return made if any(is_wanted(name, made) for name in there) or not followed else None


def _uuid(ends: Ends, name: TableName) -> str | None:
    """None where it cannot be told."""
    try:
        return ends.source.open(name).table.uuid
    except BridgeError:
        return None  # the round itself says what is wrong with it


def _of(each: TargetTable) -> str:
    return each.bookmark.source.get("uuid", "") if each.bookmark else ""


def _behind(ends: Ends, told: TableOutcome, there: TargetTable | None) -> TableOutcome:
    """With what is to come of a table that could not be followed."""
    try:
        table = ends.source.open(told.source).table
    except BridgeError:
        return told
    behind, seconds = lag_of(table, verdict_of(table, there).base, time.time())
    return replace(told, behind=behind, behind_seconds=seconds)


def _told(name: TableName, each: TargetTable, state: State, message: str) -> TableOutcome:
    assert each.bookmark is not None
    told = TableOutcome(name, each.name, state, each.bookmark.commit, message=message)
    return replace(told, behind=None, behind_seconds=None) if state in TROUBLE else told
