"""Files whose columns DuckLake can find by a name mapping only: which mapping each gets, what its columns hold.

They are files that carry no field ids, or not on every level, and files whose partition column has to be taken from
the path. Files of one layout share a mapping. Whatever the manifests say of the columns of a file without ids was
written under the name mapping of that time, so its own footer is believed instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal as Number

from bridge.errors import BridgeError
from bridge.model.files import StatsBatch
from bridge.model.findings import Code, Finding
from bridge.model.layout import PartitionField
from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.schema import Schema, walk
from bridge.model.table import Table
from bridge.model.types import ColumnType, Default, Field, FieldId, Leaf
from converters.iceberg.measured import Measured, StatsSpool
from converters.iceberg.name_mapping import PROPERTY, Layout, Names, layout_of, parse_names
from converters.iceberg.stats import has_exact_bounds, leaf_types
from converters.parquet.bounds import distinct_values, exact_bounds
from converters.parquet.footer import Column, Footer
from converters.parquet.nan import hidden_nan
from converters.parquet.path_value import Unreadable, comparable, path_values, segments
from converters.parquet.shape import Node, read_shapes
from converters.parquet.types import misread

__all__ = ["Mapped", "MappedFiles", "every_column"]

Fault = Callable[[Code, str, int], None]
Partitions = Callable[[int, Sequence[str]], Mapping[str, Mapping[str, object]]]
"""Partition records of some files of a manifest, by path."""


def every_column(table: Table) -> Schema:
    """The current columns, and those of older schemas that are gone since."""
    fields: dict[FieldId, Field] = {each.id: each for each in table.schema.fields}
    for id_ in sorted({commit.schema for commit in table.commits}, reverse=True):
        for each in table.schemas[id_].fields:
            fields.setdefault(each.id, each)
    return Schema(table.schema.id, tuple(fields.values()))


@dataclass(slots=True)
class Mapped:
    """What was settled: mappings, the place of each file's, the files whose statistics come from here, those that take
    a column from their path, by column, and the commits from which files are registered anew."""

    mappings: list[NameMapping] = field(default_factory=list)
    of_file: dict[int, int] = field(default_factory=dict)
    measured: set[int] = field(default_factory=set)
    from_path: dict[FieldId, set[int]] = field(default_factory=lambda: defaultdict(set))
    young: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    spool: StatsSpool | None = None

    def stats(self) -> Iterator[StatsBatch]:
        """Of measured files all columns, of the others those that come from the path."""
        if self.spool is not None:
            yield from self.spool


@dataclass(frozen=True, slots=True)
class _Case:
    """A file and one of its partition columns, as the footer describes it; None: it is not in the file."""

    file: int
    path: str
    record_count: int
    place: int
    key: PartitionField
    column: Column | None


class MappedFiles:
    """Takes in footers, settles at the end, when the partition values are asked for."""

    def __init__(self, table: Table, fault: Fault) -> None:
        self._fault = fault
        self._table = table
        self._schema = every_column(table)
        self._placed = {each.field.id: each for each in walk(self._schema.fields)}
        schemas = [table.schemas[id_] for id_ in sorted(table.schemas)]
        if table.schema in schemas:
            schemas.remove(table.schema)
        schemas.append(table.schema)
        self._types = leaf_types(schemas)
        self._ever: dict[FieldId, list[ColumnType]] = {}
        for schema in schemas:
            for id_, type_ in leaf_types([schema]).items():
                if type_ not in self._ever.setdefault(id_, []):
                    self._ever[id_].append(type_)
        self._variants = {each.id for each in self._schema.fields if each.type is Leaf.VARIANT}
        self._names: Names | None = None
        self._damaged = ""
        if PROPERTY in table.properties:
            try:
                self._names = parse_names(table.properties[PROPERTY])
            except ValueError as error:
                self._damaged = f"and the property {PROPERTY} is not valid: {error}"
        self._layouts: dict[tuple[Node, ...], Layout] = {}
        self._of_file: dict[int, Layout] = {}
        self._cases: dict[int, list[_Case]] = defaultdict(list)
        self._waiting: list[tuple[Mapping[str, object], Footer]] = []
        self._live: dict[int, tuple[int, bool]] = {}
        """Of each file the commit in which it begins, and whether the newest has it."""
        self._found = Mapped()
        self._numbers: dict[NameMapping, int] = {}

    def needs(self, footer: Footer) -> bool:
        """Whether DuckLake would not find the columns by their ids: one level without an id is enough."""
        nested = (column for column in footer.columns if column.ids[0] not in self._variants)
        return not footer.has_ids or any(None in column.ids for column in nested)

    def take(self, row: Mapping[str, object], footer: Footer) -> None:
        """A file that needs a mapping; its shape is read with the others' of the window."""
        self._waiting.append((row, footer))
        self._live[_number(row, "file")] = _number(row, "begin"), row["end"] is None

    def absent(self, row: Mapping[str, object], place: int, key: PartitionField) -> None:
        """A file with ids that lacks a partition column."""
        file = _number(row, "file")
        self._live[file] = _number(row, "begin"), row["end"] is None
        self._cases[_number(row, "manifest")].append(
            _Case(file, str(row["path"]), _number(row, "record_count"), place, key, None)
        )

    def settle_window(self, identity: Mapping[int, Sequence[tuple[int, PartitionField]]]) -> None:
        """Resolve what was taken since the last time."""
        waiting, self._waiting = self._waiting, []
        shapes = read_shapes([footer.path for _, footer in waiting])
        measured = Measured()
        for (row, footer), shape in zip(waiting, shapes, strict=True):
            file = _number(row, "file")
            if isinstance(shape, BridgeError):
                self._fault(Code.FILE_UNREADABLE, "damaged or not Parquet", file)
                continue
            layout = self._layout(shape)
            resolved = _with_ids(footer, layout)
            if self._faulty(file, layout, resolved):
                continue
            self._of_file[file] = layout
            self._found.measured.add(file)
            by_id = {FieldId(column.id): column for column in resolved.columns if column.id in self._types}
            for place, key in identity[_number(row, "spec")] if footer.record_count else ():
                column = by_id.pop(key.source, None)
                self._cases[_number(row, "manifest")].append(
                    _Case(file, footer.path, footer.record_count, place, key, column)
                )
            for id_, column in by_id.items():
                measured.add(file, id_, column, self._types[id_])
        self._keep(measured)

    def _layout(self, shape: tuple[Node, ...]) -> Layout:
        if shape not in self._layouts:
            self._layouts[shape] = layout_of(shape, self._schema, self._names)
        return self._layouts[shape]

    def _faulty(self, file: int, layout: Layout, resolved: Footer) -> bool:
        said = list(layout.faults)
        if self._damaged:
            said.append((Code.NO_FIELD_IDS, self._damaged))
        if not said:
            said += [(Code.PHYSICAL_TYPE, line) for line in misread(resolved, self._schema)]
        for code, text in said:
            self._fault(code, f"without field ids, {text}" if code is Code.NO_FIELD_IDS else text, file)
        if said:
            return True
        floats = {id_ for id_, type_ in self._types.items() if type_ in (Leaf.FLOAT32, Leaf.FLOAT64)}
        for name in hidden_nan(resolved, frozenset(map(int, floats))):
            self._fault(Code.NAN_OUTSIDE_BOUNDS, f"column {name} holds NaN outside the bounds of its footer", file)
        return False

    def settle(self, partitions: Partitions) -> Mapped:
        """Compare the partition columns with the partition values, and give every file its mapping."""
        asked: list[tuple[_Case, object]] = []
        constants = Measured()
        for manifest, cases in self._cases.items():
            stored = partitions(manifest, [case.path for case in cases])
            for case in cases:
                value = list(stored[case.path].values())[case.place]
                if not self._reads_so(case, value):
                    asked.append((case, value))
                elif case.column is not None:
                    constants.add(case.file, case.key.source, case.column, self._types[case.key.source])
        keys: dict[int, list[tuple[FieldId, str]]] = defaultdict(list)
        for (case, value), key in zip(asked, self._path_keys(asked), strict=True):
            source = case.key.source
            if key is None:
                self._refuse(case)
                continue
            keys[case.file].append((source, key))
            self._found.from_path[source].add(case.file)
            constants.constant(case.file, source, case.record_count, self._exact(source, value))
        with_ids = keys.keys() - self._of_file.keys()
        self._by_id({case.file: case.path for case, _ in asked if case.file in with_ids})
        for file, layout in self._of_file.items():
            taken = {id_ for id_, _ in keys.get(file, ())}
            columns = [each for each in layout.columns if each.field not in taken]
            columns += [MappedColumn(key, id_, from_path=True) for id_, key in sorted(keys.get(file, ()))]
            mapping = NameMapping(tuple(columns))
            self._found.of_file[file] = self._numbers.setdefault(mapping, len(self._numbers))
        self._found.mappings = list(self._numbers)
        self._cut_young()
        self._keep(constants)
        return self._found

    def _cut_young(self) -> None:
        """Files that hold a column that the table did not have yet when they began: a name that was dropped and given
        to a new column. Merge and rewrite of DuckDB 1.5.5 read a file with the columns of the snapshot in which it
        begins and would lose that one, so the file has to begin anew with the column."""
        commits = self._table.commits
        of_schema = {id_: _ids(schema) for id_, schema in self._table.schemas.items()}
        had = [of_schema[commit.schema] for commit in commits] + [_ids(self._table.schema)]
        files: dict[tuple[int, int], list[int]] = defaultdict(list)
        for file, number in self._found.of_file.items():
            begin, live = self._live[file]
            if live:
                files[number, begin].append(file)
        for (number, begin), members in files.items():
            held = frozenset(_mapped_ids(self._found.mappings[number].columns))
            first = len(commits)
            later: frozenset[FieldId] = frozenset()
            for index in range(len(commits), begin - 1, -1):
                later |= held & had[index]
                if later <= had[index]:
                    first = index
            if first > begin:
                names = ", ".join(sorted(".".join(self._placed[id_].path) for id_ in later - had[begin]))
                self._found.young.update(dict.fromkeys(members, first))
                said = f"{len(members)} data files are registered again where column {names}, which they hold, begins"
                self._found.findings.append(Finding(Code.FILE_TWICE, str(self._table.name), said))

    def _by_id(self, paths: Mapping[int, str]) -> None:
        """Files with ids that take a column from their path need all others by name."""
        for file, shape in zip(paths, read_shapes([*paths.values()]), strict=True):
            if isinstance(shape, BridgeError):
                self._fault(Code.FILE_UNREADABLE, "damaged or not Parquet", file)
                continue
            layout = self._layout(shape)
            for code, text in layout.faults:
                self._fault(code, text, file)
            self._of_file[file] = layout

    def _reads_so(self, case: _Case, value: object) -> bool:
        """Whether the file gives the partition's value as it is: by its content, or by lacking the column."""
        placed = self._placed.get(case.key.source)
        if placed is None:
            return True
        if case.column is None:
            return _same(value, placed.field.initial_default)
        wanted = comparable(value, placed.field.type)
        if case.column.nulls == case.column.values:
            return wanted is None
        bounds = exact_bounds(case.column, placed.field.type)
        if bounds is not None and case.column.nulls is not None:
            digits = comparable(_digits(value, placed.field.type), placed.field.type)
            return not case.column.nulls and bounds[0] == bounds[1] == digits
        if case.column.repeated:
            return False
        try:
            held = distinct_values(case.path, case.column)
        except BridgeError:
            self._fault(Code.FILE_UNREADABLE, "damaged or not Parquet", case.file)
            return True
        return [comparable(each, placed.field.type) for each in held] == [wanted]

    def _path_keys(self, asked: Sequence[tuple[_Case, object]]) -> list[str | None]:
        """For each case the key of the path's segment that DuckDB reads as the value; None when there is none."""
        found: list[str | None] = [None] * len(asked)
        by_column: dict[FieldId, list[tuple[int, str, str, object]]] = defaultdict(list)
        for number, (case, value) in enumerate(asked):
            placed = self._placed[case.key.source]
            if placed.parent is None and placed.is_leaf:
                for key, text in segments(case.path).items():
                    by_column[case.key.source].append((number, key, text, value))
        for id_, texts in by_column.items():
            read = path_values([text for _, _, text, _ in texts], self._ever.get(id_, []))
            type_ = self._placed[id_].field.type
            names = {self._placed[id_].field.name.casefold()}
            for (number, key, _, value), got in zip(texts, read, strict=True):
                if got is Unreadable or got != comparable(value, type_):
                    continue
                # more than one segment may fit: the one that is called as the partition or the column says so
                own = key.casefold() in names or key == asked[number][0].key.name
                if found[number] is None or own:
                    found[number] = key
        return found

    def _refuse(self, case: _Case) -> None:
        placed = self._placed[case.key.source]
        name = ".".join(placed.path)
        if case.column is None:
            self._fault(Code.PARTITION_COLUMN_ABSENT, f"partition column {name} is not in the file", case.file)
        else:
            self._fault(
                Code.PARTITION_VALUE, f"partition column {name} holds other values than the partition", case.file
            )

    def _exact(self, id_: FieldId, value: object) -> tuple[bool, int | None]:
        """(whether it is NULL, the whole number that it is to `exact_bounds`)."""
        type_ = self._placed[id_].field.type
        digits = comparable(_digits(value, type_), type_)
        known = has_exact_bounds(type_)
        return value is None, int(digits) if known and isinstance(digits, int) else None

    def _keep(self, measured: Measured) -> None:
        for id_, table in measured.tables(self._types):
            if self._found.spool is None:
                self._found.spool = StatsSpool()
            self._found.spool.add(id_, table, has_exact_bounds(self._types[id_]))


def _ids(schema: Schema) -> frozenset[FieldId]:
    return frozenset(each.field.id for each in walk(schema.fields))


def _mapped_ids(columns: Sequence[MappedColumn]) -> Iterator[FieldId]:
    for each in columns:
        yield each.field
        yield from _mapped_ids(each.children)


def _number(row: Mapping[str, object], name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


def _digits(value: object, type_: ColumnType) -> object:
    """A decimal as the whole number that is stored for it."""
    if isinstance(value, Number):
        scale = getattr(type_, "scale", 0)
        return int(value.scaleb(scale))
    return value


def _same(value: object, default: Default | None) -> bool:
    if value is None or default is None:
        return value is None and default is None
    if isinstance(value, bool):
        return default == str(value).lower()
    return isinstance(value, int | str) and default == str(value)


def _with_ids(footer: Footer, layout: Layout) -> Footer:
    """The footer as if the file carried the ids that it is given."""
    columns = tuple(
        replace(column, ids=ids, standard=True) for column, ids in zip(footer.columns, layout.leaves, strict=True)
    )
    return replace(footer, columns=columns)
