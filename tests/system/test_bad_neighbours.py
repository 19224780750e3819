"""One bad member harms nobody: while it does its worst, the calls of another are answered as ever."""

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

from roster.models import Call, GuildMember
from roster.models import Hall as HallRow
from tests.conftest import eventually
from tests.support.hall import Hall, call, member, queue, wait_for_status
from tests.support.machine import Stopwatch, take_alone

pytestmark = pytest.mark.alone

# Far above what they take (tens of milliseconds), and far below what they took when it went wrong (nine seconds).
PATIENCE = 2.0


def call_the_good_one() -> float:
    """Seconds that a call of the other member took."""
    watch = Stopwatch()
    assert call("good", "echo", {"text": "hello"}).status == "succeeded"
    return watch.seconds


@contextmanager
def nobody_waits_long() -> Iterator[list[float]]:
    """Calls to the good member all the while; none may take longer than PATIENCE."""
    over = Event()
    took: list[float] = []

    def go_on() -> None:
        try:
            while not over.is_set():
                took.append(call_the_good_one())
                over.wait(0.05)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(go_on)
        try:
            yield took
        finally:
            over.set()
        calling.result()
    assert took
    assert max(took) < PATIENCE, sorted(took)[-5:]


@pytest.fixture
def good(hall: Hall) -> Hall:
    hall.add("good")
    hall.start(GUILD_HALL_CONCURRENCY="64", GUILD_HALL_START_CONCURRENCY="32")
    wait_for_status(hall, "good", "connected")
    take_alone()
    return hall


def test_one_that_lists_thousands_of_costly_tools(good: Hall) -> None:
    with nobody_waits_long():
        good.add("bad", "many-tools")
        wait_for_status(good, "bad", "connected", within=30)
    assert member("bad").tools.count() == 2000
    assert "database is locked" not in good.output()


def test_one_that_answers_many_calls_with_megabytes_at_once(good: Hall) -> None:
    good.add("bad", max_concurrency=32, timeout=60)
    wait_for_status(good, "bad", "connected")
    with nobody_waits_long():
        calls = [queue("bad", "large") for _ in range(32)]
        unfinished = Call.objects.filter(pk__in=[each.pk for each in calls], status__in=Call.ACTIVE)
        eventually(lambda: not unfinished.exists(), within=60)
    done = Call.objects.filter(tool_name="large").defer("result")
    assert {(each.status, each.error_message) for each in done} == {("succeeded", "")}


def test_those_whose_calls_hang_leave_places_for_others(good: Hall) -> None:
    for name in ("bad", "worse", "worst"):
        good.add(name, max_concurrency=1000, timeout=60)
        wait_for_status(good, name, "connected")
    for name in ("bad", "worse", "worst"):
        for _ in range(70):
            queue(name, "sleep")
    with nobody_waits_long() as took:
        eventually(lambda: len(took) > 10, within=20)
    assert Call.objects.filter(status="running", tool_name="sleep").count() >= 48


def test_many_that_never_finish_their_handshake(good: Hall) -> None:
    """More of them than the runtime has database connections."""
    for number in range(24):
        good.add(f"bad-{number}", "hang-initialize", start_timeout=6)
    with nobody_waits_long():
        bad = GuildMember.objects.filter(name__startswith="bad")
        eventually(lambda: bad.filter(status="starting").count() == 24, within=20)
        beats = set()
        while bad.filter(status="starting").exists():
            beats.add(HallRow.objects.get().heartbeat_at)
            time.sleep(0.1)
    ordered = sorted(beat for beat in beats if beat)
    assert max(later - earlier for earlier, later in pairwise(ordered)).total_seconds() < 3
    assert "heartbeat could not be written" not in good.output()


def test_five_that_flood_their_output_delay_nobody_and_cost_a_tenth_of_a_core_at_most(good: Hall) -> None:
    worker = psutil.Process(good.worker_pid)
    idle = share_of_a_core(worker)
    for number in range(5):
        good.add(f"bad-{number}", "flood")
    for number in range(5):
        wait_for_status(good, f"bad-{number}", "connected", within=30)
    assert share_of_a_core(worker) - idle < 0.1
    with nobody_waits_long() as took:
        eventually(lambda: len(took) > 20, within=20)


def share_of_a_core(process: psutil.Process) -> float:
    """What it uses of one, over two seconds."""
    before, began = process.cpu_times(), time.monotonic()
    time.sleep(2)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


def test_one_that_serves_one_at_a_time_is_not_ended_by_many_calls(good: Hall) -> None:
    """Its queue of connections is short: what it cannot take fails or waits, and it lives."""
    good.add("single", "single", timeout=20)
    pid = wait_for_status(good, "single", "connected").pid
    calls = [queue("single", "sleep", {"seconds": 0.2}) for _ in range(30)]
    active = Call.objects.filter(pk__in=[each.pk for each in calls], status__in=Call.ACTIVE)
    eventually(lambda: not active.exists(), within=60)
    assert (member("single").status, member("single").pid) == ("connected", pid)
    ends = Call.objects.filter(tool_name="sleep").values_list("status", flat=True)
    assert list(ends).count("succeeded") >= 10
    connection.close()
