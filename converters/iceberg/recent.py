"""What came after a commit that a target holds: which manifests, deletes and files tell of it.

A manifest that every commit since then lists holds files that were live all the time. They matter only where a delete
that came or went since then names one of them.
"""

from __future__ import annotations

import polars as pl

from bridge.model.table import Table
from converters.iceberg.manifests import Listing
from converters.iceberg.name_mapping import PROPERTY

__all__ = ["names_others", "needs_all", "only", "telling", "untouched"]


def needs_all(table: Table, since: int) -> bool:
    """Whether every file must be looked at: one without field ids may hold a column that was added since."""
    schema = table.commits[since].schema
    changed = schema != table.schema.id or any(each.schema != schema for each in table.commits[since:])
    return changed and PROPERTY in table.properties


def untouched(listing: Listing, since: int, commits: int) -> pl.DataFrame:
    """The manifests of data files that every commit from `since` on lists. Those of deletes are read all the same:
    which data files theirs apply to is not known before."""
    through = listing.presence.filter(
        (pl.col("begin") <= since) & (pl.col("end").is_null() | (pl.col("end") >= commits))
    )
    return listing.manifests.join(through.select("manifest"), on="manifest", how="semi").filter(pl.col("content") == 0)


def _moved(frame: pl.DataFrame, since: int) -> pl.DataFrame:
    return frame.filter((pl.col("begin") > since) | pl.col("end").is_not_null())


def names_others(files: pl.DataFrame, deletes: pl.DataFrame, since: int) -> bool:
    """Whether deletes that came or went may apply to files whose manifests were passed over."""
    changed = _moved(deletes, since)["referenced_data_file"]
    return bool(changed.null_count()) or bool((~changed.is_in(files["path"].implode())).any())


def telling(files: pl.DataFrame, deletes: pl.DataFrame, since: int, sequence: int) -> pl.DataFrame:
    """The position deletes that have to be read to know in which files rows were deleted, or came back, since then:
    those that came or went, and the others that apply to the same files. `sequence` is the sequence number of then."""
    changed = _moved(deletes, since)["referenced_data_file"]
    fresh = files.filter(pl.col("begin") > since)
    # a file that came back under its old sequence number may have deletes of its own from then
    if changed.null_count() or (fresh["sequence"] <= sequence).any():
        return deletes
    unscoped = pl.col("referenced_data_file").is_null() & pl.lit(bool(len(changed)))
    named = pl.concat([changed, fresh["path"]]).implode()
    return deletes.filter(unscoped | pl.col("referenced_data_file").is_in(named))


def only(files: pl.DataFrame, deleted: pl.DataFrame, since: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Files that begin or end later or lose rows later, numbered anew, with their deleted rows."""
    losing = deleted.filter(pl.col("begin") > since)["file"].unique()
    kept = files.sort("file").filter(
        (pl.col("begin") > since) | pl.col("end").is_not_null() | pl.col("file").is_in(losing.implode())
    )
    numbers = kept.select("file").with_row_index("now").with_columns(pl.col("now").cast(pl.Int64))
    moved = deleted.join(numbers, on="file").sort("now", "position")
    return (
        kept.with_columns(numbers["now"].alias("file")),
        moved.select(pl.col("now").alias("file"), "position", "begin"),
    )
