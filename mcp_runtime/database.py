"""The database from threads that live long: a lost connection costs a moment, never a thread or a fact."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection

logger = logging.getLogger("guildhall.runtime")

T = TypeVar("T")

RETRY_SECONDS = 30.0
RETRY_INTERVAL = 0.2


def persistently(work: Callable[[], T]) -> T:
    """`work`, repeated while the database cannot be reached, at most RETRY_SECONDS. It must be safe to repeat.

    For facts that must not be lost: how a call ended, that a process died.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return work()
        except (OperationalError, InterfaceError) as error:
            if time.monotonic() > deadline or connection.in_atomic_block:
                raise
            logger.warning("the database cannot be reached (%s); trying again", str(error).strip())
            connection.close()
            time.sleep(RETRY_INTERVAL)


def unit_of_work(work: Callable[[], T]) -> T:
    """`work`, with connections that went bad replaced before, and given back after it."""
    give_connection_back()
    try:
        return work()
    finally:
        give_connection_back()


def give_connection_back() -> None:
    """This thread's pooled connection goes back: before every long wait, for sixteen that keep theirs starve the rest.

    SQLite's stays open, and so does one in a transaction.
    """
    if not connection.in_atomic_block:  # Django would close it there
        close_old_connections()
