"""What is wrong with the files of a lake, or forbids to register them as they are."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from bridge.errors import BridgeError
from bridge.model.files import FileProblem
from bridge.model.findings import Code, Finding
from bridge.model.table import Table
from converters import storage
from converters.ducklake.catalog.history import Definition
from converters.parquet.footer import Footer, read_footers

__all__ = ["INLINED", "missing", "registered_twice", "rewritten", "uncounted", "without_ids"]

INLINED = "ducklake-inlined"
"""The format of what stands for rows that lie in the catalog."""

_OWN = r"(?:^|/)ducklake-[0-9a-f-]{36}\.parquet$"
"""What the extension calls the files that it writes; they carry field ids."""


def rewritten(files: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    """What only DuckDB can read, and has to be rewritten."""
    subject = str(table.name)
    inlined = files.filter(pl.col("format") == INLINED)
    if len(inlined):
        count = inlined.unique("path")["record_count"].sum()
        yield _problem(
            Code.INLINED_ROWS,
            subject,
            f"{count} rows lie in the catalog",
            inlined,
            "or write them to files in the lake itself: CALL ducklake_flush_inlined_data(...)",
        )
    encrypted = files.filter(pl.col("encryption_key").is_not_null())
    if len(encrypted):
        said = f"{encrypted['path'].n_unique()} data files are encrypted by DuckDB"
        yield _problem(Code.FILE_ENCRYPTED, subject, said, encrypted)


def registered_twice(files: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    """Files that are live twice at once, so that their rows count twice."""
    subject = str(table.name)
    twice = files.filter(pl.col("data_file_id").is_not_null()).unique("data_file_id")
    twice = twice.filter(pl.col("path").is_duplicated())
    if len(twice):
        again = twice["path"].unique(maintain_order=True)
        spans = files.filter(pl.col("path").is_in(again.implode()))
        joined = spans.join(spans, on="path", suffix="_other").filter(
            (pl.col("data_file_id") < pl.col("data_file_id_other"))
            & (pl.col("end").is_null() | (pl.col("begin_other") < pl.col("end")))
            & (pl.col("end_other").is_null() | (pl.col("begin") < pl.col("end_other")))
        )
        if len(joined):
            said = f"{joined['path'].n_unique()} data files are registered twice, such as {joined['path'][0]}"
            yield _problem(Code.FILE_LISTED_TWICE, subject, said, joined, rows=False)


def uncounted(files: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    """Files of which the catalog does not say how many rows they hold: some other writer's, none to DuckDB."""
    unknown = files.filter(pl.col("uncounted").fill_null(False))
    if len(unknown):
        said = f"{unknown['path'].n_unique()} data files have no record count, such as {unknown['path'][0]}"
        yield _problem(Code.ROW_COUNT, str(table.name), said, unknown, rows=False)


def _problem(
    code: Code, subject: str, said: str, files: pl.DataFrame, hint: str = "", rows: bool = True
) -> FileProblem:
    paths = files["path"].unique(maintain_order=True)
    finding = Finding(code, subject, said, hint, tuple(paths.head(1000)), len(paths))
    ends = files["end"]
    last = None if ends.null_count() else ends.max()
    return FileProblem(finding, None if last is None else int(str(last)), tuple(files["file"]) if rows else ())


def missing(files: pl.DataFrame, table: Table) -> Iterator[FileProblem]:
    """Files that are not there, and those that are not as long as the catalog says."""
    stored = files.filter(pl.col("format") != INLINED)
    paths = stored["path"].unique(maintain_order=True)
    sizes = pl.Series(storage.sizes(paths.to_list()), dtype=pl.Int64)
    found = stored.join(pl.DataFrame({"path": paths, "real": sizes}), on="path", maintain_order="left")
    gone = found.filter(pl.col("real").is_null())
    if len(gone):
        said = f"{gone['path'].n_unique()} data files are gone, such as {gone['path'][0]}"
        yield _problem(Code.FILE_MISSING, str(table.name), said, gone, "restore them", rows=False)
    other = found.filter(pl.col("real") != pl.col("size"))
    if len(other):
        said = f"{other['path'].n_unique()} data files are not as long as the catalog says, such as {other['path'][0]}"
        yield _problem(Code.FILE_SIZE, str(table.name), said, other, rows=False)


def without_ids(files: pl.DataFrame, found: Definition, table: Table) -> Iterator[FileProblem]:
    """Files whose columns DuckDB takes by their place, since they carry neither field ids nor a name mapping.

    Which place a column has changes with every ALTER, and nobody else reads them so. Of the files that some other
    writer added in one snapshot the first is opened; one surprise opens all of them.
    """
    plain = files.filter(
        (pl.col("format") != INLINED) & pl.col("mapping").is_null() & pl.col("encryption_key").is_null()
    ).unique("path", maintain_order=True)
    foreign = plain.filter(~pl.col("path").str.contains(_OWN))
    own = plain.filter(pl.col("path").str.contains(_OWN)).head(1)
    first = pl.concat([own, foreign.unique("begin_snapshot", maintain_order=True)])
    variants = frozenset(each.name for each in found.columns if each.type.casefold() == "variant")
    bad, failed = _opened(first, variants)
    surprising = first.filter(pl.col("path").is_in([*bad, *failed]))["begin_snapshot"]
    rest = foreign.filter(pl.col("begin_snapshot").is_in(surprising.implode())).join(first, on="path", how="anti")
    more, again = _opened(rest, variants)
    if paths := [*bad, *more]:
        said = f"{len(paths)} data files carry no field ids, such as {paths[0]}: DuckDB takes their columns by place"
        hint = "write them anew in the lake, or register them with ducklake_add_data_files"
        yield _problem(Code.NO_FIELD_IDS, str(table.name), said, files.filter(pl.col("path").is_in(paths)), hint, False)
    if unread := {**failed, **again}:
        said = next(iter(unread.values()))
        named = files.filter(pl.col("path").is_in(list(unread)))
        yield _problem(Code.FILE_UNREADABLE, str(table.name), said, named, rows=False)


def _opened(files: pl.DataFrame, variants: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """(files without ids on some level, what is wrong with those that cannot be read)."""
    bad: list[str] = []
    failed: dict[str, str] = {}
    paths = files["path"].to_list()
    for path, footer in zip(paths, read_footers(paths), strict=True):
        if isinstance(footer, BridgeError):
            failed[path] = footer.message
        elif not footer.encrypted and not _has_ids(footer, variants):
            bad.append(path)
    return bad, failed


def _has_ids(footer: Footer, variants: frozenset[str]) -> bool:
    nested = (each.ids for each in footer.columns if each.path[0] not in variants | footer.variants)
    return footer.has_ids and not any(None in ids for ids in nested)
