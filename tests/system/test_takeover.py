"""A runtime that takes the hall from one that died, or froze: what readers see meanwhile, and who may take it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from mcp_runtime.rows import lease
from roster.models import GuildMember
from roster.models import Hall as HallRow
from tests.conftest import eventually
from tests.support.hall import PATIENCE, Hall, call, member, wait_for_status

pytestmark = pytest.mark.services


class RowWatch:
    """A reader that never stops looking: which members are connected, and under which lease, in one statement."""

    def __init__(self) -> None:
        self.seen: set[tuple[object, str, int | None]] = set()  # lease, member, pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        rows = GuildMember.objects.filter(status="connected")
        rows = rows.annotate(lease=HallRow.objects.filter(pk=1).values("lease_id")[:1])
        while not self._over.is_set():
            self.seen.update(rows.values_list("lease", "name", "pid"))
        connection.close()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_no_reader_sees_the_members_of_a_dead_runtime_connected_under_the_lease_of_the_next(hall: Hall) -> None:
    names = ["anna", "bob", "carl"]
    for name in names:
        hall.add(name)
    guard = hall.start()
    for name in names:
        wait_for_status(hall, name, "connected")
    dead, old_pids = lease.hall().lease_id, {member(name).pid for name in names}
    os.kill(hall.worker_pid, signal.SIGKILL)
    guard.wait(PATIENCE)

    watch = RowWatch()
    try:
        hall.start()
        for name in names:
            eventually(lambda name=name: member(name).pid not in {None, *old_pids}, within=PATIENCE)
    finally:
        watch.end()

    by_old = [seen for seen in watch.seen if seen[0] == dead]
    assert {name for _, name, _ in by_old} == set(names)  # it did look
    assert [seen for seen in watch.seen if seen[0] != dead and seen[2] in old_pids] == []


def test_a_runtime_that_finds_the_port_taken_leaves_the_hall_to_a_holder_that_may_only_be_slow(hall: Hall) -> None:
    hall.add("one")
    hall.start()
    wait_for_status(hall, "one", "connected")
    holder, pid = lease.hall().lease_id, hall.worker_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        HallRow.objects.update(heartbeat_at=Now() - timedelta(minutes=1))
        os.utime(hall.data_dir / "heartbeat", (0, 0))
        second = hall.popen([sys.executable, "-m", "mcp_runtime.runtime.guard"])
        assert second.wait(PATIENCE) == 69
        assert lease.hall().lease_id == holder
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"the gateway cannot listen on 127.0.0.1:{hall.gateway_port}" in hall.output()
    assert call("one", "echo", {"text": "undisturbed"}).status == "succeeded"
