"""A member with sessions, each with its own count: `counter.py PORT`.

    count   adds one to the count of the session
    ask     asks the client on the stream of the call, and returns the answer
    wait    reports progress until it is cancelled, and notes that in the file `cancelled`
    say     writes a line into the log
    levels  returns the log level of the session

`counter://value` is the count. Subscribers get notifications on the session's stream of a GET request.
"""

import json
import queue
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("count", "ask", "wait", "say", "levels")]
CAPABILITIES = {"tools": {}, "resources": {"subscribe": True}, "prompts": {}, "logging": {}}


class Session:
    def __init__(self):
        self.id = uuid.uuid4().hex
        self.count = 0
        self.level = ""
        self.uris = set()
        self.outbox = queue.Queue()
        self.answers = {}
        self.cancelled = {}


SESSIONS = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def session(self):
        session = SESSIONS.get(self.headers.get("Mcp-Session-Id"))
        if session is None:
            self.answer(404, b"")
        return session

    def do_DELETE(self):
        SESSIONS.pop(self.headers.get("Mcp-Session-Id"), None)
        self.answer(200, b"")

    def do_GET(self):
        if (session := self.session()) is None:
            return
        self.begin_stream()
        while True:
            try:
                message = session.outbox.get(timeout=1)
            except queue.Empty:
                self.wfile.write(b":\n\n")
                self.wfile.flush()
            else:
                self.event(message)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, params = message.get("method", ""), message.get("params", {})
        if method == "initialize":
            session = Session()
            SESSIONS[session.id] = session
            info = {"name": "counter", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": info}
            self.reply(message, result, session.id)
        elif (session := self.session()) is None:
            return
        elif not method:
            session.answers.pop(message["id"]).put(message)
            self.answer(202, b"")
        elif "id" not in message:
            if method == "notifications/cancelled":
                session.cancelled.setdefault(params["requestId"], threading.Event()).set()
            self.answer(202, b"")
        else:
            self.serve(session, message, method, params)

    def serve(self, session, message, method, params):
        entry = {"uri": "counter://value", "name": "value"}
        if method == "tools/list":
            self.reply(message, {"tools": TOOLS})
        elif method == "resources/list":
            self.reply(message, {"resources": [entry]})
        elif method == "prompts/list":
            self.reply(message, {"prompts": [{"name": "hint"}]})
        elif method == "prompts/get":
            content = {"type": "text", "text": f"the count is {session.count}"}
            self.reply(message, {"messages": [{"role": "user", "content": content}]})
        elif method == "resources/read":
            self.reply(message, {"contents": [{"uri": entry["uri"], "text": str(session.count)}]})
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            (session.uris.add if method.endswith("/subscribe") else session.uris.discard)(params["uri"])
            self.reply(message, {})
        elif method == "logging/setLevel":
            session.level = params["level"]
            self.reply(message, {})
        elif method == "tools/call":
            getattr(self, params["name"])(session, message)
        else:
            error = {"code": -32601, "message": f"no method {method}"}
            self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())

    def count(self, session, message):
        session.count += 1
        for uri in session.uris:
            session.outbox.put({"method": "notifications/resources/updated", "params": {"uri": uri}})
        self.text(message, str(session.count))

    def say(self, session, message):
        print(message["params"]["arguments"]["line"], flush=True)
        self.text(message, "said")

    def levels(self, session, message):
        self.text(message, session.level)

    def ask(self, session, message):
        question, answers = uuid.uuid4().hex, queue.Queue()
        session.answers[question] = answers
        self.begin_stream()
        params = {"message": "how many?", "requestedSchema": {"type": "object", "properties": {}}}
        self.event({"id": question, "method": "elicitation/create", "params": params})
        text = json.dumps(answers.get(timeout=30)["result"])
        self.event({"id": message["id"], "result": {"content": [{"type": "text", "text": text}]}})

    def wait(self, session, message):
        cancelled = session.cancelled.setdefault(message["id"], threading.Event())
        self.begin_stream()
        for step in range(300):
            token = message["params"].get("_meta", {}).get("progressToken", 0)
            self.event({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
            if cancelled.wait(0.1):
                Path("cancelled").touch()
                break
        self.event({"id": message["id"], "result": {"content": [{"type": "text", "text": "over"}]}})

    def begin_stream(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, message):
        self.wfile.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n\n")
        self.wfile.flush()

    def text(self, message, text):
        self.reply(message, {"content": [{"type": "text", "text": text}]})

    def reply(self, message, result, session_id=None):
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        self.answer(200, body, session_id)

    def answer(self, status, body, session_id=None):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if session_id:
            self.send_header("Mcp-Session-Id", session_id)
        self.end_headers()
        self.wfile.write(body)


print("the counter is ready", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
