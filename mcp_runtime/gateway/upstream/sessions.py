"""Sessions with members, on behalf of clients; and what is said in them that is no request.

A member with sessions gets one per client's session, begun in the client's version with the client's capabilities, so
that what it asks (sampling, elicitation) reaches the one who can answer. A token's modern clients of the same
capabilities share one. A member that forgets its sessions gets new ones; a modern member needs none.
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
from typing import Any
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

MAX_SHARED = 1_000  # sessions of modern clients with one member
MAX_SHARED_OF_CLIENT = 10
CLIENT_CAPABILITIES = ("elicitation", "roots", "sampling")
BACKGROUND_SECONDS = 2.0
PROBE_SECONDS = 2.0
MAX_DISCOVERIES = 1_000  # members whose own words of themselves are kept
PROBE_RETRY_SECONDS = 30.0  # after one that told nothing


@dataclass(eq=False, slots=True)
class UpstreamSession:
    """A session with a member; `id` None: the member gives none. Only `owner` can send messages in it."""

    route: Route
    version: str
    id: str | None
    owner: Owner
    used_at: float = 0.0
    has_listener: bool = False  # its stream of notifications and questions is read, or the member has none
    headers: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        headers = {**self.route.headers, mcp.VERSION_HEADER: self.version}
        self.headers = headers | {mcp.SESSION_HEADER: self.id} if self.id else headers


# Sessions that are open or being opened, by member or by client.
Openings = dict[Any, asyncio.Future[UpstreamSession]]


@dataclass(eq=False)
class _MemberState:
    """What is known of a member while its process lives."""

    shared: Openings = field(default_factory=dict)  # by client
    probe: asyncio.Future[bool] | None = None  # does it speak the modern way too
    next_probe_at: float = 0.0


class BackgroundTasks:
    """Messages to members for which no client waits. Each has BACKGROUND_SECONDS, and nobody hears of a failure."""

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
        """Wait `seconds` for the tasks, then cancel those that are left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        unfinished = list(self._tasks)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


class UpstreamSessions:
    """All of them, by member and client."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._ids = itertools.count(1)
        self._prefix = f"gh-{secrets.token_hex(4)}"
        self._by_client_session: WeakKeyDictionary[ClientSession, Openings] = WeakKeyDictionary()
        self.background = BackgroundTasks()
        self._discoveries: dict[int, dict[str, Any]] = {}  # by member; kept while it is stopped
        # Set by `ClientStreams`.
        self.open_listener: Callable[[UpstreamSession, ClientSession | None], Awaitable[None]] | None = None

    def new_id(self) -> str:
        """An id that was never used before, by any runtime: an answer under it answers one request alone."""
        return f"{self._prefix}-{next(self._ids)}"

    @staticmethod
    def _state_of(route: Route) -> _MemberState:
        """Kept at the route, to go with it: what is known holds it in turn."""
        if not isinstance(route.state, _MemberState):
            route.state = _MemberState()
        return route.state

    # Eras ---------------------------------------------------------------------------------------------------------

    async def is_modern(self, route: Route, client: Client) -> bool:
        """Whether the member is asked in the modern way: it must be, or it can be and so does the client."""
        if route.live.client.is_modern:
            return True
        return client.is_modern and await self._speaks_modern(route)

    async def _speaks_modern(self, route: Route) -> bool:
        """Whether a member that the hall shook hands with speaks both; asked once, when the first one wants to know."""
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
                    self._discoveries.pop(route.live.member_id, None)
                    return False
                answer = await self._first_answer(response, message["id"])
            versions = envelope.small(answer.fields.get("supportedVersions"))
            is_modern = isinstance(versions, list) and mcp.MODERN_VERSION in versions
        except (ClientError, TimeoutError):
            state.next_probe_at = asyncio.get_running_loop().time() + PROBE_RETRY_SECONDS
            return False
        self._store_discovery(route.live.member_id, answer.result if is_modern else None)
        return is_modern

    def _store_discovery(self, member_id: int, result: Any) -> None:
        """What a member that speaks both eras says of itself in the modern one. Its row has what the handshake says."""
        self._discoveries.pop(member_id, None)
        if len(self._discoveries) >= MAX_DISCOVERIES:
            del self._discoveries[next(iter(self._discoveries))]
        with contextlib.suppress(ProtocolError):  # it is too large to be kept
            if result is not None:
                self._discoveries[member_id] = envelope.small(result)

    async def discovery_of(self, member_id: int, route: Route | None, client: Client) -> dict[str, Any]:
        """The member's result of `server/discover`; empty where it has none of its own. `route` None: from memory."""
        if route is not None and not await self.is_modern(route, client):
            return {}
        return self._discoveries.get(member_id, {})

    # Sessions -----------------------------------------------------------------------------------------------------

    async def session_for(self, route: Route, client: Client) -> UpstreamSession:
        """The session with the member for this client, begun if there is none."""
        shared, has_sessions = self._state_of(route).shared, bool(route.live.client.session.id)
        if has_sessions and client.session is not None:
            return await self._get_or_open(
                self._by_client_session.setdefault(client.session, {}), route.live.member_id, route, client
            )
        key = (
            *client.principal.owner,
            _capabilities_key(client) if has_sessions else _sessionless_version(route, client),
        )
        if key not in shared:
            self._make_room(shared, key)
        return await self._get_or_open(shared, key, route, client)

    async def session_for_request(self, route: Route, client: Client) -> UpstreamSession:
        """The same, ready for a client's request: the member may ask something in turn."""
        upstream_session = await self.session_for(route, client)
        upstream_session.used_at = asyncio.get_running_loop().time()
        # The hall itself asks for lists alone, and the member has no questions about these.
        is_for_client = upstream_session.id is not None and upstream_session.owner != HALL_OWNER
        if is_for_client and not upstream_session.has_listener and self.open_listener is not None:
            await self.open_listener(upstream_session, client.session)
        return upstream_session

    def _make_room(self, shared: Openings, key: tuple[Any, ...]) -> None:
        """Of too many sessions the oldest ends: one of the same client, who may declare what they like, first."""
        own = [key_of_other for key_of_other in shared if key_of_other[:-1] == key[:-1]]
        surplus = own[: max(len(own) - MAX_SHARED_OF_CLIENT + 1, 0)]
        for key_of_other in surplus or list(shared)[: max(len(shared) - MAX_SHARED + 1, 0)]:
            self._discard(shared.pop(key_of_other))

    async def _get_or_open(self, openings: Openings, key: Any, route: Route, client: Client) -> UpstreamSession:
        opening = openings.get(key)
        if opening is None or _is_useless(opening, route):
            opening = openings[key] = asyncio.ensure_future(self._open(route, client))
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _open(self, route: Route, client: Client) -> UpstreamSession:
        own = route.live.client.session
        if not own.id:
            version = await self._negotiate_version(route, client)
            return UpstreamSession(route, version, None, client.principal.owner)
        version = client.session.version if client.session else own.version
        capabilities = client.capabilities if client.session else json.loads(_capabilities_key(client))
        params = {**mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, capabilities), "protocolVersion": version}
        draft = UpstreamSession(route, version, None, client.principal.owner)
        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT):
                upstream_session = await self._handshake(draft, params)
        except TimeoutError as error:  # not the client's deadline, which is another
            raise RequestTimeoutError(INITIALIZE_TIMEOUT) from error
        if client.session and client.session.log_level:
            await self._call_ignoring_errors(upstream_session, "logging/setLevel", {"level": client.session.log_level})
        return upstream_session

    async def _negotiate_version(self, route: Route, client: Client) -> str:
        """The newest version that a client of `asked` and a member without sessions both know.

        The hall's own handshake tells of one version alone, and without a session the member keeps nothing of another.
        """
        own, requested = route.live.client.session.version, _sessionless_version(route, client)
        if requested == own:
            return own
        params = {**mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, {}), "protocolVersion": requested}
        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT):
                upstream_session = await self._handshake(
                    UpstreamSession(route, requested, None, client.principal.owner), params
                )
        except (ClientError, TimeoutError):
            return own  # it takes nothing else
        if upstream_session.id:
            self.background.run(self._end(upstream_session))
            return own
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
        upstream_session = UpstreamSession(draft.route, version, session_id, draft.owner)
        await self.send(upstream_session, jsonrpc.notification("notifications/initialized"))
        return upstream_session

    async def _post(self, upstream_session: UpstreamSession, message: dict[str, Any]) -> Response:
        body = envelope.encode(message)
        return await self._upstream.send(
            upstream_session.route, "POST", upstream_session.headers, body, upstream_session.owner
        )

    async def _first_answer(self, response: Response, sent_id: Any) -> Message:
        """Of an answer in one piece, or on a stream that is not read further."""
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
        own = self._by_client_session.get(client.session, {}) if client.session else {}
        for openings in (self._state_of(upstream_session.route).shared, own):
            for key in [key for key, opening in openings.items() if _result(opening) is upstream_session]:
                del openings[key]

    def close_sessions_of(self, session: ClientSession) -> None:
        """The client's session ended: so do those with members that were begun for it."""
        for opening in self._by_client_session.pop(session, {}).values():
            self._discard(opening)

    def sessions_of(self, session: ClientSession) -> list[UpstreamSession]:
        """The sessions with members that belong to the client's, and are there."""
        openings = self._by_client_session.get(session, {}).values()
        return [upstream_session for opening in openings if (upstream_session := _result(opening))]

    def _discard(self, opening: asyncio.Future[UpstreamSession]) -> None:
        """Nobody uses it any more; one that is just being begun ends once it is."""

        def end(opening: asyncio.Future[UpstreamSession]) -> None:
            session = _result(opening)
            if session and session.id:
                self.background.run(self._end(session))

        opening.add_done_callback(end)

    async def _end(self, upstream_session: UpstreamSession) -> None:
        response = await self._upstream.send(
            upstream_session.route, "DELETE", upstream_session.headers, None, upstream_session.owner
        )
        response.release()

    # What is no request -------------------------------------------------------------------------------------------

    async def open_stream(self, upstream_session: UpstreamSession, last_event_id: str = "") -> Response:
        """A GET: what the member says unasked, or the rest of a stream. Raises HttpStatusError where there is none."""
        headers = {**upstream_session.headers, "Accept": mcp.EVENT_STREAM}
        if last_event_id:
            headers[mcp.LAST_EVENT_HEADER] = last_event_id
        response = await self._upstream.send(upstream_session.route, "GET", headers, None, upstream_session.owner)
        if response.status != 200 or response.content_type != mcp.EVENT_STREAM:
            response.close()
            raise HttpStatusError(response.status)
        return response

    async def subscribe(self, upstream_session: UpstreamSession, uri: str) -> None:
        """For a client whose era has no such request, or who asked another process: its answer is of no interest."""
        await self._call_ignoring_errors(upstream_session, "resources/subscribe", {"uri": uri})

    async def forward_notification(self, route: Route, client: Client, message: dict[str, Any]) -> None:
        """A client's notification, where it means something to the member."""
        if not await self.is_modern(route, client):
            await self.send(await self.session_for(route, client), message)

    async def set_level(self, session: ClientSession, level: str) -> None:
        """To the members that this session has been begun with; others are told when theirs is."""
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
        """Whether the member says of this session, asked once more on a connection of its own, that there is none."""
        body = envelope.encode(jsonrpc.request(self.new_id(), "ping"))
        try:
            async with asyncio.timeout(BACKGROUND_SECONDS):
                route, headers = upstream_session.route, upstream_session.headers
                response = await self._upstream.send(
                    route, "POST", headers, body, upstream_session.owner, is_first=True
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
        """A message without an answer."""
        async with asyncio.timeout(REQUEST_TIMEOUT):
            response = await self._post(upstream_session, message)
            if not 200 <= response.status < 300:
                raise await self._upstream.answer_error(response, await self._upstream.read(response))
            response.release()


def _capabilities_key(client: Client) -> str:
    """What a modern client can be asked; those who can be asked the same share a session."""
    return json.dumps(
        {key: client.capabilities[key] for key in CLIENT_CAPABILITIES if key in client.capabilities}, sort_keys=True
    )


def _sessionless_version(route: Route, client: Client) -> str:
    """The version to ask a member without sessions in, if it knows it."""
    return client.session.version if client.session else route.live.client.session.version


def _result(opening: asyncio.Future[UpstreamSession]) -> UpstreamSession | None:
    """The session, if it is open."""
    is_open = opening.done() and not opening.cancelled() and not opening.exception()
    return opening.result() if is_open else None


def _is_useless(opening: asyncio.Future[UpstreamSession], route: Route) -> bool:
    """Whether it failed, or was for an earlier process of the member."""
    if not opening.done():
        return False
    session = _result(opening)
    return session is None or session.route is not route
