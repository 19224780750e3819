"""Send the response to one request as JSON or as a stream, or an error if there is no response."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mcp_runtime.gateway import eras, failures
from mcp_runtime.gateway.awaited_sign_ins import AwaitedSignIns
from mcp_runtime.gateway.catalog import Place
from mcp_runtime.gateway.endpoints.routing import Endpoints
from mcp_runtime.gateway.forwarding import Forwarding, refuse_forwarded
from mcp_runtime.gateway.messages import Answer, ClientSession, Event, Request, Stream
from mcp_runtime.gateway.peers import ElsewhereError
from mcp_runtime.gateway.posts import Post
from mcp_runtime.gateway.replies import JSON_HEADERS, STREAM_HEADERS, encoded
from mcp_runtime.gateway.streams.resumable import ResumableStreams, TakenOverError
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ClientError, InputNeededError, MethodError, PageNeededError, ProtocolError
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR


class Responder:
    """Answers requests over HTTP. If the client disconnects, its request is cancelled, unless it can be resumed."""

    def __init__(
        self,
        endpoints: Endpoints,
        resumable: ResumableStreams,
        forwarding: Forwarding,
        awaited_sign_ins: AwaitedSignIns,
    ) -> None:
        self._endpoints = endpoints
        self._resumable = resumable
        self._forwarding = forwarding
        self._awaited_sign_ins = awaited_sign_ins

    @contextlib.contextmanager
    def running(self, session: ClientSession, request: Request) -> Iterator[None]:
        """Let the client cancel the request by its id, also later while its stream waits to be resumed."""
        session.running[request.id] = request
        try:
            yield
        finally:
            if session.running.get(request.id) is request and not request.is_resumable:
                del session.running[request.id]

    async def reply(self, post: Post, request: Request) -> None:
        """Answer one request, here or by the node that owns its member. Cancel it if the client disconnects."""
        params = request.params
        while True:
            try:
                await self._reply(post, request)
                return
            except ElsewhereError as error:
                if post.place.is_forwarded:
                    raise refuse_forwarded(error) from error
                try:
                    if await self._forwarding.reply(post, request, error):
                        return
                except MethodError as refusal:
                    await Outgoing(post.exchange).end(_error_reply(request, refusal))
                    return
            request.params = params
            request.deadline.renew()

    async def _reply(self, post: Post, request: Request) -> None:
        out, answer = Outgoing(post.exchange), None
        if not post.takes_stream:
            with post.exchange:
                answer = await self._final(post.place, request)
            await out.end(answer)
            return
        try:
            with post.exchange:
                async with request.deadline.timeout:
                    reply = await self._endpoints.answer(post.place, request)
                    answer = await self._forward(reply, request, out) if isinstance(reply, Stream) else reply
        except (MethodError, TimeoutError, ClientError) as error:
            answer = self._fail(request, error)
        await out.end(answer)

    async def final(self, post: Post, request: Request, message: Any) -> Answer:
        """Return only the response to one message of a batch."""
        params = request.params
        while True:
            try:
                return await self._final(post.place, request)
            except ElsewhereError as error:
                try:
                    answer = await self._forwarding.answer(post, request, message, error)
                except MethodError as refusal:
                    return _error_reply(request, refusal)
                if answer is not None:
                    return answer
            request.params = params
            request.deadline.renew()

    async def _final(self, place: Place, request: Request) -> Answer:
        """Return only the response, for a client that does not accept a stream."""
        request.takes_stream = False
        try:
            async with request.deadline.timeout:
                reply = await self._endpoints.answer(place, request)
                if isinstance(reply, Answer):
                    return reply
                async with contextlib.aclosing(reply):
                    async for event in reply.events:
                        if event.is_last:
                            return Answer(event.data, event.status)
                raise ProtocolError("the stream ended without the answer")
        except (MethodError, TimeoutError, ClientError) as error:
            return self._fail(request, error)

    async def resume(self, session: ClientSession, event_id: str, exchange: HttpExchange) -> bool:
        """Send the rest of a reply to a client that lost its stream after that event.

        Return False if no stream with that event waits to be resumed.
        """
        resumable = await self._resumable.take(session, event_id)
        if resumable is None:
            return False
        request, stream = resumable
        with self.running(session, request):
            await self._resume(request, stream, event_id, exchange)
        return True

    def give_up(self, request: Request) -> None:
        """Cancel a request whose stream waits to be resumed."""
        self._resumable.give_up(request)

    async def _resume(self, request: Request, stream: Stream, event_id: str, exchange: HttpExchange) -> None:
        out = Outgoing(exchange)
        try:
            async with request.deadline.renew():
                stream.go_on(event_id)
                answer = await self._forward(stream, request, out, starts_at_once=True)
        except (MethodError, TimeoutError, ClientError) as error:
            answer = self._fail(request, error)
        await out.end(answer)

    def _fail(self, request: Request, error: MethodError | TimeoutError | ClientError) -> Answer:
        """Return the error for the client, who may be asked to let its user sign in first."""
        if isinstance(error, PageNeededError) and request.client.session is not None:
            self._awaited_sign_ins.note(request.client.session, error)
        return _error_reply(request, error)

    async def _forward(
        self, stream: Stream, request: Request, out: Outgoing, *, starts_at_once: bool = False
    ) -> Answer | None:
        """Forward the events of a stream.

        Return the answer if no event came before it. Return None if it was sent, or the stream waits to be resumed.
        """
        with contextlib.suppress(TakenOverError):
            async with self._resumable.reading(request, stream):
                if starts_at_once:
                    out.start()
                async for event in stream.events:
                    if event.is_last and not event.event_id and not out.is_started:
                        return Answer(event.data, event.status)
                    await out.put(event)
        return None


class Outgoing:
    """A reply that becomes a stream with its first event."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange

    @property
    def is_started(self) -> bool:
        return self._exchange.has_begun

    def start(self) -> None:
        if not self._exchange.has_begun:
            self._exchange.begin(200, STREAM_HEADERS)

    async def put(self, event: Event) -> None:
        self.start()
        await self._exchange.write(encoded(event))

    async def end(self, answer: Answer | None) -> None:
        """End the reply, with `answer` if there is one. Without it the stream is complete, or may be resumed."""
        if answer is not None and not self._exchange.has_begun:
            self._exchange.reply(answer.status, answer.body, JSON_HEADERS)
            return
        self.start()
        if answer is not None:
            await self._exchange.write(encoded(Event(answer.body)))
        self._exchange.end()


def _error_reply(request: Request, error: MethodError | TimeoutError | ClientError) -> Answer:
    if isinstance(error, TimeoutError):
        error = failures.deadline_error(request)
    if isinstance(error, InputNeededError):
        result = {"resultType": "input_required", "inputRequests": error.requests}
        return Answer(jsonrpc.encode(jsonrpc.result_response(request.id, result)))
    if isinstance(error, MethodError):
        code, text, data = error.code, str(error), error.data
    else:
        code, text, data = INTERNAL_ERROR, f"{request.deadline.about or request.method}: {error}", None
    message = jsonrpc.error_response(request.id, code, text, data)
    if not request.client.is_modern:
        return Answer(jsonrpc.encode(message))
    return Answer(jsonrpc.encode(message), eras.http_status(code))
