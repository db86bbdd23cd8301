"""A schema, and the walk over its fields at every level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bridge.model.types import ColumnType, Field, FieldId, ListOf, MapOf, Struct, children

__all__ = ["Placed", "Schema", "all_fields", "walk"]


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table at some commit; `id` is the source's own number for it."""

    id: int
    fields: tuple[Field, ...]
    identifier_ids: tuple[FieldId, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """A field with its place: parent id (None at the top), rank among its siblings, full path, and whether a
    list or map lies above it."""

    field: Field
    parent: FieldId | None
    rank: int
    path: tuple[str, ...]
    repeated: bool

    @property
    def is_leaf(self) -> bool:
        return not children(self.field.type)


def walk(fields: tuple[Field, ...]) -> Iterator[Placed]:
    """Every field of every level, parents first, siblings in order."""

    def below(
        siblings: tuple[Field, ...], parent: FieldId | None, path: tuple[str, ...], repeated: bool
    ) -> Iterator[Placed]:
        for rank, field in enumerate(siblings):
            here = (*path, field.name)
            yield Placed(field, parent, rank, here, repeated)
            deeper = repeated or not isinstance(field.type, Struct)
            yield from below(children(field.type), field.id, here, deeper)

    yield from below(fields, None, (), False)


def all_fields(schemas: Sequence[Schema]) -> tuple[Field, ...]:
    """Every field that any of the schemas has, at every level, as the first of them that has it says; names are made
    unique ignoring case, since one that is gone may have left its name to another."""
    fields: tuple[Field, ...] = ()
    for schema in schemas:
        fields = _joined(fields, schema.fields)
    return fields


def _joined(newer: tuple[Field, ...], older: tuple[Field, ...]) -> tuple[Field, ...]:
    by_id = {each.id: each for each in older}
    kept = [
        replace(each, type=_joined_type(each.type, by_id[each.id].type)) if each.id in by_id else each for each in newer
    ]
    known = {each.id for each in newer}
    taken = {each.name.casefold() for each in kept}
    for each in older:
        if each.id not in known:
            name = each.name
            while name.casefold() in taken:
                name = f"{name}_{each.id}"
            taken.add(name.casefold())
            kept.append(replace(each, name=name))
    return tuple(kept)


def _joined_type(newer: ColumnType, older: ColumnType) -> ColumnType:
    match newer, older:
        case Struct(fields), Struct(before):
            return Struct(_joined(fields, before))
        case ListOf(element), ListOf(before_element):
            return ListOf(replace(element, type=_joined_type(element.type, before_element.type)))
        case MapOf(key, value), MapOf(before_key, before_value):
            return MapOf(
                replace(key, type=_joined_type(key.type, before_key.type)),
                replace(value, type=_joined_type(value.type, before_value.type)),
            )
        case _:
            return newer
