"""Readings of an Iceberg table in part, compared with reading everything."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import polars as pl
import pyarrow as pa

from bridge.model.files import Files, Measures, Standing, StatsBatch, live_rows
from bridge.model.options import Options
from bridge.model.types import ColumnType, FieldId
from bridge.ports import Silent
from converters import storage
from converters.iceberg.manifests import list_manifests
from converters.iceberg.reader import open_source
from converters.iceberg.recent import untouched
from converters.spark.wiring import open_engine
from tests.lake_parts import bounds, changes

__all__ = ["Holding", "Part", "opened", "partial_readings", "resolved"]


@dataclass(frozen=True)
class Holding:
    """What a target holds that was brought to a commit."""

    whole: Files
    since: int

    def _live(self) -> list[tuple[int, str, int]]:
        return [
            (number, row["path"], row["record_count"])
            for number, row in enumerate(self.whole.table.to_pylist())
            if row["begin"] <= self.since and (row["end"] is None or row["end"] > self.since)
        ]

    def measures(self, types: Mapping[FieldId, ColumnType]) -> Measures:
        """What the source says itself."""
        live = self._live()
        numbers = pl.DataFrame({"was": [number for number, _, _ in live], "now": range(len(live))})
        numbers = numbers.with_columns(pl.all().cast(pl.Int64))
        found = []
        for batch in self.whole.stats():
            if batch.field in types:
                rows = pl.DataFrame(batch.table).join(numbers, left_on="file", right_on="was")
                rows = rows.select(pl.col("now").alias("file"), pl.exclude("file", "now"))
                found.append(StatsBatch(batch.field, rows.to_arrow(), batch.exact))
        return Measures(pa.table({"path": pa.array([path for _, path, _ in live], pa.string())}), found)

    def standing(self, paths: Sequence[str]) -> Standing:
        """Of some files."""
        rows = [each for each in self._live() if each[1] in paths]
        place = {number: at for at, (number, _, _) in enumerate(rows)}
        gone = [
            (place[each["file"]], each["position"])
            for each in self.whole.deletes.to_pylist()
            if each["file"] in place and each["begin"] <= self.since
        ]
        return Standing(
            pa.table({
                "path": pa.array([path for _, path, _ in rows], pa.string()),
                "record_count": pa.array([count for _, _, count in rows], pa.int64()),
            }),
            pa.table({
                "file": pa.array([file for file, _ in gone], pa.int64()),
                "position": pa.array([position for _, position in gone], pa.int64()),
            }),
        )  # fmt: skip


@contextmanager
def opened() -> Iterator[list[tuple[str, str]]]:
    """(kind, path) of all that is read whole meanwhile, in order."""
    seen: list[tuple[str, str]] = []
    read = storage.read

    def noted(path: str, what: str) -> bytes:
        seen.append((what, path))
        return read(path, what)

    with patch.object(storage, "read", noted):
        yield seen


def resolved(files: Files, first: int = 0) -> Files:
    """With what equality deletes delete at a commit or later."""
    equality = files.equality(first)
    if equality is None:
        return files
    with tempfile.TemporaryDirectory() as staging:
        engine = open_engine(Options(), staging)
        return files.resolved(engine.resolve("plan", equality, Silent(), "resolving"))


@dataclass(frozen=True)
class Part:
    """A reading of what came after a commit: whether it was one, and the manifests that it opened although that commit
    and all later ones list them, by content: data (0) and deletes (1)."""

    since: int
    partial: bool
    opened: tuple[int, ...]


def partial_readings(place: str, options: Options, last: int | None = None) -> list[Part]:
    """Compare what is read of a table after each of its commits, or of the last few, with all that there is."""
    [name] = (source := open_source(place, options)).tables()
    table = source.open(name)
    whole, count = resolved(table.files(Silent())), len(table.table.commits)
    every, found = live_rows(whole, count), []
    listing = list_manifests(table._source)
    for since in range(0 if last is None else max(0, count - last), count):
        with opened() as seen:
            part = table.files(Silent(), since, Holding(whole, since))
        old = untouched(listing, since, count).filter(pl.col("path").is_in([path for _, path in seen]))
        found.append(Part(since, part.since is not None, tuple(old["content"].sort())))
        if part.since is None:
            continue
        assert part.since == since
        part = resolved(part, since)
        assert changes(part, since) == changes(whole, since), (place, since)
        live = live_rows(part, count)
        assert (live - live[since])[since:-1].tolist() == (every - every[since])[since:-1].tolist(), (place, since)
        assert bounds(part, since) == bounds(whole, since), (place, since)
        begins = part.table.column("begin").to_pylist()
        assert begins == sorted(begins)
    return found
