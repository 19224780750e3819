"""A hall with several nodes: each is a runtime with its own folders and ports, and all share the database."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from django.db import connection
from kombu import Connection

from mcp_runtime.calls.queue_watch import SWEEP_SECONDS
from mcp_runtime.control.notify import hall_exchange
from roster.models import Call
from tests.conftest import eventually, needs_service
from tests.storm.proxy import Proxy
from tests.support.hall import PATIENCE, call, member, queue, wait_for_end_of, wait_for_status
from tests.support.machine import take_alone
from tests.support.nodes import (
    GUARD,
    Copies,
    Machine,
    on_postgresql,
    owner_of,
    two_nodes,
)

pytestmark = pytest.mark.services
BROKER_SECONDS = 3.0  # the longest wait for a broker that does not answer


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has several nodes")
def test_a_second_node_on_sqlite_is_refused_with_what_it_needs(make_node: Callable[[str], Machine]) -> None:
    first, second = make_node("first"), make_node("second")
    first.run()
    refused = second.popen(GUARD)
    assert refused.wait(PATIENCE) == 75
    assert "node 'first'" in second.output()
    assert "For a second node, set DATABASE_URL to a PostgreSQL database on all nodes" in second.output()
    assert first.row.lease_id is not None


@on_postgresql
def test_a_node_with_another_secret_key_is_refused_and_the_others_run_on(
    make_node: Callable[[str], Machine], tmp_path: Path
) -> None:
    first, second = make_node("first"), make_node("second")
    first.run()
    second.key = tmp_path / "other-key"
    second.key.write_text("o" * 50)
    refused = second.popen(GUARD)
    assert refused.wait(PATIENCE) == 78
    assert "This node has another secret key than the hall" in second.output()
    assert "secret-key of node 'first'" in second.output()
    assert first.row.lease_id is not None


@on_postgresql
def test_two_machines_with_the_same_name_are_told_to_use_two_names(make_node: Callable[[str], Machine]) -> None:
    first, second = make_node("first"), make_node("second")
    first.run()
    second.name = "first"
    refused = second.popen(GUARD)
    assert refused.wait(PATIENCE) == 75
    assert "give it another name with GUILD_HALL_NODE" in second.output()


@on_postgresql
def test_members_of_a_killed_node_run_elsewhere_except_those_with_local_state(
    make_node: Callable[[str], Machine],
) -> None:
    first, second = two_nodes(make_node, "movable", "local")
    running = queue("movable", "sleep", {"seconds": 60})
    eventually(lambda: Call.objects.get(pk=running.pk).status == "running", within=PATIENCE)
    first.kill()
    waiting = queue("movable", "echo", {"text": "runs on the new owner"})
    eventually(lambda: owner_of("movable") == "second", within=PATIENCE, what=f"second takes it:\n{second.output()}")
    wait_for_status(second, "movable", "connected")
    eventually(lambda: Call.objects.get(pk=waiting.pk).status == "succeeded", within=PATIENCE)
    eventually(lambda: Call.objects.get(pk=running.pk).error_kind == "lost", within=PATIENCE)
    assert owner_of("local") == "first"
    first.run()
    wait_for_status(first, "local", "connected")
    assert call("local", "echo", {"text": "back"}).status == "succeeded"
    assert owner_of("movable") == "second"


@on_postgresql
def test_a_member_of_a_node_that_is_stopped_never_runs_twice(make_node: Callable[[str], Machine]) -> None:
    first, second = two_nodes(make_node, "movable")
    old = psutil.Process(member("movable").pid)
    worker = psutil.Process(first.worker_pid)
    copies = Copies(first, "movable")
    try:
        worker.suspend()
        wait_for_end_of([old, worker], within=PATIENCE)  # the guard ends them
        eventually(lambda: owner_of("movable") == "second", within=PATIENCE, what=second.output())
        wait_for_status(second, "movable", "connected")
    finally:
        most = copies.end()
    assert most == {"movable": 1}
    assert first.guard is not None
    assert first.guard.wait(PATIENCE) == 74
    first.run()
    assert call("movable", "echo", {"text": "once"}).status == "succeeded"
    assert owner_of("movable") == "second"


@on_postgresql
def test_a_drain_moves_all_members_and_no_queued_call_fails(make_node: Callable[[str], Machine]) -> None:
    names = ("one", "two", "three")
    first, _ = two_nodes(make_node, *names)
    calls = [queue(name, "sleep", {"seconds": 0.5}) for name in names for _ in range(4)]
    assert first.manage("drain_node", "first").returncode == 0
    for name in names:
        calls += [queue(name, "echo", {"text": "during the drain"}) for _ in range(4)]
        eventually(lambda name=name: owner_of(name) == "second", within=2 * PATIENCE, what=first.output())
    for queued in calls:
        eventually(lambda pk=queued.pk: Call.objects.get(pk=pk).finished_at, within=PATIENCE)
    assert {Call.objects.get(pk=queued.pk).status for queued in calls} == {"succeeded"}
    assert len(first.tagged_processes()) == len(names)
    assert first.row.lease_id is not None


@on_postgresql
def test_an_operator_moves_a_member_with_local_state_by_force(make_node: Callable[[str], Machine]) -> None:
    first, second = two_nodes(make_node, "local")
    refused = first.manage("move_member", "local", "second")
    assert refused.returncode != 0
    assert "local" in refused.stderr
    assert first.manage("move_member", "local", "second", "--force").returncode == 0
    eventually(lambda: owner_of("local") == "second", within=PATIENCE, what=first.output())
    wait_for_status(second, "local", "connected")


@pytest.fixture(params=["AMQP_URL", "REDIS_URL"])
def broker_url(request: pytest.FixtureRequest, make_node: Callable[[str], Machine]) -> Iterator[str]:
    url = needs_service(request.param)
    yield url
    if url.startswith("amqp"):
        with Connection(url) as rabbitmq:
            hall_exchange()(rabbitmq.default_channel).delete()


QUEUE_CALLS = """
from mcp_runtime.control.calls import queue_call, wait_for_call
from mcp_runtime.calls.transitions import Requester
for _ in range(9):
    call = queue_call({name!r}, "echo", {{"text": "hi"}}, requester=Requester("command"))[0]
    assert wait_for_call(call.pk, 20)
"""


def seconds_in_queue(machine: Machine, name: str) -> float:
    """The upper quartile of calls that another process queues, each when the last one has ended.

    A call that only the sweep finds waits for almost a second, if the last one began right after a sweep. The median
    would not show that every second notification goes to the other node.
    """
    result = machine.manage("shell", "--no-imports", "-c", QUEUE_CALLS.format(name=name), timeout=120)
    assert result.returncode == 0, result.stderr
    assert "cannot be notified" not in result.stderr
    waits = [row.started_at - row.queued_at for row in Call.objects.order_by("-pk")[:9] if row.started_at]
    return statistics.quantiles([wait.total_seconds() for wait in waits], n=4)[2]


@on_postgresql
@pytest.mark.alone
def test_a_call_starts_long_before_the_sweep_on_whichever_node_its_member_is(
    make_node: Callable[[str], Machine], broker_url: str
) -> None:
    first, second = two_nodes(make_node, "one", "two", broker_url=broker_url)
    assert first.manage("move_member", "two", "second").returncode == 0
    eventually(lambda: owner_of("two") == "second", within=PATIENCE, what=first.output())
    wait_for_status(second, "two", "connected")
    take_alone()
    for machine in (first, second):
        for name in ("one", "two"):
            assert seconds_in_queue(machine, name) < SWEEP_SECONDS / 2


QUEUE_AND_TIME = """
import time
from mcp_runtime.control.calls import queue_call
from mcp_runtime.calls.transitions import Requester
for number in range(5):
    began = time.monotonic()
    queue_call({name!r}, "echo", {{"text": "hi"}}, requester=Requester("command"))
    print(time.monotonic() - began)
"""


def queue_elsewhere(machine: Machine, name: str) -> list[float]:
    """Another process queues calls. Returns how many seconds it needed for each."""
    result = machine.manage("shell", "--no-imports", "-c", QUEUE_AND_TIME.format(name=name), timeout=120)
    assert result.returncode == 0, result.stderr
    return [float(line) for line in result.stdout.split()]


@on_postgresql
@pytest.mark.alone
def test_without_the_broker_calls_wait_for_the_sweep_and_afterwards_it_is_used_again(
    make_node: Callable[[str], Machine], broker_url: str
) -> None:
    parts = urlsplit(broker_url)
    proxy = Proxy(parts.hostname or "127.0.0.1", parts.port or 5672)
    user, at, _ = parts.netloc.rpartition("@")
    try:
        url = parts._replace(netloc=user + at + proxy.address).geturl()
        first, second = two_nodes(make_node, "one", broker_url=url)
        take_alone()
        # It lets connections stay open and answers nothing; its connections end, and it cannot be reached.
        for fault, machine in ((proxy.mute, first), (proxy.kill, second)):
            fault()
            assert max(queue_elsewhere(machine, "one")) < BROKER_SECONDS
            calls = Call.objects.order_by("-pk")[:5]
            eventually(lambda calls=calls: all(row.finished_at for row in calls.all()), within=PATIENCE)
            waits = [row.started_at - row.queued_at for row in calls.all() if row.started_at]
            assert max(wait.total_seconds() for wait in waits) < 2 * SWEEP_SECONDS
            proxy.heal()
            eventually(lambda: seconds_in_queue(second, "one") < SWEEP_SECONDS / 2, within=2 * PATIENCE)
        assert first.row.lease_id is not None
    finally:
        proxy.close()


@on_postgresql
def test_a_member_with_local_state_starts_elsewhere_when_its_node_is_removed(
    make_node: Callable[[str], Machine],
) -> None:
    first, second = two_nodes(make_node, "local")
    first.kill()
    refusal = second.manage("remove_node", "first")
    assert refusal.returncode != 0
    assert "members with local state belong to it (1)" in refusal.stderr
    assert second.manage("remove_node", "first", "--force").returncode == 0
    eventually(lambda: owner_of("local") == "second", within=PATIENCE, what="the other node takes it")
    wait_for_status(second, "local", "connected")
