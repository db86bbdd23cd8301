"""What a DuckLake catalog has to say about a table's definition, before anything is written.

Many of these would make the whole catalog unloadable: names equal without case, unknown types, nested ids out of order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bridge.model.findings import Code, Finding
from bridge.model.schema import Placed, Schema, walk
from bridge.model.table import Table
from bridge.model.types import NestedDefault, Struct, UnknownType
from converters.ducklake.columns import default_text
from converters.ducklake.partition import layout_findings
from converters.ducklake.sorting import Declared, order_findings
from converters.ducklake.types import TYPE_CHOICES, duckdb_type, is_renamed, type_name
from converters.parquet import quiet

__all__ = ["kept_schemas", "nul_text", "review_table"]


def kept_schemas(table: Table) -> list[Schema]:
    """The schemas of the table's commits and the current one, each once, oldest first."""
    found = {id_: table.schemas[id_] for id_ in dict.fromkeys(commit.schema for commit in table.commits)}
    found.pop(table.schema.id, None)
    return [*found.values(), table.schema]


def review_table(table: Table, chosen: Mapping[str, str], held: Declared | None) -> list[Finding]:
    """Every finding about names, types, defaults, layout and properties; each once however many schemas show it.
    `held` is what the lake has of the table already."""
    subject = str(table.name)
    found: list[Finding] = []
    for schema in kept_schemas(table):
        placed = list(walk(schema.fields))
        found += _names(subject, schema, placed)
        names = [type_name(place.field.type, chosen) for place in placed]
        found += _types(subject, placed, names, bool(table.commits))
        found += _defaults(subject, placed, names)
        found += _order(subject, placed)
    found += layout_findings(table)
    found += order_findings(table, held)
    found += _extras(subject, table)
    return list(dict.fromkeys(found))


def _path(place: Placed) -> str:
    return ".".join(place.path)


def _names(subject: str, schema: Schema, placed: Sequence[Placed]) -> Iterator[Finding]:
    if not schema.fields:
        yield Finding(Code.NO_COLUMNS, subject, f"schema {schema.id} has no columns")
    siblings: dict[int | None, dict[str, Placed]] = {}
    for place in placed:
        if not place.field.name or "\0" in place.field.name:
            yield Finding(Code.NAME_UNSUPPORTED, subject, f"column {_path(place)!r} has a name that DuckDB cannot hold")
        if isinstance(place.field.type, Struct) and not place.field.type.fields:
            yield Finding(Code.NO_COLUMNS, subject, f"struct {_path(place)} has no fields")
        before = siblings.setdefault(place.parent, {}).setdefault(place.field.name.casefold(), place)
        if before is not place:
            yield Finding(
                Code.CASE_COLLISION,
                subject,
                f"columns {_path(before)} and {_path(place)} differ only in case",
                "rename one of them at the source",
            )


def _types(subject: str, placed: Sequence[Placed], names: Sequence[str | None], stored: bool) -> Iterator[Finding]:
    for place, name in zip(placed, names, strict=True):
        type_, source = place.field.type, is_renamed(place.field.type)
        if name is None:
            shown = source or (type_.text if isinstance(type_, UnknownType) else str(type_))
            options = TYPE_CHOICES.get(source, ())
            yield Finding(
                Code.TYPE_UNSUPPORTED,
                subject,
                f"column {_path(place)} has type {shown}, which DuckLake has not",
                f"choose one: --type-map {source}={'|'.join(options)}" if options else "",
            )
        elif source == "timestamptz_ns" and name == "timestamp_ns" and stored:
            yield Finding(
                Code.PHYSICAL_TYPE,
                subject,
                f"column {_path(place)}: DuckDB reads the files as timestamptz, so that timestamp_ns would depend on "
                "the session's time zone",
                "choose --type-map timestamptz_ns=timestamptz",
                on_files=True,
            )
        elif source == "timestamptz_ns":
            yield Finding(Code.TYPE_NARROWED, subject, f"column {_path(place)}: {source} becomes {name}, as asked")
        elif source:
            yield Finding(Code.TYPE_MAPPED, subject, f"column {_path(place)}: {source} becomes {name}")
        elif place.field.required and place.parent is not None and not place.repeated:
            yield Finding(Code.NESTED_REQUIRED, subject, f"column {_path(place)} is required")
        if place.field.doc and place.parent is not None:
            yield Finding(Code.NESTED_DOC, subject, f"the comment on {_path(place)} is not shown by DuckDB")


def _defaults(subject: str, placed: Sequence[Placed], names: Sequence[str | None]) -> Iterator[Finding]:
    for place, name in zip(placed, names, strict=True):
        initial, write = place.field.initial_default, place.field.write_default
        if isinstance(initial, NestedDefault) or (initial is not None and place.repeated):
            yield Finding(Code.NESTED_DEFAULT, subject, f"column {_path(place)} has an initial default")
        if isinstance(write, NestedDefault) or (write is not None and place.parent is not None):
            yield Finding(Code.DEFAULT_LOST, subject, f"column {_path(place)}: the write default {write!r} is not kept")
        elif write == "NULL":
            yield Finding(Code.DEFAULT_LOST, subject, f"column {_path(place)}: the text NULL cannot be a default")
        for default in (initial, write):
            text = default_text(default)
            if text is not None and name and not _casts(text, name):
                yield Finding(
                    Code.TYPE_UNSUPPORTED,
                    subject,
                    f"column {_path(place)}: default {text!r} is no {name} to DuckDB",
                )


def _casts(text: str, name: str) -> bool:
    with quiet.connect() as connection:
        query = f"SELECT TRY_CAST(? AS {duckdb_type(name)}) IS NOT NULL"
        return bool(connection.execute(query, [text]).fetchall()[0][0])


def _order(subject: str, placed: Sequence[Placed]) -> Iterator[Finding]:
    parents = {place.field.id: place.parent for place in placed}
    for place in placed:
        above = place.parent
        beyond = parents.get(above) if above is not None else None
        if above is not None and beyond is not None and above < beyond:
            yield Finding(
                Code.NESTED_ID_ORDER, subject, f"field {_path(place)} lies in {above}, which lies in {beyond}"
            )
    top = [place.field.id for place in placed if place.parent is None]
    if top != sorted(top):
        yield Finding(Code.COLUMN_ORDER, subject, "columns are not in the order of their ids; RENAME would move them")


def _extras(subject: str, table: Table) -> Iterator[Finding]:
    if table.schema.identifier_ids:
        names = {place.field.id: _path(place) for place in walk(table.schema.fields)}
        listed = ", ".join(names.get(id_, str(id_)) for id_ in table.schema.identifier_ids)
        yield Finding(Code.NOT_ENFORCED, subject, f"identifier fields {listed} are kept as a table tag")
    kept = sorted(key for key in table.properties if key != "comment")
    if kept:
        shown = ", ".join(kept[:4]) + (f" and {len(kept) - 4} more" if len(kept) > 4 else "")
        yield Finding(Code.PROPERTIES, subject, f"kept as table tags: {shown}")


def nul_text(table: Table) -> str | None:
    """A name, comment or property with the one character that no text of PostgreSQL may hold."""
    texts = [str(table.name), *table.properties.values(), *table.properties, *(each.name for each in table.refs)]
    for schema in (table.schema, *table.schemas.values()):
        for each in walk(schema.fields):
            given = (each.field.name, each.field.doc, each.field.initial_default, each.field.write_default)
            texts += [text for text in given if isinstance(text, str)]
    return next((text for text in texts if "\0" in text), None)
