"""Clients of the hall in containers: some for each source, and each makes one call at a time."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

from bench.hall import wait_until
from tests.attack.client import Client
from tests.docker.stack import Stack
from tests.storm.ledger import BROKEN, REFUSED, SILENT, CallRecord
from tests.storm.load import CALL_FUNCTIONS, FINISHED, Call, record_of_row

CLIENTS_OF_A_SOURCE = 3
PAUSE = 0.2  # seconds between a client's calls
SETTLE_SECONDS = 45.0
ARRIVAL_SECONDS = 0.5  # seconds that a response from before a fault may need to reach its client


class Load:
    """`records`: the outcome of each call for its client, in the order in which the calls ended."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stop_event = threading.Event()
        self.records: list[CallRecord] = []
        self.faults: list[str] = []  # of the clients themselves
        self._threads = [
            threading.Thread(target=self._work, args=(source, number))
            for source in CALL_FUNCTIONS
            for number in range(CLIENTS_OF_A_SOURCE)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        for thread in self._threads:
            thread.join()

    def wait_for_successes(self, since: float, seconds: float) -> float:
        """Wait until each source has a success after `since`, at a quick member. Returns the monotonic time."""
        since += ARRIVAL_SECONDS

        def first_success(source: str) -> float | None:
            quick = self._stack.shape.quick_members
            records = [record for record in list(self.records) if record.source == source and record.member in quick]
            return min(
                (record.ended_at for record in records if record.ended_at > since and record.end == "succeeded"),
                default=None,
            )

        return max(
            wait_until(lambda source=source: first_success(source), seconds, f"a call succeeds: {source}")
            for source in CALL_FUNCTIONS
        )

    def _work(self, source: str, number: int) -> None:
        try:
            with self._stack.client(source) as client:
                turn = 0
                while not self._stop_event.wait(PAUSE):
                    turn += 1
                    for member in self._stack.shape.members:
                        call = Call(f"{source}-{number}-{member}-{turn}", member, source)
                        self.records.append(from_balancer(CALL_FUNCTIONS[source](client, call, self._stop_event)))
        except Exception as error:  # noqa: BLE001 - a client that ends early is a fault of the trial
            self.faults.append(f"a client ({source}) ended with {type(error).__name__}: {error}")


def from_balancer(record: CallRecord) -> CallRecord:
    """The hall never responds 502 or 504. A load balancer does it if it lost a connection. The call may have run."""
    return replace(record, end=BROKEN) if record.end == REFUSED and record.kind in ("502", "504") else record


def settle(stack: Stack, records: list[CallRecord]) -> list[CallRecord]:
    """The records with the final outcomes of calls whose clients left early."""
    deadline = time.monotonic() + SETTLE_SECONDS
    with stack.client("rest") as client:
        return [
            _settle(client, record, deadline) if record.url and record.end == SILENT else record for record in records
        ]


def _settle(client: Client, record: CallRecord, deadline: float) -> CallRecord:
    while time.monotonic() < deadline:
        reply = client.rest("GET", record.url, Prefer="wait=5")
        if reply.status in (200, 202) and (row := json.loads(reply.body))["status"] in FINISHED:
            return replace(
                record_of_row(Call(record.key, record.member, record.source), row), called_at=record.called_at
            )
    return record
