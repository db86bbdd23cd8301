"""Iceberg tables over ORC, Avro and Parquet files that a test wrote itself, with equality deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.typedef import Record

from tests.foreign_files import Foreign

__all__ = ["append", "delete_equal", "save"]

Arrow = pa.Table


def save(path: Path, rows: Arrow, ids: Mapping[str, int], avro: Mapping[str, Any] | None = None) -> Path:
    """A file of the format that its name says; `avro` are the Avro types of columns that need more than `long`."""
    match path.suffix:
        case ".parquet":
            named = [each.with_metadata({"PARQUET:field_id": str(ids[each.name])}) for each in rows.schema]
            pq.write_table(rows.cast(pa.schema(named)), path)
        case ".orc":
            orc.write_table(rows, path, compression="zlib")
        case ".avro":
            fields = [
                {"name": name, "type": ["null", (avro or {}).get(name, "long")], "field-id": ids[name]}
                for name in rows.column_names
            ]
            schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
            with path.open("wb") as out:
                fastavro.writer(out, schema, rows.to_pylist(), codec="deflate")
        case _:
            raise AssertionError(path)
    return path


Stated = Mapping[int, tuple[bytes | None, bytes | None, int]]
"""Lower bound, upper bound and number of NULLs by column."""


def _file(
    path: Path,
    rows: int,
    content: DataFileContent,
    ids: Sequence[int] | None,
    stated: Stated | None = None,
    void: int = 0,
) -> DataFile:
    stated = stated or {}
    made = DataFile.from_args(
        content=content,
        file_path=str(path),
        file_format=FileFormat[path.suffix[1:].upper()],
        partition=Record(*[None] * void),
        record_count=rows,
        file_size_in_bytes=path.stat().st_size,
        equality_ids=None if ids is None else list(ids),
        value_counts=dict.fromkeys(stated, rows),
        null_value_counts={key: nulls for key, (_, _, nulls) in stated.items()},
        nan_value_counts={},
        lower_bounds={key: low for key, (low, _, _) in stated.items() if low is not None},
        upper_bounds={key: high for key, (_, high, _) in stated.items() if high is not None},
    )
    made.spec_id = 0
    return made


def append(table: Foreign, files: Sequence[tuple[Path, int]]) -> None:
    """One snapshot with files and their rows."""
    with table.table.transaction() as transaction, transaction.update_snapshot().fast_append() as adding:
        for path, rows in files:
            adding.append_data_file(_file(path, rows, DataFileContent.DATA, None))


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_equal(table: Foreign, path: Path, rows: int, ids: Sequence[int], stated: Stated | None = None) -> None:
    """One snapshot with an equality delete file of the first spec, which reaches every file if its keys are void."""
    with table.table.transaction() as transaction:
        adding = transaction.update_snapshot().fast_append()

        def writer(spec: Any) -> _Deletes:
            schema, first = transaction.table_metadata.schema(), transaction.table_metadata.specs()[0]
            return _Deletes(first, schema, adding.new_manifest_output(), adding.snapshot_id, "deflate")

        adding.new_manifest_writer = writer  # type: ignore[method-assign]  # PyIceberg writes no delete manifests
        void = max(len(each.fields) for each in table.table.specs().values())
        adding.append_data_file(_file(path, rows, DataFileContent.EQUALITY_DELETES, ids, stated, void))
        adding.commit()


def made_rows(query: str) -> Arrow:
    """Rows of a query."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(query).to_arrow_table()
