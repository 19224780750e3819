"""A database in trouble: what is told, and a connection beside the pool to find out."""

from __future__ import annotations

import contextlib
import os
import socket

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

AWAY = "The database does not answer; try again."
DAMAGED = "The hall's database is damaged. Its log names the file, and the commands that restore a backup."


def unpooled(timeout: float | None = None) -> BaseDatabaseWrapper:
    """A connection of this thread's own, to be closed by it. The pool tries for long, and then does not say why.

    With `timeout` a SQLite lock is waited for so many seconds, and PostgreSQL for two, which is its shortest.
    """
    own = connection.copy()
    options = own.settings_dict["OPTIONS"]
    options.pop("pool", None)
    if timeout is not None:
        options |= {"timeout": timeout} if own.vendor == "sqlite" else {"connect_timeout": 2}
    return own


def hang_up(own: BaseDatabaseWrapper) -> None:
    """From another thread: end the wait for an answer of a PostgreSQL that says nothing."""
    server_connection = own.connection
    if own.vendor == "postgresql" and server_connection is not None:
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(server_connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
