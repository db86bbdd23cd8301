"""What came after a commit that a target holds: which manifests, deletes and files tell of it.

A manifest that every commit since then lists holds files that were live all the time. They matter only where a delete
that came or went since then names one of them: what else is deleted in it the target knows, which holds that commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from bridge.model.table import Table
from bridge.ports import Held, ProgressSink
from converters.iceberg.deletes import Stored, apply, stored
from converters.iceberg.manifests import Listing
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.name_mapping import PROPERTY

__all__ = ["aged", "moves", "needs_all", "only", "settled", "telling", "untouched"]

_VECTOR = pl.col("format") == "puffin"
_SCOPED = pl.col("referenced_data_file").is_not_null()


def needs_all(table: Table, since: int) -> bool:
    """Whether every file must be looked at: one without field ids may hold a column that was added since."""
    schema = table.commits[since].schema
    changed = schema != table.schema.id or any(each.schema != schema for each in table.commits[since:])
    return changed and PROPERTY in table.properties


def untouched(listing: Listing, since: int, commits: int) -> pl.DataFrame:
    """The manifests that every commit from `since` on lists."""
    through = listing.presence.filter(
        (pl.col("begin") <= since) & (pl.col("end").is_null() | (pl.col("end") >= commits))
    )
    return listing.manifests.join(through.select("manifest"), on="manifest", how="semi")


def moves(since: int) -> tuple[pl.Expr, pl.Expr]:
    """Whether something came after a commit, or was there and went."""
    came = pl.col("begin") > since
    return came, ~came & pl.col("end").is_not_null()


def _moved(since: int) -> pl.Expr:
    came, went = moves(since)
    return came | went


def aged(files: pl.DataFrame, since: int, sequence: int) -> pl.DataFrame:
    """The files that came under a sequence number of before, so that deletes from before may apply to them: they came
    back, or a compaction gave them that number. `sequence` is the one of then."""
    return files.filter((pl.col("begin") > since) & (pl.col("sequence") <= sequence))


def telling(files: pl.DataFrame, deletes: pl.DataFrame, since: int, sequence: int) -> pl.DataFrame:
    """Of all position deletes those that have to be read to know in which files rows were deleted, or came back, since
    then: those that came or went, and the others that apply to the same files."""
    changed = deletes.filter(_moved(since))["referenced_data_file"]
    if changed.null_count() or len(aged(files, since, sequence)):
        return deletes
    fresh = files.filter(pl.col("begin") > since)
    unscoped = ~_SCOPED & pl.lit(bool(len(changed)))
    named = pl.concat([changed, fresh["path"]]).implode()
    return deletes.filter(unscoped | pl.col("referenced_data_file").is_in(named))


def settled(
    files: pl.DataFrame,
    deletes: pl.DataFrame,
    since: int,
    passed: pl.DataFrame,
    source: IcebergTable,
    held: Held,
    reached: pl.DataFrame,
    progress: ProgressSink,
) -> tuple[pl.DataFrame, pl.DataFrame] | None:
    """The files, with those that the manifests that were `passed` over list and that lost rows since, and the deleted
    positions; None where that cannot be told without these manifests.

    `held` tells which positions of a file are deleted at commit `since`. What is told must only add to them: where one
    would come back, a delete that was not read may forbid that. Files that are `reached` (path, begin) may lose more
    rows.
    """
    table, sequence = source.table, source.snapshots[since].sequence
    back, (came, went) = aged(files, since, sequence)["path"], moves(since)
    new, gone = deletes.filter(came), deletes.filter(went)
    # what was there before applies to the new files that are as old, and to what the target knows
    earlier = deletes.filter(~came)
    earlier = earlier.filter(
        pl.col("referenced_data_file").is_in(back.implode()) | (~_SCOPED & pl.lit(bool(len(back))))
    )
    if table.format_version > 2 and (new["format"] != "puffin").any():
        return None  # a vector that was not read may stand in for them
    read = pl.concat([new, gone.filter(~_VECTOR), earlier]).unique(["entry", "begin"], maintain_order=True)
    found = stored(read, table, source.path_map, progress)
    if found.faults:
        return None
    named = _named(found, gone.filter(_VECTOR)).filter(_moved(since))
    concerned = _concerned(named, files, since)
    before = files.filter(~came)
    asked = pl.concat([concerned["path"], reached.filter(~came)["path"]])
    if (deletes["begin"] <= since).any() or (passed["content"] != 0).any():  # what lived of a file ends with it
        asked = pl.concat([asked, before.filter(pl.col("end").is_not_null())["path"]])
    asked = asked.unique().sort()
    state, positions = _state(held, asked.to_list())
    counts = before.join(state, on="path", suffix="_held")
    beside = state.join(before, on="path", how="anti")
    # a file that is only known to be there is not younger than commit `since`, and of a spec of those manifests
    others = concerned.filter(came & pl.col("path").is_in(beside["path"].implode()))
    specs = passed.filter(pl.col("content") == 0)["spec"].unique().to_list()
    by_spec = set(others.filter(~_SCOPED)["spec"])
    if (
        len(state) != len(asked)
        or (counts["record_count"] != counts["record_count_held"]).any()
        or (others["sequence"] < sequence).any()
        or (by_spec and (len(specs) != 1 or by_spec != set(specs)))
    ):
        return None
    every = pl.concat([_as_files(beside, since, sequence, max(specs, default=0), files.schema), files])
    every = every.with_row_index("file").with_columns(pl.col("file").cast(pl.Int64))
    known = _known(every.filter(~came), state, positions, found, gone)
    applying = found.of(came | pl.col("entry").is_in(earlier["entry"].implode()))
    pieces, deleted, problems = apply(every, applying, table, known)
    return (pieces, deleted) if len(pieces) == len(every) and not problems else None


def _named(found: Stored, vectors: pl.DataFrame) -> pl.DataFrame:
    """Deletes (begin, end, sequence, spec, referenced_data_file) with the data files (path) that they name."""
    facts = ["begin", "end", "sequence", "spec", "referenced_data_file"]
    pairs = found.rows.select("delete", "name").unique().join(found.names, on="name")
    rows = pairs.join(found.deletes.select("delete", *facts), on="delete").select(*facts, "path")
    return pl.concat([rows, vectors.select(*facts, path="referenced_data_file")])


def _concerned(named: pl.DataFrame, files: pl.DataFrame, since: int) -> pl.DataFrame:
    """Those that name a file which was there at commit `since` and outlived their coming or going."""
    came = pl.col("begin") > since
    last = files.filter(~came).select("path", last="end", listed=True)
    lately = files.filter(came).select("path", lately=True).unique()
    at = pl.when(came).then("begin").otherwise("end")
    joined = named.join(last, on="path", how="left").join(lately, on="path", how="left")
    there = pl.col("listed").is_not_null() | pl.col("lately").is_null()
    return joined.filter(there & (pl.col("last").is_null() | (pl.col("last") > at)))


def _state(held: Held, paths: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(place, path, record_count) of the files that the target holds, and (place, position) of what is deleted."""
    if not paths:
        nothing = {"place": pl.Int64, "position": pl.Int64}
        return pl.DataFrame(schema={"place": pl.Int64, "path": pl.String, "record_count": pl.Int64}), pl.DataFrame(
            schema=nothing
        )
    standing = held.standing(paths)
    files, deletes = pl.DataFrame(standing.files), pl.DataFrame(standing.deletes)
    return (
        files.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64)),
        deletes.select(pl.col("file").alias("place"), "position"),
    )


def _as_files(
    held: pl.DataFrame, since: int, sequence: int, spec: int, schema: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    """Files that only the target told of, as those of a manifest."""
    given = {
        "path": pl.col("path"),
        "record_count": pl.col("record_count"),
        "format": pl.lit("parquet"),
        "size": pl.lit(0),
        "spec": pl.lit(spec),
        "sequence": pl.lit(sequence),
        "encrypted": pl.lit(False),
        "begin": pl.lit(since),
    }
    return held.select((given.get(name, pl.lit(None))).cast(type_).alias(name) for name, type_ in schema.items())


def _known(
    before: pl.DataFrame, state: pl.DataFrame, positions: pl.DataFrame, found: Stored, gone: pl.DataFrame
) -> pl.DataFrame:
    """Positions that the target holds deleted (file, position, begin, end): for good, or until a delete went that may
    have been the one."""
    rows = positions.join(state.select("place", "path"), on="place").join(
        before.select("path", "file", "begin", "end"), on="path"
    )
    plain = found.deletes.join(gone.filter(~_VECTOR), on=["entry", "begin"], how="semi")
    by_row = found.rows.join(plain.select("delete", until="end"), on="delete").join(found.names, on="name")
    by_row = by_row.group_by("path", "position").agg(pl.col("until").min())
    by_file = gone.filter(_VECTOR).group_by(path="referenced_data_file").agg(pl.col("end").min().alias("masked"))
    rows = rows.join(by_row, on=["path", "position"], how="left").join(by_file, on="path", how="left")
    return rows.select("file", "position", "begin", pl.min_horizontal("end", "until", "masked").alias("end"))


def only(
    files: pl.DataFrame, deleted: pl.DataFrame, since: int, reached: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Files that begin or end later, lose rows later or are `reached` (path, begin), numbered anew, with their deleted
    rows."""
    losing = deleted.filter(pl.col("begin") > since)["file"]
    losing = pl.concat([losing, files.join(reached, on=["path", "begin"], how="semi")["file"]]).unique()
    kept = files.sort("file").filter(_moved(since) | pl.col("file").is_in(losing.implode()))
    numbers = kept.select("file").with_row_index("now").with_columns(pl.col("now").cast(pl.Int64))
    moved = deleted.join(numbers, on="file").sort("now", "position")
    return (
        kept.with_columns(numbers["now"].alias("file")),
        moved.select(pl.col("now").alias("file"), "position", "begin"),
    )
