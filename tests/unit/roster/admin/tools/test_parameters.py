"""The table of a tool's parameters, from any schema that a member sends."""

from __future__ import annotations

import time
from typing import Any

import pytest

from roster.admin.tools.parameters import MAX_PARAMETERS, parameters_of


def kinds_of(schema: dict[str, Any]) -> dict[str, str]:
    return {each.name: each.kind for each in parameters_of(schema)}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date"}, "string (date)"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": "array", "items": {"type": "integer"}}, "list of integer"),
        ({"enum": ["a", 1, None]}, "one of a, 1, null"),
        ({"const": True}, "true"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}, {"type": "string"}]}, "string or number"),
        ({"$ref": "#/$defs/n"}, "number"),
        ({"$ref": "https://elsewhere.example/x"}, "any"),
        ({"$ref": "#/$defs/loop"}, "any"),
        ({"type": {"not": "a type"}, "items": 5, "properties": []}, "{'not': 'a type'}"),
        ({}, "any"),
        (True, "any"),
        ({"properties": {}}, "object"),
    ],
)
def test_a_type_is_told_in_words(schema: Any, kind: str) -> None:
    root = {"properties": {"p": schema}, "$defs": {"n": {"type": "number"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert kinds_of(root) == {"p": kind}


def test_objects_and_lists_of_objects_have_their_own_parameters() -> None:
    person = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    schema = {
        "properties": {"owner": {"$ref": "#/$defs/p"}, "guests": {"items": {"$ref": "#/$defs/p"}}},
        "$defs": {"p": person},
    }
    found = parameters_of(schema)
    assert [(each.name, each.is_required) for each in found] == [
        ("owner", False),
        ("owner.name", True),
        ("guests", False),
        ("guests[].name", True),
    ]


def test_rules_are_told_in_words() -> None:
    part = {"type": "integer", "minimum": 1, "maximum": 6, "default": 2, "examples": [3]}
    (found,) = parameters_of({"properties": {"dice": part}})
    assert found.rules == "at least 1, at most 6, default 2, for example 3"


def test_a_rule_about_one_thing_is_in_the_singular() -> None:
    text, names = {"type": "string", "minLength": 1, "maxLength": 2}, {"type": "array", "minItems": 1}
    found = parameters_of({"properties": {"text": text, "names": names}})
    assert [each.rules for each in found] == ["at least 1 character, at most 2 characters", "at least 1 item"]


def test_a_hostile_schema_gives_a_bounded_table_quickly() -> None:
    node: dict[str, Any] = {"properties": {f"p{n}": {"$ref": "#"} for n in range(300)}}
    alternatives = {"anyOf": [{"$ref": "#/properties/deep"}] * 100}
    started_at = time.thread_time()
    assert len(parameters_of(node)) == MAX_PARAMETERS
    assert len(kinds_of({"properties": {"deep": alternatives}})["deep"]) < 10_000
    wide = {"properties": {"x" * 10_000: {"description": "y" * 100_000, "enum": ["z" * 100_000] * 100_000}}}
    (found,) = parameters_of(wide)
    assert (len(found.name), len(found.description)) == (255, 2_000)
    assert len(found.kind) < 2_000
    assert time.thread_time() - started_at < 1, "seconds of CPU"


@pytest.mark.parametrize(
    "schema", [{}, {"properties": []}, {"properties": {"a": None}}, {"required": "x", "properties": {"a": {}}}]
)
def test_a_schema_of_any_form_gives_a_table(schema: dict[str, Any]) -> None:
    assert all(each.name == "a" for each in parameters_of(schema))
