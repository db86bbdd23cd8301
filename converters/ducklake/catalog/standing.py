"""What stands in a table of the lake now: its live data files and the positions deleted in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from bridge.model.files import Standing
from converters import storage
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.deletes import inlined
from converters.ducklake.catalog.session import Session
from converters.ducklake.delete_files import decode

__all__ = ["live_state"]


def live_state(session: Session, table_id: int, folder: str, paths: Sequence[str] | None = None) -> Standing:
    """The newest state of a table that we wrote and nobody else changed, or of some of its files; `folder` is its own
    directory."""
    live = reads.live_files(session, table_id, folder, paths)
    if paths is not None:
        asked = set(paths)
        live = {path: each for path, each in live.items() if path in asked}
    ids = np.array([each.id for each in live.values()], dtype=np.int64)
    place = {id_: number for number, id_ in enumerate(ids.tolist())}
    rows = inlined(session, table_id, ids) if len(ids) else None
    file = [] if rows is None else [np.array([place[each] for each in rows.file.tolist()], dtype=np.int64)]
    position = [] if rows is None else [rows.position]
    for each in reads.delete_files(session, table_id, None if paths is None else ids.tolist()):
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
