"""Rows with the state of sessions that their ids do not contain, for the next runtime and for other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from django.db.models.functions import Now

from mcp_runtime.rows.database import short_transaction
from roster.models import ClientSession

LATELY = timedelta(seconds=10)
MAX_ROWS = 100_000


@dataclass(frozen=True)
class SavedState:
    """The stored state of one session. `uris` has the subscribed URIs by member."""

    is_ended: bool = False
    log_level: str = ""
    uris: Mapping[str, frozenset[str]] = field(default_factory=dict)


def load(digest: str) -> SavedState:
    row = ClientSession.objects.filter(pk=digest).first()
    if row is None:
        return SavedState()
    uris = {member: frozenset(uris) for member, uris in row.subscriptions.items()}
    return SavedState(row.ended_at is not None, row.log_level, uris)


def save(digest: str, log_level: str | None, uris: Mapping[str, frozenset[str]]) -> None:
    """Store changes: the log level unless it is None, and the URIs of these members.

    Other nodes store those of their own members in the same row.
    """
    with short_transaction():
        ClientSession.objects.get_or_create(pk=digest, defaults={"changed_at": Now()})
        row = ClientSession.objects.select_for_update().get(pk=digest)
        if log_level is not None:
            row.log_level = log_level
        kept = {member: known for member, known in row.subscriptions.items() if member not in uris}
        row.subscriptions = kept | {member: sorted(changed) for member, changed in uris.items() if changed}
        row.changed_at = Now()
        row.save()


def end(digest: str) -> None:
    values = {"ended_at": Now(), "changed_at": Now(), "log_level": "", "subscriptions": {}}
    with short_transaction():
        ClientSession.objects.update_or_create(pk=digest, defaults=values)


def ended_lately() -> set[str]:
    """Return the digests of sessions that ended in the last seconds, at any node."""
    since = Now() - LATELY
    # The end is a change, and only changes have an index.
    ended = ClientSession.objects.filter(changed_at__gt=since, ended_at__gt=since)
    return set(ended.values_list("pk", flat=True))


def prune(max_age: timedelta) -> None:
    """Delete the rows of sessions whose ids have expired, and the oldest ones above MAX_ROWS."""
    ClientSession.objects.filter(changed_at__lt=Now() - max_age).delete()
    surplus = ClientSession.objects.order_by("-changed_at").values_list("changed_at", flat=True)[MAX_ROWS:]
    if (newest := surplus.first()) is not None:
        ClientSession.objects.filter(changed_at__lte=newest).delete()
