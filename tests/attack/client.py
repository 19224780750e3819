"""Raw clients for attacks: JSON-RPC to the gateway, REST to the web, and bytes to both."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import time
from dataclasses import dataclass
from typing import Any

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
LEGACY = "2025-06-18"
TIMEOUT = 40.0  # seconds, for each response


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages, from JSON or from events. Raises ValueError if it is not strict JSON."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return [strict_json(self.body)] if self.body else []
        events = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        data = [b"\n".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")) for event in events]
        return [strict_json(item) for item in data if item]

    @property
    def text(self) -> str:
        """The text of the tool's result. Empty if there is no result."""
        last = self.messages[-1] if self.messages else {}
        content = (last.get("result") or {}).get("content") or [{}] if isinstance(last, dict) else [{}]
        return str(content[0].get("text", ""))


def strict_json(body: bytes) -> Any:
    """Raises ValueError for invalid UTF-8, duplicate keys, NaN, and too deep nesting."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key is there twice")
        return dict(pairs)

    try:
        return json.loads(body.decode(), parse_constant=refuse, object_pairs_hook=refuse_duplicates)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class Client:
    """One principal at one address of a server, on one persistent connection. It is opened again after an error."""

    def __init__(self, port: int, token: str = "", path: str = "/mcp", seconds: float = TIMEOUT) -> None:
        self.port, self.path, self.ids = port, path, itertools.count(1)
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def request(self, verb: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Header names with _ for -. Raises OSError and HTTPException."""
        all_headers = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        try:
            self._connection.request(verb, path, body, all_headers)
            response = self._connection.getresponse()
            response_headers = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, response_headers, response.read())
        except BaseException:
            self._connection.close()
            raise

    def post(self, message: Any, **headers: str) -> Reply:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.request("POST", self.path, body, **headers)

    def begin(self, **capabilities: Any) -> Client:
        """A session of a handshake version."""
        params = {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": {"name": "a", "version": "1"}}
        reply = self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.headers["Mcp-Session-Id"] = reply.headers["mcp-session-id"]
        self.headers["MCP-Protocol-Version"] = LEGACY
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def call(self, tool: str, arguments: Any, *, modern: bool = False, request_id: Any = None) -> Reply:
        message_id = next(self.ids) if request_id is None else request_id
        message, headers = call_message(tool, arguments, message_id, modern=modern)
        return self.post(message, **headers)

    def rest(self, verb: str, path: str, body: Any = None, **headers: str) -> Reply:
        return self.request(verb, path, None if body is None else json.dumps(body).encode(), **headers)


def call_message(
    tool: str, arguments: Any, request_id: Any, *, modern: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    headers = {}
    if modern:
        params["_meta"] = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
        headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": "tools/call", "Mcp_Name": tool}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}, headers


def send_bytes(port: int, data: bytes, *, seconds: float = 3.0, quiet: float = 0.25) -> bytes:
    """Send bytes. Returns the bytes until the server closes, sends nothing for `quiet` seconds, or time is over."""
    received, deadline = b"", time.monotonic() + seconds
    with contextlib.suppress(OSError), connect(port) as connection:
        connection.sendall(data)
        while (remaining := deadline - time.monotonic()) > 0:
            connection.settimeout(min(remaining, quiet if received else remaining))
            part = connection.recv(65_536)
            if not part:
                break
            received += part
    return received


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
