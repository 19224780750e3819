"""Choose the handler of each method. A client can see and call only what its permissions allow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mcp_runtime.gateway import eras, tasks
from mcp_runtime.gateway.catalog import LISTS, OfferedMember, Place, Selection
from mcp_runtime.gateway.endpoints.answers import result
from mcp_runtime.gateway.endpoints.introductions import Introductions
from mcp_runtime.gateway.endpoints.member import MemberEndpoints
from mcp_runtime.gateway.endpoints.params import PLAIN, SUBSCRIBING, require_params
from mcp_runtime.gateway.endpoints.roster import RosterEndpoints
from mcp_runtime.gateway.endpoints.search import SearchTools
from mcp_runtime.gateway.endpoints.tools import ToolCalls
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import Reply, Request
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.members import search_tools
from mcp_runtime.protocol import mcp
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND


class Endpoints:
    """Answers requests."""

    def __init__(
        self,
        upstream_sessions: UpstreamSessions,
        members: Members,
        introductions: Introductions,
        tools: ToolCalls,
        search: SearchTools,
        roster: RosterEndpoints,
        member: MemberEndpoints,
    ) -> None:
        self._upstream_sessions = upstream_sessions
        self._members = members
        self._introductions = introductions
        self._tools = tools
        self._search = search
        self._member = member
        # At every path: methods without a member, and tools/call, which checks permissions for each tool.
        self._common_handlers: dict[str, Callable[[Place, Request], Awaitable[Reply]]] = {
            "ping": self._answer_ping,
            "initialize": self._reject_initialize,
            "server/discover": self._discover,
            "logging/setLevel": self._set_level,
            "tools/call": self._call_tool,
        }
        # At the roster as one server. At a member's own path these go to the member, as every unknown method does.
        # Therefore a method that names or lists tools belongs above, or must be filtered in member.py. Otherwise it
        # reaches disabled tools there, or tools that this client may not call.
        self._roster_handlers: dict[str, Callable[[Selection, Request], Awaitable[Reply]]] = {
            **dict.fromkeys(LISTS, roster.list),
            "prompts/get": roster.get_prompt,
            **dict.fromkeys(("resources/read", *SUBSCRIBING), roster.ask_about_resource),
            "completion/complete": roster.complete,
        }
        self.methods = {*self._common_handlers, *self._roster_handlers}
        self._folded_methods = {mcp.folded(method) for method in self.methods}

    async def answer(self, place: Place, request: Request) -> Reply:
        """Return the reply to one request. Raise MethodError with the error for the client."""
        method, client = request.method, request.client
        if client.is_modern and method in eras.ONLY_WITH_SESSIONS:
            raise MethodError(METHOD_NOT_FOUND, f"Method not found: {method} does not exist in {mcp.MODERN_VERSION}")
        if method not in self.methods:
            self._require_spelling(method)
        require_params(request)
        if place.member is None:
            if not request.params.keys() <= PLAIN:
                request.params = tasks.remove_related_task(request.params)  # at the roster, all methods are MCP's
        else:
            self._unseal_task(self._members.get(place.member), request)
        if method in self._common_handlers and (client.is_modern or method not in eras.ONLY_WITHOUT_SESSIONS):
            return await self._common_handlers[method](place, request)
        if place.member is not None:
            return await self._member.answer(place.member, request)
        if method not in self._roster_handlers:
            raise MethodError(METHOD_NOT_FOUND, f"Method not found: {method[:100]!r}")
        return await self._roster_handlers[method](place.selection, request)

    def _require_spelling(self, method: str) -> None:
        """Raise MethodError for a method that a lenient member may take for one with a handler here."""
        folded_method = mcp.folded(method)
        is_of_tasks = folded_method.startswith(tasks.METHODS) and not method.startswith(tasks.METHODS)
        if is_of_tasks or folded_method in self._folded_methods:
            raise MethodError(METHOD_NOT_FOUND, f"Method not found: {method[:100]!r}; names are case-sensitive")

    def _unseal_task(self, member: OfferedMember, request: Request) -> None:
        """Replace sealed task ids in a request by the member's ids. Raise MethodError for tasks of other clients."""
        owner, params = request.client.principal.owner, request.params
        if request.method.startswith(tasks.METHODS):
            tasks.require_task_id(request.method, params)
            task = request.task = tasks.open_task(owner, member.pk, params["taskId"])
            header_value = eras.text_of(request.client_headers, mcp.NAME_HEADER)
            if header_value is not None and eras.decode_header(header_value) != task.sealed_id:
                text = f"the header {mcp.NAME_HEADER} does not match the taskId"
                raise MethodError(mcp.HEADER_MISMATCH, text)
            params = {**params, "taskId": task.own_id}
            if header_value is not None:
                name = {mcp.NAME_HEADER.lower(): mcp.header_value(task.own_id)}
                request.parameter_headers = {**request.parameter_headers, **name}
        is_of_mcp = request.method in self.methods or request.task is not None
        request.params = tasks.resolve_related_task(owner, member.pk, params, is_of_mcp=is_of_mcp)

    # Methods without a member -------------------------------------------------------------------------------------

    async def _answer_ping(self, _: Place, request: Request) -> Reply:
        return result(request, {})

    async def _reject_initialize(self, _: Place, __: Request) -> Reply:
        raise MethodError(INVALID_REQUEST, "this session is already initialized; to begin a new one, leave out its id")

    async def _discover(self, place: Place, request: Request) -> Reply:
        return result(request, await self._introductions.discovery(place, request.client))

    async def _call_tool(self, place: Place, request: Request) -> Reply:
        if request.params["name"] in search_tools.NAMES and place.is_searched_by(request.client.principal):
            return await self._search.answer(place, request)
        return await self._tools.answer(place, request)

    async def _set_level(self, _: Place, request: Request) -> Reply:
        level, session = request.params.get("level"), request.client.session
        if level not in eras.LOG_LEVELS or session is None:
            raise MethodError(INVALID_PARAMS, f"level must be one of {', '.join(eras.LOG_LEVELS)}")
        session.log_level = str(level)
        await self._upstream_sessions.set_level(session, session.log_level)
        return result(request, {})
