#!/usr/bin/env bash
# One command that passes the tests: makes .venv, installs everything, runs the checks and all tests.
# Arguments go to pytest: `scripts/test.sh -m "not slow and not spark"` is the quick suite.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[all,test]'
export PATH="$PWD/.venv/bin:$PATH"
scripts/check.sh
exec python -m pytest -n 2 --dist loadgroup "$@"
