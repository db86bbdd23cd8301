"""Connection strings of PostgreSQL and their secrets: what may be shown, and what must not.

The grammar is libpq's: `key=value` pairs (values quoted by ' and escaped by \\), or a postgresql:// URI.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

__all__ = ["Secrets", "joined", "names_secret", "quoted", "scrubbed", "shown", "split"]

Secrets = tuple[tuple[str, str], ...]
"""Names and values of the parameters that are secret."""

_SECRET = frozenset({"password", "sslpassword", "oauth_client_secret"})
_PAIR = re.compile(r"\s*([^\s=]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?!')(?:[^\s\\]|\\.)*)\s*", re.DOTALL | re.ASCII)
_URI = ("postgresql://", "postgres://")
_LOCATOR = re.compile(r"((?:ducklake:)?(?:postgres(?:ql)?:(?!//))?)(.*)", re.DOTALL)
_ASSIGNED = re.compile(
    r"(?i)(\w*(?:password|secret|token|credential|(?:access|account)_?key)\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)"
)
_TOLD = re.compile(r"token|credential|secret|passw|connection.string|(?:^|[^a-z])(?:\w*key|pwd|sig)(?:$|[^a-z])")
_REFERS = re.compile(r"[._-](?:env|enabled|uri|url|endpoint|path|file|type|name|expires.at.*)$")
_IN_URI = re.compile(r"(?i)(postgres(?:ql)?://[^\s:/@?]*):[^\s@]*@")
_IN_ANY = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s:/@?]*):[^\s/@]*@")


def split(connection: str) -> tuple[str, Secrets]:
    """(the connection string without its secrets, the secrets); ValueError when it cannot be read."""
    return _split_uri(connection) if connection.startswith(_URI) else _split_pairs(connection)


def _split_pairs(text: str) -> tuple[str, Secrets]:
    kept: list[str] = []
    secrets: dict[str, str] = {}
    at = len(text) - len(text.lstrip())
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            raise ValueError("not a list of key=value pairs")
        at = found.end()
        key, value = found.groups()
        if key.casefold() in _SECRET:
            bare = value[1:-1] if value.startswith("'") else value
            secrets[key.casefold()] = re.sub(r"\\(.)", r"\1", bare, flags=re.DOTALL)
        else:
            kept.append(found.group().strip())
    return " ".join(kept), tuple(secrets.items())


def _split_uri(text: str) -> tuple[str, Secrets]:
    """As libpq: what stands before an @ is name and password, if no / comes first. A second @ could be a password's."""
    scheme, _, rest = text.partition("://")
    secrets: dict[str, str] = {}
    user, at, host = rest.partition("@")
    if at and ("@" in host or "/" in user):
        raise ValueError("@ or / in a name or password is not percent-encoded")
    if at:
        user, colon, password = user.partition(":")
        if colon:
            secrets["password"] = unquote(password.strip())
        rest = f"{user}@{host}" if user else host
    place, question, query = rest.partition("?")
    kept = []
    for pair in query.split("&") if query else ():
        key, _, value = pair.partition("=")
        if unquote(key).strip().casefold() in _SECRET:
            secrets[unquote(key).strip().casefold()] = unquote(value.strip())
        else:
            kept.append(pair)
    return f"{scheme}://{place}{question if kept else ''}{'&'.join(kept)}", tuple(secrets.items())


def joined(connection: str, secrets: Sequence[tuple[str, str]]) -> str:
    """A connection string with secrets added to it."""
    for key, value in secrets:
        if connection.startswith(_URI):
            connection += f"{'&' if '?' in connection else '?'}{key}={quote(value, safe='')}"
        else:
            connection = f"{connection} {key}={quoted(value)}".lstrip()
    return connection


def quoted(value: str) -> str:
    """A value of a `key=value` pair as it is whatever stands in it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def names_secret(key: str) -> bool:
    """Whether a setting's value is a credential, by its name: s3.secret-access-key is one, key_env only names one."""
    key = key.strip().casefold()
    return bool(_TOLD.search(key)) and not _REFERS.search(key)


def shown(locator: str) -> str:
    """A locator as it may be printed."""
    found = _LOCATOR.fullmatch(locator)
    if found is None or not (found.group(1).endswith(("postgres:", "postgresql:")) or found.group(2).startswith(_URI)):
        return scrubbed(locator)
    try:
        return found.group(1) + split(found.group(2))[0]
    except ValueError:
        return found.group(1) + "..."


def scrubbed(text: str) -> str:
    """A text with what looks like a secret in it blotted out: the last defence of what is printed."""
    return _IN_ANY.sub(r"\1@", _IN_URI.sub(r"\1@", _ASSIGNED.sub(r"\1***", text)))
