"""Instructions that a call costs, counted by callgrind. They do not depend on what else the machine does.

A program (`counted.py`) runs twice under valgrind, with few calls and with more. The difference of the two counts,
divided by the difference of the calls, is the cost of a call. Its server and its clients are other processes.
"""

from __future__ import annotations

import http.client
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
from typing import Any

from bench.figures import Figure
from bench.hall import ROOT, BenchHall, bench_hall, wait_until
from bench.loads import CORPUS, echo_server

VALGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
FEW = 20
PROTOCOL_VERSION = "2025-06-18"
# Millions of instructions. Other Pythons and processors have other counts.
IS_MEASURED_PLATFORM = sys.version_info[:2] == (3, 11) and platform.machine() == "x86_64"
BOUNDS = {"rest": 7.0, "gateway": 2.0, "client": 2.0}
NAMES = {
    "rest": "Django, for a queued call over REST: queued, claimed, ended and read",
    "gateway": "gateway, for a call from request to response",
    "client": "JSON-RPC client, for a call",
}


def instructions(more: int) -> list[Figure]:
    """Millions of instructions for a call, of each part that a call passes."""
    if not is_valgrind_installed():
        return []
    figures = []
    for part, name in NAMES.items():
        bound = BOUNDS[part] if IS_MEASURED_PLATFORM else None
        figures.append(Figure(f"instructions, {name}", millions_for_a_call(part, more), "million", bound))
    return figures


def is_valgrind_installed() -> bool:
    if shutil.which("valgrind"):
        return True
    print("(instructions left out: valgrind is not installed)")
    return False


def millions_for_a_call(part: str, more: int) -> float:
    counts = [_count(part, calls) for calls in (FEW, FEW + more)]
    return (counts[1] - counts[0]) / more / 1e6


def _count(part: str, calls: int) -> int:
    """The instructions of the whole program with so many calls."""
    with bench_hall(0) as hall, echo_server("lean") as server:
        process = subprocess.Popen(
            [*VALGRIND, sys.executable, "-m", "bench.counted", part, str(calls), server.url],
            cwd=ROOT,
            env={**hall.environment, "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if part in ("gateway", "search"):
                assert process.stdout is not None
                _call(hall, process.stdout.readline().strip(), calls, queries() if part == "search" else [])
            _, report = process.communicate(timeout=600)
        finally:
            process.kill()
    count = re.search(r"Collected : (\d+)", report)
    if process.returncode or count is None:
        raise SystemExit(f"bench: the counted program failed:\n{report[-2000:]}")
    return int(count[1])


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def queries() -> list[str]:
    return [each["query"] for each in json.loads(CORPUS.read_text())["queries"]]


def _call(hall: BenchHall, token: str, calls: int, queries: list[str]) -> None:
    """Calls through the gateway, in one session on one connection. With queries, they are searches for tools."""
    path = "/mcp?mode=search" if queries else "/mcp"
    connection = http.client.HTTPConnection("127.0.0.1", hall.gateway_port, timeout=300)
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": PROTOCOL_VERSION,
    }

    def ask(method: str, params: dict[str, Any]) -> http.client.HTTPResponse:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        connection.request("POST", path, json.dumps(message), headers)
        response = connection.getresponse()
        body = response.read()
        if b'"result"' not in body:
            raise SystemExit(f"bench: {method} was answered {response.status} {body[:500]!r}")
        return response

    wait_until(lambda: _is_open(hall.gateway_port), 500, "the gateway listens")
    client = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    headers["Mcp-Session-Id"] = ask("initialize", client).headers["Mcp-Session-Id"]
    for number in range(calls):
        if queries:
            ask("tools/call", {"name": "find_tools", "arguments": {"query": queries[number % len(queries)]}})
        else:
            ask("tools/call", {"name": "echo__echo", "arguments": {"text": "hello"}})
    connection.close()
