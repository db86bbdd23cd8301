"""Tables that Iceberg Java writes in ORC, Avro and Parquet, with values at the edges: rewritten they read the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from converters.iceberg.types import schema_of
from converters.spark.plan import DataFile, RewriteTask, Target
from converters.spark.task import rewrite

pytest.importorskip("pyspark")
pytest.importorskip("snowpark_connect_deps_iceberg")
pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = r"""
import glob, importlib.util, json, os, sys
from pyspark.sql import SparkSession
home, zone = sys.argv[1:]
spec = importlib.util.find_spec("snowpark_connect_deps_iceberg")
[jar] = glob.glob(os.path.join(os.path.dirname(spec.origin), "jars", "iceberg-spark-runtime-3.5_2.12-*.jar"))
extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
spark = (
    SparkSession.builder.master("local[1]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").config("spark.driver.extraJavaOptions", "-Duser.timezone=" + zone)
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.extensions", extensions).config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.ice.type", "hadoop").config("spark.sql.catalog.ice.warehouse", home).getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
found = {}
for kind in ("orc", "avro", "parquet"):
    table = f"ice.db.t_{kind}"
    spark.sql(f'''CREATE TABLE {table} (id INT, b BOOLEAN, l BIGINT, f FLOAT, d DOUBLE, big Decimal(38,10),
        small Decimal(9,2), s STRING, bin BINARY, dt DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ, arr ARRAY<INT>,
        m MAP<STRING, STRUCT<x: INT, y: ARRAY<STRING>>>, st STRUCT<a: BIGINT, b: STRUCT<c: Decimal(10,3)>>,
        mi MAP<INT, TIMESTAMP>, aa ARRAY<STRUCT<q: DATE>>)
        USING iceberg TBLPROPERTIES ('write.format.default'='{kind}', 'format-version'='2')''')
    some = "null," * 8
    rows = [
        "1,true,9223372036854775807,float('nan'),double('nan'),9999999999999999999999999999.9999999999BD,-1.25BD,'',"
        "X'',DATE'1969-12-31',TIMESTAMP'1969-12-31 23:59:58.5',TIMESTAMP_NTZ'1960-01-01 00:00:00.000001',"
        "array(1,null,3),map('k',named_struct('x',1,'y',array('a',null)),'z',null),"
        "named_struct('a',1L,'b',named_struct('c',1.5BD)),map(1,TIMESTAMP'2020-07-01 12:34:56.789'),"
        "array(named_struct('q',DATE'2001-02-03'),null)",
        "2," + "null," * 15 + "null",
        "3,false,-1,float('-inf'),-0.0D,-0.0000000001BD,0BD,'\u00e9\U0001F600',X'00FF',DATE'9999-12-31',"
        "TIMESTAMP'2024-03-10 07:30:00.5',TIMESTAMP_NTZ'2024-03-10 02:30:00',array(),map(),"
        "named_struct('a',null,'b',null),map(),array()",
    ]
    old = [
        f"4,{some}DATE'0001-01-01',TIMESTAMP'0001-01-01 00:00:00.000001',TIMESTAMP_NTZ'1582-10-10 01:02:03.000004',"
        "null,null,null,map(7,TIMESTAMP'9999-12-31 23:59:59.999999',8,null),null",
        f"5,{some}DATE'1582-10-04',TIMESTAMP'1500-02-28 12:00:00',TIMESTAMP_NTZ'9999-12-31 23:59:59.999999',"
        "null,null,null,null,null",
        f"6,{some}null,null,null,null,null,null,map(),null",
        f"7,{some}null,TIMESTAMP'2020-01-01 00:00:00',TIMESTAMP_NTZ'2020-01-01 00:00:00.12',null,null,null,null,null",
    ]
    for each in (rows, old):
        spark.sql(f"INSERT INTO {table} VALUES " + ",".join(f"({row})" for row in each))
    query = '''SELECT id, cast(b as string), cast(l as string), cast(f as string), cast(d as string),
        cast(cast(big as decimal(38,10)) as string), cast(small as string), s, hex(bin), cast(dt as string),
        unix_micros(ts), unix_micros(cast(tn as timestamp)), to_json(arr), to_json(m), to_json(st),
        to_json(transform(map_entries(mi), e -> named_struct('k', e.key, 'v', unix_micros(e.value))),
        map('ignoreNullFields', 'false')), to_json(aa, map('ignoreNullFields', 'false')),
        st is null, st.b is null FROM ''' + table + " ORDER BY id"
    found[kind] = [list(row) for row in spark.sql(query).collect()]
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module", params=[pytest.param("UTC", marks=pytest.mark.exhaustive), "America/New_York"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The warehouse, written under a time zone of the JVM, and what Iceberg Java reads from it."""
    home = tmp_path_factory.mktemp("warehouse")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home), request.param],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return home, json.loads(ran.stdout.split("FOUND", 1)[1])


@pytest.mark.parametrize("kind", ["orc", "avro", "parquet"])
def test_edges_of_every_type(kind: str, made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    home, expected = made
    table = home / "db" / f"t_{kind}"
    metadata = json.loads(sorted((table / "metadata").glob("v*.json"))[-1].read_text())
    fields = schema_of(metadata["schemas"][-1]).fields
    paths = []
    for number, path in enumerate(sorted((table / "data").glob(f"*.{kind}"))):
        source = DataFile(str(path), kind)
        written = rewrite(RewriteTask(str(number), source, Target(str(tmp_path), fields), f"f{number}"))
        paths += written.column("path").to_pylist()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = """SELECT id, b::VARCHAR, l::VARCHAR, f, d, big::VARCHAR, small::VARCHAR, s, hex(bin), dt::VARCHAR,
            epoch_us(ts), epoch_us(tn), arr, m, st,
            list_transform(map_entries(mi), lambda e: {k: e.key, v: epoch_us(e.value)}),
            list_transform(aa, lambda e: CASE WHEN e IS NULL THEN NULL ELSE {q: e.q::VARCHAR} END)
            FROM read_parquet(?) ORDER BY id"""
        got = connection.execute(query, [paths]).fetchall()
    assert len(got) == 7
    for mine, theirs in zip(got, expected[kind], strict=True):
        assert mine[:3] == tuple(theirs[:3])
        for place in (3, 4):
            assert str(mine[place]) == ("None" if theirs[place] is None else NUMBERS.get(theirs[place], theirs[place]))
        assert mine[6:12] == tuple(theirs[6:12])
        assert mine[5] == (None if theirs[5] is None else f"{Decimal(theirs[5]):.10f}")
        assert mine[12] == (None if theirs[12] is None else json.loads(theirs[12]))
        assert without_null(mine[13]) == (None if theirs[13] is None else json.loads(theirs[13]))
        assert (mine[14] is None, mine[14] is None or mine[14]["b"] is None) == tuple(theirs[17:19])
        assert mine[15] == (None if theirs[15] is None else json.loads(theirs[15]))
        assert mine[16] == (None if theirs[16] is None else json.loads(theirs[16]))


NUMBERS = {"NaN": "nan", "-Infinity": "-inf"}


def without_null(value: Any) -> Any:
    """Maps as Spark's JSON writes them."""
    return None if value is None else dict(value)
