"""Which metadata file a locator means, and which tables a warehouse holds."""

from __future__ import annotations

import re

from bridge.errors import Unreachable, UsageError
from bridge.model.findings import Code, Finding
from converters import storage

__all__ = ["MetadataFile", "find_metadata", "is_metadata_file", "is_table", "tables_below"]

_DEPTH = 8
_VERSION = re.compile(r"^(?:v(\d+)|(\d+)-.*?)(?:\.gz)?\.metadata\.json(?:\.gz)?$")

MetadataFile = tuple[str, tuple[Finding, ...]]
"""The metadata file's path and what is to be said about the choice."""


def is_metadata_file(path: str) -> bool:
    """Whether a path names a metadata file rather than a directory."""
    return path.endswith((".json", ".json.gz"))


def _metadata_files(directory: str) -> list[str]:
    if storage.is_file(f"{directory}/metadata"):
        return []
    names = storage.list_directory(f"{directory}/metadata")
    return [name for name, folder in names if not folder and _VERSION.match(name)]


def is_table(directory: str) -> bool:
    """Whether a directory holds a table: DIR/metadata has metadata files."""
    return _by_hint(directory) is not None or bool(_metadata_files(directory))


def _by_hint(directory: str) -> str | None:
    """The metadata file whose number the hint gives, unless there is a later one, or another of that number: a table
    with a long history has thousands of files beside it that need not be listed."""
    hint = f"{directory}/metadata/version-hint.text"
    if not storage.is_file(hint):
        return None
    text = storage.read(hint, "version hint").decode("utf-8", "replace").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 18):
        return None
    plain, *others = (
        f"{directory}/metadata/v{number}{ending}"
        for number in (int(text), int(text) + 1)
        for ending in (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")
    )
    return plain if storage.is_file(plain) and not any(map(storage.is_file, others)) else None


def find_metadata(directory: str) -> MetadataFile:
    """The newest metadata file of a table directory: by version hint, else the highest number.

    UsageError when two files carry that number, Unreachable when there is none or the hint names none.
    """
    if (found := _by_hint(directory)) is not None:
        return found, ()
    names = _metadata_files(directory)
    if not names:
        raise Unreachable(
            f"{directory} holds no Iceberg metadata",
            hint="give a table's directory or its .metadata.json file",
        )
    hint = f"{directory}/metadata/version-hint.text"
    if storage.is_file(hint):
        text = storage.read(hint, "version hint").decode("utf-8", "replace").strip()
        hinted = [name for name in names if text in (name, _stem(name)) or _is_version(name, text)]
        if len(hinted) == 1:
            return _from(directory, names, hinted[0])
        if text and not hinted:
            raise Unreachable(
                f"{hint} says {text!r}, and there is no such metadata file",
                hint=f"give the metadata file itself: {directory}/metadata/{names[-1]}",
            )
        names = hinted or names
    newest = max(_number(name) for name in names)
    candidates = [name for name in names if _number(name) == newest]
    if len(candidates) > 1:
        raise UsageError(
            f"{directory} has {len(candidates)} metadata files with the number {newest}: {', '.join(candidates[:3])}",
            hint="give the metadata file that the catalog points to",
        )
    path = f"{directory}/metadata/{candidates[0]}"
    return path, (Finding(Code.METADATA_GUESSED, directory, f"taken: {candidates[0]}, the highest of {len(names)}"),)


def _from(directory: str, names: list[str], hinted: str) -> MetadataFile:
    """The hinted file, or a later one that a writer committed without getting to write the hint (as Iceberg Java's
    hadoop catalog reads: on from the hint while there is a next version)."""
    by_number = {_number(name): name for name in names if name.startswith("v")}
    number = _number(hinted)
    while hinted.startswith("v") and number + 1 in by_number:
        number += 1
    if number == _number(hinted):
        return f"{directory}/metadata/{hinted}", ()
    newest = by_number[number]
    said = f"the version hint names {hinted}, taken is the later {newest}"
    return f"{directory}/metadata/{newest}", (Finding(Code.METADATA_GUESSED, directory, said),)


def _number(name: str) -> int:
    found = _VERSION.match(name)
    return int(found.group(1) or found.group(2)) if found else -1


def _stem(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".metadata.json").removesuffix(".gz")


def _is_version(name: str, text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 18 and name.startswith("v") and _number(name) == int(text)


def tables_below(warehouse: str) -> list[tuple[str, ...]]:
    """The path of every table below a warehouse directory, as its levels."""
    found: list[tuple[str, ...]] = []
    pending: list[tuple[str, ...]] = [()]
    while pending:
        levels = pending.pop()
        here = "/".join((warehouse, *levels))
        for name, folder in storage.list_directory(here):
            if not folder or name.startswith("."):
                continue
            deeper = (*levels, name)
            if is_table(f"{here}/{name}"):
                found.append(deeper)
            elif len(deeper) < _DEPTH:
                pending.append(deeper)
    return sorted(found)
