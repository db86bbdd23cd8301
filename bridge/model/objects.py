"""What a database holds beside its tables: schemas, views and macros, each with the text that defines it.

Texts are DuckDB's SQL without the name of the catalog they come from, so that they mean the same in any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from bridge.model.findings import Finding
from bridge.model.table import TableName

__all__ = [
    "Columns",
    "Definition",
    "Macro",
    "ObjectKind",
    "Objects",
    "Overload",
    "Parameter",
    "SourceObject",
    "Trial",
    "View",
    "in_order",
]


class ObjectKind(Enum):
    """What an object is; a scalar and a table macro may share a name."""

    SCHEMA = "schema"
    VIEW = "view"
    MACRO = "macro"
    TABLE_MACRO = "table macro"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A macro's parameter; types are DuckLake's words (`int32`), "" is none. `default` is its value as text."""

    name: str
    type: str = ""
    default: str | None = None
    default_type: str = ""


@dataclass(frozen=True, slots=True)
class Overload:
    """One implementation of a macro: an expression, or a query when it is a table macro."""

    sql: str
    parameters: tuple[Parameter, ...]


Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and DuckDB's types of the columns of a result."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The arguments of a call, and the columns that it gives, or what DuckDB says against it."""

    arguments: str
    columns: Columns | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro with its overloads in order. `trials` are calls of each of them with NULL for every argument, and what
    they give at the source."""

    overloads: tuple[Overload, ...]
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A view's query, the names it gives to columns ("a, b" of CREATE VIEW v(a, b)), and names and types of its columns
    at the source."""

    sql: str
    aliases: tuple[str, ...]
    columns: Columns


Definition: TypeAlias = View | Macro


@dataclass(frozen=True, slots=True)
class SourceObject:
    """An object as the source holds it. `definition` is None for a schema, and for what cannot be carried, of which
    `findings` say why; `needs` are the bare names that its text mentions, in lower case."""

    kind: ObjectKind
    name: TableName
    text: str = ""
    definition: Definition | None = None
    comment: str = ""
    needs: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()

    @property
    def is_carried(self) -> bool:
        return self.kind is ObjectKind.SCHEMA or self.definition is not None

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class Objects:
    """Everything beside the tables, with the tables' columns by name in DuckDB's types, as the source has them."""

    objects: tuple[SourceObject, ...] = ()
    tables: Mapping[TableName, Columns] = field(default_factory=dict)
    collated: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    """Columns that are compared under a collation."""


def in_order(objects: Sequence[SourceObject]) -> list[SourceObject]:
    """Schemas, then macros and views such that what another one mentions comes before it, else by name."""
    rest = sorted(objects, key=lambda each: (each.kind is not ObjectKind.SCHEMA, each.name, each.kind.value))
    by_name: dict[str, list[SourceObject]] = {}
    for each in rest:
        if each.kind is not ObjectKind.SCHEMA:
            by_name.setdefault(each.name.name.casefold(), []).append(each)
    placed: dict[int, SourceObject] = {}
    for each in rest:
        waiting = [(each, iter(sorted(each.needs)))]
        entered = {id(each)}
        while waiting:
            here, needs = waiting[-1]
            below = next(
                (
                    other
                    for name in needs
                    for other in by_name.get(name, ())
                    if id(other) not in entered and id(other) not in placed
                ),
                None,
            )
            if below is None:
                placed.setdefault(id(here), here)
                waiting.pop()
            else:
                entered.add(id(below))
                waiting.append((below, iter(sorted(below.needs))))
    return list(placed.values())
