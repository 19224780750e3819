"""The roster as an MCP server on stdin and stdout, with clients nobody here wrote on the other end."""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from roster.models import Invocation, Tool
from tests.conftest import ROOT, eventually
from tests.end_to_end.conftest import PATIENCE, Hall, member, wait_for_status

pytestmark = pytest.mark.processes

ARGV = [sys.executable, "manage.py", "mcp_stdio"]


class Peer:
    """The program, spoken to line by line."""

    def __init__(self, hall: Hall) -> None:
        self.process = subprocess.Popen(
            ARGV, cwd=ROOT, env=hall.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[Any] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def send(self, message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
        self.process.stdin.flush()

    def next(self) -> Any:
        return self.lines.get(timeout=20)

    def ask(self, method: str, request_id: Any = 1, **params: Any) -> Any:
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return self.next()

    def call(self, tool: str, request_id: Any = 1, **arguments: Any) -> Any:
        return self.ask("tools/call", request_id, name=tool, arguments=arguments)

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.wait(PATIENCE)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@pytest.fixture
def peer(hall: Hall) -> Iterator[Peer]:
    hall.add("one", tool_timeouts={"sleep": 1})
    hall.start()
    wait_for_status(hall, "one", "connected")
    peer = Peer(hall)
    yield peer
    peer.process.kill()
    peer.close()


def test_the_official_client_lists_and_calls_the_tools_of_the_roster(hall: Hall) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    told: list[Any] = []

    async def told_of(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async def talk() -> tuple[Any, Any, Any]:
        server = StdioServerParameters(command=ARGV[0], args=ARGV[1:], cwd=ROOT, env=hall.environment())
        async with stdio_client(server) as pipes, ClientSession(*pipes) as session:
            greeted = await session.initialize()
            listed = await session.list_tools()
            called = await session.call_tool("one__echo", {"text": "grüß dich"})
            await session.send_ping()
            running = asyncio.create_task(session.call_tool("one__progress", {}, progress_callback=told_of))
            while not told:
                await asyncio.sleep(0.05)
            running.cancel()
            return greeted, listed, called

    greeted, listed, called = asyncio.run(asyncio.wait_for(talk(), 60))
    assert greeted.model_dump(by_alias=True)["serverInfo"]["name"] == "guild-hall"
    names = {tool.name for tool in listed.tools}
    assert {"one__echo", "one__sleep"} < names
    assert [name for name in names if name.startswith("one__broken_schema.v1_")]  # a slash is not for names
    assert called.content[0].text == "grüß dich"
    assert told[0][1].startswith("step ")
    row = Invocation.objects.get(tool_name="echo")
    assert (row.status, row.door) == ("succeeded", "gateway")


def test_a_version_that_is_not_spoken_is_answered_with_one_that_is(peer: Peer) -> None:
    for asked, answered in [("2024-11-05", "2024-11-05"), ("2025-03-26", "2025-03-26"), ("2099-01-01", "2025-11-25")]:
        result = peer.ask("initialize", protocolVersion=asked)["result"]
        assert result["protocolVersion"] == answered
    assert peer.ask("server/discover")["error"]["code"] == -32601  # and probing clients shake hands then


def test_a_batch_is_answered_in_its_order(peer: Peer) -> None:
    echo = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "one__echo", "arguments": {"text": "x"}}}
    ping = {"jsonrpc": "2.0", "method": "ping"}
    peer.send([{**echo, "id": 1}, ping, {**ping, "id": "two"}, {"jsonrpc": "2.0", "method": "nowhere", "id": 3}, 7])
    first, second, third, fourth = peer.next()
    assert (first["id"], first["result"]["content"][0]["text"]) == (1, "x")
    assert (second["id"], second["result"]) == ("two", {})
    assert (third["id"], third["error"]["code"]) == (3, -32601)
    assert (fourth["id"], fourth["error"]["code"]) == (None, -32600)


def test_lines_that_are_no_messages_are_answered_and_the_next_ones_served(peer: Peer) -> None:
    peer.send("this is not JSON")
    assert peer.next()["error"]["code"] == -32700
    peer.send('{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "' + "y" * 5_000_000 + '"}}')
    assert peer.next()["error"]["code"] == -32600
    assert peer.ask("ping", "still there") == {"jsonrpc": "2.0", "id": "still there", "result": {}}


def test_what_goes_wrong_is_told_as_what_it_is(peer: Peer) -> None:
    failed = peer.call("one__fail")["result"]
    assert (failed["isError"], failed["content"][0]["text"]) == (True, "it went wrong")
    misfit = peer.call("one__echo", text=7)["result"]
    assert misfit["isError"]
    assert "text" in misfit["content"][0]["text"]
    refused = peer.call("one__refuse")["error"]
    assert (refused["code"], refused["data"]["member"]) == (-32602, "one")
    late = peer.call("one__sleep")["error"]
    assert (late["code"], late["data"]) == (-32603, {"member": "one", "kind": "timeout"})
    assert peer.call("nobody__echo")["error"]["code"] == -32602


def test_a_call_that_is_cancelled_is_cancelled_at_the_member_and_others_go_on_meanwhile(hall: Hall, peer: Peer) -> None:
    call = {"name": "one__progress", "arguments": {}}
    peer.send({"jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": call})
    eventually(lambda: Invocation.objects.filter(status="running").exists())
    assert peer.call("one__echo", text="meanwhile")["result"]["content"][0]["text"] == "meanwhile"
    peer.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}})
    assert peer.next()["error"]["data"] == {"member": "one", "kind": "cancelled"}
    eventually(lambda: (hall.members_dir / "one" / "cancelled.json").exists())


def test_tools_that_are_switched_off_are_gone_and_the_client_is_told(peer: Peer) -> None:
    peer.ask("initialize", protocolVersion="2025-06-18")
    peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert "one__echo" in [tool["name"] for tool in peer.ask("tools/list")["result"]["tools"]]
    Tool.objects.filter(name="echo").update(enabled=False)
    assert peer.next()["method"] == "notifications/tools/list_changed"
    assert "one__echo" not in [tool["name"] for tool in peer.ask("tools/list")["result"]["tools"]]
    assert peer.call("one__echo", text="x")["error"]["code"] == -32602


def test_a_client_that_goes_away_ends_it_and_a_member_that_does_not_run_is_started(hall: Hall, peer: Peer) -> None:
    hall.manage("member", "stop", "one")
    wait_for_status(hall, "one", "disconnected")
    assert peer.call("one__echo", text="wake up")["result"]["content"][0]["text"] == "wake up"
    assert member("one").status == "connected"
    assert peer.end() == 0


def test_calls_of_a_client_that_went_away_are_cancelled(hall: Hall, peer: Peer) -> None:
    for number in range(3):
        call = {"name": "one__progress", "arguments": {}}
        peer.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
    eventually(lambda: Invocation.objects.filter(status="running").count() == 3)
    assert peer.end() == 0
    eventually(lambda: not Invocation.objects.filter(status__in=Invocation.ACTIVE).exists())
    assert (hall.members_dir / "one" / "cancelled.json").exists()
