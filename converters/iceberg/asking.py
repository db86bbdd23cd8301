"""What an engine has to know of an Iceberg table's files: how to read each, and which deletes it is to resolve."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from bridge.model.layout import Simple
from bridge.model.rewrite import DataFile, Equality, EqualityDeletes, Name, Subject
from bridge.model.schema import all_fields
from converters.deletes.windows import settle
from converters.iceberg.manifests import Listing, partitions
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.name_mapping import PROPERTY, name_tree
from converters.iceberg.partition import constant_of

__all__ = ["Asking"]

_OPEN = 1 << 62


class Asking:
    """The files as the manifests list them: `files` by row number, `deleted` the positions known so far, `deletes` the
    entries of all delete files with their live intervals."""

    def __init__(
        self,
        source: IcebergTable,
        listing: Listing,
        files: pl.DataFrame,
        deleted: pl.DataFrame,
        deletes: pl.DataFrame,
    ) -> None:
        self._source = source
        self._listing = listing
        self._files = files
        self._deleted = deleted
        self._equality = deletes.filter(
            (pl.col("content") == 2) & (pl.col("end").is_null() | (pl.col("end") > listing.first))
        )

    @property
    def has_equality(self) -> bool:
        return bool(len(self._equality))

    def sources(self, rows: Sequence[int]) -> list[DataFile]:
        """Identity partition columns take the partition's value, whatever the file holds, as in Iceberg Java."""
        chosen = self._files.filter(pl.col("file").is_in(list(rows)))
        values = self._partitions(chosen)
        names, specs = self._names(), self._source.table.specs
        made = {}
        for row in chosen.rows(named=True):
            fields = zip(specs[row["spec"]].fields, values[row["path"]], strict=False)
            constants = {
                int(each.source): constant_of(value) for each, value in fields if each.transform is Simple.IDENTITY
            }
            made[row["file"]] = DataFile(row["path"], row["format"], row["record_count"], row["size"], constants, names)
        return [made[row] for row in rows]

    def equality(self, first: int) -> Equality | None:
        """The equality deletes that apply at a commit or later, and the data files that any of them may apply to."""
        wanted = self._equality.filter(pl.col("end").is_null() | (pl.col("end") > first))
        if not len(wanted):
            return None
        table, names = self._source.table, self._names()
        newest = int(wanted["sequence"].max())  # type: ignore[arg-type]  # there are rows
        files = self._files.filter(
            (pl.col("sequence") < newest) & (pl.col("end").is_null() | (pl.col("end") > first))
        ).unique("path", maintain_order=True)
        values = self._partitions(pl.concat([files.select("path", "manifest"), wanted.select("path", "manifest")]))
        sources = dict(zip(files["path"], self.sources(files["file"].to_list()), strict=True))
        subjects = [
            Subject(sources[row["path"]], row["sequence"], row["spec"], repr(values[row["path"]]))
            for row in files.rows(named=True)
        ]
        deletes = [
            EqualityDeletes(
                DataFile(row["path"], row["format"], row["record_count"], row["size"], {}, names),
                tuple(sorted(map(int, row["equality_ids"] or ()))),
                row["sequence"],
                row["spec"],
                repr(values[row["path"]]),
                not table.specs[row["spec"]].fields,
            )
            for row in wanted.unique("path", maintain_order=True).rows(named=True)
        ]
        schemas = [table.schema, *(table.schemas[id_] for id_ in sorted(table.schemas, reverse=True))]
        return Equality(all_fields(schemas), tuple(subjects), tuple(deletes))

    def settled(self, found: pa.Table) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Files (their numbers so far: `was`) and DELETED rows, with RESOLVED rows among them."""
        rows = pl.from_arrow(found)
        assert isinstance(rows, pl.DataFrame)
        spans = self._equality.select(delete_file="path", low="begin", high="end").unique()
        files = self._files.with_columns(pl.col("file").alias("was"))
        far = pl.lit(_OPEN, dtype=pl.Int64)
        hits = (
            rows.join(files.select("file", "begin", "end", data_file="path", since="sequence"), on="data_file")
            .filter(pl.col("since") < pl.col("sequence"))
            .join(spans, on="delete_file")
            .select(
                "file",
                "position",
                pl.max_horizontal("begin", "low").alias("begin"),
                pl.min_horizontal(pl.col("end").fill_null(far), pl.col("high").fill_null(far)).alias("end"),
            )
            .filter(pl.col("begin") < pl.col("end"))
        )
        before = self._deleted.join(files.select("file", "end"), on="file").select(
            "file", "position", "begin", pl.col("end").fill_null(far)
        )
        every = pl.concat([before, hits]).with_columns(pl.when(pl.col("end") < _OPEN).then(pl.col("end")).alias("end"))
        return settle(files, every)

    def _names(self) -> tuple[Name, ...] | None:
        text = self._source.table.properties.get(PROPERTY)
        return name_tree(text) if text is not None else None

    def _partitions(self, rows: pl.DataFrame) -> dict[str, list[object]]:
        """The partition values of files, by path."""
        paths = dict(self._listing.manifests.select("manifest", "path").iter_rows())
        found: dict[str, list[object]] = {}
        for (manifest,), group in rows.group_by("manifest", maintain_order=True):
            stored = partitions(paths[manifest], self._source.path_map, group["path"].to_list())
            found.update({path: list(values.values()) for path, values in stored.items()})
        return found
