"""A member with a tool for each kind of schema and of result: `gallery.py PORT`. Tools return their arguments."""

import base64
import json
import os
import signal
import struct
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CANCELLED = threading.Event()

EVIL = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'><b class=injected>\"'bold"
STRING, NUMBER, INTEGER, BOOLEAN = ({"type": kind} for kind in ("string", "number", "integer", "boolean"))


def of(properties, *required, **more):
    return {"type": "object", "properties": properties, "required": list(required), **more}


def branch(number):
    """Ten properties, each with ten branches."""
    branches = {"anyOf": [{"$ref": f"#/$defs/{number}"}] * 10}
    names = [f"p{index}" for index in range(10)]
    return of(dict.fromkeys(names, branches), *names)


PERSON = of({"name": {**STRING, "minLength": 2}, "email": {**STRING, "format": "email"}}, "name", title="Person")
CARD = of({"kind": {"const": "card"}, "number": {**STRING, "title": "Card number"}}, "kind", "number", title="By card")
BANK = of({"kind": {"const": "bank"}, "iban": {**STRING, "title": "IBAN"}}, "kind", "iban", title="By bank")
NODE = of({"label": STRING, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "label")
BINARY = of({"left": {"$ref": "#/$defs/n"}, "right": {"$ref": "#/$defs/n"}}, "left", "right")
HOSTILE = {
    "title": EVIL,
    "description": EVIL * 3,
    **of(
        {
            EVIL: {**STRING, "title": EVIL, "description": EVIL, "default": EVIL},
            "__proto__": {**STRING, "title": "proto"},
            "constructor": {"type": "object", "title": EVIL, "properties": {"prototype": STRING}},
            "choice": {"enum": [EVIL, "fine"], "description": EVIL},
            "either": {"oneOf": [of({"a": STRING}, title=EVIL), of({"b": STRING}, title=EVIL)]},
            "regex": {**STRING, "pattern": "^(a+)+$", "examples": [EVIL]},
            "format": {**STRING, "format": "__proto__"},
            "broken": {"type": {"not": "a type"}, "enum": "no list", "items": 5, "title": 7, "description": [EVIL]},
            "away": {"$ref": "https://elsewhere.example/schema.json"},
            "loop": {"$ref": "#/properties/loop"},
        },
        EVIL,
    ),
}

SCHEMAS = {
    "nested": of(
        {
            "title": {**STRING, "title": "Title of the event"},
            "place": of(
                {"city": STRING, "position": of({"lat": NUMBER, "lon": NUMBER}, "lat", "lon", title="Position")},
                "city",
                description="Where it takes place.",
            ),
        },
        "title",
        "place",
    ),
    "lists": of(
        {
            "people": {"type": "array", "items": PERSON, "minItems": 1, "description": "Who comes."},
            "tags": {"type": "array", "items": STRING},
            "days": {"type": "array", "uniqueItems": True, "items": {"enum": ["Mon", "Tue", "Wed"]}},
            "pair": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False},
        },
        "people",
    ),
    "choices": of(
        {
            "color": {"enum": ["red", "green", "blue"], "description": "Of the wall."},
            "level": {"oneOf": [{"const": 1, "title": "low"}, {"const": 2, "title": "high"}]},
            "mixed": {"enum": ["a", 1, None, True]},
            "only": {"const": "this"},
        },
        "color",
    ),
    "union": of(
        {
            "payment": {"oneOf": [{"$ref": "#/$defs/card"}, {"$ref": "#/$defs/bank"}], "description": "How to pay."},
            "note": {"anyOf": [STRING, {"type": "null"}], "default": None, "title": "Note"},
            "amount": {"anyOf": [NUMBER, {**STRING, "format": "uri"}]},
            "either": {"type": ["string", "integer"]},
        },
        "payment",
        **{"$defs": {"card": CARD, "bank": BANK}},
    ),
    "defaults": of(
        {
            "text": {**STRING, "default": "hello"},
            "times": {**INTEGER, "default": 3},
            "loud": {**BOOLEAN, "default": True},
            "options": of({"color": {"enum": ["red", "blue"], "default": "blue"}}, default={"color": "red"}),
            "plain": STRING,
        }
    ),
    "formats": of(
        {
            name: {**STRING, "format": name}
            for name in ("date", "date-time", "time", "email", "uri", "uuid", "ipv4", "password")
        },
        "date",
        "email",
    ),
    "tolerant": of(
        {
            "moment": {**STRING, "format": "date-time"},
            "site": {**STRING, "format": "uri"},
            "day": {**STRING, "format": "date"},
            "count": {"type": ["integer", "number"]},
            "size": {"anyOf": [{**NUMBER, "maximum": 10}, {**NUMBER, "minimum": 100}]},
        },
        "moment",
        "size",
    ),
    "references": of(
        {"owner": {"$ref": "#/$defs/person", "description": "Whose it is."}, "guest": {"$ref": "#/$defs/person"}},
        "owner",
        **{"$defs": {"person": {"allOf": [PERSON, of({"age": {**INTEGER, "minimum": 0}})]}}},
    ),
    "recursive": of({"tree": {"$ref": "#/$defs/node"}}, "tree", **{"$defs": {"node": NODE}}),
    "exploding": of({"root": {"$ref": "#/$defs/n"}}, "root", **{"$defs": {"n": BINARY}}),
    "endless": {**of({"a": STRING}), "allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "branching": of(
        {"a": {"$ref": "#/$defs/0"}},
        "a",
        **{"$defs": {**{str(n): branch(n + 1) for n in range(8)}, "8": STRING}},
    ),
    "wide": of({f"field_{number}": STRING for number in range(2000)}),
    "numbers": of(
        {
            "percent": {**NUMBER, "minimum": 0, "maximum": 100},
            "dice": {**INTEGER, "minimum": 1, "maximum": 6},
            "positive": {**NUMBER, "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        },
        "dice",
    ),
    "map": of({"fixed": STRING}, additionalProperties=INTEGER),
    "anything": of({"value": {}, "settings": {"type": "object"}}, "value"),
    "secret": of({"user": STRING, "key": {**STRING, "writeOnly": True}}, "user", "key"),
    "talkative": of({"topic": {**STRING, "description": "It says a great deal of little. " * 200}}, "topic"),
    "described": of(
        {
            "city": {
                **STRING,
                "description": "`GET /cities`, or [the list](https://example.org/cities).\r\n**Not** a code.",
            },
            "code": {**STRING, "description": "<b>A code</b>, [not a link](javascript:alert(1))"},
            "plan": {**STRING, "description": "# The plan\n\n- `fast`\n- `slow`\n\n" + "It says a great deal. " * 20},
        },
        "city",
    ),
    "hostile": HOSTILE,
    "letter": of(
        {
            "to": {**STRING, "examples": ["Ada Lovelace"], "description": "Who gets it."},
            "pages": {**INTEGER, "minimum": 1, "examples": [3]},
            "sent": {**STRING, "format": "date-time"},
            "scan": {**STRING, "contentEncoding": "base64", "contentMediaType": "image/png"},
            "copies": {"type": "array", "items": STRING, "minItems": 1},
            "stamp": {"enum": ["first", "second"]},
        },
        "to",
        "pages",
        "sent",
        "copies",
        "stamp",
    ),
}
TOOLS = [
    *({"name": name, "description": f"Takes {name}.", "inputSchema": schema} for name, schema in SCHEMAS.items()),
    {"name": "nothing", "description": "Takes no arguments.", "inputSchema": {"type": "object", "properties": {}}},
    {
        "name": "destroy",
        "description": "Destroys what it is told to.",
        "inputSchema": of({"what": STRING}, "what"),
        "annotations": {"destructiveHint": True, "idempotentHint": True},
    },
    {"name": "slow", "description": "Takes ten seconds and tells how it gets on.", "inputSchema": of({})},
    {"name": "fail", "description": "Fails.", "inputSchema": of({})},
    {"name": "media", "description": "Answers with everything there is.", "inputSchema": of({})},
    {
        "name": "broken_promise",
        "description": "Its answer does not fit its output schema.",
        "inputSchema": of({}),
        "outputSchema": of({"count": INTEGER}, "count"),
    },
    {
        "name": "weather",
        "description": "Answers with structured content that fits.",
        "inputSchema": of({}),
        "outputSchema": of({"temperature": NUMBER, "days": {"type": "array"}}, "temperature"),
    },
    {"name": "evil_result", "description": EVIL, "inputSchema": of({})},
    {"name": "colors", "description": "Answers as a terminal shows it.", "inputSchema": of({})},
    {"name": "files", "description": "Answers with files.", "inputSchema": of({})},
    {"name": "long", "description": "Answers with a megabyte of text and of JSON.", "inputSchema": of({})},
    {
        "name": "rows",
        "title": "Rows of a table",
        "description": "Answers with **many** rows:\n\n- one for each number\n- [ ] none is missing",
        "inputSchema": of({}),
        "outputSchema": of({"rows": {"type": "array", "items": of({"n": INTEGER, "square": INTEGER}, "n")}}, "rows"),
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    {
        "name": "broken_promises",
        "description": "Its answer does not fit its output schema in three places.",
        "inputSchema": of({}),
        "outputSchema": of({"count": INTEGER, "name": STRING, "done": BOOLEAN}, "count", "name", "done"),
    },
]
TOOLS += [{"name": EVIL, "description": "Its name is hostile.", "inputSchema": of({})}]

MARKDOWN = """# Report

All **12** checks are through, see the [handbook](https://example.org/handbook).

| check | result |
|-------|--------|
| links | good |

```python
print("done")
```
"""


def text(value):
    return {"type": "text", "text": value}


def png(width=160, height=90):
    """A picture with a color gradient."""
    rows = b"".join(
        b"\0" + bytes(part for x in range(width) for part in (x * 255 // width, y * 255 // height, 160))
        for y in range(height)
    )

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav():
    """A tenth of a second of silence."""
    samples = b"\x80" * 800
    head = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8) + b"data" + struct.pack("<I", len(samples))
    return b"RIFF" + struct.pack("<I", len(head) + len(samples)) + head + samples


def encoded(data):
    return base64.b64encode(data).decode()


def media():
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned = 1'><script>window.pwned = 1</script></svg>"
    return {
        "content": [
            text("Just words."),
            text(MARKDOWN),
            text(json.dumps({"name": "tree", "leaves": [1, 2, {"deep": True}]})),
            {"type": "image", "data": encoded(png()), "mimeType": "image/png"},
            {"type": "image", "data": encoded(svg), "mimeType": "image/svg+xml"},
            {"type": "audio", "data": encoded(wav()), "mimeType": "audio/wav"},
            {
                "type": "resource_link",
                "uri": "https://example.org/data.csv",
                "name": "data.csv",
                "mimeType": "text/csv",
                "size": 1234,
            },
            {
                "type": "resource",
                "resource": {"uri": "file:///notes.md", "mimeType": "text/markdown", "text": "# Notes\n\n- one\n- two"},
            },
        ]
    }


def evil_result():
    link = {"type": "resource_link", "uri": "javascript:window.pwned=1", "name": EVIL}
    page = {"uri": EVIL, "mimeType": "text/html", "text": EVIL}
    return {
        "content": [
            text(EVIL),
            text(f"# {EVIL}\n\n[click](javascript:window.pwned=1) **bold** ![x](https://elsewhere.example/x.png)"),
            link,
            {"type": "resource", "resource": page},
            {"type": "image", "data": encoded(EVIL.encode()), "mimeType": "image/png"},
        ],
        "structuredContent": {EVIL: [EVIL]},
        "_meta": {EVIL: EVIL},
    }


PDF = b"%PDF-1.4\n1 0 obj <<>> endobj\n%%EOF\n"


def files():
    report = {"uri": "file:///reports/../annual report.pdf", "mimeType": "application/pdf", "blob": encoded(PDF)}
    svg = encoded(b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned = 1'></svg>")
    return {
        "content": [
            {"type": "resource", "resource": report},
            {"type": "image", "data": svg, "mimeType": "image/svg+xml"},
            {"type": "resource", "resource": {"uri": "x:y", "mimeType": "text/csv", "text": "a,b\n1,2\n"}},
        ]
    }


def long():
    items = [{"number": number, "name": f"item {number}", "tags": ["a", "b"]} for number in range(12_000)]
    return {"content": [text("word " * 200_000), text(json.dumps({"items": items, "last": 12345678901234567890}))]}


def rows():
    return {
        "content": [],
        "structuredContent": {"rows": [{"n": n, "square": n * n, "more": {"odd": n % 2 == 1}} for n in range(250)]},
    }


RESULTS = {
    "colors": lambda: {
        "content": [text("\x1b[1;32m✓ passed\x1b[0m 12 tests\n\x1b[31m✗ failed\x1b[0m <b>1</b>\x1b]0;title\x07\x1b[2J")]
    },
    "files": files,
    "long": long,
    "rows": rows,
    "broken_promises": lambda: {"content": [], "structuredContent": {"count": "many", "name": 5}},
    "fail": lambda: {"content": [text("The cellar is flooded.")], "isError": True},
    "media": media,
    "evil_result": evil_result,
    "broken_promise": lambda: {"content": [], "structuredContent": {"count": "many"}},
    "weather": lambda: {"content": [], "structuredContent": {"temperature": 21.5, "days": [{"min": 1}, {"min": 2}]}},
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            if message["method"] == "notifications/cancelled":
                CANCELLED.set()
            self.answer(202, b"")
        elif message["method"] == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "gallery", "version": "1"}
            self.result(message, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        elif message["method"] == "tools/list":
            self.result(message, {"tools": TOOLS})
        elif message["method"] == "tools/call":
            self.call(message, message["params"]["name"], message["params"]["arguments"])
        else:
            error = {"code": -32601, "message": f"no method {message['method']}"}
            self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())

    def call(self, message, name, arguments):
        if name == "slow":
            self.slow(message)
        elif name in RESULTS:
            self.result(message, RESULTS[name]())
        else:
            self.result(message, {"content": [text(json.dumps(arguments))]})

    def slow(self, message):
        CANCELLED.clear()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        token = message["params"]["_meta"]["progressToken"]
        for step in range(1, 101):
            params = {"progressToken": token, "progress": step, "total": 100, "message": f"room {step} {EVIL}"}
            self.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            if CANCELLED.wait(0.1):
                return
        self.event({"jsonrpc": "2.0", "id": message["id"], "result": {"content": [text("All rooms are done.")]}})

    def event(self, body):
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()

    def result(self, message, result):
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

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


def main():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(2)
    server.serve_forever()


main()
