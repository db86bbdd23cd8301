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
    plans = []
    for write, (fit, said) in zip(tried, fitted.objects, strict=True):
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
