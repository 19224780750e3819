"""One table of Host and Origin for every released server: the members, the template, and the bridge.

They share no code, because members import nothing of the hall. So these tests check them with the same values.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcp_runtime.bridge import command as bridge
from tests.conftest import ROOT, eventually
from tests.support.member_process import free_port, running

SERVED_HOSTS = ["localhost:{port}", "127.0.0.1:{port}", "LOCALHOST:{port}"]
REFUSED_HOSTS = [
    *("", "localhost", "127.0.0.1", "localhost:", "localhost:1", "localhost:99999999", "localhost:{port}0"),
    *("localhost:0{port}", "localhost:+{port}", "localhost:{port}.evil.example", "localhost.evil.example:{port}"),
    *("evil.example:{port}", "evil.example", "127.0.0.1.evil.example:{port}", "localhost:{port}@evil.example"),
    *("evil.example@localhost:{port}", "localhost.:{port}", "127.1:{port}", "2130706433:{port}", "0.0.0.0:{port}"),
    *("http://localhost:{port}", "localhost:{port}/", "localhost:{port},evil.example"),
]
SERVED_ORIGINS = [
    *("http://localhost", "https://localhost", "http://127.0.0.1", "http://[::1]", "http://localhost:1"),
    *("http://localhost:3000", "https://127.0.0.1:{port}", "http://[::1]:65535"),
]
REFUSED_ORIGINS = [
    *("", "null", "localhost", "localhost:3000", "//localhost", "http://", "https://evil.example", "ftp://localhost"),
    *("http://localhost:", "http://localhost:0", "http://localhost:65536", "http://localhost:99999999"),
    *("http://localhost:080", "http://localhost:+80", "http://localhost:8a", "http://localhost:\u00b2"),
    *("http://localhost:{port}.evil", "http://localhost:{port}.evil.example", "http://localhost.evil.example"),
    *("http://localhost:80@evil.example", "http://localhost@evil.example", "http://evil.example/localhost"),
    *("http://127.0.0.1.evil.example", "http://127.0.0.1:1.evil.example", "http://evil.example:80/://localhost"),
    *("evil://localhost", "http:///localhost", "http://localhost/", "http://localhost:3000/x", "http://localhost?x"),
    *(
        "http://localhost#x",
        "http://localhost\\.evil.example",
        "http://[::1].evil.example",
        "http://[::1",
        "http://::1",
    ),
    *("http://localhost http://evil.example", "http://localhost, http://evil.example", "http://xlocalhost"),
    *("http://localhost.", "http://127.1", "http://0.0.0.0", "http://[::ffff:127.0.0.1]", "http://[::1]:65536"),
]
BODY = '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}'
SendRequest = Callable[[str, str | None], int]


@contextlib.contextmanager
def running_bridge(folder: Path) -> Iterator[int]:
    port = free_port()
    server = [sys.executable, str(ROOT / "tests" / "support" / "servers" / "stdio_server.py")]
    process = subprocess.Popen(bridge.command_line(port, server, 1_000_000), cwd=folder, stderr=subprocess.DEVNULL)

    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(is_listening, what="the bridge listens")
        yield port
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(params=["guild-members/example", "guild-members/notes", "roster/member_template", "bridge"])
def send_request(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SendRequest]:
    """`send_request(host, origin)` returns the status of the response of a server. `{port}` stands for its port."""
    with contextlib.ExitStack() as stack:
        if request.param == "bridge":
            port = stack.enter_context(running_bridge(tmp_path))
        else:
            folder = Path(shutil.copytree(ROOT / request.param, tmp_path / "member"))
            manifest = folder / "guild-member.json"
            manifest.write_text(manifest.read_text().replace("MEMBER_NAME", "member"))
            port = stack.enter_context(running(folder)).port

        def send_request(host: str, origin: str | None) -> int:
            headers = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(BODY))}
            headers |= {} if origin is None else {"Origin": origin}
            head = "".join(f"{name}: {value.replace('{port}', str(port))}\r\n" for name, value in headers.items())
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}Connection: close\r\n\r\n{BODY}".encode("latin-1"))
                response = connection.recv(65_536)
            match = re.match(rb"HTTP/1\.1 (\d{3}) ", response)
            assert match, response
            return int(match[1])

        yield send_request


def test_the_guide_contains_the_template_unchanged() -> None:
    guide = (ROOT / "docs" / "example-server.md").read_text()
    assert f"```python\n{(ROOT / 'roster' / 'member_template' / 'server.py').read_text()}```" in guide


def test_requests_are_served_only_for_the_servers_host_and_local_pages(send_request: SendRequest) -> None:
    violations = [("host", host) for host in SERVED_HOSTS if send_request(host, None) != 200]
    violations += [("host", host) for host in REFUSED_HOSTS if send_request(host, None) != 403]
    violations += [("origin", origin) for origin in SERVED_ORIGINS if send_request("localhost:{port}", origin) != 200]
    violations += [("origin", origin) for origin in REFUSED_ORIGINS if send_request("localhost:{port}", origin) != 403]
    assert violations == []
