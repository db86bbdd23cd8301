"""Where a catalog keeps its tables: one small reader a kind of catalog, all answering the same questions.

Only lists and metadata locations are taken from a catalog; metadata and files are read by our own modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bridge.model.table import TableName

__all__ = ["Catalog", "Located", "Namespace"]


@dataclass(frozen=True, slots=True)
class Namespace:
    """What one namespace holds beside deeper ones: tables, views, other things with what they are, and the keys of its
    properties. `fault` says what could not be listed, "" when everything was."""

    levels: tuple[str, ...]
    tables: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    properties: tuple[str, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """Where a table's metadata is ("": not told), and the metadata itself where the catalog returned it."""

    metadata: str
    returned: bytes | None = None


class Catalog(Protocol):
    """A catalog that answered once."""

    def namespaces(self) -> Iterable[Namespace]:
        """Every namespace, nested ones included."""
        ...

    def locate(self, name: TableName) -> Located:
        """Missing when there is no such table (any more)."""
        ...
