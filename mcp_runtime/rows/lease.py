"""The lease: exactly one runtime for each node. It uses the node's row, compare-and-set, and the database's own clock.

With SQLite the hall has one runtime, whatever the name of its node. A runtime that takes the lease becomes the owner
of the node's members (`ownership`). So a runtime that slept, was stopped or has a wrong clock changes nothing after
another runtime has taken over. `held_by` protects rows that have no owner.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sized
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import BooleanField, Case, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models.functions import Now

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import LeaseError
from mcp_runtime.rows import migrations
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.system.runtime_id import RuntimeId
from roster.models import Hall, Node

HEARTBEAT_LOOK = 0.1
HEARTBEAT_PATIENCE = 2.0  # seconds, the time of two heartbeats


@dataclass(frozen=True)
class Holder:
    """The holder of the lease, for messages."""

    host: str
    pid: int

    @classmethod
    def of(cls, node: Node) -> Holder:
        return cls(node.host, node.pid or 0)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def hall() -> Hall:
    """The hall's row. Creates it if it is missing."""
    return Hall.objects.get_or_create(pk=1)[0]


def leased_nodes() -> QuerySet[Node]:
    """The nodes with a lease that no second runtime may have beside it: this node, and with SQLite every node."""
    nodes = Node.objects.exclude(lease_id=None)
    return nodes if connection.vendor == "sqlite" else nodes.filter(name=settings.GUILD_HALL_NODE)


def has_other_nodes() -> bool:
    """Whether the hall has another node than this one, alive or not. With SQLite it has none."""
    return connection.vendor != "sqlite" and Node.objects.exclude(name=settings.GUILD_HALL_NODE).exists()


def is_shared(nodes: Sized) -> bool:
    """Whether the hall has several nodes, if these are all its rows. With SQLite, other rows are of its past."""
    return connection.vendor != "sqlite" and len(nodes) > 1


def holder_node() -> Node | None:
    """The node whose runtime has the lease that a runtime here would need, alive or not. None if the lease is free."""
    return leased_nodes().first()


def held_by(lease_id: uuid.UUID) -> Exists:
    """A condition for querysets: true while `lease_id` is the lease of a node."""
    return Exists(Node.objects.filter(lease_id=lease_id))


def held_by_none(column: str = "lease_id") -> Q:
    """A condition for querysets: true if no node has the lease in `column`, because its runtime has ended."""
    return ~Q(Exists(Node.objects.filter(lease_id=OuterRef(column))))


def await_heartbeat(say: Callable[[str], None]) -> Holder | None:
    """Wait for a heartbeat, and return the runtime that is alive. None if there is none.

    A copy of the database names the holder of the original, but has no heartbeats. Then this takes up to LEASE_SECONDS,
    or twice that on a machine whose clock is behind, and `say` gets the reason.
    """
    first, say_at = _last_beats(), time.monotonic() + HEARTBEAT_PATIENCE
    deadline = time.monotonic() + 2 * Node.LEASE_SECONDS
    while (holder := live_holder()) and _last_beats() == first and time.monotonic() < deadline:
        if say_at and time.monotonic() > say_at:
            say(
                f"the database says that {holder} is its runtime, but it does not answer. If this is a copy, it is "
                f"free within {Node.LEASE_SECONDS:g} s, or twice that if this machine's clock is behind; waiting"
            )
            say_at = 0.0
        time.sleep(HEARTBEAT_LOOK)
    return holder


def require_free() -> Node | None:
    """The node whose dead runtime has the lease, or None. Raises LeaseError while another runtime is alive.

    A holder that is provably dead counts as dead at once, any other holder LEASE_SECONDS after its last heartbeat in
    the row or in the data folder. If its process exists on this machine, this also waits HEARTBEAT_PATIENCE.
    """
    node = holder_node()
    if node and (_is_live(node) or _beats_again(node)):
        raise LeaseError(_refusal(node))
    return node


def _refusal(node: Node) -> str:
    holder = f"{Holder.of(node)}, node {node.name!r}, since {node.started_at:%Y-%m-%d %H:%M:%S} UTC"
    if node.name != settings.GUILD_HALL_NODE:
        return (
            f"another runtime owns this hall: {holder}. A hall on SQLite has one runtime. For a second node, set "
            "DATABASE_URL to a PostgreSQL database on all nodes. Otherwise stop the other runtime first"
        )
    if connection.vendor == "sqlite":
        return f"another runtime owns this hall: {holder}. Stop it first; one hall (one database) has one runtime"
    return (
        f"another runtime owns this node: {holder}. Stop it first. If this is another machine, give it another name "
        "with GUILD_HALL_NODE"
    )


def _beats_again(node: Node) -> bool:
    """Whether a holder with old heartbeats is alive. They look old after a sleep, or if the clock was set."""
    holder = RuntimeId.parse(node.identity)
    if holder is None or holder.is_elsewhere or holder.is_dead:
        return False
    deadline = time.monotonic() + HEARTBEAT_PATIENCE
    while time.monotonic() < deadline:
        current = holder_node()
        if current is None:
            return False  # it has given the lease back
        if _is_live(current):
            return True
        time.sleep(HEARTBEAT_LOOK)
    return False


def take(
    reset: Callable[[Node], None] = lambda node: None,
    last: Node | None = None,
    lease_id: uuid.UUID | None = None,
    *,
    fence_is_on: bool = False,
) -> uuid.UUID:
    """Take the lease. Raises LeaseError while another runtime is alive, and MigrationError.

    `reset(node)` takes over the rows of the last holder, in the same transaction. A caller that passes a `lease_id`
    also passes the result of `require_free` as `last`. If the answer of the database was lost, it calls again with the
    same values, because the first try may have taken the lease. `fence_is_on` tells other nodes whether this node's
    guard ends its members when it cannot renew the lease (`runtime.fence`).
    """
    from mcp_runtime.sandbox import capabilities  # late, because commands that read the lease must start fast

    if lease_id is None:
        lease_id, last = uuid.uuid4(), require_free()
    runtime, sandbox_gaps = RuntimeId.own(), capabilities.probe().gaps
    hall()
    with short_transaction():
        # One start at a time, and no migration that ends the use of this version. SQLite has one writing transaction.
        list(Hall.objects.select_for_update())
        migrations.require_use()
        if last is not None:
            _free(last)
        if not leased_nodes().exists():
            values = {
                "lease_id": lease_id,
                "host": socket.gethostname(),
                "pid": runtime.pid,
                "identity": str(runtime),
                "started_at": Now(),
                "heartbeat_at": Now(),
                "version": mcp.HALL_VERSION,
                "newest_migration": migrations.newest(),
                "url": settings.GUILD_HALL_NODE_URL,
                "capacity": settings.GUILD_HALL_CONCURRENCY,
                "labels": settings.GUILD_HALL_NODE_LABELS,
                "cpu_percent": None,
                "memory_bytes": None,
                "fence_is_on": fence_is_on,
                "sandbox_gaps": sandbox_gaps,
            }
            node = Node.objects.update_or_create(name=settings.GUILD_HALL_NODE, defaults=values)[0]
            Node.objects.filter(pk=node.pk).update(beat=F("beat") + 1)
            reset(node)
        elif not renew(lease_id):  # if an earlier try has taken it, this one is a heartbeat too
            raise LeaseError("another runtime took this hall a moment ago, or the last one has sent another heartbeat")
    return lease_id


def _free(node: Node) -> None:
    """Take the lease from a dead holder, unless it has had another heartbeat since its row was read."""
    Node.objects.filter(_last_beat_is(node.heartbeat_at), pk=node.pk, lease_id=node.lease_id).update(lease_id=None)


def _last_beat_is(moment: datetime | None) -> Q:
    """A condition: the last heartbeat is still that of `moment`. A runtime with a later heartbeat is alive."""
    if moment is None:
        return Q(heartbeat_at=None)
    # SQLite compares text, and its clock writes three digits where Django writes six.
    tolerance = timedelta(milliseconds=0.5)
    return Q(heartbeat_at__range=(moment - tolerance, moment + tolerance))


def renew(lease_id: uuid.UUID, *, fence_is_on: bool = False) -> bool:
    """Write the heartbeat. False if this runtime has lost the lease. Then the caller ends the members and exits."""
    fence = {"fence_is_on": True} if fence_is_on else {}  # once it is on, it stays on
    return Node.objects.filter(lease_id=lease_id).update(heartbeat_at=Now(), beat=F("beat") + 1, **fence) == 1


def note_sandbox_gaps(lease_id: uuid.UUID, gaps: dict[str, str]) -> None:
    """Write what this machine cannot enforce, if it gave no answer when the lease was taken."""
    Node.objects.filter(lease_id=lease_id).update(sandbox_gaps=gaps)


def revoke(node: Node) -> bool:
    """Take the lease from the runtime of a node that is gone, unless it has renewed it since its row was read.

    A node without a fence may still run its members, although it cannot reach the database. So its lease stays. It ends
    when the node starts again, or when an operator says that the node is gone (`control.nodes.remove_node`).
    """
    rows = Node.objects.filter(pk=node.pk, lease_id=node.lease_id, beat=node.beat, fence_is_on=True)
    return rows.update(lease_id=None) == 1


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
    """Give the lease back, so that the next runtime does not wait. The node's row shows when that was."""
    Node.objects.filter(lease_id=lease_id).update(lease_id=None, heartbeat_at=Now(), beat=F("beat") + 1)


def live_holder() -> Holder | None:
    """The runtime that is alive now. If None, readers show all members as disconnected.

    A runtime is alive if it is not provably dead, and its last heartbeat is younger than LEASE_SECONDS, in the row or
    in the data folder. The folder counts too, because a locked or full database accepts no heartbeats while calls run.
    """
    node = holder_node()
    return Holder.of(node) if node and _is_live(node) else None


def with_heartbeats(nodes: QuerySet[Node]) -> QuerySet[Any]:
    """Add `beats`, whether the last heartbeat is recent. With it, `is_alive` makes no query."""
    return nodes.annotate(beats=Case(When(_is_recent(), then=True), default=False, output_field=BooleanField()))


def _is_recent() -> Q:
    # A heartbeat in the future is from another clock, from the original of a copy, or before the clock was set back. A
    # clock may be ahead by less than LEASE_SECONDS.
    age = timedelta(seconds=Node.LEASE_SECONDS)
    return Q(heartbeat_at__gt=Now() - age, heartbeat_at__lt=Now() + age)


def is_alive(node: Node) -> bool:
    """Whether the runtime of the node is alive."""
    return node.lease_id is not None and _is_live(node)


def is_irrevocable(node: Node) -> bool:
    """Whether the node has a lease that other nodes cannot revoke when it is gone, because its fence is off."""
    return connection.vendor != "sqlite" and node.lease_id is not None and not node.fence_is_on


def _is_live(node: Node) -> bool:
    holder = RuntimeId.parse(node.identity)
    if holder is not None and holder.is_dead:
        return False
    beats: bool | None = getattr(node, "beats", None)
    if beats is None:
        beats = Node.objects.filter(_is_recent(), lease_id=node.lease_id).exists()
    return beats or _beats_beside(node.lease_id)


def _last_beats() -> tuple[object, ...]:
    """The holder's last heartbeats, in the row and in the data folder. Their change shows that it is alive."""
    node = holder_node()
    return (node.heartbeat_at, _last_beat_beside(node.lease_id)) if node else ()


def _beats_beside(lease_id: uuid.UUID | None) -> bool:
    """Whether the runtime of that lease has a recent heartbeat in this data folder."""
    moment = _last_beat_beside(lease_id)
    return moment is not None and abs(time.time() - moment) < Node.LEASE_SECONDS


def _last_beat_beside(lease_id: uuid.UUID | None) -> float | None:
    """The last heartbeat of that lease's runtime in this data folder, by its clock. None if there is none."""
    try:
        path = _heartbeat_file()
        moment = path.stat().st_mtime
        return moment if lease_id is not None and path.read_text() == _heartbeat_text(lease_id) else None
    except OSError:
        return None
