"""The files of a lake's table over its history: when each is live, which rows are not there, what forbids it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import BridgeError
from bridge.model.files import DATA_FILES, DELETED_ROWS, FileProblem, Files, StatsBatch
from bridge.model.findings import Code, Finding
from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.options import Options
from bridge.model.paths import apply_map, is_absolute
from bridge.model.rewrite import DataFile, Equality, Name
from bridge.model.table import Table
from bridge.model.types import ColumnType, FieldId
from bridge.ports import ProgressSink
from converters import storage
from converters.deletes.windows import settle
from converters.ducklake.catalog.file_rows import MEASURES, FileRows, InlinedGroup, read_rows, stat_frames
from converters.ducklake.catalog.history import Definition, LakeState
from converters.ducklake.catalog.session import Session
from converters.ducklake.definition import History, leaf_type
from converters.ducklake.extensions import connect
from converters.ducklake.lately import is_whole, later_than
from converters.ducklake.source_checks import INLINED, missing, registered_twice, rewritten, uncounted, without_ids
from converters.ducklake.source_deletes import Index, absences
from converters.ducklake.source_stats import StatSpool, typed
from converters.parquet.path_value import segments

__all__ = ["ENCRYPTED", "INLINED", "LakeFiles", "read_files"]

ENCRYPTED = "ducklake-encrypted"
"""The format of Parquet files under DuckDB's encryption."""

_HELD = (
    *("file", "data_file_id", "record_count", "own", "begin_snapshot", "mapping", "format", "encryption_key"),
    *("size", "first_row_id"),
)
"""What is held of each file beside its row of DATA_FILES, which has the path."""
_BATCH = 50_000
"""Files whose statistics of a column are in memory at once."""

Within = Callable[[Callable[[Session], Any]], Any]


class LakeFiles:
    """DATA_FILES rows, DELETED_ROWS, problems and findings; statistics are fetched and spooled on request."""

    def __init__(
        self,
        files: pl.DataFrame,
        deleted: pl.DataFrame,
        mappings: Sequence[NameMapping],
        problems: Sequence[FileProblem],
        findings: Sequence[Finding],
        columns: Columns,
        fetch: Callable[[StatSpool], None],
        is_trimmed: bool = False,
        since: int | None = None,
        rest: int | None = 0,
    ) -> None:
        self.table: pa.Table = files.select(DATA_FILES.names).to_arrow().cast(DATA_FILES)
        self.deletes: pa.Table = deleted.to_arrow().cast(DELETED_ROWS)
        self.mappings = tuple(mappings)
        self.since = since
        self.rest = rest
        self.problems = tuple(problems)
        self.findings = tuple(findings)
        # what wrote rows of several snapshots gave each row its snapshot's number
        merged = files.filter(pl.col("partial_max").is_not_null() & pl.col("partial_file_info").is_null())
        self.numbered = tuple(merged["file"].to_list())
        self.partitions: Mapping[int, tuple[str | None, ...]] = {}
        self._files = files.select(_HELD)
        self._columns = columns
        self._fetch = fetch
        self._spool: StatSpool | None = None
        self._held: dict[str, frozenset[int]] = {}
        self._is_trimmed = is_trimmed

    @property
    def predating(self) -> Mapping[FieldId, tuple[int, ...]]:
        """Files that the catalog measured a column of, and that are older than its type; of a table with all its
        snapshots the schemas tell as much."""
        found: dict[FieldId, tuple[int, ...]] = {}
        for field in self._columns.types if self._is_trimmed else ():
            older = self._files.filter(pl.col("begin_snapshot") < self._columns.typed[field])
            if len(older) and (listed := self._spooled().column(int(field))) is not None:
                rows = older.filter(pl.col("data_file_id").is_in(listed["data_file_id"].implode()))["file"].to_list()
                found |= {field: tuple(rows)} if rows else {}
        return found

    def _spooled(self) -> StatSpool:
        if self._spool is None:
            self._spool = StatSpool()
            self._fetch(self._spool)
        return self._spool

    def stats(self) -> Iterator[StatsBatch]:
        """Column by column. A file without a row in the catalog has nothing known, unless it cannot hold the column:
        it is older than that, or its name mapping does not tell of it."""
        spool = self._spooled()
        mapped = [self._columns.mapped(each) for each in self.mappings]
        with closing(connect()) as connection:
            yield from self._by_column(self._files, mapped, spool, connection)

    def _by_column(
        self,
        files: pl.DataFrame,
        mapped: Sequence[set[FieldId]],
        spool: StatSpool,
        connection: duckdb.DuckDBPyConnection,
    ) -> Iterator[StatsBatch]:
        for field, type_ in self._columns.types.items():
            listed = spool.column(int(field))
            without = [number for number, ids in enumerate(mapped) if field not in ids]
            may = pl.col("begin_snapshot") >= self._columns.since[field]
            if without:
                may &= ~pl.col("mapping").is_in(without).fill_null(False)
            for part in files.iter_slices(_BATCH):
                if listed is None:
                    nothing = (pl.lit(None, dtype=dtype).alias(name) for name, dtype in MEASURES.items())
                    rows = part.filter(may).with_columns(*nothing)
                else:
                    joined = part.join(listed, on="data_file_id", how="left", nulls_equal=False, maintain_order="left")
                    told = pl.col("data_file_id").is_in(listed["data_file_id"].implode())
                    rows = joined.filter(may | told.fill_null(False))
                if field in self._columns.defaulted:
                    # a rewritten file is younger than what it holds, and columns come in the transaction of a file
                    without = self._without(field, rows.filter(pl.col("value_count").is_null()))
                    rows = rows.filter(~pl.col("file").is_in(without))
                yield from typed(field, type_, field in self._columns.repeated, rows, connection)

    def _without(self, field: FieldId, rows: pl.DataFrame) -> list[int]:
        """The files that do not hold a column of which the catalog says nothing, by their own word."""
        plain = (pl.col("format") == "parquet") & pl.col("mapping").is_null() & pl.col("encryption_key").is_null()
        asked = rows.filter(plain & (pl.col("record_count") > 0))
        stated = self._paths(asked["file"].to_list())
        paths = [path for path in stated if path not in self._held]
        self._held |= dict(zip(paths, storage.parallel(_field_ids, paths), strict=True))
        held = [self._held[path] for path in stated]
        return [file for file, ids in zip(asked["file"], held, strict=True) if ids and field not in ids]

    def _paths(self, rows: Sequence[int]) -> list[str]:
        found: list[str] = self.table.column("path").take(pa.array(rows, pa.int64())).to_pylist()
        return found

    def sources(self, rows: Sequence[int]) -> Sequence[DataFile]:
        """How files, by row number, are to be read by an engine that rewrites them."""
        chosen = self._files.filter(pl.col("file").is_in(list(rows)))
        chosen = chosen.with_columns(pl.Series("path", self._paths(chosen["file"].to_list()), pl.String))
        made: dict[int, DataFile] = {}
        for row in chosen.rows(named=True):
            mapping = None if row["mapping"] is None else self.mappings[row["mapping"]]
            kind = ENCRYPTED if row["encryption_key"] else row["format"]
            made[row["file"]] = DataFile(
                row["path"],
                kind,
                row["record_count"],
                row["size"] or None,
                {} if mapping is None else _from_path(mapping, row["path"]),
                None if mapping is None else _names(mapping.columns),
                row["first_row_id"],
            )
        return [made[row] for row in rows]

    def equality(self, first: int) -> Equality | None:
        """A lake has no equality deletes."""
        return None

    def resolved(self, found: pa.Table) -> Files:
        """There is nothing to resolve."""
        return self


class Columns:
    """The leaf columns that a table ever had: newest type and from which snapshot on, whether in a list or map, first
    snapshot."""

    def __init__(self, found: Definition) -> None:
        newest = {each.id: each for each in sorted(found.columns, key=lambda each: each.begin)}
        containers = {each.parent for each in newest.values()}
        self.types: dict[FieldId, ColumnType] = {}
        self.repeated: set[FieldId] = set()
        self.since: dict[FieldId, int] = {}
        self.defaulted = {FieldId(each.id) for each in found.columns if each.initial_default is not None}
        for each in found.columns:
            id_ = FieldId(each.id)
            self.since[id_] = min(each.begin, self.since.get(id_, each.begin))
        self.typed: dict[FieldId, int] = {}
        before: dict[int, str] = {}
        for each in sorted(found.columns, key=lambda each: each.begin):
            if before.get(each.id) != each.type:
                self.typed[FieldId(each.id)] = each.begin
                before[each.id] = each.type
        for each in newest.values():
            if each.id in containers or each.type.casefold() in ("struct", "list", "map"):
                continue
            id_ = FieldId(each.id)
            self.types[id_] = leaf_type(each.type)
            above = each.parent
            while above is not None and above in newest:
                if newest[above].type.casefold() in ("list", "map"):
                    self.repeated.add(id_)
                above = newest[above].parent

    def mapped(self, mapping: NameMapping) -> set[FieldId]:
        """The fields of every level that a mapping tells of."""

        def below(columns: Sequence[MappedColumn]) -> Iterator[FieldId]:
            for each in columns:
                yield each.field
                yield from below(each.children)

        return set(below(mapping.columns))


def _field_ids(path: str) -> frozenset[int]:
    """The field ids of every level in a file; none when it cannot be read, which is said elsewhere."""

    def below(fields: Iterable[pa.Field]) -> Iterator[int]:
        for each in fields:
            if (id_ := (each.metadata or {}).get(b"PARQUET:field_id")) is not None:
                yield int(id_)
            yield from below(each.type.field(place) for place in range(each.type.num_fields))

    try:
        with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
            return frozenset(below(pq.read_schema(source)))
    except BridgeError:
        return frozenset()


def _names(columns: Sequence[MappedColumn]) -> tuple[Name, ...]:
    """A mapping as engines take it: the child of a list is called `element` there."""
    return tuple(Name(int(each.field), (each.name,), _below(each)) for each in columns if not each.from_path)


def _below(column: MappedColumn) -> tuple[Name, ...]:
    alone = len(column.children) == 1 and column.children[0].name in ("list", "element", "array")
    return tuple(
        Name(int(each.field), ("element",) if alone else (each.name,), _below(each)) for each in column.children
    )


def _from_path(mapping: NameMapping, path: str) -> Mapping[int, str | bytes | None]:
    """The values of partition columns that stand in a file's path."""
    found = segments(path)
    return {int(each.field): _hive(found.get(each.name)) for each in mapping.columns if each.from_path}


def _hive(text: str | None) -> str | None:
    return None if text in (None, "__HIVE_DEFAULT_PARTITION__") else unquote(text)


def read_files(
    opened: Session,
    state: LakeState,
    found: Definition,
    history: History,
    table: Table,
    base: str,
    options: Options,
    within: Within,
    progress: ProgressSink,
    since: int | None = None,
) -> Files:
    """Everything that the catalog says, what delete files and merged files say, and whether the files are there; for a
    target that holds commit `since` only that of files that concern it, where these can be told.

    `base` is the directory that stored relative paths are taken from.
    """
    table_id = found.versions[0].id
    progress.step(f"{table.name}: reading the catalog")
    later = None if since is None or options.at is not None else later_than(state, found, history, table_id, since)
    rows = read_rows(opened, table_id, state.head, later)
    if later is not None and is_whole(rows, found, later):
        later, rows = None, read_rows(opened, table_id, state.head)
    place = _Place(table.location, base or os.getcwd(), options)
    numbers = {id_: number for number, id_ in enumerate(sorted(rows.mappings))}
    data, rows = _data_files(rows, place, numbers), replace(rows, data=rows.data.clear())
    files = _live(pl.concat([data, _groups(rows.inlined, table)], how="diagonal"), history)
    del data  # it is large
    deletes = rows.deletes.with_columns(place.of("path", "path_is_relative"))
    progress.step(f"{table.name}: reading {len(deletes)} delete files")
    gone = absences(files, deletes, rows.noted, history, str(table.name))
    pieces, deleted = settle(files, pl.concat([gone.hits, *_ended(rows.inlined, files, history)]))
    problems = [*gone.problems, *rewritten(pieces, table), *registered_twice(pieces, table), *uncounted(pieces, table)]
    findings: list[Finding] = []
    if options.check_files == "all":
        progress.step(f"{table.name}: looking at {len(files)} data files")
        problems += missing(pieces, table)
        problems += without_ids(pieces, found, table)
    else:
        said = f"{len(files)} data files are taken as the catalog says"
        findings.append(Finding(Code.FILES_UNCHECKED, str(table.name), said))

    concerned = pieces["data_file_id"].drop_nulls().unique() if later is not None else None

    def fetch(spool: StatSpool) -> None:
        def work(session: Session) -> None:
            for frame in stat_frames(session, table_id, later, concerned):
                spool.add(frame)

        if concerned is None or len(concerned):
            within(work)

    mappings = [rows.mappings[id_] for id_ in sorted(rows.mappings)]
    known = since if later is not None else None
    born = min(each.begin for each in found.versions)
    trimmed = history.snapshots[0].id > born
    columns = Columns(found)
    return LakeFiles(pieces, deleted, mappings, problems, findings, columns, fetch, trimmed, known, rows.rest)


class _Place:
    """Where stored paths lead."""

    def __init__(self, folder: str, base: str, options: Options) -> None:
        self._folder = folder
        self._base = base
        self._map = options.path_map

    def of(self, path: str, relative: str) -> pl.Expr:
        """A column of stored paths as absolute ones."""
        below = pl.lit(self._folder) + pl.col(path)
        other = pl.col(path).map_elements(self._absolute, return_dtype=pl.String)
        return pl.when(pl.col(relative).fill_null(False)).then(below).otherwise(other).alias(path)

    def _absolute(self, stored: str) -> str:
        mapped = apply_map(stored, self._map)
        return mapped if is_absolute(mapped) else os.path.join(self._base, mapped)


def _data_files(rows: FileRows, place: _Place, numbers: Mapping[int, int]) -> pl.DataFrame:
    return rows.data.with_columns(
        place.of("path", "path_is_relative"),
        pl.lit("parquet").alias("format"),
        pl.col("file_size_bytes").fill_null(0).alias("size"),
        pl.col("record_count").is_null().alias("uncounted"),
        pl.col("record_count").fill_null(0),
        pl.col("partition_id").fill_null(0).cast(pl.Int32).alias("spec"),
        pl.col("row_id_start").alias("first_row_id"),
        pl.col("mapping_id").replace_strict(numbers, default=None, return_dtype=pl.Int32).alias("mapping"),
        (pl.col("path_is_relative").fill_null(False) & pl.col("mapping_id").is_null()).alias("own"),
        pl.when(pl.col("encryption_key") != "").then(pl.col("encryption_key")).alias("encryption_key"),
        pl.lit(None, dtype=pl.Int64).alias("group"),
    ).drop("path_is_relative", "file_format", "file_size_bytes", "partition_id", "row_id_start", "mapping_id")


def _groups(groups: Sequence[InlinedGroup], table: Table) -> pl.DataFrame:
    """A row for each group of rows that lie in the catalog, in the place of a file."""
    return pl.DataFrame(
        {
            "path": [f"{table.metadata}#{each.name}" for each in groups],
            "begin_snapshot": [each.begin for each in groups],
            "end_snapshot": [None if each.ends.null_count() else each.ends.max() for each in groups],
            "record_count": [len(each.ends) for each in groups],
            "first_row_id": [each.first_row_id for each in groups],
            "group": list(range(len(groups))),
        },
        schema={
            "path": pl.String,
            "begin_snapshot": pl.Int64,
            "end_snapshot": pl.Int64,
            "record_count": pl.Int64,
            "first_row_id": pl.Int64,
            "group": pl.Int64,
        },
    ).with_columns(
        pl.lit(INLINED).alias("format"),
        pl.lit(0, dtype=pl.Int64).alias("size"),
        pl.lit(0, dtype=pl.Int32).alias("spec"),
        pl.lit(False).alias("own"),
    )


def _live(files: pl.DataFrame, history: History) -> pl.DataFrame:
    """The files that some commit sees, with their intervals, numbered in a stable order."""
    index = Index(history)
    count = len(history.snapshots)
    spans = files.with_columns(index.of("begin_snapshot").alias("begin"), index.of("end_snapshot").alias("end"))
    spans = spans.with_columns(
        pl.when(pl.col("end") < count).then(pl.col("end")).alias("end"), pl.lit(None, dtype=pl.Int64).alias("sequence")
    )
    seen = spans.filter((pl.col("begin") < count) & (pl.col("end").is_null() | (pl.col("end") > pl.col("begin"))))
    inlined = pl.when(pl.col("data_file_id").is_null()).then(pl.col("path"))  # keys are copied, and paths are long
    keys = ("begin", "file_order", "begin_snapshot", "data_file_id", inlined)
    ordered = seen.sort(*keys, nulls_last=True, maintain_order=True).drop("end_snapshot", "file_order")
    return ordered.with_row_index("file").with_columns(pl.col("file").cast(pl.Int64))


def _ended(groups: Sequence[InlinedGroup], files: pl.DataFrame, history: History) -> Iterator[pl.DataFrame]:
    """The rows of groups that were deleted, as HITS."""
    index, count = Index(history), len(history.snapshots)
    for row in files.filter(pl.col("group").is_not_null()).select("file", "group", "begin", "end").rows(named=True):
        ends = groups[row["group"]].ends
        rows = pl.DataFrame({"at": ends}).with_row_index("position").drop_nulls("at")
        rows = rows.select(
            pl.lit(row["file"], dtype=pl.Int64).alias("file"),
            pl.col("position").cast(pl.Int64),
            pl.max_horizontal(index.of("at"), pl.lit(row["begin"], dtype=pl.Int64)).alias("begin"),
            pl.lit(row["end"], dtype=pl.Int64).alias("end"),
        )
        yield rows.filter(pl.col("begin") < (count if row["end"] is None else row["end"]))
