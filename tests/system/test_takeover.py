"""A runtime that takes over the hall after another one ended or froze."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from roster.models import GuildMember, Node
from tests.conftest import eventually
from tests.support.hall import PATIENCE, Hall, call, member, wait_for_status
from tests.support.leases import current_lease_id

pytestmark = pytest.mark.services


class RowWatch:
    """Reads again and again, in one statement, which members are connected under which lease."""

    def __init__(self) -> None:
        self.states: set[tuple[object, str, int | None]] = set()  # lease, member, pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        rows = GuildMember.objects.filter(status="connected")
        rows = rows.annotate(lease=Node.objects.values("lease_id")[:1])
        while not self._end.is_set():
            self.states.update(rows.values_list("lease", "name", "pid"))
        connection.close()

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def test_members_of_a_dead_runtime_are_never_connected_under_the_next_lease(hall: Hall) -> None:
    names = ["anna", "bob", "carl"]
    for name in names:
        hall.add(name)
    guard = hall.start()
    for name in names:
        wait_for_status(hall, name, "connected")
    dead_lease, old_pids = current_lease_id(), {member(name).pid for name in names}
    os.kill(hall.worker_pid, signal.SIGKILL)
    guard.wait(PATIENCE)

    watch = RowWatch()
    try:
        hall.start()
        for name in names:
            eventually(lambda name=name: member(name).pid not in {None, *old_pids}, within=PATIENCE)
    finally:
        watch.end()

    old_states = [state for state in watch.states if state[0] == dead_lease]
    assert {name for _, name, _ in old_states} == set(names)  # there were reads before the takeover
    assert [state for state in watch.states if state[0] != dead_lease and state[2] in old_pids] == []


def test_a_second_runtime_leaves_the_lease_to_a_frozen_runtime_that_has_the_port(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    lease_id, pid = current_lease_id(), hall.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        Node.objects.update(heartbeat_at=Now() - timedelta(minutes=1))
        os.utime(hall.data_dir / "heartbeat", (0, 0))
        second = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"])
        assert second.wait(PATIENCE) == 69
        assert current_lease_id() == lease_id
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"the gateway cannot listen on 127.0.0.1:{hall.gateway_port}" in hall.output()
    assert call("one", "echo", {"text": "undisturbed"}).status == "succeeded"
