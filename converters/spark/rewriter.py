"""Rewrites files on Spark: tasks in, written files out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from bridge.errors import UsageError
from bridge.model.paths import scheme
from converters import storage
from converters.spark.batches import Staging
from converters.spark.plan import WRITTEN, RewriteTask
from converters.spark.running import Job, Watch, grouped, run_batches
from converters.spark.session import Engine
from converters.spark.task import rewrite
from converters.spark.writing import output_of

__all__ = ["Rewriter"]

_FEW = 10_000


class Rewriter:
    """Runs rewrite tasks under a plan id; what an earlier run of the same plan finished is not done again."""

    def __init__(self, engine: Engine, staging: str) -> None:
        self._engine = engine
        self._staging = staging

    def run(self, plan_id: str, tasks: Sequence[RewriteTask], watch: Watch | None = None) -> pa.Table:
        """WRITTEN rows of every task, in the order of the tasks; a task none of whose rows live has none."""
        names = [f"{task.target.directory}/{task.output}" for task in tasks]
        if len(set(names)) != len(names) or len({task.id for task in tasks}) != len(tasks):
            raise UsageError("two rewrite tasks share their id or their output name")
        staging = Staging.of(self._staging, plan_id)
        self._sweep({task.target.directory for task in tasks}, {task.output for task in tasks})
        batches = grouped([Job(task.to_json(), size) for task, size in zip(tasks, _sizes(tasks), strict=True)])
        rows = run_batches(self._engine, staging, batches, _work, _intact, watch)
        return pa.concat_tables([WRITTEN.empty_table(), *rows])

    def positions(self, plan_id: str, left_out: np.ndarray) -> tuple[tuple[int, ...], str]:
        """Positions as a task takes them: few in itself, many in a file of the plan's."""
        if len(left_out) <= _FEW:
            return tuple(left_out.tolist()), ""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema([pa.field("position", pa.int64())])) as writer:
            writer.write_table(pa.table({"position": left_out}))
        content = sink.getvalue().to_pybytes()
        name = f"positions-{hashlib.sha256(content).hexdigest()[:24]}"
        return (), Staging.of(self._staging, plan_id).keep(name, content)

    def clean(self, plan_id: str) -> None:
        """Forget a plan whose files are committed."""
        Staging.of(self._staging, plan_id).clean()

    def _sweep(self, directories: set[str], outputs: set[str]) -> None:
        """Remove what a killed run left unfinished of these outputs: others may be at work in the directory."""
        for directory in directories:
            if scheme(directory):
                continue  # an upload that was not completed is no object
            for name, is_directory in storage.list_directory(directory):
                if not is_directory and output_of(name) in outputs:
                    storage.remove(f"{directory}/{name}")


def _work(text: str) -> pa.Table:
    return rewrite(RewriteTask.from_json(text))


def _sizes(tasks: Sequence[RewriteTask]) -> list[int]:
    unknown = [task.source.path for task in tasks if task.source.size is None]
    found = dict(zip(unknown, storage.sizes(unknown), strict=True))
    return [task.source.size if task.source.size is not None else found[task.source.path] or 0 for task in tasks]


def _intact(rows: pa.Table) -> bool:
    """Whether the files of a finished batch are still there as they were written."""
    return storage.sizes(rows.column("path").to_pylist()) == list(rows.column("size").to_pylist())
