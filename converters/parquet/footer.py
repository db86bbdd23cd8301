"""What a Parquet file's footer says: field ids, physical types, layout of nested columns, writer, encryption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bridge.errors import BridgeError, Unanswered, Unreachable
from converters import storage
from converters.parquet.shape import read_variants

__all__ = ["Column", "Footer", "read_footer", "read_footers"]

_ID = b"PARQUET:field_id"
_WHOLE = ("BOOLEAN", "INT32", "INT64")


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf column: the field ids on its way from the top (None where a level carries none), its physical and
    logical type, whether it lies in a list or map, whether all levels have the standard shape (three-level lists,
    key_value maps), whether any row group states bounds for it, and its value and null counts (None: not said);
    `stored` is the dotted path by which pyarrow selects it. `bounds` are those of whole numbers, as stored; they are
    read from files without field ids only, where no manifest knows better."""

    path: tuple[str, ...]
    ids: tuple[int | None, ...]
    physical: str
    logical: str
    length: int
    repeated: bool
    standard: bool
    has_bounds: bool
    values: int
    nulls: int | None
    size: int
    stored: str
    bounds: tuple[int, int] | None = None

    @property
    def id(self) -> int | None:
        return self.ids[-1]


@dataclass(frozen=True, slots=True)
class Footer:
    """A file's size and footer length in bytes, its rows, writer and leaf columns."""

    path: str
    size: int
    footer_size: int
    record_count: int
    created_by: str
    encrypted: bool
    columns: tuple[Column, ...]
    top_ids: tuple[int | None, ...]
    variants: frozenset[str] = frozenset()
    """The top-level groups that carry the annotation VARIANT; looked for only where a group looks like one."""

    @property
    def has_ids(self) -> bool:
        """Every top-level column carries a field id, so that DuckLake matches by id."""
        return bool(self.top_ids) and None not in self.top_ids

    @property
    def all_ids(self) -> frozenset[int]:
        """Every field id on any level."""
        nested = {id_ for each in self.columns for id_ in each.ids if id_ is not None}
        return frozenset(nested | {id_ for id_ in self.top_ids if id_ is not None})


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: tuple[str, ...]
    ids: tuple[int | None, ...]
    levels: int
    repeated: bool


def read_footer(path: str) -> Footer:
    """Open one file's footer; Unreachable when the file is gone, damaged or not Parquet."""
    with storage.open_input(path, "data file") as source, storage.reading(path, "data file"):
        size = source.size()
        if size < 12:
            raise Unreachable(f"data file {path} is not Parquet: it has {size} bytes")
        source.seek(size - 8)
        tail = source.read(8)
        if tail[4:] == b"PARE":
            return Footer(path, size, int.from_bytes(tail[:4], "little"), 0, "", True, (), ())
        if tail[4:] != b"PAR1":
            raise Unreachable(f"data file {path} is not Parquet: it does not end with PAR1")
        source.seek(0)
        try:
            footer = _parsed(path, size, int.from_bytes(tail[:4], "little"), pq.read_metadata(source))
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            storage.raise_unanswered(path, "data file", error)
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise Unreachable(f"data file {path} has a damaged footer: {first}") from error
    if any(len(each.path) == 2 and each.path[1] == "metadata" for each in footer.columns):
        return replace(footer, variants=read_variants(path))
    return footer


def _parsed(path: str, size: int, footer_size: int, metadata: Any) -> Footer:
    arrow = metadata.schema.to_arrow_schema()
    leaves = list(_leaves(list(arrow), ()))
    encrypted = False
    columns = []
    unnamed = any(None in leaf.ids for leaf in leaves)
    for index, leaf in enumerate(leaves):
        declared = metadata.schema.column(index)
        stats = _statistics(metadata, index)
        encrypted = encrypted or stats[4]
        columns.append(
            Column(
                path=leaf.path,
                ids=leaf.ids,
                physical=declared.physical_type,
                logical=str(declared.logical_type),
                length=declared.length or 0,
                repeated=leaf.repeated,
                standard=declared.path.count(".") == leaf.levels - 1,
                has_bounds=stats[0],
                values=stats[1],
                nulls=stats[2],
                size=stats[3],
                stored=declared.path,
                bounds=_bounds(metadata, index) if unnamed and not leaf.repeated else None,
            )
        )
    return Footer(
        path=path,
        size=size,
        footer_size=footer_size,
        record_count=metadata.num_rows,
        created_by=metadata.created_by or "",
        encrypted=encrypted,
        columns=tuple(columns),
        top_ids=tuple(_id(field) for field in arrow),
    )


def _statistics(metadata: Any, index: int) -> tuple[bool, int, int | None, int, bool]:
    bounds, values, nulls, size, hidden = False, 0, 0, 0, False
    known = True
    for group in range(metadata.num_row_groups):
        try:
            chunk = metadata.row_group(group).column(index)
            stats = chunk.statistics
        except (pa.ArrowException, OSError):  # the chunk's metadata is encrypted with a key of its own
            return False, 0, None, 0, True
        values += chunk.num_values
        size += chunk.total_compressed_size
        if stats is None or not stats.has_null_count:
            known = False
        else:
            nulls += stats.null_count
        bounds = bounds or (stats is not None and stats.has_min_max)
    return bounds, values, nulls if known else None, size, hidden


def _bounds(metadata: Any, index: int) -> tuple[int, int] | None:
    """The hull over all row groups that hold a value; None when one of them states none."""
    if metadata.schema.column(index).physical_type not in _WHOLE:
        return None
    lows, highs = [], []
    try:
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(index)
            stats = chunk.statistics
            if stats is not None and stats.has_null_count and stats.null_count == chunk.num_values:
                continue
            if stats is None or not stats.has_min_max:
                return None
            lows.append(int(stats.min_raw))
            highs.append(int(stats.max_raw))
    except (pa.ArrowException, OSError):
        return None
    return (min(lows), max(highs)) if lows else None


def _id(field: Any) -> int | None:
    stored = (field.metadata or {}).get(_ID)
    return int(stored) if stored is not None else None


def _leaves(
    fields: Sequence[Any],
    path: tuple[str, ...],
    ids: tuple[int | None, ...] = (),
    levels: int = 0,
    repeated: bool = False,
) -> Iterator[_Leaf]:
    """The leaves in file order; `levels` counts the names that the Parquet path of a standard layout has (a name that
    holds dots counts as so many more)."""
    for field in fields:
        here, own = (*path, field.name), (*ids, _id(field))
        depth = levels + 1 + field.name.count(".")
        type_ = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
        if pa.types.is_struct(type_):
            yield from _leaves([type_.field(i) for i in range(type_.num_fields)], here, own, depth, repeated)
        elif pa.types.is_map(type_):
            yield from _leaves([type_.key_field, type_.item_field], here, own, depth + 1, True)
        elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
            yield from _leaves([type_.value_field], here, own, depth + 1, True)
        else:
            yield _Leaf(here, own, depth, repeated)


def read_footers(paths: Sequence[str]) -> list[Footer | BridgeError]:
    """The footers of many files in their order; a file that cannot be read gives its error instead."""

    def one(path: str) -> Footer | BridgeError:
        try:
            return read_footer(path)
        except Unanswered:
            raise
        except BridgeError as error:
            return error

    return storage.parallel(one, paths)
