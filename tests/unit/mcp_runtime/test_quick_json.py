"""JSON of any size: as the standard library has it, and in a part of the time."""

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


def read(reader: Callable[[bytes], Any], body: bytes) -> Any:
    """What it returns, or the error in words."""
    try:
        return reader(body)
    except ProtocolError as error:
        return f"refused: {error}"


@fixed_budget
@given(values, st.booleans())
def test_what_is_read_is_what_the_standard_library_reads(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert read(quick_json.decode, body) == read(jsonrpc.decode, body)


BROKEN = [
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
DEEP = [b"[" * 200 + b"]" * 200, b"[" * 100_000]
MENDED = [b"\xef\xbb\xbf{}", b'{"a":1,"a":2}', b'"\\ud83d"', b'{"\\u0000":1}']


@pytest.mark.parametrize("body", [*BROKEN, *DEEP, *MENDED])
def test_what_is_refused_or_mended_is_what_the_standard_library_refuses_or_mends(body: bytes) -> None:
    assert read(quick_json.decode, body) == read(jsonrpc.decode, body)


@fixed_budget
@given(values)
def test_what_is_written_says_the_same_as_what_the_standard_library_writes(value: Any) -> None:
    assert json.loads(quick_json.encode(value)) == json.loads(jsonrpc.encode(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [None, -math.inf]}, ("x", [{"y": math.nan}])])
def test_what_json_does_not_know_is_not_written_as_something_else(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        quick_json.encode(value)


def test_a_large_message_is_written_in_a_part_of_the_time_for_which_the_standard_library_stops_all_threads() -> None:
    message = {f"key{number}": "value" for number in range(20_000)}

    def seconds(write: Callable[[Any], object]) -> float:
        began = time.thread_time()
        write(message)
        return time.thread_time() - began

    # In turns: a machine that slows down slows both.
    rounds = [(seconds(quick_json.encode), seconds(jsonrpc.encode)) for _ in range(20)]
    quick, plain = (min(times) for times in zip(*rounds, strict=True))
    assert quick < plain / 3


@pytest.mark.parametrize("value", [{"a": "\x00"}, {"\ud800": 1}, ["\udfff"]])
def test_what_a_database_does_not_take_is_not_storable(value: Any) -> None:
    assert not quick_json.is_storable(value)


@pytest.mark.parametrize("value", [{"a": ["\U0001f600", 1.5, None]}, {"a": "\\u0000"}])
def test_what_a_database_takes_is_storable(value: Any) -> None:
    assert quick_json.is_storable(value)


def test_what_is_plainly_storable_is_not_built_again_to_compare_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonrpc, "storable", lambda *_: pytest.fail("built"))
    assert quick_json.is_storable({f"key{number}": "hunter2" for number in range(100)})
