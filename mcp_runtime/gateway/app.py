"""Check access, and pass each message to the code for clients with sessions or for modern clients.

There is no web framework. The gateway needs three paths, three verbs and a few headers, and each layer between the
socket and the member would cost time in every call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qs

from mcp_runtime.gateway import catalog_rows, eras
from mcp_runtime.gateway.auth import Principals
from mcp_runtime.gateway.catalog import Place, Selection
from mcp_runtime.gateway.client_sessions import Sessions
from mcp_runtime.gateway.events import door
from mcp_runtime.gateway.events.door import EventsDoor
from mcp_runtime.gateway.hop import MISDIRECTED
from mcp_runtime.gateway.intake import Intake, message_id_of, read_body
from mcp_runtime.gateway.legacy import SessionClients
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.modern import ModernClients
from mcp_runtime.gateway.posts import Post
from mcp_runtime.gateway.replies import JSON_HEADERS, UNAUTHORIZED, Refusal, ignores_error_bodies
from mcp_runtime.http1.server import ClientDisconnectedError, HttpExchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    AccessError,
    IssuerAwayError,
    MethodError,
    ProtocolError,
    ScopeError,
    TokenError,
)
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import resources
from mcp_runtime.security.access import Principal
from mcp_runtime.security.limits import Rounds
from mcp_runtime.security.origins import Origins
from roster.models import AccessToken

logger = logging.getLogger("guildhall.gateway")

MAX_ID = 18  # digits
MAX_UNAUTHENTICATED_BYTES = 65_536  # bytes of a message that is read before its sender is authenticated
MAX_AGENTS = 1_000  # agents whose members are cached
AGENT_SECONDS = 5.0
NOTHING_HERE = (
    "Nothing is here: the gateway is at /mcp, each member at /mcp/<member>, each tool set at /sets/<name>/mcp, "
    "and events at /events."
)
NO_OAUTH = (
    "Guild Hall has no OAuth here. Clients look for it after a request without a token, or with one that is unknown, "
    "revoked or expired. Send a valid token: Authorization: Bearer gh_... guildhall create_token USER creates one."
)
OTHER_RESOURCE = "This access token is for another address of the gateway. Sign in at this one."
EVERYTHING = Place("/mcp", Selection())
SEARCH = "search"  # the value of `mode` in a query string
PATHS = ("/mcp", "/mcp/<member>", "/agents/<agent>/mcp", "/sets/<tool_set>/mcp")  # each also with a trailing slash
VERBS = ("GET", "POST", "DELETE")
PATH_PATTERN = re.compile("|".join(re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", path) + "/?" for path in PATHS))


class App:
    """Answers HTTP requests."""

    def __init__(
        self,
        *,
        principals: Principals,
        origins: Origins,
        intake: Intake,
        sessions: Sessions,
        members: Members,
        legacy: SessionClients,
        modern: ModernClients,
        events: EventsDoor,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._principals = principals
        self._origins = origins
        self._intake = intake
        self._sessions = sessions
        self._members = members
        self._legacy = legacy
        self._modern = modern
        self._events = events
        self._is_stopping = is_stopping
        self._agent_members: dict[tuple[str, int | None], tuple[float, frozenset[str] | None]] = {}
        self._rounds = Rounds()
        serve: tuple[Callable[[Place, Principal, HttpExchange], Awaitable[None]], ...]
        serve = legacy.get, self._post, legacy.delete
        self._verbs = dict(zip(VERBS, serve, strict=True))

    async def __call__(self, exchange: HttpExchange, *, is_forwarded: bool = False) -> None:
        """Answer a request, which another node may have forwarded."""
        try:
            await self._serve(exchange, is_forwarded)
        except Refusal as refusal:
            exchange.reply(refusal.status, refusal.body, (*JSON_HEADERS, *refusal.headers))
        except ClientDisconnectedError:
            pass
        except Exception:
            logger.exception("the gateway failed to serve %s %r", exchange.verb, exchange.path)
            if not exchange.has_begun:
                error = jsonrpc.error_response(None, INTERNAL_ERROR, "Internal error: see the log of the runtime")
                exchange.reply(500, jsonrpc.encode(error), JSON_HEADERS)

    async def _serve(self, exchange: HttpExchange, is_forwarded: bool) -> None:
        headers = exchange.headers
        if exchange.path.startswith(resources.METADATA) and resources.is_sign_in_on() and not is_forwarded:
            self._reply_metadata(exchange)
            return
        host, origin, site = (eras.text_of(headers, name) for name in ("host", "origin", "sec-fetch-site"))
        if not is_forwarded and (fault := self._origins.fault(host or "", origin, site)):
            raise Refusal(403, MethodError(INVALID_REQUEST, fault))
        if exchange.path in door.PATHS and not is_forwarded:
            await self._events.serve(exchange)
            return
        match = PATH_PATTERN.fullmatch(exchange.path)
        if match is None:
            _reply_not_found(exchange)
            return
        try:
            principal = await self._principals.principal(headers.get(b"authorization"))
        except AccessError as error:
            raise await _unauthorized(error, exchange) from error
        if principal.resource and not resources.covers(principal.resource, exchange.path):
            raise await _unauthorized(TokenError(OTHER_RESOURCE), exchange)
        exchange.owner = principal.owner
        await self._rounds.turn(principal.owner)
        place = await self._place(match, exchange.query, principal)
        if is_forwarded:
            place = replace(place, is_forwarded=True)
        if exchange.verb not in VERBS:
            allow = [(b"allow", ", ".join(VERBS).encode())]
            raise Refusal(405, MethodError(INVALID_REQUEST, f"this address has no {exchange.verb}"), headers=allow)
        await self._verbs[exchange.verb](place, principal, exchange)

    def _reply_metadata(self, exchange: HttpExchange) -> None:
        """Tell a client where to sign in, also one in a browser. The answer is the same for names that do not exist."""
        host = eras.text_of(exchange.headers, "host") or ""
        if fault := self._origins.fault(host, None, None):
            raise Refusal(403, MethodError(INVALID_REQUEST, fault))
        path = resources.normal_path(exchange.path.removeprefix(resources.METADATA) or resources.WHOLE_GATEWAY)
        headers = [(b"access-control-allow-origin", b"*"), (b"access-control-allow-headers", b"mcp-protocol-version")]
        if path is None or exchange.verb not in ("GET", "OPTIONS"):
            _reply_not_found(exchange)
        elif exchange.verb == "OPTIONS":  # a browser asks before the GET
            exchange.reply(204, b"", headers)
        else:
            body = jsonrpc.encode(resources.metadata_of(path, host))
            exchange.reply(200, body, (*JSON_HEADERS, *headers, (b"cache-control", b"max-age=300")))

    async def _place(self, match: re.Match[str], query: str, principal: Principal) -> Place:
        if not query and match.lastgroup is None:
            return EVERYTHING
        query_params = _parse_query(query)
        known_params = (
            {"mode", "members"} if match.lastgroup is None else {"mode"} if match["member"] is None else set()
        )
        if unknown_params := query_params.keys() - known_params:
            text = f"unknown query parameter {min(unknown_params)[:100]!r}; a token goes into the Authorization header"
            raise Refusal(400, MethodError(INVALID_REQUEST, text))
        place = await self._place_of_path(match, query_params.get("members"), principal)
        return place if "mode" not in query_params else _searched(place, query_params["mode"])

    async def _place_of_path(self, match: re.Match[str], members: list[str] | None, principal: Principal) -> Place:
        if member := match["member"]:
            if member not in self._members.roster.members:
                await self._members.reload_for_unknown_name()  # it may be new
            if member not in self._members.roster.members or not principal.may_see(member):
                raise Refusal(404, MethodError(INVALID_REQUEST, _no_member(member, principal)))
            return Place(f"/mcp/{member}", Selection(frozenset([member])), member)
        if agent := match["agent"]:
            agent_members = await self._members_of_agent(agent, principal)
            if agent_members is None:
                raise Refusal(404, MethodError(INVALID_REQUEST, f"there is no agent {agent[:100]!r}"))
            return Place(f"/agents/{agent}/mcp", Selection(agent_members))
        if tool_set := match["tool_set"]:
            return await self._place_of_set(tool_set, principal)
        return EVERYTHING if members is None else self._place_of_members(members, principal)

    def _place_of_members(self, texts: list[str], principal: Principal) -> Place:
        names = frozenset(name for text in texts for name in text.split(",") if name)
        members = self._members.roster.members
        if missing := [name for name in names if name not in members or not principal.may_see(name)]:
            raise Refusal(404, MethodError(INVALID_REQUEST, _no_member(min(missing), principal)))
        return Place(f"/mcp?members={','.join(sorted(names))}", Selection(names))

    async def _place_of_set(self, name: str, principal: Principal) -> Place:
        if name not in self._members.roster.tool_sets:
            await self._members.reload_for_unknown_name()
        selection = self._members.roster.selection_of_set(name)
        if selection is None or not principal.may_use_set(name):
            text = f"tool set {name[:100]!r} not found: it is unknown, or {principal.name} may not use it"
            raise Refusal(404, MethodError(INVALID_REQUEST, text))
        return Place(f"/sets/{name}/mcp", selection)

    async def _members_of_agent(self, agent: str, principal: Principal) -> frozenset[str] | None:
        """Return the members of an agent, cached for AGENT_SECONDS.

        The members of an agent do not change, but the agent may be deleted.
        """
        now, key = asyncio.get_running_loop().time(), (agent, principal.user_id)
        expires_at, members = self._agent_members.get(key, (0.0, None))
        if now > expires_at and agent.isascii() and agent.isdigit() and len(agent) <= MAX_ID:
            look = partial(catalog_rows.members_of_agent, int(agent), principal.user_id)
            members = await asyncio.get_running_loop().run_in_executor(None, unit_of_work, look)
            if len(self._agent_members) >= MAX_AGENTS:
                self._agent_members.clear()
            self._agent_members[key] = now + AGENT_SECONDS, members
        return members

    async def _post(self, place: Place, principal: Principal, exchange: HttpExchange) -> None:
        if exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise Refusal(415, MethodError(INVALID_REQUEST, "send Content-Type: application/json"))
        if self._is_stopping():
            if place.is_forwarded:
                raise Refusal(MISDIRECTED, MethodError(INTERNAL_ERROR, "the runtime is stopping"))
            retry = [(b"retry-after", b"2")]
            raise Refusal(
                503, MethodError(INTERNAL_ERROR, "the runtime is stopping; try again in a moment"), headers=retry
            )
        with self._intake.body_budget(principal.owner) as reserve:
            size, message = await self._intake.read_message(principal.owner, exchange, reserve)
            post = Post(place, principal, exchange, size, message)
            if place.is_forwarded:  # the node that forwarded it has counted it
                await self._message(post)
                return
            limits = await self._intake.take_shares(principal, message) if self._intake.has_shares else None
            with self._intake.count_message(principal, message, limits):
                await self._message(post)

    async def _message(self, post: Post) -> None:
        message = post.message
        version = eras.text_of(post.headers, mcp.VERSION_HEADER) or ""
        session_id = eras.text_of(post.headers, mcp.SESSION_HEADER)
        session = await self._sessions.find(session_id, post.principal, post.place.path) if session_id else None
        if session is None and eras.is_modern(message, version):
            await self._modern.request(post)
        elif session is None and isinstance(message, dict) and message.get("method") == "initialize":
            await self._legacy.initialize(post)
        elif session is None:
            text = "session not found: send initialize to begin a new one" if session_id else (
                "no session: send initialize first, then its Mcp-Session-Id with each message, "
                f"or set the protocol version {mcp.MODERN_VERSION} in _meta"
            )  # fmt: skip
            raise Refusal(404 if session_id else 400, MethodError(INVALID_REQUEST, text), message_id_of(message))
        elif version and version not in mcp.HANDSHAKE_VERSIONS:
            raise Refusal(400, MethodError(INVALID_REQUEST, f"protocol version {version[:40]!r} has no sessions"))
        elif isinstance(message, list):
            await self._legacy.batch(post, session)
        else:
            await self._legacy.in_session(post, session)


def _reply_not_found(exchange: HttpExchange) -> None:
    """Reply with 404 and plain text. Clients that look for OAuth after a 401 show this text to people."""
    is_for_oauth = exchange.path.startswith("/.well-known/") or exchange.path == "/register"
    text = NO_OAUTH if is_for_oauth else NOTHING_HERE
    if is_for_oauth and resources.is_sign_in_on():
        text += f" Clients that sign in do it at {resources.authorization_server()}."
    exchange.reply(404, f"{text}\n".encode(), [(b"content-type", b"text/plain; charset=utf-8")])


async def _unauthorized(error: AccessError, exchange: HttpExchange) -> Refusal:
    """Return a 401 with the reason, or a JSON-RPC error for clients that ignore the body of a 401."""
    if isinstance(error, IssuerAwayError):  # the client need not sign in again
        return Refusal(503, MethodError(INTERNAL_ERROR, str(error)), headers=[(b"retry-after", b"10")])
    length = exchange.headers.get(b"content-length", b"")
    is_short = length.isdigit() and int(length) <= MAX_UNAUTHENTICATED_BYTES  # any client can send such a User-Agent
    is_token = b"authorization" in exchange.headers
    has_own_token = is_token and not _is_of_sign_in(exchange.headers[b"authorization"])
    can_sign_in = resources.is_sign_in_on() and not has_own_token  # a 401 makes such a client do it
    if is_short and not can_sign_in and ignores_error_bodies(exchange.headers):
        with contextlib.suppress(Refusal, ProtocolError):
            message = jsonrpc.decode(await read_body(exchange))
            if isinstance(message, dict) and "method" in message and "id" in message:
                return Refusal(200, MethodError(UNAUTHORIZED, str(error)), message["id"])
    description = str(error).encode("ascii", "replace").replace(b'"', b"'")
    status, code = (403, b"insufficient_scope") if isinstance(error, ScopeError) else (401, b"invalid_token")
    fault = b', error="%b", error_description="%b"' % (code, description) if is_token else b""
    sign_in = resources.challenge_of(exchange.path, eras.text_of(exchange.headers, "host") or "")
    parameters = b", %b" % sign_in.encode() if sign_in else b""
    challenge = [(b"www-authenticate", b'Bearer realm="Guild Hall"' + parameters + fault)]
    return Refusal(status, MethodError(UNAUTHORIZED, str(error)), headers=challenge)


def _is_of_sign_in(authorization: bytes) -> bool:
    """Whether the header has a token that a client got by a sign-in, and not one that a person gave it."""
    return AccessToken.PREFIX.encode() in authorization or resources.may_be_outside_token(
        authorization.decode("latin-1")
    )


def _parse_query(query: str) -> dict[str, list[str]]:
    """Return the parameters of a query string. Most requests have none."""
    if not query:
        return {}
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=10)
    except ValueError as error:
        raise Refusal(400, MethodError(INVALID_REQUEST, f"the query cannot be read: {error}")) from error


def _searched(place: Place, modes: list[str]) -> Place:
    """Return the same address, where clients search for tools. A session there is not one of the other address."""
    if modes != [SEARCH]:
        raise Refusal(400, MethodError(INVALID_REQUEST, f"the only mode is {SEARCH!r}, not {modes[0][:100]!r}"))
    path = f"{place.path}{'&' if '?' in place.path else '?'}mode={SEARCH}"
    return replace(place, path=path, selection=replace(place.selection, searches=True))


def _no_member(name: str, principal: Principal) -> str:
    return f"member {name[:100]!r} not found: it is unknown or disabled, or {principal.name} may not use it"
