"""Messages of which only the outermost object is decoded. Invalid messages are refused at any size."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_runtime.gateway import envelope
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ProtocolError

LONG = b"y" * 300_000


def response(result: bytes = b"{}", message_id: bytes = b'"gh-1"') -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message_id, result)


def test_a_response_gets_another_id_and_keeps_its_result() -> None:
    message = envelope.read(b' {"id" : "gh-1" ,"result": {"a" :1.50, "b":"\\u00e9"}, "jsonrpc":"2.0"} ')
    assert message.answers("gh-1")
    assert envelope.encode(message.response_to(7)) == (b'{"jsonrpc":"2.0","id":7,"result":{"a" :1.50, "b":"\\u00e9"}}')


@pytest.mark.parametrize(
    ("received_id", "sent_id"), [(b"1", "1"), (b'"1"', 1), (b"true", 1), (b"1.0", 1), (b"null", "a")]
)
def test_ids_of_different_types_differ(received_id: bytes, sent_id: Any) -> None:
    try:
        assert not envelope.read(response(message_id=received_id)).answers(sent_id)
    except ProtocolError:
        assert received_id == b"true"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        b"[]",
        b'"x"',
        b"{}",
        b"{nope",
        response() + b"x",
        response() + response(),
        b'{"id":1,"result":{}}',
        b'{"jsonrpc":"1.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"method":"a"}',
        b'{"jsonrpc":"2.0","id":1,"method":["a"]}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":7}',
        b'{"jsonrpc":"2.0","id":[1],"result":{}}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":7}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":true}}',
        response(b"7"),
        response(b"[]"),
        response(b'{"a":NaN}'),
        response(b'{"a":"\xff"}'),
        response(b'{"a":"' + LONG + b'\xff"}'),
        response(b'{"a":' + b"[" * 101 + b"]" * 101 + b"}"),
        response(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        response(b'{"a":"' + LONG + b'","b":' + b'{"x":' * 101 + b"1" + b"}" * 102),
        response(message_id=b'"' + LONG + b'"'),
        b'{"jsonrpc":"2.0",' + b",".join(b'"%d":1' % n for n in range(30)) + b',"id":1,"result":{}}',
    ],
)
def test_an_invalid_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        envelope.read(data)


@pytest.mark.parametrize("spacing", [b"%b", b" %b ", b"\n%b\t"])
@pytest.mark.parametrize("value", [b"1", LONG])
@pytest.mark.parametrize(
    "members",
    [
        b'"id":1,"id":2,"result":{"f":"%b"}',
        b'"id":2,"id":2,"result":{"f":"%b"}',
        b'"id":12,"result":{"f":"%b"},"id":1',
        b'"\\u0069d":1,"id":2,"result":{"f":"%b"}',
        b'"id":2,"result":{"f":"%b"},"\\u0069\\u0064":1',
        b'"id":2,"result":{"x":1},"result":{"f":"%b"}',
    ],
)
def test_a_duplicate_key_is_refused_in_any_spelling(members: bytes, value: bytes, spacing: bytes) -> None:
    with pytest.raises(ProtocolError, match="twice"):
        envelope.read(b'{"jsonrpc":"2.0",%b}' % (spacing % (members % value)))


def test_a_byte_order_mark_and_null_params_are_accepted() -> None:
    data = b"\xef\xbb\xbf" + response()
    assert envelope.read(data).answers("gh-1")
    assert envelope.read_answer(data)[0].answers("gh-1")
    notification = envelope.read(b'{"jsonrpc":"2.0","method":"n","params":null}')
    assert envelope.encode(notification.parts()) == b'{"jsonrpc":"2.0","method":"n"}'


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    for text in ("[" * 1000, '"[' * 1000, "\\" * 999 + "[" * 1000, '{\\"' * 70_000):
        assert envelope.read(response(json.dumps({"a": text}).encode())).is_response


def test_messages_of_an_array_are_read_one_by_one() -> None:
    notification = b'{"jsonrpc":"2.0","method":"n"}'
    assert [message.is_response for message in envelope.read_answer(b" [%b,%b]" % (notification, response()))] == [
        False,
        True,
    ]
    for data in (b"[1]", b"[%b" % notification, b"[" + b",".join([notification] * 101) + b"]"):
        with pytest.raises(ProtocolError):
            envelope.read_answer(data)


def test_requests_notifications_and_errors_are_recognized_and_encoded() -> None:
    request = envelope.read(b'{"jsonrpc":"2.0","method":"a","id":null,"params":[1, 2]}')
    assert (request.is_request, request.is_response) == (True, False)
    assert envelope.encode(request.request_as(5)) == b'{"jsonrpc":"2.0","id":5,"method":"a","params":[1, 2]}'
    notification = envelope.read(b'{"jsonrpc":"2.0","method":"a"}')
    assert (notification.is_request, notification.is_response) == (False, False)
    assert envelope.encode(notification.parts()) == b'{"jsonrpc":"2.0","method":"a"}'
    error = envelope.read(b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m","data":{"x":1}}}')
    assert error.is_unaddressed_error
    remote_error = error.remote_error()
    assert remote_error is not None
    assert (remote_error.code, remote_error.message, remote_error.data) == (-1, "m", {"x": 1})


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        (r'"\ud800"', r'"\ufffd"'),
        (r'"a\uDFFFb"', r'"a\ufffdb"'),
        (r'"\ud83d\ude00\ud83d"', r'"\ud83d\ude00\ufffd"'),
        (r'"\ude00\ud83d\ud83d\ude00\ude00"', r'"\ufffd\ufffd\ud83d\ude00\ufffd"'),
        (r'"\\ud800\ud800\\\ud800"', r'"\\ud800\ufffd\\\ufffd"'),
        (r'"\u0000\ud800"', r'"\u0000\ufffd"'),
    ],
)
def test_only_lone_surrogates_are_replaced(text: str, decoded: str) -> None:
    body, expected = b'{"jsonrpc":"2.0","id":1,"result":{"text":%b}}' % text.encode(), b'{"text":%b}' % decoded.encode()
    assert bytes(envelope.read(body).result or b"") == expected
    (message,) = envelope.read_answer(b"[%b]" % body)
    assert bytes(message.result or b"") == expected


def test_a_text_with_too_many_lone_surrogates_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        envelope.read(response(b'{"a":"%b"}' % (rb"\ud800" * 1_001)))
    assert envelope.read(response(b'{"a":"%b"}' % (rb"\ud800" * 1_000))).is_response


@pytest.mark.parametrize("data", [b'{"a":"\\ud800"', b'{"a":"\\ud8"}', b'{"a":"\0\\ud800"}', b"\\ud800"])
def test_invalid_json_with_a_lone_surrogate_is_refused(data: bytes) -> None:
    for reader in (envelope.read, envelope.read_answer):
        with pytest.raises(ProtocolError):
            reader(data)


def test_only_small_parts_are_decoded() -> None:
    assert envelope.small(msgspec.Raw(b'{"a": "\\u0000"}')) == {"a": "\N{REPLACEMENT CHARACTER}"}
    assert envelope.fields(msgspec.Raw(b"[1]")) == {}
    assert envelope.items(msgspec.Raw(b"{}")) == []
    assert envelope.items([1]) == [1]
    assert envelope.text(7) == ""
    with pytest.raises(ProtocolError, match="larger than"):
        envelope.small(msgspec.Raw(b'"%b"' % LONG))
    assert json.loads(envelope.encode({"a": "\ud800"}).decode("utf-8", "surrogatepass")) == {"a": "\ud800"}
    value = {"id": "\ud800", "result": envelope.Raw(b'{ "a": 1.50 }'), "\udfff": [1, ("\ud800",), None]}
    assert envelope.encode(value) == b'{"id":"\\ud800","result":{ "a": 1.50 },"\\udfff":[1,["\\ud800"],null]}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values), st.sampled_from([(",", ":"), (", ", ": ")]), st.booleans())
def test_every_result_passes_unchanged(result: dict[str, Any], separators: tuple[str, str], is_ascii: bool) -> None:
    message = {"jsonrpc": "2.0", "id": "gh-1", "result": result}
    data = json.dumps(message, separators=separators, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:
        return
    decoded = envelope.read(data)
    assert json.loads(envelope.encode(decoded.response_to(1))) == {**message, "id": 1}


@given(json_values, st.integers(1, 6))
def test_the_depth_agrees_with_a_parser(value: Any, limit: int) -> None:
    def depth(part: Any) -> int:
        children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return isinstance(part, (dict, list)) + max(map(depth, children), default=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "PIECE", 3)  # so that strings and escapes are split
        assert envelope.nests_deeper(jsonrpc.encode(value), limit) is (depth(value) > limit)


@given(st.lists(json_values, max_size=30) | st.dictionaries(st.text(), json_values, max_size=30), st.integers(10, 30))
def test_the_number_of_keys_and_items_agrees_with_a_parser(value: Any, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "PIECE", 3)
        assert envelope.holds_more(jsonrpc.encode(value), limit) is (len(value) > limit)


MANY_KEYS = b"{%b}" % b",".join(b'"%d":1' % number for number in range(300_000))
MANY_ITEMS = b"[%b1]" % (b"1," * 1_500_000)


@pytest.mark.parametrize(
    "build",
    [
        lambda: envelope.fields(msgspec.Raw(MANY_KEYS)),
        lambda: envelope.items(msgspec.Raw(MANY_ITEMS)),
        lambda: envelope.read(MANY_KEYS),
        lambda: envelope.read_answer(MANY_ITEMS),
        lambda: envelope.read(b'{"jsonrpc":"2.0","id":1,"error":%b}' % MANY_KEYS),
        lambda: envelope.read(b'{"jsonrpc":"2.0","id":1,"result":{},"%b":1}' % (b"k" * 3_000_000)),
    ],
    ids=["keys", "items", "keys of a message", "messages of a response", "keys of an error", "one long key"],
)
def test_a_message_with_too_many_parts_is_refused_and_not_decoded(build: Callable[[], Any]) -> None:
    """A C decoder builds everything in one step, and no other thread of the interpreter runs meanwhile."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than"):
            build()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_result_with_too_many_parts_can_be_relayed_unopened() -> None:
    message = envelope.read_opened(response(MANY_KEYS))
    assert envelope.encode(message.response_to(1)) == response(MANY_KEYS, b"1")
    with pytest.raises(ProtocolError, match="more than 1,000 keys"):
        message.opened_response_to(1)


def test_a_large_opened_message_is_split_into_raw_parts() -> None:
    meta = b'{"a":1,"b":"%b"}' % LONG
    for name in (b"result", b"error"):
        code = b'"code":1,' if name == b"error" else b""
        data = b'{"jsonrpc":"2.0","id":1,"%b":{%b"_meta":%b,"c":[1]}}' % (name, code, meta)
        fields = envelope.read_opened(data).fields
        assert bytes(fields["c"]) == b"[1]"
        assert {key: bytes(part) for key, part in fields["_meta"].items()} == {"a": b"1", "b": b'"%b"' % LONG}
    (message,) = envelope.read_answer_opened(response(meta))
    assert envelope.encode(message.opened_response_to("gh-1")) == response(meta)
