"""What a user can ask of a run; one value for plan, migrate and verify."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from bridge.errors import UsageError
from bridge.model.paths import PathMap

__all__ = ["Options", "memory_limit"]

_SIZE = re.compile(r"\d+(\.\d+)?\s*([KMGT]i?B|B)", re.IGNORECASE)


def memory_limit(text: str) -> str:
    """A text that is an amount of memory; UsageError for any other."""
    if _SIZE.fullmatch(text.strip()) is None:
        raise UsageError(f"--memory-limit {text[:40]!r} is not a size", hint="write 500MB, 2GiB or the like")
    return text


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that shapes a run; the defaults are the command line's."""

    tables: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: str | None = None
    data_path: str | None = None
    metadata_schema: str | None = None
    """The schema of a PostgreSQL database that holds the lake's catalog; None: `public`."""
    history: Literal["full", "current"] = "full"
    at: str | None = None
    check_files: Literal["all", "none"] = "all"
    path_map: PathMap = field(default_factory=PathMap)
    type_map: tuple[tuple[str, str], ...] = ()
    ownership: Literal["shared", "adopt"] | None = None
    """None: shared for a new table, as it is for one that the target holds."""
    verify: Literal["metadata", "rows", "none"] = "metadata"
    inline_deletes: int = 2_000_000
    """Deleted rows of a table that may be noted in the catalog; beyond it the target writes delete files."""
    rewrite: Literal["never", "when-needed", "always"] = "when-needed"
    """Whether files that cannot be registered as they are may be rewritten, and equality deletes be resolved; with
    "never" they block, with "always" every file is rewritten."""
    format_version: Literal[2, 3] | None = None
    """The Iceberg format of tables that are published; None: 2, or 3 where something in the table needs it."""
    readers: tuple[str, ...] = ()
    """The engines that have to read what is published; none named: all that the type matrix knows."""
    target_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the target's catalog; they may be credentials, so nothing shows them."""
    spark_master: str = ""
    spark_conf: tuple[str, ...] = ()
    spark_remote: str = ""
    spark_session: object = field(default=None, repr=False)
    """A running session of the caller's, who also stops it."""
    memory_limit: str | None = None
    """What an engine in this process may hold in memory, such as 2GB; None: its own default."""
    partition_by: tuple[str, ...] = ()
    """`TABLE=KEY,...` for each table, or `KEY,...` for all: a key is a column or year, month, day, hour (column),
    bucket(N, column)."""
    sort_by: tuple[str, ...] = ()
    """`TABLE=COLUMN [ASC|DESC] [NULLS FIRST|LAST],...` for each table, or the columns alone for all."""
    jobs: int = 4
    """How many tables are read at once, where the source allows it."""
    follow: bool = False
    """Whether a source that was rolled back, or has forgotten what the target holds, is followed by a difference; else
    it is a conflict."""
    accept: frozenset[str] = frozenset()
    strict: bool = False
    source_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the source's catalog; they may be credentials, so nothing shows them."""
