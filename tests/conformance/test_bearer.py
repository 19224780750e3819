"""The relay that adds a token to the requests of the suite."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from tests.conformance import bearer

REQUEST = b"POST /mcp HTTP/1.1\r\nHost: evil.example.com\r\nMCP-NAME:   a  \r\nContent-Length: 5\r\n\r\nhello"
WITH_TOKEN = REQUEST.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nAuthorization: Bearer secret\r\n")


@pytest.fixture
def listener() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


def read(connection: socket.socket, size: int) -> bytes:
    connection.settimeout(10)
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


def test_every_request_of_a_connection_gets_the_token_and_nothing_else_changes(listener: socket.socket) -> None:
    with (
        bearer.relay(listener.getsockname()[1], "secret") as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as suite,
    ):
        suite.sendall(REQUEST + REQUEST)
        with closing(listener.accept()[0]) as hall:
            assert read(hall, 2 * len(WITH_TOKEN)) == 2 * WITH_TOKEN


def test_a_response_is_relayed_in_its_original_parts(listener: socket.socket) -> None:
    with (
        bearer.relay(listener.getsockname()[1], "secret") as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as suite,
    ):
        suite.sendall(REQUEST)
        with closing(listener.accept()[0]) as hall:
            read(hall, len(WITH_TOKEN))
            for part in (b"data: 1\n\n", b"data: 2\n\n"):
                hall.sendall(part)
                assert read(suite, len(part)) == part


def test_the_end_of_either_side_ends_the_other(listener: socket.socket) -> None:
    with bearer.relay(listener.getsockname()[1], "secret") as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as suite, closing(listener.accept()[0]) as hall:
            suite.close()
            assert read(hall, 1) == b""
        with socket.create_connection(("127.0.0.1", port), timeout=10) as suite, closing(listener.accept()[0]) as hall:
            hall.close()
            assert read(suite, 1) == b""
