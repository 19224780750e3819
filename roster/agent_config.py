"""The configuration with which an agent's client reaches the hall, and the cost of the tools' definitions.

Each client has its own format: the Agent SDK `mcp_servers`, Claude Code `.mcp.json`, Cursor `mcp.json`, VS Code
`mcp.json` (`servers`), Codex `config.toml` (`http_headers`, because Codex refuses an inline `bearer_token`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.conf import settings

from mcp_runtime.control import tool_sets
from mcp_runtime.control.members import members_of_roster, visible_tools, with_text
from mcp_runtime.control.nodes import live_node_ids
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import RequestRefusedError, UnknownMemberError
from mcp_runtime.security.access import Principal
from roster.models import GuildMember, Tool

SERVER_NAME = "guild-hall"
PLACEHOLDER = "gh_PUT_A_TOKEN_HERE"
# An estimate. Tokenizers differ, and none is public for every model. JSON has about four characters a token.
CHARACTERS_PER_TOKEN = 4
MAX_COUNTS = 20_000  # lengths of definitions
ESTIMATE_FORMULA = f"characters of the definitions as JSON, divided by {CHARACTERS_PER_TOKEN}"


@dataclass(frozen=True)
class Entry:
    """One server in the configuration. `token` is None if the server needs none."""

    name: str
    url: str
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def as_json(self, *, with_type: bool = True) -> dict[str, Any]:
        kind = {"type": "http"} if with_type else {}
        return {**kind, "url": self.url, **({"headers": self.headers} if self.token else {})}


@dataclass(frozen=True)
class Format:
    """The format of one client: the file that it reads, and how it writes entries."""

    place: str
    write: Callable[[Sequence[Entry]], str]


def _json(key: str, *, with_type: bool = True) -> Callable[[Sequence[Entry]], str]:
    def write(entries: Sequence[Entry]) -> str:
        return json.dumps({key: {entry.name: entry.as_json(with_type=with_type) for entry in entries}}, indent=2)

    return write


def _toml(entries: Sequence[Entry]) -> str:
    """Write strings as JSON, because a JSON string is also a TOML string. Members' names are bare keys."""
    tables = []
    for entry in entries:
        lines = [f"[mcp_servers.{entry.name}]", f"url = {json.dumps(entry.url)}"]
        if entry.token:
            headers = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in entry.headers.items())
            lines.append(f"http_headers = {{ {headers} }}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


FORMATS = {
    "agent-sdk": Format("ClaudeAgentOptions(mcp_servers=...) in your program", _json("mcp_servers")),
    "claude-code": Format(".mcp.json in the project's folder", _json("mcpServers")),
    "cursor": Format(
        ".cursor/mcp.json in the project's folder, or ~/.cursor/mcp.json", _json("mcpServers", with_type=False)
    ),
    "vscode": Format(".vscode/mcp.json in the project's folder", _json("servers")),
    "codex": Format("~/.codex/config.toml", _toml),
}


@dataclass(frozen=True)
class Cost:
    """The cost of one member's tools, or of all tools."""

    tools: int = 0
    characters: int = 0

    @property
    def tokens(self) -> int:
        return math.ceil(self.characters / CHARACTERS_PER_TOKEN)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.tools + other.tools, self.characters + other.characters)


def select_members(principal: Principal, names: Iterable[str]) -> list[GuildMember]:
    """The members with these names. Without names, all that `principal` may call. Raises UnknownMemberError."""
    unique = list(dict.fromkeys(names))
    members = members_of_roster().select_related("port_allocation")
    rows = {row.name: row for row in members if principal.may_see(row.name)}
    for name in unique:
        if name not in rows:
            raise UnknownMemberError(f"no member {name!r} is in the roster, or you may not call it")
    return [rows[name] for name in unique] if unique else list(rows.values())


def gateway_entries(names: Sequence[str], token: str, tool_set: str = "") -> list[Entry]:
    """One entry for the whole roster, for some of its members, or for a tool set."""
    query = f"?members={','.join(quote(name) for name in names)}" if names else ""
    path = f"/sets/{quote(tool_set)}/mcp" if tool_set else f"/mcp{query}"
    return [Entry(SERVER_NAME, f"http://localhost:{settings.GUILD_HALL_GATEWAY_PORT}{path}", token)]


def require_one_choice(names: Iterable[str], tool_set: str, *, direct: bool) -> None:
    """Raise RequestRefusedError if a configuration for a tool set should also be for members."""
    if tool_set and (direct or any(names)):
        raise RequestRefusedError("a configuration is for a tool set, or for members; give one of them")


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


def costs(principal: Principal, members: Sequence[GuildMember], *, direct: bool) -> dict[str, Cost]:
    """The cost of the tools that `principal` may call, by member. Without `direct` names have the member's prefix."""
    by_member = {row.name: Cost() for row in members if row.enabled}
    tools = Tool.objects.filter(visible_tools(), member__name__in=by_member).select_related("member")
    for tool in with_text(tools):
        name = tool.member.name
        if principal.may_invoke(name, tool.name):
            by_member[name] += Cost(1, _characters(tool, direct=direct))
    return by_member


def costs_of_set(principal: Principal, tool_set: str) -> dict[str, Cost]:
    """As `costs`, for the tools at the address of a tool set, as it lists them. Raises UnknownToolSetError."""
    entries = tool_sets.entries_of(tool_sets.find_tool_set(tool_set, principal), principal)
    by_member = {entry.member: Cost() for entry in entries}
    for tool in tool_sets.preview(entries, principal):
        if not tool.fault:
            by_member[tool.member] += Cost(1, len(json.dumps(tool.definition, ensure_ascii=False)))
    return by_member


# By a digest of all that they are counted of.
_character_counts: dict[bytes, int] = {}


def _characters(tool: Tool, *, direct: bool) -> int:
    """Of the definition as clients get it."""
    key = f"{direct}\0{tool.member.name}\0{tool.name}\0{bool(tool.schema_error)}\0{tool.text}"
    digest = hashlib.sha256(key.encode()).digest()
    if (count := _character_counts.get(digest)) is not None:
        return count
    tool.definition = json.loads(tool.text)
    characters = len(json.dumps(tool.definition if direct else _gateway_definition(tool), ensure_ascii=False))
    if len(_character_counts) >= MAX_COUNTS:
        _character_counts.clear()
    _character_counts[digest] = characters
    return characters


def _gateway_definition(tool: Tool) -> dict[str, Any]:
    """Its definition as the gateway gives it."""
    name = mcp.qualified_name(tool.member.name, tool.name)
    return mcp.offered_definition(tool.definition, name, has_schema=not tool.schema_error)
