"""Which tables of a source are meant, and what they will be called."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from bridge.errors import UsageError
from bridge.model.options import Options
from bridge.model.table import TableName

__all__ = ["matches", "select", "targets"]


def matches(name: TableName, pattern: str) -> bool:
    """`*` and `?` stay within a level, `**` crosses dots; case counts, as at the source."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    meaning = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    return bool(re.fullmatch("".join(meaning.get(part, re.escape(part)) for part in parts), str(name), re.DOTALL))


def select(names: Sequence[TableName], options: Options) -> list[TableName]:
    """The names that a pattern of --table matches (all without one) and none of --exclude; UsageError for no match."""
    for pattern in options.tables:
        if not any(matches(name, pattern) for name in names):
            shown = ", ".join(map(str, names[:5])) + (" ..." if len(names) > 5 else "")
            raise UsageError(f"--table {pattern} matches no table of the source", hint=f"it has {shown or 'none'}")
    chosen = [name for name in names if not options.tables or any(matches(name, each) for each in options.tables)]
    left = [name for name in chosen if not any(matches(name, each) for each in options.exclude)]
    if not left:
        raise UsageError("no table is selected", hint="--exclude leaves none")
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
