"""The hall's client as the subject of the MCP conformance suite: `python tests/conformance/client.py URL`.

The environment names the scenario, the protocol version, and other data for the client. The suite judges the requests
that its server receives. The exit code is 0 if everything succeeded.
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
from mcp_runtime.client.exchanges import Exchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ChallengeError, ClientError, MethodError, OAuthError
from tests.conformance.signing import SigningBearer

TIMEOUT = 10.0

# A client must answer the questions that it declares.
CAPABILITIES: dict[str, Any] = {"elicitation": {}, "roots": {}, "sampling": {}}
SAMPLES = {"boolean": True, "integer": 3, "number": 5, "string": "us-west1", "object": {}, "array": []}


def answer_question(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Answer like a user who accepts every form unchanged, shares no folder and allows no use of a model."""
    if method == "elicitation/create":
        return {"action": "accept", "content": fill_in(params["requestedSchema"])}
    if method == "roots/list":
        return {"roots": []}
    if method == "sampling/createMessage":
        raise MethodError(-1, "the user does not want a model to be asked")
    raise MethodError(jsonrpc.METHOD_NOT_FOUND, f"{method} is not answered here")


def fill_in(schema: dict[str, Any]) -> dict[str, Any]:
    """Every field with its default, or with a sample of its type."""
    fields = schema.get("properties", {}).items()
    return {name: field["default"] if "default" in field else SAMPLES[field["type"]] for name, field in fields}


def list_tools(client: JsonRpcClient) -> None:
    client.list_tools(TIMEOUT)


def call_every_tool(client: JsonRpcClient) -> None:
    for tool in client.list_tools(TIMEOUT).tools:
        client.invoke_tool(tool["name"], fill_in(tool["inputSchema"]), TIMEOUT)


def call_tools_of_context(client: JsonRpcClient) -> None:
    client.list_tools(TIMEOUT)
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        client.invoke_tool(call["name"], call["arguments"], TIMEOUT)


# In all other scenarios every tool is called once.
SCENARIOS: dict[str, Callable[[JsonRpcClient], None]] = {
    "http-custom-headers": call_tools_of_context,
    "json-schema-ref-no-deref": list_tools,
}


# In these scenarios the client must give up.
REFUSALS = {
    f"auth/{name}"
    for name in (
        *("scope-retry-limit", "resource-mismatch", "metadata-issuer-mismatch", "iss-supported-missing"),
        *("iss-wrong-issuer", "iss-unexpected", "iss-normalized"),
    )
}


class ListeningExchange(Exchange):
    """A stream for messages without a request. `request_sent` is set once its request was sent, or has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.request_sent = threading.Event()

    def attach(self, sock: Any) -> None:
        super().attach(sock)
        send = sock.sendall

        def send_and_note(*args: Any) -> None:
            send(*args)
            self.request_sent.set()

        sock.sendall = send_and_note


@contextlib.contextmanager
def listen_in_background(client: JsonRpcClient) -> Iterator[None]:
    """Listen during the block. The suite's server, like SDKs for TypeScript, asks outside of the stream of the call."""
    exchange = ListeningExchange()

    def listen() -> None:
        with contextlib.suppress(ClientError):  # not every server has such a stream
            client.listen(exchange, 2 * TIMEOUT)
        exchange.request_sent.set()

    thread = threading.Thread(target=listen)
    thread.start()
    # Do not wait for the response, because this server sends no header before the first event. But questions without a
    # listener are lost, so wait until the request was sent.
    exchange.request_sent.wait(TIMEOUT)
    try:
        yield
    finally:
        exchange.abort()
        thread.join()


def main(url: str) -> None:
    run_scenario = SCENARIOS.get(os.environ["MCP_CONFORMANCE_SCENARIO"], call_every_tool)
    version = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    bearer = SigningBearer(url, context) if os.environ["MCP_CONFORMANCE_SCENARIO"].startswith("auth/") else None
    client = JsonRpcClient(url, capabilities=CAPABILITIES, on_request=answer_question, bearer=bearer)
    refusals = (ChallengeError, OAuthError) if os.environ["MCP_CONFORMANCE_SCENARIO"] in REFUSALS else ()
    try:
        client.connect(TIMEOUT, version=version)
        with contextlib.nullcontext() if version == mcp.MODERN_VERSION else listen_in_background(client):
            run_scenario(client)
    except refusals as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
    finally:
        client.close()


if __name__ == "__main__":
    main(sys.argv[-1])
