"""Plans as JSON: frozen dataclasses, enums, bytes and texts, read back to equal values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias, TypeVar

__all__ = ["Codec"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Value = TypeVar("Value")


class Codec:
    """Encodes values of the given classes, and of no others."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = {each.__name__: each for each in classes}

    def text(self, value: object) -> str:
        """Compact JSON; equal values give equal text."""
        return json.dumps(self._encode(value), separators=(",", ":"), ensure_ascii=False)

    def value(self, text: str, kind: type[Value]) -> Value:
        """The value of a text; ValueError when it is not one of `kind`."""
        found = self._decode(json.loads(text))
        if not isinstance(found, kind):
            raise ValueError(f"the plan holds {type(found).__name__} in place of {kind.__name__}")
        return found

    def _encode(self, value: object) -> Json:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, (tuple, list)):
            return [self._encode(each) for each in value]
        if isinstance(value, Mapping):
            return {"map": [[self._encode(key), self._encode(each)] for key, each in value.items()]}
        name = type(value).__name__
        if self._classes.get(name) is not type(value):
            raise ValueError(f"{type(value).__name__} has no place in a plan")
        if isinstance(value, Enum):
            return {"is": name, "value": self._encode(value.value)}
        assert dataclasses.is_dataclass(value)
        parts: dict[str, Json] = {"is": name}
        for each in dataclasses.fields(value):
            held = getattr(value, each.name)
            if held is not each.default and held != each.default:
                parts[each.name] = self._encode(held)
        return parts

    def _decode(self, stored: Json) -> object:
        if isinstance(stored, list):
            return tuple(self._decode(each) for each in stored)
        if not isinstance(stored, dict):
            return stored
        if "bytes" in stored:
            return bytes.fromhex(str(stored["bytes"]))
        if "map" in stored:
            pairs = stored["map"]
            assert isinstance(pairs, list)
            return {self._decode(key): self._decode(each) for key, each in pairs}  # type: ignore[misc, str-unpack]  # pairs
        kind = self._classes.get(str(stored.get("is")))
        if kind is None:
            raise ValueError(f"the plan holds an unknown {stored.get('is')}")
        if issubclass(kind, Enum):
            return kind(self._decode(stored["value"]))
        return kind(**{name: self._decode(each) for name, each in stored.items() if name != "is"})
