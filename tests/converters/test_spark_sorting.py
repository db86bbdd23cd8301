"""A rewrite task of a sorted target alone: the order is DuckDB's own, and every row says where it came from."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from decimal import Decimal as D
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge.errors import Unreachable
from bridge.model.rewrite import SortKey
from bridge.model.types import Decimal, Field, FieldId, Leaf, Struct, Timestamp
from converters.parquet.places import places_of
from converters.spark.plan import DataFile, RewriteTask, Settings, Target
from converters.spark.task import rewrite

ROW_ID, POSITION = "_ducklake_internal_row_id", "_bridge_position"
TYPES: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "long": (Leaf.INT64, pa.int64(), [3, -1, 2**60, 0]),
    "double": (Leaf.FLOAT64, pa.float64(), [0.0, -0.0, float("nan"), float("-inf"), 1.5]),
    "text": (Leaf.STRING, pa.string(), ["", "a", "B", "é", "a\0b"]),
    "bytes": (Leaf.BINARY, pa.binary(), [b"", b"\x00", b"\xff"]),
    "number": (Decimal(20, 2), pa.decimal128(20, 2), [D("1.10"), D("-7.00"), D("0.00")]),
    "at": (Timestamp(utc=True), pa.timestamp("us", "UTC"), [dt.datetime(y, 2, 3, tzinfo=dt.UTC) for y in (1, 1999)]),
    "uuid": (Leaf.UUID, pa.uuid(), [uuid.UUID(int=each).bytes for each in (0, 1, 2**127, 2**128 - 1)]),
    "flag": (Leaf.BOOLEAN, pa.bool_(), [True, False]),
}


def task(source: Path, out: Path, fields: tuple[Field, ...], *sort: SortKey, **more: Any) -> RewriteTask:
    known = {name: more.pop(name) for name in ("first_row_id", "record_count") if name in more}
    file = DataFile(str(source), **known)
    settings = Settings(**more.pop("settings", {}))
    return RewriteTask("7", file, Target(str(out), fields, settings, sort), "made", **more)


def save(path: Path, columns: dict[str, pa.Array]) -> None:
    """A Parquet file whose columns have the ids 1, 2, ..."""
    ids = ({"PARQUET:field_id": str(number)} for number in range(1, len(columns) + 1))
    fields = [pa.field(name, each.type, metadata=id_) for (name, each), id_ in zip(columns.items(), ids, strict=True)]
    pq.write_table(pa.table(list(columns.values()), schema=pa.schema(fields)), path)


def read(written: pa.Table) -> pa.Table:
    return pa.concat_tables(map(pq.read_table, written.column("path").to_pylist()))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_rows_stand_as_duckdb_orders_them(kind: str, descending: bool, tmp_path: Path) -> None:
    type_, arrow, values = TYPES[kind]
    chosen = random.Random(7).choices([*values, None], k=3_000)
    given = pa.array(chosen, arrow.storage_type if kind == "uuid" else arrow)
    given = pa.ExtensionArray.from_storage(arrow, given) if kind == "uuid" else given
    save(tmp_path / "source.parquet", {"v": given})
    fields = (Field(FieldId(1), "v", type_),)
    for nulls_first in (False, True):
        key = SortKey(("v",), descending, nulls_first)
        written = rewrite(task(tmp_path / "source.parquet", tmp_path / f"out{nulls_first}", fields, key))
        made = read(written)
        words = f"{'DESC' if descending else 'ASC'} NULLS {'FIRST' if nulls_first else 'LAST'}"
        with duckdb.connect() as connection:
            source = (
                f"SELECT v, file_row_number AS p FROM read_parquet('{tmp_path}/source.parquet', file_row_number = true)"
            )
            expected = connection.sql(f"SELECT p FROM ({source}) ORDER BY v {words}, p").fetchnumpy()["p"]
        places = made.column(POSITION).to_numpy()
        assert (places == expected).all()
        assert list(map(repr, made.column("v").to_pylist())) == [repr(given[int(place)].as_py()) for place in places]
        again = read(rewrite(task(Path(written.column("path")[0].as_py()), tmp_path / "again", fields, key)))
        assert again.column_names == ["v"] and repr(again.column("v").to_pylist()) == repr(made.column("v").to_pylist())


@pytest.mark.parametrize("threads", [1, 4])
def test_large_files_are_cut_and_those_in_order_stay(threads: int, tmp_path: Path) -> None:
    """Names are those of DuckDB's own columns; keys lie in a struct."""
    count = 300_000
    keys = np.random.default_rng(7).integers(0, 1_000, count)
    inner = pa.field("k'1", pa.int64(), metadata={"PARQUET:field_id": "3"})
    columns = {"rowid": pa.array(range(count)), POSITION: pa.StructArray.from_arrays([pa.array(keys)], fields=[inner])}
    save(tmp_path / "source.parquet", columns)
    fields = (
        Field(FieldId(1), "rowid", Leaf.INT64),
        Field(FieldId(2), POSITION, Struct((Field(FieldId(3), "k'1", Leaf.INT64),))),
    )
    key = SortKey((POSITION, "k'1"), True)
    more = {"settings": {"target_bytes": 1_000_000, "threads": threads, "memory": 128 << 20}}
    gone = tuple(range(5, count, 1_000))
    asked = task(tmp_path / "source.parquet", tmp_path / "out", fields, key, deleted=gone, first_row_id=50, **more)
    written = rewrite(asked)
    assert written.num_rows > 2 and written.column("first_row").to_pylist() == [None] * written.num_rows
    assert max(written.column("size").to_pylist()) <= 1_250_000
    made = read(written)
    order = np.lexsort((np.arange(count), -keys))
    order = order[~np.isin(order, gone)]
    assert (made.column("rowid").to_numpy() == order).all()
    assert (made.column(ROW_ID).to_numpy() == order + 50).all()
    assert (made.column(f"{POSITION}_").to_numpy() == order).all()
    asked_for = np.array([0, 5, 6, count - 1])
    found = places_of(written.column("path").to_pylist(), asked_for)
    assert found is not None and found[1] == -1 and (order[found[[0, 2, 3]]] == asked_for[[0, 2, 3]]).all()
    assert rewrite(asked).equals(written) or threads > 1

    again = tmp_path / "sorted.parquet"
    save(again, {name: made.column(name).combine_chunks() for name in columns})
    kept = rewrite(task(again, tmp_path / "kept", fields, key, first_row_id=50, **more))
    assert kept.column("first_row").to_pylist()[0] == 0
    assert read(kept).column_names == ["rowid", POSITION] and (read(kept).column("rowid").to_numpy() == order).all()
    assert places_of(kept.column("path").to_pylist(), asked_for) is None


@pytest.mark.parametrize("target_bytes", [1, 1 << 20])
def test_what_is_wrong_with_a_file_is_said_of_it(target_bytes: int, tmp_path: Path) -> None:
    save(tmp_path / "source.parquet", {"v": pa.array([2, 1, 3])})
    fields = (Field(FieldId(1), "v", Leaf.INT64),)
    more: dict[str, Any] = {"record_count": 4, "settings": {"target_bytes": target_bytes}}
    with pytest.raises(Unreachable, match="holds 3 rows, its metadata says 4"):
        rewrite(task(tmp_path / "source.parquet", tmp_path / "out", fields, SortKey(("v",)), **more))
    assert list((tmp_path / "out").iterdir()) == []
