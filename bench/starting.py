"""How soon the hall serves, and how much memory it takes, beside FastMCP's proxy in front of the same servers."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import requests

from bench import peers
from bench.figures import Figure
from bench.hall import ROOT, BenchHall, bench_hall, family, free_port, is_member, pss, wait_until
from bench.loads import ECHO

STDIO_ECHO = [sys.executable, "-S", str(ECHO), "stdio"]
STDIO_MEMBERS = 20
SECONDS = 90.0  # for a start, however busy the machine
HEADERS = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}


# First call -------------------------------------------------------------------------------------------------------


def first_call(rounds: int) -> list[Figure]:
    """From the start of the program to the answer of a tool, in turn: a new hall, the same hall again, FastMCP's proxy.

    One member, a stdio server, which all of them start.
    """
    new, again, proxy = [], [], []
    for _ in range(rounds):
        with bench_hall(0, prepare=False) as hall:
            hall.add("echo", *STDIO_ECHO[1:], transport="stdio")
            new.append(_seconds_to_call(hall))
            hall.stop()
            again.append(_seconds_to_call(hall))
        if peers.FASTMCP.is_installed:
            proxy.append(_seconds_of_proxy(1)[0])
    figures = [
        Figure("first call by REST, an empty data folder", statistics.median(new), "s"),
        Figure("  an existing one", statistics.median(again), "s"),
    ]
    if proxy:
        figures += [
            Figure("  FastMCP's proxy, first call", statistics.median(proxy), "s"),
            Figure("  ratio empty / FastMCP's", _ratio(new, proxy), "x", 1.3),
            Figure("  ratio existing / FastMCP's", _ratio(again, proxy), "x", 0.8),
        ]
    return figures


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _seconds_to_call(hall: BenchHall) -> float:
    began = time.monotonic()
    hall.start_up()
    try:
        wait_until(lambda: _call_by_rest(hall, "echo", "echo", {"text": "hi"}), SECONDS, "a call by REST is answered")
    except SystemExit:
        print((hall.folder / "log").read_text(errors="replace"))
        raise
    return time.monotonic() - began


def _call_by_rest(hall: BenchHall, member: str, tool: str, arguments: dict[str, Any]) -> bool:
    with contextlib.suppress(OSError, requests.RequestException):
        headers = {"Authorization": f"Bearer {hall.local_token()}", "Prefer": "wait=30"}
        url = f"http://127.0.0.1:{hall.port}/api/members/{member}/tools/{tool}/invoke/"
        answer = requests.post(url, json={"arguments": arguments}, headers=headers, timeout=40)
        return answer.ok and answer.json()["status"] == "succeeded"
    return False


# Memory -----------------------------------------------------------------------------------------------------------


def memory(rounds: int) -> list[Figure]:
    """All of a hall with one member, after a page of the admin, a call by REST and one through the gateway."""
    samples = []
    for _ in range(rounds):
        with bench_hall(1, prepare=False) as hall:
            up = hall.start_up()
            wait_until(lambda: _call_by_rest(hall, "m000", "echo", {"text": "hi"}), SECONDS, "a call by REST")
            _page_of_the_admin(hall)
            _call_by_gateway(hall)
            time.sleep(1)
            samples.append({process.pid: (_name(process), pss(process)) for process in family(up)})
    totals = [sum(size for _, size in each.values()) for each in samples]
    figures = [Figure("memory (PSS) of a hall with one member", statistics.median(totals), "MB", 130)]
    figures += [Figure(f"  {name}", size, "MB") for name, size in samples[-1].values()]
    return figures


def _name(process: psutil.Process) -> str:
    if is_member(process):
        return "member"
    words = " ".join(filter(None, process.cmdline()))
    return next((word for word in ("processes", "guard", "worker", "web") if word in words), words[-40:])


def _page_of_the_admin(hall: BenchHall) -> None:
    session, base = requests.Session(), f"http://127.0.0.1:{hall.port}"
    page = session.get(f"{base}/admin/login/", timeout=20).text
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token
    form = {"username": "admin", "password": "bench-password", "csrfmiddlewaretoken": token[1], "next": "/"}
    session.post(f"{base}/admin/login/", data=form, headers={"Referer": base}, timeout=20)
    answer = session.get(f"{base}/admin/roster/guildmember/", timeout=20)
    assert answer.ok, answer.status_code
    assert "m000" in answer.text


def _call_by_gateway(hall: BenchHall) -> None:
    agent = _Agent(f"http://127.0.0.1:{hall.gateway_port}/mcp", hall.local_token())
    agent.begin()
    assert "hi" in agent.ask("tools/call", name="m000__echo", arguments={"text": "hi"})


class _Agent:
    """As little client of MCP as will do."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        self._session = requests.Session()
        self._session.headers.update(HEADERS)
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def begin(self) -> None:
        answer = self._post({"id": 1, "method": "initialize", "params": INITIALIZE})
        if session := answer.headers.get("Mcp-Session-Id"):
            self._session.headers["Mcp-Session-Id"] = session
        self._post({"method": "notifications/initialized"})

    def ask(self, method: str, **params: Any) -> str:
        """The text of the answer, as JSON or as a stream of events."""
        return self._post({"id": 2, "method": method, "params": params}).text

    def _post(self, message: dict[str, Any]) -> requests.Response:
        answer = self._session.post(self._url, json={"jsonrpc": "2.0", **message}, timeout=SECONDS)
        answer.raise_for_status()
        return answer


# Stdio members ----------------------------------------------------------------------------------------------------


def stdio(rounds: int) -> list[Figure]:
    """Twenty stdio servers, from the start of the program until the tools of all are listed, in turn."""
    ours, theirs, sizes, proxies = [], [], [], []
    for _ in range(rounds):
        with bench_hall(0, prepare=False) as hall:
            for number in range(STDIO_MEMBERS):
                hall.add(f"e{number:02}", *STDIO_ECHO[1:], transport="stdio")
            began = time.monotonic()
            up = hall.start_up()
            wait_until(lambda: _lists_all(hall), SECONDS, "all tools are listed")
            ours.append(time.monotonic() - began)
            sizes.append(_beside_servers(up) / STDIO_MEMBERS)
        if peers.FASTMCP.is_installed:
            seconds, size = _seconds_of_proxy(STDIO_MEMBERS)
            theirs.append(seconds)
            proxies.append(size)
    figures = [
        Figure(f"{STDIO_MEMBERS} stdio members: from nothing until all are listed", statistics.median(ours), "s")
    ]
    if theirs:
        figures += [
            Figure("  FastMCP's proxy in front of the same servers", statistics.median(theirs), "s"),
            Figure("  ratio", _ratio(ours, theirs), "x", 1.3),
        ]
    return [*figures, Figure("  memory (PSS) of a member beside its server", statistics.median(sizes), "MB", 5)]


def _lists_all(hall: BenchHall) -> bool:
    with contextlib.suppress(OSError, requests.RequestException):
        agent = _Agent(f"http://127.0.0.1:{hall.gateway_port}/mcp", hall.local_token())
        agent.begin()
        return agent.ask("tools/list").count("__echo") == STDIO_MEMBERS
    return False


def _beside_servers(up: psutil.Process) -> float:
    return sum(pss(one) for one in family(up) if is_member(one) and str(ECHO) not in one.cmdline()[:3])


def _seconds_of_proxy(servers: int) -> tuple[float, float]:
    """Until it has answered a call, or listed the tools of several; and what it then takes, in MB."""
    with tempfile.TemporaryDirectory(prefix="guildhall-bench-") as folder:
        command = {"command": STDIO_ECHO[0], "args": STDIO_ECHO[1:]}
        config = Path(folder) / "servers.json"
        config.write_text(json.dumps({"mcpServers": {f"e{number:02}": command for number in range(servers)}}))
        port = free_port()
        argv = [peers.FASTMCP.program("python"), str(ROOT / "bench" / "fastmcp_proxy.py"), str(port), str(config)]
        began = time.monotonic()
        process = psutil.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _proxy_serves(port, servers), SECONDS, "FastMCP's proxy serves")
            return time.monotonic() - began, pss(process)
        finally:
            for one in reversed(family(process)):
                with contextlib.suppress(psutil.Error):
                    one.kill()
            process.wait()


def _proxy_serves(port: int, servers: int) -> bool:
    with contextlib.suppress(OSError, requests.RequestException):
        agent = _Agent(f"http://127.0.0.1:{port}/mcp")
        agent.begin()
        if servers == 1:
            return '"hi"' in agent.ask("tools/call", name="echo", arguments={"text": "hi"})
        return agent.ask("tools/list").count('echo"') == servers
    return False
