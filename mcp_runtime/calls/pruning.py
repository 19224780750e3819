"""Deletes old calls and status changes."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, F
from django.db.models.functions import Coalesce

from mcp_runtime.calls import statistics
from mcp_runtime.rows import clock
from mcp_runtime.rows.database import short_transaction
from roster.models import Call, CallTotal, StatusChange

BATCH = 500


def prune_calls(*, days: int, keep: int) -> int:
    """Delete finished calls that ended more than `days` days ago, and all finished calls except the newest `keep`.

    Return how many calls were deleted.

    Calls are deleted in small batches, so that other writers wait only briefly. Each batch is first added to CallTotal
    and to the rollups, so that /metrics and the plots still count its calls.
    """
    count = 0
    finished_calls = Call.objects.filter(status__in=Call.FINISHED)
    expired = finished_calls.filter(finished_at__lt=clock.now() - timedelta(days=days))
    newest_surplus = finished_calls.order_by("-id").values_list("id", flat=True)[keep : keep + 1].first()
    surplus = finished_calls.filter(id__lte=newest_surplus) if newest_surplus else finished_calls.none()
    for rows in (expired, surplus):
        while ids := list(rows.order_by("id").values_list("id", flat=True)[:BATCH]):
            statistics.add_calls(ids)
            count += _prune_batch(ids)
    return count


def prune_status_changes(*, days: int) -> int:
    """Delete status changes that are older than `days` days. Return how many.

    A failure is as old as its last repeat, because its row still counts the next ones.
    """
    rows = StatusChange.objects.alias(last_at=Coalesce("repeated_at", "created_at"))
    return rows.filter(last_at__lt=clock.now() - timedelta(days=days)).delete()[0]


def _prune_batch(ids: list[int]) -> int:
    with short_transaction():
        # The lock prevents two concurrent prunes from counting a call twice.
        rows = Call.objects.select_for_update().filter(pk__in=ids, status__in=Call.FINISHED)
        batch = Call.objects.filter(pk__in=list(rows.order_by("id").values_list("id", flat=True)))
        for row in batch.order_by().values("member_id", "status", "error_kind").annotate(count=Count("id")):
            outcome = row["error_kind"] or row["status"]
            CallTotal.objects.get_or_create(member_id=row["member_id"], outcome=outcome)
            CallTotal.objects.filter(member_id=row["member_id"], outcome=outcome).update(
                count=F("count") + row["count"]
            )
        return batch.delete()[0]
