"""Values that stand elsewhere, in the environment or in a file: what refers to them may be shown to anybody."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from urllib.parse import quote

from bridge.errors import UsageError
from bridge.model.secrets import quoted, scrubbed, split

__all__ = ["Hidden", "expanded", "from_environment", "from_file", "holds_secret"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_POSTGRES = re.compile(r"(ducklake:(?:postgres|postgresql):)(.*)", re.DOTALL)
_LARGEST = 1 << 16
_SHORTEST = 4


class Hidden:
    """The secrets of a run; no text that leaves it shows one of them."""

    def __init__(self) -> None:
        self._values: list[str] = []

    def add(self, value: str) -> None:
        """One more; what is shorter than four characters is no secret, and would blot out half of every text."""
        for each in (value, quote(value, safe="")):
            if len(value) >= _SHORTEST and each not in self._values:
                self._values.append(each)
        self._values.sort(key=len, reverse=True)

    def learn(self, locator: str) -> None:
        """The passwords of a locator."""
        found = _POSTGRES.fullmatch(locator)
        with contextlib.suppress(ValueError):
            for _, value in split(found.group(2))[1] if found else ():
                self.add(value)

    def blot(self, text: str) -> str:
        """The text without them."""
        for each in self._values:
            text = text.replace(each, "***")
        return scrubbed(text)


def from_environment(name: str, environment: Mapping[str, str]) -> str:
    """The value of a variable."""
    if not _NAME.fullmatch(name):
        raise UsageError("this is not the name of an environment variable")
    if not (value := environment.get(name, "")):
        raise UsageError(f"the environment variable {name} is not set, or empty")
    return value


def from_file(path: str) -> str:
    """What a file holds, without the line end behind it."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is not a file")
    try:
        with open(path, encoding="utf-8", newline="") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        said = (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the file {path} cannot be read: {said}") from error
    value = content.removesuffix("\n").removesuffix("\r")
    if not value or len(content) > _LARGEST:
        raise UsageError(f"the file {path} is {'larger than a secret' if value else 'empty'}")
    return value


def holds_secret(template: str) -> bool:
    """Whether a text holds a credential itself, and not a reference to one."""
    found = _POSTGRES.fullmatch(template)
    if found:
        try:
            return any(not _REFERENCE.fullmatch(value) for _, value in split(found.group(2))[1])
        except ValueError:
            pass
    bare = re.sub(r"[\w-]*\s*=\s*\$\{\w+\}|:\$\{\w+\}@", "", template)
    return scrubbed(bare) != bare


def expanded(locator: str, environment: Mapping[str, str]) -> str:
    """A locator with the variables in it, each written as its place wants it: `password=${NAME}` takes any password."""
    found = _POSTGRES.fullmatch(locator)
    if found is None:
        return _REFERENCE.sub(lambda at: from_environment(at.group(1), environment), locator)
    connection = found.group(2)
    uri = connection.startswith(("postgresql://", "postgres://"))

    def value(at: re.Match[str]) -> str:
        text = from_environment(at.group(1), environment)
        assigned, after = connection[: at.start()].rstrip().endswith("="), connection[at.end() :]
        if uri and (assigned or at.start() < connection.rfind("@")):
            return quote(text, safe="")
        return quoted(text) if assigned and not uri and (not after or after[0].isspace()) else text

    return found.group(1) + _REFERENCE.sub(value, connection)
