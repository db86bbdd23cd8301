"""What the manifests alone tell against registering files in place, each with the history that it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from bridge.errors import Blocked, BridgeError
from bridge.model.files import FileProblem
from bridge.model.findings import Code, Finding
from bridge.model.paths import is_absolute
from bridge.model.table import Table
from converters import storage
from converters.iceberg.manifests import Listing
from converters.iceberg.name_mapping import PROPERTY

__all__ = [
    "damaged_manifests",
    "equality_deletes",
    "listed_twice",
    "problem_of",
    "refuse_unmapped",
    "unchecked_doubts",
    "unchecked_ids",
    "undone_deletes",
    "unreadable_formats",
    "wrong_sums",
]

_SHOWN = 5


def problem_of(code: Code, table: Table, what: str, rows: pl.DataFrame, hint: str = "") -> FileProblem:
    paths = rows["path"].unique(maintain_order=True)
    ends = rows["end"]
    shown = tuple(paths.head(_SHOWN).to_list())
    more = f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else ""
    finding = Finding(
        code,
        str(table.name),
        f"{what}: {', '.join(shown)}{more}",
        hint,
        tuple(paths.head(1000).to_list()),
        len(paths),
    )
    numbers = tuple(rows["file"].to_list()) if code.rewritable and "file" in rows.columns else ()
    last = None if ends.null_count() else int(ends.max())  # type: ignore[arg-type]  # no nulls
    return FileProblem(finding, last, numbers)


def damaged_manifests(
    damaged: Mapping[int, BridgeError], listing: Listing, table: Table, commits: int
) -> Iterator[FileProblem]:
    for manifest, error in damaged.items():
        ends = listing.presence.filter(pl.col("manifest") == manifest)["end"]
        last = int(ends.max())  # type: ignore[arg-type]  # every listed manifest is present somewhere
        if last >= commits:
            raise error
        code = Code.TABLE_ENCRYPTED if getattr(error, "code", "") == "table-encrypted" else Code.MANIFEST_UNREADABLE
        yield FileProblem(Finding(code, str(table.name), error.message), last)


def equality_deletes(deletes: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    rows = deletes.filter(pl.col("content") == 2)
    if len(rows):
        yield problem_of(
            Code.EQUALITY_DELETES, table, "equality deletes apply", rows, "compact the table at the source"
        )


def undone_deletes(times: int, table: Table) -> list[Finding]:
    said = f"deletes were taken back {times} times"
    return [Finding(Code.DELETES_UNDONE, str(table.name), said)] if times else []


def listed_twice(core: pl.DataFrame, listing: Listing, table: Table, commits: int) -> Iterator[FileProblem]:
    spans = (
        core.filter(pl.col("content") == 0)
        .join(listing.presence, on="manifest")
        .filter(pl.col("path").is_duplicated())
        .sort("path", "begin")
        .with_columns(pl.col("end").cum_max().shift(1).over("path").alias("reached"))
        .filter(pl.col("begin") < pl.col("reached"))
        .with_columns(pl.when(pl.col("end") >= commits).then(None).otherwise(pl.col("end")).alias("end"))
    )
    if len(spans):
        yield problem_of(Code.FILE_LISTED_TWICE, table, "listed more than once in one snapshot", spans)


def unreadable_formats(files: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    for (format_,), rows in files.filter(pl.col("format") != "parquet").group_by("format", maintain_order=True):
        yield problem_of(Code.FILE_FORMAT, table, f"{format_} data files", rows)
    hidden = files.filter(pl.col("encrypted"))
    if len(hidden):
        yield problem_of(Code.TABLE_ENCRYPTED, table, "encrypted data files", hidden)
    schemes = files.with_columns(
        pl.col("path").str.extract(r"^([A-Za-z][A-Za-z0-9+.-]*)://", 1).str.to_lowercase().fill_null("").alias("scheme")
    )
    for (kind,), rows in schemes.filter(~pl.col("scheme").is_in(["", *storage.SCHEMES])).group_by(
        "scheme", maintain_order=True
    ):
        yield problem_of(
            Code.PATH_SCHEME,
            table,
            f"DuckDB does not open {kind}:// paths",
            rows,
            "map them: --map-prefix OLD=NEW",
        )


def unchecked_doubts(
    files: pl.DataFrame, nan: pl.DataFrame, unlisted: pl.DataFrame, table: Table
) -> Iterator[FileProblem]:
    """What only the files could tell, when they are not to be looked at."""
    hint = "let them be looked at, or take the risk: --accept unchecked-doubt"
    for what, pairs in (
        ("float columns may hold NaN that the files' own statistics hide", nan),
        ("partition columns may not be in the files", unlisted),
    ):
        rows = files.filter(pl.col("file").is_in(pairs["file"].unique().implode()) & (pl.col("format") == "parquet"))
        if len(rows):
            yield problem_of(Code.UNCHECKED_DOUBT, table, what, rows, hint)


def unchecked_ids(files: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    """Which files lack field ids is in none of the manifests, and a file read by ids that it does not have gives other
    rows: where a name mapping says that there may be some, that is no risk to be accepted."""
    rows = files.filter(pl.col("format") == "parquet")
    if PROPERTY in table.properties and len(rows):
        what = "any of which may lack field ids, since the table has a name mapping, and they were not looked at"
        # not to be rewritten either: looking at them tells which need it
        yield problem_of(Code.NO_FIELD_IDS, table, what, rows.drop("file"), "leave --check-files none out")


def refuse_unmapped(files: pl.DataFrame, table: Table) -> None:
    """Relative paths mean nothing on their own; the error lists the distinct beginnings."""
    stray = [path for path in files["path"].head(100_000).to_list() if not is_absolute(path)]
    if stray:
        heads = sorted({path.rsplit("/", 1)[0] for path in stray})
        raise Blocked(
            f"{table.name}: {len(stray)} data files have relative paths, below {', '.join(heads[:_SHOWN])}",
            code=Code.PATH_SCHEME.text,
            hint="say where they are: --map-prefix OLD=/absolute/NEW",
        )


def wrong_sums(
    files: pl.DataFrame,
    listing: Listing,
    table: Table,
    damaged: Mapping[int, BridgeError],
    passed: pl.DataFrame,
) -> Iterator[FileProblem]:
    """Each commit's live rows against what its manifest list counts; those of manifests that were passed over are
    counted by the lists alone."""
    commits = len(table.commits)
    change = np.zeros(commits + 1, dtype=np.int64)
    np.add.at(change, files["begin"].to_numpy(), files["record_count"].to_numpy())
    np.subtract.at(change, files["end"].fill_null(commits).to_numpy(), files["record_count"].to_numpy())
    unread = passed.filter(pl.col("content") == 0)["rows"]
    live = np.cumsum(change) + int(unread.cast(pl.Int64).sum() or 0)
    if damaged or unread.null_count():
        return
    stated = {index: commit.rows for index, commit in enumerate(table.commits) if index >= listing.first}
    wrong = [index for index, rows in stated.items() if rows is not None and rows != live[index]]
    if wrong:
        first = table.commits[wrong[-1]]
        said = f"{len(wrong)} snapshots: {first.id} holds {live[wrong[-1]]} rows, its summary says {first.rows}"
        hint = "if the summary is known to be wrong: --accept row-summary"
        last = None if wrong[-1] == commits - 1 else wrong[-1] + 1
        yield FileProblem(Finding(Code.ROW_SUMMARY, str(table.name), said, hint), last)
    for commit, rows in sorted(listing.rows.iter_rows()):
        if rows is not None and live[commit] != rows:
            yield FileProblem(
                Finding(
                    Code.ROW_COUNT,
                    str(table.name),
                    f"snapshot {table.commits[commit].id}: manifests hold {live[commit]} rows, its list says {rows}",
                ),
                None if commit == commits - 1 else commit + 1,
            )
