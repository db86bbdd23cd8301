"""Opens a DuckDB file, read-only and byte for byte untouched, and names the state that it is in.

The file is attached READ_ONLY, as the catalog `source`, to a DuckDB in memory; an unreplayed WAL is replayed in memory
alone (the file and its WAL keep bytes and times). While it is attached DuckDB holds a lock that keeps writers out. The
process must not open the file by other means meanwhile: closing any handle of it drops the lock. So everything that is
read here by hand is read before, and compared afterwards by what the file system tells without opening.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb

from bridge.errors import Blocked, BridgeError, Conflict, Missing, Unanswered, Unreachable, UsageError
from bridge.model.options import Options, memory_limit
from bridge.model.paths import normalise, scheme
from converters.parquet import quiet
from converters.parquet.sql import identifier, literal

__all__ = ["ALIAS", "KEY_VARIABLE", "File", "file_at", "opened", "state_of"]

ALIAS = "source"
"""The catalog name under which the file is attached."""
KEY_VARIABLE = "DUCKLAKE_BRIDGE_DUCKDB_KEY"
"""The environment variable with an encrypted file's key, unless --source-option key_env=NAME names another."""

_HEADERS = 3 * 4096
_MAGIC = slice(8, 12)
_VERSION = slice(12, 20)
_NEWEST = 68
"""The newest storage version that DuckDB 1.5 reads."""
_OPTIONS = frozenset({"key_env"})


@dataclass(frozen=True, slots=True)
class File:
    """A database file, its path absolute with links resolved, and how it is to be opened."""

    path: str
    key_variable: str = ""
    memory_limit: str | None = None

    @property
    def wal(self) -> str:
        return f"{self.path}.wal"


def file_at(rest: str, options: Options) -> File:
    """The file behind `duckdb:REST`."""
    path = normalise(rest)
    if scheme(path):
        raise UsageError(f"duckdb:{rest}: only local files can be opened", hint="copy the file here first")
    given = dict(options.source_options)
    if unknown := sorted(given.keys() - _OPTIONS):
        raise UsageError(f"--source-option {unknown[0]} is not known for a DuckDB file", hint="known: key_env=NAME")
    limit = None if options.memory_limit is None else memory_limit(options.memory_limit)
    return File(os.path.realpath(path), given.get("key_env", KEY_VARIABLE), limit)


def _status(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is written, without opening it; None: it is not there."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unanswered(f"{path} cannot be looked at: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def state_of(file: File) -> str:
    """A digest of the state the file is in: its headers, which every checkpoint renews, its size, and its WAL.

    Not while it is attached in this process.
    """
    _check(file)
    digest = hashlib.sha256()
    try:
        with open(file.path, "rb") as content:
            digest.update(content.read(_HEADERS))
        digest.update(str(os.path.getsize(file.path)).encode())
        if os.path.exists(file.wal):
            with open(file.wal, "rb") as content:
                while part := content.read(1 << 20):
                    digest.update(part)
    except OSError as error:
        raise Unanswered(f"{file.path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:32]


def _check(file: File) -> None:
    """What is wrong with a file as far as its first bytes tell."""
    path = file.path
    if _status(path) is None:
        raise Missing(f"{path} does not exist", hint="name an existing DuckDB database file")
    if os.path.isdir(path):
        raise Unreachable(f"{path} is a directory, not a DuckDB file", hint="name the file itself")
    try:
        with open(path, "rb") as content:
            head = content.read(_VERSION.stop)
    except OSError as error:
        raise Unanswered(f"{path} cannot be read: {error.strerror}") from error
    if head[_MAGIC] != b"DUCK":
        what = "an SQLite database" if head.startswith(b"SQLite format 3") else "not a DuckDB file"
        raise Unreachable(f"{path} is {what if head else 'empty'}", hint="name a DuckDB database file")
    version = int.from_bytes(head[_VERSION], "little")
    if version > _NEWEST:
        raise Unreachable(
            f"{path} has storage version {version}, DuckDB {duckdb.__version__} reads up to {_NEWEST}",
            hint="write it with an older storage version: ATTACH '...' (STORAGE_VERSION 'v1.5.0') and COPY FROM "
            "DATABASE",
        )


@contextmanager
def opened(file: File, expected: str | None = None, alias: str | None = ALIAS) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory, in UTC and within the memory limit, with the file attached READ_ONLY as catalog `source`, or
    as `alias` (None: as DuckDB calls it by itself).

    Conflict when somebody else has it open for writing, or when it is in another state than the `expected` one.
    """
    before = _status(file.path), _status(file.wal)
    state = state_of(file)
    if expected is not None and state != expected:
        raise _changed(file)
    with tempfile.TemporaryDirectory(prefix="bridge-spill-") as spill:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
        }
        if file.memory_limit is not None:
            settings["memory_limit"] = file.memory_limit
        connection = quiet.connect(config=settings)
        try:
            connection.execute("SET TimeZone = 'UTC'; SET arrow_lossless_conversion = true")
            if alias is None:  # leave the file every name that it may have, `memory` among them
                own = identifier("bridge memory")
                connection.execute(f"ATTACH ':memory:' AS {own}; USE {own}; DETACH memory")
            _attach(connection, file, alias)
            if (_status(file.path), _status(file.wal)) != before:
                raise _changed(file)
            yield connection
        finally:
            connection.close()


def _changed(file: File) -> Conflict:
    return Conflict(f"{file.path} was changed since it was read", hint="run it again when nobody writes to it")


def _attach(connection: duckdb.DuckDBPyConnection, file: File, alias: str | None) -> None:
    named = literal(file.path) + ("" if alias is None else f" AS {identifier(alias)}")
    key = os.environ.get(file.key_variable, "")
    try:
        try:
            connection.execute(f"ATTACH {named} (READ_ONLY, TYPE duckdb)")
        except duckdb.CatalogException as error:  # DuckDB's answer for an encrypted file without a key
            if not key:
                raise Blocked(
                    f"{file.path} is encrypted",
                    code="table-encrypted",
                    hint=f"put its key into the environment variable {file.key_variable}, or name another with "
                    "--source-option key_env=NAME",
                ) from error
            connection.execute(f"ATTACH {named} (READ_ONLY, TYPE duckdb, ENCRYPTION_KEY {literal(key)})")
    except duckdb.Error as error:
        raise _failed(file, error, key) from None  # the statement held the key


def _failed(file: File, error: duckdb.Error, key: str) -> BridgeError:
    said = str(error).splitlines()[0]
    if key:
        said = said.replace(key, "***")
    if isinstance(error, duckdb.InvalidInputException) and key:
        return Unreachable(
            f"{file.path} cannot be decrypted: the key in {file.key_variable} is not its key",
            hint=f"correct {file.key_variable}",
        )
    if "lock on file" in said:
        holder = re.search(r"\(PID (\d+)\)", said)
        by = f", process {holder.group(1)}," if holder else ""
        return Conflict(
            f"{file.path} is open for writing in another process{by} so it cannot be read",
            hint="close it there, or copy the file and its .wal and migrate the copy",
        )
    if "replaying WAL" in said:
        return Unreachable(
            f"the write-ahead log of {file.path} cannot be replayed: {said}",
            hint="open the file once with the DuckDB that wrote it, which checkpoints it, or migrate a copy without "
            "the .wal, which leaves out its changes",
        )
    if "version number" in said:
        return Unreachable(
            f"{file.path}: {said}", hint="EXPORT DATABASE with the DuckDB that wrote it, IMPORT DATABASE with this one"
        )
    return Unreachable(f"{file.path} cannot be opened: {said}", hint="it seems damaged; try a backup")
