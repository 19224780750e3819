"""The part of HTTP that MCP needs: heads of requests, reasons to refuse them, and replies as bytes."""

from __future__ import annotations

import re

MAX_BODY = 4_000_000
PATH = "/mcp"
LOCAL_NAMES = ("127.0.0.1", "localhost")
LOCAL_ORIGIN = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::([1-9][0-9]{0,4}))?")
# Later versions have no handshake. A stdio server that was initialized does not support them.
LAST_HANDSHAKE_VERSION = "2025-11-25"

STATUS_TEXTS = {
    200: "OK", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    411: "Length Required", 413: "Content Too Large", 415: "Unsupported Media Type", 431: "Headers Too Large",
    503: "Service Unavailable",
}  # fmt: skip
JSON, EVENT_STREAM = "application/json", "text/event-stream"
STREAM_HEAD = (
    f"HTTP/1.1 200 OK\r\nContent-Type: {EVENT_STREAM}\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
).encode()
LAST_CHUNK = b"0\r\n\r\n"


class RefusalError(Exception):
    """The request is refused unread. The end of its body may be unknown, so the connection serves no other request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Head:
    def __init__(self, method: str, path: str, version: str, headers: dict[str, str]) -> None:
        self.method = method
        self.path = path
        self.version = version
        self.headers = headers
        self.length = 0

    @property
    def keep_alive(self) -> bool:
        return self.version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close"

    @property
    def takes_stream(self) -> bool:
        return self.version == "HTTP/1.1" and EVENT_STREAM in self.headers.get("accept", "").lower()

    @property
    def session_id(self) -> str:
        return self.headers.get("mcp-session-id", "")


def read_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise RefusalError(400, "this is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name != name.strip() or (name in headers and name in ("host", "content-length")):
            raise RefusalError(400, "a header cannot be read")
        headers[name] = value.strip()
    return Head(parts[0], parts[1].partition("?")[0], parts[2], headers)


def check_head(head: Head, port: int) -> None:
    """Raise RefusalError, or set `head.length` to the length of the body."""
    origin = head.headers.get("origin")
    # A web page must not reach a server on this machine through its visitor's browser (DNS rebinding).
    if head.headers.get("host", "").lower() not in [f"{name}:{port}" for name in LOCAL_NAMES]:
        raise RefusalError(403, "the Host is not this machine")
    if origin is not None and not is_local_origin(origin):
        raise RefusalError(403, "pages from elsewhere may not call this server")
    if head.path != PATH:
        raise RefusalError(404, f"only {PATH} is served")
    if (head.method == "GET" and head.takes_stream) or (head.method == "DELETE" and head.session_id):
        if head.headers.get("content-length", "0") != "0" or "transfer-encoding" in head.headers:
            raise RefusalError(400, f"a {head.method} has no body")
        return
    if head.method != "POST":
        raise RefusalError(405, "POST a message, GET the stream of events, or DELETE a session")
    if head.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise RefusalError(415, f"the body must be {JSON}")
    length = head.headers.get("content-length", "")
    if "transfer-encoding" in head.headers or not length:
        raise RefusalError(411, "Content-Length is required")
    if not (length.isascii() and length.isdigit()):
        raise RefusalError(400, "Content-Length is no number")
    if len(length) > 12 or int(length) > MAX_BODY:
        raise RefusalError(413, f"the body is larger than {MAX_BODY:,} bytes")
    head.length = int(length)
    if head.headers.get("mcp-protocol-version", "") > LAST_HANDSHAKE_VERSION:
        raise RefusalError(400, "this protocol version is not supported; send initialize to agree on one")


def is_local_origin(origin: str) -> bool:
    """Whether the page came from this machine. The port does not matter."""
    match = LOCAL_ORIGIN.fullmatch(origin)
    return match is not None and int(match[1] or 1) <= 65_535


def response(status: int, body: bytes = b"", *, keep_alive: bool = True, session: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status} {STATUS_TEXTS[status]}", f"Content-Length: {len(body)}"]
    lines += [f"Content-Type: {JSON}"] if body else []
    lines += ["Allow: GET, POST, DELETE"] if status == 405 else []
    lines += [f"Mcp-Session-Id: {session}"] if session else []
    lines += [] if keep_alive else ["Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def event(message: bytes) -> bytes:
    data = b"data: " + message + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)
