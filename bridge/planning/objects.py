"""What becomes of schemas, views and macros, once the target has tried them over the tables of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bridge.model.findings import Code, Finding, Severity
from bridge.model.objects import ObjectKind, Objects, SourceObject, in_order
from bridge.model.options import Options
from bridge.model.table import Table, TableName
from bridge.model.types import FieldId
from bridge.planning.plan import Action, ObjectPlan, TablePlan
from bridge.ports import Fit, Fitted, ObjectWrite, Target

__all__ = ["plan_objects"]

_DIFFERENT = frozenset({Code.OBJECT_TYPES, Code.CATALOG_ANSWERS})
"""Said of a view or macro that may answer otherwise in the target: it is left out unless that is accepted."""
_ACTIONS = {Fit.MAKE: Action.CREATE, Fit.THERE: Action.NOTHING, Fit.LEAVE: Action.LEAVE}


def plan_objects(
    target: Target, tables: Sequence[TablePlan], chosen: Sequence[SourceObject], found: Objects, options: Options
) -> tuple[tuple[TablePlan, ...], tuple[ObjectPlan, ...]]:
    """The tables without the defaults that the target cannot compute, and the plans of the objects."""
    there = [
        (each.target, each.table) for each in tables if each.table is not None and each.action is not Action.BLOCKED
    ]
    ordered = in_order(chosen)
    if options.rename is not None:
        ordered = [_renamed(each) for each in ordered if each.kind is not ObjectKind.SCHEMA]
    tried = [ObjectWrite(_target(each, target.rename), each) for each in ordered]
    fitted = target.fit(there, tried, found)
    left: dict[int, tuple[Finding, ...]] = {}
    while doubtful := {
        place: _left(write, said, options)
        for place, (write, (fit, said)) in enumerate(zip(tried, fitted.objects, strict=True))
        if fit is Fit.MAKE and write.object.definition is not None and _differs(write, said, options)
    }:
        left |= doubtful
        tried = [
            replace(each, object=replace(each.object, definition=None, findings=())) if place in doubtful else each
            for place, each in enumerate(tried)
        ]
        fitted = target.fit(there, tried, found)  # what reads them does not bind without them
    plans = []
    for place, (write, (fit, said)) in enumerate(zip(tried, fitted.objects, strict=True)):
        said = left.get(place, said)
        findings = tuple(dict.fromkeys((*write.object.findings, *said)))
        action = _ACTIONS[fit]
        if options.strict and any(_loses(each, options) for each in findings):
            action = Action.BLOCKED
        plans.append(ObjectPlan(write.object, write.name, action, findings))
    return tuple(_without(each, fitted, options) for each in tables), tuple(plans)


def _target(each: SourceObject, rename: Callable[[TableName], TableName]) -> TableName:
    return each.name if each.kind is ObjectKind.SCHEMA else rename(each.name)


def _renamed(each: SourceObject) -> SourceObject:
    """With --as no text finds its tables under the names that it says."""
    code = Code.VIEW_NOT_CARRIED if each.kind is ObjectKind.VIEW else Code.MACRO_NOT_CARRIED
    said = Finding(code, str(each.name), "--as gives other names than its text knows", text=each.text)
    return replace(each, definition=None, findings=(*each.findings, said))


def _differs(write: ObjectWrite, said: Sequence[Finding], options: Options) -> bool:
    """Whether an object may answer otherwise than at the source, which nobody accepted."""
    return any(_is_open(each, options) for each in (*write.object.findings, *said))


def _is_open(finding: Finding, options: Options) -> bool:
    return finding.code in _DIFFERENT and finding.code.text not in options.accept


def _left(write: ObjectWrite, said: Sequence[Finding], options: Options) -> tuple[Finding, ...]:
    """What is said of an object that is left out since it may answer otherwise."""
    return tuple(
        replace(each, hint=f"it is left out; --accept {each.code.text} carries it") if _is_open(each, options) else each
        for each in (*write.object.findings, *said)
    )


def _loses(finding: Finding, options: Options) -> bool:
    return finding.severity is Severity.LOSS and finding.code.text not in options.accept


def _without(each: TablePlan, fitted: Fitted, options: Options) -> TablePlan:
    lost = fitted.defaults.get(each.target)
    if not lost or each.table is None:
        return each
    findings = (*each.findings, *lost.values())
    action = each.action
    if options.strict and action is Action.CREATE and any(_loses(finding, options) for finding in lost.values()):
        action = Action.BLOCKED
    return replace(each, table=_without_defaults(each.table, frozenset(lost)), findings=findings, action=action)


def _without_defaults(table: Table, lost: frozenset[FieldId]) -> Table:
    schemas = {
        id_: replace(
            schema,
            fields=tuple(replace(each, write_default=None) if each.id in lost else each for each in schema.fields),
        )
        for id_, schema in {**table.schemas, table.schema.id: table.schema}.items()
    }
    return replace(table, schemas=schemas, schema=schemas[table.schema.id])
