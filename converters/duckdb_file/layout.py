"""--partition-by and --sort-by: which table they are for, and what they ask of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bridge.errors import UsageError
from bridge.model.layout import Bucket, PartitionField, PartitionSpec, Simple, SortField, SortOrder, Transform
from bridge.model.table import TableName
from bridge.model.types import ColumnType, Field, Fixed, Geo, Leaf, Timestamp, children

__all__ = ["Asked", "asked", "partition_spec", "sort_order"]

_TOKEN = re.compile(r'\s*("(?:[^"]|"")*"|[=,().]|[^\s"=,().]+)')
_TEMPORAL = {each.value: each for each in (Simple.YEAR, Simple.MONTH, Simple.DAY, Simple.HOUR)}
_HASHED = frozenset({Leaf.INT8, Leaf.INT16, Leaf.INT32, Leaf.INT64, Leaf.STRING, Leaf.DATE})


@dataclass(frozen=True, slots=True)
class Asked:
    """One option: the table it names (None: every table), and its keys as tokens."""

    option: str
    text: str
    table: tuple[str, ...] | None
    keys: tuple[tuple[str, ...], ...]

    def wrong(self, why: str) -> UsageError:
        return UsageError(
            f"{self.option} {self.text!r}: {why}",
            hint='write TABLE=KEY,... with names that are not plain in "double quotes"',
        )


def asked(option: str, texts: Sequence[str], name: TableName) -> Asked | None:
    """What an option asks of a table; what names it wins over what is for all."""
    parsed = [_parse(option, text) for text in texts]
    mine = [each for each in parsed if each.table is not None and _names(each.table, name)]
    return next(iter([*mine, *(each for each in parsed if each.table is None)]), None)


def check_names(option: str, texts: Sequence[str], names: Sequence[TableName]) -> None:
    """UsageError when an option names a table that is not there."""
    for each in (_parse(option, text) for text in texts):
        if each.table is not None and not any(_names(each.table, name) for name in names):
            raise each.wrong(f"there is no table {'.'.join(each.table)}")


def _names(given: tuple[str, ...], name: TableName) -> bool:
    return given in ((*name.namespace, name.name), (*(name.namespace or ("main",)), name.name))


def _parse(option: str, text: str) -> Asked:
    tokens = list(_tokens(text))
    table = None
    if "=" in tokens:
        place = tokens.index("=")
        table = tuple(_plain(each) for each in tokens[:place] if each != ".")
        tokens = tokens[place + 1 :]
    keys: list[tuple[str, ...]] = []
    key: list[str] = []
    depth = 0
    for token in [*tokens, ","]:
        depth += (token == "(") - (token == ")")
        if token == "," and depth <= 0:
            keys.append(tuple(key))
            key = []
        else:
            key.append(token)
    made = Asked(option, text, table, tuple(keys))
    if depth or not all(keys) or table == ():
        raise made.wrong("it cannot be read")
    return made


def _tokens(text: str) -> Iterator[str]:
    place, text = 0, text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise UsageError(f"{text!r} has a quote that does not end")
        yield found.group(1)
        place = found.end()


def _plain(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token


def _column(said: Asked, token: str, fields: Sequence[Field]) -> Field:
    name = _plain(token)
    found = [each for each in fields if each.name.casefold() == name.casefold()]
    if not found:
        raise said.wrong(f"there is no column {name}")
    return found[0]


def partition_spec(said: Asked | None, fields: Sequence[Field]) -> PartitionSpec:
    """The spec that --partition-by asks for."""
    if said is None:
        return PartitionSpec(0)
    made = []
    for place, key in enumerate(said.keys):
        column, transform = _partition_key(said, key, fields)
        name = column.name if transform is Simple.IDENTITY else f"{column.name}_{_word(transform)}"
        made.append(PartitionField(column.id, 1000 + place, name, transform))
    return PartitionSpec(1, tuple(made))


def _word(transform: Transform) -> str:
    return transform.value if isinstance(transform, Simple) else "bucket"


def _partition_key(said: Asked, key: tuple[str, ...], fields: Sequence[Field]) -> tuple[Field, Transform]:
    match key:
        case (name,):
            column, transform = _column(said, name, fields), Simple.IDENTITY
            if children(column.type) or column.type in (Leaf.BINARY, Leaf.VARIANT) or isinstance(column.type, Geo):
                raise said.wrong(f"a lake cannot be partitioned by {column.name}, a column of its type")
            return column, transform
        case (word, "(", name, ")") if word.lower() in _TEMPORAL:
            column = _column(said, name, fields)
            _check_temporal(said, word.lower(), column.name, column.type)
            return column, _TEMPORAL[word.lower()]
        case (word, "(", number, ",", name, ")") if word.lower() == "bucket":
            column = _column(said, name, fields)
            if not number.isdigit() or not int(number):
                raise said.wrong(f"{number} is no number of buckets")
            known = column.type in _HASHED or column.type in (Timestamp(), Timestamp(utc=True))
            if not known or isinstance(column.type, Fixed):
                raise said.wrong(f"{column.name} cannot be put into buckets, a column of its type")
            return column, Bucket(int(number))
        case _:
            raise said.wrong(f"{' '.join(key)} is no key: COLUMN, year|month|day|hour(COLUMN) or bucket(N, COLUMN)")


def _check_temporal(said: Asked, word: str, name: str, type_: ColumnType) -> None:
    if not (isinstance(type_, Timestamp) or (type_ is Leaf.DATE and word != "hour")):
        raise said.wrong(f"{name} has no {word}, a column of its type")


def sort_order(said: Asked | None, fields: Sequence[Field]) -> SortOrder:
    """The order that --sort-by asks for; NULL comes last unless it says NULLS FIRST."""
    if said is None:
        return SortOrder(0)
    made = []
    for key in said.keys:
        column = _column(said, key[0], fields)
        words = [each.upper() for each in key[1:]]
        descending = words[:1] == ["DESC"]
        rest = words[1:] if words[:1] in (["ASC"], ["DESC"]) else words
        if rest not in ([], ["NULLS", "FIRST"], ["NULLS", "LAST"]):
            raise said.wrong(f"{' '.join(key)} is no key: COLUMN [ASC|DESC] [NULLS FIRST|NULLS LAST]")
        if children(column.type) or column.type is Leaf.VARIANT:
            raise said.wrong(f"rows are not sorted by {column.name}, a column of its type")
        made.append(SortField(column.id, Simple.IDENTITY, descending, rest == ["NULLS", "FIRST"]))
    return SortOrder(1, tuple(made))
