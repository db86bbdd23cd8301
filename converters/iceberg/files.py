"""The files of an Iceberg table over its history: when each is live, what its columns hold, what forbids it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa

from bridge.errors import BridgeError, Expired
from bridge.model.files import DATA_FILES, DELETED_ROWS, FileProblem, Files, Rearranged, StatsBatch
from bridge.model.findings import Code, Finding
from bridge.model.rewrite import DataFile, Equality
from bridge.model.table import Table
from bridge.model.types import ColumnType, FieldId, Leaf
from bridge.ports import Held, ProgressSink
from converters.deletes.windows import cut, islands
from converters.iceberg import checks, inspection, reach, recent
from converters.iceberg.deletes import apply, delete_intervals, stored
from converters.iceberg.manifests import STATS_MAPS, Listing, entries, list_manifests
from converters.iceberg.mapped import Mapped
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.rewriting import Rewriting
from converters.iceberg.stats import decode, has_exact_bounds, leaf_types
from converters.storage.scratch import scratch

__all__ = ["IcebergFiles", "read_files"]

_CHUNK = 20_000
_NO_FILES = pl.DataFrame(schema={"path": pl.String, "begin": pl.Int64})
_CORE = (
    "entry",
    "manifest",
    "position",
    "content",
    "path",
    "format",
    "record_count",
    "size",
    "spec",
    "sequence",
    "first_row_id",
    "encrypted",
    "referenced_data_file",
    "content_offset",
    "content_size",
    "equality_ids",
)


class IcebergFiles:
    """DATA_FILES rows, DELETED_ROWS, problems and findings; statistics are spooled to disk in batches."""

    def __init__(
        self,
        table: pa.Table,
        deletes: pa.Table,
        rows: pl.DataFrame,
        problems: Sequence[FileProblem],
        findings: Sequence[Finding],
        spool: _Spool,
        absent_until: Mapping[FieldId, int],
        remeasured: Mapping[int, inspection.Remeasured],
        mapped: Mapped,
        rewriting: Rewriting,
        since: int | None,
    ) -> None:
        self.table = table
        self._rewriting = rewriting
        self.deletes = deletes
        self.partitions: Mapping[int, tuple[str | None, ...]] = {}
        self.mappings = tuple(mapped.mappings)
        self.since = since
        self.rest = 0 if since is None else None
        self._mapped = mapped
        self.problems = tuple(problems)
        self.numbered: tuple[int, ...] = ()
        self.predating: Mapping[FieldId, tuple[int, ...]] = {}
        self.findings = tuple(findings)
        self._rows = rows
        self._spool = spool
        self._absent_until = absent_until
        self._remeasured = remeasured

    def stats(self) -> Iterator[StatsBatch]:
        """Column by column, chunk by chunk. A column that a manifest does not list may still be in the file: it gets
        a row of NULLs, unless the column did not exist yet when the file was added."""
        for low, high, parts in self._spool.chunks():
            rows = self._rows.filter(pl.col("entry").is_between(low, high - 1)).sort("file")
            rows = rows.filter(~pl.col("file").is_in(list(self._mapped.measured)))
            corrected = rows.filter(pl.col("file").is_in(list(self._remeasured)))
            plain = rows.filter(~pl.col("file").is_in(list(self._remeasured)))
            every = plain
            for field, type_ in self._spool.types.items():
                listed = parts(field)
                held = pl.col("begin") >= self._absent_until.get(field, 0)
                elsewhere = list(self._mapped.from_path.get(field, ()))
                plain = every.filter(~pl.col("file").is_in(elsewhere)) if elsewhere else every
                if listed is not None:
                    mine = plain.filter(held | pl.col("entry").is_in(listed["entry"].implode()))
                    if mine["entry"].equals(listed["entry"]):
                        joined = listed.select(mine["file"], pl.all().exclude("entry"))
                    else:
                        pairs = mine.select("file", "entry")
                        joined = pairs.join(listed, on="entry", how="left").sort("file").drop("entry")
                    if len(joined):
                        yield StatsBatch(field, joined.to_arrow(), has_exact_bounds(type_))
                elif len(mine := plain.filter(held)):
                    yield StatsBatch(field, inspection.nothing_known(mine["file"].sort().to_list()), exact=False)
                if len(again := corrected.filter(~pl.col("file").is_in(elsewhere))):
                    yield from inspection.corrected_stats(field, again["file"].to_list(), self._remeasured)
        yield from self._mapped.stats()

    def sources(self, rows: Sequence[int]) -> Sequence[DataFile]:
        """How files, by row number, are to be read by an engine that rewrites them."""
        return self._rewriting.sources(rows)

    def equality(self, first: int) -> Equality | None:
        """The equality deletes that apply at commit `first` or later, None when there are none."""
        return self._rewriting.equality(first)

    def resolved(self, found: pa.Table) -> Files:
        """The files with more deleted rows (RESOLVED)."""
        files, deleted = self._rewriting.settled(found)
        return _rearranged(self, files, deleted, self._mapped.young)


class _Spool:
    """Decoded statistics on disk, one file a chunk and column, so that memory is bounded by a chunk."""

    def __init__(self, types: Mapping[FieldId, ColumnType]) -> None:
        self.types = types
        self._directory = Path(tempfile.mkdtemp(dir=scratch()))
        self._bounds: list[tuple[int, int]] = []
        self._clean = weakref.finalize(self, shutil.rmtree, self._directory, True)

    def add(self, frame: pl.DataFrame) -> None:
        number = len(self._bounds)
        entry = frame["entry"]
        self._bounds.append((int(entry[0]), int(entry[-1]) + 1))
        for field, table in decode(frame, self.types):
            with (
                pa.OSFile(str(self._name(number, field)), "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as writer,
            ):
                writer.write_table(table)

    def _name(self, number: int, field: FieldId) -> Path:
        return self._directory / f"{number}-{field}.arrow"

    def chunks(self) -> Iterator[tuple[int, int, Callable[[FieldId], pl.DataFrame | None]]]:
        for number, (low, high) in enumerate(self._bounds):
            yield low, high, partial(self.read, number)

    def stated(self, entries: Sequence[int]) -> dict[int, set[int]]:
        """The columns that the manifests describe, for a few entries."""
        found: dict[int, set[int]] = {entry: set() for entry in entries}
        for low, high, parts in self.chunks():
            here = [entry for entry in entries if low <= entry < high]
            for field in self.types if here else ():
                listed = parts(field)
                if listed is not None:
                    for entry in listed.filter(pl.col("entry").is_in(here))["entry"]:
                        found[entry].add(int(field))
        return found

    def every(self, field: FieldId) -> Iterator[pl.DataFrame]:
        """What is known of a column, in parts."""
        for _, _, parts in self.chunks():
            listed = parts(field)
            if listed is not None:
                yield listed

    def read(self, number: int, field: FieldId) -> pl.DataFrame | None:
        path = self._name(number, field)
        if not path.exists():
            return None
        with pa.OSFile(str(path), "rb") as source:
            frame = pl.from_arrow(pa.ipc.open_file(source).read_all())
        assert isinstance(frame, pl.DataFrame)
        return frame


def read_files(
    source: IcebergTable, check: bool, progress: ProgressSink, since: int | None = None, held: Held | None = None
) -> Files:
    """Read every manifest of the table's history once, or only those that tell what came after commit `since`, of which
    `held` tells more; then look at the files unless `check` is off. Expired when the files of `since` are not listed
    any more."""
    table = source.table
    commits = len(table.commits)
    if since is not None and (held is None or recent.needs_all(table, since)):
        since = None
    listing = list_manifests(source, since or 0)
    if since is not None and listing.reason:
        raise Expired(f"{table.name}: the files of snapshot {table.commits[since].id} are not known: {listing.reason}")
    problems: list[FileProblem] = []
    if listing.first and listing.reason:
        problems.append(FileProblem(Finding(Code.MANIFEST_UNREADABLE, str(table.name), listing.reason), listing.first))
    schemas = [table.schemas[id_] for id_ in sorted(table.schemas)]
    if table.schema in schemas:
        schemas.remove(table.schema)
    spool = _Spool(leaf_types([*schemas, table.schema]))
    passed = listing.manifests.clear() if since is None else recent.untouched(listing, since, commits)
    read = _Entries(source, listing, progress)
    read.add(listing.manifests.join(passed, on="manifest", how="anti"), spool)
    described = len(read.core)
    files, deletes = read.live()
    told, reached = None, _NO_FILES
    if since is not None and held is not None:
        equality = pl.col("content") == 2
        if len(recent.aged(files, since, source.snapshots[since].sequence)):
            read.add(passed.filter(pl.col("content") != 0))
            passed = passed.filter(pl.col("content") == 0)
            files, deletes = read.live()
            if deletes.select(equality.any()).item():
                return read_files(source, check, progress)  # one from before may apply to a new file
        came = deletes.filter(equality & (pl.col("begin") > since))
        if reach.outlived(deletes.filter(equality & pl.col("end").is_not_null()), files, passed):
            return read_files(source, check, progress)
        if len(came):
            keys = reach.keys_of(came, listing.manifests, source)
            more, alone = reach.unread(came, keys, since, passed, read.core["path"], listing.manifests, source, held)
            bounds = _Spool(keys.types)
            read.add(more, bounds)
            passed = passed.join(more, on="manifest", how="anti")
            files, deletes = read.live()
            reached = pl.concat([reach.concerning(came, keys, files, source, (spool, bounds)), alone])
        positions = deletes.filter(~equality)
        told = recent.settled(files, positions, since, passed, source, held, reached, progress)
        if told is None:
            read.add(passed)
            passed = passed.clear()
            files, deletes = read.live()
            if deletes.select(equality.any()).item():
                return read_files(source, check, progress)
        else:
            deletes = came if len(reached) else came.clear()
    core, damaged = read.core, read.damaged
    problems += checks.damaged_manifests(damaged, listing, table, commits)
    problems += checks.equality_deletes(deletes, table)
    problems += checks.listed_twice(core, listing, table, commits)
    checks.refuse_unmapped(files, table)
    files = (
        files.filter(pl.col("end").is_null() | (pl.col("end") > listing.first))
        .with_row_index("file")
        .with_columns(pl.col("file").cast(pl.Int64))
    )
    problems += checks.wrong_sums(files, listing, table, damaged, passed)
    findings: list[Finding] = []
    every = deletes
    if told is not None:
        files, deleted = told
    else:
        deletes = deletes.filter((pl.col("content") == 1) & (pl.col("end").is_null() | (pl.col("end") > listing.first)))
        if since is not None:
            deletes = recent.telling(files, deletes, since, source.snapshots[since].sequence)
        found_in = stored(deletes, table, source.path_map, progress, files["path"])
        pieces, deleted, unreadable = apply(files, found_in, table)
        findings += checks.undone_deletes(len(pieces) - len(files), table)
        files = pieces
        problems += unreadable
        if since is not None and len(files.filter((pl.col("begin") > since) & (pl.col("entry") >= described))):
            return read_files(source, check, progress)  # a row came back, and its file begins anew
    if since is not None:
        files, deleted = recent.only(files, deleted, since, reached)
    problems += checks.unreadable_formats(files, table)
    fresh = files if since is None else files.filter(pl.col("begin") > since)
    remeasured: dict[int, inspection.Remeasured] = {}
    mapped = Mapped()
    absent_until = _absent_until(table)
    suspects = _suspects(spool, fresh, table, absent_until)
    if check:
        progress.step(f"{table.name}: looking at {len(fresh)} data files")
        seen = inspection.inspect(fresh, suspects, source, listing, progress)
        problems += seen.problems
        findings += seen.findings
        remeasured = seen.remeasured
        mapped = seen.mapped
        files = files.with_columns(
            pl.col("file").replace_strict(seen.footer_sizes, default=None, return_dtype=pl.Int64).alias("footer_size"),
            pl.coalesce(
                pl.col("file").replace_strict(
                    {file: each.size for file, each in remeasured.items()},
                    default=None,
                    return_dtype=pl.Int64,
                ),
                "size",
            ).alias("size"),
        )
    else:
        problems += checks.unchecked_doubts(fresh, suspects.nan, suspects.unlisted, table)
        problems += checks.unchecked_ids(fresh, table)
        findings.append(
            Finding(
                Code.FILES_UNCHECKED,
                str(table.name),
                f"{len(fresh)} data files are taken as the manifests say",
            )
        )
        files = files.with_columns(pl.lit(None, dtype=pl.Int64).alias("footer_size"))
    files = files.with_columns(
        pl.col("file").replace_strict(mapped.of_file, default=None, return_dtype=pl.Int32).alias("mapping")
    )
    rows = files.select("file", "entry", "begin")
    rewriting = Rewriting(source, listing, files, deleted, every, None if since is None else reached["path"])
    found = IcebergFiles(
        *_arrow(files, deleted), rows, problems, findings, spool, absent_until, remeasured, mapped, rewriting, since
    )
    if not mapped.young or rewriting.has_equality:
        return found
    return _rearranged(found, files.with_columns(pl.col("file").alias("was")), deleted, mapped.young)


def _rearranged(found: IcebergFiles, files: pl.DataFrame, deleted: pl.DataFrame, young: Mapping[int, int]) -> Files:
    """The files under new row numbers (`was`: those before), cut where a younger column begins."""
    places = pl.DataFrame(list(young.items()), schema={"was": pl.Int64, "at": pl.Int64}, orient="row")
    far = pl.col("end").is_null() | (pl.col("end") > pl.col("at"))
    cuts = files.join(places, on="was").filter((pl.col("begin") < pl.col("at")) & far)
    was = files["was"]
    if len(cuts):
        files, deleted = cut(files.drop("was"), deleted, cuts.select("file", end="at"))
        was = was.gather(files["was"])
    return Rearranged(found, *_arrow(files, deleted), was.to_numpy())


def _arrow(files: pl.DataFrame, deleted: pl.DataFrame) -> tuple[pa.Table, pa.Table]:
    return files.select(DATA_FILES.names).to_arrow().cast(DATA_FILES), deleted.to_arrow().cast(DELETED_ROWS)


class _Entries:
    """The entries of the manifests that were read so far, and which of these could not be."""

    def __init__(self, source: IcebergTable, listing: Listing, progress: ProgressSink) -> None:
        self.core, self.damaged = _no_entries(), dict[int, BridgeError]()
        self._source, self._listing, self._progress = source, listing, progress

    def add(self, manifests: pl.DataFrame, spool: _Spool | None = None) -> None:
        """Read more, without statistics where there is no spool for them."""
        core, damaged = _read(manifests, self._source, spool, self._progress, len(self.core))
        self.core, self.damaged = pl.concat([self.core, core]), self.damaged | damaged

    def live(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Data files and delete files with their live intervals."""
        return _live(self.core, self._listing, len(self._source.table.commits))


def _read(
    manifests: pl.DataFrame, source: IcebergTable, spool: _Spool | None, progress: ProgressSink, count: int = 0
) -> tuple[pl.DataFrame, dict[int, BridgeError]]:
    """The entries, numbered from `count`, without statistics where there is no spool for them."""
    damaged: dict[int, BridgeError] = {}
    core: list[pl.DataFrame] = []
    chunk: list[pl.DataFrame] = []
    waiting = done = 0

    def flush() -> None:
        if chunk and spool is not None:
            spool.add(pl.concat(chunk).select("entry", *STATS_MAPS))
            chunk.clear()

    for found in entries(manifests, source.path_map):
        done += 1 if isinstance(found, tuple) else found["manifest"].n_unique()
        progress.step(f"{source.table.name}: reading manifests", done, len(manifests))
        if isinstance(found, tuple):
            damaged[found[0]] = found[1]
            continue
        frame = found.with_columns(pl.int_range(count, count + pl.len(), dtype=pl.Int64).alias("entry"))
        count += len(frame)
        core.append(frame.select(*_CORE))
        data = frame.filter(pl.col("content") == 0) if spool is not None else frame.clear()
        if len(data):
            chunk.append(data)
            waiting += len(data)
        if waiting >= _CHUNK:
            flush()
            waiting = 0
    flush()
    return (pl.concat(core) if core else _no_entries()), damaged


def _no_entries() -> pl.DataFrame:
    return pl.DataFrame(
        schema={
            "entry": pl.Int64,
            "manifest": pl.Int64,
            "position": pl.Int64,
            "content": pl.Int32,
            "path": pl.String,
            "format": pl.String,
            "record_count": pl.Int64,
            "size": pl.Int64,
            "spec": pl.Int32,
            "sequence": pl.Int64,
            "first_row_id": pl.Int64,
            "encrypted": pl.Boolean,
            "referenced_data_file": pl.String,
            "content_offset": pl.Int64,
            "content_size": pl.Int64,
            "equality_ids": pl.List(pl.Int64),
        }
    )


def _live(core: pl.DataFrame, listing: Listing, commits: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Data files and delete files with their live intervals, one row an interval."""
    last = pl.when(pl.col("end") >= commits).then(None).otherwise(pl.col("end")).alias("end")
    spans = core.join(listing.presence, on="manifest")
    data = spans.filter(pl.col("content") == 0)
    again = data["path"].is_duplicated()
    once, several = data.filter(~again), data.filter(again)
    # a file that left and came back has another sequence number then, and other deletes apply to it
    intervals = islands(several.select("path", "sequence", "begin", "end"), "path", "sequence")
    facts = (
        several.sort("entry")
        .group_by("path", "sequence", maintain_order=True)
        .agg(
            pl.col("first_row_id").max(),
            pl.all().exclude("path", "sequence", "first_row_id", "begin", "end").first(),
        )
    )
    files = pl.concat([once, intervals.join(facts, on=["path", "sequence"]).select(once.columns)]).with_columns(last)
    order = ("begin", "sequence", "manifest", "position", "path")
    deletes = delete_intervals(spans.filter(pl.col("content") != 0)).with_columns(last)
    return files.sort(order), deletes


def _absent_until(table: Table) -> dict[FieldId, int]:
    """For each column the first commit at which a file could hold it: ids are given out in the order of the schemas,
    so a file that was added under older schemas only cannot have it."""
    highest_id = {
        id_: max((int(each) for each in leaf_types([schema])), default=-1) for id_, schema in table.schemas.items()
    }
    newest, top = -1, -1
    reached: list[int] = []
    for commit in table.commits:
        if commit.schema > newest:
            newest = commit.schema
            top = max(top, *(highest for id_, highest in highest_id.items() if id_ <= newest), -1)
        reached.append(top)
    every = leaf_types([*table.schemas.values()])
    return {
        id_: next((index for index, highest in enumerate(reached) if highest >= id_), len(reached)) for id_ in every
    }


def _suspects(
    spool: _Spool, files: pl.DataFrame, table: Table, absent_until: Mapping[FieldId, int]
) -> inspection.Suspects:
    """What the manifests leave open: NaN in float columns, and partition columns that no statistic mentions."""
    sources = inspection.identity_sources(table)
    floats = [field for field, type_ in spool.types.items() if type_ in (Leaf.FLOAT32, Leaf.FLOAT64)]
    keys = {field for fields in sources.values() for _, each in fields for field in [each.source]}
    schema = {"file": pl.Int64, "field": pl.Int64}
    nan, unlisted = [pl.DataFrame(schema=schema)], [pl.DataFrame(schema=schema)]
    for low, high, parts in spool.chunks():
        here = files.filter(pl.col("entry").is_between(low, high - 1) & (pl.col("record_count") > 0))
        for field in {*floats, *keys}:
            listed = parts(field)
            if listed is None:
                listed = pl.DataFrame(schema={"entry": pl.Int64, "nans": pl.Int64})
            pair = pl.col("file"), pl.lit(int(field), dtype=pl.Int64).alias("field")
            if field in floats:
                clear = listed.filter(pl.col("nans") == 0)
                rows = here.join(clear, on="entry", how="anti").filter(pl.col("begin") >= absent_until.get(field, 0))
                nan.append(rows.select(*pair))
            if field in keys:
                specs = [spec for spec, fields in sources.items() if any(each.source == field for _, each in fields)]
                rows = here.join(listed, on="entry", how="anti").filter(pl.col("spec").is_in(specs))
                unlisted.append(rows.select(*pair))
    return inspection.Suspects(pl.concat(nan), pl.concat(unlisted), spool.stated)
