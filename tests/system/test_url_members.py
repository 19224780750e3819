"""Members that are remote servers. The hall does not start their process, and they need a secret in each request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.support.hall import PATIENCE, SERVER, Hall, bring_up, call, queue, wait_for_status
from tests.support.leaks import command_lines, rest_texts, tables
from tests.support.member_process import free_port

# No other test has these words: the log of SQLite keeps what an earlier test of this worker queued.
TOKEN = "token-kingfisher-kingfisher"
KEY = "key-kingfisher-kingfisher"
WRONG_KEY = "wrong-kingfisher-kingfisher"


class RemoteServer:
    """A server outside the hall, on a port outside its range. It can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        required = {"Authorization": f"Bearer {TOKEN}", "X-Api-Key": KEY}
        (folder / "required.json").write_text(json.dumps(required))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, str(SERVER), str(self.port), "require"]
        self.process = subprocess.Popen(argv, cwd=self.folder, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RemoteServer]:
    server = RemoteServer(tmp_path / "server")
    server.start()
    yield server
    server.kill()


def add_remote(hall: Hall, url: str, **manifest: Any) -> Path:
    folder = hall.members_dir / "far"
    folder.mkdir()
    (folder / "key.txt").write_text(f"{KEY}\n")
    headers = {"Authorization": "Bearer ${env:GUILD_HALL_MEMBER_FAR_TOKEN}", "X-Api-Key": "${file:key.txt}"}
    values = {"name": "far", "version": "1.0.0", "transport": "http", "url": url, "headers": headers, **manifest}
    (folder / "guild-member.json").write_text(json.dumps(values))
    return folder


def test_a_remote_server_serves_calls_and_reconnects_after_a_failure(hall: Hall, server: RemoteServer) -> None:
    add_remote(hall, server.url)
    hall.add("near")
    hall.start(GUILD_HALL_MEMBER_FAR_TOKEN=TOKEN)
    row = wait_for_status(hall, "far", "connected")
    wait_for_status(hall, "near", "connected")
    assert (row.endpoint, row.port, row.pid) == (server.url, None, None)
    assert len(hall.tagged_processes()) == 1  # the process of `near`
    assert call("far", "echo", {"text": "hi"}).result == {"content": [{"type": "text", "text": "hi"}]}
    assert call("far", "fail").error_kind == "tool"

    server.kill()
    failed_call = call("far", "echo", {"text": "hi"})
    assert (failed_call.status, failed_call.error_kind) == ("failed", "unavailable")
    assert "does not answer at" in wait_for_status(hall, "far", "error").last_error
    assert call("near", "echo", {"text": "hi"}).status == "succeeded"

    server.start()
    queued_call = queue("far", "echo", {"text": "back"})
    wait_for_status(hall, "far", "connected", within=25)
    eventually(lambda: not queued_call.refresh_from_db() and queued_call.status == "succeeded")


def test_a_stop_of_the_member_or_the_runtime_leaves_the_remote_server_running(hall: Hall, server: RemoteServer) -> None:
    add_remote(hall, server.url)
    runtime = hall.start(GUILD_HALL_MEMBER_FAR_TOKEN=TOKEN)
    wait_for_status(hall, "far", "connected")
    assert hall.manage("member", "stop", "far").returncode == 0
    assert call("far", "echo", {"text": "hi"}).status == "succeeded"  # this call connected it again
    running_call = queue("far", "sleep", {"seconds": 60})
    eventually(lambda: not running_call.refresh_from_db() and running_call.status == "running")
    runtime.terminate()
    assert runtime.wait(PATIENCE) == 0
    running_call.refresh_from_db()
    assert (running_call.status, running_call.error_kind) == ("failed", "lost")
    wait_for_status(hall, "far", "disconnected")
    assert server.process is not None
    assert server.process.poll() is None


def test_header_secrets_appear_only_in_requests_to_the_server(hall: Hall, server: RemoteServer) -> None:
    folder = add_remote(hall, server.url)
    (folder / "key.txt").write_text(WRONG_KEY)
    hall.add("near")
    bring_up(hall, "near", GUILD_HALL_MEMBER_FAR_TOKEN=TOKEN)
    # The server repeats the secret in its response, and the hall masks it in the error.
    assert "nobody knows X-Api-Key: ***" in wait_for_status(hall, "far", "error").last_error
    (folder / "key.txt").write_text(KEY)
    wait_for_status(hall, "far", "connected", within=25)
    assert call("far", "echo", {"text": "hi"}).status == "succeeded"
    (folder / "key.txt").unlink()
    assert hall.manage("member", "restart", "far").returncode != 0
    assert "the file key.txt does not exist" in wait_for_status(hall, "far", "error").last_error

    outputs = [rest_texts(hall, "far"), hall.manage("roster", "--json").stdout, hall.manage("check_members").stdout]
    environment = json.loads(call("near", "environment").result["content"][0]["text"])
    places = {
        "REST and commands": "\n".join(outputs),
        "database": tables(),
        "console": hall.output(),
        "files": "\n".join(path.read_text("latin-1") for path in hall.data_dir.rglob("*") if path.is_file()),
        "command lines": "\n".join(command_lines()),
        "another member": json.dumps(environment),
    }
    assert "${env:GUILD_HALL_MEMBER_FAR_TOKEN}" in places["REST and commands"]
    assert "${env:GUILD_HALL_MEMBER_FAR_TOKEN}" in places["database"]
    assert server.url in places["console"]
    for place, text in places.items():
        at = text.find("kingfisher")
        assert at == -1, f"{place}: ...{text[max(at - 700, 0) : at + 100]}..."
