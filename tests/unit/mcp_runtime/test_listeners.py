"""The gateway's sockets: bound, or inherited from a parent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_runtime.http1 import listeners
from mcp_runtime.protocol.errors import AddressTakenError
from tests.conftest import ROOT
from tests.support.certificates import Authority


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_error_about_a_taken_address_has_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(AddressTakenError, match=f"127.0.0.1:{port}: .*GUILD_HALL_GATEWAY_PORT chooses another"):
            listeners.bind("127.0.0.1", port)
    with pytest.raises(AddressTakenError, match="cannot listen on 192"):
        listeners.bind("192.0.2.1", 0)


def test_binding_the_loopback_binds_all_its_address_families() -> None:
    port = free_port()
    sockets = listeners.bind("127.0.0.1", port)
    try:
        for sock in sockets:
            with socket.create_connection(sock.getsockname()[:2], timeout=5):
                pass
        assert sockets[0].getsockname() == ("127.0.0.1", port)
    finally:
        for sock in sockets:
            sock.close()


def test_unusable_certificates_are_refused_before_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    listeners.require_usable(None, authority.file)
    with pytest.raises(AddressTakenError, match=r"GUILD_HALL_NODE_CERTIFICATE=.*ca\.pem: it has no certificate"):
        listeners.require_usable(authority.file, None)  # its key is in another file
    (tmp_path / "odd.pem").write_text("odd")
    with pytest.raises(AddressTakenError, match=r"GUILD_HALL_NODE_CA=.*odd\.pem: it has no certificates"):
        listeners.require_usable(None, tmp_path / "odd.pem")


SERVE_ONE = """
import os
from mcp_runtime.http1 import listeners
listener, = listeners.take_inherited()
assert not listener.get_inheritable()
assert not listeners.take_inherited() and listeners.SOCKETS_VARIABLE not in os.environ
connection, _ = listener.accept()
connection.sendall(str(os.getpid()).encode())
"""


def test_a_client_during_a_restart_is_served_by_the_next_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        environment = {**os.environ, **listeners.inheritance([server.fileno()])}
        for _ in range(2):
            with socket.create_connection(server.getsockname(), timeout=30) as client:
                argv = [sys.executable, "-c", SERVE_ONE]
                with subprocess.Popen(argv, cwd=ROOT, env=environment, pass_fds=[server.fileno()]) as child:
                    assert int(client.recv(100)) == child.pid
                assert child.returncode == 0


def test_there_are_no_inherited_sockets_without_a_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(listeners.SOCKETS_VARIABLE, raising=False)
    assert (listeners.take_inherited(), listeners.inheritance([])) == ([], {})
