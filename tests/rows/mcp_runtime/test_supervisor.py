"""The supervisor's turns, with a lifecycle that only writes down what it is asked."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.members import discovery, supervisor
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.silence import Silence
from mcp_runtime.members.supervisor import Supervisor, Threads, unfulfilled
from roster.models import GuildMember
from tests.conftest import eventually
from tests.support.lifecycle_stage import RecordingLifecycle

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
LATER = timedelta(hours=1)


class CountingThreads(Threads):
    """Each thing that is submitted asks one thing of the lifecycle."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(20)
        self.submitted: list[Future[None]] = []

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        self.submitted.append(self.pool.submit(work, *args))

    @property
    def are_idle(self) -> bool:
        return all(each.done() for each in self.submitted)


class Turns:
    """A supervisor whose turns are taken by hand."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.asked = RecordingLifecycle()
        self.threads = CountingThreads()
        self.supervisor = Supervisor(
            lifecycle=self.asked,
            members_dir=folder,
            start_concurrency=options.get("start_concurrency", 100),
            threads=self.threads,
        )

    def take(self) -> list[tuple[Any, ...]]:
        """One turn; what was asked of the lifecycle during it."""
        before = len(self.asked.calls)
        self.supervisor.tick()
        self.settle()
        return sorted(self.asked.calls[before:])

    def settle(self) -> None:
        """Until every verb that was submitted has begun, and ended unless verbs are held."""
        eventually(lambda: len(self.asked.calls) == len(self.threads.submitted))
        if self.asked.released.is_set():
            eventually(lambda: self.threads.are_idle)

    def end(self) -> None:
        self.asked.released.set()
        self.supervisor.stop()
        self.threads.pool.shutdown()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Turns]]:
    made: list[Turns] = []

    def make(**options: Any) -> Turns:
        made.append(Turns(tmp_path, **options))
        return made[-1]

    yield make
    for turns in made:
        turns.end()


@pytest.fixture
def turns(make: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch) -> Turns:
    monkeypatch.setattr(discovery, "sync", lambda _: discovery.SyncReport())  # members here have no folders
    return make()


def add(name: str = "anna", **columns: Any) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, **columns)


def row(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


# Which verb for which row -----------------------------------------------------------------------------------------

NOW = timezone.now()
RUNNING: dict[str, Any] = {"desired_state": "running"}
STOPPED: dict[str, Any] = {"desired_state": "stopped"}
UNWANTED = [STOPPED, {"enabled": False}, {"removed_at": NOW}]
RESTART: dict[str, Any] = {"restart_requested_at": NOW}
REFRESH: dict[str, Any] = {"refresh_requested_at": NOW}
FAULTY: dict[str, Any] = {"manifest_error": "broken"}

VERBS = [
    ("disconnected", RUNNING, [("start", "anna")]),
    ("disconnected", RUNNING | RESTART, [("start", "anna")]),
    ("disconnected", RUNNING | FAULTY, []),
    ("error", RUNNING, []),
    ("error", RUNNING | {"next_restart_at": NOW + LATER}, []),
    ("error", RUNNING | {"next_restart_at": NOW - LATER}, [("start", "anna", "automatic")]),
    ("error", RUNNING | {"next_restart_at": NOW - LATER} | FAULTY, []),
    ("error", RUNNING | {"next_restart_at": NOW + LATER} | RESTART, [("start", "anna")]),
    ("error", RUNNING | RESTART, [("start", "anna")]),
    ("error", RUNNING | REFRESH, []),
    ("connected", RUNNING, []),
    ("connected", RUNNING | FAULTY, []),
    ("connected", RUNNING | RESTART, [("stop", "anna", "restart")]),
    ("connected", RUNNING | REFRESH, [("refresh", "anna")]),
    ("connected", RUNNING | REFRESH | RESTART, [("stop", "anna", "restart")]),
    ("starting", RUNNING, []),
    ("starting", RUNNING | RESTART, [("stop", "anna", "restart")]),
    ("stopping", RUNNING, []),
    ("stopping", RUNNING | RESTART, []),
    *[
        (status, unwanted, [("stop", "anna", "stop")])
        for status in ("starting", "connected", "error")
        for unwanted in UNWANTED
    ],
    *[(status, unwanted, []) for status in ("disconnected", "stopping") for unwanted in UNWANTED],
]


@pytest.mark.parametrize(("status", "columns", "verbs"), VERBS)
def test_each_row_gets_the_verb_that_brings_it_nearer_to_its_desired_state(
    turns: Turns, status: str, columns: dict[str, Any], verbs: list[tuple[Any, ...]]
) -> None:
    add(status=status, **columns)
    assert turns.take() == verbs


@pytest.mark.parametrize(("status", "columns", "verbs"), VERBS)
def test_a_turn_writes_no_status_itself(
    turns: Turns, status: str, columns: dict[str, Any], verbs: list[tuple[Any, ...]]
) -> None:
    member = add(status=status, **columns)
    turns.take()
    assert row(member).status == status


@pytest.mark.parametrize(("status", "columns", "verbs"), [case for case in VERBS if case[2] and case[0] != "stopping"])
def test_whoever_has_a_verb_coming_is_unfulfilled(status: str, columns: dict[str, Any], verbs: object) -> None:
    member = add(status=status, **columns)
    assert list(unfulfilled(retry_ids={member.pk})) == [member]


def test_one_in_error_is_fulfilled_until_its_restart_is_due() -> None:
    add(status="error")
    assert not unfulfilled().exists()


@pytest.mark.parametrize("status", [Status.DISCONNECTED, Status.CONNECTED])
def test_a_member_that_is_as_it_should_be_is_not_looked_at(status: Status) -> None:
    add(status=status, desired_state="running" if status == Status.CONNECTED else "stopped")
    assert not unfulfilled().exists()


# Requests are cleared ---------------------------------------------------------------------------------------------


def test_a_restart_request_is_taken_with_the_start_and_forgets_the_failures(turns: Turns) -> None:
    member = add(status="error", restart_requested_at=NOW, restarts=4)
    turns.take()
    assert (row(member).restart_requested_at, row(member).restarts) == (None, 0)


def test_a_restart_request_survives_the_stop_before_it(turns: Turns) -> None:
    member = add(status="connected", restart_requested_at=NOW)
    turns.asked.effect = lambda verb, pk: void(GuildMember.objects.filter(pk=pk).update(status="disconnected"))
    assert turns.take() == [("stop", "anna", "restart")]
    assert row(member).restart_requested_at == NOW
    assert turns.take() == [("start", "anna")]
    assert row(member).restart_requested_at is None


def void(_: object) -> None:
    """For a lambda that must return nothing."""


def test_a_restart_request_that_came_again_meanwhile_is_not_lost(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    member = add(status="disconnected", restart_requested_at=NOW)
    own_row = turns.asked.own_row

    def write(member_id: int) -> QuerySet[GuildMember]:
        GuildMember.objects.update(restart_requested_at=NOW + LATER)  # before the one that was read is taken back
        return own_row(member_id)

    monkeypatch.setattr(turns.asked, "own_row", write)
    assert turns.take() == [("start", "anna")]
    assert row(member).restart_requested_at == NOW + LATER


def test_a_refresh_request_is_cleared_when_the_tools_are_there_and_not_before(turns: Turns) -> None:
    member = add(status="connected", refresh_requested_at=NOW)
    seen = []
    turns.asked.effect = lambda verb, pk: seen.append(row(member).refresh_requested_at)
    turns.take()
    assert seen == [NOW]
    assert row(member).refresh_requested_at is None


def test_a_refresh_request_is_cleared_when_it_failed_too(turns: Turns, caplog: pytest.LogCaptureFixture) -> None:
    member = add(status="connected", refresh_requested_at=NOW)
    turns.asked.error = ZeroDivisionError()
    turns.take()
    assert row(member).refresh_requested_at is None
    assert "refresh of member 'anna' failed" in caplog.text


@pytest.mark.parametrize("columns", [*UNWANTED, FAULTY])
def test_requests_that_cannot_be_fulfilled_are_cleared(turns: Turns, columns: dict[str, Any]) -> None:
    member = add(status="disconnected", restart_requested_at=NOW, refresh_requested_at=NOW, **columns)
    turns.take()
    assert (row(member).restart_requested_at, row(member).refresh_requested_at) == (None, None)


# One verb at a time -----------------------------------------------------------------------------------------------


def test_a_member_that_is_being_started_is_not_started_again(turns: Turns) -> None:
    add()
    turns.asked.released.clear()
    assert turns.take() == [("start", "anna")]
    assert turns.take() == []
    turns.asked.released.set()
    turns.settle()
    assert turns.take() == [("start", "anna")]  # its row says that it is still down


def test_a_stop_during_a_start_aborts_it_once(turns: Turns) -> None:
    member = add()
    turns.asked.released.clear()
    turns.take()
    GuildMember.objects.update(status="starting", desired_state="stopped")
    assert turns.take() == [("abort_start", "anna")]
    assert turns.take() == []
    turns.asked.released.set()
    turns.settle()
    assert turns.take() == [("stop", "anna", "stop")]  # in case the abort came too late
    assert row(member).desired_state == "stopped"


def test_a_hung_verb_of_one_member_keeps_no_other_waiting(turns: Turns) -> None:
    add("anna")
    turns.asked.released.clear()
    assert turns.take() == [("start", "anna")]
    add("bob")
    add("carl", status="connected", desired_state="stopped")
    assert turns.take() == [("start", "bob"), ("stop", "carl", "stop")]


def test_a_verb_that_fails_frees_its_member_for_the_next_turn(turns: Turns, caplog: pytest.LogCaptureFixture) -> None:
    add()
    turns.asked.error = ZeroDivisionError("a bug")
    assert turns.take() == [("start", "anna")]
    assert "start of member 'anna' failed" in caplog.text
    turns.asked.error = None
    assert turns.take() == [("start", "anna")]


def test_a_verb_that_ended_wakes_the_loop(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 60.0)
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", 60.0)
    add()
    turns.asked.released.clear()
    turns.supervisor.start()
    eventually(lambda: turns.asked.calls == [("start", "anna")])
    GuildMember.objects.update(status="connected")
    add("bob")
    turns.asked.released.set()
    eventually(lambda: turns.asked.calls[1:] == [("start", "bob")])


# Places for starts ------------------------------------------------------------------------------------------------


@pytest.fixture
def two_places(make: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch) -> Turns:
    monkeypatch.setattr(discovery, "sync", lambda _: discovery.SyncReport())
    return make(start_concurrency=2)


def test_no_more_starts_at_a_time_than_there_are_places(two_places: Turns) -> None:
    for name in "abcde":
        add(name)
    two_places.asked.released.clear()
    assert two_places.take() == [("start", "a"), ("start", "b")]
    assert two_places.take() == []
    two_places.asked.effect = lambda verb, pk: void(GuildMember.objects.filter(pk=pk).update(status="connected"))
    two_places.asked.released.set()
    two_places.settle()
    assert two_places.take() == [("start", "c"), ("start", "d")]
    assert two_places.take() == [("start", "e")]


def test_members_that_calls_wait_for_are_started_before_the_others(two_places: Turns) -> None:
    for name in "abcde":
        add(name)
    two_places.asked.awaited_ids = {GuildMember.objects.get(name="d").pk}
    two_places.asked.released.clear()
    assert two_places.take() == [("start", "a"), ("start", "d")]


def test_stops_need_no_place(two_places: Turns) -> None:
    for name in "ab":
        add(name)
    for name in "cd":
        add(name, status="connected", desired_state="stopped")
    two_places.asked.released.clear()
    assert two_places.take() == [("start", "a"), ("start", "b"), ("stop", "c", "stop"), ("stop", "d", "stop")]


def test_a_start_that_hangs_gives_its_place_back_after_a_while(
    two_places: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        add(name)
    two_places.asked.released.clear()
    assert two_places.take() == [("start", "a"), ("start", "b")]
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", 0.0)
    assert two_places.take() == [("start", "c"), ("start", "d")]


def test_a_start_whose_process_sleeps_gives_its_place_back_sooner_than_one_without_a_process(
    two_places: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep, *_ = [add(name) for name in "abcd"]
    two_places.asked.released.clear()
    assert two_places.take() == [("start", "a"), ("start", "b")]
    two_places.asked.live = [Live(asleep.pk, is_computing=False)]
    assert two_places.take() == []
    monkeypatch.setattr(supervisor, "IDLE_START_SLOT_SECONDS", 0.0)
    assert two_places.take() == [("start", "c")]


def test_a_start_that_computes_keeps_its_place_for_longer_though_not_for_ever(
    two_places: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, *_ = [add(name) for name in "abcd"]
    two_places.asked.released.clear()
    assert two_places.take() == [("start", "a"), ("start", "b")]
    two_places.asked.live = [Live(busy.pk, is_computing=True)]
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", 0.0)
    assert two_places.take() == [("start", "c")]
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", 60.0)
    assert two_places.take() == []
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "LONGEST_START_SLOT_SECONDS", 0.0)
    assert two_places.take() == [("start", "d")]


def test_a_member_that_is_busy_takes_no_place(two_places: Turns) -> None:
    add("anna", status="connected", desired_state="stopped")
    two_places.asked.released.clear()
    two_places.take()
    GuildMember.objects.update(status="disconnected", desired_state="running")
    assert two_places.take() == []
    for name in "bcd":
        add(name)
    assert two_places.take() == [("start", "b"), ("start", "c")]


# Lost track -------------------------------------------------------------------------------------------------------


class Live:
    def __init__(
        self,
        member_id: int,
        connected_at: float | None = None,
        *,
        is_remote: bool = False,
        is_computing: bool = False,
    ) -> None:
        self.is_computing = is_computing
        self.silence = Silence()
        self.member_id = member_id
        self.name = GuildMember.objects.get(pk=member_id).name
        self.process = SimpleNamespace(exit_handled=threading.Event())
        self.connected_at = connected_at
        self.is_remote = is_remote


@pytest.mark.parametrize("status", [Status.STARTING, Status.CONNECTED, Status.STOPPING])
def test_a_row_that_claims_a_process_that_is_not_there_begins_afresh(
    turns: Turns, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(status=status)
    assert turns.take() == []  # it may be a moment between two writes
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", 0.0)
    assert turns.take() == [("handle_lost_process", "anna")]


def test_a_row_whose_process_is_there_is_left_alone(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    member = add(status="connected")
    turns.asked.live = [Live(member.pk)]
    assert turns.take() == []
    turns.asked.live[0].process.exit_handled.set()
    assert turns.take() == [("handle_lost_process", "anna")]
    turns.asked.live = []
    assert turns.take() == [("handle_lost_process", "anna")]


def test_a_row_whose_end_is_being_written_is_left_alone(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    turns.asked.ending = {add(status="connected").pk}
    assert turns.take() == []
    turns.asked.ending = set()
    assert turns.take() == [("handle_lost_process", "anna")]


def test_a_row_with_a_verb_in_progress_is_left_alone(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    add()
    turns.asked.released.clear()
    turns.take()
    GuildMember.objects.update(status="starting")
    assert turns.take() == []


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)


def test_a_process_that_appeared_again_is_forgiven(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    member = add(status="connected")
    turns.take()
    turns.asked.live = [Live(member.pk)]
    turns.take()
    turns.asked.live = []
    pass_time(2 * supervisor.UNTRACKED_SECONDS, monkeypatch)
    turns.take()
    assert turns.asked.calls == []  # counted from now on, not from the first time


# The folder -------------------------------------------------------------------------------------------------------


def write_manifest(folder: Path, name: str, **values: Any) -> None:
    (folder / name).mkdir(exist_ok=True)
    manifest = {"name": name, "version": "1", "transport": "http", "command": "sh", "args": ["${PORT}"], **values}
    (folder / name / "guild-member.json").write_text(json.dumps(manifest))


def test_a_folder_that_appears_is_a_member_that_is_started(make: Callable[..., Turns]) -> None:
    turns = make()
    assert turns.take() == []
    write_manifest(turns.folder, "anna")
    assert turns.take() == [("start", "anna")]


def test_a_folder_that_did_not_change_is_not_read(make: Callable[..., Turns], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "guildhall.runtime")
    turns = make()
    write_manifest(turns.folder, "anna", enabled=False)
    for _ in range(3):
        turns.take()
    assert [message for message in caplog.messages if message.startswith("members folder")] == [
        "members folder: 1 added: anna"
    ]


def test_a_folder_that_could_not_be_read_is_read_again(
    make: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = make()
    write_manifest(turns.folder, "anna")
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "sync", lambda _: (_ for _ in ()).throw(DatabaseError("gone")))
        with pytest.raises(DatabaseError):
            turns.supervisor.tick()
    assert turns.take() == [("start", "anna")]


# When the next turn is --------------------------------------------------------------------------------------------


@pytest.fixture
def looks(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """When the loop takes a turn, once it was started; of itself it takes none for a minute."""
    looks: list[float] = []
    serve = turns.supervisor.serve
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 60.0)
    monkeypatch.setattr(turns.supervisor, "serve", lambda: (looks.append(time.monotonic()), serve()))
    yield looks
    turns.end()


def test_the_next_turn_is_when_a_restart_is_due(turns: Turns, looks: list[float]) -> None:
    add("bob", status="error", next_restart_at=timezone.now() + LATER)
    due = time.monotonic() + 0.5
    add(status="error", next_restart_at=timezone.now() + timedelta(seconds=0.5))
    turns.supervisor.start()
    eventually(lambda: turns.asked.calls == [("start", "anna", "automatic")])
    assert looks[-1] > due - 0.05
    assert len(looks) <= 2


def turns_in_half_a_second(turns: Turns, looks: list[float]) -> int:
    turns.supervisor.start()
    eventually(lambda: looks)
    time.sleep(0.5)
    return len(looks)


def test_a_restart_that_is_overdue_is_not_waited_for_in_a_loop_that_does_nothing_else(
    turns: Turns, looks: list[float]
) -> None:
    add(status="error", next_restart_at=timezone.now() - LATER)
    turns.asked.released.clear()
    assert turns_in_half_a_second(turns, looks) == 1
    assert turns.asked.calls == [("start", "anna", "automatic")]


def test_a_restart_of_one_that_may_not_run_is_not_waited_for(turns: Turns, looks: list[float]) -> None:
    add(status="error", next_restart_at=timezone.now() + timedelta(seconds=0.2), manifest_error="broken")
    assert turns_in_half_a_second(turns, looks) == 1


def test_the_next_turn_is_when_a_start_gives_its_place_back(
    turns: Turns, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", 0.6)
    add()
    turns.asked.released.clear()
    turns.supervisor.start()
    eventually(lambda: len(looks) == 2)
    assert looks[1] - looks[0] > 0.3


def test_a_start_that_gave_its_place_back_is_not_waited_for(
    turns: Turns, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "START_SLOT_SECONDS", -1.0)
    add()
    turns.asked.released.clear()
    assert turns_in_half_a_second(turns, looks) == 1


def test_a_stop_ends_a_refresh_in_progress(turns: Turns) -> None:
    member = add(status="connected", refresh_requested_at=timezone.now())
    turns.asked.released.clear()
    assert turns.take() == [("refresh", "anna")]
    GuildMember.objects.update(desired_state="stopped")
    turns.supervisor.tick()
    assert turns.asked.calls[1:] == [("abort_refresh", "anna")]
    turns.asked.released.set()
    eventually(lambda: turns.threads.are_idle)
    turns.supervisor.tick()
    eventually(lambda: ("stop", "anna", "stop") in turns.asked.calls)
    member.refresh_from_db()
    assert member.refresh_requested_at is None


# The loop ---------------------------------------------------------------------------------------------------------


def test_the_loop_takes_turns_until_it_is_stopped(turns: Turns) -> None:
    turns.supervisor.start()
    add()
    turns.supervisor.wake()
    eventually(lambda: ("start", "anna") in turns.asked.calls)
    turns.supervisor.stop()
    assert not any(thread.name == "supervisor" for thread in threading.enumerate())
    calls = len(turns.asked.calls)
    turns.supervisor.wake()
    time.sleep(0.1)
    assert len(turns.asked.calls) == calls


def test_a_folder_that_changes_while_the_loop_is_woken_all_the_time_is_seen(make: Callable[..., Turns]) -> None:
    turns = make()
    turns.supervisor.start()
    write_manifest(turns.folder, "anna")

    def is_started() -> bool:
        turns.supervisor.wake()
        return ("start", "anna") in turns.asked.calls

    eventually(is_started, within=2.5)


def test_a_request_that_nobody_announced_is_seen_within_a_second_or_so(turns: Turns) -> None:
    turns.supervisor.start()
    time.sleep(0.05)
    add()
    eventually(lambda: ("start", "anna") in turns.asked.calls, within=2.5)


@pytest.mark.parametrize("error", [DatabaseError("gone"), ZeroDivisionError("a bug")])
def test_a_turn_that_fails_is_said_and_followed_by_the_next(
    turns: Turns, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [error]

    def find_untracked() -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(turns.supervisor, "find_untracked", find_untracked)
    turns.supervisor.start()
    eventually(lambda: not errors)
    add()
    turns.supervisor.wake()
    eventually(lambda: ("start", "anna") in turns.asked.calls)
    said = "the database cannot be reached (gone)" if isinstance(error, DatabaseError) else "a turn of the supervisor"
    assert said in caplog.text


def test_stop_before_start_is_fine(turns: Turns) -> None:
    turns.supervisor.stop()


def test_the_stand_in_is_asked_what_a_lifecycle_can_do() -> None:
    for verb in (name for name in vars(RecordingLifecycle) if not name.startswith("_")):
        assert callable(getattr(Lifecycle, verb))


# Remote servers --------------------------------------------------------------------------------------------------


def test_a_remote_server_is_looked_at_when_its_last_look_is_long_past(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = add(status="connected")
    long_ago = time.monotonic() - supervisor.REMOTE_CHECK_SECONDS
    turns.asked.live = [Live(member.pk, long_ago, is_remote=True)]
    assert turns.take() == [("refresh", "anna")]
    assert turns.take() == []  # the next one is due half a minute later
    monkeypatch.setattr(supervisor, "REMOTE_CHECK_SECONDS", 0.0)
    assert turns.take() == [("refresh", "anna")]


def test_nobody_else_is_looked_at(turns: Turns) -> None:
    long_ago = time.monotonic() - 10 * supervisor.REMOTE_CHECK_SECONDS
    names = {
        "process": {"connected_at": long_ago},
        "starting": {"is_remote": True},
        "fresh": {"is_remote": True, "connected_at": time.monotonic()},
    }
    turns.asked.live = [Live(add(name, status="connected").pk, **facts) for name, facts in names.items()]
    assert turns.take() == []


def test_a_look_that_hangs_keeps_nobody_and_is_taken_once(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "REMOTE_CHECK_SECONDS", 0.0)
    member = add(status="connected")
    turns.asked.live = [Live(member.pk, 1.0, is_remote=True)]
    turns.asked.released.clear()
    assert turns.take() == [("refresh", "anna")]
    add("bob")
    assert turns.take() == [("start", "bob")]
    GuildMember.objects.filter(pk=member.pk).update(desired_state="stopped")
    turns.supervisor.tick()
    assert turns.asked.calls[-1] == ("abort_refresh", "anna")


def test_a_server_that_connected_again_is_checked_as_late_as_any(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    member = add(status="connected")
    long_ago = time.monotonic() - supervisor.REMOTE_CHECK_SECONDS
    turns.asked.live = [Live(member.pk, long_ago, is_remote=True)]
    assert turns.take() == [("refresh", "anna")]
    pass_time(2 * supervisor.REMOTE_CHECK_SECONDS, monkeypatch)
    turns.asked.live = [Live(member.pk, time.monotonic(), is_remote=True)]
    assert turns.take() == []
