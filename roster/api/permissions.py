"""The rights of a request. `mcp_runtime.security.access` decides, as for the admin, the gateway and commands."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import BigIntegerField, Q
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from mcp_runtime.control import proposals
from mcp_runtime.control.members import find_member, find_tool
from mcp_runtime.protocol.errors import NotAllowedError, UnknownMemberError, UnknownToolError
from mcp_runtime.rows.compiled_queries import CompiledQuery, Placeholder
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import CONTROL, Principal
from roster import audit
from roster.models import Call, GuildMember, Tool

_PRINCIPAL = "_guild_hall_principal"


def principal_of(request: Request) -> Principal:
    """The principal of the request, by its token or by the browser's session."""
    if isinstance(request.auth, Principal):
        return request.auth
    if not hasattr(request, _PRINCIPAL):
        setattr(request, _PRINCIPAL, principals.principal_of_user(cast(User, request.user)))
    return cast(Principal, getattr(request, _PRINCIPAL))


class MayControl(BasePermission):
    """Start and stop members, and enable and disable members and their tools. Which ones: `controlled_member`."""

    message = f"This needs the permission {CONTROL}."

    def has_permission(self, request: Request, view: Any) -> bool:
        return principal_of(request).controls


class MayViewNodes(BasePermission):
    """View the nodes of the hall, as in the admin. Their numbers are about all members."""

    message = f"This needs the permission {access.VIEW_NODES}, and a token that is for everything its user may do."

    def has_permission(self, request: Request, view: Any) -> bool:
        may_view = request.user.has_perm(access.VIEW_NODES) or request.user.has_perm(access.CHANGE_NODES)
        return may_view and not principal_of(request).is_narrowed


class MayViewSecrets(BasePermission):
    """View the names of secrets, as in the admin. To set or delete one needs more permissions."""

    message = "This needs the permission roster.view_secret, and a token that is for everything its user may do."

    def has_permission(self, request: Request, view: Any) -> bool:
        may_view = request.user.has_perm("roster.view_secret") or request.user.has_perm("roster.change_secret")
        return may_view and not principal_of(request).is_narrowed


class MayApproveMembers(BasePermission):
    """Propose members, and approve what they run."""

    message = f"This needs the permission {proposals.PERMISSION}, and a token that is for everything its user may do."

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.user.has_perm(proposals.PERMISSION) and not principal_of(request).is_narrowed


class MayReserveMembers(BasePermission):
    """See and choose the groups that members are reserved for."""

    message = "This needs the permission roster.change_guildmember, and a token that is for everything its user may do."

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.user.has_perm("roster.change_guildmember") and not principal_of(request).is_narrowed


class MayEditMembers(MayApproveMembers):
    """See and change the manifests of members."""

    message = f"{MayApproveMembers.message} It also needs the permission {access.VIEW_MEMBERS}."

    def has_permission(self, request: Request, view: Any) -> bool:
        return super().has_permission(request, view) and principal_of(request).views_members


class MayViewAudit(BasePermission):
    """View the audit log, as in the admin. It is about all users."""

    message = f"This needs the permission {audit.PERMISSION}, and a token that is for everything its user may do."

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.user.has_perm(audit.PERMISSION) and not principal_of(request).is_narrowed


class MayInvoke(BasePermission):
    """Call tools, directly or with an agent."""

    message = f"This needs the permission {access.INVOKE}."

    def has_permission(self, request: Request, view: Any) -> bool:
        return principal_of(request).invokes


class MayMakeTokens(BasePermission):
    """Create tokens. A user may always read and revoke own tokens."""

    message = "This needs the permission roster.add_token."

    def has_permission(self, request: Request, view: Any) -> bool:
        return request.method in ("GET", "HEAD", "OPTIONS") or request.user.has_perm("roster.add_token")


# Rows that the principal may see. Others get the same answer as missing rows --------------------------------------


def reachable_member(request: Request, name: str) -> GuildMember:
    """Raises UnknownMemberError."""
    if not principal_of(request).reaches(name):
        raise UnknownMemberError(f"no member {name!r} is in the roster")
    return find_member(name)


def controlled_member(request: Request, name: str) -> GuildMember:
    """The member. Raises UnknownMemberError. Raises NotAllowedError if the principal may only view it."""
    row = reachable_member(request, name)
    access.require_control(principal_of(request), name)
    return row


def used_member(request: Request, name: str) -> GuildMember:
    """The member. Raises UnknownMemberError, also if the principal may not use all of it."""
    if not principal_of(request).may_use_all(name):
        raise UnknownMemberError(f"no member {name!r} is in the roster")
    return find_member(name)


def approvable_member(request: Request, name: str) -> GuildMember:
    """The member. Raises UnknownMemberError. Raises NotAllowedError if the user may not approve changes of its tools.

    A narrowed token may not, because an agent could approve its own tools with it.
    """
    row = reachable_member(request, name)
    if not request.user.has_perm(access.APPROVE) or principal_of(request).is_narrowed:
        needs = f"this needs the permission {access.APPROVE}, and a token that is for everything its user may do"
        raise NotAllowedError(needs)
    return row


def listable_tool(request: Request, name: str, tool: str) -> Tool:
    """Raises UnknownMemberError, UnknownToolError."""
    reachable_member(request, name)
    if not principal_of(request).may_list(name, tool):
        raise UnknownToolError(f"member {name!r} lists no tool {tool!r}")
    return find_tool(name, tool)


def readable_calls(request: Request) -> Q:
    """The calls that the principal may see."""
    return access.readable_calls(principal_of(request))


def readable_call(request: Request, pk: int) -> Call | None:
    """The call with this id and its member's name, if the principal may see it."""
    if pk > BigIntegerField.MAX_BIGINT:
        return None
    principal = principal_of(request)
    calls = _one_readable(principal.is_narrowed, principal.views_calls, principal.closed_members)
    return calls.first(pk=pk, user=principal.user_id, token=principal.token_id)


@lru_cache(64)
def _one_readable(*rights: Any) -> CompiledQuery[Call]:
    readable = access.calls_readable_by(*rights, user=Placeholder("user"), token=Placeholder("token"))
    calls = Call.objects.filter(readable, pk=Placeholder("pk")).order_by()
    return CompiledQuery(lambda: calls, related={"member": ["name"]})


def readable_agents(request: Request) -> Q:
    """The agents that the principal may see: the user's own. With VIEW_AGENTS also those of others, except
    those with members that are reserved for others.

    With a narrowed token, only those that were made with it and have no member outside its scope.
    """
    principal = principal_of(request)
    if principal.tools is not None:
        return Q(pk__in=[])
    condition = Q(created_by=principal.user_id)
    if principal.members is not None:
        return (
            condition
            & Q(made_with=principal.token_id)
            & ~Q(members__in=GuildMember.objects.exclude(name__in=principal.members))
        )
    if request.user.has_perm(access.VIEW_AGENTS):
        condition |= ~Q(members__in=GuildMember.objects.filter(name__in=principal.closed_members))
    return condition
