"""What the hall knows: rows, their constraints, and facts about one row. Who may change what is said beside each field.

Statuses are written by `mcp_runtime.members.status` (members), `mcp_runtime.calls.invocations` (calls) and
`mcp_runtime.agents.sessions` (agents' messages) alone. The models know nothing of the runtime but how calls fail
(`mcp_runtime.protocol.errors`). The runtime imports them from here, and nothing else of `roster`. A new field of a
member, a call or a token goes into the module of that noun, and with it a migration; CONTRIBUTING says where else.
"""

from roster.models.agents import AgentEvent, AgentMessage, AgentSession
from roster.models.calls import CallRollup, CallTotal, Invocation, Preset
from roster.models.hall import Hall
from roster.models.members import GuildMember, MemberGroup, PortAllocation, StatusChange, Tool
from roster.models.tokens import ApiToken, TokenClient, TokenLimit

__all__ = [
    "AgentEvent",
    "AgentMessage",
    "AgentSession",
    "ApiToken",
    "CallRollup",
    "CallTotal",
    "GuildMember",
    "Hall",
    "Invocation",
    "MemberGroup",
    "PortAllocation",
    "Preset",
    "StatusChange",
    "TokenClient",
    "TokenLimit",
    "Tool",
]
