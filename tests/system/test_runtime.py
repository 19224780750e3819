"""The runtime itself: one per hall, nothing left behind, nothing lost, however it ends."""

from __future__ import annotations

import collections
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest
from django.conf import settings
from django.db import transaction

from mcp_runtime.control.calls import wait_for_call
from mcp_runtime.control.members import live_runtime, true_status
from mcp_runtime.rows import lease
from roster.models import Call, GuildMember, PortAllocation
from tests.conftest import eventually
from tests.support.hall import PATIENCE, Hall, call, lives, member, queue, wait_for_status
from tests.support.machine import Stopwatch, take_alone

pytestmark = pytest.mark.services


def test_a_second_runtime_refuses_and_says_who_holds_the_hall(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    second = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"])
    assert second.wait(PATIENCE) == 75
    assert f"another runtime owns this hall: process {hall.worker_pid} on {socket.gethostname()}" in hall.output()
    assert call("one", "echo", {"text": "undisturbed"}).status == "succeeded"


@pytest.mark.alone
@pytest.mark.parametrize("victim", ["worker", "guard", "both"])
def test_sigkill_leaves_no_process_and_no_port_within_two_seconds(hall: Hall, victim: str) -> None:
    hall.add("plain")
    hall.add("deaf", "fork", "ignore-term")
    guard = hall.start()
    wait_for_status(hall, "plain", "connected")
    wait_for_status(hall, "deaf", "connected")
    eventually(lambda: len(hall.tagged_processes()) >= 4)
    hung = queue("deaf", "sleep")
    eventually(lambda: Call.objects.get(pk=hung.pk).status == "running")
    marked = hall.tagged_processes()
    take_alone()
    if victim in ("worker", "both"):
        os.kill(hall.worker_pid, signal.SIGSTOP if victim == "both" else signal.SIGKILL)
    if victim in ("guard", "both"):
        guard.kill()
    if victim == "both":
        # Guard and worker die together: nobody is left to clean up but the next start.
        os.kill(hall.worker_pid, signal.SIGKILL)
        guard.wait(PATIENCE)
        hall.start()
        eventually(lambda: not any(lives(process) for process in marked), within=5)
        wait_for_status(hall, "deaf", "connected")
        return
    eventually(lambda: not hall.tagged_processes() and not hall.busy_ports(), within=2)
    assert guard.wait(PATIENCE) != 0
    eventually(lambda: live_runtime() is None)
    if victim == "guard":  # the worker had the time to do it properly
        assert lease.hall().lease_id is None
        hung.refresh_from_db()
        assert (hung.status, hung.error_kind) == ("failed", "lost")
    if victim == "worker":
        assert true_status(member("plain"), runtime_is_alive=False) == "disconnected"


def test_killed_under_load_no_call_is_lost_or_run_twice(hall: Hall) -> None:
    folder = hall.add("one", max_concurrency=8)
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    for number in range(100):
        queue("one", "sleep", {"seconds": 0.05})
        queue("one", "echo", {"text": str(number)})
    eventually(lambda: Call.objects.filter(status="succeeded").count() > 20)
    os.kill(hall.worker_pid, signal.SIGKILL)
    guard.wait(PATIENCE)
    hall.start()
    eventually(lambda: not Call.objects.filter(status__in=Call.ACTIVE).exists(), within=40)
    ends = collections.Counter(Call.objects.values_list("status", "error_kind"))
    assert set(ends) <= {("succeeded", ""), ("failed", "lost")}
    assert sum(ends.values()) == 200
    calls = [json.loads(line) for line in (folder / "calls-one.log").read_text().splitlines()]
    echoes = collections.Counter(arguments["text"] for name, arguments in calls if name == "echo")
    assert max(echoes.values()) == 1
    lost = Call.objects.filter(error_kind="lost").first()
    if lost is not None:
        assert "member 'one'" in lost.error_message


@pytest.mark.alone
def test_the_first_signal_ends_everything_within_two_seconds(hall: Hall) -> None:
    for name in ("a", "b", "c"):
        hall.add(name)
    guard = hall.start()
    eventually(lambda: GuildMember.objects.filter(status="connected").count() == 3, within=20)
    take_alone()
    watch = Stopwatch()
    guard.send_signal(signal.SIGINT)
    assert guard.wait(PATIENCE) == 0
    assert watch.seconds < 2
    assert hall.tagged_processes() == []
    assert set(GuildMember.objects.values_list("status", flat=True)) == {"disconnected"}
    assert not PortAllocation.objects.exists()
    assert lease.hall().lease_id is None


@pytest.mark.alone
def test_a_hung_member_with_a_hung_call_is_stopped_within_five_seconds_and_the_call_is_lost(hall: Hall) -> None:
    hall.add("hung", "ignore-term", timeout=60)
    hall.add("deaf", "ignore-term")
    guard = hall.start()
    wait_for_status(hall, "hung", "connected")
    wait_for_status(hall, "deaf", "connected")
    running = queue("hung", "sleep")
    eventually(lambda: Call.objects.get(pk=running.pk).status == "running")
    take_alone()
    watch = Stopwatch()
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(PATIENCE) == 0
    assert watch.seconds < 5
    running.refresh_from_db()
    assert (running.status, running.error_kind) == ("failed", "lost")
    assert "the runtime was stopped" in running.error_message


@pytest.mark.alone
@pytest.mark.parametrize(("number", "within"), [(signal.SIGINT, 5), (signal.SIGKILL, 2)], ids=["asked", "orphaned"])
def test_a_stop_has_its_end_though_the_database_does_not_answer(
    hall: Hall, number: signal.Signals, within: float
) -> None:
    hall.add("one")
    hall.add("deaf", "fork", "ignore-term")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    wait_for_status(hall, "deaf", "connected")
    worker = psutil.Process(hall.worker_pid)
    take_alone()
    with transaction.atomic():
        GuildMember.objects.update(desired_state="running")  # nobody else can write to those rows any more
        guard.send_signal(number)
        eventually(lambda: not hall.tagged_processes() and not lives(worker), within=within)
    assert guard.wait(PATIENCE) == (70 if number == signal.SIGINT else -number)
    # What could not be written is put in order by the next runtime.
    assert set(GuildMember.objects.values_list("status", flat=True)) == {"connected"}
    hall.start()
    assert call("one", "echo", {"text": "again"}).status == "succeeded"


def test_a_call_that_ends_soon_is_waited_for_at_the_stop(hall: Hall) -> None:
    hall.add("one")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    running = queue("one", "sleep", {"seconds": 1.5})
    eventually(lambda: Call.objects.get(pk=running.pk).status == "running")
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(PATIENCE) == 0
    running.refresh_from_db()
    assert running.status == "succeeded"


@pytest.mark.alone
def test_a_second_signal_ends_it_within_a_second(hall: Hall) -> None:
    hall.add("deaf", "ignore-term", "fork")
    guard = hall.start()
    wait_for_status(hall, "deaf", "connected")
    take_alone()
    guard.send_signal(signal.SIGINT)
    eventually(lambda: "stopping" in hall.output())
    watch = Stopwatch()
    guard.send_signal(signal.SIGINT)
    guard.wait(PATIENCE)
    assert watch.seconds < 1
    assert hall.tagged_processes() == []


def test_calls_queued_without_a_runtime_wait_their_turn(hall: Hall) -> None:
    hall.add("one")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    guard.send_signal(signal.SIGTERM)
    guard.wait(PATIENCE)
    waiting = queue("one", "echo", {"text": "later"})
    assert not wait_for_call(waiting.pk, 0.3)
    hall.start()
    assert wait_for_call(waiting.pk, 15)
    waiting.refresh_from_db()
    assert waiting.status == "succeeded"


def test_a_runtime_that_lost_its_lease_ends_its_members_and_exits(hall: Hall) -> None:
    hall.add("one")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    type(lease.hall()).objects.update(lease_id="00000000-0000-4000-8000-000000000000", lease_host="elsewhere")
    assert guard.wait(PATIENCE) == 75
    eventually(lambda: not hall.tagged_processes())
    # It may not write any more: the row is the new holder's to change.
    assert member("one").status == "connected"


def test_members_processes_are_not_zombies_after_crashes(hall: Hall) -> None:
    hall.add("one", "fork")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    os.kill(member("one").pid, signal.SIGKILL)
    wait_for_status(hall, "one", "error")
    wait_for_status(hall, "one", "connected")
    ours = {guard.pid, hall.worker_pid}

    def zombies() -> list[int]:
        # Read at once: whoever is listed may be gone before it is asked.
        listed = (process.info for process in psutil.process_iter(["ppid", "status", "pid"]))
        return [p["pid"] for p in listed if p["ppid"] in ours and p["status"] == psutil.STATUS_ZOMBIE]

    eventually(lambda: not zombies())


@pytest.mark.skipif(not settings.REDIS_URL, reason="needs REDIS_URL")
def test_two_halls_on_one_redis_do_not_hear_each_other(hall: Hall) -> None:
    import redis

    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert call("one", "echo", {"text": "hi"}).status == "succeeded"
    keys = [key.decode() for key in redis.Redis.from_url(settings.REDIS_URL).keys("*guildhall*")]
    hall_id = str(lease.hall().hall_id)
    assert [key for key in keys if hall_id in key]


class MuteBroker:
    """Accepts connections and never says a word."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._clients: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                self._clients.append(self._server.accept()[0])
        except OSError:
            return

    def close(self) -> None:
        self._server.close()
        for client in self._clients:
            client.close()


@pytest.mark.parametrize("broker", ["mute", "dead"])
def test_a_broker_that_is_mute_or_dead_delays_calls_and_loses_none(hall: Hall, broker: str) -> None:
    mute = MuteBroker()
    url = mute.url
    if broker == "dead":
        mute.close()
    hall.add("one")
    guard = hall.start(REDIS_URL=url)
    try:
        wait_for_status(hall, "one", "connected")
        done = subprocess.run(
            [sys.executable, "manage.py", "invoke", "one", "echo", '{"text": "hi"}', "--json"],
            env=hall.environment(REDIS_URL=url), capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == "succeeded"
        watch = Stopwatch()
        guard.send_signal(signal.SIGTERM)
        guard.wait(PATIENCE)
        assert watch.seconds < 4
        assert hall.tagged_processes() == []
    finally:
        mute.close()
