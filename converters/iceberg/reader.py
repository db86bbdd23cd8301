"""An Iceberg table or warehouse as a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from bridge.errors import Blocked, Missing, Unreachable, UsageError
from bridge.model.files import Files
from bridge.model.findings import Code, Finding
from bridge.model.objects import Objects
from bridge.model.options import Options
from bridge.model.paths import is_within
from bridge.model.table import TableName
from bridge.ports import Held, Notice, ProgressSink
from converters import storage
from converters.iceberg import locate, metadata
from converters.iceberg.files import read_files
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.scanner import IcebergRows

__all__ = ["IcebergSource", "IcebergSourceTable", "open_source", "up_to"]


class IcebergSourceTable:
    """An opened table; its files are read on request."""

    def __init__(self, source: IcebergTable, options: Options, returned: bytes | None = None) -> None:
        self._source = source
        self._returned = returned
        self._options = options
        self.table = source.table

    def files(self, progress: ProgressSink, since: int | None = None, held: Held | None = None) -> Files:
        """The manifests of every commit, and what the files themselves say unless that was switched off."""
        try:
            return read_files(self._source, self._options.check_files == "all", progress, since, held)
        except Missing as error:
            home = self.table.metadata.rsplit("/", 2)[0]
            moved = home != self.table.location
            hint = f"if the table was moved: --map-prefix {self.table.location}={home}" if moved else "restore the file"
            raise Blocked(error.message, code=Code.MANIFEST_UNREADABLE.text, hint=hint) from error

    def rows(self, commit: str) -> IcebergRows:
        """The rows at a snapshot, or now, by PyIceberg."""
        return IcebergRows(self.table.metadata, commit, self._options.path_map, self._returned)


class IcebergSource:
    """One table by its directory or metadata file, or a warehouse directory full of them."""

    concurrent = True
    configured = ""

    def __init__(self, path: str, options: Options) -> None:
        self._options = options
        path = storage.absolute(path.rstrip("/") or "/")
        self._paths: dict[TableName, str] = {}
        if locate.is_metadata_file(path):
            self._paths[TableName((), path.rsplit("/", 2)[0].rsplit("/", 1)[-1])] = path
        elif storage.is_file(path):
            raise UsageError(f"{path} is a file", hint="give the table's directory or its .metadata.json file")
        elif locate.is_table(path):
            self._paths[TableName((), path.rsplit("/", 1)[-1])] = path
        else:
            for levels in locate.tables_below(path):
                self._paths[TableName(levels[:-1], levels[-1])] = "/".join((path, *levels))
            if not self._paths:  # an empty directory may be one that is not mounted: nothing was dropped
                raise Unreachable(
                    f"{path} holds no Iceberg table",
                    hint="give a table's directory (it has a folder metadata), its .metadata.json file or a warehouse",
                )

    def tables(self) -> Sequence[TableName]:
        """The one table, or all of the warehouse."""
        return sorted(self._paths)

    def objects(self) -> Objects:
        """None that a lake could hold; views of a catalog are noticed."""
        return Objects()

    def noticed(self) -> Sequence[Notice]:
        """A directory is known by its tables alone."""
        return ()

    def holds(self, name: TableName) -> bool:
        """Whether the metadata file, or some in the table's directory, is still there."""
        path = self._paths.get(name)
        if path is None:
            return False
        return storage.is_file(path) if locate.is_metadata_file(path) else locate.is_table(path)

    def open(self, name: TableName) -> IcebergSourceTable:
        """Find the newest metadata and read it."""
        path, findings = self._paths[name], tuple[Finding, ...]()
        if not locate.is_metadata_file(path):
            path, findings = locate.find_metadata(path)
        source = metadata.load(name, path, self._options.path_map, findings)
        source = replace(source, table=replace(source.table, findings=(*source.table.findings, *_elsewhere(source))))
        if self._options.at is not None:
            source = up_to(source, self._options.at)
        return IcebergSourceTable(source, self._options)


def _elsewhere(source: IcebergTable) -> list[Finding]:
    """A copy of a table still names the files of the original, unless prefixes are mapped."""
    table = source.table
    home = table.metadata.rsplit("/", 2)[0]
    if not table.location or is_within(home, table.location) or is_within(table.location, home):
        return []
    said = f"the metadata lies in {home}, the table says {table.location}"
    hint = f"to read what lies beside the metadata: --map-prefix {table.location}={home}"
    return [Finding(Code.LOCATION_ELSEWHERE, str(table.name), said, hint)]


def up_to(source: IcebergTable, at: str) -> IcebergTable:
    """The table as it was at a snapshot of its main line, given by id or by time."""
    table = source.table
    ids = [commit.id for commit in table.commits]
    if at in ids:
        place = ids.index(at)
    else:
        time = _micros(at)
        if time is None:
            raise UsageError(
                f"--at {at}: no such snapshot in the main history of {table.name}",
                hint="give a snapshot id or a time such as 2024-01-31T10:00:00+00:00",
            )
        place = sum(commit.time <= time for commit in table.commits) - 1
        if place < 0:
            raise UsageError(f"--at {at}: {table.name} has no snapshot that old")
    commits = table.commits[: place + 1]
    schema = table.schemas[commits[-1].schema]
    kept = {commit.id for commit in commits}
    refs = tuple(replace(ref, on_main=ref.commit in kept) for ref in table.refs)
    table = replace(table, commits=commits, schema=schema, refs=refs, updated=commits[-1].time)
    return replace(source, table=table, snapshots=source.snapshots[: place + 1])


def _micros(text: str) -> int | None:
    try:
        stated = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    stated = stated if stated.tzinfo else stated.replace(tzinfo=UTC)
    return (stated - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def open_source(rest: str, options: Options) -> IcebergSource:
    """The source behind `iceberg:REST`."""
    return IcebergSource(rest, options)
