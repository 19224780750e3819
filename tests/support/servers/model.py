"""A stand-in for the model of an agent. It serves the part of the Messages API that the agent's CLI uses.

The prompt decides its response:

    say TEXT            says TEXT
    call TOOL {JSON}    calls the tool whose name ends in TOOL, then says its result
    remember            says all prompts of the conversation, which shows whether it was resumed
    fail                responds with an error of the API
    hang                does not respond

`python model.py PORT` starts it by hand.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

numbers = itertools.count(1)
PROMPT = re.compile(r"\s*(say|call|remember|fail|hang)\b\s*(.*)", re.DOTALL)


def prompts_of(body: dict[str, Any]) -> list[str]:
    """The prompts of the user, without the texts that the CLI adds."""
    texts: list[str] = []
    for message in body["messages"]:
        if message["role"] == "user":
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            texts += [block["text"] for block in blocks if block["type"] == "text" and PROMPT.match(block["text"])]
    return texts


def tool_result_of(body: dict[str, Any]) -> str | None:
    """The text of a tool's result, if the conversation ends with one."""
    content = body["messages"][-1]["content"]
    for block in content if isinstance(content, list) else []:
        if block["type"] == "tool_result":
            items = block["content"]
            texts = [items] if isinstance(items, str) else [item.get("text", "") for item in items]
            return ("error: " if block.get("is_error") else "") + "".join(texts)
    return None


def reply(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of the response."""
    tool_result = tool_result_of(body)
    if tool_result is not None:
        return [{"type": "text", "text": f"The tool said: {tool_result}"}]
    prompts = prompts_of(body)
    match = PROMPT.match(prompts[-1] if prompts else "say nothing")
    assert match
    verb, rest = match[1], match[2].strip()
    if verb == "remember":
        return [{"type": "text", "text": " | ".join(prompts)}]
    if verb == "call":
        suffix, _, arguments = rest.partition(" ")
        names = [tool["name"] for tool in body.get("tools", []) if tool["name"].endswith(suffix)]
        if not names:
            return [{"type": "text", "text": f"I was not offered {suffix}."}]
        use = {"type": "tool_use", "id": f"toolu_{len(body['messages'])}", "name": names[0]}
        return [{"type": "text", "text": "Let me see."}, {**use, "input": json.loads(arguments or "{}")}]
    return [{"type": "text", "text": rest or "nothing"}]


def events(body: dict[str, Any], blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 10, "output_tokens": 1}
    message: dict[str, Any] = {"type": "message", "role": "assistant", "model": body["model"], "content": []}
    message["id"] = f"msg_{next(numbers)}"  # the CLI would join two messages with the same id
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Model

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(404, b"{}", "application/json")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.startswith("/v1/messages") or "count_tokens" in self.path:
            self.answer(404, b"{}", "application/json")
            return
        self.server.requests.append(body)
        verb = ((prompts_of(body) or [""])[-1].split() or [""])[0]
        if verb == "hang":
            self.server.closing.wait()
            self.close_connection = True
        elif verb == "fail":
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": "not today"}}
            self.answer(400, json.dumps(error).encode(), "application/json")
        else:
            lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events(body, reply(body))]
            self.answer(200, "".join(lines).encode(), "text/event-stream")

    def answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Model(ThreadingHTTPServer):
    """Serves in threads until it is closed. `requests` has the bodies of all requests."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[dict[str, Any]] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def tool_names(self) -> set[str]:
        """The names of the tools in the last request."""
        return {tool["name"] for tool in self.requests[-1].get("tools", [])}

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a killed agent closes its connection

    def __enter__(self) -> Model:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: Any) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


if __name__ == "__main__":
    Model(int(sys.argv[1])).serve_forever()
