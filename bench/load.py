"""Clients that call and call: each its own connection and MCP session, the next call when one is answered.

`load.py URL TOOL [--clients N] [--seconds N] [--token TOKEN] [--style STYLE] [--lean]`. It prints `ready` when each
client has had one right answer, begins when a line comes in, and prints calls, latencies and its own CPU as JSON.

The clients are aiohttp's, as real ones are; with --lean a few lines by hand that cost a third of it. Styles: `mcp`
calls the tool, `list` lists tools until TOOL is among them, `search` finds tools with the queries in the file TOOL,
`hang` makes one call of many minutes a client; `rest` posts arguments to the URL (mcpo), `hub` posts what mcp-hub
wants, `queued` what the hall's REST wants, and waits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VERSION = "2025-06-18"
SILENCE = 15.0  # seconds without an answer: an error

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("tool")
parser.add_argument("--clients", type=int, default=16)
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--token", default="")
parser.add_argument("--style", choices=["mcp", "list", "search", "hang", "rest", "hub", "queued"], default="mcp")
parser.add_argument("--lean", action="store_true")
OPTIONS = parser.parse_args()
SPEAKS_MCP = OPTIONS.style in ("mcp", "list", "search", "hang")
QUERIES: list[str] = []
if OPTIONS.style == "search":
    QUERIES += [each["query"] for each in json.loads(Path(OPTIONS.tool).read_text())["queries"]]


@dataclass
class Reply:
    status: int
    session: str
    body: bytes


class AiohttpConnection:
    async def open(self) -> None:
        import aiohttp  # not for --lean

        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))

    async def post(self, body: bytes, headers: dict[str, str]) -> Reply:
        async with self.http.post(OPTIONS.url, data=body, headers=headers) as response:
            return Reply(response.status, response.headers.get("Mcp-Session-Id", ""), await response.read())

    async def close(self) -> None:
        await self.http.close()


class LeanConnection:
    """HTTP/1.1 by hand: no more than the answers of those measured need."""

    async def open(self) -> None:
        parts = urlsplit(OPTIONS.url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        self.head = f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        self.reader, self.writer = await asyncio.open_connection(parts.hostname, parts.port)

    async def post(self, body: bytes, headers: dict[str, str]) -> Reply:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"{self.head}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, session = int(head.split(" ", 2)[1]), self._value(head, "mcp-session-id")
        if length := self._value(head, "content-length"):
            return Reply(status, session, await self.reader.readexactly(int(length)))
        parts = b""
        if self._value(head, "transfer-encoding") == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n")).partition(b";")[0], 16):
                parts += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
        return Reply(status, session, parts)

    @staticmethod
    def _value(head: str, name: str) -> str:
        at = head.lower().find(f"\r\n{name}:")
        return head[at + len(name) + 3 :].partition("\r\n")[0].strip() if at >= 0 else ""

    async def close(self) -> None:
        self.writer.close()


class Client:
    def __init__(self, number: int) -> None:
        self.number = number
        self.connection = LeanConnection() if OPTIONS.lean else AiohttpConnection()
        self.calls = 0
        self.headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if OPTIONS.style == "queued":
            self.headers["Prefer"] = "wait=30"
        if OPTIONS.token:
            self.headers["Authorization"] = f"Bearer {OPTIONS.token}"

    async def open(self) -> None:
        await self.connection.open()
        if not SPEAKS_MCP:
            return
        params = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
        reply = await self._post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.headers["MCP-Protocol-Version"] = VERSION
        if reply.session:
            self.headers["Mcp-Session-Id"] = reply.session
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def call(self) -> None:
        self.calls += 1
        message, expected_text = self._message()
        reply = await self._post(message)
        if expected_text not in reply.body:
            raise SystemExit(f"wrong answer: {reply.status} {reply.body[:500]!r}, not {expected_text!r}")

    def _message(self) -> tuple[dict[str, Any], bytes]:
        """What is sent, and what must be in the answer: the very text, so that no two answers can be mixed up."""
        text = f"hello {self.number}-{self.calls}."
        arguments: dict[str, Any] = {"seconds": 900} if OPTIONS.style == "hang" else {"text": text}
        if OPTIONS.style == "rest":
            return arguments, text.encode()
        if OPTIONS.style == "queued":
            return {"arguments": arguments}, f'"result":{{"content":[{{"type":"text","text":"{text}"'.encode()
        if OPTIONS.style == "hub":
            return {"server_name": "echo", "tool": OPTIONS.tool, "arguments": arguments}, text.encode()
        if OPTIONS.style == "list":
            return {"jsonrpc": "2.0", "id": self.calls, "method": "tools/list"}, f'"{OPTIONS.tool}"'.encode()
        if OPTIONS.style == "search":
            query = QUERIES[(self.number * 31 + self.calls) % len(QUERIES)]
            params = {"name": "find_tools", "arguments": {"query": query}}
            return {"jsonrpc": "2.0", "id": self.calls, "method": "tools/call", "params": params}, b'"content"'
        params = {"name": OPTIONS.tool, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": self.calls, "method": "tools/call", "params": params}, text.encode()

    async def _post(self, message: dict[str, Any]) -> Reply:
        reply = await self.connection.post(json.dumps(message).encode(), self.headers)
        if reply.status not in (200, 202):
            raise SystemExit(f"status {reply.status}: {reply.body[:500]!r}")
        return reply


async def work(client: Client, until: float, took: list[float]) -> None:
    while (began := time.perf_counter()) < until:
        if OPTIONS.style == "hang":
            await client.call()
        else:
            async with asyncio.timeout(SILENCE):
                await client.call()
        took.append(time.perf_counter() - began)


async def main() -> None:
    clients = [Client(number) for number in range(OPTIONS.clients)]
    for client in clients:
        async with asyncio.timeout(SILENCE):
            await client.open()
            if OPTIONS.style != "hang":
                await client.call()
    print("ready", flush=True)
    sys.stdin.readline()
    took: list[float] = []
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(client, began + OPTIONS.seconds, took) for client in clients))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    took.sort()
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    percentiles = {name: took[int(len(took) * share)] * 1000 for name, share in shares.items()}
    report = {
        "calls": len(took),
        "per_second": len(took) / seconds,
        "client_cpu": used / len(took) * 1000,
        **percentiles,
    }
    print(json.dumps(report), flush=True)
    for client in clients:
        await client.connection.close()


if __name__ == "__main__":
    asyncio.run(main())
