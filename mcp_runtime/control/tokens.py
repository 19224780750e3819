"""Tokens: the same for admin, REST and commands, never wider than their maker, revoked with their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from mcp_runtime.agents import sessions
from mcp_runtime.calls import invocations
from mcp_runtime.control.members import find_member, find_tool
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import NotAllowedError, RequestRefusedError, UnknownMemberError
from mcp_runtime.security.access import Principal
from roster.models import ApiToken, GuildMember, TokenLimit, Tool

MAX_TOKEN_NAME = ApiToken._meta.get_field("name").max_length or 0


@dataclass(frozen=True)
class NewToken:
    """What a token is to be. Neither `members` nor `tools`: all that who makes it may. Tools are (member, tool).

    `limits` by the names in ApiToken.LIMITS; one that is None or left out is that of all tokens.
    """

    name: str = ""
    members: Sequence[str] = ()
    tools: Sequence[tuple[str, str]] = ()
    expires_at: datetime | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)


def make_token(user: User, new: NewToken, *, maker: Principal) -> tuple[ApiToken, str]:
    """The row, and the token itself to be shown once.

    Where nothing was asked for, a token that is made with a token takes over its scope, end and limits. Raises
    NotAllowedError for what is wider than `maker`, RequestRefusedError for what cannot be.
    """
    if new.members and new.tools:
        raise RequestRefusedError("a token is for some members or for some tools; give one of them")
    if len(new.name) > MAX_TOKEN_NAME:
        raise RequestRefusedError(f"the name of a token may have {MAX_TOKEN_NAME} characters at most")
    if new.expires_at is not None and new.expires_at <= timezone.now():
        raise RequestRefusedError("the token would expire before it is made")
    limits = {limit.name: _limit(limit, new.limits.get(limit.name), maker) for limit in ApiToken.LIMITS}
    members, tools, scope = _scope(new, maker)
    return ApiToken.make(
        user=user,
        name=new.name,
        scope=scope,
        members=members,
        tools=tools,
        expires_at=_earlier(new.expires_at, maker),
        made_with_id=maker.token_id,
        **limits,
    )


def _scope(new: NewToken, maker: Principal) -> tuple[list[GuildMember], list[Tool], ApiToken.Scope]:
    if new.members:
        for name in new.members:
            _require_reach(maker, name)
            if maker.tools is not None:
                raise NotAllowedError("A token for some tools cannot make one for a whole member.")
        return [find_member(name) for name in dict.fromkeys(new.members)], [], ApiToken.Scope.MEMBERS
    if new.tools:
        return [], [_tool(maker, *pair) for pair in dict.fromkeys(new.tools)], ApiToken.Scope.TOOLS
    if maker.members is not None:
        return list(GuildMember.objects.filter(name__in=maker.members)), [], ApiToken.Scope.MEMBERS
    if maker.tools is not None:
        return [], list(Tool.objects.filter(api_tokens=maker.token_id)), ApiToken.Scope.TOOLS
    return [], [], ApiToken.Scope.ALL


def _require_reach(maker: Principal, member: str) -> None:
    if maker.members is not None and member not in maker.members:
        raise NotAllowedError(f"A token cannot make one that opens more than itself: it does not open {member!r}.")
    if member in maker.closed_members:
        raise UnknownMemberError(f"no member {member!r} is in the roster")


def _tool(maker: Principal, member: str, tool: str) -> Tool:
    _require_reach(maker, member)
    if maker.tools is not None and (member, tool) not in maker.tools:
        raise NotAllowedError(f"A token cannot make one that opens more than itself: it does not open {tool!r}.")
    return find_tool(member, tool)


def _earlier(end: datetime | None, maker: Principal) -> datetime | None:
    if maker.expires_at is None or end is None:
        return end or maker.expires_at
    if end > maker.expires_at:
        raise NotAllowedError("A token cannot make one that lives longer than itself.")
    return end


def _limit(limit: TokenLimit, value: int | None, maker: Principal) -> int | None:
    """None: that of all tokens. 0 is no limit."""
    if value is not None and value < limit.minimum:
        raise RequestRefusedError(f"a token with {value} {limit.words} opens nothing; give {limit.minimum} or more")
    makers: int = getattr(maker.limits, limit.name)
    if not makers:
        return value
    if value is None:
        return None if limit.default and limit.default <= makers else makers
    if value == 0 or value > makers:
        raise NotAllowedError(f"A token cannot make one that may do more than itself: it has {makers} {limit.words}.")
    return value


def revoke_token(row: ApiToken) -> None:
    """Revoke the token and those made with it, cancel their queued calls, and stop their agents."""
    with transaction.atomic():
        token_ids = row.revoke()
        invocations.cancel_calls_of_tokens(token_ids)
        messages = sessions.stop_messages_of_tokens(token_ids)
    if messages:
        notify_runtime(members=True)
