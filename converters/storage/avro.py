"""What a damaged Avro file raises while fastavro decodes it: each codec's library has errors of its own."""

from __future__ import annotations

import importlib
import lzma
import zlib

import fastavro
import pyarrow as pa

__all__ = ["DAMAGED"]

_CODECS = (
    ("backports.zstd", "ZstdError"),
    ("compression.zstd", "ZstdError"),
    ("cramjam", "DecompressionError"),
    ("lz4.block", "LZ4BlockError"),
)
"""The libraries that fastavro unpacks blocks with where they are installed; it says itself which one is missing."""


def _raised_by_codecs() -> list[type[Exception]]:
    found = []
    for module, name in _CODECS:
        try:
            found.append(getattr(importlib.import_module(module), name))
        except ImportError:
            continue
    return found


DAMAGED: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    EOFError,
    OSError,
    RecursionError,
    StopIteration,
    zlib.error,
    lzma.LZMAError,
    fastavro.schema.UnknownType,
    fastavro.schema.SchemaParseException,
    pa.ArrowNotImplementedError,
    *_raised_by_codecs(),
)
