from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from mcp_runtime.schemas import schema_work, secrets, validation
from mcp_runtime.schemas.secrets import MASK
from mcp_runtime.schemas.validation import ArgumentsError, BrokenSchemaError
from tests.support import machine

PASSWORD = {"type": "string", "format": "password"}


def validation_error(schema: dict[str, Any], arguments: dict[str, Any]) -> tuple[str, str]:
    """Path and reason of the error, or two empty strings."""
    try:
        validation.validate(schema, arguments)
    except ArgumentsError as error:
        return error.path, error.reason
    return "", ""


def fits(schema: dict[str, Any], arguments: dict[str, Any]) -> bool:
    return validation_error(schema, arguments) == ("", "")


def run_within(seconds: float, function: Callable[[], object]) -> object:
    started_at = time.thread_time()
    result = function()
    elapsed = time.thread_time() - started_at
    assert elapsed < seconds or elapsed < seconds * machine.slowness()
    return result


# Validation -------------------------------------------------------------------------------------------------------


def test_valid_arguments_are_accepted() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    assert fits(schema, {"text": "x", "more": 1})


@pytest.mark.parametrize(
    ("schema", "arguments", "path", "reason"),
    [
        ({"required": ["text"]}, {}, "", "'text' is a required property"),
        ({"properties": {"n": {"type": "integer"}}}, {"n": "1"}, "n", "'1' is not of type 'integer'"),
        (
            {"properties": {"items": {"items": {"properties": {"name": {"type": "string"}}}}}},
            {"items": [{"name": "a"}, {"name": 5}]},
            "items.1.name",
            "5 is not of type 'string'",
        ),
        ({"additionalProperties": False}, {"x": 1}, "", "Additional properties are not allowed ('x' was unexpected)"),
        ({"properties": {"e": {"enum": ["a", "b"]}}}, {"e": "c"}, "e", "'c' is not one of ['a', 'b']"),
    ],
)
def test_a_validation_error_has_its_path_and_reason(
    schema: dict[str, Any], arguments: dict[str, Any], path: str, reason: str
) -> None:
    assert validation_error(schema, arguments) == (path, reason)


def test_a_reason_is_short() -> None:
    assert len(validation_error({"properties": {"n": {"type": "integer"}}}, {"n": "x" * 10_000})[1]) <= 500


def test_the_schema_decides_which_draft_applies() -> None:
    old_tuple_schema = {"properties": {"pair": {"items": [{"type": "string"}, {"type": "integer"}]}}}
    assert validation_error(
        {"$schema": "http://json-schema.org/draft-07/schema#", **old_tuple_schema}, {"pair": ["a", "b"]}
    )[0]
    assert validation.check_schema(old_tuple_schema).startswith("the input schema is broken at properties.pair.items")


def test_an_unknown_draft_is_treated_as_the_newest_one() -> None:
    assert validation_error({"$schema": "urn:of-tomorrow", "required": ["a"]}, {}) == ("", "'a' is a required property")


def test_references_inside_the_schema_are_followed() -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}}},
    }
    assert validation_error(tree, {"next": {"next": {"v": "x"}}})[0] == "next.next.v"


# Broken schemas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        "object",
        {"type": "nonsense"},
        {"properties": []},
        {"required": "text"},
        {"$schema": []},
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "nonsense"},
        {"description": "x" * schema_work.MAX_SCHEMA_CHARACTERS},
    ],
)
def test_a_broken_schema_gives_a_short_error_text(schema: Any) -> None:
    assert validation.check_schema(schema).startswith("the input schema ")
    assert len(validation.check_schema(schema)) <= 500


def test_a_schema_that_is_nested_too_deep_is_broken() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"not": schema}
    assert validation.check_schema(schema) == "the input schema is nested too deep"


def test_a_good_schema_has_no_fault() -> None:
    assert (
        validation.check_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}})
        == ""
    )


@pytest.mark.parametrize("reference", ["#/$defs/gone", "#", "#/properties"])
def test_a_schema_that_breaks_in_use_is_not_reported_as_wrong_arguments(reference: str) -> None:
    schema = {"allOf": [{"$ref": reference}], "properties": []} if reference == "#/properties" else {"$ref": reference}
    with pytest.raises(BrokenSchemaError):
        validation.validate(schema, {"a": 1})


def test_a_remote_reference_is_never_fetched() -> None:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(500)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            for keyword in ("$ref", "$dynamicRef", "$schema"):
                schema = {keyword: f"http://127.0.0.1:{server.server_port}/schema.json", "properties": {"a": {}}}
                validation.check_schema(schema)
                secrets.secret_paths(schema, {"a": 1})
                if keyword != "$schema":
                    with pytest.raises(BrokenSchemaError):
                        validation.validate(schema, {"a": 1})
        finally:
            server.shutdown()
            thread.join()
    assert paths == []


# Hostile schemas --------------------------------------------------------------------------------------------------

BACKTRACKING_PATTERN = "^(a+)+$"
BACKTRACKING_TEXT = "a" * 60 + "!"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": BACKTRACKING_PATTERN}}},
        {"properties": {"a": {"propertyNames": {"pattern": BACKTRACKING_PATTERN}}}},
        {"properties": {"a": {"patternProperties": {BACKTRACKING_PATTERN: False}}}},
        {"properties": {"a": {"patternProperties": {BACKTRACKING_PATTERN: {}}, "additionalProperties": False}}},
        {"properties": {"a": {"patternProperties": {BACKTRACKING_PATTERN: {}}, "unevaluatedProperties": False}}},
        # If a subschema names a draft, the library continues with its own class.
        {
            "properties": {
                "a": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": BACKTRACKING_PATTERN}
            }
        },
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"pattern": BACKTRACKING_PATTERN}}},
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "properties": {"a": {"pattern": BACKTRACKING_PATTERN}},
        },
    ],
)
def test_a_backtracking_pattern_ends_quickly(schema: dict[str, Any]) -> None:
    assert validation.check_schema(schema) == ""
    for value in (BACKTRACKING_TEXT, {BACKTRACKING_TEXT: 1}):
        run_within(1, lambda value=value: validation_error(schema, {"a": value}))
        run_within(1, lambda value=value: secrets.secret_paths(schema, {"a": value}))


def doubling_references(depth: int) -> dict[str, Any]:
    """Each definition refers twice to the next one, so that there are 2 to the power of `depth` applications."""
    definitions: dict[str, Any] = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{depth}": {}}}


def test_validation_ends_for_references_that_multiply() -> None:
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": doubling_references(60)["$defs"]}
    assert validation.check_schema(schema) == ""
    assert validation_error(schema, {"a": 1}) == ("", "checking them against the tool's input schema takes too long")
    assert run_within(1, lambda: secrets.secret_paths(schema, {"a": 1})) == []
    assert fits(doubling_references(8), {"a": 1})


def test_validation_ends_for_unevaluated_properties_that_multiply() -> None:
    schema: dict[str, Any] = {}
    for _ in range(45):
        schema = {"unevaluatedProperties": {}, "allOf": [schema]}
    schema = {"properties": {"a": schema}}
    assert run_within(2, lambda: validation_error(schema, {"a": {"b": 1}})) == (
        "",
        "checking them against the tool's input schema takes too long",
    )


def test_validation_with_many_slow_patterns_reports_the_errors_until_then() -> None:
    """The errors until then are reported."""
    slow_schema = {"allOf": [{"pattern": f"((((a?){{10}}){{10}}){{10}})b{number}$"} for number in range(200)]}
    path, reason = run_within(1, lambda: validation_error({"properties": {"a": slow_schema}}, {"a": "a" * 10_000}))
    assert (path, reason[:5]) == ("a", "'aaaa")
    assert run_within(
        1, lambda: validation_error({"properties": {"a": {"not": slow_schema}}}, {"a": "a" * 1_000_000})
    ) == (
        "",
        "checking them against the tool's input schema takes too long",
    )


def test_the_uniqueness_of_a_long_mixed_list_is_checked_quickly() -> None:
    values = [value for number in range(5000) for value in (number, str(number))]
    schema = {"properties": {"a": {"uniqueItems": True}}}
    assert run_within(2, lambda: fits(schema, {"a": values})) is True
    run_within(2, lambda: validation.check_schema({"required": values}))


def test_other_threads_run_while_a_slow_pattern_is_tried() -> None:
    schema = {"properties": {"a": {"pattern": "((((a?){10}){10}){10})b$"}}}
    longest = 0.0
    checker = threading.Thread(target=validation_error, args=(schema, {"a": "a" * 100_000}))
    checker.start()
    last = time.monotonic()
    while checker.is_alive():
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert longest < 0.5


# Large ordinary schemas ---------------------------------------------------------------------------------------------
# These run without coverage, because it multiplies the CPU time, and the budgets are of CPU time.

NUMBERS = {"type": "array", "items": {"type": "number"}}
POINT = {"type": "object", "properties": {"x": {"type": "number"}, "name": {"type": "string"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (NUMBERS, [number / 2 for number in range(100_000)]),
        ({"items": NUMBERS}, [[number / 2 for number in range(100)]] * 1000),
        ({"items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, [1.5, None] * 20_000),
        ({"items": {"enum": ["north", "south"]}}, ["south"] * 100_000),
        ({"items": {"$ref": "#/$defs/point"}}, [{"x": 1.5, "name": "a"}] * 20_000),
    ],
)
def test_large_ordinary_arguments_are_validated(
    schema: dict[str, Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = machine.slowness()  # the budgets are those of an ordinary machine
    monkeypatch.setattr(validation, "VALIDATION_SECONDS", validation.VALIDATION_SECONDS * scale)
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", schema_work.PATIENCE_SECONDS * scale)
    schema = {"properties": {"a": schema, "other": {"multipleOf": 3}}, "$defs": {"point": POINT}}
    assert fits(schema, {"a": value, "other": 3})
    if "x" not in str(value[0]):
        assert validation_error(schema, {"a": [*value, "x"], "other": 3})[0].startswith(f"a.{len(value)}")


def test_failed_alternatives_of_anyOf_are_not_validation_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Only the number of alternatives matters here.
    monkeypatch.setattr(validation, "VALIDATION_SECONDS", 10.0)
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", 60.0)
    texts = {"items": {"anyOf": [{"type": "integer", "multipleOf": 2}, {"type": "string", "pattern": "^a"}]}}
    assert fits({"properties": {"a": texts}}, {"a": ["a"] * 5000})


def test_secrets_are_found_among_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"properties": {"pw": PASSWORD, "a": NUMBERS}}
    scale = machine.slowness()
    monkeypatch.setattr(schema_work, "PATIENCE_SECONDS", schema_work.PATIENCE_SECONDS * scale)
    arguments = {"a": [1.5] * 30_000, "pw": "x"}
    assert secrets.secret_paths(schema, arguments, secrets.SECRETS_SECONDS * scale) == [["pw"]]


def test_a_large_ordinary_schema_is_checked_quickly() -> None:
    item = {"type": "object", "title": "One", "x-order": 1, "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    schema = {"$id": "urn:large", "properties": {f"p{number}": item for number in range(1700)}}
    assert len(str(schema)) > 168_000
    assert run_within(0.3, lambda: validation.check_schema(schema)) == ""


# Results of checks that ran out of time -----------------------------------------------------------------------------

SLOW_SCHEMA = {"dependencies": {"a": ["b"]}, "title": "checked by the library"}


def test_the_result_of_a_check_that_ran_out_of_time_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(validation, "CHECK_SECONDS", 0.0)
        assert validation.check_schema(SLOW_SCHEMA) in validation.TEMPORARY_FAULTS
    assert validation.check_schema(SLOW_SCHEMA) in validation.TEMPORARY_FAULTS
    now = time.monotonic()
    monkeypatch.setattr(schema_work.time, "monotonic", lambda: now + schema_work.RETRY_SECONDS + 1)
    assert validation.check_schema(SLOW_SCHEMA) == ""


def test_one_path_marks_all_arguments_if_everything_is_secret() -> None:
    arguments = {f"key{number}": "hunter2" for number in range(20_000)}
    paths = secrets.secret_paths({"writeOnly": True}, arguments)
    assert paths == [[]]
    assert secrets.mask(arguments, paths) == dict.fromkeys(arguments, secrets.MASK)
    assert secrets.without(arguments, paths) == {}


def test_the_text_of_a_schema_that_is_too_long_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"properties": {"pw": PASSWORD}, "description": "x" * schema_work.MAX_SCHEMA_CHARACTERS})
    for module in (secrets, validation):
        monkeypatch.setattr(module, "json", None)
    assert secrets.secret_paths(text, {"pw": "x"}) == secrets.EVERYWHERE
    with pytest.raises(validation.BrokenSchemaError, match="longer than"):
        validation.validate(text, {"pw": "x"})


def test_a_search_for_secrets_that_ran_out_of_time_is_repeated_later(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"properties": {"pw": PASSWORD, **{f"p{number}": {} for number in range(99)}}, "title": "busy"}
    assert secrets.secret_paths(schema, {"pw": "x", "p1": 1}, 0.0) == secrets.EVERYWHERE
    now = time.monotonic()
    monkeypatch.setattr(schema_work.time, "monotonic", lambda: now + schema_work.RETRY_SECONDS + 1)
    assert secrets.secret_paths(schema, {"pw": "x", "p1": 1}) == [["pw"]]


def test_the_number_of_stored_results_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_work, "MAX_SLOW", 3)
    properties = {f"p{number}": {} for number in range(99)}
    schemas = [{"properties": {"pw": PASSWORD, **properties}, "title": f"verdict {number}"} for number in range(10)]
    for schema in schemas:
        assert secrets.secret_paths(schema, {"pw": "x"}, 0.0) == secrets.EVERYWHERE
    results = [secrets.secret_paths(schema, {"pw": "x"}) == [["pw"]] for schema in schemas]
    assert results[0]
    assert not results[-1]
    assert results.count(False) <= 3


# What the guards must not change ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching_text", "other_text"),
    [
        ("^[a-z]+$", "abc", "abc1"),
        ("b", "abc", "xyz"),  # found anywhere
        (r"^\d{3}-\d{4}$", "555-1234", "555-123"),
        (r"^\d$", "5", "\N{ARABIC-INDIC DIGIT FIVE}"),  # ECMA 262 means ASCII digits
        ("^a$", "a", "a\n"),  # in ECMA 262, `$` does not match before a last newline
        (r"^\p{L}+$", "\N{LATIN SMALL LETTER E WITH ACUTE}t\N{LATIN SMALL LETTER E WITH ACUTE}", "1"),
    ],
)
def test_patterns_follow_ecma_262(pattern: str, matching_text: str, other_text: str) -> None:
    schema = {"properties": {"a": {"pattern": pattern}}}
    assert fits(schema, {"a": matching_text})
    assert validation_error(schema, {"a": other_text}) == ("a", f"{other_text!r} does not match {pattern!r}")
    assert fits(schema, {"a": 5})


@pytest.mark.parametrize("pattern", ["^(?!x).*$", r"^(.)\1$", "(", "\ud800"])
def test_an_unsupported_pattern_is_left_to_the_member(pattern: str) -> None:
    schema = {"properties": {"a": {"pattern": pattern}, "b": {"type": "integer"}}}
    assert validation.check_schema(schema) == ""
    assert fits(schema, {"a": "xy"})
    assert validation_error(schema, {"a": "xy", "b": "x"})[0] == "b"
    pattern_schema = {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    assert fits(pattern_schema, {"xy": "z"})


def test_pattern_properties_apply_to_the_keys_that_match() -> None:
    schema = {"patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert fits(schema, {"n_a": 1, "b": "x"})
    assert validation_error(schema, {"n_a": "x"})[0] == "n_a"
    assert validation_error(schema, {"b": 1})[0] == "b"
    closed_schema = {"properties": {"a": {}}, "patternProperties": {"^n_": {}}, "additionalProperties": False}
    assert fits(closed_schema, {"a": 1, "n_a": 1})
    assert validation_error(closed_schema, {"b": 1})[1] == "Additional properties are not allowed ('b' was unexpected)"


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 2, "1"], True),
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False], True),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], False),
        ([[1], [True]], True),
        (["a", "a"], False),
        ([], True),
    ],
)
def test_unique_items_follows_json_schema(items: list[Any], unique: bool) -> None:
    assert fits({"properties": {"a": {"uniqueItems": True}}}, {"a": items}) is unique
    assert fits({"properties": {"a": {"uniqueItems": False}}}, {"a": items})


def test_unevaluated_properties_are_checked() -> None:
    schema = {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}
    assert fits(schema, {"a": 1})
    assert not fits(schema, {"b": 1})


# Secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "arguments", "paths"),
    [
        ({"properties": {"pw": PASSWORD, "user": {}}}, {"pw": "x", "user": "u"}, [["pw"]]),
        ({"properties": {"key": {"writeOnly": True}}}, {"key": {"deep": 1}}, [["key"]]),
        ({"properties": {"pw": PASSWORD}}, {}, []),
        ({"properties": {"a": {"properties": {"pw": PASSWORD}}}}, {"a": {"pw": 1}}, [["a", "pw"]]),
        ({"properties": {"a": {"items": PASSWORD}}}, {"a": ["x", "y"]}, [["a", 0], ["a", 1]]),
        ({"properties": {"a": {"prefixItems": [{}, PASSWORD]}}}, {"a": ["x", "y", "z"]}, [["a", 1]]),
        ({"properties": {"a": {"items": [PASSWORD], "additionalItems": {}}}}, {"a": ["x", "y"]}, [["a", 0]]),
        ({"properties": {"a": {"contains": PASSWORD}}}, {"a": ["x"]}, [["a", 0]]),
        ({"additionalProperties": PASSWORD, "properties": {"a": {}}}, {"a": 1, "b": 2}, [["b"]]),
        ({"unevaluatedProperties": PASSWORD}, {"b": 2}, [["b"]]),
        ({"patternProperties": {"_pw$": PASSWORD}}, {"x_pw": 1, "x": 2}, [["x_pw"]]),
        (
            {"patternProperties": {"(?=_pw)": PASSWORD}},
            {"x": 2},
            [["x"]],
        ),  # unsupported, so the value counts as a secret
        ({"allOf": [{"properties": {"pw": PASSWORD}}]}, {"pw": 1}, [["pw"]]),
        ({"anyOf": [{}, {"properties": {"pw": PASSWORD}}]}, {"pw": 1}, [["pw"]]),
        ({"oneOf": [{"properties": {"pw": PASSWORD}}]}, {"pw": 1}, [["pw"]]),
        ({"if": {}, "then": {"properties": {"pw": PASSWORD}}}, {"pw": 1}, [["pw"]]),
        ({"dependentSchemas": {"a": {"properties": {"pw": PASSWORD}}}}, {"a": 1, "pw": 1}, [["pw"]]),
        ({"properties": {"pw": {"anyOf": [PASSWORD, {"type": "null"}]}}}, {"pw": 1}, [["pw"]]),
        ({"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": PASSWORD}}, {"a": 1}, [["a"]]),
        ({"properties": {"a": {"$ref": "#/allOf/0"}}, "allOf": [PASSWORD]}, {"a": 1}, secrets.EVERYWHERE),
        ({"properties": {"a": {"$ref": "#pw"}}, "$defs": {"x": {**PASSWORD, "$anchor": "pw"}}}, {"a": 1}, [["a"]]),
        (
            {"properties": {"pw": PASSWORD, "next": {"$ref": "#"}}},
            {"next": {"next": {"pw": 1}}},
            [["next", "next", "pw"]],
        ),
        ({"$ref": "#"}, {"a": 1}, []),
    ],
)
def test_secrets_are_found_in_every_place_of_a_schema(
    schema: dict[str, Any], arguments: dict[str, Any], paths: list[list[str | int]]
) -> None:
    assert secrets.secret_paths(schema, arguments) == paths


@pytest.mark.parametrize(
    "broken",
    [
        {"properties": []},
        {"allOf": 5, "items": "x", "$ref": 5, "patternProperties": [], "dependentSchemas": 1},
        {"$ref": "#/gone"},
        {"$ref": "http://[", "$id": 5},
        {"$id": "http://[", "$anchor": {}, "$defs": 5, "$ref": "#x"},
        {"$ref": "#/properties/pw/type/0"},
    ],
)
def test_secrets_are_found_in_a_partly_broken_schema(broken: dict[str, Any]) -> None:
    schema = {"anyOf": [broken, {"properties": {"pw": PASSWORD}}], **broken}
    assert secrets.secret_paths(schema, {"pw": "x", "list": [1]}) == [["pw"]]


def test_a_deeply_nested_secret_is_found() -> None:
    schema = {"properties": {"pw": PASSWORD, "next": {"$ref": "#"}}}
    arguments: dict[str, Any] = {"pw": "x"}
    for _ in range(90):
        arguments = {"next": arguments}
    assert secrets.secret_paths(schema, arguments) == [["next"] * 90 + ["pw"]]


def test_mask_replaces_the_values_in_a_copy() -> None:
    arguments = {"pw": "x", "list": [{"key": 1, "n": 2}, 3], "n": 4}
    masked = secrets.mask(arguments, [["pw"], ["list", 0, "key"], ["gone"], ["list", 9], ["n", "deeper"]])
    assert masked == {"pw": MASK, "list": [{"key": MASK, "n": 2}, 3], "n": 4}
    assert arguments == {"pw": "x", "list": [{"key": 1, "n": 2}, 3], "n": 4}


def test_masking_again_changes_nothing() -> None:
    schema = {"properties": {"login": {"writeOnly": True}}}
    arguments = {"login": {"user": "u", "pw": "x"}}
    paths = secrets.secret_paths(schema, arguments)
    masked_arguments = secrets.mask(arguments, paths)
    assert secrets.mask(masked_arguments, paths) == masked_arguments == {"login": MASK}


# Several validation errors --------------------------------------------------------------------------------------


def validation_errors(schema: dict[str, Any], arguments: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(validation.ArgumentsError) as raised:
        validation.validate(schema, arguments)
    return [(error.path, error.reason) for error in raised.value.errors]


def test_every_validation_error_is_listed_with_its_place() -> None:
    item = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
    schema = {"properties": {"a": {"type": "string"}, "items": {"items": item}}, "required": ["a", "b.c"]}

    errors = validation_errors(schema, {"a": 1, "items": [{"id": 1}, {}, {"id": "x"}]})

    assert {path for path, _ in errors} == {("a",), ("b.c",), ("items", 1, "id"), ("items", 2, "id")}
    assert (("b.c",), "'b.c' is a required property") in errors


def test_the_best_alternative_is_reported() -> None:
    alternatives = [{"type": "string"}, {"type": "object", "properties": {"n": {"type": "integer"}}}]
    assert [
        path for path, _ in validation_errors({"properties": {"a": {"anyOf": alternatives}}}, {"a": {"n": "x"}})
    ] == [("a", "n")]


def test_validation_errors_are_bounded_in_number_and_length() -> None:
    errors = validation_errors({"additionalProperties": {"type": "integer"}}, {str(n): "x" * 9999 for n in range(1000)})
    assert len(errors) == validation.MAX_ERRORS
    assert max(len(reason) for _, reason in errors) <= schema_work.MAX_REASON


def test_without_removes_properties_and_keeps_the_positions_of_items() -> None:
    arguments = {"a": {"key": 1, "b": 2}, "list": [1, {"key": 2}], "c": 3}
    paths: list[list[str | int]] = [["a", "key"], ["list", 0], ["list", 1, "key"], ["c"], ["gone", "x"], ["list", 9]]
    assert secrets.without(arguments, paths) == {"a": {"b": 2}, "list": [None, {}]}
    assert arguments == {"a": {"key": 1, "b": 2}, "list": [1, {"key": 2}], "c": 3}
