"""A hall with several nodes on this machine: calls a second, the time of a failover, and a drain under load.

It needs a PostgreSQL server, whose address is in DATABASE_URL. It makes a database of its own there, and drops it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import psutil
import psycopg
import requests
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from bench.figures import Figure, percentile
from bench.hall import ROOT, BenchHall, free_port, wait_until
from bench.loads import ECHO

SERVER = ROOT / "tests" / "support" / "servers" / "server.py"
NAMES = ("a", "b", "c")
SLOTS = 16
MEMBERS = 12
CALL_SECONDS = 0.1
ECHO_NODE = {"state": "none", "files": ["echo.py"]}
MEMBERS_NODE = {"state": "none", "files": ["server.py"]}


class NodesHall:
    """Nodes with folders and ports of their own. The first one has the web."""

    def __init__(
        self, database: str, members: int, echoes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    ) -> None:
        self.database = psycopg.connect(database, autocommit=True)
        self.nodes = [BenchHall(0, database_url=database, prepare=False) for _ in NAMES]
        for name, node in zip(NAMES, self.nodes, strict=True):
            node.environment |= {"GUILD_HALL_NODE": name, "GUILD_HALL_CONCURRENCY": str(SLOTS)}
            node.environment["GUILD_HALL_NODE_URL"] = f"http://127.0.0.1:{free_port()}"
            for echo, modes in echoes.items():
                node.add(echo, "echo.py", "${PORT}", *modes, node=ECHO_NODE, max_concurrency=SLOTS)
                (node.folder / "members" / echo / "echo.py").write_bytes(ECHO.read_bytes())
            for number in range(members):
                self._add_member(node, f"m{number:02}")
        self.first.manage("migrate", "-v0")
        self.token = self.first.token()
        key = (self.first.data / "secret-key").read_bytes()
        for node in self.nodes[1:]:
            node.data.mkdir(mode=0o700, exist_ok=True)
            (node.data / "secret-key").write_bytes(key)
        self.guards: dict[str, psutil.Process] = {}

    @property
    def first(self) -> BenchHall:
        return self.nodes[0]

    def _add_member(self, node: BenchHall, name: str) -> None:
        node.add(name, "server.py", "${PORT}", node=MEMBERS_NODE, max_concurrency=SLOTS)
        (node.folder / "members" / name / "server.py").write_bytes(SERVER.read_bytes())

    def start_runtime(self, name: str) -> None:
        self.guards[name] = self.nodes[NAMES.index(name)].start_runtime()

    def start(self, *names: str) -> None:
        """Start the runtimes, and wait until all members run, and could run on each of these nodes."""
        for name in names:
            self.start_runtime(name)
        self.wait_until_connected(len(self.first.names))
        if len(names) > 1:
            self.wait_for_fences(len(names))

    def wait_for_fences(self, count: int) -> None:
        ready = "SELECT count(*) FROM roster_node WHERE lease_id IS NOT NULL AND fence_is_on AND folders <> '{}'"
        wait_until(lambda: self.number(ready) == count, 90, "all nodes have a fence, and know their folders")

    def stop(self, *names: str) -> None:
        for name in names:
            self.guards[name].terminate()
        for name in names:
            self.guards[name].wait(20)

    def number(self, query: str, *values: Any) -> int:
        row = self.database.execute(query, values).fetchone()  # type: ignore[call-overload]
        return int(row[0]) if row and row[0] is not None else 0

    def connected_elsewhere(self, name: str) -> int:
        return self.number(
            "SELECT count(*) FROM roster_guildmember m JOIN roster_node n ON n.id = m.node_id "
            "WHERE m.status = 'connected' AND n.name <> %s",
            name,
        )

    def wait_until_connected(self, members: int) -> None:
        query = "SELECT count(*) FROM roster_guildmember WHERE status = 'connected'"
        wait_until(lambda: self.number(query) == members, 90, "all members are connected")

    def spread(self) -> None:
        """Give each node its share of the members."""
        self.first.manage("rebalance", "--limit", "100")
        query = "SELECT count(*) FROM roster_guildmember WHERE requested_node_id IS NOT NULL"
        wait_until(lambda: self.number(query) == 0, 90, "all moves have ended")
        self.wait_until_connected(len(self.first.names))

    def queue(self, calls: int) -> None:
        """Queue calls over REST, to all members in turn."""
        url, headers = f"http://127.0.0.1:{self.first.port}/api/members", {"Authorization": f"Bearer {self.token}"}
        names = self.first.names

        def post(number: int) -> None:
            arguments = {"arguments": {"seconds": CALL_SECONDS}}
            address = f"{url}/{names[number % len(names)]}/tools/sleep/invoke/"
            requests.post(address, json=arguments, headers=headers, timeout=60).raise_for_status()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(post, range(calls)))

    def end(self) -> None:
        self.database.close()
        for node in self.nodes:
            node.end()


@contextlib.contextmanager
def nodes_hall(members: int = MEMBERS, **options: Any) -> Iterator[NodesHall]:
    server = os.environ.get("DATABASE_URL", "")
    if not server.startswith("postgres"):
        raise SystemExit("bench: `nodes` and `hop` need a PostgreSQL server. Set DATABASE_URL=postgres://...")
    name = f"guildhall_bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    parts = conninfo_to_dict(server)
    user = f"{parts.get('user', 'postgres')}:{parts.get('password', '')}".rstrip(":")
    hall = NodesHall(
        f"postgres://{user}@{parts.get('host', '127.0.0.1')}:{parts.get('port', 5432)}/{name}", members, **options
    )
    try:
        yield hall
    finally:
        hall.end()
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def nodes(kills: int) -> list[Figure]:
    one, three = _calls_per_second(1000, "a"), _calls_per_second(3000, *NAMES)
    failovers, drained, failed = _failovers_and_drain(kills)
    return [
        Figure(f"queued calls of {CALL_SECONDS:g} s a second: 1 node, {SLOTS} slots", one, "/s"),
        Figure(f"  3 nodes, {SLOTS} slots each", three, "/s"),
        Figure("  ratio 3 nodes / 1 node", three / one, "x", 2.5, at_least=True),
        Figure(f"SIGKILL of a node to its members connected elsewhere, {kills} kills", _median(failovers), "s"),
        Figure("  95th percentile", percentile(failovers, 0.95), "s", 12),
        Figure("drain of a node with calls in progress: members moved", drained, ""),
        Figure("  failed calls", failed, "", 0),
    ]


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _calls_per_second(calls: int, *names: str) -> float:
    """The rate between the 10th and the 90th percent of the ends, of calls that were queued before the start."""
    with nodes_hall() as hall:
        hall.start(*names)
        if len(names) > 1:
            hall.spread()
        hall.stop(*names)
        hall.first.start_web()
        hall.queue(calls)
        for name in names:
            hall.start_runtime(name)
        _wait_for_ends(hall, calls)
        if (failed := _failed_calls(hall)) > 0:
            raise SystemExit(f"bench: {failed} of {calls} calls failed")
        rows = hall.database.execute("SELECT extract(epoch FROM finished_at) FROM roster_call ORDER BY finished_at")
        ends = [float(row[0]) for row in rows]
        first, last = len(ends) // 10, len(ends) * 9 // 10
        return (last - first) / (ends[last] - ends[first])


def _failovers_and_drain(kills: int) -> tuple[list[float], int, int]:
    with nodes_hall() as hall:
        hall.start(*NAMES)
        hall.first.start_web()
        failovers = [_failover(hall, NAMES[1 + number % 2]) for number in range(kills)]
        return failovers, *_drain(hall)


def _failover(hall: NodesHall, name: str) -> float:
    """Seconds from the kill of a node with its members to the last member connected on the other nodes."""
    hall.spread()
    guard = hall.guards[name]
    processes = [guard, *guard.children(recursive=True)]
    began = time.monotonic()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: hall.connected_elsewhere(name) == len(hall.first.names), 60, "all members run elsewhere")
    took = time.monotonic() - began
    hall.start(name)
    hall.wait_for_fences(len(NAMES))
    return took


def _drain(hall: NodesHall) -> tuple[int, int]:
    """Drain a node while calls run and new ones come. Returns the members that moved, and the calls that failed."""
    hall.spread()
    name = NAMES[1]
    owned = hall.number(
        "SELECT count(*) FROM roster_guildmember m JOIN roster_node n ON n.id = m.node_id WHERE n.name = %s", name
    )
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(hall.queue, 1000)
        hall.first.manage("drain_node", name)
        wait_until(lambda: hall.connected_elsewhere(name) == len(hall.first.names), 90, "the node is empty")
        queued.result()
    _wait_for_ends(hall, 1000)
    return owned, _failed_calls(hall)


def _wait_for_ends(hall: NodesHall, calls: int) -> None:
    ended = "SELECT count(*) FROM roster_call WHERE finished_at IS NOT NULL"
    # Counting thousands of rows at each look would take a tenth of the machine from the nodes.
    wait_until(lambda: hall.number(ended) >= calls, 300, "all calls have ended", every=0.5)


def _failed_calls(hall: NodesHall) -> int:
    return hall.number("SELECT count(*) FROM roster_call WHERE status <> 'succeeded'")
