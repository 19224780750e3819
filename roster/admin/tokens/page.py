"""The data of a token's page.

The page shows the configuration for each client, the programs that used the token, and the tools called with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Max, Q
from django.http import HttpRequest

from mcp_runtime.protocol.errors import RequestRefusedError, TokenError
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster import agent_config
from roster.agent_config import FORMATS, PLACEHOLDER, Cost, Entry
from roster.models import Call, GuildMember, Token

COUNTED_CALLS = 1_000  # the newest calls, which the table of tools counts
SHOWN_TOOLS = 50
MAX_CHOICES = 300  # members that the form offers

CLIENT_NAMES = {
    "agent-sdk": "Claude Agent SDK",
    "claude-code": "Claude Code",
    "cursor": "Cursor",
    "vscode": "VS Code",
    "codex": "Codex",
}


@dataclass(frozen=True)
class ClientConfiguration:
    """The configuration of one client."""

    key: str
    name: str
    place: str
    text: str


def configuration(request: HttpRequest, token: Token) -> dict[str, Any]:
    """Return the context of the form and of the configurations.

    The URL has the choices of the form, for example `?members=a&members=b&way=direct`. Without `members` the
    configurations are for all members.
    """
    try:
        principal = principals.principal_of_row(token)
    except TokenError as error:
        return {"token": token, "refusal": str(error)}
    choices = agent_config.select_members(principal, [])[:MAX_CHOICES]
    selected_names = set(request.GET.getlist("members"))
    selection = [member for member in choices if member.name in selected_names]
    direct = request.GET.get("way") == "direct"
    context = {
        "token": token,
        "choices": choices,
        "selected_names": {member.name for member in selection},
        "direct": direct,
        "estimate_formula": agent_config.ESTIMATE_FORMULA,
    }
    members = selection or choices
    try:
        entries = _entries(selection, members, direct=direct)
    except RequestRefusedError as refusal:
        return {**context, "refusal": f"{str(refusal)[0].upper()}{str(refusal)[1:]}."}
    return {**context, "clients": _clients(entries), **_costs(principal, members, direct=direct)}


def _entries(selection: list[GuildMember], members: list[GuildMember], *, direct: bool) -> list[Entry]:
    if direct:
        return agent_config.direct_entries(members, require_all=bool(selection))
    return agent_config.gateway_entries([member.name for member in selection], PLACEHOLDER)


def _clients(entries: list[Entry]) -> list[ClientConfiguration]:
    return [
        ClientConfiguration(key, CLIENT_NAMES[key], form.place, form.write(entries)) for key, form in FORMATS.items()
    ]


def _costs(principal: Principal, members: list[GuildMember], *, direct: bool) -> dict[str, Any]:
    costs = agent_config.costs(principal, members, direct=direct)
    rows = [{"name": name, "tools": cost.tools, "tokens": cost.tokens} for name, cost in costs.items() if cost.tools]
    total = sum(costs.values(), Cost())
    return {"costs": rows, "total_tools": total.tools, "total_tokens": total.tokens}


def usage(request: HttpRequest, token: Token) -> dict[str, Any]:
    """Return the programs that used the token, and the tools called with it.

    Only the last calls are counted, because a count of all calls may take long.
    """
    last_calls = Call.objects.filter(token=token).order_by("-id").values("pk")[:COUNTED_CALLS]
    tools = (
        Call.objects.filter(pk__in=last_calls)
        .order_by()
        .values("member_id", "member__name", "tool_name")
        .annotate(calls=Count("pk"), failed=Count("pk", filter=Q(status=Call.Status.FAILED)), last_at=Max("queued_at"))
        .order_by("-last_at", "tool_name")
    )
    return {
        "token": token,
        "token_clients": list(token.clients.all()),
        "called_tools": list(tools[:SHOWN_TOOLS]),
        "counted_calls": COUNTED_CALLS,
        "may_list_calls": request.user.has_perm("roster.view_call"),
    }
