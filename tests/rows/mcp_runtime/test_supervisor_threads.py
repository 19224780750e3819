"""Verbs run in threads, no more than so many at a time, and leave none behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_runtime.members import supervisor
from mcp_runtime.members.supervisor import Supervisor
from roster.models import GuildMember
from tests.conftest import eventually
from tests.support.lifecycle_stage import RecordingLifecycle

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status


@pytest.fixture
def asked() -> Iterator[RecordingLifecycle]:
    asked = RecordingLifecycle()
    yield asked
    asked.released.set()
    eventually(lambda: verbs_under_way() == 0, what="all verbs are done")


@pytest.fixture
def turns(asked: RecordingLifecycle, tmp_path: Path) -> Supervisor:
    turns = Supervisor(lifecycle=asked, members_dir=tmp_path, start_concurrency=1000)  # type: ignore[arg-type]
    turns.tick()
    return turns


def verbs_under_way() -> int:
    return sum(thread.name.startswith("lifecycle") for thread in threading.enumerate())


def roster(count: int, status: str, **values: object) -> list[GuildMember]:
    names = [f"{status}-{number:03}" for number in range(count)]
    return [GuildMember.objects.create(name=name, directory=name, status=status, **values) for name in names]


def obeyed(verb: str, member_id: int) -> None:
    status = Status.CONNECTED if verb == "start" else Status.DISCONNECTED
    GuildMember.objects.filter(pk=member_id).update(status=status)


def test_many_stops_at_once_take_a_bounded_number_of_threads_and_all_happen(
    turns: Supervisor, asked: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MAX_VERBS", 10)
    roster(30, Status.CONNECTED, desired_state=GuildMember.DesiredState.STOPPED)
    asked.effect = obeyed
    asked.released.clear()
    turns.tick()
    assert verbs_under_way() == 10
    asked.released.set()

    def all_are_stopped() -> bool:
        turns.tick()
        return not GuildMember.objects.filter(status=Status.CONNECTED).exists()

    eventually(all_are_stopped)


def test_starts_that_take_minutes_leave_threads_to_stops(
    turns: Supervisor, asked: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MAX_VERBS", 6)
    monkeypatch.setattr(supervisor, "MAX_STARTS", 4)
    roster(20, Status.DISCONNECTED)
    asked.released.clear()
    turns.tick()
    eventually(lambda: [call[0] for call in asked.calls] == ["start"] * 4)
    roster(1, Status.CONNECTED, desired_state=GuildMember.DesiredState.STOPPED)
    turns.tick()
    eventually(lambda: ("stop", "connected-000", "stop") in asked.calls)


def test_no_thread_stays_when_all_verbs_are_done(turns: Supervisor, asked: RecordingLifecycle) -> None:
    roster(20, Status.DISCONNECTED)
    asked.effect = obeyed
    turns.tick()
    eventually(lambda: GuildMember.objects.filter(status=Status.CONNECTED).count() == 20)
    eventually(lambda: verbs_under_way() == 0)


def test_a_verb_that_gets_no_thread_is_tried_again(
    turns: Supervisor, asked: RecordingLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster(1, Status.DISCONNECTED)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            turns.tick()
    turns.tick()
    eventually(lambda: asked.calls == [("start", "disconnected-000")])
