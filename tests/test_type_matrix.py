"""Every cell of the type matrix: what a reader makes of a file of DuckDB's under the Iceberg type that it gets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bridge.model.options import Options
from bridge.model.table import TableName
from bridge.model.types import Decimal, Geo, Leaf, Time, Timestamp, Unit
from bridge.ports import Silent, TableWrite
from converters.iceberg.type_matrix import MATRIX, READERS, Row, Verdict, Way
from tests.support import ROOT, use

pytest.importorskip("pyspark")


@dataclass(frozen=True)
class Example:
    """A column of the type, a value of it, and what reads right; `then` is what the column becomes after the insert."""

    type: str
    value: str
    right: tuple[Any, ...]
    then: str = ""


INSTANT = "2024-02-29T10:34:56.123456"
POINT = ("('bytes', '0101000000000000000000f03f0000000000000040')",)
PLAIN = (INSTANT, f"('instant', '{INSTANT}')")


def _example(number: int, row: Row) -> Example:
    plain = {
        Leaf.BOOLEAN: Example("BOOLEAN", "true", (True,)),
        Leaf.INT8: Example("TINYINT", "-128", (-128,)),
        Leaf.INT16: Example("SMALLINT", "-32768", (-32768,)),
        Leaf.INT32: Example("INTEGER", "-2147483648", (-2147483648,)),
        Leaf.INT64: Example("BIGINT", "-9223372036854775808", (-9223372036854775808,)),
        Leaf.UINT8: Example("UTINYINT", "255", (255,)),
        Leaf.UINT16: Example("USMALLINT", "65535", (65535,)),
        Leaf.UINT32: Example("UINTEGER", "4294967295", (4294967295,)),
        Leaf.UINT64: Example("UBIGINT", "18446744073709551615", ("('decimal', '18446744073709551615')",)),
        Leaf.INT128: Example("HUGEINT", "5000000000", ("5000000000.0",)),
        Leaf.UINT128: Example("UHUGEINT", "5000000000", ("5000000000.0",)),
        Leaf.FLOAT32: Example("FLOAT", "1.5", ("1.5",)),
        Leaf.FLOAT64: Example("DOUBLE", "1.5", ("1.5",)),
        Decimal(9, 2): Example("DECIMAL(9, 2)", "1234567.89", ("('decimal', '1234567.89')", "1234567.89")),
        Decimal(18, 2): Example("DECIMAL(18, 2)", "1234567.89", ("('decimal', '1234567.89')", "1234567.89")),
        Decimal(38, 2): Example("DECIMAL(38, 2)", "1234567.89", ("('decimal', '1234567.89')", "1234567.89")),
        Leaf.DATE: Example("DATE", "'2024-02-29'", ("2024-02-29",)),
        Time(Unit.MICRO): Example("TIME", "'10:34:56.123456'", ("10:34:56.123456",)),
        Leaf.TIMETZ: Example("TIMETZ", "'10:34:56.123456+02'", ("10:34:56.123456+02",)),
        Timestamp(Unit.MICRO): Example("TIMESTAMP", "'2024-02-29 10:34:56.123456'", PLAIN),
        Timestamp(Unit.SECOND): Example(
            "TIMESTAMP_S", "'2024-02-29 10:34:56'", ("2024-02-29T10:34:56", "('instant', '2024-02-29T10:34:56')")
        ),
        Timestamp(Unit.MILLI): Example(
            "TIMESTAMP_MS",
            "'2024-02-29 10:34:56.123'",
            ("2024-02-29T10:34:56.123", "('instant', '2024-02-29T10:34:56.123000')"),
        ),
        Timestamp(Unit.NANO): Example(
            "TIMESTAMP_NS",
            "'2024-02-29 10:34:56.123456789'",
            (
                f"{INSTANT}789",
                "2024-02-29 10:34:56.123456789",
                # Python has no nanoseconds: the readers hold them, their Python values are cut
                f"('instant', '{INSTANT}')",
                f"('instant', '{INSTANT}789')",
            ),
        ),
        Timestamp(Unit.MICRO, utc=True): Example(
            "TIMESTAMPTZ", "'2024-02-29 10:34:56.123456+00'", (f"{INSTANT}Z", f"('instant', '{INSTANT}')")
        ),
        Leaf.STRING: Example("VARCHAR", "'größe'", ("größe",)),
        Leaf.JSON: Example("JSON", '\'{"a": 1}\'', ('{"a": 1}',)),
        Leaf.BINARY: Example("BLOB", "'\\x01\\xFF'::BLOB", ("('bytes', '01ff')",)),
        Leaf.UUID: Example(
            "UUID",
            "'11111111-2222-3333-4444-555555555555'",
            ("11111111222233334444555555555555",),
        ),
        Leaf.INTERVAL: Example("INTERVAL", "INTERVAL 3 DAY", ("3 days",)),
        Leaf.VARIANT: Example("VARIANT", "42::VARIANT", (42, "42")),
        Geo("geometry"): Example("GEOMETRY", "'POINT (1 2)'::GEOMETRY", POINT),
    }  # fmt: skip
    found: Example = plain[row.type]  # type: ignore[index]  # types are hashable
    if number and row.iceberg != MATRIX[[each.type for each in MATRIX].index(row.type)].iceberg:
        return Example(
            found.type, found.value, found.right, {Leaf.INT64: "BIGINT", Leaf.FLOAT64: "DOUBLE"}[row.iceberg]
        )  # type: ignore[index]
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """By reader and table: each row of the matrix published in place twice, with vectorized reading and without."""
    from converters.ducklake.reader import open_source
    from converters.iceberg.writer import open_target

    home = tmp_path_factory.mktemp("matrix")
    statements = ["USE lake"]
    for number, row in enumerate(MATRIX):
        example = _example(number, row)
        statements.append(f"CREATE TABLE t{number}(id BIGINT, x {example.type})")
        statements.append(f"INSERT INTO t{number} SELECT 1, {example.value} UNION ALL SELECT 2, NULL")
        if example.then:
            statements.append(f"ALTER TABLE t{number} ALTER COLUMN x TYPE {example.then}")
    said = use(str(home / "lake"), statements, f"DATA_PATH '{home}/files/', DATA_INLINING_ROW_LIMIT 0")
    assert [each for each in said if each] == []
    source = open_source(str(home / "lake"), Options())
    tables = []
    for number in range(len(MATRIX)):
        opened = source.open(TableName(("main",), f"t{number}"))
        for readers, kind in ((("duckdb",), "plain"), ((), "rows")):
            target = open_target(str(home / kind), Options(readers=readers))
            name = TableName(("main",), f"t{number}")
            table = opened.table
            if kind == "rows":
                table = replace(table, properties={"read.parquet.vectorization.enabled": "false"})
            write = TableWrite(name, {}, table, opened.files(Silent()), 0, None, "", f"{kind}{number}", "shared")
            target.commit([write], Silent())
            place = home / kind / "main" / f"t{number}"
            metadata = str(place / "metadata" / "v1.metadata.json")
            tables.append({"name": f"{kind}{number}", "metadata": metadata, "location": str(place)})
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("type_cells.py"))],
        input=json.dumps(tables), capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


CELLS = [(number, reader) for number in range(len(MATRIX)) for reader in READERS]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reader"), CELLS, ids=[f"{MATRIX[n].physical}-as-{MATRIX[n].iceberg}-{r}" for n, r in CELLS]
)
def test_a_cell_is_what_the_reader_does(number: int, reader: str, answers: dict[str, dict[str, Any]]) -> None:
    row = MATRIX[number]
    verdict = row.verdicts[READERS.index(reader)]
    plain, row_by_row = answers[reader][f"plain{number}"], answers[reader][f"rows{number}"]
    right = _example(number, row).right
    match verdict:
        case Verdict.RIGHT:
            assert plain in right or (row.type is Leaf.BINARY and "ByteBuffer" in str(plain))
        case Verdict.ROWS:
            assert plain not in right and row_by_row in right
        case Verdict.COLUMNS:
            assert plain in right and isinstance(row_by_row, dict)
        case Verdict.FAILS | Verdict.UNKNOWN:
            assert isinstance(plain, dict) and isinstance(row_by_row, dict)
        case Verdict.WRONG:
            assert not isinstance(row_by_row, dict) and row_by_row not in right


def test_the_matrix_decides_by_the_readers_that_are_asked_for() -> None:
    [unsigned] = [row for row in MATRIX if row.type is Leaf.UINT32]
    assert unsigned.way(READERS) is Way.REWRITE
    assert unsigned.way(("duckdb", "pyiceberg")) is Way.IN_PLACE
    [millis] = [row for row in MATRIX if row.type == Timestamp(Unit.MILLI)]
    assert millis.way(READERS) is Way.ROW_BY_ROW
    assert millis.way(("duckdb",)) is Way.IN_PLACE
