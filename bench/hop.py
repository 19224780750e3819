"""Calls through the gateway of a node that does not own the member, beside calls through the gateway of its owner."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor

from bench.figures import Figure
from bench.hall import BenchHall
from bench.loads import Endpoint, Load, measure, wait_open
from bench.nodes import NAMES, NodesHall, nodes_hall

SECONDS = 4.0
CLIENTS = 32  # of each gateway, for the rate. A member has 16 slots
ECHOES = {"fast": ("lean",), "slow0": ("pause=0.1",), "slow1": ("pause=0.1",), "slow2": ("pause=0.1",)}


def hop(rounds: int) -> list[Figure]:
    with nodes_hall(0, echoes=ECHOES) as hall:
        hall.start(*NAMES)
        hall.spread()
        owners = {name: _owner(hall, name) for name in ECHOES}
        others = {name: hall.nodes[(hall.nodes.index(owners[name]) + 1) % len(NAMES)] for name in ECHOES}
        for name in ECHOES:
            for node in (owners[name], others[name]):
                wait_open(
                    _endpoint(hall, node, name), f"{name} at the gateway of {node.environment['GUILD_HALL_NODE']}"
                )
        single = [_pair(hall, owners["fast"], others["fast"], 1) for _ in range(rounds)]
        many = [_pair(hall, owners["fast"], others["fast"], 16) for _ in range(rounds)]
        rates = [_rates(hall, owners, others) for _ in range(rounds)]
    return [
        Figure("a call at the gateway of its node, one client, median", _median([own.p50 for own, _ in single]), "ms"),
        Figure("  at the gateway of another node", _median([other.p50 for _, other in single]), "ms"),
        Figure("  ratio", _median([other.p50 / own.p50 for own, other in single]), "x", 2),
        Figure("calls a second at the gateway of its node, 16 clients", _median([o.per_second for o, _ in many]), "/s"),
        Figure("  at the gateway of another node", _median([other.per_second for _, other in many]), "/s"),
        Figure("calls of 0.1 s a second: 1 gateway, 1 member, 16 slots", _median([one for one, _ in rates]), "/s"),
        Figure("  3 gateways, 3 members, each call goes to another node", _median([three for _, three in rates]), "/s"),
        Figure("  ratio", _median([three / one for one, three in rates]), "x", 2.5, at_least=True),
    ]


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _owner(hall: NodesHall, member: str) -> BenchHall:
    query = "SELECT n.name FROM roster_guildmember m JOIN roster_node n ON n.id = m.node_id WHERE m.name = %s"
    row = hall.database.execute(query, (member,)).fetchone()
    assert row is not None
    return hall.nodes[NAMES.index(row[0])]


def _endpoint(hall: NodesHall, node: BenchHall, member: str) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{node.gateway_port}/mcp/{member}", "echo", token=hall.token)


def _pair(hall: NodesHall, owner: BenchHall, other: BenchHall, clients: int) -> tuple[Load, Load]:
    """The same load at both gateways, one after the other."""
    owner_load, other_load = (
        measure(_endpoint(hall, node, "fast"), SECONDS, number=clients, lean=True) for node in (owner, other)
    )
    return owner_load, other_load


def _rates(hall: NodesHall, owners: dict[str, BenchHall], others: dict[str, BenchHall]) -> tuple[float, float]:
    """Calls a second of one slow member at its own node, and of three at other nodes at the same time."""
    one = measure(_endpoint(hall, owners["slow0"], "slow0"), SECONDS, number=CLIENTS, lean=True).per_second
    endpoints = [_endpoint(hall, others[name], name) for name in ECHOES if name.startswith("slow")]
    with ThreadPoolExecutor(len(endpoints)) as pool:
        loads = pool.map(lambda endpoint: measure(endpoint, SECONDS, number=CLIENTS, lean=True), endpoints)
        return one, sum(load.per_second for load in loads)
