"""The engine as a run uses it: files and deletes in, written files and positions out."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from bridge.model.options import Options
from bridge.model.rewrite import RESOLVED, Equality, FileRewrite, Target, WrittenFiles
from bridge.ports import ProgressSink
from converters.parquet.copied import typed_stats
from converters.spark.equality import resolve_equality
from converters.spark.plan import RewriteTask
from converters.spark.rewriter import Rewriter
from converters.spark.running import Progress, Watch
from converters.spark.session import Engine, SessionOptions

__all__ = ["SparkRows", "open_engine"]


class SparkRows:
    """Rewriting and resolving on Spark; what is finished is kept under the plan's id until it is cleaned."""

    def __init__(self, options: SessionOptions, staging: str) -> None:
        self._engine = Engine(options)
        self._staging = staging

    def rewrite(
        self, plan: str, files: Sequence[FileRewrite], target: Target, progress: ProgressSink, what: str
    ) -> WrittenFiles:
        """Rewrite files, sorted where the target is; files of which no row is left are not written."""
        rewriter = Rewriter(self._engine, self._staging)
        tasks = []
        for place, each in enumerate(files):
            given, path = rewriter.positions(plan, each.left_out)
            tasks.append(RewriteTask(str(place), each.source, target, each.output, given, path))
        written = rewriter.run(plan, tasks, _watch(progress, what))
        return WrittenFiles(written.drop_columns(["stats"]), tuple(typed_stats(written, target.fields)))

    def resolve(self, plan: str, equality: Equality, progress: ProgressSink, what: str) -> pa.Table:
        """The positions that equality deletes name: RESOLVED rows."""
        found = resolve_equality(
            self._engine,
            self._staging,
            plan,
            equality.fields,
            equality.subjects,
            equality.deletes,
            watch=_watch(progress, what),
        )
        return found.cast(RESOLVED)

    def close(self) -> None:
        """Stop the session if it was started here."""
        self._engine.close()


def _watch(progress: ProgressSink, what: str) -> Watch:
    def tell(done: Progress) -> None:
        reused = f", {done.reused} done before" if done.reused else ""
        progress.step(f"{what}: {done.bytes:,} of {done.all_bytes:,} bytes{reused}", done.files, done.all_files)

    return tell


def open_engine(options: Options, staging: str) -> SparkRows:
    """The engine that the options ask for."""
    if options.spark_session is not None:
        return SparkRows(SessionOptions(session=options.spark_session), staging)  # type: ignore[arg-type]  # as told
    return SparkRows(SessionOptions.parse(options.spark_master, options.spark_conf, options.spark_remote), staging)
