"""The handshake with the server. It happens once, and every caller gets its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mcp_runtime.bridge.callers import CallerRequest
from mcp_runtime.bridge.messages import INTERNAL_ERROR, Message, error_message, notification

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

NOT_PASSED_ON = "the server reads nothing, or the message is nested too deep"


class Handshake:
    """`send_to_server` returns False if it cannot send. `welcome` passes the server's answer to a caller."""

    def __init__(
        self,
        ids: Iterator[int],
        send_to_server: Callable[[Message], bool],
        welcome: Callable[[CallerRequest, Message], None],
    ) -> None:
        self._ids = ids
        self._send_to_server = send_to_server
        self._welcome = welcome
        self._id = 0  # of the request that the server has not answered
        self._result: Message | None = None  # what every caller gets
        self._waiting: list[CallerRequest] = []

    @property
    def is_complete(self) -> bool:
        return self._result is not None

    @property
    def capabilities(self) -> Any:
        """The server's capabilities. None before its answer, or if they are not an object."""
        capabilities = (self._result or {}).get("capabilities")
        return capabilities if isinstance(capabilities, dict) else None

    def is_answered_by(self, request_id: Any) -> bool:
        return self._id != 0 and type(request_id) is int and request_id == self._id

    def shake(self, request: CallerRequest, params: Message) -> None:
        if self._result is not None:
            self._welcome(request, {"jsonrpc": "2.0", "result": self._result})
            return
        self._waiting.append(request)
        if not self._id:
            self._id = next(self._ids)
            # No capabilities, because they allow the server to send requests, and the bridge passes none on.
            call = {"method": "initialize", "params": {**params, "capabilities": {}}}
            if not self._send_to_server({"jsonrpc": "2.0", "id": self._id, **call}):
                self.end(error_message(None, INTERNAL_ERROR, NOT_PASSED_ON))

    def end(self, message: Message) -> None:
        """End the handshake with the server's answer."""
        self._id = 0
        if isinstance(message.get("result"), dict):
            self._result = message["result"]
            self._send_to_server(notification("notifications/initialized"))
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._welcome(request, message)

    def forget(self, request: CallerRequest) -> None:
        """Remove a request whose caller has disconnected."""
        self._waiting = [other for other in self._waiting if other is not request]
