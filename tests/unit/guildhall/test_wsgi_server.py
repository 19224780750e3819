"""WSGI on real sockets: the environment of the application, the responses for clients, and the use of threads."""

from __future__ import annotations

import contextlib
import gc
import http.client
import logging
import socket
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from guildhall import turns, wsgi_server
from guildhall.wsgi_server import STRANGER, Owners
from mcp_runtime.http1 import server
from mcp_runtime.schemas.schema_work import about_to_wait
from tests.conftest import eventually
from tests.support.wsgi import RunningServer, Serve, read_rest

LARGE = 30_000_000  # bytes; more than the kernel keeps for two sockets
HEAD_ALLOWANCE = 5_000  # bytes of the heads of some requests
TEXT_HEADERS = [("Content-Type", "text/plain")]


def hello(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    start("200 OK", [*TEXT_HEADERS, ("Content-Length", "5")])
    return [b"hello"]


def echo(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
    body = environment["wsgi.input"].read()
    start("200 OK", [*TEXT_HEADERS, ("Content-Length", str(len(body)))])
    return [body]


class Application:
    """Responds with the result of `respond`. Stores the environments and the number of closed responses."""

    def __init__(self, respond: Callable[[WSGIEnvironment], Iterable[bytes]], *headers: tuple[str, str]) -> None:
        self._respond = respond
        self._headers = [*headers]
        self.status = "200 OK"
        self.environments: list[WSGIEnvironment] = []
        self.closed = 0

    def __call__(self, environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        self.environments.append(environment)
        start(self.status, self._headers)
        return ClosableBody(self, self._respond(environment))


class ClosableBody:
    def __init__(self, application: Application, parts: Iterable[bytes]) -> None:
        self._application = application
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)

    def close(self) -> None:
        self._application.closed += 1


# The environment of the application -------------------------------------------------------------------------------


def test_the_environment_of_the_application_matches_the_request(serve: Serve) -> None:
    application = Application(lambda _: [b"ok"])
    running_server = serve(application)
    running_server.exchange_bytes(
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
def test_a_local_proxy_can_set_the_scheme_https(serve: Serve, header: str, scheme: str) -> None:
    application = Application(lambda _: [b"ok"])
    serve(application).get(headers={"X-Forwarded-Proto": header})
    assert application.environments[0]["wsgi.url_scheme"] == scheme


def test_a_remote_proxy_cannot_set_the_scheme_https(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "LOOPBACK", ())
    application = Application(lambda _: [b"ok"])
    serve(application).get(headers={"X-Forwarded-Proto": "https"})
    assert application.environments[0]["wsgi.url_scheme"] == "http"


def test_the_application_is_called_when_the_body_is_complete(serve: Serve) -> None:
    running_server = serve(echo)
    with running_server.connect() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nab")
        assert running_server.get(verb="POST", body=b"meanwhile")[1] == b"meanwhile"
        connection.sendall(b"cd")
        assert read_rest(connection).endswith(b"\r\n\r\nabcd")


# Responses --------------------------------------------------------------------------------------------------------


def test_a_short_response_has_its_length_and_keeps_the_connection(serve: Serve) -> None:
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
def test_a_response_in_parts_is_complete(serve: Serve, version: bytes, length: list[tuple[str, str]]) -> None:
    application = Application(lambda _: iter([b"a", b"", b"bc"]), *length)
    running_server = serve(application)
    request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".replace(b"1.1", version)
    head, _, body = running_server.exchange_bytes(request).partition(b"\r\n\r\n")
    is_chunked = version == b"1.1" and not length
    assert (b"transfer-encoding: chunked" in head) is is_chunked
    assert body == (b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n" if is_chunked else b"abc")
    eventually(lambda: application.closed == 1)


def test_a_part_of_a_response_is_sent_at_once(serve: Serve) -> None:
    may_continue = threading.Event()

    def respond(_: WSGIEnvironment) -> Iterator[bytes]:
        yield b"first"
        may_continue.wait(10)
        yield b"second"

    with serve(Application(respond)).connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        data = b""
        while b"first" not in data:
            data += connection.recv(1000)
        assert b"second" not in data
        may_continue.set()
        assert b"second" in read_rest(connection)


@pytest.mark.parametrize("parts", [[b"hello"], []])
def test_the_response_to_HEAD_has_the_length(serve: Serve, parts: list[bytes]) -> None:
    running_server = serve(Application(lambda _: parts, ("Content-Length", "5")))
    for _ in range(2):
        response, body = running_server.get(verb="HEAD")
        assert (response.headers.get_all("content-length"), body) == (["5"], b"")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_a_response_without_content_has_no_body(serve: Serve, status: str) -> None:
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


@pytest.mark.parametrize("length", ["1", "100"])
def test_a_response_of_a_wrong_length_ends_the_connection(serve: Serve, length: str) -> None:
    running_server = serve(Application(lambda _: iter([b"ab", b"c"]), ("Content-Length", length)))
    request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with running_server.connect() as connection:
        connection.sendall(request)
        if length == "1":
            data = b""
            while not data.endswith(b"\r\n\r\na"):
                data += connection.recv(1000)
        else:
            assert read_rest(connection).endswith(b"\r\n\r\nabc")  # and then the connection ends


def test_an_error_is_500_before_the_response_and_ends_the_connection_within_it(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def respond(environment: WSGIEnvironment) -> Iterator[bytes]:
        if environment["PATH_INFO"] == "/later":
            yield b"begun"
        raise ValueError("broken")

    application = Application(respond)
    running_server = serve(application)
    with caplog.at_level(logging.ERROR):
        assert running_server.get()[0].status == 500
        output = running_server.exchange_bytes(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"begun" in output or output == b""
    assert b"0\r\n\r\n" not in output
    eventually(lambda: application.closed == 2)
    assert caplog.text.count("ValueError: broken") == 2


def test_a_header_value_with_a_line_break_is_500(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response, body = serve(Application(lambda _: [b"ok"], ("X-Y", "a\r\nSet-Cookie: b=c"))).get()
    assert response.status == 500
    assert "set-cookie" not in response.headers
    assert b"b=c" not in body


# Limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na"]
)
def test_an_incomplete_request_occupies_no_thread(serve: Serve, data: bytes) -> None:
    running_server = serve(hello, threads=1)
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(running_server.connect()).sendall(data)
        for _ in range(3):
            assert running_server.get()[1] == b"hello"


def test_a_slow_reader_occupies_no_thread_and_gets_the_whole_response(serve: Serve) -> None:
    def respond(environment: WSGIEnvironment) -> Iterator[bytes]:
        return iter([b"x" * 100_000] * (300 if environment["PATH_INFO"] == "/much" else 1))

    running_server = serve(Application(respond), threads=1)
    with contextlib.ExitStack() as stack:
        slow_clients = [stack.enter_context(running_server.connect()) for _ in range(2)]
        for client in slow_clients:
            client.sendall(b"GET /much HTTP/1.0\r\n\r\n")
        for _ in range(3):
            assert len(running_server.get()[1]) == 100_000
        for client in slow_clients:
            assert len(read_rest(client).partition(b"\r\n\r\n")[2]) == LARGE


def test_a_response_that_is_never_read_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "READ_SECONDS", 0.1)
    application = Application(lambda _: iter([b"x" * 100_000] * 300))
    with serve(application).connect() as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        eventually(lambda: application.closed == 1)
        assert len(read_rest(connection)) < LARGE


def test_a_response_is_closed_when_its_client_disconnects(serve: Serve) -> None:
    def ticks(_: WSGIEnvironment) -> Iterator[bytes]:
        while True:
            yield b"tick"
            threading.Event().wait(0.01)

    application = Application(ticks)
    running_server = serve(application, threads=1)
    with running_server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(10)
    eventually(lambda: application.closed == 1)


def test_a_response_is_closed_when_its_client_disconnects_between_two_parts(serve: Serve) -> None:
    application = Application(lambda _: iter([b"x" * 100_000] * 300))
    running_server = serve(application, threads=1)
    with running_server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        steps = running_server.steps
        eventually(lambda: running_server.steps > steps)
        assert application.closed == 0
    eventually(lambda: application.closed == 1)


def test_requests_wait_while_all_threads_are_busy(serve: Serve) -> None:
    semaphore = threading.Semaphore(0)
    calls: list[int] = []

    def respond(_: WSGIEnvironment) -> Iterable[bytes]:
        calls.append(1)
        semaphore.acquire(timeout=10)
        return [b"ok"]

    running_server = serve(Application(respond, ("Content-Length", "2")), threads=2)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(running_server.connect()) for _ in range(6)]
        for number, client in enumerate(clients):
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %d\r\n\r\n" % number)
        eventually(lambda: len(calls) == 2)
        assert running_server.threads() == 2
        for _ in clients:
            semaphore.release()
        for client in clients:
            assert read_rest(client).endswith(b"ok")
    assert running_server.threads() == 2


def test_a_client_with_many_requests_shares_the_threads_with_other_clients(serve: Serve) -> None:
    semaphore = threading.Semaphore(0)
    names: list[str] = []

    def respond(environment: WSGIEnvironment) -> Iterable[bytes]:
        name = environment["HTTP_AUTHORIZATION"]
        if name not in users:
            users.append(name)
            environment["guildhall.owner"](len(users), None)
            return [b"ok"]
        names.append(name)
        semaphore.acquire(timeout=10)
        return [b"ok"]

    users: list[str] = []
    running_server = serve(Application(respond, ("Content-Length", "2")), threads=8)
    for name in ("greedy", "honest"):
        running_server.get(headers={"Authorization": name})
    with contextlib.ExitStack() as stack:

        def send(name: bytes, count: int) -> list[socket.socket]:
            clients = [stack.enter_context(running_server.connect()) for _ in range(count)]
            for client in clients:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %b\r\n\r\n" % name)
            return clients

        greedy_clients = send(b"greedy", 20)
        eventually(lambda: names == ["greedy"] * 6)
        honest_clients = send(b"honest", 3)
        eventually(lambda: names[6:] == ["honest"])
        for _ in range(4):
            semaphore.release()
        eventually(lambda: names.count("honest") == 3, what="the client with fewer threads comes first")
        assert names.count("greedy") <= 8
        for _ in range(30):
            semaphore.release()
        for client in (*greedy_clients, *honest_clients):
            assert read_rest(client).endswith(b"ok")


def test_unknown_clients_share_the_threads_of_one_client(serve: Serve) -> None:
    """Otherwise a client with invented credentials for each request would come before all known clients."""
    semaphore, calls = threading.Semaphore(0), []

    def respond(environment: WSGIEnvironment) -> Iterable[bytes]:
        if environment["HTTP_AUTHORIZATION"] == "good":
            environment["guildhall.owner"](7, None)
            return [b"ok"]
        calls.append(1)
        semaphore.acquire(timeout=10)
        return [b"ok"]

    running_server = serve(Application(respond, ("Content-Length", "2")), threads=8)
    with contextlib.ExitStack() as stack:
        running_server.get(headers={"Authorization": "good"})
        unknown_clients = send_requests(running_server, stack, b"/", 20)
        eventually(lambda: len(calls) == 6)
        assert running_server.get(headers={"Authorization": "good"})[1] == b"ok"
        assert len(calls) == 6
        for _ in range(30):
            semaphore.release()
        for client in unknown_clients:
            assert read_rest(client).endswith(b"ok")


def test_an_owner_with_many_addresses_or_credentials_counts_once() -> None:
    owners = Owners()
    assert {owners.of(client) for client in range(100)} == {STRANGER}
    for client in range(100):
        owners.learn(client, 7, 1)
    known_clients = [client for client in range(100) if owners.of(client) != STRANGER]
    assert known_clients == list(range(100 - wsgi_server.MAX_CLIENTS, 100))
    assert {owners.of(client) for client in known_clients} == {(7, 1)}


def test_one_owner_cannot_displace_the_other_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "MAX_OWNERS", 3)
    owners = Owners()
    owners.learn(-1, 1, None)
    for client in range(1000):
        owners.learn(client, 7, 1)
    assert owners.of(-1) == (1, None)
    owners.learn(-2, 2, None)
    owners.learn(-3, 3, None)  # beyond the limit, the oldest owner is forgotten
    assert (owners.of(-1), owners.of(-2), owners.of(-3)) == (STRANGER, (2, None), (3, None))
    latest_clients = range(1000 - wsgi_server.MAX_CLIENTS, 1000)
    assert [client for client in range(-3, 1000) if owners.of(client) != STRANGER] == [-3, -2, *latest_clients]


def test_credentials_of_a_new_owner_count_for_the_new_owner() -> None:
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


def test_a_thread_keeps_no_data_of_a_finished_request(serve: Serve) -> None:
    references: list[weakref.ref[Any]] = []

    def application(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        references.append(weakref.ref(environment["wsgi.input"]))
        return hello(environment, start)

    assert serve(application).get()[1] == b"hello"
    eventually(lambda: gc.collect() >= 0 and references[0]() is None)


class Workers:
    """An application whose requests work until they are released. Requests to /wait declare that they wait.

    Requests to /aside do long work on schemas.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._semaphore = threading.Semaphore(0)

    def respond(self, environment: WSGIEnvironment) -> Iterable[bytes]:
        if environment["PATH_INFO"] == "/wait":
            environment["guildhall.waits"]()
        if environment["PATH_INFO"] == "/aside":
            about_to_wait.get()()
        self.paths.append(environment["PATH_INFO"])
        self._semaphore.acquire(timeout=10)
        return [b"ok"]

    def release(self, count: int = 100) -> None:
        for _ in range(count):
            self._semaphore.release()


def send_requests(
    running_server: RunningServer, stack: contextlib.ExitStack, path: bytes, count: int
) -> list[socket.socket]:
    """Send `count` requests, each from another client."""
    clients = [stack.enter_context(running_server.connect()) for _ in range(count)]
    for number, client in enumerate(clients):
        head = b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %b%d\r\n\r\n"
        client.sendall(head % (path, path, number))
    return clients


@pytest.fixture
def no_long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE_SECONDS", "HEAVY_PATIENCE_SECONDS", "OWN_PATIENCE_SECONDS"):
        monkeypatch.setattr(turns, name, 60.0)


@pytest.mark.usefixtures("no_long_turns")
def test_one_request_computes_at_a_time_and_waiting_requests_do_not_count(serve: Serve) -> None:
    workers = Workers()
    running_server = serve(Application(workers.respond, ("Content-Length", "2")), threads=20)
    for _ in range(2):  # each turn is given back
        workers.paths.clear()
        running_server.exchanges.clear()
        with contextlib.ExitStack() as stack:
            clients = send_requests(running_server, stack, b"/wait", 12)
            eventually(lambda: workers.paths == ["/wait"] * 12)
            clients += send_requests(running_server, stack, b"/work", 3)
            eventually(lambda: workers.paths[12:] == ["/work"] and len(running_server.exchanges) == 15)
            running_server.wait_until_idle()
            assert workers.paths[12:] == ["/work"]
            workers.release(15)
            for client in clients:
                assert read_rest(client).endswith(b"ok")
    assert workers.paths[12:] == ["/work"] * 3  # unknown clients have this many places


def test_after_step_runs_before_a_request_waits(serve: Serve) -> None:
    steps_before = []

    def respond(environment: WSGIEnvironment) -> Iterable[bytes]:
        environment["guildhall.waits"]()
        steps_before.append(running_server.steps)
        return [b"ok"]

    running_server = serve(Application(respond, ("Content-Length", "2")))
    assert running_server.get()[1] == b"ok"
    assert steps_before == [1]


@pytest.mark.usefixtures("no_long_turns")
def test_schema_work_does_not_count_as_computing(serve: Serve) -> None:
    workers = Workers()
    running_server = serve(Application(workers.respond, ("Content-Length", "2")), threads=20)
    with contextlib.ExitStack() as stack:
        clients = send_requests(running_server, stack, b"/aside", 12)
        eventually(lambda: workers.paths == ["/aside"] * 12)
        workers.release()
        for client in clients:
            assert read_rest(client).endswith(b"ok")


def test_a_long_request_lets_other_requests_compute(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "OWN_PATIENCE_SECONDS", 0.05)
    workers = Workers()
    running_server = serve(Application(workers.respond, ("Content-Length", "2")), threads=20)
    for count in (12, 15):  # each turn is given back: unknown clients have 15 places
        workers.paths.clear()
        with contextlib.ExitStack() as stack:
            clients = send_requests(running_server, stack, b"/work", count)
            eventually(lambda count=count: workers.paths == ["/work"] * count)
            workers.release(count)
            for client in clients:
                assert read_rest(client).endswith(b"ok")


@pytest.mark.usefixtures("no_long_turns")
def test_a_client_that_disconnects_in_the_queue_loses_its_turn(serve: Serve) -> None:
    workers = Workers()
    running_server = serve(Application(workers.respond, ("Content-Length", "2")), threads=20)
    with contextlib.ExitStack() as stack:
        (first_client,) = send_requests(running_server, stack, b"/work", 1)
        eventually(lambda: workers.paths == ["/work"])
        (closed_client,) = send_requests(running_server, stack, b"/gone", 1)
        eventually(lambda: len(running_server.exchanges) == 2)
        running_server.wait_until_idle()
        closed_client.close()
        eventually(lambda: running_server.finished_exchanges == running_server.exchanges[1:])
        (last_client,) = send_requests(running_server, stack, b"/last", 1)
        workers.release()
        assert read_rest(first_client).endswith(b"ok")
        assert read_rest(last_client).endswith(b"ok")
    assert workers.paths == ["/work", "/last"]


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(serve: Serve) -> None:
    application = Application(lambda _: [b"ok"])
    response = serve(application).exchange_bytes(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000001\r\n\r\n")
    assert b" 413 " in response
    assert application.environments == []


def test_a_late_body_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_SECONDS", 0.1)
    application = Application(lambda _: [b"ok"])
    response = serve(application).exchange_bytes(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
    assert b" 408 " in response
    assert application.environments == []


def test_a_client_gets_the_refusal_of_a_much_too_large_body(serve: Serve) -> None:
    running_server = serve(echo)
    for version in (1, 0):  # with HTTP/1.0, as nginx speaks it, no other request may follow
        head = b"POST / HTTP/1.%d\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n" % version
        assert running_server.exchange_bytes(head, b"x" * 20_000_000).startswith(b"HTTP/1.1 413 ")


def large_request(client: bytes, size: int = 100_000, verb: bytes = b"POST", path: bytes = b"/wait") -> bytes:
    """A request of a client with these credentials, with a body that is large enough to count."""
    head = b"%b %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (verb, path, client, size) + b"x" * size


class Senders:
    """Clients whose requests hang in the application."""

    def __init__(self, serve: Serve) -> None:
        self._stack = contextlib.ExitStack()
        self.workers = Workers()
        self.server = serve(Application(self.workers.respond, ("Content-Length", "2")), threads=20)

    def __enter__(self) -> Senders:
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.release()
        self._stack.close()

    def send(self, request: bytes, address: str = "127.0.0.1") -> socket.socket:
        connection = self._stack.enter_context(self.server.connect(address))
        connection.sendall(request)
        return connection

    def hang(self, request: bytes, address: str = "127.0.0.1") -> socket.socket:
        count_before = len(self.workers.paths)
        connection = self.send(request, address)
        eventually(lambda: len(self.workers.paths) == count_before + 1)
        return connection

    def status(self, request: bytes, address: str = "127.0.0.1") -> int:
        """The status of a refused request."""
        return int(read_rest(self.send(request, address)).split()[1])


def test_large_bodies_of_one_client_leave_memory_for_other_clients(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsgi_server, "BODIES_OF_CLIENT", 200_000)
    monkeypatch.setattr(wsgi_server, "BODIES", 400_000)
    with Senders(serve) as senders:
        clients = [senders.hang(large_request(b"a")) for _ in range(2)]
        assert senders.status(large_request(b"a")) == 429
        clients += [senders.hang(large_request(b"b")), senders.hang(large_request(b"b"))]
        assert senders.status(large_request(b"c")) == 503
        clients += [senders.hang(large_request(b"c", wsgi_server.SHORT_BODY)), senders.hang(large_request(b"c", 0))]
        senders.workers.release()
        assert all(read_rest(connection).endswith(b"ok") for connection in clients)
        for client in (b"a", b"b"):  # each client can use its whole limit again
            request = large_request(client, 200_000)
            eventually(lambda request=request: read_rest(senders.send(request)).endswith(b"ok"))


def test_large_bodies_of_one_address_leave_memory_for_other_addresses(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wsgi_server, "BODIES_OF_ADDRESS", 300_000)
    monkeypatch.setattr(wsgi_server, "BODIES", 400_000)
    with Senders(serve) as senders:
        for client in (b"a", b"b", b"c"):
            senders.hang(large_request(client), "127.0.0.2")
        assert senders.status(large_request(b"d"), "127.0.0.2") == 429
        senders.hang(large_request(b"e"))


def test_the_body_of_a_GET_is_not_stored(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "BODIES", 100_000)
    with Senders(serve) as senders:
        for client in (b"a", b"b"):
            senders.hang(large_request(client, verb=b"GET"))
        senders.hang(large_request(b"c"))


def test_a_growing_body_succeeds_among_many_stalled_bodies(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "PARTIAL_BODIES", 500_000)
    with Senders(serve) as senders:
        request, bytes_in_memory = large_request(b"honest", 300_000), senders.server.bytes_in_memory
        head_size = len(request) - 300_000
        growing_client = senders.send(request[:30_000])
        eventually(lambda: bytes_in_memory(growing_client) >= 30_000 - head_size)
        stalled_clients: list[socket.socket] = []
        for number in range(10):
            stalled_clients.append(senders.send(large_request(b"%d" % number)[:-1], f"127.0.0.{2 + number}"))
            eventually(lambda: bytes_in_memory(stalled_clients[-1]) >= 99_999)
            growing_client.sendall(request[30_000 + 20_000 * number : 50_000 + 20_000 * number])
            eventually(lambda number=number: bytes_in_memory(growing_client) >= 50_000 + 20_000 * number - head_size)
            eventually(
                lambda: sum(map(bytes_in_memory, [growing_client, *stalled_clients])) <= 500_000 + HEAD_ALLOWANCE
            )
        assert read_rest(stalled_clients[0]) == b""
        growing_client.sendall(request[230_000:])
        eventually(lambda: senders.workers.paths == ["/wait"])
        senders.workers.release()
        assert read_rest(growing_client).endswith(b"ok")


def test_a_head_without_its_body_does_not_count_as_a_body(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_server, "PARTIAL_BODIES", 200_000)
    with Senders(serve) as senders:
        stalled_client = senders.send(large_request(b"a")[:-1])
        eventually(lambda: senders.server.bytes_in_memory(stalled_client) >= 99_999)
        for number in range(10):
            senders.send(large_request(b"%d" % number, 4_000_000)[:200])
        eventually(lambda: len(senders.server.exchanges) == 11)
        stalled_client.sendall(b"x")
        eventually(lambda: senders.workers.paths == ["/wait"])
        # This body is complete and does not count against later bodies.
        later_clients = [senders.send(large_request(client)[:-1]) for client in (b"b", b"c")]
        eventually(lambda: all(senders.server.bytes_in_memory(client) >= 99_999 for client in later_clients))
        for client in later_clients:
            client.sendall(b"x")
        eventually(lambda: senders.workers.paths == ["/wait"] * 3)


def test_a_waiting_request_does_not_begin_after_its_client_disconnects(serve: Serve) -> None:
    workers = Workers()
    running_server = serve(Application(workers.respond, ("Content-Length", "2")), threads=4)
    with contextlib.ExitStack() as stack:
        busy_clients = send_requests(running_server, stack, b"/wait", 3)
        eventually(lambda: len(workers.paths) == 3)
        closed_client, half_closed_client = send_requests(running_server, stack, b"/next", 2)
        eventually(lambda: len(running_server.exchanges) == 5)
        running_server.wait_until_idle()
        closed_client.close()
        half_closed_client.shutdown(socket.SHUT_WR)
        eventually(lambda: set(running_server.finished_exchanges) == set(running_server.exchanges[3:]))
        assert read_rest(half_closed_client) == b""
        workers.release()
        assert all(read_rest(client).endswith(b"ok") for client in busy_clients)
    assert workers.paths == ["/wait"] * 3


def test_running_requests_have_limited_time_when_the_server_stops(serve: Serve) -> None:
    may_continue = threading.Event()

    def respond_later(environment: WSGIEnvironment) -> Iterable[bytes]:
        may_continue.wait(0.3 if environment["PATH_INFO"] == "/soon" else 20)
        return [b"ok"]

    application = Application(respond_later, ("Content-Length", "2"))
    running_server = serve(application)
    with running_server.connect() as quick_client, running_server.connect() as slow_client:
        for client, path in ((quick_client, b"/soon"), (slow_client, b"/late")):
            client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        eventually(lambda: len(application.environments) == 2)
        running_server.on_loop(running_server.server.stop(1)).result(5)
        assert read_rest(quick_client).endswith(b"ok")
        assert read_rest(slow_client) == b""
    may_continue.set()
