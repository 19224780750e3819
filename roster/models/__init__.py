"""The rows of the hall, their constraints, and properties of one row. Comments beside the fields name their writers.

Three modules write statuses: `mcp_runtime.members.status` (members), `mcp_runtime.calls.transitions` (calls) and
`mcp_runtime.agents.transitions` (messages to agents). From the runtime the models import only how calls fail
(`mcp_runtime.protocol.errors`). The runtime imports the models from here, and nothing else from `roster`. A new field
of a member, a call or a token goes into the module of that noun, with a migration. CONTRIBUTING says where else.
"""

from roster.models.agents import Agent, AgentEvent, AgentMessage
from roster.models.audit import Actor, AuditEntry, AuditOverflow, act_as_runtime
from roster.models.calls import Call, CallRollup, CallTotal, Preset
from roster.models.contracts import Contract, ContractVersion
from roster.models.hall import Hall, Node
from roster.models.invitations import Invitation
from roster.models.members import GuildMember, MemberExtras, MemberGroup, PortAllocation, StatusChange, Tool
from roster.models.proposals import MemberProposal
from roster.models.roles import Role
from roster.models.secrets import Secret, SecretUse
from roster.models.sessions import ClientSession
from roster.models.tokens import Token, TokenBucket, TokenClient, TokenLimit, TokenShare
from roster.models.tool_sets import ToolSet, ToolSetEntry, ToolSetGroup
from roster.models.trash import TrashedMember

__all__ = [
    "Actor",
    "Agent",
    "AgentEvent",
    "AgentMessage",
    "AuditEntry",
    "AuditOverflow",
    "Call",
    "CallRollup",
    "CallTotal",
    "ClientSession",
    "Contract",
    "ContractVersion",
    "GuildMember",
    "Hall",
    "Invitation",
    "MemberExtras",
    "MemberGroup",
    "MemberProposal",
    "Node",
    "PortAllocation",
    "Preset",
    "Role",
    "Secret",
    "SecretUse",
    "StatusChange",
    "Token",
    "TokenBucket",
    "TokenClient",
    "TokenLimit",
    "TokenShare",
    "Tool",
    "ToolSet",
    "ToolSetEntry",
    "ToolSetGroup",
    "TrashedMember",
    "act_as_runtime",
]
