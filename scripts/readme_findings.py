"""Writes the tables of findings and of DuckDB's types into the README, or with --check fails when they are stale."""

from __future__ import annotations

import sys
from pathlib import Path

from bridge.model.findings import Code
from converters.duckdb_file.types import MAPPINGS

README = Path(__file__).resolve().parents[1] / "README.md"


def findings() -> list[str]:
    """Every code, as Markdown."""
    rows = [f"| `{code.text}` | {_severity(code)} | {code.meaning} |" for code in Code]
    return ["| code | severity | meaning |", "|---|---|---|", *rows]


def types() -> list[str]:
    """What DuckDB's types become, as Markdown."""
    rows = [
        f"| `{kind}` | `{choice.name}` | {choice.values} | {choice.code.severity.value if choice.code else ''} |"
        for kind, mapping in MAPPINGS.items()
        for choice in mapping.choices
    ]
    return ["| from | to | which is | finding |", "|---|---|---|---|", *rows]


def between(text: str, name: str, rows: list[str]) -> str:
    """The text with a table between its marks."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, _, rest = text.partition(start)
    return head + "\n".join([start, "", *rows, "", end]) + rest.partition(end)[2]


def _severity(code: Code) -> str:
    cured = "; rewritten" if code.rewritable else "; resolved" if code is Code.EQUALITY_DELETES else ""
    return f"{code.severity.value}{cured}"


def main() -> None:
    """Compare or write."""
    text = README.read_text()
    made = between(between(text, "findings", findings()), "types", types())
    if "--check" in sys.argv:
        if made != text:
            sys.exit("README.md: a table is stale, run scripts/readme_findings.py")
        return
    README.write_text(made)


if __name__ == "__main__":
    main()
