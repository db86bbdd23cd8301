"""Random lives of an Iceberg table, by PyIceberg, with the rows of each commit as plain Python keeps them."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType

__all__ = ["KINDS", "TYPES", "Life"]

_WEIGHTS = {
    "append": 8, "delete": 5, "overwrite": 4, "replace_all": 1, "truncate": 1, "add_column": 2,
    "rename_column": 1, "drop_column": 1, "widen": 1, "move": 1, "spec": 2, "property": 1, "rollback": 2,
    "switch": 1, "branch": 2, "expire": 1, "rename": 1, "again": 1,
}  # fmt: skip
KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))
"""Kinds of steps, as often as they are to come."""

TYPES = {"long": pa.int64(), "int": pa.int32(), "string": pa.string(), "double": pa.float64()}
_NAMES = ("alpha", "Beta", "gamma key", "delta", "epsilon", "zeta")


@dataclass
class Life:
    """A table whose rows are known: by field id, so that nothing depends on what columns are called.

    `states` are the rows of every snapshot that was ever made, `shown` the same as a table under the snapshot's schema.
    """

    root: Path
    dice: random.Random
    name: str = "db.t"
    rows: list[dict[int, Any]] = field(default_factory=list)
    states: dict[str, list[dict[int, Any]]] = field(default_factory=dict)
    shown: dict[str, pa.Table] = field(default_factory=dict)
    number: int = 0
    made: int = 0
    steps: list[str] = field(default_factory=list)
    uri: str = ""
    past: list[tuple[str, pa.Table]] = field(default_factory=list)
    """The commit ("" for none) and the rows after each step."""
    returns: Counter[str] = field(default_factory=Counter)
    """How often the table was set back, or over, to a commit."""

    def __post_init__(self) -> None:
        self.uri = self.uri or f"sqlite:///{self.root}/c.db"
        self.first = self.name
        self.catalog = SqlCatalog("c", uri=self.uri, warehouse=f"file://{self.root}/wh")
        self.catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        self.table = self._create()
        self.past.append(("", self.now))

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """What names the catalog to the bridge as `iceberg-catalog:c`."""
        return ("type", "sql"), ("uri", self.uri), ("warehouse", f"file://{self.root}/wh")

    def _create(self) -> Table:
        self.made += 1
        fields = [("id", pa.int64()), ("n", pa.int32()), ("s", pa.string()), ("x", pa.float64())]
        schema = pa.schema([pa.field(name, type_) for name, type_ in fields])
        place = f"file://{self.root}/wh/places/{self.name}-{self.made}"
        self.rows = []
        return self.catalog.create_table(self.name, schema=schema, location=place)

    @property
    def columns(self) -> list[tuple[int, str, str]]:
        """(field id, name, type) of the current schema."""
        return [(each.field_id, each.name, str(each.field_type)) for each in self.table.schema().fields]

    @property
    def now(self) -> pa.Table:
        """The rows under the current schema."""
        return self._shown(self.rows)

    def _shown(self, rows: list[dict[int, Any]]) -> pa.Table:
        schema = pa.schema([pa.field(name, TYPES[type_]) for _, name, type_ in self.columns])
        ids = [id_ for id_, _, _ in self.columns]
        return pa.table([pa.array([row.get(id_) for row in rows], schema.field(place).type)
                         for place, id_ in enumerate(ids)], schema=schema)  # fmt: skip

    def _value(self, id_: int, type_: str, key: int) -> Any:
        if id_ == 1:
            return key
        if self.dice.random() < 0.15:
            return None
        match type_:
            case "string":
                return self.dice.choice(["a", "b", "it's", "", "ä€"]) + str(key % 7)
            case "double":
                return self.dice.choice([0.5, -1.25, float(key), 1e300])
            case "int":
                return self.dice.randint(-(2**31), 2**31 - 1)
            case _:
                return self.dice.randint(-(2**62), 2**62)

    def _fresh(self, count: int) -> list[dict[int, Any]]:
        first, self.number = self.number, self.number + count
        return [
            {id_: self._value(id_, type_, key) for id_, _, type_ in self.columns} for key in range(first, first + count)
        ]

    def do(self, what: str) -> None:
        """One kind of step; one that makes no sense now does nothing."""
        self.steps.append(what)
        before = {each.snapshot_id for each in self.table.snapshots()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match", UserWarning)
            getattr(self, f"_{what}")()
        self.table = self.catalog.load_table(self.name)
        self._note(before)
        head = self.table.current_snapshot()
        self.past.append(("" if head is None else str(head.snapshot_id), self.now))

    def _note(self, before: set[int]) -> None:
        """Rows of what was made: our own of the newest, PyIceberg's of commits on the way there."""
        head = self.table.current_snapshot()
        for each in self.table.snapshots():
            key = str(each.snapshot_id)
            if each.snapshot_id in before or key in self.states:
                continue
            if head is not None and each.snapshot_id == head.snapshot_id:
                self.states[key], self.shown[key] = list(self.rows), self.now
                continue
            shown = self.table.scan(snapshot_id=each.snapshot_id).to_arrow()
            ids = [id_ for id_, _, _ in self.columns]
            self.states[key] = [dict(zip(ids, row.values(), strict=True)) for row in shown.to_pylist()]
            self.shown[key] = self._shown(self.states[key])

    @property
    def line(self) -> list[str]:
        """The commits of main as far as the metadata knows them, oldest first."""
        found: list[str] = []
        at = self.table.current_snapshot()
        while at is not None:
            found.append(str(at.snapshot_id))
            at = None if at.parent_snapshot_id is None else self.table.snapshot_by_id(at.parent_snapshot_id)
        return found[::-1]

    def _append(self) -> None:
        new = self._fresh(self.dice.randint(1, 30))
        self.table.append(self._shown(new))
        self.rows = self.rows + new

    def _some(self) -> tuple[int, int]:
        keys = sorted(row[1] for row in self.rows)
        low = self.dice.randrange(len(keys))
        return keys[low], keys[min(len(keys) - 1, low + self.dice.randint(0, 12))]

    def _delete(self) -> None:
        if not self.rows:
            return
        low, high = self._some()
        self.table.delete(f"{self._key} >= {low} and {self._key} <= {high}")
        self.rows = [row for row in self.rows if not low <= row[1] <= high]

    @property
    def _key(self) -> str:
        return '"' + next(name for id_, name, _ in self.columns if id_ == 1) + '"'

    def _overwrite(self) -> None:
        if not self.rows:
            return
        low, high = self._some()
        new = [
            {id_: self._value(id_, type_, row[1]) for id_, _, type_ in self.columns}
            for row in self.rows
            if low <= row[1] <= high
        ]
        self.table.overwrite(self._shown(new), f"{self._key} >= {low} and {self._key} <= {high}")
        self.rows = [row for row in self.rows if not low <= row[1] <= high] + new

    def _replace_all(self) -> None:
        new = self._fresh(self.dice.randint(1, 20))
        self.table.overwrite(self._shown(new))
        self.rows = new

    def _truncate(self) -> None:
        self.table.delete()
        self.rows = []

    def _add_column(self) -> None:
        free = [name for name in _NAMES if name not in {each for _, each, _ in self.columns}]
        if free:
            with self.table.update_schema() as update:
                update.add_column(self.dice.choice(free), self.dice.choice([IntegerType(), LongType()]))

    def _other(self) -> str | None:
        names = [name for id_, name, _ in self.columns if id_ != 1 and not self._used(id_)]
        return self.dice.choice(names) if names else None

    def _used(self, id_: int) -> bool:
        return any(each.source_id == id_ for spec in self.table.specs().values() for each in spec.fields)

    def _rename_column(self) -> None:
        free = [name for name in _NAMES if name not in {each for _, each, _ in self.columns}]
        if free and (name := self._other()):
            with self.table.update_schema() as update:
                update.rename_column(name, self.dice.choice(free))

    def _drop_column(self) -> None:
        if len(self.columns) > 3 and (name := self._other()):
            id_ = next(id_ for id_, each, _ in self.columns if each == name)
            with self.table.update_schema() as update:
                update.delete_column(name)
            self.rows = [{key: value for key, value in row.items() if key != id_} for row in self.rows]

    def _widen(self) -> None:
        name = next((name for _, name, type_ in self.columns if type_ == "int"), None)
        if name is not None:
            with self.table.update_schema() as update:
                update.update_column(name, LongType())

    def _move(self) -> None:
        if name := self._other():
            with self.table.update_schema() as update:
                update.move_first(name)

    def _spec(self) -> None:
        present = {each.name for each in self.table.spec().fields}
        with self.table.update_spec() as update:
            if present:
                update.remove_field(sorted(present)[0])
            else:
                key = next(name for id_, name, _ in self.columns if id_ == 1)
                update.add_field(key, "identity", f"p{self.number}")

    def _property(self) -> None:
        with self.table.transaction() as changed:
            changed.set_properties({"said": str(self.dice.randint(0, 9))})

    def _rollback(self) -> None:
        if len(self.line) > 1:
            self._to(self.dice.choice(self.line[:-1][-4:]))

    def _switch(self) -> None:
        self._to(self.dice.choice([str(each.snapshot_id) for each in self.table.snapshots()] or [""]))

    def _to(self, snapshot: str) -> None:
        if snapshot:
            self.returns[snapshot] += 1
            self.table.manage_snapshots().set_current_snapshot(int(snapshot)).commit()
            ids = {id_ for id_, _, _ in self.columns}
            self.rows = [
                {key: value for key, value in row.items() if key in ids} for row in self.states[snapshot]
            ]  # fmt: skip

    def _branch(self) -> None:
        head = self.table.current_snapshot()
        if head is None:
            return
        name = f"b{self.number}"
        self.table.manage_snapshots().create_branch(head.snapshot_id, name).commit()
        rows = list(self.rows)
        for _ in range(self.dice.randint(1, 2)):
            new = self._fresh(3)
            self.table.append(self._shown(new), branch=name)
            rows = rows + new
        if self.dice.random() < 0.5:
            self._append()
        self.table = self.catalog.load_table(self.name)
        self.table.manage_snapshots().set_current_snapshot(ref_name=name).commit()
        self.rows = rows

    def _expire(self) -> None:
        kept = {each.snapshot_id for each in self.table.refs().values()}
        old = [int(each) for each in self.line[: self.dice.randint(0, len(self.line))] if int(each) not in kept]
        if old:
            self.table.maintenance.expire_snapshots().by_ids(old).commit()

    def _rename(self) -> None:
        name = f"{self.first}{self.number}"
        self.call(name if name != self.name else self.first)

    def call(self, name: str) -> None:
        """Give the table another name."""
        self.catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        self.table = self.catalog.rename_table(self.name, name)
        self.name = name

    def _again(self) -> None:
        self.catalog.drop_table(self.name)
        self.table = self._create()
