"""A locator, `format:rest`, names a source or target."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bridge.errors import UsageError
from bridge.model.secrets import shown

__all__ = ["FORMATS", "Locator", "parse_locator"]

FORMATS = ("ducklake", "iceberg", "iceberg-catalog", "delta", "parquet", "hive", "duckdb")


@dataclass(frozen=True, slots=True)
class Locator:
    """A format and what the format itself understands; as a text it holds no password."""

    format: str
    rest: str = field(repr=False)

    def __str__(self) -> str:
        return shown(f"{self.format}:{self.rest}")

    @property
    def lasting(self) -> str:
        """As the text, but the same from any working directory."""
        if self.format == "iceberg-catalog" or "://" in self.rest or self.rest.startswith("postgres:"):
            return str(self)
        kind = next((each for each in ("sqlite:", "duckdb:") if self.rest.startswith(each)), "")
        path = os.path.abspath(os.path.expanduser(self.rest.removeprefix(kind)))
        return shown(f"{self.format}:{kind.removeprefix('duckdb:')}{path}")


def parse_locator(text: str) -> Locator:
    """Split `format:rest`; UsageError names the formats when there is none."""
    format_, colon, rest = text.partition(":")
    if not colon or format_ not in FORMATS:
        raise UsageError(
            f"{shown(text)!r} is not a locator",
            hint="write iceberg:PATH, iceberg-catalog:NAME, duckdb:FILE or ducklake:FILE",
        )
    if not rest:
        raise UsageError(
            f"{shown(text)!r} names no table or catalog",
            hint=f"write {format_}:{'NAME' if format_ == 'iceberg-catalog' else 'PATH'}",
        )
    return Locator(format_, rest)
