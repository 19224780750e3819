"""Create and revoke tokens, for admin, REST and commands.

A token never has more rights than its creator. Revoking it cancels its calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.utils import timezone

from mcp_runtime.agents import transitions as agent_transitions
from mcp_runtime.calls import transitions
from mcp_runtime.control.members import find_member, find_tool
from mcp_runtime.control.notify import notify_runtime
from mcp_runtime.control.tool_sets import find_tool_set
from mcp_runtime.protocol.errors import NotAllowedError, RequestRefusedError, UnknownMemberError
from mcp_runtime.rows.database import short_transaction
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster.models import AuditEntry, GuildMember, Hall, Token, TokenLimit, Tool, ToolSet

MAX_TOKEN_NAME = Token._meta.get_field("name").max_length or 0


@dataclass(frozen=True)
class NewToken:
    """The values of a new token. Without `members`, `tools` and `tool_set` it has the scope of its creator.

    Each tool is (member, tool), and `tool_set` a name. `limits` are by the names in Token.LIMITS. A limit that is None
    or missing is the default of all tokens. In search mode, clients list `pinned_tools` beside the tools that search.
    """

    name: str = ""
    members: Sequence[str] = ()
    tools: Sequence[tuple[str, str]] = ()
    tool_set: str = ""
    expires_at: datetime | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)
    search_mode: bool = False
    pinned_tools: Sequence[tuple[str, str]] = ()
    resource: str = ""  # of a grant, see `control.grants`


def make_token(user: User, new: NewToken, *, maker: Principal) -> tuple[Token, str]:
    """Create a token. Returns its row, and the token itself, which can be shown only once.

    A token that is created with a token inherits its scope, end and limits, unless `new` has its own. Raises
    NotAllowedError if it would have more rights than `maker`, RequestRefusedError for values that are not possible.
    """
    if sum(map(bool, (new.members, new.tools, new.tool_set))) > 1:
        raise RequestRefusedError("a token is for some members, for some tools or for a tool set; give one of them")
    if len(new.name) > MAX_TOKEN_NAME:
        raise RequestRefusedError(f"the name of a token may have {MAX_TOKEN_NAME} characters at most")
    if new.expires_at is not None and new.expires_at <= timezone.now():
        raise RequestRefusedError("the token would expire before it is made")
    limits = {limit.name: _limit(limit, new.limits.get(limit.name), maker) for limit in Token.LIMITS}
    tool_set = _tool_set(new, maker)
    members, tools, scope = ([], [], Token.Scope.TOOLS) if tool_set else _scope(new, maker)
    pinned_tools = _pinned_tools(new, _names_in_scope(scope, tool_set, members, tools), maker)
    with short_transaction():
        row, token = Token.make(
            user=user,
            name=new.name,
            scope=scope,
            members=members,
            tools=tools,
            tool_set=tool_set,
            expires_at=_earlier(new.expires_at, maker),
            made_with_id=maker.token_id,
            search_mode=new.search_mode,
            pinned_tools=pinned_tools,
            resource=new.resource,
            **limits,
        )
        AuditEntry.record(AuditEntry.Kind.TOKEN_CREATED, row.audit_name, after=_details(row, members, tools))
    return row, token


def _details(row: Token, members: Sequence[GuildMember], tools: Sequence[Tool]) -> dict[str, Any]:
    """The values of a token for the audit log. Those of the default are missing."""
    values = {
        "scope": str(row.scope),
        "members": [member.name for member in members],
        "tools": [f"{tool.member.name}/{tool.name}" for tool in tools],
        "tool_set": row.tool_set and row.tool_set.name,
        "expires_at": row.expires_at,
        "created_with_token": row.made_with and row.made_with.hint,
        **row.own_limits,
        "search_mode": row.search_mode or None,
        "pinned_tools": row.pinned_tools,
    }
    return {name: value for name, value in values.items() if value not in (None, [])}


def _tool_set(new: NewToken, maker: Principal) -> ToolSet | None:
    """The tool set for which the token is, also if its creator is for one. None for another scope."""
    if maker.tool_set is None:
        if new.tool_set and maker.is_narrowed:
            raise NotAllowedError("A token for some members or tools cannot create a token for a tool set.")
        return find_tool_set(new.tool_set, maker) if new.tool_set else None
    if new.members or new.tools or new.tool_set not in ("", maker.tool_set):
        text = f"A token for the tool set {maker.tool_set!r} can only create tokens for the same set."
        raise NotAllowedError(text)
    return find_tool_set(maker.tool_set, maker)


def _scope(new: NewToken, maker: Principal) -> tuple[list[GuildMember], list[Tool], Token.Scope]:
    if new.members:
        for name in new.members:
            _require_reach(maker, name)
            if maker.tools is not None:
                raise NotAllowedError("A token for some tools cannot create a token for a whole member.")
        return [find_member(name) for name in dict.fromkeys(new.members)], [], Token.Scope.MEMBERS
    if new.tools:
        return [], [_tool(maker, *pair) for pair in dict.fromkeys(new.tools)], Token.Scope.TOOLS
    if maker.members is not None:
        return list(GuildMember.objects.filter(name__in=maker.members)), [], Token.Scope.MEMBERS
    if maker.tools is not None:
        return [], list(Tool.objects.filter(tokens=maker.token_id)), Token.Scope.TOOLS
    return [], [], Token.Scope.ALL


def _require_reach(maker: Principal, member: str) -> None:
    if maker.members is not None and member not in maker.members:
        raise NotAllowedError(
            f"A token cannot create a token with more access. This one gives no access to {member!r}."
        )
    if member in maker.closed_members:
        raise UnknownMemberError(f"no member {member!r} is in the roster")


def _tool(maker: Principal, member: str, tool: str) -> Tool:
    _require_reach(maker, member)
    if maker.tools is not None and (member, tool) not in maker.tools:
        raise NotAllowedError(f"A token cannot create a token with more access. This one gives no access to {tool!r}.")
    return find_tool(member, tool)


def _pinned_tools(new: NewToken, in_scope: set[tuple[str, str]] | None, maker: Principal) -> list[str]:
    """The pinned tools as MEMBER/TOOL. Raises RequestRefusedError for too many, and for one that the token may not use.

    `in_scope` is what `_names_in_scope` returns.
    """
    pairs = list(dict.fromkeys(new.pinned_tools))
    if pairs and not new.search_mode:
        raise RequestRefusedError("a token has pinned tools only in search mode; other tokens list all tools")
    if len(pairs) > Token.MAX_PINNED:
        raise RequestRefusedError(f"a token can have {Token.MAX_PINNED} pinned tools, not {len(pairs)}")
    for member, tool in pairs:
        _tool(maker, member, tool)
        if in_scope is not None and not in_scope & {(member, ""), (member, tool)}:
            raise RequestRefusedError(f"the token is not for tool {tool!r} of member {member!r}, so it cannot pin it")
    return [f"{member}/{tool}" for member, tool in pairs]


def _names_in_scope(
    scope: Token.Scope, tool_set: ToolSet | None, members: Sequence[GuildMember], tools: Sequence[Tool]
) -> set[tuple[str, str]] | None:
    """The members and tools of a scope, each (member, tool) or (member, ""). None for everything."""
    if tool_set is not None:
        return set(tool_set.entries.values_list("member__name", "tool_name"))
    if scope == Token.Scope.ALL:
        return None
    return {(member.name, "") for member in members} | {(tool.member.name, tool.name) for tool in tools}


def _earlier(end: datetime | None, maker: Principal) -> datetime | None:
    # Of the row, because the principal also ends when its user has not used single sign-on for too long.
    makers = Token.objects.filter(pk__in=[maker.token_id]).values_list("expires_at", flat=True).first()
    if makers is None or end is None:
        return end or makers
    if end > makers:
        raise NotAllowedError("A token cannot create a token that expires later.")
    return end


def _limit(limit: TokenLimit, value: int | None, maker: Principal) -> int | None:
    """The value for the row. None means the default of all tokens, and 0 means no limit."""
    if value is not None and value < limit.minimum:
        raise RequestRefusedError(f"a token with {value} {limit.words} allows no call; give {limit.minimum} or more")
    makers: int = getattr(maker.limits, limit.name)
    if not makers:
        return value
    if value is None:
        return None if limit.default and limit.default <= makers else makers
    if value == 0 or value > makers:
        raise NotAllowedError(f"A token cannot create a token with higher limits. This one has {makers} {limit.words}.")
    return value


def narrow_token(row: Token, tools: Collection[tuple[str, str]]) -> None:
    """Give the token the scope of these tools, each (member, tool). Its pinned tools that are not among them go.

    Raises RequestRefusedError if it is revoked or for a tool set, if it has no access to one of them, or if there are
    none.
    """
    if not tools:
        raise RequestRefusedError("a token without tools gives no access; revoke it instead")
    with short_transaction():
        Hall.note_access_change()
        row = Token.objects.select_for_update().get(pk=row.pk)
        if row.revoked_at is not None:
            raise RequestRefusedError("the token was revoked")
        if row.tool_set_id is not None:
            raise RequestRefusedError("the token follows its tool set, so trim the tool set in its place")
        principal = principals.principal_of_row(row)
        for member, tool in tools:
            if not principal.may_invoke(member, tool):
                raise RequestRefusedError(f"the token is not for tool {tool!r} of member {member!r}")
        kept = [tool for tool in _rows_of(tools) if (tool.member.name, tool.name) in tools]
        before = _details(row, list(row.members.all()), list(row.tools.select_related("member")))
        names = {f"{member}/{tool}" for member, tool in tools}
        row.scope = Token.Scope.TOOLS
        row.pinned_tools = [name for name in row.pinned_tools if name in names]
        # Not `save`: its entry in the audit log would lack the members and tools.
        Token.objects.filter(pk=row.pk).update(scope=row.scope, pinned_tools=row.pinned_tools)
        row.members.clear()
        row.tools.set(kept)
        after = _details(row, [], kept)
        AuditEntry.record(AuditEntry.Kind.TOKEN_CHANGED, row.audit_name, before=before, after=after)


def _rows_of(tools: Collection[tuple[str, str]]) -> QuerySet[Tool]:
    rows = Tool.objects.filter(member__name__in={member for member, _ in tools}, name__in={name for _, name in tools})
    return rows.filter(member__removed_at=None).select_related("member").defer("definition")


def revoke_token(row: Token, reason: str = "") -> None:
    """Revoke the token and all tokens created with it. Cancels their queued calls, and stops their agents."""
    with short_transaction():
        token_ids = row.revoke()
        transitions.cancel_calls_of_tokens(token_ids)
        messages = agent_transitions.stop_messages_of_tokens(token_ids)
        others = Token.objects.filter(pk__in=token_ids).exclude(pk=row.pk).order_by("pk").values_list("hint", flat=True)
        details = {"tokens_created_with_it": list(others), "reason": reason}
        after = {name: value for name, value in details.items() if value}
        AuditEntry.record(AuditEntry.Kind.TOKEN_REVOKED, row.audit_name, after=after or None)
    if messages:
        notify_runtime(members=True)


def delete_token(row: Token) -> None:
    """Revoke the token, and delete it with all tokens created with it. Otherwise its calls would continue."""
    with short_transaction():
        if row.revoked_at is None:
            revoke_token(row)
        details = _details(row, list(row.members.all()), list(row.tools.select_related("member")))
        AuditEntry.record(AuditEntry.Kind.TOKEN_DELETED, row.audit_name, before=details)
        row.delete()
