"""A directory as a home of Iceberg tables, laid out as Iceberg's hadoop catalog: DIR/<namespace...>/<table>.

The metadata file of the next version is created where nobody created it before; the hint follows it.
"""

from __future__ import annotations

import gzip
import json
import re
import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.errors import Blocked, BridgeError, Missing, Overtaken, UsageError
from bridge.model.findings import Code
from bridge.model.paths import normalise
from bridge.model.table import TableName
from converters import storage
from converters.iceberg import locate

__all__ = ["VERIFIED", "Held", "Home", "Warehouse", "document", "load", "remove_metadata", "withdraw"]

_NUMBER = re.compile(r"(?:^v|^)(\d+)")
VERIFIED = "bridge-verified.json"
"""The note that a state was verified."""
_OURS = re.compile(r"(?:^|-)bridge-[0-9a-f]+-[0-9a-f]{12}(?:-m\d+)?\.avro$|^bridge-verified\.json$")


@dataclass(frozen=True, slots=True)
class Held:
    """A table as its home has it now: where its metadata is, and what that says."""

    path: str
    metadata: Mapping[str, Any]


class Home(Protocol):
    """Where tables are known by name, and change from one metadata file to the next by compare-and-swap."""

    @property
    def is_exclusive(self) -> bool:
        """Whether two commits at the same instant are kept apart."""
        ...

    @property
    def replaces(self) -> bool:
        """Whether a document may hold another snapshot under the number of one that is there."""
        ...

    @property
    def shown(self) -> str:
        """The home for people."""
        ...

    def find(self, name: TableName) -> tuple[TableName, Held] | None:
        """A table of that name, whatever its case, under the name that it has."""
        ...

    def names(self, namespace: tuple[str, ...]) -> Sequence[TableName]:
        """The tables of a namespace that is there; none of another."""
        ...

    def every(self) -> Sequence[TableName]:
        """The tables of all namespaces."""
        ...

    def location(self, name: TableName) -> str:
        """Where the files of a new table go."""
        ...

    def commit(self, name: TableName, held: Held | None, metadata: Mapping[str, Any], mark: str) -> str:
        """Make the document the table's metadata; Conflict unless it is still as `held`. The path of the file."""
        ...

    def settle(self, name: TableName, held: Held) -> None:
        """Finish what a run that was killed after its commit left undone."""
        ...

    def forget(self, name: TableName, held: Held) -> None:
        """Know the table no more, and remove what only we wrote of its metadata; Conflict unless it is still as `held`.
        No file below its data goes."""
        ...


class Warehouse:
    """A directory of tables, or of one table."""

    replaces = True

    def __init__(self, path: str) -> None:
        self.path = storage.absolute(path.rstrip("/") or "/")
        if locate.is_metadata_file(self.path):
            raise UsageError(f"{self.path} is a metadata file", hint="give a warehouse directory")
        if storage.is_file(self.path):
            raise UsageError(f"{self.path} is a file", hint="give a warehouse directory")
        if locate.is_table(self.path):
            raise UsageError(f"{self.path} is a table", hint="give the warehouse directory that tables are to lie in")

    @property
    def shown(self) -> str:
        return self.path

    @property
    def is_exclusive(self) -> bool:
        return storage.is_exclusive(f"{self.path}/")

    def find(self, name: TableName) -> tuple[TableName, Held] | None:
        """The directory of the name, or one that differs in case alone, as on systems that tell none."""
        here, levels = self.path, list[str]()
        for wanted in (*name.namespace, name.name):
            folders = [each for each, folder in storage.list_directory(here) if folder]
            found = [each for each in folders if each == wanted] or [
                each for each in folders if each.casefold() == wanted.casefold()
            ]
            if not found:
                return None
            levels.append(found[0])
            here = f"{here}/{found[0]}"
        if not locate.is_table(here):
            if storage.is_file(f"{here}/metadata"):  # what lies beside it is not for the taking
                raise Missing(f"{here}/metadata is a file, and no directory", hint="see what became of the table")
            return None
        path = locate.find_metadata(here)[0]
        return TableName(tuple(levels[:-1]), levels[-1]), Held(path, load(path))

    def names(self, namespace: tuple[str, ...]) -> Sequence[TableName]:
        """The directories in the namespace's that are tables."""
        here = "/".join((self.path, *namespace))
        folders = [each for each, folder in storage.list_directory(here) if folder]
        return [TableName(namespace, each) for each in sorted(folders) if locate.is_table(f"{here}/{each}")]

    def every(self) -> Sequence[TableName]:
        """Every directory that is a table."""
        return [TableName(levels[:-1], levels[-1]) for levels in locate.tables_below(self.path)]

    def location(self, name: TableName) -> str:
        """DIR/namespace/table."""
        return "/".join((self.path, *name.namespace, name.name))

    def commit(self, name: TableName, held: Held | None, metadata: Mapping[str, Any], mark: str) -> str:
        """The next version, then the hint."""
        home = self.location(name)
        if held is None and locate.is_table(home):
            raise Overtaken(f"{name} was created in {self.path} meanwhile", hint="run it again")
        number = 1 if held is None else _number(held.path) + 1
        path = f"{home}/metadata/v{number}.metadata.json"
        if not storage.create(path, document(metadata), f".{mark}.tmp"):
            raise Overtaken(
                f"{name} in {self.path} got a version {number} meanwhile: {_named(path)}", hint="run it again"
            )
        self._hint(home, number, mark)
        return path

    def settle(self, name: TableName, held: Held) -> None:
        """The hint, which some readers go by alone, names the version."""
        home, number = self.location(name), _number(held.path)
        hint = f"{home}/metadata/version-hint.text"
        told = storage.read(hint, "version hint").strip() if storage.is_file(hint) else b"0"
        if held.path == f"{home}/metadata/v{number}.metadata.json" and told.isdigit() and int(told) < number:
            self._hint(home, number, f"bridge-{uuid.uuid4().hex[:12]}")

    def _hint(self, home: str, number: int, mark: str) -> None:
        """Another run may have gone on meanwhile, and told so before this one does."""
        while True:
            storage.write(f"{home}/metadata/version-hint.text", str(number).encode(), f".{mark}.hint")
            if not storage.is_file(f"{home}/metadata/v{number + 1}.metadata.json"):
                return
            number += 1

    def forget(self, name: TableName, held: Held) -> None:
        """The next version is taken as a commit takes it, so that nobody else gets it, and goes last: until then a run
        that was killed can be run again."""
        path = self.commit(name, held, held.metadata, "bridge-release")
        home = self.location(name)
        storage.remove(f"{home}/metadata/version-hint.text")
        versions = [f"{home}/metadata/{each}" for each, _ in storage.list_directory(f"{home}/metadata")]
        versions = [each for each in versions if _NUMBER.match(each.rsplit("/", 1)[-1]) and each.endswith(".json")]
        if later := [each for each in versions if _number(each) > _number(path)]:
            raise Overtaken(f"{name} in {self.path} changed meanwhile: {_named(later[0])}", hint="run it again")
        storage.parallel(storage.remove, [each for each in versions if each != path])
        storage.remove(path)
        remove_metadata(home)


def remove_metadata(location: str) -> None:
    """Remove metadata files and what we wrote of manifests and lists; nobody names them any more."""
    directory = f"{location}/metadata"
    names = [each for each, folder in storage.list_directory(directory) if not folder and _OURS.search(each)]
    storage.parallel(storage.remove, [f"{directory}/{each}" for each in names])
    storage.remove_directory(directory)
    storage.remove_directory(location)


def withdraw(home: Home, name: TableName, path: str) -> None:
    """Remove the metadata file of a commit that failed, unless the table names it all the same, or may. Only for a
    commit that can no longer happen: not where a server may still be at it."""
    with suppress(BridgeError):
        there = home.find(name)
        log = () if there is None else there[1].metadata.get("metadata-log") or ()
        named = {"" if there is None else there[1].path, *(normalise(str(each["metadata-file"])) for each in log)}
        if normalise(path) not in named:
            storage.remove(path)


def _named(path: str) -> str:
    """The snapshot that a metadata file stands at."""
    return f"snapshot {load(path).get('current-snapshot-id')} in {path}"


def _number(path: str) -> int:
    found = _NUMBER.match(path.rsplit("/", 1)[-1])
    return int(found.group(1)) if found else 0


def load(path: str) -> Mapping[str, Any]:
    """The content of a metadata file."""
    content = storage.read(path, "metadata file")
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        found: Mapping[str, Any] = json.loads(content)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise Blocked(f"{path} is no Iceberg metadata: {error}", code=Code.METADATA_UNREADABLE.text) from error
    return found


def document(metadata: Mapping[str, Any]) -> bytes:
    """Metadata as a file holds it."""
    return json.dumps(metadata).encode()
