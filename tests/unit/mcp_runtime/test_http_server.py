"""HTTP for callers by hand: requests in every form they may come in, callers who misbehave, and what stays of them."""

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
LAST = b"Connection: close"
MUCH = 30_000_000  # bytes; more than the kernel keeps for two sockets

Answer = Callable[[HttpExchange], Awaitable[None]]
Conversation = Callable[["World"], Awaitable[None]]


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

    def say(self, *parts: bytes) -> None:
        for part in parts:
            self._writer.write(part)

    async def say_apart(self, *parts: bytes) -> None:
        """Each in a piece of its own."""
        for part in parts:
            if not self._writer.is_closing():
                self._writer.write(part)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            await asyncio.sleep(0.002)

    async def hear(self, *, has_body: bool = True) -> Reply:
        async with asyncio.timeout(10):
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()[:-1]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = b""
            if has_body and "transfer-encoding" in headers:
                while chunk := await self.chunk():
                    body += chunk
            elif has_body:
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(first.split()[1]), headers, body)

    async def chunk(self) -> bytes:
        async with asyncio.timeout(10):
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def some(self) -> bytes:
        """What has come, as soon as anything has."""
        return await self._reader.read(65_536)

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        heard = b""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while part := await self._reader.read(65_536):
                    heard += part
        return heard

    def say_no_more(self) -> None:
        self._writer.write_eof()

    def hang_up(self) -> None:
        self._writer.transport.abort()


class World:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.server = HttpServer(self._answered)
        self.exchanges: list[HttpExchange] = []  # in the order in which they were begun
        self.tasks: list[asyncio.Task[Any] | None] = []  # of the same
        self.ends: list[str] = []  # of answers, by their name
        self.faults: list[Any] = []  # what the loop complains of
        self._callers: list[HttpPeer] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]

    async def begin(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        await self.server.start([self._door])

    async def caller(self, address: str = "127.0.0.1") -> HttpPeer:
        connection = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        self._callers.append(HttpPeer(*connection))
        return self._callers[-1]

    async def ask(self, *parts: bytes) -> Reply:
        caller = await self.caller()
        caller.say(*parts)
        return await caller.hear()

    async def eventually(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.002)

    def open(self) -> int:
        """How many connections the server has."""
        return len(accepted_sockets(self.port))

    def owners(self) -> list[str]:
        """Of the requests whose connections the server has."""
        there = accepted_sockets(self.port)
        return sorted(str(one.owner) for one in self.exchanges if one.address[1] in there)

    async def held_at_last(self) -> int:
        """Bytes of the body of the first request that the server keeps, when it takes no more of it."""
        await self.eventually(lambda: self.exchanges)
        before, held = -1, 0
        async with asyncio.timeout(10):
            while before != held or not held:
                before = held
                await asyncio.sleep(0.05)
                held = bytes_in(self.exchanges[0])
        return held

    async def end(self) -> None:
        for caller in self._callers:
            caller.hang_up()
        await self.eventually(lambda: not self.open())
        await self.server.stop(5)
        await self.eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        assert self.faults == []

    async def _answered(self, exchange: HttpExchange) -> None:
        self.exchanges.append(exchange)
        self.tasks.append(asyncio.current_task())
        try:
            await self._answer(exchange)
        except BaseException as error:
            self.ends.append(type(error).__name__)
            raise
        self.ends.append("")


@contextlib.asynccontextmanager
async def world_of(answer: Answer) -> AsyncIterator[World]:
    world = World(answer)
    await world.begin()
    try:
        yield world
    finally:
        await world.end()


def run(answer: Answer) -> Callable[[Conversation], None]:
    """Run a conversation with a server that answers so, on the loop that the gateway has. It leaves nothing behind."""

    def go(conversation: Conversation) -> None:
        async def within() -> None:
            async with world_of(answer) as world:
                await conversation(world)

        uvloop.run(within())

    return go


async def echo(exchange: HttpExchange) -> None:
    exchange.reply(200, await exchange.body(), [(b"content-type", b"text/plain")])


async def say_path(exchange: HttpExchange) -> None:
    exchange.reply(200, exchange.path.encode())


async def never(exchange: HttpExchange) -> None:
    await asyncio.Event().wait()


async def while_there(exchange: HttpExchange) -> None:
    with exchange:
        await asyncio.Event().wait()


# Requests ---------------------------------------------------------------------------------------------------------


def test_a_request_says_verb_path_query_and_headers() -> None:
    @run(echo)
    async def _(world: World) -> None:
        await world.ask(post(b"", b"X-Y: Z", path=b"/mcp/a%C3%BC%2f?b=%20&c"))
        (exchange,) = world.exchanges
        assert (exchange.verb, exchange.path, exchange.query) == ("POST", "/mcp/aü/", "b=%20&c")
        assert exchange.headers == {b"host": b"a", b"content-length": b"0", b"x-y": b"Z"}


def test_lines_of_one_header_are_one_list() -> None:
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
def test_a_body_is_whole_however_it_comes(parts: list[bytes]) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        for _ in range(2):
            await caller.say_apart(*parts)
            assert (await caller.hear()).body == b"abc"
        assert world.exchanges[0].headers[b"host"] == b"a"
        assert b"x-late" not in world.exchanges[0].headers


def test_a_large_body_waits_for_who_asks_for_it() -> None:
    asked, size = asyncio.Event(), 3_900_000

    async def late(exchange: HttpExchange) -> None:
        await asked.wait()
        exchange.reply(200, b"%d" % len(await exchange.body()))

    @run(late)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"x" * size), post(b"y" * size))
        assert await world.held_at_last() < 1_000_000
        asked.set()
        assert [(await caller.hear()).body for _ in range(2)] == [b"%d" % size] * 2


def test_a_body_that_is_too_large_gets_an_error_and_the_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY", 100_000)

    async def bounded(exchange: HttpExchange) -> None:
        try:
            await exchange.body()
        except TooLargeError:
            exchange.reply(413)
        else:
            exchange.reply(200)

    @run(bounded)
    async def _(world: World) -> None:
        caller = await world.caller()
        for size, status in ((100_000, 200), (100_001, 413), (3_000_000, 413), (5, 200)):
            caller.say(post(b"x" * size))
            assert (await caller.hear()).status == status
        assert bytes_in(world.exchanges[2]) < 1_000_000


async def refuse(exchange: HttpExchange) -> None:
    """As gateway and web do: some before they read the body, and some for the last time."""
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
def test_who_sends_much_more_than_is_wanted_hears_that_it_is_refused(path: str, headers: dict[str, str]) -> None:
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
        await world.eventually(lambda: not world.open())


def test_who_sends_on_and_on_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_DISCARDED", 300_000)
    monkeypatch.setattr(server, "MAX_LINGERING", 3_000_000)

    @run(say_path)
    async def _(world: World) -> None:
        for framing, size in ((b"Content-Length: 900000000", b""), (CHUNKED, b"%x\r\n" % 900_000_000)):
            caller = await world.caller()
            caller.say(post(b"x" * 290_000), GET)
            assert [(await caller.hear()).status for _ in range(2)] == [200, 200]
            caller.say(head(framing), size)
            assert ((await caller.hear()).headers.get("connection") == "close") is (framing is not CHUNKED)
            await caller.say_apart(*[b"x" * 100_000] * 20)
            assert await caller.rest() == b""
            assert world.open() == 1
            with contextlib.suppress(ConnectionError):
                await caller.say_apart(*[b"x" * 100_000] * 20)
            await world.eventually(lambda: not world.open())


def test_who_sends_nothing_more_has_a_while_to_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.03)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(say_path)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(b"Content-Length: 5", b"Expect: 100-continue"))
        assert (await caller.hear()).headers["connection"] == "close"
        assert await caller.rest() == b""
        await world.eventually(lambda: not world.open())


def test_who_was_answered_for_the_last_time_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)

    @run(say_path)
    async def _(world: World) -> None:
        for _ in range(3):
            caller = await world.caller()
            caller.say(head(b"Content-Length: 900000000"))
            assert (await caller.hear()).status == 200
            assert await caller.rest() == b""
            assert world.open() == 1
        await asyncio.wait_for(world.server.stop(60), 5)


def test_what_follows_too_much_of_a_body_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_DISCARDED", 100)

    @run(say_path)
    async def _(world: World) -> None:
        for more in (GET, b"nonsense\r\n\r\n"):
            caller, world.exchanges = await world.caller(), []
            caller.say(head(CHUNKED))
            assert (await caller.hear()).status == 200
            caller.say(b"c8\r\n" + b"x" * 200 + b"\r\n0\r\n\r\n" + more)
            assert await caller.rest() == b""
            assert len(world.exchanges) == 1


@pytest.mark.parametrize("parts", [[head(b"Content-Length: 2")], [head(b"Content-Length: 2"), b"a"]])
def test_a_body_that_does_not_come_in_time_is_not_waited_for(
    parts: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.05)

    async def impatient(exchange: HttpExchange) -> None:
        with pytest.raises(TimeoutError):
            await exchange.body()
        exchange.reply(408)

    @run(impatient)
    async def _(world: World) -> None:
        assert (await world.ask(*parts)).status == 408


def test_who_waits_for_a_word_before_the_body_gets_it_when_the_body_is_wanted() -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(b"Content-Length: 2", b"Expect: 100-Continue"))
        assert (await caller.hear()).status == 100
        caller.say(b"ab")
        assert (await caller.hear()).body == b"ab"

    @run(say_path)
    async def _(world: World) -> None:
        assert (await world.ask(head(b"Content-Length: 2", b"Expect: 100-continue"))).status == 200


@pytest.mark.parametrize("endless", [b"0\r\nX: ", b"5;"])
@pytest.mark.parametrize("answer", [echo, say_path])
def test_what_is_said_around_a_body_has_a_bound(answer: Answer, endless: bytes) -> None:
    @run(answer)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(CHUNKED) + b"1\r\na\r\n" + endless)
        if answer is say_path:
            assert (await caller.hear()).status == 200
        await caller.say_apart(*[b"y" * 20_000] * 6)
        assert await caller.rest() == b""


def test_many_small_parts_of_a_body_are_no_long_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_HEAD", 100)

    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        await caller.say_apart(head(CHUNKED), *[b"1\r\n", b"a", b"\r\n"] * 50, b"0\r\n\r\n")
        assert (await caller.hear()).body == b"a" * 50


def test_no_more_is_read_of_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY", 100_000)
    go_on = asyncio.Event()

    async def slow(exchange: HttpExchange) -> None:
        with pytest.raises(TooLargeError):
            await exchange.body()
        await go_on.wait()
        exchange.reply(413)

    @run(slow)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"x" * 3_900_000))
        assert await world.held_at_last() < 1_000_000
        go_on.set()
        assert (await caller.hear()).status == 413


def test_requests_that_come_before_their_turn_are_answered_in_order() -> None:
    running = 0

    async def slow_at_first(exchange: HttpExchange) -> None:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.02 if exchange.path == "/0" else 0)
        running -= 1
        exchange.reply(200, exchange.path.encode() + await exchange.body())

    @run(slow_at_first)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(b"".join(post(b"%d" % number, path=b"/%d" % number) for number in range(20)))
        assert [(await caller.hear()).body for _ in range(20)] == [b"/%d%d" % (one, one) for one in range(20)]
        caller.say(GET)
        assert (await caller.hear()).body == b"/mcp"


def test_more_requests_at_once_than_can_wait_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PIPELINED", 10)

    @run(say_path)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET * 11)
        assert [(await caller.hear()).status for _ in range(11)] == [200] * 11
        caller.say(GET * 12)
        assert await caller.rest() == b""


def test_who_reads_no_replies_gets_no_more_answers() -> None:
    async def large(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * 1_000_000)

    @run(large)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET * 100)
        await world.eventually(lambda: world.exchanges and world.exchanges[0].is_blocked)
        await world.eventually(lambda: len(world.ends) == len(world.exchanges))
        begun = len(world.exchanges)
        caller.say(GET * 10)
        await asyncio.sleep(0.02)
        assert len(world.exchanges) == begun < 100
        assert [len((await caller.hear()).body) for _ in range(110)] == [1_000_000] * 110


def test_a_body_may_still_be_coming_when_its_request_is_next() -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"1") + post(b"x" * 1_000_000)[:500])
        assert (await caller.hear()).body == b"1"
        caller.say(post(b"x" * 1_000_000)[500:], post(b"3"))
        assert len((await caller.hear()).body) == 1_000_000
        assert (await caller.hear()).body == b"3"


# Replies ----------------------------------------------------------------------------------------------------------


def test_a_reply_has_its_status_its_headers_and_its_length() -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"ab", LAST))
        first, date, *lines = (await caller.rest()).split(b"\r\n")
        assert first == b"HTTP/1.1 200 OK"
        said = parsedate_to_datetime(date.decode().removeprefix("date: "))
        assert abs((said - datetime.now(UTC)).total_seconds()) < 60
        assert lines == [b"content-type: text/plain", b"content-length: 2", b"connection: close", b"", b"ab"]


@pytest.mark.parametrize(
    "request_",
    [post(b"ab", LAST), post(b"ab").replace(b"1.1", b"1.0"), head(LAST, CHUNKED) + b"2\r\nab\r\n0\r\n\r\n"],
)
def test_a_request_that_is_the_last_one_ends_the_connection(request_: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(request_)
        reply = await caller.hear()
        assert (reply.headers["connection"], reply.body) == ("close", b"ab")
        assert await caller.rest() == b""


def test_what_comes_behind_the_last_request_is_not_heard() -> None:
    go_on = asyncio.Event()

    async def wait(exchange: HttpExchange) -> None:
        await go_on.wait()
        exchange.reply(200)

    @run(wait)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"", LAST))
        await world.eventually(lambda: world.exchanges)
        await caller.say_apart(GET)
        go_on.set()
        assert (await caller.hear()).status == 200
        assert await caller.rest() == b""
        assert len(world.exchanges) == 1


def test_a_head_alone_is_what_HEAD_asks_for() -> None:
    @run(say_path)
    async def _(world: World) -> None:
        caller = await world.caller()
        for _ in range(2):
            caller.say(head(verb=b"HEAD"))
            assert (await caller.hear(has_body=False)).headers["content-length"] == "4"


@pytest.mark.parametrize("status", [204, 304])
def test_what_has_no_content_has_no_length(status: int) -> None:
    async def nothing(exchange: HttpExchange) -> None:
        exchange.reply(status)

    @run(nothing)
    async def _(world: World) -> None:
        caller = await world.caller()
        for _ in range(2):
            caller.say(GET)
            reply = await caller.hear()
            assert (reply.status, list(reply.headers)) == (status, ["date"])


@pytest.mark.parametrize("verb", [b"GET", b"HEAD"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("has_length", [True, False])
def test_a_stream_ends_as_its_client_can_know_it(verb: bytes, version: bytes, has_length: bool) -> None:
    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [(b"Content-Length", b"2")] if has_length else [])
        if exchange.verb != "HEAD":
            await exchange.write(b"a")
            await exchange.write(b"b")
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(LAST, verb=verb).replace(b"1.1", version))
        said, _, body = (await caller.rest()).partition(b"\r\n\r\n")
        is_chunked = verb == b"GET" and version == b"1.1" and not has_length
        assert (b"transfer-encoding" in said) is is_chunked
        assert body == (b"" if verb == b"HEAD" else b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n" if is_chunked else b"ab")


def test_a_stream_is_heard_as_it_is_said() -> None:
    go_on = asyncio.Event()

    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [(b"content-type", b"text/event-stream")])
        await exchange.write(b"a" * 20)
        await go_on.wait()
        await exchange.write(b"b")
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET)
        begun = await caller.hear(has_body=False)
        assert begun.headers.pop("date")
        assert begun.headers == {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        assert await caller.chunk() == b"a" * 20
        go_on.set()
        assert [await caller.chunk() for _ in range(2)] == [b"b", b""]
        caller.say(GET)
        assert (await caller.hear()).body == b"a" * 20 + b"b"


@pytest.mark.alone
def test_who_reads_slowly_is_waited_for() -> None:
    take_alone()
    written = 0

    async def stream(exchange: HttpExchange) -> None:
        nonlocal written
        exchange.begin(200, [])
        for _ in range(MUCH // 100_000):
            await exchange.write(b"x" * 100_000)
            written += 100_000
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET)
        await world.eventually(lambda: world.exchanges and world.exchanges[0].is_blocked)
        assert written < MUCH
        assert len((await caller.hear()).body) == MUCH


def test_who_gave_up_waiting_for_a_slow_reader_can_wait_again() -> None:
    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await exchange.write(b"x" * MUCH)
        await exchange.write(b"y")
        exchange.end()

    @run(stream)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET)
        await world.eventually(lambda: world.exchanges and world.exchanges[0].is_blocked)
        await asyncio.sleep(0.1)
        assert len((await caller.hear()).body) == MUCH + 1


@pytest.mark.parametrize("value", [b"a\r\nX: y", b"a\nX: y", b"a\rb"])
def test_a_value_cannot_become_a_header_of_its_own(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def inject(exchange: HttpExchange) -> None:
        headers: Headers = [(b"x-said", value)]
        if exchange.verb == "GET":
            exchange.begin(200, headers)
        exchange.reply(200, b"", headers)

    @run(inject)
    async def _(world: World) -> None:
        for asked in (GET, post(b"")):
            caller = await world.caller()
            caller.say(asked)
            assert await caller.rest() == b""
        assert world.ends == ["ValueError"] * 2
        assert [record.message for record in caplog.records].count("POST '/mcp' was not answered") == 1
        assert "a header contains a line break" in caplog.text


async def _raise(exchange: HttpExchange) -> None:
    raise LookupError("nothing here")


async def _half(exchange: HttpExchange) -> None:
    exchange.begin(200, [])
    await exchange.write(b"a")
    raise LookupError("nothing here")


async def _nothing(exchange: HttpExchange) -> None:
    return


@pytest.mark.parametrize(("answer", "is_told"), [(_raise, True), (_half, True), (_nothing, False)])
def test_an_answer_that_is_none_ends_the_connection(
    answer: Answer, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @run(answer)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET, GET)
        assert not (await caller.rest()).endswith(b"0\r\n\r\n")
        assert len(world.exchanges) == 1
        assert ("nothing here" in caplog.text) is is_told


# Callers who go away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[], [b"a"]])
def test_who_goes_away_while_sending_is_gone(parts: list[bytes]) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        await caller.say_apart(head(b"Content-Length: 2"), *parts)
        await world.eventually(lambda: world.exchanges)
        caller.hang_up()
        await world.eventually(lambda: world.ends == ["ClientDisconnectedError"])


def test_work_for_somebody_ends_when_they_go_away(caplog: pytest.LogCaptureFixture) -> None:
    @run(while_there)
    async def _(world: World) -> None:
        for leave in (HttpPeer.hang_up, HttpPeer.say_no_more):
            caller, world.exchanges, world.ends = await world.caller(), [], []
            caller.say(post(b"{}"))
            await world.eventually(lambda: world.exchanges)
            leave(caller)
            await world.eventually(lambda: world.ends == ["ClientDisconnectedError"])
        assert caplog.records == []


def test_work_for_others_goes_on_when_its_caller_goes_away() -> None:
    gone, done = asyncio.Event(), False

    async def work(exchange: HttpExchange) -> None:
        nonlocal done
        with exchange:
            pass
        await gone.wait()
        exchange.reply(200, await exchange.body())
        with pytest.raises(ClientDisconnectedError), exchange:
            pytest.fail("nobody is there")
        done = True

    @run(work)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        caller.hang_up()
        await world.eventually(lambda: not world.open())
        gone.set()
        await world.eventually(lambda: done)


def test_the_requests_of_who_is_gone_are_not_begun() -> None:
    @run(while_there)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"1") + post(b"2"))
        await world.eventually(lambda: world.exchanges)
        world.exchanges[0].abort()
        await world.eventually(lambda: world.ends == ["ClientDisconnectedError"])
        assert await caller.rest() == b""
        assert len(world.exchanges) == 1


def test_who_goes_away_is_missed_behind_earlier_requests_too() -> None:
    async def first_at_once(exchange: HttpExchange) -> None:
        if exchange.path == "/first":
            exchange.reply(200)
        else:
            await while_there(exchange)

    @run(first_at_once)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"1", path=b"/first") + post(b"2"))
        await world.eventually(lambda: len(world.exchanges) == 2)
        caller.hang_up()
        await world.eventually(lambda: world.ends[-1:] == ["ClientDisconnectedError"])


def test_a_stream_ends_when_nobody_hears_it() -> None:
    async def stream(exchange: HttpExchange) -> None:
        exchange.begin(200, [])
        while True:
            await exchange.write(b"x" * 100_000)

    @run(stream)
    async def _(world: World) -> None:
        for is_slow in (False, True):
            world.exchanges, world.ends = [], []
            caller = await world.caller()
            caller.say(GET)
            await caller.hear(has_body=False)
            if is_slow:
                await world.eventually(lambda: world.exchanges[0].is_blocked)
            caller.hang_up()
            await world.eventually(lambda: world.ends == ["ClientDisconnectedError"])


@pytest.mark.parametrize("is_caller_lost", [False, True])
def test_who_is_cancelled_by_others_is_cancelled(is_caller_lost: bool) -> None:
    @run(while_there)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        if is_caller_lost:
            world.exchanges[0].abort()  # before the task knows that it is cancelled
        cast(asyncio.Task[Any], world.tasks[0]).cancel()
        assert await caller.rest() == b""
        assert world.ends == ["CancelledError"]


@pytest.mark.parametrize("is_late_first", [True, False])
def test_who_goes_away_at_the_last_moment_is_gone_and_not_late(is_late_first: bool) -> None:
    deadline: asyncio.Timeout | None = None

    async def bounded(exchange: HttpExchange) -> None:
        nonlocal deadline
        with exchange:
            async with asyncio.timeout(60) as deadline:
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)

    @run(bounded)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"{}"))
        await world.eventually(lambda: deadline is not None)
        moves = [lambda: cast(asyncio.Timeout, deadline).reschedule(0), world.exchanges[0].abort]
        for move in moves if is_late_first else reversed(moves):
            move()  # in the next turn of the loop
        await world.eventually(lambda: world.ends)
        assert world.ends == ["ClientDisconnectedError"]


# What is no request -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
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
def test_what_could_mean_two_things_means_nothing(said: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(said)
        reply = await caller.hear()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert await caller.rest() == b""
        assert world.exchanges == []


@pytest.mark.parametrize("encoding", [b"identity", b"xchunked", b"chunked, x"])
def test_a_body_whose_length_is_unclear_is_not_accepted(encoding: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(b"Transfer-Encoding: " + encoding) + b"0\r\n\r\n")
        assert b" 200 " not in await caller.rest()
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
def test_an_address_as_for_proxies_is_its_path_and_says_the_host(url: bytes, path: str, host: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        await world.ask(post(b"", path=url))
        assert (world.exchanges[0].path, world.exchanges[0].headers[b"host"]) == (path, host)


@pytest.mark.parametrize(
    "long", [b"X: " + b"y" * 65_536, b"\r\n".join(b"X%d: y" % n for n in range(20_000))], ids=["one", "many"]
)
def test_a_head_that_is_too_long_is_refused_though_it_comes_in_one_piece(long: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(long))
        assert (await caller.hear()).status == 431
        assert await caller.rest() == b""
        assert world.exchanges == []


@pytest.mark.parametrize("path", [b"ftp://a/mcp", b"//a/mcp", b"/mcp#x", b"*"])
def test_a_path_is_what_was_sent(path: bytes) -> None:
    @run(say_path)
    async def _(world: World) -> None:
        assert (await world.ask(head(path=path, verb=b"OPTIONS"))).body == path


def test_a_head_that_is_too_long_is_not_read_to_its_end() -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"1"))
        assert (await caller.hear()).body == b"1"
        await caller.say_apart(head()[:-2] + b"X: ", *[b"y" * 20_000] * 4)
        reply = await caller.hear()
        assert (reply.status, b"more than 65,536 bytes" in reply.body) == (431, True)
        assert await caller.rest() == b""


def test_more_headers_than_anybody_has_are_refused() -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(*[b"X: y"] * server.MAX_FIELDS))
        assert (await caller.hear()).status == 431
        assert await caller.rest() == b""


def test_empty_lines_are_no_way_to_stay() -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        await caller.say_apart(*[b"\r\n" * 20_000] * 2)
        assert (await caller.hear()).status == 431


@pytest.mark.parametrize("nonsense", [b"\0\0\0", head(b"Content-Length: x")])
def test_nonsense_behind_a_request_ends_the_connection(nonsense: bytes) -> None:
    @run(while_there)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        caller.say(nonsense)
        assert await caller.rest() == b""
        await world.eventually(lambda: world.ends == ["ClientDisconnectedError"])

    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"{}") + nonsense)
        assert await caller.rest() == b""
        assert world.exchanges == []


def test_nonsense_in_a_body_that_nobody_wants_has_no_reply_of_its_own() -> None:
    @run(say_path)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(CHUNKED))
        assert (await caller.hear()).status == 200
        caller.say(b"nonsense\r\n")
        assert await caller.rest() == b""


@pytest.mark.parametrize("more", [b"\r\n", GET, b"nonsense"])
def test_what_comes_with_the_last_request_is_not_heard(more: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"ab", LAST) + more)
        assert (await caller.hear()).body == b"ab"
        assert await caller.rest() == b""
        assert len(world.exchanges) == 1


@pytest.mark.parametrize("framing", [b"Content-Length: 3\r\n\r\nabc", CHUNKED + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n"])
@pytest.mark.parametrize("upgrade", [b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c", b"Upgrade: h2c"])
def test_who_asks_for_another_protocol_is_served_in_this_one(framing: bytes, upgrade: bytes) -> None:
    asked = head(b"X: y", upgrade)[:-2] + framing

    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        for parts in ([asked], [asked + post(b"2")], [asked[:-2], asked[-2:]]):
            await caller.say_apart(*parts)
            assert (await caller.hear()).body == b"abc"
            if len(parts[0]) > len(asked):
                assert (await caller.hear()).body == b"2"
        assert [exchange.headers.get(b"x") for exchange in world.exchanges] == [b"y", b"y", None, b"y"]


def test_who_asks_for_another_protocol_without_a_body_is_served_in_this_one() -> None:
    @run(say_path)
    async def _(world: World) -> None:
        caller = await world.caller()
        for _ in range(2):
            caller.say(head(b"Connection: upgrade", b"Upgrade: websocket", verb=b"GET", path=b"/a%20b?c"))
            assert (await caller.hear()).body == b"/a b"
        assert [exchange.query for exchange in world.exchanges] == ["c"] * 2


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_who_asks_for_another_protocol_may_ask_for_the_end_as_well(version: bytes) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"ab", b"Connection: upgrade, close", b"Upgrade: h2c").replace(b"1.1", version))
        reply = await caller.hear()
        assert (reply.body, reply.headers["connection"]) == (b"ab", "close")
        assert await caller.rest() == b""


@pytest.mark.parametrize("times", [2, 4_000])
def test_who_asks_for_another_protocol_again_and_again_is_not_served(times: int) -> None:
    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(head(b"Connection: upgrade", b"Upgrade: h2c", verb=b"GET") * times)
        assert await caller.rest() == b""
        assert world.exchanges == []


# Time and room ----------------------------------------------------------------------------------------------------


async def _silent(caller: HttpPeer) -> None:
    pass


async def _with_half_a_head(caller: HttpPeer) -> None:
    caller.say(GET[:-2])


async def _after_a_request(caller: HttpPeer) -> None:
    caller.say(GET)
    await caller.hear()


async def _with_half_a_head_after_a_request(caller: HttpPeer) -> None:
    caller.say(GET + GET[:-2])
    await caller.hear()


async def _within_a_body_that_nobody_wants(caller: HttpPeer) -> None:
    caller.say(post(b"ab")[:-1])
    await caller.hear()


@pytest.mark.parametrize(
    ("bound", "wait", "status"),
    [
        ("HEAD_SECONDS", _silent, b""),
        ("HEAD_SECONDS", _with_half_a_head, b"HTTP/1.1 408"),
        ("IDLE_SECONDS", _after_a_request, b""),
        ("IDLE_SECONDS", _with_half_a_head_after_a_request, b"HTTP/1.1 408"),
        ("BODY_SECONDS", _within_a_body_that_nobody_wants, b""),
    ],
)
def test_who_lets_others_wait_loses_the_connection(
    bound: str, wait: Callable[[HttpPeer], Awaitable[None]], status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, bound, 0.03)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(say_path)
    async def _(world: World) -> None:
        caller = await world.caller()
        await wait(caller)
        assert (await caller.rest())[:12] == status
        await world.eventually(lambda: world.server._check_timer is None)


def test_a_head_that_trickles_in_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(echo)
    async def _(world: World) -> None:
        caller = await world.caller()
        trickle = asyncio.create_task(caller.say_apart(GET[:-2] + b"X: ", *[b"y"] * 2_000))
        assert (await caller.hear()).status == 408
        trickle.cancel()
        await asyncio.wait([trickle])


@pytest.mark.alone
@pytest.mark.parametrize("headers", [[], [LAST]])
def test_who_does_not_read_a_reply_loses_the_rest_of_it(headers: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)
    take_alone()

    async def much(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * MUCH)

    @run(much)
    async def _(world: World) -> None:
        slow, silent = await world.caller(), await world.caller()
        for caller in (slow, silent):
            caller.say(head(*headers, verb=b"GET"))
        await world.eventually(lambda: len(world.ends) == 2)
        heard = b""
        while world.open() == 2:
            for _ in range(10):
                heard += await slow.some()
                await asyncio.sleep(0.001)
        assert len(heard) < MUCH
        assert len(heard + await slow.rest()) > MUCH
        await world.eventually(lambda: not world.open())


def test_who_is_being_answered_is_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("HEAD_SECONDS", "IDLE_SECONDS", "BODY_SECONDS", "CHECK_SECONDS"):
        monkeypatch.setattr(server, bound, 0.01)

    async def slow(exchange: HttpExchange) -> None:
        await exchange.body()
        await asyncio.sleep(0.1)
        exchange.reply(200)

    @run(slow)
    async def _(world: World) -> None:
        assert (await world.ask(post(b"{}"))).status == 200


def test_idle_connections_make_room_and_busy_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 2)

    @run(while_there)
    async def _(world: World) -> None:
        idle, busy = await world.caller(), await world.caller()
        busy.say(GET)
        await world.eventually(lambda: world.exchanges and world.open() == 2)
        later = await world.caller()
        assert await idle.rest() == b""
        later.say(GET)
        await world.eventually(lambda: len(world.exchanges) == 2)
        refused = await (await world.caller()).hear()
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert world.open() == 2
        busy.hang_up()
        await world.eventually(lambda: world.open() == 1)
        (await world.caller()).say(GET)
        await world.eventually(lambda: len(world.exchanges) == 3)


def test_half_sent_requests_and_unread_replies_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)

    async def answer(exchange: HttpExchange) -> None:
        await exchange.body()
        exchange.begin(200, [(b"content-length", b"%d" % MUCH)] if exchange.path == "/much" else [])
        await exchange.write(b"x" * (MUCH if exchange.path == "/much" else 1))
        exchange.end()

    @run(answer)
    async def _(world: World) -> None:
        head_, body, unread = [await world.caller() for _ in range(3)]
        head_.say(GET[:-2])
        body.say(post(b"ab")[:-1])
        unread.say(head(verb=b"GET", path=b"/much"))
        await world.eventually(lambda: len(world.exchanges) == 2 and world.exchanges[-1].is_blocked)
        for _ in range(3):
            caller = await world.caller()
            caller.say(post(b"ab"))
            assert (await caller.hear()).status == 200
            await world.eventually(lambda: world.open() == 3)
        assert await head_.rest() == b""
        assert await body.rest() == b""
        assert len(await unread.rest()) < MUCH


def test_the_address_with_most_silent_connections_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)

    @run(echo)
    async def _(world: World) -> None:
        patient = await world.caller()
        await world.eventually(lambda: world.open() == 1)
        crowd = [await world.caller("127.0.0.2") for _ in range(3)]
        await world.eventually(lambda: world.open() == 4)
        crowd.append(await world.caller("127.0.0.2"))
        assert await crowd[0].rest() == b""
        patient.say(post(b"ab"))
        assert (await patient.hear()).body == b"ab"


def test_replies_that_nobody_reads_have_a_bound_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BUFFERED", MUCH)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    async def much(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * (MUCH if exchange.path == "/much" else 1))

    @run(much)
    async def _(world: World) -> None:
        for _ in range(4):
            (await world.caller()).say(head(verb=b"GET", path=b"/much"))
        await world.eventually(lambda: len(world.exchanges) == 4 and world.open() <= 1)
        assert (await world.ask(GET)).body == b"x"


@pytest.mark.alone
def test_who_leaves_most_unread_in_all_makes_room_though_another_has_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_BUFFERED", 2 * MUCH)
    monkeypatch.setattr(server, "BLOCKED_CHECK", 1_000_000)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.5)
    take_alone()

    async def much(exchange: HttpExchange) -> None:
        exchange.owner = exchange.path
        exchange.reply(200, b"x" * (MUCH if exchange.path == "/few" else MUCH * 2 // 3))

    @run(much)
    async def _(world: World) -> None:
        for path in (b"/few", b"/many", b"/many", b"/many"):
            (await world.caller()).say(head(verb=b"GET", path=path))
        await world.eventually(lambda: len(world.exchanges) == 4 and world.open() == 2)
        assert world.owners() == ["/few", "/many"]


def test_heads_that_are_not_complete_have_a_bound_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BUFFERED", 100_000)
    monkeypatch.setattr(server, "CHECK_SECONDS", 0.01)

    @run(echo)
    async def _(world: World) -> None:
        callers = [await world.caller() for _ in range(4)]
        for caller in callers:
            caller.say(GET[:-2] + b"X: " + b"y" * 40_000)
        await world.eventually(lambda: 0 < world.open() <= 2)
        assert (await world.ask(post(b"ab"))).body == b"ab"


def test_connections_leave_files_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (100, 1000))
    assert server.max_connections() == 50
    monkeypatch.setattr(server.resource, "getrlimit", lambda _: (1_000_000, 1_000_000))
    assert server.max_connections() == server.MAX_CONNECTIONS


# The end ----------------------------------------------------------------------------------------------------------


def test_who_is_being_answered_at_the_end_has_a_while() -> None:
    go_on = asyncio.Event()

    async def slow(exchange: HttpExchange) -> None:
        await go_on.wait()
        exchange.reply(200, b"x" * 300_000)

    @run(slow)
    async def _(world: World) -> None:
        idle, busy = await world.caller(), await world.caller()
        busy.say(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        stopping = asyncio.ensure_future(world.server.stop(10))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError):
            await world.caller()
        go_on.set()
        assert len((await busy.hear()).body) == 300_000
        assert await busy.rest() == await idle.rest() == b""
        await stopping
        assert not world.open()
        assert cast(asyncio.TimerHandle, world.server._check_timer).cancelled()


def test_who_is_not_done_at_the_end_is_cut_off() -> None:
    @run(never)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(post(b"{}"))
        await world.eventually(lambda: world.exchanges)
        await world.server.stop(0.05)
        assert await caller.rest() == b""
        assert world.ends == ["CancelledError"]


def test_who_does_not_read_at_the_end_is_cut_off() -> None:
    async def much(exchange: HttpExchange) -> None:
        exchange.reply(200, b"x" * MUCH)

    @run(much)
    async def _(world: World) -> None:
        caller = await world.caller()
        caller.say(GET)
        await world.eventually(lambda: world.ends)
        await world.server.stop(0.05)
        await world.eventually(lambda: not world.open())


def test_a_server_that_nobody_called_ends_at_once() -> None:
    @run(never)
    async def _(world: World) -> None:
        await asyncio.wait_for(world.server.stop(60), 5)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="guildhall.gateway")
