"""mirror.yaml: the pairs that are mirrored and how, read by the parameters of the command line itself."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import click

from bridge.cli.marked import Faults, Items, Mapped, Mark, Node, Text, read
from bridge.cli.options import options_of
from bridge.cli.secrets import Hidden, expanded, from_environment, from_file, holds_secret
from bridge.errors import UsageError
from bridge.locators import parse_locator
from bridge.mirroring.pair import Pair
from bridge.model.secrets import names_secret, shown
from bridge.registry import settings_fault

__all__ = ["RUN", "Config", "read_config"]

RUN = ("jobs", "metrics-file", "log-format")
"""Keys of the whole run; each is an option of the command line."""
_OWN = {
    "interval": "interval",
    "on-drop": "on-drop",
    "tables": "table",
    "exclude": "exclude",
    "as": "as",
    "source-options": "source-option",
    "target-options": "target-option",
}
"""Keys of a pair by the option of the command line that each is."""
_NAMING = ("name", "source", "target")
_REFER = "write {env: NAME} or {file: PATH}"


@dataclass(frozen=True, slots=True)
class Config:
    """What a file says: the pairs, and by the name of its parameter what it says of the run."""

    pairs: tuple[Pair, ...]
    run: Mapping[str, Any]
    hidden: Hidden


def read_config(path: str, context: click.Context, given: Mapping[str, Any], environment: Mapping[str, str]) -> Config:
    """The file's pairs; `given` is what holds where the file says nothing, by the names of the context's parameters.

    UsageError names everything that is wrong, each with its line and column, and shows no credential.
    """
    faults = Faults(path)
    reader = _Reader(context, environment, faults)
    root = read(path, faults)
    if not isinstance(root, Mapped):
        faults.add(Mark(1, 1) if root is None else root.mark, "a mapping with the key pairs is wanted")
        faults.check()
    assert isinstance(root, Mapped)  # else check has raised
    run = reader.section(root, {each: each for each in RUN}, ("pairs", "defaults"))
    below = {**given, **reader.settings(root.get("defaults"), ())}
    pairs = reader.pairs(root, below)
    faults.check()
    return Config(pairs, run, reader.hidden)


class _Reader:
    """Nodes to values; faults are noted and the rest goes on."""

    def __init__(self, context: click.Context, environment: Mapping[str, str], faults: Faults) -> None:
        self.hidden = Hidden()
        self._context = context
        self._parameters = {each.opts[0].removeprefix("--"): each for each in context.command.params}
        taken = {*RUN, *_OWN.values(), "config", "once", "name", "source", "target"}
        self._options = {each: each for each in self._parameters if each not in taken}
        self._environment = environment
        self._faults = faults

    def pairs(self, root: Mapped, below: Mapping[str, Any]) -> tuple[Pair, ...]:
        """Every pair, each under a name of its own."""
        listed = root.get("pairs")
        if not isinstance(listed, Items) or not listed.values:
            self._faults.add(root.mark if listed is None else listed.mark, "pairs: a list of pairs is wanted")
            return ()
        made: dict[str, tuple[Pair, Mark]] = {}
        for node in listed.values:
            pair = self._pair(node, below)
            if pair is not None and pair.label in made:
                said = f"the pair {self.hidden.blot(pair.label)!r} stands twice"
                self._faults.add(node.mark, said, f"first on line {made[pair.label][1].line}; give each a name")
            elif pair is not None:
                made[pair.label] = pair, node.mark
        return tuple(pair for pair, _ in made.values())

    def _pair(self, node: Node, below: Mapping[str, Any]) -> Pair | None:
        given = {**below, **self.settings(node, _NAMING, below)}
        if not isinstance(node, Mapped):
            return None
        name = self._text(node.get("name"), "name", "")
        if node.get("name") is not None and (not name.strip() or not name.isprintable() or len(name) > 100):
            self._faults.add(node.mark, "name: up to 100 printable characters are wanted")
        source, target = (self._locator(node, key) for key in ("source", "target"))
        for role, locator in (("source", source), ("target", target)):
            stated = node.get(f"{role}-options")
            fault = settings_fault(role, parse_locator(locator), given[f"{role}_options"]) if locator else None
            if fault is not None and stated is not None:
                self._faults.add(stated.mark, f"{role}-options: {fault.message}", fault.hint)
            elif fault is not None:
                given[f"{role}_options"] = ()  # those of the defaults are for the pairs that take them
        if not source or not target:
            return None
        interval, on_drop = given.pop("interval"), given.pop("on_drop")
        return Pair(source, target, options_of(**given), interval, on_drop, name)

    def _locator(self, node: Mapped, key: str) -> str:
        found = node.get(key)
        if found is None:
            self._faults.add(node.mark, f"{key}: it is missing", "write iceberg:PATH, ducklake:FILE or the like")
            return ""
        text = self._text(found, key, "")
        if not text:
            return ""
        try:
            if holds_secret(text):
                raise UsageError("a password stands here", hint="write ${NAME}, a variable of the environment")
            whole = expanded(text, self._environment)
            self.hidden.learn(whole)
            if whole != text:
                try:
                    parse_locator(whole)
                except UsageError as error:  # what a variable holds is not shown
                    raise UsageError(f"{shown(text)!r} with its variables is no locator", hint=error.hint) from None
            else:
                parse_locator(whole)
        except UsageError as error:
            self._faults.add(found.mark, f"{key}: {error.message}", error.hint)
            return ""
        return whole

    def settings(
        self, node: Node | None, also: Collection[str], below: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What a pair, or the defaults, say: values by the names of parameters. Of settings KEY=VALUE those that stand
        below are kept, key by key."""
        if node is None:
            return {}
        if not isinstance(node, Mapped):
            self._faults.add(node.mark, "a mapping is wanted here", "with keys such as source and target")
            return {}
        found = self.section(node, _OWN, (*also, "options"))
        options = node.get("options")
        if isinstance(options, Mapped):
            found |= self.section(options, self._options, (), {each: key for key, each in _OWN.items()})
        elif options is not None:
            self._faults.add(options.mark, "options: a mapping is wanted", "such as {history: current}")
        for key in ("source_options", "target_options"):
            if key in found and below is not None:
                found[key] = tuple({**dict(below.get(key, ())), **dict(found[key])}.items())
        return found

    def section(
        self, node: Mapped, keys: Mapping[str, str], also: Collection[str], elsewhere: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The values of a mapping whose keys are options, and what it must not hold."""
        found: dict[str, Any] = {}
        for key, value in node.entries:
            if key.text in keys:
                parameter = self._parameters[keys[key.text]]
                assert parameter.name is not None
                taken = self._value(key, value, parameter)
                if taken is not None:
                    found[parameter.name] = taken
            elif key.text not in also:
                self._unknown(key, [*keys, *also], elsewhere or {})
        return found

    def _unknown(self, key: Text, known: list[str], elsewhere: Mapping[str, str]) -> None:
        if key.text in elsewhere:
            self._faults.add(
                key.mark, f"{key.text}: this is no key of options", f"write {elsewhere[key.text]}: beside it"
            )
            return
        name = self.hidden.blot(key.text)[:60]
        near = difflib.get_close_matches(key.text.replace("_", "-"), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
        self._faults.add(key.mark, f"unknown key {name!r}", hint)

    def _value(self, key: Text, node: Node, parameter: click.Parameter) -> Any:
        """What an option makes of a node, None when it is not taken."""
        keyed = parameter.multiple and "=" in str(getattr(parameter, "metavar", "") or "")
        if not parameter.multiple:
            text = self._scalar(node, key.text)
            return None if text is None else self._taken(key, node, text, parameter)
        if keyed and isinstance(node, Mapped):
            texts = [(value, self._setting(name, value)) for name, value in node.entries]
        elif parameter.name in ("source_options", "target_options"):
            self._faults.add(
                node.mark, f"{key.text}: a mapping is wanted", "such as {uri: https://..., token: {env: NAME}}"
            )
            return None
        else:
            texts = [
                (each, self._scalar(each, key.text)) for each in (node.values if isinstance(node, Items) else (node,))
            ]
        taken = [None if text is None else self._taken(key, at, (text,), parameter) for at, text in texts]
        return None if None in taken else tuple(each for part in taken if part is not None for each in part)

    def _setting(self, name: Text, value: Node) -> str | None:
        if "=" in name.text or not name.text.strip():
            self._faults.add(name.mark, "the name of a setting is not empty and holds no =")
            return None
        if isinstance(value, Text) and names_secret(name.text):
            self._faults.add(value.mark, f"{name.text}: a credential stands here", _REFER)
            return None
        text = self._scalar(value, name.text)
        return None if text is None else f"{name.text}={text}"

    def _scalar(self, node: Node, what: str) -> str | None:
        """A text, or what stands where a reference points."""
        if isinstance(node, Mapped):
            return self._referred(node, what)
        if isinstance(node, Items):
            self._faults.add(node.mark, f"{what}: a list stands here, one value is wanted")
            return None
        key, equals, _ = node.text.partition("=")
        if holds_secret(node.text) or (equals and names_secret(key)):
            self._faults.add(node.mark, f"{what}: a credential stands here", _REFER)
            return None
        return node.text

    def _referred(self, node: Mapped, what: str) -> str | None:
        kinds: dict[str, Callable[[str], str]] = {
            "env": lambda name: from_environment(name, self._environment),
            "file": from_file,
        }
        if len(node.entries) != 1 or node.entries[0][0].text not in kinds:
            self._faults.add(node.mark, f"{what}: a mapping stands here that is no reference", _REFER)
            return None
        [(kind, place)] = node.entries
        if not (text := self._text(place, kind.text, "")):
            return None
        try:
            value = kinds[kind.text](text)
        except UsageError as error:
            self._faults.add(place.mark, f"{what}: {error.message}", error.hint)
            return None
        self.hidden.add(value)
        return value

    def _text(self, node: Node | None, what: str, missing: str) -> str:
        if node is None or isinstance(node, Text):
            if isinstance(node, Text) and not node.text:
                self._faults.add(node.mark, f"{what}: a text is wanted")
            return missing if node is None else node.text
        self._faults.add(node.mark, f"{what}: a text is wanted")
        return missing

    def _taken(self, key: Text, node: Node, value: str | tuple[str], parameter: click.Parameter) -> Any:
        """What the command line would make of it."""
        try:
            return parameter.process_value(self._context, value)
        except click.ClickException as error:
            said, hint = error.message.rstrip("."), ""
        except UsageError as error:
            said, hint = error.message, error.hint
        text = value if isinstance(value, str) else value[0]
        if isinstance(node, Mapped) or self.hidden.blot(text) != text:
            said, hint = "what the reference gives is not taken", ""
        self._faults.add(node.mark, f"{key.text}: {said}", hint)
        return None
