"""What is answered: by the roster as one server, or by one member whose names stay as they are.

Lists come from memory, calls go to members. Nobody is shown, or may call, what their permissions do not cover.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mcp_runtime import jsonrpc, limits, protocol
from mcp_runtime.access import Principal
from mcp_runtime.errors import ClientError, ConnectError, MethodError, ProtocolError, RemoteError
from mcp_runtime.gateway import envelope, eras, held, links, tasks
from mcp_runtime.gateway.conversations import Conversations
from mcp_runtime.gateway.messages import Answer, Event, Reply, Request, Stream, unavailable
from mcp_runtime.gateway.offers import Extras, OfferedMember, OfferedTool, Roster, Scope, resource_uri
from mcp_runtime.gateway.records import Call, Recorder
from mcp_runtime.gateway.relay import Relay
from mcp_runtime.gateway.sessions import Caller, CallerSession
from mcp_runtime.gateway.wire import Route, Wire, object_of
from mcp_runtime.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_runtime.lifecycle import LiveMember
from mcp_runtime.limits import Owner

logger = logging.getLogger("guildhall.gateway")

LIST_TIMEOUT = 5.0  # of a member's own list; then the one in memory serves
MAX_REFUSALS = 3  # nobody listened, so nothing was sent: the call is for the member's next process
INSTRUCTIONS = "Tools of several servers, each named server__tool. A server that does not run is started by a call."
MAX_URI = 2_000
MAX_OWNERS = 10  # members that an error names
USUAL_PARAMS = {"name", "arguments", "_meta"}
SUBSCRIBING = ("resources/subscribe", "resources/unsubscribe")
# What each request is about: the parameter that must be there, a string.
NAMED_BY = {
    **dict.fromkeys(("tools/call", "prompts/get"), "name"),
    **dict.fromkeys(("resources/read", *SUBSCRIBING), "uri"),
}
# Keys that are judged here, in any way that members may read them.
JUDGED = {method: {protocol.folded(key): key for key in held.KEYS} for method in held.METHODS}
JUDGED["tools/call"] |= {"name": "name", "arguments": "arguments"}
WITH_ARGUMENTS = ("tools/call", "prompts/get")
REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


@dataclass(frozen=True)
class Place:
    """Where a message came in: `member` for a member's own path; `path` as sessions are bound to it."""

    path: str
    scope: Scope
    member: str | None = None


class Endpoints:
    """Answers requests. `roster()` is the roster now; `live(member, request)` waits until a member may be called.

    `connected(member)` asks the OS whether its process is there; `seems_connected(id)` costs nothing.
    """

    def __init__(
        self,
        wire: Wire,
        conversations: Conversations,
        relay: Relay,
        recorder: Recorder,
        roster: Callable[[], Roster],
        live: Callable[[OfferedMember, Request], Awaitable[LiveMember]],
        connected: Callable[[OfferedMember], LiveMember | None],
        seems_connected: Callable[[int], LiveMember | None],
        look_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._wire = wire
        self._conversations = conversations
        self._relay = relay
        self._recorder = recorder
        self._roster = roster
        self._live = live
        self._connected = connected
        self._seems_connected = seems_connected
        self.look_again = look_again

    # Who we are ---------------------------------------------------------------------------------------------------

    def welcome(self, place: Place, version: str) -> dict[str, Any]:
        """The result of `initialize`."""
        return {"protocolVersion": version, **self._introduction(place)}

    async def discovery(self, place: Place, caller: Caller) -> dict[str, Any]:
        """The result of `server/discover`; at a member's own path what the member says there, not in its handshake."""
        told = self._introduction(place)
        if place.member is not None:
            told |= await self._own_introduction(self.member(place.member), caller)
        info = told.pop("serverInfo")
        return {
            "resultType": "complete",
            "supportedVersions": eras.SUPPORTED,
            **told,
            **eras.UNCACHED,
            "_meta": {f"{protocol.META}serverInfo": info},
        }

    async def _own_introduction(self, member: OfferedMember, caller: Caller) -> dict[str, Any]:
        live = self._connected(member)
        route = None if live is None else self._wire.route_to(live, member.max_concurrency)
        result = await self._conversations.discovered(member.pk, route, caller)
        if not isinstance(result.get("capabilities"), dict):
            return {}
        told: dict[str, Any] = {"capabilities": tasks.offered(_with_list_changes(result["capabilities"]))}
        if isinstance(result.get("instructions"), str):
            told["instructions"] = result["instructions"]
        info = object_of(object_of(result.get("_meta")).get(f"{protocol.META}serverInfo"))
        return told | ({"serverInfo": info} if info else {})

    def _introduction(self, place: Place) -> dict[str, Any]:
        if place.member is None:
            return {
                "capabilities": self._capabilities(place.scope),
                "serverInfo": {"name": protocol.HALL_NAME, "version": protocol.HALL_VERSION},
                "instructions": INSTRUCTIONS,
            }
        member = self.member(place.member)
        told = {
            "capabilities": tasks.offered(_with_list_changes(member.capabilities)),
            "serverInfo": {"version": "", **member.server_info, "name": member.server_info.get("name") or member.name},
        }
        return told | ({"instructions": member.instructions} if member.instructions else {})

    def _capabilities(self, scope: Scope) -> dict[str, Any]:
        """Those of all its members together; tools are there for whoever comes later."""
        told = [one.capabilities for one in self._roster().members.values() if scope.has(one.name)]
        union: dict[str, Any] = {"tools": {"listChanged": True}}
        if any("resources" in one for one in told):
            has_subscriptions = any(object_of(one.get("resources")).get("subscribe") for one in told)
            union["resources"] = {"listChanged": True} | ({"subscribe": True} if has_subscriptions else {})
        if any("prompts" in one for one in told):
            union["prompts"] = {"listChanged": True}
        for name in ("completions", "logging"):
            if any(name in one for one in told):
                union[name] = {}
        return union

    def member(self, name: str) -> OfferedMember:
        """Raises MethodError for one that is not on the roster."""
        member = self._roster().members.get(name)
        if member is None:
            raise MethodError(
                INTERNAL_ERROR, f"no member {name!r} is on the roster, or it is disabled", {"member": name}
            )
        return member

    # Requests -----------------------------------------------------------------------------------------------------

    async def answer(self, place: Place, request: Request) -> Reply:
        """The reply to one request. Raises MethodError, which says what the caller is to be told."""
        method, caller = request.method, request.caller
        if caller.is_modern and method in eras.REMOVED:
            raise MethodError(METHOD_NOT_FOUND, f"{method} does not exist in {protocol.MODERN_VERSION}")
        _require_params(request)
        _require_spelling(request)
        if place.member is None:
            request.params = tasks.unrelated(request.params)  # a method that is not MCP's is none here
        else:
            self._name_task(self.member(place.member), request)
        if method in EVERYWHERE and (caller.is_modern or method not in eras.ADDED):
            return await EVERYWHERE[method](self, place, request)
        if place.member is not None:
            return await self._ask_member(place.member, request)
        if method not in OF_ROSTER:
            raise MethodError(METHOD_NOT_FOUND, f"{method[:100]!r} is no method of the roster")
        return await OF_ROSTER[method](self, place.scope, request)

    async def _pong(self, _: Place, request: Request) -> Reply:
        return _result(request, {})

    async def _refuse_another_beginning(self, _: Place, __: Request) -> Reply:
        raise MethodError(INVALID_REQUEST, "this session has been initialized; a new one begins without its id")

    async def _discover(self, place: Place, request: Request) -> Reply:
        return _result(request, await self.discovery(place, request.caller))

    async def _set_level(self, _: Place, request: Request) -> Reply:
        level, session = request.params.get("level"), request.caller.session
        if level not in eras.LOG_LEVELS or session is None:
            raise MethodError(INVALID_PARAMS, f"level must be one of {', '.join(eras.LOG_LEVELS)}")
        session.log_level = str(level)
        await self._conversations.set_level(session, session.log_level)
        return _result(request, {})

    # Tools --------------------------------------------------------------------------------------------------------

    async def _call_tool(self, place: Place, request: Request) -> Reply:
        name: str = request.params["name"]
        if place.member is None and name not in self._roster().tools:
            await self.look_again()  # a member that was connected in this moment
        member, tool = self._tool(place, name, request.caller)
        if tool is not None:
            request.places = tool.parameter_headers
        own_name = tool.name if tool else name
        # Written anew: what was judged here is what the member reads, however it takes keys that come twice.
        request.params = {**request.params, "name": own_name}
        if place.member is None:
            request.params = _without_task(request.params)
        request.deadline.set(
            member.timeout_of(own_name), f"tool {own_name[:100]!r} of member {member.name!r}", member.name
        )
        call = Call(
            recorder=self._recorder,
            member_id=member.pk,
            member=member.name,
            tool=own_name,
            arguments=request.params.get("arguments"),
            schema=tool.secretive_schema if tool else None,
            principal=request.caller.principal,
            timeout=request.deadline.seconds,
            size=request.size,
            client=request.caller.client,
        )
        try:
            reply = await self._ask(member, request)
        except ClientError as error:
            told = _told(error, member.name, request)
            if request.is_sent:
                call.failed(error)
            else:
                call.refused(told)
            raise told from error
        except MethodError as error:
            call.refused(error)
            raise
        except asyncio.CancelledError:
            timed_out = request.deadline.timeout.expired() and not request.deadline.is_cancelled
            if timed_out and not request.is_sent:
                call.refused(unavailable(member.name, request.not_sent))
            else:
                call.abandoned(timed_out=timed_out)
            raise
        if isinstance(reply, Answer):
            call.answered(reply.body)
        else:
            reply = self._recorded(reply, call, request, member.name)
        if place.member is None:
            return await self._with_links(reply, request, member.name, {})
        owner, params = call.principal.owner, request.params
        if not tasks.may_be_made(params, request.caller.capabilities):
            return reply
        return await self._rewritten(reply, request, partial(_with_task, owner, member.pk, "task" in params))

    def _tool(self, place: Place, name: str, caller: Caller) -> tuple[OfferedMember, OfferedTool | None]:
        """Member and tool; a member may take a name on its own path that the roster does not know (yet)."""
        if place.member is not None:
            member = self.member(place.member)
            tool = member.tools.get(name)
            is_there, own_name = name not in member.hidden, name
        else:
            tool = self._roster().tools.get(name)
            is_there = tool is not None and place.scope.has(tool.member)
            member = self.member(tool.member) if tool is not None and is_there else None  # type: ignore[assignment]
            own_name = tool.name if tool else name
        if not is_there:
            text = f"unknown tool {name[:100]!r}: there is none, or it is switched off, or its member is disabled"
            raise MethodError(INVALID_PARAMS, f"{text}; tools/list says what there is")
        if not caller.principal.may_invoke(member.name, own_name):
            text = f"{caller.principal.name} may not call tool {own_name[:100]!r} of member {member.name!r}"
            raise MethodError(INVALID_PARAMS, text, {"member": member.name, "kind": "forbidden"})
        if place.member is None and tool is not None and tool.needs_task:
            text = f"tool {own_name[:100]!r} of member {member.name!r} {protocol.NEEDS_TASK}"
            raise MethodError(INVALID_PARAMS, text)
        return member, tool

    def _recorded(self, stream: Stream, call: Call, request: Request, member: str) -> Stream:
        async def events() -> AsyncGenerator[Event]:
            try:
                async for event in stream.events:
                    if event.is_last:
                        call.answered(event.data)
                    yield event
            except ClientError as error:
                call.failed(error)
                raise _told(error, member, request) from error

        def free() -> None:
            call.abandoned(timed_out=request.deadline.timeout.expired() and not request.deadline.is_cancelled)

        return Stream(events(), free, inner=stream, again=events)

    async def _with_links(self, reply: Reply, request: Request, member: str, asked: Mapping[str, str]) -> Reply:
        """A member's reply whose result names resources by the URIs that they are listed under (links.py)."""

        return await self._rewritten(reply, request, lambda data: links.with_member(data, member, asked))

    async def _rewritten(
        self, reply: Reply, request: Request, work: Callable[[bytes], bytes], *, is_throughout: bool = False
    ) -> Reply:
        """A member's reply with another answer; `is_throughout`: and with all that comes before it on a stream.

        `work` is kept as long as the caller may ask for the answer once more.
        """
        owner, request.rewriting = request.caller.principal.owner, work
        if isinstance(reply, Answer):
            return replace(reply, body=await self._wire.in_thread(owner, work, reply.body))
        stream = reply

        async def events() -> AsyncGenerator[Event]:
            async for event in stream.events:
                if event.is_last or (is_throughout and event.data):
                    yield replace(event, data=await self._wire.in_thread(owner, work, event.data))
                else:
                    yield event

        return Stream(events(), inner=stream, again=events)

    # One member ---------------------------------------------------------------------------------------------------

    async def _ask_member(self, name: str, request: Request) -> Reply:
        member = self.member(name)
        if not request.caller.principal.may_see(name):
            raise MethodError(INVALID_PARAMS, f"{request.caller.principal.name} may not use member {name!r}")
        request.deadline.set(member.timeout, f"{request.method} of member {name!r}", name)
        if request.method != "tools/list" and not request.caller.principal.may_use_all(name):
            if request.method in LISTS:
                return _result(request, {LISTS[request.method]: []})
            raise MethodError(INVALID_PARAMS, f"this token is for single tools of member {name!r} alone")
        if request.method in LISTS:
            return await self._list_of_member(member, request)
        reply = await self._ask_told(member, request)
        self._note_subscription(request, name, request.params.get("uri", ""))
        if request.task is None:
            return reply
        return await self._rewritten(reply, request, partial(tasks.renamed, request.task), is_throughout=True)

    @staticmethod
    def _name_task(member: OfferedMember, request: Request) -> None:
        """The member's own ids in a request that names tasks. Raises MethodError for tasks of others."""
        owner, params = request.caller.principal.owner, request.params
        if request.method.startswith(tasks.METHODS):
            tasks.require_one_id(request.method, params)
            task = request.task = tasks.opened(owner, member.pk, params["taskId"])
            told = eras.text_of(request.caller_headers, protocol.NAME_HEADER)
            if told is not None and eras.decoded(told) != task.sealed:
                text = f"the header {protocol.NAME_HEADER} does not match the taskId"
                raise MethodError(protocol.HEADER_MISMATCH, text)
            params = {**params, "taskId": task.own}
            if told is not None:
                name = {protocol.NAME_HEADER.lower(): protocol.header_value(task.own)}
                request.parameter_headers = {**request.parameter_headers, **name}
        is_of_mcp = request.method in EVERYWHERE or request.method in OF_ROSTER or request.task is not None
        request.params = tasks.related(owner, member.pk, params, is_of_mcp=is_of_mcp)

    async def _ask_told(self, member: OfferedMember, request: Request) -> Reply:
        try:
            return await self._ask(member, request)
        except ClientError as error:
            raise _told(error, member.name, request) from error

    async def _list_of_member(self, member: OfferedMember, request: Request) -> Reply:
        """The member's own list, without what is not for this caller; from memory while the member cannot say."""
        if self._connected(member) is not None:
            with contextlib.suppress(TimeoutError, ClientError):
                async with asyncio.timeout(LIST_TIMEOUT):
                    reply = await self._ask(member, request)
                    if request.method != "tools/list":
                        return reply
                    narrowed = partial(_narrowed, member.name, member.hidden, request.caller.principal)
                    return await self._rewritten(reply, request, narrowed)
        if "cursor" in request.params:
            raise MethodError(INVALID_PARAMS, "unknown cursor: the list has one page")
        kind = LISTS[request.method]
        if kind != "tools":
            extras = self._roster().extras.get(member.name, Extras())
            return _listed(request, kind, _joined(entry.own for entry in extras.of(kind)))
        may = request.caller.principal.may_invoke
        tools = [tool for tool in member.tools.values() if may(member.name, tool.name)]
        size, encoded = sum(len(tool.listed) for tool in tools), (tool.own for tool in tools)
        entries = await self._wire.aside(request.caller.principal.owner, partial(_joined, encoded), size)
        return _listed(request, kind, entries)

    # The roster ---------------------------------------------------------------------------------------------------

    async def _list(self, scope: Scope, request: Request) -> Reply:
        if request.params.get("cursor") is not None:
            raise MethodError(INVALID_PARAMS, "unknown cursor: the list has one page")
        kind = LISTS[request.method]
        return _listed(request, kind, self._roster().list_of(kind, request.caller.principal, scope))

    async def _get_prompt(self, scope: Scope, request: Request) -> Reply:
        found = self._roster().prompt(request.params["name"])
        return await self._ask_named(found, scope, request, {"name": found[1]} if found else {})

    async def _ask_about_resource(self, scope: Scope, request: Request) -> Reply:
        found = self._resource(request.params["uri"], request.caller.principal, scope)
        reply = await self._ask_named(found, scope, request, {"uri": found[1]} if found else {})
        self._note_subscription(request, *(found or ("", "")))
        return reply

    async def _ask_named(
        self, found: tuple[str, str] | None, scope: Scope, request: Request, own: Mapping[str, Any]
    ) -> Reply:
        """To the member that has it, under its own name for it."""
        is_there = found is not None and found[0] in self._roster().members and scope.has(found[0])
        if found is None or not is_there or not request.caller.principal.may_use_all(found[0]):
            raise _not_found(request)
        member, asked_uri = self.member(found[0]), request.params.get("uri")
        request.params = {**request.params, **own}
        request.deadline.set(member.timeout, f"{request.method} of member {member.name!r}", member.name)
        reply = await self._ask_told(member, request)
        asked = {found[1]: asked_uri} if isinstance(asked_uri, str) else {}
        return await self._with_links(reply, request, member.name, asked)

    def _resource(self, uri: str, principal: Principal, scope: Scope) -> tuple[str, str] | None:
        """Member and own URI of what is asked for. Raises MethodError where it may be of several members."""
        owners = self._roster().owners_of(uri, principal, scope)
        if len(owners) < 2:
            return owners[0] if owners else None
        listed = [resource_uri(member, own) for member, own in owners[:MAX_OWNERS]]
        text = f"several members may have {uri[:200]!r}: ask for one of {', '.join(listed)[:MAX_URI]}"
        raise MethodError(INVALID_PARAMS, text, {"uri": uri, "resources": listed})

    async def _complete(self, scope: Scope, request: Request) -> Reply:
        ref = request.params["ref"]
        roster, principal = self._roster(), request.caller.principal
        if ref["type"] == "ref/prompt":
            found, key = roster.prompt(ref["name"]), "name"
        else:
            found, key = self._resource(ref["uri"], principal, scope), "uri"
        own = {"ref": {**ref, key: found[1]}} if found else {}
        return await self._ask_named(found, scope, request, own)

    @staticmethod
    def _note_subscription(request: Request, member: str, uri: str) -> None:
        """Of a session, so that the member's next process can be told of it too. `uri` is the member's own."""
        session = request.caller.session
        if session is not None and request.method in SUBSCRIBING:
            uris = session.subscriptions.setdefault(member, set())
            if request.method == "resources/unsubscribe":
                uris.discard(uri)
            elif uri not in uris and _has_room_for(uri, session):
                uris.add(uri)

    # Members ------------------------------------------------------------------------------------------------------

    async def _ask(self, member: OfferedMember, request: Request) -> Reply:
        """The member's reply. A place in it is held until that is over."""
        refusals = 0
        while True:
            # A process that just ended has closed its connections, and refuses new ones: no need to ask each time.
            live = None if refusals else self._seems_connected(member.pk)
            live = live or await self._live(member, request)
            route = self._wire.route_to(live, member.max_concurrency)
            owner, within = request.caller.principal.owner, f"within {request.deadline.seconds:g} s"
            request.not_sent = f"none of its {member.max_concurrency} slots became free {within}"
            await route.places.take(owner)
            request.not_sent = f"it took no connection, or began no session, {within}"
            live.relayed += 1
            try:
                if self._seems_connected(member.pk) is live:  # it may have gone while the call stood in line
                    return _holding(route, owner, await self._relay.ask(route, request))
            except ConnectError as error:
                _free(route, owner)
                refusals += 1
                if not error.is_refusal or refusals > MAX_REFUSALS:
                    raise
            except BaseException:
                _free(route, owner)
                raise
            else:
                _free(route, owner)


# What is answered at every path: here, or after a look at who may call which tool.
EVERYWHERE: dict[str, Callable[[Endpoints, Place, Request], Awaitable[Reply]]] = {
    "ping": Endpoints._pong,
    "initialize": Endpoints._refuse_another_beginning,
    "server/discover": Endpoints._discover,
    "logging/setLevel": Endpoints._set_level,
    "tools/call": Endpoints._call_tool,
}
# What the roster answers as one server. At a member's own path all but the above goes to the member.
OF_ROSTER: dict[str, Callable[[Endpoints, Scope, Request], Awaitable[Reply]]] = {
    **dict.fromkeys(LISTS, Endpoints._list),
    "prompts/get": Endpoints._get_prompt,
    **dict.fromkeys(("resources/read", *SUBSCRIBING), Endpoints._ask_about_resource),
    "completion/complete": Endpoints._complete,
}


def _with_list_changes(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """A member's capabilities at its own path. That its tools changed the gateway tells, also where it does not itself.

    None at all are those of a member that never ran.
    """
    if capabilities and "tools" not in capabilities:
        return dict(capabilities)
    return {**capabilities, "tools": {**object_of(capabilities.get("tools")), "listChanged": True}}


def _require_params(request: Request) -> None:
    """Raises MethodError for params that lack what the request is about: nobody may guess at it."""
    params = request.params
    if (key := NAMED_BY.get(request.method)) is not None and not isinstance(params.get(key), str):
        raise MethodError(INVALID_PARAMS, f"{request.method}: {key} must be a string")
    if request.method in WITH_ARGUMENTS and not isinstance(params.get("arguments"), dict | None):
        raise MethodError(INVALID_PARAMS, f"{request.method}: arguments must be an object")
    if request.method == "completion/complete":
        ref = object_of(params.get("ref"))
        key = REFERENCES.get(str(ref.get("type")))
        if key is None:
            raise MethodError(INVALID_PARAMS, f"completion/complete: ref.type must be one of {', '.join(REFERENCES)}")
        if not isinstance(ref.get(key), str):
            raise MethodError(INVALID_PARAMS, f"completion/complete: ref.{key} must be a string")


def _require_spelling(request: Request) -> None:
    """Raises MethodError for keys that members may read in the place of those that are judged here."""
    judged = JUDGED.get(request.method)
    if judged is None or not (unusual := request.params.keys() - USUAL_PARAMS):
        return
    for key in unusual:
        name = judged.get(protocol.folded(key), key)
        if name != key:
            raise MethodError(INVALID_PARAMS, f"{name} is written exactly so, and once")
        if key in held.KEYS and request.caller.session is not None:
            # To a member without sessions it would be a state that nobody here has sealed for the caller.
            raise MethodError(INVALID_PARAMS, f"a session has no {key}: it is asked on a stream")


def _without_task(params: dict[str, Any]) -> dict[str, Any]:
    """A call as no task: where nobody offers tasks, nobody could ask for its result (25-11: basic/utilities/tasks)."""
    params = {key: value for key, value in params.items() if key != "task"}
    meta, key = object_of(params.get("_meta")), f"{protocol.META}clientCapabilities"
    if key in meta:
        params["_meta"] = {**meta, key: tasks.without_extension(object_of(meta[key]))}
    return params


def _narrowed(member: str, hidden: Set[str], principal: Principal, body: bytes) -> bytes:
    """A member's tools/list without what is switched off, or not for this caller."""
    answer = envelope.read(body)
    result = envelope.fields(answer.result)
    tools = envelope.items(result.get("tools"))
    names = [envelope.text(envelope.fields(tool).get("name")) for tool in tools]
    kept = [
        tool
        for name, tool in zip(names, tools, strict=True)
        if name not in hidden and principal.may_invoke(member, name)
    ]
    if len(kept) == len(tools):
        return body
    return envelope.encode(jsonrpc.result_response(answer.id, {**result, "tools": kept}))


def _with_task(owner: Owner, member_id: int, is_asked: bool, body: bytes) -> bytes:
    return tasks.created(owner, member_id, body, is_asked=is_asked)


def _not_found(request: Request) -> MethodError:
    """Names what was asked for, and says it in the words of the client's era."""
    params = request.params
    if "uri" in params:
        code = INVALID_PARAMS if request.caller.is_modern else eras.RESOURCE_NOT_FOUND
        return MethodError(code, f"no member has {params['uri'][:200]!r}", {"uri": params["uri"]})
    ref = params.get("ref", params)
    kind, name = ("resource", ref["uri"]) if "uri" in ref else ("prompt", ref["name"])
    text = f"no member has the {kind} {name[:200]!r}; {kind}s/list says what there is"
    return MethodError(INVALID_PARAMS, text)


def _has_room_for(uri: str, session: CallerSession) -> bool:
    known = [one for uris in session.subscriptions.values() for one in uris]
    return len(known) < limits.MAX_SUBSCRIPTIONS and sum(map(len, known)) + len(uri) <= limits.MAX_SUBSCRIBED


def _holding(route: Route, owner: Owner, reply: Reply) -> Reply:
    """The reply; when it is over, so is its place."""
    if isinstance(reply, Stream):
        reply.on_close(lambda: _free(route, owner))
    else:
        _free(route, owner)
    return reply


def _free(route: Route, owner: Owner) -> None:
    route.live.relayed -= 1
    route.places.give_back(owner)


def _result(request: Request, result: dict[str, Any]) -> Answer:
    message = jsonrpc.result_response(request.id, result)
    if request.caller.is_modern:
        message = eras.for_modern(request.method, request.params, message)
    return Answer(jsonrpc.encode(message))


def _listed(request: Request, kind: str, entries: bytes) -> Answer:
    """A list that is JSON already: a thousand tools are not encoded for each who asks."""
    extra = b',"resultType":"complete","ttlMs":0,"cacheScope":"private"' if request.caller.is_modern else b""
    head = b'{"jsonrpc":"2.0","id":' + jsonrpc.encode(request.id)
    return Answer(head + b',"result":{"' + kind.encode() + b'":' + entries + extra + b"}}")


def _joined(entries: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(entries) + b"]"


def _told(error: ClientError, member: str, request: Request) -> MethodError:
    """A member's failure, for an agent to act on: its own JSON-RPC errors as they are, all else with its name."""
    if not request.is_sent:
        return unavailable(member, str(error))
    if isinstance(error, RemoteError):
        return MethodError(error.code, error.message, error.data)
    kind = "protocol" if isinstance(error, ProtocolError) else "transport"
    return MethodError(INTERNAL_ERROR, f"{request.deadline.about}: {error}", {"member": member, "kind": kind})
