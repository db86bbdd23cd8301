"""Whether what happened to a table after a commit can be told by the files that changed since."""

from __future__ import annotations

from converters.ducklake.catalog.file_rows import FileRows, Later
from converters.ducklake.catalog.history import Definition, LakeState
from converters.ducklake.definition import History

__all__ = ["is_whole", "later_than"]

_PLAIN = frozenset({"inserted_into_table", "deleted_from_table", "inlined_insert", "inlined_delete"})
"""Words of changes_made after which every file that was there before is still told of, under the id that it had."""


def later_than(state: LakeState, found: Definition, history: History, table_id: int, since: int) -> Later | None:
    """What is later than a commit; None where everything has to be read.

    Flushes, merges and rewrites give files a begin in the past and forget others, which only a comparison of all files
    finds. A new column, type, key or name may concern every file: a default that older files lack, a type that they do
    not hold. What an expired snapshot did, or one that tells nothing, may have been any of these.
    """
    at = history.snapshots[since]
    if history.touched[since] != at.id or at.next_file_id is None:
        return None
    after = [each for each in state.snapshots if each.id > at.id]
    if len(after) != state.head - at.id or not all(each.told for each in after):
        return None
    if any(id_ > at.id and word not in _PLAIN for id_, word in state.changes.get(table_id, ())):
        return None
    stated = (*found.versions, *found.columns, *found.specs, *found.sorts, *found.tags)
    if any(each.begin > at.id or (each.end or 0) > at.id for each in stated):
        return None
    return Later(at.id, at.next_file_id)


def is_whole(rows: FileRows, found: Definition, later: Later) -> bool:
    """Whether the rows of what is later show that everything has to be read."""
    moved = (rows.data["data_file_id"] >= later.file) & (rows.data["begin_snapshot"] <= later.snapshot)
    if moved.any():  # it was flushed or merged, whatever the snapshots tell
        return True
    if max(rows.mappings, default=-1) >= later.file:  # Iceberg has one name mapping, which all files must fit
        return True
    mapped = rows.data.filter(rows.data["begin_snapshot"] > later.snapshot)["mapping_id"].is_not_null().any()
    # a new file may lack a column that has a default, as no older one did
    return mapped and any(each.initial_default is not None for each in found.columns)
