"""The relay of `mcp_stdio`, on pipes of the test, with a gateway that the test scripts."""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from django.db import OperationalError
from django.utils import timezone

from roster.management.commands import mcp_stdio
from roster.models import Token
from roster.stdio import messages as messages_module
from roster.stdio import relay as relay_module
from roster.stdio import session as session_module
from roster.stdio import upstream as upstream_module
from roster.stdio.relay import Relay
from tests.conftest import eventually

META_PREFIX = "io.modelcontextprotocol/"
MODERN_META = {f"{META_PREFIX}protocolVersion": "2026-07-28", f"{META_PREFIX}clientCapabilities": {}}


@dataclass
class GatewayRequest:
    """A request that the gateway received."""

    verb: str
    headers: dict[str, str]
    message: Any


@dataclass
class Reply:
    """`body` is bytes, a value for JSON, or a list of events for an event stream. With `hangs_up` there is no reply."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs_up: bool = False
    is_short: bool = False  # a byte of the body is missing
    is_stream: bool = False
    is_endless: bool = False  # lines of one event


def result(request: GatewayRequest, **values: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.message["id"], "result": values}


def error(code: int, message: str, data: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": data}}


class Gateway:
    """A gateway with sessions that gives empty results. `on(method, reply)` replaces the reply to a method."""

    def __init__(self) -> None:
        self.requests: list[GatewayRequest] = []
        self.sessions: set[str] = set()
        self.streams: queue.Queue[bytes] = queue.Queue()  # events without a request
        self.released = threading.Event()
        self.agent_disconnected = threading.Event()  # the agent closed the connection in the middle of a stream
        self._numbers = itertools.count(1)
        self._replies: dict[str, Callable[[GatewayRequest], Reply]] = {}
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = GatewayRequest(
                    self.command,
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(body) if body else None,
                )
                gateway.requests.append(request)
                gateway.send(self, gateway.reply_to(request))

            do_GET = do_DELETE = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/mcp"

    def on(self, method: str, reply: Callable[[GatewayRequest], Reply]) -> None:
        """Reply so to messages with this method, or to this verb if there is no message."""
        self._replies[method] = reply

    def methods(self) -> list[str]:
        return [
            request.message["method"]
            for request in list(self.requests)
            if request.message and "method" in request.message
        ]

    def requests_for(self, method: str) -> list[GatewayRequest]:
        return [
            request for request in list(self.requests) if request.message and request.message.get("method") == method
        ]

    def reply_to(self, request: GatewayRequest) -> Reply:
        method = request.message.get("method", "an answer") if request.message else request.verb
        if (reply := self._replies.get(method)) is not None:
            return reply(request)
        if method == "initialize":
            session = f"session-{next(self._numbers)}"
            self.sessions.add(session)
            capabilities = {"tools": {"listChanged": True}, "prompts": {}}
            body = result(request, protocolVersion="2025-06-18", capabilities=capabilities)
            return Reply(body, headers={"mcp-session-id": session})
        session = request.headers.get("mcp-session-id", "")
        if session not in self.sessions and f"{META_PREFIX}protocolVersion" not in json.dumps(request.message):
            return Reply(error(-32600, "this session is over"), 404 if session else 400)
        if request.verb == "GET":
            return Reply(iter(self.streams.get, b""), is_stream=True)
        if request.message and "id" in request.message and "method" in request.message:
            return Reply(result(request), 200)
        return Reply(b"", 202)

    def send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        if reply.hangs_up:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        body = reply.body if isinstance(reply.body, bytes) or reply.is_stream else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if not reply.is_stream:
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(body) + reply.is_short))
            handler.close_connection = True
            handler.end_headers()
            handler.wfile.write(body)
            return
        handler.close_connection = True
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        try:
            for event in body:
                handler.wfile.write(event + (b"\n" if reply.is_endless else b"\n\n"))
                handler.wfile.flush()
        except OSError:
            self.agent_disconnected.set()

    def close(self) -> None:
        self.released.set()
        self.streams.put(b"")
        self.server.shutdown()
        self.server.server_close()


class FixedToken:
    text = "gh_test"

    def renew(self) -> None:
        pass


class Peer:
    """An agent on the other end of the pipes."""

    def __init__(self, url: str, **options: Any) -> None:
        source, self._input = os.pipe()
        output, sink = os.pipe()
        self._source, self._sink = os.fdopen(source, "rb"), os.fdopen(sink, "wb")
        self.output = os.fdopen(output, "rb")
        self.relay = Relay(self._source, self._sink, url, FixedToken(), **options)
        self.lines: queue.Queue[Any] = queue.Queue()
        self.raw: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.serving = threading.Thread(target=self.relay.serve)
        self.serving.start()
        self._is_open = True

    def _read(self) -> None:
        for line in self.output:
            self.raw.append(line)
            self.lines.put(json.loads(line))

    def send(self, message: Any) -> None:
        os.write(self._input, (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")

    def request(self, method: str, request_id: Any = 1, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def next(self) -> Any:
        return self.lines.get(timeout=10)

    def ask(self, method: str, request_id: Any = 1, **params: Any) -> Any:
        self.request(method, request_id, **params)
        while (message := self.next()).get("id") != request_id:
            pass
        return message

    def close_output(self) -> None:
        """Close the pipe into which the relay writes."""
        self._sink.close()

    def begin(self) -> Any:
        client = {"name": "peer", "version": "1"}
        response = self.ask(
            "initialize", 0, protocolVersion="2025-06-18", capabilities={"roots": {}}, clientInfo=client
        )
        self.notify("notifications/initialized")
        return response

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self._input)
            self.serving.join(10)
            self._sink.close()
            self._reader.join(10)
            self._source.close()
            self.output.close()
        assert not self.serving.is_alive()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(session_module, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(messages_module, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(upstream_module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(relay_module, "GRACE_SECONDS", 0.05)
    gateway = Gateway()
    yield gateway
    gateway.close()


@pytest.fixture
def peer(gateway: Gateway) -> Iterator[Peer]:
    peer = Peer(gateway.url)
    yield peer
    peer.end()


# Messages and headers ---------------------------------------------------------------------------------------------


def test_each_message_has_session_id_and_version_until_the_agent_ends(gateway: Gateway, peer: Peer) -> None:
    assert peer.begin()["result"]["protocolVersion"] == "2025-06-18"
    assert peer.ask("tools/list")["result"] == {}
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    eventually(lambda: any(request.message and "result" in request.message for request in gateway.requests))
    peer.end()
    first_request, *later_requests = gateway.requests
    assert "mcp-session-id" not in first_request.headers
    assert {request.headers["mcp-session-id"] for request in later_requests} == {"session-1"}
    assert {request.headers["mcp-protocol-version"] for request in later_requests} == {"2025-06-18"}
    assert {request.headers["authorization"] for request in gateway.requests} == {"Bearer gh_test"}
    assert gateway.requests[-1].verb == "DELETE"


def test_a_request_waits_for_the_response_to_initialize(gateway: Gateway, peer: Peer) -> None:
    peer.request("initialize", 0, protocolVersion="2025-06-18", capabilities={})
    peer.notify("notifications/initialized")
    peer.request("tools/list", 1)
    assert [peer.next()["id"], peer.next()["id"]] == [0, 1]


def test_a_modern_message_is_repeated_in_headers(gateway: Gateway, peer: Peer) -> None:
    assert peer.ask("tools/call", name="grüße", arguments={}, _meta=MODERN_META)["result"] == {}
    assert peer.ask("tasks/get", taskId="t1", _meta=MODERN_META)["result"] == {}
    call, task = gateway.requests
    assert call.headers["mcp-protocol-version"] == "2026-07-28"
    assert (call.headers["mcp-method"], task.headers["mcp-method"]) == ("tools/call", "tasks/get")
    assert (call.headers["mcp-name"], task.headers["mcp-name"]) == ("=?base64?Z3LDvMOfZQ==?=", "t1")


def test_argument_headers_are_found_in_the_definition_of_the_tool(gateway: Gateway, peer: Peer) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    pages = {None: {"tools": [], "nextCursor": ""}, "": {"tools": [{"name": "weather", "inputSchema": schema}]}}

    def call(request: GatewayRequest) -> Reply:
        if request.headers.get("mcp-param-city") == request.message["params"]["arguments"]["city"]:
            return Reply(result(request, ok=True))
        return Reply(error(-32020, "the header Mcp-Param-City is missing"), 400)

    gateway.on("tools/call", call)
    gateway.on("tools/list", lambda request: Reply(result(request, **pages[request.message["params"].get("cursor")])))
    for city in ("Rome", "Oslo"):
        response = peer.ask("tools/call", name="weather", arguments={"city": city}, _meta=MODERN_META)
        assert response["result"] == {"ok": True}
    assert len(gateway.requests_for("tools/list")) == 2  # each page once
    refusal = peer.ask("tools/call", name="other", arguments={"city": "Rome"}, _meta=MODERN_META)
    assert refusal["error"]["code"] == -32020


def test_each_response_is_written_as_one_line(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("tools/list", lambda request: Reply(json.dumps(result(request, text="a\nb"), indent=2).encode()))
    gateway.on(
        "tools/call",
        lambda request: Reply(
            [b"data: {\ndata:  " + json.dumps(result(request, ok=True)).encode()[1:]], is_stream=True
        ),
    )
    assert peer.ask("tools/list")["result"] == {"text": "a\nb"}
    assert peer.ask("tools/call", name="x")["result"] == {"ok": True}


def test_a_refusal_is_a_response_with_the_agents_own_id(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("tools/call", lambda request: Reply(error(-32600, "too fast", {"calls": 3}), 429))
    response = peer.ask("tools/call", "mine", name="x")
    assert response == {**error(-32600, "too fast", {"calls": 3}), "id": "mine"}
    gateway.on("tools/call", lambda request: Reply(b"a proxy says no", 502))
    assert peer.ask("tools/call", "mine", name="x")["error"]["message"] == "the hall answered with HTTP status 502"


# Batches, limits and the end of either side -----------------------------------------------------------------------


def test_the_parts_of_a_batch_run_concurrently_and_are_answered_in_order(gateway: Gateway, peer: Peer) -> None:
    barrier = threading.Barrier(2, timeout=10)

    def wait_for_both(request: GatewayRequest) -> Reply:
        barrier.wait()
        return Reply(result(request, number=request.message["id"]))

    peer.begin()
    gateway.on("tools/call", wait_for_both)
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x"}}
    peer.send([{**call, "id": 1}, {"jsonrpc": "2.0", "method": "notifications/x"}, 7, {**call, "id": 2}])
    first_response, fault_response, second_response = peer.next()
    assert (first_response["result"], second_response["result"]) == ({"number": 1}, {"number": 2})
    assert fault_response["error"]["code"] == -32600


def test_a_cancelled_request_gets_no_response_and_is_not_sent_later(gateway: Gateway) -> None:
    def hang(request: GatewayRequest) -> Reply:
        gateway.released.wait(10)
        return Reply(result(request))

    gateway.on("tools/call", hang)
    gateway.on("notifications/cancelled", lambda request: (gateway.released.set(), Reply(b"", 202))[1])
    peer = Peer(gateway.url, requests=1)
    peer.begin()
    peer.request("tools/call", "first", name="x")
    eventually(lambda: gateway.requests_for("tools/call"))
    peer.request("tools/call", "second", name="x")
    assert peer.ask("ping", "meanwhile")["result"] == {}
    assert "its id is in use" in peer.ask("tools/list", "second")["error"]["message"]
    peer.notify("notifications/cancelled", requestId="second")
    peer.notify("notifications/cancelled", requestId="first")
    peer.notify("notifications/cancelled", requestId="nobody's")
    assert peer.ask("tools/list", "third")["result"] == {}
    assert [request.message["id"] for request in gateway.requests_for("tools/call")] == ["first"]
    assert peer.lines.empty()
    peer.end()


def hold_until_released(gateway: Gateway, request: GatewayRequest) -> Reply:
    """Do not reply before `released` is set."""
    gateway.released.wait(10)
    return Reply(result(request)) if "id" in request.message else Reply(b"", 202)


def test_requests_cancelled_before_they_began_send_no_cancellation_and_delay_nothing(gateway: Gateway) -> None:
    gateway.on("tools/call", partial(hold_until_released, gateway))
    peer = Peer(gateway.url, requests=2)
    peer.begin()
    for number in range(102):
        peer.request("tools/call", number, name="x")
    eventually(lambda: len(gateway.requests_for("tools/call")) == 2)
    for number in range(2, 102):
        peer.notify("notifications/cancelled", requestId=number)
    started_at = time.monotonic()
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    eventually(lambda: any(request.message and "result" in request.message for request in gateway.requests))
    assert time.monotonic() - started_at < relay_module.CANCELLED_SECONDS
    assert gateway.requests_for("notifications/cancelled") == []
    gateway.released.set()
    assert {peer.next()["id"], peer.next()["id"]} == {0, 1}
    assert peer.ask("tools/list", "last")["result"] == {}
    assert len(gateway.requests_for("tools/call")) == 2
    peer.end()


def test_responses_in_a_batch_do_not_wait_for_running_calls(gateway: Gateway) -> None:
    def call(request: GatewayRequest) -> Reply:
        return Reply(result(request, was_answered=gateway.released.wait(10)))

    gateway.on("tools/call", call)
    gateway.on("an answer", lambda request: (gateway.released.set(), Reply(b"", 202))[1])
    peer = Peer(gateway.url, requests=1)
    peer.begin()
    peer.request("tools/call", "asks", name="x")
    eventually(lambda: gateway.requests_for("tools/call"))
    response = {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    peer.send([response, {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}])
    assert peer.next()["result"] == {"was_answered": True}
    assert peer.next()[0]["id"] == "list"
    peer.end()


def test_a_ping_is_answered_while_the_gateway_accepts_no_notifications(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("notifications/roots/list_changed", partial(hold_until_released, gateway))
    gateway.on("tools/call", partial(hold_until_released, gateway))
    peer.request("tools/call", "long", name="x")
    eventually(lambda: gateway.requests_for("tools/call"))
    notification = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    peer.send([{"jsonrpc": "2.0", "id": "ping", "method": "ping"}, notification])
    peer.send([{"jsonrpc": "2.0", "id": "long", "method": "tools/list"}, notification])
    assert peer.ask("ping", "lone")["result"] == {}
    gateway.released.set()


def test_an_id_in_use_is_refused_during_the_handshake(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("initialize", partial(hold_until_released, gateway))
    peer.request("initialize", "again", protocolVersion="2025-06-18", capabilities={})
    for method in ("tools/list", "initialize"):
        peer.request(method, "again")
        assert "its id is in use" in peer.next()["error"]["message"]
    peer.request("tools/list", "behind")
    assert peer.ask("ping", "lone")["result"] == {}
    assert gateway.requests_for("tools/list") == []
    gateway.released.set()
    assert {peer.next()["id"], peer.next()["id"]} == {"again", "behind"}


def test_notifications_beyond_the_byte_limit_wait_in_the_pipe(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MAX_NOTICE_BYTES", 4_000_000)
    peer = Peer(gateway.url)
    peer.begin()
    gateway.on("notifications/x", partial(hold_until_released, gateway))
    for _ in range(2):
        peer.notify("notifications/x", text="y" * 2_100_000)
    eventually(lambda: gateway.requests_for("notifications/x"))
    peer.request("ping", "behind")
    with pytest.raises(queue.Empty):
        peer.lines.get(timeout=0.3)
    gateway.released.set()
    assert peer.next()["id"] == "behind"
    peer.end()


def test_an_endless_event_is_refused_at_the_limit_of_a_response(
    gateway: Gateway, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "MAX_ANSWER", 1_000_000)
    peer.begin()
    lines = itertools.chain(
        [b"data: x"], itertools.repeat(b"data: " + b"y" * 1_000_000, 1), iter(gateway.streams.get, b"")
    )
    gateway.on(
        "tools/call", lambda request: Reply((event + b"\ndata: z" for event in lines), is_stream=True, is_endless=True)
    )
    assert "the response is larger than" in peer.ask("tools/call", name="x")["error"]["message"]


def test_a_cancelled_modern_request_ends_with_its_connection(gateway: Gateway, peer: Peer) -> None:
    comments = (b": sign of life" for _ in iter(lambda: gateway.released.wait(0.01), True))
    gateway.on("tools/call", lambda request: Reply(comments, is_stream=True))
    peer.request("tools/call", "long", name="x", _meta=MODERN_META)
    eventually(lambda: gateway.requests_for("tools/call"))
    assert not gateway.agent_disconnected.is_set()
    peer.notify("notifications/cancelled", requestId="long")
    assert gateway.agent_disconnected.wait(10)
    assert peer.lines.empty()
    while "error" in (
        response := peer.ask("tools/list", "long", _meta=MODERN_META)
    ):  # until the relay has forgotten the request
        assert "its id is in use" in response["error"]["message"]
    assert peer.lines.empty()


def test_too_many_concurrent_requests_are_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MAX_POSTS", 2)
    peer = Peer(gateway.url)

    def hang(request: GatewayRequest) -> Reply:
        gateway.released.wait(10)
        return Reply(result(request))

    gateway.on("tools/call", hang)
    peer.begin()
    for number in range(2):
        peer.request("tools/call", number, name="x")
        # `initialize` counts until a moment after its response. It has ended before the second request is sent.
        eventually(lambda count=number + 1: gateway.methods().count("tools/call") == count)
    peer.request("tools/call", 2, name="x")
    refusal = peer.next()
    assert (refusal["id"], refusal["error"]["code"]) == (2, -32603)
    assert "more than 2 requests" in refusal["error"]["message"]
    gateway.released.set()
    assert {peer.next()["id"], peer.next()["id"]} == {0, 1}
    peer.end()


def test_a_line_that_is_too_long_is_refused_and_the_next_line_is_read(gateway: Gateway, peer: Peer) -> None:
    peer.send(b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "x": "' + b"y" * 4_100_000 + b'"}')
    assert peer.next()["error"]["code"] == -32600
    peer.send(b"  ")
    assert peer.ask("ping", 2) == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert gateway.requests == []


def test_running_requests_are_cancelled_when_the_agent_ends(gateway: Gateway) -> None:
    def hang(request: GatewayRequest) -> Reply:
        gateway.released.wait(10)
        return Reply(result(request))

    gateway.on("tools/call", hang)
    gateway.on("notifications/cancelled", lambda request: (gateway.released.set(), Reply(b"", 202))[1])
    peer = Peer(gateway.url)
    peer.begin()
    peer.request("tools/call", "long", name="x")
    eventually(lambda: gateway.requests_for("tools/call"))
    peer.end()
    assert [request.message["params"]["requestId"] for request in gateway.requests_for("notifications/cancelled")] == [
        "long"
    ]
    assert gateway.requests[-1].verb == "DELETE"


# Interruptions ----------------------------------------------------------------------------------------------------


def test_an_ended_session_is_replaced_with_the_agents_own_messages(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    peer.ask("logging/setLevel", level="error")
    peer.ask("resources/subscribe", uri="memo://one")
    peer.ask("resources/subscribe", uri="memo://two")
    peer.ask("resources/unsubscribe", uri="memo://two")
    count_before = len(gateway.requests)
    gateway.sessions.clear()
    assert peer.ask("tools/list", "after")["result"] == {}
    eventually(lambda: gateway.requests_for("tools/list")[-1].headers["mcp-session-id"] != "session-1")
    repeated_requests = [
        request
        for request in gateway.requests[count_before:]
        if request.message and request.message["method"] != "tools/list"
    ]
    assert [request.message["method"] for request in repeated_requests] == [
        *("initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe")
    ]
    assert repeated_requests[0].message == gateway.requests_for("initialize")[0].message
    assert repeated_requests[3].message["params"] == {"uri": "memo://one"}
    eventually(lambda: any(b"notifications/tools/list_changed" in line for line in peer.raw))
    assert not any(b"notifications/prompts/list_changed" in line for line in peer.raw)  # the gateway did not offer it


def test_a_new_stream_begins_with_notifications_that_lists_may_have_changed(gateway: Gateway, peer: Peer) -> None:
    may_open, line_counts = threading.Event(), []

    def open_stream(request: GatewayRequest) -> Reply:
        if request.headers["mcp-session-id"] == "session-1":
            return Reply(iter(gateway.streams.get, b""), is_stream=True)
        may_open.wait(10)
        line_counts.append(len(peer.raw))
        return Reply(iter(gateway.streams.get, b""), is_stream=True)

    gateway.on("GET", open_stream)
    peer.begin()
    gateway.sessions.clear()
    assert peer.ask("tools/list")["result"] == {}
    may_open.set()
    eventually(lambda: line_counts and any(b"list_changed" in line for line in peer.raw[line_counts[0] :]))


def test_a_second_initialize_ends_the_first_session_and_opens_a_new_stream(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    eventually(lambda: [request.verb for request in gateway.requests].count("GET") == 1)
    peer.begin()

    def session_ids(verb: str) -> list[str]:
        return [request.headers["mcp-session-id"] for request in gateway.requests if request.verb == verb]

    assert session_ids("DELETE") == ["session-1"]
    eventually(lambda: session_ids("GET")[-1] == "session-2")


def test_requests_that_wait_for_a_new_session_share_its_failure(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.sessions.clear()

    def refuse(request: GatewayRequest) -> Reply:
        gateway.released.wait(10)
        return Reply(error(-32600, "no more sessions"), 400)

    gateway.on("initialize", refuse)
    for number in range(8):
        peer.request("tools/list", number)
    eventually(lambda: len(gateway.requests_for("tools/list")) == 8)
    eventually(lambda: len(gateway.requests_for("initialize")) == 2)
    assert peer.ask("ping", "meanwhile")["result"] == {}
    gateway.released.set()
    assert {peer.next()["error"]["message"] for _ in range(8)} == {"no more sessions"}
    assert len(gateway.requests_for("initialize")) < 1 + 8  # one for all requests, except for those that came too late


def test_notifications_are_relayed_and_a_gap_is_followed_by_list_changed(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    for text in ("first", "second"):
        notification = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": text}}
        gateway.streams.put(b"data: " + json.dumps(notification).encode())
        assert peer.next() == notification
    gateway.streams.put(b"")  # the stream ends
    assert peer.next()["method"] == "notifications/tools/list_changed"


def test_only_safe_requests_are_repeated_after_a_busy_or_broken_response(gateway: Gateway, peer: Peer) -> None:
    def reply_once(reply: Reply) -> Callable[[GatewayRequest], Reply]:
        replies = iter([reply])
        return lambda request: next(replies, None) or Reply(result(request))

    peer.begin()
    gateway.on("tools/list", reply_once(Reply(hangs_up=True)))
    assert "result" in peer.ask("tools/list")
    gateway.on("tools/call", reply_once(Reply(error(-32603, "the runtime is stopping"), 503)))
    assert "result" in peer.ask("tools/call", name="x")
    gateway.on("tools/call", reply_once(Reply(hangs_up=True)))
    message = peer.ask("tools/call", name="x")["error"]
    assert "it may have run" in message["message"]
    assert message["data"] == {"kind": "transport"}
    assert len(gateway.requests_for("tools/call")) == 3


def test_an_incomplete_response_is_not_relayed(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("tools/call", lambda request: Reply(b'{"jsonrpc": "2.0"', is_short=True))
    assert "it may have run" in peer.ask("tools/call", name="x")["error"]["message"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply([b": headers alone"], is_stream=True), "ended the stream before the answer"),
        (Reply(b"{", is_short=True), "it may have run"),
    ],
)
def test_a_request_that_always_breaks_off_is_repeated_a_few_times(
    gateway: Gateway, peer: Peer, reply: Reply, message: str
) -> None:
    peer.begin()
    gateway.on("resources/read", lambda request: reply)
    assert message in peer.ask("resources/read", uri="memo://one")["error"]["message"]
    assert len(gateway.requests_for("resources/read")) == 1 + upstream_module.REPEATS


def test_a_request_that_is_always_refused_as_busy_fails_after_a_while(
    gateway: Gateway, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "PATIENCE_SECONDS", 0.3)
    peer.begin()
    gateway.on("tools/call", lambda request: Reply(error(-32603, "busy"), 503))
    peer.request("tools/call", "busy", name="x")
    for number in itertools.count(1):
        peer.request("tools/list", number)
        if (response := peer.next())["id"] == "busy":
            break
    assert "the hall takes no requests now: busy" in response["error"]["message"]


def test_the_relay_waits_for_a_short_retry_after_and_fails_at_a_long_one(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    times: list[float] = []

    def refuse_once(request: GatewayRequest) -> Reply:
        times.append(time.monotonic())
        refusal = Reply(error(-32603, "stopping"), 503, {"retry-after": "1"})
        return refusal if len(times) == 1 else Reply(result(request))

    gateway.on("tools/call", refuse_once)
    assert "result" in peer.ask("tools/call", name="x")
    assert len(times) == 2
    assert times[1] - times[0] >= 0.9
    gateway.on("tools/call", lambda request: Reply(error(-32603, "too many streams"), 503, {"retry-after": "10"}))
    started_at = time.monotonic()
    assert "too many streams" in peer.ask("tools/call", name="x")["error"]["message"]
    assert time.monotonic() - started_at < 9


def test_resuming_an_empty_stream_is_tried_a_few_times(
    gateway: Gateway, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "SHORTEST_RETRY", 0.01)
    peer.begin()
    notification = json.dumps(
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
    ).encode()
    gateway.on("tools/call", lambda request: Reply([b"id: e1\nretry: 1\ndata: " + notification], is_stream=True))
    gateway.on("GET", lambda request: Reply([], is_stream=True))
    assert "ended the stream before the answer" in peer.ask("tools/call", name="x")["error"]["message"]
    resumptions = [request for request in gateway.requests if request.headers.get("last-event-id") == "e1"]
    assert len(resumptions) == 1 + upstream_module.REPEATS


@pytest.mark.parametrize("status", [404, 429, 503])
def test_a_response_to_a_question_is_repeated_after_a_temporary_refusal(
    gateway: Gateway, peer: Peer, status: int
) -> None:
    peer.begin()
    accepted = threading.Event()

    def accept_at_second_time(request: GatewayRequest) -> Reply:
        if len([request for request in gateway.requests if request.message and "result" in request.message]) == 1:
            return Reply(error(-32600, "not now"), status, {} if status == 404 else {"retry-after": "1"})
        accepted.set()
        return Reply(b"", 202)

    gateway.on("an answer", accept_at_second_time)
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    assert accepted.wait(10)


def test_the_permanent_refusal_of_a_response_to_a_question_is_logged(
    gateway: Gateway, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.begin()
    gateway.on("an answer", lambda request: Reply(error(-32600, "too large"), 413))
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    eventually(lambda: "an answer was not taken: HTTP status 413: too large" in caplog.text)


def test_a_stopped_hall_is_an_error_that_names_its_address(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "PATIENCE_SECONDS", 0.2)
    gateway.close()
    peer = Peer(gateway.url)
    for _ in range(2):
        message = peer.begin()["error"]
        assert "the hall is not running: nobody listens at http://127.0.0.1:" in message["message"]
        assert message["data"] == {"kind": "unavailable", "sent": False}
    peer.end()


def test_a_stream_that_ends_before_the_response_is_resumed(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    notification = json.dumps(
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}
    ).encode()
    gateway.on("tools/call", lambda request: Reply([b"id: e1\nretry: 1\ndata: " + notification], is_stream=True))

    def resume(request: GatewayRequest) -> Reply:
        if request.headers.get("last-event-id") != "e1":
            return Reply(iter(gateway.streams.get, b""), is_stream=True)
        response = {"jsonrpc": "2.0", "id": "long", "result": {"ok": True}}
        return Reply([b"data: " + json.dumps(response).encode()], is_stream=True)

    gateway.on("GET", resume)
    peer.request("tools/call", "long", name="x")
    assert [peer.next().get("method"), peer.next().get("result")] == ["notifications/progress", {"ok": True}]
    gateway.on("tools/call", lambda request: Reply([b"data: " + notification], is_stream=True))
    assert "ended the stream before the answer" in peer.ask("tools/call", "cut", name="x")["error"]["message"]


def test_an_ended_subscription_is_opened_again_and_followed_by_list_changed(gateway: Gateway, peer: Peer) -> None:
    tag = {f"{META_PREFIX}subscriptionId": "ears"}
    params = {"notifications": {"toolsListChanged": True}, "_meta": tag}
    acknowledgement = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
    events = b"data: " + json.dumps(acknowledgement).encode()
    replies = iter([Reply([events], is_stream=True)])

    def listen(request: GatewayRequest) -> Reply:
        open_events = itertools.chain([events], iter(gateway.streams.get, b""))
        return next(replies, None) or Reply(open_events, is_stream=True)

    gateway.on("subscriptions/listen", listen)
    peer.request("subscriptions/listen", "ears", notifications={"toolsListChanged": True}, _meta=MODERN_META)
    assert peer.next() == acknowledgement
    assert peer.next() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": tag}}


def test_the_relay_ends_when_the_agent_stops_reading(gateway: Gateway) -> None:
    peer = Peer(gateway.url)
    peer.close_output()

    def relay_has_ended() -> bool:
        peer.request("ping")
        return not peer.serving.is_alive()

    eventually(relay_has_ended)
    assert not peer.serving.is_alive()
    peer.end()


# The token --------------------------------------------------------------------------------------------------------


def test_a_valid_token_is_usable_while_another_thread_renews_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updates: list[int] = []
    update_began, database_is_free = threading.Event(), threading.Event()

    def update(**values: Any) -> None:
        updates.append(1)
        update_began.set()
        database_is_free.wait(10)
        raise OperationalError("database is locked")

    rows = SimpleNamespace(update=update, delete=lambda: None)
    tokens = SimpleNamespace(
        Scope=Token.Scope,
        objects=SimpleNamespace(filter=lambda **values: rows),
        make=lambda **values: (SimpleNamespace(pk=1, audit_name="token gh_short"), "gh_short"),
    )
    monkeypatch.setattr(mcp_stdio, "Token", tokens)
    monkeypatch.setattr(mcp_stdio, "AuditEntry", MagicMock())
    monkeypatch.setattr(mcp_stdio, "transaction", SimpleNamespace(atomic=nullcontext))
    monkeypatch.setattr(mcp_stdio, "user_for_token", lambda name: None)
    monkeypatch.setattr(mcp_stdio, "connection", SimpleNamespace(close=lambda: None))
    started_at = timezone.now()
    monkeypatch.setattr(mcp_stdio, "timezone", SimpleNamespace(now=lambda: started_at + elapsed))
    elapsed = timedelta()
    key = mcp_stdio.ShortToken(None, None)
    elapsed = timedelta(minutes=21)
    renewal = threading.Thread(target=key.renew)
    renewal.start()
    assert update_began.wait(10)
    assert key.text == "gh_short"  # while the other thread waits for the database
    assert not database_is_free.is_set()
    elapsed += timedelta(hours=1)
    readers = [threading.Thread(target=lambda: key.text) for _ in range(4)]
    for thread in readers:
        thread.start()
    database_is_free.set()
    for thread in [renewal, *readers]:
        thread.join(10)
    assert updates == [1]


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_the_token_is_sent_to_the_address_where_the_gateway_listens(settings: Any, host: str, address: str) -> None:
    settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT = host, 8100
    assert mcp_stdio.url_of_gateway(None) == f"http://{address}:8100/mcp"
    assert mcp_stdio.url_of_gateway("notes") == f"http://{address}:8100/mcp/notes"
