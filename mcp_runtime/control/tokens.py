"""API tokens: made for every door alike, never wider than who asks, and revoked with all that was asked with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from mcp_runtime.agents import sessions
from mcp_runtime.calls import invocations
from mcp_runtime.control.members import find_member, find_tool
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.protocol.errors import NotAllowedError, RequestRefusedError, UnknownMemberError
from mcp_runtime.security.access import Principal
from roster.models import ApiToken, GuildMember, Tool

MAX_TOKEN_NAME = ApiToken._meta.get_field("name").max_length or 0


@dataclass(frozen=True)
class NewToken:
    """What a token is to be. Neither `members` nor `tools`: all that who makes it may. Tools are (member, tool)."""

    name: str = ""
    members: Sequence[str] = ()
    tools: Sequence[tuple[str, str]] = ()
    expires_at: datetime | None = None
    calls_per_minute: int | None = None
    max_in_flight: int | None = None


def make_token(user: User, wish: NewToken, *, maker: Principal) -> tuple[ApiToken, str]:
    """The row, and the token itself to be shown once.

    Where nothing was asked for, a token that is made with a token takes over its scope, end and limits. Raises
    NotAllowedError for what is wider than `maker`, RequestRefusedError for what cannot be.
    """
    if wish.members and wish.tools:
        raise RequestRefusedError("a token is for some members or for some tools; give one of them")
    if len(wish.name) > MAX_TOKEN_NAME:
        raise RequestRefusedError(f"the name of a token may have {MAX_TOKEN_NAME} characters at most")
    if wish.expires_at is not None and wish.expires_at <= timezone.now():
        raise RequestRefusedError("the token would expire before it is made")
    if wish.max_in_flight == 0:
        raise RequestRefusedError("a token that may have no call under way opens nothing; give 1 or more")
    members, tools, scope = _scope(wish, maker)
    return ApiToken.make(
        user=user,
        name=wish.name,
        scope=scope,
        members=members,
        tools=tools,
        expires_at=_earlier(wish.expires_at, maker),
        calls_per_minute=_limit(
            "calls a minute", wish.calls_per_minute, maker.calls_per_minute, settings.GUILD_HALL_CALLS_PER_MINUTE
        ),
        max_in_flight=_limit(
            "calls at the same time", wish.max_in_flight, maker.max_in_flight, settings.GUILD_HALL_MAX_IN_FLIGHT
        ),
        made_with_id=maker.token_id,
    )


def _scope(wish: NewToken, maker: Principal) -> tuple[list[GuildMember], list[Tool], ApiToken.Scope]:
    if wish.members:
        for name in wish.members:
            _require_reach(maker, name)
            if maker.tools is not None:
                raise NotAllowedError("A token for some tools cannot make one for a whole member.")
        return [find_member(name) for name in dict.fromkeys(wish.members)], [], ApiToken.Scope.MEMBERS
    if wish.tools:
        return [], [_tool(maker, *pair) for pair in dict.fromkeys(wish.tools)], ApiToken.Scope.TOOLS
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


def _earlier(wished: datetime | None, maker: Principal) -> datetime | None:
    if maker.expires_at is None or wished is None:
        return wished or maker.expires_at
    if wished > maker.expires_at:
        raise NotAllowedError("A token cannot make one that lives longer than itself.")
    return wished


def _limit(what: str, wished: int | None, makers: int, default: int) -> int | None:
    """0 is no limit; None is `default`."""
    if not makers:
        return wished
    if wished is None:
        return None if default and default <= makers else makers
    if wished == 0 or wished > makers:
        raise NotAllowedError(f"A token cannot make one that may do more than itself: it has {makers} {what}.")
    return wished


def revoke_token(row: ApiToken) -> None:
    """It opens nothing any more, nor do tokens made with it. Their queued calls are cancelled, their agents stopped."""
    with transaction.atomic():
        revoked = row.revoke()
        invocations.cancel_asked_with(revoked)
        stopped = sessions.stop_asked_with(revoked)
    if stopped:
        notify_runtime(wishes=True)
