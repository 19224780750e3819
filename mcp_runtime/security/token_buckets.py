"""The calls of a token in a minute, in a row that the gateways of several nodes share.

The row has the same meaning as an entry of `limits.Limiter`: the calls of a whole minute may come at once, and refill
at the same rate. Only the database's clock counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import IntegrityError
from django.db.models import F, Value
from django.db.models.functions import Greatest, Now

from mcp_runtime.rows.database import short_transaction
from roster.models import TokenBucket

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
