"""Half-sent requests, silent connections and slow readers at the web of a real hall, beside an honest client."""

from __future__ import annotations

import contextlib
import resource
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import requests

from tests.conftest import eventually
from tests.support.hall import Hall, wait_for_web
from tests.support.machine import Stopwatch

HEAD = b"POST /admin/login/ HTTP/1.1\r\nHost: localhost\r\n"
FORM = HEAD + b"Content-Type: application/x-www-form-urlencoded\r\nCookie: %s=%s\r\n"
SCRIPT = b"/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js"  # more than a megabyte
MAX_SECONDS = 2.0  # seconds, on a busy machine
HEAD_SECONDS = 10.0
MAX_BODY = 4_000_000


def start_hall(hall: Hall) -> Hall:
    hall.up()
    wait_for_web(hall)
    assert requests.get(f"{hall.url}/admin/login/", timeout=20).ok  # all modules are imported
    return hall


@pytest.fixture(scope="module")
def web(shared_hall: Hall) -> Hall:
    return start_hall(shared_hall)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files, because some systems allow less than 2,000 sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 4_096 if hard == resource.RLIM_INFINITY else min(4_096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(hall: Hall, *, receive: int = 0) -> socket.socket:
    connection = socket.socket()
    if receive:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", hall.web_port))
    return connection


@contextlib.contextmanager
def open_connections(hall: Hall, count: int, data: bytes, *, receive: int = 0) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(connect(hall, receive=receive)))
            if data:
                connections[-1].sendall(data)
        yield connections


def form(hall: Hall) -> bytes:
    """The head of a form that Django reads before it checks the login."""
    return FORM % (f"guildhall_{hall.web_port}_csrf".encode(), b"a" * 32)


def check_honest_client(hall: Hall, times: int = 10) -> None:
    durations = []
    for _ in range(times):
        watch = Stopwatch()
        response = requests.get(f"{hall.url}/admin/login/", timeout=20)
        durations.append(watch.seconds)
        assert response.status_code == 200
    assert statistics.median(durations) < MAX_SECONDS, durations


def read_all(connection: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            data += part
    return bytes(data)


@pytest.mark.parametrize("count", [40, 200])
def test_half_sent_heads_delay_no_other_client(web: Hall, count: int) -> None:
    with open_connections(web, count, HEAD):
        check_honest_client(web)


@pytest.mark.parametrize("count", [40, 200])
def test_half_sent_bodies_delay_no_other_client(web: Hall, count: int) -> None:
    with open_connections(web, count, form(web) + b"Content-Length: 100\r\n\r\nusername="):
        check_honest_client(web)


def test_silent_connections_delay_no_other_client(web: Hall, many_files: None) -> None:
    with open_connections(web, 2_000, b""):
        check_honest_client(web)


def test_clients_that_read_no_responses_delay_no_other_client(web: Hall) -> None:
    with open_connections(web, 40, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % SCRIPT * 8, receive=4_096):
        check_honest_client(web)


def test_a_head_that_arrives_too_slowly_gets_408_and_delays_no_other_client(web: Hall) -> None:
    with open_connections(web, 40, HEAD + b"X: ") as connections:
        end = threading.Event()

        def trickle() -> None:
            while not end.wait(0.5):
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(b"y")

        start = time.monotonic()
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            check_honest_client(web)
            connections[0].settimeout(3 * HEAD_SECONDS)
            assert b" 408 " in read_all(connections[0])
            assert HEAD_SECONDS - 1 < time.monotonic() - start < 2 * HEAD_SECONDS
        finally:
            end.set()
            thread.join()


def test_large_heads_and_bodies_are_refused_and_not_kept(web: Hall) -> None:
    with connect(web) as connection:
        connection.sendall(HEAD + b"X: " + b"y" * 65_536)
        assert b" 431 " in read_all(connection)
    with connect(web) as connection:
        connection.sendall(form(web) + b"Content-Length: 1000000000000\r\n\r\n")
        assert b" 413 " in read_all(connection)
    with connect(web) as connection:
        connection.sendall(form(web) + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
        assert b" 413 " in read_all(connection)[:30] or read_all(connection) == b""
    check_honest_client(web)


def test_half_sent_bodies_use_little_memory(hall: Hall) -> None:
    web = start_hall(hall)  # a new hall, so that memory of other tests does not count
    (process,) = [
        child for child in psutil.Process(web.processes[0].pid).children() if "guildhall.web" in child.cmdline()
    ]
    memory = process.memory_info().rss
    with open_connections(web, 100, form(web) + b"Content-Length: 3000000\r\n\r\n") as connections:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b"x" * 2_000_000)
        check_honest_client(web)
        # 32 MB may be in buffers, and the allocator keeps as much again or more. All data would be 200 MB.
        assert process.memory_info().rss - memory < 120_000_000
    eventually(lambda: len(process.net_connections("tcp")) < 10)
    check_honest_client(web)
