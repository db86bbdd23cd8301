"""Whether a lake answers as its source does, as DuckDB finds it from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bridge.errors import BridgeError
from bridge.model.files import live_rows
from bridge.model.objects import Macro, ObjectKind, View
from bridge.model.sample import sample
from bridge.model.table import TableName
from bridge.ports import Check, ObjectWrite, Rows, TableWrite
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.objects import schema_of
from converters.ducklake.catalog.session import Place, session
from converters.ducklake.columns import column_rows
from converters.ducklake.identifiers import literal, qualified
from converters.ducklake.remote import needs_objects
from converters.ducklake.scanner import Asking, ask, compare_rows
from converters.ducklake.types import duckdb_type

__all__ = ["compare", "verify", "verify_objects"]

_Question = tuple[str, str, list[list[str | None]] | None]
"""What it is about, the query, and the rows that are right; None where any are."""


def verify(
    place: Place,
    writes: Sequence[TableWrite],
    chosen: Mapping[str, str],
    read_files: bool,
    in_objects: bool,
    ready: Asking | None,
) -> list[Check]:
    """Columns, types and row counts as DuckDB answers them, at the first, last and some snapshots between."""
    snapshots = _snapshots(place, writes)
    questions: list[_Question] = []
    for write in writes:
        questions += _questions(write, snapshots.get(write.name, {}), chosen, read_files)
    try:
        answers = ask(place, [query for _, query, _ in questions], in_objects, ready)
    except BridgeError as error:
        return [Check("DuckDB opens the lake", error.message)]
    checks = [Check("DuckDB opens the lake")]
    for (what, _, expected), answer in zip(questions, answers, strict=True):
        if isinstance(answer, BridgeError):
            checks.append(Check(what, answer.message))
        elif expected is not None and answer != expected:
            checks.append(Check(what, f"DuckDB says {_short(answer)}, expected {_short(expected)}"))
        else:
            checks.append(Check(what))
    return checks


def verify_objects(place: Place, objects: Sequence[ObjectWrite]) -> list[Check]:
    """Each view is bound, each macro and schema is found, as DuckDB sees the lake from outside."""
    asked = [(f"{each.object.kind.value} {each.name}", *_seen(each)) for each in objects]
    try:
        answers = ask(place, ["USE lake", *(query for _, query, _ in asked)])[1:] if asked else []
    except BridgeError as error:
        return [Check("DuckDB opens the lake", error.message)]
    checks = []
    for (what, _, count), answer in zip(asked, answers, strict=True):
        if isinstance(answer, BridgeError):
            checks.append(Check(what, answer.message))
        else:
            right = count is None or answer == [[str(count)]]
            checks.append(Check(what, "" if right else f"DuckDB finds {_short(answer)} of {count} overloads"))
    return checks


def compare(place: Place, data_path: str, name: TableName, commit: str, rows: Rows) -> Check:
    """EXCEPT ALL both ways, in DuckDB's own process, at the lake snapshot of the commit."""
    label = f"{name}: rows"
    at = qualified("lake", *(name.namespace or ("main",)), name.name)
    if commit:
        with session(place) as opened:
            held = [each for each in reads.noted_of(opened, name) if each.commit == commit]
        if not held:
            return Check(f"{label} at commit {commit}", "the lake has no snapshot for it")
        label, at = f"{label} at snapshot {held[-1].snapshot}", _at(held[-1])
    try:
        with session(place) as opened:
            objects = needs_objects((data_path, *reads.remote_paths(opened)))
        fault = compare_rows(place, at, rows, objects)
    except BridgeError as error:
        fault = error.message
    return Check(label, fault)


def _snapshots(place: Place, writes: Sequence[TableWrite]) -> dict[TableName, dict[int, reads.Noted]]:
    """Lake snapshot by commit index, from what the commit noted in the catalog."""
    found: dict[TableName, dict[int, reads.Noted]] = {}
    with session(place) as opened:
        for write in writes:
            index = {commit.id: number for number, commit in enumerate(write.table.commits)}
            noted = reads.noted_of(opened, write.name)
            found[write.name] = {index[each.commit]: each for each in noted if each.commit in index}
    return found


def _questions(
    write: TableWrite, snapshots: Mapping[int, reads.Noted], chosen: Mapping[str, str], read_files: bool
) -> list[_Question]:
    name = ".".join((*write.name.namespace, write.name.name))
    at = qualified("lake", *(write.name.namespace or ("main",)), write.name.name)
    rows = column_rows(write.table.schema, chosen)
    top = sorted((row.order, row) for row in rows.values() if row.parent is None)
    questions: list[_Question] = [
        (
            f"{name}: columns",
            f"SELECT column_name, CASE WHEN data_type LIKE 'STRUCT%' OR data_type LIKE '%[]' OR data_type LIKE 'MAP%' "
            f"THEN '' ELSE data_type END FROM duckdb_columns() WHERE database_name = 'lake' "
            f"AND lower(schema_name) = lower({literal((write.name.namespace or ('main',))[0])}) "
            f"AND lower(table_name) = lower({literal(write.name.name)}) ORDER BY column_index",
            [[row.name, "" if row.type in ("struct", "list", "map") else duckdb_type(row.type)] for _, row in top],
        )
    ]
    live, newest = live_rows(write.files, len(write.table.commits)), len(write.table.commits) - 1
    if write.files.since is not None:
        return questions + _changes(write, snapshots, live)
    questions.append((f"{name}: rows now", f"SELECT count(*) FROM {at}", [[str(live[newest] if newest >= 0 else 0)]]))
    if not read_files:
        return questions
    for index in sample(sorted(snapshots)):
        questions.append(
            (
                f"{name}: rows at snapshot {snapshots[index].snapshot}",
                f"SELECT count(*) FROM {_at(snapshots[index])}",
                [[str(live[index])]],
            )
        )
    questions.append((f"{name}: a row can be read", f"SELECT * FROM {at} LIMIT 1", None))
    return questions


def _changes(write: TableWrite, snapshots: Mapping[int, reads.Noted], live: np.ndarray) -> list[_Question]:
    """What was added to a table that the lake holds, by the files that changed alone: the others were not read again,
    and counting them would open every one."""
    since, newest = write.files.since, len(write.table.commits) - 1
    if since is None or since not in snapshots or newest not in snapshots or newest == since:
        return []
    schema, place = (write.name.namespace or ("main",))[0], write.name.name
    first, last = snapshots[since].snapshot + 1, snapshots[newest].snapshot
    span = f"'lake', {literal(schema)}, {literal(place)}, {first}, {last}"
    counts = (f"(SELECT count(*) FROM ducklake_table_{each}({span}))" for each in ("insertions", "deletions"))
    what = f"{'.'.join((*write.name.namespace, place))}: rows added since snapshot {first - 1}"
    return [(what, f"SELECT {' - '.join(counts)}", [[str(live[newest] - live[since])]])]


def _seen(each: ObjectWrite) -> tuple[str, int | None]:
    """A question that shows an object, and the number that it has to answer."""
    schema = literal(schema_of(each.name))
    match each.object.definition:
        case View():
            return f"DESCRIBE SELECT * FROM {qualified('lake', schema_of(each.name), each.name.name)}", None
        case Macro(overloads):
            kind = "table_macro" if each.object.kind is ObjectKind.TABLE_MACRO else "macro"
            return (
                f"SELECT count(*) FROM duckdb_functions() WHERE database_name = 'lake' AND function_type = '{kind}' "
                f"AND lower(schema_name) = lower({schema}) AND lower(function_name) = lower({literal(each.name.name)})",
                len(overloads),
            )
        case _:
            return (
                "SELECT count(*) FROM duckdb_schemas() WHERE database_name = 'lake' "
                f"AND lower(schema_name) = lower({literal(each.name.name)})",
                1,
            )


def _short(rows: Sequence[Sequence[str | None]]) -> str:
    text = "; ".join(", ".join(map(str, row)) for row in rows)
    return text if len(text) < 200 else text[:200] + " ..."


def _at(noted: reads.Noted) -> str:
    """A table in one of its snapshots, under the name that it had then."""
    return f"{qualified('lake', noted.schema, noted.name)} AT (VERSION => {noted.snapshot})"
