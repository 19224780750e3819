"""The admin's screens. They parse requests, call `mcp_runtime.control`, and present the results.

members, calls, tools, tokens, agents   the screens of one noun each. `screens` has the class that Django registers
audit                           the audit log
tool_sets                       members and tools under one name, with other names
nodes                           the machines that run the hall
invitations                     links with which people make their own accounts
users, groups                   Django's screens of users and groups, with roles
rows                            the base of these classes, for rows that people read and do not edit
table_rows                      the rows of all lists
choosing                        choices of forms that a search finds
present, live                   formatting, and parts of pages that update automatically
plots, statistics               figures of calls as plots

`guildhall.urls` imports this package, which registers every screen. In the rest of `roster` only template tags use it
(`present`, `plots`, `statistics`).
"""

from __future__ import annotations

from roster.admin.agents.screens import AgentAdmin
from roster.admin.audit import AuditAdmin
from roster.admin.calls.screens import CallAdmin
from roster.admin.groups import HallGroupAdmin
from roster.admin.invitations import InvitationAdmin
from roster.admin.members.history import PortAllocationAdmin, StatusChangeAdmin
from roster.admin.members.screens import MemberAdmin
from roster.admin.nodes import NodeAdmin
from roster.admin.secrets import SecretAdmin
from roster.admin.tokens.screens import TokenAdmin
from roster.admin.tool_sets import ToolSetAdmin
from roster.admin.tools.screens import ToolAdmin
from roster.admin.users import HallUserAdmin

__all__ = [
    "AgentAdmin",
    "AuditAdmin",
    "CallAdmin",
    "HallGroupAdmin",
    "HallUserAdmin",
    "InvitationAdmin",
    "MemberAdmin",
    "NodeAdmin",
    "PortAllocationAdmin",
    "SecretAdmin",
    "StatusChangeAdmin",
    "TokenAdmin",
    "ToolAdmin",
    "ToolSetAdmin",
]
