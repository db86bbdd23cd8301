"""The commands, their options and exit codes. They hold no logic of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bridge.errors import BridgeError, UsageError

if TYPE_CHECKING:
    from bridge.model.options import Options

__all__ = ["cli", "main"]

_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "DUCKLAKE_BRIDGE",
    "max_content_width": 110,
}
_COMMANDS = ("PLAN", "MIGRATE", "VERIFY", "INSPECT", "RELEASE", "ADOPT", "DOCTOR")


def _option(name: str, *more: Any, **given: Any) -> Callable[..., Any]:
    """An option that is an environment variable too: for all commands, or with the command's name for one."""
    word = name.split("/")[0].lstrip("-").replace("-", "_").upper()
    names = [f"DUCKLAKE_BRIDGE_{word}", *(f"DUCKLAKE_BRIDGE_{command}_{word}" for command in _COMMANDS)]
    made: Callable[..., Any] = click.option(name, *more, envvar=names, **given)
    return made


_METADATA_SCHEMA = _option(
    "--metadata-schema", metavar="NAME", help="The lake's schema in a PostgreSQL database  [default: public]"
)
_TARGET_OPTION = _option(
    "--target-option",
    "target_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the target iceberg-catalog:NAME, beside its configuration.",
)
_OPTIONS = (
    _option(
        "--table",
        "tables",
        multiple=True,
        metavar="PATTERN",
        help="Only tables that match; * and ? stay in a level, ** does not, \\* is a star.",
    ),
    _option("--exclude", multiple=True, metavar="PATTERN", help="Not these tables."),
    _option(
        "--as",
        "rename",
        metavar="SCHEMA.TABLE",
        help="Name in the target; {namespace} and {table} are replaced.",
    ),
    _option(
        "--source-option",
        "source_options",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of iceberg-catalog:NAME, beside its configuration.",
    ),
    _TARGET_OPTION,
    _option(
        "--format-version",
        type=click.Choice(["2", "3"]),
        help="Iceberg format of published tables  [default: 2, or 3 where a table needs it]",
    ),
    _option(
        "--readers",
        metavar="NAME,...",
        default="",
        help="Only these engines have to read what is published: spark, java, pyiceberg, duckdb.",
    ),
    _option("--data-path", metavar="URI", help="Where a new lake writes its own files."),
    _METADATA_SCHEMA,
    _option(
        "--history",
        type=click.Choice(["full", "current"]),
        default="full",
        show_default=True,
        help="All snapshots, or the newest alone.",
    ),
    _option("--at", metavar="SNAPSHOT|TIME", help="The source as of a snapshot id or a time."),
    _option(
        "--check-files",
        type=click.Choice(["all", "none"]),
        default="all",
        show_default=True,
        help="Look at the files themselves.",
    ),
    _option("--map-prefix", multiple=True, metavar="OLD=NEW", help="Paths stored as OLD... are at NEW... now."),
    _option("--type-map", multiple=True, metavar="FROM=TO", help="What a type without a counterpart becomes."),
    _option(
        "--ownership",
        type=click.Choice(["shared", "adopt"]),
        help="Guard the source's files (default for a new table), or hand them over; a known table keeps its own.",
    ),
    _option(
        "--rewrite",
        type=click.Choice(["never", "when-needed", "always"]),
        default="when-needed",
        show_default=True,
        help="Rewrite, with Spark, the files that cannot be registered, and resolve equality deletes; with never they "
        "block, with always every file becomes the lake's own.",
    ),
    _option("--memory-limit", metavar="SIZE", help="What DuckDB may hold in memory while it copies, such as 2GB."),
    _option(
        "--partition-by",
        multiple=True,
        metavar="[TABLE=]KEY,...",
        help="Partition an imported table by columns, year|month|day|hour(COLUMN) or bucket(N, COLUMN).",
    ),
    _option(
        "--sort-by",
        multiple=True,
        metavar="[TABLE=]COLUMN [DESC],...",
        help="Sort the rows of an imported table in each file.",
    ),
    _option("--spark-master", metavar="URL", default="", help="Where Spark runs; without it here, on all cores."),
    _option("--spark-conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
    _option("--spark-remote", metavar="URL", default="", help="A Spark Connect server, sc://HOST:PORT."),
    _option(
        "--inline-deletes",
        type=click.IntRange(min=0),
        default=2_000_000,
        show_default=True,
        metavar="N",
        help="Deleted rows of a table that are noted in the catalog; beyond it the lake gets delete files.",
    ),
    _option("--accept", multiple=True, metavar="CODE", help="A finding that is all right: see the README."),
    _option("--strict", is_flag=True, help="A loss blocks its table."),
    _option(
        "--report",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write the report to a file too: .json, or .html to read.",
    ),
)
_JSON = _option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    shared: Callable[..., Any] = _JSON(command)
    return shared


def _options(verify: str = "metadata", **given: Any) -> Any:
    from bridge.model.options import Options
    from bridge.model.paths import PathMap, parse_prefix

    types = []
    for text in given["type_map"]:
        name, equals, to = text.partition("=")
        if not equals or to not in _type_choices().get(name, ()):
            choices = "; ".join(f"{key}={'|'.join(values)}" for key, values in _type_choices().items())
            raise UsageError(f"--type-map {text!r} is not a known choice", hint=f"known: {choices}")
        types.append((name, to))
    return Options(
        tables=given["tables"],
        exclude=given["exclude"],
        rename=given["rename"],
        data_path=given["data_path"],
        metadata_schema=given["metadata_schema"],
        history=given["history"],
        at=given["at"],
        check_files=given["check_files"],
        path_map=PathMap(tuple(parse_prefix(text) for text in given["map_prefix"])),
        type_map=tuple(types),
        ownership=given["ownership"],
        rewrite=given["rewrite"],
        memory_limit=given["memory_limit"],
        partition_by=given["partition_by"],
        sort_by=given["sort_by"],
        spark_master=given["spark_master"],
        spark_conf=given["spark_conf"],
        spark_remote=given["spark_remote"],
        inline_deletes=given["inline_deletes"],
        verify=verify,  # type: ignore[arg-type]  # click checked it
        accept=frozenset(given["accept"]),
        strict=given["strict"],
        format_version=int(given["format_version"]) if given["format_version"] else None,  # type: ignore[arg-type]
        readers=_readers(given["readers"]),
        source_options=_pairs(given["source_options"]),
        target_options=_pairs(given["target_options"], "--target-option"),
    )


def _readers(text: str) -> tuple[str, ...]:
    from bridge.registry import readers

    names = tuple(each.strip() for each in text.split(",") if each.strip())
    for each in names:
        if each not in readers():
            raise UsageError(f"--readers {each}: unknown", hint=f"known: {', '.join(readers())}")
    return names


def _pairs(given: tuple[str, ...], option: str = "--source-option") -> tuple[tuple[str, str], ...]:
    """KEY=VALUE options; what is wrong is told without the value, which may be a credential."""
    for number, text in enumerate(given, 1):
        if not text.partition("=")[0].strip() or "=" not in text:
            raise UsageError(f"{option} number {number} is not KEY=VALUE")
    return tuple((key.strip(), value) for key, _, value in (text.partition("=") for text in given))


def _type_choices() -> dict[str, tuple[str, ...]]:
    from bridge.registry import type_choices

    return type_choices()


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="ducklake-bridge")
def cli() -> None:
    """Move tables between DuckLake and Iceberg without copying data unless they must.

    Exit codes: 0 done, 1 unexpected, 2 usage, 3 blocked by the plan, 4 verification failed, 5 conflict or lock held,
    6 unreachable, 130 interrupted.
    """


@cli.command()
@click.argument("source")
@click.argument("target")
@_shared
def plan(source: str, target: str, as_json: bool, report: str | None, **given: Any) -> None:
    """Show what migrate would do, and write nothing."""
    from bridge import app
    from bridge.cli import render

    progress = render.Progress(quiet=as_json)
    try:
        made = app.plan(source, target, _options(**given), progress)
    finally:
        progress.stop()
    data = render.plan_data(made)
    _save(report, data)
    if as_json:
        render.out_json(data)
    else:
        render.out(*render.plan_text(made))
    sys.exit(0 if made.is_complete else 3)


@cli.command()
@click.argument("source")
@click.argument("target")
@_shared
@_option(
    "--verify",
    type=click.Choice(["metadata", "rows", "none"]),
    default="metadata",
    show_default=True,
    help="What to check afterwards.",
)
@_option("--dry-run", is_flag=True, help="The same as plan.")
def migrate(
    source: str, target: str, as_json: bool, report: str | None, verify: str, dry_run: bool, **given: Any
) -> None:
    """Write a source's tables into a target, in one transaction.

    SOURCE is iceberg:PATH (a table's directory, its .metadata.json file or a warehouse), iceberg-catalog:NAME (a
    PyIceberg catalog: REST, SQL, Hive), duckdb:FILE, whose rows are copied, or a lake: ducklake:FILE,
    ducklake:sqlite:FILE or ducklake:postgres:CONNECTION. TARGET is a lake, or for publishing one iceberg:DIRECTORY (a
    warehouse) or iceberg-catalog:NAME. Running it again adds what the source gained since.
    """
    from bridge import app
    from bridge.cli import render

    _check_report(report)
    progress = render.Progress(quiet=as_json)
    try:
        if dry_run:
            made = app.plan(source, target, _options(**given), progress)
            result = app.Report(made)
        else:
            result = app.migrate(source, target, _options(verify, **given), progress)
    finally:
        progress.stop()
    data = render.report_data(result)
    if as_json:
        render.out_json(data)
    else:
        render.out(*render.report_text(result))
    _save(report, data)
    sys.exit(result.exit_code)


@cli.command()
@click.argument("source")
@click.argument("target")
@_shared
@_option(
    "--rows/--no-rows",
    default=True,
    show_default=True,
    help="Compare every row, not only counts and columns.",
)
def verify(source: str, target: str, as_json: bool, report: str | None, rows: bool, **given: Any) -> None:
    """Compare a migrated table with its source: columns, counts, rows."""
    from bridge import app
    from bridge.cli import render

    progress = render.Progress(quiet=as_json)
    try:
        checks = app.verify(source, target, _options(**given), progress, rows)
    finally:
        progress.stop()
    data = {"checks": [render.check_data(each) for each in checks]}
    _save(report, data)
    if as_json:
        render.out_json(data)
    else:
        render.out(*render.check_lines(checks))
    sys.exit(4 if any(each.fault for each in checks) else 0)


@cli.command()
@click.argument("locator")
@_option("--map-prefix", multiple=True, metavar="OLD=NEW", help="Paths stored as OLD... are at NEW... now.")
@_option(
    "--source-option", "source_options", multiple=True, metavar="KEY=VALUE", help="A setting of iceberg-catalog:NAME."
)
@_METADATA_SCHEMA
@_JSON
def inspect(
    locator: str,
    map_prefix: tuple[str, ...],
    source_options: tuple[str, ...],
    metadata_schema: str | None,
    as_json: bool,
) -> None:
    """Show what a source or a lake holds."""
    from bridge import app
    from bridge.cli import render
    from bridge.model.options import Options
    from bridge.model.paths import PathMap, parse_prefix

    moved = PathMap(tuple(parse_prefix(text) for text in map_prefix))
    asked = Options(path_map=moved, source_options=_pairs(source_options), metadata_schema=metadata_schema)
    found = app.inspect(locator, asked)
    if as_json:
        render.out_json(render.inspection_data(found))
    else:
        render.out(*render.inspection_text(found))
    sys.exit(3 if found.unreadable else 0)


@cli.command()
@click.argument("target")
@_option("--table", "tables", multiple=True, required=True, metavar="NAME", help="A migrated table, SCHEMA.TABLE.")
@_option("--discard-changes", is_flag=True, help="Also when the table was changed there.")
@_TARGET_OPTION
@_METADATA_SCHEMA
@_JSON
def release(
    target: str,
    tables: tuple[str, ...],
    discard_changes: bool,
    target_options: tuple[str, ...],
    metadata_schema: str | None,
    as_json: bool,
) -> None:
    """Forget migrated or published tables without touching a data file: how a trial is undone."""
    from bridge import app
    from bridge.cli import render

    done = app.release(target, tables, discard_changes, _reaching(target_options, metadata_schema))
    if as_json:
        render.out_json(
            {"released": [{"table": str(each.name), "files": each.files, "own_files": each.own_files} for each in done]}
        )
    else:
        render.out(*render.released_text(done))


@cli.command()
@click.argument("target")
@_option("--table", "tables", multiple=True, required=True, metavar="NAME", help="A migrated table, SCHEMA.TABLE.")
@_TARGET_OPTION
@_METADATA_SCHEMA
@_JSON
def adopt(
    target: str, tables: tuple[str, ...], target_options: tuple[str, ...], metadata_schema: str | None, as_json: bool
) -> None:
    """Hand the files of migrated or published tables over: the target's maintenance may delete them from now on."""
    from bridge import app
    from bridge.cli import render

    done = app.adopt(target, tables, _reaching(target_options, metadata_schema))
    if as_json:
        render.out_json({"adopted": [str(each.name) for each in done]})
    else:
        render.out(*(f"adopted {each.name}: {each.meaning}" for each in done))


def _reaching(target_options: tuple[str, ...], metadata_schema: str | None) -> Options:
    """What it takes to reach a target."""
    from bridge.model.options import Options

    return Options(target_options=_pairs(target_options, "--target-option"), metadata_schema=metadata_schema)


@cli.command()
@_JSON
def doctor(as_json: bool) -> None:
    """Show what this installation can do, and how to get what is missing."""
    from bridge.cli import render
    from bridge.cli.doctor import examine

    facts = examine()
    if as_json:
        render.out_json(facts)
    else:
        render.out(*render.doctor_text(facts))


def _check_report(path: str | None) -> None:
    """A report that cannot be written must not come to light after the commit."""
    import os

    if path is not None and not path.endswith((".json", ".html")):
        raise UsageError(f"--report {path}: its ending tells the format", hint="end it with .json or .html")
    directory = os.path.dirname(os.path.abspath(path)) if path else None
    if directory is not None and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise UsageError(f"the report cannot be written to {path}", hint=f"the directory {directory} is not writable")


def _save(path: str | None, data: dict[str, Any]) -> None:
    if path is None:
        return
    import os

    from bridge.cli import report
    from bridge.errors import Unreachable

    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write(report.page(data) if path.endswith(".html") else report.document(data))
        os.replace(f"{path}.part", path)
    except OSError as error:
        raise Unreachable(f"the report cannot be written to {path}: {error.strerror}") from error


def _listen() -> list[int]:
    """SIGINT and SIGTERM both end as an interruption; the list holds the signals that came."""
    import signal

    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    return came


def _without_secrets(message: str) -> str:
    """An unquoted connection string falls into arguments that click quotes back."""
    from bridge.model.secrets import scrubbed

    if scrubbed(message) == message:
        return message
    return f"{message.partition('(')[0].strip()} (not shown, they hold a password): put the locator in quotes"


def _interrupted() -> NoReturn:
    import contextlib

    said = "interrupted; nothing half-written is left: the same command goes on where it stopped"
    with contextlib.suppress(OSError):  # whoever read it may be gone
        print(said, file=sys.stderr)  # noqa: T201  # the last word
    sys.exit(130)


def main() -> NoReturn:
    """Run a command; every error ends as one line and its exit code."""
    as_json = "--json" in sys.argv
    stopped = _listen()
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        text = _without_secrets(error.format_message())
        if as_json:
            from bridge.cli import render

            render.fail(UsageError(text), as_json)
        elif text == error.format_message():
            error.show()
        else:
            click.UsageError(text, getattr(error, "ctx", None)).show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except BridgeError as error:
        from bridge.cli import render

        render.fail(error, as_json)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001  # the outermost layer: no traceback reaches a user
        if stopped:
            _interrupted()  # a library told of the signal in its own way
        import os
        import traceback

        if os.environ.get("DUCKLAKE_BRIDGE_DEBUG"):
            traceback.print_exc()
        text = (str(error).splitlines() or [""])[0]
        from bridge.cli import render

        said = BridgeError(
            f"unexpected {type(error).__name__}: {text}", hint="set DUCKLAKE_BRIDGE_DEBUG=1 for a traceback"
        )
        render.fail(said, as_json)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
