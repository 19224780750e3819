"""A full disk: new calls are refused, accepted calls end, and the hall continues when there is space again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.conftest import eventually
from tests.storm.surroundings import Disk
from tests.support.hall import PATIENCE, Hall, command_of, family, roster, wait_for_end_of, wait_for_web
from tests.support.machine import Stopwatch, take_alone

WAITING_TEXT = "the start waits until it can be used"


@pytest.fixture
def disk(hall: Hall) -> Iterator[Disk]:
    hall.data_dir.mkdir()
    disk = Disk(hall.data_dir)
    if disk.why_not:
        pytest.skip(disk.why_not)
    yield disk
    hall.end()
    disk.end()


class Client:
    """A client of REST at a hall with the member `anna`. The database of the hall is on the full disk."""

    def __init__(self, hall: Hall) -> None:
        hall.add("anna")
        self.up = hall.up(DATABASE_URL=f"sqlite:///{hall.data_dir / 'hall.sqlite3'}")
        self._hall = hall
        eventually((hall.data_dir / "local-token").exists, within=PATIENCE, what="the database is prepared")
        wait_for_web(hall)
        self._token = (hall.data_dir / "local-token").read_text().strip()
        eventually(lambda: self.roster() == {"anna": "connected"}, within=PATIENCE)

    def roster(self) -> dict[str, str]:
        return roster(self._hall, self._token)

    def call(self, tool: str, arguments: dict[str, Any]) -> requests.Response:
        return self._ask("POST", f"members/anna/tools/{tool}/invoke", {"arguments": arguments})

    def status(self, pk: int) -> str:
        return str(self._ask("GET", f"calls/{pk}").json()["status"])

    def call_until_refused(self) -> list[int]:
        """Call until a call is refused. Returns the ids of the calls that were accepted."""
        call_ids = []
        for _ in range(400):
            response = self.call("echo", {"text": "x" * 100_000})
            if response.status_code == 503:
                assert response.json()["code"] == "database_unavailable"
                return call_ids
            call_ids.append(response.json()["id"])
        pytest.fail("the disk is full, and all calls were accepted")

    def _ask(self, verb: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {self._token}"}
        return requests.request(verb, f"{self._hall.url}/api/{path}/", json=body, headers=headers, timeout=40)


def test_a_full_disk_refuses_new_calls_and_loses_no_accepted_call(hall: Hall, disk: Disk) -> None:
    client = Client(hall)
    running_id = client.call("sleep", {"seconds": 2}).json()["id"]
    disk.fill()
    call_ids = [running_id, *client.call_until_refused()]
    assert client.roster() == {"anna": "connected"}
    disk.empty()
    for pk in call_ids:
        eventually(lambda pk=pk: client.status(pk) == "succeeded", within=PATIENCE, what=f"call {pk} ends")  # type: ignore[misc]
    eventually(lambda: client.call("echo", {"text": "again"}).status_code == 202, what="calls are accepted again")
    assert "Traceback" not in hall.output()


def restart_without_space(hall: Hall, disk: Disk, signal_number: signal.Signals) -> Client:
    """End the runtime with a signal while the disk is full, and wait until the next runtime waits for space."""
    client = Client(hall)
    disk.fill()
    client.call_until_refused()
    next(part for part in family(client.up) if command_of(part).endswith("mcp_runtime.runtime.worker")).send_signal(
        signal_number
    )
    eventually(lambda: WAITING_TEXT in hall.output(), within=PATIENCE, what="the runtime waits")
    return client


def test_a_runtime_killed_on_a_full_disk_waits_for_space_with_one_warning(hall: Hall, disk: Disk) -> None:
    client = restart_without_space(hall, disk, signal.SIGKILL)
    watch = Stopwatch()
    eventually(lambda: watch.elapsed > 6)  # several tries
    assert hall.output().count(WAITING_TEXT) == 1
    assert hall.output().count("starting it again") == 1
    assert client.roster() == {"anna": "disconnected"}
    disk.empty()
    eventually(lambda: client.roster() == {"anna": "connected"}, within=PATIENCE)
    eventually(lambda: client.call("echo", {"text": "again"}).status_code == 202, what="calls are accepted again")
    assert "Traceback" not in hall.output()


@pytest.mark.alone
def test_a_hall_whose_runtime_waits_for_space_ends_on_sigterm(hall: Hall, disk: Disk) -> None:
    client = restart_without_space(hall, disk, signal.SIGTERM)
    processes = family(client.up)
    take_alone()
    client.up.terminate()
    wait_for_end_of(processes, within=5)
    assert client.up.wait(PATIENCE) == 0
    assert "Traceback" not in hall.output()
