"""Where the rows of a table lie: the file, the state it was read in, and the table; as a path for a data file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from bridge.model.table import TableName
from converters.duckdb_file.locate import ALIAS
from converters.parquet.sql import identifier

__all__ = ["TablePlace", "table_name"]

_PATH = re.compile(r"(?P<file>.*)#(?P<schema>[^#.@]*)\.(?P<table>[^#.@]*)@(?P<state>[0-9a-f]+)", re.DOTALL)


def table_name(schema: str, name: str) -> TableName:
    """A table, view or macro of the file: what lies in `main` has no namespace, as in a lake."""
    return TableName(() if schema == "main" else (schema,), name)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """One table in one state of a file."""

    file: str
    schema: str
    table: str
    state: str

    @property
    def path(self) -> str:
        """A text with a slash only where the file's own path has one."""
        schema, table = (quote(each, safe="").replace(".", "%2E") for each in (self.schema, self.table))
        return f"{self.file}#{schema}.{table}@{self.state}"

    @property
    def sql(self) -> str:
        """The table in the database that `opened` gives."""
        return f"{ALIAS}.{identifier(self.schema)}.{identifier(self.table)}"

    @staticmethod
    def parse(path: str) -> TablePlace:
        """The place that a path names."""
        found = _PATH.fullmatch(path)
        if found is None:
            raise ValueError(f"{path} names no table of a DuckDB file")
        return TablePlace(found["file"], unquote(found["schema"]), unquote(found["table"]), found["state"])
