"""The commands that follow a source: mirror and status."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bridge.cli.options import asking, following, interval, option, options_of
from bridge.errors import BridgeError, Unreachable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.cli.secrets import Hidden
    from bridge.mirroring.pair import Pair, Round

__all__ = ["COMMANDS"]

_WITH_CONFIG = frozenset({"config", "once", "jobs", "metrics_file", "log_format"})


@click.command()
@click.argument("source", required=False)
@click.argument("target", required=False)
@option("--config", type=click.Path(), metavar="FILE", help="The pairs to mirror, as YAML: see the README.")
@option("--once", is_flag=True, help="One round, for cron; without it a round every --interval until SIGTERM.")
@option(
    "--interval",
    default="30s",
    show_default=True,
    metavar="TIME",
    callback=lambda _context, _parameter, text: interval(text),
    help="The pause between two rounds: 30s, 5m, 1h30m.",
)
@option(
    "--on-drop",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="What becomes of a table of the target whose source was dropped.",
)
@option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Tables that are worked on at once.")
@option("--metrics-file", type=click.Path(dir_okay=False), metavar="FILE", help="Write Prometheus metrics there.")
@option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The lines on standard error.",
)
@following
@click.pass_context
def mirror(
    context: click.Context,
    /,
    source: str | None,
    target: str | None,
    config: str | None,
    once: bool,
    jobs: int,
    metrics_file: str | None,
    log_format: str,
    **given: Any,
) -> None:
    """Follow a source commit by commit, for ever or for one round.

    SOURCE and TARGET as for migrate, or --config FILE for many of them. A line on standard error tells of every table
    that changed or is in trouble. SIGTERM and SIGINT end it when the commit in hand is done; a second one at once.
    """
    from bridge.cli.secrets import Hidden
    from bridge.model.secrets import names_secret

    hidden = Hidden()
    settings = (*given["source_options"], *given["target_options"])
    run: dict[str, Any] = {"jobs": jobs, "metrics_file": metrics_file, "log_format": log_format}
    if config is not None:
        pairs, hidden = _configured(context, config, given, run)
    elif source is None or target is None:
        raise UsageError("mirror: SOURCE and TARGET are missing", hint="name both, or give --config FILE")
    else:
        pairs = (_pair(source, target, given, hidden),)
    for key, value in settings:
        if names_secret(key):
            hidden.add(value)
    sys.exit(_follow(pairs, once, run, hidden))


def _pair(source: str, target: str, given: dict[str, Any], hidden: Hidden) -> Pair:
    from bridge.locators import parse_locator
    from bridge.mirroring.pair import Pair

    for each in (source, target):
        parse_locator(each)
        hidden.learn(each)
    rest = dict(given)
    every, on_drop = rest.pop("interval"), rest.pop("on_drop")
    return Pair(source, target, options_of(**rest), every, on_drop)


def _configured(
    context: click.Context, config: str, given: dict[str, Any], run: dict[str, Any]
) -> tuple[tuple[Pair, ...], Hidden]:
    """The pairs of a file, and into `run` what it says of the run: the command line goes before it, the environment
    behind."""
    from bridge.cli.config import read_config

    typed = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if beside := [name for name in typed if name not in _WITH_CONFIG]:
        names = {each.name: each.opts[0] for each in context.command.params}
        named = ", ".join(names[name].upper() if name in ("source", "target") else names[name] for name in beside)
        raise UsageError(f"{named} beside --config", hint="write it into the file")
    found = read_config(config, context, given, os.environ)
    run |= {name: value for name, value in found.run.items() if name not in typed}
    return found.pairs, found.hidden


def _follow(pairs: tuple[Pair, ...], once: bool, run: dict[str, Any], hidden: Hidden) -> int:
    from bridge.cli import render, told
    from bridge.mirroring.loop import mirror as follow
    from bridge.ports import Silent

    metrics = None
    if run["metrics_file"] is not None:
        from bridge.mirroring.metrics import Metrics

        metrics = Metrics(run["metrics_file"], hidden.blot)

    last: dict[int, Round] = {}
    failed: set[int] = set()

    def tell(each: Round) -> None:
        first = not once and id(each.pair) not in failed
        render.say(*told.lines(each, run["log_format"], hidden.blot, last.get(id(each.pair)), first))
        (failed.discard if each.error is None else failed.add)(id(each.pair))
        if each.error is None:
            last[id(each.pair)] = told.kept(each, last.get(id(each.pair)))
        if metrics is not None:
            try:
                metrics.told(each)
            except Unreachable as error:  # a full disk there is no reason to fall behind
                render.say(told.remark("error", error.message, run["log_format"], hidden.blot))

    stop = _until_stopped(lambda said: told.remark("info", said, run["log_format"], hidden.blot))
    try:
        code: int = follow(pairs, once=once, jobs=run["jobs"], stop=stop, told=tell, progress=Silent())
    except BridgeError as error:
        error.message, error.hint = hidden.blot(error.message), hidden.blot(error.hint)
        raise
    return code


def _until_stopped(line: Callable[[str], str]) -> threading.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process where it stands, which harms nothing: what is
    not committed is taken up or cleaned away by the next run."""
    import contextlib
    import signal

    stop = threading.Event()

    def asked(_number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()
        with contextlib.suppress(OSError):  # past Python's own buffers, which the signal may have found in use
            os.write(2, f"{line('stopping when the commit in hand is done; once more stops at once')}\n".encode())

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, asked)
    return stop


@click.command()
@click.argument("source")
@click.argument("target")
@asking
def status(source: str, target: str, as_json: bool, **given: Any) -> None:
    """Show how far a target is behind its source: commits, seconds and bytes to come, table by table.

    Nothing is written. The options are those of mirror, whose next round this foretells. Exit code 0 also when a table
    is behind; 3 when one is blocked, 5 when it was changed so that it cannot be caught up with, 6 when it cannot be
    reached.
    """
    import time

    from bridge.cli import render, standing
    from bridge.locators import parse_locator
    from bridge.mirroring.status import status as examine

    progress = render.Progress(quiet=as_json)
    try:
        found = examine(source, target, options_of(**given), progress, now=time.time())
    finally:
        progress.stop()
    if as_json:
        render.out_json(standing.status_data(str(parse_locator(source)), str(parse_locator(target)), found))
    else:
        render.out(*standing.status_text(found))
    sys.exit(standing.exit_code(found))


COMMANDS = (mirror, status)
