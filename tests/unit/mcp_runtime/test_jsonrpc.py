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
    with pytest.raises(ProtocolError, match=f"more than {MAX_DEPTH} levels deep"):
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


def test_what_is_read_exactly_is_written_as_it_was_in_valid_utf_8() -> None:
    body = rb'{"a\u0000b":["\ud800","x\udc00y",1]}'
    value = decode(body, exact=True)
    assert value == {"a\0b": ["\ud800", "x\udc00y", 1]}
    assert encode(value) == body
    assert decode(encode(value).decode().encode(), exact=True) == value


def test_a_method_gets_the_text_that_was_sent_so_that_it_can_refuse_it() -> None:
    sent = rb'{"jsonrpc":"2.0","id":1,"method":"echo","params":["a\u0000b"]}'
    assert bytes_of(DISPATCHER, sent) == rb'{"jsonrpc":"2.0","id":1,"result":"a\u0000b"}'


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


# Serving ----------------------------------------------------------------------------------------------------------


def applied(function: Callable[..., Any]) -> Callable[[Request], Any]:
    """A method whose params are the arguments of a function, by position or by name."""

    def serve(request: Request) -> Any:
        params = request.params
        return function(**params) if isinstance(params, dict) else function(*params)

    return serve


def refuse(code: int = -32000, data: Any = None) -> None:
    raise MethodError(code, "not with me", data)


def broken() -> None:
    raise ZeroDivisionError("the password is secret")


served: list[Any] = []
METHODS = {
    "subtract": applied(lambda minuend, subtrahend: minuend - subtrahend),
    "sum": lambda request: sum(request.params),
    "get_data": lambda request: ["hello", 5],
    "notify_hello": lambda request: served.append(request.params),
    "update": lambda request: served.append(request.params),
    "foo": lambda request: None,
    "echo": lambda request: request.params[0],
    "refuse": applied(refuse),
    "broken": applied(broken),
    "unspeakable": lambda request: {1, 2},
    "infinite": lambda request: float("inf"),
}
DISPATCHER = MethodDispatcher(METHODS)

PARSE_ERROR = {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}
INVALID = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": None}


def bytes_of(dispatcher: MethodDispatcher, body: bytes) -> bytes | None:
    """What is answered; one part after the other and all at once are the same."""
    answered = dispatcher.answer(dispatcher.read(body))
    with ThreadPoolExecutor(4) as threads:
        assert dispatcher.answer(dispatcher.read(body), threads.map) == answered
    return answered


def answer(message: Any, dispatcher: MethodDispatcher = DISPATCHER) -> Any:
    """What is answered to `message`, a value or the bytes themselves."""
    answered = bytes_of(dispatcher, message if isinstance(message, bytes) else json.dumps(message).encode())
    return None if answered is None else json.loads(answered)


def ok(request_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "result": result, "id": request_id}


# https://www.jsonrpc.org/specification#examples, one after the other
@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ({"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}, ok(1, 19)),
        ({"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}, ok(2, -19)),
        (
            {"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3},
            ok(3, 19),
        ),
        (
            {"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4},
            ok(4, 19),
        ),
        ({"jsonrpc": "2.0", "method": "update", "params": [1, 2, 3, 4, 5]}, None),
        ({"jsonrpc": "2.0", "method": "foobar"}, None),
        (
            {"jsonrpc": "2.0", "method": "foobar", "id": "1"},
            {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"},
        ),
        (b'{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]', PARSE_ERROR),
        ({"jsonrpc": "2.0", "method": 1, "params": "bar"}, INVALID),
        (
            b'[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"}, {"jsonrpc": "2.0", "method"]',
            PARSE_ERROR,
        ),
        ([], {**INVALID, "error": {"code": -32600, "message": "a batch has 1 to 100 messages, not 0"}}),
        ([1], [INVALID]),
        ([1, 2, 3], [INVALID] * 3),
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
                ok("1", 7),
                ok("2", 19),
                INVALID,
                {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
                ok("9", ["hello", 5]),
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
def test_every_example_of_the_specification_is_answered_as_it_says(sent: Any, answered: Any) -> None:
    assert answer(sent) == answered


def test_a_request_is_answered_with_its_id_its_result_and_the_version() -> None:
    """Story 8.2, AC 1 and 5."""
    for request_id in (7, "seven", 7.5, 0, "", None):
        assert answer({"jsonrpc": "2.0", "method": "foo", "id": request_id}) == ok(request_id, None)


def test_a_method_that_is_not_there_is_32601() -> None:
    """Story 8.2, AC 2."""
    answered = answer({"jsonrpc": "2.0", "method": "rpc.secret", "id": 1})
    assert (answered["jsonrpc"], answered["id"], answered["error"]["code"]) == ("2.0", 1, -32601)


@pytest.mark.parametrize("method", ["notify_hello", "foobar", "broken", "refuse", "unspeakable"])
def test_a_notification_is_not_answered_whatever_becomes_of_it(method: str) -> None:
    """Story 8.2, AC 3."""
    assert answer({"jsonrpc": "2.0", "method": method}) is None


def test_the_answers_of_a_batch_are_in_the_order_of_its_requests() -> None:
    """Story 8.2, AC 4."""
    batch = [{"jsonrpc": "2.0", "method": "echo", "params": [number], "id": number} for number in range(50)]
    assert [each["result"] for each in answer(batch)] == list(range(50))


@pytest.mark.parametrize("method", ["broken", "unspeakable", "infinite"])
def test_a_fault_inside_is_logged_and_told_as_no_more_than_that(method: str, caplog: pytest.LogCaptureFixture) -> None:
    answered = answer({"jsonrpc": "2.0", "method": method, "id": 1})
    assert answered["error"] == {"code": -32603, "message": "Internal error"}
    assert f"method {method!r} failed" in caplog.text


def test_an_error_of_the_methods_own_is_told_as_it_is() -> None:
    answered = answer({"jsonrpc": "2.0", "method": "refuse", "params": {"data": {"hint": 1}}, "id": 1})
    assert answered["error"] == {"code": -32000, "message": "not with me", "data": {"hint": 1}}
    assert answered["error"]["code"] in jsonrpc.SERVER_ERRORS


def test_an_error_that_cannot_be_told_is_an_internal_one() -> None:
    unspeakable = MethodDispatcher({"refuse": lambda request: refuse(data={1, 2})})
    assert answer({"jsonrpc": "2.0", "method": "refuse", "id": 1}, unspeakable)["error"]["code"] == -32603


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
def test_what_is_no_request_is_32600_with_the_id_where_there_is_one(message: Any) -> None:
    assert answer(message) == {**INVALID, "id": 1}


@pytest.mark.parametrize("request_id", [True, [], {}])
def test_an_id_that_is_none_is_answered_with_null(request_id: Any) -> None:
    assert answer({"jsonrpc": "2.0", "method": "foo", "id": request_id}) == INVALID


def test_a_method_without_a_function_of_its_own_is_served_by_the_default() -> None:
    relayed = MethodDispatcher(METHODS, default=lambda request: f"{request.method} elsewhere")
    sent = [{"jsonrpc": "2.0", "method": method, "id": method} for method in ("foo", "bar")]
    assert answer(sent, relayed) == [ok("foo", None), ok("bar", "bar elsewhere")]


def test_a_response_that_is_written_already_passes_as_it_is_and_none_is_none() -> None:
    written = MethodDispatcher(
        {"say": lambda request: Encoded(b'{"its": "own"}'), "drop": lambda request: Encoded(None)}
    )
    say, drop = ({"jsonrpc": "2.0", "method": method, "id": 1} for method in ("say", "drop"))
    assert bytes_of(written, encode(say)) == b'{"its": "own"}'
    assert bytes_of(written, encode([drop, say])) == b'[{"its": "own"}]'
    assert bytes_of(written, encode([drop])) is None


def test_answers_to_our_own_requests_are_taken_where_somebody_takes_them() -> None:
    taken: list[Any] = []
    asking = MethodDispatcher({}, on_response=lambda response: taken.append(response.message))
    good = [{"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": ""}}]
    assert asking.answer(asking.read(encode(good))) is None
    assert taken == good
    for message in good:
        assert answer(message)["error"]["code"] == -32600
    for bad in ({"jsonrpc": "2.0", "id": 1}, {**good[0], **good[1]}, {**good[0], "method": 5}):
        assert answer(bad, asking)["error"]["code"] == -32600


def test_the_parts_of_a_batch_can_be_served_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)  # the first would wait in vain for the second
    meeting = MethodDispatcher({"meet": lambda request: both.wait() >= 0})
    batch = meeting.read(encode([{"jsonrpc": "2.0", "method": "meet", "id": number} for number in (1, 2)]))
    with ThreadPoolExecutor(2) as threads:
        assert json.loads(meeting.answer(batch, threads.map) or b"") == [ok(1, True), ok(2, True)]


def test_bytes_depth_and_the_length_of_a_batch_are_bounded() -> None:
    small = MethodDispatcher(METHODS, max_bytes=1000, max_batch=3)
    request = {"jsonrpc": "2.0", "method": "echo", "params": [1], "id": 1}
    assert answer([request] * 3, small) == [ok(1, 1)] * 3
    for body, code in [
        (encode([request] * 4), -32600),
        (encode({**request, "params": ["x" * 1000]}), -32600),
        (b"[" * 500 + b"]" * 500, -32700),
    ]:
        assert answer(body, small)["error"]["code"] == code


requests_or_not = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", 2]),
        "method": st.sampled_from(["echo", "sum", "foo", "broken", "nowhere", ""]) | scalars,
        "params": values,
        "id": scalars | st.lists(scalars, max_size=1),
    },
)


@fixed_budget
@given(st.binary(max_size=200) | (requests_or_not | st.lists(requests_or_not | values, max_size=5)).map(encode))
def test_whatever_comes_is_answered_by_the_book(body: bytes) -> None:
    answered = DISPATCHER.answer(DISPATCHER.read(body))
    if answered is None:
        sent = decode(body)
        for message in sent if isinstance(sent, list) else [sent]:
            assert "id" not in message  # only notifications are not answered
        return
    parts = json.loads(answered)
    for part in parts if isinstance(parts, list) else [parts]:
        assert part["jsonrpc"] == "2.0"
        assert ("result" in part) != ("error" in part)
        assert "id" in part
        if "error" in part:
            assert part["error"]["code"] in jsonrpc.MEANINGS


@fixed_budget
@given(st.text() | st.sampled_from(["echo", "broken", "refuse"]), st.lists(values, max_size=3) | st.none())
def test_no_notification_is_ever_answered_alone_or_in_a_batch(method: str, params: Any) -> None:
    notification = jsonrpc.notification(storable(method), storable(params))
    for message in (notification, [notification, notification]):
        assert DISPATCHER.answer(DISPATCHER.read(encode(message))) is None


@fixed_budget
@given(values)
def test_what_goes_in_by_a_request_comes_out_by_its_response(value: Any) -> None:
    body = encode(jsonrpc.request("the id", "echo", [storable(value)]))  # type: ignore[arg-type]
    assert result_or_none(DISPATCHER.answer(DISPATCHER.read(body))) == storable(value)


def result_or_none(body: bytes | None) -> Any:
    assert body is not None
    return decode(body)["result"]
