"""Serve requests at a member's own path. They go to that member, and its names stay unchanged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from msgspec import Raw

from mcp_runtime.client import quick_json
from mcp_runtime.contracts.canonical import version_of
from mcp_runtime.gateway import envelope, tasks
from mcp_runtime.gateway.catalog import KEYS, LISTS, Extras, OfferedMember
from mcp_runtime.gateway.endpoints.answers import Rewriting, ask, join_entries, list_result, note_subscription, result
from mcp_runtime.gateway.holds import Holds
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Reply, Request
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.members.extras import CONTRACTS
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ClientError, MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS
from mcp_runtime.security.access import Principal

LIST_TIMEOUT = 5.0  # to request a list from a member. After that, use the one in memory


class MemberEndpoints:
    """Serves the methods that have no handler for all paths (routing.py)."""

    def __init__(self, members: Members, holds: Holds, upstream: Upstream, relay: Relay, rewriting: Rewriting) -> None:
        self._members = members
        self._holds = holds
        self._upstream = upstream
        self._relay = relay
        self._rewriting = rewriting

    async def answer(self, name: str, request: Request) -> Reply:
        member = self._members.get(name)
        if not request.client.principal.may_see(name):
            raise MethodError(INVALID_PARAMS, f"{request.client.principal.name} may not use member {name!r}")
        request.deadline.set(member.timeout, f"{request.method} of member {name!r}", name)
        await self._members.require_own(member)
        is_allowed = request.method == "tools/list" or request.task is not None  # a task belongs to this token
        if not is_allowed and not request.client.principal.may_use_all(name):
            if request.method in LISTS:
                return result(request, {LISTS[request.method]: []})
            raise MethodError(INVALID_PARAMS, f"this token may use only single tools of member {name!r}")
        if request.method in LISTS:
            return await self._list_of_member(member, request)
        self._holds.require_usable(name, request)
        reply = await ask(self._relay, member, request)
        note_subscription(request, name, request.params.get("uri", ""))
        if request.task is None:
            return reply
        return await self._rewriting.rewrite(
            reply, request, partial(tasks.seal_task_id, request.task), is_throughout=True
        )

    async def _list_of_member(self, member: OfferedMember, request: Request) -> Reply:
        """Return the member's own list, limited to this client. If the member fails, return the list in memory."""
        if self._members.connected_member(member) is not None:
            with contextlib.suppress(TimeoutError, ClientError):
                async with asyncio.timeout(LIST_TIMEOUT):
                    reply = await self._relay.ask(member, request)
                    narrow = self._narrowing(member, request)
                    return reply if narrow is None else await self._rewriting.rewrite(reply, request, narrow)
        if "cursor" in request.params:
            raise MethodError(INVALID_PARAMS, "unknown cursor: the list has one page")
        kind = LISTS[request.method]
        if kind != "tools":
            extras = self._members.roster.extras.get(member.name, Extras())
            return list_result(request, kind, join_entries(entry.own_json for entry in extras.entries(kind)))
        may = request.client.principal.may_invoke
        tools = [tool for tool in member.tools.values() if may(member.name, tool.name)]
        size, encoded = sum(len(tool.listed_json) for tool in tools), (tool.own_json for tool in tools)
        entries = await self._upstream.run_in_thread(
            request.client.principal.owner, partial(join_entries, encoded), size
        )
        return list_result(request, kind, entries)

    def _narrowing(self, member: OfferedMember, request: Request) -> Callable[[bytes], bytes] | None:
        """Return what leaves parts out of the list of a member. None if nothing can be left out."""
        kind = LISTS[request.method]
        if kind == "tools":
            return partial(_narrow_tools, member, request.client.principal)
        extras = self._members.roster.extras.get(member.name, Extras())
        needs_agreement = kind in CONTRACTS and member.holds_changes
        if not (needs_agreement or extras.listed.hidden(kind)):
            return None
        return partial(_narrow_extras, extras, kind, needs_agreement)


def _narrow_tools(member: OfferedMember, principal: Principal, body: bytes) -> bytes:
    """Return a member's tools/list without disabled tools and tools that this client may not call.

    If the hall holds changes of the member, tools that are not as the hall listed them are left out too. The others are
    in the bytes of the hall, because clients may read duplicate keys differently.
    """
    answer = envelope.read(body)
    result = envelope.fields(answer.result)
    tools = envelope.items(result.get("tools"))
    names = [envelope.text(envelope.fields(tool).get("name")) for tool in tools]
    visible_tools = [
        Raw(member.tools[name].own_json) if member.holds_changes else tool
        for name, tool in zip(names, tools, strict=True)
        if name not in member.hidden and principal.may_invoke(member.name, name) and _is_known(member, name, tool)
    ]
    if len(visible_tools) == len(tools) and not member.holds_changes:
        return body
    return envelope.encode(jsonrpc.result_response(answer.id, {**result, "tools": visible_tools}))


def _narrow_extras(extras: Extras, kind: str, needs_agreement: bool, body: bytes) -> bytes:
    """Return a member's prompts, resources or resource templates without those that are held or disabled.

    If the hall holds changes of the list, only those stay that are as the hall listed them, in its bytes.
    """
    answer = envelope.read(body)
    result = envelope.fields(answer.result)
    if not isinstance(result.get(kind), Raw):
        return body
    known = {entry.key: entry.own_json for entry in extras.entries(kind)}
    hidden = extras.listed.hidden(kind)
    visible_entries = []
    for part in envelope.items(result[kind]):
        key = envelope.text(envelope.fields(part).get(KEYS[kind]))
        if not needs_agreement:
            visible_entries += [] if key in hidden else [part]
        elif key in known and _is_same(known[key], part):
            visible_entries.append(Raw(known[key]))
    return envelope.encode(jsonrpc.result_response(answer.id, {**result, kind: visible_entries}))


def _is_same(known: bytes, part: Raw) -> bool:
    return version_of(quick_json.decode(known)) == version_of(quick_json.decode(bytes(part)))


def _is_known(member: OfferedMember, name: str, tool: Raw) -> bool:
    if not member.holds_changes:
        return True
    known_tool = member.tools.get(name)
    return known_tool is not None and known_tool.version in ("", version_of(quick_json.decode(bytes(tool))))
