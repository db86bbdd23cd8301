"""Published tables that are given back, or that take over the files that they list."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bridge.errors import Blocked, Conflict, UsageError
from bridge.model.options import Options
from bridge.model.paths import is_within
from bridge.model.table import TableName
from bridge.ports import AdoptedTable, ReleasedTable
from converters.iceberg.publish.bookmark import PROPERTY, bookmark_of, foreign
from converters.iceberg.publish.held import every_path
from converters.iceberg.publish.properties import GUARD
from converters.iceberg.warehouse import Held, Home, Warehouse

__all__ = ["PublishedTables", "open_catalog_tables", "open_tables"]


class PublishedTables:
    """The tables that we published to a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def release(self, names: Sequence[str], discard: bool) -> Sequence[ReleasedTable]:
        """Forget tables: their metadata goes, no data file does. Blocked when somebody else changed one, unless that
        may be discarded."""
        chosen = self._resolved(names)
        for name, held in chosen.items():
            if (changed := foreign(held.metadata)) and not discard:
                raise Blocked(
                    f"{name} was changed by somebody else ({changed}); what they wrote would be lost",
                    code="changed-in-lake",
                    hint="copy what you need, then add --discard-changes",
                )
        done = []
        for name, held in chosen.items():
            location = str(held.metadata["location"])
            paths = every_path(held.metadata)
            own = sum(is_within(each, location) for each in paths)
            self._home.forget(name, held)
            done.append(ReleasedTable(name, len(paths) - own, own, f"below {location}"))
        return done

    def adopt(self, names: Sequence[str]) -> Sequence[AdoptedTable]:
        """Their maintenance may delete the files from now on."""
        done = []
        for name, held in self._resolved(names).items():
            if changed := foreign(held.metadata):
                raise Conflict(
                    f"{name} was changed by somebody else: {changed}",
                    hint="ALTER TABLE ... UNSET TBLPROPERTIES ('gc.enabled') there, if the files are to be its own",
                )
            self._home.commit(name, held, _adopted(held), f"bridge-adopt-{uuid.uuid4().hex[:12]}")
            done.append(
                AdoptedTable(
                    name,
                    "expire_snapshots, orphan removal and DROP PURGE work there, and delete files that the source "
                    "still lists: retire the source, or expire nothing that it needs",
                )
            )
        return done

    def _resolved(self, names: Sequence[str]) -> dict[TableName, Held]:
        """The published tables that are meant; UsageError for a name that is none."""
        found: dict[TableName, Held] = {}
        for text in names:
            levels = tuple(text.split("."))
            name = TableName(levels[:-1] or ("main",), levels[-1])
            there = self._home.find(name) if all(levels) else None
            if there is None or bookmark_of(there[1].metadata) is None:
                ours = ", ".join(str(each) for each in self._home.names(name.namespace) if self._is_ours(each))
                raise UsageError(
                    f"{text} is no table that was published to {self._home.shown}",
                    hint=f"published tables of {'.'.join(name.namespace)}: {ours or 'none'}",
                )
            found[there[0]] = there[1]
        return found

    def _is_ours(self, name: TableName) -> bool:
        there = self._home.find(name)
        return there is not None and bookmark_of(there[1].metadata) is not None


def _adopted(held: Held) -> Mapping[str, Any]:
    """The document without the guard."""
    properties = {key: value for key, value in held.metadata["properties"].items() if key != GUARD}
    properties[PROPERTY] = json.dumps({**json.loads(properties[PROPERTY]), "ownership": "adopt"}, sort_keys=True)
    log = {"timestamp-ms": held.metadata["last-updated-ms"], "metadata-file": held.path}
    return {
        **held.metadata,
        "properties": properties,
        "metadata-log": [*(held.metadata.get("metadata-log") or ()), log],
    }


def open_tables(rest: str, options: Options) -> PublishedTables:
    """Those of `iceberg:DIR`."""
    return PublishedTables(Warehouse(rest))


def open_catalog_tables(rest: str, options: Options) -> PublishedTables:
    """Those of `iceberg-catalog:NAME`."""
    from converters.iceberg.catalogs.settings import read_settings
    from converters.iceberg.catalogs.writing import open_home

    return PublishedTables(open_home(read_settings(rest, options.target_options)))
