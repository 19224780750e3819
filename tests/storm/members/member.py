"""A member in the storm: `member.py KIND LEDGER PORT` over HTTP, `member.py KIND LEDGER` on stdin and stdout.

Its only tool, `effect`, appends the key of the call to the file LEDGER and waits until the disk has it. Only then it
responds, or fails as its kind does. So the file has every call that took effect, even if processes are killed. The
behaviour depends only on the key of the call, so a storm with the same seed is the same. Standard library only.
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
START_SECONDS = 2.0  # for a slow member, like servers that import many modules
FLAKY_ONE_IN = 60  # calls ends the process
PORT_TAKEN = 2
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(86_400)"
TOOL = {
    "name": "effect",
    "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
BREAK_CONNECTION = object()
ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def take_effect(key: str) -> None:
    os.write(ledger, f"{key} {time.monotonic():.3f} {os.getpid()}\n".encode())
    os.fsync(ledger)


def call(message: dict[str, Any]) -> Any:
    """The response to a call, or BREAK_CONNECTION."""
    key = message["params"]["arguments"]["key"]
    number = zlib.crc32(key.encode())
    if KIND == "flaky" and number % FLAKY_ONE_IN == 0:
        os._exit(3)  # nothing took effect
    take_effect(key)
    if KIND == "flaky" and number % FLAKY_ONE_IN == 1:
        os._exit(0)
    if KIND == "flaky" and number % FLAKY_ONE_IN == 2:
        return BREAK_CONNECTION
    if KIND == "slow":
        time.sleep(number % 1500 / 1000)
    response = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": key}]}}
    return falsify(response, number % 8) if KIND == "lying" else response


def falsify(response: dict[str, Any], number: int) -> Any:
    """Return a wrong response for half of the numbers."""
    wrong_responses = [
        {**response, "id": "another"},
        {"jsonrpc": "2.0", "id": response["id"]},
        {**response, "result": {**response["result"], "isError": True}},
        ["no", "message", "of", "MCP"],
    ]
    return wrong_responses[number] if number < len(wrong_responses) else response


def respond(message: dict[str, Any]) -> Any:
    """The response to a message, or None."""
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
        response = respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if response is BREAK_CONNECTION:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
            return
        body = b"" if response is None else json.dumps(response).encode()
        self.send_response(202 if response is None else 200)
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
        response = respond(message)
        if response is not None:
            with lock:
                sys.stdout.write(json.dumps(response) + "\n")
                sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()


def start_grandchild() -> None:
    """Start a process in a new session that ignores SIGTERM. For `bare` it has an empty environment."""
    environment = {} if KIND == "bare" else None
    subprocess.Popen([sys.executable, "-S", "-c", DEAF], start_new_session=True, env=environment)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if KIND == "slow":
        time.sleep(START_SECONDS)
    if KIND in ("forking", "bare"):
        start_grandchild()
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
