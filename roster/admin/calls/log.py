"""The lines that a member wrote during a call."""

from __future__ import annotations

from typing import Any

from mcp_runtime.control.logs import MAX_LINES_OF_CALL, log_of_call
from mcp_runtime.members.logs import plain
from mcp_runtime.protocol.errors import LogUnavailableError
from roster.models import Call


def page_of_log(call: Call) -> dict[str, Any]:
    """The lines, and what the reader must know about them."""
    try:
        span = log_of_call(call)
    except LogUnavailableError as error:
        return {"lines": [], "notes": [str(error)]}
    notes = []
    if call.started_at is None:
        notes.append("The call was not sent to the member, so there are no lines of it.")
    if span.is_late:
        notes.append("The call began before the oldest line of the log that is still stored.")
    if span.is_cut:
        notes.append(f"These are the first {MAX_LINES_OF_CALL:,} lines. The log of the member has all of them.")
    return {"lines": [plain(line) for line in span.lines], "notes": notes}
