from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
from django.db import connection
from django.db.models.functions import Now

from mcp_runtime import lease
from mcp_runtime.errors import LeaseError
from roster.models import GuildMember, Hall

pytestmark = pytest.mark.django_db


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def hold(*, pid: int, host: str = "", started_at: float | None = None, heartbeat_age: float = 0) -> uuid.UUID:
    """A lease that somebody took."""
    lease.hall()
    lease_id = uuid.uuid4()
    Hall.objects.update(
        lease_id=lease_id,
        lease_host=host or socket.gethostname(),
        lease_pid=pid,
        lease_pid_started_at=lease._started_at(pid) if started_at is None else started_at,
        lease_taken_at=Now() - timedelta(hours=1),
        heartbeat_at=Now() - timedelta(seconds=heartbeat_age),
    )
    return lease_id


def refused() -> str:
    """What take() says when it will not."""
    with pytest.raises(LeaseError) as caught:
        lease.take()
    return str(caught.value)


# Taking -----------------------------------------------------------------------------------------------------------


def test_the_hall_is_made_once_and_keeps_its_identity() -> None:
    assert lease.hall().hall_id == lease.hall().hall_id
    assert Hall.objects.count() == 1


def test_a_free_lease_is_taken_in_our_name() -> None:
    lease_id = lease.take()
    row = Hall.objects.get()
    assert (row.lease_id, row.lease_host, row.lease_pid) == (lease_id, socket.gethostname(), os.getpid())
    assert row.lease_pid_started_at == lease._started_at(os.getpid())
    assert row.lease_taken_at
    assert row.heartbeat_at
    assert lease.live_holder() == lease.Holder(socket.gethostname(), os.getpid())


def test_a_live_holder_on_this_host_is_named_in_the_refusal(child: subprocess.Popen[bytes]) -> None:
    lease_id = hold(pid=child.pid)
    said = refused()
    assert f"process {child.pid} on {socket.gethostname()}" in said
    assert "Stop it first" in said
    assert Hall.objects.get().lease_id == lease_id


def test_a_dead_holder_on_this_host_loses_it_at_once(child: subprocess.Popen[bytes]) -> None:
    old = hold(pid=child.pid)
    child.kill()
    child.wait()
    assert lease.live_holder() is None
    assert lease.take() != old


def test_a_holder_that_is_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    hold(pid=child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert lease.live_holder() is None
    lease.take()


def test_another_process_that_got_the_holders_pid_is_not_the_holder(child: subprocess.Popen[bytes]) -> None:
    hold(pid=child.pid, started_at=lease._started_at(child.pid) - 0.01)
    assert lease.live_holder() is None
    lease.take()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil's start times stand still")
@pytest.mark.parametrize("step", [-3600, -1, 1, 3600])
def test_a_wall_clock_that_is_set_makes_no_living_holder_dead(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    lease_id = lease.take()
    created, booted = psutil.Process().create_time(), psutil.boot_time()
    # The kernel derives the time of the boot from the wall clock, and psutil the start of a process from that.
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + step)
    assert psutil.Process().create_time() == pytest.approx(created + step, abs=0.5)
    assert lease.live_holder() == lease.Holder(socket.gethostname(), os.getpid())
    refused()
    assert lease.renew(lease_id)


def test_elsewhere_than_on_linux_a_holder_is_told_by_what_psutil_says(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    created = psutil.Process(child.pid).create_time()
    hold(pid=child.pid, started_at=created)
    monkeypatch.setattr(lease.sys, "platform", "darwin")
    assert lease.live_holder() == lease.Holder(socket.gethostname(), child.pid)
    hold(pid=child.pid, started_at=created - 1)
    assert lease.live_holder() is None


@pytest.mark.parametrize("age", [0, Hall.LEASE_SECONDS - 2])
def test_a_holder_on_another_host_is_believed_while_its_heartbeat_is_young(age: float) -> None:
    hold(pid=1, host="elsewhere", started_at=0, heartbeat_age=age)
    assert lease.live_holder() == lease.Holder("elsewhere", 1)
    assert "process 1 on elsewhere" in refused()


def test_a_holder_on_another_host_loses_it_when_its_heartbeat_is_old() -> None:
    hold(pid=1, host="elsewhere", started_at=0, heartbeat_age=Hall.LEASE_SECONDS + 1)
    assert lease.live_holder() is None
    lease.take()


def test_a_holder_on_this_host_that_stopped_beating_loses_it_though_its_process_is_there(
    child: subprocess.Popen[bytes],
) -> None:
    hold(pid=child.pid, heartbeat_age=Hall.LEASE_SECONDS + 1)
    assert lease.live_holder() is None
    lease.take()


def test_a_row_without_a_pid_is_held_by_nobody() -> None:
    hold(pid=os.getpid())
    Hall.objects.update(lease_pid=None, lease_pid_started_at=None)
    assert lease.live_holder() is None


def test_a_hall_that_was_never_there_is_held_by_nobody() -> None:
    assert lease.live_holder() is None
    assert Hall.objects.count() == 0  # a look makes nothing


def test_between_looking_and_taking_somebody_else_may_be_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = lease.hall()
    hold(pid=os.getpid())
    monkeypatch.setattr(lease, "hall", lambda: seen)  # what it looked like a moment ago
    assert "a moment ago" in refused()


@pytest.mark.django_db(transaction=True)
def test_of_many_that_take_it_at_once_one_gets_it() -> None:
    lease.hall()
    barrier = threading.Barrier(8)
    taken: list[Any] = []

    def take() -> None:
        barrier.wait(10)
        try:
            taken.append(lease.take())
        except LeaseError as error:
            taken.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    winners = [end for end in taken if isinstance(end, uuid.UUID)]
    assert len(taken) == 8
    assert winners == [Hall.objects.get().lease_id]


# Keeping and giving back ------------------------------------------------------------------------------------------


def test_a_heartbeat_makes_the_lease_young_again() -> None:
    lease_id = lease.take()
    Hall.objects.update(heartbeat_at=Now() - timedelta(seconds=60))
    assert lease.renew(lease_id)
    assert lease.live_holder() is not None


def test_a_heartbeat_of_one_who_lost_it_changes_nothing_and_says_so() -> None:
    lost = lease.take()
    hold(pid=1, host="elsewhere", started_at=0, heartbeat_age=5)
    before = Hall.objects.get().heartbeat_at
    assert not lease.renew(lost)
    assert Hall.objects.get().heartbeat_at == before


def test_a_released_lease_can_be_taken_at_once() -> None:
    first = lease.take()
    lease.release(first)
    row = Hall.objects.get()
    assert (row.lease_id, row.lease_host, row.lease_pid, row.heartbeat_at) == (None, "", None, None)
    assert lease.live_holder() is None
    assert lease.take() != first


def test_one_who_lost_it_cannot_release_it() -> None:
    lost = lease.take()
    theirs = hold(pid=os.getpid())
    lease.release(lost)
    assert Hall.objects.get().lease_id == theirs


def test_rows_change_only_while_the_lease_is_held() -> None:
    GuildMember.objects.create(name="anna", directory="anna")
    lost = lease.take()
    assert GuildMember.objects.filter(lease.held_by(lost)).update(pid=1) == 1
    theirs = hold(pid=os.getpid())
    assert GuildMember.objects.filter(lease.held_by(lost)).update(pid=2) == 0
    assert GuildMember.objects.filter(lease.held_by(theirs)).update(pid=3) == 1
    assert GuildMember.objects.get().pid == 3
