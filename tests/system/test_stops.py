"""The responses that clients get during an orderly stop of the hall or of a part of it."""

from __future__ import annotations

import collections
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import requests

from roster.models import Call
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token, wait_for_roster
from tests.support.hall import PATIENCE, Hall, bring_up, command_of, family, member, queue
from tests.support.leases import current_lease_id
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.services


def in_threads(*functions: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("workers", [1, 2])
def test_waiting_clients_get_the_address_of_their_call_when_the_hall_stops(hall: Hall, workers: int) -> None:
    hall.add("one", max_concurrency=4)
    up = bring_up(hall, "one", GUILD_HALL_WEB_WORKERS=str(workers))
    headers = {"Authorization": f"Bearer {make_token()}", "Prefer": "wait=30"}
    responses: list[requests.Response] = []

    def call() -> None:  # some of the calls run, and the other calls are queued
        url = f"{hall.url}/api/members/one/tools/sleep/invoke/"
        responses.append(requests.post(url, json={"arguments": {"seconds": 60}}, headers=headers, timeout=40))

    clients = in_threads(*[call] * 8)
    eventually(lambda: Call.objects.filter(status="running").exists())
    eventually(lambda: Call.objects.count() == 8)
    assert Call.objects.filter(status="queued").exists()
    time.sleep(0.2)  # until all clients wait, which cannot be seen from outside
    up.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(PATIENCE)
    assert up.wait(PATIENCE) == 0

    assert [response.status_code for response in responses] == [202] * 8
    assert {response.headers["Location"] for response in responses} == {
        f"/api/calls/{pk}/" for pk in Call.objects.values_list("pk", flat=True)
    }
    assert "Traceback" not in hall.output()


def test_a_call_that_ends_soon_gets_its_result_while_the_hall_stops(hall: Hall) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    headers = {"Authorization": f"Bearer {make_token()}", "Prefer": "wait=30"}
    responses: list[requests.Response] = []

    def call() -> None:
        url = f"{hall.url}/api/members/one/tools/sleep/invoke/"
        responses.append(requests.post(url, json={"arguments": {"seconds": 0.4}}, headers=headers, timeout=40))

    (client,) = in_threads(call)
    eventually(lambda: Call.objects.filter(status="running").exists())
    up.send_signal(signal.SIGTERM)
    client.join(PATIENCE)
    assert up.wait(PATIENCE) == 0
    assert (responses[0].status_code, responses[0].json()["status"]) == (200, "succeeded")


# The runtime alone ------------------------------------------------------------------------------------------------


class Clients:
    """Clients that call without a pause, each on one connection. Counts the outcomes of their calls."""

    def __init__(self, hall: Hall, count: int) -> None:
        token = make_token()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._end = threading.Event()
        self._clients = [GatewayClient(hall, token).begin() for _ in range(count)]
        self._threads = in_threads(*[lambda agent=agent: self._call(agent) for agent in self._clients])  # type: ignore[misc]

    def _call(self, agent: GatewayClient) -> None:
        while not self._end.is_set():
            try:
                response = agent.send("tools/call", name="one__echo", arguments={"text": "hi"})
            except requests.ConnectionError:
                self.outcomes["cut"] += 1
                continue
            text = response.text
            self.outcomes["answered" if '"result"' in text else f"{response.status_code}: {text}"] += 1

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@contextmanager
def clients(hall: Hall, count: int) -> Iterator[Clients]:
    load = Clients(hall, count)
    try:
        yield load
    finally:
        load.end()


@pytest.mark.parametrize("program", ["mcp_runtime.runtime.worker", "/mcp_runtime/runtime/guard.py"])
def test_no_request_fails_while_the_runtime_restarts(hall: Hall, program: str) -> None:
    hall.add("one")
    up = bring_up(hall, "one")
    wait_for_roster(hall, "one")
    lease_id = current_lease_id()
    with clients(hall, 8) as load:
        eventually(lambda: load.outcomes["answered"] > 100)
        next(process for process in family(up) if program in command_of(process)).terminate()
        eventually(lambda: current_lease_id() not in (None, lease_id), within=PATIENCE)
        count = load.outcomes["answered"]
        eventually(lambda: load.outcomes["answered"] > count + 100, within=PATIENCE)
    assert set(load.outcomes) == {"answered"}, load.outcomes
    eventually(lambda: "starting it again" in hall.output())
    assert "Traceback" not in hall.output()


def test_clients_are_refused_at_once_while_the_whole_hall_stops(hall: Hall) -> None:
    hall.add("slow")
    up = bring_up(hall, "slow")
    agent = wait_for_roster(hall, "slow")
    call_row = queue("slow", "sleep", {"seconds": 60})
    eventually(lambda: Call.objects.get(pk=call_row.pk).status == "running")
    up.send_signal(signal.SIGTERM)  # the runtime waits 2.5 s for the running call
    eventually(lambda: "stopping" in hall.output())
    time.sleep(0.5)
    assert member("slow").status == "connected"
    watch = Stopwatch()
    with pytest.raises(requests.ConnectionError):
        agent.send("ping")
    assert watch.seconds < 1
    assert up.wait(PATIENCE) == 0
