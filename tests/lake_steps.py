"""Random lives of a lake, as DuckDB's statements; what DuckDB refuses is no step."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["KINDS", "Statements", "every_type", "life"]

_WIDER = {"TINYINT": "SMALLINT", "SMALLINT": "INTEGER", "INTEGER": "BIGINT", "FLOAT": "DOUBLE"}
_VALUES = {
    "TINYINT": "(i % 100)::TINYINT",
    "SMALLINT": "(i % 1000)::SMALLINT",
    "INTEGER": "i::INTEGER",
    "BIGINT": "i * 1000000007",
    "FLOAT": "(i / 4.0)::FLOAT",
    "DOUBLE": "i / 3.0",
    "VARCHAR": "CASE WHEN i % 7 = 0 THEN NULL ELSE 'text ''quoted'' ' || i END",
    "DATE": "DATE '2023-11-20' + (i % 90)::INTEGER",
    "TIMESTAMP": "TIMESTAMP '2024-01-31 10:34:56.789' + to_hours((i % 900)::INTEGER)",
    "DECIMAL(12,3)": "(i * 1.125)::DECIMAL(12,3)",
    "BOOLEAN": "i % 2 = 0",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': i::INTEGER, 'b': 'b' || i}",
    "INTEGER[]": "CASE WHEN i % 5 = 0 THEN NULL ELSE [i, NULL, 3]::INTEGER[] END",
    "UUID": "md5(i::VARCHAR)::UUID",
    "BLOB": "encode('ä' || i)",
    "TIMESTAMPTZ": "TIMESTAMPTZ '2024-02-01 00:00:00+00' + to_minutes((i % 900)::INTEGER)",
}
_WEIGHTS = {
    "insert": 14, "large": 6, "delete": 12, "update": 8, "merge": 3, "add": 4, "drop": 3, "rename": 2, "widen": 3,
    "default": 2, "comment": 2, "partition": 2, "sort": 1, "flush": 5, "compact": 5, "rewrite": 3, "again": 1,
    "call": 2, "notnull": 1, "many": 4, "inlining": 1, "struct": 3, "begin": 4,
}  # fmt: skip
KINDS = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))
"""Kinds of steps, as often as they are to come."""
_DEFAULTS = {"INTEGER": "7", "VARCHAR": "'d''f'", "DOUBLE": "2.5", "DATE": "'2020-02-02'", "BIGINT": "9"}


class _Table:
    def __init__(self, name: str, dice: random.Random) -> None:
        self.name = name
        self.columns: dict[str, str] = {"id": "INTEGER"}
        for number in range(dice.randint(1, 4)):
            self.columns[f"c{number}"] = dice.choice(list(_VALUES))
        self.made = 0
        self.next = 0
        self.shape: dict[str, list[str]] = {}


class Statements:
    """What may be said of two tables and those that come of them; `dice` decides what a kind of step leaves open."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._tables: dict[str, _Table] = {}
        self._number = 0

    def _create(self, name: str) -> str:
        table = self._tables[name] = _Table(name, self._dice)
        listed = ", ".join(f"{column} {type_}" for column, type_ in table.columns.items())
        return f"CREATE TABLE lake.{name} ({listed})"

    def begin(self) -> Iterator[str]:
        """The tables."""
        yield self._create("t0")
        yield self._create("t1")

    def do(self, kind: str) -> Iterator[str]:
        """One kind of step; nothing where it makes no sense now."""
        dice = self._dice
        name = dice.choice(list(self._tables))
        table = self._tables[name]
        t = f"lake.{name}"
        other = [each for each in table.columns if each != "id"]
        low = dice.randint(0, max(table.next, 1))

        def insert(count: int) -> str:
            values = ", ".join("i::INTEGER" if column == "id" else _value(table, column) for column in table.columns)
            first, table.next = table.next, table.next + count
            return f"INSERT INTO {t} SELECT {values} FROM range({first}, {table.next}) r(i)"

        match kind:
            case "insert":
                yield insert(dice.randint(1, 5))
            case "large":
                yield insert(dice.randint(20, 60))
            case "many":
                for _ in range(3):
                    yield insert(dice.randint(1, 3))
            case "delete":
                yield f"DELETE FROM {t} WHERE id BETWEEN {low} AND {low + dice.randint(0, 12)}"
            case "update" if other:
                column = dice.choice(other)
                yield (
                    f"UPDATE {t} SET {column} = (SELECT {_value(table, column)} FROM (SELECT 5 AS i)) "
                    f"WHERE id BETWEEN {low} AND {low + dice.randint(0, 6)}"
                )
            case "merge":
                yield (f"MERGE INTO {t} USING (SELECT {low} AS id) AS s ON {t}.id = s.id WHEN MATCHED THEN DELETE")
            case "add":
                self._number += 1
                column, type_ = f"n{self._number}", dice.choice(list(_VALUES))
                default = f" DEFAULT {_DEFAULTS[type_]}" if type_ in _DEFAULTS and dice.random() < 0.6 else ""
                table.columns[column] = type_
                yield f"ALTER TABLE {t} ADD COLUMN {column} {type_}{default}"
            case "drop" if other:
                column = dice.choice(other)
                del table.columns[column]
                yield f"ALTER TABLE {t} DROP COLUMN {column}"
                if dice.random() < 0.4:
                    table.columns[column] = "VARCHAR"
                    yield f"ALTER TABLE {t} ADD COLUMN {column} VARCHAR"
            case "rename" if other:
                self._number += 1
                column = dice.choice(other)
                table.columns = {f"r{self._number}" if each == column else each: x for each, x in table.columns.items()}
                yield f"ALTER TABLE {t} RENAME COLUMN {column} TO r{self._number}"
            case "widen":
                for column in other:
                    if table.columns[column] in _WIDER:
                        table.columns[column] = _WIDER[table.columns[column]]
                        yield f"ALTER TABLE {t} ALTER {column} SET DATA TYPE {table.columns[column]}"
                        break
            case "struct":
                for column in other:
                    if table.columns[column] == "STRUCT(a INTEGER, b VARCHAR)" and column not in table.shape:
                        yield f"ALTER TABLE {t} ADD COLUMN {column}.c INTEGER"
                        yield f"ALTER TABLE {t} RENAME {column}.a TO z"
                        table.shape[column] = ["z", "b", "c"]
                        break
            case "default" if other:
                column = dice.choice(other)
                if table.columns[column] in _DEFAULTS:
                    yield f"ALTER TABLE {t} ALTER {column} SET DEFAULT {_DEFAULTS[table.columns[column]]}"
            case "notnull":
                yield f"ALTER TABLE {t} ALTER id SET NOT NULL"
            case "comment":
                yield f"COMMENT ON TABLE {t} IS 'said {low}'"
                yield f"COMMENT ON COLUMN {t}.id IS 'the key {low}'"
            case "partition":
                yield f"ALTER TABLE {t} " + dice.choice(["SET PARTITIONED BY (id)", "RESET PARTITIONED BY"])
            case "sort":
                yield f"ALTER TABLE {t} SET SORTED BY (id DESC)"
            case "flush":
                yield "CALL ducklake_flush_inlined_data('lake')"
            case "compact":
                yield "CALL ducklake_merge_adjacent_files('lake')"
            case "rewrite":
                yield f"CALL ducklake_rewrite_data_files('lake', delete_threshold => {dice.choice(['0', '0.3'])})"
            case "again":
                self._tables.pop(name)
                if dice.random() < 0.5:
                    yield f"DROP TABLE {t}"
                    yield self._create(name)
                else:
                    self._number += 1
                    yield f"ALTER TABLE {t} RENAME TO renamed{self._number}"
                    table.name = f"renamed{self._number}"
                    self._tables[table.name] = table
            case "call":
                self._number += 1
                yield from (
                    "BEGIN",
                    f"CALL lake.set_commit_message('somebody', 'message {self._number}')",
                    insert(2),
                    "COMMIT",
                )
            case "begin":
                yield "BEGIN"
                yield insert(dice.randint(1, 30))
                yield f"DELETE FROM {t} WHERE id BETWEEN {low} AND {low + 3}"
                yield insert(2)
                yield "COMMIT"
            case "inlining":
                yield f"CALL lake.set_option('data_inlining_row_limit', {dice.choice([0, 10, 50])})"
            case _:
                pass


def life(seed: int, steps: int = 40) -> Iterator[str]:
    """Statements of one life."""
    dice = random.Random(seed)
    statements = Statements(dice)
    yield from statements.begin()
    for _ in range(steps):
        yield from statements.do(dice.choice(KINDS))


def _value(table: _Table, column: str) -> str:
    if column in table.shape:
        z, b, c = table.shape[column]
        return f"{{'{z}': i::INTEGER, '{b}': 'b' || i, '{c}': 3}}"
    return _VALUES[table.columns[column]]


# one row of extremes, one of other odd values, one of NULLs
TYPES = {
    "i8": "TINYINT",
    "i16": "SMALLINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "u8": "UTINYINT",
    "u16": "USMALLINT",
    "u32": "UINTEGER",
    "u64": "UBIGINT",
    "h": "HUGEINT",
    "uh": "UHUGEINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "dec": "DECIMAL(18,4)",
    "d38": "DECIMAL(38,10)",
    "bo": "BOOLEAN",
    "dt": "DATE",
    "tm": "TIME",
    "ttz": "TIMETZ",
    "ts": "TIMESTAMP",
    "tss": "TIMESTAMP_S",
    "tsm": "TIMESTAMP_MS",
    "tsn": "TIMESTAMP_NS",
    "tz": "TIMESTAMPTZ",
    "iv": "INTERVAL",
    "s": "VARCHAR",
    "js": "JSON",
    "b": "BLOB",
    "u": "UUID",
    "st": "STRUCT(a INTEGER, b VARCHAR)",
    "l": "VARCHAR[]",
    "m": "MAP(VARCHAR, TIMESTAMP)",
    "ll": "STRUCT(x DOUBLE[])[]",
}
ODD: tuple[dict[str, str], ...] = (
    {
        "i8": "-128",
        "i16": "-32768",
        "i32": "-2147483648",
        "i64": "-9223372036854775808",
        "u8": "255",
        "u16": "65535",
        "u32": "4294967295",
        "u64": "18446744073709551615",
        "h": "'-170141183460469231731687303715884105727'",
        "uh": "'340282366920938463463374607431768211455'",
        "f": "'nan'",
        "d": "'-inf'",
        "dec": "'-12345678901234.5678'",
        "d38": "'1234567890123456789012345678.0123456789'",
        "bo": "true",
        "dt": "'infinity'",
        "tm": "'23:59:59.999999'",
        "ttz": "'12:00:00+05:30'",
        "ts": "'-infinity'",
        "tss": "'1969-12-31 23:59:59'",
        "tsm": "'2024-01-01 00:00:00.123'",
        "tsn": "'2024-01-01 00:00:00.123456789'",
        "tz": "'2024-01-01 00:00:00.123456+05'",
        "iv": "'-1 year 2 days -00:00:00.000003'",
        "s": "'it''s ä € 😀 \"q\" , \n nl'",
        "js": "'{\"a\": [1, null]}'",
        "b": "'\\x00\\xFFab'",
        "u": "'f79c3e09-677c-4bbd-a479-3f349cb785e7'",
        "st": "{'a': NULL, 'b': 'x, y {z}'}",
        "l": "['a', NULL, '', 'NULL', '[b]']",
        "m": "MAP {'k, 1': TIMESTAMP '2024-01-01 00:00:00.5'}",
        "ll": "[{'x': [1.5, 'nan'::DOUBLE]}, NULL, {'x': NULL}]",
    },
    {
        "f": "0.1",
        "d": "-0.0",
        "dt": "'0044-03-15 (BC)'",
        "ts": "'294247-01-10 04:00:54.775806'",
        "iv": "'25 months 400 days 100:00:00'",
        "s": "''",
        "js": "'\"x\"'",
        "b": "''",
        "bo": "false",
        "tz": "'infinity'",
        "l": "[]",
        "m": "MAP {}",
        "st": "NULL",
        "h": "0",
        "u64": "0",
    },
    {},
)


def every_type() -> Iterator[str]:
    """Rows of every type that stay in the catalog, one of them updated."""
    listed = ", ".join(f"{name} {type_}" for name, type_ in TYPES.items())
    yield f"CREATE TABLE lake.t (k INTEGER, {listed})"
    for number, row in enumerate(ODD):
        values = ", ".join(f"CAST({row.get(name, 'NULL')} AS {type_})" for name, type_ in TYPES.items())
        yield f"INSERT INTO lake.t SELECT {number}, {values}"
    yield "UPDATE lake.t SET i32 = 5 WHERE k = 0"
    yield "ALTER TABLE lake.t ADD COLUMN z INTEGER DEFAULT 3"
