"""WSGI by bytes on real sockets: what the application sees, what clients get, and who holds a thread meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import logging
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import uvloop

from guildhall import turns, wsgi_server
from guildhall.wsgi_server import STRANGER, Owners, WsgiServer
from mcp_runtime.http1 import server
from mcp_runtime.http1.server import HttpExchange, HttpServer
from mcp_runtime.schemas.schema_work import about_to_wait
from tests.conftest import eventually
from tests.support.resources import bytes_in

MUCH = 30_000_000  # bytes; more than the kernel keeps for two sockets
HEADS = 5_000  # bytes of the heads of some requests
TEXT = [("Content-Type", "text/plain")]


class Serving:
    """A server on a loop in a thread of its own."""

    def __init__(self, application: WSGIApplication, threads: int) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.steps = 0
        self.begun: list[HttpExchange] = []
        self.ended: list[HttpExchange] = []
        self._threads_before = web_threads()
        self._wsgi = WsgiServer(application, threads=threads, name=("a", 1), after_step=self._after_step)
        self.server = HttpServer(self._answer)
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.on_loop(self.server.start([listening])).result(10)

    def _after_step(self) -> None:
        self.steps += 1

    async def _answer(self, exchange: HttpExchange) -> None:
        self.begun.append(exchange)
        try:
            await self._wsgi(exchange)
        finally:
            self.ended.append(exchange)

    def threads(self) -> int:
        """Threads that work for the application."""
        return len(web_threads() - self._threads_before)

    def settle(self) -> None:
        """Until the loop has nothing to do but to wait."""
        self.on_loop(asyncio.sleep(0.05)).result(10)

    def held(self, connection: socket.socket) -> int:
        """Bytes in memory of the request that came on it."""
        own = connection.getsockname()
        return sum(bytes_in(one) for one in list(self.begun) if one.address == own)

    def on_loop(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10, source_address=(address, 0))

    def exchange(self, *parts: bytes) -> bytes:
        """All that comes back until the server ends the connection."""
        with self.connect() as connection:
            for part in parts:
                connection.sendall(part)
            return rest(connection)

    def get(self, path: str = "/", verb: str = "GET", **options: Any) -> tuple[http.client.HTTPResponse, bytes]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        client.request(verb, path, **options)
        response = client.getresponse()
        body = response.read()
        client.close()
        return response, body

    def end(self) -> None:
        self.on_loop(self.server.stop(0.2)).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    running = []

    def start(application: WSGIApplication, *, threads: int = 2) -> Serving:
        running.append(Serving(application, threads))
        return running[-1]

    yield start
    for one in running:
        one.end()


Serve = Callable[..., Serving]


def web_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("web-")}


def rest(connection: socket.socket) -> bytes:
    heard = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            heard += part
    return bytes(heard)


def hello(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    start("200 OK", [*TEXT, ("Content-Length", "5")])
    return [b"hello"]


def echo(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    body = environment["wsgi.input"].read()
    start("200 OK", [*TEXT, ("Content-Length", str(len(body)))])
    return [body]


class Application:
    """Answers with what `answer` gives, and remembers what it was asked and which answers were closed."""

    def __init__(self, answer: Callable[[WSGIEnvironment], Iterable[bytes]], *headers: tuple[str, str]) -> None:
        self._answer = answer
        self._headers = [*headers]
        self.status = "200 OK"
        self.environments: list[WSGIEnvironment] = []
        self.closed = 0

    def __call__(self, environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        self.environments.append(environment)
        start(self.status, self._headers)
        return Closing(self, self._answer(environment))


class Closing:
    def __init__(self, application: Application, parts: Iterable[bytes]) -> None:
        self._application = application
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)

    def close(self) -> None:
        self._application.closed += 1


# What the application sees ----------------------------------------------------------------------------------------


def test_the_application_sees_the_request_as_it_was_sent(serve: Serve) -> None:
    application = Application(lambda _: [b"ok"])
    serving = serve(application)
    serving.exchange(
        b"POST /a%C3%BC%2f%ff/?b=%20&c HTTP/1.1\r\nHost: h:1\r\nContent-Type: text/x\r\nContent-Length: 2\r\n"
        b"X-Y: 1\r\nX-y: \xfc\r\n"
        b"X_Y: forged\r\nContent_Length: 9\r\nCookie: a=b\r\nCookie: c=d\r\nConnection: close\r\n\r\nab"
    )
    (environment,) = application.environments
    assert environment["REQUEST_METHOD"] == "POST"
    assert environment["PATH_INFO"].encode("latin-1") == b"/a\xc3\xbc/\xff/"
    assert environment["QUERY_STRING"] == "b=%20&c"
    assert (environment["CONTENT_TYPE"], environment["CONTENT_LENGTH"]) == ("text/x", "2")
    assert environment["HTTP_X_Y"].encode("latin-1") == b"1, \xfc"
    assert environment["HTTP_COOKIE"] == "a=b; c=d"
    assert environment["HTTP_HOST"] == "h:1"
    assert environment["REMOTE_ADDR"] == "127.0.0.1"
    assert (environment["SERVER_NAME"], environment["SERVER_PORT"]) == ("a", "1")
    assert (environment["SERVER_PROTOCOL"], environment["wsgi.url_scheme"]) == ("HTTP/1.1", "http")
    assert environment["wsgi.input"].read() == b"ab"
    assert not [key for key in environment if "FORGED" in str(environment[key]).upper()]


@pytest.mark.parametrize(("header", "scheme"), [("https", "https"), ("http", "http"), ("javascript", "http")])
def test_a_proxy_on_this_machine_may_say_that_it_was_https(serve: Serve, header: str, scheme: str) -> None:
    application = Application(lambda _: [b"ok"])
    serve(application).get(headers={"X-Forwarded-Proto": header})
    assert application.environments[0]["wsgi.url_scheme"] == scheme


def test_nobody_elsewhere_may_say_that_it_was_https(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "LOOPBACK", ())
    application = Application(lambda _: [b"ok"])
    serve(application).get(headers={"X-Forwarded-Proto": "https"})
    assert application.environments[0]["wsgi.url_scheme"] == "http"


def test_a_body_is_whole_before_the_application_is_asked(serve: Serve) -> None:
    serving = serve(echo)
    with serving.connect() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nab")
        assert serving.get(verb="POST", body=b"meanwhile")[1] == b"meanwhile"
        connection.sendall(b"cd")
        assert rest(connection).endswith(b"\r\n\r\nabcd")


# What clients get -------------------------------------------------------------------------------------------------


def test_a_short_answer_comes_with_its_length_on_a_connection_that_stays(serve: Serve) -> None:
    client = http.client.HTTPConnection("127.0.0.1", serve(hello).port, timeout=10)
    for _ in range(3):
        client.request("GET", "/")
        response = client.getresponse()
        assert (response.status, response.read()) == (200, b"hello")
        assert response.headers.get_all("content-length") == ["5"]
        assert response.headers["content-type"] == "text/plain"
    client.close()


@pytest.mark.parametrize("length", [[], [("Content-Length", "3")]])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_in_parts_is_whole(serve: Serve, version: bytes, length: list[tuple[str, str]]) -> None:
    application = Application(lambda _: iter([b"a", b"", b"bc"]), *length)
    serving = serve(application)
    request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".replace(b"1.1", version)
    head, _, body = serving.exchange(request).partition(b"\r\n\r\n")
    is_chunked = version == b"1.1" and not length
    assert (b"transfer-encoding: chunked" in head) is is_chunked
    assert body == (b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n" if is_chunked else b"abc")
    eventually(lambda: application.closed == 1)


def test_a_part_is_heard_when_it_is_said(serve: Serve) -> None:
    go_on = threading.Event()

    def answer(_: WSGIEnvironment) -> Iterator[bytes]:
        yield b"first"
        go_on.wait(10)
        yield b"second"

    with serve(Application(answer)).connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        heard = b""
        while b"first" not in heard:
            heard += connection.recv(1000)
        assert b"second" not in heard
        go_on.set()
        assert b"second" in rest(connection)


@pytest.mark.parametrize("parts", [[b"hello"], []])
def test_the_head_alone_says_the_length(serve: Serve, parts: list[bytes]) -> None:
    serving = serve(Application(lambda _: parts, ("Content-Length", "5")))
    for _ in range(2):
        response, body = serving.get(verb="HEAD")
        assert (response.headers.get_all("content-length"), body) == (["5"], b"")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_an_answer_without_content_has_none(serve: Serve, status: str) -> None:
    application = Application(lambda _: [], ("ETag", '"x"'), ("Content-Length", "0"))
    application.status = status
    response, body = serve(application).get()
    assert (response.status, body, response.headers["etag"]) == (int(status[:3]), b"", '"x"')
    assert "transfer-encoding" not in response.headers


def test_a_file_is_sent_whole(serve: Serve) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 1_000_000)
        file.seek(0)
        application = Application(
            lambda environment: environment["wsgi.file_wrapper"](file, 10), ("Content-Length", "1000000")
        )
        assert serve(application).get()[1] == b"x" * 1_000_000


@pytest.mark.parametrize("said", ["1", "100"])
def test_an_answer_of_another_length_than_it_says_is_never_taken_for_whole_nor_for_the_next(
    serve: Serve, said: str
) -> None:
    serving = serve(Application(lambda _: iter([b"ab", b"c"]), ("Content-Length", said)))
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving.connect() as connection:
        connection.sendall(request)
        if said == "1":
            heard = b""
            while not heard.endswith(b"\r\n\r\na"):
                heard += connection.recv(1000)
        else:
            assert rest(connection).endswith(b"\r\n\r\nabc")  # and then the end of the connection


def test_an_error_before_the_answer_is_500_and_one_within_it_ends_the_connection(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(environment: WSGIEnvironment) -> Iterator[bytes]:
        if environment["PATH_INFO"] == "/later":
            yield b"begun"
        raise ValueError("broken")

    application = Application(answer)
    serving = serve(application)
    with caplog.at_level(logging.ERROR):
        assert serving.get()[0].status == 500
        later = serving.exchange(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"begun" in later or later == b""
    assert b"0\r\n\r\n" not in later
    eventually(lambda: application.closed == 2)
    assert caplog.text.count("ValueError: broken") == 2


def test_a_value_cannot_become_a_header_of_its_own(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response, body = serve(Application(lambda _: [b"ok"], ("X-Y", "a\r\nSet-Cookie: b=c"))).get()
    assert response.status == 500
    assert "set-cookie" not in response.headers
    assert b"b=c" not in body


# Bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "half", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na"]
)
def test_half_a_request_holds_no_thread(serve: Serve, half: bytes) -> None:
    serving = serve(hello, threads=1)
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(serving.connect()).sendall(half)
        for _ in range(3):
            assert serving.get()[1] == b"hello"


def test_who_reads_slowly_holds_no_thread_and_gets_the_rest_later(serve: Serve) -> None:
    def answer(environment: WSGIEnvironment) -> Iterator[bytes]:
        return iter([b"x" * 100_000] * (300 if environment["PATH_INFO"] == "/much" else 1))

    serving = serve(Application(answer), threads=1)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(serving.connect()) for _ in range(2)]
        for one in slow:
            one.sendall(b"GET /much HTTP/1.0\r\n\r\n")
        for _ in range(3):
            assert len(serving.get()[1]) == 100_000
        for one in slow:
            assert len(rest(one).partition(b"\r\n\r\n")[2]) == MUCH


def test_who_never_reads_is_not_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "READ_SECONDS", 0.1)
    application = Application(lambda _: iter([b"x" * 100_000] * 300))
    with serve(application).connect() as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        eventually(lambda: application.closed == 1)
        assert len(rest(connection)) < MUCH


def test_who_goes_away_is_missed_and_the_answer_closed(serve: Serve) -> None:
    def ticks(_: WSGIEnvironment) -> Iterator[bytes]:
        while True:
            yield b"tick"
            threading.Event().wait(0.01)

    application = Application(ticks)
    serving = serve(application, threads=1)
    with serving.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(10)
    eventually(lambda: application.closed == 1)


def test_who_goes_away_between_two_parts_is_missed_too(serve: Serve) -> None:
    application = Application(lambda _: iter([b"x" * 100_000] * 300))
    serving = serve(application, threads=1)
    with serving.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        steps = serving.steps
        eventually(lambda: serving.steps > steps)
        assert application.closed == 0
    eventually(lambda: application.closed == 1)


def test_more_requests_than_threads_wait_for_one(serve: Serve) -> None:
    together = threading.Semaphore(0)
    running: list[int] = []

    def answer(_: WSGIEnvironment) -> Iterable[bytes]:
        running.append(1)
        together.acquire(timeout=10)
        return [b"ok"]

    serving = serve(Application(answer, ("Content-Length", "2")), threads=2)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(serving.connect()) for _ in range(6)]
        for number, client in enumerate(clients):
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %d\r\n\r\n" % number)
        eventually(lambda: len(running) == 2)
        assert serving.threads() == 2
        for _ in clients:
            together.release()
        for client in clients:
            assert rest(client).endswith(b"ok")
    assert serving.threads() == 2


def test_who_sends_many_requests_leaves_threads_to_others_and_takes_turns_with_them(serve: Serve) -> None:
    together = threading.Semaphore(0)
    begun: list[str] = []

    def answer(environment: WSGIEnvironment) -> Iterable[bytes]:
        name = environment["HTTP_AUTHORIZATION"]
        if name not in users:
            users.append(name)
            environment["guildhall.owner"](len(users), None)
            return [b"ok"]
        begun.append(name)
        together.acquire(timeout=10)
        return [b"ok"]

    users: list[str] = []
    serving = serve(Application(answer, ("Content-Length", "2")), threads=8)
    for name in ("greedy", "honest"):
        serving.get(headers={"Authorization": name})
    with contextlib.ExitStack() as stack:

        def send(name: bytes, count: int) -> list[socket.socket]:
            clients = [stack.enter_context(serving.connect()) for _ in range(count)]
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %b\r\n\r\n" % name)
            return clients

        greedy = send(b"greedy", 20)
        eventually(lambda: begun == ["greedy"] * 6)
        honest = send(b"honest", 3)
        eventually(lambda: begun[6:] == ["honest"])
        for _ in range(4):
            together.release()
        eventually(lambda: begun.count("honest") == 3, what="those with fewer threads come first")
        assert begun.count("greedy") <= 8
        for _ in range(30):
            together.release()
        for client in (*greedy, *honest):
            assert rest(client).endswith(b"ok")


def test_clients_that_nobody_knows_share_what_one_would_have(serve: Serve) -> None:
    """Else who invents credentials for each request would come before all who have some."""
    together, begun = threading.Semaphore(0), []

    def answer(environment: WSGIEnvironment) -> Iterable[bytes]:
        if environment["HTTP_AUTHORIZATION"] == "good":
            environment["guildhall.owner"](7, None)
            return [b"ok"]
        begun.append(1)
        together.acquire(timeout=10)
        return [b"ok"]

    serving = serve(Application(answer, ("Content-Length", "2")), threads=8)
    with contextlib.ExitStack() as stack:
        serving.get(headers={"Authorization": "good"})
        strangers = requests_of(serving, stack, b"/", 20)
        eventually(lambda: len(begun) == 6)
        assert serving.get(headers={"Authorization": "good"})[1] == b"ok"
        assert len(begun) == 6
        for _ in range(30):
            together.release()
        for client in strangers:
            assert rest(client).endswith(b"ok")


def test_who_has_many_addresses_or_spells_its_credentials_in_many_ways_is_one() -> None:
    owners = Owners()
    assert {owners.of(client) for client in range(100)} == {STRANGER}
    for client in range(100):
        owners.learn(client, 7, 1)
    known = [client for client in range(100) if owners.of(client) != STRANGER]
    assert known == list(range(100 - wsgi_server.MAX_CLIENTS, 100))
    assert {owners.of(client) for client in known} == {(7, 1)}


def test_what_one_owner_does_makes_nobody_else_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "MAX_OWNERS", 3)
    owners = Owners()
    owners.learn(-1, 1, None)
    for client in range(1000):
        owners.learn(client, 7, 1)
    assert owners.of(-1) == (1, None)
    owners.learn(-2, 2, None)
    owners.learn(-3, 3, None)  # beyond the bound, whoever was learnt first goes
    assert (owners.of(-1), owners.of(-2), owners.of(-3)) == (STRANGER, (2, None), (3, None))
    latest = range(1000 - wsgi_server.MAX_CLIENTS, 1000)
    assert [client for client in range(-3, 1000) if owners.of(client) != STRANGER] == [-3, -2, *latest]


def test_credentials_that_are_another_users_now_are_counted_for_that_one() -> None:
    owners = Owners()
    owners.learn(5, 1, None)
    owners.learn(5, 2, 9)
    owners.learn(5, 2, 9)
    assert owners.of(5) == (2, 9)
    for client in range(100, 100 + wsgi_server.MAX_CLIENTS):
        owners.learn(client, 1, None)
        assert owners.of(5) == (2, 9)
    for client in range(200, 200 + wsgi_server.MAX_CLIENTS - 1):
        owners.learn(client, 2, 9)
        assert owners.of(5) == (2, 9)
    owners.learn(300, 2, 9)
    assert owners.of(5) == STRANGER


def test_a_thread_keeps_nothing_of_a_request_that_was_answered(serve: Serve) -> None:
    seen: list[weakref.ref[Any]] = []

    def application(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        seen.append(weakref.ref(environment["wsgi.input"]))
        return hello(environment, start)

    assert serve(application).get()[1] == b"hello"
    eventually(lambda: gc.collect() >= 0 and seen[0]() is None)


class Workers:
    """An application whose requests are at work until they are released; those to /wait say that they wait.

    Those to /aside are at work on schemas, for long.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._together = threading.Semaphore(0)

    def answer(self, environment: WSGIEnvironment) -> Iterable[bytes]:
        if environment["PATH_INFO"] == "/wait":
            environment["guildhall.waits"]()
        if environment["PATH_INFO"] == "/aside":
            about_to_wait.get()()
        self.begun.append(environment["PATH_INFO"])
        self._together.acquire(timeout=10)
        return [b"ok"]

    def release(self, count: int = 100) -> None:
        for _ in range(count):
            self._together.release()


def requests_of(serving: Serving, stack: contextlib.ExitStack, path: bytes, count: int) -> list[socket.socket]:
    """So many, each of another client."""
    clients = [stack.enter_context(serving.connect()) for _ in range(count)]
    for number, client in enumerate(clients):
        head = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %b%d\r\n\r\n"
        client.sendall(head % (path, path, number))
    return clients


@pytest.fixture
def no_turn_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE_SECONDS", "HEAVY_PATIENCE_SECONDS", "OWN_PATIENCE_SECONDS"):
        monkeypatch.setattr(turns, name, 60.0)


@pytest.mark.usefixtures("no_turn_is_long")
def test_one_request_computes_at_a_time_and_those_that_wait_do_not_count(serve: Serve) -> None:
    workers = Workers()
    serving = serve(Application(workers.answer, ("Content-Length", "2")), threads=20)
    for _ in range(2):  # what was taken is given back
        workers.begun.clear()
        serving.begun.clear()
        with contextlib.ExitStack() as stack:
            clients = requests_of(serving, stack, b"/wait", 12)
            eventually(lambda: workers.begun == ["/wait"] * 12)
            clients += requests_of(serving, stack, b"/work", 3)
            eventually(lambda: workers.begun[12:] == ["/work"] and len(serving.begun) == 15)
            serving.settle()
            assert workers.begun[12:] == ["/work"]
            workers.release(15)
            for client in clients:
                assert rest(client).endswith(b"ok")
    assert workers.begun[12:] == ["/work"] * 3  # as many places as strangers get


def test_a_request_that_is_about_to_wait_gives_back_what_a_step_gives_back(serve: Serve) -> None:
    before = []

    def answer(environment: WSGIEnvironment) -> Iterable[bytes]:
        environment["guildhall.waits"]()
        before.append(serving.steps)
        return [b"ok"]

    serving = serve(Application(answer, ("Content-Length", "2")))
    assert serving.get()[1] == b"ok"
    assert before == [1]


@pytest.mark.usefixtures("no_turn_is_long")
def test_work_that_steps_aside_does_not_count(serve: Serve) -> None:
    workers = Workers()
    serving = serve(Application(workers.answer, ("Content-Length", "2")), threads=20)
    with contextlib.ExitStack() as stack:
        clients = requests_of(serving, stack, b"/aside", 12)
        eventually(lambda: workers.begun == ["/aside"] * 12)
        workers.release()
        for client in clients:
            assert rest(client).endswith(b"ok")


def test_what_takes_long_lets_others_work(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "OWN_PATIENCE_SECONDS", 0.05)
    workers = Workers()
    serving = serve(Application(workers.answer, ("Content-Length", "2")), threads=20)
    for count in (12, 15):  # what was taken is given back: strangers get 15 places
        workers.begun.clear()
        with contextlib.ExitStack() as stack:
            clients = requests_of(serving, stack, b"/work", count)
            eventually(lambda count=count: workers.begun == ["/work"] * count)
            workers.release(count)
            for client in clients:
                assert rest(client).endswith(b"ok")


@pytest.mark.usefixtures("no_turn_is_long")
def test_a_client_that_goes_away_while_it_waits_for_its_turn_leaves_it_to_others(serve: Serve) -> None:
    workers = Workers()
    serving = serve(Application(workers.answer, ("Content-Length", "2")), threads=20)
    with contextlib.ExitStack() as stack:
        (first,) = requests_of(serving, stack, b"/work", 1)
        eventually(lambda: workers.begun == ["/work"])
        (gone,) = requests_of(serving, stack, b"/gone", 1)
        eventually(lambda: len(serving.begun) == 2)
        serving.settle()
        gone.close()
        eventually(lambda: serving.ended == serving.begun[1:])
        (last,) = requests_of(serving, stack, b"/last", 1)
        workers.release()
        assert rest(first).endswith(b"ok")
        assert rest(last).endswith(b"ok")
    assert workers.begun == ["/work", "/last"]


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(serve: Serve) -> None:
    application = Application(lambda _: [b"ok"])
    said = serve(application).exchange(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000001\r\n\r\n")
    assert b" 413 " in said
    assert application.environments == []


def test_a_body_that_does_not_come_in_time_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.1)
    application = Application(lambda _: [b"ok"])
    said = serve(application).exchange(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
    assert b" 408 " in said
    assert application.environments == []


def test_a_body_much_larger_than_allowed_is_refused_and_its_client_hears_it(serve: Serve) -> None:
    serving = serve(echo)
    for version in (1, 0):  # with HTTP/1.0, as nginx speaks it, no other request may follow
        head = b"POST / HTTP/1.%d\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n" % version
        assert serving.exchange(head, b"x" * 20_000_000).startswith(b"HTTP/1.1 413 ")


def large(client: bytes, size: int = 100_000, verb: bytes = b"POST", path: bytes = b"/wait") -> bytes:
    """A request with a body that counts, of a client with these credentials."""
    head = b"%b %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (verb, path, client, size) + b"x" * size


class Senders:
    """Clients whose requests hang in the application, and what becomes of them."""

    def __init__(self, serve: Serve) -> None:
        self._stack = contextlib.ExitStack()
        self.workers = Workers()
        self.serving = serve(Application(self.workers.answer, ("Content-Length", "2")), threads=20)

    def __enter__(self) -> Senders:
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.release()
        self._stack.close()

    def send(self, said: bytes, address: str = "127.0.0.1") -> socket.socket:
        connection = self._stack.enter_context(self.serving.connect(address))
        connection.sendall(said)
        return connection

    def hang(self, said: bytes, address: str = "127.0.0.1") -> socket.socket:
        before = len(self.workers.begun)
        connection = self.send(said, address)
        eventually(lambda: len(self.workers.begun) == before + 1)
        return connection

    def status(self, said: bytes, address: str = "127.0.0.1") -> int:
        """Of a request that is refused."""
        return int(rest(self.send(said, address)).split()[1])


def test_a_client_whose_large_requests_hang_keeps_no_room_from_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsgi_server, "BODIES_OF_CLIENT", 200_000)
    monkeypatch.setattr(wsgi_server, "BODIES", 400_000)
    with Senders(serve) as senders:
        hanging = [senders.hang(large(b"a")) for _ in range(2)]
        assert senders.status(large(b"a")) == 429
        hanging += [senders.hang(large(b"b")), senders.hang(large(b"b"))]
        assert senders.status(large(b"c")) == 503
        hanging += [senders.hang(large(b"c", wsgi_server.SHORT_BODY)), senders.hang(large(b"c", 0))]
        senders.workers.release()
        assert all(rest(one).endswith(b"ok") for one in hanging)
        for client in (b"a", b"b"):  # each has all of its room again
            said = large(client, 200_000)
            eventually(lambda said=said: rest(senders.send(said)).endswith(b"ok"))


def test_an_address_with_many_credentials_keeps_no_room_from_another(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsgi_server, "BODIES_OF_ADDRESS", 300_000)
    monkeypatch.setattr(wsgi_server, "BODIES", 400_000)
    with Senders(serve) as senders:
        for client in (b"a", b"b", b"c"):
            senders.hang(large(client), "127.0.0.2")
        assert senders.status(large(b"d"), "127.0.0.2") == 429
        senders.hang(large(b"e"))


def test_what_is_sent_with_a_GET_is_not_kept(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "BODIES", 100_000)
    with Senders(serve) as senders:
        for client in (b"a", b"b"):
            senders.hang(large(client, verb=b"GET"))
        senders.hang(large(b"c"))


def test_a_body_that_grows_comes_through_among_many_that_do_not(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "PARTIAL_BODIES", 500_000)
    with Senders(serve) as senders:
        said, held = large(b"honest", 300_000), senders.serving.held
        head = len(said) - 300_000
        honest = senders.send(said[:30_000])
        eventually(lambda: held(honest) >= 30_000 - head)
        stalled: list[socket.socket] = []
        for number in range(10):
            stalled.append(senders.send(large(b"%d" % number)[:-1], f"127.0.0.{2 + number}"))
            eventually(lambda: held(stalled[-1]) >= 99_999)
            honest.sendall(said[30_000 + 20_000 * number : 50_000 + 20_000 * number])
            eventually(lambda number=number: held(honest) >= 50_000 + 20_000 * number - head)
            eventually(lambda: sum(map(held, [honest, *stalled])) <= 500_000 + HEADS)
        assert rest(stalled[0]) == b""
        honest.sendall(said[230_000:])
        eventually(lambda: senders.workers.begun == ["/wait"])
        senders.workers.release()
        assert rest(honest).endswith(b"ok")


def test_a_head_alone_takes_no_room_from_bodies(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "PARTIAL_BODIES", 200_000)
    with Senders(serve) as senders:
        stalled = senders.send(large(b"a")[:-1])
        eventually(lambda: senders.serving.held(stalled) >= 99_999)
        for number in range(10):
            senders.send(large(b"%d" % number, 4_000_000)[:200])
        eventually(lambda: len(senders.serving.begun) == 11)
        stalled.sendall(b"x")
        eventually(lambda: senders.workers.begun == ["/wait"])
        # It is complete, and takes no room from those to come.
        others = [senders.send(large(client)[:-1]) for client in (b"b", b"c")]
        eventually(lambda: all(senders.serving.held(one) >= 99_999 for one in others))
        for one in others:
            one.sendall(b"x")
        eventually(lambda: senders.workers.begun == ["/wait"] * 3)


def test_a_request_is_not_begun_when_its_client_closes_the_connection_or_stops_sending(serve: Serve) -> None:
    workers = Workers()
    serving = serve(Application(workers.answer, ("Content-Length", "2")), threads=4)
    with contextlib.ExitStack() as stack:
        busy = requests_of(serving, stack, b"/wait", 3)
        eventually(lambda: len(workers.begun) == 3)
        closed, stopped = requests_of(serving, stack, b"/next", 2)
        eventually(lambda: len(serving.begun) == 5)
        serving.settle()
        closed.close()
        stopped.shutdown(socket.SHUT_WR)
        eventually(lambda: set(serving.ended) == set(serving.begun[3:]))
        assert rest(stopped) == b""
        workers.release()
        assert all(rest(one).endswith(b"ok") for one in busy)
    assert workers.begun == ["/wait"] * 3


def test_requests_that_are_answered_at_the_end_have_a_while_and_no_longer(serve: Serve) -> None:
    go_on = threading.Event()

    def wait(environment: WSGIEnvironment) -> Iterable[bytes]:
        go_on.wait(0.3 if environment["PATH_INFO"] == "/soon" else 20)
        return [b"ok"]

    application = Application(wait, ("Content-Length", "2"))
    serving = serve(application)
    with serving.connect() as soon, serving.connect() as late:
        for one, path in ((soon, b"/soon"), (late, b"/late")):
            one.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda: len(application.environments) == 2)
        serving.on_loop(serving.server.stop(1)).result(5)
        assert rest(soon).endswith(b"ok")
        assert rest(late) == b""
    go_on.set()
