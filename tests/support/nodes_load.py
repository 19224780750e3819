"""Load on a hall with several nodes: agents at all gateways behind a load balancer, and calls in the queue.

Each call has its own text, which the member writes into its log. `Load.records` has the answers of agents' calls.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import requests
from django.db import Error, connection

from roster.models import Call
from tests.conftest import eventually
from tests.support.agents import GatewayClient, make_token, messages_of
from tests.support.hall import PATIENCE, queue
from tests.support.nodes import Machine


@dataclass(frozen=True)
class Record:
    """The answer to an agent's call. `was_sent` is None if nobody knows."""

    text: str
    machine: str
    member: str
    is_success: bool
    was_sent: bool | None
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.machine}: {self.member}: {self.text}: {self.detail}"


class Load:
    def __init__(self, machines: Sequence[Machine], names: Sequence[str]) -> None:
        self.in_service = list(machines)
        self.records: list[Record] = []
        self.queued: dict[int, str] = {}  # id of the call -> its text
        self._names = names
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._busy = Counter[str]()
        self._turns = itertools.count()
        clients = [self._clients(machines, make_token()) for _ in range(4)]
        self._threads = [
            threading.Thread(target=self._call_as_agent, args=(number, client)) for number, client in enumerate(clients)
        ]
        self._threads += [threading.Thread(target=self._queue)]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        return len(self.records) + len(self.queued)

    def wait_for_calls(self, count: int) -> None:
        before = self.count
        eventually(lambda: self.count >= before + count, within=2 * PATIENCE, what="calls go on")

    def take_out(self, machine: Machine) -> None:
        """Send no new requests there, and wait for the others, as a load balancer does before an update."""
        with self._lock:
            self.in_service.remove(machine)
        eventually(lambda: self._busy[machine.name] == 0, within=PATIENCE, what="its requests end")

    def put_in(self, machine: Machine) -> None:
        with self._lock:
            self.in_service.append(machine)

    def end(self) -> list[Record]:
        """Returns the records of agents' calls that failed."""
        self._end.set()
        for thread in self._threads:
            thread.join()
        return [record for record in self.records if not record.is_success]

    @staticmethod
    def _clients(machines: Iterable[Machine], token: str) -> dict[str, GatewayClient]:
        """One session for all gateways."""
        clients = {machine.name: GatewayClient(machine, token) for machine in machines}
        headers = next(iter(clients.values())).begin().http.headers
        for client in clients.values():
            client.http.headers.update(headers)
        return clients

    def _call_as_agent(self, number: int, clients: dict[str, GatewayClient]) -> None:
        names = itertools.cycle(self._names)
        for turn in itertools.count():
            if self._end.wait(0.02):
                break
            with self._lock:
                machine = self.in_service[next(self._turns) % len(self.in_service)]
                self._busy[machine.name] += 1
            try:
                record = _call(clients[machine.name], machine.name, next(names), f"agent-{number}-{turn}")
            finally:
                with self._lock:
                    self._busy[machine.name] -= 1
            self.records.append(record)

    def _queue(self) -> None:
        names = itertools.cycle(self._names)
        for turn in itertools.count():
            if self._end.wait(0.1):
                break
            text = f"queued-{turn}"
            try:
                self.queued[queue(next(names), "echo", {"text": text}).pk] = text
            except Error:  # not accepted
                connection.close()
        connection.close()


def _call(client: GatewayClient, machine: str, name: str, text: str) -> Record:
    try:
        reply = client.send("tools/call", name=f"{name}__echo", arguments={"text": text})
        message = messages_of(reply)[-1]
    except requests.ConnectionError as error:
        # Nothing listens there, so the load balancer would use another gateway. Any other error may come later.
        return Record(text, machine, name, False, False if "refused" in str(error) else None, str(error))
    except (requests.RequestException, KeyError, IndexError, ValueError) as error:
        return Record(text, machine, name, False, None, repr(error))
    if "result" in message and message["result"]["content"][0]["text"] == text:
        return Record(text, machine, name, True, True)
    data = message.get("error", {}).get("data") or {}
    was_sent = False if data.get("sent") is False or reply.status_code in (429, 503) else None
    return Record(text, machine, name, False, was_sent, json.dumps(message)[:300])


def runs_of(machines: Iterable[Machine], names: Iterable[str]) -> Counter[str]:
    """How often each text reached a member, by the logs of the members on all machines."""
    runs = Counter[str]()
    for machine, name in itertools.product(machines, names):
        log = machine.members_dir / name / f"calls-{name}.log"
        for line in log.read_text().splitlines() if log.exists() else []:
            tool, arguments = json.loads(line)
            runs[arguments["text"]] += tool == "echo"
    return runs


def contradictions(load: Load, runs: Counter[str]) -> list[str]:
    """Each call for which its caller or its row says something else than the members' logs."""
    faults = [f"{text} ran {count} times" for text, count in runs.items() if count > 1]
    for record in load.records:
        count = runs[record.text]
        if record.is_success and count != 1:
            faults.append(f"{record} succeeded, and ran {count} times")
        if record.was_sent is False and count:
            faults.append(f"{record} was said not to be sent, and ran")
    rows = Call.objects.in_bulk(list(load.queued))
    for pk, text in load.queued.items():
        row, count = rows.get(pk), runs[text]
        if row is None or row.finished_at is None:
            faults.append(f"{text} never ended")
        elif row.status == Call.Status.SUCCEEDED and count != 1:
            faults.append(f"{text} succeeded, and ran {count} times")
        elif row.error_kind == "unavailable" and count:
            faults.append(f"{text} was said to be unavailable, and ran")
    return faults
