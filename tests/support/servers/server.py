"""A member for tests: `server.py PORT [MODE...]`. It behaves well, except for its modes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, MODES = int(sys.argv[1]), {mode.partition("=")[0]: mode.partition("=")[2] for mode in sys.argv[2:]}
CALLS_LOG = Path(f"calls-{os.environ.get('GUILD_HALL_MEMBER', 'x').rpartition('/')[2]}.log")

TOOLS = [
    {
        "name": "echo",
        "description": "Says it again.",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "password": {"type": "string", "format": "password"}},
            "required": ["text"],
        },
    },
    {"name": "sleep", "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}}},
    {"name": "fail", "inputSchema": {"type": "object"}},
    {"name": "refuse", "inputSchema": {"type": "object"}},
    {"name": "exit", "inputSchema": {"type": "object", "properties": {"code": {"type": "integer"}}}},
    {"name": "read", "inputSchema": {"type": "object"}},
    {"name": "environment", "inputSchema": {"type": "object"}},
    {"name": "big", "inputSchema": {"type": "object"}},
    {"name": "large", "inputSchema": {"type": "object"}},
    {"name": "progress", "inputSchema": {"type": "object"}},
    {"name": "change_tools", "inputSchema": {"type": "object"}},
    {"name": "dribble", "inputSchema": {"type": "object"}},
    {"name": "html", "inputSchema": {"type": "object"}},
    {"name": "wrong_id", "inputSchema": {"type": "object"}},
    {"name": "stream", "inputSchema": {"type": "object"}},
    {"name": "nul", "inputSchema": {"type": "object"}},
    {"name": "reset", "inputSchema": {"type": "object"}},
    {"name": "broken/schema.v1", "inputSchema": {"type": "nonsense"}},
]
CANCELLED = threading.Event()
TOOLS_CHANGED = threading.Event()


def text(value):
    return {"content": [{"type": "text", "text": value}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *args):
        pass

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "record" in MODES:
            with open("requests.jsonl", "a") as log:
                log.write(json.dumps({"headers": dict(self.headers), "body": message, "path": self.path}) + "\n")
        if "require" in MODES and (fault := self.header_fault()):
            self.answer(401, f"nobody knows {fault}".encode(), "text/plain")
            return
        method = message["method"]
        if "id" not in message:
            if method == "notifications/cancelled":
                Path("cancelled.json").write_text(json.dumps(message))
                CANCELLED.set()
            self.answer(202, b"")
            return
        if method == "initialize":
            if "hang-initialize" in MODES:
                time.sleep(600)
            if "dribble-initialize" in MODES:
                self.dribble()
            version = message["params"]["protocolVersion"]
            info = {"name": "test", "version": "1"}
            tools = {"listChanged": True} if "announce" in MODES else {}
            self.result(message, {"protocolVersion": version, "capabilities": {"tools": tools}, "serverInfo": info})
        elif method == "tools/list":
            if "fail-list" in MODES:
                self.error(message, -32603, "no list today")
            elif "many-tools" in MODES:
                self.result(message, {"tools": many_tools()})
            elif "tools" in MODES:
                names = MODES["tools"].split(",")
                self.result(message, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
            else:
                self.result(message, {"tools": TOOLS})
        elif method != "tools/call":
            self.error(message, -32601, f"no method {method}")
        else:
            self.call(message, message["params"]["name"], message["params"]["arguments"])

    def do_GET(self):
        if "announce" not in MODES:
            self.answer(405, b"")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        TOOLS_CHANGED.wait()
        self.wfile.write(b'data: {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n\n')
        self.wfile.flush()
        time.sleep(600)

    def progress(self, message):
        """Send progress until the call is cancelled."""
        CANCELLED.clear()  # an earlier call of this process may have been cancelled
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        token = message["params"]["_meta"]["progressToken"]
        step = 0
        while not CANCELLED.wait(0.05):
            step += 1
            params = {"progressToken": token, "progress": step, "total": 100, "message": f"step {step}"}
            notification = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            self.wfile.write(b"data: " + json.dumps(notification).encode() + b"\n\n")
            self.wfile.flush()
        self.close_connection = True

    def header_fault(self):
        """The first header that differs from required.json, exactly as the client sent it."""
        for name, value in json.loads(Path("required.json").read_text()).items():
            if self.headers.get(name) != value:
                return f"{name}: {self.headers.get(name)}"
        return ""

    def call(self, message, name, arguments):
        with CALLS_LOG.open("a") as log:
            log.write(json.dumps([name, arguments]) + "\n")
        if name == "echo":
            self.result(message, text(arguments["text"]))
        elif name == "sleep":
            CANCELLED.wait(arguments.get("seconds", 600))
            self.result(message, text("slept"))
        elif name == "fail":
            self.result(message, {**text("it went wrong"), "isError": True})
        elif name == "refuse":
            self.error(message, -32602, "not with me", {"hint": "ask somebody else"})
        elif name == "exit":
            print("going down now", file=sys.stderr, flush=True)
            os._exit(arguments.get("code", 3))
        elif name == "read":
            self.result(message, text(Path("./test-file.txt").read_text()))
        elif name == "environment":
            self.result(message, text(json.dumps(dict(os.environ))))
        elif name == "big":
            self.result(message, text("x" * 50_000_000))
        elif name == "large":
            self.result(message, {**text("large"), "structuredContent": {"numbers": [[1, 2, 3]] * 300_000}})
        elif name == "progress":
            self.progress(message)
        elif name == "change_tools":
            TOOLS.append({"name": "brand_new", "inputSchema": {"type": "object"}})
            TOOLS_CHANGED.set()
            self.result(message, text("changed"))
        elif name == "dribble":
            self.dribble()
        elif name == "html":
            self.answer(200, b"<h1>Hello</h1>", "text/html")
        elif name == "wrong_id":
            body = {"jsonrpc": "2.0", "id": "another", "result": text("not for you")}
            self.answer(200, json.dumps(body).encode())
        elif name == "stream":
            notification = {
                "jsonrpc": "2.0",
                "method": "notifications/message",
                "params": {"level": "info", "data": "soon"},
            }
            body = {"jsonrpc": "2.0", "id": message["id"], "result": text("streamed \u00e9")}
            events = "".join(f"data: {json.dumps(part, ensure_ascii=False)}\r\n\r\n" for part in (notification, body))
            self.answer(200, b": hello\r\n\r\n" + events.encode(), "text/event-stream")
        elif name == "nul":
            self.result(message, text("a\0b\ud800c"))
        elif name == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            self.close_connection = True
        else:
            self.result(message, text(name))

    def dribble(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        try:
            for number in range(10_000):
                self.wfile.write(b"X-%d: a\r\n" % number)
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            self.close_connection = True

    def result(self, message, result):
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def error(self, message, code, reason, data=None):
        error = {"code": code, "message": reason, **({"data": data} if data else {})}
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def many_tools():
    """As many as the hall accepts, each with a schema that takes 10 ms to check."""
    return [
        {"name": f"tool-{number}", "inputSchema": {"type": "object", "title": str(number), "allOf": [{"a": 1}] * 100}}
        for number in range(2000)
    ]


def use_cpu(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 5 if "single" in MODES else 128

    def handle_error(self, request, client_address):
        pass

    def process_request(self, request, client_address):
        if "single" in MODES:
            # One connection after the other, as the standard library's HTTPServer does, which many servers use.
            self.finish_request(request, client_address)
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)


def main():
    print("hello from the member", file=sys.stderr, flush=True)
    if "exit" in MODES:
        print("cannot go on like this", file=sys.stderr, flush=True)
        sys.exit(int(MODES["exit"]))
    if "burn" in MODES:
        use_cpu(float(MODES["burn"]))
    if "ignore-term" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "fork" in MODES:
        # A child in the group, and one with a new session and another parent. Both ignore SIGTERM.
        ignore_sigterm = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", ignore_sigterm])
        subprocess.Popen(["sh", "-c", f'setsid {sys.executable} -c "{ignore_sigterm}" & exit 0'])
    if "escape" in MODES:
        # A daemon with a new session, another parent, and an empty environment.
        ignore_sigterm = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.run(
            ["env", "-i", "setsid", "--fork", sys.executable, "-c", ignore_sigterm], stdin=subprocess.DEVNULL
        )
    if "flood" in MODES:
        threading.Thread(target=flood, daemon=True).start()
    try:
        server = Server(("0.0.0.0" if "everywhere" in MODES else "127.0.0.1", PORT), Handler)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(2)
    server.serve_forever()


def flood():
    while True:
        sys.stderr.write("\x1b[31mnoise\x00" * 5000 + "\n")


main()
