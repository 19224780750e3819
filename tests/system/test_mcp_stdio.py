"""The command that agents start: MCP on stdin and stdout, with a client of another author and with raw messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone
from mcp import types

from roster.models import Call, Token, Tool
from tests.conftest import ROOT, eventually
from tests.support.agents import META, MODERN, wait_for_roster
from tests.support.hall import PATIENCE, Hall, member, wait_for_status
from tests.support.machine import take_alone
from tests.support.real_servers import python

ARGV = [sys.executable, "manage.py", "mcp_stdio"]


class Peer:
    """The program, as a process that gets its messages line by line."""

    def __init__(self, hall: Hall, *options: str) -> None:
        with hall.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*ARGV, *options],
                cwd=ROOT,
                env=hall.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
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
        return self.lines.get(timeout=PATIENCE)

    def until(self, **values: Any) -> Any:
        """The next message that has these values."""
        while True:
            message = self.next()
            if isinstance(message, dict) and values.items() <= message.items():
                return message

    def request(self, method: str, request_id: Any = 1, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, request_id: Any = 1, **params: Any) -> Any:
        self.request(method, request_id, **params)
        return self.until(id=request_id)

    def call(self, tool: str, request_id: Any = 1, **arguments: Any) -> Any:
        return self.ask("tools/call", request_id, name=tool, arguments=arguments)

    def text(self, tool: str, **arguments: Any) -> str:
        response = self.call(tool, **arguments)
        assert "result" in response, response
        return str(response["result"]["content"][0]["text"])

    def begin(self, version: str = "2025-06-18", **capabilities: Any) -> Any:
        client = {"name": "peer", "version": "1"}
        response = self.ask("initialize", protocolVersion=version, capabilities=capabilities, clientInfo=client)
        self.notify("notifications/initialized")
        return response

    def end(self) -> int:
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.wait(PATIENCE)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def peers(hall: Hall) -> Iterator[list[Peer]]:
    """The peers that a test started. They end with the test."""
    running_peers: list[Peer] = []
    yield running_peers
    for peer in running_peers:
        peer.process.kill()
        peer.close()


@pytest.fixture
def peer(hall: Hall, peers: list[Peer]) -> Peer:
    hall.add("one")
    hall.start()
    wait_for_roster(hall, "one")
    peers.append(Peer(hall))
    return peers[0]


def is_cancelled_at(hall: Hall, name: str) -> bool:
    return (hall.members_dir / name / "cancelled.json").exists()


def tokens() -> list[Token]:
    return list(Token.objects.filter(name="mcp_stdio"))


def restart_runtime(hall: Hall) -> None:
    for pid in (hall.processes[-1].pid, hall.worker_pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    hall.processes[-1].wait(PATIENCE)
    hall.start()


# As clients use it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_official_client_uses_all_features_of_a_member(hall: Hall, mode: str) -> None:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    hall.add("full", **python("full_server.py"))
    hall.add("one")
    hall.start()
    agent = wait_for_roster(hall, "full", "one")
    eventually(lambda: agent.ask("resources/list").get("result", {}).get("resources"))
    questions: list[str] = []
    progress: list[Any] = []

    async def ask_person(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action="accept", content={"color": "blue"})

    async def ask_model(context: Any, params: Any) -> types.CreateMessageResult:
        content = types.TextContent(type="text", text="hi")
        return types.CreateMessageResult(role="assistant", content=content, model="none")

    async def on_progress(value: float, total: float | None, message: str | None) -> None:
        progress.append(value)

    async def use_client() -> None:
        server = StdioServerParameters(command=ARGV[0], args=ARGV[1:], cwd=ROOT, env=hall.environment())
        handlers = {"elicitation_callback": ask_person, "sampling_callback": ask_model}
        async with Client(stdio_client(server), mode=mode, **handlers) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"one__echo", "full__say", "full__ask_person"} < names
            calls = [client.call_tool("one__echo", {"text": f"grüß dich {number}"}) for number in range(8)]
            texts = [result.content[0].text for result in await asyncio.gather(*calls)]
            assert texts == [f"grüß dich {number}" for number in range(8)]
            (prompt,) = (await client.list_prompts()).prompts
            prompt_result = await client.get_prompt(prompt.name, {"name": "Ada"})
            assert prompt_result.messages[0].content.text == "Greet Ada."
            (resource,) = (await client.list_resources()).resources
            assert (await client.read_resource(resource.uri)).contents[0].text == "first"
            if mode == "legacy":  # the member asks in sessions alone
                assert (await client.call_tool("full__ask_person", {})).content[0].text == "accept: blue"
                model = await client.call_tool("full__ask_model", {})
                assert model.content[0].text == "the model said hi"
            task = asyncio.create_task(client.call_tool("one__progress", {}, progress_callback=on_progress))
            while not progress:
                await asyncio.sleep(0.02)
            task.cancel()
            while not await asyncio.to_thread(is_cancelled_at, hall, "one"):
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(use_client(), 60))
    assert questions == ["Which color?"] * (mode == "legacy")
    eventually(lambda: Call.objects.filter(tool_name="echo", status="succeeded", source="gateway").count() == 8)
    eventually(lambda: not tokens())


def test_a_connection_continues_after_the_runtime_was_killed_and_replaced(peer: Peer, hall: Hall) -> None:
    peer.begin()
    assert peer.text("one__echo", text="before") == "before"
    peer.request("subscriptions/listen", "ears", notifications={"toolsListChanged": True}, _meta=meta())
    assert peer.until(method="notifications/subscriptions/acknowledged")
    token_id = tokens()[0].pk
    restart_runtime(hall)
    # One notification for the session, and one for the subscription without a session.
    notifications = [peer.until(method="notifications/tools/list_changed") for _ in range(2)]
    subscription_ids = [
        notification["params"]["_meta"][f"{META}subscriptionId"]
        for notification in notifications
        if notification.get("params")
    ]
    assert subscription_ids == ["ears"]
    assert peer.text("one__echo", text="after") == "after"
    assert [token.pk for token in tokens()] == [token_id]


def meta(**more: Any) -> dict[str, Any]:
    return {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}, **more}


# Raw messages -----------------------------------------------------------------------------------------------------


def test_messages_get_responses_by_the_rules_and_failures_get_the_right_errors(peer: Peer, hall: Hall) -> None:
    hall.add("late", tool_timeouts={"sleep": 1})
    wait_for_roster(hall, "late")
    # JSON-RPC, before any session
    peer.send("this is not JSON")
    assert peer.next()["error"]["code"] == -32700
    peer.send('{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "' + "y" * 5_000_000 + '"}}')
    assert peer.next()["error"]["code"] == -32600
    assert peer.ask("ping", "still there") == {"jsonrpc": "2.0", "id": "still there", "result": {}}
    assert "send initialize first" in peer.ask("tools/list")["error"]["message"]
    # versions
    for requested_version, version in [
        ("2024-11-05", "2024-11-05"),
        ("2099-01-01", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
    ]:
        assert peer.begin(requested_version)["result"]["protocolVersion"] == version
    # a batch, whose responses have the order of its requests
    echo = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "one__echo", "arguments": {"text": "x"}}}
    ping = {"jsonrpc": "2.0", "method": "ping"}
    peer.send([{**echo, "id": 1}, ping, {**ping, "id": "two"}, {"jsonrpc": "2.0", "method": "nowhere", "id": 3}, 7])
    first, second, third, fourth = peer.next()
    assert (first["id"], first["result"]["content"][0]["text"]) == (1, "x")
    assert (second["id"], second["result"]) == ("two", {})
    assert (third["id"], third["error"]["code"]) == (3, -32601)
    assert (fourth["id"], fourth["error"]["code"]) == (None, -32600)
    # a cancelled call is cancelled at the member and gets no response, and other calls continue
    peer.request("tools/call", "long", name="one__progress", arguments={}, _meta={"progressToken": "p"})
    assert peer.until(method="notifications/progress")["params"]["progressToken"] == "p"
    assert peer.text("one__echo", text="meanwhile") == "meanwhile"
    peer.notify("notifications/cancelled", requestId="long")
    eventually(lambda: is_cancelled_at(hall, "one"))
    assert peer.ask("ping", "after") == {"jsonrpc": "2.0", "id": "after", "result": {}}
    # failures
    result = peer.call("one__fail")["result"]
    assert (result["isError"], result["content"][0]["text"]) == (True, "it went wrong")
    error = peer.call("one__refuse")["error"]
    assert error["code"] == -32602
    timeout_error = peer.call("late__sleep")["error"]
    assert (timeout_error["code"], timeout_error["data"]) == (-32603, {"member": "late", "kind": "timeout"})
    assert peer.call("nobody__echo")["error"]["code"] == -32602
    # the roster changes
    Tool.objects.filter(name="echo").update(enabled=False)
    assert peer.until(method="notifications/tools/list_changed")
    assert "one__echo" not in [tool["name"] for tool in peer.ask("tools/list")["result"]["tools"]]
    assert peer.end() == 0
    assert not [line for line in drain(peer.lines) if line.get("id") == "long"]


def drain(lines: queue.Queue[Any]) -> Iterator[Any]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield lines.get_nowait()


def test_the_options_user_and_member_select_the_tools(peer: Peer, hall: Hall, peers: list[Peer]) -> None:
    bob = User.objects.create_user("bob")
    peers.append(Peer(hall, "--user", "bob"))
    assert "roster.invoke_tool" in peers[-1].begin()["error"]["message"]
    bob.user_permissions.add(Permission.objects.get(codename="invoke_tool"))
    peers.append(Peer(hall, "--user", "bob", "--member", "one"))
    assert "result" in peers[-1].begin()
    assert "echo" in [tool["name"] for tool in peers[-1].ask("tools/list")["result"]["tools"]]
    hall.manage("member", "stop", "one")
    wait_for_status(hall, "one", "disconnected")
    assert peers[-1].text("echo", text="wake up") == "wake up"
    assert member("one").status == "connected"
    eventually(lambda: Call.objects.filter(requested_by=bob, status="succeeded").exists())
    assert hall.manage("mcp_stdio", "--user", "nobody").stderr == (
        "CommandError: no user 'nobody'; make one with: guildhall create_user nobody\n"
    )
    assert "no member 'nobody' is in the roster" in hall.manage("mcp_stdio", "--member", "nobody").stderr


def test_in_search_mode_the_agent_finds_and_calls_the_tools(peer: Peer, hall: Hall, peers: list[Peer]) -> None:
    peers.append(Peer(hall, "--search-mode"))
    agent = peers[-1]
    assert "find_tools" in agent.begin()["result"]["instructions"]
    listed = [tool["name"] for tool in agent.ask("tools/list")["result"]["tools"]]
    assert listed == ["find_tools", "call_read", "call_write"]
    found = json.loads(agent.text("find_tools", query="one__echo"))["tools"]
    assert [tool["name"] for tool in found] == ["one__echo"]
    assert agent.text("call_write", name="one__echo", arguments={"text": "hi"}) == "hi"
    eventually(lambda: Call.objects.filter(member__name="one", tool_name="echo", status="succeeded").exists())
    refusal = hall.manage("mcp_stdio", "--member", "one", "--search-mode").stderr
    assert "not allowed with argument" in refusal


# The end ----------------------------------------------------------------------------------------------------------


@pytest.mark.alone
@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT"])
def test_the_command_ends_within_two_seconds_cancels_its_calls_and_leaves_no_token(
    peer: Peer, hall: Hall, how: str
) -> None:
    peer.begin()
    for number in range(3):
        peer.request("tools/call", number, name="one__progress", arguments={}, _meta={"progressToken": number})
        while peer.until(method="notifications/progress")["params"]["progressToken"] != number:
            pass
    take_alone()
    start = time.monotonic()
    if how == "end of input":
        assert peer.end() == 0
    else:
        peer.process.send_signal(getattr(signal, how))
        assert peer.process.wait(PATIENCE) == 0
    assert time.monotonic() - start < 2.0
    assert not tokens()
    eventually(lambda: is_cancelled_at(hall, "one"))
    eventually(lambda: Call.objects.exclude(status__in=Call.ACTIVE).count() == 3)


def test_a_revoked_token_is_reported_and_the_token_of_a_killed_command_expires(peer: Peer) -> None:
    peer.begin()
    (token,) = tokens()
    token.revoke()

    def error_message() -> str:
        return str(peer.ask("tools/list").get("error", {}).get("message", ""))

    eventually(lambda: "This token was revoked" in error_message())
    assert "when it is started again it gets a new one" in error_message()
    peer.process.kill()
    peer.process.wait(PATIENCE)
    (expiring_token,) = tokens()
    assert (expiring_token.expires_at - timezone.now()).total_seconds() <= 3600


def test_a_hall_that_does_not_run_is_reported_and_used_once_it_runs(hall: Hall, peers: list[Peer]) -> None:
    User.objects.create_superuser("admin")
    hall.add("one")
    peer = Peer(hall)
    peers.append(peer)
    error = peer.begin()["error"]
    assert "the hall is not running" in error["message"]
    assert "make run" in error["message"]
    assert error["data"] == {"kind": "unavailable", "sent": False}
    hall.start()
    wait_for_roster(hall, "one")
    assert "result" in peer.begin()
    assert peer.text("one__echo", text="there") == "there"
