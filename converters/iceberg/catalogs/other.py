"""Every other catalog that PyIceberg knows (Glue, DynamoDB, BigQuery, classes of one's own), through its own model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError

from bridge.errors import BridgeError, Missing, Unreachable, UsageError
from bridge.model.table import TableName
from converters.iceberg.catalogs import Located, Namespace
from converters.iceberg.catalogs.settings import Settings
from converters.iceberg.catalogs.walk import walk, within

__all__ = ["OtherReader"]

_SECONDS = 120.0

Result = TypeVar("Result")


class OtherReader:
    """A catalog as PyIceberg opens it."""

    def __init__(self, settings: Settings) -> None:
        from pyiceberg.catalog import load_catalog

        self._settings = settings
        given = cast(dict[str, str | None], dict(settings))
        self._catalog = self._ask(lambda: load_catalog(settings.name, **given))

    def namespaces(self) -> Iterator[Namespace]:
        """Depth first."""
        return walk(lambda levels: self._ask(lambda: list(self._catalog.list_namespaces(levels))), self._namespace)

    def _namespace(self, levels: tuple[str, ...]) -> Namespace:
        tables = self._ask(lambda: [each[-1] for each in self._catalog.list_tables(levels)])
        views, fault = list[str](), ""
        try:
            views = self._ask(lambda: [each[-1] for each in self._catalog.list_views(levels)])
        except NotImplementedError:
            fault = ""  # this kind of catalog has no views to PyIceberg
        except BridgeError as error:
            fault = f"views: {error.message}"
        properties = self._ask(lambda: list(self._catalog.load_namespace_properties(levels)))
        return Namespace(levels, tuple(tables), tuple(views), (), tuple(properties), fault)

    def locate(self, name: TableName) -> Located:
        """The place that PyIceberg tells once it has read the metadata itself."""
        return Located(self._ask(lambda: self._catalog.load_table((*name.namespace, name.name)).metadata_location))

    def _ask(self, question: Callable[[], Result]) -> Result:
        place = self._settings.shown
        try:
            return within(_SECONDS, place, question)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise Missing(f"{place}: {self._settings.public(error)}") from error
        except NotInstalledError as error:
            raise UsageError(f"{place}: {self._settings.public(error)}", hint="install what it names") from error
        except (BridgeError, NotImplementedError):
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{place} is not configured as PyIceberg needs: {self._settings.public(error)}") from None
        except Exception as error:  # noqa: BLE001  # each kind of catalog raises its own client's errors
            raise Unreachable(f"{place} cannot be read: {self._settings.public(error)}") from None
