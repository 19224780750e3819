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
from roster.models import GuildMember, Hall
from tests.support.machine import Stopwatch

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def long_lease() -> None:
    """It lasts as long as in a hall."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def hold(*, pid: int, host: str = "", runtime: RuntimeId | None = None, heartbeat_age: float = 0) -> uuid.UUID:
    """A lease that somebody took."""
    lease.hall()
    lease_id = uuid.uuid4()
    Hall.objects.update(
        lease_id=lease_id,
        lease_host=host or socket.gethostname(),
        lease_pid=pid,
        lease_runtime=str(runtime or RuntimeId.of(pid)),
        lease_taken_at=Now() - timedelta(hours=1),
        heartbeat_at=Now() - timedelta(seconds=heartbeat_age),
    )
    return lease_id


ELSEWHERE = RuntimeId(1, 4711, "4026531836", "another")


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
    assert row.lease_runtime == str(RuntimeId.own())
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
    runtime = RuntimeId.of(child.pid)
    hold(pid=child.pid, runtime=dataclasses.replace(runtime, started=runtime.started - 1))
    assert lease.live_holder() is None
    lease.take()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil's start times stand still")
@pytest.mark.parametrize("step", [-3600, -1, 1, 3600])
def test_a_wall_clock_that_is_set_makes_no_living_holder_dead(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    lease_id = lease.take()
    created = psutil.Process().create_time()
    # The kernel derives the time of the boot from the wall clock, and psutil the start of a process from that.
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: created + step)
    assert lease.live_holder() == lease.Holder(socket.gethostname(), os.getpid())
    refused()
    assert lease.renew(lease_id)


def test_a_holder_in_another_container_lives_by_its_heartbeat_and_not_by_its_pid() -> None:
    beside = dataclasses.replace(RuntimeId.own(), pid=999_999_999, namespace="1")
    hold(pid=beside.pid, runtime=beside)
    refused()
    hold(pid=beside.pid, runtime=beside, heartbeat_age=Hall.LEASE_SECONDS + 1)
    lease.take()


def test_a_clone_of_this_machine_with_its_name_lives_by_its_heartbeat(child: subprocess.Popen[bytes]) -> None:
    hold(pid=child.pid, runtime=dataclasses.replace(RuntimeId.of(child.pid), started=1, boot="another"))
    refused()


@pytest.mark.parametrize("age", [0, Hall.LEASE_SECONDS - 2])
def test_a_holder_on_another_host_is_believed_while_its_heartbeat_is_young(age: float) -> None:
    hold(pid=1, host="elsewhere", runtime=ELSEWHERE, heartbeat_age=age)
    assert lease.live_holder() == lease.Holder("elsewhere", 1)
    assert "process 1 on elsewhere" in refused()


def test_a_holder_on_another_host_loses_it_when_its_heartbeat_is_old() -> None:
    hold(pid=1, host="elsewhere", runtime=ELSEWHERE, heartbeat_age=Hall.LEASE_SECONDS + 1)
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
    Hall.objects.update(lease_pid=None, lease_runtime="", heartbeat_at=None)
    assert lease.live_holder() is None


def test_a_hall_that_was_never_there_is_held_by_nobody() -> None:
    assert lease.live_holder() is None
    assert Hall.objects.count() == 0  # a look makes nothing


def test_between_looking_and_taking_somebody_else_may_be_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = lease.hall()
    hold(pid=os.getpid())
    monkeypatch.setattr(lease, "hall", lambda: seen)  # what it looked like a moment ago
    assert "a moment ago" in refused()


@pytest.mark.parametrize("beaten", [Hall.LEASE_SECONDS + 1, None], ids=["long ago", "never"])
def test_a_holder_that_beats_between_the_look_and_the_taking_keeps_it(
    monkeypatch: pytest.MonkeyPatch, beaten: float | None
) -> None:
    lease_id = hold(pid=1, host="elsewhere", runtime=ELSEWHERE, heartbeat_age=beaten or 0)
    if beaten is None:
        Hall.objects.update(heartbeat_at=None)
    seen = lease.require_free()
    assert lease.renew(lease_id)
    monkeypatch.setattr(lease, "require_free", lambda: seen)
    assert "a moment ago" in refused()
    assert Hall.objects.get().lease_id == lease_id


@pytest.mark.parametrize("beats", [0, 1])
def test_one_that_took_it_and_died_loses_it_whatever_its_last_heartbeat(beats: int) -> None:
    for _ in range(20):  # some moments end in a nought
        lease_id = lease.take()
        for _ in range(beats):
            lease.renew(lease_id)
        Hall.objects.update(lease_runtime=str(dataclasses.replace(RuntimeId.own(), started=1)))
        assert lease.take() != lease_id
        Hall.objects.update(lease_runtime="", lease_id=None)


def test_one_that_never_beat_loses_it() -> None:
    hold(pid=1, host="elsewhere", runtime=ELSEWHERE)
    Hall.objects.update(heartbeat_at=None)
    lease.take()


@pytest.mark.django_db(transaction=True)
def test_who_cannot_put_the_rows_in_order_does_not_get_it(child: subprocess.Popen[bytes]) -> None:
    old = hold(pid=child.pid)
    child.kill()
    child.wait()

    def fail() -> None:
        raise OperationalError("the disk is full")

    with pytest.raises(OperationalError):
        lease.take(fail)
    assert lease.hall().lease_id == old


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


# A copy of the database ---------------------------------------------------------------------------------------------


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hall, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(lease, "HEARTBEAT_PATIENCE", 0.2)


@pytest.mark.parametrize("ahead", [0.0, 0.5, 3600.0], ids=["same clock", "half a second ahead", "an hour ahead"])
def test_a_copy_that_names_the_living_holder_of_the_original_is_free_when_no_heartbeat_comes(
    child: subprocess.Popen[bytes], patience: None, ahead: float
) -> None:
    hold(pid=child.pid, heartbeat_age=-ahead)
    said: list[str] = []
    assert lease.await_heartbeat(said.append) is None
    lease.take()
    assert [f"process {child.pid} on " in text and "If this is a copy" in text for text in said] == [True] * len(said)
    assert len(said) == (0 if ahead > 1 else 1)


@pytest.mark.django_db(transaction=True)
def test_a_holder_that_beats_is_believed_at_once(child: subprocess.Popen[bytes]) -> None:
    lease_id = hold(pid=child.pid)

    def beat() -> None:
        lease.renew(lease_id)
        connection.close()

    beating = threading.Timer(0.3, beat)
    beating.start()
    watch = Stopwatch()
    assert lease.await_heartbeat(pytest.fail) == lease.Holder(socket.gethostname(), child.pid)
    beating.join()
    assert watch.seconds < 2


@pytest.mark.django_db(transaction=True)
def test_a_holder_that_cannot_write_the_row_is_believed_as_soon_as_it_beats_in_the_data_folder(
    child: subprocess.Popen[bytes], data_dir: Path
) -> None:
    lease_id = hold(pid=child.pid)
    beating = threading.Timer(0.3, lambda: (lease.beat(lease_id), connection.close()))
    beating.start()
    watch = Stopwatch()
    assert lease.await_heartbeat(pytest.fail) == lease.Holder(socket.gethostname(), child.pid)
    beating.join()
    assert watch.seconds < 2


def test_a_holder_that_died_is_not_waited_for(child: subprocess.Popen[bytes]) -> None:
    hold(pid=child.pid)
    child.kill()
    child.wait()
    watch = Stopwatch()
    assert lease.await_heartbeat(pytest.fail) is None
    assert watch.seconds < 1


# A clock that jumped over the last heartbeats, or a machine that slept ---------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("jump", [Hall.LEASE_SECONDS + 1, 3600, -3600])
@pytest.mark.parametrize("beat", [lease.renew, lease.beat], ids=["row", "data folder"])
def test_a_living_holder_whose_heartbeats_look_old_keeps_the_hall_with_its_next_one(
    child: subprocess.Popen[bytes], data_dir: Path, jump: float, beat: Callable[[uuid.UUID], object]
) -> None:
    lease_id = hold(pid=child.pid, heartbeat_age=jump)
    beating = threading.Timer(0.3, lambda: (beat(lease_id), connection.close()))
    beating.start()
    assert f"process {child.pid}" in refused()
    beating.join()
    assert Hall.objects.get().lease_id == lease_id


def test_a_living_holder_that_does_not_beat_again_loses_the_hall_after_two_heartbeats_time(
    child: subprocess.Popen[bytes], patience: None
) -> None:
    hold(pid=child.pid, heartbeat_age=Hall.LEASE_SECONDS + 1)
    watch = Stopwatch()
    lease.take()
    assert watch.elapsed > lease.HEARTBEAT_PATIENCE
    assert watch.seconds < lease.HEARTBEAT_PATIENCE + 1


def test_who_has_waited_for_the_next_heartbeat_does_not_wait_again_to_take(child: subprocess.Popen[bytes]) -> None:
    hold(pid=child.pid, heartbeat_age=Hall.LEASE_SECONDS + 1)
    seen = lease.require_free()
    watch = Stopwatch()
    lease.take(row=seen)
    assert watch.seconds < 1


def test_who_takes_it_again_because_the_answer_was_lost_has_it() -> None:
    seen, lease_id, resets = lease.require_free(), uuid.uuid4(), []
    for _ in range(2):
        assert lease.take(lambda: resets.append(lease_id), seen, lease_id) == lease_id
    assert resets == [lease_id]
    with pytest.raises(LeaseError):
        lease.take(row=seen, lease_id=uuid.uuid4())


# Keeping and giving back ------------------------------------------------------------------------------------------


def test_a_heartbeat_makes_the_lease_young_again() -> None:
    lease_id = lease.take()
    Hall.objects.update(heartbeat_at=Now() - timedelta(seconds=60))
    assert lease.renew(lease_id)
    assert lease.live_holder() is not None


def test_a_heartbeat_of_one_who_lost_it_changes_nothing_and_says_so() -> None:
    lost = lease.take()
    hold(pid=1, host="elsewhere", runtime=ELSEWHERE, heartbeat_age=5)
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


# A database that cannot be written -------------------------------------------------------------------------------


@pytest.fixture
def data_dir(tmp_path: Path, settings: Any) -> Path:
    settings.GUILD_HALL_DATA_DIR = tmp_path
    return tmp_path


def locked_for_long(child: subprocess.Popen[bytes]) -> uuid.UUID:
    """A lease whose holder lives, and could not write its heartbeat for a while."""
    return hold(pid=child.pid, heartbeat_age=Hall.LEASE_SECONDS + 1)


def test_one_that_cannot_write_the_row_is_believed_while_it_beats_in_the_data_folder(
    child: subprocess.Popen[bytes], data_dir: Path
) -> None:
    lease_id = locked_for_long(child)
    assert lease.live_holder() is None
    lease.beat(lease_id)
    assert lease.live_holder() == lease.Holder(socket.gethostname(), child.pid)
    assert f"process {child.pid}" in refused()


def test_one_that_was_frozen_for_long_is_not_believed(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease.beat(locked_for_long(child))
    frozen_at = time.time() - Hall.LEASE_SECONDS - 1
    os.utime(data_dir / "heartbeat", (frozen_at, frozen_at))
    assert lease.live_holder() is None


def test_one_that_died_a_moment_ago_is_not_believed(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease.beat(locked_for_long(child))
    child.kill()
    child.wait()
    assert lease.live_holder() is None


def test_the_beat_of_another_lease_says_nothing_of_this_one(child: subprocess.Popen[bytes], data_dir: Path) -> None:
    lease.beat(uuid.uuid4())
    locked_for_long(child)
    assert lease.live_holder() is None


def test_the_beat_of_the_original_says_nothing_of_a_copy_of_the_database(
    child: subprocess.Popen[bytes], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy names the same lease, and may even be served from the same data folder."""
    lease_id = locked_for_long(child)
    copy = data_dir / "copy.sqlite3"
    copy.touch()
    with monkeypatch.context() as elsewhere:
        elsewhere.setitem(connection.settings_dict, "NAME", str(copy))
        lease.beat(lease_id)
        assert lease.live_holder() is not None
    assert lease.live_holder() is None


def test_beats_go_on_in_the_same_file(data_dir: Path) -> None:
    lease_id = lease.take()
    for _ in range(3):
        lease.beat(lease_id)
        os.utime(data_dir / "heartbeat", (0, 0))
    lease.beat(lease_id)
    assert time.time() - (data_dir / "heartbeat").stat().st_mtime < 5
    assert [path.name for path in data_dir.iterdir()] == ["heartbeat"]
