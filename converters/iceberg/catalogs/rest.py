"""REST catalogs: PyIceberg's client for authentication, prefixes and pages; the metadata is taken as it was sent."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pydantic
import requests
from pyiceberg.catalog.rest import Endpoints, RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)

from bridge.errors import Blocked, BridgeError, Missing, Unreachable, UsageError
from bridge.model.findings import Code
from bridge.model.table import TableName
from converters.iceberg.catalogs import Located, Namespace
from converters.iceberg.catalogs.settings import Settings
from converters.iceberg.catalogs.walk import walk, within

__all__ = ["RestReader"]

_CONNECT, _READ = 10.0, 60.0
_FIRST = 120.0
_DELEGATION = "x-iceberg-access-delegation"
_REFUSED = (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError)


def _bounded(session: requests.Session, seconds: float) -> requests.Session:
    """A session that waits no longer than this for an answer; requests itself waits for ever."""
    if not isinstance(session.request, functools.partial):
        bounded = functools.partial(session.request, timeout=(min(_CONNECT, seconds), seconds))
        session.request = bounded  # type: ignore[method-assign]  # whichever adapter answers
    return session


class _Client(RestCatalog):
    """PyIceberg's catalog with an end to its patience, and tables as JSON text."""

    def _create_session(self) -> requests.Session:
        return _bounded(super()._create_session(), _seconds(self.properties))

    def _create_legacy_oauth2_auth_manager(self, session: requests.Session) -> Any:
        return super()._create_legacy_oauth2_auth_manager(_bounded(session, _seconds(self.properties)))

    def _config_headers(self, session: requests.Session) -> None:
        """Credentials for the files are not asked for: they would not be used, and some servers refuse to give any."""
        super()._config_headers(session)
        if not any(key.lower() == f"header.{_DELEGATION}" for key in self.properties):
            session.headers.pop(_DELEGATION, None)

    def table_text(self, name: TableName) -> bytes:
        """What the server says of a table, byte for byte; a token that ran out is renewed once."""
        path = self._split_identifier_for_path((*name.namespace, name.name))
        url = self.url(Endpoints.load_table, prefixed=True, **path)
        answer = self._session.get(url)
        if answer.status_code in (401, 419):
            self._refresh_token()
            answer = self._session.get(url)
        try:
            answer.raise_for_status()
        except requests.HTTPError as error:
            _raise_for(error)
        return bytes(answer.content)


def _raise_for(error: requests.HTTPError) -> None:
    from pyiceberg.catalog.rest.response import _handle_non_200_response

    _handle_non_200_response(error, {404: NoSuchTableError})


def _seconds(properties: Any) -> float:
    try:
        seconds = float(properties.get("timeout", _READ))
    except (TypeError, ValueError):
        seconds = 0
    if not 0 < seconds < 86_400:
        raise UsageError("--source-option timeout is not a number of seconds")
    return seconds


class RestReader:
    """A REST catalog that told its configuration."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._gone: Unreachable | None = None
        with self._told():
            # an auth manager of its own asks for its token with no end to its patience
            self._client = within(
                _FIRST,
                settings.shown,
                lambda: _Client(settings.name, **dict(settings)),
            )

    def namespaces(self) -> Iterator[Namespace]:
        """Depth first; a namespace that cannot be listed says so and does not stop the others."""

        def below(levels: tuple[str, ...]) -> list[tuple[str, ...]]:
            with self._told():
                return [tuple(each) for each in self._client.list_namespaces(levels)]

        return walk(below, self._namespace)

    def _namespace(self, levels: tuple[str, ...]) -> Namespace:
        with self._told():
            tables = tuple(each[-1] for each in self._client.list_tables(levels))
        faults, views, properties = [], (), ()
        try:
            with self._told():
                views = tuple(each[-1] for each in self._client.list_views(levels))
        except BridgeError as error:
            faults.append(f"views: {error.message}")
        try:
            with self._told():
                properties = tuple(self._client.load_namespace_properties(levels))
        except BridgeError as error:
            faults.append(f"properties: {error.message}")
        return Namespace(levels, tables, views, (), properties, "; ".join(faults))

    def locate(self, name: TableName) -> Located:
        """The metadata file's place, and the metadata in the server's own bytes."""
        with self._told(str(name)):
            said = json.loads(self._client.table_text(name))
            if not isinstance(said, dict) or not isinstance(said.get("metadata"), dict):
                raise Blocked(
                    f"{name}: {self._settings.shown} returned no table metadata", code=Code.METADATA_UNREADABLE.text
                )
            place = said.get("metadata-location")
            return Located(str(place) if place else "", json.dumps(said["metadata"]).encode())

    @contextmanager
    def _told(self, what: str = "") -> Iterator[None]:
        """PyIceberg's and requests' errors as ours, without a secret."""
        place, said = self._settings.shown, f"{what}: " if what else ""
        if self._gone is not None:
            raise self._gone
        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise Missing(f"{said or place + ': '}it is not in the catalog: {self._settings.public(error)}") from error
        except _REFUSED as error:
            raise Unreachable(
                f"{said}{place} refused access: {self._settings.public(error)}",
                hint="give it a token or credential: PYICEBERG_CATALOG__NAME__TOKEN, __CREDENTIAL, or --source-option",
            ) from None
        except requests.Timeout as error:
            self._gone = Unreachable(f"{place} did not answer in time, it was not asked again", retryable=True)
            raise Unreachable(f"{said}{place} did not answer in time", retryable=True) from error
        except requests.exceptions.SSLError as error:
            raise Unreachable(f"{said}{place}: {self._settings.public(error)}", hint="look at ssl.cabundle") from error
        except (requests.exceptions.MissingSchema, requests.exceptions.InvalidURL) as error:
            raise UsageError(f"{place} has no usable uri", hint="it begins with http:// or https://") from error
        except requests.JSONDecodeError as error:
            raise Unreachable(f"{said}{place} does not answer as an Iceberg REST catalog") from error
        except requests.HTTPError as error:
            code = getattr(error.response, "status_code", "an error")
            raise Unreachable(f"{said}{place} could not be asked: HTTP {code}") from error
        except requests.RequestException as error:
            raise Unreachable(f"{said}{place} cannot be reached: {self._settings.public(error)}") from error
        except RESTError as error:
            raise Unreachable(f"{said}{place} failed: {self._settings.public(error)}", retryable=True) from error
        except (pydantic.ValidationError, json.JSONDecodeError) as error:
            raise Unreachable(f"{said}{place} does not answer as an Iceberg REST catalog") from error
        except NotImplementedError as error:
            raise Unreachable(f"{said}{place}: {self._settings.public(error)}") from error
        except (ImportError, ModuleNotFoundError) as error:
            raise UsageError(f"{place} needs a package: {self._settings.public(error)}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{place} is not configured as PyIceberg needs: {self._settings.public(error)}") from None
