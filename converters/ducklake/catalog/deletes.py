"""Deleted positions as rows of `ducklake_inlined_delete_<table>`, or in delete files of ours when there are many."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from converters.ducklake.catalog.job import Job
from converters.ducklake.catalog.session import Session
from converters.ducklake.identifiers import identifier

__all__ = ["inline"]


def inline(session: Session, job: Job, file_ids: np.ndarray, positions: np.ndarray, snapshots: np.ndarray) -> None:
    """One row a position: data file id, position in the file, first lake snapshot at which it is deleted. The table
    is listed nowhere: DuckDB 1.5.5 looks for it by its name."""
    if not len(positions):
        return
    name = f"ducklake_inlined_delete_{job.table_id}"
    session.connection.exec_driver_sql(
        f"CREATE TABLE IF NOT EXISTS {identifier(name)} (file_id BIGINT, row_id BIGINT, begin_snapshot BIGINT)"
    )
    session.append(name, pa.table({"file_id": file_ids, "row_id": positions, "begin_snapshot": snapshots}))
