"""Live rows of a table at each commit, from its files and their deleted positions."""

from __future__ import annotations

import numpy as np

from bridge.ports import TableWrite

__all__ = ["live_rows"]


def live_rows(write: TableWrite) -> np.ndarray:
    """One number a commit, and one for what comes after."""
    files, commits = write.files.table, len(write.table.commits)
    change = np.zeros(commits + 1, dtype=np.int64)
    counts = files.column("record_count").to_numpy()
    np.add.at(change, files.column("begin").to_numpy(), counts)
    ends = files.column("end").fill_null(commits).to_numpy()
    np.subtract.at(change, ends, counts)
    deleted = write.files.deletes
    np.subtract.at(change, deleted.column("begin").to_numpy(), 1)
    np.add.at(change, ends[deleted.column("file").to_numpy()], 1)
    return np.cumsum(change)
