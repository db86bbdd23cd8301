"""The statistics of the files to publish, spooled to disk column by column as entries store them, and read back for the
files of one manifest: memory is bounded by a batch.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bridge.model.files import StatsBatch
from bridge.model.types import ColumnType, FieldId, Leaf
from converters.iceberg.publish.bounds import encoded
from converters.storage.scratch import scratch

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
_SERVED = 50_000
"""Files after which what was mapped of the disk is given back."""
Pairs = tuple[dict[str, Any], ...]


class _Part(NamedTuple):
    """A file of the spool, in the order of the data files, with the first of them and the last."""

    path: Path
    first: int
    last: int


class Measures:
    """`types` are the Iceberg types of the leaf columns at each schema version of the table; `version_of` says under
    which of these a file was written, so that its bounds are as long as they were then."""

    def __init__(self, types: Mapping[FieldId, Sequence[ColumnType]], version_of: np.ndarray) -> None:
        self._types = types
        self._version_of = version_of
        self._directory = Path(tempfile.mkdtemp(dir=scratch()))
        self._clean = weakref.finalize(self, shutil.rmtree, self._directory, True)
        self._parts: dict[FieldId, list[_Part]] = {}
        self._held: dict[Path, pa.Table] = {}
        self._served = 0

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
        stored, files = pa.table(kept, schema=_STORED), columns["file"].to_numpy()
        if not (files[1:] > files[:-1]).all():
            order = np.argsort(files, kind="stable")
            stored, files = stored.take(pa.array(order)).combine_chunks(), files[order]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _STORED) as writer:
            writer.write_table(stored)
        parts.append(_Part(path, int(files[0]), int(files[-1])))

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
        self._served += len(files)
        if self._served > _SERVED:
            self._held, self._served = {}, len(files)
        columns: dict[str, list[list[dict[str, Any] | None]]] = {name: [] for name in MAPS.values()}
        for field in sorted(self._parts):
            taken = self._taken(field, files)
            for name, stored in MAPS.items():
                values = taken.column(name)
                if values.null_count < len(values):
                    columns[stored].append(_pairs(int(field), values))
        return {name: _transposed(each, len(files)) for name, each in columns.items()}

    def _taken(self, field: FieldId, files: np.ndarray) -> pa.Table:
        """What is known of a column in some files, in their order; NULL where nothing is. Of a file that is told of
        twice the first counts."""
        found, place, count = [_STORED.empty_table()], np.full(len(files), -1, dtype=np.int64), 0
        low, high = files.min(), files.max()
        for part in self._parts[field]:
            if part.last < low or part.first > high:
                continue
            table = self._opened(part.path)
            known = table.column("file").chunk(0).to_numpy()
            at = np.searchsorted(known, files)
            at[at == len(known)] = 0
            mine = np.flatnonzero((known[at] == files) & (place < 0))
            if len(mine) == len(files):
                return table.take(pa.array(at))
            place[mine] = np.arange(count, count + len(mine))
            count += len(mine)
            found.append(table.take(pa.array(at[mine])))
        return pa.concat_tables(found).combine_chunks().take(pa.array(place, mask=place < 0))

    def _opened(self, path: Path) -> pa.Table:
        """What lies on disk is mapped, not read, in one piece."""
        if path not in self._held:
            self._held[path] = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        return self._held[path]


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
