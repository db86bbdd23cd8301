"""Damaged Avro files: whatever lies in them, the one error that the reader of a manifest expects."""

from __future__ import annotations

import io
import random
from contextlib import suppress

import fastavro
import polars as pl
import pytest

from converters.iceberg.avro import file_metadata, read_frame, read_records, records_mentioning

KV = {"type": "record", "name": "kv", "fields": [{"name": "k", "type": "int"}, {"name": "v", "type": "bytes"}]}
STORED = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "a", "type": ["null", "long"]},
        {"name": "s", "type": "string"},
        {"name": "m", "type": {"type": "array", "items": KV}},
        {"name": "e", "type": {"type": "enum", "name": "en", "symbols": ["x", "y"]}},
    ],
}


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard"])
def test_a_damaged_file_is_a_value_error(codec: str) -> None:
    rows = [
        {"a": n % 3 or None, "s": f"s{n}", "m": [{"k": n, "v": b"v" * (n % 5)}], "e": "xy"[n % 2]} for n in range(99)
    ]
    with io.BytesIO() as made:
        fastavro.writer(made, STORED, rows, codec=codec, sync_interval=900)
        whole = made.getvalue()
    assert [each["s"] for each in records_mentioning(whole, ["s98"])][-1] == "s98"
    dice, damaged = random.Random(1), 0
    for _ in range(60):
        content = bytearray(whole[: dice.choice((len(whole), dice.randrange(len(whole))))])
        for _ in range(4):
            content[dice.randrange(len(content))] = dice.randrange(256)
        with suppress(ValueError):
            file_metadata(bytes(content))
        with suppress(ValueError):
            list(records_mentioning(bytes(content), ["s1", "s9"]))
        with suppress(ValueError):
            read_frame(bytes(content), {"a": pl.Int64, "s": pl.String})
        try:
            read_records(bytes(content))
        except ValueError:
            damaged += 1
    assert damaged > 20
