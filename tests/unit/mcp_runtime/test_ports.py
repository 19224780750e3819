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

LISTEN_PROGRAM = """
import socket, sys, time
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""

# Needs an address and a port. Prints the port, as LISTEN_PROGRAM does.
SHARED_LISTEN_PROGRAM = """
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
def bind_port(address: str, port: int = 0, *, listening: bool = True) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((address, port))
        if listening:
            server.listen()
        yield server.getsockname()[1]


@contextlib.contextmanager
def listener(address: str, *, as_grandchild: bool = False) -> Iterator[tuple[int, int]]:
    """Pid and port of a process that listens on `address`, or whose child does."""
    argv = [sys.executable, "-c", LISTEN_PROGRAM, address]
    if as_grandchild:
        argv = ["sh", "-c", '"$@"; true', "sh", *argv]
    with run_process(argv) as pid_and_port:
        yield pid_and_port


@contextlib.contextmanager
def run_process(argv: list[str]) -> Iterator[tuple[int, int]]:
    """Pid of a process, and the port that the process or its child prints first."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        yield process.pid, int(process.stdout.readline())
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def deny_access(process: psutil.Process, kind: str) -> Any:
    """Replaces the method with which psutil reads the tables."""
    raise psutil.AccessDenied(process.pid)


# Candidates -------------------------------------------------------------------------------------------------------


def test_ports_are_tried_in_sequence() -> None:
    assert list(ports.candidates(20000, 20003)) == [20000, 20001, 20002, 20003]


def test_the_preferred_port_comes_first_and_once() -> None:
    assert list(ports.candidates(20000, 20003, 20002)) == [20002, 20000, 20001, 20003]


@pytest.mark.parametrize("preferred", [None, 19999, 20004, 0])
def test_a_preferred_port_outside_the_range_is_ignored(preferred: int | None) -> None:
    assert list(ports.candidates(20000, 20003, preferred)) == [20000, 20001, 20002, 20003]


def test_a_range_of_one_port_is_one_port() -> None:
    assert list(ports.candidates(20000, 20000, 20000)) == [20000]


# Free ports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("listening", [True, False])
def test_a_bound_port_is_not_free(address: str, listening: bool) -> None:
    with bind_port(address, listening=listening) as port:
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_is_free_does_not_bind_the_port() -> None:
    with bind_port("127.0.0.1") as port:
        pass
    assert ports.is_free(port)
    assert ports.is_free(port)
    with bind_port("127.0.0.1", port):
        pass


def test_a_port_with_connections_in_time_wait_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            connection, _ = server.accept()
            connection.close()  # the server closes first, so that TIME_WAIT stays with its port
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

    with bind_port("127.0.0.1") as port:
        pass
    monkeypatch.setattr(ports.socket, "socket", OnlyIPv4)
    assert ports.is_free(port)


# Listening processes ----------------------------------------------------------------------------------------------


def test_a_port_answers_only_while_a_process_listens() -> None:
    with bind_port("127.0.0.1", listening=False) as port:
        assert not ports.answers(port)
    with bind_port("127.0.0.1") as port:
        assert ports.answers(port)
    assert not ports.answers(port)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_the_address_of_a_listening_process_is_found(address: str) -> None:
    with listener(address) as (pid, port):
        assert ports.listening_addresses(pid, port) == {address}


def test_every_address_of_a_port_is_found() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", server.getsockname()[1]), family=socket.AF_INET6),
    ):
        assert ports.listening_addresses(os.getpid(), server.getsockname()[1]) == {"127.0.0.1", "::1"}


def test_without_netlink_the_tables_of_psutil_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "NETLINK_SOCK_DIAG", 31)  # no such family
    with listener("127.0.0.1") as (pid, port):
        assert ports.listening_addresses(pid, port) == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        pytest.param(socket, "IPPROTO_TCP", 199, id="a kernel without tcp_diag"),
        pytest.param(ports, "DUMP", (99, 0x301), id="a kernel that does not know the request"),
    ],
)
def test_after_a_kernel_error_the_tables_of_psutil_are_used(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: object
) -> None:
    with listener("127.0.0.1") as (pid, port), monkeypatch.context() as patch:
        patch.setattr(module, name, value)
        assert ports.listening_addresses(pid, port) == {"127.0.0.1"}
        patch.setattr(psutil.Process, "net_connections", deny_access)  # the addresses came from psutil
        assert ports.listening_addresses(pid, port) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports a single port")
def test_a_kernel_without_ipv6_still_reports_other_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_port("127.0.0.1") as port, monkeypatch.context() as patch:
        patch.setattr(socket, "AF_INET6", 77)  # no such family
        patch.setattr(psutil.Process, "net_connections", deny_access)
        assert ports.listening_addresses(os.getpid(), port) == {"127.0.0.1"}


@pytest.mark.parametrize("as_grandchild", [False, True])
def test_the_ports_of_a_process_and_its_children_are_found(as_grandchild: bool) -> None:
    with listener("127.0.0.1", as_grandchild=as_grandchild) as (pid, port):
        assert ports.listening_ports(pid) == [port]


def test_a_process_that_has_ended_listens_on_no_port() -> None:
    with listener("127.0.0.1") as (pid, _):
        pass
    assert ports.listening_ports(pid) == []


def test_a_listening_child_counts_for_its_parent() -> None:
    with listener("127.0.0.1", as_grandchild=True) as (pid, port):
        assert ports.listening_addresses(pid, port) == {"127.0.0.1"}


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="two processes cannot listen on one port here")
@pytest.mark.parametrize("kernel_tells", [True, False])
def test_the_public_address_of_a_child_is_found_beside_its_parents_loopback(
    kernel_tells: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_tells:
        monkeypatch.setattr(ports, "NETLINK_SOCK_DIAG", 31)  # no such family
    with run_process([sys.executable, "-c", SHARED_LISTEN_PROGRAM, "127.0.0.1", "0", SHARED_LISTEN_PROGRAM]) as (
        pid,
        port,
    ):
        assert ports.listening_addresses(pid, port) == {"127.0.0.1", "0.0.0.0"}


def test_another_port_and_another_process_do_not_count() -> None:
    with listener("127.0.0.1") as (first_pid, first_port), listener("127.0.0.1") as (second_pid, second_port):
        assert ports.listening_addresses(first_pid, second_port) == set()
        assert ports.listening_addresses(second_pid, first_port) == set()


def test_a_process_that_ended_listens_nowhere() -> None:
    with listener("127.0.0.1") as (pid, port):
        pass
    assert eventually(lambda: ports.listening_addresses(pid, port) == set())


def test_a_connection_is_not_a_listener() -> None:
    with bind_port("127.0.0.1") as port, socket.create_connection(("127.0.0.1", port)) as client:
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
def test_loopback_addresses_are_recognized(address: str, is_loopback: bool) -> None:
    assert ports.is_loopback(address) is is_loopback
