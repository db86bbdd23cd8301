"""What a task is told: which file to read and how, what to write and where. Values only, JSON on the way."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.model import types
from bridge.model.rewrite import WRITTEN, DataFile, Name, PartitionKey, Settings, SortKey, Target
from converters.spark.encoding import Codec

__all__ = [
    "CLASSES",
    "CODEC",
    "WRITTEN",
    "DataFile",
    "Name",
    "PartitionKey",
    "RewriteTask",
    "Settings",
    "SortKey",
    "Target",
]


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """One source file to rewrite. Files are named `<output>-<number>.parquet`: `output` is unique in the directory and
    the same in every attempt (made of plan and task id). `deleted` are positions to leave out; `deleted_file` is a
    Parquet or Arrow file with more of them in an integer column `position`."""

    id: str
    source: DataFile
    target: Target
    output: str
    deleted: tuple[int, ...] = ()
    deleted_file: str = ""

    def to_json(self) -> str:
        return CODEC.text(self)

    @staticmethod
    def from_json(text: str) -> RewriteTask:
        return CODEC.value(text, RewriteTask)


CLASSES = (
    *(Name, DataFile, Settings, SortKey, PartitionKey, Target, RewriteTask),
    *(types.Leaf, types.Unit, types.Decimal, types.Fixed, types.Time, types.Timestamp, types.Geo),
    *(types.UnknownType, types.ListOf, types.MapOf, types.Struct, types.NestedDefault, types.Expression, types.Field),
)
CODEC = Codec(CLASSES)
