"""Schemas, views and macros as catalog rows, as DuckDB 1.5.5 writes them itself."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from bridge.errors import Overtaken
from bridge.model.objects import Macro, ObjectKind, Overload, Parameter, SourceObject, View, in_order
from bridge.model.table import TableName
from bridge.ports import Fit, ObjectWrite
from converters.ducklake.catalog.folders import directory
from converters.ducklake.catalog.job import Ids, Rows, Snapshot
from converters.ducklake.catalog.reads import live_tables, schemas
from converters.ducklake.catalog.session import Session
from converters.ducklake.catalog.tables import table
from converters.ducklake.identifiers import identifier

__all__ = ["add_objects", "add_schema", "held_objects", "ordered", "schema_of", "standing"]

_CHANGES = {
    ObjectKind.VIEW: "created_view",
    ObjectKind.MACRO: "created_scalar_macro",
    ObjectKind.TABLE_MACRO: "created_table_macro",
}


def schema_of(name: TableName) -> str:
    """The schema in which an object lies."""
    return ".".join(name.namespace) or "main"


def ordered(objects: Sequence[ObjectWrite]) -> list[ObjectWrite]:
    """Schemas first, and what is needed before what needs it."""
    places = {id(each.object): each for each in objects}
    return [places[id(each)] for each in in_order([each.object for each in objects])]


def add_schema(session: Session, rows: Rows, name: str, ids: Ids, known: dict[str, int], snapshot: Snapshot) -> str:
    """The schema's own spelling; it is made when the lake has none of the name, whatever the case."""
    by_case = {each.casefold(): each for each in known}
    if name.casefold() in by_case:
        return by_case[name.casefold()]
    known[name] = ids.next()
    made = uuid.uuid5(uuid.NAMESPACE_URL, f"{session.place.path}#{name}")
    rows.add("schema", known[name], str(made), snapshot.id, None, name, directory(name), True)
    snapshot.changes.append(f"created_schema:{identifier(name)}")
    snapshot.alters = True
    return name


def add_objects(
    session: Session, rows: Rows, objects: Sequence[ObjectWrite], ids: Ids, known: dict[str, int], snapshot: Snapshot
) -> None:
    """Rows for every object; Overtaken when the lake holds its name by now."""
    held = held_objects(session)
    for each in ordered(objects):
        if each.object.kind is ObjectKind.SCHEMA:
            add_schema(session, rows, each.name.name, ids, known, snapshot)
            continue
        if _held(held, each) is not None:
            raise Overtaken(f"{each.name} was created in {session.place.path} meanwhile", hint="run it again")
        schema = add_schema(session, rows, schema_of(each.name), ids, known, snapshot)
        id_ = ids.next()
        snapshot.changes.append(f"{_CHANGES[each.object.kind]}:{identifier(schema)}.{identifier(each.name.name)}")
        snapshot.alters = True
        match each.object.definition:
            case View() as view:
                made = uuid.uuid5(uuid.NAMESPACE_URL, f"{session.place.path}#{schema}#{each.name.name}")
                place = (id_, str(made), snapshot.id, None, known[schema], each.name.name)
                rows.add("view", *place, "duckdb", view.sql, _listed(view.aliases))
                if each.object.comment:
                    rows.add("tag", id_, snapshot.id, None, "comment", each.object.comment)
            case Macro() as macro:
                rows.add("macro", known[schema], id_, each.name.name, snapshot.id, None)
                _overloads(rows, id_, macro, _type(each.object))
            case None:
                raise ValueError(f"{each.object} has no definition")


def _type(object_: SourceObject) -> str:
    return "table" if object_.kind is ObjectKind.TABLE_MACRO else "scalar"


def _overloads(rows: Rows, macro_id: int, macro: Macro, type_: str) -> None:
    for number, overload in enumerate(macro.overloads):
        rows.add("macro_impl", macro_id, number, "duckdb", overload.sql, type_)
        for place, each in enumerate(overload.parameters):
            default = "NULL" if each.default is None else each.default
            kinds = each.type or "unknown", each.default_type or "unknown"
            rows.add("macro_parameters", macro_id, number, place, each.name, kinds[0], default, kinds[1])


def _listed(names: Sequence[str]) -> str:
    """As DuckDB writes a list of names; no names are an empty text, which may not be NULL."""
    return ",".join(map(identifier, names))


def held_objects(session: Session) -> dict[tuple[str, str, str], object]:
    """What a lake holds, by (`table`, `macro` or `table macro`, schema, name) in lower case. Views and tables share
    their names."""
    found: dict[tuple[str, str, str], object] = {}
    for each in live_tables(session):
        if each.id >= 0:
            found["table", each.schema.casefold(), each.name.casefold()] = "table"
    names = {id_: name for name, id_ in schemas(session).items()}
    view, tag = table("view").c, table("tag").c
    comments = {
        row[0]: row[1]
        for row in session.rows(
            sa.select(tag.object_id, tag.value).where(tag.key == "comment", tag.end_snapshot.is_(None))
        )
    }
    for id_, schema, name, sql, aliases in session.rows(
        sa.select(view.view_id, view.schema_id, view.view_name, view.sql, view.column_aliases).where(
            view.end_snapshot.is_(None)
        )
    ):
        key = ("table", names[schema].casefold(), name.casefold())
        found[key] = ("view", sql, aliases or "", comments.get(id_, ""))
    for key, overloads in _held_macros(session, names):
        found[key] = overloads
    return found


def _held_macros(session: Session, names: Mapping[int, str]) -> list[tuple[tuple[str, str, str], tuple[Overload, ...]]]:
    macro, impl, parameter = table("macro").c, table("macro_impl").c, table("macro_parameters").c
    parameters: dict[tuple[int, int], list[Parameter]] = {}
    for id_, number, name, type_, default, default_type in session.rows(
        sa.select(
            parameter.macro_id,
            parameter.impl_id,
            parameter.parameter_name,
            parameter.parameter_type,
            parameter.default_value,
            parameter.default_value_type,
        ).order_by(parameter.macro_id, parameter.impl_id, parameter.column_id)
    ):
        has_default = default_type != "unknown"
        parameters.setdefault((id_, number), []).append(
            Parameter(
                name,
                "" if type_ == "unknown" else type_,
                default if has_default else None,
                default_type if has_default else "",
            )
        )
    overloads: dict[int, list[Overload]] = {}
    kinds: dict[int, str] = {}
    for id_, number, sql, kind in session.rows(
        sa.select(impl.macro_id, impl.impl_id, impl.sql, impl.type).order_by(impl.macro_id, impl.impl_id)
    ):
        overloads.setdefault(id_, []).append(Overload(sql, tuple(parameters.get((id_, number), ()))))
        kinds[id_] = "table macro" if kind == "table" else "macro"
    return [
        ((kinds.get(id_, "macro"), names[schema].casefold(), name.casefold()), tuple(overloads.get(id_, ())))
        for id_, schema, name in session.rows(
            sa.select(macro.macro_id, macro.schema_id, macro.macro_name).where(macro.end_snapshot.is_(None))
        )
    ]


def _held(held: Mapping[tuple[str, str, str], object], write: ObjectWrite) -> object | None:
    kind = "table" if write.object.kind is ObjectKind.VIEW else write.object.kind.value
    return held.get((kind, schema_of(write.name).casefold(), write.name.name.casefold()))


def standing(held: Mapping[tuple[str, str, str], object], known: Sequence[str], write: ObjectWrite) -> Fit:
    """Whether the lake already holds just this object (THERE), another thing of its name (LEAVE), or nothing (MAKE)."""
    if write.object.kind is ObjectKind.SCHEMA:
        there = write.name.name.casefold() in {each.casefold() for each in known}
        return Fit.THERE if there else Fit.MAKE
    found = _held(held, write)
    if found is None:
        return Fit.MAKE
    match write.object.definition:
        case View() as view:
            same = found == ("view", view.sql, _listed(view.aliases), write.object.comment)
        case Macro() as macro:
            same = found == macro.overloads
        case None:
            same = False
    return Fit.THERE if same else Fit.LEAVE
