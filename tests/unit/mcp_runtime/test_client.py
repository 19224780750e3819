"""JsonRpcClient against servers made of raw sockets, so that they can misbehave in any way the wire allows."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from mcp_runtime.client import client, quick_json, streams, tool_list, transport
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.transport import Exchange
from mcp_runtime.protocol import errors
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    HttpStatusError,
    MethodError,
    ProtocolError,
    RemoteError,
    RequestCancelledError,
    RequestTimeoutError,
    ToolError,
)
from tests.conftest import eventually
from tests.support.machine import take_alone
from tests.support.scripted_server import (
    WELL_BEHAVED,
    Behaviour,
    Peers,
    Request,
    Server,
    client_threads,
    connections_to,
    full_backlog,
    in_thread,
    initialize_result,
    takes,
    takes_no_time,
    text,
)


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers = Peers()
    yield peers
    for thing in reversed(peers.opened):
        thing.close()


# The handshake ----------------------------------------------------------------------------------------------------


def test_initialize_asks_then_says_that_it_is_initialized(peers: Peers) -> None:
    server, caller = peers({"initialize": lambda r: r.result(initialize_result(instructions="Be kind."))})

    told = caller.initialize()

    first, second = server.requests
    assert first.message == {
        "jsonrpc": "2.0",
        "id": first.id,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": client.CLIENT_NAME, "version": client.CLIENT_VERSION},
        },
    }
    assert second.message == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (told.protocol_version, told.instructions) == ("2025-06-18", "Be kind.")
    assert (told.server_info, told.capabilities) == ({"name": "wire"}, {"tools": {}})


def test_every_message_has_the_headers_that_the_protocol_demands(peers: Peers) -> None:
    server, caller = peers()
    caller.initialize()
    caller.list_tools()
    caller.invoke_tool("echo", {})
    assert len(server.requests) == 4
    for request in server.requests:
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["Accept"] == "application/json, text/event-stream"
        assert request.headers["MCP-Protocol-Version"] == "2025-06-18"
        assert request.headers["Accept-Encoding"] == "identity"
        assert request.headers["Host"] == f"127.0.0.1:{server.port}"


def test_ids_are_never_used_twice(peers: Peers) -> None:
    server, caller = peers()
    for _ in range(20):
        caller.invoke_tool("echo", {})
    ids = [request.id for request in server.requests]
    assert len(set(ids)) == 20


def test_the_version_that_was_agreed_on_is_sent_from_then_on(peers: Peers) -> None:
    server, caller = peers({"initialize": lambda r: r.result(initialize_result("2025-03-26"))})
    caller.initialize()
    caller.invoke_tool("echo", {})
    versions = [request.headers["MCP-Protocol-Version"] for request in server.requests]
    assert versions == ["2025-06-18", "2025-03-26", "2025-03-26"]


@pytest.mark.parametrize("version", ["1999-01-01", None, 7, ["2025-06-18"], "x" * 100_000])
def test_an_unknown_version_ends_the_handshake_before_it_is_confirmed(peers: Peers, version: Any) -> None:
    server, caller = peers({"initialize": lambda r: r.result({**initialize_result(), "protocolVersion": version})})
    with pytest.raises(ProtocolError, match="speaks 2024-11-05, 2025-03-26, 2025-06-18") as caught:
        caller.initialize()
    assert server.methods == ["initialize"]
    assert len(str(caught.value)) < 300


def test_a_session_id_is_kept_and_sent_and_forgotten_at_the_next_handshake(peers: Peers) -> None:
    ids = iter(["one-1", "two~2", None])

    def begin(request: Request) -> None:
        session = next(ids)
        request.result(initialize_result(), **({"Mcp_Session_Id": session} if session else {}))

    server, caller = peers({"initialize": begin})
    for _ in range(3):
        caller.initialize()
        caller.invoke_tool("echo", {})
    sent = [request.headers.get("Mcp-Session-Id") for request in server.requests]
    assert sent == [None, "one-1", "one-1", None, "two~2", "two~2", None, None, None]


@pytest.mark.parametrize("told", ["a\r\n X-Evil: 1", "h\xe9", "two words", "", "x" * 2000])
def test_a_session_id_that_cannot_be_sent_back_is_refused(peers: Peers, told: str) -> None:
    def begin(request: Request) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": initialize_result()})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: {told}\r\n"
        request.send(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode("latin-1"))

    server, caller = peers({"initialize": begin})
    with pytest.raises(ProtocolError, match="session id"):
        caller.initialize()
    assert server.methods == ["initialize"]


def test_odd_values_beside_a_good_version_are_read_as_nothing(peers: Peers) -> None:
    odd = {"protocolVersion": "2025-06-18", "capabilities": [], "serverInfo": "me", "instructions": 7 * "x" * 9000}
    told = peers({"initialize": lambda r: r.result(odd)})[1].initialize()
    assert (told.capabilities, told.server_info, len(told.instructions)) == ({}, {}, 10_000)


def test_the_three_steps_share_one_deadline(peers: Peers) -> None:
    def late(request: Request) -> None:
        time.sleep(0.3)
        request.result(initialize_result())

    _, caller = peers({"initialize": late, "notifications/initialized": Request.hang})
    with takes(0.6), pytest.raises(RequestTimeoutError):
        caller.initialize(timeout=0.6)


def test_the_handshake_takes_five_seconds_and_a_call_thirty_unless_told_otherwise() -> None:
    assert (client.INITIALIZE_TIMEOUT, client.REQUEST_TIMEOUT) == (5.0, 30.0)
    assert JsonRpcClient.initialize.__defaults__ == (5.0, None)
    assert JsonRpcClient.list_tools.__defaults__ == (30.0, None)
    assert JsonRpcClient.invoke_tool.__defaults__ == (30.0, None)


# Notifications ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 202, 204])
def test_any_success_accepts_a_notification(peers: Peers, status: int) -> None:
    server, caller = peers({"notifications/initialized": lambda r: r.http(status)})
    caller.initialize()
    assert server.methods == ["initialize", "notifications/initialized"]


@pytest.mark.parametrize("status", [302, 400, 404, 500])
def test_a_notification_that_is_not_accepted_is_an_error(peers: Peers, status: int) -> None:
    _, caller = peers({"notifications/initialized": lambda r: r.http(status, b"no, thanks", Location="http://a/")})
    with pytest.raises(HttpStatusError, match="no, thanks") as caught:
        caller.initialize()
    assert caught.value.status == status


def test_a_notification_accepted_without_saying_how_long_the_answer_is_does_not_wait_for_its_end(peers: Peers) -> None:
    def endless(request: Request) -> None:
        request.send(b"HTTP/1.1 202 Accepted\r\n\r\n")
        request.hang()

    _, caller = peers({"notifications/initialized": endless})
    with takes_no_time():
        caller.initialize()
    assert caller.invoke_tool("echo", {}) == text("{}")


# tools/list -------------------------------------------------------------------------------------------------------


def test_tools_are_listed_as_the_member_sent_them_in_its_order(peers: Peers) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}, "x-mine": [1, None]} for name in ("b", "a", "c/d.e")]
    server, caller = peers({"tools/list": lambda r: r.result({"tools": tools})})
    found = caller.list_tools()
    assert (found.tools, found.warnings) == (tools, [])
    assert server.requests[0].message["params"] == {}


def test_all_pages_are_followed(peers: Peers) -> None:
    def page(request: Request) -> None:
        number = int(request.message["params"].get("cursor", "0"))
        more = {"nextCursor": str(number + 1)} if number < 3 else {}
        request.result({"tools": [{"name": f"tool-{number}"}], **more})

    server, caller = peers({"tools/list": page})
    assert [tool["name"] for tool in caller.list_tools().tools] == ["tool-0", "tool-1", "tool-2", "tool-3"]
    assert [request.message["params"] for request in server.requests[1:]] == [{"cursor": c} for c in "123"]


def numbered_pages(**more: Any) -> Behaviour:
    counter = itertools.count()

    def page(request: Request) -> None:
        number = next(counter)
        request.result({"tools": [{"name": f"tool-{number}", **more}], "nextCursor": f"page-{number}"})

    return page


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (lambda r: r.result({"tools": [], "nextCursor": "again"}), "repeats its cursor"),
        (lambda r: r.result({"tools": [], "nextCursor": 7}), "repeats its cursor"),
        (numbered_pages(), "more than 100 pages"),
        (lambda r: r.result({"tools": [{"name": str(n)} for n in range(2001)]}), "more than 2000 tools"),
        (numbered_pages(description="x" * 1_000_000), "larger than 4,000,000 bytes in all"),
        (lambda r: r.result({}), "no array of tools"),
        (lambda r: r.result({"tools": {"a": 1}}), "no array of tools"),
    ],
)
def test_a_list_without_end_or_measure_is_refused(peers: Peers, behaviour: Behaviour, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        peers({"tools/list": behaviour})[1].list_tools()


def test_a_tool_that_runs_only_as_a_task_is_told_with_where_it_is_offered(peers: Peers) -> None:
    entries = [{"name": "a", "execution": {"taskSupport": "required"}}, {"name": "b", "execution": "required"}]
    found = peers({"tools/list": lambda r: r.result({"tools": entries})})[1].list_tools()
    assert found.tools == entries
    (warning,) = found.warnings
    assert warning.startswith("tools/list: 'a' runs only as a task: it is offered at")


def test_entries_that_are_no_tools_are_left_out_and_told(peers: Peers) -> None:
    entries = [{"name": "good"}, "text", {"name": ""}, {"name": 7}, {}, {"name": "x" * 256}, {"name": "good", "a": 1}]
    found = peers({"tools/list": lambda r: r.result({"tools": entries})})[1].list_tools()
    assert found.tools == [{"name": "good"}]
    left_out = [f"tools/list: entry {index} has no usable name and is left out" for index in (1, 2, 3, 4, 5)]
    assert found.warnings == [*left_out, "tools/list: 'good' is listed twice; the first counts"]


UNSHOWN = ["line\nbreak", "return\r", "nul\0", "\x1b[2J", "\x7f", "\x85", "a\u2028b", "\u202egnp.exe", "\u2066x"]
RELATIVE = ["..", ".", "../../tokens", "a/../b", "../../other/tools/wipe", "a/./b"]
ODD = [
    "a/1.0",
    "...",
    "a..b",
    "zwölf",
    "%2e%2e",
    "a b",
    "what?#",
    "\\",
    "<b>",
    "a" * 255,
    "/a",
    "\U0001f468\u200d\U0001f373",
]


@pytest.mark.parametrize("name", UNSHOWN + RELATIVE)
def test_a_tool_whose_name_no_address_carries_is_left_out_and_told(peers: Peers, name: str) -> None:
    """The other tools are there, and the member's page says why this one is not."""
    found = peers({"tools/list": lambda r: r.result({"tools": [{"name": name}, {"name": "good"}]})})[1].list_tools()
    assert found.tools == [{"name": "good"}]
    (warning,) = found.warnings
    shown = name.replace("\0", "\ufffd")  # as all text of members
    assert warning.startswith(f"tools/list: {shown!a} is left out: its name has ")
    assert warning.isprintable()


def test_names_beyond_what_the_protocol_recommends_are_tools(peers: Peers) -> None:
    found = peers({"tools/list": lambda r: r.result({"tools": [{"name": name} for name in ODD]})})[1].list_tools()
    assert ([tool["name"] for tool in found.tools], found.warnings) == (ODD, [])


def test_a_member_cannot_fill_the_memory_with_warnings(peers: Peers) -> None:
    found = peers({"tools/list": lambda r: r.result({"tools": [0] * 100_000})})[1].list_tools()
    assert len(found.warnings) == tool_list.MAX_WARNINGS + 1
    assert found.warnings[-1].endswith("more of the kind")


def test_a_server_that_said_it_has_no_tools_has_none(peers: Peers) -> None:
    _, caller = peers(
        {
            "initialize": lambda r: r.result({**initialize_result(), "capabilities": {}}),
            "tools/list": lambda r: r.error(-32601, "no such method"),
        }
    )
    caller.initialize()
    assert caller.list_tools().tools == []


def test_a_server_that_said_it_has_tools_must_list_them(peers: Peers) -> None:
    _, caller = peers({"tools/list": lambda r: r.error(-32601, "no such method")})
    caller.initialize()
    with pytest.raises(RemoteError):
        caller.list_tools()


def test_the_pages_of_a_list_share_one_deadline(peers: Peers) -> None:
    pages = numbered_pages()

    def late(request: Request) -> None:
        time.sleep(0.1)
        pages(request)

    with takes(0.5), pytest.raises(RequestTimeoutError):
        peers({"tools/list": late})[1].list_tools(timeout=0.5)


# tools/call -------------------------------------------------------------------------------------------------------


def test_a_call_gives_the_tools_result(peers: Peers) -> None:
    server, caller = peers()
    assert caller.invoke_tool("echo", {"text": "naïve ☃"}) == text('{"text": "na\\u00efve \\u2603"}')
    (request,) = server.requests
    params = {"name": "echo", "arguments": {"text": "naïve ☃"}}
    assert request.message == {"jsonrpc": "2.0", "id": request.id, "method": "tools/call", "params": params}


def test_a_tools_own_failure_raises_and_carries_the_whole_result(peers: Peers) -> None:
    result = {
        "content": [{"type": "text", "text": "no paper"}, {"type": "image", "data": "", "mimeType": "image/png"}],
        "isError": True,
        "structuredContent": {"tray": 2},
    }
    with pytest.raises(ToolError, match=r"^no paper\n\[an image\]$") as caught:
        peers.client_with(lambda r: r.result(result)).invoke_tool("print", {})
    assert caught.value.result == result


@pytest.mark.parametrize("result", [{"isError": True}, {"isError": True, "content": []}])
def test_a_tools_failure_without_a_word_has_a_message_all_the_same(peers: Peers, result: Any) -> None:
    with pytest.raises(ToolError, match="without a text"):
        peers.client_with(lambda r: r.result(result)).invoke_tool("print", {})


@pytest.mark.parametrize("flag", [False, None, "true", 1])
def test_only_true_is_an_error(peers: Peers, flag: Any) -> None:
    result = {"content": [], "isError": flag}
    assert peers.client_with(lambda r: r.result(result)).invoke_tool("print", {}) == result


def test_a_json_rpc_error_is_not_a_tools_failure(peers: Peers) -> None:
    with pytest.raises(RemoteError) as caught:
        peers.client_with(lambda r: r.error(-32602, "no such tool", data={"did you mean": "echo"})).invoke_tool("x", {})
    error = caught.value
    assert (error.code, error.message, error.data) == (-32602, "no such tool", {"did you mean": "echo"})


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_json_rpc_error_explains_an_http_error_status(peers: Peers, status: int) -> None:
    with pytest.raises(RemoteError, match="bad session") as caught:
        peers.client_with(lambda r: r.error(-32000, "bad session", status)).invoke_tool("x", {})
    assert caught.value.code == -32000


def test_a_json_rpc_error_from_before_the_id_was_read_counts(peers: Peers) -> None:
    answer = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "unreadable"}}
    with pytest.raises(RemoteError, match="unreadable"):
        peers.client_with(lambda r: r.json(answer)).invoke_tool("x", {})


# Answers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"jsonrpc":"2.0","id":"another","result":{}}', "answered request 'another', but"),
        (b'{"jsonrpc":"2.0","id":true,"result":{}}', "answered request True, but"),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', "answered request None, but"),
        (b'{"jsonrpc":"2.0","result":{}}', "answered request None, but"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}', "both a result and an error"),
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":null}', "both a result and an error"),
        (b'{"jsonrpc":"2.0","id":1}', "no result object"),
        (b'{"jsonrpc":"2.0","id":1,"result":[]}', "no result object"),
        (b'{"jsonrpc":"2.0","id":1,"error":"no"}', "no integer code"),
        (b'{"jsonrpc":"1.0","id":1,"result":{}}', "not a JSON-RPC 2.0 response"),
        (b'{"id":1,"result":{}}', "not a JSON-RPC 2.0 response"),
        (b'[{"jsonrpc":"2.0","id":99,"result":{}}]', "not a JSON-RPC 2.0 response"),
        (b"null", "not a JSON-RPC 2.0 response"),
        (b"", "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"resu', "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff\xfe"}}', "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}', "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":-Infinity}}', "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":1e999}}', "too large to be stored"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"9" * 5000 + b"}}", "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 200 + b"]" * 200 + b"}}", "100 levels deep"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "too deep"),
        (b'{"jsonrpc":"2.0","id":"' + b"x" * 1_000_000 + b'","result":{}}', "but 1 was asked"),
    ],
)
def test_an_answer_that_is_no_response_is_a_protocol_error(peers: Peers, body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        peers.client_with(lambda r: r.http(200, body)).invoke_tool("echo", {})
    assert len(str(caught.value)) < 600


def test_an_answer_that_comes_twice_fails_one_call_alone(peers: Peers) -> None:
    """The second answer to the first call comes in the place of the second call's, and so on if nobody hangs up."""
    calls: list[Request] = []

    def call(request: Request) -> None:
        calls.append(request)
        if len(calls) > 1 and request.connection == calls[0].connection:
            calls[-2].result(text("too late"))
        else:
            request.result(text("in time"))

    client = peers.client_with(call)
    assert client.invoke_tool("x", {}) == text("in time")
    with pytest.raises(ProtocolError, match="but 2 was asked"):
        client.invoke_tool("x", {})
    assert [client.invoke_tool("x", {}) for _ in range(3)] == [text("in time")] * 3


@pytest.mark.parametrize("kind", ["text/html", "text/plain; charset=utf-8", "", "application/jsonp"])
def test_what_does_not_call_itself_json_is_quoted_not_parsed(peers: Peers, kind: str) -> None:
    with pytest.raises(ProtocolError, match="instead of JSON: '<h1>Hello</h1> there'"):
        peers.client_with(lambda r: r.http(200, b"<h1>Hello</h1>\n\0\x1b there", kind)).invoke_tool("echo", {})


@pytest.mark.parametrize("status", [201, 202, 204, 301, 400, 401, 404, 405, 500, 503])
def test_a_status_that_is_no_answer_is_an_error_with_what_was_said(peers: Peers, status: int) -> None:
    body = b"" if status == 204 else b"because of the weather"
    with pytest.raises(HttpStatusError) as caught:
        peers.client_with(lambda r: r.http(status, body, "text/plain")).invoke_tool("echo", {})
    assert caught.value.status == status
    assert status == 204 or "because of the weather" in str(caught.value)


@pytest.mark.parametrize("body", [b"not json at all", b'{"jsonrpc":"2.0","id":1,"result":{}}'])
def test_json_under_an_error_status_that_explains_nothing_leaves_the_status(peers: Peers, body: bytes) -> None:
    with pytest.raises(HttpStatusError):
        peers.client_with(lambda r: r.http(500, body)).invoke_tool("echo", {})


def test_a_redirect_is_not_followed(peers: Peers) -> None:
    elsewhere, _ = peers()
    caller = peers.client_with(lambda r: r.http(307, Location=elsewhere.url))
    with pytest.raises(HttpStatusError, match="307"):
        caller.invoke_tool("echo", {})
    assert elsewhere.requests == []


def test_a_zip_bomb_is_not_unpacked(peers: Peers) -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    caller = peers.client_with(lambda r: r.http(200, bomb, Content_Encoding="gzip"))
    before = psutil.Process().memory_info().rss
    with pytest.raises(ProtocolError, match="not JSON"):
        caller.invoke_tool("echo", {})
    assert psutil.Process().memory_info().rss - before < 50_000_000


@pytest.mark.parametrize("noise", [b"\x00\xff\xfe nothing you know\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 100_000])
def test_what_is_not_http_is_a_protocol_error(peers: Peers, noise: bytes) -> None:
    def talk(request: Request) -> None:
        request.send(noise)
        request.hang_up()

    with pytest.raises(ClientError) as caught:
        peers.client_with(talk).invoke_tool("echo", {})
    assert isinstance(caught.value, ProtocolError | ConnectError)


@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 \x1b[2J200\x9b OK\r\n\r\n",
        b"\x1b]0;title\x07\x1b[31m\xc2\x85 no\rHTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \x1b[2J\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\x1b[2J\r\n",
    ],
)
def test_the_error_about_what_is_not_http_quotes_no_control_characters(peers: Peers, noise: bytes) -> None:
    def talk(request: Request) -> None:
        request.send(noise)
        request.hang_up()

    with pytest.raises(ClientError) as caught:
        peers.client_with(talk).invoke_tool("echo", {})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_endless_headers_are_refused(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            request.send(b"X-More: of them\r\n" * 100)

    with pytest.raises(ProtocolError, match="did not respond with HTTP"):
        peers.client_with(talk).invoke_tool("echo", {}, timeout=10)


# Size -------------------------------------------------------------------------------------------------------------


def padded(request: Request, size: int) -> bytes:
    """An answer of exactly `size` bytes."""
    empty = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": {"pad": ""}}).encode()
    return empty[:-3] + b"x" * (size - len(empty)) + empty[-3:]


def test_an_answer_of_exactly_the_bound_is_taken_and_one_more_byte_is_not(peers: Peers) -> None:
    sizes = iter([1000, 1001])
    caller = peers.client_with(lambda r: r.http(200, padded(r, next(sizes))), max_bytes=1000)
    assert set(caller.invoke_tool("echo", {})) == {"pad"}
    with pytest.raises(ProtocolError, match="larger than 1,000 bytes"):
        caller.invoke_tool("echo", {})


def test_fifty_megabytes_are_refused_without_being_read(peers: Peers) -> None:
    sent = []

    def flood(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n\r\n")
        for _ in range(50):
            request.send(b"x" * 1_000_000)
            sent.append(1_000_000)

    with pytest.raises(ProtocolError, match="larger than 4,000,000 bytes"):
        peers.client_with(flood).invoke_tool("echo", {})
    assert sum(sent) < 25_000_000  # what the sockets' buffers hold, at most


def chunks_without_end(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        request.send(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")


def body_without_end(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while True:
        request.send(b"x" * 100_000)


def events_without_end(request: Request) -> None:
    request.stream()
    while True:
        request.send(b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\n' * 1000)


def event_without_end(request: Request) -> None:
    request.stream(b"data: ")
    while True:
        request.send(b"x" * 100_000)


def lines_without_end(request: Request) -> None:
    request.stream()
    while True:
        request.send(b"data: x\n" * 10_000)


@pytest.mark.parametrize(
    "behaviour", [chunks_without_end, body_without_end, events_without_end, event_without_end, lines_without_end]
)
def test_an_endless_answer_is_refused_at_the_bound(peers: Peers, behaviour: Behaviour) -> None:
    server, caller = peers({"tools/call": behaviour}, max_bytes=500_000)
    with pytest.raises(ProtocolError, match="larger than 500,000 bytes"):
        caller.invoke_tool("echo", {}, timeout=20)
    eventually(lambda: not connections_to(server.port))


def continued_without_end(request: Request) -> None:
    while True:
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def trailers_without_end(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    while True:
        request.send(b"X-More: of them\r\n" * 1000)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (continued_without_end, "the header section of the response is larger than 256,000 bytes"),
        (trailers_without_end, "the response with its framing is larger than 1,256,000 bytes"),
    ],
)
def test_what_comes_around_an_answer_without_end_is_refused_too(
    peers: Peers, behaviour: Behaviour, reason: str
) -> None:
    server, caller = peers({"tools/call": behaviour}, max_bytes=500_000)
    with takes_no_time(), pytest.raises(ProtocolError, match=reason):
        caller.invoke_tool("echo", {}, timeout=20)
    eventually(lambda: not connections_to(server.port))


def test_each_call_on_a_connection_has_the_whole_bound_for_itself(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000)
        request.http(200, padded(request, 1000))

    server, caller = peers({"tools/call": talk}, max_bytes=1000)
    for _ in range(5):
        caller.invoke_tool("echo", {})
    assert {request.connection for request in server.requests} == {1}


def test_an_answer_in_the_smallest_of_chunks_is_taken(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        body = padded(request, 50_000)
        request.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")

    assert set(peers.client_with(talk).invoke_tool("echo", {})) == {"pad"}


def test_arguments_larger_than_the_sockets_buffers_arrive_whole(peers: Peers) -> None:
    caller = peers.client_with(lambda r: r.result({"length": len(r.message["params"]["arguments"]["text"])}))
    for _ in range(2):  # on a fresh connection, and on one that was used before
        assert caller.invoke_tool("echo", {"text": "x" * 20_000_000}, timeout=20) == {"length": 20_000_000}


# Deadlines --------------------------------------------------------------------------------------------------------


def dribble_headers(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    request.dribble(b"y")


def dribble_status(request: Request) -> None:
    request.dribble(b"H")


def dribble_interim_answers(request: Request) -> None:
    request.dribble(b"HTTP/1.1 100 Continue\r\n\r\n")


def dribble_body(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    request.dribble(b" ")


def dribble_chunks(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    request.dribble(b"1\r\n \r\n")


def dribble_chunk_size(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    request.dribble(b"0")


def dribble_events(request: Request) -> None:
    request.stream()
    request.dribble(b": still working\n\n")


def dribble_one_event(request: Request) -> None:
    request.stream(b"data: ")
    request.dribble(b"x")


def dribble_error_body(request: Request) -> None:
    request.send(b"HTTP/1.1 500 Oh\r\nContent-Type: application/json\r\n\r\n")
    request.dribble(b" ")


def say_nothing(request: Request) -> None:
    request.hang()


def stop_half_way(request: Request) -> None:
    request.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"jsonrpc"')
    request.hang()


SLOW = [
    dribble_headers,
    dribble_status,
    dribble_interim_answers,
    dribble_body,
    dribble_chunks,
    dribble_chunk_size,
    dribble_events,
    dribble_one_event,
    dribble_error_body,
    say_nothing,
    stop_half_way,
]


@pytest.mark.parametrize("behaviour", SLOW)
def test_nothing_that_a_server_does_stretches_the_deadline(peers: Peers, behaviour: Behaviour) -> None:
    server, caller = peers({"tools/call": behaviour})
    with takes(0.4), pytest.raises(RequestTimeoutError, match=r"within 0\.4 s") as caught:
        caller.invoke_tool("echo", {}, timeout=0.4)
    assert caught.value.seconds == 0.4
    eventually(lambda: not connections_to(server.port))


@pytest.mark.parametrize("behaviour", [dribble_headers, dribble_body, dribble_events])
def test_the_deadline_holds_on_a_connection_that_was_used_before(peers: Peers, behaviour: Behaviour) -> None:
    server, caller = peers({"tools/call": behaviour})
    caller.list_tools()
    with takes(0.4), pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {}, timeout=0.4)
    assert [request.connection for request in server.requests] == [1, 1]


def test_a_call_may_take_longer_than_the_one_before_it_on_the_same_connection(peers: Peers) -> None:
    def late(request: Request) -> None:
        time.sleep(request.message["params"]["arguments"].get("seconds", 0))
        request.result({})

    server, caller = peers({"tools/call": late})
    caller.invoke_tool("echo", {}, timeout=0.9)
    time.sleep(0.9)  # the first call's deadline passes while the connection idles
    assert caller.invoke_tool("echo", {"seconds": 1.0}, timeout=20) == {}
    assert {request.connection for request in server.requests} == {1}


def test_a_server_that_does_not_read_cannot_hold_a_large_call(peers: Peers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = peers.client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        with takes(0.4), pytest.raises(RequestTimeoutError):
            caller.invoke_tool("echo", {"text": "x" * 20_000_000}, timeout=0.4)


def test_a_server_that_never_accepts_is_a_failed_connection_in_time(peers: Peers) -> None:
    with full_backlog() as port, takes(0.5), pytest.raises(ConnectError, match=r"no connection within 0\.5 s"):
        peers.client(f"http://127.0.0.1:{port}/mcp").invoke_tool("echo", {}, timeout=0.5)


def test_connecting_gets_no_more_than_its_share_of_a_long_deadline(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT", 0.3)
    with full_backlog() as port, takes(0.3), pytest.raises(ConnectError):
        peers.client(f"http://127.0.0.1:{port}/mcp").invoke_tool("echo", {}, timeout=30)


# Connections that fail --------------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_refuses_the_connection(peers: Peers) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        with takes_no_time(), pytest.raises(ConnectError, match="connection refused"):
            peers.client(f"http://127.0.0.1:{reserved.getsockname()[1]}/mcp").invoke_tool("echo", {})


def was_sent(error: pytest.ExceptionInfo[ClientError]) -> bool:
    return error.value.was_sent


def test_an_error_says_whether_the_server_may_have_the_request(peers: Peers) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectError) as refused:
            peers.client(f"http://127.0.0.1:{reserved.getsockname()[1]}/mcp").invoke_tool("echo", {})
    with full_backlog() as port, pytest.raises(ConnectError) as not_accepted:
        peers.client(f"http://127.0.0.1:{port}/mcp").invoke_tool("echo", {}, timeout=0.2)
    with pytest.raises(RequestTimeoutError) as late:
        peers.client_with(lambda request: request.hang()).invoke_tool("echo", {}, timeout=1.0)
    with pytest.raises(ConnectError) as reset:
        peers.client_with(lambda request: request.reset()).invoke_tool("echo", {})
    ends = (refused, not_accepted, late, reset)
    assert [was_sent(end) for end in ends] == [False, False, True, True]


def test_a_call_whose_session_was_forgotten_and_did_not_begin_again_was_not_sent(peers: Peers) -> None:
    beginnings = iter([lambda r: r.result(initialize_result(), Mcp_Session_Id="one"), lambda r: r.http(503)])
    server, caller = peers({"initialize": lambda r: next(beginnings)(r), "tools/call": lambda r: r.http(404)})
    caller.initialize()
    with pytest.raises(HttpStatusError, match="503") as end:
        caller.invoke_tool("echo", {})
    assert not was_sent(end)
    server.behaviours["initialize"] = lambda r: r.result(initialize_result(), Mcp_Session_Id="two")
    with pytest.raises(HttpStatusError, match="404") as end:
        caller.invoke_tool("echo", {})
    assert was_sent(end)


def close_within_body(request: Request) -> None:
    request.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"jsonrpc"')
    request.hang_up()


def close_within_chunk(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc")
    request.hang_up()


def close_within_stream(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    request.send(b"8\r\n: hello\n\r\n")
    request.hang_up()


@pytest.mark.parametrize(
    "behaviour", [Request.hang_up, Request.reset, close_within_body, close_within_chunk, close_within_stream]
)
def test_a_connection_that_ends_before_the_answer_is_a_failed_connection(peers: Peers, behaviour: Behaviour) -> None:
    with pytest.raises(ConnectError, match="closed before the response was complete"):
        peers.client_with(behaviour).invoke_tool("echo", {})


@pytest.mark.parametrize("behaviour", [Request.hang_up, Request.reset])
def test_a_call_is_sent_once_even_when_its_connection_breaks(peers: Peers, behaviour: Behaviour) -> None:
    server, caller = peers({"tools/call": behaviour})
    caller.list_tools()
    with pytest.raises(ConnectError):
        caller.invoke_tool("echo", {})
    assert server.methods == ["tools/list", "tools/call"]


# Event streams ----------------------------------------------------------------------------------------------------


def test_the_answer_is_found_in_a_stream_among_everything_else(peers: Peers) -> None:
    def talk(request: Request) -> None:
        note = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\r\n\r\n'
        ping = b'event: message\r\ndata: {"jsonrpc":"2.0","id":%d,"method":"ping"}\r\n\r\n' % request.id
        other = b'data: {"jsonrpc":"2.0","id":"other","result":{}}\r\n\r\n'
        request.stream(b"\xef\xbb\xbf: hello\r\n\r\n", b"id: 1\r\ndata:\r\n\r\n", note, ping, other)
        request.send(request.answer_event(text("naïve")))
        request.hang()

    server, caller = peers({"tools/call": talk})
    with takes_no_time():
        assert caller.invoke_tool("echo", {}) == text("naïve")
    # The one on which the ping was answered serves further calls.
    eventually(lambda: len(connections_to(server.port)) == 1, what="the stream's connection is closed")


def test_a_stream_in_chunks_that_end_anywhere_is_read(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream;charset=utf-8\r\n")
        request.send(b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in request.answer_event(text("bit by bit")):
            request.send(b"1\r\n%c\r\n" % byte)
        request.send(b"0\r\n\r\n")

    assert peers.client_with(talk).invoke_tool("echo", {}) == text("bit by bit")


def test_an_error_in_a_stream_is_an_error(peers: Peers) -> None:
    def talk(request: Request) -> None:
        error = {"jsonrpc": "2.0", "id": request.id, "error": {"code": 5, "message": "no"}}
        request.stream(b"data: " + json.dumps(error).encode() + b"\n\n")
        request.hang_up()

    with pytest.raises(RemoteError, match="no"):
        peers.client_with(talk).invoke_tool("echo", {})


@pytest.mark.parametrize("events", [b"", b": nothing\n\n", b'data: {"jsonrpc":"2.0","id":99,"result":{}}\n\n'])
def test_a_stream_that_ends_without_the_answer_is_a_protocol_error(peers: Peers, events: bytes) -> None:
    def talk(request: Request) -> None:
        request.stream(events)
        request.hang_up()

    with pytest.raises(ProtocolError, match="ended without the answer"):
        peers.client_with(talk).invoke_tool("echo", {})


def test_an_event_that_is_not_json_is_a_protocol_error(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.stream(b"data: <h1>\n\n")
        request.hang()

    with pytest.raises(ProtocolError, match="not JSON"):
        peers.client_with(talk).invoke_tool("echo", {})


# Connections that live --------------------------------------------------------------------------------------------


def test_calls_one_after_the_other_use_one_connection(peers: Peers) -> None:
    server, caller = peers()
    caller.initialize()
    for _ in range(50):
        caller.invoke_tool("echo", {})
    assert {request.connection for request in server.requests} == {1}


def test_an_answer_in_chunks_leaves_the_connection_usable(peers: Peers) -> None:
    def talk(request: Request) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": text("chunked")}).encode()
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        request.send(b"5\r\n" + body[:5] + b"\r\n%x;ext=1\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n")

    server, caller = peers({"tools/call": talk})
    for _ in range(3):
        assert caller.invoke_tool("echo", {}) == text("chunked")
    assert {request.connection for request in server.requests} == {1}


def test_a_connection_that_the_server_closed_while_it_idled_does_not_fail_the_next_call(peers: Peers) -> None:
    server, caller = peers()
    caller.invoke_tool("echo", {})
    server.drop_idle_connections()
    eventually(lambda: not connections_to(server.port))
    assert caller.invoke_tool("echo", {}) == text("{}")
    assert [request.connection for request in server.requests] == [1, 2]


def test_a_connection_that_idled_long_is_not_trusted_with_a_call(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    server, caller = peers()
    caller.invoke_tool("echo", {})
    monkeypatch.setattr(transport, "IDLE_SECONDS", 0.0)
    caller.invoke_tool("echo", {})
    assert [request.connection for request in server.requests] == [1, 2]
    eventually(lambda: len(connections_to(server.port)) == 1)


def test_a_server_that_closes_after_each_answer_is_called_again(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.result({}, Connection="close")
        request.hang_up()

    server, caller = peers({"tools/call": talk})
    for _ in range(3):
        assert caller.invoke_tool("echo", {}) == {}
    assert [request.connection for request in server.requests] == [1, 2, 3]


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_ones(peers: Peers) -> None:
    def twice(request: Request) -> None:
        request.result(text("first"))
        request.result(text("second"))

    caller = peers.client_with(twice)
    for _ in range(5):
        with contextlib.suppress(ProtocolError):
            assert caller.invoke_tool("echo", {}) == text("first")


def test_many_threads_at_once_get_their_own_answers(peers: Peers) -> None:
    server, caller = peers(connections=32)
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda n: caller.invoke_tool("echo", {"n": n}), range(500)))
    assert answers == [text(json.dumps({"n": n})) for n in range(500)]
    assert len({request.id for request in server.requests}) == 500
    assert len({request.connection for request in server.requests}) <= 32


@pytest.mark.parametrize(
    ("behaviour", "kept"),
    [
        (WELL_BEHAVED["tools/call"], 1),
        (lambda r: r.error(1, "no"), 1),
        (lambda r: r.http(500, b"x"), 1),
        (lambda r: r.http(200, b"<h1>", "text/html"), 1),
        (lambda r: r.http(200, b"x" * 5_000_000), 0),
        (lambda r: (r.stream(r.answer_event({})), r.hang()), 0),
        (say_nothing, 0),
        (Request.reset, 0),
    ],
)
def test_nothing_is_left_of_a_call_but_a_connection_that_can_serve_the_next(
    peers: Peers, behaviour: Behaviour, kept: int
) -> None:
    server, caller = peers({"tools/call": behaviour})
    before = client_threads()
    for _ in range(3):
        with contextlib.suppress(ClientError):
            caller.invoke_tool("echo", {}, timeout=10.0 if kept else 0.3)
    assert client_threads() == before
    eventually(lambda: len(connections_to(server.port)) == kept)
    caller.close()
    eventually(lambda: not connections_to(server.port))


def test_proxies_credentials_and_cookies_of_the_environment_are_ignored(
    peers: Peers, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    proxy, _ = peers()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    server, caller = peers({"tools/call": lambda r: r.result({}, Set_Cookie="a=b; Path=/")})
    for _ in range(2):
        assert caller.invoke_tool("echo", {}) == {}
    assert proxy.requests == []
    for request in server.requests:
        assert {"Authorization", "Cookie", "Proxy-Authorization"}.isdisjoint(request.headers)


# Aborting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [say_nothing, dribble_headers, dribble_body, dribble_events, stop_half_way])
def test_cancel_wakes_the_caller_at_once_and_tells_the_server(peers: Peers, behaviour: Behaviour) -> None:
    server, caller = peers({"tools/call": behaviour})
    exchange = Exchange()
    thread, ends = in_thread(lambda: caller.invoke_tool("slow", {}, 30, exchange=exchange))
    eventually(lambda: "tools/call" in server.methods)

    with takes_no_time():
        caller.cancel(exchange, "no longer wanted")
        thread.join(5)

    (end,) = ends
    assert isinstance(end, RequestCancelledError)
    asked, told = server.requests
    assert told.message == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": asked.id, "reason": "no longer wanted"},
    }
    eventually(lambda: len(connections_to(server.port)) <= 1)


def test_cancel_wakes_a_caller_whose_message_is_not_being_read(peers: Peers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = peers.client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        exchange = Exchange()
        arguments = {"text": "x" * 20_000_000}
        thread, ends = in_thread(lambda: caller.invoke_tool("slow", arguments, 30, exchange=exchange))
        eventually(lambda: exchange.is_sent)  # or some of it
        with takes_no_time():
            exchange.abort()
            thread.join(5)
        assert isinstance(ends[0], RequestCancelledError)


def test_cancelling_at_a_server_that_does_not_answer_takes_no_longer_than_its_own_deadline(peers: Peers) -> None:
    server, caller = peers({"tools/call": say_nothing, "notifications/cancelled": say_nothing})
    exchange = Exchange()
    thread, ends = in_thread(lambda: caller.invoke_tool("slow", {}, 30, exchange=exchange))
    eventually(lambda: server.requests)
    with takes(client.CANCEL_TIMEOUT):
        caller.cancel(exchange, "no longer wanted")
        thread.join(5)
    assert isinstance(ends[0], RequestCancelledError)


def test_a_call_that_was_cancelled_before_it_was_sent_is_never_sent(peers: Peers) -> None:
    exchange = Exchange()
    with full_backlog() as port:
        caller = peers.client(f"http://127.0.0.1:{port}/mcp")
        caller.cancel(exchange, "changed my mind")
        with takes_no_time(), pytest.raises(RequestCancelledError):  # it does not even connect
            caller.invoke_tool("echo", {}, exchange=exchange)


def test_a_call_that_is_cancelled_while_it_connects_is_never_sent(peers: Peers) -> None:
    with full_backlog() as port:
        caller = peers.client(f"http://127.0.0.1:{port}/mcp")
        exchange = Exchange()
        thread, ends = in_thread(lambda: caller.invoke_tool("echo", {}, 1.0, exchange=exchange))
        eventually(lambda: exchange.request_id is not None)
        exchange.abort()
        thread.join(5)
    assert isinstance(ends[0], RequestCancelledError)


def test_a_call_that_is_cancelled_when_its_connection_is_there_is_never_sent(peers: Peers) -> None:
    server, caller = peers()
    caller.list_tools()  # so that there is a connection
    exchange = Exchange()
    exchange.begin(7, 30)
    exchange.abort()
    exchange.begin = lambda *_: None  # type: ignore[method-assign]  # as if it had come a moment sooner
    with pytest.raises(RequestCancelledError):
        caller.invoke_tool("echo", {}, exchange=exchange)
    assert server.methods == ["tools/list"]


def test_an_answer_that_came_after_the_cancellation_is_not_wanted(peers: Peers) -> None:
    exchange = Exchange()

    def talk(request: Request) -> None:
        exchange.mark_aborted()
        request.result(text("too late"))

    with pytest.raises(RequestCancelledError):
        peers.client_with(talk).invoke_tool("echo", {}, exchange=exchange)


def test_cancelling_what_is_over_harms_nothing(peers: Peers) -> None:
    server, caller = peers()
    exchange = Exchange()
    caller.invoke_tool("echo", {}, exchange=exchange)
    caller.cancel(exchange, "too late")
    assert caller.invoke_tool("echo", {}) == text("{}")
    assert server.methods == ["tools/call", "notifications/cancelled", "tools/call"]


def test_cancelling_never_raises_when_nobody_is_there_any_more(peers: Peers) -> None:
    server, caller = peers()
    exchange = Exchange()
    caller.invoke_tool("echo", {}, exchange=exchange)
    server.close()
    caller.cancel(exchange, "too late")
    assert exchange.is_aborted


def test_cancelling_one_call_leaves_the_others_alone(peers: Peers) -> None:
    def talk(request: Request) -> None:
        if request.message["params"]["name"] == "slow":
            request.hang()
        time.sleep(0.3)
        request.result({})

    server, caller = peers({"tools/call": talk})
    exchange = Exchange()
    slow, slow_ends = in_thread(lambda: caller.invoke_tool("slow", {}, 30, exchange=exchange))
    other, other_ends = in_thread(lambda: caller.invoke_tool("quick", {}, 30))
    eventually(lambda: len(server.requests) == 2)
    caller.cancel(exchange, "no")
    slow.join(5)
    other.join(5)
    assert isinstance(slow_ends[0], RequestCancelledError)
    assert other_ends == [{}]


# Errors -----------------------------------------------------------------------------------------------------------


def test_every_client_error_says_something_to_people() -> None:
    made = [
        errors.ConnectError("refused"),
        errors.RequestTimeoutError(2.5),
        errors.HttpStatusError(500, "'oh'"),
        errors.RequestCancelledError(),
        errors.ProtocolError("odd"),
        errors.RemoteError(-1, "no", None),
        errors.ToolError("it failed", {}),
    ]
    assert [str(error) for error in made] == [
        "refused",
        "no complete answer within 2.5 s",
        "answered with HTTP status 500: 'oh'",
        "the request was cancelled",
        "odd",
        "no (JSON-RPC error -1)",
        "it failed",
    ]


def test_waiting_to_read_a_large_answer_ends_at_the_deadline(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, may_go_on, decode = threading.Event(), threading.Event(), quick_json.decode

    def decode_slowly(data: bytes) -> Any:
        if len(data) > streams.LARGE_ANSWER:
            reading.set()
            may_go_on.wait(10)
        return decode(data)

    caller = peers.client_with(lambda request: request.result(text("x" * streams.LARGE_ANSWER)))
    small = peers.client_with(lambda request: request.result(text("small")))
    caller.invoke_tool("echo", {})
    monkeypatch.setattr(quick_json, "decode", decode_slowly)
    thread, ends = in_thread(lambda: caller.invoke_tool("echo", {}))
    assert reading.wait(10)
    with takes(0.4), pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {}, 0.4)
    assert small.invoke_tool("echo", {}) == text("small")
    may_go_on.set()
    thread.join(10)
    assert len(ends[0]["content"][0]["text"]) == streams.LARGE_ANSWER


# What a server asks and tells while it is called ------------------------------------------------------------------


def event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def asking(*messages: dict[str, Any]) -> Behaviour:
    """Sends these on the stream of a call, waits until each question was answered, then gives the result."""

    def talk(request: Request) -> None:
        request.stream()
        questions = 0
        for message in messages:
            request.send(event(message))
            questions += "id" in message
            eventually(lambda: request.server.methods.count("reply") == questions)  # noqa: B023
        request.send(request.answer_event(text("done")))
        request.hang_up()

    return talk


def replies(server: Server) -> list[dict[str, Any]]:
    return [request.message for request in server.requests if request.body and "method" not in request.message]


def test_a_ping_on_the_stream_is_answered_while_the_stream_stays_open(peers: Peers) -> None:
    server, caller = peers({"tools/call": asking({"id": "p-1", "method": "ping"})})
    caller.initialize()
    assert caller.invoke_tool("echo", {}) == text("done")
    assert replies(server) == [{"jsonrpc": "2.0", "id": "p-1", "result": {}}]


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "nonsense"])
def test_what_the_hall_does_not_offer_is_declined(peers: Peers, method: str) -> None:
    server, caller = peers({"tools/call": asking({"id": 7, "method": method, "params": {}})})
    assert caller.invoke_tool("echo", {}) == text("done")
    (reply,) = replies(server)
    assert (reply["id"], reply["error"]["code"]) == (7, -32601)


def test_a_question_is_answered_by_who_offers_to(peers: Peers) -> None:
    def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if params["message"] == "no":
            raise MethodError(-1, "not today")
        return {"action": "accept", "content": {"method": method}}

    ask = {"method": "elicitation/create"}
    messages = [{**ask, "id": 0, "params": {"message": "yes"}}, {**ask, "id": 1, "params": {"message": "no"}}]
    server, caller = peers({"tools/call": asking(*messages)}, on_request=answer, capabilities={"elicitation": {}})
    caller.initialize()
    assert server.requests[0].message["params"]["capabilities"] == {"elicitation": {}}
    caller.invoke_tool("echo", {})
    first, second = replies(server)
    assert (first["id"], second["id"]) == (0, 1)
    assert first["result"] == {"action": "accept", "content": {"method": "elicitation/create"}}
    assert second["error"] == {"code": -1, "message": "not today"}


def test_progress_is_asked_for_and_told_where_somebody_listens(peers: Peers) -> None:
    def talk(request: Request) -> None:
        token = request.message["params"]["_meta"]["progressToken"]
        request.stream()
        for number, whose in ((1, token), (2, "another's"), (3, token)):
            params = {"progressToken": whose, "progress": number, "total": 3, "message": f"step {number}"}
            request.send(event({"method": "notifications/progress", "params": params}))
        request.send(request.answer_event(text("done")))
        request.hang_up()

    told: list[Any] = []
    caller = peers.client_with(talk)
    caller.invoke_tool("echo", {}, exchange=Exchange(lambda params: told.append(params["message"])))
    assert told == ["step 1", "step 3"]


def test_nobody_asks_for_progress_that_is_not_wanted(peers: Peers) -> None:
    server, caller = peers()
    caller.invoke_tool("echo", {})
    assert "_meta" not in server.requests[0].message["params"]


def test_other_notifications_are_handed_on(peers: Peers) -> None:
    told: list[str] = []
    note = {"method": "notifications/tools/list_changed"}
    _, caller = peers({"tools/call": asking(note)}, on_notification=lambda method, params: told.append(method))
    caller.invoke_tool("echo", {})
    assert told == ["notifications/tools/list_changed"]


def test_a_call_on_whose_stream_questions_come_still_ends_at_its_deadline(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.stream()
        request.dribble(event({"id": 1, "method": "ping"}))

    with takes(0.5), pytest.raises(RequestTimeoutError):
        peers.client_with(talk).invoke_tool("echo", {}, 0.5)


@pytest.mark.alone
@pytest.mark.no_cover
def test_a_batch_of_questions_stretches_neither_deadline_nor_cancellation(peers: Peers) -> None:
    def talk(request: Request) -> None:
        batch = [{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}] * 50_000
        request.stream(*[b"data: " + json.dumps(batch).encode() + b"\n\n"] * 5)
        request.hang()

    def slow(method: str, params: dict[str, Any]) -> None:
        time.sleep(0.001)

    caller = peers.client_with(talk, on_notification=slow, max_bytes=100_000_000)
    take_alone()
    with takes(0.5), pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {}, 0.5)


def test_questions_without_end_are_a_protocol_error(peers: Peers) -> None:
    def talk(request: Request) -> None:
        request.stream(b"data: " + json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 500).encode() + b"\n\n")
        request.hang()

    server, caller = peers({"tools/call": talk})
    with pytest.raises(ProtocolError, match="more than 100 questions"):
        caller.invoke_tool("echo", {})
    assert len(replies(server)) == 100


# Streams that end early -------------------------------------------------------------------------------------------


def test_a_stream_that_ends_early_is_gone_on_with_where_it_ended(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []

    def begin(request: Request) -> None:
        asked.append(request)
        request.stream(b"id: e-1\nretry: 50\ndata:\n\n")
        request.hang_up()

    def go_on(request: Request) -> None:
        assert request.headers["Accept"] == "text/event-stream"
        seen.append((request.headers["Last-Event-ID"], time.monotonic()))
        if len(seen) == 1:
            request.stream(b"id: e-2\ndata:\n\n")
            request.hang_up()
        request.stream(b"id: e-3\n" + asked[0].answer_event(text("late")))
        request.hang_up()

    monkeypatch.setattr(streams, "RETRY_SECONDS", 20.0)
    seen: list[tuple[str, float]] = []
    _, caller = peers({"tools/call": begin, "GET": go_on})
    began = time.monotonic()
    assert caller.invoke_tool("echo", {}) == text("late")
    assert [event_id for event_id, _ in seen] == ["e-1", "e-2"]
    assert 0.05 <= seen[0][1] - began < streams.RETRY_SECONDS


def test_a_stream_that_nobody_goes_on_with_is_a_protocol_error(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 1\ndata:\n\n")
        request.hang_up()

    _, caller = peers({"tools/call": begin, "GET": lambda request: request.http(405)})
    with pytest.raises(ProtocolError, match="ended without the answer"):
        caller.invoke_tool("echo", {})


def test_waiting_to_go_on_ends_at_the_deadline_and_when_it_is_aborted(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 60000\ndata:\n\n")
        request.hang_up()

    server, caller = peers({"tools/call": begin})
    with takes(0.4), pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {}, 0.4)
    exchange = Exchange()
    thread, ends = in_thread(lambda: caller.invoke_tool("echo", {}, exchange=exchange))
    eventually(lambda: len(server.requests) == 2)
    exchange.abort()
    thread.join(5)
    assert isinstance(ends[0], RequestCancelledError)


def test_a_server_that_is_gone_ends_the_call_at_once(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 0\ndata:\n\n")
        request.server.close_listener()
        request.hang_up()

    _, caller = peers({"tools/call": begin})
    with takes_no_time(), pytest.raises(ConnectError, match="refused"):
        caller.invoke_tool("echo", {})


def test_a_server_that_ends_each_stream_at_once_is_not_asked_without_a_pause(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 0\ndata:\n\n")
        request.hang_up()

    server, caller = peers({"tools/call": begin, "GET": begin})
    with pytest.raises(RequestTimeoutError):
        caller.invoke_tool("echo", {}, 1.0)
    assert 5 <= server.methods.count("GET") <= 11


def test_an_event_id_comes_back_as_it_was(peers: Peers) -> None:
    asked: list[Request] = []

    def begin(request: Request) -> None:
        asked.append(request)
        request.stream("id: é-☃\nretry: 1\ndata:\n\n".encode())
        request.hang_up()

    def go_on(request: Request) -> None:
        asked.append(request)
        request.stream(asked[0].answer_event(text("done")))
        request.hang_up()

    _, caller = peers({"tools/call": begin, "GET": go_on})
    assert caller.invoke_tool("echo", {}) == text("done")
    assert asked[1].headers["Last-Event-ID"].encode("latin-1").decode() == "é-☃"


# Sessions that are forgotten --------------------------------------------------------------------------------------


def test_after_a_forgotten_session_a_new_one_begins_and_the_call_is_repeated(peers: Peers) -> None:
    sessions = iter(["one", "two"])

    def call(request: Request) -> None:
        if request.headers.get("Mcp-Session-Id") == "one":
            request.error(-32001, "Session not found", 404)
        else:
            request.result(text("done"))

    told: list[str] = []
    server, caller = peers(
        {"initialize": lambda r: r.result(initialize_result(), Mcp_Session_Id=next(sessions)), "tools/call": call},
        on_notification=lambda method, params: told.append(method),
    )
    caller.initialize()
    assert caller.invoke_tool("echo", {}) == text("done")
    handshake = ["initialize", "notifications/initialized"]
    assert server.methods == [*handshake, "tools/call", *handshake, "tools/call"]
    assert "Mcp-Session-Id" not in server.requests[3].headers
    assert told == ["notifications/tools/list_changed"]  # it may offer other tools now


def test_many_calls_that_find_the_session_forgotten_begin_one(peers: Peers) -> None:
    sessions = itertools.count(1)
    together = threading.Barrier(6)

    def call(request: Request) -> None:
        if request.headers["Mcp-Session-Id"] == "1":
            together.wait(10)
            request.http(404)
        else:
            request.result(text("done"))

    server, caller = peers(
        {"initialize": lambda r: r.result(initialize_result(), Mcp_Session_Id=str(next(sessions))), "tools/call": call},
        connections=10,
    )
    caller.initialize()
    calls = [in_thread(lambda: caller.invoke_tool("echo", {})) for _ in range(6)]
    for thread, _ in calls:
        thread.join(10)
    assert [ends for _, ends in calls] == [[text("done")]] * 6
    assert server.methods.count("initialize") == 2


def test_a_session_that_is_forgotten_again_and_again_is_an_error(peers: Peers) -> None:
    server, caller = peers(
        {
            "initialize": lambda r: r.result(initialize_result(), Mcp_Session_Id="one"),
            "tools/call": lambda r: r.http(404),
        }
    )
    caller.initialize()
    with pytest.raises(HttpStatusError, match="404"):
        caller.invoke_tool("echo", {})
    assert server.methods.count("tools/call") == 2


def test_a_new_session_that_could_not_begin_is_begun_by_the_next_call(peers: Peers) -> None:
    answers = iter([200, 503, 200])

    def begin(request: Request) -> None:
        status = next(answers)
        if status == 200:
            request.result(
                initialize_result(), Mcp_Session_Id=f"after {len(request.server.requests)}".replace(" ", "-")
            )
        else:
            request.http(status)

    def call(request: Request) -> None:
        known = request.headers.get("Mcp-Session-Id")
        if known is None:
            request.http(400)
        elif known == "after-1":
            request.http(404)
        else:
            request.result(text("done"))

    _, caller = peers({"initialize": begin, "tools/call": call})
    caller.initialize()
    with pytest.raises(HttpStatusError, match="503"):
        caller.invoke_tool("echo", {})
    assert caller.invoke_tool("echo", {}) == text("done")


def test_a_404_without_a_session_is_no_reason_to_begin_one(peers: Peers) -> None:
    server, caller = peers({"tools/call": lambda r: r.http(404)})
    caller.initialize()
    with pytest.raises(HttpStatusError, match="404"):
        caller.invoke_tool("echo", {})
    assert server.methods.count("initialize") == 1


# Modern servers ---------------------------------------------------------------------------------------------------

DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "instructions": "Be modern.",
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "modern"}},
}


def modern(**behaviours: Behaviour) -> dict[str, Behaviour]:
    return {
        "initialize": lambda request: request.error(-32602, "no _meta", 400),
        "server/discover": lambda request: request.result(DISCOVERED),
        **{name.replace("_", "/"): behaviour for name, behaviour in behaviours.items()},
    }


def test_a_server_that_refuses_the_handshake_is_found_to_be_modern(peers: Peers) -> None:
    server, caller = peers(modern())
    told = caller.connect()
    assert (told.protocol_version, told.server_info) == ("2026-07-28", {"name": "modern"})
    assert (told.instructions, told.capabilities, caller.is_modern) == ("Be modern.", {"tools": {}}, True)
    assert server.methods == ["initialize", "server/discover"]


def test_a_server_that_answers_the_handshake_with_a_modern_version_is_modern(peers: Peers) -> None:
    server, caller = peers({**modern(), "initialize": lambda r: r.result(initialize_result("2026-07-28"))})
    assert caller.connect().protocol_version == "2026-07-28"
    assert server.methods == ["initialize", "server/discover"]


def test_a_sign_of_life_is_asked_for_in_the_way_of_the_servers_version(peers: Peers) -> None:
    server, caller = peers({"ping": lambda request: request.result({})})
    caller.connect()
    caller.ping(1)
    assert server.methods[-1] == "ping"
    server, caller = peers(modern())
    caller.connect()
    caller.ping(1)
    assert server.methods == ["initialize", "server/discover", "server/discover"]


def test_a_server_that_is_known_to_be_modern_is_not_offered_a_handshake(peers: Peers) -> None:
    server, caller = peers(modern())
    caller.connect(version="2026-07-28")
    assert server.methods == ["server/discover"]


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_server_that_can_do_neither_is_told_of_by_what_it_said_first(peers: Peers, status: int) -> None:
    refuse: Behaviour = lambda request: request.http(status, b"nothing here", "text/plain")  # noqa: E731
    _, caller = peers({"initialize": refuse, "server/discover": lambda request: request.error(-32601, "unknown")})
    with pytest.raises(HttpStatusError, match=str(status)):
        caller.connect()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_that_says_nothing_of_versions_is_not_asked_about(peers: Peers, status: int) -> None:
    server, caller = peers({"initialize": lambda request: request.http(status)})
    with pytest.raises(HttpStatusError, match=str(status)):
        caller.connect()
    assert server.methods == ["initialize"]


def test_a_modern_request_says_all_of_itself(peers: Peers) -> None:
    server, caller = peers(modern())
    caller.connect(version="2026-07-28")
    caller.list_tools()
    caller.invoke_tool("grüße", {})
    for request in server.requests:
        assert request.headers["MCP-Protocol-Version"] == "2026-07-28"
        assert request.headers["Mcp-Method"] == request.message["method"]
        meta = request.message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == client.CLIENT_NAME
    assert server.requests[-1].headers["Mcp-Name"] == "=?base64?Z3LDvMOfZQ==?="


def test_a_version_that_is_refused_though_spoken_is_tried_once_more(peers: Peers) -> None:
    answers = iter([lambda r: r.error(-32022, "no", 400, data={"supported": ["2026-07-28"], "requested": "x"})])
    server, caller = peers(modern(tools_call=lambda r: next(answers, lambda r: r.result(text("done")))(r)))
    caller.connect(version="2026-07-28")
    assert caller.invoke_tool("echo", {}) == text("done")
    assert server.methods.count("tools/call") == 2
    first, second = (request.id for request in server.requests[1:])
    assert first != second


HEADED = {
    "name": "query",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}},
            "plain": {"type": "string"},
        },
    },
}


def test_arguments_that_the_schema_wants_in_headers_are_there_too(peers: Peers) -> None:
    bad = {"name": "bad", "inputSchema": {"properties": {"x": {"type": "number", "x-mcp-header": "X"}}}}
    server, caller = peers(modern(tools_list=lambda r: r.result({"tools": [HEADED, bad]})))
    caller.connect(version="2026-07-28")
    found = caller.list_tools()
    assert [tool["name"] for tool in found.tools] == ["query"]
    assert "'bad' is left out" in found.warnings[0]
    caller.invoke_tool("query", {"region": "Zürich", "deep": {"count": 3}, "plain": "no"})
    headers = server.requests[-1].headers
    assert headers["Mcp-Param-Region"] == "=?base64?WsO8cmljaA==?="
    assert headers["Mcp-Param-Count"] == "3"
    caller.invoke_tool("query", {"deep": {"count": 5.0}})
    assert server.requests[-1].headers["Mcp-Param-Count"] == "5"
    caller.invoke_tool("query", {"region": None})
    assert not [name for name in server.requests[-1].headers if name.startswith("Mcp-Param-")]


def test_headers_that_do_not_fit_any_more_are_made_from_a_fresh_list(peers: Peers) -> None:
    def call(request: Request) -> None:
        if "Mcp-Param-Region" in request.headers:
            request.result(text("done"))
        else:
            request.error(-32020, "Mcp-Param-Region is missing", 400)

    server, caller = peers(modern(tools_list=lambda r: r.result({"tools": [HEADED]}), tools_call=call))
    caller.connect(version="2026-07-28")
    assert caller.invoke_tool("query", {"region": "eu"}) == text("done")
    assert server.methods[1:] == ["tools/call", "tools/list", "tools/call"]


def test_a_call_that_needs_input_is_made_again_with_it(peers: Peers) -> None:
    wanted = {"name": {"method": "elicitation/create", "params": {"message": "who?"}}}

    def call(request: Request) -> None:
        params = request.message["params"]
        if "inputResponses" not in params:
            request.result({"resultType": "input_required", "inputRequests": wanted, "requestState": "s\u00e4 1"})
        else:
            assert params["requestState"] == "s\u00e4 1"
            request.result({"resultType": "complete", **text(params["inputResponses"]["name"]["content"])})

    server, caller = peers(modern(tools_call=call), on_request=lambda method, params: {"content": params["message"]})
    caller.connect(version="2026-07-28")
    assert caller.invoke_tool("echo", {"a": 1})["content"] == text("who?")["content"]
    again = server.requests[-1].message
    assert again["params"]["arguments"] == {"a": 1}
    assert again["id"] != server.requests[-2].id
    caller.invoke_tool("echo", {})  # nothing of it is left over
    assert "requestState" not in server.requests[-2].message["params"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}, "that it is not given"),
        ({"resultType": "input_required"}, "without saying for which"),
        ({"resultType": "input_required", "requestState": "again"}, "asked for input 10 times"),
        ({"resultType": "task"}, "a result of type 'task'"),
    ],
)
def test_input_that_cannot_be_given_is_a_protocol_error(peers: Peers, result: Any, said: str) -> None:
    _, caller = peers(modern(tools_call=lambda r: r.result(result)))
    caller.connect(version="2026-07-28")
    with pytest.raises(ProtocolError, match=said):
        caller.invoke_tool("echo", {})


def test_a_modern_call_is_cancelled_by_going_away(peers: Peers) -> None:
    server, caller = peers(modern(tools_call=Request.hang))
    caller.connect(version="2026-07-28")
    exchange = Exchange()
    thread, ends = in_thread(lambda: caller.invoke_tool("echo", {}, exchange=exchange))
    eventually(lambda: "tools/call" in server.methods)
    caller.cancel(exchange, "no use")
    thread.join(5)
    assert isinstance(ends[0], RequestCancelledError)
    assert server.methods == ["server/discover", "tools/call"]


# Listening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_modern", [False, True])
def test_notifications_of_a_server_outside_calls_are_handled(peers: Peers, is_modern: bool) -> None:
    def speak(request: Request) -> None:
        request.stream(event({"method": "notifications/tools/list_changed"}))
        request.hang()

    told: list[str] = []
    _, caller = peers(
        modern(subscriptions_listen=speak) if is_modern else {"GET": speak},
        on_notification=lambda method, params: told.append(method),
    )
    caller.connect()
    exchange = Exchange()
    thread, ends = in_thread(lambda: caller.listen(exchange, 60))
    eventually(lambda: told == ["notifications/tools/list_changed"])
    exchange.abort()
    thread.join(5)
    assert isinstance(ends[0], RequestCancelledError)


def test_a_server_that_says_nothing_unasked_says_so(peers: Peers) -> None:
    _, caller = peers({"GET": lambda request: request.http(405)})
    with pytest.raises(HttpStatusError, match="405"):
        caller.listen(Exchange(), 60)
