"""Writes the table of findings into the README, or with --check fails when it is not what the code says."""

from __future__ import annotations

import sys
from pathlib import Path

from bridge.model.findings import Code

README = Path(__file__).resolve().parents[1] / "README.md"
START, END = "<!-- findings -->", "<!-- end of findings -->"


def table() -> str:
    """The table as Markdown."""
    rows = [f"| `{code.text}` | {_severity(code)} | {code.meaning} |" for code in Code]
    return "\n".join([START, "", "| code | severity | meaning |", "|---|---|---|", *rows, "", END])


def _severity(code: Code) -> str:
    cured = "; rewritten" if code.rewritable else "; resolved" if code is Code.EQUALITY_DELETES else ""
    return f"{code.severity.value}{cured}"


def main() -> None:
    """Compare or write."""
    text = README.read_text()
    head, _, rest = text.partition(START)
    tail = rest.partition(END)[2] if END in rest else rest
    made = head + table() + tail
    if "--check" in sys.argv:
        if made != text:
            sys.exit("README.md: the table of findings is stale, run scripts/readme_findings.py")
        return
    README.write_text(made)


if __name__ == "__main__":
    main()
