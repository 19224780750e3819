"""The proxy passes bytes, and takes the service away in three ways."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.storm.proxy import Proxy


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """Before a service that says everything again."""
    service = socket.create_server(("127.0.0.1", 0))

    def echo(one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            while part := one.recv(100):
                one.sendall(part)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=echo, args=(service.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    made = Proxy("127.0.0.1", service.getsockname()[1])
    yield made
    made.close()
    service.shutdown(socket.SHUT_RDWR)
    service.close()


def opened(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.partition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def says(one: socket.socket, text: bytes) -> bytes:
    one.sendall(text)
    return one.recv(100)


def hears_its_end(one: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        while one.recv(100):
            pass
    return True


def hears_nothing(one: socket.socket) -> bool:
    one.settimeout(0.2)
    try:
        return not one.recv(100)
    except TimeoutError:
        return True
    finally:
        one.settimeout(5)


def test_a_killed_service_resets_and_refuses_until_it_is_back_at_the_same_address(proxy: Proxy) -> None:
    with opened(proxy) as one:
        assert says(one, b"a") == b"a"
        proxy.kill()
        assert hears_its_end(one)
    with pytest.raises(ConnectionRefusedError):
        opened(proxy)
    proxy.heal()
    with opened(proxy) as one:
        assert says(one, b"b") == b"b"


def test_a_mute_service_is_late_and_loses_nothing(proxy: Proxy) -> None:
    with opened(proxy) as one:
        assert says(one, b"a") == b"a"
        proxy.mute()
        one.sendall(b"b")
        with opened(proxy) as other:
            other.sendall(b"c")
            assert hears_nothing(one)
            assert hears_nothing(other)
            proxy.heal()
            assert (one.recv(100), other.recv(100)) == (b"b", b"c")


def test_connections_that_were_cut_off_are_dead_when_the_service_is_back(proxy: Proxy) -> None:
    with opened(proxy) as one:
        assert says(one, b"a") == b"a"
        proxy.cut()
        one.sendall(b"b")
        assert hears_nothing(one)
        proxy.heal()
        assert hears_its_end(one)
    with opened(proxy) as one:
        assert says(one, b"c") == b"c"
