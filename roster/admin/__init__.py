"""The admin's screens onto the hall. They parse, call `mcp_runtime.control`, and present.

members, calls, tools, tokens, agents   the screens of one noun each; `screens` holds the class that Django registers
rows                            what these classes share: rows that people look at and do not edit
present, live                   how things are shown, and parts of pages that update automatically
plots, statistics               figures of calls as pictures

The addresses of the web have Django import this package: importing it registers every screen. Of the rest of `roster`
only template tags use it (`present`, `plots`, `statistics`).
"""

from __future__ import annotations

from roster.admin.agents.screens import AgentSessionAdmin
from roster.admin.calls.screens import InvocationAdmin
from roster.admin.members.history import PortAllocationAdmin, StatusChangeAdmin
from roster.admin.members.screens import MemberAdmin
from roster.admin.tokens.screens import ApiTokenAdmin
from roster.admin.tools.screens import ToolAdmin

__all__ = [
    "AgentSessionAdmin",
    "ApiTokenAdmin",
    "InvocationAdmin",
    "MemberAdmin",
    "PortAllocationAdmin",
    "StatusChangeAdmin",
    "ToolAdmin",
]
