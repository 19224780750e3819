"""An agent as raw HTTP: what it sends to the gateway, word for word, and what comes back, status and all."""

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

from roster.models import ApiToken
from tests.conftest import eventually
from tests.support.hall import Hall, member, wait_for_status

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"


def make_token(user: User | None = None, **options: Any) -> str:
    """Of a superuser, unless told otherwise; without a limit of calls a minute."""
    user = user or User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("agent")
    return ApiToken.make(user=user, **{"calls_per_minute": 0, **options})[1]


def messages_of(response: requests.Response) -> list[dict[str, Any]]:
    """The JSON-RPC messages of a reply, whether it came whole or as a stream."""
    if response.headers["content-type"].startswith("application/json"):
        told = response.json()
        return told if isinstance(told, list) else [told]
    events = response.content.decode().split("\n\n")
    return [json.loads(event.partition("data: ")[2]) for event in events if "data: " in event]


class Agent:
    """One caller at one path. `begin` shakes hands; without it each request is sent as it is, or in the modern way."""

    def __init__(self, hall: Hall, token: str | None, path: str = "/mcp") -> None:
        self.url = f"http://127.0.0.1:{hall.gateway_port}{path}"
        self.http = requests.Session()
        self.http.trust_env = False
        if token is not None:
            self.http.headers["Authorization"] = f"Bearer {token}"
        self.http.headers["Accept"] = "application/json, text/event-stream"
        self._ids = itertools.count(1)

    def begin(self, version: str = "2025-06-18", **capabilities: Any) -> Agent:
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "a", "version": "1"}}
        response = self.send("initialize", **params)
        assert response.status_code == 200, response.text
        self.http.headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
        self.http.headers["MCP-Protocol-Version"] = response.json()["result"]["protocolVersion"]
        assert self.notify("notifications/initialized").status_code == 202
        return self

    def post(self, message: Any, **headers: str | None) -> requests.Response:
        """Bytes and text go as they are. Header names with _ for -; None takes one away."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        named = {"Content-Type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        return self.http.post(self.url, data=data, headers=named, timeout=40)

    def send(self, method: str, **params: Any) -> requests.Response:
        return self.post({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    def notify(self, method: str, **params: Any) -> requests.Response:
        return self.post({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The response to a request; what came before it is not looked at."""
        return messages_of(self.send(method, **params))[-1]

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", name=tool, arguments=arguments)

    def text(self, tool: str, **arguments: Any) -> str:
        """What the tool said. Fails where it said nothing."""
        told = self.call(tool, **arguments)
        assert "result" in told, told
        return str(told["result"]["content"][0]["text"])

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.ask("tools/list")["result"]["tools"]]

    def modern(self, method: str, **params: Any) -> requests.Response:
        message, headers = self.modern_message(method, **params)
        return self.post(message, **headers)

    def modern_message(self, method: str, **params: Any) -> tuple[dict[str, Any], dict[str, str]]:
        """The message, and the headers that repeat what it says."""
        meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}, **params.pop("meta", {})}
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": {**params, "_meta": meta}}
        headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
        if "name" in params or "uri" in params:
            headers["Mcp_Name"] = params.get("name") or params["uri"]
        return message, headers

    def listening(self) -> Heard:
        """The stream of what is said unasked."""
        return Heard(self, "GET", None, {"Accept": "text/event-stream"})

    def sent(self, message: Any, **headers: str) -> http.client.HTTPConnection:
        """A request whose reply nobody reads: close what comes back to go away."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.netloc)
        named = {**self.http.headers, "Content-Type": "application/json"}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        told = {str(name): str(value) for name, value in named.items()}
        connection.request("POST", self.url.removeprefix(f"http://{parts.netloc}"), json.dumps(message), told)
        return connection

    def streaming(self, message: Any, **headers: str) -> Heard:
        """A request whose reply is read as it comes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Heard(self, "POST", json.dumps(message), {"Content-Type": "application/json", **named})


class Heard:
    """A stream that is open: its messages as they come. `close` goes away without a word, as a process that ends."""

    def __init__(self, agent: Agent, verb: str, body: str | None, headers: dict[str, str]) -> None:
        parts = urlsplit(agent.url)
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=40)
        named = {str(name): str(value) for name, value in {**agent.http.headers, **headers}.items()}
        self._connection.request(verb, agent.url.removeprefix(f"http://{parts.netloc}"), body, named)
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self.ended = threading.Event()
        self._messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.everything: list[dict[str, Any]] = []  # that came, in its order
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Heard:
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
                    self.everything.append(json.loads(line[6:]))
                    self._messages.put(self.everything[-1])
        self.ended.set()

    def next(self, within: float = 10.0) -> dict[str, Any]:
        return self._messages.get(timeout=within)

    def until(self, method: str, within: float = 10.0) -> dict[str, Any]:
        """The next message with this method, or the response for an empty one."""
        while (message := self.next(within)).get("method", "") != method:
            pass
        return message

    def forget(self) -> None:
        """What came so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._messages.get_nowait()


def is_up(hall: Hall) -> bool:
    """Whether the gateway answers: members may be up before it is."""
    try:
        return Agent(hall, None).send("ping").status_code == 401
    except requests.ConnectionError:
        return False


def on_the_roster(hall: Hall, *names: str) -> Agent:
    """Once these members are connected, and the gateway lists their tools: moments after their rows say so."""
    for name in names:
        wait_for_status(hall, name, "connected", within=40)
    eventually(lambda: is_up(hall), within=20)
    agent = Agent(hall, make_token()).begin()
    eventually(lambda: {tool.partition("__")[0] for tool in agent.tools()} >= set(names))
    return agent


def kill(name: str) -> None:
    """SIGKILL for a member; over when the kernel is done with all its threads and sockets."""
    pid = member(name).pid or 0
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(pid))
