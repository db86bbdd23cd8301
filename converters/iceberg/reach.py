"""Which manifests and data files equality deletes can concern, told without opening a data file.

A delete applies to older data files, of every spec when its own is unpartitioned, else of its partition. Where the
bounds of a key column have nothing in common no row of the file has such a key (specification, "Scan Planning"). Of
files that a target holds the target knows the bounds, so that no manifest needs to be read for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from bridge.errors import BridgeError, Unanswered
from bridge.model.layout import Bucket, PartitionField, Simple, Truncate
from bridge.model.paths import apply_map
from bridge.model.schema import walk
from bridge.model.types import ColumnType, Decimal, FieldId, Leaf, Time, Timestamp
from bridge.ports import Held
from converters import storage
from converters.iceberg.avro import mentions, read_records
from converters.iceberg.manifests import STATS_MAPS, entries
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.stats import decode, leaf_types

__all__ = ["Bounds", "Keys", "concerning", "keys_of", "outlived", "unread"]

_FAR = 1 << 62


class Bounds(Protocol):
    """Decoded statistics of entries, column by column."""

    def every(self, field: FieldId) -> Iterator[pl.DataFrame]:
        """(entry, nulls, lower, upper)."""
        ...


@dataclass(frozen=True, slots=True)
class Keys:
    """The key columns whose bounds order as the values do, with their types; and by delete file and key column what it
    says of that: one row (lower, upper, nulls). Where it says nothing every value may be in it."""

    types: Mapping[FieldId, ColumnType]
    stated: Mapping[tuple[str, FieldId], pl.DataFrame]


def outlived(deletes: pl.DataFrame, files: pl.DataFrame, passed: pl.DataFrame) -> bool:
    """Whether a delete that went leaves a data file behind that it may have applied to, so that rows come back."""
    for row in deletes.rows(named=True):
        if len(passed.filter((pl.col("content") == 0) & (pl.col("oldest") < row["sequence"]))):
            return True
        older = files.filter(pl.col("sequence") < row["sequence"])
        if (older["end"].fill_null(_FAR) > row["end"]).any():
            return True
    return False


def keys_of(deletes: pl.DataFrame, manifests: pl.DataFrame, source: IcebergTable) -> Keys:
    """What the manifests of equality deletes say of their key columns."""
    ids = {int(each) for row in deletes["equality_ids"].to_list() for each in row or ()}
    leaves = leaf_types(source.table.schemas.values())
    types = {field: type_ for field, type_ in leaves.items() if int(field) in ids and _is_ordered(type_)}
    stated: dict[tuple[str, FieldId], pl.DataFrame] = {}
    theirs = manifests.filter(pl.col("manifest").is_in(deletes["manifest"].unique().implode()))
    for frame in entries(theirs, source.path_map):
        if isinstance(frame, tuple):
            continue
        rows = frame.filter(pl.col("content") == 2).with_row_index("entry").with_columns(pl.col("entry").cast(pl.Int64))
        for field, table in decode(rows.select("entry", *STATS_MAPS), types):
            known = pl.DataFrame(table).join(rows.select("entry", "path"), on="entry").drop_nulls(["lower", "upper"])
            for (path,), one in known.group_by("path"):
                stated[str(path), field] = one.select("lower", "upper", "nulls").head(1)
    return Keys(types, stated)


def _is_ordered(type_: ColumnType) -> bool:
    match type_:
        case Leaf.INT32 | Leaf.INT64 | Leaf.DATE | Leaf.STRING | Time() | Timestamp() | Decimal():
            return True
        case _:
            return False


def unread(
    deletes: pl.DataFrame,
    keys: Keys,
    since: int,
    passed: pl.DataFrame,
    read: pl.Series,
    manifests: pl.DataFrame,
    source: IcebergTable,
    held: Held,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What deletes that came after commit `since` can concern in manifests that were `passed` over: those manifests
    that must be read to tell, and the files (path, begin) for which the target's word is enough. The paths of what the
    others list are `read`."""
    more, alone = _concerned(deletes, passed, manifests, source), pl.DataFrame(schema=_FILES)
    if not len(more) or not keys.stated:
        return more, alone
    suspects = _suspects(deletes, keys, held)
    if suspects.null_count():  # what was written for the target stands for a file whose path it does not tell
        return more, alone
    suspects = suspects.filter(~suspects.is_in(read.implode()))
    plain = all(not source.table.specs[each].fields for each in more["spec"].unique())
    if plain and (deletes["sequence"] > source.snapshots[since].sequence).all():
        return more.clear(), pl.DataFrame({"path": suspects, "begin": since}, schema=_FILES)
    return _listing(more, suspects), alone


_FILES = {"path": pl.String, "begin": pl.Int64}


def _suspects(deletes: pl.DataFrame, keys: Keys, held: Held) -> pl.Series:
    """The paths of the files that a target holds of which a row may have a key that is deleted, by its statistics."""
    told = held.measures(keys.types)
    files = pl.DataFrame(told.files).with_row_index("file").with_columns(pl.col("file").cast(pl.Int64))
    bounds: dict[FieldId, list[pl.DataFrame]] = {}
    for batch in told.stats:
        known = pl.DataFrame(batch.table).select("file", "nulls", "lower", "upper")
        bounds.setdefault(batch.field, []).append(known)
    every = {field: pl.concat(frames) for field, frames in bounds.items()}
    chosen = [_possible(files, "file", row, keys, every) for row in deletes.rows(named=True)]
    return pl.concat([files.clear(), *chosen]).unique("file")["path"]


def _possible(
    files: pl.DataFrame, id_: str, delete: Mapping[str, Any], keys: Keys, bounds: Mapping[FieldId, pl.DataFrame]
) -> pl.DataFrame:
    """The files of which a row may have a key that is deleted. `bounds` tell of some, by a column `id_`."""
    for field, known in bounds.items():
        own = keys.stated.get((delete["path"], field))
        if own is None or int(field) not in delete["equality_ids"] or own.schema["lower"] != known.schema["lower"]:
            continue
        pairs = known.join(own.select(low="lower", high="upper", none="nulls"), how="cross")
        apart = (pl.col("lower") > pl.col("high")) | (pl.col("upper") < pl.col("low"))
        files = files.join(
            pairs.filter(apart & ((pl.col("none") == 0) | (pl.col("nulls") == 0))).select(id_), on=id_, how="anti"
        )
    return files


def _listing(manifests: pl.DataFrame, paths: pl.Series) -> pl.DataFrame:
    """Those manifests that may list one of some files; they hold paths as they were written, which end alike."""
    names = {path.rsplit("/", 1)[-1] for path in paths}

    def lists(path: str, encrypted: bool) -> bool:
        try:
            return encrypted or mentions(storage.read(path, "manifest"), names)
        except Unanswered:
            raise
        except (BridgeError, ValueError):
            return True  # whoever reads it says what is wrong

    kept = storage.parallel(lambda row: lists(*row), manifests.select("path", "encrypted").iter_rows())
    return manifests.filter(pl.Series(kept, dtype=pl.Boolean))


def _concerned(
    deletes: pl.DataFrame, passed: pl.DataFrame, manifests: pl.DataFrame, source: IcebergTable
) -> pl.DataFrame:
    """The manifests of data files, of those that were `passed` over, that may list one that a delete applies to."""
    data = passed.filter(pl.col("content") == 0)
    summaries = _summaries(source)
    types = {each.field.id: each.field.type for each in walk(source.table.all_fields)}
    numbers = {
        id_: [_is_number(each, types.get(each.source)) for each in spec.fields]
        for id_, spec in source.table.specs.items()
    }
    path_of = dict(manifests.select("manifest", "path").iter_rows())
    kept: set[int] = set()
    for row in deletes.unique("entry").rows(named=True):
        spec, ours = source.table.specs[row["spec"]], summaries.get(path_of[row["manifest"]])
        for manifest, path, of, oldest in data.select("manifest", "path", "spec", "oldest").iter_rows():
            if manifest in kept or oldest >= row["sequence"]:
                continue
            if not spec.is_partitioned or (of == spec.id and _overlap(numbers[spec.id], ours, summaries.get(path))):
                kept.add(manifest)
    return data.filter(pl.col("manifest").is_in(list(kept)))


Summary = Sequence[Mapping[str, Any]] | None
"""Of each partition field the bounds of the values in a manifest, and whether there are nulls."""


def _summaries(source: IcebergTable) -> dict[str, Summary]:
    """Of the manifests that the newest commit lists, by path."""
    place = source.snapshots[-1].manifest_list
    if place is None:
        return {}
    try:
        records = read_records(storage.read(place, "manifest list"))
    except ValueError:
        return {}
    return {apply_map(each["manifest_path"], source.path_map): each.get("partitions") for each in records}


def _overlap(numbers: Sequence[bool], one: Summary, other: Summary) -> bool:
    """Whether two manifests may hold entries of one partition; True where it is not told. `numbers` says of each field
    whether its values are stored as whole numbers."""
    if not one or not other or len(one) != len(numbers) or len(other) != len(numbers):
        return True
    for number, a, b in zip(numbers, one, other, strict=True):
        if (a["contains_null"] and b["contains_null"]) or not number:
            continue
        low, high = (_number(a[name]) for name in ("lower_bound", "upper_bound"))
        least, most = (_number(b[name]) for name in ("lower_bound", "upper_bound"))
        if low is None or high is None or least is None or most is None:
            continue
        if high < least or most < low:
            return False
    return True


def _is_number(field: PartitionField, type_: ColumnType | None) -> bool:
    """Whether partition values are stored as whole numbers."""
    if field.transform is Simple.IDENTITY or isinstance(field.transform, Truncate):
        return type_ in (Leaf.INT32, Leaf.INT64, Leaf.DATE) or isinstance(type_, Time | Timestamp)
    return isinstance(field.transform, Simple | Bucket) and field.transform is not Simple.VOID


def _number(bound: bytes | None) -> int | None:
    return None if bound is None or len(bound) not in (4, 8) else int.from_bytes(bound, "little", signed=True)


def concerning(
    deletes: pl.DataFrame, keys: Keys, files: pl.DataFrame, source: IcebergTable, known: Sequence[Bounds]
) -> pl.DataFrame:
    """The data files (path, begin) of which a row may have a key that is deleted, by the bounds that are `known`."""
    bounds = {f: pl.concat(found) for f in keys.types if (found := [b for each in known for b in each.every(f)])}
    chosen = [files.clear()]
    for row in deletes.rows(named=True):
        older = (pl.col("sequence") < row["sequence"]) & (pl.col("begin") < (row["end"] or _FAR))
        reached = pl.col("end").is_null() | (pl.col("end") > row["begin"])
        here = pl.lit(not source.table.specs[row["spec"]].is_partitioned) | (pl.col("spec") == row["spec"])
        chosen.append(_possible(files.filter(older & reached & here), "entry", row, keys, bounds))
    return pl.concat(chosen).select("path", "begin").unique()
