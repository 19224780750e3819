"""Routes to members: their slots and connections, reading responses and events, and reasons for failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw

from mcp_runtime.client.bearer import NONCE_HEADER, TRIES
from mcp_runtime.client.client import CLIENT_NAME, CLIENT_VERSION
from mcp_runtime.gateway import envelope
from mcp_runtime.gateway.envelope import Message
from mcp_runtime.gateway.upstream.renewals import Renewals
from mcp_runtime.http1.client import HALL_OWNER, Address, Connections, Response
from mcp_runtime.members.lifecycle import Lifecycle
from mcp_runtime.members.live import EXIT_GRACE, LiveMember
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ChallengeError,
    ClientError,
    ConnectError,
    HttpStatusError,
    ProtocolError,
    ServerAwayError,
)
from mcp_runtime.rows.database import unit_of_work
from mcp_runtime.security import limits
from mcp_runtime.security.limits import Account, BudgetError, Owner, Places

if TYPE_CHECKING:  # a hall without members behind OAuth does not load them, so that it is smaller
    from mcp_runtime.members.access_tokens import AccessToken, SignInKey

UNCOUNTED_BYTES = 16_384  # bytes of an unfinished event that are not counted for each stream. Most events are shorter
EXIT_POLL_SECONDS = 0.005  # between two checks whether a member has exited
STREAM_ENDED = "the event stream ended without the answer"


class StreamEndedError(ProtocolError):
    """The stream ended properly, but without the response."""


class OtherSignInError(HttpStatusError):
    """The session is of an account with which the user is not signed in any more. Nothing was sent in it."""

    def __init__(self) -> None:
        super().__init__(404, "the user has signed in again, perhaps with another account")


Read = TypeVar("Read")
Part = TypeVar("Part", bytes, Raw)


@dataclass(eq=False)
class Route:
    """The route to one process of a member."""

    live_member: LiveMember
    slots: Places
    address: Address = field(init=False)
    headers: dict[str, str] = field(init=False, repr=False)
    state: object = field(default=None, init=False, repr=False)  # what `UpstreamSessions` stores about the member

    def __post_init__(self) -> None:
        self.address = Address.of(self.live_member.client.url)
        self.headers = {
            **self.live_member.client.headers.values,
            "Accept": f"{mcp.JSON}, {mcp.EVENT_STREAM}",
            "Accept-Encoding": "identity",
            "Content-Type": mcp.JSON,
            "User-Agent": f"{CLIENT_NAME}/{CLIENT_VERSION}",
        }


class Upstream:
    """All connections to members. Use it only on the gateway's event loop."""

    def __init__(self, lifecycle: Lifecycle, *, max_bytes: int) -> None:
        self._lifecycle = lifecycle
        self._max_bytes = max_bytes
        self._routes: dict[int, Route] = {}
        # One pool for all calls. Other gateways lose most time by creating a client, session or TLS context per call.
        self._connections = Connections()
        self._reader = ThreadPoolExecutor(1, "gateway-reader")
        self._reader_slot = Places(1)
        self._notification_bytes = limits.bytes_of_members()
        self._renewals = Renewals()
        self._failing_members: set[int] = set()  # ids of members whose failed connection is being recorded

    def close(self) -> None:
        self._connections.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._renewals.close()

    def route_to(self, live_member: LiveMember, slots: int | None = None) -> Route:
        """Return the route to the process. `slots` None leaves its number of slots unchanged."""
        route = self._routes.get(live_member.member_id)
        if route is None or route.live_member is not live_member:
            route = self._routes[live_member.member_id] = Route(live_member, Places(slots or 0))
        elif slots is not None:
            route.slots.allow(slots)
        return route

    async def send(
        self,
        route: Route,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None,
        owner: Owner,
        on_write: Callable[[], None] | None = None,
        *,
        is_first: bool = False,
        sign_in: SignInKey | None = None,
    ) -> Response:
        """`sign_in` is that of the session in which the request is sent. Raises OtherSignInError, ClientError."""
        token = await self._token_for(route.live_member, owner)
        if token is not None and sign_in not in (None, token.sign_in):
            raise OtherSignInError
        if token is not None and (token.token or token.is_own):  # without one, the refusal gets the next one
            return await self._send_with_token(route, token, verb, headers, body, owner, on_write, is_first=is_first)
        secrets = route.live_member.client.headers.secrets
        return await self._connections.request(
            route.address, verb, headers, body, secrets, owner, on_write, is_first=is_first
        )

    @staticmethod
    def sign_in_of(route: Route, owner: Owner) -> SignInKey | None:
        """The sign-in that a session which begins now is of. None if it is not that of one user."""
        users = route.live_member.users
        return None if users is None or owner == HALL_OWNER else users.sign_in_of(owner[0])

    async def _token_for(self, live_member: LiveMember, owner: Owner) -> AccessToken | None:
        """The token for a request of this owner.

        Where each user has an own sign-in, the token of the member is for requests of the hall itself alone. Raises
        SignInNeededError if the user has none. Every request to a member passes here.
        """
        users = live_member.users
        if users is None or owner == HALL_OWNER:
            return live_member.token
        token = await asyncio.get_running_loop().run_in_executor(None, users.look, *owner)
        if token.is_due:
            early = partial(users.renewed_early, token)
            try:
                await self._renewals.once((live_member.member_id, f"of user {owner[0]}", ""), early)
            except ServerAwayError as away:
                if not token.token:  # otherwise the old one is good for a while
                    raise _renewed_later(away) from away
            if not token.token:
                raise token.need()
        return token

    async def _send_with_token(
        self,
        route: Route,
        token: AccessToken,
        verb: str,
        headers: Mapping[str, str],
        body: bytes | None,
        owner: Owner,
        on_write: Callable[[], None] | None,
        *,
        is_first: bool,
    ) -> Response:
        """Send a request to a member behind OAuth. If it refuses the token or its proof, renew that, and send it again.

        A refusal that nothing helps against is returned.
        """
        client, is_renewed, given = route.live_member.client, False, ""
        for tries_left in reversed(range(TRIES)):
            used, nonce, secrets = token.token, given or token.nonce, (*client.headers.secrets, *token.secrets)
            sent = {**headers, **token.headers(verb, client.url, given)}
            response = await self._connections.request(
                route.address, verb, sent, body, secrets, owner, on_write, is_first=is_first
            )
            given = token.note_nonce(response.header(NONCE_HEADER))
            challenge = response.header("www-authenticate")
            if not tries_left or response.status not in (401, 403) or challenge is None:
                break
            error = ChallengeError(response.status, "", challenge)
            if not token.has_new_nonce(nonce, error, given):
                if is_renewed or not await self._is_renewed_after(response, route, token, used, error):
                    break
                is_renewed = True
            response.close()
        return response

    async def _is_renewed_after(
        self, response: Response, route: Route, token: AccessToken, used: str, error: ChallengeError
    ) -> bool:
        """Renew the token that `response` refused. All refused calls wait for one thread, because there are few."""
        key = (route.live_member.member_id, used, error.challenge if error.status == 403 else "")
        try:
            return bool(await self._renewals.once(key, partial(token.renew, used, error)))
        except ServerAwayError as away:
            response.close()
            raise _renewed_later(away) from away
        except BaseException:
            response.close()
            raise

    async def read(self, response: Response) -> bytes:
        return await response.read(self._max_bytes)

    async def answer(self, response: Response, sent_id: Any) -> Message:
        """Return the answer in a complete body to the request with that id: a result or an error.

        Raise ProtocolError or ForeignAnswerError. Only a connection with the right answer is used again.
        """
        data = await response.read(self._max_bytes)
        try:
            answer = await self._read_answer(response, data, sent_id)
        except BaseException:
            response.close()
            raise
        response.keep()
        return answer

    async def _read_answer(self, response: Response, data: bytes, sent_id: Any) -> Message:
        if response.content_type != mcp.JSON:
            raise await self.answer_error(response, data)
        try:
            answer = await self.read_in_thread(response.owner, partial(envelope.read_answer_to, sent_id), data)
        except ProtocolError as error:
            raise (error if response.status == 200 else await self.answer_error(response, data)) from error
        if answer.error is not None and (masked := response.without_secrets(data)) is not data:
            return await self.read_in_thread(response.owner, partial(envelope.read_answer_to, sent_id), masked)
        if response.status != 200 and answer.error is None:
            raise await self.answer_error(response, data)
        return answer

    async def error_to(self, response: Response, data: bytes, sent_id: str) -> Message | None:
        """Return the JSON-RPC error to exactly that request, or None for anything else."""
        try:
            answer = await self._read_answer(response, data, sent_id)
        except ClientError:
            return None
        return answer if answer.answers(sent_id) else None

    async def answer_error(self, response: Response, data: bytes) -> ClientError:
        """Return the error that explains why the response is not a valid answer."""
        masked = response.without_secrets(data)
        return await self.read_in_thread(response.owner, partial(_answer_error, response), masked)

    async def message(self, data: bytes, owner: Owner) -> Message:
        """Return one message of a stream. Raise ProtocolError if it is invalid."""
        return await self.read_in_thread(owner, envelope.read_opened, data)

    async def read_in_thread(self, owner: Owner, work: Callable[[Part], Read], part: Part) -> Read:
        """Return `work(part)`. For a large part it runs in another thread, so that the event loop can serve others.

        One large part is read at a time. The owner who has waited longest since its last turn is next.
        """
        size = len(part) if isinstance(part, bytes) else memoryview(part).nbytes
        return work(part) if size <= envelope.MAX_SMALL else await self.run_in_thread(owner, partial(work, part), size)

    async def run_in_thread(self, owner: Owner, work: Callable[[], Read], size: int) -> Read:
        """Run `work`, in another thread if `size` bytes are large."""
        if size <= envelope.MAX_SMALL:
            return work()
        await self._reader_slot.take(owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, work)
        finally:
            self._reader_slot.give_back(owner)

    async def events(
        self, response: Response, events: mcp.EventStream, *, member_id: int | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield the data of each event. It is empty for an event with only an id or a retry time.

        With `member_id`, it is a stream of notifications of that member. It has no end, and its unread bytes count
        together with those of the member's other such streams. Raise ProtocolError for too much data, and what
        `chunks` raises.
        """
        total = 0
        position = (events.last_event_id, events.retry_ms)
        account = Account(self._notification_bytes, (member_id, response.owner[1]), UNCOUNTED_BYTES)
        try:
            if member_id is not None:
                response.count(account)
            async for chunk in response.chunks():
                buffered, size = events.buffered_bytes, len(chunk)
                total = total + size if member_id is None else size
                if total > self._max_bytes:
                    raise ProtocolError(f"the response is larger than {self._max_bytes:,} bytes")
                if buffered > self._max_bytes:
                    raise ProtocolError(f"an event is larger than {self._max_bytes:,} bytes")
                for data in events.feed(chunk):
                    position = (events.last_event_id, events.retry_ms)
                    yield _without_secrets_of_error(response, data)
                chunk = data = b""  # the next one may come in an hour
                if member_id is not None:
                    account.change(events.buffered_bytes - buffered - size)
                if position != (events.last_event_id, events.retry_ms):
                    position = (events.last_event_id, events.retry_ms)
                    yield b""
        except BudgetError as error:
            raise ProtocolError(f"too many of its messages wait to be forwarded: {error}") from error
        finally:
            account.close()

    async def explain(self, live_member: LiveMember, error: ConnectError) -> ClientError:
        """Return the error of the member's exit if there was one, else the failed connection, which is recorded.

        A failed connection is often the first sign of an exit.
        """
        if exit_error := await self.exit_error(live_member, is_refusal=error.is_refusal):
            return exit_error
        # A server with one slot cannot accept all connections. As long as other calls run in it, it has not failed.
        is_failure = error.is_refusal or live_member.calls + live_member.relayed_calls < 2
        if is_failure and live_member.member_id not in self._failing_members:
            # Record it once for all calls that fail together. There are few threads, and others need them.
            self._failing_members.add(live_member.member_id)
            try:
                work = partial(self._lifecycle.handle_connection_failure, live_member, error)
                await asyncio.get_running_loop().run_in_executor(None, unit_of_work, work)
            finally:
                self._failing_members.discard(live_member.member_id)
        return error

    @staticmethod
    async def exit_error(live_member: LiveMember, *, is_refusal: bool = False) -> ConnectError | None:
        """Return the error that explains the member's exit, or None while it runs."""
        # Do not wait in a thread. If a member closes the connections of many calls, these would block all threads.
        deadline = asyncio.get_running_loop().time() + EXIT_GRACE
        while not live_member.process.exited.is_set():
            if asyncio.get_running_loop().time() > deadline:
                return None
            await asyncio.sleep(EXIT_POLL_SECONDS)
        when = "before it accepted the call" if is_refusal else "during the call"
        return ConnectError(live_member.describe_end(when), is_refusal=is_refusal)


def _without_secrets_of_error(response: Response, data: bytes) -> bytes:
    masked = response.without_secrets(data)
    if masked is not data:
        with contextlib.suppress(ProtocolError):
            return data if envelope.read(data).error is None else masked
    return masked


def _renewed_later(away: ServerAwayError) -> HttpStatusError:
    return HttpStatusError(401, f"its token cannot be renewed now: {away}")


def _answer_error(response: Response, data: bytes) -> ClientError:
    if response.status != 200:
        with contextlib.suppress(ProtocolError):
            if (error := envelope.read_opened(data).remote_error()) is not None:
                return error
        return HttpStatusError(response.status, jsonrpc.excerpt(data) if data else "")
    kind = response.content_type or "no content type"
    return ProtocolError(f"answered with {kind} instead of JSON: {jsonrpc.excerpt(data)}")
