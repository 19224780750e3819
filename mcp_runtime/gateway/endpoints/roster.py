"""Serve the roster as one server. Listed names include the member. Requests go only to members the client may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_runtime.gateway import eras
from mcp_runtime.gateway.catalog import LISTS, Selection, resource_uri
from mcp_runtime.gateway.endpoints.answers import Rewriting, ask, list_result, note_subscription
from mcp_runtime.gateway.holds import Holds
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Reply, Request
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS
from mcp_runtime.security.access import Principal

MAX_URI = 2_000
MAX_OWNERS = 10  # members in an error


class RosterEndpoints:
    """Serves lists from memory. Other requests go to the member in the listed name."""

    def __init__(self, members: Members, holds: Holds, relay: Relay, rewriting: Rewriting) -> None:
        self._members = members
        self._holds = holds
        self._relay = relay
        self._rewriting = rewriting

    async def list(self, selection: Selection, request: Request) -> Reply:
        if request.params.get("cursor") is not None:
            raise MethodError(INVALID_PARAMS, "unknown cursor: the list has one page")
        kind = LISTS[request.method]
        return list_result(request, kind, self._members.roster.list_of(kind, request.client.principal, selection))

    async def get_prompt(self, selection: Selection, request: Request) -> Reply:
        target = self._prompt(request.params["name"])
        return await self._ask_owner(target, selection, request, {"name": target[1]} if target else {})

    async def ask_about_resource(self, selection: Selection, request: Request) -> Reply:
        target = self._resource(request.params["uri"], request.client.principal, selection)
        reply = await self._ask_owner(target, selection, request, {"uri": target[1]} if target else {})
        note_subscription(request, *(target or ("", "")))
        return reply

    async def _ask_owner(
        self, target: tuple[str, str] | None, selection: Selection, request: Request, own_params: Mapping[str, Any]
    ) -> Reply:
        """Send the request to the member that owns its target, with the member's own name for it."""
        is_there = target is not None and target[0] in self._members.roster.members and selection.has(target[0])
        if target is None or not is_there or not request.client.principal.may_use_all(target[0]):
            raise _not_found_error(request)
        member, requested_uri = self._members.get(target[0]), request.params.get("uri")
        request.params = {**request.params, **own_params}
        self._holds.require_usable(member.name, request)
        request.deadline.set(member.timeout, f"{request.method} of member {member.name!r}", member.name)
        reply = await ask(self._relay, member, request)
        requested_uris = {target[1]: requested_uri} if isinstance(requested_uri, str) else {}
        return await self._rewriting.with_links(reply, request, member.name, requested_uris)

    def _prompt(self, listed_name: str) -> tuple[str, str] | None:
        """Return the member and own name of a prompt, which may be held or disabled."""
        return self._members.roster.prompt(listed_name) or self._members.roster.blocked_prompt(listed_name)

    def _resource(self, uri: str, principal: Principal, selection: Selection) -> tuple[str, str] | None:
        """Return the member and own URI of a resource, which may be held or disabled.

        Raise MethodError if several members may have it.
        """
        roster = self._members.roster
        owners = roster.owners_of(uri, principal, selection) or roster.blocked_owners_of(uri, principal, selection)
        if len(owners) < 2:
            return owners[0] if owners else None
        listed_uris = [resource_uri(member, own_uri) for member, own_uri in owners[:MAX_OWNERS]]
        text = f"several members may have {uri[:200]!r}: request one of {', '.join(listed_uris)[:MAX_URI]}"
        raise MethodError(INVALID_PARAMS, text, {"uri": uri, "resources": listed_uris})

    async def complete(self, selection: Selection, request: Request) -> Reply:
        ref = request.params["ref"]
        principal = request.client.principal
        if ref["type"] == "ref/prompt":
            target, key = self._prompt(ref["name"]), "name"
        else:
            target, key = self._resource(ref["uri"], principal, selection), "uri"
        own_params = {"ref": {**ref, key: target[1]}} if target else {}
        return await self._ask_owner(target, selection, request, own_params)


def _not_found_error(request: Request) -> MethodError:
    """Return the error for an unknown prompt or resource, with the code of the client's era."""
    params = request.params
    if "uri" in params:
        code = INVALID_PARAMS if request.client.is_modern else eras.RESOURCE_NOT_FOUND
        return MethodError(code, f"no member has {params['uri'][:200]!r}", {"uri": params["uri"]})
    ref = params.get("ref", params)
    kind, name = ("resource", ref["uri"]) if "uri" in ref else ("prompt", ref["name"])
    text = f"no member has the {kind} {name[:200]!r}; see {kind}s/list"
    return MethodError(INVALID_PARAMS, text)
