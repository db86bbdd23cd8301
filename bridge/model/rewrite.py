"""Files that cannot be registered as they are, and deletes that name values: what an engine is asked, and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bridge.errors import Unreachable
from bridge.model.types import Field, FieldId

__all__ = [
    "ASIDE",
    "OWN_DIRECTORY",
    "RESOLVED",
    "WRITTEN",
    "DataFile",
    "Equality",
    "EqualityDeletes",
    "FileRewrite",
    "Name",
    "PartitionKey",
    "Settings",
    "SortKey",
    "Subject",
    "Target",
    "WrittenFiles",
    "may_be_sorted",
    "output_name",
    "sort_mark",
    "work_mark",
]


@dataclass(frozen=True, slots=True)
class Name:
    """A name mapping's node: the field id of any column called one of `names`, and the nodes below it.

    The levels of lists and maps are nodes named `element`, `key` and `value`.
    """

    id: int
    names: tuple[str, ...]
    below: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to read. Columns are found by the ids in it; a file without any is read by `names`.

    `size` is in bytes, None when it is not known. `record_count`, where the metadata states it, is what the file must
    hold. `constants` are the values, by top-level field id, of columns whose value for this file is known from
    elsewhere (identity partition values of the metadata or the path): text as in Field.initial_default, bytes for
    binary, None for NULL. They win over what the file holds, as they do in Iceberg Java. `first_row_id` is the id of
    its first row where the source numbers rows.
    """

    path: str
    format: str = "parquet"
    record_count: int | None = None
    size: int | None = None
    constants: Mapping[int, str | bytes | None] = field(default_factory=dict)
    names: tuple[Name, ...] | None = None
    first_row_id: int | None = None

    def check(self, rows: int) -> None:
        """Unreachable unless the rows read are those promised."""
        if self.record_count is not None and rows != self.record_count:
            raise Unreachable(f"data file {self.path} holds {rows} rows, its metadata says {self.record_count}")


@dataclass(frozen=True, slots=True)
class Settings:
    """How Parquet is written: sizes in bytes, row group limits in rows and in bytes held in memory.

    `memory` bounds a task's own DuckDB, `threads` is what it may use of the executor's cores; with one thread the
    bytes written are a function of the task, so that a second attempt writes the same file. Without `dictionaries`
    every value is written as it is.
    """

    compression: str = "snappy"
    level: int | None = None
    row_group_rows: int = 122_880
    row_group_bytes: int = 128 << 20
    target_bytes: int = 512 << 20
    memory: int = 1 << 30
    threads: int = 1
    dictionaries: bool = True


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column, or a field inside structs, by its path."""

    path: tuple[str, ...]
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition column by name; `transform` is identity, year, month, day, hour (calendar parts in UTC, as DuckLake
    has them) or bucket with its `count`."""

    column: str
    transform: str = "identity"
    count: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """What is written: the directory, the columns with their ids, types and initial defaults, settings and layout.

    With `hive` the files of a partition lie in a directory of their own below. Whether rows are told apart by
    partition, or stay together, is for the engine.
    """

    directory: str
    fields: tuple[Field, ...]
    settings: Settings = Settings()
    sort: tuple[SortKey, ...] = ()
    partition: tuple[PartitionKey, ...] = ()
    hive: bool = True


@dataclass(frozen=True, slots=True)
class Subject:
    """A data file as deletes see it. `partition` is any text that is equal exactly when the partition is."""

    file: DataFile
    sequence: int
    spec: int
    partition: str = ""


@dataclass(frozen=True, slots=True)
class EqualityDeletes:
    """An equality delete file; `everywhere` when its spec is unpartitioned. `file.record_count` bounds the memory."""

    file: DataFile
    ids: tuple[int, ...]
    sequence: int
    spec: int
    partition: str = ""
    everywhere: bool = False

    def applies_to(self, subject: Subject) -> bool:
        """Whether rows of the data file can be deleted by this file."""
        if subject.sequence >= self.sequence:
            return False
        return self.everywhere or (self.spec == subject.spec and self.partition == subject.partition)


@dataclass(frozen=True, slots=True)
class Equality:
    """Everything that resolving equality deletes takes: the table's fields of all times, data files and deletes."""

    fields: tuple[Field, ...]
    subjects: tuple[Subject, ...]
    deletes: tuple[EqualityDeletes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FileRewrite:
    """A file to rewrite into files `<output>-<number>.parquet`, without the rows at some positions, ascending."""

    source: DataFile
    output: str
    left_out: np.ndarray


OWN_DIRECTORY = "bridge-"
"""How the names of directories begin that hold the files of one plan; its id follows."""

ASIDE = ".aside-"
"""How the names of directories begin that hold unfinished files; the name of the work follows, and a dot."""


def output_name(path: str) -> str:
    """How the names of the files begin that a source file is rewritten to; by it they are found again."""
    return "r-" + hashlib.sha256(path.encode()).hexdigest()[:32]


_SORTED = "-s0"


def sort_mark(target: Target) -> str:
    """What the names of the files go on with that were written sorted, so that rows may not stand as in the source."""
    return _SORTED if target.sort else ""


def may_be_sorted(path: str) -> bool:
    """Whether the name of a rewritten file has that mark."""
    return f"{_SORTED}-" in path.rpartition("/")[2]


def work_mark(work: str) -> str:
    """What the names of the files go on with that were written in some work: two never write one file."""
    return "-p" + work.replace("-", "")


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """WRITTEN rows, whose `task` is the place of the source among those given as text, and their statistics by column:
    StatsBatch tables whose `file` is the row here."""

    table: pa.Table
    stats: tuple[tuple[FieldId, pa.Table], ...]


WRITTEN = pa.schema(
    [
        pa.field("task", pa.string(), False),
        pa.field("path", pa.string(), False),
        pa.field("record_count", pa.int64(), False),
        pa.field("size", pa.int64(), False),
        pa.field("footer_size", pa.int64(), False),
        pa.field("first_row", pa.int64()),
        pa.field("partition", pa.list_(pa.string()), False),
        pa.field(
            "stats",
            pa.list_(
                pa.struct(
                    [
                        pa.field("field", pa.int64(), False),
                        pa.field("size", pa.int64()),
                        pa.field("values", pa.int64()),
                        pa.field("nulls", pa.int64()),
                        pa.field("nans", pa.int64()),
                        pa.field("lower", pa.string()),
                        pa.field("upper", pa.string()),
                    ]
                )
            ),
            False,
        ),
    ]
)
"""One row per written file. `first_row` is the position in the source of its first row, so that a position there is
`first_row` more here; NULL when rows were left out or moved. `partition` holds the key values as DuckLake's text, none
for a file whose rows have not all the same.
`stats` has one entry a leaf column; bounds are exact or NULL, in the text that DuckDB itself gives a lake; `values`
counts nulls too; NaN is counted in `nans` and lies outside the bounds."""

RESOLVED = pa.schema(
    [
        pa.field("data_file", pa.string(), False),
        pa.field("position", pa.int64(), False),
        pa.field("delete_file", pa.string(), False),
        pa.field("sequence", pa.int64(), False),
    ]
)
"""One row for each row of a data file and each delete file that deletes it, with the delete file's sequence number."""
