"""The verbs: plan, migrate, verify, inspect, release, adopt, doctor. The command line only reads and prints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from bridge.errors import Blocked, BridgeError, Missing, Unreachable, UsageError
from bridge.execution.executor import execute, writes_of
from bridge.locators import Locator, parse_locator
from bridge.model.findings import Code, Finding, acceptable
from bridge.model.options import Options
from bridge.model.table import Table, TableName
from bridge.model.types import Expression
from bridge.planning.objects import plan_objects
from bridge.planning.plan import Action, ObjectPlan, Plan, TablePlan
from bridge.planning.planner import blocked_table, stopped
from bridge.planning.reading import decided, read_whole, readings
from bridge.planning.recalling import recalled
from bridge.planning.selection import clashes_of, concerned, select, select_objects, targets
from bridge.ports import (
    AdoptedTable,
    Check,
    CommitResult,
    CommitsApart,
    KeptOpen,
    LakeTableInfo,
    Notice,
    ObjectWrite,
    ProgressSink,
    Publishes,
    ReleasedTable,
    Remembers,
    Silent,
    Source,
    Target,
    TargetTable,
)
from bridge.registry import open_engine, open_holder, open_lake, open_source, open_target
from bridge.verification.rows import check_rows

__all__ = ["Inspection", "Report", "adopt", "inspect", "migrate", "plan", "release", "verify"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did: its plan, what was written, what was verified, and what a person needs next."""

    plan: Plan
    result: CommitResult = field(default_factory=lambda: CommitResult(()))
    checks: tuple[Check, ...] = ()
    words: tuple[str, ...] = ()
    held: Mapping[TableName, TargetTable] = field(default_factory=dict)
    """What the target held of its tables before, by their names there."""

    @property
    def faults(self) -> tuple[Check, ...]:
        return tuple(each for each in self.checks if each.fault)

    @property
    def exit_code(self) -> int:
        """4 for a failed verification, 3 when a table was blocked, else 0."""
        if self.faults:
            return 4
        return 0 if self.plan.is_complete else 3


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a locator holds: source tables with their definition, or a lake."""

    locator: str
    tables: tuple[Table, ...] = ()
    unreadable: tuple[tuple[TableName, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    lake: Mapping[str, object] | None = None
    lake_tables: tuple[LakeTableInfo, ...] = ()


def _check(options: Options) -> None:
    for code in sorted(options.accept):
        acceptable(code)


@dataclass(frozen=True, slots=True)
class Ends:
    """A source and a target, opened."""

    from_: Locator
    to: Locator
    source: Source
    target: Target

    @property
    def remembered(self) -> str:
        """How a bookmark names the source."""
        return " ".join(each for each in (self.from_.lasting, self.source.configured) if each)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """While this lasts neither is opened for each question."""
        with ExitStack() as opened:
            for each in (self.source, self.target):
                if isinstance(each, KeptOpen):
                    opened.enter_context(each.kept_open())
            yield


def open_ends(source: str, target: str, options: Options) -> Ends:
    """Open both; UsageError, Unreachable or Blocked say what keeps from it."""
    _check(options)
    from_, to = parse_locator(source), parse_locator(target)
    return Ends(from_, to, open_source(from_, options), open_target(to, options))


def circle(ends: Ends, table: Table, to: TableName) -> Finding | None:
    """What to say of a table that was brought from the very one that it would be brought to: each of two mirrors would
    take the other's commits for new ones, for ever."""
    origin, lasting = table.origin, ends.to.lasting
    from_, name = origin.get("from", ""), origin.get("name", "").casefold()
    called = str(to).casefold()
    if not (from_ == lasting or from_.startswith(f"{lasting} (")) or name not in (called, f"main.{called}"):
        return None
    said = f"{table.name} was itself brought from {to} in {ends.to}"
    return Finding(
        Code.TARGET_EXISTS, str(table.name), said, "leave it out with --exclude: it follows the target already"
    )


def plan(source: str, target: str, options: Options | None = None, progress: ProgressSink | None = None) -> Plan:
    """Everything that a migration would do, decided now; nothing is written."""
    options = options or Options()
    return _plan(open_ends(source, target, options), options, progress or Silent())[0]


def _plan(ends: Ends, options: Options, progress: ProgressSink) -> tuple[Plan, Mapping[TableName, TargetTable]]:
    from_, opened, lake = ends.from_, ends.source, ends.target
    beside = opened.objects()
    try:
        chosen = select(opened.tables(), options, beside.objects)
    except UsageError:
        # nothing is left of what was published: that is the answer
        chosen = []
        if not concerned(_left_behind(opened, lake, {}), options):
            raise
    names = targets(chosen, options, lake.rename)
    clashes = clashes_of(names)
    held, hidden = looked_up(lake, names)
    newest = lake.newest()
    tables, unreachable, several = [], [], len(chosen) > 1 or options.follow
    tables += [stopped(TablePlan(name, names[name], Action.BLOCKED, ()), error) for name, error in hidden.items()]
    for name, read in readings(opened, [each for each in chosen if each not in hidden], names, held, options, progress):
        try:
            made = decided(read, lake, name, names[name], held, options, progress, clashes.get(name), newest, several)
            if made.table is not None and (said := circle(ends, made.table, names[name])) is not None:
                made = blocked_table(name, names[name], said)
            if made.identity is not None:
                made = replace(made, identity={**made.identity, "from": ends.remembered, "name": str(name)})
        except (Unreachable, UsageError) as error:  # what is wrong with one of several never stops the others
            if len(chosen) == 1:
                raise
            unreachable.append(error)
            said = Finding(Code.TABLE_UNREADABLE, str(name), error.message, error.hint)
            made = blocked_table(name, names[name], said)
        tables.append(made)
    if unreachable and len(unreachable) == len(chosen):
        raise unreachable[0]
    planned, objects = tuple(tables), tuple[ObjectPlan, ...]()
    if beside.objects or any(_computes(each) for each in tables):
        progress.step("trying views, macros and defaults in a lake of their own")
        planned, objects = plan_objects(lake, tables, select_objects(beside.objects, options), beside, options)
    ids = (
        *(each.id or str(each.source) for each in tables),
        *(f"{each.object} {each.object.text}" for each in objects),
    )
    digest = hashlib.sha256("\n".join((str(from_), *ids)).encode())
    noticed = tuple(concerned([*opened.noticed(), *_left_behind(opened, lake, names)], options))
    return Plan(str(from_), str(ends.to), planned, digest.hexdigest()[:16], noticed, objects), held


def looked_up(
    lake: Target, names: Mapping[TableName, TableName]
) -> tuple[Mapping[TableName, TargetTable], dict[TableName, BridgeError]]:
    """What the target holds under some names, and of several tables those of which it cannot tell."""
    hidden: dict[TableName, BridgeError] = {}
    while True:
        try:
            return lake.lookup([to for name, to in names.items() if name not in hidden]), hidden
        except BridgeError as error:
            name = next((name for name, to in names.items() if str(to) == error.table), None)
            if name is None or len(hidden) + 1 == len(names):
                raise
            others = [to for each, to in names.items() if each != name and each not in hidden]
            if not isinstance(error, Blocked | Missing | UsageError) and not _answers(lake, others):
                raise
            hidden[name] = error


def _answers(lake: Target, others: Sequence[TableName]) -> bool:
    """Whether a target that failed with one table tells of another."""
    try:
        lake.lookup(others[:1])
    except BridgeError:
        return False
    return True


def _left_behind(opened: Source, lake: Target, names: Mapping[TableName, TableName]) -> list[Notice]:
    """Tables that were published from this source, in the namespaces of this run, and that no run goes on with."""
    if not isinstance(opened, Remembers) or not isinstance(lake, Publishes):
        return []
    kept = {str(each).casefold() for each in (*names.values(), *map(lake.rename, opened.tables()))}
    found = []
    known = {lake.rename(TableName((each,), "")).namespace for each in opened.schemas()} if not names else set()
    for namespace in sorted(known | {each.namespace for each in names.values()}):
        for each in lake.published(namespace):
            source = each.bookmark.source if each.bookmark else {}
            if str(each.name).casefold() in kept or not opened.gave(source):
                continue
            now = opened.now(source)
            said = f"{each.name} was published from {source.get('location')}, which is "
            said += f"called {now} now" if now else "not in the lake any more"
            hint = f"release {each.name} at the target where nobody needs it"
            found.append(Notice(each.name, Finding(Code.PUBLISHED_STAYS, str(each.name), said, hint)))
    return found


def _computes(each: TablePlan) -> bool:
    fields = each.table.schema.fields if each.table else ()
    return any(isinstance(field.write_default, Expression) for field in fields)


def _without(made: Plan, error: BridgeError, lake: Target) -> Plan:
    """The plan without the table that alone keeps it from being carried out; the error where it passes by itself, or
    the target does not answer for another table either."""
    failed = next((each for each in made.writes if str(each.target) == error.table), None)
    others = [each.target for each in made.tables if each is not failed and each.action is not Action.BLOCKED]
    lasts = not error.passes_by_itself and not isinstance(error, UsageError)
    if failed is None or not others or not lasts or not _answers(lake, others):
        raise error
    return replace(made, tables=tuple(stopped(each, error) if each is failed else each for each in made.tables))


def _still_there(made: Plan, opened: Source, progress: ProgressSink) -> Plan:
    """The plan without the tables that were dropped at the source while it was made: their files may be gone."""
    tables = []
    for each in made.tables:
        if each in made.writes:
            progress.step(f"{each.source}: still there?")
            try:
                gone = None if opened.holds(each.source) else "it was dropped since it was read"
            except BridgeError as error:
                gone = error.message
            if gone is not None:
                each = blocked_table(each.source, each.target, Finding(Code.TABLE_GONE, str(each.source), gone))
        tables.append(each)
    return replace(made, tables=tuple(tables))


def migrate(source: str, target: str, options: Options | None = None, progress: ProgressSink | None = None) -> Report:
    """Plan, write what the plan allows, and verify it. A failed verification leaves the commit and says so."""
    options = options or Options()
    return carry_out(open_ends(source, target, options), options, progress or Silent())


def carry_out(ends: Ends, options: Options, progress: ProgressSink) -> Report:
    """As migrate, from and to what is open already."""
    opened, lake = ends.source, ends.target
    made, held = _plan(ends, options, progress)
    made = _still_there(made, opened, progress)
    engine = partial(open_engine, ends.from_, options, lake.staging)
    while True:
        done = lake.committed() if isinstance(lake, CommitsApart) else ()
        there = {write.name for write, _ in done}
        try:
            left = replace(made, tables=tuple(each for each in made.tables if each.target not in there))
            result, writes = execute(left, lake, engine, progress)
            break
        except BridgeError as error:
            if not options.follow:
                raise
            made = _without(made, error, lake)
            progress.step(f"{error.table}: {error.message}")
    result = replace(result, tables=(*(written for _, written in done), *result.tables))
    writes = [*(write for write, _ in done), *writes]
    checks = _still_right(made, lake, progress) if options.verify != "none" else []
    if not writes and not result.objects:
        return Report(made, result, tuple(checks), held=held)
    if options.verify != "none":
        progress.step("verifying")
        checks += lake.verify(result, writes, options.check_files == "all")
        checks += lake.verify_objects(result.objects)
    if options.verify == "rows":
        for each in made.writes:
            checks += check_rows(opened.open(each.source), lake, each.target, each.first, progress)
    if options.verify != "none" and isinstance(lake, Publishes) and not any(each.fault for each in checks):
        lake.note_verified(writes)
    return Report(made, result, tuple(checks), tuple(lake.closing_words(result, writes)), held)


def _still_right(made: Plan, lake: Target, progress: ProgressSink) -> list[Check]:
    """Row counts of published tables with nothing to do: a run before may have found them wrong."""
    plans = []
    for each in made.tables:
        table, files = each.table, each.data
        if each.action is not Action.NOTHING or each.held is None or table is None or files is None or table.imported:
            continue
        counted = all(said.finding.code is not Code.ROW_COUNT for said in files.problems)
        if counted and files.equality(max(len(table.commits) - 1, 0)) is None:
            plans.append(each)
    if not plans or not isinstance(lake, Publishes):
        return []
    progress.step("verifying what is there")
    return list(lake.verify_again(writes_of(tuple(plans))))


def verify(
    source: str,
    target: str,
    options: Options | None = None,
    progress: ProgressSink | None = None,
    rows: bool = True,
) -> tuple[Check, ...]:
    """Compare a source with what was migrated from it: columns, counts and, unless switched off, all rows.

    UsageError when the target holds none of the selected tables.
    """
    options, progress = options or Options(), progress or Silent()
    ends = open_ends(source, target, options)
    opened, lake = ends.source, ends.target
    beside = opened.objects()
    names = targets(select(opened.tables(), options, beside.objects), options, lake.rename)
    held = lake.lookup(list(names.values()))
    checks: list[Check] = []
    plans: list[TablePlan] = []
    for name, to in names.items():
        there = held.get(to)
        if (there is None or there.bookmark is None) and len(names) > 1:
            checks.append(Check(f"{to}: is in the lake", "it is not: migrate it, or leave it out with --exclude"))
            continue
        if there is None or there.bookmark is None:
            raise UsageError(
                f"{to} in {ends.to} was not migrated by this tool",
                hint="migrate it first, and name it as you did then: --as",
            )
        try:
            table = opened.open(name)
        except BridgeError as error:
            if len(names) == 1:
                raise
            checks.append(Check(f"{to}: can be read at the source", error.message))
            continue
        known = recalled(table, there)
        ids = [commit.id for commit in known.commits]
        if there.bookmark.commit != (ids[-1] if ids else ""):
            checks.append(
                Check(
                    f"{to}: holds the newest commit",
                    f"it holds {there.bookmark.commit or 'none'}: run migrate again",
                )
            )
            continue
        if there.bookmark.maintained:
            checks.append(Check(f"{to}: only its files were rearranged in the lake ({there.bookmark.changed_by})"))
        elif there.bookmark.changed_by:
            checks.append(Check(f"{to}: unchanged in the lake", f"changed there since: {there.bookmark.changed_by}"))
        read = partial(read_whole, table, known, progress)
        plan_ = decided(read, lake, name, to, {}, replace(options, rewrite="when-needed"), progress)
        if plan_.action is Action.BLOCKED and len(names) > 1:
            checks.append(Check(f"{to}: can be compared", str(plan_.blockers[0])))
            continue
        if plan_.action is Action.BLOCKED:
            raise Blocked(str(plan_.blockers[0]), code=plan_.blockers[0].code.text)
        plans.append(plan_)
        writes = writes_of((replace(plan_, target=to),))
        if plan_.resolve:
            checks.append(Check(f"{to}: rows are not counted, since equality deletes apply"))
        else:
            checks += lake.verify(CommitResult(()), writes, options.check_files == "all")
        if rows:
            checks += check_rows(table, lake, to, plan_.first, progress)
    if beside.objects:
        _, objects = plan_objects(lake, plans, select_objects(beside.objects, options), beside, options)
        there_ = [ObjectWrite(each.target, each.object) for each in objects if each.action is Action.NOTHING]
        checks += lake.verify_objects(there_)
        checks += [
            Check(f"{each.object.kind.value} {each.target}: is in the lake", _absence(each))
            for each in objects
            if each.action is Action.CREATE or any(said.code is Code.OBJECT_EXISTS for said in each.findings)
        ]
    return tuple(checks)


def _absence(each: ObjectPlan) -> str:
    return "it is not: run migrate again" if each.action is Action.CREATE else "it is another one there"


def inspect(locator: str, options: Options | None = None) -> Inspection:
    """What a locator holds, without its files."""
    parsed, options = parse_locator(locator), options or Options()
    if parsed.format == "ducklake":
        lake = open_lake(parsed, options)
        return Inspection(str(parsed), lake=lake.describe(), lake_tables=tuple(lake.tables()))
    source = open_source(parsed, options)
    tables: list[Table] = []
    unreadable: list[tuple[TableName, str]] = []
    chosen = select(source.tables(), options)
    for name in chosen:
        try:
            tables.append(source.open(name).table)
        except BridgeError as error:
            if len(chosen) == 1:
                raise
            unreadable.append((name, str(error)))
    beside = tuple(concerned(source.noticed(), options))
    return Inspection(str(parsed), tuple(tables), tuple(unreadable), beside)


def release(
    locator: str, names: Sequence[str], discard: bool = False, options: Options | None = None
) -> Sequence[ReleasedTable]:
    """Forget tables that were migrated or published, without touching a data file."""
    return open_holder(parse_locator(locator), options or Options()).release(names, discard)


def adopt(locator: str, names: Sequence[str], options: Options | None = None) -> Sequence[AdoptedTable]:
    """Hand the files of migrated or published tables to where they were written."""
    return open_holder(parse_locator(locator), options or Options()).adopt(names)
