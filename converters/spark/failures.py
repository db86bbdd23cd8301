"""What a failed Spark job was about: its long text as one error of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from bridge.errors import BridgeError, Unreachable

__all__ = ["NEEDED", "SHIPPED", "first_line", "told"]

NEEDED = ("pyarrow", "pandas", "numpy", "duckdb", "fastavro")
"""What the Python of an executor must have: mapInArrow wants the first three, our tasks the others."""

SHIPPED = ("bridge", "converters")
"""Our packages, which are sent to the executors."""

Executors = Callable[[], Iterable[tuple[str, str, str]]]
"""Host, Python and missing modules of each executor."""

_INSTALL = "install {} where the executors run, or set PYSPARK_PYTHON to a Python there that has it"
_MODULE = re.compile(r"(?:ModuleNotFoundError: No module named|cannot import name) '(\w+)")
_OLD = re.compile(r"(pyarrow|pandas|numpy) >= ([\d.]+) must be installed", re.IGNORECASE)
_VERSIONS = re.compile(
    r"Python in worker has different version:? \(?'?(\d+)(?:\.|, )(\d+).{0,80}?driver:? '?(\d+\.\d+)"
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_DIED = ("Python worker exited unexpectedly", "ExecutorLostFailure", "worker lost", "EOFException")


def first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason is given")


def told(text: str, executors: Executors) -> BridgeError:
    """The error of a job that failed with this text; `executors` is asked where the text does not name one."""
    if versions := _VERSIONS.search(text):
        there, here = f"{versions.group(1)}.{versions.group(2)}", versions.group(3)
        return Unreachable(
            f"the executors run Python {there}, this is Python {here}; Spark needs the same minor version on both",
            hint="set PYSPARK_PYTHON to such a Python on the executors, or run with theirs here",
        )
    if program := _NO_PYTHON.search(text):
        return Unreachable(
            f"the executors have no Python called {program.group(1)}", hint="set PYSPARK_PYTHON to one that they have"
        )
    if old := _OLD.search(text):
        need = f"{old.group(1).lower()} {old.group(2)} or newer"
        return Unreachable(f"the Python of a Spark executor lacks {need}", hint=_INSTALL.format(need))
    if missing := _MODULE.search(text):
        return _lacking(missing.group(1), executors)
    said = [line.strip() for line in text.splitlines() if re.match(r"\w*(\.\w+)*(Error|Exception)\b", line.strip())]
    if any(each in text for each in _DIED):
        return Unreachable(
            "a Spark executor or its Python ended in the middle of a task, again at each attempt",
            hint="often it has too little memory: raise spark.executor.memoryOverhead; what is finished is kept",
        )
    return BridgeError(f"a Spark job failed: {(said or [first_line(text)])[-1]}")


def _lacking(name: str, executors: Executors) -> BridgeError:
    """A module that is not there, with the Python that lacks it."""
    known = [(host, python, lacking) for host, python, lacking in executors() if name in lacking.split()]
    where = "; ".join(f"{python} on {host}" for host, python, _ in known)
    if name in SHIPPED:
        place = f" ({where})" if where else ""
        return Unreachable(
            f"our code did not reach the Spark executors{place}: they have no module {name}",
            hint="executors must reach the driver's file server: see spark.driver.host, spark.driver.port",
        )
    all_ = sorted({each for _, _, lacking in known for each in lacking.split() if each not in SHIPPED} | {name})
    return Unreachable(
        f"the Python of a Spark executor{f', {where},' if where else ''} has no package {', '.join(all_)}",
        hint=_INSTALL.format(", ".join(all_)),
    )
