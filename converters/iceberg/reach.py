"""Which manifests and data files equality deletes can concern, told without opening a data file.

A delete applies to older data files, of every spec when its own is unpartitioned, else of its partition. Where the
bounds of a key column have nothing in common no row of the file has such a key (specification, "Scan Planning").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from bridge.model.layout import Bucket, PartitionField, Simple, Truncate
from bridge.model.paths import apply_map
from bridge.model.schema import walk
from bridge.model.types import ColumnType, Decimal, FieldId, Leaf, Time, Timestamp
from converters import storage
from converters.iceberg.avro import read_records
from converters.iceberg.manifests import STATS_MAPS, entries
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.stats import decode, leaf_types

__all__ = ["Bounds", "concerned", "concerning", "keys_of", "outlived"]

_FAR = 1 << 62


class Bounds(Protocol):
    """Decoded statistics of entries, column by column."""

    def every(self, field: FieldId) -> Iterator[pl.DataFrame]:
        """(entry, nulls, lower, upper)."""
        ...


def outlived(deletes: pl.DataFrame, files: pl.DataFrame, passed: pl.DataFrame) -> bool:
    """Whether a delete that went leaves a data file behind that it may have applied to, so that rows come back."""
    for row in deletes.rows(named=True):
        if len(passed.filter((pl.col("content") == 0) & (pl.col("oldest") < row["sequence"]))):
            return True
        older = files.filter(pl.col("sequence") < row["sequence"])
        if (older["end"].fill_null(_FAR) > row["end"]).any():
            return True
    return False


def keys_of(deletes: pl.DataFrame, types: Mapping[FieldId, ColumnType]) -> dict[FieldId, ColumnType]:
    """The key columns whose bounds order as the values do."""
    ids = {int(each) for row in deletes["equality_ids"].to_list() for each in row or ()}
    return {field: type_ for field, type_ in types.items() if int(field) in ids and _is_ordered(type_)}


def _is_ordered(type_: ColumnType) -> bool:
    match type_:
        case Leaf.INT32 | Leaf.INT64 | Leaf.DATE | Leaf.STRING | Time() | Timestamp() | Decimal():
            return True
        case _:
            return False


def concerned(
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
            if not spec.fields or (of == spec.id and _overlap(numbers[spec.id], ours, summaries.get(path))):
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
    deletes: pl.DataFrame, files: pl.DataFrame, manifests: pl.DataFrame, source: IcebergTable, known: Sequence[Bounds]
) -> pl.DataFrame:
    """The data files (path, begin) of which a row may have a key that is deleted, by the bounds that are `known`."""
    types = keys_of(deletes, leaf_types(source.table.schemas.values()))
    keys = _delete_bounds(deletes, manifests, source, types)
    bounds = {field: pl.concat(found) for field in types if (found := [b for each in known for b in each.every(field)])}
    chosen = [files.clear()]
    for row in deletes.rows(named=True):
        older = (pl.col("sequence") < row["sequence"]) & (pl.col("begin") < (row["end"] or _FAR))
        reached = pl.col("end").is_null() | (pl.col("end") > row["begin"])
        here = pl.lit(not source.table.specs[row["spec"]].fields) | (pl.col("spec") == row["spec"])
        mine = files.filter(older & reached & here)
        for field, frame in bounds.items():
            own = keys.get((row["path"], field))
            if own is None or int(field) not in row["equality_ids"]:
                continue
            apart = (pl.col("lower") > own.upper) | (pl.col("upper") < own.lower)
            if not own.no_nulls:
                apart &= pl.col("nulls") == 0
            mine = mine.join(frame.filter(apart).select("entry"), on="entry", how="anti")
        chosen.append(mine)
    return pl.concat(chosen).select("path", "begin").unique()


@dataclass(frozen=True, slots=True)
class _Keys:
    """What a delete file says of a key column."""

    lower: Any
    upper: Any
    no_nulls: bool


def _delete_bounds(
    deletes: pl.DataFrame, manifests: pl.DataFrame, source: IcebergTable, types: Mapping[FieldId, ColumnType]
) -> dict[tuple[str, FieldId], _Keys]:
    """By delete file and key column; where it says nothing of one every value may be in it."""
    found: dict[tuple[str, FieldId], _Keys] = {}
    theirs = manifests.filter(pl.col("manifest").is_in(deletes["manifest"].unique().implode()))
    for frame in entries(theirs, source.path_map):
        if isinstance(frame, tuple):
            continue
        rows = frame.filter(pl.col("content") == 2).with_row_index("entry").with_columns(pl.col("entry").cast(pl.Int64))
        for field, table in decode(rows.select("entry", *STATS_MAPS), types):
            stated = pl.DataFrame(table).join(rows.select("entry", "path"), on="entry")
            for each in stated.drop_nulls(["lower", "upper"]).iter_rows(named=True):
                found[each["path"], field] = _Keys(each["lower"], each["upper"], each["nulls"] == 0)
    return found
