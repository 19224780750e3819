"""The time of rows: that of the database, so that rows of several nodes can be compared whatever their clocks say.

With SQLite, the clock of this machine is the clock of the database.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.db.utils import Error
from django.utils import timezone

logger = logging.getLogger("guildhall.runtime")

MEASURE_SECONDS = 15.0  # between two readings of the database's clock
TOLERANCE_SECONDS = 2.0
REPORT_SECONDS = 600.0  # between two reports of the same difference
# Counts while the machine is suspended too. Only Linux has it.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class DatabaseClock:
    """The database's clock, read now and then. A clock that no setting of the time changes counts in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base: float | None = None  # the database's time when the counting clock was at 0
        self.measure_at = self._report_at = 0.0

    def now(self) -> datetime:
        elapsed = time.clock_gettime(_ELAPSED)
        if self._base is None or elapsed >= self.measure_at:
            with self._lock:
                self._measure(elapsed)
        if self._base is None:
            return timezone.now()
        return datetime.fromtimestamp(self._base + time.clock_gettime(_ELAPSED), UTC)

    def _measure(self, asked_at: float) -> None:
        """Read the clock, unless another thread did it a moment ago. After an error, continue with the last reading."""
        if self._base is not None and asked_at < self.measure_at:
            return
        began = time.clock_gettime(_ELAPSED)
        try:
            database_time = read().timestamp()
        except Error:
            if self._base is None:
                raise
            return
        ended = time.clock_gettime(_ELAPSED)
        base = database_time - (began + ended) / 2
        # A slow answer says less about the time than the counting clock.
        if self._base is None or abs(base - self._base) > (ended - began) / 2:
            self._base = base
        self.measure_at = ended + MEASURE_SECONDS
        self._report(time.time() - (base + ended), ended)

    def _report(self, difference: float, moment: float) -> None:
        if abs(difference) > TOLERANCE_SECONDS and moment >= self._report_at:
            self._report_at = moment + REPORT_SECONDS
            direction = "ahead of" if difference > 0 else "behind"
            logger.warning(
                "the clock of this machine is %.1f s %s the clock of the database. Rows have the time of the database. "
                "Set the clock, for example with NTP",
                abs(difference),
                direction,
            )


_database_clock = DatabaseClock()


def now() -> datetime:
    """The time for a row. With PostgreSQL it may query the database, so call it in a thread that may."""
    return timezone.now() if connection.vendor == "sqlite" else _database_clock.now()


def of_local(seconds: float) -> datetime:
    """The time for a row of a moment that `time.time()` returned here, a short while ago."""
    if connection.vendor == "sqlite":
        return datetime.fromtimestamp(seconds, UTC)
    return now() - timedelta(seconds=time.time() - seconds)


def read() -> datetime:
    """The time of the database, by a query."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment
