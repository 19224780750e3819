"""Introduce the hall, or a member at its own path, to a client. Record the client program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_runtime.gateway import eras, tasks
from mcp_runtime.gateway.catalog import OfferedMember, Place, Selection
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Client
from mcp_runtime.gateway.programs import Program, Programs
from mcp_runtime.gateway.tool_sets import OfferedSet
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.members import search_tools
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.jsonrpc import object_of
from mcp_runtime.security.access import Principal

INSTRUCTIONS = "Tools of several servers, each named server__tool. A server that does not run is started by a call."
INSTRUCTIONS_OF_SET = "Tools of several servers. A server that does not run is started by a call."
INSTRUCTIONS_OF_SEARCH = (
    f"There are more tools than the list shows. Find them with {search_tools.FIND_TOOLS}, and call them with "
    f"{search_tools.CALL_READ} or {search_tools.CALL_WRITE}."
)


class Introductions:
    """Answers to `initialize` and `server/discover`."""

    def __init__(
        self, members: Members, upstream: Upstream, upstream_sessions: UpstreamSessions, programs: Programs
    ) -> None:
        self._members = members
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions
        self._programs = programs

    def program(self, principal: Principal, client_info: Any) -> Program:
        """Return the client program, and record it with its token. `client_info` may be any value."""
        program = Program.from_client_info(client_info)
        self._programs.note(principal.owner, program)
        return program

    def welcome(self, place: Place, principal: Principal, version: str) -> dict[str, Any]:
        """Return the result of `initialize`."""
        return {"protocolVersion": version, **self._introduction(place, principal)}

    async def discovery(self, place: Place, client: Client) -> dict[str, Any]:
        """Return the result of `server/discover`. At a member's path, ask the member itself."""
        introduction = self._introduction(place, client.principal)
        if place.member is not None:
            member = self._members.get(place.member)
            await self._members.require_own(member)
            introduction |= await self._own_introduction(member, client)
        info = introduction.pop("serverInfo")
        return {
            "resultType": "complete",
            "supportedVersions": eras.SUPPORTED,
            **introduction,
            **eras.UNCACHED,
            "_meta": {f"{mcp.META}serverInfo": info},
        }

    async def _own_introduction(self, member: OfferedMember, client: Client) -> dict[str, Any]:
        live_member = self._members.connected_member(member)
        route = None if live_member is None else self._upstream.route_to(live_member, member.max_concurrency)
        result = await self._upstream_sessions.discovery_of(member.pk, route, client)
        if not isinstance(result.get("capabilities"), dict):
            return {}
        introduction: dict[str, Any] = {
            "capabilities": tasks.offered_capabilities(_with_list_changes(result["capabilities"]))
        }
        # Held instructions are in no row. The hall does not compare those of a discovery.
        if not member.holds_changes and isinstance(result.get("instructions"), str):
            introduction["instructions"] = result["instructions"]
        info = object_of(object_of(result.get("_meta")).get(f"{mcp.META}serverInfo"))
        return introduction | ({"serverInfo": info} if info else {})

    def _introduction(self, place: Place, principal: Principal) -> dict[str, Any]:
        if place.member is None:
            introduce = self._introduction_of_set if place.selection.tool_set else self._introduction_of_roster
            introduction = introduce(place.selection)
            if place.is_searched_by(principal):
                introduction["instructions"] += f" {INSTRUCTIONS_OF_SEARCH}"
            return introduction
        member = self._members.get(place.member)
        introduction = {
            "capabilities": tasks.offered_capabilities(_with_list_changes(member.capabilities)),
            "serverInfo": {"version": "", **member.server_info, "name": member.server_info.get("name") or member.name},
        }
        return introduction | ({"instructions": member.instructions} if member.instructions else {})

    def _introduction_of_roster(self, selection: Selection) -> dict[str, Any]:
        return {
            "capabilities": self._capabilities(selection),
            "serverInfo": {"name": mcp.HALL_NAME, "version": mcp.HALL_VERSION},
            "instructions": INSTRUCTIONS,
        }

    def _introduction_of_set(self, selection: Selection) -> dict[str, Any]:
        name = selection.tool_set
        tool_set = self._members.roster.tool_sets.get(name) or OfferedSet(name)  # it may have been deleted just now
        capabilities = self._capabilities(selection)
        # A member sends log messages during calls, also if only some of its tools are in the set.
        if "logging" in self._capabilities(Selection(tool_set.members)):
            capabilities["logging"] = {}
        return {
            "capabilities": capabilities,
            "serverInfo": {
                "name": mcp.HALL_NAME,
                "version": mcp.HALL_VERSION,
                **({"title": tool_set.title} if tool_set.title else {}),
            },
            "instructions": tool_set.description or INSTRUCTIONS_OF_SET,
        }

    def _capabilities(self, selection: Selection) -> dict[str, Any]:
        """Return the union of the members' capabilities. It always has tools, because members may be added later."""
        all_capabilities = [
            member.capabilities for member in self._members.roster.members.values() if selection.has(member.name)
        ]
        union: dict[str, Any] = {"tools": {"listChanged": True}}
        if any("resources" in capabilities for capabilities in all_capabilities):
            has_subscriptions = any(
                object_of(capabilities.get("resources")).get("subscribe") for capabilities in all_capabilities
            )
            union["resources"] = {"listChanged": True} | ({"subscribe": True} if has_subscriptions else {})
        if any("prompts" in capabilities for capabilities in all_capabilities):
            union["prompts"] = {"listChanged": True}
        for name in ("completions", "logging"):
            if any(name in capabilities for capabilities in all_capabilities):
                union[name] = {}
        return union


def _with_list_changes(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return a member's capabilities at its own path, with `listChanged` for tools.

    The gateway sends that notification even if the member does not. Empty capabilities belong to a member that never
    ran.
    """
    if capabilities and "tools" not in capabilities:
        return dict(capabilities)
    return {**capabilities, "tools": {**object_of(capabilities.get("tools")), "listChanged": True}}
