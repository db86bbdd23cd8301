"""From a plan to a commit. The order of the steps makes a crash after any of them harmless:

1. the plan was made from one reading of source and target; 2. the target looks again, inside its transaction, whether
that still holds; 3. everything is committed at once; 4. the result is verified. Before step 3 nothing exists that
anybody could read, after it running again finds the bookmark and has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.execution.rewriting import prepared
from bridge.planning.plan import Plan, TablePlan
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
            )
        )
    return writes


def execute(
    plan: Plan, target: Target, open_engine: Callable[[], RowEngine], progress: ProgressSink
) -> tuple[CommitResult, list[TableWrite]]:
    """Commit every table and object that the plan allows; nothing is written when there is none."""
    target.clean()
    if not plan.writes and not plan.object_writes:
        return CommitResult(()), []
    working = [each for each in plan.writes if each.rewrite_rows or each.resolve]
    engine = open_engine() if working else None
    try:
        writes = writes_of(tuple(prepared(each, target, engine, progress) for each in plan.writes))
        progress.step("committing")
        result = target.commit(writes, progress, plan.object_writes)
        if engine is not None:
            for each in working:
                engine.clean(each.id)
        return result, writes
    finally:
        if engine is not None:
            engine.close()
