"""Which kind of catalog tables are published to."""

from __future__ import annotations

from bridge.errors import UsageError
from converters.iceberg.catalogs.settings import Settings
from converters.iceberg.warehouse import Home

__all__ = ["open_home"]


def open_home(settings: Settings) -> Home:
    """The catalog as a home of tables; SQL and REST are built."""
    kind = str(settings.get("type", "")).lower()
    if not kind:
        kind = "rest" if settings.uri.startswith(("http://", "https://")) else "sql"
    match kind:
        case "sql":
            from converters.iceberg.catalogs.sql_writing import SqlHome

            return SqlHome(settings)
        case "rest":
            from converters.iceberg.catalogs.rest_writing import RestHome

            return RestHome(settings)
        case _:
            raise UsageError(
                f"{settings.shown} is of type {kind}, to which nothing is published yet", hint="built: sql and rest"
            )
