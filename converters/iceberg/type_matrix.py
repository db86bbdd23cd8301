"""How each reader takes Parquet as DuckDB 1.5.5 writes it, under each Iceberg type: the matrix that decides what stays
in place. Every cell is a test (tests/test_type_matrix.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from bridge.model.types import (
    ColumnType,
    Decimal,
    Field,
    Fixed,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    Unit,
)

__all__ = [
    *("MATRIX", "READERS", "Row", "Verdict", "Way"),
    *("choose", "given_fields", "own_version", "stored", "stored_fields"),
]


class Verdict(Enum):
    """What a reader makes of the values."""

    RIGHT = "right"
    ROWS = "right row by row"
    """Right when the file is read row by row, as it always is with read.parquet.vectorization.enabled=false."""
    COLUMNS = "fails row by row"
    """Right vectorized; fails as soon as the file is read row by row, as it is with a nested column."""
    FAILS = "fails"
    WRONG = "wrong"
    UNKNOWN = "unknown type"
    """The reader does not know the Iceberg type and says so; no other file would change that."""


_OK, _ROWS, _COLUMNS, _FAILS, _WRONG, _NONE = (
    Verdict.RIGHT, Verdict.ROWS, Verdict.COLUMNS, Verdict.FAILS, Verdict.WRONG, Verdict.UNKNOWN,
)  # fmt: skip

READERS = ("spark", "java", "pyiceberg", "duckdb")
"""Spark 3.5 and Iceberg 1.10.2; Iceberg Java's generic reader; PyIceberg 0.12; DuckDB 1.5.5."""


class Way(Enum):
    """How files with a column of some type are published."""

    IN_PLACE = "in place"
    ROW_BY_ROW = "in place, vectorized reading off"
    REWRITE = "rewritten"


@dataclass(frozen=True, slots=True)
class Row:
    """A lake's type, how DuckDB writes it, an Iceberg type, and the verdict of each of READERS."""

    type: ColumnType
    physical: str
    iceberg: ColumnType
    verdicts: tuple[Verdict, Verdict, Verdict, Verdict]
    version: int = 2

    def way(self, readers: Iterable[str]) -> Way:
        """What the readers allow together."""
        said = {self.verdicts[READERS.index(each)] for each in readers}
        if said & {_COLUMNS, _FAILS, _WRONG}:
            return Way.REWRITE
        return Way.ROW_BY_ROW if _ROWS in said else Way.IN_PLACE


_ALL = (_OK, _OK, _OK, _OK)
_I16, _I32, _I64 = "INT(16, signed)", "INT(32, signed)", "INT(64, signed)"

MATRIX: tuple[Row, ...] = (
    Row(Leaf.BOOLEAN, "BOOLEAN", Leaf.BOOLEAN, _ALL),
    Row(Leaf.INT8, "INT32 INT(8, signed)", Leaf.INT32, _ALL),
    Row(Leaf.INT16, f"INT32 {_I16}", Leaf.INT32, _ALL),
    Row(Leaf.INT32, f"INT32 {_I32}", Leaf.INT32, _ALL),
    Row(Leaf.INT64, f"INT64 {_I64}", Leaf.INT64, _ALL),
    Row(Leaf.INT32, f"INT32 {_I32}", Leaf.INT64, (_ROWS, _OK, _OK, _OK)),
    Row(Leaf.UINT8, "INT32 INT(8, unsigned)", Leaf.INT32, (_COLUMNS, _OK, _OK, _OK)),
    Row(Leaf.UINT16, "INT32 INT(16, unsigned)", Leaf.INT32, (_COLUMNS, _OK, _OK, _OK)),
    Row(Leaf.UINT32, "INT32 INT(32, unsigned)", Leaf.INT64, (_FAILS, _WRONG, _OK, _OK)),
    Row(Leaf.UINT64, "INT64 INT(64, unsigned)", Decimal(20, 0), (_FAILS, _FAILS, _FAILS, _OK)),
    Row(Leaf.INT128, "DOUBLE", Leaf.FLOAT64, _ALL),
    Row(Leaf.UINT128, "DOUBLE", Leaf.FLOAT64, _ALL),
    Row(Leaf.FLOAT32, "FLOAT", Leaf.FLOAT32, _ALL),
    Row(Leaf.FLOAT64, "DOUBLE", Leaf.FLOAT64, _ALL),
    Row(Leaf.FLOAT32, "FLOAT", Leaf.FLOAT64, _ALL),
    Row(Decimal(9, 2), "INT32 DECIMAL", Decimal(9, 2), _ALL),
    Row(Decimal(18, 2), "INT64 DECIMAL", Decimal(18, 2), _ALL),
    Row(Decimal(38, 2), "FIXED[16] DECIMAL", Decimal(38, 2), _ALL),
    Row(Leaf.DATE, "INT32 DATE", Leaf.DATE, _ALL),
    Row(Time(Unit.MICRO), "INT64 TIME(us)", Time(Unit.MICRO), (_NONE, _OK, _OK, _OK)),
    Row(Leaf.TIMETZ, "INT64 TIME(us, utc)", Leaf.STRING, (_FAILS, _WRONG, _FAILS, _WRONG)),
    Row(Timestamp(Unit.MICRO), "INT64 TIMESTAMP(us)", Timestamp(Unit.MICRO), _ALL),
    Row(Timestamp(Unit.SECOND), "INT64 TIMESTAMP(us)", Timestamp(Unit.MICRO), _ALL),
    Row(Timestamp(Unit.MILLI), "INT64 TIMESTAMP(ms)", Timestamp(Unit.MICRO), (_ROWS, _OK, _OK, _OK)),
    Row(Timestamp(Unit.NANO), "INT64 TIMESTAMP(ns)", Timestamp(Unit.NANO), (_NONE, _OK, _OK, _OK), 3),
    Row(
        Timestamp(Unit.MICRO, utc=True), "INT64 TIMESTAMP(us, utc)", Timestamp(Unit.MICRO, utc=True), _ALL
    ),
    Row(Leaf.STRING, "BYTE_ARRAY STRING", Leaf.STRING, _ALL),
    Row(Leaf.JSON, "BYTE_ARRAY JSON", Leaf.STRING, _ALL),
    Row(Leaf.BINARY, "BYTE_ARRAY", Leaf.BINARY, _ALL),
    Row(Leaf.UUID, "FIXED[16] UUID", Leaf.UUID, _ALL),
    Row(Leaf.INTERVAL, "FIXED[12] INTERVAL", Leaf.STRING, (_FAILS, _FAILS, _FAILS, _OK)),
    Row(Leaf.VARIANT, "group VARIANT", Leaf.VARIANT, (_NONE, _NONE, _NONE, _OK), 3),
    Row(Geo("geometry"), "BYTE_ARRAY GEOMETRY", Geo("geometry"), (_NONE, _NONE, _NONE, _OK), 3),
)  # fmt: skip
"""The first row of a type is the one that a new table gets; the others are what promotion leaves behind."""

_FIRST: dict[object, Row] = {}
for _row in MATRIX:
    _FIRST.setdefault(_row.type, _row)


def choose(type_: ColumnType) -> Row | None:
    """The row of a leaf type, None for one that Iceberg has no type for. Iceberg's own types stay what they are."""
    match type_:
        case Decimal():
            return replace(_FIRST[Decimal(38, 2)], type=type_, iceberg=type_)
        case Geo():
            return replace(_FIRST[Geo("geometry")], type=type_, iceberg=type_)
        case _:
            return _FIRST.get(type_)


_OWN: dict[ColumnType, int] = {Leaf.NOTHING: 3, Timestamp(Unit.NANO, utc=True): 3}


def own_version(type_: ColumnType) -> int | None:
    """The version from which on Iceberg has a type; None: it has none."""
    row = choose(type_)
    if row is not None:
        return row.version
    return 2 if isinstance(type_, Fixed) else _OWN.get(type_)


def stored(type_: ColumnType) -> ColumnType:
    """The Iceberg type of a column, at every level."""
    return _each_leaf(type_, _iceberg)


def _iceberg(type_: ColumnType) -> ColumnType:
    row = choose(type_)
    return type_ if row is None else row.iceberg


def _given(type_: ColumnType) -> ColumnType:
    return type_ if type_ is Leaf.JSON else _iceberg(type_)


def _each_leaf(type_: ColumnType, leaf: Callable[[ColumnType], ColumnType]) -> ColumnType:
    def of(field: Field) -> Field:
        return replace(field, type=_each_leaf(field.type, leaf))

    match type_:
        case Struct(fields):
            return Struct(tuple(map(of, fields)))
        case ListOf(element):
            return ListOf(of(element))
        case MapOf(key, value):
            return MapOf(of(key), of(value))
        case _:
            return leaf(type_)


def stored_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Fields under their Iceberg types."""
    return tuple(replace(each, type=stored(each.type)) for each in fields)


def given_fields(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Fields under the types that whoever writes their values is to give, which are Iceberg's but for JSON: that is a
    text of its own for a value of another type."""
    return tuple(replace(each, type=_each_leaf(each.type, _given)) for each in fields)
