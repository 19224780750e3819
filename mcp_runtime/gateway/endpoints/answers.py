"""Create responses, and rewrite responses of members."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mcp_runtime.gateway import eras, failures
from mcp_runtime.gateway.catalog import OfferedMember
from mcp_runtime.gateway.endpoints import links
from mcp_runtime.gateway.messages import Answer, Event, Reply, Request, Stream
from mcp_runtime.gateway.upstream.relay import Relay
from mcp_runtime.gateway.upstream.routes import Upstream
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ClientError


class Rewriting:
    """Rewrites replies of members. Large responses are rewritten in another thread."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def rewrite(
        self, reply: Reply, request: Request, work: Callable[[bytes], bytes], *, is_throughout: bool = False
    ) -> Reply:
        """Rewrite the response in a member's reply with `work`. With `is_throughout`, rewrite the events before it too.

        `work` is stored as long as the client may resume the stream.
        """
        owner, request.rewriting = request.client.principal.owner, work
        if isinstance(reply, Answer):
            return replace(reply, body=await self._upstream.read_in_thread(owner, work, reply.body))
        stream = reply

        async def events() -> AsyncGenerator[Event]:
            async for event in stream.events:
                if event.is_last or (is_throughout and event.data):
                    yield replace(event, data=await self._upstream.read_in_thread(owner, work, event.data))
                else:
                    yield event

        return Stream(events(), inner=stream, again=events)

    async def with_links(self, reply: Reply, request: Request, member: str, requested_uris: Mapping[str, str]) -> Reply:
        """Rewrite the resources in a member's result to their listed URIs (links.py)."""
        if isinstance(reply, Answer) and not any(mark in reply.body for mark in links.MARKS):
            return reply
        return await self.rewrite(reply, request, lambda data: links.with_listed_uris(data, member, requested_uris))


def result(request: Request, result: dict[str, Any]) -> Answer:
    message = jsonrpc.result_response(request.id, result)
    if request.client.is_modern:
        message = eras.for_modern(request.method, request.params, message)
    return Answer(jsonrpc.encode(message))


def list_result(request: Request, kind: str, entries: bytes) -> Answer:
    """Return the response with a list that is already JSON, because encoding a thousand tools takes long."""
    extra = b',"resultType":"complete","ttlMs":0,"cacheScope":"private"' if request.client.is_modern else b""
    head = b'{"jsonrpc":"2.0","id":' + jsonrpc.encode(request.id)
    return Answer(head + b',"result":{"' + kind.encode() + b'":' + entries + extra + b"}}")


def join_entries(entries: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(entries) + b"]"


async def ask(relay: Relay, member: OfferedMember, request: Request) -> Reply:
    """Return the member's reply. Raise MethodError with the error for the client."""
    try:
        return await relay.ask(member, request)
    except ClientError as error:
        raise failures.of_member(error, member.name, request) from error


def note_subscription(request: Request, member: str, uri: str) -> None:
    """Store a subscription after the member accepted it. `uri` is the member's own."""
    if (session := request.client.session) is None:
        return
    if request.method == "resources/subscribe":
        session.subscribe(member, uri)
    elif request.method == "resources/unsubscribe":
        session.unsubscribe(member, uri)
