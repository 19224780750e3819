"""The ways to members: who may be in one at a time, whole answers and events as bytes, and why one did not answer."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mcp_runtime import jsonrpc, protocol
from mcp_runtime.client import CLIENT_NAME, CLIENT_VERSION
from mcp_runtime.database import unit_of_work
from mcp_runtime.errors import ClientError, ConnectError, HttpStatusError, ProtocolError, RemoteError
from mcp_runtime.gateway.connections import Address, Connections, Response
from mcp_runtime.lifecycle import EXIT_GRACE, Lifecycle, LiveMember
from mcp_runtime.limits import Owner, Slots

LARGE_ID_SEARCH = 4_096


class Places:
    """So many requests may be in a member at a time; others wait. A place that becomes free goes to the principal that
    holds the fewest of them, and among its requests to the one that waits longest."""

    def __init__(self, count: int) -> None:
        self._slots = Slots(count)
        # Of principals that hold equally many, the one that was served longest ago comes first.
        self._waiting: dict[Owner, collections.deque[asyncio.Future[None]]] = {}

    async def take(self, owner: Owner) -> None:
        if owner not in self._waiting and self._slots.may_take(owner):
            self._slots.take(owner)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, collections.deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(owner)  # it was given in the same moment
            else:
                self._leave(owner, turn)
            raise

    def allow(self, count: int) -> None:
        """So many from now on. Where it is fewer, those who are in stay."""
        if count != self._slots.count:
            self._slots.count = count
            self._hand_on()

    def give_back(self, owner: Owner) -> None:
        self._slots.give_back(owner)
        self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting:
            may_take = [owner for owner in self._waiting if self._slots.may_take(owner)]
            if not may_take:
                return
            owner = min(may_take, key=self._slots.held_by)
            line = self._waiting.pop(owner)
            turn = line.popleft()
            if line:
                self._waiting[owner] = line  # behind the others
            if not turn.done():
                self._slots.take(owner)
                turn.set_result(None)

    def _leave(self, owner: Owner, turn: asyncio.Future[None]) -> None:
        line = self._waiting.get(owner)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._waiting[owner]


@dataclass(eq=False)
class Route:
    """The way to a member's process, for as long as that lives."""

    live: LiveMember
    places: Places
    address: Address = field(init=False)
    headers: dict[str, str] = field(init=False, repr=False)
    known: object = field(default=None, init=False, repr=False)  # of the member, by who speaks with it

    def __post_init__(self) -> None:
        self.address = Address.of(self.live.client.url)
        self.headers = {
            **self.live.client.headers.values,
            "Accept": f"{protocol.JSON}, {protocol.EVENT_STREAM}",
            "Accept-Encoding": "identity",
            "Content-Type": protocol.JSON,
            "User-Agent": f"{CLIENT_NAME}/{CLIENT_VERSION}",
        }


class Wire:
    """All connections to members. On the gateway's loop alone."""

    def __init__(self, lifecycle: Lifecycle, *, max_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._max_bytes = max_bytes
        self._routes: dict[int, Route] = {}
        # One for all: most of what rivals lose, they lose by making a client, a session or a TLS context per call.
        self._connections = Connections()

    def close(self) -> None:
        self._connections.close()

    def route_to(self, live: LiveMember, places: int | None = None) -> Route:
        """The way to the process; `places` None: who asks takes none."""
        route = self._routes.get(live.member_id)
        if route is None or route.live is not live:
            route = self._routes[live.member_id] = Route(live, Places(places or 0))
        elif places is not None:
            route.places.allow(places)
        return route

    async def send(
        self,
        route: Route,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None,
        on_write: Callable[[], None] | None = None,
    ) -> Response:
        secrets = route.live.client.headers.secrets
        return await self._connections.request(route.address, verb, headers, body, secrets, on_write)

    async def read(self, response: Response) -> bytes:
        return await response.whole(self._max_bytes)

    async def events(
        self, response: Response, events: protocol.EventStream, *, bounded: bool = True
    ) -> AsyncGenerator[bytes]:
        """The data of each event; empty for one that only says where it may be resumed, or when."""
        taken = 0
        told = (events.last_event_id, events.retry_ms)
        async for chunk in response.chunks():
            taken = taken + len(chunk) if bounded else len(chunk)
            if taken > self._max_bytes:
                raise ProtocolError(f"the answer is larger than {self._max_bytes:,} bytes")
            if events.held > self._max_bytes:
                raise ProtocolError(f"an event is larger than {self._max_bytes:,} bytes")
            for data in events.feed(chunk):
                told = (events.last_event_id, events.retry_ms)
                yield data
            if told != (events.last_event_id, events.retry_ms):
                told = (events.last_event_id, events.retry_ms)
                yield b""

    async def explained(self, live: LiveMember, error: ConnectError) -> ClientError:
        """A failed connection is often the first sign of an exit, which explains more; else the member is at fault."""
        if found := await self.exit_of(live, is_refusal=error.is_refusal):
            return found
        # A server that serves one at a time cannot take all who call: as long as others run in it, it lives.
        if error.is_refusal or live.calls + live.relayed < 2:
            work = partial(self._lifecycle.connection_failed, live, error)
            await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
        return error

    @staticmethod
    async def exit_of(live: LiveMember, *, is_refusal: bool = False) -> ConnectError | None:
        """What the exit of the member explains; None while it lives."""
        if not await asyncio.get_running_loop().run_in_executor(None, live.process.exited.wait, EXIT_GRACE):
            return None
        when = "before it took the call" if is_refusal else "during the call"
        return ConnectError(live.how_it_ended(when), is_refusal=is_refusal)


def decoded(data: bytes) -> dict[str, Any]:
    message = jsonrpc.decode(data)
    return message if isinstance(message, dict) else {}


def is_error(data: bytes) -> bool:
    try:
        return isinstance(object_of(json.loads(data)).get("error"), dict)
    except ValueError:
        return False


def response_in(value: Any, asked_id: Any) -> dict[str, Any]:
    """The response to `asked_id`. Raises ProtocolError where there is none."""
    for message in value if isinstance(value, list) else [value]:
        if isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message):
            is_anonymous_error = message.get("id") is None and "error" in message
            if message.get("id") == asked_id or is_anonymous_error:
                return message
    raise ProtocolError("the answer is not a JSON-RPC 2.0 response to what was asked")


def mentions(data: bytes, asked_id: Any) -> bool:
    """Whether a long answer carries the id at one of its ends, where serializers put it."""
    wanted = re.compile(rb'"id"\s*:\s*' + re.escape(json.dumps(asked_id).encode()) + rb"\s*[,}]")
    return bool(wanted.search(data[:LARGE_ID_SEARCH]) or wanted.search(data[-LARGE_ID_SEARCH:]))


def no_answer(response: Response, data: bytes) -> ClientError:
    if response.status != 200:
        with contextlib.suppress(ProtocolError):
            try:
                jsonrpc.result_of(jsonrpc.decode(data))
            except RemoteError as error:
                return error
        return HttpStatusError(response.status, jsonrpc.excerpt(data) if data else "")
    kind = response.content_type or "no content type"
    return ProtocolError(f"answered with {kind} instead of JSON: {jsonrpc.excerpt(data)}")


def object_of(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
