"""The runtime. There is one per hall, and however it ends, no process remains and no call is lost."""

from __future__ import annotations

import collections
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest
from django.conf import settings
from django.db import connection, transaction
from kombu import Connection

from mcp_runtime.control.calls import wait_for_call
from mcp_runtime.control.members import live_runtime, true_status
from mcp_runtime.control.notify import hall_exchange, node_queue
from mcp_runtime.rows import lease
from roster.models import Call, GuildMember, PortAllocation
from tests.conftest import eventually, needs_service
from tests.storm.surroundings import make_proxy, through
from tests.support.hall import PATIENCE, Hall, call, is_live, member, queue, wait_for_status
from tests.support.leases import current_lease_id, give_lease_to_another_runtime
from tests.support.machine import Stopwatch, share_again, take_alone

pytestmark = pytest.mark.services


def test_a_second_runtime_refuses_to_start_and_names_the_owner(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    second = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"])
    assert second.wait(PATIENCE) == 75
    owned = "hall" if connection.vendor == "sqlite" else "node"
    assert f"another runtime owns this {owned}: process {hall.worker_pid} on {socket.gethostname()}" in hall.output()
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
    hung_call = queue("deaf", "sleep")
    eventually(lambda: Call.objects.get(pk=hung_call.pk).status == "running")
    processes = hall.tagged_processes()
    take_alone()
    if victim in ("worker", "both"):
        os.kill(hall.worker_pid, signal.SIGSTOP if victim == "both" else signal.SIGKILL)
    if victim in ("guard", "both"):
        guard.kill()
    if victim == "both":
        # Guard and worker end together, so only the next start can clean up.
        os.kill(hall.worker_pid, signal.SIGKILL)
        guard.wait(PATIENCE)
        hall.start()
        eventually(lambda: not any(is_live(process) for process in processes), within=5)
        wait_for_status(hall, "deaf", "connected")
        return
    eventually(lambda: not hall.tagged_processes() and not hall.busy_ports(), within=2)
    assert guard.wait(PATIENCE) != 0
    eventually(lambda: live_runtime() is None)
    if victim == "guard":  # the worker had time for an orderly stop
        assert current_lease_id() is None
        hung_call.refresh_from_db()
        assert (hung_call.status, hung_call.error_kind) == ("failed", "lost")
    if victim == "worker":
        assert true_status(member("plain"), live_ids=()) == "disconnected"


def test_no_call_is_lost_or_runs_twice_after_a_kill_under_load(hall: Hall) -> None:
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
    outcomes = collections.Counter(Call.objects.values_list("status", "error_kind"))
    assert set(outcomes) <= {("succeeded", ""), ("failed", "lost")}
    assert sum(outcomes.values()) == 200
    calls = [json.loads(line) for line in (folder / "calls-one.log").read_text().splitlines()]
    echoes = collections.Counter(arguments["text"] for name, arguments in calls if name == "echo")
    assert max(echoes.values()) == 1
    lost_call = Call.objects.filter(error_kind="lost").first()
    if lost_call is not None:
        assert "member 'one'" in lost_call.error_message


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
    assert current_lease_id() is None


@pytest.mark.alone
def test_a_hung_member_is_stopped_within_five_seconds_and_its_call_is_lost(hall: Hall) -> None:
    hall.add("hung", "ignore-term", timeout=60)
    hall.add("deaf", "ignore-term")
    guard = hall.start()
    wait_for_status(hall, "hung", "connected")
    wait_for_status(hall, "deaf", "connected")
    running_call = queue("hung", "sleep")
    eventually(lambda: Call.objects.get(pk=running_call.pk).status == "running")
    take_alone()
    watch = Stopwatch()
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(PATIENCE) == 0
    assert watch.seconds < 5
    running_call.refresh_from_db()
    assert (running_call.status, running_call.error_kind) == ("failed", "lost")
    assert "the runtime was stopped" in running_call.error_message


@pytest.mark.alone
@pytest.mark.parametrize(
    ("signal_number", "within"), [(signal.SIGINT, 5), (signal.SIGKILL, 2)], ids=["SIGINT", "SIGKILL"]
)
def test_a_stop_ends_in_time_while_the_database_does_not_respond(
    hall: Hall, signal_number: signal.Signals, within: float
) -> None:
    hall.add("one")
    hall.add("deaf", "fork", "ignore-term")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    wait_for_status(hall, "deaf", "connected")
    worker = psutil.Process(hall.worker_pid)
    take_alone()
    with transaction.atomic():
        GuildMember.objects.update(desired_state="running")  # no other process can write to these rows any more
        guard.send_signal(signal_number)
        eventually(lambda: not hall.tagged_processes() and not is_live(worker), within=within)
    share_again()
    assert guard.wait(PATIENCE) == (70 if signal_number == signal.SIGINT else -signal_number)
    # The next runtime corrects the rows that could not be written.
    assert set(GuildMember.objects.values_list("status", flat=True)) == {"connected"}
    hall.start()
    assert call("one", "echo", {"text": "again"}).status == "succeeded"


def test_a_stop_waits_for_a_call_that_ends_soon(hall: Hall) -> None:
    hall.add("one")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    running_call = queue("one", "sleep", {"seconds": 1.5})
    eventually(lambda: Call.objects.get(pk=running_call.pk).status == "running")
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(PATIENCE) == 0
    running_call.refresh_from_db()
    assert running_call.status == "succeeded"


@pytest.mark.alone
def test_a_second_signal_ends_the_runtime_within_a_second(hall: Hall) -> None:
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


def test_calls_queued_without_a_runtime_run_when_the_next_one_starts(hall: Hall) -> None:
    hall.add("one")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    guard.send_signal(signal.SIGTERM)
    guard.wait(PATIENCE)
    queued_call = queue("one", "echo", {"text": "later"})
    assert not wait_for_call(queued_call.pk, 0.3)
    hall.start()
    assert wait_for_call(queued_call.pk, 15)
    queued_call.refresh_from_db()
    assert queued_call.status == "succeeded"


def test_a_runtime_that_lost_its_lease_ends_its_members_and_exits(hall: Hall) -> None:
    hall.add("one")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    with transaction.atomic():
        give_lease_to_another_runtime()
    assert guard.wait(PATIENCE) == 75
    eventually(lambda: not hall.tagged_processes())
    # It may not write any more, because only the new owner of the lease may change the row.
    assert member("one").status == "connected"


def test_members_processes_are_not_zombies_after_crashes(hall: Hall) -> None:
    hall.add("one", "fork")
    guard = hall.start()
    wait_for_status(hall, "one", "connected")
    os.kill(member("one").pid, signal.SIGKILL)
    wait_for_status(hall, "one", "error")
    wait_for_status(hall, "one", "connected")
    own_pids = {guard.pid, hall.worker_pid}

    def zombies() -> list[int]:
        # Read all at once, because a process may end between two reads.
        infos = (process.info for process in psutil.process_iter(["ppid", "status", "pid"]))
        return [p["pid"] for p in infos if p["ppid"] in own_pids and p["status"] == psutil.STATUS_ZOMBIE]

    eventually(lambda: not zombies())


@pytest.mark.skipif(not settings.BROKER_URL.startswith("redis"), reason="needs REDIS_URL")
def test_keys_in_redis_contain_the_id_of_the_hall(hall: Hall) -> None:
    import redis

    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    assert call("one", "echo", {"text": "hi"}).status == "succeeded"
    keys = [key.decode() for key in redis.Redis.from_url(settings.BROKER_URL).keys("*guildhall*")]
    hall_id = str(lease.hall().hall_id)
    assert [key for key in keys if hall_id in key]


def test_rabbitmq_has_a_queue_for_the_node_and_notifications_arrive_there(hall: Hall) -> None:
    url = needs_service("AMQP_URL")
    hall.add("one")
    with Connection(url) as rabbitmq:
        queue = node_queue()(rabbitmq.default_channel)

        def state() -> Any:
            return queue.queue_declare()  # RabbitMQ refuses another declaration with other properties

        assert state().consumer_count == 0
        guard = hall.start(CELERY_BROKER_URL=url)
        eventually(lambda: state().consumer_count == 1, what="the runtime consumes notifications")
        wait_for_status(hall, "one", "connected")
        result = _invoke(hall, url)
        assert json.loads(result.stdout)["status"] == "succeeded", result.stderr
        assert "cannot be notified" not in result.stderr
        guard.send_signal(signal.SIGTERM)
        guard.wait(PATIENCE)
        eventually(lambda: state().consumer_count == 0)
        _invoke(hall, url, "--no-wait")
        eventually(lambda: state().message_count == 1, what="the notification waits for the next runtime")
        queue.delete()
        _invoke(hall, url, "--no-wait")
        with pytest.raises(rabbitmq.channel_errors, match="no queue"):  # a notification does not declare it again
            queue(rabbitmq.default_channel).queue_declare(passive=True)
        hall_exchange()(rabbitmq.channel()).delete()


def test_the_runtime_receives_notifications_again_after_rabbitmq_was_away(hall: Hall) -> None:
    url = needs_service("AMQP_URL")
    proxy = make_proxy(url, 5672)
    hall.add("one")
    try:
        with Connection(url) as rabbitmq:
            queue = node_queue()(rabbitmq.default_channel)
            hall.start(CELERY_BROKER_URL=through(proxy, url))
            eventually(lambda: queue.queue_declare().consumer_count == 1, within=PATIENCE)
            proxy.kill()
            eventually(lambda: queue.queue_declare().consumer_count == 0, within=PATIENCE)
            wait_for_status(hall, "one", "connected")
            assert json.loads(_invoke(hall, url).stdout)["status"] == "succeeded"
            proxy.heal()
            eventually(lambda: queue.queue_declare().consumer_count == 1, within=PATIENCE, what=hall.output())
            queue.delete()
            hall_exchange()(rabbitmq.channel()).delete()
    finally:
        proxy.close()


def _invoke(hall: Hall, broker_url: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "invoke", "one", "echo", '{"text": "hi"}', "--json", *options],
        env=hall.environment(CELERY_BROKER_URL=broker_url), capture_output=True, text=True, timeout=30,
    )  # fmt: skip


class MuteBroker:
    """Accepts connections and never sends anything."""

    def __init__(self, scheme: str) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._clients: list[socket.socket] = []
        self.url = f"{scheme}://127.0.0.1:{self._server.getsockname()[1]}/0"
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


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
@pytest.mark.parametrize("broker", ["mute", "dead"])
def test_a_broker_that_is_mute_or_dead_delays_calls_and_loses_none(hall: Hall, broker: str, scheme: str) -> None:
    mute_broker = MuteBroker(scheme)
    url = mute_broker.url
    if broker == "dead":
        mute_broker.close()
    hall.add("one")
    guard = hall.start(CELERY_BROKER_URL=url)
    try:
        wait_for_status(hall, "one", "connected")
        result = _invoke(hall, url)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["status"] == "succeeded"
        watch = Stopwatch()
        guard.send_signal(signal.SIGTERM)
        guard.wait(PATIENCE)
        assert watch.seconds < 4
        assert hall.tagged_processes() == []
    finally:
        mute_broker.close()
