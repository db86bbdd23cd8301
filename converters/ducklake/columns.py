"""A schema as the rows of ducklake_column, and how they change from schema to schema.

Every field of every level is a row, its column_id is the source's field id. Lists hold a child `element`, maps `key`
then `value`; siblings are ordered by column_order, so a nested id has to be greater than its container's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bridge.model.schema import Placed, Schema, walk
from bridge.model.types import Default, Expression, FieldId, NestedDefault
from converters.ducklake.identifiers import identifier
from converters.ducklake.types import duckdb_type, type_name

Value = TypeVar("Value")

__all__ = ["ColumnRow", "Span", "column_rows", "default_text", "spans", "sql_type"]


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """What ducklake_column says of one column, its id and snapshots aside."""

    order: int
    name: str
    type: str
    initial_default: str | None
    default: str | None
    nulls_allowed: bool
    parent: int | None
    is_expression: bool = False

    @property
    def default_type(self) -> str:
        """As DuckDB 1.5.5 writes it: nested columns carry no kind of default."""
        if self.type in ("struct", "list", "map"):
            return ""
        return "expression" if self.is_expression else "literal"


@dataclass(frozen=True, slots=True)
class Span(Generic[Value]):
    """A value that holds from event `begin` on and until event `end` (None: still)."""

    key: int
    value: Value
    begin: int
    end: int | None


def default_text(default: Default | None) -> str | None:
    """A default as the catalog's text: bytes as \\x pairs, which is how DuckDB reads a BLOB from text."""
    if default is None or isinstance(default, NestedDefault | Expression):
        return None
    return default if isinstance(default, str) else "".join(f"\\x{byte:02X}" for byte in default)


def column_rows(schema: Schema, chosen: Mapping[str, str]) -> dict[int, ColumnRow]:
    """The rows of a schema by column id. Types without a name must have been refused before."""
    placed = list(walk(schema.fields))
    ranked = _orders(placed)
    return {
        int(each.field.id): ColumnRow(
            order=ranked[each.field.id],
            name=each.field.name,
            type=type_name(each.field.type, chosen) or "",
            initial_default=default_text(each.field.initial_default),
            default=_write_default(each),
            nulls_allowed=not each.field.required or each.parent is not None,
            parent=None if each.parent is None else int(each.parent),
            is_expression=_is_expression(each),
        )
        for each in placed
    }


def _is_expression(place: Placed) -> bool:
    return place.parent is None and isinstance(place.field.write_default, Expression)


def _write_default(place: Placed) -> str | None:
    """Only top-level columns have one, and the text NULL means none."""
    if isinstance(place.field.write_default, Expression) and place.parent is None:
        return place.field.write_default.text
    text = default_text(place.field.write_default)
    return None if place.parent is not None or text == "NULL" else text


def _orders(placed: Sequence[Placed]) -> dict[FieldId, int]:
    """column_order: the id itself where that gives the schema's order among siblings (so that a later RENAME keeps
    the place), else the rank."""
    siblings: dict[FieldId | None, list[FieldId]] = {}
    for each in placed:
        siblings.setdefault(each.parent, []).append(each.field.id)
    orders: dict[FieldId, int] = {}
    for ids in siblings.values():
        in_order = ids == sorted(ids)
        orders.update({id_: int(id_) if in_order else rank for rank, id_ in enumerate(ids, 1)})
    return orders


def sql_type(rows: Mapping[int, ColumnRow], key: int) -> str:
    """A column's whole type in DuckDB's SQL, nested levels included."""
    row = rows[key]
    below = sorted((each.order, id_) for id_, each in rows.items() if each.parent == key)
    match row.type:
        case "struct":
            return (
                "STRUCT(" + ", ".join(f"{identifier(rows[id_].name)} {sql_type(rows, id_)}" for _, id_ in below) + ")"
            )
        case "list":
            return f"{sql_type(rows, below[0][1])}[]"
        case "map":
            return f"MAP({sql_type(rows, below[0][1])}, {sql_type(rows, below[1][1])})"
        case name:
            return duckdb_type(name)


def spans(
    versions: Sequence[tuple[int, Mapping[int, Value]]], before: Mapping[int, Value] | None = None
) -> tuple[list[Span[Value]], list[tuple[int, int]]]:
    """(new spans, ended ones): `versions` are (event, rows) in order; `before` is what is live already.

    The second list holds (column id, event) of rows of `before` that end.
    """
    live: dict[int, tuple[Value, int | None]] = {key: (row, None) for key, row in (before or {}).items()}
    made: list[Span[Value]] = []
    ended: list[tuple[int, int]] = []
    for event, rows in versions:
        for key in [key for key, (row, _) in live.items() if rows.get(key) != row]:
            row, begin = live.pop(key)
            if begin is None:
                ended.append((key, event))
            else:
                made.append(Span(key, row, begin, event))
        for key, row in rows.items():
            if key not in live:
                live[key] = (row, event)
    made += [Span(key, row, begin, None) for key, (row, begin) in live.items() if begin is not None]
    return made, ended
