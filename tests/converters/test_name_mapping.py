"""Laws of name mappings: a file's columns are what the mapping's names say, whatever the order and the layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.model.findings import Code
from bridge.model.mapping import MappedColumn, NameMapping
from bridge.model.schema import Schema, walk
from bridge.model.types import ColumnType, Field, FieldId, Leaf, ListOf, MapOf, Struct, children
from converters.iceberg.name_mapping import layout_of, parse_names
from converters.parquet.path_value import Unreadable, read_texts, segments
from converters.parquet.shape import Kind, Node

NAMES = st.text("abcXYZ_", min_size=1, max_size=4)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Nested columns whose names differ without case, ids in no order."""
    ids = iter(draw(st.permutations(range(1, 200))))

    def field(name: str, depth: int) -> Field:
        return Field(FieldId(next(ids)), name, type_(depth))

    def named(depth: int) -> tuple[Field, ...]:
        names = draw(st.lists(NAMES, min_size=1, max_size=3, unique_by=str.casefold))
        return tuple(field(name, depth) for name in names)

    def type_(depth: int) -> ColumnType:
        match draw(st.sampled_from(("leaf", "leaf", "struct", "list", "map"))) if depth else "leaf":
            case "struct":
                return Struct(named(depth - 1))
            case "list":
                return ListOf(field("element", depth - 1))
            case "map":
                return MapOf(replace(field("key", 0), required=True), field("value", depth - 1))
            case _:
                return Leaf.INT32

    return Schema(0, named(3))


def shape_of(fields: tuple[Field, ...], names: Mapping[int, str]) -> tuple[Node, ...]:
    """A file of these columns under other names and without ids."""

    def node(field: Field) -> Node:
        kind = {Struct: Kind.STRUCT, ListOf: Kind.LIST, MapOf: Kind.MAP}.get(type(field.type), Kind.LEAF)
        group = {Kind.LIST: "list", Kind.MAP: "key_value"}.get(kind, "")
        name = names.get(field.id, field.name)
        return Node(name, None, kind, tuple(node(each) for each in children(field.type)), group)

    return tuple(node(each) for each in fields)


def stored(fields: tuple[Field, ...], more: Mapping[int, str]) -> list[dict[str, Any]]:
    """The mapping's JSON, each field with its own name and perhaps one more."""
    return [
        {
            "field-id": int(each.id),
            "names": list(dict.fromkeys([each.name, more.get(each.id, each.name)])),
            "fields": stored(children(each.type), more),
        }
        for each in fields
    ]


def mapped(columns: tuple[MappedColumn, ...]) -> Iterator[MappedColumn]:
    for each in columns:
        yield each
        yield from mapped(each.children)


def renames(schema: Schema) -> dict[int, str]:
    """A name of its own for every column and struct field; list and map levels keep theirs."""
    inner = {int(child.id) for each in walk(schema.fields) if not isinstance(each.field.type, Struct)
             for child in children(each.field.type)}  # fmt: skip
    return {int(each.field.id): f"old{each.field.id}" for each in walk(schema.fields) if each.field.id not in inner}


@settings(max_examples=40)
@given(schemas(), st.randoms())
def test_every_column_is_found_under_an_old_name(schema: Schema, random: Any) -> None:
    old = renames(schema)
    names = parse_names(json.dumps(stored(schema.fields, old)))
    shape = list(shape_of(schema.fields, old))
    random.shuffle(shape)
    layout = layout_of(shape, schema, names)
    assert layout.faults == ()
    found = {int(each.field): each.name for each in mapped(layout.columns)}
    assert set(found) == {int(each.field.id) for each in walk(schema.fields)}
    assert {id_: name for id_, name in found.items() if id_ in old} == old
    assert {way[-1] for way in layout.leaves} == {int(each.field.id) for each in walk(schema.fields) if each.is_leaf}


@settings(max_examples=40)
@given(schemas())
def test_names_of_nothing_are_absent_columns(schema: Schema) -> None:
    kept = schema.fields[: len(schema.fields) // 2]
    layout = layout_of(shape_of(schema.fields, {}), schema, parse_names(json.dumps(stored(kept, {}))))
    assert [each.field for each in layout.columns] == [each.id for each in kept]
    assert bool(layout.faults) == (not kept)


@settings(max_examples=40)
@given(schemas())
def test_own_ids_win_over_every_name(schema: Schema) -> None:
    def with_ids(nodes: tuple[Node, ...], fields: tuple[Field, ...]) -> tuple[Node, ...]:
        return tuple(
            replace(node, id=int(each.id), name=f"x{each.id}" if node.kind is not Kind.MAP else node.name,
                    children=with_ids(node.children, children(each.type)))
            for node, each in zip(nodes, fields, strict=True)
        )  # fmt: skip

    shape = with_ids(shape_of(schema.fields, {}), schema.fields)
    layout = layout_of(shape, schema, {f"x{each.id}": 999 for each in schema.fields})
    assert {code for code, _ in layout.faults} <= {Code.NESTED_LAYOUT}  # map levels of other names
    assert [each.field for each in layout.columns] == [each.id for each in schema.fields]


@settings(max_examples=40)
@given(schemas())
def test_a_mapping_restricted_to_its_own_fields_is_itself(schema: Schema) -> None:
    layout = layout_of(shape_of(schema.fields, {}), schema, parse_names(json.dumps(stored(schema.fields, {}))))
    every = frozenset(each.field.id for each in walk(schema.fields))
    once = NameMapping(layout.columns).restricted(every)
    assert once == once.restricted(every) == NameMapping(tuple(reversed(layout.columns))).restricted(every)
    assert NameMapping(layout.columns).restricted(frozenset()).columns == ()


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[1]", '[{"field-id": "1"}]', '[{"field-id": true}]', '[{"field-id": 1, "names": "a"}]',
        '[{"field-id": 1, "names": ["a"]}, {"field-id": 1, "names": ["b"]}]',
        '[{"field-id": 1, "names": ["a"]}, {"field-id": 2, "names": ["a"]}]',
        '[{"field-id": 1, "names": ["a.b"]}, '
        '{"field-id": 2, "names": ["a"], "fields": [{"field-id": 3, "names": ["b"]}]}]',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_what_iceberg_java_does_not_take_is_no_mapping(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_names(text)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a/x=1/y=a%20b/f.parquet", {"x": "1", "y": "a%20b"}),
        ("/x=1/x=2/x=3.parquet", {"x": "1"}),
        ("s3://b/x=a=b/q=a?b/=c/k=/f", {"k": ""}),
        ("x=1", {}),
    ],
)
def test_segments_are_those_that_duckdb_sees(path: str, found: dict[str, str]) -> None:
    assert segments(path) == found


def test_texts_of_paths_are_read_as_duckdb_does() -> None:
    assert read_texts(["a%2Fb", "a+b", "a%zz", "%FF", "", "null", "__HIVE_DEFAULT_PARTITION__"], Leaf.STRING) == [
        "a/b", "a+b", "a%zz", Unreadable, "", None, None,
    ]  # fmt: skip
    assert read_texts(["05", "", "x", "NULL"], Leaf.INT32) == [5, None, Unreadable, None]
