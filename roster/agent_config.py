"""The servers of the configuration with which an agent's client reaches the hall, and the cost of their tools."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import quote

from mcp_runtime.control import tool_sets
from mcp_runtime.control.members import members_of_roster, tools_version, visible_tools, with_text
from mcp_runtime.control.nodes import live_node_ids
from mcp_runtime.members import search_tools
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError
from mcp_runtime.security.access import Principal
from roster import addresses
from roster.call_counts import Name
from roster.client_formats import SERVER_NAME, Entry
from roster.models import GuildMember, Tool

# An estimate. Tokenizers differ, and none is public for every model. JSON has about four characters a token.
CHARACTERS_PER_TOKEN = 4
SEARCH_TOOLS = "the tools that search"  # in the place of a member
MAX_COUNTS = 20_000  # lengths of definitions
USED_COLUMNS = ("name", "enabled", "status", "server_url", "node", "port_allocation__port")  # of each member
MAX_LISTS = 8  # of listed tools. Each may have thousands
NO_VERSION = '""'  # the version of a tool that is not known, in `tools_version`
MAX_IDS = 500  # in one query. For more, all rows are read
ESTIMATE_FORMULA = f"characters of the definitions as JSON, divided by {CHARACTERS_PER_TOKEN}"


@dataclass(frozen=True)
class Cost:
    """The cost of one member's tools, or of all tools."""

    tools: int = 0
    characters: int = 0

    @staticmethod
    def of(tools: Iterable[ListedTool]) -> Cost:
        lengths = [tool.characters for tool in tools]
        return Cost(len(lengths), sum(lengths))

    @property
    def tokens(self) -> int:
        return math.ceil(self.characters / CHARACTERS_PER_TOKEN)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.tools + other.tools, self.characters + other.characters)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.tools - other.tools, self.characters - other.characters)


@dataclass(frozen=True)
class ListedTool:
    """A tool in the list of a client, with its name there."""

    member: str
    tool: str
    name: str
    characters: int  # of its definition

    @property
    def key(self) -> Name:
        return self.member, self.tool

    @property
    def cost(self) -> Cost:
        return Cost(1, self.characters)


@dataclass(frozen=True)
class ToolList:
    """The tools that a client lists. What is computed from them is kept with them, because there may be thousands."""

    tools: tuple[ListedTool, ...]

    @cached_property
    def by_name(self) -> dict[Name, ListedTool]:
        return {tool.key: tool for tool in self.tools}

    @cached_property
    def by_cost(self) -> list[ListedTool]:
        """Those that cost most first."""
        return sorted(self.tools, key=lambda tool: (-tool.characters, tool.name))

    @cached_property
    def total(self) -> Cost:
        return Cost.of(self.tools)

    @cached_property
    def by_member(self) -> dict[str, Cost]:
        tools: dict[str, list[ListedTool]] = {}
        for tool in self.tools:
            tools.setdefault(tool.member, []).append(tool)
        return {member: Cost.of(each) for member, each in tools.items()}


def select_members(principal: Principal, names: Iterable[str]) -> list[GuildMember]:
    """The members with these names. Without names, all that `principal` may call. Raises UnknownMemberError."""
    unique = list(dict.fromkeys(names))
    members = members_of_roster().select_related("port_allocation").only(*USED_COLUMNS)
    rows = {row.name: row for row in members if principal.may_see(row.name)}
    for name in unique:
        if name not in rows:
            raise UnknownMemberError(f"no member {name!r} is in the roster, or you may not call it")
    return [rows[name] for name in unique] if unique else list(rows.values())


def enabled_names(principal: Principal) -> list[str]:
    """The names of all enabled members that `principal` may call."""
    names = members_of_roster().filter(enabled=True).values_list("name", flat=True)
    return [name for name in names if principal.may_see(name)]


def gateway_entries(names: Sequence[str], token: str, tool_set: str = "") -> list[Entry]:
    """One entry for the whole roster, for some of its members, or for a tool set."""
    query = f"?members={','.join(quote(name) for name in names)}" if names else ""
    url = addresses.address_of_tool_set(tool_set) if tool_set else f"{addresses.gateway_address()}/mcp{query}"
    return [Entry(SERVER_NAME, url, token)]


def require_one_choice(names: Iterable[str], tool_set: str, *, direct: bool, search_mode: bool = False) -> None:
    """Raise RequestRefusedError for choices that exclude each other."""
    if tool_set and (direct or any(names)):
        raise RequestRefusedError("a configuration is for a tool set, or for members; give one of them")
    if direct and search_mode:
        raise RequestRefusedError("only the gateway has the search mode; a direct endpoint lists its own tools")


def direct_entries(members: Iterable[GuildMember], *, require_all: bool) -> list[Entry]:
    """Each member's own endpoint, without a token.

    If a member does not run, raises RequestRefusedError (`require_all`), or omits the member.
    """
    live_ids = live_node_ids()
    entries = []
    for row in members:
        endpoint = row.endpoint if row.node_id in live_ids else None
        if endpoint is not None:
            entries.append(Entry(row.name, endpoint))
        elif require_all:
            raise RequestRefusedError(f"member {row.name!r} does not run, so it has no endpoint; start it first")
    return entries


_kept_lists: dict[tuple[Principal, tuple[str, ...], bool, bytes], ToolList] = {}


def listed_tools(principal: Principal, members: Iterable[str], *, direct: bool) -> ToolList:
    """The tools of enabled members that clients of `principal` list. Without `direct` names have a prefix.

    In search mode these are the pinned ones. The lists are kept until a tool changes, because there may be thousands.
    """
    names = tuple(members)
    version = tools_version()
    key = (principal, names, direct, hashlib.sha256(version.encode()).digest())
    if (kept := _kept_lists.get(key)) is not None:
        return kept
    tools = _read_listed_tools(principal, names, direct=direct)
    if NO_VERSION in version:  # the definition of such a tool may change, and nothing here would tell
        return tools
    if len(_kept_lists) >= MAX_LISTS:
        _kept_lists.clear()
    _kept_lists[key] = tools
    return tools


def _read_listed_tools(principal: Principal, names: Sequence[str], *, direct: bool) -> ToolList:
    tools = Tool.objects.filter(visible_tools(), member__name__in=names).order_by("member__name", "position")
    # Values and no rows, because there may be thousands.
    columns = ("pk", "member__name", "name", "schema_error", "version")
    listed = {
        pk: _Definition(member, tool, not schema_error, direct, version)
        for pk, member, tool, schema_error, version in tools.values_list(*columns)
        if principal.may_invoke(member, tool) and (direct or _is_listed(principal, member, tool))
    }
    rows = zip(listed.values(), _characters(listed), strict=True)
    return ToolList(tuple(ListedTool(row.member, row.tool, row.name, characters) for row, characters in rows))


def listed_tools_of_set(principal: Principal, tool_set: str) -> ToolList:
    """As `listed_tools`, at the address of a tool set. Raises UnknownToolSetError."""
    entries = tool_sets.entries_of(tool_sets.find_tool_set(tool_set, principal), principal)
    tools = (
        ListedTool(tool.member, tool.tool, tool.name, len(json.dumps(tool.definition, ensure_ascii=False)))
        for tool in tool_sets.preview(entries, principal)
        if not tool.fault and _is_listed(principal, tool.member, tool.tool)
    )
    return ToolList(tuple(tools))


def _is_listed(principal: Principal, member: str, tool: str) -> bool:
    return not principal.searches or (member, tool) in principal.pinned


def costs(principal: Principal, members: Sequence[GuildMember], *, direct: bool) -> dict[str, Cost]:
    """The cost of the tools that clients of `principal` list, by member. Without `direct` names have a prefix."""
    names = [row.name for row in members if row.enabled]
    by_member = _by_member(names, listed_tools(principal, names, direct=direct))
    if not principal.searches or direct:
        return by_member
    tools = Tool.objects.filter(visible_tools(), member__name__in=names).order_by("member__name", "position")
    servers = [
        member for member, tool in tools.values_list("member__name", "name") if principal.may_invoke(member, tool)
    ]
    return _search_tools(dict.fromkeys(servers)) | by_member


def costs_of_set(principal: Principal, tool_set: str) -> dict[str, Cost]:
    """As `costs`, for the tools at the address of a tool set, as it lists them. Raises UnknownToolSetError."""
    entries = tool_sets.entries_of(tool_sets.find_tool_set(tool_set, principal), principal)
    by_member = _by_member((entry.member for entry in entries), listed_tools_of_set(principal, tool_set))
    return _search_tools(()) | by_member if principal.searches else by_member


def _by_member(members: Iterable[str], tools: ToolList) -> dict[str, Cost]:
    return dict.fromkeys(members, Cost()) | tools.by_member


def _search_tools(servers: Collection[str]) -> dict[str, Cost]:
    """The cost of the tools that find and call all others."""
    definitions = [definition.decode() for definition in search_tools.definitions(servers)]
    return {SEARCH_TOOLS: Cost(len(definitions), sum(map(len, definitions)))}


class _Definition(NamedTuple):  # which is made and compared faster than a dataclass, and there are thousands
    """What decides how long the definition of a tool is for clients."""

    member: str
    tool: str
    has_schema: bool
    direct: bool
    version: str  # empty if it is not known

    @property
    def name(self) -> str:
        return self.tool if self.direct else mcp.qualified_name(self.member, self.tool)


_character_counts: dict[_Definition, int] = {}


def _characters(definitions: Mapping[int, _Definition]) -> list[int]:
    """The lengths of these definitions, by the ids of the tools, as clients get them. Reads only those not counted."""
    counts = {pk: _character_counts.get(row) for pk, row in definitions.items()}
    if missing := [pk for pk, count in counts.items() if count is None]:
        rows = Tool.objects.all() if len(missing) > MAX_IDS else Tool.objects.filter(pk__in=missing)
        texts = dict(with_text(rows).order_by().values_list("pk", "definition_text"))  # type: ignore[misc]
        if len(_character_counts) + len(missing) > MAX_COUNTS:
            _character_counts.clear()
        for pk in missing:
            if pk in texts:  # the tool may have left the hall meanwhile
                counts[pk] = count = _length(definitions[pk], texts[pk])
                if definitions[pk].version:
                    _character_counts[definitions[pk]] = count
    return [count or 0 for count in counts.values()]


def _length(row: _Definition, text: str) -> int:
    """`text` is the definition of the member, as JSON."""
    definition = json.loads(text)
    if not row.direct:
        definition = mcp.offered_definition(definition, row.name, has_schema=row.has_schema)
    return len(json.dumps(definition, ensure_ascii=False))
