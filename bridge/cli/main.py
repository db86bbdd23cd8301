"""The command line: its commands, their exit codes, and what an error or a signal ends as."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from bridge.cli import commands, mirroring
from bridge.errors import BridgeError, UsageError

__all__ = ["cli", "main"]

_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "DUCKLAKE_BRIDGE",
    "max_content_width": 110,
}


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="ducklake-bridge")
def cli() -> None:
    """Move tables between DuckLake and Iceberg without copying data unless they must.

    Exit codes: 0 done, 1 unexpected, 2 usage, 3 blocked by the plan, 4 verification failed, 5 conflict or lock held,
    6 unreachable, 130 interrupted.
    """


for _command in (*commands.COMMANDS, *mirroring.COMMANDS):
    cli.add_command(_command)


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
    import signal

    for each in (signal.SIGINT, signal.SIGTERM):  # it ends already
        signal.signal(each, signal.SIG_IGN)
    said = "interrupted; nothing half-written is left: the same command goes on where it stopped"
    with contextlib.suppress(OSError):  # whoever read it may be gone
        print(said, file=sys.stderr)  # noqa: T201  # the last word
    sys.exit(130)


def main() -> NoReturn:
    """Run a command; every error ends as one line and its exit code."""
    import logging

    # what a library logs would come between our lines, and may hold a credential
    logging.getLogger().addHandler(logging.NullHandler())
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
    except Exception as error:  # noqa: BLE001  # the outermost layer: no traceback reaches a user
        if stopped:
            _interrupted()  # what was at work told of the signal in its own way
        if isinstance(error, BridgeError):
            from bridge.cli import render

            render.fail(error, as_json)
            sys.exit(error.exit_code)
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
