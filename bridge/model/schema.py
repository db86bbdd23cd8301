"""A schema, and the walk over its fields at every level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bridge.model.types import Field, FieldId, Struct, children

__all__ = ["Placed", "Schema", "walk"]


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
