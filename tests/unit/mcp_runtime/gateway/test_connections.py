"""HTTP to members by hand: answers in every form a server may give them, and what is kept of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mcp_runtime.client import transport
from mcp_runtime.http1 import client
from mcp_runtime.http1.client import Address, Connections, Response
from mcp_runtime.protocol.errors import ConnectError, ProtocolError
from tests.support.certificates import Authority
from tests.support.resources import bytes_in, connected_sockets, entries_in

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = {"Content-Type": "application/json"}

Answer = Callable[["Talk"], Awaitable[None]]
Conversation = Callable[["World"], Awaitable[None]]


class Talk:
    """One request as the server got it, and the way to answer."""

    def __init__(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.head, self.body, self._writer = head.decode(), body, writer

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            await asyncio.sleep(0)

    async def say_at_once(self, said: bytes) -> None:
        self._writer.write(said)
        await self._writer.drain()

    @property
    def is_over(self) -> bool:
        return self._writer.is_closing()

    def hang_up(self) -> None:
        self._writer.close()

    async def gone(self) -> None:
        """When the other side is."""
        await asyncio.wait_for(self._writer.wait_closed(), 5)


class Server:
    """Answers the requests of all its connections in turn with `answers`, the last one again and again."""

    def __init__(self, *answers: bytes | Answer) -> None:
        self._answers = list(answers)
        self.heard: list[Talk] = []
        self.connections = 0
        self.lost = asyncio.Event()  # a connection ended
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
            self.lost.set()
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
                talk = Talk(head, await reader.readexactly(length), writer)
                self.heard.append(talk)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                await (talk.say(answer) if isinstance(answer, bytes) else answer(talk))


class World:
    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.connections = Connections()
        self.address = Address.of(f"http://127.0.0.1:{port}/mcp?a=b")

    async def ask(self, body: bytes | None = b"{}", verb: str = "POST", **headers: str) -> Response:
        asked = self.connections.request(self.address, verb, {**JSON, **headers}, body)
        return await asyncio.wait_for(asked, 5)

    async def text(self) -> bytes:
        response = await self.ask()
        body = await asyncio.wait_for(response.read(1_000), 5)
        response.keep()
        return body

    def open(self) -> int:
        """How many connections there are."""
        return connected_sockets(self.address.port)

    async def eventually(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def world_of(*answers: bytes | Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[World]:
    server = Server(*answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    world = World(server, listening.sockets[0].getsockname()[1])
    try:
        yield world
    finally:
        world.connections.close()
        listening.close()
        await server.end()


def run(*answers: bytes | Answer, tls: ssl.SSLContext | None = None) -> Callable[[Conversation], None]:
    """Run a conversation with a server that answers so, on the loop that the gateway has."""

    def go(conversation: Conversation) -> None:
        async def within() -> None:
            async with world_of(*answers, tls=tls) as world:
                await conversation(world)

        uvloop.run(within())

    return go


# Requests ---------------------------------------------------------------------------------------------------------


def test_a_request_carries_its_headers_its_length_and_its_body() -> None:
    @run(OK)
    async def _(world: World) -> None:
        response = await world.ask(b'{"a": 1}', X_Y="z")
        assert (response.status, response.content_type) == (200, "application/json")
        assert await response.read(10) == b"{}"
        (talk,) = world.server.heard
        lines = talk.head.splitlines()
        assert lines[0] == "POST /mcp?a=b HTTP/1.1"
        assert f"Host: 127.0.0.1:{world.address.port}" in lines
        assert {"Content-Type: application/json", "X_Y: z", "Content-Length: 8"} <= set(lines)
        assert talk.body == b'{"a": 1}'


def test_a_request_without_a_body_says_no_length() -> None:
    @run(OK)
    async def _(world: World) -> None:
        await (await world.ask(None, "GET")).read(10)
        assert "content-length" not in world.server.heard[0].head.lower()


@pytest.mark.parametrize("value", ["a\r\nX: y", "a\nX: y", "a\rb", "a\0b"])
def test_a_value_cannot_become_a_header_of_its_own(value: str) -> None:
    @run(OK)
    async def _(world: World) -> None:
        with pytest.raises(ProtocolError, match="line break"):
            await world.ask(Mcp_Session_Id=value)
        assert world.server.heard == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:20000/mcp", Address("127.0.0.1", 20000, False, "127.0.0.1:20000", "/mcp")),
        ("https://a.example", Address("a.example", 443, True, "a.example", "/")),
        ("http://[::1]:8080/x/?y=z", Address("::1", 8080, False, "[::1]:8080", "/x/?y=z")),
        ("https://me:secret@a.example/mcp#part", Address("a.example", 443, True, "a.example", "/mcp")),
    ],
)
def test_a_url_says_where_to_connect_and_what_to_ask(url: str, address: Address) -> None:
    assert Address.of(url) == address


# Answers ----------------------------------------------------------------------------------------------------------


async def _piece_by_piece(talk: Talk) -> None:
    await talk.say(*[OK[at : at + 1] for at in range(len(OK))])


async def _in_chunks(talk: Talk) -> None:
    await talk.say(CHUNKED, b"1\r\n{\r\n", b"1\r\n}\r\n", b"0\r\n\r\n")


async def _to_the_end(talk: Talk) -> None:
    await talk.say(b"HTTP/1.1 200 OK\r\n\r\n", b"{", b"}")
    talk.hang_up()


async def _after_others(talk: Talk) -> None:
    await talk.say(b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK)


@pytest.mark.parametrize("answer", [OK, _piece_by_piece, _in_chunks, _to_the_end, _after_others])
def test_a_body_is_whole_however_it_comes(answer: bytes | Answer) -> None:
    @run(answer)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"


def test_chunks_are_there_as_soon_as_the_server_says_them() -> None:
    go_on = asyncio.Event()

    async def slowly(talk: Talk) -> None:
        await talk.say(CHUNKED + b"1\r\na\r\n")
        await go_on.wait()
        await talk.say(b"1\r\nb\r\n0\r\n\r\n")

    @run(slowly)
    async def _(world: World) -> None:
        chunks = (await world.ask()).chunks()
        assert await anext(chunks) == b"a"
        go_on.set()
        assert [chunk async for chunk in chunks] == [b"b"]


def test_a_body_of_thousands_of_chunks_is_handed_on_in_as_many_parts_as_it_was_read_in() -> None:
    """A member may send each byte in a chunk of its own; what is done for each part is not done for each of them."""
    count = 20_000

    @run(CHUNKED + b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    async def _(world: World) -> None:
        response = await world.ask()
        await world.eventually(lambda: bytes_in(response) >= count)
        parts = [len(part) async for part in response.chunks()]
        assert sum(parts) == count
        assert len(parts) < 100


def test_a_head_without_a_type_has_none_and_names_of_headers_are_found_in_any_case() -> None:
    @run(b"HTTP/1.1 202 Accepted\r\nmcp-SESSION-id: s1\r\nContent-Length: 0\r\n\r\n")
    async def _(world: World) -> None:
        response = await world.ask()
        assert (response.status, response.content_type) == (202, "")
        assert response.header("Mcp-Session-Id") == "s1"
        assert response.header("X-Other") is None


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"nonsense\r\n\r\n", ProtocolError, "did not respond with HTTP"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", ProtocolError, "with HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * transport.HEAD_BYTES, ProtocolError, "headers are longer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000, ProtocolError, "headers are longer"),
    ],
)
def test_what_is_no_answer_is_an_error_of_ours(answer: bytes, error: type[Exception], text: str) -> None:
    @run(answer)
    async def _(world: World) -> None:
        with pytest.raises(error, match=text):
            await world.ask()
        await asyncio.wait_for(world.server.lost.wait(), 5)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200", OK[:-1], CHUNKED + b"1\r\n{\r\n"])
def test_a_connection_that_ends_within_an_answer_is_an_error(begun: bytes) -> None:
    async def hang_up(talk: Talk) -> None:
        await talk.say(begun)
        talk.hang_up()

    @run(hang_up)
    async def _(world: World) -> None:
        with pytest.raises(ConnectError, match="closed before the response was complete") as caught:
            await world.text()
        assert not caught.value.is_refusal


def test_an_answer_that_is_too_long_is_not_read_to_its_end() -> None:
    async def endless(talk: Talk) -> None:
        await talk.say(CHUNKED)
        while not talk.is_over:
            await talk.say(b"400\r\n" + b"x" * 1024 + b"\r\n")

    @run(endless)
    async def _(world: World) -> None:
        with pytest.raises(ProtocolError, match="larger than 1,000 bytes"):
            await world.text()
        await asyncio.wait_for(world.server.lost.wait(), 5)


def test_a_server_waits_when_nobody_reads_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BUFFERED", 100_000)
    size = 30_000_000  # more than the kernel keeps for two sockets

    async def much(talk: Talk) -> None:
        await talk.say_at_once(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)

    @run(much, OK)
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


def test_a_connection_is_used_again_when_its_answer_is_complete() -> None:
    @run(OK)
    async def _(world: World) -> None:
        assert [await world.text() for _ in range(3)] == [b"{}"] * 3
        assert world.server.connections == 1
        await asyncio.gather(*[world.text() for _ in range(3)])
        assert world.server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        OK + b"more than was asked for",
        _to_the_end,
    ],
)
def test_a_connection_is_not_used_again_when_it_cannot_be_trusted(answer: bytes | Answer) -> None:
    @run(answer, OK)
    async def _(world: World) -> None:
        assert [await world.text() for _ in range(2)] == [b"{}"] * 2
        assert world.server.connections == 2


def test_a_connection_that_idled_is_not_trusted_with_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(Connections, "_close_idle", lambda _: None)  # it is open still

    @run(OK)
    async def _(world: World) -> None:
        assert [await world.text() for _ in range(2)] == [b"{}"] * 2
        assert world.server.connections == 2


def test_a_connection_that_idled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_SECONDS", 0.3)

    @run(OK)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"
        await world.eventually(lambda: not world.open())
        await asyncio.wait_for(world.server.lost.wait(), 5)


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def once(talk: Talk) -> None:
        await talk.say(OK)
        talk.hang_up()

    @run(once, OK)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"
        await world.eventually(lambda: not world.open())
        assert await world.text() == b"{}"
        assert world.server.connections == 2


def test_who_says_something_unasked_loses_the_connection() -> None:
    async def twice(talk: Talk) -> None:
        await talk.say(OK)
        await asyncio.sleep(0.05)
        await talk.say(OK)

    @run(twice, OK)
    async def _(world: World) -> None:
        assert await world.text() == b"{}"
        await asyncio.wait_for(world.server.lost.wait(), 5)
        assert await world.text() == b"{}"
        assert world.server.connections == 2


def test_a_connection_serves_nobody_else_until_its_answer_was_found_right() -> None:
    @run(OK)
    async def _(world: World) -> None:
        response = await world.ask()
        assert await response.read(1_000) == b"{}"
        assert await world.text() == b"{}"
        assert world.server.connections == 2
        response.close()  # it was a wrong one
        await asyncio.wait_for(world.server.lost.wait(), 5)
        assert await world.text() == b"{}"
        assert world.server.connections == 2


def test_an_answer_that_nobody_checks_holds_its_connection_for_a_moment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_SECONDS", 0.02)

    @run(OK)
    async def _(world: World) -> None:
        response = await world.ask()
        assert await response.read(1_000) == b"{}"
        await world.eventually(lambda: not world.open())
        response.keep()
        assert entries_in(world.connections) == 0


def test_a_connection_serves_the_principal_alone_that_it_was_made_for() -> None:
    @run(OK)
    async def _(world: World) -> None:
        for owner, connections_then in [((1, 1), 1), ((1, 2), 2), ((2, None), 3), ((1, 1), 3)]:
            response = await world.connections.request(world.address, "POST", JSON, b"{}", owner=owner)
            assert await response.read(1_000) == b"{}"
            response.keep()
            assert world.server.connections == connections_then


def test_who_gives_up_when_the_answer_has_come_takes_no_connection_from_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next request comes to its turn between the answer and the one who asked, and gave up."""
    late: list[asyncio.Task[Any]] = []
    innocent: list[asyncio.Task[bytes]] = []
    worlds: list[World] = []
    parser = client.httptools.HttpResponseParser

    class Between:
        """Between a parser and its connection."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def on_headers_complete(self) -> None:
            if not innocent:
                innocent.append(asyncio.ensure_future(directly(worlds[0])))
            self._connection.on_headers_complete()

        def on_message_complete(self) -> None:
            self._connection.on_message_complete()
            if not late[0].done():
                late[0].cancel()

    async def directly(world: World) -> bytes:
        return await (await world.connections.request(world.address, "POST", JSON, b"{}")).read(1_000)

    monkeypatch.setattr(client.httptools, "HttpResponseParser", lambda connection: parser(Between(connection)))

    @run(OK)
    async def _(world: World) -> None:
        worlds.append(world)
        late.append(asyncio.ensure_future(world.connections.request(world.address, "POST", JSON, b"{}")))
        with pytest.raises(asyncio.CancelledError):
            await late[0]
        assert await innocent[0] == b"{}"


async def _never(talk: Talk) -> None:
    await talk.gone()


async def _head_alone(talk: Talk) -> None:
    await talk.say(CHUNKED)
    await talk.gone()


@pytest.mark.parametrize("answer", [_never, _head_alone])
def test_who_gives_up_waiting_leaves_no_connection_behind(answer: Answer) -> None:
    @run(answer)
    async def _(world: World) -> None:
        asking = asyncio.ensure_future(world.text())
        await world.eventually(lambda: bool(world.server.heard))
        await asyncio.sleep(0.02)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await world.eventually(lambda: not world.open())


def test_an_answer_that_nobody_wants_is_read_to_its_end_when_that_is_near() -> None:
    @run(CHUNKED + b"4\r\nnull\r\n0\r\n\r\n", OK)
    async def _(world: World) -> None:
        (await world.ask()).release()
        await world.eventually(lambda: any(world.connections._idle.values()))
        assert await world.text() == b"{}"
        assert world.server.connections == 1


@pytest.mark.parametrize("bound", ["MAX_DISCARDED", "DISCARD_SECONDS"])
def test_an_answer_that_nobody_wants_does_not_hold_a_connection(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, bound, 0)

    async def goes_on(talk: Talk) -> None:
        await talk.say(CHUNKED)
        await asyncio.sleep(0.02)
        await talk.say(b"1\r\na\r\n")
        await talk.gone()

    @run(goes_on)
    async def _(world: World) -> None:
        (await world.ask()).release()
        await world.eventually(lambda: not world.open())


def test_closing_an_answer_ends_who_reads_it() -> None:
    @run(_head_alone)
    async def _(world: World) -> None:
        response = await world.ask()
        reading = asyncio.ensure_future(response.read(10))
        await asyncio.sleep(0)
        response.close()
        with pytest.raises(ConnectError):
            await reading
        await world.eventually(lambda: not world.open())


def test_closing_all_ends_requests_in_progress() -> None:
    @run(_never)
    async def _(world: World) -> None:
        asking = asyncio.ensure_future(world.text())
        await world.eventually(lambda: bool(world.server.heard))
        world.connections.close()
        with pytest.raises(ConnectError):
            await asking


# TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))


def test_over_tls_a_connection_is_kept_as_well(authority: Authority, trusted: None) -> None:
    large = b"x" * 900_000

    @run(OK, b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + large, tls=authority.context())
    async def _(world: World) -> None:
        world.address = Address.of(f"https://127.0.0.1:{world.address.port}/mcp")
        assert await world.text() == b"{}"
        assert await (await world.ask(large)).read(1_000_000) == large
        assert world.server.heard[1].body == large
        assert world.server.connections == 1


@pytest.mark.parametrize("name", ["DNS:mcp.example.com", "IP:127.0.0.1"])
def test_a_server_whose_certificate_is_not_good_gets_no_request(
    name: str, authority: Authority, request: pytest.FixtureRequest
) -> None:
    if name.startswith("DNS"):
        request.getfixturevalue("trusted")  # so that the name alone is wrong

    @run(OK, tls=authority.context(name))
    async def _(world: World) -> None:
        world.address = Address.of(f"https://127.0.0.1:{world.address.port}/mcp")
        with pytest.raises(ConnectError, match="certificate"):
            await world.ask()
        assert world.server.heard == []


# No connection ----------------------------------------------------------------------------------------------------


def test_a_port_on_which_nobody_listens_is_a_refusal() -> None:
    @run(OK)
    async def _(world: World) -> None:
        listening = await asyncio.start_server(world.server.serve, "127.0.0.1", 0)
        world.address = Address.of(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp")
        listening.close()
        await listening.wait_closed()
        with pytest.raises(ConnectError, match="connection refused") as caught:
            await world.ask()
        assert caught.value.is_refusal


def test_no_connection_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT", 0.01)

    async def never(*args: Any, **kwargs: Any) -> Any:
        await asyncio.Event().wait()

    @run(OK)
    async def _(world: World) -> None:
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.asyncio, "get_running_loop", lambda: Unreachable(loop, never))
            with pytest.raises(ConnectError, match=r"no connection within 0\.01 s"):
                await world.connections.request(world.address, "POST", JSON, b"{}")


class Unreachable:
    """A loop whose connections never come to be."""

    def __init__(self, loop: asyncio.AbstractEventLoop, create_connection: Any) -> None:
        self._loop = loop
        self.create_connection = create_connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize("url", ["http://no such host/mcp", "https://127.0.0.1:{port}/mcp"])
def test_why_there_is_no_connection_is_told_without_secrets(url: str) -> None:
    async def no_tls(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hunter2-hunter2 is no TLS at all")
        writer.close()

    async def within() -> None:
        listening = await asyncio.start_server(no_tls, "127.0.0.1", 0)
        address = Address.of(url.format(port=listening.sockets[0].getsockname()[1]))
        with pytest.raises(ConnectError, match="no connection: ") as caught:
            await Connections().request(address, "POST", JSON, b"{}", secrets=["hunter2-hunter2"])
        assert not caught.value.is_refusal
        assert "hunter2" not in str(caught.value)
        listening.close()

    uvloop.run(within())
