"""The lease: exactly one runtime per hall. A row, compare-and-set, and the database's own clock.

Every status a runtime writes carries `held_by(lease_id)` in its WHERE: one that slept, was stopped or lost its clock
changes nothing after another took over.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
from django.db.models import Exists, Q
from django.db.models.functions import Now

from mcp_runtime.errors import LeaseError
from roster.models import Hall


@dataclass(frozen=True)
class Holder:
    """Who holds the lease, for messages."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def hall() -> Hall:
    """The hall's row, made when it is missing."""
    return Hall.objects.get_or_create(pk=1)[0]


def held_by(lease_id: uuid.UUID) -> Exists:
    """A condition for querysets: true while `lease_id` is still the hall's lease."""
    return Exists(Hall.objects.filter(pk=1, lease_id=lease_id))


def take() -> uuid.UUID:
    """Take the lease. Raises LeaseError while another runtime lives.

    A dead holder on this host loses it at once, one on another host LEASE_SECONDS after its last heartbeat.
    """
    seen = hall()
    if seen.lease_id and _is_live(seen):
        holder = Holder(seen.lease_host, seen.lease_pid or 0)
        raise LeaseError(
            f"another runtime owns this hall: {holder}, since {seen.lease_taken_at:%Y-%m-%d %H:%M:%S} UTC. "
            "Stop it first; one hall (one database) has one runtime"
        )
    lease_id = uuid.uuid4()
    taken = Hall.objects.filter(pk=1, lease_id=seen.lease_id).update(
        lease_id=lease_id,
        lease_host=socket.gethostname(),
        lease_pid=os.getpid(),
        lease_pid_started_at=_started_at(os.getpid()),
        lease_taken_at=Now(),
        heartbeat_at=Now(),
    )
    if not taken:
        raise LeaseError("another runtime took this hall a moment ago")
    return lease_id


def renew(lease_id: uuid.UUID) -> bool:
    """The heartbeat. False: the lease is somebody else's now; end the members and exit."""
    return Hall.objects.filter(pk=1, lease_id=lease_id).update(heartbeat_at=Now()) == 1


def release(lease_id: uuid.UUID) -> None:
    """Give the lease back, so that the next runtime need not wait."""
    Hall.objects.filter(pk=1, lease_id=lease_id).update(
        lease_id=None, lease_host="", lease_pid=None, lease_pid_started_at=None, lease_taken_at=None, heartbeat_at=None
    )


def live_holder() -> Holder | None:
    """The runtime that is alive now, or None: then every reader shows members as disconnected."""
    row = Hall.objects.filter(pk=1).first()
    if row is None or not row.lease_id or not _is_live(row):
        return None
    return Holder(row.lease_host, row.lease_pid or 0)


def _is_live(row: Hall) -> bool:
    if row.lease_host == socket.gethostname() and not _holder_process_is_alive(row):
        return False
    young = Q(heartbeat_at__gt=Now() - timedelta(seconds=Hall.LEASE_SECONDS))
    return Hall.objects.filter(young, pk=1, lease_id=row.lease_id).exists()


def _holder_process_is_alive(row: Hall) -> bool:
    """Whether the very process that took the lease still runs: a pid alone proves nothing."""
    try:
        pid = row.lease_pid or 0
        return _started_at(pid) == row.lease_pid_started_at and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _started_at(pid: int) -> float:
    """When the process started, in seconds that nobody can set. Raises psutil.NoSuchProcess."""
    if sys.platform != "linux":
        return float(psutil.Process(pid).create_time())
    # Since boot, as the kernel wrote it down: psutil adds the time of the boot, which moves with the wall clock.
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    # The name in parentheses may hold anything, parentheses too; the start is field 22.
    return int(stat.rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
