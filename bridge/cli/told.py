"""What a round of mirroring says, line by line: key=value for people and logfmt, or JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from bridge.errors import BridgeError, Conflict
from bridge.mirroring.expiry import Expiring
from bridge.mirroring.pair import TROUBLE, Round, State, TableOutcome

__all__ = ["kept", "lines", "remark"]

_PLAIN = re.compile(r"[^\s\"'=\\]+")


def lines(
    told: Round, form: str, blot: Callable[[str], str], before: Round | None = None, first: bool = False
) -> list[str]:
    """A line for each table that changed, is behind or is in trouble, and for what kept the round from looking at any;
    none where all is as it was, and nothing that is no trouble and was said after the round `before`.

    That another process was at it is no trouble where a round follows, and is the `first` in a row to say so.
    """
    last_tables, last_idle = (before.tables, before.idle) if before is not None else ((), ())
    last_unlisted = before.unlisted if before is not None else ()
    start: dict[str, Any] = {"time": _time(told.began + told.seconds), "level": "info", "pair": told.pair.label}
    found = [
        {**start, "level": "error" if each.state in TROUBLE else "info", **_facts(each)}
        for each in told.tables
        if (each.state is not State.CURRENT or each.behind)
        and not (each.state is State.DROPPED and each in last_tables)
    ]
    known = {each.source: _mark(each) for each in last_tables}
    found += [
        {**start, "level": "warning", "table": str(each.source), **_danger(each.expiring)}
        for each in told.tables
        if each.expiring is not None and _mark(each) != known.get(each.source)
    ]
    found += [
        {
            **start,
            "level": "error",
            "state": "unreachable",
            "namespace": each.subject,
            "message": each.detail,
            "hint": each.hint,
        }
        for each in told.unlisted
        if each not in last_unlisted
    ]
    found += [
        {**start, "level": "warning", "message": f"{each} matches no table of the source for now"}
        for each in told.idle
        if each not in last_idle
    ]
    if told.error is not None:
        found.append({**start, **_kept_from(told.error, first)})
    return [_line(each, form, blot) for each in found]


def _kept_from(error: BridgeError, first: bool) -> dict[str, Any]:
    """What kept a round from looking at any table."""
    level, state, hint = "error", "failed", error.hint
    if isinstance(error, Conflict) and error.passes_by_itself:
        level, state = "info" if first else "error", "meanwhile"
        hint = f"another process was at it; {'the next round looks again' if first else hint or 'run it again'}"
    said = {"target": error.table, "state": state, "exit_code": error.exit_code, "message": error.message, "hint": hint}
    return {"level": level, **{key: value for key, value in said.items() if value != ""}}


def kept(told: Round, before: Round | None) -> Round:
    """What to know of a round when the next one is told: tables that it left aside too, and of those in trouble, which
    are not looked at whole, what was known `before`."""
    known = {each.source: each.expiring for each in before.tables} if before is not None else {}
    tables = [
        replace(each, expiring=each.expiring or known.get(each.source)) if each.state in TROUBLE else each
        for each in (*told.tables, *told.aside)
    ]
    return replace(told, tables=tuple(tables), aside=())


def _mark(each: TableOutcome) -> tuple[str, str] | None:
    """What has to change before a warning is said again: how near it is, or where it begins."""
    return None if each.expiring is None else (each.expiring.danger.value, each.expiring.first)


def _danger(each: Expiring) -> dict[str, Any]:
    return {"expiring": each.danger.value, "message": each.text, "hint": each.hint}


def _facts(each: TableOutcome) -> dict[str, Any]:
    facts: dict[str, Any] = {"table": str(each.source)}
    if str(each.target) != str(each.source):
        facts["target"] = str(each.target)
    facts["state"] = each.state.value
    if each.state is State.APPLIED:
        facts |= {"commits": each.commits, "files": each.files, "bytes": each.bytes}
    if each.commit:
        facts["commit"] = each.commit
    if each.behind is not None and each.behind_seconds is not None:
        facts |= {"behind": each.behind, "behind_seconds": round(each.behind_seconds, 3)}
    if each.message:
        facts["message"] = each.message
    return facts


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def remark(level: str, message: str, form: str, blot: Callable[[str], str]) -> str:
    """A line about the run itself."""
    return _line({"time": _time(time.time()), "level": level, "message": message}, form, blot)


def _line(facts: Mapping[str, Any], form: str, blot: Callable[[str], str]) -> str:
    """Facts as one line, without secrets."""
    shown = {key: blot(value) if isinstance(value, str) else value for key, value in facts.items()}
    if form == "json":
        return json.dumps(shown, ensure_ascii=False)
    return " ".join(f"{key}={_word(str(value))}" for key, value in shown.items())


def _word(text: str) -> str:
    """A value that ends where it should: quoted where anything but plain characters is in it."""
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
