"""The statements that every queued call costs: it is inserted, found, claimed, and ended.

Their SQL is kept: Django takes several times as long to put it together as the database to execute it, and the one
thread that writes shares its interpreter with the gateway.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from django.db import connection
from django.db.models import BooleanField, CharField, Field, FloatField, ForeignKey, JSONField, QuerySet, TextField
from django.db.models.expressions import RawSQL
from django.utils import timezone

from mcp_runtime.rows import plain_sql
from mcp_runtime.rows.kept_queries import KeptQuery
from mcp_runtime.security.limits import Owner
from roster.models import Hall, Invocation

Status = Invocation.Status

MAX_REQUESTERS = 250  # that are passed over at once: SQLite takes no longer conditions
KEPT = 64  # conditions whose SQL is kept
_TABLE = Invocation._meta.db_table
_FIELDS = {field.attname: field for field in Invocation._meta.concrete_fields}
_COLUMNS = tuple(name for name, field in _FIELDS.items() if not field.primary_key)
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
    values = [write(getattr(call, name)) for name, write in _writers(connection.vendor).items()]
    call.pk = plain_sql.insert(_TABLE, _COLUMNS, values)
    call._state.adding, call._state.db = False, connection.alias


@cache
def _writers(vendor: str) -> dict[str, Callable[[Any], Any]]:
    """For each column, what makes of a value what this database takes."""
    return {name: _writer(_FIELDS[name], vendor) for name in _COLUMNS}


def _writer(field: Field[Any, Any], vendor: str) -> Callable[[Any], Any]:
    if isinstance(field, ForeignKey | CharField | TextField | FloatField):
        return _as_it_is
    return lambda value: field.get_db_prep_save(value, connection)


def _as_it_is(value: Any) -> Any:
    return value


# Find -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exclusions:
    """Whose queued calls are not looked at."""

    members: frozenset[int] = frozenset()
    # With the members in which they are; None: in all.
    requesters: frozenset[tuple[Owner, frozenset[int] | None]] = frozenset()


def find_queued(exclusions: Exclusions, limit: int) -> list[Invocation]:
    """The oldest queued calls, at most `limit`, with what the dispatcher reads of them and of their members."""
    return _queue_query(exclusions).read(limit=limit)


@lru_cache(KEPT)
def _queue_query(exclusions: Exclusions) -> KeptQuery[Invocation]:
    rows = under_way(Status.QUEUED).exclude(member_id__in=exclusions.members)
    for (user_id, token_id), members in list(exclusions.requesters)[:MAX_REQUESTERS]:
        of_members = {} if members is None else {"member_id__in": members}
        rows = rows.exclude(requested_by_id=user_id, token_id=token_id, **of_members)
    return KeptQuery(
        lambda: rows.order_by("id"),
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
    values = [_database_value(column, value) for column, value in changes.items()]
    return plain_sql.change(
        _update_sql(connection.vendor, tuple(changes), count, condition),
        [*values, *ids, *(_database_value("lease_id", lease_id) for lease_id in leases)],
    )


def _database_value(column: str, value: Any) -> Any:
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
