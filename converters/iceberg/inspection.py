"""What the data files themselves say, where the manifests cannot be trusted alone.

Existence and size of every file; the footer of the first file of each manifest, of every file that a doubt falls on
(another size, a float column that may hide NaN, a partition column that may be missing), and of all files of a
manifest in which one file was a surprise. In a table with a name mapping any file may lack field ids: all are opened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
import pyarrow as pa

from bridge.errors import BridgeError
from bridge.model.files import FileProblem, StatsBatch
from bridge.model.findings import Code, Finding
from bridge.model.layout import PartitionField, Simple
from bridge.model.schema import walk
from bridge.model.table import Table
from bridge.model.types import FieldId
from bridge.ports import ProgressSink
from converters import storage
from converters.iceberg.checks import problem_of
from converters.iceberg.manifests import Listing, partitions
from converters.iceberg.mapped import Mapped, MappedFiles, every_column
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.name_mapping import PROPERTY
from converters.parquet.footer import Footer, read_footers
from converters.parquet.nan import hidden_nan
from converters.parquet.types import misread

__all__ = [
    "Inspection",
    "Remeasured",
    "Suspects",
    "corrected_stats",
    "identity_sources",
    "inspect",
    "nothing_known",
]

_WINDOW = 2_000
_LAST_UPDATED = 2147483539
_SHOWN = 5
_COUNTS = ("size", "values", "nulls", "nans")


@dataclass(frozen=True, slots=True)
class Remeasured:
    """A file whose manifest misstates its size: the real size in bytes, and (size, values, nulls) of each column."""

    size: int
    columns: Mapping[int, tuple[int, int, int | None]]


@dataclass(frozen=True, slots=True)
class Suspects:
    """(file, field) pairs that the manifests leave open: float columns that may hold NaN, partition columns that may
    not be in the file. What a manifest states of a file is asked only for files that were replaced."""

    nan: pl.DataFrame
    unlisted: pl.DataFrame
    stated: Callable[[Sequence[int]], Mapping[int, set[int]]]
    """The columns that the manifests describe, for some entries."""


@dataclass(slots=True)
class Inspection:
    """What was found; footer_sizes holds the footer length of each opened file."""

    problems: list[FileProblem] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    footer_sizes: dict[int, int] = field(default_factory=dict)
    remeasured: dict[int, Remeasured] = field(default_factory=dict)
    mapped: Mapped = field(default_factory=Mapped)


class _Faults:
    """Files by what is wrong with them."""

    def __init__(self) -> None:
        self.by_reason: dict[tuple[Code, str], list[int]] = defaultdict(list)

    def add(self, code: Code, what: str, file: int) -> None:
        self.by_reason[code, what].append(file)


def identity_sources(table: Table) -> dict[int, list[tuple[int, PartitionField]]]:
    """Per spec, the identity fields and their places in the partition record."""
    return {
        spec.id: [(place, each) for place, each in enumerate(spec.fields) if each.transform is Simple.IDENTITY]
        for spec in table.specs.values()
    }


def inspect(
    files: pl.DataFrame, suspects: Suspects, source: IcebergTable, listing: Listing, progress: ProgressSink
) -> Inspection:
    """Look at the Parquet files among `files` (file, path, manifest, spec, size, record_count, end)."""
    table, found, faults = source.table, Inspection(), _Faults()
    known = "|".join(sorted(storage.SCHEMES))
    reachable = pl.col("path").str.contains(rf"^(?i:{known})://") | ~pl.col("path").str.contains(
        r"^[A-Za-z][\w+.-]*://"
    )
    files = all_files = files.filter((pl.col("format") == "parquet") & ~pl.col("encrypted") & reachable)
    real = storage.sizes(files["path"].to_list())
    files = files.with_columns(pl.Series("real", real, dtype=pl.Int64))
    for file in files.filter(pl.col("real").is_null())["file"]:
        faults.add(Code.FILE_MISSING, "not there", file)
    files = files.filter(pl.col("real").is_not_null())
    doubtful = pl.concat([suspects.nan.select("file"), suspects.unlisted.select("file")])["file"].unique()
    first = files.group_by("manifest").agg(pl.col("file").min())["file"]
    opened: set[int] = set()
    surprised: set[int] = set()
    wanted = files.filter(
        pl.col("file").is_in(first.implode())
        | pl.col("file").is_in(doubtful.implode())
        | (pl.col("real") != pl.col("size"))
        | pl.lit(PROPERTY in table.properties)
    )
    replaced = files.filter(pl.col("real") != pl.col("size"))
    stated = suspects.stated(replaced["entry"].to_list())
    by_file = {file: stated[entry] for file, entry in replaced.select("file", "entry").iter_rows()}
    judge = _Judge(source, suspects.nan, by_file, found, faults)
    while len(wanted):
        for window in wanted.iter_slices(_WINDOW):
            footers = read_footers(window["path"].to_list())
            for row, footer in zip(window.rows(named=True), footers, strict=True):
                opened.add(row["file"])
                if judge(row, footer):
                    surprised.add(row["manifest"])
            judge.mapped.settle_window(judge.identity)
            progress.step(f"{table.name}: reading footers", len(opened), None)
        wanted = files.filter(pl.col("manifest").is_in(list(surprised)) & ~pl.col("file").is_in(list(opened)))
    manifest_paths = dict(listing.manifests.select("manifest", "path").iter_rows())
    found.mapped = judge.mapped.settle(lambda each, wanted: partitions(manifest_paths[each], source.path_map, wanted))
    found.findings += found.mapped.findings
    if judge.numbered:
        found.findings.append(
            Finding(
                Code.LINEAGE_NUMBERS,
                str(table.name),
                f"{len(judge.numbered)} of the {len(opened)} files that were opened, from updates or compactions in "
                "format version 3; after ducklake_merge_adjacent_files older snapshots of the lake can miss their rows",
                "before you merge, expire the snapshots that came from the source",
            )
        )
    if found.remeasured:
        paths = files.filter(pl.col("file").is_in(list(found.remeasured)))["path"].to_list()
        found.findings.append(
            Finding(
                Code.SIZE_CORRECTED,
                str(table.name),
                f"{len(paths)} files differ in size from their manifest and hold the same number of rows: "
                + ", ".join(paths[:_SHOWN]),
                files=tuple(paths[:1000]),
                file_count=len(paths),
            )
        )
    for (code, what), numbers in faults.by_reason.items():
        rows = all_files.filter(pl.col("file").is_in(numbers))
        found.problems.append(problem_of(code, table, f"{len(rows)} data files, {what}", rows, _HINTS.get(code, "")))
    return found


_HINTS = {
    Code.FILE_MISSING: "restore the files; a moved table needs --map-prefix OLD=NEW",
    Code.NAN_OUTSIDE_BOUNDS: "PyIceberg and pyarrow write files so: rewrite these with Spark or DuckDB at the source",
    Code.FILE_SIZE: "the file was replaced: restore the one that the table was committed with",
}


class _Judge:
    """Compares one footer with what the table says; remembers what has to be asked of the manifests later."""

    def __init__(
        self,
        source: IcebergTable,
        nan: pl.DataFrame,
        stated: Mapping[int, set[int]],
        found: Inspection,
        faults: _Faults,
    ) -> None:
        self._stated = stated
        self._found = found
        self._faults = faults
        self.identity = identity_sources(source.table)
        self.mapped = MappedFiles(source.table, faults.add)
        self._schema = every_column(source.table)
        self._names = {each.field.id: ".".join(each.path) for each in walk(self._schema.fields)}
        self._nan: dict[int, list[int]] = defaultdict(list)
        for file, id_ in nan.iter_rows():
            self._nan[file].append(id_)
        self.numbered: list[int] = []
        """Files with a column of last-updated sequence numbers."""
        self._surprises = 0

    def __call__(self, row: Mapping[str, object], footer: Footer | BridgeError) -> bool:
        """True when the file is a surprise."""
        file = int(row["file"])  # type: ignore[call-overload]  # a column of integers
        before = self._count()
        if isinstance(footer, BridgeError):
            self._faults.add(Code.FILE_UNREADABLE, "damaged or not Parquet", file)
            return True
        self._found.footer_sizes[file] = footer.footer_size
        if _LAST_UPDATED in footer.all_ids:
            self.numbered.append(file)
        self._content(file, row, footer)
        return self._count() > before

    def _count(self) -> int:
        return sum(map(len, self._faults.by_reason.values())) + self._surprises

    def _content(self, file: int, row: Mapping[str, object], footer: Footer) -> None:
        add = self._faults.add
        if footer.encrypted:
            add(Code.TABLE_ENCRYPTED, "encrypted", file)
            return
        if footer.record_count != row["record_count"]:
            add(Code.FILE_SIZE, "with another number of rows than the manifest says", file)
            return
        spec = int(row["spec"])  # type: ignore[call-overload]  # a column of integers
        if footer.size != row["size"]:
            absent = self._stated.get(file, set()) - footer.all_ids - {each.source for _, each in self.identity[spec]}
            if absent and not self.mapped.needs(footer):
                names = ", ".join(sorted(self._names.get(FieldId(id_), str(id_)) for id_ in absent))
                add(Code.FILE_SIZE, f"replaced, and without the column {names} that the manifest describes", file)
                return
            self._found.remeasured[file] = Remeasured(
                footer.size,
                {each.id: (each.size, each.values, each.nulls) for each in footer.columns if each.id is not None},
            )
        if self.mapped.needs(footer):
            self._surprises += 1
            self.mapped.take(row, footer)
            return
        for line in misread(footer, self._schema):
            add(Code.PHYSICAL_TYPE, line, file)
        for name in hidden_nan(footer, frozenset(self._nan.get(file, ()))):
            add(Code.NAN_OUTSIDE_BOUNDS, f"column {name} holds NaN outside the bounds of its footer", file)
        for place, each in self.identity[spec]:
            if each.source not in footer.all_ids and row["record_count"]:
                self._surprises += 1
                self.mapped.absent(row, place, each)


def nothing_known(files: Sequence[int]) -> pa.Table:
    """Statistics rows that state nothing."""
    columns = {"file": pa.array(files, pa.int64())}
    columns |= {name: pa.nulls(len(files), pa.int64()) for name in _COUNTS}
    return pa.table({**columns, "lower": pa.nulls(len(files), pa.string()), "upper": pa.nulls(len(files), pa.string())})


def corrected_stats(
    column: FieldId, files: Sequence[int], remeasured: Mapping[int, Remeasured]
) -> Iterator[StatsBatch]:
    """The counts that the footers of remeasured files give; their bounds are left out."""
    rows = [(file, *remeasured[file].columns[column]) for file in files if column in remeasured[file].columns]
    if not rows:
        return
    table = nothing_known([row[0] for row in rows])
    for place, name in enumerate(("size", "values", "nulls"), 1):
        values = pa.array([row[place] for row in rows], pa.int64())
        table = table.set_column(table.schema.get_field_index(name), name, values)
    yield StatsBatch(column, table, exact=False)
