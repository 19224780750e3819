"""Answers requests to `/events`: access, parameters, and errors as REST has them (RFC 9457)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs

from mcp_runtime.gateway import eras
from mcp_runtime.gateway.auth import Principals
from mcp_runtime.gateway.events import snapshots
from mcp_runtime.gateway.events.feed import Feed, in_thread
from mcp_runtime.gateway.events.snapshots import CallState
from mcp_runtime.gateway.events.subscriber import CALLS, TOPICS, Position, Selection, Subscriber
from mcp_runtime.gateway.outbox import Outbox
from mcp_runtime.gateway.replies import STREAM_HEADERS
from mcp_runtime.gateway.streams.client_streams import TooManyStreamsError
from mcp_runtime.http1.server import Headers, HttpExchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import AccessError, TokenError
from mcp_runtime.rows import clock
from mcp_runtime.security import resources
from mcp_runtime.security.access import Principal

PATHS = ("/events", "/events/")
RETRY_MS = 2_000  # before a client connects again
MAX_CALL_DIGITS = 18
PARAMETERS = ("topics", "member", "call")


class EventsRefusal(Exception):
    """An answer with an error. `code` is a word for programs."""

    def __init__(self, status: int, code: str, detail: str, headers: Headers = ()) -> None:
        super().__init__(detail)
        self.status, self.code, self.headers = status, code, headers

    def reply(self, exchange: HttpExchange) -> None:
        body = {"title": HTTPStatus(self.status).phrase, "status": self.status, "detail": str(self), "code": self.code}
        exchange.reply(
            self.status, jsonrpc.encode(body), ((b"content-type", b"application/problem+json"), *self.headers)
        )


class EventsDoor:
    """Opens streams of events."""

    def __init__(self, principals: Principals, feed: Feed, is_stopping: Callable[[], bool]) -> None:
        self._principals = principals
        self._feed = feed
        self._is_stopping = is_stopping

    async def serve(self, exchange: HttpExchange) -> None:
        try:
            await self._serve(exchange)
        except EventsRefusal as refusal:
            refusal.reply(exchange)

    async def _serve(self, exchange: HttpExchange) -> None:
        authorization = exchange.headers.get(b"authorization")
        with _refusals_of_access():
            principal = await self._principals.principal(authorization)
            if not resources.covers(principal.resource, exchange.path):
                raise TokenError("This access token is for another address of the gateway.")
        exchange.owner = principal.owner
        if exchange.verb != "GET":
            raise EventsRefusal(405, "method_not_allowed", "Send GET for a stream of events.", [(b"allow", b"GET")])
        selection = _selection_of(exchange.query)
        if self._is_stopping():
            raise EventsRefusal(503, "unavailable", "The runtime is stopping; try again.", [(b"retry-after", b"2")])
        last_id = eras.text_of(exchange.headers, mcp.LAST_EVENT_HEADER)
        position = Position.parse(last_id) or Position.unknown() if last_id else None
        outbox = Outbox(principal.owner, self._feed.bytes, exchange.abort)
        subscriber = Subscriber(principal, authorization, selection, outbox, position.digest if position else None)
        try:
            with self._feed.opened(subscriber):  # without an await before it: see `_open`
                await self._open(exchange, subscriber, position)
        except TooManyStreamsError as error:
            text = "Too many open streams of events; close some."
            raise EventsRefusal(503, "too_many_streams", text, [(b"retry-after", b"10")]) from error

    async def _open(self, exchange: HttpExchange, subscriber: Subscriber, position: Position | None) -> None:
        """Send the events, after the last checks.

        The stream counts already, so that requests at the same time get no more than the limits, and a change of its
        rights reaches it. Its rights may have changed before that, while they were read.
        """
        with _refusals_of_access():
            await self._feed.renew_access(subscriber, self._principals.principal)
        since, call = await in_thread(partial(_require, subscriber.selection, subscriber.principal))
        if call is not None and call.is_finished:
            subscriber.send_calls([call])  # which ends the stream
            subscriber.flush(since)
        async with contextlib.aclosing(self._feed.events(subscriber, since, position)) as events:
            exchange.begin(200, STREAM_HEADERS)
            await exchange.write(b"retry: %d\n\n" % RETRY_MS)
            async for event in events:
                await exchange.write(event)
            exchange.end()


@contextlib.contextmanager
def _refusals_of_access() -> Iterator[None]:
    try:
        yield
    except AccessError as error:
        challenge = [(b"www-authenticate", b'Bearer realm="Guild Hall"')]
        raise EventsRefusal(401, "authentication_failed", str(error), challenge) from error


def _selection_of(query: str) -> Selection:
    """Read the query string. Raises EventsRefusal."""
    try:
        params = parse_qs(query, keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise EventsRefusal(400, "invalid", f"The query cannot be read: {error}.") from error
    if unknown := params.keys() - set(PARAMETERS):
        text = f"{min(unknown)[:100]}: Unknown parameter. The parameters are {', '.join(PARAMETERS)}."
        raise EventsRefusal(400, "invalid", f"{text} A token goes into the header Authorization.")
    topics = frozenset(params.get("topics", [",".join(TOPICS)])[-1].split(","))
    if unknown_topics := topics - set(TOPICS):
        text = f"topics: {min(unknown_topics)[:100]!r} is not a topic. The topics are {', '.join(TOPICS)}."
        raise EventsRefusal(400, "invalid", text)
    call = params.get("call", [""])[-1]
    if "call" in params and not (call.isascii() and call.isdigit() and len(call) <= MAX_CALL_DIGITS):
        raise EventsRefusal(400, "invalid", "call: Must be the id of a call.")
    topics = frozenset([CALLS]) if call else topics
    return Selection(topics, params.get("member", [""])[-1], int(call) if call else None)


def _require(selection: Selection, principal: Principal) -> tuple[datetime, CallState | None]:
    """The time of the rows, and the call of the selection.

    Raises EventsRefusal unless the member and the call exist for this principal.
    """
    now = clock.now()
    if selection.member and not (principal.reaches(selection.member) and snapshots.has_member(selection.member)):
        raise EventsRefusal(404, "unknown_member", f"There is no member {selection.member[:100]!r}.")
    if selection.call is None:
        return now, None
    call = snapshots.call_of(selection.call)
    is_readable = call and principal.may_read_call(call.member, call.requester_id, call.token_id)
    if call is None or not is_readable or not selection.has_call(call):
        raise EventsRefusal(404, "not_found", f"There is no call {selection.call}.")
    return now, call
