"""Messages of a server that are not answers: its requests to the client, progress of a call, notifications."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from mcp_runtime.client.exchanges import CONNECT_TIMEOUT, Exchange
from mcp_runtime.client.transport import Transport, time_left
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ClientError, MethodError, ProtocolError
from mcp_runtime.protocol.jsonrpc import object_of, same_id

MAX_REQUESTS = 100  # of a server during one call


class Incoming:
    """Handles the messages. `on_request` answers the server's requests, `on_notification` gets its notifications."""

    def __init__(
        self,
        transport: Transport,
        on_request: Callable[[str, dict[str, Any]], dict[str, Any]] | None,
        on_notification: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._transport = transport
        self._on_request = on_request
        self._on_notification = on_notification

    def handle(self, message: Any, exchange: Exchange) -> None:
        """Handle one message of a stream that is not the answer."""
        method = message.get("method") if isinstance(message, dict) else None
        if not isinstance(method, str):
            return
        params = object_of(message.get("params"))
        if "id" in message:
            exchange.server_requests += 1
            if exchange.server_requests > MAX_REQUESTS:
                raise ProtocolError(f"asked more than {MAX_REQUESTS} questions during one call")
            if not exchange.session.is_modern:
                self._reply(message["id"], method, params, exchange)
        elif method == "notifications/progress":
            if exchange.on_progress is not None and same_id(params.get("progressToken"), exchange.request_id or 0):
                exchange.on_progress(params)
        else:
            self._on_notification(method, params)

    def inputs(self, result: dict[str, Any]) -> dict[str, Any]:
        """The inputs that a modern server asked for, for the next try (2026-07-28: basic/patterns/mrtr)."""
        input_requests, state = result.get("inputRequests"), result.get("requestState")
        if not isinstance(input_requests, dict) and not isinstance(state, str):
            raise ProtocolError("asked for input without saying for which")
        answers = {}
        for key, value in object_of(input_requests).items():
            request = object_of(value)
            try:
                answers[key] = self.answer(str(request.get("method")), object_of(request.get("params")))
            except MethodError as error:
                raise ProtocolError(f"asked for input that it is not given: {error}") from error
        return ({"inputResponses": answers} if answers else {}) | ({"requestState": state} if state is not None else {})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Answer one request of the server. Raises MethodError."""
        if method == "ping":
            return {}
        if self._on_request is None:
            raise MethodError(jsonrpc.METHOD_NOT_FOUND, f"{method} is not offered here")
        return self._on_request(method, params)

    def _reply(self, request_id: Any, method: str, params: dict[str, Any], exchange: Exchange) -> None:
        """Answer a request of the server with a separate POST. The stream on which it came stays open."""
        try:
            answer = jsonrpc.result_response(request_id, self.answer(method, params))
        except MethodError as error:
            answer = jsonrpc.error_response(request_id, error.code, error.message, error.data)
        reply = Exchange()
        timeout = min(CONNECT_TIMEOUT, time_left(exchange.deadline))
        reply.begin(None, timeout)
        reply.session = exchange.session
        with contextlib.suppress(ClientError), self._transport.send("POST", timeout, reply, {}, answer) as response:
            self._transport.read_body(response)
