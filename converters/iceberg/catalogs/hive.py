"""Hive metastores over thrift: PyIceberg's client, asked for table objects so that what is no Iceberg table is told."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bridge.errors import Blocked, BridgeError, Missing, Unreachable, UsageError
from bridge.model.findings import Code
from bridge.model.table import TableName
from converters.iceberg.catalogs import Located, Namespace
from converters.iceberg.catalogs.settings import Settings
from converters.iceberg.catalogs.walk import within

__all__ = ["HiveReader"]

_SECONDS = 60.0
_CONNECTING = 15.0
_TOGETHER = 300
_SHOWN_TYPE = 40

Result = TypeVar("Result")


class HiveReader:
    """A metastore; each question is a connection of its own, to the first of its addresses that answers."""

    def __init__(self, settings: Settings) -> None:
        try:
            from pyiceberg.catalog.hive import HiveCatalog
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{settings.shown} needs the package {error.name}", hint="pip install 'ducklake-bridge[hive]'"
            ) from error
        self._settings = settings
        self._gone: BridgeError | None = None
        self._connect: Callable[[str], Any] = lambda uri: HiveCatalog._create_hive_client({**settings, "uri": uri})
        uris = [each.strip() for each in settings.uri.split(",") if each.strip()]
        for place, uri in enumerate(uris):
            if not uri.startswith("thrift://"):
                raise UsageError(f"{settings.shown}: an address begins with thrift://", hint="thrift://HOST:PORT")
            self._uri = uri
            try:
                self._databases = self._ask(lambda client: list(client.get_all_databases()), _CONNECTING)
                return
            except Unreachable:
                if place == len(uris) - 1:
                    raise
                self._gone = None

    def namespaces(self) -> Iterator[Namespace]:
        """Databases; they do not nest."""
        for name in sorted(self._databases):
            try:
                yield self._namespace(name)
            except BridgeError as error:
                yield Namespace((name,), fault=error.message)

    def _namespace(self, database: str) -> Namespace:
        names = self._ask(lambda client: list(client.get_all_tables(db_name=database)))
        tables, views, others = [], [], []
        for start in range(0, len(names), _TOGETHER):
            some = names[start : start + _TOGETHER]
            for each in self._ask(functools.partial(_objects, database, some)):
                kind = _kind(each)
                if kind == "iceberg":
                    tables.append(str(each.tableName))
                elif kind == "view":
                    views.append(str(each.tableName))
                else:
                    others.append((str(each.tableName), kind))
        about = self._ask(lambda client: client.get_database(name=database))
        keys = sorted({*(about.parameters or {}), *(["comment"] if about.description else []), "location"})
        return Namespace((database,), tuple(tables), tuple(views), tuple(others), tuple(keys))

    def locate(self, name: TableName) -> Located:
        """The place in the table's parameters."""
        if len(name.namespace) != 1:
            raise Missing(f"{name}: it is not in {self._settings.shown}")
        found = self._ask(lambda client: client.get_table(dbname=name.namespace[0], tbl_name=name.name), what=str(name))
        place = (found.parameters or {}).get("metadata_location")
        if _kind(found) != "iceberg" or not place:
            raise Blocked(
                f"{name}: {self._settings.shown} has no Iceberg metadata location for it",
                code=Code.METADATA_UNREADABLE.text,
            )
        return Located(str(place))

    def _ask(self, question: Callable[[Any], Result], seconds: float = _SECONDS, what: str = "") -> Result:
        """An answer, or what went wrong as an error of ours; a metastore that does not answer is not asked again."""
        from hive_metastore.ttypes import MetaException, NoSuchObjectException
        from thrift.Thrift import TException

        if self._gone is not None:
            raise self._gone
        place, said = self._settings.shown, f"{what}: " if what else ""

        def work() -> Result:
            with self._connect(self._uri) as client:
                return question(client)

        try:
            return within(seconds, place, work)
        except NoSuchObjectException as error:
            raise Missing(f"{said}it is not in {place}: {self._settings.public(error.message)}") from error
        except MetaException as error:
            raise Unreachable(f"{said}{place} failed: {self._settings.public(error.message)}") from error
        except (TException, OSError, EOFError) as error:
            self._gone = Unreachable(f"{place} cannot be reached: {self._settings.public(error)}", retryable=True)
            raise self._gone from error
        except Unreachable as error:
            self._gone = error
            raise
        except ImportError as error:
            raise UsageError(
                f"{place} needs a package: {self._settings.public(error)}",
                hint="pip install 'pyiceberg[hive-kerberos]'",
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{place} is not configured as PyIceberg needs: {self._settings.public(error)}") from error


def _objects(database: str, names: list[str], client: Any) -> list[Any]:
    return list(client.get_table_objects_by_name(dbname=database, tbl_names=names))


def _kind(table: Any) -> str:
    """`iceberg`, `view`, or in a few words what else it is."""
    parameters = {str(key).lower(): str(value) for key, value in (table.parameters or {}).items()}
    declared = parameters.get("table_type", "").lower()
    if declared == "iceberg":
        return "iceberg"
    if declared == "iceberg-view" or str(table.tableType or "").upper().endswith("VIEW"):
        return "view"
    provider = parameters.get("spark.sql.sources.provider") or declared
    descriptor = table.sd
    library = getattr(getattr(descriptor, "serdeInfo", None), "serializationLib", "") or ""
    return (provider or library.rsplit(".", 1)[-1] or "unknown")[:_SHOWN_TYPE]
