"""Calls of the gateway as rows, into the database: many in one statement, and none twice."""

from __future__ import annotations

import logging
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction

from mcp_runtime.rows import plain_sql
from roster.models import Invocation

logger = logging.getLogger("guildhall.gateway")

Row = dict[str, Any]

# In one statement. SQLite gives the interpreter back for each, and the loop takes it away: one by one, rows take twice
# as long, and so do the calls that come in meanwhile. More would be more parameters than an old SQLite takes.
ROWS_AT_ONCE = 50
_TABLE = Invocation._meta.db_table
_KEY = ("finished_at", "started_at", "member_id", "tool_name")


def not_written(rows: list[Row]) -> list[Row]:
    """What an earlier try did not bring in: it may have failed behind its commit, or between two of single rows.

    Records have no id of their own; no two calls of a tool begin and end in the same microseconds.
    """
    ends = Invocation.objects.filter(
        finished_at__in=[row["finished_at"] for row in rows], source=Invocation.Source.GATEWAY
    )
    written = set(ends.values_list(*_KEY))
    return [row for row in rows if tuple(row[column] for column in _KEY) not in written]


def insert(rows: list[Row]) -> None:
    """On SQLite in pieces: all who write wait for its lock, and a transaction has it while rows are put into words."""
    size = ROWS_AT_ONCE if connection.vendor == "sqlite" else len(rows)
    for first in range(0, len(rows), size or 1):
        _insert_together(rows[first : first + size])


def _insert_together(rows: list[Row]) -> None:
    try:
        _execute(rows)
    except (OperationalError, InterfaceError):  # the database is away, or locked: no row's fault
        raise
    except Exception:  # noqa: BLE001 - said of the row that is at fault
        for row in rows:
            insert_alone(row)


def insert_alone(row: Row) -> None:
    """Without what is gone meanwhile: an agent's token goes with its run, and users go. (Members take all along.)

    A row that the database cannot hold must not cost the others.
    """
    for gone in ({}, {"token_id": None}, {"token_id": None, "requested_by_id": None}):
        try:
            _execute([{**row, **gone}])
            return
        except IntegrityError:
            continue
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("a call of tool %r cannot be written down", row["tool_name"])
            return


def _execute(rows: list[Row]) -> None:
    """In one statement, without the ORM, which takes three times as long: the gateway shares the interpreter."""
    if connection.vendor == "sqlite":
        rows = [_as_sqlite_has_it(row) for row in rows]
        sql = plain_sql.insert_sql(_TABLE, tuple(rows[0]), len(rows))
        with connection.cursor() as cursor:
            cursor.execute(sql, [value for row in rows for value in row.values()])
        return
    # An INSERT of many rows takes ten times the CPU: psycopg writes each value into the statement in Python.
    copying = f"COPY {_TABLE} ({', '.join(rows[0])}) FROM STDIN"
    with (
        transaction.atomic(),
        connection.cursor() as cursor,
        connection.wrap_database_errors,
        cursor.copy(copying) as copy,
    ):
        for row in rows:
            copy.write_row(tuple(row.values()))


def _as_sqlite_has_it(row: Row) -> Row:
    """As Django writes it there; its own way from a datetime to text takes as long as all the rest of a row."""
    return row | {name: str(row[name].replace(tzinfo=None)) for name in ("queued_at", "started_at", "finished_at")}
