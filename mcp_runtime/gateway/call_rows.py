"""Insert calls of the gateway as rows: many in one statement, and each only once."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, connection, transaction

from mcp_runtime.rows import plain_sql
from roster.models import Call

logger = logging.getLogger("guildhall.gateway")

Row = dict[str, Any]

# In one statement. SQLite releases the interpreter for each statement, and the event loop then takes it. With one row
# per statement, the rows and the calls that arrive at the same time would take twice as long. More rows would exceed
# the number of parameters that an old SQLite allows.
ROWS_AT_ONCE = 50
_TABLE = Call._meta.db_table
_KEY = ("finished_at", "started_at", "member_id", "tool_name")


def missing_rows(rows: list[Row]) -> list[Row]:
    """Return the rows that an earlier attempt did not insert.

    That attempt may have failed after its commit, or between two single rows. The rows have no id yet, so they are
    compared by tool and times. No two calls of a tool start and end in the same microseconds.
    """
    ends = Call.objects.filter(finished_at__in=[row["finished_at"] for row in rows], source=Call.Source.GATEWAY)
    existing_keys = set(ends.values_list(*_KEY))
    return [row for row in rows if tuple(row[column] for column in _KEY) not in existing_keys]


def insert(rows: list[Row]) -> None:
    """Insert the rows, on SQLite in small statements.

    All writers wait for SQLite's lock, and a transaction holds it while its rows are converted.
    """
    size = ROWS_AT_ONCE if connection.vendor == "sqlite" else len(rows)
    for start in range(0, len(rows), size or 1):
        _insert_together(rows[start : start + size])


def _insert_together(rows: list[Row]) -> None:
    try:
        _execute(rows)
    except (OperationalError, InterfaceError):  # the database is unavailable or locked. No row is at fault
        raise
    except Exception:  # noqa: BLE001 - insert_alone logs the row that is at fault
        for row in rows:
            insert_alone(row)


def insert_alone(row: Row) -> None:
    """Insert one row, without references to a token or a user that has been deleted.

    An agent's token is deleted at the end of its run. A deleted member deletes its calls too. If the database rejects
    the row, log that and insert the others.
    """
    for missing_references in ({}, {"token_id": None}, {"token_id": None, "requested_by_id": None}):
        try:
            _execute([{**row, **missing_references}])
            return
        except IntegrityError:
            continue
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.exception("a call of tool %r cannot be written", row["tool_name"])
            return


def _execute(rows: list[Row]) -> None:
    """Insert the rows in one statement.

    The ORM would take three times as long, and this thread shares the interpreter with the gateway.
    """
    if connection.vendor == "sqlite":
        sql = plain_sql.insert_sql(_TABLE, tuple(rows[0]), len(rows))
        plain_sql.change(sql, [_to_sqlite(value) for row in rows for value in row.values()])
        return
    # An INSERT of many rows takes ten times the CPU, because psycopg formats each value in Python.
    copying = f"COPY {_TABLE} ({', '.join(rows[0])}) FROM STDIN"
    with (
        transaction.atomic(),
        connection.cursor() as cursor,
        connection.wrap_database_errors,
        cursor.copy(copying) as copy,
    ):
        for row in rows:
            copy.write_row(tuple(row.values()))


def _to_sqlite(value: Any) -> Any:
    """Convert a time to text as Django does. SQLite's own adapter takes as long as the rest of the row."""
    return str(value.replace(tzinfo=None)) if type(value) is datetime else value
