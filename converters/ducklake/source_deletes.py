"""When which row of a lake's data file is not there: deleted by then, or in a merged file and not inserted yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import BridgeError, Missing, Unreachable
from bridge.model.files import FileProblem
from bridge.model.findings import Code, Finding
from converters import storage
from converters.deletes import vectors
from converters.ducklake.definition import History
from converters.ducklake.encrypted import read_encrypted

__all__ = ["HITS", "Absences", "Index", "absences"]

HITS = {"file": pl.Int64, "position": pl.Int64, "begin": pl.Int64, "end": pl.Int64}
"""A row (file number, position) that is not there from commit `begin` on and until `end` (NULL: to the file's end)."""

_SNAPSHOT = "_ducklake_internal_snapshot_id"
_SNAPSHOT_ID = b"2147483539"
_UNBORN = 20_000_000
"""Absences that merged files may cost in all; beyond it the history before the merge is left behind."""


@dataclass(frozen=True, slots=True)
class Absences:
    """HITS rows, what could not be read, and by file the commit from which on it can be shown."""

    hits: pl.DataFrame
    problems: tuple[FileProblem, ...]


def absences(
    files: pl.DataFrame, deletes: pl.DataFrame, noted: pl.DataFrame, history: History, subject: str
) -> Absences:
    """`files` has the columns file, data_file_id, path, begin, end, record_count, encryption_key, begin_snapshot,
    partial_max and partial_file_info; `deletes` those of the catalog, with absolute paths."""
    problems: list[FileProblem] = []
    parts = [pl.DataFrame(schema=HITS)]
    index = Index(history)
    parts += _from_delete_files(files, deletes, index, subject, problems)
    if len(noted):
        rows = noted.with_columns(index.of("begin_snapshot").alias("low"), pl.lit(None, dtype=pl.Int64).alias("high"))
        parts.append(_within(rows.select("low", "high", data_file_id="file_id", position="row_id"), files))
    parts += _unborn(files, index, subject, problems)
    return Absences(pl.concat(parts), tuple(problems))


class Index:
    """Snapshots as commit indexes."""

    def __init__(self, history: History) -> None:
        self.ids = np.array([each.id for each in history.snapshots], dtype=np.int64)

    def __call__(self, snapshots: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.ids, snapshots, side="left")

    def of(self, column: str) -> pl.Expr:
        """A column of snapshots as the first commits that see them; NULL stays NULL."""
        return pl.col(column).map_batches(self._series, return_dtype=pl.Int64)

    def _series(self, values: pl.Series) -> pl.Series:
        found = pl.Series(self(values.fill_null(0).to_numpy()).astype(np.int64))
        return found.set(values.is_null(), None)


def _within(rows: pl.DataFrame, files: pl.DataFrame) -> pl.DataFrame:
    """Rows (data_file_id, position, low, high) cut to what their files are live, as HITS."""
    spans = files.select("data_file_id", "file", "begin", "end", "record_count")
    joined = rows.join(spans, on="data_file_id").filter(pl.col("position") < pl.col("record_count"))
    far = pl.min_horizontal("high", "end")
    cut = joined.with_columns(pl.max_horizontal("begin", "low").alias("begin"), far.alias("end"))
    return cut.filter(pl.col("end").is_null() | (pl.col("begin") < pl.col("end"))).select(*HITS)


def _from_delete_files(
    files: pl.DataFrame,
    deletes: pl.DataFrame,
    index: Index,
    subject: str,
    problems: list[FileProblem],
) -> list[pl.DataFrame]:
    count = len(index.ids)
    spans = deletes.with_columns(index.of("begin_snapshot").alias("low"), index.of("end_snapshot").alias("high"))
    spans = spans.filter((pl.col("low") < count) & (pl.col("high").is_null() | (pl.col("high") > pl.col("low"))))
    wanted = spans.join(files.select("data_file_id"), on="data_file_id", how="semi").rows(named=True)
    parts = []
    failed: dict[Code, list[tuple[str, int, str]]] = {}
    for row, found in zip(wanted, storage.parallel(_attempt(_positions), wanted), strict=True):
        if isinstance(found, BridgeError):
            code = Code.FILE_MISSING if isinstance(found, Missing) else Code.FILE_UNREADABLE
            last = count if row["high"] is None or row["high"] >= count else row["high"]
            failed.setdefault(code, []).append((row["path"], last, found.message))
            continue
        positions, snapshots = found
        low = np.full(len(positions), row["low"]) if snapshots is None else np.maximum(index(snapshots), row["low"])
        rows = pl.DataFrame({"position": positions, "low": low.astype(np.int64)}).with_columns(
            pl.lit(row["data_file_id"], dtype=pl.Int64).alias("data_file_id"),
            pl.lit(row["high"], dtype=pl.Int64).alias("high"),
        )
        parts.append(_within(rows, files))
    for code, entries in failed.items():
        last = max(each[1] for each in entries)
        paths = tuple(each[0] for each in entries)
        finding = Finding(code, subject, f"a delete file cannot be read: {entries[0][2]}", "", paths[:1000], len(paths))
        problems.append(FileProblem(finding, None if last >= count else last))
    return parts


Item = TypeVar("Item")
Result = TypeVar("Result")


def _attempt(work: Callable[[Item], Result]) -> Callable[[Item], Result | BridgeError]:
    def tried(item: Item) -> Result | BridgeError:
        try:
            return work(item)
        except BridgeError as error:
            return error

    return tried


def _positions(row: dict[str, object]) -> tuple[np.ndarray, np.ndarray | None]:
    """The positions that a delete file names, and the snapshot of each where it says so."""
    path, kind = str(row["path"]), str(row["format"] or "parquet").casefold()
    content = storage.read(path, "delete file")
    if kind == "puffin":
        try:
            return vectors.decode(content, int(str(row["delete_count"]))), None
        except ValueError as error:
            raise Unreachable(f"delete file {path}: {error}") from error
    if kind != "parquet":
        raise Unreachable(f"delete file {path} has the unknown format {kind}")
    table = read_encrypted(path, str(row["encryption_key"])) if content[:4] == b"PARE" else _parquet(path, content)
    if table.num_columns < 2:
        raise Unreachable(f"delete file {path} has {table.num_columns} columns, 2 or 3 are expected")
    stated = [number for number, name in enumerate(table.column_names) if name == _SNAPSHOT]
    stated = [number for number in stated if table.schema.field(number).type == pa.int64()]
    try:
        positions = table.column(1).cast(pa.int64()).to_numpy()
    except pa.ArrowException as error:
        raise Unreachable(f"delete file {path}: its second column holds no positions") from error
    return positions, table.column(stated[0]).to_numpy() if stated else None


def _parquet(path: str, content: bytes) -> pa.Table:
    try:
        return pq.read_table(BytesIO(content))
    except (pa.ArrowException, OSError) as error:
        raise Unreachable(f"delete file {path} is damaged or not Parquet: {error}") from error


def _unborn(files: pl.DataFrame, index: Index, subject: str, problems: list[FileProblem]) -> list[pl.DataFrame]:
    """Rows of merged files at the commits before the snapshot that inserted them."""
    until = files.with_columns(index.of("partial_max").alias("whole"))
    merged = until.filter((pl.col("whole") > pl.col("begin")) | pl.col("partial_file_info").is_not_null()).rows(
        named=True
    )
    parts: list[pl.DataFrame] = []
    total = 0
    beyond: list[tuple[str, int]] = []
    for row, found in zip(merged, storage.parallel(_attempt(_births), merged), strict=True):
        if isinstance(found, BridgeError):
            last = row["whole"] if row["whole"] is not None else len(index.ids)
            problems.append(_lost(Code.FILE_UNREADABLE, subject, found.message, [(row["path"], last)], index))
            continue
        born = index(found)
        positions = np.flatnonzero(born > row["begin"])
        pieces = np.unique(born[positions])
        cost = sum(int((born[positions] > each).sum()) for each in pieces[:-1]) + len(positions)
        if not len(positions):
            continue
        if total + cost > _UNBORN:
            beyond.append((row["path"], int(born.max())))
            continue
        total += cost
        ends = born[positions]
        frame = pl.DataFrame({"position": positions, "high": ends}).with_columns(
            pl.col("position").cast(pl.Int64),
            pl.col("high").cast(pl.Int64),
            pl.lit(row["begin"], dtype=pl.Int64).alias("low"),
            pl.lit(row["data_file_id"], dtype=pl.Int64).alias("data_file_id"),
        )
        parts.append(_within(frame, files))
    if beyond:
        said = "merged files serve older snapshots that could be shown at great cost only"
        problems.append(_lost(Code.MERGED_HISTORY, subject, said, beyond, index))
    return parts


def _lost(code: Code, subject: str, said: str, entries: Sequence[tuple[str, int]], index: Index) -> FileProblem:
    last = max(each[1] for each in entries)
    paths = tuple(each[0] for each in entries)
    finding = Finding(code, subject, said, "", paths[:1000], len(paths))
    return FileProblem(finding, None if last >= len(index.ids) else last)


def _births(row: dict[str, object]) -> np.ndarray:
    """The snapshot that inserted each row of a merged file."""
    path, count = str(row["path"]), int(str(row["record_count"]))
    told = row["partial_file_info"]
    if isinstance(told, str) and not told.startswith("partial_max:"):
        return _told(path, told, count)
    key = row["encryption_key"]
    if key:
        born = read_encrypted(path, str(key), _SNAPSHOT).column(0)
    else:
        with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
            try:
                opened = pq.ParquetFile(source)
                names = [
                    field.name
                    for field in opened.schema_arrow
                    if (field.metadata or {}).get(b"PARQUET:field_id") == _SNAPSHOT_ID
                ]
                if not names:
                    raise Unreachable(f"data file {path} is merged and has no column {_SNAPSHOT}")
                born = opened.read(columns=[names[0]]).column(0)
            except pa.ArrowException as error:
                raise Unreachable(f"data file {path} is damaged or not Parquet: {error}") from error
    if len(born) != count:
        raise Unreachable(f"data file {path} holds {len(born)} rows, the catalog says {count}")
    snapshots: np.ndarray = born.cast(pa.int64()).fill_null(0).to_numpy()
    return snapshots


def _told(path: str, text: str, count: int) -> np.ndarray:
    """Until 0.3 the catalog says it: `9:1|10:2` is a row of snapshot 9 and then one of 10 (rows in all)."""
    born = np.empty(count, dtype=np.int64)
    start = 0
    try:
        for part in text.split("|"):
            snapshot, rows = map(int, part.split(":"))
            born[start:rows] = snapshot
            start = rows
    except ValueError:
        start = -1
    if start != count:
        raise Unreachable(f"data file {path}: the catalog's {text!r} does not tell the snapshots of {count} rows")
    return born
