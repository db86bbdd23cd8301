"""The commands that run once: plan, migrate, verify, inspect, release, adopt, doctor."""

from __future__ import annotations

import sys
from typing import Any

import click

from bridge.cli.options import (
    JSON,
    MAP_PREFIX,
    METADATA_SCHEMA,
    SOURCE_OPTION,
    TARGET_OPTION,
    VERIFY,
    option,
    options_of,
    shared,
)
from bridge.errors import UsageError

__all__ = ["COMMANDS"]


@click.command()
@click.argument("source")
@click.argument("target")
@shared
def plan(source: str, target: str, as_json: bool, report: str | None, **given: Any) -> None:
    """Show what migrate would do, and write nothing."""
    from bridge import app
    from bridge.cli import render

    progress = render.Progress(quiet=as_json)
    try:
        made = app.plan(source, target, options_of(**given), progress)
    finally:
        progress.stop()
    data = render.plan_data(made)
    save(report, data)
    if as_json:
        render.out_json(data)
    else:
        render.out(*render.plan_text(made))
    sys.exit(0 if made.is_complete else 3)


@click.command()
@click.argument("source")
@click.argument("target")
@shared
@VERIFY
@option("--dry-run", is_flag=True, help="The same as plan.")
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

    check_report(report)
    progress = render.Progress(quiet=as_json)
    try:
        if dry_run:
            made = app.plan(source, target, options_of(**given), progress)
            result = app.Report(made)
        else:
            result = app.migrate(source, target, options_of(verify=verify, **given), progress)
    finally:
        progress.stop()
    data = render.report_data(result)
    if as_json:
        render.out_json(data)
    else:
        render.out(*render.report_text(result))
    save(report, data)
    sys.exit(result.exit_code)


@click.command()
@click.argument("source")
@click.argument("target")
@shared
@option(
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
        checks = app.verify(source, target, options_of(**given), progress, rows)
    finally:
        progress.stop()
    data = {"checks": [render.check_data(each) for each in checks]}
    save(report, data)
    if as_json:
        render.out_json(data)
    else:
        render.out(*render.check_lines(checks))
    sys.exit(4 if any(each.fault for each in checks) else 0)


@click.command()
@click.argument("locator")
@MAP_PREFIX
@SOURCE_OPTION
@METADATA_SCHEMA
@JSON
def inspect(locator: str, as_json: bool, **given: Any) -> None:
    """Show what a source or a lake holds."""
    from bridge import app
    from bridge.cli import render

    found = app.inspect(locator, options_of(**given))
    if as_json:
        render.out_json(render.inspection_data(found))
    else:
        render.out(*render.inspection_text(found))
    sys.exit(3 if found.unreadable else 0)


@click.command()
@click.argument("target")
@option("--table", "tables", multiple=True, required=True, metavar="NAME", help="A migrated table, SCHEMA.TABLE.")
@option("--discard-changes", is_flag=True, help="Also when the table was changed there.")
@TARGET_OPTION
@METADATA_SCHEMA
@JSON
def release(target: str, tables: tuple[str, ...], discard_changes: bool, as_json: bool, **given: Any) -> None:
    """Forget migrated or published tables without touching a data file: how a trial is undone."""
    from bridge import app
    from bridge.cli import render

    done = app.release(target, tables, discard_changes, options_of(**given))
    if as_json:
        render.out_json(
            {"released": [{"table": str(each.name), "files": each.files, "own_files": each.own_files} for each in done]}
        )
    else:
        render.out(*render.released_text(done))


@click.command()
@click.argument("target")
@option("--table", "tables", multiple=True, required=True, metavar="NAME", help="A migrated table, SCHEMA.TABLE.")
@TARGET_OPTION
@METADATA_SCHEMA
@JSON
def adopt(target: str, tables: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Hand the files of migrated or published tables over: the target's maintenance may delete them from now on."""
    from bridge import app
    from bridge.cli import render

    done = app.adopt(target, tables, options_of(**given))
    if as_json:
        render.out_json({"adopted": [str(each.name) for each in done]})
    else:
        render.out(*(f"adopted {each.name}: {each.meaning}" for each in done))


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Show what this installation can do, and how to get what is missing."""
    from bridge.cli import render
    from bridge.cli.doctor import examine

    facts = examine()
    if as_json:
        render.out_json(facts)
    else:
        render.out(*render.doctor_text(facts))


def check_report(path: str | None) -> None:
    """A report that cannot be written must not come to light after the commit."""
    import os

    if path is not None and not path.endswith((".json", ".html")):
        raise UsageError(f"--report {path}: its ending tells the format", hint="end it with .json or .html")
    directory = os.path.dirname(os.path.abspath(path)) if path else None
    if directory is not None and not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise UsageError(f"the report cannot be written to {path}", hint=f"the directory {directory} is not writable")


def save(path: str | None, data: dict[str, Any]) -> None:
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


COMMANDS = (plan, migrate, verify, inspect, release, adopt, doctor)
