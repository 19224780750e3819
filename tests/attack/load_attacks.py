"""One principal uses as many bytes, connections, streams and slots as possible. Memory stays bounded."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from tests.attack.client import call_message, connect
from tests.attack.hall import Hall, eventually
from tests.attack.tally import Tally

MEGABYTE = 1_000_000
MAX_GROWTH = 200 * MEGABYTE  # of web, guard and worker during an attack
MAX_REMAINING = 120 * MEGABYTE  # growth that may remain after an attack, because allocators keep some memory
RETURN_SECONDS = 20.0
MAX_WAIT = 2.0  # seconds, for a neighbour at the same member


@contextlib.contextmanager
def memory_returns(hall: Hall, tally: Tally) -> Iterator[None]:
    """Web, guard and worker may grow only within bounds during the block, and must shrink again."""
    memory, peak, end = hall.memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not end.wait(0.1):
            peak = max(peak, hall.memory())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    tally.expect(peak - memory < MAX_GROWTH, f"memory grew by over {MAX_GROWTH // MEGABYTE} MB")
    is_returned = eventually(lambda: hall.memory() - memory < MAX_REMAINING, RETURN_SECONDS)
    tally.expect(is_returned, f"over {MAX_REMAINING // MEGABYTE} MB remained")


def head(hall: Hall, port: int, length: int, path: str = "/mcp", more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {hall.tokens['attacker']}\r\n"
        f"Content-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n"
    ).encode()


@contextlib.contextmanager
def open_connections(hall: Hall, port: int, data: bytes, number: int) -> Iterator[list[socket.socket]]:
    """Open many connections that send `data` and then nothing."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(number):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(connect(port))
                connection.settimeout(1.0)
                connections.append(connection)
                connection.sendall(data)
        yield connections


def honest_calls(hall: Hall, tally: Tally, seconds: float) -> None:
    """The victim calls gateway and web on new connections all the time, and every response must be fast.

    This is not the neighbour, whose figures contain only the delay by others, not by its own calls.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for name, call in (("web", _over_rest), ("gateway", _through_gateway)):
            start = time.monotonic()
            try:
                is_right = call(hall)
            except (OSError, http.client.HTTPException, ValueError):
                is_right = False
            tally.expect(is_right, f"an honest call at the {name} failed")
            tally.expect(
                time.monotonic() - start < 2 * MAX_WAIT, f"an honest call at the {name} took over {2 * MAX_WAIT:g} s"
            )
        time.sleep(0.1)


def _over_rest(hall: Hall) -> bool:
    with hall.web("victim", seconds=10) as client:
        return client.rest("GET", "/api/members/neighbour/").status == 200


def _through_gateway(hall: Hall) -> bool:
    with hall.client("victim", seconds=10) as client:
        return client.call("neighbour__echo", {"text": "hello"}, modern=True).text == "hello"


def half_sent_requests(hall: Hall, tally: Tally) -> None:
    """Heads and bodies that never end, at gateway and web, with and without a token, more than the web's threads."""
    seconds = 6.0 * max(tally.share, 0.2)
    for port, path in ((hall.port, "/api/roster/"), (hall.gateway_port, "/mcp")):
        requests = [
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
            head(hall, port, 100_000, path) + b"{",
            f"POST /admin/login/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 500\r\n\r\na=".encode(),
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\nx",
        ]
        for data in requests:
            with open_connections(hall, port, data, 40) as connections:
                tally.tries += len(connections)
                honest_calls(hall, tally, seconds / len(requests))


def silent_connections(hall: Hall, tally: Tally) -> None:
    """Connections that send nothing."""
    for port in (hall.port, hall.gateway_port):
        with memory_returns(hall, tally), open_connections(hall, port, b"", tally.share_of(2000, 400)) as connections:
            tally.tries += len(connections)
            honest_calls(hall, tally, 6.0 * max(tally.share, 0.2))


def slow_readers_and_writers(hall: Hall, tally: Tally) -> None:
    """Requests that arrive byte by byte, and requests whose responses nobody reads."""
    end = threading.Event()
    request = head(hall, hall.gateway_port, 2, more="X: " + "y" * 400 + "\r\n")
    list_request = (
        f"GET /api/roster/ HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {hall.tokens['attacker']}\r\n\r\n"
    )

    def drip(port: int) -> None:
        with contextlib.suppress(OSError), connect(port) as connection:
            for byte in request:
                if end.wait(0.05):
                    return
                connection.sendall(bytes([byte]))

    with ThreadPoolExecutor(60) as pool, contextlib.ExitStack() as stack:
        for number in range(60):
            pool.submit(drip, hall.port if number % 2 else hall.gateway_port)
        for _ in range(16):
            connection = stack.enter_context(contextlib.closing(_slow_socket(hall.port)))
            connection.sendall(list_request.encode() * 50)
        tally.tries += 60 + 16 * 50
        try:
            honest_calls(hall, tally, 8.0 * max(tally.share, 0.2))
        finally:
            end.set()


def unfinished_bodies(hall: Hall, tally: Tally) -> None:
    """200 bodies of 3.9 MB without their last byte."""
    body = b'{"a":"' + b"x" * (3_900_000 - 7)
    with memory_returns(hall, tally), ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as stack:

        def send(_: int) -> None:
            with contextlib.suppress(OSError):
                connection = stack.enter_context(connect(hall.gateway_port))
                connection.settimeout(2.0)
                connection.sendall(head(hall, hall.gateway_port, 3_900_000) + body)

        results = pool.map(send, range(tally.share_of(200, 100)))
        honest_calls(hall, tally, 3.0 * max(tally.share, 0.3))
        tally.tries += len(list(results))
        honest_calls(hall, tally, 3.0 * max(tally.share, 0.3))


def costly_bodies(hall: Hall, tally: Tally) -> None:
    """Bodies that are expensive to read: millions of `{}`, depth, long strings and numbers. Nobody else must wait."""
    braces = b"[" + b"{}," * 1_200_000 + b"{}]"
    argument = {
        "braces": braces,
        "brackets": b"[" + b"[]," * 1_200_000 + b"[]]",
        "depth": b"[" * 100_000 + b"]" * 100_000,
        "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "string": b'"' + b"x" * 3_600_000 + b'"',
        "escapes": b'"' + b"\\u0000" * 600_000 + b'"',
        "numbers": b"[" + b"1e308," * 600_000 + b"1]",
        "long number": b"1" * 3_600_000,
        "keys": b"{" + b",".join(b'"%d":0' % n for n in range(300_000)) + b"}",
    }
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b","arguments":{"a":%b}}}'

    def send(case: tuple[str, bytes]) -> None:
        kind, tool = case
        tally.expect(_status(hall, body % (tool, argument[kind])) < 500, f"the gateway answered 5xx to {kind}")

    end = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        future = pool.submit(honest_until, hall, tally, end)
        try:
            list(pool.map(send, [*product(argument, (b"hostile__anything", b"nobody__knows"))] * tally.share_of(4)))
        finally:
            end.set()
        future.result()


def _status(hall: Hall, body: bytes) -> int:
    """The status, or 0 if the connection was closed, which is allowed for a body over a budget."""
    with hall.client("attacker") as client:
        with contextlib.suppress(OSError, http.client.HTTPException):
            client.begin()
            return client.post(body).status
        return 0


def honest_until(hall: Hall, tally: Tally, end: threading.Event) -> None:
    while not end.is_set():
        honest_calls(hall, tally, 0.2)


def unread_streams(hall: Hall, tally: Tally) -> None:
    """Streams with log messages of 100 kB that nobody reads."""
    with memory_returns(hall, tally), contextlib.ExitStack() as stack:
        count = tally.share_of(1000, 300)
        for number in range(20):
            message, headers = call_message("hostile__flood", {"count": count, "bytes": 100_000}, number)
            client = stack.enter_context(hall.client("attacker")).begin()
            all_headers = {**client.headers, **headers}
            connection = stack.enter_context(contextlib.closing(_slow_socket(hall.gateway_port)))
            body = json.dumps(message).encode()
            lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
            first = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
            connection.sendall(first.encode() + body)
            tally.tries += 1
        honest_calls(hall, tally, 8.0 * max(tally.share, 0.25))


def unread_listeners(hall: Hall, tally: Tally) -> None:
    """Streams of GET, for notifications of a stdio member, that nobody reads."""
    with memory_returns(hall, tally), contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(hall.client("attacker", "/mcp/pipe")).begin()
            lines = "".join(f"{name}: {value}\r\n" for name, value in client.headers.items() if name != "Accept")
            connection = stack.enter_context(contextlib.closing(_slow_socket(hall.gateway_port)))
            request_head = f"GET /mcp/pipe HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{lines}\r\n"
            connection.sendall(request_head.encode())
        with hall.client("attacker", "/mcp/pipe") as other_client:
            other_client.begin()
            for _ in range(tally.share_of(100, 30)):
                other_client.call("shout", {"text": "s" * 1_000_000})
                tally.tries += 1
        honest_calls(hall, tally, 2.0 * max(tally.share, 0.5))


def _slow_socket(port: int) -> socket.socket:
    """A connection with the smallest buffer, so that unread data stays in the hall."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", port))
    return connection


def giant_answers(hall: Hall, tally: Tally) -> None:
    """A member returns 50 MB, which is too much, to several clients at once, through gateway and REST."""

    def call(number: int) -> None:
        if number % 4 == 0:
            with hall.web("attacker") as web:
                reply = web.rest("POST", "/api/members/hostile/tools/big/invoke/", {"arguments": {}}, Prefer="wait=20")
                tally.expect(reply.status in (200, 202, 429), f"REST answered {reply.status} to a giant result")
            return
        with hall.client("attacker") as client:
            size = 3_900_000 if number % 4 == 1 else 50_000_000
            reply = client.call("hostile__big", {"bytes": size}, modern=number % 2 == 0)
            tally.expect(reply.status < 500 or b"error" in reply.body, "a giant result got no error")

    with memory_returns(hall, tally), ThreadPoolExecutor(4) as pool:
        future = pool.submit(honest_calls, hall, tally, 4.0 * max(tally.share, 0.4))
        list(pool.map(call, range(tally.share_of(40, 8))))
        future.result()


def hanging_calls(hall: Hall, tally: Tally) -> None:
    """64 hanging calls of one token leave slots for another token at the member, at the gateway and in the queue."""
    for source in ("gateway", "queue"):
        with ThreadPoolExecutor(64) as pool, contextlib.ExitStack() as stack:
            futures = [pool.submit(_hang, hall, stack, source) for _ in range(64)]
            for future in futures:
                future.result()
            tally.tries += len(futures)
            for number in range(tally.share_of(20, 3)):
                start = time.monotonic()
                with hall.client("victim", seconds=15) as client, hall.web("victim", seconds=15) as web:
                    is_right = False
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        if source == "gateway":
                            is_right = (
                                client.call("shared__echo", {"text": f"{number}"}, modern=True).text == f"{number}"
                            )
                        else:
                            body = {"arguments": {"text": f"text {number}"}}
                            path = "/api/members/shared/tools/echo/invoke/"
                            reply = web.rest("POST", path, body, Prefer="wait=9")
                            is_right = reply.status == 200 and f"text {number}" in json.dumps(
                                json.loads(reply.body)["result"]
                            )
                seconds = time.monotonic() - start
                tally.expect(is_right, f"another token's call failed beside 64 hanging ones ({source})")
                tally.expect(
                    seconds < MAX_WAIT,
                    f"another token's call waited over {MAX_WAIT:g} s behind 64 hanging ones ({source})",
                )
            _cancel_all(hall)


def _hang(hall: Hall, stack: contextlib.ExitStack, source: str) -> None:
    if source == "queue":
        with hall.web("attacker") as web:
            web.rest("POST", "/api/members/shared/tools/sleep/invoke/", {"arguments": {"seconds": 25}})
        return
    message, headers = call_message("shared__sleep", {"seconds": 25}, 1, modern=True)
    body = json.dumps(message).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    connection = stack.enter_context(connect(hall.gateway_port))
    connection.sendall(head(hall, hall.gateway_port, len(body), more=more) + body)


def _cancel_all(hall: Hall) -> None:
    with hall.web("attacker") as web:
        page = json.loads(web.rest("GET", "/api/calls/?status=queued,running&page_size=100").body)
        for row in page.get("results", []):
            web.rest("POST", f"/api/calls/{row['id']}/cancel/")
