"""Tries schemas, views, macros and defaults in an empty lake of its own, before anything is written.

The trial lake holds the tables as they will be, and the very rows that would be written for the objects; DuckDB opens
it in a process of its own and binds each of them. One that does not bind can make a whole lake unreadable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from bridge.errors import BridgeError
from bridge.model.files import DATA_FILES, DELETED_ROWS, FileProblem, Files, StatsBatch
from bridge.model.findings import Code, Finding
from bridge.model.layout import PartitionSpec, SortOrder
from bridge.model.mapping import NameMapping
from bridge.model.objects import Columns, Macro, ObjectKind, Objects, SourceObject, View
from bridge.model.rewrite import DataFile, Equality
from bridge.model.table import Table, TableName
from bridge.model.types import Expression, Field, FieldId
from bridge.ports import Fit, Fitted, ObjectWrite, Silent, TableWrite
from converters.ducklake.catalog.commit import NewLake, write_tables
from converters.ducklake.catalog.objects import schema_of
from converters.ducklake.catalog.places import Place
from converters.ducklake.catalog.session import session
from converters.ducklake.identifiers import identifier, qualified
from converters.ducklake.scanner import Answer, try_statements
from converters.storage.scratch import scratch

__all__ = ["fit_objects"]

_ALIAS = "bridge trial lake"
_PROBE = "bridge default"
_MOST_SHOWN = 3

Tables = Sequence[tuple[TableName, Table]]


@dataclass(slots=True)
class _Trial:
    """What is tried, and what was found so far: by place among the objects the findings, and who is refused."""

    tables: Tables
    objects: Sequence[ObjectWrite]
    found: Objects
    chosen: Mapping[str, str]
    refused: dict[int, Finding]
    said: dict[int, list[Finding]]
    defaults: dict[TableName, dict[FieldId, Finding]]
    changed: dict[str, str]
    """Tables, by bare name in lower case, whose columns have other types than at the source, and which."""


def fit_objects(
    tables: Tables, objects: Sequence[ObjectWrite], standing: Sequence[Fit], found: Objects, chosen: Mapping[str, str]
) -> Fitted:
    """`standing` says of each object how the lake already has its name."""
    trial = _Trial(tables, objects, found, chosen, {}, {}, {}, {})
    usable = [
        place for place, each in enumerate(objects) if each.object.is_carried and standing[place] is not Fit.LEAVE
    ]
    if any(objects[place].object.definition for place in usable) or any(_expressions(table) for _, table in tables):
        while _refuse(trial, [place for place in usable if place not in trial.refused]):
            pass
    made: list[tuple[Fit, tuple[Finding, ...]]] = []
    for place, each in enumerate(objects):
        if place in trial.refused:
            made.append((Fit.LEAVE, (trial.refused[place],)))
        elif not each.object.is_carried:
            made.append((Fit.LEAVE, ()))
        elif standing[place] is Fit.LEAVE:
            made.append((Fit.LEAVE, (_exists(each),)))
        else:
            said = [*trial.said.get(place, ()), *_reads_changed(trial, each.object)]
            made.append((standing[place], tuple(dict.fromkeys(said))))
    return Fitted(tuple(made), trial.defaults)


def _exists(each: ObjectWrite) -> Finding:
    return Finding(
        Code.OBJECT_EXISTS,
        str(each.object.name),
        f"the lake holds something else called {each.name}; it is not replaced",
        "drop or rename it in the lake, then run it again",
        text=each.object.text,
    )


def _refuse(trial: _Trial, places: Sequence[int]) -> bool:
    """Try the objects at these places together; whether some had to be refused, and the rest is to be tried again."""
    asked = list(_questions(trial, places))
    try:
        answers = _ask(trial, places, [query for _, query in asked])
    except _Unreadable as error:
        macros = [place for place in places if isinstance(trial.objects[place].object.definition, Macro)]
        for place in _killers(trial, macros):
            trial.refused[place] = _lost(
                trial.objects[place].object, f"DuckDB cannot open a lake that holds it: {error}"
            )
        if not any(place in trial.refused for place in macros):
            raise BridgeError(f"a trial lake cannot be opened: {error}") from error
        return True
    before = len(trial.refused)
    trial.changed.clear()
    for (whose, _), answer in zip(asked, answers, strict=True):
        match whose:
            case TableName():
                _compare_table(trial, whose, answer)
            case (TableName() as name, Field() as field):
                if isinstance(answer, BridgeError):
                    trial.defaults.setdefault(name, {}).setdefault(field.id, _lost_default(name, field, answer))
            case int():
                if isinstance(answer, BridgeError) and "INTERNAL Error" in answer.message:
                    trial.refused[whose] = _lost(trial.objects[whose].object, answer.message)
                    return True  # nothing that was asked later was answered
            case _:
                if isinstance(answer, BridgeError):
                    raise BridgeError(f"a trial lake cannot be made: {answer.message}")
    for place in places:
        mine = [answer for (whose, _), answer in zip(asked, answers, strict=True) if whose == place]
        _judge(trial, place, mine)
    return len(trial.refused) > before


class _Unreadable(Exception):
    """DuckDB cannot open the trial lake."""


def _ask(trial: _Trial, places: Sequence[int], queries: Sequence[str]) -> list[Answer]:
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        place = Place("duckdb", f"{directory}/trial.ducklake")
        with session(place, create=True) as opened:
            new = NewLake(f"{directory}/files/", "trial")
            writes = [_write(name, table, table.schema.fields) for name, table in trial.tables]
            for number, (_, table, field) in enumerate(_probes(trial)):
                writes.append(_write(TableName((), f"{_PROBE} {number}"), table, (field,)))
            write_tables(opened, writes, new, trial.chosen, 0, Silent(), [trial.objects[each] for each in places], 1)
        # some macros kill DuckDB when the lake is loaded, some when functions are listed
        load = f"SELECT count(parameter_types) FROM duckdb_functions() WHERE database_name = '{_ALIAS}'"
        try:
            answers = try_statements(place, _ALIAS, [load, *queries])
        except BridgeError as error:
            raise _Unreadable(error.message) from error
    if isinstance(answers[0], BridgeError):
        raise _Unreadable(answers[0].message)
    return answers[1:]


class _NoFiles:
    """A table without a row."""

    table = DATA_FILES.empty_table()
    deletes = DELETED_ROWS.empty_table()
    mappings: tuple[NameMapping, ...] = ()
    since: int | None = None
    rest: int | None = 0
    partitions: Mapping[int, tuple[str | None, ...]] = {}
    numbered: tuple[int, ...] = ()
    predating: Mapping[FieldId, tuple[int, ...]] = {}
    problems: tuple[FileProblem, ...] = ()
    findings: tuple[Finding, ...] = ()

    def stats(self) -> Iterator[StatsBatch]:
        """None."""
        yield from ()

    def sources(self, rows: Sequence[int]) -> Sequence[DataFile]:
        """None."""
        return []

    def equality(self, first: int) -> Equality | None:
        """None."""
        return None

    def resolved(self, found: pa.Table) -> Files:
        """Nothing is deleted."""
        return self


def _probes(trial: _Trial) -> list[tuple[TableName, Table, Field]]:
    """Each computed default in a table of its own: one that does not bind makes every INSERT into its table fail."""
    return [(name, table, field) for name, table in trial.tables for field in _expressions(table)]


def _write(name: TableName, table: Table, fields: tuple[Field, ...]) -> TableWrite:
    """Some columns of a table as they will be defined, in an empty table without layout."""
    schema = replace(table.schema, fields=fields, identifier_ids=())
    bare = replace(table, commits=(), schemas={schema.id: schema}, schema=schema, refs=(), sort_order=SortOrder(0, ()))
    spec = PartitionSpec(0, ())
    return TableWrite(name, {}, replace(bare, spec=spec, specs={0: spec}), _NoFiles(), 0, None, "", "", "adopt")


def _killers(trial: _Trial, places: Sequence[int]) -> list[int]:
    """The macros among these with which a lake cannot be opened, each by itself."""
    try:
        _ask(trial, places, [])
        return []
    except _Unreadable:
        if len(places) == 1:
            return list(places)
    middle = len(places) // 2
    return [*_killers(trial, places[:middle]), *_killers(trial, places[middle:])] if places else []


_Whose = int | TableName | tuple[TableName, Field] | None


def _questions(trial: _Trial, places: Sequence[int]) -> Iterator[tuple[_Whose, str]]:
    """(what it is about, statement), tables first; macros last, under the lake's own search path."""
    for name, _table in trial.tables:
        at = qualified(_ALIAS, schema_of(name), name.name)
        yield name, f"DESCRIBE {at}"
    for number, (name, _, field) in enumerate(_probes(trial)):
        yield (name, field), f"EXPLAIN INSERT INTO {qualified(_ALIAS, 'main', f'{_PROBE} {number}')} DEFAULT VALUES"
    views = [
        (place, f"DESCRIBE SELECT * FROM {qualified(_ALIAS, schema_of(each.name), each.name.name)}")
        for place in places
        if isinstance((each := trial.objects[place]).object.definition, View)
    ]
    yield from views
    yield None, f"USE {identifier(_ALIAS)}"
    yield from views
    for place in places:
        each = trial.objects[place]
        if isinstance(each.object.definition, Macro):
            at = qualified(_ALIAS, schema_of(each.name), each.name.name)
            is_table = each.object.kind is ObjectKind.TABLE_MACRO
            for call in each.object.definition.trials:
                called = f"{at}({call.arguments})"
                yield place, f"DESCRIBE SELECT * FROM {called}" if is_table else f"DESCRIBE SELECT {called} AS answer"


def _expressions(table: Table) -> list[Field]:
    return [each for each in table.schema.fields if isinstance(each.write_default, Expression)]


def _described(answer: Answer) -> Columns:
    return () if isinstance(answer, BridgeError) else tuple((str(row[0]), str(row[1])) for row in answer)


def _compare_table(trial: _Trial, name: TableName, answer: Answer) -> None:
    was = dict(trial.found.tables.get(name, ()))
    now = dict(_described(answer))
    other = [f"{each} {was[each]} -> {now[each]}" for each in was if each in now and was[each] != now[each]]
    other += [f"{each} without its collation" for each in trial.found.collated.get(name, ())]
    if other:
        shown = "; ".join(each if len(each) < 80 else f"{each[:80]}..." for each in other[:_MOST_SHOWN])
        more = f" and {len(other) - _MOST_SHOWN} more" if len(other) > _MOST_SHOWN else ""
        trial.changed[name.name.casefold()] = f"{name} ({shown}{more})"


def _judge(trial: _Trial, place: int, answers: Sequence[Answer]) -> None:
    each = trial.objects[place].object
    said: list[Finding] = []
    match each.definition:
        case View() as view:
            outside, answer = answers
            if isinstance(answer, BridgeError):
                trial.refused[place] = _lost(each, f"it does not bind in the lake: {answer.message}")
                return
            now = _described(answer)
            if [name for name, _ in now] != [name for name, _ in view.columns]:
                trial.refused[place] = _lost(each, "its columns would have other names in the lake")
                return
            said += _other_types(each, view.columns, now)
            if isinstance(outside, BridgeError):
                detail = f"it binds only where the lake is the current catalog: {outside.message}"
                said.append(Finding(Code.SEARCH_PATH, str(each.name), detail, "USE the lake, as you did the file"))
        case Macro() as macro:
            for number, (trial_, answer) in enumerate(zip(macro.trials, answers, strict=True), 1):
                is_other = isinstance(answer, BridgeError) and answer.message != trial_.problem
                if (
                    isinstance(answer, BridgeError) and is_other
                ):  # it binds at the source, or fails there for another reason
                    trial.refused[place] = _lost(each, f"it does not bind in the lake: {answer.message}")
                    return
                if isinstance(answer, BridgeError):
                    detail = f"overload {number} could not be tried with NULL: {trial_.problem}"
                    said.append(Finding(Code.MACRO_UNTRIED, str(each.name), detail))
                elif trial_.columns is not None:
                    said += _other_types(each, trial_.columns, _described(answer))
        case None:
            return
    trial.said[place] = said


def _other_types(each: SourceObject, was: Columns, now: Columns) -> Iterator[Finding]:
    other = [f"{name} {type_} -> {to}" for (name, type_), (_, to) in zip(was, now, strict=False) if type_ != to]
    if other or len(was) != len(now):
        yield Finding(Code.OBJECT_TYPES, str(each.name), f"gives {'; '.join(other)}", text=each.text)


def _reads_changed(trial: _Trial, object_: SourceObject) -> Iterator[Finding]:
    """What an object reads, itself or by others, of tables whose types are other than at the source."""
    by_name: dict[str, list[SourceObject]] = {}
    for each in trial.objects:
        by_name.setdefault(each.object.name.name.casefold(), []).append(each.object)
    seen: set[str] = set()
    waiting = list(object_.needs)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [need for each in by_name.get(name, ()) for need in each.needs]
    for name in sorted(seen & trial.changed.keys()):
        yield Finding(Code.OBJECT_TYPES, str(object_.name), f"reads {trial.changed[name]}", text=object_.text)


def _lost(each: SourceObject, why: str) -> Finding:
    code = Code.VIEW_NOT_CARRIED if each.kind is ObjectKind.VIEW else Code.MACRO_NOT_CARRIED
    return Finding(code, str(each.name), why.replace(f'"{_ALIAS}".', ""), text=each.text)


def _lost_default(name: TableName, field: Field, error: BridgeError) -> Finding:
    text = field.write_default.text if isinstance(field.write_default, Expression) else ""
    drawn = "nextval(" in text.casefold()
    return Finding(
        Code.NEXTVAL_DEFAULT if drawn else Code.DEFAULT_LOST,
        str(name),
        f"column {field.name}: the default {text} is not kept: {error.message}",
        text=f"ALTER TABLE {qualified(schema_of(name), name.name)} ALTER {identifier(field.name)} SET DEFAULT {text};",
    )
