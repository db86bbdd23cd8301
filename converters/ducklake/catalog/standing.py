"""What stands in a table of the lake now: its live data files, the positions deleted in them, and what is known of
their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import sqlalchemy as sa

from bridge.model.files import Measures, Standing, StatsBatch
from bridge.model.table import TableName
from bridge.model.types import ColumnType, FieldId
from converters import storage
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.deletes import inlined
from converters.ducklake.catalog.file_rows import MEASURES
from converters.ducklake.catalog.folders import table_folder
from converters.ducklake.catalog.overlay import frames
from converters.ducklake.catalog.session import Place, Session, session
from converters.ducklake.catalog.tables import table
from converters.ducklake.delete_files import decode
from converters.ducklake.source_stats import typed
from converters.parquet import quiet

__all__ = ["HeldTable"]

_FILES = {"data_file_id": pl.Int64, "path": pl.String, "own": pl.Boolean, "record_count": pl.Int64}


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table of a lake that we wrote and nobody else changed."""

    place: Place
    data_path: str
    name: TableName

    def standing(self, paths: Sequence[str] | None = None) -> Standing:
        """Its live data files, or those of some paths, and the positions deleted in them by rows of the catalog and by
        delete files."""
        with session(self.place) as opened:
            return _live_state(opened, self._id(opened), table_folder(opened, self.data_path, self.name), paths)

    def measures(self, types: Mapping[FieldId, ColumnType]) -> Measures:
        """What the catalog says of some columns in its live data files."""
        with session(self.place) as opened:
            files, rows = _measured(opened, self._id(opened), [int(each) for each in types])
        found = list[StatsBatch]()
        with closing(quiet.connect()) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for field, type_ in types.items():
                found += typed(field, type_, False, rows.filter(pl.col("column_id") == int(field)), connection)
        paths = files.select(pl.when(~pl.col("own")).then("path").alias("path"))
        return Measures(paths.to_arrow(), found)

    def _id(self, opened: Session) -> int:
        held = reads.table_called(opened, self.name)
        if held is None:
            raise reads.gone(opened, self.name)
        return held.id


def _measured(opened: Session, table_id: int, columns: Sequence[int]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The live data files, and what is said of some columns in them by row number (file). What is said twice is not
    known."""
    file, stats = table("data_file").c, table("file_column_stats").c
    live = sa.select(file.data_file_id, file.path, file.path_is_relative.label("own"), file.record_count).where(
        file.table_id == table_id, file.end_snapshot.is_(None)
    )
    files = pl.concat([pl.DataFrame(schema=_FILES), *frames(opened, live, _FILES)])
    kept = {"data_file_id": pl.Int64, "column_id": pl.Int64, **MEASURES}
    said = sa.select(*(stats[each] for each in kept)).where(stats.table_id == table_id, stats.column_id.in_(columns))
    rows = pl.concat([pl.DataFrame(schema=kept), *frames(opened, said, kept)])
    numbered = files.with_row_index("file").with_columns(pl.col("file").cast(pl.Int64)).drop("path")
    rows = rows.unique(["data_file_id", "column_id"], keep="none")
    return files, numbered.join(rows, on="data_file_id")


def _live_state(opened: Session, table_id: int, folder: str, paths: Sequence[str] | None) -> Standing:
    live = reads.live_files(opened, table_id, folder, paths)
    if paths is not None:
        asked = set(paths)
        live = {path: each for path, each in live.items() if path in asked}
    ids = np.array([each.id for each in live.values()], dtype=np.int64)
    place = {id_: number for number, id_ in enumerate(ids.tolist())}
    rows = inlined(opened, table_id, ids) if len(ids) else None
    file = [] if rows is None else [np.array([place[each] for each in rows.file.tolist()], dtype=np.int64)]
    position = [] if rows is None else [rows.position]
    for each in reads.delete_files(opened, table_id, None if paths is None else ids.tolist()):
        if each.data_file in place:
            path = folder + each.path if each.relative else each.path
            positions, _ = decode(storage.read(path, "delete file"), each.begin)
            file.append(np.full(len(positions), place[each.data_file], dtype=np.int64))
            position.append(positions)
    nothing = np.zeros(0, dtype=np.int64)
    return Standing(
        pa.table(
            {
                "path": pa.array(list(live), pa.string()),
                "record_count": pa.array([each.record_count for each in live.values()], pa.int64()),
            }
        ),
        pa.table({"file": np.concatenate([nothing, *file]), "position": np.concatenate([nothing, *position])}),
    )
