from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_runtime import jsonrpc
from mcp_runtime.errors import ClientError, ProtocolError, RemoteError
from mcp_runtime.jsonrpc import MAX_DEPTH, IdCounter, check_depth, decode, encode, excerpt, result_of, storable

fixed_budget = settings(max_examples=150, deadline=None, derandomize=True, database=None)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
# Text as a hostile member sends it: NUL characters and lone surrogates included.
hostile_text = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\x00\ud800\udfff\ufeff"))
hostile_values = st.recursive(
    scalars | hostile_text, lambda inner: st.lists(inner) | st.dictionaries(hostile_text, inner), max_leaves=20
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def outcome(read: Callable[[Any], Any], given: Any) -> Any:
    """What `read` returns, or our error that it raises; another error is one of the test."""
    try:
        return read(given)
    except ClientError as error:
        return error


def is_storable(value: Any) -> bool:
    """Whether PostgreSQL's JSON would take it."""
    if isinstance(value, str):
        return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, dict):
        return all(is_storable(key) and is_storable(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(is_storable, value))


# Made ---------------------------------------------------------------------------------------------------------------


def test_a_request_has_an_id_and_a_notification_has_none() -> None:
    assert jsonrpc.request(7, "tools/list") == {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
    assert jsonrpc.request(7, "a", {})["params"] == {}
    assert jsonrpc.notification("b") == {"jsonrpc": "2.0", "method": "b"}
    assert jsonrpc.notification("b", {"c": 1}) == {"jsonrpc": "2.0", "method": "b", "params": {"c": 1}}


def test_ids_from_one_counter_are_never_the_same_however_many_threads_take_them() -> None:
    counter, taken = IdCounter(), []
    threads = [threading.Thread(target=lambda: taken.extend(counter.take() for _ in range(1000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 8000


@fixed_budget
@given(values)
def test_what_is_encoded_is_decoded_to_the_same(value: Any) -> None:
    plain = storable(value)
    assert decode(encode(plain)) == plain


def test_text_is_sent_as_utf8_without_blanks() -> None:
    assert encode({"a": "ü", "b": [1, 2]}) == '{"a":"ü","b":[1,2]}'.encode()


# Read ---------------------------------------------------------------------------------------------------------------


@fixed_budget
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_protocol_error(body: bytes) -> None:
    told = outcome(decode, body)
    assert not isinstance(told, ProtocolError) or len(str(told)) < 1000


@fixed_budget
@given(hostile_values, st.booleans())
def test_whatever_is_decoded_can_be_stored(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        assert is_storable(decode(body))
    except ProtocolError:
        assert not escaped  # lone surrogates are no UTF-8; escaped, everything is


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_refused_for_they_would_bring_nul_characters_past_the_check(encoding: str) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        decode('{"a":"\\u0000"}'.encode(encoding))


def test_a_byte_order_mark_is_no_fault() -> None:
    assert decode(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b'{"a":-Infinity}', b"[1e999]", b"-1e999", b"[[-1e999]]"])
def test_numbers_that_no_database_takes_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


def test_large_integers_are_kept_and_endless_ones_refused() -> None:
    assert decode(b"9" * 4000) == int("9" * 4000)
    with pytest.raises(ProtocolError, match="not JSON"):
        decode(b"9" * 5000)


def test_nesting_is_taken_to_the_bound_and_not_beyond() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(ProtocolError, match=f"more than {MAX_DEPTH} deep"):
        decode(encode(nested(MAX_DEPTH + 1)))
    with pytest.raises(ProtocolError, match="too deep"):
        decode(b"[" * 1_000_000 + b"]" * 1_000_000)


def test_escaped_text_is_held_to_the_same_bound() -> None:
    with pytest.raises(ProtocolError, match="deep"):
        decode(b"[" * (MAX_DEPTH + 2) + b'"\\u0000"' + b"]" * (MAX_DEPTH + 2))


def test_the_depth_check_looks_into_lists_and_objects_alike() -> None:
    value: Any = {}
    for _ in range(MAX_DEPTH + 1):
        value = {"a": [value]}
    with pytest.raises(ProtocolError):
        check_depth(value)
    check_depth({"a": 1.5, "b": [None, "x", 10**4000]})


def test_what_no_database_takes_is_replaced_in_keys_and_values_and_surrogate_pairs_are_text() -> None:
    body = rb'{"a\u0000b": ["\ud83d\ude00", "\ud800", "x\udc00y", 1, {"k": null}]}'
    assert decode(body) == {"a\ufffdb": ["\U0001f600", "\ufffd", "x\ufffdy", 1, {"k": None}]}


def test_a_backslash_before_an_u_is_not_an_escape() -> None:
    assert decode(rb'["\\u0000", "\\ud800"]') == ["\\u0000", "\\ud800"]


@fixed_budget
@given(hostile_values)
def test_what_is_storable_stays_as_it_is_and_the_rest_becomes_so(value: Any) -> None:
    clean = storable(value)
    assert is_storable(clean)
    assert storable(clean) == clean
    if is_storable(value):
        assert clean == value


@fixed_budget
@given(st.binary(max_size=2000))
def test_an_excerpt_is_printable_and_short(body: bytes) -> None:
    shown = excerpt(body)
    assert shown.isprintable()
    assert len(shown) <= 600


def test_an_excerpt_says_that_there_is_more() -> None:
    assert excerpt(b"a\n\tb\0") == "'a b'"
    assert excerpt(b"x" * 201) == repr("x" * 200 + "…")


# Responses ----------------------------------------------------------------------------------------------------------


def response(**members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, **members}


def test_the_result_of_a_response_is_its_result_object() -> None:
    assert result_of(response(result={"a": 1})) == {"a": 1}


@fixed_budget
@given(values | st.fixed_dictionaries({"jsonrpc": st.just("2.0")}, optional={"result": values, "error": values}))
def test_anything_else_is_one_of_our_errors(value: Any) -> None:
    assert isinstance(outcome(result_of, value), dict | ProtocolError | RemoteError)


@pytest.mark.parametrize("error", [{"code": "1"}, {"code": True}, {"code": 1.5}, {"message": "m"}, [], None, "no"])
def test_an_error_object_without_an_integer_code_is_none(error: Any) -> None:
    with pytest.raises(ProtocolError, match="no integer code"):
        result_of(response(error=error))


@pytest.mark.parametrize("message", [None, "", 7, {}])
def test_an_error_without_a_message_has_one_all_the_same(message: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        result_of(response(error={"code": -32603, "message": message, "data": [1]}))
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32603, "no message", [1])


def test_a_members_message_is_bounded() -> None:
    with pytest.raises(RemoteError) as caught:
        result_of(response(error={"code": 1, "message": "x" * 1_000_000}))
    assert len(str(caught.value)) < 2100


def test_the_codes_are_those_of_the_specification() -> None:
    codes = (
        jsonrpc.PARSE_ERROR,
        jsonrpc.INVALID_REQUEST,
        jsonrpc.METHOD_NOT_FOUND,
        jsonrpc.INVALID_PARAMS,
        jsonrpc.INTERNAL_ERROR,
    )
    assert codes == (-32700, -32600, -32601, -32602, -32603)
