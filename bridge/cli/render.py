"""Values as text and as JSON; the only place that prints."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from bridge.app import Inspection, Report
from bridge.errors import BridgeError
from bridge.model.findings import Finding, Severity
from bridge.model.layout import Simple
from bridge.model.secrets import scrubbed
from bridge.model.table import Table
from bridge.model.types import (
    ColumnType,
    Decimal,
    Fixed,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    UnknownType,
)
from bridge.planning.plan import Action, ObjectPlan, Plan, TablePlan
from bridge.ports import Check, ReleasedTable

__all__ = [
    "Progress",
    "fail",
    "finding_data",
    "out",
    "out_json",
    "plan_data",
    "plan_text",
    "report_data",
    "report_text",
    "say",
]

_SHOWN = 10
_MOST_SQL = 100
_VERBS = {
    Action.CREATE: "create",
    Action.APPEND: "add new commits to",
    Action.NOTHING: "nothing to do for",
    Action.BLOCKED: "BLOCKED",
    Action.LEAVE: "LEFT OUT",
}


def out(*lines: str) -> None:
    """Lines on standard output."""
    for line in lines:
        print(line)


def say(*lines: str) -> None:
    """Lines on standard error, each whole and at once; a reader who is gone is no reason to stop."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{each}\n" for each in lines))
        sys.stderr.flush()


def out_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))


def fail(error: BridgeError, as_json: bool) -> None:
    """One line on standard error, or a JSON document on standard output."""
    error.message, error.hint = scrubbed(error.message), scrubbed(error.hint)
    if as_json:
        code = getattr(error, "code", "")
        out_json({"error": error.message, "hint": error.hint, "code": code, "exit_code": error.exit_code})
        return
    print(f"error: {error.message}" + (f"\n  hint: {error.hint}" if error.hint else ""), file=sys.stderr)


def size_text(size: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding for JSON."""
    return {
        "code": finding.code.text,
        "severity": finding.severity.value,
        "subject": finding.subject,
        "detail": finding.detail,
        "hint": finding.hint,
        "files": list(finding.files),
        "file_count": finding.file_count,
        "text": finding.text,
    }


def _object_data(each: ObjectPlan) -> dict[str, Any]:
    return {
        "kind": each.object.kind.value,
        "source": str(each.object.name),
        "target": str(each.target),
        "action": each.action.value,
        "definition": each.object.text,
        "findings": [finding_data(finding) for finding in each.findings],
    }


def _table_data(each: TablePlan) -> dict[str, Any]:
    return {
        "source": str(each.source),
        "target": str(each.target),
        "action": each.action.value,
        "id": each.id,
        "snapshots": each.snapshots,
        "register": {"files": each.files, "bytes": each.bytes},
        "deletes": each.deletes,
        "rewrite": _rewrite_data(each),
        "findings": [finding_data(finding) for finding in each.findings],
    }


def _rewrite_data(each: TablePlan) -> dict[str, Any]:
    keys = ("files", "bytes", "history_files", "history_bytes")
    return {
        **{key: sum(getattr(rewrite, key) for rewrite in each.rewrites) for key in keys},
        "classes": [
            {"reasons": list(rewrite.reasons), **{key: getattr(rewrite, key) for key in keys}}
            for rewrite in each.rewrites
        ],
        "resolve_equality_deletes": each.resolve,
    }


def _rewrite_lines(each: TablePlan) -> list[str]:
    lines = []
    for rewrite in each.rewrites:
        history = ""
        if rewrite.history_files:
            history = f", and {rewrite.history_files} that only history needs ({size_text(rewrite.history_bytes)})"
        lines.append(
            f"  rewrite: {rewrite.files} data files ({size_text(rewrite.bytes)}){history}: {', '.join(rewrite.reasons)}"
        )
    if each.resolve:
        lines.append("  resolve: equality deletes, by their key columns; the data files stay as they are")
    return lines or ["  rewrite: nothing"]


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan for JSON."""
    return {
        "plan": plan.id,
        "source": plan.source,
        "target": plan.target,
        "tables": [_table_data(each) for each in plan.tables],
        "objects": [_object_data(each) for each in plan.objects],
        "catalog": [finding_data(each) for each in plan.findings],
        "retry": [part for each in plan.retry for part in ("--table", each)],
    }


def _import_line(each: TablePlan) -> str:
    rows = pc.sum(each.data.table.column("record_count")).as_py() if each.data is not None else 0
    return f"  copy: {rows or 0} rows (about {size_text(sum(one.bytes for one in each.rewrites))})"


def plan_text(plan: Plan) -> list[str]:
    """A plan for people."""
    lines = [f"plan {plan.id}: {plan.source} -> {plan.target}"]
    for each in plan.tables:
        lines.append(
            f"{_VERBS[each.action]} {each.target}"
            + ("" if str(each.source) == str(each.target) else f" from {each.source}")
        )
        if each.action in (Action.CREATE, Action.APPEND) and each.table is not None and each.table.imported:
            lines.append(_import_line(each))
        elif each.action in (Action.CREATE, Action.APPEND):
            lines.append(
                f"  register in place: {each.files} data files ({size_text(each.bytes)}) in {each.snapshots} snapshots"
            )
            if each.deletes:
                lines.append(f"  deletes: {each.deletes} deleted rows are noted, from the snapshot that deleted each")
            lines += _rewrite_lines(each)
        if each.action is Action.BLOCKED and not each.blockers:
            lines.append("  blocked by --strict: the losses below; accept one with --accept CODE")
        lines += _finding_lines(each.findings)
    if len(plan.tables) > 1:
        counts = [(action, sum(each.action is action for each in plan.tables)) for action in Action]
        lines.append("in all: " + ", ".join(f"{count} {_COUNTED[action]}" for action, count in counts if count))
    for one in plan.objects:
        lines.append(f"{_VERBS[one.action]} {one.object.kind.value} {one.target}")
        lines += _finding_lines(one.findings)
    lines += _catalog_lines(plan.findings)
    if plan.retry and len(plan.tables) > 1:
        lines.append("blocked, to try again: " + " ".join(f"--table {shlex.quote(each)}" for each in plan.retry))
    return lines


def _catalog_lines(findings: Sequence[Finding]) -> list[str]:
    """What lies at the source beside its tables; of one kind a few by name, then how many more."""
    lines = ["catalog, beside its tables:"] if findings else []
    for code in dict.fromkeys(each.code for each in findings):
        same = [each for each in findings if each.code is code]
        lines += _finding_lines([replace(each, detail=f"{each.subject}: {each.detail}") for each in same[:_SHOWN]])
        if len(same) > _SHOWN:
            lines.append(f"  {code.severity.value:<8}{code.text}: and {len(same) - _SHOWN} more (--json lists them)")
    return lines


_COUNTED = {
    Action.CREATE: "to create",
    Action.APPEND: "to catch up",
    Action.NOTHING: "with nothing to do",
    Action.BLOCKED: "BLOCKED",
    Action.LEAVE: "LEFT OUT",
}


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    order = {Severity.BLOCKED: 0, Severity.LOSS: 1, Severity.NOTE: 2}
    lines = []
    for each in sorted(findings, key=lambda finding: order[finding.severity]):
        lines.append(
            f"  {each.severity.value:<8}{each.code.text}: {each.detail}"
            + (f" ({each.hint})" if each.hint else "")
            + (f": {_shortened(each.text)}" if each.text else "")
        )
    return lines


def _shortened(text: str) -> str:
    """One line of a definition; the report has it whole."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SQL else f"{line[:_MOST_SQL]} ... (whole in the report)"


def report_data(report: Report) -> dict[str, Any]:
    """A report for JSON."""
    return {
        **plan_data(report.plan),
        "written": [
            {
                "table": str(each.name),
                "snapshots": each.snapshots,
                "files": each.files,
                "first_commit": each.first_commit,
                "last_commit": each.last_commit,
            }
            for each in report.result.tables
        ],
        "made": [{"kind": each.object.kind.value, "name": str(each.name)} for each in report.result.objects],
        "after": [finding_data(each) for each in report.result.findings],
        "checks": [check_data(each) for each in report.checks],
        "exit_code": report.exit_code,
        "next": list(report.words),
    }


def check_data(check: Check) -> dict[str, Any]:
    """A check for JSON."""
    return {"what": check.what, "ok": not check.fault, "fault": check.fault}


def report_text(report: Report) -> list[str]:
    """A report for people."""
    lines = plan_text(report.plan)
    rewritten = {
        each.target: sum(one.files + one.history_files for one in each.rewrites) for each in report.plan.tables
    }
    imported = {each.target for each in report.plan.tables if each.table is not None and each.table.imported}
    for each in report.result.tables:
        copied = f"{rewritten[each.name]} of them rewritten" if rewritten.get(each.name) else "no byte copied"
        if each.name in imported:
            copied = "its rows copied"
        lines.append(f"done: {each.name}, {each.files} data files in {each.snapshots} snapshots, {copied}")
    if report.result.objects:
        kinds = [each.object.kind.value for each in report.result.objects]
        lines.append("done: " + ", ".join(f"{kinds.count(kind)} {_plural(kind)}" for kind in dict.fromkeys(kinds)))
    lines += _finding_lines(report.result.findings)
    lines += check_lines(report.checks)
    return [*lines, *report.words]


def _plural(kind: str) -> str:
    return f"{kind}(s)"


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Checks for people: faults one by one, the rest counted."""
    faults = [each for each in checks if each.fault]
    lines = [f"WRONG {each.what}: {each.fault}" for each in faults]
    if checks:
        lines.append(f"verified: {len(checks) - len(faults)} of {len(checks)} checks hold")
    return lines


def type_text(type_: ColumnType) -> str:
    """A type for people: struct<a: int32, b: list<string>>."""
    match type_:
        case Struct(fields):
            return "struct<" + ", ".join(f"{each.name}: {type_text(each.type)}" for each in fields) + ">"
        case ListOf(element):
            return f"list<{type_text(element.type)}>"
        case MapOf(key, value):
            return f"map<{type_text(key.type)}, {type_text(value.type)}>"
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Fixed(length):
            return f"fixed({length})"
        case Time(unit):
            return f"time({unit.value})"
        case Timestamp(unit, utc):
            return f"timestamp{'tz' if utc else ''}({unit.value})"
        case Leaf():
            return type_.value
        case Geo(kind, crs):
            return f"{kind}({crs})"
        case UnknownType(text):
            return text
        case _:
            raise AssertionError(type_)


def table_data(table: Table) -> dict[str, Any]:
    """A source table for JSON."""
    return {
        "name": str(table.name),
        "format": f"{table.format} v{table.format_version}",
        "uuid": table.uuid,
        "location": table.location,
        "metadata": table.metadata,
        "columns": [
            {
                "id": int(each.id),
                "name": each.name,
                "type": type_text(each.type),
                "required": each.required,
            }
            for each in table.schema.fields
        ],
        "partitioning": [
            {
                "name": each.name,
                "source": int(each.source),
                "transform": each.transform.value if isinstance(each.transform, Simple) else str(each.transform),
            }
            for each in table.spec.fields
        ],
        "snapshots": [
            {"id": each.id, "time": each.own_time, "operation": each.operation, "rows": each.rows}
            for each in table.commits
        ],
        "refs": [{"name": each.name, "kind": each.kind.value, "snapshot": each.commit} for each in table.refs],
        "properties": dict(table.properties),
        "findings": [finding_data(each) for each in table.findings],
    }


def inspection_data(found: Inspection) -> dict[str, Any]:
    """An inspection for JSON."""
    if found.lake is not None:
        return {
            **found.lake,
            "tables": [
                {
                    "name": str(each.name),
                    "files": each.files,
                    "rows": each.rows,
                    "source": dict(each.bookmark.source) if each.bookmark else None,
                    "source_commit": each.bookmark.commit if each.bookmark else None,
                    "ownership": each.bookmark.ownership if each.bookmark else None,
                    "changed_by": each.bookmark.changed_by if each.bookmark else None,
                }
                for each in found.lake_tables
            ],
        }
    return {
        "locator": found.locator,
        "tables": [table_data(each) for each in found.tables],
        "unreadable": [{"name": str(name), "error": error} for name, error in found.unreadable],
        "catalog": [finding_data(each) for each in found.findings],
    }


def inspection_text(found: Inspection) -> list[str]:
    """An inspection for people."""
    if found.lake is not None:
        lines = [f"{key}: {value}" for key, value in found.lake.items()]
        for each in found.lake_tables:
            rows = "rows not told" if each.rows is None else f"{each.rows} rows"
            lines.append(f"{each.name}: {each.files} live data files, {rows}")
            if each.bookmark:
                changed = f"; changed in the lake: {each.bookmark.changed_by}" if each.bookmark.changed_by else ""
                lines.append(
                    f"  from {each.bookmark.source.get('location')} at {each.bookmark.commit or 'no snapshot'}, "
                    f"{each.bookmark.ownership}{changed}"
                )
        return lines
    lines = []
    for table in found.tables:
        data = table_data(table)
        lines.append(f"{table.name}: {data['format']}, {len(table.commits)} snapshots, {table.location}")
        lines += [
            f"  {each['id']:>4} {each['name']} {each['type']}{' required' if each['required'] else ''}"
            for each in data["columns"]
        ]
        lines += [
            f"  partitioned by {each['transform']}({each['source']}) as {each['name']}" for each in data["partitioning"]
        ]
        lines += _finding_lines(table.findings)
    return lines + [f"{name}: {error}" for name, error in found.unreadable] + _catalog_lines(found.findings)


def released_text(released: Sequence[ReleasedTable]) -> list[str]:
    """What release did, for people."""
    lines = []
    for each in released:
        own = f"; {each.own_files} files that were written for it stay {each.place}" if each.own_files else ""
        lines.append(f"released {each.name}: {each.files} files forgotten, none touched{own}")
    return lines


def doctor_text(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What doctor found, for people."""
    return [
        f"{'ok ' if each['ok'] == 'yes' else '-- '}{name}: {each['found']}"
        + (f" ({each['hint']})" if each["hint"] else "")
        for name, each in facts.items()
    ]


class Progress:
    """Progress on standard error: one moving line on a terminal, else a line for each new step, at most one a second
    within a step."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._last = ("", 0.0)
        self._status: Any = None

    def step(self, what: str, done: int = 0, total: int | None = None) -> None:
        if self._quiet:
            return
        count = f" {done}" + (f" of {total}" if total else "") if done else ""
        now = time.monotonic()
        if self._terminal:
            if self._status is None:
                from rich.console import Console

                self._status = Console(stderr=True).status(what)
                self._status.start()
            if now - self._last[1] > 0.1 or self._last[0] != what:
                self._status.update(f"{what}{count}")
                self._last = (what, now)
            return
        if self._last[0] != what or now - self._last[1] > 10 or (total and done == total):
            print(f"{what}{count}", file=sys.stderr)
            self._last = (what, now)

    def stop(self) -> None:
        """Leave the terminal clean."""
        if self._status is not None:
            self._status.stop()
            self._status = None
