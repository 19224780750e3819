"""When a failed member is started again: the delays, and changes of the clock in between."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from mcp_runtime.members.restarts import VALUES_OF_A_COLUMN, Restarts, next_try_after, restart_delay
from roster.models import GuildMember

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _fixed_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, wall = time.monotonic(), timezone.now()
    monkeypatch.setattr(time, "monotonic", lambda: monotonic)
    monkeypatch.setattr(timezone, "now", lambda: wall)


@pytest.fixture
def restarts() -> Restarts:
    return Restarts()


def set_clock(monkeypatch: pytest.MonkeyPatch, change: timedelta) -> None:
    previous_now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: previous_now() + change)


def test_the_delay_grows_with_each_failure_in_a_row_and_is_bounded() -> None:
    delays = [restart_delay(failures).total_seconds() for failures in range(8)]
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30]


def test_after_five_tries_only_the_delay_of_a_local_member_grows_to_minutes() -> None:
    def delays(manifest: dict[str, str]) -> list[float]:
        return [next_try_after(GuildMember(restarts=failures, manifest=manifest)) for failures in (1, 5, 6, 1000)]

    assert delays({"command": "x"}) == [1, 16, 300, 300]
    assert delays({"url": "https://example.org/mcp"}) == [1, 16, 30, 30]


def test_a_call_may_start_a_member_after_its_back_off(restarts: Restarts) -> None:
    member = GuildMember(pk=1, name="anna", status_changed_at=timezone.now(), restarts=3)
    assert restarts.earliest(member) == pytest.approx(time.monotonic() + 4, abs=0.001)
    member.restarts = 0
    assert restarts.earliest(member) == pytest.approx(time.monotonic(), abs=0.001)


@pytest.mark.parametrize("change", [-10 * MINUTE, 10 * MINUTE])
def test_a_planned_restart_is_due_at_the_same_time_after_a_change_of_the_clock(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, change: timedelta
) -> None:
    due_at = time.monotonic() + 60
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, due_at))
    assert abs(member.next_restart_at - timezone.now() - MINUTE) < timedelta(seconds=0.001)
    set_clock(monkeypatch, change)
    assert restarts.next_try(member) == due_at
    assert not restarts.is_due(member)


@pytest.mark.parametrize("change", [-10 * MINUTE, 10 * MINUTE])
def test_the_time_of_a_failure_is_known_after_a_change_of_the_clock(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, change: timedelta
) -> None:
    member = GuildMember(pk=1, status_changed_at=timezone.now())
    restarts.note_change(1, member.status_changed_at)
    set_clock(monkeypatch, change)
    assert restarts.failed_at(member) == pytest.approx(time.monotonic(), abs=0.001)


def test_a_change_of_the_row_replaces_the_planned_restart(restarts: Restarts) -> None:
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, time.monotonic() + 60))
    member.next_restart_at = timezone.now() - MINUTE
    assert restarts.is_due(member)
    member.next_restart_at = None
    assert restarts.next_try(member) is None
    assert not restarts.is_due(member)


@pytest.mark.parametrize("change", [-10 * MINUTE, 10 * MINUTE])
def test_the_time_in_the_row_is_corrected_once_after_a_change_of_the_clock(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, change: timedelta
) -> None:
    due_at = time.monotonic() + 60
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, due_at))
    assert restarts.corrected_time(member) is None
    set_clock(monkeypatch, change)
    member.next_restart_at = restarts.corrected_time(member)
    assert abs(member.next_restart_at - timezone.now() - MINUTE) < timedelta(seconds=0.001)
    assert restarts.next_try(member) == due_at
    assert restarts.corrected_time(member) is None


def test_a_member_without_a_planned_restart_has_no_corrected_time(restarts: Restarts) -> None:
    assert restarts.corrected_time(GuildMember(pk=1, next_restart_at=None)) is None


@pytest.mark.parametrize("change", [-10 * MINUTE, 10 * MINUTE])
def test_a_row_that_was_read_before_a_correction_has_the_same_planned_restart_as_after_it(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, change: timedelta
) -> None:
    due_at = time.monotonic() + 60
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, due_at))
    old_row = GuildMember(pk=1, next_restart_at=member.next_restart_at)
    set_clock(monkeypatch, change)
    member.next_restart_at = restarts.corrected_time(member)
    assert restarts.next_try(old_row) == due_at
    assert restarts.next_try(member) == due_at


def test_only_the_last_values_of_a_row_are_remembered(restarts: Restarts) -> None:
    for second in range(1000):
        restarts.plan(1, time.monotonic() + second)
    [values] = restarts._moments.values()
    assert len(values) == VALUES_OF_A_COLUMN
