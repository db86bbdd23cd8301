"""Partition specs and sort orders of a metadata file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

from bridge.model.layout import (
    Bucket,
    PartitionField,
    PartitionSpec,
    Simple,
    SortField,
    SortOrder,
    Transform,
    Truncate,
    UnknownTransform,
)
from bridge.model.types import FieldId

__all__ = ["constant_of", "sort_order_of", "spec_of", "transform_of"]

BY_NAME = {each.value: each for each in Simple}
_PARAMETER = re.compile(r"^(bucket|truncate)\[(\d+)\]$")


def transform_of(text: str) -> Transform:
    """A transform from its name (specification, "Partition Transforms"); older files write them in any case."""
    name = text.strip().lower()
    if name in BY_NAME:
        return BY_NAME[name]
    if found := _PARAMETER.match(name):
        number = int(found.group(2))
        return Bucket(number) if found.group(1) == "bucket" else Truncate(number)
    return UnknownTransform(text)


def spec_of(stored: Mapping[str, Any] | list[Any], id_: int = 0) -> PartitionSpec:
    """A partition spec; version 1 files may hold a bare list of fields, without field ids."""
    fields = stored if isinstance(stored, list) else stored.get("fields", [])
    number = id_ if isinstance(stored, list) else int(stored.get("spec-id", id_))
    return PartitionSpec(
        number,
        tuple(
            PartitionField(
                source=FieldId(int(each["source-id"] if "source-id" in each else each["source-ids"][0])),
                id=int(each.get("field-id", 1000 + position)),
                name=str(each["name"]),
                transform=transform_of(each["transform"])
                if len(each.get("source-ids", (0,))) == 1
                else UnknownTransform(f"{each['transform']} of several columns"),
            )
            for position, each in enumerate(fields)
        ),
    )


def sort_order_of(stored: Mapping[str, Any]) -> SortOrder:
    """A sort order of the metadata file."""
    return SortOrder(
        int(stored["order-id"]),
        tuple(
            SortField(
                source=FieldId(int(each["source-id"] if "source-id" in each else each["source-ids"][0])),
                transform=transform_of(each["transform"]),
                descending=str(each.get("direction", "asc")).lower() == "desc",
                nulls_first=str(each.get("null-order", "nulls-first")).lower() == "nulls-first",
            )
            for each in stored.get("fields", [])
        ),
    )


def constant_of(value: Any) -> str | bytes | None:
    """An identity partition value as text in the form of default values, bytes for binary; None is NULL."""
    match value:
        case None | bytes():
            return value
        case bool():
            return str(value).lower()
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return str(value)
