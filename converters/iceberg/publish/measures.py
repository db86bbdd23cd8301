"""The statistics of the files to publish, spooled to disk column by column as entries store them, and read back for the
files of one manifest: memory is bounded by a batch.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bridge.model.files import StatsBatch
from bridge.model.types import ColumnType, FieldId, Leaf
from converters.iceberg.publish.bounds import encoded

__all__ = ["MAPS", "Measures"]

MAPS = {
    "size": "column_sizes",
    "values": "value_counts",
    "nulls": "null_value_counts",
    "nans": "nan_value_counts",
    "lower": "lower_bounds",
    "upper": "upper_bounds",
}
_COUNTS = ("size", "values", "nulls", "nans")
_STORED = pa.schema(
    [
        pa.field("file", pa.int64()),
        *(pa.field(each, pa.int64()) for each in _COUNTS),
        pa.field("lower", pa.binary()),
        pa.field("upper", pa.binary()),
    ]
)
Pairs = tuple[dict[str, Any], ...]


class Measures:
    """`types` are the Iceberg types of the leaf columns at each schema version of the table; `version_of` says under
    which of these a file was written, so that its bounds are as long as they were then."""

    def __init__(self, types: Mapping[FieldId, Sequence[ColumnType]], version_of: np.ndarray) -> None:
        self._types = types
        self._version_of = version_of
        self._directory = Path(tempfile.mkdtemp(prefix="ducklake-bridge-"))
        self._clean = weakref.finalize(self, shutil.rmtree, self._directory, True)
        self._parts: dict[FieldId, list[Path]] = {}
        self._held: dict[FieldId, tuple[np.ndarray, pa.Table]] = {}

    def add(self, batch: StatsBatch) -> None:
        """Keep what is said of a column that the table has or had."""
        versions = self._types.get(batch.field)
        if versions is None or not batch.table.num_rows:
            return
        table = batch.table.combine_chunks()
        columns = {name: _array(table, name) for name in table.column_names}
        nans = columns["nans"].cast(pa.int64())
        if not batch.exact and versions[-1] not in (Leaf.STRING, Leaf.FLOAT32, Leaf.FLOAT64):
            # Spark answers min and max from bounds, but never those of text; those of floats are taken where no NaN is
            nothing = pa.nulls(len(nans), columns["lower"].type)
            columns |= {"lower": nothing, "upper": nothing}
        lower, upper = self._bounds(columns, versions, nans)
        kept = {
            "file": columns["file"],
            **{name: columns[name].cast(pa.int64()) for name in ("size", "values", "nulls")},
            # Iceberg passes over a file that holds nothing but NaN where Spark finds NaN greater than all else
            "nans": pa.array(np.where(_numbers(nans) == 0, 0, -1), mask=_numbers(nans) != 0, type=pa.int64()),
            "lower": pa.array(lower, pa.binary()),
            "upper": pa.array(upper, pa.binary()),
        }
        parts = self._parts.setdefault(batch.field, [])
        path = self._directory / f"{batch.field}-{len(parts)}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _STORED) as writer:
            writer.write_table(pa.table(kept, schema=_STORED))
        parts.append(path)

    def _bounds(
        self, columns: Mapping[str, pa.Array], versions: Sequence[ColumnType], nans: pa.Array
    ) -> tuple[list[bytes | None], list[bytes | None]]:
        if len(set(versions)) == 1:
            return encoded(columns["lower"], columns["upper"], versions[-1], nans)
        at = self._version_of[columns["file"].to_numpy()]
        lower: list[bytes | None] = [None] * len(at)
        upper: list[bytes | None] = [None] * len(at)
        for version in np.unique(at):
            rows = np.flatnonzero(at == version)
            taken = pa.array(rows)
            low, high = encoded(
                columns["lower"].take(taken), columns["upper"].take(taken), versions[version], nans.take(taken)
            )
            for place, one, other in zip(rows.tolist(), low, high, strict=True):
                lower[place], upper[place] = one, other
        return lower, upper

    def pairs(self, files: np.ndarray) -> dict[str, Iterable[Pairs]]:
        """The maps of some files' entries, in the order of the files."""
        columns: dict[str, list[list[dict[str, Any] | None]]] = {name: [] for name in MAPS.values()}
        for field in sorted(self._parts):
            known, table = self._column(field)
            place = np.searchsorted(known, files)
            place[place == len(known)] = 0
            found = known[place] == files
            index = pa.array(place, mask=~found)
            taken = table.take(index)
            for name, stored in MAPS.items():
                values = taken.column(name)
                if values.null_count < len(values):
                    columns[stored].append(_pairs(int(field), values))
        return {name: _transposed(each, len(files)) for name, each in columns.items()}

    def _column(self, field: FieldId) -> tuple[np.ndarray, pa.Table]:
        """A column's statistics in the order of the files; what lies on disk is mapped, not read."""
        if field not in self._held:
            tables = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in self._parts[field]]
            table = pa.concat_tables(tables)
            files = table.column("file").to_numpy()
            if len(files) > 1 and not (files[1:] > files[:-1]).all():
                order = np.argsort(files, kind="stable")
                table, files = table.take(pa.array(order)).combine_chunks(), files[order]
            self._held[field] = files, table
        return self._held[field]


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _numbers(values: pa.Array) -> np.ndarray:
    return np.asarray(values.fill_null(-1).to_numpy(zero_copy_only=False))


def _pairs(field: int, values: pa.ChunkedArray) -> list[dict[str, Any] | None]:
    """Key and value of each entry; equal ones are one dictionary, and counts are mostly equal."""
    found = values.combine_chunks().dictionary_encode()
    made: list[dict[str, Any] | None] = [{"key": field, "value": each} for each in found.dictionary.to_pylist()]
    indices = found.indices
    if indices.null_count:
        indices = indices.fill_null(len(made))
        made.append(None)
    return [made[place] for place in indices.to_pylist()]


def _transposed(columns: list[list[dict[str, Any] | None]], count: int) -> Iterable[Pairs]:
    if not columns:
        return [()] * count
    rows = zip(*columns, strict=True)
    if any(None in column for column in columns):
        return [tuple(each for each in row if each is not None) for row in rows]
    return rows
