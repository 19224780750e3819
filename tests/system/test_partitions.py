"""Nodes on hosts of their own, in a network whose cables are cut or lose what is sent in one direction."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import connection

from mcp_runtime.gateway.forwarding import GRACE_SECONDS
from mcp_runtime.nodes.watch import FENCE_SECONDS, GONE_SECONDS
from roster.models import Call, GuildMember, StatusChange
from tests.conftest import eventually, skip_at_home
from tests.support.agents import GatewayClient, make_token
from tests.support.hall import PATIENCE, Hall, call, queue, wait_for_end_of, wait_for_status
from tests.support.machine import Stopwatch, share_again, take_alone
from tests.support.networks import HostedMachine, Network, NoNamespacesError
from tests.support.nodes import (
    MOVABLE,
    UP,
    Copies,
    on_postgresql,
    owner_of,
    wait_for_fences,
    wait_for_folders,
)

pytestmark = [pytest.mark.services, on_postgresql]
NODES = ("first", "second", "third")
MOVING = ("one", "two")
TIMEOUTS = {"one": 4, "two": 30}  # seconds, of each call
SHORT_OUTAGE = 2.5  # A renewal is sent each second, and must come through 5 s after the last one
RETRANSMISSION = 8.0  # in which TCP sends again what it could not send for 10 s


@pytest.fixture
def network(hall: Hall) -> Iterator[Network]:
    try:
        network = Network(len(NODES))
    except NoNamespacesError as error:
        skip_at_home(str(error))
    yield network
    network.remove()


@pytest.fixture
def nodes(network: Network, tmp_path: Path) -> Iterator[list[HostedMachine]]:
    """Three nodes with the same members. The first one owns them all, because it was alone when it started."""
    pairs = zip(NODES, network.hosts, strict=True)
    machines = [HostedMachine(tmp_path / name, name, network, host) for name, host in pairs]
    with contextlib.ExitStack() as stack:
        for machine in machines:
            stack.callback(machine.end)
        stack.callback(network.heal)
        for machine in machines:
            for name in MOVING:
                machine.add(name, node=MOVABLE, timeout=TIMEOUTS[name])
            machine.add("local", node={"state": "local"})
        machines[0].run(UP)  # starts the runtime again after the fence
        for name in (*MOVING, "local"):
            wait_for_status(machines[0], name, "connected")
        for machine in machines[1:]:
            machine.run()
        wait_for_fences(*machines)
        wait_for_folders(*machines)
        assert {owner_of(name) for name in (*MOVING, "local")} == {"first"}
        yield machines


def agent_at(node: HostedMachine, *names: str) -> GatewayClient:
    agent = GatewayClient(node, make_token()).begin()
    eventually(lambda: {f"{name}__echo" for name in names or MOVING} <= set(agent.tools()), within=PATIENCE)
    return agent


def runs_of(nodes: list[HostedMachine], tool: str, arguments: dict[str, Any]) -> int:
    """How often members have got this call, on all nodes."""
    logs = [path for node in nodes for path in node.members_dir.glob("*/calls-*.log")]
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    return lines.count([tool, arguments])


@pytest.mark.alone
@pytest.mark.parametrize("fault", ["cut", "lose_requests", "lose_answers"])
def test_a_node_without_its_database_ends_its_members_before_others_start_them_and_joins_again(
    network: Network, nodes: list[HostedMachine], fault: str
) -> None:
    first, second, _ = nodes
    names = (*MOVING, "local")
    old_lease = first.row.lease_id
    old_processes = [*first.tagged_processes(), psutil.Process(first.worker_pid)]
    assert len(old_processes) == len(names) + 1
    take_alone()
    copies = Copies(first, *names)
    try:
        watch = Stopwatch()
        getattr(network, fault)(first.host)
        wait_for_end_of(old_processes, within=8)
        assert watch.elapsed > FENCE_SECONDS - 1.5  # counted from the last renewal
        assert watch.seconds < FENCE_SECONDS + 1.5
        for name in MOVING:
            eventually(lambda name=name: owner_of(name) in ("second", "third"), within=12)
        assert watch.elapsed > GONE_SECONDS - 1.5
        assert watch.seconds < 12
        started = Stopwatch()
        for name in MOVING:
            wait_for_status(second, name, "connected")
        assert started.seconds < 5
        share_again()
        assert [call(name, "echo", {"text": "elsewhere"}).status for name in MOVING] == ["succeeded"] * 2
        assert owner_of("local") == "first"
        assert not first.tagged_processes("local")
        owners = {name: owner_of(name) for name in MOVING}
        network.heal()
        eventually(lambda: first.row.lease_id not in (None, old_lease), within=PATIENCE, what=first.output())
        wait_for_status(first, "local", "connected")
        wait_for_fences(first)
        assert {name: owner_of(name) for name in MOVING} == owners
    finally:
        most = copies.end()
    assert most == dict.fromkeys(names, 1)
    assert len(first.tagged_processes()) == len(names)
    for node in nodes:
        agent = agent_at(node, *names)
        for name in names:
            assert agent.text(f"{name}__echo", text=f"from {node.name}") == f"from {node.name}"
            assert runs_of(nodes, "echo", {"text": f"from {node.name}"}) == 1 + names.index(name)


def placement() -> list[dict[str, Any]]:
    return list(GuildMember.objects.order_by("name").values("name", "node", "lease_id", "epoch", "pid", "status"))


class InBackground:
    """A call that a thread makes."""

    def __init__(self, agent: GatewayClient, tool: str, **arguments: Any) -> None:
        self.answer: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._call, args=(agent, tool, arguments))
        self._thread.start()

    def _call(self, agent: GatewayClient, tool: str, arguments: dict[str, Any]) -> None:
        self.answer = agent.call(tool, **arguments)

    def wait(self) -> dict[str, Any]:
        self._thread.join(PATIENCE)
        return self.answer


@pytest.mark.parametrize("fault", ["cut", "lose_requests"])
def test_calls_at_other_gateways_end_with_the_name_of_the_node_or_wait_for_the_next_owner(
    network: Network, nodes: list[HostedMachine], fault: str
) -> None:
    _, second, third = nodes
    sleeper, *agents = agent_at(second), agent_at(second), agent_at(third)
    running = InBackground(sleeper, "two__sleep", seconds=60)
    eventually(lambda: runs_of(nodes, "sleep", {"seconds": 60}) == 1, within=PATIENCE)
    getattr(network, fault)(nodes[0].host)
    waiting = [InBackground(agent, "two__echo", text=f"waiting {number}") for number, agent in enumerate(agents)]
    error = running.wait()["error"]
    assert "node 'first'" in error["message"]
    assert error["data"]["member"] == "two"
    for number, background in enumerate(waiting):
        assert background.wait()["result"]["content"][0]["text"] == f"waiting {number}"
        assert runs_of(nodes, "echo", {"text": f"waiting {number}"}) == 1
    assert owner_of("two") != "first"


@pytest.mark.alone
def test_a_cable_that_is_out_for_a_moment_changes_nothing(network: Network, nodes: list[HostedMachine]) -> None:
    first, second, _ = nodes
    before, changes = placement(), StatusChange.objects.count()
    beat = first.row.beat
    take_alone()
    network.cut(first.host)
    time.sleep(SHORT_OUTAGE)
    network.heal()
    share_again()
    eventually(lambda: first.row.beat > beat + GONE_SECONDS, within=PATIENCE)
    assert (placement(), StatusChange.objects.count()) == (before, changes)
    assert agent_at(second).text("one__echo", text="after") == "after"


@pytest.mark.alone
def test_members_stay_if_two_nodes_cannot_reach_each_other_and_calls_end_with_the_name_of_the_node(
    network: Network, nodes: list[HostedMachine]
) -> None:
    first, second, third = nodes
    agent, other = agent_at(second), agent_at(third)
    before, changes = placement(), StatusChange.objects.count()
    take_alone()
    assert agent.text("one__echo", text="before") == "before"  # over a connection that the next call may use
    network.separate(first.host, second.host)
    errors, whole = [], Stopwatch()
    while whole.elapsed < GONE_SECONDS + 2 or len(errors) < 2:
        watch = Stopwatch()
        errors.append(agent.call("one__echo", text=f"lost {len(errors)}")["error"])
        assert watch.elapsed > TIMEOUTS["one"] - 0.5
        assert watch.seconds < TIMEOUTS["one"] + GRACE_SECONDS + 1
        assert other.text("one__echo", text="of the third") == "of the third"
    assert all("node 'first'" in error["message"] for error in errors), errors
    kinds = [error["data"]["kind"] for error in errors]
    assert kinds[0] in ("timeout", "unavailable")  # an open connection is used only if it was used a moment ago
    assert set(kinds[1:]) == {"unavailable"}
    network.heal()
    share_again()
    eventually(lambda: "result" in agent.call("one__echo", text="after"), within=PATIENCE)
    time.sleep(RETRANSMISSION)
    runs = [runs_of(nodes, "echo", {"text": f"lost {number}"}) for number in range(len(errors))]
    assert runs[0] <= (kinds[0] == "timeout")  # "it may have run"
    assert not any(runs[1:])  # "the call was not sent"
    assert (placement(), StatusChange.objects.count()) == (before, changes)


class RowLock:
    """A lock on the row of a call, until `release`."""

    def __init__(self, row: Call) -> None:
        self._connection = connection.copy()
        self._connection.set_autocommit(False)
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid() FROM roster_call WHERE id = %s FOR UPDATE", [row.pk])
            self._pid = cursor.fetchone()[0]

    @property
    def is_awaited(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", [self._pid])
            return cursor.fetchone() is not None

    def release(self) -> None:
        self._connection.close()


def test_a_node_that_is_cut_off_in_a_transaction_keeps_no_calls_locked(
    network: Network, nodes: list[HostedMachine]
) -> None:
    calls = [queue("two", "sleep", {"seconds": 2 + 0.5 * number}) for number in range(4)]
    eventually(lambda: Call.objects.filter(status="running").count() == len(calls), within=PATIENCE)
    with contextlib.ExitStack() as stack:
        locks = [RowLock(row) for row in calls]
        for lock in locks:
            stack.callback(lock.release)
        eventually(lambda: locks[0].is_awaited, within=PATIENCE, what="the first call ends")
        time.sleep(2)  # the others end too. Their results wait for that of the first one, and are then written together
        locks[0].release()
        eventually(lambda: locks[1].is_awaited, within=PATIENCE)
        locks[1].release()
        eventually(lambda: locks[2].is_awaited, within=PATIENCE, what="a transaction with the second call")
        network.cut(nodes[0].host)
    ends = Call.objects.filter(pk__in=[row.pk for row in calls]).order_by("pk").values_list("status", "error_kind")
    expected = [("succeeded", ""), *[("failed", "lost")] * 3]
    eventually(lambda: list(ends.all()) == expected, within=PATIENCE, what=f"{expected}:\n{nodes[1].output()}")
    assert owner_of("two") != "first"
    assert call("two", "echo", {"text": "after"}).status == "succeeded"
