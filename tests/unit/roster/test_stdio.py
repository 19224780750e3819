"""The relay of `mcp_stdio`, on pipes of the test, with a gateway that does what the test says."""

from __future__ import annotations

import itertools
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

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

META = "io.modelcontextprotocol/"
MODERN = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}


@dataclass
class Asked:
    """A request as it came to the gateway."""

    verb: str
    headers: dict[str, str]
    message: Any


@dataclass
class Reply:
    """`body`: bytes as they are, or a value as JSON. An event stream for a list of events. `hangs_up`: no reply."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs_up: bool = False
    is_short: bool = False  # a byte of the body is missing
    is_stream: bool = False
    is_endless: bool = False  # lines of one event


def result(asked: Asked, **values: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked.message["id"], "result": values}


def error(code: int, message: str, data: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message, "data": data}}


class Gateway:
    """Sessions, an empty result for everything, and whatever `on(method, reply)` says instead."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.sessions: set[str] = set()
        self.streams: queue.Queue[bytes] = queue.Queue()  # what is said unasked
        self.released = threading.Event()
        self.left = threading.Event()  # the agent went away in the middle of a stream
        self._numbers = itertools.count(1)
        self._replies: dict[str, Callable[[Asked], Reply]] = {}
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                asked = Asked(
                    self.command,
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(body) if body else None,
                )
                gateway.asked.append(asked)
                gateway.send(self, gateway.reply_to(asked))

            do_GET = do_DELETE = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/mcp"

    def on(self, method: str, reply: Callable[[Asked], Reply]) -> None:
        """`method`: of a message, or a verb without one."""
        self._replies[method] = reply

    def methods(self) -> list[str]:
        return [asked.message["method"] for asked in list(self.asked) if asked.message and "method" in asked.message]

    def of(self, method: str) -> list[Asked]:
        return [asked for asked in list(self.asked) if asked.message and asked.message.get("method") == method]

    def reply_to(self, asked: Asked) -> Reply:
        method = asked.message.get("method", "an answer") if asked.message else asked.verb
        if (reply := self._replies.get(method)) is not None:
            return reply(asked)
        if method == "initialize":
            session = f"session-{next(self._numbers)}"
            self.sessions.add(session)
            capabilities = {"tools": {"listChanged": True}, "prompts": {}}
            told = result(asked, protocolVersion="2025-06-18", capabilities=capabilities)
            return Reply(told, headers={"mcp-session-id": session})
        session = asked.headers.get("mcp-session-id", "")
        if session not in self.sessions and f"{META}protocolVersion" not in json.dumps(asked.message):
            return Reply(error(-32600, "this session is over"), 404 if session else 400)
        if asked.verb == "GET":
            return Reply(iter(self.streams.get, b""), is_stream=True)
        return Reply(result(asked), 200) if asked.message and "id" in asked.message and "method" in asked.message else (
            Reply(b"", 202)
        )  # fmt: skip

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
            self.left.set()

    def close(self) -> None:
        self.released.set()
        self.streams.put(b"")
        self.server.shutdown()
        self.server.server_close()


class Key:
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
        self.relay = Relay(self._source, self._sink, url, Key(), **options)
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

    def request(self, method: str, asked_id: Any = 1, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": asked_id, "method": method, "params": params})

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def next(self) -> Any:
        return self.lines.get(timeout=10)

    def ask(self, method: str, asked_id: Any = 1, **params: Any) -> Any:
        self.request(method, asked_id, **params)
        while (message := self.next()).get("id") != asked_id:
            pass
        return message

    def close_sink(self) -> None:
        """What the relay says goes nowhere."""
        self._sink.close()

    def begin(self) -> Any:
        client = {"name": "peer", "version": "1"}
        answer = self.ask("initialize", 0, protocolVersion="2025-06-18", capabilities={"roots": {}}, clientInfo=client)
        self.notify("notifications/initialized")
        return answer

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


def test_a_session_has_its_id_and_version_with_each_message_and_ends_with_the_agent(
    gateway: Gateway, peer: Peer
) -> None:
    assert peer.begin()["result"]["protocolVersion"] == "2025-06-18"
    assert peer.ask("tools/list")["result"] == {}
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    eventually(lambda: any(asked.message and "result" in asked.message for asked in gateway.asked))
    peer.end()
    first, *others = gateway.asked
    assert "mcp-session-id" not in first.headers
    assert {asked.headers["mcp-session-id"] for asked in others} == {"session-1"}
    assert {asked.headers["mcp-protocol-version"] for asked in others} == {"2025-06-18"}
    assert {asked.headers["authorization"] for asked in gateway.asked} == {"Bearer gh_test"}
    assert gateway.asked[-1].verb == "DELETE"


def test_what_an_agent_says_before_it_was_answered_waits_for_that(gateway: Gateway, peer: Peer) -> None:
    peer.request("initialize", 0, protocolVersion="2025-06-18", capabilities={})
    peer.notify("notifications/initialized")
    peer.request("tools/list", 1)
    assert [peer.next()["id"], peer.next()["id"]] == [0, 1]


def test_a_modern_message_is_repeated_in_headers(gateway: Gateway, peer: Peer) -> None:
    assert peer.ask("tools/call", name="grüße", arguments={}, _meta=MODERN)["result"] == {}
    assert peer.ask("tasks/get", taskId="t1", _meta=MODERN)["result"] == {}
    called, task = gateway.asked
    assert called.headers["mcp-protocol-version"] == "2026-07-28"
    assert (called.headers["mcp-method"], task.headers["mcp-method"]) == ("tools/call", "tasks/get")
    assert (called.headers["mcp-name"], task.headers["mcp-name"]) == ("=?base64?Z3LDvMOfZQ==?=", "t1")


def test_arguments_that_a_tool_wants_in_headers_are_found_out_from_its_definition(gateway: Gateway, peer: Peer) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    pages = {None: {"tools": [], "nextCursor": ""}, "": {"tools": [{"name": "weather", "inputSchema": schema}]}}

    def call(asked: Asked) -> Reply:
        if asked.headers.get("mcp-param-city") == asked.message["params"]["arguments"]["city"]:
            return Reply(result(asked, ok=True))
        return Reply(error(-32020, "the header Mcp-Param-City is missing"), 400)

    gateway.on("tools/call", call)
    gateway.on("tools/list", lambda asked: Reply(result(asked, **pages[asked.message["params"].get("cursor")])))
    for city in ("Rome", "Oslo"):
        answer = peer.ask("tools/call", name="weather", arguments={"city": city}, _meta=MODERN)
        assert answer["result"] == {"ok": True}
    assert len(gateway.of("tools/list")) == 2  # its pages, and once
    refused = peer.ask("tools/call", name="other", arguments={"city": "Rome"}, _meta=MODERN)
    assert refused["error"]["code"] == -32020


def test_answers_are_one_line_however_they_are_written(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("tools/list", lambda asked: Reply(json.dumps(result(asked, text="a\nb"), indent=2).encode()))
    gateway.on(
        "tools/call",
        lambda asked: Reply([b"data: {\ndata:  " + json.dumps(result(asked, ok=True)).encode()[1:]], is_stream=True),
    )
    assert peer.ask("tools/list")["result"] == {"text": "a\nb"}
    assert peer.ask("tools/call", name="x")["result"] == {"ok": True}


def test_a_refusal_is_the_answer_with_the_agents_own_id(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("tools/call", lambda asked: Reply(error(-32600, "too fast", {"calls": 3}), 429))
    answer = peer.ask("tools/call", "mine", name="x")
    assert answer == {**error(-32600, "too fast", {"calls": 3}), "id": "mine"}
    gateway.on("tools/call", lambda asked: Reply(b"a proxy says no", 502))
    assert peer.ask("tools/call", "mine", name="x")["error"]["message"] == "the hall answered with HTTP status 502"


# Batches, limits and the end of either side -----------------------------------------------------------------------


def test_the_parts_of_a_batch_are_asked_at_once_and_answered_in_their_order(gateway: Gateway, peer: Peer) -> None:
    both = threading.Barrier(2, timeout=10)

    def meet(asked: Asked) -> Reply:
        both.wait()
        return Reply(result(asked, number=asked.message["id"]))

    peer.begin()
    gateway.on("tools/call", meet)
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "x"}}
    peer.send([{**call, "id": 1}, {"jsonrpc": "2.0", "method": "notifications/x"}, 7, {**call, "id": 2}])
    first, fault, second = peer.next()
    assert (first["result"], second["result"]) == ({"number": 1}, {"number": 2})
    assert fault["error"]["code"] == -32600


def test_a_cancelled_request_is_not_answered_and_one_that_waits_is_never_sent(gateway: Gateway) -> None:
    def hang(asked: Asked) -> Reply:
        gateway.released.wait(10)
        return Reply(result(asked))

    gateway.on("tools/call", hang)
    gateway.on("notifications/cancelled", lambda asked: (gateway.released.set(), Reply(b"", 202))[1])
    peer = Peer(gateway.url, requests=1)
    peer.begin()
    peer.request("tools/call", "first", name="x")
    eventually(lambda: gateway.of("tools/call"))
    peer.request("tools/call", "second", name="x")
    assert peer.ask("ping", "meanwhile")["result"] == {}
    assert "its id is in use" in peer.ask("tools/list", "second")["error"]["message"]
    peer.notify("notifications/cancelled", requestId="second")
    peer.notify("notifications/cancelled", requestId="first")
    peer.notify("notifications/cancelled", requestId="nobody's")
    assert peer.ask("tools/list", "third")["result"] == {}
    assert [asked.message["id"] for asked in gateway.of("tools/call")] == ["first"]
    assert peer.lines.empty()
    peer.end()


def hold(gateway: Gateway, asked: Asked) -> Reply:
    """Until the test's end."""
    gateway.released.wait(10)
    return Reply(result(asked)) if "id" in asked.message else Reply(b"", 202)


def test_cancelled_requests_that_were_not_begun_are_not_told_of_and_hold_up_no_answer(gateway: Gateway) -> None:
    gateway.on("tools/call", partial(hold, gateway))
    peer = Peer(gateway.url, requests=2)
    peer.begin()
    for number in range(102):
        peer.request("tools/call", number, name="x")
    eventually(lambda: len(gateway.of("tools/call")) == 2)
    for number in range(2, 102):
        peer.notify("notifications/cancelled", requestId=number)
    began = time.monotonic()
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    eventually(lambda: any(asked.message and "result" in asked.message for asked in gateway.asked))
    assert time.monotonic() - began < relay_module.CANCELLED_SECONDS
    assert gateway.of("notifications/cancelled") == []
    gateway.released.set()
    assert {peer.next()["id"], peer.next()["id"]} == {0, 1}
    assert peer.ask("tools/list", "last")["result"] == {}
    assert len(gateway.of("tools/call")) == 2
    peer.end()


def test_answers_and_notifications_in_a_batch_do_not_wait_for_the_calls_that_wait_for_them(gateway: Gateway) -> None:
    def call(asked: Asked) -> Reply:
        return Reply(result(asked, was_answered=gateway.released.wait(10)))

    gateway.on("tools/call", call)
    gateway.on("an answer", lambda asked: (gateway.released.set(), Reply(b"", 202))[1])
    peer = Peer(gateway.url, requests=1)
    peer.begin()
    peer.request("tools/call", "asks", name="x")
    eventually(lambda: gateway.of("tools/call"))
    answer = {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    peer.send([answer, {"jsonrpc": "2.0", "id": "list", "method": "tools/list"}])
    assert peer.next()["result"] == {"was_answered": True}
    assert peer.next()[0]["id"] == "list"
    peer.end()


def test_a_ping_is_answered_while_the_gateway_takes_no_notifications(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("notifications/roots/list_changed", partial(hold, gateway))
    gateway.on("tools/call", partial(hold, gateway))
    peer.request("tools/call", "long", name="x")
    eventually(lambda: gateway.of("tools/call"))
    note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    peer.send([{"jsonrpc": "2.0", "id": "ping", "method": "ping"}, note])
    peer.send([{"jsonrpc": "2.0", "id": "long", "method": "tools/list"}, note])
    assert peer.ask("ping", "lone")["result"] == {}
    gateway.released.set()


def test_an_id_in_use_is_refused_while_the_agent_is_being_introduced(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("initialize", partial(hold, gateway))
    peer.request("initialize", "again", protocolVersion="2025-06-18", capabilities={})
    for method in ("tools/list", "initialize"):
        peer.request(method, "again")
        assert "its id is in use" in peer.next()["error"]["message"]
    peer.request("tools/list", "behind")
    assert peer.ask("ping", "lone")["result"] == {}
    assert gateway.of("tools/list") == []
    gateway.released.set()
    assert {peer.next()["id"], peer.next()["id"]} == {"again", "behind"}


def test_notifications_that_are_not_taken_wait_in_the_pipe_beyond_so_many_bytes(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "MAX_NOTICE_BYTES", 4_000_000)
    peer = Peer(gateway.url)
    peer.begin()
    gateway.on("notifications/x", partial(hold, gateway))
    for _ in range(2):
        peer.notify("notifications/x", text="y" * 2_100_000)
    eventually(lambda: gateway.of("notifications/x"))
    peer.request("ping", "behind")
    with pytest.raises(queue.Empty):
        peer.lines.get(timeout=0.3)
    gateway.released.set()
    assert peer.next()["id"] == "behind"
    peer.end()


def test_an_event_that_does_not_end_is_held_no_longer_than_an_answer(
    gateway: Gateway, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "MAX_ANSWER", 1_000_000)
    peer.begin()
    endless = itertools.chain(
        [b"data: x"], itertools.repeat(b"data: " + b"y" * 1_000_000, 1), iter(gateway.streams.get, b"")
    )
    gateway.on(
        "tools/call", lambda asked: Reply((event + b"\ndata: z" for event in endless), is_stream=True, is_endless=True)
    )
    assert "the response is larger than" in peer.ask("tools/call", name="x")["error"]["message"]


def test_a_cancelled_modern_request_ends_with_its_connection(gateway: Gateway, peer: Peer) -> None:
    signs = (b": sign of life" for _ in iter(lambda: gateway.released.wait(0.01), True))
    gateway.on("tools/call", lambda asked: Reply(signs, is_stream=True))
    peer.request("tools/call", "long", name="x", _meta=MODERN)
    eventually(lambda: gateway.of("tools/call"))
    assert not gateway.left.is_set()
    peer.notify("notifications/cancelled", requestId="long")
    assert gateway.left.wait(10)
    assert peer.lines.empty()
    while "error" in (answer := peer.ask("tools/list", "long", _meta=MODERN)):  # until the relay has forgotten it
        assert "its id is in use" in answer["error"]["message"]
    assert peer.lines.empty()


def test_more_requests_than_are_taken_in_are_refused(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MAX_POSTS", 2)
    peer = Peer(gateway.url)

    def hang(asked: Asked) -> Reply:
        gateway.released.wait(10)
        return Reply(result(asked))

    gateway.on("tools/call", hang)
    peer.begin()
    for number in range(3):
        peer.request("tools/call", number, name="x")
    refused = peer.next()
    assert (refused["id"], refused["error"]["code"]) == (2, -32603)
    assert "more than 2 requests" in refused["error"]["message"]
    gateway.released.set()
    assert {peer.next()["id"], peer.next()["id"]} == {0, 1}
    peer.end()


def test_a_line_that_is_too_long_is_refused_and_the_next_one_read(gateway: Gateway, peer: Peer) -> None:
    peer.send(b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "x": "' + b"y" * 4_100_000 + b'"}')
    assert peer.next()["error"]["code"] == -32600
    peer.send(b"  ")
    assert peer.ask("ping", 2) == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert gateway.asked == []


def test_what_is_under_way_when_the_agent_goes_is_cancelled(gateway: Gateway) -> None:
    def hang(asked: Asked) -> Reply:
        gateway.released.wait(10)
        return Reply(result(asked))

    gateway.on("tools/call", hang)
    gateway.on("notifications/cancelled", lambda asked: (gateway.released.set(), Reply(b"", 202))[1])
    peer = Peer(gateway.url)
    peer.begin()
    peer.request("tools/call", "long", name="x")
    eventually(lambda: gateway.of("tools/call"))
    peer.end()
    assert [asked.message["params"]["requestId"] for asked in gateway.of("notifications/cancelled")] == ["long"]
    assert gateway.asked[-1].verb == "DELETE"


# Away and back ----------------------------------------------------------------------------------------------------


def test_a_session_that_is_over_is_begun_again_with_the_agents_own_words(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    peer.ask("logging/setLevel", level="error")
    peer.ask("resources/subscribe", uri="memo://one")
    peer.ask("resources/subscribe", uri="memo://two")
    peer.ask("resources/unsubscribe", uri="memo://two")
    before = len(gateway.asked)
    gateway.sessions.clear()
    assert peer.ask("tools/list", "after")["result"] == {}
    eventually(lambda: gateway.of("tools/list")[-1].headers["mcp-session-id"] != "session-1")
    again = [asked for asked in gateway.asked[before:] if asked.message and asked.message["method"] != "tools/list"]
    assert [asked.message["method"] for asked in again] == [
        *("initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe")
    ]
    assert again[0].message == gateway.of("initialize")[0].message
    assert again[3].message["params"] == {"uri": "memo://one"}
    eventually(lambda: any(b"notifications/tools/list_changed" in line for line in peer.raw))
    assert not any(b"notifications/prompts/list_changed" in line for line in peer.raw)  # it was not offered


def test_lists_that_change_before_the_new_sessions_stream_is_open_are_told_of(gateway: Gateway, peer: Peer) -> None:
    is_open, opened = threading.Event(), []

    def stream(asked: Asked) -> Reply:
        if asked.headers["mcp-session-id"] == "session-1":
            return Reply(iter(gateway.streams.get, b""), is_stream=True)
        is_open.wait(10)
        opened.append(len(peer.raw))
        return Reply(iter(gateway.streams.get, b""), is_stream=True)

    gateway.on("GET", stream)
    peer.begin()
    gateway.sessions.clear()
    assert peer.ask("tools/list")["result"] == {}
    is_open.set()
    eventually(lambda: opened and any(b"list_changed" in line for line in peer.raw[opened[0] :]))


def test_a_second_introduction_ends_the_first_session_and_listens_in_the_new_one(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    eventually(lambda: [asked.verb for asked in gateway.asked].count("GET") == 1)
    peer.begin()

    def sessions(verb: str) -> list[str]:
        return [asked.headers["mcp-session-id"] for asked in gateway.asked if asked.verb == verb]

    assert sessions("DELETE") == ["session-1"]
    eventually(lambda: sessions("GET")[-1] == "session-2")


def test_all_who_wait_for_a_new_session_share_its_failure(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.sessions.clear()

    def refuse(asked: Asked) -> Reply:
        gateway.released.wait(10)
        return Reply(error(-32600, "no more sessions"), 400)

    gateway.on("initialize", refuse)
    for number in range(8):
        peer.request("tools/list", number)
    eventually(lambda: len(gateway.of("tools/list")) == 8)
    eventually(lambda: len(gateway.of("initialize")) == 2)
    assert peer.ask("ping", "meanwhile")["result"] == {}
    gateway.released.set()
    assert {peer.next()["error"]["message"] for _ in range(8)} == {"no more sessions"}
    assert len(gateway.of("initialize")) < 1 + 8  # one for all, but for who comes too late for it


def test_what_is_said_unasked_is_passed_on_and_after_a_gap_that_lists_may_have_changed(
    gateway: Gateway, peer: Peer
) -> None:
    peer.begin()
    for text in ("first", "second"):
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": text}}
        gateway.streams.put(b"data: " + json.dumps(note).encode())
        assert peer.next() == note
    gateway.streams.put(b"")  # the stream ends
    assert peer.next()["method"] == "notifications/tools/list_changed"


def test_a_hall_that_is_busy_or_breaks_off_is_asked_again_where_that_does_no_harm(gateway: Gateway, peer: Peer) -> None:
    def at_first(reply: Reply) -> Callable[[Asked], Reply]:
        replies = iter([reply])
        return lambda asked: next(replies, None) or Reply(result(asked))

    peer.begin()
    gateway.on("tools/list", at_first(Reply(hangs_up=True)))
    assert "result" in peer.ask("tools/list")
    gateway.on("tools/call", at_first(Reply(error(-32603, "the runtime is stopping"), 503)))
    assert "result" in peer.ask("tools/call", name="x")
    gateway.on("tools/call", at_first(Reply(hangs_up=True)))
    told = peer.ask("tools/call", name="x")["error"]
    assert "it may have run" in told["message"]
    assert told["data"] == {"kind": "transport"}
    assert len(gateway.of("tools/call")) == 3


def test_an_answer_that_breaks_off_reaches_nobody(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    gateway.on("tools/call", lambda asked: Reply(b'{"jsonrpc": "2.0"', is_short=True))
    assert "it may have run" in peer.ask("tools/call", name="x")["error"]["message"]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply([b": headers alone"], is_stream=True), "ended the stream before the answer"),
        (Reply(b"{", is_short=True), "it may have run"),
    ],
)
def test_what_always_breaks_off_is_sent_a_few_times_and_then_told(
    gateway: Gateway, peer: Peer, reply: Reply, told: str
) -> None:
    peer.begin()
    gateway.on("resources/read", lambda asked: reply)
    assert told in peer.ask("resources/read", uri="memo://one")["error"]["message"]
    assert len(gateway.of("resources/read")) == 1 + upstream_module.REPEATS


def test_what_is_refused_as_busy_while_all_else_is_answered_is_told_after_a_while(
    gateway: Gateway, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "PATIENCE_SECONDS", 0.3)
    peer.begin()
    gateway.on("tools/call", lambda asked: Reply(error(-32603, "busy"), 503))
    peer.request("tools/call", "busy", name="x")
    for number in itertools.count(1):
        peer.request("tools/list", number)
        if (answer := peer.next())["id"] == "busy":
            break
    assert "the hall takes no requests now: busy" in answer["error"]["message"]


def test_the_time_that_a_busy_hall_names_is_waited_for_and_one_that_is_too_long_is_told_at_once(
    gateway: Gateway, peer: Peer
) -> None:
    peer.begin()
    times: list[float] = []

    def busy(asked: Asked) -> Reply:
        times.append(time.monotonic())
        refusal = Reply(error(-32603, "stopping"), 503, {"retry-after": "1"})
        return refusal if len(times) == 1 else Reply(result(asked))

    gateway.on("tools/call", busy)
    assert "result" in peer.ask("tools/call", name="x")
    assert len(times) == 2
    assert times[1] - times[0] >= 0.9
    gateway.on("tools/call", lambda asked: Reply(error(-32603, "too many streams"), 503, {"retry-after": "10"}))
    began = time.monotonic()
    assert "too many streams" in peer.ask("tools/call", name="x")["error"]["message"]
    assert time.monotonic() - began < 9


def test_the_rest_of_a_stream_that_never_comes_is_asked_for_a_few_times(
    gateway: Gateway, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "SHORTEST_RETRY", 0.01)
    peer.begin()
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}).encode()
    gateway.on("tools/call", lambda asked: Reply([b"id: e1\nretry: 1\ndata: " + note], is_stream=True))
    gateway.on("GET", lambda asked: Reply([], is_stream=True))
    assert "ended the stream before the answer" in peer.ask("tools/call", name="x")["error"]["message"]
    rests = [asked for asked in gateway.asked if asked.headers.get("last-event-id") == "e1"]
    assert len(rests) == 1 + upstream_module.REPEATS


@pytest.mark.parametrize("status", [404, 429, 503])
def test_an_answer_that_is_refused_for_now_is_given_again(gateway: Gateway, peer: Peer, status: int) -> None:
    peer.begin()
    taken = threading.Event()

    def take(asked: Asked) -> Reply:
        if len([asked for asked in gateway.asked if asked.message and "result" in asked.message]) == 1:
            return Reply(error(-32600, "not now"), status, {} if status == 404 else {"retry-after": "1"})
        taken.set()
        return Reply(b"", 202)

    gateway.on("an answer", take)
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    assert taken.wait(10)


def test_an_answer_that_is_refused_for_good_is_told_to_people(
    gateway: Gateway, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.begin()
    gateway.on("an answer", lambda asked: Reply(error(-32600, "too large"), 413))
    peer.send({"jsonrpc": "2.0", "id": "theirs", "result": {"roots": []}})
    eventually(lambda: "an answer was not taken: HTTP status 413: too large" in caplog.text)


def test_a_hall_that_is_away_is_waited_for_once_and_then_named_at_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "PATIENCE_SECONDS", 0.2)
    gateway.close()
    peer = Peer(gateway.url)
    for _ in range(2):
        told = peer.begin()["error"]
        assert "the hall is not running: nobody listens at http://127.0.0.1:" in told["message"]
        assert told["data"] == {"kind": "unavailable", "sent": False}
    peer.end()


def test_a_stream_that_ends_before_the_answer_is_gone_on_with(gateway: Gateway, peer: Peer) -> None:
    peer.begin()
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}).encode()
    gateway.on("tools/call", lambda asked: Reply([b"id: e1\nretry: 1\ndata: " + note], is_stream=True))

    def rest(asked: Asked) -> Reply:
        if asked.headers.get("last-event-id") != "e1":
            return Reply(iter(gateway.streams.get, b""), is_stream=True)
        answer = {"jsonrpc": "2.0", "id": "long", "result": {"ok": True}}
        return Reply([b"data: " + json.dumps(answer).encode()], is_stream=True)

    gateway.on("GET", rest)
    peer.request("tools/call", "long", name="x")
    assert [peer.next().get("method"), peer.next().get("result")] == ["notifications/progress", {"ok": True}]
    gateway.on("tools/call", lambda asked: Reply([b"data: " + note], is_stream=True))
    assert "ended the stream before the answer" in peer.ask("tools/call", "cut", name="x")["error"]["message"]


def test_a_subscription_is_opened_again_and_the_gap_is_told(gateway: Gateway, peer: Peer) -> None:
    tag = {f"{META}subscriptionId": "ears"}
    params = {"notifications": {"toolsListChanged": True}, "_meta": tag}
    first = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
    events = b"data: " + json.dumps(first).encode()
    replies = iter([Reply([events], is_stream=True)])

    def listen(asked: Asked) -> Reply:
        stays = itertools.chain([events], iter(gateway.streams.get, b""))
        return next(replies, None) or Reply(stays, is_stream=True)

    gateway.on("subscriptions/listen", listen)
    peer.request("subscriptions/listen", "ears", notifications={"toolsListChanged": True}, _meta=MODERN)
    assert peer.next() == first
    assert peer.next() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": tag}}


def test_an_agent_that_stopped_reading_ends_it(gateway: Gateway) -> None:
    peer = Peer(gateway.url)
    peer.close_sink()

    def asks_in_vain() -> bool:
        peer.request("ping")
        return not peer.serving.is_alive()

    eventually(asks_in_vain)
    assert not peer.serving.is_alive()
    peer.end()


# The token --------------------------------------------------------------------------------------------------------


def test_a_token_that_lasts_is_there_while_the_database_is_locked_and_one_that_is_over_is_renewed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    is_asked, is_free = threading.Event(), threading.Event()

    def update(**values: Any) -> None:
        asked.append(1)
        is_asked.set()
        is_free.wait(10)
        raise OperationalError("database is locked")

    rows = SimpleNamespace(update=update, delete=lambda: None)
    tokens = SimpleNamespace(
        Scope=Token.Scope,
        objects=SimpleNamespace(filter=lambda **values: rows),
        make=lambda **values: (SimpleNamespace(pk=1), "gh_short"),
    )
    monkeypatch.setattr(mcp_stdio, "Token", tokens)
    monkeypatch.setattr(mcp_stdio, "user_for_token", lambda name: None)
    monkeypatch.setattr(mcp_stdio, "connection", SimpleNamespace(close=lambda: None))
    began = timezone.now()
    monkeypatch.setattr(mcp_stdio, "timezone", SimpleNamespace(now=lambda: began + passed))
    passed = timedelta()
    key = mcp_stdio.ShortToken(None, None)
    passed = timedelta(minutes=21)
    renewing = threading.Thread(target=key.renew)
    renewing.start()
    assert is_asked.wait(10)
    assert key.text == "gh_short"  # while the other thread waits for the database
    assert not is_free.is_set()
    passed += timedelta(hours=1)
    waiting = [threading.Thread(target=lambda: key.text) for _ in range(4)]
    for thread in waiting:
        thread.start()
    is_free.set()
    for thread in [renewing, *waiting]:
        thread.join(10)
    assert asked == [1]


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_the_token_goes_where_the_gateway_listens_and_not_to_what_localhost_means(
    settings: Any, host: str, address: str
) -> None:
    settings.GUILD_HALL_HOST, settings.GUILD_HALL_GATEWAY_PORT = host, 8100
    assert mcp_stdio.url_of_gateway(None) == f"http://{address}:8100/mcp"
    assert mcp_stdio.url_of_gateway("notes") == f"http://{address}:8100/mcp/notes"
