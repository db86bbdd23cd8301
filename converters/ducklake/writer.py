"""A DuckLake as a target: what it holds, what it says to a table, and how a plan becomes snapshots."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from bridge.errors import Blocked, Unreachable, UsageError
from bridge.model.expiry import Endings
from bridge.model.files import FileProblem, Files, Standing
from bridge.model.findings import Code, Finding
from bridge.model.objects import Objects
from bridge.model.options import Options
from bridge.model.paths import is_within
from bridge.model.rewrite import OWN_DIRECTORY, Settings
from bridge.model.rewrite import Target as TargetFiles
from bridge.model.table import Table, TableName
from bridge.model.types import Field
from bridge.ports import Check, CommitResult, Fitted, Move, ObjectWrite, ProgressSink, Rows, TableWrite, TargetTable
from converters.ducklake import verifying
from converters.ducklake.catalog import reads
from converters.ducklake.catalog.commit import NewLake, write_tables
from converters.ducklake.catalog.definition import declared
from converters.ducklake.catalog.ended import ended_files, ever_registered, ranges
from converters.ducklake.catalog.folders import table_folder
from converters.ducklake.catalog.handles import kept_open
from converters.ducklake.catalog.history import snapshot_ids
from converters.ducklake.catalog.moves import drop_table, move_tables
from converters.ducklake.catalog.new_file import new_file, remove_abandoned
from converters.ducklake.catalog.objects import held_objects, standing
from converters.ducklake.catalog.session import Place, Session, exists, parse_place, session, with_retry
from converters.ducklake.catalog.standing import HeldTable
from converters.ducklake.extensions import connect, needed, packaged
from converters.ducklake.fitting import fit_objects
from converters.ducklake.identifiers import literal, qualified
from converters.ducklake.partition import written_partition
from converters.ducklake.remote import needs_objects, setup_words
from converters.ducklake.review import nul_text, review_table
from converters.ducklake.scanner import Asking
from converters.ducklake.settings import lake_settings
from converters.ducklake.sorting import Declared, next_order, written_order
from converters.ducklake.types import stored_fields
from converters.parquet.left_out import read_left_out
from converters.parquet.places import places_of
from converters.storage import absolute, parallel
from converters.storage.leftovers import all_held, discard, sweep, work_name

__all__ = ["DuckLakeTarget", "open_target"]

_CREATED_BY = "ducklake-bridge"
_REWRITTEN = re.compile(r"/(r-[0-9a-f]{32})(?:-[a-z][0-9a-f]+)*-(\d+)\.parquet$")
_TARGET_BYTES = 512 << 20
_GROUP_ROWS = 122_880
"""What DuckDB 1.5.5 writes where no setting says otherwise."""
_RESERVED = frozenset({"system", "temp", "information_schema", "pg_catalog"})


class DuckLakeTarget:
    """A catalog, there already or to be made."""

    renames = True

    def __init__(self, place: Place, options: Options) -> None:
        self.place = place
        self._chosen = dict(options.type_map)
        self._limit = options.inline_deletes
        self._verifies = options.verify != "none"
        self._asking: Asking | None = None
        if place.is_server and self._verifies:
            _require_extensions(place)
        self._existed = exists(place)
        asked = None if options.data_path is None else absolute(options.data_path).rstrip("/") + "/"
        if self._existed:
            with session(place) as opened:
                reads.version(opened)
                reads.head(opened)
                settings = reads.settings(opened)
            self.data_path = settings.get("data_path", "")
            if not self.data_path:
                raise Blocked(f"catalog {place.path} has no data path", code="foreign-catalog")
            self._encrypted = settings.get("encrypted", "false") == "true"
            if asked is not None and asked.rstrip("/") != absolute(self.data_path).rstrip("/"):
                raise UsageError(
                    f"{place.path} has the data path {self.data_path}, not {asked}",
                    hint="leave --data-path out",
                )
        else:
            if asked is None and place.is_server:
                raise UsageError(
                    f"{place.path} has no lake in the schema {place.schema}; a new one on a server needs --data-path",
                    hint="name a directory or an s3:// prefix that everybody who uses the lake can reach",
                )
            if not place.is_server and not os.path.isdir(os.path.dirname(place.path)):
                raise Unreachable(f"the directory of {place.path} is not there", hint="create it first")
            self.data_path = asked or f"{place.path}.files/"
            self._encrypted = False

    def lookup(self, names: Sequence[TableName]) -> Mapping[TableName, TargetTable]:
        """The tables among `names` that exist, whatever their case."""
        if not self._existed:
            return {}
        found: dict[TableName, TargetTable] = {}
        with session(self.place) as opened:
            # a table that somebody dropped or renamed in the lake is still ours until it is released, whoever has its
            # name now
            lost = {_key(each.schema, each.name): (each, mark) for each, mark in reads.lost_tables(opened)[::-1]}
            live = {_key(each.schema, each.name): each for each in reads.live_tables(opened)}
            for name in names:
                key = _key(".".join(name.namespace) or "main", name.name)
                match, bookmark = live.get(key), None
                if match is not None:
                    bookmark = reads.bookmark(opened, match.id) if match.id >= 0 else None
                if bookmark is None and key in lost:
                    other = "" if match is None else ", and another one has its name"
                    match, bookmark = lost[key]
                    bookmark = replace(bookmark, changed_by=bookmark.changed_by + other)
                if match is None:
                    continue
                held_as = match.called
                states = {bookmark.state: bookmark.commit} if bookmark is not None and bookmark.state else {}
                held = HeldTable(self.place, self.data_path, held_as)
                found[name] = TargetTable(held_as, bookmark, held=held, states=states)
        return found

    def taken(self, source: str) -> Sequence[TargetTable]:
        """The live tables whose bookmark names a source."""
        with self._looking() as opened:
            live = [] if opened is None else [each for each in reads.live_tables(opened) if each.id >= 0]
            marks = [(each, reads.bookmark(opened, each.id)) for each in live if opened is not None]
        return [
            TargetTable(each.called, mark)
            for each, mark in marks
            if mark is not None and mark.source.get("from") == source
        ]

    def move(self, moves: Sequence[Move]) -> None:
        """Rename tables of ours in a transaction of its own."""

        def once() -> None:
            with session(self.place, write=True) as opened:
                move_tables(opened, moves, [table_folder(opened, self.data_path, each.name) for each in moves])

        with_retry(once)

    def drop(self, name: TableName, source: Mapping[str, str]) -> None:
        """Drop a table of ours in a transaction of its own; no file is touched."""

        def once() -> None:
            with session(self.place, write=True) as opened:
                drop_table(opened, name, source)

        with_retry(once)

    def ended(self, name: TableName, there: TargetTable) -> Endings | None:
        """The source's files that only older snapshots of the lake use."""
        with session(self.place) as opened:
            held = reads.table_called(opened, name)
            spans = [] if held is None else ended_files(opened, held.id, outside=True)
            if held is None or not spans:
                return None
            noted = [each for each in reads.noted_snapshots(opened, held.id) if each.commit]
            snapshots = sorted(snapshot_ids(opened))
        groups = ranges(spans, [each.snapshot for each in noted], [each.commit for each in noted], snapshots)
        ways = "keep them at the source (a longer retention, a tag)"
        if self.place.backend != "duckdb":  # there the guard forbids it
            ways += ", expire those snapshots in the lake (ducklake_expire_snapshots)"
        hint = f"{ways}, or release the table and migrate it with --rewrite always"
        return Endings(tuple(each.commit for each in noted), tuple(map(str, snapshots)), groups, hint)

    def newest(self) -> int | None:
        """The time of the lake's newest snapshot."""
        if not self._existed:
            return None
        with session(self.place) as opened:
            return reads.head(opened).time

    def holds(self, name: TableName) -> frozenset[str]:
        """The source commits that a snapshot of the lake stands for."""
        with session(self.place) as opened:
            return frozenset(each.commit for each in reads.noted_of(opened, name))

    def rename(self, source: TableName) -> TableName:
        """`a.b.t` becomes table t of schema a.b; a table without a namespace lands in main."""
        return TableName((".".join(source.namespace),) if source.namespace else (), source.name)

    def review(self, table: Table, name: TableName, options: Options) -> Sequence[Finding]:
        """What the lake has to say about the definition and the name."""
        with self._looking() as opened:
            order = _declared(opened, name)
        found = review_table(table, self._chosen, order)
        schema = ".".join(name.namespace).casefold()
        if schema in _RESERVED:
            found.append(
                Finding(Code.NAME_UNSUPPORTED, str(table.name), f"DuckDB keeps the schema {schema}", "use --as")
            )
        for level in () if options.rename else table.name.namespace:
            if "." in level and not (table.imported and len(table.name.namespace) == 1):
                found.append(
                    Finding(
                        Code.NAME_UNSUPPORTED,
                        str(table.name),
                        f"namespace level {level!r} holds a dot",
                        "use --as",
                    )
                )
        held = nul_text(table) if self.place.is_server else None
        if held is not None:
            found.append(
                Finding(
                    Code.NAME_UNSUPPORTED,
                    str(table.name),
                    f"{held!r} holds a NUL byte, which PostgreSQL cannot store",
                    "use a DuckDB or SQLite catalog, or change it at the source",
                )
            )
        if self._encrypted:
            found.append(Finding(Code.TARGET_ENCRYPTED, str(table.name), f"{self.place.path} is an encrypted lake"))
        return found

    def written_fields(self, table: Table) -> tuple[Field, ...]:
        """As the table has them: what a type becomes is for the engine that writes."""
        return table.all_fields

    def review_files(self, table: Table, files: Files, name: TableName, options: Options) -> Sequence[FileProblem]:
        """Files that left a table and come back to it: they are the lake's own, and it deletes them when it expires
        what it held before."""
        with self._looking() as opened:
            held = None if opened is None else reads.table_called(opened, name)
            mark = None if opened is None or held is None else reads.bookmark(opened, held.id)
            if opened is None or held is None or mark is None or (options.ownership or mark.ownership) != "adopt":
                return ()
            base = next((place for place, each in enumerate(table.commits) if each.id == mark.commit), -1)
            new = files.table.filter(pc.greater(files.table.column("begin"), base)).column("path").to_pylist()
            known = ever_registered(opened, held.id, table_folder(opened, self.data_path, name), new)
        back = [path for path in new if path in known]
        if not back:
            return ()
        said = f"{len(back)} data files left the table and come back, such as {back[0]}"
        hint = "share the files (--ownership shared), or compact the table at the source"
        return (
            FileProblem(Finding(Code.FILE_RETURNS, str(table.name), said, hint, tuple(back[:1000]), len(back)), None),
        )

    def overlaps(self, location: str, files: Files) -> Finding | None:
        """Orphan cleanup removes every unregistered Parquet file below the data path, so neither may hold the other."""
        data_path = absolute(self.data_path)
        directories = {path.rsplit("/", 1)[0] for path in files.table.column("path").to_pylist()}
        inside = any(is_within(directory, data_path) for directory in directories)
        if not (is_within(location, data_path) or is_within(data_path, location) or inside):
            return None
        return Finding(
            Code.DATA_PATH_OVERLAP,
            location,
            f"the lake's data path {self.data_path} and the source's files lie in one another",
            "choose another catalog file or --data-path",
        )

    def fit(self, tables: Sequence[tuple[TableName, Table]], objects: Sequence[ObjectWrite], found: Objects) -> Fitted:
        """In a lake of its own in a temporary directory; the lake itself is only asked which names it has."""
        with self._looking() as opened:
            held = {} if opened is None else held_objects(opened)
            known = ["main"] if opened is None else list(reads.schemas(opened))
        stands = [standing(held, known, each) for each in objects]
        return fit_objects(tables, objects, stands, found, self._chosen)

    def commit(
        self, writes: Sequence[TableWrite], progress: ProgressSink, objects: Sequence[ObjectWrite] = ()
    ) -> CommitResult:
        """All tables and objects in one transaction."""
        now = time.time_ns() // 1000
        new = None if self._existed else NewLake(self.data_path, _CREATED_BY)
        fresh = new is not None and not self.place.is_server

        def once() -> CommitResult:
            opening = new_file(self.place) if fresh else session(self.place, create=new is not None, write=True)
            with opening as opened:
                written, findings = write_tables(opened, writes, new, self._chosen, self._limit, progress, objects, now)
            return CommitResult(tuple(written), tuple(findings), tuple(objects))

        if self._verifies:
            self._asking = Asking(self.place)
        try:
            return once() if fresh else with_retry(once)
        except BaseException:
            if self._asking is not None:
                self._asking.close()
            raise

    def files_of(self, name: TableName, table: Table, plan: str) -> TargetFiles:
        """Parquet as the lake's own settings want it; in a directory of the plan below the table's, but for files of
        partitions: a lake merges those only where they lie in the directory that it would use itself."""
        settings = lake_settings(table)
        with self._looking() as opened:
            folder = table_folder(opened, self.data_path, name)
            if opened is not None:
                settings = reads.settings_of(opened, ".".join(name.namespace) or "main", name.name, settings)
            order, _ = next_order(table, _declared(opened, name))
        partition = written_partition(table)
        level = settings.get("parquet_compression_level")
        return TargetFiles(
            folder.rstrip("/") if partition else f"{folder}{OWN_DIRECTORY}{plan}",
            stored_fields(table.all_fields, self._chosen),
            Settings(
                compression=settings.get("parquet_compression", "snappy"),
                level=int(level) if level else None,
                row_group_rows=_whole(settings, "parquet_row_group_size", _GROUP_ROWS),
                target_bytes=_whole(settings, "target_file_size", _TARGET_BYTES),
            ),
            written_order(table, order),
            partition,
            settings.get("hive_file_pattern", "true") != "false",
        )

    def rewritten(
        self, name: TableName, commit: str, of: Collection[str] | None = None
    ) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Files of earlier plans, by what they are called after; a lake goes on from its newest state alone."""
        held = self._live_files(name, own=True)
        numbered: dict[str, dict[int, tuple[str, int]]] = {}
        for path, file in held.items():
            if match := _REWRITTEN.search(path):
                numbered.setdefault(match.group(1), {})[int(match.group(2))] = (path, file.record_count)
        return {key: [each[number] for number in sorted(each)] for key, each in numbered.items()}

    def _live_files(
        self, name: TableName, paths: Sequence[str] | None = None, own: bool = False
    ) -> Mapping[str, reads.LiveFile]:
        with self._looking() as opened:
            held = None if opened is None else reads.table_called(opened, name)
            if opened is None or held is None:
                return {}
            return reads.live_files(opened, held.id, table_folder(opened, self.data_path, name), paths, own)

    def standing(self, name: TableName, paths: Sequence[str] | None = None) -> Standing:
        """As the catalog and its delete files tell."""
        return HeldTable(self.place, self.data_path, name).standing(paths)

    def left_out(self, path: str) -> np.ndarray:
        """As the file itself notes it."""
        return read_left_out(path)

    def places(self, asked: Sequence[tuple[Sequence[str], np.ndarray]]) -> Sequence[np.ndarray | None]:
        """As the files themselves tell, where their rows were sorted."""
        return parallel(lambda one: places_of(*one), asked)

    def registered(self, name: TableName, paths: Sequence[str], commit: str) -> frozenset[str]:
        """Those of the paths that are live files of a table; a lake goes on from its newest state alone."""
        return frozenset(paths) & self._live_files(name, paths).keys()

    @property
    def staging(self) -> str:
        """Beside the tables' directories; it holds no Parquet, so that no orphan cleanup touches it."""
        return f"{absolute(self.data_path).rstrip('/')}/bridge-staging"

    def _outside(self, writes: Sequence[TableWrite]) -> bool:
        """Whether any of the tables has a file that is not the lake's own."""
        names = [write.name for write in writes]
        with session(self.place) as opened:
            outside = reads.outside_tables(opened)
            found = [each for each in reads.live_tables(opened) if each.id in outside]
        return any(each.is_called(name) for each in found for name in names)

    def kept_open(self) -> AbstractContextManager[None]:
        """A DuckDB file is not opened for each question while this lasts."""
        return kept_open(self.place)

    @contextmanager
    def _looking(self) -> Iterator[Session | None]:
        if not self._existed and not exists(self.place):
            yield None
            return
        with session(self.place) as opened:
            yield opened

    @property
    def _catalog(self) -> str:
        return f"{self.place.attach} {self.place.schema}"

    def work(self, name: TableName, plan: str) -> str:
        """What the unfinished work of a plan is called in the staging."""
        return work_name(self._catalog, name, plan)

    def hold(self, plans: Sequence[tuple[TableName, Table, str]]) -> AbstractContextManager[Callable[[], None]]:
        """Note the work of some plans, and keep other runs off it."""
        works = [(name, plan, self.files_of(name, table, plan).directory) for name, table, plan in plans]
        return all_held(self.staging, self._catalog, works)

    def finish(self, plans: Sequence[tuple[TableName, Table, str]]) -> None:
        """Forget the work of plans that are committed."""
        for name, table, plan in plans:
            root = f"{self.staging}/{self.work(name, plan)}"
            discard(root, self.files_of(name, table, plan).directory, self._registered_with)

    def _registered_with(self, text: str) -> frozenset[str]:
        with self._looking() as opened:
            return frozenset() if opened is None else reads.paths_with(opened, text)

    def _committed(self) -> Mapping[str, str]:
        with self._looking() as opened:
            if opened is None:
                return {}
            every = [*reads.ended_tables(opened)[::-1], *reads.live_tables(opened)]
            noted = [(each, reads.bookmark(opened, each.id)) for each in every if each.id >= 0]
        return {f"{each.schema}.{each.name}".casefold(): mark.plan for each, mark in noted if mark}

    def clean(self, plans: Mapping[TableName, str]) -> None:
        """Remove what killed runs of ours left: beside the catalog (a server does so itself), and of their work."""
        sweep(self.staging, self._catalog, plans, self._committed, self._registered_with)
        if not self.place.is_server:
            remove_abandoned(self.place)

    def verify(self, result: CommitResult, writes: Sequence[TableWrite], read_files: bool) -> Sequence[Check]:
        """Columns, types and row counts as DuckDB answers them, at the first, last and some snapshots between."""
        ready, self._asking = self._asking, None
        return verifying.verify(self.place, writes, self._chosen, read_files, self._in_objects(writes), ready)

    def verify_objects(self, objects: Sequence[ObjectWrite]) -> Sequence[Check]:
        """Each view is bound, each macro and schema is found, as DuckDB sees the lake from outside."""
        return verifying.verify_objects(self.place, objects)

    def compare(self, name: TableName, commit: str, rows: Rows) -> Check:
        """EXCEPT ALL both ways, in DuckDB's own process, at the lake snapshot of the commit."""
        return verifying.compare(self.place, self.data_path, name, commit, rows)

    def _in_objects(self, writes: Sequence[TableWrite]) -> bool:
        paths = (path for write in writes for path in write.files.table.column("path").unique().to_pylist())
        return needs_objects((self.data_path, *paths))

    def closing_words(self, result: CommitResult, writes: Sequence[TableWrite]) -> Sequence[str]:
        """How to open the lake, what is guarded, how to catch up, take over and undo."""
        outside = self._outside(writes)
        shared = outside and any(write.ownership == "shared" for write in writes)
        imported = all(write.table.imported for write in writes)
        names = " ".join("--table " + shlex.quote(str(write.name)) for write in writes)
        locator = shlex.quote(f"ducklake:{self.place.attach}")
        if self.place.is_server and self.place.schema != "public":
            names = f"--metadata-schema {shlex.quote(self.place.schema)} {names}"
        first = writes[0].name if writes else None
        loads = _load_lines(self.place.backend) + (setup_words() if self._in_objects(writes) else "")
        said = [
            f"open it:    {loads}{self.place.statement()};",
        ]
        if result.objects:
            made = len(result.objects)
            said.append(f"beside:     {made} schemas, views and macros were made; release leaves them, DROP takes them")
        if first is None:
            return said
        said.append(
            f"try it:     SELECT * FROM {qualified('lake', *(first.namespace or ('main',)), first.name)} LIMIT 10;"
        )
        if imported:
            said.append("imported:   the files are the lake's own; nothing of the source is used any more.")
        elif shared and self.place.backend != "duckdb":
            said.append(
                "guarded:    the lake never deletes the source's files; expire, merge and cleanup work. "
                "Do not expire or remove files at the source while the lake uses them; "
                "merge, rewrite and flush in the lake end catching up."
            )
        elif shared:
            said.append(
                "guarded:    maintenance that would delete a source file fails with a CHECK error; the rest works. "
                "Do not expire or remove files at the source while the lake uses them; "
                "merge, rewrite and flush in the lake end catching up."
            )
        elif outside:
            said.append("adopted:    the files are the lake's now; its maintenance may delete them. Retire the source.")
        elif not imported:
            said.append(
                "own files:  every file lies below the lake's data path and nothing of the source is used, so there is "
                "nothing to guard: maintenance works on both sides; in the lake it ends catching up."
            )
        if not imported:
            said.append("catch up:   run the same command again")
        if shared:
            said.append(f"take over:  ducklake-bridge adopt {locator} {names}")
        said.append(f"undo:       ducklake-bridge release {locator} {names}")
        return said


def _require_extensions(place: Place) -> None:
    """What the verification needs must not turn out to be missing after the commit."""
    try:
        connect(*(name for name in needed(place.backend) if packaged(name) is None)).close()
    except Unreachable as error:
        raise UsageError(error.message, hint="pip install 'ducklake-bridge[postgres]'") from error


def _whole(settings: Mapping[str, str], key: str, default: int) -> int:
    text = settings.get(key, "")
    return int(text) if text.isdigit() and int(text) else default


def _declared(opened: Session | None, name: TableName) -> Declared | None:
    """The sort order that a live table has in the lake; None for a table that is not there."""
    held = None if opened is None else reads.table_called(opened, name)
    if opened is None or held is None:
        return None
    return declared(opened, held.id, reads.columns(opened, held.id))


def _key(schema: str, name: str) -> tuple[str, str]:
    return schema.casefold(), name.casefold()


def _load_lines(backend: str) -> str:
    """LOAD statements for extensions that lie in a package, where DuckDB does not look by itself."""
    paths = [packaged(name) for name in needed(backend)]
    return "".join(f"LOAD {literal(str(path))}; " for path in paths if path is not None)


def open_target(rest: str, options: Options) -> DuckLakeTarget:
    """The target behind `ducklake:REST`."""
    return DuckLakeTarget(parse_place(rest, options.metadata_schema), options)
