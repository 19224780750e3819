"""JsonRpcClient against servers made of raw sockets, so that they can misbehave in any way that TCP allows."""

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

from mcp_runtime.client import client as client_module
from mcp_runtime.client import exchanges, quick_json, streams, tool_list, transport
from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.exchanges import Exchange
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
    for resource in reversed(peers.opened):
        resource.close()


# The handshake ----------------------------------------------------------------------------------------------------


def test_initialize_sends_the_request_and_then_the_initialized_notification(peers: Peers) -> None:
    server, client = peers({"initialize": lambda r: r.result(initialize_result(instructions="Be kind."))})

    result = client.initialize()

    first, second = server.requests
    assert first.message == {
        "jsonrpc": "2.0",
        "id": first.id,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": client_module.CLIENT_NAME, "version": client_module.CLIENT_VERSION},
        },
    }
    assert second.message == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (result.protocol_version, result.instructions) == ("2025-06-18", "Be kind.")
    assert (result.server_info, result.capabilities) == ({"name": "wire"}, {"tools": {}})


def test_every_message_has_the_headers_that_the_protocol_demands(peers: Peers) -> None:
    server, client = peers()
    client.initialize()
    client.list_tools()
    client.invoke_tool("echo", {})
    assert len(server.requests) == 4
    for request in server.requests:
        assert request.headers["Content-Type"] == "application/json"
        assert request.headers["Accept"] == "application/json, text/event-stream"
        assert request.headers["MCP-Protocol-Version"] == "2025-06-18"
        assert request.headers["Accept-Encoding"] == "identity"
        assert request.headers["Host"] == f"127.0.0.1:{server.port}"


def test_ids_are_never_used_twice(peers: Peers) -> None:
    server, client = peers()
    for _ in range(20):
        client.invoke_tool("echo", {})
    ids = [request.id for request in server.requests]
    assert len(set(ids)) == 20


def test_the_negotiated_version_is_sent_with_every_later_request(peers: Peers) -> None:
    server, client = peers({"initialize": lambda r: r.result(initialize_result("2025-03-26"))})
    client.initialize()
    client.invoke_tool("echo", {})
    versions = [request.headers["MCP-Protocol-Version"] for request in server.requests]
    assert versions == ["2025-06-18", "2025-03-26", "2025-03-26"]


@pytest.mark.parametrize("version", ["1999-01-01", None, 7, ["2025-06-18"], "x" * 100_000])
def test_an_unknown_version_ends_the_handshake_before_it_is_confirmed(peers: Peers, version: Any) -> None:
    server, client = peers({"initialize": lambda r: r.result({**initialize_result(), "protocolVersion": version})})
    with pytest.raises(ProtocolError, match="speaks 2024-11-05, 2025-03-26, 2025-06-18") as error:
        client.initialize()
    assert server.methods == ["initialize"]
    assert len(str(error.value)) < 300


def test_a_session_id_is_sent_until_the_next_handshake(peers: Peers) -> None:
    ids = iter(["one-1", "two~2", None])

    def begin(request: Request) -> None:
        session = next(ids)
        request.result(initialize_result(), **({"Mcp_Session_Id": session} if session else {}))

    server, client = peers({"initialize": begin})
    for _ in range(3):
        client.initialize()
        client.invoke_tool("echo", {})
    session_ids = [request.headers.get("Mcp-Session-Id") for request in server.requests]
    assert session_ids == [None, "one-1", "one-1", None, "two~2", "two~2", None, None, None]


@pytest.mark.parametrize("session_id", ["a\r\n X-Evil: 1", "h\xe9", "two words", "", "x" * 2000])
def test_a_session_id_that_cannot_be_sent_back_is_refused(peers: Peers, session_id: str) -> None:
    def begin(request: Request) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": initialize_result()})
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: {session_id}\r\n"
        request.send(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode("latin-1"))

    server, client = peers({"initialize": begin})
    with pytest.raises(ProtocolError, match="session id"):
        client.initialize()
    assert server.methods == ["initialize"]


def test_invalid_values_in_an_initialize_result_are_ignored(peers: Peers) -> None:
    result = {"protocolVersion": "2025-06-18", "capabilities": [], "serverInfo": "me", "instructions": 7 * "x" * 9000}
    handshake = peers({"initialize": lambda r: r.result(result)})[1].initialize()
    assert (handshake.capabilities, handshake.server_info, len(handshake.instructions)) == ({}, {}, 10_000)


def test_the_steps_of_the_handshake_share_one_deadline(peers: Peers) -> None:
    def respond_late(request: Request) -> None:
        time.sleep(0.3)
        request.result(initialize_result())

    _, client = peers({"initialize": respond_late, "notifications/initialized": Request.hang})
    with takes(0.6), pytest.raises(RequestTimeoutError):
        client.initialize(timeout=0.6)


def test_the_default_timeouts_are_five_seconds_for_the_handshake_and_thirty_for_a_call() -> None:
    assert (client_module.INITIALIZE_TIMEOUT, client_module.REQUEST_TIMEOUT) == (5.0, 30.0)
    assert JsonRpcClient.initialize.__defaults__ == (5.0, None)
    assert JsonRpcClient.list_tools.__defaults__ == (30.0, None)
    assert JsonRpcClient.invoke_tool.__defaults__ == (30.0, None)


# Notifications ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 202, 204])
def test_any_success_accepts_a_notification(peers: Peers, status: int) -> None:
    server, client = peers({"notifications/initialized": lambda r: r.http(status)})
    client.initialize()
    assert server.methods == ["initialize", "notifications/initialized"]


@pytest.mark.parametrize("status", [302, 400, 404, 500])
def test_a_notification_that_is_not_accepted_is_an_error(peers: Peers, status: int) -> None:
    _, client = peers({"notifications/initialized": lambda r: r.http(status, b"no, thanks", Location="http://a/")})
    with pytest.raises(HttpStatusError, match="no, thanks") as error:
        client.initialize()
    assert error.value.status == status


def test_a_notification_does_not_wait_for_the_end_of_a_response_without_length(peers: Peers) -> None:
    def respond_without_end(request: Request) -> None:
        request.send(b"HTTP/1.1 202 Accepted\r\n\r\n")
        request.hang()

    _, client = peers({"notifications/initialized": respond_without_end})
    with takes_no_time():
        client.initialize()
    assert client.invoke_tool("echo", {}) == text("{}")


# tools/list -------------------------------------------------------------------------------------------------------


def test_tools_are_listed_as_the_member_sent_them_in_its_order(peers: Peers) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}, "x-mine": [1, None]} for name in ("b", "a", "c/d.e")]
    server, client = peers({"tools/list": lambda r: r.result({"tools": tools})})
    listing = client.list_tools()
    assert (listing.tools, listing.warnings) == (tools, [])
    assert server.requests[0].message["params"] == {}


def test_all_pages_are_followed(peers: Peers) -> None:
    def page(request: Request) -> None:
        number = int(request.message["params"].get("cursor", "0"))
        cursor = {"nextCursor": str(number + 1)} if number < 3 else {}
        request.result({"tools": [{"name": f"tool-{number}"}], **cursor})

    server, client = peers({"tools/list": page})
    assert [tool["name"] for tool in client.list_tools().tools] == ["tool-0", "tool-1", "tool-2", "tool-3"]
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
def test_an_endless_or_oversized_list_of_tools_is_refused(peers: Peers, behaviour: Behaviour, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        peers({"tools/list": behaviour})[1].list_tools()


def test_a_tool_that_runs_only_as_a_task_has_a_warning(peers: Peers) -> None:
    entries = [{"name": "a", "execution": {"taskSupport": "required"}}, {"name": "b", "execution": "required"}]
    listing = peers({"tools/list": lambda r: r.result({"tools": entries})})[1].list_tools()
    assert listing.tools == entries
    (warning,) = listing.warnings
    assert warning.startswith("tools/list: 'a' runs only as a task, so only a client")


def test_invalid_entries_in_a_tool_list_are_left_out_with_warnings(peers: Peers) -> None:
    entries = [{"name": "good"}, "text", {"name": ""}, {"name": 7}, {}, {"name": "x" * 256}, {"name": "good", "a": 1}]
    listing = peers({"tools/list": lambda r: r.result({"tools": entries})})[1].list_tools()
    assert listing.tools == [{"name": "good"}]
    warnings = [f"tools/list: entry {index} has no usable name and is left out" for index in (1, 2, 3, 4, 5)]
    assert listing.warnings == [*warnings, "tools/list: 'good' is listed twice; the first counts"]


UNPRINTABLE_NAMES = [
    "line\nbreak",
    "return\r",
    "nul\0",
    "\x1b[2J",
    "\x7f",
    "\x85",
    "a\u2028b",
    "\u202egnp.exe",
    "\u2066x",
]
RELATIVE_NAMES = ["..", ".", "../../tokens", "a/../b", "../../other/tools/wipe", "a/./b"]
UNUSUAL_NAMES = [
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


@pytest.mark.parametrize("name", UNPRINTABLE_NAMES + RELATIVE_NAMES)
def test_a_tool_whose_name_cannot_be_in_an_address_is_left_out_with_a_warning(peers: Peers, name: str) -> None:
    """The other tools are listed, and the member's page shows the warning."""
    listing = peers({"tools/list": lambda r: r.result({"tools": [{"name": name}, {"name": "good"}]})})[1].list_tools()
    assert listing.tools == [{"name": "good"}]
    (warning,) = listing.warnings
    text = name.replace("\0", "\ufffd")  # as all text of members
    assert warning.startswith(f"tools/list: {text!a} is left out: its name has ")
    assert warning.isprintable()


def test_unusual_tool_names_are_accepted(peers: Peers) -> None:
    listing = peers({"tools/list": lambda r: r.result({"tools": [{"name": name} for name in UNUSUAL_NAMES]})})[
        1
    ].list_tools()
    assert ([tool["name"] for tool in listing.tools], listing.warnings) == (UNUSUAL_NAMES, [])


def test_a_member_cannot_fill_the_memory_with_warnings(peers: Peers) -> None:
    listing = peers({"tools/list": lambda r: r.result({"tools": [0] * 100_000})})[1].list_tools()
    assert len(listing.warnings) == tool_list.MAX_WARNINGS + 1
    assert listing.warnings[-1].endswith("more of the kind")


def test_a_server_without_the_tools_capability_has_no_tools(peers: Peers) -> None:
    _, client = peers(
        {
            "initialize": lambda r: r.result({**initialize_result(), "capabilities": {}}),
            "tools/list": lambda r: r.error(-32601, "no such method"),
        }
    )
    client.initialize()
    assert client.list_tools().tools == []


def test_a_server_with_the_tools_capability_must_list_tools(peers: Peers) -> None:
    _, client = peers({"tools/list": lambda r: r.error(-32601, "no such method")})
    client.initialize()
    with pytest.raises(RemoteError):
        client.list_tools()


def test_the_pages_of_a_list_share_one_deadline(peers: Peers) -> None:
    send_page = numbered_pages()

    def send_page_late(request: Request) -> None:
        time.sleep(0.1)
        send_page(request)

    with takes(0.5), pytest.raises(RequestTimeoutError):
        peers({"tools/list": send_page_late})[1].list_tools(timeout=0.5)


# tools/call -------------------------------------------------------------------------------------------------------


def test_a_call_returns_the_result_of_the_tool(peers: Peers) -> None:
    server, client = peers()
    assert client.invoke_tool("echo", {"text": "naïve ☃"}) == text('{"text": "na\\u00efve \\u2603"}')
    (request,) = server.requests
    params = {"name": "echo", "arguments": {"text": "naïve ☃"}}
    assert request.message == {"jsonrpc": "2.0", "id": request.id, "method": "tools/call", "params": params}


def test_a_tools_own_failure_raises_and_carries_the_whole_result(peers: Peers) -> None:
    result = {
        "content": [{"type": "text", "text": "no paper"}, {"type": "image", "data": "", "mimeType": "image/png"}],
        "isError": True,
        "structuredContent": {"tray": 2},
    }
    with pytest.raises(ToolError, match=r"^no paper\n\[an image\]$") as error:
        peers.client_with(lambda r: r.result(result)).invoke_tool("print", {})
    assert error.value.result == result


@pytest.mark.parametrize("result", [{"isError": True}, {"isError": True, "content": []}])
def test_a_tool_error_without_text_has_a_default_message(peers: Peers, result: Any) -> None:
    with pytest.raises(ToolError, match="without a text"):
        peers.client_with(lambda r: r.result(result)).invoke_tool("print", {})


@pytest.mark.parametrize("flag", [False, None, "true", 1])
def test_only_isError_true_is_an_error(peers: Peers, flag: Any) -> None:
    result = {"content": [], "isError": flag}
    assert peers.client_with(lambda r: r.result(result)).invoke_tool("print", {}) == result


def test_a_json_rpc_error_is_not_a_tools_failure(peers: Peers) -> None:
    with pytest.raises(RemoteError) as raised:
        peers.client_with(lambda r: r.error(-32602, "no such tool", data={"did you mean": "echo"})).invoke_tool("x", {})
    error = raised.value
    assert (error.code, error.message, error.data) == (-32602, "no such tool", {"did you mean": "echo"})


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_json_rpc_error_explains_an_http_error_status(peers: Peers, status: int) -> None:
    with pytest.raises(RemoteError, match="bad session") as error:
        peers.client_with(lambda r: r.error(-32000, "bad session", status)).invoke_tool("x", {})
    assert error.value.code == -32000


def test_a_json_rpc_error_without_an_id_is_raised(peers: Peers) -> None:
    response = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "unreadable"}}
    with pytest.raises(RemoteError, match="unreadable"):
        peers.client_with(lambda r: r.json(response)).invoke_tool("x", {})


# Invalid responses ------------------------------------------------------------------------------------------------


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
def test_an_invalid_response_is_a_protocol_error(peers: Peers, body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as error:
        peers.client_with(lambda r: r.http(200, body)).invoke_tool("echo", {})
    assert len(str(error.value)) < 600


def test_a_duplicate_response_fails_only_one_call(peers: Peers) -> None:
    """The second response to the first call arrives instead of the second call's response."""
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
def test_a_response_with_another_content_type_is_quoted_and_not_parsed(peers: Peers, kind: str) -> None:
    with pytest.raises(ProtocolError, match="instead of JSON: '<h1>Hello</h1> there'"):
        peers.client_with(lambda r: r.http(200, b"<h1>Hello</h1>\n\0\x1b there", kind)).invoke_tool("echo", {})


@pytest.mark.parametrize("status", [201, 202, 204, 301, 400, 401, 404, 405, 500, 503])
def test_an_unexpected_status_is_an_error_that_quotes_the_body(peers: Peers, status: int) -> None:
    body = b"" if status == 204 else b"because of the weather"
    with pytest.raises(HttpStatusError) as error:
        peers.client_with(lambda r: r.http(status, body, "text/plain")).invoke_tool("echo", {})
    assert error.value.status == status
    assert status == 204 or "because of the weather" in str(error.value)


@pytest.mark.parametrize("body", [b"not json at all", b'{"jsonrpc":"2.0","id":1,"result":{}}'])
def test_an_error_status_without_a_json_rpc_error_is_an_http_status_error(peers: Peers, body: bytes) -> None:
    with pytest.raises(HttpStatusError):
        peers.client_with(lambda r: r.http(500, body)).invoke_tool("echo", {})


def test_a_redirect_is_not_followed(peers: Peers) -> None:
    target, _ = peers()
    client = peers.client_with(lambda r: r.http(307, Location=target.url))
    with pytest.raises(HttpStatusError, match="307"):
        client.invoke_tool("echo", {})
    assert target.requests == []


def test_a_zip_bomb_is_not_unpacked(peers: Peers) -> None:
    bomb = gzip.compress(b" " * 100_000_000)
    client = peers.client_with(lambda r: r.http(200, bomb, Content_Encoding="gzip"))
    memory_before = psutil.Process().memory_info().rss
    with pytest.raises(ProtocolError, match="not JSON"):
        client.invoke_tool("echo", {})
    assert psutil.Process().memory_info().rss - memory_before < 50_000_000


@pytest.mark.parametrize("noise", [b"\x00\xff\xfe nothing you know\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"x" * 100_000])
def test_a_response_that_is_not_http_is_a_client_error(peers: Peers, noise: bytes) -> None:
    def send_noise(request: Request) -> None:
        request.send(noise)
        request.hang_up()

    with pytest.raises(ClientError) as error:
        peers.client_with(send_noise).invoke_tool("echo", {})
    assert isinstance(error.value, ProtocolError | ConnectError)


@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 \x1b[2J200\x9b OK\r\n\r\n",
        b"\x1b]0;title\x07\x1b[31m\xc2\x85 no\rHTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \x1b[2J\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\x1b[2J\r\n",
    ],
)
def test_the_error_about_an_invalid_http_response_contains_no_control_characters(peers: Peers, noise: bytes) -> None:
    def send_noise(request: Request) -> None:
        request.send(noise)
        request.hang_up()

    with pytest.raises(ClientError) as error:
        peers.client_with(send_noise).invoke_tool("echo", {})
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


def test_endless_headers_are_refused(peers: Peers) -> None:
    def send_endless_headers(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            request.send(b"X-More: of them\r\n" * 100)

    with pytest.raises(ProtocolError, match="did not respond with HTTP"):
        peers.client_with(send_endless_headers).invoke_tool("echo", {}, timeout=10)


# Size -------------------------------------------------------------------------------------------------------------


def padded(request: Request, size: int) -> bytes:
    """A response of exactly `size` bytes."""
    body = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": {"pad": ""}}).encode()
    return body[:-3] + b"x" * (size - len(body)) + body[-3:]


def test_a_response_of_exactly_the_limit_is_accepted_and_one_more_byte_is_refused(peers: Peers) -> None:
    sizes = iter([1000, 1001])
    client = peers.client_with(lambda r: r.http(200, padded(r, next(sizes))), max_bytes=1000)
    assert set(client.invoke_tool("echo", {})) == {"pad"}
    with pytest.raises(ProtocolError, match="larger than 1,000 bytes"):
        client.invoke_tool("echo", {})


def test_fifty_megabytes_are_refused_without_being_read(peers: Peers) -> None:
    sizes = []

    def flood(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n\r\n")
        for _ in range(50):
            request.send(b"x" * 1_000_000)
            sizes.append(1_000_000)

    with pytest.raises(ProtocolError, match="larger than 4,000,000 bytes"):
        peers.client_with(flood).invoke_tool("echo", {})
    assert sum(sizes) < 25_000_000  # at most what the buffers of the sockets can contain


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
def test_an_endless_response_is_refused_at_the_limit(peers: Peers, behaviour: Behaviour) -> None:
    server, client = peers({"tools/call": behaviour}, max_bytes=500_000)
    with pytest.raises(ProtocolError, match="larger than 500,000 bytes"):
        client.invoke_tool("echo", {}, timeout=20)
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
def test_endless_interim_responses_and_trailers_are_refused(peers: Peers, behaviour: Behaviour, reason: str) -> None:
    server, client = peers({"tools/call": behaviour}, max_bytes=500_000)
    with takes_no_time(), pytest.raises(ProtocolError, match=reason):
        client.invoke_tool("echo", {}, timeout=20)
    eventually(lambda: not connections_to(server.port))


def test_each_call_on_a_connection_has_the_whole_size_limit(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 5000)
        request.http(200, padded(request, 1000))

    server, client = peers({"tools/call": respond}, max_bytes=1000)
    for _ in range(5):
        client.invoke_tool("echo", {})
    assert {request.connection for request in server.requests} == {1}


def test_a_response_in_chunks_of_one_byte_is_accepted(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        body = padded(request, 50_000)
        request.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")

    assert set(peers.client_with(respond).invoke_tool("echo", {})) == {"pad"}


def test_arguments_larger_than_the_sockets_buffers_arrive_whole(peers: Peers) -> None:
    client = peers.client_with(lambda r: r.result({"length": len(r.message["params"]["arguments"]["text"])}))
    for _ in range(2):  # on a fresh connection, and on one that was used before
        assert client.invoke_tool("echo", {"text": "x" * 20_000_000}, timeout=20) == {"length": 20_000_000}


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


SLOW_RESPONSES = [
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


@pytest.mark.parametrize("behaviour", SLOW_RESPONSES)
def test_a_slow_server_cannot_extend_the_deadline(peers: Peers, behaviour: Behaviour) -> None:
    server, client = peers({"tools/call": behaviour})
    with takes(0.4), pytest.raises(RequestTimeoutError, match=r"within 0\.4 s") as error:
        client.invoke_tool("echo", {}, timeout=0.4)
    assert error.value.seconds == 0.4
    eventually(lambda: not connections_to(server.port))


@pytest.mark.parametrize("behaviour", [dribble_headers, dribble_body, dribble_events])
def test_the_deadline_holds_on_a_connection_that_was_used_before(peers: Peers, behaviour: Behaviour) -> None:
    server, client = peers({"tools/call": behaviour})
    client.list_tools()
    with takes(0.4), pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {}, timeout=0.4)
    assert [request.connection for request in server.requests] == [1, 1]


def test_a_later_call_on_a_connection_may_take_longer(peers: Peers) -> None:
    def respond_late(request: Request) -> None:
        time.sleep(request.message["params"]["arguments"].get("seconds", 0))
        request.result({})

    server, client = peers({"tools/call": respond_late})
    client.invoke_tool("echo", {}, timeout=0.9)
    time.sleep(0.9)  # the first call's deadline passes while the connection idles
    assert client.invoke_tool("echo", {"seconds": 1.0}, timeout=20) == {}
    assert {request.connection for request in server.requests} == {1}


def test_a_large_call_to_a_server_that_does_not_read_ends_at_the_deadline(peers: Peers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = peers.client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        with takes(0.4), pytest.raises(RequestTimeoutError):
            client.invoke_tool("echo", {"text": "x" * 20_000_000}, timeout=0.4)


def test_a_server_that_never_accepts_is_a_connect_error_at_the_deadline(peers: Peers) -> None:
    with full_backlog() as port, takes(0.5), pytest.raises(ConnectError, match=r"no connection within 0\.5 s"):
        peers.client(f"http://127.0.0.1:{port}/mcp").invoke_tool("echo", {}, timeout=0.5)


def test_connecting_has_a_shorter_timeout_than_the_call(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT", 0.3)
    with full_backlog() as port, takes(0.3), pytest.raises(ConnectError):
        peers.client(f"http://127.0.0.1:{port}/mcp").invoke_tool("echo", {}, timeout=30)


# Connections that fail --------------------------------------------------------------------------------------------


def test_a_port_where_nobody_listens_refuses_the_connection(peers: Peers) -> None:
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))
        with takes_no_time(), pytest.raises(ConnectError, match="connection refused"):
            peers.client(f"http://127.0.0.1:{unused_socket.getsockname()[1]}/mcp").invoke_tool("echo", {})


def was_sent(error: pytest.ExceptionInfo[ClientError]) -> bool:
    return error.value.was_sent


def test_an_error_says_whether_the_server_may_have_the_request(peers: Peers) -> None:
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectError) as refusal:
            peers.client(f"http://127.0.0.1:{unused_socket.getsockname()[1]}/mcp").invoke_tool("echo", {})
    with full_backlog() as port, pytest.raises(ConnectError) as backlog_timeout:
        peers.client(f"http://127.0.0.1:{port}/mcp").invoke_tool("echo", {}, timeout=0.2)
    with pytest.raises(RequestTimeoutError) as response_timeout:
        peers.client_with(lambda request: request.hang()).invoke_tool("echo", {}, timeout=1.0)
    with pytest.raises(ConnectError) as connection_reset:
        peers.client_with(lambda request: request.reset()).invoke_tool("echo", {})
    errors = (refusal, backlog_timeout, response_timeout, connection_reset)
    assert [was_sent(error) for error in errors] == [False, False, True, True]


def test_a_call_was_not_sent_if_its_new_session_could_not_begin(peers: Peers) -> None:
    handshakes = iter([lambda r: r.result(initialize_result(), Mcp_Session_Id="one"), lambda r: r.http(503)])
    server, client = peers({"initialize": lambda r: next(handshakes)(r), "tools/call": lambda r: r.http(404)})
    client.initialize()
    with pytest.raises(HttpStatusError, match="503") as error:
        client.invoke_tool("echo", {})
    assert not was_sent(error)
    server.behaviours["initialize"] = lambda r: r.result(initialize_result(), Mcp_Session_Id="two")
    with pytest.raises(HttpStatusError, match="404") as error:
        client.invoke_tool("echo", {})
    assert was_sent(error)


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
def test_a_connection_that_ends_before_the_response_is_a_connect_error(peers: Peers, behaviour: Behaviour) -> None:
    with pytest.raises(ConnectError, match="closed before the response was complete"):
        peers.client_with(behaviour).invoke_tool("echo", {})


@pytest.mark.parametrize("behaviour", [Request.hang_up, Request.reset])
def test_a_call_is_sent_once_even_when_its_connection_breaks(peers: Peers, behaviour: Behaviour) -> None:
    server, client = peers({"tools/call": behaviour})
    client.list_tools()
    with pytest.raises(ConnectError):
        client.invoke_tool("echo", {})
    assert server.methods == ["tools/list", "tools/call"]


# Event streams ----------------------------------------------------------------------------------------------------


def test_the_response_is_found_in_a_stream_among_other_messages(peers: Peers) -> None:
    def respond(request: Request) -> None:
        progress = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\r\n\r\n'
        ping = b'event: message\r\ndata: {"jsonrpc":"2.0","id":%d,"method":"ping"}\r\n\r\n' % request.id
        other_response = b'data: {"jsonrpc":"2.0","id":"other","result":{}}\r\n\r\n'
        request.stream(b"\xef\xbb\xbf: hello\r\n\r\n", b"id: 1\r\ndata:\r\n\r\n", progress, ping, other_response)
        request.send(request.answer_event(text("naïve")))
        request.hang()

    server, client = peers({"tools/call": respond})
    with takes_no_time():
        assert client.invoke_tool("echo", {}) == text("naïve")
    # The connection on which the ping was answered stays open for further calls.
    eventually(lambda: len(connections_to(server.port)) == 1, what="the stream's connection is closed")


def test_a_stream_in_chunks_of_one_byte_is_read(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream;charset=utf-8\r\n")
        request.send(b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in request.answer_event(text("bit by bit")):
            request.send(b"1\r\n%c\r\n" % byte)
        request.send(b"0\r\n\r\n")

    assert peers.client_with(respond).invoke_tool("echo", {}) == text("bit by bit")


def test_an_error_in_a_stream_is_raised(peers: Peers) -> None:
    def respond(request: Request) -> None:
        error = {"jsonrpc": "2.0", "id": request.id, "error": {"code": 5, "message": "no"}}
        request.stream(b"data: " + json.dumps(error).encode() + b"\n\n")
        request.hang_up()

    with pytest.raises(RemoteError, match="no"):
        peers.client_with(respond).invoke_tool("echo", {})


@pytest.mark.parametrize("events", [b"", b": nothing\n\n", b'data: {"jsonrpc":"2.0","id":99,"result":{}}\n\n'])
def test_a_stream_that_ends_without_the_response_is_a_protocol_error(peers: Peers, events: bytes) -> None:
    def respond(request: Request) -> None:
        request.stream(events)
        request.hang_up()

    with pytest.raises(ProtocolError, match="ended without the answer"):
        peers.client_with(respond).invoke_tool("echo", {})


def test_an_event_that_is_not_json_is_a_protocol_error(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.stream(b"data: <h1>\n\n")
        request.hang()

    with pytest.raises(ProtocolError, match="not JSON"):
        peers.client_with(respond).invoke_tool("echo", {})


# Reused connections -----------------------------------------------------------------------------------------------


def test_consecutive_calls_use_one_connection(peers: Peers) -> None:
    server, client = peers()
    client.initialize()
    for _ in range(50):
        client.invoke_tool("echo", {})
    assert {request.connection for request in server.requests} == {1}


def test_a_chunked_response_leaves_the_connection_usable(peers: Peers) -> None:
    def respond(request: Request) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": request.id, "result": text("chunked")}).encode()
        request.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        request.send(b"5\r\n" + body[:5] + b"\r\n%x;ext=1\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n")

    server, client = peers({"tools/call": respond})
    for _ in range(3):
        assert client.invoke_tool("echo", {}) == text("chunked")
    assert {request.connection for request in server.requests} == {1}


def test_an_idle_connection_that_the_server_closed_does_not_fail_the_next_call(peers: Peers) -> None:
    server, client = peers()
    client.invoke_tool("echo", {})
    server.drop_idle_connections()
    eventually(lambda: not connections_to(server.port))
    assert client.invoke_tool("echo", {}) == text("{}")
    assert [request.connection for request in server.requests] == [1, 2]


def test_a_connection_that_was_idle_for_long_is_not_used_again(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = peers()
    client.invoke_tool("echo", {})
    monkeypatch.setattr(exchanges, "IDLE_SECONDS", 0.0)
    client.invoke_tool("echo", {})
    assert [request.connection for request in server.requests] == [1, 2]
    eventually(lambda: len(connections_to(server.port)) == 1)


def test_a_server_that_closes_after_each_response_gets_a_new_connection_for_each_call(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.result({}, Connection="close")
        request.hang_up()

    server, client = peers({"tools/call": respond})
    for _ in range(3):
        assert client.invoke_tool("echo", {}) == {}
    assert [request.connection for request in server.requests] == [1, 2, 3]


def test_an_unrequested_response_is_not_used_for_the_next_call(peers: Peers) -> None:
    def respond_twice(request: Request) -> None:
        request.result(text("first"))
        request.result(text("second"))

    client = peers.client_with(respond_twice)
    for _ in range(5):
        with contextlib.suppress(ProtocolError):
            assert client.invoke_tool("echo", {}) == text("first")


def test_concurrent_threads_get_their_own_results(peers: Peers) -> None:
    server, client = peers(connections=32)
    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(lambda n: client.invoke_tool("echo", {"n": n}), range(500)))
    assert results == [text(json.dumps({"n": n})) for n in range(500)]
    assert len({request.id for request in server.requests}) == 500
    assert len({request.connection for request in server.requests}) <= 32


@pytest.mark.parametrize(
    ("behaviour", "open_connections"),
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
def test_a_call_leaves_only_a_reusable_connection_behind(
    peers: Peers, behaviour: Behaviour, open_connections: int
) -> None:
    server, client = peers({"tools/call": behaviour})
    threads_before = client_threads()
    for _ in range(3):
        with contextlib.suppress(ClientError):
            client.invoke_tool("echo", {}, timeout=10.0 if open_connections else 0.3)
    assert client_threads() == threads_before
    eventually(lambda: len(connections_to(server.port)) == open_connections)
    client.close()
    eventually(lambda: not connections_to(server.port))


def test_proxies_credentials_and_cookies_are_ignored(
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
    server, client = peers({"tools/call": lambda r: r.result({}, Set_Cookie="a=b; Path=/")})
    for _ in range(2):
        assert client.invoke_tool("echo", {}) == {}
    assert proxy.requests == []
    for request in server.requests:
        assert {"Authorization", "Cookie", "Proxy-Authorization"}.isdisjoint(request.headers)


# Aborting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [say_nothing, dribble_headers, dribble_body, dribble_events, stop_half_way])
def test_cancel_wakes_the_caller_at_once_and_notifies_the_server(peers: Peers, behaviour: Behaviour) -> None:
    server, client = peers({"tools/call": behaviour})
    exchange = Exchange()
    thread, outcomes = in_thread(lambda: client.invoke_tool("slow", {}, 30, exchange=exchange))
    eventually(lambda: "tools/call" in server.methods)

    with takes_no_time():
        client.cancel(exchange, "no longer wanted")
        thread.join(5)

    (outcome,) = outcomes
    assert isinstance(outcome, RequestCancelledError)
    call, notification = server.requests
    assert notification.message == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": call.id, "reason": "no longer wanted"},
    }
    eventually(lambda: len(connections_to(server.port)) <= 1)


def test_cancel_wakes_a_caller_whose_message_is_not_being_read(peers: Peers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = peers.client(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")
        exchange = Exchange()
        arguments = {"text": "x" * 20_000_000}
        thread, outcomes = in_thread(lambda: client.invoke_tool("slow", arguments, 30, exchange=exchange))
        eventually(lambda: exchange.is_sent)  # or a part of it
        with takes_no_time():
            exchange.abort()
            thread.join(5)
        assert isinstance(outcomes[0], RequestCancelledError)


def test_cancelling_a_call_of_a_silent_server_ends_at_the_cancel_timeout(peers: Peers) -> None:
    server, client = peers({"tools/call": say_nothing, "notifications/cancelled": say_nothing})
    exchange = Exchange()
    thread, outcomes = in_thread(lambda: client.invoke_tool("slow", {}, 30, exchange=exchange))
    eventually(lambda: server.requests)
    with takes(client_module.CANCEL_TIMEOUT):
        client.cancel(exchange, "no longer wanted")
        thread.join(5)
    assert isinstance(outcomes[0], RequestCancelledError)


def test_a_call_that_was_cancelled_before_it_was_sent_is_never_sent(peers: Peers) -> None:
    exchange = Exchange()
    with full_backlog() as port:
        client = peers.client(f"http://127.0.0.1:{port}/mcp")
        client.cancel(exchange, "changed my mind")
        with takes_no_time(), pytest.raises(RequestCancelledError):  # the client does not even connect
            client.invoke_tool("echo", {}, exchange=exchange)


def test_a_call_that_is_cancelled_while_it_connects_is_never_sent(peers: Peers) -> None:
    with full_backlog() as port:
        client = peers.client(f"http://127.0.0.1:{port}/mcp")
        exchange = Exchange()
        thread, outcomes = in_thread(lambda: client.invoke_tool("echo", {}, 1.0, exchange=exchange))
        eventually(lambda: exchange.request_id is not None)
        exchange.abort()
        thread.join(5)
    assert isinstance(outcomes[0], RequestCancelledError)


def test_a_call_that_is_cancelled_just_before_it_is_sent_is_never_sent(peers: Peers) -> None:
    server, client = peers()
    client.list_tools()  # so that there is a connection
    exchange = Exchange()
    exchange.begin(7, 30)
    exchange.abort()
    exchange.begin = lambda *_: None  # type: ignore[method-assign]  # as if the abort had come a moment sooner
    with pytest.raises(RequestCancelledError):
        client.invoke_tool("echo", {}, exchange=exchange)
    assert server.methods == ["tools/list"]


def test_a_response_after_the_cancellation_is_ignored(peers: Peers) -> None:
    exchange = Exchange()

    def respond(request: Request) -> None:
        exchange.mark_aborted()
        request.result(text("too late"))

    with pytest.raises(RequestCancelledError):
        peers.client_with(respond).invoke_tool("echo", {}, exchange=exchange)


def test_cancelling_a_finished_call_has_no_effect(peers: Peers) -> None:
    server, client = peers()
    exchange = Exchange()
    client.invoke_tool("echo", {}, exchange=exchange)
    client.cancel(exchange, "too late")
    assert client.invoke_tool("echo", {}) == text("{}")
    assert server.methods == ["tools/call", "notifications/cancelled", "tools/call"]


def test_cancelling_does_not_raise_when_the_server_has_closed(peers: Peers) -> None:
    server, client = peers()
    exchange = Exchange()
    client.invoke_tool("echo", {}, exchange=exchange)
    server.close()
    client.cancel(exchange, "too late")
    assert exchange.is_aborted


def test_cancelling_one_call_does_not_affect_other_calls(peers: Peers) -> None:
    def respond(request: Request) -> None:
        if request.message["params"]["name"] == "slow":
            request.hang()
        time.sleep(0.3)
        request.result({})

    server, client = peers({"tools/call": respond})
    exchange = Exchange()
    slow_thread, slow_outcomes = in_thread(lambda: client.invoke_tool("slow", {}, 30, exchange=exchange))
    quick_thread, quick_outcomes = in_thread(lambda: client.invoke_tool("quick", {}, 30))
    eventually(lambda: len(server.requests) == 2)
    client.cancel(exchange, "no")
    slow_thread.join(5)
    quick_thread.join(5)
    assert isinstance(slow_outcomes[0], RequestCancelledError)
    assert quick_outcomes == [{}]


# Errors -----------------------------------------------------------------------------------------------------------


def test_every_client_error_has_a_readable_message() -> None:
    client_errors = [
        errors.ConnectError("refused"),
        errors.RequestTimeoutError(2.5),
        errors.HttpStatusError(500, "'oh'"),
        errors.RequestCancelledError(),
        errors.ProtocolError("odd"),
        errors.RemoteError(-1, "no", None),
        errors.ToolError("it failed", {}),
    ]
    assert [str(error) for error in client_errors] == [
        "refused",
        "no complete answer within 2.5 s",
        "answered with HTTP status 500: 'oh'",
        "the request was cancelled",
        "odd",
        "no (JSON-RPC error -1)",
        "it failed",
    ]


def test_waiting_to_decode_a_large_response_ends_at_the_deadline(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    decode_began, decode_may_end, decode = threading.Event(), threading.Event(), quick_json.decode

    def decode_slowly(data: bytes) -> Any:
        if len(data) > streams.LARGE_ANSWER:
            decode_began.set()
            decode_may_end.wait(10)
        return decode(data)

    client = peers.client_with(lambda request: request.result(text("x" * streams.LARGE_ANSWER)))
    small_client = peers.client_with(lambda request: request.result(text("small")))
    client.invoke_tool("echo", {})
    monkeypatch.setattr(quick_json, "decode", decode_slowly)
    thread, outcomes = in_thread(lambda: client.invoke_tool("echo", {}))
    assert decode_began.wait(10)
    with takes(0.4), pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {}, 0.4)
    assert small_client.invoke_tool("echo", {}) == text("small")
    decode_may_end.set()
    thread.join(10)
    assert len(outcomes[0]["content"][0]["text"]) == streams.LARGE_ANSWER


# Questions and notifications of a server during a call ------------------------------------------------------------


def event_bytes(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n"


def send_and_await_replies(*messages: dict[str, Any]) -> Behaviour:
    """Send these messages on the stream of a call, wait for the reply to each question, then send the result."""

    def respond(request: Request) -> None:
        request.stream()
        questions = 0
        for message in messages:
            request.send(event_bytes(message))
            questions += "id" in message
            eventually(lambda: request.server.methods.count("reply") == questions)  # noqa: B023
        request.send(request.answer_event(text("done")))
        request.hang_up()

    return respond


def replies(server: Server) -> list[dict[str, Any]]:
    return [request.message for request in server.requests if request.body and "method" not in request.message]


def test_a_ping_on_the_stream_is_answered_while_the_stream_stays_open(peers: Peers) -> None:
    server, client = peers({"tools/call": send_and_await_replies({"id": "p-1", "method": "ping"})})
    client.initialize()
    assert client.invoke_tool("echo", {}) == text("done")
    assert replies(server) == [{"jsonrpc": "2.0", "id": "p-1", "result": {}}]


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "nonsense"])
def test_a_question_that_the_hall_does_not_support_is_declined(peers: Peers, method: str) -> None:
    server, client = peers({"tools/call": send_and_await_replies({"id": 7, "method": method, "params": {}})})
    assert client.invoke_tool("echo", {}) == text("done")
    (reply,) = replies(server)
    assert (reply["id"], reply["error"]["code"]) == (7, -32601)


def test_a_question_is_answered_by_the_request_handler(peers: Peers) -> None:
    def answer_question(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if params["message"] == "no":
            raise MethodError(-1, "not today")
        return {"action": "accept", "content": {"method": method}}

    question = {"method": "elicitation/create"}
    messages = [{**question, "id": 0, "params": {"message": "yes"}}, {**question, "id": 1, "params": {"message": "no"}}]
    server, client = peers(
        {"tools/call": send_and_await_replies(*messages)}, on_request=answer_question, capabilities={"elicitation": {}}
    )
    client.initialize()
    assert server.requests[0].message["params"]["capabilities"] == {"elicitation": {}}
    client.invoke_tool("echo", {})
    accepted, declined = replies(server)
    assert (accepted["id"], declined["id"]) == (0, 1)
    assert accepted["result"] == {"action": "accept", "content": {"method": "elicitation/create"}}
    assert declined["error"] == {"code": -1, "message": "not today"}


def test_progress_is_requested_and_reported_if_the_exchange_has_a_listener(peers: Peers) -> None:
    def respond(request: Request) -> None:
        token = request.message["params"]["_meta"]["progressToken"]
        request.stream()
        for number, progress_token in ((1, token), (2, "another's"), (3, token)):
            params = {"progressToken": progress_token, "progress": number, "total": 3, "message": f"step {number}"}
            request.send(event_bytes({"method": "notifications/progress", "params": params}))
        request.send(request.answer_event(text("done")))
        request.hang_up()

    texts: list[Any] = []
    client = peers.client_with(respond)
    client.invoke_tool("echo", {}, exchange=Exchange(lambda params: texts.append(params["message"])))
    assert texts == ["step 1", "step 3"]


def test_progress_is_not_requested_without_a_listener(peers: Peers) -> None:
    server, client = peers()
    client.invoke_tool("echo", {})
    assert "_meta" not in server.requests[0].message["params"]


def test_other_notifications_reach_the_notification_handler(peers: Peers) -> None:
    methods: list[str] = []
    notification = {"method": "notifications/tools/list_changed"}
    _, client = peers(
        {"tools/call": send_and_await_replies(notification)},
        on_notification=lambda method, params: methods.append(method),
    )
    client.invoke_tool("echo", {})
    assert methods == ["notifications/tools/list_changed"]


def test_questions_on_the_stream_of_a_call_do_not_extend_its_deadline(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.stream()
        request.dribble(event_bytes({"id": 1, "method": "ping"}))

    with takes(0.5), pytest.raises(RequestTimeoutError):
        peers.client_with(respond).invoke_tool("echo", {}, 0.5)


@pytest.mark.alone
@pytest.mark.no_cover
def test_a_large_batch_of_messages_does_not_extend_the_deadline(peers: Peers) -> None:
    def respond(request: Request) -> None:
        batch = [{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}] * 50_000
        request.stream(*[b"data: " + json.dumps(batch).encode() + b"\n\n"] * 5)
        request.hang()

    def handle_slowly(method: str, params: dict[str, Any]) -> None:
        time.sleep(0.001)

    client = peers.client_with(respond, on_notification=handle_slowly, max_bytes=100_000_000)
    take_alone()
    with takes(0.5), pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {}, 0.5)


def test_endless_questions_are_a_protocol_error(peers: Peers) -> None:
    def respond(request: Request) -> None:
        request.stream(b"data: " + json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 500).encode() + b"\n\n")
        request.hang()

    server, client = peers({"tools/call": respond})
    with pytest.raises(ProtocolError, match="more than 100 questions"):
        client.invoke_tool("echo", {})
    assert len(replies(server)) == 100


# Streams that end early -------------------------------------------------------------------------------------------


def test_a_stream_that_ends_early_is_resumed_where_it_ended(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Request] = []

    def begin(request: Request) -> None:
        calls.append(request)
        request.stream(b"id: e-1\nretry: 50\ndata:\n\n")
        request.hang_up()

    def resume(request: Request) -> None:
        assert request.headers["Accept"] == "text/event-stream"
        resumptions.append((request.headers["Last-Event-ID"], time.monotonic()))
        if len(resumptions) == 1:
            request.stream(b"id: e-2\ndata:\n\n")
            request.hang_up()
        request.stream(b"id: e-3\n" + calls[0].answer_event(text("late")))
        request.hang_up()

    monkeypatch.setattr(streams, "RETRY_SECONDS", 20.0)
    resumptions: list[tuple[str, float]] = []
    _, client = peers({"tools/call": begin, "GET": resume})
    started_at = time.monotonic()
    assert client.invoke_tool("echo", {}) == text("late")
    assert [event_id for event_id, _ in resumptions] == ["e-1", "e-2"]
    assert 0.05 <= resumptions[0][1] - started_at < streams.RETRY_SECONDS


def test_a_stream_that_cannot_be_resumed_is_a_protocol_error(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 1\ndata:\n\n")
        request.hang_up()

    _, client = peers({"tools/call": begin, "GET": lambda request: request.http(405)})
    with pytest.raises(ProtocolError, match="ended without the answer"):
        client.invoke_tool("echo", {})


def test_waiting_to_resume_ends_at_the_deadline_and_when_the_exchange_is_aborted(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 60000\ndata:\n\n")
        request.hang_up()

    server, client = peers({"tools/call": begin})
    with takes(0.4), pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {}, 0.4)
    exchange = Exchange()
    thread, outcomes = in_thread(lambda: client.invoke_tool("echo", {}, exchange=exchange))
    eventually(lambda: len(server.requests) == 2)
    exchange.abort()
    thread.join(5)
    assert isinstance(outcomes[0], RequestCancelledError)


def test_a_server_that_stopped_listening_ends_the_call_at_once(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 0\ndata:\n\n")
        request.server.close_listener()
        request.hang_up()

    _, client = peers({"tools/call": begin})
    with takes_no_time(), pytest.raises(ConnectError, match="refused"):
        client.invoke_tool("echo", {})


def test_a_pause_precedes_each_request_to_resume_a_stream(peers: Peers) -> None:
    def begin(request: Request) -> None:
        request.stream(b"id: e-1\nretry: 0\ndata:\n\n")
        request.hang_up()

    server, client = peers({"tools/call": begin, "GET": begin})
    with pytest.raises(RequestTimeoutError):
        client.invoke_tool("echo", {}, 1.0)
    assert 5 <= server.methods.count("GET") <= 11


def test_an_event_id_is_sent_back_unchanged(peers: Peers) -> None:
    requests: list[Request] = []

    def begin(request: Request) -> None:
        requests.append(request)
        request.stream("id: é-☃\nretry: 1\ndata:\n\n".encode())
        request.hang_up()

    def resume(request: Request) -> None:
        requests.append(request)
        request.stream(requests[0].answer_event(text("done")))
        request.hang_up()

    _, client = peers({"tools/call": begin, "GET": resume})
    assert client.invoke_tool("echo", {}) == text("done")
    assert requests[1].headers["Last-Event-ID"].encode("latin-1").decode() == "é-☃"


# Sessions that are forgotten --------------------------------------------------------------------------------------


def test_after_a_forgotten_session_a_new_one_begins_and_the_call_is_repeated(peers: Peers) -> None:
    sessions = iter(["one", "two"])

    def call(request: Request) -> None:
        if request.headers.get("Mcp-Session-Id") == "one":
            request.error(-32001, "Session not found", 404)
        else:
            request.result(text("done"))

    notifications: list[str] = []
    server, client = peers(
        {"initialize": lambda r: r.result(initialize_result(), Mcp_Session_Id=next(sessions)), "tools/call": call},
        on_notification=lambda method, params: notifications.append(method),
    )
    client.initialize()
    assert client.invoke_tool("echo", {}) == text("done")
    handshake = ["initialize", "notifications/initialized"]
    assert server.methods == [*handshake, "tools/call", *handshake, "tools/call"]
    assert "Mcp-Session-Id" not in server.requests[3].headers
    assert notifications == ["notifications/tools/list_changed"]  # the server may offer other tools now


def test_concurrent_calls_with_a_forgotten_session_begin_one_new_session(peers: Peers) -> None:
    sessions = itertools.count(1)
    barrier = threading.Barrier(6)

    def call(request: Request) -> None:
        if request.headers["Mcp-Session-Id"] == "1":
            barrier.wait(10)
            request.http(404)
        else:
            request.result(text("done"))

    server, client = peers(
        {"initialize": lambda r: r.result(initialize_result(), Mcp_Session_Id=str(next(sessions))), "tools/call": call},
        connections=10,
    )
    client.initialize()
    calls = [in_thread(lambda: client.invoke_tool("echo", {})) for _ in range(6)]
    for thread, _ in calls:
        thread.join(10)
    assert [outcomes for _, outcomes in calls] == [[text("done")]] * 6
    assert server.methods.count("initialize") == 2


def test_a_session_that_is_forgotten_again_and_again_is_an_error(peers: Peers) -> None:
    server, client = peers(
        {
            "initialize": lambda r: r.result(initialize_result(), Mcp_Session_Id="one"),
            "tools/call": lambda r: r.http(404),
        }
    )
    client.initialize()
    with pytest.raises(HttpStatusError, match="404"):
        client.invoke_tool("echo", {})
    assert server.methods.count("tools/call") == 2


def test_the_next_call_begins_a_session_that_could_not_begin_before(peers: Peers) -> None:
    statuses = iter([200, 503, 200])

    def begin(request: Request) -> None:
        status = next(statuses)
        if status == 200:
            request.result(
                initialize_result(), Mcp_Session_Id=f"after {len(request.server.requests)}".replace(" ", "-")
            )
        else:
            request.http(status)

    def call(request: Request) -> None:
        session_id = request.headers.get("Mcp-Session-Id")
        if session_id is None:
            request.http(400)
        elif session_id == "after-1":
            request.http(404)
        else:
            request.result(text("done"))

    _, client = peers({"initialize": begin, "tools/call": call})
    client.initialize()
    with pytest.raises(HttpStatusError, match="503"):
        client.invoke_tool("echo", {})
    assert client.invoke_tool("echo", {}) == text("done")


def test_a_404_without_a_session_begins_no_session(peers: Peers) -> None:
    server, client = peers({"tools/call": lambda r: r.http(404)})
    client.initialize()
    with pytest.raises(HttpStatusError, match="404"):
        client.invoke_tool("echo", {})
    assert server.methods.count("initialize") == 1


# Modern servers ---------------------------------------------------------------------------------------------------

DISCOVER_RESULT = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "instructions": "Be modern.",
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "modern"}},
}


def modern_behaviours(**behaviours: Behaviour) -> dict[str, Behaviour]:
    return {
        "initialize": lambda request: request.error(-32602, "no _meta", 400),
        "server/discover": lambda request: request.result(DISCOVER_RESULT),
        **{name.replace("_", "/"): behaviour for name, behaviour in behaviours.items()},
    }


def test_a_server_that_refuses_the_handshake_is_recognized_as_modern(peers: Peers) -> None:
    server, client = peers(modern_behaviours())
    handshake = client.connect()
    assert (handshake.protocol_version, handshake.server_info) == ("2026-07-28", {"name": "modern"})
    assert (handshake.instructions, handshake.capabilities, client.is_modern) == ("Be modern.", {"tools": {}}, True)
    assert server.methods == ["initialize", "server/discover"]


def test_a_server_that_answers_the_handshake_with_a_modern_version_is_modern(peers: Peers) -> None:
    server, client = peers({**modern_behaviours(), "initialize": lambda r: r.result(initialize_result("2026-07-28"))})
    assert client.connect().protocol_version == "2026-07-28"
    assert server.methods == ["initialize", "server/discover"]


def test_ping_uses_the_method_of_the_servers_version(peers: Peers) -> None:
    server, client = peers({"ping": lambda request: request.result({})})
    client.connect()
    client.ping(1)
    assert server.methods[-1] == "ping"
    server, client = peers(modern_behaviours())
    client.connect()
    client.ping(1)
    assert server.methods == ["initialize", "server/discover", "server/discover"]


def test_a_known_modern_server_gets_no_handshake(peers: Peers) -> None:
    server, client = peers(modern_behaviours())
    client.connect(version="2026-07-28")
    assert server.methods == ["server/discover"]


@pytest.mark.parametrize("status", [400, 404, 405])
def test_a_server_without_any_handshake_raises_its_first_error(peers: Peers, status: int) -> None:
    refuse: Behaviour = lambda request: request.http(status, b"nothing here", "text/plain")  # noqa: E731
    _, client = peers({"initialize": refuse, "server/discover": lambda request: request.error(-32601, "unknown")})
    with pytest.raises(HttpStatusError, match=str(status)):
        client.connect()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_unrelated_to_versions_ends_the_handshake(peers: Peers, status: int) -> None:
    server, client = peers({"initialize": lambda request: request.http(status)})
    with pytest.raises(HttpStatusError, match=str(status)):
        client.connect()
    assert server.methods == ["initialize"]


def test_a_modern_request_has_all_headers_and_metadata(peers: Peers) -> None:
    server, client = peers(modern_behaviours())
    client.connect(version="2026-07-28")
    client.list_tools()
    client.invoke_tool("grüße", {})
    for request in server.requests:
        assert request.headers["MCP-Protocol-Version"] == "2026-07-28"
        assert request.headers["Mcp-Method"] == request.message["method"]
        meta = request.message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {}
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == client_module.CLIENT_NAME
    assert server.requests[-1].headers["Mcp-Name"] == "=?base64?Z3LDvMOfZQ==?="


def test_a_refused_version_that_the_server_supports_is_tried_once_more(peers: Peers) -> None:
    refusals = iter([lambda r: r.error(-32022, "no", 400, data={"supported": ["2026-07-28"], "requested": "x"})])
    server, client = peers(modern_behaviours(tools_call=lambda r: next(refusals, lambda r: r.result(text("done")))(r)))
    client.connect(version="2026-07-28")
    assert client.invoke_tool("echo", {}) == text("done")
    assert server.methods.count("tools/call") == 2
    first_id, second_id = (request.id for request in server.requests[1:])
    assert first_id != second_id


TOOL_WITH_HEADERS = {
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


def test_arguments_that_the_schema_maps_to_headers_are_sent_in_headers(peers: Peers) -> None:
    unusable_tool = {"name": "bad", "inputSchema": {"properties": {"x": {"type": "number", "x-mcp-header": "X"}}}}
    server, client = peers(
        modern_behaviours(tools_list=lambda r: r.result({"tools": [TOOL_WITH_HEADERS, unusable_tool]}))
    )
    client.connect(version="2026-07-28")
    listing = client.list_tools()
    assert [tool["name"] for tool in listing.tools] == ["query"]
    assert "'bad' is left out" in listing.warnings[0]
    client.invoke_tool("query", {"region": "Zürich", "deep": {"count": 3}, "plain": "no"})
    headers = server.requests[-1].headers
    assert headers["Mcp-Param-Region"] == "=?base64?WsO8cmljaA==?="
    assert headers["Mcp-Param-Count"] == "3"
    client.invoke_tool("query", {"deep": {"count": 5.0}})
    assert server.requests[-1].headers["Mcp-Param-Count"] == "5"
    client.invoke_tool("query", {"region": None})
    assert not [name for name in server.requests[-1].headers if name.startswith("Mcp-Param-")]


def test_outdated_argument_headers_are_built_again_from_a_new_tool_list(peers: Peers) -> None:
    def call(request: Request) -> None:
        if "Mcp-Param-Region" in request.headers:
            request.result(text("done"))
        else:
            request.error(-32020, "Mcp-Param-Region is missing", 400)

    server, client = peers(
        modern_behaviours(tools_list=lambda r: r.result({"tools": [TOOL_WITH_HEADERS]}), tools_call=call)
    )
    client.connect(version="2026-07-28")
    assert client.invoke_tool("query", {"region": "eu"}) == text("done")
    assert server.methods[1:] == ["tools/call", "tools/list", "tools/call"]


def test_a_call_that_needs_input_is_repeated_with_the_input(peers: Peers) -> None:
    input_requests = {"name": {"method": "elicitation/create", "params": {"message": "who?"}}}

    def call(request: Request) -> None:
        params = request.message["params"]
        if "inputResponses" not in params:
            request.result(
                {"resultType": "input_required", "inputRequests": input_requests, "requestState": "s\u00e4 1"}
            )
        else:
            assert params["requestState"] == "s\u00e4 1"
            request.result({"resultType": "complete", **text(params["inputResponses"]["name"]["content"])})

    server, client = peers(
        modern_behaviours(tools_call=call), on_request=lambda method, params: {"content": params["message"]}
    )
    client.connect(version="2026-07-28")
    assert client.invoke_tool("echo", {"a": 1})["content"] == text("who?")["content"]
    repeated = server.requests[-1].message
    assert repeated["params"]["arguments"] == {"a": 1}
    assert repeated["id"] != server.requests[-2].id
    client.invoke_tool("echo", {})  # the next call has no state of the first one
    assert "requestState" not in server.requests[-2].message["params"]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}, "that it is not given"),
        ({"resultType": "input_required"}, "without saying for which"),
        ({"resultType": "input_required", "requestState": "again"}, "asked for input 10 times"),
        ({"resultType": "task"}, "a result of type 'task'"),
    ],
)
def test_an_input_request_that_cannot_be_answered_is_a_protocol_error(peers: Peers, result: Any, message: str) -> None:
    _, client = peers(modern_behaviours(tools_call=lambda r: r.result(result)))
    client.connect(version="2026-07-28")
    with pytest.raises(ProtocolError, match=message):
        client.invoke_tool("echo", {})


def test_a_modern_call_is_cancelled_by_closing_its_connection(peers: Peers) -> None:
    server, client = peers(modern_behaviours(tools_call=Request.hang))
    client.connect(version="2026-07-28")
    exchange = Exchange()
    thread, outcomes = in_thread(lambda: client.invoke_tool("echo", {}, exchange=exchange))
    eventually(lambda: "tools/call" in server.methods)
    client.cancel(exchange, "no use")
    thread.join(5)
    assert isinstance(outcomes[0], RequestCancelledError)
    assert server.methods == ["server/discover", "tools/call"]


# Listening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_modern", [False, True])
def test_notifications_of_a_server_outside_calls_are_handled(peers: Peers, is_modern: bool) -> None:
    def send_notification(request: Request) -> None:
        request.stream(event_bytes({"method": "notifications/tools/list_changed"}))
        request.hang()

    methods: list[str] = []
    _, client = peers(
        modern_behaviours(subscriptions_listen=send_notification) if is_modern else {"GET": send_notification},
        on_notification=lambda method, params: methods.append(method),
    )
    client.connect()
    exchange = Exchange()
    thread, outcomes = in_thread(lambda: client.listen(exchange, 60))
    eventually(lambda: methods == ["notifications/tools/list_changed"])
    exchange.abort()
    thread.join(5)
    assert isinstance(outcomes[0], RequestCancelledError)


def test_a_server_without_an_event_stream_raises_its_status(peers: Peers) -> None:
    _, client = peers({"GET": lambda request: request.http(405)})
    with pytest.raises(HttpStatusError, match="405"):
        client.listen(Exchange(), 60)
