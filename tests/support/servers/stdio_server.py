"""An MCP server on stdin and stdout for tests: `stdio_server.py [MODE...]`. It behaves well, except for its modes.

wait-for=FILE       writes progress to stderr until the file exists
noise               writes lines to stdout that are not messages
exit=CODE           ends at once
hang                reads, and never responds
deaf                reads nothing
ignore-sigterm      ignores SIGTERM
refuse-initialize   refuses the handshake
keeps               stores a log level and subscriptions for its client
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

MODES = {mode.partition("=")[0]: mode.partition("=")[2] for mode in sys.argv[1:]}
NAMES = [
    *("echo", "sleep", "wait", "exit", "kill", "noise", "progress", "sample", "ping", "big", "deep", "nest"),
    *("unreadable", "list_changed", "close_stdout", "environment", "received", "nul", "log", "log_later", "updated"),
]
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
RECEIVED = []
CANCELLED = {}
RESPONSES = {}
CHANGED = threading.Condition()
OUT = threading.Lock()


def write(text):
    with OUT:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def send(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}))


def write_error(text):
    print(text, file=sys.stderr, flush=True)


def ask(method, **params):
    """Send a request to the client, and wait for its response."""
    question = f"q{len(RESPONSES)}-{method}"
    send(id=question, method=method, params=params)
    with CHANGED:
        CHANGED.wait_for(lambda: question in RESPONSES, 30)
    response = RESPONSES[question]
    return {key: response[key] for key in response if key in ("result", "error")}


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def log(arguments):
    send(method="notifications/message", params={"level": arguments.get("level", "info"), "data": arguments})


def wait_for(file):
    while not Path(file).exists():
        time.sleep(0.01)


def handle(message):
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        if "refuse-initialize" in MODES:
            send(id=message["id"], error={"code": -32602, "message": "not you"})
            return
        info = {"name": "stdio test", "version": "1"}
        capabilities = {"logging": {}, "resources": {"subscribe": True}} if "keeps" in MODES else {}
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, **capabilities},
            "serverInfo": info,
        }
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif "keeps" in MODES and method in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
        if "refused" in params.get("uri", ""):
            send(id=message["id"], error={"code": -32602, "message": "not this one"})
            return
        result = {}
    elif method == "tools/call":
        result = call(message, params["name"], params.get("arguments", {}))
    else:
        send(id=message["id"], error={"code": -32601, "message": f"no {method}"})
        return
    if result is not None:
        send(id=message["id"], result=result)


def call(message, name, arguments):
    if name == "echo":
        return text(arguments["text"])
    if name == "sleep":
        time.sleep(arguments.get("seconds", 600))
    elif name == "wait":  # until it is cancelled
        Path(f"waiting-{arguments['name']}").touch()
        with CHANGED:
            CHANGED.wait_for(lambda: message["id"] in CANCELLED, 60)
        Path(f"cancelled-{arguments['name']}").touch()
        return None
    elif name == "exit":
        write_error("going down now")
        if arguments.get("answer"):
            send(id=message["id"], result=text("a last word"))
        os._exit(arguments.get("code", 3))
    elif name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "noise":
        for number in range(arguments.get("lines", 1)):
            write(f"this is no message {number}")
    elif name == "progress":
        token = message["params"].get("_meta", {}).get("progressToken")
        for number in range(arguments.get("steps", 3)):
            send(method="notifications/progress", params={"progressToken": token, "progress": number})
    elif name == "sample":
        return text(json.dumps(ask("sampling/createMessage", messages=[])))
    elif name == "ping":
        return text(json.dumps(ask("ping")))
    elif name == "big":
        large_text = "x" * arguments["bytes"]
        if arguments.get("id_last"):  # in the order of the TypeScript SDK
            write(json.dumps({"result": text(large_text), "jsonrpc": "2.0", "id": message["id"]}))
            return None
        return text(large_text)
    elif name in ("deep", "nest"):
        depth = arguments.get("depth", 99_999)
        brackets = "[" * depth + "]" * depth
        write(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{"x":{brackets}}}}}')
        return None
    elif name == "unreadable":
        write(f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{{nonsense}}}}')
        return None
    elif name == "list_changed":
        send(method="notifications/tools/list_changed")
    elif name == "log":
        log(arguments)
    elif name == "log_later":  # after the response, when the file exists
        threading.Thread(target=lambda: wait_for(arguments["file"]) or log(arguments), daemon=True).start()
    elif name == "updated":
        send(method="notifications/resources/updated", params={"uri": arguments["uri"]})
    elif name == "close_stdout":
        os.close(1)
        return None
    elif name == "environment":
        return text(json.dumps(dict(os.environ)))
    elif name == "received":
        return text(json.dumps(RECEIVED))
    elif name == "nul":
        return text("a\0b\ud800c \u00e9")
    return text(name)


def main():
    if "ignore-sigterm" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "exit" in MODES:
        write_error("cannot go on like this")
        sys.exit(int(MODES["exit"]))
    if "wait-for" in MODES:
        step = 0
        while not Path(MODES["wait-for"]).exists():
            step += 1
            write_error(f"Downloading parts ({step})")
            time.sleep(0.05)
    if "noise" in MODES:
        write("Welcome to the server!\n\n[1, 2]\n{broken")
    if "deaf" in MODES:
        time.sleep(600)
    sys.setrecursionlimit(5_000)
    for line in sys.stdin:
        message = json.loads(line)
        if "hang" in MODES:
            continue
        with CHANGED:
            RECEIVED.append(message)
            if "method" not in message:
                RESPONSES[message["id"]] = message
            elif message["method"] == "notifications/cancelled":
                CANCELLED[message["params"]["requestId"]] = True
            CHANGED.notify_all()
        if "method" in message and "id" in message:
            threading.Thread(target=handle, args=(message,), daemon=True).start()
    if "ignore-sigterm" in MODES:
        time.sleep(600)


main()
