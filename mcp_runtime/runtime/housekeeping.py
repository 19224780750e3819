"""Regular work of the runtime: roll up finished calls, write the load of the node, and delete old rows."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

from django.conf import settings
from django.db import Error, connection

from mcp_runtime.agents import transitions as agent_transitions
from mcp_runtime.calls import statistics, transitions
from mcp_runtime.gateway import session_rows
from mcp_runtime.gateway.client_sessions import MAX_AGE
from mcp_runtime.members import trash
from mcp_runtime.runtime.load import LoadMeter
from roster.models import AuditEntry, AuditOverflow, Invitation, MemberProposal, TrashedMember

logger = logging.getLogger("guildhall.runtime")

PRUNE_SECONDS = 3600.0


def start(is_over: threading.Event, lease_id: uuid.UUID) -> None:
    threading.Thread(target=_keep_house, args=(is_over, lease_id), name="housekeeping", daemon=True).start()


def _keep_house(is_over: threading.Event, lease_id: uuid.UUID) -> None:
    """Roll up finished calls and write the load every quarter of a minute. Delete old rows once an hour."""
    meter, next_prune = LoadMeter(), time.monotonic() + PRUNE_SECONDS
    _attempt(meter.measure)
    while not is_over.wait(statistics.ROLLUP_SECONDS):
        _attempt(lambda: statistics.roll_up(keep_going=lambda: not is_over.is_set()))
        _attempt(lambda: meter.write(lease_id))
        _attempt(AuditOverflow.settle)
        if time.monotonic() >= next_prune and _attempt(_prune):
            next_prune = time.monotonic() + PRUNE_SECONDS
        connection.close()


def _attempt(work: Callable[[], object]) -> bool:
    """Do `work`, and return whether it succeeded. A failure is logged, and stops no other work."""
    try:
        work()
    except Error as error:
        logger.warning("housekeeping failed (%s); trying again", str(error).strip())
    except Exception:
        logger.exception("housekeeping failed; trying again")
    else:
        return True
    return False


def _prune() -> None:
    days, keep = settings.GUILD_HALL_KEEP_CALLS_DAYS, settings.GUILD_HALL_KEEP_CALLS
    count = transitions.prune(days=days, keep=keep)
    transitions.prune_status_changes(days=days)
    agent_transitions.prune(days=days)
    statistics.delete_expired()
    session_rows.prune(MAX_AGE)
    Invitation.prune()
    MemberProposal.prune()
    trash.delete_expired(settings.GUILD_HALL_MEMBERS_DIR)
    TrashedMember.prune()
    entry_count = AuditEntry.prune(settings.GUILD_HALL_KEEP_AUDIT_DAYS)
    if count:
        logger.info("pruned %d finished calls", count)
    if entry_count:
        logger.info("pruned %d entries of the audit log", entry_count)
