"""A member's server as a real process, started from its manifest on a free port."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from mcp_runtime.members.manifest.files import read_file

PORT_TAKEN = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spawn(folder: Path, port: int, stderr: Any = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    manifest = read_file(folder, folder.name).manifest
    assert manifest is not None
    environment = {"PATH": os.environ["PATH"], **manifest.environment(port)}
    return subprocess.Popen(
        manifest.argv(port), cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr
    )


class RunningMember:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.session = requests.Session()
        self.session.trust_env = False
        self._last_id = 0

    def post(self, body: Any = None, path: str = "/mcp", **headers: str) -> requests.Response:
        """POST `body`, as JSON unless it is bytes. In header names write _ for -."""
        all_headers = {key.replace("_", "-"): value for key, value in headers.items()}
        content = {"data": body} if isinstance(body, bytes) else {"json": body}
        if isinstance(body, bytes):
            all_headers.setdefault("Content-Type", "application/json")
        url = f"http://127.0.0.1:{self.port}{path}"
        return self.session.post(url, headers=all_headers, timeout=10, **content)

    def ask(self, method: str, params: Any = None, request_id: Any = None) -> dict[str, Any]:
        """The whole JSON-RPC response to one request."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id if request_id is None else request_id, "method": method}
        response = self.post(message if params is None else {**message, "params": params})
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        assert (body["jsonrpc"], body["id"]) == ("2.0", message["id"])
        return body

    def call(self, tool: str, arguments: dict[str, Any] | None = None, request_id: Any = None) -> tuple[str, bool]:
        """The text of a tool's result, and whether it failed."""
        body = self.ask("tools/call", {"name": tool, "arguments": arguments or {}}, request_id)
        (block,) = body["result"]["content"]
        assert block["type"] == "text"
        return block["text"], body["result"]["isError"]

    def raw(self, request: str) -> tuple[int, str]:
        """Send `request` byte for byte on a new connection. Returns the status and the whole response."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(request.replace("\n", "\r\n").encode())
            response = b""
            while b"\r\n\r\n" not in response and (part := connection.recv(65_536)):
                response += part
        match = re.match(rb"HTTP/1\.1 (\d{3}) ", response)
        assert match, response
        return int(match[1]), response.decode()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[RunningMember]:
    """Run the member in `folder` during the block. If its port is taken, it gets another one, as in a hall."""
    deadline = time.monotonic() + 10
    port = free_port()
    process = spawn(folder, port)
    try:
        while not _is_listening(port):
            if process.poll() == PORT_TAKEN:
                port = free_port()
                process = spawn(folder, port)
            elif process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the member in {folder} did not come up (exit code {process.poll()})")
            time.sleep(0.01)
        yield RunningMember(process, port)
    finally:
        process.kill()
        process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
