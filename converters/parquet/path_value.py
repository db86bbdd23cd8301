"""Values that DuckDB 1.5.5 takes from a file's path (`.../name=value/...`), for columns that are not in the file."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from bridge.model.types import ColumnType, Decimal, Fixed, Leaf, Time, Timestamp, Unit
from converters.parquet import quiet

__all__ = ["Unreadable", "comparable", "path_values", "read_texts", "segments"]

_HEX = re.compile(r"%([0-9A-Fa-f]{2})")
_NULLS = ("__HIVE_DEFAULT_PARTITION__",)
_ZONES = ("UTC", "America/New_York", "Asia/Kathmandu")
_SQL: Mapping[ColumnType, str] = {
    Leaf.BOOLEAN: "BOOLEAN",
    Leaf.INT32: "INTEGER",
    Leaf.INT64: "BIGINT",
    Leaf.FLOAT32: "FLOAT",
    Leaf.FLOAT64: "DOUBLE",
    Leaf.DATE: "DATE",
    Leaf.STRING: "VARCHAR",
    Leaf.UUID: "UUID",
    Leaf.BINARY: "BLOB",
    Time(Unit.MICRO): "TIME",
    Timestamp(Unit.MICRO, utc=False): "TIMESTAMP",
    Timestamp(Unit.MICRO, utc=True): "TIMESTAMPTZ",
    Timestamp(Unit.NANO, utc=False): "TIMESTAMP_NS",
}


class Unreadable:
    """A text that DuckDB refuses, or reads otherwise from session to session."""


def segments(path: str) -> dict[str, str]:
    """The undecoded values by key; of a key that comes twice the first (outermost) counts."""
    found: dict[str, str] = {}
    for part in re.split(r"[/\\\\]", path)[:-1]:
        if part.count("=") == 1 and not part.startswith("=") and not re.search(r"[?\n]", part):
            key, value = part.split("=")
            found.setdefault(key, value)
    return found


def _sql_type(type_: ColumnType) -> str | None:
    if isinstance(type_, Decimal):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    return "BLOB" if isinstance(type_, Fixed) else _SQL.get(type_)


def read_texts(texts: Sequence[str], type_: ColumnType) -> list[object]:
    """Undecoded texts as comparable values of a type: None is NULL."""
    sql = _sql_type(type_)
    if sql is None:
        return [Unreadable] * len(texts)
    decoded: list[str | type[Unreadable] | None] = []
    for text in texts:
        if text.casefold() == "null" or text in _NULLS or (text == "" and type_ is not Leaf.STRING):
            decoded.append(None)
        else:
            decoded.append(_decoded(text))
    asked = pa.table({"t": pa.array([each if isinstance(each, str) else None for each in decoded], pa.string())})
    answers = []
    with quiet.connect() as connection:
        for zone in _ZONES if sql == "TIMESTAMPTZ" else _ZONES[:1]:
            connection.execute(f"SET TimeZone = '{zone}'")
            connection.register("asked", asked)
            # as integers, or what Python's calendar does not hold could not be looked at
            cast = f"TRY_CAST(t AS {sql})"
            if isinstance(type_, Timestamp):
                cast = f"epoch_ns({cast})" if type_.unit is Unit.NANO else f"epoch_us({cast})"
            elif type_ is Leaf.DATE:
                cast = f"CASE WHEN isfinite({cast}) THEN {cast} - DATE '1970-01-01' END"
            found = connection.execute(f"SELECT {cast} AS v FROM asked").to_arrow_table().column("v").to_pylist()
            connection.unregister("asked")
            answers.append([comparable(each, type_) for each in found])
    return [
        text
        if not isinstance(text, str)
        else values[0]
        if values[0] is not None and len({*values}) == 1
        else Unreadable
        for text, *values in zip(decoded, *answers, strict=True)
    ]


def path_values(texts: Sequence[str], types: Sequence[ColumnType]) -> list[object]:
    """As `read_texts`, where the column had several types: Unreadable unless it is one value in all of them."""
    every = [read_texts(texts, type_) for type_ in types]
    return [
        values[0] if all(each == values[0] for each in values) else Unreadable for values in zip(*every, strict=True)
    ]


def _decoded(text: str) -> str | type[Unreadable]:
    """`%` and two digits become a byte; anything else stays, `+` too."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return Unreadable


def comparable(value: Any, type_: ColumnType) -> object:
    """A value in a form whose equality is identity: floats by their bits, times as numbers of their unit."""
    match value:
        case None:
            return None
        case bool():
            return value
        case float():
            return "nan" if value != value else struct.pack(">d", value)
        case int() if type_ in (Leaf.FLOAT32, Leaf.FLOAT64):
            return struct.pack(">d", float(value))
        case datetime():
            value = value.replace(tzinfo=None)
            return _micros(value - datetime(1970, 1, 1)) * (1000 if type_ == Timestamp(Unit.NANO, False) else 1)
        case date():
            return value.toordinal() - date(1970, 1, 1).toordinal()
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case _:
            return str(value) if type_ is Leaf.UUID else value


def _micros(delta: Any) -> int:
    return int(delta.days * 86_400_000_000 + delta.seconds * 1_000_000 + delta.microseconds)
