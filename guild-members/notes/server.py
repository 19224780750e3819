"""A guild member that keeps notes. What `guildhall new_member` makes, with two tools of its own."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

# Tools ------------------------------------------------------------------------------------------------------------

NOTES_FILE = os.environ.get("NOTES_FILE", "notes.json")
one_at_a_time = threading.Lock()


def add_note(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("text must be a string that says something")
    with one_at_a_time:
        notes = [*read_notes(), text]
        # Replaced in one step: a process that is killed meanwhile leaves the old file or the new one.
        with open(NOTES_FILE + ".new", "w", encoding="utf-8") as file:
            json.dump(notes, file, indent=2)
        os.replace(NOTES_FILE + ".new", NOTES_FILE)
    return f"noted as number {len(notes)}"


def list_notes() -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(read_notes(), start=1)) or "no notes yet"


def read_notes() -> list[str]:
    try:
        with open(NOTES_FILE, encoding="utf-8") as file:
            notes: list[str] = json.load(file)
            return notes
    except FileNotFoundError:
        return []


TOOLS: dict[str, Callable[..., str]] = {"add_note": add_note, "list_notes": list_notes}
DEFINITIONS = [
    {
        "name": "add_note",
        "title": "Add a note",
        "description": "Writes a note down. Notes are kept until somebody deletes the file.",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string", "minLength": 1, "description": "What to remember."}},
            "required": ["text"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    },
    {
        "name": "list_notes",
        "title": "List the notes",
        "description": "Gives every note, numbered, the oldest first.",
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
]

# MCP --------------------------------------------------------------------------------------------------------------

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
with open("guild-member.json", encoding="utf-8") as file:  # a member runs in its own folder
    MANIFEST = json.load(file)


class RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def answer(body: bytes) -> tuple[int, dict[str, Any] | None]:
    """The HTTP status and the message that answer `body`; no message for a notification."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return 400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "the body is not JSON"}}
    if not isinstance(message, dict) or not isinstance(message.get("params", {}), dict):
        return 400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "the body is no request"}}
    if "id" not in message:
        return 202, None
    try:
        result = result_of(message.get("method", ""), message.get("params", {}))
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": result}
    except RpcError as error:
        return 200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": error.code, "message": str(error)}}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": MANIFEST["name"], "version": MANIFEST["version"]},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": DEFINITIONS}
    if method == "tools/call":
        return call_tool(params.get("name"), params.get("arguments", {}))
    raise RpcError(-32601, f"there is no method {method!r}")


def call_tool(name: Any, arguments: Any) -> dict[str, Any]:
    if not isinstance(name, str) or name not in TOOLS or not isinstance(arguments, dict):
        raise RpcError(-32602, f"there is no tool {name!r}, or its arguments are not an object")
    try:
        text, failed = TOOLS[name](**arguments), False
    except (TypeError, ValueError, OSError) as error:  # the tool failed, not the protocol: the caller may try again
        text, failed = str(error), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


# HTTP -------------------------------------------------------------------------------------------------------------

LOCAL_NAMES = ("127.0.0.1", "localhost")
LOCAL_ORIGIN = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::([1-9][0-9]{0,4}))?")
MAX_BODY = 1_000_000


def is_local_origin(origin: str) -> bool:
    """Whether the page came from this machine, whatever the port."""
    match = LOCAL_ORIGIN.fullmatch(origin)
    return match is not None and int(match[1] or 1) <= 65_535


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet

    def do_POST(self) -> None:
        if status := self.refusal():
            self.send_error(status)
            return
        status, message = answer(self.rfile.read(int(self.headers["Content-Length"])))
        body = b"" if message is None else json.dumps(message).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_error(405)

    do_DELETE = do_GET

    def refusal(self) -> int:
        """The status that refuses this request; 0 when it may be answered."""
        port = self.connection.getsockname()[1]
        origin = self.headers.get("Origin")
        length = self.headers.get("Content-Length", "")
        # A web page must not reach a server on this machine through its visitor's browser (DNS rebinding).
        if self.headers.get("Host", "").lower() not in [f"{name}:{port}" for name in LOCAL_NAMES]:
            return 403
        if origin is not None and not is_local_origin(origin):
            return 403
        if self.path != "/mcp":
            return 404
        if self.headers.get_content_type() != "application/json":
            return 415
        return 0 if length.isdigit() and int(length) <= MAX_BODY else 413

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing per request; what is printed to stderr is the member's log."""


class Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    try:
        server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    except OSError as error:
        print(f"cannot listen on port {sys.argv[1]}: {error}", file=sys.stderr)
        sys.exit(2 if error.errno == errno.EADDRINUSE else 1)  # 2: the hall comes again with another port
    server.serve_forever()
