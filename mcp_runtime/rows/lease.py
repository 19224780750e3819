"""The lease: exactly one runtime for each hall. It uses a row, compare-and-set, and the database's own clock.

Each update of a status by a runtime has `held_by(lease_id)` in its WHERE. So a runtime that slept, was stopped or has a
wrong clock changes nothing after another runtime has taken over.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, Q
from django.db.models.functions import Now

from mcp_runtime.protocol.errors import LeaseError
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import Hall

HEARTBEAT_LOOK = 0.1
HEARTBEAT_PATIENCE = 2.0  # of two heartbeats


@dataclass(frozen=True)
class Holder:
    """The holder of the lease, for messages."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def hall() -> Hall:
    """The hall's row. Creates it if it is missing."""
    return Hall.objects.get_or_create(pk=1)[0]


def held_by(lease_id: uuid.UUID) -> Exists:
    """A condition for querysets: true while `lease_id` is still the hall's lease."""
    return Exists(Hall.objects.filter(pk=1, lease_id=lease_id))


def await_heartbeat(say: Callable[[str], None]) -> Holder | None:
    """Wait for a heartbeat, and return the runtime that is alive. None if there is none.

    A copy of the database names the holder of the original, but has no heartbeats. Then this takes up to LEASE_SECONDS,
    or twice that on a machine whose clock is behind, and `say` gets the reason.
    """
    first, say_at = _last_beats(), time.monotonic() + HEARTBEAT_PATIENCE
    deadline = time.monotonic() + 2 * Hall.LEASE_SECONDS
    while (holder := live_holder()) and _last_beats() == first and time.monotonic() < deadline:
        if say_at and time.monotonic() > say_at:
            say(
                f"the database says that {holder} is its runtime, but it does not answer. If this is a copy, it is "
                f"free within {Hall.LEASE_SECONDS:g} s, or twice that if this machine's clock is behind; waiting"
            )
            say_at = 0.0
        time.sleep(HEARTBEAT_LOOK)
    return holder


def require_free() -> Hall:
    """The hall's row. Raises LeaseError while another runtime is alive.

    A holder that is provably dead loses the lease at once. Any other holder loses it LEASE_SECONDS after its last
    heartbeat, in the row or in the data folder. If its process exists, this also waits HEARTBEAT_PATIENCE.
    """
    row = hall()
    if row.lease_id and (_is_live(row) or _beats_again(row)):
        holder = Holder(row.lease_host, row.lease_pid or 0)
        raise LeaseError(
            f"another runtime owns this hall: {holder}, since {row.lease_taken_at:%Y-%m-%d %H:%M:%S} UTC. "
            "Stop it first; one hall (one database) has one runtime"
        )
    return row


def _beats_again(row: Hall) -> bool:
    """Whether a holder with old heartbeats is alive. They look old after a sleep, or if the clock was set."""
    holder = RuntimeId.parse(row.lease_runtime)
    if holder is None or holder.is_elsewhere or holder.is_dead:
        return False
    deadline = time.monotonic() + HEARTBEAT_PATIENCE
    while time.monotonic() < deadline:
        if _is_live(hall()):
            return True
        time.sleep(HEARTBEAT_LOOK)
    return False


def take(
    reset: Callable[[], None] = lambda: None, row: Hall | None = None, lease_id: uuid.UUID | None = None
) -> uuid.UUID:
    """Take the lease. Raises LeaseError while another runtime is alive. `row` is the result of `require_free`.

    `reset` updates the rows of the last holder, in the same transaction. A second try, after a lost answer, passes the
    `lease_id` of the first try, which may have taken the lease already.
    """
    row = row or require_free()
    lease_id, runtime = lease_id or uuid.uuid4(), RuntimeId.own()
    rows = Hall.objects.filter(_last_beat_is(row.heartbeat_at), pk=1, lease_id=row.lease_id)
    with transaction.atomic():
        is_taken = rows.update(
            lease_id=lease_id,
            lease_host=socket.gethostname(),
            lease_pid=runtime.pid,
            lease_runtime=str(runtime),
            lease_taken_at=Now(),
            heartbeat_at=Now(),
        )
        if is_taken:
            reset()
        elif not Hall.objects.filter(pk=1, lease_id=lease_id).exists():
            raise LeaseError("another runtime took this hall, or showed that it lives, a moment ago")
    return lease_id


def _last_beat_is(moment: datetime | None) -> Q:
    """A condition: the last heartbeat is still that of `moment`. A runtime with a later heartbeat is alive."""
    if moment is None:
        return Q(heartbeat_at=None)
    # SQLite compares text, and its clock writes three digits where Django writes six.
    tolerance = timedelta(milliseconds=0.5)
    return Q(heartbeat_at__range=(moment - tolerance, moment + tolerance))


def renew(lease_id: uuid.UUID) -> bool:
    """Write the heartbeat. If False, another runtime has the lease. Then end the members and exit."""
    return Hall.objects.filter(pk=1, lease_id=lease_id).update(heartbeat_at=Now()) == 1


def beat(lease_id: uuid.UUID) -> None:
    """Write the heartbeat to a file too. It shows that the runtime is alive while the database is locked or full.

    Raises OSError.
    """
    path, text = _heartbeat_file(), _heartbeat_text(lease_id)
    if path.exists() and path.read_text() == text:
        os.utime(path)  # needs no space
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def _heartbeat_file() -> Path:
    return Path(settings.GUILD_HALL_DATA_DIR) / "heartbeat"


def _heartbeat_text(lease_id: uuid.UUID) -> str:
    """Names the lease and the database, because a copy of the database has the same lease."""
    config = connection.settings_dict
    if connection.vendor == "sqlite":
        database = str(Path(config["NAME"]).stat().st_ino)
    else:
        database = f"{config['HOST']}:{config['PORT']}/{config['NAME']}"
    return f"{lease_id} {database}"


def release(lease_id: uuid.UUID) -> None:
    """Give the lease back, so that the next runtime does not wait."""
    Hall.objects.filter(pk=1, lease_id=lease_id).update(
        lease_id=None, lease_host="", lease_pid=None, lease_runtime="", lease_taken_at=None, heartbeat_at=None
    )


def live_holder() -> Holder | None:
    """The runtime that is alive now. If None, readers show all members as disconnected.

    A runtime is alive if it is not provably dead, and its last heartbeat is younger than LEASE_SECONDS, in the row or
    in the data folder. A database that is locked or full for long accepts no heartbeats, but calls continue.
    """
    row = Hall.objects.filter(pk=1).first()
    if row is None or not row.lease_id or not _is_live(row):
        return None
    return Holder(row.lease_host, row.lease_pid or 0)


def _is_live(row: Hall) -> bool:
    holder = RuntimeId.parse(row.lease_runtime)
    if holder is not None and holder.is_dead:
        return False
    # A heartbeat in the future is from another clock, from the original of a copy, or before the clock was set back.
    age = timedelta(seconds=Hall.LEASE_SECONDS)
    young = Q(heartbeat_at__gt=Now() - age, heartbeat_at__lt=Now() + age)
    return Hall.objects.filter(young, pk=1, lease_id=row.lease_id).exists() or _beats_beside(row.lease_id)


def _last_beats() -> tuple[object, ...]:
    """The holder's last heartbeats, in the row and in the data folder. Their change shows that it is alive."""
    row = hall()
    return row.heartbeat_at, _last_beat_beside(row.lease_id)


def _beats_beside(lease_id: uuid.UUID | None) -> bool:
    """Whether the runtime of that lease has a recent heartbeat in this data folder."""
    moment = _last_beat_beside(lease_id)
    return moment is not None and abs(time.time() - moment) < Hall.LEASE_SECONDS


def _last_beat_beside(lease_id: uuid.UUID | None) -> float | None:
    """The last heartbeat of that lease's runtime in this data folder, by its clock. None if there is none."""
    try:
        path = _heartbeat_file()
        moment = path.stat().st_mtime
        return moment if lease_id is not None and path.read_text() == _heartbeat_text(lease_id) else None
    except OSError:
        return None
