"""Serve tools/call at every path: check permissions, send the call to its member, and log how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from mcp_runtime.gateway import failures, tasks
from mcp_runtime.gateway.call_log import FinishedCall, Recorder
from mcp_runtime.gateway.catalog import OfferedMember, OfferedTool, Place
from mcp_runtime.gateway.endpoints.answers import Rewriting
from mcp_runtime.gateway.endpoints.params import PLAIN
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Answer, Client, Event, Reply, Request, Stream
from mcp_runtime.gateway.peers import ElsewhereError
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.members.search_tools import FIND_TOOLS
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import ClientError, MethodError, ToolHeldError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, object_of
from mcp_runtime.security.limits import Owner


class ToolCalls:
    """Serves `tools/call`. Each call goes into the call log, however it ends."""

    def __init__(self, members: Members, relay: Relay, recorder: Recorder, rewriting: Rewriting) -> None:
        self._members = members
        self._relay = relay
        self._recorder = recorder
        self._rewriting = rewriting

    async def answer(self, place: Place, request: Request) -> Reply:
        name: str = request.params["name"]
        if place.member is None:
            member, tool = await self.find(place, name, request.client)
            return await self.call(place, request, member, tool)
        return await self.call(place, request, *await self._at_member(place, place.member, name, request.client))

    async def call(self, place: Place, request: Request, member: OfferedMember, tool: OfferedTool | None) -> Reply:
        """Send the call to its member. The params of the request have the listed name."""
        if tool is not None:
            request.places = tool.parameter_headers
        # Write the name again, so that the member reads the validated one, however it treats duplicate keys.
        request.params = {**request.params, "name": tool.name if tool else request.params["name"]}
        if place.member is None:
            request.params = _without_task(request.params)
        call = self._begin(place, request, member, tool)
        try:
            reply = await self._relay.ask(member, request)
        except ClientError as error:
            reason = failures.of_member(error, member.name, request)
            if request.is_sent:
                call.record_error(error)
            else:
                call.record_refusal(reason)
            raise reason from error
        except MethodError as error:
            call.record_refusal(error)
            raise
        except ElsewhereError as error:
            error.end_call = call.record_failure
            raise
        except asyncio.CancelledError:
            _record_end_of_wait(call, request, member.name)
            raise
        if isinstance(reply, Answer):
            call.record_response(reply.body)
        else:
            reply = self._record_stream(reply, call, request, member.name)
        if place.member is None:
            return await self._rewriting.with_links(reply, request, member.name, {})
        owner, params = call.principal.owner, request.params
        if not tasks.may_create_task(params, request.client.capabilities):
            return reply
        return await self._rewriting.rewrite(reply, request, partial(_with_task, owner, member.pk, "task" in params))

    def _begin(self, place: Place, request: Request, member: OfferedMember, tool: OfferedTool | None) -> FinishedCall:
        """Set the deadline of the call, and return its record."""
        name = request.params["name"]
        request.deadline.set(member.timeout_of(name), f"tool {name[:100]!r} of member {member.name!r}", member.name)
        return FinishedCall(
            recorder=self._recorder,
            member_id=member.pk,
            member=member.name,
            tool=name,
            arguments=request.params.get("arguments"),
            schema=tool.secretive_schema if tool else None,
            principal=request.client.principal,
            timeout=request.deadline.seconds,
            version=tool.version if tool else "",
            size=request.size,
            program=request.client.program,
            tool_set=place.selection.tool_set,
        )

    async def find(self, place: Place, name: str, client: Client) -> tuple[OfferedMember, OfferedTool]:
        """Return the member and the tool at the roster or in a tool set. Raise MethodError if it may not be called."""
        tool = self._selected_tool(place, name, client)
        if tool is None:
            await self._members.reload_for_unknown_name()  # its member may have connected just now
            tool = self._selected_tool(place, name, client)
        if tool is None:
            self._require_not_held(place, name, client)
            raise _unknown_tool(place, name, client)
        return self._members.roster.members[tool.member], tool

    def _selected_tool(self, place: Place, name: str, client: Client) -> OfferedTool | None:
        """Return the tool with this name at the roster or in a tool set. Raise MethodError if it may not be called."""
        tool = place.selection.tool(self._members.roster, name)
        if tool is None:
            return None
        if not client.principal.may_invoke(tool.member, tool.name):
            if place.selection.tool_set:  # the name in the set does not show the member, which may be reserved
                raise _unknown_tool(place, name, client)
            raise failures.forbidden(client.principal.name, tool.member, tool.name)
        if tool.needs_task:
            text = f"tool {tool.name[:100]!r} of member {tool.member!r} {mcp.NEEDS_TASK}"
            raise MethodError(INVALID_PARAMS, text)
        return tool

    async def _at_member(
        self, place: Place, member_name: str, name: str, client: Client
    ) -> tuple[OfferedMember, OfferedTool | None]:
        """Return the member and the tool at a member's own path, where it may accept a tool that the catalog lacks.

        Raise MethodError if the call is not allowed.
        """
        member = self._members.get(member_name)
        tool = member.tools.get(name)
        if tool is None and member.holds_changes:
            await self._members.reload_for_unknown_name()  # the hall may have listed it just now
            member = self._members.get(member_name)
            tool = member.tools.get(name)
        if name in member.hidden or (tool is None and member.holds_changes):
            self._require_not_held(place, name, client)
            raise _unknown_tool(place, name, client)
        if not client.principal.may_invoke(member_name, name):
            raise failures.forbidden(client.principal.name, member_name, name)
        return member, tool

    def _require_not_held(self, place: Place, name: str, client: Client) -> None:
        """Raise MethodError with the reason if the tool is held. Only clients that could call it learn of it."""
        roster = self._members.roster
        if place.member is not None:
            member, own_name = place.member, name
        else:
            member, own_name = roster.held.get(name, ("", ""))
        reason = roster.members[member].held.get(own_name) if member in roster.members else None
        may_know = place.selection.has(member) and client.principal.may_invoke(member, own_name)
        if reason is not None and may_know:
            raise failures.held(member, str(ToolHeldError(member, own_name, reason)))

    def _record_stream(self, stream: Stream, call: FinishedCall, request: Request, member: str) -> Stream:
        async def events() -> AsyncGenerator[Event]:
            try:
                async for event in stream.events:
                    if event.is_last:
                        call.record_response(event.data)
                    yield event
            except ClientError as error:
                reason = failures.of_member(error, member, request)
                call.record_error(error)
                raise reason from error

        def free() -> None:
            call.record_abandonment(timed_out=_has_timed_out(request))

        return Stream(events(), free, inner=stream, again=events)


def _record_end_of_wait(call: FinishedCall, request: Request, member: str) -> None:
    """Nobody waits for the call any more, because its deadline passed, or its client cancelled it or left."""
    timed_out = _has_timed_out(request)
    if timed_out and not request.is_sent:
        call.record_refusal(failures.unavailable(member, request.unsent_reason))
    else:
        call.record_abandonment(timed_out=timed_out)


def _has_timed_out(request: Request) -> bool:
    return request.deadline.timeout.expired() and not request.deadline.is_cancelled


def _unknown_tool(place: Place, name: str, client: Client) -> MethodError:
    text = f"unknown tool {name[:100]!r}: there is none, or it is disabled, or its member is disabled"
    hint = f"find tools with {FIND_TOOLS}" if place.is_searched_by(client.principal) else "see tools/list"
    return MethodError(INVALID_PARAMS, f"{text}; {hint}")


def _without_task(params: dict[str, Any]) -> dict[str, Any]:
    """Return params of a call that does not create a task (25-11: basic/utilities/tasks).

    At the roster the client could not request the result of a task.
    """
    if params.keys() <= PLAIN:
        return params
    params = {key: value for key, value in params.items() if key != "task"}
    meta, key = object_of(params.get("_meta")), f"{mcp.META}clientCapabilities"
    if key in meta:
        params["_meta"] = {**meta, key: tasks.without_extension(object_of(meta[key]))}
    return params


def _with_task(owner: Owner, member_id: int, is_requested: bool, body: bytes) -> bytes:
    return tasks.seal_created_task(owner, member_id, body, is_requested=is_requested)
