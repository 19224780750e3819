"""A bad member does not delay the calls of another member."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from threading import Event

import psutil
import pytest
from django.db import connection, connections

from roster.models import Call, GuildMember, Node
from tests.conftest import eventually
from tests.support.hall import Hall, call, member, queue, wait_for_status
from tests.support.machine import Stopwatch, take_alone

# Seconds that a call may take. Usual are tens of milliseconds. It took nine seconds before members were isolated.
PATIENCE = 2.0


def time_good_call() -> float:
    """The seconds that a call of the good member takes."""
    watch = Stopwatch()
    assert call("good", "echo", {"text": "hello"}).status == "succeeded"
    return watch.seconds


@contextmanager
def calls_stay_fast() -> Iterator[list[float]]:
    """Call the good member again and again during the block. No call may take longer than PATIENCE."""
    end = Event()
    durations: list[float] = []

    def call_repeatedly() -> None:
        try:
            while not end.is_set():
                durations.append(time_good_call())
                end.wait(0.05)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(call_repeatedly)
        try:
            yield durations
        finally:
            end.set()
        future.result()
    assert durations
    assert max(durations) < PATIENCE, sorted(durations)[-5:]


@pytest.fixture
def running_hall(hall: Hall) -> Hall:
    hall.add("good")
    hall.start(GUILD_HALL_CONCURRENCY="64", GUILD_HALL_START_CONCURRENCY="32")
    wait_for_status(hall, "good", "connected")
    return hall


@pytest.fixture
def hall_alone(running_hall: Hall) -> Hall:
    take_alone()
    return running_hall


@pytest.mark.alone
def test_a_member_with_thousands_of_costly_tools_delays_no_other_member(hall_alone: Hall) -> None:
    with calls_stay_fast():
        hall_alone.add("bad", "many-tools")
        wait_for_status(hall_alone, "bad", "connected", within=30)
    assert member("bad").tools.count() == 2000
    assert "database is locked" not in hall_alone.output()


@pytest.mark.alone
def test_a_member_that_returns_megabytes_for_many_calls_delays_no_other_member(hall_alone: Hall) -> None:
    hall_alone.add("bad", max_concurrency=32, timeout=60)
    wait_for_status(hall_alone, "bad", "connected")
    with calls_stay_fast():
        calls = [queue("bad", "large") for _ in range(32)]
        unfinished = Call.objects.filter(pk__in=[row.pk for row in calls], status__in=Call.ACTIVE)
        eventually(lambda: not unfinished.exists(), within=60)
    rows = Call.objects.filter(tool_name="large").defer("result")
    assert {(row.status, row.error_message) for row in rows} == {("succeeded", "")}


@pytest.mark.alone
def test_members_whose_calls_hang_leave_slots_for_other_members(hall_alone: Hall) -> None:
    for name in ("bad", "worse", "worst"):
        hall_alone.add(name, max_concurrency=1000, timeout=60)
        wait_for_status(hall_alone, name, "connected")
    for name in ("bad", "worse", "worst"):
        for _ in range(70):
            queue(name, "sleep")
    with calls_stay_fast() as durations:
        eventually(lambda: len(durations) > 10, within=20)
    assert Call.objects.filter(status="running", tool_name="sleep").count() >= 48


@pytest.mark.alone
def test_many_members_that_never_finish_their_handshake_delay_no_other_member(hall_alone: Hall) -> None:
    """There are more such members than the runtime has database connections."""
    for number in range(24):
        hall_alone.add(f"bad-{number}", "hang-initialize", start_timeout=6)
    with calls_stay_fast():
        members = GuildMember.objects.filter(name__startswith="bad")
        eventually(lambda: members.filter(status="starting").count() == 24, within=20)
        heartbeats = set()
        while members.filter(status="starting").exists():
            heartbeats.add(Node.objects.get().heartbeat_at)
            time.sleep(0.1)
    times = sorted(time for time in heartbeats if time)
    assert max(later - earlier for earlier, later in pairwise(times)).total_seconds() < 3
    assert "heartbeat could not be written" not in hall_alone.output()


@pytest.mark.alone
def test_five_members_that_flood_their_output_delay_nobody_and_use_little_cpu(hall_alone: Hall) -> None:
    worker = psutil.Process(hall_alone.worker_pid)
    idle = share_of_a_core(worker)
    for number in range(5):
        hall_alone.add(f"bad-{number}", "flood")
    for number in range(5):
        wait_for_status(hall_alone, f"bad-{number}", "connected", within=30)
    assert share_of_a_core(worker) - idle < 0.1
    with calls_stay_fast() as durations:
        eventually(lambda: len(durations) > 20, within=20)


def share_of_a_core(process: psutil.Process) -> float:
    """The share of one core that the process uses, measured over two seconds."""
    before, start = process.cpu_times(), time.monotonic()
    time.sleep(2)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - start)


def test_a_server_with_one_connection_at_a_time_survives_many_calls(running_hall: Hall) -> None:
    """Its queue of connections is short. Calls that do not fit in it fail or wait, and the member keeps running."""
    running_hall.add("single", "single", timeout=20)
    pid = wait_for_status(running_hall, "single", "connected").pid
    calls = [queue("single", "sleep", {"seconds": 0.2}) for _ in range(30)]
    active = Call.objects.filter(pk__in=[row.pk for row in calls], status__in=Call.ACTIVE)
    eventually(lambda: not active.exists(), within=60)
    assert (member("single").status, member("single").pid) == ("connected", pid)
    statuses = Call.objects.filter(tool_name="sleep").values_list("status", flat=True)
    assert list(statuses).count("succeeded") >= 10
    connection.close()
