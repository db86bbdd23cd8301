"""SQL catalogs (JDBC): the two tables that Iceberg Java and PyIceberg share, read and never written.

PyIceberg's own SqlCatalog creates missing tables and files, may alter them, and does not tell of views.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from bridge.errors import Blocked, BridgeError, Missing, Overtaken, Unreachable, UsageError
from bridge.model.findings import Code
from bridge.model.table import TableName
from converters.iceberg.catalogs import Located, Namespace
from converters.iceberg.catalogs.settings import Settings

__all__ = ["MARK", "PROPERTIES", "TABLES", "SqlReader", "failure"]

TABLES = sa.table(
    "iceberg_tables",
    sa.column("catalog_name", sa.String),
    sa.column("table_namespace", sa.String),
    sa.column("table_name", sa.String),
    sa.column("metadata_location", sa.String),
    sa.column("previous_metadata_location", sa.String),
    sa.column("iceberg_type", sa.String),
)
PROPERTIES = sa.table(
    "iceberg_namespace_properties",
    sa.column("catalog_name", sa.String),
    sa.column("namespace", sa.String),
    sa.column("property_key", sa.String),
    sa.column("property_value", sa.String),
)
MARK = "exists"
"""What Iceberg stores of a namespace without properties."""
_HELD = ("SQLITE_BUSY", "SQLITE_LOCKED", "55P03", "40001", "40P01")
_PATIENCE = 10
_STATEMENT = "60s"


class SqlReader:
    """A catalog in a database; each question is a session of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = _engine(settings)
        with self._asked() as connection:
            inspector = sa.inspect(connection)
            missing = [each.name for each in (TABLES, PROPERTIES) if not inspector.has_table(each.name)]
            if TABLES.name in missing:
                raise Unreachable(f"{settings.shown} holds no Iceberg catalog: it has no table {TABLES.name}")
            self._has_properties = PROPERTIES.name not in missing
            self._has_types = "iceberg_type" in {each["name"] for each in inspector.get_columns(TABLES.name)}
            names = set(connection.scalars(sa.select(TABLES.c.catalog_name).distinct()))
            if self._has_properties:
                names |= set(connection.scalars(sa.select(PROPERTIES.c.catalog_name).distinct()))
        if names and settings.name not in names:
            raise UsageError(
                f"the database of {settings.shown} holds no catalog of that name",
                hint=f"its catalogs are {', '.join(sorted(map(str, names)))}: write iceberg-catalog:{min(names)}",
            )

    def namespaces(self) -> Iterator[Namespace]:
        """Every namespace that has a table, a view or a property; dots part the levels, as Iceberg stores them."""
        kind = TABLES.c.iceberg_type if self._has_types else sa.null()
        query = sa.select(TABLES.c.table_namespace, TABLES.c.table_name, kind).where(
            TABLES.c.catalog_name == self._settings.name
        )
        tables: dict[str, list[str]] = {}
        views: dict[str, list[str]] = {}
        keys: dict[str, list[str]] = {}
        with self._asked() as connection:
            for namespace, name, type_ in connection.execute(query):
                (views if type_ == "VIEW" else tables).setdefault(namespace, []).append(name)
            if self._has_properties:
                own = PROPERTIES.c.catalog_name == self._settings.name
                listed = sa.select(PROPERTIES.c.namespace, PROPERTIES.c.property_key).where(own)
                for namespace, key in connection.execute(listed):
                    found = keys.setdefault(namespace, [])
                    if key != MARK:
                        found.append(key)
        for namespace in sorted({*tables, *views, *keys}):
            levels = tuple(namespace.split(".")) if namespace else ()
            yield Namespace(
                levels,
                tuple(sorted(tables.get(namespace, ()))),
                tuple(sorted(views.get(namespace, ()))),
                (),
                tuple(sorted(keys.get(namespace, ()))),
            )

    def locate(self, name: TableName) -> Located:
        """The place in the table's row."""
        query = sa.select(TABLES.c.metadata_location).where(
            TABLES.c.catalog_name == self._settings.name,
            TABLES.c.table_namespace == ".".join(name.namespace),
            TABLES.c.table_name == name.name,
        )
        with self._asked() as connection:
            rows = connection.scalars(query).all()
        if not rows:
            raise Missing(f"{name}: it is not in {self._settings.shown}")
        if not rows[0]:
            raise Blocked(
                f"{name}: {self._settings.shown} has no metadata location for it", code=Code.METADATA_UNREADABLE.text
            )
        return Located(str(rows[0]))

    @contextmanager
    def _asked(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                if connection.dialect.name == "postgresql":
                    connection.execute(sa.text(f"SET LOCAL statement_timeout = '{_STATEMENT}'"))
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise failure(self._settings, error, "read") from None


def failure(settings: Settings, error: Exception, what: str) -> BridgeError:
    """What a database's exception means: a lock that somebody else has passes by itself."""
    cause = getattr(error, "orig", None) or error
    told = settings.public(cause)
    code = getattr(cause, "sqlite_errorname", "") or str(getattr(cause, "sqlstate", None) or "")
    if code.startswith(_HELD):
        return Overtaken(f"{settings.shown} is held by another process: {told}", hint="let it end, then run it again")
    return Unreachable(f"{settings.shown} cannot be {what}: {told}", hint="look at its uri, user and password")


def _engine(settings: Settings) -> sa.Engine:
    try:
        url = _read_only(sa.engine.make_url(settings.uri), settings)
        return sa.create_engine(url, poolclass=NullPool, connect_args=_arguments(url))
    except sa.exc.NoSuchModuleError as error:
        raise UsageError(
            f"{settings.shown}: {settings.public(error)}", hint="write sqlite:/// or postgresql://"
        ) from None
    except sa.exc.ArgumentError:
        raise UsageError(
            f"the uri of catalog {settings.name} is not a database's", hint="write sqlite:///FILE"
        ) from None
    except ModuleNotFoundError as error:
        extra = "postgres" if error.name == "psycopg" else ""
        hint = f"pip install 'ducklake-bridge[{extra}]'" if extra else f"pip install {error.name}"
        raise UsageError(f"{settings.shown} needs the package {error.name}", hint=hint) from error


def _read_only(url: sa.URL, settings: Settings) -> sa.URL:
    """PostgreSQL through the driver that our extra brings; SQLite files opened without creating or changing them."""
    name = url.drivername
    if name == "postgresql" or (name == "postgresql+psycopg2" and importlib.util.find_spec("psycopg2") is None):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite" or url.query.get("uri") == "true":
        return url
    path = url.database or ""
    if path in ("", ":memory:"):
        raise UsageError(f"catalog {settings.name} is a SQLite database in memory", hint="give its file")
    if not os.path.isfile(path):
        raise Unreachable(f"{settings.shown} is not there: no file {path}", hint="check the uri")
    text = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return url.set(database=f"file:{text}", query={**url.query, "mode": "ro", "uri": "true"})


def _arguments(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "postgresql" and "connect_timeout" not in url.query:
        return {"connect_timeout": _PATIENCE}
    return {}
