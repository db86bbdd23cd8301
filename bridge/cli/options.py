"""The options of the command line and of mirror.yaml: their names, what each takes, and the Options they make.

What an option takes is checked by its click parameter alone, whether its text stood on the command line, in the
environment or in a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from bridge.errors import UsageError
from bridge.model.findings import acceptable
from bridge.model.options import Options, memory_limit
from bridge.model.paths import PathMap, parse_prefix

__all__ = [
    "JSON",
    "MAP_PREFIX",
    "METADATA_SCHEMA",
    "SOURCE_OPTION",
    "TARGET_OPTION",
    "asking",
    "following",
    "interval",
    "option",
]
__all__ += ["options_of", "shared"]

_COMMANDS = ("PLAN", "MIGRATE", "MIRROR", "STATUS", "VERIFY", "INSPECT", "RELEASE", "ADOPT", "DOCTOR")
_INTERVAL = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_LONGEST = 30 * 86400

Callback = Callable[[click.Context, click.Parameter, Any], Any]
Decorator = Callable[..., Any]


def option(name: str, *more: Any, **given: Any) -> Decorator:
    """An option that is an environment variable too: for all commands, or with the command's name for one."""
    word = name.split("/")[0].lstrip("-").replace("-", "_").upper()
    names = [f"DUCKLAKE_BRIDGE_{word}", *(f"DUCKLAKE_BRIDGE_{command}_{word}" for command in _COMMANDS)]
    made: Decorator = click.option(name, *more, envvar=names, **given)
    return made


def _each(read: Callable[[str], Any]) -> Callback:
    """Each text of an option that repeats, as it is read."""
    return lambda _context, _parameter, texts: tuple(map(read, texts))


def _keyed(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """KEY=VALUE options; what is wrong is told without the value, which may be a credential."""
    for number, text in enumerate(given, 1):
        if not text.partition("=")[0].strip() or "=" not in text:
            raise UsageError(f"{parameter.opts[0]} number {number} is not KEY=VALUE")
    return tuple((key.strip(), value) for key, _, value in (text.partition("=") for text in given))


def _type_choice(text: str) -> tuple[str, str]:
    from bridge.registry import type_choices

    known = type_choices()
    name, equals, to = text.partition("=")
    if not equals or to not in known.get(name, ()):
        choices = "; ".join(f"{key}={'|'.join(values)}" for key, values in known.items())
        raise UsageError(f"--type-map {text!r} is not a known choice", hint=f"known: {choices}")
    return name, to


def _readers(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    from bridge.registry import readers

    names = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in names:
        if each not in readers():
            raise UsageError(f"--readers {each}: unknown", hint=f"known: {', '.join(readers())}")
    return names


def _accepted(text: str) -> str:
    acceptable(text)
    return text


def _size(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    return None if text is None else memory_limit(text)


def interval(text: str) -> float:
    """Seconds of a text such as 30s, 5m or 1h30m."""
    found = _INTERVAL.fullmatch(text)
    days, hours, minutes, seconds = (int(each or 0) for each in (found.groups() if found else ("", "", "", "")))
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 1 <= whole <= _LONGEST:
        hint = "write 30s, 5m, 1h30m or the like, from 1s to 30d"
        raise UsageError(f"{text[:40]!r} is not an interval", hint=hint)
    return float(whole)


METADATA_SCHEMA = option(
    "--metadata-schema", metavar="NAME", help="The lake's schema in a PostgreSQL database  [default: public]"
)
MAP_PREFIX = option(
    "--map-prefix",
    multiple=True,
    callback=_each(parse_prefix),
    metavar="OLD=NEW",
    help="Paths stored as OLD... are at NEW... now.",
)
SOURCE_OPTION = option(
    "--source-option",
    "source_options",
    multiple=True,
    callback=_keyed,
    metavar="KEY=VALUE",
    help="A setting of iceberg-catalog:NAME, beside its configuration.",
)
TARGET_OPTION = option(
    "--target-option",
    "target_options",
    multiple=True,
    callback=_keyed,
    metavar="KEY=VALUE",
    help="A setting of the target iceberg-catalog:NAME, beside its configuration.",
)
JSON = option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
_SELECTING = (
    option(
        "--table",
        "tables",
        multiple=True,
        metavar="PATTERN",
        help="Only tables that match; * and ? stay in a level, ** does not, \\* is a star.",
    ),
    option("--exclude", multiple=True, metavar="PATTERN", help="Not these tables."),
    option(
        "--as",
        "rename",
        metavar="SCHEMA.TABLE",
        help="Name in the target; {namespace} and {table} are replaced.",
    ),
    SOURCE_OPTION,
    TARGET_OPTION,
    option("--data-path", metavar="URI", help="Where a new lake writes its own files."),
    METADATA_SCHEMA,
    MAP_PREFIX,
)
_SHAPING = (
    option(
        "--format-version",
        type=click.Choice(["2", "3"]),
        help="Iceberg format of published tables  [default: 2, or 3 where a table needs it]",
    ),
    option(
        "--readers",
        callback=_readers,
        metavar="NAME,...",
        default="",
        help="Only these engines have to read what is published: spark, java, pyiceberg, duckdb.",
    ),
    option(
        "--history",
        type=click.Choice(["full", "current"]),
        default="full",
        show_default=True,
        help="All snapshots, or the newest alone.",
    ),
    option(
        "--check-files",
        type=click.Choice(["all", "none"]),
        default="all",
        show_default=True,
        help="Look at the files themselves.",
    ),
    option(
        "--type-map",
        multiple=True,
        callback=_each(_type_choice),
        metavar="FROM=TO",
        help="What a type without a counterpart becomes.",
    ),
    option(
        "--ownership",
        type=click.Choice(["shared", "adopt"]),
        help="Guard the source's files (default for a new table), or hand them over; a known table keeps its own.",
    ),
    option(
        "--rewrite",
        type=click.Choice(["never", "when-needed", "always"]),
        default="when-needed",
        show_default=True,
        help="Rewrite, with Spark, the files that cannot be registered, and resolve equality deletes; with never they "
        "block, with always every file becomes the lake's own.",
    ),
    option(
        "--memory-limit",
        callback=_size,
        metavar="SIZE",
        help="What DuckDB may hold in memory while it copies, such as 2GB.",
    ),
    option(
        "--partition-by",
        multiple=True,
        metavar="[TABLE=]KEY,...",
        help="Partition an imported table by columns, year|month|day|hour(COLUMN) or bucket(N, COLUMN).",
    ),
    option(
        "--sort-by",
        multiple=True,
        metavar="[TABLE=]COLUMN [DESC],...",
        help="Sort the rows of an imported table in each file.",
    ),
    option("--spark-master", metavar="URL", default="", help="Where Spark runs; without it here, on all cores."),
    option("--spark-conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
    option("--spark-remote", metavar="URL", default="", help="A Spark Connect server, sc://HOST:PORT."),
    option(
        "--inline-deletes",
        type=click.IntRange(min=0),
        default=2_000_000,
        show_default=True,
        metavar="N",
        help="Deleted rows of a table that are noted in the catalog; beyond it the lake gets delete files.",
    ),
    option(
        "--accept",
        multiple=True,
        callback=_each(_accepted),
        metavar="CODE",
        help="A finding that is all right: see the README.",
    ),
    option("--strict", is_flag=True, help="A loss blocks its table."),
)
_ONCE = (
    option("--at", metavar="SNAPSHOT|TIME", help="The source as of a snapshot id or a time."),
    option(
        "--report",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write the report to a file too: .json, or .html to read.",
    ),
)
VERIFY = option(
    "--verify",
    type=click.Choice(["metadata", "rows", "none"]),
    default="metadata",
    show_default=True,
    help="What to check afterwards.",
)


def _with(decorators: tuple[Decorator, ...], command: Decorator) -> Decorator:
    for each in reversed(decorators):
        command = each(command)
    return command


def shared(command: Decorator) -> Decorator:
    """Every option of a run that ends."""
    return _with((*_SELECTING, *_SHAPING, *_ONCE, JSON), command)


def asking(command: Decorator) -> Decorator:
    """Every option that what a run does next depends on."""
    return _with((*_SELECTING, *_SHAPING, JSON), command)


def following(command: Decorator) -> Decorator:
    """Every option of a run that goes on for ever."""
    return _with((*_SELECTING, *_SHAPING, VERIFY), command)


def options_of(**given: Any) -> Options:
    """The Options of what the parameters gave; what a command does not take is left at its default."""
    made = dict(given)
    if "map_prefix" in made:
        made["path_map"] = PathMap(made.pop("map_prefix"))
    if "accept" in made:
        made["accept"] = frozenset(made["accept"])
    if "format_version" in made:
        made["format_version"] = int(made["format_version"]) if made["format_version"] else None
    return Options(**made)
