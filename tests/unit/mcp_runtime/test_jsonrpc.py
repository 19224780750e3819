from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ClientError, MethodError, ProtocolError, RemoteError
from mcp_runtime.protocol.jsonrpc import (
    MAX_DEPTH,
    Encoded,
    IdCounter,
    MethodDispatcher,
    Request,
    check_depth,
    decode,
    encode,
    excerpt,
    result_of,
    storable,
)

fixed_budget = settings(max_examples=150, deadline=None, derandomize=True, database=None)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
# Text as a hostile member sends it, with NUL characters and lone surrogates.
hostile_text = st.text(st.characters(exclude_categories=[]) | st.sampled_from("\x00\ud800\udfff\ufeff"))
hostile_values = st.recursive(
    scalars | hostile_text, lambda inner: st.lists(inner) | st.dictionaries(hostile_text, inner), max_leaves=20
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def result_or_error(read: Callable[[Any], Any], argument: Any) -> Any:
    """What `read` returns, or the ClientError that it raises. Any other error fails the test."""
    try:
        return read(argument)
    except ClientError as error:
        return error


def is_storable(value: Any) -> bool:
    """Whether PostgreSQL's JSON would take it."""
    if isinstance(value, str):
        return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, dict):
        return all(is_storable(key) and is_storable(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(is_storable, value))


# Building messages --------------------------------------------------------------------------------------------------


def test_a_request_has_an_id_and_a_notification_has_none() -> None:
    assert jsonrpc.request(7, "tools/list") == {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
    assert jsonrpc.request(7, "a", {})["params"] == {}
    assert jsonrpc.notification("b") == {"jsonrpc": "2.0", "method": "b"}
    assert jsonrpc.notification("b", {"c": 1}) == {"jsonrpc": "2.0", "method": "b", "params": {"c": 1}}


def test_ids_from_one_counter_are_unique_across_threads() -> None:
    counter, ids = IdCounter(), []
    threads = [threading.Thread(target=lambda: ids.extend(counter.take() for _ in range(1000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8000


@fixed_budget
@given(values)
def test_decoding_returns_the_encoded_value(value: Any) -> None:
    plain = storable(value)
    assert decode(encode(plain)) == plain


def test_text_is_encoded_as_utf8_without_blanks() -> None:
    assert encode({"a": "ü", "b": [1, 2]}) == '{"a":"ü","b":[1,2]}'.encode()


# Reading messages ---------------------------------------------------------------------------------------------------


@fixed_budget
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_protocol_error(body: bytes) -> None:
    value_or_error = result_or_error(decode, body)
    assert not isinstance(value_or_error, ProtocolError) or len(str(value_or_error)) < 1000


@fixed_budget
@given(hostile_values, st.booleans())
def test_every_decoded_value_can_be_stored(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        assert is_storable(decode(body))
    except ProtocolError:
        assert not escaped  # lone surrogates are valid only as escapes


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_than_utf8_are_refused(encoding: str) -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        decode('{"a":"\\u0000"}'.encode(encoding))


def test_a_byte_order_mark_is_accepted() -> None:
    assert decode(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b'{"a":-Infinity}', b"[1e999]", b"-1e999", b"[[-1e999]]"])
def test_numbers_that_a_database_refuses_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body)


def test_large_integers_are_accepted_and_oversized_integers_are_refused() -> None:
    assert decode(b"9" * 4000) == int("9" * 4000)
    with pytest.raises(ProtocolError, match="not JSON"):
        decode(b"9" * 5000)


def test_nesting_is_accepted_up_to_the_limit() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(ProtocolError, match=f"more than {MAX_DEPTH} levels deep"):
        decode(encode(nested(MAX_DEPTH + 1)))
    with pytest.raises(ProtocolError, match="too deep"):
        decode(b"[" * 1_000_000 + b"]" * 1_000_000)


def test_the_depth_limit_applies_to_escaped_text_too() -> None:
    with pytest.raises(ProtocolError, match="deep"):
        decode(b"[" * (MAX_DEPTH + 2) + b'"\\u0000"' + b"]" * (MAX_DEPTH + 2))


def test_the_depth_check_counts_lists_and_objects() -> None:
    value: Any = {}
    for _ in range(MAX_DEPTH + 1):
        value = {"a": [value]}
    with pytest.raises(ProtocolError):
        check_depth(value)
    check_depth({"a": 1.5, "b": [None, "x", 10**4000]})


def test_characters_that_a_database_refuses_are_replaced() -> None:
    body = rb'{"a\u0000b": ["\ud83d\ude00", "\ud800", "x\udc00y", 1, {"k": null}]}'
    assert decode(body) == {"a\ufffdb": ["\U0001f600", "\ufffd", "x\ufffdy", 1, {"k": None}]}


def test_exact_decoding_keeps_all_characters() -> None:
    body = rb'{"a\u0000b":["\ud800","x\udc00y",1]}'
    value = decode(body, exact=True)
    assert value == {"a\0b": ["\ud800", "x\udc00y", 1]}
    assert encode(value) == body
    assert decode(encode(value).decode().encode(), exact=True) == value


def test_a_method_gets_the_unchanged_text() -> None:
    request = rb'{"jsonrpc":"2.0","id":1,"method":"echo","params":["a\u0000b"]}'
    assert bytes_of(DISPATCHER, request) == rb'{"jsonrpc":"2.0","id":1,"result":"a\u0000b"}'


def test_an_escaped_backslash_before_u_is_not_an_escape() -> None:
    assert decode(rb'["\\u0000", "\\ud800"]') == ["\\u0000", "\\ud800"]


@fixed_budget
@given(hostile_values)
def test_storable_changes_only_values_that_cannot_be_stored(value: Any) -> None:
    storable_value = storable(value)
    assert is_storable(storable_value)
    assert storable(storable_value) == storable_value
    if is_storable(value):
        assert storable_value == value


@fixed_budget
@given(st.binary(max_size=2000))
def test_an_excerpt_is_printable_and_short(body: bytes) -> None:
    text = excerpt(body)
    assert text.isprintable()
    assert len(text) <= 600


def test_a_shortened_excerpt_ends_with_an_ellipsis() -> None:
    assert excerpt(b"a\n\tb\0") == "'a b'"
    assert excerpt(b"x" * 201) == repr("x" * 200 + "…")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (b"<!DOCTYPE html>\n<html><head><title>Sign in &middot; Example</title>", "with the title 'Sign in · Example'"),
        (b"  <html lang=en><body><h1>502 <b>Bad</b> Gateway</h1>", "with the title '502 Bad Gateway'"),
        (b"<!-- x --><HTML><TITLE>Oh</TITLE>", "with the title 'Oh'"),
        (b"<html><body>nothing", ""),
        (b"<html><title></title>", ""),
    ],
)
def test_the_excerpt_of_a_web_page_is_its_title(page: bytes, text: str) -> None:
    assert excerpt(page) == f"a web page {text}".strip()


# Responses ----------------------------------------------------------------------------------------------------------


def response(**members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, **members}


def test_result_of_returns_the_result_object() -> None:
    assert result_of(response(result={"a": 1})) == {"a": 1}


@fixed_budget
@given(values | st.fixed_dictionaries({"jsonrpc": st.just("2.0")}, optional={"result": values, "error": values}))
def test_any_other_value_is_a_protocol_or_remote_error(value: Any) -> None:
    assert isinstance(result_or_error(result_of, value), dict | ProtocolError | RemoteError)


@pytest.mark.parametrize("error", [{"code": "1"}, {"code": True}, {"code": 1.5}, {"message": "m"}, [], None, "no"])
def test_an_error_without_an_integer_code_is_a_protocol_error(error: Any) -> None:
    with pytest.raises(ProtocolError, match="no integer code"):
        result_of(response(error=error))


@pytest.mark.parametrize("message", [None, "", 7, {}])
def test_an_error_without_a_message_has_a_default_message(message: Any) -> None:
    with pytest.raises(RemoteError) as error:
        result_of(response(error={"code": -32603, "message": message, "data": [1]}))
    assert (error.value.code, error.value.message, error.value.data) == (-32603, "no message", [1])


def test_a_members_message_is_bounded() -> None:
    with pytest.raises(RemoteError) as error:
        result_of(response(error={"code": 1, "message": "x" * 1_000_000}))
    assert len(str(error.value)) < 2100


def test_the_codes_are_those_of_the_specification() -> None:
    codes = (
        jsonrpc.PARSE_ERROR,
        jsonrpc.INVALID_REQUEST,
        jsonrpc.METHOD_NOT_FOUND,
        jsonrpc.INVALID_PARAMS,
        jsonrpc.INTERNAL_ERROR,
    )
    assert codes == (-32700, -32600, -32601, -32602, -32603)


# Serving ----------------------------------------------------------------------------------------------------------


def method_of(function: Callable[..., Any]) -> Callable[[Request], Any]:
    """A method whose params are the arguments of a function, by position or by name."""

    def serve(request: Request) -> Any:
        params = request.params
        return function(**params) if isinstance(params, dict) else function(*params)

    return serve


def raise_method_error(code: int = -32000, data: Any = None) -> None:
    raise MethodError(code, "not with me", data)


def raise_unexpected_error() -> None:
    raise ZeroDivisionError("the password is secret")


notifications: list[Any] = []
METHODS = {
    "subtract": method_of(lambda minuend, subtrahend: minuend - subtrahend),
    "sum": lambda request: sum(request.params),
    "get_data": lambda request: ["hello", 5],
    "notify_hello": lambda request: notifications.append(request.params),
    "update": lambda request: notifications.append(request.params),
    "foo": lambda request: None,
    "echo": lambda request: request.params[0],
    "refuse": method_of(raise_method_error),
    "broken": method_of(raise_unexpected_error),
    "unspeakable": lambda request: {1, 2},
    "infinite": lambda request: float("inf"),
}
DISPATCHER = MethodDispatcher(METHODS)

PARSE_ERROR = {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}
INVALID_REQUEST = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": None}


def bytes_of(dispatcher: MethodDispatcher, body: bytes) -> bytes | None:
    """The response, which is the same if the parts are served one after the other and concurrently."""
    output = dispatcher.answer(dispatcher.read(body))
    with ThreadPoolExecutor(4) as threads:
        assert dispatcher.answer(dispatcher.read(body), threads.map) == output
    return output


def respond(message: Any, dispatcher: MethodDispatcher = DISPATCHER) -> Any:
    """The response to `message`, which is a value or bytes."""
    output = bytes_of(dispatcher, message if isinstance(message, bytes) else json.dumps(message).encode())
    return None if output is None else json.loads(output)


def success_response(request_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "result": result, "id": request_id}


# https://www.jsonrpc.org/specification#examples, one after the other
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}, success_response(1, 19)),
        ({"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}, success_response(2, -19)),
        (
            {"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3},
            success_response(3, 19),
        ),
        (
            {"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4},
            success_response(4, 19),
        ),
        ({"jsonrpc": "2.0", "method": "update", "params": [1, 2, 3, 4, 5]}, None),
        ({"jsonrpc": "2.0", "method": "foobar"}, None),
        (
            {"jsonrpc": "2.0", "method": "foobar", "id": "1"},
            {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"},
        ),
        (b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]', PARSE_ERROR),
        ({"jsonrpc": "2.0", "method": 1, "params": "bar"}, INVALID_REQUEST),
        (
            b'[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method"]',
            PARSE_ERROR,
        ),
        ([], {**INVALID_REQUEST, "error": {"code": -32600, "message": "a batch has 1 to 100 messages, not 0"}}),
        ([1], [INVALID_REQUEST]),
        ([1, 2, 3], [INVALID_REQUEST] * 3),
        (
            [
                {"jsonrpc": "2.0", "method": "sum", "params": [1, 2, 4], "id": "1"},
                {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
                {"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": "2"},
                {"foo": "boo"},
                {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
                {"jsonrpc": "2.0", "method": "get_data", "id": "9"},
            ],
            [
                success_response("1", 7),
                success_response("2", 19),
                INVALID_REQUEST,
                {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
                success_response("9", ["hello", 5]),
            ],
        ),
        (
            [
                {"jsonrpc": "2.0", "method": "notify_sum", "params": [1, 2, 4]},
                {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
            ],
            None,
        ),
    ],
)
def test_every_example_of_the_specification_gets_the_specified_response(message: Any, expected: Any) -> None:
    assert respond(message) == expected


def test_a_request_is_answered_with_its_id_its_result_and_the_version() -> None:
    """Story 8.2, AC 1 and 5."""
    for request_id in (7, "seven", 7.5, 0, "", None):
        assert respond({"jsonrpc": "2.0", "method": "foo", "id": request_id}) == success_response(request_id, None)


def test_an_unknown_method_is_32601() -> None:
    """Story 8.2, AC 2."""
    output = respond({"jsonrpc": "2.0", "method": "rpc.secret", "id": 1})
    assert (output["jsonrpc"], output["id"], output["error"]["code"]) == ("2.0", 1, -32601)


@pytest.mark.parametrize("method", ["notify_hello", "foobar", "broken", "refuse", "unspeakable"])
def test_a_notification_gets_no_response_even_if_it_fails(method: str) -> None:
    """Story 8.2, AC 3."""
    assert respond({"jsonrpc": "2.0", "method": method}) is None


def test_the_responses_of_a_batch_are_in_the_order_of_its_requests() -> None:
    """Story 8.2, AC 4."""
    batch = [{"jsonrpc": "2.0", "method": "echo", "params": [number], "id": number} for number in range(50)]
    assert [response["result"] for response in respond(batch)] == list(range(50))


@pytest.mark.parametrize("method", ["broken", "unspeakable", "infinite"])
def test_an_unexpected_error_is_logged_and_hidden_from_the_response(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    output = respond({"jsonrpc": "2.0", "method": method, "id": 1})
    assert output["error"] == {"code": -32603, "message": "Internal error"}
    assert f"method {method!r} failed" in caplog.text


def test_a_method_error_is_the_error_of_the_response() -> None:
    output = respond({"jsonrpc": "2.0", "method": "refuse", "params": {"data": {"hint": 1}}, "id": 1})
    assert output["error"] == {"code": -32000, "message": "not with me", "data": {"hint": 1}}
    assert output["error"]["code"] in jsonrpc.SERVER_ERRORS


def test_a_method_error_that_cannot_be_encoded_is_an_internal_error() -> None:
    dispatcher = MethodDispatcher({"refuse": lambda request: raise_method_error(data={1, 2})})
    assert respond({"jsonrpc": "2.0", "method": "refuse", "id": 1}, dispatcher)["error"]["code"] == -32603


@pytest.mark.parametrize(
    "message",
    [
        {"method": "foo", "id": 1},
        {"jsonrpc": "1.0", "method": "foo", "id": 1},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "method": "foo", "params": 5, "id": 1},
        {"jsonrpc": "2.0", "method": "foo", "params": None, "id": 1},
    ],
)
def test_an_invalid_request_is_32600_with_its_id(message: Any) -> None:
    assert respond(message) == {**INVALID_REQUEST, "id": 1}


@pytest.mark.parametrize("request_id", [True, [], {}])
def test_the_response_to_an_invalid_id_has_the_id_null(request_id: Any) -> None:
    assert respond({"jsonrpc": "2.0", "method": "foo", "id": request_id}) == INVALID_REQUEST


def test_an_unknown_method_is_served_by_the_default_function() -> None:
    dispatcher = MethodDispatcher(METHODS, default=lambda request: f"{request.method} elsewhere")
    batch = [{"jsonrpc": "2.0", "method": method, "id": method} for method in ("foo", "bar")]
    assert respond(batch, dispatcher) == [success_response("foo", None), success_response("bar", "bar elsewhere")]


def test_an_encoded_response_is_not_changed() -> None:
    dispatcher = MethodDispatcher(
        {"say": lambda request: Encoded(b'{"its": "own"}'), "drop": lambda request: Encoded(None)}
    )
    request_with_response, request_without_response = (
        {"jsonrpc": "2.0", "method": method, "id": 1} for method in ("say", "drop")
    )
    assert bytes_of(dispatcher, encode(request_with_response)) == b'{"its": "own"}'
    assert bytes_of(dispatcher, encode([request_without_response, request_with_response])) == b'[{"its": "own"}]'
    assert bytes_of(dispatcher, encode([request_without_response])) is None


def test_responses_are_accepted_only_with_a_handler_for_them() -> None:
    messages: list[Any] = []
    dispatcher = MethodDispatcher({}, on_response=lambda response: messages.append(response.message))
    responses = [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": ""}},
    ]
    assert dispatcher.answer(dispatcher.read(encode(responses))) is None
    assert messages == responses
    for message in responses:
        assert respond(message)["error"]["code"] == -32600
    for invalid_response in (
        {"jsonrpc": "2.0", "id": 1},
        {**responses[0], **responses[1]},
        {**responses[0], "method": 5},
    ):
        assert respond(invalid_response, dispatcher)["error"]["code"] == -32600


def test_the_parts_of_a_batch_can_be_served_at_the_same_time() -> None:
    barrier = threading.Barrier(2, timeout=10)  # one after the other, the first part would never end
    dispatcher = MethodDispatcher({"meet": lambda request: barrier.wait() >= 0})
    batch = dispatcher.read(encode([{"jsonrpc": "2.0", "method": "meet", "id": number} for number in (1, 2)]))
    with ThreadPoolExecutor(2) as threads:
        assert json.loads(dispatcher.answer(batch, threads.map) or b"") == [
            success_response(1, True),
            success_response(2, True),
        ]


def test_bytes_depth_and_batch_length_are_limited() -> None:
    dispatcher = MethodDispatcher(METHODS, max_bytes=1000, max_batch=3)
    request = {"jsonrpc": "2.0", "method": "echo", "params": [1], "id": 1}
    assert respond([request] * 3, dispatcher) == [success_response(1, 1)] * 3
    for body, code in [
        (encode([request] * 4), -32600),
        (encode({**request, "params": ["x" * 1000]}), -32600),
        (b"[" * 500 + b"]" * 500, -32700),
    ]:
        assert respond(body, dispatcher)["error"]["code"] == code


possible_requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2]),
        "method": st.sampled_from(["echo", "sum", "foo", "broken", "nowhere", ""]) | scalars,
        "params": values,
        "id": scalars | st.lists(scalars, max_size=1),
    },
)


@fixed_budget
@given(st.binary(max_size=200) | (possible_requests | st.lists(possible_requests | values, max_size=5)).map(encode))
def test_any_input_gets_a_valid_response(body: bytes) -> None:
    output = DISPATCHER.answer(DISPATCHER.read(body))
    if output is None:
        value = decode(body)
        for message in value if isinstance(value, list) else [value]:
            assert "id" not in message  # only notifications get no response
        return
    parts = json.loads(output)
    for part in parts if isinstance(parts, list) else [parts]:
        assert part["jsonrpc"] == "2.0"
        assert ("result" in part) != ("error" in part)
        assert "id" in part
        if "error" in part:
            assert part["error"]["code"] in jsonrpc.MEANINGS


@fixed_budget
@given(st.text() | st.sampled_from(["echo", "broken", "refuse"]), st.lists(values, max_size=3) | st.none())
def test_notifications_get_no_response_alone_or_in_a_batch(method: str, params: Any) -> None:
    notification = jsonrpc.notification(storable(method), storable(params))
    for message in (notification, [notification, notification]):
        assert DISPATCHER.answer(DISPATCHER.read(encode(message))) is None


@fixed_budget
@given(values)
def test_a_value_passes_unchanged_through_request_and_response(value: Any) -> None:
    body = encode(jsonrpc.request("the id", "echo", [storable(value)]))  # type: ignore[arg-type]
    assert result_or_none(DISPATCHER.answer(DISPATCHER.read(body))) == storable(value)


def result_or_none(body: bytes | None) -> Any:
    assert body is not None
    return decode(body)["result"]
