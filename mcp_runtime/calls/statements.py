"""The SQL statements that change every queued call: insert it, claim it, and end it.

Their SQL is cached. Django needs several times as long to build it as the database to execute it, and the dispatcher's
thread shares the interpreter with the gateway.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from django.db import connection
from django.db.models import BooleanField, CharField, Field, FloatField, ForeignKey, JSONField, QuerySet, TextField
from django.db.models.expressions import RawSQL

from mcp_runtime.rows import clock, plain_sql
from roster.models import Call, GuildMember, Node

Status = Call.Status

MAX_CACHED_STATEMENTS = 64
_TABLE = Call._meta.db_table
_FIELDS = {field.attname: field for field in Call._meta.concrete_fields}
_JSON_COLUMNS = {name for name, field in _FIELDS.items() if isinstance(field, JSONField)}
# A new call has no searchable text.
_COLUMNS = tuple(name for name, field in _FIELDS.items() if not field.primary_key and name != "search_text")
# The statuses are no parameters, because SQLite uses a partial index only if its condition is in the query.
_IS_ACTIVE = RawSQL(f"{_TABLE}.status IN ('queued', 'running')", (), BooleanField())  # noqa: S611 - a constant

# Conditions of `end`. The id of the lease is the parameter of those that name one.
HOLDS_LEASE = f"EXISTS (SELECT 1 FROM {Node._meta.db_table} WHERE lease_id = %s)"  # noqa: S608 - a constant
# The lock lasts until the claim is committed. So a claim and a change of the owner never overlap. It must not be FOR
# SHARE, which waits for every change of the member's row, and could deadlock with a sync of the folder.
_OWNS_MEMBER = (
    f"EXISTS (SELECT 1 FROM {GuildMember._meta.db_table} AS member "  # noqa: S608 - a constant
    f"WHERE member.id = {_TABLE}.member_id AND member.lease_id = %s{{lock}})"
)
# With IS TRUE, PostgreSQL finds the rows by their ids. Else it may read the whole queue to find them by their status.
QUEUED = "(status = 'queued') IS TRUE"
RUNNING_UNDER_LEASE = "(status = 'running' AND lease_id = %s) IS TRUE"
RUNNING_UNDER_NO_LEASE = (
    "status = 'running' AND NOT EXISTS "  # noqa: S608 - a constant
    f"(SELECT 1 FROM {Node._meta.db_table} AS node WHERE node.lease_id = {_TABLE}.lease_id)"
)


def active_calls(*statuses: Call.Status) -> QuerySet[Call]:
    """Return the queued and running calls, or those of these statuses. The cost does not grow with finished calls."""
    return Call.objects.filter(_IS_ACTIVE, status__in=statuses or Call.ACTIVE)


def insert(call: Call) -> None:
    """Insert the row of a new call. Raises IntegrityError if the idempotency key is in use."""
    converters = _converters(connection.vendor)
    values = [converters[name](getattr(call, name)) for name in _COLUMNS]
    call.pk = plain_sql.insert(_TABLE, _COLUMNS, values)
    call._state.adding, call._state.db = False, connection.alias


@cache
def _converters(vendor: str) -> dict[str, Callable[[Any], Any]]:
    """Return, for each column, the function that converts a value for this database."""
    return {name: _converter(_FIELDS[name], vendor) for name in (*_COLUMNS, "search_text")}


def _converter(field: Field[Any, Any], vendor: str) -> Callable[[Any], Any]:
    if isinstance(field, ForeignKey | CharField | TextField | FloatField):
        return _unchanged
    return lambda value: field.get_db_prep_save(value, connection)


def _unchanged(value: Any) -> Any:
    return value


# Claim and end ----------------------------------------------------------------------------------------------------


def claim(ids: list[int], lease_id: uuid.UUID) -> int:
    """Change these calls from queued to running, if this runtime owns their member. Return how many it changed."""
    changes = {"status": Status.RUNNING, "started_at": clock.now(), "lease_id": lease_id}
    return _update(changes, len(ids), f"{QUEUED} AND {_owns_member(connection.vendor)}", ids, (lease_id,))


def _owns_member(vendor: str) -> str:
    return _OWNS_MEMBER.format(lock=" FOR KEY SHARE" if vendor == "postgresql" else "")


def end(pk: int, changes: dict[str, Any], condition: str, *leases: uuid.UUID) -> bool:
    """Change columns of the call if `condition` is true. Return whether it was. JSON in `changes` is text already."""
    return _update(changes, 1, condition, [pk], leases) == 1


def _update(changes: dict[str, Any], count: int, condition: str, ids: list[int], leases: tuple[uuid.UUID, ...]) -> int:
    vendor = connection.vendor
    converters = _converters(vendor)
    values = [value if column in _JSON_COLUMNS else converters[column](value) for column, value in changes.items()]
    return plain_sql.change(
        _update_sql(vendor, tuple(changes), count, condition),
        [*values, *ids, *map(converters["lease_id"], leases)],
    )


@lru_cache(MAX_CACHED_STATEMENTS)
def _update_sql(vendor: str, columns: tuple[str, ...], count: int, condition: str) -> str:
    changes = ", ".join(f"{column} = {_placeholder(vendor, column)}" for column in columns)
    return f"UPDATE {_TABLE} SET {changes} WHERE id IN ({', '.join(['%s'] * count)}) AND {condition}"  # noqa: S608


def _placeholder(vendor: str, column: str) -> str:
    return "%s::jsonb" if column in _JSON_COLUMNS and vendor == "postgresql" else "%s"
