"""SQL catalogs as a target: a table's row changes from one metadata file to the next only if it still names the first.

PyIceberg's own SqlCatalog writes no format 3; the compare-and-swap here is the statement that it and Iceberg Java make.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from bridge.errors import Conflict, Overtaken, Undecided, Unreachable, UsageError
from bridge.model.paths import is_within, normalise
from bridge.model.table import TableName
from converters import storage
from converters.iceberg.catalogs.settings import Settings
from converters.iceberg.catalogs.sql import MARK, PROPERTIES, TABLES, failure
from converters.iceberg.warehouse import Held, document, load, remove_metadata, withdraw

__all__ = ["SqlHome"]


class SqlHome:
    """A catalog in a database, and the warehouse directory where its new tables lie."""

    is_exclusive = True
    replaces = True

    def __init__(self, settings: Settings) -> None:
        warehouse = str(settings.get("warehouse", ""))
        if not warehouse:
            raise UsageError(
                f"{settings.shown} has no warehouse", hint="configure it, or give --target-option warehouse=DIR"
            )
        self._settings = settings
        self._warehouse = storage.absolute(warehouse).rstrip("/")
        url = sa.engine.make_url(settings.uri)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        try:
            self._engine = sa.create_engine(url, poolclass=NullPool)
        except ModuleNotFoundError as error:
            raise UsageError(f"{settings.shown} needs the package {error.name}", hint="install it") from error
        with self._asked() as connection:
            inspector = sa.inspect(connection)
            missing = not all(inspector.has_table(each.name) for each in (TABLES, PROPERTIES))
            columns = [] if missing else [each["name"] for each in inspector.get_columns(TABLES.name)]
        self._has_types = "iceberg_type" in columns
        if missing:
            self._create()

    def _create(self) -> None:
        """The tables of a new catalog, as PyIceberg makes them."""
        from pyiceberg.catalog.sql import SqlCatalog

        SqlCatalog(self._settings.name, **dict(self._settings)).engine.dispose()

    @property
    def shown(self) -> str:
        return self._settings.shown

    def _is(self, name: TableName) -> Any:
        return sa.and_(
            TABLES.c.catalog_name == self._settings.name,
            TABLES.c.table_namespace == ".".join(name.namespace),
            TABLES.c.table_name == name.name,
        )

    def find(self, name: TableName) -> tuple[TableName, Held] | None:
        """The row of the name, or one that differs in case alone."""
        query = sa.select(TABLES.c.table_namespace, TABLES.c.table_name, TABLES.c.metadata_location)
        with self._asked() as connection:
            rows = connection.execute(query.where(self._is(name))).all()
            if not rows:
                every = connection.execute(query.where(TABLES.c.catalog_name == self._settings.name))
                wanted = ".".join(name.namespace).casefold(), name.name.casefold()
                rows = [each for each in every if (each[0].casefold(), each[1].casefold()) == wanted]
        if not rows:
            return None
        namespace, table, place = rows[0]
        path = normalise(place)
        levels = tuple(namespace.split(".")) if namespace else ()
        return TableName(levels, table), Held(path, load(path))

    def names(self, namespace: tuple[str, ...]) -> Sequence[TableName]:
        """The rows of a namespace."""
        query = sa.select(TABLES.c.table_name).where(
            TABLES.c.catalog_name == self._settings.name, TABLES.c.table_namespace == ".".join(namespace)
        )
        with self._asked() as connection:
            return [TableName(namespace, each) for each in sorted(connection.execute(query).scalars())]

    def every(self) -> Sequence[TableName]:
        """The rows of the catalog."""
        query = sa.select(TABLES.c.table_namespace, TABLES.c.table_name).where(
            TABLES.c.catalog_name == self._settings.name
        )
        with self._asked() as connection:
            rows = sorted(tuple(row) for row in connection.execute(query))
        return [TableName(tuple(namespace.split(".")), name) for namespace, name in rows]

    def location(self, name: TableName) -> str:
        """WAREHOUSE/namespace/table."""
        return "/".join((self._warehouse, *name.namespace, name.name))

    def commit(self, name: TableName, held: Held | None, metadata: Mapping[str, Any], mark: str) -> str:
        """A new metadata file, then the row."""
        number = len(metadata.get("metadata-log") or ())
        path = f"{metadata['location']}/metadata/{number:05}-{uuid.uuid4()}.metadata.json"
        storage.write(path, document(metadata), f".{mark}.tmp")
        try:
            self._swap(name, held, path)
        except BaseException as error:
            # a server whose connection was lost may have committed, or be about to
            if isinstance(error, Conflict) or self._engine.url.get_backend_name() == "sqlite":
                withdraw(self, name, path)
            elif isinstance(error, Unreachable):
                raise Undecided(error.message, hint=error.hint, retryable=error.retryable) from error
            raise
        return path

    def settle(self, name: TableName, held: Held) -> None:
        """A commit is one step."""

    def forget(self, name: TableName, held: Held) -> None:
        """The row goes, then the files that it led to."""
        log = [str(each["metadata-file"]) for each in held.metadata.get("metadata-log") or ()]
        with self._asked() as connection, connection.begin():
            places = connection.scalars(sa.select(TABLES.c.metadata_location).where(self._is(name))).all()
            stored = next((each for each in places if normalise(each) == held.path), held.path)
            gone = connection.execute(
                sa.delete(TABLES).where(self._is(name), TABLES.c.metadata_location == stored)
            ).rowcount
        if gone != 1:
            raise Overtaken(f"{name} in {self.shown} changed meanwhile", hint="run it again")
        location = str(held.metadata["location"])
        storage.parallel(storage.remove, [each for each in (*log, held.path) if is_within(each, location)])
        remove_metadata(location)

    def _swap(self, name: TableName, held: Held | None, path: str) -> None:
        namespace = ".".join(name.namespace)
        with self._asked() as connection, connection.begin():
            if held is None:
                self._declare(connection, namespace)
                row = {
                    "catalog_name": self._settings.name,
                    "table_namespace": namespace,
                    "table_name": name.name,
                    "metadata_location": path,
                }
                if self._has_types:
                    row["iceberg_type"] = "TABLE"
                try:
                    connection.execute(sa.insert(TABLES).values(**row))
                except sa.exc.IntegrityError as error:
                    raise Overtaken(f"{name} was created in {self.shown} meanwhile", hint="run it again") from error
                return
            places = connection.scalars(sa.select(TABLES.c.metadata_location).where(self._is(name))).all()
            stored = next((each for each in places if normalise(each) == held.path), None)
            done = connection.execute(
                sa.update(TABLES)
                .where(self._is(name), TABLES.c.metadata_location == (stored or held.path))
                .values(metadata_location=path, previous_metadata_location=stored or held.path)
            )
            if done.rowcount != 1:
                there = load(normalise(places[0])).get("current-snapshot-id") if places else "none"
                raise Overtaken(f"{name} in {self.shown} got snapshot {there} meanwhile", hint="run it again")

    def _declare(self, connection: sa.Connection, namespace: str) -> None:
        own = sa.and_(PROPERTIES.c.catalog_name == self._settings.name, PROPERTIES.c.namespace == namespace)
        if connection.execute(sa.select(PROPERTIES.c.namespace).where(own).limit(1)).first() is None:
            row = {"namespace": namespace, "property_key": MARK, "property_value": "true"}
            connection.execute(sa.insert(PROPERTIES).values(catalog_name=self._settings.name, **row))

    @contextmanager
    def _asked(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise failure(self._settings, error, "used") from None
