"""The half of the judge that runs DuckDB: started by judge.py in a process of its own, one request per run.

The request is a JSON file, the expected rows are Arrow IPC streams beside it, the answer is one JSON line per
fault and a last line saying that the end was reached (so a crash of DuckDB keeps what was found before).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TypedDict

import duckdb
import pyarrow as pa
import pyarrow.ipc
from duckdb.sqltypes import DuckDBPyType

TABLE = "@@judge_table@@"  # stands for the table in a question, so that both sides are asked the same text
ARMS_PER_QUERY = 30  # selects in one UNION ALL: EXPLAIN shows that each is optimised as if it stood alone
TOP = 3  # rows asked for by ORDER BY ... LIMIT

# What an answer can be derived from: statistics of table and files, those of files only, the files only.
PLAIN = ("", "")
FILES_ONLY = ("statistics_propagation", " [statistics off]")
SCAN_ONLY = ("filter_pushdown,statistics_propagation", " [statistics and pushdown off]")

INTEGERS = frozenset(
    f"{sign}{size}" for sign in ("", "u") for size in ("tinyint", "smallint", "integer", "bigint", "hugeint")
)
FLOATS = frozenset(("float", "double"))
STAMPS = frozenset(("timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone", "date"))
OTHER_ORDERED = frozenset(
    ("boolean", "time", "time_ns", "time with time zone", "varchar", "blob", "uuid", "json", "interval")
)
SCALARS = INTEGERS | FLOATS | STAMPS | OTHER_ORDERED | {"decimal"}


class VersionRequest(TypedDict):
    """One expected state: where to ask for it and the Arrow file with its rows."""

    snapshot: int | None
    time: str | None
    rows: str
    other_columns: bool


class SubjectRequest(TypedDict):
    """One table and its expected states."""

    schema: str
    table: str
    versions: list[VersionRequest]


class Request(TypedDict):
    """Everything judge.py hands over."""

    attach: str
    scratch: str
    answer: str
    subjects: list[SubjectRequest]
    change: bool
    compact: bool
    filters: int
    setup: list[str]


class Invalidated(Exception):
    """DuckDB met an internal error: nothing more can be asked of this instance."""


def name(text: str) -> str:
    """An identifier in quotes."""
    return '"' + text.replace('"', '""') + '"'


def text(value: str) -> str:
    """A string literal."""
    return "'" + value.replace("'", "''") + "'"


def kind(type_: DuckDBPyType) -> str:
    """The name of a type without its parameters, lower case."""
    return "json" if str(type_) == "JSON" else str(type_.id).lower()


def children(type_: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """The named children of a nested type."""
    return [(child, of) for child, of in type_.children if isinstance(of, DuckDBPyType)]


def comparable(expression: str, type_: DuckDBPyType, depth: int = 0) -> str:
    """An expression equal exactly where two values are the same value: maps lose their order."""
    match kind(type_):
        case "map":
            (_, key), (_, value) = children(type_)
            entry = f"e{depth}"
            inner = (
                f"struct_pack(k := {comparable(entry + '.key', key, depth + 1)},"
                f" v := {comparable(entry + '.value', value, depth + 1)})"
            )
            return f"list_sort(list_transform(map_entries({expression}), lambda {entry}: {inner}))"
        case "list" | "array":
            ((_, element), *_) = children(type_)
            entry = f"e{depth}"
            inner = comparable(entry, element, depth + 1)
            if inner == entry:
                return expression
            return f"list_transform({expression}, lambda {entry}: {inner})"
        case "struct":
            fields = children(type_)
            parts = [(f"struct_extract({expression}, {text(child)})", child, of) for child, of in fields]
            inners = [comparable(part, of, depth) for part, _, of in parts]
            if all(inner == part for inner, (part, _, _) in zip(inners, parts, strict=True)):
                return expression
            packed = ", ".join(f"{name(child)} := {inner}" for inner, (_, child, _) in zip(inners, parts, strict=True))
            return f"CASE WHEN {expression} IS NOT NULL THEN struct_pack({packed}) END"
        case "variant" | "geometry":
            return f"CAST({expression} AS VARCHAR)"
        case _:
            return expression


def nested_names(type_: DuckDBPyType) -> object:
    """The struct field names of a type, level by level, in order."""
    match kind(type_):
        case "struct":
            return tuple((child, nested_names(of)) for child, of in children(type_))
        case "list" | "array" | "map":
            return tuple(nested_names(of) for _, of in children(type_))
        case _:
            return None


@dataclass(frozen=True)
class Depth:
    """How much is asked: constants per column (0: only rows and count(*)), every form or the main ones."""

    constants: int
    thorough: bool = False


@dataclass(frozen=True)
class Column:
    """A top-level column."""

    name: str
    type: DuckDBPyType
    nullable: bool = True


@dataclass(frozen=True)
class Leaf:
    """Something filters can be written about: a column, or a field of a struct column."""

    expression: str
    label: str
    type: DuckDBPyType


def leaves(columns: Sequence[Column]) -> Iterator[Leaf]:
    """Every column and, below struct columns, every field."""

    def below(leaf: Leaf) -> Iterator[Leaf]:
        yield leaf
        if kind(leaf.type) == "struct":
            for child, of in children(leaf.type):
                expression = f"struct_extract({leaf.expression}, {text(child)})"
                yield from below(Leaf(expression, f"{leaf.label}.{child}", of))

    for column in columns:
        yield from below(Leaf(name(column.name), column.name, column.type))


@dataclass(frozen=True)
class Question:
    """One SELECT with one answer, and how to say it to a person."""

    label: str
    sql: str
    unit: str = ""


def count_where(condition: str, label: str) -> Question:
    """How many rows satisfy a condition, asked so that the condition can be pushed down."""
    sql = f"SELECT CAST(count(*) AS VARCHAR) FROM {TABLE} WHERE {condition}"
    return Question(f"WHERE {label}", sql, " rows")


def above(expression: str, type_: DuckDBPyType) -> str:
    """An expression for a value above, NULL or an error where the type ends."""
    return {
        "varchar": f"{expression} || '~'",
        "blob": f"{expression} || '\\xFF'::BLOB",
        "json": "'\"~judge\"'",
        "boolean": "true",
        "uuid": "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "time": "'23:59:59.999999'",
        "time_ns": "'23:59:59.999999999'",
        "interval": f"{expression} + INTERVAL 1 DAY",
        "float": f"abs({expression}) * 2 + 1",
        "double": f"abs({expression}) * 2 + 1",
        "time with time zone": expression,
        "date": f"{expression} + 1",
    }.get(kind(type_), f"{expression} + " + ("INTERVAL 1 SECOND" if kind(type_) in STAMPS else "1"))


def beneath(expression: str, type_: DuckDBPyType) -> str:
    """An expression for a value beneath, NULL or an error where the type ends."""
    return {
        "varchar": "''",
        "blob": "''::BLOB",
        "json": "'0'",
        "boolean": "false",
        "uuid": "'00000000-0000-0000-0000-000000000000'",
        "time": "'00:00:00'",
        "time_ns": "'00:00:00'",
        "interval": f"{expression} - INTERVAL 1 DAY",
        "float": f"-abs({expression}) * 2 - 1",
        "double": f"-abs({expression}) * 2 - 1",
        "time with time zone": expression,
        "date": f"{expression} - 1",
    }.get(kind(type_), f"{expression} - " + ("INTERVAL 1 SECOND" if kind(type_) in STAMPS else "1"))


def outside(leaf: Leaf, table: str, upper: bool) -> str:
    """A query for one value just outside the values of a leaf; any value where there are none."""
    e, type_ = leaf.expression, str(leaf.type)
    finite = f" WHERE isfinite({e})" if kind(leaf.type) in FLOATS | STAMPS else ""
    beyond = above("edge", leaf.type) if upper else beneath("edge", leaf.type)
    edge = f"(SELECT {'max' if upper else 'min'}({e}) AS edge FROM {table}{finite})"
    zero = {
        "varchar": "'m'",
        "blob": "'m'",
        "json": "'1'",
        "boolean": "'true'",
        "uuid": "'77777777-7777-7777-7777-777777777777'",
        "interval": "'1 day'",
    }.get(kind(leaf.type), "'2001-02-03'" if kind(leaf.type) in STAMPS else "'12:00:00'")
    if kind(leaf.type) in INTEGERS | FLOATS | {"decimal"}:
        zero = "'0'"
    return f"(SELECT coalesce(TRY(CAST({beyond} AS {type_})), edge, CAST({zero} AS {type_})) FROM {edge})"


def spread(values: Sequence[str], at_most: int) -> list[str]:
    """At most so many of the values, the first and the last always among them."""
    if len(values) <= at_most:
        return list(values)
    last = len(values) - 1
    steps = max(at_most - 1, 1)
    return [values[i] for i in sorted({round(step * last / steps) for step in range(steps + 1)})]


@dataclass
class Session:
    """One DuckDB instance with one lake attached, and one table of it under judgement."""

    request: Request
    subject: SubjectRequest
    report: Callable[[str], None]
    connection: duckdb.DuckDBPyConnection = field(init=False)
    answers: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": "1"})
        self.run("SET TimeZone='UTC'")
        for extension in extensions(self.request["attach"]):
            self.load(extension)
        for statement in self.request["setup"]:
            self.run(statement)

    @property
    def label(self) -> str:
        """The table as a person writes it."""
        return f"{self.subject['schema']}.{self.subject['table']}"

    @property
    def table(self) -> str:
        """The table in the lake, in quotes."""
        return f"lake.{name(self.subject['schema'])}.{name(self.subject['table'])}"

    def load(self, extension: str) -> None:
        """An extension from its wheel, or from DuckDB's repository when there is no wheel."""
        spec = importlib.util.find_spec(f"duckdb_extension_{extension}")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            file = Path(folder, "extensions", f"v{duckdb.__version__}", f"{extension}.duckdb_extension")
            if file.exists():
                self.run(f"LOAD {text(str(file))}")
                return
        self.run(f"INSTALL {extension}")
        self.run(f"LOAD {extension}")

    def run(self, sql: str) -> list[tuple[object, ...]]:
        """The rows of a statement; an internal error ends the session."""
        return run(self.connection, sql)

    def attempt(self, where: str, sql: str) -> list[tuple[object, ...]] | None:
        """The rows of a statement, or a fault and None."""
        try:
            return self.run(sql)
        except duckdb.Error as error:
            self.fault(where, f"{one_line(sql)}: {one_line(str(error))}")
            return None

    def fault(self, where: str, what: str) -> None:
        """One wrong answer, written down at once."""
        self.report(f"{self.label} {where}: {what}")

    def attach(self, catalog: str, options: str) -> bool:
        """The lake under the name `lake`, in place of the one attached before."""
        self.run("DETACH DATABASE IF EXISTS lake")
        return self.attempt("@attach", f"ATTACH {text('ducklake:' + catalog)} AS lake ({options})") is not None

    # -- the expected side

    def columns_of(self, where: str, relation: str) -> list[Column] | None:
        """The columns of a relation as DuckDB binds them."""
        try:
            shape = self.connection.sql(f"SELECT * FROM {relation}")
        except (duckdb.InternalException, duckdb.FatalException) as error:
            raise Invalidated(f"SELECT * FROM {relation}: {one_line(str(error))}") from error
        except duckdb.Error as error:
            self.fault(where, f"SELECT * FROM {relation}: {one_line(str(error))}")
            return None
        return [Column(n, t) for n, t in zip(shape.columns, shape.types, strict=True)]

    def expect(self, where: str, twin: str, rows: str, relation: str) -> list[Column] | None:
        """The expected rows as an in-memory table with the lake's types; None if the columns differ."""
        columns = self.columns_of(where, relation)
        if columns is None:
            return None
        with pa.memory_map(rows) as source:
            expected = pa.ipc.open_stream(source).read_all()
        # bare: pyarrow would import pandas first, which takes as long as the questions to many a table
        self.connection.register("judge_stream", expected.__arrow_c_stream__())
        self.run("CREATE OR REPLACE TEMP TABLE judge_rows AS FROM judge_stream")
        self.connection.unregister("judge_stream")
        given = self.columns_of(where, "judge_rows") or []
        names = [column.name for column in columns]
        if names != expected.schema.names:
            self.fault(where, f"columns are {names}, expected {expected.schema.names}")
            if sorted(names) != sorted(expected.schema.names):
                return None
        types = {column.name: column.type for column in given}
        parts = []
        for column in columns:
            have, want = column.type, types[column.name]
            if nested_names(have) != nested_names(want):
                self.fault(where, f"column {column.name} is {have}, expected {want}")
            parts.append(self.converted(where, column, want))
        done = self.attempt(
            where, f"CREATE OR REPLACE TABLE memory.main.{twin} AS SELECT {', '.join(parts)} FROM judge_rows"
        )
        self.answers = {key: value for key, value in self.answers.items() if key[0] != twin}
        return None if done is None else columns

    def converted(self, where: str, column: Column, want: DuckDBPyType) -> str:
        """The select item that brings a column to the lake's type; a fault if values change by it."""
        quoted, have = name(column.name), column.type
        if str(have) == str(want):
            return quoted
        if kind(have) == "uuid" and kind(want) == "blob":
            return f"CAST(hex({quoted}) AS UUID) AS {quoted}"
        lost = (
            f"SELECT count(*) FROM judge_rows WHERE CAST(CAST({quoted} AS {have}) AS {want}) IS DISTINCT FROM {quoted}"
        )
        try:
            changed = self.run(lost)[0][0]
        except duckdb.Error as error:
            changed = one_line(str(error))
        if changed != 0:
            self.fault(where, f"column {column.name} is {have}, expected {want}: values changed: {changed}")
        return f"CAST({quoted} AS {have}) AS {quoted}"

    # -- questions

    def values(self, twin: str, leaf: Leaf, at_most: int) -> tuple[list[str], list[str]]:
        """Constants to filter a leaf by: those among the rows (spread, with the ends), and those outside."""
        e, type_ = leaf.expression, str(leaf.type)
        texts = self.run(
            f"SELECT CAST(v AS VARCHAR) FROM (SELECT DISTINCT {e} AS v FROM {twin} WHERE {e} IS NOT NULL) ORDER BY v"
        )
        # DuckDB has no literal for a text that holds a NUL byte
        writable = [str(t) for (t,) in texts if "\0" not in str(t)]
        inside = spread([f"CAST({text(t)} AS {type_})" for t in writable], at_most)
        beyond = self.run(
            f"SELECT CAST({outside(leaf, twin, False)} AS VARCHAR), CAST({outside(leaf, twin, True)} AS VARCHAR)"
        )[0]
        return inside, [f"CAST({text(str(t).replace(chr(0), ''))} AS {type_})" for t in beyond if t is not None]

    def questions(self, twin: str, columns: Sequence[Column], depth: Depth) -> Iterator[Question]:
        """Everything that is asked of both sides, in an order that puts the simplest first."""
        yield Question("count(*)", f"SELECT CAST(count(*) AS VARCHAR) FROM {TABLE}")
        if depth.constants == 0:
            return
        tops = [name(column.name) for column in columns]
        for leaf in leaves(columns):
            e, label = leaf.expression, leaf.label
            yield Question(f"count({label})", f"SELECT CAST(count({e}) AS VARCHAR) FROM {TABLE}")
            yield count_where(f"{e} IS NULL", f"{label} IS NULL")
            if depth.thorough:
                yield count_where(f"{e} IS NOT NULL", f"{label} IS NOT NULL")
            what = kind(leaf.type)
            if what in ("list", "map"):
                size = "len" if what == "list" else "cardinality"
                sized = Leaf(f"{size}({e})", f"{size}({label})", DuckDBPyType("BIGINT"))
                inside, _ = self.values(twin, sized, min(depth.constants, 3))
                for value in inside:
                    for operator in ("=", ">"):
                        condition = f"{sized.expression} {operator} {value}"
                        yield count_where(condition, f"{sized.label} {operator} {shown(value)}")
            elif what in SCALARS:
                other = next((top for top in tops if top != e), e)
                yield from self.scalar_questions(twin, leaf, other, depth)

    def scalar_questions(self, twin: str, leaf: Leaf, other: str, depth: Depth) -> Iterator[Question]:
        """The questions about one leaf whose values have an order."""
        e, label, floating = leaf.expression, leaf.label, kind(leaf.type) in FLOATS
        zero = " + 0" if floating else ""  # DuckLake writes -0.0 as 0.0 and both are equal: not a fault
        for function in ("min", "max"):
            sql = f"SELECT CAST({function}({e}){zero} AS VARCHAR) FROM {TABLE}"
            yield Question(f"{function}({label})", sql)
        orders = ["ASC NULLS LAST", "DESC NULLS FIRST"]
        if depth.thorough:
            orders += ["ASC NULLS FIRST", "DESC NULLS LAST"]
            yield Question(
                f"GROUP BY {label}",
                f"SELECT concat(count(*), ' groups of ', sum(n)) FROM"
                f" (SELECT {e} AS k, count(*) AS n FROM {TABLE} GROUP BY ALL)",
            )
        for order in orders:
            yield Question(
                f"ORDER BY {label} {order} LIMIT {TOP}",
                f"SELECT CAST(list_sort(list(k{zero})) AS VARCHAR) FROM"
                f" (SELECT {e} AS k FROM {TABLE} ORDER BY {e} {order} LIMIT {TOP})",
            )
        inside, beyond = self.values(twin, leaf, depth.constants)
        for value in dict.fromkeys(inside + beyond):
            yield count_where(f"{e} = {value}", f"{label} = {shown(value)}")
        # where a wrong bound shows: at the ends, beyond them, and between
        asked = dict.fromkeys((value, op) for value in spread(inside, 3)[1:-1] for op in ("<", ">"))
        if inside:
            ends = ((inside[0], ("<", "<=", ">")), (inside[-1], (">", ">=", "<")))
            more = ((inside[0], (">=",)), (inside[-1], ("<=",))) if depth.thorough else ()
            asked |= dict.fromkeys((value, op) for value, ops in (*ends, *more) for op in ops)
        for value, ops in zip(beyond, (("<", ">="), ("<=", ">")), strict=True):
            asked |= dict.fromkeys((value, op) for op in (ops if depth.thorough else ops[1:]))
        for value, operator in asked:
            yield count_where(f"{e} {operator} {value}", f"{label} {operator} {shown(value)}")
        if floating:
            nan = f"CAST('nan' AS {leaf.type})"
            yield count_where(f"isnan({e})", f"isnan({label})")
            for operator in ("=", "<", ">="):
                yield count_where(f"{e} {operator} {nan}", f"{label} {operator} nan")
        if not depth.thorough:
            return
        for value in inside[:1]:
            yield count_where(
                f"{e} = {value} AND {other} IS NOT NULL", f"{label} = {shown(value)} AND {other} IS NOT NULL"
            )
            yield count_where(f"{e} <> {value}", f"{label} <> {shown(value)}")
            yield count_where(f"{e} = {value} OR {e} IS NULL", f"{label} = {shown(value)} OR {label} IS NULL")
        if len(inside) > 1:
            first, last = inside[0], inside[-1]
            yield count_where(f"{e} IN ({first}, {last})", f"{label} IN ({shown(first)}, {shown(last)})")
            yield count_where(f"{e} BETWEEN {first} AND {last}", f"{label} BETWEEN {shown(first)} AND {shown(last)}")

    def answer(self, relation: str, questions: Sequence[Question]) -> Iterator[str | duckdb.Error | None]:
        """The answer to each question, many to a round trip, two round trips at a time."""
        texts = [question.sql.replace(TABLE, relation) for question in questions]
        batches = [texts[start : start + ARMS_PER_QUERY] for start in range(0, len(texts), ARMS_PER_QUERY)]
        with ThreadPoolExecutor(2) as pool:
            for answers in pool.map(self.answer_batch, batches):
                yield from answers

    def answer_batch(self, batch: Sequence[str]) -> list[str | duckdb.Error | None]:
        """The answers of one UNION ALL; if it fails, of its selects one by one, to know which."""
        with self.connection.cursor() as cursor:
            try:
                return [as_text(row[0]) for row in run(cursor, union(batch))]
            except duckdb.Error:
                answers: list[str | duckdb.Error | None] = []
                for sql in batch:
                    try:
                        answers.append(as_text(run(cursor, sql)[0][0]))
                    except duckdb.Error as error:
                        answers.append(error)
                return answers

    def ask(
        self,
        where: str,
        twin: str,
        relation: str,
        columns: Sequence[Column],
        depth: Depth,
        mode: tuple[str, str] = PLAIN,
    ) -> None:
        """Every question to a relation of the lake and to its twin; a fault for each difference."""
        where += mode[1]
        memory = f"memory.main.{twin}"
        questions = list(self.questions(memory, columns, depth))
        unknown = [q for q in questions if (twin, q.sql) not in self.answers]
        for question, value in zip(unknown, self.answer(memory, unknown), strict=True):
            if isinstance(value, duckdb.Error):
                raise AssertionError(f"the judge asks what DuckDB cannot answer: {question.sql}: {value}")
            self.answers[twin, question.sql] = value
        self.run(f"SET disabled_optimizers={text(mode[0])}")
        try:
            self.compare_rows(where, memory, relation, columns)
            for question, got in zip(questions, self.answer(relation, questions), strict=True):
                want = self.answers[twin, question.sql]
                if isinstance(got, duckdb.Error):
                    sql = question.sql.replace(TABLE, relation)
                    self.fault(where, f"{question.label} ({one_line(sql)}): {one_line(str(got))}")
                elif got != want:
                    self.fault(where, f"{question.label} -> {got}{question.unit}, expected {want}")
        finally:
            self.reset_optimizers()

    def reset_optimizers(self) -> None:
        """Every optimizer on again; nothing to do for an instance that is dead."""
        with suppress(duckdb.FatalException):  # the internal error that killed it is on its way up
            self.connection.execute("SET disabled_optimizers=''")

    def compare_rows(self, where: str, memory: str, relation: str, columns: Sequence[Column]) -> None:
        """All rows as multisets."""
        listed = ", ".join(name(column.name) for column in columns)
        # The lake's rows are set aside first, so that its statistics do not steer the comparison itself.
        if self.attempt(where, f"CREATE OR REPLACE TEMP TABLE seen AS SELECT {listed} FROM {relation}") is None:
            return
        self.differ(where, "row", columns, [("seen", "1")], [(memory, "1")])

    def differ(
        self,
        where: str,
        what: str,
        columns: Sequence[Column],
        have: Sequence[tuple[str, str]],
        want: Sequence[tuple[str, str]],
    ) -> None:
        """A fault for each of the first rows that two multisets do not share; sources are (table, weight)."""
        keys = ", ".join(f"{comparable(name(c.name), c.type)} AS c{i}" for i, c in enumerate(columns))
        named = ", ".join(f"c{i}" for i in range(len(columns)))
        signed = [(source, f"({weight})") for source, weight in have]
        signed += [(source, f"-({weight})") for source, weight in want]
        arms = " UNION ALL ".join(f"SELECT {keys}, {weight} AS n FROM {source}" for source, weight in signed)
        rows = self.attempt(
            where,
            f"SELECT sum(n) AS d, count(*) OVER () AS total, {named} FROM ({arms})"
            f" GROUP BY {named} HAVING sum(n) <> 0 LIMIT 4",
        )
        for difference, total, *row in rows or []:
            assert isinstance(difference, int)
            sense = "too many" if difference > 0 else "missing"
            self.fault(where, f"{what} {abs(difference)}x {sense} ({total} differ): {shown(str(tuple(row)))}")


def run(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[object, ...]]:
    """The rows of a statement; Invalidated for an internal error, after which DuckDB refuses everything."""
    try:
        return connection.execute(sql).fetchall()
    except (duckdb.InternalException, duckdb.FatalException) as error:
        raise Invalidated(f"{one_line(sql)}: {one_line(str(error))}") from error


def union(batch: Sequence[str]) -> str:
    """Selects of one value each as one query, in their order."""
    return "\nUNION ALL ".join(batch)


def as_text(value: object) -> str | None:
    """An answer, which every question casts to text."""
    assert value is None or isinstance(value, str)
    return value


def one_line(message: str) -> str:
    """A message or statement on one line of bearable length."""
    line = " ".join(message.split())
    return line if len(line) <= 400 else line[:280] + " ... " + line[-100:]


def shown(value: str) -> str:
    """A constant as a person reads it."""
    if value.startswith("CAST("):
        value, type_ = value[5:-1].rsplit(" AS ", 1)
        if type_.lower() in INTEGERS | FLOATS or type_.startswith("DECIMAL"):
            value = value.strip("'")
    return value if len(value) <= 120 else value[:117] + "..."


def extensions(attach: str) -> list[str]:
    """The extensions that an attach path needs."""
    needed = ["ducklake"]
    if attach.startswith("sqlite:"):
        needed.append("sqlite_scanner")
    if attach.startswith("postgres:"):
        needed.append("postgres_scanner")
    return needed


# -- the lake as it is


@dataclass(frozen=True)
class State:
    """An expected state: its twin in memory, its columns, and where in the lake it is found."""

    twin: str
    columns: list[Column]
    snapshot: int | None
    time: str | None
    last: bool
    other_columns: bool

    def places(self, table: str) -> Iterator[tuple[str, str]]:
        """(how it is called, relation) for each way of asking; the first is the one asked in full."""
        if self.last:
            yield "@current", table
        if self.snapshot is not None:
            yield f"@{self.snapshot}", f"{table} AT (VERSION => {self.snapshot})"
        if self.time is not None:
            yield f"@{self.time}", f"{table} AT (TIMESTAMP => TIMESTAMPTZ {text(self.time)})"


def load_states(session: Session) -> list[State]:
    """The expected states whose columns the lake has."""
    states = []
    versions = session.subject["versions"]
    for index, version in enumerate(versions):
        state = State(
            f"twin_{index}",
            [],
            version["snapshot"],
            version["time"],
            index == len(versions) - 1,
            version["other_columns"],
        )
        where, relation = next(state.places(session.table))
        columns = session.expect(where, state.twin, version["rows"], relation)
        if columns is not None:
            state.columns.extend(columns)
            states.append(state)
    return states


def ask_as_it_is(session: Session, states: Sequence[State]) -> None:
    """Every state in every way of asking, with and without the shortcuts."""
    filters = session.request["filters"]
    for state in states:
        for index, (where, relation) in enumerate(state.places(session.table)):
            columns = session.columns_of(where, relation)
            if columns is None:
                continue
            if [(c.name, str(c.type)) for c in columns] != [(c.name, str(c.type)) for c in state.columns]:
                session.fault(where, f"columns are {[(c.name, str(c.type)) for c in columns]}")
                continue
            if index == 0:
                constants = filters if state.last else min(filters, max(8, filters // 4))
                depth = Depth(constants, thorough=state.last)
                session.ask(where, state.twin, relation, state.columns, depth)
                session.ask(where, state.twin, relation, state.columns, Depth(min(filters, 4)), FILES_ONLY)
                session.ask(where, state.twin, relation, state.columns, Depth(0), SCAN_ONLY)
            else:
                # the same files under another name: enough to tell that it is the same snapshot
                versioned = state.last and "VERSION" in relation
                depth = Depth(min(filters, 4) if versioned else 0)
                session.ask(where, state.twin, relation, state.columns, depth)


def ask_shortly(session: Session, states: Sequence[State], after: str, mode: tuple[str, str] = PLAIN) -> None:
    """The states again, with fewer constants, after something that must not have changed them."""
    for state in states:
        where, relation = next(state.places(session.table))
        if session.columns_of(f"{where} {after}", relation) is not None:
            depth = Depth(min(session.request["filters"], 2))
            session.ask(f"{where} {after}", state.twin, relation, state.columns, depth, mode)


# -- what later use does to the lake


def check_changes(session: Session, states: Sequence[State]) -> None:
    """The change feed between consecutive states adds up to their difference."""
    known = [state for state in states if state.snapshot is not None]
    for before, after in pairwise(known):
        where = f"@{before.snapshot}..{after.snapshot} table_changes"
        steps = session.attempt(
            where,
            "SELECT snapshot_id FROM ducklake_snapshots('lake')"
            f" WHERE snapshot_id > {before.snapshot} AND snapshot_id <= {after.snapshot} ORDER BY ALL",
        )
        if not steps:
            continue
        # Step by step: a range over several delete files of one data file repeats their common positions.
        schema, table = text(session.subject["schema"]), text(session.subject["table"])
        same = not after.other_columns and [(c.name, str(c.type)) for c in before.columns] == [
            (c.name, str(c.type)) for c in after.columns
        ]
        fine = True
        session.run("DROP TABLE IF EXISTS temp.main.net")
        for (step,) in steps:
            call = f"ducklake_table_changes('lake', {schema}, {table}, {step}, {step})"
            if not same:
                fine &= session.attempt(where, f"SELECT count(*) FROM {call}") is not None
                continue
            # by position: the table may have columns named like those of the feed
            aliases = ["change_snapshot", "change_row", "change_kind"] + [f"c{i}" for i in range(len(after.columns))]
            items = ", ".join(f"c{i} AS {name(c.name)}" for i, c in enumerate(after.columns))
            query = (
                f"SELECT CASE WHEN change_kind IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
                f" AS {name('judge weight')}, {items} FROM {call} AS x({', '.join(aliases)})"
            )
            into = "INSERT INTO temp.main.net" if step != steps[0][0] else "CREATE TEMP TABLE net AS"
            fine &= session.attempt(where, f"{into} {query}") is not None
        if same and fine:
            session.differ(
                where,
                "change",
                after.columns,
                [("temp.main.net", name("judge weight"))],
                [(f"memory.main.{after.twin}", "1"), (f"memory.main.{before.twin}", "-1")],
            )


def check_rowids(session: Session, where: str, columns: Sequence[Column]) -> None:
    """Every row has a rowid of its own."""
    if any(column.name.lower() == "rowid" for column in columns):
        return  # the name means the column then
    rows = session.attempt(
        where, f"SELECT count(*), count(r), count(DISTINCT r) FROM (SELECT rowid AS r FROM {session.table})"
    )
    if rows and len(set(rows[0])) != 1:
        total, given, distinct = rows[0]
        session.fault(where, f"rowid: {total} rows, {given} not NULL, {distinct} distinct")


class Changes:
    """Ordinary statements given to the lake and to an in-memory twin alike, with questions in between."""

    def __init__(self, session: Session, state: State, copied: tuple[str, str]) -> None:
        self.session = session
        self.catalog, self.options = copied
        self.twin = "twin_changed"
        self.columns = self.with_nullability(state.columns)
        session.run(f"CREATE OR REPLACE TABLE memory.main.{self.twin} AS SELECT * FROM memory.main.{state.twin}")

    def with_nullability(self, columns: Sequence[Column]) -> list[Column]:
        """The columns, with which of them take NULL."""
        rows = self.session.attempt("@current", f"DESCRIBE {self.session.table}") or []
        strict = {row[0] for row in rows if row[2] == "NO"}
        return [Column(c.name, c.type, c.name not in strict) for c in columns]

    def both(self, step: str, statement: str) -> bool:
        """A statement to both sides; a fault if the lake refuses it."""
        session = self.session
        if session.attempt(f"@current {step}", statement.replace(TABLE, session.table)) is None:
            return False
        session.run(statement.replace(TABLE, f"memory.main.{self.twin}"))
        session.answers = {key: value for key, value in session.answers.items() if key[0] != self.twin}
        return True

    def ask(self, after: str) -> None:
        """The current state again."""
        depth = Depth(min(self.session.request["filters"], 3))
        self.session.ask(f"@current {after}", self.twin, self.session.table, self.columns, depth)

    def row(self, upper: bool) -> str:
        """A query for a row that lies outside the others in every column that has an outside."""
        table = f"memory.main.{self.twin}"
        items = []
        for column in self.columns:
            leaf = Leaf(name(column.name), column.name, column.type)
            if kind(column.type) in SCALARS:
                items.append(f"{outside(leaf, table, upper)} AS {leaf.expression}")
            else:
                items.append(
                    f"(SELECT {leaf.expression} FROM {table} WHERE {leaf.expression} IS NOT NULL"
                    f" ORDER BY CAST({leaf.expression} AS VARCHAR) LIMIT 1) AS {leaf.expression}"
                )
        return f"SELECT {', '.join(items)}"

    def insert(self, step: str, query: str) -> bool:
        """The rows of a query, computed once, inserted on both sides."""
        # as an expected row: whatever computes it must not see the row it adds
        self.session.run(f"CREATE OR REPLACE TEMP TABLE fresh AS {query}")
        listed = ", ".join(name(column.name) for column in self.columns)
        return self.both(step, f"INSERT INTO {TABLE} ({listed}) SELECT {listed} FROM temp.main.fresh")

    def empty_row(self) -> str:
        """A query for a row of NULLs, but for the columns that refuse them."""
        items = []
        for column in self.columns:
            leaf = Leaf(name(column.name), column.name, column.type)
            value = "NULL"
            if not column.nullable:
                value = f"(SELECT min({leaf.expression}) FROM memory.main.{self.twin})"
                if kind(column.type) in SCALARS:
                    value = outside(leaf, f"memory.main.{self.twin}", True)
            items.append(f"CAST({value} AS {column.type}) AS {leaf.expression}")
        return f"SELECT {', '.join(items)}"

    def key(self) -> Column | None:
        """The column that tells rows apart best."""
        scalars = [c for c in self.columns if kind(c.type) in SCALARS - FLOATS]
        if not scalars:
            return None
        counts = ", ".join(f"count(DISTINCT {name(c.name)})" for c in scalars)
        (found,) = self.session.run(f"SELECT {counts} FROM memory.main.{self.twin}")
        best = max(range(len(scalars)), key=lambda i: (int(str(found[i])), -i))
        return scalars[best]

    def condition(self, column: Column, share: float) -> str | None:
        """A filter for the value of a column that lies at a share of its range."""
        leaf = Leaf(name(column.name), column.name, column.type)
        inside, _ = self.session.values(f"memory.main.{self.twin}", leaf, 1_000_000)
        return f"{leaf.expression} = {inside[int(share * (len(inside) - 1))]}" if inside else None

    def modify(self) -> None:
        """UPDATE and DELETE of rows found by a filter."""
        key = self.key()
        if key is None:
            return
        target = next((c for c in self.columns if c is not key and kind(c.type) in SCALARS), key)
        leaf = Leaf(name(target.name), target.name, target.type)
        _, beyond = self.session.values(f"memory.main.{self.twin}", leaf, 1)
        where = self.condition(key, 0.25)
        if where and beyond:
            update = f"UPDATE {TABLE} SET {leaf.expression} = {beyond[-1]} WHERE {where}"
            if self.both("UPDATE", update):
                self.ask("after UPDATE")
        where = self.condition(key, 0.6)
        if where and self.both("DELETE", f"DELETE FROM {TABLE} WHERE {where}"):
            self.ask("after DELETE")

    def alter(self) -> None:
        """A column added with a default, one renamed, the added one dropped."""
        taken = {column.name.lower() for column in self.columns}
        if taken & {"judge_added", "judge_renamed"}:
            raise AssertionError("the table has the names the judge keeps for itself")
        before = self.columns
        if self.both("ADD COLUMN", f"ALTER TABLE {TABLE} ADD COLUMN judge_added INTEGER DEFAULT 42"):
            self.columns = [*before, Column("judge_added", DuckDBPyType("INTEGER"))]
        old = self.columns[0]
        if self.both("RENAME", f"ALTER TABLE {TABLE} RENAME COLUMN {name(old.name)} TO judge_renamed"):
            self.columns = [Column("judge_renamed", old.type, old.nullable), *self.columns[1:]]
        if self.insert("INSERT after ALTER", self.row(True)):
            self.ask("after ADD and RENAME COLUMN and INSERT")
        drop = f"ALTER TABLE {TABLE} DROP COLUMN judge_added"
        if len(self.columns) > len(before) and self.both("DROP COLUMN", drop):
            self.columns = self.columns[: len(before)]
            self.ask("after DROP COLUMN")

    def play(self) -> None:
        """All of it."""
        session = self.session
        copied = f"(SELECT * FROM memory.main.{self.twin} LIMIT 1)"
        if self.insert("INSERT", f"{self.row(True)} UNION ALL {copied}"):
            self.ask("after INSERT of larger values")
        session.attach(self.catalog, "DATA_INLINING_ROW_LIMIT 0" + self.options)
        if self.insert("INSERT", f"{self.row(False)} UNION ALL {self.empty_row()}"):
            self.ask("after INSERT of smaller values and NULL")
        self.modify()
        self.alter()
        check_rowids(session, "@current after all changes", self.columns)


def compact(session: Session, states: Sequence[State], current: Callable[[str], None], after: str) -> None:
    """What a maintenance job does, but for expiring snapshots and deleting files (perhaps a source's)."""
    history = [replace(state, last=False) for state in states if state.snapshot is not None]
    for steps in (
        ("ducklake_flush_inlined_data('lake')", "ducklake_merge_adjacent_files('lake')"),
        (
            "ducklake_rewrite_data_files('lake', delete_threshold => 0)",
            "ducklake_merge_adjacent_files('lake')",
        ),
    ):
        rewritten = "rewrite" in steps[0]
        done = "rewrite" if rewritten else "flush and merge"
        for call in steps:
            session.attempt(f"@compaction{after}", f"CALL {call}")
        current(f"after {done}{after}")
        # rewrite_data_files of DuckDB 1.5.5 replaces the table statistics by those of the live files, and
        # filters on older snapshots lose rows even in its own lakes: history is asked without them then.
        if rewritten or not after:
            ask_shortly(session, history, f"after {done}{after}", FILES_ONLY if rewritten else PLAIN)


def inlining_garbles(attach: str, columns: Sequence[Column]) -> bool:
    """Whether DuckDB 1.5.5 spoils rows it inlines: nested quotes and NaN, but for DuckDB-file catalogs."""
    server = attach.startswith(("sqlite:", "postgres:", "mysql:"))
    return server and any(kind(column.type) in ("struct", "list", "map") for column in columns)


# -- copies


def catalog_file(attach: str) -> Path | None:
    """The file a catalog lives in, or None for a server."""
    kind_, _, rest = attach.partition(":")
    if kind_ in ("sqlite", "duckdb") and rest:
        return Path(rest)
    if kind_ in ("postgres", "mysql", "md", "motherduck", "quack"):
        return None
    return Path(attach)


def copy_of(session: Session, file: Path, folder: Path) -> tuple[str, str] | None:
    """(attach path, attach options) of a copy of the lake whose new files stay in a folder."""
    folder.mkdir(parents=True)
    copied = folder / file.name
    for suffix in ("", ".wal", "-wal", "-journal"):
        if Path(str(file) + suffix).exists():
            shutil.copyfile(str(file) + suffix, str(copied) + suffix)
    prefix = "sqlite:" if session.request["attach"].startswith("sqlite:") else ""
    scanned = " (TYPE sqlite, READ_ONLY)" if prefix else " (READ_ONLY)"
    session.run(f"ATTACH {text(str(copied))} AS copied{scanned}")
    rows = session.run("SELECT value FROM copied.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL")
    session.run("DETACH copied")
    data = str(rows[0][0]) if rows else ""
    if "://" in data and not data.startswith("file://"):
        session.fault("@copy", f"the data path {data} is not local: use change=False")
        return None
    # Relative paths of the catalog must lead to the same files under the new data path: links, not copies.
    links = folder / "data"
    source = Path(data.removeprefix("file://"))
    if data and source.is_dir():
        shutil.copytree(source, links, copy_function=lambda old, new: os.symlink(os.path.abspath(old), new))
    links.mkdir(exist_ok=True)
    return prefix + str(copied), f", DATA_PATH {text(str(links) + '/')}, OVERRIDE_DATA_PATH true"


def play_on_copies(session: Session, states: Sequence[State], folder: Path) -> None:
    """The change feed, ordinary changes and (if asked) compaction, on copies where there can be copies."""
    request = session.request
    file = catalog_file(request["attach"])

    def fresh(label: str) -> tuple[str, str] | None:
        if file is None:
            return request["attach"], ""
        return copy_of(session, file, folder / label)

    ended = next((state for state in states if state.last), None)
    if request["compact"]:
        copied = fresh("compacted")
        if copied and session.attach(copied[0], "DATA_INLINING_ROW_LIMIT 10" + copied[1]):
            now = [state for state in states if state.last]
            compact(session, states, lambda after: ask_shortly(session, now, after), "")
    if request["change"]:
        copied = fresh("changed")
        limit = 0 if ended is not None and inlining_garbles(request["attach"], ended.columns) else 10
        if copied and session.attach(copied[0], f"DATA_INLINING_ROW_LIMIT {limit}" + copied[1]):
            check_changes(session, states)
            if ended is not None:
                check_rowids(session, "@current", ended.columns)
                changes = Changes(session, ended, copied)
                changes.play()
                history = [replace(state, last=False) for state in states if state.snapshot is not None]
                ask_shortly(session, history, "after all changes")
                if request["compact"]:
                    compact(session, states, changes.ask, " after all changes")


def judge_subject(request: Request, subject: SubjectRequest, report: Callable[[str], None], folder: Path) -> None:
    """One table, in an instance of its own: an internal error costs the others nothing."""
    label = f"{subject['schema']}.{subject['table']}"
    session = Session(request, subject, report)
    try:
        if not session.attach(request["attach"], "READ_ONLY"):
            return
        states = load_states(session)
        ask_as_it_is(session, states)
        play_on_copies(session, states, folder)
    except Invalidated as error:
        report(f"{label}: internal error, nothing more was asked: {error}")
    finally:
        session.connection.close()


def main(path: str) -> None:
    """Answers the request in a file."""
    request: Request = json.loads(Path(path).read_text())
    with open(request["answer"], "w", encoding="utf-8") as answer:

        def report(line: str) -> None:
            answer.write(json.dumps({"fault": line}) + "\n")
            answer.flush()

        for index, subject in enumerate(request["subjects"]):
            judge_subject(request, subject, report, Path(request["scratch"], f"subject-{index}"))
        answer.write(json.dumps({"end": datetime.now().isoformat()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
