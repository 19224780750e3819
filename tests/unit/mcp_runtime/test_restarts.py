"""When a member that failed is tried again: the delays, and clocks that are set meanwhile."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from mcp_runtime.members.restarts import Restarts, next_try_after, restart_delay
from roster.models import GuildMember

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _clocks_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic, wall = time.monotonic(), timezone.now()
    monkeypatch.setattr(time, "monotonic", lambda: monotonic)
    monkeypatch.setattr(timezone, "now", lambda: wall)


@pytest.fixture
def restarts() -> Restarts:
    return Restarts()


def set_clock(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + by)


def test_the_delay_grows_with_each_failure_in_a_row_and_is_bounded() -> None:
    delays = [restart_delay(failures).total_seconds() for failures in range(8)]
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30]


def test_after_five_tries_one_goes_on_every_few_minutes_and_a_remote_server_as_before() -> None:
    def delays(manifest: dict[str, str]) -> list[float]:
        return [next_try_after(GuildMember(restarts=failures, manifest=manifest)) for failures in (1, 5, 6, 1000)]

    assert delays({"command": "x"}) == [1, 16, 300, 300]
    assert delays({"url": "https://example.org/mcp"}) == [1, 16, 30, 30]


def test_a_call_may_start_it_when_its_back_off_is_over(restarts: Restarts) -> None:
    member = GuildMember(pk=1, name="anna", status_changed_at=timezone.now(), restarts=3)
    assert restarts.earliest(member) == pytest.approx(time.monotonic() + 4, abs=0.001)
    member.restarts = 0
    assert restarts.earliest(member) == pytest.approx(time.monotonic(), abs=0.001)


@pytest.mark.parametrize("by", [-10 * MINUTE, 10 * MINUTE])
def test_what_is_planned_is_due_then_though_the_clock_is_set(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    due = time.monotonic() + 60
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, due))
    assert abs(member.next_restart_at - timezone.now() - MINUTE) < timedelta(seconds=0.001)
    set_clock(monkeypatch, by)
    assert restarts.next_try(member) == due
    assert not restarts.is_due(member)


@pytest.mark.parametrize("by", [-10 * MINUTE, 10 * MINUTE])
def test_when_it_failed_is_known_though_the_clock_is_set(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    member = GuildMember(pk=1, status_changed_at=timezone.now())
    restarts.note_change(1, member.status_changed_at)
    set_clock(monkeypatch, by)
    assert restarts.failed_at(member) == pytest.approx(time.monotonic(), abs=0.001)


def test_what_somebody_else_wrote_on_the_row_counts(restarts: Restarts) -> None:
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, time.monotonic() + 60))
    member.next_restart_at = timezone.now() - MINUTE
    assert restarts.is_due(member)
    member.next_restart_at = None
    assert restarts.next_try(member) is None
    assert not restarts.is_due(member)


@pytest.mark.parametrize("by", [-10 * MINUTE, 10 * MINUTE])
def test_what_a_row_says_is_corrected_once_when_the_clock_was_set(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch, by: timedelta
) -> None:
    due = time.monotonic() + 60
    member = GuildMember(pk=1, next_restart_at=restarts.plan(1, due))
    assert restarts.corrected_time(member) is None
    set_clock(monkeypatch, by)
    member.next_restart_at = restarts.corrected_time(member)
    assert abs(member.next_restart_at - timezone.now() - MINUTE) < timedelta(seconds=0.001)
    assert restarts.next_try(member) == due
    assert restarts.corrected_time(member) is None


def test_a_member_that_is_not_tried_again_has_nothing_to_correct(restarts: Restarts) -> None:
    assert restarts.corrected_time(GuildMember(pk=1, next_restart_at=None)) is None
