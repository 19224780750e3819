"""Everything that the quick checks accept is also accepted by the library."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for
from referencing import Registry

from mcp_runtime.schemas import quick_checks
from mcp_runtime.schemas.schema_work import Work

DRAFTS = [
    jsonschema.Draft3Validator,
    jsonschema.Draft4Validator,
    jsonschema.Draft6Validator,
    jsonschema.Draft7Validator,
    jsonschema.Draft201909Validator,
    jsonschema.Draft202012Validator,
]


def fits(draft: Any, schema: Any, value: Any) -> bool:
    with Work(10):
        check = quick_checks.fitting(draft(schema, registry=Registry()), schema)
        return check is not None and check(value)


def passes_quick_check(draft: Any, schema: Any) -> bool:
    with Work(10):
        return quick_checks.is_sound_schema(schema, draft.VALIDATORS)


numbers = st.integers(-3, 3) | st.sampled_from([-1.5, 0.0, 1.0, 1.5, 10**400])
scalars = st.none() | st.booleans() | numbers | st.text("ab", max_size=3)
names = st.sampled_from(["a", "b", "c"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
kinds = st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object", "any"])
limits = [
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems"),
]
parts = ["items", "additionalProperties", "additionalItems", "not", "if", "then", "contains"]
references = st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/gone", "#/enum/0"])


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Includes a few keywords that are wrong or unknown to the quick checks."""
    keyword = st.one_of(
        st.tuples(st.just("type"), kinds | st.lists(kinds, max_size=2) | values),
        st.tuples(st.sampled_from(limits), numbers | st.booleans()),
        st.tuples(st.sampled_from(["minProperties", "multipleOf", "$id", "x-more", "dependentRequired"]), values),
        st.tuples(st.just("enum"), st.lists(values, max_size=3)),
        st.tuples(st.just("const"), values),
        st.tuples(st.just("required"), st.lists(names, max_size=2) | values),
        st.tuples(st.sampled_from(["uniqueItems", "title", "format", "$schema", "default", "examples"]), values),
        st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems", "items"]), st.lists(inner, max_size=3)),
        st.tuples(
            st.sampled_from(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"]),
            st.dictionaries(names, inner, max_size=3),
        ),
        st.tuples(st.sampled_from(parts), inner),
        st.tuples(st.just("$ref"), references | scalars),
    )
    return st.lists(keyword, max_size=4).map(dict)


schemas = st.recursive(st.booleans() | st.just({}), schemas_of, max_leaves=12)


@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(DRAFTS), schemas.filter(lambda schema: isinstance(schema, dict)), values)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_value_that_passes_the_quick_check_is_valid(draft: Any, schema: Any, value: Any) -> None:
    try:
        errors = list(draft(schema, registry=Registry()).iter_errors(value))
    except Exception:  # noqa: BLE001 - a schema may break the library anyhow
        return
    assert not (fits(draft, schema, value) and errors)


@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(DRAFTS), schemas)
def test_a_schema_that_passes_the_quick_check_is_valid(draft: Any, schema: Any) -> None:
    if passes_quick_check(draft, schema):
        assert list(draft(draft.META_SCHEMA).iter_errors(schema)) == []


MODEL = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
        "kind": {"enum": ["a", 1, None]},
        "text": {"type": "string", "minLength": 1, "maxLength": 3, "format": "uri", "x-order": 1},
        "number": {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 5}, {"type": "null"}]},
    },
    "additionalProperties": {"type": "integer"},
    "required": ["kind"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "additionalProperties": False}},
}


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ({"kind": "a"}, True),
        ({"kind": 1, "points": [{"x": 1}, {"x": 1.5}], "text": "abc", "number": None, "more": 1}, True),
        ({"kind": None, "number": 4.5}, True),
        ({}, False),
        ({"kind": True}, False),
        ({"kind": "a", "points": [{"x": "1"}]}, False),
        ({"kind": "a", "points": [{"y": 1}]}, False),
        ({"kind": "a", "text": ""}, False),
        ({"kind": "a", "number": 5}, False),
        ({"kind": "a", "more": True}, False),
        ([], False),
    ],
)
@pytest.mark.parametrize("draft", DRAFTS[2:])
def test_the_quick_check_decides_for_ordinary_schemas(draft: Any, value: Any, is_valid: bool) -> None:
    assert fits(draft, MODEL, value) is is_valid is draft(MODEL).is_valid(value)
    assert passes_quick_check(validator_for(MODEL), MODEL)


def test_multiplying_references_are_not_followed_endlessly() -> None:
    definitions = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(10)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d10": {}}}
    assert fits(jsonschema.Draft202012Validator, schema, 1) is False
    assert fits(jsonschema.Draft202012Validator, {"allOf": [{"$ref": "#"}]}, 1) is False
