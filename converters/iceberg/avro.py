"""Avro files as frames: polars where it can, fastavro for what it refuses (files without blocks, zstandard)."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fastavro
import polars as pl

from converters.storage.avro import DAMAGED

__all__ = ["file_metadata", "mentions", "read_frame", "read_records", "records_mentioning"]


def read_frame(content: bytes, schema: Mapping[str, Any], unnest: str | None = None) -> pl.DataFrame:
    """The records of an Avro file with exactly the columns of `schema`: absent ones are NULL, others are left out.

    The fields of the record `unnest` count as columns. ValueError when the content is not Avro.
    """
    if content[:4] != b"Obj\x01":
        raise ValueError("not an Avro file")
    try:
        frame = pl.read_avro(io.BytesIO(content))
        if unnest is not None:
            if unnest not in frame.columns:
                raise ValueError(f"it has no field {unnest!r}")
            frame = frame.unnest(unnest)
        held = frame.schema
        return frame.select(
            [
                (name if held[name] == type_ else pl.col(name).cast(type_))
                if name in held
                else pl.lit(None, dtype=type_).alias(name)
                for name, type_ in schema.items()
            ]
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):  # see the module's first line
        records = read_records(content)
    if unnest is not None:
        if any(not isinstance(record.get(unnest), dict) for record in records):
            raise ValueError(f"it has no field {unnest!r}")
        records = [{**record, **record[unnest]} for record in records]
    try:
        return pl.DataFrame(
            {name: [record.get(name) for record in records] for name in schema}, schema=schema, strict=False
        )
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise ValueError(f"fields of unexpected types: {error}") from error


def read_records(content: bytes) -> list[dict[str, Any]]:
    """The records one by one; for small files and rare fields."""
    with _decoding():
        return [record for record in fastavro.reader(io.BytesIO(content)) if isinstance(record, dict)]


_FEW = 50


def mentions(content: bytes, texts: Collection[str]) -> bool:
    """Whether an Avro file may hold one of some texts as a value: never False for one that does."""
    return len(texts) > _FEW or any(True for _ in _blocks(content, texts))


def records_mentioning(content: bytes, texts: Collection[str]) -> Iterator[dict[str, Any]]:
    """The records of an Avro file, at least those that hold one of some texts."""
    if len(texts) > _FEW:
        yield from read_records(content)
        return
    for block in _blocks(content, texts):
        with _decoding():
            records = [record for record in block if isinstance(record, dict)]
        yield from records


def _blocks(content: bytes, texts: Collection[str]) -> Iterator[Any]:
    wanted = [each.encode() for each in texts]
    with _decoding():
        for block in fastavro.block_reader(io.BytesIO(content)):
            held: bytes = block.bytes_.getvalue()  # type: ignore[attr-defined]  # its stub tells less than it has
            if any(each in held for each in wanted):
                yield block


def file_metadata(content: bytes) -> dict[str, str]:
    """The key-value pairs of an Avro file's header."""
    with _decoding():
        return dict(fastavro.reader(io.BytesIO(content)).metadata)


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise ValueError(f"damaged: {error}") from error
