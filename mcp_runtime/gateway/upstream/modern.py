"""Members of MCP 2026-07-28. It has no sessions: each request contains everything that is needed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from msgspec import Raw

from mcp_runtime.client.client import CLIENT_NAME, CLIENT_VERSION
from mcp_runtime.gateway import envelope, eras, tasks
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.messages import Answer, Client, ClientSession, Event, Question, Reply, Request, Stream
from mcp_runtime.gateway.upstream import suspended
from mcp_runtime.gateway.upstream.questions import is_of_tasks
from mcp_runtime.gateway.upstream.routes import STREAM_ENDED, Route, StreamEndedError, Upstream
from mcp_runtime.gateway.upstream.sessions import UpstreamSessions
from mcp_runtime.http1.client import Response
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import HttpStatusError, ProtocolError
from mcp_runtime.protocol.jsonrpc import object_of

MAX_ROUNDS = 10  # of questions that one call may ask


class ModernMembers:
    """Sends requests to modern members, for clients of both eras."""

    def __init__(self, upstream: Upstream, upstream_sessions: UpstreamSessions) -> None:
        self._upstream = upstream
        self._upstream_sessions = upstream_sessions

    async def ask(self, route: Route, request: Request) -> Reply:
        if request.method in eras.ONLY_WITH_SESSIONS:
            return Answer(envelope.encode(jsonrpc.result_response(request.id, {})))  # only for the gateway
        session, params = request.client.session, request.params
        if "requestState" in params and request.method in suspended.METHODS:
            params = suspended.unseal_state(request, await suspended.compute_fingerprint(self._upstream, request))
        if isinstance(answers := params.get("inputResponses"), dict) and request.method in suspended.METHODS:
            responses = {
                key: tasks.remove_related_task(answer) if isinstance(answer, dict) else answer
                for key, answer in answers.items()
            }
            params = {**params, "inputResponses": responses}
        status, reply = await self._post(route, request, params)
        if isinstance(reply, Stream):
            return reply if session is None else Stream(self._in_rounds(route, request, session, reply), inner=reply)
        if session is None:
            return Answer(await self._seal_state(reply, request), status)
        if not _needs_input(reply):
            return Answer(_for_handshake(reply, request))
        return Stream(self._in_rounds(route, request, session, reply))

    async def _post(self, route: Route, request: Request, params: dict[str, Any]) -> tuple[int, Message | Stream]:
        """Send the request. Return the HTTP status, and the answer or its stream."""
        client = request.client
        if not client.is_modern:
            meta = {**eras.meta_of({"params": params}), **mcp.modern_meta(CLIENT_NAME, CLIENT_VERSION, {})}
            # Sessions do not have the tasks of 2026-07-28.
            meta[f"{mcp.META}clientCapabilities"] = tasks.without_extension(client.capabilities)
            if client.log_level:
                meta[f"{mcp.META}logLevel"] = client.log_level
            params = {**params, "_meta": meta}
        headers = {**route.headers, mcp.VERSION_HEADER: mcp.MODERN_VERSION}
        headers |= mcp.modern_headers(request.method, params)
        if client.is_modern and request.knows_headers:
            headers |= request.parameter_headers  # the member validates them
        elif request.places:
            headers |= mcp.parameter_values(request.places, params.get("arguments") or {})
        sent_id = self._upstream_sessions.new_id()
        body = envelope.request(sent_id, request.method, params)
        response = await self._upstream.send(
            route, "POST", headers, body, client.principal.owner, request.begin_sending
        )
        if response.status == 200 and response.content_type == mcp.EVENT_STREAM:
            return 200, Stream(self._events(response, sent_id, request), response.close)
        return response.status, await self._upstream.answer(response, sent_id)

    async def _events(self, response: Response, sent_id: str, request: Request) -> AsyncGenerator[Event]:
        async with contextlib.aclosing(self._upstream.events(response, mcp.EventStream())) as parts:
            async for data in parts:
                message = await self._upstream.message(data, response.owner) if data else None
                if message is not None and message.is_response:
                    answer = envelope.answer_to(sent_id, [message])
                    if request.client.is_modern:
                        yield Event(await self._seal_state(answer, request), is_last=True)
                    else:
                        yield Event(envelope.encode(answer.response_to(request.id)), is_last=True)
                    return
                # A modern member sends no questions on a stream, so drop requests.
                if message is not None and not message.is_request and not is_of_tasks(message):
                    yield Event(data)
        raise StreamEndedError(STREAM_ENDED)

    async def _seal_state(self, answer: Message, request: Request) -> bytes:
        """Return a modern member's answer for a modern client. Only its requestState is sealed."""
        body = envelope.encode(answer.response_to(request.id))
        if request.method not in suspended.METHODS or b'"requestState"' not in body:
            return body
        fingerprint = await suspended.compute_fingerprint(self._upstream, request)
        return await self._upstream.read_in_thread(
            request.client.principal.owner, partial(suspended.seal_state, fingerprint), body
        )

    async def _in_rounds(
        self, route: Route, request: Request, session: ClientSession, reply: Message | Stream
    ) -> AsyncGenerator[Event]:
        """Ask a client with a session the questions of a modern member (26: basic/patterns/mrtr)."""
        for _ in range(MAX_ROUNDS):
            if isinstance(reply, Stream):
                last = b""
                async with contextlib.aclosing(reply):
                    async for event in reply.events:
                        if event.is_last:
                            last = event.data
                        else:
                            yield event
                reply = await self._upstream.message(last, request.client.principal.owner)
            if not _needs_input(reply):
                yield Event(_for_handshake(reply, request), is_last=True)
                return
            result = reply.fields
            answers: dict[str, Any] = {}
            for key, input_request in (await self._fields(result.get("inputRequests"), request)).items():
                if not request.takes_stream:
                    raise ProtocolError("asked for input, but the client accepts no stream for questions")
                question = await self._fields(input_request, request)
                method = envelope.text(question.get("method"))
                our_id = self._upstream_sessions.new_id()
                answer_future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
                now = asyncio.get_running_loop().time()
                session.questions[our_id] = Question(
                    route.live_member.member_id, now, partial(_set_result, answer_future)
                )
                request.deadline.pause()
                try:
                    yield Event(envelope.encode(jsonrpc.request(our_id, method, question.get("params"))))
                    answer = await answer_future
                finally:
                    session.questions.pop(our_id, None)
                    request.deadline.resume()
                if not isinstance(answer.get("result"), dict):
                    reason = object_of(answer.get("error")).get("message") or "no result"
                    raise ProtocolError(f"asked for input ({method[:100]}) and got none: {reason}")
                answers[key] = tasks.remove_related_task(answer["result"])
            params = {**request.params}
            params |= {"inputResponses": answers} if answers else {}
            params |= {"requestState": result["requestState"]} if "requestState" in result else {}
            _, reply = await self._post(route, request, params)
        raise ProtocolError(f"asked for input {MAX_ROUNDS} times for one call")

    async def _fields(self, value: Any, request: Request) -> dict[str, Any]:
        """Return the fields of a part that may be large."""
        if not isinstance(value, Raw):
            return envelope.fields(value)
        return await self._upstream.read_in_thread(request.client.principal.owner, envelope.fields, value)

    async def listen(self, route: Route, client: Client, subscriptions: dict[str, Any]) -> AsyncGenerator[Message]:
        """Send `subscriptions/listen` to a modern member. Yield its acknowledgement, then its notifications."""
        params = {
            "notifications": subscriptions,
            "_meta": {
                **mcp.modern_meta(CLIENT_NAME, CLIENT_VERSION, {}),
                f"{mcp.META}clientCapabilities": client.capabilities,
            },
        }
        listen_id = self._upstream_sessions.new_id()
        headers = {**route.headers, mcp.VERSION_HEADER: mcp.MODERN_VERSION}
        headers |= mcp.modern_headers("subscriptions/listen", params)
        body = envelope.request(listen_id, "subscriptions/listen", params)
        response = await self._upstream.send(route, "POST", headers, body, client.principal.owner)
        try:
            if response.status != 200 or response.content_type != mcp.EVENT_STREAM:
                raise HttpStatusError(response.status)
            events = self._upstream.events(response, mcp.EventStream(), member_id=route.live_member.member_id)
            async with contextlib.aclosing(events) as parts:
                async for data in parts:
                    message = await self._upstream.message(data, client.principal.owner) if data else None
                    del data  # as above
                    if message is not None and message.method is not None and not message.is_request:
                        yield message
                    del message
        finally:
            response.close()


def _for_handshake(answer: Message, request: Request) -> bytes:
    """Convert a modern member's answer for a client with a session."""
    return envelope.encode(eras.for_handshake(request.method, answer.opened_response_to(request.id)))


async def _set_result(future: asyncio.Future[dict[str, Any]], answer: dict[str, Any]) -> None:
    if not future.done():
        future.set_result(answer)


def _needs_input(answer: Message) -> bool:
    return answer.error is None and envelope.text(answer.fields.get("resultType")) == "input_required"
