"""The handshake: once with the server, and its result for everybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mcp_runtime.bridge.callers import CallerRequest
from mcp_runtime.bridge.messages import INTERNAL_ERROR, Message, error_message, notification

TYPE_CHECKING = False  # see messages
if TYPE_CHECKING:
    from typing import Any

NOT_PASSED_ON = "the server reads nothing, or the message is nested too deep"


class Handshake:
    """`tell_server` says whether the server will be told; `welcome` gives a caller the server's answer."""

    def __init__(
        self,
        ids: Iterator[int],
        tell_server: Callable[[Message], bool],
        welcome: Callable[[CallerRequest, Message], None],
    ) -> None:
        self._ids = ids
        self._tell_server = tell_server
        self._welcome = welcome
        self._id = 0  # of the request that the server has not answered
        self._result: Message | None = None  # what every caller gets
        self._waiting: list[CallerRequest] = []

    @property
    def capabilities(self) -> Any:
        """As the server said them; None before it did, and where they are none."""
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
            # Capabilities of a client are what it may be asked for, and nobody's questions are passed on.
            asked = {"method": "initialize", "params": {**params, "capabilities": {}}}
            if not self._tell_server({"jsonrpc": "2.0", "id": self._id, **asked}):
                self.end(error_message(None, INTERNAL_ERROR, NOT_PASSED_ON))

    def end(self, message: Message) -> None:
        """With the server's answer."""
        self._id = 0
        if isinstance(message.get("result"), dict):
            self._result = message["result"]
            self._tell_server(notification("notifications/initialized"))
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._welcome(request, message)

    def forget(self, request: CallerRequest) -> None:
        """Its caller left."""
        self._waiting = [one for one in self._waiting if one is not request]
