"""A lake in a bucket published to a warehouse in a bucket: versions are created exclusively, and where the store cannot
do that it is said."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

import bridge
from converters import storage
from converters.ducklake.extensions import packaged
from converters.storage import conditional, s3
from tests.support import lake_rows
from tests.test_s3 import Store, nothing_configured, store

pytest.importorskip("localbucket", reason="the S3 server comes with the extra test")
assert nothing_configured and store


def engine(there: Store, *extensions: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for statement in (*there.setup, *(f"LOAD '{packaged(each)}'" for each in extensions)):
        connection.execute(statement)
    return connection


def change(there: Store, lake: Path, *statements: str) -> list[list[tuple[Any, ...]]]:
    with engine(there, "ducklake") as connection:
        connection.execute(f"ATTACH 'ducklake:{lake}' AS lake (DATA_PATH 's3://data/lake/', DATA_INLINING_ROW_LIMIT 0)")
        connection.execute("USE lake")
        return [connection.execute(each).fetchall() for each in statements]


def read(there: Store, place: str, snapshot: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """The rows by DuckDB and by PyIceberg."""
    from pyiceberg.table import StaticTable

    with engine(there, "avro", "iceberg") as connection:
        asked = f"SELECT * FROM iceberg_scan('{place}', snapshot_from_id => {snapshot}) ORDER BY ALL"
        mine = connection.execute(asked).fetchall()
    table = StaticTable.from_metadata(place, storage.properties())
    rows = table.scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return mine, sorted(tuple(each.values()) for each in rows)


@pytest.mark.slow
def test_a_lake_in_a_bucket_is_published_to_a_bucket_and_read_back(store: Store, tmp_path: Path) -> None:
    lake, target = tmp_path / "lake.ducklake", "iceberg:s3a://warehouse/house"
    for name in ("data", "warehouse"):
        store.bucket(name)
    change(
        store,
        lake,
        "CREATE TABLE t(id INTEGER, v VARCHAR)",
        *(f"INSERT INTO t SELECT i, 'v' || i FROM range({each}, {each + 10}) r(i)" for each in (0, 10)),
    )
    report = bridge.migrate(f"ducklake:{lake}", target)
    assert report.exit_code == 0 and not report.faults, report.faults
    assert not any("careful:" in each for each in report.words)
    change(store, lake, "CALL ducklake_merge_adjacent_files('lake')", "DELETE FROM t WHERE id = 3")
    # what DuckDB asks the server for, to remove several objects at once, is not built there
    gone = lake_rows(lake, "SELECT path FROM ducklake_files_scheduled_for_deletion")
    assert len(gone) == 2
    for (path,) in gone:
        (store.folder / "data" / "lake" / path).unlink()
    report = bridge.migrate(f"ducklake:{lake}", target)
    assert report.exit_code == 0 and not report.faults, report.faults
    place = "s3://warehouse/house/main/t/metadata/v2.metadata.json"
    assert storage.is_file(place) and not storage.is_file(place.replace("v2", "v3"))
    for commit in (1, 2, 3, 5):
        [expected] = change(store, lake, f"SELECT * FROM t AT (VERSION => {commit}) ORDER BY ALL")
        assert read(store, place, commit) == (expected, expected), commit
    assert bridge.migrate(f"ducklake:{lake}", target).plan.tables[0].action.value == "nothing"
    assert not list((store.folder / "warehouse").rglob("*.tmp"))


def test_one_of_many_writers_creates_an_object(store: Store) -> None:
    place = f"s3://{store.bucket('warehouse').name}/a b/ü=1/v1.metadata.json"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: storage.create(place, b"%d" % number, f".{number}.tmp"), range(8)))
    assert sum(made) == 1 and storage.read(place, "file") == b"%d" % made.index(True)
    assert storage.is_exclusive(place)


def test_a_store_without_conditions_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores the header, as older ones do: the probe is overwritten."""
    send = conditional._send
    monkeypatch.setattr(conditional, "_TRIED", {})
    monkeypatch.setattr(conditional, "_send", lambda *given: min(send(*given), 200))
    place = f"s3://{store.bucket('warehouse').name}/t/v1.metadata.json"
    assert not storage.is_exclusive(place)
    assert storage.create(place, b"x", ".a.tmp") and not storage.create(place, b"y", ".b.tmp")
    assert storage.read(place, "file") == b"x"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setattr(conditional, "_send", send)
    assert not storage.is_exclusive(place)


@pytest.mark.parametrize(
    ("answers", "there", "said"),
    [
        ([412], b"x", False),
        ([503, 412], b"x", True),
        ([503, 412], b"y", False),
        ([200], None, True),
        ([OSError()], b"x", True),
    ],
)
def test_an_answer_that_does_not_tell_is_settled_by_looking(
    answers: list[Any], there: bytes | None, said: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"s3://{store.bucket('warehouse').name}/t/v1.metadata.json"

    def send(*_: object) -> int:
        answer = answers.pop(0)
        if there is not None:
            storage.write(place, there, "")
        if isinstance(answer, OSError):
            raise answer
        return int(answer)

    monkeypatch.setattr(conditional, "is_conditional", lambda _: True)
    monkeypatch.setattr(conditional, "_send", send)
    assert storage.create(place, b"x", "") is said


def test_requests_are_signed_as_amazon_s_example() -> None:
    """ "Authenticating Requests: Using the Authorization Header", example PUT Object."""
    keys = s3.Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    headers = {
        "date": "Fri, 24 May 2013 00:00:00 GMT",
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-content-sha256": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    }
    signed = conditional.signature("PUT", "/test%24file.text", headers, keys, "us-east-1")
    assert signed.endswith("98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd")
