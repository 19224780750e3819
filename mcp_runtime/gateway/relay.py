"""One request to one member, and everything that comes back.

A request goes out under an id of the gateway's own, and its answer goes on under the caller's: only the parts in
between pass as the bytes that they are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Raw

from mcp_runtime import jsonrpc, protocol
from mcp_runtime.client import CLIENT_NAME, CLIENT_VERSION
from mcp_runtime.errors import ConnectError, HttpStatusError, ProtocolError
from mcp_runtime.gateway import envelope, eras, held, tasks
from mcp_runtime.gateway.connections import Response
from mcp_runtime.gateway.conversations import Conversation, Conversations
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.held import Held, Source, StillWaitingError
from mcp_runtime.gateway.messages import QUESTION_SECONDS, Answer, Event, Reply, Request, Stream
from mcp_runtime.gateway.sessions import Caller, CallerSession, Question
from mcp_runtime.gateway.wire import STREAM_ENDED, Route, Wire, object_of, the_answer
from mcp_runtime.lifecycle import LiveMember

MAX_ROUNDS = 10  # of input that one call may ask for
MAX_RENAMED = 100  # ids of ours that the caller of a session would not know
# Bytes of such a request other than a call: what its answer is rewritten by has its URI, or the id of its task.
MAX_NOTED = 4_096
MAX_QUESTIONS = 100  # of one member in one session, that its client has not answered yet
RESUMES = 20
# What a modern caller may be told beside the answer.
PASSED_TO_MODERN = ("notifications/progress", "notifications/message")


class _SessionOverError(HttpStatusError):
    """The member does not know the session any more."""


class _StreamEndedError(ProtocolError):
    """It ended in good order, but without the answer."""


class Relay:
    """Asks members for callers."""

    def __init__(self, wire: Wire, conversations: Conversations) -> None:
        self._wire = wire
        self._with = conversations
        self._held = Held(self._give_up)

    async def ask(self, route: Route, request: Request) -> Reply:
        """The member's answer to `request`. Raises ClientError for what is none."""
        try:
            reply = await self._asked_once(route, request)
        except ConnectError as error:
            raise await self._wire.explained(route.live, error) from error
        if isinstance(reply, Stream):
            reply.events = self._explaining(reply.events, route.live)
        return reply

    async def _explaining(self, events: AsyncGenerator[Event], live: LiveMember) -> AsyncGenerator[Event]:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event
        except _StreamEndedError as error:
            raise await self._wire.exit_of(live) or error from error
        except ConnectError as error:
            raise await self._wire.explained(live, error) from error

    async def _asked_once(self, route: Route, request: Request) -> Reply:
        if await self._with.is_modern(route, request.caller):
            return await self._ask_modern(route, request)
        if request.caller.is_modern and request.places:
            arguments = object_of(request.params.get("arguments"))
            eras.check_parameter_headers(request.places, arguments, request.caller_headers)
        if request.caller.is_modern and "requestState" in request.params:
            return await self._answered(request)
        conversation = await self._with.for_request(route, request.caller)
        if conversation.id is None and request.method == "resources/unsubscribe":
            # The member takes all callers for one: others may have subscribed to the same.
            return Answer(jsonrpc.encode(jsonrpc.result_response(request.id, {})))
        try:
            return await self._ask_in(conversation, request)
        except _SessionOverError:
            # Forgotten, so it was not served: a member restarted, or cleaned up.
            self._with.forget(conversation, request.caller)
            request.not_sent = "it forgot the session, and did not begin another one"
            return await self._ask_in(await self._with.for_request(route, request.caller), request)

    # Members with sessions ----------------------------------------------------------------------------------------

    async def _ask_in(self, conversation: Conversation, request: Request) -> Reply:
        """In a session of a handshake version."""
        sent_id, params = self._with.new_id(), request.params
        if request.caller.is_modern and "_meta" in params:
            params = {**params, "_meta": eras.without_hop(eras.meta_of({"params": params}))}
        body = envelope.encode(jsonrpc.request(sent_id, request.method, params))
        request.tell_cancelled = partial(self._with.tell_cancelled, conversation, sent_id)
        try:
            route, headers = conversation.route, conversation.headers
            response = await self._wire.send(route, "POST", headers, body, conversation.owner, request.begin_sending)
            if response.status == 200 and response.content_type == protocol.EVENT_STREAM:
                return self._stream(self._source(response, conversation, sent_id), request)
            if response.status == 404 and conversation.id:
                answer = await self._error_under_404(response, conversation, sent_id)
            else:
                answer = await self._wire.answer(response, sent_id)
        except asyncio.CancelledError:
            # The deadline, or the caller went away: either way nobody waits for it any more.
            if not request.deadline.is_cancelled:
                self._with.later(self._with.tell_cancelled(conversation, sent_id, "nobody waits for it any more"))
            raise
        return self._restated(answer, request)

    async def _error_under_404(self, response: Response, conversation: Conversation, sent_id: str) -> Message:
        """The member's error to what was sent. Raises _SessionOverError, and HttpStatusError for what is neither."""
        data = await self._wire.read(response)
        response.close()
        error = await self._wire.error_to(response, data, sent_id)
        # Some say so under the id of the request that the session is over.
        if (error is None and response.is_first) or await self._with.is_over(conversation):
            raise _SessionOverError(404, jsonrpc.excerpt(data))
        if error is not None:
            return error
        # It may be a late answer to an earlier request on that connection, and then this one runs.
        self._with.later(self._with.tell_cancelled(conversation, sent_id, "its answer cannot be told from another's"))
        raise HttpStatusError(404, jsonrpc.excerpt(data))

    def _stream(self, source: Source, request: Request) -> Stream:
        """A stream of a member with sessions, for a caller of either era."""
        events = self._events_for_modern if request.caller.is_modern else self._events
        rest = None if request.caller.is_modern else _Rest(self, source, request)
        return Stream(events(source, request), partial(self._let_go, source, request), rest=rest)

    def _let_go(self, source: Source, request: Request) -> None:
        """The caller's side is over. What the member still owes is not wanted, unless the caller comes back for it."""
        for question in request.questions:
            if request.caller.session is not None:
                request.caller.session.questions.pop(question, None)
        if source.is_held:
            return
        source.response.close()
        if not source.is_over and not request.deadline.is_cancelled:
            told = self._with.tell_cancelled(source.conversation, source.sent_id, "nobody waits for it any more")
            self._with.later(told)

    @staticmethod
    def _restated(answer: Message, request: Request) -> Answer:
        """The answer of a member with sessions, under its caller's id and in its caller's era."""
        if not request.caller.is_modern:
            return Answer(envelope.encode(answer.response_to(request.id)))
        response = eras.for_modern(request.method, request.params, answer.opened_response_to(request.id))
        code = eras.error_code(response)
        return Answer(envelope.encode(response), eras.http_status(code) if code else 200)

    def _source(self, response: Response, conversation: Conversation, sent_id: Any) -> Source:
        events = protocol.EventStream()
        return Source(conversation, sent_id, response, events, self._wire.events(response, events))

    async def _events(self, source: Source, request: Request) -> AsyncGenerator[Event]:
        """For a caller with a session, who resumes a stream that ends early itself: event ids are the member's own."""
        prefix, events = f"{source.conversation.route.live.name}/", source.events
        retry_ms: int | None = None
        async with contextlib.aclosing(source.parts) as parts:
            async for data in parts:
                event_id = prefix + events.last_event_id if events.last_event_id else ""
                if event_id:
                    self._note(event_id, source, request)
                message = await self._wire.message(data, source.conversation.owner) if data else None
                if message is not None and source.is_answered_by(message):
                    yield Event(self._restated(message, request).body, event_id, is_last=True)
                    return
                passed = await self._taken_in(data, message, source.conversation, request) if message else b""
                if passed is not None:
                    yield Event(passed, event_id, events.retry_ms if events.retry_ms != retry_ms else None)
                    retry_ms = events.retry_ms
        if not events.last_event_id:
            raise _StreamEndedError(STREAM_ENDED)

    @staticmethod
    def _note(event_id: str, source: Source, request: Request) -> None:
        """The caller may come back with it, and knows its own id alone."""
        if not source.told or source.told[-1] != event_id:
            source.told.append(event_id)
        session, is_light = request.caller.session, request.method == "tools/call" or request.size <= MAX_NOTED
        if session is not None and request.takes_stream and is_light:
            sent = source.conversation.route.live.member_id, source.sent_id
            session.renamed[sent] = request.id, request.rewriting
            while len(session.renamed) > MAX_RENAMED:
                del session.renamed[next(iter(session.renamed))]

    def behind(self, event_id: str, source: Source, request: Request) -> AsyncGenerator[Event]:
        """What comes behind that event of a stream whose caller lost it."""
        return self._explaining(self._events_behind(event_id, source, request), source.conversation.route.live)

    async def _events_behind(self, event_id: str, source: Source, request: Request) -> AsyncGenerator[Event]:
        source.events.last_event_id = event_id.partition("/")[2]
        await self._reopen(source)
        async with contextlib.aclosing(self._events(source, request)) as events:
            async for event in events:
                yield event

    async def _events_for_modern(self, source: Source, request: Request) -> AsyncGenerator[Event]:
        """For a caller without one: what ends early is gone on with here, and questions end the round."""
        for _ in range(RESUMES):
            try:
                async for data in source.parts:
                    message = await self._wire.message(data, source.conversation.owner) if data else None
                    if message is not None and source.is_answered_by(message):
                        answer = self._restated(message, request)
                        yield Event(answer.body, is_last=True, status=answer.status)
                        return
                    if message is not None and self._may_hold(message, request):
                        about = await self._about(request)
                        yield Event(self._held.hold(source, request, about, message, len(data)), is_last=True)
                        return
                    passed = await self._taken_in(data, message, source.conversation, request) if message else None
                    if passed is not None:
                        yield Event(passed)
            finally:
                if not source.is_held:
                    await source.parts.aclose()
            if not source.events.last_event_id:
                raise _StreamEndedError(STREAM_ENDED)
            source.response.close()
            await self._go_on(source)
        raise ProtocolError(f"{STREAM_ENDED}, {RESUMES} times")

    @staticmethod
    def _may_hold(message: Message, request: Request) -> bool:
        needed = held.CAPABILITIES.get(str(message.method))
        return message.is_request and needed is not None and needed in request.caller.capabilities

    async def _go_on(self, source: Source) -> None:
        """The rest of a stream that ended early, for a caller who cannot resume it (25-11: basic/transports)."""
        retry_ms = source.events.retry_ms
        await asyncio.sleep(0.5 if retry_ms is None else max(retry_ms / 1000, 0.1))
        await self._reopen(source)

    async def _reopen(self, source: Source) -> None:
        source.response = await self._with.open_stream(source.conversation, source.events.last_event_id)
        source.events.go_on()
        source.parts = self._wire.events(source.response, source.events)

    async def _answered(self, request: Request) -> Reply:
        """A modern caller's next round with a member that has sessions: its answers, and what the member says then."""
        try:
            source, answers = self._held.take(request, await self._about(request))
            request.begin_sending()  # it runs since the first request
        except StillWaitingError as waiting:
            return Answer(waiting.response)
        try:
            for question, result in answers:
                await self._with.reply(source.conversation, jsonrpc.result_response(question, result))
        except BaseException:
            self._give_up(source)
            raise
        return self._stream(source, request)

    async def _taken_in(
        self, data: bytes, message: Message, conversation: Conversation, request: Request
    ) -> bytes | None:
        """What of it the caller is told: questions under an id of ours, notifications as they are."""
        if message.is_request:
            session = request.caller.session
            if session is None or not request.takes_stream or not _may_ask(session, message):
                await self._decline(conversation, message)
                return None
            return await self._asked(message, conversation, session, request)
        if _is_of_tasks(message):
            return None
        if request.caller.is_modern:
            if message.method not in PASSED_TO_MODERN:
                return None
            if message.method == "notifications/message":
                level = envelope.text(message.fields.get("level"))
                return data if eras.wants_log(request.caller.log_level, level) else None
        return data

    async def _asked(
        self, message: Message, conversation: Conversation, session: CallerSession, request: Request | None
    ) -> bytes | None:
        """A member's question, as the caller gets it; the answer comes with a POST of its own, see `Question`.

        None where too many wait for an answer already, which the member is told.
        """
        live, now = conversation.route.live, asyncio.get_running_loop().time()
        # Members ask for a task on either stream while its result is waited for.
        task = tasks.about(message, [one.task for one in session.running.values()])
        if not self._has_room_for_question(session, live.member_id, now):
            text = f"{MAX_QUESTIONS} questions wait for an answer already"
            await self._with.reply(conversation, jsonrpc.error_response(message.id, jsonrpc.INTERNAL_ERROR, text))
            return None
        our_id, member_id = self._with.new_id(), message.id  # not the message, which may have megabytes

        async def answer(reply: dict[str, Any]) -> None:
            if request is not None:
                request.deadline.resume()
            await self._with.reply(conversation, {**tasks.restored(task, reply), "id": member_id})

        session.questions[our_id] = Question(live.member_id, now, answer)
        if request is not None:
            request.questions.append(our_id)
            request.deadline.pause()
        passed = envelope.encode(message.request_as(our_id))
        # What is large is not read on the loop. It keeps the member's own id, which is good for nothing here.
        return passed if task is None or len(passed) > envelope.MAX_SMALL else tasks.renamed(task, passed)

    def _has_room_for_question(self, session: CallerSession, member_id: int, now: float) -> bool:
        """Those that nobody answered for as long as a call would wait make room: one of no call has no deadline."""
        own = {our_id: one for our_id, one in session.questions.items() if one.member_id == member_id}
        if len(own) < MAX_QUESTIONS:
            return True
        over = [our_id for our_id, one in own.items() if now - one.asked_at > QUESTION_SECONDS]
        for our_id in over:
            told = jsonrpc.error_response(None, jsonrpc.INTERNAL_ERROR, "nobody answered")
            self._with.later(session.questions.pop(our_id).answer(told))
        return bool(over)

    # Modern members -----------------------------------------------------------------------------------------------

    async def _ask_modern(self, route: Route, request: Request) -> Reply:
        if request.method in eras.REMOVED:
            return Answer(envelope.encode(jsonrpc.result_response(request.id, {})))  # the gateway's own business
        session, params = request.caller.session, request.params
        if "requestState" in params and request.method in held.METHODS:
            params = held.unsealed(request, await self._about(request))
        if isinstance(answers := params.get("inputResponses"), dict) and request.method in held.METHODS:
            unrelated = {key: tasks.unrelated(one) if isinstance(one, dict) else one for key, one in answers.items()}
            params = {**params, "inputResponses": unrelated}
        status, reply = await self._post_modern(route, request, params)
        if isinstance(reply, Stream):
            return reply if session is None else Stream(self._in_rounds(route, request, session, reply), inner=reply)
        if session is None:
            return Answer(await self._sealed(reply, request), status)
        if not _wants_input(reply):
            return Answer(_for_handshake(reply, request))
        return Stream(self._in_rounds(route, request, session, reply))

    async def _post_modern(
        self, route: Route, request: Request, params: dict[str, Any]
    ) -> tuple[int, Message | Stream]:
        """The HTTP status of the reply, and the answer or a stream of it."""
        caller = request.caller
        if not caller.is_modern:
            meta = {**eras.meta_of({"params": params}), **protocol.modern_meta(CLIENT_NAME, CLIENT_VERSION, {})}
            # A session knows no tasks of 2026-07-28.
            meta[f"{protocol.META}clientCapabilities"] = tasks.without_extension(caller.capabilities)
            if caller.log_level:
                meta[f"{protocol.META}logLevel"] = caller.log_level
            params = {**params, "_meta": meta}
        headers = {**route.headers, protocol.VERSION_HEADER: protocol.MODERN_VERSION}
        headers |= protocol.modern_headers(request.method, params)
        if caller.is_modern:
            headers |= request.parameter_headers  # the member judges them
        elif request.places:
            headers |= protocol.parameter_values(request.places, params.get("arguments") or {})
        sent_id = self._with.new_id()
        body = envelope.encode(jsonrpc.request(sent_id, request.method, params))
        response = await self._wire.send(route, "POST", headers, body, caller.principal.owner, request.begin_sending)
        if response.status == 200 and response.content_type == protocol.EVENT_STREAM:
            return 200, Stream(self._modern_events(response, sent_id, request), response.close)
        return response.status, await self._wire.answer(response, sent_id)

    async def _modern_events(self, response: Response, sent_id: str, request: Request) -> AsyncGenerator[Event]:
        async with contextlib.aclosing(self._wire.events(response, protocol.EventStream())) as parts:
            async for data in parts:
                message = await self._wire.message(data, response.owner) if data else None
                if message is not None and message.is_response:
                    answer = the_answer([message], sent_id)
                    if request.caller.is_modern:
                        yield Event(await self._sealed(answer, request), is_last=True)
                    else:
                        yield Event(envelope.encode(answer.response_to(request.id)), is_last=True)
                    return
                # It asks nothing on a stream.
                if message is not None and not message.is_request and not _is_of_tasks(message):
                    yield Event(data)
        raise _StreamEndedError(STREAM_ENDED)

    async def _sealed(self, answer: Message, request: Request) -> bytes:
        """A modern member's answer for a modern caller: as it is, but for a state that the caller is to bring back."""
        body = envelope.encode(answer.response_to(request.id))
        if request.method not in held.METHODS or b'"requestState"' not in body:
            return body
        about = await self._about(request)
        return await self._wire.in_thread(request.caller.principal.owner, partial(held.sealed, about), body)

    async def _about(self, request: Request) -> held.About:
        return await self._wire.aside(request.caller.principal.owner, partial(held.about, request), request.size)

    async def _in_rounds(
        self, route: Route, request: Request, session: CallerSession, reply: Message | Stream
    ) -> AsyncGenerator[Event]:
        """A modern member that asks for input, for a caller who answers questions (26: basic/patterns/mrtr)."""
        for _ in range(MAX_ROUNDS):
            if isinstance(reply, Stream):
                last = b""
                async with contextlib.aclosing(reply):
                    async for event in reply.events:
                        if event.is_last:
                            last = event.data
                        else:
                            yield event
                reply = await self._wire.message(last, request.caller.principal.owner)
            if not _wants_input(reply):
                yield Event(_for_handshake(reply, request), is_last=True)
                return
            result = reply.fields
            answers: dict[str, Any] = {}
            for key, asked in (await self._fields(result.get("inputRequests"), request)).items():
                if not request.takes_stream:
                    raise ProtocolError("asked for input, and the caller takes no stream to be asked on")
                question = await self._fields(asked, request)
                method = envelope.text(question.get("method"))
                our_id = self._with.new_id()
                told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
                now = asyncio.get_running_loop().time()
                session.questions[our_id] = Question(route.live.member_id, now, partial(_settle, told))
                request.deadline.pause()
                try:
                    yield Event(envelope.encode(jsonrpc.request(our_id, method, question.get("params"))))
                    answer = await told
                finally:
                    session.questions.pop(our_id, None)
                    request.deadline.resume()
                if not isinstance(answer.get("result"), dict):
                    said = object_of(answer.get("error")).get("message") or "no result"
                    raise ProtocolError(f"asked for input ({method[:100]}) that it was not given: {said}")
                answers[key] = tasks.unrelated(answer["result"])
            more = {**request.params}
            more |= {"inputResponses": answers} if answers else {}
            more |= {"requestState": result["requestState"]} if "requestState" in result else {}
            _, reply = await self._post_modern(route, request, more)
        raise ProtocolError(f"asked for input {MAX_ROUNDS} times for one call")

    async def _fields(self, value: Any, request: Request) -> dict[str, Any]:
        """Of a part that may be large."""
        if not isinstance(value, Raw):
            return envelope.fields(value)
        return await self._wire.in_thread(request.caller.principal.owner, envelope.fields, value)

    # What comes unasked -------------------------------------------------------------------------------------------

    async def hear(
        self,
        response: Response,
        conversation: Conversation,
        session: CallerSession | None,
        has_reader: Callable[[], bool] = lambda: True,
    ) -> AsyncGenerator[Event]:
        """What comes on such a stream, as the caller gets it. A question is declined at once if nobody can be asked."""
        live, events = conversation.route.live, protocol.EventStream()
        try:
            async with contextlib.aclosing(self._wire.events(response, events, member_id=live.member_id)) as parts:
                async for data in parts:
                    event_id = f"{live.name}/{events.last_event_id}" if events.last_event_id else ""
                    passed = await self._heard(data, conversation, session, has_reader) if data else data
                    del data  # it may have megabytes, and the next one may come in an hour
                    if passed is not None:
                        yield Event(passed, event_id, events.retry_ms)
                    del passed
        finally:
            response.close()

    async def _heard(
        self,
        data: bytes,
        conversation: Conversation,
        session: CallerSession | None,
        has_reader: Callable[[], bool],
    ) -> bytes | None:
        """What the caller gets of it; None: nothing."""
        try:
            message = await self._wire.message(data, conversation.owner)
        except ProtocolError:
            return None  # one that nobody can read costs nobody the others
        if message.is_request:
            may_ask = session is not None and has_reader() and _may_ask(session, message)
            if session is None or not may_ask or conversation.id is None:  # without one: about whose call?
                await self._decline(conversation, message)
                return None
            return await self._asked(message, conversation, session, None)
        if message.is_response:
            sent = conversation.route.live.member_id, message.id
            if session is None or sent not in session.renamed:
                return None  # an answer that nobody here waits for
            request_id, rewriting = session.renamed[sent]
            answer = envelope.encode(message.response_to(request_id))
            return answer if rewriting is None else await self._wire.in_thread(conversation.owner, rewriting, answer)
        return None if _is_of_tasks(message) else data

    async def _decline(self, conversation: Conversation, message: Message) -> None:
        """Answer a member's question in the place of a caller who cannot."""
        if message.method == "ping":
            reply: dict[str, Any] = jsonrpc.result_response(message.id, {})
        else:
            text = f"{str(message.method)[:100]} is not offered here"
            reply = jsonrpc.error_response(message.id, jsonrpc.METHOD_NOT_FOUND, text)
        await self._with.reply(conversation, reply)

    async def listen(self, route: Route, caller: Caller, wanted: dict[str, Any]) -> AsyncGenerator[Message]:
        """`subscriptions/listen` with a modern member: its notifications, the acknowledgement first."""
        params = {
            "notifications": wanted,
            "_meta": {
                **protocol.modern_meta(CLIENT_NAME, CLIENT_VERSION, {}),
                f"{protocol.META}clientCapabilities": caller.capabilities,
            },
        }
        listen_id = self._with.new_id()
        headers = {**route.headers, protocol.VERSION_HEADER: protocol.MODERN_VERSION}
        headers |= protocol.modern_headers("subscriptions/listen", params)
        body = envelope.encode(jsonrpc.request(listen_id, "subscriptions/listen", params))
        response = await self._wire.send(route, "POST", headers, body, caller.principal.owner)
        try:
            if response.status != 200 or response.content_type != protocol.EVENT_STREAM:
                raise HttpStatusError(response.status)
            events = self._wire.events(response, protocol.EventStream(), member_id=route.live.member_id)
            async with contextlib.aclosing(events) as parts:
                async for data in parts:
                    message = await self._wire.message(data, caller.principal.owner) if data else None
                    del data  # as above
                    if message is not None and message.method is not None and not message.is_request:
                        yield message
                    del message
        finally:
            response.close()

    def _give_up(self, source: Source) -> None:
        """A caller did not come back with its answers, or not for long enough."""
        source.response.close()
        self._with.later(self._with.tell_cancelled(source.conversation, source.sent_id, "the caller did not answer"))


@dataclass(frozen=True, slots=True)
class _Rest:
    """Of a stream of a member with sessions, for a caller with one."""

    relay: Relay
    source: Source
    request: Request

    @property
    def is_owed(self) -> bool:
        is_over = self.source.is_over or self.request.deadline.is_cancelled
        return not is_over and bool(self.source.events.last_event_id)

    def has_told(self, event_id: str) -> bool:
        return event_id in self.source.told

    def pause(self) -> None:
        self.source.response.close()

    def behind(self, event_id: str) -> AsyncGenerator[Event]:
        return self.relay.behind(event_id, self.source, self.request)


def _for_handshake(answer: Message, request: Request) -> bytes:
    """A modern member's answer, for a caller with a session."""
    return envelope.encode(eras.for_handshake(request.method, answer.opened_response_to(request.id)))


async def _settle(told: asyncio.Future[dict[str, Any]], answer: dict[str, Any]) -> None:
    if not told.done():
        told.set_result(answer)


def _may_ask(session: CallerSession, message: Message) -> bool:
    """Whether the caller said that it answers such questions."""
    return held.CAPABILITIES.get(str(message.method)) in session.capabilities


def _is_of_tasks(message: Message) -> bool:
    """Whether it tells how a task is: nobody here knows whose that is, and callers ask for it anyway."""
    return message.method is not None and message.method.startswith(tasks.NOTIFICATIONS)


def _wants_input(answer: Message) -> bool:
    return answer.error is None and envelope.text(answer.fields.get("resultType")) == "input_required"
