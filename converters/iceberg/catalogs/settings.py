"""What is configured for a catalog, as PyIceberg finds it, and how to say something of it without its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import strictyaml

from bridge.errors import UsageError

__all__ = ["Settings", "read_settings"]

_PLAIN = frozenset({"type", "uri", "warehouse", "prefix", "scope", "region", "timeout"})
_SHORTEST = 4
_LONGEST = 300
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+")
_USERINFO = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_HOW = (
    "put it into .pyiceberg.yaml (catalog: NAME: uri: ...), set PYICEBERG_CATALOG__NAME__URI, or give "
    "--source-option uri=..."
)


class Settings(Mapping[str, Any]):
    """The settings of one catalog. Their text is the name alone: values may be credentials."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self._values = dict(values)
        self._secrets = sorted(set(_secrets(self._values)), key=len, reverse=True)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Settings({self.name!r})"

    @property
    def uri(self) -> str:
        return str(self.get("uri", ""))

    @property
    def shown(self) -> str:
        """The catalog for people: its name and, without user and password, where it is."""
        return f"catalog {self.name}" + (f" at {self.public(_bare(self.uri))}" if self.uri else "")

    def public(self, text: object) -> str:
        """One line of a text from outside, without anything that was configured as a secret."""
        line = " ".join(str(text).split())
        for secret in self._secrets:
            line = line.replace(secret, "***")
        line = _USERINFO.sub(r"\1:***@", _BEARER.sub(r"\1 ***", line))
        return line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."


def _bare(uri: str) -> str:
    """An address without user, password and query; of several, each."""

    def one(text: str) -> str:
        parts = urlsplit(text)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    return ",".join(one(each) for each in uri.split(",")) if "://" in uri else uri


def _secrets(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _secrets({inner: each for inner, each in value.items() if inner != "type"})
        elif key == "uri":
            yield from _in_uri(str(value))
        elif key not in _PLAIN and value is not None:
            parts = (str(value), *str(value).split(":")) if key == "credential" else (str(value),)
            yield from (each for each in parts if len(each) >= _SHORTEST and each.lower() not in ("true", "false"))


def _in_uri(uri: str) -> Iterator[str]:
    for each in uri.split(","):
        try:
            parts = urlsplit(each)
        except ValueError:
            continue
        if parts.password:
            yield from {parts.password, unquote(parts.password)}
        yield from (value for _, _, value in (pair.partition("=") for pair in parts.query.split("&")) if len(value) > 7)


def read_settings(name: str, given: Sequence[tuple[str, str]]) -> Settings:
    """The settings of a catalog: PyIceberg's file and variables, then what was given with --source-option.

    UsageError says what is configured when there is nothing under that name.
    """
    from pyiceberg.utils.config import Config, merge_config

    try:
        config = Config()
        stored, known = config.get_catalog_config(name), config.get_known_catalogs()
    except (strictyaml.StrictYAMLError, ValueError, OSError) as error:
        kind = "is not what PyIceberg reads" if isinstance(error, strictyaml.StrictYAMLError) else "cannot be used"
        raise UsageError(
            f"the configuration of PyIceberg {kind}", hint="look at .pyiceberg.yaml and at PYICEBERG_*"
        ) from None
    if stored is None and not given:
        listed = f"configured: {', '.join(sorted(known))}" if known else "no catalog is configured"
        raise UsageError(f"catalog {name} is not configured", hint=f"{listed}; {_HOW.replace('NAME', name)}")
    found = Settings(name, merge_config(stored or {}, _nested(given)))
    if not found.uri and "type" not in found and "py-catalog-impl" not in found:
        raise UsageError(f"catalog {name} has no uri", hint=_HOW.replace("NAME", name))
    return found


def _nested(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """`auth.oauth2.client_id=x` as PyIceberg holds it; only these settings have levels."""
    made: dict[str, Any] = {}
    for key, value in given:
        levels = key.split(".") if key.split(".")[0] in ("auth", "ssl") else [key]
        here = made
        for level in levels[:-1]:
            here = here.setdefault(level, {})
            if not isinstance(here, dict):
                raise UsageError(f"--source-option {key} lies in a setting that has a value of its own")
        here[levels[-1]] = value
    return made
