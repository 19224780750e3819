"""The hall's client as the subject of the MCP conformance suite: `python tests/conformance/client.py URL`.

The suite says in the environment which scenario it plays, which protocol version, and what else the client should know.
It decides by what reaches its server; the exit code is 0 when everything went as it should.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.client.transport import Exchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ClientError, MethodError

TIMEOUT = 10.0

# What a client declares it must answer.
CAPABILITIES: dict[str, Any] = {"elicitation": {}, "roots": {}, "sampling": {}}
SAMPLES = {"boolean": True, "integer": 3, "number": 5, "string": "us-west1", "object": {}, "array": []}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Like a person who accepts every form as it stands, shares no folder and wants no model asked."""
    if method == "elicitation/create":
        return {"action": "accept", "content": filled_in(params["requestedSchema"])}
    if method == "roots/list":
        return {"roots": []}
    if method == "sampling/createMessage":
        raise MethodError(-1, "the user does not want a model to be asked")
    raise MethodError(jsonrpc.METHOD_NOT_FOUND, f"{method} is not answered here")


def filled_in(schema: dict[str, Any]) -> dict[str, Any]:
    """Every field with its default; what has none gets something of its type."""
    fields = schema.get("properties", {}).items()
    return {name: field["default"] if "default" in field else SAMPLES[field["type"]] for name, field in fields}


def list_tools(client: JsonRpcClient) -> None:
    client.list_tools(TIMEOUT)


def call_every_tool(client: JsonRpcClient) -> None:
    for tool in client.list_tools(TIMEOUT).tools:
        client.invoke_tool(tool["name"], filled_in(tool["inputSchema"]), TIMEOUT)


def call_as_told(client: JsonRpcClient) -> None:
    client.list_tools(TIMEOUT)
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        client.invoke_tool(call["name"], call["arguments"], TIMEOUT)


# In all other scenarios every tool is called once.
PARTS: dict[str, Callable[[JsonRpcClient], None]] = {
    "http-custom-headers": call_as_told,
    "json-schema-ref-no-deref": list_tools,
}


class Listening(Exchange):
    """A stream for what the server says unasked. `asked_for` is set when the request for it has left, or never will."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for = threading.Event()

    def attach(self, sock: Any) -> None:
        super().attach(sock)
        send = sock.sendall

        def send_and_tell(*args: Any) -> None:
            send(*args)
            self.asked_for.set()

        sock.sendall = send_and_tell


@contextlib.contextmanager
def listening(client: JsonRpcClient) -> Iterator[None]:
    """The suite's server asks on a stream of its own, not on that of the call (SDKs for TypeScript do so)."""
    exchange = Listening()

    def listen() -> None:
        with contextlib.suppress(ClientError):  # not every server has such a stream
            client.listen(exchange, 2 * TIMEOUT)
        exchange.asked_for.set()

    thread = threading.Thread(target=listen)
    thread.start()
    # Its answer is not waited for: this server sends no header before the first event. But what it asks while nobody
    # listens is lost, so the request must have left.
    exchange.asked_for.wait(TIMEOUT)
    try:
        yield
    finally:
        exchange.abort()
        thread.join()


def main(url: str) -> None:
    play = PARTS.get(os.environ["MCP_CONFORMANCE_SCENARIO"], call_every_tool)
    version = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    client = JsonRpcClient(url, capabilities=CAPABILITIES, on_request=answer)
    try:
        client.connect(TIMEOUT, version=version)
        with contextlib.nullcontext() if version == mcp.MODERN_VERSION else listening(client):
            play(client)
    finally:
        client.close()


if __name__ == "__main__":
    main(sys.argv[-1])
