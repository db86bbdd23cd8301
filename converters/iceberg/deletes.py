"""Position delete files and deletion vectors as deleted positions of data files, commit by commit.

Which delete applies to which data file is decided as Iceberg Java 1.10 does (`DeleteFileIndex`): a delete is never
older than the data; one that names a single data file applies to it alone, another only within its partition spec;
a file with a deletion vector ignores position delete files (specification, "Scan Planning" and "Deletion Vectors").
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from bridge.errors import Blocked, BridgeError, Missing
from bridge.model.files import FileProblem
from bridge.model.findings import Code
from bridge.model.paths import PathMap
from bridge.model.table import Table
from bridge.ports import ProgressSink
from converters import storage
from converters.deletes.vectors import decode
from converters.deletes.windows import DELETED, islands, overlap, settle
from converters.iceberg.avro import read_frame
from converters.iceberg.checks import problem_of
from converters.iceberg.manifests import PATH_ID, resolve

__all__ = ["Stored", "apply", "delete_intervals", "stored"]

_OPEN = 1 << 62
_POSITION_ID = 2147483545
_ROWS = {"file_path": pl.String, "pos": pl.Int64}
_WINDOW = 500
_VECTORS = 5_000
_TO_GATHER = 64 << 20
Fault = Callable[[int, Exception], None]
_DAMAGED = (ValueError, OSError, pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def delete_intervals(deletes: pl.DataFrame) -> pl.DataFrame:
    """Delete entries with their live intervals, each delete once however many manifests list it."""
    identity = ["path", "content_offset", "referenced_data_file", "sequence"]
    numbered = deletes.select(identity).unique(maintain_order=True).with_row_index("delete")
    keyed = deletes.join(numbered, on=identity, nulls_equal=True)
    spans = islands(keyed.select("delete", "begin", "end"), "delete")
    facts = keyed.sort("entry").unique("delete", keep="first", maintain_order=True).drop("begin", "end")
    return spans.join(facts, on="delete").select(deletes.columns).sort("begin", "sequence", "path", "content_offset")


@dataclass(frozen=True, slots=True)
class Stored:
    """What delete files hold: their entries, numbered as `delete`, with the rows (delete, name, position), the paths of
    the data files by `name`, and which entries could not be read."""

    deletes: pl.DataFrame
    rows: pl.DataFrame
    names: pl.DataFrame
    faults: Mapping[tuple[Code, str], Sequence[int]]

    def of(self, chosen: pl.Expr) -> Stored:
        """Some of the entries."""
        deletes = self.deletes.filter(chosen)
        return Stored(deletes, self.rows.join(deletes, on="delete", how="semi"), self.names, self.faults)


def stored(
    deletes: pl.DataFrame, table: Table, path_map: PathMap, progress: ProgressSink, named: pl.Series | None = None
) -> Stored:
    """The rows of position delete files and vectors, of those data files that are `named` where it is given."""
    deletes = deletes.with_row_index("delete").with_columns(pl.col("delete").cast(pl.Int64))
    names = None if named is None else _names(named)
    found: list[pl.DataFrame] = []
    faults: dict[tuple[Code, str], list[int]] = {}
    done = 0
    for numbers, rows in _read(deletes, path_map, faults):
        done += numbers
        progress.step(f"{table.name}: reading deletes", done, len(deletes))
        found.append(rows if names is None else _by_name(rows, names))
    if names is None:
        every = pl.concat([pl.DataFrame(schema={"delete": pl.Int64, **_ROWS}), *found])
        names = _names(every["file_path"])
        found = [_by_name(every, names)]
    nothing = pl.DataFrame(schema={"delete": pl.Int64, "name": pl.Int64, "position": pl.Int64})
    return Stored(deletes, pl.concat([nothing, *found]), names, faults)


def _names(paths: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"path": paths.unique()}).with_row_index("name").with_columns(pl.col("name").cast(pl.Int64))


def _by_name(rows: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Few names stand for many paths."""
    return rows.join(names, left_on="file_path", right_on="path").select("delete", "name", position=pl.col("pos"))


def apply(
    files: pl.DataFrame, found: Stored, table: Table, known: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, pl.DataFrame, list[FileProblem]]:
    """Data files with the positions deleted in them (DELETED rows), and the delete files that cannot be read.

    `files` has (file, path, begin, end, spec, sequence, record_count), `found` the position deletes with their
    intervals; end NULL is open. Positions beyond a file's rows and files that are not live name nothing. `known` are
    positions that are deleted besides (file, position, begin, end), but where a vector of `found` stands in.
    """
    if not len(found.deletes) and known is None:
        return files, pl.DataFrame(schema=DELETED), []
    targets = files.select("file", "path", "spec", "sequence", "record_count", "begin", "end")
    deletes = found.deletes
    pairs, masks = _pairs(found.rows.select("delete", "name").unique(), targets.join(found.names, on="path"), deletes)
    hits = (
        found.rows.join(pairs, on=["delete", "name"])
        .filter(pl.col("position").is_between(0, pl.col("record_count") - 1))
        .select("file", "position", "begin", "end")
    )
    if known is not None:
        hits = pl.concat([hits, _without(known, masks).select(hits.columns)])
    files, deleted = settle(files, hits)
    problems: list[FileProblem] = []
    for (code, what), several in found.faults.items():
        needed = _needed(deletes.filter(pl.col("delete").is_in(several)), targets)
        if len(needed):
            problems.append(problem_of(code, table, f"{len(needed)} delete files, {what}", needed))
    return files, deleted, problems


def _needed(deletes: pl.DataFrame, files: pl.DataFrame) -> pl.DataFrame:
    """The deletes that may apply to some file, each until the last commit at which it may; compactions leave others
    behind, which no reader opens."""
    far = _OPEN
    found = []
    for row in deletes.rows(named=True):
        only = row["referenced_data_file"]
        place = pl.col("path") == only if only is not None else pl.col("spec") == row["spec"]
        end = far if row["end"] is None else int(row["end"])
        mine = files.filter(place & (pl.col("sequence") <= row["sequence"]) & (pl.col("begin") < end))
        reach = [last for last in mine["end"].fill_null(far).to_list() if last > row["begin"]]
        if reach:
            last = min(end, max(reach))
            found.append({**row, "end": None if last == far else last})
    return pl.DataFrame(found, schema=deletes.schema)


def _pairs(pairs: pl.DataFrame, targets: pl.DataFrame, deletes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(delete, name, file, record_count, begin, end): during which commits a delete applies to a live file; and when
    (file, begin, end) a vector stands in for all other deletes of one."""
    stated = deletes.select(
        "delete",
        low="begin",
        high="end",
        since="sequence",
        of="spec",
        vector=pl.col("format") == "puffin",
        only="referenced_data_file",
    )
    applies = (
        pl.when(pl.col("only").is_null())
        .then(pl.col("spec") == pl.col("of"))
        .otherwise(pl.col("path") == pl.col("only"))
    )
    each = _together(pairs.join(stated, on="delete").join(targets, on="name").filter(applies))
    masks = _together(stated.filter(pl.col("vector")).join(targets, left_on="only", right_on="path"))
    masks = islands(masks.select("file", "begin", "end"), "file")
    plain = _without(each.filter(~pl.col("vector")), masks)
    columns = ["delete", "name", "file", "record_count", "begin", "end"]
    return pl.concat([each.filter(pl.col("vector")).select(columns), plain.select(columns)]), masks


def _together(each: pl.DataFrame) -> pl.DataFrame:
    """The commits in which a file and a delete that is not older than it are both live."""
    return overlap(each.filter(pl.col("sequence") <= pl.col("since")))


def _without(each: pl.DataFrame, masks: pl.DataFrame) -> pl.DataFrame:
    """Intervals of files less those (file, begin, end) in which a vector stands in for all other deletes."""
    before = masks.select("file", pl.col("end").shift(1, fill_value=0).over("file").alias("low"), high="begin")
    after = masks.group_by("file", maintain_order=True).agg(pl.col("end").last().alias("low"))
    after = after.filter(pl.col("low").is_not_null()).with_columns(pl.lit(None, dtype=pl.Int64).alias("high"))
    gaps = overlap(each.join(pl.concat([before, after]), on="file"))
    return pl.concat([each.join(masks, on="file", how="anti"), gaps])


def _read(
    deletes: pl.DataFrame, path_map: PathMap, faults: dict[tuple[Code, str], list[int]]
) -> Iterator[tuple[int, pl.DataFrame]]:
    """(entries done, rows of them: delete, file_path resolved, pos); entries that cannot be read go to `faults`."""

    def fault(number: int, error: Exception) -> None:
        reason = (Code.FILE_UNREADABLE, "damaged, or not what the manifest says")
        if isinstance(error, Missing):
            reason = (Code.FILE_MISSING, "not there")
        elif isinstance(error, Blocked):
            reason = (Code.PATH_SCHEME, "which cannot be opened; --map-prefix says where they are")
        elif isinstance(error, BridgeError):
            raise error
        faults.setdefault(reason, []).append(number)

    hidden = deletes.filter(pl.col("encrypted"))
    for number in hidden["delete"]:
        faults.setdefault((Code.TABLE_ENCRYPTED, "encrypted"), []).append(number)
    deletes = deletes.filter(~pl.col("encrypted"))
    for window in deletes.filter(pl.col("format") == "puffin").iter_slices(_VECTORS):
        yield len(window), _vectors(window.rows(named=True), fault)
    for window in deletes.filter(pl.col("format") != "puffin").iter_slices(_WINDOW):
        entries = window.rows(named=True)
        group: list[tuple[dict[str, Any], bytes]] = []
        gathered = 0
        for entry, content in zip(entries, storage.parallel(_content, [each["path"] for each in entries]), strict=True):
            if isinstance(content, BridgeError):
                fault(entry["delete"], content)
                continue
            group.append((entry, content))
            gathered += len(content)
            if gathered > _TO_GATHER:
                yield len(group), _resolved(_rows(group, fault), path_map)
                group, gathered = [], 0
        if group:
            yield len(group), _resolved(_rows(group, fault), path_map)


def _content(path: str) -> bytes | BridgeError:
    try:
        return storage.read(path, "delete file")
    except BridgeError as error:
        return error


def _resolved(rows: pl.DataFrame, path_map: PathMap) -> pl.DataFrame:
    """Stored paths as the data files' own are resolved; few are distinct."""
    stored = rows.select("file_path").unique()
    known = stored.with_columns(resolve("file_path", path_map).alias("resolved"))
    return rows.join(known, on="file_path").select("delete", pl.col("resolved").alias("file_path"), "pos")


def _rows(group: Sequence[tuple[dict[str, Any], bytes]], fault: Fault) -> pl.DataFrame:
    """The rows of delete files in Parquet (together, when they look alike), ORC and Avro."""
    made = [pl.DataFrame(schema={"delete": pl.Int64, **_ROWS})]
    alike: dict[tuple[str, str], list[tuple[dict[str, Any], bytes]]] = {}
    for entry, content in group:
        try:
            if entry["format"] == "parquet":
                alike.setdefault(_columns(content, entry["record_count"]), []).append((entry, content))
            else:
                made.append(_numbered(_other(entry["format"], content), entry))
        except _DAMAGED as error:
            fault(entry["delete"], error)
    for (path, position), same in alike.items():
        columns = [pl.col(path).cast(pl.String).alias("file_path"), pl.col(position).cast(pl.Int64).alias("pos")]
        try:
            together = pl.scan_parquet(
                [content for _, content in same], missing_columns="raise", extra_columns="ignore"
            )
            frame = together.select(columns).collect()
            if frame["pos"].null_count():
                raise ValueError("rows without positions")
            counts = [entry["record_count"] for entry, _ in same]
            owner = np.repeat([entry["delete"] for entry, _ in same], counts)
            made.append(frame.select(pl.Series("delete", owner, dtype=pl.Int64), "file_path", "pos"))
        except _DAMAGED:
            for entry, content in same:
                try:
                    made.append(_numbered(pl.read_parquet(io.BytesIO(content)).select(columns), entry))
                except _DAMAGED as error:
                    fault(entry["delete"], error)
    return pl.concat(made)


def _numbered(rows: pl.DataFrame, entry: dict[str, Any]) -> pl.DataFrame:
    if len(rows) != entry["record_count"] or rows["pos"].null_count():
        raise ValueError("other rows than the manifest counts, or without positions")
    return rows.select(pl.lit(entry["delete"], dtype=pl.Int64).alias("delete"), "file_path", "pos")


def _columns(content: bytes, expected: int) -> tuple[str, str]:
    """The names of the path and the position column: by field id, else the names of the specification."""
    metadata = pq.read_metadata(io.BytesIO(content))
    if metadata.num_rows != expected:
        raise ValueError("other rows than the manifest counts")
    schema = metadata.schema.to_arrow_schema()
    by_id = {int(each.metadata[b"PARQUET:field_id"]): each.name for each in schema if _has_id(each)}
    path, position = by_id.get(PATH_ID, "file_path"), by_id.get(_POSITION_ID, "pos")
    if path not in schema.names or position not in schema.names:
        raise ValueError("not a position delete file")
    return path, position


def _has_id(field: pa.Field) -> bool:
    return bool(field.metadata and b"PARQUET:field_id" in field.metadata)


def _other(format_: str, content: bytes) -> pl.DataFrame:
    if format_ == "avro":
        return read_frame(content, _ROWS)
    if format_ == "orc":
        frame = pl.from_arrow(orc.ORCFile(pa.BufferReader(content)).read(columns=list(_ROWS)))
        assert isinstance(frame, pl.DataFrame)
        return frame.select([pl.col(name).cast(type_) for name, type_ in _ROWS.items()])
    raise ValueError(f"a delete file in {format_}")


def _vectors(rows: Sequence[dict[str, Any]], fault: Fault) -> pl.DataFrame:
    """The rows of deletion vectors, cut out of their Puffin files where the manifest says."""
    by_file: dict[str, list[dict[str, Any]]] = {}
    for entry in rows:
        by_file.setdefault(entry["path"], []).append(entry)
    good: list[tuple[dict[str, Any], np.ndarray]] = []
    for several in storage.parallel(_vectors_of, list(by_file.items())):
        for entry, positions in several:
            if isinstance(positions, Exception):
                fault(entry["delete"], positions)
            else:
                good.append((entry, positions))
    counts = [len(positions) for _, positions in good]
    owner = np.repeat(np.arange(len(good)), counts)
    numbers = pl.Series("delete", [entry["delete"] for entry, _ in good], dtype=pl.Int64)
    paths = pl.Series("file_path", [entry["referenced_data_file"] for entry, _ in good], dtype=pl.String)
    every = np.concatenate([positions for _, positions in good]) if good else np.empty(0, dtype=np.int64)
    return pl.DataFrame([numbers.gather(owner), paths.gather(owner), pl.Series("pos", every, dtype=pl.Int64)])


def _vectors_of(job: tuple[str, list[dict[str, Any]]]) -> list[tuple[dict[str, Any], np.ndarray | Exception]]:
    path, entries = job
    found: list[tuple[dict[str, Any], np.ndarray | Exception]] = []
    try:
        with storage.open_input(path, "deletion vectors") as file:
            size = file.size()
            for entry in entries:
                try:
                    found.append((entry, decode(_blob(file, size, entry), entry["record_count"])))
                except (ValueError, OSError) as error:
                    found.append((entry, error))
    except BridgeError as error:
        return [(entry, error) for entry in entries]
    return found


def _blob(file: Any, size: int, entry: dict[str, Any]) -> bytes:
    offset, length = entry["content_offset"], entry["content_size"]
    if offset is None or length is None or entry["referenced_data_file"] is None:
        raise ValueError("a deletion vector whose manifest entry does not say where it is")
    if offset < 0 or length < 0 or offset + length > size:
        raise ValueError("a deletion vector that lies beyond its file")
    file.seek(offset)
    return bytes(file.read(length))
