"""Equality deletes as positions, without Spark: each rule on small files, and whole tables against Iceberg Java."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from bridge.errors import Blocked, Unreachable
from bridge.model.schema import walk
from bridge.model.types import Decimal, Field, FieldId, Leaf, ListOf, Struct
from converters.spark.equality import resolve
from converters.spark.joining import _encoded
from converters.spark.keys import EqualityDeletes, KeyTask, Subject, key_fields
from converters.spark.plan import DataFile, Name
from tests.converters.tables import Entry, Stored
from tests.support import case

pytestmark = pytest.mark.slow


def field(id_: int, name: str, type_: Any, **more: Any) -> Field:
    return Field(FieldId(id_), name, type_, **more)


def save(path: Path, columns: dict[str, pa.Array], ids: dict[str, int]) -> DataFile:
    table = pa.table(columns)
    schema = pa.schema([each.with_metadata({"PARQUET:field_id": str(ids[each.name])}) for each in table.schema])
    pq.write_table(table.cast(schema), path)
    return DataFile(str(path), "parquet", table.num_rows)


def matches(fields: tuple[Field, ...], ids: tuple[int, ...], data: DataFile, *gone: DataFile) -> list[int]:
    """Positions deleted by any of some delete files, each once; the joined form has to say the same."""
    deletes = tuple(EqualityDeletes(each, ids, 2, 0, everywhere=True) for each in gone)
    keys = key_fields(ids, {int(each.field.id): each for each in walk(fields)}, fields)
    found = resolve(KeyTask((Subject(data, 1, 0),), deletes, ((ids, keys),)))
    positions = sorted(set(found.column("position").to_pylist()))
    texts = {
        text for each in gone for batch in _encoded(0, each, ids, keys) for text in batch.column("key").to_pylist()
    }
    joined = [
        position
        for batch in _encoded(0, data, ids, keys)
        for position, text in zip(batch.column("position").to_pylist(), batch.column("key").to_pylist(), strict=True)
        if text in texts
    ]
    assert joined == positions
    return positions


def test_null_equals_null_and_all_keys_count(tmp_path: Path) -> None:
    fields = (field(1, "a", Leaf.INT32), field(2, "b", Leaf.STRING))
    ids = {"a": 1, "b": 2}
    data = {"a": pa.array([1, 1, None, None, 2, 2]), "b": pa.array(["x", None, None, "x", "", "x"])}
    made = save(tmp_path / "d.parquet", {k: v.cast(pa.int32()) if k == "a" else v for k, v in data.items()}, ids)
    gone = save(
        tmp_path / "e.parquet", {"a": pa.array([None, 1, 2], pa.int32()), "b": pa.array([None, None, "y"])}, ids
    )
    assert matches(fields, (1, 2), made, gone) == [1, 2]
    assert matches(fields, (1,), made, gone) == [0, 1, 2, 3, 4, 5]
    assert matches(fields, (2,), made, gone) == [1, 2]


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_floats_compare_as_java_does(type_: pa.DataType, tmp_path: Path) -> None:
    nan = float("nan")
    values = pa.array([0.0, -0.0, nan, -nan, None, 0.1, float("inf")], type_)
    fields = (field(1, "f", Leaf.FLOAT64),)
    data = save(tmp_path / "d.parquet", {"f": values}, {"f": 1})
    for number, (gone, expected) in enumerate([(-0.0, [1]), (0.0, [0]), (nan, [2, 3]), (None, [4]), (0.1, [5])]):
        made = save(tmp_path / f"e{number}.parquet", {"f": pa.array([gone], type_)}, {"f": 1})
        assert matches(fields, (1,), data, made) == expected, gone


def test_promoted_renamed_nested_and_absent_keys(tmp_path: Path) -> None:
    fields = (
        field(1, "now", Leaf.INT64),
        field(2, "s", Struct((field(3, "other", Leaf.STRING), field(4, "d", Decimal(20, 2))))),
        field(5, "added", Leaf.STRING, initial_default="new"),
        field(6, "plain", Leaf.STRING),
    )
    struct = pa.StructArray.from_arrays(
        [pa.array(["p", "q", None]), pa.array([1, None, 2], pa.decimal128(9, 2))],
        fields=[
            pa.field("other", pa.string(), metadata={"PARQUET:field_id": "3"}),
            pa.field("d", pa.decimal128(9, 2), metadata={"PARQUET:field_id": "4"}),
        ],
        mask=pa.array([False, False, True]),
    )
    table = pa.table(
        [pa.array([1, 2, 3], pa.int32()), struct],
        schema=pa.schema(
            [
                pa.field("before", pa.int32(), metadata={"PARQUET:field_id": "1"}),
                pa.field("s", struct.type, metadata={"PARQUET:field_id": "2"}),
            ]
        ),
    )
    pq.write_table(table, tmp_path / "d.parquet")
    data = DataFile(str(tmp_path / "d.parquet"), "parquet", 3)
    wide = save(tmp_path / "w.parquet", {"x": pa.array([2, 2**40])}, {"x": 1})
    assert matches(fields, (1,), data, wide) == [1]
    gone = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.decimal128(20, 2))],
        fields=[pa.field("d", pa.decimal128(20, 2), metadata={"PARQUET:field_id": "4"})],
    )
    deep = save(tmp_path / "n.parquet", {"s": gone}, {"s": 2})
    assert matches(fields, (4,), data, deep) == [0, 1, 2]
    assert matches(fields, (5,), data, save(tmp_path / "a.parquet", {"added": pa.array(["new"])}, {"added": 5})) == [
        0,
        1,
        2,
    ]
    assert matches(fields, (5,), data, save(tmp_path / "b.parquet", {"added": pa.array(["old"])}, {"added": 5})) == []
    assert matches(
        fields, (6,), data, save(tmp_path / "c.parquet", {"p": pa.array([None], pa.string())}, {"p": 6})
    ) == [0, 1, 2]


def test_files_of_every_format_and_files_read_by_name(tmp_path: Path) -> None:
    fields = (field(1, "k", Leaf.STRING), field(2, "u", Leaf.BINARY))
    values = {"k": pa.array(["a", None, "b", "a\0"]), "u": pa.array([b"\0", None, b"", b"x"])}
    names = (Name(1, ("k",)), Name(2, ("u",)))
    files = [save(tmp_path / "d.parquet", values, {"k": 1, "u": 2})]
    orc.write_table(pa.table(values), tmp_path / "d.orc")
    files.append(DataFile(str(tmp_path / "d.orc"), "orc", 4, names=names))
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "k", "type": ["null", "string"], "field-id": 1},
            {"name": "u", "type": ["null", "bytes"], "field-id": 2},
        ],
    }
    with (tmp_path / "d.avro").open("wb") as output:
        fastavro.writer(output, schema, pa.table(values).to_pylist())
    files.append(DataFile(str(tmp_path / "d.avro"), "avro", 4))
    for data in files:
        for gone in files:
            assert matches(fields, (1,), data, gone) == [0, 1, 2, 3]
            assert matches(fields, (1, 2), data, gone) == [0, 1, 2, 3]
    one = save(tmp_path / "one.parquet", {"k": pa.array(["a"])}, {"k": 1})
    assert [matches(fields, (1,), data, one) for data in files] == [[0]] * 3


@pytest.mark.parametrize(
    ("data", "spec", "partition", "everywhere", "applies"),
    [
        (1, 0, "p=1", False, True),
        (2, 0, "p=1", False, False),  # written by the same commit
        (3, 0, "p=1", True, False),
        (1, 0, "p=2", False, False),
        (1, 1, "p=1", False, False),
        (1, 1, "p=9", True, True),
    ],
)
def test_which_files_a_delete_reaches(data: int, spec: int, partition: str, everywhere: bool, applies: bool) -> None:
    gone = EqualityDeletes(DataFile("e"), (1,), 2, spec, partition, everywhere)
    assert gone.applies_to(Subject(DataFile("d"), data, 0, "p=1")) is applies


def test_each_delete_file_is_named(tmp_path: Path) -> None:
    fields = (field(1, "k", Leaf.INT64),)
    data = save(tmp_path / "d.parquet", {"k": pa.array([1, 2, 1])}, {"k": 1})
    first = save(tmp_path / "a.parquet", {"k": pa.array([1, 1])}, {"k": 1})
    second = save(tmp_path / "b.parquet", {"k": pa.array([1, 2])}, {"k": 1})
    deletes = tuple(EqualityDeletes(each, (1,), 2 + n, 0, everywhere=True) for n, each in enumerate((first, second)))
    found = resolve(KeyTask((Subject(data, 1, 0),), deletes, (((1,), fields),))).to_pylist()
    told = sorted((each["position"], Path(each["delete_file"]).name, each["sequence"]) for each in found)
    assert told == [
        (0, "a.parquet", 2),
        (0, "b.parquet", 3),
        (1, "b.parquet", 3),
        (2, "a.parquet", 2),
        (2, "b.parquet", 3),
    ]


def test_keys_that_are_no_values_and_files_that_lie_are_refused(tmp_path: Path) -> None:
    fields = (field(1, "l", ListOf(field(2, "element", Leaf.INT64))), field(3, "k", Leaf.INT64))
    by_id = {int(each.field.id): each for each in walk(fields)}
    for ids in ((1,), (2,), (9,)):
        with pytest.raises(Blocked):
            key_fields(ids, by_id, fields)
    data = save(tmp_path / "d.parquet", {"k": pa.array([1])}, {"k": 3})
    short = DataFile(data.path, "parquet", 2)
    for subject, gone in ((short, data), (data, short)):
        with pytest.raises(Unreachable, match="holds 1 rows"):
            matches(fields, (3,), subject, gone)


@pytest.mark.parametrize("kind", ["v2_eqdel", "v2_eqdel_pos"])
def test_tables_of_iceberg_java_answer_the_same_without_their_deletes(kind: str) -> None:
    found = case(kind)
    stored = Stored(found)
    fields = stored.schema().fields
    by_id = {int(each.field.id): each for each in walk(fields)}
    resolved = 0
    for fact in found.facts["snapshots"]:
        snapshot = next(each for each in stored.metadata["snapshots"] if each["snapshot-id"] == fact["snapshot_id"])
        entries = list(stored.entries(snapshot))
        deletes = [equality(stored, each) for each in entries if each.content == 2]
        gone = positions(stored, entries)
        for entry in (each for each in entries if each.content == 0):
            subject = Subject(stored.data_file(entry), entry.sequence, entry.spec, entry.partition)
            reaching = tuple(each for each in deletes if each.applies_to(subject))
            keys = tuple((ids, key_fields(ids, by_id, fields)) for ids in sorted({each.ids for each in reaching}))
            rows = resolve(KeyTask((subject,), reaching, keys))
            resolved += rows.num_rows
            gone |= set(zip(rows.column("data_file").to_pylist(), rows.column("position").to_pylist(), strict=True))
        live = []
        for entry in (each for each in entries if each.content == 0):
            rows = pq.read_table(entry.path).to_pylist()
            live += [tuple(row.values()) for place, row in enumerate(rows) if (entry.path, place) not in gone]
        assert sorted(live, key=str) == sorted(
            (tuple(row.values()) for row in found.rows(fact["rows"]).to_pylist()), key=str
        )
    assert resolved


def equality(stored: Stored, entry: Entry) -> EqualityDeletes:
    everywhere = entry.partition == "{}"
    file = stored.data_file(entry)
    return EqualityDeletes(file, entry.equality_ids, entry.sequence, entry.spec, entry.partition, everywhere)


def positions(stored: Stored, entries: list[Entry]) -> set[tuple[str, int]]:
    found = set()
    for entry in entries:
        if entry.content == 1:
            for row in pq.read_table(entry.path).to_pylist():
                found.add((stored.place(row["file_path"]), row["pos"]))
    return found
