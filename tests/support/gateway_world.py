"""The real gateway in this process, with scripted members. They are raw sockets, so that they can misbehave."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import uuid
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
from roster.models import Call, GuildMember, Tool
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token
from tests.support.scripted_server import Behaviour, Server, initialize_result
from tests.support.scripted_server import Request as MemberRequest

ALL = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "logging": {}, "completions": {}}
MAX_BYTES = 200_000


def event(message: Any, event_id: str = "", retry: int | None = None) -> bytes:
    """An event with a message. Without a message it has only an id or a retry time."""
    lines = [f"id: {event_id}"] if event_id else []
    lines += [f"retry: {retry}"] if retry is not None else []
    lines += [f"data: {json.dumps(message)}"] if message is not None else ["data:"]
    return ("\n".join(lines) + "\n\n").encode()


def request(message_id: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "method": method, "params": params}


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result(message_id: Any, **values: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message_id, "result": values}


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def with_session(incoming: MemberRequest) -> None:
    """Answer a handshake with a new session."""
    number = incoming.server.methods.count("initialize")
    incoming.result(initialize_result(incoming.message["params"]["protocolVersion"]), Mcp_Session_Id=f"s{number}")


def refuse_handshake(incoming: MemberRequest) -> None:
    incoming.error(-32022, "Unsupported protocol version", status=400, data={"supported": [mcp.MODERN_VERSION]})


def discovered(incoming: MemberRequest) -> None:
    incoming.result({"supportedVersions": [mcp.MODERN_VERSION], "capabilities": ALL, "resultType": "complete"})


DEFAULT: dict[str, Behaviour] = {
    "initialize": with_session,
    "server/discover": lambda incoming: incoming.error(-32601, "Method not found", status=404),
    "GET": lambda incoming: incoming.http(405),
    "DELETE": lambda incoming: incoming.http(200),
    "tools/call": lambda incoming: incoming.result(text(json.dumps(incoming.message["params"].get("arguments")))),
    "*": lambda incoming: incoming.error(-32601, "Method not found"),
}
MODERN: dict[str, Behaviour] = {"initialize": refuse_handshake, "server/discover": discovered}


class Member:
    """A scripted server, its row, and the hall's connection to it."""

    def __init__(self, row: GuildMember, server: Server, behaviours: dict[str, Behaviour]) -> None:
        self.row, self.server = row, server
        self.behaviours = server.behaviours = {**DEFAULT, **behaviours}
        self.client = JsonRpcClient(server.url)
        self.live = self.restart()

    def restart(self) -> LiveMember:
        """Connect again, as to a new process without the old sessions."""
        self.client.connect(5)
        self.live = LiveMember(self.row.pk, self.row.name, 0, self.client, NoProcess(), self.server.url)
        self.live.connected_at = 1.0
        return self.live

    @property
    def requests(self) -> list[MemberRequest]:
        return self.server.requests

    def messages(self, method: str) -> list[Any]:
        """The messages that the server received with this method."""
        messages = [request.message for request in list(self.server.requests) if request.body]
        return [
            message for message in messages if isinstance(message, dict) and message.get("method", "reply") == method
        ]


class World:
    """The gateway and its surroundings. It replaces the lifecycle, so that a test decides which members are there."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.lease_id = uuid.uuid4()
        self.live: dict[int, LiveMember] = {}
        self.failures: list[str] = []
        self.wake_count = 0
        self.restarts = Restarts()
        self.awaited_ids: set[int] = set()
        self.max_bytes = MAX_BYTES
        self.record_bytes = 4096
        self._gateway: Gateway | None = None
        self._listener: socket.socket | None = None
        self.node_sockets: list[socket.socket] = []  # on which other nodes connect, if a test sets them
        self._resources: list[Any] = []
        self.address, self.gateway_port = "127.0.0.1", 0
        self._token = ""

    # What the gateway needs of the lifecycle

    def connected_member(self, member_id: int) -> LiveMember | None:
        live = self.live.get(member_id)
        return live if live and not live.stop_requested.is_set() else None

    def live_members(self) -> list[LiveMember]:
        return list(self.live.values())

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        return GuildMember.objects.filter(pk=member_id)

    def handle_connection_failure(self, live: LiveMember, error: ConnectError) -> None:
        self.failures.append(f"{live.name}: {error}")
        self.live.pop(live.member_id, None)

    def _wake(self) -> None:
        self.wake_count += 1

    # For tests

    def member(self, name: str = "notes", behaviours: dict[str, Behaviour] | None = None, **options: Any) -> Member:
        """A connected member with the tool `echo`. `tools` and `capabilities` replace those of its rows."""
        tools = options.pop("tools", [{"name": "echo", "inputSchema": {"type": "object"}}])
        capabilities = options.pop("capabilities", {"tools": {}})
        row = GuildMember.objects.create(
            name=name, directory=name, status="connected", capabilities=capabilities, manifest=options
        )
        for position, definition in enumerate(tools):
            Tool.objects.create(member=row, name=definition["name"], position=position, definition=definition)
        server = Server({})
        self._resources.append(server)
        member = Member(row, server, behaviours or {})
        member.client.capabilities = capabilities
        self._resources.append(member.client)
        self.live[row.pk] = member.live
        if self._gateway is not None:
            self._gateway.member_changed(row.pk)
        return member

    @property
    def gateway(self) -> Gateway:
        """Started at its first use."""
        if self._gateway is None:
            sockets = listeners.bind("127.0.0.1", 0)
            for other in sockets[1:]:
                other.close()
            self._listener = sockets[0]
            self.gateway_port = sockets[0].getsockname()[1]
            trusted_origins = ["http://trusted.example"]
            options = Options(
                ["127.0.0.1"], trusted_origins, self.max_bytes, self.record_bytes, self.data_dir, "k" * 50
            )
            self._gateway = Gateway(
                lifecycle=self,  # type: ignore[arg-type]
                sockets=listeners.Sockets(sockets[:1], self.node_sockets),
                options=options,
                wake_supervisor=self._wake,
            )
            self._gateway.start()
        return self._gateway

    def agent(self, path: str = "/mcp", token: str | None = None) -> GatewayClient:
        assert self.gateway
        self._token = self._token or make_token()
        agent = GatewayClient(self, token or self._token, path)  # type: ignore[arg-type]
        self._resources.append(agent.http)
        return agent

    def replace_gateway(self) -> None:
        """Stop the gateway. The next use starts another one on the same data folder."""
        self.close_gateway()
        self._gateway = None

    def calls(self, count: int = 1) -> list[Call]:
        """The stored calls, oldest first, once there are so many."""
        eventually(lambda: Call.objects.count() >= count)
        return list(Call.objects.order_by("id"))

    def close(self) -> None:
        for resource in reversed(self._resources):
            resource.close()
        self.close_gateway()

    def close_gateway(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()
            for thread in threading.enumerate():
                if thread.name == "gateway-access":
                    thread.join(10)
        if self._listener is not None:
            self._listener.close()  # as the gateway does, if it was started


@contextlib.contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run `work` during the block. The list gets its result before the block ends."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="server-background")
    thread.start()
    try:
        yield results
    finally:
        thread.join(20)
        assert not thread.is_alive()


def reply_to(incoming: MemberRequest, question_id: Any) -> dict[str, Any]:
    """Wait for the hall's answer to a request of the server, until the server is closed."""
    while not incoming.server.closing.wait(0.005):
        for request in list(incoming.server.requests):
            message = request.message if request.body else {}
            if isinstance(message, dict) and "method" not in message and message.get("id") == question_id:
                return message
    raise OSError
