"""A client of `/events`: it reads the stream in its own thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests

from tests.conftest import eventually


@dataclass(frozen=True)
class ReceivedEvent:
    id: str
    kind: str
    data: dict[str, Any]


class EventListener:
    """The events so far, in their order. `is_over` when the server has ended the stream."""

    def __init__(self, response: requests.Response) -> None:
        self.response = response
        self.events: list[ReceivedEvent] = []
        self.comments = 0
        self.is_over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            for line in self.response.iter_lines(chunk_size=1, decode_unicode=True):
                name, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    fields[name] = value
                elif "event" in fields:
                    self.events.append(ReceivedEvent(fields["id"], fields["event"], json.loads(fields["data"])))
                    fields = {}
        except (requests.RequestException, AttributeError):  # the test closed the connection
            pass
        self.is_over = True

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events if event.kind == kind]

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """The data of the events of this kind, once there are so many."""
        eventually(lambda: len(self.of(kind)) >= count, within=20, what=f"{count} events {kind!r}: {self.events}")
        return self.of(kind)

    @property
    def last_id(self) -> str:
        return self.events[-1].id


@contextmanager
def listen(url: str, token: str, *, last_id: str = "", **params: Any) -> Iterator[EventListener]:
    headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": last_id} if last_id else {})
    with requests.Session() as session:
        session.trust_env = False
        with session.get(f"{url}/events", headers=headers, params=params, stream=True, timeout=30) as response:
            assert response.status_code == 200, response.text
            assert response.headers["content-type"] == "text/event-stream"
            yield EventListener(response)
