"""The real gateway in this process, with members that are scripts: servers made of raw sockets, which may misbehave."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.gateway.server import Gateway, Options
from mcp_runtime.http1 import listeners
from mcp_runtime.members.live import LiveMember
from mcp_runtime.members.process import NoProcess
from mcp_runtime.members.restarts import Restarts
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ConnectError
from roster.models import GuildMember, Invocation, Tool
from tests.conftest import eventually
from tests.support.agents import Agent, make_token
from tests.support.scripted_server import Behaviour, Server, initialize_result
from tests.support.scripted_server import Request as Asked

ALL = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "logging": {}, "completions": {}}
MAX_BYTES = 200_000


def event(message: Any, event_id: str = "", retry: int | None = None) -> bytes:
    """A message on a stream; without one, an event that only says where to go on."""
    lines = [f"id: {event_id}"] if event_id else []
    lines += [f"retry: {retry}"] if retry is not None else []
    lines += [f"data: {json.dumps(message)}"] if message is not None else ["data:"]
    return ("\n".join(lines) + "\n\n").encode()


def request(message_id: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result(message_id: Any, **told: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "result": told}


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def with_session(asked: Asked) -> None:
    """A handshake that begins a session, each its own."""
    number = len([one for one in asked.server.requests if one.body and one.message.get("method") == "initialize"])
    asked.result(initialize_result(asked.message["params"]["protocolVersion"]), Mcp_Session_Id=f"s{number}")


def modern_only(asked: Asked) -> None:
    asked.error(-32022, "Unsupported protocol version", status=400, data={"supported": [mcp.MODERN_VERSION]})


def discovered(asked: Asked) -> None:
    asked.result({"supportedVersions": [mcp.MODERN_VERSION], "capabilities": ALL, "resultType": "complete"})


DEFAULT: dict[str, Behaviour] = {
    "initialize": with_session,
    "server/discover": lambda asked: asked.error(-32601, "Method not found", status=404),
    "GET": lambda asked: asked.http(405),
    "DELETE": lambda asked: asked.http(200),
    "tools/call": lambda asked: asked.result(text(json.dumps(asked.message["params"].get("arguments")))),
    "*": lambda asked: asked.error(-32601, "Method not found"),
}
MODERN: dict[str, Behaviour] = {"initialize": modern_only, "server/discover": discovered}


class Member:
    """A script, its row, and the hall's connection to it."""

    def __init__(self, row: GuildMember, server: Server, behaviours: dict[str, Behaviour]) -> None:
        self.row, self.server = row, server
        self.behaviours = server.behaviours = {**DEFAULT, **behaviours}
        self.client = JsonRpcClient(server.url)
        self.live = self.restarted()

    def restarted(self) -> LiveMember:
        """The next process, which knows nothing of the one before."""
        self.client.connect(5)
        self.live = LiveMember(self.row.pk, self.row.name, 0, self.client, NoProcess(), self.server.url)
        self.live.connected_at = 1.0
        return self.live

    @property
    def requests(self) -> list[Asked]:
        return self.server.requests

    def heard(self, method: str) -> list[Any]:
        """The messages with this method, as they came."""
        told = [one.message for one in list(self.server.requests) if one.body]
        return [message for message in told if isinstance(message, dict) and message.get("method", "reply") == method]


class World:
    """The gateway and all around it. It stands in for the lifecycle: who is there is what the test says."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.live: dict[int, LiveMember] = {}
        self.failures: list[str] = []
        self.woken = 0
        self.restarts = Restarts()
        self.awaited: set[int] = set()
        self.max_bytes = MAX_BYTES
        self.record_bytes = 4096
        self._gateway: Gateway | None = None
        self._door: socket.socket | None = None
        self._opened: list[Any] = []
        self.gateway_port = 0
        self._token = ""

    # What the gateway asks of the lifecycle

    def connected(self, member_id: int) -> LiveMember | None:
        live = self.live.get(member_id)
        return live if live and not live.stop_asked.is_set() else None

    def live_members(self) -> list[LiveMember]:
        return list(self.live.values())

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(pk=member_id)

    def connection_failed(self, live: LiveMember, error: ConnectError) -> None:
        self.failures.append(f"{live.name}: {error}")
        self.live.pop(live.member_id, None)

    def _wake(self) -> None:
        self.woken += 1

    # What tests do

    def member(self, name: str = "notes", behaviours: dict[str, Behaviour] | None = None, **options: Any) -> Member:
        """A connected member with the tool `echo`. `tools` are its definitions, `capabilities` its row's."""
        tools = options.pop("tools", [{"name": "echo", "inputSchema": {"type": "object"}}])
        capabilities = options.pop("capabilities", {"tools": {}})
        row = GuildMember.objects.create(
            name=name, directory=name, status="connected", capabilities=capabilities, manifest=options
        )
        for position, definition in enumerate(tools):
            Tool.objects.create(member=row, name=definition["name"], position=position, definition=definition)
        server = Server({})
        self._opened.append(server)
        made = Member(row, server, behaviours or {})
        made.client.capabilities = capabilities
        self._opened.append(made.client)
        self.live[row.pk] = made.live
        if self._gateway is not None:
            self._gateway.member_changed(row.pk)
        return made

    @property
    def gateway(self) -> Gateway:
        """Started when it is needed first."""
        if self._gateway is None:
            sockets = listeners.bind("127.0.0.1", 0)
            for other in sockets[1:]:
                other.close()
            self._door = sockets[0]
            self.gateway_port = sockets[0].getsockname()[1]
            trusted = ["http://trusted.example"]
            options = Options(["127.0.0.1"], trusted, self.max_bytes, self.record_bytes, self.data_dir)
            self._gateway = Gateway(
                lifecycle=self,  # type: ignore[arg-type]
                sockets=sockets[:1],
                options=options,
                wake_supervisor=self._wake,
            )
            self._gateway.start()
        return self._gateway

    def agent(self, path: str = "/mcp", token: str | None = None) -> Agent:
        assert self.gateway
        self._token = self._token or make_token()
        agent = Agent(self, token or self._token, path)  # type: ignore[arg-type]
        self._opened.append(agent.http)
        return agent

    def next_gateway(self) -> None:
        """Another one, which knows what the first one left behind."""
        self.close_gateway()
        self._gateway = None

    def calls(self, count: int = 1) -> list[Invocation]:
        """The calls written down, oldest first, once there are so many."""
        eventually(lambda: Invocation.objects.count() >= count)
        return list(Invocation.objects.order_by("id"))

    def close(self) -> None:
        for opened in reversed(self._opened):
            opened.close()
        self.close_gateway()

    def close_gateway(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()
            for thread in threading.enumerate():
                if thread.name == "gateway-access":
                    thread.join(10)
        if self._door is not None:
            self._door.close()  # as the gateway does, if it ever began


@contextlib.contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """`work` meanwhile; its result comes into the list, at the latest when the block ends."""
    ends: list[Any] = []
    thread = threading.Thread(target=lambda: ends.append(work()), name="server-background")
    thread.start()
    try:
        yield ends
    finally:
        thread.join(20)
        assert not thread.is_alive()


def reply_to(asked: Asked, question_id: Any) -> dict[str, Any]:
    """What the hall says to a question that the script asked; waits for it as long as the script lives."""
    while not asked.server.closing.wait(0.005):
        for one in list(asked.server.requests):
            message = one.message if one.body else {}
            if isinstance(message, dict) and "method" not in message and message.get("id") == question_id:
                return message
    raise OSError
