"""The HTTP client of the gateway. It reads responses in every form and uses connections again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mcp_runtime.client import exchanges
from mcp_runtime.http1 import client, names
from mcp_runtime.http1.client import Address, Connections, Response
from mcp_runtime.protocol.errors import ConnectError, ProtocolError
from tests.support.certificates import Authority
from tests.support.resources import bytes_in, connected_sockets, entries_in

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = {"Content-Type": "application/json"}

Responder = Callable[["ReceivedRequest"], Awaitable[None]]
Scenario = Callable[["World"], Awaitable[None]]


class ReceivedRequest:
    """One request that the server read, with the methods to respond."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.head, self.body, self._writer = head.decode(), body, writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            await asyncio.sleep(0)

    async def send_at_once(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    @property
    def is_closed(self) -> bool:
        return self._writer.is_closing()

    def hang_up(self) -> None:
        self._writer.close()

    async def wait_until_closed(self) -> None:
        """Wait until the client has closed the connection."""
        await asyncio.wait_for(self._writer.wait_closed(), 5)


class Server:
    """Respond to the requests of all connections with one of `responses` each, and then always with the last one."""

    def __init__(self, *responses: bytes | Responder) -> None:
        self._responses = list(responses)
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.connection_lost = asyncio.Event()  # a connection ended
        self._serving: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()
            self.connection_lost.set()
            self._serving.discard(task)

    async def end(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
                )
                request = ReceivedRequest(head, await reader.readexactly(length), writer)
                self.requests.append(request)
                response = self._responses.pop(0) if len(self._responses) > 1 else self._responses[0]
                await (request.send(response) if isinstance(response, bytes) else response(request))


class World:
    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.connections = Connections()
        self.address = Address.of(f"http://127.0.0.1:{port}/mcp?a=b")

    async def ask(self, body: bytes | None = b"{}", verb: str = "POST", **headers: str) -> Response:
        request = self.connections.request(self.address, verb, {**JSON, **headers}, body)
        return await asyncio.wait_for(request, 5)

    async def text(self) -> bytes:
        response = await self.ask()
        body = await asyncio.wait_for(response.read(1_000), 5)
        response.keep()
        return body

    def count_connections(self) -> int:
        """The number of open connections."""
        return connected_sockets(self.address.port)

    async def eventually(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def world_of(*responses: bytes | Responder, tls: ssl.SSLContext | None = None) -> AsyncIterator[World]:
    server = Server(*responses)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    world = World(server, listener.sockets[0].getsockname()[1])
    try:
        yield world
    finally:
        world.connections.close()
        listener.close()
        await server.end()


def run(*responses: bytes | Responder, tls: ssl.SSLContext | None = None) -> Callable[[Scenario], None]:
    """Run a scenario with a server that responds so, on the gateway's kind of event loop."""

    def run_scenario(scenario: Scenario) -> None:
        async def run_in_world() -> None:
            async with world_of(*responses, tls=tls) as world:
                await scenario(world)

        uvloop.run(run_in_world())

    return run_scenario


# Requests ---------------------------------------------------------------------------------------------------------


def test_a_request_has_its_headers_its_length_and_its_body() -> None:
    @run(OK)
    async def _(world: World) -> None:
        response = await world.ask(b'{"a": 1}', X_Y="z")
        assert (response.status, response.content_type) == (200, "application/json")
        assert await response.read(10) == b"{}"
        (request,) = world.server.requests
        lines = request.head.splitlines()
        assert lines[0] == "POST /mcp?a=b HTTP/1.1"
        assert f"Host: 127.0.0.1:{world.address.port}" in lines
        assert {"Content-Type: application/json", "X_Y: z", "Content-Length: 8"} <= set(lines)
        assert request.body == b'{"a": 1}'


def test_a_request_without_a_body_has_no_length() -> None:
    @run(OK)
    async def _(world: World) -> None:
        await (await world.ask(None, "GET")).read(10)
        assert "content-length" not in world.server.requests[0].head.lower()


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nX: y", "a\rb", "a\0b"])
def test_a_header_value_with_a_line_break_is_refused(value: str) -> None:
    @run(OK)
    async def _(world: World) -> None:
        with pytest.raises(ProtocolError, match="line break"):
            await world.ask(Mcp_Session_Id=value)
        assert world.server.requests == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:20000/mcp", Address("127.0.0.1", 20000, False, "127.0.0.1:20000", "/mcp")),
        ("https://a.example", Address("a.example", 443, True, "a.example", "/")),
        ("http://[::1]:8080/x/?y=z", Address("::1", 8080, False, "[::1]:8080", "/x/?y=z")),
        ("https://me:secret@a.example/mcp#part", Address("a.example", 443, True, "a.example", "/mcp")),
    ],
)
def test_a_url_is_split_into_its_parts(url: str, address: Address) -> None:
    assert Address.of(url) == address


# Responses --------------------------------------------------------------------------------------------------------


async def _respond_byte_by_byte(request: ReceivedRequest) -> None:
    await request.send(*[OK[index : index + 1] for index in range(len(OK))])


async def _respond_in_chunks(request: ReceivedRequest) -> None:
    await request.send(CHUNKED, b"1\r\n{\r\n", b"1\r\n}\r\n", b"0\r\n\r\n")


async def _respond_and_hang_up(request: ReceivedRequest) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\n\r\n", b"{", b"}")
    request.hang_up()


async def _respond_after_interim_responses(request: ReceivedRequest) -> None:
    await request.send(b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK)


@pytest.mark.parametrize(
    "response", [OK, _respond_byte_by_byte, _respond_in_chunks, _respond_and_hang_up, _respond_after_interim_responses]
)
def test_a_body_is_read_whole_from_any_pieces(response: bytes | Responder) -> None:
    @run(response)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"


def test_chunks_are_available_as_soon_as_the_server_sends_them() -> None:
    may_continue = asyncio.Event()

    async def respond_slowly(request: ReceivedRequest) -> None:
        await request.send(CHUNKED + b"1\r\na\r\n")
        await may_continue.wait()
        await request.send(b"1\r\nb\r\n0\r\n\r\n")

    @run(respond_slowly)
    async def _(world: World) -> None:
        chunks = (await world.ask()).chunks()
        assert await anext(chunks) == b"a"
        may_continue.set()
        assert [chunk async for chunk in chunks] == [b"b"]


def test_thousands_of_small_chunks_are_joined_to_few_parts() -> None:
    """A member may send each byte in its own chunk. The work for each part must not be done for each byte."""
    count = 20_000

    @run(CHUNKED + b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    async def _(world: World) -> None:
        response = await world.ask()
        await world.eventually(lambda: bytes_in(response) >= count)
        parts = [len(part) async for part in response.chunks()]
        assert sum(parts) == count
        assert len(parts) < 100


def test_the_content_type_is_optional_and_header_names_ignore_case() -> None:
    @run(b"HTTP/1.1 202 Accepted\r\nmcp-SESSION-id: s1\r\nContent-Length: 0\r\n\r\n")
    async def _(world: World) -> None:
        response = await world.ask()
        assert (response.status, response.content_type) == (202, "")
        assert response.header("Mcp-Session-Id") == "s1"
        assert response.header("X-Other") is None


@pytest.mark.parametrize(
    ("response", "error", "text"),
    [
        (b"nonsense\r\n\r\n", ProtocolError, "did not respond with HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", ProtocolError, "with HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * exchanges.HEAD_BYTES, ProtocolError, "headers are longer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, ProtocolError, "headers are longer"),
    ],
)
def test_an_invalid_response_is_a_protocol_error(response: bytes, error: type[Exception], text: str) -> None:
    @run(response)
    async def _(world: World) -> None:
        with pytest.raises(error, match=text):
            await world.ask()
        await asyncio.wait_for(world.server.connection_lost.wait(), 5)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200", OK[:-1], CHUNKED + b"1\r\n{\r\n"])
def test_a_connection_that_ends_within_a_response_is_an_error(data: bytes) -> None:
    async def hang_up(request: ReceivedRequest) -> None:
        await request.send(data)
        request.hang_up()

    @run(hang_up)
    async def _(world: World) -> None:
        with pytest.raises(ConnectError, match="closed before the response was complete") as raised:
            await world.text()
        assert not raised.value.is_refusal


def test_a_response_that_is_too_large_is_not_read_to_its_end() -> None:
    async def respond_without_end(request: ReceivedRequest) -> None:
        await request.send(CHUNKED)
        while not request.is_closed:
            await request.send(b"400\r\n" + b"x" * 1024 + b"\r\n")

    @run(respond_without_end)
    async def _(world: World) -> None:
        with pytest.raises(ProtocolError, match="larger than 1,000 bytes"):
            await world.text()
        await asyncio.wait_for(world.server.connection_lost.wait(), 5)


def test_a_server_waits_when_its_response_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BUFFERED", 100_000)
    size = 30_000_000  # more than the kernel keeps for two sockets

    async def send_large_response(request: ReceivedRequest) -> None:
        await request.send_at_once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)

    @run(send_large_response, OK)
    async def _(world: World) -> None:
        response = await world.ask()
        await world.eventually(lambda: bytes_in(response) >= 100_000 // 2)
        await asyncio.sleep(0.1)
        assert bytes_in(response) < 1_000_000
        assert sum([len(chunk) async for chunk in response.chunks()]) == size
        response.keep()
        assert await world.text() == b"{}"
        assert world.server.connections == 1


# Connections ------------------------------------------------------------------------------------------------------


def test_a_connection_is_used_again_when_its_response_is_complete() -> None:
    @run(OK)
    async def _(world: World) -> None:
        assert [await world.text() for _ in range(3)] == [b"{}"] * 3
        assert world.server.connections == 1
        await asyncio.gather(*[world.text() for _ in range(3)])
        assert world.server.connections == 3


@pytest.mark.parametrize(
    "response",
    [
        OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"more than was asked for",
        _respond_and_hang_up,
    ],
)
def test_a_connection_is_not_used_again_when_its_state_is_unclear(response: bytes | Responder) -> None:
    @run(response, OK)
    async def _(world: World) -> None:
        assert [await world.text() for _ in range(2)] == [b"{}"] * 2
        assert world.server.connections == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(Connections, "_close_idle", lambda _: None)  # it is still open

    @run(OK)
    async def _(world: World) -> None:
        assert [await world.text() for _ in range(2)] == [b"{}"] * 2
        assert world.server.connections == 2


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "IDLE_SECONDS", 0.3)

    @run(OK)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"
        await world.eventually(lambda: not world.count_connections())
        await asyncio.wait_for(world.server.connection_lost.wait(), 5)


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def respond_once(request: ReceivedRequest) -> None:
        await request.send(OK)
        request.hang_up()

    @run(respond_once, OK)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"
        await world.eventually(lambda: not world.count_connections())
        assert await world.text() == b"{}"
        assert world.server.connections == 2


def test_an_unrequested_response_ends_the_connection() -> None:
    async def respond_twice(request: ReceivedRequest) -> None:
        await request.send(OK)
        await asyncio.sleep(0.05)
        await request.send(OK)

    @run(respond_twice, OK)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"
        await asyncio.wait_for(world.server.connection_lost.wait(), 5)
        assert await world.text() == b"{}"
        assert world.server.connections == 2


def test_a_connection_is_not_shared_before_its_response_was_checked() -> None:
    @run(OK)
    async def _(world: World) -> None:
        response = await world.ask()
        assert await response.read(1_000) == b"{}"
        assert await world.text() == b"{}"
        assert world.server.connections == 2
        response.close()  # the response was wrong
        await asyncio.wait_for(world.server.connection_lost.wait(), 5)
        assert await world.text() == b"{}"
        assert world.server.connections == 2


def test_a_response_that_is_not_checked_loses_its_connection_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "IDLE_SECONDS", 0.02)

    @run(OK)
    async def _(world: World) -> None:
        response = await world.ask()
        assert await response.read(1_000) == b"{}"
        await world.eventually(lambda: not world.count_connections())
        response.keep()
        assert entries_in(world.connections) == 0


def test_a_connection_serves_only_its_own_principal() -> None:
    @run(OK)
    async def _(world: World) -> None:
        for owner, expected_connections in [((1, 1), 1), ((1, 2), 2), ((2, None), 3), ((1, 1), 3)]:
            response = await world.connections.request(world.address, "POST", JSON, b"{}", owner=owner)
            assert await response.read(1_000) == b"{}"
            response.keep()
            assert world.server.connections == expected_connections


def test_cancelling_a_request_after_its_response_does_not_affect_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next request begins after the response came and before the cancelled request ended."""
    cancelled_tasks: list[asyncio.Task[Any]] = []
    next_tasks: list[asyncio.Task[bytes]] = []
    worlds: list[World] = []
    parser = client.httptools.HttpResponseParser

    class ParserListener:
        """Stands between a parser and its connection."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def on_headers_complete(self) -> None:
            if not next_tasks:
                next_tasks.append(asyncio.ensure_future(send_next_request(worlds[0])))
            self._connection.on_headers_complete()

        def on_message_complete(self) -> None:
            self._connection.on_message_complete()
            if not cancelled_tasks[0].done():
                cancelled_tasks[0].cancel()

    async def send_next_request(world: World) -> bytes:
        return await (await world.connections.request(world.address, "POST", JSON, b"{}")).read(1_000)

    monkeypatch.setattr(client.httptools, "HttpResponseParser", lambda connection: parser(ParserListener(connection)))

    @run(OK)
    async def _(world: World) -> None:
        worlds.append(world)
        cancelled_tasks.append(asyncio.ensure_future(world.connections.request(world.address, "POST", JSON, b"{}")))
        with pytest.raises(asyncio.CancelledError):
            await cancelled_tasks[0]
        assert await next_tasks[0] == b"{}"


async def _never_respond(request: ReceivedRequest) -> None:
    await request.wait_until_closed()


async def _send_only_the_head(request: ReceivedRequest) -> None:
    await request.send(CHUNKED)
    await request.wait_until_closed()


@pytest.mark.parametrize("response", [_never_respond, _send_only_the_head])
def test_a_cancelled_request_leaves_no_connection(response: Responder) -> None:
    @run(response)
    async def _(world: World) -> None:
        task = asyncio.ensure_future(world.text())
        await world.eventually(lambda: bool(world.server.requests))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.eventually(lambda: not world.count_connections())


def test_a_released_short_response_is_read_to_its_end() -> None:
    @run(CHUNKED + b"4\r\nnull\r\n0\r\n\r\n", OK)
    async def _(world: World) -> None:
        (await world.ask()).release()
        await world.eventually(lambda: any(world.connections._idle.values()))
        assert await world.text() == b"{}"
        assert world.server.connections == 1


@pytest.mark.parametrize("bound", ["MAX_DISCARDED", "DISCARD_SECONDS"])
def test_a_released_long_response_closes_its_connection(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, bound, 0)

    async def respond_later(request: ReceivedRequest) -> None:
        await request.send(CHUNKED)
        await asyncio.sleep(0.02)
        await request.send(b"1\r\na\r\n")
        await request.wait_until_closed()

    @run(respond_later)
    async def _(world: World) -> None:
        (await world.ask()).release()
        await world.eventually(lambda: not world.count_connections())


def test_closing_a_response_ends_reading_it() -> None:
    @run(_send_only_the_head)
    async def _(world: World) -> None:
        response = await world.ask()
        read_task = asyncio.ensure_future(response.read(10))
        await asyncio.sleep(0)
        response.close()
        with pytest.raises(ConnectError):
            await read_task
        await world.eventually(lambda: not world.count_connections())


def test_closing_all_connections_ends_requests_in_progress() -> None:
    @run(_never_respond)
    async def _(world: World) -> None:
        task = asyncio.ensure_future(world.text())
        await world.eventually(lambda: bool(world.server.requests))
        world.connections.close()
        with pytest.raises(ConnectError):
            await task


# TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))


def test_a_tls_connection_is_used_again(authority: Authority, trusted: None) -> None:
    body = b"x" * 900_000

    @run(OK, b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + body, tls=authority.context())
    async def _(world: World) -> None:
        world.address = Address.of(f"https://127.0.0.1:{world.address.port}/mcp")
        assert await world.text() == b"{}"
        assert await (await world.ask(body)).read(1_000_000) == body
        assert world.server.requests[1].body == body
        assert world.server.connections == 1


@pytest.mark.parametrize("name", ["DNS:mcp.example.com", "IP:127.0.0.1"])
def test_a_server_with_an_invalid_certificate_gets_no_request(
    name: str, authority: Authority, request: pytest.FixtureRequest
) -> None:
    if name.startswith("DNS"):
        request.getfixturevalue("trusted")  # so that only the name is wrong

    @run(OK, tls=authority.context(name))
    async def _(world: World) -> None:
        world.address = Address.of(f"https://127.0.0.1:{world.address.port}/mcp")
        with pytest.raises(ConnectError, match="certificate"):
            await world.ask()
        assert world.server.requests == []


# No connection ----------------------------------------------------------------------------------------------------


def test_a_port_without_a_listener_is_a_refusal() -> None:
    @run(OK)
    async def _(world: World) -> None:
        listener = await asyncio.start_server(world.server.serve, "127.0.0.1", 0)
        world.address = Address.of(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp")
        listener.close()
        await listener.wait_closed()
        with pytest.raises(ConnectError, match="connection refused") as raised:
            await world.ask()
        assert raised.value.is_refusal


def test_no_connection_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "CONNECT_TIMEOUT", 0.01)

    async def wait_forever(*args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    @run(OK)
    async def _(world: World) -> None:
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.asyncio, "get_running_loop", lambda: UnreachableLoop(loop, wait_forever))
            with pytest.raises(ConnectError, match=r"no connection within 0\.01 s"):
                await world.connections.request(world.address, "POST", JSON, b"{}")


class UnreachableLoop:
    """An event loop whose connections never succeed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, create_connection: Any) -> None:
        self._loop = loop
        self.create_connection = create_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize("url", ["http://no such host/mcp", "https://127.0.0.1:{port}/mcp"])
def test_a_connect_error_contains_no_secrets(url: str) -> None:
    async def respond_without_tls(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hunter2-hunter2 is no TLS at all")
        writer.close()

    async def run_in_world() -> None:
        listener = await asyncio.start_server(respond_without_tls, "127.0.0.1", 0)
        address = Address.of(url.format(port=listener.sockets[0].getsockname()[1]))
        with pytest.raises(ConnectError, match="no connection: ") as raised:
            await Connections().request(address, "POST", JSON, b"{}", secrets=["hunter2-hunter2"])
        assert not raised.value.is_refusal
        assert "hunter2" not in str(raised.value)
        listener.close()

    uvloop.run(run_in_world())


class SlowNames:
    """`slow.test` is looked up forever. `quick.test` is this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.look_ups: list[str] = []
        self.over = threading.Event()
        monkeypatch.setattr(names.socket, "getaddrinfo", self._getaddrinfo)

    def _getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.look_ups.append(host)
        if host == "slow.test":
            self.over.wait(20)
            raise socket.gaierror("nobody knows it")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def slow_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    instance = SlowNames(monkeypatch)
    yield instance
    instance.over.set()


def to(host: str, world: World) -> Awaitable[Response]:
    return world.connections.request(Address.of(f"http://{host}:{world.address.port}/"), "POST", JSON, b"{}")


def test_a_name_that_is_looked_up_forever_does_not_hold_up_others(slow_names: SlowNames) -> None:
    @run(OK)
    async def _(world: World) -> None:
        slow = [asyncio.ensure_future(to("slow.test", world)) for _ in range(20)]
        await world.eventually(lambda: slow_names.look_ups)
        response = await asyncio.wait_for(to("quick.test", world), 5)
        assert await response.read(10) == b"{}"
        assert sorted(slow_names.look_ups) == ["quick.test", "slow.test"]  # one look-up for all twenty
        slow_names.over.set()
        errors = await asyncio.gather(*slow, return_exceptions=True)
        assert {str(error) for error in errors} == {"no connection: nobody knows it"}
        assert slow_names.look_ups.count("slow.test") == 1


def test_failing_all_connections_ends_attempts_to_connect(slow_names: SlowNames) -> None:
    @run(OK)
    async def _(world: World) -> None:
        request = asyncio.ensure_future(to("slow.test", world))
        await world.eventually(lambda: slow_names.look_ups)
        world.connections.close(ConnectError("it is gone"))
        with pytest.raises(ConnectError, match="it is gone"):
            await asyncio.wait_for(request, 2)
