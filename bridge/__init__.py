"""Move tables between DuckLake and other lakehouse formats without copying data unless they must.

report = bridge.migrate("iceberg:/warehouse/db/events", "ducklake:lake.ducklake")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.errors import (
    Blocked,
    BridgeError,
    Conflict,
    Unreachable,
    UsageError,
    VerificationFailed,
)

if TYPE_CHECKING:
    from bridge.app import Inspection, Report, adopt, inspect, migrate, plan, release, verify
    from bridge.mirroring.following import mirror
    from bridge.mirroring.pair import Round
    from bridge.model.findings import Code, Finding, Severity
    from bridge.model.options import Options
    from bridge.model.paths import PathMap
    from bridge.planning.plan import Plan

__all__ = [
    "Blocked",
    "BridgeError",
    "Code",
    "Conflict",
    "Finding",
    "Inspection",
    "Options",
    "PathMap",
    "Plan",
    "Report",
    "Round",
    "Severity",
    "Unreachable",
    "UsageError",
    "VerificationFailed",
    "adopt",
    "inspect",
    "migrate",
    "mirror",
    "plan",
    "release",
    "verify",
]

_HOMES = {
    "bridge.app": ("Inspection", "Report", "adopt", "inspect", "migrate", "plan", "release", "verify"),
    "bridge.mirroring.following": ("mirror",),
    "bridge.mirroring.pair": ("Round",),
    "bridge.model.findings": ("Code", "Finding", "Severity"),
    "bridge.model.options": ("Options",),
    "bridge.model.paths": ("PathMap",),
    "bridge.planning.plan": ("Plan",),
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `--help` stays quick."""
    from importlib import import_module

    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'bridge' has no attribute {name!r}")
