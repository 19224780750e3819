"""Sessions with members, on behalf of clients, and the messages in them that are not requests of clients.

For each session of a client, the gateway begins a session with each member that has sessions. It uses the client's
version and capabilities, so that questions (sampling, elicitation) reach a client that can answer them. Modern clients
with the same token and capabilities share one session. If a member forgets a session, the gateway begins a new one. A
modern member needs no sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from mcp_runtime.client.client import CLIENT_NAME, CLIENT_VERSION, INITIALIZE_TIMEOUT, REQUEST_TIMEOUT
from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import Client, ClientSession
from mcp_runtime.gateway.upstream.routes import STREAM_ENDED, Route, Upstream
from mcp_runtime.http1.client import HALL_OWNER, Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ClientError, HttpStatusError, ProtocolError, RequestTimeoutError
from mcp_runtime.security.limits import Owner

if TYPE_CHECKING:  # a hall without members behind OAuth does not load it
    from mcp_runtime.members.access_tokens import SignInKey

MAX_SHARED_SESSIONS = 1_000  # sessions of modern clients with one member
MAX_SHARED_SESSIONS_OF_CLIENT = 10
CLIENT_CAPABILITIES = ("elicitation", "roots", "sampling")
BACKGROUND_SECONDS = 2.0
PROBE_SECONDS = 2.0
MAX_DISCOVERIES = 1_000  # members whose results of server/discover are stored
PROBE_RETRY_SECONDS = 30.0  # after a probe without a result


@dataclass(eq=False, slots=True)
class UpstreamSession:
    """A session with a member. `id` is None if the member has no sessions. Only `owner` can send messages in it."""

    route: Route
    version: str
    id: str | None
    owner: Owner
    used_at: float = 0.0
    has_listener: bool = False  # its stream of notifications and questions is open, or the member has none
    sign_in: SignInKey | None = None  # with which it began, where each user has an own one
    headers: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        headers = {**self.route.headers, mcp.VERSION_HEADER: self.version}
        self.headers = headers | {mcp.SESSION_HEADER: self.id} if self.id else headers


# Sessions that are open or being opened, by member or by client.
Openings = dict[Any, asyncio.Future[UpstreamSession]]


@dataclass(eq=False)
class _MemberState:
    """The state of one process of a member."""

    shared: Openings = field(default_factory=dict)  # by client
    probe: asyncio.Future[bool] | None = None  # whether it also supports the modern version
    next_probe_at: float = 0.0


class BackgroundTasks:
    """Messages to members for which no client waits. Each has BACKGROUND_SECONDS. Errors are ignored."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Awaitable[None]) -> None:
        async def bounded() -> None:
            with contextlib.suppress(ClientError, TimeoutError):
                await asyncio.wait_for(work, BACKGROUND_SECONDS)

        task = asyncio.ensure_future(bounded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float) -> None:
        """Wait `seconds` for the tasks, then cancel the remaining ones."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        unfinished = list(self._tasks)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


class UpstreamSessions:
    """All sessions with members, by member and client."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._ids = itertools.count(1)
        self._prefix = f"gh-{secrets.token_hex(4)}"
        self._by_client_session: WeakKeyDictionary[ClientSession, Openings] = WeakKeyDictionary()
        self.background = BackgroundTasks()
        self._discoveries: dict[int, dict[str, Any]] = {}  # by member. An entry stays while the member is stopped
        # Set by `ClientStreams`.
        self.open_listener: Callable[[UpstreamSession, ClientSession | None], Awaitable[None]] | None = None

    def new_id(self) -> str:
        """Return an id that no runtime has used before, so that a response belongs to exactly one request."""
        return f"{self._prefix}-{next(self._ids)}"

    @staticmethod
    def _state_of(route: Route) -> _MemberState:
        """Return the state of the route's process. The route stores it, so both are deleted together."""
        if not isinstance(route.state, _MemberState):
            route.state = _MemberState()
        return route.state

    # Eras ---------------------------------------------------------------------------------------------------------

    async def is_modern(self, route: Route, client: Client) -> bool:
        """Return whether to use the modern version: the member requires it, or the member and the client support it."""
        if route.live_member.client.is_modern:
            return True
        return client.is_modern and await self._speaks_modern(route)

    async def _speaks_modern(self, route: Route) -> bool:
        """Return whether a member with a handshake also supports the modern version. Probe it once, when needed."""
        state, loop = self._state_of(route), asyncio.get_running_loop()
        if state.probe is None or (state.probe.done() and loop.time() > state.next_probe_at):
            state.next_probe_at = math.inf
            state.probe = asyncio.ensure_future(self._probe(route, state))
        return await asyncio.shield(state.probe)

    async def _probe(self, route: Route, state: _MemberState) -> bool:
        params = {"_meta": mcp.modern_meta(CLIENT_NAME, CLIENT_VERSION, {})}
        headers = {**route.headers, mcp.VERSION_HEADER: mcp.MODERN_VERSION}
        headers |= mcp.modern_headers("server/discover", params)
        message = jsonrpc.request(self.new_id(), "server/discover", params)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self._upstream.send(route, "POST", headers, jsonrpc.encode(message), HALL_OWNER)
                if response.status != 200:
                    response.close()
                    self._discoveries.pop(route.live_member.member_id, None)
                    return False
                answer = await self._first_answer(response, message["id"])
            versions = envelope.small(answer.fields.get("supportedVersions"))
            is_modern = isinstance(versions, list) and mcp.MODERN_VERSION in versions
        except (ClientError, TimeoutError):
            state.next_probe_at = asyncio.get_running_loop().time() + PROBE_RETRY_SECONDS
            return False
        self._store_discovery(route.live_member.member_id, answer.result if is_modern else None)
        return is_modern

    def _store_discovery(self, member_id: int, result: Any) -> None:
        """Store the result of server/discover of a member with both eras. Its row has the handshake's result."""
        self._discoveries.pop(member_id, None)
        if len(self._discoveries) >= MAX_DISCOVERIES:
            del self._discoveries[next(iter(self._discoveries))]
        with contextlib.suppress(ProtocolError):  # it is too large to be stored
            if result is not None:
                self._discoveries[member_id] = envelope.small(result)

    async def discovery_of(self, member_id: int, route: Route | None, client: Client) -> dict[str, Any]:
        """Return the member's result of `server/discover`, or nothing. Without a `route`, use the stored one."""
        if route is not None and not await self.is_modern(route, client):
            return {}
        return self._discoveries.get(member_id, {})

    # Sessions -----------------------------------------------------------------------------------------------------

    async def session_for(self, route: Route, client: Client) -> UpstreamSession:
        """Return the session with the member for this client. Begin one if necessary."""
        shared, has_sessions = self._state_of(route).shared, bool(route.live_member.client.session.id)
        if has_sessions and client.session is not None:
            return await self._get_or_open(
                self._by_client_session.setdefault(client.session, {}), route.live_member.member_id, route, client
            )
        key = (
            *client.principal.owner,
            _capabilities_key(client) if has_sessions else _sessionless_version(route, client),
        )
        if key not in shared:
            self._make_room(shared, key)
        return await self._get_or_open(shared, key, route, client)

    async def session_for_request(self, route: Route, client: Client) -> UpstreamSession:
        """Return the same session, with an open stream for the member's questions."""
        upstream_session = await self.session_for(route, client)
        upstream_session.used_at = asyncio.get_running_loop().time()
        # The hall itself only requests lists, and members have no questions about those.
        is_for_client = upstream_session.id is not None and upstream_session.owner != HALL_OWNER
        if is_for_client and not upstream_session.has_listener and self.open_listener is not None:
            await self.open_listener(upstream_session, client.session)
        return upstream_session

    def _make_room(self, shared: Openings, key: tuple[Any, ...]) -> None:
        """End the oldest session if there are too many. The limit of one client comes first.

        A client can declare any number of different capabilities.
        """
        keys_of_client = [other_key for other_key in shared if other_key[:-1] == key[:-1]]
        surplus = keys_of_client[: max(len(keys_of_client) - MAX_SHARED_SESSIONS_OF_CLIENT + 1, 0)]
        for other_key in surplus or list(shared)[: max(len(shared) - MAX_SHARED_SESSIONS + 1, 0)]:
            self._discard(shared.pop(other_key))

    async def _get_or_open(self, openings: Openings, key: Any, route: Route, client: Client) -> UpstreamSession:
        opening = openings.get(key)
        if opening is None or _is_useless(opening, route):
            opening = openings[key] = asyncio.ensure_future(self._open(route, client))
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _open(self, route: Route, client: Client) -> UpstreamSession:
        hall_session = route.live_member.client.session
        if not hall_session.id:
            version = await self._negotiate_version(route, client)
            return UpstreamSession(route, version, None, client.principal.owner)
        version = client.session.version if client.session else hall_session.version
        capabilities = client.capabilities if client.session else json.loads(_capabilities_key(client))
        params = {**mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, capabilities), "protocolVersion": version}
        draft = UpstreamSession(route, version, None, client.principal.owner)
        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT):
                upstream_session = await self._handshake(draft, params)
        except TimeoutError as error:  # not the deadline of the client's request
            raise RequestTimeoutError(INITIALIZE_TIMEOUT) from error
        if client.session and client.session.log_level:
            await self._call_ignoring_errors(upstream_session, "logging/setLevel", {"level": client.session.log_level})
        return upstream_session

    async def _negotiate_version(self, route: Route, client: Client) -> str:
        """Return the newest version that the client and a member without sessions both support.

        The hall's own handshake shows only one version. Without a session, the member stores nothing of another
        handshake.
        """
        hall_version, requested = route.live_member.client.session.version, _sessionless_version(route, client)
        if requested == hall_version:
            return hall_version
        params = {**mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, {}), "protocolVersion": requested}
        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT):
                upstream_session = await self._handshake(
                    UpstreamSession(route, requested, None, client.principal.owner), params
                )
        except (ClientError, TimeoutError):
            return hall_version  # it supports no other version
        if upstream_session.id:
            self.background.run(self._end(upstream_session))
            return hall_version
        return upstream_session.version

    async def _handshake(self, draft: UpstreamSession, params: dict[str, Any]) -> UpstreamSession:
        message = jsonrpc.request(self.new_id(), "initialize", params)
        response = await self._post(draft, message)
        if response.status != 200:
            raise await self._upstream.answer_error(response, await self._upstream.read(response))
        answer = await self._first_answer(response, message["id"])
        if (error := answer.remote_error()) is not None:
            raise error
        version = envelope.text(answer.fields.get("protocolVersion"))
        if version not in mcp.HANDSHAKE_VERSIONS:
            raise ProtocolError(f"answered initialize with protocol version {version[:40]!r}")
        session_id = response.header(mcp.SESSION_HEADER)
        sign_in = self._upstream.sign_in_of(draft.route, draft.owner) if session_id else None
        upstream_session = UpstreamSession(draft.route, version, session_id, draft.owner, sign_in=sign_in)
        await self.send(upstream_session, jsonrpc.notification("notifications/initialized"))
        return upstream_session

    async def _post(self, upstream_session: UpstreamSession, message: dict[str, Any]) -> Response:
        body = envelope.encode(message)
        route, headers, owner = upstream_session.route, upstream_session.headers, upstream_session.owner
        return await self._upstream.send(route, "POST", headers, body, owner, sign_in=upstream_session.sign_in)

    async def _first_answer(self, response: Response, sent_id: Any) -> Message:
        """Return the response from a complete body, or from a stream. Read the stream no further."""
        if response.content_type != mcp.EVENT_STREAM:
            return await self._upstream.answer(response, sent_id)
        try:
            async with contextlib.aclosing(self._upstream.events(response, mcp.EventStream())) as parts:
                async for data in parts:
                    message = await self._upstream.message(data, response.owner) if data else None
                    if message is not None and message.is_response:
                        return envelope.answer_to(sent_id, [message])
        finally:
            response.close()
        raise ProtocolError(STREAM_ENDED)

    def forget(self, upstream_session: UpstreamSession, client: Client) -> None:
        openings_of_client = self._by_client_session.get(client.session, {}) if client.session else {}
        for openings in (self._state_of(upstream_session.route).shared, openings_of_client):
            for key in [key for key, opening in openings.items() if _result(opening) is upstream_session]:
                del openings[key]

    def close_sessions_of(self, session: ClientSession) -> None:
        """End the sessions with members that were begun for an ended session of a client."""
        for opening in self._by_client_session.pop(session, {}).values():
            self._discard(opening)

    def sessions_of(self, session: ClientSession) -> list[UpstreamSession]:
        """Return the open sessions with members that belong to the client's session."""
        openings = self._by_client_session.get(session, {}).values()
        return [upstream_session for opening in openings if (upstream_session := _result(opening))]

    def _discard(self, opening: asyncio.Future[UpstreamSession]) -> None:
        """End a session that is not used any more. If it is just being opened, end it afterwards."""

        def end(opening: asyncio.Future[UpstreamSession]) -> None:
            session = _result(opening)
            if session and session.id:
                self.background.run(self._end(session))

        opening.add_done_callback(end)

    async def _end(self, upstream_session: UpstreamSession) -> None:
        route, owner, sign_in = upstream_session.route, upstream_session.owner, upstream_session.sign_in
        response = await self._upstream.send(route, "DELETE", upstream_session.headers, None, owner, sign_in=sign_in)
        response.release()

    # Other messages -----------------------------------------------------------------------------------------------

    async def open_stream(self, upstream_session: UpstreamSession, last_event_id: str = "") -> Response:
        """Send a GET for notifications and questions, or for the rest of a stream.

        Raise HttpStatusError if the member has no such stream.
        """
        headers = {**upstream_session.headers, "Accept": mcp.EVENT_STREAM}
        if last_event_id:
            headers[mcp.LAST_EVENT_HEADER] = last_event_id
        route, owner, sign_in = upstream_session.route, upstream_session.owner, upstream_session.sign_in
        response = await self._upstream.send(route, "GET", headers, None, owner, sign_in=sign_in)
        if response.status != 200 or response.content_type != mcp.EVENT_STREAM:
            response.close()
            raise HttpStatusError(response.status)
        return response

    async def subscribe(self, upstream_session: UpstreamSession, uri: str) -> None:
        """Subscribe on behalf of a modern client, or again in a new process. Ignore the response."""
        await self._call_ignoring_errors(upstream_session, "resources/subscribe", {"uri": uri})

    async def forward_notification(self, route: Route, client: Client, message: dict[str, Any]) -> None:
        """Forward a client's notification, unless the member is modern."""
        if not await self.is_modern(route, client):
            await self.send(await self.session_for(route, client), message)

    async def set_level(self, session: ClientSession, level: str) -> None:
        """Set the log level in the open sessions with members. Later sessions get it when they are opened."""
        for upstream_session in self.sessions_of(session):
            await self._call_ignoring_errors(upstream_session, "logging/setLevel", {"level": level})

    async def _call_ignoring_errors(
        self, upstream_session: UpstreamSession, method: str, params: dict[str, Any]
    ) -> None:
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(BACKGROUND_SECONDS):
                message = jsonrpc.request(self.new_id(), method, params)
                (await self._post(upstream_session, message)).release()

    async def is_expired(self, upstream_session: UpstreamSession) -> bool:
        """Return whether the session has ended at the member. Ask with a ping on a new connection."""
        body = envelope.encode(jsonrpc.request(self.new_id(), "ping"))
        try:
            async with asyncio.timeout(BACKGROUND_SECONDS):
                route, headers = upstream_session.route, upstream_session.headers
                owner, sign_in = upstream_session.owner, upstream_session.sign_in
                response = await self._upstream.send(
                    route, "POST", headers, body, owner, is_first=True, sign_in=sign_in
                )
        except (ClientError, TimeoutError):
            return False
        response.close()
        return response.status == 404

    async def send_cancelled(self, upstream_session: UpstreamSession, sent_id: Any, reason: str) -> None:
        params = {"requestId": sent_id, "reason": reason}
        await self.send(upstream_session, jsonrpc.notification("notifications/cancelled", params))

    async def reply(self, upstream_session: UpstreamSession, message: dict[str, Any]) -> None:
        with contextlib.suppress(ClientError, TimeoutError):
            await self.send(upstream_session, message)

    async def send(self, upstream_session: UpstreamSession, message: dict[str, Any]) -> None:
        """Send a message that has no response."""
        async with asyncio.timeout(REQUEST_TIMEOUT):
            response = await self._post(upstream_session, message)
            if not 200 <= response.status < 300:
                raise await self._upstream.answer_error(response, await self._upstream.read(response))
            response.release()


def _capabilities_key(client: Client) -> str:
    """Return the questions that a modern client can answer. Clients with the same key share a session."""
    return json.dumps(
        {key: client.capabilities[key] for key in CLIENT_CAPABILITIES if key in client.capabilities}, sort_keys=True
    )


def _sessionless_version(route: Route, client: Client) -> str:
    """Return the version for a member without sessions, if the member supports it."""
    return client.session.version if client.session else route.live_member.client.session.version


def _result(opening: asyncio.Future[UpstreamSession]) -> UpstreamSession | None:
    """Return the session if it is open."""
    is_open = opening.done() and not opening.cancelled() and not opening.exception()
    return opening.result() if is_open else None


def _is_useless(opening: asyncio.Future[UpstreamSession], route: Route) -> bool:
    """Return whether it failed, or belongs to an earlier process of the member."""
    if not opening.done():
        return False
    session = _result(opening)
    return session is None or session.route is not route
