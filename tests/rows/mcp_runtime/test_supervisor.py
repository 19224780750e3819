"""The supervisor's turns, with a lifecycle that only records the calls of its methods."""

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

from mcp_runtime.members import discovery, supervisor, verbs
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.silence import Silence
from mcp_runtime.members.supervisor import Supervisor, unfulfilled
from mcp_runtime.members.verbs import Threads
from roster.models import GuildMember, Node
from tests.conftest import eventually
from tests.support.lifecycle_stage import OWN_LEASE, RecordingLifecycle

pytestmark = pytest.mark.django_db(transaction=True)

Status = GuildMember.Status
LATER = timedelta(hours=1)


class CountingThreads(Threads):
    """Each submitted function calls one method of the lifecycle."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(20)
        self.futures: list[Future[None]] = []

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        self.futures.append(self.pool.submit(work, *args))

    @property
    def are_idle(self) -> bool:
        return all(future.done() for future in self.futures)


class SupervisorTurns:
    """A supervisor whose turns the test takes one by one."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.lifecycle = RecordingLifecycle()
        self.threads = CountingThreads()
        self.supervisor = Supervisor(
            lifecycle=self.lifecycle,
            members_dir=folder,
            start_concurrency=options.get("start_concurrency", 100),
            threads=self.threads,
        )

    def take(self) -> list[tuple[Any, ...]]:
        """Takes one turn and returns the calls of the lifecycle during it."""
        before = len(self.lifecycle.calls)
        self.supervisor.tick()
        self.settle()
        return sorted(self.lifecycle.calls[before:])

    def settle(self) -> None:
        """Waits until every submitted verb has begun, and has ended unless the lifecycle blocks verbs."""
        eventually(lambda: len(self.lifecycle.calls) == len(self.threads.futures))
        if self.lifecycle.released.is_set():
            eventually(lambda: self.threads.are_idle)

    def end(self) -> None:
        self.lifecycle.released.set()
        self.supervisor.stop()
        self.threads.pool.shutdown()


@pytest.fixture
def make_turns(tmp_path: Path) -> Iterator[Callable[..., SupervisorTurns]]:
    all_turns: list[SupervisorTurns] = []

    def make(**options: Any) -> SupervisorTurns:
        Node.objects.get_or_create(name="main", lease_id=OWN_LEASE)
        all_turns.append(SupervisorTurns(tmp_path, **options))
        return all_turns[-1]

    yield make
    for turns in all_turns:
        turns.end()


@pytest.fixture
def turns(make_turns: Callable[..., SupervisorTurns], monkeypatch: pytest.MonkeyPatch) -> SupervisorTurns:
    monkeypatch.setattr(discovery, "sync", lambda _: discovery.SyncReport())  # members here have no folders
    return make_turns()


def add(name: str = "anna", **columns: Any) -> GuildMember:
    return GuildMember.objects.create(name=name, directory=name, lease_id=OWN_LEASE, **columns)


def row_of(member: GuildMember) -> GuildMember:
    return GuildMember.objects.get(pk=member.pk)


# Which verb for which row -----------------------------------------------------------------------------------------

NOW = timezone.now()
RUNNING: dict[str, Any] = {"desired_state": "running"}
STOPPED: dict[str, Any] = {"desired_state": "stopped"}
TO_BE_STOPPED = [STOPPED, {"enabled": False}, {"removed_at": NOW}]
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
        (status, columns, [("stop", "anna", "stop")])
        for status in ("starting", "connected", "error")
        for columns in TO_BE_STOPPED
    ],
    *[(status, columns, []) for status in ("disconnected", "stopping") for columns in TO_BE_STOPPED],
]


@pytest.mark.parametrize(("status", "columns", "verbs"), VERBS)
def test_each_row_gets_the_verb_that_leads_to_its_desired_state(
    turns: SupervisorTurns, status: str, columns: dict[str, Any], verbs: list[tuple[Any, ...]]
) -> None:
    add(status=status, **columns)
    assert turns.take() == verbs


@pytest.mark.parametrize(("status", "columns", "verbs"), VERBS)
def test_a_turn_writes_no_status(
    turns: SupervisorTurns, status: str, columns: dict[str, Any], verbs: list[tuple[Any, ...]]
) -> None:
    member = add(status=status, **columns)
    turns.take()
    assert row_of(member).status == status


@pytest.mark.parametrize(("status", "columns", "verbs"), [case for case in VERBS if case[2] and case[0] != "stopping"])
def test_a_member_that_needs_a_verb_is_unfulfilled(status: str, columns: dict[str, Any], verbs: object) -> None:
    member = add(status=status, **columns)
    assert list(unfulfilled(OWN_LEASE, retry_ids={member.pk})) == [member]


def test_a_member_in_error_is_fulfilled_until_its_restart_is_due() -> None:
    add(status="error")
    assert not unfulfilled(OWN_LEASE).exists()


@pytest.mark.parametrize("status", [Status.DISCONNECTED, Status.CONNECTED])
def test_a_member_in_its_desired_state_is_not_read(status: Status) -> None:
    add(status=status, desired_state="running" if status == Status.CONNECTED else "stopped")
    assert not unfulfilled(OWN_LEASE).exists()


# Requests are cleared ---------------------------------------------------------------------------------------------


def test_a_start_clears_the_restart_request_and_the_failures(turns: SupervisorTurns) -> None:
    member = add(status="error", restart_requested_at=NOW, restarts=4)
    turns.take()
    assert (row_of(member).restart_requested_at, row_of(member).restarts) == (None, 0)


def test_a_restart_request_survives_the_stop_before_it(turns: SupervisorTurns) -> None:
    member = add(status="connected", restart_requested_at=NOW)
    turns.lifecycle.effect = lambda verb, pk: ignore(GuildMember.objects.filter(pk=pk).update(status="disconnected"))
    assert turns.take() == [("stop", "anna", "restart")]
    assert row_of(member).restart_requested_at == NOW
    assert turns.take() == [("start", "anna")]
    assert row_of(member).restart_requested_at is None


def ignore(_: object) -> None:
    """For a lambda that must return None."""


def test_a_second_restart_request_during_the_first_is_not_lost(
    turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = add(status="disconnected", restart_requested_at=NOW)
    own_row = turns.lifecycle.own_row

    def update_and_get_row(member_id: int) -> QuerySet[GuildMember]:
        GuildMember.objects.update(restart_requested_at=NOW + LATER)  # before the supervisor clears the first request
        return own_row(member_id)

    monkeypatch.setattr(turns.lifecycle, "own_row", update_and_get_row)
    assert turns.take() == [("start", "anna")]
    assert row_of(member).restart_requested_at == NOW + LATER


def test_a_refresh_request_is_cleared_after_the_refresh(turns: SupervisorTurns) -> None:
    member = add(status="connected", refresh_requested_at=NOW)
    request_times = []
    turns.lifecycle.effect = lambda verb, pk: request_times.append(row_of(member).refresh_requested_at)
    turns.take()
    assert request_times == [NOW]
    assert row_of(member).refresh_requested_at is None


def test_a_refresh_request_is_cleared_after_a_failure_too(
    turns: SupervisorTurns, caplog: pytest.LogCaptureFixture
) -> None:
    member = add(status="connected", refresh_requested_at=NOW)
    turns.lifecycle.error = ZeroDivisionError()
    turns.take()
    assert row_of(member).refresh_requested_at is None
    assert "refresh of member 'anna' failed" in caplog.text


@pytest.mark.parametrize("columns", [*TO_BE_STOPPED, FAULTY])
def test_requests_that_cannot_be_fulfilled_are_cleared(turns: SupervisorTurns, columns: dict[str, Any]) -> None:
    member = add(status="disconnected", restart_requested_at=NOW, refresh_requested_at=NOW, **columns)
    turns.take()
    assert (row_of(member).restart_requested_at, row_of(member).refresh_requested_at) == (None, None)


# One verb at a time -----------------------------------------------------------------------------------------------


def test_a_member_that_is_being_started_is_not_started_again(turns: SupervisorTurns) -> None:
    add()
    turns.lifecycle.released.clear()
    assert turns.take() == [("start", "anna")]
    assert turns.take() == []
    turns.lifecycle.released.set()
    turns.settle()
    assert turns.take() == [("start", "anna")]  # its row is still disconnected


def test_a_stop_during_a_start_aborts_it_once(turns: SupervisorTurns) -> None:
    member = add()
    turns.lifecycle.released.clear()
    turns.take()
    GuildMember.objects.update(status="starting", desired_state="stopped")
    assert turns.take() == [("abort_start", "anna")]
    assert turns.take() == []
    turns.lifecycle.released.set()
    turns.settle()
    assert turns.take() == [("stop", "anna", "stop")]  # in case the abort was too late
    assert row_of(member).desired_state == "stopped"


def test_a_hung_verb_of_one_member_does_not_delay_other_members(turns: SupervisorTurns) -> None:
    add("anna")
    turns.lifecycle.released.clear()
    assert turns.take() == [("start", "anna")]
    add("bob")
    add("carl", status="connected", desired_state="stopped")
    assert turns.take() == [("start", "bob"), ("stop", "carl", "stop")]


def test_a_verb_that_fails_frees_its_member_for_the_next_turn(
    turns: SupervisorTurns, caplog: pytest.LogCaptureFixture
) -> None:
    add()
    turns.lifecycle.error = ZeroDivisionError("a bug")
    assert turns.take() == [("start", "anna")]
    assert "start of member 'anna' failed" in caplog.text
    turns.lifecycle.error = None
    assert turns.take() == [("start", "anna")]


def test_a_verb_that_ended_wakes_the_loop(turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 60.0)
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", 60.0)
    add()
    turns.lifecycle.released.clear()
    turns.supervisor.start()
    eventually(lambda: turns.lifecycle.calls == [("start", "anna")])
    GuildMember.objects.update(status="connected")
    add("bob")
    turns.lifecycle.released.set()
    eventually(lambda: turns.lifecycle.calls[1:] == [("start", "bob")])


# Slots for starts -------------------------------------------------------------------------------------------------


@pytest.fixture
def two_slots(make_turns: Callable[..., SupervisorTurns], monkeypatch: pytest.MonkeyPatch) -> SupervisorTurns:
    monkeypatch.setattr(discovery, "sync", lambda _: discovery.SyncReport())
    return make_turns(start_concurrency=2)


def test_no_more_members_start_at_a_time_than_there_are_slots(two_slots: SupervisorTurns) -> None:
    for name in "abcde":
        add(name)
    two_slots.lifecycle.released.clear()
    assert two_slots.take() == [("start", "a"), ("start", "b")]
    assert two_slots.take() == []
    two_slots.lifecycle.effect = lambda verb, pk: ignore(GuildMember.objects.filter(pk=pk).update(status="connected"))
    two_slots.lifecycle.released.set()
    two_slots.settle()
    assert two_slots.take() == [("start", "c"), ("start", "d")]
    assert two_slots.take() == [("start", "e")]


def test_members_with_waiting_calls_are_started_first(two_slots: SupervisorTurns) -> None:
    for name in "abcde":
        add(name)
    two_slots.lifecycle.awaited_ids = {GuildMember.objects.get(name="d").pk}
    two_slots.lifecycle.released.clear()
    assert two_slots.take() == [("start", "a"), ("start", "d")]


def test_stops_need_no_slot(two_slots: SupervisorTurns) -> None:
    for name in "ab":
        add(name)
    for name in "cd":
        add(name, status="connected", desired_state="stopped")
    two_slots.lifecycle.released.clear()
    assert two_slots.take() == [("start", "a"), ("start", "b"), ("stop", "c", "stop"), ("stop", "d", "stop")]


def test_a_start_that_hangs_frees_its_slot_after_some_time(
    two_slots: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        add(name)
    two_slots.lifecycle.released.clear()
    assert two_slots.take() == [("start", "a"), ("start", "b")]
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", 0.0)
    assert two_slots.take() == [("start", "c"), ("start", "d")]


def test_a_start_with_an_idle_process_frees_its_slot_earlier(
    two_slots: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle_member, *_ = [add(name) for name in "abcd"]
    two_slots.lifecycle.released.clear()
    assert two_slots.take() == [("start", "a"), ("start", "b")]
    two_slots.lifecycle.live = [FakeLiveMember(idle_member.pk, is_computing=False)]
    assert two_slots.take() == []
    monkeypatch.setattr(verbs, "IDLE_START_SLOT_SECONDS", 0.0)
    assert two_slots.take() == [("start", "c")]


def test_a_start_that_computes_keeps_its_slot_longer_but_not_forever(
    two_slots: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_member, *_ = [add(name) for name in "abcd"]
    two_slots.lifecycle.released.clear()
    assert two_slots.take() == [("start", "a"), ("start", "b")]
    two_slots.lifecycle.live = [FakeLiveMember(busy_member.pk, is_computing=True)]
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", 0.0)
    assert two_slots.take() == [("start", "c")]
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", 60.0)
    assert two_slots.take() == []
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", 0.0)
    monkeypatch.setattr(verbs, "LONGEST_START_SLOT_SECONDS", 0.0)
    assert two_slots.take() == [("start", "d")]


def test_a_member_with_another_verb_in_progress_takes_no_slot(two_slots: SupervisorTurns) -> None:
    add("anna", status="connected", desired_state="stopped")
    two_slots.lifecycle.released.clear()
    two_slots.take()
    GuildMember.objects.update(status="disconnected", desired_state="running")
    assert two_slots.take() == []
    for name in "bcd":
        add(name)
    assert two_slots.take() == [("start", "b"), ("start", "c")]


# Lost processes ---------------------------------------------------------------------------------------------------


class FakeLiveMember:
    def __init__(
        self,
        member_id: int,
        connected_at: float | None = None,
        *,
        is_remote: bool = False,
        is_computing: bool = False,
    ) -> None:
        self.is_computing = is_computing
        self.max_processes = self.max_memory = 0
        self.token = None
        self.silence = Silence()
        self.member_id = member_id
        self.name = GuildMember.objects.get(pk=member_id).name
        self.process = SimpleNamespace(exit_handled=threading.Event())
        self.connected_at = connected_at
        self.is_remote = is_remote


@pytest.mark.parametrize("status", [Status.STARTING, Status.CONNECTED, Status.STOPPING])
def test_a_row_without_its_process_is_reset(
    turns: SupervisorTurns, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(status=status)
    assert turns.take() == []  # it may be between two writes
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", 0.0)
    assert turns.take() == [("handle_lost_process", "anna")]


def test_a_row_with_its_process_is_not_changed(turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    member = add(status="connected")
    turns.lifecycle.live = [FakeLiveMember(member.pk)]
    assert turns.take() == []
    turns.lifecycle.live[0].process.exit_handled.set()
    assert turns.take() == [("handle_lost_process", "anna")]
    turns.lifecycle.live = []
    assert turns.take() == [("handle_lost_process", "anna")]


def test_a_row_whose_exit_is_being_written_is_not_changed(
    turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    turns.lifecycle.ending = {add(status="connected").pk}
    assert turns.take() == []
    turns.lifecycle.ending = set()
    assert turns.take() == [("handle_lost_process", "anna")]


def test_a_row_with_a_verb_in_progress_is_not_changed(turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "UNTRACKED_SECONDS", -1.0)
    add()
    turns.lifecycle.released.clear()
    turns.take()
    GuildMember.objects.update(status="starting")
    assert turns.take() == []


def pass_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + seconds)


def test_a_process_that_appears_again_resets_the_waiting_time(
    turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = add(status="connected")
    turns.take()
    turns.lifecycle.live = [FakeLiveMember(member.pk)]
    turns.take()
    turns.lifecycle.live = []
    pass_time(2 * supervisor.UNTRACKED_SECONDS, monkeypatch)
    turns.take()
    assert turns.lifecycle.calls == []  # the time counts from now, not from the first turn


# The folder -------------------------------------------------------------------------------------------------------


def write_manifest(folder: Path, name: str, **values: Any) -> None:
    (folder / name).mkdir(exist_ok=True)
    manifest = {"name": name, "version": "1", "transport": "http", "command": "sh", "args": ["${PORT}"], **values}
    (folder / name / "guild-member.json").write_text(json.dumps(manifest))


def test_a_new_folder_is_a_member_that_is_started(make_turns: Callable[..., SupervisorTurns]) -> None:
    turns = make_turns()
    assert turns.take() == []
    write_manifest(turns.folder, "anna")
    assert turns.take() == [("start", "anna")]


def test_a_folder_without_changes_is_not_read(
    make_turns: Callable[..., SupervisorTurns], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "guildhall.runtime")
    turns = make_turns()
    write_manifest(turns.folder, "anna", enabled=False)
    for _ in range(3):
        turns.take()
    assert [message for message in caplog.messages if message.startswith("members folder")] == [
        "members folder: 1 added: anna"
    ]


def test_a_folder_that_could_not_be_read_is_read_again(
    make_turns: Callable[..., SupervisorTurns], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = make_turns()
    write_manifest(turns.folder, "anna")
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "sync", lambda _: (_ for _ in ()).throw(DatabaseError("gone")))
        with pytest.raises(DatabaseError):
            turns.supervisor.tick()
    assert turns.take() == [("start", "anna")]


# The time of the next turn ----------------------------------------------------------------------------------------


@pytest.fixture
def turn_times(turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The times of the loop's turns after its start. Without a reason it takes no turn for a minute."""
    times: list[float] = []
    serve = turns.supervisor.serve
    monkeypatch.setattr(supervisor, "TICK_SECONDS", 60.0)
    monkeypatch.setattr(turns.supervisor, "serve", lambda: (times.append(time.monotonic()), serve()))
    yield times
    turns.end()


def test_the_next_turn_comes_when_a_restart_is_due(turns: SupervisorTurns, turn_times: list[float]) -> None:
    add("bob", status="error", next_restart_at=timezone.now() + LATER)
    due = time.monotonic() + 0.5
    add(status="error", next_restart_at=timezone.now() + timedelta(seconds=0.5))
    turns.supervisor.start()
    eventually(lambda: turns.lifecycle.calls == [("start", "anna", "automatic")])
    assert turn_times[-1] > due - 0.05
    assert len(turn_times) <= 2


def count_turns_in_half_a_second(turns: SupervisorTurns, turn_times: list[float]) -> int:
    turns.supervisor.start()
    eventually(lambda: turn_times)
    time.sleep(0.5)
    return len(turn_times)


def test_an_overdue_restart_does_not_make_the_loop_busy(turns: SupervisorTurns, turn_times: list[float]) -> None:
    add(status="error", next_restart_at=timezone.now() - LATER)
    turns.lifecycle.released.clear()
    assert count_turns_in_half_a_second(turns, turn_times) == 1
    assert turns.lifecycle.calls == [("start", "anna", "automatic")]


def test_the_loop_does_not_wait_for_a_restart_that_is_not_allowed(
    turns: SupervisorTurns, turn_times: list[float]
) -> None:
    add(status="error", next_restart_at=timezone.now() + timedelta(seconds=0.2), manifest_error="broken")
    assert count_turns_in_half_a_second(turns, turn_times) == 1


def test_the_next_turn_comes_when_a_start_frees_its_slot(
    turns: SupervisorTurns, turn_times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", 0.6)
    add()
    turns.lifecycle.released.clear()
    turns.supervisor.start()
    eventually(lambda: len(turn_times) == 2)
    assert turn_times[1] - turn_times[0] > 0.3


def test_the_loop_does_not_wait_for_a_start_that_freed_its_slot(
    turns: SupervisorTurns, turn_times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "START_SLOT_SECONDS", -1.0)
    add()
    turns.lifecycle.released.clear()
    assert count_turns_in_half_a_second(turns, turn_times) == 1


def test_a_stop_ends_a_refresh_in_progress(turns: SupervisorTurns) -> None:
    member = add(status="connected", refresh_requested_at=timezone.now())
    turns.lifecycle.released.clear()
    assert turns.take() == [("refresh", "anna")]
    GuildMember.objects.update(desired_state="stopped")
    turns.supervisor.tick()
    assert turns.lifecycle.calls[1:] == [("abort_refresh", "anna")]
    turns.lifecycle.released.set()
    eventually(lambda: turns.threads.are_idle)
    turns.supervisor.tick()
    eventually(lambda: ("stop", "anna", "stop") in turns.lifecycle.calls)
    member.refresh_from_db()
    assert member.refresh_requested_at is None


# The loop ---------------------------------------------------------------------------------------------------------


def test_the_loop_takes_turns_until_the_supervisor_stops(turns: SupervisorTurns) -> None:
    turns.supervisor.start()
    add()
    turns.supervisor.wake()
    eventually(lambda: ("start", "anna") in turns.lifecycle.calls)
    turns.supervisor.stop()
    assert not any(thread.name == "supervisor" for thread in threading.enumerate())
    turns.settle()  # a turn before the stop may have submitted another start
    calls = len(turns.lifecycle.calls)
    turns.supervisor.wake()
    time.sleep(0.1)
    assert len(turns.lifecycle.calls) == calls


def test_the_loop_sees_a_change_of_the_folder_during_many_notifications(
    make_turns: Callable[..., SupervisorTurns],
) -> None:
    turns = make_turns()
    turns.supervisor.start()
    write_manifest(turns.folder, "anna")

    def is_started() -> bool:
        turns.supervisor.wake()
        return ("start", "anna") in turns.lifecycle.calls

    eventually(is_started, within=2.5)


def test_the_loop_sees_a_request_without_a_notification_within_about_a_second(turns: SupervisorTurns) -> None:
    turns.supervisor.start()
    time.sleep(0.05)
    add()
    eventually(lambda: ("start", "anna") in turns.lifecycle.calls, within=2.5)


@pytest.mark.parametrize("error", [DatabaseError("gone"), ZeroDivisionError("a bug")])
def test_a_turn_that_fails_is_logged_and_the_next_turn_follows(
    turns: SupervisorTurns, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    eventually(lambda: ("start", "anna") in turns.lifecycle.calls)
    text = "the database cannot be reached (gone)" if isinstance(error, DatabaseError) else "a turn of the supervisor"
    assert text in caplog.text


def test_a_stop_before_the_start_does_no_harm(turns: SupervisorTurns) -> None:
    turns.supervisor.stop()


def test_the_recording_lifecycle_has_only_methods_of_the_real_one() -> None:
    for verb in (name for name in vars(RecordingLifecycle) if not name.startswith("_")):
        assert callable(getattr(Lifecycle, verb))


# Remote servers ---------------------------------------------------------------------------------------------------


def test_a_remote_server_is_checked_after_its_check_interval(
    turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = add(status="connected")
    long_ago = time.monotonic() - supervisor.REMOTE_CHECK_SECONDS
    turns.lifecycle.live = [FakeLiveMember(member.pk, long_ago, is_remote=True)]
    assert turns.take() == [("refresh", "anna")]
    assert turns.take() == []  # the next one is due half a minute later
    monkeypatch.setattr(supervisor, "REMOTE_CHECK_SECONDS", 0.0)
    assert turns.take() == [("refresh", "anna")]


def test_only_remote_servers_that_are_due_are_checked(turns: SupervisorTurns) -> None:
    long_ago = time.monotonic() - 10 * supervisor.REMOTE_CHECK_SECONDS
    columns = {
        "process": {"connected_at": long_ago},
        "starting": {"is_remote": True},
        "fresh": {"is_remote": True, "connected_at": time.monotonic()},
    }
    turns.lifecycle.live = [
        FakeLiveMember(add(name, status="connected").pk, **values) for name, values in columns.items()
    ]
    assert turns.take() == []


def test_a_check_that_hangs_delays_no_other_member_and_is_not_repeated(
    turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "REMOTE_CHECK_SECONDS", 0.0)
    member = add(status="connected")
    turns.lifecycle.live = [FakeLiveMember(member.pk, 1.0, is_remote=True)]
    turns.lifecycle.released.clear()
    assert turns.take() == [("refresh", "anna")]
    add("bob")
    assert turns.take() == [("start", "bob")]
    GuildMember.objects.filter(pk=member.pk).update(desired_state="stopped")
    turns.supervisor.tick()
    assert turns.lifecycle.calls[-1] == ("abort_refresh", "anna")


def test_a_server_that_connected_again_is_checked_after_a_full_interval(
    turns: SupervisorTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = add(status="connected")
    long_ago = time.monotonic() - supervisor.REMOTE_CHECK_SECONDS
    turns.lifecycle.live = [FakeLiveMember(member.pk, long_ago, is_remote=True)]
    assert turns.take() == [("refresh", "anna")]
    pass_time(2 * supervisor.REMOTE_CHECK_SECONDS, monkeypatch)
    turns.lifecycle.live = [FakeLiveMember(member.pk, time.monotonic(), is_remote=True)]
    assert turns.take() == []
