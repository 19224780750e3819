"""Clients of MCP 2026-07-28. It has no sessions: each request contains everything that is needed."""

from __future__ import annotations

from mcp_runtime.gateway import eras
from mcp_runtime.gateway.endpoints.introductions import Introductions
from mcp_runtime.gateway.endpoints.params import NAMED_BY
from mcp_runtime.gateway.intake import LISTEN_METHOD
from mcp_runtime.gateway.messages import Client, Deadline, Request
from mcp_runtime.gateway.posts import MAX_CAPABILITIES, Post, check_capabilities, checked_id, params_of
from mcp_runtime.gateway.replies import Refusal
from mcp_runtime.gateway.responder import Responder
from mcp_runtime.gateway.streams.client_streams import ClientStreams
from mcp_runtime.gateway.streams.http_streams import open_stream, send_stream
from mcp_runtime.protocol import jsonrpc, mcp
from mcp_runtime.protocol.errors import MethodError
from mcp_runtime.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST

MAX_LEVEL = 40


class ModernClients:
    """Serves modern clients."""

    def __init__(self, introductions: Introductions, client_streams: ClientStreams, responder: Responder) -> None:
        self._introductions = introductions
        self._client_streams = client_streams
        self._responder = responder

    async def request(self, post: Post) -> None:
        message, headers = post.message, post.headers
        is_request = (
            isinstance(message, dict) and message.get("jsonrpc") == "2.0" and isinstance(message.get("method"), str)
        )
        if not is_request or not isinstance(message.get("params", {}), dict):
            raise Refusal(400, MethodError(INVALID_REQUEST, "not a JSON-RPC 2.0 request"))
        if "id" not in message:
            # A modern client has no notification to send. It cancels a request by closing the connection.
            post.exchange.reply(202)
            return
        message_id = checked_id(message)
        try:
            eras.check_modern(message, headers)
        except MethodError as error:
            raise Refusal(400, error, message_id) from error
        meta = eras.meta_of(message)
        capabilities = meta[f"{mcp.META}clientCapabilities"]
        if post.size > MAX_CAPABILITIES:
            check_capabilities(capabilities, message_id)
        level = str(meta.get(f"{mcp.META}logLevel") or "")[:MAX_LEVEL]
        program = self._introductions.program(post.principal, meta.get(f"{mcp.META}clientInfo"))
        client = Client(post.principal, None, capabilities, level, headers.get(b"authorization"), program)
        parameter_headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers.items()
            # For methods outside of MCP, the gateway does not know what Mcp-Name refers to. The member validates it.
            if name.startswith(b"mcp-param-") or (name == b"mcp-name" and message["method"] not in NAMED_BY)
        }
        deadline, path = Deadline(), post.place.path
        params = params_of(message)
        request = Request(
            message_id, message["method"], params, client, deadline, post.size, path, parameter_headers, headers
        )
        if request.method == LISTEN_METHOD:
            await self._listen(post, request)
        else:
            await self._responder.reply(post, request)

    async def _listen(self, post: Post, request: Request) -> None:
        """Serve `subscriptions/listen` (26: basic/patterns/subscriptions)."""
        requested = request.params.get("notifications")
        if not isinstance(requested, dict):
            raise Refusal(400, MethodError(INVALID_PARAMS, "notifications must be an object"), request.id)
        subscriptions = self._client_streams.accepted_filter(post.place, requested)
        tag = {f"{mcp.META}subscriptionId": request.id}
        acknowledged = {"notifications": subscriptions, "_meta": tag}
        acknowledgement = jsonrpc.notification("notifications/subscriptions/acknowledged", acknowledged)
        end = jsonrpc.result_response(request.id, {"resultType": "complete", "_meta": tag})
        with post.exchange:
            stream = await open_stream(
                self._client_streams, post.place, request.client, post.exchange, subscriptions, post.message
            )
            await send_stream(stream, post.exchange, first=jsonrpc.encode(acknowledgement), last=jsonrpc.encode(end))
