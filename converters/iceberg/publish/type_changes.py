"""Columns whose type changed: which files hold another type than the newest, and schemas that agree with the files.

A field id has one type at a snapshot, and every file there must hold it or one that Iceberg promotes to it
(specification, "Schema Evolution"). A lake changes types in more ways than that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.errors import BridgeError
from bridge.model.files import FileProblem, Files
from bridge.model.findings import Code, Finding
from bridge.model.schema import Schema, walk
from bridge.model.table import Table
from bridge.model.types import (
    ColumnType,
    Decimal,
    Field,
    FieldId,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Time,
    Timestamp,
    Unit,
)
from converters import storage
from converters.iceberg.type_matrix import stored
from converters.iceberg.types import schema_of, word

__all__ = ["agreeing", "outgrown_types", "type_problems"]

_BITS = {Leaf.INT8: 8, Leaf.UINT8: 9, Leaf.INT16: 16, Leaf.UINT16: 17, Leaf.INT32: 32, Leaf.UINT32: 33}
_DIGITS = {
    Leaf.INT8: 3, Leaf.UINT8: 3, Leaf.INT16: 5, Leaf.UINT16: 5,
    Leaf.INT32: 10, Leaf.UINT32: 10, Leaf.INT64: 19, Leaf.UINT64: 20,
}  # fmt: skip


def _promotes(old: ColumnType, new: ColumnType) -> bool:
    """Whether Iceberg reads files of one type under another."""
    match old, new:
        case (Leaf.INT32, Leaf.INT64) | (Leaf.FLOAT32, Leaf.FLOAT64):
            return True
        case Decimal(precision, scale), Decimal(wider, same):
            return scale == same and precision <= wider
        case _:
            return old == new


def _says_the_same(old: ColumnType, new: ColumnType) -> bool:
    """Whether each value of a lake's type is the same value under another, so that older snapshots may show that."""
    if _promotes(stored(old), stored(new)):
        return True
    match old, new:
        case Leaf(), Decimal(precision, scale):
            return old in _DIGITS and _DIGITS[old] <= precision - scale
        case Decimal(precision, scale), Decimal(wider, longer):
            return scale <= longer and precision - scale <= wider - longer
        case Leaf.DATE, Timestamp(unit, False):
            return unit is not Unit.NANO
        case Leaf(), (Leaf.FLOAT32 | Leaf.FLOAT64):
            return _BITS.get(old, 64) <= (24 if new is Leaf.FLOAT32 else 53)
        case Leaf(), Leaf():
            return old in _DIGITS and new in _DIGITS and _DIGITS[old] < _DIGITS[new]
        case _:
            return False


def _versions(table: Table) -> dict[FieldId, list[tuple[int, Field, str]]]:
    """For each leaf whose Iceberg type is not always the same: (the commit from which on, the field, its path), oldest
    first."""
    found: dict[FieldId, list[tuple[int, Field, str]]] = {}
    seen = -1
    for index, commit in enumerate(table.commits):
        schema = table.schemas[commit.schema]
        if schema.id == seen:
            continue
        seen = schema.id
        for each in walk(schema.fields):
            if each.is_leaf:
                known = found.setdefault(each.field.id, [])
                if not known or known[-1][1].type != each.field.type:
                    known.append((index, each.field, ".".join(each.path)))
    return {
        id_: versions for id_, versions in found.items() if len({str(stored(each.type)) for _, each, _ in versions}) > 1
    }


def _rewritten(versions: Sequence[tuple[int, Field, str]]) -> bool:
    newest = stored(versions[-1][1].type)
    return not all(_promotes(stored(each.type), newest) for _, each, _ in versions)


def type_problems(table: Table, files: Files, held: Mapping[str, Any] | None) -> Iterator[FileProblem]:
    """Files that hold a column in a type that Iceberg does not promote to its newest one, and snapshots whose values
    that one does not have."""
    changed = {id_: each for id_, each in _versions(table).items() if _rewritten(each)}
    newest = {id_: stored(each[-1][1].type) for id_, each in changed.items()}
    if files.table.num_rows:
        yield from _published_otherwise(table, held)
    subject, paths_of = str(table.name), {id_: each[-1][2] for id_, each in changed.items()}
    older = {row for row, held_ in enumerate(_hold(files.table, newest)) if not held_} if changed else set[int]()
    for each in walk(table.schema.fields):
        before = np.array(files.predating.get(each.field.id, ()) if each.is_leaf else (), dtype=np.int64)
        if len(before):
            held_ = _hold(files.table.take(pa.array(before)), {each.field.id: stored(each.field.type)})
            if not all(held_):
                older |= {int(row) for row, fits in zip(before, held_, strict=True) if not fits}
                paths_of[each.field.id] = ".".join(each.path)
    rows = np.array(sorted(older), dtype=np.int64)
    if len(rows):
        columns = ", ".join(paths_of.values())
        taken = files.table.select(["path", "end"]).take(pa.array(rows))
        ends, paths = taken.column("end"), taken.column("path").to_pylist()
        last = None if ends.null_count else pc.max(ends).as_py()
        said = f"{len(paths)} data files hold an older type of {columns}, which Iceberg does not read as the newest"
        finding = Finding(Code.PHYSICAL_TYPE, subject, said, "", tuple(paths[:1000]), len(paths))
        yield FileProblem(finding, last, tuple(rows.tolist()))
    for versions in changed.values():
        type_ = versions[-1][1].type
        for (_, field, _), (until, _, path) in reversed(list(pairwise(versions))):
            if not _says_the_same(field.type, type_):
                said = f"{path} had a type until then whose values its newest type does not keep"
                yield FileProblem(Finding(Code.PHYSICAL_TYPE, subject, said), until)
                break


def _published_otherwise(table: Table, held: Mapping[str, Any] | None) -> Iterator[FileProblem]:
    """What a target whose snapshots stay as they are cannot take up."""
    if others := outgrown_types(table, held):
        said = f"{'; '.join(others)}: Iceberg has no promotion for that, and the published snapshots stay as they are"
        hint = "drop the published table and publish it anew, or publish it under another name with --as"
        yield FileProblem(Finding(Code.PHYSICAL_TYPE, str(table.name), said, hint), None)


def outgrown_types(table: Table, held: Mapping[str, Any] | None) -> list[str]:
    """Columns whose published files have a type that Iceberg does not promote to the one that they would get now."""
    before = _held_types(held)
    found = []
    for each in walk(table.schema.fields):
        if each.is_leaf:
            now = stored(each.field.type)
            then = before.get(each.field.id, now)
            if not _promotes(then, now):
                found.append(f"{'.'.join(each.path)} was {word(then)} and is {word(now)} now")
    return found


def _held_types(held: Mapping[str, Any] | None) -> dict[FieldId, ColumnType]:
    for document in (held or {}).get("schemas") or ():
        if held is not None and document["schema-id"] == held.get("current-schema-id"):
            return {each.field.id: each.field.type for each in walk(schema_of(document).fields) if each.is_leaf}
    return {}


def _hold(table: pa.Table, newest: Mapping[FieldId, ColumnType]) -> list[bool]:
    """Which files hold these columns in these types, or not at all; what cannot be told by ids does not."""

    def holds(row: dict[str, Any]) -> bool:
        if row["format"] != "parquet":
            return True  # no reader of Iceberg takes it as it is
        if row["mapping"] is not None:
            return False
        try:
            with storage.open_input(row["path"], "data file") as source, storage.reading(row["path"], "data file"):
                found = dict(_by_id(pq.read_schema(source)))
        except BridgeError:
            return False
        return all(_is(found[id_], type_) for id_, type_ in newest.items() if id_ in found)

    return storage.parallel(holds, table.select(["path", "format", "mapping"]).to_pylist())


def _by_id(fields: Sequence[pa.Field] | pa.Schema) -> Iterator[tuple[FieldId, pa.DataType]]:
    for each in fields:
        id_ = (each.metadata or {}).get(b"PARQUET:field_id")
        if id_ is not None:
            yield FieldId(int(id_)), each.type
        yield from _by_id([each.type.field(place) for place in range(each.type.num_fields)])


def _is(found: pa.DataType, type_: ColumnType) -> bool:
    """Whether Iceberg reads what a file holds as a type."""
    kinds = pa.types
    match type_:
        case Leaf.INT32 | Leaf.INT64:
            return bool(kinds.is_integer(found))
        case Leaf.FLOAT64:
            return bool(kinds.is_float32(found) or kinds.is_float64(found))
        case Leaf.FLOAT32:
            return bool(kinds.is_float32(found))
        case Decimal(precision, scale):
            return bool(kinds.is_decimal(found) and found.scale == scale and found.precision <= precision)
        case Timestamp(unit, utc):
            nanos = kinds.is_timestamp(found) and found.unit == "ns"
            return bool(kinds.is_timestamp(found) and (found.tz is not None) == utc and nanos == (unit is Unit.NANO))
        case Leaf.BOOLEAN:
            return bool(kinds.is_boolean(found))
        case Leaf.DATE:
            return bool(kinds.is_date32(found))
        case Leaf.BINARY:
            return bool(kinds.is_binary(found) or kinds.is_large_binary(found))
        case Time(Unit.MICRO):
            return bool(kinds.is_time64(found) and found.unit == "us")
        case Leaf.UUID:
            stored_as = found.storage_type if isinstance(found, pa.BaseExtensionType) else found
            return bool(kinds.is_fixed_size_binary(stored_as) and stored_as.byte_width == 16)
        case Leaf.STRING:
            stored_as = found.storage_type if isinstance(found, pa.BaseExtensionType) else found
            return bool(kinds.is_string(stored_as) or kinds.is_large_string(stored_as))
        case _:
            return False


def agreeing(table: Table, rewritten: bool) -> Table:
    """The table with the newest type in older schemas too, where files of older snapshots hold that: those that were
    rewritten do, whatever the reason."""
    newest = {id_: each[-1][1] for id_, each in _versions(table).items() if rewritten or _rewritten(each)}
    if not newest:
        return table

    def schema(each: Schema) -> Schema:
        return replace(each, fields=tuple(_typed(field, newest) for field in each.fields))

    return replace(
        table, schemas={id_: schema(each) for id_, each in table.schemas.items()}, schema=schema(table.schema)
    )


def _typed(field: Field, newest: Mapping[FieldId, Field]) -> Field:
    if (known := newest.get(field.id)) is not None and known.type != field.type:
        return replace(field, type=known.type, initial_default=known.initial_default, write_default=known.write_default)
    match field.type:
        case Struct(fields):
            return replace(field, type=Struct(tuple(_typed(each, newest) for each in fields)))
        case ListOf(element):
            return replace(field, type=ListOf(_typed(element, newest)))
        case MapOf(key, value):
            return replace(field, type=MapOf(_typed(key, newest), _typed(value, newest)))
        case _:
            return field
