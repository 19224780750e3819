"""The data of a token's page.

The page shows the configuration for each client, the programs that used the token, and the tools called with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import Count, Max, Q
from django.http import HttpRequest, QueryDict

from mcp_runtime.control.tool_sets import visible_tool_sets
from mcp_runtime.protocol.errors import RequestRefusedError, TokenError
from mcp_runtime.security import access, principals
from mcp_runtime.security.access import Principal
from roster import agent_config
from roster.agent_config import Cost
from roster.client_formats import CLIENTS, PLACEHOLDER, Client, Entry
from roster.models import Call, GuildMember, Token

COUNTED_CALLS = 1_000  # the newest calls, which the table of tools counts
SHOWN_TOOLS = 50
SHOWN_COSTS = 25  # members, those with the highest cost
MAX_CHOICES = 300  # members that the form offers


@dataclass(frozen=True)
class Configuration:
    """The configuration of one client. `link` adds it with one click, in clients that have such links."""

    key: str
    client: Client
    text: str
    link: str


@dataclass(frozen=True)
class Choice:
    """What the configurations are for: some members, a tool set, or everything."""

    members: list[GuildMember] = field(default_factory=list)
    tool_set: str = ""
    direct: bool = False


def configuration(request: HttpRequest, token: Token) -> dict[str, Any]:
    """Return the context of the form and of the configurations.

    The URL has the choices of the form, for example `?members=a&members=b&way=direct` or `?tool_set=writing`. Without
    them the configurations are for all members. A token for a tool set has no choice.
    """
    try:
        principal = principals.principal_of_row(token)
    except TokenError as error:
        return {"token": token, "refusal": str(error)}
    choices = agent_config.select_members(principal, [])[:MAX_CHOICES]
    choice = _choice(request.GET, choices, principal.tool_set)
    context = {
        "token": token,
        "choices": choices,
        "tool_sets": visible_tool_sets(principal).values_list("name", flat=True),
        "own_tool_set": principal.tool_set,
        "selected_names": {member.name for member in choice.members},
        "selected_set": choice.tool_set,
        "direct": choice.direct,
        "estimate_formula": agent_config.ESTIMATE_FORMULA,
    }
    try:
        agent_config.require_one_choice(
            (member.name for member in choice.members), choice.tool_set, direct=choice.direct
        )
        costs = _costs(principal, choice, choices)
        return {**context, "configurations": _configurations(_entries(choice, choices)), **costs}
    except RequestRefusedError as refusal:
        return {**context, "refusal": f"{str(refusal)[0].upper()}{str(refusal)[1:]}."}


def _choice(query: QueryDict, choices: list[GuildMember], own_tool_set: str | None) -> Choice:
    if own_tool_set is not None:
        return Choice(tool_set=own_tool_set)
    names = set(query.getlist("members"))
    members = [member for member in choices if member.name in names]
    return Choice(members, query.get("tool_set", ""), direct=query.get("way") == "direct")


def _entries(choice: Choice, choices: list[GuildMember]) -> list[Entry]:
    if choice.direct:
        return agent_config.direct_entries(choice.members or choices, require_all=bool(choice.members))
    return agent_config.gateway_entries([member.name for member in choice.members], PLACEHOLDER, choice.tool_set)


def _configurations(entries: list[Entry]) -> list[Configuration]:
    only_entry = entries[0] if len(entries) == 1 else None  # a link adds one server
    return [
        Configuration(key, client, client.write(entries), client.link(only_entry) if client.link and only_entry else "")
        for key, client in CLIENTS.items()
    ]


def _costs(principal: Principal, choice: Choice, choices: list[GuildMember]) -> dict[str, Any]:
    if choice.tool_set:
        costs = agent_config.costs_of_set(principal, choice.tool_set)
    else:
        costs = agent_config.costs(principal, choice.members or choices, direct=choice.direct)
    rows = [(name, cost) for name, cost in costs.items() if cost.tools]
    shown = sorted(rows, key=lambda row: -row[1].tokens)[:SHOWN_COSTS]
    total = sum(costs.values(), Cost())
    return {
        "costs": [{"name": name, "tools": cost.tools, "tokens": cost.tokens} for name, cost in shown],
        "costs_left_out": len(rows) - len(shown),
        "total_tools": total.tools,
        "total_tokens": total.tokens,
    }


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
        "may_list_calls": request.user.has_perm(access.VIEW_CALLS) or request.user.has_perm(access.INVOKE),
    }
