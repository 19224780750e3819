"""What clients see while the hall, or a part of it, is stopped in an orderly way."""

from __future__ import annotations

import collections
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import requests

from mcp_runtime.rows import lease
from roster.models import Call
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token, on_the_roster
from tests.support.hall import PATIENCE, Hall, bring_up, command_of, family, member, queue
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.services


def in_threads(*work: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_who_wait_for_calls_are_told_where_to_look_when_the_hall_is_stopped(hall: Hall, workers: int) -> None:
    hall.add("one", max_concurrency=4)
    up = bring_up(hall, "one", GUILD_HALL_WEB_WORKERS=str(workers))
    headers = {"Authorization": f"Bearer {make_token()}", "Prefer": "wait=30"}
    answers: list[requests.Response] = []

    def call() -> None:  # some of them run, the others are queued
        url = f"{hall.url}/api/members/one/tools/sleep/invoke/"
        answers.append(requests.post(url, json={"arguments": {"seconds": 60}}, headers=headers, timeout=40))

    clients = in_threads(*[call] * 8)
    eventually(lambda: Call.objects.filter(status="running").exists())
    eventually(lambda: Call.objects.count() == 8)
    assert Call.objects.filter(status="queued").exists()
    time.sleep(0.2)  # until they wait: nobody can see that from outside
    up.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(PATIENCE)
    assert up.wait(PATIENCE) == 0

    assert [answer.status_code for answer in answers] == [202] * 8
    assert {answer.headers["Location"] for answer in answers} == {
        f"/api/calls/{pk}/" for pk in Call.objects.values_list("pk", flat=True)
    }
    assert "Traceback" not in hall.output()


def test_a_call_that_ends_soon_is_answered_though_the_hall_is_being_stopped(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    headers = {"Authorization": f"Bearer {make_token()}", "Prefer": "wait=30"}
    answers: list[requests.Response] = []

    def call() -> None:
        url = f"{hall.url}/api/members/one/tools/sleep/invoke/"
        answers.append(requests.post(url, json={"arguments": {"seconds": 0.4}}, headers=headers, timeout=40))

    (client,) = in_threads(call)
    eventually(lambda: Call.objects.filter(status="running").exists())
    up.send_signal(signal.SIGTERM)
    client.join(PATIENCE)
    assert up.wait(PATIENCE) == 0
    assert (answers[0].status_code, answers[0].json()["status"]) == (200, "succeeded")


# The runtime alone ------------------------------------------------------------------------------------------------


class Clients:
    """Agents that call without a pause, each on a connection that it keeps; what each call met."""

    def __init__(self, hall: Hall, count: int) -> None:
        token = make_token()
        self.met: collections.Counter[str] = collections.Counter()
        self._over = threading.Event()
        self._agents = [GatewayClient(hall, token).begin() for _ in range(count)]
        self._threads = in_threads(*[lambda agent=agent: self._call(agent) for agent in self._agents])  # type: ignore[misc]

    def _call(self, agent: GatewayClient) -> None:
        while not self._over.is_set():
            try:
                response = agent.send("tools/call", name="one__echo", arguments={"text": "hi"})
            except requests.ConnectionError:
                self.met["cut"] += 1
                continue
            told = response.text
            self.met["answered" if '"result"' in told else f"{response.status_code}: {told}"] += 1

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@contextmanager
def clients(hall: Hall, count: int) -> Iterator[Clients]:
    calling = Clients(hall, count)
    try:
        yield calling
    finally:
        calling.end()


@pytest.mark.parametrize("program", ["mcp_runtime.runtime.worker", "/mcp_runtime/runtime/guard.py"])
def test_agents_are_refused_nothing_while_the_runtime_is_stopped_and_started_again(hall: Hall, program: str) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    on_the_roster(hall, "one")
    before = lease.hall().lease_id
    with clients(hall, 8) as calling:
        eventually(lambda: calling.met["answered"] > 100)
        next(one for one in family(up) if program in command_of(one)).terminate()
        eventually(lambda: lease.hall().lease_id not in (None, before), within=PATIENCE)
        answered = calling.met["answered"]
        eventually(lambda: calling.met["answered"] > answered + 100, within=PATIENCE)
    assert set(calling.met) == {"answered"}, calling.met
    assert "starting it again" in hall.output()
    assert "Traceback" not in hall.output()


def test_agents_are_refused_at_once_when_nobody_starts_the_runtime_again(hall: Hall) -> None:
    hall.add("slow")
    up = bring_up(hall, "slow")
    agent = on_the_roster(hall, "slow")
    running = queue("slow", "sleep", {"seconds": 60})
    eventually(lambda: Call.objects.get(pk=running.pk).status == "running")
    up.send_signal(signal.SIGTERM)  # the runtime lives on for 2.5 s, for the call that runs
    eventually(lambda: "stopping" in hall.output())
    time.sleep(0.5)
    assert member("slow").status == "connected"
    watch = Stopwatch()
    with pytest.raises(requests.ConnectionError):
        agent.send("ping")
    assert watch.seconds < 1
    assert up.wait(PATIENCE) == 0
