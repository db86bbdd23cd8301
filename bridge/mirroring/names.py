"""Tables that were renamed, dropped or made anew at the source since the last round: the target follows first."""

from __future__ import annotations

from dataclasses import replace

from bridge.app import Ends
from bridge.errors import BridgeError, UsageError
from bridge.mirroring.pair import Pair, State, TableOutcome
from bridge.model.options import Options
from bridge.model.table import TableName
from bridge.planning.selection import select, targets
from bridge.ports import Mirrors, ProgressSink, TargetTable

__all__ = ["follow_names"]


def follow_names(pair: Pair, ends: Ends, progress: ProgressSink) -> tuple[TableOutcome, ...]:
    """Rename what was renamed, drop what was dropped where that is asked for, and make room for what was made anew."""
    if not isinstance(ends.target, Mirrors):
        return ()
    taken = {each.bookmark.source.get("name", ""): each for each in ends.target.taken(str(ends.from_)) if each.bookmark}
    if not taken:
        return ()
    names = _selected(ends, pair.options)
    gone = {name: each for name, each in taken.items() if name not in {str(name) for name in ends.source.tables()}}
    done = []
    for name, to in names.items():
        there = taken.get(str(name))
        if there is None and gone:
            uuid = _uuid(ends, name)
            was = next((old for old, each in gone.items() if uuid and _taken_uuid(each) == uuid), None)
            if was is not None:
                done.append(_moved(ends.target, gone.pop(was), name, to))
        elif there is not None and (uuid := _uuid(ends, name)) and _taken_uuid(there) != uuid:
            progress.step(f"{name}: it was dropped and made anew")
            ends.target.drop(there.name)
            done.append(_dropped(there, "it was dropped and made anew at the source"))
    for each in gone.values():
        if not _wanted(each, pair.options):
            continue
        if pair.on_drop == "drop":
            ends.target.drop(each.name)
        done.append(_dropped(each, "" if pair.on_drop == "drop" else "it was dropped at the source and stays here"))
    return tuple(done)


def _selected(ends: Ends, options: Options) -> dict[TableName, TableName]:
    try:
        chosen = select(ends.source.tables(), options, ends.source.objects().objects)
    except UsageError:  # the last one was dropped
        return {}
    return dict(targets(chosen, options, ends.target.rename))


def _wanted(each: TargetTable, options: Options) -> bool:
    """Whether a table is one of those that this pair is about."""
    assert each.bookmark is not None
    levels = each.bookmark.source["name"].split(".")
    try:
        return bool(select([TableName(tuple(levels[:-1]), levels[-1])], options, ()))
    except UsageError:
        return False


def _uuid(ends: Ends, name: TableName) -> str:
    try:
        return ends.source.open(name).table.uuid
    except BridgeError:
        return ""  # the round itself says what is wrong with it


def _taken_uuid(each: TargetTable) -> str:
    return each.bookmark.source.get("uuid", "") if each.bookmark else ""


def _moved(target: Mirrors, each: TargetTable, name: TableName, to: TableName) -> TableOutcome:
    assert each.bookmark is not None
    target.move(each.name, to, {**each.bookmark.source, "name": str(name)})
    return TableOutcome(name, to, State.APPLIED, each.bookmark.commit, message=f"renamed from {each.name}")


def _dropped(each: TargetTable, message: str) -> TableOutcome:
    assert each.bookmark is not None
    levels = each.bookmark.source["name"].split(".")
    made = TableOutcome(TableName(tuple(levels[:-1]), levels[-1]), each.name, State.DROPPED, each.bookmark.commit)
    return replace(made, message=message)
