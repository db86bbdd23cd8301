"""From a plan to a commit. The order of the steps makes a crash after any of them harmless:

1. the plan was made from one reading of source and target; 2. what killed runs left is removed; 3. files are written
and deletes resolved, batch by batch, under the plan's id and a claim; 4. the target looks again, inside its
transaction, whether the plan still holds; 5. everything is committed at once; 6. the work is forgotten; 7. the result
is verified. Before step 5 nothing exists that anybody could read, and running again goes on where it stopped; after it
running again finds the bookmark, and has at most to forget the work.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.errors import about
from bridge.execution.rewriting import prepared
from bridge.planning.plan import Action, Plan, TablePlan
from bridge.ports import CommitResult, ProgressSink, RowEngine, TableWrite, Target

__all__ = ["execute", "writes_of"]


def writes_of(tables: tuple[TablePlan, ...]) -> list[TableWrite]:
    """What the target needs, from what was planned."""
    writes = []
    for each in tables:
        if each.table is None or each.data is None or each.identity is None:
            raise ValueError(f"the plan of {each.source} holds no table")
        writes.append(
            TableWrite(
                name=each.target,
                source=each.identity,
                table=each.table,
                files=each.data,
                first=each.first,
                base=each.base,
                definition=each.definition,
                plan=each.id,
                ownership=each.ownership,
                held=each.held,
                onto=each.onto,
            )
        )
    return writes


def execute(
    plan: Plan, target: Target, open_engine: Callable[[], RowEngine], progress: ProgressSink
) -> tuple[CommitResult, list[TableWrite]]:
    """Commit every table and object that the plan allows; nothing is written when there is none."""
    # a table that is blocked may be taken up again, once what blocks it is out of the way
    needed = {each.target: "" if each.action is Action.NOTHING else each.id for each in plan.tables if each.id}
    target.clean(needed)
    if not plan.writes and not plan.object_writes:
        return CommitResult(()), []
    working = [each for each in plan.writes if each.rewrite_rows or each.resolve]
    if not working:
        return _committed(plan, target, None, progress)
    work = [(each.target, each.table, each.id) for each in working if each.table is not None]
    engine = open_engine()
    try:
        with target.hold(work) as require:
            result, writes = _committed(plan, target, engine, progress, require)
            progress.step("cleaning up")
            target.finish(work)
            return result, writes
    finally:
        engine.close()


def _committed(
    plan: Plan,
    target: Target,
    engine: RowEngine | None,
    progress: ProgressSink,
    require: Callable[[], None] = lambda: None,
) -> tuple[CommitResult, list[TableWrite]]:
    ready = []
    for each in plan.writes:
        with about(each.target):
            ready.append(prepared(each, target, engine, progress))
    writes = writes_of(tuple(ready))
    require()
    progress.step("committing")
    return target.commit(writes, progress, plan.object_writes), writes
