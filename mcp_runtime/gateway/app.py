"""Who may come in, which era a message is of, and replies as JSON or as a stream.

No framework: a call is one path, three verbs and a few headers, and what stands between the socket and the member is
paid for by each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from mcp_runtime import access, jsonrpc, protocol
from mcp_runtime.access import Principal
from mcp_runtime.database import unit_of_work
from mcp_runtime.errors import AccessError, ClientError, MethodError, ProtocolError, TooManyCallsError
from mcp_runtime.gateway import eras, offers, tasks
from mcp_runtime.gateway.callers import Callers, Origins
from mcp_runtime.gateway.clients import ClientName, Clients
from mcp_runtime.gateway.conversations import Conversations
from mcp_runtime.gateway.endpoints import NAMED_BY, SUBSCRIBING, Endpoints, Place
from mcp_runtime.gateway.intake import Intake
from mcp_runtime.gateway.listening import Listening, TooManyStreamsError
from mcp_runtime.gateway.messages import CANCEL_GRACE, Answer, Deadline, Event, Request, Stream, unavailable
from mcp_runtime.gateway.offers import Roster, Scope
from mcp_runtime.gateway.owed import Owed, TakenOverError
from mcp_runtime.gateway.relay import Relay
from mcp_runtime.gateway.replies import JSON_HEADERS, STREAM_HEADERS, Outgoing, Refusal, body_of, encoded
from mcp_runtime.gateway.sessions import Caller, CallerSession, Sessions
from mcp_runtime.gateway.wire import object_of
from mcp_runtime.http_server import Exchange, GoneError
from mcp_runtime.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST
from mcp_runtime.limits import Limiter, Rounds

logger = logging.getLogger("guildhall.gateway")

MAX_BATCH = 100
MAX_CAPABILITIES = 16_384  # bytes
LISTEN = "subscriptions/listen"
MAX_ID = 18  # digits
MAX_REQUEST_ID = 1_000  # characters
MAX_LEVEL = 40
MAX_UNKNOWN = 65_536  # bytes of a message that is read before it is known whose it is
MAX_SESSIONS = 1_000  # of agents, whose members are kept in memory
SESSION_SECONDS = 5.0
# Of our own, in the range that JSON-RPC leaves to applications. Not 401: Claude's CLI takes that for the HTTP status.
UNAUTHORIZED = 40100
FORBIDDEN = 40300
# What comes with a 401 or 403 these throw away (Codex says to log in, which nobody can); a JSON-RPC error they show.
DEAF = (b"claude-code/", b"codex-mcp-client/")
NOTHING_HERE = "Nothing is here: the gateway is at /mcp, each member at /mcp/<member>."
NO_OAUTH = (
    "Guild Hall has no OAuth. Clients look for it when they sent no token, or one that is unknown, revoked or past its "
    "end. Send one that is good, Authorization: Bearer gh_...; manage.py create_token USER makes one."
)
EVERYTHING = Place("/mcp", Scope())
PATHS = ("/mcp", "/mcp/<member>", "/sessions/<session>/mcp")  # each also with a slash behind it
_PATH = re.compile("|".join(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", path) + "/?" for path in PATHS))


@dataclass(frozen=True, slots=True)
class Post:
    """One POST as it came, from a caller who may come in. `size` is that of `message` in bytes."""

    place: Place
    principal: Principal
    exchange: Exchange
    size: int
    message: Any

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.exchange.headers

    @property
    def takes_stream(self) -> bool:
        accept = self.headers.get(b"accept", b"*/*")
        return b"text/event-stream" in accept or b"*/*" in accept or b"text/*" in accept

    def caller(self, session: CallerSession) -> Caller:
        return _caller_in(session, self.principal, self.headers)


class App:
    """Answers HTTP requests."""

    def __init__(
        self,
        *,
        callers: Callers,
        origins: Origins,
        limiter: Limiter,
        sessions: Sessions,
        clients: Clients,
        endpoints: Endpoints,
        listening: Listening,
        conversations: Conversations,
        relay: Relay,
        owed: Owed,
        roster: Callable[[], Roster],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._is_stopping = is_stopping
        self._session_members: dict[tuple[str, int | None], tuple[float, frozenset[str] | None]] = {}
        self._callers = callers
        self._intake = Intake()
        self._rounds = Rounds()
        self._origins = origins
        self._limiter = limiter
        self._sessions = sessions
        self._clients = clients
        self._endpoints = endpoints
        self._listening = listening
        self._conversations = conversations
        self._relay = relay
        self._owed = owed
        self._roster = roster

    async def __call__(self, exchange: Exchange) -> None:
        try:
            await self._serve(exchange)
        except Refusal as refusal:
            exchange.reply(refusal.status, refusal.body, (*JSON_HEADERS, *refusal.headers))
        except GoneError:
            pass
        except Exception:
            logger.exception("the gateway failed to serve %s %r", exchange.verb, exchange.path)
            if not exchange.is_begun:
                error = jsonrpc.error_response(None, INTERNAL_ERROR, "the gateway failed; its log says why")
                exchange.reply(500, jsonrpc.encode(error), JSON_HEADERS)

    async def _serve(self, exchange: Exchange) -> None:
        headers = exchange.headers
        if fault := self._origins.fault(headers):
            raise Refusal(403, MethodError(INVALID_REQUEST, fault))
        match = _PATH.fullmatch(exchange.path)
        if match is None:
            _nothing_here(exchange)
            return
        try:
            principal = await self._callers.principal(headers.get(b"authorization"))
        except AccessError as error:
            raise await _unauthorized(error, exchange) from error
        exchange.owner = principal.owner
        await self._rounds.turn(principal.owner)
        place = await self._place(match, exchange.query, principal)
        if exchange.verb not in VERBS:
            allow = [(b"allow", ", ".join(VERBS).encode())]
            raise Refusal(405, MethodError(INVALID_REQUEST, f"{exchange.verb} means nothing here"), headers=allow)
        await VERBS[exchange.verb](self, place, principal, exchange)

    async def _place(self, match: re.Match[str], query: str, principal: Principal) -> Place:
        if not query and match.lastgroup is None:
            return EVERYTHING
        asked = _asked(query)
        if unknown := asked.keys() - (set() if match["member"] or match["session"] else {"members"}):
            text = f"unknown query parameter {min(unknown)[:100]!r}; a token goes into the Authorization header"
            raise Refusal(400, MethodError(INVALID_REQUEST, text))
        if member := match["member"]:
            if member not in self._roster().members:
                await self._endpoints.look_again()  # it may be new
            if member not in self._roster().members or not principal.may_see(member):
                raise Refusal(404, MethodError(INVALID_REQUEST, _no_member(member, principal)))
            return Place(f"/mcp/{member}", Scope(frozenset([member])), member)
        if session := match["session"]:
            chosen = await self._members_of_session(session, principal)
            if chosen is None:
                raise Refusal(404, MethodError(INVALID_REQUEST, f"there is no session {session[:100]!r}"))
            return Place(f"/sessions/{session}/mcp", Scope(chosen))
        if not asked:
            return EVERYTHING
        names = frozenset(name for value in asked["members"] for name in value.split(",") if name)
        members = self._roster().members
        if missing := [name for name in names if name not in members or not principal.may_see(name)]:
            raise Refusal(404, MethodError(INVALID_REQUEST, _no_member(min(missing), principal)))
        return Place(f"/mcp?members={','.join(sorted(names))}", Scope(names))

    async def _members_of_session(self, session: str, principal: Principal) -> frozenset[str] | None:
        """Kept for a moment: the members of a session do not change, but it may go."""
        now, key = asyncio.get_running_loop().time(), (session, principal.user_id)
        until, known = self._session_members.get(key, (0.0, None))
        if now > until and session.isascii() and session.isdigit() and len(session) <= MAX_ID:
            look = partial(offers.members_of_session, int(session), principal.user_id)
            known = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look)
            if len(self._session_members) >= MAX_SESSIONS:
                self._session_members.clear()
            self._session_members[key] = now + SESSION_SECONDS, known
        return known

    # POST ---------------------------------------------------------------------------------------------------------

    async def _post(self, place: Place, principal: Principal, exchange: Exchange) -> None:
        if exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise Refusal(415, MethodError(INVALID_REQUEST, "send Content-Type: application/json"))
        if self._is_stopping():
            retry = [(b"retry-after", b"2")]
            raise Refusal(
                503, MethodError(INTERNAL_ERROR, "the runtime is stopping; try again in a moment"), headers=retry
            )
        with self._intake.bodies_of(principal.owner) as take:
            size, message = await self._intake.message(principal.owner, exchange, take)
            with self._counted(principal, message):
                await self._message(Post(place, principal, exchange, size, message))

    @contextlib.contextmanager
    def _counted(self, principal: Principal, message: Any) -> Iterator[None]:
        """Around one message of a token. Notices, answers and open streams take no place: others wait for them."""
        is_call = isinstance(message, dict) and "id" in message and message.get("method") not in (None, LISTEN)
        key, places = principal.token_id or 0, principal.max_in_flight if is_call else 0
        try:
            self._limiter.enter(key, calls_per_minute=principal.calls_per_minute, max_in_flight=places)
        except TooManyCallsError as error:
            retry = [(b"retry-after", str(max(1, math.ceil(error.retry_after))).encode())]
            raise Refusal(429, MethodError(INVALID_REQUEST, str(error)), _id_of(message), retry) from error
        if not is_call:
            self._limiter.leave(key)
        try:
            yield
        finally:
            if is_call:
                self._limiter.leave(key)

    async def _message(self, post: Post) -> None:
        message = post.message
        version = eras.text_of(post.headers, protocol.VERSION_HEADER) or ""
        session_id = eras.text_of(post.headers, protocol.SESSION_HEADER)
        session = self._sessions.find(session_id, post.principal, post.place.path) if session_id else None
        if session is None and eras.is_modern(message, version):
            await self._modern(post)
        elif session is None and isinstance(message, dict) and message.get("method") == "initialize":
            await self._initialize(post)
        elif session is None:
            text = "this session is over: begin a new one with initialize" if session_id else (
                "no session: send initialize first and its Mcp-Session-Id from then on, "
                f"or say in _meta that you speak {protocol.MODERN_VERSION}"
            )  # fmt: skip
            raise Refusal(404 if session_id else 400, MethodError(INVALID_REQUEST, text), _id_of(message))
        elif version and version not in protocol.HANDSHAKE_VERSIONS:
            raise Refusal(400, MethodError(INVALID_REQUEST, f"protocol version {version[:40]!r} has no sessions"))
        elif isinstance(message, list):
            await self._batch(post, session)
        else:
            await self._in_session(post, session)

    async def _initialize(self, post: Post) -> None:
        message_id, params = _checked_id(post.message), post.message.get("params")
        try:
            access.require_anything(post.principal)
        except AccessError as error:
            status = 200 if _is_deaf(post.headers) else 403  # as with 401
            raise Refusal(status, MethodError(FORBIDDEN, str(error)), message_id) from error
        if not isinstance(params, dict) or message_id is None:
            raise Refusal(400, MethodError(INVALID_PARAMS, "initialize has an id, and params"), message_id)
        asked, capabilities = params.get("protocolVersion"), params.get("capabilities")
        spoken = protocol.HANDSHAKE_VERSIONS
        version = asked if asked in spoken else spoken[-1]
        kept = capabilities if isinstance(capabilities, dict) else {}
        _check_capabilities(kept, message_id)
        client = ClientName.told(params.get("clientInfo"))
        self._clients.saw(post.principal.owner, client)
        session = self._sessions.begin(post.principal, post.place.path, version, kept, client)
        result = jsonrpc.result_response(message_id, self._endpoints.welcome(post.place, version))
        told = [(protocol.SESSION_HEADER.lower().encode(), session.id.encode())]
        post.exchange.reply(200, jsonrpc.encode(result), [*JSON_HEADERS, *told])

    async def _in_session(self, post: Post, session: CallerSession) -> None:
        place, message, caller = post.place, post.message, post.caller(session)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Refusal(400, MethodError(INVALID_REQUEST, "this is no JSON-RPC 2.0 message"))
        if not isinstance(message.get("method"), str):
            await self._answered(session, message)
            post.exchange.reply(202)
        elif "id" not in message:
            await self._notified(place, caller, session, message)
            post.exchange.reply(202)
        else:
            message_id, size = _checked_id(message), post.size
            request = Request(message_id, message["method"], _params(message), caller, Deadline(), size, place.path)
            with self._running(session, request):
                await self._reply(post, request)
            if request.method in SUBSCRIBING:
                for member in [place.member] if place.member else list(session.subscriptions):
                    self._listening.subscriptions_changed(caller, member)

    @contextlib.contextmanager
    def _running(self, session: CallerSession, request: Request) -> Iterator[None]:
        """Meanwhile the caller can cancel it by its id; and later, while its answer is owed."""
        session.running[request.id] = request
        try:
            yield
        finally:
            if session.running.get(request.id) is request and request not in self._owed:
                del session.running[request.id]

    @staticmethod
    async def _answered(session: CallerSession, message: dict[str, Any]) -> None:
        """A caller's answer to a member's question."""
        if "result" not in message and "error" not in message:
            raise Refusal(400, MethodError(INVALID_REQUEST, "neither a method, nor a result, nor an error"))
        _unrelated(object_of(message.get("result")))
        message_id = message.get("id")
        question = session.questions.pop(message_id, None) if isinstance(message_id, str) else None
        if question is not None:  # else nobody asked, or has given up
            await question.answer({key: message[key] for key in ("jsonrpc", "result", "error") if key in message})

    async def _notified(self, place: Place, caller: Caller, session: CallerSession, message: dict[str, Any]) -> None:
        method, params = message["method"], _params(message)
        if method == "notifications/cancelled":
            running = session.running.get(_hashable(params.get("requestId")))
            if running is not None:
                # The member may say something itself, if it has it. If not, it shall not get it any more.
                running.deadline.cancel(CANCEL_GRACE if running.is_sent else 0)
                if running.tell_cancelled is not None:
                    with contextlib.suppress(ClientError, TimeoutError):
                        await running.tell_cancelled(str(params.get("reason") or "the caller cancelled it")[:500])
                self._owed.give_up(running)
        elif method == "notifications/roots/list_changed" or (
            # Nothing else: a call without an id would be one that nobody judged.
            place.member
            and caller.principal.may_use_all(place.member)
            and method.startswith("notifications/")
            and method != "notifications/initialized"
            and not method.startswith(tasks.NOTIFICATIONS)
        ):
            # Built again: from another key beside params a lenient member would read that it is about a task.
            message = jsonrpc.notification(method, _unrelated(params) if "params" in message else None)
            for conversation in session.begun():
                with contextlib.suppress(ClientError, TimeoutError):
                    await self._conversations.pass_on(conversation.route, caller, message)

    async def _batch(self, post: Post, session: CallerSession) -> None:
        """Several messages at once, which 2025-03-26 alone allows; answered in one array, in their order."""
        messages, caller = post.message, post.caller(session)
        if session.version != "2025-03-26":
            raise Refusal(400, MethodError(INVALID_REQUEST, f"{session.version} has no batches"))
        if not 0 < len(messages) <= MAX_BATCH:
            raise Refusal(400, MethodError(INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} messages"))

        async def one(message: Any) -> bytes | None:
            try:
                if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                    raise Refusal(400, MethodError(INVALID_REQUEST, "this is no JSON-RPC 2.0 message"))
                if not isinstance(message.get("method"), str):
                    await self._answered(session, message)
                elif "id" not in message:
                    await self._notified(post.place, caller, session, message)
                else:
                    message_id, size = _checked_id(message), post.size // len(messages)
                    params, path = _params(message), post.place.path
                    request = Request(message_id, message["method"], params, caller, Deadline(), size, path)
                    with self._counted(caller.principal, message), self._running(session, request):
                        return (await self._final(post.place, request)).body
            except Refusal as refusal:
                return refusal.body
            return None

        with post.exchange:
            answers = [answer for answer in await asyncio.gather(*map(one, messages)) if answer is not None]
        body = b"[" + b",".join(answers) + b"]" if answers else b""
        post.exchange.reply(200 if answers else 202, body, JSON_HEADERS)

    async def _modern(self, post: Post) -> None:
        message, headers = post.message, post.headers
        is_request = (
            isinstance(message, dict) and message.get("jsonrpc") == "2.0" and isinstance(message.get("method"), str)
        )
        if not is_request or not isinstance(message.get("params", {}), dict):
            raise Refusal(400, MethodError(INVALID_REQUEST, "this is no JSON-RPC 2.0 request"))
        if "id" not in message:
            # A modern caller has nothing to notify: it closes what it cancels.
            post.exchange.reply(202)
            return
        message_id = _checked_id(message)
        try:
            eras.check_modern(message, headers)
        except MethodError as error:
            raise Refusal(400, error, message_id) from error
        meta = eras.meta_of(message)
        capabilities = meta[f"{protocol.META}clientCapabilities"]
        if post.size > MAX_CAPABILITIES:
            _check_capabilities(capabilities, message_id)
        level = str(meta.get(f"{protocol.META}logLevel") or "")[:MAX_LEVEL]
        client = ClientName.told(meta.get(f"{protocol.META}clientInfo"))
        self._clients.saw(post.principal.owner, client)
        caller = Caller(post.principal, None, capabilities, level, headers.get(b"authorization"), client)
        told = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers.items()
            # Of other methods than MCP's own nobody here knows what they name: the member judges it.
            if name.startswith(b"mcp-param-") or (name == b"mcp-name" and message["method"] not in NAMED_BY)
        }
        deadline, path = Deadline(), post.place.path
        params = _params(message)
        request = Request(message_id, message["method"], params, caller, deadline, post.size, path, told, headers)
        if request.method == LISTEN:
            await self._listen(post, request)
        else:
            await self._reply(post, request)

    # Replies ------------------------------------------------------------------------------------------------------

    async def _reply(self, post: Post, request: Request) -> None:
        """Answer one request. A caller who goes away takes it along."""
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
                    answer = await self._passed_on(reply, request, out) if isinstance(reply, Stream) else reply
        except (MethodError, TimeoutError, ClientError) as error:
            answer = _error_reply(request, error)
        await out.end(answer)

    async def _passed_on(
        self, stream: Stream, request: Request, out: Outgoing, *, starts_at_once: bool = False
    ) -> Answer | None:
        """The events of a stream; its answer, where there was nothing before. None: it was said, or is owed."""
        with contextlib.suppress(TakenOverError):
            async with self._owed.reading(request, stream):
                if starts_at_once:
                    out.start()
                async for event in stream.events:
                    if event.is_last and not event.event_id and not out.is_started:
                        return Answer(event.data, event.status)
                    await out.put(event)
        return None

    async def _final(self, place: Place, request: Request) -> Answer:
        """The response alone, for who cannot take a stream."""
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
            return _error_reply(request, error)

    # Streams ------------------------------------------------------------------------------------------------------

    async def _listen(self, post: Post, request: Request) -> None:
        """`subscriptions/listen` (26: basic/patterns/subscriptions)."""
        asked = request.params.get("notifications")
        if not isinstance(asked, dict):
            raise Refusal(400, MethodError(INVALID_PARAMS, "notifications must be an object"), request.id)
        wanted = self._listening.honoured(asked)
        tag = {f"{protocol.META}subscriptionId": request.id}
        acknowledged = {"notifications": wanted, "_meta": tag}
        first = jsonrpc.notification("notifications/subscriptions/acknowledged", acknowledged)
        end = jsonrpc.result_response(request.id, {"resultType": "complete", "_meta": tag})
        with post.exchange:
            stream = await self._opened(post.place, request.caller, post.exchange, wanted, request.id)
            await self._hold(stream, post.exchange, first=jsonrpc.encode(first), last=jsonrpc.encode(end))

    async def _opened(self, place: Place, caller: Caller, exchange: Exchange, *listen: Any) -> Stream:
        try:
            access.require_anything(caller.principal)
            return await self._listening.open(place, caller, *listen, give_up=exchange.abort)
        except AccessError as error:
            raise Refusal(403, MethodError(FORBIDDEN, str(error))) from error
        except TooManyStreamsError as error:
            full = MethodError(INTERNAL_ERROR, "too many streams are open here; close some")
            raise Refusal(503, full, headers=[(b"retry-after", b"10")]) from error

    async def _get(self, place: Place, principal: Principal, exchange: Exchange) -> None:
        """What is said unasked; or with Last-Event-ID the rest of a stream."""
        session = self._session(place, principal, exchange)
        caller = _caller_in(session, principal, exchange.headers)
        last_event_id = eras.text_of(exchange.headers, protocol.LAST_EVENT_HEADER)
        with exchange:
            if last_event_id and (owed := await self._owed.take(session, last_event_id)):
                request, stream = owed
                with self._running(session, request):
                    await self._go_on(request, stream, last_event_id, exchange)
                return
            rest = await self._rest(session, caller, last_event_id) if last_event_id else None
            await self._hold(rest or await self._opened(place, caller, exchange), exchange)

    async def _delete(self, place: Place, principal: Principal, exchange: Exchange) -> None:
        self._sessions.end(self._session(place, principal, exchange))
        exchange.reply(204)

    async def _go_on(self, request: Request, stream: Stream, event_id: str, exchange: Exchange) -> None:
        """The rest of a reply, for who lost its stream."""
        out = Outgoing(exchange)
        try:
            async with request.deadline.renewed():
                stream.go_on(event_id)
                answer = await self._passed_on(stream, request, out, starts_at_once=True)
        except (MethodError, TimeoutError, ClientError) as error:
            answer = _error_reply(request, error)
        await out.end(answer)

    async def _rest(self, session: CallerSession, caller: Caller, last_event_id: str) -> Stream | None:
        """Event ids are the member's own, behind its name: it is asked to go on."""
        name, _, own = last_event_id.partition("/")
        conversation = next((one for one in session.begun() if one.route.live.name == name), None)
        if conversation is None or not caller.principal.may_use_all(name):
            return None
        await self._listening.let_go(conversation)
        try:
            response = await self._conversations.open_stream(conversation, own)
        except ClientError:
            return None
        events = self._as_long_as_allowed(self._relay.hear(response, conversation, session), caller, name)
        return Stream(events, response.close)

    async def _as_long_as_allowed(
        self, events: AsyncGenerator[Event], caller: Caller, member: str
    ) -> AsyncGenerator[Event]:
        """`events`, while the token is good and for this member: a stream may outlive both."""
        async with contextlib.aclosing(events):
            async for event in events:
                try:
                    principal = await self._callers.principal(caller.authorization)
                except AccessError:
                    return
                if not principal.may_use_all(member):
                    return
                yield event

    def _session(self, place: Place, principal: Principal, exchange: Exchange) -> CallerSession:
        verb, session_id = exchange.verb, eras.text_of(exchange.headers, protocol.SESSION_HEADER)
        if not session_id:
            allow = [(b"allow", b"POST")]
            raise Refusal(405, MethodError(INVALID_REQUEST, f"{verb} needs the id of a session"), headers=allow)
        session = self._sessions.find(session_id, principal, place.path)
        if session is None:
            raise Refusal(404, MethodError(INVALID_REQUEST, "this session is over: begin a new one with initialize"))
        return session

    @staticmethod
    async def _hold(stream: Stream, exchange: Exchange, *, first: bytes = b"", last: bytes = b"") -> None:
        """A stream that stays open until one of the two ends it."""
        async with contextlib.aclosing(stream):
            exchange.begin(200, STREAM_HEADERS)
            await exchange.write(encoded(Event(first)))
            with contextlib.suppress(ClientError):  # the caller resumes, or not
                async for event in stream.events:
                    await exchange.write(encoded(event))
            if last:
                await exchange.write(encoded(Event(last)))
            exchange.end()


VERBS: dict[str, Callable[[App, Place, Principal, Exchange], Awaitable[None]]] = {
    "GET": App._get,
    "POST": App._post,
    "DELETE": App._delete,
}


def _is_deaf(headers: dict[bytes, bytes]) -> bool:
    """Whether the client throws away what comes with a refusal, by what it calls itself."""
    return headers.get(b"user-agent", b"").startswith(DEAF)


def _nothing_here(exchange: Exchange) -> None:
    """404 in plain text: clients that look for OAuth after a 401 show these words to people."""
    is_for_oauth = exchange.path.startswith("/.well-known/") or exchange.path == "/register"
    text = NO_OAUTH if is_for_oauth else NOTHING_HERE
    exchange.reply(404, f"{text}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


async def _unauthorized(error: AccessError, exchange: Exchange) -> Refusal:
    """401 with the reason. Who throws away what comes with a 401 is told in a JSON-RPC error."""
    length = exchange.headers.get(b"content-length", b"")
    is_short = length.isdigit() and int(length) <= MAX_UNKNOWN  # anybody may call themselves that
    if is_short and _is_deaf(exchange.headers):
        with contextlib.suppress(Refusal, ProtocolError):
            message = jsonrpc.decode(await body_of(exchange))
            if isinstance(message, dict) and "method" in message and "id" in message:
                return Refusal(200, MethodError(UNAUTHORIZED, str(error)), message["id"])
    said = str(error).encode("ascii", "replace").replace(b'"', b"'")
    is_token = b"authorization" in exchange.headers
    fault = b', error="invalid_token", error_description="%b"' % said if is_token else b""
    challenge = [(b"www-authenticate", b'Bearer realm="Guild Hall"' + fault)]
    return Refusal(401, MethodError(UNAUTHORIZED, str(error)), headers=challenge)


def _caller_in(session: CallerSession, principal: Principal, headers: dict[bytes, bytes]) -> Caller:
    authorization = headers.get(b"authorization")
    return Caller(principal, session, session.capabilities, session.log_level, authorization, session.client)


def _asked(query: str) -> dict[str, list[str]]:
    """The parameters of a query. Most have none."""
    if not query:
        return {}
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise Refusal(400, MethodError(INVALID_REQUEST, f"the query cannot be read: {error}")) from error


def _no_member(name: str, principal: Principal) -> str:
    return f"no member {name[:100]!r} is on the roster for {principal.name}: unknown, disabled, or not theirs"


def _id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, dict) else None


def _checked_id(message: dict[str, Any]) -> Any:
    """The id of a request. MCP allows text and whole numbers; other numbers are JSON-RPC's."""
    message_id = message.get("id")
    if isinstance(message_id, str) and len(message_id) > MAX_REQUEST_ID:  # it is kept longer than the message
        raise Refusal(400, MethodError(INVALID_REQUEST, f"an id may have {MAX_REQUEST_ID:,} characters"))
    if isinstance(message_id, (str, int, float)) and not isinstance(message_id, bool):
        return message_id
    raise Refusal(400, MethodError(INVALID_REQUEST, "the id of a request is a string or a number"))


def _check_capabilities(capabilities: dict[str, Any], message_id: Any) -> None:
    """Raises Refusal. They are kept as long as a session or a stream is."""
    if len(jsonrpc.encode(capabilities)) > MAX_CAPABILITIES:
        text = f"capabilities may have {MAX_CAPABILITIES:,} bytes"
        raise Refusal(400, MethodError(INVALID_PARAMS, text), message_id)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None


def _params(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params", {})
    if not isinstance(params, dict):
        raise Refusal(400, MethodError(INVALID_REQUEST, "params must be an object"), message.get("id"))
    return params


def _unrelated(part: dict[str, Any]) -> dict[str, Any]:
    """Raises Refusal."""
    try:
        return tasks.unrelated(part)
    except MethodError as error:
        raise Refusal(400, error) from error


def _out_of_time(request: Request) -> MethodError:
    """The deadline passed, or the client cancelled: what it is told, first of all whether the member has the call."""
    deadline = request.deadline
    if not request.is_sent and not deadline.is_cancelled:
        if deadline.member:
            return unavailable(deadline.member, request.not_sent)
        text = f"{request.method}: the gateway did not get to it within {deadline.seconds:g} s; nothing was sent"
        return MethodError(INTERNAL_ERROR, text, {"kind": "unavailable", "sent": False})
    data: dict[str, Any] = {"kind": "cancelled" if deadline.is_cancelled else "timeout"}
    data |= {"member": deadline.member} if deadline.member else {}
    if not deadline.is_cancelled:
        why = f"no complete answer within {deadline.seconds:g} s; it may have run"
    elif request.is_sent:
        why = "it was cancelled"
    else:
        why, data = "it was cancelled before it was sent", data | {"sent": False}
    return MethodError(INTERNAL_ERROR, f"{deadline.about or request.method}: {why}", data)


def _error_reply(request: Request, error: MethodError | TimeoutError | ClientError) -> Answer:
    if isinstance(error, TimeoutError):
        error = _out_of_time(request)
    if isinstance(error, MethodError):
        code, text, data = error.code, str(error), error.data
    else:
        code, text, data = INTERNAL_ERROR, f"{request.deadline.about or request.method}: {error}", None
    message = jsonrpc.error_response(request.id, code, text, data)
    if not request.caller.is_modern:
        return Answer(jsonrpc.encode(message))
    return Answer(jsonrpc.encode(message), eras.http_status(code))
