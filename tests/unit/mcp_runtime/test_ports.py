from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import psutil
import pytest

from mcp_runtime.members import ports
from tests.conftest import eventually

LISTEN = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""

# Address and port. Prints the port, as LISTEN does.
LISTEN_SHARED = """
import socket, subprocess, sys, time
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen()
if sys.argv[3:]:
    port = str(server.getsockname()[1])
    subprocess.run([sys.executable, "-c", sys.argv[3], "0.0.0.0", port])
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def bound(address: str, port: int = 0, *, listening: bool = True) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((address, port))
        if listening:
            server.listen()
        yield server.getsockname()[1]


@contextlib.contextmanager
def listener(address: str, *, as_grandchild: bool = False) -> Iterator[tuple[int, int]]:
    """Pid and port of a process that listens on `address`, or whose child does."""
    argv = [sys.executable, "-c", LISTEN, address]
    if as_grandchild:
        argv = ["sh", "-c", '"$@"; true', "sh", *argv]
    with running(argv) as found:
        yield found


@contextlib.contextmanager
def running(argv: list[str]) -> Iterator[tuple[int, int]]:
    """Pid of a process, and the port that it, or who shares its output, prints first."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def refused(process: psutil.Process, kind: str) -> Any:
    """In the place of psutil's look into the tables."""
    raise psutil.AccessDenied(process.pid)


# Which to try -----------------------------------------------------------------------------------------------------


def test_ports_are_tried_in_sequence() -> None:
    assert list(ports.candidates(20000, 20003)) == [20000, 20001, 20002, 20003]


def test_the_preferred_port_comes_first_and_once() -> None:
    assert list(ports.candidates(20000, 20003, 20002)) == [20002, 20000, 20001, 20003]


@pytest.mark.parametrize("preferred", [None, 19999, 20004, 0])
def test_a_preference_outside_the_range_is_none(preferred: int | None) -> None:
    assert list(ports.candidates(20000, 20003, preferred)) == [20000, 20001, 20002, 20003]


def test_a_range_of_one_port_is_one_port() -> None:
    assert list(ports.candidates(20000, 20000, 20000)) == [20000]


# Is it free -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("listening", [True, False])
def test_a_port_that_somebody_has_bound_is_not_free(address: str, listening: bool) -> None:
    with bound(address, listening=listening) as port:
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_asking_takes_nothing() -> None:
    with bound("127.0.0.1") as port:
        pass
    assert ports.is_free(port)
    assert ports.is_free(port)
    with bound("127.0.0.1", port):
        pass


def test_connections_that_linger_after_a_server_are_no_reason_to_pass_its_port_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side first: so TIME_WAIT stays with its port
            assert client.recv(1) == b""
    assert ports.is_free(port)


def test_a_port_that_may_not_be_bound_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ports.socket, "socket", Forbidden)
    assert not ports.is_free(20000)


def test_a_machine_without_ipv6_has_free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyIPv4(socket.socket):
        def __init__(self, family: int = socket.AF_INET, *args: int) -> None:
            if family == socket.AF_INET6:
                raise OSError(97, "Address family not supported by protocol")
            super().__init__(family, *args)

    with bound("127.0.0.1") as port:
        pass
    monkeypatch.setattr(ports.socket, "socket", OnlyIPv4)
    assert ports.is_free(port)


# Who listens ------------------------------------------------------------------------------------------------------


def test_a_port_answers_while_somebody_accepts_connections() -> None:
    with bound("127.0.0.1", listening=False) as port:
        assert not ports.answers(port)
    with bound("127.0.0.1") as port:
        assert ports.answers(port)
    assert not ports.answers(port)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_it_is_seen_where_a_process_listens(address: str) -> None:
    with listener(address) as (pid, port):
        assert ports.listening_addresses(pid, port) == {address}


def test_every_address_of_a_port_is_seen() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("::1", one.getsockname()[1]), family=socket.AF_INET6),
    ):
        assert ports.listening_addresses(os.getpid(), one.getsockname()[1]) == {"127.0.0.1", "::1"}


def test_where_the_kernel_tells_nothing_of_sockets_the_tables_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "NETLINK_SOCK_DIAG", 31)  # no such family
    with listener("127.0.0.1") as (pid, port):
        assert ports.listening_addresses(pid, port) == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        pytest.param(socket, "IPPROTO_TCP", 199, id="a kernel without tcp_diag, as of a protocol it does not know"),
        pytest.param(ports, "DUMP", (99, 0x301), id="a kernel that does not know the question"),
    ],
)
def test_a_kernel_that_answers_with_an_error_does_not_say_that_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: object
) -> None:
    with listener("127.0.0.1") as (pid, port), monkeypatch.context() as patch:
        patch.setattr(module, name, value)
        assert ports.listening_addresses(pid, port) == {"127.0.0.1"}
        patch.setattr(psutil.Process, "net_connections", refused)  # it is they that told
        assert ports.listening_addresses(pid, port) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of one port")
def test_a_kernel_without_ipv6_still_tells_of_the_other_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    with bound("127.0.0.1") as port, monkeypatch.context() as patch:
        patch.setattr(socket, "AF_INET6", 77)  # no such family
        patch.setattr(psutil.Process, "net_connections", refused)
        assert ports.listening_addresses(os.getpid(), port) == {"127.0.0.1"}


def test_a_child_that_listens_counts_for_its_parent() -> None:
    with listener("127.0.0.1", as_grandchild=True) as (pid, port):
        assert ports.listening_addresses(pid, port) == {"127.0.0.1"}


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="the system lets no two listen on one port")
@pytest.mark.parametrize("kernel_tells", [True, False])
def test_a_child_that_listens_for_everybody_is_not_hidden_by_its_parent_on_the_loopback(
    kernel_tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_tells:
        monkeypatch.setattr(ports, "NETLINK_SOCK_DIAG", 31)  # no such family
    with running([sys.executable, "-c", LISTEN_SHARED, "127.0.0.1", "0", LISTEN_SHARED]) as (pid, port):
        assert ports.listening_addresses(pid, port) == {"127.0.0.1", "0.0.0.0"}


def test_another_port_and_another_process_do_not_count() -> None:
    with listener("127.0.0.1") as (one, its_port), listener("127.0.0.1") as (other, others_port):
        assert ports.listening_addresses(one, others_port) == set()
        assert ports.listening_addresses(other, its_port) == set()


def test_a_process_that_is_gone_listens_nowhere() -> None:
    with listener("127.0.0.1") as (pid, port):
        pass
    assert eventually(lambda: ports.listening_addresses(pid, port) == set())


def test_a_connection_is_not_a_listener() -> None:
    with bound("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
        assert ports.listening_addresses(os.getpid(), client.getsockname()[1]) == set()


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
    ],
)
def test_loopback_is_what_nobody_else_can_reach(address: str, is_loopback: bool) -> None:
    assert ports.is_loopback(address) is is_loopback
