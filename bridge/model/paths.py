"""Paths as text: one normal form, and prefixes that have moved. Nothing here touches a file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from bridge.errors import UsageError

__all__ = ["PathMap", "apply_map", "is_absolute", "is_within", "normalise", "parse_prefix", "scheme"]

_FILE = re.compile(r"^file:(?:///+|//localhost/+|/)([^/])", re.IGNORECASE)
_S3 = re.compile(r"^s3[an]?://", re.IGNORECASE)
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_SPLIT = re.compile(r"=(?=/|\.|[A-Za-z][A-Za-z0-9+.-]*:/)")


def normalise(path: str) -> str:
    """`file:` forms become plain absolute paths, s3a and s3n become s3; nothing is decoded, names are literal."""
    if _FILE.match(path):
        return _FILE.sub(r"/\1", path, count=1)
    return _S3.sub("s3://", path, count=1)


def scheme(path: str) -> str:
    """The scheme in lower case, empty for a plain path."""
    found = _SCHEME.match(path)
    return found.group(1).lower() if found else ""


def is_absolute(path: str) -> bool:
    """True when the path means the same from every working directory."""
    return path.startswith("/") or bool(_SCHEME.match(path))


@dataclass(frozen=True, slots=True)
class PathMap:
    """Pairs of a stored path prefix and where it is now; the longest that ends at a segment boundary wins."""

    prefixes: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        pairs = tuple((normalise(old).rstrip("/"), _absolute(new)) for old, new in self.prefixes)
        object.__setattr__(self, "prefixes", pairs)


def _absolute(path: str) -> str:
    path = normalise(path)
    return (path if is_absolute(path) else os.path.abspath(path)).rstrip("/")


def parse_prefix(text: str) -> tuple[str, str]:
    """`OLD=NEW` of --map-prefix: split at the first `=` that a path or scheme follows."""
    found = _SPLIT.search(text)
    old, new = (
        (text[: found.start()], text[found.end() :]) if found else text.split("=", 1) if "=" in text else ("", "")
    )
    if not old or not new:
        raise UsageError(f"--map-prefix {text!r} is not OLD=NEW")
    return old, new


def apply_map(path: str, path_map: PathMap) -> str:
    """The path after normalising and replacing its longest mapped prefix."""
    path = normalise(path)
    for old, new in sorted(path_map.prefixes, key=lambda pair: -len(pair[0])):
        if path == old or path.startswith(old + "/"):
            return new + path[len(old) :]
    return path


def is_within(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies below it, after resolving symlinks of local paths."""

    def resolved(text: str) -> str:
        text = normalise(text)
        return text.rstrip("/") if scheme(text) else os.path.realpath(text)

    inner, outer = resolved(path), resolved(directory)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")
