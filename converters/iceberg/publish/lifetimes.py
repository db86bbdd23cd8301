"""Which files an Iceberg table lists from which commit to which: data files, and the deletes of each.

A source may say of one file that it begins anew with other rows deleted; here that is one data file whose deletes
change. The deletes of a file are a whole set at a time, which the next one replaces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from bridge.model.files import Files

__all__ = ["NEVER", "DeleteSets", "Spans", "spans_of"]

NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Spans:
    """Data files: `row` is the row of Files.table that describes each, in ascending order; `begin` and `end` are
    commit indexes, NEVER for a file that is still live."""

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    deletes: DeleteSets


class DeleteSets:
    """Sets of deleted positions: of the file at `span`, live from `begin` to `end`; made when asked for."""

    def __init__(self, files: Files, found: list[tuple[int, int, int, int, int]]) -> None:
        columns = np.array(found, dtype=np.int64).reshape(len(found), 5).T
        self.span, self.begin, self.end, self._row, self._until = columns
        deletes = files.deletes
        self._file = deletes.column("file").to_numpy()
        self._position = deletes.column("position").to_numpy()
        self._since = deletes.column("begin").to_numpy()

    def __len__(self) -> int:
        return len(self.span)

    def positions(self, number: int) -> np.ndarray:
        """The deleted positions of a set, ascending."""
        return _positions(self._file, self._position, self._since, self._row[number], self._until[number])


def _positions(file: np.ndarray, position: np.ndarray, since: np.ndarray, row: int, until: int) -> np.ndarray:
    low, high = np.searchsorted(file, row), np.searchsorted(file, row, side="right")
    return np.sort(position[low:high][since[low:high] <= until])


def spans_of(files: Files, first: int) -> Spans:
    """The data files that are live at commit `first` or later."""
    frame = pl.from_arrow(files.table.select(["path", "begin", "end"]))
    assert isinstance(frame, pl.DataFrame)
    frame = (
        frame.with_row_index("row")
        .with_columns(pl.col("row").cast(pl.Int64), pl.col("end").fill_null(NEVER))
        .filter(pl.col("end") > first)
        .with_columns(pl.max_horizontal("begin", pl.lit(first)).alias("begin"))
        .sort("path", "begin", "row")
        .with_columns((pl.col("begin") != pl.col("end").shift(1).over("path")).fill_null(True).alias("new"))
        .with_columns(pl.col("new").cum_sum().alias("island"))
    )
    spans = (
        frame.group_by("island")
        .agg(pl.col("row").first(), pl.col("begin").first(), pl.col("end").last())
        .sort("row")
        .with_row_index("span")
    )
    pieces = frame.join(spans.select("island", "span"), on="island").sort("span", "begin")
    return Spans(
        spans["row"].to_numpy(),
        spans["begin"].to_numpy(),
        spans["end"].to_numpy(),
        DeleteSets(files, _sets(files.deletes, pieces, first)),
    )


def _sets(deletes: pa.Table, pieces: pl.DataFrame, first: int) -> list[tuple[int, int, int, int, int]]:
    """(span, begin, end, row, until) of every set; equal ones that follow each other are one."""
    file, position, since = (deletes.column(name).to_numpy() for name in ("file", "position", "begin"))
    if not len(file):
        return []
    touched = pieces.join(pieces.filter(pl.col("row").is_in(pl.Series(np.unique(file)).implode())), "span", how="semi")
    found: list[tuple[int, int, int, int, int]] = []
    for (span,), rows in touched.partition_by("span", as_dict=True, include_key=False).items():
        changes: list[tuple[int, int, bool]] = []  # at which commit, by which row, and whether any is deleted then
        held = np.array([], dtype=np.int64)
        for row, begin, end in rows.select("row", "begin", "end").iter_rows():
            low, high = np.searchsorted(file, row), np.searchsorted(file, row, side="right")
            times = np.unique(np.append(np.maximum(since[low:high], begin), begin))
            for at in times[times < end].tolist():
                positions = _positions(file, position, since, row, at)
                if not np.array_equal(held, positions):
                    changes.append((at, row, len(positions) > 0))
                    held = positions
        ends = [*(at for at, _, _ in changes[1:]), rows["end"].to_list()[-1]]
        found += [
            (int(span), at, int(end), row, at) for (at, row, any_), end in zip(changes, ends, strict=False) if any_
        ]
    return found
