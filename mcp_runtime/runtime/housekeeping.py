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
from mcp_runtime.calls import pruning, statistics
from mcp_runtime.calls.text_index import Eraser
from mcp_runtime.control import grants
from mcp_runtime.gateway import session_rows
from mcp_runtime.gateway.client_sessions import MAX_AGE
from mcp_runtime.members import edits, trash
from mcp_runtime.members.packages import installer
from mcp_runtime.runtime.load import LoadMeter
from roster.models import AuditEntry, AuditOverflow, Bundle, Invitation, MemberProposal, TrashedMember

logger = logging.getLogger("guildhall.runtime")

PRUNE_SECONDS = 3600.0


def start(is_over: threading.Event, lease_id: uuid.UUID) -> None:
    threading.Thread(target=keep_house, args=(is_over, lease_id), name="housekeeping", daemon=True).start()


def keep_house(is_over: threading.Event, lease_id: uuid.UUID) -> None:
    """Roll up finished calls, write the load and erase secrets every quarter of a minute. Prune once an hour."""
    meter, eraser, next_prune = LoadMeter(), Eraser(), time.monotonic() + PRUNE_SECONDS
    _attempt(meter.measure)
    while not is_over.wait(statistics.ROLLUP_SECONDS):
        _attempt(lambda: statistics.roll_up(keep_going=lambda: not is_over.is_set()))
        _attempt(lambda: meter.write(lease_id))
        _attempt(AuditOverflow.settle)
        if time.monotonic() >= next_prune and _attempt(lambda: _prune(eraser)):
            next_prune = time.monotonic() + PRUNE_SECONDS
        _attempt(eraser.erase)
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


def _prune(eraser: Eraser) -> None:
    from mcp_runtime.members import credentials, kept_id_tokens  # not needed at the start

    days, keep = settings.GUILD_HALL_KEEP_CALLS_DAYS, settings.GUILD_HALL_KEEP_CALLS
    count = pruning.prune_calls(days=days, keep=keep)
    pruning.prune_status_changes(days=days)
    agent_transitions.prune(days=days)
    statistics.delete_expired()
    session_rows.prune(MAX_AGE)
    Invitation.prune()
    grants.prune()
    credentials.prune()
    kept_id_tokens.prune()
    MemberProposal.prune()
    edits.prune()
    Bundle.prune()
    trash.delete_expired(settings.GUILD_HALL_MEMBERS_DIR)
    TrashedMember.prune()
    installer.delete_unused(settings.GUILD_HALL_DATA_DIR)
    entry_count = AuditEntry.prune(settings.GUILD_HALL_KEEP_AUDIT_DAYS)
    if count:
        eraser.note_deletions()
        logger.info("pruned %d finished calls", count)
    if entry_count:
        logger.info("pruned %d entries of the audit log", entry_count)
