"""Whether published tables answer as their sources do, as PyIceberg reads them; and that one was verified as it is: a
note beside its metadata, which holds for that very state alone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from bridge.errors import BridgeError
from bridge.model.files import live_rows
from bridge.model.paths import PathMap
from bridge.model.sample import sample
from bridge.model.table import TableName
from bridge.ports import Check, Rows, TableWrite
from converters import storage
from converters.iceberg.publish.asking import answers
from converters.iceberg.publish.bookmark import bookmark_of, kept_commits
from converters.iceberg.publish.review import unread
from converters.iceberg.scanner import IcebergRows
from converters.iceberg.warehouse import VERIFIED, Held, Home, document

__all__ = ["compare", "note_verified", "verify", "verify_again"]


def verify(home: Home, writes: Sequence[TableWrite], read_files: bool) -> list[Check]:
    """Columns and row counts as PyIceberg answers them, at the first, the last and some snapshots between."""
    unasked: list[Check] = []
    asked: list[dict[str, object]] = []
    expected: list[tuple[str, int, list[str]]] = []
    for write in writes:
        there = home.find(write.name)
        if there is None:
            return [Check(f"{write.name}: is there", "it is not")]
        if _went_on(there[1], write):
            unasked.append(Check(f"{write.name}: not verified: somebody else committed to it meanwhile"))
            continue
        held, live = there[1], live_rows(write.files, len(write.table.commits))
        if types := unread(held.metadata):
            unasked.append(Check(f"{write.name}: not verified: PyIceberg does not know {types}"))
            continue
        kept = kept_commits(held.metadata)
        columns = [each.name for each in write.table.schema.fields]
        since = write.files.since
        places = [
            place
            for place, commit in enumerate(write.table.commits)
            # deletes before the first commit are folded into what was rewritten: of what was published earlier
            # these files tell nothing
            if commit.id in kept and place >= write.first and (since is None or place >= since)
        ]
        if since is not None and write.files.rest is None:
            # what was left out is taken as it was: what is counted is what came and went since
            if since not in places:
                continue
            live = live - live[since] + _counted(held, kept[write.table.commits[since].id])
        if since is not None:
            places = [each for each in places if since < each < len(write.table.commits) - 1]
        asked.append({"metadata": held.path, "snapshot": None, "listed": since is not None})
        newest = int(live[len(write.table.commits) - 1]) if write.table.commits else 0
        expected.append((f"{write.name}: rows now", newest, columns))
        for place in sample(places) if read_files else ():
            snapshot = kept[write.table.commits[place].id]
            asked.append({"metadata": held.path, "snapshot": snapshot, "listed": since is not None})
            expected.append((f"{write.name}: rows at snapshot {snapshot}", int(live[place]), columns))
    checks = unasked
    for (what, rows, columns), answer in zip(expected, _ask(asked), strict=True):
        fault = str(answer.get("error", "")).partition("\n")[0]
        if not fault and answer["columns"] != columns:
            fault = f"PyIceberg finds the columns {answer['columns']}, expected {columns}"
        if not fault and answer["rows"] != rows:
            fault = f"PyIceberg finds {answer['rows']} rows, expected {rows}"
        checks.append(Check(what, fault))
    return checks


def note_verified(home: Home, writes: Sequence[TableWrite]) -> None:
    """Beside each table's metadata; without the note it is verified once more, which is all that a failure costs."""
    for write in writes:
        there = home.find(write.name)
        if there is not None and not unread(there[1].metadata) and not _went_on(there[1], write):
            with suppress(BridgeError):
                storage.write(_note(there[1]), _state(there[1], write), f".{VERIFIED}.tmp", durable=False)


def verify_again(home: Home, writes: Sequence[TableWrite]) -> list[Check]:
    """PyIceberg is asked about states of which nothing is noted."""
    checks: list[Check] = []
    asked: list[TableWrite] = []
    for write in writes:
        there = home.find(write.name)
        if there is not None and _is_noted(there[1], write):
            checks.append(Check(f"{write.name}: was verified as it is"))
        else:
            asked.append(write)
    if asked:
        told = verify(home, asked, False)
        if not any(each.fault for each in told):
            note_verified(home, asked)
        checks += told
    return checks


def compare(home: Home, name: TableName, commit: str, rows: Rows, paths: PathMap) -> Check:
    """EXCEPT ALL both ways between PyIceberg's rows and the source's."""
    from converters.iceberg.publish.comparing import difference

    there, label = home.find(name), f"{name}: rows"
    if there is None:
        return Check(label, "the table is not there")
    if types := unread(there[1].metadata):
        return Check(f"{label} not compared: PyIceberg does not know {types}")
    snapshot = ""
    if commit:
        kept = kept_commits(there[1].metadata)
        if commit not in kept:
            return Check(f"{label} at commit {commit}", "the table has no snapshot for it")
        snapshot = str(kept[commit])
        label = f"{label} at snapshot {snapshot}"
    try:
        mine = IcebergRows(there[1].path, snapshot, paths)
        return Check(label, difference(mine, rows))
    except BridgeError as error:
        return Check(label, error.message)


def _went_on(held: Held, write: TableWrite) -> bool:
    """Whether a table is not any more as a run left it."""
    mark, commits = bookmark_of(held.metadata), write.table.commits
    return mark is None or bool(mark.changed_by) or mark.commit != (commits[-1].id if commits else "")


def _note(held: Held) -> str:
    return f"{held.metadata['location']}/metadata/{VERIFIED}"


def _state(held: Held, write: TableWrite) -> bytes:
    """A table as it is, and how many rows the source has."""
    digest, count = hashlib.sha256(document(held.metadata)).hexdigest(), len(write.table.commits)
    rows = int(live_rows(write.files, count)[count - 1]) if count else 0
    return json.dumps({"metadata": held.path, "digest": digest, "rows": rows}, sort_keys=True).encode()


def _is_noted(held: Held, write: TableWrite) -> bool:
    """Whether the table is still in the state that was noted, and the source still has as many rows."""
    try:
        return storage.read(_note(held), "note") == _state(held, write)
    except BridgeError:
        return False


def _counted(held: Held, snapshot: int) -> int:
    """The rows at a snapshot as its manifest list counts them, -1 when that cannot be read."""
    [said] = _ask([{"metadata": held.path, "snapshot": snapshot, "listed": True}])
    return int(str(said.get("rows", -1)))


def _ask(asked: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """PyIceberg: in a process of its own where it scans tables."""
    if all(each["listed"] for each in asked):
        return answers(asked, storage.properties())

    ran = subprocess.run(
        [sys.executable, "-m", "converters.iceberg.publish.asking"],
        input=json.dumps({"asked": list(asked), "properties": storage.properties()}),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if ran.returncode or not ran.stdout:
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        return [{"error": f"PyIceberg could not be asked: {last}"} for _ in asked]
    said: list[dict[str, object]] = json.loads(ran.stdout)
    return said
