"""The rows of the hall, their constraints, and properties of one row. Comments beside the fields name their writers.

Three modules write statuses: `mcp_runtime.members.status` (members), `mcp_runtime.calls.transitions` (calls) and
`mcp_runtime.agents.transitions` (messages to agents). From the runtime the models import only how calls fail
(`mcp_runtime.protocol.errors`) and the mask (`mcp_runtime.secrets.references`). The runtime imports the models from
here, and nothing else from `roster`. A new field of a member, a call or a token goes into the module of that noun, with
a migration. CONTRIBUTING says where else.
"""

from roster.models.agents import Agent, AgentEvent, AgentMessage
from roster.models.audit import Actor, AuditEntry, AuditOverflow, act_as_runtime
from roster.models.bundles import Bundle, BundlePart
from roster.models.calls import Call, CallRollup, CallTotal, Preset
from roster.models.contracts import Contract, ContractVersion
from roster.models.edits import ManifestEdit
from roster.models.grants import AccessToken, ClientRegistration, Grant
from roster.models.hall import Hall, Node
from roster.models.identities import Identity
from roster.models.invitations import Invitation
from roster.models.member_sign_ins import (
    MemberSignIn,
    MemberSignInAttempt,
    SignIn,
    SignInAttempt,
    UserSignIn,
    UserSignInAttempt,
)
from roster.models.members import (
    DisabledExtra,
    GuildMember,
    MemberExtras,
    MemberGroup,
    PortAllocation,
    StatusChange,
    Tool,
)
from roster.models.packages import PackageLock, VersionLookUp
from roster.models.pins import PinnedTool
from roster.models.proposals import MemberProposal
from roster.models.roles import Role
from roster.models.saved_filters import SavedFilter
from roster.models.secrets import Secret, SecretUse
from roster.models.sessions import ClientSession
from roster.models.tokens import Token, TokenBucket, TokenClient, TokenLimit, TokenShare
from roster.models.tool_sets import ToolSet, ToolSetEntry, ToolSetGroup
from roster.models.trash import TrashedMember

__all__ = [
    "AccessToken",
    "Actor",
    "Agent",
    "AgentEvent",
    "AgentMessage",
    "AuditEntry",
    "AuditOverflow",
    "Bundle",
    "BundlePart",
    "Call",
    "CallRollup",
    "CallTotal",
    "ClientRegistration",
    "ClientSession",
    "Contract",
    "ContractVersion",
    "DisabledExtra",
    "Grant",
    "GuildMember",
    "Hall",
    "Identity",
    "Invitation",
    "ManifestEdit",
    "MemberExtras",
    "MemberGroup",
    "MemberProposal",
    "MemberSignIn",
    "MemberSignInAttempt",
    "Node",
    "PackageLock",
    "PinnedTool",
    "PortAllocation",
    "Preset",
    "Role",
    "SavedFilter",
    "Secret",
    "SecretUse",
    "SignIn",
    "SignInAttempt",
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
    "UserSignIn",
    "UserSignInAttempt",
    "VersionLookUp",
    "act_as_runtime",
]
