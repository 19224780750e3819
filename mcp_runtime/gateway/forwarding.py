"""Forward a client's message to the node that owns the member, and relay the reply unchanged.

The other node does everything that this one would do for its own members: it checks the rights of the token, keeps the
questions and the session with the member, and writes the call into the call log. So this node keeps no state.
It writes a call only if no other node knows of it, or if the other node ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

from mcp_runtime.gateway import envelope, failures
from mcp_runtime.gateway.hop import MISDIRECTED, Hop, forwarded_headers
from mcp_runtime.gateway.members import Members
from mcp_runtime.gateway.messages import QUESTION_SECONDS, Answer, Event, Request
from mcp_runtime.gateway.peers import ElsewhereError, Peer
from mcp_runtime.gateway.posts import Post
from mcp_runtime.gateway.replies import STREAM_HEADERS, Refusal, encoded
from mcp_runtime.http1.client import Response
from mcp_runtime.http1.server import HttpExchange
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import (
    ClientError,
    ConnectError,
    MethodError,
    ProtocolError,
    RequestTimeoutError,
)
from mcp_runtime.protocol.jsonrpc import INTERNAL_ERROR

logger = logging.getLogger("guildhall.gateway")

OPEN_SECONDS = 5.0  # for another node to begin the stream of a GET
# After the deadline, wait this long for the error of the other node. That node has the same deadline, and its error
# contains the reason.
GRACE_SECONDS = 2.0
AGAIN_SECONDS = 0.2  # until the owner of the member is looked up again
LOST_SECONDS = 12.0  # a node that ended loses its lease within this time after its connection broke
PART_SECONDS = 30.0  # for a whole short reply, or for the next part of a longer one. Not for streams
WHOLE = 262_144  # bytes. A longer reply is relayed part by part
RELAYED_HEADERS = ("content-type", "retry-after", "allow", "www-authenticate")


class Forwarding:
    """Forwards messages. Use it only on the gateway's event loop."""

    def __init__(self, hop: Hop, members: Members) -> None:
        self._hop = hop
        self._members = members
        self._checks: set[asyncio.Task[None]] = set()

    async def reply(self, post: Post, request: Request, error: ElsewhereError) -> bool:
        """Forward the request of the POST, and relay the reply to its client.

        Return False if the other node did not act on it, and there is time to look for the member again. Raise
        MethodError if the call failed before a reply began.
        """
        with post.exchange:
            response = await self._response(post, request, post.message, error)
            if response is None:
                return False
            try:
                await self._relay(response, post.exchange)
            except ClientError as failure:
                reason = self._fail(request, error, failure)
                if not post.exchange.has_begun:
                    raise reason from failure
                if response.content_type != mcp.EVENT_STREAM:
                    post.exchange.abort()  # the client knows the length, so no error can follow
                    return True
                body = jsonrpc.error_response(request.id, reason.code, str(reason), reason.data)
                # The reply may have broken off within an event.
                await post.exchange.write(b"\n\n" + encoded(Event(jsonrpc.encode(body))))
                post.exchange.end()
        return True

    async def answer(self, post: Post, request: Request, message: Any, error: ElsewhereError) -> Answer | None:
        """Forward one message that gets no stream, and return the answer.

        Return None if the other node did not act on it. The rest is as in `reply`.
        """
        response = await self._response(post, request, message, error, accept=mcp.JSON)
        if response is None:
            return None
        try:
            body = b"".join([part async for part in _parts_of(response)])
        except ClientError as failure:
            response.close()
            raise self._fail(request, error, failure) from failure
        except asyncio.CancelledError:
            response.close()
            raise
        response.keep()
        return Answer(body, response.status)

    async def _response(
        self, post: Post, request: Request, message: Any, error: ElsewhereError, accept: str = ""
    ) -> Response | None:
        headers = forwarded_headers(post.headers)
        if accept:
            headers["accept"] = accept
        within = request.deadline.remaining + GRACE_SECONDS
        try:
            async with asyncio.timeout(within):
                response = await self._hop.send(
                    error.peer, "POST", post.exchange.target, headers, envelope.encode(message), request.begin_sending
                )
        except asyncio.CancelledError:
            if not request.is_sent:
                error.end_call(None)  # no other node knows of the call
            raise
        except TimeoutError:
            raise self._fail(request, error, RequestTimeoutError(request.deadline.seconds)) from None
        except ClientError as failure:
            if request.is_sent:
                raise self._fail(request, error, failure) from failure
            await self._look_again(request, error, str(failure))
            return None
        if response.status != MISDIRECTED:
            return response
        response.release()
        await self._look_again(request, error, "it does not own the member any more")
        return None

    async def _look_again(self, request: Request, error: ElsewhereError, reason: str) -> None:
        """Wait a moment before the next look at the rows. Raise MethodError if there is no time left."""
        request.unsent_reason = f"its node {error.peer.name!r} did not take the request: {reason}"
        self._members.forget_owner(error.member_id)
        if request.deadline.remaining <= AGAIN_SECONDS or error.peer.address is None:
            refusal = failures.unavailable(error.member, request.unsent_reason)
            error.end_call(refusal)
            raise refusal
        try:
            await asyncio.sleep(AGAIN_SECONDS)
        except asyncio.CancelledError:
            error.end_call(None)
            raise

    def _fail(self, request: Request, error: ElsewhereError, failure: ClientError) -> MethodError:
        """Return the error for the client. If the other node ended, write the call into the call log here."""
        self._members.forget_owner(error.member_id)
        if not request.is_sent:
            refusal = failures.unavailable(error.member, request.unsent_reason)
            error.end_call(refusal)  # no other node knows of the call
            return refusal
        task = asyncio.ensure_future(self._end_call_of_lost_node(error, failure))
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
        place = f"its node {error.peer.name!r}"
        if isinstance(failure, ConnectError):
            failure = ConnectError(f"the connection to {place}: {failure}")
        elif isinstance(failure, RequestTimeoutError):
            failure = RequestTimeoutError(failure.seconds, place)
        return failures.of_member(failure, error.member, request)

    async def _end_call_of_lost_node(self, error: ElsewhereError, failure: ClientError) -> None:
        """Write the call into the call log if the other node ended. A node that is alive writes it itself."""
        deadline = asyncio.get_running_loop().time() + LOST_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if error.peer.lease not in self._members.peers.by_lease:
                error.end_call(failure)
                return
            await asyncio.sleep(AGAIN_SECONDS)

    @staticmethod
    async def _relay(response: Response, exchange: HttpExchange) -> None:
        """Send the reply to the client. Raise ClientError if it breaks off."""
        try:
            length = response.header("content-length") or ""
            headers = [
                (name.encode(), value.encode("latin-1"))
                for name in RELAYED_HEADERS
                if (value := response.header(name)) is not None
            ]
            if length.isdigit() and int(length) <= WHOLE:
                exchange.reply(response.status, await _whole(response), headers)
            else:
                if response.content_type == mcp.EVENT_STREAM:
                    headers = list(STREAM_HEADERS)
                elif length:
                    headers.append((b"content-length", length.encode()))
                await _relay_parts(response, exchange, headers)
        except BaseException:
            response.close()
            raise
        response.keep()

    # Messages without a member ------------------------------------------------------------------------------------

    async def get(self, peer: Peer, exchange: HttpExchange) -> None:
        """Forward a GET to the node, and relay its stream. Raise ConnectError if there is no stream to relay."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                response = await self._hop.send(peer, "GET", exchange.target, forwarded_headers(exchange.headers))
        except TimeoutError:
            raise ConnectError(f"node {peer.name!r} did not answer within {OPEN_SECONDS:g} s") from None
        if response.status != 200 or response.content_type != mcp.EVENT_STREAM:
            response.release()
            raise ConnectError(f"node {peer.name!r} did not accept the request")
        with contextlib.suppress(ClientError):  # the client may resume
            await self._relay(response, exchange)
        if not exchange.is_over:
            exchange.end()

    async def tell_others(self, verb: str, exchange: HttpExchange, message: Any = None) -> None:
        """Forward to all other nodes what concerns the client's whole session. Each may have a part of it.

        That is a notification, an answer to a question, `logging/setLevel` or a DELETE. Responses are ignored.
        """
        if peers := list(self._members.peers.reachable.values()):
            body = None if message is None else envelope.encode(message)
            await self._hop.tell_all(peers, verb, exchange.target, forwarded_headers(exchange.headers), body)


async def _whole(response: Response) -> bytes:
    try:
        async with asyncio.timeout(PART_SECONDS):
            return await response.read(WHOLE)
    except TimeoutError:
        raise ProtocolError(f"the other node sent no complete reply within {PART_SECONDS:g} s") from None


async def _relay_parts(response: Response, exchange: HttpExchange, headers: list[tuple[bytes, bytes]]) -> None:
    exchange.begin(response.status, headers)
    async with contextlib.aclosing(_parts_of(response)) as parts:
        async for part in parts:
            await exchange.write(part)
    exchange.end()


async def _parts_of(response: Response) -> AsyncGenerator[bytes]:
    """Yield the body as it comes. Raise ClientError if it breaks off, or if nothing comes for a long time."""
    is_stream = response.content_type == mcp.EVENT_STREAM
    seconds = QUESTION_SECONDS + GRACE_SECONDS if is_stream else PART_SECONDS
    async with contextlib.aclosing(response.chunks()) as parts:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    part = await anext(parts, None)
            except TimeoutError:
                raise ProtocolError(f"the other node sent nothing for {seconds:g} s") from None
            if part is None:
                return
            yield part
            del part  # free its memory, because the next part may come much later


def refuse_forwarded(error: ElsewhereError) -> Refusal:
    """Return the refusal of a forwarded request whose member is not here. The sender looks again."""
    return Refusal(MISDIRECTED, MethodError(INTERNAL_ERROR, str(error)))
