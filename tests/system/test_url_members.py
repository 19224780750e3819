"""Members that are remote servers: a process that the hall did not start, which lets in nobody without a secret."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from django.db import connection

from tests.conftest import eventually
from tests.support.hall import PATIENCE, SERVER, Hall, bring_up, call, queue, token_of, wait_for_status
from tests.support.member_process import free_port

TOKEN = "token-hunter2-hunter2"
KEY = "key-hunter2-hunter2"
WRONG_KEY = "wrong-hunter2-hunter2"


class RemoteServer:
    """A server outside the hall, on a port outside its range; it may be killed and started again."""

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
    headers = {"Authorization": "Bearer ${env:FAR_TOKEN}", "X-Api-Key": "${file:key.txt}"}
    values = {"name": "far", "version": "1.0.0", "transport": "http", "url": url, "headers": headers, **manifest}
    (folder / "guild-member.json").write_text(json.dumps(values))
    return folder


def test_a_remote_server_is_listed_called_missed_and_found_again(hall: Hall, server: RemoteServer) -> None:
    add_remote(hall, server.url)
    hall.add("near")
    hall.start(FAR_TOKEN=TOKEN)
    row = wait_for_status(hall, "far", "connected")
    wait_for_status(hall, "near", "connected")
    assert (row.endpoint, row.port, row.pid) == (server.url, None, None)
    assert len(hall.tagged_processes()) == 1  # near's
    assert call("far", "echo", {"text": "hi"}).result == {"content": [{"type": "text", "text": "hi"}]}
    assert call("far", "fail").error_kind == "tool"

    server.kill()
    missed = call("far", "echo", {"text": "hi"})
    assert (missed.status, missed.error_kind) == ("failed", "unavailable")
    assert "does not answer at" in wait_for_status(hall, "far", "error").last_error
    assert call("near", "echo", {"text": "hi"}).status == "succeeded"

    server.start()
    waiting = queue("far", "echo", {"text": "back"})
    wait_for_status(hall, "far", "connected", within=25)
    eventually(lambda: not waiting.refresh_from_db() and waiting.status == "succeeded")


def test_a_stop_leaves_the_server_alone_and_the_runtime_ends_without_it(hall: Hall, server: RemoteServer) -> None:
    add_remote(hall, server.url)
    runtime = hall.start(FAR_TOKEN=TOKEN)
    wait_for_status(hall, "far", "connected")
    assert hall.manage("member", "stop", "far").returncode == 0
    assert call("far", "echo", {"text": "hi"}).status == "succeeded"  # which connected it again
    lost = queue("far", "sleep", {"seconds": 60})
    eventually(lambda: not lost.refresh_from_db() and lost.status == "running")
    runtime.terminate()
    assert runtime.wait(PATIENCE) == 0
    lost.refresh_from_db()
    assert (lost.status, lost.error_kind) == ("failed", "lost")
    wait_for_status(hall, "far", "disconnected")
    assert server.process is not None
    assert server.process.poll() is None


def test_secrets_are_nowhere_but_in_what_is_sent(hall: Hall, server: RemoteServer) -> None:
    folder = add_remote(hall, server.url)
    (folder / "key.txt").write_text(WRONG_KEY)
    hall.add("near")
    bring_up(hall, "near", FAR_TOKEN=TOKEN)
    # The server says what it was sent, and the hall says why the member is in error.
    assert "nobody knows X-Api-Key: ***" in wait_for_status(hall, "far", "error").last_error
    (folder / "key.txt").write_text(KEY)
    wait_for_status(hall, "far", "connected", within=25)
    assert call("far", "echo", {"text": "hi"}).status == "succeeded"
    (folder / "key.txt").unlink()
    assert hall.manage("member", "restart", "far").returncode != 0
    assert "the file key.txt does not exist" in wait_for_status(hall, "far", "error").last_error

    answers = [said_over_rest(hall), hall.manage("roster", "--json").stdout, hall.manage("check_members").stdout]
    near = json.loads(call("near", "environment").result["content"][0]["text"])
    places = {
        "REST and commands": "\n".join(answers),
        "database": tables(),
        "console": hall.output(),
        "files": "\n".join(path.read_text("latin-1") for path in hall.data_dir.rglob("*") if path.is_file()),
        "command lines": "\n".join(command_lines()),
        "another member": json.dumps(near),
    }
    assert "${env:FAR_TOKEN}" in places["REST and commands"]
    assert "${env:FAR_TOKEN}" in places["database"]
    assert server.url in places["console"]
    for place, text in places.items():
        assert "hunter2" not in text, place


def said_over_rest(hall: Hall) -> str:
    headers = {"Authorization": f"Bearer {token_of(hall)}"}
    paths = ("roster/", "members/", "members/far/", "members/far/logs/", "members/far/status-changes/", "calls/")
    answers = [requests.get(f"{hall.url}/api/{path}", headers=headers, timeout=10) for path in paths]
    assert [answer.status_code for answer in answers] == [200] * len(paths)
    return "\n".join(answer.text for answer in answers)


def tables() -> str:
    """Every row of every table; of SQLite the bytes of the file too, with what was there before."""
    said = []
    with connection.cursor() as cursor:
        for name in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(name)}")
            said += [repr(row) for row in cursor.fetchall()]
    if connection.vendor == "sqlite":
        file = Path(connection.settings_dict["NAME"])
        said += [path.read_text("latin-1") for path in file.parent.glob(f"{file.name}*")]
    return "\n".join(said)


def command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        try:
            yield " ".join(process.cmdline())
        except psutil.Error:
            continue
