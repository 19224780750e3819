"""The gateway beside what else stands between agents and servers, and what must not make it slower."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import requests

from bench import peers
from bench.figures import Figure, percentile
from bench.hall import ROOT, BenchHall, bench_hall, wait_until
from bench.loads import ECHO, Endpoint, Load, LoadError, begin, clients, echo_server, measure, wait_open

MISBEHAVES = str(ROOT / "tests" / "support" / "servers" / "server.py")
LOAD_SECONDS, PROBE_SECONDS = 4.0, 1.5
QUEUED = 6000
KILLS = 10
TURNS = 4
LISTS_SECONDS = 4.0
PLACES = 16  # of a member: how many calls may be in it
OF_ONE_TOKEN = 12  # of those
OURS, OURS_LEAN = "gateway", "gateway, lean client and member"
STDIO_MEMBER = "gateway, a stdio member"
MEMBER_PATH = "gateway, a member's own path"
QUEUED_CALLS = "REST, queued and waited for"
HUB, HUB_STDIO = "mcp-hub REST, HTTP behind", "mcp-hub REST, stdio behind"
FASTMCP = "FastMCP proxy, shared client"


def gateway(rounds: int) -> list[Figure]:
    """Calls through it, beside direct ones and rivals; then while something else goes wrong or keeps it busy."""
    return [*_side_by_side(rounds), *_while_busy(), *_hung_neighbour(), *_long_list(), *_recovery()]


# Side by side -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """`lean`: measured with clients and a server that cost next to nothing."""

    name: str
    open: Callable[[], AbstractContextManager[Endpoint]]
    serves_mcp: bool = True
    lean: bool = False


@dataclass(frozen=True)
class Round:
    """A load, and direct calls a second just before and just after."""

    load: Load
    direct: float

    @property
    def of_direct(self) -> float:
        return self.load.per_second / self.direct


def _side_by_side(rounds: int) -> list[Figure]:
    with ExitStack() as stack:
        hall = stack.enter_context(_hall())
        hall.add("echo", str(ECHO), "${PORT}")
        hall.add("lean", str(ECHO), "${PORT}", "lean")
        hall.add("pipe", *peers.STDIO_ECHO[1:], transport="stdio")
        direct = {lean: stack.enter_context(echo_server(*(["lean"] if lean else []))) for lean in (False, True)}
        contestants = [
            Contestant(OURS, partial(through, hall, "/mcp", "echo__echo")),
            Contestant(MEMBER_PATH, partial(through, hall, "/mcp/echo", "echo")),
            Contestant(STDIO_MEMBER, partial(through, hall, "/mcp", "pipe__echo")),
            Contestant(OURS_LEAN, partial(through, hall, "/mcp", "lean__echo"), lean=True),
            Contestant(QUEUED_CALLS, partial(through, hall, "/api/members/echo/tools/echo/invoke/", "echo", "queued")),
            *_rivals(direct[False].url),
        ]
        probes: dict[bool, list[Load]] = {False: [], True: []}
        rounds_by_name: dict[str, list[Round]] = {contestant.name: [] for contestant in contestants}
        for number in range(rounds):
            first = number * len(contestants) // rounds
            for contestant in contestants[first:] + contestants[:first]:
                probe = partial(measure, direct[contestant.lean], PROBE_SECONDS, lean=contestant.lean)
                try:
                    with contestant.open() as endpoint:
                        around = [probe()]
                        load = measure(endpoint, LOAD_SECONDS, lean=contestant.lean)
                        around.append(probe())
                except LoadError as error:
                    print(f"({contestant.name} is out of this round: {error})", flush=True)
                    continue
                probes[contestant.lean] += around
                rounds_by_name[contestant.name].append(Round(load, statistics.mean(one.per_second for one in around)))
    _print_table(rounds_by_name, probes)
    return _bounds(rounds_by_name, [contestant for contestant in contestants if rounds_by_name[contestant.name]])


def _rivals(upstream: str) -> list[Contestant]:
    for peer in (*peers.PEERS, peers.NGINX):
        if not peer.is_installed:
            print(f"({peer.name} left out: not installed; `{peers.HOW}` does it)")
    return [
        Contestant(rival.name, partial(rival.open, upstream), serves_mcp=rival.serves_mcp)
        for rival in (peers.HOP, peers.RELAY, *peers.RIVALS)
        if rival.peer.is_installed
    ]


def _hall() -> AbstractContextManager[BenchHall]:
    return bench_hall(0)


@contextlib.contextmanager
def through(hall: BenchHall, path: str, tool: str, style: str = "mcp") -> Iterator[Endpoint]:
    """Runtime and web started, every member connected; both ended."""
    try:
        roots = (hall.start_runtime(), hall.start_web())
        token = hall.token()
        hall.wait_connected(token)
        endpoint = _endpoint(hall, path, tool, token, roots, style)
        wait_open(endpoint, "the hall")
        yield endpoint
    finally:
        hall.stop()


def _endpoint(
    hall: BenchHall, path: str, tool: str, token: str, roots: tuple[psutil.Process, ...] = (), style: str = "mcp"
) -> Endpoint:
    port = hall.port if style == "queued" else hall.gateway_port
    return Endpoint(f"http://127.0.0.1:{port}{path}", tool, style, token, roots)


def _print_table(rounds_by_name: dict[str, list[Round]], probes: dict[bool, list[Load]]) -> None:
    columns = ("calls/s", "of direct", "p50 ms", "p95 ms", "p99 ms", "CPU ms/call", "client's")
    print(f"{'16 clients, medians':<34}" + "".join(f"{column:>12}" for column in columns))
    for lean, loads in probes.items():
        if loads:
            _print_row("direct, lean client and server" if lean else "direct", loads, 1.0)
    for name, rounds in rounds_by_name.items():
        if rounds:
            of_direct = statistics.median(one.of_direct for one in rounds)
            _print_row(name, [one.load for one in rounds], of_direct)


def _print_row(name: str, loads: list[Load], of_direct: float) -> None:
    def median(figure: str) -> float:
        return float(statistics.median(getattr(load, figure) for load in loads))

    times = "".join(f"{median(figure):12.2f}" for figure in ("p50", "p95", "p99", "cpu", "client_cpu"))
    print(f"{name:<34}{median('per_second'):12,.0f}{of_direct:12.3f}{times}", flush=True)


def _bounds(rounds_by_name: dict[str, list[Round]], contestants: list[Contestant]) -> list[Figure]:
    of_direct = {
        contestant.name: statistics.median(one.of_direct for one in rounds_by_name[contestant.name])
        for contestant in contestants
    }
    if OURS not in of_direct:
        raise SystemExit("bench: the gateway did not last a single round")
    ours = of_direct[OURS]
    figures = [
        Figure("gateway, token and records on, calls a second of direct", ours, "x", 0.2, at_least=True),
        Figure("  the stretch", ours, "x", 0.3, at_least=True),
        Figure("  CPU of the whole hall a call", _cpu(rounds_by_name[OURS]), "ms", 0.45),
    ]
    if QUEUED_CALLS in of_direct and HUB in of_direct:
        ratio = of_direct[QUEUED_CALLS] / of_direct[HUB]
        figures += [
            Figure("REST, queued / mcp-hub's REST over HTTP, which keeps nothing", ratio, "x", 0.6, at_least=True)
        ]
    if QUEUED_CALLS in of_direct and FASTMCP in of_direct:
        ratio = _cpu(rounds_by_name[QUEUED_CALLS]) / _cpu(rounds_by_name[FASTMCP])
        figures += [Figure("  CPU of a call / that of FastMCP's proxy", ratio, "x", 0.5)]
    if STDIO_MEMBER in of_direct:
        figures += [Figure("an HTTP member / a stdio member, calls a second", ours / of_direct[STDIO_MEMBER], "x", 1.2)]
    if HUB_STDIO in of_direct:
        ratio, cpu_ratio = ours / of_direct[HUB_STDIO], _cpu(rounds_by_name[OURS]) / _cpu(rounds_by_name[HUB_STDIO])
        figures += [
            Figure("gateway / mcp-hub's REST over stdio, calls a second", ratio, "x", 1.5, at_least=True),
            Figure("  CPU of a call", cpu_ratio, "x", 0.5),
        ]
    if peers.HOP.name in of_direct:
        figures += [Figure("gateway / nginx, calls a second", ours / of_direct[peers.HOP.name], "x")]
    if peers.RELAY.name in of_direct:
        relay_cpu = _cpu(rounds_by_name[peers.RELAY.name])
        figures += [Figure("CPU of a call, gateway / the relay in Python", _cpu(rounds_by_name[OURS]) / relay_cpu, "x")]
        if HUB_STDIO in of_direct:
            figures += [
                Figure("  the relay / mcp-hub's REST over stdio", relay_cpu / _cpu(rounds_by_name[HUB_STDIO]), "x")
            ]
    rivals = {rival.name: rival.serves_mcp for rival in peers.RIVALS if rival.name in of_direct}
    for text, names, bound in (
        ("the fastest rival that serves MCP over HTTP", [name for name, serves in rivals.items() if serves], 2.0),
        ("the fastest rival by any way in", list(rivals), 1.0),
    ):
        if names:
            fastest = max(names, key=of_direct.__getitem__)
            figures += [Figure(f"gateway / {text}", ours / of_direct[fastest], "x", bound, at_least=True)]
            figures += [Figure(f"  which is {fastest}: of direct", of_direct[fastest], "x")]
    return figures


def _cpu(rounds: list[Round]) -> float:
    return statistics.median(one.load.cpu for one in rounds)


# Busy -------------------------------------------------------------------------------------------------------------

QUEUE = f"""
from django.contrib.auth import get_user_model
from django.db import transaction
from mcp_runtime.calls.transitions import Requester
from mcp_runtime.control.calls import queue_call
from mcp_runtime.security import access
requester = Requester(access.OPERATOR)
with transaction.atomic():
    for number in range({QUEUED}):
        queue_call("busy", "echo", {{"text": str(number)}}, requester=requester)
"""


def _while_busy() -> list[Figure]:
    """The same load while the worker has a long queue for another member."""
    with _hall() as hall, echo_server() as direct:
        hall.add("echo", str(ECHO), "${PORT}")
        hall.add("busy", str(ECHO), "${PORT}")
        with through(hall, "/mcp", "echo__echo") as endpoint:
            around = [measure(direct, PROBE_SECONDS)]
            idle = measure(endpoint, LOAD_SECONDS)
            hall.manage("shell", "-v0", "-c", QUEUE)
            before = _queued(hall)
            busy = measure(endpoint, LOAD_SECONDS)
            after = _queued(hall)
        around.append(measure(direct, PROBE_SECONDS))
    if not after:
        raise SystemExit("bench: the queue was empty before the load was over")
    calls = statistics.mean(one.per_second for one in around)
    return [
        Figure("gateway while queued calls keep the worker busy, calls a second", busy.per_second, "1/s"),
        Figure("  of direct", busy.per_second / calls, "x"),
        Figure("  of what it is without them", busy.per_second / idle.per_second, "x"),
        Figure("  95th percentile", busy.p95, "ms"),
        Figure("  without them", idle.p95, "ms"),
        Figure("  queued calls done a second meanwhile", (before - after) / LOAD_SECONDS, "1/s"),
    ]


def _queued(hall: BenchHall) -> int:
    with contextlib.closing(hall.sqlite()) as database:
        return int(database.execute("SELECT count(*) FROM roster_call WHERE status = 'queued'").fetchone()[0])


# A hung neighbour -------------------------------------------------------------------------------------------------


def _hung_neighbour() -> list[Figure]:
    """95th percentiles with calls that hang in all places of another member that a token may take, and without."""
    ratios, hung, free = [], [], []
    with _hall() as hall:
        hall.add("echo", str(ECHO), "${PORT}")
        for turn in range(TURNS):  # once its calls were cancelled, such a member does not hang again
            hall.add(f"hung{turn}", MISBEHAVES, "${PORT}", timeout=600)
        with through(hall, "/mcp", "echo__echo") as endpoint:
            measure(endpoint, PROBE_SECONDS)  # warm
            for turn in range(TURNS):
                first = measure(endpoint, LOAD_SECONDS) if turn % 2 else None
                with _hanging(hall, endpoint, f"hung{turn}"):
                    hung.append(measure(endpoint, LOAD_SECONDS).p95)
                free.append((first or measure(endpoint, LOAD_SECONDS)).p95)
                ratios.append(hung[-1] / free[-1])
    return [
        Figure("95th percentile beside a hung member whose places are taken", statistics.median(hung), "ms"),
        Figure("  without that", statistics.median(free), "ms"),
        Figure("  ratio", statistics.median(ratios), "x", 1.15),
    ]


@contextlib.contextmanager
def _hanging(hall: BenchHall, endpoint: Endpoint, member: str) -> Iterator[None]:
    """Twice as many calls as the member has places for: the others wait in line."""
    calls = hall.folder / "members" / member / f"calls-{member}.log"
    stuck = Endpoint(endpoint.url, f"{member}__sleep", "hang", endpoint.token)
    with clients(stuck, number=2 * PLACES, seconds=1) as process:
        begin(process)
        wait_until(lambda: _lines(calls) == OF_ONE_TOKEN, 10, f"the places of {member} are taken")
        yield


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


# Lists ------------------------------------------------------------------------------------------------------------


def _long_list() -> list[Figure]:
    """1,000 tools of one member, while another hangs and a third is dead."""
    with _hall() as hall:
        hall.add("many", str(ECHO), "${PORT}", "tools=1000")
        hall.add("hung", str(ECHO), "${PORT}")
        hall.add("dead", str(ECHO), "${PORT}", restart="never")
        with through(hall, "/mcp", "many__echo") as endpoint:
            psutil.Process(_pid(hall, "dead")).kill()
            psutil.Process(_pid(hall, "hung")).suspend()
            wait_until(lambda: _status(hall, "dead") == "error", 10, "the dead member is known to be")
            lists = Endpoint(endpoint.url, "many__echo_999", "list", endpoint.token)
            alone = measure(lists, LISTS_SECONDS, number=1, lean=True)
            together = measure(lists, LISTS_SECONDS, number=16, lean=True)
            size = _list_size(endpoint)
    return [
        Figure("tools/list of 1,000 tools, a hung and a dead member beside, median", alone.p50, "ms"),
        Figure("  95th percentile", alone.p95, "ms", 50),
        Figure("  16 clients at once: 95th percentile", together.p95, "ms", 50),
        Figure("  size", size / 1000, "kB"),
    ]


def _list_size(endpoint: Endpoint) -> int:
    client = _Client(endpoint)
    return len(client.ask("tools/list", {}).content)


def _pid(hall: BenchHall, name: str) -> int:
    return int(_column(hall, name, "pid"))


def _status(hall: BenchHall, name: str) -> str:
    return str(_column(hall, name, "status"))


def _column(hall: BenchHall, name: str, column: str) -> Any:
    with contextlib.closing(hall.sqlite()) as database:
        query = f"SELECT {column} FROM roster_guildmember WHERE name = ?"
        return database.execute(query, (name,)).fetchone()[0]


# Recovery ---------------------------------------------------------------------------------------------------------


def _recovery() -> list[Figure]:
    """SIGKILL of a member, and a call as soon as it is dead. One member for each time: restarts back off."""
    took: list[float] = []
    failed = 0
    with _hall() as hall:
        for number in range(KILLS):
            hall.add(f"m{number}", str(ECHO), "${PORT}")
        with through(hall, "/mcp", "m0__echo") as endpoint:
            client = _Client(endpoint)
            for number in range(KILLS):
                tool = f"m{number}__echo"
                if not client.is_answered(tool):
                    raise SystemExit(f"bench: m{number} does not answer before it is killed")
                _kill(_pid(hall, f"m{number}"))
                began = time.monotonic()
                while not client.is_answered(tool):
                    failed += 1
                    if time.monotonic() - began > 30:
                        raise SystemExit(f"bench: m{number} does not recover")
                took.append(time.monotonic() - began)
    return [
        Figure(f"SIGKILL of a member until a call is answered, median of {KILLS}", statistics.median(took), "s", 2),
        Figure("  95th percentile", percentile(took, 0.95), "s"),
        Figure("  calls that failed before", failed, "", 0),
    ]


def _kill(pid: int) -> None:
    """And wait until it is dead: what is sent before that may have been served, so it fails."""
    process = psutil.Process(pid)
    process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        wait_until(lambda: _is_dead(process), 5, "it is dead")


def _is_dead(process: psutil.Process) -> bool:
    # As long as a thread of it is left, so are its connections.
    return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)


class _Client:
    """One that keeps its session, whatever becomes of the members."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url
        self._http = requests.Session()
        self._http.headers.update({
            "Authorization": f"Bearer {endpoint.token}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2025-06-18",
        })  # fmt: skip
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        self._http.headers["Mcp-Session-Id"] = self.ask("initialize", params).headers["Mcp-Session-Id"]

    def ask(self, method: str, params: dict[str, Any]) -> requests.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self._http.post(self._url, json=message, timeout=60)
        answer.raise_for_status()
        return answer

    def is_answered(self, tool: str) -> bool:
        answer = self.ask("tools/call", {"name": tool, "arguments": {"text": "still there?"}})
        return b'"still there?"' in answer.content
