"""Which tables of a source are meant, and what they will be called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from bridge.errors import UsageError
from bridge.model.findings import Code, Finding
from bridge.model.objects import ObjectKind, SourceObject
from bridge.model.options import Options
from bridge.model.table import TableName
from bridge.ports import Notice, Source

__all__ = [
    "clashes_of",
    "concerned",
    "is_wanted",
    "literal",
    "matches",
    "not_listed",
    "select",
    "select_objects",
    "targets",
    "unmatched",
    "waits",
]

_MEANING = {"**": ".*", "*": "[^.]*", "?": "[^.]"}


def matches(name: TableName, pattern: str) -> bool:
    """`*` and `?` stay within a level, `**` crosses dots, a backslash takes the character behind it as it is; case
    counts, as at the source."""
    meaning = "".join(_MEANING.get(part) or re.escape(_unescaped(part)) for part in _parts(pattern))
    return bool(re.fullmatch(meaning, str(name), re.DOTALL))


def _parts(pattern: str) -> list[str]:
    return re.split(r"(\\.|\*\*|\*|\?)", pattern, flags=re.DOTALL)


def _unescaped(part: str) -> str:
    return part[1] if len(part) == 2 and part[0] == "\\" else part


def literal(name: TableName) -> str:
    """The pattern that matches this name alone."""
    return re.sub(r"([*?\\])", r"\\\1", str(name))


def concerned(notices: Sequence[Notice], options: Options) -> list[Finding]:
    """The findings about what the patterns take in: an object as if it were a table, a namespace when a selected table
    could lie in it."""
    return [each.finding for each in notices if _concerns(each.name, options)]


def not_listed(source: Source, options: Options) -> list[Finding]:
    """Namespaces whose tables a source could not tell, and in which a selected one could lie."""
    return [each for each in concerned(source.noticed(), options) if each.code is Code.NAMESPACE_UNREADABLE]


def select_objects(objects: Sequence[SourceObject], options: Options) -> list[SourceObject]:
    """A view or macro as if it were a table, a schema when a selected table could lie in it."""
    schemas = ObjectKind.SCHEMA
    return [
        each
        for each in objects
        if _concerns(TableName((each.name.name,), "") if each.kind is schemas else each.name, options)
    ]


def is_wanted(name: TableName, options: Options) -> bool:
    """Whether the patterns take in a table of that name."""
    chosen = not options.tables or any(matches(name, each) for each in options.tables)
    return chosen and not any(matches(name, each) for each in options.exclude)


def _concerns(name: TableName, options: Options) -> bool:
    if name.name:
        return is_wanted(name, options)
    every = TableName(name.namespace, "\0")  # no pattern but one for all of the namespace's tables matches it
    if any(matches(every, each) for each in options.exclude):
        return False
    inside = ".".join((*name.namespace, ""))
    return not options.tables or any(_could_lie(inside, each) for each in options.tables)


def _could_lie(inside: str, pattern: str) -> bool:
    """Whether a name that begins so could match, by the pattern's own beginning."""
    parts = _parts(pattern)
    plain = next((place for place, part in enumerate(parts) if part in _MEANING), len(parts))
    start = "".join(map(_unescaped, parts[:plain]))
    return start.startswith(inside) or (plain < len(parts) and inside.startswith(start))


def unmatched(names: Sequence[TableName], options: Options) -> list[str]:
    """The patterns of --table that match none of some names."""
    return [each for each in options.tables if not any(matches(name, each) for name in names)]


def _is_open(pattern: str) -> bool:
    """Whether it can match names that are still to come, and is not one name."""
    return any(part in _MEANING for part in _parts(pattern))


def waits(names: Sequence[TableName], idle: Sequence[str], options: Options) -> bool:
    """Whether a source that is followed has nothing to follow for now: the last table was dropped, or the first is
    still to come. `idle` are the patterns that match none."""
    return not names or (len(idle) == len(options.tables) > 0 and all(map(_is_open, idle)))


def select(names: Sequence[TableName], options: Options, objects: Sequence[SourceObject] = ()) -> list[TableName]:
    """The names that a pattern of --table matches (all without one) and none of --exclude; UsageError for no match,
    also among the objects beside the tables. Where a source is followed one pattern that matches is enough."""
    beside = [each.name for each in objects if each.kind is not ObjectKind.SCHEMA]
    idle = unmatched((*names, *beside), options)
    if idle and (not options.follow or len(idle) == len(options.tables)):
        shown = ", ".join(map(str, names[:5])) + (" ..." if len(names) > 5 else "")
        raise UsageError(f"--table {idle[0]} matches no table of the source", hint=f"it has {shown or 'none'}")
    chosen = [name for name in names if not options.tables or any(matches(name, each) for each in options.tables)]
    left = [name for name in chosen if not any(matches(name, each) for each in options.exclude)]
    if not left and not select_objects(objects, options):
        raise UsageError("no table is selected", hint="--exclude leaves none" if names else "the source has none")
    return left


def targets(
    names: Sequence[TableName], options: Options, default: Callable[[TableName], TableName]
) -> dict[TableName, TableName]:
    """Source name to target name: --as with {namespace} and {table}, else the target's own rule."""
    if options.rename is None:
        return {name: default(name) for name in names}
    if len(names) > 1 and "{table}" not in options.rename:
        raise UsageError(
            f"--as {options.rename} names one table, and {len(names)} are selected",
            hint="use {table} and {namespace} in it, or select one with --table",
        )
    made: dict[TableName, TableName] = {}
    for name in names:
        text = options.rename.replace("{namespace}", ".".join(name.namespace)).replace("{table}", "\0")
        schema, _, own = text.rpartition(".")
        own = own.replace("\0", name.name)
        if not own or "\0" in schema or text.startswith("."):
            raise UsageError(f"--as {options.rename} gives no table name", hint="write --as SCHEMA.TABLE")
        made[name] = TableName((schema,) if schema and schema != "main" else (), own)
    return made


def clashes_of(names: Mapping[TableName, TableName]) -> dict[TableName, Finding]:
    """Tables whose names in the target differ in case alone, from one another or in their schemas, and those in a
    namespace that is called as another of the tables."""
    by_case: dict[str, list[TableName]] = {}
    for name, target in names.items():
        by_case.setdefault(str(target).casefold(), []).append(name)
    schemas: dict[str, set[str]] = {}
    for target in names.values():
        schema = ".".join(target.namespace)
        schemas.setdefault(schema.casefold(), set()).add(schema)
    found: dict[TableName, Finding] = {}
    tables = {tuple(map(str.casefold, (*target.namespace, target.name))): target for target in names.values()}
    for name, target in names.items():
        above = tuple(map(str.casefold, target.namespace))
        around = next((tables[above[:depth]] for depth in range(2, len(above) + 1) if above[:depth] in tables), None)
        if around is not None:
            found[name] = Finding(
                Code.NAME_UNSUPPORTED, str(name), f"it would lie inside the table {around}", "use --as or --table"
            )
        same = by_case[str(target).casefold()]
        spellings = schemas[".".join(target.namespace).casefold()]
        if len(same) > 1 or len(spellings) > 1:
            others = ", ".join(map(str, same)) if len(same) > 1 else ", ".join(sorted(spellings))
            found[name] = Finding(
                Code.CASE_COLLISION, str(name), f"equal without case: {others}", "use --as or --table"
            )
    return found
