"""What a server says beside its answers: questions to the client, progress of a call, notifications."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from mcp_runtime.client.transport import CONNECT_TIMEOUT, Exchange, Transport, time_left
from mcp_runtime.protocol import jsonrpc
from mcp_runtime.protocol.errors import ClientError, MethodError, ProtocolError
from mcp_runtime.protocol.jsonrpc import object_of, same_id

MAX_QUESTIONS = 100  # of a server during one call


class Incoming:
    """`on_request(method, params)` answers questions; without it none is. `on_notification` is told of what is none."""

    def __init__(
        self,
        transport: Transport,
        on_request: Callable[[str, dict[str, Any]], dict[str, Any]] | None,
        on_notification: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._transport = transport
        self._on_request = on_request
        self._on_notification = on_notification

    def take_in(self, message: Any, exchange: Exchange) -> None:
        """What comes on a stream beside the answer: questions, and notifications."""
        method = message.get("method") if isinstance(message, dict) else None
        if not isinstance(method, str):
            return
        params = object_of(message.get("params"))
        if "id" in message:
            exchange.questions += 1
            if exchange.questions > MAX_QUESTIONS:
                raise ProtocolError(f"asked more than {MAX_QUESTIONS} questions during one call")
            if not exchange.session.is_modern:
                self._reply(message["id"], method, params, exchange)
        elif method == "notifications/progress":
            if exchange.on_progress is not None and same_id(params.get("progressToken"), exchange.request_id or 0):
                exchange.on_progress(params)
        else:
            self._on_notification(method, params)

    def inputs(self, result: dict[str, Any]) -> dict[str, Any]:
        """What a modern server that needs more is sent with its call, the second time (26: basic/patterns/mrtr)."""
        wanted, state = result.get("inputRequests"), result.get("requestState")
        if not isinstance(wanted, dict) and not isinstance(state, str):
            raise ProtocolError("asked for input without saying for which")
        answers = {}
        for key, asked in object_of(wanted).items():
            request = object_of(asked)
            try:
                answers[key] = self.answer(str(request.get("method")), object_of(request.get("params")))
            except MethodError as error:
                raise ProtocolError(f"asked for input that it is not given: {error}") from error
        return ({"inputResponses": answers} if answers else {}) | ({"requestState": state} if state is not None else {})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """To one question. Raises MethodError."""
        if method == "ping":
            return {}
        if self._on_request is None:
            raise MethodError(jsonrpc.METHOD_NOT_FOUND, f"{method} is not offered here")
        return self._on_request(method, params)

    def _reply(self, request_id: Any, method: str, params: dict[str, Any], exchange: Exchange) -> None:
        """The answer to a server's question, by a POST of its own while its stream stays open."""
        try:
            answer = jsonrpc.result_response(request_id, self.answer(method, params))
        except MethodError as error:
            answer = jsonrpc.error_response(request_id, error.code, error.message, error.data)
        reply = Exchange()
        timeout = min(CONNECT_TIMEOUT, time_left(exchange.deadline))
        reply.begin(None, timeout)
        reply.session = exchange.session
        with contextlib.suppress(ClientError), self._transport.send("POST", timeout, reply, {}, answer) as response:
            self._transport.body(response)
