"""Verbs run in a limited number of threads, and no thread remains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from mcp_runtime.members import verbs
from mcp_runtime.members.supervisor import Supervisor
from roster.models import GuildMember, VersionLookUp
from tests.conftest import eventually
from tests.support.lifecycle_stage import OWN_LEASE, RecordingLifecycle

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status


@pytest.fixture
def lifecycle() -> Iterator[RecordingLifecycle]:
    lifecycle = RecordingLifecycle()
    yield lifecycle
    lifecycle.released.set()
    eventually(lambda: count_active_verbs() == 0, what="all verbs are done")


@pytest.fixture
def supervisor_(lifecycle: RecordingLifecycle, tmp_path: Path) -> Supervisor:
    turns = Supervisor(lifecycle=lifecycle, members_dir=tmp_path, start_concurrency=1000)  # type: ignore[arg-type]
    turns.tick()
    return turns


def count_active_verbs() -> int:
    return sum(thread.name.startswith("lifecycle") for thread in threading.enumerate())


def add_members(count: int, status: str, **values: object) -> list[GuildMember]:
    names = [f"{status}-{number:03}" for number in range(count)]
    return [
        GuildMember.objects.create(name=name, directory=name, lease_id=OWN_LEASE, status=status, **values)
        for name in names
    ]


def change_status(verb: str, member_id: int) -> None:
    status = Status.CONNECTED if verb == "start" else Status.DISCONNECTED
    GuildMember.objects.filter(pk=member_id).update(status=status)


def test_many_stops_at_once_use_a_limited_number_of_threads_and_all_happen(
    supervisor_: Supervisor, lifecycle: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "MAX_VERBS", 10)
    add_members(30, Status.CONNECTED, desired_state=GuildMember.DesiredState.STOPPED)
    lifecycle.effect = change_status
    lifecycle.released.clear()
    supervisor_.tick()
    assert count_active_verbs() == 10
    lifecycle.released.set()

    def all_are_stopped() -> bool:
        supervisor_.tick()
        return not GuildMember.objects.filter(status=Status.CONNECTED).exists()

    eventually(all_are_stopped)


def test_slow_starts_leave_threads_for_stops(
    supervisor_: Supervisor, lifecycle: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "MAX_VERBS", 6)
    monkeypatch.setattr(verbs, "MAX_STARTS", 4)
    add_members(20, Status.DISCONNECTED)
    lifecycle.released.clear()
    supervisor_.tick()
    eventually(lambda: [call[0] for call in lifecycle.calls] == ["start"] * 4)
    add_members(1, Status.CONNECTED, desired_state=GuildMember.DesiredState.STOPPED)
    supervisor_.tick()
    eventually(lambda: ("stop", "connected-000", "stop") in lifecycle.calls)


def test_many_questions_about_versions_leave_threads_for_stops_and_for_bundles(
    supervisor_: Supervisor, lifecycle: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "MAX_VERBS", 6)
    members = [*add_members(1, Status.DISCONNECTED, pk=1, enabled=False), *add_members(19, Status.CONNECTED)]
    for member in members:
        VersionLookUp.objects.create(member=member, package="a", asked_at=timezone.now())
    lifecycle.released.clear()
    supervisor_.tick()
    GuildMember.objects.filter(name="connected-000").update(desired_state=GuildMember.DesiredState.STOPPED)
    supervisor_.tick()
    eventually(lambda: ("stop", "connected-000", "stop") in lifecycle.calls)
    assert ("look up", "disconnected-000") in lifecycle.calls
    assert supervisor_._verbs.of(-1) is None  # bundles are unpacked meanwhile
    lifecycle.effect = lambda verb, pk: verb == "look up" and VersionLookUp.objects.filter(member=pk).delete()
    lifecycle.released.set()

    def all_are_answered() -> bool:
        supervisor_.tick()
        return not VersionLookUp.objects.exists()

    eventually(all_are_answered)


def test_no_thread_remains_after_all_verbs(supervisor_: Supervisor, lifecycle: RecordingLifecycle) -> None:
    add_members(20, Status.DISCONNECTED)
    lifecycle.effect = change_status
    supervisor_.tick()
    eventually(lambda: GuildMember.objects.filter(status=Status.CONNECTED).count() == 20)
    eventually(lambda: count_active_verbs() == 0)


def test_a_verb_without_a_thread_is_tried_again(
    supervisor_: Supervisor, lifecycle: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_members(1, Status.DISCONNECTED)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            supervisor_.tick()
    supervisor_.tick()
    eventually(lambda: lifecycle.calls == [("start", "disconnected-000")])
