from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import OperationalError, connection
from django.db.models.functions import Now

from mcp_runtime.protocol.errors import LeaseError
from mcp_runtime.rows import lease
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember, Hall, Node
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db

on_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has a lease for each node")
on_postgresql = pytest.mark.skipif(connection.vendor == "sqlite", reason="a hall on SQLite has one node")


@pytest.fixture(autouse=True)
def long_lease() -> None:
    """The lease lasts as long as in a hall."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def write_lease(
    *, pid: int, host: str = "", runtime: RuntimeId | None = None, heartbeat_age: float = 0, node: str = "main"
) -> uuid.UUID:
    """Writes a lease of another runtime into the row."""
    lease.hall()
    lease_id = uuid.uuid4()
    values = {
        "lease_id": lease_id,
        "host": host or socket.gethostname(),
        "pid": pid,
        "identity": str(runtime or RuntimeId.of(pid)),
        "started_at": Now() - timedelta(hours=1),
        "heartbeat_at": Now() - timedelta(seconds=heartbeat_age),
    }
    Node.objects.update_or_create(name=node, defaults=values)
    return lease_id


OTHER_HOST_RUNTIME = RuntimeId(1, 4711, "4026531836", "another")


def refusal_text() -> str:
    """The text of the refusal of take()."""
    with pytest.raises(LeaseError) as error:
        lease.take()
    return str(error.value)


# Taking -----------------------------------------------------------------------------------------------------------


def test_the_row_of_the_hall_is_created_once_and_keeps_its_id() -> None:
    assert lease.hall().hall_id == lease.hall().hall_id
    assert Hall.objects.count() == 1


def test_a_free_lease_is_taken_in_the_name_of_this_process() -> None:
    lease_id = lease.take()
    row = Node.objects.get()
    assert (row.lease_id, row.host, row.pid) == (lease_id, socket.gethostname(), os.getpid())
    assert row.identity == str(RuntimeId.own())
    assert row.started_at
    assert row.heartbeat_at
    assert lease.live_holder() == lease.Holder(socket.gethostname(), os.getpid())


def test_a_refusal_names_the_live_holder_on_this_host(child: subprocess.Popen[bytes]) -> None:
    lease_id = write_lease(pid=child.pid)
    text = refusal_text()
    assert f"process {child.pid} on {socket.gethostname()}" in text
    assert "Stop it first" in text
    assert Node.objects.get().lease_id == lease_id


def test_a_dead_holder_on_this_host_loses_the_lease_at_once(child: subprocess.Popen[bytes]) -> None:
    old_lease_id = write_lease(pid=child.pid)
    child.kill()
    child.wait()
    assert lease.live_holder() is None
    assert lease.take() != old_lease_id


def test_a_holder_that_is_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    write_lease(pid=child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert lease.live_holder() is None
    lease.take()


def test_another_process_with_the_pid_of_the_holder_is_not_the_holder(child: subprocess.Popen[bytes]) -> None:
    runtime = RuntimeId.of(child.pid)
    write_lease(pid=child.pid, runtime=dataclasses.replace(runtime, started=runtime.started - 1))
    assert lease.live_holder() is None
    lease.take()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil's start times stand still")
@pytest.mark.parametrize("step", [-3600, -1, 1, 3600])
def test_a_change_of_the_wall_clock_does_not_make_a_live_holder_dead(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    lease_id = lease.take()
    created = psutil.Process().create_time()
    # The kernel derives the time of the boot from the wall clock, and psutil the start of a process from that.
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: created + step)
    assert lease.live_holder() == lease.Holder(socket.gethostname(), os.getpid())
    refusal_text()
    assert lease.renew(lease_id)


def test_a_holder_in_another_container_is_live_by_its_heartbeat_and_not_by_its_pid() -> None:
    other_runtime = dataclasses.replace(RuntimeId.own(), pid=999_999_999, namespace="1")
    write_lease(pid=other_runtime.pid, runtime=other_runtime)
    refusal_text()
    write_lease(pid=other_runtime.pid, runtime=other_runtime, heartbeat_age=Node.LEASE_SECONDS + 1)
    lease.take()


def test_a_holder_on_a_clone_of_this_machine_is_live_by_its_heartbeat(child: subprocess.Popen[bytes]) -> None:
    write_lease(pid=child.pid, runtime=dataclasses.replace(RuntimeId.of(child.pid), started=1, boot="another"))
    refusal_text()


@pytest.mark.parametrize("age", [0, Node.LEASE_SECONDS - 2])
def test_a_holder_on_another_host_is_live_while_its_heartbeat_is_recent(age: float) -> None:
    write_lease(pid=1, host="elsewhere", runtime=OTHER_HOST_RUNTIME, heartbeat_age=age)
    assert lease.live_holder() == lease.Holder("elsewhere", 1)
    assert "process 1 on elsewhere" in refusal_text()


def test_a_holder_on_another_host_loses_the_lease_when_its_heartbeat_is_old() -> None:
    write_lease(pid=1, host="elsewhere", runtime=OTHER_HOST_RUNTIME, heartbeat_age=Node.LEASE_SECONDS + 1)
    assert lease.live_holder() is None
    lease.take()


def test_a_holder_without_a_heartbeat_loses_the_lease_although_its_process_exists(
    child: subprocess.Popen[bytes],
) -> None:
    write_lease(pid=child.pid, heartbeat_age=Node.LEASE_SECONDS + 1)
    assert lease.live_holder() is None
    lease.take()


def test_a_row_without_a_pid_has_no_holder() -> None:
    write_lease(pid=os.getpid())
    Node.objects.update(pid=None, identity="", heartbeat_at=None)
    assert lease.live_holder() is None


def test_a_hall_without_a_row_has_no_holder() -> None:
    assert lease.live_holder() is None
    assert Hall.objects.count() == 0  # the read creates no row


def test_another_process_can_take_the_lease_between_the_check_and_the_take(monkeypatch: pytest.MonkeyPatch) -> None:
    write_lease(pid=os.getpid())
    monkeypatch.setattr(lease, "require_free", lambda: None)  # as it was before the other process
    assert "a moment ago" in refusal_text()


@pytest.mark.parametrize("heartbeat_age", [Node.LEASE_SECONDS + 1, None], ids=["long ago", "never"])
def test_a_holder_with_a_heartbeat_between_the_check_and_the_take_keeps_the_lease(
    monkeypatch: pytest.MonkeyPatch, heartbeat_age: float | None
) -> None:
    lease_id = write_lease(pid=1, host="elsewhere", runtime=OTHER_HOST_RUNTIME, heartbeat_age=heartbeat_age or 0)
    if heartbeat_age is None:
        Node.objects.update(heartbeat_at=None)
    row = lease.require_free()
    assert lease.renew(lease_id)
    monkeypatch.setattr(lease, "require_free", lambda: row)
    assert "a moment ago" in refusal_text()
    assert Node.objects.get().lease_id == lease_id


@pytest.mark.parametrize("heartbeats", [0, 1])
def test_a_holder_that_died_loses_the_lease_whatever_its_last_heartbeat_was(heartbeats: int) -> None:
    for _ in range(20):  # some times end in a zero
        lease_id = lease.take()
        for _ in range(heartbeats):
            lease.renew(lease_id)
        Node.objects.update(identity=str(dataclasses.replace(RuntimeId.own(), started=1)))
        assert lease.take() != lease_id
        Node.objects.update(identity="", lease_id=None)


def test_a_holder_without_a_heartbeat_loses_the_lease() -> None:
    write_lease(pid=1, host="elsewhere", runtime=OTHER_HOST_RUNTIME)
    Node.objects.update(heartbeat_at=None)
    lease.take()


@pytest.mark.django_db(transaction=True)
def test_a_process_that_cannot_reset_the_rows_does_not_get_the_lease(child: subprocess.Popen[bytes]) -> None:
    old_lease_id = write_lease(pid=child.pid)
    child.kill()
    child.wait()

    def fail(node: Node) -> None:
        raise OperationalError("the disk is full")

    with pytest.raises(OperationalError):
        lease.take(fail)
    assert Node.objects.get().lease_id == old_lease_id


@pytest.mark.django_db(transaction=True)
def test_of_many_processes_at_once_only_one_gets_the_lease() -> None:
    lease.hall()
    barrier = threading.Barrier(8)
    results: list[Any] = []

    def take() -> None:
        barrier.wait(10)
        try:
            results.append(lease.take())
        except LeaseError as error:
            results.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    winners = [result for result in results if isinstance(result, uuid.UUID)]
    assert len(results) == 8
    assert winners == [Node.objects.get().lease_id]


@on_sqlite
@pytest.mark.django_db(transaction=True)
def test_a_second_node_on_sqlite_is_told_what_it_needs(settings: Any) -> None:
    settings.GUILD_HALL_NODE = "first"
    first_lease_id = lease.take()
    settings.GUILD_HALL_NODE = "second"
    assert "node 'first'" in refusal_text()
    assert "For a second node, set DATABASE_URL to a PostgreSQL database" in refusal_text()
    with pytest.raises(LeaseError, match="a moment ago"):
        lease.take(lease_id=uuid.uuid4())  # the lease was free when it looked
    assert list(Node.objects.exclude(lease_id=None).values_list("name", "lease_id")) == [("first", first_lease_id)]


@on_postgresql
def test_each_node_has_a_lease_of_its_own(settings: Any) -> None:
    settings.GUILD_HALL_NODE = "first"
    first_lease_id = lease.take()
    settings.GUILD_HALL_NODE = "second"
    second_lease_id = lease.take(fence_is_on=True)
    leases = list(Node.objects.values_list("name", "lease_id", "fence_is_on"))
    assert leases == [("first", first_lease_id, False), ("second", second_lease_id, True)]
    assert "give it another name with GUILD_HALL_NODE" in refusal_text()
    assert lease.renew(first_lease_id, fence_is_on=True)
    assert lease.renew(first_lease_id)
    assert Node.objects.get(name="first").fence_is_on


@on_postgresql
def test_a_lease_is_revoked_only_if_it_was_not_renewed_and_the_fence_is_on(settings: Any) -> None:
    for name, fence_is_on in (("with", True), ("without", False)):
        settings.GUILD_HALL_NODE = name
        lease_id = lease.take(fence_is_on=fence_is_on)
        seen = Node.objects.get(name=name)
        lease.renew(lease_id)
        assert not lease.revoke(seen)
        seen.refresh_from_db()
        assert lease.revoke(seen) is fence_is_on


@on_sqlite
def test_a_node_takes_the_lease_of_a_dead_node_and_both_keep_their_rows(
    child: subprocess.Popen[bytes], settings: Any
) -> None:
    write_lease(pid=child.pid, node="old")
    child.kill()
    child.wait()
    settings.GUILD_HALL_NODE = "new"
    lease_id = lease.take()
    assert list(Node.objects.values_list("name", "lease_id")) == [("new", lease_id), ("old", None)]


# A copy of the database ---------------------------------------------------------------------------------------------


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(lease, "HEARTBEAT_PATIENCE", 0.2)


@pytest.mark.parametrize("clock_offset", [0.0, 0.5, 3600.0], ids=["same clock", "half a second ahead", "an hour ahead"])
def test_a_copy_of_the_database_is_free_if_no_heartbeat_arrives(
    child: subprocess.Popen[bytes], short_patience: None, clock_offset: float
) -> None:
    write_lease(pid=child.pid, heartbeat_age=-clock_offset)
    messages: list[str] = []
    assert lease.await_heartbeat(messages.append) is None
    lease.take()
    assert [f"process {child.pid} on " in text and "If this is a copy" in text for text in messages] == [True] * len(
        messages
    )
    assert len(messages) == (0 if clock_offset > 1 else 1)


@pytest.mark.django_db(transaction=True)
def test_a_holder_with_a_new_heartbeat_is_live_at_once(child: subprocess.Popen[bytes]) -> None:
    lease_id = write_lease(pid=child.pid)

    def beat() -> None:
        lease.renew(lease_id)
        connection.close()

    timer = threading.Timer(0.3, beat)
    timer.start()
    watch = Stopwatch()
    assert lease.await_heartbeat(pytest.fail) == lease.Holder(socket.gethostname(), child.pid)
    timer.join()
    assert watch.seconds < 2


@pytest.mark.django_db(transaction=True)
def test_a_holder_that_cannot_write_the_row_is_live_by_its_heartbeat_file(
    child: subprocess.Popen[bytes], data_dir: Path
) -> None:
    lease_id = write_lease(pid=child.pid)
    timer = threading.Timer(0.3, lambda: (lease.beat(lease_id), connection.close()))
    timer.start()
    watch = Stopwatch()
    assert lease.await_heartbeat(pytest.fail) == lease.Holder(socket.gethostname(), child.pid)
    timer.join()
    assert watch.seconds < 2


def test_nobody_waits_for_the_heartbeat_of_a_dead_holder(child: subprocess.Popen[bytes]) -> None:
    write_lease(pid=child.pid)
    child.kill()
    child.wait()
    watch = Stopwatch()
    assert lease.await_heartbeat(pytest.fail) is None
    assert watch.seconds < 1


# After a jump of the clock or a sleep of the machine ---------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("jump", [Node.LEASE_SECONDS + 1, 3600, -3600])
@pytest.mark.parametrize("beat", [lease.renew, lease.beat], ids=["row", "data folder"])
def test_a_live_holder_with_an_old_heartbeat_keeps_the_lease_with_its_next_heartbeat(
    child: subprocess.Popen[bytes], data_dir: Path, jump: float, beat: Callable[[uuid.UUID], object]
) -> None:
    lease_id = write_lease(pid=child.pid, heartbeat_age=jump)
    timer = threading.Timer(0.3, lambda: (beat(lease_id), connection.close()))
    timer.start()
    assert f"process {child.pid}" in refusal_text()
    timer.join()
    assert Node.objects.get().lease_id == lease_id


def test_a_live_holder_without_a_new_heartbeat_loses_the_lease_after_two_intervals(
    child: subprocess.Popen[bytes], short_patience: None
) -> None:
    write_lease(pid=child.pid, heartbeat_age=Node.LEASE_SECONDS + 1)
    watch = Stopwatch()
    lease.take()
    assert watch.elapsed > lease.HEARTBEAT_PATIENCE
    assert watch.seconds < lease.HEARTBEAT_PATIENCE + 1


def test_take_does_not_wait_if_require_free_already_waited_for_a_heartbeat(child: subprocess.Popen[bytes]) -> None:
    write_lease(pid=child.pid, heartbeat_age=Node.LEASE_SECONDS + 1)
    holder = lease.require_free()
    watch = Stopwatch()
    lease.take(last=holder, lease_id=uuid.uuid4())
    assert watch.seconds < 1


def test_a_repeated_take_with_the_same_id_succeeds_without_a_second_reset() -> None:
    holder, lease_id, resets = lease.require_free(), uuid.uuid4(), []
    for _ in range(2):
        assert lease.take(lambda node: resets.append(lease_id), holder, lease_id) == lease_id
    assert resets == [lease_id]
    with pytest.raises(LeaseError):
        lease.take(last=holder, lease_id=uuid.uuid4())


# Renew and release ------------------------------------------------------------------------------------------------


def test_a_heartbeat_renews_the_lease() -> None:
    lease_id = lease.take()
    Node.objects.update(heartbeat_at=Now() - timedelta(seconds=60))
    assert lease.renew(lease_id)
    assert lease.live_holder() is not None


def test_a_heartbeat_of_a_process_without_the_lease_changes_nothing_and_returns_false() -> None:
    lost_lease_id = lease.take()
    write_lease(pid=1, host="elsewhere", runtime=OTHER_HOST_RUNTIME, heartbeat_age=5)
    before = Node.objects.get().heartbeat_at
    assert not lease.renew(lost_lease_id)
    assert Node.objects.get().heartbeat_at == before


def test_a_released_lease_can_be_taken_at_once() -> None:
    first_lease_id = lease.take()
    lease.release(first_lease_id)
    assert (Node.objects.get().lease_id, lease.holder_node()) == (None, None)
    assert lease.live_holder() is None
    assert lease.take() != first_lease_id


def test_a_process_without_the_lease_cannot_release_it() -> None:
    lost_lease_id = lease.take()
    other_lease_id = write_lease(pid=os.getpid())
    lease.release(lost_lease_id)
    assert Node.objects.get().lease_id == other_lease_id


def test_rows_change_only_with_the_lease() -> None:
    GuildMember.objects.create(name="anna", directory="anna")
    lost_lease_id = lease.take()
    assert GuildMember.objects.filter(lease.held_by(lost_lease_id)).update(pid=1) == 1
    other_lease_id = write_lease(pid=os.getpid())
    assert GuildMember.objects.filter(lease.held_by(lost_lease_id)).update(pid=2) == 0
    assert GuildMember.objects.filter(lease.held_by(other_lease_id)).update(pid=3) == 1
    assert GuildMember.objects.get().pid == 3


# A database that cannot be written -------------------------------------------------------------------------------


@pytest.fixture
def data_dir(tmp_path: Path, settings: Any) -> Path:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    return tmp_path


def write_lease_of_blocked_holder(child: subprocess.Popen[bytes]) -> uuid.UUID:
    """A lease whose holder is live and could not write its heartbeat for some time."""
    return write_lease(pid=child.pid, heartbeat_age=Node.LEASE_SECONDS + 1)


def test_a_holder_is_live_by_its_heartbeat_file_alone(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease_id = write_lease_of_blocked_holder(child)
    assert lease.live_holder() is None
    lease.beat(lease_id)
    assert lease.live_holder() == lease.Holder(socket.gethostname(), child.pid)
    assert f"process {child.pid}" in refusal_text()


def test_a_holder_that_was_frozen_for_long_is_not_live(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease.beat(write_lease_of_blocked_holder(child))
    frozen_at = time.time() - Node.LEASE_SECONDS - 1
    os.utime(data_dir / "heartbeat", (frozen_at, frozen_at))
    assert lease.live_holder() is None


def test_a_holder_that_has_just_died_is_not_live(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease.beat(write_lease_of_blocked_holder(child))
    child.kill()
    child.wait()
    assert lease.live_holder() is None


def test_the_heartbeat_of_another_lease_does_not_count(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease.beat(uuid.uuid4())
    write_lease_of_blocked_holder(child)
    assert lease.live_holder() is None


def test_the_heartbeat_of_the_original_does_not_count_for_a_copy_of_the_database(
    child: subprocess.Popen[bytes], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has the same lease, and may even use the same data folder."""
    lease_id = write_lease_of_blocked_holder(child)
    copy = data_dir / "copy.sqlite3"
    copy.touch()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "NAME", str(copy))
        lease.beat(lease_id)
        assert lease.live_holder() is not None
    assert lease.live_holder() is None


def test_heartbeats_continue_in_the_same_file(data_dir: Path) -> None:
    lease_id = lease.take()
    for _ in range(3):
        lease.beat(lease_id)
        os.utime(data_dir / "heartbeat", (0, 0))
    lease.beat(lease_id)
    assert time.time() - (data_dir / "heartbeat").stat().st_mtime < 5
    assert [path.name for path in data_dir.iterdir()] == ["heartbeat"]
