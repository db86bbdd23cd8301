#!/usr/bin/env bash
# What CI runs before the tests: formatting, lint, types and the import rules.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff format --check bridge converters scripts tests
ruff check .
mypy
lint-imports
python scripts/readme_findings.py --check
python scripts/readme_matrix.py --check
