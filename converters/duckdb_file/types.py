"""DuckDB's types as those that a lake keeps: what each becomes, by which cast, and what that costs.

MAPPINGS is the documentation of it, and README shows it. A type that comes in two forms keeps its own kind where every
value of the file fits, which the plan finds out by reading the column, and becomes text where one does not; whoever
asks for the first with --type-map and has a value that does not fit is told so before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from duckdb.sqltypes import DuckDBPyType

from bridge.errors import Blocked
from bridge.model.findings import Code, Finding
from bridge.model.types import (
    ColumnType,
    Decimal,
    Field,
    FieldId,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    Unit,
)
from converters.parquet.sql import literal

__all__ = ["MAPPINGS", "TYPE_CHOICES", "Doubt", "Mapper", "children_of", "doubts", "kind_of"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a type may become: what its values are then, and whether that costs anything (the finding's code)."""

    name: str
    values: str
    code: Code | None = Code.TYPE_SHAPE


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """The choices for a type. The first holds only values for which `fits`, a condition on `{}`, is true; the second
    is taken where one does not."""

    choices: tuple[Choice, ...]
    fits: str = ""

    def __getitem__(self, name: str) -> Choice:
        return next(each for each in self.choices if each.name == name)


_DIGITS = "decimal(38,0), where every value fits"
MAPPINGS: Mapping[str, TypeMapping] = {
    "enum": TypeMapping((Choice("varchar", "the values' names; their order and the check are gone"),)),
    "union": TypeMapping(
        (
            Choice("struct", "a struct of `tag` and a field for each member"),
            Choice("varchar", "the value as text; which member it was is gone"),
        )
    ),
    "array": TypeMapping((Choice("list", "a list; its length is not checked any more"),)),
    "bit": TypeMapping((Choice("varchar", "a text of 0 and 1"),)),
    "hugeint": TypeMapping(
        (Choice("decimal", _DIGITS, Code.TYPE_MAPPED), Choice("varchar", "its digits")),
        "{} BETWEEN -99999999999999999999999999999999999999 AND 99999999999999999999999999999999999999",
    ),
    "uhugeint": TypeMapping(
        (Choice("decimal", _DIGITS, Code.TYPE_MAPPED), Choice("varchar", "its digits")),
        "{} <= 99999999999999999999999999999999999999",
    ),
    "bignum": TypeMapping(
        (Choice("decimal", _DIGITS, Code.TYPE_MAPPED), Choice("varchar", "its digits")),
        "length(ltrim(CAST({} AS VARCHAR), '-')) <= 38",
    ),
    "time_ns": TypeMapping(
        (
            Choice("time", "time, where every value is whole microseconds", Code.TYPE_MAPPED),
            Choice("varchar", "its text"),
            Choice("bigint", "nanoseconds of the day"),
        ),
        "epoch_ns({}) % 1000 = 0",
    ),
    "timestamp_s": TypeMapping(
        (
            Choice("timestamp_s", "itself, where every value lies before the year 294247", None),
            Choice("varchar", "its text"),
        ),
        "TRY_CAST({} AS TIMESTAMP) IS NOT NULL",
    ),
    "timestamp_ns": TypeMapping(
        (
            Choice("timestamp_ns", "itself, where every value lies after 1677-09-21", None),
            Choice("bigint", "nanoseconds from 1970"),
        ),
        "CASE WHEN isfinite({0}) THEN epoch_ns({0}) >= -9223286400000000000 ELSE true END",
    ),
    "timetz": TypeMapping(
        (
            Choice("timetz", "itself, where every offset is zero and no hour is 24: Parquet keeps neither", None),
            Choice("varchar", "its text with the offset"),
        ),
        "(date_part('timezone', {0}) = 0 AND date_part('hour', {0}) < 24)",
    ),
    "interval": TypeMapping(
        (
            Choice("interval", "itself, where no part is negative or finer than milliseconds", None),
            Choice("varchar", "its text"),
        ),
        "(year({0}) >= 0 AND month({0}) >= 0 AND day({0}) >= 0 AND hour({0}) BETWEEN 0 AND 1192 AND minute({0}) >= 0 "
        "AND microsecond({0}) >= 0 AND microsecond({0}) % 1000 = 0)",
    ),
    "variant": TypeMapping(
        (
            Choice("json", "inside another type only: JSON, which has fewer types"),
            Choice("varchar", "inside another type only: its text"),
        )
    ),
    "geometry": TypeMapping(
        (
            Choice("blob", "inside another type only: its WKB; the name of its coordinate system is gone"),
            Choice("varchar", "inside another type only: its text (WKT); the name of its coordinate system is gone"),
        )
    ),
}
"""By the name that --type-map has for a type. The rest of DuckDB's types are the lake's own."""

TYPE_CHOICES: Mapping[str, tuple[str, ...]] = {
    kind: tuple(each.name for each in mapping.choices) for kind, mapping in MAPPINGS.items()
}

_PLAIN = Choice("geometry", "itself; the name of its coordinate system is gone")

_LEAVES: Mapping[str, ColumnType] = {
    "boolean": Leaf.BOOLEAN,
    "tinyint": Leaf.INT8,
    "smallint": Leaf.INT16,
    "integer": Leaf.INT32,
    "bigint": Leaf.INT64,
    "utinyint": Leaf.UINT8,
    "usmallint": Leaf.UINT16,
    "uinteger": Leaf.UINT32,
    "ubigint": Leaf.UINT64,
    "float": Leaf.FLOAT32,
    "double": Leaf.FLOAT64,
    "date": Leaf.DATE,
    "time": Time(),
    "timestamp": Timestamp(),
    "timestamp_ms": Timestamp(Unit.MILLI),
    "timestamp with time zone": Timestamp(utc=True),
    "varchar": Leaf.STRING,
    "blob": Leaf.BINARY,
    "uuid": Leaf.UUID,
}
"""By DuckDBPyType.id."""

_CHOSEN: Mapping[str, ColumnType] = {
    "varchar": Leaf.STRING,
    "blob": Leaf.BINARY,
    "decimal": Decimal(38, 0),
    "json": Leaf.JSON,
    "time": Time(),
    "bigint": Leaf.INT64,
    "timestamp_s": Timestamp(Unit.SECOND),
    "timestamp_ns": Timestamp(Unit.NANO),
    "timetz": Leaf.TIMETZ,
    "interval": Leaf.INTERVAL,
}
_NAMES = {"time with time zone": "timetz"}
PLANAR = "planar"
"""Geometry as DuckDB has it, without a coordinate system."""
Path = tuple[str, ...]


def kind_of(type_: DuckDBPyType) -> str:
    """The name that --type-map has for a type."""
    return _NAMES.get(type_.id, type_.id)


def children_of(type_: DuckDBPyType) -> list[tuple[str, Any]]:
    """What a type is made of: fields, members behind the tag, element, key and value; sizes and digits are numbers."""
    made: list[tuple[str, Any]] = type_.children
    return made


def _members(type_: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """The fields of a struct or the members of a union."""
    return children_of(type_)[1 if type_.id == "union" else 0 :]


def _one(type_: DuckDBPyType, name: str = "child") -> DuckDBPyType:
    found: DuckDBPyType = dict(children_of(type_))[name]
    return found


@dataclass(frozen=True, slots=True)
class Doubt:
    """A level of a column whose values may not fit: `unfit` is true for a row that has one that does not."""

    path: Path
    kind: str
    unfit: str


def doubts(name: str, type_: DuckDBPyType, sql: str) -> Iterator[Doubt]:
    """What has to be read of a column before its type is chosen."""
    return _doubts((name,), type_, sql, 0)


def _doubts(path: Path, type_: DuckDBPyType, sql: str, depth: int) -> Iterator[Doubt]:
    one = f"v{depth}"
    match type_.id:
        case "struct":
            for name, inner in _members(type_):
                yield from _doubts((*path, name), inner, f"struct_extract({sql}, {literal(name)})", depth)
        case "union":
            for name, inner in _members(type_):
                for each in _doubts((*path, name), inner, f"union_extract({sql}, {literal(name)})", depth):
                    yield replace(each, unfit=f"(union_tag({sql}) = {literal(name)} AND {each.unfit})")
        case "list" | "array":
            for each in _doubts((*path, "element"), _one(type_), one, depth + 1):
                yield replace(each, unfit=_any(sql, one, each.unfit))
        case "map":
            for part, side in (("key", "map_keys"), ("value", "map_values")):
                for each in _doubts((*path, part), _one(type_, part), one, depth + 1):
                    yield replace(each, unfit=_any(f"{side}({sql})", one, each.unfit))
        case _:
            mapping = MAPPINGS.get(kind_of(type_))
            if mapping is not None and mapping.fits:
                yield Doubt(path, kind_of(type_), f"({sql} IS NOT NULL AND NOT {mapping.fits.format(sql)})")


def _any(values: str, one: str, condition: str) -> str:
    return f"(len(list_filter({values}, lambda {one}: {condition})) > 0)"


@dataclass(slots=True)
class Mapper:
    """Gives the fields of a table their ids, in DuckLake's order, and their types; gathers what is to be said.

    `unfit` is, by path, how many rows do not fit a type's first choice.
    """

    subject: str
    chosen: Mapping[str, str]
    unfit: Mapping[Path, int]
    last: int = 0
    findings: list[Finding] = field(default_factory=list)

    def column(self, name: str, type_: DuckDBPyType, required: bool = False) -> Field:
        """A column with everything below it."""
        return replace(self._field((name,), type_, True), required=required)

    def _id(self) -> FieldId:
        self.last += 1
        return FieldId(self.last)

    def _field(self, path: Path, type_: DuckDBPyType, top: bool = False) -> Field:
        id_ = self._id()
        return Field(id_, path[-1], self._type(path, type_, top))

    def _type(self, path: Path, type_: DuckDBPyType, top: bool) -> ColumnType:
        kind = kind_of(type_)
        match kind:
            case "varchar" if str(type_) == "JSON":
                return Leaf.JSON
            case "decimal":
                facts = dict(children_of(type_))
                return Decimal(int(facts["precision"]), int(facts["scale"]))
            case "struct":
                return Struct(tuple(self._field((*path, name), inner) for name, inner in _members(type_)))
            case "list":
                return ListOf(self._field((*path, "element"), _one(type_)))
            case "map":
                key = self._field((*path, "key"), _one(type_, "key"))
                return MapOf(replace(key, required=True), self._field((*path, "value"), _one(type_, "value")))
            case "variant" if top:
                return Leaf.VARIANT
            case "geometry" if top:
                if str(type_) != "GEOMETRY":
                    self._say(path, str(type_), _PLAIN)
                return Geo(PLANAR)
        if kind in _LEAVES:
            return _LEAVES[kind]
        if kind not in MAPPINGS:
            raise Blocked(
                f"{self.subject}: column {'.'.join(path)} has type {type_}, which is not known",
                code=Code.TYPE_UNSUPPORTED.text,
                hint="leave the table out with --exclude, or cast the column at the source",
            )
        return self._chosen(path, type_, kind)

    def _chosen(self, path: Path, type_: DuckDBPyType, kind: str) -> ColumnType:
        mapping, asked, unfit = MAPPINGS[kind], self.chosen.get(kind), self.unfit.get(path, 0)
        first = mapping.choices[0].name
        choice = mapping[asked or (mapping.choices[1].name if unfit else first)]
        if asked == first and unfit:
            rows = f"{unfit} row{'s do' if unfit > 1 else ' does'}"
            self.findings.append(
                Finding(
                    Code.TYPE_RANGE,
                    self.subject,
                    f"column {'.'.join(path)}: {rows} not fit --type-map {kind}={asked}, which is {choice.values}",
                    f"leave it out, or choose --type-map {kind}={'|'.join(each.name for each in mapping.choices[1:])}",
                )
            )
        elif choice.code is not None:
            self._say(path, kind, choice)
        if choice.name == "list":
            return ListOf(self._field((*path, "element"), _one(type_)))
        if choice.name == "struct":
            members = _members(type_)
            tag = Field(self._id(), tag_name([name for name, _ in members]), Leaf.STRING)
            return Struct((tag, *(self._field((*path, name), inner) for name, inner in members)))
        return _CHOSEN[choice.name]

    def _say(self, path: Path, kind: str, choice: Choice) -> None:
        if choice.code is not None:
            said = f"column {'.'.join(path)}: {kind} becomes {choice.name}: {choice.values}"
            self.findings.append(Finding(choice.code, self.subject, said))


def tag_name(members: list[str]) -> str:
    """What the field is called that names a union's member."""
    taken, name = {each.casefold() for each in members}, "tag"
    while name in taken:
        name += "_"
    return name
