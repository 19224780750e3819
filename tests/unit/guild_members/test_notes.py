"""The shipped notes, as a real process over real HTTP."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from mcp_runtime.client.client import JsonRpcClient
from tests.conftest import ROOT
from tests.support.member_process import RunningMember, running, spawn

NOTES = ROOT / "guild-members" / "notes"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the member, so that the user's own notes are not changed."""
    shutil.copytree(NOTES, tmp_path / "notes", ignore=shutil.ignore_patterns("notes.json*"))
    return tmp_path / "notes"


@pytest.fixture
def notes(folder: Path) -> Iterator[RunningMember]:
    with running(folder) as member:
        yield member


def test_the_halls_client_can_initialize_list_and_call(notes: RunningMember) -> None:
    client = JsonRpcClient(notes.url)
    assert client.initialize().server_info == {"name": "notes", "version": "1.0.0"}
    tools = {tool["name"]: tool for tool in client.list_tools().tools}
    assert set(tools) == {"add_note", "list_notes"}
    assert tools["add_note"]["annotations"]["readOnlyHint"] is False
    assert client.invoke_tool("list_notes", {})["content"] == [{"type": "text", "text": "no notes yet"}]


def test_notes_outlive_the_process(folder: Path) -> None:
    with running(folder) as member:
        assert member.call("add_note", {"text": "water the plants"}) == ("noted as number 1", False)
    with running(folder) as member:
        assert member.call("add_note", {"text": "feed the cat"}) == ("noted as number 2", False)
        assert member.call("list_notes") == ("1. water the plants\n2. feed the cat", False)


def test_no_note_is_lost_when_many_are_added_at_once(notes: RunningMember) -> None:
    def add(number: int) -> None:
        assert not RunningMember(notes.process, notes.port).call("add_note", {"text": f"note {number}"})[1]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert len(notes.call("list_notes")[0].splitlines()) == 40


def test_the_manifest_sets_the_file_of_the_notes(folder: Path, tmp_path: Path) -> None:
    values = json.loads((folder / "guild-member.json").read_text())
    values["env"]["NOTES_FILE"] = str(tmp_path / "elsewhere.json")
    (folder / "guild-member.json").write_text(json.dumps(values))
    with running(folder) as member:
        member.call("add_note", {"text": "here"})
    assert json.loads((tmp_path / "elsewhere.json").read_text()) == ["here"]
    assert not (folder / "notes.json").exists()


def test_the_notes_stay_out_of_version_control() -> None:
    assert "notes.json" in (NOTES / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("arguments", [{}, {"text": ""}, {"text": 5}, {"text": "x", "loud": True}])
def test_an_invalid_note_is_a_tool_error(notes: RunningMember, arguments: dict[str, object]) -> None:
    assert notes.call("add_note", arguments)[1] is True
    assert notes.call("list_notes") == ("no notes yet", False)


def test_a_damaged_file_is_a_tool_error_and_is_not_changed(notes: RunningMember, folder: Path) -> None:
    (folder / "notes.json").write_text("[")
    assert notes.call("list_notes")[1] is True
    assert notes.call("add_note", {"text": "x"})[1] is True
    assert (folder / "notes.json").read_text() == "["


def test_wrong_requests_get_a_json_rpc_error(notes: RunningMember) -> None:
    assert notes.ask("tools/chat")["error"]["code"] == -32601
    assert notes.ask("tools/call", {"name": "nobody"})["error"]["code"] == -32602
    for body, code in ((b"{", -32700), (b"[]", -32600)):
        response = notes.post(body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, code)


def test_requests_of_other_hosts_and_pages_are_refused(notes: RunningMember) -> None:
    assert notes.post(PING).status_code == 200
    assert notes.post(PING, Host=f"localhost:{notes.port}", Origin="http://localhost:3000").status_code == 200
    assert notes.post(PING, Host=f"evil.example:{notes.port}").status_code == 403
    for origin in ("https://evil.example", "http://localhost.evil.example", "http://[", "null", ""):
        assert notes.post(PING, Origin=origin).status_code == 403
    assert notes.post(PING, Content_Type="text/plain").status_code == 415
    assert notes.post(PING, path="/").status_code == 404
    assert notes.session.get(notes.url, timeout=10).status_code == 405
    head = f"POST /mcp HTTP/1.1\nHost: 127.0.0.1:{notes.port}\nContent-Type: application/json\n"
    assert notes.raw(head + "Content-Length: 1000001\n\n")[0] == 413
    assert notes.raw(head + "\n")[0] == 413


def test_the_member_listens_only_on_the_loopback(notes: RunningMember) -> None:
    sockets = psutil.Process(notes.process.pid).net_connections("inet")
    addresses = {connection.laddr for connection in sockets if connection.status == psutil.CONN_LISTEN}
    assert addresses == {("127.0.0.1", notes.port)}


def test_a_taken_port_ends_the_member_with_code_2_and_a_message(folder: Path, tmp_path: Path) -> None:
    stderr = tmp_path / "stderr"
    with socket.create_server(("127.0.0.1", 0)) as listener, stderr.open("wb") as file:
        assert spawn(folder, listener.getsockname()[1], stderr=file).wait(timeout=10) == 2
    assert "Address already in use" in stderr.read_text()


def test_the_member_ends_at_once_after_sigterm(notes: RunningMember) -> None:
    notes.ask("ping")
    notes.process.terminate()
    notes.process.wait(timeout=2)
