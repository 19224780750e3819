"""The hall itself, and the nodes that run it."""

from __future__ import annotations

import uuid

from django.db import connection, models
from django.db.models import F, Q

from roster.json_field import JsonField


class Hall(models.Model):
    """One row per database: the hall's identity, and what its parts must know of each other."""

    # On PostgreSQL, the server ends a transaction whose client says nothing for so long. Otherwise the locks of a
    # machine that froze or lost its power would stay for hours. It is shorter than the time after which a node's fence
    # strikes.
    IDLE_LIMIT = "4s"

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    hall_id = models.UUIDField(default=uuid.uuid4, editable=False)
    access_version = models.BigIntegerField(default=0, help_text="Changes with every change of rights.")
    rolled_up_until = models.DateTimeField(
        null=True, help_text="Calls that ended before this time are in the rollups (CallRollup)."
    )

    key_fingerprint = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        editable=False,
        help_text="A fingerprint of the secret key, which is the same on all nodes. Empty until a runtime has started.",
    )
    required_migration = models.PositiveIntegerField(
        db_default=0,
        editable=False,
        help_text="A version of Guild Hall whose newest migration has a lower number cannot use the database any more.",
    )

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="one_hall_per_database")]

    def __str__(self) -> str:
        return f"hall {self.hall_id}"

    @classmethod
    def note_access_change(cls) -> None:
        """Invalidate all cached principals. Call it in the transaction of the change.

        Call it before changing rows of members. A sync locks this row first and those second, and another order can
        deadlock. The whole hall needs this row, so the transaction gets IDLE_LIMIT.
        """
        if connection.vendor == "postgresql" and connection.in_atomic_block:
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, true)", [cls.IDLE_LIMIT])
        cls.objects.filter(pk=1).update(access_version=F("access_version") + 1)


class Node(models.Model):
    """One machine or container that runs the hall's runtime: the lease of this runtime, and its load.

    A lease is live while its holder's heartbeat is younger than `LEASE_SECONDS`. All times are of the database's clock.
    A node whose runtime has stopped keeps its row, without a lease.
    """

    LEASE_SECONDS = 10.0

    name = models.CharField(max_length=64, unique=True, help_text="GUILD_HALL_NODE of this machine.")
    lease_id = models.UUIDField(null=True, unique=True, editable=False)
    host = models.CharField(max_length=255, blank=True, help_text="The hostname.")
    pid = models.PositiveIntegerField(null=True, help_text="The process id of the worker.")
    identity = models.CharField(
        max_length=100, blank=True, help_text="pid.start.namespace.boot, which no other process has."
    )
    started_at = models.DateTimeField(null=True, help_text="When the runtime took the lease.")
    heartbeat_at = models.DateTimeField(null=True, help_text="The last heartbeat of the runtime.")
    beat = models.BigIntegerField(db_default=0, editable=False, help_text="The number of heartbeats so far.")
    version = models.CharField(max_length=50, blank=True, help_text="The version of Guild Hall.")
    newest_migration = models.PositiveIntegerField(
        db_default=0, editable=False, help_text="The number of the newest migration that this version has."
    )
    url = models.CharField(
        max_length=300, blank=True, db_default="", help_text="GUILD_HALL_NODE_URL: where other nodes reach its gateway."
    )
    capacity = models.PositiveIntegerField(null=True, help_text="The number of calls that can run at the same time.")
    cpu_percent = models.FloatField(
        null=True, help_text="CPU time of the runtime and its members, in percent of one core."
    )
    memory_bytes = models.BigIntegerField(null=True, help_text="Memory of the runtime and its members.")
    labels = JsonField(
        db_default=[], help_text="GUILD_HALL_NODE_LABELS: a member runs here only if all of its labels are among them."
    )
    folders = JsonField(db_default={}, help_text="The digest of each member's folder on this node, by member name.")
    is_draining = models.BooleanField(db_default=False, help_text="The node gives its members away and gets no others.")
    agent_problem = models.TextField(
        blank=True, db_default="", editable=False, help_text="Why no agent can run on the node. Empty if agents can."
    )
    sandbox_gaps = JsonField(
        null=True,
        editable=False,
        help_text="The protections of a sandbox that this machine cannot enforce, each with the reason.",
    )
    fence_is_on = models.BooleanField(
        db_default=False,
        editable=False,
        help_text="Whether the guard ends the members of the node when it cannot renew its lease.",
    )

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
