"""Clients of the hall in containers: some of each source, each with one call under way at a time."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

from bench.hall import wait_until
from tests.attack.client import Client
from tests.docker.stack import MEMBERS, Stack
from tests.storm.ledger import SILENT, Told
from tests.storm.load import FINISHED, WAYS, Call, of_row

CLIENTS_OF_A_SOURCE = 3
PAUSE = 0.2  # seconds between a client's calls
SETTLE_SECONDS = 45.0
ON_THE_WAY = 0.5  # seconds that an answer from before a fault may still take to its client


class Load:
    """`told`: what each client was told of each call, in the order in which they ended."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._over = threading.Event()
        self.told: list[Told] = []
        self.faults: list[str] = []  # of our own
        self._threads = [
            threading.Thread(target=self._work, args=(source, number))
            for source in WAYS
            for number in range(CLIENTS_OF_A_SOURCE)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_successes(self, since: float, seconds: float) -> float:
        """When the last source had its first success since, of the member that answers at once; monotonic seconds."""
        since += ON_THE_WAY

        def first(source: str) -> float | None:
            told = [one for one in list(self.told) if one.source == source and one.member == "quick"]
            return min((one.told_at for one in told if one.told_at > since and one.end == "succeeded"), default=None)

        return max(
            wait_until(lambda source=source: first(source), seconds, f"a call succeeds: {source}") for source in WAYS
        )

    def _work(self, source: str, number: int) -> None:
        try:
            with self._stack.client(source) as client:
                turn = 0
                while not self._over.wait(PAUSE):
                    turn += 1
                    for member in MEMBERS:
                        call = Call(f"{source}-{number}-{member}-{turn}", member, source)
                        self.told.append(WAYS[source](client, call, self._over))
        except Exception as error:  # noqa: BLE001 - a client that ended early is a fault of the trial, and is told
            self.faults.append(f"a client ({source}) ended with {type(error).__name__}: {error}")


def settled(stack: Stack, told: list[Told]) -> list[Told]:
    """With how the calls ended whose clients left before the end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    with stack.client("rest") as client:
        return [_settled(client, one, deadline) if one.url and one.end == SILENT else one for one in told]


def _settled(client: Client, told: Told, deadline: float) -> Told:
    while time.monotonic() < deadline:
        reply = client.rest("GET", told.url, Prefer="wait=5")
        if reply.status in (200, 202) and (row := json.loads(reply.body))["status"] in FINISHED:
            return replace(of_row(Call(told.key, told.member, told.source), row), asked_at=told.asked_at)
    return told
