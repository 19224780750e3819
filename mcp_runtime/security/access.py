"""Decides who may do what, for admin, REST, gateway and commands. No other module decides that.

Only who may change which user is decided elsewhere, in `roster.roles`.

A `Principal` is a snapshot of a user or a token with all its rights. `principals` creates it from the rows. Its methods
make no query, so a list of a thousand tools costs nothing.

The snapshot is also right for a member or tool that is newer than it. New members have no groups, and adding one
changes the version. A scope lists the names that are allowed, never those that are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q
from django.utils import timezone

from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import NotAllowedError
from mcp_runtime.security.limits import Owner, TokenLimits
from roster.models import GuildMember, Tool

CONTROL = "roster.control_member"
APPROVE = "roster.approve_contract"
INVOKE = "roster.invoke_tool"
VIEW_CALLS = "roster.view_call"
VIEW_MEMBERS = "roster.view_guildmember"
VIEW_TOOLS = "roster.view_tool"
VIEW_AGENTS = "roster.view_agent"
VIEW_NODES = "roster.view_node"
CHANGE_NODES = "roster.change_node"

NO_LIMITS = TokenLimits()


@dataclass(frozen=True)
class Principal:
    """A user, a token or the operator, with all that is needed to decide what it may do."""

    user_id: int | None
    name: str  # of the user
    invokes: bool = False  # the permission INVOKE
    controls: bool = False  # the permission CONTROL
    views_calls: bool = False  # the permission VIEW_CALLS
    views_members: bool = False  # the permission VIEW_MEMBERS
    views_tools: bool = False  # the permission VIEW_TOOLS
    closed_members: frozenset[str] = frozenset()  # reserved for groups that do not include the user
    closed_sets: frozenset[str] = frozenset()  # tool sets that are reserved so
    token_id: int | None = None
    token_name: str = ""
    token_hint: str = ""
    expires_at: datetime | None = None
    # The end of the access token that a client of a grant used. It has others, so these principals are equal.
    access_ends_at: datetime | None = field(default=None, compare=False)
    resource: str = ""  # of a grant: the path of the gateway that it is for
    members: frozenset[str] | None = None  # the members in the token's scope. None means all members
    tools: frozenset[tuple[str, str]] | None = None  # the token's scope: these tools, each (member, tool)
    # If the token's scope is this tool set, both `members` and `tools` say what is in it. It may use either.
    tool_set: str | None = None
    limits: TokenLimits = NO_LIMITS
    searches: bool = False  # the option of the token: the gateway lists tools to search, in place of all tools
    pinned: frozenset[tuple[str, str]] = frozenset()  # and these beside them, each (member, tool)

    @property
    def owner(self) -> Owner:
        """The owner of the budgets that it uses."""
        return self.user_id, self.token_id

    @property
    def is_expired(self) -> bool:
        ends = [moment for moment in (self.expires_at, self.access_ends_at) if moment is not None]
        return bool(ends) and min(ends) <= timezone.now()

    @property
    def is_narrowed(self) -> bool:
        """Whether a token's scope excludes anything."""
        return self.members is not None or self.tools is not None

    @cached_property
    def _members_of_tools(self) -> frozenset[str]:
        return frozenset(member for member, _ in self.tools or ()) | self._whole_members

    @cached_property
    def _whole_members(self) -> frozenset[str]:
        """The members that are as a whole in the tool set that is the token's scope."""
        return self.members if self.tool_set is not None and self.members is not None else frozenset()

    def reaches(self, member: str) -> bool:
        """Whether the member exists for this principal. Checks groups and the token's scope, but no permissions."""
        if member in self.closed_members:
            return False
        if self.tools is not None:
            return member in self._members_of_tools
        return self.members is None or member in self.members

    def may_invoke(self, member: str, tool: str) -> bool:
        if not self.invokes or member in self.closed_members:
            return False
        if self.tools is not None:
            return (member, tool) in self.tools or member in self._whole_members
        return self.members is None or member in self.members

    def may_use_set(self, name: str) -> bool:
        """Whether the address of the tool set exists for this principal. It shows only tools that it may call."""
        return name not in self.closed_sets and self.tool_set in (None, name)

    def may_see(self, member: str) -> bool:
        """Whether any tool of the member may be called."""
        return self.invokes and self.reaches(member)

    def may_use_all(self, member: str) -> bool:
        """Whether all of the member may be used, with resources and prompts. False for a scope of single tools."""
        return self.may_see(member) and (self.tools is None or member in self._whole_members)

    def may_control(self, member: str) -> bool:
        """Whether the member may be started and stopped, and it and its tools switched. Not with a scope of tools."""
        return self.controls and self.tools is None and self.reaches(member)

    @property
    def may_control_all(self) -> bool:
        """Whether nodes may be drained and members spread over them. That is about all members, also reserved ones."""
        return self.controls and not self.is_narrowed

    def may_list(self, member: str, tool: str) -> bool:
        """Whether the tool is shown. It is, if the principal may call it or switch it."""
        return self.may_invoke(member, tool) or self.may_control(member)

    def may_read_log(self, member: str) -> bool:
        """Whether the member's log may be read, and its last lines in errors and changes. It is about all users."""
        return self.views_members and self.tools is None and self.reaches(member)

    @property
    def views_figures(self) -> bool:
        """Whether statistics of whole members are shown. They count the calls of all users."""
        return self.views_members or self.views_tools or self.views_calls

    def may_view_figures(self, member: str, tool: str = "") -> bool:
        """Whether statistics of the member, or of one of its tools, are shown. They count the calls of all users."""
        if self.tools is not None and (member, tool) not in self.tools and not (tool and member in self._whole_members):
            return False
        return self.reaches(member) and (self.views_tools or self.views_calls if tool else self.views_figures)

    def may_read_call(self, member: str, requester_id: int | None, token_id: int | None) -> bool:
        """Whether a call may be seen. It decides as `calls_readable_by`, for a call that is in memory."""
        if self.is_narrowed:
            return token_id is not None and token_id == self.token_id
        is_own = requester_id is not None and requester_id == self.user_id
        return is_own or (self.views_calls and member not in self.closed_members)

    def may_cancel(self, member: str, requester_id: int | None) -> bool:
        """Whether a call of the member may be cancelled: one's own, or any call if one may stop the member."""
        return (requester_id is not None and requester_id == self.user_id) or self.may_control(member)


OPERATOR = Principal(
    None, "operator", invokes=True, controls=True, views_calls=True, views_members=True, views_tools=True
)


@dataclass(frozen=True)
class Decision:
    """Whether a call would be accepted, and all reasons for or against it, as sentences."""

    allowed: bool
    reasons: list[str]


# Rows -------------------------------------------------------------------------------------------------------------


def calls_readable_by(
    is_narrowed: bool, views_calls: bool, closed_members: frozenset[str], *, user: Any, token: Any
) -> Q:
    """The calls that a principal with these rights may see, over REST and in the admin.

    With the permission to view calls, the calls of all users. Otherwise the user's own. With a narrowed token, only
    those that were made with it.
    """
    if is_narrowed:
        return Q(token_id=token)
    own_calls = Q(requested_by_id=user)
    return own_calls | ~Q(member__name__in=closed_members) if views_calls else own_calls


def readable_calls(principal: Principal) -> Q:
    """The calls that the principal may see."""
    return calls_readable_by(
        principal.is_narrowed,
        principal.views_calls,
        principal.closed_members,
        user=principal.user_id,
        token=principal.token_id,
    )


# Refusals ---------------------------------------------------------------------------------------------------------


def require_invoke(principal: Principal, member: str, tool: str) -> None:
    """Raise NotAllowedError, which says what is missing. It does not reveal whether there is such a tool."""
    if not principal.may_invoke(member, tool):
        raise NotAllowedError(_sentences(_lacks(principal, INVOKE, principal.invokes, member, tool)))


def require_use(principal: Principal, member: str) -> None:
    """Raise NotAllowedError unless `may_use_all`. It says what is missing."""
    if not principal.may_use_all(member):
        raise NotAllowedError(_sentences(_lacks(principal, INVOKE, principal.invokes, member, None)))


def require_anything(principal: Principal) -> None:
    """Raise NotAllowedError if the principal may use nothing, now or after new members join."""
    reasons = []
    if not principal.invokes:
        reasons.append(f"this needs the permission {INVOKE}, which user {principal.name!r} does not have")
    scope = [part for part in (principal.members, principal.tools) if part is not None]
    if scope and not any(scope):
        if principal.tool_set is None:
            reasons.append(f"{_token(principal)} is for members or tools that have all left the hall")
        else:
            tool_set = f"the tool set {principal.tool_set!r}"
            reasons.append(f"{_token(principal)} is for {tool_set}, which is empty or reserved for others")
    if reasons:
        raise NotAllowedError(_sentences(reasons))


def require_control(principal: Principal, member: str) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if not principal.may_control(member):
        raise NotAllowedError(_sentences(_lacks(principal, CONTROL, principal.controls, member, None)))


def require_control_of_all(principal: Principal) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if principal.may_control_all:
        return
    reasons = []
    if not principal.controls:
        reasons.append(f"this needs the permission {CONTROL}, which user {principal.name!r} does not have")
    if principal.is_narrowed:
        reasons.append(f"this is about all members, and {_token(principal)} is for some of them alone")
    raise NotAllowedError(_sentences(reasons))


def require_log(principal: Principal, member: str) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if not principal.may_read_log(member):
        raise NotAllowedError(_sentences(_lacks(principal, VIEW_MEMBERS, principal.views_members, member, None)))


def require_figures(principal: Principal, member: str, tool: str = "") -> None:
    """Raises NotAllowedError, which says what is missing."""
    if principal.may_view_figures(member, tool):
        return
    if tool:
        permission, has_it = f"{VIEW_TOOLS} or {VIEW_CALLS}", principal.views_tools or principal.views_calls
    else:
        permission, has_it = f"{VIEW_MEMBERS}, {VIEW_TOOLS} or {VIEW_CALLS}", principal.views_figures
    raise NotAllowedError(_sentences(_lacks(principal, permission, has_it, member, tool or None)))


def require_all_figures(principal: Principal) -> None:
    """Raise NotAllowedError, which says what is missing for statistics of all members."""
    if not principal.views_figures:
        user = f"user {principal.name!r} does not have"
        raise NotAllowedError(f"This needs the permission {VIEW_MEMBERS}, {VIEW_TOOLS} or {VIEW_CALLS}, which {user}.")
    if principal.tools is not None:
        raise NotAllowedError(f"Figures are of whole members, and {_token(principal)} is for some tools alone.")


def require_cancel(principal: Principal, member: str, requester_id: int | None) -> None:
    """Raises NotAllowedError, which says what is missing."""
    if not principal.may_cancel(member, requester_id):
        raise NotAllowedError(_sentences(_lacks(principal, CONTROL, principal.controls, member, None)))


def _sentences(reasons: list[str]) -> str:
    return " ".join(f"{reason[0].upper()}{reason[1:]}." for reason in reasons)


def _lacks(principal: Principal, permission: str, has_it: bool, member: str, tool: str | None) -> list[str]:
    """All that is missing, as sentences without a full stop. `tool` None means the whole member."""
    reasons = []
    if not has_it:
        reasons.append(f"this needs the permission {permission}, which user {principal.name!r} does not have")
    if member in principal.closed_members:
        reasons.append(f"member {member!r} is reserved for groups, and user {principal.name!r} is in none of them")
    if principal.tool_set is not None:
        if not (principal.may_use_all(member) if tool is None else principal.may_invoke(member, tool)):
            reasons.append(f"{_token(principal)} is for the tool set {principal.tool_set!r} alone")
        return reasons
    if principal.members is not None and member not in principal.members:
        reasons.append(f"{_token(principal)} is for these members alone: {_names(principal.members)}")
    if principal.tools is not None and (tool is None or (member, tool) not in principal.tools):
        names = _names(f"{owner}/{name}" for owner, name in principal.tools)
        reasons.append(f"{_token(principal)} is for these tools alone: {names}")
    return reasons


def _token(principal: Principal) -> str:
    name = f" ({principal.token_name})" if principal.token_name else ""
    return f"the token {principal.token_hint}…{name}"


def _names(names: Any) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 10} more" if len(ordered) > 10 else ""
    return (", ".join(ordered[:10]) + more) or "none that is left"


# Explanations -----------------------------------------------------------------------------------------------------


def explain(principal: Principal, member: str, tool: str) -> Decision:
    """Whether a call of the tool would be accepted now, and all reasons. Queries the database."""
    against = _lacks(principal, INVOKE, principal.invokes, member, tool)
    if principal.is_expired:
        against.append(f"{_token(principal)} expired")
    against += _obstacles(member, tool)
    if against:
        return Decision(False, against)
    return Decision(True, [*_grants(principal, member), f"tool {tool!r} of member {member!r} is enabled"])


def explain_use(principal: Principal, member: str, what: str, obstacles: list[str]) -> Decision:
    """As `explain`, for something beside the tools of a member. `what` names it, for example `prompt 'a'`.

    `obstacles` are the reasons why nobody can use it now.
    """
    against = _lacks(principal, INVOKE, principal.invokes, member, None)
    if principal.is_expired:
        against.append(f"{_token(principal)} expired")
    if against or obstacles:
        return Decision(False, [*against, *obstacles])
    return Decision(True, [*_grants(principal, member), f"{what} of member {member!r} is enabled"])


def _obstacles(member: str, tool: str) -> list[str]:
    """The reasons why nobody can call the tool now."""
    row = GuildMember.objects.filter(name=member, removed_at=None).first()
    if row is None:
        return [f"no member {member!r} is in the roster"]
    reasons = [] if row.enabled else [f"member {member!r} is disabled"]
    tool_row = Tool.objects.filter(member=row, name=tool, listed=True).first()
    if tool_row is None:
        reasons.append(f"member {member!r} lists no tool {tool!r}")
    elif not tool_row.enabled:
        reasons.append(f"tool {tool!r} of member {member!r} is disabled")
    elif tool_row.is_held:
        reasons.append(f"tool {tool!r} of member {member!r} is held, because its definition waits for an approval")
    elif mcp.needs_task(tool_row.definition):
        reasons.append(f"tool {tool!r} of member {member!r} {mcp.NEEDS_TASK}")
    return reasons


def _grants(principal: Principal, member: str) -> list[str]:
    if principal.user_id is None:
        return ["who may run the hall's commands is its operator, and may do everything"]
    user = User.objects.get(pk=principal.user_id)
    reasons = [f"user {principal.name!r} {_source_of_permission(user)}"]
    groups = list(Group.objects.filter(guild_members__name=member).order_by("name"))
    if not groups:
        reasons.append(f"member {member!r} is reserved for no group")
    elif user.is_superuser:
        reasons.append(f"member {member!r} is reserved for groups, which superusers need not be in")
    else:
        shared = user.groups.filter(pk__in=[group.pk for group in groups]).values_list("name", flat=True)
        reasons.append(f"member {member!r} is reserved for groups, and the user is in {_names(shared)}")
    if principal.token_id is not None:
        scope = "includes it" if principal.is_narrowed else "is everything that its user may"
        reasons.append(f"the scope of {_token(principal)} {scope}")
    return reasons


def _source_of_permission(user: User) -> str:
    if user.is_superuser:
        return "is a superuser"
    codename = INVOKE.partition(".")[2]
    invoke = Permission.objects.filter(codename=codename, content_type__app_label="roster")
    if user.user_permissions.filter(pk__in=invoke).exists():
        return f"has the permission {INVOKE}"
    names = user.groups.filter(permissions__in=invoke).values_list("name", flat=True)
    return f"has the permission {INVOKE} by group {_names(set(names))}"
