"""What an engine has to know of an Iceberg table's files: how to read each, and which deletes it is to resolve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa

from bridge.model.layout import Simple
from bridge.model.rewrite import DataFile, Equality, EqualityDeletes, Name, Subject
from converters import storage
from converters.deletes.windows import overlap, settle
from converters.iceberg.manifests import Listing, partitions
from converters.iceberg.metadata import IcebergTable
from converters.iceberg.name_mapping import PROPERTY, name_tree
from converters.iceberg.partition import constant_of

__all__ = ["Rewriting"]


class Rewriting:
    """The files as the manifests list them: `files` by row number, `deleted` the positions known so far, `deletes` the
    entries of all delete files with their live intervals. Equality deletes apply to the files that are `reached`, where
    that is told: the paths of some, also of files of no partition that only the target told of (manifest NULL)."""

    def __init__(
        self,
        source: IcebergTable,
        listing: Listing,
        files: pl.DataFrame,
        deleted: pl.DataFrame,
        deletes: pl.DataFrame,
        reached: pl.Series | None,
    ) -> None:
        self._source = source
        self._listing = listing
        self._files = files
        self._deleted = deleted
        self._reached = reached
        self._equality = deletes.filter(
            (pl.col("content") == 2) & (pl.col("end").is_null() | (pl.col("end") > listing.first))
        )

    @property
    def has_equality(self) -> bool:
        return bool(len(self._equality))

    def sources(self, rows: Sequence[int]) -> list[DataFile]:
        """Identity partition columns take the partition's value, whatever the file holds, as in Iceberg Java."""
        chosen = self._files.filter(pl.col("file").is_in(list(rows)))
        made = self._sources(chosen, self._partitions(chosen))
        return [made[row] for row in rows]

    def _sources(self, files: pl.DataFrame, values: Mapping[str, Sequence[object]]) -> dict[int, DataFile]:
        """By row number, from the partition values by path."""
        names, specs = self._names(), self._source.table.specs
        made = {}
        for row in files.rows(named=True):
            fields = zip(specs[row["spec"]].fields, values[row["path"]], strict=False)
            constants = {
                int(each.source): constant_of(value) for each, value in fields if each.transform is Simple.IDENTITY
            }
            path, format_, count, size = (row[name] for name in ("path", "format", "record_count", "size"))
            made[row["file"]] = DataFile(path, format_, count, size, constants, names, row["first_row_id"])
        return made

    def equality(self, first: int) -> Equality | None:
        """The equality deletes that apply at a commit or later, and the data files that any of them may apply to."""
        wanted = self._equality.filter(pl.col("end").is_null() | (pl.col("end") > first))
        if not len(wanted):
            return None
        table, names = self._source.table, self._names()
        newest = int(wanted["sequence"].max())  # type: ignore[arg-type]  # there are rows
        files = self._files.filter(
            (pl.lit(True) if self._reached is None else pl.col("path").is_in(self._reached.implode()))
            & (pl.col("sequence") < newest)
            & (pl.col("end").is_null() | (pl.col("end") > first))
        )
        files = _measured(files.unique("path", maintain_order=True))
        values = self._partitions(pl.concat([files.select("path", "manifest"), wanted.select("path", "manifest")]))
        sources = self._sources(files, values)
        subjects = [
            Subject(sources[row["file"]], row["sequence"], row["spec"], repr(values[row["path"]]))
            for row in files.rows(named=True)
        ]
        deletes = [
            EqualityDeletes(
                DataFile(row["path"], row["format"], row["record_count"], row["size"], {}, names),
                tuple(sorted(map(int, row["equality_ids"] or ()))),
                row["sequence"],
                row["spec"],
                repr(values[row["path"]]),
                not table.specs[row["spec"]].is_partitioned,
            )
            for row in wanted.unique("path", maintain_order=True).rows(named=True)
        ]
        return Equality(table.all_fields, tuple(subjects), tuple(deletes))

    def settled(self, found: pa.Table) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Files (their numbers so far: `was`) and DELETED rows, with RESOLVED rows among them."""
        rows = pl.from_arrow(found)
        assert isinstance(rows, pl.DataFrame)
        spans = self._equality.select(delete_file="path", low="begin", high="end").unique()
        files = self._files.with_columns(pl.col("file").alias("was"))
        live = files.select("file", "begin", "end", data_file="path", since="sequence")
        applying = rows.join(live, on="data_file").filter(pl.col("since") < pl.col("sequence"))
        columns = ["file", "position", "begin", "end"]
        hits = overlap(applying.join(spans, on="delete_file")).select(columns)
        before = self._deleted.join(files.select("file", "end"), on="file").select(columns)
        return settle(files, pl.concat([before, hits]))

    def _names(self) -> tuple[Name, ...] | None:
        text = self._source.table.properties.get(PROPERTY)
        return name_tree(text) if text is not None else None

    def _partitions(self, rows: pl.DataFrame) -> dict[str, list[object]]:
        """The partition values of files, by path."""
        paths = dict(self._listing.manifests.select("manifest", "path").iter_rows())
        listed = pl.col("manifest").is_not_null()
        found: dict[str, list[object]] = {path: [] for path in rows.filter(~listed)["path"]}
        for (manifest,), group in rows.filter(listed).group_by("manifest", maintain_order=True):
            stored = partitions(paths[manifest], self._source.path_map, group["path"].to_list())
            found.update({path: list(values.values()) for path, values in stored.items()})
        return found


def _measured(files: pl.DataFrame) -> pl.DataFrame:
    """With the sizes of those that only the target told of."""
    told = files.filter(pl.col("manifest").is_null())["path"].to_list()
    real = pl.DataFrame({"path": told, "real": storage.sizes(told)}, schema={"path": pl.String, "real": pl.Int64})
    size = pl.when(pl.col("manifest").is_null()).then("real").otherwise("size").alias("size")
    return files.join(real, on="path", how="left", maintain_order="left").with_columns(size).drop("real")
