from __future__ import annotations

from typing import Any

import pytest

from mcp_runtime.members.manifest.changes import EDITABLE_KEYS
from roster.manifest_fields import MASK, ManifestField, field_of, fields, text_in


def field(key: str) -> ManifestField:
    found = field_of(key)
    assert found is not None
    return found


def test_each_editable_key_is_a_field_with_a_description() -> None:
    found = list(fields())
    assert {field.path[0] for field in found} == set(EDITABLE_KEYS)
    assert all(field.description.endswith(".") for field in found)
    assert len({field.key for field in found}) == len(found)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("timeout", 30.0, "30"),
        ("timeout", 0.5, "0.5"),
        ("max_concurrency", 4, "4"),
        ("description", "two\nlines", "two\nlines"),
        ("restart", "never", "never"),
        ("args", ["-y", "a b", "${PORT}"], "-y\na b\n${PORT}"),
        ("args", ["", "x"], '["", "x"]'),
        ("args", ["two\nlines"], '["two\\nlines"]'),
        ("args", ['["a"]'], '["[\\"a\\"]"]'),
        ("headers", {"X-Region": "eu", "Authorization": "Bearer ${secret:a}"}, None),
        ("env", {"REGION": "eu", "EMPTY": "", "MODE": "${PORT}"}, "REGION=eu\nEMPTY=\nMODE=${PORT}"),
        ("tool_timeouts", {"a=b": 5.0, "echo": 1.5}, "a=b=5.0\necho=1.5"),
        ("tool_timeouts", {"two\nlines": 5.0}, '{"two\\nlines": 5.0}'),
        ("limits.memory_mb", 300, "300"),
        ("node.labels", ["gpu", "eu"], "gpu\neu"),
    ],
)
def test_a_text_leads_back_to_its_value(key: str, value: Any, text: str | None) -> None:
    written = field(key).text_of(value)
    assert text is None or written == text
    assert field(key).value_of(written) == value
    assert field(key).patch_of(written, written) in (value, {})


def test_an_empty_text_removes_a_value() -> None:
    assert field("timeout").value_of("") is None
    assert field("args").value_of("") == []
    assert field("env").patch_of("", "A=1\nB=2") == {"A": None, "B": None}


def test_a_value_that_could_be_a_secret_is_masked_and_stays() -> None:
    text = field("env").text_of({"API_KEY": "abc-4711", "REGION": "eu"})
    assert text == f"API_KEY={MASK}\nREGION=eu"
    assert field("env").patch_of(text.replace("eu", "us"), text) == {"REGION": "us"}
    assert field("env").patch_of("API_KEY=new\nREGION=eu", text) == {"API_KEY": "new"}


def test_a_mask_without_a_hidden_value_is_refused() -> None:
    with pytest.raises(ValueError, match="OTHER has no hidden value"):
        field("env").patch_of(f"OTHER={MASK}", "REGION=eu")


@pytest.mark.parametrize(("key", "text"), [("timeout", "soon"), ("max_concurrency", "[1]"), ("limits.memory_mb", "{")])
def test_a_text_that_is_no_number_is_left_to_the_validation(key: str, text: str) -> None:
    assert field(key).value_of(text) == text


def test_single_values_by_name_are_fields_of_the_command_line() -> None:
    assert field("env.PORT").value_of("80") == "80"
    assert field("tool_timeouts.echo").value_of("80") == 80
    assert field_of("nothing") is None
    assert field_of("limits.nothing") is None
    assert field_of("name") is None


def test_the_text_of_a_manifest_is_that_of_its_row() -> None:
    manifest = {"display_name": "Notes", "limits": {"memory_mb": 300}}
    assert text_in(manifest, field("displayName")) == "Notes"
    assert text_in(manifest, field("limits.memory_mb")) == "300"
    assert text_in({}, field("node.labels")) == ""
