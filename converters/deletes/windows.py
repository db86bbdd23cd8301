"""Deleted positions over a history: from which commit on each is deleted, and what to do when one comes back.

A row of a target's delete table has a beginning and no end, so within one registered file a position may only
become deleted. Where a source takes a delete back, the file ends in the target and begins anew, without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

__all__ = ["DELETED", "cut", "islands", "overlap", "settle"]

DELETED = {"file": pl.Int64, "position": pl.Int64, "begin": pl.Int64}
"""One row a deleted position: row number of the data file, position in it, first commit at which it is deleted."""

_OPEN = 1 << 62


def islands(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """(keys, begin, end) intervals joined where they touch or overlap; end NULL is open."""
    return (
        frame.with_columns(pl.col("end").fill_null(_OPEN))
        .sort(*keys, "begin")
        .with_columns(pl.col("end").cum_max().shift(1).over(keys).alias("reached"))
        .with_columns((pl.col("reached").is_null() | (pl.col("begin") > pl.col("reached"))).alias("starts"))
        .with_columns(pl.col("starts").cum_sum().alias("island"))
        .group_by(*keys, "island", maintain_order=True)
        .agg(pl.col("begin").min(), pl.col("end").max())
        .select(*keys, "begin", pl.when(pl.col("end") >= _OPEN).then(None).otherwise(pl.col("end")).alias("end"))
    )


def overlap(frame: pl.DataFrame) -> pl.DataFrame:
    """What the intervals [begin, end) and [low, high) of each row have in common, as begin and end; rows without
    anything in common are left out. An end or high of NULL is open."""
    until = pl.min_horizontal(pl.col("end").fill_null(_OPEN), pl.col("high").fill_null(_OPEN))
    return (
        frame.with_columns(pl.max_horizontal("begin", "low").alias("begin"), until.alias("end"))
        .drop("low", "high")
        .filter(pl.col("begin") < pl.col("end"))
        .with_columns(pl.when(pl.col("end") < _OPEN).then(pl.col("end")).alias("end"))
    )


def settle(files: pl.DataFrame, hits: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Files and the positions deleted in them.

    `files` has one row a live interval (file, begin, end and whatever else); `hits` says that a position is deleted
    during [begin, end) (file, position, begin, end; end NULL is open, and no hit reaches beyond its file). A file in
    which a position comes back is split where it does. Gives the files, renumbered in their order, and DELETED rows
    sorted by file and position.
    """
    files = files.sort("file")
    far = files.select("file", pl.col("end").fill_null(_OPEN).alias("far"))
    hits = hits.with_columns(pl.col("end").fill_null(_OPEN))
    spans = hits.group_by("file", "position").agg(pl.col("begin").min(), pl.col("end").max(), pl.len().alias("several"))
    again = spans.filter(pl.col("several") > 1)
    once = spans.filter(pl.col("several") == 1).select("file", "position", "begin", "end")
    if len(again):
        joined = islands(hits.join(again, on=["file", "position"], how="semi"), "file", "position")
        once = pl.concat([once, joined.select("file", "position", "begin", pl.col("end").fill_null(_OPEN))])
    back = once.join(far, on="file").filter(pl.col("end") < pl.col("far")).select("file", "end").unique()
    if not len(back):
        return files, once.select("file", "position", "begin").sort("file", "position")
    return _pieces(_split(files, back), once, files.columns)


def cut(files: pl.DataFrame, deleted: pl.DataFrame, cuts: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Files cut at commits (file, end), and the DELETED rows of the pieces; the files' number before is `was`."""
    open_ended = deleted.with_columns(pl.lit(None, dtype=pl.Int64).alias("end"))
    numbered = files.sort("file").with_columns(pl.col("file").alias("was"))
    return _pieces(_split(numbered, cuts), open_ended, numbered.columns)


def _pieces(pieces: pl.DataFrame, positions: pl.DataFrame, columns: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pieces of files as files, and of positions (file, position, begin, end) what falls into each."""
    spans = pieces.select("piece", "file", low="begin", high="end")
    moved = overlap(positions.join(spans, on="file")).drop("file").rename({"piece": "file"})
    whole = pieces.select(pl.col("piece").alias("file"), *(name for name in columns if name != "file"))
    return whole.select(columns), moved.select("file", "position", "begin").sort("file", "position")


def _split(files: pl.DataFrame, at: pl.DataFrame) -> pl.DataFrame:
    """The files cut at commits (file, end), numbered anew as `piece` in the order of their begin."""
    cuts = at.group_by("file").agg(pl.col("end").sort().alias("cuts"))
    held = files.join(cuts, on="file", how="left").with_columns(pl.col("cuts").fill_null(pl.lit([], pl.List(pl.Int64))))
    starts = pl.concat_list("begin", "cuts").alias("starts")
    ends = pl.concat_list("cuts", pl.col("end").fill_null(_OPEN)).alias("ends")
    cut = held.with_columns(starts, ends).explode("starts", "ends")
    return (
        cut.with_columns(
            pl.col("starts").alias("begin"),
            pl.when(pl.col("ends") >= _OPEN).then(None).otherwise(pl.col("ends")).alias("end"),
        )
        .drop("starts", "ends", "cuts")
        .sort("begin", "file")
        .with_row_index("piece")
        .with_columns(pl.col("piece").cast(pl.Int64))
    )
