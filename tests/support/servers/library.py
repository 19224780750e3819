"""A member with prompts, resources, templates, completion and subscriptions: `library.py PORT`.

The file library.json in its folder may have `resources` (a number of them beside the first ones), `without` (names of
capabilities) and `empty` (no lists at all). Its tool `touch` announces an update of the resource `uri`.
"""

import base64
import json
import os
import queue
import signal
import struct
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OPTIONS = json.loads(Path("library.json").read_text()) if Path("library.json").exists() else {}
EVIL = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'><b class=injected>\"'bold"
CITIES = ["Amsterdam", "Antwerp", "Athens", "Berlin", "Bern", "Bologna", "Lisbon", "London", "Lyon"]
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned = 1'><script>window.pwned = 1</script></svg>"
MARKDOWN = "# Opening hours\n\n- Monday to Friday: **9 to 18**\n- Saturday: 10 to 14\n"
HUGE = 6_000_000  # characters, more than the hall accepts

PROMPTS = [
    {
        "name": "trip",
        "title": "Plan a trip",
        "description": "Plans a trip to a city, with pictures and a timetable.",
        "arguments": [
            {"name": "city", "title": "City", "description": "Where to go.", "required": True},
            {"name": "season", "description": "When to go. It depends on the city."},
        ],
    },
    {"name": "greet", "description": "Greets. It has no arguments."},
    {"name": EVIL, "title": EVIL, "description": EVIL, "arguments": [{"name": EVIL, "description": EVIL}]},
    {"name": "hang", "description": "Never answers."},
    {"name": "huge", "description": "Answers with megabytes."},
    {"name": "fail", "description": "Answers with an error."},
    {"name": "nonsense", "description": "Answers with something else than messages."},
]
RESOURCES = [
    {"uri": "library:///hours.md", "name": "hours", "title": "Opening hours", "mimeType": "text/markdown", "size": 71},
    {"uri": "library:///map.png", "name": "map", "description": "A map of the house.", "mimeType": "image/png"},
    {"uri": "library:///logo.svg", "name": "logo", "mimeType": "image/svg+xml"},
    {"uri": "library:///catalog.zip", "name": "catalog", "mimeType": "application/zip"},
    {"uri": "library:///page.html", "name": "page", "mimeType": "text/html", "description": EVIL},
    {"uri": "library:///data.json", "name": "data", "mimeType": "application/json"},
    {"uri": "library:///hang", "name": "hang"},
    {"uri": "library:///huge", "name": "huge"},
    {"uri": f"library:///{EVIL}", "name": EVIL, "title": EVIL},
]
RESOURCES += [
    {"uri": f"library:///books/{number:04}.txt", "name": f"book {number}", "mimeType": "text/plain"}
    for number in range(OPTIONS.get("resources", 0))
]
TEMPLATES = [
    {
        "uriTemplate": "library:///cities/{city}/{season}",
        "name": "guide",
        "title": "Guide of a city",
        "description": "The guide of a city in a season.",
        "mimeType": "text/plain",
    },
    {"uriTemplate": "library:///search{?words,page}", "name": "search"},
]
TOOLS = [
    {
        "name": "touch",
        "inputSchema": {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
    },
    {"name": "links", "inputSchema": {"type": "object"}},
]
CAPABILITIES = {"tools": {}, "prompts": {}, "resources": {"subscribe": True}, "completions": {}}
SUBSCRIBED = set()
STREAMS = []
LOCK = threading.Lock()


def encoded(data):
    return base64.b64encode(data).decode()


def png(width=240, height=120):
    rows = b"".join(
        b"\0" + bytes(part for x in range(width) for part in (x * 255 // width, y * 255 // height, 90))
        for y in range(height)
    )

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav():
    samples = b"\x80" * 800
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8) + b"data" + struct.pack("<I", len(samples))
    return b"RIFF" + struct.pack("<I", len(head) + len(samples)) + head + samples


def message(role, content):
    return {"role": role, "content": content}


def text(value):
    return {"type": "text", "text": value}


class Failure(Exception):
    """A JSON-RPC error: its code and message."""


def prompt(name, arguments):
    if name == "greet":
        return {"messages": [message("user", text("Say hello."))]}
    if name == "hang":
        threading.Event().wait()
    if name == "huge":
        return {"messages": [message("user", text("x" * HUGE))]}
    if name == "nonsense":
        return {"messages": "none", "other": EVIL}
    if name == EVIL:
        resource = {"uri": EVIL, "mimeType": "text/html", "text": EVIL}
        link = {"type": "resource_link", "uri": "javascript:window.pwned=1", "name": EVIL}
        image = {"type": "image", "data": encoded(EVIL.encode()), "mimeType": "image/png"}
        contents = [text(EVIL), {"type": "resource", "resource": resource}, link, image, EVIL, None]
        return {"description": EVIL, "messages": [message(EVIL, content) for content in contents], EVIL: EVIL}
    if name != "trip":
        raise Failure(-32603, f"the prompt {name} is broken {EVIL}")
    city, season = arguments.get("city", ""), arguments.get("season", "summer")
    hours = {"uri": "library:///hours.md", "mimeType": "text/markdown", "text": MARKDOWN}
    return {
        "description": f"A trip to {city}",
        "messages": [
            message("user", text(f"Plan a trip to **{city}** in {season}.\n\n1. Book a train\n2. Book a room")),
            message("user", {"type": "image", "data": encoded(png()), "mimeType": "image/png"}),
            message("user", {"type": "resource", "resource": hours}),
            message("assistant", text("Here is what I know of it.")),
            message("assistant", {"type": "audio", "data": encoded(wav()), "mimeType": "audio/wav"}),
            message(
                "assistant",
                {
                    "type": "resource_link",
                    "uri": "library:///data.json",
                    "name": "data",
                    "mimeType": "application/json",
                },
            ),
        ],
    }


def read(uri):
    def content(**values):
        return {"contents": [{"uri": uri, **values}]}

    path = uri.removeprefix("library:///")
    if path == "hours.md":
        return content(mimeType="text/markdown", text=MARKDOWN)
    if path == "map.png":
        return content(mimeType="image/png", blob=encoded(png()))
    if path == "logo.svg":
        return content(mimeType="image/svg+xml", blob=encoded(SVG))
    if path == "catalog.zip":
        return content(mimeType="application/zip", blob=encoded(b"PK\x05\x06" + bytes(18)))
    if path == "page.html":
        return content(mimeType="text/html", text=f"<html>{EVIL}</html>")
    if path == "data.json":
        return content(mimeType="application/json", text=json.dumps({"cities": CITIES}))
    if path == "hang":
        threading.Event().wait()
    if path == "huge":
        return content(text="x" * HUGE)
    if path == EVIL:
        return {"contents": [{"uri": EVIL, "mimeType": EVIL, "text": EVIL}, {"uri": EVIL, "blob": EVIL}, EVIL]}
    if path.startswith(("cities/", "books/", "search")):
        return content(mimeType="text/plain", text=f"This is {path}.")
    raise Failure(-32002, f"there is no resource {uri}")


def complete(params):
    argument, context = params["argument"], params.get("context", {}).get("arguments", {})
    if argument["name"] == "season":
        values = [f"{season} in {context.get('city', 'no city')}" for season in ("spring", "summer", "autumn")]
    elif argument["name"] == "words":
        values = [EVIL] + [f"word {number}" for number in range(300)]
    else:
        values = [city for city in CITIES if city.lower().startswith(argument["value"].lower())]
    return {"completion": {"values": values[:100], "total": len(values), "hasMore": len(values) > 100}}


def call(name, arguments):
    if name == "links":
        links = [
            {"type": "resource_link", "uri": "library:///hours.md", "name": "hours", "title": "Opening hours"},
            {"type": "resource_link", "uri": "https://elsewhere.example/page", "name": "elsewhere"},
            {"type": "resource_link", "uri": "javascript:window.pwned=1", "name": EVIL},
        ]
        return {"content": links}
    with LOCK:
        is_subscribed = arguments["uri"] in SUBSCRIBED
        for stream in STREAMS if is_subscribed else ():
            stream.put({"method": "notifications/resources/updated", "params": {"uri": arguments["uri"]}})
    return {"content": [text("told the subscribers" if is_subscribed else "nobody is subscribed")]}


def answer(method, params):
    lists = {"prompts/list": ("prompts", PROMPTS), "resources/list": ("resources", RESOURCES)}
    lists["resources/templates/list"] = ("resourceTemplates", TEMPLATES)
    if method == "initialize":
        capabilities = {key: value for key, value in CAPABILITIES.items() if key not in OPTIONS.get("without", ())}
        info = {"name": "library", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method in lists:
        key, entries = lists[method]
        return {key: [] if OPTIONS.get("empty") else entries}
    if method == "tools/call":
        return call(params["name"], params.get("arguments", {}))
    if method == "prompts/get":
        return prompt(params["name"], params.get("arguments", {}))
    if method == "resources/read":
        return read(params["uri"])
    if method == "completion/complete":
        return complete(params)
    if method in ("resources/subscribe", "resources/unsubscribe"):
        with LOCK:
            (SUBSCRIBED.add if method == "resources/subscribe" else SUBSCRIBED.discard)(params["uri"])
        return {}
    if method == "ping":
        return {}
    raise Failure(-32601, f"no method {method}")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            self.reply(202, b"")
            return
        try:
            outcome = {"result": answer(request["method"], request.get("params", {}))}
        except Failure as failure:
            outcome = {"error": {"code": failure.args[0], "message": failure.args[1]}}
        self.reply(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}).encode(), request["method"])

    def do_GET(self):
        stream = queue.Queue()
        with LOCK:
            STREAMS.append(stream)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                try:
                    notification = {"jsonrpc": "2.0", **stream.get(timeout=1)}
                    self.wfile.write(b"data: " + json.dumps(notification).encode() + b"\n\n")
                except queue.Empty:
                    self.wfile.write(b": nothing\n\n")
                self.wfile.flush()
        except OSError:
            with LOCK:
                STREAMS.remove(stream)

    def do_DELETE(self):
        self.reply(200, b"")

    def reply(self, status, body, method=""):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if method == "initialize":
            self.send_header("Mcp-Session-Id", os.urandom(8).hex())
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
server.serve_forever()
