"""An HTTP server with a script for every response, and clients for it."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from mcp_runtime.client.client import JsonRpcClient
from mcp_runtime.protocol.errors import ClientError
from tests.support import machine
from tests.support.machine import Stopwatch

# Seconds by which a total deadline may be missed, because threads of a busy machine start late.
SLACK = 1.0


@dataclass
class Request:
    """One request, with methods to answer it."""

    connection: int  # the number of its connection
    headers: dict[str, str]
    body: bytes
    sock: socket.socket
    server: Server

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> Any:
        return self.message["id"]

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def http(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        all_headers = {"Content-Type": kind, "Content-Length": str(len(body))}
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        self.send(f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body)

    def json(self, value: Any, status: int = 200, **headers: str) -> None:
        self.http(status, json.dumps(value).encode(), **headers)

    def result(self, result: Any, **headers: str) -> None:
        self.json({"jsonrpc": "2.0", "id": self.id, "result": result}, **headers)

    def error(self, code: Any, message: Any, status: int = 200, **more: Any) -> None:
        error = {"code": code, "message": message, **more}
        self.json({"jsonrpc": "2.0", "id": self.id, "error": error}, status)

    def stream(self, *events: bytes) -> None:
        """Send an event stream. The end of the connection ends it."""
        self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(events))

    def answer_event(self, result: Any) -> bytes:
        return b"data: " + json.dumps({"jsonrpc": "2.0", "id": self.id, "result": result}).encode() + b"\n\n"

    def hang(self) -> None:
        """Send nothing until the client closes the connection."""
        while not self.server.closing.is_set():
            readable, _, _ = select.select([self.sock], [], [], 0.05)
            if readable and not self.sock.recv(65_536):
                raise Hangup

    def dribble(self, drop: bytes) -> None:
        """Send `drop` again and again, until the client closes the connection."""
        while not self.server.closing.wait(0.02):
            self.send(drop)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Hangup

    def hang_up(self) -> None:
        raise Hangup


class Hangup(Exception):
    """Close the connection."""


Behaviour = Callable[[Request], None]


def initialize_result(version: str = "2025-06-18", **more: Any) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "wire"}, **more}


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def accept_notification(request: Request) -> None:
    request.http(202)


WELL_BEHAVED: dict[str, Behaviour] = {
    "initialize": lambda request: request.result(initialize_result()),
    "tools/list": lambda request: request.result({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
    "tools/call": lambda request: request.result(text(json.dumps(request.message["params"]["arguments"]))),
}


class Server:
    """Accepts connections, and passes each request to the behaviour of its method."""

    def __init__(self, behaviours: dict[str, Behaviour], port: int = 0) -> None:
        self.behaviours = {**WELL_BEHAVED, **behaviours}
        self.requests: list[Request] = []
        self.first_line = b"POST /mcp HTTP/1.1\r\n"
        self.closing = threading.Event()
        self._connections = itertools.count(1)
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, name="server-accept")]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def methods(self) -> list[str]:
        return [request.message.get("method", "reply") if request.body else "GET" for request in self.requests]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, next(self._connections)), name="server-sock")
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with sock, sock.makefile("rb") as reader, contextlib.suppress(OSError, Hangup, ValueError):
            while first_line := reader.readline():
                verb, _, rest = first_line.partition(b" ")
                assert rest == self.first_line.partition(b" ")[2]
                lines = iter(reader.readline, b"\r\n")
                pairs = (line.decode("latin-1").rstrip("\r\n").partition(": ") for line in lines)
                headers = {name: value for name, _, value in pairs}
                body = reader.read(int(headers.get("Content-Length", 0)))
                request = Request(number, headers, body, sock, self)
                self.requests.append(request)
                self._behaviour(verb.decode() if verb != b"POST" else request.message.get("method", "reply"))(request)

    def _behaviour(self, method: str) -> Behaviour:
        default = accept_notification if method == "reply" or method.startswith("notifications/") else None
        return self.behaviours.get(method) or default or self.behaviours["*"]

    def close_listener(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def drop_idle_connections(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.closing.set()
        self.close_listener()
        self.drop_idle_connections()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@dataclass
class Peers:
    """Makes servers with given behaviours, and clients of them."""

    opened: list[Any] = field(default_factory=list)

    def __call__(self, behaviours: dict[str, Behaviour] | None = None, **options: Any) -> tuple[Server, JsonRpcClient]:
        server = Server(behaviours or {})
        self.opened.append(server)
        return server, self.client(server.url, **options)

    def client(self, url: str, **options: Any) -> JsonRpcClient:
        client = JsonRpcClient(url, **options)
        self.opened.append(client)
        return client

    def client_with(self, behaviour: Behaviour, **options: Any) -> JsonRpcClient:
        """A client whose tool calls get `behaviour`."""
        return self({"tools/call": behaviour}, **options)[1]


@contextlib.contextmanager
def takes(seconds: float) -> Iterator[None]:
    """The block must take about `seconds`, not much less and not much more."""
    watch = Stopwatch()
    yield
    assert watch.elapsed >= seconds * 0.9
    assert watch.seconds <= machine.patience(seconds + SLACK)


@contextlib.contextmanager
def takes_no_time() -> Iterator[None]:
    watch = Stopwatch()
    yield
    assert watch.seconds < machine.patience(SLACK)


def connections_to(port: int) -> list[Any]:
    connections = psutil.Process().net_connections(kind="tcp")
    return [c for c in connections if c.raddr and c.raddr.port == port and c.status == psutil.CONN_ESTABLISHED]


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith("server-")}


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `work` in a thread. The list gets its result or its ClientError."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except ClientError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port with a full backlog, whose server never accepts."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(address)
            except TimeoutError:
                break
        yield address[1]


SECRET = "hunter2-hunter2"


class TlsServer(Server):
    def __init__(self, behaviours: dict[str, Behaviour], context: ssl.SSLContext) -> None:
        self.context = context
        super().__init__(behaviours)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/mcp"

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            tls_socket = self.context.wrap_socket(sock, server_side=True)
        except OSError:  # the client refused the certificate
            sock.close()
            return
        self._sockets.append(tls_socket)
        super()._serve(tls_socket, number)
