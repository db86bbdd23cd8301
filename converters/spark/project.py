"""Batches of a file as batches of the table: columns found by field id or name mapping at every level, converted,
and filled in where the file lacks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from bridge.errors import Blocked, Unreachable
from bridge.model.types import ColumnType, Default, Expression, Field, ListOf, MapOf, NestedDefault, Struct
from converters.parquet import quiet
from converters.parquet.sql import arrow_type, duckdb_type
from converters.spark.casts import Mismatch, cast, check
from converters.spark.plan import DataFile, Name

__all__ = ["Projection", "field_id", "projection"]

_ID_KEYS = (b"PARQUET:field_id", b"iceberg.id")

_Column = Callable[[pa.Array], pa.Array]
"""What a file's column becomes; of a column that is not in the file the argument only gives the length."""


def field_id(field: pa.Field) -> int | None:
    """The field id that a file's column carries."""
    for key in _ID_KEYS:
        stored = (field.metadata or {}).get(key)
        if stored is not None and int(stored) >= 0:
            return int(stored)
    return None


@dataclass(frozen=True, slots=True)
class Projection:
    """`needed` are the top-level columns to read; `apply` makes a batch of the table's columns from them."""

    schema: pa.Schema
    needed: tuple[str, ...]
    _columns: tuple[tuple[str, _Column | None, pa.Scalar | None], ...]
    _path: str

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        made = []
        for (source, column, constant), wanted in zip(self._columns, self.schema, strict=True):
            if column is None:
                made.append(_repeated(constant, wanted.type, batch.num_rows))
                continue
            try:
                made.append(column(batch.column(batch.schema.get_field_index(source))))
            except Mismatch as error:
                raise Blocked(
                    f"{self._path}: column {wanted.name} cannot be read: {error}", code="type-unsupported"
                ) from error
        return pa.RecordBatch.from_arrays(made, schema=self.schema)


def projection(file: DataFile, stored: pa.Schema, fields: tuple[Field, ...]) -> Projection:
    """How a file's columns become the table's; Blocked when one holds what the table's type cannot."""
    places = _Places(file, stored)
    columns: list[tuple[str, _Column | None, pa.Scalar | None]] = []
    needed: list[str] = []
    for field in fields:
        if int(field.id) in file.constants:
            columns.append(("", None, _constant(field, file.constants[int(field.id)])))
            continue
        found = places.find(field, list(stored), file.names or ())
        if found is None:
            columns.append(("", None, _missing(field)))
            continue
        source, names = found
        try:
            columns.append((source.name, _column(field, source, names, places), None))
        except Mismatch as error:
            raise Blocked(f"{file.path}: column {field.name}: {error}", code="type-unsupported") from error
        if stored.get_field_index(source.name) < 0:
            raise Unreachable(f"data file {file.path} holds two columns called {source.name}")
        if source.name not in needed:
            needed.append(source.name)
    schema = pa.schema([pa.field(each.name, arrow_type(each.type)) for each in fields])
    return Projection(schema, tuple(needed), tuple(columns), file.path)


class _Places:
    """Finds a field among the columns of one level: by id when the file carries ids at all, else by its names."""

    def __init__(self, file: DataFile, stored: pa.Schema) -> None:
        self.by_id = any(_has_ids(each) for each in stored)
        if not self.by_id and file.names is None and len(stored):
            raise Blocked(f"{file.path} has no field ids and there is no name mapping", code="no-field-ids")

    def find(
        self, field: Field, columns: Sequence[pa.Field], names: Iterable[Name]
    ) -> tuple[pa.Field, tuple[Name, ...]] | None:
        if self.by_id:
            return next(((each, ()) for each in columns if field_id(each) == field.id), None)
        node = next((each for each in names if each.id == field.id), None)
        if node is None:
            return None
        return next(((each, node.below) for each in columns if each.name in node.names), None)

    def level(self, field: Field, column: pa.Field, role: str, names: Iterable[Name]) -> tuple[Name, ...]:
        """The mapping below an element, key or value, which is there by its place; an id that is not the field's
        is another column's."""
        if self.by_id:
            if field_id(column) not in (field.id, None):
                raise Mismatch(f"its {role} has field id {field_id(column)}, not {field.id}")
            return ()
        return next((each.below for each in names if role in each.names), ())


def _has_ids(field: pa.Field) -> bool:
    if field_id(field) is not None:
        return True
    type_ = field.type
    return (
        any(_has_ids(type_.field(place)) for place in range(type_.num_fields)) if pa.types.is_nested(type_) else False
    )


def _column(field: Field, source: pa.Field, names: tuple[Name, ...], places: _Places) -> _Column:
    stored = source.type
    match field.type:
        case Struct(fields):
            if not pa.types.is_struct(stored):
                raise Mismatch(f"the file holds {stored}, the table has a struct")
            return _struct(fields, stored, names, places)
        case ListOf(element):
            if not (pa.types.is_list(stored) or pa.types.is_large_list(stored) or pa.types.is_fixed_size_list(stored)):
                raise Mismatch(f"the file holds {stored}, the table has a list")
            below = places.level(element, stored.value_field, "element", names)
            return _list(_column(element, stored.value_field, below, places), field.type)
        case MapOf(key, value):
            if not pa.types.is_map(stored):
                raise Mismatch(f"the file holds {stored}, the table has a map")
            keys = _column(key, stored.key_field, places.level(key, stored.key_field, "key", names), places)
            below = places.level(value, stored.item_field, "value", names)
            return _map(keys, _column(value, stored.item_field, below, places), field.type)
        case leaf:
            check(stored, leaf)
            return lambda values: cast(values, leaf)


def _struct(fields: tuple[Field, ...], stored: pa.DataType, names: tuple[Name, ...], places: _Places) -> _Column:
    siblings = [stored.field(place) for place in range(stored.num_fields)]
    parts: list[tuple[int, _Column]] = []
    for field in fields:
        found = places.find(field, siblings, names)
        if found is None:
            value, type_ = _missing(field), arrow_type(field.type)
            parts.append((-1, lambda above, value=value, type_=type_: _repeated(value, type_, len(above))))  # type: ignore[misc]  # bound now
        else:
            source, below = found
            parts.append((siblings.index(source), _column(field, source, below, places)))
    levels = [pa.field(each.name, arrow_type(each.type)) for each in fields]

    def convert(values: pa.Array) -> pa.Array:
        below = [part(values if place < 0 else values.field(place)) for place, part in parts]
        return pa.StructArray.from_arrays(below, fields=levels, mask=values.is_null())

    return convert


def _span(values: pa.Array) -> tuple[pa.Array, int, int]:
    """Offsets from zero of a list or map, and the part of its values that they cover; without entries under NULL."""
    offsets = values.offsets
    first = offsets[0].as_py() if len(offsets) else 0
    last = offsets[-1].as_py() if len(offsets) else 0
    return pc.subtract(offsets, pa.scalar(first, offsets.type)).cast(pa.int32()), first, last - first


def _list(element: _Column, type_: ListOf) -> _Column:
    wanted = arrow_type(type_)

    def convert(values: pa.Array) -> pa.Array:
        if pa.types.is_fixed_size_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        offsets, first, count = _span(values)
        inner = element(values.values.slice(first, count))
        return pa.ListArray.from_arrays(offsets, inner, type=wanted, mask=values.is_null())

    return convert


def _map(key: _Column, value: _Column, type_: MapOf) -> _Column:
    wanted = arrow_type(type_)

    def convert(values: pa.Array) -> pa.Array:
        offsets, first, count = _span(values)
        keys, items = key(values.keys.slice(first, count)), value(values.items.slice(first, count))
        return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=values.is_null())

    return convert


def _repeated(value: pa.Scalar | None, type_: pa.DataType, length: int) -> pa.Array:
    if value is None:
        return pa.nulls(length, type_)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.repeat(value, length))
    return pa.repeat(value, length)


def _missing(field: Field) -> pa.Scalar | None:
    """The value of a field in a file that lacks it: its initial default."""
    return _constant(field, field.initial_default)


def _constant(field: Field, text: Default | None) -> pa.Scalar | None:
    """A value from its text, as DuckDB reads it (a lake's own defaults are read so too)."""
    if text is None:
        return None
    if isinstance(text, NestedDefault | Expression):
        raise Blocked(f"column {field.name}: the default {text.text} cannot be filled in", code="nested-default")
    if isinstance(text, bytes):
        return pa.scalar(text, pa.binary())
    wanted = arrow_type(field.type)
    try:
        made = cast(_values(text, field.type).column(0).chunk(0), field.type)
        return (made.storage if isinstance(wanted, pa.BaseExtensionType) else made)[0]
    except (duckdb.Error, pa.ArrowException) as error:
        what = str(error).splitlines()[0]
        raise Blocked(
            f"column {field.name}: {text!r} is not a value of its type: {what}", code="type-unsupported"
        ) from error


def _values(text: str, type_: ColumnType) -> pa.Table:
    with quiet.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(f"SELECT CAST(? AS {duckdb_type(type_)}) AS v", [text]).to_arrow_table()
