"""A member for tests, controlled by stage.json in its folder: `stage.py PORT`.

    {"tools": [...], "info": {...}, "instructions": "", "stderr": "", "list_error": "",
     "answers": {tool: {"result": {...} | null, "error": {...}, "progress": [{...}], "pause": seconds}}}

A tool without an answer returns its arguments, as text and as structured content.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STAGE = json.loads(Path("stage.json").read_text())
CANCELLED = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer(405, b"")

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, params = message["method"], message.get("params", {})
        if "id" not in message:
            if method == "notifications/cancelled":
                CANCELLED.set()
            self.answer(202, b"")
        elif method == "initialize":
            instructions = {key: STAGE[key] for key in ("instructions",) if key in STAGE}
            info = STAGE.get("info", {"name": "stage", "version": "1"})
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            self.reply(message, {"result": {**result, "serverInfo": info, **instructions}})
        elif method == "tools/list" and "list_error" in STAGE:
            self.reply(message, {"error": {"code": -32603, "message": STAGE["list_error"]}})
        elif method == "tools/list":
            self.reply(message, {"result": {"tools": STAGE.get("tools", [])}})
        elif method == "tools/call":
            self.play(message, params)
        else:
            self.reply(message, {"error": {"code": -32601, "message": f"no method {method}"}})

    def play(self, message, params):
        arguments = params.get("arguments", {})
        default = {"content": [{"type": "text", "text": json.dumps(arguments)}], "structuredContent": arguments}
        response = STAGE.get("answers", {}).get(params["name"], {"result": default})
        print(f"called {params['name']}", file=sys.stderr, flush=True)
        if "progress" not in response:
            CANCELLED.wait(response.get("pause", 0))
            self.reply(message, {key: response[key] for key in ("result", "error") if key in response})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        token = params["_meta"]["progressToken"]
        for step in response["progress"]:
            self.event({"method": "notifications/progress", "params": {"progressToken": token, **step}})
            if CANCELLED.wait(response.get("pause", 0.1)):
                break
        self.event({"id": message["id"], "result": response.get("result", default)})
        CANCELLED.clear()
        self.close_connection = True

    def event(self, message):
        self.wfile.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")
        self.wfile.flush()

    def reply(self, message, response):
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **response}).encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


print(STAGE.get("stderr", "on stage"), file=sys.stderr, flush=True)
if STAGE.get("exit") is not None:
    time.sleep(0.1)
    sys.exit(STAGE["exit"])
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
