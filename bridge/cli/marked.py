"""A YAML file as texts, lists and mappings, each with its place; what is wrong is collected, not raised one by one.

Scalars are the text that stands in the file: YAML 1.1 would make false of `no` and 90 of `1:30`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from bridge.errors import UsageError

__all__ = ["Faults", "Items", "Mapped", "Mark", "Node", "Text", "read"]

_LARGEST = 1 << 20
_DEEPEST = 20
_SCALARS = frozenset(f"tag:yaml.org,2002:{each}" for each in ("str", "int", "float", "bool", "timestamp", "value"))
_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in a file, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as it stands there."""

    mark: Mark
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    mark: Mark
    values: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A mapping; each key stands once."""

    mark: Mark
    entries: tuple[tuple[Text, Node], ...]

    def __contains__(self, key: str) -> bool:
        return any(each.text == key for each, _ in self.entries)

    def get(self, key: str) -> Node | None:
        """What stands under a key."""
        return next((value for each, value in self.entries if each.text == key), None)


Node = Text | Items | Mapped


class Faults:
    """Everything that is wrong with a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._said: list[tuple[Mark, str]] = []

    def add(self, mark: Mark, what: str, hint: str = "") -> None:
        """One more, at its place."""
        self._said.append((mark, f"{what} ({hint})" if hint else what))

    def check(self) -> None:
        """UsageError with all of them, in the order of the file."""
        if not self._said:
            return
        lines = [f"{self.path}:{mark.line}:{mark.column}: {what}" for mark, what in sorted(set(self._said))]
        raise UsageError(lines[0] if len(lines) == 1 else "\n".join((f"{len(lines)} faults in {self.path}", *lines)))


def read(path: str, faults: Faults) -> Node | None:
    """The document of a file; None for an empty one."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError("--config needs the package PyYAML", hint="pip install 'ducklake-bridge[mirror]'") from error
    text = _content(path, faults)
    try:
        _survey(yaml, text, faults)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        faults.add(mark, "a control character stands here")
        root = None
    except yaml.MarkedYAMLError as error:
        said = " ".join(each for each in (error.context, error.problem) if each)
        faults.add(_mark(error.problem_mark or error.context_mark), f"this is not YAML: {said}")
        root = None
    faults.check()
    return None if root is None or root.tag == _NULL else _node(yaml, root, faults)


def _content(path: str, faults: Faults) -> str:
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is not a file")
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise UsageError(f"{path} is larger than {_LARGEST} bytes", hint="it is not a list of pairs")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        faults.add(Mark(before.count(b"\n") + 1, error.start - before.rfind(b"\n")), "this is not UTF-8")
        faults.check()
        raise AssertionError from error  # check has raised


def _survey(yaml: Any, text: str, faults: Faults) -> None:
    """Refuse what a reader of nodes would follow without end: repetition by reference, and endless nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            faults.add(_mark(event.start_mark), f"*{event.anchor}: nothing is repeated by reference", "use defaults:")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            faults.add(_mark(event.start_mark), f"this is nested more than {_DEEPEST} levels deep")
            break
    faults.check()


def _mark(mark: Any) -> Mark:
    return Mark(1, 1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _node(yaml: Any, node: Any, faults: Faults) -> Node:
    mark = _mark(node.start_mark)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return Items(mark, tuple(_node(yaml, each, faults) for each in node.value))
    if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
        entries: dict[str, tuple[Text, Node]] = {}
        for key, value in node.value:
            name = _mark(key.start_mark)
            if not isinstance(key, yaml.ScalarNode):
                faults.add(name, "a key is a word")
            elif key.value in entries:
                first = entries[key.value][0].mark
                faults.add(name, f"{key.value!r} stands twice in one place", f"first on line {first.line}")
            else:
                entries[key.value] = Text(name, key.value), _node(yaml, value, faults)
        return Mapped(mark, tuple(entries.values()))
    if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
        return Text(mark, node.value)
    if isinstance(node, yaml.ScalarNode) and node.tag == _NULL:
        faults.add(mark, "a value is missing here", "leave the key out, or quote what stands there")
    else:
        faults.add(mark, f"the tag {node.tag.removeprefix('tag:yaml.org,2002:')!r} has no meaning here")
    return Text(mark, "")
