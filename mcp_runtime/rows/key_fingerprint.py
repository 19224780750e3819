"""The secret key is the same on all nodes. The row of the hall has a fingerprint of it, which does not reveal the key.

A hall with one node may change its key. Then its users must log in again.
"""

from __future__ import annotations

from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac

from mcp_runtime.protocol.errors import SecretKeyError
from mcp_runtime.rows.lease import has_other_nodes
from roster.models import Hall, Node


def fingerprint() -> str:
    return salted_hmac("guildhall.key_fingerprint", "secret key of the hall", algorithm="sha256").hexdigest()


def require_same() -> None:
    """Raise SecretKeyError if the hall has another node, and another secret key than this machine."""
    known = Hall.objects.filter(pk=1).values_list("key_fingerprint", flat=True).first()
    if not known or constant_time_compare(known, fingerprint()) or not has_other_nodes():
        return
    name = Node.objects.exclude(name=settings.GUILD_HALL_NODE).values_list("name", flat=True)[0]
    raise SecretKeyError(
        f"This node has another secret key than the hall. Stop it, and copy the file secret-key of node {name!r} into "
        f"the data folder {settings.GUILD_HALL_DATA_DIR}, or set GUILD_HALL_SECRET_KEY_FILE to the path of a copy."
    )


def note() -> None:
    """Store the fingerprint, for the nodes that start later. Call it in the transaction that takes the lease.

    Raises SecretKeyError.
    """
    require_same()
    Hall.objects.filter(pk=1).exclude(key_fingerprint=fingerprint()).update(key_fingerprint=fingerprint())
