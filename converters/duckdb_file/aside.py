"""Files that are not finished lie aside; a record of those that are makes a killed run go on where it was."""

from __future__ import annotations

import os
import tempfile

import pyarrow as pa
import pyarrow.ipc as ipc

from bridge.errors import Unreachable
from bridge.model.paths import scheme
from bridge.model.rewrite import ASIDE, WRITTEN
from converters import storage

__all__ = ["Aside"]


class Aside:
    """One table's directory of unfinished files (`local`), and the record of its finished ones in the staging."""

    def __init__(self, staging: str, plan: str, output: str, directory: str) -> None:
        self._kept = f"{staging}/{plan}"
        self._name = f"batch-{output}"
        self._record = f"{self._kept}/{self._name}.arrow"
        self._output = output
        self._directory = directory.rstrip("/")
        self._moves: dict[str, str] = {}
        base = tempfile.gettempdir() if scheme(directory) else self._directory
        self.local = f"{base}/{ASIDE}{plan}.{output}"

    def finished(self) -> pa.Table | None:
        """WRITTEN rows of a table that is done, its files at their places; None when there is work left."""
        if not storage.is_file(self._record):
            return None
        try:
            with ipc.open_file(storage.read(self._record, "record")) as reader:
                rows = reader.read_all()
        except (pa.ArrowException, Unreachable):
            return None
        if rows.schema.metadata is None or not rows.schema.remove_metadata().equals(WRITTEN):
            return None
        paths, sizes = rows.column("path").to_pylist(), rows.column("size").to_pylist()
        sources = rows.schema.metadata[b"aside"].decode().split("\0")
        for path, size, found, local in zip(paths, sizes, storage.sizes(paths), sources, strict=True):
            if found == size:
                continue
            if not os.path.isfile(local) or os.path.getsize(local) != size:
                return None
            self._move(local, path)
        self._remove_local()
        return rows.replace_schema_metadata()

    def begin(self) -> None:
        """Start with nothing aside."""
        self._remove_local()
        storage.make_directory(self._directory)
        try:
            os.makedirs(self.local)
        except OSError as error:
            raise Unreachable(f"{self.local} cannot be made: {error.strerror}") from error

    def place(self, local: str, below: str, number: int) -> str:
        """The place that a file aside is to have: its number, in a directory below the target's."""
        path = "/".join(each for each in (self._directory, below, f"{self._output}-{number}.parquet") if each)
        self._moves[path] = local
        return path

    def finish(self, rows: pa.Table) -> pa.Table:
        """Record the files, then move them to their places."""
        sources = "\0".join(self._moves[path] for path in rows.column("path").to_pylist())
        storage.make_directory(self._kept)
        sink = pa.BufferOutputStream()
        with ipc.new_file(sink, rows.schema.with_metadata({"aside": sources})) as writer:
            writer.write_table(rows.replace_schema_metadata({"aside": sources}))
        storage.write(self._record, sink.getvalue().to_pybytes(), f".{self._name}.part")
        for path in rows.column("path").to_pylist():
            self._move(self._moves[path], path)
        self._remove_local()
        return rows

    def _move(self, local: str, path: str) -> None:
        storage.make_directory(path.rsplit("/", 1)[0])
        storage.put(local, path)

    def _remove_local(self) -> None:
        storage.remove_tree(self.local)
