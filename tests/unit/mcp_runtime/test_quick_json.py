"""JSON of any size gives the same results as with the standard library, in a part of the time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_runtime.client import quick_json
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError

fixed_budget = settings(max_examples=150, deadline=None, derandomize=True, database=None)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\x00\ud800\udfff\ufeff"))
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=20)


def value_or_error(reader: Callable[[bytes], Any], body: bytes) -> Any:
    """The result of the reader, or the text of its error."""
    try:
        return reader(body)
    except ProtocolError as error:
        return f"refused: {error}"


@fixed_budget
@given(values, st.booleans())
def test_decoding_agrees_with_the_standard_library(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert value_or_error(quick_json.decode, body) == value_or_error(jsonrpc.decode, body)


INVALID_JSON = [
    b"",
    b"{",
    b"NaN",
    b"[1e999]",
    b"1" * 5000,
    b"[1] x",
    b'"\x01"',
    b"01",
    b'"\xff"',
    '"\u20ac"'.encode("utf-16"),
]
DEEP_JSON = [b"[" * 200 + b"]" * 200, b"[" * 100_000]
REPAIRED_JSON = [b"\xef\xbb\xbf{}", b'{"a":1,"a":2}', b'"\\ud83d"', b'{"\\u0000":1}']


@pytest.mark.parametrize("body", [*INVALID_JSON, *DEEP_JSON, *REPAIRED_JSON])
def test_refusals_and_repairs_agree_with_the_standard_library(body: bytes) -> None:
    assert value_or_error(quick_json.decode, body) == value_or_error(jsonrpc.decode, body)


@fixed_budget
@given(values)
def test_encoding_agrees_with_the_standard_library(value: Any) -> None:
    assert json.loads(quick_json.encode(value)) == json.loads(jsonrpc.encode(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [None, -math.inf]}, ("x", [{"y": math.nan}])])
def test_values_outside_json_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        quick_json.encode(value)


def test_a_large_message_is_encoded_much_faster_than_by_the_standard_library() -> None:
    message = {f"key{number}": "value" for number in range(20_000)}

    def measure(write: Callable[[Any], object]) -> float:
        started_at = time.thread_time()
        write(message)
        return time.thread_time() - started_at

    # The two alternate, so that a machine that slows down slows both.
    rounds = [(measure(quick_json.encode), measure(jsonrpc.encode)) for _ in range(20)]
    quick_seconds, standard_seconds = (min(times) for times in zip(*rounds, strict=True))
    assert quick_seconds < standard_seconds / 3


@pytest.mark.parametrize("value", [{"a": "\x00"}, {"\ud800": 1}, ["\udfff"]])
def test_text_that_a_database_refuses_is_not_storable(value: Any) -> None:
    assert not quick_json.is_storable(value)


@pytest.mark.parametrize("value", [{"a": ["\U0001f600", 1.5, None]}, {"a": "\\u0000"}])
def test_text_that_a_database_accepts_is_storable(value: Any) -> None:
    assert quick_json.is_storable(value)


def test_ordinary_values_are_checked_without_building_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonrpc, "storable", lambda *_: pytest.fail("the value was built again"))
    assert quick_json.is_storable({f"key{number}": "hunter2" for number in range(100)})
