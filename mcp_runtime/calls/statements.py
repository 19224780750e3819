"""The statements that every queued call costs: it is inserted, found, claimed, and ended.

Their SQL is kept: Django takes several times as long to put it together as the database to execute it, and the one
thread that writes shares its interpreter with the gateway.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from django.db import connection
from django.db.models import BooleanField, JSONField, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from mcp_runtime.rows.kept_queries import KeptQuery
from mcp_runtime.security.limits import Owner
from roster.models import Hall, Invocation

Status = Invocation.Status

MAX_REQUESTERS = 250  # that are passed over at once: SQLite takes no longer conditions
KEPT = 64  # conditions whose SQL is kept
_TABLE = Invocation._meta.db_table
_FIELDS = {field.attname: field for field in Invocation._meta.concrete_fields}
# In words, not as parameters: SQLite uses a partial index only where the query itself says its condition.
_UNDER_WAY = RawSQL(f"{_TABLE}.status IN ('queued', 'running')", (), BooleanField())  # noqa: S611 - a constant

# Conditions of `end`, each with the lease that it names as its parameter.
HELD = f"EXISTS (SELECT 1 FROM {Hall._meta.db_table} WHERE id = 1 AND lease_id = %s)"  # noqa: S608 - a constant
QUEUED = "status = 'queued'"
RUNNING_UNDER = "status = 'running' AND lease_id = %s"
RUNNING_ELSEWHERE = "status = 'running' AND (lease_id IS NULL OR lease_id <> %s)"


def under_way(*statuses: Invocation.Status) -> QuerySet[Invocation]:
    """The calls that wait and that run, or those of one of these statuses. Costs the same however many are over."""
    return Invocation.objects.filter(_UNDER_WAY, status__in=statuses or Invocation.ACTIVE)


def insert(call: Invocation) -> None:
    """Make the row of a new call. Raises IntegrityError for an idempotency key that is taken."""
    fields = [field for field in _FIELDS.values() if not field.primary_key]
    with connection.cursor() as cursor:
        cursor.execute(
            _insert_sql(connection.vendor),
            [field.get_db_prep_save(getattr(call, field.attname), connection) for field in fields],
        )
        call.pk = cursor.fetchone()[0] if connection.vendor == "postgresql" else cursor.lastrowid
    call._state.adding, call._state.db = False, connection.alias


@cache
def _insert_sql(vendor: str) -> str:
    columns = [field.attname for field in _FIELDS.values() if not field.primary_key]
    places = ", ".join(["%s"] * len(columns))
    returning = " RETURNING id" if vendor == "postgresql" else ""  # SQLite before 3.35 does not know it
    return f"INSERT INTO {_TABLE} ({', '.join(columns)}) VALUES ({places}){returning}"  # noqa: S608


# Find -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassedOver:
    """Whose queued calls are not looked at."""

    members: frozenset[int] = frozenset()
    # With the members in which they are; None: in all.
    requesters: frozenset[tuple[Owner, frozenset[int] | None]] = frozenset()


def find_queued(passed_over: PassedOver, limit: int) -> list[Invocation]:
    """The oldest queued calls, at most `limit`, with what the dispatcher reads of them and of their members."""
    return _queued(passed_over).read(limit=limit)


@lru_cache(KEPT)
def _queued(passed_over: PassedOver) -> KeptQuery[Invocation]:
    queued = under_way(Status.QUEUED).exclude(member_id__in=passed_over.members)
    for (user_id, token_id), members in list(passed_over.requesters)[:MAX_REQUESTERS]:
        of_members = {} if members is None else {"member_id__in": members}
        queued = queued.exclude(requested_by_id=user_id, token_id=token_id, **of_members)
    return KeptQuery(
        lambda: queued.order_by("id"),
        columns=("member_id", "tool_name", "arguments", "timeout", "secret_paths", "requested_by_id", "token_id"),
        related={"member": ("name", "manifest")},
    )


# Claim and end ----------------------------------------------------------------------------------------------------


def claim(ids: list[int], lease_id: uuid.UUID) -> int:
    """queued -> running for these calls, while the lease is held; how many were still queued."""
    changes = {"status": Status.RUNNING, "started_at": timezone.now(), "lease_id": lease_id}
    return _update(changes, len(ids), f"{QUEUED} AND {HELD}", ids, (lease_id,))


def end(pk: int, changes: dict[str, Any], condition: str, *leases: uuid.UUID) -> bool:
    """Change the call's columns where `condition` is true of it. JSON in `changes` is text already."""
    return _update(changes, 1, condition, [pk], leases) == 1


def _update(changes: dict[str, Any], count: int, condition: str, ids: list[int], leases: tuple[uuid.UUID, ...]) -> int:
    values = [_written(column, value) for column, value in changes.items()]
    with connection.cursor() as cursor:
        cursor.execute(
            _update_sql(connection.vendor, tuple(changes), count, condition),
            [*values, *ids, *(_written("lease_id", lease_id) for lease_id in leases)],
        )
        return int(cursor.rowcount)


def _written(column: str, value: Any) -> Any:
    """As this database has it in that column."""
    field = _FIELDS[column]
    return value if isinstance(field, JSONField) else field.get_db_prep_save(value, connection)


@lru_cache(KEPT)
def _update_sql(vendor: str, columns: tuple[str, ...], count: int, condition: str) -> str:
    changes = ", ".join(f"{column} = {_place(vendor, column)}" for column in columns)
    return f"UPDATE {_TABLE} SET {changes} WHERE id IN ({', '.join(['%s'] * count)}) AND {condition}"  # noqa: S608


def _place(vendor: str, column: str) -> str:
    is_json = isinstance(_FIELDS[column], JSONField)
    return "%s::jsonb" if is_json and vendor == "postgresql" else "%s"
