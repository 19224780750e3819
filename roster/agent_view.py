"""What an agent sees: the tools in its list, what they cost, and which of them it did not call lately.

A token, or a tool set, can be trimmed to the tools that were called.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from mcp_runtime.control import tokens, tool_sets
from mcp_runtime.protocol.errors import RequestRefusedError
from mcp_runtime.security import principals
from mcp_runtime.security.access import Principal
from roster import agent_config
from roster.agent_config import Cost, ListedTool, ToolList
from roster.call_counts import Name, kept_counts
from roster.models import Token, Tool, ToolSet

MAX_DAYS = 30
MAX_COUNTED = 100_000  # calls, the newest. Counting more would take seconds


@dataclass(frozen=True)
class AgentView:
    """The tools of an agent. `days` is for how long calls were counted.

    `counts_all` is False if the viewer does not see all calls. `counts` also has tools that are not listed now, for
    example because they are held.
    """

    tools: ToolList
    counts: Mapping[Name, int]
    days: int
    counts_all: bool
    searches: bool = False
    is_of_set: bool = False  # a token for a tool set

    def most_expensive(self, number: int) -> list[tuple[ListedTool, int]]:
        """The tools that cost most, each with its calls."""
        return [(tool, self.counts.get(tool.key, 0)) for tool in self.tools.by_cost[:number]]

    @property
    def total(self) -> Cost:
        return self.tools.total

    @cached_property
    def used(self) -> Cost:
        return Cost.of(tool for name in self.counts if (tool := self.tools.by_name.get(name)) is not None)

    @property
    def kept(self) -> int:
        return self.used.tools

    @property
    def unused(self) -> Cost:
        return self.total - self.used

    @property
    def unused_names(self) -> set[Name]:
        return self.tools.by_name.keys() - self.counts.keys()

    @property
    def may_trim(self) -> bool:
        is_clear = self.counts_all and not self.searches and not self.is_of_set
        return is_clear and bool(self.kept) and bool(self.unused.tools)


def of_token(token: Token) -> AgentView:
    """Raises TokenError if the token gives no access."""
    principal = principals.principal_of_row(token)
    if principal.tool_set is not None:
        listed = agent_config.listed_tools_of_set(principal, principal.tool_set)
    else:
        listed = agent_config.listed_tools(principal, agent_config.enabled_names(principal), direct=False)
    view = _view(listed, ("token", token.pk), Q(token=token))
    return replace(view, searches=principal.searches, is_of_set=principal.tool_set is not None)


def of_tool_set(row: ToolSet, principal: Principal) -> AgentView:
    """What the principal sees in a tool set, with the calls that it may see. Raises UnknownToolSetError."""
    calls, key = Q(tool_set=row.name), ("set", row.name, -1)
    if not principal.views_calls:
        calls &= Q(requested_by__isnull=False, requested_by=principal.user_id)
        key = ("set", row.name, principal.user_id or 0)
    return _view(agent_config.listed_tools_of_set(principal, row.name), key, calls, counts_all=principal.views_calls)


def trim_token(token: Token) -> int:
    """Narrow the token to the tools that it called. Return their number. Raises RequestRefusedError, TokenError."""
    view = of_token(token)
    _require_trim(view)
    principal = principals.principal_of_row(token)
    tokens.narrow_token(token, {name for name in view.counts if principal.may_invoke(*name) and _exists(*name)})
    return view.kept


def _exists(member: str, tool: str) -> bool:
    return Tool.objects.filter(member__name=member, name=tool, listed=True, member__removed_at=None).exists()


def trim_tool_set(row: ToolSet, principal: Principal) -> int:
    """Remove the listed tools from the set that were not called in it. Return the number of the others.

    Raises RequestRefusedError.
    """
    view = of_tool_set(row, principal)
    _require_trim(view)
    tool_sets.drop_tools(row, view.unused_names, principal)
    return view.kept


def _require_trim(view: AgentView) -> None:
    if not view.may_trim:
        raise RequestRefusedError("there is nothing to trim, or its calls do not say which tools nobody needs")


def _view(listed: ToolList, key: Hashable, calls: Q, *, counts_all: bool = True) -> AgentView:
    """`key` stands for `calls`, the condition of the calls that are counted."""
    days = min(MAX_DAYS, settings.GUILD_HALL_KEEP_CALLS_DAYS)
    counts = kept_counts.read(key, calls, timezone.now() - timedelta(days=days), MAX_COUNTED)
    return AgentView(listed, counts, days, counts_all)
