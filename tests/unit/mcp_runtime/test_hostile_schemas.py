"""Schemas and arguments that were made to cost much. Each check keeps its budget, and every secret is masked."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_runtime.schemas import schema_work, secrets, validation

# A single step is not interrupted, for example a pattern or a list of a megabyte. The machine adds its own noise.
MAX_EXTRA_SECONDS = 0.6

Schema = dict[str, Any]
SECRET: Schema = {"type": "string", "writeOnly": True}


def cpu_seconds(function: Callable[[], object]) -> float:
    started_at = time.thread_time()
    function()
    return time.thread_time() - started_at


def validate(schema: Schema, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(validation.ArgumentsError, validation.BrokenSchemaError):
        validation.validate(schema, arguments)


def nested(levels: int, innermost: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        innermost = wrap(innermost)
    return innermost


def references(depth: int, keyword: str, end: Schema) -> Schema:
    """Each definition refers twice to the next one, so that there are 2 to the power of `depth` applications."""
    definitions: Schema = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": end}}


def patterns(count: int, part: Any) -> Schema:
    return {f"^x{number}.*[a-z]+{number}$": part for number in range(count)}


RECURSIVE: Schema = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "anyOf": [{"type": "integer"}, {"items": {"$ref": "#/$defs/node"}}, {"$ref": "#/$defs/map"}],
            "writeOnly": False,
        },
        "map": {"additionalProperties": {"$ref": "#/$defs/node"}, "properties": {"pw": SECRET}},
    },
}
MANY_ARGUMENTS = {f"key{number}": "hunter2" for number in range(50_000)}
NESTED_LISTS = [[[0] * 100 for _ in range(100)] for _ in range(100)]
NESTED_CONTAINS: Schema = {
    "contains": {"contains": {"contains": {"type": "string"}, "minContains": 0}, "minContains": 0},
    "minContains": 0,
}

HOSTILE: dict[str, tuple[Schema, dict[str, Any]]] = {
    "recursive references and deep arguments": (RECURSIVE, {"a": nested(90, "text", lambda inner: [inner])}),
    "recursive references and a wide tree": (RECURSIVE, {"a": [[[{"pw": "hunter2"}] * 60] * 60] * 60}),
    "anyOf to the power of n": (references(40, "anyOf", {"type": "null"}), {"a": 1}),
    "oneOf to the power of n": (references(40, "oneOf", {"properties": {"a": SECRET}}), {"a": "hunter2"}),
    "allOf to the power of n, in each item": (
        {"properties": {"a": {"items": references(30, "allOf", {})}}, **references(30, "allOf", {})},
        {"a": list(range(10_000))},
    ),
    "thousands of patterns and thousands of keys": ({"patternProperties": patterns(4000, SECRET)}, MANY_ARGUMENTS),
    "thousands of patterns that deny": (
        {"patternProperties": patterns(4000, {}), "additionalProperties": False},
        MANY_ARGUMENTS,
    ),
    "patterns that cannot be tried": (
        {"patternProperties": {f"(?={number})": SECRET for number in range(500)}},
        MANY_ARGUMENTS,
    ),
    "a huge enum for each of many values": (
        {"additionalProperties": {"enum": [f"{number:04}" for number in range(20_000)]}},
        MANY_ARGUMENTS,
    ),
    "an enum of lists that differ late": (
        {"additionalProperties": {"enum": [[[0] * 500, number] for number in range(120)]}},
        {f"k{number}": [[0] * 500, "x"] for number in range(2000)},
    ),
    "contains in contains in contains": ({"properties": {"a": NESTED_CONTAINS}}, {"a": NESTED_LISTS}),
    "contains that allows anything": (
        {"properties": {"a": {"contains": {}, "maxContains": 0}}},
        {"a": [0] * 1_000_000},
    ),
    "items that allow anything, often": (
        {"properties": {"a": {"allOf": [{"items": True}] * 5000}}},
        {"a": [0] * 500_000},
    ),
    "dependentSchemas of each other": (
        {
            "dependentSchemas": {f"k{n}": {"$ref": "#/$defs/d"} for n in range(500)},
            "$defs": {
                "d": {"dependentSchemas": {f"k{n}": {"$ref": "#/$defs/e"} for n in range(500)}},
                "e": {"dependentSchemas": {f"k{n}": {"properties": {f"k{n}": SECRET}} for n in range(500)}},
            },
        },
        {f"k{n}": "hunter2" for n in range(500)},
    ),
    "not of not of not": (nested(300, {"type": "object"}, lambda inner: {"not": inner}), {"a": 1}),
    "not of a definition, doubled each time": (
        {
            "$ref": "#/$defs/n0",
            "$defs": {
                **{f"n{n}": {"not": {"anyOf": [{"not": {"$ref": f"#/$defs/n{n + 1}"}}] * 2}} for n in range(60)},
                "n60": {"type": "object"},
            },
        },
        {"a": 1},
    ),
    "allOf of 10,000": ({"allOf": [{"required": ["b"]}] * 8_000 + [{"writeOnly": True}]}, {"a": "hunter2" * 100_000}),
    "allOf of 10,000 whose errors quote megabytes": ({"allOf": [{"not": {}}] * 15_000}, {"a": "x" * 3_000_000}),
    "the same inside of anyOf": (
        {"anyOf": [{"allOf": [{"properties": {"a": {"type": "integer"}}}] * 3000}]},
        {"a": "x" * 3_000_000},
    ),
    "many required names for many items": (
        {"properties": {"a": {"items": {"anyOf": [{"required": [f"r{n}" for n in range(10_000)]}]}}}},
        {"a": [{}] * 50_000},
    ),
    "unique items that are large": (
        {"properties": {"a": {"allOf": [{"uniqueItems": True}] * 2000}}},
        {"a": [[number, {"x": number}] for number in range(60_000)]},
    ),
    "unevaluated items of a long list": (
        {"properties": {"a": {"prefixItems": [{}] * 30_000, "unevaluatedItems": False}}},
        {"a": [0] * 300_000},
    ),
    "unevaluated properties of a large object": (
        {"properties": {f"p{n}": {} for n in range(8000)}, "unevaluatedProperties": False},
        MANY_ARGUMENTS,
    ),
    "a pattern that takes 2,000 instructions a character": (
        {"properties": {"a": {"allOf": [{"pattern": f"((((a?){{10}}){{10}}){{10}})b{n}$"} for n in range(500)]}}},
        {"a": "a" * 40_000},
    ),
    "a secret in each of 50,000 arguments": ({"additionalProperties": SECRET}, MANY_ARGUMENTS),
    "a secret in each of 50,000 arguments, deep inside": (
        {"properties": {"a": RECURSIVE}, **{"$defs": RECURSIVE["$defs"]}},
        {"a": nested(60, [{"pw": "hunter2"}] * 20_000, lambda inner: {"a": inner})},
    ),
    "a chain of references": (
        {
            "$ref": "#/$defs/c0",
            "$defs": {
                **{f"c{n}": {"$ref": f"#/$defs/c{n + 1}", "properties": {"x": {"$ref": "#"}}} for n in range(400)},
                "c400": {"properties": {"pw": SECRET}},
            },
        },
        {"pw": "hunter2", "x": {"x": {"x": {"pw": "hunter2"}}}},
    ),
    "anchors": (
        {
            "properties": {f"p{n}": {"$ref": f"#a{n}"} for n in range(2000)},
            "$defs": {f"d{n}": {"$anchor": f"a{n}", "properties": {"pw": SECRET}} for n in range(2000)},
        },
        {f"p{n}": {"pw": "hunter2"} for n in range(2000)},
    ),
}


@pytest.fixture(params=HOSTILE, ids=str)
def hostile(request: pytest.FixtureRequest) -> tuple[Schema, dict[str, Any]]:
    return HOSTILE[request.param]


def test_a_hostile_schema_is_checked_within_the_budget(hostile: tuple[Schema, dict[str, Any]]) -> None:
    schema, _ = hostile
    assert cpu_seconds(lambda: validation.check_schema(schema)) < validation.CHECK_SECONDS + MAX_EXTRA_SECONDS


def test_arguments_are_validated_within_the_budget(hostile: tuple[Schema, dict[str, Any]]) -> None:
    schema, arguments = hostile
    validation.check_schema(schema)  # this happens when the tool is listed
    assert cpu_seconds(lambda: validate(schema, arguments)) < validation.VALIDATION_SECONDS + MAX_EXTRA_SECONDS


def test_all_secrets_are_masked_within_the_budget(hostile: tuple[Schema, dict[str, Any]]) -> None:
    schema, arguments = hostile
    validation.check_schema(schema)
    masked_arguments: list[dict[str, Any]] = []

    def mask_secrets() -> None:
        paths = secrets.secret_paths(schema, arguments)
        masked_arguments.extend([secrets.mask(arguments, paths), secrets.without(arguments, paths)])

    assert cpu_seconds(mask_secrets) < secrets.SECRETS_SECONDS + MAX_EXTRA_SECONDS
    if '"writeOnly": true' in json.dumps(schema):
        assert all("hunter2" not in json.dumps(arguments) for arguments in masked_arguments)


def test_every_argument_is_masked_if_the_search_for_secrets_takes_too_long() -> None:
    schema = {"properties": {"pw": SECRET}, "patternProperties": patterns(4000, SECRET)}
    arguments = {"pw": "hunter2", "plain": "text", **MANY_ARGUMENTS}
    paths = secrets.secret_paths(schema, arguments)
    assert set(secrets.mask(arguments, paths).values()) == {secrets.MASK}
    assert secrets.mask(arguments, paths).keys() == arguments.keys()
    assert secrets.without(arguments, paths) == {}


def test_every_argument_is_masked_if_the_schema_is_too_long() -> None:
    schema = {"properties": {"pw": SECRET}, "description": "x" * schema_work.MAX_SCHEMA_CHARACTERS}
    assert secrets.mask({"a": "b"}, secrets.secret_paths(schema, {"a": "b"})) == {"a": secrets.MASK}


@pytest.mark.parametrize("name", ["a chain of references", "patterns that cannot be tried"])
def test_a_schema_whose_secrets_cannot_be_found_is_searched_only_once(
    name: str,
) -> None:
    schema, _ = HOSTILE[name]
    assert validation.check_schema(schema).endswith("all are masked")
    arguments = {"pw": "hunter2"}
    assert cpu_seconds(lambda: [secrets.secret_paths(schema, arguments) for _ in range(20)]) < 0.2
    assert secrets.secret_paths(schema, arguments) == secrets.EVERYWHERE


@pytest.mark.parametrize(
    "name", ["anyOf to the power of n", "oneOf to the power of n", "not of a definition, doubled each time"]
)
def test_a_schema_that_always_takes_too_long_is_reported_when_it_is_listed(name: str) -> None:
    schema, arguments = HOSTILE[name]
    # Which budget ends first depends on the machine.
    assert validation.check_schema(schema) in validation.TEMPORARY_FAULTS
    # Not again for each call, because the fault is stored and arguments of a tool with a fault are not validated.
    assert cpu_seconds(lambda: [validate(schema, arguments) for _ in range(20)]) < 0.2


def test_arguments_that_nest_too_deep_are_an_arguments_error() -> None:
    """If this counted as a fault of the schema, one call would end the validation for all other calls."""
    node = nested(20, {"properties": {"x": {"$ref": "#"}}}, lambda inner: {"allOf": [inner]})
    schema = {**node, "type": "object"}
    assert validation.check_schema(schema) == ""
    with pytest.raises(validation.ArgumentsError, match="nest too deep"):
        validation.validate(schema, nested(95, {}, lambda inner: {"x": inner}))


def test_a_number_that_is_too_large_is_an_arguments_error() -> None:
    schema = {"properties": {"n": {"multipleOf": 0.5}}}
    with pytest.raises(validation.ArgumentsError, match="too large a number"):
        validation.validate(schema, {"n": 10**400})


def test_arguments_of_a_hundred_levels_are_validated() -> None:
    schema = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    validation.validate(schema, nested(95, {"next": None}, lambda inner: {"next": inner}))


def test_secrets_are_found_behind_recursive_references() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "properties": {"pw": SECRET, "next": {"$recursiveRef": "#"}},
    }
    assert secrets.secret_paths(schema, {"next": {"next": {"pw": 1}}}) == [["next", "next", "pw"]]


# For any schema, the checks end and their results are consistent.
scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
names = st.sampled_from(["a", "b", "c"])


def keyword_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    schema_lists = st.lists(inner, min_size=1, max_size=3)
    schema_dicts = st.dictionaries(names, inner, max_size=3)
    keywords = st.one_of(
        st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"]), schema_lists),
        st.tuples(st.sampled_from(["properties", "patternProperties", "dependentSchemas", "$defs"]), schema_dicts),
        st.tuples(
            st.sampled_from(
                ["items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames",
                 "unevaluatedItems", "unevaluatedProperties"]
            ),
            inner,
        ),
        st.tuples(st.just("$ref"), st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/gone"])),
        st.tuples(st.just("writeOnly"), st.booleans()),
        st.tuples(st.just("type"), st.sampled_from(["object", "array", "string", "integer", "null"])),
        st.tuples(st.just("enum"), st.lists(values, max_size=3)),
        st.tuples(st.just("uniqueItems"), st.just(True)),
    )  # fmt: skip
    return st.lists(keywords, max_size=4).map(dict)


schema_trees = st.recursive(st.booleans() | st.just({}), keyword_schemas, max_leaves=20)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema_trees.filter(lambda tree: isinstance(tree, dict)), st.dictionaries(names, values, max_size=3))
def test_any_schema_is_processed_in_time_and_the_paths_of_secrets_exist(
    schema: Schema, arguments: dict[str, Any]
) -> None:
    assert (
        cpu_seconds(lambda: validate(schema, arguments))
        < validation.CHECK_SECONDS + validation.VALIDATION_SECONDS + MAX_EXTRA_SECONDS
    )
    paths = secrets.secret_paths(schema, arguments)
    for path in paths:
        value: Any = arguments
        for step in path:
            value = value[step]
    masked = secrets.mask(arguments, paths)
    assert secrets.mask(masked, paths) == masked
    if paths:
        assert masked != arguments
    else:
        assert masked == arguments
