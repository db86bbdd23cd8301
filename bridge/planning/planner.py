"""Table in, decision out: how much history is carried, and whether it may be written at all. Nothing is opened here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import Blocked, BridgeError, Conflict
from bridge.model.files import FileProblem, Files
from bridge.model.findings import Code, Finding, Severity
from bridge.model.options import Options
from bridge.model.rewrite import output_name
from bridge.model.schema import Placed, walk
from bridge.model.table import Table, TableName
from bridge.model.types import Decimal, Field, Geo, Leaf, NestedDefault, Time, Timestamp, Unit, UnknownType
from bridge.planning.onward import base_of, is_restored, rewound
from bridge.planning.plan import Action, Rewrite, TablePlan
from bridge.ports import Bookmark, TargetTable

__all__ = ["blocked_table", "decide", "definition_of", "stopped"]


def definition_of(table: Table) -> str:
    """A digest of what can change without a commit: columns, layout, properties, references."""
    parts = (table.schema, table.spec, table.sort_order, sorted(table.properties.items()), table.refs)
    return _digest(repr(parts))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def blocked_table(source: TableName, target: TableName, finding: Finding) -> TablePlan:
    """The plan of a table that could not even be read."""
    return TablePlan(source, target, Action.BLOCKED, (finding,))


def stopped(each: TablePlan, error: BridgeError) -> TablePlan:
    """The plan of a table that failed when it was to be carried out."""
    code = Code.TARGET_CONFLICT if isinstance(error, Conflict) else Code.TABLE_UNREADABLE
    if isinstance(error, Blocked):
        code = next((known for known in Code if known.text == error.code), Code.METADATA_UNREADABLE)
    said = Finding(code, str(each.source), error.message, error.hint)
    return replace(each, action=Action.BLOCKED, findings=(*each.findings, said))


def decide(
    table: Table,
    files: Files,
    target: TableName,
    held: TargetTable | None,
    said: Sequence[Finding],
    options: Options,
    newest: int | None = None,
    more: Sequence[FileProblem] = (),
    written: Sequence[Field] | None = None,
) -> TablePlan:
    """The plan for one table; `more` is what the target says about the files, `written` the
    fields of rewritten ones, `newest` the time of the target's newest
    commit. Conflict when both sides changed since the last run."""
    definition = definition_of(table)
    identity = {"format": table.format, "uuid": table.uuid, "location": table.location}
    commits = [(commit.id, commit.own_time) for commit in table.commits]  # numbers recur after a lake was restored
    plan_id = _digest(repr((identity, commits, definition, options.type_map)))
    base = None if held is None else base_of(table, held, definition, options)
    findings = [*table.findings, *files.findings, *(each for each in said if not each.on_files)]
    if isinstance(base, Finding):
        return TablePlan(table.name, target, Action.BLOCKED, (base,), table, files, identity=identity)
    if base == len(table.commits):
        listed = held.bookmark.commit if held and held.bookmark and held.listed is not None else None
        return TablePlan(
            table.name,
            target,
            Action.NOTHING,
            (),
            table,
            files,
            definition=definition,
            id=plan_id,
            identity=identity,
            held=listed,
        )
    reached = base
    ownership = options.ownership or (held.bookmark.ownership if held and held.bookmark else "shared")
    if table.imported:  # the target writes every file itself
        ownership = "adopt"
    everything = options.rewrite == "always"
    every = tuple(range(files.table.num_rows))
    problems = [FileProblem(each, None, every) for each in said if each.code.rewritable and each.on_files]
    problems += [each for each in (*files.problems, *more) if not _accepted(each.finding, options)]
    fields = tuple(written or table.all_fields)
    healed = [each for each in problems if _heals(fields, each, options)]
    if everything and not table.imported:
        findings += _unwritable(table, fields, options)
    elif ownership == "adopt":
        problems += _returning(table, files)
    if options.rewrite == "never":
        problems = [_told(table, each) if each in healed else each for each in problems]
        healed = []
    resolve = any(each.finding.code is Code.EQUALITY_DELETES for each in healed)
    left = [each for each in problems if each not in healed]
    onto, paths, missing = "", frozenset[str](), frozenset[str]()
    if held is not None and held.bookmark is not None and is_restored(table, held.bookmark):
        findings.append(_restored(table, held.bookmark))
    elif held is not None and base is not None and held.stale is not None and files.since is None:
        base, more_findings = rewound(table, held, held.stale(table, files), base, left)
        findings += more_findings
        onto = table.commits[base].id if base is not None and base != reached else ""
    if held is not None and base is not None and held.listed is not None and files.since is None:
        findings += _forgotten(table, held, findings)
        paths = held.listed(onto)
        missing = _missing(files, base, paths)
    first, trimmed = _first(table, left, base)
    if base is None and held is not None:
        first = max(first, min((at for at, each in enumerate(table.commits) if each.id in held.commits), default=0))
    findings += trimmed
    if options.history == "current" and reached is None and first < len(table.commits) - 1:
        dropped = len(table.commits) - 1 - first
        first = len(table.commits) - 1
        findings.append(
            Finding(Code.HISTORY_CURRENT, str(table.name), f"{dropped} older snapshots are left behind, as asked")
        )
    carried = table.commits[first if base is None else base + 1 :]
    if newest is not None and (carried[0].time if carried else table.updated) <= newest:
        said_ = (
            f"{max(len(carried), 1)} snapshots are later than at the source, since the lake already holds newer ones"
        )
        findings.append(
            Finding(Code.HISTORY_TIMES_MOVED, str(table.name), said_, "their own times are in commit_extra_info")
        )
    begun = _begun(files, base, missing)
    kept = files.table.filter(
        pc.and_(
            pc.and_not(begun, pc.is_in(files.table.column("path"), pa.array(sorted(paths), pa.string()))),
            pc.or_kleene(pc.is_null(files.table.column("end")), pc.greater(files.table.column("end"), first)),
        )
    )
    rewrites, rewritten = _rewrites(files, healed, first, begun, everything)
    findings = list(dict.fromkeys(findings))
    action = Action.CREATE if reached is None else Action.APPEND
    if any(_forbids(each, options) for each in findings):
        action = Action.BLOCKED
    return TablePlan(
        source=table.name,
        target=target,
        action=action,
        findings=tuple(findings),
        table=table,
        data=files,
        first=first,
        base=base,
        snapshots=len(table.commits) - (first if base is None else base + 1),
        files=kept.num_rows - len(rewritten),
        bytes=(pc.sum(kept.column("size")).as_py() or 0) - sum(each.bytes + each.history_bytes for each in rewrites),
        definition=definition,
        id=plan_id,
        identity=identity,
        ownership=ownership,
        deletes=_noted(files, first, base, rewritten),
        held=None if reached is None or held is None or held.bookmark is None else held.bookmark.commit,
        onto=onto,
        missing=missing,
        rewrites=rewrites,
        rewrite_rows=rewritten,
        resolve=resolve,
    )


def _restored(table: Table, bookmark: Bookmark) -> Finding:
    time = datetime.fromtimestamp((bookmark.time or 0) // 1_000_000, UTC).isoformat(" ")
    said = f"the lake was restored: snapshot {bookmark.commit} of {time}, which was carried, is not in it any more"
    return Finding(Code.HISTORY_DIVERGED, str(table.name), f"{said}; the next snapshot takes back what came after")


def _forgotten(table: Table, held: TargetTable, said: Sequence[Finding]) -> list[Finding]:
    """That the source has expired the snapshot that the target is at, unless it went another way."""
    commit = held.bookmark.commit if held.bookmark is not None else ""
    if (
        not commit
        or any(each.id == commit for each in table.commits)
        or Code.HISTORY_DIVERGED in {each.code for each in said}
    ):
        return []
    told = f"snapshot {commit}, which the target holds, was expired at the source; everything was compared"
    return [Finding(Code.HISTORY_DIVERGED, str(table.name), told)]


def _missing(files: Files, base: int, listed: frozenset[str]) -> frozenset[str]:
    """Paths of files that are live at a commit and after it, and that the target does not list: a lake flushes and
    merges rows into files that begin in the past. A file without a row that lives may be missing."""
    table, count = files.table, files.table.num_rows
    begin, end = table.column("begin").to_numpy(), table.column("end").fill_null(base + 2).to_numpy()
    gone = files.deletes.filter(pc.less_equal(files.deletes.column("begin"), base)).column("file").to_numpy()
    lives = np.bincount(gone, minlength=count) < table.column("record_count").to_numpy()
    rows = np.flatnonzero((begin <= base) & (end > base + 1) & lives)
    paths = table.column("path").take(pa.array(rows, pa.int64())).to_pylist()
    return frozenset(each for each in paths if each not in listed and output_name(each) not in listed)


def _begun(files: Files, base: int | None, missing: frozenset[str]) -> pa.ChunkedArray:
    """Whether the target does not hold a file yet."""
    begun = pc.greater(files.table.column("begin"), -1 if base is None else base)
    if not missing:
        return begun
    return pc.or_(begun, pc.is_in(files.table.column("path"), pa.array(sorted(missing), pa.string())))


def _told(table: Table, problem: FileProblem) -> FileProblem:
    """A problem that says how it could be taken away."""
    hint = "copy them:" if table.imported else "let Spark do it:"
    if problem.finding.hint:
        hint = f"{problem.finding.hint}; or"
    return replace(problem, finding=replace(problem.finding, hint=f"{hint} --rewrite when-needed"))


def _noted(files: Files, first: int, base: int | None, rewritten: Sequence[int]) -> int:
    """How many deleted positions a run notes; those in effect from the first are folded into rewritten files."""
    deletes = files.deletes
    if rewritten and deletes.num_rows:
        began = pc.max_element_wise(pc.take(files.table.column("begin"), deletes.column("file")), first)
        again = pc.is_in(deletes.column("file"), pa.array(rewritten, pa.int64()))
        deletes = deletes.filter(pc.or_(pc.invert(again), pc.greater(deletes.column("begin"), began)))
    ends = pc.take(files.table.column("end"), deletes.column("file"))
    lasting = pc.fill_null(pc.greater(ends, first if base is None else base), True)
    new = pc.greater(deletes.column("begin"), -1 if base is None else base)
    return int(pc.sum(pc.and_(lasting, new)).as_py() or 0)


def _heals(fields: tuple[Field, ...], problem: FileProblem, options: Options) -> bool:
    """Whether rewriting files, or resolving deletes, takes a problem away."""
    if problem.finding.code is Code.EQUALITY_DELETES:
        return True
    if not problem.rows:
        return False
    if problem.finding.code is Code.OWN_FORMAT:
        return True  # the format's own engine made the definition to fit what it writes
    chosen = dict(options.type_map)
    return all(_is_writable(each, chosen) for each in walk(fields))


def _unwritable(table: Table, fields: tuple[Field, ...], options: Options) -> list[Finding]:
    """Columns that forbid rewriting every file."""
    said, chosen = "cannot be rewritten without a loss", dict(options.type_map)
    return [
        Finding(
            Code.TYPE_UNSUPPORTED,
            str(table.name),
            f"column {'.'.join(each.path)} {said}",
            "--rewrite when-needed leaves files in place that can be",
        )
        for each in walk(fields)
        if not _is_writable(each, chosen)
    ]


def _is_writable(place: Placed, chosen: Mapping[str, str]) -> bool:
    """What the rewriting engine can write exactly; the others stay what they are, or block."""
    type_ = place.field.type
    if isinstance(place.field.initial_default, NestedDefault) or type_ in _UNWRITABLE:
        return False
    match type_:
        case Decimal(precision, _):
            return precision <= 38
        case Timestamp(Unit.NANO, True):
            return "timestamptz_ns" in chosen
        case Leaf.VARIANT:
            return place.parent is None
        case _:
            return not isinstance(type_, Geo | UnknownType)


_UNWRITABLE: frozenset[object] = frozenset(
    {
        *(Leaf.INTERVAL, Leaf.TIMETZ, Leaf.INT128, Leaf.UINT128),
        *(Time(unit) for unit in Unit if unit is not Unit.MICRO),
        *(Timestamp(unit, utc=True) for unit in (Unit.SECOND, Unit.MILLI)),
    }
)


_ASKED = "rewrite-asked"
"""The reason of files that are rewritten because all are to be."""


def _rewrites(
    files: Files, healed: Sequence[FileProblem], first: int, begun: pa.ChunkedArray, everything: bool
) -> tuple[tuple[Rewrite, ...], tuple[int, ...]]:
    """The files to rewrite in classes of equal reasons, and their row numbers."""
    reasons: dict[int, list[str]] = {row: [_ASKED] for row in range(files.table.num_rows)} if everything else {}
    for problem in healed:
        for row in problem.rows:
            reasons.setdefault(row, []).append(problem.finding.code.text)
    rows = sorted(reasons)
    facts = files.table.select(["end", "size"]).append_column("begun", begun)
    told_of = facts.take(pa.array(rows, pa.int64())).to_pylist()
    classes: dict[tuple[str, ...], list[int]] = {}
    chosen = []
    for row, fact in zip(rows, told_of, strict=True):
        if not fact["begun"] or (fact["end"] is not None and fact["end"] <= first):
            continue
        chosen.append(row)
        told = classes.setdefault(tuple(sorted(set(reasons[row]))), [0, 0, 0, 0])
        place = 0 if fact["end"] is None else 2
        told[place] += 1
        told[place + 1] += fact["size"]
    return tuple(Rewrite(each, *counts) for each, counts in sorted(classes.items())), tuple(chosen)


def _returning(table: Table, files: Files) -> list[FileProblem]:
    """Files that are registered more than once: an owner's maintenance deletes them when the first of these expires."""
    rows = files.table.select(["path", "end"])
    counted = rows.group_by("path").aggregate([("path", "count"), ("end", "max")])
    several = counted.filter(pc.greater(counted.column("path_count"), 1))
    if not several.num_rows:
        return []
    last = pc.max(several.column("end_max")).as_py()
    paths = several.column("path").to_pylist()
    said = f"{len(paths)} data files left the table and came back, such as {paths[0]}"
    hint = "share the files (--ownership shared), or compact the table at the source"
    return [FileProblem(Finding(Code.FILE_RETURNS, str(table.name), said, hint, tuple(paths[:1000]), len(paths)), last)]


def _accepted(finding: Finding, options: Options) -> bool:
    return finding.code.acceptable and finding.code.text in options.accept


def _forbids(finding: Finding, options: Options) -> bool:
    if _accepted(finding, options):
        return False
    return finding.severity is Severity.BLOCKED or (options.strict and finding.severity is Severity.LOSS)


_UNLISTED = frozenset({Code.MANIFEST_UNREADABLE, Code.TABLE_ENCRYPTED})
"""What the commit that the target holds had may not be known then, and nothing can be told from what came after."""


def _first(table: Table, problems: Sequence[FileProblem], base: int | None) -> tuple[int, list[Finding]]:
    """The first commit that can be carried, with what is to be said: a problem that the newest commit has blocks, one
    that only older commits have costs them; onto a table that the target holds no commit may be skipped."""
    findings: list[Finding] = []
    first, reason = (0, "") if base is None else (max(base, 0), "")
    for problem in problems:
        if problem.last is None:
            findings.append(problem.finding)
        elif problem.last > first:
            if base is None:
                first, reason = problem.last, problem.finding.detail
            elif problem.last > base + (problem.finding.code not in _UNLISTED):
                findings.append(problem.finding)
    if reason:
        findings.append(
            Finding(Code.HISTORY_TRIMMED, str(table.name), f"{first} of {len(table.commits)} snapshots: {reason}")
        )
        kept = {commit.id for commit in table.commits[first:]}
        findings += [
            Finding(
                Code.REF_DROPPED,
                str(table.name),
                f"{ref.kind.value} {ref.name!r} names a snapshot that is not kept",
            )
            for ref in table.refs
            if ref.on_main and ref.commit not in kept
        ]
    return first, findings
