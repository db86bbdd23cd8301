"""The statistics that DuckDB's COPY returns of a Parquet file, as exact statistics by field id.

Not everything that it returns is exact: texts and blobs longer than 256 bytes are cut (the file says so, chunk by
chunk), interval and timetz columns count nothing, and NaN is told but not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridge.model.schema import walk
from bridge.model.types import ColumnType, Field, FieldId, Fixed, Geo, Leaf, ListOf, MapOf, Struct
from converters.parquet import quiet
from converters.parquet.footer import read_footer
from converters.parquet.sql import arrow_type, duckdb_type, pattern

__all__ = ["ColumnStat", "column_stats", "typed_stats"]


_BATCH = 65_536


@dataclass(frozen=True, slots=True)
class ColumnStat:
    """Statistics of one leaf column; see bridge.model.rewrite.WRITTEN. All None: nothing is known."""

    field: int
    size: int | None = None
    values: int | None = None
    nulls: int | None = None
    nans: int | None = None
    lower: str | None = None
    upper: str | None = None


@dataclass(frozen=True, slots=True)
class _LeafColumn:
    """A leaf with its path as COPY names it, and as the file's own metadata does."""

    field: Field
    told: tuple[str, ...]
    stored: str


def column_stats(
    connection: duckdb.DuckDBPyConnection,
    fields: tuple[Field, ...],
    told: Mapping[str, Mapping[str, str]],
    local: str,
) -> tuple[ColumnStat, ...]:
    """One entry for each leaf column of a file that COPY wrote to `local`, from its RETURN_STATS."""
    by_path = {_parts(name): stat for name, stat in told.items()}
    leaves = list(_leaf_columns(fields))
    cut = _cut(connection, local) if any(_may_be_cut(each.field.type) for each in leaves) else frozenset()
    return tuple(_stat(each, by_path.get(each.told), each.stored in cut, local) for each in leaves)


def _stat(leaf: _LeafColumn, stat: Mapping[str, str] | None, cut: bool, local: str) -> ColumnStat:
    id_ = int(leaf.field.id)
    if stat is None or leaf.field.type in _UNCOUNTED:
        return ColumnStat(id_)
    nans = None
    if "has_nan" in stat:
        nans = _nans(local, id_) if stat["has_nan"] == "true" else 0
    return ColumnStat(
        id_,
        _int(stat, "column_size_bytes"),
        _int(stat, "num_values"),
        _int(stat, "null_count"),
        nans,
        None if cut else stat.get("min"),
        None if cut else stat.get("max"),
    )


_UNCOUNTED: frozenset[ColumnType] = frozenset({Leaf.INTERVAL, Leaf.TIMETZ, Leaf.VARIANT})


def _int(stat: Mapping[str, str], name: str) -> int | None:
    return int(stat[name]) if name in stat else None


def _may_be_cut(type_: ColumnType) -> bool:
    return type_ in (Leaf.STRING, Leaf.JSON, Leaf.BINARY) or isinstance(type_, Fixed)


def _cut(connection: duckdb.DuckDBPyConnection, local: str) -> frozenset[str]:
    """Columns of a file whose bounds some chunk states cut."""
    query = (
        "SELECT DISTINCT path_in_schema FROM parquet_metadata(?) "
        "WHERE NOT coalesce(min_is_exact, true) OR NOT coalesce(max_is_exact, true)"
    )
    return frozenset(name for (name,) in connection.execute(query, [pattern(local)]).fetchall())


def _parts(stored: str) -> tuple[str, ...]:
    """The path of a column in COPY's statistics: quoted names joined by dots."""
    parts: list[str] = []
    rest = stored
    while rest:
        end = 1
        while rest[end] != '"' or rest[end + 1 : end + 2] == '"':
            end += 2 if rest[end] == '"' else 1
        parts.append(rest[1:end].replace('""', '"'))
        rest = rest[end + 2 :]
    return tuple(parts)


def _leaf_columns(fields: tuple[Field, ...]) -> Iterator[_LeafColumn]:
    """The leaves: element, key and value are the levels of lists and maps."""

    def below(field: Field, told: tuple[str, ...], stored: tuple[str, ...]) -> Iterator[_LeafColumn]:
        match field.type:
            case Struct(inner):
                for each in inner:
                    yield from below(each, (*told, each.name), (*stored, each.name))
            case ListOf(element):
                yield from below(element, (*told, "element"), (*stored, "list", "element"))
            case MapOf(key, value):
                yield from below(key, (*told, "key"), (*stored, "key_value", "key"))
                yield from below(value, (*told, "value"), (*stored, "key_value", "value"))
            case _:
                yield _LeafColumn(field, told, ", ".join(stored))

    for field in fields:
        yield from below(field, (field.name,), (field.name,))


def _nans(local: str, id_: int) -> int:
    """The NaN of one column, which is read back: COPY only says that there are some."""
    [place] = [number for number, each in enumerate(read_footer(local).columns) if each.id == id_]
    count = 0
    with pq.ParquetFile(local) as file:
        # by its place: its name could be that of another column too, where names hold dots
        wanted = {"row_groups": range(file.num_row_groups), "column_indices": [place]}
        for batch in file.reader.iter_batches(_BATCH, use_threads=False, **wanted):
            count += pc.sum(pc.is_nan(_values(batch.column(0)))).as_py() or 0
    return count


def _values(values: Any) -> pa.Array:
    """The values of a column that was read of all its leaves alone: one field at each level, and a map is a list."""
    while pa.types.is_nested(values.type):
        below = values.flatten()
        values = below[0] if pa.types.is_struct(values.type) else below
    return values


def typed_stats(written: pa.Table, fields: tuple[Field, ...]) -> Iterator[tuple[FieldId, pa.Table]]:
    """The statistics of WRITTEN rows by column, bounds in the column's own type."""
    stated = written.column("stats").combine_chunks()
    flat = stated.flatten()
    rows = stated.value_lengths().to_pylist()
    owners = pa.array([row for row, count in enumerate(rows) for _ in range(count or 0)], pa.int64())
    if not len(flat):
        return
    parts = pa.table({name: flat.field(name) for name in flat.type.names}).append_column("file", owners)
    with quiet.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for field in (each.field for each in walk(fields) if each.is_leaf):
            mine = parts.filter(pc.equal(parts.column("field"), int(field.id)))
            if mine.num_rows:
                columns = {name: mine.column(name) for name in ("file", "size", "values", "nulls", "nans")}
                yield field.id, pa.table({**columns, **_bounds(connection, mine, field.type)})


def _bounds(connection: duckdb.DuckDBPyConnection, mine: pa.Table, type_: ColumnType) -> dict[str, pa.Array]:
    if type_ in _UNCOUNTED or isinstance(type_, Geo):
        return dict.fromkeys(("lower", "upper"), pa.nulls(mine.num_rows))
    connection.register("mine", mine)
    if type_ in (Leaf.JSON, Leaf.UUID):
        type_ = Leaf.STRING  # as text a uuid is ordered as the lake compares it
    cast = duckdb_type(type_)
    typed = connection.execute(
        f"SELECT CAST(lower AS {cast}) AS lower, CAST(upper AS {cast}) AS upper FROM mine"
    ).to_arrow_table()
    connection.unregister("mine")
    like = arrow_type(type_)
    return {name: typed.column(name).cast(like) for name in ("lower", "upper")}
