"""An MCP server over HTTP in plain Python: no packages, no framework.

It keeps a guild member's contract: it runs in its own folder, listens on the port it is given and on 127.0.0.1 alone,
answers POST /mcp, and exits with code 2 when the port is taken. The tools are at the end of the file.
"""

from __future__ import annotations

import errno
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

PROTOCOL_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
DEFAULT_PROTOCOL_VERSION = "2025-06-18"
SERVER_INFO = {"name": "example", "title": "Example", "version": "1.0.0"}

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
EXIT_PORT_TAKEN = 2
MAX_BODY = 1_000_000
MAX_LINE = 16_384
MAX_HEADERS = 100
LOCAL_NAMES = ("127.0.0.1", "localhost")
LOCAL_ORIGIN = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::([1-9][0-9]{0,4}))?")


# Tools: what they are, and how one is called ------------------------------------------------------------------------


class Tool(NamedTuple):
    definition: dict[str, Any]
    run: Callable[..., str]


class ToolError(Exception):
    """A tool failed, and says why: the caller gets a result with `isError`."""


TOOLS: dict[str, Tool] = {}
JSON_TYPES: dict[str, Any] = {"string": str, "number": (int, float)}


def tool(title: str, description: str, *, read_only: bool = True, **properties: Any) -> Callable[..., Any]:
    """Offer a function as a tool. It gets an Event that is set when the caller cancels, then its arguments by name."""

    def offer(run: Callable[..., str]) -> Callable[..., str]:
        definition = {
            "name": run.__name__,
            "title": title,
            "description": description,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": read_only, "openWorldHint": False},
        }
        TOOLS[run.__name__] = Tool(definition, run)
        return run

    return offer


def check_arguments(arguments: dict[str, Any], schema: dict[str, Any]) -> None:
    properties = schema["properties"]
    for name in arguments:
        if name not in properties:
            raise ToolError(f"there is no argument {name!r}")
    for name, wanted in properties.items():
        if name not in arguments:
            raise ToolError(f"the argument {name!r} is missing")
        value = arguments[name]
        if not isinstance(value, JSON_TYPES[wanted["type"]]) or isinstance(value, bool):
            raise ToolError(f"the argument {name!r} must be a {wanted['type']}")


def text_result(text: str, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


# JSON-RPC and MCP -----------------------------------------------------------------------------------------------------


class RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RunningCalls:
    """The calls being worked on, by request id, so that notifications/cancelled finds them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[Any, list[threading.Event]] = {}

    def begin(self, request_id: Any) -> threading.Event:
        event = threading.Event()
        with self._lock:
            self._events.setdefault(request_id, []).append(event)
        return event

    def end(self, request_id: Any, event: threading.Event) -> None:
        with self._lock:
            events = self._events[request_id]
            events.remove(event)
            if not events:
                del self._events[request_id]

    def cancel(self, request_id: Any) -> None:
        with self._lock:
            events = self._events.get(request_id, ())
            # Two clients may use the same id, and nothing tells whose this is: better none than the wrong one.
            if len(events) == 1:
                events[0].set()


running_calls = RunningCalls()


def answer(body: bytes) -> tuple[int, dict[str, Any] | None]:
    """The HTTP status and the JSON-RPC message that answer `body`; no message for a notification."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return 400, error_message(None, PARSE_ERROR, "the body is not JSON")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return 400, error_message(None, INVALID_REQUEST, "the body is not one JSON-RPC 2.0 message")
    if "method" not in message and ("result" in message or "error" in message):
        return 202, None  # an answer to a question this server never asks
    method, params = message.get("method"), message.get("params", {})
    if not isinstance(method, str):
        return 400, error_message(None, INVALID_REQUEST, "method must be a string")
    if "id" not in message:
        take_notification(method, params)
        return 202, None
    request_id = message["id"]
    if not isinstance(request_id, (str, int)) or isinstance(request_id, bool):
        return 400, error_message(None, INVALID_REQUEST, "id must be a string or a whole number")
    try:
        return 200, {"jsonrpc": "2.0", "id": request_id, "result": take_request(request_id, method, params)}
    except RpcError as error:
        return 200, error_message(request_id, error.code, str(error))


def error_message(request_id: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def take_notification(method: str, params: Any) -> None:
    if method == "notifications/cancelled" and isinstance(params, dict):
        request_id = params.get("requestId")
        if isinstance(request_id, (str, int)):
            running_calls.cancel(request_id)


def take_request(request_id: Any, method: str, params: Any) -> dict[str, Any]:
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params must be an object")
    if method == "tools/call":
        return call_tool(request_id, params)
    if method == "tools/list":
        return {"tools": [tool.definition for tool in TOOLS.values()]}
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in PROTOCOL_VERSIONS else DEFAULT_PROTOCOL_VERSION,
            "capabilities": {"tools": {}},
            "serverInfo": SERVER_INFO,
        }
    if method == "ping":
        return {}
    raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")


def call_tool(request_id: Any, params: dict[str, Any]) -> dict[str, Any]:
    name, arguments = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str) or name not in TOOLS:
        raise RpcError(INVALID_PARAMS, f"there is no tool {name!r}")
    if not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "arguments must be an object")
    definition, run = TOOLS[name]
    cancelled = running_calls.begin(request_id)
    try:
        check_arguments(arguments, definition["inputSchema"])
        return text_result(run(cancelled, **arguments))
    except ToolError as error:
        return text_result(str(error), is_error=True)
    finally:
        running_calls.end(request_id, cancelled)


# HTTP: as much of it as MCP needs. http.server would do, in a third of the lines and at four times the time per answer.


class Refusal(Exception):
    """A request that is not answered by MCP. The connection is closed: where its body ends may be unknown."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    keep_alive: bool


STATUS_TEXTS = {
    200: "OK", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type", 431: "Headers Too Large",
}  # fmt: skip


def serve_connection(connection: socket.socket, port: int) -> None:
    """Answer one request after the other until the client leaves."""
    # Without this the kernel holds small answers back, hoping for more to send.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, connection.makefile("rb") as stream:
        try:
            while serve_request(connection, stream, port):
                pass
        except OSError:
            pass  # the client left in the middle


def serve_request(connection: socket.socket, stream: Any, port: int) -> bool:
    """Answer one request; whether another may follow."""
    try:
        request = read_head(stream)
        if request is None:
            return False
        check_head(request, port)
        if request.headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = body_length(request)
        body = stream.read(length)
        if len(body) < length:
            return False
        status, message = answer(body)
        send(connection, status, message, keep_alive=request.keep_alive)
        return request.keep_alive
    except Refusal as refusal:
        send(connection, refusal.status, error_message(None, INVALID_REQUEST, str(refusal)), keep_alive=False)
        return False


def read_head(stream: Any) -> Request | None:
    """The request line and headers; None when the client has left."""
    line = read_line(stream)
    if not line:
        return None
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise Refusal(400, "this is not HTTP/1.1")
    headers: dict[str, str] = {}
    while line := read_line(stream):
        name, colon, value = line.partition(":")
        if not colon or len(headers) == MAX_HEADERS:
            raise Refusal(431 if colon else 400, "too many headers" if colon else "a header has no colon")
        headers[name.lower()] = value.strip()
    option = headers.get("connection", "").lower()
    return Request(parts[0], parts[1], headers, option != "close" if parts[2] == "HTTP/1.1" else option == "keep-alive")


def read_line(stream: Any) -> str:
    line = stream.readline(MAX_LINE)
    if len(line) == MAX_LINE:
        raise Refusal(431, f"a line is longer than {MAX_LINE} bytes")
    return str(line, "latin-1").rstrip("\r\n")


def check_head(request: Request, port: int) -> None:
    """Refuse what a web page could send on a visitor's behalf (DNS rebinding), then what is not for MCP."""
    headers = request.headers
    if headers.get("host", "").lower() not in [f"{name}:{port}" for name in LOCAL_NAMES]:
        raise Refusal(403, "this Host is not served here")
    if "origin" in headers and not is_local_origin(headers["origin"]):
        raise Refusal(403, "pages of this Origin may not call")
    if request.path != "/mcp":
        raise Refusal(404, "the endpoint is /mcp")
    if request.method != "POST":
        raise Refusal(405, "only POST is served")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "the Content-Type must be application/json")
    if headers.get("mcp-protocol-version", DEFAULT_PROTOCOL_VERSION) not in PROTOCOL_VERSIONS:
        raise Refusal(400, f"MCP-Protocol-Version must be one of {', '.join(PROTOCOL_VERSIONS)}")


def is_local_origin(origin: str) -> bool:
    """Whether the page came from this machine, whatever the port."""
    match = LOCAL_ORIGIN.fullmatch(origin)
    return match is not None and int(match[1] or 1) <= 65_535


def body_length(request: Request) -> int:
    length = request.headers.get("content-length", "")
    if "transfer-encoding" in request.headers or not (length.isascii() and length.isdigit()):
        raise Refusal(411, "a Content-Length is required")
    if len(length) > 10 or int(length) > MAX_BODY:
        raise Refusal(413, f"the body may be {MAX_BODY} bytes long")
    return int(length)


def send(connection: socket.socket, status: int, message: dict[str, Any] | None, *, keep_alive: bool) -> None:
    body = b"" if message is None else json.dumps(message).encode()
    head = f"HTTP/1.1 {status} {STATUS_TEXTS[status]}\r\nContent-Length: {len(body)}\r\n"
    if body:
        head += "Content-Type: application/json\r\n"
    if status == 405:
        head += "Allow: POST\r\n"
    if not keep_alive:
        head += "Connection: close\r\n"
    connection.sendall(head.encode() + b"\r\n" + body)  # head and body in one packet


def main() -> None:
    # Not argparse: it ends with code 2 for a wrong option, which here means "the port is taken".
    if len(sys.argv) != 3 or sys.argv[1] != "--port" or not sys.argv[2].isdigit():
        sys.exit("usage: server.py --port PORT")
    port = int(sys.argv[2])
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as error:
        print(f"cannot listen on 127.0.0.1:{port}: {error.strerror}", file=sys.stderr)
        sys.exit(EXIT_PORT_TAKEN if error.errno == errno.EADDRINUSE else 1)
    print(f"listening on http://127.0.0.1:{port}/mcp", file=sys.stderr)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_connection, args=(connection, port), daemon=True).start()


# The tools --------------------------------------------------------------------------------------------------------


@tool("Echo", "Gives back the text it got.", text={"type": "string", "description": "The text to give back."})
def echo(_: threading.Event, text: str) -> str:
    return text


@tool("Reverse", "Gives back the text from end to start.", text={"type": "string", "description": "The text to turn."})
def reverse(_: threading.Event, text: str) -> str:
    return text[::-1]


@tool("Read the motto", "Reads the guild's motto from the file motto.txt beside this server.")
def read_motto(_: threading.Event) -> str:
    try:
        with open("motto.txt", encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise ToolError(f"motto.txt cannot be read: {error.strerror}") from error


@tool(
    "Fail",
    "Always fails, with the message it is given: shows what a tool's own error looks like.",
    message={"type": "string", "description": "What the error should say."},
)
def fail(_: threading.Event, message: str) -> str:
    raise ToolError(message)


@tool(
    "Take a while",
    "Answers after the given time, or as soon as the call is cancelled.",
    seconds={"type": "number", "minimum": 0, "maximum": 3600, "description": "How long to take, in seconds."},
)
def slow(cancelled: threading.Event, seconds: float) -> str:
    if not 0 <= seconds <= 3600:
        raise ToolError("seconds must be from 0 to 3600")
    started_at = time.monotonic()
    if cancelled.wait(seconds):
        raise ToolError(f"cancelled after {time.monotonic() - started_at:.1f} of {seconds:g} seconds")
    return f"took {seconds:g} seconds"


if __name__ == "__main__":
    main()
