"""A client of the gateway in raw HTTP: the exact requests it sends, and the exact responses."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import queue
import signal
import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import psutil
import requests
from django.contrib.auth.models import User

from roster.models import Token
from tests.conftest import eventually
from tests.support.hall import Hall, member, wait_for_status

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


def make_token(user: User | None = None, **options: Any) -> str:
    """A token of `user`, or of a superuser, without the limits that can be switched off."""
    user = user or User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("agent")
    return Token.make(user=user, **Token.UNLIMITED | options)[1]


def messages_of(response: requests.Response) -> list[dict[str, Any]]:
    """The JSON-RPC messages of a response, which is JSON or an event stream."""
    if response.headers["content-type"].startswith("application/json"):
        body = response.json()
        return body if isinstance(body, list) else [body]
    events = response.content.decode().split("\n\n")
    return [json.loads(event.partition("data: ")[2]) for event in events if "data: " in event]


class GatewayClient:
    """One client at one path. `begin` shakes hands. Without it requests have no session, or are modern."""

    def __init__(self, hall: Hall, token: str | None, path: str = "/mcp") -> None:
        self.url = f"http://{hall.address}:{hall.gateway_port}{path}"
        self.http = requests.Session()
        self.http.trust_env = False
        if token is not None:
            self.http.headers["Authorization"] = f"Bearer {token}"
        self.http.headers["Accept"] = "application/json, text/event-stream"
        self._ids = itertools.count(1)

    def begin(self, version: str = "2025-06-18", **capabilities: Any) -> GatewayClient:
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "a", "version": "1"}}
        response = self.send("initialize", **params)
        assert response.status_code == 200, response.text
        self.http.headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
        self.http.headers["MCP-Protocol-Version"] = response.json()["result"]["protocolVersion"]
        assert self.notify("notifications/initialized").status_code == 202
        return self

    def post(self, message: Any, **headers: str | None) -> requests.Response:
        """Bytes are sent unchanged. In header names write _ for -. The value None removes a header."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        all_headers = {"Content-Type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        return self.http.post(self.url, data=data, headers=all_headers, timeout=40)

    def send(self, method: str, **params: Any) -> requests.Response:
        return self.post({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    def notify(self, method: str, **params: Any) -> requests.Response:
        return self.post({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The response to a request. Messages that came before it are ignored."""
        return messages_of(self.send(method, **params))[-1]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=arguments)

    def text(self, tool: str, **arguments: Any) -> str:
        """The text of a tool's result. Fails if the call failed."""
        response = self.call(tool, **arguments)
        assert "result" in response, response
        return str(response["result"]["content"][0]["text"])

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.ask("tools/list")["result"]["tools"]]

    def modern(self, method: str, **params: Any) -> requests.Response:
        message, headers = self.modern_message(method, **params)
        return self.post(message, **headers)

    def modern_message(self, method: str, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """A modern message, and the headers that repeat parts of it."""
        meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}, **params.pop("meta", {})}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": {**params, "_meta": meta}}
        headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
        if "name" in params or "uri" in params:
            headers["Mcp_Name"] = params.get("name") or params["uri"]
        return message, headers

    def listen(self) -> MessageStream:
        """The stream for messages that answer no request."""
        return MessageStream(self, "GET", None, {"Accept": "text/event-stream"})

    def send_only(self, message: Any, **headers: str) -> http.client.HTTPConnection:
        """Send a request without reading its reply. Close the returned connection to disconnect."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.netloc)
        values = {**self.http.headers, "Content-Type": "application/json"}
        values |= {name.replace("_", "-"): value for name, value in headers.items()}
        all_headers = {str(name): str(value) for name, value in values.items()}
        connection.request("POST", self.url.removeprefix(f"http://{parts.netloc}"), json.dumps(message), all_headers)
        return connection

    def stream(self, message: Any, **headers: str) -> MessageStream:
        """A request whose reply is read message by message."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return MessageStream(self, "POST", json.dumps(message), {"Content-Type": "application/json", **more})


class MessageStream:
    """An open stream, and its messages. `close` drops the connection, as a process does that ends."""

    def __init__(self, agent: GatewayClient, verb: str, body: str | None, headers: dict[str, str]) -> None:
        parts = urlsplit(agent.url)
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=40)
        all_headers = {str(name): str(value) for name, value in {**agent.http.headers, **headers}.items()}
        self._connection.request(verb, agent.url.removeprefix(f"http://{parts.netloc}"), body, all_headers)
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self.ended = threading.Event()
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.all_messages: list[dict[str, Any]] = []  # in the order in which they came
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> MessageStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(10)
        self._response.close()
        self._connection.close()
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := self._response.readline():
                if line.startswith(b"data: "):
                    self.all_messages.append(json.loads(line[6:]))
                    self._messages.put(self.all_messages[-1])
        self.ended.set()

    @property
    def is_empty(self) -> bool:
        """Whether `next` has returned all messages that came so far."""
        return self._messages.empty()

    def next(self, within: float = 10.0) -> dict[str, Any]:
        return self._messages.get(timeout=within)

    def until(self, method: str, within: float = 10.0) -> dict[str, Any]:
        """The next message with this method. For an empty method, the next response."""
        while (message := self.next(within)).get("method", "") != method:
            pass
        return message

    def forget(self) -> None:
        """Drop the messages that came so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._messages.get_nowait()


def is_up(hall: Hall) -> bool:
    """Whether the gateway answers. Members may be up before it is."""
    try:
        return GatewayClient(hall, None).send("ping").status_code == 401
    except requests.ConnectionError:
        return False


def wait_for_roster(hall: Hall, *names: str) -> GatewayClient:
    """Wait until these members are connected and the gateway lists their tools. Returns a client of the gateway."""
    for name in names:
        wait_for_status(hall, name, "connected", within=40)
    eventually(lambda: is_up(hall), within=20)
    agent = GatewayClient(hall, make_token()).begin()
    eventually(lambda: {tool.partition("__")[0] for tool in agent.tools()} >= set(names))
    return agent


def kill(name: str) -> None:
    """Kill a member, and wait until the kernel has ended its threads and sockets."""
    pid = member(name).pid or 0
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(pid))
