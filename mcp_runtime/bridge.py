"""A stdio server as a member like the others: `bridge PORT -- COMMAND...` serves its MCP over HTTP on 127.0.0.1:PORT.

Most MCP servers read JSON-RPC line by line from stdin, and answer on stdout. The runtime spawns this program in the
place of their command. It starts the command as its one child, in the same process group, and ends as that ends: with
its exit code, 128 + n for signal n. Exit code 2 with PORT_TAKEN on stderr is the bridge's own: somebody has the port.

One child serves many callers, who know nothing of each other: the bridge shakes hands with it once and tells every
caller the same, and gives each request an id of its own on the way in, the caller's on the way out. The child takes all
of them for one client, so the bridge keeps what belongs to a client: each has a session here with its subscriptions and
its log level. A message of the child goes to the session that it belongs to, and to nobody when that cannot be known.

Small and standard library only, run without site-packages: there is one of it for each stdio member. One thread and
non-blocking descriptors, so that nobody waits for somebody who does not read, and everything kept has a bound.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

# So that nothing in the server's folder or environment is taken for a module of ours; and it starts sooner.
ISOLATED = ["-I", "-S"]
PORT_TAKEN = "bridge: somebody else listens on port"
EXIT_PORT_TAKEN = 2  # the plugin contract
EXIT_USAGE = 64  # sysexits.h
EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 126, 127  # as shells say it
PR_SET_PDEATHSIG = 1

MAX_BYTES = 4_000_000  # of one line of the server, unless --max-bytes says otherwise
MAX_BODY = 4_000_000
MAX_HEAD = 64_000
# What the server does not read, and what a caller does not read of what it may miss.
MAX_BACKLOG = 4 * MAX_BODY
MAX_UNREAD_EVENTS = 1_000_000
MAX_CONNECTIONS = 2_200  # a member's `max_concurrency` is 1024 at most, and the streams of events
MAX_LISTENERS = 1_000
MAX_SESSIONS = 4_000  # more than the gateway keeps
MAX_URIS = 20_000  # characters of all the URIs that one session has subscribed to
MAX_LEFT = 1_000  # requests whose callers went away
READ_BYTES = 65_536
LINE_ENDS = 512  # kept of a line that is too long: the id of an answer is near one of them
NOISE_LINES_PER_SECOND = 20
NOISE_BYTES = 2_000
# The end of the server, in the order MCP asks for: the end of its input, SIGTERM, SIGKILL; seconds after the first.
# Not SIGTERM at once: the hall sends its own to the whole group, and two of them mean "hurry" to some servers.
TERMINATE_AFTER = 0.5
KILL_AFTER = 2.0  # sooner than the hall's patience with us ends

PATH = "/mcp"
LOCAL_NAMES = ("127.0.0.1", "localhost")
LOCAL_ORIGIN = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::([1-9][0-9]{0,4}))?")
# Later ones have no handshake, and a stdio server that was initialized does not speak them.
LAST_HANDSHAKE_VERSION = "2025-11-25"
SESSION_OVER = "this session is over: begin a new one with initialize"
NOT_PASSED_ON = "the server reads nothing, or the message is nested too deep"
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
# Of callers: the bridge says that it is initialized, and declared no roots. Of the server: it may ask for nothing.
SWALLOWED = ("notifications/initialized", "notifications/roots/list_changed")
# Of the server, for everybody: they say nothing of anybody.
LIST_CHANGES = tuple(f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources"))
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
DEFAULT_LEVEL = "info"  # of a session that asked for none, whatever others asked for

_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
_ID_LAST = re.compile(rb'[{,]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Message = dict[str, Any]


def command_line(port: int, argv: list[str], max_bytes: int) -> list[str]:
    """What to spawn for the server `argv`."""
    return [sys.executable, *ISOLATED, __file__, str(port), "--max-bytes", str(max_bytes), "--", *argv]


# Messages ---------------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """RecursionError for what could just be read, and is too deep to be written with an envelope around it."""
    try:
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate: it came escaped, and goes on escaped
        return json.dumps(message, separators=(",", ":")).encode()


def decode(text: bytes) -> Any:
    """The JSON value; ValueError for everything that is none."""
    try:
        return json.loads(text.decode())  # `loads` of bytes would take UTF-16 too
    except RecursionError:
        raise ValueError("nested too deep") from None


def error_message(request_id: Any, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}


def notification(method: str, params: Message | None = None) -> Message:
    return {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})


def id_in(line: bytes) -> int | None:
    """The id of an answer that cannot be read as JSON, or was cut; each order of the members has it near an end."""
    found = _ID_FIRST.match(line[:LINE_ENDS]) or _ID_LAST.search(line[-LINE_ENDS:])
    return int(found[1]) if found else None


def is_wanted(message: Message, session: Session | None) -> bool:
    """Whether a message of the server is one that the client has asked for."""
    params = message.get("params")
    level = params.get("level") if isinstance(params, dict) else None
    if message["method"] != "notifications/message" or level not in LOG_LEVELS:
        return True
    least = session.level if session and session.level else DEFAULT_LEVEL
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


def is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


class Lines:
    """Lines from bytes as they come, each with whether it was cut: of one too long only the ends are kept."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = bytearray()
        self._is_cut = False

    def feed(self, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            self._take(part)
            yield bytes(self._rest), self._is_cut
            self._rest.clear()
            self._is_cut = False
        self._take(rest)

    def _take(self, part: bytes) -> None:
        self._rest += part
        self._is_cut = self._is_cut or len(self._rest) > self._longest
        if self._is_cut and len(self._rest) > 2 * LINE_ENDS:
            del self._rest[LINE_ENDS:-LINE_ENDS]


# HTTP: as much of it as MCP needs ---------------------------------------------------------------------------------

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
    """A request that is not looked into. Where its body ends may be unknown: the connection serves no other."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Head:
    method: str
    path: str
    version: str
    headers: dict[str, str]
    length: int = 0

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
    """Raises RefusalError; else `head.length` is the length of the body."""
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
    """Whether the page came from this machine, whatever the port."""
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


@dataclass(eq=False)
class Connection:
    """A caller's connection: one request at a time, while what follows waits in `inbox`."""

    sock: socket.socket
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    head: Head | None = None  # of the request whose body is still coming
    exchange: Exchange | None = None  # the request that is being answered
    is_listening: bool = False  # it gets the events that belong to no request
    listens_for: Session | None = None
    is_over: bool = False  # the last was sent; what it still sends is thrown away
    is_served: bool = False  # `_serve` is at it, and goes on by itself


@dataclass(eq=False)
class Session:
    """One client, with what a server keeps for its client."""

    id: str
    level: str = ""  # of log messages; empty: it has asked for none
    uris: set[str] = field(default_factory=set)  # of the resources that it has subscribed to
    stream: Connection | None = None


@dataclass(eq=False)
class Exchange:
    """A request on its way: whose it is, and what its caller calls it. `session` None: a caller without one."""

    connection: Connection
    head: Head
    caller_id: str | int
    session: Session | None = None
    own_id: int = 0
    method: str = ""
    progress_token: Any = None
    subscribes_to: str | None = None
    is_cancelled: bool = False
    is_streaming: bool = False


# The bridge -------------------------------------------------------------------------------------------------------


class Bridge:
    """Callers on one side, one server on the other. `run()` returns the exit code when the server has ended."""

    def __init__(self, listener: socket.socket, argv: list[str], max_bytes: int) -> None:
        self._listener = listener
        self._port: int = listener.getsockname()[1]
        self._argv = argv
        self._max_bytes = max_bytes
        self._selector = selectors.DefaultSelector()
        self._connections: dict[Connection, None] = {}  # in the order of their last use
        self._is_accepting = False
        self._ids = itertools.count(1)
        # All that the server has not answered, cancelled requests and those of callers that left among it: it may still
        # work on them.
        self._pending: dict[int, Exchange] = {}
        self._sessions: dict[str, Session] = {}  # in the order of their last use
        self._subscribers: dict[str, set[Session]] = {}  # by URI
        self._subscribed: set[str] = set()  # URIs for which the server has said so
        self._is_debugging = False  # the server was asked for log messages of the lowest level
        self._has_called = False  # it has served a call of a tool
        self._works_unasked = False  # what it works on may be of others than those in `_pending`
        self._to_server = bytearray()
        self._lines = Lines(max_bytes)
        self._handshake_id = 0
        self._handshake: Message | None = None  # the result that every caller gets
        self._awaiting_handshake: list[Exchange] = []
        self._noise_second = 0
        self._noise = 0
        self._stop_asked = False
        self._end_steps: list[tuple[float, Callable[[], None]]] | None = None

    def run(self) -> int:
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop_signal)
        self._selector.register(woken, selectors.EVENT_READ, lambda _: woken.recv(READ_BYTES))
        self._start_server()
        self._accept_connections()
        while (code := self._server.poll()) is None:
            if self._stop_asked:
                self._begin_end()
            for key, mask in self._selector.select(self._patience()):
                cast(Callable[[int], object], key.data)(mask)
        self._say_goodbye()
        if code < 0 and not self._stop_asked:
            complain(f"the server was ended by signal {-code}")
        return code if code >= 0 else 128 - code

    def _on_stop_signal(self, *_: object) -> None:
        self._stop_asked = True

    # The server's process

    def _start_server(self) -> None:
        launcher = [sys.executable, *ISOLATED, __file__, "--launch", str(os.getpid()), *self._argv]
        self._server = subprocess.Popen(launcher, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._server.stdin is not None  # noqa: S101 - for the type checker
        assert self._server.stdout is not None  # noqa: S101
        self._stdin, self._stdout = self._server.stdin, self._server.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ, lambda _: self._read_server())

    def _begin_end(self) -> None:
        """The server is to end: nobody new is served, and what it does not do by itself is due soon."""
        if self._end_steps is None:
            now = time.monotonic()
            self._end_steps = [(now + TERMINATE_AFTER, self._server.terminate), (now + KILL_AFTER, self._server.kill)]
            self._stop_accepting()
            self._close_input()

    def _patience(self) -> float | None:
        """Seconds until the next step of the end is due; steps that are due are taken."""
        while self._end_steps:
            left = self._end_steps[0][0] - time.monotonic()
            if left > 0:
                return left
            self._end_steps.pop(0)[1]()
        return None

    def _close_input(self) -> None:
        if not self._stdin.closed:
            self._watch(self._stdin, selectors.EVENT_WRITE, None)
            self._to_server.clear()
            self._stdin.close()

    def _say_goodbye(self) -> None:
        """It ended: what it said last is passed on, as far as that goes without waiting."""
        if self._stdout in self._selector.get_map():
            for _ in range(2 * self._max_bytes // READ_BYTES + 1):  # somebody who inherited the pipe may still write
                if not self._read_server():
                    break
        for connection in list(self._connections):
            self._close(connection)

    # To the server

    def _tell_server(self, message: Message) -> bool:
        """Whether it will be told: one that does not read must not fill our memory."""
        if self._stdin.closed or len(self._to_server) > MAX_BACKLOG:
            return False
        try:
            self._to_server += encode(message) + b"\n"
        except RecursionError:
            return False
        self._write_server()
        return True

    def _write_server(self) -> None:
        if self._stdin.closed:  # by another callback of the same turn
            return
        try:
            del self._to_server[: os.write(self._stdin.fileno(), self._to_server)]
        except BlockingIOError:
            pass
        except OSError:
            self._close_input()  # it wants to hear no more; while it runs, requests get an error
            return
        self._watch(self._stdin, selectors.EVENT_WRITE, (lambda _: self._write_server()) if self._to_server else None)

    def _watch(self, pipe: Any, events: int, callback: Callable[[int], object] | None) -> None:
        """Have `callback` called when the pipe is ready, or nobody."""
        is_watched = pipe in self._selector.get_map()
        if callback and not is_watched:
            self._selector.register(pipe, events, callback)
        elif is_watched and not callback:
            self._selector.unregister(pipe)

    # From the server

    def _read_server(self) -> bool:
        """Whether there was something to read."""
        try:
            chunk = os.read(self._stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(self._stdout)
            self._begin_end()  # it can answer nobody any more; mostly it is about to exit
            return False
        for line, is_cut in self._lines.feed(chunk):
            self._take_line(line, is_cut)
        return True

    def _take_line(self, line: bytes, is_cut: bool) -> None:
        if is_cut:
            self._take_unreadable(line, f"is larger than {self._max_bytes:,} bytes")
            return
        if not line.strip():
            return
        try:
            value = decode(line)
        except ValueError:
            self._take_unreadable(line, "cannot be read")
            return
        for message in value if isinstance(value, list) else [value]:  # batches, of 2025-03-26
            if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                self._report_noise(line)
            elif "method" not in message and is_id(message.get("id")):
                self._take_answer(message)
            elif "method" not in message:
                self._report_noise(line)
            elif "id" in message:
                self._decline(message)
            elif isinstance(message["method"], str):
                self._take_notification(message)

    def _take_unreadable(self, line: bytes, reason: str) -> None:
        """If it was an answer, its caller need not wait for the deadline."""
        request_id = id_in(line)
        if request_id in self._pending or (request_id and request_id == self._handshake_id):
            self._take_answer(error_message(request_id, INTERNAL_ERROR, f"the server's answer {reason}"))
        else:
            self._report_noise(line)

    def _report_noise(self, line: bytes) -> None:
        """What is no message goes where complaints go, so many lines a second."""
        second = int(time.monotonic())
        if second != self._noise_second:
            if self._noise > NOISE_LINES_PER_SECOND:
                complain(f"{self._noise - NOISE_LINES_PER_SECOND} more lines on stdout were no messages")
            self._noise_second, self._noise = second, 0
        self._noise += 1
        if self._noise <= NOISE_LINES_PER_SECOND:
            write_stderr(line[:NOISE_BYTES].strip() + b"\n")

    def _take_answer(self, message: Message) -> None:
        request_id = message["id"]
        if request_id == self._handshake_id:
            self._end_handshake(message)
        elif exchange := self._pending.pop(request_id, None):
            self._has_called = self._has_called or exchange.method == "tools/call"
            if exchange.subscribes_to is not None:
                self._end_subscribing(exchange, exchange.subscribes_to, is_done="result" in message)
            self._answer(exchange, message)

    def _decline(self, message: Message) -> None:
        """A question of the server. Which of its callers it means cannot be told: none is asked."""
        if message["method"] == "ping":
            self._tell_server({"jsonrpc": "2.0", "id": message["id"], "result": {}})
        else:
            text = f"{str(message['method'])[:80]} is not offered: this client has declared no such capability"
            self._tell_server(error_message(message["id"], METHOD_NOT_FOUND, text))

    def _take_notification(self, message: Message) -> None:
        params = message.get("params")
        if message["method"] == "notifications/progress" and isinstance(params, dict):
            token = params.get("progressToken")
            exchange = self._pending.get(token) if isinstance(token, int) and token is not True else None
            if exchange is not None and exchange.progress_token is not None:
                restored = {**params, "progressToken": exchange.progress_token}
                self._stream(exchange, {**message, "params": restored})
        elif message["method"] in LIST_CHANGES:
            for connection in [c for c in self._connections if c.is_listening]:
                self._send_event(connection, notification(message["method"]))
        elif message["method"] == "notifications/resources/updated":
            uri = params.get("uri") if isinstance(params, dict) else None
            for session in self._subscribers_of(uri) if isinstance(uri, str) else ():
                if session.stream is not None:
                    self._send_event(session.stream, message)
        elif message["method"] != "notifications/cancelled":  # that is about questions, which were answered at once
            self._take_unaddressed(message)

    def _take_unaddressed(self, message: Message) -> None:
        """A log message, or what is unknown here: it does not say about which call it is, and may repeat its arguments.

        It is passed on when everything that the server works on is of one client. Else it is for the operator alone.
        """
        working = list(self._pending.values())
        clients = {exchange.session or exchange for exchange in working}
        if not working and self._has_called:
            self._works_unasked = True  # behind its answers: a call that runs says no more about whose a message is
        if len(clients) != 1 or self._works_unasked:
            with contextlib.suppress(RecursionError):
                self._report_noise(encode(message))
            return
        session = working[0].session
        if not is_wanted(message, session):
            return
        if len(working) == 1 and working[0].head.takes_stream:
            self._stream(working[0], message)
        elif session is not None and session.stream is not None:
            self._send_event(session.stream, message)

    # The handshake: once with the server, and its result for everybody

    def _shake_hands(self, exchange: Exchange, params: Message) -> None:
        if self._handshake is not None:
            self._welcome(exchange, {"jsonrpc": "2.0", "result": self._handshake})
            return
        self._awaiting_handshake.append(exchange)
        if not self._handshake_id:
            self._handshake_id = next(self._ids)
            # Capabilities of a client are what it may be asked for, and nobody's questions are passed on.
            asked = {"method": "initialize", "params": {**params, "capabilities": {}}}
            if not self._tell_server({"jsonrpc": "2.0", "id": self._handshake_id, **asked}):
                self._end_handshake(error_message(None, INTERNAL_ERROR, NOT_PASSED_ON))

    def _end_handshake(self, message: Message) -> None:
        self._handshake_id = 0
        if isinstance(message.get("result"), dict):
            self._handshake = message["result"]
            self._tell_server(notification("notifications/initialized"))
        waiting, self._awaiting_handshake = self._awaiting_handshake, []
        for exchange in waiting:
            self._welcome(exchange, message)

    # Sessions: the server takes all callers for one client, so what it keeps for its client is kept here for each

    def _welcome(self, exchange: Exchange, message: Message) -> None:
        """The answer to `initialize`, which begins a session."""
        session = Session(os.urandom(16).hex()) if isinstance(message.get("result"), dict) else None
        if session is not None:
            busy = {other.session for other in self._pending.values()}
            idle = (one for one in self._sessions.values() if one.stream is None and one not in busy)
            if len(self._sessions) >= MAX_SESSIONS and (oldest := next(idle, None)):
                self._end_session(oldest)
            self._sessions[session.id] = session
        self._answer(exchange, message, session_id=session.id if session else "")

    def _session(self, head: Head) -> Session | None:
        """The session that a request belongs to. Raises KeyError for one that is unknown, or over."""
        if not head.session_id:
            return None
        session = self._sessions.pop(head.session_id)
        self._sessions[session.id] = session  # the last one used
        return session

    def _end_session(self, session: Session) -> None:
        del self._sessions[session.id]
        for uri in list(session.uris):
            if self._unsubscribe(session, uri):
                self._ask_server("resources/unsubscribe", {"uri": uri})
        self._choose_level()
        self._end_stream(session)

    def _end_stream(self, session: Session) -> None:
        if (stream := session.stream) is not None:
            session.stream, stream.listens_for, stream.is_listening = None, None, False
            self._end_with(stream, LAST_CHUNK)

    def _is_answered_here(self, exchange: Exchange, method: str, params: Message) -> bool:
        """Whether the request is about what is kept for each session, so that the server need not be asked."""
        if method not in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            return False
        session, value = exchange.session, params.get("level" if method == "logging/setLevel" else "uri")
        answer: Message = {"jsonrpc": "2.0", "result": {}}
        if session is None:
            answer = error_message(None, INVALID_REQUEST, f"{method} needs the Mcp-Session-Id that initialize gave")
        elif method == "logging/setLevel":
            answer = self._set_level(session, value)
        elif not isinstance(value, str):
            answer = error_message(None, INVALID_PARAMS, "uri must be a string")
        elif method == "resources/unsubscribe":
            if self._unsubscribe(session, value) or value not in self._subscribers:
                return False
        elif value not in session.uris and sum(map(len, session.uris)) + len(value) > MAX_URIS:
            answer = error_message(None, INVALID_PARAMS, f"the URIs of one session may have {MAX_URIS:,} characters")
        else:
            session.uris.add(value)
            self._subscribers.setdefault(value, set()).add(session)
            if value not in self._subscribed:
                exchange.subscribes_to = value
                return False
        self._answer(exchange, answer)
        return True

    def _set_level(self, session: Session, level: Any) -> Message:
        if "logging" not in ((self._handshake or {}).get("capabilities") or {}):
            return error_message(None, METHOD_NOT_FOUND, "the server has no log messages")
        if level not in LOG_LEVELS:
            return error_message(None, INVALID_PARAMS, f"level must be one of {', '.join(LOG_LEVELS)}")
        session.level = level
        self._choose_level()
        return {"jsonrpc": "2.0", "result": {}}

    def _choose_level(self) -> None:
        """The server says as much as the most curious session wants; `is_wanted` keeps it from the others."""
        is_debugging = any(session.level == "debug" for session in self._sessions.values())
        if is_debugging != self._is_debugging:
            self._is_debugging = is_debugging
            self._ask_server("logging/setLevel", {"level": "debug" if is_debugging else DEFAULT_LEVEL})

    def _unsubscribe(self, session: Session, uri: str) -> bool:
        """Whether it was the last session that had subscribed to the resource."""
        subscribers = self._subscribers.get(uri, set())
        if session not in subscribers:
            return False
        session.uris.discard(uri)
        subscribers.discard(session)
        if not subscribers:
            del self._subscribers[uri]
            self._subscribed.discard(uri)
        return not subscribers

    def _end_subscribing(self, exchange: Exchange, uri: str, *, is_done: bool) -> None:
        """The server has answered whether it will tell of the resource."""
        if not is_done and exchange.session is not None:
            self._unsubscribe(exchange.session, uri)
        elif uri in self._subscribers:
            self._subscribed.add(uri)

    def _subscribers_of(self, uri: str) -> set[Session]:
        """Those who subscribed to the resource, or to one that it is a part of."""
        places = [at for at, letter in enumerate(uri[:MAX_URIS]) if letter == "/"]
        known = [uri, *(uri[:at] for at in places), *(uri[: at + 1] for at in places)]
        return set().union(*(self._subscribers.get(one, ()) for one in known))

    def _ask_server(self, method: str, params: Message) -> None:
        """A request of the bridge itself; nobody waits for the answer."""
        self._tell_server({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})

    # Callers

    def _accept_connections(self) -> None:
        if not self._is_accepting and self._end_steps is None:
            self._is_accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ, lambda _: self._accept())

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._selector.unregister(self._listener)

    def _accept(self) -> None:
        if len(self._connections) >= MAX_CONNECTIONS and not self._close_an_idle_one():
            self._stop_accepting()  # until one is closed
            return
        try:
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is left
            if not self._close_an_idle_one():
                self._stop_accepting()
            return
        connection = Connection(sock)
        self._connections[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._on_ready(connection, mask))

    def _close_an_idle_one(self) -> bool:
        idle = (one for one in self._connections if not (one.exchange or one.listens_for))
        oldest = next(idle, None)
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    def _close(self, connection: Connection) -> None:
        """Its caller left, or has to. What it asked is not cancelled: nobody said so (MCP, until 2025-11-25)."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.listens_for is not None and connection.listens_for.stream is connection:
            connection.listens_for.stream = None
        if connection.exchange is not None:
            # Kept until it is answered: a cancellation comes when the caller has given up already.
            left = [e.own_id for e in self._pending.values() if e.connection not in self._connections]
            for own_id in left[:-MAX_LEFT]:
                del self._pending[own_id]
                self._works_unasked = True
            self._awaiting_handshake = [e for e in self._awaiting_handshake if e is not connection.exchange]
        self._accept_connections()

    def _on_ready(self, connection: Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send(connection)
            if connection in self._connections:
                self._serve(connection)
        if mask & selectors.EVENT_READ and connection in self._connections:
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            chunk = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._close(connection)
        elif not (connection.is_over or connection.is_listening):
            connection.inbox += chunk
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Take the requests that have come, until one has to wait for its answer."""
        if connection.is_served or connection not in self._connections:
            return
        connection.is_served = True
        try:
            # Nor is more taken of one who does not read his answers.
            while not (connection.exchange or connection.is_over or connection.outbox):
                if not self._take_request(connection):
                    break
        except RefusalError as refusal:
            message = error_message(None, INVALID_REQUEST, str(refusal))
            self._end_with(connection, response(refusal.status, encode(message), keep_alive=False))
        connection.is_served = False
        if (connection.exchange or connection.outbox) and len(connection.inbox) > MAX_BODY + MAX_HEAD:
            self._close(connection)  # nobody sends that much ahead of an answer

    def _take_request(self, connection: Connection) -> bool:
        """Whether there was a whole request."""
        if connection not in self._connections:
            return False
        if connection.head is None:
            end = connection.inbox.find(b"\r\n\r\n")
            if end < 0 and len(connection.inbox) <= MAX_HEAD:
                return False
            if not 0 <= end <= MAX_HEAD:
                raise RefusalError(431, f"the headers are larger than {MAX_HEAD:,} bytes")
            head = read_head(bytes(connection.inbox[:end]))
            check_head(head, self._port)
            del connection.inbox[: end + 4]
            connection.head = head
            if head.headers.get("expect", "").lower() == "100-continue" and len(connection.inbox) < head.length:
                self._send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
                return connection in self._connections
        if len(connection.inbox) < connection.head.length:
            return False
        head, connection.head = connection.head, None
        body = bytes(connection.inbox[: head.length])
        del connection.inbox[: head.length]
        self._connections[connection] = self._connections.pop(connection)  # the last one used
        try:
            if head.method == "GET":
                return self._listen(connection, head, self._session(head))
            if head.method == "DELETE":
                self._end_session(self._sessions[head.session_id])
                self._reply(connection, head, 200)
                return True
        except KeyError:
            self._refuse(connection, head, 404, SESSION_OVER)
            return True
        self._take_body(connection, head, body)
        return True

    def _listen(self, connection: Connection, head: Head, session: Session | None) -> bool:
        """Whether the connection serves further requests: as a stream it does not."""
        if sum(one.is_listening for one in self._connections) >= MAX_LISTENERS:
            self._refuse(connection, head, 503, "too many streams are open")
            return True
        if session is not None:
            self._end_stream(session)  # what is said is said on one stream
            session.stream, connection.listens_for = connection, session
        connection.is_listening = True
        self._send(connection, STREAM_HEAD)
        return False

    def _take_body(self, connection: Connection, head: Head, body: bytes) -> None:
        try:
            message = decode(body)
        except ValueError:
            self._reply(connection, head, 400, encode(error_message(None, PARSE_ERROR, "the body is not JSON")))
            return
        try:
            is_first = isinstance(message, dict) and message.get("method") == "initialize"
            session = None if is_first else self._session(head)
        except KeyError:
            self._refuse(connection, head, 404, SESSION_OVER)
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            fault = "the body is not one JSON-RPC 2.0 message"
        elif "method" not in message and ("result" in message or "error" in message):
            self._reply(connection, head, 202)  # the answer to a question that nobody was asked
            return
        elif not isinstance(message.get("method"), str) or not isinstance(message.get("params", {}), dict):
            fault = "method must be a string, and params an object"
        elif "id" not in message:
            self._pass_on_notification(session, message)
            self._reply(connection, head, 202)
            return
        elif not is_id(message["id"]):
            fault = "id must be a string or a whole number"
        else:
            connection.exchange = Exchange(connection, head, message["id"], session)
            self._pass_on_request(connection.exchange, message)
            return
        self._refuse(connection, head, 400, fault)

    def _refuse(self, connection: Connection, head: Head, status: int, fault: str) -> None:
        self._reply(connection, head, status, encode(error_message(None, INVALID_REQUEST, fault)))

    def _pass_on_request(self, exchange: Exchange, message: Message) -> None:
        params = message.get("params", {})
        if message["method"] == "initialize":
            self._shake_hands(exchange, params)
            return
        if self._is_answered_here(exchange, message["method"], params):
            return
        exchange.own_id, exchange.method = next(self._ids), message["method"]
        meta = params.get("_meta")
        if isinstance(meta, dict) and is_id(meta.get("progressToken")):
            exchange.progress_token = meta["progressToken"]
            message = {**message, "params": {**params, "_meta": {**meta, "progressToken": exchange.own_id}}}
        self._pending[exchange.own_id] = exchange
        if not self._tell_server({**message, "id": exchange.own_id}):
            del self._pending[exchange.own_id]
            if exchange.subscribes_to is not None:
                self._end_subscribing(exchange, exchange.subscribes_to, is_done=False)
            self._answer(exchange, error_message(None, INTERNAL_ERROR, NOT_PASSED_ON), status=503)

    def _pass_on_notification(self, session: Session | None, message: Message) -> None:
        if message["method"] in SWALLOWED:
            return
        if message["method"] == "notifications/cancelled":
            params = message.get("params", {})
            asked = (session, type(params.get("requestId")), params.get("requestId"))
            running = [exchange for exchange in self._pending.values() if not exchange.is_cancelled]
            meant = [e for e in running if (e.session, type(e.caller_id), e.caller_id) == asked]
            if len(meant) != 1:
                return  # it is over; or callers without a session use the same id: better none than the wrong one
            message = {**message, "params": {**params, "requestId": meant[0].own_id}}
            meant[0].is_cancelled = True
        self._tell_server(message)

    # Answers

    def _answer(self, exchange: Exchange, message: Message, *, status: int = 200, session_id: str = "") -> None:
        connection = exchange.connection
        connection.exchange = None
        try:
            body = encode({**message, "id": exchange.caller_id})
        except RecursionError:
            text = "the server's answer is nested too deep"
            body = encode(error_message(exchange.caller_id, INTERNAL_ERROR, text))
        if exchange.is_streaming:
            self._send(connection, event(body) + LAST_CHUNK)
            if not exchange.head.keep_alive:
                self._end_with(connection, b"")
        else:
            self._reply(connection, exchange.head, status, body, session_id)
        self._serve(connection)

    def _reply(self, connection: Connection, head: Head, status: int, body: bytes = b"", session: str = "") -> None:
        data = response(status, body, keep_alive=head.keep_alive, session=session)
        if head.keep_alive:
            self._send(connection, data)
        else:
            self._end_with(connection, data)

    def _stream(self, exchange: Exchange, message: Message) -> None:
        """A notification before the answer: the answer becomes a stream of events, if the caller takes one."""
        if exchange.head.takes_stream:
            if not exchange.is_streaming:
                exchange.is_streaming = True
                self._send(exchange.connection, STREAM_HEAD)
            self._send_event(exchange.connection, message)

    def _send_event(self, connection: Connection, message: Message) -> None:
        if len(connection.outbox) <= MAX_UNREAD_EVENTS:
            with contextlib.suppress(RecursionError):
                self._send(connection, event(encode(message)))

    def _end_with(self, connection: Connection, data: bytes) -> None:
        """The last that is sent here. Not closed at once: a caller that still writes would lose it to a reset."""
        connection.is_over = True
        connection.inbox.clear()
        self._send(connection, data)

    def _send(self, connection: Connection, data: bytes = b"") -> None:
        if connection not in self._connections:
            return
        connection.outbox += data
        try:
            if connection.outbox:
                del connection.outbox[: connection.sock.send(connection.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        key = self._selector.get_key(connection.sock)
        if key.events != wanted:
            self._selector.modify(connection.sock, wanted, key.data)
        if connection.is_over and not connection.outbox:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)


# Programs ---------------------------------------------------------------------------------------------------------


def write_stderr(line: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line)


def complain(text: str) -> None:
    write_stderr(f"bridge: {text}\n".encode(errors="replace"))


def launch(parent: int, argv: list[str]) -> int:
    """Become the server; it dies with the bridge (Linux; elsewhere the end of its input tells it)."""
    if sys.platform == "linux":
        import ctypes  # the bridge itself does without

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return 1
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so after exec
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - a command without a shell is what is wanted
    except FileNotFoundError:
        complain(f"command not found: {argv[0]!r}")
        return EXIT_NOT_FOUND
    except OSError as error:
        complain(f"command {argv[0]!r} cannot be started: {error.strerror}")
        return EXIT_NOT_EXECUTABLE


def listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    listener.setblocking(False)
    return listener


def main(argv: list[str]) -> int:
    if argv[:1] == ["--launch"]:
        return launch(int(argv[1]), argv[2:])
    options, command = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    match options:
        case [port] if command:
            max_bytes = MAX_BYTES
        case [port, "--max-bytes", number] if command:
            max_bytes = int(number)
        case _:
            complain("usage: bridge PORT [--max-bytes N] -- COMMAND [ARGUMENT...]")
            return EXIT_USAGE
    try:
        listener = listen(int(port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            write_stderr(f"{PORT_TAKEN} {port}\n".encode())
            return EXIT_PORT_TAKEN
        complain(f"cannot listen on port {port}: {error.strerror}")
        return 1
    return Bridge(listener, command, max_bytes).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
