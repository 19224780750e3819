"""Regular work of the runtime: roll up finished calls, and delete old rows."""

from __future__ import annotations

import logging
import threading
import time

from django.conf import settings
from django.db import Error, connection

from mcp_runtime.agents import transitions as agent_transitions
from mcp_runtime.calls import statistics, transitions

logger = logging.getLogger("guildhall.runtime")

PRUNE_SECONDS = 3600.0


def start(is_over: threading.Event) -> None:
    threading.Thread(target=_keep_house, args=(is_over,), name="housekeeping", daemon=True).start()


def _keep_house(is_over: threading.Event) -> None:
    """Roll up finished calls every quarter of a minute, and delete old rows once an hour."""
    next_prune = time.monotonic() + PRUNE_SECONDS
    while not is_over.wait(statistics.ROLLUP_SECONDS):
        try:
            statistics.roll_up(keep_going=lambda: not is_over.is_set())
            if time.monotonic() >= next_prune:
                _prune()
                next_prune = time.monotonic() + PRUNE_SECONDS
        except Error as error:
            logger.warning("housekeeping failed (%s); trying again", str(error).strip())
        except Exception:
            logger.exception("housekeeping failed; trying again")
        connection.close()


def _prune() -> None:
    days, keep = settings.GUILD_HALL_KEEP_CALLS_DAYS, settings.GUILD_HALL_KEEP_CALLS
    count = transitions.prune(days=days, keep=keep)
    transitions.prune_status_changes(days=days)
    agent_transitions.prune(days=days)
    statistics.delete_expired()
    if count:
        logger.info("pruned %d finished calls", count)
