"""Decides when a member that failed is tried again.

Moments in rows are of the wall clock, for people. That clock can be set. So code that waits for a restart uses this
module, which converts them to moments of the monotonic clock.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django.utils import timezone

from roster.models import GuildMember

QUICK_TRIES = 5
LONGEST_DELAY = 30.0
SLOW_DELAY = 300.0
CLOCK_STEP = 1.0  # seconds that a row may be wrong by
# How many values of a column are remembered. A thread may have read the row before its last changes, and the time that
# it read must still convert to the same moment.
VALUES_OF_A_COLUMN = 4


def restart_delay(failures: int) -> timedelta:
    """The back-off after the nth failure in a row: 1, 2, 4, 8, 16, at most 30 s. Zero without a failure."""
    return timedelta(seconds=min(2.0 ** min(failures - 1, 10), LONGEST_DELAY) if failures else 0.0)


def is_tried_slowly(member: GuildMember) -> bool:
    """Whether it failed so often that it is tried only every few minutes, because each try costs a process.

    A remote server is never tried slowly, because a try costs nothing.
    """
    return member.restarts > QUICK_TRIES and not member.manifest.get("url")


def next_try_after(member: GuildMember) -> float:
    """Seconds from the last failure to the next automatic try, after `member.restarts` consecutive failures."""
    return SLOW_DELAY if is_tried_slowly(member) else restart_delay(member.restarts).total_seconds()


class Restarts:
    """The next tries of one runtime's members.

    Each time in a database row is converted once, and the result stays if the clock is set.
    All moments that are floats are seconds of `time.monotonic()`.
    """

    def __init__(self) -> None:
        # By member id and column: the last values of the column, the newest first, with their moments.
        self._moments: dict[tuple[int, str], tuple[tuple[datetime, float], ...]] = {}

    def next_try(self, member: GuildMember) -> float | None:
        """When the member is tried again automatically. None means never."""
        at = member.next_restart_at
        return None if at is None else self._moment(member.pk, "next_restart_at", at)

    def is_due(self, member: GuildMember) -> bool:
        moment = self.next_try(member)
        return moment is not None and moment <= time.monotonic()

    def failed_at(self, member: GuildMember) -> float:
        """When a member in ERROR failed."""
        return self._moment(member.pk, "status_changed_at", member.status_changed_at)

    def earliest(self, member: GuildMember) -> float:
        """The first moment at which a call may start a member in ERROR. Calls never shorten the back-off."""
        return self.failed_at(member) + restart_delay(member.restarts).total_seconds()

    def plan(self, member_id: int, moment: float) -> datetime:
        """Plan the next try for `moment`. Returns what to write as the row's `next_restart_at`."""
        at = timezone.now() + timedelta(seconds=moment - time.monotonic())
        self._remember(member_id, "next_restart_at", at, moment)
        return at

    def corrected_time(self, member: GuildMember) -> datetime | None:
        """What `next_restart_at` must be after somebody set the clock. None while the row is right."""
        moment, at = self.next_try(member), member.next_restart_at
        if moment is None or at is None:
            return None
        off = (at - timezone.now()).total_seconds() - (moment - time.monotonic())
        return self.plan(member.pk, moment) if abs(off) > CLOCK_STEP else None

    def note_change(self, member_id: int, at: datetime) -> None:
        """The member's status changes now, and its row says `at`."""
        self._remember(member_id, "status_changed_at", at, time.monotonic())

    def _moment(self, member_id: int, column: str, at: datetime) -> float:
        for value, moment in self._moments.get((member_id, column), ()):
            if value == at:
                return moment
        return self._remember(member_id, column, at, time.monotonic() + (at - timezone.now()).total_seconds())

    def _remember(self, member_id: int, column: str, at: datetime, moment: float) -> float:
        values = self._moments.get((member_id, column), ())
        self._moments[member_id, column] = ((at, moment), *values[: VALUES_OF_A_COLUMN - 1])
        return moment
