"""Is there any use in waiting for a member: what its row says, and how a call has one started."""

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
from mcp_runtime.members.starting import StartOptions
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import GuildMember

pytestmark = pytest.mark.django_db

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Hall_(Lifecycle):
    """A lifecycle: all rows are its own, until it lost its lease."""

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
        self.woken = 0
        self.has_lease = True
        self.availability = Availability(self, self.wake)

    def own_row(self, member_id: int) -> QuerySet[GuildMember]:
        rows = GuildMember.objects.filter(pk=member_id)
        return rows if self.has_lease else rows.none()

    def wake(self) -> None:
        self.woken += 1


@pytest.fixture
def hall() -> Hall_:
    return Hall_()


def member(**fields: Any) -> GuildMember:
    return GuildMember.objects.create(name="notes", directory="notes", **fields)


def verdict(hall: Hall_, row: GuildMember, patience: timedelta = HOUR, waited: timedelta = SECOND) -> str:
    since = time.monotonic() - waited.total_seconds()
    return hall.availability.no_use_waiting(row, since, since + patience.total_seconds())


def test_a_stopped_member_is_wanted_again_and_the_supervisor_woken_once(hall: Hall_) -> None:
    row = member(desired_state="stopped")
    hall.availability.ask_for_start(row.pk)
    hall.availability.ask_for_start(row.pk)
    row.refresh_from_db()
    assert (row.desired_state, hall.woken) == ("running", 1)


def test_who_waits_is_told_why_a_member_failed_without_what_it_wrote_last(hall: Hall_) -> None:
    """Its last lines may hold what others asked of it."""
    failed = f"it exited with code 3{GuildMember.TAIL_MARK}another's argument"
    row = member(status="error", last_error=failed, next_restart_at=timezone.now() + 2 * HOUR)
    assert verdict(hall, row) == "it exited with code 3"


def test_without_the_lease_the_desired_state_stays(hall: Hall_) -> None:
    row = member(desired_state="stopped")
    hall.has_lease = False
    hall.availability.ask_for_start(row.pk)
    row.refresh_from_db()
    assert (row.desired_state, hall.woken) == ("stopped", 0)


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
def test_the_row_says_whether_it_may_come_up(hall: Hall_, fields: dict[str, Any], reason: str) -> None:
    row = member(**fields)
    row.refresh_from_db()
    assert verdict(hall, row) == reason


def test_patience_ends(hall: Hall_) -> None:
    assert verdict(hall, member(status="starting"), patience=SECOND, waited=2 * SECOND) == (
        "it was not connected within 1 s"
    )


def failed(ago: timedelta, **fields: Any) -> GuildMember:
    changed = timezone.now() - ago
    return member(**{"status": "error", "last_error": "it broke", "status_changed_at": changed, **fields})


def test_a_member_that_was_tried_for_this_call_and_failed_is_not_waited_for(hall: Hall_) -> None:
    assert verdict(hall, failed(ago=timedelta(0))) == "it broke"
    assert hall.woken == 0


def test_a_call_starts_what_failed_before_it(hall: Hall_) -> None:
    row = failed(ago=HOUR)
    assert verdict(hall, row) == ""
    row.refresh_from_db()
    assert row.next_restart_at is not None
    assert row.next_restart_at <= timezone.now()
    assert hall.woken == 1


def test_a_call_does_not_defeat_the_back_off(hall: Hall_) -> None:
    row = failed(ago=2 * SECOND, restarts=4)  # so that it is due 8 s after its failure
    assert verdict(hall, row) == ""
    row.refresh_from_db()
    assert abs(row.next_restart_at - row.status_changed_at - 8 * SECOND) < SECOND / 10
    other = failed(ago=2 * SECOND, restarts=4) if row.delete() else row
    assert verdict(hall, other, patience=3 * SECOND) == "it broke"
    other.refresh_from_db()
    assert other.next_restart_at is None


def test_a_restart_that_is_due_is_waited_for_as_long_as_there_is_patience(hall: Hall_) -> None:
    row = failed(ago=HOUR, next_restart_at=timezone.now() + 5 * SECOND)
    assert verdict(hall, row) == ""
    assert verdict(hall, row, patience=3 * SECOND) == "it broke"
    assert hall.woken == 0


def test_a_call_brings_the_try_forward_of_a_member_that_is_tried_slowly(hall: Hall_) -> None:
    slowly = {"restarts": QUICK_TRIES + 1, "next_restart_at": timezone.now() + 5 * MINUTE}
    row = failed(ago=20 * SECOND, **slowly)
    assert verdict(hall, row, patience=5 * SECOND) == "it broke"  # its back-off has 10 s to go
    assert verdict(hall, row, patience=MINUTE) == ""
    assert verdict(hall, GuildMember.objects.get(), patience=MINUTE) == ""
    row.refresh_from_db()
    assert abs(row.next_restart_at - timezone.now() - 10 * SECOND) < SECOND
    assert hall.woken == 1


def test_a_member_that_is_tried_slowly_and_was_tried_for_this_call_is_not_waited_for(hall: Hall_) -> None:
    later = timezone.now() + 5 * MINUTE
    row = failed(ago=timedelta(0), restarts=QUICK_TRIES + 1, next_restart_at=later)
    assert verdict(hall, row) == "it broke"
    row.refresh_from_db()
    assert (row.next_restart_at, hall.woken) == (later, 0)


def test_a_restart_that_somebody_asked_for_is_waited_for(hall: Hall_) -> None:
    row = failed(ago=HOUR, restart_requested_at=timezone.now())
    assert verdict(hall, row) == ""
    assert verdict(hall, row, patience=SECOND, waited=2 * SECOND) == "it broke"
    assert hall.woken == 0


def test_a_member_that_a_call_waits_for_is_one_to_start_first(hall: Hall_) -> None:
    row = member(status="disconnected")
    assert verdict(hall, row) == ""
    assert hall.awaited_ids == {row.pk}
