"""The member behind every contestant: as little server as MCP allows, so that what is measured is in front of it.

`echo.py PORT [MODE...]`: one tool, echo; handshake versions, a session per client. It is served as members usually are,
by uvicorn with httptools. Modes: `lean` has a few lines in uvicorn's place, which cost half; `tools=N` lists N tools;
`definitions=FILE` gives all but the first of them the names, descriptions and parameters in the file; `pause=SECONDS`
answers each call so much later (not with `lean`); `stdio`, then without a port, is the same behind a pipe.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

MODES = sys.argv[1:]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
COUNT = next((int(mode.removeprefix("tools=")) for mode in MODES if mode.startswith("tools=")), 1)
PAUSE = next((float(mode.removeprefix("pause=")) for mode in MODES if mode.startswith("pause=")), 0.0)
TOOLS = [
    {"name": "echo" if number == 0 else f"echo_{number}", "description": "Says it again.", "inputSchema": SCHEMA}
    for number in range(COUNT)
]
if path := next((mode.removeprefix("definitions=") for mode in MODES if mode.startswith("definitions=")), ""):
    with open(path) as file:
        definitions = json.load(file)["tools"]
    for number, tool in enumerate(TOOLS[1:]):
        round_number, position = divmod(number, len(definitions))
        own = definitions[position]
        properties = {name: {"type": "string"} for name in own["parameters"]}
        tool["name"] = own["name"] + (f"_{round_number}" if round_number else "")
        tool |= {"description": own["description"], "inputSchema": {"type": "object", "properties": properties}}
sessions = itertools.count(1)


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The response to a message; None where none is due."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        return None
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    elif method == "ping":
        result = {}
    else:
        error = {"code": -32601, "message": "no such method"}
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def served(verb: str, body: bytes) -> tuple[int, bytes, str]:
    """Status, body, and the id of the session that begins with it."""
    if verb != "POST":
        return (405 if verb == "GET" else 200), b"", ""
    message = json.loads(body)
    response = answer(message)
    if response is None:
        return 202, b"", ""
    session = f"s{next(sessions)}" if message["method"] == "initialize" else ""
    return 200, json.dumps(response).encode(), session


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        part = await receive()
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    status, content, session = served(scope["method"], body)
    if PAUSE and b'"tools/call"' in body:
        await asyncio.sleep(PAUSE)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if session:
        headers.append((b"mcp-session-id", session.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class LeanConnection(asyncio.Protocol):
    REASONS = {200: b"200 OK", 202: b"202 Accepted", 405: b"405 Method Not Allowed"}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, _, rest = self.data.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self.data = rest[length:]
            status, body, session = served(head.split(b" ", 1)[0].decode(), rest[:length])
            more = f"Mcp-Session-Id: {session}\r\n".encode() if session else b""
            lines = b"HTTP/1.1 %b\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self.transport.write(lines % (self.REASONS[status], more, len(body)) + body)


async def serve_lean(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(LeanConnection, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def serve_stdio() -> None:
    for line in sys.stdin.buffer:
        if (response := answer(json.loads(line))) is not None:
            sys.stdout.buffer.write(json.dumps(response).encode() + b"\n")
            sys.stdout.buffer.flush()


def main() -> None:
    if "stdio" in MODES:
        serve_stdio()
    elif "lean" in MODES:
        asyncio.run(serve_lean(int(MODES[0])))
    else:
        import uvicorn  # not for the others: behind a pipe it starts without site-packages

        uvicorn.run(app, port=int(MODES[0]), http="httptools", lifespan="off", ws="none", log_level="warning")


if __name__ == "__main__":
    main()
