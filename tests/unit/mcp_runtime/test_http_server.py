"""The HTTP server of gateway and web: requests in every form, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import pytest
import uvloop

from mcp_runtime.http1 import server
from mcp_runtime.http1.server import ClientDisconnectedError, Headers, HttpExchange, HttpServer, TooLargeError
from tests.support.machine import take_alone
from tests.support.resources import accepted_sockets, bytes_in

GET = b"GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
CLOSE = b"Connection: close"
LARGE = 30_000_000  # bytes; more than the kernel keeps for two sockets

Handler = Callable[[HttpExchange], Awaitable[None]]
Scenario = Callable[["World"], Awaitable[None]]


def post(body: bytes, *headers: bytes, path: bytes = b"/mcp") -> bytes:
    return head(b"Content-Length: %d" % len(body), *headers, path=path) + body


def head(*headers: bytes, verb: bytes = b"POST", path: bytes = b"/mcp") -> bytes:
    return b"\r\n".join([verb + b" " + path + b" HTTP/1.1", b"Host: a", *headers, b"", b""])


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


class HttpPeer:
    """One connection, by bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)

    async def send_in_pieces(self, *parts: bytes) -> None:
        """Send the parts with short pauses, so that they arrive one by one."""
        for part in parts:
            if not self._writer.is_closing():
                self._writer.write(part)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            await asyncio.sleep(0.002)

    async def read_reply(self, *, has_body: bool = True) -> Reply:
        async with asyncio.timeout(10):
            status_line, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()[:-1]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = b""
            if has_body and "transfer-encoding" in headers:
                while chunk := await self.chunk():
                    body += chunk
            elif has_body:
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(status_line.split()[1]), headers, body)

    async def chunk(self) -> bytes:
        async with asyncio.timeout(10):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def read_some(self) -> bytes:
        """The next bytes, as soon as there are any."""
        return await self._reader.read(65_536)

    async def read_rest(self) -> bytes:
        """All bytes until the server ends the connection."""
        data = b""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while part := await self._reader.read(65_536):
                    data += part
        return data

    def close_write_side(self) -> None:
        self._writer.write_eof()

    def hang_up(self) -> None:
        self._writer.transport.abort()


class World:
    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.server = HttpServer(self._handle)
        self.exchanges: list[HttpExchange] = []  # in the order in which they began
        self.tasks: list[asyncio.Task[Any] | None] = []  # of the same requests
        self.outcomes: list[str] = []  # the name of each handler's exception, or an empty text
        self.faults: list[Any] = []  # errors of the event loop
        self._clients: list[HttpPeer] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    async def begin(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        await self.server.start([self._listener])

    async def client(self, address: str = "127.0.0.1") -> HttpPeer:
        connection = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self._clients.append(HttpPeer(*connection))
        return self._clients[-1]

    async def ask(self, *parts: bytes) -> Reply:
        client = await self.client()
        client.send(*parts)
        return await client.read_reply()

    async def eventually(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    def count_connections(self) -> int:
        """How many connections the server has."""
        return len(accepted_sockets(self.port))

    def owners(self) -> list[str]:
        """The owners of the requests whose connections the server has."""
        ports = accepted_sockets(self.port)
        return sorted(str(exchange.owner) for exchange in self.exchanges if exchange.address[1] in ports)

    async def final_body_size(self) -> int:
        """The bytes of the first request's body in memory, when the server reads no more of it."""
        await self.eventually(lambda: self.exchanges)
        previous, size = -1, 0
        async with asyncio.timeout(10):
            while previous != size or not size:
                previous = size
                await asyncio.sleep(0.05)
                size = bytes_in(self.exchanges[0])
        return size

    async def end(self) -> None:
        for client in self._clients:
            client.hang_up()
        await self.eventually(lambda: not self.count_connections())
        await self.server.stop(5)
        await self.eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        assert self.faults == []

    async def _handle(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        self.tasks.append(asyncio.current_task())
        try:
            await self._handler(exchange)
        except BaseException as error:
            self.outcomes.append(type(error).__name__)
            raise
        self.outcomes.append("")


@contextlib.asynccontextmanager
async def world_of(handler: Handler) -> AsyncIterator[World]:
    world = World(handler)
    await world.begin()
    try:
        yield world
    finally:
        await world.end()


def run(handler: Handler) -> Callable[[Scenario], None]:
    """Run a scenario with a server that has this handler, on the gateway's kind of event loop. Nothing may remain."""

    def run_scenario(scenario: Scenario) -> None:
        async def run_in_world() -> None:
            async with world_of(handler) as world:
                await scenario(world)

        uvloop.run(run_in_world())

    return run_scenario


async def echo(exchange: HttpExchange) -> None:
    exchange.reply(200, await exchange.body(), [(b"content-type", b"text/plain")])


async def send_path(exchange: HttpExchange) -> None:
    exchange.reply(200, exchange.path.encode())


async def wait_forever(exchange: HttpExchange) -> None:
    await asyncio.Event().wait()


async def wait_until_client_leaves(exchange: HttpExchange) -> None:
    with exchange:
        await asyncio.Event().wait()


# Requests ---------------------------------------------------------------------------------------------------------


def test_a_request_has_verb_path_query_and_headers() -> None:
    @run(echo)
    async def _(world: World) -> None:
        await world.ask(post(b"", b"X-Y: Z", path=b"/mcp/a%C3%BC%2f?b=%20&c"))
        (exchange,) = world.exchanges
        assert (exchange.verb, exchange.path, exchange.query) == ("POST", "/mcp/aü/", "b=%20&c")
        assert exchange.headers == {b"host": b"a", b"content-length": b"0", b"x-y": b"Z"}


def test_repeated_headers_are_joined() -> None:
    @run(echo)
    async def _(world: World) -> None:
        await world.ask(post(b"", b"Accept: a", b"Cookie: a=b", b"accept: b, c", b"Cookie: c=d"))
        headers = world.exchanges[0].headers
        assert (headers[b"accept"], headers[b"cookie"]) == (b"a, b, c", b"a=b; c=d")


@pytest.mark.parametrize(
    "parts",
    [
        [post(b"abc")],
        [post(b"abc")[at : at + 1] for at in range(len(post(b"abc")))],
        [post(b"abc")[:-3], b"abc"],
        [head(CHUNKED), b"1\r\na\r\n", b"2;x=y\r\nbc\r\n", b"0\r\n\r\n"],
        [head(CHUNKED) + b"3\r\nabc\r\n0\r\nHost: b\r\nX-Late: y\r\n\r\n"],
        [b"\r\n\r\n" + post(b"abc")],
    ],
)
def test_a_body_is_read_whole_from_any_pieces(parts: list[bytes]) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        for _ in range(2):
            await client.send_in_pieces(*parts)
            assert (await client.read_reply()).body == b"abc"
        assert world.exchanges[0].headers[b"host"] == b"a"
        assert b"x-late" not in world.exchanges[0].headers


def test_a_large_body_is_read_only_when_the_handler_asks_for_it() -> None:
    body_requested, size = asyncio.Event(), 3_900_000

    async def read_body_late(exchange: HttpExchange) -> None:
        await body_requested.wait()
        exchange.reply(200, b"%d" % len(await exchange.body()))

    @run(read_body_late)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"x" * size), post(b"y" * size))
        assert await world.final_body_size() < 1_000_000
        body_requested.set()
        assert [(await client.read_reply()).body for _ in range(2)] == [b"%d" % size] * 2


def test_a_body_that_is_too_large_gets_an_error_and_the_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY", 100_000)

    async def read_bounded_body(exchange: HttpExchange) -> None:
        try:
            await exchange.body()
        except TooLargeError:
            exchange.reply(413)
        else:
            exchange.reply(200)

    @run(read_bounded_body)
    async def _(world: World) -> None:
        client = await world.client()
        for size, status in ((100_000, 200), (100_001, 413), (3_000_000, 413), (5, 200)):
            client.send(post(b"x" * size))
            assert (await client.read_reply()).status == status
        assert bytes_in(world.exchanges[2]) < 1_000_000


async def refuse(exchange: HttpExchange) -> None:
    """Refuse as gateway and web do: some requests before their body is read, and some with the connection's end."""
    with exchange:
        try:
            if exchange.path != "/401":
                await exchange.body()
            exchange.reply(401)
        except TooLargeError:
            exchange.is_kept_alive = exchange.path == "/413"
            exchange.reply(413)


@pytest.mark.parametrize("path", ["/401", "/413", "/413-and-close"])
@pytest.mark.parametrize("headers", [{}, {"Transfer-Encoding": "chunked"}, {"Expect": "100-continue"}])
def test_a_client_that_sends_a_large_refused_body_gets_the_refusal(path: str, headers: dict[str, str]) -> None:
    def send(port: int) -> int:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        body: Any = b"x" * 20_000_000
        parts = (body[:100_000] for _ in range(200))
        is_chunked = "Transfer-Encoding" in headers
        client.request("POST", path, parts if is_chunked else body, headers, encode_chunked=is_chunked)
        with contextlib.closing(client):
            return client.getresponse().status

    @run(refuse)
    async def _(world: World) -> None:
        assert await asyncio.to_thread(send, world.port) == int(path[1:4])
        await world.eventually(lambda: not world.count_connections())


def test_a_client_that_sends_an_endless_body_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_DISCARDED", 300_000)
    monkeypatch.setattr(server, "MAX_LINGERING", 3_000_000)

    @run(send_path)
    async def _(world: World) -> None:
        for framing, size in ((b"Content-Length: 900000000", b""), (CHUNKED, b"%x\r\n" % 900_000_000)):
            client = await world.client()
            client.send(post(b"x" * 290_000), GET)
            assert [(await client.read_reply()).status for _ in range(2)] == [200, 200]
            client.send(head(framing), size)
            assert ((await client.read_reply()).headers.get("connection") == "close") is (framing is not CHUNKED)
            await client.send_in_pieces(*[b"x" * 100_000] * 20)
            assert await client.read_rest() == b""
            assert world.count_connections() == 1
            with contextlib.suppress(ConnectionError):
                await client.send_in_pieces(*[b"x" * 100_000] * 20)
            await world.eventually(lambda: not world.count_connections())


def test_a_connection_without_its_announced_body_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.03)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(send_path)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(b"Content-Length: 5", b"Expect: 100-continue"))
        assert (await client.read_reply()).headers["connection"] == "close"
        assert await client.read_rest() == b""
        await world.eventually(lambda: not world.count_connections())


def test_a_connection_that_only_waits_to_close_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)

    @run(send_path)
    async def _(world: World) -> None:
        for _ in range(3):
            client = await world.client()
            client.send(head(b"Content-Length: 900000000"))
            assert (await client.read_reply()).status == 200
            assert await client.read_rest() == b""
            assert world.count_connections() == 1
        await asyncio.wait_for(world.server.stop(60), 5)


def test_data_after_an_oversized_body_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_DISCARDED", 100)

    @run(send_path)
    async def _(world: World) -> None:
        for data in (GET, b"nonsense\r\n\r\n"):
            client, world.exchanges = await world.client(), []
            client.send(head(CHUNKED))
            assert (await client.read_reply()).status == 200
            client.send(b"c8\r\n" + b"x" * 200 + b"\r\n0\r\n\r\n" + data)
            assert await client.read_rest() == b""
            assert len(world.exchanges) == 1


@pytest.mark.parametrize("parts", [[head(b"Content-Length: 2")], [head(b"Content-Length: 2"), b"a"]])
def test_reading_a_late_body_times_out(parts: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)

    async def time_out(exchange: HttpExchange) -> None:
        with pytest.raises(TimeoutError):
            await exchange.body()
        exchange.reply(408)

    @run(time_out)
    async def _(world: World) -> None:
        assert (await world.ask(*parts)).status == 408


def test_expect_100_continue_is_confirmed_when_the_body_is_read() -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(b"Content-Length: 2", b"Expect: 100-Continue"))
        assert (await client.read_reply()).status == 100
        client.send(b"ab")
        assert (await client.read_reply()).body == b"ab"

    @run(send_path)
    async def _(world: World) -> None:
        assert (await world.ask(head(b"Content-Length: 2", b"Expect: 100-continue"))).status == 200


@pytest.mark.parametrize("endless", [b"0\r\nX: ", b"5;"])
@pytest.mark.parametrize("handler", [echo, send_path])
def test_chunk_extensions_and_trailers_have_a_size_limit(handler: Handler, endless: bytes) -> None:
    @run(handler)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(CHUNKED) + b"1\r\na\r\n" + endless)
        if handler is send_path:
            assert (await client.read_reply()).status == 200
        await client.send_in_pieces(*[b"y" * 20_000] * 6)
        assert await client.read_rest() == b""


def test_the_framing_of_many_small_chunks_does_not_count_as_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_HEAD", 100)

    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        await client.send_in_pieces(head(CHUNKED), *[b"1\r\n", b"a", b"\r\n"] * 50, b"0\r\n\r\n")
        assert (await client.read_reply()).body == b"a" * 50


def test_reading_stops_for_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY", 100_000)
    may_reply = asyncio.Event()

    async def reply_later(exchange: HttpExchange) -> None:
        with pytest.raises(TooLargeError):
            await exchange.body()
        await may_reply.wait()
        exchange.reply(413)

    @run(reply_later)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"x" * 3_900_000))
        assert await world.final_body_size() < 1_000_000
        may_reply.set()
        assert (await client.read_reply()).status == 413


def test_pipelined_requests_are_answered_in_order() -> None:
    running = 0

    async def delay_first_reply(exchange: HttpExchange) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.02 if exchange.path == "/0" else 0)
        running -= 1
        exchange.reply(200, exchange.path.encode() + await exchange.body())

    @run(delay_first_reply)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(b"".join(post(b"%d" % number, path=b"/%d" % number) for number in range(20)))
        assert [(await client.read_reply()).body for _ in range(20)] == [
            b"/%d%d" % (number, number) for number in range(20)
        ]
        client.send(GET)
        assert (await client.read_reply()).body == b"/mcp"


def test_too_many_pipelined_requests_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PIPELINED", 10)

    @run(send_path)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET * 11)
        assert [(await client.read_reply()).status for _ in range(11)] == [200] * 11
        client.send(GET * 12)
        assert await client.read_rest() == b""


def test_requests_wait_while_the_client_reads_no_replies() -> None:
    async def send_large_reply(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * 1_000_000)

    @run(send_large_reply)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET * 100)
        await world.eventually(lambda: world.exchanges and world.exchanges[0].is_blocked)
        await world.eventually(lambda: len(world.outcomes) == len(world.exchanges))
        count = len(world.exchanges)
        client.send(GET * 10)
        await asyncio.sleep(0.02)
        assert len(world.exchanges) == count < 100
        assert [len((await client.read_reply()).body) for _ in range(110)] == [1_000_000] * 110


def test_a_pipelined_request_may_begin_before_its_body_is_complete() -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"1") + post(b"x" * 1_000_000)[:500])
        assert (await client.read_reply()).body == b"1"
        client.send(post(b"x" * 1_000_000)[500:], post(b"3"))
        assert len((await client.read_reply()).body) == 1_000_000
        assert (await client.read_reply()).body == b"3"


# Replies ----------------------------------------------------------------------------------------------------------


def test_a_reply_has_its_status_its_headers_and_its_length() -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"ab", CLOSE))
        status_line, date, *lines = (await client.read_rest()).split(b"\r\n")
        assert status_line == b"HTTP/1.1 200 OK"
        reply_date = parsedate_to_datetime(date.decode().removeprefix("date: "))
        assert abs((reply_date - datetime.now(UTC)).total_seconds()) < 60
        assert lines == [b"content-type: text/plain", b"content-length: 2", b"connection: close", b"", b"ab"]


@pytest.mark.parametrize(
    "request_",
    [post(b"ab", CLOSE), post(b"ab").replace(b"1.1", b"1.0"), head(CLOSE, CHUNKED) + b"2\r\nab\r\n0\r\n\r\n"],
)
def test_the_last_request_ends_the_connection(request_: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(request_)
        reply = await client.read_reply()
        assert (reply.headers["connection"], reply.body) == ("close", b"ab")
        assert await client.read_rest() == b""


def test_a_request_after_the_last_one_is_ignored() -> None:
    may_reply = asyncio.Event()

    async def reply_later(exchange: HttpExchange) -> None:
        await may_reply.wait()
        exchange.reply(200)

    @run(reply_later)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"", CLOSE))
        await world.eventually(lambda: world.exchanges)
        await client.send_in_pieces(GET)
        may_reply.set()
        assert (await client.read_reply()).status == 200
        assert await client.read_rest() == b""
        assert len(world.exchanges) == 1


def test_HEAD_gets_the_head_without_the_body() -> None:
    @run(send_path)
    async def _(world: World) -> None:
        client = await world.client()
        for _ in range(2):
            client.send(head(verb=b"HEAD"))
            assert (await client.read_reply(has_body=False)).headers["content-length"] == "4"


@pytest.mark.parametrize("status", [204, 304])
def test_a_reply_without_content_has_no_length(status: int) -> None:
    async def reply_without_content(exchange: HttpExchange) -> None:
        exchange.reply(status)

    @run(reply_without_content)
    async def _(world: World) -> None:
        client = await world.client()
        for _ in range(2):
            client.send(GET)
            reply = await client.read_reply()
            assert (reply.status, list(reply.headers)) == (status, ["date"])


@pytest.mark.parametrize("verb", [b"GET", b"HEAD"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("has_length", [True, False])
def test_the_framing_of_a_stream_fits_verb_version_and_length(verb: bytes, version: bytes, has_length: bool) -> None:
    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [(b"Content-Length", b"2")] if has_length else [])
        if exchange.verb != "HEAD":
            await exchange.write(b"a")
            await exchange.write(b"b")
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(CLOSE, verb=verb).replace(b"1.1", version))
        reply_head, _, body = (await client.read_rest()).partition(b"\r\n\r\n")
        is_chunked = verb == b"GET" and version == b"1.1" and not has_length
        assert (b"transfer-encoding" in reply_head) is is_chunked
        assert body == (b"" if verb == b"HEAD" else b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n" if is_chunked else b"ab")


def test_parts_of_a_stream_are_sent_at_once() -> None:
    may_continue = asyncio.Event()

    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [(b"content-type", b"text/event-stream")])
        await exchange.write(b"a" * 20)
        await may_continue.wait()
        await exchange.write(b"b")
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET)
        first_reply = await client.read_reply(has_body=False)
        assert first_reply.headers.pop("date")
        assert first_reply.headers == {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        assert await client.chunk() == b"a" * 20
        may_continue.set()
        assert [await client.chunk() for _ in range(2)] == [b"b", b""]
        client.send(GET)
        assert (await client.read_reply()).body == b"a" * 20 + b"b"


@pytest.mark.alone
def test_a_stream_waits_for_a_slow_reader() -> None:
    take_alone()
    bytes_written = 0

    async def stream(exchange: HttpExchange) -> None:
        nonlocal bytes_written
        exchange.begin(200, [])
        for _ in range(LARGE // 100_000):
            await exchange.write(b"x" * 100_000)
            bytes_written += 100_000
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET)
        await world.eventually(lambda: world.exchanges and world.exchanges[0].is_blocked)
        assert bytes_written < LARGE
        assert len((await client.read_reply()).body) == LARGE


def test_a_stream_can_wait_again_for_a_slow_reader_after_a_timeout() -> None:
    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await exchange.write(b"x" * LARGE)
        await exchange.write(b"y")
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET)
        await world.eventually(lambda: world.exchanges and world.exchanges[0].is_blocked)
        await asyncio.sleep(0.1)
        assert len((await client.read_reply()).body) == LARGE + 1


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nX: y", b"a\rb"])
def test_a_header_value_with_a_line_break_is_refused(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def inject(exchange: HttpExchange) -> None:
        headers: Headers = [(b"x-said", value)]
        if exchange.verb == "GET":
            exchange.begin(200, headers)
        exchange.reply(200, b"", headers)

    @run(inject)
    async def _(world: World) -> None:
        for request in (GET, post(b"")):
            client = await world.client()
            client.send(request)
            assert await client.read_rest() == b""
        assert world.outcomes == ["ValueError"] * 2
        assert [record.message for record in caplog.records].count("POST '/mcp' was not answered") == 1
        assert "a header contains a line break" in caplog.text


async def _raise_error(exchange: HttpExchange) -> None:
    raise LookupError("nothing here")


async def _send_half_a_stream(exchange: HttpExchange) -> None:
    exchange.begin(200, [])
    await exchange.write(b"a")
    raise LookupError("nothing here")


async def _send_nothing_back(exchange: HttpExchange) -> None:
    return


@pytest.mark.parametrize(
    ("handler", "is_logged"), [(_raise_error, True), (_send_half_a_stream, True), (_send_nothing_back, False)]
)
def test_a_handler_without_a_complete_reply_ends_the_connection(
    handler: Handler, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @run(handler)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET, GET)
        assert not (await client.read_rest()).endswith(b"0\r\n\r\n")
        assert len(world.exchanges) == 1
        assert ("nothing here" in caplog.text) is is_logged


# Clients that disconnect ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[], [b"a"]])
def test_a_client_that_disconnects_while_it_sends_ends_its_handler(parts: list[bytes]) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        await client.send_in_pieces(head(b"Content-Length: 2"), *parts)
        await world.eventually(lambda: world.exchanges)
        client.hang_up()
        await world.eventually(lambda: world.outcomes == ["ClientDisconnectedError"])


def test_a_handler_ends_when_its_client_disconnects(caplog: pytest.LogCaptureFixture) -> None:
    @run(wait_until_client_leaves)
    async def _(world: World) -> None:
        for disconnect in (HttpPeer.hang_up, HttpPeer.close_write_side):
            client, world.exchanges, world.outcomes = await world.client(), [], []
            client.send(post(b"{}"))
            await world.eventually(lambda: world.exchanges)
            disconnect(client)
            await world.eventually(lambda: world.outcomes == ["ClientDisconnectedError"])
        assert caplog.records == []


def test_work_outside_the_exchange_goes_on_when_the_client_disconnects() -> None:
    disconnected, is_finished = asyncio.Event(), False

    async def work(exchange: HttpExchange) -> None:
        nonlocal is_finished
        with exchange:
            pass
        await disconnected.wait()
        exchange.reply(200, await exchange.body())
        with pytest.raises(ClientDisconnectedError), exchange:
            pytest.fail("the client is still connected")
        is_finished = True

    @run(work)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        client.hang_up()
        await world.eventually(lambda: not world.count_connections())
        disconnected.set()
        await world.eventually(lambda: is_finished)


def test_waiting_requests_of_a_disconnected_client_do_not_begin() -> None:
    @run(wait_until_client_leaves)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"1") + post(b"2"))
        await world.eventually(lambda: world.exchanges)
        world.exchanges[0].abort()
        await world.eventually(lambda: world.outcomes == ["ClientDisconnectedError"])
        assert await client.read_rest() == b""
        assert len(world.exchanges) == 1


def test_a_disconnect_is_noticed_after_earlier_requests_too() -> None:
    async def reply_to_first_only(exchange: HttpExchange) -> None:
        if exchange.path == "/first":
            exchange.reply(200)
        else:
            await wait_until_client_leaves(exchange)

    @run(reply_to_first_only)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"1", path=b"/first") + post(b"2"))
        await world.eventually(lambda: len(world.exchanges) == 2)
        client.hang_up()
        await world.eventually(lambda: world.outcomes[-1:] == ["ClientDisconnectedError"])


def test_a_stream_ends_when_its_client_disconnects() -> None:
    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [])
        while True:
            await exchange.write(b"x" * 100_000)

    @run(stream)
    async def _(world: World) -> None:
        for is_slow in (False, True):
            world.exchanges, world.outcomes = [], []
            client = await world.client()
            client.send(GET)
            await client.read_reply(has_body=False)
            if is_slow:
                await world.eventually(lambda: world.exchanges[0].is_blocked)
            client.hang_up()
            await world.eventually(lambda: world.outcomes == ["ClientDisconnectedError"])


@pytest.mark.parametrize("is_client_lost", [False, True])
def test_a_cancelled_handler_ends_with_cancelled_error(is_client_lost: bool) -> None:
    @run(wait_until_client_leaves)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        if is_client_lost:
            world.exchanges[0].abort()  # before the task knows that it is cancelled
        cast(asyncio.Task[Any], world.tasks[0]).cancel()
        assert await client.read_rest() == b""
        assert world.outcomes == ["CancelledError"]


@pytest.mark.parametrize("is_timeout_first", [True, False])
def test_a_disconnect_at_the_moment_of_a_timeout_counts_as_a_disconnect(is_timeout_first: bool) -> None:
    deadline: asyncio.Timeout | None = None

    async def wait_with_deadline(exchange: HttpExchange) -> None:
        nonlocal deadline
        with exchange:
            async with asyncio.timeout(60) as deadline:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)

    @run(wait_with_deadline)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"{}"))
        await world.eventually(lambda: deadline is not None)
        events = [lambda: cast(asyncio.Timeout, deadline).reschedule(0), world.exchanges[0].abort]
        for fire_event in events if is_timeout_first else reversed(events):
            fire_event()  # in the next turn of the loop
        await world.eventually(lambda: world.outcomes)
        assert world.outcomes == ["ClientDisconnectedError"]


# Invalid requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\0",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/3.0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        head(b"X: y\n Z: z"),
        head(b"X: y\r\n folded"),
        head(b"X: y\rZ: z"),
        head(b"X: a\0b"),
        head(b"X y: z"),
        head(b"Content-Length : 2"),
        head(b"Content-Length: 2", b"Content-Length: 3"),
        head(b"Content-Length: 2, 2"),
        head(b"Content-Length: +2"),
        head(b"Content-Length: -2"),
        head(b"Content-Length: 99999999999999999999"),
        head(b"Content-Length: 5", CHUNKED) + b"0\r\n\r\n",
        head(CHUNKED, b"Content-Length: 5") + b"0\r\n\r\n",
        head(CHUNKED, b"Transfer-Encoding: identity"),
        head(b"Host: b"),
        head(b"Authorization: Bearer a", b"authorization: Bearer b", b"X: y"),
        head(b"Origin: http://a", b"X: y", b"Origin: http://b"),
        head(b"CONNECT", verb=b"CONNECT", path=b"a:80").replace(b"CONNECT\r\n", b"X: y\r\n"),
    ],
)
def test_ambiguous_or_invalid_requests_are_400(data: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(data)
        reply = await client.read_reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert await client.read_rest() == b""
        assert world.exchanges == []


@pytest.mark.parametrize("encoding", [b"identity", b"xchunked", b"chunked, x"])
def test_a_body_whose_length_is_unclear_is_not_accepted(encoding: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(b"Transfer-Encoding: " + encoding) + b"0\r\n\r\n")
        assert b" 200 " not in await client.read_rest()
        assert world.exchanges == []


@pytest.mark.parametrize(
    ("url", "path", "host"),
    [
        (b"http://b:1/mcp/x?members=y", "/mcp/x", b"b:1"),
        (b"HTTPS://b", "/", b"b"),
        (b"http:///mcp", "/mcp", b""),
        (b"http://b?x", "/", b"b?x"),  # no host of ours
    ],
)
def test_an_absolute_url_sets_path_and_host(url: bytes, path: str, host: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        await world.ask(post(b"", path=url))
        assert (world.exchanges[0].path, world.exchanges[0].headers[b"host"]) == (path, host)


@pytest.mark.parametrize(
    "lines",
    [b"X: " + b"y" * 65_536, b"\r\n".join(b"X%d: y" % n for n in range(20_000))],
    ids=["one long header", "many headers"],
)
def test_a_head_that_is_too_long_is_refused_even_in_one_piece(lines: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(lines))
        assert (await client.read_reply()).status == 431
        assert await client.read_rest() == b""
        assert world.exchanges == []


@pytest.mark.parametrize("path", [b"ftp://a/mcp", b"//a/mcp", b"/mcp#x", b"*"])
def test_an_unusual_path_is_not_changed(path: bytes) -> None:
    @run(send_path)
    async def _(world: World) -> None:
        assert (await world.ask(head(path=path, verb=b"OPTIONS"))).body == path


def test_a_head_that_is_too_long_is_not_read_to_its_end() -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"1"))
        assert (await client.read_reply()).body == b"1"
        await client.send_in_pieces(head()[:-2] + b"X: ", *[b"y" * 20_000] * 4)
        reply = await client.read_reply()
        assert (reply.status, b"more than 65,536 bytes" in reply.body) == (431, True)
        assert await client.read_rest() == b""


def test_too_many_headers_are_refused() -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(*[b"X: y"] * server.MAX_FIELDS))
        assert (await client.read_reply()).status == 431
        assert await client.read_rest() == b""


def test_endless_empty_lines_are_refused() -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        await client.send_in_pieces(*[b"\r\n" * 20_000] * 2)
        assert (await client.read_reply()).status == 431


@pytest.mark.parametrize("nonsense", [b"\0\0\0", head(b"Content-Length: x")])
def test_invalid_data_after_a_request_ends_the_connection(nonsense: bytes) -> None:
    @run(wait_until_client_leaves)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        client.send(nonsense)
        assert await client.read_rest() == b""
        await world.eventually(lambda: world.outcomes == ["ClientDisconnectedError"])

    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"{}") + nonsense)
        assert await client.read_rest() == b""
        assert world.exchanges == []


def test_invalid_data_in_an_unread_body_gets_no_second_reply() -> None:
    @run(send_path)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(CHUNKED))
        assert (await client.read_reply()).status == 200
        client.send(b"nonsense\r\n")
        assert await client.read_rest() == b""


@pytest.mark.parametrize("data", [b"\r\n", GET, b"nonsense"])
def test_data_in_the_same_packet_after_the_last_request_is_ignored(data: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"ab", CLOSE) + data)
        assert (await client.read_reply()).body == b"ab"
        assert await client.read_rest() == b""
        assert len(world.exchanges) == 1


@pytest.mark.parametrize("framing", [b"Content-Length: 3\r\n\r\nabc", CHUNKED + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n"])
@pytest.mark.parametrize("upgrade", [b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", b"Upgrade: h2c"])
def test_a_request_to_upgrade_is_served_over_http_1(framing: bytes, upgrade: bytes) -> None:
    request = head(b"X: y", upgrade)[:-2] + framing

    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        for parts in ([request], [request + post(b"2")], [request[:-2], request[-2:]]):
            await client.send_in_pieces(*parts)
            assert (await client.read_reply()).body == b"abc"
            if len(parts[0]) > len(request):
                assert (await client.read_reply()).body == b"2"
        assert [exchange.headers.get(b"x") for exchange in world.exchanges] == [b"y", b"y", None, b"y"]


def test_a_request_to_upgrade_without_a_body_is_served_over_http_1() -> None:
    @run(send_path)
    async def _(world: World) -> None:
        client = await world.client()
        for _ in range(2):
            client.send(head(b"Connection: upgrade", b"Upgrade: websocket", verb=b"GET", path=b"/a%20b?c"))
            assert (await client.read_reply()).body == b"/a b"
        assert [exchange.query for exchange in world.exchanges] == ["c"] * 2


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_request_to_upgrade_may_also_close_the_connection(version: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"ab", b"Connection: upgrade, close", b"Upgrade: h2c").replace(b"1.1", version))
        reply = await client.read_reply()
        assert (reply.body, reply.headers["connection"]) == (b"ab", "close")
        assert await client.read_rest() == b""


@pytest.mark.parametrize("times", [2, 4_000])
def test_pipelined_requests_to_upgrade_are_not_served(times: int) -> None:
    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(head(b"Connection: upgrade", b"Upgrade: h2c", verb=b"GET") * times)
        assert await client.read_rest() == b""
        assert world.exchanges == []


# Limits of time and memory ----------------------------------------------------------------------------------------


async def _send_nothing(client: HttpPeer) -> None:
    pass


async def _send_half_a_head(client: HttpPeer) -> None:
    client.send(GET[:-2])


async def _finish_a_request(client: HttpPeer) -> None:
    client.send(GET)
    await client.read_reply()


async def _send_half_a_head_after_a_request(client: HttpPeer) -> None:
    client.send(GET + GET[:-2])
    await client.read_reply()


async def _send_part_of_an_unread_body(client: HttpPeer) -> None:
    client.send(post(b"ab")[:-1])
    await client.read_reply()


@pytest.mark.parametrize(
    ("bound", "wait", "status"),
    [
        ("HEAD_SECONDS", _send_nothing, b""),
        ("HEAD_SECONDS", _send_half_a_head, b"HTTP/1.1 408"),
        ("IDLE_SECONDS", _finish_a_request, b""),
        ("IDLE_SECONDS", _send_half_a_head_after_a_request, b"HTTP/1.1 408"),
        ("BODY_SECONDS", _send_part_of_an_unread_body, b""),
    ],
)
def test_a_client_that_exceeds_a_time_limit_loses_the_connection(
    bound: str, wait: Callable[[HttpPeer], Awaitable[None]], status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, bound, 0.03)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(send_path)
    async def _(world: World) -> None:
        client = await world.client()
        await wait(client)
        assert (await client.read_rest())[:12] == status
        await world.eventually(lambda: world.server._check_timer is None)


def test_a_head_sent_slowly_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(echo)
    async def _(world: World) -> None:
        client = await world.client()
        trickle = asyncio.create_task(client.send_in_pieces(GET[:-2] + b"X: ", *[b"y"] * 2_000))
        assert (await client.read_reply()).status == 408
        trickle.cancel()
        await asyncio.wait([trickle])


@pytest.mark.alone
@pytest.mark.parametrize("headers", [[], [CLOSE]])
def test_a_client_that_does_not_read_a_reply_loses_its_rest(
    headers: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)
    take_alone()

    async def send_large_reply(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * LARGE)

    @run(send_large_reply)
    async def _(world: World) -> None:
        slow_client, silent_client = await world.client(), await world.client()
        for client in (slow_client, silent_client):
            client.send(head(*headers, verb=b"GET"))
        await world.eventually(lambda: len(world.outcomes) == 2)
        data = b""
        while world.count_connections() == 2:
            for _ in range(10):
                data += await slow_client.read_some()
                await asyncio.sleep(0.001)
        assert len(data) < LARGE
        assert len(data + await slow_client.read_rest()) > LARGE
        await world.eventually(lambda: not world.count_connections())


def test_time_limits_do_not_apply_while_a_handler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("HEAD_SECONDS", "IDLE_SECONDS", "BODY_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(server, bound, 0.01)

    async def reply_slowly(exchange: HttpExchange) -> None:
        await exchange.body()
        await asyncio.sleep(0.1)
        exchange.reply(200)

    @run(reply_slowly)
    async def _(world: World) -> None:
        assert (await world.ask(post(b"{}"))).status == 200


def test_idle_connections_make_room_and_busy_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)

    @run(wait_until_client_leaves)
    async def _(world: World) -> None:
        idle_client, busy_client = await world.client(), await world.client()
        busy_client.send(GET)
        await world.eventually(lambda: world.exchanges and world.count_connections() == 2)
        late_client = await world.client()
        assert await idle_client.read_rest() == b""
        late_client.send(GET)
        await world.eventually(lambda: len(world.exchanges) == 2)
        refusal = await (await world.client()).read_reply()
        assert (refusal.status, refusal.headers["retry-after"]) == (503, "2")
        assert world.count_connections() == 2
        busy_client.hang_up()
        await world.eventually(lambda: world.count_connections() == 1)
        (await world.client()).send(GET)
        await world.eventually(lambda: len(world.exchanges) == 3)


def test_connections_with_half_sent_requests_or_unread_replies_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)

    async def stream(exchange: HttpExchange) -> None:
        await exchange.body()
        exchange.begin(200, [(b"content-length", b"%d" % LARGE)] if exchange.path == "/much" else [])
        await exchange.write(b"x" * (LARGE if exchange.path == "/much" else 1))
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        head_client, body_client, unread_client = [await world.client() for _ in range(3)]
        head_client.send(GET[:-2])
        body_client.send(post(b"ab")[:-1])
        unread_client.send(head(verb=b"GET", path=b"/much"))
        await world.eventually(lambda: len(world.exchanges) == 2 and world.exchanges[-1].is_blocked)
        for _ in range(3):
            client = await world.client()
            client.send(post(b"ab"))
            assert (await client.read_reply()).status == 200
            await world.eventually(lambda: world.count_connections() == 3)
        assert await head_client.read_rest() == b""
        assert await body_client.read_rest() == b""
        assert len(await unread_client.read_rest()) < LARGE


def test_the_address_with_most_silent_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)

    @run(echo)
    async def _(world: World) -> None:
        single_client = await world.client()
        await world.eventually(lambda: world.count_connections() == 1)
        many_clients = [await world.client("127.0.0.2") for _ in range(3)]
        await world.eventually(lambda: world.count_connections() == 4)
        many_clients.append(await world.client("127.0.0.2"))
        assert await many_clients[0].read_rest() == b""
        single_client.send(post(b"ab"))
        assert (await single_client.read_reply()).body == b"ab"


def test_unread_replies_have_a_total_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BUFFERED", LARGE)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    async def reply(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * (LARGE if exchange.path == "/much" else 1))

    @run(reply)
    async def _(world: World) -> None:
        for _ in range(4):
            (await world.client()).send(head(verb=b"GET", path=b"/much"))
        await world.eventually(lambda: len(world.exchanges) == 4 and world.count_connections() <= 1)
        assert (await world.ask(GET)).body == b"x"


def test_the_owner_with_most_unread_bytes_in_total_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_BUFFERED", 2 * LARGE)
    monkeypatch.setattr(server, "BLOCKED_CHECK", 4)  # only when all four are blocked
    monkeypatch.setattr(server, "CHECK_SECONDS", 600.0)

    async def reply(exchange: HttpExchange) -> None:
        exchange.owner = exchange.path
        exchange.reply(200, b"x" * (LARGE if exchange.path == "/few" else LARGE * 2 // 3))

    @run(reply)
    async def _(world: World) -> None:
        for path in (b"/few", b"/many", b"/many", b"/many"):
            (await world.client()).send(head(verb=b"GET", path=path))
        await world.eventually(lambda: len(world.exchanges) == 4 and world.count_connections() == 2)
        assert world.owners() == ["/few", "/many"]


def test_incomplete_heads_have_a_total_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BUFFERED", 100_000)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(echo)
    async def _(world: World) -> None:
        clients = [await world.client() for _ in range(4)]
        for client in clients:
            client.send(GET[:-2] + b"X: " + b"y" * 40_000)
        await world.eventually(lambda: 0 < world.count_connections() <= 2)
        assert (await world.ask(post(b"ab"))).body == b"ab"


def test_connections_leave_files_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (100, 1000))
    assert server.max_connections() == 50
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (1_000_000, 1_000_000))
    assert server.max_connections() == server.MAX_CONNECTIONS


# The end ----------------------------------------------------------------------------------------------------------


def test_a_running_handler_may_finish_when_the_server_stops() -> None:
    may_reply = asyncio.Event()

    async def reply_later(exchange: HttpExchange) -> None:
        await may_reply.wait()
        exchange.reply(200, b"x" * 300_000)

    @run(reply_later)
    async def _(world: World) -> None:
        idle_client, busy_client = await world.client(), await world.client()
        busy_client.send(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        stop_task = asyncio.ensure_future(world.server.stop(10))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await world.client()
        may_reply.set()
        assert len((await busy_client.read_reply()).body) == 300_000
        assert await busy_client.read_rest() == await idle_client.read_rest() == b""
        await stop_task
        assert not world.count_connections()
        assert cast(asyncio.TimerHandle, world.server._check_timer).cancelled()


def test_a_handler_that_does_not_finish_is_cancelled_when_the_server_stops() -> None:
    @run(wait_forever)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        await world.server.stop(0.05)
        assert await client.read_rest() == b""
        assert world.outcomes == ["CancelledError"]


def test_a_client_that_does_not_read_is_cut_off_when_the_server_stops() -> None:
    async def send_large_reply(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * LARGE)

    @run(send_large_reply)
    async def _(world: World) -> None:
        client = await world.client()
        client.send(GET)
        await world.eventually(lambda: world.outcomes)
        await world.server.stop(0.05)
        await world.eventually(lambda: not world.count_connections())


def test_a_server_without_connections_stops_at_once() -> None:
    @run(wait_forever)
    async def _(world: World) -> None:
        await asyncio.wait_for(world.server.stop(60), 5)


@pytest.fixture(autouse=True)
def _log_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="guildhall.gateway")
