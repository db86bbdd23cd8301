"""Writes the type matrix of publishing into the README, or with --check fails when it is not what the code says."""

from __future__ import annotations

import sys
from pathlib import Path

from converters.iceberg.type_matrix import MATRIX, READERS, Verdict
from converters.iceberg.types import word

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- type matrix -->", "<!-- end of type matrix -->"
SHORT = {Verdict.RIGHT: "ok", Verdict.ROWS: "ok row by row"}


def table() -> str:
    """The matrix as Markdown."""
    heads = ["DuckLake", "Parquet", "Iceberg", *READERS, "published"]
    rows = [heads, ["---"] * len(heads)]
    for row in MATRIX:
        version = " (v3)" if row.version > 2 else ""
        cells = [SHORT.get(each, each.value) for each in row.verdicts]
        rows.append(
            [word(row.type, lake=True), row.physical, word(row.iceberg) + version, *cells, row.way(READERS).value]
        )
    return "\n".join([START, "", *(f"| {' | '.join(each)} |" for each in rows), "", END])


def main() -> None:
    """Compare or write."""
    text = README.read_text()
    head, _, rest = text.partition(START)
    made = head + table() + rest.partition(END)[2]
    if "--check" in sys.argv:
        if made != text:
            sys.exit("README.md: the type matrix is stale, run scripts/readme_matrix.py")
        return
    README.write_text(made)


if __name__ == "__main__":
    main()
