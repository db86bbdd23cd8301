"""The rows of a lake's table, read by DuckDB's own extension in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator

import pyarrow as pa

from bridge.errors import BridgeError
from bridge.model.paths import scheme
from converters.ducklake.catalog.handles import copied, is_still
from converters.ducklake.catalog.places import Place
from converters.ducklake.extensions import needed
from converters.ducklake.identifiers import literal, qualified
from converters.storage.scratch import scratch

__all__ = ["LakeRows"]

_CURRENT = "1.0"


class LakeRows:
    """The rows at a snapshot, as an Arrow schema and batches. A catalog of an older version is copied, and the copy
    upgraded, since DuckDB reads no other; on a server that cannot be."""

    def __init__(
        self, place: Place, version: str, data_path: str, base: str, name: tuple[str, str], snapshot: int
    ) -> None:
        self._directory = tempfile.mkdtemp(dir=scratch())
        self._clean = weakref.finalize(self, shutil.rmtree, self._directory, True)
        options = ["OVERRIDE_DATA_PATH true", f"DATA_PATH {literal(data_path)}"]
        if version == _CURRENT:
            options.append("READ_ONLY")
            if place.backend == "sqlite" and is_still(place.path):
                place = copied(place, f"{self._directory}/catalog")
        elif place.is_server:
            raise BridgeError(
                f"{place.attach}: DuckDB reads no catalog of version {version} as it is",
                hint=f"upgrade it: {place.statement('AUTOMATIC_MIGRATION true')}",
            )
        else:
            place = copied(place, f"{self._directory}/catalog")
            options.append("AUTOMATIC_MIGRATION true")
        path = f"{self._directory}/rows.arrow"
        asked = {
            "attach": place.statement(*options, whole=True),
            "extensions": needed(place.backend),
            "objects": bool(scheme(data_path)),
            "query": f"SELECT * FROM {qualified('lake', *name)} AT (VERSION => {int(snapshot)})",
            "path": path,
        }
        ran = subprocess.run(
            [sys.executable, "-m", "converters.ducklake.giving"],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=False,
            cwd=base or None,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path))),
                **place.environment,
            },
        )
        if ran.returncode or ran.stdout.strip():
            last = ran.stdout.strip() or (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
            raise BridgeError(f"DuckDB cannot read {'.'.join(name)} of {place.attach}: {place.hide(last)}")
        self._path = path
        with pa.OSFile(path, "rb") as source:
            self.schema: pa.Schema = pa.ipc.open_stream(source).schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(self._path, "rb") as source:
            yield from pa.ipc.open_stream(source)
