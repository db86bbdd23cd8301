"""What Iceberg has to say to a table: types, names, defaults, and the format version that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.errors import BridgeError
from bridge.model.files import FileProblem, Files
from bridge.model.findings import Code, Finding
from bridge.model.layout import UnknownTransform
from bridge.model.mapping import MappedColumn
from bridge.model.options import Options
from bridge.model.schema import Placed, walk
from bridge.model.table import Table, TableName
from bridge.model.types import ColumnType, Field, FieldId, Leaf, ListOf, MapOf, Struct, Time, Timestamp, Unit
from converters import storage
from converters.iceberg.publish.type_changes import type_problems
from converters.iceberg.type_matrix import READERS, Verdict, Way, choose, own_version
from converters.iceberg.types import schema_of, word

__all__ = ["needs_rows", "review_files", "review_table", "unread", "version_for"]


def _leaves(table: Table) -> Iterator[Placed]:
    schemas = [*table.schemas.values(), table.schema]
    seen: set[tuple[FieldId, ColumnType]] = set()
    for schema in schemas:
        for each in walk(schema.fields):
            if each.is_leaf and (each.field.id, each.field.type) not in seen:
                seen.add((each.field.id, each.field.type))
                yield each


def _had(table: Table) -> dict[FieldId, set[ColumnType]]:
    """The types in Iceberg that each leaf ever had."""
    types: dict[FieldId, set[ColumnType]] = {}
    for each in _leaves(table):
        row = choose(each.field.type)
        types.setdefault(each.field.id, set()).add(each.field.type if row is None else row.iceberg)
    return types


def _readers(options: Options) -> tuple[str, ...]:
    return options.readers or READERS


def needs_rows(table: Table, files: Files, options: Options) -> bool:
    """Whether Spark has to read the files row by row: promotion left files behind, or may have, that its vectorized
    reader fails on, or a type does so by itself."""
    if "spark" not in _readers(options):
        return False
    rows = (choose(each.field.type) for each in _leaves(table))
    if any(row is not None and row.way(("spark",)) is Way.ROW_BY_ROW for row in rows):
        return True
    types = _had(table)
    promoted = {each for each, known in types.items() if {Leaf.INT32, Leaf.INT64} <= known}
    return bool(promoted) or any(Leaf.INT64 in types.get(each, ()) for each in files.predating)


def review_table(table: Table, name: TableName, options: Options) -> list[Finding]:
    """Findings on the definition."""
    subject, found = str(table.name), list[Finding]()
    for level in (*name.namespace, name.name):
        if not level or "/" in level or level.startswith("."):  # those are passed over where tables are looked for
            found.append(Finding(Code.NAME_UNSUPPORTED, subject, f"{level!r} cannot be a directory", "use --as"))
    found += _types(table, options)
    found += _emptied(table, options)
    found += _widened(table, options)
    found += _retyped(table)
    found += _layout(table)
    return found


def _layout(table: Table) -> Iterator[Finding]:
    subject = str(table.name)
    for key in table.sort_order.fields:
        if isinstance(key.transform, UnknownTransform):
            said = f"the sort key {key.transform} is an expression: it and what follows it is left out"
            yield Finding(Code.SORT_ORDER, subject, said)
            break
    for field in table.spec.fields:
        if isinstance(field.transform, UnknownTransform):
            yield Finding(Code.PARTITION_LAYOUT, subject, f"the partition key {field.name} is {field.transform}")


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
        wide = type_ in (Leaf.INT128, Leaf.UINT128)
        if row.iceberg != type_ and not wide:
            yield Finding(Code.TYPE_MAPPED, subject, f"{path}: {word(type_)} becomes {word(row.iceberg)}")
        if wide:
            said = (
                f"{path}: 128 bits become double, as DuckDB writes them to Parquet: digits beyond the 15th may be lost"
            )
            yield Finding(Code.TYPE_NARROWED, subject, said)
        way = row.way(readers)
        if way is Way.REWRITE:
            told = [
                f"{reader}: {verdict.value}"
                for reader, verdict in zip(READERS, row.verdicts, strict=True)
                if reader in readers and verdict in (Verdict.COLUMNS, Verdict.FAILS, Verdict.WRONG)
            ]
            yield Finding(
                Code.PHYSICAL_TYPE,
                subject,
                f"{path}: {row.physical} as {word(row.iceberg)} ({'; '.join(told)})",
                "--readers names those that have to read it",
                on_files=True,
            )
        lacking = [
            reader
            for reader, verdict in zip(READERS, row.verdicts, strict=True)
            if reader in readers and verdict is Verdict.UNKNOWN
        ]
        if lacking:
            said = f"{path}: {', '.join(lacking)} cannot read a table with {word(row.iceberg)}"
            yield Finding(Code.TYPE_READERS, subject, said)


def _emptied(table: Table, options: Options) -> Iterator[Finding]:
    """Lists and maps of structs: PyIceberg 0.12 makes them anew from their offsets, without what says which are NULL
    (ArrowProjectionVisitor)."""
    if "pyiceberg" not in _readers(options):
        return
    for each in walk(table.schema.fields):
        match each.field.type:
            case ListOf(Field(type=Struct())) | MapOf(_, Field(type=Struct())):
                said = f"{'.'.join(each.path)}: PyIceberg 0.12 reads NULL lists and maps of structs as empty ones"
                yield Finding(Code.TYPE_READERS, str(table.name), said)


def _widened(table: Table, options: Options) -> Iterator[Finding]:
    """PyIceberg 0.12 turns a comparison that every value of a file's narrower type passes into one that NULL passes,
    too."""
    if "pyiceberg" not in _readers(options):
        return
    types = _had(table)
    for each in walk(table.schema.fields):
        known = types.get(each.field.id, set())
        for narrow, wide in ((Leaf.INT32, Leaf.INT64), (Leaf.FLOAT32, Leaf.FLOAT64)):
            if {narrow, wide} <= known and not each.field.required:
                said = f"PyIceberg 0.12 finds NULL, too, when it compares with what no {word(narrow)} can be"
                since = f"in files from before it became {word(wide)}"
                yield Finding(Code.TYPE_READERS, str(table.name), f"{'.'.join(each.path)}: {said}, {since}")


def unread(metadata: Mapping[str, Any]) -> str:
    """The types in a table's schemas that PyIceberg does not know, which then opens none of it."""
    types = {
        each.field.type
        for document in metadata.get("schemas") or ()
        for each in walk(schema_of(document).fields)
        if each.is_leaf
    }
    rows = [row for type_ in types if (row := choose(type_)) is not None]
    place = READERS.index("pyiceberg")
    return ", ".join(sorted({word(row.iceberg) for row in rows if row.verdicts[place] is Verdict.UNKNOWN}))


_NO_VARIANT = {
    *(Leaf.TIMETZ, Leaf.INTERVAL, Leaf.UINT64, Time(Unit.NANO)),
    *(Timestamp(unit, utc=False) for unit in (Unit.SECOND, Unit.MILLI)),
}
"""DuckDB 1.5.5 writes these as no VARIANT to Parquet; of UBIGINT the values beyond BIGINT."""


def _retyped(table: Table) -> Iterator[Finding]:
    """Columns that were made JSON or VARIANT of what cannot be written as that once and for all."""
    newest = {each.field.id: each for each in walk(table.schema.fields) if each.field.type in (Leaf.JSON, Leaf.VARIANT)}
    for each in _leaves(table):
        now, was = newest.get(each.field.id), each.field.type
        if now is None:
            continue
        if now.field.type is Leaf.JSON and isinstance(was, Timestamp) and was.utc:
            why = "what the lake shows of older values follows the session's time zone"
        elif now.field.type is Leaf.JSON and was in (Leaf.TIMETZ, Leaf.INTERVAL):
            why = "older values are texts in Iceberg already, which JSON would quote"
        elif now.field.type is Leaf.VARIANT and was in _NO_VARIANT:
            why = "older values cannot be written as that"
        else:
            continue
        said = f"{'.'.join(now.path)} was {word(was)} and is {word(now.field.type)} now: {why}"
        hint = "write the rows anew in a new column, or leave the table out with --exclude"
        yield Finding(Code.TYPE_UNSUPPORTED, str(table.name), said, hint)


def _version_of(table: Table) -> int:
    return max((own_version(each.field.type) or 2 for each in _leaves(table)), default=2)


def version_for(
    table: Table, files: Files, first: int, options: Options, held: Mapping[str, Any] | None
) -> Literal[2, 3]:
    """2, unless something needs 3: it was asked for, the target is 3, a type, or files without a column that has a
    default for them."""
    before = int((held or {}).get("format-version", 2))
    needed = max(options.format_version or 2, before, _version_of(table))
    if needed >= 3 or _lacking_defaults(table, files, first):
        return 3
    return 2


def _lacking_defaults(table: Table, files: Files, first: int) -> bool:
    """Whether a carried file does not hold a column whose initial default is not NULL."""
    fields = [each.field.id for each in _leaves(table) if each.field.initial_default is not None]
    if not fields:
        return False
    rows = files.table
    carried = pc.fill_null(pc.greater(rows.column("end"), first), True)
    carried = pc.and_(carried, pc.greater(rows.column("record_count"), 0)).to_numpy()
    holding = {field: np.zeros(rows.num_rows, dtype=bool) for field in fields}
    for batch in files.stats():
        if batch.field in holding:
            holding[batch.field][batch.table.column("file").to_numpy()] = True
    return any((carried & ~each).any() for each in holding.values())


def review_files(
    table: Table, files: Files, options: Options, held: Mapping[str, Any] | None, fixed: Mapping[str, Any] | None
) -> list[FileProblem]:
    """What follows from the files together; `held` is the target's metadata, and `fixed` when its snapshots cannot be
    replaced."""
    found: list[FileProblem] = []
    if version_for(table, files, 0, options, held) < 3:
        found += [FileProblem(each, None) for each in _lost_defaults(table)]
    elif options.format_version == 2:
        said = "older files lack a column that has a default for them, which only version 3 can say"
        finding = Finding(Code.TYPE_UNSUPPORTED, str(table.name), said, "leave --format-version out")
        found.append(FileProblem(finding, None))
    elif _lacking_defaults(table, files, 0) and {"spark", "pyiceberg"} & set(_readers(options)):
        said = "rows of older files have a default; Spark 3.5 and PyIceberg 0.12 read it, but filters pass over it"
        found.append(FileProblem(Finding(Code.DEFAULT_READERS, str(table.name), said), None))
    if files.numbered and version_for(table, files, 0, options, held) >= 3:
        numbered = np.isin(np.arange(files.table.num_rows), files.numbered)
        said = "they hold snapshot numbers of the lake where version 3 has last-updated sequence numbers"
        found += _mapped(table, files, pa.chunked_array([pa.array(numbered)]), Code.PHYSICAL_TYPE, said)
    if "pyiceberg" in _readers(options):
        found += _unnamed(table, files)
    return [*found, *type_problems(table, files, fixed), *mapping_problems(table, files)]


def _lost_defaults(table: Table) -> Iterator[Finding]:
    columns = [".".join(each.path) for each in walk(table.schema.fields) if each.field.write_default is not None]
    if columns:
        said = f"the defaults of {', '.join(columns[:5])} are for readers of version 3"
        yield Finding(Code.DEFAULT_LOST, str(table.name), said, "--format-version 3 keeps them")


def mapping_problems(table: Table, files: Files) -> Iterator[FileProblem]:
    """Files whose names mean other columns than the same names do in other files: Iceberg has one mapping for all."""
    meant: dict[tuple[FieldId | None, str], FieldId] = {}
    wrong: list[int] = []
    for number, mapping in enumerate(files.mappings):
        own = dict(_named(mapping.columns, None))
        if any(meant.get(key, field) != field for key, field in own.items()):
            wrong.append(number)
        else:
            meant |= own
    column = files.table.column("mapping")
    names = {name for above, name in meant if above is None}
    unmapped = np.zeros(files.table.num_rows, dtype=bool)
    for number, mapping in enumerate(files.mappings):
        lacking = names - {each.name for each in mapping.columns}
        if lacking and number not in wrong:
            rows = np.flatnonzero(pc.fill_null(pc.equal(column, number), False).to_numpy())
            unmapped[rows[_holding(files.table.column("path").take(pa.array(rows)).to_pylist(), lacking)]] = True
    yield from _mapped(
        table, files, pa.chunked_array([pa.array(unmapped)]), Code.NO_FIELD_IDS,
        "they hold a column that the table does not take from them, under a name that others take one from",
    )  # fmt: skip
    yield from _mapped(
        table, files, pc.is_in(column, pa.array(wrong, pa.int32())), Code.NO_FIELD_IDS,
        "a name in them is another column in others, and Iceberg has one name mapping for all files",
    )  # fmt: skip
    from_path = [
        number
        for number, mapping in enumerate(files.mappings)
        if number not in wrong and any(each.from_path for each in mapping.columns)
    ]
    yield from _mapped(
        table, files, pc.is_in(column, pa.array(from_path, pa.int32())), Code.PARTITION_COLUMN_ABSENT,
        "a column is in their path alone, and DuckDB's reader of Iceberg finds NULL there",
    )  # fmt: skip


def _unnamed(table: Table, files: Files) -> Iterator[FileProblem]:
    """Files that hold a column which the name mapping does not tell of: PyIceberg 0.12 refuses to read them."""
    column = files.table.column("mapping")
    rows = np.flatnonzero(pc.is_valid(column).to_numpy())
    facts = files.table.select(["path", "mapping"]).take(pa.array(rows)).to_pylist()

    def unnamed(file: Mapping[str, Any]) -> bool:
        path, columns = file["path"], files.mappings[file["mapping"]].columns
        try:
            with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
                return _more(pq.read_schema(source), columns)
        except BridgeError:
            return False  # said where the file is looked at

    chosen = np.zeros(files.table.num_rows, dtype=bool)
    chosen[rows] = storage.parallel(unnamed, facts)
    said = "they hold a column that the table does not take, and PyIceberg reads no file with a column that has no id"
    yield from _mapped(table, files, pa.chunked_array([pa.array(chosen)]), Code.NO_FIELD_IDS, said)


def _more(fields: Iterable[pa.Field], columns: Sequence[MappedColumn]) -> bool:
    """Whether a level of a file, or a struct in it, has a field that a mapping does not tell of."""
    known = {each.name: each.children for each in columns if not each.from_path}
    return any(
        each.name not in known or (pa.types.is_struct(each.type) and _more(each.type, known[each.name]))
        for each in fields
    )


def _holding(paths: Sequence[str], names: set[str]) -> np.ndarray:
    """Which files hold a column of one of these names."""

    def holds(path: str) -> bool:
        with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
            return not names.isdisjoint(pq.read_schema(source).names)

    return np.array(storage.parallel(holds, paths), dtype=bool)


def _named(
    columns: Sequence[MappedColumn], above: FieldId | None
) -> Iterator[tuple[tuple[FieldId | None, str], FieldId]]:
    for each in columns:
        yield (above, each.name), each.field
        yield from _named(each.children, each.field)


def _mapped(table: Table, files: Files, chosen: pa.ChunkedArray, code: Code, said: str) -> Iterator[FileProblem]:
    rows = np.flatnonzero(pc.fill_null(chosen, False).to_numpy())
    if not len(rows):
        return
    taken = files.table.select(["path", "end"]).take(pa.array(rows))
    ends, paths = taken.column("end"), taken.column("path").to_pylist()
    last = None if ends.null_count else pc.max(ends).as_py()
    finding = Finding(code, str(table.name), f"{len(paths)} data files: {said}", "", tuple(paths[:1000]), len(paths))
    yield FileProblem(finding, last, tuple(rows.tolist()))
