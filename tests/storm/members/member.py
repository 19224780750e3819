"""A member in the storm: `member.py KIND LEDGER PORT` over HTTP, `member.py KIND LEDGER` on stdin and stdout.

Its one tool, `effect`, appends the call's key to the file LEDGER and waits until the disk has it; only then it answers,
or does what its kind does in place of an answer. So the file says which calls took effect, and how often, whoever is
killed when. What a call meets depends on its key alone: a storm of the same seed is the same. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KIND, LEDGER = sys.argv[1], sys.argv[2]
PORT = int(sys.argv[3]) if len(sys.argv) > 3 else None
START_SECONDS = 2.0  # of a slow one, as of servers that import much
FLAKY_ONE_IN = 60  # calls meets an exit
PORT_TAKEN = 2
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(86_400)"
TOOL = {
    "name": "effect",
    "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
FAILS_TO_ANSWER = object()
ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def take_effect(key: str) -> None:
    os.write(ledger, f"{key} {time.monotonic():.3f} {os.getpid()}\n".encode())
    os.fsync(ledger)


def call(message: dict[str, Any]) -> Any:
    """The whole answer to a call; FAILS_TO_ANSWER: the connection is to break."""
    key = message["params"]["arguments"]["key"]
    turn = zlib.crc32(key.encode())
    if KIND == "flaky" and turn % FLAKY_ONE_IN == 0:
        os._exit(3)  # nothing took effect
    take_effect(key)
    if KIND == "flaky" and turn % FLAKY_ONE_IN == 1:
        os._exit(0)
    if KIND == "flaky" and turn % FLAKY_ONE_IN == 2:
        return FAILS_TO_ANSWER
    if KIND == "slow":
        time.sleep(turn % 1500 / 1000)
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": key}]}}
    return lie(answer, turn % 8) if KIND == "lying" else answer


def lie(answer: dict[str, Any], turn: int) -> Any:
    """Half of what it says is true."""
    lies = [
        {**answer, "id": "another"},
        {"jsonrpc": "2.0", "id": answer["id"]},
        {**answer, "result": {**answer["result"], "isError": True}},
        ["no", "message", "of", "MCP"],
    ]
    return lies[turn] if turn < len(lies) else answer


def answer_to(message: dict[str, Any]) -> Any:
    """The answer to any message; None: there is none."""
    method = message.get("method")
    if "id" not in message or method is None:
        return None
    if method == "tools/call":
        return call(message)
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        info = {"name": "storm", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "ping":
        result = {}
    else:
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": f"no method {method}"}}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        answer = answer_to(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if answer is FAILS_TO_ANSWER:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
            return
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(202 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        pass


def serve_pipe() -> None:
    lock = threading.Lock()

    def work(message: dict[str, Any]) -> None:
        answer = answer_to(message)
        if answer is not None:
            with lock:
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()


def leave_a_grandchild() -> None:
    """Deaf to SIGTERM, in a session of its own; that of `bare` has no environment to be known by either."""
    environment = {} if KIND == "bare" else None
    subprocess.Popen([sys.executable, "-S", "-c", DEAF], start_new_session=True, env=environment)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if KIND == "slow":
        time.sleep(START_SECONDS)
    if KIND in ("forking", "bare"):
        leave_a_grandchild()
    if PORT is None:
        serve_pipe()
        return
    try:
        server = Server(("127.0.0.1", PORT), Handler)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(PORT_TAKEN)
    server.serve_forever()


if __name__ == "__main__":
    main()
