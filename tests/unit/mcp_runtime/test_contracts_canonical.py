"""The canonical JSON of definitions, compared with the library and with the vectors of RFC 8785."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from mcp_runtime.contracts.canonical import MAX_EXACT, canonical_json, version_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-MAX_EXACT, MAX_EXACT) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(TEXTS, each, max_size=4),
    max_leaves=20,
)
DEFINITIONS = st.dictionaries(TEXTS, VALUES, max_size=5)


def shuffled(value: Any) -> Any:
    """The same value, with the keys of its objects in the reverse order."""
    if isinstance(value, dict):
        return {key: shuffled(each) for key, each in reversed(value.items())}
    return [shuffled(each) for each in value] if isinstance(value, list) else value


@given(DEFINITIONS)
def test_it_is_what_the_library_writes(definition: dict[str, Any]) -> None:
    assert canonical_json(definition) == rfc8785.dumps(definition)


@given(DEFINITIONS)
def test_the_order_of_keys_and_white_space_do_not_change_the_version(definition: dict[str, Any]) -> None:
    text = json.dumps(shuffled(definition), indent=3, ensure_ascii=True)
    assert version_of(json.loads(text)) == version_of(definition)


@given(DEFINITIONS, DEFINITIONS)
def test_other_values_have_another_version(one: dict[str, Any], other: dict[str, Any]) -> None:
    is_same = rfc8785.dumps(one) == rfc8785.dumps(other)
    assert (version_of(one) == version_of(other)) == is_same


def test_the_version_is_the_sha256_of_the_canonical_text() -> None:
    definition = {"name": "echo", "inputSchema": {"type": "object"}}
    text = b'{"inputSchema":{"type":"object"},"name":"echo"}'
    assert canonical_json(definition) == text
    assert version_of(definition) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        # RFC 8785, appendix B.
        ("-0.0", "0"),
        ("333333333.33333329", "333333333.3333333"),
        ("1E30", "1e+30"),
        ("4.50", "4.5"),
        ("2e-3", "0.002"),
        ("0.000000000000000000000000001", "1e-27"),
        ("9007199254740992", "9007199254740992"),
        ("295147905179352830000", "295147905179352830000"),
        ("9.999999999999997e22", "9.999999999999997e+22"),
        # Limits of 64 bits in schemas.
        ("9223372036854775807", "9223372036854776000"),
        ("1.0", "1"),
    ],
)
def test_numbers_are_written_as_rfc_8785_says(spelling: str, canonical: str) -> None:
    assert canonical_json({"maximum": json.loads(spelling)}) == b'{"maximum":%s}' % canonical.encode()
    assert canonical_json([json.loads(spelling)]) == b"[%s]" % canonical.encode()


def test_keys_are_sorted_as_rfc_8785_says() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]  # section 3.2.3
    order = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical_json(dict.fromkeys(keys, "")))) == order


def test_a_number_that_no_double_can_hold_still_has_a_version() -> None:
    assert canonical_json({"maximum": 10**400}) == b'{"maximum":"1' + b"0" * 400 + b'"}'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"nan|inf|NaN|Inf"):
        canonical_json({"maximum": value})


def test_a_text_that_looks_like_numbers_is_written_correctly() -> None:
    assert canonical_json({"description": "see,1.5 and [12345678901234567890"}) == (
        b'{"description":"see,1.5 and [12345678901234567890"}'
    )
