"""`make bench`: the hall's numbers, each beside its yardstick or its bound. README.md explains them."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil
import requests

from bench import peers, plots, starting
from bench.contracts import contracts
from bench.figures import Figure, percentile
from bench.gateway import gateway
from bench.hall import EXAMPLE, ROOT, BenchHall, bench_hall, cpu_seconds, family, free_port, is_member, wait_until
from bench.hop import hop
from bench.instructions import instructions
from bench.nodes import nodes
from bench.pages import pages
from bench.placement import placement
from bench.search import search

# Eager start ------------------------------------------------------------------------------------------------------


def start(rounds: int) -> list[Figure]:
    """20 example members: the hall beside a bare script, in turn."""
    halls, bares = [], []
    for _ in range(rounds):
        with bench_hall(20) as hall:
            bares.append(_bare_start(hall))
            halls.append(_hall_start(hall))
    ratios = [ours / bare for ours, bare in zip(halls, bares, strict=True)]
    return [
        Figure("eager start of 20 members, bare script", statistics.median(bares), "s"),
        Figure("eager start of 20 members, hall, first spawn to last connected", statistics.median(halls), "s"),
        Figure("  ratio hall / bare script", statistics.median(ratios), "x", 1.3),
    ]


def _bare_start(hall: BenchHall) -> float:
    argv = [sys.executable, str(ROOT / "bench" / "bare.py"), str(hall.folder / "members"), str(hall.ports[0])]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True, env=hall.environment).stdout)


def _hall_start(hall: BenchHall) -> float:
    hall.start_runtime()
    database = hall.sqlite()
    count = "SELECT count(*) FROM roster_statuschange WHERE new = 'connected'"
    wait_until(lambda: database.execute(count).fetchone()[0] == len(hall.names), 60, "20 members are connected")
    span = (
        "SELECT (julianday(max(created_at)) - julianday(min(created_at))) * 86400.0 FROM roster_statuschange "
        "WHERE new IN ('starting', 'connected')"
    )
    return float(database.execute(span).fetchone()[0])


# Crash ------------------------------------------------------------------------------------------------------------


def crash(kills: int) -> list[Figure]:
    """SIGKILL of a member to `error` in the database, seen from another process."""
    took = []
    with bench_hall(min(20, kills), restart="never") as hall:
        hall.start_runtime()
        hall.start_web()
        token = hall.token()
        database = hall.sqlite()
        for number in range(kills):
            name = hall.names[number % len(hall.names)]
            if number % len(hall.names) == 0:
                _everybody_up(hall, token)
            query = f"SELECT pid FROM roster_guildmember WHERE name = '{name}'"
            pid = database.execute(query).fetchone()[0]
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            status = f"SELECT status FROM roster_guildmember WHERE name = '{name}'"
            while database.execute(status).fetchone()[0] != "error":
                time.sleep(0.0005)
            took.append((time.monotonic() - began) * 1000)
            time.sleep(0.05)
    return [
        Figure(f"SIGKILL to `error` in the database, median of {kills}", statistics.median(took), "ms", 20),
        Figure("  95th percentile", percentile(took, 0.95), "ms", 100),
    ]


def _everybody_up(hall: BenchHall, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    wait_until(lambda: len(hall.roster(token)) == len(hall.names), 20, "the roster is filled")
    for member in hall.roster(token):
        if member["status"] == "error":
            address = f"http://127.0.0.1:{hall.port}/api/members/{member['name']}/start/"
            requests.post(address, headers=headers, timeout=5)
    hall.wait_connected(token)


# Invoke -----------------------------------------------------------------------------------------------------------


def invoke(rounds: int) -> list[Figure]:
    """REST invokes that wait, on the defaults and, where given, on PostgreSQL and Redis."""
    figures = _invoke("SQLite", 25, 8)
    database_url, redis_url = os.environ.get("BENCH_DATABASE_URL", ""), os.environ.get("BENCH_REDIS_URL", "")
    if database_url and redis_url:
        figures += _invoke("PostgreSQL + Redis", 15, 12, database_url, redis_url)
    else:
        print("(PostgreSQL + Redis left out: set BENCH_DATABASE_URL, a database to be emptied, and BENCH_REDIS_URL)")
    return figures


def _invoke(where: str, latency: float, cpu: float, database_url: str = "", redis_url: str = "") -> list[Figure]:
    with bench_hall(1, database_url=database_url, redis_url=redis_url) as hall:
        if database_url:
            hall.manage("flush", "--noinput")
        runtime, web = hall.start_runtime(), hall.start_web()
        token = hall.token()
        hall.wait_connected(token)
        _load(hall, token, clients=4, calls=200)  # warm
        alone, _ = _load(hall, token, clients=1, calls=300)
        processes = [*family(runtime), *family(web)]
        ours = [process for process in processes if not is_member(process)]
        members = [process for process in processes if is_member(process)]
        before, member_before = cpu_seconds(ours), cpu_seconds(members)
        together, seconds = _load(hall, token, clients=16, calls=2000)
        used, member_used = cpu_seconds(ours) - before, cpu_seconds(members) - member_before
    return [
        Figure(f"{where}: invoke and wait, 1 client, median", statistics.median(alone), "ms", latency),
        Figure("  95th percentile", percentile(alone, 0.95), "ms"),
        Figure(f"{where}: 16 clients, finished a second", len(together) / seconds, "1/s", 150, at_least=True),
        Figure("  95th percentile", percentile(together, 0.95), "ms"),
        Figure("  CPU of web + runtime a call", used / len(together) * 1000, "ms", cpu),
        Figure("  CPU of the member itself a call", member_used / len(together) * 1000, "ms"),
    ]


def _load(hall: BenchHall, token: str, *, clients: int, calls: int) -> tuple[list[float], float]:
    """Milliseconds of each call, and the seconds it took in all. Every answer is checked."""
    took: list[float] = []
    faults: list[str] = []
    name = hall.names[0]

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", hall.port)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Prefer": "wait=30"}
        for call in range(calls // clients):
            text = f"{number}-{call}"
            began = time.monotonic()
            connection.request(
                "POST", f"/api/members/{name}/tools/echo/invoke/", json.dumps({"arguments": {"text": text}}), headers
            )
            answer = connection.getresponse()
            body = json.loads(answer.read())
            took.append((time.monotonic() - began) * 1000)
            if answer.status != 200 or text not in json.dumps(body.get("result")):
                faults.append(f"{answer.status} {body}")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise SystemExit(f"bench: {len(faults)} calls went wrong, first: {faults[0]}")
    return took, time.monotonic() - began


# Roster -----------------------------------------------------------------------------------------------------------

FILL = """
from roster.models import *
members = GuildMember.objects.bulk_create(
    GuildMember(name=f"r{n:03}", directory=f"r{n:03}", version="1") for n in range(200)
)
text = {"type": "string", "description": "What to say"}
schema = {"type": "object", "properties": {"text": text}, "required": ["text"]}
definition = {"description": "d" * 80, "inputSchema": schema}
Tool.objects.bulk_create(
    Tool(member=m, name=f"tool{n}", position=n, definition={"name": f"tool{n}", **definition})
    for m in members for n in range(20)
)
"""


def roster(request_count: int) -> list[Figure]:
    """GET /api/roster/ of 200 members of 20 tools."""
    took = []
    with bench_hall(0) as hall:
        hall.manage("shell", "-v0", "-c", FILL)
        hall.start_web()
        token = hall.token()
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {token}"
        for number in range(request_count + 5):
            began = time.monotonic()
            answer = session.get(f"http://127.0.0.1:{hall.port}/api/roster/", timeout=20)
            if number >= 5:
                took.append((time.monotonic() - began) * 1000)
        if len(answer.json()["members"]) != 200:
            raise SystemExit("bench: the roster is not whole")
    return [
        Figure("GET /api/roster/, 200 members of 20 tools, median", statistics.median(took), "ms"),
        Figure("  95th percentile", percentile(took, 0.95), "ms", 150),
        Figure("  size", len(answer.content) / 1000, "kB"),
    ]


# Idle -------------------------------------------------------------------------------------------------------------


def idle(seconds: int) -> list[Figure]:
    """Guard and worker with 20 idle members."""
    with bench_hall(20) as hall:
        runtime = hall.start_runtime()
        web = hall.start_web()
        hall.wait_connected(hall.token())
        web.terminate()
        time.sleep(3)
        ours = [process for process in family(runtime) if not is_member(process)]
        before = cpu_seconds(ours)
        time.sleep(seconds)
        used = (cpu_seconds(ours) - before) / seconds * 100
        memory = sum(process.memory_info().rss for process in ours) / 1e6
    return [
        Figure(f"guard + worker, 20 idle members, CPU over {seconds} s", used, "% core", 2),
        Figure("  resident memory", memory, "MB", 110 + 0.5 * 20),
    ]


# Client -----------------------------------------------------------------------------------------------------------


def client(calls: int) -> list[Figure]:
    """One client after the other on the same server, in turn: ours, and the official SDK's."""
    port = free_port()
    argv = [sys.executable, str(EXAMPLE / "server.py"), "--port", str(port)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _listens(port), 10, "the example listens")
        rounds = [(_client_cost(port, "ours", calls), _client_cost(port, "sdk", calls)) for _ in range(3)]
    finally:
        server.kill()
        server.wait()
    return [
        Figure("CPU of a client a call: ours", statistics.median(ours for ours, _ in rounds), "ms"),
        Figure("  the official Python SDK's", statistics.median(sdk for _, sdk in rounds), "ms"),
        Figure("  ratio ours / the SDK's", statistics.median(ours / sdk for ours, sdk in rounds), "x", 0.5),
    ]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _client_cost(port: int, which: str, calls: int) -> float:
    argv = [sys.executable, str(ROOT / "bench" / "clients.py"), f"http://127.0.0.1:{port}/mcp", which, str(calls)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return float(subprocess.run(argv, check=True, capture_output=True, text=True, env=environment).stdout)


SCENARIOS: dict[str, tuple[Callable[[int], list[Figure]], int]] = {
    "start": (start, 5),
    "first_call": (starting.first_call, 5),
    "memory": (starting.memory, 3),
    "stdio": (starting.stdio, 3),
    "crash": (crash, 60),
    "invoke": (invoke, 1),
    "roster": (roster, 100),
    "statistics": (plots.statistics, 200),
    "idle": (idle, 20),
    "client": (client, 500),
    "instructions": (instructions, 150),
    "placement": (placement, 5),
    "contracts": (contracts, 20),
    "search": (search, 5),
    "pages": (pages, 5),
    "gateway": (gateway, 5),
}
# Needs a PostgreSQL server, so it runs only when it is named.
ON_POSTGRESQL: dict[str, tuple[Callable[[int], list[Figure]], int]] = {"nodes": (nodes, 20), "hop": (hop, 5)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    choices = [*SCENARIOS, *ON_POSTGRESQL, "peers", []]
    help_text = "all of them when none is named; `peers` installs those that `gateway` measures beside ours"
    parser.add_argument("scenario", nargs="*", choices=choices, help=help_text)
    names = parser.parse_args().scenario or list(SCENARIOS)
    if "peers" in names:
        peers.install()
        names.remove("peers")
    load, cores = psutil.getloadavg()[0], psutil.cpu_count()
    print(f"{cores} cores, load {load:.2f} before the run, Python {sys.version.split()[0]}")
    for name in names:
        run, size = (SCENARIOS | ON_POSTGRESQL)[name]
        for figure in run(size):
            print(figure, flush=True)


if __name__ == "__main__":
    main()
