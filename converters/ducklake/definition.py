"""A table of a lake as every format can describe it: one commit per kept snapshot that touched it."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.model.findings import Code, Finding
from bridge.model.layout import PartitionSpec, SortField, SortOrder, UnknownTransform
from bridge.model.layout import Simple as SimpleTransform
from bridge.model.schema import Schema
from bridge.model.table import Commit, Table, TableName
from bridge.model.types import (
    ColumnType,
    Decimal,
    Default,
    Field,
    FieldId,
    Geo,
    Leaf,
    ListOf,
    MapOf,
    Struct,
    Timestamp,
    UnknownType,
)
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.history import ColumnVersion, Definition, Keys, LakeState, Snapshot, Spanned
from converters.ducklake.partition import neutral_spec
from converters.ducklake.types import NAMES

__all__ = ["History", "columns_at", "default_of", "history_of", "leaf_type", "table_of"]

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)", re.IGNORECASE)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_WHOLE = re.compile(r"-?\d+")
_ESCAPED = re.compile(r"\\x([0-9A-Fa-f]{2})")
_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_ADDED = frozenset({"inserted_into_table", "inlined_insert"})
_DELETED = frozenset({"deleted_from_table", "inlined_delete"})


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a table: for each the kept snapshot that shows it, ascending, and the last snapshot that is known
    to have touched the table until then. Where the lake has expired that one, other changes may be forgotten: of files
    that no kept snapshot uses it holds nothing."""

    snapshots: tuple[Snapshot, ...]
    touched: tuple[int, ...]

    def index(self, snapshot: int) -> int:
        """The first commit that sees what began at a snapshot; the number of commits when none does."""
        return bisect_left(self.snapshots, snapshot, key=lambda each: each.id)


def history_of(state: LakeState, found: Definition, table_id: int) -> History:
    """Every kept snapshot at which the table is not what it was at the one before."""
    born = min(each.begin for each in found.versions)
    touched = set(found.touched) | {snapshot for snapshot, _ in state.changes.get(table_id, ())}
    ids = [each.id for each in state.snapshots]
    if found.has_partial:
        # what happened at a snapshot that was expired may be told by files alone
        touched |= {id_ for id_, before in zip(ids[1:], ids, strict=False) if before < id_ - 1}
    shown: dict[int, int] = {}
    for each in sorted(touched):
        place = bisect_left(ids, each)
        if born <= each and place < len(ids):
            shown[place] = each
    return History(tuple(state.snapshots[place] for place in shown), tuple(shown.values()))


def table_of(
    state: LakeState, found: Definition, history: History, name: TableName, location: str, metadata: str
) -> Table:
    """The neutral table; findings say what its definition holds beyond that."""
    newest = max((each for each in found.versions if each.live(state.head)), key=lambda each: each.begin)
    schemas: dict[int, Schema] = {}
    commits = []
    words = sorted(state.changes.get(newest.id, ()), key=lambda each: each[0])
    times = _ascending([each.time for each in history.snapshots])
    before, place = -1, 0
    schema = None
    shaping = _moments((*found.columns, *found.tags))
    for snapshot, touched, time in zip(history.snapshots, history.touched, times, strict=True):
        if schema is None or _between(shaping, before, snapshot.id):
            schema = _schema(found, snapshot, schemas)
        schemas.setdefault(schema.id, schema)
        said = []
        while place < len(words) and words[place][0] <= snapshot.id:
            said.append(words[place][1])
            place += 1
        commits.append(_commit(snapshot, touched, time, schema, said, found, before))
        before = snapshot.id
    specs = {0: PartitionSpec(0)}
    # partitioning that was reset is a spec without keys
    for each in (spec for spec in found.specs if spec.keys):
        types = {column.id: leaf_type(column.type) for column in found.columns if column.live(each.begin)}
        names = {column.id: column.name for column in found.columns if column.live(each.begin)}
        specs[each.id] = neutral_spec(each, types, names)
    current = next((each for each in found.specs if each.keys and each.live(state.head)), None)
    live = columns_at(found.columns, state.head)
    findings = [
        Finding(
            Code.DEFAULT_LOST,
            str(name),
            f"column {each.name}: the default {each.default} is an expression",
        )
        for each in live
        if each.is_expression and each.default is not None
    ]
    return Table(
        name=name,
        uuid=newest.uuid,
        location=location,
        metadata=metadata,
        format="ducklake",
        format_version=int(state.version.partition(".")[0]),
        schemas=schemas,
        schema=schemas[commits[-1].schema],
        specs=specs,
        spec=specs[current.id] if current else specs[0],
        sort_order=_sort_order(next((each for each in found.sorts if each.live(state.head)), None), live),
        commits=tuple(commits),
        updated=commits[-1].time,
        last_column_id=FieldId(max(each.id for each in found.columns)),
        properties=_properties(found, state.head),
        next_row_id=found.next_row_id,
        findings=tuple(findings),
        origin=_origin(found.settings.get("bridge.source", "")),
    )


def _origin(text: str) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(text).items()} if text else {}
    except (ValueError, AttributeError):  # the target side tells of damaged notes
        return {}


def _moments(spans: Iterable[Spanned]) -> list[int]:
    """The snapshots at which one of some things begins or ends, ascending."""
    return sorted({each for span in spans for each in (span.begin, span.end) if each is not None})


def _between(moments: Sequence[int], before: int, now: int) -> bool:
    """Whether one of some ascending snapshots lies after `before` and not after `now`."""
    place = bisect_right(moments, before)
    return place < len(moments) and moments[place] <= now


def _ascending(times: Sequence[int]) -> list[int]:
    """Strictly ascending times that leave the newest where it is."""
    made = list(times)
    for place in range(len(made) - 2, -1, -1):
        made[place] = min(made[place], made[place + 1] - 1)
    return made


def _commit(
    snapshot: Snapshot,
    touched: int,
    time: int,
    schema: Schema,
    words: Iterable[str],
    found: Definition,
    before: int,
) -> Commit:
    said = list(dict.fromkeys(words))
    if "inline_flush" in said and "deleted_from_table" in said and not found.may_delete(snapshot.id):
        # a flush of noted deletes calls itself a delete (DuckDB 1.5.5)
        said.remove("deleted_from_table")
    names = [each for each in found.versions if before < each.begin <= snapshot.id]
    if names and before < 0:
        said.insert(0, "created_table")
    elif names:
        said.insert(0, "renamed_table")
    summary = {
        "ducklake.snapshot-id": str(snapshot.id),
        "ducklake.schema-version": str(snapshot.schema_version),
        "ducklake.changes": ",".join(said),
        "author": snapshot.author,
        "message": snapshot.message,
        "extra-info": snapshot.extra,
    }
    summary |= _layout_changes(found, before, snapshot.id)
    return Commit(
        id=str(snapshot.id),
        time=time,
        own_time=snapshot.time,
        schema=schema.id,
        operation=_operation(set(said)),
        summary={key: value for key, value in summary.items() if value},
        changed=str(touched) if touched != snapshot.id else "",
    )


def _layout_changes(found: Definition, before: int, now: int) -> dict[str, str]:
    """The partition keys and sort keys that a commit set; `none` for those that it took away."""
    if not _between(_moments((*found.specs, *found.sorts)), before, now):
        return {}
    names = {each.id: each.name for each in found.columns if each.live(now)}
    made = {}
    for key, layouts in (("ducklake.partitioned-by", found.specs), ("ducklake.sorted-by", found.sorts)):
        changed = any(
            before < event <= now for each in layouts for event in (each.begin, each.end) if event is not None
        )
        live = next((each for each in layouts if each.live(now)), None)
        if not changed:
            continue
        if live is None or not live.keys:
            made[key] = "none"
        elif layouts is found.specs:
            made[key] = ", ".join(f"{transform}: {names.get(int(column), column)}" for column, transform in live.keys)
        else:
            made[key] = ", ".join(" ".join((each[0], *each[2:])) for each in live.keys)
    return made


def _operation(words: set[str]) -> str:
    """What a commit did to the rows: append, delete, overwrite; replace when files were rearranged and no row
    changed; alter when only the definition did."""
    if words & _ADDED:
        return "overwrite" if words & _DELETED else "append"
    if words & _DELETED:
        return "delete"
    if words & reads.MAINTENANCE:
        return "replace"
    if "created_table" in words:
        return "create"
    return "alter" if words else ""


def _schema(found: Definition, snapshot: Snapshot, known: Mapping[int, Schema]) -> Schema:
    """The columns at a snapshot under the lake's own number for them, or the one that they have already."""
    docs = {each.column: each.value for each in found.tags if each.column and each.live(snapshot.id)}
    fields = _fields(columns_at(found.columns, snapshot.id), docs)
    same = next((each for each in known.values() if each.fields == fields), None)
    if same is not None:
        return same
    id_ = snapshot.schema_version
    return Schema(max(known) + 1 if id_ in known else id_, fields)


def columns_at(columns: Iterable[ColumnVersion], snapshot: int) -> list[ColumnVersion]:
    """The columns of every level that a snapshot sees."""
    return [each for each in columns if each.live(snapshot)]


def _fields(columns: Sequence[ColumnVersion], docs: Mapping[int, str]) -> tuple[Field, ...]:
    below: dict[int | None, list[ColumnVersion]] = {}
    for each in columns:
        below.setdefault(each.parent, []).append(each)
    maps = [each.id for each in columns if each.type.casefold() == "map"]
    keys = {min(below[id_], key=lambda each: (each.order, each.id)).id for id_ in maps if id_ in below}

    def made(parent: int | None) -> tuple[Field, ...]:
        ordered = sorted(below.get(parent, ()), key=lambda each: (each.order, each.id))
        return tuple(field(each) for each in ordered)

    def field(row: ColumnVersion) -> Field:
        type_ = _type(row, made(row.id))
        return Field(
            id=FieldId(row.id),
            name=row.name,
            type=type_,
            # of nested fields DuckDB 1.5.5 notes that they take no NULL, and takes it; keys of maps have none
            required=not row.nulls_allowed if row.parent is None else row.id in keys,
            doc=docs.get(row.id, ""),
            initial_default=default_of(row.initial_default, type_),
            write_default=None if row.is_expression else default_of(row.default, type_),
        )

    return made(None)


def _type(row: ColumnVersion, inner: tuple[Field, ...]) -> ColumnType:
    match row.type.casefold():
        case "struct":
            return Struct(inner)
        case "list" if len(inner) == 1:
            return ListOf(inner[0])
        case "map" if len(inner) == 2:
            return MapOf(inner[0], inner[1])
        case _:
            return leaf_type(row.type)


def leaf_type(text: str) -> ColumnType:
    """The type behind a catalog's word."""
    name = text.casefold()
    if name == "timestamp_us":
        name = "timestamp"
    if (found := _DECIMAL.fullmatch(name)) is not None:
        return Decimal(int(found.group(1)), int(found.group(2)))
    if name == "geometry":
        return Geo("geometry")
    return NAMES.get(name) or UnknownType(text)


def default_of(text: str | None, type_: ColumnType) -> Default | None:
    """A default as the catalog's text says it; DuckDB reads none of structs, lists and maps."""
    if text is None or isinstance(type_, Struct | ListOf | MapOf):
        return None
    if type_ is Leaf.BINARY:
        parts = _ESCAPED.split(text)
        return b"".join(bytes.fromhex(each) if place % 2 else each.encode() for place, each in enumerate(parts))
    # a column whose type changed goes on with the text that its default had
    if isinstance(type_, Timestamp) and _DAY.fullmatch(text):
        return f"{text} 00:00:00{'+00' if type_.utc else ''}"
    if isinstance(type_, Decimal) and _WHOLE.fullmatch(text) and type_.scale:
        return f"{text}.{'0' * type_.scale}"
    return text


def _sort_order(order: Keys | None, columns: Sequence[ColumnVersion]) -> SortOrder:
    """Keys that are columns by their ids; an expression is a transform that nobody else knows."""
    if order is None:
        return SortOrder(0)
    by_name = {each.name.casefold(): each.id for each in columns if each.parent is None}
    fields = []
    for expression, _, direction, nulls in order.keys:
        name = expression[1:-1].replace('""', '"') if _QUOTED.fullmatch(expression) else expression
        id_ = by_name.get(name.casefold())
        fields.append(
            SortField(
                source=FieldId(id_ or 0),
                transform=UnknownTransform(expression) if id_ is None else SimpleTransform.IDENTITY,
                descending=direction.upper() == "DESC",
                nulls_first=nulls.upper() == "NULLS_FIRST",
            )
        )
    return SortOrder(order.id, tuple(fields))


def _properties(found: Definition, head: int) -> dict[str, str]:
    """The table's tags, `comment` among them, and its settings as `ducklake.NAME`."""
    tags = {each.key: each.value for each in found.tags if not each.column and each.live(head)}
    own = {f"ducklake.{key}": value for key, value in found.settings.items() if not key.startswith("bridge.")}
    return {**own, **tags}
