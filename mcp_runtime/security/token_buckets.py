"""The calls of a token, in rows that the gateways of several nodes share.

The row of the calls in a minute has the same meaning as an entry of `limits.Limiter`: the calls of a whole minute may
come at once, and refill at the same rate. Only the database's clock counts.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.db import IntegrityError
from django.db.models import F, Sum, Value
from django.db.models.functions import Greatest, Now

from mcp_runtime.rows.database import short_transaction
from mcp_runtime.rows.lease import held_by_none
from roster.models import TokenBucket, TokenShare

MINUTE = timedelta(minutes=1)
ROUNDING = 1e-6


def borrow(token_id: int, calls_per_minute: int, wanted: int, unused: int = 0) -> tuple[int, float]:
    """Take up to `wanted` calls from the bucket, after `unused` ones were given back.

    Return how many there were, and if there was none, after how many seconds there is one. A token that was deleted
    meanwhile has none.
    """
    each = MINUTE / calls_per_minute
    try:
        with short_transaction():
            now, full_at = _locked(token_id)
            full_at = max(full_at - unused * each, now)
            room = MINUTE - (full_at - now)
            granted = max(min(wanted, int(room / each + ROUNDING)), 0)
            TokenBucket.objects.filter(pk=token_id).update(full_at=full_at + granted * each)
    except IntegrityError:
        return 0, 1.0
    return granted, 0.0 if granted else (each - room).total_seconds()


def _locked(token_id: int) -> tuple[datetime, datetime]:
    """Lock the row, and return the time of the database and `full_at`."""
    TokenBucket.objects.get_or_create(pk=token_id, defaults={"full_at": Now()})
    row = TokenBucket.objects.select_for_update().annotate(now=Now()).get(pk=token_id)
    return row.now, row.full_at


def give_back(token_id: int, calls_per_minute: int, unused: int) -> None:
    """Put borrowed calls back that were not made."""
    amount = Value(unused * (MINUTE / calls_per_minute))
    TokenBucket.objects.filter(pk=token_id).update(full_at=Greatest(F("full_at") - amount, Now()))


def set_share(token_id: int, limit: int, lease_id: uuid.UUID, wanted: int) -> int:
    """Let the gateway of the runtime have up to `wanted` concurrent calls of the token. Return how many it may have.

    All gateways together never have more than `limit`. Those of runtimes that have ended do not count. A token that was
    deleted meanwhile has none.
    """
    try:
        with short_transaction():
            _locked(token_id)
            others = TokenShare.objects.filter(token=token_id).exclude(lease_id=lease_id)
            others.filter(held_by_none()).delete()
            taken: int = others.aggregate(calls=Sum("calls", default=0))["calls"]
            granted = max(min(wanted, limit - taken), 0)
            own = TokenShare.objects.filter(token=token_id, lease_id=lease_id)
            if not granted:
                own.delete()
            elif not own.update(calls=granted):
                TokenShare.objects.create(token_id=token_id, lease_id=lease_id, calls=granted)
    except IntegrityError:
        return 0
    return granted
