"""The hall itself: its identity, and the lease of its one runtime."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q


class Hall(models.Model):
    """One row per database: the hall's identity, and the lease of its one runtime.

    A lease is live while its holder's heartbeat is younger than `LEASE_SECONDS`. All times are of the database's clock.
    """

    LEASE_SECONDS = 10.0

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    hall_id = models.UUIDField(default=uuid.uuid4, editable=False)
    lease_id = models.UUIDField(null=True, editable=False)
    lease_host = models.CharField(max_length=255, blank=True)
    lease_pid = models.PositiveIntegerField(null=True)
    lease_runtime = models.CharField(
        max_length=100, blank=True, help_text="pid.start.namespace.boot, which no other process has."
    )
    lease_taken_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    access_version = models.BigIntegerField(default=0, help_text="Changes with every change of rights.")
    agent_problem = models.TextField(blank=True, help_text="Why the runtime cannot run agents. Empty if it can.")
    rolled_up_until = models.DateTimeField(
        null=True, help_text="Calls that ended before this time are in the rollups (CallRollup)."
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_hall_per_database")]

    def __str__(self) -> str:
        return f"hall {self.hall_id}"

    @classmethod
    def note_access_change(cls) -> None:
        """Invalidate all cached principals. Call it in the transaction of the change.

        Call it before changing rows of members. A sync locks this row first and those second, and another order can
        deadlock.
        """
        cls.objects.filter(pk=1).update(access_version=F("access_version") + 1)
