"""What Iceberg has to say to a table: types, names, defaults, and the format version that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from bridge.model.findings import Code, Finding
from bridge.model.options import Options
from bridge.model.schema import Placed, walk
from bridge.model.table import Table, TableName
from bridge.model.types import ColumnType, FieldId, Leaf
from bridge.ports import TableWrite
from converters.iceberg.type_matrix import READERS, Verdict, Way, choose, own_version

__all__ = ["needs_rows", "review_table", "version_for"]


def _leaves(table: Table) -> Iterator[Placed]:
    schemas = [*table.schemas.values(), table.schema]
    seen: set[tuple[FieldId, ColumnType]] = set()
    for schema in schemas:
        for each in walk(schema.fields):
            if each.is_leaf and (each.field.id, each.field.type) not in seen:
                seen.add((each.field.id, each.field.type))
                yield each


def _readers(options: Options) -> tuple[str, ...]:
    return options.readers or READERS


def needs_rows(table: Table, options: Options) -> bool:
    """Whether Spark has to read the files row by row: promotion left files behind that its vectorized reader fails on,
    or a type does so by itself."""
    if "spark" not in _readers(options):
        return False
    types: dict[FieldId, set[ColumnType]] = {}
    for each in _leaves(table):
        row = choose(each.field.type)
        types.setdefault(each.field.id, set()).add(each.field.type if row is None else row.iceberg)
        if row is not None and row.way(("spark",)) is Way.ROW_BY_ROW:
            return True
    return any({Leaf.INT32, Leaf.INT64} <= each for each in types.values())


def review_table(table: Table, name: TableName, options: Options) -> list[Finding]:
    """Findings on the definition."""
    subject, found = str(table.name), list[Finding]()
    for level in (*name.namespace, name.name):
        if not level or "/" in level or level in (".", ".."):
            found.append(Finding(Code.NAME_UNSUPPORTED, subject, f"{level!r} cannot be a directory", "use --as"))
    found += _types(table, options)
    if options.format_version != 3:
        written = [
            ".".join(each.path)
            for each in walk(table.schema.fields)
            if each.field.write_default is not None and _version_of(table) < 3
        ]
        if written:
            said = f"the defaults of {', '.join(written[:5])} are for readers of version 3"
            found.append(Finding(Code.DEFAULT_LOST, subject, said, "--format-version 3 keeps them"))
    return found


def _types(table: Table, options: Options) -> Iterator[Finding]:
    subject, readers = str(table.name), _readers(options)
    for each in _leaves(table):
        type_, path = each.field.type, ".".join(each.path)
        row = choose(type_)
        version = own_version(type_)
        if version is None:
            yield Finding(Code.TYPE_UNSUPPORTED, subject, f"{path}: Iceberg has no type for {type_}")
            continue
        if options.format_version == 2 and version > 2:
            yield Finding(
                Code.TYPE_UNSUPPORTED, subject, f"{path}: {type_} needs version 3", "leave --format-version out"
            )
        if row is None:
            continue
        if row.iceberg != type_:
            yield Finding(Code.TYPE_MAPPED, subject, f"{path}: {_word(type_)} becomes {_word(row.iceberg)}")
        way = row.way(readers)
        if way is Way.REWRITE:
            told = [
                f"{reader}: {verdict.value}"
                for reader, verdict in zip(READERS, row.verdicts, strict=True)
                if reader in readers and verdict in (Verdict.FAILS, Verdict.WRONG)
            ]
            yield Finding(
                Code.PHYSICAL_TYPE,
                subject,
                f"{path}: {row.physical} as {_word(row.iceberg)} ({'; '.join(told)})",
                "--readers names those that have to read it",
                on_files=True,
            )
        lacking = [
            reader
            for reader, verdict in zip(READERS, row.verdicts, strict=True)
            if reader in readers and verdict is Verdict.UNKNOWN
        ]
        if lacking:
            said = f"{path}: {', '.join(lacking)} cannot read a table with {_word(row.iceberg)}"
            yield Finding(Code.TYPE_READERS, subject, said)


def _word(type_: ColumnType) -> str:
    from converters.iceberg.types import NAMES

    if type_ in NAMES:
        return NAMES[type_]
    return str(type_.value) if isinstance(type_, Leaf) else str(type_)


def _version_of(table: Table) -> int:
    return max((own_version(each.field.type) or 2 for each in _leaves(table)), default=2)


def version_for(write: TableWrite, options: Options, held: Mapping[str, Any] | None) -> int:
    """2, unless something needs 3: it was asked for, the target is 3, a type, or files without a column that has a
    default for them."""
    before = int((held or {}).get("format-version", 2))
    asked = options.format_version or 2
    needed = max(asked, before, _version_of(write.table))
    if needed < 3 and _lacking_defaults(write):
        return 3
    return needed


def _lacking_defaults(write: TableWrite) -> bool:
    """Whether a carried file does not hold a column whose initial default is not NULL."""
    fields: Sequence[FieldId] = [
        each.field.id for each in _leaves(write.table) if each.field.initial_default is not None
    ]
    if not fields:
        return False
    files = write.files.table
    carried = pc.fill_null(pc.greater(files.column("end"), write.first), True)
    carried = pc.and_(carried, pc.greater(files.column("record_count"), 0)).to_numpy()
    holding = {field: np.zeros(files.num_rows, dtype=bool) for field in fields}
    for batch in write.files.stats():
        if batch.field in holding:
            holding[batch.field][batch.table.column("file").to_numpy()] = True
    return any((carried & ~each).any() for each in holding.values())
