from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta

import psutil
import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from mcp_runtime.calls import statistics
from mcp_runtime.control import nodes
from mcp_runtime.control.members import live_runtime
from mcp_runtime.rows import lease
from mcp_runtime.runtime import housekeeping
from mcp_runtime.runtime.load import Load, LoadMeter, _processes
from roster.models import Call, GuildMember, Node
from tests.conftest import eventually
from tests.support.leases import add_node, give_lease_to_another_runtime, own_node

pytestmark = pytest.mark.django_db

BURN = "import sys; print('ready', flush=True)\nwhile True: pass"


@pytest.fixture
def busy_child() -> Iterator[subprocess.Popen[str]]:
    """A child that uses a whole core, while there is one."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_the_node_of_a_live_runtime_reports_its_members_calls_and_load() -> None:
    lease_id = lease.take()
    member = GuildMember.objects.create(name="anna", directory="anna", status="connected")
    GuildMember.objects.create(name="bert", directory="bert", status="error")
    for age in (5, 50, 90):
        ended_at = timezone.now() - timedelta(seconds=age)
        Call.objects.create(member=member, tool_name="echo", timeout=5, source="rest", finished_at=ended_at)
    LoadMeter().write(lease_id)
    (report,) = nodes.all_nodes()
    assert (report.name, report.is_alive, report.host, report.pid) == ("main", True, socket.gethostname(), os.getpid())
    assert (report.members, report.calls_per_minute, report.capacity) == (1, 2, 256)
    assert report.since == Node.objects.get().started_at
    assert report.memory_bytes is not None
    assert report.memory_bytes > 1_000_000


def test_a_node_whose_runtime_has_ended_reports_since_when() -> None:
    lease_id = lease.take()
    lease.release(lease_id)
    (report,) = nodes.all_nodes()
    assert (report.is_alive, report.since) == (False, Node.objects.get().heartbeat_at)
    assert (report.pid, report.members, report.calls_per_minute, report.memory_bytes) == (None, None, None, None)


@pytest.mark.usefixtures("several_nodes")
def test_each_of_several_nodes_reports_its_own_members_and_calls() -> None:
    lease.take()
    other = add_node("b", labels=["gpu"], is_draining=True)
    here, there = own_node(), other
    for number, node in enumerate((here, there, there, None)):
        member = GuildMember.objects.create(name=f"m{number}", directory="m", status="connected", node=node)
    for lease_id in (here.lease_id, here.lease_id, there.lease_id, uuid.uuid4()):
        values = {"timeout": 5, "source": "rest", "finished_at": timezone.now(), "lease_id": lease_id}
        Call.objects.create(member=member, tool_name="echo", **values)
    other_report, own_report = nodes.all_nodes()
    assert (other_report.name, other_report.members, other_report.calls_per_minute) == ("b", 2, 1)
    assert (own_report.name, own_report.members, own_report.calls_per_minute) == ("main", 1, 2)
    assert (other_report.labels, other_report.is_draining) == (["gpu"], True)
    assert (own_report.labels, own_report.is_draining) == ([], False)


# Which nodes are alive ---------------------------------------------------------------------------------------------


def test_the_live_nodes_are_those_whose_runtime_sends_heartbeats() -> None:
    assert nodes.live_node_ids() == frozenset()
    lease_id = lease.take()
    other = add_node("b")
    add_node("c", is_alive=False)
    assert nodes.live_node_ids() == {own_node().pk, other.pk}
    Node.objects.filter(pk=other.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=2 * Node.LEASE_SECONDS))
    assert nodes.live_node_ids() == {own_node().pk}
    lease.release(lease_id)
    assert nodes.live_node_ids() == frozenset()


def test_a_hall_needs_one_query_to_know_which_nodes_are_alive(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    lease.take()
    with django_assert_num_queries(1):
        assert len(nodes.live_node_ids()) == 1


def test_a_hall_is_alive_while_any_of_its_nodes_is() -> None:
    lease.release(lease.take())
    assert live_runtime() is None
    add_node("b")
    assert str(live_runtime()) == "process 1 on b.invalid"


def test_the_node_of_a_member_is_known_to_be_dead_only_while_another_is_alive() -> None:
    lease_id = lease.take()
    lost = GuildMember(name="lost", node=add_node("b", is_alive=False))
    own, new = GuildMember(name="own", node=own_node()), GuildMember(name="new")
    liveness = nodes.read_liveness()
    assert [liveness.owner_of(row) for row in (own, lost, new)] == ["main", "b", ""]
    assert [liveness.dead_owner_of(row) for row in (own, lost, new)] == ["", "b", ""]
    lease.release(lease_id)
    assert nodes.read_liveness().dead_owner_of(lost) == ""


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")
def test_a_dead_node_holds_its_lease_if_its_fence_was_off_and_the_hall_has_another_node() -> None:
    long_ago = timezone.now() - timedelta(days=1)
    stuck, fenced = add_node("b"), add_node("c", fence_is_on=True)
    Node.objects.filter(pk__in=[stuck.pk, fenced.pk]).update(heartbeat_at=long_ago)
    assert nodes.read_liveness().stuck_ids == {stuck.pk}
    assert [(node.name, node.holds_lease) for node in nodes.all_nodes()] == [("b", True), ("c", False)]
    fenced.delete()
    assert [(node.name, node.holds_lease) for node in nodes.all_nodes()] == [("b", False)]


# Load -------------------------------------------------------------------------------------------------------------


def test_the_load_includes_the_children_of_the_runtime(busy_child: subprocess.Popen[str]) -> None:
    meter = LoadMeter()
    first_load = meter.measure()
    assert first_load.cpu_percent is None
    loads: list[Load] = []

    def is_busy() -> bool:
        loads.append(meter.measure())
        return (loads[-1].cpu_percent or 0) > 20

    eventually(is_busy, what="the child uses a part of a core")
    busy_child.kill()
    busy_child.wait()
    assert meter.measure().memory_bytes < loads[-1].memory_bytes


def test_a_runtime_without_the_lease_writes_no_load() -> None:
    lease_id = lease.take()
    give_lease_to_another_runtime()
    LoadMeter().write(lease_id)
    assert Node.objects.get().memory_bytes is None


def test_the_load_includes_processes_whose_pages_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    assert LoadMeter().measure().memory_bytes > 1_000_000


def test_processes_that_the_system_hides_are_left_out_of_the_load(
    busy_child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with hidepid: /proc lists them, and refuses to tell their parents."""
    own_pids, read_parent = {os.getpid(), busy_child.pid}, psutil.Process.ppid

    def read_parent_of_own(process: psutil.Process) -> int:
        if process.pid not in own_pids:
            raise psutil.AccessDenied(process.pid)
        return read_parent(process)

    monkeypatch.setattr(psutil.Process, "ppid", read_parent_of_own)
    assert {process.pid for process in _processes()} == own_pids


def test_a_step_of_the_wall_clock_does_not_change_the_cpu_load(
    busy_child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = LoadMeter()
    eventually(lambda: psutil.Process(busy_child.pid).cpu_times().user > 0.5, what="the child has used CPU time")
    busy_child.send_signal(signal.SIGSTOP)
    meter.measure()
    created_at = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: created_at(process) + 3600)
    time.sleep(0.05)  # the second measurement needs an interval
    cpu_percent = meter.measure().cpu_percent
    assert cpu_percent is not None
    assert cpu_percent < 400  # the child's lifetime in so short an interval would be 1,000 and more


@pytest.mark.django_db(transaction=True)
def test_housekeeping_goes_on_although_the_load_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise psutil.AccessDenied(1)

    is_over, rollups = threading.Event(), []
    monkeypatch.setattr(LoadMeter, "measure", lambda _: refuse())
    monkeypatch.setattr(statistics, "ROLLUP_SECONDS", 0.01)
    monkeypatch.setattr(statistics, "roll_up", lambda **_: rollups.append(1))
    thread = threading.Thread(target=housekeeping.keep_house, args=(is_over, uuid.uuid4()))
    thread.start()
    eventually(lambda: len(rollups) > 2)
    is_over.set()
    thread.join(5)
    assert "housekeeping failed; trying again" in caplog.text


@pytest.mark.parametrize("fence_is_on", [True, False])
def test_nodes_as_a_column_of_another_query_say_the_same_as_their_own_query(
    django_assert_num_queries: DjangoAssertNumQueries, fence_is_on: bool
) -> None:
    lease.take()
    add_node("far-away", fence_is_on=fence_is_on)
    add_node("at rest", is_alive=False)
    add_node('odd "name", [1]', url="https://far.invalid/é")
    stuck = add_node("dead", fence_is_on=fence_is_on)
    Node.objects.filter(pk=stuck.pk).update(heartbeat_at=timezone.now() - timedelta(hours=1))
    GuildMember.objects.create(name="anna", directory="anna")
    assert connection.features.supports_json_field  # which Django asks SQLite once in a process
    with django_assert_num_queries(1):
        expected = nodes.read_liveness()
    with django_assert_num_queries(1):
        (value,) = GuildMember.objects.annotate(all_nodes=nodes.nodes_as_value()).values_list("all_nodes", flat=True)
        liveness = nodes.liveness_of_value(value)
    assert liveness == expected
    assert list(liveness.nodes) == list(expected.nodes)
    for pk, node in expected.nodes.items():
        for column in ("name", "lease_id", "host", "pid", "identity", "fence_is_on", "url"):
            assert getattr(liveness.nodes[pk], column) == getattr(node, column)
    assert len(liveness.live_ids) == 3


def test_a_hall_without_nodes_has_no_live_ones() -> None:
    GuildMember.objects.create(name="anna", directory="anna")
    (value,) = GuildMember.objects.annotate(all_nodes=nodes.nodes_as_value()).values_list("all_nodes", flat=True)
    assert nodes.liveness_of_value(value) == nodes.read_liveness() == nodes.Liveness({}, frozenset(), frozenset())
