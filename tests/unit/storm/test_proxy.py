"""The proxy relays bytes and can interrupt the service in three ways."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.storm.proxy import Proxy


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy in front of an echo service."""
    service = socket.create_server(("127.0.0.1", 0))

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while part := connection.recv(100):
                connection.sendall(part)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=echo, args=(service.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    proxy = Proxy("127.0.0.1", service.getsockname()[1])
    yield proxy
    proxy.close()
    service.shutdown(socket.SHUT_RDWR)
    service.close()


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def send_and_read(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(100)


def has_ended(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while connection.recv(100):
            pass
    return True


def receives_nothing(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return not connection.recv(100)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)


def test_a_killed_service_resets_and_refuses_connections_until_it_is_healed(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert send_and_read(connection, b"a") == b"a"
        proxy.kill()
        assert has_ended(connection)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as connection:
        assert send_and_read(connection, b"b") == b"b"


def test_a_mute_service_delays_data_and_loses_nothing(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert send_and_read(connection, b"a") == b"a"
        proxy.mute()
        connection.sendall(b"b")
        with connect(proxy) as second_connection:
            second_connection.sendall(b"c")
            assert receives_nothing(connection)
            assert receives_nothing(second_connection)
            proxy.heal()
            assert (connection.recv(100), second_connection.recv(100)) == (b"b", b"c")


def test_cut_connections_are_dead_when_the_service_is_healed(proxy: Proxy) -> None:
    with connect(proxy) as connection:
        assert send_and_read(connection, b"a") == b"a"
        proxy.cut()
        connection.sendall(b"b")
        assert receives_nothing(connection)
        proxy.heal()
        assert has_ended(connection)
    with connect(proxy) as connection:
        assert send_and_read(connection, b"c") == b"c"
