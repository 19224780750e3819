"""The three statements that every queued call costs: it is found, claimed, and ended.

Their SQL is kept: Django takes several times as long to put it together as the database to execute it, and the one
thread that writes shares its interpreter with the gateway.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from django.db import connection
from django.db.models import BooleanField, JSONField, Model, QuerySet
from django.db.models.expressions import RawSQL
from django.utils import timezone

from mcp_runtime.security.limits import Owner
from roster.models import GuildMember, Hall, Invocation

Status = Invocation.Status

MAX_REQUESTERS = 250  # that are passed over at once: SQLite takes no longer conditions
KEPT = 64  # conditions whose SQL is kept
_TABLE = Invocation._meta.db_table
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


# Find -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassedOver:
    """Whose queued calls are not looked at."""

    members: frozenset[int] = frozenset()
    # With the members in which they are; None: in all.
    requesters: frozenset[tuple[Owner, frozenset[int] | None]] = frozenset()


# In the order in which the models have them, which `from_db` counts on.
_CALL_COLUMNS = ("id", "member_id", "tool_name", "arguments", "timeout", "requested_by_id", "token_id", "secret_paths")
_MEMBER_COLUMNS = ("id", "name", "manifest")


def find_queued(passed_over: PassedOver, limit: int) -> list[Invocation]:
    """The oldest queued calls, at most `limit`, with what the dispatcher reads of them and of their members."""
    sql, params = _find_sql(connection.vendor, passed_over)
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} LIMIT %s", (*params, limit))
        return [_call_of(row) for row in cursor.fetchall()]


@lru_cache(KEPT)
def _find_sql(_vendor: str, passed_over: PassedOver) -> tuple[str, tuple[Any, ...]]:
    queued = under_way(Status.QUEUED).exclude(member_id__in=passed_over.members)
    for (user_id, token_id), members in list(passed_over.requesters)[:MAX_REQUESTERS]:
        of_members = {} if members is None else {"member_id__in": members}
        queued = queued.exclude(requested_by_id=user_id, token_id=token_id, **of_members)
    columns = (*_CALL_COLUMNS, *(f"member__{column}" for column in _MEMBER_COLUMNS))
    sql, params = queued.order_by("id").values_list(*columns).query.sql_with_params()
    return sql, tuple(params)


def _call_of(row: tuple[Any, ...]) -> Invocation:
    values, of_member = row[: len(_CALL_COLUMNS)], row[len(_CALL_COLUMNS) :]
    call: Invocation = Invocation.from_db(connection.alias, _CALL_COLUMNS, _read(Invocation, _CALL_COLUMNS, values))
    call.member = GuildMember.from_db(connection.alias, _MEMBER_COLUMNS, _read(GuildMember, _MEMBER_COLUMNS, of_member))
    return call


def _read(model: type[Model], columns: tuple[str, ...], values: tuple[Any, ...]) -> list[Any]:
    """What Django would have read."""
    fields = [_field(model, column) for column in columns]
    return [
        field.from_db_value(value, None, connection) if hasattr(field, "from_db_value") else value
        for field, value in zip(fields, values, strict=True)
    ]


@cache
def _field(model: type[Model], column: str) -> Any:
    return next(field for field in model._meta.concrete_fields if field.attname == column)


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
    field = _field(Invocation, column)
    return value if isinstance(field, JSONField) else field.get_db_prep_save(value, connection)


@lru_cache(KEPT)
def _update_sql(vendor: str, columns: tuple[str, ...], count: int, condition: str) -> str:
    changes = ", ".join(f"{column} = {_place(vendor, column)}" for column in columns)
    return f"UPDATE {_TABLE} SET {changes} WHERE id IN ({', '.join(['%s'] * count)}) AND {condition}"  # noqa: S608


def _place(vendor: str, column: str) -> str:
    is_json = isinstance(_field(Invocation, column), JSONField)
    return "%s::jsonb" if is_json and vendor == "postgresql" else "%s"
