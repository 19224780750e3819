"""Messages read no deeper than their outermost object: what is one, and what is refused, whatever its size."""

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


def answer(result: bytes = b"{}", message_id: bytes = b'"gh-1"') -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message_id, result)


def test_a_response_goes_on_under_another_id_with_its_result_as_it_is() -> None:
    message = envelope.read(b' {"id" : "gh-1" ,"result": {"a" :1.50, "b":"\\u00e9"}, "jsonrpc":"2.0"} ')
    assert message.answers("gh-1")
    assert envelope.encode(message.response_to(7)) == (b'{"jsonrpc":"2.0","id":7,"result":{"a" :1.50, "b":"\\u00e9"}}')


@pytest.mark.parametrize(("told", "sent"), [(b"1", "1"), (b'"1"', 1), (b"true", 1), (b"1.0", 1), (b"null", "a")])
def test_an_id_of_another_kind_is_another_id(told: bytes, sent: Any) -> None:
    try:
        assert not envelope.read(answer(message_id=told)).answers(sent)
    except ProtocolError:
        assert told == b"true"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        b"[]",
        b'"x"',
        b"{}",
        b"{nope",
        answer() + b"x",
        answer() + answer(),
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
        answer(b"7"),
        answer(b"[]"),
        answer(b'{"a":NaN}'),
        answer(b'{"a":"\xff"}'),
        answer(b'{"a":"' + LONG + b'\xff"}'),
        answer(b'{"a":' + b"[" * 101 + b"]" * 101 + b"}"),
        answer(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        answer(b'{"a":"' + LONG + b'","b":' + b'{"x":' * 101 + b"1" + b"}" * 102),
        answer(message_id=b'"' + LONG + b'"'),
        b'{"jsonrpc":"2.0",' + b",".join(b'"%d":1' % n for n in range(30)) + b',"id":1,"result":{}}',
    ],
)
def test_what_is_not_one_message_of_one_kind_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        envelope.read(data)


@pytest.mark.parametrize("spaced", [b"%b", b" %b ", b"\n%b\t"])
@pytest.mark.parametrize("filling", [b"1", LONG])
@pytest.mark.parametrize(
    "doubled",
    [
        b'"id":1,"id":2,"result":{"f":"%b"}',
        b'"id":2,"id":2,"result":{"f":"%b"}',
        b'"id":12,"result":{"f":"%b"},"id":1',
        b'"\\u0069d":1,"id":2,"result":{"f":"%b"}',
        b'"id":2,"result":{"f":"%b"},"\\u0069\\u0064":1',
        b'"id":2,"result":{"x":1},"result":{"f":"%b"}',
    ],
)
def test_a_doubled_key_is_refused_however_it_is_written(doubled: bytes, filling: bytes, spaced: bytes) -> None:
    with pytest.raises(ProtocolError, match="twice"):
        envelope.read(b'{"jsonrpc":"2.0",%b}' % (spaced % (doubled % filling)))


def test_what_sloppy_servers_write_is_read_as_it_is_meant() -> None:
    with_mark = b"\xef\xbb\xbf" + answer()
    assert envelope.read(with_mark).answers("gh-1")
    assert envelope.read_answer(with_mark)[0].answers("gh-1")
    note = envelope.read(b'{"jsonrpc":"2.0","method":"n","params":null}')
    assert envelope.encode(note.parts()) == b'{"jsonrpc":"2.0","method":"n"}'


def test_brackets_in_strings_do_not_nest() -> None:
    for text in ("[" * 1000, '"[' * 1000, "\\" * 999 + "[" * 1000, '{\\"' * 70_000):
        assert envelope.read(answer(json.dumps({"a": text}).encode())).is_response


def test_messages_of_an_array_are_read_one_by_one() -> None:
    note = b'{"jsonrpc":"2.0","method":"n"}'
    assert [message.is_response for message in envelope.read_answer(b" [%b,%b]" % (note, answer()))] == [False, True]
    for bad in (b"[1]", b"[%b" % note, b"[" + b",".join([note] * 101) + b"]"):
        with pytest.raises(ProtocolError):
            envelope.read_answer(bad)


def test_kinds_of_messages_and_what_they_are_passed_on_as() -> None:
    request = envelope.read(b'{"jsonrpc":"2.0","method":"a","id":null,"params":[1, 2]}')
    assert (request.is_request, request.is_response) == (True, False)
    assert envelope.encode(request.request_as(5)) == b'{"jsonrpc":"2.0","id":5,"method":"a","params":[1, 2]}'
    note = envelope.read(b'{"jsonrpc":"2.0","method":"a"}')
    assert (note.is_request, note.is_response) == (False, False)
    assert envelope.encode(note.parts()) == b'{"jsonrpc":"2.0","method":"a"}'
    error = envelope.read(b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m","data":{"x":1}}}')
    assert error.is_unaddressed_error
    found = error.remote_error()
    assert found is not None
    assert (found.code, found.message, found.data) == (-1, "m", {"x": 1})


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (r'"\ud800"', r'"\ufffd"'),
        (r'"a\uDFFFb"', r'"a\ufffdb"'),
        (r'"\ud83d\ude00\ud83d"', r'"\ud83d\ude00\ufffd"'),
        (r'"\ude00\ud83d\ud83d\ude00\ude00"', r'"\ufffd\ufffd\ud83d\ude00\ufffd"'),
        (r'"\\ud800\ud800\\\ud800"', r'"\\ud800\ufffd\\\ufffd"'),
        (r'"\u0000\ud800"', r'"\u0000\ufffd"'),
    ],
)
def test_half_a_surrogate_pair_is_replaced_and_costs_nothing_else(sent: str, read: str) -> None:
    body, wanted = b'{"jsonrpc":"2.0","id":1,"result":{"text":%b}}' % sent.encode(), b'{"text":%b}' % read.encode()
    assert bytes(envelope.read(body).result or b"") == wanted
    (message,) = envelope.read_answer(b"[%b]" % body)
    assert bytes(message.result or b"") == wanted


def test_what_is_nothing_but_halves_of_pairs_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        envelope.read(answer(b'{"a":"%b"}' % (rb"\ud800" * 1_001)))
    assert envelope.read(answer(b'{"a":"%b"}' % (rb"\ud800" * 1_000))).is_response


@pytest.mark.parametrize("data", [b'{"a":"\\ud800"', b'{"a":"\\ud8"}', b'{"a":"\0\\ud800"}', b"\\ud800"])
def test_what_is_no_json_stays_refused_with_half_a_surrogate_pair_in_it(data: bytes) -> None:
    for reader in (envelope.read, envelope.read_answer):
        with pytest.raises(ProtocolError):
            reader(data)


def test_a_part_is_built_when_it_is_small_and_refused_when_it_is_not() -> None:
    assert envelope.small(msgspec.Raw(b'{"a": "\\u0000"}')) == {"a": "\N{REPLACEMENT CHARACTER}"}
    assert envelope.fields(msgspec.Raw(b"[1]")) == {}
    assert envelope.items(msgspec.Raw(b"{}")) == []
    assert envelope.items([1]) == [1]
    assert envelope.text(7) == ""
    with pytest.raises(ProtocolError, match="larger than"):
        envelope.small(msgspec.Raw(b'"%b"' % LONG))
    assert json.loads(envelope.encode({"a": "\ud800"}).decode("utf-8", "surrogatepass")) == {"a": "\ud800"}
    odd = {"id": "\ud800", "result": envelope.Raw(b'{ "a": 1.50 }'), "\udfff": [1, ("\ud800",), None]}
    assert envelope.encode(odd) == b'{"id":"\\ud800","result":{ "a": 1.50 },"\\udfff":[1,["\\ud800"],null]}'


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
    read = envelope.read(data)
    assert json.loads(envelope.encode(read.response_to(1))) == {**message, "id": 1}


@given(json_values, st.integers(1, 6))
def test_depth_is_what_a_parser_finds(value: Any, limit: int) -> None:
    def depth(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return isinstance(part, (dict, list)) + max(map(depth, inner), default=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "PIECE", 3)  # so that strings and escapes are split
        assert envelope.nests_deeper(jsonrpc.encode(value), limit) is (depth(value) > limit)


@given(st.lists(json_values, max_size=30) | st.dictionaries(st.text(), json_values, max_size=30), st.integers(10, 30))
def test_keys_and_items_are_counted_as_a_parser_counts_them(value: Any, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envelope, "PIECE", 3)
        assert envelope.holds_more(jsonrpc.encode(value), most) is (len(value) > most)


KEYS = b"{%b}" % b",".join(b'"%d":1' % number for number in range(300_000))
ITEMS = b"[%b1]" % (b"1," * 1_500_000)


@pytest.mark.parametrize(
    "build",
    [
        lambda: envelope.fields(msgspec.Raw(KEYS)),
        lambda: envelope.items(msgspec.Raw(ITEMS)),
        lambda: envelope.read(KEYS),
        lambda: envelope.read_answer(ITEMS),
        lambda: envelope.read(b'{"jsonrpc":"2.0","id":1,"error":%b}' % KEYS),
        lambda: envelope.read(b'{"jsonrpc":"2.0","id":1,"result":{},"%b":1}' % (b"k" * 3_000_000)),
    ],
    ids=["keys", "items", "keys of a message", "messages of an answer", "keys of an error", "one long key"],
)
def test_what_holds_too_much_is_refused_and_not_built(build: Callable[[], Any]) -> None:
    """What a C decoder builds it builds at a stroke, and no other thread of the interpreter runs meanwhile."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="more than"):
            build()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_what_holds_too_much_passes_where_nobody_looks_into_it() -> None:
    message = envelope.read_opened(answer(KEYS))
    assert envelope.encode(message.response_to(1)) == answer(KEYS, b"1")
    with pytest.raises(ProtocolError, match="more than 1,000 keys"):
        message.opened_response_to(1)


def test_a_large_message_that_was_opened_has_no_large_part_left_to_build() -> None:
    meta = b'{"a":1,"b":"%b"}' % LONG
    for name in (b"result", b"error"):
        code = b'"code":1,' if name == b"error" else b""
        data = b'{"jsonrpc":"2.0","id":1,"%b":{%b"_meta":%b,"c":[1]}}' % (name, code, meta)
        opened = envelope.read_opened(data).fields
        assert bytes(opened["c"]) == b"[1]"
        assert {key: bytes(part) for key, part in opened["_meta"].items()} == {"a": b"1", "b": b'"%b"' % LONG}
    (message,) = envelope.read_answer_opened(answer(meta))
    assert envelope.encode(message.opened_response_to("gh-1")) == answer(meta)
