#!/usr/bin/env bash
# One command that sets up and shows the main job: makes .venv, installs the tool, makes an Iceberg table with
# PyIceberg, migrates it in place and asks the lake.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -e .
exec .venv/bin/python scripts/demo.py "$@"
