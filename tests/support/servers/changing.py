"""An MCP server on stdin and stdout whose lists and instructions are in `lists.json` beside it.

It announces a change of the file, and answers each use of a prompt or a resource.
"""

import json
import sys
import threading
import time
from pathlib import Path

FILE = Path(__file__).with_name("lists.json")
LISTS = {"tools/list": "tools", "prompts/list": "prompts", "resources/templates/list": "resourceTemplates"}
LIST_CHANGED = {"listChanged": True}
CAPABILITIES = {"tools": LIST_CHANGED, "prompts": LIST_CHANGED, "resources": LIST_CHANGED, "completions": {}}
OUT = threading.Lock()


def send(**message):
    with OUT:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def announce_changes():
    before = FILE.read_text()
    while True:
        time.sleep(0.02)
        if (content := FILE.read_text()) != before:
            before = content
            for kind in ("tools", "prompts", "resources"):
                send(method=f"notifications/{kind}/list_changed")


def result_of(method, params):
    lists = json.loads(FILE.read_text())
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": "changing", "version": "1"},
            "instructions": lists.get("instructions", ""),
        }
    if method == "notifications/initialized":
        threading.Thread(target=announce_changes, daemon=True).start()
    if method == "resources/list":
        return {"resources": []}
    if method in LISTS:
        return {LISTS[method]: lists.get(LISTS[method], [])}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": {"type": "text", "text": params["name"]}}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": "content"}]}
    if method == "completion/complete":
        return {"completion": {"values": ["value"]}}
    return {}


for line in sys.stdin:
    incoming = json.loads(line)
    response = result_of(incoming.get("method"), incoming.get("params") or {})
    if "id" in incoming and "method" in incoming:
        send(id=incoming["id"], result=response)
