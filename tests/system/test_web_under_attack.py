"""Half-sent requests, silent connections and slow readers against a real hall's web, beside an honest client."""

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
PROMPT = 2.0  # seconds, on a busy machine
HEAD_SECONDS = 10.0
MAX_BODY = 4_000_000


def brought_up(hall: Hall) -> Hall:
    hall.up()
    wait_for_web(hall)
    assert requests.get(f"{hall.url}/admin/login/", timeout=20).ok  # all is imported
    return hall


@pytest.fixture(scope="module")
def web(shared_hall: Hall) -> Hall:
    return brought_up(shared_hall)


@pytest.fixture
def many_files() -> Iterator[None]:
    """2,000 sockets are more than some systems allow at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4_096 if hard == resource.RLIM_INFINITY else min(4_096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
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
def held(hall: Hall, count: int, said: bytes, *, receive: int = 0) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(connect(hall, receive=receive)))
            if said:
                connections[-1].sendall(said)
        yield connections


def form(hall: Hall) -> bytes:
    """The head of a form that Django reads before it checks who sent it."""
    return FORM % (f"guildhall_{hall.web_port}_csrf".encode(), b"a" * 32)


def an_honest_client_is_served(hall: Hall, times: int = 10) -> None:
    took = []
    for _ in range(times):
        watch = Stopwatch()
        answer = requests.get(f"{hall.url}/admin/login/", timeout=20)
        took.append(watch.seconds)
        assert answer.status_code == 200
    assert statistics.median(took) < PROMPT, took


def everything(connection: socket.socket) -> bytes:
    heard = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            heard += part
    return bytes(heard)


@pytest.mark.parametrize("count", [40, 200])
def test_half_sent_heads_hold_up_nobody(web: Hall, count: int) -> None:
    with held(web, count, HEAD):
        an_honest_client_is_served(web)


@pytest.mark.parametrize("count", [40, 200])
def test_half_sent_bodies_hold_up_nobody(web: Hall, count: int) -> None:
    with held(web, count, form(web) + b"Content-Length: 100\r\n\r\nusername="):
        an_honest_client_is_served(web)


def test_silent_connections_hold_up_nobody(web: Hall, many_files: None) -> None:
    with held(web, 2_000, b""):
        an_honest_client_is_served(web)


def test_who_reads_no_answers_holds_up_nobody(web: Hall) -> None:
    with held(web, 40, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % SCRIPT * 8, receive=4_096):
        an_honest_client_is_served(web)


def test_a_head_that_trickles_in_is_ended_in_time_and_holds_up_nobody(web: Hall) -> None:
    with held(web, 40, HEAD + b"X: ") as connections:
        over = threading.Event()

        def trickle() -> None:
            while not over.wait(0.5):
                for connection in connections:
                    with contextlib.suppress(OSError):
                        connection.send(b"y")

        began = time.monotonic()
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            an_honest_client_is_served(web)
            connections[0].settimeout(3 * HEAD_SECONDS)
            assert b" 408 " in everything(connections[0])
            assert HEAD_SECONDS - 1 < time.monotonic() - began < 2 * HEAD_SECONDS
        finally:
            over.set()
            thread.join()


def test_large_heads_and_bodies_are_refused_and_not_kept(web: Hall) -> None:
    with connect(web) as connection:
        connection.sendall(HEAD + b"X: " + b"y" * 65_536)
        assert b" 431 " in everything(connection)
    with connect(web) as connection:
        connection.sendall(form(web) + b"Content-Length: 1000000000000\r\n\r\n")
        assert b" 413 " in everything(connection)
    with connect(web) as connection:
        connection.sendall(form(web) + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
        assert b" 413 " in everything(connection)[:30] or everything(connection) == b""
    an_honest_client_is_served(web)


def test_half_sent_bodies_take_little_memory_and_give_it_back(hall: Hall) -> None:
    web = brought_up(hall)  # of its own: what others took and gave back would be counted
    (process,) = [one for one in psutil.Process(web.processes[0].pid).children() if "guildhall.web" in one.cmdline()]
    before = process.memory_info().rss
    with held(web, 100, form(web) + b"Content-Length: 3000000\r\n\r\n") as connections:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b"x" * 2_000_000)
        an_honest_client_is_served(web)
        # 32 MB may be on their way, and the allocator keeps as much again or more; all that is sent would be 200.
        assert process.memory_info().rss - before < 120_000_000
    eventually(lambda: len(process.net_connections("tcp")) < 10)
    an_honest_client_is_served(web)
