"""Whether a call can wait for a member: the reasons in its row, and the start that a call requests."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.members.availability import Availability
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.restarts import QUICK_TRIES
from mcp_runtime.members.start_options import StartOptions
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class AvailabilityLifecycle(Lifecycle):
    """A lifecycle that owns all rows until it loses its lease."""

    def __init__(self) -> None:
        super().__init__(
            lease_id=uuid.uuid4(),
            options=StartOptions(
                hall_id=uuid.uuid4(),
                runtime=RuntimeId.own(),
                members_dir=Path(),
                data_dir=Path(),
                port_range=(0, 0),
                max_result_bytes=0,
            ),
        )
        self.wake_count = 0
        self.has_lease = True
        self.availability = Availability(self, self.wake)

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        rows = GuildMember.objects.filter(pk=member_id)
        return rows if self.has_lease else rows.none()

    def wake(self) -> None:
        self.wake_count += 1


@pytest.fixture
def hall() -> AvailabilityLifecycle:
    return AvailabilityLifecycle()


def make_member(**fields: Any) -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="notes", **fields)


def reason_not_to_wait(
    hall: AvailabilityLifecycle, row: GuildMember, timeout: timedelta = HOUR, elapsed: timedelta = SECOND
) -> str:
    since = time.monotonic() - elapsed.total_seconds()
    return hall.availability.no_use_waiting(row, since, since + timeout.total_seconds())


def test_a_call_starts_a_stopped_member_and_wakes_the_supervisor_once(hall: AvailabilityLifecycle) -> None:
    row = make_member(desired_state="stopped")
    hall.availability.ask_for_start(row.pk)
    hall.availability.ask_for_start(row.pk)
    row.refresh_from_db()
    assert (row.desired_state, hall.wake_count) == ("running", 1)


def test_the_reason_of_a_failed_member_does_not_contain_its_last_output(hall: AvailabilityLifecycle) -> None:
    """Its last output can contain arguments of other users."""
    error = f"it exited with code 3{GuildMember.TAIL_MARK}another's argument"
    row = make_member(status="error", last_error=error, next_restart_at=timezone.now() + 2 * HOUR)
    assert reason_not_to_wait(hall, row) == "it exited with code 3"


def test_without_the_lease_the_desired_state_does_not_change(hall: AvailabilityLifecycle) -> None:
    row = make_member(desired_state="stopped")
    hall.has_lease = False
    hall.availability.ask_for_start(row.pk)
    row.refresh_from_db()
    assert (row.desired_state, hall.wake_count) == ("stopped", 0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"removed_at": "2026-01-01T00:00:00Z"}, "its folder is gone"),
        ({"enabled": False}, "it is disabled"),
        ({"manifest_error": "no command"}, "no command"),
        ({"manifest_error": "no command", "status": "starting"}, ""),
        ({"status": "starting"}, ""),
        ({"status": "disconnected"}, ""),
        ({"status": "error", "desired_state": "stopped", "last_error": "x"}, ""),
    ],
)
def test_the_row_decides_whether_the_member_can_become_connected(
    hall: AvailabilityLifecycle, fields: dict[str, Any], reason: str
) -> None:
    row = make_member(**fields)
    row.refresh_from_db()
    assert reason_not_to_wait(hall, row) == reason


def test_a_call_waits_no_longer_than_its_timeout(hall: AvailabilityLifecycle) -> None:
    assert reason_not_to_wait(hall, make_member(status="starting"), timeout=SECOND, elapsed=2 * SECOND) == (
        "it was not connected within 1 s"
    )


def make_failed_member(ago: timedelta, **fields: Any) -> GuildMember:
    changed_at = timezone.now() - ago
    return make_member(**{"status": "error", "last_error": "it broke", "status_changed_at": changed_at, **fields})


def test_a_member_that_failed_after_a_start_for_this_call_is_not_waited_for(hall: AvailabilityLifecycle) -> None:
    assert reason_not_to_wait(hall, make_failed_member(ago=timedelta(0))) == "it broke"
    assert hall.wake_count == 0


def test_a_call_starts_a_member_that_failed_before_it(hall: AvailabilityLifecycle) -> None:
    row = make_failed_member(ago=HOUR)
    assert reason_not_to_wait(hall, row) == ""
    row.refresh_from_db()
    assert row.next_restart_at is not None
    assert row.next_restart_at <= timezone.now()
    assert hall.wake_count == 1


def test_a_call_does_not_shorten_the_back_off(hall: AvailabilityLifecycle) -> None:
    row = make_failed_member(ago=2 * SECOND, restarts=4)  # its restart is due 8 s after its failure
    assert reason_not_to_wait(hall, row) == ""
    row.refresh_from_db()
    assert abs(row.next_restart_at - row.status_changed_at - 8 * SECOND) < SECOND / 10
    other = make_failed_member(ago=2 * SECOND, restarts=4) if row.delete() else row
    assert reason_not_to_wait(hall, other, timeout=3 * SECOND) == "it broke"
    other.refresh_from_db()
    assert other.next_restart_at is None


def test_a_call_waits_for_a_restart_that_is_due_before_its_timeout(hall: AvailabilityLifecycle) -> None:
    row = make_failed_member(ago=HOUR, next_restart_at=timezone.now() + 5 * SECOND)
    assert reason_not_to_wait(hall, row) == ""
    assert reason_not_to_wait(hall, row, timeout=3 * SECOND) == "it broke"
    assert hall.wake_count == 0


def test_a_call_brings_the_slow_restart_of_a_member_forward(hall: AvailabilityLifecycle) -> None:
    columns = {"restarts": QUICK_TRIES + 1, "next_restart_at": timezone.now() + 5 * MINUTE}
    row = make_failed_member(ago=20 * SECOND, **columns)
    assert reason_not_to_wait(hall, row, timeout=5 * SECOND) == "it broke"  # its back-off ends in 10 s
    assert reason_not_to_wait(hall, row, timeout=MINUTE) == ""
    assert reason_not_to_wait(hall, GuildMember.objects.get(), timeout=MINUTE) == ""
    row.refresh_from_db()
    assert abs(row.next_restart_at - timezone.now() - 10 * SECOND) < SECOND
    assert hall.wake_count == 1


def test_a_member_with_slow_restarts_that_failed_for_this_call_is_not_waited_for(hall: AvailabilityLifecycle) -> None:
    later = timezone.now() + 5 * MINUTE
    row = make_failed_member(ago=timedelta(0), restarts=QUICK_TRIES + 1, next_restart_at=later)
    assert reason_not_to_wait(hall, row) == "it broke"
    row.refresh_from_db()
    assert (row.next_restart_at, hall.wake_count) == (later, 0)


def test_a_call_waits_for_a_restart_that_a_user_requested(hall: AvailabilityLifecycle) -> None:
    row = make_failed_member(ago=HOUR, restart_requested_at=timezone.now())
    assert reason_not_to_wait(hall, row) == ""
    assert reason_not_to_wait(hall, row, timeout=SECOND, elapsed=2 * SECOND) == "it broke"
    assert hall.wake_count == 0


def test_a_member_that_a_call_waits_for_is_started_first(hall: AvailabilityLifecycle) -> None:
    row = make_member(status="disconnected")
    assert reason_not_to_wait(hall, row) == ""
    assert hall.awaited_ids == {row.pk}
