"""The lease of the hall, as tests see and change it."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.db.models.functions import Now

from mcp_runtime.rows import lease
from roster.models import GuildMember, Node, PortAllocation


def current_lease_id() -> uuid.UUID | None:
    """The id of the lease that a runtime holds. None if the lease is free."""
    node = lease.holder_node()
    return node.lease_id if node else None


def own_node() -> Node:
    """The node of this machine. A member that it owns is shown as it is in its row while this node has the lease."""
    return Node.objects.get_or_create(name=settings.GUILD_HALL_NODE)[0]


def add_node(name: str, *, is_alive: bool = True, **columns: Any) -> Node:
    """Another machine of the hall. Its runtime has sent a heartbeat a moment ago, or has given its lease back."""
    lease_id = uuid.uuid4() if is_alive else None
    node = Node.objects.create(**{"name": name, "host": f"{name}.invalid", "pid": 1, "lease_id": lease_id, **columns})
    Node.objects.filter(pk=node.pk).update(started_at=Now(), heartbeat_at=Now())
    return node


def give_lease_to_another_runtime() -> None:
    other_lease_id = uuid.uuid4()
    Node.objects.update(lease_id=other_lease_id)
    GuildMember.objects.update(lease_id=other_lease_id)
    PortAllocation.objects.update(lease_id=other_lease_id)
