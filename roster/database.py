"""A database that fails: the messages for it, and a connection outside the pool to examine it."""

from __future__ import annotations

import contextlib
import os
import socket

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

AWAY = "The database does not answer; try again."
DAMAGED = "The hall's database is damaged. Its log names the file, and the commands that restore a backup."


def unpooled(timeout: float | None = None) -> BaseDatabaseWrapper:
    """A connection for this thread alone, which must close it. The pool retries for long, and then gives no reason.

    With `timeout`, SQLite waits for a lock for that many seconds. PostgreSQL waits 2 s, its shortest timeout.
    """
    separate_connection = connection.copy()
    options = separate_connection.settings_dict["OPTIONS"]
    options.pop("pool", None)
    if timeout is not None:
        options |= {"timeout": timeout} if separate_connection.vendor == "sqlite" else {"connect_timeout": 2}
    return separate_connection


def hang_up(separate_connection: BaseDatabaseWrapper) -> None:
    """End the wait for a PostgreSQL that does not answer. For a call from another thread."""
    server_connection = separate_connection.connection
    if separate_connection.vendor == "postgresql" and server_connection is not None:
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(server_connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
