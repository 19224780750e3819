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
from mcp_runtime.gateway.upstream.routes import STREAM_ENDED, Route, Wire
from mcp_runtime.http1.client import NOBODY, Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import ClientError, HttpStatusError, ProtocolError, RequestTimeoutError
from mcp_runtime.security.limits import Owner

MAX_SHARED = 1_000  # sessions of modern clients with one member
MAX_SHARED_OF_CLIENT = 10
ASKABLE = ("elicitation", "roots", "sampling")
GOODBYE_SECONDS = 2.0
PROBE_SECONDS = 2.0
MAX_DISCOVERED = 1_000  # members whose own words of themselves are kept
PROBE_AGAIN_SECONDS = 30.0  # after one that told nothing


@dataclass(eq=False, slots=True)
class Conversation:
    """A session with a member; `id` None: the member gives none. Nobody but `owner` speaks in it."""

    route: Route
    version: str
    id: str | None
    owner: Owner
    used_at: float = 0.0
    is_heard: bool = False  # what the member says in it beside answers is being read, or it offers no stream for that
    headers: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        headers = {**self.route.headers, mcp.VERSION_HEADER: self.version}
        self.headers = headers | {mcp.SESSION_HEADER: self.id} if self.id else headers


@dataclass(eq=False)
class _Known:
    """What is known of a member while its process lives."""

    shared: dict[Any, asyncio.Future[Conversation]] = field(default_factory=dict)  # by who it is for
    probe: asyncio.Future[bool] | None = None  # does it speak the modern way too
    probe_again_at: float = 0.0


class Conversations:
    """All of them, by member and client."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ids = itertools.count(1)
        self._prefix = f"gh-{secrets.token_hex(4)}"
        self._of_session: WeakKeyDictionary[ClientSession, dict[int, asyncio.Future[Conversation]]] = (
            WeakKeyDictionary()
        )
        self._goodbyes: set[asyncio.Task[Any]] = set()
        self._discovered: dict[int, dict[str, Any]] = {}  # by member; kept while it is stopped
        self.listen: Callable[[Conversation, ClientSession | None], Awaitable[None]] | None = None  # see `Listening`

    def new_id(self) -> str:
        """An id that was never used before, by any runtime: an answer under it answers one request alone."""
        return f"{self._prefix}-{next(self._ids)}"

    @staticmethod
    def _of(route: Route) -> _Known:
        """Kept at the route, to go with it: what is known holds it in turn."""
        if not isinstance(route.known, _Known):
            route.known = _Known()
        return route.known

    # Eras ---------------------------------------------------------------------------------------------------------

    async def is_modern(self, route: Route, client: Client) -> bool:
        """Whether the member is asked in the modern way: it must be, or it can be and so does the client."""
        if route.live.client.is_modern:
            return True
        return client.is_modern and await self._speaks_modern(route)

    async def _speaks_modern(self, route: Route) -> bool:
        """Whether a member that the hall shook hands with speaks both; asked once, when the first one wants to know."""
        known, loop = self._of(route), asyncio.get_running_loop()
        if known.probe is None or (known.probe.done() and loop.time() > known.probe_again_at):
            known.probe_again_at = math.inf
            known.probe = asyncio.ensure_future(self._probe(route, known))
        return await asyncio.shield(known.probe)

    async def _probe(self, route: Route, known: _Known) -> bool:
        params = {"_meta": mcp.modern_meta(CLIENT_NAME, CLIENT_VERSION, {})}
        headers = {**route.headers, mcp.VERSION_HEADER: mcp.MODERN_VERSION}
        headers |= mcp.modern_headers("server/discover", params)
        message = jsonrpc.request(self.new_id(), "server/discover", params)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                response = await self._wire.send(route, "POST", headers, jsonrpc.encode(message), NOBODY)
                if response.status != 200:
                    response.close()
                    self._discovered.pop(route.live.member_id, None)
                    return False
                answer = await self._first_answer(response, message["id"])
            versions = envelope.small(answer.fields.get("supportedVersions"))
            is_modern = isinstance(versions, list) and mcp.MODERN_VERSION in versions
        except (ClientError, TimeoutError):
            known.probe_again_at = asyncio.get_running_loop().time() + PROBE_AGAIN_SECONDS
            return False
        self._remember(route.live.member_id, answer.result if is_modern else None)
        return is_modern

    def _remember(self, member_id: int, result: Any) -> None:
        """What a member that speaks both eras says of itself in the modern one. Its row has what the handshake says."""
        self._discovered.pop(member_id, None)
        if len(self._discovered) >= MAX_DISCOVERED:
            del self._discovered[next(iter(self._discovered))]
        with contextlib.suppress(ProtocolError):  # it is too large to be kept
            if result is not None:
                self._discovered[member_id] = envelope.small(result)

    async def discovered(self, member_id: int, route: Route | None, client: Client) -> dict[str, Any]:
        """The member's result of `server/discover`; empty where it has none of its own. `route` None: from memory."""
        if route is not None and not await self.is_modern(route, client):
            return {}
        return self._discovered.get(member_id, {})

    # Sessions -----------------------------------------------------------------------------------------------------

    async def conversation(self, route: Route, client: Client) -> Conversation:
        """The session with the member for this client, begun if there is none."""
        shared, has_sessions = self._of(route).shared, bool(route.live.client.session.id)
        if has_sessions and client.session is not None:
            return await self._kept(
                self._of_session.setdefault(client.session, {}), route.live.member_id, route, client
            )
        key = (*client.principal.owner, _declared(client) if has_sessions else _version_of(route, client))
        if key not in shared:
            self._make_room(shared, key)
        return await self._kept(shared, key, route, client)

    async def for_request(self, route: Route, client: Client) -> Conversation:
        """The same, ready for a client's request: the member may ask something in turn."""
        found = await self.conversation(route, client)
        found.used_at = asyncio.get_running_loop().time()
        is_clients = found.id is not None and found.owner != NOBODY  # the hall itself only asks for lists
        if is_clients and not found.is_heard and self.listen is not None:
            await self.listen(found, client.session)
        return found

    def _make_room(self, shared: dict[Any, asyncio.Future[Conversation]], key: tuple[Any, ...]) -> None:
        """Of too many sessions the oldest ends: one of the same client, who may declare what they like, first."""
        own = [one for one in shared if one[:-1] == key[:-1]]
        spare = own[: max(len(own) - MAX_SHARED_OF_CLIENT + 1, 0)]
        for one in spare or list(shared)[: max(len(shared) - MAX_SHARED + 1, 0)]:
            self._let_go(shared.pop(one))

    async def _kept(
        self, kept: dict[Any, asyncio.Future[Conversation]], key: Any, route: Route, client: Client
    ) -> Conversation:
        found = kept.get(key)
        if found is not None and found.done() and (found.cancelled() or found.exception() or _is_stale(found, route)):
            found = None
        if found is None:
            found = kept[key] = asyncio.ensure_future(self._begin(route, client))
        return found.result() if found.done() else await asyncio.shield(found)

    async def _begin(self, route: Route, client: Client) -> Conversation:
        own = route.live.client.session
        if not own.id:
            version = await self._agreed_version(route, client)
            return Conversation(route, version, None, client.principal.owner)
        version = client.session.version if client.session else own.version
        capabilities = client.capabilities if client.session else json.loads(_declared(client))
        params = {**mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, capabilities), "protocolVersion": version}
        beginning = Conversation(route, version, None, client.principal.owner)
        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT):
                begun = await self._shaken_hands(beginning, params)
        except TimeoutError as error:  # not the client's deadline, which is another
            raise RequestTimeoutError(INITIALIZE_TIMEOUT) from error
        if client.session and client.session.log_level:
            await self._call_quietly(begun, "logging/setLevel", {"level": client.session.log_level})
        return begun

    async def _agreed_version(self, route: Route, client: Client) -> str:
        """The newest version that a client of `asked` and a member without sessions both know.

        The hall's own handshake tells of one version alone, and without a session the member keeps nothing of another.
        """
        own, asked = route.live.client.session.version, _version_of(route, client)
        if asked == own:
            return own
        params = {**mcp.initialize_params(CLIENT_NAME, CLIENT_VERSION, {}), "protocolVersion": asked}
        try:
            async with asyncio.timeout(INITIALIZE_TIMEOUT):
                begun = await self._shaken_hands(Conversation(route, asked, None, client.principal.owner), params)
        except (ClientError, TimeoutError):
            return own  # it takes nothing else
        if begun.id:
            self.later(self._end(begun))
            return own
        return begun.version

    async def _shaken_hands(self, beginning: Conversation, params: dict[str, Any]) -> Conversation:
        message = jsonrpc.request(self.new_id(), "initialize", params)
        response = await self._post(beginning, message)
        if response.status != 200:
            raise await self._wire.no_answer(response, await self._wire.read(response))
        answer = await self._first_answer(response, message["id"])
        if (error := answer.remote_error()) is not None:
            raise error
        agreed = envelope.text(answer.fields.get("protocolVersion"))
        if agreed not in mcp.HANDSHAKE_VERSIONS:
            raise ProtocolError(f"answered initialize with protocol version {agreed[:40]!r}")
        session_id = response.header(mcp.SESSION_HEADER)
        begun = Conversation(beginning.route, agreed, session_id, beginning.owner)
        await self.tell(begun, jsonrpc.notification("notifications/initialized"))
        return begun

    async def _post(self, conversation: Conversation, message: dict[str, Any]) -> Response:
        body = envelope.encode(message)
        return await self._wire.send(conversation.route, "POST", conversation.headers, body, conversation.owner)

    async def _first_answer(self, response: Response, sent_id: Any) -> Message:
        """Of an answer in one piece, or on a stream that is not read further."""
        if response.content_type != mcp.EVENT_STREAM:
            return await self._wire.answer(response, sent_id)
        try:
            async with contextlib.aclosing(self._wire.events(response, mcp.EventStream())) as parts:
                async for data in parts:
                    message = await self._wire.message(data, response.owner) if data else None
                    if message is not None and message.is_response:
                        return envelope.answer_to(sent_id, [message])
        finally:
            response.close()
        raise ProtocolError(STREAM_ENDED)

    def forget(self, conversation: Conversation, client: Client) -> None:
        for held in (
            self._of(conversation.route).shared,
            self._of_session.get(client.session, {}) if client.session else {},
        ):
            for key, found in list(held.items()):
                if found.done() and not found.cancelled() and not found.exception() and found.result() is conversation:
                    del held[key]

    def say_goodbye(self, session: ClientSession) -> None:
        """The client's session ended: so do those with members that were begun for it."""
        for found in self._of_session.pop(session, {}).values():
            self._let_go(found)

    def begun(self, session: ClientSession) -> list[Conversation]:
        """The sessions with members that belong to the client's, and are there."""
        ready = (one for one in self._of_session.get(session, {}).values() if one.done() and not one.cancelled())
        return [one.result() for one in ready if not one.exception()]

    def _let_go(self, found: asyncio.Future[Conversation]) -> None:
        """Nobody uses it any more; one that is just being begun ends once it is."""

        def end(begun: asyncio.Future[Conversation]) -> None:
            if not begun.cancelled() and not begun.exception() and begun.result().id:
                self.later(self._end(begun.result()))

        found.add_done_callback(end)

    async def _end(self, conversation: Conversation) -> None:
        response = await self._wire.send(conversation.route, "DELETE", conversation.headers, None, conversation.owner)
        response.release()

    async def close(self, seconds: float) -> None:
        """What is being said in the background has so long."""
        if self._goodbyes:
            await asyncio.wait(self._goodbyes, timeout=seconds)
        left = list(self._goodbyes)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def later(self, work: Awaitable[None]) -> None:
        """In the background, within two seconds, and without anybody who would hear of a failure."""

        async def bounded() -> None:
            with contextlib.suppress(ClientError, TimeoutError):
                await asyncio.wait_for(work, GOODBYE_SECONDS)

        task = asyncio.ensure_future(bounded())
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    # What is no request -------------------------------------------------------------------------------------------

    async def open_stream(self, conversation: Conversation, last_event_id: str = "") -> Response:
        """A GET: what the member says unasked, or the rest of a stream. Raises HttpStatusError where there is none."""
        headers = {**conversation.headers, "Accept": mcp.EVENT_STREAM}
        if last_event_id:
            headers[mcp.LAST_EVENT_HEADER] = last_event_id
        response = await self._wire.send(conversation.route, "GET", headers, None, conversation.owner)
        if response.status != 200 or response.content_type != mcp.EVENT_STREAM:
            response.close()
            raise HttpStatusError(response.status)
        return response

    async def subscribe(self, conversation: Conversation, uri: str) -> None:
        """For a client whose era has no such request, or who asked another process: its answer is of no interest."""
        await self._call_quietly(conversation, "resources/subscribe", {"uri": uri})

    async def pass_on(self, route: Route, client: Client, message: dict[str, Any]) -> None:
        """A client's notification, where it means something to the member."""
        if not await self.is_modern(route, client):
            await self.tell(await self.conversation(route, client), message)

    async def set_level(self, session: ClientSession, level: str) -> None:
        """To the members that this session has been begun with; others are told when theirs is."""
        for conversation in self.begun(session):
            await self._call_quietly(conversation, "logging/setLevel", {"level": level})

    async def _call_quietly(self, conversation: Conversation, method: str, params: dict[str, Any]) -> None:
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                message = jsonrpc.request(self.new_id(), method, params)
                (await self._post(conversation, message)).release()

    async def is_over(self, conversation: Conversation) -> bool:
        """Whether the member says of this session, asked once more on a connection of its own, that there is none."""
        body = envelope.encode(jsonrpc.request(self.new_id(), "ping"))
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                route, headers = conversation.route, conversation.headers
                response = await self._wire.send(route, "POST", headers, body, conversation.owner, is_first=True)
        except (ClientError, TimeoutError):
            return False
        response.close()
        return response.status == 404

    async def tell_cancelled(self, conversation: Conversation, asked_id: Any, reason: str) -> None:
        params = {"requestId": asked_id, "reason": reason}
        await self.tell(conversation, jsonrpc.notification("notifications/cancelled", params))

    async def reply(self, conversation: Conversation, message: dict[str, Any]) -> None:
        with contextlib.suppress(ClientError, TimeoutError):
            await self.tell(conversation, message)

    async def tell(self, conversation: Conversation, message: dict[str, Any]) -> None:
        """A message without an answer."""
        async with asyncio.timeout(REQUEST_TIMEOUT):
            response = await self._post(conversation, message)
            if not 200 <= response.status < 300:
                raise await self._wire.no_answer(response, await self._wire.read(response))
            response.release()


def _declared(client: Client) -> str:
    """What a modern client can be asked; those who can be asked the same share a session."""
    return json.dumps({key: client.capabilities[key] for key in ASKABLE if key in client.capabilities}, sort_keys=True)


def _version_of(route: Route, client: Client) -> str:
    """The version to ask a member without sessions in, if it knows it."""
    return client.session.version if client.session else route.live.client.session.version


def _is_stale(found: asyncio.Future[Conversation], route: Route) -> bool:
    return found.result().route is not route
